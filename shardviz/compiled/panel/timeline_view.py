"""The Timeline tab: least times of a plan's operations and collectives, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shardviz.base.axis_parts import parent_axis
from shardviz.base.errors import ShardvizError
from shardviz.base.format import error_text
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import JsonDict
from shardviz.compiled.measured import Measured
from shardviz.compiled.op_costs import most_alive
from shardviz.compiled.panel.plain_names import PlainNames
from shardviz.compiled.panel.report_view import headline_view, planned_headline
from shardviz.compiled.report import Report
from shardviz.compiled.timeline import Span, Timeline, timeline
from shardviz.compiled.words import timeline as wording
from shardviz.compiled.words.roofline import time_text
from shardviz.explorer.background import LatestView
from shardviz.explorer.planner import StageResults
from shardviz.explorer.targets import (
    DevicePlacement,
    suggested_placement,
    topology_of,
    why_no_placement,
)
from shardviz.plans.plan import Plan

#: Lane numbers: operations bound by arithmetic, operations bound by memory, and the
#: first lane of collectives. Each set of mesh axes has its own lane of collectives.
ARITHMETIC, MEMORY, COLLECTIVES = range(3)
#: Shown until the Program view is opened.
NOT_YET: JsonDict = {
    "words": wording.NOT_YET,
    "revision": -1,
    "target": "",
}


@dataclass(frozen=True, eq=False)
class TimelineRequest:
    """Everything that a timeline depends on.

    Attributes:
        results: the plan and the report that the stages show.
        mesh: the current mesh.
        target: the chosen target, already validated.
        placement: the mesh on the target's devices; None if the mesh has no
            coordinates there.
    """

    results: StageResults
    mesh: MeshSpec
    target: str
    placement: DevicePlacement | None

    def same_as(self, request: TimelineRequest | None) -> bool:
        """Whether both requests result in the same timeline."""
        if request is None:
            return False
        results, other_results = self.results, request.results
        same_results = (
            results.plan is other_results.plan
            and results.report is other_results.report
        )
        return (
            same_results
            and self.placement is request.placement
            and self.target == request.target
        )


class TimelineMaker(LatestView[TimelineRequest]):
    """Computes the latest plan's timeline; edits and pages never wait for it."""

    def __init__(self, changed: Callable[[], None]):
        super().__init__("shardviz-timeline", timeline_view, _failed, changed)

    def request(self, item: TimelineRequest) -> None:
        """Queues a timeline, unless it is the one that was requested last."""
        if not item.same_as(self.requested):
            super().request(item)


def _failed(request: TimelineRequest, error: BaseException) -> JsonDict:
    of = {"revision": request.results.plan_revision, "target": request.target}
    return {**_nothing(error_text(error)), **of}


def timeline_view(request: TimelineRequest) -> JsonDict:
    """Returns a timeline for the page, with its revision and target."""
    of = {"revision": request.results.plan_revision, "target": request.target}
    return {**_view_of(request), **of}


def _view_of(request: TimelineRequest) -> JsonDict:
    """Returns the timeline's rows and their texts, or why there is no timeline.

    For a target without published rates, such as this machine, the timeline is for
    suggested hardware.

    >>> from shardviz.base.mesh import make_mesh
    >>> nothing = TimelineRequest(StageResults(), make_mesh(data=8), "", None)
    >>> _view_of(nothing)["words"]
    'There is no plan yet: the program is planned once you pause editing.'
    """
    results, placement = request.results, request.placement
    plan, is_described = results.plan, topology_of(request.target) is not None
    if plan is not None and plan.error is not None:
        return _nothing(wording.NOT_PLANNED)
    if is_described and placement is None:
        return _nothing(why_no_placement(request.mesh, request.target))
    # The plan may be for the mesh before the last edit.
    if plan is None or plan.mesh.shape != request.mesh.shape:
        return _nothing(wording.NO_PLAN)
    # Least times of a compile are never mixed with those of suggested hardware.
    measured = results.roofline is not None and results.target == request.target
    if not is_described and not measured:
        placement = suggested_placement(request.mesh, most_alive(plan))
    if placement is None:
        return _nothing(wording.NO_CHIP)
    report, least = results.report, results.roofline
    topology = placement.topology
    # The report may be for the program or target before the last edit.
    if results.mismatched or least is None or least.where != str(topology):
        report = None
    ran = results.report
    if results.mismatched or results.target != request.target:
        ran = None
    try:
        steps = timeline(plan, topology, placement.mesh, report)
    except ShardvizError as error:
        return _nothing(str(error))
    return _view(steps, plan, "" if is_described else str(topology), ran)


def _nothing(words: str) -> JsonDict:
    return {"words": words, "headline": headline_view(None, None, "", words)}


def _view(steps: Timeline, plan: Plan, suggested: str, ran: Report | None) -> JsonDict:
    headline = {}
    if not steps.is_compiled:
        headline = {"headline": planned_headline(plan, steps.least, suggested)}
    spans = list[Span]()
    live = 0
    for span in steps.spans:
        live = max(live, span.live)
        if span.seconds != 0.0:
            spans.append(replace(span, live=live))
            live = 0
    if not spans:
        return {**_nothing(wording.NOTHING), **headline}
    if live > spans[-1].live:
        spans[-1] = replace(spans[-1], live=live)
    # Lanes are in mesh order, with collectives of unknown axes last.
    names = list(plan.mesh.axis_names)
    used = {span.axes for span in spans if span.kind == "collective"}
    lanes = sorted(used, key=lambda axes: (not axes, [*map(names.index, axes)]))
    text: dict[str, int] = {}
    rows, plain = [], PlainNames(plan)
    for span in spans:
        lane = MEMORY if span.bound == "HBM" else ARITHMETIC
        if span.kind == "collective":
            lane = COLLECTIVES + lanes.index(span.axes)
        times = [span.seconds, span.arithmetic, span.memory]
        row: list[object] = [_microseconds(seconds) for seconds in times]
        row += [lane, span.collective, span.trips or 0]
        name, cause = plain.value(span.name), plain.cause(span.cause, span.source)
        for words in (name, str(span), span.source, cause, span.value):
            row.append(text.setdefault(words, len(text)))
        rows.append([*row, span.live])
    measured = None
    if ran is not None and ran.measured is not None:
        measured = _measured(ran, lanes, plan, text)
    numbered = [[[name, names.index(name)] for name in axes] for axes in lanes]
    return {
        **headline,
        "lanes": [[], [], *numbered],
        "stage": 2 if steps.is_compiled else 0,
        "spans": rows,
        "measured": measured,
        "serial": _schedule(*wording.SERIAL, steps.serial_s),
        "overlapped": _schedule(*wording.OVERLAPPED, steps.overlapped_s),
        # A compiled program's headline has the compiler's own figure.
        "peak": "" if steps.is_compiled else wording.peak(most_alive(plan)),
        "notes": _notes(steps, len(steps.spans) - len(spans), measured is not None),
        "text": list(text),
    }


def _measured(
    report: Report,
    lanes: list[tuple[str, ...]],
    plan: Plan,
    text: dict[str, int],
) -> JsonDict:
    """Returns the measured lane: its label, and rows in the order in which they began.

    Args:
        report: the report of the run.
        lanes: the mesh axes of each lane of collectives; axes without a lane are added.
        plan: the program's plan.
        text: the texts of all rows -> their numbers; texts are added.
    """
    result: Measured = report.measured
    values = {(op.op, op.source): op.name for op in plan.ops if op.op}
    rows, plain = [], PlainNames(plan)
    for row in sorted(result.rows, key=lambda row: row.at):
        lane, name, cause, trips = ARITHMETIC, row.name, "", round(row.runs)
        if row.part == "collective":
            axes: tuple[str, ...] = ()
            if row.collective >= 0:
                collective = (report.collectives or ())[row.collective]
                axes = tuple(dict.fromkeys(map(parent_axis, collective.mesh_axes)))
                name, cause = collective.kind, plain.cause(collective.cause, row.source)
            if axes not in lanes:
                lanes.append(axes)
            lane = COLLECTIVES + lanes.index(axes)
        entry: list[object] = [_microseconds(row.seconds), None, None]
        entry += [lane, row.collective, trips]
        value = next((values[op] for op in row.ops if op in values), "")
        for words in (name, wording.measured(row), row.source, cause, value):
            entry.append(text.setdefault(words, len(text)))
        rows.append([*entry, 0])
    label = wording.measured_lane(result)
    return {"label": label, "words": str(result), "spans": rows}


def _schedule(name: str, words: str, seconds: float) -> dict[str, str]:
    return {"name": name, "time": f"≥ {time_text(seconds)}", "words": words}


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{seconds * 1e6:.4g}")


def _notes(steps: Timeline, fused: int, measured: bool) -> list[str]:
    """Returns notes on the timeline's sources, and on what it leaves out."""
    source = wording.COMPILED if steps.is_compiled else wording.PLANNED
    notes = [wording.LEAST, source, wording.LIVE]
    if steps.least.has_unknown_trips:
        notes.append(wording.UNKNOWN_TRIPS)
    if steps.unknown:
        notes.append(wording.unknown(steps.unknown))
    if fused:
        notes.append(wording.fused(fused))
    if measured:
        notes.append(wording.MEASURED)
    return notes
