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


def scaled(x):
    return x * 3


def test_the_code_gives_what_the_function_gave():
    split = legacy.sharded_jit(layer, (Parts(2, 4), None), {"y": Parts(4, 2), "mean": None})
    out = run_code(split.to_modern(X, W), x=X, w=W, layer=layer)
    assert_split(out["y"], Parts(4, 2), 8)
    assert_split(out["mean"], None, 8)
    np.testing.assert_allclose(out["y"], split(X, W)["y"], rtol=1e-4, atol=1e-6)


def test_it_reads_like_this():
    code = legacy.sharded_jit(scaled, Parts(2, 4), Parts(8, 1)).to_modern(X)
    assert (
        code
        == """\
import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

try:  # simulated devices, where there are too few real ones; only before JAX starts
    jax.config.update("jax_num_cpu_devices", 8)
except RuntimeError:
    pass
devices = jax.devices() if jax.device_count() >= 8 else jax.devices("cpu")
mesh = Mesh(
    np.array(devices[:8]).reshape((2, 4)),
    ('part0', 'part1'),
    axis_types=(AxisType.Auto,) * 2,
)

# scaled is your own function: define it above.

in_shardings = (NamedSharding(mesh, P('part0', 'part1')),)
jitted = jax.jit(
    scaled,
    in_shardings=in_shardings,
    out_shardings=NamedSharding(mesh, P(('part0', 'part1'), None)),
)
x, = jax.device_put((x,), in_shardings)
result = jitted(x)
"""
    )


def test_a_closure_keeps_its_constraints():
    scale = np.float32(2)

    def f(x):
        return legacy.with_sharding_constraint(x * scale, Parts(1, 8)) + 1

    split = legacy.sharded_jit(f, Parts(8, 1), Parts(8, 1))
    code = split.to_modern(X)
    assert "with jax.set_mesh(mesh):" in code
    out = run_code(code, x=X, f=f)
    assert_split(out, Parts(8, 1), 8)
    np.testing.assert_array_equal(out, split(X))


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


def test_containers_without_a_literal_are_refused():
    import collections

    pair = collections.namedtuple("pair", "a b")
    split = legacy.sharded_jit(lambda p: p.a, (pair(Parts(2, 1), None),), None)
    assert_split(split(pair(X, W)), None, 2)
    with pytest.raises(sv.ShardvizError):
        split.to_modern(pair(X, W))


@pytest.mark.parametrize("static", [False, True])
def test_two_orders_of_the_devices(static):
    x = values(12, 12)

    def f(x, y, n=1):
        return legacy.with_sharding_constraint(x @ y, Parts(3, 2)) @ (y * n)

    rest = (2,) if static else ()
    statics = (2,) if static else ()
    split = legacy.sharded_jit(f, (Parts(2, 3), Parts(3, 2)), Parts(2, 3), static_argnums=statics)
    out = run_code(split.to_modern(x, x, *rest), x=x, y=x, f=f)
    assert_split(out, Parts(2, 3), 6)
    np.testing.assert_allclose(out, split(x, x, *rest), rtol=1e-5)


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


def test_a_report_from_shapes_makes_up_its_values():
    split = legacy.sharded_jit(matmul, (Parts(2, 4), Parts(8, 1)), Parts(4, 2))
    assert split.report(sv.array("x", (8, 24)), sv.array("w", (24, 16))).ok


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
    """2 x 3 parts into 6 x 1: the way that XLA cannot go directly, in call, report and code."""
    split = legacy.sharded_jit(lambda x: jnp.cumsum(x, axis=0), Parts(2, 3), Parts(6, 1))
    x = values(12, 12)
    report = split.report(x)
    assert report.ok, report.error
    assert_split(report.outputs, Parts(6, 1), 6)
    assert_split(split(x), Parts(6, 1), 6)
    assert "def with_replicated(x):" in split.to_modern(x)


def test_a_program_has_one_mesh():
    split = legacy.sharded_jit(lambda x, y: x @ y, (Parts(2, 3), Parts(3, 2)), None)
    with pytest.raises(sv.ShardvizError, match="No single mesh splits 6 devices"):
        split.program(values(6, 6), values(6, 6))


def test_a_function_that_fails_in_the_report_is_an_answer():
    split = legacy.sharded_jit(lambda x: x, Parts(2, 1), None)
    with pytest.raises(sv.ShardvizError, match="no keyword arguments"):
        split.report(x=X)
