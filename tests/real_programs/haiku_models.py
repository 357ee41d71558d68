"""Programs in the manner of dm-haiku's examples."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from tests.real_programs.registry import Real, Registry, grid, numbers, split, tokens

PROGRAMS = Registry()


@PROGRAMS
def residual_network_with_state() -> Real:
    """`hk.transform_with_state`: moving averages beside parameters."""
    mesh = grid(data=8)

    def forward(images, training):
        x = hk.Conv2D(8, 3, with_bias=False)(images)
        x = hk.BatchNorm(True, True, 0.9)(x, training)
        x = jax.nn.relu(x) + hk.Conv2D(8, 3)(jax.nn.relu(x))
        return hk.Linear(4)(x.mean((1, 2)))

    network = hk.transform_with_state(forward)
    images = split(mesh, numbers(16, 8, 8, 3), "data")
    params, state = split(mesh, network.init(jax.random.key(0), images, True))

    def step(params, state, images, labels, training):
        def loss(params):
            logits, new = network.apply(params, state, None, images, training)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean(), new

        (value, new), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), new, value

    args = (params, state, images, split(mesh, tokens(16, below=4), "data"), True)
    return Real(jax.jit(step, static_argnums=4), args)


@PROGRAMS
def transformer() -> Real:
    """The transformer example: `hk.MultiHeadAttention`, dropout by the transform's key."""
    mesh = grid(data=4, model=2)

    def forward(ids):
        init = hk.initializers.VarianceScaling(0.1)
        x = hk.Embed(32, 16)(ids)
        mask = jnp.tril(jnp.ones((1, 1, 8, 8)))
        for _ in range(2):
            n = hk.LayerNorm(-1, True, True)(x)
            x = x + hk.MultiHeadAttention(4, 4, w_init=init)(n, n, n, mask=mask)
            h = hk.Linear(32, name="up")(hk.LayerNorm(-1, True, True)(x))
            h = hk.dropout(hk.next_rng_key(), 0.1, jax.nn.gelu(h))
            x = x + hk.Linear(16, name="down")(h)
        return hk.Linear(32)(x)

    network = hk.transform(forward)
    ids = split(mesh, tokens(8, 8), "data")
    params = network.init(jax.random.key(0), ids)

    def placed(module, name, value):
        if name != "w" or value.ndim < 2:
            return split(mesh, value)
        if module.endswith(("query", "key", "value", "up", "up_1")):
            return split(mesh, value, None, "model")
        over = module.endswith(("attention/linear", "down", "down_1"))
        return split(mesh, value, *(("model",) if over else ()))

    params = hk.data_structures.map(placed, params)
    return Real(jax.jit(network.apply), (params, split(mesh, jax.random.key(1)), ids))
