"""Programs under jax.pmap, laid out and donated as jax does it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv


def step(state, batch):
    def loss(w):
        return jnp.mean((batch["x"] @ w - batch["y"]) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    gradient = jax.lax.pmean(gradient, "batch")
    new = {"w": state["w"] - 0.1 * gradient, "step": state["step"] + 1}
    return new, jax.lax.pmean(value, "batch")


def replicated_state():
    jax_utils = pytest.importorskip("flax.jax_utils")
    return jax_utils.replicate({"w": jnp.ones((16, 4)), "step": jnp.zeros((), jnp.int32)})


def stacked_state():
    return {"w": np.ones((8, 16, 4), np.float32), "step": np.zeros(8, np.int32)}


def batch():
    return {"x": np.ones((8, 32, 16), np.float32), "y": np.ones((8, 32, 4), np.float32)}


def scaled(x, w, k=2):
    return (x * w.sum() * k).T


X = np.ones((8, 12), np.float32)
W = np.ones((3, 5), np.float32)
CASES = {
    "a train step of a replicated state": lambda: (
        jax.pmap(step, axis_name="batch", donate_argnums=0),
        (replicated_state(), batch()),
    ),
    "what is not mapped": lambda: (jax.pmap(scaled, in_axes=(0, None)), (X, W)),
    "another dimension": lambda: (jax.pmap(scaled, in_axes=(1, None), out_axes=1), (X.T, W)),
    "static before donated": lambda: (
        jax.pmap(
            lambda k, x, w: scaled(x, w, k),
            in_axes=(None, 0, None),
            static_broadcasted_argnums=0,
            donate_argnums=1,
        ),
        (3, np.ones((8, 12), np.float32), W),
    ),
    "devices of its own": lambda: (
        jax.pmap(lambda x: x * 2, axis_name="i", devices=jax.devices()[4:8][::-1]),
        (np.ones((4, 6), np.float32),),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pmap_is_laid_out_as_jax_does(case, eight_devices):
    mapped, args = case()
    compiled = mapped.lower(*args).compile()
    program = sv.program(mapped, *args)
    report = sv.compile(program, "attached")
    assert report.error is None, report.error
    expected = compiled.memory_analysis()
    assert report.memory.arguments == expected.argument_size_in_bytes
    assert report.memory.outputs == expected.output_size_in_bytes
    assert report.memory.aliased == expected.alias_size_in_bytes
    # What is laid out for the picture is what jax splits.
    bytes_of = sum(r.layout.bytes_per_device for r in program.requests)
    assert bytes_of == expected.argument_size_in_bytes
    plan = sv.plan(program)
    assert plan.error is None, plan.error
    assert len(plan.collectives) >= len(report.partitioned)


def test_a_pmap_that_runs_gives_what_jax_gives(eight_devices):
    mapped = jax.pmap(step, axis_name="batch")
    state, data = stacked_state(), batch()
    expected = mapped(state, data)
    report = sv.run(sv.program(mapped, state, data), state, data, target="attached")
    assert report.error is None, report.error
    assert [c for c in report.checks if c.ok is False] == []
    for given, wanted in zip(
        jax.tree.leaves(report.outputs), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(given, wanted, rtol=1e-6)


def test_a_mesh_for_a_pmap_must_be_its_own(eight_devices):
    mapped = jax.pmap(lambda x: x, axis_name="i")
    assert str(sv.program(mapped, X, mesh="i=8").mesh) == "i=8"
    with pytest.raises(sv.ShardvizError, match="a mesh of its own"):
        sv.program(mapped, X, mesh="data=8")
    with pytest.raises(sv.ShardvizError, match="no argument has one"):
        sv.program(jax.pmap(lambda x: x, in_axes=None), X)


def test_a_pmap_for_more_devices_than_there_are(eight_devices):
    program = sv.program(jax.pmap(lambda x: x * 2), jax.ShapeDtypeStruct((64, 4), "f4"))
    assert "needs 64, and there are 8" in str(sv.plan(program).error)
