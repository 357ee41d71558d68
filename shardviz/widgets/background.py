"""Work in the background: the latest of many requests, and a sign of life every second.

Plans, compiles, jobs, effects and pictures of links each have a `LatestWins` of their
own. What work raises goes to its `failed`, which makes a result of it.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from shardviz.core.errors import ShardvizError
from shardviz.core.program.report import Failure

LAST_WAIT_S = 10.0
BEAT_S = 1.0
Item = TypeVar("Item")
#: Whether work should stop, because something later is due or everything was closed.
Stop = Callable[[], bool]


class LatestWins(Generic[Item]):
    """Does what was requested last, once no other request has come for a while.

    The thread exists only while there is something to do. A request never blocks.

    Args:
        name: of the thread.
        work: does one item.
        failed: takes an item and what its work raised, so that it gets a result.
        settle_s: seconds without another request before work begins.

    >>> done = []
    >>> def work(item, stop):
    ...     done.append(item)
    >>> latest = LatestWins("example", work, lambda item, error: None, 0.1)
    >>> for number in range(100):
    ...     latest.request(number)
    >>> latest.wait(5), done
    (True, [99])
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Item, Stop], None],
        failed: Callable[[Item, Exception], None],
        settle_s: float = 0.0,
    ):
        self.closed = False
        self._name, self._work, self._failed = name, work, failed
        self._settle_s = settle_s
        self._changed = threading.Condition()
        self._next: list[Item] = []  # nothing, or one item
        self._due = 0.0
        self._thread: threading.Thread | None = None
        _OPEN.add(self)

    def request(self, item: Item) -> None:
        """Does this next; what was requested before and has not begun is dropped."""
        with self._changed:
            if self.closed:
                return
            self._next = [item]
            self._due = time.monotonic() + self._settle_s
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                self._thread.start()

    def drop(self) -> None:
        """Drops an item that has not begun."""
        with self._changed:
            self._next = []
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is nothing to do; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self, timeout: float = LAST_WAIT_S) -> None:
        """Takes no more requests, asks running work to stop, and waits for it."""
        self.closed = True
        self.drop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _stop(self) -> bool:
        return self.closed or bool(self._next)

    def _run(self) -> None:
        try:
            while next_item := self._take():
                try:
                    self._work(next_item[0], self._stop)
                except Exception as error:  # noqa: BLE001
                    # A user's function or a compiler may raise anything, and somebody
                    # waits for a result.
                    with contextlib.suppress(Exception):
                        self._failed(next_item[0], error)
        except BaseException:
            # A user's function may call sys.exit; nobody may wait for ever then.
            with self._changed:
                self._end()
            raise

    def _take(self) -> list[Item]:
        """The next item once it is due; without one the thread ends."""
        with self._changed:
            while self._next and (left := self._due - time.monotonic()) > 0:
                self._changed.wait(left)
            item, self._next = self._next, []
            if not item:
                self._end()
            return item

    def _end(self) -> None:
        self._thread = None
        self._changed.notify_all()


_OPEN: weakref.WeakSet[LatestWins] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread inside jax crashes the process when the interpreter ends before it.
    for one in list(_OPEN):
        one.close()


def failure(error: Exception, stage: str, refused: str = "program") -> Failure:
    """Why work ended early."""
    if isinstance(error, ShardvizError):
        return Failure(refused, str(error))
    return Failure(stage, f"{type(error).__name__}: {error}")


class Heartbeat:
    """Calls a function every second from a thread of its own.

    So the page hears that the kernel lives whatever the main thread does.
    """

    def __init__(self, beat: Callable[[], None]):
        self._beat = beat
        self._ended = threading.Event()
        self._started = False

    def start(self) -> None:
        """Begins, unless it has."""
        if not self._started:
            self._started = True
            threading.Thread(
                target=self._run, name="shardviz-alive", daemon=True
            ).start()

    def close(self) -> None:
        """Ends."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            # The connection of any front end may raise anything, and come back.
            with contextlib.suppress(Exception):
                self._beat()
            self._ended.wait(BEAT_S)
