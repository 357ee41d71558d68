"""What every process loads, against JAX: its own functions on fake devices, and two processes."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax._src import array as jax_array
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax._src.sharding_impls import (
    GSPMDSharding,
    num_addressable_indices,
)

import shardviz as sv
from shardviz.core.errors import ShardvizError
from shardviz.core.layout.layout import Layout, lay_out, layout_from_indices
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.transfer.process_rows import ProcessRows, process_rows
from tests.layout.cases import random_mesh, random_shape, random_spec
from tests.layout.fakes import FakeClient, FakeDevice

CASES = 240
DIVISORS = (1, 2, 3, 4, 6, 8)


def seen_by(process: int, layout: Layout) -> jax.sharding.NamedSharding:
    """The sharding as JAX has it in one of the processes, whose devices alone are addressable."""
    mesh, client = layout.mesh, FakeClient(process)
    devices = np.empty(mesh.axis_sizes, object)
    for at, id in np.ndenumerate(mesh.device_ids):
        devices[at] = FakeDevice(int(id), int(mesh.process_indices[at]), client)
    assert layout.spec is not None
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, mesh.axis_names), Spec(
        layout.spec.dims).to_jax())  # fmt: skip


def placed_by_jax(local, sharding, shape, monkeypatch) -> Any:
    """Device id to what JAX takes for it out of the local array of a process."""

    def keep(shape, sharding, take):
        held = sharding.addressable_devices_indices_map(shape)
        return {device.id: take(index) for device, index in held.items()}

    monkeypatch.setattr(jax_array, "make_array_from_callback", keep)
    return jax_array._array_from_process_local_data(local, sharding, shape)


def random_rows(rng: random.Random) -> ProcessRows:
    """Meshes whose processes are in order, permuted, dealt one by one, or of unequal size."""
    mesh = random_mesh(rng)
    count = rng.choice([n for n in DIVISORS if mesh.size % n == 0])
    processes = np.arange(mesh.size) // (mesh.size // count)
    kind = rng.random()
    if kind < 0.3:
        processes = processes[rng.sample(range(mesh.size), mesh.size)]
    elif kind < 0.5:
        processes = np.arange(mesh.size) % count
    elif kind < 0.65:
        processes = np.array([rng.randrange(2 * count) for _ in range(mesh.size)])
    mesh = MeshSpec(mesh.axis_names, mesh.axis_sizes, (), mesh.device_ids,
                    processes.reshape(mesh.axis_sizes))  # fmt: skip
    rank = rng.randint(0, 4)
    spec = random_spec(rng, mesh, rank)
    return process_rows(lay_out(random_shape(rng, mesh, spec, rank), spec, mesh))


@pytest.fixture(scope="module")
def cases() -> list[ProcessRows]:
    rng = random.Random(15)
    return [random_rows(rng) for _ in range(CASES)]


def test_jax_places_what_every_process_yields(cases, monkeypatch):
    counted = 0
    for rows in cases:
        layout, shape = rows.layout, rows.layout.shape
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        for part in rows.parts:
            sharding = seen_by(part.process, layout)
            local = part.local(values)
            assert local.shape == part.shape
            addressable = [num_addressable_indices(sharding, d, shape) for d in range(len(shape))]
            assert list(part.shape) == addressable
            placed = placed_by_jax(local, sharding, shape, monkeypatch)
            assert len(placed) == part.devices
            for device, shard in placed.items():
                assert np.array_equal(shard, values[layout.box(device)]), (rows, part)
                counted += 1
    assert counted > 3_000


def test_bytes_and_repeats_are_those_of_the_elements_counted_one_by_one(cases):
    for rows in cases:
        shape = rows.layout.shape
        values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        yielded = [frozenset(np.ravel(part.local(values)).tolist()) for part in rows.parts]
        loaded = sum(map(len, yielded))
        assert rows.bytes_loaded == 4 * loaded
        assert rows.bytes_repeated == 4 * (loaded - values.size)
        assert frozenset().union(*yielded) == frozenset(range(values.size))
        for part, own in zip(rows.parts, yielded, strict=True):
            read = [np.ravel(values[rows.layout.box(int(d))]).tolist()
                    for d in rows.layout.device_ids[
                        rows.layout.mesh.process_indices.ravel() == part.process]]  # fmt: skip
            if values.size:
                assert part.fills == (frozenset().union(*map(frozenset, read)) == own)
        if values.size:
            equal = {own: [p.process for p, o in zip(rows.parts, yielded, strict=True) if o == own]
                     for own in yielded}  # fmt: skip
            assert sorted(map(tuple, equal.values())) == sorted(rows.groups)


def test_another_order_of_the_mesh_makes_every_part_one_block(cases):
    better = 0
    for rows in cases:
        if (mesh := rows.reordered) is None:
            continue
        better += 1
        again = process_rows(lay_out(rows.layout.shape, rows.layout.spec, mesh))
        assert again.contiguous
        assert all(part.fills for part in again.parts)
        assert not rows.contiguous or not all(part.fills for part in rows.parts)
        before, after = (
            dict(
                zip(m.device_ids.ravel().tolist(), m.process_indices.ravel().tolist(), strict=True)
            )
            for m in (rows.layout.mesh, mesh)
        )
        assert before == after, "a device keeps its process"
        assert again.bytes_loaded <= rows.bytes_loaded
    assert better > 20


PROCESSES = {
    "rows of each process": ("'data'", {"data": 4, "model": 2}, 2, [[(0, 4)], [(4, 8)]]),
    "columns of each process": ("None, 'data'", {"data": 4, "model": 2}, 2, [[(0, 8)], [(0, 8)]]),
    "copies": ("'model'", {"data": 4, "model": 2}, 2, [[(0, 8)], [(0, 8)]]),
    "two ranges": ("('model', 'data')", {"data": 4, "model": 2}, 2,
                   [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]),
    "one by one": ("('data', 'model')", {"data": 4, "model": 2}, [0, 1] * 4,
                   [[(0, 1), (2, 3), (4, 5), (6, 7)], [(1, 2), (3, 4), (5, 6), (7, 8)]]),
    "no grid": ("'data', 'model'", {"data": 4, "model": 2}, [0, 1, 1, 0, 0, 1, 1, 0],
                [[(0, 8)], [(0, 8)]]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSES)
def test_rows_of_named_layouts(name):
    spec, axes, processes, expected = PROCESSES[name]
    rows = sv.process_rows((8, 4), spec, sv.mesh(axes, processes=processes))
    assert [list(part.rows) for part in rows.parts] == expected


NOTES = {
    "rows of each process": ["repeats"],
    "columns of each process": ["repeats"],
    "copies": ["equal parts", "repeats"],
    "two ranges": ["repeats", "gaps", "another order"],
    "no grid": ["equal parts", "repeats", "not read", "another order"],
}


@pytest.mark.parametrize("name", NOTES)
def test_what_a_loader_has_to_heed(name):
    spec, axes, processes, _ = PROCESSES[name]
    rows = sv.process_rows((8, 4), spec, sv.mesh(axes, processes=processes))
    assert [note.code for note in rows.notes] == NOTES[name]


WRONG = {
    "no mesh": lambda: sv.process_rows((8, 4), "'data'"),
    "does not divide": lambda: sv.process_rows((7, 4), "'data'", sv.mesh(data=4, processes=2)),
    "partial sums": lambda: sv.process_rows(
        (8,), Spec(((),), frozenset(), frozenset({"x"})),
        sv.mesh(x=4, axis_types="Explicit", processes=2),
    ),
    "code of random keys": lambda: sv.process_rows(
        (8,), "'x'", sv.mesh(x=4, processes=2), dtype="key<fry>"
    ).code(),
    "code without a spec": lambda: process_rows(
        layout_from_indices((4,), "int8", {7: (slice(0, 2),), 5: (slice(2, 4),)})
    ).code(),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_rows_or_no_code_is_refused(name):
    with pytest.raises(ShardvizError):
        WRONG[name]()


def test_shardings_without_a_spec_keep_their_processes():
    devices = [FakeDevice(10 + i, i // 2, FakeClient(0)) for i in range(4)]
    tiled = xla_client.HloSharding.iota_tile((4,))
    sharding = GSPMDSharding(tuple(devices), tiled)
    rows = sv.process_rows((8,), sharding)
    assert [part.rows for part in rows.parts] == [((0, 4),), ((4, 8),)]


def test_pictures_show_every_range_and_many_processes_in_groups():
    from shardviz.picture.show import draw

    spec, axes, processes, _ = PROCESSES["two ranges"]
    picture = draw(sv.process_rows((8, 4), spec, sv.mesh(axes, processes=processes)))
    assert [picture.tiles.label(i) for i in range(4)] == ["0:2", "4:6", "2:4", "6:8"]
    assert picture.tiles.group.tolist() == [0, 0, 1, 1]
    many = draw(sv.process_rows((4096,), "'x'", sv.mesh(x=512, y=8, processes=1024)))
    assert len(many.tiles) == 40
    assert "and 472 more rows" in [label.text for label in many.labels]
    assert draw(sv.process_rows((), "", sv.mesh(x=4, processes=2)), title="").labels[0].text == (
        "process 0"
    )


CHILD = """
import json, sys
import jax
number, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(f"localhost:{port}", 2, number)
import numpy as np
for case in json.load(open(f"{folder}/cases.json")):
    shape = tuple(case["shape"])
    data = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(case["dtype"])
    made = {"data": data}
    exec(case["code"], made)
    batch = made["batch"]
    assert batch.shape == shape and batch.dtype == data.dtype, (batch.shape, batch.dtype)
    for shard in batch.addressable_shards:
        assert np.array_equal(shard.data, data[shard.index]), case
    print(list(made["local"].shape))
"""


def test_the_code_of_a_loader_runs_on_two_processes(tmp_path):
    cases, shapes = [], []
    for name, (spec, axes, processes, _) in PROCESSES.items():
        for shape, dtype in (((8, 4), "float32"), ((16, 8, 3), "bfloat16")):
            rows = sv.process_rows(shape, spec, sv.mesh(axes, processes=processes), dtype=dtype)
            code = rows.code()
            body = code[code.index("np.zeros") : code.index("\n", code.index("np.zeros"))]
            assert body.startswith("np.zeros((len(rows), ")
            cases.append({"name": name, "shape": shape, "dtype": dtype,
                          "code": code.replace(body, "data[rows]")})  # fmt: skip
            shapes.append([list(part.shape) for part in rows.parts])
    scalar = sv.process_rows((), "", sv.mesh(data=8, processes=2), dtype="int32").code()
    cases.append({"name": "scalar", "shape": (), "dtype": "int32", "code": scalar})
    shapes.append([[], []])
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "PYTHONPATH": str(Path(sv.__file__).parents[1])}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(n), port, str(tmp_path)],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for n in range(2)
    ]
    try:
        for number, child in enumerate(children):
            out, err = child.communicate(timeout=120)
            assert child.returncode == 0, err[-3000:]
            printed = [json.loads(line) for line in out.splitlines()]
            assert printed == [some[number] for some in shapes]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_many_devices_are_answered_in_the_same_way():
    mesh = make_mesh(data=4096, model=16, processes=8192)
    rows = process_rows(lay_out((8192, 64), Spec.parse("'data', 'model'"), mesh))
    assert len(rows.parts) == 8192
    assert rows.parts[3].ranges == (((2, 4),), ((32, 64),))
    assert len(rows.groups) == 8192
    assert rows.bytes_repeated == 0
