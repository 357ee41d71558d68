"""roofline(): the least time that each part of a program can take on some chips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from shardviz.axis_rules.fit import Fit
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import Route
from shardviz.base.display import Displayed, Fact
from shardviz.base.errors import ProgramError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.compiled.op_costs import (
    OpCost,
    branch_of,
    held_bytes,
    in_costliest_branch,
    op_costs,
)
from shardviz.compiled.orders import DeviceOrder, best_order
from shardviz.compiled.report import Report, needed_bytes
from shardviz.hardware.chips import Chip
from shardviz.hardware.interconnect import collective_link_use
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan


@dataclass(frozen=True)
class RooflineNote(Fact):
    """An assumption behind a least time, or the reason why it is unknown.

    Attributes:
        code: a key of `NOTES` in `words/roofline.py`.

    >>> str(RooflineNote("no rate"))
    'This rate is not published.'
    """

    code: str


# Devices of the largest mesh for which a better order is searched; it takes 0.1 s.
MOST_ORDERED = 64
_LOOPS_ONCE, _PLANNED = RooflineNote("loops once"), RooflineNote("planned")
_LEAST, _UNKNOWN_TRIPS = RooflineNote("least"), RooflineNote("unknown trips")
_BRANCHES = RooflineNote("branches")


@dataclass(frozen=True)
class Bound:
    """The least time of one part of a program.

    Attributes:
        name: the part: `compute`, `memory`, `all-gather over model`, the name of an
            operation.
        part: `"compute"`, `"memory"`, `"collective"` or `"op"`.
        seconds: the least seconds over all trips; None if a rate is unknown.
        bound: the rate that limits it: `"FLOP/s"`, `"HBM"`, `"ICI"`, `"NVLink"`,
            `"network"`, or `""`.
        amount: operations or bytes of one execution.
        trips: how often it runs; None if unknown, and then it counts once. Totals of
            arithmetic or memory have 1, and None for their share inside loops of unknown
            length.
        source: the user's file and line.
        note: an assumption, or why there is no time; None if neither applies.

    >>> Bound("compute", "compute", 0.5, "FLOP/s", 1e14).bound
    'FLOP/s'
    """

    name: str
    part: str
    seconds: float | None
    bound: str
    amount: float
    trips: int | None = 1
    source: str = ""
    note: RooflineNote | None = None


@dataclass(frozen=True, repr=False)
class Roofline(Displayed, Fact):
    """The least times of a program on some chips.

    Attributes:
        where: the topology or chip, as the user typed it.
        chip: the chip whose rates were used.
        rows: compute, memory, then every collective, the longest first. Loops count as
            often as they run.
        ops: the operations of the plan, the longest first; empty without a plan.
        needed: the bytes that each device needs; None if the compiler did not report
            them.
        capacity: the bytes that each device has; None if unpublished.
        notes: assumptions, and times that are unknown.

    >>> from shardviz.hardware.chips import find_chip
    >>> rows = (Bound("compute", "compute", 2.0, "FLOP/s", 4e14),)
    >>> least = Roofline("tpu:v5e:4x4", find_chip("v5e"), rows, needed=20 << 30, capacity=16 << 30)
    >>> least.seconds, least.bound, least.fits
    (2.0, 'compute', False)
    """

    where: str
    chip: Chip
    rows: tuple[Bound, ...] = ()
    ops: tuple[Bound, ...] = ()
    needed: int | None = None
    capacity: int | None = None
    notes: tuple[RooflineNote | DeviceOrder, ...] = ()

    @cached_property
    def parts(self) -> dict[str, float]:
        """The seconds of compute, memory and collectives, without unknown ones."""
        return _seconds_of_parts(self.rows)

    @property
    def compute_s(self) -> float | None:
        """The least seconds of arithmetic."""
        return self.parts.get("compute")

    @property
    def collective_s(self) -> float | None:
        """The least seconds of all collectives whose time is known."""
        return self.parts.get("collectives")

    @property
    def seconds(self) -> float | None:
        """The least seconds, if arithmetic, memory and collectives overlap."""
        return max(self.parts.values(), default=None)

    @property
    def bound(self) -> str:
        """Which of `"compute"`, `"memory"` and `"collectives"` is the longest.

        `""` if that is unknown: if there are no times, if loops are counted once, or if
        each iteration of a loop of unknown length takes longer in another part.
        """
        parts = self.parts
        if not parts or self.counts_loops_once:
            return ""
        longest = max(parts, key=parts.__getitem__)
        trip = _seconds_of_parts(row for row in self.rows if row.trips is None)
        if any(seconds > trip.get(longest, 0.0) for seconds in trip.values()):
            return ""
        return longest

    @property
    def has_unknown_trips(self) -> bool:
        """True if a loop of unknown length counts once, so the program takes longer."""
        return any(row.trips is None for row in self.rows)

    @property
    def counts_loops_once(self) -> bool:
        """Whether arithmetic and memory count only one iteration of every loop."""
        return any(row.note == _LOOPS_ONCE for row in self.rows)

    @property
    def order(self) -> DeviceOrder | None:
        """An order of devices in which collectives are faster; None if none is known."""
        return next((n for n in self.notes if isinstance(n, DeviceOrder)), None)

    @property
    def fit(self) -> Fit | None:
        """Whether a device has enough memory; None if the need is unknown."""
        if self.needed is None:
            return None
        return Fit(self.needed, self.capacity, self.chip.title)

    @property
    def fits(self) -> bool | None:
        """Whether a device has enough memory; None if unknown."""
        if self.fit is None:
            return None
        return self.fit.ok

    def __repr__(self) -> str:
        return f"Roofline({self})"


def _seconds_of_parts(rows: Iterable[Bound]) -> dict[str, float]:
    """The known seconds of compute, memory and collectives."""
    parts: dict[str, float] = {}
    for row in rows:
        if row.seconds is not None:
            name = "collectives" if row.part == "collective" else row.part
            # Collectives run one after another.
            parts[name] = parts.get(name, 0.0) + row.seconds
    return parts


def roofline(
    report: Report,
    where: Topology | Chip | str,
    mesh: MeshSpec | None = None,
    plan: Plan | None = None,
) -> Roofline:
    """The least time of every part of a compiled program.

    Args:
        report: the report of a compile.
        where: the topology it is for, or its text; a Chip if the topology is unknown.
        mesh: the mesh it was compiled for, with the real ids of its devices. Without a
            mesh or a topology, collectives run at the rate of all links of a chip
            together.
        plan: the propagated stage, for times of single operations.

    Raises:
        ProgramError: if `report` is not a Report.
        TargetError: if the mesh does not fit the topology.

    >>> report = Report("f", "tpu:v5e:4x4", cost={"flops": 197e12, "bytes accessed": 819e6})
    >>> print(roofline(report, "tpu:v5e:4x4"))
    At least 1 s on tpu:v5e:4x4: arithmetic 1 s, memory 1 ms.
    """
    if not isinstance(report, Report):
        raise ProgramError(f"A roofline is that of a Report; got {shown(report)}.")
    if isinstance(where, str):
        where = Topology.parse(where)
    if isinstance(where, Chip):
        chip, placed, name = where, None, where.name
    else:
        chip, placed, name = where.chip, where, str(where)
    ops: tuple[OpCost, ...] = ()
    if plan is not None:
        ops = op_costs(plan)
    # A program that failed to compile may have been partitioned.
    collectives = report.collectives
    if collectives is None:
        collectives = report.partitioned or ()
    moves = collective_bounds(collectives, chip, placed, mesh).values()
    rows = (*total_bounds(chip, ops, report), *_longest_first(moves))
    known_places = placed is not None and mesh is not None
    notes = _notes(rows, known_places, plan)
    before: Roofline | None = report.roofline
    if before is not None and before.where == name:
        # The search for an order takes longer than everything else here.
        notes += [before.order] if before.order else []
    elif placed is not None and mesh is not None and mesh.size <= MOST_ORDERED:
        order = best_order(mesh, placed, collectives)
        # Gains below 5 % of this model could not be measured.
        if order and (order.code == "hops" or order.least < 0.95 * order.seconds):
            notes.append(order)
    return Roofline(
        where=name,
        chip=chip,
        rows=rows,
        ops=_longest_first([op_bound(op, chip) for op in ops]),
        needed=needed_bytes(report.memory),
        capacity=report.memory.capacity or chip.device_bytes,
        notes=tuple(notes),
    )


def planned_roofline(plan: Plan, topology: Topology, mesh: MeshSpec) -> Roofline:
    """The least times of a program from its plan, before it is compiled.

    Args:
        plan: the plan of the program.
        topology: the chips that it runs on.
        mesh: the plan's mesh with the real ids of its devices.

    Raises:
        TargetError: if the mesh does not fit the topology.
    """
    chip, ops = topology.chip, op_costs(plan)
    moves = collective_bounds(plan.collectives, chip, topology, mesh).values()
    rows = (*total_bounds(chip, ops), *_longest_first(moves))
    return Roofline(
        where=str(topology),
        chip=chip,
        rows=rows,
        ops=_longest_first([op_bound(op, chip) for op in ops]),
        needed=held_bytes(plan),
        capacity=chip.device_bytes,
        notes=(_LEAST, *_notes_of_plan(rows, plan)),
    )


def with_operations(report: Report | None, plan: Plan | None) -> Roofline | None:
    """The roofline of a report, with every operation of its program; or None.

    If the compiler counts no arithmetic, as for described GPUs, it is counted from the
    plan.

    Args:
        report: the report of a compile.
        plan: the plan of the same program, if there is one.

    >>> from shardviz.hardware.chips import find_chip
    >>> report = Report("f", "TPU", roofline=Roofline("tpu:v5e:4x4", find_chip("v5e")))
    >>> with_operations(report, None).ops
    ()
    """
    if report is None or report.roofline is None:
        return None
    least: Roofline = report.roofline
    if least.ops or plan is None or plan.error is not None:
        return least
    if least.where == least.chip.name:
        return roofline(report, least.chip, report.mesh, plan)
    return roofline(report, least.where, report.mesh, plan)


def _longest_first(rows: Iterable[Bound]) -> tuple[Bound, ...]:
    return tuple(sorted(rows, key=lambda row: -(row.seconds or 0.0)))


def collective_bounds(
    collectives: Sequence[Collective],
    chip: Chip,
    topology: Topology | None,
    mesh: MeshSpec | None,
) -> dict[int, Bound]:
    """The least times of collectives, by their position in `collectives`.

    For each condition, only the collectives of the costliest branch are included.
    """
    bounds = [collective_bound(c, chip, topology, mesh) for c in collectives]
    paths = [collective.op.split("/") for collective in collectives]
    counts = in_costliest_branch(paths, [bound.seconds or 0.0 for bound in bounds])
    return {n: bound for n, bound in enumerate(bounds) if counts[n]}


def collective_bound(
    collective: Collective,
    chip: Chip,
    topology: Topology | None,
    mesh: MeshSpec | None,
) -> Bound:
    """The least time of a collective; without a topology, at the rate of all links."""
    row = Bound(
        name=collective.name_with_axes,
        part="collective",
        seconds=None,
        bound="",
        amount=collective.bytes_per_device,
        trips=collective.trips,
        source=collective.source,
    )
    if collective.definition.route is Route.UNKNOWN:
        return replace(row, note=RooflineNote("ragged"))
    if topology is None or mesh is None:
        times = _without_topology(collective, chip)
    else:
        links = collective_link_use(collective, mesh, topology)
        if links is None:
            return replace(row, note=RooflineNote("no groups"))
        times = links.times(collective.bytes_per_device)
    if None in times.values():
        return replace(row, note=RooflineNote("no rate"))
    # All kinds of links are used at the same time, so the slowest one is the bound.
    name = max(times, key=lambda kind: times[kind] or 0.0, default="")
    seconds = (times.get(name) or 0.0) * collective.execution_count
    return replace(row, bound=name, seconds=seconds)


def _without_topology(collective: Collective, chip: Chip) -> dict[str, float | None]:
    """The least time without a topology, if all links of a chip are used together."""
    sent = collective.sent_bytes
    name = "NVLink"
    if chip.axes:
        name = "ICI"
    if sent is None or chip.link_bandwidth is None:
        return {name: None}
    # A lower bound: bytes that chips forward for others are not counted.
    return {name: sent / (chip.link_bandwidth * max(1, chip.ici_links))}


def total_bounds(
    chip: Chip, ops: Sequence[OpCost], report: Report | None = None
) -> list[Bound]:
    """The rows of arithmetic and memory, with loops counted as often as they run.

    Args:
        chip: the chip whose rates are used.
        ops: the costs of a plan's operations; empty if there is no plan.
        report: the report of the compiled program, if there is one. The compiler counts
            the simplified and fused program, but the body of a loop only once.
    """
    cost = {} if report is None else report.cost
    loops = report is not None and report.loops > 0
    rows = []
    for name, bound, counted, work in (
        ("compute", "FLOP/s", cost.get("flops"), _arithmetic(chip, ops)),
        ("memory", "HBM", cost.get("bytes accessed"), _traffic(chip, ops)),
    ):
        if counted is None and not ops:
            continue
        amount = work.amount
        if counted is not None and name == "memory":
            # The compiler counts each loop's body once; further iterations are added.
            amount = counted + (work.again if loops else 0.0)
        elif counted is not None and not _is_undercounted(counted, work, loops):
            amount = counted
        note = None if amount == counted else _PLANNED
        if loops and not ops:
            note = _LOOPS_ONCE
        if not amount:
            continue
        rows += _rated(name, bound, amount, work, note)
    return rows


class _Work(NamedTuple):
    """The work of a plan's operations on each device, in FLOP or bytes.

    Attributes:
        rate: FLOP or bytes per second; None if unpublished.
        amount: the work of all executions.
        again: the same without the first iteration of every loop.
        in_unknown: the work inside loops of unknown length, which count once.
    """

    rate: float | None
    amount: float = 0.0
    again: float = 0.0
    in_unknown: float = 0.0

    def plus(self, amount: float, op: OpCost) -> _Work:
        """The sum with the work of one more operation, over all its executions."""
        again = amount * (op.executions - 1) / op.executions
        unknown = amount if op.trips is None else 0.0
        return _Work(
            self.rate,
            self.amount + amount,
            self.again + again,
            self.in_unknown + unknown,
        )


def arithmetic_seconds(op: OpCost, chip: Chip) -> float | None:
    """The least seconds of a matrix product over all executions; None if unknown.

    Only matrix products reach the peak. Other operations are bounded by memory, so
    their arithmetic counts 0.
    """
    if not op.is_product:
        return 0.0
    peak = _per_device(chip.peak(op.dtype), chip)
    if op.flops is None or peak is None:
        return None
    return op.flops * op.executions / peak


def _arithmetic(chip: Chip, ops: Sequence[OpCost]) -> _Work:
    """The arithmetic of matrix products, at the rates of their types."""
    work, seconds = _Work(_per_device(chip.peak_bf16, chip)), 0.0
    for op in ops:
        if op.is_product and op.flops is not None:
            work = work.plus(op.flops * op.executions, op)
            seconds += arithmetic_seconds(op, chip) or 0.0
    if seconds:
        return work._replace(rate=work.amount / seconds)
    return work


def _traffic(chip: Chip, ops: Sequence[OpCost]) -> _Work:
    """The bytes that go through memory no matter what the compiler fuses."""
    work = _Work(_per_device(chip.hbm_bandwidth, chip))
    for op in ops:
        work = work.plus(op.unavoidable, op)
    return work


def _is_undercounted(counted: float, work: _Work, loops: bool) -> bool:
    """Whether a compiler's count leaves out iterations that the plan counts.

    A compiler counts slightly less than the plan because it simplifies, and far less if
    it counts the body of a loop once.
    """
    return (loops and work.amount > counted) or work.amount > 1.5 * counted


def _rated(
    name: str, bound: str, amount: float, work: _Work, note: RooflineNote | None
) -> list[Bound]:
    """A total as one row, and its share inside loops of unknown length as another."""
    if work.rate is None:
        no_rate = RooflineNote("no rate")
        return [Bound(name, name, None, bound, amount, note=no_rate)]
    unknown = min(amount, work.in_unknown)
    rows = []
    for share, trips in ((amount - unknown, 1), (unknown, None)):
        if share:
            seconds = share / work.rate
            rows.append(Bound(name, name, seconds, bound, share, trips, note=note))
    return rows


def rated_bytes(count: float, chip: Chip) -> float | None:
    """The least seconds in which a device reads or writes `count` bytes."""
    bandwidth = _per_device(chip.hbm_bandwidth, chip)
    if bandwidth is None:
        return None
    return count / bandwidth


def _per_device(rate: float | None, chip: Chip) -> float | None:
    """The share of one device in the rate of a chip."""
    return rate and rate / chip.devices


def op_bound(op: OpCost, chip: Chip) -> Bound:
    """The least time of one operation if nothing is fused with it."""
    peak = _per_device(chip.peak(op.dtype), chip)
    memory = _per_device(chip.hbm_bandwidth, chip)
    name, seconds, amount = "", None, float(op.bytes)
    if memory:
        name, seconds = "HBM", op.bytes / memory
    # Only matrix products reach the peak; other operations are bounded by the bytes that
    # they read and write.
    if op.flops is not None and op.is_product and peak:
        arithmetic = op.flops / peak
        if seconds is None or arithmetic >= seconds:
            name, seconds, amount = "FLOP/s", arithmetic, op.flops
    if seconds is not None:
        seconds *= op.executions
    return Bound(
        name=op.name,
        part="op",
        seconds=seconds,
        bound=name,
        amount=amount,
        trips=op.trips,
        source=op.source,
    )


def _notes(
    rows: Sequence[Bound], known_places: bool, plan: Plan | None
) -> list[RooflineNote | DeviceOrder]:
    notes: list[RooflineNote | DeviceOrder] = [_LEAST]
    moves = [row for row in rows if row.part == "collective"]
    if moves and not known_places:
        notes.append(RooflineNote("no topology"))
    if any(row.note == _LOOPS_ONCE for row in rows):
        notes.append(_LOOPS_ONCE)
    return [*notes, *_notes_of_plan(rows, plan)]


def _notes_of_plan(rows: Sequence[Bound], plan: Plan | None) -> list[RooflineNote]:
    """Notes on loops of unknown length, and on conditions."""
    notes = []
    if any(row.trips is None for row in rows):
        notes.append(_UNKNOWN_TRIPS)
    if plan is not None and any(branch_of(op.scope) for op in plan.ops):
        notes.append(_BRANCHES)
    return notes
