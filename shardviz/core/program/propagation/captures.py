"""What a loop passes through unchanged, read from outside instead: as XLA shows it to Shardy.

jax carries every constant of a scan through the loop as an argument. XLA makes these captured
values before it propagates; were they left in, the axes of one use inside would conflict with
those of another through the loop's own edges, and the plan would differ from what XLA does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LOOP = "stablehlo.while"


def capture_invariants(module: Any) -> None:
    """Lets every loop of a module read from outside what it only passes through; in place."""
    _visit(module.body.operations)


def _visit(operations: Iterable[Any]) -> None:
    for item in operations:
        op = item.operation
        if op.name == _LOOP:
            _capture(op)
        for region in op.regions:
            for block in region.blocks:
                _visit(block.operations)


def _capture(loop: Any) -> None:
    condition, body = (region.blocks[0] for region in loop.regions)
    carried = body.operations[len(body.operations) - 1].operation
    for i, argument in enumerate(body.arguments):
        if carried.operands[i] != argument:
            continue
        outer = loop.operands[i]
        argument.replace_all_uses_with(outer)
        carried.operands[i] = argument  # a loop returns what it takes, so this use stays
        condition.arguments[i].replace_all_uses_with(outer)
        loop.results[i].replace_all_uses_with(outer)
