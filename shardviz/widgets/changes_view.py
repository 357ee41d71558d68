"""What would remove a collective, or lower the peak of memory, as plain data."""

from __future__ import annotations

from typing import Any

from shardviz.core.program.candidates import Candidate
from shardviz.core.wording import changes as wording
from shardviz.widgets.planner import Job

#: The codes of edits that a session can take; others change the function.
TAKEN = ("argument", "result", "rule", "axis order", "mesh", "donate")
MOST_CHANGES, MOST_NOTES = 12, 20


def changes_view(job: Job, of: str) -> dict[str, Any]:
    """The candidates of a job for the page.

    Args:
        of: what is to go: the key of a collective, or `"memory"`.
    """
    view: dict[str, Any] = {"of": of, "revision": job.revision, "state": "running"}
    view.update(words=wording.TRYING, error="", rows=[], notes=[])
    if job.report is None:
        return view
    view.update(state="done", words="")
    if job.changes is None:
        view["error"] = job.report.error.message if job.report.error else ""
        return view
    view["words"] = "" if job.changes else wording.NONE_FOUND
    for one in job.changes[:MOST_CHANGES]:
        row = {"edit": wording.edits(one), "facts": wording.before_and_after(one)}
        row.update(code=one.code(), takes=can_take(one))
        ok = None if one.values is None else one.values.ok
        view["rows"].append({**row, "ok": ok, "values": wording.COMPARED[ok]})
    notes = (*job.changes.advice, *job.changes.refused)
    view["notes"] = [str(fact) for fact in notes[:MOST_NOTES]]
    return view


def can_take(one: Candidate) -> bool:
    """Whether a session can take a candidate as an edit."""
    return all(edit.code in TAKEN for edit in one.edits)
