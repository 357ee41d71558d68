"""Known patterns whose sentences end with the way out of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardviz as sv

X = sv.array("x", (64, 16), spec="data")


def halved(x):
    return jax.lax.while_loop(lambda c: jnp.sum(c**2) > 1e-3, lambda c: c * 0.5, x)


def test_a_loop_under_vmap_asks_all_devices_and_one_in_shard_map_does_not(eight_devices):
    (found,) = sv.compile(sv.program(jax.vmap(halved), X, mesh="data=8"), "cpu:8").partitioned
    assert found.kind == "all-reduce"
    assert found.cause.vmapped_loop
    assert "jax.shard_map" in str(found.cause)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    own = jax.shard_map(jax.vmap(halved), mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    report = sv.compile(sv.program(own, X, mesh=mesh), "cpu:8")
    assert report.error is None
    assert report.partitioned == ()


@pytest.mark.parametrize("partitionable", [True, False])
def test_random_numbers_that_are_not_partitionable_are_noted(partitionable):
    def noisy(key, x):
        return x + jax.random.normal(key, x.shape)

    program = sv.program(noisy, jax.ShapeDtypeStruct((2,), "uint32"), X, mesh="data=8")
    with jax.threefry_partitionable(partitionable):
        plan = sv.plan(program)
        found = sv.compile(program, "attached").partitioned
    noted = any("jax_threefry_partitionable" in str(note) for note in plan.notes)
    assert noted != partitionable
    assert bool(found) != partitionable
