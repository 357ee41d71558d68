"""A program whose function is a jaxpr, which edits inside of the function change.

A line of code may run several times in a program: for each layer, and again for a
gradient. So one constraint in the code is several in the jaxpr. jax also puts one on
the cotangent of a value that is constrained, and so does this.
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

# In these a value is one device's block, which no constraint can split.
_MANUAL = ("shard_map", "xla_pmap")
_JAX = os.path.dirname(jax.__file__) + os.sep
_ASSIGNED = re.compile(r"\s*([^\W\d]\w*)\s*=(?!=)")


class PlacedOperation(NamedTuple):
    """An equation of the user's code: its line, what jax writes around its name, and
    whether another library than jax makes it, as a layer of flax does."""

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
        # Values that a checkpoint recomputes are those of the forward pass.
        around = self.around
        return "transpose(" in around and "rematted_computation" not in around


def operation_name(equation: Any) -> str:
    """jax's name of an operation, or the name of the function that it calls."""
    # jax calls it jit or pjit; the function has a name of its own.
    name = names.CALL_NAME.find(equation, None)
    if isinstance(name, str) and names.CALL_BODY.find(equation, None) is not None:
        return name
    return equation.primitive.name


def placed_operations(jaxpr: Any, around: str = "") -> Iterator[PlacedOperation]:
    """The operations of the user's code, those of a call after it."""
    for equation in plain_jaxpr(jaxpr).eqns:
        inside, in_library = f"{around}/{equation.source_info.name_stack}", False
        for frame in line_frames(equation):
            if is_user_file(frame.file_name) and equation.outvars:
                line = (frame.file_name, frame.line_num)
                yield PlacedOperation(equation, line, inside, in_library)
                break
            # Files of Python itself, as of a decorator, are no library.
            is_installed = "-packages" + os.sep in frame.file_name
            in_library |= is_installed and not frame.file_name.startswith(_JAX)
        if equation.primitive.name not in _MANUAL:
            called: list[Any] = []
            with_inner(equation, called.append)
            for body in called:
                yield from placed_operations(body, inside)


def with_constrained_value(jaxpr: Any, edit: ConstrainValue, mesh: MeshSpec) -> Any:
    """A jaxpr with constraints at all places of a value."""
    # Equations with the edit's line and operation are counted, as its places count them.
    operands, numbers = dict(edit.places), itertools.count()
    line_and_operation = (edit.source, edit.operation)

    def changed(body: Any) -> Any:
        # jax constrains a cotangent once for all equations that read it: the gradients
        # of both factors of a product.
        cotangents: dict[Any, Any] = {}

        def change(equation: Any) -> list[Any]:
            number = -1
            if (users_line(equation), operation_name(equation)) == line_and_operation:
                if equation.outvars:
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
    """A jaxpr that begins with a constraint of an argument."""
    body = plain_jaxpr(jaxpr)
    arguments, argument = list(body.invars), body.invars[edit.number]
    constraint = _constraint(argument.aval, edit.spec, mesh)
    # The constraint's result keeps the argument's variable, so its readers stay.
    arguments[edit.number] = constraint.invars[0]
    equations = [constraint.replace(outvars=[argument]), *body.eqns]
    return with_body(jaxpr, body.replace(invars=arguments, eqns=equations))


def _constrained(equation: Any, spec: Spec, mesh: MeshSpec) -> list[Any]:
    """An equation with a constraint of its first result."""
    result, *other_results = equation.outvars
    constraint = _constraint(result.aval, spec, mesh)
    constraint = constraint.replace(source_info=equation.source_info)
    if equation.primitive.name in CONSTRAINTS:
        # An existing constraint is changed: with a second one both would apply.
        return [constraint.replace(invars=equation.invars, outvars=equation.outvars)]
    # The operation gets a new variable. The constraint reads it and assigns the old
    # variable, so that all readers stay unchanged.
    equation = equation.replace(outvars=[constraint.invars[0], *other_results])
    return [equation, constraint.replace(outvars=[result])]


def _with_constrained_operand(
    equation: Any, operand: int, spec: Spec, mesh: MeshSpec, constrained: dict[Any, Any]
) -> list[Any]:
    """An equation with a constraint of an operand, which may be `constrained` already."""
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
    """An equation that constrains a value, with variables of its own."""
    on, constrain = abstract_mesh(mesh), jax.lax.with_sharding_constraint
    if set(mesh.axis_types) == {"Explicit"}:
        # Its types have the mesh that it was traced on, which knows the kind of device.
        on, constrain = aval.sharding.mesh, jax.sharding.reshard
    sharding = named_sharding(on, spec)
    shape = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    traced = jax.make_jaxpr(lambda x: constrain(x, sharding))(shape)
    (constraint,) = plain_jaxpr(traced).eqns
    return constraint


class TracedValue(NamedTuple):
    """A value in the user's code that a constraint there can split.

    Attributes:
        operation: the operation as jax calls it, or a function under `jax.jit`.
        variable: the variable that its line assigns; `""` for part of an expression.
        source: its source line.
        shape: its shape.
        places: where a constraint in the code appears in the jaxpr.
        has_other_shapes: whether the line also runs for other shapes, as for the
            layers of a model.
    """

    operation: str
    variable: str
    source: str
    shape: tuple[int, ...]
    places: tuple[Place, ...]
    has_other_shapes: bool = False

    def constrained(self, spec: Spec) -> ConstrainValue:
        """The edit that constrains the value to a spec."""
        is_constraint = self.operation in CONSTRAINTS
        edit = ChangeConstraint if is_constraint else ConstrainValue
        where = (self.operation, self.variable, self.source, self.shape)
        return edit(*where, spec, self.places, self.has_other_shapes)


def values_of(program: Program) -> list[TracedValue]:
    """The values in a program with a JaxprFunction that a constraint can split.

    Left out is what no constraint in the code could name alone (each product of
    `x @ w @ w`, the values inside of a layer of flax), and where the cotangents of
    a gradient are not known.
    """
    makers: dict[int, PlacedOperation] = {}  # by the id of a variable
    by_line: dict[Any, list[PlacedOperation]] = {}  # of one line and name, in order
    read: set[int] = set()  # ids of variables that another line reads
    readers: dict[int, list[PlacedOperation]] = {}  # by the id of a variable
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
            # In a function under `jax.vmap` a value has fewer dimensions than here.
            if "vmap(" in first.around or (not variable and _is_inner(first, readers)):
                continue
            places += cotangents
            alone = (name, variable, source, shape, tuple(places))
            values.append(TracedValue(*alone, has_other_shapes=len(forward) > 1))
    return values


def _is_inner(
    operation: PlacedOperation, readers: Mapping[int, Sequence[PlacedOperation]]
) -> bool:
    """Whether the expression that makes a value goes on and gives one of another shape,
    as an einsum transposes its product."""
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
    """The cotangents of a value: operands of its operation's transposes in a gradient.

    Args:
        alike: the operations of its line and name.
        shape: its shape.
        makers: id of a variable to the operation that makes it.

    Returns:
        The places of the cotangents; empty if the operands are ambiguous.
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
        # jax's rule for products has the cotangent first.
        if operation.name == "dot_general":
            fitting = [number for number in fitting if number == 0]
        elif len(computed) == 1:
            fitting = computed
        if operation.is_backward and len(fitting) > 1:
            return []
        if operation.is_backward and fitting:
            places.append((place, fitting[0]))
    return places
