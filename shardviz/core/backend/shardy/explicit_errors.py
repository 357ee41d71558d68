"""Finds the operation that jax refused on Explicit axes, and says in words why it did.

jax does not export `ShardingTypeError`, so it is known by name. The operation is found in the
traceback: every operation of jax passes through `Primitive.bind(*args, **params)`, which is public.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax._src.config import traceback_filtering

from shardviz.core.backend.bridge import adopt_spec
from shardviz.core.backend.failures import in_words
from shardviz.core.format import joined
from shardviz.core.hlo.module import is_user_file
from shardviz.core.layout.partition_spec import Spec

_OWN_WORDS = ("out_sharding", "assert when all axes", "equal types", "equal output types")
_OUT_PARAMS = ("out_sharding", "sharding")
_UNEVEN = re.compile(
    r"out dim \((\d+)\) is not divisible by mesh axes \((\d+)\) with spec \((.+?)\)"
)
_TWICE = re.compile(r"P\([^)]*\)(?:[^)]*\))? has duplicate entries for `(\w+)`")
_DIMENSION = ("dimension", "axis")
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
    if not isinstance(error, kinds) or not any(w in words for w in _OWN_WORDS):
        return False
    return "hard" in words or "@" in words


def refused_in(error: BaseException, complete: bool = True) -> Refused | None:
    """The innermost operation that an exception's traceback passed through, or None.

    Args:
        error: what jax raised.
        complete: whether the traceback holds all of jax's own frames, as `unfiltered` keeps them;
            else a function of jax.numpy is no answer, since an operation inside may be meant.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    bound = [f for f in frames if _binds(f)]
    if bound and frames.index(bound[-1]) >= _last_entered(frames):
        return _of_primitive(bound[-1])
    return _of_function(frames) if complete else None


@contextmanager
def unfiltered() -> Iterator[None]:
    """A context in which tracebacks of this thread keep the frames of jax itself."""
    # jax.config.update would change it for every thread, and an interrupt could leave it so.
    with traceback_filtering("off"):
        yield


def _binds(frame: FrameType) -> bool:
    found = frame.f_locals
    return (
        frame.f_code.co_name == "bind"
        and isinstance(found.get("self"), jax.extend.core.Primitive)
        and "args" in found
        and "params" in found
    )


def _last_entered(frames: list[FrameType]) -> int:
    """The number of the last frame of the user's own code."""
    theirs = [n for n, f in enumerate(frames) if is_user_file(f.f_code.co_filename)]
    return theirs[-1] if theirs else 0


def _of_primitive(frame: FrameType) -> Refused | None:
    primitive, params = frame.f_locals["self"], dict(frame.f_locals["params"])
    avals = _avals(frame.f_locals["args"])
    if avals is None:
        return None
    out = next((name for name in _OUT_PARAMS if name in params), "")

    def apply(*values: Any, **changes: Any) -> Any:
        return primitive.bind(*values, **{**params, **changes})

    return Refused(primitive.name, _structs(avals), _types(avals), params, apply, out)


def _of_function(frames: list[FrameType]) -> Refused | None:
    """A function of jax.numpy or jax.lax that refused its arguments before it did anything."""
    for frame in frames[_last_entered(frames) + 1 :]:
        name = frame.f_code.co_name
        for module in (jnp, jax.lax):
            function = getattr(module, name, None)
            code = getattr(inspect.unwrap(function), "__code__", None) if function else None
            if function is None or code is not frame.f_code:
                continue
            arguments = _arguments(function, frame)
            arrays = [k for k, v in arguments.items() if isinstance(v, jax.Array)]
            avals = _avals([arguments[k] for k in arrays])
            if arrays and avals is not None:
                return _function(name, function, arguments, arrays, avals)
    return None


def _function(
    name: str, function: Any, arguments: dict[str, Any], arrays: list[str], avals: list[Any]
) -> Refused:
    rest = {k: v for k, v in arguments.items() if k not in arrays}

    def apply(*values: Any, **changes: Any) -> Any:
        everything = {**dict(zip(arrays, values, strict=True)), **rest, **changes}
        bound = inspect.signature(function).bind_partial()
        bound.arguments.update({k: everything[k] for k in inspect.signature(function).parameters})
        return function(*bound.args, **bound.kwargs)

    out = next((p for p in _OUT_PARAMS if p in rest), "")
    return Refused(name, _structs(avals), _types(avals), rest, apply, out)


def _arguments(function: Any, frame: FrameType) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    return {k: frame.f_locals[k] for k in names if k in frame.f_locals}


def _avals(values: Any) -> list[Any] | None:
    """The types of values, or None where one is no array."""
    try:
        avals = [jax.typeof(value) for value in values]
    except TypeError:
        return None
    return avals if all(hasattr(a, "sharding") for a in avals) else None


def _structs(avals: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in avals)


def _types(avals: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(aval) for aval in avals)


def spec_of(operand: jax.ShapeDtypeStruct) -> Spec:
    """The sharding in a type, one entry per dimension."""
    spec = adopt_spec(operand.sharding.spec) if operand.sharding is not None else Spec()
    dims = (spec.dims + ((),) * operand.ndim)[: operand.ndim]
    return Spec(dims, unreduced=spec.unreduced, reduced=spec.reduced)


def problem(refused: Refused | None, error: BaseException) -> str:
    """Why jax refused an operation.

    Args:
        refused: the operation, where it was found.
        error: what jax raised.

    >>> problem(None, ValueError("no idea"))
    'ValueError: no idea'
    """
    words = str(error)
    if (uneven := _UNEVEN.search(words)) is not None:
        size, parts, axes = uneven.groups()
        return (
            f"{_named_operand(refused)} makes a dimension of size {size} out of one that is split"
            f" over {axes}, and {size} does not divide by {parts}."
        )
    if (twice := _TWICE.search(words)) is not None:
        return _doubled(refused, twice[1])
    if refused is None:
        return in_words(error)
    specs = [spec_of(operand) for operand in refused.operands]
    if refused.name == "dot_general":
        return _dot(refused, specs)
    if "illegally sharded result" in words:
        axes = [a for a in dict.fromkeys(specs[0].axes) if all(a in s.axes for s in specs[1:])]
        return _doubled(refused, joined(axes) if axes else "one axis")
    return _other(refused, specs, error)


def _other(refused: Refused, specs: Sequence[Spec], error: BaseException) -> str:
    name, shapes = refused.name, [operand.shape for operand in refused.operands]
    if name == "reshape":
        sizes = tuple(refused.params.get("new_sizes", ()))
        return (
            f"reshape from {shapes[0]} to {sizes} takes apart a dimension that is split"
            f" ({specs[0]}), and no mesh axis can follow it."
        )
    if name.startswith(("gather", "scatter")):
        verb = "reads" if name == "gather" else "writes into"
        return (
            f"Indexing {verb} an array that is {specs[0]} by indices that are {specs[1]}, and it is"
            " ambiguous how the result is split."
        )
    if name in _ALONG_ONE:
        return _along(refused, specs[0])
    if name == "conv_general_dilated":
        return (
            f"The operands of the convolution are {joined(specs)}, and it is ambiguous how the"
            " result is split."
        )
    untyped = ("via `out_sharding`", "sharding rule for")  # the second by jax 0.10.0
    if isinstance(error, NotImplementedError) or any(words in str(error) for words in untyped):
        return f"jax does not infer a sharding for {name}: it has to be given."
    distinct = list(dict.fromkeys(specs))
    if len(distinct) > 1 and (name in _ALIKE or len({len(s) for s in shapes}) == 1):
        return f"The operands of {name} are split differently: {joined(distinct)}."
    return in_words(error)


def _dot(refused: Refused, specs: Sequence[Spec]) -> str:
    (left, right), (left_batch, right_batch) = refused.params["dimension_numbers"]
    inner = [_over(specs[0], left), _over(specs[1], right)]
    if inner[0] and inner[0] == inner[1]:
        return (
            f"Both operands of dot_general are split over {joined(inner[0])} along the dimension"
            " that it sums: each device has a part of the sum, and it is ambiguous how the result"
            " is split."
        )
    if inner[0] and inner[1]:
        return (
            f"dot_general sums over a dimension that is split over {joined(inner[0])} on the"
            f" left and over {joined(inner[1])} on the right."
        )
    batch = [_over(specs[0], left_batch), _over(specs[1], right_batch)]
    if batch[0] != batch[1]:
        sides = [f"over {joined(b)}" if b else "not at all" for b in batch]
        return (
            f"The batch dimensions of dot_general are split {sides[0]} on the left and {sides[1]}"
            " on the right."
        )
    both = [a for a in specs[0].axes if a in specs[1].axes and a not in inner[0] + inner[1]]
    return _doubled(refused, joined(both) or "one axis")


def _along(refused: Refused, spec: Spec) -> str:
    number = next((refused.params[n] for n in _DIMENSION if n in refused.params), None)
    if refused.name == "tile":
        repeats = enumerate(refused.params.get("reps", ()))
        number = next((n for n, times in repeats if times > 1 and spec.dims[n]), None)
    number = number[0] if isinstance(number, tuple) and len(number) == 1 else number
    if not isinstance(number, int) or not spec.dims:
        return f"{refused.name} needs dimensions that are not split, and its operand is {spec}."
    number %= len(spec.dims)
    over = spec.dims[number] or spec.axes
    return (
        f"{refused.name} works along dimension {number}, which is split over {joined(over)}, and"
        " needs it not split."
    )


def _doubled(refused: Refused | None, axes: str) -> str:
    operands = [spec_of(operand) for operand in refused.operands] if refused else []
    sources = f" from operands that are {joined(operands)}" if len(operands) > 1 else ""
    return (
        f"{_named_operand(refused)} would split its result over {axes} in two dimensions{sources};"
        " a mesh axis can split one."
    )


def _named_operand(refused: Refused | None) -> str:
    return refused.name if refused else "The operation"


def _over(spec: Spec, dims: Sequence[int]) -> tuple[str, ...]:
    return tuple(axis for dim in dims for axis in spec.dims[dim])
