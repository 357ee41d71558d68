"""Work in the background: the latest of many requests, and a beat every second.

Plans, compiles, effects and pictures of links each have a separate `LatestWins`. If work
raises an error, its `failed` turns the error into a result.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from shardviz.base.errors import ShardvizError
from shardviz.base.typing import JsonDict
from shardviz.programs.failure import Failure

# Jupyter kills a kernel that needs more than 5 s to end.
LAST_WAIT_S = 4.0
BEAT_S = 1.0
Item = TypeVar("Item")
#: Returns True if work should stop: a later request is due, or its result is unwanted.
Stop = Callable[[], bool]


class LatestWins(Generic[Item]):
    """Does the latest request, once no other request has come for a while.

    The thread exists only while there is something to do. A request never blocks.

    Args:
        name: of the thread.
        work: does one item.
        failed: gives a result to an item whose work raised an error.
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
        failed: Callable[[Item, BaseException], None],
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
        """Does this item next; an earlier one that has not begun is dropped."""
        with self._changed:
            if self.closed:
                return
            self._next = [item]
            self._due = time.monotonic() + self._settle_s
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=self._name, daemon=True
                )
                _THREADS.add(self._thread)
                self._thread.start()

    def drop(self) -> None:
        """Drops an item that has not begun."""
        with self._changed:
            self._next = []
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drops everything; running work ends by itself, and its result is ignored."""
        # XLA cannot be interrupted, so the next request gets another thread.
        with self._changed:
            self._next, self._thread = [], None
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is nothing to do; False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that works; None if there is nothing to do."""
        return self._thread

    def close(self, timeout: float = LAST_WAIT_S) -> None:
        """Takes no more requests, asks running work to stop, and waits for it."""
        self.closed = True
        self.drop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        current = threading.current_thread()

        def stop() -> bool:
            return self.closed or bool(self._next) or self._thread is not current

        try:
            while items := self._take(current):
                try:
                    self._work(items[0], stop)
                except (Exception, SystemExit) as error:  # noqa: BLE001
                    # A user's function or a compiler may raise anything, and the page
                    # waits for a result.
                    with contextlib.suppress(Exception):
                        self._failed(items[0], error)
        finally:
            # Even if a user's function calls sys.exit, `wait` must return.
            with self._changed:
                self._end(current)

    def _take(self, thread: threading.Thread) -> list[Item]:
        """The next item once it is due; without one the thread ends."""
        with self._changed:
            while self._next and self._thread is thread:
                wait_s = self._due - time.monotonic()
                if wait_s <= 0:
                    item, self._next = self._next, []
                    return item
                self._changed.wait(wait_s)
            self._end(thread)
            return []

    def _end(self, thread: threading.Thread) -> None:
        if self._thread is thread:
            self._thread = None
            self._changed.notify_all()


class LatestView(LatestWins[Item]):
    """The view of the latest request, made in the background.

    Args:
        name: of the thread.
        make: makes the view of an item.
        failed: the view of an item for which `make` raised an error.
        changed: called when there is another view.

    Attributes:
        view: the view.
        requested: the item that was last requested; None before the first.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Item], JsonDict],
        failed: Callable[[Item, BaseException], JsonDict],
        changed: Callable[[], None],
    ):
        self.view: JsonDict = {}
        self.requested: Item | None = None
        self._view_changed = changed

        def work(item: Item, stop: Stop) -> None:
            view = make(item)
            if not stop():
                self._show(item, view)

        super().__init__(
            name, work, lambda item, error: self._show(item, failed(item, error))
        )

    def request(self, item: Item) -> None:
        """Makes the view of this item next."""
        self.requested = item
        super().request(item)

    def _show(self, item: Item, view: JsonDict) -> None:
        # Another item may have been requested meanwhile.
        if self.requested is item:
            self.view = view
            self._view_changed()


_OPEN: weakref.WeakSet[LatestWins] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def close_together(open_works: Iterable[LatestWins]) -> None:
    """Closes several, and waits `LAST_WAIT_S` for all of them together."""
    works = list(open_works)
    for work in works:
        work.close(0)
    _join([work.thread for work in works if work.thread is not None])


def _join(threads: Iterable[threading.Thread]) -> None:
    """Waits until threads end, up to LAST_WAIT_S; slower ones are daemons."""
    deadline = time.monotonic() + LAST_WAIT_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _close_all() -> None:
    close_together(_OPEN)
    # A thread inside jax crashes the process when the interpreter ends before it.
    _join(list(_THREADS))


def failure(error: BaseException, stage: str, refused: str = "program") -> Failure:
    """The failure of work that raised an error.

    Args:
        error: raised by the work.
        stage: of the work.
        refused: the stage that is named for errors of shardviz.
    """
    if isinstance(error, ShardvizError):
        return Failure(refused, str(error))
    return Failure(stage, f"{type(error).__name__}: {error}")


class Beats:
    """Functions that one thread calls every second, each until its event is set.

    The thread starts with the first function and ends with the last.
    """

    def __init__(self) -> None:
        self._beats: dict[threading.Event, Callable[[], None]] = {}
        self._lock = threading.Lock()

    def start(self, beat: Callable[[], None]) -> threading.Event:
        """Calls a function every second until the returned event is set."""
        ended = threading.Event()
        with self._lock:
            self._beats[ended] = beat
            if len(self._beats) == 1:
                threading.Thread(
                    target=self._beat_all, name="shardviz-alive", daemon=True
                ).start()
        return ended

    def _beat_all(self) -> None:
        while beats := self._current():
            for ended, beat in beats:
                if not ended.is_set():
                    # A front end's connection may raise any error, and recover later.
                    with contextlib.suppress(Exception):
                        beat()
            time.sleep(BEAT_S)

    def _current(self) -> list[tuple[threading.Event, Callable[[], None]]]:
        """The beats that have not ended; the thread ends when this is empty."""
        with self._lock:
            for ended in list(self._beats):
                if ended.is_set():
                    del self._beats[ended]
            return list(self._beats.items())


_BEATS = Beats()


def start_beats(beat: Callable[[], None]) -> threading.Event:
    """Calls a function every second from another thread until the event is set.

    The page then knows that the kernel is alive even while the main thread is busy. One
    thread makes all calls, because Explorers of cells that are run again stay open.
    """
    return _BEATS.start(beat)
