"""roofline(): the least time that each part of a program can take on given chips."""

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
from shardviz.hardware.interconnect import LinkTime, collective_link_use
from shardviz.hardware.topology import Topology
from shardviz.plans.plan import Plan


@dataclass(frozen=True)
class RooflineNote(Fact):
    """An assumption behind a least time, or why a least time is unknown.

    Attributes:
        code: a key of `NOTES` in `words/roofline.py`.

    >>> str(RooflineNote("no rate"))
    'This rate is not published.'
    """

    code: str


# We search for a better device order in meshes of up to this size. This takes 0.1 s.
MOST_ORDERED = 64
_LOOPS_ONCE, _PLANNED = RooflineNote("loops once"), RooflineNote("planned")
_LEAST, _UNKNOWN_TRIPS = RooflineNote("least"), RooflineNote("unknown trips")
_BRANCHES = RooflineNote("branches")


@dataclass(frozen=True)
class Bound:
    """The least time of one part of a program.

    Attributes:
        name: `compute`, `memory`, a collective such as `all-gather over model`, or an
            operation's name.
        part: `"compute"`, `"memory"`, `"collective"` or `"op"`.
        seconds: least seconds over all trips; None if a rate is unknown.
        bound: the rate that limits this part: `"FLOP/s"`, `"HBM"`, `"ICI"`, `"NVLink"`,
            `"network"`, or `""`; `"latency"` for a collective with more latency than
            time at a link's rate.
        amount: FLOP or bytes of one execution; for a collective, the bytes that a
            device sends. None if unknown.
        trips: number of executions; None if unknown, which counts as 1. The totals of
            compute and memory have 1; separate rows have the share of loops of unknown
            length.
        source: the user's file and line.
        note: an assumption, or why the time is unknown; None if there is neither.
        latency: the seconds of a collective that are latency, over all trips; None if
            its latency is not published.

    >>> Bound("compute", "compute", 0.5, "FLOP/s", 1e14).bound
    'FLOP/s'
    """

    name: str
    part: str
    seconds: float | None
    bound: str
    amount: float | None
    trips: int | None = 1
    source: str = ""
    note: RooflineNote | None = None
    latency: float | None = 0.0


@dataclass(frozen=True, repr=False)
class Roofline(Displayed, Fact):
    """A program's least times on given chips.

    Attributes:
        where: the topology or chip, as the user typed it.
        chip: the chip whose rates were used.
        rows: compute, memory, then every collective, longest first. All iterations of a
            loop count.
        ops: the plan's operations, longest first; empty without a plan.
        needed: bytes that each device needs; None if the compiler did not report them.
        capacity: bytes of memory per device; None if unpublished.
        notes: assumptions, reasons for unknown times, and a better device order if one
            was found.

    >>> from shardviz.compiled.roofline import Bound
    >>> from shardviz.types import Roofline
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
        """The known seconds of compute, memory and collectives, by part."""
        return _seconds_of_parts(self.rows)

    @property
    def compute_s(self) -> float | None:
        """The least seconds of arithmetic; None if unknown."""
        return self.parts.get("compute")

    @property
    def collective_s(self) -> float | None:
        """The least seconds of all collectives with a known time."""
        return self.parts.get("collectives")

    @property
    def latency_s(self) -> float:
        """The seconds of all collectives that are latency, if published."""
        return sum(row.latency or 0.0 for row in self.rows)

    @property
    def seconds(self) -> float | None:
        """The least seconds if arithmetic, memory and collectives fully overlap."""
        return max(self.parts.values(), default=None)

    @property
    def bound(self) -> str:
        """The part that takes longest: `"compute"`, `"memory"` or `"collectives"`.

        `""` if unknown: without any times, if loops are counted once, or if more
        iterations of a loop of unknown length could make another part the longest.
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
        """Whether a loop of unknown length counts once, so the time may be longer."""
        return any(row.trips is None for row in self.rows)

    @property
    def counts_loops_once(self) -> bool:
        """Whether arithmetic and memory count only one iteration of every loop."""
        return any(row.note == _LOOPS_ONCE for row in self.rows)

    @property
    def order(self) -> DeviceOrder | None:
        """A device order with faster collectives; None if none is known."""
        return next((n for n in self.notes if isinstance(n, DeviceOrder)), None)

    @property
    def fit(self) -> Fit | None:
        """The memory needed, compared with a device's memory; None if unknown."""
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
    """Sums the known seconds of compute, memory and collectives."""
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
    """Returns the least time of each part of a compiled program.

    Args:
        report: the report of a compile.
        where: the topology of that compile, or its text; a Chip if the topology is
            unknown.
        mesh: the mesh of that compile, with real device ids. Without a mesh or a
            topology, collectives run at the combined rate of all links of a chip.
        plan: the same program's plan, for the times of single operations.

    Raises:
        ProgramError: if `report` is not a Report.
        TargetError: if the mesh does not fit the topology.

    >>> report = Report("f", "tpu:v5e:4x4", cost={"flops": 197e12, "bytes accessed": 819e6})
    >>> print(roofline(report, "tpu:v5e:4x4"))
    At least 1 s on tpu:v5e:4x4: arithmetic 1 s, memory 1 ms.
    """
    if not isinstance(report, Report):
        raise ProgramError(f"A roofline describes a Report; got {shown(report)}.")
    # A program that does not fit its chip still has figures.
    report = report.without_error
    if isinstance(where, str):
        where = Topology.parse(where)
    if isinstance(where, Chip):
        chip, placed, name = where, None, where.name
    else:
        chip, placed, name = where.chip, where, str(where)
    ops: tuple[OpCost, ...] = ()
    if plan is not None:
        ops = op_costs(plan)
    # A program that failed to compile may still have been partitioned.
    collectives = report.collectives
    if collectives is None:
        collectives = report.partitioned or ()
    moves = collective_bounds(collectives, chip, placed, mesh).values()
    rows = (*total_bounds(chip, ops, report), *_longest_first(moves))
    known_places = placed is not None and mesh is not None
    notes = _notes(rows, known_places, plan)
    before: Roofline | None = report.roofline
    if before is not None and before.where == name:
        # Reuse the order, because the search takes longer than everything else here.
        notes += [before.order] if before.order else []
    elif placed is not None and mesh is not None and mesh.size <= MOST_ORDERED:
        order = best_order(mesh, placed, collectives)
        # A predicted gain below 5 % could not be measured.
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
    """Returns a program's least times from its plan, before it is compiled.

    Args:
        plan: the program's plan.
        topology: the chips that the program runs on.
        mesh: the plan's mesh with real device ids.

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
    """Returns a report's roofline with the plan's operations; None without a roofline.

    If the compiler counts no arithmetic, as for described GPUs, the plan's count is
    used.

    Args:
        report: the report of a compile.
        plan: the same program's plan, or None.

    >>> from shardviz.hardware.chips import find_chip
    >>> report = Report("f", "TPU", roofline=Roofline("tpu:v5e:4x4", find_chip("v5e")))
    >>> with_operations(report, None).ops
    ()
    """
    if report is None or not report.has("roofline") or report.roofline is None:
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
    """Returns the least times of collectives, by their position in `collectives`.

    Of each conditional, only the collectives of the costliest branch are included.
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
    """Returns a collective's least time; without a topology, all links are used."""
    row = Bound(
        name=collective.name_with_axes,
        part="collective",
        seconds=None,
        bound="",
        amount=collective.sent_bytes,
        trips=collective.trips,
        source=collective.source,
    )
    if collective.definition.route is Route.UNKNOWN:
        return replace(row, note=RooflineNote("ragged"))
    if topology is None or mesh is None:
        least = _without_topology(collective, chip)
    else:
        links = collective_link_use(collective, mesh, topology)
        if links is None:
            return replace(row, note=RooflineNote("no groups"))
        least = links.longest(collective.bytes_per_device)
    if least.seconds is None:
        return replace(row, note=RooflineNote("no rate"))
    count, latency = collective.execution_count, least.latency
    row = replace(row, bound=least.name, seconds=least.seconds * count)
    if latency is None:
        return replace(row, latency=None, note=RooflineNote("no latency"))
    if 2 * latency > least.seconds:
        row = replace(row, bound="latency")
    return replace(row, latency=latency * count)


def _without_topology(collective: Collective, chip: Chip) -> LinkTime:
    """Returns the least time at the combined rate of all links of a chip."""
    sent = collective.sent_bytes
    name = "NVLink"
    if chip.axes:
        name = "ICI"
    # Lower bounds: bytes that chips forward for others are not counted, nor is any hop
    # but the first.
    latency = chip.hop_latency
    if collective.definition.route is Route.RINGS:
        latency = chip.collective_latency or latency
    if sent is None or chip.link_bandwidth is None:
        return LinkTime(name, None, None)
    if not sent:  # groups of one device
        return LinkTime(name, 0.0, 0.0)
    seconds = sent / (chip.link_bandwidth * max(1, chip.ici_links))
    return LinkTime(name, seconds + (latency or 0.0), latency)


def total_bounds(
    chip: Chip, ops: Sequence[OpCost], report: Report | None = None
) -> list[Bound]:
    """Returns the rows for arithmetic and memory, with all loop iterations.

    Args:
        chip: the chip whose rates are used.
        ops: the costs of the plan's operations; empty without a plan.
        report: the compiled program's report, if there is one. Its counts are for the
            simplified and fused program, with each loop body counted once.
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
            # The compiler counts each loop body once, so we add further iterations.
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
    """The work of a plan's operations per device, in FLOP or bytes.

    Attributes:
        rate: FLOP or bytes per second; None if unpublished.
        amount: the work of all executions.
        again: `amount` without the first iteration of each loop.
        in_unknown: the work in loops of unknown length, with one iteration each.
    """

    rate: float | None
    amount: float = 0.0
    again: float = 0.0
    in_unknown: float = 0.0

    def plus(self, amount: float, op: OpCost) -> _Work:
        """Adds the work of one more operation, over all its executions."""
        again = amount * (op.executions - 1) / op.executions
        unknown = amount if op.trips is None else 0.0
        return _Work(
            self.rate,
            self.amount + amount,
            self.again + again,
            self.in_unknown + unknown,
        )


def arithmetic_seconds(op: OpCost, chip: Chip) -> float | None:
    """Returns a matrix product's least seconds over all executions; None if unknown.

    Only matrix products reach the peak FLOP/s. Memory bounds all other operations, so
    their arithmetic counts as 0 seconds.
    """
    if not op.is_product:
        return 0.0
    peak = _per_device(chip.peak(op.dtype), chip)
    if op.flops is None or peak is None:
        return None
    return op.flops * op.executions / peak


def _arithmetic(chip: Chip, ops: Sequence[OpCost]) -> _Work:
    """Sums the arithmetic of matrix products, at the rate of each dtype."""
    work, seconds = _Work(_per_device(chip.peak_bf16, chip)), 0.0
    for op in ops:
        if op.is_product and op.flops is not None:
            work = work.plus(op.flops * op.executions, op)
            seconds += arithmetic_seconds(op, chip) or 0.0
    if seconds:
        return work._replace(rate=work.amount / seconds)
    return work


def _traffic(chip: Chip, ops: Sequence[OpCost]) -> _Work:
    """Sums the memory traffic that no fusion can avoid."""
    work = _Work(_per_device(chip.hbm_bandwidth, chip))
    for op in ops:
        work = work.plus(op.unavoidable, op)
    return work


def _is_undercounted(counted: float, work: _Work, loops: bool) -> bool:
    """Whether a compiler's count leaves out loop iterations that the plan counts.

    A compiler counts slightly less than the plan because it simplifies, and far less if
    it counts each loop body once.
    """
    return (loops and work.amount > counted) or work.amount > 1.5 * counted


def _rated(
    name: str, bound: str, amount: float, work: _Work, note: RooflineNote | None
) -> list[Bound]:
    """Returns a total as a row, and its share in loops of unknown length as another."""
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
    """Returns the least seconds in which a device can read or write `count` bytes."""
    bandwidth = _per_device(chip.hbm_bandwidth, chip)
    if bandwidth is None:
        return None
    return count / bandwidth


def _per_device(rate: float | None, chip: Chip) -> float | None:
    """Returns one device's share of a chip's rate."""
    return rate and rate / chip.devices


def op_bound(op: OpCost, chip: Chip) -> Bound:
    """Returns the least time of one operation if nothing is fused with it."""
    peak = _per_device(chip.peak(op.dtype), chip)
    memory = _per_device(chip.hbm_bandwidth, chip)
    name, seconds, amount = "", None, float(op.bytes)
    if memory:
        name, seconds = "HBM", op.bytes / memory
    # Only matrix products reach the peak FLOP/s; memory traffic bounds other
    # operations.
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
    """Returns notes on loops of unknown length and on conditionals."""
    notes = []
    if any(row.trips is None for row in rows):
        notes.append(_UNKNOWN_TRIPS)
    if plan is not None and any(branch_of(op.scope) for op in plan.ops):
        notes.append(_BRANCHES)
    return notes
