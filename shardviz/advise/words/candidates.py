"""Sentences about changes of a program: costs, advice, and reasons for refusals."""

from __future__ import annotations

from collections.abc import Callable

from shardviz.advise.advice import Advice
from shardviz.advise.candidates import (
    Candidate,
    Changes,
    DoesNotCompile,
    HardlyLess,
    Misfit,
    MoreTime,
    MoreWork,
    MovedElsewhere,
    NoLessMemory,
    NoLessPlanned,
    NoRoom,
    NotMade,
    Refusal,
    SameCollective,
    ValuesDiffer,
)
from shardviz.advise.words.edits import edits_in_words
from shardviz.base.collective import Collective, sent_in_all
from shardviz.base.format import by_count, joined, plural, told_apart
from shardviz.compiled.op_costs import StepCost
from shardviz.compiled.report import peak_bytes
from shardviz.compiled.words.roofline import time_text

_SHARD_MAP = "Put a jax.shard_map over {axes} around {call}: each device then {does}."
_WHOLE = "XLA gathers the whole batch for {operation} ({source}). "
# Kind of advice -> (the operation, what each device does with its rows of the batch).
_UNSPLIT = {
    "convolution": ("a grouped convolution", "convolves its own rows"),
    "fft": ("an FFT", "transforms its own rows"),
    "top_k": ("top_k", "searches its own rows"),
    "linear algebra": ("a matrix decomposition", "decomposes its own matrices"),
    "kernel": ("a kernel, whose code it cannot split", "calls it with its own rows"),
}
_ADVICE = {
    "loop": "In a loop under jax.vmap ({source}), the devices communicate in every"
    " iteration to learn whether any row needs another one. "
    + _SHARD_MAP.format(
        axes="{axes}", call="the loop", does="loops until its own rows are done"
    ),
    "map": "All devices take part in each step of jax.lax.map ({source}). "
    + _SHARD_MAP.format(
        axes="{axes}", call="the call", does="runs only the steps of its own rows"
    ),
    "random": "All devices compute the same random numbers and exchange them ({source})."
    " With the option below, each device computes only its own numbers; the option changes"
    " the numbers.",
    "parts": "Each part of the batch ({source}) is on only a few devices. Reorder the rows so"
    " that each part has rows from every device; a sum over all parts stays the same.",
    "accumulation": "Split the batch ({arrays}) into parts, and add up their gradients in a"
    " jax.lax.scan: then only one part's values are saved for the backward pass at a time."
    " A Python loop over the parts would be unrolled, and the values of several parts could"
    " be in memory together.",
}
_MOST_CHIPS = 4
#: The heading of refused changes.
DROPPED = "Tried and rejected:"
#: Marks advice, which was not compiled.
NOT_TRIED = "Not tried"


def costs(fact: Candidate, about: Collective | None = None) -> str:
    """Returns bytes sent, memory and least time per device, before and after.

    If `about` is given, bytes of collectives with its kind and mesh axes come first.
    """
    original, result = fact.before.without_error, fact.report.without_error
    before, after = original.memory, fact.peak_bytes
    sides = original.collectives, result.collectives
    # The collectives of a program that does not fit are unknown.
    sides_known = [side for side in sides if side is not None]
    parts = []
    if about is not None:
        name, alike = about.name_with_axes, []
        for side in sides_known:
            matches = [c for c in side if c.name_with_axes == name]
            alike.append(sent_in_all(matches))
        parts.append(_pair(name, *told_apart(alike)))
    if any(sent := [sent_in_all(side) for side in sides_known]):
        parts.append(_pair("sent per device", *told_apart(sent)))
    if (needed := peak_bytes(before)) is not None and after is not None:
        parts.append(_pair("memory per device", *told_apart([needed, after])))
    least, seconds = original.roofline, fact.least_seconds
    if seconds is not None and least is not None and least.seconds is not None:
        times = told_apart([least.seconds, seconds], time_text, 3)
        parts.append(_pair("least time", *times))
    return " · ".join(parts)


def _pair(name: str, *texts: str) -> str:
    # A number that stays the same is written once.
    return f"{name} {' → '.join(dict.fromkeys(texts))}"


def candidate(fact: Candidate) -> str:
    """Describes a change, its cost, and whether the changed program fits."""
    words = f"{edits_in_words(fact.edits)}: {costs(fact)}."
    if fact.fits is False:
        words += " It still does not fit."
    if chips := fact.chips:
        names = joined([chip.title for chip in chips], limit=_MOST_CHIPS)
        words += f" Judging by its compile for CPUs, it would fit {names}."
    return words


def refusal(fact: Refusal) -> str:
    """Describes a change that was tried, and the reason why it is not proposed."""
    why = _REASONS[type(fact)](fact)
    return f"{edits_in_words(fact.edits)}: {why.rstrip('. ')}."


def _not_made(fact: NotMade) -> str:
    return f"the program does not allow this change. {fact.reason}"


def _does_not_compile(fact: DoesNotCompile) -> str:
    return f"the changed program does not compile. {fact.reason}"


def _no_room(fact: NoRoom) -> str:
    return f"the changed program does not fit in memory. {fact.reason}"


def _values_differ(fact: ValuesDiffer) -> str:
    return f"the results change. {fact.evidence}"


def _same_collective(fact: SameCollective) -> str:
    return "the collective remains"


def _moved_elsewhere(fact: MovedElsewhere) -> str:
    after, before = told_apart([fact.sent, fact.sent_before])
    return f"each device then sends {after} in total, instead of {before}"


def _hardly_less(fact: HardlyLess) -> str:
    after, before = told_apart([fact.sent, fact.sent_before])
    return (
        f"each device then sends {after} in total, hardly less than the {before} before"
    )


def _more_work(fact: MoreWork) -> str:
    return "this undoes the parallelism: each device then computes much more"


def _more_time(fact: MoreTime) -> str:
    after, before = told_apart([fact.seconds, fact.seconds_before], time_text, 3)
    return f"the least time of the program becomes {after} instead of {before}"


def _no_less_memory(fact: NoLessMemory) -> str:
    after, before = told_apart([fact.needed or 0, fact.needed_before or 0])
    if (fact.needed or 0) < (fact.needed_before or 0):
        return f"the program then needs {after} per device, hardly less than the {before} before"
    return f"the program then needs {after} per device, instead of {before}"


def _no_less_planned(fact: NoLessPlanned) -> str:
    return "according to its plan, the changed program needs hardly less memory"


_REASONS: dict[type[Refusal], Callable[..., str]] = {
    NotMade: _not_made,
    Misfit: _not_made,
    DoesNotCompile: _does_not_compile,
    NoRoom: _no_room,
    ValuesDiffer: _values_differ,
    SameCollective: _same_collective,
    MovedElsewhere: _moved_elsewhere,
    HardlyLess: _hardly_less,
    MoreWork: _more_work,
    MoreTime: _more_time,
    NoLessMemory: _no_less_memory,
    NoLessPlanned: _no_less_planned,
}


def changes(value: Changes) -> str:
    """Returns the number of changes, and the collective they are for."""
    about = ""
    if value.collective is not None:
        about = f" for the {value.collective.words}"
    if not value:
        return f"No change was found{about}."
    return f"{plural(len(value), 'change')}{about}:"


def advice(fact: Advice) -> str:
    """Describes advice, marked as not tried."""
    return f"{NOT_TRIED}: {to_write(fact)}"


def to_write(fact: Advice) -> str:
    """Describes the code to add by hand, and the reason.

    >>> to_write(Advice("fft", "f.py:3", ("data",)))[:44]
    'XLA gathers the whole batch for an FFT (f.py'
    """
    words = {"source": fact.source, "axes": joined(fact.axes)}
    words["arrays"] = joined(fact.arrays)
    template = _ADVICE.get(fact.kind, _WHOLE + _SHARD_MAP)
    words["operation"], words["does"] = _UNSPLIT.get(fact.kind, ("", ""))
    words["call"] = "this operation"
    return template.format(**words)


def untried(value: Changes) -> str:
    """Returns the number of changes that were not tried, as text; `""` for none."""
    count = value.untried
    verb = by_count(count, "was", "were")
    return f"{plural(count, 'more change')} {verb} not tried." if count else ""


def remedy_step(before: StepCost, after: StepCost) -> str:
    """Compares the planned communication and memory before and after a remedy.

    >>> remedy_step(StepCost(1 << 20, 3 << 30), StepCost(2 << 20, 3 << 30))
    'planned: each device sends 1 MiB → 2 MiB per step and needs about 3 GiB'
    """
    sends = _pair("sends", *told_apart([before.sent, after.sent]))
    needs = _pair("needs about", *told_apart([before.alive, after.alive]))
    return f"planned: each device {sends} per step and {needs}"


SENTENCES = {
    Advice: advice,
    Refusal: refusal,
    Candidate: candidate,
    Changes: changes,
}
