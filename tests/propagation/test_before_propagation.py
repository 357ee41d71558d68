"""What is rewritten before the propagation, one rewrite at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardviz.plans.backend import before_propagation, pipeline
from shardviz.plans.backend.before_propagation import operations_in
from shardviz.plans.backend.simplify import simplify

X = np.ones((4, 4), np.float32)
HALF = np.float32(0.5)


def full(number, dtype=np.float32):
    return lax.full((4, 4), number, dtype)


def module_of(fn, *args):
    lowered = jax.jit(fn).lower(*args)
    return lowered.compiler_ir("stablehlo").operation.clone()


# name: function of an array, what remains of these words after the rewrite
SIMPLIFIED = {
    "complex constants": (lambda x: x * full(1j, np.complex64), {"multiply": 1}),
    "a transpose of a transpose": (
        lambda x: jnp.einsum("ab->ba", jnp.einsum("ab->ba", x)),
        {"transpose": 0},
    ),
    "a transpose of ones": (lambda x: lax.transpose(x[None], (1, 0, 2)), {"transpose": 0}),
    "a reshape of a reshape": (lambda x: x.reshape(2, 8).reshape(16), {"reshape": 1}),
    "a reshape and back": (lambda x: jnp.sin(x.reshape(16).reshape(4, 4)), {"reshape": 0}),
    "a select of one value": (lambda x: lax.select(x > 0, x, x), {"select": 0}),
    "a select of one number": (
        lambda x: x + lax.select(x > 0, full(0), full(0)),
        {"select": 0, "compare": 0},
    ),
    "a select of two numbers": (lambda x: lax.select(x > 0, full(0), full(-0.0)), {"select": 1}),
}


@pytest.mark.parametrize("name", SIMPLIFIED)
def test_what_xla_would_remove_is_removed(name):
    fn, expected = SIMPLIFIED[name]
    module = module_of(fn, X)
    simplify(module)
    before_propagation.inline_calls(module)
    before_propagation.remove_dead(module)
    assert module.verify()
    text = str(module)
    assert {word: text.count(f"{word} ") for word in expected} == expected


def loops(x, y):
    def outer(i, c):
        return lax.fori_loop(0, 3, lambda j, d: jnp.sin(d) + y, c) + x

    return lax.fori_loop(0, 3, outer, x)


def test_loops_carry_only_what_they_change():
    module = module_of(loops, X, X)
    before_propagation.inline_calls(module)
    pipeline.read_invariants_outside(module)
    assert module.verify()
    main = before_propagation.functions_of(module)["main"]
    found = [op for op in operations_in(main) if op.name == "stablehlo.while"]
    assert [len(op.operands) for op in found] == [2, 2]
