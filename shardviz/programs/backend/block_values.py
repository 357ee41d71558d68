"""Relates each value in a `shard_map` body to its unsharded value.

The body is traced twice: on the real mesh, and on a mesh with a single device along one
axis. The second trace computes the unsharded values: nothing is split over that axis.
Both jaxprs have the same operations. We read them in lockstep, and derive a relation
for each value: it may be a block of the unsharded value, be equal on all devices, or be
a term of a sum. If an operation has no rule here, the relation is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardviz.base.backend import jax_compat
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.jaxprs import (
    JaxprOperation,
    array_type,
    is_literal,
    plain_jaxpr,
    users_line,
)

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn, Var
    from jax.extend.core import Literal as JaxprLiteral

    from shardviz.programs.backend.jaxpr_names import AnyJaxpr, Atom

#: Elementwise operations that are not linear and have no rule below.
_ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt",
    "ceil", "clamp", "cos", "cosh", "digamma", "eq", "erf", "erf_inv", "erfc", "exp",
    "exp2", "expm1", "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le",
    "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "ne", "nextafter", "not",
    "or", "pow", "real", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh",
    "sqrt", "square", "tan", "tanh", "xor",
})  # fmt: skip
_READERS = _ELEMENTWISE | {"add", "sub", "mul", "div"}
_LINEAR = frozenset({"neg", "copy", "stop_gradient", "reduce_precision"})
# Reductions, and the relation of their result if the reduced dimension is split; `""`
# if that is unknown.
_REDUCTIONS: Mapping[str, Literal["sum", "max", "min", ""]] = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "",
    "reduce_or": "",
    "reduce_prod": "",
    "argmax": "",
    "argmin": "",
}
_CALLS = (
    *names.CALLS,
    names.CUSTOM_JVP,
    names.CUSTOM_VJP,
    names.CHECKPOINT,
)
_COLLECTIVES = (
    names.AXIS_INDEX,
    names.PPERMUTE,
    names.ALL_TO_ALL,
    names.ALL_GATHER,
    names.PMAX,
    names.PMIN,
)
# Loop iterations to try until the carry's relations are stable.
_MAX_ROUNDS = 4

_Kind = Literal[
    "same", "zero", "block", "sum", "max", "min", "equal", "row", "total", "read early"
]


class EarlyRead(NamedTuple):
    """An operation reads a value that should be combined over devices first.

    Attributes:
        part: how the value should be combined: `"sum"`, `"mean"`, `"max"` or `"min"`.
        operation: jax's name for the operation.
        line: source line of the operation; `""` if unknown.
    """

    part: str
    operation: str
    line: str


class Relation(NamedTuple):
    """How a value on one device relates to its unsharded value.

    Attributes:
        kind: `"same"` if every device has the unsharded value, `"zero"` for zeros,
            `"block"` for a block of the unsharded value. `"sum"`, `"max"` or `"min"` if
            combining all devices' values that way yields the unsharded value. `"equal"`
            if all devices have the same value, but not necessarily the unsharded one.
            In a loop over a split dimension, `"row"` for values computed from one
            index, and `"total"` for a carry to which only rows are added. `"read
            early"` if an operation reads a value that should be combined first.
        dim: the dimension that is split into blocks.
        scale: ratio of this value (or the sum) to the unsharded value.
        early_read: the operation that reads the value; None for other kinds.
    """

    kind: _Kind
    dim: int = 0
    scale: float = 1.0
    early_read: EarlyRead | None = None

    def scaled(self, factor: float) -> Relation:
        """Returns this relation with its scale multiplied by a factor."""
        return self._replace(scale=round(self.scale * factor, 9))


_SAME, _ZERO = Relation("same"), Relation("zero")
#: Kinds of values that are equal on all devices.
EQUAL = ("same", "zero", "equal")
_Relations = Sequence[Relation | None]  # None if unknown


def result_relations(
    on_block: AnyJaxpr, on_whole: AnyJaxpr, axis: str, size: int
) -> list[Relation | None]:
    """Returns the relation of each result in a body to its unsharded value.

    Args:
        on_block: jaxpr of the body on one device's shards.
        on_whole: jaxpr of the body with one device along `axis`.
        axis: a mesh axis of the `shard_map`.
        size: number of devices along this axis.
    """
    comparison = _Comparison(axis, size)
    inputs = []
    for variable, in_whole in zip(
        plain_jaxpr(on_block).invars, plain_jaxpr(on_whole).invars, strict=True
    ):
        inputs.append(comparison.of_shapes(_shape(variable), _shape(in_whole)))
    return comparison.run(on_block, on_whole, inputs)


class _Comparison:
    """Compares two jaxprs of one body.

    Args:
        axis: the mesh axis that only the first jaxpr is split over.
        size: number of devices along this axis.
    """

    def __init__(self, axis: str, size: int) -> None:
        self.axis, self.size = axis, size
        # jax caches traces of jitted functions, so lines inside may be another
        # caller's.
        self._line, self._depth = "", 0

    def of_shapes(
        self, block_shape: Sequence[int], whole_shape: Sequence[int]
    ) -> Relation | None:
        """Returns the relation of an input or a broadcast scalar, from its shapes."""
        if tuple(block_shape) == tuple(whole_shape):
            return _SAME
        if len(block_shape) != len(whole_shape):
            return None
        dims = []
        for dim, sizes in enumerate(zip(block_shape, whole_shape, strict=True)):
            if sizes[0] != sizes[1]:
                dims.append(dim)
        if len(dims) != 1 or block_shape[dims[0]] * self.size != whole_shape[dims[0]]:
            return None
        return Relation("block", dims[0])

    def run(
        self, on_block: AnyJaxpr, on_whole: AnyJaxpr, inputs: _Relations
    ) -> list[Relation | None]:
        """Returns the relations of a jaxpr's results, given its inputs' relations."""
        body, whole_body = plain_jaxpr(on_block), plain_jaxpr(on_whole)
        relations: dict[Var, Relation | None] = {}
        for constant, in_whole in zip(
            body.constvars, whole_body.constvars, strict=False
        ):
            relations[constant] = self.of_shapes(_shape(constant), _shape(in_whole))
        relations.update(zip(body.invars, inputs, strict=True))

        def read(variable: Atom, in_whole: Atom) -> Relation | None:
            if is_literal(variable):
                return _of_literals(variable, in_whole)
            return relations.get(variable)

        operations = [equation.primitive.name for equation in body.eqns]
        in_whole = [equation.primitive.name for equation in whole_body.eqns]
        # If they differ, the body's Python code depends on the size of a shard.
        if operations != in_whole:
            return [None] * len(body.outvars)
        for equation, in_whole in zip(body.eqns, whole_body.eqns, strict=True):
            operands = [*map(read, equation.invars, in_whole.invars)]
            if not self._depth:
                self._line = users_line(equation) or self._line
            self._depth += 1
            results = self._results(equation, in_whole, operands)
            self._depth -= 1
            relations.update(zip(equation.outvars, results, strict=True))
        return [*map(read, body.outvars, whole_body.outvars)]

    def _results(
        self, equation: JaxprEqn, in_whole: JaxprEqn, operands: _Relations
    ) -> _Relations:
        name = equation.primitive.name
        unknown: list[Relation | None] = [None] * len(equation.outvars)
        for operand in operands:
            if operand is not None and operand.kind == "read early":
                return [operand] * len(unknown)
        if name in _CALLS:
            called = JaxprOperation(equation).inner[0]
            return self.run(called, JaxprOperation(in_whole).inner[0], operands)
        if name == names.SCAN:
            return self._scan(equation, in_whole, operands)
        if name in names.SUMS:
            return [self._summed(equation, operand) for operand in operands]
        if name in _COLLECTIVES:
            if not operands:  # an axis_index
                is_known = self.axis not in names.collective_axes(equation)
                return [_SAME] if is_known else unknown
            return [self._collective(equation, operand) for operand in operands]
        if name == names.PVARY:
            return operands
        relations = [operand for operand in operands if operand is not None]
        if len(relations) < len(operands):
            return unknown
        rule = _RULES.get(name)
        kinds: set[str] = {operand.kind for operand in relations}
        if "equal" in kinds and not JaxprOperation(equation).inner:
            is_equal = kinds <= {*EQUAL}
            return [Relation("equal") if is_equal else None] * len(unknown)
        if kinds & {"row", "total"}:
            result = _of_rows(name, kinds, relations)
        elif rule is not None:
            shapes = _shape(equation.outvars[0]), _shape(in_whole.outvars[0])
            by_shape = self.of_shapes(*shapes)
            result = rule(_Operation(equation, relations, by_shape))
        elif name in _LINEAR:
            result = relations[0]
        elif name in _ELEMENTWISE:
            result = _elementwise(relations)
        elif name in _REDUCTIONS:
            result = _reduced(equation, relations[0], _REDUCTIONS[name])
        else:
            return _of_equals(equation, in_whole, relations)
        if result is None:
            result = self._read_early(name, relations)
        return [result] * len(unknown)

    def _read_early(self, name: str, operands: Sequence[Relation]) -> Relation | None:
        """Returns a "read early" relation if an operand should be combined first."""
        for operand in operands:
            if operand.kind in ("sum", "max", "min") and name in _READERS:
                is_mean = operand.kind == "sum" and operand.scale == self.size
                part = "mean" if is_mean else operand.kind
                early_read = EarlyRead(part, name, self._line)
                return Relation("read early", early_read=early_read)
        return None

    def _summed(self, equation: JaxprEqn, operand: Relation | None) -> Relation | None:
        if operand is None:
            return None
        if self.axis not in names.collective_axes(equation):
            return operand if operand.kind in ("sum", "block", *EQUAL) else None
        if operand.kind == "sum":
            return Relation("same", scale=operand.scale)
        if operand.kind == "same":
            return operand.scaled(self.size)
        return operand if operand.kind == "zero" else None

    def _collective(
        self, equation: JaxprEqn, operand: Relation | None
    ) -> Relation | None:
        name = equation.primitive.name
        if self.axis not in names.collective_axes(equation):
            if operand is None:
                return None
            if name == names.PPERMUTE and operand.kind in ("block", *EQUAL):
                return operand
            # The collective is over other axes, so devices that have equal operands
            # along this axis get equal results.
            return Relation("equal") if operand.kind in EQUAL else None
        if operand is not None:
            is_combined = name == f"p{operand.kind}"  # pmax of a "max"
            if is_combined and operand.scale == 1:
                return _SAME
            is_moved = name in (names.PPERMUTE, names.PMAX, names.PMIN)
            if is_moved and operand.kind in EQUAL:
                # A device that receives nothing gets zeros.
                pairs = names.PERMUTED_PAIRS.find(equation, ())
                return operand if len(pairs) in (0, self.size) else None
            if name == names.ALL_GATHER and self._gathers_blocks(equation, operand):
                return Relation("same", scale=operand.scale)
        is_same_on_all = name in (names.ALL_GATHER, names.PMAX, names.PMIN)
        return Relation("equal") if is_same_on_all else None

    def _gathers_blocks(self, equation: JaxprEqn, operand: Relation) -> bool:
        """True if an all_gather concatenates the blocks of a value in order."""
        return (
            operand.kind == "block"
            and names.collective_axes(equation) == (self.axis,)
            and names.IS_TILED.of(equation)
            and names.GATHERED_DIM.of(equation) == operand.dim
        )

    def _scan(
        self, equation: JaxprEqn, in_whole: JaxprEqn, operands: _Relations
    ) -> _Relations:
        first, count = jax_compat.scan_counts(equation)
        constants, stacked = operands[:first], operands[first + count :]
        carry = [*operands[first : first + count]]
        body, whole_body = names.SCAN_BODY.of(equation), names.SCAN_BODY.of(in_whole)
        if names.LENGTH.of(equation) != names.LENGTH.of(in_whole):
            return self._scan_over_blocks(body, whole_body, constants, carry, stacked)
        slices = [_with_dim_added(operand, -1) for operand in stacked]
        for _ in range(_MAX_ROUNDS):
            results = self.run(body, whole_body, [*constants, *carry, *slices])
            after_step = [*map(_in_both, carry, results[:count])]
            if after_step == carry:
                return [*carry, *(_with_dim_added(r, 1) for r in results[count:])]
            carry = after_step
        return [None] * len(equation.outvars)

    def _scan_over_blocks(
        self,
        body: AnyJaxpr,
        whole_body: AnyJaxpr,
        constants: _Relations,
        carry: _Relations,
        stacked: _Relations,
    ) -> _Relations:
        """Returns the relations of the results of a loop over a split dimension."""
        rows: list[Relation | None] = []
        for operand in stacked:
            if operand is not None and operand.kind == "block" and operand.dim == 0:
                rows.append(Relation("row", scale=operand.scale))
            else:
                rows.append(None)
        totals: list[Relation | None] = []
        for operand in carry:
            totals.append(Relation("total", scale=0) if operand == _ZERO else operand)
        after_step = self.run(body, whole_body, [*constants, *totals, *rows])
        results: list[Relation | None] = []
        for before, after in zip(totals, after_step[: len(carry)], strict=True):
            if after is not None and after.kind == "total":
                total = Relation("sum", scale=after.scale) if after.scale else _ZERO
                results.append(total)
            else:
                results.append(after if after == before else None)
        for row in after_step[len(carry) :]:
            is_row = row is not None and row.kind == "row"
            results.append(Relation("block", 0, row.scale) if row and is_row else None)
        return results


def _with_dim_added(relation: Relation | None, number: int) -> Relation | None:
    """Shifts the split dimension: by 1 to stack values, by -1 to take a slice."""
    if relation is None or relation.kind != "block":
        return relation
    return relation._replace(dim=relation.dim + number)


def _in_both(before: Relation | None, after: Relation | None) -> Relation | None:
    """Returns the relation of a carry that holds before and after each iteration."""
    if before == after or after == _ZERO:
        return before
    return after if before == _ZERO else None


def _of_rows(
    name: str, kinds: set[str], operands: Sequence[Relation]
) -> Relation | None:
    """Returns the relation of a value computed from one index of a loop."""
    first, *further = operands
    if "total" in kinds:
        if first.kind != "total" and name == "add":
            first, further = further[0], [first]
        if first.kind != "total" or name not in ("add", "sub", names.ADD_ANY):
            return None
        (added,) = further
        if added.kind not in ("row", "zero") or first.scale not in (0, added.scale):
            return None
        return first if added.kind == "zero" else first._replace(scale=added.scale)
    if not kinds <= {"row", "same", "zero"}:
        return None
    if name in ("mul", "div"):
        factor = further[0].scale if name == "mul" else 1 / further[0].scale
        return Relation("row", scale=first.scale).scaled(factor)
    is_linear = name in (
        names.REDUCE_SUM,
        names.BROADCAST,
        names.RESHAPE,
        names.TRANSPOSE,
        *_LINEAR,
    )
    scales = {operand.scale for operand in operands if operand != _ZERO}
    if len(scales) == 1 and (is_linear or scales == {1} or name in ("add", "sub")):
        return Relation("row", scale=scales.pop())
    return None


def _of_literals(literal: JaxprLiteral, in_whole: Atom) -> Relation | None:
    """Returns the relation between a literal and its counterpart."""
    if not is_literal(in_whole):
        return None
    value, whole_value = np.asarray(literal.val), np.asarray(in_whole.val)
    if value.shape or whole_value.shape or value.dtype.kind not in "iufb":
        return _SAME if np.array_equal(value, whole_value) else None
    if value == whole_value:
        return _SAME if value else _ZERO
    if not value or not whole_value:
        return None
    return Relation("same", scale=round(float(value / whole_value), 9))


def _of_equals(
    equation: JaxprEqn, in_whole: JaxprEqn, operands: Sequence[Relation]
) -> list[Relation | None]:
    """Returns relations for an operation without a rule.

    Equal operands give equal results, unless the operation has inner jaxprs, which may
    contain a collective.
    """
    is_same = {*operands} <= {_SAME, _ZERO} and not JaxprOperation(equation).inner
    relations: list[Relation | None] = []
    for result, whole_result in zip(equation.outvars, in_whole.outvars, strict=True):
        # Tokens have no shape.
        shape = getattr(result.aval, "shape", None)
        is_whole = shape == getattr(whole_result.aval, "shape", None)
        relations.append(_SAME if is_same and is_whole else None)
    return relations


def _elementwise(operands: Sequence[Relation]) -> Relation | None:
    relations = {operand for operand in operands if operand.kind != "zero"}
    blocks = {relation for relation in relations if relation.kind == "block"}
    if relations - blocks - {_SAME} or len(blocks) > 1:
        return None
    if not blocks:
        return _SAME
    (block,) = blocks
    return block if block.scale == 1 else None


def _reduced(
    equation: JaxprEqn, operand: Relation, kind: Literal["sum", "max", "min", ""]
) -> Relation | None:
    dims = names.REDUCED_DIMS.of(equation)
    if operand.kind == "block":
        if operand.dim in dims:
            is_exact = kind == "sum" or operand.scale == 1
            return Relation(kind, scale=operand.scale) if kind and is_exact else None
        return operand._replace(dim=operand.dim - _count_before(operand.dim, dims))
    if operand.kind in ("same", "zero"):
        # max and min preserve a positive factor; a product of several numbers doesn't.
        return operand if kind or operand.scale == 1 else None
    return operand if operand.kind == kind else None


def _count_before(dim: int, removed: Sequence[int]) -> int:
    """Counts the removed dimensions that come before a dimension."""
    return sum(other_dim < dim for other_dim in removed)


class _Operation(NamedTuple):
    """An operation with a rule.

    Attributes:
        equation: the operation on one device's shards.
        operands: the relations of its operands, which are all known.
        by_shape: the relation that the shape of the operation's result suggests.
    """

    equation: JaxprEqn
    operands: Sequence[Relation]
    by_shape: Relation | None


_Rule = Callable[[_Operation], Relation | None]


def _converted(operation: _Operation) -> Relation | None:
    (operand,) = operation.operands
    # Truncation to integers isn't linear.
    is_inexact = np.issubdtype(
        array_type(operation.equation.outvars[0]).dtype, np.inexact
    )
    is_exact = operand in (_SAME, _ZERO) or operand.kind == "block"
    return operand if is_inexact or is_exact else None


def _added(operation: _Operation) -> Relation | None:
    first, second = operation.operands
    if first.kind == "zero":
        return second
    if second.kind == "zero":
        return first
    return first if first == second and first.kind in ("same", "block", "sum") else None


def _multiplied(operation: _Operation) -> Relation | None:
    for first, second in (operation.operands, operation.operands[::-1]):
        if first.kind == "zero":
            return _ZERO
        if second.kind == "same" and first.kind in ("same", "block", "sum"):
            return first.scaled(second.scale)
    first, second = operation.operands
    if first.kind == second.kind == "block" and first.dim == second.dim:
        return first.scaled(second.scale)
    return None


def _divided(operation: _Operation) -> Relation | None:
    first, second = operation.operands
    if first.kind == "zero":
        return _ZERO
    if second.kind == "same" and first.kind in ("same", "block", "sum"):
        return first.scaled(1 / second.scale)
    if second.kind == "block" and first.kind in ("same", "block"):
        if first.kind == "block" and first.dim != second.dim:
            return None
        return second._replace(scale=1.0).scaled(first.scale / second.scale)
    return None


def _product(operation: _Operation) -> Relation | None:
    contracted, batch = names.DOT_DIMENSIONS.of(operation.equation)
    lhs, rhs = operation.operands
    scale = round(lhs.scale * rhs.scale, 9)
    if _ZERO in operation.operands:
        return _ZERO
    kinds = {lhs.kind, rhs.kind}
    if kinds <= {"same", "sum"} and (lhs.kind, rhs.kind) != ("sum", "sum"):
        return Relation("sum" if "sum" in kinds else "same", scale=scale)
    if not kinds <= {"same", "block"}:
        return None
    if lhs.kind == rhs.kind == "block":
        if (lhs.dim, rhs.dim) in zip(*contracted, strict=True):
            return Relation("sum", 0, scale)
        if (lhs.dim, rhs.dim) in zip(*batch, strict=True):
            return Relation("block", [*batch[0]].index(lhs.dim), scale)
        return None
    # One operand is a block. The result is split along the same dimension, unless that
    # dimension is contracted or a batch dimension.
    number = 0 if lhs.kind == "block" else 1
    dim, paired = operation.operands[number].dim, {*contracted[number], *batch[number]}
    if dim in paired:
        return None
    ranks = [len(_shape(variable)) for variable in operation.equation.invars]
    free = [d for d in range(ranks[number]) if d not in paired]
    dims_before = len(batch[0])
    if number == 1:
        dims_before += ranks[0] - len(contracted[0]) - len(batch[0])
    return Relation("block", dims_before + free.index(dim), scale)


def _broadcast(operation: _Operation) -> Relation | None:
    operand, by_shape = operation.operands[0], operation.by_shape
    if by_shape is None:
        return None
    if operand.kind == "zero":
        return operand
    if operand.kind == "block":
        dim = names.BROADCAST_DIMS.of(operation.equation)[operand.dim]
        is_kept = by_shape == Relation("block", dim)
        return operand._replace(dim=dim) if is_kept else None
    if by_shape.kind == "block":  # the same scalar everywhere
        return by_shape.scaled(operand.scale) if operand.kind == "same" else None
    return operand


def _reshaped(operation: _Operation) -> Relation | None:
    operand, by_shape = operation.operands[0], operation.by_shape
    if operand.kind != "block" or by_shape is None:
        return operand if by_shape == _SAME else None
    if by_shape.kind != "block":
        return None
    before, after = (
        _shape(operation.equation.invars[0]),
        _shape(operation.equation.outvars[0]),
    )
    # Blocks stay blocks if the dimensions before the split one have the same total
    # size.
    if math.prod(before[: operand.dim]) != math.prod(after[: by_shape.dim]):
        return None
    return operand._replace(dim=by_shape.dim)


def _transposed(operation: _Operation) -> Relation | None:
    (operand,) = operation.operands
    if operand.kind != "block":
        return operand
    return operand._replace(
        dim=[*names.PERMUTATION.of(operation.equation)].index(operand.dim)
    )


def _squeezed(operation: _Operation) -> Relation | None:
    (operand,) = operation.operands
    if operand.kind != "block":
        return operand
    removed = names.SQUEEZED_DIMS.of(operation.equation)
    return operand._replace(dim=operand.dim - _count_before(operand.dim, removed))


def _counted(operation: _Operation) -> Relation | None:
    by_shape = operation.by_shape
    # Along a split dimension, each device counts from zero.
    is_counted = by_shape == Relation("block", names.IOTA_DIM.of(operation.equation))
    return None if is_counted else by_shape


def _concatenated(operation: _Operation) -> Relation | None:
    relations = {*operation.operands} - {_ZERO} or {_ZERO}
    if len(relations) > 1:
        return None
    (relation,) = relations
    dim = names.CONCATENATED_DIM.of(operation.equation)
    is_split = relation == Relation("block", dim, relation.scale)
    return None if is_split else relation


def _looked_up(operation: _Operation) -> Relation | None:
    table, indices = operation.operands
    if {table, indices} <= {_SAME, _ZERO}:
        return operation.by_shape
    if table != _SAME or indices.kind != "block" or indices.scale != 1:
        return None
    offset_dims = names.GATHER_DIMENSIONS.of(operation.equation).offset_dims
    rank = len(_shape(operation.equation.outvars[0]))
    batch_dims = [dim for dim in range(rank) if dim not in offset_dims]
    if indices.dim >= len(batch_dims):
        return None
    return indices._replace(dim=batch_dims[indices.dim])


def _convolved(operation: _Operation) -> Relation | None:
    images, kernel = operation.operands
    numbers = names.CONVOLUTION_DIMENSIONS.of(operation.equation)
    if images.kind == kernel.kind == "same":
        return images.scaled(kernel.scale)
    if images.kind != "block" or kernel.kind != "same":
        return None
    if (
        images.dim != numbers.lhs_spec[0]
        or names.BATCH_GROUPS.of(operation.equation) != 1
    ):
        return None
    return Relation("block", numbers.out_spec[0]).scaled(images.scale * kernel.scale)


def _shape(variable: Atom) -> tuple[int, ...]:
    return array_type(variable).shape


_RULES: Mapping[str, _Rule] = {
    "add": _added,
    names.ADD_ANY: _added,
    "sub": _added,
    "mul": _multiplied,
    "div": _divided,
    "convert_element_type": _converted,
    names.DOT_GENERAL: _product,
    names.CONVOLUTION: _convolved,
    names.BROADCAST: _broadcast,
    names.RESHAPE: _reshaped,
    names.TRANSPOSE: _transposed,
    names.SQUEEZE: _squeezed,
    names.IOTA: _counted,
    names.CONCATENATE: _concatenated,
    names.GATHER: _looked_up,
}
#: Primitives that have a rule in this module.
PRIMITIVES = frozenset({*_RULES, *_LINEAR, *_ELEMENTWISE, *_REDUCTIONS})
