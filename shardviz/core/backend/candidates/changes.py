"""find_changes(): edits of a program after which a collective is gone or smaller.

Proposals are tried in three rounds, each of which leaves fewer: what the partitioner
makes of them, by a quick compile for simulated CPUs; pairs of the best; and the best
few compiled for the target, run and compared with the original. What is said of a
change is what its final compile says.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.core.backend.candidates import patterns  # noqa: F401  adds proposals
from shardviz.core.backend.candidates.proposals import Proposal, Wanted, proposals
from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.program.candidates import (
    Candidate,
    Changes,
    Refusal,
    sent_bytes,
)
from shardviz.core.program.orders import order_edit
from shardviz.core.program.program import Program, Target
from shardviz.core.program.report import Collective

_MOST_TRIED = 160
_MOST_SECONDS = 40.0  # for quick compiles
_MOST_COMPILED = 8
_MOST_COMPILE_SECONDS = 60.0
_PAIRED = 7  # of the best proposals, each with each
_PROPOSED = 6
_MORE_WORK = 1.3  # times the arithmetic of the original
_LESS_WORK = 0.7  # times that of the best: worth its bytes, perhaps
_REFUSED = 12


@dataclass(frozen=True, eq=False)
class _Partitioned:
    """A proposal, and what the partitioner made of it.

    Attributes:
        proposal: the proposal.
        program: the program after it.
        left: the bytes that the collective still sends.
        bytes: the bytes that all send.
        flops: what each device computes.
    """

    proposal: Proposal
    program: Program
    left: int
    bytes: int
    flops: float


def find_changes(
    program: Program,
    collective: Collective,
    target: Target | str | None = None,
    clock: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Changes:
    """Edits after which a collective of a program is gone or smaller, each tried.

    Args:
        program: the program.
        collective: one of its plan, or of a compile of it.
        target: what for, as for `sv.compile`.
        clock: called with the name of every stage as it begins.
        cancelled: called between stages; True ends it with what was found so far.

    Raises:
        ProgramError: where the program itself does not compile.
    """
    trials = Trials(program, target, clock, cancelled)
    trials.require_original()
    search = _Search(trials, collective, cancelled or (lambda: False))
    return search.found()


class _Search:
    """One search for changes."""

    def __init__(
        self, trials: Trials, collective: Collective, cancelled: Callable[[], bool]
    ) -> None:
        self.trials, self.cancelled = trials, cancelled
        self.before = trials.partitioned(trials.program)
        origins, known = _origins(collective), self.before.collectives or ()
        if not self._decides_now and not any(_origins(one) & origins for one in known):
            # It is made for this target alone, as of a decomposition on TPUs.
            trials.on_target = True
            self.before = trials.partitioned(trials.program)
        known = self.before.collectives or trials.before.collectives or ()
        self.given, self.collective = collective, _as_partitioned(collective, known)
        self.wanted = Wanted(trials, self.collective, plan_program(trials.program))
        self.refused: list[Refusal] = []
        self.tried: list[_Partitioned] = []
        self.end = time.monotonic() + _MOST_SECONDS

    def found(self) -> Changes:
        """All rounds."""
        for proposal in proposals(self.wanted)[:_MOST_TRIED]:
            self._partition(proposal)
        best = self._best(self.tried)[:_PAIRED]
        for one, other in itertools.combinations(best, 2):
            if set(one.proposal.subject).isdisjoint(other.proposal.subject):
                self._partition(one.proposal.with_other(other.proposal))
        candidates: list[Candidate] = []
        end = time.monotonic() + _MOST_COMPILE_SECONDS
        for one in self._best(self.tried)[:_MOST_COMPILED]:
            late = candidates and time.monotonic() > end
            if self.cancelled() or late or len(candidates) == _PROPOSED:
                break
            made = self._compiled(one)
            if isinstance(made, Refusal):
                self.refused.insert(0, made)
            else:
                candidates.append(made)
        candidates.sort(key=self._rank)
        candidates += self._in_better_order()
        refused = self.refused[:_REFUSED]
        return Changes.of(candidates, self.given, refused)

    def _in_better_order(self) -> list[Candidate]:
        """The program as it is, on devices in an order that takes less time, if any."""
        before = self.trials.before
        edit = order_edit(self.trials.program, before)
        if edit is None or self.cancelled():
            return []
        made = self.trials.candidate([edit])
        if isinstance(made, Refusal):
            return []
        faster = made.report.roofline.collective_s < before.roofline.collective_s
        return [made] * (faster and made.bytes == sent_bytes(before.collectives or ()))

    def _partition(self, proposal: Proposal) -> None:
        """Tries a proposal as far as the partitioner."""
        if time.monotonic() > self.end or self.cancelled():
            return
        program = self.trials.made(proposal.edits)
        if isinstance(program, Refusal):
            self._refuse(proposal, program.code, program.said)
            return
        made = self.trials.partitioned(program)
        if made.collectives is None:
            self._refuse(proposal, "does not compile", made.error)
            return
        sent, left = sent_bytes(made.collectives), self._left(made.collectives)
        before = sent_bytes(self.before.collectives or ())
        # Other random numbers may take a little more work.
        is_option = any(one.code == "option" for one in proposal.edits)
        if self._work(made.flops) > _MORE_WORK and not is_option:
            self._refuse(proposal, "more work")
        elif left >= self._left(self.before.collectives or ()):
            self._refuse(proposal, "same collective", sent=sent)
        elif sent > before or (sent == before and self._decides_now):
            self._refuse(proposal, "moved elsewhere", sent=sent)
        else:
            self.tried.append(_Partitioned(proposal, program, left, sent, made.flops))

    @property
    def _decides_now(self) -> bool:
        """Whether the target's compiler makes nothing else of the same bytes."""
        target = str(getattr(self.trials.target, "name", self.trials.target or "cpu"))
        return not target.startswith(("tpu", "gpu"))

    def _refuse(
        self, proposal: Proposal, code: str, said: str = "", sent: int | None = None
    ) -> None:
        # What is far away was tried on the off chance.
        if proposal.far < 2 and len(proposal.edits) == 1:
            before = sent_bytes(self.before.collectives or ())
            self.refused.append(Refusal(proposal.edits, code, said, sent, before))

    def _work(self, flops: float) -> float:
        """Arithmetic, in times that of the original; 1 where that is not known."""
        return flops / self.before.flops if self.before.flops else 1.0

    def _left(self, collectives: Iterable[Collective]) -> int:
        """What is left of the collective: the bytes of those for the same operation."""
        left = 0
        for one in collectives:
            if _origins(one) & _origins(self.collective):
                left += one.sent_in_all
        return left

    def _best(self, tried: Sequence[_Partitioned]) -> list[_Partitioned]:
        """The best first, and of those with one subject the best alone."""

        def rank(one: _Partitioned) -> tuple[Any, ...]:
            edits = len(one.proposal.subject)
            work = round(self._work(one.flops), 1)
            return (one.left > 0, one.bytes, work, edits, one.proposal.far)

        found: dict[tuple[str, ...], _Partitioned] = {}
        for one in sorted(tried, key=rank):
            subject = one.proposal.subject
            if subject in found and one.flops < _LESS_WORK * found[subject].flops:
                found.setdefault((*subject, "less work"), one)
            # A pair that is no better than one of its two is that one.
            parts = [found[(part,)] for part in subject if (part,) in found]
            if not any(part.bytes <= one.bytes for part in parts):
                found.setdefault(subject, one)
        return list(found.values())

    def _compiled(self, one: _Partitioned) -> Candidate | Refusal:
        """A proposal, compiled for the target and compared with the original."""
        made = self.trials.candidate(one.proposal.edits, one.program)
        if isinstance(made, Refusal):
            return made
        original = self.trials.before.collectives or ()
        sent, before = made.bytes, sent_bytes(original)
        left = self._left(made.collectives)
        code = ""
        if left and left >= self._left(original):
            code = "same collective"
        elif sent >= before:
            code = "moved elsewhere"
        if code:
            return Refusal(made.edits, code, "", sent, before)
        return made

    def _rank(self, one: Candidate) -> tuple[Any, ...]:
        is_left = self._left(one.collectives) > 0
        work = round(self._work(one.report.cost.get("flops", 0.0)), 1)
        return (is_left, one.bytes, work, len(one.edits), one.peak_bytes or 0)


def _origins(collective: Collective) -> set[tuple[str, str]]:
    """The operations that a collective is for, by name and line."""
    found = {(collective.op, collective.source)}
    found |= {(member.op, member.source) for member in collective.members}
    return found - {("", "")}


def _as_partitioned(collective: Collective, known: Sequence[Collective]) -> Collective:
    """The partitioner's own collective that one of a plan or final program was."""

    def likeness(one: Collective) -> tuple[bool, ...]:
        same_line, same_kind = (
            one.source == collective.source,
            one.kind == collective.kind,
        )
        same_bytes = one.bytes_per_device == collective.bytes_per_device
        same_axes = one.mesh_axes == collective.mesh_axes
        return (
            bool(_origins(one) & _origins(collective)),
            same_line and same_kind,
            same_line,
            # A function without a line of its own has that of whoever calls it.
            same_kind and same_axes and same_bytes,
            same_axes,
        )

    if collective.members or collective in known:
        return collective
    alike = max(known, key=likeness, default=collective)
    return alike if any(likeness(alike)) else collective
