"""Planner: plans every program of a session that settles, then runs the partitioner.

A plan takes milliseconds and no devices. For simulated devices the partitioner then
runs, too; for described hardware that takes many seconds, so it runs only when somebody
presses Compile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report
from shardviz.core.wording import stages as wording
from shardviz.widgets.background import LatestWins, Stop, failure
from shardviz.widgets.targets import hosts_size, is_simulated, target_title

SETTLE_S = 0.15
MOST_AUTOMATIC = 512  # devices: beyond, even simulated ones take many seconds
# Before so many seconds a compile is not cancelled: a new worker costs as much.
PATIENCE_S = 3.0
_UNTRACED = ("program", "target", "trace", "lower")


@dataclass(frozen=True)
class _Request:
    """The program of one revision, and its target."""

    revision: int
    target: str
    program: Program = field(compare=False)  # the revision says which it is


@dataclass(frozen=True, eq=False)
class StageResults:
    """The results on all stages, with the revision and the target that they are of.

    Attributes:
        plan, plan_revision: the propagated stage; None where there is none.
        report, report_revision, target: the partitioned and the compiled stage, and
            their target.
        not_run: why the partitioner does not run by itself; `""` where it does.
        program: what the report is of.
        running: the work that goes on: `"planning"`, `"partitioning"`, `"compiling"`
            or `""`.
    """

    plan: Plan | None = None
    plan_revision: int = -1
    report: Report | None = None
    report_revision: int = -1
    target: str = ""
    not_run: str = ""
    program: Program | None = None
    running: str = ""

    @property
    def mismatched(self) -> bool:
        """Whether plan and report are of two different programs."""
        return self.plan_revision != self.report_revision

    def collectives(self) -> tuple[tuple[Collective, ...] | None, ...]:
        """The collectives propagated, partitioned and compiled; None where not known."""
        planned = None
        if self.plan is not None and self.plan.ok:
            planned = self.plan.collectives
        if self.report is None:
            return planned, None, None
        return planned, self.report.partitioned, self.report.collectives

    def shown(self) -> tuple[Any, ...]:
        """What the page shows of them: equal where nothing changed."""
        # Plans and reports are large: the same ones are the same objects.
        numbers = self.plan_revision, self.report_revision, self.target, self.not_run
        return id(self.plan), id(self.report), *numbers


class Planner:
    """Plans every program of a session that settles, then runs the partitioner.

    Args:
        changed: called from the thread whenever `state` changes.
        cache: of executables.
        make_plan, partition: for tests; else Shardy and the compiler.
        settle_s: seconds without an edit before a plan begins.

    Attributes:
        state: the results so far.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        cache: ExecutableCache,
        make_plan: Callable[[Program], Plan] | None = None,
        partition: Callable[..., Report] | None = None,
        settle_s: float = SETTLE_S,
    ):
        self.state = StageResults()
        self._writing = threading.Lock()
        self._changed = changed
        self._make_plan = make_plan or plan_of
        self._partition = partition or partial(compiled, cache)
        self._plans = LatestWins[_Request](
            "shardviz-plan", self._plan, self._plan_failed, settle_s
        )
        self._compiles = LatestWins[_Request](
            "shardviz-partition", self._compile, self._compile_failed
        )
        self._requested: _Request | None = None

    def request(self, program: Program, revision: int, target: str) -> None:
        """Plans this program next, unless it was the last one requested. Never blocks."""
        request = _Request(revision, target, program)
        if self._requested != request:
            self._requested = request
            self._compiles.drop()
            self._plans.request(request)

    def plan_now(self, program: Program, revision: int, timeout: float) -> None:
        """Plans this program unless it is planned; waits at most `timeout` seconds."""
        requested = self._requested is not None and self._requested.revision == revision
        if self.state.plan_revision != revision and not requested:
            # Nobody asked for this revision, so the partitioner does not run after it.
            self._plans.request(_Request(revision, "", program))
        self._plans.wait(timeout)

    def take(
        self,
        report: Report | None,
        program: Any,
        revision: int,
        target: str,
        **also: Any,
    ) -> None:
        """Takes what a compile found, also while it still runs."""
        self._update(
            report=report,
            report_revision=revision,
            target=target,
            program=program,
            **also,
        )

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until no work is left; for scripts and tests."""
        # A plan requests its compile before its own thread ends.
        return self._plans.wait(timeout) and self._compiles.wait(timeout)

    def close(self) -> None:
        """Ends all work and its threads."""
        self._plans.close()
        self._compiles.close()

    def _plan(self, request: _Request, stop: Stop) -> None:
        if self.state.plan_revision != request.revision:
            self._update(running="planning")
            plan = self._make_plan(request.program)
            if stop():
                return
            self._update(plan=plan, plan_revision=request.revision)
        self._request_compile(request)

    def _plan_failed(self, request: _Request, error: Exception) -> None:
        program = request.program
        plan = Plan(program.name, program.mesh, error=failure(error, "propagate"))
        self._update(plan=plan, plan_revision=request.revision)
        self._request_compile(request)

    def _request_compile(self, request: _Request) -> None:
        """Lets the partitioner run on what is planned, or notes why it does not."""
        plan = self.state.plan
        not_run = why_not_automatic(request.program, request.target)
        # What cannot be traced cannot be compiled, for the same reason.
        if plan is not None and plan.error is not None:
            if plan.error.stage in _UNTRACED:
                not_run = wording.not_run("no plan")
        compiles = not not_run and request == self._requested
        self._update(not_run=not_run, running="partitioning" if compiles else "")
        if compiles:
            self._compiles.request(request)

    def _compile(self, request: _Request, stop: Stop) -> None:
        begun = time.monotonic()

        def cancelled() -> bool:
            late = time.monotonic() - begun > PATIENCE_S
            superseded = request != self._requested or stop()
            return self._compiles.closed or (superseded and late)

        def preview(report: Report) -> None:
            self._show(request, report, "compiling")

        report = self._partition(request.program, request.target, cancelled, preview)
        self._show(request, report, "")

    def _compile_failed(self, request: _Request, error: Exception) -> None:
        stopped = failure(error, "compile", refused="target")
        self._show(request, Report(request.program.name, "", error=stopped), "")

    def _show(self, request: _Request, report: Report, running: str) -> None:
        if request == self._requested and not self._compiles.closed:
            parts = request.program, request.revision, request.target
            self.take(report, *parts, running=running)

    def _update(self, **known: Any) -> None:
        with self._writing:  # several threads write
            self.state = replace(self.state, **known)
        if not self._plans.closed:
            self._changed()


def plan_of(program: Program) -> Plan:
    """The plan of a program, by Shardy."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.backend.shardy.build_plan import plan_program

    return plan_program(program)


def compiled(
    cache: ExecutableCache,
    program: Program,
    target: str,
    cancelled: Callable[[], bool],
    preview: Callable[[Report], None],
) -> Report:
    """The report of partitioner and compiler on a program."""
    from shardviz.core.backend.devices import give_back_freed
    from shardviz.core.backend.run.worker import run

    report = run.compile_program(
        program,
        target=target or None,
        cache=cache,
        cancelled=cancelled,
        preview=preview,
    )
    give_back_freed()  # the memory of the plan, too
    return report


def why_not_automatic(program: Program, target: str) -> str:
    """Why the partitioner waits for somebody to press Compile; `""` where it does not."""
    if hosts_size(target) is not None:
        return wording.not_run("hosts")
    if target == "attached":
        return wording.not_run("attached")
    if not is_simulated(target):
        return wording.not_run("described", target_title(target))
    if program.mesh.size > MOST_AUTOMATIC:
        return wording.not_run("too many", devices=program.mesh.size)
    return ""
