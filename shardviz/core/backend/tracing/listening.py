"""Counts what jax traces, lowers and compiles, in all threads.

jax records an event when it does the work, and none when it finds the result in a
cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from shardviz.core.errors import ProgramError
from shardviz.core.format import plural

_DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_COUNTS = {
    "/jax/compilation_cache/cache_hits": "found on disk",
    "/jax/compilation_cache/cache_misses": "not found on disk",
}


@dataclass(frozen=True)
class JaxEvent:
    """One trace, lowering or compile whose result was in no cache of jax.

    Attributes:
        kind: `"trace"`, `"lower"`, `"compile"`; or, of the compilation cache on disk,
            `"found on disk"` and `"not found on disk"`.
        name: the function, as jax calls it; empty where it does not say.
        seconds: how long it took, nested events included.
        thread: the name of the thread that did it.

    >>> JaxEvent("trace", "matmul", 0.25, "MainThread").kind
    'trace'
    """

    kind: str
    name: str
    seconds: float
    thread: str


class JaxCacheEvents:
    """The events since counting began, of all threads, in order.

    >>> with jax_cache_events() as events:
    ...     function = jax.jit(lambda x: -x)
    ...     results = function(1.0), function(2.0)
    >>> events.traces, events.lowerings, events.compiles
    (1, 1, 1)
    """

    def __init__(self) -> None:
        self._events: list[JaxEvent] = []

    @property
    def events(self) -> tuple[JaxEvent, ...]:
        """All of them."""
        return tuple(self._events)

    @property
    def traces(self) -> int:
        """How many functions were traced, the jitted ones inside others too."""
        return self.count("trace")

    @property
    def lowerings(self) -> int:
        """How many were lowered to StableHLO."""
        return self.count("lower")

    @property
    def compiles(self) -> int:
        """How often the compiler was asked; one read from disk counts as well."""
        return self.count("compile")

    def count(self, kind: str, name: str | None = None) -> int:
        """How many events of a kind, of one function where it is named."""
        return sum(e.kind == kind and name in (None, e.name) for e in self.events)

    def __repr__(self) -> str:
        counts = (
            plural(self.traces, "trace"),
            plural(self.lowerings, "lowering"),
            plural(self.compiles, "compile"),
        )
        return f"JaxCacheEvents({', '.join(counts)})"

    def _duration(self, event: str, seconds: float, **details: str | int) -> None:
        if kind := _DURATIONS.get(event):
            name = str(details.get("fun_name", ""))
            self._events.append(
                JaxEvent(kind, name, seconds, threading.current_thread().name)
            )

    def _count(self, event: str, **_: str | int) -> None:
        if kind := _COUNTS.get(event):
            self._events.append(
                JaxEvent(kind, "", 0.0, threading.current_thread().name)
            )


@contextmanager
def jax_cache_events() -> Iterator[JaxCacheEvents]:
    """Counts the tracings, lowerings and compiles of jax within a `with` block, in all
    threads.

    Raises:
        ProgramError: where this version of jax has no way to listen.

    >>> with jax_cache_events() as events:
    ...     pass
    >>> events
    JaxCacheEvents(0 traces, 0 lowerings, 0 compiles)
    """
    monitoring = getattr(jax, "monitoring", None)
    needed = (
        "register_event_duration_secs_listener",
        "unregister_event_duration_listener",
        "register_event_listener",
        "unregister_event_listener",
    )
    missing = [name for name in needed if not hasattr(monitoring, name)]
    if monitoring is None or missing:
        raise ProgramError(
            f"jax {jax.__version__} does not report what its caches do: jax.monitoring has no"
            f" {missing[0]}. jax 0.10 to 0.12 have it."
        )
    found = JaxCacheEvents()
    monitoring.register_event_duration_secs_listener(found._duration)
    monitoring.register_event_listener(found._count)
    try:
        yield found
    finally:
        monitoring.unregister_event_duration_listener(found._duration)
        monitoring.unregister_event_listener(found._count)
