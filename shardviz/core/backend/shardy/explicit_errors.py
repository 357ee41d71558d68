"""What jax refused while it traced a program with Explicit axes: the operation and its operands.

jax does not export `ShardingTypeError`, so it is known by name. The operation is read off the
traceback: every operation of jax passes through `Primitive.bind(*args, **params)`, which is public.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

from shardviz.core.hlo.sources import is_user_file

_OWN_WORDS = ("out_sharding", "assert when all axes", "equal types", "equal output types")
_OUT_PARAMS = ("out_sharding", "sharding")


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
    """While it holds, tracebacks keep the frames of jax itself."""
    before = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_filtering", "off")
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def _binds(frame: FrameType) -> bool:
    found = frame.f_locals
    return (
        frame.f_code.co_name == "bind"
        and isinstance(found.get("self"), jax.extend.core.Primitive)
        and "args" in found
        and "params" in found
    )


def _last_entered(frames: list[FrameType]) -> int:
    """Where the user's code called into jax for the last time."""
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
        for room in (jnp, jax.lax):
            function = getattr(room, name, None)
            code = getattr(inspect.unwrap(function), "__code__", None) if function else None
            if function is None or code is not frame.f_code:
                continue
            given = _given(function, frame)
            arrays = [k for k, v in given.items() if isinstance(v, jax.Array)]
            avals = _avals([given[k] for k in arrays])
            if arrays and avals is not None:
                return _function(name, function, given, arrays, avals)
    return None


def _function(
    name: str, function: Any, given: dict[str, Any], arrays: list[str], avals: list[Any]
) -> Refused:
    rest = {k: v for k, v in given.items() if k not in arrays}

    def apply(*values: Any, **changes: Any) -> Any:
        whole = {**dict(zip(arrays, values, strict=True)), **rest, **changes}
        bound = inspect.signature(function).bind_partial()
        bound.arguments.update({k: whole[k] for k in inspect.signature(function).parameters})
        return function(*bound.args, **bound.kwargs)

    out = next((p for p in _OUT_PARAMS if p in rest), "")
    return Refused(name, _structs(avals), _types(avals), rest, apply, out)


def _given(function: Any, frame: FrameType) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    return {k: frame.f_locals[k] for k in names if k in frame.f_locals}


def _avals(values: Any) -> list[Any] | None:
    """The types of values; None where one is no array."""
    try:
        avals = [jax.typeof(value) for value in values]
    except TypeError:
        return None
    return avals if all(hasattr(a, "sharding") for a in avals) else None


def _structs(avals: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in avals)


def _types(avals: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(aval) for aval in avals)
