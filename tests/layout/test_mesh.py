"""MeshSpec: every way to write one, what stands where, and what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from shardviz.base.errors import MeshError
from shardviz.base.mesh import MeshSpec, make_mesh
from tests.layout.cases import random_mesh
from tests.layout.fakes import jax_mesh

MESH = make_mesh(data=4, model=2)
ODD_IDS = make_mesh(data=2, model=2, device_ids=[[7, 3], [2048, 0]])


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("data=4, model=2", {"data": 4, "model": 2}),
        ("data = 4 ,model = 2", {"data": 4, "model": 2}),
        ("data 4 model 2", {"data": 4, "model": 2}),
        ("data=1_000", {"data": 1000}),
        ("data=+4", {"data": 4}),
        ("'two words'=2, \"it's\"=1", {"two words": 2, "it's": 1}),
        (r"'a\'b'=2", {"a'b": 2}),
        ("x-1=2", {"x-1": 2}),
        ("维度=2", {"维度": 2}),
    ],
)
def test_text_is_read(text, axes):
    assert dict(make_mesh(text).shape) == axes


@pytest.mark.parametrize(
    "written",
    [{"data": 4, "model": 2}, [("data", 4), ("model", 2)], (["data", 4], ["model", 2]),
     [("data", np.int64(4)), ("model", np.uint8(2))]],
    ids=["mapping", "pairs", "lists", "numpy sizes"],
)  # fmt: skip
def test_other_writings_are_the_same_mesh(written):
    assert make_mesh(written) == MESH
    assert hash(make_mesh(written)) == hash(MESH)


@pytest.mark.parametrize(
    "make",
    [
        make_mesh,
        lambda: make_mesh("data=4", model=2),
        lambda: make_mesh([(f"a{i}", 1) for i in range(33)]),
        lambda: make_mesh(data=2, processes=[0, -1]),
        lambda: MeshSpec(("a",), (1, 2)),
        lambda: MeshSpec(("a",), (2,), (), np.arange(3)),
        lambda: ODD_IDS.position(1),
        lambda: make_mesh(data=4, processes=[0, 1, 0, 1]).local(0),
        lambda: MESH.require_axis("modle"),
    ],
)
def test_what_is_refused_beside_the_wrong_inputs(make):
    with pytest.raises(MeshError):
        make()


def test_positions_of_random_meshes_lead_back_to_the_device():
    rng = random.Random(1)
    for _ in range(200):
        mesh = random_mesh(rng)
        for device in rng.sample(mesh.device_ids.ravel().tolist(), min(4, mesh.size)):
            assert mesh.device_ids[mesh.coordinates(device)] == device
            assert mesh.device_ids.flat[mesh.position(device)] == device


def test_local_meshes_equal_those_of_jax():
    rng, refused = random.Random(2), 0
    for _ in range(400):
        mesh = random_mesh(rng, most=24)
        hosts = rng.randint(1, 3)
        split = np.sort(rng.choices(range(hosts), k=mesh.size))
        if rng.random() < 0.5:
            rng.shuffle(split)
        mesh = MeshSpec(mesh.axis_names, mesh.axis_sizes, (), mesh.device_ids,
                        np.reshape(split, mesh.axis_sizes))  # fmt: skip
        for process in mesh.processes:
            try:  # what Mesh.local_mesh does for the process it runs in
                theirs = jax_mesh(mesh)._local_mesh(process)
            except ValueError:
                refused += 1
                with pytest.raises(MeshError):
                    mesh.local(process)
                continue
            ours = mesh.local(process)
            assert np.array_equal(ours.device_ids, theirs.device_ids)
            assert ours.axis_names == theirs.axis_names
            assert set(ours.process_indices.ravel().tolist()) == {process}
    assert refused > 50


@pytest.mark.parametrize(
    ("indices", "even"),
    [
        ([0, 0, 0, 0], 1),
        ([0, 0, 1, 1], 2),
        ([0, 1, 2, 3], 4),
        ([0, 1, 0, 1], None),
        ([1, 1, 0, 0], None),
        ([5, 5, 5, 5], None),
        ([1, 1, 1, 1], None),
    ],
)
def test_hosts_that_share_evenly_are_kept_as_their_number(indices, even):
    mesh = make_mesh(a=2, b=2, processes=indices)
    assert mesh.even_hosts == even
    assert mesh.process_indices.ravel().tolist() == indices
    assert tuple(mesh.processes) == tuple(sorted(set(indices)))
    assert mesh == make_mesh(a=2, b=2, processes=np.array(indices))
    assert (mesh == make_mesh(a=2, b=2, processes=2)) is (even == 2)
    assert not mesh.process_indices.flags.writeable


def test_values_are_frozen_and_the_callers_array_stays_theirs():
    ids = np.array([3, 2, 1, 0])
    mesh = make_mesh(data=4, device_ids=ids)
    ids[:] = 9
    assert mesh.device_ids.tolist() == [3, 2, 1, 0]
    for array in (mesh.device_ids, mesh.process_indices, MESH.device_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    with pytest.raises(AttributeError):
        mesh.axis_names = ("x",)  # type: ignore[misc]
