"""Rewrites a module before propagation, as XLA does before it runs Shardy.

jax carries every constant of a scan through the loop as an argument. XLA lets the loop read these
from outside before it propagates; otherwise the axes of one use inside would conflict with those
of another through the loop's own edges, and the plan would differ from what XLA does.

jax lowers `erf`, `top_k` and their like to CHLO, for which Shardy has no rules. XLA decomposes them
first, and jaxlib offers no pass that does. Every elementwise operation propagates shardings alike,
so an elementwise CHLO operation is replaced by one that Shardy knows, which keeps its name in an
attribute. A composite operation becomes a call of its decomposition, and a concatenation loses
operands without elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from jaxlib.mlir import ir

_LOOP = "stablehlo.while"
#: The attribute of a replacement that holds the name of the operation it replaces.
REPLACES = "shardviz.replaces"
# XLA does not decompose these, and Shardy knows them as custom calls of these names.
_CALLS = {"chlo.top_k": "mhlo.topk", "chlo.erf": "mhlo.erf"}
_CONCATENATE = "stablehlo.concatenate"
_COMPOSITE = "stablehlo.composite"
# The XLA of jax 0.10 shows Shardy an erf that it has no rule for, so no sharding crosses it.
_LEFT = {"chlo.erf"} if jax.__version_info__ < (0, 11) else set()
_ONE, _TWO, _TEST = "stablehlo.tanh", "stablehlo.atan2", "stablehlo.is_finite"
_REPLACEMENTS = frozenset({"stablehlo.custom_call", _ONE, _TWO, _TEST})


def rewrite_operations(module: Any) -> None:
    """Replaces, in place, the operations of a module that XLA would have rewritten."""
    found: list[Any] = []
    for item in module.body.operations:
        _collect(item.operation, found)
    for op in found:
        _replace(op)


def name_of(op: Any) -> str:
    """What an operation is called, without its dialect; for a replacement, what it replaces."""
    name = op.name
    if name in _REPLACEMENTS and REPLACES in op.attributes:
        return op.attributes[REPLACES].value
    return name.partition(".")[2]


def _collect(op: Any, found: list[Any]) -> None:
    known = op.name in (_COMPOSITE, _CONCATENATE)
    if known or (op.name.startswith("chlo.") and op.name not in _LEFT):
        found.append(op)
    for region in op.regions:
        for block in region.blocks:
            for item in block.operations:
                _collect(item.operation, found)


def _replace(op: Any) -> None:
    if op.name == _CONCATENATE:
        _without_empty(op)
        return
    with op.context, op.location:
        attributes: dict[str, Any] = {REPLACES: ir.StringAttr.get(op.name.partition(".")[2])}
        if op.name == _COMPOSITE:
            attributes, name = {"callee": op.attributes["decomposition"]}, "func.call"
        elif op.name in _CALLS:
            attributes["call_target_name"] = ir.StringAttr.get(_CALLS[op.name])
            name = "stablehlo.custom_call"
        elif not (name := _elementwise(op)):
            return
        made = ir.Operation.create(
            name,
            results=[r.type for r in op.results],
            operands=list(op.operands),
            attributes=attributes,
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def _without_empty(op: Any) -> None:
    """Removes the operands of a concatenation that have no elements."""
    full = [v for v in op.operands if 0 not in v.type.maybe_downcast().shape]
    if not full or len(full) == len(op.operands):
        return
    if len(full) == 1:
        op.results[0].replace_all_uses_with(full[0])
    else:
        with op.context, op.location:
            made = ir.Operation.create(
                op.name,
                results=[op.results[0].type],
                operands=full,
                attributes={"dimension": op.attributes["dimension"]},
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
        op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _elementwise(op: Any) -> str:
    """The replacement of an elementwise operation of one or two operands; `""` for any other."""
    operands = [str(v.type) for v in op.operands]
    results = [str(v.type) for v in op.results]
    if len(results) != 1 or len(set(operands)) != 1 or len(operands) > 2 or len(op.regions):
        return ""
    if operands[0] == results[0]:
        return _ONE if len(operands) == 1 else _TWO
    same_shape = operands[0].rpartition("x")[0] == results[0].rpartition("x")[0]
    is_test = results[0].endswith(("xi1>", "<i1>"))
    return _TEST if is_test and same_shape and len(operands) == 1 else ""


def read_invariants_outside(module: Any) -> None:
    """Lets every loop of a module read from outside what it only passes through; in place."""
    _visit(module.body.operations)


def _visit(operations: Iterable[Any]) -> None:
    for item in operations:
        op = item.operation
        if op.name == _LOOP:
            _read_outside(op)
        for region in op.regions:
            for block in region.blocks:
                _visit(block.operations)


def _read_outside(loop: Any) -> None:
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
