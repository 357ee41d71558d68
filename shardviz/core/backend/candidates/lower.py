"""What would lower the peak of a program's memory, each change compiled."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shardviz.core.backend.bridge import jax_dtype
from shardviz.core.backend.candidates.microbatches import batch_arrays, compared_sums
from shardviz.core.backend.candidates.proposals import (
    constraint_on,
    planned_spec,
    variants,
)
from shardviz.core.backend.candidates.remat import POLICIES, rematerialised
from shardviz.core.backend.candidates.trials import Trials
from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.backend.tracing.edited import values_of
from shardviz.core.backend.tracing.trace import donated_leaves
from shardviz.core.program.candidates import Candidate, Changes, Edit, Refusal, edit
from shardviz.core.program.program import Program
from shardviz.core.program.report import needed_bytes

_MOST_SPLITS = 4
_PARTS = (2, 4)  # of a batch


def lower_peak(trials: Trials) -> Changes:
    """Changes after which a program needs less memory per device on the target.

    Arguments are donated, loops save less for their backward loops, and batches are
    taken in parts. Each is compiled for the target; what needs no less memory,
    or gives other values on simulated devices, is among the refused.

    Args:
        trials: the program and the target.

    Returns:
        The least memory first; of equal ones the one with the least time.

    Raises:
        ProgramError: where the program itself does not compile.
    """
    trials.require_original()
    least = needed_bytes(trials.before.memory)
    kept: list[Candidate] = []
    refused: list[Refusal] = []
    for one in edits_to_try(trials):
        found = _tried(trials, [one], least)
        if isinstance(found, Refusal):
            refused.append(found)
        else:
            kept.append(found)
    kept.sort(key=_rank)
    # What does not change the same thing can be had together, where it lowers the peak
    # further.
    together = kept[:1]
    for one in kept:
        if one.edits[0].code not in {edit.code for edit in together[-1].edits}:
            edits = sorted([*together[-1].edits, *one.edits], key=_is_inside)
            found = _tried(trials, edits, together[-1].peak_bytes)
            if isinstance(found, Candidate):
                together.append(found)
    return Changes.of(sorted(kept + together[1:], key=_rank), refused=refused)


def _is_inside(edit: Edit) -> bool:
    # A smaller batch is traced anew, so it comes before edits of what was traced.
    return edit.code != "microbatches"


def _tried(trials: Trials, edits: list[Edit], least: int | None) -> Candidate | Refusal:
    """Some edits as a candidate, if the peak is then below `least` bytes."""
    program = trials.made(edits)
    if isinstance(program, Refusal):
        return program
    needed = needed_bytes(trials.compiled(program).memory)
    # Values are compared where there is something to gain.
    if least is not None and needed is not None and needed >= least:
        return Refusal(tuple(edits), "no less memory", "", needed, least)
    for one in edits:
        if one.code == "microbatches":
            same = compared_sums(trials.program, one)
            if not same.ok:
                code = "values differ" if same.ok is False else "not compared"
                return Refusal(tuple(edits), code, same.detail)
    return trials.candidate(edits, program)


def _rank(candidate: Candidate) -> tuple[int, float]:
    seconds = candidate.least_seconds
    return candidate.peak_bytes or 0, float("inf") if seconds is None else seconds


def edits_to_try(trials: Trials) -> Iterator[Edit]:
    """The changes that may lower the peak."""
    arguments = _donatable(trials)
    if arguments:
        yield edit("donate", arguments=arguments)
    for policy in POLICIES:
        _, lines = rematerialised(trials.traced.stage.jaxpr, policy)
        if lines:
            yield edit("remat", policy=policy, sources=tuple(dict.fromkeys(lines)))
    yield from itertools.islice(_splits(trials), _MOST_SPLITS)
    names = [trials.program.arrays[i].name for i in batch_arrays(trials.traced)]
    for count in _PARTS if names else ():
        yield edit("microbatches", count=count, arrays=tuple(names))


def _splits(trials: Trials) -> Iterator[Edit]:
    """Constraints on the largest values saved for the backward pass, over free axes."""
    peak = trials.before.memory.peak
    saved = []
    for buffer in peak.buffers if peak is not None else ():
        if buffer.kind == "temporaries" and buffer.phase == "forward":
            saved.append((buffer.source, buffer.op.rpartition("/")[2]))
    if not saved:
        return
    plan = plan_program(trials.program)
    mesh = trials.program.mesh
    values = {}
    for value in values_of(trials.as_jaxpr):
        if value.places and value.source:
            values.setdefault((value.source, value.name), value)
    for value in filter(None, map(values.get, dict.fromkeys(saved))):
        spec = planned_spec(plan, value)
        free = [a for a, size in mesh.shape.items() if size > 1 and a not in spec.axes]
        if free:
            for changed in variants(value.shape, spec, free, mesh):
                yield constraint_on(value, changed)


def _donatable(trials: Trials) -> tuple[int, ...]:
    """The positions of all arguments to donate, if there are others than now.

    Each array of an argument has a result of its shape and type for itself.
    """
    program = trials.program
    free = Counter((o.shape, str(o.dtype)) for o in trials.traced.outputs)
    donated = donated_leaves(program)
    for position in donated:
        free[_kind(program, position)] -= 1
    found = list(program.options.get("donate", ()))
    before = len(found)
    for argument, leaves in enumerate(_leaves_by_argument(program)):
        wanted = Counter(_kind(program, position) for position in leaves)
        fits = all(free[kind] >= count for kind, count in wanted.items())
        if argument not in found and leaves and fits:
            found.append(argument)
            free -= wanted
    return tuple(sorted(found)) if len(found) > before else ()


def _kind(program: Program, position: int) -> tuple[tuple[int, ...], str]:
    array = program.arrays[position]
    return array.shape, str(jax_dtype(array.dtype))


def _leaves_by_argument(program: Program) -> list[range]:
    """The positions of the arrays that each argument holds."""
    tree: Any = program.tree
    if tree is None:
        return [range(i, i + 1) for i in range(len(program.arrays))]
    leaves, start = [], 0
    for child in tree.children():
        leaves.append(range(start, start + child.num_leaves))
        start += child.num_leaves
    return leaves
