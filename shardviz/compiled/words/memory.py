"""Sentences for the peak of a program's memory."""

from __future__ import annotations

from collections import Counter

from shardviz.base.axis_parts import parent_axis
from shardviz.base.format import bytes_text, clause, joined
from shardviz.compiled.memory import Buffer, MemoryPeak

# Kinds of buffers below 1/100 of the peak change none of the digits that are shown.
_TINY = 100
# Saved values below 1/10 of the peak are too small to explain the peak.
_SMALL = 10
#: The name of a buffer that belongs to no value of the program.
BY_XLA = "made by XLA"
SAVED = "saved for the backward pass"
ESTIMATE = "An estimate from the plan: compile for exact numbers."
LARGEST_SAVED = (
    "XLA may recompute saved values instead of keeping them. The largest saved values:"
)


def peak(fact: MemoryPeak) -> str:
    """Describes the peak: its bytes, its source line, and the values that fill it.

    >>> peak(MemoryPeak(0, 0))
    'Peak 0 B, all the time: nothing.'
    """
    place, new = ", all the time", fact.filled
    if new is not None:
        place = f" at {new.source or new.title}{clause(', {}', new.phase)}"
    sums: Counter[str] = Counter()
    for buffer in fact.buffers:
        sums[buffer.kind] += buffer.bytes
    kinds = []
    for kind, size in sums.most_common():
        if size * _TINY >= fact.bytes:
            kinds.append(f"{bytes_text(size)} of {kind}")
    by_kind = joined(kinds)
    reason = _saved(fact) or by_kind or "nothing"
    return f"Peak {bytes_text(fact.bytes)}{place}: {reason}."


def _saved(fact: MemoryPeak) -> str:
    """Describes the values that the forward pass saved: their bytes, the loop that
    saved them, and how many bytes are replicated.
    """
    trips: set[int | None] = set()
    size, replicated = 0, Counter[tuple[str, ...]]()
    for buffer in fact.saved:
        size += buffer.bytes
        trips.add(buffer.count)
        replicated[buffer.replicated] += buffer.bytes
    if not size or size * _SMALL < fact.bytes:
        return ""
    words = f"{bytes_text(size)} is saved for the backward pass"
    # If several loops saved values, no single trip count is true for all.
    if len(trips) == 1 and trips.isdisjoint((1, None)):
        words += f", by a loop that runs {trips.pop():,} times"
    del replicated[()]
    for axes, part in replicated.most_common(1):
        words += f", {bytes_text(part)} of it replicated over {' × '.join(axes)}"
    return words


def about_buffer(buffer: Buffer) -> str:
    """Describes a buffer's use, and its size if more axes split it.

    >>> about_buffer(Buffer("dot", 8, "f32[2]", "temporaries", phase="forward", split_bytes=4))
    'temporaries, forward, would be 4 B if the axes of neighbouring values split it, too'
    """
    words = [buffer.kind, buffer.phase]
    if buffer.padding:
        words.append(f"{bytes_text(buffer.padding)} of it padding")
    if buffer.split_bytes is not None and buffer.split_bytes < buffer.bytes:
        words.append(
            f"would be {bytes_text(buffer.split_bytes)} if the axes of neighbouring values"
            " split it, too"
        )
    if buffer.spec is not None:
        # Inside a shard_map, each device has a different block.
        split = {*map(parent_axis, buffer.spec.axes), *buffer.spec.unreduced}
        beyond = [axis for axis in buffer.differs or () if axis not in split]
        if beyond:
            words.append(f"a different block on each device along {joined(beyond)}")
    return ", ".join(filter(None, words))


SENTENCES = {MemoryPeak: peak}
