"""The walk: what a report says of a program that runs."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

from shardviz.axis_rules.requests import requests
from shardviz.base.mesh import make_mesh
from shardviz.compiled.report import Report
from shardviz.programs.backend.trace import trace
from shardviz.runs.backend.compile import lower
from shardviz.runs.backend.worker.run import compile_program
from shardviz.runs.cache import ExecutableCache
from tests.program.helpers import MESH, array, checks, detail, program, run, run_here

X, W = array("x", (8, 16), "a"), array("w", (16, 8), "None, b")
KB = 1024


def matmul(x, w):
    return x @ w


def collectives(report: Report):
    return [(c.kind, c.mesh_axes, c.bytes_per_device) for c in report.collectives or ()]


# Of a (64, 512) x (512, 128) product on a=4, b=2: specs, and what they cost.
FOUR = {
    "outer dimensions split": ("a", "None, b", [], "P('a', 'b')"),
    # The other side is whole, and each device takes its part of it for nothing.
    "inner dimension split on one side": ("a, b", "", [("all-reduce", ("b",), 8 * KB)], "P('a')"),
    "inner dimension split on both sides": (
        "a, b", "b", [("all-reduce", ("b",), 8 * KB)], "P('a')",
    ),
    "outer dimensions want one axis": (
        "a", "None, a", [("all-gather", ("a",), 128 * KB)], "P(None, 'a')",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("x", "w", "cost", "spec"), FOUR.values(), ids=FOUR)
def test_a_matmul_in_its_four_cases(x, w, cost, spec):
    report = run(program(matmul, array("x", (64, 512), x), array("w", (512, 128), w)))
    assert report.ok, report
    found = collectives(report)
    assert found == cost
    assert all(c.source.startswith("test_runner.py:") for c in report.collectives or ())
    assert str(report.out_layouts["output"].spec) == spec
    assert checks(report) == {
        "x: indices of 8 shards": True,
        "w: indices of 8 shards": True,
        "output: indices of 8 shards": True,
        "output: values": True,
    }


def test_a_report_says_everything_it_knows():
    report = run(program(matmul, X, W), repeat=3)
    assert report.target == "CPU × 8, simulated"
    assert len(report.key) == 32
    assert not report.cache_hit
    assert all(t is not None and t > 0 for t in (report.lower_s, report.compile_s, report.place_s))
    assert len(report.runs_s) == 3
    assert report.run_s == sorted(report.runs_s)[1]
    assert report.memory.arguments == (2 * 16 + 16 * 4) * 4
    assert report.memory.outputs == 2 * 4 * 4
    assert report.memory.capacity is not None
    assert report.memory.capacity > 1 << 20
    assert report.cost["flops"] == 256.0
    assert report.in_layouts["x"].shard_shape == (2, 16)
    assert report.out_layouts["output"].shard_shape == (2, 4)
    assert report.outputs.shape == (8, 8)
    assert report.effects == ()
    assert report.error is None


OUTPUTS = {
    "an integer": lambda x: jnp.argmax(x, axis=1),
    "a boolean": lambda x: x > 0,
    "complex": lambda x: x + 1j * x,
    "bfloat16": lambda x: (x @ x.T).astype(jnp.bfloat16),
    "a scalar": lambda x: x.sum(),
    "a number": lambda x: 3,
    "not finite": lambda x: jnp.log(x) / 0,
    "empty": lambda x: x[:0],
    "keys": lambda x: jax.random.split(jax.random.key(0), 8),
    "a dict with None": lambda x: {"x": x, "none": None},
}


@pytest.mark.parametrize("fn", OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_of_every_kind_are_checked(fn):
    report = run(program(fn, X))
    assert report.ok, report
    values = [ok for name, ok in checks(report).items() if name.endswith(": values")]
    assert values == [True], report.checks


def test_no_outputs_and_no_arguments():
    nothing = run(program(lambda x: None, X))
    assert nothing.ok, nothing
    assert nothing.outputs is None
    assert nothing.out_layouts == {}
    made = run(program(lambda: jnp.arange(8)))
    assert made.ok, made
    np.testing.assert_array_equal(made.outputs, np.arange(8))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "complex64",
                                   "float8_e4m3fn", "key<fry>"])  # fmt: skip
def test_arguments_of_every_type(dtype):
    report = run(program(lambda x: x, X.replace(dtype=dtype)))
    assert report.ok, report


@pytest.mark.parametrize("target", ["cpu:8", "attached"])
@pytest.mark.parametrize("guard", ["disallow", "disallow_explicit"])
def test_our_own_copies_are_allowed_where_jax_is_set_to_refuse_them(guard, target):
    made, values = program(lambda x: x * 2, X), jnp.ones((8, 16))
    with jax.transfer_guard(guard):
        reports = [run(made, target=target), run(made, values, target=target, repeat=2)]
    for report in reports:
        assert report.ok, report
        assert checks(report)["output: values"] is True


def test_output_specs_are_asked_for_and_checked():
    made = program(lambda x: (x, x.T), X, out_specs=("b", "a"))
    report = run(made)
    assert report.ok, report
    assert checks(report)["output[0]: out_specs"] is True
    assert [str(v.spec) for v in report.out_layouts.values()] == ["P('b')", "P('a')"]
    one_for_all = run(program(lambda x: (x, x.T), X, out_specs="b"))
    assert [str(v.spec) for v in one_for_all.out_layouts.values()] == ["P('b')", "P('b')"]


PERMUTED = [5, 2, 7, 0, 1, 6, 3, 4]


def devices(result):
    return [s.device.id for s in sorted(result.addressable_shards, key=lambda s: s.index[0].start)]


@pytest.mark.parametrize("shift", [0, 2048], ids=["attached ids", "ids of elsewhere"])
def test_permuted_ids_permute_devices(shift):
    ids = [i + shift for i in PERMUTED]
    mesh = make_mesh({"a": 8}, device_ids=ids)
    report = run(program(lambda x: x * 2, array("x", (8, 16), "a"), mesh=mesh))
    assert report.ok, report
    assert devices(report.outputs) == PERMUTED
    assert report.out_layouts["output"].device_ids.tolist() == ids
    assert report.out_layouts["output"].box(ids[3])[0] == slice(3, 4)


def test_a_mesh_of_one_device_is_the_unsharded_function():
    report = run(program(matmul, X, W, mesh=make_mesh(a=1, b=1)))
    assert report.ok, report
    assert report.target == "CPU × 1, attached"
    assert checks(report)["unsharded function"] is None


def test_a_second_run_is_a_hit():
    cache = ExecutableCache()
    first = run(program(matmul, X, W), cache=cache)
    second = run(program(matmul, X, W), cache=cache)
    compiled = compile_program(program(matmul, X, W), cache=cache)
    assert [r.cache_hit for r in (first, second, compiled)] == [False, True, True]
    assert first.key == second.key == compiled.key
    assert second.compile_s == 0.0
    assert second.collectives == first.collectives
    assert (len(cache), cache.hits, cache.misses) == (1, 2, 1)
    assert second.ok, second


def test_a_changed_global_is_seen(monkeypatch):
    cache = ExecutableCache()
    made = program(scaled, X)
    first = run(made, cache=cache)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    second = run(made, cache=cache)
    assert not second.cache_hit
    np.testing.assert_allclose(second.outputs * 2, first.outputs * 3, rtol=1e-6)
    assert second.ok, second


FACTOR = 2.0


def scaled(x):
    return x * FACTOR


def test_code_that_moved_is_compiled_again_and_names_its_lines():
    cache = ExecutableCache()
    made = [program(fn, array("x", (64, 512), "a, b"), array("w", (512, 128), "b"))
            for fn in (lambda x, w: x @ w,
                       lambda x, w: x @ w)]  # fmt: skip
    here, moved = (run(p, cache=cache).collectives[0] for p in made)
    assert len(cache) == 2
    lines = [int(one.source.removeprefix("test_runner.py:")) for one in (here, moved)]
    assert lines[1] == lines[0] + 1


CALLS: list[str] = []


def printing(x):
    jax.debug.callback(lambda: CALLS.append("debug"))
    return x + 1


def counting(x):
    return x + io_callback(lambda: np.float32(len(CALLS)), jax.ShapeDtypeStruct((), jnp.float32))


def pure(x):
    return jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize(
    ("fn", "effects"),
    [(printing, ("debug callback",)), (counting, ("io callback",)), (pure, ())],
    ids=["debug", "io", "pure"],
)
def test_callbacks_go_past_the_cache(fn, effects):
    cache = ExecutableCache()
    reports = [run(program(fn, X), cache=cache) for _ in range(2)]
    for report in reports:
        assert report.ok, report
        assert not report.cache_hit
        assert report.effects == effects
    assert len(cache) == 0
    compared = checks(reports[0])
    if effects:
        assert compared["unsharded function"] is None
        assert "a second run" in detail(reports[0], "unsharded function")
    else:
        assert compared["output: values"] is True


def test_ordered_io_runs_on_many_devices():
    seen: list[int] = []

    def step(x):
        io_callback(lambda i: seen.append(int(i)), None, x[0, 0].astype(int), ordered=True)
        return x

    report = run(program(step, X), np.full((8, 16), 7, np.float32), repeat=2)
    assert report.ok, report
    assert report.effects == ("io callback, ordered",)
    assert seen == [7, 7]


def test_donated_arguments_are_replaced_for_every_repeat():
    given = jnp.ones((8, 16))
    report = run(program(lambda x: x + 1, X, donate=0), given, repeat=3)
    assert report.ok, report
    assert report.memory.aliased == report.memory.outputs
    np.testing.assert_array_equal(report.outputs, 2.0)
    assert not given.is_deleted()
    placed = report.in_layouts["x"]
    assert placed.shard_shape == (2, 16)


def test_shard_map_may_differ_from_one_device():
    def ranked(x):
        return jax.shard_map(lambda y: y * 0 + jax.lax.axis_index("a"), in_specs=P("a"),
                             out_specs=P("a"))(x)  # fmt: skip

    report = run(program(ranked, X))
    assert report.ok, report
    assert checks(report)["output: values"] is None
    assert "inconclusive" in detail(report, "output: values")


def test_a_function_for_many_devices_alone_is_not_compared():
    def ring(x):
        turn = [(i, (i + 1) % 4) for i in range(4)]
        return jax.shard_map(lambda y: jax.lax.ppermute(y, "a", turn), in_specs=P("a"),
                             out_specs=P("a"))(x)  # fmt: skip

    report = run(program(ring, X))
    assert report.ok, report
    assert checks(report)["unsharded function"] is None
    assert "does not run on one device" in detail(report, "unsharded function")
    assert collectives(report)[0][:2] == ("collective-permute", ("a",))


def test_a_function_that_reads_the_mesh_is_compared_with_itself():
    def averaged(x):
        count = jax.sharding.get_abstract_mesh().shape["a"]
        y = jnp.tile(x / count, (count, 1)) if count > 1 else x
        return y.sum(0), y.shape[0] * y

    report = run(program(averaged, X))
    assert report.ok, report
    assert [ok for name, ok in checks(report).items() if name.endswith("values")] == [True, True]


def test_a_wrong_result_is_found(monkeypatch):
    # The same text runs on both sides, so a fault is planted in the reference.
    from shardviz.runs.backend.here import Here

    def other(self, original, made, mesh):
        return lower(trace(made.replace(fn=lambda x, w: (x @ w) * 1.01), mesh))

    monkeypatch.setattr(Here, "lower_unsharded", other)
    report = run_here(program(matmul, X, W))
    assert not report.ok
    assert report.error is None
    assert checks(report)["output: values"] is False
    assert "a check failed" in repr(report)


def test_a_wrong_prediction_is_found():
    made = program(matmul, X, W)
    wrong = requests((array("x", (8, 16), "b"), W), MESH, None)
    right = made.requests
    # A program whose predicted layout is not that of its spec.
    mixed = right[0].__class__(right[0].array, None, right[0].spec, wrong[0].layout, None)
    made.__dict__["requests"] = (mixed, right[1])
    report = run_here(made)
    assert not report.ok
    assert checks(report)["x: indices of 8 shards"] is False
    assert "the layout puts" in detail(report, "x: indices of 8 shards")


def test_a_worker_thread_does_as_well():
    cache, reports = ExecutableCache(), []
    threads = [
        threading.Thread(
            target=lambda: reports.append(run_here(program(matmul, X, W), cache=cache))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(reports) == 4
    assert all(r.ok for r in reports), reports
    assert cache.misses == 1
    assert sorted(r.cache_hit for r in reports) == [False, True, True, True]


STAGES = ["program", "target", "trace", "lower", "compile", "place", "run", "check"]


def test_stages_are_reported_as_they_begin():
    stages: list[str] = []
    run_here(program(matmul, X, W), progress=stages.append)
    assert stages == STAGES
    stages.clear()
    compile_program(
        program(matmul, X, W), "attached", cache=ExecutableCache(), progress=stages.append
    )
    assert stages == STAGES[:5]


@pytest.mark.parametrize("stage", STAGES)
def test_a_cancelled_walk_ends_at_the_next_stage(stage):
    begun: list[str] = []
    before = STAGES[: STAGES.index(stage)]
    report = run_here(
        program(matmul, X, W), progress=begun.append, cancelled=lambda: begun == before
    )
    assert report.error is not None
    assert report.error.stage == "cancelled"
    assert repr(stage) in report.error.message
    assert begun == before


def test_a_cancelled_run_ends_between_repeats():
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) > 12

    report = run_here(
        program(matmul, X, W), repeat=1000, cancelled=cancelled
    )  # 7 stages, then runs
    assert report.error is not None
    assert report.error.stage == "cancelled"
    assert report.error.message == "Cancelled after 6 of 1000 runs."
    assert not report.has("outputs")
