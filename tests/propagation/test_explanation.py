"""Explanations of values: where each axis came from, and why other dimensions are not split."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardviz.plans.explanation import (
    AxisInUseLine,
    NotSplitLine,
    RequestedLine,
    ReturnedLine,
    SizeOneLine,
    SplitLine,
    StepLine,
    StoppedLine,
    UnreachedLine,
)
from tests.propagation.planning import V, W, X, plan


def mlp(x, w, v):
    return jax.nn.relu(x @ w) @ v


def moved(x):
    return jax.lax.with_sharding_constraint(jnp.sin(x), P("model", "data"))


def replicated(x):
    return jax.lax.with_sharding_constraint(jnp.sin(x), P(None, None))


def looped(x):
    return jax.lax.fori_loop(0, 4, lambda i, c: c * 2, x)


def manual(x):
    return jax.shard_map(jnp.sin, in_specs=P("data"), out_specs=P("data"))(x)


def over_data(x):
    return jax.shard_map(jnp.sin, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})(x)


def open_rows(x):
    return jax.lax.with_sharding_constraint(jnp.sin(x), P(P.UNCONSTRAINED, None))


MLP = {"x": X, "w": W, "v": V}
# Name: function, arguments, value, what is said of its dimensions, steps as (from, to).
# A dimension that is split has its axis and the kind and name of its origin; another one the
# code of why it is not.
EXPLANATIONS = {
    "an argument": (mlp, MLP, "x", [("data", "argument", "x"), RequestedLine], []),
    "two axes from two arguments": (
        mlp, MLP, "dot_general", [("data", "argument", "x"), ("model", "argument", "w")],
        [("x", "dot_general"), ("w", "dot_general")],
    ),
    "a sum over a split dimension": (
        mlp, MLP, "dot_general_1", [("data", "argument", "x"), UnreachedLine],
        [("x", "dot_general"), ("dot_general", "max"), ("max", "dot_general_1")],
    ),
    "a dimension that moves": (
        lambda x: x.T, {"x": X}, "transpose", [UnreachedLine, ("data", "argument", "x")],
        [("x", "transpose")],
    ),
    "an axis that a constraint asks for": (
        moved, {"x": X}, "sin", [("model", "constraint", "sin"), ("data", "constraint", "sin")],
        [("sharding_constraint", "sin")] * 2,
    ),
    "a constraint that asks for a replicated value": (
        replicated, {"x": X}, "sharding_constraint", [RequestedLine, RequestedLine], [],
    ),
    "an axis can be used once": (
        lambda x: x @ x.T, {"x": ((64, 64), "data, None")}, "dot_general",
        [("data", "argument", "x"), AxisInUseLine], [("x", "dot_general")],
    ),
    "two axes that disagree": (
        lambda x, y: x + y, {"x": ((8,), "data"), "y": ((8,), "model")}, "add", [StoppedLine], [],
    ),
    "one part of a split dimension": (
        lambda x: x.reshape(16, 4), {"x": ((64,), "data")}, "reshape",
        [("data", "argument", "x"), AxisInUseLine], [("x", "reshape")],
    ),
    "a result that does not divide evenly": (
        lambda x: jnp.pad(x, (1, 1)), {"x": ((64,), "data")}, "output", [ReturnedLine], [],
    ),
    "a result over parts of an axis": (
        lambda x: x.reshape(2, 32), {"x": ((64,), "data")}, "output",
        [ReturnedLine, ReturnedLine], [],
    ),
    "a new dimension": (
        lambda x: jax.lax.broadcast_in_dim(x, (8, 16), (0,)), {"x": ((8,), "data")},
        "broadcast_in_dim", [("data", "argument", "x"), UnreachedLine], [("x", "broadcast_in_dim")],
    ),
    "a loop": (
        looped, {"x": X}, "output", [("data", "argument", "x"), UnreachedLine],
        [("x", "while[1]"), ("while[1]", "output")],
    ),
    "a shard_map": (
        manual, {"x": X}, "output",
        [("data", "manual", "out_specs[0] of shard_map"), RequestedLine],
        [("shard_map", "output")],
    ),
    "a shard_map over one of two axes": (
        over_data, {"x": ((64, 32), "data, model")}, "output",
        [("data", "manual", "out_specs[0] of shard_map"), ("model", "argument", "x")],
        None,
    ),
    "a shard_map that leaves a dimension open": (
        over_data, {"x": X}, "output",
        [("data", "manual", "out_specs[0] of shard_map"), UnreachedLine], None,
    ),
    "a constraint that leaves a dimension open": (
        open_rows, {"x": ((64, 32), "")}, "output", [UnreachedLine, RequestedLine], [],
    ),
    "inside of a shard_map": (manual, {"x": X}, "sin", [UnreachedLine, UnreachedLine], []),
    "size one": (
        lambda x: jnp.sum(x, axis=1, keepdims=True), {"x": X}, "output",
        [("data", "argument", "x"), SizeOneLine], None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_explanations(eight_devices, name):
    fn, arguments, value, dims, steps = EXPLANATIONS[name]
    made = plan(fn, **arguments).why(value)
    said = []
    for fact in made.facts:
        if isinstance(fact, SplitLine):
            said.append((fact.axis, fact.origin.kind, fact.origin.name))
        elif isinstance(fact, NotSplitLine):
            said.append(type(fact))
    assert said == dims
    if steps is not None:
        lines = [fact for fact in made.facts if isinstance(fact, StepLine)]
        assert [(line.origin, line.target) for line in lines] == steps
    assert all(made.lines)


REASONS = {
    "conflict": (lambda x, y: x + y, {"x": ((8,), "data"), "y": ((8,), "model")}, "add"),
    "blocked": (lambda x: jnp.sort(x), {"x": ((64,), "data")}, "sort"),
    "uneven": (lambda x: jnp.pad(x, (1, 1)), {"x": ((64,), "data")}, "output"),
    "part": (lambda x: x.reshape(2, 32), {"x": ((64,), "data")}, "output"),
}


@pytest.mark.parametrize("code", REASONS)
def test_why_an_axis_stops(eight_devices, code):
    fn, arguments, value = REASONS[code]
    facts = plan(fn, **arguments).why(value).facts
    codes = {f.code for f in facts if isinstance(f, (StoppedLine, ReturnedLine))}
    assert codes == {code}


def test_a_step_names_the_rule_that_it_followed(eight_devices):
    (line,) = (f for f in plan(lambda x: x.T, x=X).why("transpose").facts if type(f) is StepLine)
    assert (line.code, line.formula) == ("op", "[j, i] -> [i, j]")
    line = plan(moved, x=X).why("sin").facts[2]
    assert (line.code, line.op) == ("elementwise", "sharding_constraint")
    assert line.source.startswith("test_explanation.py:")


def test_the_explanation_of_what_causes_a_collective(eight_devices):
    made = plan(mlp, x=X, w=W, v=V)
    assert made.why(made.collectives[0]).op.name == "dot_general_1"
