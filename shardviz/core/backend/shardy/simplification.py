"""Removes operations that change nothing, as XLA does when it reads a lowered program.

XLA runs StableHLO's simplifications (its pass `stablehlo-aggressive-simplification`) before it
inlines anything, and jaxlib does not offer them. What they remove or replace can no longer pass a
sharding on, so the plan does the same for those that jax's own lowerings call for: a product with
ones, a sum with zeros, a conversion to the same type, a slice at constant positions.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardviz.core.backend.shardy.attributes import defining_op

Number = int | float
#: The attribute of a replacement that holds the name of the operation it replaces.
REPLACES = "shardviz.replaces"
_BROADCAST = "stablehlo.broadcast_in_dim"
_SAME = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "convert", "reshape", "transpose", "slice")
)
# Binary operations, the number that leaves the other operand as it is, and whether both may be it.
_NEUTRAL = {
    "stablehlo.multiply": (1, True),
    "stablehlo.divide": (1, False),
    "stablehlo.add": (0, True),
    "stablehlo.subtract": (0, False),
}
_COMPUTED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": operator.add,
    "stablehlo.subtract": operator.sub,
    "stablehlo.multiply": operator.mul,
    "stablehlo.negate": operator.neg,
    "stablehlo.maximum": max,
    "stablehlo.minimum": min,
    "stablehlo.select": lambda which, one, two: one if which else two,
}
_SPLAT = re.compile(r"dense<(true|false|-?\d[\d.]*(?:[eE][-+]?\d+)?)>")
_TRUTH = {"true": True, "false": False}
_COMPARED = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt,
    "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip


def simplify(module: Any) -> None:
    """Removes, in place, the operations of a module that XLA would have removed.

    >>> import jax
    >>> lowered = jax.jit(lambda x: x * 1.0 + 2.0).lower(jax.numpy.ones(8))
    >>> module = lowered.compiler_ir("stablehlo").operation.clone()
    >>> simplify(module)
    >>> "multiply" in str(module), "add" in str(module)
    (False, True)
    """
    with module.context:
        for op in list(_operations(module)):
            if op.name == "stablehlo.dynamic_slice":
                _slice(op)
            elif op.name == "stablehlo.gather":
                _slice_of_gather(op)
            elif (same := _unchanged(op)) is not None:
                _put(same, op)
            elif op.name == _BROADCAST and _adds_only_ones(op):
                attributes = {REPLACES: ir.StringAttr.get("broadcast_in_dim")}
                _replace(op, "stablehlo.reshape", op.operands[0], attributes)
            elif op.name == "stablehlo.slice":
                _slice_of_one(op)


def _put(value: Any, op: Any) -> None:
    """Puts a value in place of the result of an operation."""
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _replace(op: Any, name: str, operand: Any, attributes: dict[str, Any]) -> None:
    """Puts another operation in place of one."""
    made = ir.Operation.create(
        name,
        results=[op.results[0].type],
        operands=[operand],
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    _put(made.results[0], op)


def _adds_only_ones(op: Any) -> bool:
    """Whether a broadcast only adds dimensions of size one, as a reshape does."""
    before, after = (ir.ShapedType(v.type).shape for v in (op.operands[0], op.results[0]))
    return math.prod(before) == math.prod(after) and bool(before) and _in_order(op)


def _slice_of_one(op: Any) -> None:
    """Slices the one operand of a concatenation that a slice of the concatenation lies in."""
    joined = defining_op(op.operands[0])
    if joined is None or joined.name != "stablehlo.concatenate":
        return
    dim = joined.attributes["dimension"].value
    names = ("start_indices", "limit_indices", "strides")
    starts, limits, strides = (list(ir.DenseI64ArrayAttr(op.attributes[n])) for n in names)
    begin = 0
    for part in joined.operands:
        end = begin + ir.ShapedType(part.type).shape[dim]
        if begin <= starts[dim] and limits[dim] <= end:
            starts[dim], limits[dim] = starts[dim] - begin, limits[dim] - begin
            if part.type == op.results[0].type:
                _put(part, op)
            else:
                _replace(op, "stablehlo.slice", part, _slicing(starts, limits, strides))
            return
        begin = end


def _slicing(starts: list[int], limits: list[int], strides: list[int]) -> dict[str, Any]:
    numbers = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return {name: ir.DenseI64ArrayAttr.get(values) for name, values in numbers.items()}


def _operations(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region.blocks:
            for item in block.operations:
                yield item.operation
                yield from _operations(item.operation)


def _unchanged(op: Any) -> Any:
    """The operand that an operation returns as it is, or None."""
    name = op.name
    if name in _SAME:
        operand, result = op.operands[0], op.results[0]
        return operand if operand.type == result.type and _in_order(op) else None
    if name in _NEUTRAL:
        neutral, either = _NEUTRAL[name]
        first, second = op.operands
        if _number(second) == neutral:
            return first
        return second if either and _number(first) == neutral else None
    if name == "stablehlo.select":
        which = _number(op.operands[0])
        return None if which is None else op.operands[1 if which else 2]
    return None


def _in_order(op: Any) -> bool:
    """Whether an operation leaves dimensions in their order."""
    for name in ("permutation", "broadcast_dimensions"):
        if name in op.attributes:
            order = list(ir.DenseI64ArrayAttr(op.attributes[name]))
            return order == sorted(order)
    return True


def _slice(op: Any) -> None:
    """Puts a slice in place of a dynamic slice at constant positions."""
    starts = [_number(position) for position in list(op.operands)[1:]]
    if None not in starts:
        _slice_at(op, dict(enumerate(starts)))


def _slice_of_gather(op: Any) -> None:
    """The same for a gather of one slice, which is what `vmap` makes of a dynamic slice."""
    indices = defining_op(op.operands[1])
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    whole = len(numbers.offset_dims) == len(ir.ShapedType(op.results[0].type).shape)
    if indices is None or not whole or list(numbers.collapsed_slice_dims):
        return
    parts = indices.operands if indices.name == "stablehlo.concatenate" else op.operands[1:2]
    starts = [_number(part) for part in parts]
    dims = list(numbers.start_index_map)
    if None not in starts and len(starts) == len(dims):
        _slice_at(op, dict(zip(dims, starts, strict=True)))


def _slice_at(op: Any, positions: dict[int, Any]) -> None:
    """Puts a slice in place of an operation; it begins at the positions, where they fit."""
    full, sizes = (ir.ShapedType(v.type).shape for v in (op.operands[0], op.results[0]))
    starts = [
        min(max(int(positions.get(dim, 0)), 0), whole - size)
        for dim, (whole, size) in enumerate(zip(full, sizes, strict=True))
    ]
    limits = [start + size for start, size in zip(starts, sizes, strict=True)]
    attributes = _slicing(starts, limits, [1] * len(starts))
    _replace(op, "stablehlo.slice", op.operands[0], attributes)


def _number(value: Any) -> Number | None:
    """The number that all elements of a value are, where that is known; else None."""
    op = defining_op(value)
    if op is None:
        return None
    name = op.name
    if name == "stablehlo.constant":
        return _splat(op.attributes["value"])
    if name in ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape"):
        return _number(op.operands[0])
    if name not in _COMPUTED and name != "stablehlo.compare":
        return None
    if ir.ShapedType(value.type).shape:
        return None
    operands = [_number(operand) for operand in op.operands]
    if any(operand is None for operand in operands):
        return None
    if name == "stablehlo.compare":
        words = str(op.attributes["comparison_direction"])
        return _COMPARED[words.rstrip(">").split()[-1]](*operands)
    return _COMPUTED[name](*operands)


def _splat(attribute: Any) -> Number | None:
    if not isinstance(attribute, (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr)):
        return None
    # As text, since jaxlib gives no number for some types, bfloat16 among them.
    found = _SPLAT.match(str(attribute)) if attribute.is_splat else None
    if found is None:
        return None
    return _TRUTH[found[1]] if found[1] in _TRUTH else float(found[1])
