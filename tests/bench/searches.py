"""Searches of 40 small programs: the optimum of an exhaustive compile in each."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

TARGETS = {4: "tpu:v5e:2x2", 8: "tpu:v5e:2x4"}
ONE, TWO = ("data=4", "data=8"), ("data=2, model=2", "data=4, model=2")


def main() -> int:
    """Compares every search with all combinations; how many missed the optimum."""
    missed = compiles = 0
    for number, program in enumerate(programs(), 1):
        best, compiled = searched(program)
        least, every = exhaustive(program)
        found = best is not None and best <= least * (1 + 1e-9)
        missed, compiles = missed + (not found), compiles + compiled
        print(
            f"{number:2} {program}: {'the optimum' if found else f'MISSED, {best}'},"
            f" {least * 1e6:.3f} µs, in {compiled} compiles of {every}",
            flush=True,
        )
    print(f"{missed} missed; {compiles:,} compiles")
    return missed


def searched(program: Any) -> tuple[float | None, int]:
    """The least seconds that a search finds, and how many programs it compiled."""
    import shardviz as sv

    target = TARGETS[program.mesh.size]
    found = sv.search(program, over="arguments", target=target, seconds=3600.0)
    return found.best and found.best.least_seconds, found.compiled


def exhaustive(program: Any) -> tuple[float, int]:
    """The least seconds of all specs of all arguments, each compiled, and how many."""
    import shardviz as sv

    least, count, specs = math.inf, 0, []
    for array in program.arrays:
        specs.append(list(every_spec(len(array.shape), program.mesh.axis_names)))
    for some in itertools.product(*specs):
        arrays = []
        for array, spec in zip(program.arrays, some, strict=True):
            arrays.append(array.replace(spec=spec))
        changed = program.replace(arrays=tuple(arrays))
        report = sv.compile(changed, target=TARGETS[program.mesh.size])
        assert report.error is None, report.error
        least, count = min(least, report.roofline.seconds), count + 1
    return least, count


def every_spec(rank: int, axes: tuple[str, ...]) -> Iterator[Any]:
    """All ways to give each axis to one dimension, or to none."""
    from shardviz.base.partition_spec import Spec

    for places in itertools.product(range(rank + 1), repeat=len(axes)):
        entries: list[tuple[str, ...]] = [()] * (rank + 1)
        for axis, place in zip(axes, places, strict=True):
            entries[place] += (axis,)
        yield Spec(tuple(entries[:rank]))


def programs() -> Iterator[Any]:
    """The 40 programs."""
    import jax
    import jax.numpy as jnp

    import shardviz as sv

    def matmul(x, w):
        return x @ w

    def gradient(x, w):
        return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

    def chain(x, w, v):
        return x @ w @ v

    def mlp(x, w, v):
        return jax.nn.relu(x @ w) @ v

    def mlp_gradient(x, w, v):
        return jax.grad(lambda ws: jnp.mean(mlp(x, *ws) ** 2))((w, v))

    def attention(q, k, v):
        return jax.nn.softmax(q @ k.T / 16) @ v

    def reduced(x):
        return jnp.sum(jnp.tanh(x), axis=1)

    def normed(x):
        return x / jnp.sqrt(jnp.mean(x**2, axis=0) + 1e-6)

    def gram(x):
        return x.T @ x

    def added(x, y):
        return jnp.exp(x) + y.T

    def weighted(x, w):
        return jax.nn.softmax(x) @ w

    def both(x, w, y):
        return x @ w, x.T @ y

    cases = (
        (matmul, ((1024, 512), (512, 256)), (*ONE, *TWO)),
        (matmul, ((256, 4096), (4096, 256)), ONE),
        (matmul, ((4096, 256), (256, 2048)), ONE[:1]),
        (gradient, ((1024, 512), (512, 256)), (*ONE, TWO[0])),
        (gradient, ((128, 2048), (2048, 1024)), ONE[:1]),
        (chain, ((2048, 256), (256, 1024), (1024, 256)), ONE),
        (chain, ((128, 1024), (1024, 1024), (1024, 1024)), ONE[:1]),
        (mlp, ((1024, 512), (512, 2048), (2048, 512)), ONE),
        (mlp, ((64, 1024), (1024, 4096), (4096, 1024)), ONE[:1]),
        (mlp_gradient, ((1024, 256), (256, 1024), (1024, 256)), ONE),
        (attention, ((1024, 128), (1024, 128), (1024, 128)), ONE),
        (attention, ((256, 128), (4096, 128), (4096, 128)), ONE[:1]),
        (reduced, ((2048, 1024),), (*ONE, *TWO)),
        (normed, ((2048, 1024),), (*ONE, TWO[0])),
        (gram, ((2048, 512),), (*ONE, TWO[0])),
        (added, ((1024, 2048), (2048, 1024)), (*ONE, TWO[0])),
        (weighted, ((1024, 512), (512, 1024)), (*ONE, TWO[0])),
        (both, ((1024, 512), (512, 256), (1024, 128)), ONE),
    )
    for fn, shapes, meshes in cases:
        for mesh in meshes:
            arrays = []
            for name, shape in zip("xyz", shapes, strict=False):
                arrays.append(sv.array(name, shape, dtype="bfloat16"))
            yield sv.program(fn, *arrays, mesh=mesh)


if __name__ == "__main__":
    sys.exit(main())
