"""Finds the operation that jax refused on Explicit axes, and why it did.

jax does not export `ShardingTypeError`, so it is known by name. The operation is found
in the traceback: every operation of jax passes through `Primitive.bind(*args,
**params)`.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp

from shardviz.core.backend.bridge import adopt_spec
from shardviz.core.backend.failures import in_words
from shardviz.core.backend.jax_compat import BoundOperation, bound_operation
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_notes import Refusal
from shardviz.core.xla.module import is_user_file

# What jax says in errors about shardings in types, beside those that have a class.
_TYPE_WORDS = (
    "out_sharding",
    "assert when all axes",
    "equal types",
    "equal output types",
)
_NO_TYPE_WORDS = ("via `out_sharding`", "sharding rule for")  # the second by jax 0.10
_OUT_PARAMS = ("out_sharding", "sharding")
_UNEVEN = re.compile(
    r"out dim \((\d+)\) is not divisible by mesh axes \((\d+)\) with spec \((.+?)\)"
)
_TWICE = re.compile(r"P\([^)]*\)(?:[^)]*\))? has duplicate entries for `(\w+)`")
# What works along one dimension, and needs that not split.
_ALONG_ONE = (
    "sort",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "cumlogsumexp",
    "top_k",
    "tile",
    "roll",
)
_ALIKE = ("select_n", "concatenate", "stack", "clamp", "dynamic_update_slice")


@dataclass(frozen=True)
class Refused:
    """An operation that jax could not give a type.

    Attributes:
        name: `dot_general`.
        operands: its operands' types: shape, dtype and sharding.
        types: the same, as jax writes them: `float32[8@x,16]`.
        params: its parameters, by name.
        apply: calls it again; takes the operands and what to change of the parameters.
        out_param: the parameter that says how the result is sharded, or `""`.
    """

    name: str
    operands: tuple[jax.ShapeDtypeStruct, ...]
    types: tuple[str, ...]
    params: dict[str, Any]
    apply: Callable[..., Any]
    out_param: str


def is_sharding_error(error: BaseException) -> bool:
    """Whether an exception says that shardings in types do not fit together.

    >>> is_sharding_error(TypeError("no such thing"))
    False
    """
    name = type(error).__name__  # private to jax, hence by name
    if name in ("ShardingTypeError", "DuplicateSpecError"):
        return True
    kinds = (ValueError, TypeError, AssertionError, NotImplementedError)
    words = str(error)
    if not isinstance(error, kinds) or not any(w in words for w in _TYPE_WORDS):
        return False
    return "hard" in words or "@" in words


def refused_in(error: BaseException, complete: bool = True) -> Refused | None:
    """The innermost operation that an exception's traceback passed through, or None.

    Args:
        error: what jax raised.
        complete: whether the traceback holds all of jax's own frames, as
            `complete_tracebacks` keeps them; else a function of jax.numpy does not
            count, since an operation inside may be meant.
    """
    frames, last = [], 0  # and the number of the last one of the user's own code
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if is_user_file(frame.f_code.co_filename):
            last = len(frames)
        frames.append(frame)
    for frame in reversed(frames[last:]):
        operation = bound_operation(frame)
        if operation is not None:
            return _of_operation(operation)
    if not complete:
        return None
    return _of_function(frames[last + 1 :])


def _of_operation(operation: BoundOperation) -> Refused | None:
    primitive, params = operation.primitive, dict(operation.params)

    def apply(*values: Any, **changes: Any) -> Any:
        return primitive.bind(*values, **{**params, **changes})

    return _refused(primitive.name, operation.operands, params, apply)


def _of_function(frames: Sequence[FrameType]) -> Refused | None:
    """A function of jax.numpy or jax.lax that refused its arguments at once."""
    for frame in frames:
        for module in (jnp, jax.lax):
            function = getattr(module, frame.f_code.co_name, None)
            code = getattr(inspect.unwrap(function), "__code__", None)  # type: ignore[arg-type]
            if code is frame.f_code:
                refused = _of_arguments(function, frame)
                if refused is not None:
                    return refused
    return None


def _of_arguments(function: Any, frame: FrameType) -> Refused | None:
    names = inspect.signature(function).parameters
    arrays, rest = {}, {}
    for name in names:
        if name in frame.f_locals:
            value = frame.f_locals[name]
            if isinstance(value, jax.Array):
                arrays[name] = value
            else:
                rest[name] = value

    def apply(*values: Any, **changes: Any) -> Any:
        arguments = {**dict(zip(arrays, values, strict=True)), **rest, **changes}
        bound = inspect.signature(function).bind_partial()
        for name in names:
            bound.arguments[name] = arguments[name]
        return function(*bound.args, **bound.kwargs)

    if not arrays:
        return None
    return _refused(frame.f_code.co_name, list(arrays.values()), rest, apply)


def _refused(
    name: str, values: Sequence[Any], params: dict[str, Any], apply: Callable[..., Any]
) -> Refused | None:
    structs, types = [], []
    for value in values:
        try:
            aval = jax.typeof(value)
        except TypeError:
            return None  # no array
        if not hasattr(aval, "sharding"):
            return None
        sharding = aval.sharding  # type: ignore[attr-defined]
        structs.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding))
        types.append(str(aval))
    out_param = next((param for param in _OUT_PARAMS if param in params), "")
    return Refused(name, tuple(structs), tuple(types), params, apply, out_param)


def spec_of(operand: jax.ShapeDtypeStruct) -> Spec:
    """The sharding in a type, one entry per dimension."""
    if operand.sharding is None:
        return Spec(((),) * operand.ndim)
    spec = adopt_spec(operand.sharding.spec)
    dims = (spec.dims + ((),) * operand.ndim)[: operand.ndim]
    return Spec(dims, unreduced=spec.unreduced, reduced=spec.reduced)


def problem(refused: Refused | None, error: BaseException) -> Refusal:
    """Why jax refused an operation.

    Args:
        refused: the operation, where it was found.
        error: what jax raised.

    >>> problem(None, ValueError("no idea"))
    Refusal(code='other', ..., words='ValueError: no idea')
    """
    name, specs = "", tuple[Spec, ...]()
    if refused is not None:
        name, specs = refused.name, tuple(map(spec_of, refused.operands))
    words = str(error)
    uneven, twice = _UNEVEN.search(words), _TWICE.search(words)
    if uneven is not None:
        sizes = (int(uneven[1]), int(uneven[2]))
        return Refusal("uneven", name, axes=(uneven[3],), sizes=sizes)
    if twice is not None:
        return Refusal("twice", name, specs, (twice[1],))
    if refused is None:
        return Refusal("other", words=in_words(error))
    if name == "dot_general":
        return _dot(refused, specs)
    if "illegally sharded result" in words:
        shared = []
        for axis in dict.fromkeys(specs[0].axes):
            if all(axis in spec.axes for spec in specs[1:]):
                shared.append(axis)
        return Refusal("twice", name, specs, tuple(shared))
    return _other(refused, specs, error)


def _other(refused: Refused, specs: tuple[Spec, ...], error: BaseException) -> Refusal:
    name, shapes = refused.name, [operand.shape for operand in refused.operands]
    if name == "reshape":
        sizes = (*shapes[0], *refused.params.get("new_sizes", ()))
        return Refusal("reshape", name, specs, sizes=sizes, rank=len(shapes[0]))
    if name.startswith(("gather", "scatter")):
        return Refusal("indexing", name, specs)
    if name in _ALONG_ONE:
        return _along(refused, specs)
    if name == "conv_general_dilated":
        return Refusal("convolution", name, specs)
    words = str(error)
    unknown = isinstance(error, NotImplementedError)
    if unknown or any(part in words for part in _NO_TYPE_WORDS):
        return Refusal("no type", name)
    distinct = tuple(dict.fromkeys(specs))
    one_rank = len({len(shape) for shape in shapes}) == 1
    if len(distinct) > 1 and (name in _ALIKE or one_rank):
        return Refusal("operands", name, distinct)
    return Refusal("other", name, words=in_words(error))


def _dot(refused: Refused, specs: tuple[Spec, ...]) -> Refusal:
    (left, right), (left_batch, right_batch) = refused.params["dimension_numbers"]
    name = refused.name
    one, two = _over(specs[0], left), _over(specs[1], right)
    if one and one == two:
        return Refusal("inner alike", name, specs, one)
    if one and two:
        return Refusal("inner", name, specs, one, two)
    first, second = _over(specs[0], left_batch), _over(specs[1], right_batch)
    if first != second:
        return Refusal("batch", name, specs, first, second)
    outer = []
    for axis in specs[0].axes:
        if axis in specs[1].axes and axis not in (*one, *two):
            outer.append(axis)
    return Refusal("twice", name, specs, tuple(outer))


def _over(spec: Spec, dims: Sequence[int]) -> tuple[str, ...]:
    axes: tuple[str, ...] = ()
    for dim in dims:
        axes += spec.dims[dim]
    return axes


def _along(refused: Refused, specs: tuple[Spec, ...]) -> Refusal:
    params, spec = refused.params, specs[0]
    number = params.get("dimension", params.get("axis"))
    if refused.name == "tile":
        for dim, times in enumerate(params.get("reps", ())):
            if times > 1 and spec.dims[dim]:
                number = dim
                break
    if isinstance(number, tuple) and len(number) == 1:
        (number,) = number
    if not isinstance(number, int) or not spec.dims:
        return Refusal("along", refused.name, specs)
    number %= len(spec.dims)
    axes = spec.dims[number] or spec.axes
    return Refusal("along", refused.name, specs, axes, dim=number)
