"""Programs with something to keep: loops, checkpoints, donation, branches, large results."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def _layer(x, w):
    return jnp.tanh(x @ w) + x


def _loss(w, x, layer=_layer):
    return jnp.mean(jax.lax.scan(lambda c, w: (layer(c, w), None), x, w)[0] ** 2)


def step(w, x):
    return w - 0.1 * jax.grad(_loss)(w, x)


def donated_step(w, x):
    return w - 0.1 * jax.grad(_loss)(w, x)


def checkpointed_step(w, x):
    return w - 0.1 * jax.grad(lambda w: _loss(w, x, jax.checkpoint(_layer)))(w)


def half_precision_step(w, x):
    def loss(w):
        return _loss(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).astype(jnp.float32)

    return w - 0.1 * jax.grad(loss)(w)


def microbatches(w, x):
    def body(total, x):
        return total + jax.grad(_loss)(w, x), None

    parts = x.reshape(4, -1, x.shape[-1])
    return jax.lax.scan(body, jnp.zeros_like(w), parts)[0]


def unrolled_gradient(w, x):
    def loss(w):
        y = x
        for number in range(4):
            y = _layer(y, w[number])
        return jnp.mean(y**2)

    return jax.value_and_grad(loss)(w)


def momentum(w, x):
    gradient = jax.grad(_loss)(w, x)
    mean = 0.1 * gradient
    return w - mean / (jnp.sqrt(gradient**2) + 1e-6), mean


def every_state(w, x):
    return jax.lax.scan(lambda c, w: (_layer(c, w),) * 2, x, w)[1]


def two_products(w, x):
    return jax.nn.relu(x @ w) @ w.T


def softmax_gradient(w, x):
    return jax.grad(lambda w: jnp.sum(jax.nn.softmax(x @ w) ** 2))(w)


def branches(w, x):
    return jax.lax.cond(x[0, 0] > 0, lambda: jnp.sin(x @ w), lambda: (x * 2) @ w @ w)


def until(w, x):
    return jax.lax.while_loop(lambda c: jnp.sum(c) < 1e3, lambda c: jnp.tanh(c @ w) * 2, x)


def nested_loops(w, x):
    def outer(_, c):
        return jax.lax.fori_loop(0, 3, lambda _, d: jnp.tanh(d @ w), c) + x

    return jax.lax.fori_loop(0, 5, outer, x)


def sorted_rows(w, x):
    return jnp.sort(x @ w, axis=0), jnp.cumsum(x, axis=0)


def one_slice(w, x):
    return jax.lax.dynamic_update_slice(x, (x @ w)[:16], (0, 0))


def normal_noise(w, x):
    return x @ w + jax.random.normal(jax.random.key(0), (x.shape[0], w.shape[1]))


def top(w, x):
    return jax.lax.top_k(x @ w, 8)


def called_twice(w, x):
    inner = jax.jit(lambda x: jnp.cos(x @ w))
    return inner(inner(x))


def vmapped(w, x):
    return jax.vmap(lambda row: jnp.outer(row[:64], row[64:128]) @ w[:64])(x[:64])


def gathered(w, x):
    return x[jnp.argsort(x[:, 0])] @ w


OF_ONE_MATRIX = (
    two_products, softmax_gradient, branches, until, nested_loops, sorted_rows, one_slice,
    normal_noise, top, called_twice, vmapped, gathered,
)  # fmt: skip
DONATING = (donated_step,)
PROGRAMS = (
    step, donated_step, checkpointed_step, half_precision_step, microbatches, unrolled_gradient,
    momentum, every_state, *OF_ONE_MATRIX,
)  # fmt: skip
