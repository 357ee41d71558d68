"""with_sharding_constraint inside: alone, in jit, loops, branches, gradients, vmap, and nested."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
import shardviz.legacy as legacy
from shardviz.legacy.constraints import inside
from shardviz.legacy.partitions import Parts
from tests.sharded_jit.helpers import assert_split, values

X = values(8, 8)
SPLIT = Parts(2, 4)


def constrained(x):
    return legacy.with_sharding_constraint(x, SPLIT)


def in_jit(x):
    return jax.jit(lambda v: constrained(v * 2))(x)


def in_scan(x):
    return jax.lax.scan(lambda c, _: (constrained(jnp.tanh(c)), None), x, None, length=3)[0]


def in_fori(x):
    return jax.lax.fori_loop(0, 3, lambda _, c: constrained(c * 1.5), x)


def in_while(x):
    return jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: constrained(c + 1), x)


def in_cond(x):
    return jax.lax.cond(x.sum() > 0, lambda v: constrained(v + 1), lambda v: v - 1, x)


def in_gradient(x):
    return jax.grad(lambda v: jnp.sum(constrained(v * v) ** 2))(x)


def in_remat(x):
    return jax.grad(lambda v: jax.checkpoint(lambda u: constrained(jnp.sin(u)))(v).sum())(x)


def in_vmap(x):
    return jax.vmap(lambda v: legacy.with_sharding_constraint(v, Parts(8)) * 2)(x)


def in_custom_vjp(x):
    @jax.custom_vjp
    def f(v):
        return constrained(v * 2)

    f.defvjp(lambda v: (f(v), None), lambda _, g: (constrained(g * 2),))
    return jax.grad(lambda v: f(v).sum())(x)


NESTED = [
    in_jit, in_scan, in_fori, in_while, in_cond, in_gradient, in_remat, in_vmap, in_custom_vjp,
]  # fmt: skip


@pytest.mark.parametrize("f", NESTED, ids=lambda f: f.__name__)
def test_a_constraint_alone_decides_how_many_devices_there_are(f):
    out = legacy.sharded_jit(f, None, Parts(8, 1))(X)
    assert_split(out, Parts(8, 1), 8)
    with inside():
        plain = jax.jit(f)(X)  # on one device it asks for nothing
    np.testing.assert_allclose(out, plain, rtol=1e-5)


@pytest.mark.parametrize("f", NESTED, ids=lambda f: f.__name__)
def test_counts_that_disagree_are_found_however_deep(f):
    with pytest.raises(sv.ShardvizError):
        legacy.sharded_jit(f, Parts(4, 1), None)(X)


def test_the_compiler_sees_the_constraint():
    """Each of the 8 devices computes the sine of its own block only."""
    report = legacy.sharded_jit(lambda x: constrained(jnp.sin(x)), None, None).report(X)
    assert report.ok, report.error
    (gather,) = {c.kind for c in report.collectives}
    assert gather == "all-gather"  # the blocks are gathered, since the result is replicated


def test_none_inside_replicates():
    seen = []

    def f(x):
        y = legacy.with_sharding_constraint(x * 2, None)
        jax.debug.inspect_array_sharding(y, callback=seen.append)
        return y

    out = legacy.sharded_jit(f, SPLIT, SPLIT)(X)
    assert_split(out, SPLIT, 8)
    assert seen[-1].shard_shape(X.shape) == X.shape


def test_one_inner_jit_means_the_same_under_every_outer():
    inner = jax.jit(lambda x: legacy.with_sharding_constraint(x + 1, None))
    assert_split(legacy.sharded_jit(inner, Parts(2, 1), Parts(2, 1))(X), Parts(2, 1), 2)
    assert_split(legacy.sharded_jit(inner, Parts(8, 1), Parts(8, 1))(X), Parts(8, 1), 8)
    assert_split(legacy.sharded_jit(inner, None, None, num_partitions=4)(X), None, 4)


def test_a_constraint_in_another_order_than_the_rest():
    x = values(12, 12)
    f = lambda v: legacy.with_sharding_constraint(v @ v, Parts(3, 2)) @ v  # noqa: E731
    out = legacy.sharded_jit(f, Parts(2, 3), Parts(2, 3))(x)
    assert_split(out, Parts(2, 3), 6)
    np.testing.assert_allclose(out, x @ x @ x, rtol=1e-3, atol=1e-4)


def test_inside_another_sharded_jit():
    inner = legacy.sharded_jit(lambda x: x * 2, Parts(4, 2), Parts(8, 1))
    outer = legacy.sharded_jit(lambda x: inner(x) + 1, None, SPLIT)
    assert_split(outer(X), SPLIT, 8)
    np.testing.assert_array_equal(outer(X), X * 2 + 1)


def test_inside_another_sharded_jit_of_another_size():
    inner = legacy.sharded_jit(lambda x: x * 2, Parts(2, 1), None)
    with pytest.raises(sv.ShardvizError):
        legacy.sharded_jit(lambda x: inner(x) + 1, SPLIT, None)(X)


@pytest.mark.parametrize("f", [lambda x: x * 3, constrained, in_scan], ids=["x", "split", "scan"])
def test_jit_around_it(f):
    split = legacy.sharded_jit(f, SPLIT, Parts(4, 2))
    out = jax.jit(lambda x: split(x))(X)
    assert_split(out, Parts(4, 2), 8)
    np.testing.assert_allclose(out, split(X), rtol=1e-6)


@pytest.mark.parametrize("where", ["numpy", "committed to one device", "split already"])
def test_a_gradient_around_it(where):
    split = legacy.sharded_jit(lambda x: jnp.sum(constrained(x) ** 3), Parts(8, 1), None)
    place = {"committed to one device": jax.devices()[0]}
    x = jax.device_put(X, place[where]) if where in place else X
    x = legacy.sharded_jit(lambda x: x, None, SPLIT)(X) if where == "split already" else x
    np.testing.assert_allclose(jax.grad(split)(x), 3 * X**2, rtol=1e-5)


def test_vmap_and_jvp_around_it():
    split = legacy.sharded_jit(lambda x: constrained(x) * 2, Parts(8, 1), SPLIT)
    np.testing.assert_array_equal(jax.vmap(split)(np.stack([X, X, X]))[1], X * 2)
    np.testing.assert_array_equal(jax.jvp(split, (X,), (X,))[1], X * 2)
