"""`with sv.watch()` lists every compile of jax, with jax's own reason, and restores all."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardviz as sv
from shardviz.base.backend.jax_compat import MISS_LOGGERS, explained_misses, trace_settings
from tests.program.untouched import State
from tests.watch.cache_events import jax_cache_events

monitoring = pytest.importorskip("jax._src.monitoring")


def state() -> Any:
    """What a log must leave as it was."""
    loggers = [logging.getLogger(name) for name in MISS_LOGGERS]
    return (
        [(logger.level, list(logger.filters), list(logger.handlers)) for logger in loggers],
        monitoring.get_event_duration_listeners(),
        {name: jax.config._read(name) for name in jax.config.values},
    )


def body(x: Any, n: Any = 0) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, x)


def context(x: Any, step: Callable[..., Any]) -> None:
    with jax.default_matmul_precision("float32"):
        step(x)


X = np.ones((4, 4), np.float32)
# Calls after a first one with X, and jax's reason.
CAUSES: dict[str, tuple[Callable[[Callable[..., Any]], Any], str]] = {
    "shape": (lambda step: step(X[:2]), "types"),
    "dtype": (lambda step: step(X.astype(np.int8)), "types"),
    "weak type": (lambda step: (step(np.float32(1)), step(1.0)), "types"),
    "tree": (lambda step: step([X]), "tree"),
    "context": (lambda step: context(X, step), "context"),
    "sharding": (lambda step: step(jax.device_put(X, jax.devices()[1])), "not traced"),
    "donation": (lambda step: jax.jit(body, donate_argnums=0)(X), ""),
    "lambda in a loop": (
        lambda step: [jax.jit(lambda x: x + 1)(X) for _ in range(2)],
        "function created again",
    ),
    "cleared": (lambda step: (jax.clear_caches(), step(X)), "new function"),
}


@pytest.mark.parametrize("case", CAUSES)
def test_each_cause_has_the_reason_of_jax(case: str):
    # A new function, since jax would find the traces of earlier tests.
    def fn(x: Any) -> Any:
        return body(x)

    run, reason = CAUSES[case]
    step = jax.jit(fn)
    step(X)
    if case == "donation":
        jax.jit(body)(X)
    with sv.watch() as compiles, jax_cache_events() as events:
        run(step)
    assert len(compiles) == events.counts()["compile"] > 0
    assert compiles[-1].reason == reason
    assert (compiles[-1].trace_s > 0) == (reason != "not traced")
    assert bool(compiles[-1].message) == (reason not in ("", "not traced"))
    assert compiles[-1].compile_s > 0
    assert compiles[-1].function in str(compiles[-1])


def test_a_trace_without_a_compile_is_no_reason(eight_devices):
    mesh = jax.sharding.Mesh(np.array(eight_devices), ("data",))
    split, replicated = (
        jax.device_put(np.ones(8), jax.NamedSharding(mesh, jax.P(spec))) for spec in ("data", None)
    )
    step = jax.jit(lambda x: x * 3)
    step(split)
    with sv.watch() as compiles:
        step.trace(jax.ShapeDtypeStruct((5,), "float32"))
        jax.make_jaxpr(lambda x: step(x))(np.ones(7))
        step(replicated)
    assert [compile.reason for compile in compiles] == ["not traced"]


def test_a_repeated_call_compiles_nothing():
    step = jax.jit(body)
    step(X)
    with sv.watch() as compiles:
        step(X)
    assert list(compiles) == []


def test_compiles_inside_libraries_and_threads_are_listed():
    def work() -> None:
        jnp.linalg.norm(jnp.arange(13.0) @ jnp.ones((13, 7)))

    with sv.watch() as compiles, jax_cache_events() as events:
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join(60)
        work_here = jax.jit(lambda x: jnp.sort(x) + 3)
        work_here(jnp.arange(5.0))
    assert len(compiles) == events.counts()["compile"]
    names = [event.name for event in events if event.kind == "compile"]
    assert [f"jit({compile.function})" for compile in compiles] == names
    assert {compile.thread for compile in compiles} == {"worker", "MainThread"}


def test_blocks_nest_and_restore_everything(capfd):
    before, key = state(), trace_settings()
    with sv.watch() as outer:
        assert trace_settings() == key  # no cached function compiles again
        jax.jit(lambda x: x + 11)(1)
        with contextlib.suppress(KeyError), sv.watch() as inner:
            jax.jit(lambda x: x + 12)(1)
            raise KeyError
        jax.jit(lambda x: x + 13)(1)
    assert state() == before
    assert [c.reason != "" for c in outer] == [True] * 3
    assert list(inner) == [outer[1]]
    assert "CACHE MISS" not in capfd.readouterr().err
    jax.jit(lambda x: x + 14)(1)
    assert len(outer) == 3


def test_blocks_in_threads_keep_to_their_own_reasons():
    before, ready = state(), threading.Barrier(4)
    logs: list[Any] = []

    def work(number: int) -> None:
        ready.wait(60)
        with sv.watch() as compiles:
            jax.jit(lambda x: x + number)(number)
        logs.append(compiles)

    threads = [threading.Thread(target=work, args=(n,), name=f"t{n}") for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert state() == before
    for log in logs:
        with_reason = {compile.thread for compile in log if compile.message}
        assert len(with_reason) == 1


def test_messages_that_the_user_asked_for_are_shown(caplog):
    with explained_misses(), sv.watch() as compiles:
        jax.jit(lambda x: x + 21)(1)
    assert [compile.reason != "" for compile in compiles] == [True]
    assert any("CACHE MISS" in record.getMessage() for record in caplog.records)


def test_nothing_of_jax_is_replaced():
    inside: list[Any] = []

    def step(x: Any) -> Any:
        inside.append(before and before.changed())
        return x * 2

    before = None
    sv.watch(step)(X)
    with sv.watch():
        jax.jit(step)(X)
    inside.clear()
    before = State()
    watched = sv.watch(step)
    watched(X)
    with sv.watch():
        watched(X[:3])
        jax.jit(lambda x: step(x))(X)
    assert len(inside) == 3
    assert [changed for changed in inside if changed] == []
    assert not before.changed()
