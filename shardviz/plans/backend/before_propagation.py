"""Inlines calls and removes dead operations, as XLA does before propagation.

Inlining changes shardings: Shardy also applies a constraint to the operation that
defines the constrained value, but not across a call. An example is a constraint on the
result of `jax.nn.relu`, which jax lowers to a call.

XLA inlines HLO calls (`call-inliner`). jaxlib doesn't expose that pass, and MLIR's
`inline` pass does nothing with jaxlib's dialects, so this module inlines calls itself.
The location of an inlined operation is an MLIR `callsite` that includes all enclosing
calls. Each call has a number, because two calls may be on one line.
"""

from __future__ import annotations

import itertools
from typing import Any

from jaxlib.mlir import ir

from shardviz.base.collective_kind import KINDS
from shardviz.plans.backend.attributes import NUMBERED_CALL, value_of
from shardviz.plans.backend.mlir_names import (
    CALLEE,
    CONSTRAINT,
    FRONTEND_ATTRIBUTES,
    FUNCTION_CALL,
    FUNCTION_NAME,
    HAS_SIDE_EFFECT,
    INLINEABLE,
    MANUAL_COMPUTATION,
    MODULE_FUNCTION,
    SHARDY_RETURN,
    STABLEHLO_RETURN,
)

#: Attribute of a constraint that XLA inserts before a loop, on a value the loop reads.
READ_BY_LOOP = "shardviz.read_by_loop"
# Attribute of a constraint: its sharding as jax wrote it, with axes of size 1.
WRITTEN = "shardviz.written"
#: Attribute of a constraint or a `shard_map`: its shardings before Shardy closes them.
OPEN = "shardviz.open"
# Operations with side effects, or that XLA treats as if they had some, such as
# collectives.
_KEPT = frozenset({
    *(kind.stablehlo.removeprefix("stablehlo.") for kind in KINDS.values()),
    "cross-replica-sum", "infeed", "outfeed", "recv", "send", "rng", "return",
    "create_token", "after_all",
})  # fmt: skip
_RETURNS = frozenset({STABLEHLO_RETURN, SHARDY_RETURN})
# Pure operations of Shardy; MANUAL_COMPUTATION has the effects of its body.
_PURE = frozenset({CONSTRAINT, MANUAL_COMPUTATION})
# Calls not inlined: those of `compute_on`, and `jax.jit(inline=jax.Inline.XLA_LATE)`.
_LEFT = ("false", "xla_late")


def inline_calls(module: Any) -> None:
    """Inlines, in place, all calls in `main` that XLA would inline, and nested calls.

    The functions stay in the module; Shardy's pipeline first removes the functions that
    are not called.

    >>> import jax
    >>> lowered = jax.jit(lambda x: jax.nn.relu(x) + jax.nn.relu(x * 2)).lower(1.0)
    >>> module = lowered.compiler_ir("stablehlo").operation.clone()
    >>> str(module).count("call @relu"), str(module).count("stablehlo.maximum")
    (2, 1)
    >>> inline_calls(module)
    >>> str(module).count("call @relu"), str(module).count("stablehlo.maximum")
    (0, 3)
    """
    functions = functions_of(module)
    numbers = itertools.count(1)
    with module.context:
        calls = list(_calls_in(functions["main"]))
        not_inlined = set[str]()
        for call in calls:
            function = callee(call, functions)
            if function is None:
                continue
            if _is_inlineable(call):
                calls += _inlined(call, function, next(numbers))
            elif (name := value_of(call, CALLEE)) not in not_inlined:
                not_inlined.add(name)
                calls += _calls_in(function)


def remove_dead(module: Any) -> None:
    """Removes, in place, operations without side effects whose results are unused.

    >>> import jax
    >>> context = jax.jit(abs).lower(1.0).compiler_ir("stablehlo").context
    >>> text = '''func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    ...   %y = stablehlo.sine %x : tensor<4xf32>
    ...   return %x : tensor<4xf32>
    ... }'''
    >>> module = ir.Module.parse(text, context).operation
    >>> remove_dead(module)
    >>> "sine" in str(module)
    False
    """
    for function in functions_of(module).values():
        _remove_dead_in(function)


def functions_of(module: Any) -> dict[str, Any]:
    """Name -> function, for all functions of a module."""
    functions = {}
    for item in module.regions[0].blocks[0].operations:
        op = item.operation
        if op.name == MODULE_FUNCTION:
            functions[value_of(op, FUNCTION_NAME)] = op
    return functions


def callee(call: ir.Operation, functions: dict[str, Any]) -> Any:
    """The function that a `func.call` calls, or None if it has no body here."""
    function = functions.get(value_of(call, CALLEE))
    if function is None or not function.regions[0].blocks:
        return None
    return function


def _is_inlineable(call: Any) -> bool:
    attributes = call.attributes.get(FRONTEND_ATTRIBUTES)
    if attributes is None or INLINEABLE not in attributes:
        return True
    return str(attributes[INLINEABLE]).strip('"') not in _LEFT


def _inlined(call: ir.Operation, function: ir.Operation, number: int) -> list[Any]:
    """Replaces a call by a copy of the callee; returns the calls in the copy."""
    copy = function.clone()
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    around = ir.Location.name(f"{NUMBERED_CALL}{number}", call.location)
    *body, returned = block.operations
    calls = []
    for item in body:
        op = item.operation
        for inner in (op, *operations_in(op)):
            inner.location = ir.Location.callsite(inner.location, [around])
            if inner.name == FUNCTION_CALL:
                calls.append(inner)
        op.move_before(call)
    for result, value in zip(call.results, returned.operands, strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()
    return calls


def _calls_in(op: ir.Operation) -> list[Any]:
    return [inner for inner in operations_in(op) if inner.name == FUNCTION_CALL]


def operations_in(op: ir.Operation, inner_first: bool = False) -> list[Any]:
    """All nested operations in program order; outer ones come first by default."""
    operations: list[Any] = []
    if not len(op.regions):
        return operations

    def collect(inner: ir.Operation) -> ir.WalkResult:
        operations.append(inner)
        return ir.WalkResult.ADVANCE

    # `walk` is three times faster than loops over regions and blocks.
    order = ir.WalkOrder.POST_ORDER if inner_first else ir.WalkOrder.PRE_ORDER
    op.walk(collect, order)
    # Without the operation itself.
    return operations[:-1] if inner_first else operations[1:]


def _remove_dead_in(op: ir.Operation) -> None:
    for region in op.regions:
        for block in region.blocks:
            # Go backwards, so that operations used only by dead ones are removed too.
            for item in reversed(list(block.operations)):
                inner = item.operation
                if _is_read(inner) or _has_effects(inner):
                    _remove_dead_in(inner)
                else:
                    inner.erase()


def _is_read(op: ir.Operation) -> bool:
    for result in op.results:
        for _ in result.uses:
            return True
    return False


def _has_effects(op: ir.Operation) -> bool:
    dialect, _, name = op.name.partition(".")
    if name == "custom_call":
        effect = op.attributes.get(HAS_SIDE_EFFECT)
        return effect is not None and bool(effect)
    if op.name not in _PURE and (dialect != "stablehlo" or name in _KEPT):
        return True
    for inner in operations_in(op):
        if inner.name not in _RETURNS and _has_effects(inner):
            return True
    return False
