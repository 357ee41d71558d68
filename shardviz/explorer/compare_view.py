"""What changed since a state that somebody pinned: bytes, collectives, time and memory.

A number that one of the two states does not have is unknown, and is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.axis_rules.panel.model_view import audit_of
from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text
from shardviz.compiled.comparison import total_bytes
from shardviz.compiled.report import Report, needed_bytes
from shardviz.compiled.roofline import with_operations
from shardviz.compiled.words.roofline import time_text
from shardviz.explorer.document import Document
from shardviz.explorer.planner import StageResults
from shardviz.explorer.words import compare as wording
from shardviz.plans.plan import Plan

#: A state: what was edited, and what is known of its program.
State = tuple[Document, StageResults]


def compare_view(before: State, now: State) -> dict[str, Any]:
    """The numbers of two states, less of each being better.

    Args:
        before: the pinned one.
        now: the one that is edited.
    """
    states = (before, now)
    plans = tuple(found.plan_of(document.revision) for document, found in states)
    reports = tuple(
        found.report_of(document.revision, document.target)
        for document, found in states
    )
    stage, calls = _collectives(plans, reports)
    sizes = [_bytes(before[0]), _bytes(now[0])]
    counts = [None if some is None else len(some) for some in calls]
    moved = [None if some is None else total_bytes(some) for some in calls]
    times: list[Any] = []
    needed: list[int | None] = []
    for plan, report in zip(plans, reports, strict=True):
        found = with_operations(report, plan)
        times.append(None if found is None else found.seconds)
        needed.append(None if report is None else needed_bytes(report.memory))
    names = wording.NAMES
    rows = [
        _row(names["bytes"], sizes, bytes_text),
        _row(names["collectives"], counts, str, wording.STAGES[stage]),
        _row(names["moved"], moved, bytes_text, wording.STAGES[stage]),
        _row(names["time"], times, time_text),
        _row(names["memory"], needed, bytes_text),
    ]
    known = [row for row in rows if row is not None]
    (then, _), (document, _) = before, now
    same = document.program is then.program and document.target == then.target
    return {"revision": document.revision, "same": same, "rows": known}


def _row(
    name: str, values: list[Any], text: Callable[[Any], str], title: str = ""
) -> dict[str, str] | None:
    """A number before and now, and whether it got better; None where both are unknown."""
    before, after = values
    if before is None and after is None:
        return None
    row = {"name": name, "title": title, "text": wording.pair(before, after, text)}
    tone, change = "unknown", ""
    if before is not None and after is not None:
        tone = "same"
        if before != after:
            tone = "better" if after < before else "worse"
            change = wording.change(after - before, text)
    return {**row, "change": change, "tone": tone}


def _collectives(
    plans: tuple[Plan | None, ...], reports: tuple[Report | None, ...]
) -> tuple[str, list[tuple[Collective, ...] | None]]:
    """The last stage that both have, and the collectives there.

    Where they have none in common, those that each plan has.
    """
    known: list[tuple[Collective, ...] | None] = []
    for stage in ("collectives", "partitioned"):
        known = [
            None if report is None else getattr(report, stage) for report in reports
        ]
        if None not in known:
            return stage, known
    known = []
    for plan in plans:
        known.append(plan.collectives if plan is not None and plan.ok else None)
    return "planned", known


def _bytes(document: Document) -> int | None:
    """What all arrays take on the device that holds most; None where that is not known."""
    audit = audit_of(document.program, document.model)
    return None if audit.uncounted else audit.bytes_per_device
