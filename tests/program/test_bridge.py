"""jax's objects to ours and back, with jax as the judge."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from shardviz.axis_rules.requests import request
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError, ProgramError, TargetError
from shardviz.base.layout import Layout, lay_out
from shardviz.base.mesh import make_mesh
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.bridge import (
    adopt,
    adopt_mesh,
    jax_dtype,
    sharding_layout,
    to_jax,
)
from tests.program.helpers import array, program

AUTO, EXPLICIT, MANUAL = AxisType.Auto, AxisType.Explicit, AxisType.Manual


def real_mesh(sizes=(4, 2), names=("a", "b"), order=None, types=AUTO):
    devices = np.array(jax.devices("cpu")[:8])[order if order is not None else slice(None)]
    return Mesh(devices.reshape(sizes), names, axis_types=(types,) * len(names))


def test_a_mesh_brings_its_devices_in_their_order():
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    mesh = adopt_mesh(real_mesh(order=order, types=EXPLICIT))
    assert mesh.device_ids.ravel().tolist() == order
    assert mesh.axis_types == ("Explicit", "Explicit")
    assert mesh.concrete
    assert mesh.process_indices.ravel().tolist() == [0] * 8


MESHES = {
    "permuted": lambda: real_mesh(order=[3, 1, 2, 0, 7, 5, 6, 4], types=EXPLICIT),
    "three axes": lambda: real_mesh((2, 2, 2), ("x", "y", "z")),
    "mixed types": lambda: AbstractMesh((4, 2), ("a", "b"), axis_types=(AUTO, EXPLICIT)),
    "huge": lambda: AbstractMesh((1024, 1024), ("a", "b"), axis_types=(AUTO, AUTO)),
}


@pytest.mark.parametrize("make", MESHES.values(), ids=MESHES)
def test_meshes_come_back_as_they_were(make):
    mesh = make()
    assert to_jax(adopt(mesh)) == mesh


def test_ids_that_are_not_attached_are_named():
    with pytest.raises(TargetError, match="2048 and 2049, which are not attached here"):
        to_jax(make_mesh(a=2, device_ids=[2048, 2049]))


SPECS = [
    P(), P("a"), P(None, "b"), P(("a", "b")), P(("b", "a"), None), P(P.UNCONSTRAINED, "a"),
    P(None, unreduced={"a"}), P("b", reduced={"a"}), P("a", unreduced={"b"}),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_specs_come_back_as_they_were(spec):
    assert to_jax(adopt(spec)) == spec


def test_an_array_with_a_sharding_is_a_layout():
    live = jax.device_put(np.zeros((8, 4), np.float32), NamedSharding(real_mesh(), P("a", "b")))
    struct = jax.ShapeDtypeStruct((8, 4), jnp.bfloat16, sharding=live.sharding)
    assert adopt(live).shard_shape == adopt(struct).shard_shape == (2, 2)
    assert adopt(struct).dtype == "bfloat16"


def jax_boxes(sharding, shape):
    boxes = sharding.devices_indices_map(shape)
    return {
        d.id: tuple(s.indices(n)[:2] for s, n in zip(box or (), shape, strict=True))
        for d, box in boxes.items()
    }


def our_boxes(layout: Layout):
    return {int(d): tuple((s.start, s.stop) for s in layout.box(int(d))) for d in layout.device_ids}


@settings(deadline=None)
@given(st.permutations(range(8)), st.permutations(["a", "b", "c", None]), st.data())
def test_layouts_on_real_devices_are_those_of_jax(order, entries, data):
    mesh = real_mesh((2, 2, 2), ("a", "b", "c"), order=order)
    cut = data.draw(st.integers(0, 4))
    entries = [*entries[:cut], *([tuple(e for e in entries[cut:] if e)] if cut < 4 else [])]
    sharding = NamedSharding(mesh, P(*entries))
    shape = (8,) * len(entries)
    assert our_boxes(sharding_layout(shape, "int8", sharding)) == jax_boxes(sharding, shape)


def test_other_shardings_are_read_off_their_boxes():
    device = jax.devices("cpu")[3]
    layout = sharding_layout((4, 2), "int8", SingleDeviceSharding(device))
    assert our_boxes(layout) == {3: ((0, 4), (0, 2))}
    assert layout.spec is None


def test_layouts_and_requests_go_back():
    mesh = make_mesh(a=4, b=2)
    layout = lay_out((8, 4), Spec.of("a", "b"), mesh)
    assert to_jax(layout) == NamedSharding(to_jax(mesh), P("a", "b"))
    asked = request(array("x", (8, 4), "a", "bfloat16"), mesh, None)
    struct = to_jax(asked)
    assert (struct.shape, struct.dtype, struct.sharding.spec) == ((8, 4), jnp.bfloat16, P("a"))
    broken = request(array("x", (7,), "a"), mesh, None)
    with pytest.raises(LayoutError, match="x: Dimension 0: 7 is not divisible"):
        to_jax(broken)
    with pytest.raises(LayoutError, match="made of shard indices"):
        to_jax(sharding_layout((4,), "int8", SingleDeviceSharding(jax.devices()[0])))


def test_rules_go_back_as_flax_takes_them():
    pairs = (("batch", "data"), ("mlp", ("model", "expert")), ("embed", None))
    assert to_jax(Rules.of(*pairs)) == pairs
    assert to_jax(resolve("batch embed", Rules.of(*pairs))) == P("data", None)


def test_a_program_goes_back_as_a_jitted_function():
    made = program(lambda x, w: x @ w, array("x", (8, 4), "a"), array("w", (4, 8), "None, b"))
    jitted = to_jax(made)
    structs = [to_jax(a) for a in made.arrays]
    text = jitted.trace(*structs).lower(lowering_platforms=("tpu",)).as_text()
    assert 'sdy.sharding<@mesh, [{"a"}, {}]>' in text.replace("{}, {}", "{}")
    with jax.set_mesh(real_mesh()):
        result = jitted(np.ones((8, 4), np.float32), np.ones((4, 8), np.float32))
    assert result.sharding.spec == P("a", "b")


DTYPES = ["bool", "int4", "bfloat16", "float8_e4m3fn", "complex64"]


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_come_back_as_they_were(name):
    assert adopt(to_jax(ArraySpec("x", (2,), None, name))).dtype == name


def test_types_that_jax_would_narrow_are_refused():
    for name in ("float64", "int64", "complex128"):
        with pytest.raises(ProgramError, match=f"turn {name} into"):
            jax_dtype(name)
    with pytest.raises(ProgramError, match=re.escape("key<none>")):
        jax_dtype("key<none>")
