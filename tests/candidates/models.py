"""Functions whose changes are tried; each line is one that a change may name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def two_layers(w: Any, x: Any, spec: P | None = None) -> Any:
    """The same code twice, with a constraint in it or without."""
    for _ in range(2):
        h = jnp.tanh(x) @ w
        if spec is not None:
            h = jax.lax.with_sharding_constraint(h, spec)
        x = h * 2
    return (x * x).sum()


def widths(first: Any, second: Any, third: Any, x: Any, spec: P | None = None) -> Any:
    """Layers in a Python loop, of which the last has another width."""
    for w in (first, second, third):
        h = x @ w
        if spec is not None and h.shape == (128, 256):
            h = jax.lax.with_sharding_constraint(h, spec)
        x = jax.nn.gelu(h)
    return (x * x).sum()


def scanned(ws: Any, x: Any, spec: P | None = None) -> Any:
    """Layers in a loop that are computed again for the gradient."""

    def body(x: Any, w: Any) -> Any:
        h = x @ w
        if spec is not None:
            h = jax.lax.with_sharding_constraint(h, spec)
        return jnp.tanh(h), None

    return jax.lax.scan(jax.checkpoint(body), x, ws)[0].sum()


def constrained(x: Any, w: Any) -> Any:
    h = jax.lax.with_sharding_constraint(jnp.tanh(x), P("data", None))
    return h @ w


def printed(x: Any) -> Any:
    jax.debug.print("{}", x[0, 0])
    return x.sum(0)


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def other_layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w) + 1


def variable(x: Any, w: Any) -> Any:
    h = x @ w
    return jnp.tanh(h)
