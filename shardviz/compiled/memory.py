"""MemoryTimeline and MemoryPeak: what is alive while a compiled program runs.

The buffers, their bytes and how long each lives are the compiler's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec

#: What a buffer is for. Padding is counted apart from the buffers that it is in.
KINDS = (
    "arguments", "outputs", "temporaries", "collectives", "constants", "padding",
)  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """A part of a device's memory, while it holds one value.

    Attributes:
        name: the instruction in the compiled text that makes its value.
        bytes: its bytes on each device, padding included.
        shape: type and shape of that value on one device, `f32[8,128]`.
        kind: one of `KINDS`, but `"padding"`.
        op, source: the value's operation in jax, and the user's line, or `""`.
        phase: `"forward"`, `"backward"`, or `""` where its op does not say.
        value: the name of the plan's value or of the argument, or `""`. If a loop fills
            the buffer slice by slice, the value inside the loop that it keeps. If
            several values may be meant, the names of all: `mul_{3,7}`.
        spec: how that value is split, with the dimension in front along which a loop
            stacks it; None if unknown. Inside a `shard_map` the value is one device's
            block, and its spec says how the other axes split that.
        replicated: the mesh axes over which every device has the same bytes, as far as
            that is known.
        differs: the mesh axes along which devices may hold different bytes, as read off
            the compiled code; None if unknown.
        start, end: its first and its last position in the timeline.
        count: how often loops run what makes it; None where that is not known.
        split_bytes: what it would take if it were split as its neighbours are; None
            where that is not known.
        padding: how many of its bytes hold nothing.
        stacked: whether a loop fills it slice by slice.
        transposed: whether its dimensions are known to be in another order than those
            of its value.
        result: the number of the program's result that it is; None if it isn't one.
        group: the plan's values that may be meant, if there are several: they share an
            operation, a line and a spec.
        places: operations and lines that its value may be known by, the likeliest
            first.
        reads, leads: the arguments that its value is computed from, and the results it
            takes part in, one bit each, by number.
        loop: the line of the innermost loop that makes its value; `""` outside of loops
            and where it is unknown.

    >>> Buffer("dot.3", 4096, "f32[8,128]", "temporaries", start=2, end=7).end
    7
    """

    name: str
    bytes: int
    shape: str
    kind: str
    op: str = ""
    source: str = ""
    phase: str = ""
    value: str = ""
    spec: Spec | None = None
    replicated: tuple[str, ...] = ()
    start: int = 0
    end: int = 0
    count: int | None = 1
    split_bytes: int | None = None
    padding: int = 0
    differs: tuple[str, ...] | None = None
    stacked: bool = False
    transposed: bool = False
    result: int | None = None
    group: tuple[str, ...] = ()
    places: tuple[tuple[str, str], ...] = ()
    reads: int = 0
    leads: int = 0
    loop: str = ""

    @property
    def title(self) -> str:
        """Its value, else the operation that makes it, else the compiler's name.

        >>> Buffer("fusion", 8, "f32[2]", "temporaries", "jit(step)/mul").title
        'mul'
        """
        return self.value or self.op.rpartition("/")[2] or self.name


@dataclass(frozen=True, repr=False)
class MemoryTimeline:
    """The live bytes of each device over the order in which a program allocates.

    Position 0 is its beginning, with what is there all the time. At each position behind
    it one more buffer is filled, in new memory or in that of one which is not needed any
    more; those of a loop's body once.

    Attributes:
        buffers: every buffer.
        arguments: the names of the program's arguments, in the order of the bits of
            `Buffer.reads`.

    >>> kept = Buffer("a", 8, "f32[2]", "arguments", start=0, end=1)
    >>> made = Buffer("b", 4, "f32[1]", "temporaries", start=1, end=1)
    >>> found = MemoryTimeline((kept, made))
    >>> found.total.tolist(), found.bytes["temporaries"].tolist()
    ([8, 12], [0, 4])
    >>> found.peak.at, [buffer.name for buffer in found.peak.buffers]
    (1, ['a', 'b'])
    """

    buffers: tuple[Buffer, ...]
    arguments: tuple[str, ...] = ()

    @cached_property
    def times(self) -> np.ndarray:
        """The positions, `[positions]`: 0, 1, 2 and so on."""
        # What is there all the time is alive at the last position, too.
        return np.arange(1 + max(map(attrgetter("end"), self.buffers), default=0))

    @cached_property
    def bytes(self) -> Mapping[str, np.ndarray]:
        """For each of `KINDS` the live bytes at every position, int64 `[positions]`."""
        live = {kind: np.zeros(len(self.times), np.int64) for kind in KINDS}
        # Most buffers are alive for a few positions only, so this is fast.
        for buffer in self.buffers:
            alive = slice(buffer.start, buffer.end + 1)
            live[buffer.kind][alive] += buffer.bytes - buffer.padding
            live["padding"][alive] += buffer.padding
        for each in live.values():
            each.flags.writeable = False  # as it is kept
        return live

    @cached_property
    def total(self) -> np.ndarray:
        """The live bytes of all kinds, int64 `[positions]`."""
        return np.sum([*self.bytes.values()], axis=0)

    @cached_property
    def filled(self) -> Mapping[int, Buffer]:
        """Position to the buffer that begins there; at 0 there is none."""
        return {buffer.start: buffer for buffer in self.buffers if buffer.start}

    def alive(self, at: int) -> tuple[Buffer, ...]:
        """The buffers alive at a position, the largest first."""
        found = [b for b in self.buffers if b.start <= at <= b.end]
        return tuple(sorted(found, key=attrgetter("bytes"), reverse=True))

    @cached_property
    def peak(self) -> MemoryPeak:
        """The first moment at which the most is alive."""
        # At the beginning nothing is filled: then as much is needed all the time.
        at = int(self.total.argmax())
        new = self.filled.get(at)
        return MemoryPeak(int(self.total[at]), at, new, self.alive(at))

    def __repr__(self) -> str:
        return f"MemoryTimeline({len(self.times):,} positions, {len(self.buffers):,} buffers)"


@dataclass(frozen=True)
class MemoryPeak(Fact):
    """The moment at which a compiled program needs the most memory.

    Attributes:
        bytes: how many on each device, which is the sum over its buffers.
        at: the position in the timeline.
        filled: the buffer that is filled then. None where as much is needed all the
            time, so that no operation is to blame.
        buffers: what is alive then, the largest first.

    >>> kept = Buffer("dot", 3072, "f32[6,128]", "temporaries", phase="forward")
    >>> last = Buffer("add", 0, "f32[]", "temporaries", "", "mlp.py:31", "backward")
    >>> found = MemoryPeak(3072, 3, last, (kept, last))
    >>> found.source
    'mlp.py:31'
    >>> print(found)
    Peak 3 KiB at mlp.py:31, backward: 3 KiB are forward values saved for it.
    """

    bytes: int
    at: int
    filled: Buffer | None = None
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)

    @property
    def op(self) -> str:
        """The operation in jax that fills a buffer then, or `""`."""
        return "" if self.filled is None else self.filled.op

    @property
    def source(self) -> str:
        """The user's line of that operation, or `""`."""
        return "" if self.filled is None else self.filled.source

    @property
    def saved(self) -> tuple[Buffer, ...]:
        """What the forward pass has left for a peak in the backward pass."""
        if self.filled is None or self.filled.phase != "backward":
            return ()
        found = []
        for buffer in self.buffers:
            # What XLA itself computes a second time was not saved.
            made_again = ".remat" in buffer.name
            computed = buffer.kind in ("temporaries", "collectives")
            if computed and buffer.phase == "forward" and not made_again:
                found.append(buffer)
        return tuple(found)
