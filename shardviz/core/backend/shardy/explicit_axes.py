"""Programs with Explicit axes: shardings in types, and the diagnosis of a program jax refuses.

With Explicit axes the sharding is part of a value's type. Where jax cannot infer the type of a
result it raises and asks for `out_sharding`; a diagnosis lists what it would accept, with costs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardviz.core.backend.bridge import adopt_spec, jax_dtype
from shardviz.core.backend.failures import source_of
from shardviz.core.backend.shardy.explicit_choices import choices, moved, price
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
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import Choice, Diagnosis, PlannedOp
from shardviz.core.program.program import Program

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
        answers.sort(key=lambda choice: sum(c.sent_bytes or 0 for c in choice.collectives))
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
    answers = [_answer(o, wanted, mesh, "in place of the constraint") for o in
               (refused.operands[:1] if refused else ())]  # fmt: skip
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
