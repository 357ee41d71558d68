"""What a call of a function under sv.watch costs beyond jax.jit, in processor time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shardviz as sv
from tests.bench.timing import Table, text

TARGET = 10e-6  # 1 % of a step at 1,000 calls per second
BATCH, ROUNDS = 300, 60


def each_call(run: Callable[..., Any], args: tuple[Any, ...]) -> float:
    """Processor seconds of one call, in a batch of them."""
    start = time.process_time()
    for _ in range(BATCH):
        run(*args)
    return (time.process_time() - start) / BATCH


def beyond(run: Callable[..., Any], bare: Callable[..., Any], args: tuple[Any, ...]) -> tuple:
    """Seconds of a call by `run` beyond one by `bare`, and of both.

    Both alternately, and the fastest batch of each: other load can only make a call slower.
    """
    jax.block_until_ready((run(*args), bare(*args)))
    gc.collect()
    pairs = [(each_call(run, args), each_call(bare, args)) for _ in range(ROUNDS)]
    ours, theirs = (min(times) for times in zip(*pairs, strict=True))
    return ours - theirs, ours, theirs


def first(*arrays: Any) -> Any:
    """Work on the first array alone, so that the device takes no time."""
    return jax.tree.leaves(arrays)[0] + 1


def parameters(leaves: int) -> Any:
    """A tree of parameters, six a layer."""
    return {
        f"layer{n}": {name: jnp.ones(2) for name in ("q", "k", "v", "o", "up", "down")}
        for n in range(leaves // 6)
    }


def cases() -> list[tuple[str, bool, tuple[Any, ...], list[tuple[Any, ...]]]]:
    """What is called, whether the target applies, and arguments of other signatures."""
    x, y = jnp.ones((8,)), jnp.ones((9,))
    mesh = jax.make_mesh((len(jax.devices()),), ("data",))
    split = jax.device_put(x, jax.NamedSharding(mesh, jax.P()))
    large = parameters(300)
    more = {**large, "head": x}
    return [
        ("one array", True, (x,), []),
        ("one array with a NamedSharding", True, (split,), []),
        ("one array, 2 signatures", True, (x,), [(y,)]),
        ("300 leaves", True, (large, x), []),
        ("300 leaves, 2 shapes of the batch", True, (large, x), [(large, y)]),
        ("300 leaves, 20 shapes of the batch", True, (large, x), batches(large)),
        ("300 leaves, 2 trees", True, (large, x), [(more, x)]),
    ]


def batches(tree: Any) -> list[tuple[Any, ...]]:
    """Arguments whose batches differ."""
    return [(tree, np.ones(n, np.float32)) for n in range(20, 39)]


def main() -> int:
    """Prints the table; how many targets were missed."""
    table = Table()
    for what, bound, args, others in cases():
        watched, jitted = sv.watch(first), jax.jit(first)
        for other in others:
            watched(*other)
            jitted(*other)
        extra, ours, theirs = beyond(watched, jitted, args)
        note = f"({text(ours)} - {text(theirs)})"
        wanted = f"<= {text(TARGET)}" if bound else ""
        table.row(f"a call: {what}", wanted, text(extra), not bound or extra <= TARGET, note)
    jitted = jax.jit(lambda *arrays: first(*arrays))
    _, _, args, _ = cases()[3]
    jitted(*args)
    extra, ours, theirs = beyond(sv.watch(jitted), jitted, args)
    note = f"({text(ours)} - {text(theirs)})"
    row = "a call: 300 leaves, compiled before sv.watch"
    table.row(row, f"<= {text(TARGET)}", text(extra), extra <= TARGET, note)
    return table.missed
