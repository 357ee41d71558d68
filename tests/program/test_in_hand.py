"""The public functions take what people hold: jax's objects, trees, models, functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.partition_spec import Spec, SpecOnMesh
from shardviz.pictures import draw

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def array(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(MESH, P(*axes)))


def forward(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


PARAMS = {"w": array((512, 256), None, "model"), "b": array((256,), "model")}
X = array((64, 512), "data")


def test_a_tree_of_arrays_is_shown_as_its_audit():
    audit = sv.audit(PARAMS)
    assert sv.text(PARAMS) == sv.text(audit)
    assert sv.text([PARAMS, X]) == sv.text(sv.audit([PARAMS, X]))
    sv.plot(PARAMS)


def test_a_mesh_or_rules_follow_a_tree():
    mesh, shapes = sv.mesh(data=4), {"w": jax.ShapeDtypeStruct((8, 4), "float32")}
    assert sv.text(shapes, mesh) == sv.text(sv.audit(shapes, mesh=mesh))
    arrays = {"w": sv.array("w", (8, 4), "batch mlp")}
    assert sv.text(arrays, [("batch", "data")], mesh) == sv.text(
        sv.audit(arrays, [("batch", "data")], mesh)
    )
    assert sv.text((8, 4), P("data"), mesh) == sv.text(sv.layout((8, 4), P("data"), mesh))
    with pytest.raises(sv.ShardvizError, match=r"sv\.audit\(tree, rules, mesh="):
        sv.text(shapes)  # without devices


def test_a_model_and_a_parameter_of_it():
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    assert sv.text(model.kernel) == sv.text(model.kernel[...])
    # Its arrays are on one device.
    assert sv.audit(model).bytes_per_device == sum(p.nbytes for p in jax.tree.leaves(model))
    assert sv.text(model) == sv.text(sv.audit(model))
    with jax.set_mesh(jax.make_mesh((1,), ("data",))):
        assert sv.text(model) == sv.text(sv.audit(model))


@pytest.mark.parametrize(
    ("axes", "copied"),
    [
        (("data",), ("model",)),
        ((None, "model"), ("data",)),
        ((("data", "model"),), ()),
        ((), ("data", "model")),
    ],
)
def test_a_sharding_shows_spec_copies_and_mesh(axes: tuple[Any, ...], copied: tuple[str, ...]):
    sharding = NamedSharding(MESH, P(*axes))
    value = SpecOnMesh(Spec.of(*axes), sv.mesh(MESH))
    assert value.copy_axes == copied
    shape = tuple(8 for _ in axes)
    replicas = sv.layout(shape, sharding).replicas if axes else 8
    text = sv.text(sharding)
    assert (f"is on {replicas:,} devices" in text) == (replicas > 1)
    assert sv.text(value.mesh) in text
    assert str(replicas) in draw(value).alt or replicas == 1
    sv.plot(sharding)


def test_dimensions_left_to_the_compiler_leave_the_copies_open():
    text = sv.text(NamedSharding(MESH, P(P.UNCONSTRAINED, "model")))
    assert "Each block" not in text


def test_a_numpy_array_has_a_shape_and_no_devices():
    text = sv.text(np.zeros((4, 4), np.float32))
    assert "[4, 4]" in text
    assert "device" not in text


def test_a_function_with_arguments_is_shown_as_its_plan():
    plan = sv.plan(forward, PARAMS, X)
    assert sv.text(forward, PARAMS, X).splitlines()[2:] == sv.text(plan).splitlines()[2:]
    assert sv.text((64, 512), P("data"), MESH) == sv.text(sv.layout((64, 512), P("data"), MESH))


def test_the_explorer_opens_on_plans_and_stages():
    plan = sv.plan(forward, PARAMS, X)
    assert sv.explore(plan).session.now.program.fn is plan.of.fn
    stages = sv.stages(forward, PARAMS, X, target="cpu:8")
    explorer = sv.explore(stages)
    assert explorer.session.now.view == "Program"
    assert explorer.session.now.program is stages.program


def test_expectations_locks_and_searches_take_a_function():
    program = sv.program(forward, PARAMS, X)
    sv.expect(forward, PARAMS, X).no("all-gather")
    specs = sv.lock(program, collectives=False)
    assert sv.lock(forward, PARAMS, X, collectives=False).arrays == specs.arrays
    with pytest.raises(sv.ShardvizError, match=r"sv\.search\(\.\.\., target="):
        sv.search(forward, PARAMS, X)


def test_the_arguments_of_make_mesh_make_a_mesh():
    assert sv.mesh((4, 2), ("data", "model")) == sv.mesh(data=4, model=2)
    for sizes, names in [((4, 2), ("data",)), ("data=4", ("data",)), ((4,), "data")]:
        with pytest.raises(sv.ShardvizError, match="same length"):
            sv.mesh(sizes, names)


def test_an_array_needs_no_name():
    array = sv.array((64, 512), "batch embed", dtype="bfloat16")
    assert array == sv.array("array", (64, 512), "batch embed", dtype="bfloat16")
    with pytest.raises(sv.ShardvizError, match="name of an array comes first"):
        sv.array((64, 512), "batch embed", "bfloat16")
