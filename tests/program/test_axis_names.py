"""Names of mesh axes that the compiler cannot carry: every entry refuses them."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.base.errors import ProgramError
from shardviz.programs.backend.bridge import check_axis_names, check_lowered_names
from tests.program.helpers import in_new_python

CARRIED = ("data", 'a"b', "{?}", "a,b", "->")
REFUSED = ("a\\b", "\\'")


@pytest.mark.parametrize("name", CARRIED)
def test_names_that_every_jaxlib_carries_keep_their_sharding(name, eight_devices):
    mesh = Mesh(np.array(jax.devices()[:2]), (name,), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P(name))
    add_up = jax.shard_map(
        lambda x: jax.lax.psum(x, name), mesh=mesh, in_specs=P(name), out_specs=P()
    )
    lowered = jax.jit(lambda x: (jnp.sin(x), add_up(x))).lower(
        jax.ShapeDtypeStruct((8,), jnp.float32, sharding=sharding)
    )
    check_lowered_names(lowered)
    compiled = lowered.compile()
    assert compiled.output_shardings[0].shard_shape((8,)) == (4,)
    assert "all-reduce" in str(compiled.as_text())


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_no_jaxlib_carries_are_refused(name):
    with pytest.raises(
        ProgramError, match=f"cannot compile for a mesh axis named {re.escape(repr(name))}"
    ):
        check_axis_names(["data", name])


@pytest.mark.parametrize("place", ["arguments", "shard_map"])
def test_every_mesh_of_a_lowered_program_is_looked_at(place, eight_devices):
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices, ("a\\", "b"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, P("a\\"))

    def function(x):
        if place == "shard_map":
            split = jax.shard_map(
                lambda v: jax.lax.psum(v, "a\\"), mesh=mesh, in_specs=P("a\\"), out_specs=P()
            )
            return split(x)
        return x * 2

    given = None if place == "shard_map" else sharding
    lowered = jax.jit(function).lower(jax.ShapeDtypeStruct((8,), jnp.float32, sharding=given))
    with pytest.raises(ProgramError, match="cannot compile"):
        check_lowered_names(lowered)


ENTRIES = """
    import jax, jax.numpy as jnp, numpy as np
    import shardviz as sv
    name = {name!r}
    mesh, rules = sv.mesh([(name, 4), ("model", 2)]), [("batch", name)]
    x = sv.array("x", (8, 8), "batch embed")
    made = sv.program(lambda x: jnp.sin(x) @ x.T, x, mesh=mesh, rules=rules)
    assert name in sv.text(made) and made.requests[0].layout.shard_shape == (2, 8)
    plan = sv.plan(made)
    assert plan.error is None and plan.collectives[0].mesh_axes == (name,), plan.error
    explorer = sv.explore(made)
    opened = sv.explore(explorer.state())
    assert opened.session.mesh == mesh and str(opened.session.rules) == str(sv.rules(*rules))

    def explored(step):
        getattr(explorer, step)()
        return explorer.wait(60).error

    def cached():
        devices = jax.sharding.Mesh(np.array(jax.devices()[:2]), (name,))
        split = jax.sharding.NamedSharding(devices, jax.P(name))
        try:
            sv.watch(jnp.sin)(jax.device_put(jnp.ones(8), split))
        except sv.ShardvizError as error:
            return error

    errors = [
        sv.compile(made).error, sv.run(made).error, sv.stages(made).report.error,
        explored("compile"), explored("run"), cached(),
    ]
    for error in errors:
        assert "cannot compile for a mesh axis named" in str(error), error
    print(len(errors), "lived")
    explorer.close(), opened.close()
"""


def test_every_entry_refuses_what_would_end_the_process():
    flags = "--xla_force_host_platform_device_count=8"
    assert in_new_python(ENTRIES.format(name="a\\b"), XLA_FLAGS=flags) == "6 lived"
