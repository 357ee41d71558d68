"""Background threads: workers that do only the latest request, and a heartbeat.

Plans, compiles, effects and link pictures each have a separate `LatestWins` worker. If
the work raises an error, its `failed` callback turns the error into a result.
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

# Jupyter kills a kernel that needs more than 5 s to shut down.
LAST_WAIT_S = 4.0
BEAT_S = 1.0
Item = TypeVar("Item")
#: Returns True if the running work should stop: its result is no longer needed.
Stop = Callable[[], bool]


class LatestWins(Generic[Item]):
    """Does the latest request, after `settle_s` seconds without a newer one.

    The thread exists only while there is work. `request` never blocks.

    Args:
        name: name of the thread.
        work: processes one item; stops early when its `Stop` callback returns True.
        failed: called with an item and the error that its work raised.
        settle_s: seconds without a newer request before work begins.

    >>> done = []
    >>> def work(item, stop):
    ...     done.append(item)
    >>> latest = LatestWins("example", work, lambda item, error: None, 0.5)
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
        self._next: list[Item] = []  # at most one item
        self._due = 0.0
        self._thread: threading.Thread | None = None
        _OPEN.add(self)

    def request(self, item: Item) -> None:
        """Queues this item; replaces an item whose work has not begun."""
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
        """Drops the queued item, if there is one."""
        with self._changed:
            self._next = []
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drops the queued item, and ignores the result of running work."""
        # A compile cannot be interrupted, so the next request starts another thread.
        with self._changed:
            self._next, self._thread = [], None
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is no work; returns False after `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    @property
    def thread(self) -> threading.Thread | None:
        """The worker's thread; None if there is no work."""
        return self._thread

    def close(self, timeout: float = LAST_WAIT_S) -> None:
        """Accepts no more requests, asks running work to stop, and waits for it."""
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
                    # User functions and compilers may raise any error, and the page
                    # waits for a result.
                    with contextlib.suppress(Exception):
                        self._failed(items[0], error)
        finally:
            # Even if a user's function calls sys.exit, `wait` must return.
            with self._changed:
                self._end(current)

    def _take(self, thread: threading.Thread) -> list[Item]:
        """Waits until the queued item is due, and returns `[item]` or `[]`."""
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
    """Computes page data for the latest request in the background.

    Args:
        name: name of the thread.
        make: computes the view of an item.
        failed: returns the view of an item for which `make` raised an error.
        changed: called whenever `view` changes.

    Attributes:
        view: the latest view, as JSON for the page.
        requested: the item that was last requested; None before the first request.
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
        """Queues this item, to compute its view next."""
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
    """Closes several workers, and waits at most `LAST_WAIT_S` seconds in total."""
    works = list(open_works)
    for work in works:
        work.close(0)
    _join([work.thread for work in works if work.thread is not None])


def _join(threads: Iterable[threading.Thread]) -> None:
    """Waits at most `LAST_WAIT_S` seconds in total for daemon threads to end."""
    deadline = time.monotonic() + LAST_WAIT_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _close_all() -> None:
    close_together(_OPEN)
    # If the interpreter exits while a thread is inside jax, the process crashes.
    _join(list(_THREADS))


def failure(error: BaseException, stage: str, refused: str = "program") -> Failure:
    """Converts an error raised by background work into a Failure.

    Args:
        error: the error.
        stage: the stage at which the work raised it.
        refused: the stage to report for a ShardvizError instead.
    """
    if isinstance(error, ShardvizError):
        return Failure(refused, str(error))
    return Failure(stage, f"{type(error).__name__}: {error}")


class Beats:
    """A heartbeat thread that calls several functions every second.

    Each function is called until its event is set. The thread runs only while there are
    functions to call.
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
                    # The connection to the page may raise any error, and recover later.
                    with contextlib.suppress(Exception):
                        beat()
            time.sleep(BEAT_S)

    def _current(self) -> list[tuple[threading.Event, Callable[[], None]]]:
        """Removes functions whose event is set, and returns all others."""
        with self._lock:
            for ended in list(self._beats):
                if ended.is_set():
                    del self._beats[ended]
            return list(self._beats.items())


_BEATS = Beats()


def start_beats(beat: Callable[[], None]) -> threading.Event:
    """Calls a function every second in the heartbeat thread, until the event is set.

    The calls show the page that the kernel is alive while the main thread is busy. All
    Explorers share one thread.
    """
    return _BEATS.start(beat)
