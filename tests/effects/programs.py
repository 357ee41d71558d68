"""Programs with effects of every kind, in every place: what the predictions are held against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P

Fn = Callable[[Any], Any]
STRUCT = jax.ShapeDtypeStruct((8,), jnp.float32)


def like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def host(value: Any) -> Any:
    return np.asarray(value)


def nothing(x):
    return x * 2


def prints(x):
    jax.debug.print("{x}", x=x)
    return x


def prints_in_order(x):
    jax.debug.print("{x}", x=x, ordered=True)
    return x


def reports(x):
    jax.debug.callback(host, x)
    return x


def asks(x):
    return io_callback(host, like(x), x)


def asks_in_order(x):
    return io_callback(host, like(x), x, ordered=True)


def asks_purely(x):
    return jax.pure_callback(host, like(x), x, vmap_method="sequential")


def uses_a_ref(x):
    ref = jax.new_ref(x)
    ref[...] = ref[...] + 1
    return ref[...]


def both_orders(x):
    return prints_in_order(asks_in_order(x))


KINDS: dict[str, Fn] = {
    "no effects": nothing,
    "print": prints,
    "print, ordered": prints_in_order,
    "debug callback": reports,
    "io": asks,
    "io, ordered": asks_in_order,
    "pure callback": asks_purely,
    "ref": uses_a_ref,
    "two orders": both_orders,
}


def in_custom_vjp(f: Fn) -> Fn:
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), None), lambda _, tangent: (tangent,))
    return g


def in_a_backward_pass(f: Fn) -> Fn:
    g = jax.custom_vjp(lambda x: x * 2)
    g.defvjp(lambda x: (x * 2, None), lambda _, tangent: (f(tangent),))
    return jax.grad(lambda x: g(x).sum())


def in_an_optimized_vjp(f: Fn) -> Fn:
    g = jax.custom_vjp(f, nondiff_argnums=())
    g.defvjp(lambda x: (f(x), None), lambda _, t: (t,), optimize_remat=True)
    return jax.grad(lambda x: g(x).sum())


def in_shard_map(f: Fn) -> Fn:
    return lambda x: jax.shard_map(f, in_specs=P("d"), out_specs=P("d"))(x)


def in_part_of_the_mesh(f: Fn) -> Fn:
    """Over axis `a` alone; what other axes do is left to the compiler."""
    return lambda x: jax.shard_map(f, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})(x)


PLACES: dict[str, Callable[[Fn], Fn]] = {
    "top": lambda f: f,
    "jit": lambda f: jax.jit(lambda x: f(x)),
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "fori": lambda f: lambda x: jax.lax.fori_loop(0, 2, lambda i, c: f(c), x),
    "while": lambda f: (
        lambda x: jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]
    ),
    "while's condition": lambda f: (
        lambda x: jax.lax.while_loop(lambda c: f(c).sum() < 2, lambda c: c + 1, x)
    ),
    "cond": lambda f: lambda x: jax.lax.cond(x.sum() > 0, f, lambda y: y, x),
    "remat": lambda f: jax.checkpoint(lambda x: f(x)),
    "gradient of remat": lambda f: jax.grad(
        lambda x: jax.checkpoint(lambda y: jnp.sin(f(y)))(x).sum()
    ),
    "custom_vjp": in_custom_vjp,
    "backward pass": in_a_backward_pass,
    "optimized custom_vjp": in_an_optimized_vjp,
    "gradient": lambda f: jax.grad(lambda x: f(x).sum()),
    "vmap": lambda f: jax.vmap(lambda x: f(x)),
    "vmap of while": lambda f: jax.vmap(
        lambda x: jax.lax.while_loop(lambda c: c < 2, lambda c: f(c) + 1, x)
    ),
    "vmap of cond": lambda f: jax.vmap(lambda x: jax.lax.cond(x > 2, f, lambda y: y, x)),
    "shard_map": in_shard_map,
    "scan in shard_map": lambda f: in_shard_map(PLACES["scan"](f)),
    "cond in scan": lambda f: PLACES["scan"](PLACES["cond"](f)),
}

PROGRAMS: dict[str, Fn] = {
    f"{kind} in {place}": wrap(f) for place, wrap in PLACES.items() for kind, f in KINDS.items()
}
