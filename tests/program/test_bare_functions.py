"""A function in the place of a program: the public functions make the program themselves."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv


def step(state, batch, scale=1.0):
    """A step of gradient descent on one matrix."""

    def loss(w):
        return scale * ((batch["x"] @ w) ** 2).mean()

    return {"w": state["w"] - 0.1 * jax.grad(loss)(state["w"])}


@pytest.fixture
def mesh(eight_devices):
    return Mesh(np.array(eight_devices).reshape(4, 2), ("data", "model"))


@pytest.fixture
def values(mesh):
    """A state and a batch on their devices."""
    w = jnp.arange(32.0).reshape(4, 8) / 32
    state = {"w": jax.device_put(w, NamedSharding(mesh, P(None, "model")))}
    return state, {"x": jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("data")))}


def structs(values):
    def struct(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(struct, values)


@pytest.mark.parametrize("form", [lambda values: values, structs], ids=["arrays", "structs"])
def test_a_function_and_its_arguments_are_a_program(values, form):
    state, batch = form(values)
    made = sv.program(step, state, batch)
    plan = sv.plan(step, state, batch)
    assert plan.error is None
    assert [str(op.spec) for op in plan.ops] == [str(op.spec) for op in sv.plan(made).ops]
    report = sv.compile(step, state, batch, target="cpu:8")
    assert report.error is None
    assert report.key == sv.compile(made, "cpu:8").key
    assert {c.kind for c in report.partitioned} == {"all-reduce"}
    stages = sv.stages(step, state, batch, target="cpu:8")
    assert stages.report.key == report.key
    assert sv.explore(step, state, batch).session.now.view == "Program"


def test_a_run_of_arrays_gives_what_the_function_gives(values):
    report = sv.run(step, *values, target="cpu:8")
    assert report.ok
    np.testing.assert_allclose(report.outputs["w"], step(*values)["w"], rtol=1e-5)
    scaled = sv.run(step, *values, scale=3.0, target="cpu:8")
    np.testing.assert_allclose(scaled.outputs["w"], step(*values, scale=3.0)["w"], rtol=1e-5)
    by_name = sv.run(step, args=values, kwargs={"scale": 3.0}, target="cpu:8")
    np.testing.assert_array_equal(by_name.outputs["w"], scaled.outputs["w"])


def test_a_run_of_shapes_makes_values_up(values):
    state, batch = structs(values)
    assert sv.run(step, state, batch, target="cpu:8").ok
    # One shape among values is enough.
    mixed = sv.run(step, values[0], batch, target="cpu:8")
    assert mixed.ok
    assert not np.allclose(mixed.outputs["w"], step(*values)["w"])


def test_keywords_are_those_of_a_program(values):
    x, w = sv.array("x", (64, 512), "batch embed"), sv.array("w", (512, 2048), "embed mlp")
    rules = [("batch", "data"), ("mlp", "model")]
    plan = sv.plan(jnp.dot, x, w, mesh="data=4, model=2", rules=rules)
    assert str(plan.op("dot_general").spec) == "P('data', 'model')"
    specs = (P("data"), P(None, "model"))
    plan = sv.plan(jnp.dot, jnp.ones((8, 4)), jnp.ones((4, 2)), mesh="data=4, model=2",
                   in_specs=specs)  # fmt: skip
    assert str(plan.op("dot_general").spec) == "P('data', 'model')"


def loss(x, target):
    return ((x - target) ** 2).mean()


def test_a_parameter_with_a_name_of_ours(values):
    x = values[1]["x"]
    # Given by position, it leaves the keyword to us.
    assert sv.compile(loss, x, x, target="cpu:8").error is None
    spelled = sv.compile(loss, args=(x,), kwargs={"target": x}, target="cpu:8")
    assert spelled.error is None
    with pytest.raises(sv.ShardvizError, match="has a parameter target, and so has"):
        sv.compile(loss, x, target=x)


X = sv.array("x", (8,), spec="data")
MADE = sv.program(jnp.sin, X, mesh="data=8")
LOWERED = jax.jit(jnp.sin).lower(X)
SHARDING = NamedSharding(jax.sharding.AbstractMesh((2,), ("data",)), P("data"))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sv.plan(3), "sv.plan takes what"),
        (lambda: sv.compile({"w": 1}, target="cpu:8"), "sv.compile takes what"),
        (lambda: sv.run("step"), "sv.run takes what"),
        (lambda: sv.stages(None), "sv.stages takes what"),
        (lambda: sv.plan(MADE, X), "a program has its own"),
        (lambda: sv.compile(MADE, X, target="cpu:8"), "a program has its own"),
        (lambda: sv.plan(jnp.sin, jnp.ones(8)), "A program needs a mesh"),
        (lambda: sv.expect(MADE, collectives={}), r"got collectives= with the Program\. .*\.no,"),
        (
            lambda: sv.expect(sv.plan(MADE), memory="1 B"),
            r"got memory= with the Plan\. .*\.at_most",
        ),
        (
            lambda: sv.lock(sv.plan(MADE), "a.lock"),
            r"stages or audit; got 'a\.lock'.*\.write\(path\)",
        ),
        (lambda: sv.plan("x.mlir"), r"got 'x\.mlir'\. sv\.report\(path\) reads a file"),
        (lambda: sv.explore("step.hlo"), r"for a file of XLA, sv\.report\(path\)"),
        (lambda: sv.report("RESOURCE_EXHAUSTED: no"), "takes a path, or the text of a module"),
        (lambda: sv.plan(jnp.sin, X, sv.mesh("data=2")), r"a mesh\. Give it as mesh="),
        (lambda: sv.plan(jnp.sin, X, AbstractMesh((2,), ("data",))), r"a mesh\. Give it as mesh="),
        (lambda: sv.explore({"w": X}, sv.mesh("data=2")), "Give a mesh as mesh="),
        (lambda: sv.text({1: X, "a": X}), "jax sorts the keys of a dict"),
        (lambda: sv.explore(X, X), "takes one thing to show"),
        (lambda: sv.explore(MADE, X), "takes one thing to show"),
        (lambda: sv.explore({"w": X}, in_specs="data"), "and in_specs=. .* sv.array"),
        (lambda: sv.explore(LOWERED), r"sv\.report\(lowered\)"),
        (lambda: sv.explore(LOWERED.compile()), r"sv\.report\(compiled\)"),
        (lambda: sv.explore(SHARDING), "A sharding has no shape"),
        (lambda: sv.report(SimpleNamespace(lowered=LOWERED)), r"Give its \.lowered\."),
        (lambda: sv.report(jax.export.export(jax.jit(jnp.sin))(X)), r"exported\.mlir_module\(\)"),
        (lambda: sv.explore(jnp.sin), "a function with its arguments"),
        (lambda: sv.explore(step), "a function with its arguments"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(call, words):
    with pytest.raises(sv.ShardvizError, match=words):
        call()


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: jax.Array

    def __call__(self, x):
        return x @ self.w


def test_a_model_that_can_be_called_is_a_tree_of_arrays_until_it_gets_an_input():
    layer = Layer(jnp.ones((4, 4)))
    assert sv.text(layer, mesh="data=2") == sv.text(sv.audit(layer, mesh="data=2"))
    assert "dot_general" in sv.text(layer, jnp.ones((4, 4)), mesh="data=2")


def test_a_function_that_jax_refuses_before_its_mesh_is_found_has_the_error(mesh):
    def summed(x):
        double = jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
        return double(x)

    with pytest.raises(
        sv.ShardvizError, match=r"^jax could not trace.*divisible.* If the cause is a missing mesh"
    ):
        sv.plan(summed, jnp.ones((6, 4)))


def test_meshes_that_look_the_same_are_told_apart(mesh):
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    reversed_mesh = Mesh(mesh.devices[::-1], mesh.axis_names)

    def array(on):
        return jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(on, P("data")))

    with pytest.raises(sv.ShardvizError, match=r"Explicit, Explicit\).*Auto, Auto\)"):
        sv.plan(jnp.dot, array(mesh), array(explicit))
    with pytest.raises(sv.ShardvizError, match=r"devices 6, 7, 4.*devices 0, 1, 2"):
        sv.plan(jnp.dot, array(mesh), array(reversed_mesh))


# What people have at hand, and a number of devices that nobody named.


@pytest.mark.parametrize(
    "tree",
    [
        {"a": {"w": np.ones((8, 4), "float32")}, "b": np.ones(4, "float32")},
        {"a": {"w": jax.ShapeDtypeStruct((8, 4), "float32")}},
        [jax.ShapeDtypeStruct((8, 4), "float32")],
    ],
    ids=["arrays", "structs", "list"],
)
def test_the_explorer_opens_parameters_that_name_no_mesh(tree):
    explorer = sv.explore(tree)
    assert str(explorer.session.mesh) == "data=4, model=2"
    assert explorer.session.now.view == "Model"
    assert len(explorer.session.audit.rows) == len(jax.tree.leaves(tree))
    assert str(sv.explore(tree, mesh="data=2").session.mesh) == "data=2"


def test_the_explorer_opens_parameters_on_their_own_mesh(values):
    explorer = sv.explore(values[0])
    assert str(explorer.session.mesh) == "data=4, model=2"
    assert [str(row.spec) for row in explorer.session.audit.rows] == ["P(None, 'model')"]


def test_a_state_of_another_version_is_no_tree():
    state = sv.explore().state()
    with pytest.raises(sv.ShardvizError, match="not an Explorer state"):
        sv.explore({**state, "shardviz": 99})
