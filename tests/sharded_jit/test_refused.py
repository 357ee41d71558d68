"""What is refused, when a function is made and when it is called."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
import shardviz.legacy as legacy
from shardviz.base.errors import TargetError
from shardviz.legacy.partitions import Parts
from tests.sharded_jit.helpers import values

constrain = legacy.with_sharding_constraint

X = values(8, 8)


def same(x):
    return x


#: Case -> how it is made.
WHEN_MADE = {
    "no function": lambda: legacy.sharded_jit(3, None, None),
    "in against out": lambda: legacy.sharded_jit(same, Parts(2, 1), Parts(4, 1)),
    "ones for None": lambda: legacy.sharded_jit(same, (Parts(2, 1), Parts(1, 1)), None),
    "num_partitions": lambda: legacy.sharded_jit(same, Parts(2, 1), None, 4),
    "no devices": lambda: legacy.sharded_jit(same, None, None, 0),
    "plain numbers": lambda: legacy.sharded_jit(same, (2, 1), None),
    "local count": lambda: legacy.sharded_jit(same, Parts(2, 1), None, local_num_partitions=1),
    "local parts of another count": lambda: legacy.sharded_jit(
        same, Parts(2, 1), None, local_in_parts=Parts(4, 1)
    ),
    "local in against local out": lambda: legacy.sharded_jit(
        same, Parts(2, 1), None, local_in_parts=Parts(2, 1), local_out_parts=Parts(4, 1)
    ),
    "static fraction": lambda: legacy.sharded_jit(same, None, None, static_argnums=(1.5,)),
}


def called(f, in_parts, out_parts, *args, **options):
    """A call of `f` under sharded_jit, to be made later."""
    return lambda: legacy.sharded_jit(f, in_parts, out_parts, **options)(*args)


#: Case -> the call.
WHEN_CALLED = {
    "static missing": called(lambda x, n: x, None, None, X, static_argnums=(1,)),
    "no array": called(lambda x, mode: x, None, None, X, "fast"),
    "rows do not divide": called(same, Parts(8, 1), None, values(12, 8)),
    "a leaf does not divide": called(same, Parts(4), None, {"a": X[0], "b": X[0, :6]}),
    "results do not divide": called(lambda x: x[:6], None, Parts(4, 1), X),
    "rank of an argument": called(same, Parts(2), None, X),
    "rank of a result": called(jnp.sum, None, Parts(2), X),
    "too many parts": called(same, (Parts(2, 1), None), None, X),
    "a list for the arguments": called(same, [Parts(2, 1)], None, X),
    "results of another tree": called(lambda x: (x, x), None, (None, None, None), X),
    "local parts differ": called(same, Parts(2, 1), None, X, local_in_parts=Parts(1, 2)),
    "local results differ": called(same, None, Parts(2, 1), X, local_out_parts=Parts(1, 2)),
    "local count differs": called(
        lambda x: constrain(x, Parts(2, 1)), None, None, X, local_num_partitions=4
    ),
    "constraint outside": lambda: constrain(jnp.ones(4), Parts(2)),
    "constraint with numbers": called(lambda x: constrain(x, (2, 1)), None, None, X),
    "constraint on a tree": called(lambda x: constrain([x], Parts(2, 1)), None, None, X),
}


@pytest.mark.parametrize("name", WHEN_MADE)
def test_refused_when_it_is_made(name):
    assert_refused(WHEN_MADE[name])


@pytest.mark.parametrize("name", WHEN_CALLED)
def test_refused_when_it_is_called(name):
    assert_refused(WHEN_CALLED[name])


def assert_refused(make):
    with pytest.raises(sv.ShardvizError) as refused:
        make()
    assert str(refused.value).isprintable()


def test_too_few_devices():
    there = jax.device_count()
    split = legacy.sharded_jit(same, Parts(2 * there, 1), None)
    with pytest.raises(TargetError):
        split(np.zeros((2 * there, 1), np.float32))


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
    with pytest.raises(TargetError):
        legacy.sharded_jit(same, Parts(8, 1), None)(X)
