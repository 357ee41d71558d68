"""Ten programs in the style of public libraries, for the owners of memory at their peaks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

BATCH, LENGTH, WIDTH, HIDDEN, LAYERS, VOCABULARY = 16, 128, 256, 512, 6, 1024
DATA_MODEL = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
STAGE_DATA = AbstractMesh((4, 2), ("stage", "data"), axis_types=(AxisType.Auto,) * 2)

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def struct(shape, *spec, dtype="float32", mesh=DATA_MODEL):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def split(tree, mesh=DATA_MODEL, axis="model"):
    """Shapes with shardings: matrices are split along their longest divisible dimension."""
    size = mesh.shape[axis]

    def split_leaf(leaf):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        spec = [None] * len(leaf.shape)
        if len(leaf.shape) > 1:
            longest = int(np.argmax(leaf.shape))
            if leaf.shape[longest] % size == 0:
                spec[longest] = axis
        return struct(leaf.shape, *spec, dtype=leaf.dtype, mesh=mesh)

    return jax.tree.map(split_leaf, tree)


def programs() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Programs as name, function and arguments."""
    for build in BUILDERS:
        yield (build.__name__, *build())


def linen_transformer() -> Call:
    """Attention and MLP blocks of flax.linen, adamw of optax."""
    import flax.linen as nn
    import optax

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=8)(y, y)
            y = nn.LayerNorm()(x)
            return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(HIDDEN)(y)))

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(VOCABULARY, WIDTH)(tokens)
            for _ in range(3):
                x = Block()(x)
            return nn.Dense(VOCABULARY)(nn.LayerNorm()(x))

    model, optimizer = Transformer(), optax.adamw(1e-3)
    tokens = struct((BATCH, LENGTH), "data", dtype="int32")
    params = split(jax.eval_shape(model.init, jax.random.key(0), tokens))
    state = split(jax.eval_shape(optimizer.init, params))

    def train_step(params, state, tokens):
        def loss(params):
            logits = model.apply(params, tokens)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
            return losses.mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return train_step, (params, state, tokens)


def nnx_mlp() -> Call:
    """An nnx model that is split into its graph and its state."""
    from flax import nnx

    class Mlp(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(WIDTH, HIDDEN, rngs=rngs)
            self.norm = nnx.BatchNorm(HIDDEN, rngs=rngs)
            self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs)

        def __call__(self, x):
            return self.down(nnx.relu(self.norm(self.up(x))))

    graph, state = nnx.split(nnx.eval_shape(lambda: Mlp(nnx.Rngs(0))))

    def train_step(state, x, y):
        def loss(state):
            model = nnx.merge(graph, state)
            return jnp.mean((model(x) - y) ** 2)

        gradients = jax.grad(loss, allow_int=True)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g if g.dtype == w.dtype else w, state, gradients)

    batch = struct((4096, WIDTH), "data")
    state = jax.tree.map(lambda leaf: leaf, state)
    return train_step, (split(state), batch, batch)


def equinox_mlp() -> Call:
    """An equinox MLP, vmapped over the batch."""
    import equinox as eqx

    model = eqx.filter_eval_shape(eqx.nn.MLP, WIDTH, WIDTH, HIDDEN, 3, key=jax.random.key(0))
    params, static = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def train_step(params, x, y):
        def loss(params):
            return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

        gradients = jax.grad(loss)(params)
        return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradients)

    batch = struct((4096, WIDTH), "data")
    return train_step, (split(params), batch, batch)


def optax_adamw() -> Call:
    """A deep MLP whose parameters are a dict, updated by clipped adamw."""
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    params = {f"w{n}": struct((WIDTH, WIDTH), None, "model") for n in range(8)}
    state = split(jax.eval_shape(optimizer.init, params))

    def train_step(params, state, x):
        def loss(params):
            y = x
            for number in range(8):
                y = jax.nn.gelu(y @ params[f"w{number}"])
            return jnp.mean(y**2)

        gradients = jax.grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    return train_step, (params, state, struct((4096, WIDTH), "data"))


def checkpointed_layers() -> Call:
    """A scan over checkpointed layers, with constraints on the residual stream."""

    def layer(x, w):
        x = x + (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]
        return lax.with_sharding_constraint(x, NamedSharding(DATA_MODEL, P("data"))), None

    def train_step(w, x):
        def loss(w):
            return jnp.mean(lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    w = {
        "gate": struct((LAYERS, WIDTH, HIDDEN), None, "data", "model"),
        "up": struct((LAYERS, WIDTH, HIDDEN), None, "data", "model"),
        "down": struct((LAYERS, HIDDEN, WIDTH), None, "model", "data"),
    }
    return train_step, (w, struct((BATCH, LENGTH, WIDTH), "data"))


def pipeline() -> Call:
    """GPipe in a shard_map: a ppermute in a scan."""
    mesh, width, parts, rows = STAGE_DATA, 64, 8, 64

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("stage"), P(None, "data"), P(None, "data")),
        out_specs=P(),
    )
    def loss(w, x, y):
        stage, last = lax.axis_index("stage"), 3

        def varying(value):
            return lax.pcast(value, ("stage", "data"), to="varying")

        def tick(carry, time):
            received, outputs = carry
            value = jnp.where(stage == 0, x[jnp.minimum(time, parts - 1)], received)
            value = jnp.tanh(value @ w[0])
            place = jnp.maximum(time - last, 0)
            written = lax.dynamic_update_index_in_dim(outputs, value, place, 0)
            outputs = jnp.where((stage == last) & (time >= last), written, outputs)
            ring = [(number, (number + 1) % 4) for number in range(4)]
            return (lax.ppermute(value, "stage", ring), outputs), None

        start = varying(jnp.zeros((rows // 2, width)))
        outputs = varying(jnp.zeros((parts, rows // 2, width)))
        (_, outputs), _ = lax.scan(tick, (start, outputs), jnp.arange(parts + last))
        error = jnp.where(stage == last, jnp.mean((outputs - y) ** 2), 0.0)
        return lax.psum(lax.pmean(error, "data"), "stage")

    def train_step(w, x, y):
        return w - 0.1 * jax.grad(loss)(w, x, y)

    batch = struct((parts, rows, width), None, "data", mesh=mesh)
    return train_step, (struct((4, width, width), "stage", mesh=mesh), batch, batch)


def mixture_of_experts() -> Call:
    """Experts along an axis: a dispatch by one-hot products."""
    experts = 8

    def train_step(w, x):
        def loss(w):
            gates = jax.nn.softmax(x @ w["router"])
            chosen = jax.nn.one_hot(jnp.argmax(gates, -1), experts)
            places = jnp.cumsum(chosen, axis=0) * chosen
            slots = jax.nn.one_hot(places.sum(-1).astype(int) - 1, 256) @ jnp.eye(256)
            dispatch = jnp.einsum("te,tc->tec", chosen, slots)
            inside = jnp.einsum("tec,td->ecd", dispatch, x)
            inside = lax.with_sharding_constraint(inside, NamedSharding(DATA_MODEL, P("model")))
            hidden = jax.nn.relu(jnp.einsum("ecd,edh->ech", inside, w["up"]))
            outside = jnp.einsum("ech,ehd->ecd", hidden, w["down"])
            combined = jnp.einsum("tec,ecd->td", dispatch * gates[:, :, None], outside)
            return jnp.mean((x - combined) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    w = {
        "router": struct((WIDTH, experts)),
        "up": struct((experts, WIDTH, HIDDEN), "model"),
        "down": struct((experts, HIDDEN, WIDTH), "model"),
    }
    return train_step, (w, struct((2048, WIDTH), "data"))


def tree_updates() -> Call:
    """Momentum for several weights of two shapes on single lines of jax.tree.map."""

    def train_step(params, momentum, x):
        def loss(params):
            y = x
            for up, down in zip(params["up"], params["down"], strict=True):
                y = y + jnp.tanh(y @ up) @ down
            return jnp.mean(y**2)

        gradients = jax.grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        params = jax.tree.map(lambda w, m: w - 0.1 * m, params, momentum)
        return params, momentum

    params = {
        "up": [struct((WIDTH, HIDDEN), None, "model") for _ in range(4)],
        "down": [struct((HIDDEN, WIDTH), "model", None) for _ in range(4)],
    }
    return train_step, (params, params, struct((2048, WIDTH), "data"))


def convolutions() -> Call:
    """A small residual network of convolutions, its batch split."""

    def convolved(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def train_step(w, x, y):
        def loss(w):
            z = convolved(x, w["stem"])
            for block in w["blocks"]:
                mean = jnp.mean(z, (0, 1, 2))
                z = z + jax.nn.relu(convolved(z - mean, block))
            return jnp.mean((jnp.mean(z, (1, 2)) @ w["head"] - y) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w))

    w = {
        "stem": struct((3, 3, 3, 32)),
        "blocks": [struct((3, 3, 32, 32)) for _ in range(3)],
        "head": struct((32, 16)),
    }
    return train_step, (w, struct((32, 32, 32, 3), "data"), struct((32, 16), "data"))


def recurrent() -> Call:
    """An LSTM as a scan whose ys are returned, and its gradient."""

    def cell(w, carry, x):
        hidden, memory = carry
        gates = x @ w["x"] + hidden @ w["h"]
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    def train_step(w, xs):
        def loss(w):
            start = (jnp.zeros(xs.shape[1:]),) * 2
            _, ys = lax.scan(functools.partial(cell, w), start, xs)
            return jnp.mean(ys**2), ys

        gradients, ys = jax.grad(loss, has_aux=True)(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradients), ys

    w = {"x": struct((WIDTH, 4 * WIDTH), None, "model"), "h": struct((WIDTH, 4 * WIDTH))}
    return train_step, (w, struct((32, 256, WIDTH), None, "data"))


BUILDERS = (
    linen_transformer, nnx_mlp, equinox_mlp, optax_adamw, checkpointed_layers, pipeline,
    mixture_of_experts, tree_updates, convolutions, recurrent,
)  # fmt: skip
