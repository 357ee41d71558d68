"""How the values of a `shard_map` on one device relate to those of whole arrays.

A body is traced twice: on the blocks of one device, and on a mesh on which one axis has
a single device, so that nothing is split over that axis. Both jaxprs have the same
operations, so they are read in lockstep, and each value gets its relation to the same
value of the other jaxpr: a block of it, the same on all devices, or a part of a sum.
Operations without a rule here make the relation unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from shardviz.base.backend import jax_compat
from shardviz.programs.backend import jaxpr_names as names
from shardviz.programs.backend.jaxprs import (
    JaxprOperation,
    plain_jaxpr,
    users_line,
)

#: Elementwise operations without a rule of their own, which are not linear.
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
_REDUCTIONS = {
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
_MOST_ROUNDS = 4  # of a loop, until the relations of its carry stay the same


class Relation(NamedTuple):
    """How a value on one device relates to the value of the whole arrays.

    Attributes:
        kind: `"same"` if each device has it, `"zero"`, `"block"` for a block of it;
            `"sum"`, `"max"` or `"min"` if combining all devices that way gives it;
            `"equal"` if all devices have the same value, whatever that is. In a loop
            over a dimension that is split `"row"` for what comes of one index, and
            `"total"` for a carry to which only such values are added. `"late"` if an
            operation needs all of a sum, a maximum or a minimum, and reads a part.
        dim: the dimension that is split into blocks.
        scale: the value, or the sum, is this multiple of that of the whole arrays.
        read: what is read too early: a part of a `"sum"`, `"mean"`, `"max"` or
            `"min"`; and the operation that reads it, with the user's line.
    """

    kind: str
    dim: int = 0
    scale: float = 1.0
    read: tuple[str, str, str] | None = None

    def scaled(self, factor: float) -> Relation:
        return self._replace(scale=round(self.scale * factor, 9))


_SAME, _ZERO = Relation("same"), Relation("zero")
#: The kinds of values that are equal on all devices.
EQUAL = ("same", "zero", "equal")
_Relations = Sequence[Relation | None]  # None: unknown


def result_relations(
    block: Any, whole: Any, axis: str, size: int
) -> list[Relation | None]:
    """The relation of each result of a body.

    Args:
        block: the jaxpr of the body on one device's blocks.
        whole: the same, traced with one device along `axis`.
        axis: a mesh axis of the `shard_map`.
        size: how many devices it really has.
    """
    comparison = _Comparison(axis, size)
    inputs = []
    for one, other in zip(
        plain_jaxpr(block).invars, plain_jaxpr(whole).invars, strict=True
    ):
        inputs.append(comparison.of_shapes(one.aval.shape, other.aval.shape))
    return comparison.run(block, whole, inputs)


class _Comparison:
    def __init__(self, axis: str, size: int) -> None:
        self.axis, self.size = axis, size
        # jax traces a function under `jit` once, so what is inside has another line.
        self._line, self._depth = "", 0

    def of_shapes(self, block: Sequence[int], whole: Sequence[int]) -> Relation | None:
        """The relation of an input, or of what is broadcast, from its two shapes."""
        if tuple(block) == tuple(whole):
            return _SAME
        if len(block) != len(whole):
            return None
        dims = [
            d
            for d, sizes in enumerate(zip(block, whole, strict=True))
            if len({*sizes}) == 2
        ]
        if len(dims) == 1 and block[dims[0]] * self.size == whole[dims[0]]:
            return Relation("block", dims[0])
        return None

    def run(self, block: Any, whole: Any, inputs: _Relations) -> list[Relation | None]:
        """The relations of a jaxpr's results, given those of its inputs."""
        ours, theirs = plain_jaxpr(block), plain_jaxpr(whole)
        relations: dict[Any, Relation | None] = {}
        for constant, other in zip(ours.constvars, theirs.constvars, strict=False):
            relations[constant] = self.of_shapes(constant.aval.shape, other.aval.shape)
        relations.update(zip(ours.invars, inputs, strict=True))

        def read(variable: Any, other: Any) -> Relation | None:
            if hasattr(variable, "val"):
                return _of_literals(variable, other)
            return relations.get(variable)

        operations, in_whole = (
            [equation.primitive.name for equation in body.eqns]
            for body in (ours, theirs)
        )
        if operations != in_whole:  # the body itself depends on the size of a block
            return [None] * len(ours.outvars)
        for equation, other in zip(ours.eqns, theirs.eqns, strict=True):
            operands = [*map(read, equation.invars, other.invars)]
            if not self._depth:
                self._line = users_line(equation) or self._line
            self._depth += 1
            results = self._results(equation, other, operands)
            self._depth -= 1
            relations.update(zip(equation.outvars, results, strict=True))
        return [*map(read, ours.outvars, theirs.outvars)]

    def _results(self, equation: Any, other: Any, operands: _Relations) -> _Relations:
        name, unknown = equation.primitive.name, [None] * len(equation.outvars)
        for operand in operands:
            if operand is not None and operand.kind == "late":
                return [operand] * len(unknown)
        if name in _CALLS:
            (block, *_), (whole, *_) = (
                JaxprOperation(equation).inner,
                JaxprOperation(other).inner,
            )
            return self.run(block, whole, operands)
        if name == names.SCAN:
            return self._scan(equation, other, operands)
        if name in names.SUMS:
            return [self._summed(equation, operand) for operand in operands]
        if name in _COLLECTIVES:
            return [self._collective(equation, operand) for operand in operands] or (
                unknown if self.axis in names.collective_axes(equation) else [_SAME]
            )
        if name == names.PVARY:
            return operands
        if None in operands:
            return unknown
        rule, kinds = _RULES.get(name), {one.kind for one in operands if one}
        if "equal" in kinds and not JaxprOperation(equation).inner:
            is_equal = kinds <= {"equal", "same", "zero"}
            return [Relation("equal") if is_equal else None] * len(unknown)
        if kinds & {"row", "total"}:
            result = _of_rows(name, kinds, operands)
        elif rule is not None:
            result = rule(self, equation, other, operands)
        elif name in _LINEAR:
            result = operands[0]
        elif name in _ELEMENTWISE:
            result = self._elementwise(equation, operands)
        elif name in _REDUCTIONS:
            result = _reduced(equation, operands[0], _REDUCTIONS[name])
        else:
            return self._of_equals(equation, other, operands)
        if result is None:
            result = self._late(name, operands)
        return [result] * len(unknown)

    def _late(self, name: str, operands: Any) -> Relation | None:
        """What comes of a part of a sum that is read as if it were all of it."""
        for operand in operands:
            if operand.kind in ("sum", "max", "min") and name in _READERS:
                is_mean = operand.kind == "sum" and operand.scale == self.size
                kind = "mean" if is_mean else operand.kind
                return Relation("late", read=(kind, name, self._line))
        return None

    def _of_equals(self, equation: Any, other: Any, operands: _Relations) -> _Relations:
        """Equal operands give equal results, unless a collective is inside."""
        relations: list[Relation | None] = []
        is_same = {*operands} <= {_SAME, _ZERO} and not JaxprOperation(equation).inner
        for ours, theirs in zip(equation.outvars, other.outvars, strict=True):
            shapes = [getattr(one.aval, "shape", None) for one in (ours, theirs)]
            relations.append(_SAME if is_same and shapes[0] == shapes[1] else None)
        return relations

    def _elementwise(self, equation: Any, operands: _Relations) -> Relation | None:
        kinds = {one for one in operands if one is not None and one.kind != "zero"}
        if not kinds:
            return _SAME
        blocks = {one for one in kinds if one.kind == "block"}
        others = kinds - blocks - {_SAME}
        if others or len(blocks) > 1 or any(one.scale != 1 for one in blocks):
            return None
        return blocks.pop() if blocks else _SAME

    def _summed(self, equation: Any, operand: Relation | None) -> Relation | None:
        if operand is None or self.axis not in names.collective_axes(equation):
            return (
                operand
                if operand and operand.kind in ("sum", "block", *EQUAL)
                else None
            )
        if operand.kind == "sum":
            return Relation("same", scale=operand.scale)
        if operand.kind == "same":
            return operand.scaled(self.size)
        return operand if operand.kind == "zero" else None

    def _collective(self, equation: Any, operand: Relation | None) -> Relation | None:
        name = equation.primitive.name
        if self.axis not in names.collective_axes(equation):
            is_kept = (
                name == names.PPERMUTE and operand and operand.kind in ("block", *EQUAL)
            )
            if is_kept or operand is None:
                return operand
            # All devices along the axis exchange the same values.
            return Relation("equal") if operand.kind in EQUAL else None
        if operand is not None:
            if name[1:] == operand.kind and operand.scale == 1:
                return _SAME
            if (
                name in (names.PPERMUTE, names.PMAX, names.PMIN)
                and operand.kind in EQUAL
            ):
                # A device that receives nothing has zeros.
                is_full = len(names.PERMUTED_PAIRS.find(equation, ())) in (0, self.size)
                return operand if is_full else None
            is_block = operand.kind == "block" and names.collective_axes(equation) == (
                self.axis,
            )
            if name == names.ALL_GATHER and is_block and names.IS_TILED.of(equation):
                if names.GATHERED_DIM.of(equation) == operand.dim:
                    return Relation("same", scale=operand.scale)
        return (
            Relation("equal")
            if name in (names.ALL_GATHER, names.PMAX, names.PMIN)
            else None
        )

    def _scan(self, equation: Any, other: Any, operands: _Relations) -> _Relations:
        first, count = jax_compat.scan_counts(equation)
        end = first + count
        constants, carry, rows = (
            operands[:first],
            [*operands[first:end]],
            operands[end:],
        )
        unknown = [None] * len(equation.outvars)
        bodies = names.SCAN_BODY.of(equation), names.SCAN_BODY.of(other)
        if names.LENGTH.of(equation) != names.LENGTH.of(other):
            return self._scan_of_rows(bodies, constants, carry, rows)
        inside = []
        for row in rows:
            if row is not None and row.kind == "block":
                row = row._replace(dim=row.dim - 1)
            inside.append(row)
        for _ in range(_MOST_ROUNDS):
            results = self.run(*bodies, [*constants, *carry, *inside])
            after = [*map(_joined, carry, results[:count])]
            if after == carry:
                stacked = []
                for row in results[count:]:
                    if row is not None and row.kind == "block":
                        row = row._replace(dim=row.dim + 1)
                    stacked.append(row)
                return [*carry, *stacked]
            carry = after
        return unknown

    def _scan_of_rows(
        self, bodies: Any, constants: _Relations, carry: _Relations, rows: _Relations
    ) -> _Relations:
        """The results of a loop over a dimension that is split."""
        inside: list[Relation | None] = []
        for row in rows:
            is_split = row is not None and row.kind == "block" and row.dim == 0
            split = Relation("row", scale=row.scale) if row and is_split else None
            inside.append(split)
        totals = [Relation("total", scale=0) if one == _ZERO else one for one in carry]
        block, whole = bodies
        after = self.run(block, whole, [*constants, *totals, *inside])
        results: list[Relation | None] = []
        for before, one in zip(totals, after[: len(carry)], strict=True):
            if one is not None and one.kind == "total":
                results.append(Relation("sum", scale=one.scale) if one.scale else _ZERO)
            else:
                results.append(one if one == before else None)
        for one in after[len(carry) :]:
            is_row = one is not None and one.kind == "row"
            results.append(Relation("block", 0, one.scale) if one and is_row else None)
        return results


def _of_rows(name: str, kinds: set[str], operands: Any) -> Relation | None:
    """What comes of the values of one index of a loop."""
    first, *others = operands
    if "total" in kinds:
        if first.kind != "total" and name == "add":
            first, others = others[0], [first]
        if first.kind != "total" or name not in ("add", "sub", names.ADD_ANY):
            return None
        (other,) = others
        if other.kind not in ("row", "zero") or first.scale not in (0, other.scale):
            return None
        return first if other.kind == "zero" else first._replace(scale=other.scale)
    if not kinds <= {"row", "same", "zero"}:
        return None
    if name in ("mul", "div"):
        factor = others[0].scale
        return Relation("row", scale=first.scale).scaled(
            factor if name == "mul" else 1 / factor
        )
    is_linear = name in (
        names.REDUCE_SUM,
        names.BROADCAST,
        names.RESHAPE,
        names.TRANSPOSE,
        *_LINEAR,
    )
    scales = {one.scale for one in operands if one != _ZERO}
    if len(scales) == 1 and (is_linear or scales == {1} or name in ("add", "sub")):
        return Relation("row", scale=scales.pop())
    return None


def _of_literals(literal: Any, other: Any) -> Relation | None:
    """The relation of two numbers in the code."""
    value, whole = np.asarray(literal.val), np.asarray(other.val)
    if value.shape or whole.shape or value.dtype.kind not in "iufb":
        return _SAME if np.array_equal(value, whole) else None
    if value == whole:
        return _SAME if value else _ZERO
    return (
        Relation("same", scale=round(float(value / whole), 9))
        if whole and value
        else None
    )


def _joined(before: Relation | None, after: Relation | None) -> Relation | None:
    """What holds of a carry both before a loop and after a step."""
    if before == after or after == _ZERO:
        return before
    return after if before == _ZERO else None


def _reduced(equation: Any, operand: Any, kind: str) -> Relation | None:
    axes = names.REDUCED_DIMS.of(equation)
    if operand.kind == "block":
        if operand.dim in axes:
            is_exact = kind == "sum" or operand.scale == 1
            return Relation(kind, scale=operand.scale) if kind and is_exact else None
        return operand._replace(
            dim=operand.dim - sum(axis < operand.dim for axis in axes)
        )
    if operand.kind in ("same", "zero"):
        # A maximum keeps a positive factor; a product of several numbers doesn't.
        return operand if kind or operand.scale == 1 else None
    return operand if operand.kind == kind else None


def _converted(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    (operand,) = operands
    is_number = np.issubdtype(equation.outvars[0].aval.dtype, np.inexact)
    # To truncate is not linear.
    return (
        operand
        if is_number or operand in (_SAME, _ZERO) or operand.kind == "block"
        else None
    )


def _added(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    first, second = operands
    if first.kind == "zero" or second.kind == "zero":
        return second if first.kind == "zero" else first
    return first if first == second and first.kind in ("same", "block", "sum") else None


def _multiplied(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    for first, second in (operands, operands[::-1]):
        if first.kind == "zero":
            return _ZERO
        if second.kind == "same" and first.kind in ("same", "block", "sum"):
            return first.scaled(second.scale)
    first, second = operands
    if first.kind == second.kind == "block" and first.dim == second.dim:
        return first.scaled(second.scale)
    return None


def _divided(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    first, second = operands
    if first.kind == "zero":
        return _ZERO
    if second.kind == "same" and first.kind in ("same", "block", "sum"):
        return first.scaled(1 / second.scale)
    if second.kind == "block" and first.kind in ("same", "block"):
        is_same = first.kind == "same" or first.dim == second.dim
        return (
            second._replace(scale=1.0).scaled(first.scale / second.scale)
            if is_same
            else None
        )
    return None


def _product(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    (summed, batch), (left, right) = names.DOT_DIMENSIONS.of(equation), operands
    scale = round(left.scale * right.scale, 9)
    if _ZERO in operands:
        return _ZERO
    kinds = {left.kind, right.kind}
    if kinds <= {"same", "sum"} and (left.kind, right.kind) != ("sum", "sum"):
        return Relation("sum" if "sum" in kinds else "same", scale=scale)
    if not kinds <= {"same", "block"}:
        return None
    if left.kind == right.kind == "block":
        for pairs, kind in ((summed, "sum"), (batch, "block")):
            if (left.dim, right.dim) in zip(*pairs, strict=True):
                dim = [*pairs[0]].index(left.dim) if kind == "block" else 0
                return Relation(kind, dim, scale)
        return None
    number = 0 if left.kind == "block" else 1
    dim, used = operands[number].dim, {*summed[number], *batch[number]}
    if dim in used:
        return None
    free = [d for d in range(equation.invars[number].aval.ndim) if d not in used]
    before = len(batch[0])
    if number == 1:
        lhs = equation.invars[0].aval.ndim - len(summed[0]) - len(batch[0])
        before += lhs
    return Relation("block", before + free.index(dim), scale)


def _broadcast(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    (operand, *_), shapes = operands, self.of_shapes(*_shapes(equation, other))
    if shapes is None or operand.kind == "zero":
        return shapes and operand
    if operand.kind == "block":
        dim = names.BROADCAST_DIMS.of(equation)[operand.dim]
        return operand._replace(dim=dim) if shapes == Relation("block", dim) else None
    if shapes.kind == "block":  # the same number in each place
        return shapes.scaled(operand.scale) if operand.kind == "same" else None
    return operand


def _reshaped(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    (operand, *_), shapes = operands, self.of_shapes(*_shapes(equation, other))
    if operand.kind != "block" or shapes is None:
        return operand if shapes == _SAME else None
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    # Blocks stay blocks if as many numbers come before each.
    is_kept = math.prod(before[: operand.dim]) == math.prod(after[: shapes.dim])
    return (
        operand._replace(dim=shapes.dim) if is_kept and shapes.kind == "block" else None
    )


def _transposed(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    (operand,) = operands
    if operand.kind != "block":
        return operand
    return operand._replace(dim=names.PERMUTATION.of(equation).index(operand.dim))


def _squeezed(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    (operand,) = operands
    if operand.kind != "block":
        return operand
    dims = names.SQUEEZED_DIMS.of(equation)
    return operand._replace(dim=operand.dim - sum(d < operand.dim for d in dims))


def _counted(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    shapes = self.of_shapes(*_shapes(equation, other))
    # Each device counts from zero along a dimension that is split.
    is_counted = shapes == Relation("block", names.IOTA_DIM.of(equation))
    return None if is_counted else shapes


def _joined_up(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    kinds = {*operands} - {_ZERO} or {_ZERO}
    relation = kinds.pop()
    is_split = relation == Relation(
        "block", names.CONCATENATED_DIM.of(equation), relation.scale
    )
    return relation if not kinds and not is_split else None


def _looked_up(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    table, indices = operands
    numbers = names.GATHER_DIMENSIONS.of(equation)
    if {table, indices} <= {_SAME, _ZERO}:
        return self.of_shapes(*_shapes(equation, other))
    if table != _SAME or indices.kind != "block" or indices.scale != 1:
        return None
    rank = equation.outvars[0].aval.ndim
    batch = [d for d in range(rank) if d not in numbers.offset_dims]
    is_batch = indices.dim < len(batch)
    return indices._replace(dim=batch[indices.dim]) if is_batch else None


def _convolved(
    self: _Comparison, equation: Any, other: Any, operands: Any
) -> Relation | None:
    (left, right), numbers = operands, names.CONVOLUTION_DIMENSIONS.of(equation)
    if left.kind == right.kind == "same":
        return left.scaled(right.scale)
    if left.kind != "block" or right.kind != "same" or left.dim != numbers.lhs_spec[0]:
        return None
    if names.BATCH_GROUPS.of(equation) != 1:
        return None
    return Relation("block", numbers.out_spec[0]).scaled(left.scale * right.scale)


def _shapes(equation: Any, other: Any) -> Iterator[Sequence[int]]:
    for one in (equation, other):
        yield one.outvars[0].aval.shape


_RULES: dict[str, Any] = {
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
    names.CONCATENATE: _joined_up,
    names.GATHER: _looked_up,
}
#: The operations with a rule for their relations.
PRIMITIVES = frozenset({*_RULES, *_LINEAR, *_ELEMENTWISE, *_REDUCTIONS})
