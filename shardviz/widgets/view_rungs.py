"""The rungs of a program and what changed between them, as plain data for the page.

Four rungs stand side by side: requested, propagated, partitioned, compiled. Whether one is older
than the program is the page's to see: it knows the revision that each belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.core.errors import plural
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.report import Collective, Report
from shardviz.core.program.rungs import Change, Comparison, compare
from shardviz.picture.spec_bars import axis_groups
from shardviz.picture.units import bytes_text, seconds_text
from shardviz.widgets.rung_table import MOST_ROWS, RungTable
from shardviz.widgets.view_memory import memory_view
from shardviz.widgets.view_report import collective_summary, error_view

NAMES = ("propagated", "partitioned", "compiled")
SHORT = 44  # letters that fit between two rungs
PAIRS = ((0, 1), (1, 2), (0, 2))
NOT_SHOWN = "the compiler did not show it"
_SAVED = ("not planned", "not asked", "not compiled")  # of NAMES, on a page without a kernel


@dataclass(frozen=True)
class Side:
    """What is known on the rungs, and what it belongs to.

    Attributes:
        plan, plan_revision: the propagated rung; None where there is none.
        report, report_revision, target: the partitioned and the compiled rung, and their target.
        reason: why the partitioner was not asked; `""` where it was or will be.
    """

    plan: Plan | None = None
    plan_revision: int = -1
    report: Report | None = None
    report_revision: int = -1
    target: str = ""
    reason: str = ""

    @property
    def apart(self) -> bool:
        """Whether plan and report are of two different programs."""
        return self.plan_revision != self.report_revision

    def collectives(self) -> tuple[tuple[Collective, ...] | None, ...]:
        """The collectives of each of NAMES; None where they are not known."""
        planned = None
        if self.plan is not None and self.plan.ok:
            planned = self.plan.collectives
        if self.report is None:
            return planned, None, None
        return planned, self.report.partitioned, self.report.collectives


def rungs_view(side: Side) -> dict[str, Any]:
    """The row of rungs, the comparisons between them, and the table of collectives.

    >>> view = rungs_view(Side())
    >>> [rung["state"] for rung in view["rungs"]], view["rows"]
    (['none', 'none', 'none'], [])
    """
    known = side.collectives()
    comparisons = {
        (i, j): compare(before, after, (NAMES[i], NAMES[j]))
        for i, j in PAIRS
        if (before := known[i]) is not None and (after := known[j]) is not None
    }
    # Beside the partitioner's answer, the estimate is compared with that; else with the end.
    if known[1] is not None:
        comparisons.pop((0, 2), None)
    table = RungTable(known)
    links = [table.link(i, j, c) for (i, j), c in comparisons.items()]
    table.join()
    return {
        "revisions": [side.plan_revision, side.report_revision, side.report_revision],
        "target": side.target,
        "rungs": [_propagated(side), _partitioned(side), _compiled(side)],
        "marks": [
            *_requested_mark(side.plan),
            # The estimate of one program says nothing about the answer for another.
            *(_mark(i, j, c) for (i, j), c in comparisons.items() if i or not side.apart),
        ],
        "changes": [c for some in links for c in some if c["between"][0] or not side.apart],
        "collectives": [[table.row(i, k) for k in order] for i, order in enumerate(table.orders)],
        "rows": table.rows(),
        "cut": [max(0, len(c or ()) - MOST_ROWS) for c in known],
        "axes": _axes(side.plan),
        "notes": list(side.report.notes) if side.report is not None else [],
        "memory": memory_view(side.report, None if side.apart else side.plan),
        "error": error_view(side.report),
    }


def saved_rungs(view: dict[str, Any]) -> dict[str, Any]:
    """The same for a page without a kernel: nothing is planned or compiled there any more.

    >>> [rung["text"] for rung in saved_rungs(rungs_view(Side()))["rungs"]]
    ['not planned', 'not asked', 'not compiled']
    """
    rungs = [
        {**r, "text": never} if r["state"] == "none" and r["text"] != NOT_SHOWN else r
        for r, never in zip(view["rungs"], _SAVED, strict=True)
    ]
    return {**view, "rungs": rungs}


def _axes(plan: Plan | None) -> dict[str, int]:
    return {} if plan is None else axis_groups(plan.mesh)


def _rung(name: str, state: str, text: str, took: float | None = None, more: str = "") -> dict:
    return {
        "name": name,
        "state": state,
        "text": text,
        "took": "" if took is None else seconds_text(took),
        "more": more,
    }


def _propagated(side: Side) -> dict[str, Any]:
    plan = side.plan
    if plan is None:
        return _rung("propagated", "none", "planned when the edits settle")
    if plan.error is not None:
        refused = "refused: see why" if plan.diagnosis is not None else "no plan: see why"
        return _rung("propagated", "failed", refused, None, str(plan.error))
    split = sum(1 for op in plan.ops if op.spec.axes)
    words = f"{split:,} of {plural(len(plan.ops), 'value')} split"
    return _known("propagated", "estimate", plan.collectives, plan.seconds, words)


def _partitioned(side: Side) -> dict[str, Any]:
    report = side.report
    if report is None:
        return _rung("partitioned", "none", side.reason or "not yet")
    if report.partitioned is None:
        failed = report.error is not None and report.collectives is None
        text = "it did not get that far" if failed else NOT_SHOWN
        more = report.error.message if failed and report.error is not None else ""
        return _rung("partitioned", "failed" if failed else "none", text, None, more)
    return _known("partitioned", "live", report.partitioned, report.partition_s, report.target)


def _compiled(side: Side) -> dict[str, Any]:
    report = side.report
    if report is None:
        return _rung("compiled", "none", "not yet: press Compile")
    if report.collectives is None:
        text = "it did not get that far" if report.error else "not yet: press Compile"
        more = report.error.message if report.error is not None else ""
        return _rung("compiled", "failed" if report.error else "none", text, None, more)
    state = "failed" if report.error is not None else "live"
    made = _known("compiled", state, report.collectives, report.compile_s, report.target)
    return {**made, "took": "from the cache"} if report.cache_hit else made


def _known(
    name: str, state: str, some: Sequence[Collective], took: float | None, more: str
) -> dict[str, Any]:
    """A rung whose collectives are known: how many, and their bytes, loops counted."""
    total = sum(c.bytes_in_all for c in some)
    more = more.removesuffix(", described")  # the menu says so, and there is little room
    more = " · ".join(filter(None, [bytes_text(total) if total else "", more]))
    return _rung(name, state, collective_summary(some), took, more)


def _requested_mark(plan: Plan | None) -> list[dict[str, Any]]:
    """What the propagation added to what was asked for."""
    if plan is None or plan.error is not None:
        return []
    given = sum(1 for op in plan.ops if op.kind != "argument" and op.spec.axes)
    text = f"{plural(given, 'value')} got axes" if given else "nothing got axes"
    title = "What the propagation made of it: see the tab Values."
    return [{"between": [-1, 0], "text": text, "tone": "same", "title": title}]


def _mark(i: int, j: int, found: Comparison) -> dict[str, Any]:
    """What changed between two rungs, in a few words."""
    before, after = (sum(c.bytes_in_all for some in side for c in some) for side in _sides(found))
    tone = "same" if found.same else "more" if after > before else "changed"
    title = "\n".join(found.lines[:12])
    return {"between": [i, j], "text": mark_words(found), "tone": tone, "title": title}


def mark_words(found: Comparison) -> str:
    """What changed, less what was kept: short enough to stand between two rungs.

    >>> one = Collective("all-reduce", ("data",), 1024)
    >>> mark_words(compare([one], [one], ("propagated", "partitioned")))
    'estimate was right'
    >>> mark_words(compare([one], [one], ("partitioned", "compiled")))
    'unchanged'
    >>> mark_words(compare([], [one], ("propagated", "partitioned")))
    '+1 all-reduce'
    """
    if found.same:
        return "estimate was right" if found.before == "propagated" else "unchanged"
    words = []
    for kind in found.counts:
        some = found.of(kind)
        many, new = (sum(map(len, side)) for side in _sides(some))
        if kind in ("combined", "split"):
            words.append(f"{many} {kind} into {new}")
        elif kind == "replaced":
            old, by = (collective_summary(c for one in s for c in one) for s in _sides(some))
            short = len(old) + len(by) < SHORT and old != by
            words.append(f"{old} became {by}" if short else f"{many} replaced by {new}")
        elif kind in ("added", "removed"):
            sign = "+" if kind == "added" else "−"
            listed = [c for change in some for c in (*change.before, *change.after)]
            words.append(sign + collective_summary(listed).replace(", ", f", {sign}"))
        elif kind != "kept":
            words.append(f"{many} {kind}")
    return ", ".join(words)


def _sides(changes: Iterable[Change] | Comparison) -> tuple[list, list]:
    """Before and after, a list of tuples of collectives each."""
    some = changes.changes if isinstance(changes, Comparison) else tuple(changes)
    return [c.before for c in some], [c.after for c in some]
