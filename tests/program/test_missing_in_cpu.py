from __future__ import annotations

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardviz as sv

MESH = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
ROWS = jax.ShapeDtypeStruct((16, 8), "f4")
SIZES = jax.ShapeDtypeStruct((16,), "int32")


def exchange(rows, out, *sizes):
    def own(rows, out, *sizes):
        return jax.lax.ragged_all_to_all(rows, out, *sizes, axis_name="x")

    return jax.shard_map(own, mesh=MESH, in_specs=P("x"), out_specs=P("x"))(rows, out, *sizes)


def test_what_a_cpu_lacks_is_refused_with_a_target_that_has_it():
    pytest.importorskip("libtpu")
    program = sv.program(exchange, ROWS, ROWS, SIZES, SIZES, SIZES, SIZES, mesh=MESH)
    error = sv.compile(program, "cpu:4").error
    assert error is not None
    assert error.stage == "compile"
    assert "tpu:v5e:2x2" in error.message
    report = sv.compile(program, "tpu:v5e:2x2")
    assert report.error is None, report.error
    assert "ragged-all-to-all" in [c.kind for c in report.partitioned or ()]


def test_a_plan_shows_a_ragged_exchange():
    plan = sv.plan(sv.program(exchange, ROWS, ROWS, SIZES, SIZES, SIZES, SIZES, mesh=MESH))
    (found,) = plan.collectives
    assert (found.kind, found.mesh_axes, found.group_size) == ("ragged-all-to-all", ("x",), 4)
    assert found.bytes_per_device == 16 // 4 * 8 * 4
    assert found.value == "ragged_all_to_all"
    assert plan.op(found.value).covered
    assert plan.notes == ()
