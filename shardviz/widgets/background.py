"""Work in the background: the latest of many requests; a compile or run; the effects of a program.

All of it is done by `LatestWins`, the only owner of threads here. What XLA has begun it finishes
by itself; the result of cancelled work is dropped.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardviz.core.errors import ShardvizError
from shardviz.core.format import plural
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Failure, Report

LAST_WAIT_S = 10.0
BEAT_S = 1.0
Item = TypeVar("Item")


class LatestWins(Generic[Item]):
    """Does what was requested last, once no other request has come for a while.

    The thread exists only while there is something to do. A request never blocks.

    Args:
        name: of the thread.
        work: does one item; it gets the item and a check whether to stop, because something later
            is due or everything was closed.
        settle_s: seconds without another request before work begins.

    >>> done = []
    >>> latest = LatestWins("example", lambda item, stop: done.append(item), 0.01)
    >>> for number in range(100):
    ...     latest.request(number)
    >>> latest.wait(5), done
    (True, [99])
    """

    def __init__(
        self, name: str, work: Callable[[Item, Callable[[], bool]], None], settle_s: float = 0.0
    ):
        self._name, self._work, self._settle_s = name, work, settle_s
        self._changed = threading.Condition()
        self._next: list[Item] = []  # nothing, or one item
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False
        _OPEN.add(self)

    def request(self, item: Item) -> None:
        """Does this next; an item that was requested before and has not begun is dropped."""
        with self._changed:
            if self._closed:
                return
            self._next = [item]
            self._due = time.monotonic() + self._settle_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def drop(self) -> None:
        """Drops an item that has not begun."""
        with self._changed:
            self._next = []
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is nothing to do; False where `timeout` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self, timeout: float = LAST_WAIT_S) -> None:
        """Takes no more requests, asks running work to stop, and waits for it."""
        with self._changed:
            self._closed, self._next = True, []
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed

    def _stop(self) -> bool:
        return self._closed or bool(self._next)

    def _run(self) -> None:
        try:
            while item := self._take():
                self._work(item[0], self._stop)
        except BaseException:
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
        with self._changed:
            self._thread = None
            self._changed.notify_all()


_OPEN: weakref.WeakSet[LatestWins] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread inside jax crashes the process when the interpreter ends before it.
    for one in list(_OPEN):
        one.close()


def failure(error: Exception, stage: str, refused: str = "program") -> Failure:
    """Why work ended early: work in a thread must not end without a result.

    Args:
        error: what was raised.
        stage: the stage in which it was raised.
        refused: the stage for errors of shardviz, which are sentences already.

    >>> failure(ValueError("no"), "compile").message, failure(ShardvizError("No."), "compile").stage
    ('ValueError: no', 'program')
    """
    if isinstance(error, ShardvizError):
        return Failure(refused, str(error))
    return Failure(stage, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Progress:
    """The kind and the stage of a job, and when it started (seconds since the epoch)."""

    kind: str
    stage: str
    started: float


class Job:
    """One compile or run of one program in the background.

    Args:
        kind: `"compile"` or `"run"`.
        program: what is compiled or run.
        target: what it is compiled for; `""` lets shardviz choose.
        revision: the session's revision when it began.
        cache: of executables.
        changed: called from the thread whenever the stage changes, and once at the end.

    Attributes:
        report: the result; None until the job has ended.
        early: what is known while it still compiles.
        jax_events: the work that jax's own caches did not save, in words.
    """

    def __init__(
        self,
        kind: str,
        program: Program,
        target: str,
        revision: int,
        cache: ExecutableCache,
        changed: Callable[[Job], None],
    ):
        self.kind, self.program, self.target, self.revision = kind, program, target, revision
        self.progress = Progress(kind, "starting", time.time())
        self.report: Report | None = None
        self.early: Report | None = None
        self.jax_events = ""
        self._cache, self._changed = cache, changed
        self._worker = LatestWins[None](f"shardviz-{kind}", self._run)

    @property
    def done(self) -> bool:
        """Whether there is a report."""
        return self.report is not None

    def start(self) -> None:
        """Begins."""
        self._worker.request(None)

    def cancel(self) -> None:
        """Ends the job with a report at once; a running compile is dropped when it ends."""
        self._worker.close(0)
        if self.report is None:
            words = f"The {self.kind} was cancelled in the stage {self.progress.stage!r}."
            self._finish(Report(self.program.name, "", error=Failure("cancelled", words)))

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the work has ended; for tests and scripts."""
        self._worker.wait(timeout)

    def _run(self, _: None, cancelled: Callable[[], bool]) -> None:
        try:
            report = self._made(cancelled)
        except Exception as error:  # noqa: BLE001
            report = Report(self.program.name, "", error=failure(error, self.progress.stage))
        if not cancelled():
            self._finish(report)

    def _made(self, cancelled: Callable[[], bool]) -> Report:
        # Here, and not at the top: only Compile and Run need jax.
        from shardviz.core.backend import jax_events
        from shardviz.core.backend.worker import run

        def enter(stage: str) -> None:
            if not cancelled():
                self.progress = Progress(self.kind, stage, self.progress.started)
                self._changed(self)

        def preview(report: Report) -> None:
            if not cancelled():
                self.early = report
                self._changed(self)

        make = run.compile_program if self.kind == "compile" else run.run_program
        with jax_events.jax_cache_events() as seen:
            report = make(
                self.program,
                target=self.target or None,
                cache=self._cache,
                progress=enter,
                cancelled=cancelled,
                preview=preview,
            )
        words = [plural(seen.traces, "trace"), plural(seen.lowerings, "lowering")]
        self.jax_events = ", ".join([*words, plural(seen.compiles, "compile")])
        return report

    def _finish(self, report: Report) -> None:
        self.report = report
        self._changed(self)


class Heartbeat:
    """Calls a function every second from a thread of its own, whatever the main thread does.

    Args:
        beat: what is called; where it raises, the front end takes no such messages, and it ends.
    """

    def __init__(self, beat: Callable[[], None]):
        self._beat = beat
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins, unless it has."""
        if self._thread is None and not self._ended.is_set():
            self._thread = threading.Thread(target=self._run, name="shardviz-alive", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._beat()
            except Exception:  # noqa: BLE001  of any front end; the page then expects none
                return
            self._ended.wait(BEAT_S)


class EffectsReader:
    """Reads the effects of the latest program. That traces it, so no edit waits for it.

    Attributes:
        view: for the page; its `state` is `"none"`, `"reading"` or `"done"`.
    """

    def __init__(self, changed: Callable[[], None]):
        self.view: dict[str, Any] = {"state": "none", "revision": -1}
        self._changed = changed
        self._predictions = LatestWins[tuple[Program, int]]("shardviz-effects", self._predict)
        self._observations = LatestWins[tuple[Program, int, str]]("shardviz-observe", self._observe)

    def read(self, program: Program, revision: int) -> None:
        """Begins to read, unless this very revision was read or is being read."""
        if self.view["revision"] != revision:
            self.view = {"state": "reading", "revision": revision}
            self._predictions.request((program, revision))

    def observe(self, program: Program, revision: int, target: str) -> None:
        """Runs the program and records the order of its effects, once they have been read."""
        if self.view["state"] == "done" and self.view["revision"] == revision:
            self._show(revision, {**self.view, "watching": True})
            self._observations.request((program, revision, target))

    def _predict(self, request: tuple[Program, int], stop: Callable[[], bool]) -> None:
        program, revision = request
        try:
            found = effects_view(program)
        except Exception as error:  # noqa: BLE001  a user's function may raise anything when traced
            found = {"problem": failure(error, "").message}
        self._show(revision, {"state": "done", "revision": revision, **found})

    def _observe(self, request: tuple[Program, int, str], stop: Callable[[], bool]) -> None:
        from shardviz.core.backend.effects.observe import observed_order

        program, revision, target = request
        try:
            seen = observed_order(program, target=target or None)
            found = {"observed": seen.rows(), "failed": str(seen.report.error or "")}
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything
            found = {"observed": [], "failed": failure(error, "").message}
        self._show(revision, {**self.view, "watching": False, **found})

    def _show(self, revision: int, view: dict[str, Any]) -> None:
        """Shows a view unless it is of a program that is no longer the latest."""
        if self.view["revision"] == revision:
            self.view = view
            self._changed()


def effects_view(program: Program) -> dict[str, Any]:
    """The Effects tab of one program, as plain data."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.backend.effects.predict import predict

    found = predict(program)
    runs, sentence = found.runs_on(program.mesh.size)
    return {
        "runs": runs,
        "sentence": sentence,
        "devices": found.devices,
        "rows": found.rows(),
        "tokens": [str(token) for token in found.tokens or ()],
        "note": found.note,
    }
