"""Calls of a watched function equal jax.jit's; its counts, plans and reports."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import shardviz as sv
from shardviz.base.errors import ProgramError, RecompileError
from shardviz.runs.backend.watched_function import Watch
from tests.watch.cache_events import jax_cache_events


def twice(x: Any, *rest: Any, **named: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, (x, rest, named))


def counts(watched: Watch) -> list[tuple[int, int]]:
    """Calls and compiles of each signature."""
    return [(entry.calls, entry.compiles) for entry in watched.entries]


CALLS: dict[str, tuple[tuple, dict]] = {
    "an array": ((jnp.arange(4.0),), {}),
    "arrays": ((jnp.arange(4.0), jnp.ones((2, 2), jnp.int8)), {}),
    "NumPy": ((np.arange(4.0), np.float64(3), np.int64(2)), {}),
    "numbers": ((1, 2.5, True, 1j), {}),
    "trees": (({"w": 1, "b": (np.ones(2), [None, 3.0])},), {"y": {"z": jnp.ones(1)}}),
    "keys": ((1,), {"seed": jnp.uint32(4)}),
    "nothing at all": (((),), {}),
    "empty arrays": ((np.ones((0, 4)),), {}),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_equals_jit(case: str):
    args, kwargs = CALLS[case]
    watched, wanted = sv.watch(twice), jax.jit(twice)(*args, **kwargs)
    for _ in range(3):
        got = watched(*args, **kwargs)
        assert jax.tree.structure(got) == jax.tree.structure(wanted)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(a, b)
            assert (a.aval, a.sharding, a.committed) == (b.aval, b.sharding, b.committed)
    assert counts(watched) == [(3, 1)]


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"static_argnums": 1}, [((2, 3), {}), ((2,), {"n": 3})]),
        ({"static_argnames": "n"}, [((2, 3), {}), ((2,), {"n": 3})]),
        ({"static_argnames": ["n"]}, [((2,), {"n": 3}), ((2, 3), {})]),
        ({"static_argnums": -1}, [((2, 3), {})]),
        ({"static_argnums": (1,), "static_argnames": ("n",)}, [((2, 3), {}), ((2,), {"n": 3})]),
    ],
)
def test_static_arguments_are_those_of_jit(options: dict, calls: list):
    def power(x: Any, n: int = 1) -> Any:
        assert isinstance(n, int), "n must be static"
        return x**n

    watched = sv.watch(power, **options)
    for args, kwargs in calls:
        assert int(watched(*args, **kwargs)) == int(jax.jit(power, **options)(*args, **kwargs)) == 8
    assert sum(n for n, _ in counts(watched)) == len(calls)


def test_donated_arguments_are_given_up():
    watched = sv.watch(lambda x: x + 1, donate_argnums=0)
    for _ in range(2):
        x = jnp.ones(4)
        watched(x)
        assert x.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
        watched(x)


def test_methods_and_names_stay():
    class Model:
        scale = 3

        @sv.watch
        def grow(self, x: Any) -> Any:
            """Words."""
            return x * 2

    assert Model.grow.__name__ == "grow"
    assert Model.grow.__doc__ == "Words."
    with pytest.raises(TypeError):
        Model().grow(1)  # self is no array, and jax.jit says so too
    assert Model.grow.entries == ()


def without_jit(do: Any) -> Any:
    with jax.disable_jit():
        return do()


OTHER_CALLS = {
    "unhashable static": (lambda f: f(1, [2]), ValueError),
    "text": (lambda f: f("x"), TypeError),
    "an object": (lambda f: f({"w": object()}), TypeError),
    "keys that do not sort": (lambda f: f({1: 1, "a": 2}), Exception),
    "jit": (lambda f: jax.jit(lambda x: f(x))(1), None),
    "grad": (lambda f: jax.grad(lambda x: f(x))(1.0), None),
    "vmap": (lambda f: jax.vmap(lambda x: f(x))(np.ones(3)), None),
    "closed over": (lambda f: jax.jit(lambda x: f(2) + x)(1), None),
    "scan": (
        lambda f: jax.lax.scan(lambda c, x: (f(c), x), 1.0, np.ones(3)),
        None,
    ),
    "disable_jit": (lambda f: without_jit(lambda: f(jnp.ones(2))), None),
    "a ref": (lambda f: f(jax.new_ref(jnp.ones(3))), Exception),
}


@pytest.mark.parametrize("case", OTHER_CALLS)
def test_calls_without_a_signature_equal_jit(case: str):
    def fn(x: Any, n: Any = None) -> Any:
        return jax.tree.map(lambda leaf: leaf * 2, x)

    do, error = OTHER_CALLS[case]
    watched, jitted = sv.watch(fn, static_argnums=1), jax.jit(fn, static_argnums=1)
    if error is None:
        for a, b in zip(jax.tree.leaves(do(watched)), jax.tree.leaves(do(jitted)), strict=True):
            np.testing.assert_array_equal(a, b)
    else:
        with pytest.raises(error) as ours:
            do(watched)
        with pytest.raises(type(ours.value)) as theirs:
            do(jitted)
        assert str(ours.value)[:40] == str(theirs.value)[:40]
    assert all(compiles == 0 for _, compiles in counts(watched))
    assert watched(1.0) == 2


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_happen_once_each_call(ordered: bool):
    seen: list[float] = []

    def fn(x: Any) -> Any:
        io_callback(lambda v: seen.append(float(v)), None, x, ordered=ordered)
        return x + 1

    watched = sv.watch(fn)
    for n in range(5):
        watched(jnp.float32(n))
    jax.effects_barrier()
    assert (seen if ordered else sorted(seen)) == [0, 1, 2, 3, 4]
    assert counts(watched) == [(5, 1)]


@pytest.mark.parametrize("is_jitted", [False, True])
def test_a_compile_before_a_failure_is_counted(is_jitted: bool):
    def log(x: Any) -> Any:
        return jnp.log(x)

    watched = sv.watch(jax.jit(log) if is_jitted else log)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        watched(-np.ones(4))
    assert counts(watched) == [(1, 1)]
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        watched(-np.ones(4))
    watched(np.ones(4))
    assert counts(watched) == [(3, 1)]


@pytest.mark.parametrize("is_jitted", [False, True])
def test_a_callback_that_compiles_a_function_of_the_same_name(is_jitted: bool):
    def in_python(x: Any) -> Any:
        return np.asarray(jax.jit(lambda x: x + 1)(np.asarray(x)))

    shape = jax.ShapeDtypeStruct((4,), "float32")
    outer = lambda x: jax.pure_callback(in_python, shape, x)  # noqa: E731
    watched = sv.watch(jax.jit(outer) if is_jitted else outer)
    for _ in range(3):
        jax.block_until_ready(watched(np.ones(4, np.float32)))
    assert counts(watched) == [(3, 1)]


def test_it_holds_no_arrays():
    watched = sv.watch(lambda x: x + 1)
    x = jnp.ones(4)
    died = weakref.ref(x)
    watched(x)
    watched({"x": x}["x"])
    del x
    gc.collect()
    assert died() is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sv.watch(3),
        lambda: sv.watch(jnp.sin, static_argnum=1),
        lambda: sv.watch(jnp.sin, recompiles="never"),
        lambda: sv.watch(static_argnums=1),
    ],
)
def test_wrong_arguments_are_refused(wrong: Any):
    with pytest.raises((ProgramError, TypeError)):
        wrong()


def test_a_jitted_function_is_called_as_it_is():
    jitted = jax.jit(lambda x, n: x * n, static_argnames="n", donate_argnums=0)
    watched, x = sv.watch(jitted), jnp.ones(4)
    assert watched.jitted is jitted
    np.testing.assert_array_equal(watched(x, n=2), np.full(4, 2))
    assert x.is_deleted()
    assert watched.lower(jnp.ones(4), n=2).compile() is not None
    watched(jnp.ones(4), n=3)
    assert counts(watched) == [(1, 1), (1, 1)]


DIRECT = {
    "grad": lambda f: jax.grad(f),
    "vmap": lambda f: jax.vmap(f, in_axes=None, axis_size=2),
    "jit": lambda f: jax.jit(f, static_argnames="n"),
    "checkpoint": lambda f: jax.checkpoint(f),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (c + f(x), None), 0.0, length=2),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[0],
}


@pytest.mark.parametrize("name", DIRECT)
def test_transformations_take_it_in_place_of_the_function(name: str):
    def fn(x: Any, n: int = 2) -> Any:
        return (x * n).sum()

    watched, x = sv.watch(fn, static_argnames="n"), jnp.arange(4.0)
    got, expected = DIRECT[name](watched)(x), DIRECT[name](fn)(x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert watched.entries == ()


def test_programs_of_a_watched_function_have_its_settings(eight_devices):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.ones(8, np.float32), jax.NamedSharding(mesh, jax.P("d")))
    watched = sv.watch(lambda x, n: (x * n).sum(), static_argnames="n")
    assert [c.kind for c in sv.plan(watched, x, n=3).collectives] == ["all-reduce"]
    assert sv.program(watched, x, n=3).arrays[0].shape == (8,)
    assert watched.entries == ()


def test_mutable_references_are_passed_on():
    def add(ref: Any, y: Any) -> None:
        ref[...] += y

    watched, ref = sv.watch(add), jax.new_ref(jnp.ones(3))
    watched(ref, 1.0)
    watched(ref, 2.0)
    np.testing.assert_array_equal(ref[...], np.full(3, 4.0))
    assert counts(watched) == [(2, 1)]


def test_without_jit_nothing_is_counted():
    watched = sv.watch(lambda x: x + 1, recompiles="error")
    watched(jnp.ones(3))
    with jax.disable_jit():
        watched(jnp.ones(4))
    assert counts(watched) == [(1, 1)]


def test_functions_of_libraries_are_watched():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
    watched = sv.watch(nnx.jit(lambda model, x: model(x)))
    for n in (1, 2, 2, 1):
        assert watched(model, jnp.ones((n, 4))).shape == (n, 4)
    assert counts(watched) == [(2, 1), (2, 1)]
    with jax_cache_events() as events:
        assert [entry.report.collectives for entry in watched.entries] == [(), ()]
    assert events == []
    assert "collectives: none" in sv.text(watched)


def test_a_function_of_equinox_has_no_reports():
    equinox = pytest.importorskip("equinox")
    # The second argument decides the result, so shapes alone would compile.
    watched = sv.watch(equinox.filter_jit(lambda x, mode: x))
    watched(jnp.ones(4), "same")
    with pytest.raises(ProgramError, match="filter_jit has no reports"):
        _ = watched.entries[0].report
    assert "1 call, 1 compile" in sv.text(watched)


def test_a_compiled_program_is_not_watched():
    compiled = jax.jit(twice).lower(jnp.ones(4)).compile()
    with pytest.raises(ProgramError, match=r"sv\.report"):
        sv.watch(compiled)


def test_a_compile_for_another_device_order_is_counted(eight_devices):
    watched = sv.watch(lambda x: x * 2)
    for devices in (jax.devices(), jax.devices()[::-1]):
        # The meshes are equal but for their devices, so jax reuses the trace.
        with jax.set_mesh(jax.sharding.Mesh(devices, ("d",))):
            watched(jnp.ones(4))
    assert counts(watched) == [(1, 1), (1, 1)]


def test_alternating_signatures_are_counted():
    watched, rng = sv.watch(twice), np.random.default_rng(0)
    trees = [
        {"w": jnp.ones(3), "b": [jnp.ones(2)]},
        {"w": jnp.ones(4), "b": [jnp.ones(2)]},
        {"w": jnp.ones(3), "b": [None]},
        {"w": jnp.ones(3), "b": (jnp.ones(2),)},
        {"w": jnp.ones(3), "b": [jnp.ones(2, jnp.int8)]},
        [jnp.ones(3)],
    ]
    expected = [0] * len(trees)
    for number in [*range(len(trees)), *rng.integers(0, len(trees), 200)]:
        watched(trees[number])
        expected[number] += 1
    assert counts(watched) == [(calls, 1) for calls in expected]


def test_shardings_that_are_written_otherwise_have_one_row(eight_devices):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    watched, shape = sv.watch(lambda x: x * 2), (8, 8)
    specs = [jax.P("d"), jax.P("d", None), jax.P(None, "d"), jax.P("d", None), jax.P("d")]
    for spec in specs:
        watched(jax.device_put(np.ones(shape), jax.NamedSharding(mesh, spec)))
    assert counts(watched) == [(4, 1), (1, 1)]


def test_reports_and_plans_are_those_of_the_calls(eight_devices):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("d"))
    watched = sv.watch(lambda w, x, scale: (x @ w).sum() * scale, static_argnums=2)
    w = np.ones((8, 8), np.float32)
    watched(w, w, 2)
    watched(w, jax.device_put(w, rows), 2)
    with jax_cache_events() as events:
        first, second = (entry.report for entry in watched.entries)
    assert events == []  # the executables that have run
    assert first.collectives == ()
    assert [c.kind for c in second.collectives] == ["all-reduce"]
    assert [c.kind for c in watched.entries[1].plan.collectives] == ["all-reduce"]
    assert watched.entries[0].plan.collectives == ()
    assert [change.kind for change in watched.entries[1].comparison.changes] == ["added"]
    assert sv.text(watched) == watched._repr_mimebundle_()["text/plain"]
    assert sv.plot(watched).axes
    html = watched._repr_mimebundle_()["text/html"]
    assert html.count("<tr>") == 3


def test_a_report_is_read_where_the_call_was():
    watched = sv.watch(lambda x: x * 2.5)
    with jax.enable_x64(True):
        watched(np.ones(3))
    with jax_cache_events() as events:
        assert watched.entries[0].report.collectives == ()
    assert events == []


def test_in_strict_mode_a_second_compile_is_an_error():
    traced = []

    def fn(x: Any) -> Any:
        traced.append(x)
        return x + 1

    watched, x = sv.watch(fn, recompiles="error"), np.ones(4, np.float32)
    watched(x)
    watched(x)
    for _ in range(2):
        with pytest.raises(RecompileError) as error, jax_cache_events() as events:
            watched(x[:3])
        assert [d.name for d in error.value.miss.differences] == ["x"]
        assert events.counts()["compile"] == 0
        assert str(error.value).startswith("fn would be compiled for (x: float32[3]). ")
    assert (len(traced), counts(watched)) == (1, [(2, 1)])
    # jax has the trace, so the sharding is known only after the compile.
    with pytest.raises(RecompileError, match="fn was compiled for"):
        watched(jax.device_put(x, jax.devices()[3]))
    assert jax.grad(lambda x: watched(x).sum())(x).shape == (4,)


def test_in_strict_mode_cleared_caches_are_the_cause():
    watched = sv.watch(lambda x: x, recompiles="error")
    watched(jnp.ones(3))
    jax.clear_caches()
    for _ in range(2):
        with pytest.raises(RecompileError, match="its caches were cleared"):
            watched(jnp.ones(3))


def test_strict_mode_of_a_jitted_function():
    watched = sv.watch(jax.jit(lambda x: x), recompiles="error")
    watched(jnp.ones(3))
    with pytest.raises(RecompileError):
        watched(jnp.ones(4))


def test_no_listener_stays():
    monitoring = pytest.importorskip("jax._src.monitoring")
    gc.collect()
    before = monitoring.get_event_duration_listeners()
    watched = sv.watch(lambda x: x)
    watched(1)
    del watched
    gc.collect()
    assert monitoring.get_event_duration_listeners() == before
