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
transpose of a transpose, an operation on constants. What was inlined keeps its
location, and that of every call around it, as a `callsite` in MLIR's words; each call
has a number, since two may stand on one line.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardviz.core.backend.shardy.attributes import NUMBERED_CALL, defining_op

CALL = "func.call"
#: The attribute of what XLA puts before a loop for a value that it reads from outside.
READ_BY_LOOP = "shardviz.read_by_loop"
_ATTRIBUTES, _INLINEABLE = "mhlo.frontend_attributes", "inlineable"
# What has effects beside its results, or that XLA takes to have some, such as
# collectives.
_KEPT = frozenset(
    f"stablehlo.{name}"
    for name in (
        *(
            "all_gather",
            "all_reduce",
            "all_to_all",
            "collective_broadcast",
            "collective_permute",
        ),
        *(
            "reduce_scatter",
            "cross-replica-sum",
            "infeed",
            "outfeed",
            "recv",
            "send",
            "rng",
        ),
        *("return", "create_token", "after_all"),
    )
)
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
    tops = [item.operation for item in module.regions[0].blocks[0].operations]
    return {
        op.attributes["sym_name"].value: op for op in tops if op.name == "func.func"
    }


def callee(call: Any, functions: dict[str, Any]) -> Any:
    """The function that a `func.call` calls, or None where its body is elsewhere."""
    found = functions.get(call.attributes["callee"].value)
    return found if found is not None and found.regions[0].blocks else None


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
        for inner in (op, *operations_in(op)) if len(op.regions) else (op,):
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
    found: list[Any] = []

    def keep(inner: Any) -> ir.WalkResult:
        found.append(inner)
        return ir.WalkResult.ADVANCE

    # jaxlib's own traversal takes a third of the time of one over regions and blocks.
    op.walk(keep, ir.WalkOrder.POST_ORDER if inner_first else ir.WalkOrder.PRE_ORDER)
    return found[:-1] if inner_first else found[1:]


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
    if op.name in _KEPT or not (op.name in _PURE or op.name.startswith("stablehlo.")):
        return True
    inner = (
        item
        for region in op.regions
        for block in region.blocks
        for item in block.operations
    )
    return any(
        i.operation.name not in _RETURNS and _has_effects(i.operation) for i in inner
    )


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
# What XLA computes where all operands are constants of one number each. What is not
# here it leaves alone, among others `floor`, `power` and `exponential_minus_one`.
_COMPUTED: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "maximum": np.maximum, "minimum": np.minimum, "abs": np.abs,
    "negate": np.negative, "sign": np.sign, "sine": np.sin, "cosine": np.cos, "tan": np.tan,
    "tanh": np.tanh, "exponential": np.exp, "log": np.log, "sqrt": np.sqrt, "square": np.square,
    "rsqrt": lambda x: 1 / np.sqrt(x), "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "round_nearest_even": np.round, "and": np.bitwise_and, "or": np.bitwise_or,
    "divide": lambda x, y: x / y if isinstance(x, np.floating) else np.trunc(x / y),
    "remainder": np.fmod, "clamp": lambda low, x, high: np.minimum(np.maximum(low, x), high),
    "select": lambda which, one, two: one if which else two,
}  # fmt: skip
# The same for what moves numbers; concatenations of equal ones are among these.
_MOVES = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "slice",
        "reverse",
        "convert",
        "dynamic_slice",
    }
)
#: What XLA computes or moves, as MLIR names it.
_FOLDED = frozenset(
    f"stablehlo.{name}"
    for name in (*_COMPUTED, *_MOVES, "compare", "concatenate", "not")
)
#: The most frequent of those that no rule here is about.
_NEVER_SIMPLER = frozenset(
    f"stablehlo.{name}"
    for name in ("constant", "dot_general", "reduce", "return", "iota", "pad")
)
_ELEMENT = re.compile(r"u?i(\d+)|b?f\d\w*")
_COMPARED = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater,
    "GE": np.greater_equal, "EQ": np.equal, "NE": np.not_equal,
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
        for op in operations_in(module):
            if (name := op.name) in _NEVER_SIMPLER:
                continue
            if (number := _computed(op)) is not None:
                with op.location:
                    _put_number(number, op)
            elif name == "stablehlo.dynamic_slice":
                _slice(op)
            elif name == "stablehlo.gather":
                _slice_of_gather(op)
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
            elif name == "stablehlo.slice":
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
    replaced = replaced or (
        op.attributes[REPLACES].value if REPLACES in op.attributes else ""
    )
    attributes = {REPLACES: ir.StringAttr.get(replaced)} if replaced else {}
    _replace(op, _RESHAPE, value, attributes)


def _moves_only_ones(op: Any) -> bool:
    """Whether a transpose leaves all dimensions but those of size one in their order."""
    shape = ir.ShapedType(op.operands[0].type).shape
    order = [
        d for d in ir.DenseI64ArrayAttr(op.attributes["permutation"]) if shape[d] != 1
    ]
    return order == sorted(order)


def _transpose_once(op: Any) -> None:
    """Transposes once what a transpose of a transpose transposes twice."""
    inner = defining_op(op.operands[0])
    if inner is None or inner.name != _TRANSPOSE:
        return
    outer, first = (
        list(ir.DenseI64ArrayAttr(o.attributes["permutation"])) for o in (op, inner)
    )
    order = [first[dim] for dim in outer]
    if order == sorted(order):
        _put(inner.operands[0], op)
    else:
        permutation = {"permutation": ir.DenseI64ArrayAttr.get(order)}
        _replace(op, _TRANSPOSE, inner.operands[0], permutation)


def _adds_only_ones(op: Any) -> bool:
    """Whether a broadcast only adds dimensions of size one, as a reshape does."""
    before, after = (
        ir.ShapedType(v.type).shape for v in (op.operands[0], op.results[0])
    )
    return math.prod(before) == math.prod(after) and bool(before) and _in_order(op)


def _slice_of_one(op: Any) -> None:
    """Slices the one operand of a concatenation that a slice of the concatenation lies
    in.
    """
    joined = defining_op(op.operands[0])
    if joined is None or joined.name != "stablehlo.concatenate":
        return
    dim = joined.attributes["dimension"].value
    names = ("start_indices", "limit_indices", "strides")
    starts, limits, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[n])) for n in names
    )
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


def _slicing(
    starts: list[int], limits: list[int], strides: list[int]
) -> dict[str, Any]:
    numbers = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return {name: ir.DenseI64ArrayAttr.get(values) for name, values in numbers.items()}


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
        if op.operands[1] == op.operands[2] or _is_same_number(*list(op.operands)[1:]):
            return op.operands[1]
        which = _number(op.operands[0])
        return None if which is None else op.operands[1 if which else 2]
    return None


def _is_same_number(one: Any, other: Any) -> bool:
    """Whether two constants are equal, as the branches of a gradient through zeros are."""
    number = _number(one)
    return number is not None and repr(number) == repr(
        _number(other)
    )  # 0.0 is not -0.0


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
    """The same for a gather of one slice, which is what `vmap` makes of a dynamic
    slice.
    """
    indices = defining_op(op.operands[1])
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    whole = len(numbers.offset_dims) == len(ir.ShapedType(op.results[0].type).shape)
    if indices is None or not whole or list(numbers.collapsed_slice_dims):
        return
    parts = (
        indices.operands
        if indices.name == "stablehlo.concatenate"
        else op.operands[1:2]
    )
    starts = [_number(part) for part in parts]
    dims = list(numbers.start_index_map)
    if None not in starts and len(starts) == len(dims):
        _slice_at(op, dict(zip(dims, starts, strict=True)))


def _slice_at(op: Any, positions: dict[int, Any]) -> None:
    """Puts a slice in place of an operation; it begins at the positions, where they
    fit.
    """
    full, sizes = (ir.ShapedType(v.type).shape for v in (op.operands[0], op.results[0]))
    starts = [
        min(max(int(positions.get(dim, 0)), 0), whole - size)
        for dim, (whole, size) in enumerate(zip(full, sizes, strict=True))
    ]
    limits = [start + size for start, size in zip(starts, sizes, strict=True)]
    attributes = _slicing(starts, limits, [1] * len(starts))
    _replace(op, "stablehlo.slice", op.operands[0], attributes)


def _computed(op: Any) -> Any:
    """The number that XLA computes for an operation on constants, or None."""
    # What costs least is asked first: it decides for most operations.
    if (name := op.name) not in _FOLDED:
        return None
    if name == _BROADCAST and not ir.ShapedType(op.operands[0].type).shape:
        return None  # how a constant is written
    if (first := _number(op.operands[0])) is None:
        return None
    name = (
        op.attributes[REPLACES].value
        if REPLACES in op.attributes
        else name.partition(".")[2]
    )
    if f"stablehlo.{name}" not in _FOLDED or len(op.results) != 1:
        return None
    others = [] if name in _MOVES else list(op.operands)[1:]
    numbers = [first, *(_number(operand) for operand in others)]
    if None in numbers or (name == "concatenate" and len(set(numbers)) > 1):
        return None
    if name in _MOVES or name == "concatenate":
        return numbers[0]
    with np.errstate(all="ignore"):
        if name == "not":
            return None if not isinstance(numbers[0], np.bool_) else not numbers[0]
        if name == "compare":
            words = str(op.attributes["comparison_direction"])
            return _COMPARED[words.rstrip(">").split()[-1]](*numbers)
        return _COMPUTED[name](*numbers)


def _put_number(number: Any, op: Any) -> None:
    """Puts a constant in place of an operation, where its type can hold the number."""
    shaped = ir.ShapedType(op.results[0].type)
    element = shaped.element_type
    if (found := _ELEMENT.fullmatch(str(element))) is None:
        return
    if found[1]:
        bits = int(found[1])
        if not np.isfinite(number) or abs(number) >= 2 ** (bits - (bits > 1)):
            return
        attribute = ir.IntegerAttr.get(element, int(number))
    else:
        attribute = ir.FloatAttr.get(element, float(number))
    scalar = ir.RankedTensorType.get([], element)
    value: dict[str, Any] = {"value": ir.DenseElementsAttr.get_splat(scalar, attribute)}
    at = {"loc": op.location, "ip": ir.InsertionPoint(op)}
    made = ir.Operation.create(
        "stablehlo.constant", results=[scalar], attributes=value, **at
    )
    if shaped.shape:
        nowhere: dict[str, Any] = {"broadcast_dimensions": ir.DenseI64ArrayAttr.get([])}
        made = ir.Operation.create(
            _BROADCAST, [op.results[0].type], [made.results[0]], nowhere, **at
        )
    _put(made.results[0], op)


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
    return np.bool_(number) if kind == "i1" else np.int64(number)
