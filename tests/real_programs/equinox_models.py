"""Programs in the manner of equinox's examples."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.real_programs.registry import Real, Registry, grid, numbers, split, tokens

PROGRAMS = Registry()


@PROGRAMS
def autoparallel_mlp() -> Real:
    """The multi-device example: `eqx.filter_jit(donate="all")` and `eqx.filter_shard`."""
    mesh = grid(batch=8)
    over, everywhere = NamedSharding(mesh, P("batch")), NamedSharding(mesh, P())
    model = eqx.nn.MLP(16, 4, 32, 2, key=jax.random.key(0))
    optimizer = optax.adam(1e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    model, state = eqx.filter_shard((model, state), everywhere)

    @eqx.filter_jit(donate="all")
    def step(model, state, x, y):
        model, state = eqx.filter_shard((model, state), everywhere)
        x, y = eqx.filter_shard((x, y), over)

        def loss(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        gradients = eqx.filter_grad(loss)(model)
        updates, state = optimizer.update(gradients, state)
        model = eqx.apply_updates(model, updates)
        return eqx.filter_shard((model, state), everywhere)

    x, y = split(mesh, numbers(16, 16), "batch"), split(mesh, numbers(16, 4), "batch")
    return Real(step, (model, state, x, y), runs=False)


@PROGRAMS
def recurrent_classifier() -> Real:
    """The RNN example: a GRU cell scanned over a sequence, vmapped over the batch."""
    mesh = grid(data=8)

    class Reader(eqx.Module):
        cell: eqx.nn.GRUCell
        linear: eqx.nn.Linear
        bias: jax.Array

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.cell = eqx.nn.GRUCell(4, 16, key=a)
            self.linear = eqx.nn.Linear(16, 1, use_bias=False, key=b)
            self.bias = jnp.zeros(1)

        def __call__(self, sequence):
            hidden = jnp.zeros(self.cell.hidden_size)
            hidden, _ = jax.lax.scan(lambda c, i: (self.cell(i, c), None), hidden, sequence)
            return jax.nn.sigmoid(self.linear(hidden) + self.bias)

    model = eqx.filter_shard(Reader(jax.random.key(0)), NamedSharding(mesh, P()))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(model, x, y):
        made = jax.vmap(model)(x)[:, 0]
        return -jnp.mean(y * jnp.log(made) + (1 - y) * jnp.log(1 - made))

    x, y = numbers(16, 6, 4), (numbers(16) > 0).astype("float32")
    return Real(loss, (model, split(mesh, x, "data"), split(mesh, y, "data")), runs=False)


@PROGRAMS
def stateful_batch_norm() -> Real:
    """The stateful example: `eqx.nn.State` beside the model, an axis name under vmap."""
    mesh = grid(data=8)

    class Convolutions(eqx.Module):
        conv: eqx.nn.Conv2d
        norm: eqx.nn.BatchNorm
        linear: eqx.nn.Linear

        def __init__(self, key):
            a, b = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(3, 8, 3, key=a)
            self.norm = eqx.nn.BatchNorm(8, "batch", mode="batch")
            self.linear = eqx.nn.Linear(8, 4, key=b)

        def __call__(self, image, state):
            x, state = self.norm(self.conv(image), state)
            return self.linear(jax.nn.relu(x).mean((1, 2))), state

    model, state = eqx.nn.make_with_state(Convolutions)(jax.random.key(0))
    model, state = eqx.filter_shard((model, state), NamedSharding(mesh, P()))

    @eqx.filter_jit
    def loss(model, state, images, labels):
        mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        logits, state = mapped(images, state)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state

    images = split(mesh, numbers(16, 3, 8, 8), "data")
    args = (model, state, images, split(mesh, tokens(16, below=4), "data"))
    return Real(loss, args, runs=False)


@PROGRAMS
def partitioned_attention() -> Real:
    """`eqx.partition`, then `jax.jit` of arrays alone; heads split over the model axis."""
    mesh = grid(data=4, model=2)
    attention = eqx.nn.MultiheadAttention(4, 16, key=jax.random.key(0))
    params, static = eqx.partition(attention, eqx.is_array)

    def spec(path, leaf):
        return P(None, "model") if "output" in jax.tree_util.keystr(path) else P("model", None)

    params = jax.tree_util.tree_map_with_path(
        lambda path, v: jax.device_put(v, NamedSharding(mesh, spec(path, v))), params
    )

    @jax.jit
    def forward(params, x):
        layer = eqx.combine(params, static)
        mask = jnp.tril(jnp.ones((6, 6), bool))
        return jax.vmap(lambda s: layer(s, s, s, mask=mask))(x)

    return Real(forward, (params, split(mesh, numbers(8, 6, 16), "data")))
