"""The four rungs of a program side by side, and what changed between two. Pure data; no jax.

requested     what was written: the layouts of the arguments
propagated    what Shardy made of it: a Plan, whose collectives are an estimate
partitioned   what XLA's partitioner put in
compiled      what runs
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError, bytes_text, listed, plural, shown, suggestion
from shardviz.core.program.costs.bounds import Roofline
from shardviz.core.program.costs.roofline import with_operations
from shardviz.core.program.hlo.comparison import (
    CHANGES,
    Change,
    Comparison,
    compare,
    inherited,
    total_bytes,
)
from shardviz.core.program.program import Program
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.report import Collective, Report

__all__ = ["CHANGES", "RUNGS", "Change", "Comparison", "Rung", "Rungs", "compare"]

RUNGS = ("requested", "propagated", "partitioned", "compiled")


@dataclass(frozen=True)
class Rung:
    """One of the four views of a program.

    Attributes:
        name: one of RUNGS.
        seconds: how long it took to get there; None where it was not made.
        collectives: what it communicates; None where that is not known on this rung.
        words: its state in one sentence.

    >>> c = Collective("all-reduce", ("data",), 1024, trips=12, in_loop=True)
    >>> Rung("compiled", 0.5, (c, c), "What runs.").sum
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
class Rungs(Displayed):
    """A program on its four rungs.

    Attributes:
        program: the program.
        plan: the propagated rung; None where there is none.
        report: the partitioned and the compiled rung; None where it was not compiled.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> rungs = Rungs(Program(abs, (), make_mesh(data=2)))
    >>> rungs.compiled.words
    'Not compiled yet.'
    """

    program: Program
    plan: Plan | None = None
    report: Report | None = None

    @property
    def requested(self) -> Rung:
        """What was asked for."""
        problems = self.program.problems
        words = problems[0] if problems else ""
        arrays = plural(len(self.program.arrays), "array")
        return Rung("requested", None, None, words or f"{arrays} on {self.program.mesh}.")

    @property
    def propagated(self) -> Rung:
        """What Shardy made of it; its collectives are an estimate."""
        plan = self.plan
        if plan is None or plan.error:
            words = str(plan.error) if plan is not None else "Not planned yet."
            return Rung("propagated", None if plan is None else plan.seconds, None, words)
        values = plural(len(plan.ops), "value")
        words = f"{values}; the collectives are Shardy's plan, an estimate."
        return Rung("propagated", plan.seconds, plan.collectives, words)

    @property
    def partitioned(self) -> Rung:
        """What XLA's partitioner put in."""
        report = self.report
        if report is None or report.partitioned is None:
            why = f"{report.error}" if report is not None and report.error else "Not asked yet."
            return Rung("partitioned", None, None, why)
        words = f"What XLA's partitioner put in, for {report.target}."
        return Rung("partitioned", report.partition_s, report.partitioned, words)

    @property
    def compiled(self) -> Rung:
        """What runs."""
        report = self.report
        if report is None or report.collectives is None:
            why = f"{report.error}" if report is not None and report.error else "Not compiled yet."
            return Rung("compiled", None, None, why)
        words = f"What runs on {report.target}."
        return Rung("compiled", report.compile_s, report.collectives, words)

    @property
    def roofline(self) -> Roofline | None:
        """The least time of every part and of every operation; None where no figures are known."""
        return with_operations(self.report, self.plan)

    @property
    def all(self) -> tuple[Rung, ...]:
        """The four rungs in order."""
        return tuple(self.rung(name) for name in RUNGS)

    def rung(self, name: str) -> Rung:
        """One rung by name.

        Raises:
            ProgramError: if there is no such rung.
        """
        if name not in RUNGS:
            raise ProgramError(f"{shown(name)} is no rung.{suggestion(name, RUNGS)}")
        return getattr(self, name)

    def between(self, before: str, after: str) -> Comparison:
        """What changed from one rung to another.

        Nobody requests a collective, so from the first rung on all of them are new, each with its
        cause.

        Raises:
            ProgramError: if there is no such rung, or its collectives are not known.
        """
        sides = [self.rung(before), self.rung(after)]
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
            " plan.why(value) tells where each came from.",
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """Each rung in one line, and between two neighbours what changed."""
        lines = [_line(self.requested)]
        for last, rung in itertools.pairwise(self.all):
            if last.collectives is not None and rung.collectives is not None:
                lines.append(f"  {self.between(last.name, rung.name).short}")
            lines.append(_line(rung))
        return tuple(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        known = [r.name for r in self.all if r.collectives is not None]
        return f"Rungs({self.program.name}: {', '.join(known) or 'requested only'})"


def _line(rung: Rung) -> str:
    time = "" if rung.seconds is None else f" in {_seconds(rung.seconds)}"
    return f"{rung.name}{time}: {rung.sum or rung.words}"


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
