"""with_values(): a report whose buffers say how the values in them are split.

XLA partitions what was propagated, so a buffer is split as the value of its operation
and line, where the shards of that value have its shape.
"""

from __future__ import annotations

import re
from dataclasses import replace

from shardviz.core.program.memory import Buffer
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import (
    PlannedOp,
    dims_over,
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
        self.neighbours: dict[str, list[PlannedOp]] = {}
        for op in plan.ops:
            if op.kind == "op":
                self.by_place.setdefault((op.op, op.source), []).append(op)
            for operand in map(plan.by_name.get, op.operands):
                if operand is not None:
                    self.neighbours.setdefault(operand.name, []).append(op)
                    self.neighbours.setdefault(op.name, []).append(operand)
        # What a product makes there is a part of a sum, until the collective is done.
        self.summed = {c.value for c in plan.collectives if c.kind in _SUMS}

    def named(self, buffer: Buffer) -> Buffer:
        """A buffer with its value; as it is where that is not known."""
        values = self.by_place.get((buffer.op, buffer.source), [])
        if buffer.value in self.plan.by_name:
            values = [self.plan.by_name[buffer.value]]
        if not values:
            return buffer
        spec, is_sum = values[0].spec, False
        # Of several on one line it must not matter which one it is.
        for value in values:
            shard = value.shape
            if not value.manual:
                shard = local_shape(shard, value.spec, self.mesh)
            if value.spec != spec or not _has_shape(buffer, shard):
                return buffer
            is_sum |= value.name in self.summed
        if buffer.kind == "collectives" and not buffer.name.startswith(_SUMS):
            return buffer  # it is split otherwise than its value, which it is made for
        if len(values) == 1:
            buffer = replace(buffer, value=values[0].name)
        if is_sum and buffer.kind == "temporaries":
            return buffer
        replicated = []
        for axis, size in self.mesh.shape.items():
            if size > 1 and not spec.unreduced and not dims_over(spec, [axis]):
                replicated.append(axis)
        split = self._split_bytes(buffer, values[0])
        known = {"spec": spec, "replicated": tuple(replicated), "split_bytes": split}
        return replace(buffer, **known)

    def _split_bytes(self, buffer: Buffer, op: PlannedOp) -> int | None:
        """Its bytes if it were also split over the axes that split its neighbours."""
        if op.name not in self.neighbours:
            return None
        axes: set[str] = set()
        for other in self.neighbours[op.name]:
            for axis in other.spec.axes:
                if not dims_over(op.spec, [parent_axis(axis)]):
                    axes.add(axis)
        parts = group_size(axes, self.mesh)
        # One dimension takes all of them, as the neighbour's does.
        if parts == 1 or any(length % parts == 0 for length in _dims(buffer)):
            return buffer.bytes // parts
        return None


def _has_shape(buffer: Buffer, shard: tuple[int, ...]) -> bool:
    """Whether a shard has the shape of a buffer; dimensions of 1 do not count."""
    found, wanted = _dims(buffer), [length for length in shard if length != 1]
    # A loop stacks what each iteration leaves.
    if len(found) > len(wanted) and found[0] == buffer.count:
        del found[0]
    return found == wanted


def _dims(buffer: Buffer) -> list[int]:
    """The dimensions of a buffer that are not 1."""
    found = re.findall(r"\d+", buffer.shape.partition("[")[2])
    return [int(length) for length in found if length != "1"]
