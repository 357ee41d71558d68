"""Handles `shard_map`s without a mesh, which jax binds to the first mesh in context.

`body = jax.shard_map(f, in_specs=..., out_specs=...)` stores the mesh of its first call
in a variable of `body`. Later calls under another mesh are refused. A plan may
therefore call `body` only on the mesh of the user's own calls. A `shard_map` created
during the trace is discarded afterwards, so it may be called on any mesh. So may a copy
of `body`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from shardviz.base.backend.jax_compat import (
    SHARD_MAP_MADE,
    copied_shard_map,
    shard_map_functions,
)
from shardviz.base.errors import ProgramError
from shardviz.base.typing import UserFunction
from shardviz.programs.backend.watching import CallListener, CallRefused


class UnboundShardMaps(CallListener):
    """Refuses calls of a `shard_map` without a mesh that is older than the trace."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, ...]] = []

    def watched(self) -> dict[str, CodeType]:
        """Returns jax's functions that create and call a `shard_map`."""
        return {name: fn.__code__ for name, fn in shard_map_functions().items()}

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """Refuses a `shard_map` without a mesh, unless this trace created it."""
        if name == SHARD_MAP_MADE:
            fn, _, in_specs, out_specs, *_ = arguments
            self._made.append((fn, in_specs, out_specs))
            return
        mesh, _, in_specs, out_specs, *_ = arguments
        if mesh is not None or frame.f_back is None:
            return
        called = frame.f_back.f_locals.get("f"), in_specs, out_specs
        for shard_map in self._made:
            # Compared by identity: two functions with equal specs are two shard_maps.
            if all(
                value is called_value
                for value, called_value in zip(shard_map, called, strict=True)
            ):
                return
        raise CallRefused(
            "A shard_map without mesh= was made outside of the function, and jax"
            " permanently binds it to the first mesh that it is called on. It is not"
            " called here, since your own calls have no mesh in context, or another"
            " one. Make it inside of the function, give it mesh=, or work within `with"
            " jax.set_mesh(mesh):`."
        )

    def unseen(self, words: str) -> None:
        """Stops the trace, because calls of a `shard_map` could go unnoticed."""
        raise ProgramError(words)


def unbound(fn: UserFunction) -> UserFunction:
    """Copies a `shard_map` without a mesh; returns any other function unchanged.

    >>> import jax
    >>> body = jax.shard_map(abs, in_specs=jax.P("x"), out_specs=jax.P("x"))
    >>> unbound(body) is body, unbound(abs) is abs
    (False, True)
    """
    copy = copied_shard_map(fn)
    return fn if copy is None else copy
