"""A `shard_map` without a mesh, which jax binds for good to the first mesh that it meets.

`body = jax.shard_map(f, in_specs=..., out_specs=...)` keeps that mesh in a variable of `body`, and
later calls under another one are refused. So a plan may only call it on the mesh that the user's
own calls have. One that is made while the function is traced is gone afterwards: that one may meet
any mesh, and so may a copy.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

from shardviz.core.backend.watching import CallListener, CallRefused, function_of

_MODULE = "jax._src.shard_map"
# What makes a function with a mesh to come, and what such a function calls first, each time.
_MADE, _CALLED = "_shard_map", "_shmap_checks"

# The parameters of the first, which are the variables of the second.
_PARTS = {"f", "mesh", "in_specs", "out_specs", "axis_names", "check_vma", "_smap"}


class UnboundShardMaps(CallListener):
    """Refuses to call a `shard_map` without a mesh that is older than the trace it hears of."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, ...]] = []

    def watched(self) -> dict[str, CodeType]:
        """Both functions of jax, where this version has them."""
        functions = {name: function_of(_MODULE, name) for name in (_MADE, _CALLED)}
        return {name: fn.__code__ for name, fn in functions.items() if fn is not None}

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """A `shard_map` is made, or called.

        Raises:
            CallRefused: one without a mesh is called that was not made here.
        """
        if name == _MADE:
            fn, _, in_specs, out_specs, *_ = arguments
            self._made.append((fn, in_specs, out_specs))
            return
        mesh, _, in_specs, out_specs, *_ = arguments
        if mesh is not None or frame.f_back is None:
            return
        called = frame.f_back.f_locals.get("f"), in_specs, out_specs
        for made in self._made:
            if all(one is other for one, other in zip(made, called, strict=True)):
                return
        raise CallRefused(
            "A shard_map without mesh= was made outside of the function, and jax binds it for good"
            " to the first mesh that it is called on. It is not called here, since your own calls"
            " have no mesh in context, or another one. Make it inside of the function, give it"
            " mesh=, or work within `with jax.set_mesh(mesh):`."
        )


def unbound(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of what `jax.shard_map` gave without a mesh; any other function as it is.

    >>> import jax
    >>> body = jax.shard_map(abs, in_specs=jax.P("x"), out_specs=jax.P("x"))
    >>> unbound(body) is body, unbound(abs) is abs
    (False, True)
    """
    # jax puts a function around it that shortens tracebacks.
    wrapper = inspect.getclosurevars(fn).nonlocals if inspect.isfunction(fn) else {}
    inner = wrapper.get("fun")
    if not inspect.isfunction(inner) or inner.__globals__.get("__name__") != _MODULE:
        return fn
    parts = inspect.getclosurevars(inner).nonlocals
    if parts.keys() != _PARTS or parts["mesh"] is not None:
        return fn
    return getattr(sys.modules[_MODULE], _MADE)(**parts)
