"""lower_peak(): changes that lower the peak of a program's memory, each compiled."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter

from shardviz.advise.advice import Advice
from shardviz.advise.backend import proposals
from shardviz.advise.backend.edited import TracedValue, values_of
from shardviz.advise.backend.remat import POLICIES, rematerialised
from shardviz.advise.backend.trials import COMPILE, Budget, Cancelled, Trial, Trials
from shardviz.advise.candidates import (
    Candidate,
    Changes,
    NoLessMemory,
    NoLessPlanned,
    Refusal,
)
from shardviz.advise.edits import (
    ConstrainValue,
    Donate,
    Edit,
    Rematerialise,
    SplitArgument,
)
from shardviz.base.array_spec import ArraySpec
from shardviz.base.display import Fact
from shardviz.compiled.report import peak_bytes
from shardviz.compiled.too_large import memory_advice
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import bytes_per_device
from shardviz.programs.backend.bridge import jax_dtype
from shardviz.programs.backend.trace import Output, donated_leaves

_MOST_SPLITS = 4
_MOST_ARGUMENTS = 6  # split together
# Of the planned changes; after these, one of each kind is added to the best.
_MOST_COMPILED = 8
_LEAST_GAIN = 0.01  # of the peak


def lower_peak(trials: Trials) -> Changes:
    """Changes after which a program needs less memory per device on the target.

    They donate or split arguments, let loops save less for their backward loops, or
    split large values. Plans show which of them to compile for the target. A change that
    needs no less memory, or whose values differ on simulated devices, is refused. A
    program that does not fit the target is compared by the memory that the compiler
    planned for it.

    Returns:
        The least memory first; among equal ones, the least time. If none fits the
        target, they are returned all the same.

    Raises:
        ProgramError: if the program fails for another reason than its memory.
    """
    trials.require_original()
    trials.budget = Budget({COMPILE: _MOST_COMPILED})
    lower: list[Candidate] = []
    combined: list[Candidate] = []
    refused: list[Refusal] = []
    try:
        peak = peak_bytes(trials.before.memory)
        promising = _promising(trials, refused)
        for trial in trials.in_turn(COMPILE, promising):
            result = _compiled(trials, trial, peak)
            if isinstance(result, Refusal):
                refused.append(result)
            else:
                lower.append(result)
        lower.sort(key=_rank)
        # One change of each kind is added to the best, if that lowers the peak further.
        combined += lower[:1]
        for candidate in lower:
            best = combined[-1]
            codes = {edit.code for edit in best.edits}
            if not codes.isdisjoint(edit.code for edit in candidate.edits):
                continue
            trials.enter(COMPILE)
            trial = trials.plan([*best.edits, *candidate.edits])
            if isinstance(trial, Trial):
                result = _compiled(trials, trial, best.peak_bytes)
                if isinstance(result, Candidate):
                    combined.append(result)
    except (KeyboardInterrupt, Cancelled):
        pass  # the changes so far are returned
    candidates = sorted(lower + combined[1:], key=_rank)
    advice: list[Fact] = _batch_in_parts(trials)
    if not any(candidate.fits for candidate in candidates):
        advice += memory_advice(trials.before)
    return Changes.of(candidates, None, refused, advice, trials.untried)


def _promising(trials: Trials, refused: list[Refusal]) -> list[Trial]:
    """The changes to compile: the best of each kind, then the second of each.

    Those whose plans need least come first.

    Args:
        trials: tries changed programs.
        refused: changes that cannot be made or promise nothing are added here.
    """
    # Plans count all values as if none were freed, so they promise too much at most.
    before = _planned_bytes(trials.plan_of(trials.program))
    least_gain = _LEAST_GAIN * (peak_bytes(trials.before.memory) or 0)
    planned: list[tuple[int, Trial]] = []
    programs: set[tuple[str, int]] = set()
    for edits in edits_to_try(trials):
        trials.enter(f"plan {len(planned) + 1}")
        trial = trials.plan(edits)
        if isinstance(trial, Refusal):
            refused.append(trial)
            continue
        needed, code = _planned_bytes(trial.plan), edits[0].code
        if before - needed < least_gain:
            refused.append(NoLessPlanned(tuple(edits)))
        # Policies that save the same values make one program.
        elif (code, needed) not in programs:
            programs.add((code, needed))
            planned.append((needed, trial))
    planned.sort(key=lambda row: row[0])
    turns: Counter[str] = Counter()
    in_turns: list[tuple[int, Trial]] = []
    for _, trial in planned:
        code = trial.edits[0].code
        turns[code] += 1
        in_turns.append((turns[code], trial))
    in_turns.sort(key=lambda row: row[0])
    return [trial for _, trial in in_turns]


def _planned_bytes(plan: Plan) -> int:
    """The bytes per device of all values of a plan, and of arguments that last."""
    total = 0
    for op in plan.ops:
        size = bytes_per_device(op, plan.mesh)
        total += size
        # An argument that is not donated needs memory beside the results.
        if op.kind == "argument" and not op.donated:
            total += size
    return total


def _rank(candidate: Candidate) -> tuple[int, float]:
    return candidate.peak_bytes or 0, candidate.least_seconds or 0.0


def _compiled(trials: Trials, trial: Trial, peak: int | None) -> Candidate | Refusal:
    """A trial as a candidate, compared, if its peak is below `peak` bytes."""
    candidate = trials.compile(trial.edits, trial.program, must_fit=False)
    if isinstance(candidate, Refusal):
        return candidate
    needed = candidate.peak_bytes
    if needed is not None and peak is not None and needed > (1 - _LEAST_GAIN) * peak:
        return NoLessMemory(trial.edits, needed, peak)
    # Values are compared only if there is something to gain.
    return trials.compare(candidate)


def edits_to_try(trials: Trials) -> Iterator[Sequence[Edit]]:
    """The changes that may lower the peak, each of one or more edits."""
    for edit in donations_and_remats(trials):
        yield [edit]
    for split in itertools.islice(_splits(trials), _MOST_SPLITS):
        yield [split]
    yield from _split_arguments(trials)


def _split_arguments(trials: Trials) -> Iterator[list[SplitArgument]]:
    """For each mesh axis, the largest arguments that it can split."""
    program = trials.program
    requests = [row for row in program.requests if row.bytes_per_device]
    requests.sort(key=lambda row: row.bytes_per_device or 0, reverse=True)
    for axis, size in program.mesh.shape.items():
        edits: list[SplitArgument] = []
        for row in requests if size > 1 else ():
            spec = row.spec
            if spec is None or axis in spec.axes or len(edits) == _MOST_ARGUMENTS:
                continue
            specs = proposals.variants(row.array.shape, spec, [axis], program.mesh)
            for variant in itertools.islice(specs, 1):
                edits.append(SplitArgument(row.array.name, variant, spec))
        if edits:
            yield edits


def donations_and_remats(trials: Trials) -> Iterator[Donate | Rematerialise]:
    """Edits that change no sharding: one donation, and one edit per policy for loops."""
    state = _state_and_batch(trials)[0]
    if not state <= set(trials.program.options.get("donate", ())):
        yield Donate(tuple(sorted(state)))
    for policy in POLICIES:
        _, lines = rematerialised(trials.traced.stage.jaxpr, policy)
        if lines:
            yield Rematerialise(policy, lines)


def _batch_in_parts(trials: Trials) -> list[Fact]:
    """Advice to split the batch of a gradient into parts taken one after another."""
    batch = _state_and_batch(trials)[1]
    has_gradient = any(op.backward for op in trials.plan_of(trials.program).ops)
    if not batch or not has_gradient:
        return []
    return [Advice("accumulation", arrays=tuple(batch))]


def _splits(trials: Trials) -> Iterator[ConstrainValue]:
    """Constraints on the largest values before the backward pass, over free axes."""
    values: dict[str, list[TracedValue]] = {}
    for value in values_of(trials.as_jaxpr):
        if value.places and value.source:
            values.setdefault(value.source, []).append(value)
    plan, mesh = plan_program(trials.program), trials.program.mesh
    peak = trials.before.memory.peak
    for buffer in peak.buffers if peak is not None else ():
        if buffer.kind != "temporaries" or buffer.phase == "backward":
            continue
        # Any part of an expression may split the saved value. Several buffers may have
        # one line, whose values are tried once.
        for value in values.pop(buffer.source, ()):
            spec = proposals.planned_spec(plan, value)
            for axis, size in mesh.shape.items():
                if size > 1 and axis not in spec.axes:
                    for variant in proposals.variants(value.shape, spec, [axis], mesh):
                        yield value.constrained(variant)


def _state_and_batch(trials: Trials) -> tuple[set[int], list[str]]:
    """The arguments that a step returns with new values, and the arrays of the batch.

    Each array of the former has a result of its shape and type to itself. Of the other
    arrays, those with as many rows as the largest are the batch.

    Returns:
        Positions of arguments, and names of arrays.
    """
    program, rest_arrays = trials.program, list[ArraySpec]()
    free = Counter(map(_shape_and_type, trials.traced.outputs))
    donated = program.options.get("donate", ())
    state, tree = set(donated), program.tree
    count = len(program.arrays) if tree is None else len(tree.children())
    # Donated arguments have the first claim to results.
    for argument in sorted(range(count), key=lambda number: number not in donated):
        leaves = donated_leaves(program.replace(options={"donate": (argument,)}))
        arrays = [program.arrays[leaf] for leaf in leaves]
        needed = Counter(map(_shape_and_type, arrays))
        if needed and needed <= free:
            state.add(argument)
            free -= needed
        else:
            rest_arrays += [array for array in arrays if array.rank]
    largest = max(rest_arrays, key=attrgetter("bytes"), default=None)
    batch = []
    for array in rest_arrays:
        if largest is not None and array.shape[0] == largest.shape[0]:
            batch.append(array.name)
    return state, batch


def _shape_and_type(array: ArraySpec | Output) -> tuple[tuple[int, ...], str]:
    return array.shape, str(jax_dtype(str(array.dtype)))
