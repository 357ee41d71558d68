"""Names for the leaves of a program's arguments."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.base.errors import ProgramError
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.arguments import is_spec, program_arrays, spread
from tests.program.helpers import array

W = jax.ShapeDtypeStruct((4, 8), jnp.float32)


class Layer(NamedTuple):
    kernel: object
    bias: object


def names(fn, *args):
    return [a.name for a in program_arrays(args, fn)[0]]


CASES = {
    "parameters": (lambda x, w: x, (W, W), ["x", "w"]),
    "a dict": (lambda params, x: x, ({"w_out": W, "w_in": W}, W),
               ["params.w_in", "params.w_out", "x"]),
    "a named tuple": (lambda p: 0, (Layer(W, W),), ["p.kernel", "p.bias"]),
    "star arguments": (lambda x, *rest: 0, (W, W, W), ["x", "rest[0]", "rest[1]"]),
    "too many": (lambda x: 0, (W, W), ["x", "argument_1"]),
    "keys that are no text": (lambda d: 0, ({3: W, 1: W},), ["d[1]", "d[3]"]),
    "none is no leaf": (lambda p: 0, ({"a": None, "b": W},), ["p.b"]),
    "no signature": (dict.fromkeys, (W,), ["iterable"]),
    "names that clash": (lambda p: 0, ({"a": {"b": W}, "a.b": W},), ["p.a.b", "p.a.b_2"]),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "args", "expected"), CASES.values(), ids=CASES)
def test_leaves_are_named_by_parameter_and_path(fn, args, expected):
    assert names(fn, *args) == expected


def test_array_specs_keep_their_names_and_others_make_way():
    assert names(lambda x, y: 0, W, array("x", (2,))) == ["x_2", "x"]


def test_array_specs_of_one_name_are_named_by_their_place():
    tree = {"w": array("w", (2,)), "b": array("b", (2,))}
    found = names(lambda params, m, w: 0, tree, {"w": tree["w"]}, array("x", (2,)))
    assert found == ["b", "params.w", "m.w", "x"]
    assert names(lambda w, y: 0, tree["w"], tree["w"]) == ["w", "y"]


def test_shardings_bring_specs_and_the_mesh():
    mesh = AbstractMesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    split = jax.ShapeDtypeStruct((8,), jnp.int8, sharding=NamedSharding(mesh, P("b")))
    arrays, _, found = program_arrays((split, W), lambda x, w: 0)
    assert [a.spec for a in arrays] == [Spec.of("b"), None]
    assert found is not None
    assert found.shape == {"a": 4, "b": 2}
    other = AbstractMesh((8,), ("a",), axis_types=(AxisType.Auto,))
    elsewhere = jax.ShapeDtypeStruct((8,), jnp.int8, sharding=NamedSharding(other, P("a")))
    with pytest.raises(ProgramError, match=r"y is on the mesh \(a=8\).*before it on \(a=4, b=2"):
        program_arrays((split, elsewhere), lambda x, y: 0)


@pytest.mark.parametrize("leaf", ["text", pytest.param(object(), id="object")], ids=repr)
def test_leaves_that_are_no_arrays_are_refused(leaf):
    with pytest.raises(ProgramError, match=r"^p.lr is not an array: "):
        program_arrays(({"lr": leaf},), lambda p: 0)


class Empty(NamedTuple):
    """As `optax.EmptyState`."""


EMPTY = {
    "a state without fields": Empty(),
    "states": (Empty(), (), {}, [], None),
    "in a dict": {"state": (Empty(), None), "w": "data"},
    "of specs": [Empty(), "data", (None, P("data"))],
}


@pytest.mark.parametrize("specs", EMPTY.values(), ids=EMPTY)
def test_empty_containers_in_a_tree_of_specs_have_no_arrays(specs):
    whole = jax.tree.map(lambda s: W, specs, is_leaf=is_spec)
    found = spread(specs, whole, "in_specs")
    wanted = jax.tree.leaves(specs, is_leaf=is_spec)
    assert found == wanted
