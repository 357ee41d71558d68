"""Exceptions of user programs, in words."""

from __future__ import annotations

import os
import signal
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.plans.backend import estimate
from shardviz.programs.backend.failures import failure, in_words
from shardviz.programs.failure import HostMemory, OwnBug, Raised, SystemRefused

WORDS = {
    "one line": (ValueError("wrong"), "ValueError: wrong"),
    "all paragraphs": (TypeError("a\n  b\n\nc"), "TypeError: a b. c"),
    "one paragraph of XLA's": (RuntimeError("a\n  b.\n\nc"), "RuntimeError: a b."),
    "no text": (KeyError(), "KeyError"),
    "control characters": (ValueError("a\x1b[31mb\x00"), "ValueError: a?[31mb?"),
    "a callback's traceback": (
        RuntimeError('INTERNAL: Traceback (most recent call last):\n  File "x"\nValueError: boom'),
        "RuntimeError: INTERNAL: ValueError: boom",
    ),
}


@pytest.mark.parametrize(("error", "words"), WORDS.values(), ids=WORDS)
def test_errors_are_one_line(error, words):
    assert in_words(error) == words


MESH = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))


def carried(x):
    return jax.lax.scan(lambda c, row: (c + row.sum(), None), jnp.zeros(()), x)[0][None]


ADVISED = {
    "a carry": (carried, P("data"), "to='varying')"),
    "a result": (lambda x: x.sum(0), P(), "check_vma=False"),
    "branches": (
        lambda x: jax.lax.cond(x.sum() > 0, lambda: x, lambda: jnp.zeros((2, 4))), P("data"),
        "pcast(",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "out", "advice"), ADVISED.values(), ids=ADVISED)
def test_all_that_jax_says_of_the_types_in_a_shard_map_is_shown(body, out, advice):
    mapped = jax.shard_map(body, mesh=MESH, in_specs=P("data"), out_specs=out)
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    said = str(raised(jax.jit(mapped).trace, x))
    plan = sv.plan(sv.program(mapped, x, mesh=sv.mesh(data=4), in_specs=P("data")))
    assert plan.error is not None
    assert advice in said
    for word in said.split():
        assert word in plan.error.message


def raised(fn, *args):
    with pytest.raises(Exception) as caught:
        fn(*args)
    return caught.value


def test_the_line_is_the_innermost_one_of_the_user():
    def deep(x):
        return jnp.dot(x, jnp.ones((3, 3)))

    line = deep.__code__.co_firstlineno + 1
    found = failure("trace", raised(jax.jit(deep).trace, jnp.ones((2, 2))))
    assert found.source == f"test_failures.py:{line}"
    assert (found.cause, found.said.startswith("TypeError: dot_general")) == (Raised(), True)


def test_what_the_machine_lacks_is_no_refusal_of_the_compiler():
    full = failure("compile", OSError(28, "No space left on device"))
    assert full.cause == SystemRefused()
    assert full.said == "OSError: [Errno 28] No space left on device"
    assert failure("run", MemoryError()).cause == HostMemory()
    assert failure("trace", OSError("mine")).cause == Raised()


def test_an_error_of_ours_is_not_called_the_fault_of_the_compiler(monkeypatch):
    # The estimate reads this table, so it raises a KeyError.
    monkeypatch.setattr(estimate, "SHARDY", dict.fromkeys(estimate.SHARDY, "no kind"))
    x = sv.array("x", (8, 16), spec="data")
    plan = sv.plan(lambda x: x.sum(), x, mesh="data=4")
    assert plan.error.cause == OwnBug()
    assert plan.error.message.startswith("shardviz failed, not your program: KeyError: 'no kind'.")


CALLS = {
    "plan": sv.plan,
    "compile": lambda program: sv.compile(program, target="cpu"),
    "effects": sv.effects,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_process_that_is_asked_to_end_ends(call):
    def step(x):
        os.kill(os.getpid(), signal.SIGUSR1)
        return x * 2

    asked = sv.program(step, sv.array("x", (8,), spec="data"), mesh="data=2")
    before = signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit("asked to end"))
    try:
        with pytest.raises(SystemExit):
            CALLS[call](asked)
    finally:
        signal.signal(signal.SIGUSR1, before)
