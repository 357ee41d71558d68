"""The four stages of a program side by side, and what changed between two of them.

requested     the layouts of the arguments, as requested
propagated    what Shardy made of them: a Plan, whose collectives are an estimate
partitioned   the collectives that XLA's partitioner added
compiled      the program that runs
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError
from shardviz.core.format import bytes_text, listed, plural, shown, suggestion
from shardviz.core.program.comparison import Comparison, compare, inherited, total_bytes
from shardviz.core.program.plan import Plan
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report
from shardviz.core.program.roofline import Roofline, with_operations

STAGES = ("requested", "propagated", "partitioned", "compiled")


@dataclass(frozen=True)
class Stage:
    """One of the four views of a program.

    Attributes:
        name: one of STAGES.
        seconds: how long it took to get there; None where it was not made.
        collectives: what it communicates; None where that is not known on this stage.
        words: its state in one sentence.

    >>> c = Collective("all-reduce", ("data",), 1024, trips=12, in_loop=True)
    >>> Stage("compiled", 0.5, (c, c), "What runs.").sum
    '2 all-reduce · 24 KiB'
    """

    name: str
    seconds: float | None
    collectives: tuple[Collective, ...] | None
    words: str

    @property
    def bytes_per_device(self) -> int | None:
        """The bytes of its collectives, each loop counted as often as it runs."""
        return None if self.collectives is None else total_bytes(self.collectives)

    @property
    def sum(self) -> str:
        """Its collectives counted by kind, and their bytes; `""` where they are not known."""
        if self.collectives is None:
            return ""
        kinds = Counter(c.kind for c in self.collectives)
        counted = " + ".join(f"{n} {kind}" for kind, n in kinds.items())
        return (
            f"{counted} · {bytes_text(total_bytes(self.collectives))}"
            if counted
            else "no collectives"
        )


@dataclass(frozen=True, repr=False)
class Stages(Displayed):
    """A program on its four stages.

    Attributes:
        program: the program.
        plan: the propagated stage; None where there is none.
        report: the partitioned and the compiled stage; None where it was not compiled.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> stages = Stages(Program(abs, (), make_mesh(data=2)))
    >>> stages.compiled.words
    'Not compiled yet.'
    """

    program: Program
    plan: Plan | None = None
    report: Report | None = None

    @property
    def requested(self) -> Stage:
        """The layouts that were requested."""
        problems = self.program.problems
        words = problems[0] if problems else ""
        arrays = plural(len(self.program.arrays), "array")
        return Stage("requested", None, None, words or f"{arrays} on {self.program.mesh}.")

    @property
    def propagated(self) -> Stage:
        """What Shardy made of it; its collectives are an estimate."""
        plan = self.plan
        if plan is None or plan.error:
            words = str(plan.error) if plan is not None else "Not planned yet."
            return Stage("propagated", None if plan is None else plan.seconds, None, words)
        values = plural(len(plan.ops), "value")
        words = f"{values}; the collectives are Shardy's plan, an estimate."
        return Stage("propagated", plan.seconds, plan.collectives, words)

    @property
    def partitioned(self) -> Stage:
        """What XLA's partitioner put in."""
        report = self.report
        if report is None or report.partitioned is None:
            compiled = report is not None and report.collectives is not None
            otherwise = "XLA left no text of its partitioner." if compiled else "Not asked yet."
            return self._unknown("partitioned", otherwise)
        words = f"What XLA's partitioner put in, for {report.target}."
        return Stage("partitioned", report.partition_s, report.partitioned, words)

    @property
    def compiled(self) -> Stage:
        """What runs."""
        report = self.report
        if report is None or report.collectives is None:
            return self._unknown("compiled", "Not compiled yet.")
        words = f"What runs on {report.target}."
        return Stage("compiled", report.compile_s, report.collectives, words)

    def _unknown(self, name: str, otherwise: str) -> Stage:
        failed = self.report is not None and self.report.error
        return Stage(name, None, None, str(failed or otherwise))

    @property
    def roofline(self) -> Roofline | None:
        """The least time of every part and of every operation; None where no figures are known."""
        return with_operations(self.report, self.plan)

    @property
    def all(self) -> tuple[Stage, ...]:
        """The four stages in order."""
        return tuple(self.stage(name) for name in STAGES)

    def stage(self, name: str) -> Stage:
        """One stage by name.

        Raises:
            ProgramError: if there is no such stage.
        """
        if name not in STAGES:
            raise ProgramError(f"{shown(name)} is no stage.{suggestion(name, STAGES)}")
        return getattr(self, name)

    def between(self, before: str, after: str) -> Comparison:
        """What changed from one stage to another.

        Nobody requests a collective, so from the first stage on all of them are new, each with its
        cause.

        Raises:
            ProgramError: if there is no such stage, or its collectives are not known.
        """
        sides = [self.stage(before), self.stage(after)]
        for side in sides:
            if side.collectives is None and side.name != "requested":
                known = [r.name for r in self.all if r.collectives is not None]
                has = f" Known are {listed(known)}." if known else ""
                raise ProgramError(
                    f"The collectives of {side.name} are not known: {side.words}{has}"
                )
        old, new = (side.collectives or () for side in sides)
        if before == "requested" and self.plan is not None:
            new = inherited(self.plan.collectives, new)
        found = compare(old, new, (before, after))
        return replace(found, notes=self._spread()) if before == "requested" else found

    def _spread(self) -> tuple[str, ...]:
        """How far the axes went from the arguments, in a sentence."""
        if self.plan is None or self.plan.error is not None:
            return ()
        made = [op for op in self.plan.ops if op.kind != "argument"]
        split = sum(1 for op in made if op.spec.axes)
        return (
            f"{split:,} of {plural(len(made), 'value')} that the program makes got axes:"
            " plan.why(value) says where each came from.",
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """Each stage in one line, and between two neighbours what changed."""
        lines = [_line(self.requested)]
        for last, stage in itertools.pairwise(self.all):
            if last.collectives is not None and stage.collectives is not None:
                lines.append(f"  {self.between(last.name, stage.name).short}")
            lines.append(_line(stage))
        return tuple(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        known = [r.name for r in self.all if r.collectives is not None]
        return f"Stages({self.program.name}: {', '.join(known) or 'requested only'})"


def _line(stage: Stage) -> str:
    time = "" if stage.seconds is None else f" in {_seconds(stage.seconds)}"
    return f"{stage.name}{time}: {stage.sum or stage.words}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
