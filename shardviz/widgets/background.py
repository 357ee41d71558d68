"""Work in the background: a job with stages and cancel, and the latest of many requests.

One job at a time. A job that is cancelled ends at its next stage; what XLA has begun it finishes
by itself, and its result is dropped.

Reading effects traces the program, which is jax's work; so no edit waits for it.
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

# A Report, and what jax's own caches did not spare, in words.
Outcome = tuple[Report, str]
Work = Callable[[Callable[[str], None], Callable[[], bool], Callable[[Report], None]], Outcome]


@dataclass(frozen=True)
class Progress:
    """Where a job stands: what it does, in which stage, since when (seconds since the epoch)."""

    kind: str
    stage: str
    started: float


class Job:
    """One compile or run of one program, on a thread of its own.

    Args:
        kind: `"compile"` or `"run"`.
        work: makes the Report; is given a progress callback, a cancelled check, and a callback
            for what is known before the end.
        program: what is compiled or run.
        revision: the session's revision when it began.
        changed: called whenever the stage changes and once at the end, from the thread.
    """

    def __init__(
        self,
        kind: str,
        work: Work,
        program: Program,
        revision: int,
        changed: Callable[[Job], None],
    ):
        self.kind, self.program, self.revision = kind, program, revision
        self.progress = Progress(kind, "starting", time.time())
        self.report: Report | None = None
        self.early: Report | None = None  # what is known while it still compiles
        self.target = ""  # as it was typed, when it began
        self.jax_events = ""
        self._work, self._changed = work, changed
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._go, name=f"shardviz-{kind}", daemon=True)

    @property
    def done(self) -> bool:
        """Whether there is a report."""
        return self.report is not None

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def cancel(self) -> None:
        """Ends the job as far as anybody can see; a compile under way is dropped when it ends."""
        self._cancel.set()
        if self.report is None:
            words = f"The {self.kind} was cancelled in the stage {self.progress.stage!r}."
            self.report = Report(self.program.name, "", error=Failure("cancelled", words))
            self._changed(self)

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the thread has ended; for tests and scripts."""
        self._thread.join(timeout)

    def _stage(self, stage: str) -> None:
        if not self._cancel.is_set():
            self.progress = Progress(self.kind, stage, self.progress.started)
            self._changed(self)

    def _preview(self, report: Report) -> None:
        if not self._cancel.is_set():
            self.early = report
            self._changed(self)

    def _go(self) -> None:
        try:
            report, self.jax_events = self._work(self._stage, self._cancel.is_set, self._preview)
        except ShardvizError as error:
            report = Report(self.program.name, "", error=Failure("program", str(error)))
        except Exception as error:  # noqa: BLE001  a thread must not end without a report
            message = f"{type(error).__name__}: {error}"
            report = Report(self.program.name, "", error=Failure(self.progress.stage, message))
        if not self._cancel.is_set():
            self.report = report
            self._changed(self)


def work(kind: str, program: Program, target: str, cache: ExecutableCache) -> Work:
    """What a job does: given its three callbacks, it makes a Report."""

    def go(
        progress: Callable[[str], None],
        cancelled: Callable[[], bool],
        preview: Callable[[Report], None],
    ) -> Outcome:
        # Here, and not at the top: only Compile and Run need jax.
        from shardviz.core.backend import jax_events
        from shardviz.core.backend.worker import run

        act = run.compile_program if kind == "compile" else run.run_program
        with jax_events.jax_cache_events() as seen:
            report = act(
                program,
                target=target or None,
                cache=cache,
                progress=progress,
                cancelled=cancelled,
                preview=preview,
            )
        words = [plural(seen.traces, "trace"), plural(seen.lowerings, "lowering")]
        return report, ", ".join([*words, plural(seen.compiles, "compile")])

    return go


LAST_WAIT_S = 10.0
Item = TypeVar("Item")


class LatestWins(Generic[Item]):
    """Does what was asked for last, once nobody has asked for something else for a while.

    The thread is there only while there is something to do. Nobody who asks ever waits.

    Args:
        name: what the thread is called.
        work: does one item; is given it, and a check whether it should stop: something later is
            due, or everything was closed. Must not raise.
        settle_s: seconds without another request before work begins.

    >>> done = []
    >>> latest = LatestWins("example", lambda item, stop: done.append(item), 0.01)
    >>> for number in range(100):
    ...     latest.ask(number)
    >>> latest.wait(5), done
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


_OPEN: weakref.WeakSet[LatestWins] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A thread inside jax while the interpreter goes away would take the process down with it.
    for one in list(_OPEN):
        one.close()


class EffectsReader:
    """Reads the effects of one program after another, on a thread; the latest counts.

    Attributes:
        view: what the page shows: `state` is `"none"`, `"reading"` or `"done"`.
    """

    def __init__(self, changed: Callable[[], None]):
        self.view: dict[str, Any] = {"state": "none", "revision": -1}
        self._changed = changed

    def read(self, program: Program, revision: int) -> None:
        """Begins to read, unless this very revision was read or is being read."""
        if self.view["revision"] == revision:
            return
        self.view = {"state": "reading", "revision": revision}
        threading.Thread(
            target=self._go, args=(program, revision), name="shardviz-effects", daemon=True
        ).start()

    def observe(self, program: Program, revision: int, target: str) -> None:
        """Runs the program and writes down the order of its effects, unless it is being read."""
        if self.view["state"] == "done" and self.view["revision"] == revision:
            self.view = {**self.view, "watching": True}
            self._changed()
            threading.Thread(
                target=self._watch, args=(program, revision, target), name="shardviz-observe",
                daemon=True,
            ).start()  # fmt: skip

    def _watch(self, program: Program, revision: int, target: str) -> None:
        from shardviz.core.backend.effects.observe import observed_order

        try:
            seen = observed_order(program, target=target or None)
            failed = str(seen.report.error or "")
            found: dict[str, Any] = {"observed": seen.rows(), "failed": failed}
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything
            found = {"observed": [], "failed": f"{type(error).__name__}: {error}"}
        if self.view["revision"] == revision:
            self.view = {**self.view, "watching": False, **found}
            self._changed()

    def _go(self, program: Program, revision: int) -> None:
        try:
            found = effects_view(program)
        except ShardvizError as error:
            found = {"problem": str(error)}
        except Exception as error:  # noqa: BLE001  a user's function may raise anything when traced
            found = {"problem": f"{type(error).__name__}: {error}"}
        if self.view["revision"] == revision:
            self.view = {"state": "done", "revision": revision, **found}
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
