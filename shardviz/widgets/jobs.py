"""Jobs: compile and run in the background, so that no edit ever waits for a compiler.

One job at a time. A job that is cancelled ends at its next stage; what XLA has begun it finishes
by itself, and its result is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardviz.core.errors import ShardvizError, plural
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
        from shardviz.core.program import runner
        from shardviz.core.program.calls import jax_caches

        act = runner.compile_program if kind == "compile" else runner.run_program
        with jax_caches.jax_cache_events() as seen:
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
