"""Programs that name meshes themselves: of devices or of axes, under every context and target."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.runs.backend.targets import missing

SIZES, NAMES = (2, 4), ("data", "model")
TYPES = {"Auto": AxisType.Auto, "Explicit": AxisType.Explicit}
X = sv.array("x", (16, 8), spec="data, model")
VALUES = np.arange(128, dtype=np.float32).reshape(16, 8)


def devices_mesh(kind="Auto", sizes=SIZES, names=NAMES):
    devices = np.array(jax.devices("cpu")[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, names, axis_types=(TYPES[kind],) * len(names))


def axes_mesh(kind="Auto", sizes=SIZES, names=NAMES):
    return AbstractMesh(sizes, names, axis_types=(TYPES[kind],) * len(names))


SPLIT, ROWS = P("data", "model"), P(None, "model")


def summed(mesh, spec=SPLIT, out=ROWS):
    def fn(x):
        return jax.shard_map(
            lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=spec, out_specs=out
        )(x) * 2  # fmt: skip

    return fn


def asked(mesh, spec=ROWS):
    """A sharding asked for in the middle, in the words that the axis types want."""
    auto = all(t == AxisType.Auto for t in mesh.axis_types)
    ask = lax.with_sharding_constraint if auto else jax.sharding.reshard
    return lambda x: ask(x + x, spec if isinstance(spec, NamedSharding) else P(*spec)) * 2


def named(mesh):
    return asked(mesh, NamedSharding(mesh, P(None, "model")))


def gradient(mesh):
    return lambda x: jax.grad(lambda x: jnp.sum(summed(mesh)(x)))(x)


def of_both_kinds(mesh):
    kind = mesh.axis_types[0].name
    other = axes_mesh(kind) if isinstance(mesh, Mesh) else devices_mesh(kind)
    half = jax.shard_map(
        lambda x: x * 2, mesh=other, in_specs=P("data", "model"), out_specs=P("data", "model")
    )
    return lambda x: summed(mesh)(half(x))


def twice_summed(mesh):
    return lambda x: summed(mesh)(x * 2)


MESHES = {"of devices": devices_mesh, "of axes": axes_mesh}
PROGRAMS = {
    "shard_map": summed,
    "a constraint": named,
    "shard_map, gradient": gradient,
    "meshes of both kinds": of_both_kinds,
}
# jax itself does not compile it: the mesh of its cotangent is not equal to that of its argument.
REFUSED_BY_JAX = {("shard_map, gradient", "of axes")}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mesh_inside_is_the_programs_own(name, mesh, kind, eight_devices):
    inside = MESHES[mesh](kind)
    fn = PROGRAMS[name](inside)
    over = inside if mesh == "of devices" else sv.mesh(data=2, model=4, axis_types=kind)
    program = sv.program(fn, X, mesh=over)
    assert sv.plan(program).error is None
    if (name, mesh) in REFUSED_BY_JAX:
        return
    report = sv.run(program, VALUES, target="attached")
    assert report.error is None
    assert report.ok
    assert sv.effects(program).refused is None
    alone = {"meshes of both kinds": twice_summed}.get(name, PROGRAMS[name])(devices_mesh(kind))
    with jax.set_mesh(devices_mesh(kind)):  # as jax does alone, with the one mesh
        expected = jax.jit(alone)(jax.device_put(VALUES, NamedSharding(devices_mesh(kind), SPLIT)))
    np.testing.assert_array_equal(np.asarray(report.outputs), np.asarray(expected))


def test_a_mesh_of_cpus_inside_is_no_matter_to_described_hardware(eight_devices):
    target = "tpu:v5e:2x4"
    if error := missing(target[:3]):
        pytest.skip(str(error))
    report = sv.compile(sv.program(summed(devices_mesh()), X, mesh=devices_mesh()), target)
    assert report.error is None
    assert [(c.kind, c.mesh_axes) for c in report.partitioned] == [("all-reduce", ("data",))]


def rows_over(mesh):
    return asked(mesh, NamedSharding(mesh, P(mesh.axis_names)))


def summed_over(mesh):
    return lambda x: jax.shard_map(
        lambda x: lax.psum(x, mesh.axis_names), mesh=mesh, in_specs=P(mesh.axis_names),
        out_specs=P(),
    )(x * 2)  # fmt: skip


TWO_FOUR = "data=2, model=4"


@pytest.mark.parametrize("made", [rows_over, summed_over])
@pytest.mark.parametrize("sizes", [{"all": 8}, {"data": 4, "model": 2}], ids=str)
def test_a_plan_says_which_operation_is_over_another_mesh(made, sizes, eight_devices):
    inside = devices_mesh("Auto", tuple(sizes.values()), tuple(sizes))
    program = sv.program(made(inside), sv.array("x", (16, 8), spec="data"), mesh=sv.mesh(TWO_FOUR))
    error = sv.plan(program).error
    assert error is not None
    assert error.stage == "propagate"
    assert "(test_context_meshes.py:" in error.message
    if made is rows_over or jax.__version_info__ < (0, 12):  # there XLA ends the process
        assert sv.compile(program, "attached").error is None


def test_other_types_inside_are_refused_with_what_differs(eight_devices):
    program = sv.program(summed(devices_mesh("Explicit")), X, mesh=sv.mesh(data=2, model=4))
    assert "mesh of its own" in str(sv.plan(program).error)


@pytest.mark.parametrize("sizes", [(256, 4), (2, 4)])
@pytest.mark.parametrize("kind", TYPES)
def test_a_mesh_that_was_set_before_does_not_count(sizes, kind, eight_devices):
    mesh = sv.mesh(dict(zip(NAMES, sizes, strict=True)), axis_types=kind)
    fn = asked(axes_mesh(kind))
    with jax.set_mesh(devices_mesh("Auto" if kind == "Explicit" else "Explicit")):
        made = sv.plan(sv.program(fn, sv.array("x", (512, 8), spec="data"), mesh=mesh))
        assert jax.sharding.get_abstract_mesh().axis_sizes == SIZES
    assert made.error is None
    assert made.ops[-1].spec.dims == ((), ("model",))


@pytest.mark.parametrize(("kind", "target"), [("Auto", "attached"), ("Explicit", "cpu:8")])
def test_nothing_is_said_of_a_mesh_that_the_user_set(kind, target):
    def fn(x):
        begin = jnp.zeros((16, 8))
        if kind == "Explicit":  # no argument brings the mesh
            begin = jnp.zeros((16, 8), out_sharding=SPLIT)
        return asked(axes_mesh(kind))(begin) + asked(axes_mesh(kind))(x)

    with jax.set_mesh(devices_mesh(kind)):
        made = sv.program(fn, sv.array("x", (16, 8), spec="data, model"))
        plan, report = sv.plan(made), sv.run(made, target=target)
    outside = sv.run(made, target=target)
    assert plan.error is None
    assert (report.ok, outside.ok) == (True, True), report
    assert (plan.notes, report.notes, outside.notes) == ((), (), ())


@pytest.mark.parametrize("kind", TYPES)
def test_a_device_put_with_a_spec_is_over_the_mesh_that_the_user_set(kind, eight_devices):
    def fn(x):
        return jax.device_put(x, P("model")) * 2

    mesh = devices_mesh(kind)
    x = jax.device_put(VALUES, NamedSharding(mesh, SPLIT))
    with jax.set_mesh(mesh):
        jax.jit(fn)(x)
        plan, report = sv.plan(fn, x), sv.run(fn, x)
    assert plan.error is None
    assert report.ok, report.error
    # Without a mesh, jax refuses the call.
    for call in (sv.plan, sv.run):
        assert "jax.set_mesh" in str(call(fn, x).error)
