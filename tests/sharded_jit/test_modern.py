"""The ways out of the dialect: code over jax.jit, a Program, a Report."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
import shardviz.legacy as legacy
from shardviz.legacy.partitions import Parts
from tests.sharded_jit.helpers import assert_split, run_code, values

X, W = values(8, 24), values(24, 16, seed=1)


def matmul(x, w):
    y = legacy.with_sharding_constraint(jnp.sin(x), Parts(8, 1))
    return y @ w


def layer(x, w):
    y = legacy.with_sharding_constraint(jnp.tanh(x @ w), None)
    return {"y": y, "mean": jnp.mean(y, axis=0)}


def test_the_code_gives_what_the_function_gave():
    split = legacy.sharded_jit(layer, (Parts(2, 4), None), {"y": Parts(4, 2), "mean": None})
    out = run_code(split.to_modern(X, W), x=X, w=W, layer=layer)
    assert_split(out["y"], Parts(4, 2), 8)
    assert_split(out["mean"], None, 8)
    np.testing.assert_allclose(out["y"], split(X, W)["y"], rtol=1e-4, atol=1e-6)


def test_static_arguments_are_in_the_call():
    split = legacy.sharded_jit(
        lambda x, n, mode: x * n, Parts(2, 1), Parts(1, 2), static_argnums=(1, 2)
    )
    code = split.to_modern(X, 3, ("a", None))
    assert "result = jitted(x, 3, ('a', None))" in code
    np.testing.assert_array_equal(run_code(code, x=X, fun=lambda x, n, mode: x * n), X * 3)


def test_static_arguments_without_a_literal_are_refused():
    split = legacy.sharded_jit(lambda x, f: f(x), None, None, static_argnums=1)
    with pytest.raises(sv.ShardvizError):
        split.to_modern(X, jnp.sin)


def test_code_from_shapes_alone():
    split = legacy.sharded_jit(layer, (Parts(2, 4), None), None)
    shapes = jax.ShapeDtypeStruct(X.shape, X.dtype), sv.array("w", W.shape)
    assert split.to_modern(*shapes) == split.to_modern(X, W)


def test_the_report_is_an_ordinary_one():
    split = legacy.sharded_jit(layer, (Parts(2, 4), None), {"y": Parts(4, 2), "mean": None})
    report = split.report(X, W)
    assert report.ok, report.error
    assert_split(report.outputs["y"], Parts(4, 2), 8)
    np.testing.assert_allclose(report.outputs["y"], split(X, W)["y"], rtol=1e-5, atol=1e-6)
    assert report.in_layouts["x"].shard_shape == (4, 6)
    assert report.out_layouts["output.y"].shard_shape == (2, 8)
    assert report.collectives
    assert all(c.ok for c in report.checks)


def test_a_report_with_static_arguments_and_numbers():
    split = legacy.sharded_jit(
        lambda x, n, s: x * n + s, (Parts(2, 4), None), Parts(4, 2), static_argnums=1
    )
    report = split.report(X, 3, 1.0)
    assert report.ok, report.error
    np.testing.assert_allclose(report.outputs, X * 3 + 1, rtol=1e-5)  # a product and a sum in one


def test_the_program_runs_and_opens():
    split = legacy.sharded_jit(matmul, (Parts(2, 4), Parts(8, 1)), Parts(4, 2))
    program = split.program(X, W)
    assert [str(r.spec) for r in program.requests] == [
        "P('part0', ('part1', 'part2'))",
        "P(('part0', 'part1', 'part2'), None)",
    ]
    assert program.mesh.shape == {"part0": 2, "part1": 2, "part2": 2}
    report = sv.run(program, X, W)
    assert report.ok, report.error
    assert sv.explore(program).session.mesh.size == 8


def test_six_devices_resharded():
    """2 x 3 parts into 6 x 1: the way that XLA cannot go directly; code is refused."""
    split = legacy.sharded_jit(lambda x: jnp.cumsum(x, axis=0), Parts(2, 3), Parts(6, 1))
    x = values(12, 12)
    report = split.report(x)
    assert report.ok, report.error
    assert_split(report.outputs, Parts(6, 1), 6)
    assert_split(split(x), Parts(6, 1), 6)
    with pytest.raises(sv.ShardvizError):
        split.to_modern(x)


def test_a_program_has_one_mesh():
    split = legacy.sharded_jit(lambda x, y: x @ y, (Parts(2, 3), Parts(3, 2)), None)
    for refused in (split.program, split.to_modern):
        with pytest.raises(sv.ShardvizError):
            refused(values(6, 6), values(6, 6))
