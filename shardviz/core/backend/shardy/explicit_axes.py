"""Programs with Explicit axes: shardings in types, and why jax refuses a program.

With Explicit axes the sharding is part of a value's type. Where jax cannot infer the
type of a result it raises and asks for `out_sharding`; what it would accept is found
and priced in `explicit_choices`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from shardviz.core.backend.bridge import adopt_spec, jax_dtype
from shardviz.core.backend.failures import source_of
from shardviz.core.backend.jax_compat import complete_tracebacks
from shardviz.core.backend.shardy.explicit_choices import choices, reshard_choice
from shardviz.core.backend.shardy.explicit_errors import (
    Refused,
    is_sharding_error,
    problem,
    refused_in,
    spec_of,
)
from shardviz.core.backend.tracing.jaxprs import operations
from shardviz.core.backend.tracing.trace import trace
from shardviz.core.errors import SpecError
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_notes import Refusal, TypeNote
from shardviz.core.program.plan_values import Diagnosis, PlannedOp
from shardviz.core.program.program import Program

Key = tuple[str, tuple[int, ...]]

# How jax 0.10 to 0.12 write that types differ, around a loop or between branches, and
# that a constraint does not hold.
_TYPE = r"(\w+)\[([^\]]*)\]"
_CARRY = re.compile(
    rf"carry(?: input)?(?: component)? (\S+) has type {_TYPE},? but the corresponding"
    rf" output carry component(?: \S+)? has type {_TYPE}"
)
_BRANCH = re.compile(
    rf"output(.*?) of \w+(?: at path \S+)? has type {_TYPE} but the corresponding output"
    rf" of \w+ has type {_TYPE}",
    re.S,
)
_ASSERTED = re.compile(
    r"array sharding: (P\(.*?\)) did not match .*?provided: (P\(.*?\))\. "
)
_SIZE = re.compile(r"(\d+)(?:@\(([^)]*)\)|@(\w+))?")  # 8, 8@x or 8@(x,y)


def typed_specs(jaxpr: Any) -> Mapping[Key, tuple[Spec, ...]]:
    """The shardings in the types of a traced program, by operation and shape.

    Args:
        jaxpr: what `jax.jit(f).trace(...).jaxpr` gives; functions called inside count
            too. What happens where axes are Auto or Manual has no sharding in its type
            and is left out.

    >>> import jax, jax.numpy as jnp
    >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
    >>> mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    >>> split = NamedSharding(mesh, PartitionSpec("x"))
    >>> a = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=split)
    >>> typed_specs(jax.jit(lambda a: jnp.sin(a).sum(1)).trace(a).jaxpr)
    {('sin', (8, 4)): (P('x', None),), ('reduce_sum', (8,)): (P('x'),)}
    """
    specs: dict[Key, dict[Spec, None]] = defaultdict(dict)
    for operation in operations(jaxpr):
        for made in operation.equation.outvars:
            spec = _typed_spec(made.aval)
            if spec is not None:
                specs[operation.name, tuple(made.aval.shape)][spec] = None
    return {key: tuple(own) for key, own in specs.items()}


def _typed_spec(aval: Any) -> Spec | None:
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or {*(mesh.axis_types or ())} != {AxisType.Explicit}:
        return None
    spec = adopt_spec(sharding.spec)  # type: ignore[union-attr]
    dims = (spec.dims + ((),) * len(aval.shape))[: len(aval.shape)]
    return Spec(dims, unreduced=spec.unreduced)


def note_types(ops: Sequence[PlannedOp], jaxpr: Any) -> tuple[PlannedOp, ...]:
    """The values of a plan, with a note where the propagation differs from the type.

    Args:
        ops: the values.
        jaxpr: as for `typed_specs`.
    """
    types = typed_specs(jaxpr)
    noted = []
    for op in ops:
        called = op.op.rpartition("/")[2]
        specs = types.get((called, op.shape), ())
        # Beside the operation that was called, jax adds others under the same name.
        is_meant = op.kind == "op" and op.name.startswith(called)
        if is_meant and specs and not any(op.spec.equivalent(s) for s in specs):
            op = op.changed(notes=(*op.notes, TypeNote(specs, op.spec)))
        noted.append(op)
    return tuple(noted)


def diagnose(
    error: BaseException, program: Program, mesh: AbstractMesh
) -> Diagnosis | None:
    """Why jax refused to trace a program with Explicit axes, and what it would take.

    Args:
        error: what tracing raised. Where jax has taken its own frames out of the
            traceback, the program is traced once more.
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
    >>> on = AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    >>> try:
    ...     trace(program, on)
    ... except Exception as error:
    ...     found = diagnose(error, program, on)
    >>> found.op, found.operands, found.problem.code
    ('dot_general', ('float32[4,8@x]', 'float32[8@x,4]'), 'inner alike')
    >>> found.choices[0].words
    "P('x', None): an all-reduce of 64 B over x."
    """
    if AxisType.Explicit not in mesh.axis_types or not is_sharding_error(error):
        return None
    diagnosis = _of_carry(error, mesh) or _of_branches(error, mesh)
    if diagnosis is not None:
        return diagnosis
    if isinstance(error, TypeError):  # types that differ in more than their shardings
        return None
    refused = refused_in(error, complete=False) or _refused_again(error, program, mesh)
    diagnosis = _of_assertion(error, refused, mesh)
    if diagnosis is not None:
        return diagnosis
    source, why = source_of(error), problem(refused, error)
    if refused is None:
        return Diagnosis("", source, why)
    return Diagnosis(refused.name, source, why, refused.types, choices(refused))


def _refused_again(
    error: BaseException, program: Program, mesh: AbstractMesh
) -> Refused | None:
    """The refused operation, by tracing once more with jax's frames in the traceback."""
    with complete_tracebacks():
        try:
            trace(program, mesh)
        except Exception as second:  # noqa: BLE001  it is compared with the first
            if str(second) == str(error):
                return refused_in(second)
    return None


def _of_carry(error: BaseException, mesh: AbstractMesh) -> Diagnosis | None:
    """The diagnosis of a loop whose body changes the type of what it carries."""
    found = _CARRY.search(str(error))
    structs = _two_types(found, mesh)
    if found is None or structs is None:
        return None
    before, after = structs
    specs = (spec_of(before), spec_of(after))
    why = Refusal("carry", specs=specs, words=found[1].strip(" :"))
    name = "scan"
    if "while" in str(error).partition("\n")[0]:
        name = "while_loop"
    return Diagnosis(
        name,
        source_of(error),
        why,
        (f"{found[2]}[{found[3]}]", f"{found[4]}[{found[5]}]"),
        (reshard_choice(after, specs[0], mesh, "body"),),
    )


def _of_branches(error: BaseException, mesh: AbstractMesh) -> Diagnosis | None:
    """The diagnosis of branches that give different types."""
    found = _BRANCH.search(str(error))
    structs = _two_types(found, mesh)
    if found is None or structs is None:
        return None
    one, other = structs
    specs = (spec_of(one), spec_of(other))
    answers = [
        reshard_choice(other, specs[0], mesh, "second branch"),
        reshard_choice(one, specs[1], mesh, "first branch"),
    ]
    answers.sort(key=lambda c: sum(one.sent_bytes or 0 for one in c.collectives or ()))
    types = (f"{found[2]}[{found[3]}]", f"{found[4]}[{found[5]}]")
    why = Refusal("branch", specs=specs)
    return Diagnosis("cond", source_of(error), why, types, tuple(answers))


def _two_types(
    found: re.Match[str] | None, mesh: AbstractMesh
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct] | None:
    """The two types that an error names, where they differ in their shardings alone."""
    if found is None:
        return None
    first, second = _struct(found[2], found[3], mesh), _struct(found[4], found[5], mesh)
    if first is None or second is None or first.shape != second.shape:
        return None
    return first, second


def _of_assertion(
    error: BaseException, refused: Refused | None, mesh: AbstractMesh
) -> Diagnosis | None:
    """The diagnosis of a failed with_sharding_constraint, which only checks here."""
    found = _ASSERTED.search(str(error))
    if found is None:
        return None
    try:
        has, wanted = Spec.parse(found[1]), Spec.parse(found[2])
    except SpecError:
        return None
    types: tuple[str, ...] = ()
    answers = []
    if refused is not None:
        types = refused.types[:1]
        # Over another mesh there is no way to reshard.
        if {*wanted.axes} <= {*mesh.axis_names}:
            operand = refused.operands[0]
            answers.append(reshard_choice(operand, wanted, mesh, "constraint"))
    return Diagnosis(
        "with_sharding_constraint",
        source_of(error),
        Refusal("constraint", specs=(has, wanted)),
        types,
        tuple(answers),
    )


def _struct(dtype: str, dims: str, mesh: AbstractMesh) -> jax.ShapeDtypeStruct | None:
    """A type as jax writes it: `float32[8@x,16@(y,z)]`; None over another mesh."""
    shape, parts = [], []
    for size, several, one in _SIZE.findall(dims):
        axes = (several or one).replace(" ", "")
        split = tuple(filter(None, axes.split(",")))
        if not {*split} <= {*mesh.axis_names}:
            return None
        shape.append(int(size))
        parts.append(split)
    sharding = NamedSharding(mesh, Spec.of(*parts).to_jax())
    return jax.ShapeDtypeStruct(tuple(shape), jax_dtype(dtype), sharding=sharding)
