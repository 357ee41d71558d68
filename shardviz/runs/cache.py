"""ExecutableCache: compiled programs by fingerprint, and the one that shardviz keeps."""

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
        value: what was made.
        label: the name it was made under.
        seconds: how long it took to make.
        hits: how often it was found, by waiting threads too.
        waited: the names of the threads that waited while it was made.

    >>> CacheRow("a", "made", "matmul", 0.5, 2).hits
    2
    """

    key: Hashable
    value: Any
    label: str = ""
    seconds: float = 0.0
    hits: int = 0
    waited: tuple[str, ...] = ()


@dataclass(eq=False, slots=True)
class _Making:
    done: threading.Event = field(default_factory=threading.Event)
    waited: list[str] = field(default_factory=list)


class ExecutableCache:
    """The most recently used executables, at most `size` of them; safe to use from any
    thread.

    Attributes:
        size: how many it holds before the least recently used one is dropped.
        hits: how often something was found.
        misses: how often something had to be made.
        waited: how often a thread waited for another one that was making the same.

    Raises:
        ProgramError: for a size below 1.

    >>> cache = ExecutableCache(size=2)
    >>> cache.get_or_make("a", lambda: "made"), cache.get_or_make("a", lambda: "made again")
    ('made', 'made')
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
        self._making: dict[Hashable, _Making] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> Any:
        """The value of `key`, or None; never waits and never makes."""
        with self._lock:
            row = self._entries.get(key)
            return None if row is None else self._found(row)

    def get_or_make(
        self, key: Hashable, make: Callable[[], Any], label: str = ""
    ) -> Any:
        """The value of `key`; made first where there is none, under the name `label`.

        Of several threads that need it at once, one makes it and the others wait. On
        failure the error is raised to the thread that tried, nothing is kept, and the
        next one tries again.
        """
        while True:
            with self._lock:
                row = self._entries.get(key)
                if row is not None:
                    return self._found(row)
                in_work = self._making.get(key)
                if in_work is None:
                    self._making[key] = mine = _Making()
                    self.misses += 1
                    break
                # Shown beside an entry: it says why a compile took no time of its own.
                self.waited += 1
                in_work.waited.append(threading.current_thread().name)
            in_work.done.wait()
        return self._make(key, make, label, mine)

    def _found(self, row: CacheRow) -> Any:
        self.hits += 1
        row.hits += 1
        self._entries.move_to_end(row.key)
        return row.value

    def _make(
        self, key: Hashable, make: Callable[[], Any], label: str, mine: _Making
    ) -> Any:
        try:
            begun = time.perf_counter()
            value = make()
            seconds = time.perf_counter() - begun
            with self._lock:
                waited = tuple(mine.waited)
                self._entries[key] = CacheRow(key, value, label, seconds, 0, waited)
                while len(self._entries) > self.size:
                    self._entries.popitem(last=False)
            return value
        finally:
            with self._lock:
                self._making.pop(key, None)
            mine.done.set()

    @property
    def entries(self) -> tuple[Hashable, ...]:
        """The keys that are kept, the least recently used one first."""
        with self._lock:
            return tuple(self._entries)

    @property
    def rows(self) -> tuple[CacheRow, ...]:
        """The entries, the least recently used one first."""
        with self._lock:
            return tuple(replace(row) for row in self._entries.values())

    def _unlock(self) -> None:
        # In a forked child no thread of the parent goes on: none holds the lock, and
        # none makes anything.
        self._lock, self._making = threading.Lock(), {}

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


#: The executables compiled so far; the one piece of state that shardviz keeps.
cache = ExecutableCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cache._unlock)
