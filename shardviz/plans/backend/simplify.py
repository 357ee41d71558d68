"""Simplifies a program as XLA does before propagation.

Shardings don't propagate through an operation that is simplified away. XLA runs all of
StableHLO's simplifications (`stablehlo-aggressive-simplification`), but jaxlib doesn't
expose that pass. So this module implements the ones that jax's lowerings make
necessary: a product with ones, a sum with zeros, a conversion to the same type, a slice
at constant positions, a transpose of a transpose, and an operation on constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardviz.plans.backend.attributes import defining_op, value_of
from shardviz.plans.backend.before_propagation import operations_in
from shardviz.plans.backend.mlir_names import (
    BROADCAST,
    BROADCAST_DIMS,
    COMPARISON_DIRECTION,
    CONCATENATE,
    CONCATENATED_DIM,
    CONSTANT,
    GATHER_NUMBERS,
    LIMIT_INDICES,
    PERMUTATION,
    START_INDICES,
    STRIDES,
    VALUE,
)

#: Attribute of a replacement: the name of the operation that it replaces.
REPLACES = "shardviz.replaces"
# Binary operation -> (neutral number, whether it may be the first operand too).
_NEUTRAL = {
    "multiply": (1, True), "divide": (1, False), "add": (0, True), "subtract": (0, False),
}  # fmt: skip
# Operations that XLA folds if each operand is a splat constant. It folds no others,
# such as `floor`, `power` and `exponential_minus_one`.
_COMPUTED: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "maximum": np.maximum, "minimum": np.minimum, "abs": np.abs,
    "negate": np.negative, "sign": np.sign, "sine": np.sin, "cosine": np.cos, "tan": np.tan,
    "tanh": np.tanh, "exponential": np.exp, "log": np.log, "sqrt": np.sqrt, "square": np.square,
    "rsqrt": lambda x: 1 / np.sqrt(x), "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "round_nearest_even": np.round, "and": np.bitwise_and, "or": np.bitwise_or,
    "divide": lambda x, y: x / y if isinstance(x, np.floating) else np.trunc(x / y),
    "remainder": np.fmod, "clamp": lambda low, x, high: np.minimum(np.maximum(low, x), high),
    "select": lambda condition, x, y: x if condition else y,
    "not": lambda x: not x if isinstance(x, np.bool_) else None,
}  # fmt: skip
_COMPARED = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip
# Operations that only move elements or convert their type.
_MOVES = frozenset({
    "broadcast_in_dim", "reshape", "transpose", "slice", "reverse", "convert",
    "dynamic_slice",
})  # fmt: skip
# Operations that are removed if they return their operand unchanged.
_SAME = frozenset({"broadcast_in_dim", "convert", "reshape", "transpose", "slice"})
_FOLDED = frozenset({*_COMPUTED, *_MOVES, "compare", "concatenate"})
#: The StableHLO operations that may be simplified, without their dialect.
SIMPLIFIED = frozenset({*_FOLDED, "gather"})
#: Names in SIMPLIFIED of CHLO operations, which are rewritten before `simplify`.
CHLO_ONLY = frozenset({"square"})
_ELEMENT = re.compile(r"u?i(\d+)|b?f\d\w*")


def simplify(module: Any) -> None:
    """Simplifies a module in place, as XLA would.

    >>> import jax
    >>> lowered = jax.jit(lambda x: x * 1.0 + 2.0).lower(jax.numpy.ones(8))
    >>> module = lowered.compiler_ir("stablehlo").operation.clone()
    >>> simplify(module)
    >>> "multiply" in str(module), "add" in str(module)
    (False, True)
    """
    with module.context:
        for op in operations_in(module):
            dialect, _, name = op.name.partition(".")
            if dialect != "stablehlo" or name not in SIMPLIFIED:
                continue
            for rule in _RULES.get(name, (_put_number,)):
                # If a rule applies, it has removed the operation.
                if rule(op, name):
                    break


def _put(value: ir.Value, op: ir.Operation) -> bool:
    """Replaces an operation by a value."""
    op.results[0].replace_all_uses_with(value)
    op.erase()
    return True


def _replace(
    op: ir.Operation, name: str, operand: ir.Value, **numbers: Sequence[int] | str
) -> bool:
    """Replaces an operation by another one with the given attributes."""
    attributes: dict[str, Any] = {}
    for key, value in numbers.items():
        if isinstance(value, str):
            attributes[REPLACES] = ir.StringAttr.get(value)
        else:
            attributes[key] = ir.DenseI64ArrayAttr.get(list(value))
    replacement = ir.Operation.create(
        f"stablehlo.{name}",
        results=[op.results[0].type],
        operands=[operand],
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    return _put(replacement.results[0], op)


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _shape(value: ir.Value) -> list[int]:
    return ir.ShapedType(value.type).shape


def _made_by(value: ir.Value, name: str) -> Any:
    """The operation that defines a value, if it has this name; else None."""
    defining = defining_op(value)
    return (
        defining
        if defining is not None and defining.name == f"stablehlo.{name}"
        else None
    )


# Operations on constants.


def _put_number(op: ir.Operation, name: str) -> bool:
    """Replaces an operation on constants by the number that XLA computes for it."""
    # A broadcast of a scalar constant is already a splat constant.
    if name == "broadcast_in_dim" and not _shape(op.operands[0]):
        return False
    first = number_of(op.operands[0])
    if first is None:
        return False
    if REPLACES in op.attributes:
        name = value_of(op, REPLACES)
    numbers = [first]
    if name not in _MOVES:
        numbers += map(number_of, list(op.operands)[1:])
    if name not in _FOLDED or len(op.results) != 1 or None in numbers:
        return False
    if name in _MOVES:
        number = first
    elif name == "concatenate":
        number = first if len({*numbers}) == 1 else None
    else:
        if name == "compare":
            words = str(op.attributes[COMPARISON_DIRECTION])
            compute = _COMPARED[words.rstrip(">").split()[-1]]
        else:
            compute = _COMPUTED[name]
        with np.errstate(all="ignore"):
            number = compute(*numbers)
    if number is None:
        return False
    with op.location:
        return _put_constant(number, op)


def _put_constant(number: Any, op: ir.Operation) -> bool:
    """Replaces an operation by a constant, if its type can hold the number."""
    shaped = ir.ShapedType(op.results[0].type)
    element = shaped.element_type
    match = _ELEMENT.fullmatch(str(element))
    if match is None:
        return False
    if match[1]:
        bits = int(match[1])
        if not np.isfinite(number) or abs(number) >= 2 ** (bits - (bits > 1)):
            return False
        attribute = ir.IntegerAttr.get(element, int(number))
    else:
        attribute = ir.FloatAttr.get(element, float(number))
    scalar = ir.RankedTensorType.get([], element)
    value = ir.DenseElementsAttr.get_splat(scalar, attribute)
    constant = ir.Operation.create(
        CONSTANT,
        results=[scalar],
        attributes={VALUE: value},
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    if not shaped.shape:
        return _put(constant.results[0], op)
    return _replace(
        op, "broadcast_in_dim", constant.results[0], broadcast_dimensions=[]
    )


def number_of(value: ir.Value) -> Any:
    """The number in a splat constant, as a numpy scalar; None for any other value."""
    op = defining_op(value)
    if op is not None and op.name == BROADCAST:
        op = defining_op(op.operands[0])
    if op is None or op.name != CONSTANT:
        return None
    kind = str(ir.ShapedType(value.type).element_type)
    # jaxlib cannot read complex constants, nor large ones of type `ui64`.
    if not _ELEMENT.fullmatch(kind) or kind == "ui64":
        return None
    attribute = op.attributes[VALUE]
    if not attribute.is_splat:
        return None
    number = attribute.get_splat_value().value
    if "f" in kind:
        return np.float64(number)
    return np.bool_(number) if kind == "i1" else np.int64(number)


# Operations that return an operand unchanged.


def _leave_out(op: Any, name: str) -> bool:
    operands = list(op.operands)
    if name in _SAME:
        is_unchanged = operands[0].type == op.results[0].type and _in_order(op)
        return is_unchanged and _put(operands[0], op)
    if name in _NEUTRAL:
        neutral, is_commutative = _NEUTRAL[name]
        if number_of(operands[1]) == neutral:
            return _put(operands[0], op)
        return (
            is_commutative
            and number_of(operands[0]) == neutral
            and _put(operands[1], op)
        )
    condition, if_true, if_false = operands
    if if_true == if_false or _are_one_number(if_true, if_false):
        return _put(if_true, op)
    number = number_of(condition)
    return number is not None and _put(if_true if number else if_false, op)


def _are_one_number(first: Any, second: Any) -> bool:
    """True for equal splat constants, such as both branches of a gradient of zeros."""
    number = number_of(first)
    # 0.0 is not -0.0.
    return number is not None and repr(number) == repr(number_of(second))


def _in_order(op: ir.Operation) -> bool:
    """True if an operation keeps the order of dimensions."""
    for name in (PERMUTATION, BROADCAST_DIMS):
        if name in op.attributes:
            order = _numbers(op, name)
            return order == sorted(order)
    return True


# Slices, transposes and reshapes.


def _slice_where_constant(op: ir.Operation, name: str) -> bool:
    """Replaces a dynamic slice at constant positions by a slice.

    Also replaces a gather of one slice, to which `vmap` converts a dynamic slice.
    """
    operand, *parts = op.operands
    shape = _shape(op.results[0])
    dims = list(range(len(parts)))
    if name == "gather":
        numbers = stablehlo.GatherDimensionNumbers(op.attributes[GATHER_NUMBERS])
        is_one = len(numbers.offset_dims) == len(shape)
        if not is_one or list(numbers.collapsed_slice_dims):
            return False
        indices = defining_op(parts[0])
        if indices is None:
            return False
        if indices.name == CONCATENATE:
            parts = list(indices.operands)
        dims = list(numbers.start_index_map)
    positions = [number_of(part) for part in parts]
    if None in positions or len(positions) != len(dims):
        return False
    starts = [0] * len(shape)
    for dim, position in zip(dims, positions, strict=True):
        last = _shape(operand)[dim] - shape[dim]
        starts[dim] = min(max(int(position), 0), last)
    limits = [start + size for start, size in zip(starts, shape, strict=True)]
    return _slice(op, operand, starts, limits, [1] * len(shape))


def _slice(
    op: ir.Operation,
    operand: ir.Value,
    starts: list[int],
    limits: list[int],
    strides: list[int],
) -> bool:
    bounds = {START_INDICES: starts, LIMIT_INDICES: limits, STRIDES: strides}
    return _replace(op, "slice", operand, **bounds)


def _slice_one_part(op: ir.Operation, name: str) -> bool:
    """Slices an operand of a concatenation, if the slice lies within that operand."""
    joined = _made_by(op.operands[0], "concatenate")
    if joined is None:
        return False
    dim, begin = value_of(joined, CONCATENATED_DIM), 0
    starts, limits = _numbers(op, START_INDICES), _numbers(op, LIMIT_INDICES)
    for part in joined.operands:
        end = begin + _shape(part)[dim]
        if begin <= starts[dim] and limits[dim] <= end:
            if part.type == op.results[0].type:
                return _put(part, op)
            starts[dim], limits[dim] = starts[dim] - begin, limits[dim] - begin
            return _slice(op, part, starts, limits, _numbers(op, STRIDES))
        begin = end
    return False


def _transpose_once(op: ir.Operation, name: str) -> bool:
    """Merges a transpose of a transpose into one transpose.

    A transpose that only moves dimensions of size one becomes a reshape.
    """
    outer, shape = _numbers(op, PERMUTATION), _shape(op.operands[0])
    moved = [dim for dim in outer if shape[dim] != 1]
    if moved == sorted(moved):
        return _reshape(op, name)
    inner = _made_by(op.operands[0], "transpose")
    if inner is None:
        return False
    first = _numbers(inner, PERMUTATION)
    order = [first[dim] for dim in outer]
    if order == sorted(order):
        return _put(inner.operands[0], op)
    return _replace(op, "transpose", inner.operands[0], permutation=order)


def _reshape_once(op: ir.Operation, name: str) -> bool:
    """Merges a reshape of a reshape into one reshape.

    A broadcast that only adds dimensions of size one becomes a reshape too.
    """
    if name == "reshape":
        twice = _made_by(op.operands[0], "reshape") is not None
        replaced = ""
        if REPLACES in op.attributes:
            replaced = value_of(op, REPLACES)
        return twice and _reshape(op, replaced)
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    adds_ones = bool(before) and math.prod(before) == math.prod(after)
    return adds_ones and _in_order(op) and _reshape(op, name)


def _reshape(op: ir.Operation, replaced: str) -> bool:
    """Replaces an operation, and any reshape of its operand, by one reshape."""
    value = op.operands[0]
    inner = _made_by(value, "reshape")
    if inner is not None:
        value = inner.operands[0]
    if value.type == op.results[0].type:
        return _put(value, op)
    if not replaced:
        return _replace(op, "reshape", value)
    return _replace(op, "reshape", value, replaces=replaced)


# The rules that can apply to an operation, in order; for others in SIMPLIFIED, only
# `_put_number`. Most operations of a program need to be read just once.
_RULES: dict[str, tuple[Callable[[Any, str], bool], ...]] = {
    "broadcast_in_dim": (_put_number, _leave_out, _reshape_once),
    "reshape": (_put_number, _leave_out, _reshape_once),
    "transpose": (_put_number, _leave_out, _transpose_once),
    "slice": (_put_number, _leave_out, _slice_one_part),
    "dynamic_slice": (_put_number, _slice_where_constant),
    "gather": (_slice_where_constant,),
    **dict.fromkeys(("convert", "select", *_NEUTRAL), (_put_number, _leave_out)),
}
