"""The same walk on an attached GPU: `SHARDVIZ_GPU=1 pytest -m gpu`."""

from __future__ import annotations

import jax
import pytest

import shardviz as sv
from shardviz.base.mesh import make_mesh
from shardviz.gallery import programs
from shardviz.hardware.chips import chip_of_kind
from shardviz.runs.backend.worker.run import compile_program, run_program
from shardviz.runs.cache import ExecutableCache

NAME = "transformer block, gradient"


@pytest.fixture
def gpu():
    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"needs an attached GPU; {error}")


def on_one_device(mesh):
    return make_mesh(dict.fromkeys(mesh.axis_names, 1))


@pytest.mark.gpu
def test_a_transformer_block_runs_on_the_attached_gpu(gpu):
    made = programs.get(NAME)
    made = made.replace(mesh=on_one_device(made.mesh))
    cache = ExecutableCache()
    report = run_program(made, cache=cache, repeat=3)
    assert report.ok, report
    assert report.target.startswith("GPU × ")
    assert report.target.endswith(", attached")
    for leaf in jax.tree.leaves(report.outputs):
        assert {d.platform for d in leaf.devices()} == {"gpu"}
    arguments = sum(a.bytes for a in made.arrays)
    assert report.memory.arguments == arguments
    assert report.memory.temporaries is not None
    assert report.memory.capacity is not None
    assert report.memory.capacity > arguments
    assert report.collectives == ()
    assert report.run_s is not None
    assert report.run_s > 0
    assert all(c.ok for c in report.checks if "boxes" in c.name)
    assert run_program(made, cache=cache).cache_hit


@pytest.mark.gpu
def test_what_the_gpu_does_not_hold_is_refused(gpu):
    from tests.program.helpers import array, program, run

    huge = program(lambda x: x + 1, array("x", (1 << 20, 1 << 20)), mesh=make_mesh(a=1))
    report = run(huge)
    assert report.error is not None
    assert report.error.stage in ("compile", "place")  # XLA itself refuses some of them
    assert gpu.memory_stats()["bytes_in_use"] < 1 << 40


@pytest.mark.gpu
@pytest.mark.parametrize("name", [NAME, "MLP, gradient", "mixture of experts"])
def test_a_described_gpu_agrees_with_the_attached_one(gpu, name):
    chip = chip_of_kind(gpu.device_kind)
    if chip is None:
        pytest.skip(f"there are no figures of {gpu.device_kind}")
    count = len(jax.devices("gpu"))
    mesh = make_mesh(data=1, model=count)
    made = programs.get(name).replace(mesh=mesh)
    here = compile_program(made, "attached", cache=ExecutableCache())
    there = compile_program(made, f"gpu:{chip.name}:1x{count}", cache=ExecutableCache())
    assert (here.error, there.error) == (None, None)
    found = [
        sorted((c.kind, c.mesh_axes, c.bytes_per_device) for c in report.collectives)
        for report in (here, there)
    ]
    assert found[0] == found[1]
    assert here.memory.arguments == there.memory.arguments
    assert here.memory.outputs == there.memory.outputs
    # Where there is a GPU, XLA times kernels for each product, and may choose one that needs memory
    # for itself, which is bytes without a meaning.
    buffers = here.memory.timeline.buffers
    scratch = sum(buffer.bytes for buffer in buffers if buffer.shape.startswith("s8["))
    allowed = 0.05 * here.memory.temporaries + scratch
    assert there.memory.temporaries == pytest.approx(here.memory.temporaries, abs=allowed)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [NAME, "MLP, gradient", "mixture of experts"])
def test_a_train_step_is_measured_on_the_attached_gpu(gpu, name):
    made = programs.get(name)
    made = made.replace(mesh=on_one_device(made.mesh))
    report = sv.run(made, target="attached", measure=True)
    assert report.ok, report
    result = report.measured
    assert result.joined_share >= 0.95
    # A lower bound: no product and no collective is faster than published rates allow.
    timed = [row for row in result.rows if row.least is not None]
    assert timed or chip_of_kind(gpu.device_kind) is None
    assert all(row.seconds >= row.least for row in timed)
    # Other compiles keep XLA's graphs of operations.
    assert "xla_gpu_enable_command_buffer" not in report.of.options
