"""Described hardware: what the compilers make of it, against what is said of it without them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from shardviz.base.mesh import make_mesh
from shardviz.compiled.roofline import roofline
from shardviz.hardware.chips import CHIPS
from shardviz.hardware.topology import Topology
from shardviz.programs.backend.worker.settings import Settings
from shardviz.runs.backend.targets import described, missing, target_config
from shardviz.runs.backend.worker.run import compile_program, run_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, program

MADE = """
import json, sys
from shardviz.base.mesh import make_mesh
from shardviz.runs.backend.targets import compile_only_mesh
found = []
for text, axes, ids in json.loads(sys.argv[1]):
    mesh, notes = compile_only_mesh(make_mesh(axes, device_ids=ids), text)
    devices = list(mesh.devices.flat)
    found.append({
        "ids": [d.id for d in devices], "axes": dict(mesh.shape),
        "notes": [[type(note).__name__, vars(note)] for note in notes],
        "processes": [d.process_index for d in devices],
        "coords": [list(getattr(d, "coords", ())) for d in devices],
        "slices": [getattr(d, "slice_index", 0) or 0 for d in devices],
        "kind": devices[0].device_kind, "platform": devices[0].platform,
    })
print(json.dumps(found))
"""
TPUS = {
    "a slice": ("tpu:v5e:4x4", {"a": 4, "b": 4}, None),
    "a cube": ("tpu:v5p:4x4x4", {"a": 16, "b": 4}, None),
    "a pod": ("tpu:v5p:8x8x16", {"a": 64, "b": 16}, None),
    "two slices": ("tpu:v5e:4x4*2", {"a": 2, "b": 16}, None),
    "two slices along the second axis": ("tpu:v5e:4x4*2", {"a": 1, "b": 32}, None),
    "four slices along two axes": ("tpu:v5e:2x2*4", {"a": 2, "b": 2, "c": 4}, None),
    "one device a chip": ("tpu:v4:2x2x4", {"a": 4, "b": 4}, None),
    "own order": ("tpu:v5e:2x2", {"a": 4}, [3, 1, 0, 2]),
    "ids of elsewhere": ("tpu:v5e:2x2", {"a": 4}, [2051, 2048, 2050, 2049]),
    "a shape that the torus refuses": ("tpu:v5p:4x4x4", {"a": 2, "b": 32}, None),
    "two devices a chip": ("tpu:7x:4x4x4", {"a": 16, "b": 8}, None),
}
GPUS = {"two hosts": ("gpu:h100:2x8", {"a": 2, "b": 8}, None)}


def made_in_a_process(cases, kind):
    if error := missing(kind):
        pytest.skip(str(error))
    process = subprocess.run(
        [sys.executable, "-c", MADE, json.dumps(list(cases.values()))],
        env={**os.environ, **Settings(kind).environment()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return dict(zip(cases, json.loads(process.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(scope="module")
def tpus():
    return made_in_a_process(TPUS, "tpu")


@pytest.mark.parametrize("name", TPUS)
def test_the_mesh_is_of_devices_that_are_where_the_topology_says(tpus, name):
    text, axes, ids = TPUS[name]
    found, topology = tpus[name], Topology.parse(text)
    assert found["axes"] == axes
    assert found["platform"] == "tpu"
    place = {int(i): n for n, i in enumerate(topology.device_ids)}
    order = [place[i] for i in found["ids"]]
    assert sorted(order) == list(range(topology.devices))
    np.testing.assert_array_equal(found["coords"], topology.coords[order])
    np.testing.assert_array_equal(found["processes"], topology.process_indices[order])
    np.testing.assert_array_equal(found["slices"], topology.slice_indices[order])
    if ids is not None:
        assert list(np.argsort(np.argsort(ids))) == order


def test_slices_lie_along_an_axis_of_the_mesh(tpus):
    assert tpus["two slices"]["slices"] == [0] * 16 + [1] * 16
    assert tpus["four slices along two axes"]["slices"] == [n // 4 for n in range(16)]


def test_a_shape_that_the_torus_refuses_is_reported_with_its_reason(tpus):
    ((kind, fields),) = tpus["a shape that the torus refuses"]["notes"]
    assert kind == "NotOnTorus"
    assert (fields["sizes"], fields["target"]) == ("2×32", "tpu:v5p:4x4x4")
    assert fields["error"]
    assert not tpus["a slice"]["notes"]
    assert not tpus["one device a chip"]["notes"]


def test_gpus_have_their_hosts():
    found = made_in_a_process(GPUS, "gpu")["two hosts"]
    assert found["processes"] == [0] * 8 + [1] * 8
    assert (found["ids"], found["platform"]) == (list(range(16)), "gpu")
    assert "H100" in found["kind"]


@pytest.mark.parametrize("chip", [c.name for c in CHIPS.values() if c.platform == "gpu"])
def test_every_gpu_is_described_to_the_compiler(chip):
    text = target_config(Topology.parse(f"gpu:{chip}:1x8"))
    assert f"device_memory_size: {Topology.parse(f'gpu:{chip}:1x8').chip.hbm_bytes}" in text
    assert text.count("{") == text.count("}")


X, W = array("x", (64, 32), "a"), array("w", (32, 64), "None, b")
COMPILED = [
    ("tpu:v5e:4x4", {"a": 4, "b": 4}),
    ("tpu:v4:2x2x4", {"a": 4, "b": -1}),
    ("tpu:7x:2x2x1", {"a": 4, "b": 2}),
    ("tpu:v5e:2x2*2", {"a": 2, "b": 4}),
    ("gpu:h200:2x8", {"a": 8, "b": 2}),
    ("gpu:b200:1x8", {"a": 4, "b": 2}),
]


def matmul(x, w):
    return x @ w @ w.T


@pytest.mark.parametrize(("target", "axes"), COMPILED, ids=[t for t, _ in COMPILED])
def test_every_kind_of_chip_compiles(target, axes):
    topology = Topology.parse(target)
    if error := missing(topology.chip.platform):
        pytest.skip(str(error))
    axes = {**axes, "b": topology.devices // axes["a"]}
    made = program(matmul, X, W, mesh=make_mesh(axes))
    report = compile_program(made, target, cache=ExecutableCache())
    assert report.error is None, report.error
    assert report.target == str(described(target))
    assert report.memory.capacity == topology.chip.device_bytes
    assert [(c.kind, c.mesh_axes) for c in report.partitioned] == [("all-reduce", ("b",))]
    assert report.collectives
    assert all(c.mesh_axes == ("b",) for c in report.collectives), report.collectives
    assert sorted(report.mesh.device_ids.ravel()) == sorted(topology.device_ids)
    assert report.mesh.process_indices.max() == topology.hosts - 1
    found = pickle.loads(pickle.dumps(report)).roofline
    assert found == roofline(report, topology, report.mesh)
    assert found.chip == topology.chip
    # Along b stand the two devices of a chip of TPU7x, which need no link.
    assert (found.collective_s == 0) == (topology.chip.name == "7x")
    assert not {note.code for note in found.notes} & {"no topology", "no groups"}


def test_a_program_that_reads_no_argument_compiles():
    if error := missing("tpu"):
        pytest.skip(str(error))
    made = program(lambda x, w: jnp.arange(4), X, W, mesh=make_mesh(a=4, b=2))
    report = compile_program(made, "tpu:v5e:2x4", cache=ExecutableCache())
    assert report.error is None, report.error
    (result,) = report.out_layouts.values()
    assert (result.replicas, result.mesh.size) == (8, 8)


def test_nothing_runs_on_what_is_not_there():
    made = program(matmul, X, W, mesh=make_mesh(a=4, b=4))
    report = run_program(made, target="tpu:v5e:4x4", cache=ExecutableCache())
    assert report.error is not None
    assert report.error.stage == "target"
    assert "described and not attached" in report.error.message or missing("tpu")


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert str(missing("tpu")).endswith('pip install "shardviz[tpu]", and restart the kernel.')
    report = compile_program(
        program(matmul, X, W, mesh=make_mesh(a=4, b=4)), "tpu:v5e:4x4", cache=ExecutableCache()
    )
    assert report.error is not None
    assert 'pip install "shardviz[tpu]"' in report.error.message


def test_a_program_too_big_for_the_chip_is_refused_by_its_compiler():
    if error := missing("tpu"):
        pytest.skip(str(error))
    big = array("x", (1 << 17, 1 << 17), None, "float32")
    made = program(lambda x: x @ x, big, mesh=make_mesh(a=4))
    report = compile_program(made, "tpu:v5e:2x2", cache=ExecutableCache())
    assert report.error is not None
    assert report.error.stage == "compile"
    assert report.error.lacks_memory
    assert report.too_large is not None
    size = 4 << 34  # of the argument and of the result, which nothing splits
    assert {**report.too_large.kinds} == {"arguments": size, "outputs": size}
