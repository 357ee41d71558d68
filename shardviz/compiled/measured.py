"""measured(): joins the events of a profile with the program that ran.

An event belongs to the HLO instruction with its name. The time of an instruction is the
length of the union of its intervals on one device: an instruction in a loop runs many
times, and a collective that starts and ends in two instructions lasts from the start of
the first to the end of the second.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from shardviz.base.collective import Collective
from shardviz.base.display import Displayed, Fact
from shardviz.compiled.module import Instruction, Module
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.profile import ProfiledEvent
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import (
    Roofline,
    arithmetic_seconds,
    collective_bounds,
    with_operations,
)
from shardviz.plans.plan import Plan

# Instructions that run other instructions, which have events of their own.
_CONTAINERS = ("while", "conditional", "call")
# Instructions that may be a matrix product; other work is fused with their neighbours.
_PRODUCTS = ("dot", "convolution", "custom-call")
_PER_SECOND = 1e12

_Intervals: TypeAlias = list[tuple[int, int]]
_Operation: TypeAlias = tuple[str, str]
"""JAX's name of an operation, and the user's line."""


@dataclass(frozen=True)
class MeasuredRow(Fact):
    """The measured time of one collective, or of one operation of the program.

    Attributes:
        name: a collective's kind and axes, or the name of an operation.
        part: `"collective"` or `"op"`.
        seconds: seconds per call for all iterations of loops, the median over devices.
        fastest, slowest: these seconds on the fastest and on the slowest device.
        runs: executions per call on each device.
        at: seconds from the call's first operation to the first execution.
        hidden: the share of a collective's time during which other operations ran on
            the same device; None for an operation.
        least: the least time per call, in seconds; None if unknown.
        collective: index in `Report.collectives`; -1 for an operation.
        instructions: the names of the HLO instructions.
        ops: JAX's name and the user's line of the operation; for a fusion with several
            matrix products, of each of them.
        source: the user's file and line.

    >>> row = MeasuredRow("dot_general", "op", 2e-3, 1e-3, 3e-3, 1.0, least=5e-4)
    >>> row.difference
    0.0015
    """

    name: str
    part: str
    seconds: float = 0.0
    fastest: float = 0.0
    slowest: float = 0.0
    runs: float = 0.0
    at: float = 0.0
    hidden: float | None = None
    least: float | None = None
    collective: int = -1
    instructions: tuple[str, ...] = ()
    ops: tuple[tuple[str, str], ...] = ()
    source: str = ""

    @property
    def difference(self) -> float | None:
        """Measured minus least seconds; None if the least time is unknown."""
        return None if self.least is None else self.seconds - self.least

    @property
    def exposed(self) -> float | None:
        """Seconds of a collective in which nothing else ran; None for an operation."""
        return None if self.hidden is None else self.seconds * (1 - self.hidden)


@dataclass(frozen=True, repr=False)
class Measured(Displayed, Fact):
    """What a profile of several calls shows.

    Attributes:
        rows: collectives and operations, longest first.
        calls: the number of calls in the profile.
        busy_seconds: id of each device -> seconds per call in which it ran anything.
        exposed_seconds: id of each device -> seconds per call in which it ran only
            collectives.
        joined_share: the share of all busy time that belongs to instructions of the
            program; 1.0 if every event has the name of an instruction.

    >>> from shardviz.types import Measured
    >>> Measured((), 3, {0: 2e-3, 1: 4e-3}, {0: 0.0, 1: 1e-3}, 1.0).seconds
    0.003
    """

    rows: tuple[MeasuredRow, ...]
    calls: int
    busy_seconds: Mapping[int, float]
    exposed_seconds: Mapping[int, float]
    joined_share: float

    @property
    def seconds(self) -> float:
        """Busy seconds per call, the median over devices."""
        return statistics.median(self.busy_seconds.values())

    @property
    def differences(self) -> tuple[MeasuredRow, ...]:
        """The rows, sorted by their difference from the least time, largest first.

        Rows without a least time come last, longest first.
        """
        return tuple(sorted(self.rows, key=_by_difference))

    def __repr__(self) -> str:
        return f"Measured({self})"


def _by_difference(row: MeasuredRow) -> tuple[bool, float]:
    return row.difference is None, -(row.difference or 0.0)


@dataclass(frozen=True)
class NotMeasured(Fact):
    """Why a run has no measured times.

    Attributes:
        code: a key of `NOT_MEASURED` in `words/measured.py`.
    """

    code: str


def measured(
    events: Iterable[ProfiledEvent],
    module: Module,
    collectives: Sequence[Collective],
    devices: Mapping[int, int],
    calls: int,
) -> Measured | NotMeasured:
    """Joins the events of a profile with the instructions of a module.

    Args:
        events: the events of this module.
        module: the final module.
        collectives: the collectives of this module.
        devices: number of a device in its process -> its id in the program's mesh.
        calls: the number of calls in the profile.
    """
    names = _Names(module, collectives)
    by_row: dict[MeasuredRow, dict[int, dict[str, _Intervals]]] = {}
    unjoined: dict[int, _Intervals] = {}
    begun: dict[int, int] = {}
    events = [event for event in events if event.device in devices]
    running = {event.instruction for event in events}
    for event in events:
        device, interval = devices[event.device], (event.start, event.end)
        instruction = names.instructions.get(event.instruction)
        if instruction is None:
            unjoined.setdefault(device, []).append(interval)
        elif not _contains(instruction, running):
            row = by_row.setdefault(names.key(instruction), {})
            row.setdefault(device, {}).setdefault(instruction.name, []).append(interval)
        begun[device] = min(begun.get(device, event.start), event.start)
    if not by_row:
        return NotMeasured("no events")
    unions: dict[MeasuredRow, dict[int, _Intervals]] = {}
    work: dict[int, _Intervals] = {
        device: [*times] for device, times in unjoined.items()
    }
    for key, on_devices in by_row.items():
        for device, times in on_devices.items():
            union = _union(names.executions(times))
            unions.setdefault(key, {})[device] = union
            if key.part == "op":
                work.setdefault(device, []).extend(union)
    work = {device: _union(intervals) for device, intervals in work.items()}
    rows: list[MeasuredRow] = []
    for key, union in unions.items():
        count = 0
        for times in by_row[key].values():
            count += max(map(len, times.values()))
        row = _timed(key, union, work, begun, calls)
        runs = count / calls / len(by_row[key])
        instructions = sorted(
            {name for times in by_row[key].values() for name in times}
        )
        rows.append(replace(row, runs=runs, instructions=tuple(instructions)))
    busy, exposed, total, joined = {}, {}, 0, 0
    for device in sorted(begun):
        of_rows = _union(i for union in unions.values() for i in union.get(device, ()))
        everything = _union([*of_rows, *unjoined.get(device, ())])
        total, joined = total + _length(everything), joined + _length(of_rows)
        busy[device] = _length(everything) / calls / _PER_SECOND
        only = _length(everything) - _length(work.get(device, []))
        exposed[device] = only / calls / _PER_SECOND
    rows.sort(key=lambda row: -row.seconds)
    return Measured(tuple(rows), calls, busy, exposed, joined / max(total, 1))


class _Names:
    """The instructions of a module by name, and the row of each."""

    def __init__(self, module: Module, collectives: Sequence[Collective]) -> None:
        self.instructions: dict[str, Instruction] = {}
        for computation in module.computations:
            for instruction in computation.instructions:
                self.instructions[instruction.name] = instruction
        self._collectives: dict[str, MeasuredRow] = {}
        # The end of an asynchronous operation -> its start.
        self._start_of: dict[str, str] = {}
        for instruction in self.instructions.values():
            opcode = instruction.opcode
            if opcode.endswith("-done") and instruction.operands:
                self._start_of[instruction.name] = instruction.operands[0].name
        for number, collective in enumerate(collectives):
            name, source = collective.name_with_axes, collective.source
            key = MeasuredRow(name, "collective", collective=number, source=source)
            if collective.name in self.instructions:
                for instruction in _with_containers(self.instructions[collective.name]):
                    self._collectives[instruction.name] = key

    def key(self, instruction: Instruction) -> MeasuredRow:
        """Returns the row that an instruction belongs to, without its times."""
        name = self._start_of.get(instruction.name, instruction.name)
        if name in self._collectives:
            return self._collectives[name]
        source = instruction.source.source
        if instruction.kind:
            return MeasuredRow(instruction.kind, "collective", source=source)
        ops: dict[_Operation, None] = {}
        for inner in _inside(instruction):
            if inner.opcode in _PRODUCTS and inner.op:
                ops[inner.op, inner.source.source] = None
        if not ops and instruction.op:
            ops[instruction.op, source] = None
        # Copies that the compiler adds belong to no operation of the program.
        names = dict.fromkeys(op.rpartition("/")[2] for op, _ in ops)
        name = ", ".join(names) or instruction.opcode
        source = next((source for _, source in ops), "")
        return MeasuredRow(name, "op", ops=tuple(ops), source=source)

    def executions(self, times: Mapping[str, _Intervals]) -> Iterator[tuple[int, int]]:
        """Yields the intervals of a row's executions on one device.

        An asynchronous execution lasts from the start of its first instruction to the
        end of its last one.
        """
        for name, intervals in times.items():
            start = self._start_of.get(name)
            starts = sorted(times.get(start, ())) if start else []
            if len(starts) == len(intervals):
                for first, last in zip(starts, sorted(intervals), strict=True):
                    yield first[0], max(first[1], last[1])
            else:
                yield from intervals


def _with_containers(instruction: Instruction) -> Iterator[Instruction]:
    """Yields an instruction, and the fusion or start that contains it."""
    yield instruction
    for caller in instruction.computation.callers:
        if caller.opcode == "fusion" or caller.opcode.endswith("-start"):
            yield from _with_containers(caller)


def _inside(instruction: Instruction) -> Iterator[Instruction]:
    """Yields an instruction; for a fusion, also the instructions inside it."""
    yield instruction
    if instruction.opcode in ("fusion", "call"):
        for computation in instruction.called:
            for inner in computation.instructions:
                yield from _inside(inner)


def _contains(instruction: Instruction, running: set[str]) -> bool:
    """Whether instructions that an instruction calls have events of their own."""
    if instruction.opcode not in _CONTAINERS:
        return False
    for computation in instruction.called:
        for inner in computation.instructions:
            if inner.name in running or _contains(inner, running):
                return True
    return False


def _timed(
    row: MeasuredRow,
    union: Mapping[int, _Intervals],
    work: Mapping[int, _Intervals],
    begun: Mapping[int, int],
    calls: int,
) -> MeasuredRow:
    """Returns a row with its times, from its intervals on each device."""
    seconds, hidden, at = [], [], []
    # A device that runs nothing of this row took no time.
    for device, start in begun.items():
        intervals = union.get(device, [])
        length = _length(intervals)
        seconds.append(length / calls / _PER_SECOND)
        if length:
            at.append((intervals[0][0] - start) / _PER_SECOND)
            hidden.append(_overlap(intervals, work.get(device, [])) / length)
    return replace(
        row,
        seconds=statistics.median(seconds),
        fastest=min(seconds),
        slowest=max(seconds),
        at=min(at, default=0.0),
        hidden=statistics.median(hidden or [0.0]) if row.part != "op" else None,
    )


def _union(intervals: Iterable[tuple[int, int]]) -> _Intervals:
    """Returns disjoint intervals in order, which cover the same time.

    >>> _union([(4, 6), (0, 2), (1, 3)])
    [(0, 3), (4, 6)]
    """
    union: _Intervals = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((start, end))
    return union


def _length(union: _Intervals) -> int:
    return sum(end - start for start, end in union)


def _overlap(first: _Intervals, second: _Intervals) -> int:
    """Returns the time that two unions have in common.

    >>> _overlap([(0, 3), (4, 6)], [(2, 5)])
    2
    """
    total = at = 0
    for start, end in first:
        while at < len(second) and second[at][1] <= start:
            at += 1
        for other_start, other_end in second[at:]:
            if other_start >= end:
                break
            total += min(end, other_end) - max(start, other_start)
    return total


def with_least_times(report: Report, plan: Plan | None) -> Report:
    """Adds the least times of the plan's operations to a report, also to measured ones."""
    least, result = with_operations(report, plan), report.measured
    if result is not None and least is not None:
        result = _with_least(result, least, report.collectives or (), plan)
    return report.replace(roofline=least, measured=result)


def _with_least(
    result: Measured,
    least: Roofline,
    collectives: Sequence[Collective],
    plan: Plan | None,
) -> Measured:
    """Adds least times to collectives and matrix products.

    Other operations have no least time: fused with a neighbour, they may take no time.
    """
    bounds = collective_bounds(collectives, least.chip, None, None)
    products: dict[_Operation, float | None] = {}
    if plan is not None and plan.error is None:
        for cost in op_costs(plan):
            if cost.is_product:
                op = plan.by_name[cost.name].op, cost.source
                seconds = arithmetic_seconds(cost, least.chip)
                before = products.get(op, 0.0)
                if seconds is None or before is None:
                    products[op] = None
                else:
                    products[op] = before + seconds
    rows_of: dict[_Operation, int] = {}
    for row in result.rows:
        for op in row.ops:
            rows_of[op] = rows_of.get(op, 0) + 1
    rows: list[MeasuredRow] = []
    for row in result.rows:
        seconds: float | None = None
        if row.collective in bounds:
            seconds = bounds[row.collective].seconds
        # The work of an operation in several rows can't be divided among them.
        elif row.ops and all(rows_of[op] == 1 for op in row.ops):
            times = [products.get(op) for op in row.ops]
            if None not in times:
                seconds = sum(time for time in times if time is not None)
        rows.append(replace(row, least=seconds))
    return replace(result, rows=tuple(rows))
