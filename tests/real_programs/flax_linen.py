"""Programs in the manner of flax's linen guides and examples."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.real_programs.registry import Real, Registry, grid, numbers, split, tokens

PROGRAMS = Registry()
RULES = (("batch", "data"), ("mlp", "model"), ("heads", "model"), ("vocab", "model"))


class Block(nn.Module):
    """A transformer layer with logical axes on weights and activations, as in lm1b."""

    width: int = 16
    heads: int = 4

    @nn.compact
    def __call__(self, x):
        named = nn.with_logical_partitioning
        init = nn.initializers.lecun_normal()
        y = nn.LayerNorm(use_bias=False)(x)
        y = nn.MultiHeadDotProductAttention(
            self.heads, qkv_features=self.width, use_bias=False,
            kernel_init=named(init, ("embed", "heads")),
            out_kernel_init=named(init, ("heads", "embed")),
        )(y, mask=nn.make_causal_mask(x[..., 0]))  # fmt: skip
        x = x + y
        y = nn.LayerNorm(use_bias=False)(x)
        y = nn.Dense(2 * self.width, kernel_init=named(init, ("embed", "mlp")))(y)
        y = nn.with_logical_constraint(nn.gelu(y), ("batch", "length", "mlp"))
        y = nn.Dense(self.width, kernel_init=named(init, ("mlp", "embed")))(y)
        return x + y


class Language(nn.Module):
    """Layers in a loop, with the embedding as output, too."""

    layers: int = 2

    @nn.compact
    def __call__(self, ids):
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("vocab", "embed"))
        embed = nn.Embed(32, 16, embedding_init=init)
        x = nn.with_logical_constraint(embed(ids), ("batch", "length", "embed"))
        for _ in range(self.layers):
            x = Block()(x)
        return embed.attend(nn.LayerNorm()(x))


def _language_step(state, ids):
    def loss(params):
        logits = state.apply_fn({"params": params}, ids[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()

    value, gradients = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradients), {"loss": value}


@PROGRAMS
def train_state_made_under_jit() -> Real:
    """Scale up on many devices: shapes, logical names to shardings, init under jit, then train."""
    mesh = grid(data=4, model=2)
    model, optimizer = Language(), optax.adamw(1e-3)
    ids = split(mesh, tokens(8, 9), "data")

    def init(key, ids):
        params = model.init(key, ids[:, :-1])["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    @contextlib.contextmanager
    def context():
        with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
            yield

    with context():
        shapes = jax.eval_shape(init, jax.random.key(0), ids)
        names = nn.get_partition_spec(shapes)
        shardings = nn.logical_to_mesh_sharding(names, mesh, RULES)
        state = jax.jit(init, out_shardings=shardings)(jax.random.key(0), ids)
    step = jax.jit(
        _language_step,
        in_shardings=(shardings, NamedSharding(mesh, P("data"))),
        out_shardings=(shardings, None),
        donate_argnums=0,
    )
    return Real(step, (state, ids), context=context)


@PROGRAMS
def abstract_state() -> Real:
    """The same step on shapes alone, as people look at a model that no device of theirs holds."""
    mesh = grid(data=2, model=4)
    model, optimizer = Language(1), optax.sgd(1e-2, momentum=0.9)

    def init(key, ids):
        params = model.init(key, ids)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    ids = jax.ShapeDtypeStruct((8, 8), jnp.int32)
    shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0), ids))
    boxed = jax.eval_shape(init, jax.random.key(0), ids)
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, RULES)
    state = jax.tree.map(
        lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, shardings
    )
    batch = jax.ShapeDtypeStruct((8, 9), jnp.int32, sharding=NamedSharding(mesh, P("data")))
    return Real(_language_step, (state, batch), called=False)


class Residual(nn.Module):
    """Convolutions and batch normalisation, as in the ImageNet example's ResNet."""

    @nn.compact
    def __call__(self, x, train: bool):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.relu(norm()(nn.Conv(8, (3, 3), use_bias=False)(x)))
        y = nn.relu(norm()(nn.Conv(8, (3, 3), use_bias=False)(x)))
        return nn.Dense(10)(jnp.mean(x + y, (1, 2)))


class WithStatistics(TrainState):
    """A TrainState with running averages."""

    batch_stats: Any = None


@PROGRAMS
def batch_norm_with_running_averages() -> Real:
    """ImageNet: `mutable=["batch_stats"]`, statistics over a batch that is split."""
    mesh = grid(batch=8)
    model = Residual()
    images = split(mesh, numbers(16, 8, 8, 3), "batch")
    labels = split(mesh, tokens(16, below=10), "batch")
    variables = model.init(jax.random.key(0), images, train=False)
    state = WithStatistics.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax.sgd(0.1, momentum=0.9, nesterov=True),
    )
    state = jax.device_put(state, NamedSharding(mesh, P()))

    @jax.jit
    def step(state, images, labels):
        def loss(params):
            logits, new = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                images, train=True, mutable=["batch_stats"],
            )  # fmt: skip
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean(), (new, logits)

        (value, (new, logits)), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        state = state.apply_gradients(grads=gradients, batch_stats=new["batch_stats"])
        return state, {"loss": value, "accuracy": jnp.mean(jnp.argmax(logits, -1) == labels)}

    return Real(step, (state, images, labels))


@PROGRAMS
def scanned_layers_with_dropout() -> Real:
    """Lifted transforms: `nn.scan` over `nn.remat` layers with a key for each."""
    mesh = grid(data=4, model=2)

    class Layer(nn.Module):
        train: bool

        @nn.compact
        def __call__(self, x, _):
            up = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
            down = nn.with_partitioning(nn.initializers.lecun_normal(), ("model", None))
            y = nn.relu(nn.Dense(32, kernel_init=up)(nn.LayerNorm()(x)))
            y = nn.Dropout(0.1, deterministic=not self.train)(y)
            return x + nn.Dense(16, kernel_init=down)(y), None

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            layers = nn.scan(
                nn.remat(Layer, prevent_cse=False), length=3,
                variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True},
                metadata_params={nn.PARTITION_NAME: None},
            )  # fmt: skip
            return layers(train)(x, None)[0]

    model = Stack()
    x = split(mesh, numbers(8, 16), "data")

    def init(key):
        return model.init(key, jnp.zeros((8, 16)), False)

    specs = nn.get_partition_spec(jax.eval_shape(init, jax.random.key(0)))
    where = jax.tree.map(lambda s: NamedSharding(mesh, s), specs)
    with jax.set_mesh(mesh):
        variables = jax.jit(init, out_shardings=where)(jax.random.key(0))

    def loss(variables, x, key):
        return jnp.mean(model.apply(variables, x, True, rngs={"dropout": key}) ** 2)

    step = jax.jit(jax.grad(loss))
    return Real(step, (variables, x, jax.random.key(1)), context=lambda: jax.set_mesh(mesh))


@PROGRAMS
def variational_autoencoder() -> Real:
    """The VAE example: a key as an argument, two losses, replicated weights."""
    mesh = grid(data=8)

    class Autoencoder(nn.Module):
        @nn.compact
        def __call__(self, x, key):
            h = nn.relu(nn.Dense(32)(x))
            mean, logvar = nn.Dense(4)(h), nn.Dense(4)(h)
            z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, mean.shape)
            return nn.Dense(16)(nn.relu(nn.Dense(32)(z))), mean, logvar

    model = Autoencoder()
    x = split(mesh, (numbers(16, 16) > 0).astype("float32"), "data")
    params = model.init(jax.random.key(0), x, jax.random.key(1))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))
    state = jax.device_put(state, NamedSharding(mesh, P()))

    @jax.jit
    def step(state, x, key):
        def loss(params):
            made, mean, logvar = state.apply_fn(params, x, key)
            wrong = optax.sigmoid_binary_cross_entropy(made, x).sum(-1)
            apart = -0.5 * jnp.sum(1 + logvar - mean**2 - jnp.exp(logvar), -1)
            return (wrong + apart).mean()

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    return Real(step, (state, x, jax.random.key(2)))


@PROGRAMS
def recurrent_sequence_model() -> Real:
    """`nn.RNN` with an LSTM cell and lengths of sequences, as in the seq2seq example."""
    mesh = grid(data=8)
    model = nn.RNN(nn.OptimizedLSTMCell(16), return_carry=True)
    x, lengths = numbers(16, 6, 8), tokens(16, below=5) + 1
    params = split(mesh, model.init(jax.random.key(0), x))

    @functools.partial(jax.jit, static_argnames="reverse")
    def read(params, x, *, seq_lengths, reverse):
        return model.apply(params, x, seq_lengths=seq_lengths, reverse=reverse)

    keywords = {"seq_lengths": split(mesh, lengths, "data"), "reverse": True}
    return Real(read, (params, split(mesh, x, "data")), keywords)
