"""Changed programs that were tried: candidates, and why others are refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from shardviz.advise.edits import Edit
from shardviz.base.collective import Collective
from shardviz.base.display import Displayed, Fact, sentence
from shardviz.compiled.checks import Check
from shardviz.compiled.report import Report, peak_bytes
from shardviz.hardware.chips import CHIPS, Chip
from shardviz.programs.program import Program


@dataclass(frozen=True)
class Refusal(Fact):
    """A change that was tried and is not proposed; each subclass is a reason.

    Attributes:
        code: the reason, such as `"values differ"`; the same for all of a class.
        edits: what was changed.

    >>> ValuesDiffer((), "output[0] differs").code
    'values differ'
    """

    code: ClassVar[str] = ""
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class NotMade(Refusal):
    """The edits do not fit the program.

    Attributes:
        reason: the error that they raised.
    """

    code: ClassVar[str] = "not made"
    reason: str


@dataclass(frozen=True)
class Misfit(NotMade):
    """The edits contradict the program, as a spec that does not divide a dimension."""


@dataclass(frozen=True)
class DoesNotCompile(Refusal):
    """The changed program cannot be planned or compiled.

    Attributes:
        reason: the error of the plan or the compile.
    """

    code: ClassVar[str] = "does not compile"
    reason: str


@dataclass(frozen=True)
class NoRoom(Refusal):
    """The changed program does not fit the devices of the target.

    Attributes:
        reason: what it needs and what there is, or the compiler's error.
        needed: the bytes it needs per device; None if they are unknown.
    """

    code: ClassVar[str] = "no memory"
    reason: str
    needed: int | None = None


@dataclass(frozen=True)
class ValuesDiffer(Refusal):
    """The results differ from those of the original.

    Attributes:
        evidence: which result differs, and by how much.
    """

    code: ClassVar[str] = "values differ"
    evidence: str


@dataclass(frozen=True)
class SameCollective(Refusal):
    """The collective is still there, with as many bytes."""

    code: ClassVar[str] = "same collective"


@dataclass(frozen=True)
class MovedElsewhere(Refusal):
    """Other collectives send at least what the edit saves.

    Attributes:
        sent, sent_before: the bytes each device sends, and sent in the original.
    """

    code: ClassVar[str] = "moved elsewhere"
    sent: int
    sent_before: int


@dataclass(frozen=True)
class HardlyLess(Refusal):
    """The edit saves less than 1 % of the bytes.

    Attributes:
        sent, sent_before: the bytes each device sends, and sent in the original.
    """

    code: ClassVar[str] = "hardly less"
    sent: int
    sent_before: int


@dataclass(frozen=True)
class MoreWork(Refusal):
    """Each device computes much more."""

    code: ClassVar[str] = "more work"


@dataclass(frozen=True)
class MoreTime(Refusal):
    """The least time on the target's chips rises.

    Attributes:
        seconds, seconds_before: the least times of the changed program and the original.
    """

    code: ClassVar[str] = "more time"
    seconds: float
    seconds_before: float


@dataclass(frozen=True)
class NoLessMemory(Refusal):
    """The peak of memory is no lower.

    Attributes:
        needed, needed_before: the peaks per device of the changed program and of the
            one it was compared with; None if the compiler reported none.
    """

    code: ClassVar[str] = "no less memory"
    needed: int | None
    needed_before: int | None


@dataclass(frozen=True)
class NoLessPlanned(Refusal):
    """The plan promises no lower peak, so the changed program was not compiled."""

    code: ClassVar[str] = "no less planned"


@dataclass(frozen=True, eq=False, repr=False)
class Candidate(Displayed):
    """A changed program, compiled.

    Attributes:
        edits: what was changed.
        program: the changed program. It can be planned, compiled, run and explored.
        report: its compile.
        before: the compile of the original, for the same target.
        values: its results, compared with those of the original on simulated devices;
            `.ok` is None if they could not be compared. None if they were not.

    >>> from shardviz.advise.edits import Donate
    >>> from shardviz.base.mesh import make_mesh
    >>> program = Program(abs, (), make_mesh(data=2))
    >>> gather = Collective("all-gather", ("data",), 800, group_size=2)
    >>> report = Report("abs", "cpu × 2", collectives=(gather,))
    >>> Candidate((Donate((0,)),), program, report, report).bytes
    400
    """

    edits: tuple[Edit, ...]
    program: Program
    report: Report
    before: Report
    values: Check | None = None

    @property
    def edit(self) -> str:
        """What is changed, in a sentence."""
        return sentence(self)

    def code(self) -> str:
        """The change as code to paste."""
        lines: dict[str, None] = {}
        for edit in self.edits:
            # The edit of all layers may be the same line.
            lines[edit.to_paste(self.program)] = None
        return "\n".join(lines)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the final program."""
        return self.report.collectives or ()

    @property
    def bytes(self) -> int:
        """The bytes that each device sends in all."""
        return sent_bytes(self.collectives)

    @property
    def least_seconds(self) -> float | None:
        """The least time on the target's chips; None if their rates are unknown."""
        roofline = self.report.roofline
        return None if roofline is None else roofline.seconds

    @property
    def peak_bytes(self) -> int | None:
        """The peak of its memory per device; None if the compiler reported none."""
        return peak_bytes(self.report.memory)

    @property
    def fits(self) -> bool | None:
        """Whether it fits its target; None if that is unknown."""
        if self.report.too_large is not None:
            return False
        fit = self.report.fit
        return None if fit is None else fit.ok

    @property
    def chips(self) -> tuple[Chip, ...]:
        """The chips whose memory holds its peak, the smallest first.

        `()` if it was compiled for a chip, or if every chip holds the original.
        """
        target, before = self.report.on, peak_bytes(self.before.memory)
        if target is None or target.platform != "cpu" or before is None:
            return ()
        sized = [chip for chip in CHIPS.values() if chip.device_bytes is not None]
        sized.sort(key=lambda chip: chip.device_bytes or 0)
        if before <= (sized[0].device_bytes or 0):
            return ()
        needed = self.peak_bytes or 0
        return tuple(chip for chip in sized if needed <= (chip.device_bytes or 0))

    def __repr__(self) -> str:
        return f"Candidate({'; '.join(map(str, self.edits))})"


class Changes(tuple[Candidate, ...], Displayed):
    """Changes of a program, each tried, the best first.

    Attributes:
        collective: the collective to remove; None if the changes are for another goal.
        refused: changes that were tried and are not proposed, each with its reason.
        advice: code to write by hand, which cannot be tried here.
        untried: how many more changes the budget left no work for.

    >>> Changes.of([], refused=[ValuesDiffer((), "output differs")]).refused[0].code
    'values differ'
    """

    collective: Collective | None = None
    refused: tuple[Refusal, ...] = ()
    advice: tuple[Fact, ...] = ()
    untried: int = 0

    @classmethod
    def of(
        cls,
        candidates: Iterable[Candidate],
        collective: Collective | None = None,
        refused: Iterable[Refusal] = (),
        advice: Iterable[Fact] = (),
        untried: int = 0,
    ) -> Changes:
        """Candidates, the best first, as Changes with these attributes."""
        changes = cls(candidates)
        changes.collective = collective
        changes.refused, changes.advice = tuple(refused), tuple(advice)
        changes.untried = untried
        return changes

    def __repr__(self) -> str:
        return f"Changes({', '.join(map(repr, self))})"


def sent_bytes(collectives: Iterable[Collective]) -> int:
    """The bytes that each device sends for these collectives, over all executions.

    >>> sent_bytes([Collective("all-gather", ("data",), 800, group_size=4, trips=2)])
    1200
    """
    return sum(collective.sent_in_all for collective in collectives)
