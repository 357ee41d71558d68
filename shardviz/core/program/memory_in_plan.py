"""with_plan(), with_layouts(): the buffers of a report, and how their values are split.

XLA partitions what was propagated, so a buffer is split as the value of its operation
and line, where the parts of that value have its shape.
"""

from __future__ import annotations

import re
from dataclasses import replace

from shardviz.core.program.memory import Buffer
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import PlannedOp, group_size, local_shape
from shardviz.core.program.report import Report

_DIMENSIONS = re.compile(r"\[([\d,]*)\]")
_SUMS = ("all-reduce", "reduce-scatter")


def with_plan(report: Report, plan: Plan) -> Report:
    """The report, where its buffers name the values of the plan and how they are split.

    What is left unknown: a buffer whose operation is no value of the plan, or is several
    that are split in several ways, and what the devices have yet to sum.
    """
    memory = report.memory
    if memory.peak is None or memory.timeline is None or not plan.ok:
        return report
    values = _Values(plan)
    buffers = tuple(map(values.named, memory.timeline.buffers))
    timeline = replace(memory.timeline, buffers=buffers)
    axes = tuple(a for a in plan.mesh.axis_names if group_size((a,), plan.mesh) > 1)
    peak = memory.peak
    peak = replace(peak, buffers=timeline.alive(peak.at), axes=axes)
    return report.replace(memory=memory.replace(peak=peak, timeline=timeline))


def with_layouts(report: Report) -> Report:
    """The report, where the buffers of arguments say how these are split.

    That needs no plan: the layouts of arguments are known from their compile.
    """
    memory = report.memory
    if memory.peak is None or memory.timeline is None:
        return report
    buffers: list[Buffer] = []
    for buffer in memory.timeline.buffers:
        layout = report.in_layouts.get(buffer.value)
        # A slice of an argument, or a copy of one, may be split otherwise.
        if layout is not None and _without_ones(_dims(buffer.shape)) == _without_ones(
            layout.shard_shape
        ):
            buffer = replace(buffer, spec=layout.spec)
        buffers.append(buffer)
    timeline = replace(memory.timeline, buffers=tuple(buffers))
    peak = replace(memory.peak, buffers=timeline.alive(memory.peak.at))
    return report.replace(memory=memory.replace(peak=peak, timeline=timeline))


class _Values:
    """The values of a plan by operation and line, and what stands next to each."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.by_place: dict[tuple[str, str], list[PlannedOp]] = {}
        self.users: dict[str, list[PlannedOp]] = {}
        for op in plan.ops:
            if op.kind == "op":
                self.by_place.setdefault((op.op, op.source), []).append(op)
            for operand in op.operands:
                self.users.setdefault(operand, []).append(op)
        # What a product makes there is a part of a sum, until the collective is done.
        self.summed = {c.value for c in plan.collectives if c.kind in _SUMS}

    def named(self, buffer: Buffer) -> Buffer:
        """A buffer with its value; as it is where that is not known."""
        values = self.by_place.get((buffer.op, buffer.source), [])
        if buffer.value in self.plan.by_name:
            values = [self.plan.by_name[buffer.value]]
        # Of several on one line it must not matter which one it is.
        holds = all(self._holds(buffer, value) for value in values)
        if len({value.spec for value in values}) != 1 or not holds:
            return buffer
        if buffer.kind == "collectives" and not buffer.name.startswith(_SUMS):
            return buffer  # it is split otherwise than its value, which it is made for
        value, name = values[0], buffer.value
        if len(values) == 1:
            name = value.name
        partial = not self.summed.isdisjoint(other.name for other in values)
        if partial and buffer.kind == "temporaries":
            return replace(buffer, value=name)
        split = self._split_bytes(buffer, value)
        return replace(buffer, value=name, spec=value.spec, split_bytes=split)

    def _holds(self, buffer: Buffer, op: PlannedOp) -> bool:
        """Whether a device's part of a value has the shape of a buffer."""
        dims = _dims(buffer.shape)
        # A loop stacks what each iteration leaves.
        if buffer.count and dims[:1] == (buffer.count,) and len(dims) > len(op.shape):
            dims = dims[1:]
        part = op.shape if op.manual else local_shape(op.shape, op.spec, self.plan.mesh)
        return _without_ones(dims) == _without_ones(part)

    def _split_bytes(self, buffer: Buffer, op: PlannedOp) -> int | None:
        """Its bytes if it were also split over the axes that split its neighbours."""
        own = {axis for dim in op.spec.dims for axis in dim}
        axes: dict[str, None] = {}
        neighbours = [self.plan.by_name.get(name) for name in op.operands]
        neighbours += self.users.get(op.name, [])
        if not neighbours:
            return None
        for other in neighbours:
            if other is not None:
                axes.update(dict.fromkeys(a for dim in other.spec.dims for a in dim))
        size = group_size([axis for axis in axes if axis not in own], self.plan.mesh)
        if size == 1:
            return buffer.bytes
        # One dimension takes all of them, as the neighbour's does.
        if any(length % size == 0 for length in _dims(buffer.shape)):
            return buffer.bytes // size
        return None


def _dims(shape: str) -> tuple[int, ...]:
    found = _DIMENSIONS.search(shape)
    if found is None or not found[1]:
        return ()
    return tuple(map(int, found[1].split(",")))


def _without_ones(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in dims if length != 1)
