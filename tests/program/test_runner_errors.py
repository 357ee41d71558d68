"""What a report says of a program that fails, stage by stage. Nothing is raised."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.base.errors import ProgramError
from shardviz.base.mesh import make_mesh
from shardviz.compiled.checks import TooBigForOneDevice
from shardviz.runs.backend import device_memory
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import array, program, run, run_here

X, W = array("x", (8, 16), "a"), array("w", (16, 8), "None, b")


def matmul(x, w):
    return x @ w


def branching(x):
    return x if x.sum() > 0 else -x


def mismatched(x):
    return x @ jnp.ones((3, 3))


def not_an_array(x):
    return "text"


def raising(x):
    raise KeyError("params")


def ordered_print(x):
    jax.debug.print("{}", x.sum(), ordered=True)
    return x


def failing_callback(x):
    def boom(v):
        raise ValueError("boom in the callback")

    return jax.pure_callback(boom, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


# Program, values and options; the stage it fails in, words of the message, whether it has a line.
FAILING = {
    "indivisible": (program(matmul, array("x", (7, 16), "a"), W), (), {}, "program",
                    "x: ", False),
    "no such axis": (program(matmul, array("x", (8, 16), "data"), W), (), {}, "program",
                     "'data'", False),
    "too few values": (program(matmul, X, W), (np.ones((8, 16)),), {}, "program",
                       "2 arguments", False),
    "a wrong shape": (program(matmul, X, W), (np.ones((8, 8)), np.ones((16, 8))), {}, "program",
                      "f32[8, 8]", False),
    "a wrong repeat": (program(matmul, X, W), (), {"repeat": 0}, "program",
                       "1,000,000", False),
    "no such target": (program(matmul, X, W), (), {"target": "cloud"}, "target",
                       "'cloud'", False),
    "too many devices": (program(matmul, X, W, mesh=make_mesh(a=256, b=8)).replace(
        arrays=(array("x", (256, 16), "a"), W)), (), {}, "target",
                        "1,024", False),
    "a python branch": (program(branching, X), (), {}, "trace",
                        "TracerBoolConversionError: Attempted boolean conversion", True),
    "shapes that do not fit": (program(mismatched, X), (), {}, "trace",
                               "TypeError: dot_general requires contracting", True),
    "an exception": (program(raising, X), (), {}, "trace", "KeyError: 'params'", True),
    "a result that is no array": (program(not_an_array, X), (), {}, "trace", "TypeError", False),
    "too many arguments": (program(lambda: 0, X), (), {}, "trace", "TypeError", False),
    "64 bits": (program(matmul, X.replace(dtype="float64"), W), (), {}, "trace",
                "float64", False),
    "specs for other outputs": (program(matmul, X, W, out_specs=["a", "b"]), (), {}, "trace",
                                "out_specs", False),
    "an ordered print": (program(ordered_print, X), (), {}, "program",
                         "debug callbacks", False),
    "no such option": (program(matmul, X, W, xla_no_such_option=True), (), {}, "compile",
                       "No such compile option: 'xla_no_such_option'", False),
    "more than the machine has": (program(lambda x: x * 2, array("x", (1 << 20, 1 << 20), "a")),
                                  (), {}, "place", "1 TiB of arguments", False),
    "a failing callback": (program(failing_callback, X), (), {}, "run",
                           "ValueError: boom in the callback", True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("made", "values", "options", "stage", "words", "has_line"),
    [pytest.param(*case, id=name) for name, case in FAILING.items()],
)
def test_every_failure_is_reported_with_its_stage(made, values, options, stage, words, has_line):
    report = run(made, *values, **options)
    assert report.error is not None
    assert report.error.stage == stage
    assert words in report.error.message
    assert report.error.source.startswith("test_runner_errors.py:" if has_line else "")
    assert "\n" not in report.error.message
    assert not report.has("outputs")
    assert not report.ok


@pytest.mark.parametrize("name", ["indivisible", "a python branch", "no such option"])
def test_compiles_fail_as_runs_do(name):
    made, _, _, stage, words, _ = FAILING[name]
    report = compile_program(made, cache=ExecutableCache())
    assert report.error is not None
    assert report.error.stage == stage
    assert words in report.error.message


@pytest.mark.parametrize("rows", [10, 9])
def test_a_result_split_by_part_of_an_axis_is_not_blamed_on_the_compiler(rows, eight_devices):
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=eight_devices[:4])

    def constrained(x):
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data")))

    x, refused = np.ones((rows, 3), "float32"), False
    try:
        jax.jit(constrained)(x)
    except ValueError as error:
        refused = "is not divisible by axis_size=4" in str(error)
    report = sv.compile(constrained, x, mesh=mesh)
    assert report.ok != refused
    if refused:
        assert rows == 10  # 2 divides both 10 and the axis; 9 and the axis have no such factor
        assert report.error.stage == "compile"
        assert "XLA compiled the program, but jax cannot describe" in report.error.message
        assert sv.compile(jax.jit(constrained, out_shardings=P()), x, mesh=mesh).ok


def test_what_was_known_before_the_failure_is_kept():
    report = run(program(failing_callback, X))
    assert report.target == "CPU × 8, simulated"
    assert report.key
    assert report.compile_s
    assert report.memory.arguments
    assert report.in_layouts["x"].shard_shape == (2, 16)
    # The result is on the one device that runs the callback, so it has no layout.
    assert [(c.array, c.ok) for c in report.checks] == [("output", None), ("x", True)]


def test_the_next_run_knows_nothing_of_a_failed_one():
    cache = ExecutableCache()
    assert run(program(failing_callback, X), cache=cache).error is not None

    def printing(x):
        jax.debug.callback(lambda: None)
        return x

    following = run(program(printing, X), cache=cache)
    assert following.ok, following
    jax.effects_barrier()


def test_what_does_not_fit_is_refused_before_anything_is_placed(monkeypatch):
    monkeypatch.setattr(device_memory, "host_available", lambda: 416 * 8 - 1)
    begun: list[str] = []
    report = run_here(program(matmul, X, W), progress=begun.append)
    assert report.error is not None
    assert report.error.stage == "place"
    assert "416 B" in report.error.message
    assert begun[-1] == "place"
    assert not report.has("place_s")
    monkeypatch.setattr(device_memory, "host_available", lambda: 416 * 8)
    assert run_here(program(matmul, X, W)).error is None


def test_what_does_not_fit_on_one_device_is_not_compared(monkeypatch):
    # On one device: 8 * 16 + 16 * 8 + 8 * 8 floats, 1,280 bytes; on eight, 8 * 416 in all.
    free = iter([416 * 8, 416 * 8, 1279])
    monkeypatch.setattr(device_memory, "host_available", lambda: next(free))
    report = run_here(program(matmul, X, W))
    assert report.ok, report
    check = report.checks[-1]
    assert (check.name, check.ok) == ("unsharded function", None)
    assert check.finding == TooBigForOneDevice(needed=1280, free=1279)


def test_an_interrupt_passes():
    def interrupting(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(program(interrupting, X))


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["", "a", "b", "(a, b)", "(b, a)"]),
    st.sampled_from(["", "None, a", "None, b", "a, b", "b, a", "None, (b, a)"]),
    st.sampled_from(["float32", "bfloat16", "int32"]),
)
def test_any_way_to_split_a_matmul_gives_the_same_result(x_spec, w_spec, dtype):
    made = program(matmul, array("x", (16, 16), x_spec, dtype), array("w", (16, 16), w_spec, dtype))
    report = run(made)
    assert report.ok, report
    assert all(c.ok for c in report.checks)


@pytest.mark.parametrize(
    "thing", [None, 3, "f", matmul], ids=["none", "number", "text", "function"]
)
def test_what_is_no_program_is_refused(thing):
    with pytest.raises(ProgramError):
        run(thing)
