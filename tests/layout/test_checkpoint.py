import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardviz as sv
from shardviz.axis_rules.requests import request
from shardviz.base.array_spec import ArraySpec
from shardviz.base.layout import lay_out
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.move.restore import (
    SavedArray,
    SavedCheckpoint,
    Wanted,
    count_reads,
    plan_restore,
    process_chunks,
)


def by_hand(array, layout, processes):
    """Every process with the distinct shards that it holds, and the chunks that each meets."""
    owner = dict(
        zip(layout.device_ids.tolist(), layout.mesh.process_indices.ravel().tolist(), strict=True)
    )
    boxes = {p: set() for p in processes}
    for device in layout.device_ids.tolist():
        boxes[owner[device]].add(tuple((s.start, s.stop) for s in layout.box(device)))
    found = {}
    for process, some in boxes.items():
        met = []
        for box in some:
            each = [
                [c for c in range(n) if c * size < stop and (c + 1) * size > start]
                for (start, stop), size, n in zip(
                    box, array.chunk_shape, array.chunk_counts, strict=True
                )
            ]
            met += itertools.product(*each)
        found[process] = (len(some), met)
    return found


@st.composite
def wanted_arrays(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    names = "abc"[: len(sizes)]
    count = int(np.prod(sizes))
    ids = draw(st.permutations(range(7, 7 + count)))
    hosts = draw(st.lists(st.sampled_from([0, 1, 5]), min_size=count, max_size=count))
    mesh = MeshSpec(
        tuple(names), tuple(sizes), device_ids=np.reshape(ids, sizes),
        process_indices=np.reshape(hosts, sizes),
    )  # fmt: skip
    rank = draw(st.integers(0, 3))
    free, dims, shape = list(draw(st.permutations(names))), [], []
    for _ in range(rank):
        axes = tuple(free.pop() for _ in range(draw(st.integers(0, min(2, len(free))))))
        parts = int(np.prod([mesh.shape[a] for a in axes], dtype=int))
        dims.append(axes)
        shape.append(parts * draw(st.integers(1, 5)))
    chunk = tuple(draw(st.integers(1, n + 2)) for n in shape)
    array = SavedArray("w", tuple(shape), "int16", 2, chunk)
    return array, lay_out(tuple(shape), Spec(tuple(dims)), mesh, "int16")


@given(wanted_arrays())
def test_reads_are_the_intersections_of_boxes_and_chunks(example):
    array, layout = example
    processes = np.array(layout.mesh.processes)
    pairs = process_chunks(layout, array.chunk_shape, processes)
    reads = count_reads(array, layout, processes)
    shard = int(np.prod(layout.shard_shape, dtype=int)) * 2
    for n, (shards, met) in enumerate(by_hand(array, layout, processes.tolist()).values()):
        distinct = set(met)
        mine = pairs.process == n
        flat = [int(np.ravel_multi_index(c, array.chunk_counts)) if c else 0 for c in distinct]
        assert sorted(pairs.chunk[mine].tolist()) == sorted(flat)
        assert (reads.chunks[n], reads.reads[n]) == (len(distinct), len(met))
        assert reads.needed[n] == shards * shard
        assert reads.at_least[n] == len(distinct) * array.chunk_bytes
        assert reads.at_most[n] == len(met) * array.chunk_bytes


def saved(shape=(64, 64), chunk=(8, 64)):
    return SavedArray("w", shape, "float32", 4, chunk)


def plan(array, wanted, mesh):
    checkpoint = SavedCheckpoint("/run/5/state", 5, "state", (array,))
    return plan_restore(checkpoint, Wanted({"w": request(wanted, mesh, None)}, mesh))


def like(array, spec):
    return ArraySpec("w", array.shape, None, array.dtype, spec)


def test_what_reads_most_comes_first():
    found = plan(saved(), like(saved(), "x"), sv.mesh("x=4", processes=[0, 1, 1, 1]))
    assert [(p.process, p.chunks, p.bytes_needed) for p in found.processes] == [
        (1, 6, 12288),
        (0, 2, 4096),
    ]


LARGE = saved((1 << 14, 4), (1, 4))
PROBLEMS = {
    "another shape": (saved(), ArraySpec("w", (64, 32), None, "float32", "x"), "shape"),
    "a size that does not divide": (saved(), like(saved(), "y"), "layout"),
    "an axis that there is not": (saved(), like(saved(), "z"), "layout"),
    "more pairs than can be counted": (LARGE, like(LARGE, ""), "layout"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_be_restored_says_why(name):
    array, wanted, code = PROBLEMS[name]
    found = plan(array, wanted, sv.mesh("x=2048, y=3", processes=6144))
    assert found.problems["w"].code == code
    assert found.rows[0].reads is None
    assert not found.works


def test_another_dtype_is_said():
    array = ArraySpec("w", (64, 64), None, "bfloat16", "x")
    found = plan(saved(), array, sv.mesh("x=2"))
    assert found.works
    assert found.rows[0].dtype == "bfloat16"
    assert found.processes[0].bytes_needed == 64 * 64 * 4
    assert "converted to bfloat16" in sv.text(found, width=1000)
