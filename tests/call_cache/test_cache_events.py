"""What jax's own caches did, and the rows of shardviz's cache of executables."""

from __future__ import annotations

import threading
import types

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.core.backend.run.worker.run import run_program
from shardviz.core.backend.tracing import listening
from shardviz.core.backend.tracing.listening import jax_cache_events
from shardviz.core.errors import ProgramError
from shardviz.core.program.cache import ExecutableCache, cache_rows


def test_a_hit_in_jax_has_no_events():
    fn, x = jax.jit(lambda x: x * 3), jnp.ones(4)
    with jax_cache_events() as first:
        fn(x)
    with jax_cache_events() as second:
        fn(x)
    assert (first.traces, first.lowerings, first.compiles) == (1, 1, 1)
    assert second.events == ()


def test_another_device_is_lowered_anew_and_not_traced():
    def tripled(x):
        return x * 3

    fn = jax.jit(tripled)
    xs = [jax.device_put(jnp.ones(4), d) for d in jax.devices("cpu")[:2]]
    fn(xs[0])
    with jax_cache_events() as events:
        fn(xs[1])
    assert events.count("trace", "tripled") == 0
    assert events.compiles == 1


def test_events_say_what_and_in_which_thread():
    def named(x):
        return x - 1

    with jax_cache_events() as events:
        thread = threading.Thread(target=lambda: jax.jit(named)(1), name="worker")
        thread.start()
        thread.join(60)
    found = [(e.kind, e.thread) for e in events.events]
    assert found == [("trace", "worker"), ("lower", "worker"), ("compile", "worker")]
    assert events.count("trace", "named") == 1
    assert all(e.seconds >= 0 for e in events.events)


def test_counting_ends_with_the_block():
    with pytest.raises(KeyError), jax_cache_events() as events:
        raise KeyError
    jax.jit(lambda x: x + 5)(1)
    assert events.events == ()


def test_a_jax_that_cannot_be_listened_to_is_named(monkeypatch):
    monkeypatch.setattr(
        listening, "jax", types.SimpleNamespace(__version__="9.9", monitoring=object())
    )
    with pytest.raises(ProgramError, match=r"9\.9"), jax_cache_events():
        pass


def test_the_rows_of_the_executable_cache():
    cache = ExecutableCache()
    program = sv.program(jnp.sin, sv.array("x", (8,)), mesh="data=1", name="waves")
    for _ in range(2):
        assert run_program(program, cache=cache).ok
    (row,) = cache_rows(cache)
    assert (row["name"], row["hits"], row["waited"]) == ("waves", 1, 0)
    assert row["key"] == cache.entries[0]
    assert 0 < row["compile_s"] < 60
