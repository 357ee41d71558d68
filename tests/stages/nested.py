"""Programs with functions in each other, and constraints, shard_maps and derivatives around them.

They are compared with XLA's propagation alone, so their compiles end before the partitioner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.stages.programs import Case

wsc = jax.lax.with_sharding_constraint
_X = ("x", (16, 16, 16), "None, model, data")
_Y = ("y", (16, 16, 16), "data, None, None")
_ROWS = P("data")
_ASKED = P(None, "model", None)

# What jax lowers to calls of functions.
CALLED: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "softmax": jax.nn.softmax,
    "where": lambda x: jnp.where(x > 0, x, 1),
    "take": lambda x: jnp.take(x, jnp.arange(16)[::-1], axis=1),
    "sort": lambda x: jnp.sort(x, axis=0),
    "clip": lambda x: jnp.clip(x, -1, 1),
    "roll": lambda x: jnp.roll(x, 2, axis=2),
    "cumsum": lambda x: jnp.cumsum(x, axis=0),
    "variance": lambda x: x - jnp.var(x, axis=-1, keepdims=True),
    "triangle": jnp.tril,
}


def _followed(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: wsc(fn(x), _ASKED) * 2


def _inside(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    inner = jax.jit(lambda x: fn(wsc(jnp.sin(x), P("data", None, "model"))))
    return lambda x: inner(inner(x)) + 1


@jax.jit
def _layer(x: Any, y: Any) -> Any:
    return jax.nn.relu(wsc(x @ y, P("data", None, "model"))) + x


@jax.jit
def _block(x: Any, y: Any) -> Any:
    return wsc(_layer(_layer(x, y), y), _ASKED)


@jax.custom_jvp
def _scaled(x: Any) -> Any:
    return jax.nn.silu(x) * 2


_scaled.defjvp(lambda p, t: (_scaled(*p), t[0] * wsc(jax.nn.relu(p[0]), _ASKED)))


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jax.nn.gelu(x)


_clipped.defvjp(
    lambda x: (jax.nn.gelu(x), x),
    lambda x, g: (wsc(jnp.clip(g, -1, 1), P("data")) * jax.nn.relu(x),),
)


def _manual(fn: Callable[[Any], Any], split: P = _ROWS, **names: Any) -> Any:
    def run(x: Any) -> Any:
        options: dict[str, Any] = {"in_specs": split, "out_specs": split, "check_vma": False}
        return jax.shard_map(fn, **options, **names)(x)

    return run


def _requested(fn: Callable[[Any], Any], into: P | None, out: P | None) -> Any:
    def run(x: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        named = [None if s is None else NamedSharding(mesh, s) for s in (into, out)]
        return jax.jit(fn, in_shardings=named[0], out_shardings=named[1])(x) + 1

    return run


def _grad(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda x, *rest: jnp.sum(fn(x, *rest) ** 2))


def _scan(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: jax.lax.scan(lambda c, row: (fn(c, y), row), x, y)[0]


def _repeated(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: jax.lax.fori_loop(0, 3, lambda i, c: fn(c, y), x)


def _until(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: jax.lax.while_loop(lambda c: jnp.sum(c) < 9, lambda c: fn(c, y), x)


def _read(x: Any, y: Any) -> Any:
    """A loop that reads from outside what a constraint, or an argument, has split otherwise."""
    kept = wsc(jax.nn.silu(y), P(None, None, None))
    return jax.lax.fori_loop(0, 3, lambda i, c: jax.nn.relu(wsc(c, _ASKED) + kept) - y, x)


ONE: dict[str, Callable[[Any], Any]] = {
    **{f"a constraint after {name}": _followed(fn) for name, fn in CALLED.items()},
    **{f"{name} in a function with a constraint": _inside(fn) for name, fn in CALLED.items()},
    "shard_map of silu": _manual(jax.nn.silu),
    "shard_map after relu": lambda x: _manual(jnp.sin)(jax.nn.relu(x)),
    "shard_map over one axis, where inside": _manual(CALLED["where"], axis_names={"data"}),
    "shard_map in a function": jax.jit(lambda x: jax.jit(_manual(jax.nn.gelu))(x) * 2),
    "two shard_maps in functions": lambda x: jax.jit(_manual(jnp.sin))(
        jax.jit(_manual(jax.nn.relu, P(None, "model")))(x)
    ),
    "shard_map, gradient": _grad(_manual(lambda x: jax.nn.silu(x) * 2)),
    "shard_map before a constraint": _followed(_manual(jax.nn.relu)),
    "shardings requested of a function": _requested(jax.nn.silu, P("data"), _ASKED),
    "a sharding requested of a result": _requested(jax.nn.softmax, None, P("model")),
    "functions with requested shardings": lambda x: _requested(jnp.sin, _ASKED, None)(
        _requested(jax.nn.relu, None, P("data"))(x)
    ),
    "custom_jvp, forward": lambda x: wsc(_scaled(x), _ASKED) + 1,
    "custom_jvp in functions, gradient": _grad(jax.jit(lambda x: _scaled(jax.nn.relu(x)))),
    "custom_vjp, forward": lambda x: wsc(_clipped(x), _ASKED) + 1,
    "custom_vjp in functions, gradient": _grad(jax.jit(lambda x: _clipped(jax.nn.silu(x)))),
    "custom_vjp in remat, gradient": _grad(jax.checkpoint(lambda x: _clipped(_clipped(x)))),
    "what nothing reads": lambda x: (wsc(jax.nn.relu(x), _ASKED), jnp.tanh(x))[1] * 2,
}
TWO: dict[str, Callable[..., Any]] = {
    "functions in each other": _block,
    "functions in each other, gradient": _grad(_block),
    "remat of functions, gradient": _grad(jax.checkpoint(_block)),
    "scan of functions": _scan(_block),
    "scan of functions, gradient": _grad(_scan(_layer)),
    "loop of functions": _repeated(_block),
    "while loop of functions": _until(_block),
    "branches of functions": lambda x, y: jax.lax.cond(jnp.sum(x) > 0, _layer, _block, x, y),
    "vmap of functions": jax.vmap(jax.jit(lambda x, y: jax.nn.relu(x @ y) + jnp.sort(x))),
    "a loop that reads what is split otherwise": _read,
    "a constraint between functions": lambda x, y: jax.nn.silu(wsc(jax.nn.relu(x * y), _ASKED)),
    "functions of what is joined": lambda x, y: wsc(jax.nn.relu(jnp.concatenate([x, y])), _ASKED),
    "a function called with other shardings": lambda x, y: _layer(x, y) + _layer(y, x),
}
CASES = (
    *(Case(name, fn, (_X,)) for name, fn in ONE.items()),
    *(Case(name, fn, (_X, _Y)) for name, fn in TWO.items()),
)
