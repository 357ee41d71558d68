"""ExecutableCache: compiled programs by fingerprint; `cache` is shardviz's instance."""

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
        key: its key.
        value: the executable.
        label: the name of the program.
        seconds: how long it took to compile.
        hits: how often it was found, including by threads that waited for it.
        waited: the names of the threads that waited while it was compiled.

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
    """A value that a thread is making while others may wait for it."""

    finished: threading.Event = field(default_factory=threading.Event)
    waited: list[str] = field(default_factory=list)


class ExecutableCache:
    """The most recently used executables, at most `size` of them; safe to use from any
    thread.

    Attributes:
        size: how many it holds before the least recently used one is dropped.
        hits: how often a value was found.
        misses: how often a value had to be made.
        waited: how often a thread waited for another one that made the same value.

    Raises:
        ProgramError: for a size below 1.

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
        """The value of `key`; None if there is none. Does not wait for other threads."""
        with self._lock:
            row = self._entries.get(key)
            return None if row is None else self._hit(row)

    def get_or_make(
        self, key: Hashable, make: Callable[[], Any], label: str = ""
    ) -> Any:
        """The value of `key`; calls `make` if there is none.

        If several threads need it at the same time, one makes it and the others wait.
        If that fails, the error is raised in the thread that tried, nothing is stored,
        and the next thread tries again.

        Args:
            key: the key.
            make: returns the value.
            label: the name of the value in `rows`.
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
                # Shown with the entry, to explain why a thread did not compile.
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
        """The keys of all entries, the least recently used one first."""
        with self._lock:
            return tuple(self._entries)

    @property
    def rows(self) -> tuple[CacheRow, ...]:
        """The entries, the least recently used one first."""
        with self._lock:
            return tuple(replace(row) for row in self._entries.values())

    def _unlock(self) -> None:
        # No other thread of the parent runs in a forked child, so none holds the lock
        # or makes a value.
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


#: The executables compiled so far; the only global state of shardviz.
cache = ExecutableCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cache._unlock)
