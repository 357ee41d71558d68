"""Axis types: every way to make a mesh in jax, and where shardviz reads one.

`AbstractMesh` has Auto axes in jax 0.10 and Explicit axes since jax 0.12, `jax.make_mesh`
Explicit and `Mesh` Auto ones in both. jax's own object is the oracle.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.mesh import DeviceKind
from shardviz.explorer.targets import suggested_placement

SIZES, NAMES = (4, 2), ("data", "model")
MIXED = (AxisType.Explicit, AxisType.Auto)


def of_devices(devices, **options):
    return Mesh(np.array(devices).reshape(SIZES), NAMES, **options)


WAYS = {
    "AbstractMesh": lambda devices: AbstractMesh(SIZES, NAMES),
    "AbstractMesh of Auto": lambda devices: AbstractMesh(SIZES, NAMES, (AxisType.Auto,) * 2),
    "AbstractMesh of Explicit": lambda devices: AbstractMesh(
        SIZES, NAMES, (AxisType.Explicit,) * 2
    ),
    "AbstractMesh of both": lambda devices: AbstractMesh(SIZES, NAMES, MIXED),
    "make_mesh": lambda devices: jax.make_mesh(SIZES, NAMES, devices=devices),
    "make_mesh of Auto": lambda devices: jax.make_mesh(
        SIZES, NAMES, (AxisType.Auto,) * 2, devices=devices
    ),
    "Mesh": of_devices,
    "Mesh of both": lambda devices: of_devices(devices, axis_types=MIXED),
    "abstract_mesh of a Mesh": lambda devices: of_devices(devices).abstract_mesh,
    "abstract_mesh of make_mesh": lambda devices: (
        jax.make_mesh(SIZES, NAMES, devices=devices).abstract_mesh
    ),
}


def product(x, w):
    return jnp.sin(x @ w)


def shapes(mesh):
    x, w = (NamedSharding(mesh, spec) for spec in (P("data"), P(None, "model")))
    return (
        jax.ShapeDtypeStruct((8, 4), "float32", sharding=x),
        jax.ShapeDtypeStruct((4, 6), "float32", sharding=w),
    )


READERS = {
    "sv.mesh": lambda mesh: sv.mesh(mesh),
    "a NamedSharding": lambda mesh: sv.layout((8, 4), shapes(mesh)[0].sharding).mesh,
    "a spec on it": lambda mesh: sv.layout((8, 4), P("data"), mesh).mesh,
    "resolve": lambda mesh: sv.resolve(("a", "b"), [("a", "data")], mesh=mesh, shape=(8, 4)).mesh,
    "audit": lambda mesh: sv.audit({"w": shapes(mesh)[1]}).mesh,
    "audit of names": lambda mesh: (
        sv.audit([sv.array("w", (4, 6), "a b")], [("b", "model")], mesh).mesh
    ),
    "program": lambda mesh: sv.program(product, *shapes(mesh)).mesh,
    "program on it": lambda mesh: sv.program(product, *shapes(mesh), mesh=mesh).mesh,
    "program resized by text": lambda mesh: (
        sv.program(product, *shapes(mesh)).replace(mesh="data=2, model=2").mesh
    ),
    "plan": lambda mesh: sv.plan(product, *shapes(mesh)).mesh,
    "compile": lambda mesh: sv.compile(product, *shapes(mesh)).out_layouts["output"].mesh,
    "explore": lambda mesh: sv.explore(mesh).session.program.mesh,
    "explore a program": lambda mesh: (
        sv.explore(sv.program(product, *shapes(mesh))).session.program.mesh
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", WAYS)
def test_axis_types_are_those_of_the_object(way, reader, eight_devices):
    mesh = WAYS[way](eight_devices)
    types = tuple(axis_type.name for axis_type in mesh.axis_types)
    assert READERS[reader](mesh).axis_types == types


@pytest.mark.parametrize("way", WAYS)
def test_axis_types_survive_a_round_trip(way, eight_devices):
    mesh = WAYS[way](eight_devices)
    assert sv.to_jax(sv.mesh(mesh)) == mesh
    assert sv.to_jax(sv.layout((8, 4), P("data"), mesh)).mesh == mesh
    for line in sv.explore(sv.program(product, *shapes(mesh))).code().splitlines():
        if line.startswith("mesh = Mesh("):
            written = tuple(part.split(",")[0].strip(") ") for part in line.split("AxisType.")[1:])
            assert written == tuple(axis_type.name for axis_type in mesh.axis_types)
            break
    else:
        pytest.fail("the code makes no mesh")


@pytest.mark.parametrize("way", WAYS)
def test_a_mesh_in_context_gives_its_types(way, eight_devices):
    mesh = WAYS[way](eight_devices)
    on_mesh = jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    if isinstance(mesh, Mesh):
        on_mesh = jax.set_mesh(mesh)
    with on_mesh:
        plan = sv.plan(product, *(jax.ShapeDtypeStruct((4, 4), "float32") for _ in range(2)))
    assert plan.mesh.axis_types == tuple(axis_type.name for axis_type in mesh.axis_types)


def test_meshes_that_shardviz_makes_have_types_of_their_own(eight_devices):
    assert sv.mesh("data=4, model=2").axis_types == ("Auto", "Auto")
    for types in ("Auto", "Explicit", ("Explicit", "Auto")):
        ours = sv.mesh("data=4, model=2", axis_types=types)
        assert sv.mesh(sv.to_jax(ours)) == ours


#: A kind of device, and the hardware to suggest for a mesh of eight of them.
KINDS = {
    "TPU v5 lite": ("tpu", "tpu:v5e:2x4"),
    "TPU v6 lite": ("tpu", "tpu:v6e:2x4"),
    "NVIDIA H200": ("gpu", "gpu:h200:1x8"),
    "a chip of tomorrow": ("tpu", "tpu:v5e:2x4"),
    "cpu": ("cpu", "tpu:v5e:2x4"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_device_is_kept_and_suggests_a_target(kind):
    platform, target = KINDS[kind]
    mesh = sv.mesh("data=4, model=2").replace(device_kind=DeviceKind(kind, 1, platform))
    assert str(suggested_placement(mesh, 0).topology) == target
    if not hasattr(jax.sharding, "AbstractDevice"):  # before jax 0.12
        return
    theirs = AbstractMesh(
        SIZES, NAMES, abstract_device=jax.sharding.AbstractDevice(kind, 1, platform)
    )
    assert sv.mesh(theirs).device_kind == mesh.device_kind
    assert sv.to_jax(sv.mesh(theirs)) is theirs
    plan = sv.plan(product, *shapes(theirs))
    assert plan.error is None
    assert sv.to_jax(plan.mesh) is theirs
    assert sv.plan(product, *shapes(theirs), mesh=sv.mesh(theirs)).error is None
    resized = sv.explore(sv.program(product, *shapes(theirs)))
    resized.session.edit("mesh", "data=2, model=2")
    assert resized.session.program.mesh.device_kind == mesh.device_kind
    assert resized.session.program.mesh.size == 4
