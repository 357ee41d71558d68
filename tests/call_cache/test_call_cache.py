"""Cached calls equal jax.jit's; fallbacks, bounds and effects."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.layout import Format, Layout

import shardviz as sv
from shardviz.base.errors import ProgramError
from shardviz.runs.backend import signature
from shardviz.runs.backend.cached_function import CachedFunction


def twice(x: Any, *rest: Any, **named: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, (x, rest, named))


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
    cached, wanted = CachedFunction(twice), jax.jit(twice)(*args, **kwargs)
    for _ in range(3):
        got = cached(*args, **kwargs)
        assert jax.tree.structure(got) == jax.tree.structure(wanted)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_array_equal(a, b)
            assert (a.aval, a.sharding, a.committed) == (b.aval, b.sharding, b.committed)
    assert (cached.hits, cached.misses, cached.fallbacks) == (2, 1, {})


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

    cached = CachedFunction(power, **options)
    for args, kwargs in calls:
        assert int(cached(*args, **kwargs)) == int(jax.jit(power, **options)(*args, **kwargs)) == 8
    assert (cached.misses, cached.hits, cached.fallbacks) == (1, len(calls) - 1, {})


def test_donated_arguments_are_given_up():
    cached = CachedFunction(lambda x: x + 1, donate_argnums=0)
    for _ in range(2):
        x = jnp.ones(4)
        cached(x)
        assert x.is_deleted()
    with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
        cached(x)


def test_methods_and_names_stay():
    class Model:
        scale = 3

        @sv.cached
        def grow(self, x: Any) -> Any:
            """Words."""
            return x * 2

    assert Model.grow.__name__ == "grow"
    assert Model.grow.__doc__ == "Words."
    with pytest.raises(TypeError):
        Model().grow(1)  # self is no array, and jax.jit says so too
    assert Model.grow.fallbacks == {"not an array": 1}


def without_jit(do: Any) -> Any:
    with jax.disable_jit():
        return do()


FALLBACKS = {
    "unhashable static": (lambda f: f(1, [2]), "static", ValueError),
    "text": (lambda f: f("x"), "not an array", TypeError),
    "an object": (lambda f: f({"w": object()}), "not an array", TypeError),
    "keys that do not sort": (lambda f: f({1: 1, "a": 2}), "tree", Exception),
    "jit": (lambda f: jax.jit(lambda x: f(x))(1), "transformation", None),
    "grad": (lambda f: jax.grad(lambda x: f(x))(1.0), "transformation", None),
    "vmap": (lambda f: jax.vmap(lambda x: f(x))(np.ones(3)), "transformation", None),
    "closed over": (lambda f: jax.jit(lambda x: f(2) + x)(1), "transformation", None),
    "scan": (
        lambda f: jax.lax.scan(lambda c, x: (f(c), x), 1.0, np.ones(3)),
        "transformation",
        None,
    ),
    "disable_jit": (lambda f: without_jit(lambda: f(jnp.ones(2))), "disable_jit", None),
    "a ref": (lambda f: f(jax.new_ref(jnp.ones(3))), "not an array", Exception),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_what_cannot_be_cached_goes_to_jit(case: str):
    def fn(x: Any, n: Any = None) -> Any:
        return jax.tree.map(lambda leaf: leaf * 2, x)

    do, reason, error = FALLBACKS[case]
    cached, jitted = CachedFunction(fn, static_argnums=1), jax.jit(fn, static_argnums=1)
    if error is None:
        for a, b in zip(jax.tree.leaves(do(cached)), jax.tree.leaves(do(jitted)), strict=True):
            np.testing.assert_array_equal(a, b)
    else:
        with pytest.raises(error) as ours:
            do(cached)
        with pytest.raises(type(ours.value)) as theirs:
            do(jitted)
        assert str(ours.value)[:40] == str(theirs.value)[:40]
    assert (cached.misses, cached.cache_size()) == (0, 0)
    assert list(cached.fallbacks) == [reason]


def test_another_memory_layout_goes_to_jit():
    cached = CachedFunction(lambda x: x * 2)
    x = jax.device_put(np.arange(6.0).reshape(2, 3), jax.devices("cpu")[0])
    other = jax.device_put(x, Format(Layout((1, 0)), x.sharding))
    np.testing.assert_array_equal(cached(x), x * 2)
    np.testing.assert_array_equal(cached(other), x * 2)
    assert (cached.misses, cached.fallbacks) == (1, {"memory layout": 1})


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_happen_once_each_call(ordered: bool):
    seen: list[float] = []

    def fn(x: Any) -> Any:
        io_callback(lambda v: seen.append(float(v)), None, x, ordered=ordered)
        return x + 1

    cached = CachedFunction(fn)
    for n in range(5):
        cached(jnp.float32(n))
    jax.effects_barrier()
    assert (seen if ordered else sorted(seen)) == [0, 1, 2, 3, 4]
    assert (cached.misses, cached.hits, cached.fallbacks) == (1, 4, {})


def test_the_least_recently_used_goes_first():
    cached = CachedFunction(lambda x: x + 1, size=2)
    x, y, z = (jnp.ones(n) for n in (1, 2, 3))
    for array in (x, y, x, z):
        cached(array)
    assert [e.signature for e in cached.entries] == ["(x: float32[1])", "(x: float32[3])"]
    assert (cached.cache_size(), cached.hits, cached.misses) == (2, 1, 3)


def test_a_cache_holds_no_arrays():
    cached = CachedFunction(lambda x: x + 1)
    x = jnp.ones(4)
    died = weakref.ref(x)
    cached(x)
    cached({"x": x}["x"])
    del x
    gc.collect()
    assert died() is None


def test_clear_counts_anew():
    cached = CachedFunction(lambda x: x)
    cached(1)
    cached(1)
    cached.clear()
    assert (cached.hits, cached.misses, cached.cache_size()) == (0, 0, 0)
    assert cached(1) == 1
    assert cached.entries[0].entry == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sv.cached(3),
        lambda: sv.cached(jnp.sin, static_argnum=1),
        lambda: sv.cached(jnp.sin, size=0),
    ],
)
def test_what_cannot_be_cached_is_refused(wrong: Any):
    with pytest.raises((ProgramError, TypeError)):
        wrong()


def test_where_jax_hides_its_settings_it_compiles_for_itself(monkeypatch):
    monkeypatch.setattr(signature, "trace_settings", lambda: None)
    cached = CachedFunction(lambda x: x * 2)
    assert cached(2) == 4
    assert (cached.misses, cached.fallbacks) == (0, {"settings": 1})
