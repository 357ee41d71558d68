"""Trip counts of the loops in a lowered module."""

from __future__ import annotations

import re
from typing import Any

from jaxlib.mlir import ir

from shardviz.plans.backend.attributes import defining_op
from shardviz.plans.backend.mlir_names import (
    ADD,
    COMPARE,
    COMPARISON_DIRECTION,
    CONSTANT,
    SHARDY_CONSTANT,
    VALUE,
)

_NUMBER = re.compile(r"dense<(-?\d+)>")


def trip_count(op: ir.Operation) -> int | None:
    """The trip count of a `stablehlo.while` that counts up to a constant, or None."""
    condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
    test = defining_op(_last(condition).operands[0])
    if test is None or test.name != COMPARE:
        return None
    if " LT" not in str(test.attributes[COMPARISON_DIRECTION]):
        return None
    numbers = {value: number for number, value in enumerate(condition.arguments)}
    counter, bound = numbers.get(test.operands[0]), numbers.get(test.operands[1])
    if counter is None:
        return None
    limit = _constant(test.operands[1])
    # jax may carry the limit through the loop unchanged.
    if bound is not None and _last(body).operands[bound] == body.arguments[bound]:
        limit = _constant(op.operands[bound])
    start, step = _constant(op.operands[counter]), _stride(body, counter)
    if limit is None or start is None or not step or step < 0:
        return None
    return max(0, -(-(limit - start) // step))


def _stride(body: ir.Block, counter: int) -> int | None:
    """The number that the loop body adds to the counter; None if not a constant."""
    addition = defining_op(_last(body).operands[counter])
    if addition is None or addition.name != ADD:
        return None
    first, second = addition.operands
    argument = body.arguments[counter]
    if first == argument:
        return _constant(second)
    if second == argument:
        return _constant(first)
    return None


def _constant(value: ir.Value) -> int | None:
    constant = defining_op(value)
    if constant is None or constant.name not in (CONSTANT, SHARDY_CONSTANT):
        return None
    number = _NUMBER.match(str(constant.attributes[VALUE]))
    if number is None:
        return None
    return int(number[1])


def _last(block: ir.Block) -> Any:
    return block.operations[len(block.operations) - 1].operation
