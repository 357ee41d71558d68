"""jax.sharding.no_collectives (jax 0.12): refusals of jax with their line, and where it holds."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.programs.notes import NoCollectives

no_collectives = getattr(jax.sharding, "no_collectives", None)


def plan_of(fn, kind, eight_devices, within=False):
    around = no_collectives({"data"}) if within else contextlib.nullcontext()
    mesh = jax.make_mesh((4, 2), ("data", "model"), (kind,) * 2, devices=eight_devices)
    x = jax.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh), around:
        return sv.plan(fn, x)


def line(fn, offset):
    return f"test_no_collectives.py:{fn.__code__.co_firstlineno + offset}"


def gathered_within(x):
    with no_collectives({"data"}):
        return jax.sharding.reshard(jnp.sin(x), P(None, None))


def gathered_after(x):
    with no_collectives({"data"}):
        y = jnp.sin(x)
    return jax.sharding.reshard(y, P(None, None))


def summed_within(x):
    with no_collectives({"data"}):
        y = jnp.cos(x)
        return y.sum(0)


def summed_over_model(x):
    y = jax.lax.with_sharding_constraint(x, P("data", "model"))
    with no_collectives({"data"}):
        return y.sum(1)


def summed_in_shard_map(x):
    return jax.shard_map(lambda v: jax.lax.psum(v, "data"), in_specs=P("data"), out_specs=P())(x)


if no_collectives is not None:

    @pytest.mark.parametrize(
        ("fn", "kind", "within", "offset"),
        [
            (gathered_within, AxisType.Explicit, False, 2),
            (summed_in_shard_map, AxisType.Auto, True, 1),
            (gathered_after, AxisType.Explicit, True, 3),
        ],
    )
    def test_a_refusal_of_jax_has_its_line(fn, kind, within, offset, eight_devices):
        plan = plan_of(fn, kind, eight_devices, within)
        assert (plan.error.stage, plan.error.source) == ("trace", line(fn, offset))
        assert "ForbiddenCollectiveError" in plan.error.message

    @pytest.mark.parametrize(
        ("fn", "kind", "offsets", "planned"),
        [
            (gathered_after, AxisType.Explicit, [2], []),
            (summed_within, AxisType.Auto, [2, 3], ["all-reduce"]),
            (summed_over_model, AxisType.Auto, [3], []),
        ],
    )
    def test_the_plan_shows_where_it_is_in_force(fn, kind, offsets, planned, eight_devices):
        plan = plan_of(fn, kind, eight_devices)
        assert plan.error is None
        (note,) = [note for note in plan.notes if isinstance(note, NoCollectives)]
        assert note.axes == ("data",)
        assert note.lines == tuple(line(fn, offset) for offset in offsets)
        assert [collective.kind for collective in note.planned] == planned


def test_a_program_without_it_has_no_note(eight_devices):
    plan = plan_of(lambda x: jnp.sin(x).sum(0), AxisType.Auto, eight_devices)
    assert not [note for note in plan.notes if isinstance(note, NoCollectives)]
