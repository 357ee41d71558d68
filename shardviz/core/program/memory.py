"""MemoryTimeline and MemoryPeak: what is alive while a compiled program runs.

The buffers, their bytes and how long each lives are the compiler's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from shardviz.core.display import Fact
from shardviz.core.layout.partition_spec import Spec

#: What a buffer is for. Padding is counted apart from the buffers that it is in.
KINDS = (
    "arguments", "outputs", "temporaries", "collectives", "constants", "padding",
)  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """A part of a device's memory, from the first to the last operation that needs it.

    Attributes:
        name: the instruction in the compiled text that makes its value.
        bytes: its bytes on each device, padding included.
        shape: type and shape of that value on one device, `f32[8,128]`.
        kind: one of `KINDS`, but `"padding"`.
        op: the operation in jax that makes its value, or `""`.
        source: the user's file and line, or `""`.
        phase: `"forward"`, `"backward"`, or `""` where the op does not say.
        value: the name of the plan's value or of the argument; `""` where it is not
            known.
        spec: how that value is split; None where it is not known.
        replicated: the mesh axes over which every device has its same bytes; `()` where
            there are none, or where that is not known.
        start, end: the first and the last position in the timeline at which it is
            alive.
        count: how often the loops that it is made in run it; 1 outside of loops, None
            where that is not known.
        split_bytes: what it would take if it were split as its neighbours are; None
            where that is not known.
        padding: how many of its bytes hold nothing.

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


@dataclass(frozen=True, repr=False)
class MemoryTimeline:
    """The live bytes of each device over the order in which a program allocates.

    Position 0 is its beginning, with what is there all the time. At each position behind
    it one more buffer is allocated, those of a loop's body once.

    Attributes:
        buffers: every buffer.

    >>> kept = Buffer("a", 8, "f32[2]", "arguments", start=0, end=1)
    >>> made = Buffer("b", 4, "f32[1]", "temporaries", start=1, end=1)
    >>> found = MemoryTimeline((kept, made))
    >>> found.total.tolist(), found.bytes["temporaries"].tolist()
    ([8, 12], [0, 4])
    >>> found.peak.at, [buffer.name for buffer in found.peak.buffers]
    (1, ['a', 'b'])
    """

    buffers: tuple[Buffer, ...]

    @cached_property
    def times(self) -> np.ndarray:
        """The positions, `[positions]`: 0, 1, 2 and so on."""
        return np.arange(1 + max((b.end for b in self.buffers), default=0))

    @cached_property
    def bytes(self) -> Mapping[str, np.ndarray]:
        """For each of `KINDS` the live bytes at every position, int64 `[positions]`."""
        # What begins and what ends at each position; its running sum is what is alive.
        change = {kind: np.zeros(len(self.times) + 1, np.int64) for kind in KINDS}
        for buffer in self.buffers:
            used = buffer.bytes - buffer.padding
            for kind, size in ((buffer.kind, used), ("padding", buffer.padding)):
                change[kind][buffer.start] += size
                change[kind][buffer.end + 1] -= size
        live = {}
        for kind, steps in change.items():
            live[kind] = np.cumsum(steps[:-1])
            live[kind].flags.writeable = False
        return live

    @cached_property
    def total(self) -> np.ndarray:
        """The live bytes of all kinds, int64 `[positions]`."""
        return np.sum([*self.bytes.values()], axis=0)

    def alive(self, at: int) -> tuple[Buffer, ...]:
        """The buffers alive at a position, the largest first."""
        found = [b for b in self.buffers if b.start <= at <= b.end]
        return tuple(sorted(found, key=attrgetter("bytes"), reverse=True))

    @cached_property
    def allocated(self) -> Mapping[int, Buffer]:
        """Position to the buffer that is allocated there; of the beginning none."""
        return {b.start: b for b in self.buffers if b.start}

    @cached_property
    def peak(self) -> MemoryPeak:
        """The first moment at which the most is alive."""
        at = int(self.total.argmax())
        what = ("", "", "")
        if at:
            new = self.allocated[at]
            what = (new.op or new.name, new.source, new.phase)
        return MemoryPeak(int(self.total[at]), at, *what, self.alive(at))

    def __repr__(self) -> str:
        return f"MemoryTimeline({len(self.times):,} positions, {len(self.buffers):,} buffers)"


@dataclass(frozen=True)
class MemoryPeak(Fact):
    """The moment at which a compiled program needs the most memory.

    Attributes:
        bytes: how many on each device, which is the sum over its buffers.
        at: the position in the timeline. At 0 as much is needed all the time, and no
            operation is to blame.
        op: the operation in jax whose buffer is allocated then, or the name of the
            instruction in the compiled text; `""` at 0.
        source: the user's file and line, or `""`.
        phase: `"forward"`, `"backward"`, or `""` where its op does not say.
        buffers: what is alive then, the largest first.

    >>> kept = Buffer("dot", 3072, "f32[6,128]", "temporaries", phase="forward")
    >>> print(MemoryPeak(3072, 3, "", "mlp.py:31", "backward", (kept,)))
    Peak 3 KiB at mlp.py:31, backward: 3 KiB are forward values saved for it.
    """

    bytes: int
    at: int
    op: str = ""
    source: str = ""
    phase: str = ""
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)

    @property
    def saved(self) -> tuple[Buffer, ...]:
        """What the forward pass has left for a peak in the backward pass."""
        if self.phase != "backward":
            return ()
        found = []
        for buffer in self.buffers:
            computed = buffer.kind in ("temporaries", "collectives")
            # What XLA itself computes a second time was not saved.
            again = ".remat" in buffer.name
            before = buffer.phase == "forward" and buffer.start < self.at
            if computed and before and not again:
                found.append(buffer)
        return tuple(found)
