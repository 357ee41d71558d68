"""What a collective of a planned module is about: axes, groups, bytes; never per device.

Groups are told by the mesh axes that they run over, so a mesh of a million devices costs the same
as one of eight. The exception is what `shard_map` wrote out itself, of which the first groups do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardviz.core.backend.shardy import mlir_text, pipeline
from shardviz.core.backend.shardy.mlir_text import AttributeCache, SourceLocation
from shardviz.core.backend.shardy.planned_module import (
    SHARDY,
    PlacedOperation,
    PlannedModule,
    last_part,
)
from shardviz.core.hlo.replica_groups import axes_of_pairs
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program import plan_values
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.report import Collective

_PART = re.compile(r":\(\d+\)(\d+)$")
_SUBSET = 4096  # pairs of a permutation that are looked at
_XLA = {"bool": "pred", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128"}


def axis_size(axis: str, mesh: MeshSpec) -> int:
    """How many parts a mesh axis, or a part of one, makes.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> axis_size("data:(2)4", make_mesh(data=8)), axis_size("data", make_mesh(data=8))
    (4, 8)
    """
    part = _PART.search(axis)
    return int(part[1]) if part else mesh.shape.get(axis, 1)


def group_size(axes: Iterable[str], mesh: MeshSpec) -> int:
    """How many devices take part in each group of a collective over some axes."""
    return math.prod(axis_size(axis, mesh) for axis in axes)


def parents(axes: Iterable[str], mesh: MeshSpec) -> tuple[str, ...]:
    """The mesh axes that these are, or are parts of, in the order of the mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> parents(["model", "data:(1)2", "data:(2)2"], make_mesh(data=4, model=2))
    ('data', 'model')
    """
    named = {plan_values.parent_axis(axis) for axis in axes}
    return tuple(axis for axis in mesh.axis_names if axis in named)


def local_shape(shape: tuple[int, ...], spec: Spec, mesh: MeshSpec) -> tuple[int, ...]:
    """The shape of the block on each device; the largest where it is uneven.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> local_shape((10, 6), Spec.parse("data"), make_mesh(data=4))
    (3, 6)
    """
    parts = [group_size(axes, mesh) for axes in spec.dims] + [1] * len(shape)
    return tuple(-(-size // over) for size, over in zip(shape, parts, strict=False))


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of an array as XLA counts them: types below a byte are packed.

    >>> bytes_of((3,), "int4"), bytes_of((2, 2), "bfloat16"), bytes_of((), "bool")
    (2, 8, 1)
    """
    width = re.search(r"\d+", dtype)
    bits = 8 if dtype == "bool" or width is None else int(width[0])
    return -(-math.prod(shape) * bits // 8)


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
    """The axes that stand elsewhere after a permutation of the blocks."""
    places = [
        {axis: (dim, at) for dim, axes in enumerate(spec.dims) for at, axis in enumerate(axes)}
        for spec in (before, after)
    ]
    both = dict.fromkeys((*places[0], *places[1]))
    return tuple(axis for axis in both if places[0].get(axis) != places[1].get(axis))


def axes_of_manual(op: Any, mesh: MeshSpec) -> tuple[str, ...]:
    """The mesh axes of a collective that the user wrote inside of `shard_map`."""
    name = "source_target_pairs" if "source_target_pairs" in op.attributes else "replica_groups"
    if name not in op.attributes:
        return ()
    groups = op.attributes[name]
    text = str(groups) if "replica_group_mesh_axes" in str(groups)[:80] else ""
    if text:
        found = re.findall(r'axis_ref<name = "((?:[^"\\]|\\.)*)"', text)
        return parents(found, mesh)
    rows = np.asarray(groups)
    if name == "source_target_pairs":
        pairs = tuple(map(tuple, rows.reshape(-1, 2)[:_SUBSET].tolist()))
        return axes_of_pairs(pairs, mesh.axis_names, mesh.axis_sizes)
    return _axes_of_group(rows.reshape(-1, rows.shape[-1])[0], mesh)


def _axes_of_group(group: np.ndarray, mesh: MeshSpec) -> tuple[str, ...]:
    group = group[group >= 0]
    if not group.size or group.max() >= mesh.size:
        return ()
    coordinates = np.unravel_index(group, mesh.axis_sizes)
    moving = [bool((c != c[0]).any()) for c in coordinates]
    across = math.prod(s for s, moves in zip(mesh.axis_sizes, moving, strict=True) if moves)
    if across != group.size:
        return ()
    return tuple(a for a, moves in zip(mesh.axis_names, moving, strict=True) if moves)


CONSTRAINTS = ("reshard", "sharding_constraint")
_REDUCERS = {
    "add": "sums",
    "maximum": "takes the maximum",
    "minimum": "takes the minimum",
    "multiply": "multiplies",
    "and": "takes the logical and",
    "or": "takes the logical or",
}


@dataclass(frozen=True)
class Served:
    """What a collective stands between.

    Attributes:
        made: the name of the value that it moves.
        before: that value's sharding.
        after: the sharding in which it is used.
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
    site: PlacedOperation, name: str, axes: Sequence[str], before: Spec, scattered: bool = False
) -> str:
    """Why an operation's result is a sum over devices.

    Args:
        site: the operation whose result it is.
        name: its name in the plan.
        axes: the mesh axes.
        before: the sharding of its first operand.
        scattered: whether each device keeps a part of the result alone.
    """
    split = f"split over {_and(axes)}"
    part = "each device has a part of the result"
    if site.opcode == "dot_general":
        words = f"{name} sums over its inner dimension, which is {split}"
        part = "each device has a part of the sum"
    elif site.opcode == "reduce":
        dims = [d for d in _dims(site.op) if d in _where(before, axes)] or _dims(site.op)
        words = f"{name} {_reducer(site.op)} over {_along(dims)}, {split}"
    elif site.opcode == "convolution":
        words = f"{name} sums over a dimension of its operands that is {split}"
        part = "each device has a part of the sum"
    elif site.opcode == "gather":
        words = f"{name} looks things up in an array that is {split}"
        part = "each device finds those that it holds"
    elif site.opcode == "scatter":
        words = f"{name} writes updates that are {split} into one array"
        part = "each device has written its own"
    else:
        words = f"{name} combines values that are {split}"
    kept = ", and keeps its block of the whole" if scattered else ""
    return f"{words}: {part}{kept}."


def why_moved(kind: str, axes: Sequence[str], served: Served) -> str:
    """Why a value changes its sharding on the way to its user.

    Args:
        kind: the kind of collective.
        axes: the mesh axes that it runs over.
        served: what it stands between.
    """
    made, over = served.made, _and(axes)
    if served.constraint is not None:
        return f"{_asks(served.constraint)} asks for {served.after}, and {_has(served, axes)}."
    if served.kind == "result":
        return f"The result is asked for as {served.after}, and {_has(served, axes)}."
    if served.kind == "loop":
        return f"The loop carries it as {served.after}, and {_has(served, axes)}."
    if served.kind == "return":
        return f"{served.user} gives it as {served.after}, and {_has(served, axes)}."
    user = served.user or "what reads it"
    if served.kind == "call":
        return f"{user} is called with it as {served.after}, and {_has(served, axes)}."
    from_dims, to_dims = _where(served.before, axes), _where(served.after, axes)
    if kind == "all-gather":
        which = "that dimension" if len(from_dims) == 1 else "those dimensions"
        return f"{made} is split over {over} and {user} needs {which} whole."
    if kind == "all-to-all" and from_dims and to_dims and from_dims != to_dims:
        return (
            f"{made} is split over {over} along {_along(from_dims)} and {user} needs it split"
            f" along {_along(to_dims)}."
        )
    return f"{made} comes as {served.before} and {user} needs {served.after}."


def why_manual(site: PlacedOperation, inside: str) -> str:
    """Why there is a collective that the user wrote.

    Args:
        site: the collective.
        inside: the name of what it stands in, such as `shard_map`.
    """
    where = f" at {site.place.source}" if site.place.source else ""
    called = site.place.op.rpartition("/")[2] or site.opcode
    return f"It is written in the program: {called}{where}, inside {inside}."


def _asks(constraint: PlannedOp) -> str:
    where = f" at {constraint.source}" if constraint.source else ""
    last = constraint.op.rpartition("/")[2]
    if last == "shard_map":
        return f"The shard_map{where}"
    return f"A reshard{where}" if last == "reshard" else f"A constraint{where}"


def _has(served: Served, axes: Sequence[str]) -> str:
    if _where(served.before, axes):
        return f"{served.made} is split over {_and(axes)}"
    return f"{served.made} comes as {served.before}"


def _where(spec: Spec, axes: Sequence[str]) -> tuple[int, ...]:
    wanted = set(axes)
    return tuple(
        n for n, dim in enumerate(spec.dims) if wanted & {a.partition(":(")[0] for a in dim}
    )


def _along(dims: Sequence[int]) -> str:
    return f"dimension {dims[0]}" if len(dims) == 1 else f"dimensions {_and(dims)}"


def _dims(op: Any) -> list[int]:
    text = str(op.attributes["dimensions"])  # array<i64: 0, 1>
    return [int(n) for n in text.partition(":")[2].strip(" >").split(",")]


def _reducer(op: Any) -> str:
    body = [o.operation.name for o in op.regions[0].blocks[0].operations]
    return _REDUCERS.get(body[0].rpartition(".")[2], "combines") if len(body) == 2 else "combines"


def _and(parts: Sequence[Any]) -> str:
    words = [str(part) for part in parts]
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


# The collectives of `jax.lax` that users write inside of shard_map.
_WRITTEN = {
    "stablehlo.all_gather": "all-gather",
    "stablehlo.all_reduce": "all-reduce",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_to_all": "all-to-all",
    "stablehlo.collective_permute": "collective-permute",
}
_KINDS = SHARDY | _WRITTEN
_AXES = {
    "sdy.all_gather": "gathering_axes",
    "sdy.all_reduce": "reduction_axes",
    "sdy.reduce_scatter": "reduce_scatter_axes",
    "sdy.all_to_all": "params",
}
_DIM = re.compile(r"\{([^{}]*)\}")
_SUMS = ("dot_general", "reduce")


def estimate(lowered: Any, ops: Sequence[PlannedOp], mesh: MeshSpec) -> tuple[Collective, ...]:
    """The collectives that Shardy would insert into a lowered program, in program order.

    A function that is called several times counts once a call, the body of a loop once, with its
    trips. What the user wrote inside of `shard_map` counts too. Costs the same on any mesh.

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
    return read_estimate(pipeline.planned_module(module), ops, mesh)


def read_estimate(
    planned: Any, ops: Sequence[PlannedOp], mesh: MeshSpec, texts: AttributeCache | None = None
) -> tuple[Collective, ...]:
    """The collectives of a module that `pipeline.planned` made.

    Args:
        planned: the module.
        ops: the values of the plan, to name causes by.
        mesh: the mesh.
        texts: what was read already of a module that this one is a copy of.
    """
    return tuple(_EstimateReader(planned, ops, mesh, texts or AttributeCache()).collectives())


class _EstimateReader:
    """The collectives of one planned module."""

    def __init__(
        self, planned: Any, ops: Sequence[PlannedOp], mesh: MeshSpec, texts: AttributeCache
    ) -> None:
        self.mesh, self.texts = mesh, texts
        self.module = PlannedModule(planned, ops, texts)
        self.values = self.module.values

    def collectives(self) -> Iterator[Collective]:
        for site in self.module.sites:
            found = []
            if site.name in _WRITTEN:
                found = [self._manual(site)]
            elif site.name in SHARDY:
                found = list(self._shardy(site))
            # XLA takes out what has no elements, and whatever would move it.
            yield from (c for c in found if c.bytes_per_device)

    def _shardy(self, site: PlacedOperation) -> Iterator[Collective]:
        start = self.module.start(site.op)
        for axes, after in self._parts(site, start):
            named = parents(axes, self.mesh)
            if site.name in ("sdy.all_reduce", "sdy.reduce_scatter"):
                value, place, cause = self._reduced(site, start, named)
            else:
                value, place, cause = self._moved(site, start, named)
            yield self._collective(site, axes, [after], value, place, cause)

    def _parts(self, site: PlacedOperation, start: Any) -> list[tuple[tuple[str, ...], Spec]]:
        """The collectives that one of Shardy's operations stands for: axes, and spec after it.

        XLA gathers one dimension at a time, the last first, and so it sums over devices.
        """
        before = self.module.spec(site.op.operands[0], site.caller)
        after = self.module.spec(site.op.results[0], site.caller)
        if site.name == "sdy.reshard" and not before.axes and not after.axes:
            return []  # to one device or to others in another order: each has the whole already
        axes = self._axes(site.op, before, after)
        if site.name == "sdy.all_gather":
            return _gathers(self.texts.attribute(site.op, _AXES[site.name]), before)
        made = self.module.site(start, site.caller)
        if site.name != "sdy.all_reduce" or made is None or made.opcode not in _SUMS:
            return [(axes, after)]
        summed = self.module.spec(made.op.operands[0], made.caller)
        dims = [tuple(a for a in dim if a in axes) for dim in reversed(summed.dims)]
        rest = tuple(a for a in axes if not any(a in dim for dim in dims))
        return [(dim, after) for dim in (*dims, rest) if dim]

    def _collective(
        self, site: PlacedOperation, axes: Sequence[str], specs: Sequence[Spec], value: str, place: SourceLocation,
        cause: str,
    ) -> Collective:  # fmt: skip
        kind = _KINDS[site.name]
        if kind == "collective-permute":  # the parts of an axis may overlap
            axes = parents(axes, self.mesh)
        size, total, shapes = group_size(axes, self.mesh), 0, []
        for result, spec in zip(site.op.results, specs, strict=True):
            shape, dtype = self.texts.tensor(result) or ((), "")
            local = local_shape(shape, spec, self.mesh)
            total += bytes_of(local, dtype) * (size if kind == "reduce-scatter" else 1)
            shapes.append(shape_text(local, dtype))
        return Collective(
            kind=kind,
            mesh_axes=parents(axes, self.mesh),
            bytes_per_device=total,
            op=place.op,
            source=place.source,
            in_loop=site.in_loop,
            shape=shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})",
            trips=site.trips,
            stack=place.stack,
            group_size=size,
            value=value,
            cause=cause,
        )

    def _axes(self, op: Any, before: Spec, after: Spec) -> tuple[str, ...]:
        if op.name in _AXES:
            return tuple(
                dict.fromkeys(mlir_text.parse_axes(self.texts.attribute(op, _AXES[op.name])))
            )
        moved = moved_axes(before, after)
        # Another order of the same axes over other devices moves along all of them.
        return moved or tuple(self.mesh.axis_names)

    def _reduced(
        self, site: PlacedOperation, start: Any, axes: Sequence[str]
    ) -> tuple[str, SourceLocation, str]:
        made = self.module.site(start, site.caller)
        if made is None:
            name = self.module.name(start, site.caller)
            return name, site.place, f"Each device has a part of {name}; here they are summed."
        planned = self.values.of(made)
        name = planned.name if planned else last_part(made.place)
        before = self.module.spec(made.op.operands[0], made.caller)
        scattered = site.name == "sdy.reduce_scatter"
        cause = why_reduced(made, name, axes, before, scattered)
        return (planned.name if planned else ""), made.place, cause

    def _moved(
        self, site: PlacedOperation, start: Any, axes: Sequence[str]
    ) -> tuple[str, SourceLocation, str]:
        last, target = self.module.end(site.op, site.caller)
        after = self.module.spec(last.results[0], site.caller)
        planned = self.module.value(start, site.caller)
        constraint = self._constraint(planned, after)
        kind, name, value = self._used(target, planned)
        before = self.module.spec(start, site.caller)
        served = Served(self.module.name(start, site.caller), before, after, name, kind, constraint)
        cause = why_moved(_KINDS[site.name], axes, served)
        if constraint is not None:
            return constraint.name, SourceLocation.of_lines(constraint.op, constraint.stack), cause
        made = self.module.site(start, site.caller)
        own = made.place if made else site.place
        place = target.place if target is not None and kind == "op" else own
        return value or (planned.name if planned else ""), place, cause

    def _used(self, user: PlacedOperation | None, made: PlannedOp | None) -> tuple[str, str, str]:
        """What kind of thing uses a value, its name, and its name in the plan."""
        if user is None:
            return "op", "", ""
        planned = self.values.of(user)
        value = planned.name if planned else ""
        name = value or last_part(user.place)
        if user.name == "func.call":
            return "call", name, value
        if user.name == "stablehlo.while":
            return "loop", name, value
        if user.name == "func.return" and user.caller is None:
            results = self.values.readers(made) if made else ()
            return "result", "", next((r.name for r in results if r.kind == "result"), "")
        if user.name.endswith(".return"):
            looped = user.caller is not None and user.caller.name == "stablehlo.while"
            inside = last_part(user.caller.place) if user.caller else "The function"
            return ("loop" if looped else "return"), inside, value
        return "op", name, value

    def _constraint(self, made: PlannedOp | None, after: Spec) -> PlannedOp | None:
        readers = self.values.readers(made) if made else ()
        asked = [r for r in readers if r.opcode.rpartition(".")[2] in CONSTRAINTS]
        return next((r for r in asked if r.spec.equivalent(after)), None)

    def _manual(self, site: PlacedOperation) -> Collective:
        planned = self.values.of(site)
        axes = axes_of_manual(site.op, self.mesh)
        specs = [self.module.spec(result, site.caller) for result in site.op.results]
        outer = site.caller
        while outer is not None and outer.name != "sdy.manual_computation":
            outer = outer.caller
        cause = why_manual(site, last_part(outer.place) if outer else "the program")
        value = planned.name if planned else ""
        return self._collective(site, axes, specs, value, site.place, cause)


def _gathers(text: str, before: Spec) -> list[tuple[tuple[str, ...], Spec]]:
    """One all-gather a dimension, the last first, with the spec after each."""
    gathered = [mlir_text.parse_axes(dim) for dim in _DIM.findall(text)]
    dims, found = list(before.dims), []
    for number in reversed(range(len(gathered))):
        if axes := gathered[number]:
            dims[number] = dims[number][: -len(axes)]
            found.append((axes, Spec.trusted(tuple(dims))))
    return found
