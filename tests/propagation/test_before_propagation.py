"""What is rewritten before the propagation, one rewrite at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardviz.core.backend.shardy import before_propagation, pipeline
from shardviz.core.backend.shardy.before_propagation import operations_in

X = np.ones((4, 4), np.float32)
HALF = np.float32(0.5)


def full(number, dtype=np.float32):
    return lax.full((4, 4), number, dtype)


def module_of(fn, *args):
    lowered = jax.jit(fn).lower(*args)
    return lowered.compiler_ir("stablehlo").operation.clone()


# name: function of an array, what remains of these words after the rewrite
SIMPLIFIED = {
    "an operation on constants": (lambda x: x + jnp.tanh(full(HALF)), {"tanh": 0, "add": 1}),
    "several": (lambda x: x + full(2) * full(3) / full(4), {"multiply": 0, "divide": 0, "add": 1}),
    "a slice of constants": (lambda x: x + jnp.sum(full(2)[1:3]), {"slice": 0}),
    "what XLA leaves alone": (lambda x: x + jnp.floor(full(HALF)), {"floor": 1}),
    "constants of 64-bit unsigned numbers": (
        lambda x: x + (full(3, np.uint32) & full(1, np.uint32)).astype(np.float32),
        {"stablehlo.and": 0},
    ),
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
    before_propagation.simplify(module)
    before_propagation.inline_calls(module)
    before_propagation.remove_dead(module)
    assert module.verify()
    text = str(module)
    assert {word: text.count(f"{word} ") for word in expected} == expected


NUMBERS = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "remainder": lax.rem,
    "compare": lambda a, b: (a < b) * 1.0,
    "select": lambda a, b: lax.select(a > b, a, b),
    "clamp": lambda a, b: lax.clamp(a, b, a),
    "logistic": lambda a, b: lax.logistic(a),
    "rsqrt": lambda a, b: lax.rsqrt(b),
    "and": lambda a, b: (a.astype(np.int32) & b.astype(np.int32)) * 1.0,
    "integer division": lambda a, b: (lax.div(a.astype(np.int32), b.astype(np.int32))) * 1.0,
    "log": lambda a, b: jnp.log(b),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_constants_are_computed_as_jax_computes_them(name):
    def fn():
        return NUMBERS[name](full(np.float32(-7)), full(np.float32(2)))

    module = module_of(fn)
    before_propagation.inline_calls(module)
    before_propagation.simplify(module)
    main = before_propagation.functions_of(module)["main"]
    returned = list(main.regions[0].blocks[0].operations)[-1].operation
    with module.context:
        found = before_propagation._number(returned.operands[0])
    assert found == pytest.approx(float(np.asarray(jax.jit(fn)())[0, 0]), rel=1e-6)


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
