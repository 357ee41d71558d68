"""Shardy's passes: that they are there, change no module of jax's, and what is said where not."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.errors import ProgramError
from shardviz.plans.backend import pipeline, shardy_passes
from shardviz.plans.backend.build_plan import lower_to_plan
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.trace import trace
from tests.propagation import test_constructs
from tests.propagation.planning import MESH, X, program

PROGRAMS = ("scan, gradient", "loop in a loop", "cond", "remat", "shard_map over one axis")


def module(name):
    fn, letters, _ = test_constructs.COVERED[name]
    made = program(fn, **{a: test_constructs.ARGUMENTS[a] for a in letters})
    return lower_to_plan(made, trace(made, abstract_mesh(MESH))).module


def shardings(module):
    return re.findall(r"<@mesh, \[[^\]]*\][^>]*>", str(module))


def test_the_passes_are_there():
    pipeline.check_available()


@pytest.mark.parametrize("name", PROGRAMS)
def test_origins_and_steps_change_no_sharding(eight_devices, name):
    made = module(name)
    found = shardings(pipeline.propagate(made))
    selection = shardy_passes.settling_passes()
    passes = [re.sub(r"(debug[\w-]*)=true", r"\1=false", p) for p in selection.passes]
    assert len(found) > 3
    assert found == shardings(pipeline.propagate(made, replace(selection, passes=tuple(passes))))


def test_jax_keeps_its_module_as_it_was(eight_devices):
    made = module("remat")
    before = str(made)
    planned = pipeline.planned_module_on(pipeline.propagate(made))
    assert str(made) == before
    assert "sdy.all_reduce" in str(planned)


def test_gspmd_gets_one_clear_sentence(eight_devices):
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.raises(ProgramError, match="jax is set to GSPMD"):
            pipeline.propagate(None)
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)


NO_PROPAGATION = {
    "another propagation": ("symbol-dce",),
    "a pass that jaxlib does not know": ("func.func(sdy-convert-global-to-local{x=1})",),
    "the propagation under a name that jaxlib does not know": (
        "symbol-dce",
        "sdy-other-propagate{debug-sharding-origins=false propagation-strategy=aggressive}",
    ),
}


@pytest.mark.parametrize("name", NO_PROPAGATION)
def test_a_pipeline_that_does_not_propagate_is_an_error(monkeypatch, name):
    monkeypatch.setattr(shardy_passes, "pipeline_passes", lambda: NO_PROPAGATION[name])
    with pytest.raises(ProgramError, match="has no pass sdy-user-priority-propagate"):
        pipeline.propagate(None)


def test_a_jaxlib_without_the_pipeline_is_an_error(monkeypatch, request):
    monkeypatch.setattr(shardy_passes, "PIPELINE", "sdy-no-such-pipeline")
    shardy_passes.pipeline_passes.cache_clear()
    request.addfinalizer(shardy_passes.pipeline_passes.cache_clear)
    with pytest.raises(ProgramError, match=r"no Shardy pipeline .*sdy-no-such-pipeline"):
        pipeline.propagate(None)


def test_every_pass_of_this_jaxlib_is_in_the_table():
    selection = shardy_passes.settling_passes()
    assert (selection.untried, selection.left_out) == ((), ())
    assert shardy_passes.missing_estimate_passes() == ()


def test_elementwise_operations_of_chlo_are_replaced(eight_devices):
    made = program(lambda x: jax.lax.erf_inv(x) > 0, x=X)
    lowered = lower_to_plan(made, trace(made, abstract_mesh(MESH))).module
    assert "chlo.erf_inv" in str(lowered)
    copy = str(pipeline.propagate(lowered))
    assert "chlo." not in copy
    assert 'shardviz.replaces = "erf_inv"' in copy


def test_conflicts_are_resolved_as_in_xla_for_any_order_of_results(eight_devices):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    arrays = []
    for spec in (P(("data", "model")), P("model")):
        sharding = NamedSharding(mesh, spec)
        arrays.append(jax.ShapeDtypeStruct((8, 3), "float32", sharding=sharding))

    def squares(x, y):
        return ((x * y) ** 2).sum()

    for gradient in (jax.grad(squares, (0, 1)), jax.grad(squares, (1, 0))):
        compiled = jax.jit(gradient).lower(*arrays).compile()
        results = [op for op in sv.plan(gradient, *arrays).ops if op.kind == "result"]
        for op, sharding in zip(results, compiled.output_shardings, strict=True):
            planned = NamedSharding(mesh, op.spec.to_jax())
            assert planned.is_equivalent_to(sharding, 2), (op.name, op.spec, sharding.spec)


def test_equal_constants_are_one_value_after_sorting(eight_devices):
    def scaled(x, y):
        first, second = y * 0.5, x * 0.5  # read in another order than written
        return second + 1.0, first + 1.0

    arrays = [sv.array(name, (8, 8), spec="data") for name in "xy"]
    planned = sv.plan(scaled, *arrays, mesh="data=4, model=2")
    assert [op.opcode for op in planned.ops].count("constant") == 2
