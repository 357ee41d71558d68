"""with_values(): names the plan's value in each buffer, and its sharding.

A buffer is matched by the operation and line in its XLA metadata. If several values
share the operation and line, we keep the values whose shards have the buffer's shape,
and then the values that depend on the same arguments and are used for the same results.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from shardviz.base.axis_parts import group_size, local_shape, parent_axis
from shardviz.base.format import fold
from shardviz.base.partition_spec import Spec
from shardviz.compiled.memory import Buffer
from shardviz.compiled.report import Report
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp

# Operations whose shards may all be equal although the result is split.
_SAME_SHARDS = ("broadcast_in_dim", "constant")
# Operations that change only a value's shape or dtype.
_RENAMES = ("reshape", "broadcast_in_dim", "convert", "transpose")


def with_values(report: Report, plan: Plan | None = None) -> Report:
    """Returns a report whose buffers have value names and specs, if known.

    Args:
        report: the report of a compile.
        plan: the same program's plan; without one, only arguments are named.
    """
    if not report.has("memory") or report.memory.timeline is None:
        return report
    timeline = report.memory.timeline
    if plan is not None and plan.ok:
        buffers = name_buffers(timeline.buffers, plan, timeline.arguments)
    else:
        buffers = []
        for buffer in timeline.buffers:
            layout = report.in_layouts.get(buffer.value)
            # If shapes differ, the buffer may hold a slice with another sharding.
            if layout is not None and _dims(buffer) == _without_ones(
                layout.shard_shape
            ):
                buffer = replace(buffer, spec=layout.spec)
            buffers.append(buffer)
    timeline = replace(timeline, buffers=tuple(buffers))
    return report.replace(memory=report.memory.replace(timeline=timeline))


def name_buffers(
    buffers: Iterable[Buffer], plan: Plan, arguments: Sequence[str] = ()
) -> list[Buffer]:
    """Returns buffers with the names and specs of the plan's values, if known.

    A buffer is returned unchanged if its operation is not in the plan, or if it may
    hold one of several values with different specs.

    Args:
        buffers: the buffers. Only their shape, operation and line are needed; the other
            fields distinguish values that share these.
        plan: the same program's plan.
        arguments: argument names in the bit order of `Buffer.reads`.
    """
    values = _Values(plan, arguments)
    return [values.named(buffer) for buffer in buffers]


class _Match:
    """A plan value that a buffer may hold, with the value's spec in that buffer."""

    def __init__(self, name: str, value: PlannedOp, spec: Spec) -> None:
        # `value` is the array that fills the buffer. If a loop stacks another value in
        # that array, `name` is the stacked value's name.
        self.name, self.value, self.spec = name, value, spec


class _Values:
    """A plan's values by operation and line, and each value's neighbours."""

    def __init__(self, plan: Plan, arguments: Sequence[str]) -> None:
        self.plan, self.mesh = plan, plan.mesh
        self.flow = _PlanFlow(plan, arguments)
        self.by_place: dict[tuple[str, str], list[PlannedOp]] = defaultdict(list)
        self.by_op: dict[str, list[PlannedOp]] = defaultdict(list)
        self.next_to: dict[str, list[PlannedOp]] = defaultdict(list)
        # Name of a value -> the arrays in which loops stack this value or a reshape of
        # it, each with the stacked value's name.
        self.stacks: dict[str, list[tuple[str, PlannedOp]]] = defaultdict(list)
        self.results: list[PlannedOp] = []
        for op in plan.ops:
            if op.kind == "op":
                self.by_place[op.op, op.source].append(op)
                self.by_op[op.op].append(op)
            elif op.kind == "result":
                self.results.append(op)
            for operand in map(plan.by_name.get, op.operands):
                if operand is not None:
                    self.next_to[operand.name].append(op)
                    self.next_to[op.name].append(operand)
            if op.opcode == "dynamic_update_slice":
                self._add_stack(op)
        # A product over split dimensions is a partial sum until its collective runs.
        self.summed: dict[str, set[str]] = {}
        for collective in plan.collectives:
            if collective.definition.sums:
                axes = self.summed.setdefault(collective.value, set())
                axes.update(collective.mesh_axes)

    def _add_stack(self, update: PlannedOp) -> None:
        """Records which value an update writes into which array."""
        name, stacked = update.operands[1], ""
        slice_ = self.plan.by_name.get(name)
        # Only updates of one row stack values. Other arrays, such as caches, keep their
        # own name.
        if slice_ is not None and slice_.shape != (1, *update.shape[1:]):
            stacked = update.name
        while (slice_ := self.plan.by_name.get(name)) is not None:
            if slice_.opcode not in ("reshape", "broadcast_in_dim"):
                stacked = stacked or name
            self.stacks[name].append((stacked, update))
            if slice_.kind != "op" or slice_.opcode not in _RENAMES:
                break
            name = slice_.operands[0] if slice_.operands else ""

    def named(self, buffer: Buffer) -> Buffer:
        """Returns a buffer with its value and spec; unchanged if these are unknown."""
        matches = self._matches(buffer)
        if not matches:
            return buffer
        spec = matches[0].spec
        if any(match.spec != spec for match in matches):
            return buffer
        names = tuple(dict.fromkeys(match.name for match in matches))
        folds = fold(names, str)
        value = ", ".join(names.name for names in folds)
        group = names if len(names) > 1 else ()
        return self._split(replace(buffer, value=value, group=group), matches[0])

    def _matches(self, buffer: Buffer) -> list[_Match]:
        """Returns the values that a buffer may hold, as few as possible."""
        if buffer.value in self.plan.by_name:
            return self._fitting(buffer, [self.plan.by_name[buffer.value]])
        if buffer.result is not None and buffer.result < len(self.results):
            result = self.results[buffer.result]
            if matches := self._fitting(buffer, [result]):
                return matches
        for place in buffer.places or ((buffer.op, buffer.source),):
            values = self.by_place.get(place, [])
            if place[0] in self.plan.by_name:
                values = [self.plan.by_name[place[0]]]
            elif not place[1]:
                values = self.by_op.get(place[0], [])
            if matches := self._fitting(buffer, values):
                return self._told_apart(buffer, matches)
        return []

    def _fitting(self, buffer: Buffer, values: list[PlannedOp]) -> list[_Match]:
        """Returns the values whose shards fill a buffer, preferably without reordering
        dimensions.
        """
        candidates: list[_Match] = []
        for value in values:
            if buffer.stacked:
                for name, stack in self.stacks.get(value.name, []):
                    candidates.append(_Match(name or value.name, stack, stack.spec))
            candidates.append(_Match(value.name, value, value.spec))
        dims = _dims(buffer)
        for fits in _FITS:
            unlike = fits is not _in_order
            for after in (self._as_planned, self._gathered):
                matches: list[_Match] = []
                for candidate in candidates:
                    match = after(candidate, buffer)
                    if unlike and _may_be_resplit(buffer, candidate.value):
                        continue
                    if match is not None and fits(self._shard(match), dims):
                        matches.append(match)
                if matches:
                    return matches
        return []

    def _as_planned(self, match: _Match, buffer: Buffer) -> _Match | None:
        """Keeps a match unless devices hold equal bytes along one of its axes."""
        value = match.value
        if buffer.differs is None or value.opcode in _SAME_SHARDS:
            return match
        sizes = self.mesh.shape
        for axis in map(parent_axis, match.spec.axes):
            if sizes[axis] > 1 and axis not in buffer.differs:
                return None
        return match

    def _gathered(self, match: _Match, buffer: Buffer) -> _Match | None:
        """Returns a match without the axes along which devices hold equal bytes."""
        if buffer.differs is None or match.value.manual:
            return None
        dims: list[tuple[str, ...]] = []
        for axes in match.spec.dims:
            dims.append(tuple(a for a in axes if parent_axis(a) in buffer.differs))
        return _Match(match.name, match.value, Spec.trusted(tuple(dims)))

    def _shard(self, match: _Match) -> list[int]:
        # In a shard_map over only some mesh axes, the other axes may split a block.
        return _without_ones(local_shape(match.value.shape, match.spec, self.mesh))

    def _told_apart(self, buffer: Buffer, matches: list[_Match]) -> list[_Match]:
        """Prefers matches with the buffer's dtype, devices, arguments and results."""
        tests = (
            _same_type, _is_main, _same_devices, self._same_reads, self._same_leads
        )  # fmt: skip
        for agrees in tests:
            if len(matches) > 1:
                matches = [m for m in matches if agrees(buffer, m)] or matches
        return matches

    def _same_reads(self, buffer: Buffer, match: _Match) -> bool:
        return self.flow.reads.get(match.value.name) == buffer.reads

    def _same_leads(self, buffer: Buffer, match: _Match) -> bool:
        return self.flow.leads.get(match.value.name) == buffer.leads

    def _is_partial_sum(self, buffer: Buffer, value: PlannedOp, axes: set[str]) -> bool:
        is_collective = buffer.kind == "collectives"
        return not is_collective and axes <= self.summed.get(value.name, set())

    def _split(self, buffer: Buffer, match: _Match) -> Buffer:
        """Sets a buffer's spec, and the size it would have if split like its neighbours."""
        value, spec = match.value, match.spec
        # An axis counts as used even if only part of it splits a dimension.
        used = set(map(parent_axis, spec.axes))
        is_sum = value.factors is not None and bool(value.factors.reduction)
        if buffer.differs is None:
            if buffer.kind == "temporaries" and value.name in self.summed:
                return buffer
        elif is_sum and not value.manual and buffer.result is None:
            beyond = _beyond(buffer, spec)
            # A product over split dimensions is a partial sum until its collective
            # runs.
            if beyond and not self._is_partial_sum(buffer, value, beyond):
                return buffer
            spec = replace(spec, unreduced=frozenset(beyond))
        neighbours = self.next_to.get(value.name, [])
        extra_axes: set[str] = set()
        for neighbour in neighbours:
            for axis in neighbour.spec.axes:
                if parent_axis(axis) not in used:
                    extra_axes.add(axis)
        parts, size = group_size(extra_axes, self.mesh), None
        # A single dimension must be divisible by the product of all extra axes.
        fits = parts == 1 or any(length % parts == 0 for length in _dims(buffer))
        # A value inside a shard_map is already one device's block.
        if neighbours and fits and not value.manual:
            size = buffer.bytes // parts
        replicated = buffer.replicated
        if buffer.differs is None and not match.value.manual:
            axes = self.mesh.shape.items()
            unsplit = used | spec.unreduced
            replicated = tuple(a for a, n in axes if n > 1 and a not in unsplit)
        return replace(buffer, spec=spec, replicated=replicated, split_bytes=size)


class _PlanFlow:
    """The arguments that each value depends on, and the results that depend on it."""

    def __init__(self, plan: Plan, arguments: Sequence[str]) -> None:
        bits = {name: 1 << number for number, name in enumerate(arguments)}
        self.reads: dict[str, int] = {}
        self.leads: dict[str, int] = defaultdict(int)
        for op in plan.ops:
            reads = bits.get(op.name, 0)
            # Operand 1 of a loop's result is the value after an iteration.
            operands = op.operands[:1] if op.opcode == "while" else op.operands
            for operand in operands:
                reads |= self.reads.get(operand, 0)
            self.reads[op.name] = reads
        number = 0
        for op in plan.ops:
            if op.kind == "result":
                self.leads[op.name] = 1 << number
                number += 1
        changed = True
        while changed:
            changed = False
            for op in reversed(plan.ops):
                leads = self.leads[op.name]
                for operand in op.operands:
                    if leads & ~self.leads[operand]:
                        self.leads[operand] |= leads
                        changed = True


def _same_type(buffer: Buffer, match: _Match) -> bool:
    dtype = match.value.dtype
    return _SHORT.get(dtype, dtype) == buffer.shape.partition("[")[0]


def _same_devices(buffer: Buffer, match: _Match) -> bool:
    """Whether the buffer's data differs only along axes that split the value."""
    return not _beyond(buffer, match.spec)


def _beyond(buffer: Buffer, spec: Spec) -> set[str]:
    """Returns the axes along which the buffer's data may differ although they don't
    split the value.
    """
    return {*(buffer.differs or ())} - set(map(parent_axis, spec.axes))


def _is_main(buffer: Buffer, match: _Match) -> bool:
    """False for constants that JAX broadcasts to the shape of another operand."""
    value = match.value
    return value.opcode != "broadcast_in_dim" or value.op.endswith("broadcast_in_dim")


# The dtypes as XLA prints them.
_SHORT = {
    "float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64",
    "int32": "s32", "int64": "s64", "int8": "s8", "uint8": "u8", "uint32": "u32",
    "bool": "pred", "int16": "s16", "uint16": "u16", "uint64": "u64",
}  # fmt: skip


def _in_order(shard: list[int], dims: list[int]) -> bool:
    return shard == dims


def _transposed(shard: list[int], dims: list[int]) -> bool:
    return sorted(shard) == sorted(dims)


def _reshaped(shard: list[int], dims: list[int]) -> bool:
    return math.prod(shard) == math.prod(dims)


# Tests whether a shard's dimensions fit those of a buffer, likeliest first.
_FITS: tuple[Callable[[list[int], list[int]], bool], ...] = (
    _in_order, _transposed, _reshaped,
)  # fmt: skip


def _may_be_resplit(buffer: Buffer, value: PlannedOp) -> bool:
    """Whether a buffer may hold the value in another sharding, not transposed."""
    dims = _all_dims(buffer)
    if buffer.transposed or len(dims) != len(value.shape):
        return False
    pairs = zip(value.shape, dims, strict=True)
    return all(length > 0 and size % length == 0 for size, length in pairs)


def _all_dims(buffer: Buffer) -> list[int]:
    # The dtype in front of the bracket may contain digits.
    return [int(n) for n in re.findall(r"\d+", buffer.shape.partition("[")[2])]


def _dims(buffer: Buffer) -> list[int]:
    """Returns a buffer's dimensions, without those of size 1."""
    return _without_ones(_all_dims(buffer))


def _without_ones(lengths: Iterable[int]) -> list[int]:
    return [length for length in lengths if length != 1]
