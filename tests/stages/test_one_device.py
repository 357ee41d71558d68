"""Sums that only bring what one device has to the others, and gathers after a constraint."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.cause import ValueName

MESH = AbstractMesh((4, 2), ("dp", "sp"), axis_types=(AxisType.Auto, AxisType.Auto))
X = jax.ShapeDtypeStruct((8, 16), "f4", sharding=NamedSharding(MESH, P("dp")))
WHOLE = jax.ShapeDtypeStruct((8, 16), "f4", sharding=NamedSharding(MESH, P()))


def constrained(x):
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P("dp", "sp")))


def one_row(x):
    return jnp.tanh(x)[3] * 2


def from_python(x):
    y = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
    return constrained(y + 1)


def partitioned(function, x):
    report = sv.compile(sv.program(function, x, mesh=MESH), "cpu:8")
    assert report.error is None, report.error
    return report.partitioned


@pytest.mark.parametrize(
    ("function", "operand"), [(one_row, "slice"), (from_python, "pure_callback")]
)
def test_what_one_device_has_is_no_sum_of_parts(function, operand):
    (found,) = [c for c in partitioned(function, X) if c.kind == "all-reduce"]
    assert found.operand.name == operand
    assert found.cause.code == "from one"


def test_a_sum_of_parts_is_one():
    (found,) = partitioned(lambda x: jnp.tanh(x).sum(0), X)
    assert found.operand.name == "reduce_sum"
    assert found.cause.code == "reduced"


def test_a_constraint_that_splits_asks_for_no_gather():
    # The sum along a split dimension does: jax 0.12 writes the constraint's line at both.
    gathers = partitioned(lambda x: jnp.cumsum(constrained(x), axis=1), WHOLE)
    first = gathers[0]
    assert first.kind == "all-gather"
    assert first.mesh_axes == ("sp",)
    assert first.operand.name == "sharding_constraint"
    assert first.cause.wanted_by.name == "reduce_window_sum"


def test_a_constraint_that_gathers_asks_for_it():
    def whole(x):
        return jnp.tanh(jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P())))

    (found,) = partitioned(whole, X)
    assert found.operand == ValueName("argument", "x")
    assert found.cause.wanted_by.name == "sharding_constraint"
