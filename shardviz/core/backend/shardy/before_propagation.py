"""What XLA does to a program before it propagates: simplifies, inlines, drops what is
dead.

The order matters: a constraint is also applied to the operation that makes its operand,
and a call is no such operation. So where a constraint follows `jax.nn.relu`, which jax
lowers to a call, the shardings with the call in place are others than those without it.
What is simplified away can no longer pass a sharding on either.

XLA runs StableHLO's simplifications first (`stablehlo-aggressive-simplification`), and
inlines when the program is in HLO (`call-inliner`). jaxlib offers neither, and MLIR's
own pass `inline` leaves calls alone in its registry. So the plan does the same here, of
the simplifications for those that jax's own lowerings call for: a product with ones, a
sum with zeros, a conversion to the same type, a slice at constant positions, a
transpose of a transpose. It computes no constants: on none of the test programs would
that change a sharding (jaxlib 0.10.0). What was inlined keeps its
location, and that of every call around it, as a `callsite` in MLIR's words; each call
has a number, since two may stand on one line.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from shardviz.core.backend.shardy.attributes import NUMBERED_CALL, defining_op

CALL = "func.call"
#: The attribute of what XLA puts before a loop for a value that it reads from outside.
READ_BY_LOOP = "shardviz.read_by_loop"
_ATTRIBUTES, _INLINEABLE = "mhlo.frontend_attributes", "inlineable"
# What has effects beside its results, or that XLA takes to have some, such as
# collectives.
_KEPT = frozenset({
    "stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all",
    "stablehlo.collective_broadcast", "stablehlo.collective_permute",
    "stablehlo.reduce_scatter", "stablehlo.cross-replica-sum", "stablehlo.infeed",
    "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send", "stablehlo.rng",
    "stablehlo.return", "stablehlo.create_token", "stablehlo.after_all",
})  # fmt: skip
_RETURNS = frozenset({"stablehlo.return", "sdy.return"})
# Beside StableHLO's; the second has the effects of the operations in it.
_PURE = frozenset({"sdy.sharding_constraint", "sdy.manual_computation"})
# Host computations of `compute_on`, and `jax.jit(inline=jax.Inline.XLA_LATE)`.
_LEFT = ("false", "xla_late")


def inline_calls(module: Any) -> None:
    """Replaces, in place, every call in `main` that XLA would inline, and every call
    inside it.

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
    functions = {}
    for item in module.regions[0].blocks[0].operations:
        op = item.operation
        if op.name == "func.func":
            functions[op.attributes["sym_name"].value] = op
    return functions


def callee(call: Any, functions: dict[str, Any]) -> Any:
    """The function that a `func.call` calls, or None where its body is elsewhere."""
    function = functions.get(call.attributes["callee"].value)
    if function is None or not function.regions[0].blocks:
        return None
    return function


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
    around = ir.Location.name(f"{NUMBERED_CALL}{number}", call.location)
    *body, returned = [item.operation for item in block.operations]
    calls = []
    for op in body:
        inside = [op]
        if len(op.regions):  # most have none, and to walk takes its time
            inside += operations_in(op)
        for inner in inside:
            inner.location = ir.Location.callsite(inner.location, [around])
            if inner.name == CALL:
                calls.append(inner)
        op.move_before(call)
    for result, value in zip(call.results, returned.operands, strict=True):
        result.replace_all_uses_with(value)
    call.erase()
    copy.erase()
    return calls


def _calls_in(op: Any) -> list[Any]:
    return [inner for inner in operations_in(op) if inner.name == CALL]


def operations_in(op: Any, inner_first: bool = False) -> list[Any]:
    """The operations in another in program order, each before or after those in it."""
    walked: list[Any] = []

    def keep(inner: Any) -> ir.WalkResult:
        walked.append(inner)
        return ir.WalkResult.ADVANCE

    # jaxlib's own traversal takes a third of the time of one over regions and blocks.
    # It also visits the operation itself, as the last one or the first.
    if inner_first:
        op.walk(keep, ir.WalkOrder.POST_ORDER)
        return walked[:-1]
    op.walk(keep, ir.WalkOrder.PRE_ORDER)
    return walked[1:]


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
    for result in op.results:
        for _ in result.uses:
            return True
    return False


def _has_effects(op: Any) -> bool:
    if op.name == "stablehlo.custom_call":
        effect = op.attributes.get("has_side_effect")
        return effect is not None and bool(effect)
    if op.name in _KEPT or not (op.name in _PURE or op.name.startswith("stablehlo.")):
        return True
    for region in op.regions:
        for block in region.blocks:
            for item in block.operations:
                inner = item.operation
                if inner.name not in _RETURNS and _has_effects(inner):
                    return True
    return False


#: The attribute of a replacement that holds the name of the operation it replaces.
REPLACES = "shardviz.replaces"
_BROADCAST = "stablehlo.broadcast_in_dim"
_TRANSPOSE, _RESHAPE = "stablehlo.transpose", "stablehlo.reshape"
_SAME = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "convert", "reshape", "transpose", "slice")
)
# Binary operations, the number that leaves the other operand as it is, and whether both
# may be it.
_NEUTRAL = {
    "stablehlo.multiply": (1, True),
    "stablehlo.divide": (1, False),
    "stablehlo.add": (0, True),
    "stablehlo.subtract": (0, False),
}
#: The most frequent of those that no rule here is about.
_NEVER_SIMPLER = frozenset(
    f"stablehlo.{name}"
    for name in ("constant", "dot_general", "reduce", "return", "iota", "pad")
)
_ELEMENT = re.compile(r"u?i(\d+)|b?f\d\w*")


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
        for op in operations_in(module):
            if (name := op.name) in _NEVER_SIMPLER:
                continue
            if name == "stablehlo.dynamic_slice":
                _slice(op)
            elif (same := _unchanged(op)) is not None:
                _put(same, op)
            elif name == _TRANSPOSE and _moves_only_ones(op):
                _reshape_once(op, "transpose")
            elif name == _TRANSPOSE:
                _transpose_once(op)
            elif name == _RESHAPE:
                _reshape_once(op)
            elif name == _BROADCAST and _adds_only_ones(op):
                _reshape_once(op, "broadcast_in_dim")


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


def _reshape_once(op: Any, replaced: str = "") -> None:
    """Reshapes once what a reshape of a reshape reshapes twice.

    Args:
        op: the second reshape, or what does the same.
        replaced: what that is called, or `""` for a reshape.
    """
    value, inner = op.operands[0], defining_op(op.operands[0])
    if inner is not None and inner.name == _RESHAPE:
        value = inner.operands[0]
    elif not replaced:
        return
    if value.type == op.results[0].type:
        _put(value, op)
        return
    attributes = {}
    if replaced:
        attributes[REPLACES] = ir.StringAttr.get(replaced)
    elif REPLACES in op.attributes:
        attributes[REPLACES] = op.attributes[REPLACES]
    _replace(op, _RESHAPE, value, attributes)


def _moves_only_ones(op: Any) -> bool:
    """Whether a transpose leaves all dimensions but those of size one in their order."""
    shape = ir.ShapedType(op.operands[0].type).shape
    order = [dim for dim in _permutation(op) if shape[dim] != 1]
    return order == sorted(order)


def _permutation(op: Any) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))


def _transpose_once(op: Any) -> None:
    """Transposes once what a transpose of a transpose transposes twice."""
    inner = defining_op(op.operands[0])
    if inner is None or inner.name != _TRANSPOSE:
        return
    first = _permutation(inner)
    order = [first[dim] for dim in _permutation(op)]
    if order == sorted(order):
        _put(inner.operands[0], op)
    else:
        permutation = {"permutation": ir.DenseI64ArrayAttr.get(order)}
        _replace(op, _TRANSPOSE, inner.operands[0], permutation)


def _adds_only_ones(op: Any) -> bool:
    """Whether a broadcast only adds dimensions of size one, as a reshape does."""
    before = ir.ShapedType(op.operands[0].type).shape
    after = ir.ShapedType(op.results[0].type).shape
    return math.prod(before) == math.prod(after) and bool(before) and _in_order(op)


def _unchanged(op: Any) -> Any:
    """The operand that an operation returns as it is, or None."""
    name = op.name
    if name in _SAME:
        operand, result = op.operands[0], op.results[0]
        if operand.type == result.type and _in_order(op):
            return operand
    elif name in _NEUTRAL:
        neutral, either = _NEUTRAL[name]
        first, second = op.operands
        if _number(second) == neutral:
            return first
        if either and _number(first) == neutral:
            return second
    elif name == "stablehlo.select":
        which, if_true, if_false = op.operands
        if if_true == if_false or _is_same_number(if_true, if_false):
            return if_true
        chosen = _number(which)
        if chosen is not None:
            return if_true if chosen else if_false
    return None


def _is_same_number(one: Any, other: Any) -> bool:
    """Whether two constants are equal, as the branches of a gradient through zeros are."""
    number = _number(one)
    # As text, since 0.0 == -0.0, and one may not stand for the other.
    return number is not None and repr(number) == repr(_number(other))


def _in_order(op: Any) -> bool:
    """Whether an operation leaves dimensions in their order."""
    for name in ("permutation", "broadcast_dimensions"):
        if name in op.attributes:
            order = list(ir.DenseI64ArrayAttr(op.attributes[name]))
            return order == sorted(order)
    return True


def _slice(op: Any) -> None:
    """Puts a slice in place of a dynamic slice at constant positions."""
    positions = [_number(position) for position in list(op.operands)[1:]]
    if None in positions:
        return
    full = ir.ShapedType(op.operands[0].type).shape
    sizes = ir.ShapedType(op.results[0].type).shape
    starts, limits = [], []
    for position, length, size in zip(positions, full, sizes, strict=True):
        # A dynamic slice never leaves the array.
        starts.append(min(max(int(position), 0), length - size))
        limits.append(starts[-1] + size)
    numbers = {
        "start_indices": starts,
        "limit_indices": limits,
        "strides": [1] * len(starts),
    }
    attributes = {n: ir.DenseI64ArrayAttr.get(values) for n, values in numbers.items()}
    _replace(op, "stablehlo.slice", op.operands[0], attributes)


def _number(value: Any) -> Any:
    """The number that all elements of a constant are, of numpy's kind; None of another
    value.
    """
    op = defining_op(value)
    if op is not None and op.name == _BROADCAST:
        op = defining_op(op.operands[0])
    if op is None or op.name != "stablehlo.constant":
        return None
    kind = str(ir.ShapedType(value.type).element_type)
    # jaxlib cannot read constants of complex numbers, nor the largest ones of `ui64`.
    if not _ELEMENT.fullmatch(kind) or kind == "ui64":
        return None
    attribute = op.attributes["value"]
    if not attribute.is_splat:
        return None
    number = attribute.get_splat_value().value
    if "f" in kind:
        return np.float64(number)
    if kind == "i1":
        return np.bool_(number)
    return np.int64(number)
