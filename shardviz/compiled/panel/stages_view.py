"""A program's stages and the changes between them, as plain data for the page.

The stages are requested, propagated, partitioned, compiled and ran. Each view has its
program's revision, so that the page can mark views older than the latest edit.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from typing import NamedTuple

from shardviz.base.collective import Collective, sent_in_all, sent_in_all_text
from shardviz.base.format import clause, plural, seconds_text
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import JsonDict
from shardviz.compiled.comparison import Comparison, compare
from shardviz.compiled.panel.collective_table import MOST_ROWS, CollectiveTable
from shardviz.compiled.panel.report_view import (
    RUN_STAGES,
    error_view,
    headline_view,
    memory_view,
)
from shardviz.compiled.report import Report
from shardviz.compiled.words import stages as wording
from shardviz.draw.tables import axis_groups
from shardviz.explorer.planner import Planner, StageResults
from shardviz.explorer.targets import topology_of
from shardviz.plans.panel.values_view import values_view
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program

NAMES = ("propagated", "partitioned", "compiled")
PAIRS = ((0, 1), (1, 2), (0, 2))
# The most lines in the tooltip that lists changes.
MOST_LINES = 12
# Seconds that a saved page waits for its plan.
PLAN_S = 60.0
#: The most values whose explanations a saved page includes.
MOST_EXPLANATIONS = 300


def stages_view(results: StageResults) -> JsonDict:
    """Returns the row of stages, their comparisons, and the table of collectives."""
    collectives_by_stage = results.collectives()
    comparisons = _comparisons(results)
    plan, report = results.plan, results.report
    table = CollectiveTable(collectives_by_stage, comparisons, _meshes(results), plan)
    marks = _requested_mark(results.plan)
    for pair, comparison in comparisons.items():
        marks.append(_mark(pair, comparison))
    collectives, groups, left_out = [], [], []
    for stage, numbers in enumerate(table.shown):
        collectives.append([table.row(stage, number) for number in numbers])
        listed = table.groups[stage][:MOST_ROWS]
        groups.append([table.group(stage, group) for group in listed])
        left_out.append(sum(map(len, table.groups[stage][MOST_ROWS:])))
    roofline = results.roofline
    return {
        "revisions": [results.plan_revision, *[results.report_revision] * 3],
        "target": results.target,
        "stages": [
            _propagated(results),
            _partitioned(results),
            _compiled(results),
            _ran(results),
        ],
        "marks": marks,
        "changes": table.changes,
        "collectives": collectives,
        "groups": groups,
        "left_out": left_out,
        "axes": {} if plan is None else axis_groups(plan.mesh),
        "notes": [] if report is None else list(map(str, report.notes)),
        "headline": headline_view(roofline, report, _where(results), results.not_run),
        "memory": memory_view(report, plan),
        "error": error_view(report),
    }


def _comparisons(results: StageResults) -> dict[tuple[int, int], Comparison]:
    """Compares known stages. The keys are pairs of stage numbers."""
    collectives = results.collectives()
    comparisons = {}
    for i, j in PAIRS:
        before, after = collectives[i], collectives[j]
        # The estimate and the compiled program are compared only if the partitioned
        # stage is unknown. An estimate is never compared with another program.
        skipped = (i, j) == (0, 2) and collectives[1] is not None
        if results.mismatched and i == 0:
            skipped = True
        if before is not None and after is not None and not skipped:
            plan = results.plan if i == 0 else None
            comparisons[i, j] = compare(before, after, (NAMES[i], NAMES[j]), plan)
    return comparisons


def _meshes(results: StageResults) -> tuple[MeshSpec | None, ...]:
    """Returns each stage's mesh with the host of every device; None if unknown."""
    planned = compiled = None
    if results.plan is not None:
        planned = results.plan.mesh
    if results.report is not None:
        compiled = results.report.without_error.mesh
    if topology_of(results.target) is not None:
        # For described hardware, only the compiled mesh has each device's host.
        both_known = compiled is not None and planned is not None
        if not both_known or compiled.size != planned.size:  # type: ignore[union-attr]
            return None, compiled, compiled
        return compiled, compiled, compiled
    # Simulated devices belong to one process, so the hosts come from the planned mesh.
    if compiled is None or len(compiled.processes) < 2:
        compiled = None if results.mismatched else planned
    return planned, compiled, compiled


# --- the row of stages ----------------------------------------------------------------


def _stage(name: str, state: str, text: str, title: str = "") -> dict[str, str]:
    return {"name": name, "state": state, "text": text, "title": title}


def _waiting(name: str, why: str = "") -> dict[str, str]:
    text, title = wording.WAITING[name]
    return _stage(name, "none", text, why or title)


def _propagated(results: StageResults) -> dict[str, str]:
    plan = results.plan
    if plan is None:
        return _waiting("propagated")
    if plan.error is not None:
        return _stage("propagated", "failed", wording.NO_PLAN, plan.error.located)
    text = "no collectives"
    if plan.collectives:
        text = plural(len(plan.collectives), "collective")
    title = _title(plan.collectives, plan.seconds, wording.values_split(plan))
    return _stage("propagated", "estimate", text, title)


def _partitioned(results: StageResults) -> dict[str, str]:
    report = results.report
    if report is None:
        return _waiting("partitioned", results.not_run)
    reached = report.without_error
    if reached.partitioned is not None:
        title = _title(reached.partitioned, reached.partition_s, _where(results))
        return _stage("partitioned", "live", f"{len(reached.partitioned):,}", title)
    if report.error is not None and not report.has("collectives"):
        return _stopped("partitioned", report)
    return _stage("partitioned", "none", *wording.NOT_SHOWN)


def _compiled(results: StageResults) -> dict[str, str]:
    report = results.report
    if report is None:
        return _waiting("compiled", results.not_run)
    if not report.has("collectives"):
        return _stopped("compiled", report)
    collectives = report.collectives
    if collectives is None:
        return _waiting("compiled", results.not_run)
    text = f"{len(collectives):,}"
    if collectives:
        text += f" · {sent_in_all_text(collectives)}"
    title = _title(collectives, report.compile_s, _where(results), report.cache_hit)
    if report.error is None or report.error.stage in RUN_STAGES:
        return _stage("compiled", "live", text, title)
    return _stage("compiled", "failed", text, report.error.message)


def _ran(results: StageResults) -> dict[str, str]:
    report = results.report
    if report is None or report.without_error.collectives is None:
        return _waiting("ran")
    if report.error is not None and report.error.stage in RUN_STAGES:
        return _stage("ran", "failed", wording.RUN_FAILED, report.error.message)
    reached = report.without_error
    if reached.run_s is None:
        return _waiting("ran")
    state = "live"
    if any(check.ok is False for check in reached.checks):
        state = "failed"
    title = f"{wording.run_verdict(reached)}\n{_where(results)}"
    return _stage("ran", state, wording.ran(reached), title)


def _where(results: StageResults) -> str:
    """Names the devices of the report."""
    # The text must be short, and the menu already shows that a target is described.
    topology = topology_of(results.target)
    if topology is not None:
        return topology.title
    return results.report.target if results.report is not None else ""


def _stopped(name: str, report: Report) -> dict[str, str]:
    """Returns the view of a stage that a compile did not reach."""
    message = ""
    if report.error is not None:
        message = report.error.message
    return _stage(name, "failed", wording.STOPPED_BEFORE, message)


def _title(
    collectives: Sequence[Collective],
    seconds: float | None,
    devices: str,
    cached: bool = False,
) -> str:
    """Returns a stage's tooltip: collectives, bytes sent, devices and time."""
    lines = [wording.collective_counts(collectives)]
    if collectives:
        lines.append(wording.sent(collectives))
    took = (
        wording.CACHED if cached else clause("in {}", seconds and seconds_text(seconds))
    )
    return "\n".join(filter(None, [*lines, devices, took]))


# --- changes between stages -----------------------------------------------------------


def _requested_mark(plan: Plan | None) -> list[JsonDict]:
    """Returns the mark after the requested stage, which counts newly sharded values."""
    if plan is None or plan.error is not None:
        return []
    count = sum(op.kind != "argument" and bool(op.spec.axes) for op in plan.ops)
    mark = {"between": [-1, 0], "text": wording.values_with_axes(count)}
    return [{**mark, "tone": "same", "title": wording.PROPAGATED_TITLE}]


def _mark(pair: tuple[int, int], comparison: Comparison) -> JsonDict:
    """Returns the mark between two stages: their changes in a few words."""
    before = after = 0
    for change in comparison.changes:
        before += sent_in_all(change.before)
        after += sent_in_all(change.after)
    tone = "changed"
    if comparison.same:
        tone = "same"
    elif after > before:
        tone = "more"
    return {
        "between": list(pair),
        "text": wording.what_changed(comparison),
        "tone": tone,
        "title": "\n".join(str(comparison).splitlines()[:MOST_LINES]),
    }


def saved_stages(view: JsonDict) -> JsonDict:
    """Returns the stages for a page without a kernel, which plans and compiles nothing.

    >>> [s["text"] for s in saved_stages(stages_view(StageResults()))["stages"]]
    ['not planned', 'not partitioned', 'not compiled', 'not run']
    """
    stages = []
    for stage in view["stages"]:
        if stage["state"] == "none" and stage["text"] != wording.NOT_SHOWN[0]:
            stage = {**stage, "text": wording.NEVER[stage["name"]], "title": ""}
        stages.append(stage)
    headline = {**view["headline"]}
    if not headline["parts"] and headline["note"] != wording.NO_CHIP:
        headline["note"] = ""
    return {**view, "stages": stages, "headline": headline}


# --- the current views ----------------------------------------------------------------


class Views(NamedTuple):
    """The page's data on stages and values, and the planner's current work."""

    stages: JsonDict
    values: JsonDict
    running: str


class StageViews:
    """Views of the planner's results, recomputed only when the results change.

    Attributes:
        results: the results that the stages show.
    """

    def __init__(self, planner: Planner):
        self.results = StageResults()
        self._planner = planner
        # Threads of the planner and of jobs may request views at the same time.
        self._lock = threading.Lock()
        self._stages = stages_view(self.results)
        self._values = values_view(None)

    def collective(self, key: str) -> Collective | None:
        """Returns the collective that the page calls `stage:number`, or None."""
        stage, _, number = key.partition(":")
        if stage not in ("0", "1", "2") or not number.isdecimal() or len(number) > 8:
            return None
        collectives = self.results.collectives()[int(stage)] or ()
        if int(number) >= len(collectives):
            return None
        return collectives[int(number)]

    def views(self) -> Views:
        """Returns the current views: the same objects as before if nothing changed."""
        results = self._planner.state
        with self._lock:
            if results.plan is not self.results.plan:
                self._values = values_view(results.plan)
            if results.shown() != self.results.shown():
                self.results, self._stages = results, stages_view(results)
            return Views(self._stages, self._values, results.running)

    def plan_now(self, program: Program, revision: int) -> None:
        """Plans a program for a saved page, if jax is installed."""
        if _has_jax():
            self._planner.plan_now(program, revision, PLAN_S)

    def saved_stages(self) -> JsonDict:
        """Returns a saved page's stages; without a plan, the first one explains why."""
        stages = saved_stages(self.views().stages)
        if self._planner.state.plan is None:
            first, *later = stages["stages"]
            stages["stages"] = [{**first, "title": _why_no_plan()}, *later]
        return stages

    def saved_values(self) -> JsonDict:
        """Returns a saved page's values and explanations, or why it has no plan."""
        plan = self._planner.state.plan
        if plan is not None:
            return values_view(plan, MOST_EXPLANATIONS)
        return {**values_view(None), "waiting": False, "error": _why_no_plan()}


def _has_jax() -> bool:
    return importlib.util.find_spec("jax") is not None


def _why_no_plan() -> str:
    """Explains why a saved page has no plan: no jax, or planning took over PLAN_S."""
    return wording.without_plan(PLAN_S if _has_jax() else None)
