"""A train step as a compiler might allocate it: what each layer saves, and what is short."""

from __future__ import annotations

from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.memory import Buffer, MemoryPeak, MemoryTimeline
from shardviz.core.program.report import Memory, Report

MIB = 1 << 20
PER_LAYER = 20  # positions of one layer in one pass


def timeline(layers: int = 4, small: int = 0) -> MemoryTimeline:
    """Forward and backward through some layers, with `small` short buffers beside them."""
    count = 2 * layers * PER_LAYER
    last = count - 1
    buffers = [
        Buffer(
            "x", 4 * MIB, "f32[1024,1024]", "arguments", value="x", spec=Spec.parse("data"),
            end=last,
        ),
        Buffer(
            "out", 8 * MIB, "f32[1024,2048]", "outputs", value="out", start=count // 2, end=last,
        ),
    ]  # fmt: skip
    for layer in range(layers):
        first = layer * PER_LAYER
        saved = Buffer(
            f"dot.{layer}", 6 * MIB, "f32[1024,1536]", "temporaries", op="jit(f)/dot_general",
            source="block.py:20", phase="forward", value=f"dot_general_{layer}",
            spec=Spec.parse("data, None"), start=first + 3, end=last - first - 1,
            split_bytes=3 * MIB, padding=MIB,
        )  # fmt: skip
        gathered = Buffer(
            f"ag.{layer}", 9 * MIB, "f32[1024,2304]", "collectives", op="jit(f)/all_gather",
            source="block.py:30", start=first + 5, end=first + 9,
        )  # fmt: skip
        buffers += [saved, gathered]
    for number in range(small):
        start = number * last // small
        buffers.append(
            Buffer(f"add.{number}", 64, "f32[16]", "temporaries", start=start, end=start)
        )
    names = tuple(f"op.{number}" for number in range(count))
    ops = ("jit(f)/dot_general",) * count
    sources = tuple(f"block.py:{number}" for number in range(count))
    return MemoryTimeline(names, ops, sources, tuple(buffers))


def memory(layers: int = 4, small: int = 0, capacity: int | None = 64 * MIB) -> Memory:
    found = timeline(layers, small)
    at = int(found.total.argmax())
    peak = MemoryPeak(
        int(found.total[at]), at, found.names[at], found.ops[at], found.sources[at], "forward",
        found.alive(at),
    )  # fmt: skip
    return Memory(
        arguments=4 * MIB, outputs=8 * MIB, temporaries=peak.bytes - 12 * MIB,
        capacity=capacity, peak=peak, timeline=found,
    )  # fmt: skip


def peak(**how) -> MemoryPeak:
    found = memory(**how).peak
    assert found is not None
    return found


def report(**how) -> Report:
    return Report("step", "TPU v5e 2x4", memory=memory(**how))
