"""Planner: plans every program of a session that settles, then runs the partitioner.

A plan takes milliseconds and no devices. For simulated devices the partitioner then
runs, too; for described hardware that takes many seconds, so it runs only when somebody
presses Compile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.widgets.background import LatestWins, Stop, failure
from shardviz.widgets.targets import hosts_size, is_simulated

SETTLE_S = 0.15
MOST_AUTOMATIC = 512  # devices: beyond, even simulated ones take many seconds
# Before so many seconds a compile is not cancelled: a new worker costs as much.
PATIENCE_S = 3.0
_UNTRACED = ("program", "target", "trace", "lower")

MakePlan = Callable[[Program], Plan]
Partition = Callable[
    [Program, str, Callable[[], bool], Callable[[Report], None]], Report
]


@dataclass(frozen=True)
class NotRun:
    """Why the partitioner does not run by itself.

    Attributes:
        code: `hosts`, `attached`, `described`, `too many`, `no plan` or `failed`.
        target: the described target, checked.
        devices: how many there would be to simulate.
        detail: what failed.
    """

    code: str
    target: str = ""
    devices: int = 0
    detail: str = ""


@dataclass(frozen=True)
class PlanRequest:
    """The program of one revision, and its target.

    Attributes:
        only_plan: whether the partitioner does not run after it.
    """

    program: Program
    revision: int
    target: str
    only_plan: bool = False


@dataclass(frozen=True)
class PlannerState:
    """The results for the latest program so far.

    Attributes:
        plan: the last plan; `plan_revision` is the session's revision that it is of.
        report: of partitioner and compiler; None where they have not run.
        report_revision, report_target, program: what the report is of.
        stage: the running work: `"planning"`, `"partitioning"`, `"compiling"` or `""`.
        not_run: why the partitioner does not run by itself; None where it does.

    >>> PlannerState().plan is None, PlannerState().stage
    (True, '')
    """

    plan: Plan | None = None
    plan_revision: int = -1
    report: Report | None = None
    report_revision: int = -1
    report_target: str = ""
    program: Program | None = None
    stage: str = ""
    not_run: NotRun | None = None


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
        make_plan: MakePlan | None = None,
        partition: Partition | None = None,
        settle_s: float = SETTLE_S,
    ):
        self.state = PlannerState()
        self._writing = threading.Lock()
        self._changed = changed
        self._make_plan = make_plan or plan_of
        self._partition = partition or partial(compiled, cache)
        self._plans = LatestWins[PlanRequest](
            "shardviz-plan", self._plan, self._plan_failed, settle_s
        )
        self._compiles = LatestWins[PlanRequest](
            "shardviz-partition", self._compile, self._compile_failed
        )
        self._requested: tuple[int, str] | None = None

    def request(self, program: Program, revision: int, target: str) -> None:
        """Plans this program next, unless it was the last one requested. Never blocks."""
        if self._requested != (revision, target):
            self._requested = (revision, target)
            self._compiles.drop()
            self._plans.request(PlanRequest(program, revision, target))

    def plan_now(
        self, program: Program, revision: int, target: str, timeout: float
    ) -> bool:
        """Plans this program unless it is planned, and does not run the partitioner.

        Returns:
            Whether there is a plan of it within `timeout` seconds.
        """
        requested = self._requested == (revision, target)
        if self.state.plan_revision != revision and not requested:
            self._plans.request(PlanRequest(program, revision, target, only_plan=True))
        self._plans.wait(timeout)
        return self.state.plan_revision == revision

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until no work is left; for scripts and tests."""
        begun = time.monotonic()
        while True:
            left = timeout
            if timeout is not None:
                left = max(0.0, timeout - (time.monotonic() - begun))
            if not (self._plans.wait(left) and self._compiles.wait(left)):
                return False
            # A plan that ended meanwhile may have requested a compile.
            if self._plans.wait(0.0) and self._compiles.wait(0.0):
                return True

    def close(self) -> None:
        """Ends all work and its threads."""
        self._plans.close()
        self._compiles.close()

    def _plan(self, request: PlanRequest, stop: Stop) -> None:
        if self.state.plan is None or self.state.plan_revision != request.revision:
            self._update(stage="planning")
            plan = self._make_plan(request.program)
            if stop():
                return
            self._update(plan=plan, plan_revision=request.revision)
        self._request_compile(request)

    def _plan_failed(self, request: PlanRequest, error: Exception) -> None:
        program = request.program
        if self.state.plan_revision == request.revision:
            not_run = NotRun("failed", detail=failure(error, "").message)
            self._update(stage="", not_run=not_run)
            return
        plan = Plan(program.name, program.mesh, error=failure(error, "propagate"))
        self._update(plan=plan, plan_revision=request.revision)
        self._request_compile(request)

    def _request_compile(self, request: PlanRequest) -> None:
        """Lets the partitioner run on what is planned, or notes why it does not."""
        plan = self.state.plan
        not_run = why_not_automatic(request.program, request.target)
        # What cannot be traced cannot be compiled, for the same reason.
        if plan is not None and plan.error is not None:
            if plan.error.stage in _UNTRACED:
                not_run = NotRun("no plan")
        compiles = not_run is None and not request.only_plan
        self._update(not_run=not_run, stage="partitioning" if compiles else "")
        if compiles:
            self._compiles.request(request)

    def _compile(self, request: PlanRequest, stop: Stop) -> None:
        begun = time.monotonic()

        def cancelled() -> bool:
            late = time.monotonic() - begun > PATIENCE_S
            superseded = self._is_old(request) or stop()
            return self._compiles.closed or (superseded and late)

        def preview(report: Report) -> None:
            self._show(request, report, "compiling")

        report = self._partition(request.program, request.target, cancelled, preview)
        self._show(request, report, "")

    def _compile_failed(self, request: PlanRequest, error: Exception) -> None:
        stopped = failure(error, "compile", refused="target")
        self._show(request, Report(request.program.name, "", error=stopped), "")

    def _is_old(self, request: PlanRequest) -> bool:
        return self._requested != (request.revision, request.target)

    def _show(self, request: PlanRequest, report: Report, stage: str) -> None:
        if self._is_old(request) or self._compiles.closed:
            return
        self._update(
            report=report,
            report_revision=request.revision,
            report_target=request.target,
            program=request.program,
            stage=stage,
        )

    def _update(self, **known: Any) -> None:
        with self._writing:  # two threads write
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


def why_not_automatic(program: Program, target: str) -> NotRun | None:
    """Why the partitioner waits for somebody to press Compile; None where it does not.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> program = Program(abs, (), make_mesh(data=8))
    >>> why_not_automatic(program, "tpu:v5e:2x4").code, why_not_automatic(program, "")
    ('described', None)
    """
    if hosts_size(target) is not None:
        return NotRun("hosts")
    if not is_simulated(target):
        code = "attached" if target == "attached" else "described"
        return NotRun(code, target=target)
    if program.mesh.size > MOST_AUTOMATIC:
        return NotRun("too many", devices=program.mesh.size)
    return None
