"""Estimates a program's collectives: the collectives that Shardy itself would insert.

If XLA's partitioner differs from Shardy by a simple and exact rule, the estimate
follows that rule. If it differs in another way, `estimate_limits` marks the value. The
rules were checked against XLA's dumps on jaxlib 0.10.0 and 0.12.

Replica groups are represented by mesh axes, so a mesh of a million devices costs the
same as one of eight. For collectives that a program calls in a `shard_map`, only the
first group is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir

from shardviz.base.axis_parts import (
    group_size,
    local_shape,
    parent_axis,
    split_part,
)
from shardviz.base.cause import AxisPart, author_of
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import KINDS
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.replica_groups import axes_of_pairs
from shardviz.plans.backend import pipeline
from shardviz.plans.backend.attributes import defining_op, parse_axes, value_of
from shardviz.plans.backend.estimate_causes import (
    Blame,
    blame_for_move,
    blame_for_sum,
    constraint_for,
)
from shardviz.plans.backend.estimate_operands import (
    OperandMove,
    operands_moved_instead,
)
from shardviz.plans.backend.mlir_names import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_SLICE,
    BACKEND_CONFIG,
    BROADCAST,
    CALL_TARGET,
    CHOLESKY,
    COLLECTIVE_AXES,
    CUSTOM_CALL,
    ORIGINS,
    REPLICA_GROUPS,
    RESHARD,
    SOURCE_TARGET_PAIRS,
    WRITTEN_COLLECTIVES,
)
from shardviz.plans.backend.planned_module import SHARDY, PlannedModule
from shardviz.plans.backend.reader import REPLACED_CALLS, PlanReader
from shardviz.plans.plan_causes import MoveCause, PrintCause, WrittenCause
from shardviz.plans.plan_values import PlannedOp, array_bytes

# Custom calls that XLA replaces, or for which its partitioner has special code.
_SPLIT_CALLS = frozenset({
    "mhlo.topk", "mhlo.erf", "annotate_device_placement", "CustomSPMDPartitioning",
    "PartialReduce", "MoveToHost", "MoveToDevice", *REPLACED_CALLS,
})  # fmt: skip
_DIM = re.compile(r"\{([^{}]*)\}")
# Maximum number of pairs read from a permutation.
_PAIRS = 4096
_Axes = tuple[str, ...]


class _Part(NamedTuple):
    """One of the collectives that XLA emits for one operation.

    Attributes:
        axes: the mesh axes or sub-axes that the collective runs over.
        after: the sharding of the collective's result.
        gathered: each dimension that is gathered by now -> its axes before and after.
    """

    axes: _Axes
    after: Spec
    gathered: Mapping[int, tuple[_Axes, _Axes]] = MappingProxyType({})


def read_estimate(
    propagated: Any, read: PlanReader, ops: Sequence[PlannedOp]
) -> tuple[Collective, ...]:
    """Returns the collectives that Shardy plans, in program order.

    A collective in a loop body is listed once, with its trip count. Collectives that
    the program calls in a `shard_map` are included.

    Args:
        propagated: the module that `pipeline.propagate` returned.
        read: the reader of that module.
        ops: the values of the plan.
    """
    module = PlannedModule(pipeline.planned_module_on(propagated), read, ops)
    reader = _EstimateReader(module, read.mesh)
    collectives = []
    for op in module.operations():
        for collective in reader.collectives_of(op):
            # XLA removes empty arrays, and the collectives that would move them.
            if collective.bytes_per_device:
                collectives.append(collective)
    return tuple(collectives)


class _EstimateReader:
    """Reads the collectives of one planned module."""

    def __init__(self, module: PlannedModule, mesh: MeshSpec) -> None:
        self.module, self.mesh, self.attributes = module, mesh, module.attributes
        self._moved_operands: set[tuple[str, str, str, _Axes]] = set()

    def collectives_of(self, op: ir.Operation) -> Iterator[Collective]:
        """The collectives for one operation of the planned module."""
        if op.name in SHARDY:
            yield from self._inserted(op)
        elif op.name in WRITTEN_COLLECTIVES:
            yield self._written(op, WRITTEN_COLLECTIVES[op.name])
        elif op.name == CUSTOM_CALL:
            target = value_of(op, CALL_TARGET)
            if target in WRITTEN_COLLECTIVES:
                yield self._written(op, WRITTEN_COLLECTIVES[target])
            elif "callback" in target:
                yield from self._printed(op)
            elif target not in _SPLIT_CALLS:
                yield from self._called(op)
        elif op.name == CHOLESKY:
            yield from self._called(op)

    def _inserted(self, op: ir.Operation) -> Iterator[Collective]:
        """The collectives for one operation that Shardy inserted."""
        start = self.module.start(op)
        if self._is_one_number(start):
            return  # XLA recreates the number on each device
        blame_for = blame_for_move
        if KINDS[SHARDY[op.name]].sums:
            blame_for = blame_for_sum
        moved_before = ()
        if blame_for is blame_for_move:
            moved_before = operands_moved_instead(self.module, op)
        if moved_before:
            for operand in moved_before:
                yield from self._before(op, operand)
            return
        result = op.results[0]
        for part in self._parts(op, start):
            blame = blame_for(self.module, op, mesh_axes(part.axes, self.mesh))
            moved = [(result, self._moved_shape(result, part))]
            yield self._collective(op, SHARDY[op.name], part.axes, moved, blame)

    def _before(self, op: ir.Operation, operand: OperandMove) -> Iterator[Collective]:
        """The collectives that XLA inserts before an elementwise operation.

        Shardy would move the result of the operation instead of its operand.
        """
        kind, parts = SHARDY[op.name], self._parts(op, self.module.start(op))
        if operand.gathered is not None:
            kind, parts = "all-gather", _gathers(operand.gathered, operand.spec)
        through = self.module.name(self.module.start(op))
        name = self.module.name(operand.value)
        source = self.module.by_name.get(name)
        if source is not None and not source.spec.equivalent(operand.spec):
            # A constraint has already moved the operand.
            constraint = constraint_for(self.module, source, operand.spec)
            name = name if constraint is None else constraint.name
        for part in parts:
            axes = mesh_axes(part.axes, self.mesh)
            # Several readers of the result share the moved operand.
            key = through, name, kind, axes
            if self._is_one_number(operand.value) or key in self._moved_operands:
                continue
            self._moved_operands.add(key)
            blame = blame_for_move(self.module, op, axes)
            about = {"value": name, "before": operand.spec, "through": through}
            blame = blame._replace(cause=replace(blame.cause, **about))
            moved = [(operand.value, self._moved_shape(operand.value, part))]
            yield self._collective(op, kind, part.axes, moved, blame)

    def _is_one_number(self, value: ir.Value) -> bool:
        """True for a broadcast scalar, such as zeros, without a constraint.

        XLA does not move such a value.
        """
        broadcast = defining_op(value)
        if broadcast is None or broadcast.name != BROADCAST:
            return False
        scalar = self.attributes.tensor(broadcast.operands[0])
        origins = self.attributes.text(broadcast, ORIGINS)
        return scalar is not None and scalar[0] == () and "constraint" not in origins

    def _parts(self, op: ir.Operation, start: ir.Value) -> list[_Part]:
        """The collectives that XLA emits for one operation that Shardy inserted.

        XLA gathers, and also sums, one dimension at a time, starting with the last.
        """
        before = self.module.spec(op.operands[0])
        after = self.module.spec(op.results[0])
        if op.name not in COLLECTIVE_AXES:
            # If nothing is split, every device already has the full value.
            if op.name == RESHARD and not before.axes and not after.axes:
                return []
            # If no axis moved, the device order differs, so data moves along all axes.
            moved = _moved_axes(before, after) or self.mesh.axis_names
            return [_Part(mesh_axes(moved, self.mesh), after)]
        text = self.attributes.text(op, COLLECTIVE_AXES[op.name])
        if op.name == ALL_GATHER:
            return _gathers([parse_axes(dim) for dim in _DIM.findall(text)], before)
        axes = tuple(dict.fromkeys(parse_axes(text)))
        summed_op = defining_op(start)
        if op.name == ALL_REDUCE and summed_op is not None:
            return self._sums(op, summed_op, axes, after)
        return [_Part(axes, after)]

    def _sums(
        self, op: ir.Operation, summed_op: Any, axes: _Axes, after: Spec
    ) -> list[_Part]:
        opcode = summed_op.name.partition(".")[2]
        if opcode not in ("dot_general", "reduce", "gather", "scatter"):
            return [_Part(axes, after)]
        result = self.module.by_name.get(self.module.name(op.operands[0]))
        if result is not None and result.spec.unreduced:
            # A reshard requests the complete sum, which is split only afterwards.
            return [_Part(axes, after)]
        # The split operand is the third (updates) of a scatter, else the first.
        operand_spec, result_spec = self.module.spec(summed_op.operands[0]), after
        if opcode == "scatter":
            operand_spec = self.module.spec(summed_op.operands[2])
        uses = [use.owner.operation for use in op.results[0].uses]
        is_sliced = len(uses) == 1 and uses[0].name == ALL_SLICE
        if opcode == "dot_general" and is_sliced:
            # XLA first sums over the axes that split the result, and each device keeps
            # its shard of the sum.
            operand_spec = result_spec = self.module.spec(uses[0].results[0])
        parts, remaining = [], list(axes)
        for dim in reversed(operand_spec.dims):
            over = tuple(axis for axis in remaining if axis in dim)
            if over:
                remaining = [axis for axis in remaining if axis not in dim]
                parts.append(_Part(over, after))
        if remaining:
            parts.append(_Part(tuple(remaining), result_spec))
        return parts

    def _printed(self, op: ir.Operation) -> Iterator[Collective]:
        """The all-gathers for a Python callback, such as `jax.debug.print`.

        One device runs the callback and needs all operands in full.
        """
        read = self.module.read(op)
        # In a shard_map, every device runs the callback on its block.
        if read is None or read.context.manual:
            return
        if any(map(self.attributes.tensor, op.results)):
            return
        user = read.location.last_part or CUSTOM_CALL
        for value in op.operands:
            spec, name = self.module.spec(value), self.module.name(value)
            for part in _gathers(spec.dims, spec):
                cause = PrintCause(name, mesh_axes(part.axes, self.mesh), user)
                blame = Blame(name, read.location, cause)
                moved = [(value, self._moved_shape(value, part))]
                yield self._collective(op, "all-gather", part.axes, moved, blame)

    def _called(self, op: ir.Operation) -> Iterator[Collective]:
        """The all-gathers of a custom call's operands, because XLA cannot split the call.

        Linear algebra calls stay split along batch dimensions if Shardy's rule allows.
        """
        read = self.module.read(op)
        if read is None or read.context.manual or not read.results:
            return
        name = read.results[0]
        rule, batch = self.module.by_name[name].factors, 0
        if rule is not None and rule.is_elementwise:
            return
        if rule is not None and rule.propagates:
            batch = len(rule.operands[0]) - 2
        for value in dict.fromkeys(op.operands):
            spec, moved_value = self.module.spec(value), self.module.name(value)
            gathered = [() for _ in spec.dims[:batch]] + list(spec.dims[batch:])
            for part in _gathers(gathered, spec):
                axes = mesh_axes(part.axes, self.mesh)
                cause = MoveCause(
                    moved_value, axes, "all-gather", spec, part.after, "call", name
                )
                blame = Blame(name, read.location, cause)
                moved = [(value, self._moved_shape(value, part))]
                yield self._collective(op, "all-gather", part.axes, moved, blame)

    def _written(self, op: ir.Operation, kind: str) -> Collective:
        """Estimates a collective that the program itself calls."""
        read = self.module.read(op)
        assert read is not None  # only Shardy's operations have no ReadOp
        location, axes = read.location, axes_of_written(op, self.mesh)
        inside = "the program"
        if read.context.manual:
            inside = "shard_map"
        value, last = next(iter(read.results), ""), location.op.rpartition("/")[2]
        cause = WrittenCause(last, axes, location.op, inside, location.source)
        if author_of(location.op) == "gradient":
            array = self._gradient_of(value, kind, last)
            cause = replace(cause, gradient_of=array, kind=kind)
        blame = Blame(value, location, cause)
        moved = []
        for result in op.results:
            part = _Part(axes, self.module.spec(result))
            moved.append((result, self._moved_shape(result, part)))
        return self._collective(op, kind, axes, moved, blame)

    def _gradient_of(self, name: str, kind: str, last: str) -> str:
        """The argument whose gradient a `shard_map` sums; `""` if not exactly one.

        The forward pass reads that argument on the source line of the sum. The argument
        has the shape of the sum, or a multiple of this shape.

        Args:
            name: the name of the sum in the plan.
            kind: the kind of collective.
            last: the last component of jax's name for the collective.
        """
        total = self.module.by_name.get(name)
        if total is None or not KINDS[kind].sums:
            return ""
        arguments: set[str] = set()
        for op in self.module.by_name.values():
            if op.backward or op.stack != total.stack:
                continue
            # With check_vma=False, shard_map sums gradients at its boundary.
            if last == "psum" and op.opcode != "shard_map":
                continue
            if (op.opcode == "all_gather") != (kind == "reduce-scatter"):
                continue
            for read in map(self.module.by_name.get, op.operands):
                if read is None or read.kind != "argument":
                    continue
                if len(read.shape) == len(total.shape):
                    sizes = zip(read.shape, total.shape, strict=True)
                    if all(
                        read_size % total_size == 0 for read_size, total_size in sizes
                    ):
                        arguments.add(read.name)
        return arguments.pop() if len(arguments) == 1 else ""

    def _moved_shape(self, value: ir.Value, part: _Part) -> tuple[int, ...]:
        """The shape on each device of a collective's result."""
        shape, _ = self.attributes.tensor(value) or ((), "token")
        local = [*local_shape(shape, part.after, self.mesh)]
        # XLA pads every shard to the size of the largest, and gathers the padding too.
        for dim, (before, after) in part.gathered.items():
            parts = group_size(before, self.mesh)
            parts_after = group_size(after, self.mesh)
            local[dim] = -(-shape[dim] // parts) * (parts // parts_after)
        return tuple(local)

    def _collective(
        self,
        op: ir.Operation,
        kind: str,
        axes: _Axes,
        moved: Sequence[tuple[Any, tuple[int, ...]]],
        blame: Blame,
    ) -> Collective:
        """Creates a Collective that moves these values, given their shapes per device."""
        size, total, shapes = group_size(axes, self.mesh), 0, []
        for value, local in moved:
            _, dtype = self.attributes.tensor(value) or ((), "token")
            total += array_bytes(local, dtype)
            shapes.append(shape_text(local, dtype))
        if KINDS[kind].counts_operand:
            total *= size  # bytes of the operand
        inside, all_shapes = self.module.around(op).inside, ", ".join(shapes)
        if len(shapes) != 1:
            all_shapes = f"({all_shapes})"  # XLA's notation of a tuple
        names = mesh_axes(axes, self.mesh)
        parts: list[AxisPart] = []
        if not KINDS[kind].pairs:
            names = whole_axes(axes, self.mesh)
            for name in dict.fromkeys(map(parent_axis, names)):
                axis_parts = [axis for axis in names if parent_axis(axis) == name]
                devices = group_size(axis_parts, self.mesh)
                if devices < self.mesh.shape[name]:
                    parts.append(AxisPart(name, devices, self.mesh.shape[name]))
        return Collective(
            kind=kind,
            mesh_axes=names,
            parts=tuple(parts),
            bytes_per_device=total,
            op=blame.location.op,
            source=blame.location.source,
            in_loop=inside.looped,
            shape=all_shapes,
            trips=inside.trips,
            stack=blame.location.stack,
            group_size=size,
            value=blame.value,
            cause=blame.cause,
        )


def mesh_axes(axes: Iterable[str], mesh: MeshSpec) -> _Axes:
    """Replaces sub-axes by their mesh axes; returns distinct axes in mesh order.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh_axes(["model", "data:(1)2", "data:(2)2"], make_mesh(data=4, model=2))
    ('data', 'model')
    """
    named = {parent_axis(axis) for axis in axes}
    return tuple(axis for axis in mesh.axis_names if axis in named)


def whole_axes(axes: Iterable[str], mesh: MeshSpec) -> _Axes:
    """Sorts axes in mesh order, and joins adjacent sub-axes of one axis.

    >>> from shardviz.base.mesh import make_mesh
    >>> whole_axes(["model", "data:(2)2", "data:(1)2"], make_mesh(data=4, model=2))
    ('data', 'model')
    >>> whole_axes(["data:(1)2", "data:(2)2"], make_mesh(data=8))
    ('data:(1)4',)
    """
    names: list[str] = []
    for axis, length in mesh.shape.items():
        parts = [name for name in axes if parent_axis(name) == axis]
        if axis in parts:
            names.append(axis)
            continue
        joined: list[tuple[int, int]] = []
        for before, size in sorted(map(split_part, parts)):
            if joined and joined[-1][0] * joined[-1][1] == before:
                before, size = joined[-1][0], joined.pop()[1] * size
            joined.append((before, size))
        if joined == [(1, length)]:
            names.append(axis)
        else:
            names += [f"{axis}:({before}){size}" for before, size in joined]
    return tuple(names)


def _gathers(gathered: Sequence[_Axes], before: Spec) -> list[_Part]:
    """One all-gather per dimension, last dimension first, with its result sharding."""
    dims, parts, all_gathered = list(before.dims), [], {}
    for number in reversed(range(len(gathered))):
        axes, split = gathered[number], dims[number]
        if axes:
            dims[number] = tuple(axis for axis in split if axis not in axes)
            all_gathered = {**all_gathered, number: (split, dims[number])}
            parts.append(_Part(axes, Spec.trusted(tuple(dims)), all_gathered))
    return parts


def _moved_axes(before: Spec, after: Spec) -> list[str]:
    """The axes whose dimension, or position in the dimension, differs between specs."""
    first, last = ({}, {})
    for spec, places in ((before, first), (after, last)):
        for dim, axes in enumerate(spec.dims):
            for order, axis in enumerate(axes):
                places[axis] = (dim, order)
    return [axis for axis in {**first, **last} if first.get(axis) != last.get(axis)]


# Dtypes whose XLA name is not simply a letter and the number of bits.
_XLA = {"bool": "pred", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128"}
_DTYPE = re.compile(r"(float|uint|int)(\d+.*)")


def shape_text(shape: tuple[int, ...], dtype: str) -> str:
    """Formats dtype and shape as XLA does.

    >>> shape_text((16, 512), "float32"), shape_text((), "bool"), shape_text((8,), "int8")
    ('f32[16,512]', 'pred[]', 's8[8]')
    """
    name, sized = _XLA.get(dtype, dtype), _DTYPE.fullmatch(dtype)
    if sized:
        letter = {"float": "f", "uint": "u", "int": "s"}[sized[1]]
        name = letter + sized[2].replace("_", "")
    return f"{name}[{','.join(map(str, shape))}]"


def axes_of_written(op: Any, mesh: MeshSpec) -> _Axes:
    """The mesh axes of a collective that the program calls in a `shard_map`."""
    holder = op.attributes
    if SOURCE_TARGET_PAIRS in holder:
        rows = np.asarray(holder[SOURCE_TARGET_PAIRS]).reshape(-1, 2)[:_PAIRS]
        pairs = tuple(map(tuple, rows.tolist()))
        return axes_of_pairs(pairs, mesh.axis_names, mesh.axis_sizes)
    if op.name == CUSTOM_CALL:  # a ragged all-to-all has its groups in `backend_config`
        holder = holder[BACKEND_CONFIG]
    if REPLICA_GROUPS not in holder:
        return ()
    groups = holder[REPLICA_GROUPS]
    # jax 0.12 writes mesh axes instead of groups; jaxlib has no class for these.
    if "replica_group_mesh_axes" in str(groups)[:80]:
        axes = re.findall(r'axis_ref<name = "((?:[^"\\]|\\.)*)"', str(groups))
        return tuple(axis for axis in axes if parent_axis(axis) in mesh.shape)
    rows = np.asarray(groups)
    return _axes_of_group(rows.reshape(-1, rows.shape[-1])[0], mesh)


def _axes_of_group(group: np.ndarray, mesh: MeshSpec) -> _Axes:
    """The mesh axes or sub-axes along which the devices of one group differ."""
    group = group[group >= 0]
    if not group.size or group.max() >= mesh.size:
        return ()
    axes, across = [], 1
    coordinates = np.unravel_index(group, mesh.axis_sizes)
    for name, along in zip(mesh.axis_names, coordinates, strict=True):
        size, positions = mesh.shape[name], np.unique(along)
        if positions.size == 1:
            continue
        across *= positions.size
        if positions.size < size:
            # Devices at a constant stride along an axis form a sub-axis.
            minor = int(positions[1] - positions[0]) * positions.size
            name = f"{name}:({size // minor}){positions.size}"
        axes.append(name)
    # Mesh axes can only describe a group with all combinations of its coordinates.
    if across != group.size:
        return ()
    return tuple(axes)
