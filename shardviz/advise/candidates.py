"""The outcomes of trials: candidates, and refusals with their reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from shardviz.advise.edits import Edit
from shardviz.base.collective import Collective, sent_in_all
from shardviz.base.display import Displayed, Fact, sentence
from shardviz.compiled.checks import Check
from shardviz.compiled.report import Report, peak_bytes
from shardviz.hardware.chips import CHIPS, Chip
from shardviz.programs.program import Program


@dataclass(frozen=True)
class Refusal(Fact):
    """A change that was tried and rejected; each subclass is one reason.

    Attributes:
        code: a short name of the reason, such as `"values differ"`.
        edits: the edits that were made.

    >>> from shardviz.advise.candidates import ValuesDiffer
    >>> ValuesDiffer((), "output[0] differs").code
    'values differ'
    """

    code: ClassVar[str] = ""
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class NotMade(Refusal):
    """The edits could not be applied to the program.

    Attributes:
        reason: the message of the error that the edits raised.
    """

    code: ClassVar[str] = "not made"
    reason: str


@dataclass(frozen=True)
class Misfit(NotMade):
    """The edits are invalid, such as a spec that doesn't divide a dimension."""


@dataclass(frozen=True)
class DoesNotCompile(Refusal):
    """The changed program cannot be planned or compiled.

    Attributes:
        reason: the error message of the plan or compile.
    """

    code: ClassVar[str] = "does not compile"
    reason: str


@dataclass(frozen=True)
class NoRoom(Refusal):
    """The changed program does not fit the devices of the target.

    Attributes:
        reason: the memory needed and available, or the compiler's error message.
        needed: the bytes needed per device; None if unknown.
    """

    code: ClassVar[str] = "no memory"
    reason: str
    needed: int | None = None


@dataclass(frozen=True)
class ValuesDiffer(Refusal):
    """The results differ from the results of the original program.

    Attributes:
        evidence: which result differs, and by how much.
    """

    code: ClassVar[str] = "values differ"
    evidence: str


@dataclass(frozen=True)
class SameCollective(Refusal):
    """The collective remains, and sends no fewer bytes than before."""

    code: ClassVar[str] = "same collective"


@dataclass(frozen=True)
class MovedElsewhere(Refusal):
    """Other collectives send more bytes than the edit saves.

    Attributes:
        sent, sent_before: bytes per device sent after the change, and in the original.
    """

    code: ClassVar[str] = "moved elsewhere"
    sent: int
    sent_before: int


@dataclass(frozen=True)
class HardlyLess(Refusal):
    """The edit saves less than 1 % of the sent bytes.

    Attributes:
        sent, sent_before: bytes per device sent after the change, and in the original.
    """

    code: ClassVar[str] = "hardly less"
    sent: int
    sent_before: int


@dataclass(frozen=True)
class MoreWork(Refusal):
    """Each device computes much more than in the original program."""

    code: ClassVar[str] = "more work"


@dataclass(frozen=True)
class MoreTime(Refusal):
    """The least time on the target's chips increases.

    Attributes:
        seconds, seconds_before: the least time of the changed program, and of the
            original.
    """

    code: ClassVar[str] = "more time"
    seconds: float
    seconds_before: float


@dataclass(frozen=True)
class NoLessMemory(Refusal):
    """The peak memory is no lower.

    Attributes:
        needed, needed_before: the peak bytes per device of the changed program, and of
            the program it was compared with; None if the compiler reported none.
    """

    code: ClassVar[str] = "no less memory"
    needed: int | None
    needed_before: int | None


@dataclass(frozen=True)
class NoLessPlanned(Refusal):
    """By its plan, the changed program has no lower peak, so it was not compiled."""

    code: ClassVar[str] = "no less planned"


@dataclass(frozen=True, eq=False, repr=False)
class Candidate(Displayed):
    """A changed program, compiled.

    Attributes:
        edits: the edits that were made.
        program: the changed program, which can be planned, compiled, run and explored.
        report: the report of compiling `program`.
        before: the original's report for the same target.
        values: the comparison of the results with the original program's results, on
            simulated devices. Its `.ok` is None if the results could not be compared.
            `values` is None before the comparison.

    >>> import shardviz as sv
    >>> from shardviz.types import Candidate, Collective
    >>> from shardviz.advise.edits import Donate
    >>> program = sv.Program(abs, (), sv.mesh(data=2))
    >>> gather = Collective("all-gather", ("data",), 800, group_size=2)
    >>> report = sv.Report("abs", "cpu × 2", collectives=(gather,))
    >>> Candidate((Donate((0,)),), program, report, report).bytes
    400
    """

    _adds = ("edit", "bytes", "least_seconds", "peak_bytes", "fits", "collectives")
    _omits = ("before",)

    edits: tuple[Edit, ...]
    program: Program
    report: Report
    before: Report
    values: Check | None = None

    @property
    def edit(self) -> str:
        """The change and its cost, in a sentence."""
        return sentence(self)

    def code(self) -> str:
        """Returns the change as code to paste."""
        lines: dict[str, None] = {}
        for edit in self.edits:
            # Edits of several layers may give the same line.
            lines[edit.to_paste(self.program)] = None
        return "\n".join(lines)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of the final program."""
        return self.report.without_error.collectives or ()

    @property
    def bytes(self) -> int:
        """The total bytes that each device sends."""
        return sent_in_all(self.collectives)

    @property
    def least_seconds(self) -> float | None:
        """The least time on the target's chips; None if their rates are unknown."""
        roofline = self.report.without_error.roofline
        return None if roofline is None else roofline.seconds

    @property
    def peak_bytes(self) -> int | None:
        """The peak bytes of memory per device; None if the compiler reported none."""
        return peak_bytes(self.report.without_error.memory)

    @property
    def fits(self) -> bool | None:
        """Whether the program fits its target; None if unknown."""
        if self.report.too_large is not None:
            return False
        fit = self.report.without_error.fit
        return None if fit is None else fit.ok

    @property
    def chips(self) -> tuple[Chip, ...]:
        """The chips with enough memory for the program, smallest first.

        Empty if the program was compiled for a chip, or if every chip has enough memory
        for the original.
        """
        target, before = self.report.on, peak_bytes(self.before.without_error.memory)
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
    """The changes of a program that were tried and proposed, best first.

    Attributes:
        collective: the collective to remove; None for changes with another goal.
        refused: changes that were tried and rejected, with their reasons.
        advice: code to add by hand, which was not tried.
        untried: how many changes were not tried when the budget ran out.

    >>> from shardviz.advise.candidates import ValuesDiffer
    >>> from shardviz.types import Changes
    >>> Changes.of([], refused=[ValuesDiffer((), "output differs")]).refused[0].code
    'values differ'
    """

    _adds = ("refused", "advice")

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
        """Creates Changes from candidates (best first) and the other attributes."""
        changes = cls(candidates)
        changes.collective = collective
        changes.refused, changes.advice = tuple(refused), tuple(advice)
        changes.untried = untried
        return changes

    def __repr__(self) -> str:
        return f"Changes({', '.join(map(repr, self))})"
