"""The ways out of the dialect: a Program, a Report."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
import shardviz.legacy as legacy
from shardviz.legacy.partitions import Parts
from tests.sharded_jit.helpers import assert_split, values

X, W = values(8, 24), values(24, 16, seed=1)


def matmul(x, w):
    y = legacy.with_sharding_constraint(jnp.sin(x), Parts(8, 1))
    return y @ w


def layer(x, w):
    y = legacy.with_sharding_constraint(jnp.tanh(x @ w), None)
    return {"y": y, "mean": jnp.mean(y, axis=0)}


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
    """2 x 3 parts into 6 x 1: the way that XLA cannot go directly."""
    split = legacy.sharded_jit(lambda x: jnp.cumsum(x, axis=0), Parts(2, 3), Parts(6, 1))
    x = values(12, 12)
    report = split.report(x)
    assert report.ok, report.error
    assert_split(report.outputs, Parts(6, 1), 6)
    assert_split(split(x), Parts(6, 1), 6)


def test_a_program_has_one_mesh():
    split = legacy.sharded_jit(lambda x, y: x @ y, (Parts(2, 3), Parts(3, 2)), None)
    with pytest.raises(sv.ShardvizError):
        split.program(values(6, 6), values(6, 6))


def test_a_program_from_shapes_alone_runs_on_more_devices_than_there_are():
    split = legacy.sharded_jit(lambda x: x, Parts(1024, 1), None)
    assert split.program(sv.array("x", (1024, 2))).mesh.shape == {"part0": 1024}
