"""What would lower the peak of a program's memory, each change compiled."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from shardviz.advise.advice import Advice
from shardviz.advise.backend import proposals
from shardviz.advise.backend.edited import values_of
from shardviz.advise.backend.remat import POLICIES, rematerialised
from shardviz.advise.backend.trials import Trials, in_turn
from shardviz.advise.candidates import Candidate, Changes, Edit, Refusal, edit
from shardviz.base.display import Fact
from shardviz.compiled.report import peak_bytes
from shardviz.compiled.too_large import memory_advice
from shardviz.plans.backend.build_plan import plan_program
from shardviz.plans.plan_values import bytes_per_device
from shardviz.programs.backend.bridge import jax_dtype
from shardviz.programs.backend.trace import donated_leaves

_MOST_SPLITS = 4
_MOST_ARGUMENTS = 6  # that are split together
# Of what was planned; then up to one of each kind is added to the best. The budget
# counts compiles and not seconds, so that a busy machine finds the same changes.
_MOST_COMPILED = 8
_LEAST_GAIN = 0.01  # of the peak


def lower_peak(trials: Trials) -> Changes:
    """Changes after which a program needs less memory per device on the target.

    Arguments are donated or split, loops save less for their backward loops, large
    values are split. Plans choose which of these are
    compiled for the target. A change that needs no less memory, or has other values on
    simulated devices, is among the refused. A program that does not fit the target is
    compared by the memory that the compiler had in mind.

    Returns:
        The least memory first; of equal ones the one with the least time. The first ones
        may not fit, if nothing does.

    Raises:
        ProgramError: if the program fails otherwise than by its memory.
    """
    trials.require_original()
    kept: list[Candidate] = []
    together: list[Candidate] = []
    refused: list[Refusal] = []
    try:
        least = peak_bytes(trials.before.memory)
        ordered = _ordered(trials, refused)
        for edits in in_turn(trials, "compile", ordered, _MOST_COMPILED):
            found = _tried(trials, edits, least)
            if isinstance(found, Refusal):
                refused.append(found)
            else:
                kept.append(found)
        kept.sort(key=_rank)
        # One of each kind is added to the best, if that lowers the peak further.
        together += kept[:1]
        for one in kept:
            edits, codes = together[-1].edits, {one.code for one in together[-1].edits}
            if codes.isdisjoint(edit.code for edit in one.edits):
                trials.enter("compile")
                found = _tried(trials, [*edits, *one.edits], together[-1].peak_bytes)
                if isinstance(found, Candidate):
                    together.append(found)
    except KeyboardInterrupt:
        pass  # the changes so far are returned
    found = sorted(kept + together[1:], key=_rank)
    advice: list[Fact] = _batch_in_parts(trials)
    if not any(one.fits for one in found):
        advice += memory_advice(trials.before)
    return Changes.of(found, None, refused, advice, trials.untried)


def _ordered(trials: Trials, refused: list[Refusal]) -> list[list[Edit]]:
    """The changes to compile, those first whose plans need least; the best of each kind
    before the second of any.

    Args:
        trials: tries changed programs.
        refused: changes whose plans promise nothing are added here.
    """
    # Plans count all values as if none were freed, so they promise too much at most.
    before = _planned_bytes(trials, ())
    least_gain = _LEAST_GAIN * (peak_bytes(trials.before.memory) or 0)
    planned: list[tuple[int, list[Edit]]] = []
    seen: set[tuple[str, int]] = set()
    for edits in edits_to_try(trials):
        trials.enter(f"plan {len(planned) + 1}")
        needed, code = _planned_bytes(trials, edits), edits[0].code
        if before - needed < least_gain:
            refused.append(Refusal(tuple(edits), "no less planned"))
        # Policies that save the same values make one program.
        elif (code, needed) not in seen:
            seen.add((code, needed))
            planned.append((needed, edits))
    planned.sort(key=lambda row: row[0])
    turns: Counter[str] = Counter()
    ordered: list[tuple[int, list[Edit]]] = []
    for _, edits in planned:
        turns[edits[0].code] += 1
        ordered.append((turns[edits[0].code], edits))
    return [edits for _, edits in sorted(ordered, key=lambda row: row[0])]


def _planned_bytes(trials: Trials, edits: Sequence[Edit]) -> int:
    """The bytes of all values and of what lasts, by the plan of a changed program."""
    program = trials.made(edits)
    if isinstance(program, Refusal):
        return 0  # it is refused without a compile
    plan, total = plan_program(trials.quick(program)), 0
    for op in plan.ops:
        size = bytes_per_device(op, plan.mesh)
        total += size
        # Results take the memory of donated arguments.
        total += size if op.kind == "argument" and not op.donated else 0
    return total


def _rank(candidate: Candidate) -> tuple[int, float]:
    return candidate.peak_bytes or 0, candidate.least_seconds or 0.0


def _tried(
    trials: Trials, edits: Sequence[Edit], least: int | None
) -> Candidate | Refusal:
    """Some edits as a candidate, if the peak is then below `least` bytes."""
    program = trials.made(edits)
    if isinstance(program, Refusal):
        return program
    report = trials.compiled(program)
    needed = peak_bytes(report.memory)
    # Values are compared only if there is something to gain.
    gains = needed is None or least is None or needed <= (1 - _LEAST_GAIN) * least
    if not gains:
        return Refusal(tuple(edits), "no less memory", "", needed, least)
    return trials.candidate(edits, program, must_fit=False)


def edits_to_try(trials: Trials) -> Iterator[list[Edit]]:
    """The changes that may lower the peak, each of one or more edits."""
    for one in donations_and_remats(trials):
        yield [one]
    for one in itertools.islice(_splits(trials), _MOST_SPLITS):
        yield [one]
    yield from _split_arguments(trials)


def _split_arguments(trials: Trials) -> Iterator[list[Edit]]:
    """The largest arguments split over one more axis, all that an axis can split."""
    program = trials.program
    requests = [row for row in program.requests if row.bytes_per_device]
    requests.sort(key=lambda row: row.bytes_per_device or 0, reverse=True)
    for axis, size in program.mesh.shape.items():
        edits = []
        for row in requests if size > 1 else ():
            spec = row.spec
            if spec is None or axis in spec.axes or len(edits) == _MOST_ARGUMENTS:
                continue
            more = proposals.variants(row.array.shape, spec, [axis], program.mesh)
            for changed in itertools.islice(more, 1):
                fields = {"array": row.array.name, "spec": changed, "before": spec}
                edits.append(edit("argument", **fields))
        if edits:
            yield edits


def donations_and_remats(trials: Trials) -> Iterator[Edit]:
    """Those that change no sharding: one donation, and a policy for loops each."""
    state = _state_and_batch(trials)[0]
    if not state <= set(trials.program.options.get("donate", ())):
        yield edit("donate", arguments=tuple(sorted(state)))
    for policy in POLICIES:
        _, lines = rematerialised(trials.traced.stage.jaxpr, policy)
        if lines:
            yield edit("remat", policy=policy, sources=lines)


def _batch_in_parts(trials: Trials) -> list[Fact]:
    """Advice to take the batch of a gradient in parts."""
    batch = _state_and_batch(trials)[1]
    has_gradient = any(
        op.backward for op in plan_program(trials.quick(trials.program)).ops
    )
    if not batch or not has_gradient:
        return []
    return [Advice("accumulation", arrays=tuple(batch))]


def _splits(trials: Trials) -> Iterator[Edit]:
    """Constraints on the largest values before the backward pass, over free axes."""
    values: dict[str, list[Any]] = {}
    for value in values_of(trials.as_jaxpr):
        if value.places and value.source:
            values.setdefault(value.source, []).append(value)
    plan, mesh = plan_program(trials.program), trials.program.mesh
    peak = trials.before.memory.peak
    for buffer in peak.buffers if peak is not None else ():
        if buffer.kind != "temporaries" or buffer.phase == "backward":
            continue
        # Of an expression any part may split what is saved; several buffers have a line.
        for value in values.pop(buffer.source, ()):
            spec = proposals.planned_spec(plan, value)
            for axis, size in mesh.shape.items():
                if size > 1 and axis not in spec.axes:
                    for changed in proposals.variants(value.shape, spec, [axis], mesh):
                        yield proposals.constraint_on(value, changed)


def _state_and_batch(trials: Trials) -> tuple[set[int], list[str]]:
    """The arguments that come back with new values, and the arrays of the batch.

    Each array of the first has a result of its shape and type for itself; of the others
    those that have as many rows as the largest are the batch.
    """
    program, others, names = trials.program, [], []
    free = Counter(map(_kind, trials.traced.outputs))
    donated = program.options.get("donate", ())
    state, tree = set(donated), program.tree
    count = len(program.arrays) if tree is None else len(tree.children())
    # What is donated has its results first.
    for argument in sorted(range(count), key=lambda i: i not in donated):
        one = program.replace(options={"donate": (argument,)})
        arrays = [program.arrays[i] for i in donated_leaves(one)]
        wanted = Counter(map(_kind, arrays))
        if wanted and wanted <= free:
            state.add(argument)
            free -= wanted
        else:
            others += filter(attrgetter("rank"), arrays)
    largest = max(others, key=attrgetter("bytes"), default=None)
    for array in others:
        if largest is not None and array.shape[0] == largest.shape[0]:
            names.append(array.name)
    return state, names


def _kind(array: Any) -> tuple[tuple[int, ...], str]:
    return array.shape, str(jax_dtype(str(array.dtype)))
