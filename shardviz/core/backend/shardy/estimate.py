"""Estimates a program's collectives: those that Shardy itself would insert, and their causes.

Groups are known by the mesh axes that they run over, so a mesh of a million devices costs the same
as one of eight. The exception is what `shard_map` wrote out itself, of which the first groups are
read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardviz.core.backend.shardy import pipeline
from shardviz.core.backend.shardy.attributes import (
    AttributeCache,
    SourceLocation,
    defining_op,
    parse_axes,
)
from shardviz.core.backend.shardy.estimate_limits import AGAIN
from shardviz.core.backend.shardy.planned_module import SHARDY, PlacedOperation, PlannedModule
from shardviz.core.backend.shardy.reader import RAGGED
from shardviz.core.format import joined
from shardviz.core.hlo.causes import REDUCES
from shardviz.core.hlo.replica_groups import axes_of_pairs
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import (
    PlannedOp,
    array_bytes,
    group_size,
    local_shape,
    parent_axis,
)
from shardviz.core.program.report import Collective, who_wrote

# The collectives of `jax.lax` that users write inside of shard_map.
_WRITTEN = {
    "stablehlo.all_gather": "all-gather",
    "stablehlo.all_reduce": "all-reduce",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_to_all": "all-to-all",
    "stablehlo.collective_permute": "collective-permute",
}
_AXES = {
    "sdy.all_gather": "gathering_axes",
    "sdy.all_reduce": "reduction_axes",
    "sdy.reduce_scatter": "reduce_scatter_axes",
    "sdy.all_to_all": "params",
}
_WHOLE = Spec()
_DIM = re.compile(r"\{([^{}]*)\}")
_SUMS = ("dot_general", "reduce", "gather", "scatter")
_CONSTRAINTS = ("reshard", "sharding_constraint")
_CUSTOM_CALL = "stablehlo.custom_call"
_PAIRS = 4096  # of a permutation, that are looked at
_XLA = {"bool": "pred", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128"}


def estimate(lowered: Any, ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[Collective, ...]:
    """The collectives that Shardy would insert into a lowered program, in program order.

    A function that is called several times counts once per call, the body of a loop once, with its
    trip count. What the user wrote inside of `shard_map` counts too. Costs the same on any mesh.

    Args:
        lowered: jax's `Lowered`, or its StableHLO module.
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
    module = lowered.compiler_ir("stablehlo") if hasattr(lowered, "compiler_ir") else lowered
    return read_estimate(pipeline.planned_module(module), ops, mesh, AttributeCache())


def read_estimate(
    planned: Any, ops: Sequence[PlannedOp], mesh: MeshSpec, attributes: AttributeCache
) -> tuple[Collective, ...]:
    """The collectives of a module that `pipeline.planned_module` made.

    Args:
        planned: the module.
        ops: the values of the plan, to name causes by.
        mesh: the mesh.
        attributes: the cache of the module's attributes, or of one that it is a copy of.
    """
    return tuple(_EstimateReader(planned, ops, mesh, attributes).collectives())


class _EstimateReader:
    """Reads the collectives of one planned module."""

    def __init__(
        self, planned: Any, ops: Sequence[PlannedOp], mesh: MeshSpec, attributes: AttributeCache
    ) -> None:
        self.mesh, self.attributes = mesh, attributes
        self.module = PlannedModule(planned, ops, attributes)
        self.values = self.module.values
        self._moved: set[Any] = set()

    def collectives(self) -> Iterator[Collective]:
        for placed in self.module.operations:
            found = []
            if kind := self._kind_of_written(placed):
                found = [self._written(placed, kind)]
            elif placed.name in SHARDY:
                found = list(self._inserted(placed))
            elif placed.name == _CUSTOM_CALL and self._is_print(placed):
                found = list(self._printed(placed))
            # XLA takes out what has no elements, and whatever would move it.
            yield from (c for c in found if c.bytes_per_device)

    def _inserted(self, placed: PlacedOperation) -> Iterator[Collective]:
        """The collectives of one of Shardy's operations."""
        start = self.module.start(placed.op)
        if self._is_one_number(start):
            return  # XLA makes it anew
        made = self.module.definition(start, placed.caller)
        if made is not None and (operand := self._gathered_instead(placed, made)) is not None:
            yield from self._gathers_of(operand, placed, made)
            return
        again = f" {AGAIN}" if self._is_again(placed, start) else ""
        for axes, after in self._parts(placed, start):
            mesh_axes = parents(axes, self.mesh)
            if placed.name in ("sdy.all_reduce", "sdy.reduce_scatter"):
                value, location, cause = self._cause_of_reduction(placed, start, mesh_axes)
            else:
                value, location, cause = self._cause_of_move(placed, start, mesh_axes)
                cause += again
            kind = SHARDY[placed.name]
            yield self._collective(placed, kind, axes, [after], value, location, cause)

    def _is_print(self, placed: PlacedOperation) -> bool:
        """Whether an operation only calls Python, as `jax.debug.print` does."""
        target = self.attributes.text(placed.op, "call_target_name")
        around = placed.caller
        while around is not None and around.name != "sdy.manual_computation":
            around = around.caller
        results = (self.attributes.tensor(result) for result in placed.op.results)
        return "callback" in target and around is None and not any(results)

    def _printed(self, placed: PlacedOperation) -> Iterator[Collective]:
        """The gathers of what is printed: Python is called on the host of one device."""
        name = placed.location.last_part or placed.opcode
        for value in placed.op.operands:
            spec, made = self.module.spec(value), self.module.value(value, placed.caller)
            for dim in reversed(spec.dims):
                spec = _without(spec, dim)
                cause = (
                    f"{self.module.name(value, placed.caller)} is split over"
                    f" {joined(parents(dim, self.mesh))}, and {name} calls Python on the host of"
                    " one device: XLA gathers all of it, each time."
                )
                if dim:
                    yield self._collective(
                        placed, "all-gather", dim, [spec], made.name if made else "",
                        placed.location, cause, [value],
                    )  # fmt: skip

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
        if placed.name not in ("sdy.all_gather", "sdy.all_to_all", "sdy.collective_permute"):
            return False
        before, after = (self.module.spec(v) for v in (placed.op.operands[0], placed.op.results[0]))
        return self._is_known((start, before, after, placed.caller))

    def _is_known(self, move: tuple[Any, ...]) -> bool:
        known = move in self._moved
        self._moved.add(move)
        return known

    def _gathered_instead(self, placed: PlacedOperation, made: PlacedOperation) -> Any:
        """The operand of a product that XLA gathers where Shardy sums the product; else None.

        It alone is split over the axes of the sum: of the other operand each device would take a
        part. XLA gathers it where it is then no larger than the sum, and wherever an axis of the
        mesh splits neither the operands nor the sum.
        """
        if placed.name != "sdy.all_reduce" or made.opcode != "dot_general":
            return None
        (one, two), result, axes = made.op.operands, made.op.results[0], self._axes(placed.op)
        for value, other in ((one, two), (two, one)):
            part = defining_op(other)
            if part is None or part.name != "sdy.all_slice" or self._kept_of(placed.op):
                continue
            own, taken = ({*self.module.spec(v).axes} for v in (value, part.operands[0]))
            if own.issuperset(axes) and taken.isdisjoint(axes):
                used = parents(own | taken | {*self.module.spec(result).axes}, self.mesh)
                free = any(n > 1 and a not in used for a, n in self.mesh.shape.items())
                whole = _without(self.module.spec(value), axes)
                return value if free or self._bytes(value, whole) <= self._bytes(result) else None
        return None

    def _bytes(self, value: Any, spec: Spec | None = None) -> int:
        """What each device holds of a value, where it is split as it is or as `spec` says."""
        shape, dtype = self.attributes.tensor(value) or ((), "")
        return array_bytes(local_shape(shape, spec or self.module.spec(value), self.mesh), dtype)

    def _gathers_of(
        self, operand: Any, placed: PlacedOperation, made: PlacedOperation
    ) -> Iterator[Collective]:
        """The gathers of an operand that take the place of the sum of its product."""
        planned, axes, spec = self.values.of(made), self._axes(placed.op), self.module.spec(operand)
        product = planned.name if planned else made.location.last_part
        name, value = self.module.name(operand, placed.caller), planned.name if planned else ""
        known = self._is_known((operand, spec, _without(spec, axes), placed.caller))
        for dim in reversed(spec.dims):
            over = tuple(a for a in dim if a in axes)
            spec = _without(spec, over)
            cause = (
                f"{name} is split over {joined(parents(over, self.mesh))}, over which {product}"
                f" sums. XLA gathers it and sums nothing.{f' {AGAIN}' * known}"
            )
            if over:
                yield self._collective(
                    placed, "all-gather", over, [spec], value, made.location, cause, [operand]
                )

    def _parts(self, placed: PlacedOperation, start: Any) -> list[tuple[tuple[str, ...], Spec]]:
        """The collectives that XLA makes of one of Shardy's operations: axes, and spec after each.

        XLA gathers one dimension at a time, the last first, and so it sums over devices.
        """
        before = self.module.spec(placed.op.operands[0])
        after = self.module.spec(placed.op.results[0])
        if placed.name == "sdy.reshard" and not before.axes and not after.axes:
            return []  # to one device or to others in another order: each has all of it already
        axes = self._axes(placed.op, before, after)
        if placed.name == "sdy.all_gather":
            return _gathers(self.attributes.text(placed.op, _AXES[placed.name]), before)
        made = self.module.definition(start, placed.caller)
        if placed.name != "sdy.all_reduce" or made is None or made.opcode not in _SUMS:
            return [(axes, after)]
        kept = self._kept_of(placed.op) if made.opcode == "dot_general" else None
        if kept is not None:
            # Of a product, XLA first sums over what splits the result, and keeps a shard of that.
            by_dim = [tuple(a for a in dim if a in axes) for dim in reversed(kept.dims)]
            rest = tuple(a for a in axes if not any(a in dim for dim in by_dim))
            return [(dim, after) for dim in by_dim if dim] + [(rest, kept)] * bool(rest)
        # What a scatter writes is split, and what the others read.
        summed = self.module.spec(made.op.operands[2 if made.opcode == "scatter" else 0])
        dims = [tuple(a for a in dim if a in axes) for dim in reversed(summed.dims)]
        rest = tuple(a for a in axes if not any(a in dim for dim in dims))
        return [(dim, after) for dim in (*dims, rest) if dim]

    def _kept_of(self, op: Any) -> Spec | None:
        """How a sum is split where each device only keeps its shard of it; else None."""
        uses = [use.owner.operation for use in op.results[0].uses]
        if len(uses) != 1 or uses[0].name != "sdy.all_slice":
            return None
        return self.module.spec(uses[0].results[0])

    def _axes(self, op: Any, before: Spec = _WHOLE, after: Spec = _WHOLE) -> tuple[str, ...]:
        if op.name in _AXES:
            return tuple(dict.fromkeys(parse_axes(self.attributes.text(op, _AXES[op.name]))))
        # Another order of the same axes over other devices moves along all of them.
        return moved_axes(before, after) or tuple(self.mesh.axis_names)

    def _collective(
        self, placed: PlacedOperation, kind: str, axes: Sequence[str], specs: Sequence[Spec],
        value: str, location: SourceLocation, cause: str, results: Sequence[Any] = (),
    ) -> Collective:  # fmt: skip
        if kind == "collective-permute":  # the parts of an axis may overlap
            axes = parents(axes, self.mesh)
        size, total, shapes = group_size(axes, self.mesh), 0, []
        for result, spec in zip(results or placed.op.results, specs, strict=True):
            shape, dtype = self.attributes.tensor(result) or ((), "")
            local = local_shape(shape, spec, self.mesh)
            total += array_bytes(local, dtype) * (size if kind == "reduce-scatter" else 1)
            shapes.append(shape_text(local, dtype))
        return Collective(
            kind=kind,
            mesh_axes=parents(axes, self.mesh),
            bytes_per_device=total,
            op=location.op,
            source=location.source,
            in_loop=placed.in_loop,
            shape=shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})",
            trips=placed.trips,
            stack=location.stack,
            group_size=size,
            value=value,
            cause=cause,
        )

    def _cause_of_reduction(
        self, placed: PlacedOperation, start: Any, axes: Sequence[str]
    ) -> tuple[str, SourceLocation, str]:
        """The plan's value that a reduction belongs to, its location, and why it is needed."""
        made = self.module.definition(start, placed.caller)
        if made is None:
            name = self.module.name(start, placed.caller)
            return name, placed.location, f"Each device has a part of {name}; here they are summed."
        planned = self.values.of(made)
        name = planned.name if planned else made.location.last_part
        before = self.module.spec(made.op.operands[0])
        scattered = placed.name == "sdy.reduce_scatter"
        cause = why_reduced(made, name, axes, before, scattered)
        return (planned.name if planned else ""), made.location, cause

    def _cause_of_move(
        self, placed: PlacedOperation, start: Any, axes: Sequence[str]
    ) -> tuple[str, SourceLocation, str]:
        """The same for what changes a sharding."""
        last, user = self.module.end(placed.op, placed.caller)
        after = self.module.spec(last.results[0])
        planned = self.module.value(start, placed.caller)
        before, holder = self.module.spec(start), None
        if placed.op.operands[0] != start:
            # Where a constraint changes the sharding, what follows moves what it asked for.
            between = self.module.spec(placed.op.operands[0])
            holder = self._constraint(planned, between)
            before = between if holder is not None else before
        constraint = self._constraint(holder or planned, after)
        kind, name, value = self._use(user, holder or planned)
        made_name = self.module.name(start, placed.caller)
        if holder is not None:
            asks = _asks(holder)
            made_name = f"{made_name}, under {asks[0].lower()}{asks[1:]},"
        move = Move(made_name, before, after, name, kind, constraint)
        cause = why_moved(SHARDY[placed.name], axes, move)
        if constraint is not None:
            location = SourceLocation.from_lines(constraint.op, constraint.stack)
            return constraint.name, location, cause
        made = self.module.definition(start, placed.caller)
        own = made.location if made else placed.location
        if holder is not None:
            own = SourceLocation.from_lines(holder.op, holder.stack)
        location = user.location if user is not None and kind == "op" else own
        return value or (planned.name if planned else ""), location, cause

    def _use(self, user: PlacedOperation | None, made: PlannedOp | None) -> tuple[str, str, str]:
        """What kind of thing uses a value, its name, and its name in the plan."""
        if user is None:
            return "op", "", ""
        planned = self.values.of(user)
        value = planned.name if planned else ""
        name = value or user.location.last_part
        if user.name == "func.call":
            return "call", name, value
        if user.name == "stablehlo.while":
            return "loop", name, value
        if user.name == "func.return" and user.caller is None:
            results = self.values.readers(made) if made else ()
            return "result", "", next((r.name for r in results if r.kind == "result"), "")
        if user.name.endswith(".return"):
            looped = user.caller is not None and user.caller.name == "stablehlo.while"
            inside = user.caller.location.last_part if user.caller else "The function"
            return ("loop" if looped else "return"), inside, value
        return "op", name, value

    def _constraint(self, made: PlannedOp | None, after: Spec) -> PlannedOp | None:
        """The constraint or reshard that asks for a value to be split so, or None.

        It may stand behind others: Shardy makes one chain of collectives of all of them.
        """
        todo = [made] if made else []
        for value in todo:
            readers = self.values.readers(value)
            constraints = [r for r in readers if r.opcode.rpartition(".")[2] in _CONSTRAINTS]
            found = next((c for c in constraints if c.spec.equivalent(after)), None)
            if found is not None:
                return found
            todo += constraints
        return None

    def _kind_of_written(self, placed: PlacedOperation) -> str:
        """The kind of a collective that the user wrote; `""` for any other operation."""
        if placed.name == _CUSTOM_CALL and placed.op.attributes["call_target_name"].value == RAGGED:
            return "ragged-all-to-all"
        return _WRITTEN.get(placed.name, "")

    def _written(self, placed: PlacedOperation, kind: str) -> Collective:
        """A collective that the user wrote."""
        planned = self.values.of(placed)
        axes = axes_of_written(placed.op, self.mesh)
        specs = [self.module.spec(result) for result in placed.op.results]
        outer = placed.caller
        while outer is not None and outer.name != "sdy.manual_computation":
            outer = outer.caller
        cause = why_written(placed, outer.location.last_part if outer else "the program", axes)
        value = planned.name if planned else ""
        return self._collective(placed, kind, axes, specs, value, placed.location, cause)


def _without(spec: Spec, axes: Collection[str]) -> Spec:
    """The spec without some of its axes."""
    return Spec.trusted(tuple(tuple(a for a in dim if a not in axes) for dim in spec.dims))


def _gathers(text: str, before: Spec) -> list[tuple[tuple[str, ...], Spec]]:
    """One all-gather per dimension, the last first, with the spec after each."""
    gathered = [parse_axes(dim) for dim in _DIM.findall(text)]
    dims, found = list(before.dims), []
    for number in reversed(range(len(gathered))):
        if axes := gathered[number]:
            dims[number] = dims[number][: -len(axes)]
            found.append((axes, Spec.trusted(tuple(dims))))
    return found


def parents(axes: Iterable[str], mesh: MeshSpec) -> tuple[str, ...]:
    """The mesh axes that these are, or are parts of, in the order of the mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> parents(["model", "data:(1)2", "data:(2)2"], make_mesh(data=4, model=2))
    ('data', 'model')
    """
    named = {parent_axis(axis) for axis in axes}
    return tuple(axis for axis in mesh.axis_names if axis in named)


def shape_text(shape: tuple[int, ...], dtype: str) -> str:
    """Type and shape as XLA writes them.

    >>> shape_text((16, 512), "float32"), shape_text((), "bool"), shape_text((8,), "int8")
    ('f32[16,512]', 'pred[]', 's8[8]')
    """
    short = _XLA.get(dtype, "")
    if not short and (found := re.fullmatch(r"(float|uint|int)(\d+.*)", dtype)):
        short = {"float": "f", "uint": "u", "int": "s"}[found[1]] + found[2].replace("_", "")
        short = re.sub(r"^f(\d)(\d*)e", r"f\1\2e", short)
    return f"{short or dtype}[{','.join(map(str, shape))}]"


def moved_axes(before: Spec, after: Spec) -> tuple[str, ...]:
    """The axes that split another dimension, or in another order, after a permutation."""
    positions = [
        {axis: (dim, at) for dim, axes in enumerate(spec.dims) for at, axis in enumerate(axes)}
        for spec in (before, after)
    ]
    both = dict.fromkeys((*positions[0], *positions[1]))
    return tuple(axis for axis in both if positions[0].get(axis) != positions[1].get(axis))


def axes_of_written(op: Any, mesh: MeshSpec) -> tuple[str, ...]:
    """The mesh axes of a collective that the user wrote inside of `shard_map`."""
    name = "source_target_pairs" if "source_target_pairs" in op.attributes else "replica_groups"
    # A ragged exchange is a call, which keeps its groups among its options.
    holder = op.attributes["backend_config"] if op.name == _CUSTOM_CALL else op.attributes
    if name not in holder:
        return ()
    groups = holder[name]
    text = str(groups) if "replica_group_mesh_axes" in str(groups)[:80] else ""
    if text:
        found = re.findall(r'axis_ref<name = "((?:[^"\\]|\\.)*)"', text)
        return tuple(axis for axis in found if parent_axis(axis) in mesh.shape)
    rows = np.asarray(groups)
    if name == "source_target_pairs":
        pairs = tuple(map(tuple, rows.reshape(-1, 2)[:_PAIRS].tolist()))
        return axes_of_pairs(pairs, mesh.axis_names, mesh.axis_sizes)
    return _axes_of_group(rows.reshape(-1, rows.shape[-1])[0], mesh)


def _axes_of_group(group: np.ndarray, mesh: MeshSpec) -> tuple[str, ...]:
    group = group[group >= 0]
    if not group.size or group.max() >= mesh.size:
        return ()
    found, across = [], 1
    coordinates = np.unravel_index(group, mesh.axis_sizes)
    for name, size, along in zip(mesh.axis_names, mesh.axis_sizes, coordinates, strict=True):
        own = np.unique(along)
        if own.size > 1:
            # Each second or fourth of an axis is a part of it, as another mesh may split it.
            minor = int(own[1] - own[0]) * own.size
            found.append(name if own.size == size else f"{name}:({size // minor}){own.size}")
            across *= own.size
    return tuple(found) if across == group.size else ()


@dataclass(frozen=True)
class Move:
    """A value on its way to what uses it, with another sharding there.

    Attributes:
        made: the name of the value.
        before: its sharding.
        after: the sharding that its user needs.
        user: the name of what uses it; `""` where that is not one operation.
        kind: what that is: `"op"`, `"call"`, `"loop"`, `"result"`, `"return"`.
        constraint: the constraint or reshard that asks for it, or None.
    """

    made: str
    before: Spec
    after: Spec
    user: str
    kind: str
    constraint: PlannedOp | None = None


def why_reduced(
    placed: PlacedOperation, name: str, axes: Sequence[str], before: Spec, scattered: bool = False
) -> str:
    """Why an operation's result is a sum over devices.

    Args:
        placed: the operation whose result it is.
        name: its name in the plan.
        axes: the mesh axes.
        before: the sharding of its first operand.
        scattered: whether each device keeps one shard of the result only.
    """
    split = f"split over {joined(axes)}"
    part = "each device has a part of the result"
    if placed.opcode == "dot_general":
        words = f"{name} sums over its inner dimension, which is {split}"
        part = "each device has a part of the sum"
    elif placed.opcode == "reduce":
        dims = [
            d for d in _reduced_dims(placed.op) if d in _dims_over(before, axes)
        ] or _reduced_dims(placed.op)
        words = f"{name} {_reducer(placed.op)} over {_along(dims)}, {split}"
    elif placed.opcode == "convolution":
        words = f"{name} sums over a dimension of its operands that is {split}"
        part = "each device has a part of the sum"
    elif placed.opcode == "gather":
        words = f"{name} looks up entries of an array that is {split}"
        part = "each device finds those that it holds"
    elif placed.opcode == "scatter":
        words = f"{name} writes updates that are {split} into one array"
        part = "each device has written its own"
    else:
        words = f"{name} combines values that are {split}"
    kept = ", and keeps its shard of the result" if scattered else ""
    return f"{words}: {part}{kept}."


def why_moved(kind: str, axes: Sequence[str], move: Move) -> str:
    """Why a value changes its sharding on the way to its user.

    Args:
        kind: the kind of collective.
        axes: the mesh axes that it runs over.
        move: the value on its way.
    """
    made, over = move.made, joined(axes)
    if move.constraint is not None:
        return f"{_asks(move.constraint)} asks for {move.after}, and {_has(move, axes)}."
    if move.kind == "result":
        return f"The result is requested as {move.after}, and {_has(move, axes)}."
    if move.kind == "loop":
        return f"The loop carries it as {move.after}, and {_has(move, axes)}."
    if move.kind == "return":
        return f"{move.user} gives it as {move.after}, and {_has(move, axes)}."
    user = move.user or "what reads it"
    if move.kind == "call":
        return f"{user} is called with it as {move.after}, and {_has(move, axes)}."
    from_dims, to_dims = _dims_over(move.before, axes), _dims_over(move.after, axes)
    if kind == "all-gather" and from_dims:
        which = "that dimension" if len(from_dims) == 1 else "those dimensions"
        return f"{made} is split over {over} and {user} needs {which} not split."
    if kind == "all-to-all" and from_dims and to_dims and from_dims != to_dims:
        return (
            f"{made} is split over {over} along {_along(from_dims)} and {user} needs it split"
            f" along {_along(to_dims)}."
        )
    return f"{made} is {move.before} and {user} needs {move.after}."


def why_written(placed: PlacedOperation, inside: str, axes: Sequence[str]) -> str:
    """Why there is a collective that the user wrote, or grad.

    Args:
        placed: the collective.
        inside: the name of what is around it, such as `shard_map`.
        axes: the mesh axes that it runs over.
    """
    source = f" at {placed.location.source}" if placed.location.source else ""
    name = placed.location.op.rpartition("/")[2] or placed.opcode
    return f"{who_wrote(placed.location.op, axes)}: {name}{source}, inside {inside}."


def _asks(constraint: PlannedOp) -> str:
    source = f" at {constraint.source}" if constraint.source else ""
    last = constraint.op.rpartition("/")[2]
    if last == "shard_map":
        return f"The shard_map{source}"
    if constraint.opcode == "reshard" and last != "reshard":
        return f"The loop{source}"
    return f"A reshard{source}" if last == "reshard" else f"A constraint{source}"


def _has(move: Move, axes: Sequence[str]) -> str:
    if _dims_over(move.before, axes):
        return f"{move.made} is split over {joined(axes)}"
    return f"{move.made} is {move.before}"


def _dims_over(spec: Spec, axes: Sequence[str]) -> tuple[int, ...]:
    """The dimensions that some of these mesh axes split."""
    return tuple(n for n, dim in enumerate(spec.dims) if set(axes) & {parent_axis(a) for a in dim})


def _along(dims: Sequence[int]) -> str:
    return f"dimension {dims[0]}" if len(dims) == 1 else f"dimensions {joined(dims)}"


def _reduced_dims(op: Any) -> list[int]:
    text = str(op.attributes["dimensions"])  # array<i64: 0, 1>
    return [int(n) for n in text.partition(":")[2].strip(" >").split(",")]


def _reducer(op: Any) -> str:
    body = [o.operation.name for o in op.regions[0].blocks[0].operations]
    return REDUCES.get(body[0].rpartition(".")[2], "combines") if len(body) == 2 else "combines"
