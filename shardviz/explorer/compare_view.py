"""Compares the session with a pinned state: bytes, collectives, time and memory.

A number that is missing for one state is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from shardviz.axis_rules.panel.model_view import audit_of
from shardviz.base.collective import Collective, sent_in_all
from shardviz.base.format import bytes_text, told_apart
from shardviz.base.typing import JsonDict
from shardviz.compiled.report import Report, needed_bytes
from shardviz.compiled.roofline import with_operations
from shardviz.compiled.words.roofline import time_text
from shardviz.explorer.document import Document
from shardviz.explorer.planner import StageResults
from shardviz.explorer.words import compare as wording
from shardviz.plans.plan import Plan

Number = TypeVar("Number", bound=float)


class State(NamedTuple):
    """A document, and the planner's results for its program."""

    document: Document
    results: StageResults


def compare_view(before: State, now: State) -> JsonDict:
    """Compares the numbers of both states; lower is better for each number.

    Args:
        before: the pinned state.
        now: the state being edited.
    """
    plans, reports = [], []
    for document, results in (before, now):
        plans.append(results.plan_of(document.revision))
        reports.append(results.report_of(document.revision, document.target))
    stage, collectives = _collectives(plans, reports)
    sizes = [_bytes(before.document), _bytes(now.document)]
    counts = [None if calls is None else len(calls) for calls in collectives]
    sent = [_sent(calls) for calls in collectives]
    times: list[float | None] = []
    needed: list[int | None] = []
    for plan, report in zip(plans, reports, strict=True):
        roofline = with_operations(report, plan)
        times.append(None if roofline is None else roofline.seconds)
        needed.append(
            None if report is None else needed_bytes(report.without_error.memory)
        )
    names = wording.NAMES
    rows = [
        _row(names["bytes"], sizes, bytes_text),
        _row(names["collectives"], counts, _count, wording.STAGES[stage]),
        _row(names["sent"], sent, bytes_text, wording.STAGES[stage]),
        _row(names["time"], times, time_text, digits=3),
        _row(names["memory"], needed, bytes_text),
    ]
    then, document = before.document, now.document
    unchanged = document.program is then.program and document.target == then.target
    return {
        "revision": document.revision,
        "target": document.target,
        "same": unchanged,
        "rows": [row for row in rows if row is not None],
    }


def _row(
    name: str,
    values: Sequence[Number | None],
    text: Callable[[Number, int], str],
    title: str = "",
    digits: int = 1,
) -> dict[str, str] | None:
    """Returns a table row for one number; None if both states lack the number."""
    before, after = values
    known = [value for value in values if value is not None]
    if not known:
        return None
    texts = dict(zip(known, told_apart(known, text, digits), strict=True))
    old, new = (wording.UNKNOWN if n is None else texts[n] for n in values)
    row = {"name": name, "title": title, "text": wording.pair(old, new)}
    tone, change = "unknown", ""
    if before is not None and after is not None:
        tone = "same"
        if before != after:
            tone = "better" if after < before else "worse"
            change = wording.change(after - before, text, digits)
    return {**row, "change": change, "tone": tone}


def _count(count: int, digits: int) -> str:
    return str(count)


def _collectives(
    plans: Sequence[Plan | None], reports: Sequence[Report | None]
) -> tuple[str, list[tuple[Collective, ...] | None]]:
    """Returns the last stage that both states have reached, and their collectives.

    If the two reports share no stage, these are the collectives of the plans.
    """
    for stage in ("collectives", "partitioned"):
        compiled = [
            None if report is None else getattr(report.without_error, stage)
            for report in reports
        ]
        if None not in compiled:
            return stage, compiled
    planned = []
    for plan in plans:
        planned.append(plan.collectives if plan is not None and plan.ok else None)
    return "planned", planned


def _sent(collectives: Sequence[Collective] | None) -> int | None:
    """Returns the bytes that each device sends in a step; None if any is unknown."""
    if collectives is None or any(call.sent_bytes is None for call in collectives):
        return None
    return sent_in_all(collectives)


def _bytes(document: Document) -> int | None:
    """Returns the bytes on the fullest device; None if any array is not counted."""
    audit = audit_of(document.program, document.model)
    return None if audit.uncounted else audit.bytes_per_device
