"""Estimates a program's collectives: those that Shardy itself would insert.

Where XLA's partitioner is known to do otherwise by a rule that is exact and simple,
that rule is followed; where it is not, `estimate_limits` marks the value. All of it was
compared with XLA's own dumps on jaxlib 0.10.0 and 0.12.

Groups are known by the mesh axes that they run over, so a mesh of a million devices
costs the same as one of eight. The exception is what `shard_map` wrote out itself, of
which the first groups are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.backend.shardy import pipeline
from shardviz.core.backend.shardy.attributes import (
    AttributeCache,
    defining_op,
    parse_axes,
)
from shardviz.core.backend.shardy.estimate_causes import (
    Blame,
    blame_for_move,
    blame_for_sum,
    mesh_axes,
)
from shardviz.core.backend.shardy.planned_module import (
    SHARDY,
    PlacedOperation,
    PlannedModule,
)
from shardviz.core.backend.shardy.reader import RAGGED
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_causes import OperandCause, PrintCause, WrittenCause
from shardviz.core.program.plan_values import (
    PlannedOp,
    array_bytes,
    group_size,
    local_shape,
    parent_axis,
)
from shardviz.core.program.report import Collective
from shardviz.core.xla.replica_groups import axes_of_pairs

# The collectives of `jax.lax` that users write inside of shard_map.
_WRITTEN = {
    "stablehlo.all_gather": "all-gather",
    "stablehlo.all_reduce": "all-reduce",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_to_all": "all-to-all",
    "stablehlo.collective_permute": "collective-permute",
}
# Which attribute of Shardy's operations has the axes that they run over.
_AXES = {
    "sdy.all_gather": "gathering_axes",
    "sdy.all_reduce": "reduction_axes",
    "sdy.reduce_scatter": "reduce_scatter_axes",
    "sdy.all_to_all": "params",
}
_SUMS = ("sdy.all_reduce", "sdy.reduce_scatter")
_MANUAL, _CUSTOM_CALL = "sdy.manual_computation", "stablehlo.custom_call"
_DIM = re.compile(r"\{([^{}]*)\}")
_PAIRS = 4096  # of a permutation, that are looked at
_Axes = tuple[str, ...]


class _Part(NamedTuple):
    """One collective of those that XLA makes of one operation.

    Attributes:
        axes: the axes that it runs over, or parts of axes.
        after: the sharding of its result.
    """

    axes: _Axes
    after: Spec


def estimate(
    lowered: Any, ops: Sequence[PlannedOp], mesh: MeshSpec
) -> tuple[Collective, ...]:
    """The collectives that Shardy would insert into a lowered program, in program
    order.

    A function that is called several times counts once per call, the body of a loop
    once, with its trip count. What the user wrote inside of `shard_map` counts too.

    Args:
        lowered: jax's `Lowered`.
        ops: the values of the plan, to name causes by; may be empty.
        mesh: the mesh that the program was lowered for.

    Raises:
        ProgramError: where jaxlib has no Shardy passes.
        Exception: whatever a pass raises.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
    >>> from shardviz.core.backend.bridge import adopt_mesh
    >>> mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    >>> split = NamedSharding(mesh, PartitionSpec("data"))
    >>> x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=split)
    >>> lowered = jax.jit(jnp.sum).trace(x).lower(lowering_platforms=("cpu",))
    >>> found, = estimate(lowered, (), adopt_mesh(mesh))
    >>> found.kind, found.mesh_axes, found.bytes_per_device, found.group_size
    ('all-reduce', ('data',), 4, 4)
    """
    module = lowered.compiler_ir("stablehlo")
    return read_estimate(pipeline.planned_module(module), ops, mesh, AttributeCache())


def read_estimate(
    planned: Any, ops: Sequence[PlannedOp], mesh: MeshSpec, attributes: AttributeCache
) -> tuple[Collective, ...]:
    """The collectives of a module that `pipeline.planned_module` made.

    Args:
        planned: the module.
        ops: the values of the plan, to name causes by.
        mesh: the mesh.
        attributes: the cache of the module's attributes, or of one that it is a copy
            of.
    """
    return tuple(_EstimateReader(planned, ops, mesh, attributes).collectives())


class _EstimateReader:
    """Reads the collectives of one planned module."""

    def __init__(
        self,
        planned: Any,
        ops: Sequence[PlannedOp],
        mesh: MeshSpec,
        attributes: AttributeCache,
    ) -> None:
        self.mesh, self.attributes = mesh, attributes
        self.module = PlannedModule(planned, ops, attributes)
        self._moved: set[Any] = set()

    def collectives(self) -> Iterator[Collective]:
        """Those of every operation, in program order."""
        for placed in self.module.operations:
            for collective in self._of(placed):
                # XLA takes out what has no elements, and whatever would move it.
                if collective.bytes_per_device:
                    yield collective

    def _of(self, placed: PlacedOperation) -> Iterator[Collective]:
        if placed.name in SHARDY:
            yield from self._inserted(placed)
        elif placed.name in _WRITTEN:
            yield self._written(placed, _WRITTEN[placed.name])
        elif placed.name == _CUSTOM_CALL:
            target = placed.op.attributes["call_target_name"].value
            if target == RAGGED:
                yield self._written(placed, "ragged-all-to-all")
            elif "callback" in target and self._only_prints(placed):
                yield from self._printed(placed)

    def _inserted(self, placed: PlacedOperation) -> Iterator[Collective]:
        """The collectives of one of Shardy's operations."""
        start = self.module.start(placed.op)
        if self._is_one_number(start):
            return  # XLA makes it anew
        made = self.module.definition(start, placed.caller)
        if made is not None:
            operand = self._gathered_instead(placed, made)
            if operand is not None:
                yield from self._gathers_of(operand, placed, made)
                return
        again = placed.name not in _SUMS and self._is_again(placed, start)
        for part in self._parts(placed, start):
            axes = mesh_axes(part.axes, self.mesh)
            if placed.name in _SUMS:
                blame = blame_for_sum(self.module, placed, start, axes)
            else:
                blame = blame_for_move(self.module, placed, start, axes, again)
            yield self._collective(placed, SHARDY[placed.name], part, blame)

    def _is_one_number(self, value: Any) -> bool:
        """Whether a value has one number everywhere, as zeros have.

        XLA moves it only where a constraint is on it.
        """
        made = defining_op(value)
        if made is None or made.name != "stablehlo.broadcast_in_dim":
            return False
        known = self.attributes.tensor(made.operands[0])
        origins = self.attributes.text(made, "sdy.sharding_origins")
        return known is not None and known[0] == () and "constraint" not in origins

    def _is_again(self, placed: PlacedOperation, start: Any) -> bool:
        """Whether a value was moved in the same way before."""
        before = self.module.spec(placed.op.operands[0])
        after = self.module.spec(placed.op.results[0])
        return self._is_known((start, before, after, placed.caller))

    def _is_known(self, move: tuple[Any, ...]) -> bool:
        known = move in self._moved
        self._moved.add(move)
        return known

    def _gathered_instead(self, placed: PlacedOperation, made: PlacedOperation) -> Any:
        """The operand of a product that XLA gathers where Shardy sums; else None.

        It alone is split over the axes of the sum: of the other operand each device
        would take a part. XLA gathers it where it is then no larger than the sum, and
        wherever an axis of the mesh splits neither the operands nor the sum.
        """
        if placed.name != "sdy.all_reduce" or made.opcode != "dot_general":
            return None
        if self._kept_of(placed.op) is not None:
            return None
        (left, right), result = made.op.operands, made.op.results[0]
        axes = {*self._axes(placed.op)}
        for value, other in ((left, right), (right, left)):
            part = defining_op(other)
            if part is None or part.name != "sdy.all_slice":
                continue
            spec = self.module.spec(value)
            taken = {*self.module.spec(part.operands[0]).axes}
            if not axes <= {*spec.axes} or not axes.isdisjoint(taken):
                continue
            split = taken.union(spec.axes, self.module.spec(result).axes)
            used = mesh_axes(split, self.mesh)
            free = any(n > 1 and a not in used for a, n in self.mesh.shape.items())
            gathered = self._bytes(value, _without(spec, axes))
            if free or gathered <= self._bytes(result, self.module.spec(result)):
                return value
            return None
        return None

    def _bytes(self, value: Any, spec: Spec) -> int:
        """What each device holds of a value that is split so."""
        shape, dtype = self.attributes.tensor(value) or ((), "")
        return array_bytes(local_shape(shape, spec, self.mesh), dtype)

    def _gathers_of(
        self, operand: Any, placed: PlacedOperation, made: PlacedOperation
    ) -> Iterator[Collective]:
        """The gathers of an operand that take the place of the sum of its product."""
        planned = self.module.values.of(made)
        product = planned.name if planned else made.location.last_part
        axes, spec = self._axes(placed.op), self.module.spec(operand)
        name = self.module.name(operand, placed.caller)
        known = self._is_known((operand, spec, _without(spec, axes), placed.caller))
        for part in _gathers([_only(dim, axes) for dim in spec.dims], spec):
            cause = OperandCause(name, mesh_axes(part.axes, self.mesh), product, known)
            blame = Blame(planned.name if planned else "", made.location, cause)
            yield self._collective(placed, "all-gather", part, blame, operand)

    def _parts(self, placed: PlacedOperation, start: Any) -> list[_Part]:
        """The collectives that XLA makes of one of Shardy's operations.

        XLA gathers one dimension at a time, the last first, and so it sums over
        devices.
        """
        before = self.module.spec(placed.op.operands[0])
        after = self.module.spec(placed.op.results[0])
        if placed.name == "sdy.all_gather":
            text = self.attributes.text(placed.op, _AXES[placed.name])
            return _gathers([parse_axes(dim) for dim in _DIM.findall(text)], before)
        if placed.name not in _AXES:
            if placed.name == "sdy.reshard" and not before.axes and not after.axes:
                return []  # each device has all of it already
            # Another order of the same axes over other devices moves along all of them.
            moved = _moved_axes(before, after) or tuple(self.mesh.axis_names)
            return [_Part(moved, after)]
        axes = self._axes(placed.op)
        made = self.module.definition(start, placed.caller)
        if placed.name == "sdy.all_reduce" and made is not None:
            return self._sums(placed, made, axes, after)
        return [_Part(axes, after)]

    def _sums(
        self, placed: PlacedOperation, made: PlacedOperation, axes: _Axes, after: Spec
    ) -> list[_Part]:
        if made.opcode not in ("dot_general", "reduce", "gather", "scatter"):
            return [_Part(axes, after)]
        kept = self._kept_of(placed.op)
        if made.opcode == "dot_general" and kept is not None:
            # Of a product, XLA first sums over what splits the result, and keeps a
            # shard of that.
            split, last = kept, kept
        else:
            # What a scatter writes is split, and what the others read.
            number = 2 if made.opcode == "scatter" else 0
            split, last = self.module.spec(made.op.operands[number]), after
        parts, rest = [], axes
        for dim in reversed(split.dims):
            over = _only(dim, axes)
            rest = tuple(axis for axis in rest if axis not in over)
            parts.append(_Part(over, after))
        return [part for part in (*parts, _Part(rest, last)) if part.axes]

    def _kept_of(self, op: Any) -> Spec | None:
        """How a sum is split where each device only keeps its shard of it; else None."""
        uses = [use.owner.operation for use in op.results[0].uses]
        if len(uses) != 1 or uses[0].name != "sdy.all_slice":
            return None
        return self.module.spec(uses[0].results[0])

    def _axes(self, op: Any) -> _Axes:
        text = self.attributes.text(op, _AXES[op.name])
        return tuple(dict.fromkeys(parse_axes(text)))

    def _only_prints(self, placed: PlacedOperation) -> bool:
        """Whether a call of Python gives nothing back, as `jax.debug.print` does."""
        if _around(placed) is not None:
            return False  # in a shard_map each device prints what it has
        return not any(self.attributes.tensor(result) for result in placed.op.results)

    def _printed(self, placed: PlacedOperation) -> Iterator[Collective]:
        """The gathers of what is printed: Python is called on the host of one device."""
        user = placed.location.last_part or placed.opcode
        for value in placed.op.operands:
            spec = self.module.spec(value)
            made = self.module.value(value, placed.caller)
            name = self.module.name(value, placed.caller)
            for part in _gathers(spec.dims, spec):
                cause = PrintCause(name, mesh_axes(part.axes, self.mesh), user)
                blame = Blame(made.name if made else "", placed.location, cause)
                yield self._collective(placed, "all-gather", part, blame, value)

    def _written(self, placed: PlacedOperation, kind: str) -> Collective:
        """A collective that the user wrote."""
        planned = self.module.values.of(placed)
        axes = axes_of_written(placed.op, self.mesh)
        around, location = _around(placed), placed.location
        inside = "the program" if around is None else around.location.last_part
        name = location.op.rpartition("/")[2] or placed.opcode
        cause = WrittenCause(name, axes, location.op, inside, location.source)
        blame = Blame(planned.name if planned else "", location, cause)
        return self._collective(placed, kind, _Part(axes, Spec()), blame)

    def _collective(
        self,
        placed: PlacedOperation,
        kind: str,
        part: _Part,
        blame: Blame,
        value: Any = None,
    ) -> Collective:
        """One collective; `value` is what is moved where that is not the operation's
        result.
        """
        axes = part.axes
        if kind == "collective-permute":  # the parts of an axis may overlap
            axes = mesh_axes(axes, self.mesh)
        size, total, shapes = group_size(axes, self.mesh), 0, []
        for result in placed.op.results if value is None else [value]:
            spec = part.after
            if placed.name not in SHARDY and value is None:
                spec = self.module.spec(result)
            shape, dtype = self.attributes.tensor(result) or ((), "")
            local = local_shape(shape, spec, self.mesh)
            total += array_bytes(local, dtype)
            shapes.append(shape_text(local, dtype))
        if kind == "reduce-scatter":
            total *= size  # the bytes of its operand
        return Collective(
            kind=kind,
            mesh_axes=mesh_axes(axes, self.mesh),
            bytes_per_device=total,
            op=blame.location.op,
            source=blame.location.source,
            in_loop=placed.in_loop,
            shape=shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})",
            trips=placed.trips,
            stack=blame.location.stack,
            group_size=size,
            value=blame.value,
            cause=blame.cause,
        )


def _around(placed: PlacedOperation) -> PlacedOperation | None:
    """The shard_map around an operation, or None."""
    outer = placed.caller
    while outer is not None and outer.name != _MANUAL:
        outer = outer.caller
    return outer


def _only(axes: _Axes, among: Collection[str]) -> _Axes:
    return tuple(axis for axis in axes if axis in among)


def _without(spec: Spec, axes: Collection[str]) -> Spec:
    """The spec without some of its axes."""
    dims = []
    for dim in spec.dims:
        dims.append(tuple(axis for axis in dim if axis not in axes))
    return Spec.trusted(tuple(dims))


def _gathers(gathered: Sequence[_Axes], before: Spec) -> list[_Part]:
    """One all-gather per dimension, the last first, with the sharding after each."""
    dims, parts = list(before.dims), []
    for number in reversed(range(len(gathered))):
        axes = gathered[number]
        if axes:
            dims[number] = tuple(axis for axis in dims[number] if axis not in axes)
            parts.append(_Part(axes, Spec.trusted(tuple(dims))))
    return parts


def _moved_axes(before: Spec, after: Spec) -> _Axes:
    """The axes that split another dimension, or in another order, after a permutation."""
    places: list[dict[str, tuple[int, int]]] = []
    for spec in (before, after):
        own = {}
        for dim, axes in enumerate(spec.dims):
            for order, axis in enumerate(axes):
                own[axis] = (dim, order)
        places.append(own)
    first, last = places
    both = dict.fromkeys((*first, *last))
    return tuple(axis for axis in both if first.get(axis) != last.get(axis))


# XLA's names of types, where they are not the first letter and the bits.
_XLA = {"bool": "pred", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128"}
_DTYPE = re.compile(r"(float|uint|int)(\d+.*)")


def shape_text(shape: tuple[int, ...], dtype: str) -> str:
    """Type and shape as XLA writes them.

    >>> shape_text((16, 512), "float32"), shape_text((), "bool"), shape_text((8,), "int8")
    ('f32[16,512]', 'pred[]', 's8[8]')
    """
    name = _XLA.get(dtype, dtype)
    sized = _DTYPE.fullmatch(dtype)
    if sized:
        name = {"float": "f", "uint": "u", "int": "s"}[sized[1]]
        name += sized[2].replace("_", "")
    return f"{name}[{','.join(map(str, shape))}]"


def axes_of_written(op: Any, mesh: MeshSpec) -> _Axes:
    """The mesh axes of a collective that the user wrote inside of `shard_map`."""
    name = "replica_groups"
    if "source_target_pairs" in op.attributes:
        name = "source_target_pairs"
    holder = op.attributes
    if op.name == _CUSTOM_CALL:  # a ragged exchange keeps its groups among its options
        holder = holder["backend_config"]
    if name not in holder:
        return ()
    groups = holder[name]
    # jax 0.12 writes the axes themselves; jaxlib has no class for that.
    text = str(groups)[:80]
    if "replica_group_mesh_axes" in text:
        axes = re.findall(r'axis_ref<name = "((?:[^"\\]|\\.)*)"', str(groups))
        return tuple(axis for axis in axes if parent_axis(axis) in mesh.shape)
    rows = np.asarray(groups)
    if name == "source_target_pairs":
        pairs = tuple(map(tuple, rows.reshape(-1, 2)[:_PAIRS].tolist()))
        return axes_of_pairs(pairs, mesh.axis_names, mesh.axis_sizes)
    return _axes_of_group(rows.reshape(-1, rows.shape[-1])[0], mesh)


def _axes_of_group(group: np.ndarray, mesh: MeshSpec) -> _Axes:
    """The axes, or parts of axes, that the devices of one group differ in."""
    group = group[group >= 0]
    if not group.size or group.max() >= mesh.size:
        return ()
    axes, across = [], 1
    coordinates = np.unravel_index(group, mesh.axis_sizes)
    for name, along in zip(mesh.axis_names, coordinates, strict=True):
        size, own = mesh.shape[name], np.unique(along)
        if own.size == 1:
            continue
        across *= own.size
        if own.size < size:
            # Each second or fourth of an axis is a part of it, as another mesh may
            # split it.
            minor = int(own[1] - own[0]) * own.size
            name = f"{name}:({size // minor}){own.size}"
        axes.append(name)
    return tuple(axes) if across == group.size else ()
