"""Programs with Explicit axes: shardings in types, and the diagnosis of a program jax refuses.

With Explicit axes the sharding is part of a value's type. Where jax cannot infer the type of a
result it raises and asks for `out_sharding`; a diagnosis lists what it would accept, each answer
tried and priced.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardviz.core.backend.bridge import adopt_mesh, adopt_spec, jax_dtype
from shardviz.core.backend.failures import source_of
from shardviz.core.backend.shardy.estimate import estimate
from shardviz.core.backend.shardy.explicit_errors import (
    Refused,
    is_sharding_error,
    problem,
    refused_in,
    spec_of,
    unfiltered,
)
from shardviz.core.backend.tracing import trace
from shardviz.core.errors import SpecError
from shardviz.core.format import bytes_text, joined
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import Choice, Diagnosis, PlannedOp
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective

Key = tuple[str, tuple[int, ...]]

_TYPE = r"(\w+)\[([^\]]*)\]"
_CARRY = re.compile(
    rf"carry(?: input)?(?: component)? (\S+) has type {_TYPE},? but the corresponding output carry"
    rf" component(?: \S+)? has type {_TYPE}"
)
_BRANCH = re.compile(
    rf"output(.*?) of \w+(?: at path \S+)? has type {_TYPE} but the corresponding output of \w+"
    rf" has type {_TYPE}",
    re.S,
)
_ASSERTED = re.compile(r"array sharding: (P\(.*?\)) did not match .*?provided: (P\(.*?\))\. ")


def typed_specs(jaxpr: Any) -> Mapping[Key, tuple[Spec, ...]]:
    """The shardings in the types of a traced program, by operation and shape.

    Args:
        jaxpr: what `jax.jit(f).trace(...).jaxpr` gives; functions called inside count too. What
            happens where axes are Auto or Manual has no sharding in its type and is left out.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
    >>> mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    >>> split = NamedSharding(mesh, PartitionSpec("x"))
    >>> a = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=split)
    >>> typed_specs(jax.jit(lambda a: jnp.sin(a).sum(1)).trace(a).jaxpr)
    {('sin', (8, 4)): (P('x', None),), ('reduce_sum', (8,)): (P('x'),)}
    """
    found: dict[Key, dict[Spec, None]] = defaultdict(dict)
    for name, aval in _values(getattr(jaxpr, "jaxpr", jaxpr)):
        spec = _spec(aval)
        if spec is not None:
            found[name, tuple(aval.shape)][spec] = None
    return {key: tuple(specs) for key, specs in found.items()}


def note_types(ops: Sequence[PlannedOp], jaxpr: Any) -> tuple[PlannedOp, ...]:
    """The values of a plan, with a note on each whose propagated sharding is not that of its type.

    Args:
        ops: the values.
        jaxpr: as for `typed_specs`.
    """
    types = typed_specs(jaxpr)
    return tuple(_noted(op, types) for op in ops)


def _noted(op: PlannedOp, types: Mapping[Key, tuple[Spec, ...]]) -> PlannedOp:
    called = op.op.rpartition("/")[2]
    # Beside the operation that was called, jax adds others of its own under the same name.
    if op.kind != "op" or not op.name.startswith(called):
        return op
    specs = types.get((called, op.shape))
    if not specs or any(op.spec.equivalent(spec) for spec in specs):
        return op
    words = f"By its type it is {' or '.join(map(str, specs))}; the propagation says {op.spec}."
    return replace(op, note=" ".join(filter(None, (op.note, words))))


def _values(jaxpr: Any) -> Iterator[tuple[str, Any]]:
    for equation in jaxpr.eqns:
        for made in equation.outvars:
            yield equation.primitive.name, made.aval
        for inner in _inner(equation.params.values()):
            yield from _values(inner)


def _inner(params: Any) -> Iterator[Any]:
    for param in params:
        for one in param if isinstance(param, (tuple, list)) else (param,):
            inner = getattr(one, "jaxpr", one)
            if hasattr(inner, "eqns"):
                yield inner


def _spec(aval: Any) -> Spec | None:
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or not mesh.axis_types or set(mesh.axis_types) != {AxisType.Explicit}:
        return None
    spec = adopt_spec(sharding.spec)  # type: ignore[union-attr]
    dims = (spec.dims + ((),) * len(aval.shape))[: len(aval.shape)]
    return Spec(dims, unreduced=spec.unreduced)


def diagnose(error: BaseException, program: Program, mesh: AbstractMesh) -> Diagnosis | None:
    """Why jax refused to trace a program with Explicit axes, and the answers that it would take.

    Args:
        error: what tracing raised. Where jax has taken its own frames out of the traceback, the
            program is traced once more.
        program: the program.
        mesh: the mesh that it was traced on.

    Returns:
        None where the error is about something else than shardings in types.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh = make_mesh(x=2, axis_types="Explicit")
    >>> arrays = (ArraySpec("a", (4, 8), spec=Spec.parse("None, x")),
    ...           ArraySpec("b", (8, 4), spec=Spec.parse("x")))
    >>> program = Program(jnp.dot, arrays, mesh)
    >>> on = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    >>> try:
    ...     trace(program, on)
    ... except Exception as error:
    ...     found = diagnose(error, program, on)
    >>> found.op, found.operands
    ('dot_general', ('float32[4,8@x]', 'float32[8@x,4]'))
    >>> found.choices[0].words
    "P('x', None): an all-reduce of 64 B over x."
    """
    if AxisType.Explicit not in mesh.axis_types or not is_sharding_error(error):
        return None
    if (found := _of_carry(error, mesh)) is not None:
        return found
    if isinstance(error, TypeError):  # types that differ in more than their shardings
        return None
    refused = refused_in(error, complete=False) or _refused_again(error, program, mesh)
    if (asserted := _of_assertion(error, refused, mesh)) is not None:
        return asserted
    return Diagnosis(
        refused.name if refused else "",
        source_of(error),
        problem(refused, error),
        refused.types if refused else (),
        choices(refused) if refused else (),
    )


def _refused_again(error: BaseException, program: Program, mesh: AbstractMesh) -> Refused | None:
    """The refused operation, by tracing once more with jax's own frames in the traceback."""
    with unfiltered():
        try:
            trace(program, mesh)
        except Exception as second:  # noqa: BLE001  it is compared with the first
            return refused_in(second) if str(second) == str(error) else None
    return None


def _of_carry(error: BaseException, mesh: AbstractMesh) -> Diagnosis | None:
    """The diagnosis of types that differ around a loop or between branches."""
    words = str(error)
    for pattern, op in ((_CARRY, "scan"), (_BRANCH, "cond")):
        if (found := pattern.search(words)) is None:
            continue
        first, second = _struct(found[2], found[3], mesh), _struct(found[4], found[5], mesh)
        if first is None or second is None or first.shape != second.shape:
            return None
        name = found[1].strip(" :")
        types = (f"{found[2]}[{found[3]}]", f"{found[4]}[{found[5]}]")
        one, two = spec_of(first), spec_of(second)
        if op == "scan":
            if "while" in words.split("\n")[0]:
                op = "while_loop"
            carry = f"The carry {name}".strip()
            text = f"{carry} goes into the loop as {one} and comes out of its body as {two}."
            answers = [_answer(second, one, mesh, "at the end of the body")]
        else:
            text = f"One branch gives {one} and the other {two}."
            answers = [
                _answer(second, one, mesh, "at the end of the other branch"),
                _answer(first, two, mesh, "at the end of the one branch"),
            ]
        answers.sort(key=lambda choice: sum(c.sent_bytes or 0 for c in choice.collectives or ()))
        return Diagnosis(op, source_of(error), text, types, tuple(answers))
    return None


def _of_assertion(
    error: BaseException, refused: Refused | None, mesh: AbstractMesh
) -> Diagnosis | None:
    """The diagnosis of a failed with_sharding_constraint, which on Explicit axes only checks."""
    found = _ASSERTED.search(str(error))
    if found is None:
        return None
    try:
        has, wanted = Spec.parse(found[1]), Spec.parse(found[2])
    except SpecError:
        return None
    operands = refused.operands[:1] if refused else ()
    if not set(wanted.axes) <= set(mesh.axis_names):
        operands = ()  # it asks for a sharding over another mesh
    answers = [_answer(o, wanted, mesh, "in place of the constraint") for o in operands]
    return Diagnosis(
        "with_sharding_constraint",
        source_of(error),
        f"With Explicit axes a constraint only checks: the value is {has} and not {wanted}."
        " jax.sharding.reshard changes it.",
        refused.types[:1] if refused else (),
        tuple(answers),
    )


def _answer(before: Any, spec: Spec, mesh: AbstractMesh, at: str) -> Choice:
    found = moved(before, spec, mesh)
    return Choice(spec, found, f"Reshard to {spec} {at}: {price(found)}.")


def _struct(dtype: str, dims: str, mesh: AbstractMesh) -> jax.ShapeDtypeStruct | None:
    """A type as jax writes it: `float32[8@x,16@(y,z)]`."""
    entries = re.findall(r"(\d+)(?:@\(([^)]*)\)|@(\w+))?", dims)
    shape = tuple(int(size) for size, _, _ in entries)
    parts = [tuple(many.replace(" ", "").split(",")) if many else (one,) if one else ()
             for _, many, one in entries]  # fmt: skip
    if not all(axis in mesh.axis_names for axes in parts for axis in axes):
        return None
    sharding = NamedSharding(mesh, Spec.of(*parts).to_jax())
    return jax.ShapeDtypeStruct(shape, jax_dtype(dtype), sharding=sharding)


MOST_TRIED = 48  # per kind of answer; three axes on three dimensions would make 64
MOST_SHOWN = 8
# Indexing takes `out_sharding` in `.at[...]`, which puts `auto_axes` around the operation.
_INDEXING = ("gather", "scatter")
Operands = tuple[Spec, ...]


@dataclass(frozen=True)
class _Tried:
    """One answer that jax accepted."""

    out: Spec
    collectives: tuple[Collective, ...] | None
    resharded: Operands | None = None
    wrapped: bool = False

    @property
    def rank(self) -> tuple[Any, ...]:
        """What answers are sorted by: a sum that is only deferred is no saving."""
        if self.collectives is None:
            return False, 0, 0, 0, 0  # the likely ones stay first
        sent = sum(c.sent_bytes or 0 for c in self.collectives)
        changed = 0 if self.resharded is None else len(self.resharded)
        return bool(self.out.unreduced), sent, len(self.collectives), changed, -len(self.out.axes)


def choices(refused: Refused) -> tuple[Choice, ...]:
    """What jax would accept in place of a refused operation, the cheapest by the estimate first.

    Where the operation takes an `out_sharding`, shardings of its result; where it takes none, or
    none is accepted, shardings that its operands can be brought to first; and where that does not
    help either, shardings of the result of `jax.sharding.auto_axes` around it.
    """
    mesh = _mesh_of(refused.operands)
    if mesh is None:
        return ()
    tried: list[_Tried] = []
    for accepted in (_accepted_outputs, _accepted_operands, _accepted_inside):
        tried = tried or list(accepted(refused, mesh))
    best: dict[Spec, _Tried] = {}
    for one in sorted(tried, key=lambda t: t.rank):
        best.setdefault(one.out, one)
    names = _names(refused)
    specs = [spec_of(o) for o in refused.operands]
    return tuple(
        Choice(
            one.out,
            None if one.collectives is None else _named(one.collectives, names),
            _words(one, names, specs),
        )
        for one in list(best.values())[:MOST_SHOWN]
    )


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
    return joined(parts)


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
    """The compiler decides inside the operation, and only the result's sharding is given.

    Shardy's estimate was wrong for seven of eight such shardings of `w[i]`, so none is given.
    """
    for spec in _placements(refused, mesh):
        out = NamedSharding(mesh, spec.to_jax())
        answer = jax.sharding.auto_axes(refused.apply, out_sharding=out)
        for found in _try(answer, refused, mesh, wrapped=wrapped):
            yield replace(found, collectives=None)


def _accepted_operands(refused: Refused, mesh: AbstractMesh) -> Iterator[_Tried]:
    for specs in itertools.islice(_operand_specs(refused, mesh), MOST_TRIED):

        def answer(*values: Any, specs: Operands = specs) -> Any:
            pairs = zip(values, specs, strict=True)
            return refused.apply(*(jax.sharding.reshard(v, s.to_jax()) for v, s in pairs))

        yield from _try(answer, refused, mesh, resharded=specs)


def _try(answer: Any, refused: Refused, mesh: AbstractMesh, **how: Any) -> Iterator[_Tried]:
    try:
        results, found = cost(answer, refused.operands, mesh)
    except Exception:  # noqa: BLE001  jax refuses in many ways; what it refuses is not offered
        return
    yield _Tried(spec_of(results[0]), found, **how)


def _result_shape(refused: Refused) -> tuple[int, ...] | None:
    """The shape of the result, found by evaluating it without any sharding."""
    bare = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in refused.operands]
    changes = {refused.out_param: None} if refused.out_param else {}
    try:
        found = jax.eval_shape(lambda *v: refused.apply(*v, **changes), *bare)
    except Exception:  # noqa: BLE001  where even that fails there is nothing to offer
        return None
    leaves = jax.tree.leaves(found)
    return tuple(leaves[0].shape) if len(leaves) == 1 else None


def _placements(refused: Refused, mesh: AbstractMesh) -> list[Spec]:
    """The specs of a result over the axes of the operands, the likely ones first."""
    operands, shape, sums = refused.operands, _result_shape(refused), refused.name == "dot_general"
    if shape is None:
        return []
    specs = [spec_of(o) for o in operands]
    axes = _axes(specs, mesh)
    now = {
        (axis, size) for o, s in zip(operands, specs, strict=True)
        for size, dim in zip(o.shape, s.dims, strict=True) for axis in dim
    }  # fmt: skip
    unreduced = len(shape) + 1  # after the numbers of dimensions: replicated, then not summed yet
    found = []
    for numbers in itertools.product(range(unreduced + sums), repeat=len(axes)):
        dims = tuple(tuple(a for a, p in zip(axes, numbers, strict=True) if p == n)
                     for n in range(len(shape)))  # fmt: skip
        later = frozenset(a for a, p in zip(axes, numbers, strict=True) if p == unreduced)
        if _divides(shape, dims, mesh):
            kept = sum((a, shape[n]) in now for n, dim in enumerate(dims) for a in dim)
            found.append((-kept, len(later), Spec(dims, unreduced=later)))
    found.sort(key=lambda entry: entry[:2])
    return [spec for *_, spec in found[:MOST_TRIED]]


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
    """Every operand as one of them is; dimensions of size 1 are not split."""
    if len({len(s) for s in shapes if s}) != 1 or len(shapes) < 2:
        return
    rank = max(len(s) for s in shapes)
    for model in [s for s in now if len(s.dims) == rank] + [Spec(((),) * rank)]:
        yield tuple(
            Spec(tuple(d if n > 1 else () for n, d in zip(shape, model.dims, strict=False)))
            for shape in shapes
        )


def _dropped(now: Operands) -> Iterator[Operands]:
    """With some split dimensions gathered, few before many."""
    split = [(o, d) for o, spec in enumerate(now) for d, dim in enumerate(spec.dims) if dim]
    for count in range(1, len(split) + 1):
        for dropped in itertools.combinations(split, count):
            yield tuple(
                Spec(tuple(() if (o, d) in dropped else dim for d, dim in enumerate(spec.dims)))
                for o, spec in enumerate(now)
            )


def _moved(
    shapes: Sequence[tuple[int, ...]], now: Operands, mesh: AbstractMesh
) -> Iterator[Operands]:
    """With the axes of one operand on other dimensions of it."""
    for number, spec in enumerate(now):
        axes = _axes([spec], mesh)
        for numbers in itertools.product(range(len(shapes[number])), repeat=len(axes)):
            dims = tuple(tuple(a for a, p in zip(axes, numbers, strict=True) if p == n)
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

    def cause(sentence: str) -> str:
        named = re.sub(r"\bvalues\[(\d+)\]", lambda found: names[int(found[1])], sentence)
        return named if sentence[:1] == named[:1] else named[:1].upper() + named[1:]

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
    cost_words = "what it costs is known once it is compiled"
    if tried.collectives is not None:
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
