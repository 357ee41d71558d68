"""find_changes(): finds edits that remove or shrink a collective of a program.

All proposals are planned, which takes milliseconds each. The best plans then go through
a quick compile for simulated CPUs, which runs XLA's partitioner. The best of these are
compiled for the target, run, and compared with the original. A change reports the
numbers of that last compile.
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
)
from shardviz.advise.edits import (
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
    Edit,
    SplitArgument,
    SplitResult,
)
from shardviz.base.collective import Collective, sent_in_all
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
# The most FLOPs allowed, relative to the original. A plan's FLOPs are only those of its
# matrix products.
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
    if not _left(before, collective) and _left(trials.before, collective):
        # Only this target's partitioner creates the collective, for example for a
        # matrix decomposition on TPUs.
        trials.on_target = True
        before = trials.partitioned(program)
    collectives = before.without_error.collectives
    collectives = collectives or trials.before.without_error.collectives or ()
    # Plans and reports of some trials fail; what they lack counts as nothing here.
    plan = plan_program(program).without_error
    unwanted = UnwantedCollective(
        trials, _as_partitioned(collective, collectives), plan
    )
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
        better = _partition(unwanted, before, planned, refused)
        _compile(unwanted, better, refused, by_subject)
        reordered = _in_better_order(trials)
    except (KeyboardInterrupt, Cancelled):
        pass  # return the changes found so far

    def rank(candidate: Candidate) -> tuple[Any, ...]:
        return _rank(candidate.report, trials.before, unwanted.collective)

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
    most_work = _MORE_WORK * _product_work(unwanted.plan)
    for proposal in trials.in_turn(PLAN, proposals(unwanted)):
        trial = trials.plan(proposal.edits)
        if isinstance(trial, Refusal):
            refused.append(trial)
            continue
        only_splits = all(isinstance(edit, _SPLITS) for edit in proposal.edits)
        if only_splits and _product_work(trial.plan) > most_work:
            # Giving up parallelism removes most collectives, but isn't an improvement.
            refused.append(MoreWork(proposal.edits))
            continue
        sent, is_left = _sent(trial.plan), _left(trial.plan, unwanted.collective) > 0
        is_bad = trial.plan.error is not None or sent >= _sent(before)
        rank = (is_bad, is_left, sent, proposal.distance)
        planned.append(_RankedTrial(proposal, trial, rank))
    planned.sort(key=lambda ranked: ranked.rank)
    # The others send no less, and keep the collective. The partitioner rarely disagrees.
    promising = sum(not (trial.rank[0] and trial.rank[1]) for trial in planned)
    count = min(max(promising, _LEAST_PARTITIONED), _MOST_PARTITIONED)
    return planned[:count]


def _partition(
    unwanted: UnwantedCollective,
    before: Report,
    planned: list[_RankedTrial],
    refused: list[Refusal],
) -> list[_RankedTrial]:
    """Partitions the trials; returns those better than the original, best first."""
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
    """Compiles the best trials for the target and compares them, one per subject.

    Args:
        unwanted: the collective to remove.
        better: the trials to compile, best first.
        refused: a refusal is added here for each trial that turns out no better.
        by_subject: candidates are added here, keyed by the proposal's subject.
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


def _refusal(
    edits: tuple[Edit, ...], after: Report, before: Report, collective: Collective
) -> Refusal | None:
    """Returns why a changed program isn't better than the original; None if it is."""
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
    """Returns why a candidate isn't better than the original; None if it is."""
    edits, after = candidate.edits, candidate.report
    refusal = _refusal(edits, after, before, collective)
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


def _rank(
    after: Report, before: Report, collective: Collective
) -> tuple[bool, float, int]:
    """Returns a sort key; the best change has the lowest.

    The key is whether any of the collective remains, then the sum of bytes sent and
    arithmetic (each as a fraction of the original's), then peak memory.
    """
    fraction = _sent(after) / max(_sent(before), 1)
    cost = round(fraction + _work(after, before), 2)
    return (
        _left(after, collective, before) > 0,
        cost,
        peak_bytes(after.without_error.memory) or 0,
    )


def _work(after: Report, before: Report) -> float:
    """Returns the ratio of a program's FLOPs to the original's; 1 if unknown."""
    flops = before.without_error.cost.get("flops")
    return after.without_error.cost.get("flops", 0.0) / flops if flops else 1.0


def _product_work(plan: Plan) -> float:
    """Returns the FLOPs per device of a plan's matrix products.

    If the plan has no matrix products, all operations are counted.
    """
    costs = op_costs(plan.without_error)
    products = [cost for cost in costs if cost.is_product and cost.flops]
    return sum((cost.flops or 0.0) * cost.executions for cost in products or costs)


def _sent(program: Report | Plan) -> int:
    return sent_in_all(program.without_error.collectives or ())


def _left(
    program: Report | Plan, collective: Collective, before: Report | None = None
) -> int:
    """Returns the bytes still sent for the operations that a collective serves.

    Args:
        program: the report or plan of a changed program.
        collective: the original's collective.
        before: the original's report. If several operations need a value, XLA names the
            collective after any one of them. A collective that the original has under
            another operation's name is therefore not counted.
    """
    program, operations = program.without_error, _operations(collective)
    for_others, matches = Counter[tuple[Any, ...]](), []
    for original in (before and before.without_error.collectives) or ():
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
    return sent_in_all(matches)


def _movement(collective: Collective) -> tuple[Any, ...]:
    return collective.kind, collective.mesh_axes, collective.sent_in_all


def _operations(collective: Collective) -> set[tuple[str, str]]:
    """Returns the (name, source line) of each operation that a collective serves."""
    parts = (collective, *collective.members)
    return {(part.op, part.source) for part in parts} - {("", "")}


def _as_partitioned(
    collective: Collective, collectives: Sequence[Collective]
) -> Collective:
    """Finds the partitioner's match for a collective of a plan or a final program."""
    if collective.members or collective in collectives:
        return collective

    def likeness(other: Collective) -> tuple[bool, ...]:
        same_operation = bool(_operations(other) & _operations(collective))
        same_line = other.source == collective.source
        same_axes = other.mesh_axes == collective.mesh_axes
        same_kind = other.kind == collective.kind
        # A function without a source line is reported at its caller's line.
        return same_operation, same_line and same_kind, same_line, same_axes

    match = max(collectives, key=likeness, default=collective)
    return match if any(likeness(match)) else collective
