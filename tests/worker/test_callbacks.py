"""Programs that call Python run in the worker, and their Python functions are called here."""

from __future__ import annotations

import inspect
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import shardviz as sv
from shardviz.base.mesh import make_mesh
from shardviz.programs.backend.worker import messages
from shardviz.programs.backend.worker.messages import CallbackServer
from shardviz.runs.backend.targets import missing
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, in_new_python, program, run

X = array("x", (8, 4), "a")
VALUES = np.arange(32, dtype=np.float32).reshape(8, 4)


def of_same_shape(fn):
    return lambda x: jax.pure_callback(fn, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_a_callback_is_called_here_with_this_process_own_variables():
    calls = []

    def sine(values):
        calls.append((threading.get_native_id() > 0, values.shape))
        return np.sin(values)

    report = run(program(of_same_shape(sine), X), VALUES)
    assert report.ok, report
    np.testing.assert_array_equal(report.outputs, np.sin(VALUES))
    # The second call is that of the unsharded function, for comparison.
    assert calls == [(True, (8, 4))] * 2


def test_every_device_calls_by_itself_inside_shard_map():
    calls = []
    lock = threading.Lock()

    def note(block):
        with lock:
            calls.append(block.shape)

    def local(block):
        jax.debug.callback(note, block)
        return block

    mapped = lambda x: jax.shard_map(local, in_specs=jax.P("a"), out_specs=jax.P("a"))(x)  # noqa: E731
    assert run(program(mapped, X), VALUES).ok
    assert len(calls) >= 4
    assert set(calls) == {(2, 4)}


def test_calls_inside_loops_branches_and_gradients():
    calls = []

    @jax.custom_vjp
    def noisy(x):
        return x

    noisy.defvjp(
        lambda x: (x, None),
        lambda _, g: (io_callback(lambda v: (calls.append("back"), v)[1], g, g),),
    )

    def body(carry, _):
        io_callback(lambda v: calls.append("loop"), None, carry.sum(), ordered=True)
        return carry * 2, ()

    def step(x):
        y, _ = jax.lax.scan(body, x, None, length=3)
        return jax.grad(lambda v: noisy(v).sum())(y)

    report = run(program(step, X), VALUES)
    assert report.error is None, report.error
    assert (calls.count("loop"), calls.count("back")) == (3, 1)


def test_an_error_of_a_callback_is_the_error_of_the_run():
    def fails(values):
        raise ValueError("boom in the callback")

    begun = time.monotonic()
    report = run(program(of_same_shape(fails), X), VALUES)
    assert report.error is not None
    assert report.error.stage == "run"
    assert "ValueError: boom in the callback" in report.error.message
    assert report.error.source.startswith("test_callbacks.py:")
    assert time.monotonic() - begun < 40  # not after XLA's own 40 s, in which devices wait
    following = run(program(of_same_shape(np.sin), X), VALUES)
    assert following.ok, following


def test_two_programs_of_the_same_text_call_their_own_functions():
    cache = ExecutableCache()
    for factor in (2.0, 3.0):
        scaled = of_same_shape(lambda values, factor=factor: values * np.float32(factor))
        report = run(program(scaled, X), VALUES, cache=cache)
        assert report.ok, report
        np.testing.assert_array_equal(report.outputs, VALUES * np.float32(factor))


AFTER_A_PLAN = """
import jax, numpy as np, shardviz as sv
called = []
def f(x):
    jax.debug.callback(lambda v: called.append(float(v)), x.sum())
    return x * 2
p = sv.program(f, sv.array("x", (8, 4), spec="data"), mesh="data=4")
print(sv.plan(p).error, jax.device_count())
report = sv.run(p, np.ones((8, 4), np.float32))
print(report.ok, called[:1], jax.device_count())
"""


def test_a_plan_needs_one_device_and_the_program_runs_all_the_same():
    printed = in_new_python(AFTER_A_PLAN).splitlines()
    assert printed == ["None 1", "True [32.0] 1"]


def test_a_program_with_callbacks_is_not_compiled_for_described_hardware():
    report = sv.compile(program(of_same_shape(np.sin), X), target="tpu:v5e:2x4")
    assert report.error is not None
    assert "callbacks ('pure_callback'), which call this kernel's Python" in report.error.message


def printing(x, w):
    def layer(x, _):
        jax.debug.print("{}", x.sum())
        return jnp.tanh(x @ w), None

    carry = jax.lax.scan(layer, x, None, length=3)[0]
    jax.debug.print("{}", carry)
    return jax.lax.cond(
        carry[0, 0] > 0, lambda x: (jax.debug.callback(id, x), x)[1], jnp.sin, carry
    )


def silent(x, w):
    carry = jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=3)[0]
    return jax.lax.cond(carry[0, 0] > 0, lambda x: x, jnp.sin, carry)


@pytest.mark.parametrize("target", ["tpu:v5e:2x2", "gpu:h100:1x4"])
def test_what_is_printed_is_left_out_for_described_hardware_with_a_note(target):
    if error := missing(target[:3]):
        pytest.skip(str(error))
    arrays = (array("x", (16, 32), "data, None"), array("w", (32, 32), "None, model"))
    found = [
        sv.compile(program(fn, *arrays, mesh=make_mesh(data=2, model=2)), target=target)
        for fn in (printing, silent)
    ]
    assert [report.error for report in found] == [None, None]
    printed, plain = ([(c.kind, c.mesh_axes, c.shape) for c in r.partitioned] for r in found)
    assert printed == plain
    assert found[0].effects == ("debug callback",)
    (note,) = found[0].notes
    assert [note.count(f"test_callbacks.py:{line}") for line in printed_lines()] == [1, 1, 1]
    assert not found[1].notes


def printed_lines():
    text, first = inspect.getsourcelines(printing)
    return [first + n for n, line in enumerate(text) if "jax.debug" in line]


def test_the_server_answers_many_at_once_and_keeps_an_error():
    def divide(value):
        return (1 / value,)

    with CallbackServer([divide], [lambda value: (value,)]).listen() as address:
        (callback,), (unsharded,) = address.callbacks(), address.callbacks(unsharded=True)
        assert unsharded(5) == (5,)
        answers: list[float] = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(callback(n)[0]))
            for n in range(1, 65)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(answers) == sorted(1 / n for n in range(1, 65))
    server = CallbackServer([divide])
    with server.listen() as address, pytest.raises(Exception, match="division by zero") as raised:
        address.callbacks()[0](0)
    assert type(raised.value).__name__ == "ZeroDivisionError"
    assert isinstance(server.raised, ZeroDivisionError)
    assert server.seconds_since_error > 0


def test_the_server_has_a_short_path_below_a_long_folder(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(messages, "dump_root", lambda: str(long))
    with CallbackServer([lambda value: (value,)]).listen() as address:
        assert address.callbacks()[0](5) == (5,)
        folder = Path(address.address).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("inner", ["cpu:2", "attached"])
@pytest.mark.parametrize("outer", ["cpu:2", "attached"])
def test_a_run_inside_a_callback_is_refused_where_it_would_wait_for_ever(outer, inner):
    found = []

    def starts(values):
        found.append(sv.run(program(jax.numpy.sin, X, mesh=make_mesh(a=2)), target=inner))
        return values

    report = sv.run(program(of_same_shape(starts), X, mesh=make_mesh(a=2)), VALUES, target=outer)
    assert report.ok, report
    if outer == inner:
        assert found[0].error.stage == "target"
        assert "inside a host callback" in found[0].error.message
    else:
        assert found[0].ok
