"""MemoryPeak and MemoryTimeline: what is alive while a compiled program runs.

The buffers, their bytes and how long each lives are the compiler's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shardviz.core.display import Fact
from shardviz.core.layout.partition_spec import Spec

#: What a buffer is for. Padding is counted apart from the buffers that it is in.
KINDS = (
    "arguments", "outputs", "temporaries", "collectives", "constants", "padding",
)  # fmt: skip

# The kinds of what a program computes on its way.
_VALUES = ("temporaries", "collectives")


@dataclass(frozen=True)
class Buffer:
    """A part of a device's memory, from the first to the last operation that needs it.

    Attributes:
        name: the instruction in the compiled text whose result it first holds.
        bytes: its bytes on each device, padding included.
        shape: type and shape of what it holds on one device, `f32[8,128]`; of several
            values in one buffer, those of the largest.
        kind: one of `KINDS`, but `"padding"`.
        op: the operation in jax that makes its value, or `""`.
        source: the user's file and line, or `""`.
        stack: every frame of the user's code that led to it, innermost first.
        phase: `"forward"`, `"backward"`, or `""` where its op does not say.
        value: the name of the plan's value or of the argument; `""` where it is not
            known.
        spec: how that value is split; None where it is not known.
        start, end: positions in the timeline, from the first to the last, both
            included.
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
    stack: tuple[str, ...] = ()
    phase: str = ""
    value: str = ""
    spec: Spec | None = None
    start: int = 0
    end: int = 0
    count: int | None = 1
    split_bytes: int | None = None
    padding: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class MemoryTimeline:
    """The live bytes of each device over a compiled program's order.

    The body of a loop stands in it once.

    Attributes:
        names: for each position the instruction that runs there.
        ops, sources: its operation in jax, and the user's line; `""` where unknown.
        buffers: every buffer.

    >>> one = Buffer("a", 8, "f32[2]", "arguments", start=0, end=1)
    >>> two = Buffer("b", 4, "f32[1]", "temporaries", start=1, end=1)
    >>> found = MemoryTimeline(("a", "b"), ("", ""), ("", ""), (one, two))
    >>> found.total.tolist(), found.bytes["temporaries"].tolist()
    ([8, 12], [0, 4])
    >>> [buffer.name for buffer in found.alive(1)]
    ['a', 'b']
    """

    names: tuple[str, ...]
    ops: tuple[str, ...]
    sources: tuple[str, ...]
    buffers: tuple[Buffer, ...]

    @property
    def times(self) -> np.ndarray:
        """The positions, `[positions]`: 0, 1, 2 and so on."""
        return np.arange(len(self.names))

    @cached_property
    def bytes(self) -> Mapping[str, np.ndarray]:
        """For each of `KINDS` the live bytes at every position, int64 `[positions]`."""
        # What begins and what ends at each position; its running sum is what is alive.
        change = {kind: np.zeros(len(self.names) + 1, np.int64) for kind in KINDS}
        for buffer in self.buffers:
            for kind, size in (
                (buffer.kind, buffer.bytes - buffer.padding),
                ("padding", buffer.padding),
            ):
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
        total = np.zeros(len(self.names), np.int64)
        for live in self.bytes.values():
            total += live
        return total

    def __repr__(self) -> str:
        return f"MemoryTimeline({len(self.names):,} positions, {len(self.buffers):,} buffers)"

    def alive(self, at: int) -> tuple[Buffer, ...]:
        """The buffers alive at a position, the largest first."""
        found = [b for b in self.buffers if b.start <= at <= b.end]
        return tuple(sorted(found, key=lambda b: -b.bytes))


@dataclass(frozen=True)
class MemoryPeak(Fact):
    """The moment at which a compiled program needs the most memory.

    Attributes:
        bytes: how many on each device, which is the sum over its buffers.
        at: the position in the timeline.
        name: the instruction that runs there.
        op: its operation in jax, or `""`.
        source: the user's file and line, or `""`.
        phase: `"forward"`, `"backward"`, or `""` where its op does not say.
        buffers: what is alive then, the largest first.
        axes: the mesh axes of more than one device.

    >>> kept = Buffer("dot", 3072, "f32[6,128]", "temporaries", phase="forward")
    >>> print(MemoryPeak(3072, 3, "dot", "", "mlp.py:31", "backward", (kept,)))
    Peak 3 KiB at mlp.py:31, backward: 3 KiB are forward values saved for it.
    """

    bytes: int
    at: int
    name: str = ""
    op: str = ""
    source: str = ""
    phase: str = ""
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)
    axes: tuple[str, ...] = ()

    @property
    def saved(self) -> tuple[Buffer, ...]:
        """What the forward pass has left for a peak in the backward pass."""
        if self.phase != "backward":
            return ()
        found = []
        for buffer in self.buffers:
            made_before = buffer.phase == "forward" and buffer.start < self.at
            # What XLA itself computes a second time was not saved.
            again = ".remat" in buffer.name
            if made_before and not again and buffer.kind in _VALUES:
                found.append(buffer)
        return tuple(found)

    def replicated(self, buffer: Buffer) -> tuple[str, ...]:
        """The mesh axes over which every device has a buffer's same bytes.

        `()` where there are none, or where its sharding is not known.
        """
        if buffer.spec is None or buffer.spec.unreduced:
            return ()
        used = {axis for dim in buffer.spec.dims for axis in dim}
        return tuple(axis for axis in self.axes if axis not in used)
