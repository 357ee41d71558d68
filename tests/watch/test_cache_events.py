"""Hits and misses of jax's own caches, and the rows of shardviz's executable cache."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.runs.backend.worker.run import run_program
from shardviz.runs.cache import ExecutableCache
from tests.watch.cache_events import jax_cache_events


def test_a_hit_in_jax_has_no_events():
    fn, x = jax.jit(lambda x: x * 3), jnp.ones(4)
    with jax_cache_events() as first:
        fn(x)
    with jax_cache_events() as second:
        fn(x)
    assert first.counts() == {"trace": 1, "lower": 1, "compile": 1}
    assert second == []


def test_events_say_what_and_in_which_thread():
    def named(x):
        return x - 1

    with jax_cache_events() as events:
        thread = threading.Thread(target=lambda: jax.jit(named)(1))
        thread.start()
        thread.join(60)
    assert [event.kind for event in events] == ["trace", "lower", "compile"]
    assert events[0].name == "named"
    assert events.counts(thread.ident) == events.counts()
    assert set(events.counts(threading.get_ident()).values()) == {0}


def test_counting_ends_with_the_block():
    with pytest.raises(KeyError), jax_cache_events() as events:
        raise KeyError
    jax.jit(lambda x: x + 5)(1)
    assert events == []


def test_the_rows_of_the_executable_cache():
    cache = ExecutableCache()
    program = sv.program(jnp.sin, sv.array("x", (8,)), mesh="data=1", name="waves")
    for _ in range(2):
        assert run_program(program, cache=cache).ok
    (row,) = cache.rows
    assert (row.label, row.hits, len(row.waited)) == ("waves", 1, 0)
    assert str(row.key) == cache.entries[0]
    assert 0 < row.value.compile_s < 60
