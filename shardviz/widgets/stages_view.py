"""The stages of a program and what changed between them, as plain data for the page.

The stages are requested, propagated, partitioned and compiled. Each view has the revision of its
program, so the page can mark those that are older than the latest edit.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.hardware.interconnect import groups_over
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.comparison import CollectiveChange, Comparison, compare
from shardviz.core.program.movement_steps import PERMUTE
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report
from shardviz.picture.tables import axis_groups
from shardviz.widgets.background import Planner, PlannerState
from shardviz.widgets.program_view import (
    cause,
    collective_summary,
    error_view,
    memory_view,
    values_view,
    was_cancelled,
)
from shardviz.widgets.targets import topology_of

MOST_ROWS = 300
MOST_CAUSES = 8
MOST_MEMBERS = 2048  # of groups that are sent where the collective has no mesh axes
NAMES = ("propagated", "partitioned", "compiled")
SHORT = 44  # characters that fit between two stages
PAIRS = ((0, 1), (1, 2), (0, 2))
NOT_SHOWN = "the compiler did not show it"
_SAVED = ("not planned", "not partitioned", "not compiled")  # of NAMES, on a page without a kernel


@dataclass(frozen=True)
class StageResults:
    """The results on all stages, with the revision and the target that they are of.

    Attributes:
        plan, plan_revision: the propagated stage; None where there is none.
        report, report_revision, target: the partitioned and the compiled stage, and their target.
        reason: why the partitioner did not run; `""` where it did or will.
    """

    plan: Plan | None = None
    plan_revision: int = -1
    report: Report | None = None
    report_revision: int = -1
    target: str = ""
    reason: str = ""

    @property
    def mismatched(self) -> bool:
        """Whether plan and report are of two different programs."""
        return self.plan_revision != self.report_revision

    def collectives(self) -> tuple[tuple[Collective, ...] | None, ...]:
        """The collectives of each of NAMES; None where they are not known."""
        planned = self.plan.collectives if self.plan is not None and self.plan.ok else None
        if self.report is None:
            return planned, None, None
        return planned, self.report.partitioned, self.report.collectives


def stages_view(results: StageResults) -> dict[str, Any]:
    """The row of stages, the comparisons between them, and the table of collectives.

    >>> view = stages_view(StageResults())
    >>> [stage["state"] for stage in view["stages"]], view["rows"]
    (['none', 'none', 'none'], [])
    """
    known = results.collectives()
    comparisons = {
        (i, j): compare(before, after, (NAMES[i], NAMES[j]))
        for i, j in PAIRS
        if (before := known[i]) is not None and (after := known[j]) is not None
    }
    # The estimate is compared with the partitioner, and with the compiler only without one.
    if known[1] is not None:
        comparisons.pop((0, 2), None)
    if results.mismatched:  # nor with what is known of another program
        comparisons = {pair: found for pair, found in comparisons.items() if pair[0]}
    table = CollectiveTable(known, comparisons, _meshes(results))
    return {
        "revisions": [results.plan_revision, results.report_revision, results.report_revision],
        "target": results.target,
        "stages": [_propagated(results), _partitioned(results), _compiled(results)],
        "marks": [
            *_requested_mark(results.plan),
            *(_mark(i, j, c) for (i, j), c in comparisons.items()),
        ],
        "changes": table.changes,
        "collectives": [
            [table.row(i, k) for k in numbers] for i, numbers in enumerate(table.shown)
        ],
        "rows": table.rows(),
        "left_out": [max(0, len(c or ()) - MOST_ROWS) for c in known],
        "axes": {} if results.plan is None else axis_groups(results.plan.mesh),
        "notes": list(results.report.notes) if results.report is not None else [],
        "memory": memory_view(results.report, None if results.mismatched else results.plan),
        "error": error_view(results.report),
    }


def _meshes(results: StageResults) -> tuple[MeshSpec | None, ...]:
    """Of each of NAMES the mesh with the host of every device; None where that is not known.

    Described hardware has its own hosts, which the compiled mesh names. Simulated devices all
    belong to one process: there the hosts are those of the mesh as it was typed.
    """
    planned = None if results.plan is None else results.plan.mesh
    compiled = None if results.report is None else results.report.mesh
    if topology_of(results.target) is None:
        if compiled is None or len(compiled.processes) < 2:
            compiled = None if results.mismatched else planned
    elif compiled is not None and planned is not None and compiled.size == planned.size:
        planned = compiled
    else:
        planned = None
    return planned, compiled, compiled


def crosses_hosts(one: Collective, mesh: MeshSpec | None) -> bool | None:
    """Whether a collective goes from host to host; None where that is not known.

    Args:
        one: the collective; its groups are positions in the mesh.
        mesh: with the process (host) of every device.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh = make_mesh(data=2, model=2, processes=2)
    >>> [crosses_hosts(Collective("all-reduce", (a,), 8), mesh) for a in ("data", "model")]
    [True, False]
    """
    if mesh is None:
        return None
    if len(mesh.processes) < 2:
        return False
    named = bool(one.mesh_axes) and set(one.mesh_axes) <= set(mesh.axis_names)
    plain = named and not one.is_partial
    if plain and one.kind != PERMUTE:
        return _axes_cross(mesh, one.mesh_axes)
    hosts = mesh.process_indices.reshape(-1)
    crossing = (len({int(hosts[i]) for i in group}) > 1 for group in one.groups)
    return any(crossing) if one.groups else None


@lru_cache(maxsize=64)
def _axes_cross(mesh: MeshSpec, axes: tuple[str, ...]) -> bool:
    hosts = mesh.process_indices.reshape(-1)[groups_over(mesh, axes)]
    return bool((hosts != hosts[:, :1]).any())


def saved_stages(view: dict[str, Any]) -> dict[str, Any]:
    """The view for a page without a kernel, where nothing will be planned or compiled.

    >>> [stage["text"] for stage in saved_stages(stages_view(StageResults()))["stages"]]
    ['not planned', 'not partitioned', 'not compiled']
    """
    stages = [
        {**r, "text": never} if r["state"] == "none" and r["text"] != NOT_SHOWN else r
        for r, never in zip(view["stages"], _SAVED, strict=True)
    ]
    return {**view, "stages": stages}


def _stage(name: str, state: str, text: str, took: float | None = None, more: str = "") -> dict:
    return {
        "name": name,
        "state": state,
        "text": text,
        "took": "" if took is None else seconds_text(took),
        "more": more,
    }


def _propagated(results: StageResults) -> dict[str, Any]:
    plan = results.plan
    if plan is None:
        return _stage("propagated", "none", "planned when the edits settle")
    if plan.error is not None:
        refused = "refused: see why" if plan.diagnosis is not None else "no plan: see why"
        return _stage("propagated", "failed", refused, None, str(plan.error))
    split = sum(1 for op in plan.ops if op.spec.axes)
    words = f"{split:,} of {plural(len(plan.ops), 'value')} split"
    return _known("propagated", "estimate", plan.collectives, plan.seconds, words)


def _partitioned(results: StageResults) -> dict[str, Any]:
    report = results.report
    if report is None:
        return _stage("partitioned", "none", results.reason or "not yet")
    if report.partitioned is None:
        failed = report.error is not None and report.collectives is None
        text = "it did not get that far" if failed else NOT_SHOWN
        more = report.error.message if failed and report.error is not None else ""
        return _stage("partitioned", "failed" if failed else "none", text, None, more)
    return _known("partitioned", "live", report.partitioned, report.partition_s, report.target)


def _compiled(results: StageResults) -> dict[str, Any]:
    report = results.report
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
    """A stage with known collectives: how many, and their bytes, counting the trips of loops."""
    total = sum(c.bytes_in_all for c in some)
    more = more.removesuffix(", described")  # the menu says so, and the text must be short
    more = " · ".join(filter(None, [bytes_text(total) if total else "", more]))
    return _stage(name, state, collective_summary(some), took, more)


def _requested_mark(plan: Plan | None) -> list[dict[str, Any]]:
    """What propagation added to the request."""
    if plan is None or plan.error is not None:
        return []
    count = sum(1 for op in plan.ops if op.kind != "argument" and op.spec.axes)
    text = f"{plural(count, 'value')} got axes" if count else "no value got axes"
    title = "What propagation decided: see the tab Values."
    return [{"between": [-1, 0], "text": text, "tone": "same", "title": title}]


def _mark(i: int, j: int, found: Comparison) -> dict[str, Any]:
    """What changed between two stages, in a few words."""
    before, after = (sum(c.bytes_in_all for some in side for c in some) for side in _sides(found))
    tone = "same" if found.same else "more" if after > before else "changed"
    title = "\n".join(found.lines[:12])
    return {"between": [i, j], "text": mark_words(found), "tone": tone, "title": title}


def mark_words(found: Comparison) -> str:
    """What changed, without what was kept, in words that fit between two stages.

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
        if kind in ("combined", "split", "regrouped"):
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


class CollectiveTable:
    """The collectives of all stages, matched into rows.

    Args:
        known: the collectives of each of NAMES; None where they are not known.
        comparisons: of two stages, by their numbers.
        meshes: of each stage, with the host of every device; None where that is not known.

    Attributes:
        changes: of all comparisons, as plain data.
        shown: the numbers of the collectives of each stage that the page shows, by bytes.

    >>> one = Collective("all-reduce", ("data",), 1024, cause="It sums over rows.")
    >>> table = CollectiveTable([(one,), None, None], {})
    >>> table.rows()[0]["cells"], table.row(0, 0)["causes"]
    ([[0], [], []], ['It sums over rows.'])
    """

    def __init__(
        self,
        known: Sequence[tuple[Collective, ...] | None],
        comparisons: Mapping[tuple[int, int], Comparison],
        meshes: Sequence[MeshSpec | None] = (None, None, None),
    ):
        self._meshes = meshes
        self.known = [tuple(some or ()) for some in known]
        self.shown = [
            sorted(range(len(some)), key=lambda k, some=some: -some[k].bytes_in_all)[:MOST_ROWS]
            for some in self.known
        ]
        self._numbers = {
            (i, id(c)): [k for k, other in enumerate(some) if other is c]
            for i, some in enumerate(self.known)
            for c in some
        }
        self._parent = {
            (i, k): (i, k) for i, some in enumerate(self.known) for k in range(len(some))
        }
        self._how: dict[tuple[int, int], str] = {}
        self._most = max((c.bytes_in_all for some in self.known for c in some), default=0) or 1
        self.changes = [c for (i, j), found in comparisons.items() for c in self._add(i, j, found)]
        self._cells: dict[tuple[int, int], list[list[int]]] = {}
        for node in self._parent:
            cells = self._cells.setdefault(self._root(node), [[], [], []])
            cells[node[0]].append(node[1])

    def _add(self, i: int, j: int, found: Comparison) -> list[dict[str, Any]]:
        """Joins the collectives that a comparison matched, and returns its changes."""
        changes = []
        for change in sorted(found.changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device)):
            before = [self._take(i, c) for c in change.before]
            after = [self._take(j, c) for c in change.after]
            for one in (*before, *after):
                self._parent[self._root(one)] = self._root((*before, *after)[0])
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
        """The number of a collective; equal ones take turns, so each is matched once."""
        numbers = self._numbers[stage, id(one)]
        numbers.append(numbers.pop(0))
        return stage, numbers[-1]

    def _root(self, node: tuple[int, int]) -> tuple[int, int]:
        while self._parent[node] != node:
            node = self._parent[node]
        return node

    def rows(self) -> list[dict[str, Any]]:
        """One row per match, the most bytes first: its collectives on each stage."""
        shown = [set(numbers) for numbers in self.shown]
        rows = sorted(self._cells.values(), key=lambda cells: -self._row_bytes(cells))[:MOST_ROWS]
        return [
            {
                "cells": [[k for k in cell if k in shown[i]] for i, cell in enumerate(row)],
                "bytes": bytes_text(self._row_bytes(row)),
                "share": self._row_bytes(row) / self._most,
            }
            for row in rows
        ]

    def _row_bytes(self, cells: list[list[int]]) -> int:
        return max(sum(self.known[i][k].bytes_in_all for k in cell) for i, cell in enumerate(cells))

    def row(self, stage: int, number: int) -> dict[str, Any]:
        """One collective as the page shows it."""
        one = self.known[stage][number]
        cells = self._cells[self._root((stage, number))] if stage else [[]]
        planned = [self.known[0][k] for k in cells[0]]
        causes = list(dict.fromkeys(m.cause for m in (*one.members, one) if m.cause))
        causes = causes or [cause(one.op)]
        values = list(dict.fromkeys(c.value for c in planned if c.value and _is_same(c, one)))
        values = [one.value] if one.value else values
        return {
            "number": number,
            "kind": one.kind,
            "axes": list(one.mesh_axes),
            "bytes": bytes_text(one.bytes_per_device),
            "share": one.bytes_in_all / self._most,
            "total": bytes_text(one.bytes_in_all) if one.execution_count > 1 else "",
            "tags": _tags(one, self._how.get((stage, number), ""), self._meshes[stage]),
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


def _is_same(planned: Collective, one: Collective) -> bool:
    """Whether a collective of the estimate is for what one of the compiler is for."""
    places = {(m.op, m.source) for m in (*one.members, one)}
    return (planned.op, planned.source) in places


def _tags(one: Collective, how: str, mesh: MeshSpec | None) -> list[str]:
    tags = [f"groups of {one.group_size}, a part of the axis"] if one.is_partial else []
    if crosses_hosts(one, mesh):
        tags.append("between hosts")
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
    """The groups of devices, where mesh axes do not say them and they are not too many."""
    said = one.mesh_axes and all(":(" not in axis for axis in one.mesh_axes)
    if said and not one.is_partial:
        return []
    groups = [list(group) for group in one.groups]
    return groups if sum(map(len, groups)) <= MOST_MEMBERS else []


PLAN_S = 60.0  # how long a saved page waits for its plan
MOST_EXPLANATIONS = 300  # a saved page includes the explanations of at most so many values


class StageViews:
    """Chooses between the results of the planner and of the last Compile or Run.

    Args:
        planner: of the session.
    """

    def __init__(self, planner: Planner):
        self._planner = planner
        self._pressed: tuple[Report, int, str] | None = None
        self._early: tuple[Report, int, str] | None = None
        self._lock = threading.Lock()
        self._results: StageResults | None = None
        self._stages: dict[str, Any] = {}
        self._plan: Plan | None = None
        self._values = values_view(None)

    def take(self, report: Report, revision: int, target: str) -> None:
        """Takes the report of a compile or run that somebody started.

        A cancelled one changes nothing where there was a report; else what the partitioner had
        found by then is kept.
        """
        early, self._early = self._early, None
        if not was_cancelled(report):
            self._pressed = (report, revision, target)
        elif self._pressed is None:
            self._pressed = early

    def take_early(self, report: Report, revision: int, target: str) -> None:
        """Takes what is known of a running compile."""
        self._early = (report, revision, target)

    def collective(self, key: str) -> Collective | None:
        """The collective that the page calls `stage:number`; None where there is none.

        >>> from shardviz.core.program.cache import ExecutableCache
        >>> StageViews(Planner(lambda: None, ExecutableCache())).collective("0:3") is None
        True
        """
        stage, _, number = key.partition(":")
        if self._results is None or not (stage in ("0", "1", "2") and number.isdecimal()):
            return None
        known = self._results.collectives()[int(stage)] or ()
        return known[int(number)] if len(number) < 9 and int(number) < len(known) else None

    @property
    def results(self) -> StageResults:
        """What the stages show."""
        return self._results or StageResults()

    def views(
        self, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The stages, the values, and the running work; the same objects where nothing changed."""
        state = self._planner.state
        report, of, for_ = self._chosen(state, revision, target)
        results = StageResults(state.plan, state.plan_revision, report, of, for_, state.reason)
        with self._lock:
            if self._results is None or not _same(self._results, results):
                self._results, self._stages = results, stages_view(results)
            if self._plan is not state.plan:
                self._plan, self._values = state.plan, values_view(state.plan)
            return self._stages, self._values, {"stage": state.stage}

    def saved(
        self, program: Program, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The stages, and the values with their explanations, for a page without a kernel.

        The program is planned first. Where that takes more than PLAN_S or jax is missing, the plan
        is left out, and the page says so.
        """
        missing = "Saved without the plan: jax is not installed."
        if importlib.util.find_spec("jax") is not None:
            self._planner.plan_now(program, revision, target, PLAN_S)
            missing = f"Saved without the plan, which was not made within {PLAN_S:g} s."
        stages, _, _ = self.views(revision, target)
        stages, plan = saved_stages(stages), self._planner.state.plan
        if plan is None:
            first = {**stages["stages"][0], "more": missing}
            stages = {**stages, "stages": [first, *stages["stages"][1:]]}
            return stages, {**values_view(None), "waiting": False, "error": missing}
        return stages, values_view(plan, MOST_EXPLANATIONS)

    def _chosen(
        self, state: PlannerState, revision: int, target: str
    ) -> tuple[Report | None, int, str]:
        """The report of Compile or Run where it is of this program; else that of the planner."""
        background = (state.report, state.report_revision, state.report_target)
        pressed = self._early or self._pressed
        if pressed is None:
            return background
        now = (revision, target)
        if state.report is None or pressed[1:] == now:
            return pressed
        newer = background[1:] == now or background[1] > pressed[1]
        return background if newer else pressed


def _same(one: StageResults, other: StageResults) -> bool:
    """Whether both hold the same: plans and reports by identity, as they are large."""
    plain = lambda s: (s.plan_revision, s.report_revision, s.target, s.reason)  # noqa: E731
    same = one.plan is other.plan and one.report is other.report
    return same and plain(one) == plain(other)
