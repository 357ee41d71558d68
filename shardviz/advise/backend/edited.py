"""Adds sharding constraints to the jaxpr of a program.

A line of code may be traced several times: once per layer, and again for a gradient.
One constraint in the code is then several in the jaxpr. jax also constrains the
cotangent of a constrained value, and so does this module.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from shardviz.advise.edits import (
    CONSTRAINTS,
    ChangeConstraint,
    ConstrainArgument,
    ConstrainValue,
    Place,
)
from shardviz.base.backend.jax_compat import (
    expression_of,
    line_frames,
)
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.source_lines import is_user_file
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.bridge import abstract_mesh, named_sharding
from shardviz.programs.backend.jaxprs import (
    plain_jaxpr,
    rewritten,
    users_line,
    with_body,
    with_inner,
)
from shardviz.programs.program import Program

# Inside a shard_map or pmap, a value is one device's block, which no constraint can
# split.
_MANUAL = ("shard_map", "xla_pmap")
_JAX = os.path.dirname(jax.__file__) + os.sep
_ASSIGNED = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)")


class PlacedOperation(NamedTuple):
    """An equation traced from the user's code.

    Attributes:
        equation: the jaxpr equation.
        line: (file name, line number) in the user's code.
        around: jax's name stack, including the stacks of enclosing calls.
        in_library: whether a library other than jax, such as flax, created it.
    """

    equation: Any
    line: tuple[str, int]
    around: str
    in_library: bool

    @property
    def name(self) -> str:
        return operation_name(self.equation)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(getattr(self.equation.outvars[0].aval, "shape", ()))

    @property
    def is_backward(self) -> bool:
        # Values that `jax.checkpoint` recomputes count as forward values.
        around = self.around
        return "transpose(" in around and "rematted_computation" not in around


def operation_name(equation: Any) -> str:
    """Returns the name of an equation's primitive or, for a call, of its callee."""
    # A call's primitive is always named jit or pjit, so use the callee's name.
    name = names.CALL_NAME.find(equation, None)
    if isinstance(name, str) and names.CALL_BODY.find(equation, None) is not None:
        return name
    return equation.primitive.name


def placed_operations(jaxpr: Any, around: str = "") -> Iterator[PlacedOperation]:
    """Yields the operations of the user's code; those inside a call follow the call."""
    for equation in plain_jaxpr(jaxpr).eqns:
        inside, in_library = f"{around}/{equation.source_info.name_stack}", False
        for frame in line_frames(equation):
            if is_user_file(frame.file_name) and equation.outvars:
                line = (frame.file_name, frame.line_num)
                yield PlacedOperation(equation, line, inside, in_library)
                break
            # Ignore frames in Python's standard library, such as those of a decorator.
            is_installed = "-packages" + os.sep in frame.file_name
            in_library |= is_installed and not frame.file_name.startswith(_JAX)
        if equation.primitive.name not in _MANUAL:
            called: list[Any] = []
            with_inner(equation, called.append)
            for body in called:
                yield from placed_operations(body, inside)


def with_constrained_value(jaxpr: Any, edit: ConstrainValue, mesh: MeshSpec) -> Any:
    """Returns a jaxpr with the edit's constraint at every occurrence of its value."""
    # `edit.places` numbers the equations that have the edit's line and operation.
    operands, numbers = dict(edit.places), itertools.count()

    def changed(body: Any) -> Any:
        # Like jax, constrain a cotangent once even if several equations read it, such
        # as the gradients of both factors of a product.
        cotangents: dict[Any, Any] = {}

        def change(equation: Any) -> list[Any]:
            number = -1
            is_named = operation_name(equation) == edit.operation and equation.outvars
            if is_named and users_line(equation) == edit.source:
                number = next(numbers)
            if equation.primitive.name not in _MANUAL:
                equation = with_inner(equation, changed)
            if number not in operands:
                return [equation]
            operand = operands[number]
            if operand is None or equation.primitive.name in CONSTRAINTS:
                return _constrained(equation, edit.spec, mesh)
            return _with_constrained_operand(
                equation, operand, edit.spec, mesh, cotangents
            )

        return rewritten(body, change)

    return changed(jaxpr)


def with_constrained_argument(
    jaxpr: Any, edit: ConstrainArgument, mesh: MeshSpec
) -> Any:
    """Returns a jaxpr that starts by constraining one argument."""
    body = plain_jaxpr(jaxpr)
    arguments, argument = list(body.invars), body.invars[edit.number]
    constraint = _constraint(argument.aval, edit.spec, mesh)
    # The constraint's result takes over the argument's variable, so the equations that
    # read it stay unchanged.
    arguments[edit.number] = constraint.invars[0]
    equations = [constraint.replace(outvars=[argument]), *body.eqns]
    return with_body(jaxpr, body.replace(invars=arguments, eqns=equations))


def _constrained(equation: Any, spec: Spec, mesh: MeshSpec) -> list[Any]:
    """Returns an equation followed by a constraint on its first result."""
    result, *other_results = equation.outvars
    constraint = _constraint(result.aval, spec, mesh)
    constraint = constraint.replace(source_info=equation.source_info)
    if equation.primitive.name in CONSTRAINTS:
        # Replace an existing constraint; if a second one were added, both would apply.
        return [constraint.replace(invars=equation.invars, outvars=equation.outvars)]
    # The operation assigns a new variable. The constraint reads it and assigns the old
    # variable, so the equations that read the old variable stay unchanged.
    equation = equation.replace(outvars=[constraint.invars[0], *other_results])
    return [equation, constraint.replace(outvars=[result])]


def _with_constrained_operand(
    equation: Any, operand: int, spec: Spec, mesh: MeshSpec, constrained: dict[Any, Any]
) -> list[Any]:
    """Returns an equation preceded by a constraint on one of its operands.

    If `constrained` already has a constraint on that operand, it is reused.
    """
    operands, equations = list(equation.invars), []
    value = operands[operand]
    if value not in constrained:
        constraint = _constraint(value.aval, spec, mesh)
        constraint = constraint.replace(
            invars=[value], source_info=equation.source_info
        )
        constrained[value] = constraint.outvars[0]
        equations.append(constraint)
    operands[operand] = constrained[value]
    return [*equations, equation.replace(invars=operands)]


def _constraint(aval: Any, spec: Spec, mesh: MeshSpec) -> Any:
    """Returns a constraint equation with new variables."""
    on, constrain = abstract_mesh(mesh), jax.lax.with_sharding_constraint
    if set(mesh.axis_types) == {"Explicit"}:
        # On Explicit axes the mesh must equal the one in the value's type, which also
        # records the kind of device.
        on, constrain = aval.sharding.mesh, jax.sharding.reshard
    sharding = named_sharding(on, spec)
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    traced = jax.make_jaxpr(lambda x: constrain(x, sharding))(shape)
    (constraint,) = plain_jaxpr(traced).eqns
    return constraint


class TracedValue(NamedTuple):
    """A value that a sharding constraint in the user's code can split.

    Attributes:
        operation: jax's name of the operation, or of a function under `jax.jit`.
        variable: the variable that holds the value; `""` for a subexpression.
        source: the source line that computes the value.
        shape: the value's shape.
        places: the equations and operands that a constraint applies to in the jaxpr.
        has_other_shapes: whether the line also runs with other shapes, for example in
            other layers of a model.
    """

    operation: str
    variable: str
    source: str
    shape: tuple[int, ...]
    places: tuple[Place, ...]
    has_other_shapes: bool = False

    def constrained(self, spec: Spec) -> ConstrainValue:
        """Returns the edit that constrains the value to a spec."""
        is_constraint = self.operation in CONSTRAINTS
        edit = ChangeConstraint if is_constraint else ConstrainValue
        where = (self.operation, self.variable, self.source, self.shape)
        return edit(*where, spec, self.places, self.has_other_shapes)


def values_of(program: Program) -> list[TracedValue]:
    """Returns the values that a sharding constraint in the user's code can split.

    The program's function must be a `JaxprFunction`. Values that the code can't
    constrain individually are omitted (each product of `x @ w @ w`, values inside a
    flax layer), as are values whose cotangents can't be identified.
    """
    # Keys are ids of variables.
    makers: dict[int, PlacedOperation] = {}
    readers: dict[int, list[PlacedOperation]] = {}
    # Ids of variables that another line reads.
    read: set[int] = set()
    # Keys are (source line, operation name).
    by_line: dict[Any, list[PlacedOperation]] = {}
    for operation in placed_operations(program.fn.jaxpr):  # type: ignore[attr-defined]
        for variable in operation.equation.invars:
            readers.setdefault(id(variable), []).append(operation)
            maker = makers.get(id(variable))
            if (
                maker is not None
                and maker.line != operation.line
                and not operation.is_backward
            ):
                read.add(id(variable))
        for variable in operation.equation.outvars:
            makers[id(variable)] = operation
        by_line.setdefault((users_line(operation.equation), operation.name), []).append(
            operation
        )
    values = []
    for (source, name), alike in by_line.items():
        forward: dict[Any, list[tuple[int, PlacedOperation]]] = {}
        for number, operation in enumerate(alike):
            if operation.shape and not operation.is_backward:
                forward.setdefault(operation.shape, []).append((number, operation))
        for shape, numbered in forward.items():
            first, variable = numbered[0][1], ""
            places: list[Place] = []
            expressions = set()
            for number, operation in numbered:
                places.append((number, None))
                expressions.add(expression_of(operation.equation, operation.line[0]))
            cotangents = _cotangents(alike, shape, makers)
            if len(expressions) > 1 or ("jvp(" in first.around and not cotangents):
                continue
            if id(first.equation.outvars[0]) in read:
                assigned = _ASSIGNED.match(linecache.getline(*first.line))
                variable = "" if assigned is None else assigned[1]
            if first.in_library and not variable:
                continue
            # Under `jax.vmap`, the value in the code has fewer dimensions than here.
            if "vmap(" in first.around or (not variable and _is_inner(first, readers)):
                continue
            places += cotangents
            alone = (name, variable, source, shape, tuple(places))
            values.append(TracedValue(*alone, has_other_shapes=len(forward) > 1))
    return values


def _is_inner(
    operation: PlacedOperation, readers: Mapping[int, Sequence[PlacedOperation]]
) -> bool:
    """Whether the expression around a value has a result of another shape.

    For example, an einsum may transpose its product.
    """
    expression = expression_of(operation.equation, operation.line[0])
    for reader in readers.get(id(operation.equation.outvars[0]), ()):
        on_line = reader.line == operation.line and reader.shape != operation.shape
        if on_line and expression is not None and not reader.is_backward:
            if expression_of(reader.equation, reader.line[0]) == expression:
                return True
    return False


def _cotangents(
    alike: Sequence[PlacedOperation],
    shape: tuple[int, ...],
    makers: Mapping[int, PlacedOperation],
) -> list[Place]:
    """Finds the cotangents of a value among the backward operations of its line.

    Args:
        alike: all operations with the value's source line and name.
        shape: the value's shape.
        makers: id of a variable -> the operation that assigns it.

    Returns:
        The (operation number, operand number) of each cotangent; empty if ambiguous.
    """
    places: list[Place] = []
    for place, operation in enumerate(alike):
        fitting, computed = [], []
        for number, variable in enumerate(operation.equation.invars):
            maker = makers.get(id(variable))
            is_saved = maker is not None and not maker.is_backward
            is_literal = hasattr(variable, "val")
            if variable.aval.shape == shape and not is_saved and not is_literal:
                fitting.append(number)
                computed += [number] * (maker is not None)
        # jax's transpose rule for dot_general puts the cotangent first.
        if operation.name == "dot_general":
            fitting = [number for number in fitting if number == 0]
        elif len(computed) == 1:
            fitting = computed
        if operation.is_backward and len(fitting) > 1:
            return []
        if operation.is_backward and fitting:
            places.append((place, fitting[0]))
    return places
