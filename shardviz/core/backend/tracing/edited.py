"""A program whose function is a jaxpr, which edits inside of the function change.

A line of code may run several times in a program: for each layer, and again for a
gradient. So one constraint in the code is several in the jaxpr. jax also puts one on
the cotangent of a value that is constrained, and so does this.
"""

from __future__ import annotations

import ast
import dataclasses
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh, named_sharding
from shardviz.core.backend.jax_compat import expression_of, line_frames
from shardviz.core.backend.tracing.build_program import Returned, SpecsByName
from shardviz.core.backend.tracing.jaxprs import (
    plain_jaxpr,
    users_line,
    with_equations,
    with_inner,
)
from shardviz.core.backend.tracing.trace import Traced, trace
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.candidates import CONSTRAINTS
from shardviz.core.program.program import Program
from shardviz.core.xla.module import is_user_file

#: Where an equation is: its number, then for each call around it the number of the
#: jaxpr among those of its parameters, and of an equation in that.
Path = tuple[int, ...]
#: A result of an equation, by its number; or with -1, -2 … an operand, from the first.
Place = tuple[Path, int]


@dataclass(frozen=True, eq=False)
class JaxprFunction:
    """A function that is a jaxpr, with the arguments and results of what was traced.

    Attributes:
        jaxpr: the closed jaxpr, before the constraints.
        returned: how its results form what the function returned.
        mesh: the mesh of the constraints.
        name: what the function is called.
        user: the user's function.
        constraints: each value that is constrained, to its spec.
    """

    jaxpr: Any
    returned: Returned
    mesh: MeshSpec
    name: str
    user: Callable[..., Any]
    constraints: Mapping[Place, Spec] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # Under these names jax and `inspect` look for them.
        object.__setattr__(self, "__name__", self.name)
        object.__setattr__(self, "__wrapped__", self.user)

    def __call__(self, *arguments: Any) -> Any:
        results = jaxpr_as_fun(self.constrained_jaxpr)(*jax.tree.leaves(arguments))
        if any(self.returned.before):
            # What the function changed in place is no part of a tree.
            return tuple(results)
        return self.returned.unflatten(results)

    def with_constraints(self, places: Sequence[Place], spec: Spec) -> JaxprFunction:
        """The same function with constraints on more values."""
        more = dict.fromkeys(places, spec)
        return dataclasses.replace(self, constraints={**self.constraints, **more})

    def with_jaxpr(self, jaxpr: Any) -> JaxprFunction:
        """The same function with another jaxpr, such as one rewritten."""
        return dataclasses.replace(self, jaxpr=jaxpr, constraints={})

    @property
    def constrained_jaxpr(self) -> Any:
        """The jaxpr with its constraints."""
        return _constrained(self.jaxpr, self.constraints, self.mesh, ())


def as_jaxpr(program: Program, traced: Traced | None = None) -> Program:
    """The same program with a JaxprFunction, traced here unless that has happened.

    Raises:
        Exception: whatever the function raises when it is traced.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(jax.numpy.sin, (ArraySpec("x", (8,)),), make_mesh(data=4))
    >>> as_jaxpr(program).fn.name
    'sin'
    """
    if isinstance(program.fn, JaxprFunction):
        return program
    if traced is None:
        traced = trace(program, abstract_mesh(program.mesh))
    function = JaxprFunction(
        traced.stage.jaxpr,
        traced.out_tree,
        program.mesh,
        program.name,
        getattr(program.fn, "fn", program.fn),
    )
    specs = program.out_specs
    if specs is not None and any(traced.out_tree.before):
        by_number = enumerate(traced.out_specs)
        specs = SpecsByName({f"output[{i}]": spec for i, spec in by_number})
    return program.replace(fn=function, out_specs=specs)


@dataclass(frozen=True)
class TracedValue:
    """A value of the user's code, which can be constrained there.

    Attributes:
        name: the operation, as jax calls it, or a function under `jax.jit`.
        variable: the variable that its line assigns it to; `""` for a part of an
            expression.
        source: the user's line.
        shape: its shape.
        number: where it is among all operations of the program.
        places: where a constraint in the code comes to be; `()` where the cotangents of
            a gradient are not known, or its line has several values of this name.
        is_read: whether another line reads it.
    """

    name: str
    variable: str
    source: str
    shape: tuple[int, ...]
    number: int
    places: tuple[Place, ...]
    is_read: bool = False


class PlacedOperation(NamedTuple):
    """An equation of the user's code: its line, and what jax writes around its name."""

    equation: Any
    path: Path
    line: tuple[str, int]
    around: str

    @property
    def name(self) -> str:
        # jax calls it jit or pjit; the function has a name of its own.
        name = self.equation.params.get("name")
        is_call = isinstance(name, str) and "jaxpr" in self.equation.params
        return name if is_call else self.equation.primitive.name

    @property
    def is_backward(self) -> bool:
        # What a checkpoint computes again is as in the forward pass.
        around = self.around
        return "transpose(" in around and "rematted_computation" not in around


def values_of(program: Program) -> list[TracedValue]:
    """The values in a program with a JaxprFunction that a constraint can split."""
    function = program.fn
    assert isinstance(function, JaxprFunction)
    found = list(placed_operations(function.jaxpr, (), ""))
    makers: dict[int, PlacedOperation] = {}
    instances: dict[Any, list[tuple[int, PlacedOperation]]] = {}
    backward: dict[Any, list[PlacedOperation]] = {}
    read: set[int] = set()
    for number, one in enumerate(found):
        for variable in one.equation.invars:
            maker = makers.get(id(variable))
            if maker is not None and maker.line != one.line and not one.is_backward:
                read.add(id(variable))
        makers |= {id(variable): one for variable in one.equation.outvars}
        shape = tuple(getattr(one.equation.outvars[0].aval, "shape", ()))
        if one.is_backward:
            backward.setdefault((one.line, one.name), []).append(one)
        elif shape:
            instances.setdefault((one.line, one.name, shape), []).append((number, one))
    values = []
    for (line, name, shape), forward in instances.items():
        number, first = forward[0]
        places: tuple[Place, ...] = tuple((one.path, 0) for _, one in forward)
        expressions = {expression_of(one.equation, line[0]) for _, one in forward}
        if len(expressions) > 1:
            # As of `x @ w @ w`: no name of the line tells one from the other.
            places = ()
        if places and backward and "jvp(" in first.around:
            cotangents = _cotangents(backward.get((line, name), ()), shape, makers)
            places = places + cotangents if cotangents else ()
        is_read = id(first.equation.outvars[0]) in read
        variable = _assigned(*line) if is_read else ""
        source = users_line(first.equation)
        values.append(
            TracedValue(name, variable, source, shape, number, places, is_read)
        )
    return values


def placed_operations(jaxpr: Any, path: Path, around: str) -> Iterator[PlacedOperation]:
    """The operations of the user's code, those of a call after it."""
    for number, equation in enumerate(plain_jaxpr(jaxpr).eqns):
        here, inside = (*path, number), f"{around}/{equation.source_info.name_stack}"
        for frame in line_frames(equation):
            if is_user_file(frame.file_name) and equation.outvars:
                line = (frame.file_name, frame.line_num)
                yield PlacedOperation(equation, here, line, inside)
                break
        # In these a value is one device's block, which no constraint can split.
        if equation.primitive.name in ("shard_map", "xla_pmap"):
            continue
        for inner, called in enumerate(_inner(equation)):
            yield from placed_operations(called, (*here, inner), inside)


def _assigned(file: str, number: int) -> str:
    """The one variable that a line of code assigns; `""` for any other line."""
    try:
        (statement,) = ast.parse(linecache.getline(file, number).strip()).body
    except (SyntaxError, ValueError):
        return ""
    targets = getattr(statement, "targets", None) or ()
    if len(targets) == 1 and isinstance(targets[0], ast.Name):
        return targets[0].id
    return ""


def _cotangents(
    backward: Sequence[PlacedOperation],
    shape: tuple[int, ...],
    makers: Mapping[int, PlacedOperation],
) -> tuple[Place, ...]:
    """The cotangents of a value: operands of what its operation is in a gradient.

    Args:
        backward: what its operation is in a gradient.
        shape: its shape.
        makers: id of a variable to the operation that makes it.

    Returns:
        `()` where it is not sure which operands they are.
    """
    places: list[Place] = []
    for one in backward:
        operands = one.equation.invars
        fitting, made = [], []
        for number, variable in enumerate(operands):
            maker = makers.get(id(variable))
            is_saved = maker is not None and not maker.is_backward
            if getattr(variable.aval, "shape", None) == shape and not is_saved:
                if not hasattr(variable, "val"):
                    fitting.append(number)
                    made += [number] * (maker is not None)
        # jax's rule for products has the cotangent first.
        if one.name == "dot_general" and 0 in fitting:
            made = [0]
        if len(made) == 1:
            fitting = made
        if len(fitting) > 1:
            return ()
        places += [(one.path, -1 - number) for number in fitting]
    return tuple(places)


def _inner(equation: Any) -> list[Any]:
    """The jaxprs that an equation calls, in the order of its parameters."""
    found: list[Any] = []

    def collect(jaxpr: Any) -> Any:
        found.append(jaxpr)
        return jaxpr

    with_inner(equation, collect)
    return found


def _constrained(
    jaxpr: Any, constraints: Mapping[Place, Spec], mesh: MeshSpec, path: Path
) -> Any:
    if not any(where[: len(path)] == path for where, _ in constraints):
        return jaxpr
    equations: list[Any] = []
    for number, equation in enumerate(plain_jaxpr(jaxpr).eqns):
        here = (*path, number)
        counted = iter(range(len(_inner(equation))))

        def inside(inner: Any, here: Path = here, counted: Any = counted) -> Any:
            return _constrained(inner, constraints, mesh, (*here, next(counted)))

        equation = with_inner(equation, inside)
        if equation.primitive.name in CONSTRAINTS:
            # One that stands there is changed; with a second one both would hold.
            spec = constraints.get((here, 0), constraints.get((here, -1)))
            if spec is not None:
                made = _constraint(equation, equation.outvars[0].aval, spec, mesh)
                same = {"invars": equation.invars, "outvars": equation.outvars}
                equation = made.replace(**same)
            equations.append(equation)
            continue
        for operand, variable in enumerate(equation.invars):
            spec = constraints.get((here, -1 - operand))
            if spec is not None:
                made = _constraint(equation, variable.aval, spec, mesh)
                operands = list(equation.invars)
                operands[operand] = made.outvars[0]
                equation = equation.replace(invars=operands)
                equations.append(made.replace(invars=[variable]))
        after = []
        for result, variable in enumerate(equation.outvars):
            spec = constraints.get((here, result))
            if spec is not None:
                # The operation gets a new variable, and the constraint makes the old
                # one of it, which is what all others read.
                made = _constraint(equation, variable.aval, spec, mesh)
                results = list(equation.outvars)
                results[result] = made.invars[0]
                equation = equation.replace(outvars=results)
                after.append(made.replace(outvars=[variable]))
        equations += [equation, *after]
    return with_equations(jaxpr, equations)


def _constraint(equation: Any, aval: Any, spec: Spec, mesh: MeshSpec) -> Any:
    """An operation that constrains one value, with variables of its own.

    Args:
        equation: the operation whose line it has.
        aval: the type of the value.
        spec: what it is constrained to.
        mesh: the mesh of the spec.
    """
    sharding = named_sharding(abstract_mesh(mesh), spec)
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    constrain = jax.lax.with_sharding_constraint
    if set(mesh.axis_types) == {"Explicit"}:
        constrain = jax.sharding.reshard
    made = jax.make_jaxpr(lambda x: constrain(x, sharding))(shape)
    (constraint,) = plain_jaxpr(made).eqns
    return constraint.replace(source_info=equation.source_info)
