"""Which arguments go under roots, and made-up values for them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardviz.programs.backend.jaxprs import positive_arguments
from tests.program.helpers import array, checks, program, run

X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
FOUND = {
    "a root": (lambda x: jnp.sqrt(x), (0,)),
    "a logarithm": (lambda x: jnp.log(x), (0,)),
    "moved about": (lambda x: jnp.log(x.T.reshape(4, 16)[1:].astype(jnp.bfloat16)), (0,)),
    "a quotient": (lambda x, y: jnp.log(x / y), (0, 1)),
    "inside jit": (lambda x, y: y + jax.jit(lambda z: jnp.sqrt(z * 0.9))(x), (0,)),
    "inside a loop": (lambda x: lax.scan(lambda c, z: (c + jnp.sqrt(z), None), x[0], x)[0], (0,)),
    "inside a branch": (lambda x: lax.cond(True, jnp.sqrt, jnp.log, x), (0,)),
    "a gradient": (lambda x: jax.grad(lambda x: jnp.sqrt(x).sum())(x), (0,)),
}
NOT = {
    "a square": lambda x: jnp.sqrt((x**2).sum() + (x * x).sum() + jnp.square(x).sum()),
    "a softmax": lambda x: jax.nn.log_softmax(x),
    "what is subtracted": lambda x: jnp.log(1 - x),
    "a norm": lambda x: jnp.linalg.norm(x),
    "a variance": lambda x: x / jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-5),
}


@pytest.mark.parametrize(("fn", "expected"), FOUND.values(), ids=FOUND)
def test_what_goes_under_a_root_is_positive(fn, expected):
    count = fn.__code__.co_argcount
    assert positive_arguments(jax.make_jaxpr(fn)(*[X] * count)) == expected


@pytest.mark.parametrize("fn", NOT.values(), ids=NOT)
def test_nothing_else_is(fn):
    assert positive_arguments(jax.make_jaxpr(fn)(X)) == ()


def adam(p, m, v, x):
    g = jax.grad(lambda p: (jnp.tanh(x @ p) ** 2).mean())(p)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def test_made_up_second_moments_give_no_nan():
    arrays = [array(n, (16, 16), "None, b") for n in "pmv"]
    report = run(program(adam, *arrays, array("x", (8, 16), "a")))
    assert report.ok, report
    assert None not in checks(report).values()
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in report.outputs)
