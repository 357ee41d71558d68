"""What every process loads, against JAX: its own functions on fake devices, and two processes."""

from __future__ import annotations

import random
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
from shardviz.base.errors import ShardvizError
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.move.process_rows import ProcessRows, process_rows
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
        if values.size:
            equal = {own: [p.process for p, o in zip(rows.parts, yielded, strict=True) if o == own]
                     for own in yielded}  # fmt: skip
            assert sorted(map(tuple, equal.values())) == sorted(rows.groups)


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


HEED = {"rows of each process": 1, "copies": 2, "two ranges": 2, "no grid": 2}


@pytest.mark.parametrize("name", HEED)
def test_what_a_loader_has_to_heed(name):
    spec, axes, processes, _ = PROCESSES[name]
    rows = sv.process_rows((8, 4), spec, sv.mesh(axes, processes=processes))
    assert len(rows.sentences) == HEED[name]
    assert rows.apart == (2 if name == "two ranges" else 0)


WRONG = {
    "no mesh": lambda: sv.process_rows((8, 4), "'data'"),
    "does not divide": lambda: sv.process_rows((7, 4), "'data'", sv.mesh(data=4, processes=2)),
    "partial sums": lambda: sv.process_rows(
        (8,), Spec(((),), frozenset(), frozenset({"x"})),
        sv.mesh(x=4, axis_types="Explicit", processes=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_has_no_rows_is_refused(name):
    with pytest.raises(ShardvizError):
        WRONG[name]()


def test_shardings_without_a_spec_keep_their_processes():
    devices = [FakeDevice(10 + i, i // 2, FakeClient(0)) for i in range(4)]
    tiled = xla_client.HloSharding.iota_tile((4,))
    sharding = GSPMDSharding(tuple(devices), tiled)
    rows = sv.process_rows((8,), sharding)
    assert [part.rows for part in rows.parts] == [((0, 4),), ((4, 8),)]


def test_many_processes_are_shown_in_groups():
    many = sv.process_rows((4096,), "'x'", sv.mesh(x=512, y=8, processes=1024))
    assert "and 472 more rows" in sv.text(many)
    assert sv.text(many).count("processes ") >= 40


def test_many_devices_are_answered_in_the_same_way():
    mesh = make_mesh(data=4096, model=16, processes=8192)
    rows = process_rows(lay_out((8192, 64), Spec.parse("'data', 'model'"), mesh))
    assert len(rows.parts) == 8192
    assert rows.parts[3].ranges == (((2, 4),), ((32, 64),))
    assert len(rows.groups) == 8192
    assert rows.bytes_repeated == 0
