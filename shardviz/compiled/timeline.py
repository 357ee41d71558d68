"""timeline(): the least times of a program's operations and collectives, in order.

The operations and their order come from the plan, so a timeline needs neither a compile
nor a device. Once the program is compiled for the same chips, the collectives and
totals come from the report, and agree with its roofline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardviz.base.axis_parts import parent_axis
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import KINDS, SUMS
from shardviz.base.display import Fact
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.op_costs import OpCost, live_bytes, op_costs
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import (
    Bound,
    Roofline,
    RooflineNote,
    arithmetic_seconds,
    collective_bounds,
    op_bound,
    planned_roofline,
    rated_bytes,
    with_operations,
)
from shardviz.hardware.chips import Chip
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan
from shardviz.plans.plan_causes import MoveCause

# Plan operations that are collectives written in the program itself.
_WRITTEN = frozenset(
    kind.stablehlo.removeprefix("stablehlo.") for kind in KINDS.values()
)


@dataclass(frozen=True)
class Span(Fact):
    """One operation or collective of a timeline.

    Attributes:
        name: the name of the operation's value, or the kind of the collective.
        kind: `"product"`, `"op"` or `"collective"`.
        seconds: least seconds over all trips; None if a rate is unknown.
        bound: the rate that limits the span: `"FLOP/s"`, `"HBM"`, `"ICI"`, …, or `""`.
        amount: FLOP or bytes of one execution, as in Bound.
        trips: number of executions; None if unknown, which counts as 1.
        source: the user's file and line.
        axes: mesh axes of a collective; part of an axis counts as the full axis.
        value: the plan's value that the operation computes or that causes the
            collective; `""` if there is none.
        collective: index of a collective in the plan or report; -1 for an operation.
        cause: why the program has the collective; `""` for an operation, or if unknown.
        arithmetic, memory: seconds of an operation on the matrix units, and for the
            bytes that it must read and write; None if a rate is unknown.
        alone: seconds of an operation if XLA fuses nothing with it; None for products
            and collectives.
        live: the most bytes of the plan's live values on each device since the previous
            span.
        note: why the time is unknown.
        latency: the seconds of a collective that are latency, over all trips.

    >>> print(Span("dot_general", "product", 2e-6, "FLOP/s", 4e8))
    At least 2 µs, bound by FLOP/s: 400 MFLOP.
    """

    name: str
    kind: str
    seconds: float | None
    bound: str
    amount: float | None
    trips: int | None = 1
    source: str = ""
    axes: tuple[str, ...] = ()
    value: str = ""
    collective: int = -1
    cause: Fact | str = ""
    arithmetic: float | None = None
    memory: float | None = None
    alone: float | None = None
    live: int = 0
    note: RooflineNote | None = None
    latency: float | None = 0.0


@dataclass(frozen=True)
class Timeline(Fact):
    """A program's least times, in program order.

    Attributes:
        least: the totals of the plan or of the compiled program.
        spans: operations and collectives, in program order.
        is_compiled: whether the collectives come from the compiled program.

    >>> from shardviz.hardware.chips import find_chip
    >>> dot = Span("dot", "product", 2e-6, "FLOP/s", 4e8, arithmetic=2e-6)
    >>> total = Bound("compute", "compute", 2e-6, "FLOP/s", 4e8)
    >>> Timeline(Roofline("tpu:v5e:4x4", find_chip("v5e"), (total,)), (dot,)).serial_s
    2e-06
    """

    least: Roofline
    spans: tuple[Span, ...] = ()
    is_compiled: bool = False

    @property
    def serial_s(self) -> float:
        """The least seconds if everything runs one after another."""
        return max(sum(s.seconds or 0.0 for s in self.spans), self.overlapped_s)

    @property
    def overlapped_s(self) -> float:
        """The least seconds if arithmetic, memory and collectives fully overlap.

        This is the total of the Roofline.
        """
        return self.least.seconds or 0.0

    @property
    def unknown(self) -> int:
        """Number of spans whose time is unknown."""
        return sum(1 for span in self.spans if span.seconds is None)


def timeline(
    plan: Plan,
    topology: Topology,
    mesh: MeshSpec | None = None,
    report: Report | None = None,
) -> Timeline:
    """Returns a plan's operations and the collectives with their least times, in order.

    Args:
        plan: the program's plan.
        topology: the chips that the program runs on.
        mesh: the plan's mesh with real device ids; without it, devices are in the order
            of their ids.
        report: the same program's report, compiled for the same chips. Its collectives
            and totals replace the plan's.

    Raises:
        TargetError: if the mesh does not fit the topology.
    """
    placed, chip = mesh or plan.mesh, topology.chip
    compiled = with_operations(report, plan)
    reached = report.without_error if report is not None else None
    if reached is None or reached.collectives is None or compiled is None:
        compiled = None
        least, collectives = planned_roofline(plan, topology, placed), plan.collectives
    else:
        least, collectives = compiled, reached.collectives
        placed = reached.mesh or placed
    before, after = _anchored(plan, collectives)
    bounds = collective_bounds(collectives, chip, topology, placed)
    costs = {cost.name: cost for cost in op_costs(plan)}
    spans: list[Span] = []

    def add_collectives(numbers: list[int]) -> None:
        for number in numbers:
            if number in bounds:
                bound = bounds[number]
                spans.append(_of_collective(collectives[number], number, bound))

    live, first = 0, 0
    for op, live_now in zip(plan.ops, live_bytes(plan), strict=True):
        live = max(live, live_now)
        add_collectives(before.get(op.name, []))
        cost = costs.get(op.name)
        if cost is not None and cost.opcode not in _WRITTEN:
            spans.append(_of_operation(cost, chip))
        add_collectives(after.get(op.name, []))
        if len(spans) > first:
            spans[first:] = [replace(span, live=live) for span in spans[first:]]
            live, first = 0, len(spans)
    # Collectives without a value in the plan come last.
    add_collectives(after.get("", []))
    spans[first:] = [replace(span, live=live) for span in spans[first:]]
    return Timeline(least, tuple(spans), compiled is not None)


def _anchored(
    plan: Plan, collectives: Sequence[Collective]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Returns the indices of the collectives directly before and after each value.

    A sum comes right after its value, and a move right before the operation that needs
    it. A compiled collective has no value in the plan, only the name and the line of an
    operation. Layers in a Python loop share both, so their collectives are spread
    evenly over the values with this name and line.
    """
    before: dict[str, list[int]] = {}
    after: dict[str, list[int]] = {}
    results = [op.name for op in plan.ops if op.kind == "result"]
    values: dict[tuple[str, str], list[str]] = {}
    for op in plan.ops:
        if op.op:
            values.setdefault((op.op, op.source), []).append(op.name)
    alike: dict[tuple[str, str, str, tuple[str, ...]], list[int]] = {}
    for number, collective in enumerate(collectives):
        cause = collective.cause
        if isinstance(cause, MoveCause) and cause.user in plan.by_name:
            before.setdefault(cause.user, []).append(number)
        elif isinstance(cause, MoveCause) and cause.code == "result" and results:
            before.setdefault(results[0], []).append(number)
        elif collective.value in plan.by_name:
            after.setdefault(collective.value, []).append(number)
        else:
            name, source = collective.op, collective.source
            key = name, source, collective.kind, tuple(collective.mesh_axes)
            alike.setdefault(key, []).append(number)
    for (name, source, kind, _), numbers in alike.items():
        around = values.get((name, source), [])
        for position, number in enumerate(numbers):
            if not around:
                after.setdefault("", []).append(number)
            elif kind in SUMS:
                index = (position + 1) * len(around) // len(numbers) - 1
                after.setdefault(around[max(0, index)], []).append(number)
            else:
                index = position * len(around) // len(numbers)
                before.setdefault(around[index], []).append(number)
    return before, after


def _of_collective(collective: Collective, number: int, bound: Bound) -> Span:
    return Span(
        name=collective.kind,
        kind="collective",
        seconds=bound.seconds,
        bound=bound.bound,
        amount=bound.amount,
        trips=bound.trips,
        source=bound.source,
        axes=tuple(dict.fromkeys(map(parent_axis, collective.mesh_axes))),
        value=collective.value,
        collective=number,
        cause=collective.cause,
        note=bound.note,
        latency=bound.latency,
    )


def _of_operation(cost: OpCost, chip: Chip) -> Span:
    """Returns an operation's span, timed by the slower of arithmetic and memory."""
    arithmetic, memory = (
        arithmetic_seconds(cost, chip),
        rated_bytes(cost.unavoidable, chip),
    )
    times = [seconds for seconds in (arithmetic, memory) if seconds is not None]
    seconds, bound = max(times, default=None), ""
    amount = cost.unavoidable / cost.executions
    if cost.unavoidable and memory is not None:
        bound = "HBM"
    if arithmetic and arithmetic == seconds:
        bound, amount = "FLOP/s", cost.flops or 0.0
    return Span(
        name=cost.name,
        kind="product" if cost.is_product else "op",
        seconds=seconds,
        bound=bound,
        amount=amount,
        trips=cost.trips,
        source=cost.source,
        value=cost.name,
        arithmetic=arithmetic,
        memory=memory,
        alone=None if cost.is_product else op_bound(cost, chip).seconds,
    )
