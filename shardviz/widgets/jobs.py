"""Jobs that somebody starts: a compile or run, the effects of a program; the history."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shardviz.core.errors import import_optional
from shardviz.core.format import plural
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.program import Program
from shardviz.core.program.report import Failure, Report
from shardviz.core.wording import stages as wording
from shardviz.core.wording.calls import not_cached
from shardviz.core.wording.effects import effect_rows, unknown_rules
from shardviz.widgets.background import LatestWins, Stop, failure
from shardviz.widgets.targets import hosts_of, hosts_size

MOST_JOBS = 50
_JAX_EVENTS = {"trace": "trace", "lower": "lowering", "compile": "compile"}


class Job:
    """One compile or run of one program in the background.

    What XLA has begun it finishes by itself; the result of cancelled work is dropped.

    Attributes:
        stage: the stage that it is in.
        started: when it started, in seconds since the epoch.
        report: the result; None until the job has ended.
        early: what is known while it still compiles.
        jax_events: the work that jax's own caches did not save, in words.
        engines: of several processes, by rank, the stage that each is in, and since
            when (seconds since the epoch).
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
        self.kind, self.program = kind, program
        self.target, self.revision = target, revision
        self.stage, self.started = "starting", time.time()
        self.report: Report | None = None
        self.early: Report | None = None
        self.jax_events = ""
        self.engines: dict[int, tuple[str, float]] = {}
        self._cache, self._changed = cache, changed
        self._worker = LatestWins[None](f"shardviz-{kind}", self._run, self._failed)

    def start(self) -> None:
        """Begins."""
        self._worker.request(None)

    def cancel(self) -> None:
        """Ends the job with a report at once."""
        # Nobody waits for XLA, which finishes what it has begun.
        self._worker.close(0)
        if self.report is None:
            words = wording.cancelled(self.kind, self.stage)
            self._finish(Failure("cancelled", words))

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the work has ended; for tests and scripts."""
        self._worker.wait(timeout)

    def _run(self, _: None, cancelled: Stop) -> None:
        # Here, and not at the top: only Compile and Run need jax.
        from shardviz.core.backend.tracing.listening import jax_cache_events

        folder = "worker"
        if hosts_size(self.target) is not None:
            folder = "hosts"
        module = f"shardviz.core.backend.run.{folder}.run"
        runner = import_optional(module, "sv.run", "jax")
        make = runner.compile_program if self.kind == "compile" else runner.run_program
        # What jax's caches had already costs nothing, and the history says so.
        with jax_cache_events() as seen:
            report = make(
                self.program,
                target=self.target or None,
                cache=self._cache,
                progress=self._enter,
                cancelled=cancelled,
                preview=self._preview,
            )
        counts = seen.counts()
        self.jax_events = ", ".join(
            plural(counts[stage], noun) for stage, noun in _JAX_EVENTS.items()
        )
        if not self._worker.closed:
            self._finish(report)

    def _failed(self, _: None, error: Exception) -> None:
        if not self._worker.closed:
            self._finish(failure(error, self.stage))

    def _finish(self, result: Report | Failure) -> None:
        if isinstance(result, Failure):
            result = Report(self.program.name, "", error=result)
        self.report = result
        self._changed(self)

    def _enter(self, stage: str) -> None:
        if self._worker.closed:
            return
        self.stage = stage
        # Of several processes each has a stage of its own.
        group = hosts_of(self.target)
        stages = {} if group is None else dict(group.stages)
        for rank, entered in stages.items():
            if self.engines.get(rank, ("", 0.0))[0] != entered:
                self.engines[rank] = (entered, time.time())
        self._changed(self)

    def _preview(self, report: Report) -> None:
        if not self._worker.closed:
            self.early = report
            self._changed(self)


class EffectsReader:
    """Reads the effects of the latest program. That traces it, so no edit waits for it.

    Attributes:
        view: for the page; its `state` is `"none"`, `"reading"` or `"done"`.
    """

    def __init__(self, changed: Callable[[], None]):
        self.view: dict[str, Any] = {"state": "none", "revision": -1}
        self._changed = changed
        self._worker = LatestWins[tuple[int, Program]](
            "shardviz-effects", self._work, self._failed
        )

    def read(self, program: Program, revision: int) -> None:
        """Begins to read, unless this very revision was read or is being read."""
        # The page asks each time that its tab is opened.
        if self.view["revision"] != revision:
            self.view = {"state": "reading", "revision": revision}
            self._worker.request((revision, program))

    def _work(self, item: tuple[int, Program], stop: Stop) -> None:
        self._show(item[0], effects_view(item[1]))

    def _failed(self, item: tuple[int, Program], error: Exception) -> None:
        self._show(item[0], {"problem": failure(error, "").message})

    def _show(self, revision: int, found: dict[str, Any]) -> None:
        """Fills the view, unless it is of another program by now."""
        if self.view["revision"] == revision:
            self.view = {**self.view, "state": "done", **found}
            self._changed()


def effects_view(program: Program) -> dict[str, Any]:
    """The Effects tab of one program, as plain data."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.backend.tracing.effects import predict

    found = predict(program)
    runs, sentence = found.runs_on(program.mesh.size)
    return {
        "runs": runs,
        "sentence": sentence,
        "devices": found.devices,
        "rows": effect_rows(found),
        "note": unknown_rules(found),
    }


class History:
    """The last fifty jobs as plain rows, the latest first."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._compiled: list[Program] = []

    def add(self, kind: str, program: Program, report: Report, jax_events: str) -> None:
        """Adds one job that has ended."""
        if report.compile_s is None:
            found, why = "not compiled", str(report.error or "")
        elif report.cache_hit:
            found, why = "hit", wording.compiled_before()
        elif report.effects:
            found, why = "miss", wording.never_cached()
        else:
            found, why = "miss", not_cached(self._compiled, program)
        if report.compile_s is not None:
            self._compiled = [*self._compiled[-MOST_JOBS:], program]
        what = f"{kind} {program.name}"
        row = {"what": what, "found": found, "why": why, "jax": jax_events}
        self.rows = [row, *self.rows[: MOST_JOBS - 1]]
