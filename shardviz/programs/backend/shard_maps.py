"""A `shard_map` without a mesh, which jax binds for good to the first mesh that it
meets.

`body = jax.shard_map(f, in_specs=..., out_specs=...)` keeps that mesh in a variable of
`body`, and later calls under another one are refused. So a plan may only call it on the
mesh that the user's own calls have. One that is made while the function is traced is
gone afterwards: that one may meet any mesh, and so may a copy.
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
    """Refuses to call a `shard_map` without a mesh that is older than the trace."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, ...]] = []

    def watched(self) -> dict[str, CodeType]:
        """jax's functions that make and call a `shard_map`."""
        return {name: fn.__code__ for name, fn in shard_map_functions().items()}

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """Refuses the call of a `shard_map` without a mesh that was not made here."""
        if name == SHARD_MAP_MADE:
            fn, _, in_specs, out_specs, *_ = arguments
            self._made.append((fn, in_specs, out_specs))
            return
        mesh, _, in_specs, out_specs, *_ = arguments
        if mesh is not None or frame.f_back is None:
            return
        called = frame.f_back.f_locals.get("f"), in_specs, out_specs
        for shard_map in self._made:
            # By identity: two functions with equal specs are two shard_maps.
            if all(
                part is called_part
                for part, called_part in zip(shard_map, called, strict=True)
            ):
                return
        raise CallRefused(
            "A shard_map without mesh= was made outside of the function, and jax binds it"
            " for good to the first mesh that it is called on. It is not called here, since"
            " your own calls have no mesh in context, or another one. Make it inside of the"
            " function, give it mesh=, or work within `with jax.set_mesh(mesh):`."
        )

    def unseen(self, words: str) -> None:
        """Refuses to trace: a `shard_map` could be called unseen."""
        raise ProgramError(words)


def unbound(fn: UserFunction) -> UserFunction:
    """A copy of what `jax.shard_map` gave without a mesh; any other function as it is.

    >>> import jax
    >>> body = jax.shard_map(abs, in_specs=jax.P("x"), out_specs=jax.P("x"))
    >>> unbound(body) is body, unbound(abs) is abs
    (False, True)
    """
    copy = copied_shard_map(fn)
    return fn if copy is None else copy
