"""Many threads with one signature: one compile, one error, and every thread returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
from tests.watch.cache_events import jax_cache_events

THREADS, ROUNDS = 64, 10


def at_once(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """The result or error of `work` in each of many threads that start together."""
    ready = threading.Barrier(count)
    results: list[Any] = [None] * count

    def one(number: int) -> None:
        ready.wait(60)
        try:
            results[number] = work(number)
        except Exception as error:  # noqa: BLE001  the test looks at it
            results[number] = error

    threads = [threading.Thread(target=one, args=(n,), name=f"t{n}") for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads)
    return results


def test_each_round_compiles_once():
    x = jax.device_put(np.arange(4.0, dtype=np.float32), jax.devices("cpu")[0])
    for turn in range(ROUNDS):
        traced: list[int] = []

        def fn(x: Any, turn: int = turn, traced: list[int] = traced) -> Any:
            traced.append(turn)
            return x * 2 + turn

        watched = sv.watch(fn)
        with jax_cache_events() as events:
            results = at_once(lambda _, watched=watched: watched(x))
        wanted = np.tile(np.arange(4) * 2 + turn, (THREADS, 1))
        np.testing.assert_array_equal(np.stack([np.asarray(r) for r in results]), wanted)
        assert events.counts() == {"trace": 1, "lower": 1, "compile": 1}
        assert len(traced) == 1
        (entry,) = watched.entries
        assert (entry.compiles, entry.calls) == (1, THREADS)


class Unlucky(RuntimeError):
    """An error whose constructor needs more than its message."""

    def __init__(self, code: int, *, words: str) -> None:
        super().__init__(words)
        self.code = code


def fail_plainly(x: Any) -> Any:
    raise Unlucky(7, words="no such luck")


def fail_in_jax(x: Any) -> Any:
    return 1 if x > 0 else 2


def fail_to_fit(x: Any) -> Any:
    return jnp.dot(x, jnp.ones((3, 3)))


@pytest.mark.parametrize("fail", [fail_plainly, fail_in_jax, fail_to_fit])
def test_a_failed_compile_is_raised_to_all(fail: Callable[..., Any]):
    tried: list[int] = []

    def fn(x: Any) -> Any:
        tried.append(1)
        return fail(x)

    watched, x = sv.watch(fn), np.ones(4)
    errors = at_once(lambda _: watched(x))
    assert len(tried) == 1
    assert {type(e) for e in errors} == {type(errors[0])}
    assert len({str(e) for e in errors}) == 1
    assert len({id(e) for e in errors}) == THREADS
    with pytest.raises(type(errors[0])) as by_jax:
        jax.jit(fn)(x)
    assert str(by_jax.value) == str(errors[0])
    assert watched.entries == ()


def test_a_call_after_a_failure_traces_again():
    tried: list[int] = []

    def fn(x: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise Unlucky(7, words="no such luck")
        return x

    watched, x = sv.watch(fn), jnp.ones(3)
    with pytest.raises(Unlucky, match="no such luck"):
        watched(x)
    assert watched(x).shape == (3,)
    assert (len(tried), watched.cache_size()) == (2, 1)


def test_waiting_threads_get_the_error_after_other_signatures():
    tried: list[int] = []

    def fn(x: Any) -> Any:
        if x.shape == (3,):
            return x
        tried.append(1)
        time.sleep(0.05)
        raise Unlucky(7, words="no such luck")

    watched, x = sv.watch(fn), jnp.ones(4)
    watched(jnp.ones(3))
    errors = at_once(lambda _: watched(x))
    assert len(tried) == 1
    assert {(type(e), e.code) for e in errors} == {(Unlucky, 7)}


def test_threads_with_alternating_signatures_are_counted():
    watched = sv.watch(lambda x: x + 1)
    arrays = [jnp.ones(n) for n in (1, 2, 3)]
    at_once(lambda number: [watched(arrays[(number + n) % 3]) for n in range(30)], 8)
    assert sorted(entry.calls for entry in watched.entries) == [80, 80, 80]
    assert [entry.compiles for entry in watched.entries] == [1, 1, 1]


@pytest.mark.parametrize("earlier", [[], [3]])
def test_a_call_is_not_counted_for_another_signature_while_its_own_has_no_entry(
    earlier: list[int], monkeypatch: pytest.MonkeyPatch
):
    watched = sv.watch(lambda x, y: x)
    arrays = {n: jnp.ones(n) for n in (1, 2, 3)}
    for n in earlier:
        watched(arrays[n], arrays[1])
    note, is_compiled, may_note = watched._note, threading.Event(), threading.Event()

    def note_late(call: Any) -> None:
        if threading.current_thread() is late:
            is_compiled.set()
            may_note.wait(60)
        note(call)

    monkeypatch.setattr(watched, "_note", note_late)
    late = threading.Thread(target=lambda: watched(arrays[1], arrays[2]))
    late.start()
    assert is_compiled.wait(60)
    watched(arrays[1], arrays[1])  # gets its entry before the other thread
    watched(arrays[1], arrays[2])
    may_note.set()
    late.join()
    calls = [(entry.calls, entry.compiles) for entry in watched.entries]
    assert calls == [(1, 1)] * len(earlier) + [(1, 1), (2, 1)]


def test_an_interrupt_is_not_remembered():
    tried: list[int] = []

    def fn(x: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            raise KeyboardInterrupt
        return x

    watched = sv.watch(fn)
    with pytest.raises(KeyboardInterrupt):
        watched(1)
    assert watched(1) == 1
    assert watched.entries[0].difference == ()
