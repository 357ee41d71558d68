import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardviz as sv
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import lay_out
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.requests import request
from shardviz.core.layout.transfer.checkpoint import (
    SavedArray,
    SavedCheckpoint,
    count_reads,
    process_chunks,
)
from shardviz.core.layout.transfer.restore import RestoreNote, RestoreProblem, Wanted, plan_restore


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
    counts = tuple(-(-n // c) for n, c in zip(shape, chunk, strict=True))
    stored = np.random.default_rng(0).integers(1, 99, counts)
    array = SavedArray("w", tuple(shape), "int16", 2, chunk, stored)
    return array, lay_out(tuple(shape), Spec(tuple(dims)), mesh, "int16")


@given(wanted_arrays())
def test_reads_are_the_intersections_of_boxes_and_chunks(example):
    array, layout = example
    processes = np.array(layout.mesh.processes)
    pairs = process_chunks(layout, array.chunk_shape, processes)
    reads = count_reads(array, layout, pairs)
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
        assert reads.stored_at_least[n] == sum(int(array.stored[c]) for c in distinct)
        assert reads.stored_at_most[n] == sum(int(array.stored[c]) for c in met)


def plan(array, spec, mesh, **more):
    grid = sv.mesh(mesh) if isinstance(mesh, str) else mesh
    checkpoint = SavedCheckpoint("/run/5/state", 5, "state", "zarr", True, (array,))
    found = request(ArraySpec("w", array.shape, None, array.dtype, spec), grid, None)
    return plan_restore(checkpoint, Wanted({"w": found}, grid), **more)


def saved(shape=(64, 64), chunk=(8, 64), **more):
    return SavedArray("w", shape, "float32", 4, chunk, **more)


def test_more_pairs_than_can_be_counted_are_a_problem():
    mesh = sv.mesh("x=4096", processes=4096)
    found = plan(saved((1 << 14, 4), (1, 4)), "", mesh)
    assert found.problems["w"].code == "layout"
    assert found.rows[0].reads is None


def test_what_reads_most_comes_first():
    mesh = sv.mesh("x=4", processes=[0, 1, 1, 1])
    found = plan(saved(), "x", mesh)
    assert [(p.process, p.chunks, p.bytes_needed) for p in found.processes] == [
        (1, 6, 12288),
        (0, 2, 4096),
    ]
    assert all(p.stored_at_least is None for p in found.processes)


def test_peak_memory_counts_chunks_shards_and_what_is_compressed():
    found = plan(saved(stored=np.full((8, 1), 100)), "None, x", "x=4")
    (process,) = found.processes
    assert process.bytes_at_most == 4 * 64 * 64 * 4  # chunks that are in memory are there once
    assert process.peak_host_bytes == 64 * 64 * 4 + process.bytes_needed + 8 * 100


def test_a_shard_that_needs_more_than_the_limit_is_refused():
    found = plan(saved((1 << 16, 1 << 14), (1 << 16, 1 << 14)), "None, x", "x=4", concurrent_gb=4)
    assert found.problems == {"w": RestoreProblem("limit", bytes=4 << 30, limit=4 * 10**9)}
    assert not found.works
    (process,) = found.processes
    assert process.peak_host_bytes == 3 * 4 * 10**9  # each part no more than the limit


PROBLEMS = {
    "another shape": (
        ArraySpec("w", (64, 32), None, "float32", "x"),
        "shape",
    ),
    "a size that does not divide": (
        ArraySpec("w", (64, 64), None, "float32", "y"),
        "layout",
    ),
    "an axis that there is not": (
        ArraySpec("w", (64, 64), None, "float32", "z"),
        "layout",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_be_restored_says_why(name):
    array, code = PROBLEMS[name]
    mesh = sv.mesh("x=2, y=3")
    checkpoint = SavedCheckpoint("/run", None, "", "zarr", True, (saved(),))
    found = plan_restore(checkpoint, Wanted({"w": request(array, mesh, None)}, mesh))
    assert found.problems["w"].code == code
    assert found.rows[0].reads is None


def test_another_dtype_is_noted():
    mesh = sv.mesh("x=2")
    array = ArraySpec("w", (64, 64), None, "bfloat16", "x")
    checkpoint = SavedCheckpoint("/run", None, "", "zarr", True, (saved(),))
    found = plan_restore(checkpoint, Wanted({"w": request(array, mesh, None)}, mesh))
    assert found.works
    assert found.rows[0].notes == (RestoreNote("converted", "w", "float32", "bfloat16"),)
    assert found.processes[0].bytes_needed == 64 * 64 * 4


ADVICE = {
    "fits": ((8, 64), "x", 1, "nothing", None),
    "columns of chunks of rows": ((16, 64), "None, x", 1, "spec", "P('x')"),
    "replicas on several processes": ((16, 64), "", 4, "spec", "P('x')"),
    "one chunk": ((64, 64), "x", 1, "chunks", None),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_names_what_dominates_and_what_to_do(name):
    chunk, spec, processes, code, better = ADVICE[name]
    found = plan(saved(chunk=chunk), spec, sv.mesh("x=4", processes=processes))
    advice = found.advice
    assert (advice.code, advice.times) == (code, 1.0 if code == "nothing" else 4.0)
    assert (better is None) == (advice.spec is None)
    if better is not None:
        assert (str(advice.spec), advice.bytes) == (better, 16 << 10)
    assert str(advice) in sv.text(found, width=1000)
