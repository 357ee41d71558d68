"""Causal attention with many heads."""

import jax
import jax.numpy as jnp


def attention(w_q, w_k, w_v, w_o, x):
    """Each token looks at itself and at the tokens before it, once a head."""
    q = jnp.einsum("bse,ehd->bshd", x, w_q)
    k = jnp.einsum("bse,ehd->bshd", x, w_k)
    v = jnp.einsum("bse,ehd->bshd", x, w_v)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return jnp.einsum("bqhd,hde->bqe", mixed, w_o)
