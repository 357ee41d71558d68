"""What is refused, and in which words: every sentence says what was wrong and what to do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
import shardviz.legacy as legacy
from shardviz.legacy.partitions import Parts
from tests.sharded_jit.helpers import values
from tests.wrong import Hostile

constrain = legacy.with_sharding_constraint

X = values(8, 8)


def same(x):
    return x


#: name -> how it is made, and what the sentence says
WHEN_MADE = {
    "no function": (lambda: legacy.sharded_jit(3, None, None), "takes a function first; got 3"),
    "in against out": (
        lambda: legacy.sharded_jit(same, Parts(2, 1), Parts(4, 1)),
        "Parts(2, 1) in in_parts makes 2 and Parts(4, 1) in out_parts makes 4",
    ),
    "two inputs": (
        lambda: legacy.sharded_jit(same, (Parts(2, 1), Parts(2, 2)), None),
        "Parts(2, 1) in in_parts makes 2 and Parts(2, 2) in in_parts makes 4",
    ),
    "replicated, written as ones": (
        lambda: legacy.sharded_jit(same, (Parts(2, 1), Parts(1, 1)), None),
        "write None for an array that is replicated",
    ),
    "num_partitions": (
        lambda: legacy.sharded_jit(same, Parts(2, 1), None, 4),
        "num_partitions=4 makes 4 and Parts(2, 1) in in_parts makes 2",
    ),
    "no devices": (
        lambda: legacy.sharded_jit(same, None, None, 0),
        "num_partitions is a number of",
    ),
    "half a device": (lambda: legacy.sharded_jit(same, None, None, 2.5), "whole number; got 2.5"),
    "plain numbers": (
        lambda: legacy.sharded_jit(same, (2, 1), None),
        "in_parts holds 2, which is no Parts. Write legacy.Parts(2, 1)",
    ),
    "text": (lambda: legacy.sharded_jit(same, None, "2, 1"), "out_parts holds '2, 1'"),
    "jax's spec": (
        lambda: legacy.sharded_jit(same, jax.sharding.PartitionSpec("x"), None),
        "in_parts holds",
    ),
    "hostile": (lambda: legacy.sharded_jit(same, Hostile(), None), "which is no Parts"),
    "fraction in Parts": (lambda: Parts(2.5, 1), "whole number; got 2.5"),
    "zero in Parts": (lambda: Parts(0, 1), "cannot be split into 0 parts"),
    "text in Parts": (lambda: Parts("2"), "whole number; got '2'"),
    "local count": (
        lambda: legacy.sharded_jit(same, Parts(2, 1), None, local_num_partitions=1),
        "1 partition for this process, and there are 2 in all",
    ),
    "local parts of another count": (
        lambda: legacy.sharded_jit(same, Parts(2, 1), None, local_in_parts=Parts(4, 1)),
        "4 partitions for this process, and there are 2 in all",
    ),
    "local in against local out": (
        lambda: legacy.sharded_jit(
            same, Parts(2, 1), None, local_in_parts=Parts(2, 1), local_out_parts=Parts(4, 1)
        ),
        "Parts(2, 1) in local_in_parts makes 2 and Parts(4, 1) in local_out_parts makes 4",
    ),
    "local_num_partitions of text": (
        lambda: legacy.sharded_jit(same, Parts(2, 1), None, local_num_partitions="2"),
        "local_num_partitions must be a whole number; got '2'",
    ),
    "static fraction": (
        lambda: legacy.sharded_jit(same, None, None, static_argnums=(1.5,)),
        "A number in static_argnums must be a whole number; got 1.5",
    ),
}

#: name -> the call, and what the sentence says
WHEN_CALLED = {
    "keywords": (
        lambda: legacy.sharded_jit(lambda x, scale: x, None, None)(X, scale=2),
        "passes no keyword arguments to its function; got scale=2. Pass them by position",
    ),
    "static argument missing": (
        lambda: legacy.sharded_jit(lambda x, n: x, None, None, static_argnums=(1,))(X),
        "static_argnums=(1,) makes argument 1 static, and the function was called with 1"
        " positional argument. Pass every static argument, by position.",
    ),
    "static argument unhashable": (
        lambda: legacy.sharded_jit(lambda x, n: x, None, None, static_argnums=1)(X, [2]),
        "Argument 1 is static, so it must be hashable, and [2] is not",
    ),
    "no array": (
        lambda: legacy.sharded_jit(lambda x, mode: x, None, None)(X, "fast"),
        "mode is 'fast', which is no array or number",
    ),
    "rows do not divide": (
        lambda: legacy.sharded_jit(same, Parts(8, 1), None)(values(12, 8)),
        "Dimension 0 of x: 12 does not divide into 8 parts: 4 left over. Sizes that do: 8 and 16",
    ),
    "a leaf does not divide": (
        lambda: legacy.sharded_jit(lambda t: t, Parts(4), None)({"a": X[0], "b": X[0, :6]}),
        "6 does not divide into 4 parts",
    ),
    "results do not divide": (
        lambda: legacy.sharded_jit(lambda x: x[:6], None, Parts(4, 1))(X),
        "Dimension 0 of output: 6 does not divide into 4 parts",
    ),
    "inside does not divide": (
        lambda: legacy.sharded_jit(lambda x: constrain(x, Parts(3, 1)), None, None)(
            X
        ),
        "8 does not divide into 3 parts",
    ),
    "rank of an argument": (
        lambda: legacy.sharded_jit(same, Parts(2), None)(X),
        "x has 2 dimensions and Parts(2) is for 1",
    ),
    "rank of a result": (
        lambda: legacy.sharded_jit(jnp.sum, None, Parts(2))(X),
        "output has 0 dimensions and Parts(2) is for 1",
    ),
    "rank inside": (
        lambda: legacy.sharded_jit(lambda x: constrain(x, Parts(2)), None, None)(X),
        "has 2 dimensions and Parts(2) is for 1",
    ),
    "too many parts for the arguments": (
        lambda: legacy.sharded_jit(same, (Parts(2, 1), None), None)(X),
        "in_parts is (Parts(2, 1), None), and that is no prefix of the tree it is for",
    ),
    "a list for a tuple of arguments": (
        lambda: legacy.sharded_jit(same, [Parts(2, 1)], None)(X),
        "arguments form a tuple",
    ),
    "a key that is not there": (
        lambda: legacy.sharded_jit(lambda t: t, ({"v": None},), None)({"w": X}),
        "in_parts is ({'v': None},), and that is no prefix",
    ),
    "results of another tree": (
        lambda: legacy.sharded_jit(lambda x: (x, x), None, (None, None, None))(X),
        "out_parts is (None, None, None), and that is no prefix",
    ),
    "local parts that differ": (
        lambda: legacy.sharded_jit(same, Parts(2, 1), None, local_in_parts=Parts(1, 2))(X),
        "In a single process they are the same: got Parts(1, 2) and Parts(2, 1), for 1 array",
    ),
    "local results that differ": (
        lambda: legacy.sharded_jit(same, None, Parts(2, 1), local_out_parts=Parts(1, 2))(X),
        "Leave local_out_parts out",
    ),
    "local count of a function that decides itself": (
        lambda: legacy.sharded_jit(
            lambda x: constrain(x, Parts(2, 1)), None, None,
            local_num_partitions=4,
        )(X),
        "4 partitions for this process, and there are 2 in all",
    ),
    "constraint outside": (
        lambda: constrain(jnp.ones(4), Parts(2)),
        "only means something inside a function under sharded_jit",
    ),
    "constraint with numbers": (
        lambda: legacy.sharded_jit(lambda x: constrain(x, (2, 1)), None, None)(X),
        "with_sharding_constraint takes legacy.Parts, one number for each dimension, or None; got"
        " (2, 1)",
    ),
    "constraint on a tree": (
        lambda: legacy.sharded_jit(
            lambda x: constrain([x], Parts(2, 1)), None, None
        )(X),
        "takes one array",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHEN_MADE)
def test_refused_when_it_is_made(name):
    make, words = WHEN_MADE[name]
    assert_refused(make, words)


@pytest.mark.parametrize("name", WHEN_CALLED)
def test_refused_when_it_is_called(name):
    call, words = WHEN_CALLED[name]
    assert_refused(call, words)


def assert_refused(make, words):
    with pytest.raises(sv.ShardvizError) as refused:
        make()
    message = str(refused.value)
    assert words in message
    assert message.isprintable()
    assert message.endswith(".")


def test_too_few_devices():
    there = jax.device_count()
    split = legacy.sharded_jit(same, Parts(2 * there, 1), None)
    with pytest.raises(sv.ShardvizError) as refused:
        split(np.zeros((2 * there, 1), np.float32))
    message = str(refused.value)
    assert message.startswith(f"This sharded_jit makes {2 * there} partitions, one per device.")
    assert f"jax has {there} CPU devices here" in message


def test_too_few_devices_still_prints_its_code():
    split = legacy.sharded_jit(same, Parts(1024, 1), None)
    assert "(1024,)" in split.to_modern(sv.array("x", (1024, 2)))


def test_what_the_function_raises_comes_through():
    def wrong(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        legacy.sharded_jit(wrong, None, None)(X)


def test_after_a_refusal_the_next_call_works():
    split = legacy.sharded_jit(same, Parts(8, 1), Parts(8, 1))
    with pytest.raises(sv.ShardvizError):
        split(X[:6])
    np.testing.assert_array_equal(split(X), X)
    with pytest.raises(sv.ShardvizError):  # nothing of the trace is left behind
        constrain(X, Parts(8, 1))


def test_several_processes(monkeypatch):
    """A process may use its own devices, and not those of others."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:4])
    out = legacy.sharded_jit(same, Parts(4, 1), Parts(4, 1))(X)
    assert [s.device for s in out.addressable_shards] == jax.devices()[:4]
    with pytest.raises(sv.ShardvizError) as refused:
        legacy.sharded_jit(same, Parts(8, 1), None)(X)
    message = str(refused.value)
    assert "8 partitions, and this process has 4 devices of" in message
    assert "local_in_parts" in message
    assert "jax.make_array_from_process_local_data" in message
