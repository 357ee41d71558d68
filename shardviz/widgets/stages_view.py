"""The stages of a program and what changed between them, as plain data for the page.

Four stages stand side by side: requested, propagated, partitioned, compiled. Whether one is older
than the program is the page's to see: it knows the revision that each belongs to.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.program.comparison import CollectiveChange, Comparison, compare
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report
from shardviz.picture.spec_bars import axis_groups
from shardviz.widgets.planner import Planner, PlannerAnswer
from shardviz.widgets.report_view import (
    cause,
    collective_summary,
    error_view,
    memory_view,
    was_cancelled,
)
from shardviz.widgets.values_view import values_view

MOST_ROWS = 300
MOST_CAUSES = 8
MOST_MEMBERS = 2048  # group members that are sent where no mesh axes say who is in a group


class CollectiveTable:
    """What belongs together stands together: the collectives of the stages, matched into rows.

    Args:
        known: the collectives of propagated, partitioned and compiled; None where not known.

    >>> one = Collective("all-reduce", ("data",), 1024, cause="It sums over rows.")
    >>> table = CollectiveTable([(one,), None, None])
    >>> table.join()
    >>> table.rows()[0]["cells"], table.row(0, 0)["causes"]
    ([[0], [], []], ['It sums over rows.'])
    """

    def __init__(self, known: Sequence[tuple[Collective, ...] | None]):
        self.known = [tuple(some or ()) for some in known]
        self.orders = [
            sorted(range(len(some)), key=lambda k, some=some: -some[k].bytes_in_all)[:MOST_ROWS]
            for some in self.known
        ]
        self._place = {
            (i, id(c)): [k for k, other in enumerate(some) if other is c]
            for i, some in enumerate(self.known)
            for c in some
        }
        self._parent = {
            (i, k): (i, k) for i, some in enumerate(self.known) for k in range(len(some))
        }
        self._cells: dict[tuple[int, int], list[list[int]]] = {}
        self._how: dict[tuple[int, int], str] = {}
        self._most = max((c.bytes_in_all for some in self.known for c in some), default=0) or 1

    def link(self, i: int, j: int, found: Comparison) -> list[dict[str, Any]]:
        """Joins what a comparison found to belong together; its changes as plain data."""
        changes = []
        for change in sorted(found.changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device)):
            before = [self._take(i, c) for c in change.before]
            after = [self._take(j, c) for c in change.after]
            for one in (*before, *after):
                self._join((*before, *after)[0], one)
            if change.kind != "kept":
                self._how.update(dict.fromkeys(after, change.kind))
            changes.append(
                {
                    "between": [i, j],
                    "kind": change.kind,
                    "words": change.words,
                    "before": [k for _, k in before],
                    "after": [k for _, k in after],
                }
            )
        return changes[:MOST_ROWS]

    def _take(self, stage: int, one: Collective) -> tuple[int, int]:
        """The place of a collective; each place is taken once for each comparison it is in."""
        places = self._place[stage, id(one)]
        places.append(places.pop(0))
        return stage, places[-1]

    def _root(self, node: tuple[int, int]) -> tuple[int, int]:
        while self._parent[node] != node:
            node = self._parent[node]
        return node

    def _join(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        self._parent[self._root(other)] = self._root(one)

    def join(self) -> None:
        """Gathers what was linked; every link must have been made."""
        for node in self._parent:
            cells = self._cells.setdefault(self._root(node), [[], [], []])
            cells[node[0]].append(node[1])

    def rows(self) -> list[dict[str, Any]]:
        """One row for what belongs together, the most bytes first: its members on each stage."""
        sent = [set(order) for order in self.orders]
        rows = sorted(self._cells.values(), key=lambda cells: -self._row_bytes(cells))[:MOST_ROWS]
        return [
            {
                "cells": [[k for k in cell if k in sent[i]] for i, cell in enumerate(row)],
                "bytes": bytes_text(self._row_bytes(row)),
                "share": self._row_bytes(row) / self._most,
            }
            for row in rows
        ]

    def _row_bytes(self, cells: list[list[int]]) -> int:
        return max(sum(self.known[i][k].bytes_in_all for k in cell) for i, cell in enumerate(cells))

    def _planned(self, stage: int, number: int) -> list[Collective]:
        """What the plan has in the place of a collective."""
        return [self.known[0][k] for k in self._cells[self._root((stage, number))][0]]

    def row(self, stage: int, number: int) -> dict[str, Any]:
        """One collective as the page shows it."""
        one = self.known[stage][number]
        planned = self._planned(stage, number) if stage else []
        # The plan knows the reason in words of the program; the compiled text only names.
        causes = [one.cause] if one.cause else list(dict.fromkeys(c.cause for c in planned))
        causes = [words for words in causes if words] or [cause(one.op)]
        values = [one.value] if one.value else list(dict.fromkeys(c.value for c in planned))
        return {
            "number": number,
            "kind": one.kind,
            "axes": list(one.mesh_axes),
            "bytes": bytes_text(one.bytes_per_device),
            "share": one.bytes_in_all / self._most,
            "total": bytes_text(one.bytes_in_all) if one.execution_count > 1 else "",
            "tags": _tags(one, self._how.get((stage, number), "")),
            "full": one.rematerialises,
            "phase": one.phase,
            "size": one.group_size or (len(one.groups[0]) if one.groups else 0),
            "causes": causes[:MOST_CAUSES],
            "moreCauses": max(0, len(causes) - MOST_CAUSES),
            "op": one.op,
            "shape": one.shape,
            "source": one.source,
            "stack": list(one.stack[:12]),
            "values": [name for name in values if name][:MOST_CAUSES],
            "groups": _groups(one),
        }


def _tags(one: Collective, how: str) -> list[str]:
    tags = []
    if one.in_loop:
        tags.append(f"× {one.trips:,}" if one.trips else "in loop, × ?")
    if one.is_async and how != "made asynchronous":
        tags.append("async")
    if one.between_slices:
        tags.append("between slices")
    if how:
        tags.append(_HOW.get(how, how))
    return tags


_HOW = {"made asynchronous": "now async", "added": "new"}


def _groups(one: Collective) -> list[list[int]]:
    """Who is in which group, where no mesh axes say so and there are not too many."""
    if one.mesh_axes and all(":(" not in axis for axis in one.mesh_axes):
        return []
    groups = [list(group) for group in one.groups]
    return groups if sum(map(len, groups)) <= MOST_MEMBERS else []


NAMES = ("propagated", "partitioned", "compiled")
SHORT = 44  # letters that fit between two stages
PAIRS = ((0, 1), (1, 2), (0, 2))
NOT_SHOWN = "the compiler did not show it"
_SAVED = ("not planned", "not asked", "not compiled")  # of NAMES, on a page without a kernel


@dataclass(frozen=True)
class Side:
    """What is known on the stages, and what it belongs to.

    Attributes:
        plan, plan_revision: the propagated stage; None where there is none.
        report, report_revision, target: the partitioned and the compiled stage, and their target.
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


def stages_view(side: Side) -> dict[str, Any]:
    """The row of stages, the comparisons between them, and the table of collectives.

    >>> view = stages_view(Side())
    >>> [stage["state"] for stage in view["stages"]], view["rows"]
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
    table = CollectiveTable(known)
    links = [table.link(i, j, c) for (i, j), c in comparisons.items()]
    table.join()
    return {
        "revisions": [side.plan_revision, side.report_revision, side.report_revision],
        "target": side.target,
        "stages": [_propagated(side), _partitioned(side), _compiled(side)],
        "marks": [
            *_requested_mark(side.plan),
            # The estimate of one program says nothing about the answer for another.
            *(_mark(i, j, c) for (i, j), c in comparisons.items() if i or not side.apart),
        ],
        "changes": [c for some in links for c in some if c["between"][0] or not side.apart],
        "collectives": [[table.row(i, k) for k in order] for i, order in enumerate(table.orders)],
        "rows": table.rows(),
        "left_out": [max(0, len(c or ()) - MOST_ROWS) for c in known],
        "axes": _axes(side.plan),
        "notes": list(side.report.notes) if side.report is not None else [],
        "memory": memory_view(side.report, None if side.apart else side.plan),
        "error": error_view(side.report),
    }


def saved_stages(view: dict[str, Any]) -> dict[str, Any]:
    """The same for a page without a kernel: nothing is planned or compiled there any more.

    >>> [stage["text"] for stage in saved_stages(stages_view(Side()))["stages"]]
    ['not planned', 'not asked', 'not compiled']
    """
    stages = [
        {**r, "text": never} if r["state"] == "none" and r["text"] != NOT_SHOWN else r
        for r, never in zip(view["stages"], _SAVED, strict=True)
    ]
    return {**view, "stages": stages}


def _axes(plan: Plan | None) -> dict[str, int]:
    return {} if plan is None else axis_groups(plan.mesh)


def _stage(name: str, state: str, text: str, took: float | None = None, more: str = "") -> dict:
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
        return _stage("propagated", "none", "planned when the edits settle")
    if plan.error is not None:
        refused = "refused: see why" if plan.diagnosis is not None else "no plan: see why"
        return _stage("propagated", "failed", refused, None, str(plan.error))
    split = sum(1 for op in plan.ops if op.spec.axes)
    words = f"{split:,} of {plural(len(plan.ops), 'value')} split"
    return _known("propagated", "estimate", plan.collectives, plan.seconds, words)


def _partitioned(side: Side) -> dict[str, Any]:
    report = side.report
    if report is None:
        return _stage("partitioned", "none", side.reason or "not yet")
    if report.partitioned is None:
        failed = report.error is not None and report.collectives is None
        text = "it did not get that far" if failed else NOT_SHOWN
        more = report.error.message if failed and report.error is not None else ""
        return _stage("partitioned", "failed" if failed else "none", text, None, more)
    return _known("partitioned", "live", report.partitioned, report.partition_s, report.target)


def _compiled(side: Side) -> dict[str, Any]:
    report = side.report
    if report is None:
        return _stage("compiled", "none", "not yet: press Compile")
    if report.collectives is None:
        text = "it did not get that far" if report.error else "not yet: press Compile"
        more = report.error.message if report.error is not None else ""
        return _stage("compiled", "failed" if report.error else "none", text, None, more)
    state = "failed" if report.error is not None else "live"
    made = _known("compiled", state, report.collectives, report.compile_s, report.target)
    return {**made, "took": "from the cache"} if report.cache_hit else made


def _known(
    name: str, state: str, some: Sequence[Collective], took: float | None, more: str
) -> dict[str, Any]:
    """A stage whose collectives are known: how many, and their bytes, loops counted."""
    total = sum(c.bytes_in_all for c in some)
    more = more.removesuffix(", described")  # the menu says so, and there is little room
    more = " · ".join(filter(None, [bytes_text(total) if total else "", more]))
    return _stage(name, state, collective_summary(some), took, more)


def _requested_mark(plan: Plan | None) -> list[dict[str, Any]]:
    """What the propagation added to what was asked for."""
    if plan is None or plan.error is not None:
        return []
    given = sum(1 for op in plan.ops if op.kind != "argument" and op.spec.axes)
    text = f"{plural(given, 'value')} got axes" if given else "nothing got axes"
    title = "What the propagation made of it: see the tab Values."
    return [{"between": [-1, 0], "text": text, "tone": "same", "title": title}]


def _mark(i: int, j: int, found: Comparison) -> dict[str, Any]:
    """What changed between two stages, in a few words."""
    before, after = (sum(c.bytes_in_all for some in side for c in some) for side in _sides(found))
    tone = "same" if found.same else "more" if after > before else "changed"
    title = "\n".join(found.lines[:12])
    return {"between": [i, j], "text": mark_words(found), "tone": tone, "title": title}


def mark_words(found: Comparison) -> str:
    """What changed, less what was kept: short enough to stand between two stages.

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


def _sides(changes: Iterable[CollectiveChange] | Comparison) -> tuple[list, list]:
    """Before and after, a list of tuples of collectives each."""
    some = changes.changes if isinstance(changes, Comparison) else tuple(changes)
    return [c.before for c in some], [c.after for c in some]


PLAN_S = 5.0  # how long a saved page waits for its plan
MOST_EXPLANATIONS = 300  # values of a saved page that bring their explanation


class StageViews:
    """Chooses between what was found out in the background and what somebody pressed for.

    Args:
        planner: what is found out in the background.
    """

    def __init__(self, planner: Planner):
        self._planner = planner
        self._asked: tuple[Report, int, str] | None = None
        self._early: tuple[Report, int, str] | None = None
        self._making = threading.Lock()
        self._side: Side | None = None
        self._stages: dict[str, Any] = {}
        self._plan: Plan | None = None
        self._values = values_view(None)

    def take(self, report: Report, revision: int, target: str) -> None:
        """Takes the report of a compile or run that somebody pressed for.

        One that was cancelled is no answer: what was known before it stays, and where that was
        nothing, what the partitioner had said by then.
        """
        early, self._early = self._early, None
        if not was_cancelled(report):
            self._asked = (report, revision, target)
        elif self._asked is None:
            self._asked = early

    def take_early(self, report: Report, revision: int, target: str) -> None:
        """Takes what is known of a compile that is under way."""
        self._early = (report, revision, target)

    def collective(self, key: str) -> Collective | None:
        """The collective that the page calls `stage:number`; None where there is none.

        >>> from shardviz.core.program.cache import ExecutableCache
        >>> StageViews(Planner(lambda: None, ExecutableCache())).collective("0:3") is None
        True
        """
        stage, _, number = key.partition(":")
        if self._side is None or not (stage in ("0", "1", "2") and number.isdecimal()):
            return None
        known = self._side.collectives()[int(stage)] or ()
        return known[int(number)] if len(number) < 9 and int(number) < len(known) else None

    def views(
        self, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The stages, the values, and what is under way; the same objects where nothing changed."""
        answer = self._planner.answer
        report, of, for_ = self._chosen(answer, revision, target)
        side = Side(answer.plan, answer.plan_revision, report, of, for_, answer.reason)
        with self._making:
            if self._side is None or not _same(self._side, side):
                self._side, self._stages = side, stages_view(side)
            if self._plan is not answer.plan:
                self._plan, self._values = answer.plan, values_view(answer.plan)
            return self._stages, self._values, {"stage": answer.stage}

    def saved(
        self, program: Program, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The stages, and the values with their explanations, for a page without a kernel.

        The program is planned for it first. A plan that takes too long is left out, and so it is
        where jax is missing.
        """
        if importlib.util.find_spec("jax") is not None:
            self._planner.plan_now(program, revision, target, PLAN_S)
        stages, _, _ = self.views(revision, target)
        plan = self._planner.answer.plan
        explanations = 0 if plan is None else MOST_EXPLANATIONS
        return saved_stages(stages), values_view(plan, explanations)

    def _chosen(
        self, answer: PlannerAnswer, revision: int, target: str
    ) -> tuple[Report | None, int, str]:
        """What was pressed for where it is of this program; else what the background knows."""
        background = (answer.report, answer.report_revision, answer.report_target)
        pressed = self._early or self._asked
        if pressed is None:
            return background
        now = (revision, target)
        if answer.report is None or pressed[1:] == now:
            return pressed
        newer = background[1:] == now or background[1] > pressed[1]
        return background if newer else pressed


def _same(one: Side, other: Side) -> bool:
    """Whether both hold the same: plans and reports by identity, as they are large."""
    plain = lambda s: (s.plan_revision, s.report_revision, s.target, s.reason)  # noqa: E731
    same = one.plan is other.plan and one.report is other.report
    return same and plain(one) == plain(other)
