"""The traces, lowerings and compiles of jax within a `with` block, in all threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax

from shardviz.runs.backend.listening import DURATIONS
from shardviz.runs.recompiles import STAGES


class JaxEvent(NamedTuple):
    """A stage that jax ran because its caches lacked the result."""

    kind: str
    name: str
    thread: int


class JaxCacheEvents(list[JaxEvent]):
    """The events since counting began, in order."""

    def counts(self, thread: int | None = None) -> dict[str, int]:
        counts: dict[str, int] = dict.fromkeys(STAGES, 0)
        for event in self:
            counts[event.kind] += thread in (None, event.thread)
        return counts


@contextmanager
def jax_cache_events() -> Iterator[JaxCacheEvents]:
    events = JaxCacheEvents()

    def note(event: str, duration_secs: float, **details: str | int) -> None:
        if kind := DURATIONS.get(event):
            name = str(details.get("fun_name", ""))
            events.append(JaxEvent(kind, name, threading.get_ident()))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
