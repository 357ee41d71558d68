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

from shardviz.core.backend.shardy.build_plan import plan_program
from tests.propagation.planning import program

X = ((16, 32), "data, model")


ROWS = P("data")


def doubled(x, split=ROWS, **options):
    return jax.shard_map(lambda x: x * 2, in_specs=split, out_specs=split, **options)(x)


def partly(x):
    return doubled(x, axis_names={"data"})


def scanned(fn):
    return lambda x: lax.scan(lambda x, _: (fn(x), None), x, None, length=3)[0]


def alike(x, y):
    from jax.experimental.shard_alike import shard_alike

    return shard_alike(x, y)


def constrained(x):
    return lax.with_sharding_constraint(x * 2, P("model", None))


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
ALIKE = {
    "alike: a constant": lambda x: alike(jnp.ones((16, 32)), x)[0] + x[0, 0],
    "alike: a constraint": lambda x: alike(constrained(x), jnp.sin(x))[1] + 1,
    "alike: in a scan": scanned(lambda x: alike(jnp.zeros_like(x), x)[0]),
    "alike: in a branch": lambda x: lax.cond(
        x[0, 0] > 0, lambda x: alike(x, jnp.ones_like(x))[1], jnp.sin, x
    ),
    "alike: in a function called twice": lambda x: sum(
        jax.jit(lambda x: alike(x, jnp.zeros_like(x))[1])(y) for y in (x, x * 2)
    ),
    "alike: gradient": jax.grad(lambda x: jnp.sum(alike(x * 2, jnp.ones_like(x))[1])),
    "alike: in a shard_map": lambda x: jax.shard_map(
        lambda x: alike(x, x * 2)[1], in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )(x),
}


def main() -> None:
    """Plans every program twice and says what came of it."""
    for name, fn in (PROGRAMS | ALIKE).items():
        print(f"{name}: ", end="", flush=True)
        for _ in range(2):
            plan = plan_program(program(fn, x=X))
        print(plan.error or "planned", flush=True)


if __name__ == "__main__":
    main()
