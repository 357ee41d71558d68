"""roofline(): the least time that each part of a program can take on some chips.

`op_costs` counts the arithmetic and the bytes of every operation of a plan, on each device, from
shapes, specs and sharding rules only, without a compile. XLA fuses operations afterwards: the bytes
are those of a program in which every operation reads and writes memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError
from shardviz.core.format import bytes_text, plural, shown
from shardviz.core.hardware.chips import Chip
from shardviz.core.hardware.interconnect import LinkUse, device_rows, groups_over, route
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import DTYPE_BITS, size_in_bytes
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import PlannedOp, ShardingRule, group_size, local_shape
from shardviz.core.program.report import Collective, Report, needed_bytes

# They only move or name values, or contain other operations.
_FREE = frozenset(
    (
        "constant",
        "iota",
        "reshape",
        "bitcast_convert",
        "optimization_barrier",
        "tuple",
        "get_tuple_element",
        "while",
        "case",
        "if",
        "call",
        "custom_call",
        "composite",
        "return",
        "after_all",
        "create_token",
    )
)
_PRODUCTS = ("dot_general", "dot", "convolution")
# They read a part of their first operand only: as many bytes as their result has.
_READ_A_PART = ("slice", "dynamic_slice", "gather")
# They write a part of their first operand in place; this operand holds what is written.
_WRITE_A_PART = {"dynamic_update_slice": 1, "scatter": 2}


@dataclass(frozen=True)
class OpCost:
    """What one operation costs on each device, once.

    Attributes:
        name: the plan's name of its value.
        opcode: the operation, as StableHLO names it.
        flops: operations on numbers; None where they are not known.
        bytes: what it reads and writes, as if nothing were fused.
        trips: how often it runs; None inside loops of unknown length.
        dtype: of its operands: the type that the arithmetic is done in.
        source: the user's file and line.
        backward: whether it belongs to the backward pass.

    >>> OpCost("dot_general", "dot_general", 2e9, 4096, trips=12).total_flops
    24000000000.0
    """

    name: str
    opcode: str
    flops: float | None
    bytes: int
    trips: int | None = 1
    dtype: str = ""
    source: str = ""
    backward: bool = False

    @property
    def total_flops(self) -> float | None:
        """Over all executions; a loop of unknown length counts once."""
        return None if self.flops is None else self.flops * (self.trips or 1)

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product or a convolution, which nothing is fused through."""
        return self.opcode in _PRODUCTS


def op_costs(plan: Plan) -> tuple[OpCost, ...]:
    """The cost of every operation that computes something, in program order.

    Matrix products and convolutions count two operations for every product; everything else
    counts one for every number it makes.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(64, 32), dtype="float32", spec=Spec.of("data"))
    >>> w = PlannedOp("w", "argument", shape=(32, 16), dtype="float32")
    >>> rule = ShardingRule(
    ...     ((("i",), ("k",)), (("k",), ("j",))), ((("i",), ("j",)),),
    ...     {"i": 64, "j": 16, "k": 32}, ("k",))
    >>> dot = PlannedOp(
    ...     "dot_general", "op", "dot_general", shape=(64, 16), dtype="float32",
    ...     spec=Spec.of("data"), operands=("x", "w"),
    ...     factors=rule)
    >>> op_costs(Plan("f", make_mesh(data=4), (x, w, dot)))[0].flops
    16384.0
    """
    named = plan.by_name
    costs = []
    for op in plan.ops:
        if op.kind != "op" or op.opcode in _FREE or not op.covered:
            continue
        reads = [named[name] for name in op.operands if name in named]
        costs.append(
            OpCost(
                op.name,
                op.opcode,
                _flops(op, reads, plan.mesh),
                _bytes_of(op, named, plan.mesh),
                op.trips if op.trips is not None or "loop" in op.region else 1,
                reads[0].dtype if reads else op.dtype,
                op.source,
                op.backward,
            )
        )
    return tuple(costs)


def _bytes_of(op: PlannedOp, named: Mapping[str, PlannedOp], mesh: MeshSpec) -> int:
    """The bytes that an operation reads and writes on each device."""
    read = [named.get(name) for name in op.operands]
    size = [0 if value is None else _local_bytes(value, mesh) for value in read]
    if op.opcode in _READ_A_PART:
        return 2 * _local_bytes(op, mesh) + sum(size[1:])
    part = _WRITE_A_PART.get(op.opcode, len(size))
    if part < len(size):
        return size[part] + sum(size[1:])
    return sum(size) + _local_bytes(op, mesh)


def _local_bytes(op: PlannedOp, mesh: MeshSpec) -> int:
    if op.dtype not in DTYPE_BITS and not op.dtype.startswith("key<"):
        return 0  # tokens and the like take no memory
    return size_in_bytes(math.prod(local_shape(op.shape, op.spec, mesh)), op.dtype)


def _flops(op: PlannedOp, reads: list[PlannedOp], mesh: MeshSpec) -> float | None:
    made = float(math.prod(local_shape(op.shape, op.spec, mesh)))
    if op.opcode not in _PRODUCTS:
        return made
    rule = op.factors
    if rule is None or len(reads) < 2 or len(rule.operands) < 2:
        return None
    if op.opcode == "convolution":
        return 2 * made * _kernel(rule, reads[1])
    used = set(op.spec.axes)
    return 2 * made * math.prod(_summed(rule, reads, f, mesh, used) for f in rule.reduction)


def _summed(
    rule: ShardingRule, reads: list[PlannedOp], factor: str, mesh: MeshSpec, used: set[str]
) -> int:
    """How many products each device sums along a factor: fewer where both operands are split.

    An axis that splits the result cannot divide the work once more: where it splits the sum as
    well, each device makes a part of all of the result, or all of its part.
    """
    split: list[set[str]] = []
    for operand, read in zip(rule.operands[:2], reads, strict=False):
        dims = (*read.spec.dims, *((),) * len(operand))
        held = [axes for names, axes in zip(operand, dims, strict=False) if factor in names]
        split.append({a for axes in held for a in axes})
    both = set.intersection(*split) - used
    return -(-rule.sizes.get(factor, 1) // group_size(both, mesh))


def _kernel(rule: ShardingRule, kernel: PlannedOp) -> float:
    """Products for every number a convolution makes: the kernel without its output features."""
    data, weights = rule.operands[:2]
    in_data = {f for names in data for f in names}
    in_result = {f for t in rule.results for names in t for f in names}
    features = [f for names in weights for f in names if f in in_result and f not in in_data]
    return math.prod(kernel.shape) / max(1, math.prod(rule.sizes.get(f, 1) for f in features))


_ONCE = "The bodies of loops are counted once."


@dataclass(frozen=True)
class Bound:
    """The least time of one part of a program.

    Attributes:
        name: the part: `compute`, `memory`, `all-gather over model`, the name of an operation.
        part: `"compute"`, `"memory"`, `"collective"` or `"op"`.
        seconds: the least seconds, over all trips; None where a figure is not known.
        bound: what bounds it: `"FLOP/s"`, `"HBM"`, `"ICI"`, `"NVLink"`, `"network"`, `""`.
        amount: operations or bytes, once.
        trips: how often it runs; None where that is not known, and then it counts once.
        source: the user's file and line.
        note: why there is no time, or what else to know.

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
    note: str = ""


@dataclass(frozen=True, repr=False)
class Roofline(Displayed):
    """The least times of a program on some chips.

    Attributes:
        where: the topology or chip, as typed.
        chip: the chip whose figures were used.
        rows: compute, memory, then every collective, the longest first.
        ops: the operations of the plan, the longest first; empty where no plan was given.
        needed: bytes that each device needs; None where the compiler did not say.
        capacity: bytes that each device has; None where it is not published.
        notes: what was assumed, and what is not known.

    >>> from shardviz.core.hardware.chips import find_chip
    >>> rows = (Bound("compute", "compute", 2.0, "FLOP/s", 4e14),)
    >>> found = Roofline("tpu:v5e:4x4", find_chip("v5e"), rows, needed=20 << 30, capacity=16 << 30)
    >>> found.seconds, found.bound, found.fits, found.times_capacity
    (2.0, 'compute', False, 1.25)
    """

    where: str
    chip: Chip
    rows: tuple[Bound, ...] = ()
    ops: tuple[Bound, ...] = ()
    needed: int | None = None
    capacity: int | None = None
    notes: tuple[str, ...] = ()

    def _seconds(self, part: str) -> float | None:
        known = [r.seconds for r in self.rows if r.part == part and r.seconds is not None]
        return sum(known) if known else None

    @property
    def compute_s(self) -> float | None:
        """The least seconds of arithmetic."""
        return self._seconds("compute")

    @property
    def memory_s(self) -> float | None:
        """The least seconds of reading and writing memory."""
        return self._seconds("memory")

    @property
    def collective_s(self) -> float | None:
        """The least seconds of all collectives whose time is known, one after another."""
        return self._seconds("collective")

    @property
    def seconds(self) -> float | None:
        """The least seconds of the program, if arithmetic, memory and collectives overlap."""
        parts = [s for s in (self.compute_s, self.memory_s, self.collective_s) if s is not None]
        return max(parts) if parts else None

    @property
    def bound(self) -> str:
        """Which of `"compute"`, `"memory"` and `"collectives"` is the longest; `""` for none.

        And `""` where it is not known, since the bodies of loops are counted once.
        """
        if self.counts_loops_once:
            return ""
        named = {
            "compute": self.compute_s,
            "memory": self.memory_s,
            "collectives": self.collective_s,
        }
        known = {name: s for name, s in named.items() if s is not None}
        return max(known, key=known.__getitem__) if known else ""

    @property
    def counts_loops_once(self) -> bool:
        """Whether arithmetic and memory leave out all but one iteration of every loop."""
        return any(row.note == _ONCE for row in self.rows)

    @property
    def fits(self) -> bool | None:
        """Whether a device has the memory; None where that is not known."""
        share = self.times_capacity
        return None if share is None else share <= 1

    @property
    def times_capacity(self) -> float | None:
        """What each device needs, as a multiple of what it has."""
        return self.needed / self.capacity if self.needed is not None and self.capacity else None

    @property
    def words(self) -> str:
        """A summary in one or two sentences."""
        return _words(self)

    def __repr__(self) -> str:
        return f"Roofline({self.words})"


def _words(found: Roofline) -> str:
    from_parts = {
        "arithmetic": found.compute_s,
        "memory": found.memory_s,
        "collectives": found.collective_s,
    }
    said = [f"{name} {_time(s)}" for name, s in from_parts.items() if s is not None]
    words = f"At least {_time(found.seconds)} on {found.where}" if said else f"On {found.where}"
    words += f": {', '.join(said)}." if said else ": nothing is known of its cost."
    if found.counts_loops_once:
        words += (
            " Of arithmetic and memory one iteration of every loop is counted:"
            " sv.stages(program, target).roofline counts all."
        )
    if found.needed is not None and found.capacity is not None:
        share = found.times_capacity or 0.0
        have = f"{bytes_text(found.needed)} of {bytes_text(found.capacity)} on each device"
        words += f" It fits: {have}." if share <= 1 else f" Too large by {share:.1f} times: {have}."
    return words


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def roofline(
    report: Report,
    where: Topology | Chip | str,
    mesh: MeshSpec | None = None,
    plan: Plan | None = None,
) -> Roofline:
    """The least time of every part of a compiled program.

    Args:
        report: what a compile gave: collectives, cost, memory.
        where: the topology it is for, or its text; a Chip where the topology is not known.
        mesh: the mesh it was compiled for, with the real ids of its devices. Without one, or with
            a Chip only, collectives go at the rate of all links of a chip at once.
        plan: the propagated stage, for times of single operations.

    Raises:
        ProgramError: where `report` is no Report.
        TargetError: where the mesh does not fit the topology.

    >>> report = Report("f", "tpu:v5e:4x4", cost={"flops": 197e12, "bytes accessed": 819e6})
    >>> print(roofline(report, "tpu:v5e:4x4").words)
    At least 1 s on tpu:v5e:4x4: arithmetic 1 s, memory 1 ms.
    """
    if not isinstance(report, Report):
        raise ProgramError(f"A roofline is that of a Report; got {shown(report)}.")
    topology = Topology.parse(where) if isinstance(where, str) else where
    chip = topology if isinstance(topology, Chip) else topology.chip
    placed = topology if isinstance(topology, Topology) else None
    ops = op_costs(plan) if plan is not None else ()
    found = report.collectives if report.collectives is not None else report.partitioned
    rows = [*_totals(report, chip, ops)]
    moves = [_collective_bound(c, chip, placed, mesh) for c in found or ()]
    rows += sorted(moves, key=lambda row: -(row.seconds or 0.0))
    timed = sorted((_op_bound(op, chip) for op in ops), key=lambda row: -(row.seconds or 0.0))
    needed = needed_bytes(report.memory)
    capacity = report.memory.capacity or chip.device_bytes
    notes = _notes(report, chip, rows, placed is None or mesh is None, bool(ops))
    name = str(topology) if placed else chip.name
    return Roofline(name, chip, tuple(rows), tuple(timed), needed, capacity, notes)


def with_operations(report: Report | None, plan: Plan | None) -> Roofline | None:
    """The roofline of a report, with every operation of its program; None where it has none.

    Where the compiler counts no arithmetic, as for described GPUs, it is counted on the plan.

    Args:
        report: what a compile gave.
        plan: of the same program; None where there is none.

    >>> from shardviz.core.hardware.chips import find_chip
    >>> report = Report("f", "TPU", roofline=Roofline("tpu:v5e:4x4", find_chip("v5e")))
    >>> with_operations(report, None).ops
    ()
    """
    found = report.roofline if report is not None else None
    if report is None or found is None or plan is None or plan.error is not None:
        return found
    where = found.chip if found.where == found.chip.name else found.where
    return roofline(report, where, report.mesh, plan)


def collective_link_use(
    collective: Collective, mesh: MeshSpec, topology: Topology
) -> LinkUse | None:
    """The links that a collective of a program uses; None where its groups are not known.

    Args:
        collective: of a Report or a Plan.
        mesh: the mesh of the program, with the real ids of its devices.
        topology: the topology of these devices.

    Raises:
        TargetError: where the mesh does not fit the topology, or no route of its kind is known.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> gather = Collective("all-gather", ("x",), 1 << 20)
    >>> collective_link_use(gather, make_mesh(y=4, x=4), Topology.parse("tpu:v5e:4x4")).used
    12
    """
    if not collective.groups:
        known = all(axis in mesh.shape for axis in collective.mesh_axes)
        if not collective.mesh_axes or not known or collective.kind == "collective-permute":
            return None
    return _link_use(collective.kind, collective.groups, collective.mesh_axes, mesh, topology)


@lru_cache(maxsize=32)  # many collectives, and edits one after another, take the same route
def _link_use(
    kind: str,
    given: tuple[tuple[int, ...], ...],
    axes: tuple[str, ...],
    mesh: MeshSpec,
    topology: Topology,
) -> LinkUse:
    rows = device_rows(mesh, topology)
    groups: Iterable[Any] = given or groups_over(mesh, axes)
    return route(topology, [rows[np.asarray(g, np.int64)] for g in groups], kind)


def collective_name(collective: Collective) -> str:
    """What a collective is called in a table: `all-gather over data × model`."""
    return f"{collective.kind}{collective.over}"


def _collective_bound(
    collective: Collective,
    chip: Chip,
    topology: Topology | None,
    mesh: MeshSpec | None,
) -> Bound:
    size = collective.bytes_per_device
    row = Bound(
        collective_name(collective),
        "collective",
        None,
        "",
        size,
        collective.trips,
        collective.source,
    )
    if collective.kind == "ragged-all-to-all":
        return replace(row, note="What a ragged exchange sends is known only when it runs.")
    if topology is None or mesh is None:
        times = _without_topology(collective, chip)
    else:
        links = collective_link_use(collective, mesh, topology)
        if links is None:
            return replace(row, note="Its groups of devices are not known.")
        times = links.times(size)
    if None in times.values():
        return replace(row, note=f"The rate of these links is not published for {chip.title}.")
    name = max(times, key=lambda kind: times[kind] or 0.0, default="")
    return replace(row, bound=name, seconds=(times.get(name) or 0.0) * collective.execution_count)


def _without_topology(collective: Collective, chip: Chip) -> dict[str, float | None]:
    """Without a topology: all links of a chip at once, the most there can be."""
    sent = collective.sent_bytes
    name = "ICI" if chip.axes else "NVLink"
    if sent is None or chip.link_bandwidth is None:
        return {name: None}
    # A chip forwards nothing in an exchange that its links could not take in one hop.
    return {name: sent / (chip.link_bandwidth * max(1, chip.ici_links))}


def _totals(report: Report, chip: Chip, ops: tuple[OpCost, ...]) -> list[Bound]:
    rows = []
    flops = report.cost.get("flops")
    planned = sum(op.total_flops or 0.0 for op in ops)
    note = _ONCE if report.loops and not ops else ""
    if planned and (flops is None or planned > 1.5 * flops):
        flops, note = planned, "Counted on the plan, because XLA counts the body of a loop once."
    if flops is not None:
        rows.append(_rated("compute", flops, _share(chip.peak_bf16, chip), "FLOP/s", note))
    moved, note = _moved(report, ops)
    if moved is not None:
        rows.append(_rated("memory", moved, _share(chip.hbm_bandwidth, chip), "HBM", note))
    return rows


def _moved(report: Report, ops: tuple[OpCost, ...]) -> tuple[float | None, str]:
    """The least bytes that go to and from memory, and what was added to XLA's count.

    Of the plan only products count, since everything else may be fused with them.
    """
    products = [op for op in ops if op.is_product]
    moved = report.cost.get("bytes accessed")
    if moved is None:
        planned = sum(op.bytes * (op.trips or 1) for op in products)
        return planned or None, "What products read and write, counted on the plan."
    again = sum(op.bytes * ((op.trips or 1) - 1) for op in products) if report.loops else 0
    if report.loops and not ops:
        return moved, _ONCE
    words = "XLA counts the body of a loop once: products of further iterations are added."
    return moved + again, words if again else ""


def _rated(name: str, amount: float, rate: float | None, bound: str, note: str) -> Bound:
    if rate is None:
        return Bound(name, name, None, bound, amount, note="This rate is not published.")
    return Bound(name, name, amount / rate, bound, amount, note=note)


def _share(rate: float | None, chip: Chip) -> float | None:
    return None if rate is None else rate / chip.devices


def _op_bound(op: OpCost, chip: Chip) -> Bound:
    peak, memory = _share(chip.peak(op.dtype), chip), _share(chip.hbm_bandwidth, chip)
    times: dict[str, tuple[float, float]] = {}
    # Only matrices go at the peak; anything else is bounded by what it reads and writes.
    if op.flops is not None and op.is_product and peak:
        times["FLOP/s"] = op.flops / peak, op.flops
    if memory:
        times["HBM"] = op.bytes / memory, op.bytes
    bound = max(times, key=lambda name: times[name][0], default="")
    if not bound:
        return Bound(op.name, "op", None, "", op.bytes, op.trips, op.source)
    seconds, amount = times[bound]
    return Bound(op.name, "op", seconds * (op.trips or 1), bound, amount, op.trips, op.source)


def _notes(
    report: Report, chip: Chip, rows: list[Bound], anywhere: bool, planned: bool
) -> tuple[str, ...]:
    notes = [
        "Least times from published rates; latency and what the compiler cannot overlap come on"
        " top."
    ]
    moves = [r for r in rows if r.part == "collective"]
    if moves and anywhere:
        notes.append(
            "The coordinates of the devices are not known: collectives go at the rate of all links"
            " of a chip at once."
        )
    if not planned and report.loops:
        notes.append(
            "XLA's cost analysis counts the body of a loop once:"
            " sv.stages(program, target).roofline counts each time it runs."
        )
    unknown = sum(r.trips is None for r in moves)
    if unknown:
        notes.append(
            f"{plural(unknown, 'collective')} in loops of unknown length"
            f" {'counts' if unknown == 1 else 'count'} once."
        )
    lacking = Counter(r.note for r in rows if r.seconds is None and r.note)
    notes += [f"{plural(n, 'row')} without a time: {why}" for why, n in lacking.items()]
    return (*notes, *chip.notes)
