"""find_changes(): finds edits that remove or shrink a collective of a program.

All proposals are planned, which takes milliseconds each. The best plans then go through
a quick compile for simulated CPUs, which runs XLA's partitioner. The best of these are
compiled for the target, run, and compared with the original. A change reports the
numbers of that last compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardviz.advise.backend.advice import by_hand
from shardviz.advise.backend.lower import lower_peak
from shardviz.advise.backend.proposals import (
    Proposal,
    UnwantedCollective,
    order_edit,
    proposals,
)
from shardviz.advise.backend.trials import (
    COMPILE,
    PARTITION,
    PLAN,
    Budget,
    Cancelled,
    Trial,
    Trials,
)
from shardviz.advise.backend.types import typed_changes
from shardviz.advise.candidates import (
    Candidate,
    Changes,
    DoesNotCompile,
    HardlyLess,
    MoreTime,
    MoreWork,
    MovedElsewhere,
    Refusal,
    SameCollective,
)
from shardviz.advise.edits import (
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
    Edit,
    SplitArgument,
    SplitResult,
)
from shardviz.base.cause import UNKNOWN
from shardviz.base.collective import Collective, Member, sent_in_all
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.report import Report, peak_bytes
from shardviz.hardware.targets import TargetLike
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program
from shardviz.runs.backend.hosts.run import compile_program
from shardviz.runs.cache import cache

#: Goals that `find_changes` accepts in place of a collective.
GOALS = ("memory", "types", "explicit")
# The most operations in all plans, and in all partitioned programs, together.
_PLANNED_OPERATIONS, _PARTITIONED_OPERATIONS = 30_000, 8_000
_LEAST_PLANNED = 12
_LEAST_PARTITIONED, _MOST_PARTITIONED = 4, 16
_MOST_COMPILED = 8
_MOST_PROPOSED = 5
_MOST_REFUSED = 12
# The most work allowed, relative to the original.
_MORE_WORK = 1.3
_SPLITS = (
    SplitArgument,
    SplitResult,
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
)
# The least reduction, as a fraction of the bytes sent.
_LEAST_GAIN = 0.01
# The most time allowed, relative to the original's least time.
_SLOWER = 1.001


class _RankedTrial(NamedTuple):
    """A proposal with its trial. The lowest rank is the best."""

    proposal: Proposal
    trial: Trial
    rank: tuple[Any, ...]


def compiled(
    program: Program, target: TargetLike, clock: Callable[[str], None]
) -> Report:
    """Compiles a program and keeps the result in `sv.cache`."""
    return compile_program(program, target, cache=cache, progress=clock)


def find_changes(
    program: Program,
    collective: Collective | str,
    target: TargetLike = None,
    clock: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    report: Report | None = None,
) -> Changes:
    """Finds edits that remove or shrink a collective of a program, and tries each.

    Args:
        program: the program.
        collective: a collective of the program's plan or report, or one of `GOALS`.
        target: the compile target, as in `sv.compile`.
        clock: called with the name of each stage as it starts.
        cancelled: called between stages; if it returns True, the changes found so far
            are returned, as after an interrupt.
        report: the program's report for the target, if it was compiled already.

    Raises:
        ProgramError: if the program itself does not compile.
    """
    trials = Trials(program, target, clock, cancelled, report)
    if collective == "memory":
        return lower_peak(trials)
    if not isinstance(collective, Collective):
        return typed_changes(program, collective, target, clock)
    trials.require_original()
    before = trials.partitioned(program)
    if not _shares_operation(before, collective):
        if _shares_operation(trials.before, collective):
            # Only this target's partitioner creates the collective, for example for a
            # matrix decomposition on TPUs.
            trials.on_target = True
            before = trials.partitioned(program)
    # Plans and reports of some trials fail; what they lack counts as nothing here.
    plan = plan_program(program).without_error
    partitioned = Original.of(before, plan, collective)
    final = Original.of(trials.before, plan, collective)
    in_stage = partitioned if _collectives(before) else final
    # A combined collective has more causes than any of the collectives in it.
    as_partitioned = None if collective.members else next(iter(in_stage.unwanted), None)
    unwanted = UnwantedCollective(trials, as_partitioned or collective, plan)
    operations = max(len(plan.ops), 1)
    most_planned = max(_LEAST_PLANNED, _PLANNED_OPERATIONS // operations)
    most_partitioned = max(_LEAST_PARTITIONED, _PARTITIONED_OPERATIONS // operations)
    trials.budget = Budget(
        {
            PLAN: most_planned,
            PARTITION: min(_MOST_PARTITIONED, most_partitioned),
            COMPILE: _MOST_COMPILED,
        }
    )
    refused: list[Refusal] = []
    by_subject: dict[tuple[str, ...], Candidate] = {}
    reordered: list[Candidate] = []
    try:
        # Each round keeps fewer programs than the previous one, and costs more for each.
        planned = _plan(unwanted, before, refused)
        better = _partition(trials, partitioned, planned, refused)
        _compile(trials, final, better, refused, by_subject)
        reordered = _in_better_order(trials)
    except (KeyboardInterrupt, Cancelled):
        pass  # return the changes found so far

    def rank(candidate: Candidate) -> tuple[Any, ...]:
        return final.rank(candidate.report, trials.plan_of(candidate.program))

    changes = [*sorted(by_subject.values(), key=rank), *reordered]
    advice, refused = by_hand(unwanted), refused[:_MOST_REFUSED]
    return Changes.of(changes, collective, refused, advice, trials.untried)


def _plan(
    unwanted: UnwantedCollective, before: Report, refused: list[Refusal]
) -> list[_RankedTrial]:
    """Plans the proposals and returns those whose plans send the fewest bytes.

    Plans lack some of XLA's collectives, so they only decide what to try first.
    """
    trials, planned = unwanted.trials, list[_RankedTrial]()
    original = Original.of(unwanted.plan, unwanted.plan, unwanted.collective)
    most_work = _MORE_WORK * _product_work(unwanted.plan)
    for proposal in trials.in_turn(PLAN, proposals(unwanted)):
        trial = trials.plan(proposal.edits)
        if isinstance(trial, Refusal):
            refused.append(trial)
            continue
        # Giving up parallelism removes most collectives, but isn't an improvement.
        only_splits = all(isinstance(edit, _SPLITS) for edit in proposal.edits)
        more_work = only_splits and _product_work(trial.plan) > most_work
        sent, is_left = _sent(trial.plan), original.left(trial.plan) > 0
        is_bad = trial.plan.error is not None or sent >= _sent(before)
        is_unlikely = is_bad and is_left
        rank = (is_unlikely, more_work, is_bad, is_left, sent, proposal.distance)
        planned.append(_RankedTrial(proposal, trial, rank))
    planned.sort(key=lambda ranked: ranked.rank)
    # The others send no less, and keep the collective. The partitioner rarely disagrees.
    promising = sum(not trial.rank[0] for trial in planned)
    count = min(max(promising, _LEAST_PARTITIONED), _MOST_PARTITIONED)
    return planned[:count]


def _partition(
    trials: Trials,
    original: Original,
    planned: list[_RankedTrial],
    refused: list[Refusal],
) -> list[_RankedTrial]:
    """Partitions the trials; returns those better than the original, best first."""
    better = list[_RankedTrial]()
    for proposal, trial, _ in trials.in_turn(PARTITION, planned):
        report = trials.partition(trial)
        refusal = original.refusal(trial.edits, report, trial.plan)
        if refusal is None:
            rank = original.rank(report, trial.plan)
            better.append(_RankedTrial(proposal, trial, rank))
        else:
            refused.append(refusal)
    return sorted(better, key=lambda ranked: ranked.rank)


def _compile(
    trials: Trials,
    original: Original,
    better: list[_RankedTrial],
    refused: list[Refusal],
    by_subject: dict[tuple[str, ...], Candidate],
) -> None:
    """Compiles the best trials for the target and compares them, one per subject.

    Args:
        trials: runs the trials.
        original: the original, compiled for the target.
        better: the trials to compile, best first.
        refused: a refusal is added here for each trial that turns out no better.
        by_subject: candidates are added here, keyed by the proposal's subject.
    """
    for proposal, trial, _ in trials.in_turn(COMPILE, better, skips=True):
        if proposal.subject in by_subject or len(by_subject) == _MOST_PROPOSED:
            continue
        if not trials.budget.allows(COMPILE):
            break
        result = trials.compile(trial.edits, trial.program)
        if isinstance(result, Candidate):
            result = trials.compare(result)
        if isinstance(result, Candidate):
            refusal = _final_refusal(result, original, trial.plan)
            if refusal is None:
                by_subject[proposal.subject] = result
                continue
            result = refusal
        refused.insert(0, result)


def _in_better_order(trials: Trials) -> list[Candidate]:
    """Returns the original program with a faster device order, if there is one."""
    before = trials.before
    edit = order_edit(trials.program, before)
    if edit is None or trials.cancelled():
        return []
    candidate = trials.candidate([edit])
    if isinstance(candidate, Refusal) or candidate.bytes != _sent(before):
        return []
    if candidate.report.roofline.collective_s < before.roofline.collective_s:
        return [candidate]
    return []


@dataclass(frozen=True)
class Original:
    """The original program at one stage: planned, partitioned or compiled.

    Changed programs are compared with it at the same stage.

    Attributes:
        program: its plan or report.
        plan: its plan.
        unwanted: the collectives to remove. There are several if the compiler combines
            them later.
    """

    program: Report | Plan
    plan: Plan
    unwanted: tuple[Collective, ...]

    @classmethod
    def of(cls, program: Report | Plan, plan: Plan, collective: Collective) -> Original:
        """Returns the original with the counterparts of a collective of any stage."""
        return cls(program, plan, counterparts(collective, _collectives(program)))

    def refusal(
        self, edits: tuple[Edit, ...], after: Report, plan: Plan
    ) -> Refusal | None:
        """Returns why a changed program isn't better than the original; None if it is."""
        if after.error is not None:
            return DoesNotCompile(edits, str(after.error))
        if self.work(after, plan) > _MORE_WORK:
            return MoreWork(edits)
        left = self.left(after)
        if left and left >= sent_in_all(self.unwanted):
            return SameCollective(edits)
        sent, sent_before = _sent(after), _sent(self.program)
        return MovedElsewhere(edits, sent, sent_before) if sent > sent_before else None

    def rank(self, after: Report, plan: Plan) -> tuple[bool, float, int]:
        """Returns a sort key for a changed program; the best has the lowest.

        The key is whether any unwanted collective remains, then the sum of bytes sent
        and work (each as a fraction of the original's), then peak memory.
        """
        fraction = _sent(after) / max(_sent(self.program), 1)
        cost = round(fraction + self.work(after, plan), 2)
        memory = peak_bytes(after.without_error.memory)
        return self.left(after) > 0, cost, memory or 0

    def work(self, after: Report, plan: Plan) -> float:
        """Returns the ratio of a changed program's work to the original's.

        It is the lower of two ratios: of FLOPs, and of FLOPs plus bytes. Repeated work
        increases both, but the arithmetic of indices increases only the FLOPs. 1 if
        unknown.
        """
        if isinstance(self.program, Plan):
            return 1.0
        flops, size = _work(after.without_error, plan)
        flops_before, size_before = _work(self.program.without_error, self.plan)
        if not flops_before:
            return 1.0
        return min(flops / flops_before, (flops + size) / (flops_before + size_before))

    def left(self, after: Report | Plan) -> int:
        """Returns the bytes that a changed program sends for the unwanted collectives.

        An unwanted collective remains if another one moves the same value for the same
        operation, or if another one moves as much and the program sends no less. If
        several operations need a value, XLA names the collective after any one of them,
        so a collective that the original also has is not counted, even if its name
        differs.
        """
        moved = Counter(map(_movement, self.unwanted))
        others = Counter(map(_movement, _collectives(self.program))) - moved
        left, sends_no_less = [], _sent(after) >= _sent(self.program)

        def serves(collective: Collective) -> bool:
            return any(_is_like(collective, unwanted) for unwanted in self.unwanted)

        for collective in sorted(_collectives(after), key=serves):
            movement = _movement(collective)
            if others[movement] > 0:
                others[movement] -= 1
            elif serves(collective) or (sends_no_less and movement in moved):
                left.append(collective)
        return sent_in_all(left)


def _final_refusal(
    candidate: Candidate, original: Original, plan: Plan
) -> Refusal | None:
    """Returns why a candidate isn't better than the original; None if it is."""
    edits, after, before = candidate.edits, candidate.report, candidate.before
    refusal = original.refusal(edits, after, plan)
    if refusal is not None:
        return refusal
    # Only checked here, because earlier rounds may not know a loop's trip count.
    if _sent(after) > (1 - _LEAST_GAIN) * _sent(before):
        return HardlyLess(edits, _sent(after), _sent(before))
    if after.roofline is None or before.roofline is None:
        return None
    seconds, seconds_before = after.roofline.seconds, before.roofline.seconds
    if seconds is not None and seconds_before is not None:
        if seconds > _SLOWER * seconds_before:
            return MoreTime(edits, seconds, seconds_before)
    return None


def _work(report: Report, plan: Plan) -> tuple[float, float]:
    """Returns the FLOPs and bytes of a program per device, over all loop iterations.

    The compiler counts each loop body once, so its counts are multiplied by the plan's
    ratio of all iterations to one. Both are 0 if the compiler counts nothing.
    """
    flops = report.cost.get("flops", 0.0)
    size = report.cost.get("bytes accessed", 0.0)
    if not report.loops:
        return flops, size
    costs = op_costs(plan.without_error)
    arithmetic = [(c.flops or 0.0, c.executions) for c in costs if not c.only_moves]
    moved = [(float(cost.bytes), cost.executions) for cost in costs]
    return flops * _repeats(arithmetic), size * _repeats(moved)


def _repeats(amounts: Sequence[tuple[float, int]]) -> float:
    """Returns the ratio of amounts times their executions to amounts of one each."""
    once = sum(amount for amount, _ in amounts)
    if not once:
        return 1.0
    return sum(amount * executions for amount, executions in amounts) / once


def _product_work(plan: Plan) -> float:
    """Returns the FLOPs per device of a plan's matrix products."""
    products = [cost for cost in op_costs(plan.without_error) if cost.is_product]
    return sum((cost.flops or 0.0) * cost.executions for cost in products)


def _collectives(program: Report | Plan) -> Sequence[Collective]:
    return program.without_error.collectives or ()


def _sent(program: Report | Plan) -> int:
    return sent_in_all(_collectives(program))


def _movement(collective: Collective) -> tuple[Any, ...]:
    # A loop of unknown length may run a collective more often than its bytes show.
    place = collective.trips, collective.in_loop
    return collective.kind, collective.mesh_axes, collective.sent_in_all, place


def _is_like(collective: Collective, other: Collective) -> bool:
    """Whether both move the same value in the same way for the same operation."""
    if collective.name_with_axes != other.name_with_axes:
        return False
    operands = {collective.operand, other.operand} - {None, UNKNOWN}
    return len(operands) < 2 and bool(_operations(collective) & _operations(other))


def _shares_operation(program: Report | Plan, collective: Collective) -> bool:
    operations = _operations(collective)
    return any(_operations(other) & operations for other in _collectives(program))


def _operations(part: Collective | Member) -> set[tuple[str, str]]:
    """Returns the (name, source line) of each operation that a collective serves."""
    parts = (part, *part.members) if isinstance(part, Collective) else (part,)
    return {(part.op, part.source) for part in parts} - {("", "")}


def counterparts(
    collective: Collective, collectives: Sequence[Collective]
) -> tuple[Collective, ...]:
    """Finds a collective of one stage among the collectives of another stage.

    Args:
        collective: the collective of a plan, a partitioned or a compiled program.
        collectives: the collectives of the other stage.

    Returns:
        The most similar collective; for a combined collective, that of each member.
    """
    if collective in collectives:
        return (collective,)
    matches, rest = [], [*collectives]
    for part in collective.members or (collective,):

        def likeness(other: Collective, part: Collective | Member = part) -> Any:
            same_kind = other.kind == collective.kind
            same_operation = bool(_operations(other) & _operations(part))
            same_line = other.source == part.source
            same_axes = other.mesh_axes == collective.mesh_axes
            # The compiler may rename a collective after another operation of its line.
            # A function without a source line is reported at its caller's line.
            alike = (
                same_kind and same_operation,
                same_kind and same_line,
                same_operation,
                same_line,
                same_axes,
            )
            return alike, -abs(other.bytes_per_device - part.bytes_per_device)

        match = max(rest, key=likeness, default=None)
        if match is not None and any(likeness(match)[0]):
            matches.append(match)
            rest.remove(match)
    return tuple(matches)
