"""with_values(): a report whose buffers say how the values in them are split.

XLA partitions what was propagated, so a buffer is split as the value of its operation
and line, where the shards of that value have its shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from shardviz.core.program.memory import Buffer
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import (
    PlannedOp,
    group_size,
    local_shape,
    parent_axis,
)
from shardviz.core.program.report import Report

_SUMS = ("all-reduce", "reduce-scatter")


def with_values(report: Report, plan: Plan | None = None) -> Report:
    """The report, where its buffers name values and say how these are split.

    What is left unknown: a buffer whose operation is no value of the plan, or is several
    that are split in several ways, and what the devices have yet to sum.

    Args:
        report: of a compile.
        plan: of the same program; without one only arguments are known.
    """
    timeline = report.memory.timeline
    if timeline is None:
        return report
    values = _Values(plan) if plan is not None and plan.ok else None
    buffers: list[Buffer] = []
    for buffer in timeline.buffers:
        layout = report.in_layouts.get(buffer.value)
        if values is not None:
            buffer = values.named(buffer)
        # A slice of an argument, or a copy of one, may be split otherwise.
        elif layout is not None and _has_shape(buffer, layout.shard_shape):
            buffer = replace(buffer, spec=layout.spec)
        buffers.append(buffer)
    timeline = replace(timeline, buffers=tuple(buffers))
    return report.replace(memory=report.memory.replace(timeline=timeline))


class _Values:
    """The values of a plan by operation and line, and what is next to each."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.mesh = plan, plan.mesh
        self.by_place: dict[tuple[str, str], list[PlannedOp]] = {}
        self.next_to: dict[str, list[PlannedOp]] = {}
        for op in plan.ops:
            if op.kind == "op":
                self.by_place.setdefault((op.op, op.source), []).append(op)
            for operand in map(plan.by_name.get, op.operands):
                if operand is not None:
                    self.next_to.setdefault(operand.name, []).append(op)
                    self.next_to.setdefault(op.name, []).append(operand)
        # What a product makes there is a part of a sum, until the collective is done.
        self.summed = {c.value for c in plan.collectives if c.kind in _SUMS}

    def named(self, buffer: Buffer) -> Buffer:
        """A buffer with its value; as it is where that is not known."""
        values = self.by_place.get((buffer.op, buffer.source), [])
        if buffer.value in self.plan.by_name:
            values = [self.plan.by_name[buffer.value]]
        is_sum = buffer.kind == "collectives"
        # A collective that moves is split otherwise than the value it is made for.
        if not values or (is_sum and not buffer.name.startswith(_SUMS)):
            return buffer
        # Of several on one line it must not matter which one it is.
        for value in values:
            shard = value.shape
            if not value.manual:
                shard = local_shape(shard, value.spec, self.mesh)
            if value.spec != values[0].spec or not _has_shape(buffer, shard):
                return buffer
        if len(values) == 1:
            buffer = replace(buffer, value=values[0].name)
        if buffer.kind == "temporaries":
            for value in values:
                if value.name in self.summed:
                    return buffer
        return self._split(buffer, values[0])

    def _split(self, buffer: Buffer, value: PlannedOp) -> Buffer:
        """A buffer with the spec of its value, and what its neighbours' would make of
        it."""
        # A dimension may be split over a part of an axis, which is then in use.
        used = set(map(parent_axis, value.spec.axes))
        replicated, more = [], set()
        for axis, size in self.mesh.shape.items():
            if size > 1 and axis not in used | value.spec.unreduced:
                replicated.append(axis)
        neighbours = self.next_to.get(value.name, [])
        for other in neighbours:
            for axis in other.spec.axes:
                if parent_axis(axis) not in used:
                    more.add(axis)
        parts, size = group_size(more, self.mesh), None
        # One dimension takes all of them, as the neighbour's does.
        fits = parts == 1 or any(length % parts == 0 for length in _dims(buffer))
        if neighbours and fits:
            size = buffer.bytes // parts
        known = {"replicated": tuple(replicated), "split_bytes": size}
        return replace(buffer, spec=value.spec, **known)


def _has_shape(buffer: Buffer, shard: tuple[int, ...]) -> bool:
    """Whether a shard has the shape of a buffer; dimensions of 1 do not count."""
    found, wanted = _dims(buffer), _without_ones(shard)
    # A loop stacks what each iteration leaves.
    if len(found) > len(wanted) and found[0] == buffer.count:
        del found[0]
    return found == wanted


def _dims(buffer: Buffer) -> list[int]:
    # What is in front of the bracket is the type, which may have a number, too.
    return _without_ones(map(int, re.findall(r"\d+", buffer.shape.partition("[")[2])))


def _without_ones(lengths: Iterable[int]) -> list[int]:
    return [length for length in lengths if length != 1]
