"""Programs that call what jax.export made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv

W = jax.ShapeDtypeStruct((16, 8), "f4")


def layer(x, w):
    return jnp.tanh(x @ w)


def exported(rows):
    return export.export(jax.jit(layer))(jax.ShapeDtypeStruct((rows, 16), "f4"), W)


def planned(fn, rows=32):
    x = sv.array("x", (rows, 16), spec="data")
    return sv.program(fn, x, sv.array("w", (16, 8)), mesh="data=8")


@pytest.mark.parametrize("rows", ["b", "8*b", "32"])
def test_an_exported_program_is_planned_and_run_at_its_real_sizes(rows, eight_devices):
    size = 32 if rows == "32" else export.symbolic_shape(rows)[0]
    call = exported(size).call
    plan = sv.plan(planned(call))
    assert plan.error is None, plan.error
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    shardings = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    lowered = jax.jit(call, in_shardings=shardings).lower(jax.ShapeDtypeStruct((32, 16), "f4"), W)
    expected = lowered.compile().output_shardings.spec
    assert plan.ops[-1].spec.equivalent(sv.Spec.parse(expected[0]))
    assert plan.ops[-1].shape == (32, 8)
    report = sv.run(planned(call), target="cpu:8")
    assert report.error is None, report.error


def test_sizes_that_it_does_not_take_are_refused_in_a_sentence():
    call = exported(export.symbolic_shape("8*b")[0]).call
    error = sv.plan(planned(call, rows=36)).error
    assert error is not None
    assert "36" in error.message
    assert "MLIR" not in error.message


def test_an_exported_object_is_no_function():
    with pytest.raises(sv.ShardvizError, match=r"\.call"):
        planned(exported(32))
