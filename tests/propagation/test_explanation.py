"""Explanations of values: where each axis came from, and why other dimensions are not split."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from shardviz.core.errors import ProgramError
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


# name: function, arguments, value, lines of its explanation; {} is the file and a line of it
EXPLANATIONS = {
    "an argument": (
        mlp,
        {"x": X, "w": W, "v": V},
        "x",
        [
            "x is an argument, float32[64, 32]: P('data', None).",
            "Dimension 0 (64) is split over data, as requested.",
            "Dimension 1 (32) is not split, as requested.",
        ],
    ),
    "two axes from two arguments": (
        mlp,
        {"x": X, "w": W, "v": V},
        "dot_general",
        [
            "dot_general is made by dot_general at {}, float32[64, 128]: P('data', 'model').",
            "The rule of dot_general: [i, k], [k, j] -> [i, j]: i (64) from x, j (128) from w;"
            " sums over k (32).",
            "Dimension 0 (64) is split over data, which came from argument x.",
            "Step 0: data went from x to dot_general at {}: [i, k], [k, j] -> [i, j], where i is"
            " dimension 0.",
            "Dimension 1 (128) is split over model, which came from argument w.",
            "Step 0: model went from w to dot_general at {}: [i, k], [k, j] -> [i, j], where j is"
            " dimension 1.",
        ],
    ),
    "a sum over a split dimension": (
        mlp,
        {"x": X, "w": W, "v": V},
        "dot_general_1",
        [
            "Dimension 1 (32) is not split: no axis reached it; v, where it comes from, is not",
            "It costs, as an estimate, one all-reduce of 2 KiB over model: dot_general_1 sums over",
        ],
    ),
    "a dimension that moves": (
        lambda x: x.T,
        {"x": X},
        "transpose",
        [
            "Step 0: data went from x to transpose at {}: [j, i] -> [i, j], where j is dimension 0"
            " there and 1 here.",
        ],
    ),
    "an axis that a constraint asks for": (
        moved,
        {"x": X},
        "sin",
        [
            "Dimension 0 (64) is split over model, which the constraint on sin ({}) asks for.",
            "Step 0: model went from sharding_constraint to sin across sharding_constraint at {},"
            " which works element by element.",
        ],
    ),
    "a constraint that asks for a replicated value": (
        replicated,
        {"x": X},
        "sharding_constraint",
        ["Dimension 0 (64) is not split: the constraint at {} asks for that."],
    ),
    "an axis can be used once": (
        lambda x: x @ x.T,
        {"x": ((64, 64), "data, None")},
        "dot_general",
        [
            "Dimension 1 (64) is not split: data splits it in transpose, but data splits dimension"
            " 0 here, and an array uses a mesh axis once.",
        ],
    ),
    "two axes that disagree": (
        lambda x, y: x + y,
        {"x": ((8,), "data"), "y": ((8,), "model")},
        "add",
        [
            "Dimension 0 (8) is not split: data splits it in x and model splits it in y: they"
            " disagree,",
        ],
    ),
    "one part of a split dimension": (
        lambda x: x.reshape(16, 4),
        {"x": ((64,), "data")},
        "reshape",
        ["Dimension 1 (4) is not split: in x it is one part of ij, and data splits another part."],
    ),
    "a dimension that nothing may cross": (
        lambda x: jax.lax.dynamic_index_in_dim(x, x[0, 0].astype("int32"), 0),
        {"x": X},
        "dynamic_slice",
        ["The rule of dynamic_slice: [i, j], [], [] -> [i, j]:"],
    ),
    "a new dimension": (
        lambda x: jax.lax.broadcast_in_dim(x, (8, 16), (0,)),
        {"x": ((8,), "data")},
        "broadcast_in_dim",
        ["Dimension 1 (16) is not split: it is new in broadcast_in_dim, and nothing that reads it"],
    ),
    "a loop": (
        looped,
        {"x": X},
        "output",
        [
            "Dimension 0 (64) is split over data, which came from argument x.",
            "what a loop carries is split alike in every iteration.",
            ": a result is split as what is returned.",
        ],
    ),
    "a shard_map": (
        manual,
        {"x": X},
        "output",
        ["Dimension 0 (64) is split over data, which out_specs[0] of shard_map ({}) asks for."],
    ),
    "inside of a shard_map": (
        manual,
        {"x": X},
        "sin",
        [
            "Dimension 0 (16) is not split: data splits it in x, but the body of a shard_map sees"
            " one shard.",
            "Inside of a shard_map over data, model: the shape is that of one device's block.",
        ],
    ),
    "a result that is not split": (
        lambda x: jnp.sin(x),
        {"x": X},
        "output",
        ["Dimension 1 (32) is not split, as in sin."],
    ),
    "size one": (
        lambda x: jnp.sum(x, axis=1, keepdims=True),
        {"x": X},
        "output",
        ["Dimension 1 (1) is not split: it has size 1."],
    ),
}


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_explanations(eight_devices, name):
    fn, arguments, value, lines = EXPLANATIONS[name]
    text = str(plan(fn, **arguments).why(value))
    for line in lines:
        parts = line.split("{}")
        assert all(part in text for part in parts), text
        assert "{}" not in line or "test_explanation.py:" in text


def test_steps_come_in_the_order_in_which_they_happened(eight_devices):
    made = plan(mlp, x=X, w=W, v=V)
    explanation = made.why("dot_general_1")
    assert [s.op for s in explanation.steps] == ["dot_general", "max", "dot_general_1"]
    assert [s.number for s in explanation.steps] == sorted(s.number for s in explanation.steps)
    assert repr(explanation) == f"Explanation(dot_general_1: {len(explanation.lines)} lines)"


def test_the_explanation_of_what_causes_a_collective(eight_devices):
    made = plan(mlp, x=X, w=W, v=V)
    assert made.why(made.collectives[0]).op.name == "dot_general_1"


def test_what_a_plan_has_not_is_named(eight_devices):
    made = plan(mlp, x=X, w=W, v=V)
    with pytest.raises(ProgramError, match=r"none is 'dot_generl'\. Did you mean 'dot_general'"):
        made.why("dot_generl")
