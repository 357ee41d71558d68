"""What jax would accept in place of an operation that it refused on Explicit axes.

Every choice is tried and priced by the estimate, so what is offered works.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardviz.core.backend.bridge import adopt_mesh
from shardviz.core.backend.shardy.estimate import estimate
from shardviz.core.backend.shardy.explicit_errors import Refused, spec_of
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import Choice
from shardviz.core.program.report import Collective

MOST_TRIED = 48  # per kind of choice; three axes on three dimensions would make 64
MOST_SHOWN = 8
# Indexing takes `out_sharding` in `.at[...]`, which puts `auto_axes` around the
# operation.
_INDEXING = ("gather", "scatter")
_Operands = tuple[Spec, ...]


def choices(refused: Refused) -> tuple[Choice, ...]:
    """What jax would accept in place of a refused operation, the cheapest first.

    Where the operation takes an `out_sharding`, shardings of its result; where it takes
    none, or none is accepted, shardings that its operands can be brought to first; and
    where that does not help either, `jax.sharding.auto_axes` around it.
    """
    mesh = _mesh_of(refused.operands)
    if mesh is None:
        return ()
    tried: list[Choice] = []
    for accepted in (_with_output, _with_operands, _inside):
        if not tried:
            tried = list(accepted(refused, mesh))
    best: dict[Spec, Choice] = {}
    for choice in sorted(tried, key=_rank):
        best.setdefault(choice.out_sharding, choice)
    return tuple(best.values())[:MOST_SHOWN]


def _rank(choice: Choice) -> tuple[Any, ...]:
    """What choices are sorted by: a sum that is only deferred is no saving."""
    if choice.collectives is None:
        return False, 0, 0, 0, 0  # the likely ones stay first
    return (
        bool(choice.out_sharding.unreduced),
        sum(c.sent_bytes or 0 for c in choice.collectives),
        len(choice.collectives),
        len(choice.resharded),
        -len(choice.out_sharding.axes),
    )


def reshard_choice(
    before: jax.ShapeDtypeStruct, spec: Spec, mesh: AbstractMesh, code: str
) -> Choice:
    """The choice to reshard one value.

    Raises:
        Exception: whatever jax raises where it cannot be sharded so.
    """

    def reshard(value: Any) -> Any:
        return jax.sharding.reshard(value, spec.to_jax())

    _, collectives = _cost(reshard, [before], ["the operand"], mesh)
    return Choice(spec, collectives, code)


def _cost(
    fn: Any,
    operands: Sequence[jax.ShapeDtypeStruct],
    names: Sequence[str],
    mesh: AbstractMesh,
) -> tuple[Spec, tuple[Collective, ...]]:
    """The sharding of a function's first result, and the estimate of its collectives.

    Raises:
        Exception: whatever jax raises where it does not accept the function.
    """
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(fn).trace(*operands)
        lowered = traced.lower(lowering_platforms=("cpu",))
    outputs = jax.tree.leaves(traced.jaxpr.out_avals)
    results = [f"result {number}" for number in range(len(outputs))]
    collectives = []
    for c in estimate(lowered, names, results, adopt_mesh(mesh)):
        collectives.append(replace(c, op="", source="", stack=(), value=""))
    return spec_of(outputs[0]), tuple(collectives)


def _tried(
    fn: Any, refused: Refused, mesh: AbstractMesh, code: str, **fields: Any
) -> Iterator[Choice]:
    """The choice to call a function instead, if jax accepts that."""
    try:
        out, found = _cost(fn, refused.operands, operand_names(refused), mesh)
    except Exception:  # noqa: BLE001  jax refuses in many ways; that is not offered
        return
    yield Choice(out, found, code, **fields)


def _with_output(refused: Refused, mesh: AbstractMesh) -> Iterator[Choice]:
    if refused.name.startswith(_INDEXING):
        yield from _inside(refused, mesh, "out_sharding")
    elif refused.out_param:
        for spec in _placements(refused, mesh):
            change = {refused.out_param: NamedSharding(mesh, spec.to_jax())}
            fn = functools.partial(refused.apply, **change)
            yield from _tried(fn, refused, mesh, "out_sharding")


def _inside(
    refused: Refused, mesh: AbstractMesh, code: str = "auto_axes"
) -> Iterator[Choice]:
    """The compiler decides inside the operation; only the result's sharding is given.

    Shardy's estimate was wrong for seven of eight such shardings of `w[i]`, so none is
    given.
    """
    for spec in _placements(refused, mesh):
        out = NamedSharding(mesh, spec.to_jax())
        fn = jax.sharding.auto_axes(refused.apply, out_sharding=out)
        for choice in _tried(fn, refused, mesh, code):
            yield replace(choice, collectives=None)


def _with_operands(refused: Refused, mesh: AbstractMesh) -> Iterator[Choice]:
    now = tuple(map(spec_of, refused.operands))
    names = operand_names(refused)
    for specs in itertools.islice(_operand_specs(refused, mesh), MOST_TRIED):

        def fn(*values: Any, specs: _Operands = specs) -> Any:
            resharded = []
            for value, spec in zip(values, specs, strict=True):
                resharded.append(jax.sharding.reshard(value, spec.to_jax()))
            return refused.apply(*resharded)

        changed = []
        for name, spec, old in zip(names, specs, now, strict=True):
            if spec != old:
                changed.append((name, spec))
        steps = tuple(changed)
        yield from _tried(fn, refused, mesh, "operands", resharded=steps)


def operand_names(refused: Refused) -> tuple[str, ...]:
    """What the operands of an operation are called."""
    count, name = len(refused.operands), refused.name
    if count == 1:
        return ("the operand",)
    if name.startswith("scatter"):
        return ("the array", "the indices", "the updates")[:count]
    if name == "select_n" and count == 3:
        return ("the condition", "the case for false", "the case for true")
    if name == "gather":
        return ("the array", "the indices")
    if count == 2:
        return ("the left operand", "the right operand")
    return tuple(f"operand {number}" for number in range(count))


def _result_shape(refused: Refused) -> tuple[int, ...] | None:
    """The shape of the result, found by evaluating it without any sharding."""
    bare = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in refused.operands]
    changes = {}
    if refused.out_param:
        changes[refused.out_param] = None
    try:
        made = jax.eval_shape(lambda *v: refused.apply(*v, **changes), *bare)
    except Exception:  # noqa: BLE001  where even that fails there is nothing to offer
        return None
    leaves = jax.tree.leaves(made)
    if len(leaves) != 1:
        return None
    return tuple(leaves[0].shape)


def _placements(refused: Refused, mesh: AbstractMesh) -> list[Spec]:
    """The specs of a result over the axes of the operands, the likely ones first."""
    shape = _result_shape(refused)
    if shape is None:
        return []
    # Which axes split which sizes now: a result is likely to keep these.
    now: set[tuple[str, int]] = set()
    for operand in refused.operands:
        for size, dim in zip(operand.shape, spec_of(operand).dims, strict=True):
            for axis in dim:
                now.add((axis, size))
    axes = _axes_of(map(spec_of, refused.operands), mesh)
    # After the numbers of dimensions: replicated, then, of a sum, not summed yet.
    unreduced = len(shape) + 1
    places = range(unreduced + (refused.name == "dot_general"))
    ranked = []
    for numbers in itertools.product(places, repeat=len(axes)):
        dims = _dims(axes, numbers, len(shape))
        later = frozenset(_dims(axes, numbers, unreduced + 1)[unreduced])
        if _divides(shape, dims, mesh):
            kept = 0
            for number, dim in enumerate(dims):
                for axis in dim:
                    kept += (axis, shape[number]) in now
            ranked.append((-kept, len(later), Spec(dims, unreduced=later)))
    ranked.sort(key=lambda entry: entry[:2])
    return [spec for *_, spec in ranked[:MOST_TRIED]]


def _dims(
    axes: Sequence[str], numbers: Sequence[int], rank: int
) -> tuple[tuple[str, ...], ...]:
    """The axes of every dimension, from the number of a dimension for each axis."""
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis, number in zip(axes, numbers, strict=True):
        if number < rank:
            dims[number].append(axis)
    return tuple(map(tuple, dims))


def _operand_specs(refused: Refused, mesh: AbstractMesh) -> Iterator[_Operands]:
    """Shardings that the operands could be brought to, the likely ones first."""
    shapes = [operand.shape for operand in refused.operands]
    now = tuple(map(spec_of, refused.operands))
    seen = {now}
    kinds = (_alike(shapes, now), _gathered(now), _moved(shapes, now, mesh))
    for specs in itertools.chain(*kinds):
        fits = True
        for shape, spec in zip(shapes, specs, strict=True):
            fits = fits and _divides(shape, spec.dims, mesh)
        if specs not in seen and fits:
            seen.add(specs)
            yield specs


def _alike(shapes: Sequence[tuple[int, ...]], now: _Operands) -> Iterator[_Operands]:
    """Every operand as one of them is; dimensions of size 1 are not split."""
    ranks = {len(shape) for shape in shapes if shape}
    if len(ranks) != 1 or len(shapes) < 2:
        return
    (rank,) = ranks
    for model in (*now, Spec(((),) * rank)):  # replicated last
        if len(model.dims) != rank:
            continue
        specs = []
        for shape in shapes:
            dims = list(model.dims[: len(shape)])
            for number, size in enumerate(shape):
                if size <= 1:
                    dims[number] = ()
            specs.append(Spec(tuple(dims)))
        yield tuple(specs)


def _gathered(now: _Operands) -> Iterator[_Operands]:
    """With some split dimensions gathered, few before many."""
    split = []
    for number, spec in enumerate(now):
        for dim, axes in enumerate(spec.dims):
            if axes:
                split.append((number, dim))
    for count in range(1, len(split) + 1):
        for gathered in itertools.combinations(split, count):
            specs = []
            for number, spec in enumerate(now):
                dims = list(spec.dims)
                for operand, dim in gathered:
                    if operand == number:
                        dims[dim] = ()
                specs.append(Spec(tuple(dims)))
            yield tuple(specs)


def _moved(
    shapes: Sequence[tuple[int, ...]], now: _Operands, mesh: AbstractMesh
) -> Iterator[_Operands]:
    """With the axes of one operand on other dimensions of it."""
    for number, spec in enumerate(now):
        axes, rank = _axes_of([spec], mesh), len(shapes[number])
        for numbers in itertools.product(range(rank), repeat=len(axes)):
            own = Spec(_dims(axes, numbers, rank))
            yield (*now[:number], own, *now[number + 1 :])


def _axes_of(specs: Iterable[Spec], mesh: AbstractMesh) -> tuple[str, ...]:
    used = set[str]().union(*(spec.axes for spec in specs))
    return tuple(axis for axis in mesh.axis_names if axis in used)


def _divides(
    shape: Sequence[int], dims: Sequence[Sequence[str]], mesh: AbstractMesh
) -> bool:
    for size, dim in zip(shape, dims, strict=True):
        if size % math.prod(mesh.shape[axis] for axis in dim):
            return False
    return True


def _mesh_of(operands: Sequence[jax.ShapeDtypeStruct]) -> AbstractMesh | None:
    """The mesh of the operands' types, where it has Explicit axes."""
    for operand in operands:
        mesh = getattr(operand.sharding, "mesh", None)
        if isinstance(mesh, AbstractMesh) and AxisType.Explicit in mesh.axis_types:
            return mesh
    return None
