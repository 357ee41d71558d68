"""The functions of the example programs, written to be read and pasted."""

from __future__ import annotations

import numpy as np

from shardviz.gallery.on_use import ImportedOnUse

# Users see and paste the source of single functions, so the functions don't import jax
# themselves. They use these names, which import jax when a function is first called:
# importing it here would take longer than all that the Explorer does before its first
# picture.
jax, jnp = ImportedOnUse("jax"), ImportedOnUse("jax.numpy")
AxisType = ImportedOnUse("jax.sharding", "AxisType")
Mesh, P = (ImportedOnUse("jax.sharding", n) for n in ("Mesh", "PartitionSpec"))
NamedSharding = ImportedOnUse("jax.sharding", "NamedSharding")


def matmul(x, w):
    """Multiplies (rows, inner) by (inner, columns)."""
    return jnp.matmul(x, w)


def mlp(w_in, w_out, x):
    """Widens from embed to mlp, applies a GELU, and narrows back."""
    hidden = jax.nn.gelu(x @ w_in)
    return hidden @ w_out


def mlp_gradient(w_in, w_out, x):
    """Returns the loss of an MLP and its gradients with respect to both weights."""

    def loss(weights):
        return jnp.mean(mlp(*weights, x=x) ** 2)

    return jax.value_and_grad(loss)((w_in, w_out))


def attention(w_q, w_k, w_v, w_o, x):
    """Lets each token attend to itself and to the tokens before it, in every head."""
    q = jnp.einsum("bse,ehd->bshd", x, w_q)
    k = jnp.einsum("bse,ehd->bshd", x, w_k)
    v = jnp.einsum("bse,ehd->bshd", x, w_v)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return jnp.einsum("bqhd,hde->bqe", mixed, w_o)


def rms_norm(scale, x):
    """Divides each token by the root of its mean square."""
    return scale * x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def transformer_block(norm_1, w_q, w_k, w_v, w_o, norm_2, w_in, w_out, x):
    """One layer of a language model."""
    x = x + attention(w_q, w_k, w_v, w_o, rms_norm(norm_1, x))
    return x + mlp(w_in, w_out, rms_norm(norm_2, x))


def transformer_gradient(norm_1, w_q, w_k, w_v, w_o, norm_2, w_in, w_out, x):
    """Returns the loss of a transformer block and its gradients for all weights."""

    def loss(weights):
        return jnp.mean(transformer_block(*weights, x=x) ** 2)

    weights = (norm_1, w_q, w_k, w_v, w_o, norm_2, w_in, w_out)
    return jax.value_and_grad(loss)(weights)


def mixture_of_experts(router, w_in, w_out, x):
    """Sends each token to its two best experts; an expert drops tokens beyond its
    capacity.
    """
    batch, length, _ = x.shape
    experts, picks = router.shape[1], 2
    capacity = 2 * picks * length // experts  # room for twice an even share

    # Full precision is needed here: rounding in a sum must not affect which expert
    # is chosen.
    logits = jnp.einsum("bse,en->bsn", x, router, precision="highest")
    weight, best = jax.lax.top_k(jax.nn.softmax(logits), picks)
    chosen = jax.nn.one_hot(best.reshape(batch, -1), experts)
    slot = jnp.cumsum(chosen, axis=1, dtype=int) - 1  # first come, first served
    routed = chosen[..., None] * jax.nn.one_hot(slot, capacity)
    routed = routed.reshape(batch, length, picks, experts, capacity)

    inputs = jnp.einsum("bspnc,bse->nbce", routed, x)  # dispatch
    hidden = jax.nn.gelu(jnp.einsum("nbce,nef->nbcf", inputs, w_in))
    outputs = jnp.einsum("nbcf,nfe->nbce", hidden, w_out)
    return jnp.einsum("bspnc,bsp,nbce->bse", routed, weight, outputs)  # combine


def uneven_constraint(x):
    """Constrains rows to be split over data, however many rows there are."""
    y = jnp.sin(x)
    return jax.lax.with_sharding_constraint(y, P("data", None))


def swapped_tiles(a, b, c):
    """Adds two arrays split along their outer dimensions to one split along its middle
    dimension.
    """
    d = a + b
    d = jax.lax.with_sharding_constraint(d, P(None, ("data", "model"), None))
    return c + d


def reordered_devices(x):
    """Constrains an array to a mesh of the same eight devices in another order."""
    devices = np.array(jax.devices()[:8]).reshape(2, 4).T
    transposed = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    y = jnp.sin(x)
    return jax.lax.with_sharding_constraint(
        y, NamedSharding(transposed, P("data", "model"))
    )


def fsdp_gradient(w_in, w_out, x):
    """Returns a loss and its gradients, and saves only inputs for the backward pass."""

    def loss(weights):
        return jnp.mean(jax.checkpoint(mlp)(*weights, x=x) ** 2)

    return jax.value_and_grad(loss)((w_in, w_out))
