"""Inlines calls and removes what nothing reads, as XLA does before it propagates.

The order matters: a constraint is also applied to the operation that makes its operand, and a call
is no such operation. So where a constraint follows `jax.nn.relu`, which jax lowers to a call, the
shardings with the call in place are others than those without it.

XLA does both when the program is in HLO (in its pass `call-inliner`); MLIR's own pass `inline`
leaves calls alone in jaxlib's registry. What was inlined keeps its location, and that of every call
around it, as a `callsite` in MLIR's words; each call has a number, since two may stand on one line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir

CALL = "func.call"
_NUMBERED = "shardviz.call "
_ATTRIBUTES, _INLINEABLE = "mhlo.frontend_attributes", "inlineable"
# What has effects beside its results, or that XLA takes to have some, such as collectives.
_KEPT = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute"),
        *("reduce_scatter", "cross-replica-sum", "infeed", "outfeed", "recv", "send", "rng"),
        *("return", "create_token", "after_all"),
    )
)
_CONSTRAINT = "sdy.sharding_constraint"
# Host computations of `compute_on`, and `jax.jit(inline=jax.Inline.XLA_LATE)`.
_LEFT = ("false", "xla_late")


def inline_calls(module: Any) -> None:
    """Replaces, in place, every call in `main` that XLA would inline, and every call inside it.

    The functions stay; Shardy's pipeline begins with removing those that nothing calls.

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
        waiting = list(_calls_in(functions["main"]))
        left = set[str]()
        for call in waiting:
            function = callee(call, functions)
            if function is None:
                continue
            if _is_inlineable(call):
                waiting += _inlined(call, function, next(numbers))
            elif (name := call.attributes["callee"].value) not in left:
                left.add(name)
                waiting += _calls_in(function)


def remove_dead(module: Any) -> None:
    """Removes, in place, every operation without effects whose results nothing reads.

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
    """The functions of a module, by name."""
    tops = [item.operation for item in module.regions[0].blocks[0].operations]
    return {op.attributes["sym_name"].value: op for op in tops if op.name == "func.func"}


def callee(call: Any, functions: dict[str, Any]) -> Any:
    """The function that a `func.call` calls, or None where its body is elsewhere."""
    found = functions.get(call.attributes["callee"].value)
    return found if found is not None and found.regions[0].blocks else None


def call_around(location: Any) -> tuple[int, Any, Any] | None:
    """The number and the location of the call that an inlined operation was in.

    Returns:
        With them, as the last, the operation's own location. None where it was in no call.
    """
    is_callsite = getattr(location, "is_a_callsite", None)  # jaxlib 0.10.0 has one class for all
    if not (is_callsite() if is_callsite else hasattr(location, "callee")):
        return None
    around = location.caller
    if not (is_callsite is None or around.is_a_name()):
        return None
    name = getattr(around, "name_str", "")
    if not name.startswith(_NUMBERED):
        return None
    return int(name.removeprefix(_NUMBERED)), around.child_loc, location.callee


def _is_inlineable(call: Any) -> bool:
    attributes = call.attributes.get(_ATTRIBUTES)
    if attributes is None or _INLINEABLE not in attributes:
        return True
    return str(attributes[_INLINEABLE]).strip('"') not in _LEFT


def _inlined(call: Any, function: Any, number: int) -> list[Any]:
    """Puts a copy of a function in place of one call; the calls in it."""
    copy = function.clone()
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    around = ir.Location.name(f"{_NUMBERED}{number}", call.location)
    *body, returned = [item.operation for item in block.operations]
    calls = []
    for op in body:
        for inner in _with_inner(op):
            inner.location = ir.Location.callsite(inner.location, [around])
            if inner.name == CALL:
                calls.append(inner)
        op.move_before(call)
    for result, value in zip(call.results, returned.operands, strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()
    return calls


def _calls_in(op: Any) -> Iterator[Any]:
    return (inner for inner in _with_inner(op) if inner.name == CALL)


def _with_inner(op: Any) -> Iterator[Any]:
    """An operation and those in its regions."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for item in block.operations:
                yield from _with_inner(item.operation)


def _remove_dead_in(op: Any) -> None:
    for region in op.regions:
        for block in region.blocks:
            # From the last one on, so that what only dead operations read is dead, too.
            for item in reversed(list(block.operations)):
                inner = item.operation
                if _is_read(inner) or _has_effects(inner):
                    _remove_dead_in(inner)
                else:
                    inner.erase()


def _is_read(op: Any) -> bool:
    return any(True for result in op.results for _ in result.uses)


def _has_effects(op: Any) -> bool:
    if op.name == "stablehlo.custom_call":
        effect = op.attributes.get("has_side_effect")
        return effect is not None and bool(effect)
    if op.name in _KEPT or not (op.name == _CONSTRAINT or op.name.startswith("stablehlo.")):
        return True
    inner = (item for region in op.regions for block in region.blocks for item in block.operations)
    return any(i.operation.name != "stablehlo.return" and _has_effects(i.operation) for i in inner)
