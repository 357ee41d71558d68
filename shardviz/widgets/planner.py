"""Planner: the propagated and the partitioned stage of the latest program, in the background.

After an edit settles, the program is planned: milliseconds, no devices. For simulated devices the
partitioner then runs, too. For described hardware that takes many seconds, so it runs only when
somebody presses Compile.
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
from shardviz.widgets.background import LatestWins, failure
from shardviz.widgets.menus import is_simulated, target_title

SETTLE_S = 0.15
MOST_AUTOMATIC = 512  # devices: beyond, even simulated ones take many seconds
PATIENCE_S = 3.0  # before this a compile is not cancelled: a new worker costs as much
_UNTRACED = ("program", "target", "trace", "lower")

MakePlan = Callable[[Program], Plan]
Partition = Callable[[Program, str, Callable[[], bool], Callable[[Report], None]], Report]


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
        plan: the last plan; `plan_revision` is the session's revision that it belongs to.
        report: of partitioner and compiler; None where they have not run.
        report_revision, report_target, program: what the report is of.
        stage: the running work: `"planning"`, `"partitioning"`, `"compiling"` or `""`.
        reason: why the partitioner does not run by itself; `""` where it does.

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
    reason: str = ""


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
        self._plans = LatestWins[PlanRequest]("shardviz-plan", self._plan, settle_s)
        self._compiles = LatestWins[PlanRequest]("shardviz-partition", self._compile)
        self._requested: tuple[int, str] | None = None

    def request(self, program: Program, revision: int, target: str) -> None:
        """Plans this program next, unless it was the last one requested. Never blocks."""
        if self._requested != (revision, target):
            self._requested = (revision, target)
            self._compiles.drop()
            self._plans.request(PlanRequest(program, revision, target))

    def plan_now(self, program: Program, revision: int, target: str, timeout: float) -> bool:
        """Plans this program unless it is planned, and does not run the partitioner.

        Returns:
            Whether there is a plan of it within `timeout` seconds.
        """
        if self.state.plan_revision != revision and self._requested != (revision, target):
            self._plans.request(PlanRequest(program, revision, target, only_plan=True))
        self._plans.wait(timeout)
        return self.state.plan_revision == revision

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until no work is left; for scripts and tests."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not (self._plans.wait(left) and self._compiles.wait(left)):
                return False
            if self._plans.wait(0.0):
                return True

    def close(self) -> None:
        """Ends all work and its threads."""
        self._plans.close()
        self._compiles.close()

    def _plan(self, request: PlanRequest, stop: Callable[[], bool]) -> None:
        program = request.program
        plan = self.state.plan
        if plan is None or self.state.plan_revision != request.revision:
            self._update(stage="planning")
            try:
                plan = self._make_plan(program)
            except Exception as error:  # noqa: BLE001  a thread must not end without a result
                plan = Plan(program.name, program.mesh, error=failure(error, "propagate"))
            if stop():
                return  # a later request is due
            self._update(plan=plan, plan_revision=request.revision)
        reason = why_not_automatic(program, request.target)
        # What cannot be traced cannot be compiled, for the same reason.
        if plan.error is not None and plan.error.stage in _UNTRACED:
            reason = "not run: there is no plan"
        compiles = not reason and not request.only_plan
        self._update(reason=reason, stage="partitioning" if compiles else "")
        if compiles:
            self._compiles.request(request)

    def _compile(self, request: PlanRequest, stop: Callable[[], bool]) -> None:
        begun = time.monotonic()
        program, revision, target = request.program, request.revision, request.target
        old = lambda: self._requested != (revision, target)  # noqa: E731

        def cancelled() -> bool:
            return self._compiles.closed or (
                (old() or stop()) and time.monotonic() - begun > PATIENCE_S
            )

        def show(report: Report, stage: str) -> None:
            if not old() and not self._compiles.closed:
                self._update(
                    report=report,
                    report_revision=revision,
                    report_target=target,
                    program=program,
                    stage=stage,
                )

        try:
            report = self._partition(program, target, cancelled, lambda r: show(r, "compiling"))
        except Exception as error:  # noqa: BLE001  a thread must not end without a result
            report = Report(program.name, "", error=failure(error, "compile", refused="target"))
        show(report, "")

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
    from shardviz.core.backend.worker import run

    return run.compile_program(
        program, target=target or None, cache=cache, cancelled=cancelled, preview=preview
    )


def why_not_automatic(program: Program, target: str) -> str:
    """Why the partitioner runs only when somebody presses Compile; `""` where it does not wait.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> why_not_automatic(Program(abs, (), make_mesh(data=8)), "tpu:v5e:2x4")
    'press Compile: the compiler for TPU v5e 2×4 takes a while'
    >>> why_not_automatic(Program(abs, (), make_mesh(data=8)), "")
    ''
    """
    if not is_simulated(target):
        if target == "attached":
            return "press Compile to run the compiler of the attached devices"
        return f"press Compile: the compiler for {target_title(target)} takes a while"
    if program.mesh.size > MOST_AUTOMATIC:
        return (
            f"an estimate only: {program.mesh.size:,} devices are many to simulate; choose"
            " described hardware, or press Compile"
        )
    return ""
