"""Every kind of difference between two calls, which explains a second compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from shardviz.runs.backend.cached_function import CachedFunction
from shardviz.runs.cached import (
    ArrayAdded,
    ArrayChanged,
    ArrayRemoved,
    Difference,
    SameAsDropped,
    SettingChanged,
    StaticChanged,
    TreeChanged,
)

ONE = np.ones((8, 8), np.float32)


class Odd:
    """Equal only to itself, and with the same repr for all objects."""

    def __repr__(self) -> str:
        return "Odd"


ODD = Odd()
SPLIT = "P('a',) over a=8"
ALL, REVERSED = [0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]


def mesh(devices: slice = slice(None), **sizes: int) -> Mesh:
    grid = np.array(jax.devices("cpu")[:8])[devices].reshape(tuple(sizes.values()))
    return Mesh(grid, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def split(spec: Any, devices: slice = slice(None), **sizes: int) -> jax.Array:
    return jax.device_put(ONE, jax.NamedSharding(mesh(devices, **sizes), spec))


def on(device: int) -> jax.Array:
    return jax.device_put(ONE, jax.devices("cpu")[device])


def fn(x: Any, y: Any = None, n: Any = 0) -> Any:
    return [leaf + 1 for leaf in jax.tree.leaves((x, y))]


def call(*args: Any, **kwargs: Any) -> Callable[[CachedFunction], Any]:
    return lambda cached: cached(*args, **kwargs)


# Two calls of `fn`, with n static, and the differences of the second from the first.
ARGUMENTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], list[Difference]]] = {
    "shape": (
        lambda: call(np.ones((8, 4))),
        lambda: call(np.ones((8, 4, 1))),
        [ArrayChanged("x", "shape", "[8, 4]", "[8, 4, 1]")],
    ),
    "dtype": (
        lambda: call(jnp.ones(8)),
        lambda: call(jnp.ones(8, "bfloat16")),
        [ArrayChanged("x", "dtype", "float32", "bfloat16")],
    ),
    "weak type": (
        lambda: call(jnp.asarray(1.0) * 1),
        lambda: call(jnp.ones(())),
        [ArrayChanged("x", "weak type", "True", "False")],
    ),
    "uncommitted": (
        lambda: call(on(3)),
        lambda: call(ONE),
        [ArrayChanged("x", "sharding", "on cpu:3", "uncommitted")],
    ),
    "spec and mesh": (
        lambda: call(split(P("a"), a=8)),
        lambda: call(split(P(None, "a"), a=4, b=2)),
        [ArrayChanged("x", "sharding", "P('a',) over a=8", "P(None, 'a') over a=4, b=2")],
    ),
    "order of the devices": (
        lambda: call(split(P("a"), a=8)),
        lambda: call(split(P("a"), slice(None, None, -1), a=8)),
        [
            ArrayChanged(
                "x", "sharding", f"{SPLIT} on devices {ALL}", f"{SPLIT} on devices {REVERSED}"
            )
        ],
    ),
    "a leaf more": (
        lambda: call({"w": 1}),
        lambda: call({"w": 1, "b": 2}),
        [ArrayAdded("x['b']")],
    ),
    "a leaf less": (
        lambda: call([1, 2]),
        lambda: call([1]),
        [ArrayRemoved("x[1]")],
    ),
    "list to tuple": (
        lambda: call([1, 2]),
        lambda: call((1, 2)),
        [TreeChanged("PyTreeDef((([*, *],), {}))", "PyTreeDef((((*, *),), {}))")],
    ),
    "position to keyword": (
        lambda: call(1, 2),
        lambda: call(1, y=2),
        [TreeChanged("PyTreeDef(((*, *), {}))", "PyTreeDef(((*,), {'y': *}))")],
    ),
    "static type": (
        lambda: call(1, n=1),
        lambda: call(1, n=True),
        [StaticChanged("n", "1", "True")],
    ),
    "static value by position": (
        lambda: call(1, 2, "a"),
        lambda: call(1, 2, "b"),
        [StaticChanged("n", "'a'", "'b'")],
    ),
    "static value not given": (
        lambda: call(1, n=3),
        lambda: call(1),
        [StaticChanged("n", "3", None)],
    ),
    "static values that read the same": (
        lambda: call(1, n=ODD),
        lambda: call(1, n=Odd()),
        [StaticChanged("n", "Odd", "Odd")],
    ),
    "everything at once": (
        lambda: call(np.ones(8), n=3),
        lambda: call(on(1), 1, n=4),
        [
            ArrayAdded("y"),
            ArrayChanged("x", "shape", "[8]", "[8, 8]"),
            ArrayChanged("x", "sharding", "uncommitted", "on cpu:1"),
            StaticChanged("n", "3", "4"),
        ],
    ),
}


def last_difference(cached: CachedFunction) -> list[Difference]:
    return list(cached.entries[-1].difference)


@pytest.mark.parametrize("case", ARGUMENTS)
def test_what_differs_in_the_arguments_is_named(case: str):
    cached = CachedFunction(fn, static_argnames="n")
    first, second, expected = ARGUMENTS[case]
    first()(cached)
    first()(cached)
    assert (cached.hits, cached.misses) == (1, 1)
    second()(cached)
    assert last_difference(cached) == expected
    assert (cached.misses, cached.fallbacks) == (2, {})
    for one in cached.entries[-1].difference:
        assert str(one) in cached.explain_miss()


SETTINGS: dict[str, tuple[Callable[[], Any], tuple]] = {
    "x64": (lambda: jax.enable_x64(True), ("jax_enable_x64", "off", "on")),
    "matmul precision": (
        lambda: jax.default_matmul_precision("float32"),
        ("jax_default_matmul_precision", "none", "float32"),
    ),
    "promotion": (
        lambda: jax.numpy_dtype_promotion("strict"),
        ("jax_numpy_dtype_promotion", "standard", "strict"),
    ),
    "device": (
        lambda: jax.default_device(jax.devices("cpu")[2]),
        ("jax_default_device", "none", "cpu:2"),
    ),
    "set_mesh": (
        lambda: jax.set_mesh(mesh(a=4, b=2)),
        ("abstract_mesh_context_manager", "none", "a=4, b=2"),
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_what_differs_around_the_call_is_named(case: str):
    cached, (surround, expected) = CachedFunction(fn), SETTINGS[case]
    x = jnp.ones(8)
    cached(x)
    with surround():
        cached(x)
        assert last_difference(cached) == [SettingChanged(*expected)]
        cached(x)
    cached(x)
    assert (cached.hits, cached.misses, cached.fallbacks) == (2, 2, {})


@pytest.mark.filterwarnings("ignore:.*with mesh.*:DeprecationWarning")
def test_the_legacy_mesh_is_named():
    cached, x = CachedFunction(fn), jnp.ones(8)
    cached(x)
    with mesh(a=8):
        cached(x)
    assert SettingChanged("mesh_context_manager", "none", "a=8") in last_difference(cached)


def test_two_meshes_in_force_with_other_devices_are_distinguished():
    cached, x = CachedFunction(fn), jnp.ones(8)
    for devices in (slice(None), slice(None, None, -1)):
        with jax.set_mesh(mesh(devices, a=8)):
            cached(x)
    assert last_difference(cached) == [SettingChanged("concrete_mesh", str(ALL), str(REVERSED))]


def test_the_nearest_is_the_one_that_differs_least():
    cached = CachedFunction(fn)
    cached(np.ones((8, 4)), 1)
    cached(np.ones((2,), np.int32), 1.0)
    cached(np.ones((8, 4)), 1.0)
    assert last_difference(cached) == [ArrayChanged("y", "dtype", "int32", "float32")]


def test_a_signature_that_was_dropped_is_known_when_it_comes_back():
    cached = CachedFunction(fn, size=1)
    for size in (1, 2, 1):
        cached(np.ones(size))
    assert last_difference(cached) == [SameAsDropped(1)]
