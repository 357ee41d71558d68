"""The peak of a program's memory, in words."""

from __future__ import annotations

from collections import Counter

from shardviz.base.axis_parts import parent_axis
from shardviz.base.format import bytes_text, joined
from shardviz.compiled.memory import Buffer, MemoryPeak

_MOST_KINDS = 3
_SMALL = 10  # what is less than this part of a peak does not explain it


def peak(fact: MemoryPeak) -> str:
    """How much is needed at the peak, where that is, and what for.

    >>> peak(MemoryPeak(0, 0))
    'Peak 0 B, all the time: nothing.'
    """
    where, new = ", all the time", fact.filled
    if new is not None:
        where = f" at {new.source or new.title}"
        where += f", {new.phase}" if new.phase else ""
    sums: Counter[str] = Counter()
    for buffer in fact.buffers:
        sums[buffer.kind] += buffer.bytes
    most = sums.most_common(_MOST_KINDS)
    what = joined([f"{bytes_text(size)} of {kind}" for kind, size in most]) or "nothing"
    return f"Peak {bytes_text(fact.bytes)}{where}: {_saved(fact) or what}."


def _saved(fact: MemoryPeak) -> str:
    """What the forward pass left, in how many steps, and what of it is replicated."""
    trips: set[int | None] = set()
    size, replicated = 0, Counter[tuple[str, ...]]()
    for buffer in fact.saved:
        size += buffer.bytes
        trips.add(buffer.count)
        replicated[buffer.replicated] += buffer.bytes
    if not size or size * _SMALL < fact.bytes:
        return ""
    words = f"{bytes_text(size)} are forward values saved for it"
    # Of several loops no one number is true of all.
    if len(trips) == 1 and trips.isdisjoint((1, None)):
        words += f", by a loop that runs {trips.pop():,} times"
    del replicated[()]
    for axes, part in replicated.most_common(1):
        words += f", {bytes_text(part)} of them replicated over {' × '.join(axes)}"
    return words


def about_buffer(buffer: Buffer) -> str:
    """What a buffer is for, and what it would take if it were split.

    >>> about_buffer(Buffer("dot", 8, "f32[2]", "temporaries", phase="forward", split_bytes=4))
    'temporaries, forward, 4 B if split as its neighbours'
    """
    words = [buffer.kind, buffer.phase]
    if buffer.padding:
        words.append(f"{bytes_text(buffer.padding)} of it padding")
    if buffer.split_bytes is not None and buffer.split_bytes < buffer.bytes:
        words.append(f"{bytes_text(buffer.split_bytes)} if split as its neighbours")
    if buffer.spec is not None:
        # Inside a shard_map each device has a block of its own.
        split = {*map(parent_axis, buffer.spec.axes), *buffer.spec.unreduced}
        beyond = [axis for axis in buffer.differs or () if axis not in split]
        if beyond:
            words.append(f"another block for each device along {joined(beyond)}")
    return ", ".join(filter(None, words))


SENTENCES = {MemoryPeak: peak}
