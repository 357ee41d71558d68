"""Programs that name meshes themselves: of devices or of axes, under every context and target."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.targets import missing
from shardviz.core.backend.tracing import NO_MESH, differing_axes, in_context, trace
from shardviz.core.backend.worker.export import export_program

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


def with_bare_spec(mesh):
    return lambda x: asked(mesh)(summed(mesh)(x))


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
    "shard_map, and a spec without a mesh": with_bare_spec,
    "shard_map, gradient": gradient,
    "meshes of both kinds": of_both_kinds,
}
# jax itself does not compile it: the mesh of its cotangent is not equal to that of its argument.
REFUSED_BY_JAX = {("shard_map, gradient", "of axes")}


@pytest.mark.parametrize("given", ["ours", "its own"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mesh_inside_is_the_programs_own(name, mesh, kind, given, eight_devices):
    inside = MESHES[mesh](kind)
    fn = PROGRAMS[name](inside)
    over = inside if given == "its own" else sv.mesh(data=2, model=4, axis_types=kind)
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


@pytest.mark.parametrize("mesh", MESHES)
def test_jax_refuses_the_gradient_over_a_mesh_of_axes_too(mesh, eight_devices):
    fn = gradient(MESHES[mesh]("Explicit"))
    x = jax.device_put(VALUES, NamedSharding(devices_mesh("Explicit"), P("data", "model")))
    refused = ("shard_map, gradient", mesh) in REFUSED_BY_JAX
    with pytest.raises(ValueError, match="cotangent") if refused else contextlib.nullcontext():
        jax.jit(fn)(x)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_travel_to_the_worker(name, kind, eight_devices):
    for mesh in MESHES.values():
        program = sv.program(PROGRAMS[name](mesh(kind)), X, mesh=sv.mesh(mesh(kind)))
        traced = trace(program, abstract_mesh(program.mesh))
        assert export_program(program, traced, "cpu", run=True).module


@pytest.mark.parametrize("target", ["tpu:v5e:2x4", "gpu:h100:1x8"])
def test_a_mesh_of_cpus_inside_is_no_matter_to_described_hardware(target, eight_devices):
    if words := missing(target[:3]):
        pytest.skip(words)
    report = sv.compile(sv.program(summed(devices_mesh()), X, mesh=devices_mesh()), target)
    assert report.error is None
    assert [(c.kind, c.mesh_axes) for c in report.partitioned] == [("all-reduce", ("data",))]


OTHER = {
    "other sizes": (
        lambda: devices_mesh("Auto", (4, 2)),
        "data=4, model=2, and the program's mesh is data=2, model=4. The sizes differ: data is 4"
        " there and 2 here, model is 2 there and 4 here.",
    ),
    "fewer devices": (
        lambda: devices_mesh("Auto", (2, 2)),
        "The sizes differ: model is 2 there and 4 here.",
    ),
    "other names": (
        lambda: axes_mesh("Auto", SIZES, ("data", "b")),
        "data=2, b=4, and the program's mesh is data=2, model=4. The axes differ: 'b' only there,"
        " 'model' only here.",
    ),
    "another order": (
        lambda: axes_mesh("Auto", (4, 2), ("model", "data")),
        "The axes are in another order: 'model' and 'data' there.",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_mesh_inside_is_refused_with_what_differs(name, eight_devices):
    made, words = OTHER[name]
    inside = made()
    first = inside.axis_names[0]
    program = sv.program(
        summed(inside, P(first), P(first)), X, mesh=sv.mesh(data=2, model=4)
    )  # fmt: skip
    error = sv.plan(program).error
    assert error is not None
    assert error.stage == "trace"
    assert "shard_map (test_context_meshes.py:" in error.message
    assert words in error.message
    assert error.message.endswith("or use sv.compile, which shows what XLA makes of two.")
    taken = jax.ShapeDtypeStruct((16, 8), "float32", sharding=NamedSharding(devices_mesh(), SPLIT))
    try:
        jax.jit(program.fn).lower(taken).compile()
    except ValueError:
        taken = None
    assert (sv.compile(program, "attached").error is None) == (taken is not None)


def test_other_types_inside_are_refused_with_what_differs(eight_devices):
    program = sv.program(summed(devices_mesh("Explicit")), X, mesh=sv.mesh(data=2, model=4))
    words = "The types differ: data is Explicit there and Auto here, model is Explicit there and"
    assert words in str(sv.plan(program).error)


@pytest.mark.parametrize("name", OTHER)
def test_a_plan_says_which_constraint_is_over_another_mesh(name, eight_devices):
    made, words = OTHER[name]
    inside = made()
    spec = NamedSharding(inside, P(inside.axis_names[0]))
    program = sv.program(asked(inside, spec), X, mesh=sv.mesh(data=2, model=4))
    error = str(sv.plan(program).error)
    assert "sharding_constraint (test_context_meshes.py:" in error
    assert words in error
    assert error.endswith(
        "A plan has one mesh: give both the same, or use sv.compile, which shows what XLA"
        " makes of two."
    )


@pytest.mark.parametrize("sizes", [(256, 4), (2, 4), (1, 2)])
@pytest.mark.parametrize("kind", TYPES)
def test_a_mesh_that_was_set_before_does_not_count(sizes, kind, eight_devices):
    mesh = sv.mesh(dict(zip(NAMES, sizes, strict=True)), axis_types=kind)
    fn = asked(axes_mesh(kind))
    with jax.set_mesh(devices_mesh("Auto" if kind == "Explicit" else "Explicit")):
        made = sv.plan(sv.program(fn, sv.array("x", (512, 8), spec="data"), mesh=mesh))
        assert jax.sharding.get_abstract_mesh().axis_sizes == SIZES
    assert made.error is None
    assert made.ops[-1].spec.dims == ((), ("model",))


def test_an_error_of_the_function_is_reported_unchanged(eight_devices):
    def fn(x):
        raise ValueError("no mesh of mine")

    error = sv.plan(sv.program(fn, X, mesh=sv.mesh(data=2, model=4))).error
    assert error is not None
    assert "ValueError: no mesh of mine" in error.message


def test_contexts():
    with in_context(axes_mesh()):
        assert jax.sharding.get_abstract_mesh().axis_names == NAMES
        with in_context(NO_MESH):
            assert jax.sharding.get_abstract_mesh().empty
    assert jax.sharding.get_abstract_mesh().empty


def test_equal_axes_do_not_differ():
    assert differing_axes(sv.mesh(data=2, model=4), axes_mesh()) == ""
