"""Caches compiled programs by fingerprint; `cache` is shardviz's global cache."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from shardviz.base.errors import ProgramError
from shardviz.base.format import plural, shown


@dataclass
class CacheRow:
    """One entry of a cache.

    Attributes:
        key: the cache key.
        value: the executable.
        label: the name of the program.
        seconds: the seconds that the compile took.
        hits: number of lookups that returned the value, including those of threads that
            waited for its compile.
        waited: the names of the threads that waited for its compile.

    >>> CacheRow("a", "executable", "matmul", 0.5, 2).hits
    2
    """

    key: Hashable
    value: Any
    label: str = ""
    seconds: float = 0.0
    hits: int = 0
    waited: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class _InProgress:
    """A value that one thread is creating and other threads may be waiting for."""

    finished: threading.Event = field(default_factory=threading.Event)
    waited: list[str] = field(default_factory=list)


class ExecutableCache:
    """A thread-safe LRU cache of executables.

    Attributes:
        size: maximum number of entries; beyond it, the least recently used is dropped.
        hits: number of lookups that found a value.
        misses: number of lookups that had to create a value.
        waited: number of lookups that waited for another thread to create the value.

    Raises:
        ProgramError: for a size below 1.

    >>> from shardviz.runs.cache import ExecutableCache
    >>> cache = ExecutableCache(size=2)
    >>> cache.get_or_make("a", lambda: "first"), cache.get_or_make("a", lambda: "second")
    ('first', 'first')
    >>> cache.hits, cache.misses, cache.entries
    (1, 1, ('a',))
    """

    def __init__(self, size: int = 128) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ProgramError(
                f"A cache holds 1 or more executables; got size {shown(size)}."
            )
        self.size = size
        self.hits = self.misses = self.waited = 0
        self._entries: OrderedDict[Hashable, CacheRow] = OrderedDict()
        self._in_progress: dict[Hashable, _InProgress] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Any:
        """Returns the value of `key`, or None. Does not wait for other threads."""
        with self._lock:
            row = self._entries.get(key)
            return None if row is None else self._hit(row)

    def get_or_make(
        self, key: Hashable, make: Callable[[], Any], label: str = ""
    ) -> Any:
        """Returns the value of `key`; calls `make` to create it if there is none.

        If several threads need the value at the same time, one calls `make` and the
        others wait. If `make` fails, its error is raised in that thread, nothing is
        stored, and the next waiting thread calls `make` again.

        Args:
            key: the cache key.
            make: creates the value.
            label: the value's name in `rows`.
        """
        while True:
            with self._lock:
                row = self._entries.get(key)
                if row is not None:
                    return self._hit(row)
                in_progress = self._in_progress.get(key)
                if in_progress is None:
                    self._in_progress[key] = started = _InProgress()
                    self.misses += 1
                    break
                # Recorded in the entry, to explain why this thread did not compile.
                self.waited += 1
                in_progress.waited.append(threading.current_thread().name)
            in_progress.finished.wait()
        return self._make(key, make, label, started)

    def _hit(self, row: CacheRow) -> Any:
        self.hits += 1
        row.hits += 1
        self._entries.move_to_end(row.key)
        return row.value

    def _make(
        self,
        key: Hashable,
        make: Callable[[], Any],
        label: str,
        in_progress: _InProgress,
    ) -> Any:
        try:
            begun = time.perf_counter()
            value = make()
            seconds = time.perf_counter() - begun
            with self._lock:
                waited = tuple(in_progress.waited)
                self._entries[key] = CacheRow(key, value, label, seconds, 0, waited)
                while len(self._entries) > self.size:
                    self._entries.popitem(last=False)
            return value
        finally:
            with self._lock:
                self._in_progress.pop(key, None)
            in_progress.finished.set()

    @property
    def entries(self) -> tuple[Hashable, ...]:
        """The keys of all entries, least recently used first."""
        with self._lock:
            return tuple(self._entries)

    @property
    def rows(self) -> tuple[CacheRow, ...]:
        """Copies of the entries, least recently used first."""
        with self._lock:
            return tuple(replace(row) for row in self._entries.values())

    def _unlock(self) -> None:
        # In a forked child, the threads that held the lock or were creating values no
        # longer exist.
        self._lock, self._in_progress = threading.Lock(), {}

    def clear(self) -> None:
        """Drops every executable and sets the counts to 0."""
        with self._lock:
            self._entries.clear()
            self.hits = self.misses = self.waited = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return (
            f"ExecutableCache({len(self)} of {plural(self.size, 'executable')},"
            f" {plural(self.hits, 'hit')}, {plural(self.misses, 'miss', 'misses')})"
        )


#: The executables compiled so far; shardviz's only global state.
cache = ExecutableCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cache._unlock)
