"""roofline(): the least time that each part of a program can take on some chips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from shardviz.core.display import Displayed, Fact
from shardviz.core.errors import ProgramError
from shardviz.core.format import shown
from shardviz.core.hardware.chips import Chip
from shardviz.core.hardware.interconnect import LinkUse, device_rows, groups_over, route
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.fit import Fit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.op_costs import OpCost, op_costs
from shardviz.core.program.orders import DeviceOrder, best_order
from shardviz.core.program.plan import Plan
from shardviz.core.program.report import Collective, Report, needed_bytes


@dataclass(frozen=True)
class RooflineNote(Fact):
    """What is assumed or not known of a least time.

    Attributes:
        code: a key of `NOTES` in `wording/roofline.py`.

    >>> str(RooflineNote("no rate"))
    'This rate is not published.'
    """

    code: str


# Devices of a mesh whose better order is looked for unasked, in about 0.1 s.
MOST_ORDERED = 64
_LOOPS_ONCE, _PLANNED = RooflineNote("loops once"), RooflineNote("planned")


@dataclass(frozen=True)
class Bound:
    """The least time of one part of a program.

    Attributes:
        name: the part: `compute`, `memory`, `all-gather over model`, the name of an
            operation.
        part: `"compute"`, `"memory"`, `"collective"` or `"op"`.
        seconds: the least seconds, over all trips; None where a figure is not known.
        bound: what bounds it: `"FLOP/s"`, `"HBM"`, `"ICI"`, `"NVLink"`, `"network"`,
            `""`.
        amount: operations or bytes, once.
        trips: how often it runs; None where that is not known, and then it counts once.
        source: the user's file and line.
        note: why there is no time, or what else to know; None for nothing.

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
        where: the topology or chip, as typed.
        chip: the chip whose figures were used.
        rows: compute, memory, then every collective, the longest first.
        ops: the operations of the plan, the longest first; empty where no plan was
            given.
        needed: bytes that each device needs; None where the compiler did not say.
        capacity: bytes that each device has; None where it is not published.
        notes: what was assumed, and what is not known.

    >>> from shardviz.core.hardware.chips import find_chip
    >>> rows = (Bound("compute", "compute", 2.0, "FLOP/s", 4e14),)
    >>> found = Roofline("tpu:v5e:4x4", find_chip("v5e"), rows, needed=20 << 30, capacity=16 << 30)
    >>> found.seconds, found.bound, found.fits
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
        """The seconds of compute, memory and collectives, of those that are known."""
        parts: dict[str, float] = {}
        for row in self.rows:
            if row.seconds is not None:
                name = "collectives" if row.part == "collective" else row.part
                # Collectives run one after another.
                parts[name] = parts.get(name, 0.0) + row.seconds
        return parts

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

        `""` for none, and where it is not known, since loops are counted once.
        """
        parts = self.parts
        if not parts or self.counts_loops_once:
            return ""
        return max(parts, key=parts.__getitem__)

    @property
    def counts_loops_once(self) -> bool:
        """Whether arithmetic and memory leave out all but one iteration of every loop."""
        return any(row.note == _LOOPS_ONCE for row in self.rows)

    @property
    def order(self) -> DeviceOrder | None:
        """An order of devices that suits the collectives better; None for none known."""
        return next((n for n in self.notes if isinstance(n, DeviceOrder)), None)

    @property
    def fit(self) -> Fit | None:
        """Whether a device has the memory; None where the compiler said no bytes."""
        if self.needed is None:
            return None
        return Fit(self.needed, self.capacity, self.chip.title)

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory; None where that is not known."""
        if self.fit is None:
            return None
        return self.fit.ok

    def __repr__(self) -> str:
        return f"Roofline({self})"


def roofline(
    report: Report,
    where: Topology | Chip | str,
    mesh: MeshSpec | None = None,
    plan: Plan | None = None,
) -> Roofline:
    """The least time of every part of a compiled program.

    Args:
        report: what a compile gave: collectives, cost, memory.
        where: the topology it is for, or its text; a Chip where the topology is not
            known.
        mesh: the mesh it was compiled for, with the real ids of its devices. Without
            one, or with a Chip only, collectives go at the rate of all links of a chip
            at once.
        plan: the propagated stage, for times of single operations.

    Raises:
        ProgramError: where `report` is no Report.
        TargetError: where the mesh does not fit the topology.

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
    moves = [collective_bound(c, chip, placed, mesh) for c in collectives]
    rows = (*_totals(report, chip, ops), *_longest_first(moves))
    known_places = placed is not None and mesh is not None
    notes = _notes(report, rows, known_places, bool(ops))
    before: Roofline | None = report.roofline
    if before is not None and before.where == name:
        # Looking for an order takes longer than all else here.
        notes += [before.order] if before.order else []
    elif placed is not None and mesh is not None and mesh.size <= MOST_ORDERED:
        order = best_order(mesh, placed, collectives)
        # Small gains of the model are no gains that anybody would measure.
        if order and (order.code == "hops" or order.least < 0.95 * order.seconds):
            notes.append(order)
    return Roofline(
        name,
        chip,
        rows,
        _longest_first([op_bound(op, chip) for op in ops]),
        needed_bytes(report.memory),
        report.memory.capacity or chip.device_bytes,
        tuple(notes),
    )


def with_operations(report: Report | None, plan: Plan | None) -> Roofline | None:
    """The roofline of a report, with every operation of its program; or None.

    Where the compiler counts no arithmetic, as for described GPUs, it is counted on the
    plan.

    Args:
        report: what a compile gave.
        plan: of the same program; None where there is none.

    >>> from shardviz.core.hardware.chips import find_chip
    >>> report = Report("f", "TPU", roofline=Roofline("tpu:v5e:4x4", find_chip("v5e")))
    >>> with_operations(report, None).ops
    ()
    """
    if report is None or report.roofline is None:
        return None
    known = report.roofline
    if plan is None or plan.error is not None:
        return known
    if known.where == known.chip.name:
        return roofline(report, known.chip, report.mesh, plan)
    return roofline(report, known.where, report.mesh, plan)


def collective_link_use(
    collective: Collective, mesh: MeshSpec, topology: Topology
) -> LinkUse | None:
    """The links that a collective uses; None where its groups are not known.

    Args:
        collective: of a Report or a Plan.
        mesh: the mesh of the program, with the real ids of its devices.
        topology: the topology of these devices.

    Raises:
        TargetError: where the mesh does not fit the topology, or no route of its kind
            is known.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> gather = Collective("all-gather", ("x",), 1 << 20)
    >>> collective_link_use(gather, make_mesh(y=4, x=4), Topology.parse("tpu:v5e:4x4")).used
    12
    """
    axes = collective.mesh_axes
    if not collective.groups:
        # Axes say who is in a group, and not who sends to whom in a permutation.
        if not axes or collective.kind == "collective-permute":
            return None
        if not all(axis in mesh.shape for axis in axes):
            return None
    return _link_use(collective.kind, collective.groups, axes, mesh, topology)


# Many collectives, and edits one after another, take the same route.
@lru_cache(maxsize=32)
def _link_use(
    kind: str,
    given: tuple[tuple[int, ...], ...],
    axes: tuple[str, ...],
    mesh: MeshSpec,
    topology: Topology,
) -> LinkUse:
    rows = device_rows(mesh, topology)
    groups = []
    for positions in given or groups_over(mesh, axes):
        groups.append(rows[np.asarray(positions, np.int64)])
    return route(topology, groups, kind)


def collective_name(collective: Collective) -> str:
    """What a collective is called in a table: `all-gather over data × model`."""
    return f"{collective.kind}{collective.over}"


def _longest_first(rows: Iterable[Bound]) -> tuple[Bound, ...]:
    return tuple(sorted(rows, key=lambda row: -(row.seconds or 0.0)))


def collective_bound(
    collective: Collective,
    chip: Chip,
    topology: Topology | None,
    mesh: MeshSpec | None,
) -> Bound:
    """The least time of one collective; without a topology at the rate of all links."""
    row = Bound(
        collective_name(collective),
        "collective",
        None,
        "",
        collective.bytes_per_device,
        collective.trips,
        collective.source,
    )
    if collective.kind == "ragged-all-to-all":
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
    # Kinds of links carry at the same time, so the slowest one bounds it.
    name = max(times, key=lambda kind: times[kind] or 0.0, default="")
    seconds = (times.get(name) or 0.0) * collective.execution_count
    return replace(row, bound=name, seconds=seconds)


def _without_topology(collective: Collective, chip: Chip) -> dict[str, float | None]:
    """Without a topology: all links of a chip at once, the most there can be."""
    sent = collective.sent_bytes
    name = "NVLink"
    if chip.axes:
        name = "ICI"
    if sent is None or chip.link_bandwidth is None:
        return {name: None}
    # A chip forwards nothing in an exchange that its links could not take in one hop.
    return {name: sent / (chip.link_bandwidth * max(1, chip.ici_links))}


def _totals(report: Report, chip: Chip, ops: tuple[OpCost, ...]) -> list[Bound]:
    """The rows of arithmetic and memory, as far as somebody counted them."""
    rows = []
    flops, note = report.cost.get("flops"), None
    planned = sum((op.flops or 0.0) * op.executions for op in ops)
    if report.loops and not ops:
        # Without a plan nobody knows what a body costs.
        note = _LOOPS_ONCE
    # XLA's count is of what is left after simplifying, a little less than the plan's;
    # far less is a loop whose body it counted once.
    if planned and (flops is None or planned > 1.5 * flops):
        flops, note = planned, _PLANNED
    if flops is not None:
        peak = _per_device(chip.peak_bf16, chip)
        rows.append(_rated("compute", "FLOP/s", flops, peak, note))
    moved, note = _moved(report, ops)
    if moved is not None:
        bandwidth = _per_device(chip.hbm_bandwidth, chip)
        rows.append(_rated("memory", "HBM", moved, bandwidth, note))
    return rows


def _moved(
    report: Report, ops: tuple[OpCost, ...]
) -> tuple[float | None, RooflineNote | None]:
    """The least bytes that go to and from memory, and what was added to XLA's count.

    Of the plan only products count, since everything else may be fused with them.
    """
    moved = report.cost.get("bytes accessed")
    planned = again = 0
    for op in ops:
        if op.is_product:
            planned += op.bytes * op.executions
            again += op.bytes * (op.executions - 1)
    if moved is None:
        return planned or None, _PLANNED
    if not report.loops:
        return moved, None
    if not ops:
        return moved, _LOOPS_ONCE
    # XLA counts the body of a loop once.
    if not again:
        return moved, None
    return moved + again, _PLANNED


def _rated(
    name: str, bound: str, amount: float, rate: float | None, note: RooflineNote | None
) -> Bound:
    if rate is None:
        return Bound(name, name, None, bound, amount, note=RooflineNote("no rate"))
    return Bound(name, name, amount / rate, bound, amount, note=note)


def rated_bytes(count: int, chip: Chip) -> float | None:
    """The least seconds in which a device reads or writes so many bytes."""
    bandwidth = _per_device(chip.hbm_bandwidth, chip)
    if bandwidth is None:
        return None
    return count / bandwidth


def _per_device(rate: float | None, chip: Chip) -> float | None:
    """The share of one device in the rate of a chip."""
    return rate and rate / chip.devices


def op_bound(op: OpCost, chip: Chip) -> Bound:
    """The least time of one operation, as if nothing were fused with it."""
    peak = _per_device(chip.peak(op.dtype), chip)
    memory = _per_device(chip.hbm_bandwidth, chip)
    name, seconds, amount = "", None, float(op.bytes)
    if memory:
        name, seconds = "HBM", op.bytes / memory
    # Only matrices go at the peak; anything else is bounded by what it reads and
    # writes.
    if op.flops is not None and op.is_product and peak:
        arithmetic = op.flops / peak
        if seconds is None or arithmetic >= seconds:
            name, seconds, amount = "FLOP/s", arithmetic, op.flops
    if seconds is not None:
        seconds *= op.executions
    return Bound(op.name, "op", seconds, name, amount, op.trips, op.source)


def _notes(
    report: Report,
    rows: Sequence[Bound],
    known_places: bool,
    planned: bool,
) -> list[RooflineNote | DeviceOrder]:
    notes: list[RooflineNote | DeviceOrder] = [RooflineNote("least")]
    moves = [row for row in rows if row.part == "collective"]
    if moves and not known_places:
        notes.append(RooflineNote("no topology"))
    if not planned and report.loops:
        notes.append(_LOOPS_ONCE)
    return notes
