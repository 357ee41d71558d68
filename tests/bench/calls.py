"""How much longer a cached call takes than a call of its executable, per hit."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardviz.runs.backend.cached_function import CachedFunction
from tests.bench.timing import Table, text

TARGET = 10e-6
BATCH, ROUNDS = 500, 120


def each_call(run: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Seconds of one call, in a batch of them."""
    start = time.perf_counter()
    for _ in range(BATCH):
        run(*args)
    return (time.perf_counter() - start) / BATCH


def beyond(run: Callable[..., Any], bare: Callable[..., Any], args: tuple[Any, ...]) -> tuple:
    """Seconds of a call by `run` beyond one by `bare`, and of both.

    Both alternately, and the fastest batch of each: other load can only make a call slower.
    """
    jax.block_until_ready((run(*args), bare(*args)))
    gc.collect()
    pairs = [(each_call(run, args), each_call(bare, args)) for _ in range(ROUNDS)]
    ours, theirs = (min(times) for times in zip(*pairs, strict=True))
    return ours - theirs, ours, theirs


def alike(x: Any) -> Any:
    """Another array with the type and sharding of `x`, which shares no object with it."""
    if not isinstance(x, jax.Array) or not x.committed:
        return x
    return jax.device_put(np.ones(x.shape, x.dtype), copied(x.sharding))


def copied(sharding: Any) -> Any:
    """An equal sharding that is another object, as another part of a program would make it."""
    if isinstance(sharding, jax.NamedSharding):
        return jax.NamedSharding(sharding.mesh, sharding.spec)
    return jax.sharding.SingleDeviceSharding(*sharding.device_set)


def add(*arrays: Any) -> Any:
    """The sum of the arrays."""
    return sum(arrays[1:], start=arrays[0])


def total(tree: Any) -> Any:
    """The sum of a tree's arrays."""
    return sum(jax.tree.leaves(tree))


def cases() -> list[tuple[str, bool, Callable[..., Any], tuple[Any, ...]]]:
    """What is called, and whether the target applies to it."""
    one = jnp.ones((8,))
    placed = jax.device_put(one, jax.devices()[0])
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    split = jax.device_put(one, jax.NamedSharding(mesh, jax.P()))
    tree = {"w": one, "b": (one, one)}
    return [
        ("one array, uncommitted", True, add, (one,)),
        ("one array, committed to a device", True, add, (placed,)),
        ("one array, with a NamedSharding", True, add, (split,)),
        ("four arrays", False, add, (one,) * 4),
        ("a tree of three arrays", False, total, (tree,)),
        ("a NumPy array", False, add, (np.ones((8,), np.float32),)),
    ]


def main() -> int:
    """Prints the table; how many targets were missed.

    The first call has other arrays than the later ones, so that keys are equal but not identical.
    """
    table = Table()
    for what, bound, fn, args in cases():
        cached = CachedFunction(fn)
        executable = jax.jit(fn).lower(*args).compile()
        cached(*map(alike, args))
        extra, ours, theirs = beyond(cached, executable, args)
        by_jit = beyond(jax.jit(fn), executable, args)[1]
        assert cached.misses == 1, cached
        assert not cached.fallbacks, cached
        note = f"({text(ours)} - {text(theirs)}; jax.jit {text(by_jit)})"
        wanted = f"<= {text(TARGET)}" if bound else ""
        row = f"a hit, beyond the executable: {what}"
        table.row(row, wanted, text(extra), not bound or extra <= TARGET, note)
    return table.missed
