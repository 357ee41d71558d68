"""What would lower the peak of a program's memory, each change compiled."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from shardviz.core.backend.bridge import jax_dtype
from shardviz.core.backend.candidates import proposals
from shardviz.core.backend.candidates.microbatches import compared_sums
from shardviz.core.backend.candidates.remat import POLICIES, rematerialised
from shardviz.core.backend.candidates.trials import Trials, in_time
from shardviz.core.backend.shardy.build_plan import plan_program
from shardviz.core.backend.tracing.edited import values_of
from shardviz.core.backend.tracing.trace import donated_leaves
from shardviz.core.program.candidates import Candidate, Changes, Edit, Refusal, edit
from shardviz.core.program.report import peak_bytes

_MOST_SPLITS = 4
_PARTS = (2, 4)  # of a batch
_SECONDS = 90  # once something is found


def lower_peak(trials: Trials) -> Changes:
    """Changes after which a program needs less memory per device on the target.

    Arguments are donated, loops save less for their backward loops, and batches are
    taken in parts. Each is compiled for the target; what needs no less memory,
    or gives other values on simulated devices, is among the refused.

    Returns:
        The least memory first; of equal ones the one with the least time.

    Raises:
        ProgramError: where the program itself does not compile.
    """
    trials.require_original()
    kept: list[Candidate] = []
    refused: list[Refusal] = []
    edits = list(edits_to_try(trials))
    for one in in_time(trials, "compile", _SECONDS, edits, kept):
        found = _tried(trials, [one], peak_bytes(trials.before.memory))
        if isinstance(found, Refusal):
            refused.append(found)
        else:
            kept.append(found)
    kept.sort(key=_rank)
    # One of each kind is added to the best, where that lowers the peak further.
    together = kept[:1]
    for one in kept:
        edits, (other,) = together[-1].edits, one.edits
        if other.code not in map(attrgetter("code"), edits):
            found = _tried(trials, [*edits, other], together[-1].peak_bytes)
            if isinstance(found, Candidate):
                together.append(found)
    found = sorted(kept + together[1:], key=_rank)
    return Changes.of(found, refused=refused, untried=trials.untried)


def _rank(candidate: Candidate) -> tuple[int, float]:
    return candidate.peak_bytes or 0, candidate.least_seconds or 0.0


def _tried(trials: Trials, edits: list[Edit], least: int | None) -> Candidate | Refusal:
    """Some edits as a candidate, if the peak is then below `least` bytes."""
    # A smaller batch is traced anew, before edits of what was traced.
    edits.sort(key=lambda edit: edit.code != "microbatches")
    program = trials.made(edits)
    if isinstance(program, Refusal):
        return program
    needed = peak_bytes(trials.compiled(program).memory)
    # Values are compared where there is something to gain.
    if least is not None and needed is not None and needed >= least:
        return Refusal(tuple(edits), "no less memory", "", needed, least)
    if edits[0].code == "microbatches":
        same = compared_sums(trials.program, edits[0])
        if not same.ok:
            code = "values differ" if same.ok is False else "not compared"
            return Refusal(tuple(edits), code, same.detail)
    return trials.candidate(edits, program)


def edits_to_try(trials: Trials) -> Iterator[Edit]:
    """The changes that may lower the peak."""
    yield from donations_and_remats(trials)
    yield from itertools.islice(_splits(trials), _MOST_SPLITS)
    batch = _state_and_batch(trials)[1]
    for count in _PARTS if batch else ():
        yield edit("microbatches", count=count, arrays=tuple(batch))


def donations_and_remats(trials: Trials) -> Iterator[Edit]:
    """Those that change no sharding: one donation, and a policy for loops each."""
    state = _state_and_batch(trials)[0]
    if not state <= set(trials.program.options.get("donate", ())):
        yield edit("donate", arguments=tuple(sorted(state)))
    for policy in POLICIES:
        _, lines = rematerialised(trials.traced.stage.jaxpr, policy)
        if lines:
            yield edit("remat", policy=policy, sources=lines)


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
