"""sv.report of what jax lowered or compiled, compared with sv.plan and sv.compile."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.pictures import draw
from shardviz.plans.plan import Plan
from shardviz.programs.notes import CompiledByJax, NotCompiled
from tests.program.programs_jax_compiled import CASES, ON_HARDWARE, arrays_of, differences


@pytest.fixture(scope="module")
def mesh(eight_devices: list[Any]) -> Mesh:
    return mesh_of(eight_devices, AxisType.Auto)


def mesh_of(devices: list[Any], axis_type: AxisType) -> Mesh:
    types = (axis_type,) * 2
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=types, devices=devices)


@pytest.mark.parametrize("name", CASES)
def test_a_compiled_has_what_a_compile_reports(name: str, mesh: Mesh):
    assert differences(name, mesh, None) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "package"),
    [("tpu:v5e:2x4", "libtpu"), ("gpu:h100:1x8", "jax_plugins.xla_cuda13")],
)
def test_a_compiled_for_described_hardware_has_what_a_compile_reports(target: str, package: str):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    environment = os.environ | {
        "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "CUDA_VISIBLE_DEVICES": "-1",
    }  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-m", "tests.program.programs_jax_compiled", target, *ON_HARDWARE],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    assert json.loads(process.stdout.splitlines()[-1]) == {name: {} for name in ON_HARDWARE}


def test_what_a_compiled_does_not_have_is_said(mesh: Mesh):
    array = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, P("data")))
    compiled = jax.jit(jnp.sin).lower(array).compile()
    report = sv.report(compiled)
    assert report.partitioned is None
    assert report.memory.peak is None
    assert CompiledByJax() in report.notes
    assert "sv.compile" in sv.text(report)
    assert sv.text(compiled) == sv.text(report)
    # No table of times, because no stage was timed.
    assert "time" not in {label.text for label in draw(report).labels}
    sv.plot(compiled)


def test_a_program_for_one_device_has_one_axis():
    report = sv.report(jax.jit(jnp.sin).lower(jnp.ones((4,))).compile())
    assert report.mesh is not None
    assert report.mesh.size == 1
    assert report.collectives == ()


def values(plan: Plan) -> list[tuple[object, ...]]:
    facts = []
    for op in plan.ops:
        origins = tuple(sorted(map(str, op.origins.values())))
        # The line of a constant may be that of the call.
        source = op.source if op.opcode != "constant" else ""
        facts.append((op.name, op.kind, op.shape, op.dtype, op.spec, origins, source))
    return facts


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_lowered_has_the_plan_of_its_function(
    name: str, axis_type: AxisType, eight_devices: list[Any]
):
    mesh, case = mesh_of(eight_devices, axis_type), CASES[name]
    arrays = arrays_of(case, mesh)
    step = jax.jit(case.function, donate_argnums=case.donate)
    with jax.set_mesh(mesh):
        planned = sv.plan(step, *arrays)
        if axis_type is AxisType.Explicit and planned.error is not None:
            return  # jax's types refuse it, so there is nothing to lower
        lowered = step.lower(*arrays)
    of_lowered = sv.plan(lowered)
    assert of_lowered.error is None
    assert of_lowered.mesh.shape == planned.mesh.shape
    used = [op for op in values(planned) if name != "unused" or op[0] != "y"]
    assert values(of_lowered) == used
    assert [c.words for c in of_lowered.collectives] == [c.words for c in planned.collectives]
    donated = [op.name for op in planned.ops if op.donated]
    assert [op.name for op in of_lowered.ops if op.donated] == donated
    report = sv.report(lowered)
    assert report.plan is not None
    assert values(report.plan) == values(of_lowered)
    for op in of_lowered.ops:
        if op.kind != "op":
            layouts = report.in_layouts if op.kind == "argument" else report.out_layouts
            assert layouts[op.name].spec == op.spec


def test_the_stages_after_a_lowered_are_unknown_and_it_is_shown_as_its_report():
    traces: list[int] = []

    def double(x: Any) -> Any:
        traces.append(1)
        return x * 2

    lowered = jax.jit(double).lower(jnp.ones((4,)))
    report = sv.report(lowered)
    assert len(traces) == 1
    assert report.error is None
    assert report.plan is not None
    assert (report.collectives, report.partitioned, report.memory.peak) == (None, None, None)
    assert NotCompiled() in report.notes
    assert "output" in sv.text(lowered)
    assert "not compiled" in repr(report)
    sv.plot(lowered)
    with pytest.raises(sv.ShardvizError, match=r"sv\.report"):
        sv.explore(lowered)


def test_an_ordered_effect_is_no_result(mesh: Mesh):
    def logged(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), "float32")
        total = io_callback(lambda total: total, shape, x.sum(), ordered=True)
        return x * 2, total

    array = jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, P("data")))
    lowered = jax.jit(logged).lower(array)
    planned, report = sv.plan(logged, array), sv.report(lowered)
    assert report.error is None
    assert report.plan is not None
    for_tokens = [value for value in values(planned) if value[3] == "token"]
    assert for_tokens
    assert set(values(report.plan)) == set(values(planned))
    assert list(report.out_layouts) == ["output[0]", "output[1]"]
    compiled = sv.report(lowered.compile())
    assert list(compiled.in_layouts) == ["x"]
    assert compiled.ok


def test_arguments_that_are_none_have_no_layout(mesh: Mesh):
    def step(state: Any, nothing: Any, unused: Any) -> Any:
        return state["w"] * 2

    array = jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, P("data")))
    arguments = {"b": None, "w": array}, None, array
    layouts = sv.report(jax.jit(step).lower(*arguments).compile()).in_layouts
    assert {name: str(layout.spec) for name, layout in layouts.items()} == {"state.w": "P('data')"}


@pytest.mark.parametrize("arguments", [(), (jnp.ones(3),)])
def test_a_program_without_results_has_a_report(arguments: tuple[jax.Array, ...]):
    report = sv.report(jax.jit(lambda *arrays: None).lower(*arguments).compile())
    assert report.mesh is not None
    assert (report.mesh.size, dict(report.out_layouts)) == (1, {})
    assert "no collectives" in sv.text(report)


def test_two_meshes_are_refused():
    meshes = [AbstractMesh((n,), (name,)) for n, name in ((2, "a"), (4, "b"))]
    arrays = [
        jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(mesh, P(mesh.axis_names)))
        for mesh in meshes
    ]
    try:
        lowered = jax.jit(lambda x, y: (x, y)).trace(*arrays).lower(lowering_platforms=("cpu",))
    except ValueError:
        return  # jax itself refuses it
    with pytest.raises(sv.ShardvizError, match="two meshes"):
        sv.report(lowered)


def test_what_jax_did_not_compile_is_refused():
    things: list[Any] = [jnp.sin, 3, jax.jit(jnp.sin), jax.jit(jnp.sin).trace(1.0), None]
    for thing in things:
        with pytest.raises(sv.ShardvizError, match=r"sv\.report takes"):
            sv.report(thing)
