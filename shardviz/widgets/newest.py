"""Newest: one piece of work at a time on a thread; of what is asked meanwhile, only the newest."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

LAST_WAIT_S = 10.0
Item = TypeVar("Item")


class Newest(Generic[Item]):
    """Does what was asked for last, once nobody has asked for something else for a while.

    The thread is there only while there is something to do. Nobody who asks ever waits.

    Args:
        name: what the thread is called.
        work: does one item; is given it, and a check whether it should stop: something newer is
            due, or everything was closed. Must not raise.
        settle_s: seconds without another request before work begins.

    >>> done = []
    >>> newest = Newest("example", lambda item, stop: done.append(item), 0.01)
    >>> for number in range(100):
    ...     newest.ask(number)
    >>> newest.wait(5), done
    (True, [99])
    """

    def __init__(
        self, name: str, work: Callable[[Item, Callable[[], bool]], None], settle_s: float = 0.0
    ):
        self._name, self._work, self._settle_s = name, work, settle_s
        self._changed = threading.Condition()
        self._wanted: list[Item] = []  # nothing, or what comes next
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False
        _OPEN.add(self)

    def ask(self, item: Item) -> None:
        """Wants this done next; what was wanted and has not begun is forgotten."""
        with self._changed:
            if self._closed:
                return
            self._wanted = [item]
            self._due = time.monotonic() + self._settle_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._go, name=self._name, daemon=True)
                self._thread.start()

    def drop(self) -> None:
        """Forgets what is wanted and has not begun."""
        with self._changed:
            self._wanted = []
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is nothing to do; whether it came to that within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self, timeout: float = LAST_WAIT_S) -> None:
        """Ends the thread: what is under way is told to stop, and waited for."""
        with self._changed:
            self._closed, self._wanted = True, []
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @property
    def closed(self) -> bool:
        """Whether it takes no more work."""
        return self._closed

    def _stop(self) -> bool:
        return self._closed or bool(self._wanted)

    def _go(self) -> None:
        while True:
            with self._changed:
                while self._wanted and (left := self._due - time.monotonic()) > 0:
                    self._changed.wait(left)
                if not self._wanted:
                    self._thread = None
                    self._changed.notify_all()
                    return
                item = self._wanted.pop()
            self._work(item, self._stop)


_OPEN: weakref.WeakSet[Newest] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread inside jax while the interpreter goes away would take the process down with it.
    for one in list(_OPEN):
        one.close()
