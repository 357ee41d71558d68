"""The stages of a compile or run, and the interface of the runners that carry them out.

A `Job` holds the request, its current stage and the report so far. A `Runner` does the
work in one of three process setups:

    `here.Here`              this process, on its own devices
    `worker.run.InWorker`    a worker process, which itself has a `Here`
    `hosts.run.OnHosts`      several processes, each with a `Here`

`drive(job, choose)` runs these stages in order. Each begins with `job.enter(stage)`,
which ends a cancelled job.

    stage     work                                                done by
    program   checks values and layouts                           `Job.begin`
    target    chooses devices and runner                          `choose(job)`
    trace     traces the function on the mesh, checks effects     `Runner.trace`
    lower     lowers to StableHLO, computes the fingerprint       `Runner.lower`, `.key`
    compare   compares the call with those of other processes     `Here.compile`
    compile   finds the executable in the cache, or compiles      `Runner.compile`
    place     checks free memory, places the inputs               `Runner.run`
    run       executes, and waits for effects                     `Runner.run`
    check     compares with the layouts and unsharded function    `Runner.run`

A runner writes its results into the report with `job.note` and `job.check`. An error
becomes `report.error`, with its stage. Interrupts and the exit of a signal handler are
also raised again, because they are meant for this process.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from shardviz.base.backend.jax_compat import key_value_store
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import shown
from shardviz.base.layout import Layout
from shardviz.base.typing import PyTree
from shardviz.compiled.measured import Measured, NotMeasured
from shardviz.compiled.report import Check, Report
from shardviz.programs.backend.effect_rules import refusal_on
from shardviz.programs.backend.failures import failure
from shardviz.programs.backend.refused import trace_failure
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
_Lowered = TypeVar("_Lowered")
_Executable = TypeVar("_Executable")


class Cancelled(Exception):
    """The user cancelled the job.

    Attributes:
        cause: the point at which the job was cancelled.
    """

    def __init__(self, cause: CancelledBefore | CancelledIn | CancelledAfter) -> None:
        super().__init__(cause)
        self.cause = cause


class Failed(Exception):
    """A stage failed in another process, which sent this Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class NotExportable(ProgramError):
    """The program cannot be sent to another process."""


class Job:
    """One compile or run.

    Args:
        program: the program to compile or run.
        cache: the cache for executables.
        repeat: number of executions; None to compile only.
        values: the arguments of a run; empty to generate them.
        progress: called with the name of every stage as it begins.
        cancelled: called between stages, and while another process works; returns True
            to end the job.
        preview: called with the report so far, when a compile in another process has
            finished XLA's partitioner.
        compare: whether a run in another process is compared with the unsharded
            function.
        measure: whether to profile three further calls.

    Attributes:
        report: the results so far.
        stage: the current stage.
        leaves: the checked leaves of `values`; None for generated values.
        rendezvous: the exchange with other processes that make the same call; None for
            a single process.
    """

    def __init__(
        self,
        program: Program,
        *,
        cache: ExecutableCache,
        repeat: int | None = None,
        values: Sequence[PyTree] = (),
        progress: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        preview: Callable[[Report], None] | None = None,
        compare: bool = True,
        measure: bool = False,
    ) -> None:
        if not isinstance(program, Program):
            raise ProgramError(
                "Only a program made by sv.program(fn, ...) can be compiled or run;"
                f" got {shown(program)}."
            )
        self.program, self.cache, self.preview = program, cache, preview
        self.repeat, self.values, self.compare = repeat, values, compare
        self.measure = measure
        self.leaves: list[PyTree] | None = None
        self.report = Report(program.name, "")
        self.stage = "program"
        self.rendezvous: Rendezvous | None = None
        self.cancelled = cancelled
        self._progress = progress

    def begin(self) -> None:
        """Checks the values, and adds the requested layouts to the report."""
        if self.repeat is not None:
            check_repeat(self.repeat)
            self.leaves = value_leaves(self.program, self.values)
        self.enter("program")
        # The first problem usually explains the others.
        if self.program.problems:
            raise ProgramError(self.program.problems[0])
        self.note(in_layouts=requested_layouts(self.program))
        self.add_notes(self.program.notes)

    def enter(self, stage: str) -> None:
        """Begins a stage; ends the job if it was cancelled."""
        self.stage = stage
        self.poll(CancelledBefore(stage))
        if self._progress is not None:
            self._progress(stage)

    def poll(self, cause: CancelledBefore | CancelledIn | CancelledAfter) -> None:
        """Ends the job if it was cancelled.

        Args:
            cause: stored in the exception; names the point in the job.

        Raises:
            Cancelled: if the job was cancelled.
        """
        if self.cancelled is not None and self.cancelled():
            raise Cancelled(cause)

    def note(self, **fields: Any) -> None:
        """Sets attributes of the report."""
        self.report = self.report.replace(**fields)

    def add_notes(self, notes: Iterable[object]) -> None:
        """Adds notes for the user to the report, without duplicates."""
        self.note(notes=tuple(dict.fromkeys((*self.report.notes, *notes))))

    def note_measured(self, result: Measured | NotMeasured) -> None:
        """Adds measured times to the report, or why there are none."""
        if isinstance(result, NotMeasured):
            self.add_notes([result])
        else:
            self.note(measured=result)

    def check(self, *checks: Check) -> None:
        """Adds checks to the report."""
        self.note(checks=self.report.checks + checks)

    def follow(self, steps: Callable[[], object]) -> None:
        """Runs stages of the job; an error they raise becomes the report's error."""
        try:
            steps()
        except Cancelled as cancelled:
            self._fail(Failure("cancelled", cause=cancelled.cause))
        except Failed as failed:
            self._fail(failed.failure)
        except BaseException as error:  # a user's function may raise anything
            if self.stage == "trace" and isinstance(error, Exception):
                failed = trace_failure(self.program, error)
            else:
                failed = failure(self.stage, error)
            # A disagreement is found by all processes, so it isn't announced to them.
            self._fail(failed, announce=not isinstance(error, Disagreement))
            # Interrupts and the exit of a signal handler are meant for this process.
            if not isinstance(error, Exception):
                raise

    def _fail(self, error: Failure, announce: bool = True) -> None:
        self.note(error=error)
        large = self.report.too_large
        if large is not None:
            # The compiler's message reports all memory as temporaries.
            error = replace(error, cause=NeedsMoreMemory(large), largest_arrays=None)
        # A worker's report has no arguments, so the kernel adds the largest arrays.
        elif error.lacks_memory and self.report.in_layouts:
            error = replace(error, largest_arrays=self.report.largest_arrays)
        self.note(error=error)
        if announce and self.rendezvous is not None:
            self.rendezvous.fail(error.stage, error.message)


class Runner(ABC, Generic[_Lowered, _Executable]):
    """Carries out a job; the module docstring lists the methods in call order."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def trace(self) -> Traced:
        """Traces the function."""

    @abstractmethod
    def lower(self, traced: Traced) -> _Lowered:
        """Lowers the traced program to the form that the other methods take.

        Raises:
            NotExportable: if the program can't be sent to this runner's process.
        """

    @abstractmethod
    def key(self, lowered: _Lowered) -> str:
        """Returns a fingerprint of everything that the compile depends on."""

    @abstractmethod
    def compile(self, lowered: _Lowered) -> _Executable:
        """Gets an executable, and adds the compiler's figures to the report.

        If a runner compiles and runs with a single message to another process, and the
        job has a `repeat`, this method returns early and `run` does both.
        """

    @abstractmethod
    def run(self, lowered: _Lowered, executable: _Executable) -> None:
        """Checks free memory, places the inputs, executes, and checks the results."""


def drive(job: Job, choose: Callable[[Job], Runner[Any, Any]]) -> Report:
    """Runs all stages of a job, and returns its report.

    Args:
        job: the job.
        choose: chooses the devices and returns their runner; called in the stage
            `"target"`.
    """
    job.follow(lambda: _steps(job, choose))
    return job.report


def _steps(job: Job, choose: Callable[[Job], Runner[Any, Any]]) -> None:
    refused: ShardvizError | None = None
    try:
        job.begin()
    except ShardvizError as error:
        # With several processes, the others wait for this one. The error is raised
        # only after `choose`, so that it can be reported to them.
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


def _lowered(job: Job, runner: Runner[_Lowered, Any]) -> _Lowered:
    """Traces and lowers the program, and adds effects and fingerprint to the report."""
    job.enter("trace")
    traced = runner.trace()
    job.note(effects=traced.effects)
    job.add_notes(traced.notes)
    # jax supports some ordered effects only on one device.
    effects = traced.stage.jaxpr.effects
    if refusal := refusal_on(effects, job.program.mesh.size):
        job.stage = "program"  # no target with this many devices would work
        raise ProgramError(refusal)
    job.enter("lower")
    begun = time.perf_counter()
    lowered = runner.lower(traced)
    job.note(
        lower_s=traced.seconds + time.perf_counter() - begun, key=runner.key(lowered)
    )
    return lowered


def requested_layouts(program: Program) -> dict[str, Layout]:
    """Returns the name and requested layout of each argument that has one."""
    return {r.array.name: r.layout for r in program.requests if r.layout}


def check_repeat(repeat: object) -> None:
    """Raises if `repeat` is not a valid number of runs."""
    # A bool is an int in Python, but not a number of runs.
    if isinstance(repeat, int) and not isinstance(repeat, bool):
        if 1 <= repeat <= MAX_REPEAT:
            return
    raise ProgramError(
        f"repeat= is the number of runs, from 1 to {MAX_REPEAT:,}; got {shown(repeat)}."
    )
