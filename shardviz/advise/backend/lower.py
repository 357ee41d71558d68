"""lower_peak(): finds changes that lower a program's peak memory."""

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
from shardviz.base.collective import sent_in_all
from shardviz.base.display import Fact
from shardviz.compiled.report import peak_bytes
from shardviz.compiled.too_large import memory_advice
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import bytes_per_device
from shardviz.programs.backend.bridge import jax_dtype
from shardviz.programs.backend.trace import Output, donated_leaves

_MOST_SPLITS = 4
# The most arguments to split in one change.
_MOST_ARGUMENTS = 6
# The most arguments to split alone.
_MOST_SINGLE = 3
# The most single changes to compile. Combinations are compiled in addition.
_MOST_COMPILED = 8
# The least reduction, as a fraction of the peak.
_LEAST_GAIN = 0.01


def lower_peak(trials: Trials) -> Changes:
    """Finds changes that lower a program's peak memory per device on the target.

    Changes donate or split arguments, split large intermediate values, or make loops
    save fewer residuals for the backward pass. Plans decide which changes to compile
    for the target. A change is refused if it does not lower the peak, or if its values
    differ on simulated devices. For a program that does not fit the target, the peak is
    the amount that the compiler planned.

    Returns:
        Changes sorted by peak memory, then by least time. They include changes that
        lower the peak but still don't fit the target.

    Raises:
        ProgramError: if the program fails for a reason other than its memory.
    """
    trials.require_original()
    trials.budget = Budget({COMPILE: _MOST_COMPILED})
    lower: list[Candidate] = []
    combined: list[Candidate] = []
    refused: list[Refusal] = []
    try:
        peak = peak_bytes(trials.before.without_error.memory)
        promising = _promising(trials, refused)
        for trial in trials.in_turn(COMPILE, promising):
            result = _compiled(trials, trial, peak)
            if isinstance(result, Refusal):
                refused.append(result)
            else:
                lower.append(result)
        lower.sort(key=_rank)
        # Combine the best change with changes of other kinds or of other arguments, if
        # that lowers the peak.
        combined += lower[:1]
        for candidate in lower:
            best = combined[-1]
            if not _subjects(best.edits).isdisjoint(_subjects(candidate.edits)):
                continue
            trials.enter(COMPILE)
            trial = trials.plan([*best.edits, *candidate.edits])
            if isinstance(trial, Trial):
                result = _compiled(trials, trial, best.peak_bytes)
                if isinstance(result, Candidate):
                    combined.append(result)
    except (KeyboardInterrupt, Cancelled):
        pass  # return the changes found so far
    candidates = sorted(lower + combined[1:], key=_rank)
    advice: list[Fact] = _batch_in_parts(trials)
    if not any(candidate.fits for candidate in candidates):
        advice += memory_advice(trials.before)
    return Changes.of(candidates, None, refused, advice, trials.untried)


def _promising(trials: Trials, refused: list[Refusal]) -> list[Trial]:
    """Returns the trials to compile: the best of each kind, then each second best.

    Among these, trials with the least planned memory and traffic come first.

    Args:
        trials: runs the trials.
        refused: refusals of changes that can't be made or promise no gain are added
            here.
    """
    # A plan counts all values as if none were freed, so it never understates a gain.
    before = _planned_bytes(trials.plan_of(trials.program))
    least_gain = _LEAST_GAIN * (peak_bytes(trials.before.without_error.memory) or 0)
    planned: list[tuple[int, Trial]] = []
    programs: set[object] = set()
    for edits in edits_to_try(trials):
        trials.enter(f"plan {len(planned) + 1}")
        trial = trials.plan(edits)
        if isinstance(trial, Refusal):
            refused.append(trial)
            continue
        needed = _planned_bytes(trial.plan)
        # Policies that save the same values give the same program.
        same = needed if isinstance(edits[0], Rematerialise) else tuple(edits)
        if before - needed < least_gain:
            refused.append(NoLessPlanned(tuple(edits)))
        elif same not in programs:
            programs.add(same)
            # What a device receives needs memory, too.
            planned.append((needed + sent_in_all(trial.plan.collectives), trial))
    planned.sort(key=lambda row: row[0])
    turns: Counter[str] = Counter()
    in_turns: list[tuple[int, Trial]] = []
    for _, trial in planned:
        code = trial.edits[0].code
        turns[code] += 1
        in_turns.append((turns[code], trial))
    in_turns.sort(key=lambda row: row[0])
    return [trial for _, trial in in_turns]


def _subjects(edits: Sequence[Edit]) -> set[object]:
    """Returns each edit's kind; for a split of an argument, its kind and the array."""
    subjects = set[object]()
    for edit in edits:
        array = edit.array if isinstance(edit, SplitArgument) else ""
        subjects.add((edit.code, array))
    return subjects


def _planned_bytes(plan: Plan) -> int:
    """Returns the bytes per device that a plan would need if nothing were freed."""
    total = 0
    for op in plan.without_error.ops:
        size = bytes_per_device(op, plan.mesh)
        total += size
        # An argument that is not donated needs memory in addition to the results.
        if op.kind == "argument" and not op.donated:
            total += size
    return total


def _rank(candidate: Candidate) -> tuple[int, float]:
    return candidate.peak_bytes or 0, candidate.least_seconds or 0.0


def _compiled(trials: Trials, trial: Trial, peak: int | None) -> Candidate | Refusal:
    """Compiles a trial, and compares its values if its peak is below `peak` bytes."""
    candidate = trials.compile(trial.edits, trial.program, must_fit=False)
    if isinstance(candidate, Refusal):
        return candidate
    needed = candidate.peak_bytes
    if needed is not None and peak is not None and needed > (1 - _LEAST_GAIN) * peak:
        return NoLessMemory(trial.edits, needed, peak)
    # Comparing values means running the program, so do it only if there is a gain.
    return trials.compare(candidate)


def edits_to_try(trials: Trials) -> Iterator[Sequence[Edit]]:
    """Yields changes that may lower the peak; each is one or more edits."""
    for edit in donations_and_remats(trials):
        yield [edit]
    for split in itertools.islice(_splits(trials), _MOST_SPLITS):
        yield [split]
    yield from _split_arguments(trials)


def _split_arguments(trials: Trials) -> Iterator[list[SplitArgument]]:
    """Yields edits that split the largest arguments over one more mesh axis.

    First all of them over the same axis, then each alone, along each dimension.
    """
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
    for row in requests[:_MOST_SINGLE]:
        for axis, size in program.mesh.shape.items():
            spec = row.spec
            if size > 1 and spec is not None and axis not in spec.axes:
                shape = row.array.shape
                for variant in proposals.variants(shape, spec, [axis], program.mesh):
                    yield [SplitArgument(row.array.name, variant, spec)]


def donations_and_remats(trials: Trials) -> Iterator[Donate | Rematerialise]:
    """Yields edits that keep all shardings: a donation, and one remat per policy."""
    state = _state_and_batch(trials)[0]
    if not state <= set(trials.program.options.get("donate", ())):
        yield Donate(tuple(sorted(state)))
    for policy in POLICIES:
        _, lines = rematerialised(trials.traced.stage.jaxpr, policy)
        if lines:
            yield Rematerialise(policy, lines)


def _batch_in_parts(trials: Trials) -> list[Fact]:
    """Advises gradient accumulation over microbatches, if there is a gradient."""
    batch = _state_and_batch(trials)[1]
    has_gradient = any(op.backward for op in trials.plan_of(trials.program).ops)
    if not batch or not has_gradient:
        return []
    return [Advice("accumulation", arrays=tuple(batch))]


def _splits(trials: Trials) -> Iterator[ConstrainValue]:
    """Yields constraints that split the largest forward values over unused axes."""
    values: dict[str, list[TracedValue]] = {}
    for value in values_of(trials.as_jaxpr):
        if value.places and value.source:
            values.setdefault(value.source, []).append(value)
    plan, mesh = plan_program(trials.program), trials.program.mesh
    peak = trials.before.without_error.memory.peak
    for buffer in peak.buffers if peak is not None else ():
        if buffer.kind != "temporaries" or buffer.phase == "backward":
            continue
        # Constraining any subexpression may split the saved value. Several buffers may
        # come from one source line; its values are tried once.
        for value in values.pop(buffer.source, ()):
            spec = proposals.planned_spec(plan, value)
            for axis, size in mesh.shape.items():
                if size > 1 and axis not in spec.axes:
                    for variant in proposals.variants(value.shape, spec, [axis], mesh):
                        yield value.constrained(variant)


def _state_and_batch(trials: Trials) -> tuple[set[int], list[str]]:
    """Finds the arguments that a train step updates, and the arrays of the batch.

    A step updates an argument if each of its arrays can be paired with a result of the
    same shape and dtype. The batch consists of the remaining arrays that have as many
    rows as the largest of them.

    Returns:
        The positions of updated arguments, and the names of batch arrays.
    """
    program, rest_arrays = trials.program, list[ArraySpec]()
    free = Counter(map(_shape_and_type, trials.traced.outputs))
    donated = program.options.get("donate", ())
    state, tree = set(donated), program.tree
    count = len(program.arrays) if tree is None else len(tree.children())
    # Pair donated arguments with results first.
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
