"""Planner: the propagated and the partitioned stage of the latest program, in the background.

After an edit settles, the program is planned: milliseconds, no devices. Then the partitioner is
asked, where that is quick: for simulated devices. What a described target says takes many seconds
of work, so it waits for somebody to press Compile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.program.cache import ExecutableCache
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Failure, Report
from shardviz.widgets.background import LatestWins
from shardviz.widgets.menus import is_simulated, target_title

SETTLE_S = 0.15
MOST_AUTOMATIC = 512  # devices: beyond, even simulated ones take many seconds
PATIENCE_S = 3.0  # a compile that is nearly done is worth more than a fresh worker
_UNTRACED = ("program", "target", "trace", "lower")

MakePlan = Callable[[Program], Plan]
Partition = Callable[[Program, str, Callable[[], bool], Callable[[Report], None]], Report]


@dataclass(frozen=True)
class PlanRequest:
    """A program as it stood at one revision, and what it is compiled for.

    Attributes:
        alone: whether a plan is all that is wanted, and no partitioner is asked.
    """

    program: Program
    revision: int
    target: str
    alone: bool = False


@dataclass(frozen=True)
class PlannerAnswer:
    """What is known of the latest program so far.

    Attributes:
        plan: the last plan; `plan_revision` is the session's revision that it belongs to.
        report: the last that partitioner and compiler said; None where nobody asked.
        report_revision, report_target, program: what the report is of, and for.
        stage: what is under way: `"planning"`, `"partitioning"`, `"compiling"` or `""`.
        reason: why the partitioner is not asked by itself; `""` where it is.

    >>> PlannerAnswer().plan is None, PlannerAnswer().stage
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
    """Follows a session: plans every program that settles, then asks the partitioner.

    Args:
        changed: called from the thread whenever `answer` changes.
        cache: where executables are kept.
        make_plan, partition: what to call; the real ones where none are given.
        settle_s: seconds without an edit before a plan begins.

    Attributes:
        answer: what is known so far.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        cache: ExecutableCache,
        make_plan: MakePlan | None = None,
        partition: Partition | None = None,
        settle_s: float = SETTLE_S,
    ):
        self.answer = PlannerAnswer()
        self._noting = threading.Lock()
        self._changed = changed
        self._make_plan = make_plan or plan_of
        self._partition = partition or (
            lambda program, target, cancelled, preview: compiled(
                program, target, cache, cancelled, preview
            )
        )
        self._plans = LatestWins[PlanRequest]("shardviz-plan", self._plan, settle_s)
        self._compiles = LatestWins[PlanRequest]("shardviz-partition", self._compile)
        self._asked: tuple[int, str] | None = None

    def ask(self, program: Program, revision: int, target: str) -> None:
        """Plans this program next, unless it was the last one asked for. Never blocks."""
        if self._asked != (revision, target):
            self._asked = (revision, target)
            self._compiles.drop()
            self._plans.ask(PlanRequest(program, revision, target))

    def plan_now(self, program: Program, revision: int, target: str, timeout: float) -> bool:
        """Plans this program unless it is planned, and asks no partitioner about it.

        Returns:
            Whether there is a plan of it within `timeout` seconds.
        """
        if self.answer.plan_revision != revision and self._asked != (revision, target):
            self._plans.ask(PlanRequest(program, revision, target, alone=True))
        self._plans.wait(timeout)
        return self.answer.plan_revision == revision

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until nothing is under way; for scripts and tests."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not (self._plans.wait(left) and self._compiles.wait(left)):
                return False
            if self._plans.wait(0.0):
                return True

    def close(self) -> None:
        """Ends what is under way; no thread stays behind."""
        self._plans.close()
        self._compiles.close()

    def _plan(self, wanted: PlanRequest, stop: Callable[[], bool]) -> None:
        if self.answer.plan is None or self.answer.plan_revision != wanted.revision:
            self._note(stage="planning")
            plan = self._safely_planned(wanted.program)
            if stop():
                return  # a newer one is due, and its answer counts
            self._note(plan=plan, plan_revision=wanted.revision)
        assert self.answer.plan is not None
        reason = why_not_by_itself(wanted.program, wanted.target)
        failed = self.answer.plan.error
        # What cannot be traced cannot be compiled, for the same reason.
        if failed is not None and failed.stage in _UNTRACED:
            reason = "not asked: there is no plan"
        ask = not reason and not wanted.alone
        self._note(reason=reason, stage="partitioning" if ask else "")
        if ask:
            self._compiles.ask(wanted)

    def _safely_planned(self, program: Program) -> Plan:
        try:
            return self._make_plan(program)
        except ShardvizError as error:
            failure = Failure("program", str(error))
        except Exception as error:  # noqa: BLE001  a thread must not end without an answer
            failure = Failure("propagate", f"{type(error).__name__}: {error}")
        return Plan(program.name, program.mesh, error=failure)

    def _compile(self, wanted: PlanRequest, stop: Callable[[], bool]) -> None:
        begun = time.monotonic()
        old = lambda: self._asked != (wanted.revision, wanted.target)  # noqa: E731

        def cancelled() -> bool:
            return self._compiles.closed or (
                (old() or stop()) and time.monotonic() - begun > PATIENCE_S
            )

        def show(report: Report, stage: str) -> None:
            if not old() and not self._compiles.closed:
                self._note(
                    report=report,
                    report_revision=wanted.revision,
                    report_target=wanted.target,
                    program=wanted.program,
                    stage=stage,
                )

        try:
            report = self._partition(
                wanted.program, wanted.target, cancelled, lambda r: show(r, "compiling")
            )
        except ShardvizError as error:
            report = Report(wanted.program.name, "", error=Failure("target", str(error)))
        except Exception as error:  # noqa: BLE001  as above
            words = f"{type(error).__name__}: {error}"
            report = Report(wanted.program.name, "", error=Failure("compile", words))
        show(report, "")

    def _note(self, **known: Any) -> None:
        with self._noting:  # two threads write
            self.answer = replace(self.answer, **known)
        if not self._plans.closed:
            self._changed()


def plan_of(program: Program) -> Plan:
    """The plan of a program, by Shardy."""
    # Here, and not at the top: the Explorer opens and edits without jax.
    from shardviz.core.backend.shardy.build_plan import plan_program

    return plan_program(program)


def compiled(
    program: Program,
    target: str,
    cache: ExecutableCache,
    cancelled: Callable[[], bool],
    preview: Callable[[Report], None],
) -> Report:
    """What partitioner and compiler say of a program."""
    from shardviz.core.backend.worker import run

    return run.compile_program(
        program, target=target or None, cache=cache, cancelled=cancelled, preview=preview
    )


def why_not_by_itself(program: Program, target: str) -> str:
    """Why the partitioner waits for somebody to press Compile; `""` where it does not.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> why_not_by_itself(Program(abs, (), make_mesh(data=8)), "tpu:v5e:2x4")
    'press Compile: the compiler for TPU v5e 2×4 takes a while'
    >>> why_not_by_itself(Program(abs, (), make_mesh(data=8)), "")
    ''
    """
    if not is_simulated(target):
        if target == "attached":
            return "press Compile to ask the attached devices' compiler"
        return f"press Compile: the compiler for {target_title(target)} takes a while"
    if program.mesh.size > MOST_AUTOMATIC:
        return (
            f"an estimate only: {program.mesh.size:,} devices are many to simulate; choose"
            " described hardware, or press Compile"
        )
    return ""
