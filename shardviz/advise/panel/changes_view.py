"""What would remove a collective, or lower the peak of memory, as plain data."""

from __future__ import annotations

from typing import Any

from shardviz.advise.advice import Advice
from shardviz.advise.edits import ProgramEdit
from shardviz.advise.words.candidates import NOT_TRIED, costs, to_write, untried
from shardviz.advise.words.edits import edits_in_words
from shardviz.compiled.words import stages as wording
from shardviz.explorer.planner import Job

MOST_CHANGES, MOST_NOTES = 12, 20


def changes_view(job: Job) -> dict[str, Any]:
    """The candidates of a job for the page."""
    rows, notes, found, report = [], [], job.changes, job.report
    words = wording.TRYING
    if report is not None:
        words = report.error.message if report.error and found is None else ""
    if report is not None and found is not None:
        none = "" if found else wording.NO_CHANGE
        words = f"{none} {untried(found)}".strip()
        for one in found[:MOST_CHANGES]:
            ok = None if one.values is None else one.values.ok
            row = {
                "edit": edits_in_words(one.edits),
                "facts": costs(one, job.wanted[1]),
                "ok": ok,
            }
            row.update(values=wording.EQUAL[ok], code=one.code())
            # A session cannot take edits inside the function.
            takes = all(isinstance(edit, ProgramEdit) for edit in one.edits)
            rows.append({**row, "takes": takes})
        by_hand = [one for one in found.advice if isinstance(one, Advice)]
        for one in by_hand:
            row = {"edit": to_write(one), "facts": "", "ok": None, "values": NOT_TRIED}
            rows.append({**row, "code": one.code(), "takes": False})
        facts = [one for one in found.advice if one not in by_hand]
        facts += found.refused
        notes = [str(fact) for fact in facts[:MOST_NOTES]]
    view = {"of": job.wanted[0], "revision": job.revision, "running": report is None}
    return {**view, "words": words, "rows": rows, "notes": notes}
