import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.programs.backend.named_meshes import refuse_other_device_order

X = sv.array("x", (64, 64), spec="data, model")
MESH = sv.mesh(data=4, model=2)
ABSTRACT = AbstractMesh((4, 2), ("data", "model"))


def constrained(devices, *names):
    names = names or ("data", "model")
    spec = P(*names)
    mesh = Mesh(np.array(devices), names, axis_types=(AxisType.Auto,) * len(names))
    return lambda x: jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, spec))


def test_a_transposed_order_is_named_with_its_grid_and_line(eight_devices):
    fn = constrained(np.array(eight_devices).reshape(2, 4).T)
    error = sv.compile(sv.program(fn, X, mesh=MESH), target="attached").error
    assert error is not None
    assert error.stage == "trace"
    assert "sharding_constraint (test_device_orders.py:" in error.message
    assert "0, 4, 1, 5, 2, 6, 3 and 7" in error.message


def test_jax_refuses_it_too(eight_devices):
    devices = np.array(eight_devices)
    fn = constrained(devices.reshape(2, 4).T)
    own = Mesh(devices.reshape(4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(own, P("data", "model")))
    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(fn).lower(x)


def test_the_same_order_in_another_shape_is_fine(eight_devices):
    traced = jax.jit(constrained(eight_devices, "i")).trace(jnp.ones((64, 64)))
    refuse_other_device_order(traced.jaxpr, MESH, ABSTRACT)


def test_other_devices_are_left_to_jax(eight_devices):
    traced = jax.jit(constrained(np.array(eight_devices[:4]), "i"))
    refuse_other_device_order(traced.trace(jnp.ones((64, 64))).jaxpr, MESH, ABSTRACT)


def moved(to):
    return lambda x: jax.device_put(x, to) * 1


def mapped(mesh):
    spec = P(mesh.axis_names)
    return lambda x: jax.shard_map(lambda v: v, mesh=mesh, in_specs=spec, out_specs=spec)(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: constrained(d[:4], "i"),
        lambda d: constrained(d[:1], "i"),
        lambda d: constrained(d[::-1], "i"),
        lambda d: constrained(d, "i"),
        lambda d: moved(NamedSharding(Mesh(np.array(d[4:]), "i"), P("i"))),
        lambda d: moved(d[0]),
        lambda d: mapped(Mesh(np.array(d[:4]), "i")),
        lambda d: mapped(Mesh(np.array(d), "i")),
    ],
)
def test_a_plan_refuses_other_devices_as_jax_does(make, eight_devices):
    fn = make(eight_devices)
    mesh = Mesh(np.array(eight_devices), "x", axis_types=(AxisType.Auto,))
    x = jax.device_put(jnp.ones((64, 64)), NamedSharding(mesh, P("x")))
    try:
        jax.jit(fn)(x)
        refused = False
    except ValueError:
        refused = True
    error = sv.plan(fn, x).error
    # Two meshes of the same devices, which jax takes, are more than one plan covers.
    assert refused == (error is not None and error.stage == "trace"), error


@pytest.mark.parametrize("named", ["devices", "axes", "nothing"])
def test_a_program_that_reads_no_argument_runs_where_jax_runs_it(named, eight_devices):
    """On the devices of a mesh that it names, else on one."""
    mesh = Mesh(np.array(eight_devices), "x", axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh if named == "devices" else mesh.abstract_mesh, P("x"))

    def fn(x):
        ones = jnp.ones(x.shape)
        return ones if named == "nothing" else jax.lax.with_sharding_constraint(ones, sharding)

    x = jax.device_put(jnp.ones((64, 64)), NamedSharding(mesh, P("x")))
    indices = jax.jit(fn)(x).sharding.devices_indices_map(x.shape)
    report = sv.run(fn, x, target="cpu:8")
    assert report.ok, report
    boxes = report.out_layouts["output"].indices()
    bounds = {i: [s.indices(64)[:2] for s in box] for i, box in boxes.items()}
    assert bounds == {d.id: [s.indices(64)[:2] for s in box] for d, box in indices.items()}
