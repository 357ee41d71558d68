"""The legal answers to a ShardingTypeError: each one tried on jax, and priced by the planner."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardviz.core.backend.bridge import adopt_mesh, adopt_spec
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.shardy.estimate import estimate
from shardviz.core.backend.shardy.explicit_errors import Refused
from shardviz.core.format import bytes_text
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import Choice
from shardviz.core.program.report import Collective

TRIED = 48  # candidates a way; with three axes on three dimensions there would be 64
SHOWN = 8
# Indexing takes `out_sharding` in `.at[...]`, which stands for `auto_axes` around the operation.
_INDEXING = ("gather", "scatter")
Operands = tuple[Spec, ...]


@dataclass(frozen=True)
class _Tried:
    """One answer that jax accepted."""

    out: Spec
    collectives: tuple[Collective, ...]
    resharded: Operands | None = None
    wrapped: bool = False

    @property
    def rank(self) -> tuple[Any, ...]:
        """Its place among the others: a sum that is put off is no saving."""
        sent = sum(c.sent_bytes or 0 for c in self.collectives)
        changed = 0 if self.resharded is None else len(self.resharded)
        return bool(self.out.unreduced), sent, len(self.collectives), changed, -len(self.out.axes)


def choices(refused: Refused) -> tuple[Choice, ...]:
    """What would be accepted in place of a refused operation, the cheapest first.

    Where the operation takes an `out_sharding`, shardings of its result; where it takes none, or
    none is accepted, shardings that its operands can be brought to first; and where that does not
    help either, shardings of the result of `jax.sharding.auto_axes` around it.
    """
    mesh = _mesh_of(refused.operands)
    if mesh is None:
        return ()
    tried: list[_Tried] = []
    for way in (_accepted_outputs, _accepted_operands, _accepted_inside):
        tried = tried or list(way(refused, mesh))
    best: dict[Spec, _Tried] = {}
    for one in sorted(tried, key=lambda t: t.rank):
        best.setdefault(one.out, one)
    names = _names(refused)
    specs = [spec_of(o) for o in refused.operands]
    return tuple(
        Choice(one.out, _named(one.collectives, names), _words(one, names, specs))
        for one in list(best.values())[:SHOWN]
    )


def spec_of(operand: jax.ShapeDtypeStruct) -> Spec:
    """The sharding in a type, one entry a dimension."""
    spec = adopt_spec(operand.sharding.spec) if operand.sharding is not None else Spec()
    dims = (spec.dims + ((),) * operand.ndim)[: operand.ndim]
    return Spec(dims, unreduced=spec.unreduced, reduced=spec.reduced)


def cost(
    fn: Any, operands: Sequence[jax.ShapeDtypeStruct], mesh: AbstractMesh
) -> tuple[tuple[Any, ...], tuple[Collective, ...]]:
    """The types of a function's results, and the planner's estimate of its collectives.

    Raises:
        Exception: whatever jax raises where it does not accept the function.
    """
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(fn).trace(*operands)
        lowered = traced.lower(lowering_platforms=("cpu",))
    found = estimate(lowered, (), adopt_mesh(mesh))
    bare = tuple(replace(c, op="", source="", stack=(), value="") for c in found)
    return tuple(jax.tree.leaves(traced.jaxpr.out_avals)), bare


def moved(before: jax.ShapeDtypeStruct, spec: Spec, mesh: AbstractMesh) -> tuple[Collective, ...]:
    """What it costs to reshard one value.

    Raises:
        Exception: whatever jax raises where it cannot be sharded so.
    """
    return cost(lambda x: jax.sharding.reshard(x, spec.to_jax()), [before], mesh)[1]


def price(collectives: Sequence[Collective]) -> str:
    """Collectives as a phrase: `an all-reduce of 128 KiB over model`.

    >>> price([Collective("all-reduce", ("model",), 131072)])
    'an all-reduce of 128 KiB over model'
    """
    if not collectives:
        return "nothing moves"
    parts = [
        f"{'a' if c.kind[0] in 'rc' else 'an'} {c.kind} of {bytes_text(c.bytes_per_device)}"
        f" over {' and '.join(c.mesh_axes) or 'the devices'}"
        for c in collectives
    ]
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def _accepted_outputs(refused: Refused, mesh: AbstractMesh) -> Iterator[_Tried]:
    if refused.name.startswith(_INDEXING):
        yield from _accepted_inside(refused, mesh, wrapped=False)
    elif refused.out_param:
        for spec in _placements(refused, mesh):
            change = {refused.out_param: NamedSharding(mesh, spec.to_jax())}
            yield from _try(functools.partial(refused.apply, **change), refused, mesh)


def _accepted_inside(
    refused: Refused, mesh: AbstractMesh, wrapped: bool = True
) -> Iterator[_Tried]:
    """With the compiler to decide inside of the operation, and the result's sharding given."""
    for spec in _placements(refused, mesh):
        out = NamedSharding(mesh, spec.to_jax())
        answer = jax.sharding.auto_axes(refused.apply, out_sharding=out)
        yield from _try(answer, refused, mesh, wrapped=wrapped)


def _accepted_operands(refused: Refused, mesh: AbstractMesh) -> Iterator[_Tried]:
    for specs in itertools.islice(_operand_specs(refused, mesh), TRIED):

        def answer(*values: Any, specs: Operands = specs) -> Any:
            pairs = zip(values, specs, strict=True)
            return refused.apply(*(jax.sharding.reshard(v, s.to_jax()) for v, s in pairs))

        yield from _try(answer, refused, mesh, resharded=specs)


def _try(answer: Any, refused: Refused, mesh: AbstractMesh, **how: Any) -> Iterator[_Tried]:
    try:
        results, found = cost(answer, refused.operands, mesh)
    except Exception:  # noqa: BLE001  jax says no in many ways; what it refuses is not offered
        return
    yield _Tried(spec_of(results[0]), found, **how)


def _result_shape(refused: Refused) -> tuple[int, ...] | None:
    """The shape of the result, found where no axis is in the way."""
    bare = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in refused.operands]
    changes = {refused.out_param: None} if refused.out_param else {}
    try:
        found = jax.eval_shape(lambda *v: refused.apply(*v, **changes), *bare)
    except Exception:  # noqa: BLE001  where even that fails there is nothing to offer
        return None
    leaves = jax.tree.leaves(found)
    return tuple(leaves[0].shape) if len(leaves) == 1 else None


def _placements(refused: Refused, mesh: AbstractMesh) -> list[Spec]:
    """Ways to put the operands' axes on the dimensions of a result, the likely ones first."""
    operands, shape, sums = refused.operands, _result_shape(refused), refused.name == "dot_general"
    if shape is None:
        return []
    specs = [spec_of(o) for o in operands]
    axes = _axes(specs, mesh)
    homes = {
        (axis, size) for o, s in zip(operands, specs, strict=True)
        for size, dim in zip(o.shape, s.dims, strict=True) for axis in dim
    }  # fmt: skip
    unreduced = len(shape) + 1  # after the last dimension: whole, then not summed yet
    found = []
    for places in itertools.product(range(unreduced + sums), repeat=len(axes)):
        dims = tuple(tuple(a for a, p in zip(axes, places, strict=True) if p == n)
                     for n in range(len(shape)))  # fmt: skip
        later = frozenset(a for a, p in zip(axes, places, strict=True) if p == unreduced)
        if _divides(shape, dims, mesh):
            kept = sum((a, shape[n]) in homes for n, dim in enumerate(dims) for a in dim)
            found.append((-kept, len(later), Spec(dims, unreduced=later)))
    found.sort(key=lambda entry: entry[:2])
    return [spec for *_, spec in found[:TRIED]]


def _operand_specs(refused: Refused, mesh: AbstractMesh) -> Iterator[Operands]:
    """Shardings that the operands could be brought to, the likely ones first."""
    shapes = [o.shape for o in refused.operands]
    now = tuple(spec_of(o) for o in refused.operands)
    seen = {now}
    for specs in itertools.chain(_common(shapes, now), _dropped(now), _moved(shapes, now, mesh)):
        fits = all(_divides(s, spec.dims, mesh) for s, spec in zip(shapes, specs, strict=True))
        if specs not in seen and fits:
            seen.add(specs)
            yield specs


def _common(shapes: Sequence[tuple[int, ...]], now: Operands) -> Iterator[Operands]:
    """Every operand as one of them is; dimensions of size 1 stay whole."""
    if len({len(s) for s in shapes if s}) != 1 or len(shapes) < 2:
        return
    rank = max(len(s) for s in shapes)
    for model in [s for s in now if len(s.dims) == rank] + [Spec(((),) * rank)]:
        yield tuple(
            Spec(tuple(d if n > 1 else () for n, d in zip(shape, model.dims, strict=False)))
            for shape in shapes
        )


def _dropped(now: Operands) -> Iterator[Operands]:
    """With some axes taken off some operands, few before many."""
    places = [(o, d) for o, spec in enumerate(now) for d, dim in enumerate(spec.dims) if dim]
    for count in range(1, len(places) + 1):
        for gone in itertools.combinations(places, count):
            yield tuple(
                Spec(tuple(() if (o, d) in gone else dim for d, dim in enumerate(spec.dims)))
                for o, spec in enumerate(now)
            )


def _moved(
    shapes: Sequence[tuple[int, ...]], now: Operands, mesh: AbstractMesh
) -> Iterator[Operands]:
    """With the axes of one operand on other dimensions of it."""
    for number, spec in enumerate(now):
        axes = _axes([spec], mesh)
        for places in itertools.product(range(len(shapes[number])), repeat=len(axes)):
            dims = tuple(tuple(a for a, p in zip(axes, places, strict=True) if p == n)
                         for n in range(len(shapes[number])))  # fmt: skip
            yield (*now[:number], Spec(dims), *now[number + 1 :])


def _axes(specs: Iterable[Spec], mesh: AbstractMesh) -> tuple[str, ...]:
    used = {axis for spec in specs for axis in spec.axes}
    return tuple(axis for axis in mesh.axis_names if axis in used)


def _divides(shape: Sequence[int], dims: Sequence[Sequence[str]], mesh: AbstractMesh) -> bool:
    parts = [math.prod(mesh.shape[axis] for axis in dim) for dim in dims]
    return all(size % over == 0 for size, over in zip(shape, parts, strict=True))


def _mesh_of(operands: Sequence[jax.ShapeDtypeStruct]) -> AbstractMesh | None:
    """The mesh of the operands' types, where it has Explicit axes."""
    for operand in operands:
        mesh = getattr(operand.sharding, "mesh", None)
        if isinstance(mesh, AbstractMesh) and AxisType.Explicit in mesh.axis_types:
            return mesh
    return None


def _named(found: Iterable[Collective], names: Sequence[str]) -> tuple[Collective, ...]:
    """Their causes with the operands' names: the functions that were tried call them `values`."""

    def cause(text: str) -> str:
        named = re.sub(r"\bvalues\[(\d+)\]", lambda found: names[int(found[1])], text)
        return named if text[:1] == named[:1] else named[:1].upper() + named[1:]

    return tuple(replace(c, cause=cause(c.cause)) for c in found)


def _names(refused: Refused) -> tuple[str, ...]:
    count = len(refused.operands)
    if count == 1:
        return ("the operand",)
    if refused.name.startswith("scatter"):
        return ("the array", "the indices", "the updates")[:count]
    if refused.name == "select_n" and count == 3:
        return ("the condition", "the case for false", "the case for true")
    if refused.name == "gather":
        return ("the array", "the indices")
    if count == 2:
        return ("the left operand", "the right operand")
    return tuple(f"operand {n}" for n in range(count))


def _words(tried: _Tried, names: Sequence[str], before: Sequence[Spec]) -> str:
    cost_words = price(tried.collectives)
    later = ""
    if tried.out.unreduced:
        over = " and ".join(sorted(tried.out.unreduced))
        # jaxlib 0.10 plans such a sum at once, whatever the type says.
        now = " now" if not tried.collectives else ""
        later = f"{now}; by its type the sum over {over} is still due"
    if tried.wrapped:
        inside = f"jax.sharding.auto_axes(..., out_sharding={tried.out})"
        return f"Put it inside of {inside}: {cost_words}."
    if tried.resharded is None:
        return f"{tried.out}: {cost_words}{later}."
    steps = [
        f"{name} to {spec}"
        for name, spec, old in zip(names, tried.resharded, before, strict=True)
        if spec != old
    ]
    return f"Reshard {' and '.join(steps)}; the result is {tried.out}: {cost_words}."


_UNEVEN = re.compile(
    r"out dim \((\d+)\) is not divisible by mesh axes \((\d+)\) with spec \((.+?)\)"
)
_TWICE = re.compile(r"P\([^)]*\)(?:[^)]*\))? has duplicate entries for `(\w+)`")
_ALONG = ("dimension", "axis")
_WHOLE = ("sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "top_k", "tile", "roll")
_ALIKE = ("select_n", "concatenate", "stack", "clamp", "dynamic_update_slice")


def problem(refused: Refused | None, error: BaseException) -> str:
    """Why jax refused an operation.

    Args:
        refused: the operation, where it was found.
        error: what jax raised.

    >>> problem(None, ValueError("no idea"))
    'ValueError: no idea'
    """
    words = str(error)
    if (uneven := _UNEVEN.search(words)) is not None:
        size, parts, axes = uneven.groups()
        return (
            f"{_named_operand(refused)} makes a dimension of size {size} out of one that is split"
            f" over {axes}, and {size} does not divide by {parts}."
        )
    if (twice := _TWICE.search(words)) is not None:
        return _doubled(refused, twice[1])
    if refused is None:
        return in_words(error)
    specs = [spec_of(operand) for operand in refused.operands]
    if refused.name == "dot_general":
        return _dot(refused, specs)
    if "illegally sharded result" in words:
        axes = [a for a in dict.fromkeys(specs[0].axes) if all(a in s.axes for s in specs[1:])]
        return _doubled(refused, _and(axes) if axes else "one axis")
    return _other(refused, specs, error)


def _other(refused: Refused, specs: Sequence[Spec], error: BaseException) -> str:
    name, shapes = refused.name, [operand.shape for operand in refused.operands]
    if name == "reshape":
        sizes = tuple(refused.params.get("new_sizes", ()))
        return (
            f"reshape from {shapes[0]} to {sizes} takes apart a dimension that is split"
            f" ({specs[0]}), and no mesh axis can follow it."
        )
    if name.startswith(("gather", "scatter")):
        verb = "reads" if name == "gather" else "writes into"
        return (
            f"Indexing {verb} an array that is {specs[0]} by indices that are {specs[1]}, and it is"
            " ambiguous how the result is split."
        )
    if name in _WHOLE:
        return _along(refused, specs[0])
    if name == "conv_general_dilated":
        return (
            f"The operands of the convolution are {_and(specs)}, and it is ambiguous how the result"
            " is split."
        )
    told = ("via `out_sharding`", "sharding rule for")  # the second by jax 0.10.0
    if isinstance(error, NotImplementedError) or any(words in str(error) for words in told):
        return f"jax does not work out a sharding for {name}: it has to be told."
    distinct = list(dict.fromkeys(specs))
    if len(distinct) > 1 and (name in _ALIKE or len({len(s) for s in shapes}) == 1):
        return f"The operands of {name} are split differently: {_and(distinct)}."
    return in_words(error)


def _dot(refused: Refused, specs: Sequence[Spec]) -> str:
    (left, right), (left_batch, right_batch) = refused.params["dimension_numbers"]
    inner = [_over(specs[0], left), _over(specs[1], right)]
    if inner[0] and inner[0] == inner[1]:
        return (
            f"Both operands of dot_general are split over {_and(inner[0])} along the dimension that"
            " it sums: each device has a part of the sum, and it is ambiguous how the result is"
            " split."
        )
    if inner[0] and inner[1]:
        return (
            f"dot_general sums over a dimension that is split over {_and(inner[0])} on the left and"
            f" over {_and(inner[1])} on the right."
        )
    batch = [_over(specs[0], left_batch), _over(specs[1], right_batch)]
    if batch[0] != batch[1]:
        sides = [f"over {_and(b)}" if b else "not at all" for b in batch]
        return (
            f"The batch dimensions of dot_general are split {sides[0]} on the left and {sides[1]}"
            " on the right."
        )
    both = [a for a in specs[0].axes if a in specs[1].axes and a not in inner[0] + inner[1]]
    return _doubled(refused, _and(both) or "one axis")


def _along(refused: Refused, spec: Spec) -> str:
    number = next((refused.params[n] for n in _ALONG if n in refused.params), None)
    if refused.name == "tile":
        repeats = enumerate(refused.params.get("reps", ()))
        number = next((n for n, times in repeats if times > 1 and spec.dims[n]), None)
    number = number[0] if isinstance(number, tuple) and len(number) == 1 else number
    if not isinstance(number, int) or not spec.dims:
        return f"{refused.name} needs whole dimensions, and its operand is {spec}."
    number %= len(spec.dims)
    over = spec.dims[number] or spec.axes
    return (
        f"{refused.name} works along dimension {number}, which is split over {_and(over)}, and"
        " needs it whole."
    )


def _doubled(refused: Refused | None, axes: str) -> str:
    operands = [spec_of(operand) for operand in refused.operands] if refused else []
    given = f" from operands that are {_and(operands)}" if len(operands) > 1 else ""
    return (
        f"{_named_operand(refused)} would split its result over {axes} in two dimensions{given}; a"
        " mesh axis can split one."
    )


def _named_operand(refused: Refused | None) -> str:
    return refused.name if refused else "The operation"


def _over(spec: Spec, dims: Sequence[int]) -> tuple[str, ...]:
    return tuple(axis for dim in dims for axis in spec.dims[dim])


def _and(parts: Sequence[object]) -> str:
    words = [str(part) for part in parts]
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)
