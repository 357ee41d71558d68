"""Why it compiled again: every kind of difference between two calls, named in words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardviz.core.backend.call_cache.cached_function import CachedFunction

P = jax.P
ONE = np.ones((8, 8), np.float32)


def mesh(devices: slice = slice(None), **sizes: int) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(
        np.array(jax.devices("cpu")[:8])[devices].reshape(tuple(sizes.values())), tuple(sizes)
    )


def split(spec: Any, devices: slice = slice(None), **sizes: int) -> jax.Array:
    return jax.device_put(ONE, jax.NamedSharding(mesh(devices, **sizes), spec))


def on(device: int) -> jax.Array:
    return jax.device_put(ONE, jax.devices("cpu")[device])


def fn(x: Any, y: Any = None, n: Any = 0) -> Any:
    return [leaf + 1 for leaf in jax.tree.leaves((x, y))]


def call(*args: Any, **kwargs: Any) -> Callable[[CachedFunction], Any]:
    return lambda cached: cached(*args, **kwargs)


#: two calls of `fn`, with n static, and what tells the second from the first
ARGUMENTS: dict[str, tuple[Callable[[], Any], Callable[[], Any], list[str]]] = {
    "shape": (
        lambda: call(np.ones((8, 4))),
        lambda: call(np.ones((16, 4))),
        ["argument x: shape [8, 4] became [16, 4]"],
    ),
    "rank": (
        lambda: call(np.ones(8)),
        lambda: call(np.ones((8, 1))),
        ["argument x: shape [8] became [8, 1]"],
    ),
    "dtype": (
        lambda: call(jnp.ones(8)),
        lambda: call(jnp.ones(8, "bfloat16")),
        ["argument x: dtype float32 became bfloat16"],
    ),
    "weak type": (
        lambda: call(np.float32(1)),
        lambda: call(1.0),
        ["argument x: weak type False became True"],
    ),
    "weak type of an array": (
        lambda: call(jnp.asarray(1.0) * 1),
        lambda: call(jnp.ones(())),
        ["argument x: weak type True became False"],
    ),
    "shape and dtype of the second": (
        lambda: call(1, np.ones(8)),
        lambda: call(1, np.ones(4, np.int32)),
        ["argument y: shape [8] became [4]", "argument y: dtype float32 became int32"],
    ),
    "committed": (
        lambda: call(jnp.asarray(ONE)),
        lambda: call(on(0)),
        ["argument x: sharding: uncommitted became on cpu:0"],
    ),
    "uncommitted": (
        lambda: call(on(3)),
        lambda: call(ONE),
        ["argument x: sharding: on cpu:3 became uncommitted"],
    ),
    "device": (
        lambda: call(on(0)),
        lambda: call(on(1)),
        ["argument x: sharding on cpu:0 became on cpu:1"],
    ),
    "spec": (
        lambda: call(split(P("a"), a=8)),
        lambda: call(split(P(None, "a"), a=8)),
        ["argument x: sharding P('a',) over a=8 became P(None, 'a') over a=8"],
    ),
    "mesh of the sharding": (
        lambda: call(split(P("a"), a=8)),
        lambda: call(split(P("a"), a=4, b=2)),
        ["argument x: sharding P('a',) over a=8 became P('a',) over a=4, b=2"],
    ),
    "order of the devices": (
        lambda: call(split(P("a"), a=8)),
        lambda: call(split(P("a"), slice(None, None, -1), a=8)),
        [
            "argument x: sharding P('a',) over a=8 on devices [0, 1, 2, 3, 4, 5, 6, 7] became"
            " P('a',) over a=8 on devices [7, 6, 5, 4, 3, 2, 1, 0]"
        ],
    ),
    "a leaf more": (
        lambda: call({"w": 1}),
        lambda: call({"w": 1, "b": 2}),
        ["tree: came \"x['b']\""],
    ),
    "a leaf less": (
        lambda: call([1, 2]),
        lambda: call([1]),
        ["tree: went 'x[1]'"],
    ),
    "an argument more": (lambda: call(1), lambda: call(1, 2), ["tree: came 'y'"]),
    "list to tuple": (
        lambda: call([1, 2]),
        lambda: call((1, 2)),
        [
            "tree: PyTreeDef((([*, *],), {})) became PyTreeDef((((*, *),), {}))",
        ],
    ),
    "position to keyword": (
        lambda: call(1, 2),
        lambda: call(1, y=2),
        ["tree: PyTreeDef(((*, *), {})) became PyTreeDef(((*,), {'y': *}))"],
    ),
    "a keyword without arrays": (
        lambda: call(1),
        lambda: call(1, y=None),
        ["tree: PyTreeDef(((*,), {})) became PyTreeDef(((*,), {'y': None}))"],
    ),
    "static value": (
        lambda: call(1, n=3),
        lambda: call(1, n=4),
        ["static argument n: 3 became 4"],
    ),
    "static type": (
        lambda: call(1, n=1),
        lambda: call(1, n=True),
        ["static argument n: 1 became True"],
    ),
    "static value by position": (
        lambda: call(1, 2, "a"),
        lambda: call(1, 2, "b"),
        ["static argument n: 'a' became 'b'"],
    ),
    "static value not given": (
        lambda: call(1, n=3),
        lambda: call(1),
        ["static argument n: 3 became not given"],
    ),
    "static value given": (
        lambda: call(1),
        lambda: call(1, n=3),
        ["static argument n: not given became 3"],
    ),
    "everything at once": (
        lambda: call(np.ones(8), n=3),
        lambda: call(on(1), 1, n=4),
        [
            "tree: came 'y'",
            "argument x: shape [8] became [8, 8]",
            "argument x: sharding: uncommitted became on cpu:1",
            "static argument n: 3 became 4",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
def test_what_differs_in_the_arguments_is_named(case: str):
    cached = CachedFunction(fn, static_argnames="n")
    first, second, words = ARGUMENTS[case]
    first()(cached)
    first()(cached)
    assert (cached.hits, cached.misses) == (1, 1)
    second()(cached)
    found = cached.entries[-1].difference
    assert list(found) == words
    assert cached.explain_miss().endswith(f"entry 1: {'; '.join(found)}.")
    assert (cached.misses, cached.fallbacks) == (2, {})


SETTINGS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "x64": (lambda: jax.enable_x64(True), ["x64 mode: off became on"]),
    "matmul precision": (
        lambda: jax.default_matmul_precision("float32"),
        ["default matmul precision: none became float32"],
    ),
    "promotion": (
        lambda: jax.numpy_dtype_promotion("strict"),
        ["numpy dtype promotion: standard became strict"],
    ),
    "device": (
        lambda: jax.default_device(jax.devices("cpu")[2]),
        ["default device: none became cpu:2"],
    ),
    "set_mesh": (
        lambda: jax.set_mesh(mesh(a=4, b=2)),
        ["the mesh of jax.set_mesh: none became a=4, b=2"],
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_what_differs_around_the_call_is_named(case: str):
    cached, (surround, words) = CachedFunction(fn), SETTINGS[case]
    x = jnp.ones(8)
    cached(x)
    with surround():
        cached(x)
        assert list(cached.entries[-1].difference) == words
        cached(x)
    cached(x)
    assert (cached.hits, cached.misses, cached.fallbacks) == (2, 2, {})


@pytest.mark.filterwarnings("ignore:.*with mesh.*:DeprecationWarning")
def test_the_legacy_mesh_is_named():
    cached, x = CachedFunction(fn), jnp.ones(8)
    cached(x)
    with mesh(a=8):
        cached(x)
    assert "the mesh of `with mesh:`: none became a=8" in cached.explain_miss()


def test_two_meshes_in_force_with_other_devices_are_distinguished():
    cached, x = CachedFunction(fn), jnp.ones(8)
    for devices in (slice(None), slice(None, None, -1)):
        with jax.set_mesh(mesh(devices, a=8)):
            cached(x)
    assert cached.entries[-1].difference == (
        "the devices of the mesh in force: [0, 1, 2, 3, 4, 5, 6, 7] became"
        " [7, 6, 5, 4, 3, 2, 1, 0]",
    )


def test_the_nearest_is_the_one_that_differs_least():
    cached = CachedFunction(fn)
    cached(np.ones((8, 4)), 1)
    cached(np.ones((2,), np.int32), 1.0)
    cached(np.ones((8, 4)), 1.0)
    assert "the nearest is entry 1: argument y: dtype int32 became float32" in cached.explain_miss()


def test_the_first_miss_has_nothing_before_it():
    cached = CachedFunction(fn)
    assert cached.explain_miss() == "fn was never compiled."
    cached(1)
    assert cached.explain_miss() == (
        "fn was compiled for (x: weak int32[]), entry 1; nothing was compiled before."
    )
    assert cached.entries[0].difference == ()


def test_every_miss_is_kept():
    cached = CachedFunction(fn)
    for size in (1, 2, 3):
        cached(np.ones(size))
    assert [m.partition(";")[0][-7:] for m in cached.explain_misses()] == [
        "entry 1", "entry 2", "entry 3",
    ]  # fmt: skip


def test_a_signature_that_was_dropped_is_known_when_it_comes_back():
    cached = CachedFunction(fn, size=1)
    for size in (1, 2, 1):
        cached(np.ones(size))
    assert cached.explain_miss().endswith(
        "it is the same as entry 1, which was dropped: the cache holds 1 signature."
    )


class Odd:
    """Equal to nothing but itself, and always read the same."""

    def __repr__(self) -> str:
        return "Odd"


def test_static_values_that_read_the_same_are_distinguished():
    cached = CachedFunction(fn, static_argnums=2)
    for _ in range(2):
        with contextlib.suppress(TypeError):
            cached(1, 2, Odd())
    assert cached.entries[-1].difference == (
        "static argument n: Odd became another Odd that reads the same",
    )
