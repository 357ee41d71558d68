"""timeline(): the least times of a plan's operations and collectives, in program order.

The order, the operations and the collectives are those of the plan, so none of it needs
a compile, or a device. XLA fuses operations, and only matrix products cannot be avoided
to read and write memory: everything else costs what the program must read of its
arguments and write of its results, and is free where it does neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from shardviz.core.display import Fact
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.op_costs import OpCost, op_costs
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_causes import MoveCause
from shardviz.core.program.plan_values import PlannedOp, bytes_per_device, group_size
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import (
    RooflineNote,
    collective_bound,
    op_bound,
    rated_bytes,
)

# They stand among the operations of a plan where the program itself has collectives.
_WRITTEN = frozenset({
    "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute",
    "collective_broadcast",
})  # fmt: skip


@dataclass(frozen=True)
class Span(Fact):
    """One operation or collective of a timeline.

    Attributes:
        name: of the operation's value, or what the collective is called.
        kind: `"product"`, `"op"` or `"collective"`.
        seconds: the least seconds, over all trips; None where a figure is not known.
        bound: what bounds it: `"FLOP/s"`, `"HBM"`, `"ICI"`, …; `""` for nothing.
        amount: operations or bytes, once.
        trips: how often it runs; None where that is not known, and then it counts once.
        source: the user's file and line.
        axes: of a collective, its mesh axes.
        value: the plan's value that it makes, or that causes it; `""` for none.
        collective: of a collective, its number in the plan; else -1.
        cause: of a collective, why it is there.
        alone: of what XLA may fuse, the seconds that it takes where nothing is fused.
        note: why there is no time.

    >>> print(Span("dot_general", "product", 2e-6, "FLOP/s", 4e8))
    At least 2 µs, bound by FLOP/s: 400 MFLOP.
    """

    name: str
    kind: str
    seconds: float | None
    bound: str
    amount: float
    trips: int | None = 1
    source: str = ""
    axes: tuple[str, ...] = ()
    value: str = ""
    collective: int = -1
    cause: Any = ""
    alone: float | None = None
    note: RooflineNote | None = None


@dataclass(frozen=True)
class Timeline(Fact):
    """The least times of a plan in program order.

    Attributes:
        where: the topology, as typed.
        spans: operations and collectives, in program order.

    >>> some = (Span("dot", "product", 2e-6, "FLOP/s", 4e8),
    ...         Span("all-reduce", "collective", 5e-6, "ICI", 1e6, axes=("x",)))
    >>> found = Timeline("tpu:v5e:4x4", some)
    >>> round(found.serial_s * 1e6), round(found.overlapped_s * 1e6)
    (7, 5)
    """

    where: str
    spans: tuple[Span, ...] = ()

    @cached_property
    def compute_s(self) -> float:
        """The least seconds of all operations, each the slower of arithmetic and memory."""
        return sum(s.seconds or 0.0 for s in self.spans if s.kind != "collective")

    @cached_property
    def collective_s(self) -> float:
        """The least seconds of all collectives, one after another, as of a Roofline."""
        return sum(s.seconds or 0.0 for s in self.spans if s.kind == "collective")

    @property
    def serial_s(self) -> float:
        """The least seconds, everything one after another."""
        return self.compute_s + self.collective_s

    @property
    def overlapped_s(self) -> float:
        """The least seconds where no collective waits for an operation, or the other way."""
        return max(self.compute_s, self.collective_s)

    @property
    def unknown(self) -> int:
        """How many spans have no known time."""
        return sum(1 for span in self.spans if span.seconds is None)


def timeline(plan: Plan, topology: Topology, mesh: MeshSpec | None = None) -> Timeline:
    """The operations and collectives of a plan with their least times, in order.

    Args:
        plan: of the program.
        topology: the chips that it is to run on.
        mesh: the plan's mesh with the real ids of its devices; without one the devices
            are in id order.

    Raises:
        TargetError: where the mesh does not fit the topology.
    """
    placed = mesh or plan.mesh
    chip = topology.chip
    before, after = _anchored(plan)
    costs = {cost.name: cost for cost in op_costs(plan)}
    needed = _unavoidable(plan, costs)
    spans: list[Span] = []

    def add_collectives(numbers: list[int]) -> None:
        for number in numbers:
            spans.append(_of_collective(plan, number, topology, placed))

    for op in plan.ops:
        add_collectives(before.get(op.name, []))
        cost = costs.get(op.name)
        if cost is not None and cost.opcode not in _WRITTEN:
            spans.append(_of_operation(cost, needed.get(op.name, 0), chip))
        add_collectives(after.get(op.name, []))
    # Those of no value in the list have no place: they stand at the end.
    add_collectives(after.get("", []))
    return Timeline(str(topology), tuple(spans))


def _anchored(plan: Plan) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The numbers of the collectives that stand directly before and after each value.

    A value is summed once it is made, and moved once somebody needs it elsewhere.
    """
    before: dict[str, list[int]] = {}
    after: dict[str, list[int]] = {}
    results = [op.name for op in plan.ops if op.kind == "result"]
    for number, one in enumerate(plan.collectives):
        cause = one.cause
        if isinstance(cause, MoveCause) and cause.user in plan.by_name:
            before.setdefault(cause.user, []).append(number)
        elif isinstance(cause, MoveCause) and cause.code == "result" and results:
            before.setdefault(results[0], []).append(number)
        else:
            at = one.value if one.value in plan.by_name else ""
            after.setdefault(at, []).append(number)
    return before, after


def _of_collective(plan: Plan, number: int, topology: Topology, mesh: MeshSpec) -> Span:
    one: Collective = plan.collectives[number]
    bound = collective_bound(one, topology.chip, topology, mesh)
    if one.group_size and one.group_size != group_size(one.mesh_axes, plan.mesh):
        # It runs over a part of an axis, and the plan does not say over which devices.
        note = RooflineNote("no groups")
        bound = replace(bound, seconds=None, bound="", note=note)
    return Span(
        one.kind,
        "collective",
        bound.seconds,
        bound.bound,
        bound.amount,
        bound.trips,
        bound.source,
        axes=one.mesh_axes,
        value=one.value,
        collective=number,
        cause=one.cause,
        note=bound.note,
    )


def _of_operation(cost: OpCost, needed: int, chip: Any) -> Span:
    """The least time of an operation; `needed` bytes are of arguments and results."""
    bound = op_bound(cost, chip)
    fields = (cost.trips, cost.source)
    if cost.is_product:
        parts = (bound.seconds, bound.bound, bound.amount, *fields)
        return Span(cost.name, "product", *parts, value=cost.name)
    # Arguments are read once, and results written once, whatever runs in a loop.
    seconds = rated_bytes(needed, chip)
    alone, name = bound.seconds, "HBM" if needed else ""
    return Span(
        cost.name, "op", seconds, name, needed, *fields, value=cost.name, alone=alone
    )


def _unavoidable(plan: Plan, costs: Mapping[str, OpCost]) -> dict[str, int]:
    """Bytes that go to or from memory however XLA fuses, by the value that needs them.

    A result of the program is written. An argument is read; what products make of it
    through other operations is not counted here, since a product's own bytes count.
    """
    in_products = _feeding_products(plan, costs)
    written: set[str] = set()
    read: set[str] = set()
    for op in plan.ops:
        if op.kind == "result":
            written.update(op.operands)
    needed: dict[str, int] = {}
    for op in plan.ops:
        cost = costs.get(op.name)
        if cost is None or cost.is_product:
            continue
        size = bytes_per_device(op, plan.mesh) if op.name in written else 0
        for name in op.operands:
            operand = plan.by_name.get(name)
            if operand is None or operand.kind != "argument":
                continue
            if name in read or name in in_products or _reads_a_part(op):
                continue
            read.add(name)
            size += bytes_per_device(operand, plan.mesh)
        needed[op.name] = size
    return needed


def _reads_a_part(op: PlannedOp) -> bool:
    return op.opcode in ("slice", "dynamic_slice", "gather")


def _feeding_products(plan: Plan, costs: Mapping[str, OpCost]) -> set[str]:
    """The values from which a product's operand is made without another product."""
    feeding: set[str] = set()
    for op in reversed(plan.ops):
        cost = costs.get(op.name)
        if op.name in feeding or (cost is not None and cost.is_product):
            feeding.update(op.operands)
    return feeding
