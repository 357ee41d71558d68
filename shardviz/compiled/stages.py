"""Stages: a program's four stages side by side, and the changes between them.

requested     the argument layouts that the user requested
propagated    Shardy's Plan; its collectives are an estimate
partitioned   the collectives that XLA's partitioner added
compiled      the program that runs
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from shardviz.base.collective import Collective, sent_in_all_text
from shardviz.base.display import Displayed, Fact, explanation
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import listed, shown, suggestion
from shardviz.compiled.comparison import Comparison, compare
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import Roofline, with_operations
from shardviz.plans.plan import Plan
from shardviz.programs.failed import CanFail, lacking_after_errors
from shardviz.programs.failure import Failure
from shardviz.programs.program import Program

STAGES = ("requested", "propagated", "partitioned", "compiled")


@lacking_after_errors(collectives=("seconds",))
@dataclass(frozen=True, eq=False, repr=False)
class Stage(CanFail, Fact):
    """One of a program's four stages.

    If the stage failed, `collectives` raises the error.

    Attributes:
        name: one of STAGES.
        state: `"known"`, `"not yet"` (not computed so far), `"nothing left"` (XLA kept
            no module from this stage) or `"failed"`.
        seconds: seconds until this stage finished; None if unknown.
        collectives: the collectives at this stage; None if unknown.
        about: the Program of the requested stage, the Plan of the propagated stage, or
            the target of the partitioned and the compiled stage; for a failed stage,
            the error.

    >>> c = Collective("all-reduce", ("data",), 1024, trips=12, group_size=2)
    >>> Stage("compiled", "known", 0.5, (c, c), "cpu × 8").sum
    '2 all-reduce · 24 KiB sent'
    """

    _omits = ("about",)

    name: str
    state: str
    seconds: float | None = None
    collectives: tuple[Collective, ...] | None = None
    about: Program | Plan | Failure | Fact | ShardvizError | str | None = None

    @property
    def error(self) -> Any:
        """Why the stage failed, or None."""
        return self.about if self.state == "failed" else None

    @property
    def without_error(self) -> Stage:
        """The stage, with None in place of values that a failed stage does not have."""
        return self if self.error is None else replace(self, state="not yet")

    @property
    def sum(self) -> str:
        """The number of collectives by kind, and the sent bytes; `""` if unknown."""
        collectives = self.without_error.collectives
        if collectives is None:
            return ""
        if not collectives:
            return "no collectives"
        kinds = Counter(c.kind for c in collectives)
        # Kinds appear in program order, so that two stages are easy to compare.
        counted = [f"{n} {kind}" for kind, n in kinds.items()]
        return f"{' + '.join(counted)} · {sent_in_all_text(collectives)} sent"

    def __repr__(self) -> str:
        return f"Stage({self.name}: {self.sum or self.state})"


@dataclass(frozen=True, repr=False)
class Stages(Displayed):
    """A program at each of its four stages.

    Attributes:
        program: the program.
        plan: Shardy's plan, for the propagated stage; None if not computed yet.
        report: the compiler's report, for the partitioned and compiled stages; None
            before a compile.

    >>> import shardviz as sv
    >>> stages = sv.Stages(sv.Program(abs, (), sv.mesh(data=2)))
    >>> stages.compiled.state
    'not yet'
    """

    _adds = ("requested", "propagated", "partitioned", "compiled")

    program: Program
    plan: Plan | None = None
    report: Report | None = None

    @property
    def requested(self) -> Stage:
        """The requested layouts."""
        problems = self.program.problems
        # The first problem is enough, because it blocks all later stages.
        if problems:
            return Stage("requested", "failed", about=problems[0])
        return Stage("requested", "known", about=self.program)

    @property
    def propagated(self) -> Stage:
        """Shardy's plan; its collectives are an estimate."""
        plan = self.plan
        if plan is None:
            return Stage("propagated", "not yet")
        if plan.error is not None:
            return Stage("propagated", "failed", plan.seconds, about=plan.error)
        return Stage("propagated", "known", plan.seconds, plan.collectives, plan)

    @property
    def partitioned(self) -> Stage:
        """The collectives that XLA's partitioner added."""
        report = self.report
        if report is None or report.without_error.partitioned is None:
            # A cached program is compiled but has no partitioned module.
            if self.compiled.state == "known":
                return self._unknown("partitioned", "nothing left")
            return self._unknown("partitioned", "not yet")
        report = report.without_error
        seconds, moves = report.partition_s, report.partitioned
        return Stage("partitioned", "known", seconds, moves, report.target)

    @property
    def compiled(self) -> Stage:
        """The program that runs."""
        report = self.report
        if report is None or report.without_error.collectives is None:
            return self._unknown("compiled", "not yet")
        report = report.without_error
        # A program from the cache was compiled earlier.
        seconds = None if report.cache_hit else report.compile_s
        return Stage("compiled", "known", seconds, report.collectives, report.target)

    def _unknown(self, name: str, state: str) -> Stage:
        if self.report is not None and self.report.error is not None:
            return Stage(name, "failed", about=self.report.error)
        return Stage(name, state)

    @property
    def roofline(self) -> Roofline | None:
        """The least times of compute, memory, collectives and operations, if known.

        Raises:
            ShardvizError: if the compile failed.
        """
        if self.report is not None and self.report.roofline is None:
            return None
        return with_operations(self.report, self.plan)

    @property
    def all(self) -> tuple[Stage, ...]:
        """The four stages in order."""
        return self.requested, self.propagated, self.partitioned, self.compiled

    def stage(self, name: str) -> Stage:
        """Returns one stage by name.

        Raises:
            ProgramError: if no stage has this name.
        """
        for stage in self.all:
            if stage.name == name:
                return stage
        raise ProgramError(f"{shown(name)} is not a stage.{suggestion(name, STAGES)}")

    def between(self, before: str, after: str) -> Comparison:
        """Compares the collectives of two stages.

        Raises:
            ProgramError: if a stage doesn't exist or its collectives are unknown.
        """
        sides: list[tuple[Collective, ...]] = []
        for name in (before, after):
            side = self.stage(name)
            collectives = side.without_error.collectives
            if collectives is None:
                alternatives = ""
                if self._known:
                    alternatives = f" Known are {listed(self._known)}."
                raise ProgramError(
                    f"The collectives of {side.name} are not known: {side}{alternatives}"
                )
            sides.append(collectives)
        plan = self.plan if before == "propagated" else None
        return compare(sides[0], sides[1], (before, after), plan)

    @property
    def _known(self) -> list[str]:
        """The names of the stages whose collectives are known."""
        stages = [stage.without_error for stage in self.all]
        return [stage.name for stage in stages if stage.collectives is not None]

    def __str__(self) -> str:
        return explanation(self)

    def __repr__(self) -> str:
        stages = ", ".join(self._known) or "requested only"
        return f"Stages({self.program.name}: {stages})"
