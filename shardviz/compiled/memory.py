"""MemoryTimeline and MemoryPeak: the buffers that are alive while a program runs.

The buffers, their bytes and their lifetimes are those that the compiler reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec

#: The uses of memory. Padding is counted separately from the buffers that it is in.
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
        kind: one of `KINDS` except `"padding"`.
        op, source: the value's operation in jax, and the user's line, or `""`.
        phase: `"forward"`, `"backward"`, or `""` if its op is in neither pass.
        value: the name of the plan's value or of the argument, or `""`. If a loop fills
            the buffer slice by slice, the value inside the loop that is stacked in it.
            If it may hold several values, the names of all: `mul_{3,7}`.
        spec: how that value is split. If a loop stacks the value, its first dimension is
            the one along which it is stacked. Inside a `shard_map` the value is one
            device's block, and its spec shows how the other axes split that block. None
            if unknown.
        replicated: the mesh axes over which every device is known to have the same
            bytes.
        differs: the mesh axes along which devices may hold different bytes, read from
            the compiled code; None if unknown.
        start, end: its first and last position in the timeline.
        count: how often loops run the instruction that makes it; None if unknown.
        split_bytes: its bytes if it were split as its neighbours are; None if unknown.
        padding: how many of its bytes are unused.
        stacked: whether a loop fills it slice by slice.
        transposed: whether its dimensions are known to be in another order than those
            of its value.
        result: the number of the program's result that it is; None if it isn't one.
        group: the values of the plan that it may hold, if there are several: they share
            an operation, a line and a spec.
        places: operations and lines that the plan may have for its value, the likeliest
            first.
        reads, leads: the arguments that its value is computed from, and the results that
            are computed from it, one bit each, by number.
        loop: the line of the innermost loop that makes its value; `""` outside of loops
            or if unknown.

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
        """The name of its value, of its operation, or the compiler's name for it.

        >>> Buffer("fusion", 8, "f32[2]", "temporaries", "jit(step)/mul").title
        'mul'
        """
        return self.value or self.op.rpartition("/")[2] or self.name


@dataclass(frozen=True, repr=False)
class MemoryTimeline:
    """The live bytes on each device, in the order in which a program fills its buffers.

    Position 0 is the start of the program, with the buffers that are always alive. At
    each later position one more buffer is filled, in new memory or in memory that is no
    longer needed. Buffers of a loop's body are counted once.

    Attributes:
        buffers: every buffer.
        arguments: the names of the program's arguments, in the order of the bits of
            `Buffer.reads`.

    >>> argument = Buffer("a", 8, "f32[2]", "arguments", start=0, end=1)
    >>> product = Buffer("b", 4, "f32[1]", "temporaries", start=1, end=1)
    >>> timeline = MemoryTimeline((argument, product))
    >>> timeline.total.tolist(), timeline.bytes["temporaries"].tolist()
    ([8, 12], [0, 4])
    >>> timeline.peak.at, [buffer.name for buffer in timeline.peak.buffers]
    (1, ['a', 'b'])
    """

    buffers: tuple[Buffer, ...]
    arguments: tuple[str, ...] = ()

    @cached_property
    def times(self) -> np.ndarray:
        """The positions, `[positions]`: 0, 1, 2 and so on."""
        # Buffers that are always alive end at the last position.
        return np.arange(1 + max(map(attrgetter("end"), self.buffers), default=0))

    @cached_property
    def bytes(self) -> Mapping[str, np.ndarray]:
        """The live bytes of each of `KINDS` at every position, int64 `[positions]`."""
        live = {kind: np.zeros(len(self.times), np.int64) for kind in KINDS}
        # Most buffers are alive for a few positions only, so this is fast.
        for buffer in self.buffers:
            alive = slice(buffer.start, buffer.end + 1)
            live[buffer.kind][alive] += buffer.bytes - buffer.padding
            live["padding"][alive] += buffer.padding
        for array in live.values():
            array.flags.writeable = False  # since it is cached
        return live

    @cached_property
    def total(self) -> np.ndarray:
        """The live bytes of all kinds, int64 `[positions]`."""
        return np.sum([*self.bytes.values()], axis=0)

    @cached_property
    def filled(self) -> Mapping[int, Buffer]:
        """The buffer that is filled at each position; position 0 has none."""
        return {buffer.start: buffer for buffer in self.buffers if buffer.start}

    def alive(self, at: int) -> tuple[Buffer, ...]:
        """The buffers alive at a position, the largest first."""
        buffers = [b for b in self.buffers if b.start <= at <= b.end]
        return tuple(sorted(buffers, key=attrgetter("bytes"), reverse=True))

    @cached_property
    def peak(self) -> MemoryPeak:
        """The first position with the most live bytes."""
        # At position 0 no buffer is filled, so `filled` stays None.
        at = int(self.total.argmax())
        new = self.filled.get(at)
        return MemoryPeak(int(self.total[at]), at, new, self.alive(at))

    def __repr__(self) -> str:
        return f"MemoryTimeline({len(self.times):,} positions, {len(self.buffers):,} buffers)"


@dataclass(frozen=True)
class MemoryPeak(Fact):
    """The moment at which a compiled program needs the most memory.

    Attributes:
        bytes: the bytes on each device, summed over its buffers.
        at: the position in the timeline.
        filled: the buffer that is filled at that position. None if that much memory is
            needed from the start, so that no operation causes the peak.
        buffers: the live buffers, the largest first.

    >>> saved = Buffer("dot", 3072, "f32[6,128]", "temporaries", phase="forward")
    >>> last = Buffer("add", 0, "f32[]", "temporaries", "", "mlp.py:31", "backward")
    >>> peak = MemoryPeak(3072, 3, last, (saved, last))
    >>> peak.source
    'mlp.py:31'
    >>> print(peak)
    Peak 3 KiB at mlp.py:31, backward: 3 KiB are forward values saved for it.
    """

    bytes: int
    at: int
    filled: Buffer | None = None
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)

    @property
    def op(self) -> str:
        """The operation in jax that fills the buffer, or `""`."""
        return "" if self.filled is None else self.filled.op

    @property
    def source(self) -> str:
        """The user's line of that operation, or `""`."""
        return "" if self.filled is None else self.filled.source

    @property
    def saved(self) -> tuple[Buffer, ...]:
        """The buffers that the forward pass saved, if the peak is in the backward pass."""
        if self.filled is None or self.filled.phase != "backward":
            return ()
        saved: list[Buffer] = []
        for buffer in self.buffers:
            # XLA computes these a second time, so they were not saved.
            recomputed = ".remat" in buffer.name
            is_value = buffer.kind in ("temporaries", "collectives")
            if is_value and buffer.phase == "forward" and not recomputed:
                saved.append(buffer)
        return tuple(saved)
