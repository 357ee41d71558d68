"""A transformer block: attention and an MLP, each behind a norm and beside a residual path."""

import jax
import jax.numpy as jnp

from shardviz.gallery.attention import attention
from shardviz.gallery.mlp import mlp


def rms_norm(scale, x):
    """Divides each token by the root of its mean square."""
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def transformer_block(norm_1, w_q, w_k, w_v, w_o, norm_2, w_in, w_out, x):
    """One layer of a language model."""
    x = x + attention(w_q, w_k, w_v, w_o, rms_norm(norm_1, x))
    return x + mlp(w_in, w_out, rms_norm(norm_2, x))


def transformer_gradient(norm_1, w_q, w_k, w_v, w_o, norm_2, w_in, w_out, x):
    """The loss of a transformer block and its gradient by every weight."""

    def loss(weights):
        return jnp.mean(transformer_block(*weights, x=x) ** 2)

    weights = (norm_1, w_q, w_k, w_v, w_o, norm_2, w_in, w_out)
    return jax.value_and_grad(loss)(weights)
