"""find_changes(): edits of a program after which a collective is gone or smaller.

Plans, which take tens of milliseconds, say which proposals to try. What the partitioner
makes of these, in a quick compile for simulated CPUs, says which few are compiled for
the target, run, and compared with the original. What is said of a change is what its
final compile says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shardviz.advise.backend import unreduced  # noqa: F401
from shardviz.advise.backend.advice import by_hand
from shardviz.advise.backend.lower import lower_peak
from shardviz.advise.backend.proposals import (
    Proposal,
    Wanted,
    order_edit,
    proposals,
)
from shardviz.advise.backend.trials import Trials, in_turn
from shardviz.advise.backend.types import typed_changes
from shardviz.advise.candidates import Candidate, Changes, Refusal, sent_bytes
from shardviz.base.collective import Collective
from shardviz.compiled.op_costs import op_costs
from shardviz.compiled.report import Report, peak_bytes
from shardviz.hardware.targets import Target
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.programs.program import Program
from shardviz.runs.backend.hosts.run import compile_program
from shardviz.runs.cache import cache

#: What there are changes for in place of a collective.
WAYS = ("memory", "types", "explicit")
# The budget. It counts work and not time, so that a busy machine finds the same changes.
_PLANNED_OPERATIONS = 60_000  # of all plans together
_LEAST_PLANNED = 12
_MOST_PARTITIONED = 16  # of what is planned
_MOST_COMPILED = 8
_MOST_PROPOSED = 5
_REFUSED = 12
# Times the arithmetic of the original: of all that is compiled, and of the products that
# plans count.
_MORE_WORK = 1.3
_SPLITS = {"argument", "constraint", "result", "rule"}
_LEAST_GAIN = 0.01  # of the bytes
_SLOWER = 1.001  # times the least time of the original


class _Tried(NamedTuple):
    """A proposal, the program after it, and how good that is: the best is least."""

    proposal: Proposal
    program: Program
    rank: Any


def compiled(program: Program, target: Any, clock: Callable[[str], None]) -> Report:
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
        collective: one of its plan, or of a compile of it; or one of `WAYS`.
        target: what for, as for `sv.compile`.
        clock: called with what is done, and how much of it.
        cancelled: called between stages; True ends it with what was found so far, as
            an interrupt does.
        report: the compile of the program for the target, if there is one already.

    Raises:
        ProgramError: where the program itself does not compile.
    """
    trials = Trials(program, target, clock, cancelled, report)
    if collective == "memory":
        return lower_peak(trials)
    if not isinstance(collective, Collective):
        return typed_changes(program, collective, target, clock)
    trials.require_original()
    before = trials.partitioned(program)
    if not _left(before, collective) and _left(trials.before, collective):
        # It is made for this target alone, as of a decomposition on TPUs.
        trials.on_target = True
        before = trials.partitioned(program)
    known = before.collectives or trials.before.collectives or ()
    about = _as_partitioned(collective, known)
    wanted, refused = Wanted(trials, about, plan_program(program)), list[Refusal]()
    by_subject: dict[Any, Candidate] = {}
    reordered: list[Candidate] = []
    try:
        # Each round takes more time for a program than the one before, and leaves fewer.
        planned = _planned(wanted, before, refused)
        better = _partitioned(wanted, before, planned, refused)
        _compile(wanted, better, refused, by_subject)
        reordered = _in_better_order(trials)
    except KeyboardInterrupt:
        pass  # the changes so far are returned
    found = sorted(
        by_subject.values(), key=lambda one: _rank(one.report, trials.before, about)
    )
    found += reordered
    return Changes.of(
        found, collective, refused[:_REFUSED], by_hand(wanted), trials.untried
    )


def _planned(wanted: Wanted, before: Report, refused: list[Refusal]) -> list[_Tried]:
    """The proposals whose plans send least.

    Plans do not have all collectives of XLA, so they only say what to try first.
    """
    trials, planned = wanted.trials, []
    # A plan takes as long as its program has operations.
    most = _PLANNED_OPERATIONS // max(len(wanted.plan.ops), 1)
    most = max(_LEAST_PLANNED, most)
    for proposal in in_turn(trials, "plan", proposals(wanted), most):
        program = trials.made(proposal.edits)
        if isinstance(program, Refusal):
            refused.append(program)
            continue
        plan = plan_program(trials.quick(program))
        only_splits = {edit.code for edit in proposal.edits} <= _SPLITS
        more_work = _product_work(plan) > _MORE_WORK * _product_work(wanted.plan)
        if only_splits and more_work:
            # It undoes the parallelism, which is what most collectives are for.
            refused.append(Refusal(proposal.edits, "more work"))
            continue
        sent, is_left = _sent(plan), _left(plan, wanted.collective) > 0
        is_bad = plan.error is not None or sent >= _sent(before)
        rank = (is_bad, is_left, sent, proposal.far)
        planned.append(_Tried(proposal, program, rank))
    return sorted(planned, key=lambda one: one.rank)[:_MOST_PARTITIONED]


def _partitioned(
    wanted: Wanted, before: Report, planned: list[_Tried], refused: list[Refusal]
) -> list[_Tried]:
    """Those that the partitioner finds better, the best first."""
    trials, better = wanted.trials, []
    for one in in_turn(trials, "partition", planned):
        report = trials.partitioned(one.program)
        code = _why_not(report, before, wanted.collective)
        if not code:
            rank = _rank(report, before, wanted.collective)
            better.append(_Tried(one.proposal, one.program, rank))
        else:
            refused.append(_refusal(one.proposal, code, report, before))
    return sorted(better, key=lambda one: one.rank)


def _compile(
    wanted: Wanted,
    better: list[_Tried],
    refused: list[Refusal],
    found: dict[Any, Candidate],
) -> None:
    """Compiles and compares the best few for the target, one for each subject.

    Args:
        wanted: the collective that should go.
        better: what the partitioner finds better, the best first.
        refused: those that are no better are added here.
        found: the candidates are added here, by subject.
    """
    trials, about, before = wanted.trials, wanted.collective, wanted.trials.before
    compiles = 0
    for one in in_turn(trials, "compile", better):
        if one.proposal.subject in found or len(found) == _MOST_PROPOSED:
            continue
        if compiles == _MOST_COMPILED:
            break
        compiles += 1
        made = trials.candidate(one.proposal.edits, one.program)
        if isinstance(made, Candidate):
            code = _why_not(made.report, before, about)
            # Only now: the partitioner may not know how often a loop runs.
            if not code and _sent(made.report) > (1 - _LEAST_GAIN) * _sent(before):
                code = "hardly less"
            if not code and _slower(made.report, before):
                code = "more time"
            if not code:
                found[one.proposal.subject] = made
                continue
            made = _refusal(one.proposal, code, made.report, before)
        refused.insert(0, made)


def _in_better_order(trials: Trials) -> list[Candidate]:
    """The program as it is, on devices in an order that takes less time, if any."""
    before = trials.before
    edit = order_edit(trials.program, before)
    if edit is None or trials.cancelled():
        return []
    made = trials.candidate([edit])
    if isinstance(made, Refusal) or made.bytes != _sent(before):
        return []
    if made.report.roofline.collective_s < before.roofline.collective_s:
        return [made]
    return []


def _why_not(after: Report, before: Report, about: Collective) -> str:
    """Why a changed program is no better, as the code of a Refusal; `""` if it is."""
    if after.error is not None:
        return "does not compile"
    if _work(after, before) > _MORE_WORK:
        return "more work"
    left = _left(after, about, before)
    if left and left >= _left(before, about):
        return "same collective"
    return "moved elsewhere" if _sent(after) > _sent(before) else ""


def _slower(after: Report, before: Report) -> bool:
    """Whether the least time on the target's chips rises, if it is known."""
    if after.roofline is None or before.roofline is None:
        return False
    seconds, seconds_before = after.roofline.seconds, before.roofline.seconds
    if seconds is None or seconds_before is None:
        return False
    return seconds > _SLOWER * seconds_before


def _refusal(proposal: Proposal, code: str, after: Report, before: Report) -> Refusal:
    if after.error is not None:
        return Refusal(proposal.edits, code, str(after.error))
    if code == "more time" and after.roofline and before.roofline:
        times = (after.roofline.seconds, before.roofline.seconds)
        return Refusal(proposal.edits, code, seconds=times)
    return Refusal(proposal.edits, code, "", _sent(after), _sent(before))


def _rank(after: Report, before: Report, about: Collective) -> tuple[Any, ...]:
    """The better the smaller: whether any of it is left; bytes and arithmetic, each as
    a part of the original's; memory.
    """
    part = _sent(after) / max(_sent(before), 1)
    cost = round(part + _work(after, before), 2)
    return _left(after, about, before) > 0, cost, peak_bytes(after.memory) or 0


def _work(after: Report, before: Report) -> float:
    """Arithmetic, in times that of the original; 1 where that is not known."""
    flops = before.cost.get("flops")
    return after.cost.get("flops", 0.0) / flops if flops else 1.0


def _product_work(plan: Plan) -> float:
    """The arithmetic of a plan's matrix products on each device, or of everything in a
    plan without products."""
    costs = op_costs(plan)
    products = [cost for cost in costs if cost.is_product and cost.flops]
    return sum((cost.flops or 0.0) * cost.executions for cost in products or costs)


def _sent(made: Report | Plan) -> int:
    return sent_bytes(made.collectives or ())


def _left(made: Report | Plan, about: Collective, before: Report | None = None) -> int:
    """What is left of a collective: the bytes of those for the same operations.

    Args:
        before: the original. Of a value that several operations need, XLA names the
            collective after any of them, so one that is there in the original for other
            operations is not counted.
    """
    others, alike = Counter[Any](), []
    for one in (before and before.collectives) or ():
        if not _operations(one) & _operations(about):
            others[_moved(one)] += 1
    for one in made.collectives or ():
        if not _operations(one) & _operations(about):
            others[_moved(one)] -= 1
    for one in made.collectives or ():
        if _operations(one) & _operations(about):
            others[_moved(one)] -= 1
            if others[_moved(one)] < 0:
                alike.append(one)
    return sent_bytes(alike)


def _moved(one: Collective) -> tuple[Any, ...]:
    return one.kind, one.mesh_axes, one.sent_in_all


def _operations(collective: Collective) -> set[tuple[str, str]]:
    """The operations that a collective is for, by name and line."""
    all_of = (collective, *collective.members)
    return {(one.op, one.source) for one in all_of} - {("", "")}


def _as_partitioned(collective: Collective, known: Sequence[Collective]) -> Collective:
    """The partitioner's own collective that one of a plan or final program was."""
    if collective.members or collective in known:
        return collective

    def likeness(one: Collective) -> tuple[bool, ...]:
        same_operation = bool(_operations(one) & _operations(collective))
        same_line = one.source == collective.source
        same_axes = one.mesh_axes == collective.mesh_axes
        same_kind = one.kind == collective.kind
        # A function without a line of its own has that of whoever calls it.
        return same_operation, same_line and same_kind, same_line, same_axes

    alike = max(known, key=likeness, default=collective)
    return alike if any(likeness(alike)) else collective
