"""Functions whose layout has puzzled people. Each does one small thing that costs more than it
seems to, or nothing where it seems to do something.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardviz.gallery.mlp import mlp


def uneven_constraint(x):
    """Asks for rows over data, however many rows there are."""
    y = jnp.sin(x)
    return jax.lax.with_sharding_constraint(y, P("data", None))


def swapped_tiles(a, b, c):
    """Adds two arrays that are cut along the outer dimensions to one cut along the middle."""
    d = a + b
    d = jax.lax.with_sharding_constraint(d, P(None, ("data", "model"), None))
    return c + d


def two_orders(x):
    """Constrains to a mesh of the same eight devices, counted down the columns."""
    devices = np.array(jax.devices()[:8]).reshape(2, 4).T
    turned = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    y = jnp.sin(x)
    return jax.lax.with_sharding_constraint(y, NamedSharding(turned, P("data", "model")))


def fsdp_gradient(w_in, w_out, x):
    """A training step that keeps nothing of the forward pass but its input."""

    def loss(weights):
        return jnp.mean(jax.checkpoint(mlp)(*weights, x=x) ** 2)

    return jax.value_and_grad(loss)((w_in, w_out))
