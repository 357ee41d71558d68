"""find_changes(): edits of a program after which a collective is gone or smaller.

Plans, which take milliseconds, show which proposals to try. The partitioner's answers,
from a quick compile for simulated CPUs, show which few are compiled for the target, run,
and compared with the original. The numbers of a change are those of its final compile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
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
    sent_bytes,
)
from shardviz.advise.edits import (
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
    Edit,
    SplitArgument,
    SplitResult,
)
from shardviz.base.collective import Collective
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.report import Report, peak_bytes
from shardviz.hardware.targets import Target
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program
from shardviz.runs.backend.hosts.run import compile_program
from shardviz.runs.cache import cache

#: Goals of changes other than a collective.
GOALS = ("memory", "types", "explicit")
_PLANNED_OPERATIONS = 60_000  # of all plans together: a plan takes time per operation
_LEAST_PLANNED = 12
_MOST_PARTITIONED = 16
_MOST_COMPILED = 8
_MOST_PROPOSED = 5
_MOST_REFUSED = 12
# Times the original's arithmetic: of the whole compiled program, and of the matrix
# products in plans.
_MORE_WORK = 1.3
_SPLITS = (
    SplitArgument,
    SplitResult,
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
)
_LEAST_GAIN = 0.01  # of the bytes
_SLOWER = 1.001  # times the least time of the original


class _RankedTrial(NamedTuple):
    """A trial of a proposal; the best has the least rank."""

    proposal: Proposal
    trial: Trial
    rank: tuple[Any, ...]


def compiled(
    program: Program, target: Target | str | None, clock: Callable[[str], None]
) -> Report:
    """The compile of a program, kept in `sv.cache`."""
    return compile_program(program, target, cache=cache, progress=clock)


def find_changes(
    program: Program,
    collective: Collective | str,
    target: Target | str | None = None,
    clock: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    report: Report | None = None,
) -> Changes:
    """Edits after which a collective of a program is gone or smaller, each tried.

    Args:
        program: the program.
        collective: a collective of its plan or of a compile of it, or one of `GOALS`.
        target: the target to compile for, as for `sv.compile`.
        clock: called with the name of every stage as it begins.
        cancelled: called between stages; if it returns True, the changes found so far
            are returned, as after an interrupt.
        report: the compile of the program for the target, if there is one already.

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
    if not _left(before, collective) and _left(trials.before, collective):
        # Only this target's partitioner makes it, such as for a decomposition on TPUs.
        trials.on_target = True
        before = trials.partitioned(program)
    collectives = before.collectives or trials.before.collectives or ()
    plan = plan_program(program)
    unwanted = UnwantedCollective(
        trials, _as_partitioned(collective, collectives), plan
    )
    most_planned = _PLANNED_OPERATIONS // max(len(plan.ops), 1)
    limits = {PLAN: max(_LEAST_PLANNED, most_planned)}
    limits |= {PARTITION: _MOST_PARTITIONED, COMPILE: _MOST_COMPILED}
    trials.budget = Budget(limits)
    refused: list[Refusal] = []
    by_subject: dict[tuple[str, ...], Candidate] = {}
    reordered: list[Candidate] = []
    try:
        # Each round takes longer per program than the one before, and keeps fewer.
        planned = _plan(unwanted, before, refused)
        better = _partition(unwanted, before, planned, refused)
        _compile(unwanted, better, refused, by_subject)
        reordered = _in_better_order(trials)
    except (KeyboardInterrupt, Cancelled):
        pass  # the changes so far are returned

    def rank(candidate: Candidate) -> tuple[Any, ...]:
        return _rank(candidate.report, trials.before, unwanted.collective)

    changes = [*sorted(by_subject.values(), key=rank), *reordered]
    advice, refused = by_hand(unwanted), refused[:_MOST_REFUSED]
    return Changes.of(changes, collective, refused, advice, trials.untried)


def _plan(
    unwanted: UnwantedCollective, before: Report, refused: list[Refusal]
) -> list[_RankedTrial]:
    """The proposals whose plans send least.

    Plans lack some of XLA's collectives, so they only show what to try first.
    """
    trials, planned = unwanted.trials, list[_RankedTrial]()
    most_work = _MORE_WORK * _product_work(unwanted.plan)
    for proposal in trials.in_turn(PLAN, proposals(unwanted)):
        trial = trials.plan(proposal.edits)
        if isinstance(trial, Refusal):
            refused.append(trial)
            continue
        only_splits = all(isinstance(edit, _SPLITS) for edit in proposal.edits)
        if only_splits and _product_work(trial.plan) > most_work:
            # It undoes the parallelism, which is what most collectives are for.
            refused.append(MoreWork(proposal.edits))
            continue
        sent, is_left = _sent(trial.plan), _left(trial.plan, unwanted.collective) > 0
        is_bad = trial.plan.error is not None or sent >= _sent(before)
        rank = (is_bad, is_left, sent, proposal.distance)
        planned.append(_RankedTrial(proposal, trial, rank))
    return sorted(planned, key=lambda ranked: ranked.rank)[:_MOST_PARTITIONED]


def _partition(
    unwanted: UnwantedCollective,
    before: Report,
    planned: list[_RankedTrial],
    refused: list[Refusal],
) -> list[_RankedTrial]:
    """The trials that send less by the partitioner's answer, the best first."""
    trials, better = unwanted.trials, list[_RankedTrial]()
    for proposal, trial, _ in trials.in_turn(PARTITION, planned):
        report = trials.partition(trial)
        refusal = _refusal(trial.edits, report, before, unwanted.collective)
        if refusal is None:
            rank = _rank(report, before, unwanted.collective)
            better.append(_RankedTrial(proposal, trial, rank))
        else:
            refused.append(refusal)
    return sorted(better, key=lambda ranked: ranked.rank)


def _compile(
    unwanted: UnwantedCollective,
    better: list[_RankedTrial],
    refused: list[Refusal],
    by_subject: dict[tuple[str, ...], Candidate],
) -> None:
    """Compiles and compares the best few for the target, one for each subject.

    Args:
        unwanted: the collective to remove.
        better: the trials that send less, the best first.
        refused: trials that turn out no better are added here.
        by_subject: the candidates are added here.
    """
    trials, before = unwanted.trials, unwanted.trials.before
    for proposal, trial, _ in trials.in_turn(COMPILE, better, skips=True):
        if proposal.subject in by_subject or len(by_subject) == _MOST_PROPOSED:
            continue
        if not trials.budget.allows(COMPILE):
            break
        result = trials.compile(trial.edits, trial.program)
        if isinstance(result, Candidate):
            result = trials.compare(result)
        if isinstance(result, Candidate):
            refusal = _final_refusal(result, before, unwanted.collective)
            if refusal is None:
                by_subject[proposal.subject] = result
                continue
            result = refusal
        refused.insert(0, result)


def _in_better_order(trials: Trials) -> list[Candidate]:
    """The original on devices in an order that takes less time, if there is any."""
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


def _refusal(
    edits: tuple[Edit, ...], after: Report, before: Report, collective: Collective
) -> Refusal | None:
    """Why a changed program is no better; None if it is better."""
    if after.error is not None:
        return DoesNotCompile(edits, str(after.error))
    if _work(after, before) > _MORE_WORK:
        return MoreWork(edits)
    left = _left(after, collective, before)
    if left and left >= _left(before, collective):
        return SameCollective(edits)
    if _sent(after) > _sent(before):
        return MovedElsewhere(edits, _sent(after), _sent(before))
    return None


def _final_refusal(
    candidate: Candidate, before: Report, collective: Collective
) -> Refusal | None:
    """Why a change is no better by its final compile; None if it is better."""
    edits, after = candidate.edits, candidate.report
    refusal = _refusal(edits, after, before, collective)
    if refusal is not None:
        return refusal
    # Not checked before: the partitioner may not know how often a loop runs.
    if _sent(after) > (1 - _LEAST_GAIN) * _sent(before):
        return HardlyLess(edits, _sent(after), _sent(before))
    if after.roofline is None or before.roofline is None:
        return None
    seconds, seconds_before = after.roofline.seconds, before.roofline.seconds
    if seconds is not None and seconds_before is not None:
        if seconds > _SLOWER * seconds_before:
            return MoreTime(edits, seconds, seconds_before)
    return None


def _rank(
    after: Report, before: Report, collective: Collective
) -> tuple[bool, float, int]:
    """A sort key, least for the best change.

    First whether any of the collective is left; then bytes and arithmetic, each as a
    fraction of the original's; then memory.
    """
    fraction = _sent(after) / max(_sent(before), 1)
    cost = round(fraction + _work(after, before), 2)
    return _left(after, collective, before) > 0, cost, peak_bytes(after.memory) or 0


def _work(after: Report, before: Report) -> float:
    """The arithmetic of a program over the original's; 1 if that is unknown."""
    flops = before.cost.get("flops")
    return after.cost.get("flops", 0.0) / flops if flops else 1.0


def _product_work(plan: Plan) -> float:
    """The arithmetic of a plan's matrix products on each device.

    In a plan without products, that of all operations.
    """
    costs = op_costs(plan)
    products = [cost for cost in costs if cost.is_product and cost.flops]
    return sum((cost.flops or 0.0) * cost.executions for cost in products or costs)


def _sent(program: Report | Plan) -> int:
    return sent_bytes(program.collectives or ())


def _left(
    program: Report | Plan, collective: Collective, before: Report | None = None
) -> int:
    """The bytes of the collectives that serve the same operations as one.

    Args:
        program: the compile or plan of a changed program.
        collective: the collective of the original.
        before: the original. XLA names the collective of a value that several
            operations need after any of them. So a collective that the original has
            for other operations is not counted.
    """
    operations = _operations(collective)
    for_others, matches = Counter[tuple[Any, ...]](), []
    for original in (before and before.collectives) or ():
        if not _operations(original) & operations:
            for_others[_movement(original)] += 1
    for other in program.collectives or ():
        if not _operations(other) & operations:
            for_others[_movement(other)] -= 1
    for match in program.collectives or ():
        if _operations(match) & operations:
            for_others[_movement(match)] -= 1
            if for_others[_movement(match)] < 0:
                matches.append(match)
    return sent_bytes(matches)


def _movement(collective: Collective) -> tuple[Any, ...]:
    return collective.kind, collective.mesh_axes, collective.sent_in_all


def _operations(collective: Collective) -> set[tuple[str, str]]:
    """The operations that a collective is for, by name and line."""
    parts = (collective, *collective.members)
    return {(part.op, part.source) for part in parts} - {("", "")}


def _as_partitioned(
    collective: Collective, collectives: Sequence[Collective]
) -> Collective:
    """The partitioner's collective that became one of a plan or final program."""
    if collective.members or collective in collectives:
        return collective

    def likeness(other: Collective) -> tuple[bool, ...]:
        same_operation = bool(_operations(other) & _operations(collective))
        same_line = other.source == collective.source
        same_axes = other.mesh_axes == collective.mesh_axes
        same_kind = other.kind == collective.kind
        # A function without a line of its own has its caller's.
        return same_operation, same_line and same_kind, same_line, same_axes

    match = max(collectives, key=likeness, default=collective)
    return match if any(likeness(match)) else collective
