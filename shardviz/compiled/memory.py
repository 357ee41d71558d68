"""MemoryTimeline and MemoryPeak: the buffers that are alive while a program runs.

The compiler reports the buffers, their sizes and their lifetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from shardviz.base.display import Fact
from shardviz.base.partition_spec import Spec
from shardviz.base.plain import Plain

#: The uses of memory. Padding is counted separately from the buffers that contain it.
KINDS = (
    "arguments", "outputs", "temporaries", "collectives", "constants", "padding",
)  # fmt: skip


@dataclass(frozen=True)
class Buffer(Plain):
    """A region of a device's memory, while it holds one value.

    Attributes:
        name: the compiled instruction that computes the value.
        bytes: size on each device, padding included.
        shape: type and shape of the value on one device, such as `f32[8,128]`.
        kind: one of `KINDS` except `"padding"`.
        op, source: the value's JAX operation, and the user's line, or `""`.
        phase: `"forward"`, `"backward"`, or `""` for operations outside both passes.
        value: name of the plan's value or of the argument, or `""`. If a loop fills the
            buffer slice by slice, this is the value inside the loop that is stacked.
            Several candidates are all named: `mul_{3,7}`.
        spec: the value's spec; None if unknown. If a loop stacks the value, dimension 0
            is the one along which it is stacked. Inside a `shard_map` the value is one
            device's block, and the spec shows how the other axes split that block.
        replicated: mesh axes along which all devices are known to hold the same bytes.
        differs: mesh axes along which devices may hold different bytes, according to
            the compiled code; None if unknown.
        start, end: first and last position in the timeline.
        count: how often loops run the instruction; None if unknown.
        split_bytes: size if the axes that split the value's operands, or the values
            computed from it, split the value too; None if unknown.
        padding: number of unused bytes in the buffer.
        stacked: whether a loop fills the buffer slice by slice.
        transposed: whether the buffer is known to store the value's dimensions in
            another order.
        result: number of the program's result in the buffer; None for other buffers.
        group: the plan's candidate values, if several have the same operation, line and
            spec.
        places: (operation, line) pairs that the plan may have for the value, likeliest
            first.
        reads, leads: the arguments that the value depends on, and the results that
            depend on it, as bit masks.
        loop: source line of the innermost loop around the instruction; `""` outside
            loops or if unknown.

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
        """The value's name, else the operation's name, else the compiler's name.

        >>> Buffer("fusion", 8, "f32[2]", "temporaries", "jit(step)/mul").title
        'mul'
        """
        return self.value or self.op.rpartition("/")[2] or self.name


@dataclass(frozen=True, repr=False)
class MemoryTimeline(Plain):
    """The live bytes on each device, in the order in which a program fills its buffers.

    Position 0 is the start of the program, with the buffers that are always alive. At
    each later position one more buffer is filled, in new or reused memory. Buffers of a
    loop body are counted once.

    Attributes:
        buffers: every buffer.
        arguments: the program's argument names, in the bit order of `Buffer.reads`.

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
        """The positions 0, 1, 2 and so on, as `[positions]`."""
        # Buffers that are always alive end at the last position.
        return np.arange(1 + max(map(attrgetter("end"), self.buffers), default=0))

    @cached_property
    def bytes(self) -> Mapping[str, np.ndarray]:
        """The live bytes of each of `KINDS` at every position, int64 `[positions]`."""
        live = {kind: np.zeros(len(self.times), np.int64) for kind in KINDS}
        # This is fast, because most buffers are alive for only a few positions.
        for buffer in self.buffers:
            alive = slice(buffer.start, buffer.end + 1)
            live[buffer.kind][alive] += buffer.bytes - buffer.padding
            live["padding"][alive] += buffer.padding
        for array in live.values():
            array.flags.writeable = False  # the result is cached
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
        """Returns the buffers alive at a position, largest first."""
        buffers = [b for b in self.buffers if b.start <= at <= b.end]
        return tuple(sorted(buffers, key=attrgetter("bytes"), reverse=True))

    @cached_property
    def peak(self) -> MemoryPeak:
        """The peak: the first position with the most live bytes."""
        # No buffer is filled at position 0, so `filled` is None for a peak there.
        at = int(self.total.argmax())
        new = self.filled.get(at)
        return MemoryPeak(int(self.total[at]), at, new, self.alive(at))

    def __repr__(self) -> str:
        return f"MemoryTimeline({len(self.times):,} positions, {len(self.buffers):,} buffers)"


@dataclass(frozen=True)
class MemoryPeak(Fact):
    """The point at which a compiled program needs the most memory.

    Attributes:
        bytes: bytes of all live buffers on each device.
        at: the position in the timeline.
        filled: the buffer that is filled at that position. None if the peak is at the
            start of the program, so that no operation causes it.
        buffers: the live buffers, largest first.

    >>> saved = Buffer("dot", 3072, "f32[6,128]", "temporaries", phase="forward")
    >>> last = Buffer("add", 0, "f32[]", "temporaries", "", "mlp.py:31", "backward")
    >>> peak = MemoryPeak(3072, 3, last, (saved, last))
    >>> peak.source
    'mlp.py:31'
    >>> print(peak)
    Peak 3 KiB at mlp.py:31, backward: 3 KiB is saved for the backward pass.
    """

    bytes: int
    at: int
    filled: Buffer | None = None
    buffers: tuple[Buffer, ...] = field(default=(), repr=False)

    @property
    def op(self) -> str:
        """The JAX operation that fills the buffer at the peak, or `""`."""
        return "" if self.filled is None else self.filled.op

    @property
    def source(self) -> str:
        """The user's line of the operation at the peak, or `""`."""
        return "" if self.filled is None else self.filled.source

    @property
    def saved(self) -> tuple[Buffer, ...]:
        """Buffers saved by the forward pass, if the peak is in the backward pass."""
        if self.filled is None or self.filled.phase != "backward":
            return ()
        saved: list[Buffer] = []
        for buffer in self.buffers:
            # XLA recomputes values with this name, so they were not saved.
            recomputed = ".remat" in buffer.name
            is_value = buffer.kind in ("temporaries", "collectives")
            if is_value and buffer.phase == "forward" and not recomputed:
                saved.append(buffer)
        return tuple(saved)
