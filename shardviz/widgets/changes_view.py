"""What would remove a collective, or lower the peak of memory, as plain data."""

from __future__ import annotations

from typing import Any

from shardviz.core.wording import stages as wording
from shardviz.core.wording.candidates import edits_in_words
from shardviz.widgets.planner import Job

#: The codes of edits that a session can take; others change the function.
TAKEN = (
    "argument", "result", "rule", "device order", "mesh", "donate",
)  # fmt: skip
MOST_CHANGES, MOST_NOTES = 12, 20


def changes_view(job: Job) -> dict[str, Any]:
    """The candidates of a job for the page."""
    view: dict[str, Any] = {"of": job.wanted[0], "revision": job.revision}
    view.update(running=job.report is None, words=wording.TRYING, rows=[], notes=[])
    if job.report is None:
        return view
    found = job.changes
    view["words"] = "" if found else wording.NO_CHANGE
    if found is None:
        view["words"] = job.report.error.message if job.report.error else ""
        return view
    for one in found[:MOST_CHANGES]:
        ok = None if one.values is None else one.values.ok
        words = edits_in_words(one.edits)
        row = {"edit": words, "facts": wording.before_and_after(one), "ok": ok}
        row.update(values=wording.EQUAL[ok], code=one.code())
        takes = all(edit.code in TAKEN for edit in one.edits)
        view["rows"].append({**row, "takes": takes})
    notes = (*found.advice, *found.refused)
    view["notes"] = [str(fact) for fact in notes[:MOST_NOTES]]
    return view
