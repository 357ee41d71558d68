"""Planner: plans a program after every edit, and compiles or runs it on demand.

A plan takes milliseconds and needs no devices. For simulated devices, XLA's partitioner
then runs automatically. For described hardware, the partitioner would take many
seconds, so the user must press Compile. One thread does all plans; another does all
compiles and runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from shardviz.advise.candidates import Changes
from shardviz.base.collective import Collective
from shardviz.base.errors import needed_by
from shardviz.compiled.measured import with_least_times
from shardviz.compiled.memory_in_plan import with_values
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import Roofline, with_operations
from shardviz.compiled.words import stages as wording
from shardviz.explorer.background import LatestWins, Stop, close_together, failure
from shardviz.explorer.targets import hosts_size, is_simulated, target_title
from shardviz.plans.plan import Plan
from shardviz.programs.failure import Failure
from shardviz.programs.program import Program
from shardviz.runs.cache import ExecutableCache

SETTLE_S = 0.15
# Compiling for more simulated devices than this takes many seconds.
MOST_AUTOMATIC = 512
# A compile of 1,400 operations takes 10 s.
MOST_OPERATIONS = 3000
# A superseded compile is cancelled only after this time: a new worker takes as long.
PATIENCE_S = 3.0
_UNTRACED = ("program", "target", "trace", "lower")


@dataclass(eq=False)
class Job:
    """A plan, compile, run or search for one revision of the program.

    Attributes:
        kind: `"compile"`, `"run"` or `"changes"` if the user started it; `""` for
            automatic work after an edit.
        program, revision: the program and its revision.
        target: the target of the compile or run.
        stage: the stage that the job is in.
        started: start time in seconds since the epoch; 0 for automatic work.
        report: the result of a job that the user started; None until it ends.
        measure: whether a run also measures the time of each operation.
    """

    kind: str
    program: Program
    revision: int
    target: str
    stage: str = "starting"
    started: float = 0.0
    report: Report | None = None
    measure: bool = False

    def same_as(self, job: Job | None) -> bool:
        """Whether both jobs have the same program and target."""
        if job is None:
            return False
        return (self.revision, self.target) == (job.revision, job.target)


@dataclass(eq=False)
class ChangesJob(Job):
    """A search for changes that remove a collective or lower the peak of memory.

    Attributes:
        key: the page's key of the collective, or `"memory"`.
        collective: the collective; None for memory.
        changes: the result; None until the search ends, or if it failed.
    """

    key: str = "memory"
    collective: Collective | None = None
    changes: Changes | None = None


@dataclass(frozen=True, eq=False)
class StageResults:
    """The latest results of all stages, with their revisions and target.

    Attributes:
        plan: the latest plan; None before the first plan.
        plan_revision: the revision of the planned program.
        report: the latest report; None before the first compile.
        report_revision: the revision of the compiled program.
        target: the target of the report.
        is_preview: whether XLA was still compiling when the report was made.
        not_run: why the partitioner does not run automatically; `""` if it does.
        program: the program of the report.
        running: the current work: `"planning"`, `"partitioning"`, `"compiling"`
            or `""`.
        plan_platform: the platform that the plan is lowered for; `""` if the target
            names none.
    """

    plan: Plan | None = None
    plan_revision: int = -1
    report: Report | None = None
    report_revision: int = -1
    target: str = ""
    is_preview: bool = False
    not_run: str = ""
    program: Program | None = None
    running: str = ""
    plan_platform: str = ""

    @cached_property
    def roofline(self) -> Roofline | None:
        """The report's roofline, including operations of the plan; None if unknown."""
        return with_operations(self.report, None if self.mismatched else self.plan)

    @property
    def mismatched(self) -> bool:
        """Whether the plan and the report belong to different programs."""
        return self.plan_revision != self.report_revision

    def collectives(self) -> tuple[tuple[Collective, ...] | None, ...]:
        """Returns planned, partitioned and compiled collectives; None if unknown."""
        planned = None
        if self.plan is not None and self.plan.ok:
            planned = self.plan.collectives
        if self.report is None:
            return planned, None, None
        report = self.report.without_error
        return planned, report.partitioned, report.collectives

    def plan_of(self, revision: int) -> Plan | None:
        """Returns the plan if it belongs to this revision; otherwise None."""
        return self.plan if self.plan_revision == revision else None

    def report_of(self, revision: int, target: str) -> Report | None:
        """Returns the report if it has this revision and target; otherwise None."""
        current = (self.report_revision, self.target) == (revision, target)
        return self.report if current else None

    def has_ended(self, job: Job) -> bool:
        """Whether the report is the job's, and is more than its preview."""
        report = self.report_of(job.revision, job.target)
        return report is not None and not self.is_preview

    def shown(self) -> tuple[object, ...]:
        """Returns a key that changes whenever the page must show other results."""
        # Plans and reports are large, so they are compared by identity.
        numbers = self.plan_revision, self.report_revision, self.target, self.not_run
        return id(self.plan), id(self.report), *numbers


class Planner:
    """Plans a session's program after every edit, and does the jobs the user starts.

    Args:
        changed: called from background threads when `state` or `job` changes.
        cache: cache of compiled executables.

    Attributes:
        state: the latest results.
        job: the last job that the user started; None before the first job.
    """

    def __init__(self, changed: Callable[[], None], cache: ExecutableCache):
        self.state = StageResults()
        self.job: Job | None = None
        self._writing = threading.Lock()
        self._changed, self._cache = changed, cache
        self._plans = LatestWins[Job](
            "shardviz-plan", self._plan, self._plan_failed, SETTLE_S
        )
        self._compiles = LatestWins[Job](
            "shardviz-compile", self._compile, self._compile_failed
        )
        self._requested: Job | None = None

    @property
    def busy(self) -> bool:
        """Whether a job that the user started is running."""
        return self.job is not None and self.job.report is None

    def request(self, program: Program, revision: int, target: str) -> None:
        """Plans this program next, unless it is already requested. Never blocks."""
        job = Job("", program, revision, target)
        if not job.same_as(self._requested):
            self._requested = job
            # A job that the user started continues even if the program is edited.
            if not self.busy:
                self._compiles.drop()
            self._plans.request(job)

    def adopt(
        self, report: Report, program: Program, revision: int, target: str
    ) -> None:
        """Shows an existing report instead of compiling the program again."""
        self._update(
            report=report,
            report_revision=revision,
            target=target,
            is_preview=False,
            program=program,
        )

    def plan_now(self, program: Program, revision: int, timeout: float) -> None:
        """Plans this program unless it has a plan; waits at most `timeout` seconds."""
        requested = self._requested is not None and self._requested.revision == revision
        if self.state.plan_revision != revision and not requested:
            # No page requested this revision, so the partitioner won't run for it.
            self._plans.request(Job("", program, revision, ""))
        self._plans.wait(timeout)

    def start(self, job: Job) -> None:
        """Starts a job for the user, unless another one is running."""
        with self._writing:
            if self.busy:
                return
            job.started = time.time()
            self.job = job
            self._compiles.request(job)
        self._changed()

    def cancel(self) -> None:
        """Ends the user's job immediately, with a report that it was cancelled."""
        job = self.job
        if job is None or not self.busy:
            return
        words = wording.cancelled(job.kind, job.stage)
        report = Report(job.program.name, "", error=Failure("cancelled", words))
        # Results of earlier stages are still valid, so keep them.
        with self._writing:
            if job.report is not None:  # the job has just ended
                return
            # The report comes first: work that is told to stop returns the results it
            # has, which must not become the job's report.
            job.report = report
            self._compiles.abandon()
        self._continue()

    def pause(self) -> None:
        """Ends all work except a short compile; the next request begins work again."""
        self._requested = None
        self.cancel()
        self._plans.abandon()
        self._compiles.abandon()
        self._update(running="")

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until all work is done; for scripts and tests.

        Returns False after `timeout` seconds.
        """
        # Wait twice: if the program was edited during a job, the job requests a new
        # plan when it ends. A plan requests its compile before its thread ends.
        for _ in range(2):
            if not (self._plans.wait(timeout) and self._compiles.wait(timeout)):
                return False
        return True

    def close(self) -> None:
        """Stops all work and its threads."""
        close_together(self.works)

    @property
    def works(self) -> tuple[LatestWins[Job], ...]:
        """The workers for plans and for compiles."""
        return self._plans, self._compiles

    # --- plans ------------------------------------------------------------------------

    def _plan(self, job: Job, stop: Stop) -> None:
        state, platform = self.state, _platform(job)
        # A plan without a platform is lowered for CPUs.
        same_platform = (state.plan_platform or "cpu") == (platform or "cpu")
        if state.plan_revision != job.revision or not same_platform:
            self._update(running="planning")
            plan = plan_of(job.program, platform)
            # Propagates in this thread, so that a superseded plan is not propagated,
            # and no view waits for it.
            if stop() or (plan.ok and stop()):
                return
            revision = job.revision
            self._update(plan=plan, plan_revision=revision, plan_platform=platform)
            if report := self.state.report_of(revision, job.target):
                self._update(report=self._with_plan(job, report))
        self._partition(job)

    def _plan_failed(self, job: Job, error: BaseException) -> None:
        program = job.program
        plan = Plan(program.name, program.mesh, error=failure(error, "propagate"))
        self._update(plan=plan, plan_revision=job.revision)
        self._partition(job)

    def _partition(self, job: Job) -> None:
        """Starts the partitioner on the planned program, or stores why it can't run."""
        plan, state = self.state.plan, self.state
        operations = 0 if plan is None else len(plan.without_error.ops)
        not_run = why_not_automatic(job.program, job.target, operations)
        # A program that cannot be traced or lowered cannot be compiled either.
        if plan is not None and plan.error is not None:
            if plan.error.stage in _UNTRACED:
                not_run = wording.not_run("no plan")
        superseded = job is not self._requested
        if not_run or state.has_ended(job) or self.busy or superseded:
            self._update(not_run=not_run, running="")
        else:
            self._update(not_run="", running="partitioning")
            self._compiles.request(job)

    # --- compiles and runs ------------------------------------------------------------

    def _compile(self, job: Job, stop: Stop) -> None:
        # After an edit and its undo, the first compile may have ended in the meantime.
        if not job.kind and self.state.has_ended(job):
            self._update(running="")
            return
        begun = time.monotonic()

        def cancelled() -> bool:
            if job.kind:
                return stop()
            if self._compiles.closed:
                return True
            superseded = not job.same_as(self._requested)
            return superseded and time.monotonic() - begun > PATIENCE_S

        def enter(stage: str) -> None:
            job.stage = stage
            if job.kind and not stop():
                self._changed()

        def preview(report: Report) -> None:
            self._show(job, report, "compiling")

        if isinstance(job, ChangesJob):
            job.changes = changes_of(job, enter, cancelled)
            self._end(job, Report(job.program.name, job.target))
            return
        report = self._with_plan(
            job, do_job(job, self._cache, enter, cancelled, preview)
        )
        self._show(job, report, "")
        if job.kind:
            self._end(job, report)

    def _compile_failed(self, job: Job, error: BaseException) -> None:
        stopped = failure(error, job.stage, refused="target")
        report = Report(job.program.name, "", error=stopped)
        if not isinstance(job, ChangesJob):
            self._show(job, report, "")
        if job.kind:
            self._end(job, report)

    def _show(self, job: Job, report: Report, running: str) -> None:
        """Shows the report of a job, unless it was cancelled or superseded."""
        current = job.same_as(self._requested)
        if job.kind:
            current = job.report is None
        if current and not self._compiles.closed:
            self._update(
                report=report,
                report_revision=job.revision,
                target=job.target,
                is_preview=running != "",
                program=job.program,
                running=running,
            )

    def _with_plan(self, job: Job, report: Report) -> Report:
        """Adds buffer names and loop trip counts from the plan to a report."""
        plan = self.state.plan_of(job.revision)
        report = with_least_times(report, plan)
        return report if plan is None else with_values(report, plan)

    def _end(self, job: Job, report: Report) -> None:
        """Ends a job that the user started, with its report."""
        with self._writing:
            if job.report is not None:  # the job was cancelled
                return
            job.report = report
        self._continue()

    def _continue(self) -> None:
        """Resumes automatic plans and compiles after a job has ended."""
        self._update(running="")
        # If the program was edited during the job, partition it now.
        if self._requested is not None:
            self._plans.request(self._requested)

    def _update(self, **results: Any) -> None:
        with self._writing:  # several threads update the state
            self.state = replace(self.state, **results)
        if not self._plans.closed:
            self._changed()


def _platform(job: Job) -> str:
    """Returns the platform of a target; `""` if that needs jax's backend to start."""
    named = job.target not in ("", "attached") and hosts_size(job.target) is None
    if not named and not _backend_started():
        return ""
    from shardviz.runs.backend.targets import lowering_platform

    return lowering_platform(job.target, job.program.mesh.size)


def plan_of(program: Program, platform: str = "") -> Plan:
    """Plans a program with Shardy, lowered for a platform."""
    # Imported here, because the Explorer opens and edits without jax.
    from shardviz.plans.backend.build_plan import plan_program

    return plan_program(program, platform)


def do_job(
    job: Job,
    cache: ExecutableCache,
    enter: Callable[[str], None],
    cancelled: Stop,
    preview: Callable[[Report], None],
) -> Report:
    """Compiles or runs the program of a job, and returns the report."""
    with needed_by("sv.run"):
        from shardviz.runs.backend.hosts import run as hosts_runner
        from shardviz.runs.backend.worker import run as worker_runner
    runner = worker_runner if hosts_size(job.target) is None else hosts_runner
    compile_or_run = runner.compile_program
    if job.kind == "run":
        compile_or_run = partial(runner.run_program, measure=job.measure)
    report = compile_or_run(
        job.program,
        target=job.target or _automatic_target(job),
        cache=cache,
        progress=enter,
        cancelled=cancelled,
        preview=preview,
    )
    from shardviz.programs.backend.worker.freed_memory import give_back_freed

    give_back_freed()  # including memory that the plan used
    return report


def _automatic_target(job: Job) -> str | None:
    """Chooses the target of a job without a target; None for this machine's devices.

    Looking up devices starts jax's backend, which fixes the number of CPU devices. So a
    job that starts without the user's request uses simulated devices until the user's
    code has started the backend.
    """
    if job.kind or _backend_started():
        return None
    return f"cpu:{job.program.mesh.size}"


def _backend_started() -> bool:
    """Whether jax has started its backend; does not import jax."""
    compat = sys.modules.get("shardviz.base.backend.jax_compat")
    return compat is not None and compat.backend_started()


def changes_of(
    job: ChangesJob, enter: Callable[[str], None], cancelled: Stop
) -> Changes:
    """Searches for changes that remove a job's collective, or lower peak memory."""
    # Imported here, because the Explorer opens and edits without jax.
    from shardviz.advise.backend.changes import find_changes

    goal = job.key if job.collective is None else job.collective
    return find_changes(job.program, goal, job.target or None, enter, cancelled)


def why_not_automatic(program: Program, target: str, operations: int) -> str:
    """Returns why the partitioner waits for the Compile button, or `""`."""
    if hosts_size(target) is not None:
        return wording.not_run("hosts")
    if target == "attached":
        return wording.not_run("attached")
    if not is_simulated(target):
        return wording.not_run("described", target_title(target))
    if program.mesh.size == 1 and not _backend_started():
        return wording.not_run("attached")  # cpu:1 is the kernel's own CPU
    if program.mesh.size > MOST_AUTOMATIC:
        return wording.not_run("too many", count=program.mesh.size)
    if operations > MOST_OPERATIONS:
        return wording.not_run("too large", count=operations)
    return ""
