"""One compile or run: its steps, and what a runner does in each of them.

A `Job` holds what is asked for, the stage it is in and the report so far. A `Runner` is
where the work is done. There are three:

    `here.Here`              this process, on its own devices
    `worker.run.InWorker`    a worker process, which itself has a `Here`
    `hosts.run.OnHosts`      several processes, each with a `Here`

`drive(job, choose)` takes the steps in this order. Each begins with `job.enter(stage)`,
which is where a job that was cancelled ends.

    stage     what happens                                        who
    program   values and layouts are checked                      `Job.begin`
    target    the devices are chosen, and with them the runner    `choose(job)`
    trace     the function on the mesh; its effects are checked   `Runner.trace`
    lower     StableHLO, and its fingerprint                      `Runner.lower`, `.key`
    compare   (processes of one jax program agree)                `Here.compile`
    compile   taken from the cache, or compiled                   `Runner.compile`
    place     memory is checked, inputs are placed                `Runner.run`
    run       executed, up to the barrier of its effects          `Runner.run`
    check     compared with the layouts and with one device       `Runner.run`

A runner writes what it finds into the report with `job.note` and `job.check`. Whatever
a step raises becomes `report.error` with the stage it was raised in; only what is meant
for this process (an interrupt, a signal's exit) is raised again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from shardviz.base.backend.jax_compat import key_value_store
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import shown
from shardviz.compiled.report import Check, Report
from shardviz.programs.backend.effect_rules import refusal_on
from shardviz.programs.backend.failures import failure
from shardviz.programs.backend.refused import typed_form
from shardviz.programs.backend.trace import Traced
from shardviz.programs.failure import (
    CancelledAfter,
    CancelledBefore,
    CancelledIn,
    Failure,
    NeedsMoreMemory,
)
from shardviz.programs.program import Program
from shardviz.runs.backend.inputs import value_leaves
from shardviz.runs.backend.rendezvous import Disagreement, Rendezvous
from shardviz.runs.cache import ExecutableCache

MAX_REPEAT = 1_000_000


class Cancelled(Exception):
    """The user cancelled the job.

    Attributes:
        cause: when.
    """

    def __init__(self, cause: CancelledBefore | CancelledIn | CancelledAfter) -> None:
        super().__init__(cause)
        self.cause = cause


class Failed(Exception):
    """A stage failed in another process, which sent the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class NotExportable(ProgramError):
    """The program cannot be sent to another process."""


class Job:
    """One compile or run.

    Args:
        program: what to compile or run.
        cache: where executables are kept.
        repeat: how often to execute it; None to compile only.
        values: the arguments of a run; none for made-up ones.
        progress: called with the name of every stage as it begins.
        cancelled: called between stages, and while another process works; True ends it.
        preview: called with the report so far once XLA's partitioner is done elsewhere.
        compare: whether a run elsewhere is compared with the unsharded function.

    Attributes:
        report: what is known so far.
        stage: the stage that it is in.
        leaves: the values, checked; None for made-up ones.
        rendezvous: where this process meets others that make the same call.
    """

    def __init__(
        self,
        program: Program,
        *,
        cache: ExecutableCache,
        repeat: int | None = None,
        values: Sequence[Any] = (),
        progress: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        preview: Callable[[Report], None] | None = None,
        compare: bool = True,
    ) -> None:
        if not isinstance(program, Program):
            raise ProgramError(
                "What is compiled or run is a program, made by sv.program(fn, ...); got"
                f" {shown(program)}."
            )
        self.program, self.cache, self.preview = program, cache, preview
        self.repeat, self.values, self.compare = repeat, values, compare
        self.leaves: list[Any] | None = None
        self.report = Report(program.name, "")
        self.stage = "program"
        self.rendezvous: Rendezvous | None = None
        self.cancelled = cancelled
        self._progress = progress

    def begin(self) -> None:
        """Checks the values, and notes the layouts of the arguments."""
        if self.repeat is not None:
            check_repeat(self.repeat)
            self.leaves = value_leaves(self.program, self.values)
        self.enter("program")
        # The first one explains most of those that follow.
        if self.program.problems:
            raise ProgramError(self.program.problems[0])
        self.note(in_layouts=requested_layouts(self.program))
        self.add_notes(self.program.notes)

    def enter(self, stage: str) -> None:
        """Begins a stage, unless the job was cancelled."""
        self.stage = stage
        self.poll(CancelledBefore(stage))
        if self._progress is not None:
            self._progress(stage)

    def poll(self, cause: CancelledBefore | CancelledIn | CancelledAfter) -> None:
        """Ends the job if it was cancelled.

        Args:
            cause: the cause of the failure if it was.

        Raises:
            Cancelled: if it was.
        """
        if self.cancelled is not None and self.cancelled():
            raise Cancelled(cause)

    def note(self, **known: Any) -> None:
        """Writes into the report."""
        self.report = self.report.replace(**known)

    def add_notes(self, notes: Iterable[Any]) -> None:
        """Adds notes for the user to the report, each once."""
        self.note(notes=tuple(dict.fromkeys((*self.report.notes, *notes))))

    def check(self, *checks: Check) -> None:
        """Adds checks to the report."""
        self.note(checks=self.report.checks + checks)

    def follow(self, steps: Callable[[], Any]) -> None:
        """Takes some steps; what they raise becomes the error of the report."""
        try:
            steps()
        except Cancelled as cancelled:
            self._fail(Failure("cancelled", cause=cancelled.cause))
        except Failed as failed:
            self._fail(failed.failure)
        except BaseException as error:  # a user's function may raise anything
            # A disagreement was found by all processes together.
            told = isinstance(error, Disagreement)
            failed = failure(self.stage, error)
            if self.stage == "trace" and isinstance(error, Exception):
                refusals = typed_form(self.program, error).refusals
                failed = replace(failed, refusals=refusals)
            self._fail(failed, tell=not told)
            # An interrupt, or the exit of a signal's handler, is for this process.
            if not isinstance(error, Exception):
                raise

    def _fail(self, error: Failure, tell: bool = True) -> None:
        self.note(error=error)
        large = self.report.too_large
        if large is not None:
            # The compiler's own words call all that it counts temporaries.
            error = replace(error, cause=NeedsMoreMemory(large), largest_arrays=None)
        # The report of a worker has no arguments: they are named by the kernel.
        elif error.lacks_memory and self.report.in_layouts:
            error = replace(error, largest_arrays=self.report.largest_arrays)
        self.note(error=error)
        if tell and self.rendezvous is not None:
            self.rendezvous.fail(error.stage, error.message)


class Runner(ABC):
    """Where a job is done. The module says when each method is called."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def trace(self) -> Traced:
        """Traces the function."""

    @abstractmethod
    def lower(self, traced: Traced) -> Any:
        """Lowers what was traced, in whatever form the other methods take.

        It raises NotExportable where it cannot be sent to where this runner works.
        """

    @abstractmethod
    def key(self, lowered: Any) -> str:
        """The fingerprint of what was lowered: all that its compile depends on."""

    @abstractmethod
    def compile(self, lowered: Any) -> Any:
        """Gets an executable, and notes what the compiler says of it.

        A runner that compiles and runs in one message to another process does both in
        `run`, where the job has a `repeat`.
        """

    @abstractmethod
    def run(self, lowered: Any, executable: Any) -> None:
        """Checks the memory, places inputs, executes, and checks the results."""


def drive(job: Job, choose: Callable[[Job], Runner]) -> Report:
    """Does a job.

    Args:
        job: what to do.
        choose: decides on the devices, and gives the runner for them; called in the
            stage `"target"`.
    """
    job.follow(lambda: _steps(job, choose))
    return job.report


def _steps(job: Job, choose: Callable[[Job], Runner]) -> None:
    refused: ShardvizError | None = None
    try:
        job.begin()
    except ShardvizError as error:
        # Other processes of this jax wait for this one in the same call. Once the
        # devices are known they are told.
        if key_value_store() is None:
            raise
        refused = error
    job.enter("target")
    runner = choose(job)
    if refused is not None:
        job.stage = "program"
        raise refused
    lowered = _lowered(job, runner)
    executable = runner.compile(lowered)
    if job.repeat is not None:
        runner.run(lowered, executable)


def _lowered(job: Job, runner: Runner) -> Any:
    """What a runner lowers a program to; its fingerprint is noted."""
    job.enter("trace")
    traced = runner.trace()
    job.note(effects=traced.effects)
    # They say how it was traced, which nothing later can.
    job.add_notes(traced.notes)
    # Effects that jax orders on one device only.
    effects = traced.stage.jaxpr.effects
    if words := refusal_on(effects, job.program.mesh.size):
        job.stage = "program"  # no target with this many devices would do
        raise ProgramError(words)
    job.enter("lower")
    begun = time.perf_counter()
    lowered = runner.lower(traced)
    job.note(
        lower_s=traced.seconds + time.perf_counter() - begun, key=runner.key(lowered)
    )
    return lowered


def requested_layouts(program: Program) -> dict[str, Any]:
    """The layouts requested for the arguments, by name."""
    return {r.array.name: r.layout for r in program.requests if r.layout}


def check_repeat(repeat: Any) -> None:
    """Refuses what does not say how often to run."""
    is_number = isinstance(repeat, int) and not isinstance(repeat, bool)
    if not is_number or not 1 <= repeat <= MAX_REPEAT:
        raise ProgramError(
            f"repeat says how often to run, from 1 to {MAX_REPEAT:,}; got {shown(repeat)}."
        )
