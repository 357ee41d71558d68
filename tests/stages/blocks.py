"""What the larger cases of `programs` compute: parts of models, forward and backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

wsc = jax.lax.with_sharding_constraint


def mlp(w_in, w_out, x):
    return jax.nn.gelu(x @ w_in) @ w_out


def mlp_gradient(w_in, w_out, x):
    return jax.value_and_grad(lambda w: jnp.mean(mlp(*w, x) ** 2))((w_in, w_out))


def mlp_weight_gradients(w_in, w_out, x):
    return jax.grad(lambda w: jnp.mean(mlp(*w, x) ** 2))((w_in, w_out))


def gated_gradient(w_gate, w_up, w_down, x):
    def loss(weights):
        gate, up, down = weights
        return jnp.mean(((jax.nn.silu(x @ gate) * (x @ up)) @ down) ** 2)

    return jax.value_and_grad(loss)((w_gate, w_up, w_down))


def sequence_parallel(w_in, w_out, x):
    """Between the matmuls the tokens are split over the axis that the weights are split over."""
    x = wsc(x, P("data", "model", None))
    x = x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)
    hidden = wsc(jax.nn.gelu(x @ w_in), P("data", None, "model"))
    return wsc(hidden @ w_out, P("data", "model", None))


def sequence_parallel_gradient(w_in, w_out, x):
    return jax.grad(lambda w: jnp.mean(sequence_parallel(*w, x) ** 2))((w_in, w_out))


def layers(w_in, w_out, x):
    return jax.lax.scan(lambda x, w: (x + mlp(*w, x), None), x, (w_in, w_out))[0]


def layers_gradient(w_in, w_out, x):
    return jax.grad(lambda w: jnp.mean(layers(*w, x) ** 2))((w_in, w_out))


def layers_remat_gradient(w_in, w_out, x):
    def layer(x, w):
        return x + jax.checkpoint(mlp)(*w, x), None

    def loss(w):
        return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)

    return jax.grad(loss)((w_in, w_out))
