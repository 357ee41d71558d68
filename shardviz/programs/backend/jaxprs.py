"""Reads and rewrites jaxprs: their operations, meshes and shardings.

`operations` traverses every operation. `results_from_host` and `positive_arguments`
follow values through a jaxpr instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import jax
from jax.core import ShapedArray
from jax.sharding import AbstractMesh, Mesh

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.backend.jax_compat import (
    DEBUG_EFFECTS,
    effect_class,
    is_backward,
    line_frames,
    platforms_of,
    without_context_mesh,
)
from shardviz.base.collective import Collective
from shardviz.base.partition_spec import Spec
from shardviz.base.source_lines import is_user_file, line_in_words
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.notes import (
    NoCollectives,
    Note,
    RandomNumbers,
    SameRows,
    SumOfEquals,
    SumOfGradient,
    UnknownJaxprParameter,
)

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
    from typing_extensions import TypeIs

    from shardviz.programs.backend.jaxpr_names import AnyJaxpr, Atom

AnyJaxprT = TypeVar("AnyJaxprT", "ClosedJaxpr", "Jaxpr", "ClosedJaxpr | Jaxpr")
# Types of parameters that contain no mesh.
_NO_MESHES = (type(None), str, int, tuple, list, dict)
# Types of parameters that contain no jaxpr; the most frequent ones.
_NO_JAXPRS = frozenset({type(None), str, int, bool, float})


class JaxprOperation(NamedTuple):
    """An operation of a jaxpr.

    Attributes:
        equation: jax's equation.
        around: names of the loops and calls around it, outermost first.
    """

    equation: JaxprEqn
    around: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """jax's name for the primitive, such as `"add"`."""
        return self.equation.primitive.name

    @property
    def inner(self) -> list[AnyJaxpr]:
        """The jaxprs that the operation calls, such as a loop body."""
        inner: list[AnyJaxpr] = []
        for value in self.equation.params.values():
            if type(value) not in _NO_JAXPRS:
                inner += _jaxprs_in(value)
        return inner

    @property
    def nesting(self) -> str:
        """The loops and calls around the operation: `"shard_map > scan"`."""
        return " > ".join(self.around) or "top level"


def operations(
    jaxpr: AnyJaxpr, around: tuple[str, ...] = ()
) -> Iterator[JaxprOperation]:
    """Yields every operation in order; a loop or call comes before its contents.

    >>> import jax
    >>> jaxpr = jax.make_jaxpr(lambda x: jax.lax.map(jax.numpy.sin, x))(jax.numpy.zeros(3))
    >>> [(o.name, o.nesting) for o in operations(jaxpr)]
    [('scan', 'top level'), ('sin', 'scan')]
    """
    for equation in plain_jaxpr(jaxpr).eqns:
        operation = JaxprOperation(equation, around)
        yield operation
        for inner in operation.inner:
            yield from operations(inner, _inside(operation))


def distinct_operations(jaxpr: AnyJaxpr) -> Iterator[JaxprOperation]:
    """Yields operations like `operations`, but an inner jaxpr's operations only once.

    jax traces a repeated layer once, and all of its calls hold the same jaxpr. The
    operations are yielded again if other loops or calls are around them.

    >>> import jax
    >>> sin = jax.jit(jax.numpy.sin)
    >>> jaxpr = jax.make_jaxpr(lambda x: sin(sin(x)))(1.0)
    >>> [operation.name for operation in distinct_operations(jaxpr)]
    ['jit', 'sin', 'jit']
    """
    visited = set()

    def visit(body: AnyJaxpr, around: tuple[str, ...]) -> Iterator[JaxprOperation]:
        for equation in plain_jaxpr(body).eqns:
            operation = JaxprOperation(equation, around)
            yield operation
            for inner in operation.inner:
                inside = _inside(operation)
                if (id(inner), inside) not in visited:
                    visited.add((id(inner), inside))
                    yield from visit(inner, inside)

    return visit(jaxpr, ())


def _inside(operation: JaxprOperation) -> tuple[str, ...]:
    """Names of the loops and calls around the contents of an operation."""
    # A jit or similar call adds no nesting.
    if operation.name in names.CALLS:
        return operation.around
    return (*operation.around, operation.name)


def plain_jaxpr(jaxpr: AnyJaxpr) -> Jaxpr:
    """Returns the jaxpr without its constants."""
    return cast("Jaxpr", getattr(jaxpr, "jaxpr", jaxpr))


def array_type(variable: Atom) -> ShapedArray:
    """Returns the type of an array in a jaxpr: shape, dtype and sharding."""
    return cast("ShapedArray", variable.aval)


def is_literal(variable: Atom) -> TypeIs[Literal]:
    """True for a literal, which has a `val` and isn't hashable."""
    return hasattr(variable, "val")


def _jaxprs_in(value: object) -> list[AnyJaxpr]:
    """Returns the jaxprs in a parameter, including those in tuples, lists and dicts."""
    if hasattr(value, "eqns"):
        return [cast("AnyJaxpr", value)]
    items: Iterable[object] = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, (tuple, list)):
        items = value
    jaxprs = []
    for item in items:
        # Programs have thousands of tuples of numbers.
        if type(item) not in _NO_JAXPRS:
            jaxprs += _jaxprs_in(item)
    return jaxprs


def rewritten(
    jaxpr: AnyJaxprT, change: Callable[[JaxprEqn], list[JaxprEqn]]
) -> AnyJaxprT:
    """Returns a jaxpr with each operation replaced by the operations of `change`."""
    equations: list[JaxprEqn] = []
    for equation in plain_jaxpr(jaxpr).eqns:
        equations += change(equation)
    return with_equations(jaxpr, equations)


def with_equations(jaxpr: AnyJaxprT, equations: list[JaxprEqn]) -> AnyJaxprT:
    """Returns a copy of a jaxpr with other equations."""
    return with_body(jaxpr, plain_jaxpr(jaxpr).replace(eqns=equations))


def with_body(jaxpr: AnyJaxprT, body: Jaxpr) -> AnyJaxprT:
    """Returns a copy of a jaxpr with another body and the same constants."""
    # In jax 0.10 a ClosedJaxpr holds a Jaxpr and constants; later it is one object.
    if hasattr(jaxpr, "jaxpr"):
        return cast("Any", jaxpr).replace(jaxpr=body)
    return cast("AnyJaxprT", body)


def without_debug_effects(jaxpr: AnyJaxprT) -> AnyJaxprT:
    """Returns a copy of a jaxpr without the effects of `jax.debug`."""
    body = plain_jaxpr(jaxpr)
    effects = {e for e in body.effects if effect_class(e) not in DEBUG_EFFECTS}
    return with_body(jaxpr, body.replace(effects=effects))


def with_inner(equation: JaxprEqn, change: Callable[[AnyJaxpr], object]) -> JaxprEqn:
    """Applies `change` to the inner jaxprs of an equation."""

    def changed(value: object) -> object:
        if hasattr(value, "eqns"):
            return change(cast("AnyJaxpr", value))
        if type(value) is tuple:
            return tuple(map(changed, value))
        if type(value) is list:
            return [*map(changed, value)]
        return value

    return equation.replace(params={k: changed(v) for k, v in equation.params.items()})


def without_shardings(jaxpr: AnyJaxprT) -> AnyJaxprT:
    """Removes all shardings of values from a program.

    >>> import jax
    >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    >>> split = jax.NamedSharding(mesh, jax.P("x"))
    >>> constrained = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, split) + 1)
    >>> jaxpr = jax.make_jaxpr(constrained)(jax.numpy.zeros(3))
    >>> [o.name for o in operations(without_shardings(jaxpr))]
    ['jit', 'copy', 'add']
    """

    def change(equation: JaxprEqn) -> list[JaxprEqn]:
        equation = without_context_mesh(equation)
        if equation.primitive.name in (names.CONSTRAINT, names.RESHARD):
            # Replace it by a copy, so that the result stays a separate value.
            return [equation.replace(primitive=jax.lax.copy_p, params={})]
        equation = with_inner(equation, without_shardings)
        params = dict(equation.params)
        # jax's own functions add these shardings, for example in a gradient.
        for parameter in (names.RESHAPE_SHARDING, names.DOT_SHARDING):
            if mesh_of_value(parameter.find(equation, None)) is not None:
                params[parameter.name] = None
        return [equation.replace(params=params)]

    return rewritten(jaxpr, change)


def has_partial_sums(jaxpr: AnyJaxpr) -> bool:
    """True if an argument or a value has a type with unreduced axes (a partial sum)."""
    values = [*plain_jaxpr(jaxpr).invars]
    for operation in distinct_operations(jaxpr):
        values += operation.equation.outvars
    # On Auto axes, types never show partial sums.
    for value in values:
        spec = getattr(getattr(value.aval, "sharding", None), "spec", None)
        if getattr(spec, "unreduced", None):
            return True
    return False


def users_line(equation: JaxprEqn) -> str:
    """Returns the innermost line of user code that created an operation, or `""`."""
    for frame in line_frames(equation):
        if is_user_file(frame.file_name):
            return line_in_words(frame.file_name, frame.line_num)
    return ""


def names_shardings(jaxpr: AnyJaxpr) -> bool:
    """True if an operation of the program names a sharding."""
    naming = (names.SHARD_MAP, names.CONSTRAINT, names.RESHARD)
    return any(operation.name in naming for operation in distinct_operations(jaxpr))


def meshes_in(jaxpr: AnyJaxpr) -> Iterator[tuple[Mesh | AbstractMesh, JaxprEqn]]:
    """Yields each mesh that the program names, also in shardings, and its equation."""
    for operation in distinct_operations(jaxpr):
        for parameter in operation.equation.params.values():
            # jit and device_put have a tuple of shardings, one per operand.
            for value in parameter if isinstance(parameter, tuple) else (parameter,):
                if isinstance(value, _NO_MESHES):
                    continue
                mesh = mesh_of_value(value)
                # Without a mesh in context, jax stores an empty mesh.
                if mesh is not None and not mesh.empty:
                    yield mesh, operation.equation


# Operations that all platforms partition in the same way, although their lowerings
# differ in the form of a call or in rounding.
_SPLIT_ALIKE = frozenset({
    "all_gather", "all_gather_invariant", "all_gather_reduced",
    "all_gather_reduced_start", "all_gather_start", "asin", "conv_general_dilated",
    "debug_callback", "debug_print", "device_put", "dot_general", "empty", "logistic",
    "pbroadcast", "pbroadcast_dynamic", "pbroadcast_start", "precv", "psend",
    "scatter-add", "scatter-sub", "select_and_scatter_add", "threefry2x32",
})  # fmt: skip


# Operations lowered through other operations that have platform-specific rules.
_THROUGH_OTHERS = frozenset({"qr"})


def depends_on_platform(jaxpr: AnyJaxpr) -> tuple[str, ...]:
    """Returns the operations with platform-specific lowering rules, sorted by name.

    >>> import jax
    >>> depends_on_platform(jax.make_jaxpr(jax.numpy.linalg.qr)(jax.numpy.ones((2, 2))))
    ('qr',)
    """
    dependent = set()
    for operation in distinct_operations(jaxpr):
        name = operation.name
        if name == names.PLATFORM_INDEX:
            dependent.add("platform_dependent")
        elif name not in _SPLIT_ALIKE and name not in dependent:
            if name in _THROUGH_OTHERS or platforms_of(operation.equation):
                dependent.add(name)
    return tuple(sorted(dependent))


def device_meshes_in(jaxpr: AnyJaxpr) -> Iterator[tuple[Mesh, JaxprEqn]]:
    """Yields every mesh with devices that the program names, with its equation."""
    for mesh, equation in meshes_in(jaxpr):
        if isinstance(mesh, Mesh):
            yield mesh, equation


def named_device_count(jaxpr: AnyJaxpr) -> int | None:
    """Returns the size of the largest mesh that the program names; None without one."""
    return max((mesh.size for mesh, _ in device_meshes_in(jaxpr)), default=None)


def mesh_of_value(value: object) -> Mesh | AbstractMesh | None:
    """Returns a mesh, or the mesh of a sharding or sharded array; otherwise None."""
    sharding = getattr(value, "sharding", None)
    for mesh in (
        value,
        getattr(value, "mesh", None),
        getattr(sharding, "mesh", sharding),
    ):
        if isinstance(mesh, (Mesh, AbstractMesh)):
            return mesh
    return None


def results_from_host(jaxpr: AnyJaxpr, calls: Collection[str]) -> bool:
    """True if a result depends on the results of operations with these names."""
    body = plain_jaxpr(jaxpr)
    from_host: set[int] = set()  # ids, because literals have no hash
    for equation in body.eqns:
        called = {equation.primitive.name}
        for inner in _jaxprs_in(equation.params):
            called |= {operation.name for operation in distinct_operations(inner)}
        reads = not from_host.isdisjoint(map(id, equation.invars))
        if reads or not called.isdisjoint(calls):
            from_host.update(map(id, equation.outvars))
    return not from_host.isdisjoint(map(id, body.outvars))


_ROOTS = ("sqrt", "rsqrt", "log", "log2", "pow", "acosh", "lgamma", "digamma")
# Primitives whose result has the sign of their operands, if all have one sign.
_SIGN_PRESERVING = {
    "add", "add_any", "mul", "div", "select_n", "reduce_sum", "reduce_max", "reduce_min",
    "convert_element_type", "broadcast_in_dim", "reshape", "transpose", "squeeze", "copy",
    "rev", "slice", "dynamic_slice", "gather", "concatenate", "cumsum", "all_gather",
    "optimization_barrier", "name", "sharding_constraint", "reshard", "device_put",
    "reduce_precision",
}  # fmt: skip

#: Primitives with a rule for the sign of their results.
SIGN_PRIMITIVES = frozenset({*_ROOTS, *_SIGN_PRESERVING})
# Maps each variable to the positions of arguments that determine its sign.
_Signs = dict["Var", frozenset[int]]


def positive_arguments(jaxpr: AnyJaxpr) -> tuple[int, ...]:
    """Returns the positions of arguments that must be positive.

    These arguments reach a root or a logarithm only through sums, products and copies.

    >>> import jax, jax.numpy as jnp
    >>> adam = lambda p, m, v, g: p - m / jnp.sqrt(0.9 * v + 0.1 * g**2)
    >>> positive_arguments(jax.make_jaxpr(adam)(1.0, 1.0, 1.0, 1.0))
    (2,)
    """
    positive: set[int] = set()
    body = plain_jaxpr(jaxpr)
    _follow(body, {v: frozenset([i]) for i, v in enumerate(body.invars)}, positive)
    return tuple(sorted(positive))


def _follow(jaxpr: Jaxpr, signs: _Signs, positive: set[int]) -> list[frozenset[int]]:
    """Returns the arguments that determine each result's sign; fills in `positive`."""

    def of(variable: Atom) -> frozenset[int]:
        if is_literal(variable):
            return frozenset()
        return signs.get(variable, frozenset())

    for equation in jaxpr.eqns:
        operands = list(map(of, equation.invars))
        inner = list(map(plain_jaxpr, _jaxprs_in(equation.params)))
        if inner:
            results = _follow_calls(inner, operands, len(equation.outvars), positive)
        else:
            results = [_sign_of_result(equation, operands)] * len(equation.outvars)
            if equation.primitive.name in _ROOTS:
                positive.update(operands[0])
        signs.update(zip(equation.outvars, results, strict=True))
    return list(map(of, jaxpr.outvars))


def _sign_of_result(
    equation: JaxprEqn, operands: list[frozenset[int]]
) -> frozenset[int]:
    name = equation.primitive.name
    if name == "sub":
        return operands[0]
    square = name == "mul" and equation.invars[0] is equation.invars[1]
    odd = name == names.INTEGER_POW and names.EXPONENT.find(equation, 0) % 2
    if (name in _SIGN_PRESERVING and not square) or odd:
        return frozenset().union(*operands)
    return frozenset()


def _follow_calls(
    inner: list[Jaxpr], operands: list[frozenset[int]], count: int, positive: set[int]
) -> list[frozenset[int]]:
    """Like `_follow`, for the results of a call or of one loop iteration."""
    results = [frozenset[int]()] * count
    for jaxpr in inner:
        skipped = len(operands) - len(jaxpr.invars)  # 1 for the index operand of a cond
        passed = operands[skipped:]
        if skipped not in (0, 1):
            passed = [frozenset[int]()] * len(jaxpr.invars)
        out = _follow(jaxpr, dict(zip(jaxpr.invars, passed, strict=True)), positive)
        if len(out) == count:
            results = [a | b for a, b in zip(results, out, strict=True)]
    return results


def notes_on(jaxpr: AnyJaxpr) -> list[Note]:
    """Returns notes on random numbers, and on sums and specs of each `shard_map`.

    If this jax version lacks a parameter that a note needs, another note names it.
    """
    notes: list[Note] = []
    for find in (random_notes, sum_notes, spec_notes):
        try:
            notes += find(jaxpr)
        except names.UnknownParameter as error:
            notes.append(UnknownJaxprParameter(error.primitive, error.name))
    return notes


def random_notes(jaxpr: AnyJaxpr) -> list[Note]:
    """Returns a note if jax is configured not to partition random numbers."""
    if jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return []
    for operation in distinct_operations(jaxpr):
        if operation.name == names.RANDOM_BITS:
            return [RandomNumbers()]
    return []


def forbidden_notes(
    jaxpr: AnyJaxpr, collectives: Sequence[Collective]
) -> list[NoCollectives]:
    """Returns a note for each set of axes that a `jax.sharding.no_collectives` names.

    Args:
        jaxpr: the traced program.
        collectives: the plan's collectives.
    """
    lines: dict[frozenset[str], dict[str, None]] = {}
    for operation in distinct_operations(jaxpr):
        # Since jax 0.12, an equation has the axes for which it was traced.
        axes = getattr(operation.equation.ctx, "no_collectives", frozenset())
        if axes and (line := users_line(operation.equation)):
            lines.setdefault(axes, {})[line] = None
    notes = []
    for axes, sources in lines.items():
        planned = []
        for collective in collectives:
            if collective.source in sources and axes & {*collective.mesh_axes}:
                planned.append(collective)
        notes.append(NoCollectives(tuple(sorted(axes)), (*sources,), (*planned,)))
    return notes


def sum_notes(jaxpr: AnyJaxpr) -> list[Note]:
    """Returns notes on sums over devices in a `shard_map`.

    The notes report sums added by `grad`, and sums over axes along which all devices
    have the same value.
    """
    notes: list[Note] = []
    for operation in distinct_operations(jaxpr):
        inside = names.SHARD_MAP in (operation.name, *operation.around)
        for body in operation.inner if inside else ():
            equal: dict[Atom, Sequence[str]] = {}  # axes over which a value is equal
            for equation in plain_jaxpr(body).eqns:
                name, mesh = equation.primitive.name, equation.ctx.cur_abstract_mesh
                if name == names.PVARY:
                    equal[equation.outvars[0]] = names.VARIED_AXES.of(equation)
                if name != names.PSUM_INVARIANT:
                    continue
                axes = tuple(names.SUMMED_AXES.of(equation))
                line = users_line(equation) or name
                equal_axes = equal.get(equation.invars[0], ())
                if is_backward(equation):
                    notes.append(SumOfGradient(axes, line))
                elif axes := tuple(axis for axis in axes if axis in equal_axes):
                    count = math.prod(mesh.shape.get(axis, 1) for axis in axes)
                    notes.append(SumOfEquals(axes, line, count))
    return list(dict.fromkeys(notes))


def spec_notes(jaxpr: AnyJaxpr) -> list[Note]:
    """Returns notes on `shard_map` results that repeat the rows of an operand.

    Such an operand isn't split over an axis that splits the result. Devices along this
    axis then compute the same rows, and the result repeats them. An operand and a result
    share rows if a dimension has the same size in the body. There is no note if another
    operand with as many rows is split over the axis, because that explains the split of
    the result.

    jax names the operands that `in_specs` lists, but not the arrays that a body closes
    over. It names none in a `shard_map` that `grad` made: its results include values
    saved for the backward pass, which are stacked over all axes.
    """
    notes = []
    for operation in distinct_operations(jaxpr):
        if operation.name != names.SHARD_MAP:
            continue
        equation, body = operation.equation, plain_jaxpr(operation.inner[0])
        mesh_shape = names.SHARD_MAP_MESH.of(equation).shape
        in_specs = map(spec_of, names.IN_SPECS.of(equation))
        arguments = body.debug_info.arg_names or ()
        operands = [
            (name, spec, variable)
            for name, spec, variable in zip(
                arguments, in_specs, body.invars, strict=False
            )
            if name
        ]
        for number, out_spec in enumerate(map(spec_of, names.OUT_SPECS.of(equation))):
            shape = array_type(body.outvars[number]).shape
            for dim, axes in enumerate(out_spec.dims):
                for axis in axes:
                    operand = None
                    if mesh_shape[axis] > 1 and shape[dim] > 1:
                        operand = _same_rows(operands, dim, shape[dim], axis)
                    if operand is not None:
                        note = SameRows(
                            axis=axis,
                            line=users_line(operation.equation) or operation.name,
                            operand=operand[0],
                            in_spec=operand[1],
                            result=number,
                            out_spec=out_spec,
                            devices=mesh_shape[axis],
                        )
                        notes.append(note)
    return list(dict.fromkeys(notes))


def _same_rows(
    operands: list[tuple[str, Spec, Var]], dim: int, size: int, axis: str
) -> tuple[str, Spec, Var] | None:
    """Returns the first operand with `size` rows in `dim` that isn't split over `axis`.

    None if an operand split over the axis has a dimension of this size.
    """
    unsplit = None
    for operand in operands:
        _, spec, variable = operand
        shape = array_type(variable).shape
        if axis in spec.axes:
            dims = spec.padded(len(shape))
            if any(axis in dims[d] and shape[d] == size for d in range(len(shape))):
                return None
        elif unsplit is None and len(shape) > dim and shape[dim] == size:
            unsplit = operand
    return unsplit
