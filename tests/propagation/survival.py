"""Plans, one after another, what has ended the process before: run as a program of its own.

Each line that it prints is the name of a program and what became of its plan.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from shardviz.plans.backend.build_plan import plan_program
from tests.propagation.planning import program

X = ((16, 32), "data, model")


ROWS = P("data")


def doubled(x, split=ROWS, **options):
    return jax.shard_map(lambda x: x * 2, in_specs=split, out_specs=split, **options)(x)


def partly(x):
    return doubled(x, axis_names={"data"})


def scanned(fn):
    return lambda x: lax.scan(lambda x, _: (fn(x), None), x, None, length=3)[0]


PROGRAMS = {
    "shard_map under jit": jax.jit(doubled),
    "shard_map under jit, whole": jax.jit(lambda x: doubled(x, P(), check_vma=False)),
    "shard_map under jit, over one axis": jax.jit(partly),
    "two shard_maps under jit": jax.jit(lambda x: doubled(doubled(x))),
    "shard_map in a scan": scanned(doubled),
    "shard_map in a scan, gradient": jax.grad(lambda x: jnp.sum(jnp.sin(scanned(doubled)(x)))),
    "shard_map in a scan of remat": scanned(jax.checkpoint(doubled)),
    "shard_map in a branch": lambda x: lax.cond(x[0, 0] > 0, doubled, jnp.sin, x),
    "shard_map in a while loop": lambda x: lax.fori_loop(0, 3, lambda i, x: doubled(x), x),
}


def main() -> None:
    """Plans every program twice and says what came of it."""
    for name, fn in PROGRAMS.items():
        print(f"{name}: ", end="", flush=True)
        for _ in range(2):
            plan = plan_program(program(fn, x=X))
        print(plan.error or "planned", flush=True)


if __name__ == "__main__":
    main()
