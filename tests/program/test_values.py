"""Values: made-up ones that are always the same, and given ones that are checked."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding

import shardviz as sv
from shardviz.base.errors import ProgramError
from shardviz.runs.backend.inputs import example, example_block, value_leaves
from shardviz.runs.backend.targets import choose, device_mesh
from tests.program.helpers import MESH, array, program, run_here

DTYPES = [
    "bool", "int4", "uint4", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16",
    "float32", "float8_e4m3fn", "float8_e5m2", "complex64",
]  # fmt: skip


def made(spec_array, seed=0):
    mesh = device_mesh(MESH, choose("cpu", 8))
    return example(spec_array, NamedSharding(mesh, spec_array.spec.to_jax()), seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_examples_are_small_varied_and_split_as_asked(dtype):
    found = made(array("x", (8, 16), "a, b", dtype))
    assert (found.shape, str(found.dtype)) == ((8, 16), dtype)
    assert found.addressable_shards[0].data.shape == (2, 8)
    values = np.asarray(found.astype(jnp.complex64 if dtype == "complex64" else jnp.float32))
    assert np.abs(values).max() <= 3
    assert len(np.unique(values)) >= (2 if dtype == "bool" else 4)


def test_examples_are_the_same_however_they_are_split():
    whole = np.asarray(made(array("x", (8, 16), "")))
    for spec in ("a, b", "(b, a)", "None, (a, b)"):
        np.testing.assert_array_equal(np.asarray(made(array("x", (8, 16), spec))), whole)
    assert (np.asarray(made(array("x", (8, 16), ""), seed=1)) != whole).mean() > 0.9


@given(st.lists(st.integers(0, 7), min_size=0, max_size=4), st.data())
def test_a_block_is_a_part_of_the_whole(shape, data):
    bounds = []
    for size in shape:
        start = data.draw(st.integers(0, size))
        bounds.append((start, data.draw(st.integers(start, size))))
    float32 = np.dtype("float32")
    whole = example_block(tuple(shape), [(0, n) for n in shape], float32, 5)
    part = example_block(tuple(shape), bounds, float32, 5)
    assert whole.shape == tuple(shape)
    np.testing.assert_array_equal(part, whole[tuple(slice(*b) for b in bounds)])


def test_positive_floats_keep_away_from_zero():
    values = example_block((100, 100), ((0, 100), (0, 100)), np.dtype("float32"), 0, True)
    assert 0.06 < values.min() < 0.07
    assert 0.55 < values.max() < 0.57


def test_values_too_large_to_make_up_are_refused_before_they_are_made(monkeypatch):
    made = program(lambda x: x.sum(), array("x", (64, 8), "a"))
    monkeypatch.setattr("shardviz.runs.backend.here.host_available", lambda: 2047)
    report = run_here(made)
    assert report.error is not None
    assert report.error.stage == "place"
    assert report.error.lacks_memory
    assert run_here(made, np.ones((64, 8), np.float32)).ok


@pytest.mark.parametrize("shape", [(), (4,), (0,), (4, 2)])
def test_random_keys_are_made_too(shape):
    spec = "a" if shape and shape[0] else ""
    keys = made(array("k", shape, spec, "key<fry>"))
    assert keys.shape == shape
    assert jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)


TREE = program(lambda p, y: p["w"] @ y, {"w": array("w", (4, 8))}, array("y", (8, 2)))
FLAT = TREE.replace(tree=None)
W, Y = np.ones((4, 8), np.float32), np.ones((8, 2), np.float32)


def test_values_are_taken_in_the_form_of_the_arguments():
    for made_program, values in ((TREE, ({"w": W}, Y)), (FLAT, (W, Y))):
        leaves = value_leaves(made_program, values)
        assert leaves is not None
        assert leaves[0] is W
        assert leaves[1] is Y
    assert value_leaves(TREE, ()) is None


WRONG = {
    "too few": (TREE, ({"w": W},), "'p' and 'y'"),
    "leaves for trees": (FLAT, (W, Y, Y), "got 3 values"),
    "a different tree": (TREE, ([W], Y), "a different tree"),
    "another shape": (FLAT, (W.T, Y), "w is"),
    "another type": (FLAT, (W, Y.astype(np.int32)), "y is"),
    "an object": (FLAT, (object(), Y), "w takes an array"),
    "ragged": (FLAT, ([[1, 2], [3]], Y), "w takes an array"),
    "a whole number": (program(lambda s: s, array("s", ())), (2,), "s is"),
}


@pytest.mark.parametrize(("made_program", "values", "words"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_refused_in_words(made_program, values, words):
    with pytest.raises(ProgramError, match=words):
        value_leaves(made_program, values)


def test_a_deleted_array_is_refused_in_words(eight_devices):
    x = jnp.ones((4,))
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    with pytest.raises(ProgramError, match="x is an array that jax has deleted"):
        value_leaves(program(lambda x: x, array("x", (4,))), (x,))


@pytest.mark.parametrize("donated", [0, 1, (0, 1)])
def test_a_donated_array_that_is_also_another_argument_is_refused(donated, eight_devices):
    def step(state, average):
        return state + 1, average * 2

    x = jax.device_put(jnp.ones((4, 8)), jax.devices()[0])
    with pytest.raises(jax.errors.JaxRuntimeError, match="donate"):
        jax.jit(step, donate_argnums=donated)(x, x)
    x = jax.device_put(jnp.ones((4, 8)), jax.devices()[0])
    arrays = array("state", x.shape), array("average", x.shape)
    made_program = sv.program(step, *arrays, mesh=MESH, donate_argnums=donated)
    with pytest.raises(ProgramError, match="are the same array"):
        value_leaves(made_program, (x, x))
    assert value_leaves(made_program, (x, x.copy())) is not None
