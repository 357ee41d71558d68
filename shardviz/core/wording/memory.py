"""The peak of a program's memory, in words."""

from __future__ import annotations

from collections import Counter

from shardviz.core.format import bytes_text, joined
from shardviz.core.program.memory import Buffer, MemoryPeak

_MOST_KINDS = 3


def peak(fact: MemoryPeak) -> str:
    """How much is needed at the peak, where that is, and what for."""
    where = fact.source or fact.name
    words = f"Peak {bytes_text(fact.bytes)}"
    if where:
        words += f" at {where}"
    if fact.phase:
        words += f", {fact.phase}"
    words += ": "
    if fact.saved:
        return words + _saved(fact) + "."
    sums: Counter[str] = Counter()
    for buffer in fact.buffers:
        sums[buffer.kind] += buffer.bytes
    parts = [f"{bytes_text(n)} of {kind}" for kind, n in sums.most_common(_MOST_KINDS)]
    return f"{words}{joined(parts)}."


def _saved(fact: MemoryPeak) -> str:
    """What the forward pass left, in how many steps, and what of it is replicated."""
    words = f"{bytes_text(_sum(fact.saved))} are forward values saved for it"
    looped = [b for b in fact.saved if b.count is None or b.count > 1]
    trips = {b.count for b in looped}
    # Of several loops no one number is true of all.
    if len(trips) == 1 and _sum(looped) == _sum(fact.saved):
        (count,) = trips
        if count is not None:
            words += f", by a loop that runs {count:,} times"
    replicated: Counter[tuple[str, ...]] = Counter()
    for buffer in fact.saved:
        replicated[fact.replicated(buffer)] += buffer.bytes
    del replicated[()]
    for axes, size in replicated.most_common(1):
        words += f", {bytes_text(size)} of them replicated over {' × '.join(axes)}"
    return words


def _sum(buffers: tuple[Buffer, ...] | list[Buffer]) -> int:
    return sum(buffer.bytes for buffer in buffers)


SENTENCES = {MemoryPeak: peak}
