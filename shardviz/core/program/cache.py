"""ExecutableCache: what was compiled, by fingerprint. Knows no jax."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from shardviz.core.errors import ProgramError, plural, shown


class ExecutableCache:
    """The most recently used executables, at most `size` of them; safe to use from any thread.

    Attributes:
        size: how many it holds before the least recently used one is dropped.
        hits: how often something was found.
        misses: how often something had to be made.

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
            raise ProgramError(f"A cache holds 1 or more executables; got size {shown(size)}.")
        self.size = size
        self.hits = self.misses = 0
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def get_or_make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What is kept under `key`; made first where it is not there.

        However many threads ask at once, one makes it and the others wait. Where making fails, the
        error is raised to the thread that tried, nothing is kept, and the next one tries anew.
        """
        while True:
            with self._lock:
                if key in self._entries:
                    self.hits += 1
                    self._entries.move_to_end(key)
                    return self._entries[key]
                in_work = self._making.get(key)
                if in_work is None:
                    self._making[key] = mine = threading.Event()
                    self.misses += 1
                    break
            in_work.wait()
        try:
            value = make()
            with self._lock:
                self._entries[key] = value
                while len(self._entries) > self.size:
                    self._entries.popitem(last=False)
            return value
        finally:
            with self._lock:
                self._making.pop(key, None)
            mine.set()

    @property
    def entries(self) -> tuple[Hashable, ...]:
        """The keys that are kept, the least recently used one first."""
        with self._lock:
            return tuple(self._entries)

    def clear(self) -> None:
        """Forgets every executable and starts counting anew."""
        with self._lock:
            self._entries.clear()
            self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return (
            f"ExecutableCache({len(self)} of {plural(self.size, 'executable')},"
            f" {plural(self.hits, 'hit')}, {plural(self.misses, 'miss', 'misses')})"
        )
