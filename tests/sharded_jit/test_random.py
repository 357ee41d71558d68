"""Random pairs of a function and its partitions: the unsharded function and the shards that the
parts say agree.
"""

from __future__ import annotations

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

import shardviz.legacy as legacy
from shardviz.legacy.partitions import Parts
from tests.quick_compiles import quick_options
from tests.sharded_jit.helpers import assert_split, values

SIZE = 24  # every number of parts below divides it

# Each takes two matrices and `c`, which is a constraint or does nothing.
FUNCTIONS = {
    "elementwise": lambda x, w, c: c(jnp.sin(x) * w) + x,
    "matmul": lambda x, w, c: c(x @ w),
    "two matmuls": lambda x, w, c: c(x @ w) @ x.T,
    "softmax": lambda x, w, c: jax.nn.softmax(c(x - w), axis=-1),
    "cumsum": lambda x, w, c: jnp.cumsum(c(x), axis=0) * w,
    "roll": lambda x, w, c: jnp.roll(c(x), 5, axis=1) + w,
    "sort": lambda x, w, c: jnp.sort(c(x * w), axis=0),
    "take": lambda x, w, c: c(x)[::-1] + w[:, ::-1],
    "concatenate": lambda x, w, c: jnp.concatenate([x, c(w)])[12:36],
    "scan": lambda x, w, c: jax.lax.scan(lambda a, _: (c(jnp.tanh(a + w)), None), x, length=2)[0],
    "fori": lambda x, w, c: jax.lax.fori_loop(0, 2, lambda i, a: c(a * 0.5 + i), x) + w,
    "cond": lambda x, w, c: jax.lax.cond(x[0, 0] > 0, lambda v: c(v * w), lambda v: v - w, x),
    "gradient": lambda x, w, c: jax.grad(lambda v: jnp.sum(c(v @ w) ** 2))(x),
    "jit": lambda x, w, c: jit(lambda v: c(v + 1))(x) * w,
    "reshape": lambda x, w, c: c(x).reshape(12, 48).reshape(24, 24) + w,
    "transpose": lambda x, w, c: c(x.T) - w,
}


@pytest.fixture(autouse=True)
def _quick_compiles(monkeypatch):
    """Every `jax.jit`; `jit` above is called inside of one."""
    monkeypatch.setattr(jax, "jit", functools.partial(jit, compiler_options=quick_options()))


def factors(count: int, rng: random.Random) -> Parts:
    rows = rng.choice([d for d in range(1, count + 1) if count % d == 0])
    return Parts(rows, count // rows)


def maybe(count: int, rng: random.Random) -> Parts | None:
    return None if rng.random() < 0.2 else factors(count, rng)


@functools.cache
def unsharded(name: str):
    """The function of that name without a constraint, compiled once for all its pairs."""
    return jax.jit(lambda x, w: FUNCTIONS[name](x, w, lambda v: v))


@pytest.mark.parametrize("seed", range(40))
def test_a_random_pair(seed):
    rng = random.Random(seed)
    name = rng.choice(list(FUNCTIONS))
    count = rng.choice([1, 2, 3, 4, 6, 8, 8])
    ins, out, inner = (maybe(count, rng), maybe(count, rng)), maybe(count, rng), maybe(count, rng)
    body, constrained = FUNCTIONS[name], rng.random() < 0.6

    def f(x, w):
        split = lambda v: legacy.with_sharding_constraint(v, inner) if constrained else v  # noqa: E731
        return body(x, w, split)

    x, w = values(SIZE, SIZE, seed=seed), values(SIZE, SIZE, seed=seed + 1)
    sharded = legacy.sharded_jit(f, ins, out, num_partitions=count)
    found = sharded(x, w)
    plain = unsharded(name)(x, w)
    np.testing.assert_allclose(found, plain, rtol=2e-4, atol=2e-4)
    assert_split(found, out, count)
