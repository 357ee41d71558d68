"""What XLA rewrites before it propagates, and what loops read from outside, in plans."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from shardviz.base.errors import ProgramError
from shardviz.plans.backend.build_plan import plan_program
from tests.propagation.planning import plan, program, spec

X = ((16, 32), "data, model")


def composed(x):
    return jax.lax.composite(lambda x: jnp.sin(x) * 2, name="my.layer")(x)


def nested(x):
    return jax.lax.composite(lambda x: composed(x) + 1, name="my.block")(x)


def attributed(x):
    made = jax.lax.composite(lambda x, **_: jnp.exp(x), name="my.layer", version=2)
    return made(x, scale=1.0, axis=0)


COMPOSITES = {
    "alone": composed,
    "in another": nested,
    "in a loop": lambda x: jax.lax.scan(lambda x, _: (composed(x), None), x, None, length=2)[0],
    "in a branch": lambda x: jax.lax.cond(x[0, 0] > 0, composed, jnp.cos, x),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_shardings_cross_a_composite_operation(name, eight_devices):
    made = plan(COMPOSITES[name], x=X)
    assert spec(made.op("output")) == "P('data', 'model')"
    assert all(op.covered for op in made.ops)
    assert not any(op.opcode == "composite" for op in made.ops)


@pytest.mark.parametrize("shapes", [[(16, 0)], [(16, 0), (16, 8)]])
def test_what_has_no_elements_is_left_out_of_a_concatenation(shapes, eight_devices):
    arguments = {f"y{n}": (shape, "data, None") for n, shape in enumerate(shapes)}
    made = plan(lambda x, *ys: jnp.concatenate([x, *ys], 1) * 2, x=X, **arguments)
    joined = [op for op in made.ops if op.opcode == "concatenate"]
    assert [len(op.operands) for op in joined] == [2] * (len(shapes) - 1)


OUTER = {
    "map in batches": lambda x: jax.lax.map(lambda row: row * 2, x, batch_size=4),
    "a loop in a loop": lambda x: jax.lax.fori_loop(
        0, 2, lambda i, t: jax.lax.fori_loop(0, 2, lambda j, u: u + x[i].sum() + t[j], t), x
    ),
    "a branch in a loop": lambda x: jax.lax.scan(
        lambda t, i: (jax.lax.cond(i > 0, lambda: t @ x.T @ x, lambda: t), None), x, jnp.arange(3)
    )[0],
    "the determinant": lambda x: jnp.linalg.det(x @ x.T),
}


@pytest.mark.parametrize("name", OUTER)
def test_what_a_loop_reads_from_outside_is_known_by_name(name, eight_devices):
    made = plan(OUTER[name], x=X)
    assert made.collectives
    for collective in made.collectives:
        assert collective.value in made.by_name


def test_a_plan_that_failed_says_why_whatever_it_is_asked(eight_devices):
    made = plan_program(program(lambda x: x @ x, x=X))
    assert made.error is not None
    for ask in (made.why, made.op):
        with pytest.raises(ProgramError) as caught:
            ask("x")
        assert str(made.error) in str(caught.value)
