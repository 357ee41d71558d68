"""A mixture of experts: tokens travel to the experts that a router picks for them, and back."""

import jax
import jax.numpy as jnp


def mixture_of_experts(router, w_in, w_out, x):
    """Each token visits its two best experts; an expert takes no more than it has seats."""
    batch, length, _ = x.shape
    experts, picks = router.shape[1], 2
    seats = 2 * picks * length // experts  # twice an even share of each sequence

    # At full precision: which expert is chosen must not hang on how a sum was rounded.
    logits = jnp.einsum("bse,en->bsn", x, router, precision="highest")
    weight, best = jax.lax.top_k(jax.nn.softmax(logits), picks)
    chosen = jax.nn.one_hot(best.reshape(batch, -1), experts)
    turn = jnp.cumsum(chosen, axis=1, dtype=int) - 1  # first come, first served
    seated = chosen[..., None] * jax.nn.one_hot(turn, seats)
    seated = seated.reshape(batch, length, picks, experts, seats)

    inputs = jnp.einsum("bspnc,bse->nbce", seated, x)  # dispatch
    hidden = jax.nn.gelu(jnp.einsum("nbce,nef->nbcf", inputs, w_in))
    outputs = jnp.einsum("nbcf,nfe->nbce", hidden, w_out)
    return jnp.einsum("bspnc,bsp,nbce->bse", seated, weight, outputs)  # combine
