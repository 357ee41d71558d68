"""The two-layer perceptron that follows attention in every transformer, and its gradient."""

import jax
import jax.numpy as jnp


def mlp(w_in, w_out, x):
    """Widens from embed to mlp, applies a GELU, and narrows back."""
    hidden = jax.nn.gelu(x @ w_in)
    return hidden @ w_out


def mlp_gradient(w_in, w_out, x):
    """The loss of an MLP and its gradient by both weights."""

    def loss(weights):
        return jnp.mean(mlp(*weights, x=x) ** 2)

    return jax.value_and_grad(loss)((w_in, w_out))
