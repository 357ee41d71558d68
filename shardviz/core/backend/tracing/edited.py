"""A program whose function is a jaxpr, which edits inside of the function change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from shardviz.core.backend.bridge import abstract_mesh, named_sharding
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
from shardviz.core.program.program import Program

# Inside of these a value is one device's block, which no constraint can split.
_MANUAL = ("shard_map", "xla_pmap")

#: Where an operation is: the number of an equation, then for each call around it the
#: number of the jaxpr among those of its parameters, and an equation in that.
Path = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class JaxprFunction:
    """A function that is a jaxpr, with the arguments and results of what was traced.

    Attributes:
        jaxpr: the closed jaxpr, before the constraints.
        returned: how its results form what the function returned.
        constraints: path and number of a result, to the spec that it is constrained to.
        mesh: the mesh of these specs.
        name: what the function is called.
        user: the user's function.
    """

    jaxpr: Any
    returned: Returned
    mesh: MeshSpec
    name: str
    user: Callable[..., Any]
    constraints: Mapping[tuple[Path, int], Spec] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        # Under these names jax and `inspect` look for them.
        object.__setattr__(self, "__name__", self.name)
        object.__setattr__(self, "__wrapped__", self.user)

    def __call__(self, *arguments: Any) -> Any:
        jaxpr = _constrained(self.jaxpr, self.constraints, self.mesh, ())
        results = jaxpr_as_fun(jaxpr)(*jax.tree.leaves(arguments))
        if any(self.returned.before):
            # What the function changed in place is no part of a tree.
            return tuple(results)
        return self.returned.unflatten(results)

    def with_constraint(self, path: Path, result: int, spec: Spec) -> JaxprFunction:
        """The same function with one more constraint."""
        constraints = {**self.constraints, (path, result): spec}
        return dataclasses.replace(self, constraints=constraints)

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
        specs = SpecsByName(
            {f"output[{i}]": spec for i, spec in enumerate(traced.out_specs)}
        )
    return program.replace(fn=function, out_specs=specs)


@dataclass(frozen=True)
class TracedValue:
    """A value inside a traced program, which can be constrained.

    Attributes:
        path, result: the operation, and which of its results it is.
        name: the operation, as jax calls it.
        source: the user's line; `""` where there is none.
        shape: its shape.
        around: the loops and calls around it, outermost first.
        op: the operation with the functions and transformations around it.
    """

    path: Path
    result: int
    name: str
    source: str
    shape: tuple[int, ...]
    around: tuple[str, ...] = ()
    op: str = ""


def values_of(program: Program) -> Iterator[TracedValue]:
    """The values inside a program with a JaxprFunction that a constraint can split."""
    function = program.fn
    assert isinstance(function, JaxprFunction)
    yield from _values(function.jaxpr, (), ())


def _values(jaxpr: Any, path: Path, around: tuple[str, ...]) -> Iterator[TracedValue]:
    for number, equation in enumerate(plain_jaxpr(jaxpr).eqns):
        here, name = (*path, number), equation.primitive.name
        stack = str(getattr(equation.source_info, "name_stack", ""))
        for result, variable in enumerate(equation.outvars):
            shape = getattr(variable.aval, "shape", ())
            if shape:
                source = users_line(equation)
                op = f"{stack}/{name}".lstrip("/")
                yield TracedValue(here, result, name, source, shape, around, op)
        if name in _MANUAL:
            continue
        for inner, called in enumerate(_inner(equation)):
            yield from _values(called, (*here, inner), (*around, name))


def _inner(equation: Any) -> list[Any]:
    """The jaxprs that an equation calls, in the order of its parameters."""
    found: list[Any] = []

    def collect(jaxpr: Any) -> Any:
        found.append(jaxpr)
        return jaxpr

    with_inner(equation, collect)
    return found


def _constrained(
    jaxpr: Any, constraints: Mapping[tuple[Path, int], Spec], mesh: MeshSpec, path: Path
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
        added = []
        for result, variable in enumerate(equation.outvars):
            spec = constraints.get((here, result))
            if spec is None:
                continue
            # The operation gets a new variable; the constraint makes the old one of it,
            # which is what all others read.
            constraint = _constraint(variable.aval, spec, mesh)
            outvars = list(equation.outvars)
            outvars[result] = constraint.invars[0]
            equation = equation.replace(outvars=outvars)
            added.append(
                constraint.replace(outvars=[variable], source_info=equation.source_info)
            )
        equations += [equation, *added]
    return with_equations(jaxpr, equations)


def _constraint(aval: Any, spec: Spec, mesh: MeshSpec) -> Any:
    """An operation that constrains one value, with variables of its own."""
    sharding = named_sharding(abstract_mesh(mesh), spec)
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    explicit = set(mesh.axis_types) == {"Explicit"}
    call = jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint
    made = jax.make_jaxpr(lambda x: call(x, sharding))(shape)
    (equation,) = plain_jaxpr(made).eqns
    return equation
