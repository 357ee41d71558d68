"""A train step as a compiler might allocate it: what each layer saves, and what is short."""

from __future__ import annotations

from dataclasses import replace

from shardviz.base.partition_spec import Spec
from shardviz.compiled.memory import Buffer, MemoryPeak, MemoryTimeline
from shardviz.compiled.report import Memory, Report

MIB = 1 << 20


def timeline(layers: int = 4, small: int = 0) -> MemoryTimeline:
    """Forward and backward through some layers, with `small` short buffers beside them."""
    heap: list[Buffer] = []
    for layer in range(layers):
        saved = Buffer(
            f"dot.{layer}", 6 * MIB, "f32[1024,1536]", "temporaries", op="jit(f)/dot_general",
            source="block.py:20", phase="forward", value=f"dot_general_{layer}",
            spec=Spec.parse("data, None"), split_bytes=3 * MIB, padding=MIB,
        )  # fmt: skip
        gathered = Buffer(
            f"ag.{layer}", 9 * MIB, "f32[1024,2304]", "collectives", op="jit(f)/all_gather",
            source="block.py:30",
        )  # fmt: skip
        heap += [saved, gathered]
    one = Buffer("add", 64, "f32[16]", "temporaries", op="jit(f)/add", source="block.py:40")
    heap += [one] * max(small, 2 * layers)
    last = len(heap)
    buffers = [
        Buffer(
            "x", 4 * MIB, "f32[1024,1024]", "arguments", value="x", spec=Spec.parse("data"),
            end=last,
        ),
        Buffer("out", 8 * MIB, "f32[1024,2048]", "outputs", value="out", end=last),
    ]  # fmt: skip
    for start, buffer in enumerate(heap, 1):
        # What is saved lives until its layer's turn in the backward pass; the rest is short.
        end = last - start if buffer.kind == "temporaries" and buffer.value else start
        buffers.append(replace(buffer, start=start, end=end))
    return MemoryTimeline(tuple(buffers))


def memory(layers: int = 4, small: int = 0, capacity: int | None = 64 * MIB) -> Memory:
    found = timeline(layers, small)
    return Memory(
        arguments=4 * MIB, outputs=8 * MIB, temporaries=found.peak.bytes - 12 * MIB,
        capacity=capacity, timeline=found,
    )  # fmt: skip


def peak(**how) -> MemoryPeak:
    found = memory(**how).peak
    assert found is not None
    return found


def report(**how) -> Report:
    return Report("step", "TPU v5e 2x4", memory=memory(**how))
