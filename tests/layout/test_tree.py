"""Arrays found in tables and in the parameters of real models."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.axis_rules.array_tree import read_tree
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.bridge import tree_children


def arrays(tree: Any) -> list[ArraySpec]:
    found = read_tree(tree).leaves
    assert all(f.problem is None for f in found), found
    return [f.array for f in found]


W = ArraySpec("w", (8, 4), "embed mlp")
V = ArraySpec("v", (4,), dtype="int8")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (W, [W]),
        ([W, V], [W, V]),
        ((W, V), [W, V]),
        (iter([W, V]), [W, V]),
        ((a for a in (W, V)), [W, V]),
        (("w", (8, 4), "embed mlp"), [W]),
        ([("w", (8, 4), "embed mlp"), ("v", 4, None, "int8")], [W, V]),
        ([("w", [8, 4], ["embed", "mlp"]), ("v", "4", None, np.int8)], [W, V]),
        ([["w", "8x4", ("embed", "mlp"), "f32"], V], [W, V]),
        ([("w", (8, 4), jax.sharding.PartitionSpec("embed", "mlp"))], [W]),
        ({"w": ((8, 4), "embed mlp"), "v": ((4,), None, "int8")}, [W, V]),
        ({"w": ([8, 4], ["embed", "mlp"]), "v": (4, None, "int8")}, [W, V]),
        ({"w": ("8, 4", "embed mlp")}, [W]),
        (((8, 4), "embed mlp"), [W.renamed("array")]),
        ({"a": {"w": W}}, [W.renamed("a/w/w")]),
        ({"a": {"w": ((8, 4), "embed mlp")}}, [W.renamed("a/w")]),
        ({"a": [((8, 4), "embed mlp"), None, {"v": ((4,), (None,), "int8")}]},
         [W.renamed("a/0"), ArraySpec("a/2/v", (4,), (None,), "int8")]),
        ({3: ((8, 4), "embed mlp")}, [W.renamed("3")]),
        ({"step": ((), ())}, [ArraySpec("step", (), ())]),
        ([("step", (), [])], [ArraySpec("step", (), ())]),
        ([], []),
        ({}, []),
        (None, []),
        ({"a": {}, "b": [], "c": (), "d": None}, []),
        ({"w": np.zeros((8, 4), np.float32)}, [ArraySpec("w", (8, 4))]),
        # As jax places it, unless it is set to 64 bits.
        ({"w": np.zeros((8, 4))}, [ArraySpec("w", (8, 4))]),
        ({"w": jax.ShapeDtypeStruct((8, 4), jnp.bfloat16)},
         [ArraySpec("w", (8, 4), dtype="bfloat16")]),
        ({"k": jax.eval_shape(lambda: jax.random.key(0))}, [ArraySpec("k", (), dtype="key<fry>")]),
    ],
)  # fmt: skip
def test_tables_and_trees_are_read(written, found):
    assert arrays(written) == found


class Dense(nn.Module):
    box: Any = nn.with_logical_partitioning

    @nn.compact
    def __call__(self, x):
        init = self.box(nn.initializers.lecun_normal(), ("embed", "mlp"))
        kernel = self.param("kernel", init, (x.shape[-1], 16))
        bias = self.param("bias", nn.initializers.zeros, (16,))
        return x @ kernel + bias


@pytest.mark.parametrize("box", [nn.with_logical_partitioning, nn.with_partitioning])
def test_boxes_of_linen_are_opened(box):
    shapes = jax.eval_shape(Dense(box).init, jax.random.key(0), jnp.ones((2, 8)))
    assert arrays(shapes) == [
        ArraySpec("params/bias", (16,)),
        ArraySpec("params/kernel", (8, 16), "embed mlp"),
    ]


def test_a_train_state_with_its_optimizer_is_read():
    model = Dense()

    def start(key):
        params = model.init(key, jnp.ones((2, 8)))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    made = {a.name: a for a in arrays(jax.eval_shape(start, jax.random.key(0)))}
    assert made["params/kernel"].logical == ("embed", "mlp")
    assert made["opt_state/0/mu/kernel"].logical == ("embed", "mlp")
    assert made["opt_state/0/count"].shape == ()
    assert made["step"].shape == ()
    assert len(made) == 8
    live = {a.name for a in arrays(start(jax.random.key(0)))}
    assert live == set(made), "step is a Python number here"


def test_arrays_that_are_sharded_keep_their_spec(eight_devices):
    mesh = jax.sharding.Mesh(np.reshape(eight_devices, (4, 2)), ("data", "model"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    live = jax.device_put(np.zeros((8, 4), np.float32), sharding)
    planned = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=sharding)
    single = jnp.zeros((8, 4))
    found = arrays({"live": live, "planned": planned, "single": single})
    assert [a.spec for a in found] == [Spec.of("data"), Spec.of("data"), None]


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Box:
    inner: Any
    count: Any = 0
    label: str = "static"
    run: Any = len


def test_fields_of_classes_are_named_and_their_numbers_are_scalars():
    tree = Pair(Box(((8,), "embed"), 2.5), [Pair(None, np.zeros(2, np.int8))])
    assert arrays(tree) == [
        ArraySpec("left/inner", (8,), "embed"),
        ArraySpec("left/count", ()),
        ArraySpec("right/0/right", (2,), dtype="int8"),
    ]


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"a": {"w": "x"}}, "'a/w': "),
        ({"m": Dense()}, "'m': "),
        ({"w": (8, 4)}, "'w/0': "),
        ([("w", (8, -4), "embed mlp")], "'w': "),
        ([("w", (8,), "embed", "float33")], "'w': "),
        ([("w", (8,), "embed", "f32", 1, 2)], "'w': "),
    ],
    ids=lambda v: "" if isinstance(v, str) else type(v).__name__,
)
def test_what_is_no_array_is_refused_with_its_path(tree, path):
    with pytest.raises(LayoutError) as caught:
        read_tree(tree)
    assert str(caught.value).startswith(path)


class Stack:
    """A container that only jax knows."""

    def __init__(self, *parts: Any):
        self.parts = parts


jax.tree_util.register_pytree_with_keys(
    Stack,
    lambda s: ([(jax.tree_util.SequenceKey(i), p) for i, p in enumerate(s.parts)], None),
    lambda _, parts: Stack(*parts),
)


def test_containers_that_are_registered_with_jax_are_opened():
    tree = {"s": Stack(np.zeros(2, np.int8), Stack(jnp.ones((2, 2))))}
    with pytest.raises(LayoutError, match=r"'s': .* is not an array"):
        read_tree(tree)
    names = [leaf.array.name for leaf in read_tree(tree, children=tree_children).leaves]
    assert names == ["s/0", "s/1/0"]


def test_what_eval_shape_says_under_a_mesh_gives_way_to_names(eight_devices):
    sizes, names = (4, 2), ("data", "model")
    for kind in AxisType.Auto, AxisType.Explicit:
        mesh = AbstractMesh(sizes, names, axis_types=(kind, kind))
        bare = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P()))
        (boxed,) = arrays([nn.LogicallyPartitioned(bare, ("embed", "mlp"))])
        assert (boxed.spec, boxed.logical) == (None, ("embed", "mlp"))
        (alone,) = arrays([bare])
        assert alone.spec == Spec.of(), "somebody wrote P() on it"
    split = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    (boxed,) = arrays([nn.LogicallyPartitioned(split, ("embed", "mlp"))])
    assert boxed.spec == Spec.of("data")
    real = jax.sharding.Mesh(np.reshape(eight_devices, sizes), names)
    live = jax.device_put(np.zeros((8, 4)), NamedSharding(real, P()))
    (boxed,) = arrays([nn.LogicallyPartitioned(live, ("embed", "mlp"))])
    assert boxed.spec == Spec.of(), "it is there, and replicated"


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128", "int8", "float32"])
@pytest.mark.parametrize("wide", [False, True])
def test_numpy_arrays_have_the_type_that_jax_gives_them(dtype, wide):
    value = np.ones((8, 4), dtype)
    with jax.enable_x64(wide):
        placed = str(jnp.asarray(value).dtype)
        assert sv.layout(value, "data", "data=4").dtype == placed
        assert arrays({"w": value})[0].dtype == placed
        assert sv.explore(value).session.arrays[0].dtype == placed


@pytest.mark.parametrize("number", [True, 3, 1.5, 2j, np.float32(3)])
@pytest.mark.parametrize("wide", [False, True])
def test_numbers_have_the_type_that_jax_gives_them(number, wide):
    with jax.enable_x64(wide):
        (leaf,) = arrays({"s": number})
        assert leaf.dtype == str(jnp.asarray(number).dtype)
        kind = type(number)
        assert ArraySpec("s", (), dtype=kind).dtype == str(jnp.zeros((), kind).dtype)
        assert arrays({"s": np.float64(3)})[0].dtype == str(jnp.asarray(np.float64(3)).dtype)
