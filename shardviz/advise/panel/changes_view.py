"""Converts a search for changes to data for the page."""

from __future__ import annotations

from shardviz.advise.advice import Advice
from shardviz.advise.candidates import Candidate
from shardviz.advise.edits import ProgramEdit
from shardviz.advise.words.candidates import NOT_TRIED, costs, to_write, untried
from shardviz.advise.words.edits import edits_in_words
from shardviz.base.collective import Collective
from shardviz.base.typing import JsonDict
from shardviz.compiled.words import stages as wording
from shardviz.explorer.planner import ChangesJob

MOST_CHANGES, MOST_NOTES = 12, 20


def changes_view(job: ChangesJob) -> JsonDict:
    """Returns the changes of a search, followed by advice, as data for the page."""
    changes, report = job.changes, job.report
    words, notes = wording.TRYING, []
    rows: list[JsonDict] = []
    if report is not None and changes is None:
        words = report.error.message if report.error else ""
    elif report is not None and changes is not None:
        none = "" if changes else wording.NO_CHANGE
        words = f"{none} {untried(changes)}".strip()
        advice = [fact for fact in changes.advice if isinstance(fact, Advice)]
        for candidate in changes[:MOST_CHANGES]:
            rows.append(_candidate_row(candidate, job.collective))
        rows += [_advice_row(fact) for fact in advice]
        facts = [fact for fact in changes.advice if not isinstance(fact, Advice)]
        facts += changes.refused
        notes = [str(fact) for fact in facts[:MOST_NOTES]]
    return {
        "of": job.key,
        "revision": job.revision,
        "target": job.target,
        "running": report is None,
        "words": words,
        "rows": rows,
        "notes": notes,
    }


def _candidate_row(candidate: Candidate, collective: Collective | None) -> JsonDict:
    """Returns the row of a change that was tried."""
    equal = None if candidate.values is None else candidate.values.ok
    # A session cannot apply edits of the function's jaxpr.
    takes = all(isinstance(edit, ProgramEdit) for edit in candidate.edits)
    return {
        "edit": edits_in_words(candidate.edits),
        "facts": costs(candidate, collective),
        "ok": equal,
        "values": wording.EQUAL[equal],
        "code": candidate.code(),
        "takes": takes,
    }


def _advice_row(advice: Advice) -> JsonDict:
    """Returns the row of code to add by hand, which was not tried."""
    return {
        "edit": to_write(advice),
        "facts": "",
        "ok": None,
        "values": NOT_TRIED,
        "code": advice.code(),
        "takes": False,
    }
