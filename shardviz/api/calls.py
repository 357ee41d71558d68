"""The door to the call cache: one compile a signature, and why there was another one."""

from __future__ import annotations

from typing import Any

from shardviz.api.adopting import room


def cached(fn: Any, *, size: int = 128, **options: Any) -> Any:
    """A function that compiles once for each signature of its calls, and says why it did again.

    Args:
        fn: the function.
        size: how many signatures it holds before the least recently used one is dropped.
        **options: options of `jax.jit`, such as `static_argnums`.

    Raises:
        ShardvizError: for what is no function, for unknown options, or where jax is not installed.

    >>> double = cached(lambda x: x * 2)
    >>> results = double(1), double(2), double(2.5)
    >>> double.hits, double.misses, double.explain_miss()[-39:]
    (1, 2, 'argument x: dtype int32 became float32.')
    """
    rooms = room("shardviz.core.program.calls.cached_function", "sv.cached", "jax")
    return rooms.make_cached(fn, size, options)
