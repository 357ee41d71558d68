"""What a call gives: shards, numbers, trees, prefixes, static arguments, local arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz.legacy as legacy
from shardviz.legacy.partitions import Parts
from tests.sharded_jit.helpers import assert_split, values

X, W = values(8, 24), values(24, 16, seed=1)


@pytest.mark.parametrize("parts", [(2, 1), (8, 1), (1, 8), (2, 4), (4, 2), (2, 3), (1, 1)])
def test_block_k_is_on_device_k(parts):
    parts = Parts(*parts)
    out = legacy.sharded_jit(lambda x: x + 1, parts, parts)(X)
    assert_split(out, parts, parts.product)
    np.testing.assert_array_equal(out, X + 1)


def test_the_documented_example():
    def f(x, y, z):
        return x @ y + z

    split = legacy.sharded_jit(f, (Parts(2, 2), Parts(4, 1), None), Parts(1, 4))
    out = split(X, W, np.float32(3))
    assert_split(out, Parts(1, 4), 4)
    np.testing.assert_allclose(out, X @ W + 3, rtol=1e-4, atol=1e-5)


def test_trees_and_prefixes():
    def f(params, x):
        return {"y": x @ params["w"] + params["b"], "rest": (params["b"], x)}

    given = ({"w": Parts(1, 8), "b": None}, Parts(8, 1))
    split = legacy.sharded_jit(f, given, {"y": Parts(2, 4), "rest": None})
    out = split({"w": W, "b": W[0]}, X)
    assert_split(out["y"], Parts(2, 4), 8)
    assert_split(out["rest"][0], None, 8)
    assert_split(out["rest"][1], None, 8)
    np.testing.assert_allclose(out["y"], X @ W + W[0], rtol=1e-4, atol=1e-5)


def test_no_arguments_and_no_results():
    assert legacy.sharded_jit(lambda: (), None, None, num_partitions=2)() == ()
    assert_split(legacy.sharded_jit(lambda: jnp.arange(8), None, Parts(8))(), Parts(8), 8)


@pytest.mark.parametrize("where", ["numpy", "another device"])
def test_arguments_come_from_anywhere(where):
    put = {
        "numpy": lambda: X,
        "another device": lambda: jax.device_put(X, jax.devices()[7]),
    }
    assert_split(
        legacy.sharded_jit(lambda x: x, Parts(2, 2), Parts(2, 2))(put[where]()), Parts(2, 2), 4
    )


@pytest.mark.parametrize("numbers", [1, (-2,)])
def test_static_arguments_have_no_parts(numbers):
    def f(x, n, y):
        return x * n + y if n > 2 else x

    split = legacy.sharded_jit(f, (Parts(2, 1), Parts(1, 2)), Parts(2, 1), static_argnums=numbers)
    np.testing.assert_array_equal(split(X, 3, X), X * 4)
    assert_split(split(X, 1, X), Parts(2, 1), 2)


def test_another_static_value_traces_again_and_the_same_does_not():
    traced = []

    def f(x, n):
        traced.append(n)
        return x * n

    split = legacy.sharded_jit(f, Parts(2, 1), None, static_argnums=1)
    for n in (2, 3, 2, 3):
        split(X, n)
    assert traced == [2, 2, 3, 3]  # once to learn what it asks for, once for the devices


def test_random_keys_and_numbers():
    split = legacy.sharded_jit(lambda k, s: jax.random.normal(k, (8, 8)) * s, None, Parts(2, 4))
    out = split(jax.random.key(0), 2.0)
    np.testing.assert_allclose(out, jax.random.normal(jax.random.key(0), (8, 8)) * 2, rtol=1e-6)
    assert_split(out, Parts(2, 4), 8)


def test_parts_in_other_orders_need_two_meshes_and_get_them():
    split = legacy.sharded_jit(lambda x, y: x @ y, (Parts(2, 3), Parts(3, 2)), Parts(3, 2))
    x = values(12, 12)
    out = split(x, x)
    assert_split(out, Parts(3, 2), 6)
    np.testing.assert_allclose(out, x @ x, rtol=1e-4, atol=1e-5)
