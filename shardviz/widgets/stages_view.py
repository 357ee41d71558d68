"""The stages of a program and what changed between them, as plain data for the page.

The stages are requested, propagated, partitioned and compiled. Each view has the
revision of its program, so the page can mark those that are older than the latest edit.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.core.format import bytes_text, seconds_text
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.comparison import Comparison, compare
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report
from shardviz.core.wording import stages as wording
from shardviz.picture.tables import axis_groups
from shardviz.widgets.collective_table import MOST_ROWS, CollectiveTable
from shardviz.widgets.planner import NotRun, Planner, PlannerState
from shardviz.widgets.report_view import error_view, memory_view, was_cancelled
from shardviz.widgets.targets import target_title, topology_of
from shardviz.widgets.values_view import values_view

NAMES = ("propagated", "partitioned", "compiled")
PAIRS = ((0, 1), (1, 2), (0, 2))
MOST_LINES = 12  # of the tooltip that says what changed
PLAN_S = 60.0  # how long a saved page waits for its plan
#: A saved page includes the explanations of at most so many values.
MOST_EXPLANATIONS = 300


@dataclass(frozen=True, eq=False)
class StageResults:
    """The results on all stages, with the revision and the target that they are of.

    Attributes:
        plan, plan_revision: the propagated stage; None where there is none.
        report, report_revision, target: the partitioned and the compiled stage, and
            their target.
        not_run: why the partitioner did not run; None where it did or will.
    """

    plan: Plan | None = None
    plan_revision: int = -1
    report: Report | None = None
    report_revision: int = -1
    target: str = ""
    not_run: NotRun | None = None

    @property
    def mismatched(self) -> bool:
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

    def same_as(self, other: StageResults) -> bool:
        """Whether both hold the same; plans and reports are the same objects then."""
        if self.plan is not other.plan or self.report is not other.report:
            return False
        return self._numbers() == other._numbers()

    def _numbers(self) -> tuple[Any, ...]:
        return self.plan_revision, self.report_revision, self.target, self.not_run


def stages_view(results: StageResults) -> dict[str, Any]:
    """The row of stages, the comparisons between them, and the table of collectives.

    >>> view = stages_view(StageResults())
    >>> [stage["state"] for stage in view["stages"]], view["rows"]
    (['none', 'none', 'none'], [])
    """
    known = results.collectives()
    comparisons = _comparisons(results)
    table = CollectiveTable(known, comparisons, _meshes(results))
    marks = _requested_mark(results.plan)
    for pair, comparison in comparisons.items():
        marks.append(_mark(pair, comparison))
    collectives, left_out = [], []
    for stage, numbers in enumerate(table.shown):
        collectives.append([table.row(stage, number) for number in numbers])
        left_out.append(max(0, len(known[stage] or ()) - MOST_ROWS))
    plan, report = results.plan, results.report
    return {
        "revisions": [results.plan_revision, *[results.report_revision] * 2],
        "target": results.target,
        "stages": [_propagated(results), _partitioned(results), _compiled(results)],
        "marks": marks,
        "changes": table.changes,
        "collectives": collectives,
        "rows": table.rows(),
        "left_out": left_out,
        "axes": {} if plan is None else axis_groups(plan.mesh),
        "notes": [] if report is None else list(map(str, report.notes)),
        "memory": memory_view(report, None if results.mismatched else plan),
        "error": error_view(report),
    }


def _comparisons(results: StageResults) -> dict[tuple[int, int], Comparison]:
    """The comparisons of the stages that are known, by their numbers."""
    known = results.collectives()
    comparisons = {}
    for i, j in PAIRS:
        before, after = known[i], known[j]
        # With a partitioner between them, estimate and compiler are not compared; nor
        # is an estimate with what is known of another program.
        skipped = (i, j) == (0, 2) and known[1] is not None
        if results.mismatched and i == 0:
            skipped = True
        if before is not None and after is not None and not skipped:
            comparisons[i, j] = compare(before, after, (NAMES[i], NAMES[j]))
    return comparisons


def _meshes(results: StageResults) -> tuple[MeshSpec | None, ...]:
    """Of each of NAMES the mesh with the host of every device; None where not known.

    Described hardware has its own hosts, which the compiled mesh names. Simulated
    devices all belong to one process: there the hosts are those of the mesh as it was
    typed.
    """
    planned = compiled = None
    if results.plan is not None:
        planned = results.plan.mesh
    if results.report is not None:
        compiled = results.report.mesh
    if topology_of(results.target) is None:
        if compiled is None or len(compiled.processes) < 2:
            compiled = None if results.mismatched else planned
    elif compiled is not None and planned is not None and compiled.size == planned.size:
        planned = compiled
    else:
        planned = None
    return planned, compiled, compiled


# --- the row of stages ----------------------------------------------------------------


def _stage(
    name: str, state: str, text: str, took: float | None = None, more: str = ""
) -> dict[str, Any]:
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
        return _stage("propagated", "none", wording.WAITING["propagated"])
    if plan.error is not None:
        text = wording.NO_PLAN
        if plan.diagnosis is not None:
            text = wording.REFUSED
        return _stage("propagated", "failed", text, more=str(plan.error))
    words = wording.values_split(plan)
    return _known("propagated", "estimate", plan.collectives, plan.seconds, words)


def _partitioned(results: StageResults) -> dict[str, Any]:
    report = results.report
    if report is None:
        text, why = wording.WAITING["partitioned"], results.not_run
        if why is not None:
            title = target_title(why.target)
            text = wording.not_run(why.code, title, why.devices, why.detail)
        return _stage("partitioned", "none", text)
    if report.partitioned is not None:
        took, where = report.partition_s, _where(results)
        return _known("partitioned", "live", report.partitioned, took, where)
    if report.error is not None and report.collectives is None:
        return _stopped("partitioned", report)
    return _stage("partitioned", "none", wording.NOT_SHOWN)


def _compiled(results: StageResults) -> dict[str, Any]:
    report = results.report
    if report is None or (report.collectives is None and report.error is None):
        return _stage("compiled", "none", wording.WAITING["compiled"])
    if report.collectives is None:
        return _stopped("compiled", report)
    # A program may compile and fail when it runs.
    state = "live" if report.error is None else "failed"
    took, where = report.compile_s, _where(results)
    view = _known("compiled", state, report.collectives, took, where)
    if report.cache_hit:
        view["took"] = wording.CACHED
    return view


def _where(results: StageResults) -> str:
    """The devices of the report."""
    assert results.report is not None
    # The menu says that a target is described, and the text must be short.
    topology = topology_of(results.target)
    return results.report.target if topology is None else topology.title


def _stopped(name: str, report: Report) -> dict[str, Any]:
    """A stage that a compile did not reach."""
    assert report.error is not None
    more = report.error.message
    return _stage(name, "failed", wording.STOPPED_BEFORE, more=more)


def _known(
    name: str, state: str, some: Sequence[Collective], took: float | None, more: str
) -> dict[str, Any]:
    """A stage with known collectives: how many, and their bytes, counting loop trips."""
    total = sum(one.bytes_in_all for one in some)
    size = bytes_text(total) if total else ""
    more = " · ".join(filter(None, [size, more]))
    return _stage(name, state, wording.collective_counts(some), took, more)


# --- what changed ---------------------------------------------------------------------


def _requested_mark(plan: Plan | None) -> list[dict[str, Any]]:
    """What propagation added to the request."""
    if plan is None or plan.error is not None:
        return []
    count = 0
    for op in plan.ops:
        if op.kind != "argument" and op.spec.axes:
            count += 1
    mark = {"between": [-1, 0], "text": wording.values_with_axes(count)}
    return [{**mark, "tone": "same", "title": wording.PROPAGATED_TITLE}]


def _mark(pair: tuple[int, int], comparison: Comparison) -> dict[str, Any]:
    """What changed between two stages, in a few words."""
    before = after = 0
    for change in comparison.changes:
        before += sum(one.bytes_in_all for one in change.before)
        after += sum(one.bytes_in_all for one in change.after)
    tone = "changed"
    if comparison.same:
        tone = "same"
    elif after > before:
        tone = "more"
    return {
        "between": list(pair),
        "text": wording.changes(comparison),
        "tone": tone,
        "title": "\n".join(str(comparison).splitlines()[:MOST_LINES]),
    }


def saved_stages(view: Mapping[str, Any]) -> dict[str, Any]:
    """The view for a page without a kernel, where nothing will be planned or compiled.

    >>> [s["text"] for s in saved_stages(stages_view(StageResults()))["stages"]]
    ['not planned', 'not partitioned', 'not compiled']
    """
    stages = []
    for stage in view["stages"]:
        if stage["state"] == "none" and stage["text"] != wording.NOT_SHOWN:
            stage = {**stage, "text": wording.NEVER[stage["name"]]}
        stages.append(stage)
    return {**view, "stages": stages}


# --- which results are shown ----------------------------------------------------------


@dataclass(frozen=True)
class _Reported:
    """A report with the revision and the target that it is of."""

    report: Report | None
    revision: int
    target: str


class StageViews:
    """Chooses between the results of the planner and of the last Compile or Run.

    Attributes:
        results: what the stages show.
    """

    def __init__(self, planner: Planner):
        self.results = StageResults()
        self._planner = planner
        self._pressed: _Reported | None = None
        self._early: _Reported | None = None
        # Threads of the planner and of jobs ask for views at once.
        self._lock = threading.Lock()
        self._stages: dict[str, Any] | None = None
        self._plan: Plan | None = None
        self._values = values_view(None)

    def take(self, report: Report, revision: int, target: str) -> None:
        """Takes the report of a compile or run that somebody started.

        A cancelled one changes nothing where there was a report; else what the
        partitioner had found by then is kept.
        """
        early, self._early = self._early, None
        if not was_cancelled(report):
            self._pressed = _Reported(report, revision, target)
        elif self._pressed is None:
            self._pressed = early

    def take_early(self, report: Report, revision: int, target: str) -> None:
        """Takes what is known of a running compile."""
        self._early = _Reported(report, revision, target)

    def collective(self, key: str) -> Collective | None:
        """The collective that the page calls `stage:number`; None where there is none."""
        stage, _, number = key.partition(":")
        if stage not in ("0", "1", "2") or not number.isdecimal():
            return None
        known = self.results.collectives()[int(stage)] or ()
        # A number of very many digits is slow to read.
        if len(number) > 8 or int(number) >= len(known):
            return None
        return known[int(number)]

    def views(
        self, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The stages, the values, and the running work.

        They are the same objects as last time where nothing changed.
        """
        state = self._planner.state
        shown = self._chosen(state, revision, target)
        results = StageResults(
            state.plan,
            state.plan_revision,
            shown.report,
            shown.revision,
            shown.target,
            state.not_run,
        )
        with self._lock:
            if self._stages is None or not results.same_as(self.results):
                self.results, self._stages = results, stages_view(results)
            if self._plan is not state.plan:
                self._plan, self._values = state.plan, values_view(state.plan)
            return self._stages, self._values, {"stage": state.stage}

    def _chosen(self, state: PlannerState, revision: int, target: str) -> _Reported:
        """The report of Compile or Run if it is of this program; else the planner's."""
        planned = _Reported(state.report, state.report_revision, state.report_target)
        pressed = self._early or self._pressed
        if pressed is None:
            return planned
        now = (revision, target)
        if state.report is None or (pressed.revision, pressed.target) == now:
            return pressed
        if (planned.revision, planned.target) == now:
            return planned
        return max(pressed, planned, key=lambda one: one.revision)

    def saved(
        self, program: Program, revision: int, target: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The stages, and the values with their explanations, for a page without a
        kernel.

        The program is planned first. Where that takes more than PLAN_S or jax is
        missing, the plan is left out, and the page says so.
        """
        missing = wording.without_plan(None)
        if importlib.util.find_spec("jax") is not None:
            self._planner.plan_now(program, revision, target, PLAN_S)
            missing = wording.without_plan(PLAN_S)
        view, _, _ = self.views(revision, target)
        stages, plan = saved_stages(view), self._planner.state.plan
        if plan is not None:
            return stages, values_view(plan, MOST_EXPLANATIONS)
        first, *others = stages["stages"]
        stages["stages"] = [{**first, "more": missing}, *others]
        return stages, {**values_view(None), "waiting": False, "error": missing}
