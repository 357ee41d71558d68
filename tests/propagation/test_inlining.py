"""Calls are inlined before the propagation, and what was in them is still shown as it was."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.propagation.planning import plan, spec

X = ((16, 32, 8), "None, model, data")
wsc = jax.lax.with_sharding_constraint


@jax.jit
def inner(x):
    return jnp.sin(x) * 2


@jax.jit
def outer(x):
    return inner(x) + inner(x + 1)


def looped(x):
    return jax.lax.fori_loop(0, 3, lambda i, t: outer(t), x)


def manual(x):
    return jax.shard_map(lambda x: inner(x) + 1, in_specs=P("data"), out_specs=P("data"))(x)


def constrained(fn):
    return lambda x: wsc(fn(x), P(None, "model", None)) * 2


def result_constrained(x):
    split = NamedSharding(jax.sharding.get_abstract_mesh(), P(None, "model", None))
    return jax.jit(jax.nn.relu, out_shardings=split)(x) * 2


BEFORE = {
    "relu": (constrained(jax.nn.relu), "max"),
    "silu": (constrained(jax.nn.silu), "mul"),
    "where": (constrained(lambda x: jnp.where(x > 0, x, 1)), "select_n"),
    "sort": (constrained(lambda x: jnp.sort(x, axis=0)), "sort"),
    "a function in a function": (constrained(outer), "add_1"),
    "a constraint inside": (lambda x: jax.jit(constrained(jnp.sin))(x) + 1, "sin"),
    "a result of a jit": (result_constrained, "max"),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_constraint_reaches_into_the_function_before_it(name, eight_devices):
    fn, value = BEFORE[name]
    assert spec(plan(fn, x=X).op(value)) == "P(None, 'model', None)"


CALLS = {
    "in each other": (lambda x: outer(x), ["jit(outer)/jit(inner)", "jit(outer)/jit(inner) (2)"]),
    "in a loop": (
        looped,
        ["LOOP/jit(outer)/jit(inner)", "LOOP/jit(outer)/jit(inner) (2)"],
    ),
    "in a shard_map": (manual, ["shard_map/jit(inner)"]),
    "a shard_map in a function": (
        lambda x: jax.jit(manual)(x),
        ["jit(manual)/shard_map/jit(inner)"],
    ),
    "on one line": (
        lambda x: sum(inner(x + i) for i in range(3)),
        ["jit(inner)", "jit(inner) (2)", "jit(inner) (3)"],
    ),
}
# Versions of jax call the body of a loop differently.
BODY = re.compile("while/body/(closed_call|eval_jaxpr)")


@pytest.mark.parametrize("name", CALLS)
def test_every_call_has_its_own_values_lines_and_scope(name, eight_devices):
    fn, scopes = CALLS[name]
    sines = [op for op in plan(fn, x=X).ops if op.opcode == "sine"]
    found = ["/".join(op.scope[1:]) for op in sines]
    assert [BODY.sub("LOOP", scope) for scope in found] == scopes
    for op in sines:
        assert op.source.startswith("test_inlining.py:")
        assert op.calls[-1] == "inner"
        assert op.op.endswith("/jit(inner)/sin")
        assert len(op.stack) > 1


@pytest.mark.skipif(not hasattr(jax, "Inline"), reason="this jax always lets XLA inline")
def test_what_xla_inlines_late_stays_a_call(eight_devices):
    late = jax.jit(lambda x: outer(x) * 3, inline=jax.Inline.XLA_LATE)  # type: ignore
    made = plan(lambda x: late(late(x)), x=X)
    scopes = ["/".join(op.scope) for op in made.ops if op.opcode == "sine"]
    called = ("jit(<lambda>)/jit(<lambda>)", "jit(<lambda>)/jit(<lambda>) (2)")
    ends = ("jit(outer)/jit(inner)", "jit(outer)/jit(inner) (2)")
    assert scopes == [f"{c}/{e}" for c in called for e in ends]
    assert spec(made.op("output")) == "P(None, 'model', 'data')"
