"""Programs in the manner of flax's NNX guides."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.real_programs.registry import Real, Registry, grid, numbers, split, tokens

PROGRAMS = Registry()


def on(mesh, module):
    """A module with every array replicated over a mesh."""
    graph, state = nnx.split(module)
    return nnx.merge(graph, jax.device_put(state, NamedSharding(mesh, P())))


class Net(nnx.Module):
    """Two layers with dropout and batch normalisation."""

    def __init__(self, rngs):
        self.first = nnx.Linear(16, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.last = nnx.Linear(32, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.drop(self.norm(self.first(x)))))


@PROGRAMS
def train_step_with_optimizer() -> Real:
    """NNX basics: `nnx.jit`, model, optimizer and metrics changed in place."""
    mesh = grid(data=8)
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    model, optimizer, metrics = (on(mesh, m) for m in (model, optimizer, metrics))

    @nnx.jit
    def step(model, optimizer, metrics, x, y):
        def loss(model):
            logits = model(x)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return each.mean(), logits

        (value, logits), gradients = nnx.value_and_grad(loss, has_aux=True)(model)
        metrics.update(loss=value, logits=logits, labels=y)
        optimizer.update(model, gradients)
        return value

    x, y = split(mesh, numbers(16, 16), "data"), split(mesh, tokens(16, below=4), "data")
    return Real(step, (model, optimizer, metrics, x, y), runs=False)


@PROGRAMS
def model_and_optimizer_that_holds_it() -> Real:
    """`nnx.ModelAndOptimizer`, given beside the model: their parameters are there once."""
    mesh = grid(data=8)
    model = Net(nnx.Rngs(0))
    optimizer = nnx.ModelAndOptimizer(model, optax.sgd(1e-2), wrt=nnx.Param)
    model, optimizer = on(mesh, (model, optimizer))

    @nnx.jit
    def step(model, optimizer, x):
        value, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(gradients)
        return value

    x = split(mesh, numbers(16, 16), "data")
    return Real(step, (model, optimizer, x), runs=False)


@PROGRAMS
def functional_split_and_merge() -> Real:
    """The functional API: `nnx.split`, `jax.jit` with the state as an argument, `nnx.merge`."""
    mesh = grid(data=4, model=2)

    class MLP(nnx.Module):
        def __init__(self, rngs):
            init = nnx.initializers.lecun_normal()
            self.up = nnx.Linear(
                16, 64, use_bias=False, rngs=rngs,
                kernel_init=nnx.with_partitioning(init, (None, "model")),
            )  # fmt: skip
            self.down = nnx.Linear(
                64, 16, use_bias=False, rngs=rngs,
                kernel_init=nnx.with_partitioning(init, ("model", None)),
            )  # fmt: skip

        def __call__(self, x):
            return self.down(nnx.silu(self.up(x)))

    with jax.set_mesh(mesh):
        graph, state = nnx.split(MLP(nnx.Rngs(0)))

    @jax.jit
    def step(state, x, y):
        def loss(state):
            return jnp.mean((nnx.merge(graph, state)(x) - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients), value

    x, y = (split(mesh, numbers(16, 16, seed=s), "data") for s in (0, 1))
    return Real(step, (state, x, y), context=lambda: jax.set_mesh(mesh))


@PROGRAMS
def sharded_model_made_under_nnx_jit() -> Real:
    """Scale up: `nnx.jit` makes model and optimizer on the mesh, another `nnx.jit` trains."""
    mesh = grid(data=2, model=4)

    class Dot(nnx.Module):
        def __init__(self, rngs):
            init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
            self.dot = nnx.Linear(16, 16, kernel_init=init, use_bias=False, rngs=rngs)
            other = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("model", None))
            self.w = nnx.Param(other(rngs.params(), (16, 16)))

        def __call__(self, x):
            y = jax.lax.with_sharding_constraint(self.dot(x), P("data", "model"))
            return y @ self.w

    @nnx.jit
    def create():
        model = Dot(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        return model, optimizer

    with jax.set_mesh(mesh):
        model, optimizer = create()

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss(model):
            return jnp.mean((model(x) - y) ** 2)

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    x, y = (split(mesh, numbers(8, 16, seed=s), "data") for s in (0, 1))
    return Real(step, (model, optimizer, x, y), context=lambda: jax.set_mesh(mesh), runs=False)


@PROGRAMS
def layers_by_vmap_and_scan() -> Real:
    """Transforms: layers made by `nnx.vmap`, run by `nnx.scan`."""
    mesh = grid(data=8)

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(16, 16, rngs=rngs)
            self.norm = nnx.LayerNorm(16, rngs=rngs)

        def __call__(self, x):
            return x + nnx.gelu(self.linear(self.norm(x)))

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def create(rngs):
        return Block(rngs)

    model = on(mesh, create(nnx.Rngs(0)))

    @nnx.jit
    def forward(model, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x, block):
            return block(x)

        return run(x, model)

    return Real(forward, (model, split(mesh, numbers(16, 16), "data")), runs=False)


class Decoder(nnx.Module):
    """Attention with rotary positions, grouped queries and a cache, as in Gemma."""

    def __init__(self, rngs):
        init = nnx.initializers.normal(0.1)
        self.q = nnx.Param(init(rngs.params(), (16, 4, 8)))
        self.kv = nnx.Param(init(rngs.params(), (2, 16, 2, 8)))
        self.o = nnx.Param(init(rngs.params(), (4, 8, 16)))
        self.keys = nnx.Cache(jnp.zeros((8, 12, 2, 8)))
        self.values = nnx.Cache(jnp.zeros((8, 12, 2, 8)))

    def __call__(self, x, at):
        def rotated(v):
            angle = at / 100.0 ** (jnp.arange(4) / 4)
            a, b = jnp.split(v, 2, -1)
            turned = (
                a * jnp.cos(angle) - b * jnp.sin(angle),
                a * jnp.sin(angle) + b * jnp.cos(angle),
            )
            return jnp.concatenate(turned, -1)

        q = rotated(jnp.einsum("btd,dnh->btnh", x, self.q[...]))
        k, v = jnp.einsum("btd,sdkh->sbtkh", x, self.kv[...])
        start = (0, at, 0, 0)
        self.keys[...] = jax.lax.dynamic_update_slice(self.keys[...], rotated(k), start)
        self.values[...] = jax.lax.dynamic_update_slice(self.values[...], v, start)
        mask = jnp.broadcast_to(jnp.arange(12) <= at, (8, 1, 1, 12))
        made = jax.nn.dot_product_attention(q, self.keys[...], self.values[...], mask=mask)
        return x + jnp.einsum("btnh,nhd->btd", made, self.o[...])


@PROGRAMS
def decoding_with_a_cache() -> Real:
    """One token more: the cache is updated in place, split over batch and heads."""
    mesh = grid(data=4, model=2)
    graph, params, cache = nnx.split(Decoder(nnx.Rngs(0)), nnx.Param, nnx.Cache)
    specs = {"q": P(None, "model"), "kv": P(None, None, "model"), "o": P("model")}
    for path, leaf in params.flat_state():
        leaf[...] = jax.device_put(leaf[...], NamedSharding(mesh, specs[path[0]]))
    cache = jax.device_put(cache, NamedSharding(mesh, P("data", None, "model")))

    @jax.jit
    def decode(params, cache, x, at):
        model = nnx.merge(graph, params, cache)
        y = model(x, at)
        return y, nnx.state(model, nnx.Cache)

    x = split(mesh, numbers(8, 1, 16), "data")
    return Real(decode, (params, cache, x, jnp.int32(3)))


@PROGRAMS
def low_rank_adaptation() -> Real:
    """`nnx.LoRA`: gradients of the added weights alone, by `nnx.DiffState`."""
    mesh = grid(data=8)
    frozen = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
    model = nnx.LoRA(16, 2, 16, base_module=frozen, rngs=nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-2), wrt=nnx.LoRAParam)
    model, optimizer = on(mesh, model), on(mesh, optimizer)

    @nnx.jit
    def step(model, optimizer, x):
        def loss(model):
            return jnp.mean(model(x) ** 2)

        gradients = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
        optimizer.update(model, gradients)

    return Real(step, (model, optimizer, split(mesh, numbers(16, 16), "data")), runs=False)


@PROGRAMS
def explicit_train_step() -> Real:
    """Explicit sharding: types say how parameters and gradients are split; changed in place."""
    mesh = grid(explicit=True, data=4, model=2)

    class MLP(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Param(split(mesh, rngs.params.normal((16, 64)), None, "model"))
            self.down = nnx.Param(split(mesh, rngs.params.normal((64, 16)), "model", None))

        def __call__(self, x):
            h = nnx.relu(jnp.matmul(x, self.up[...], out_sharding=P("data", "model")))
            return jnp.matmul(h, self.down[...], out_sharding=P("data", None))

    with jax.set_mesh(mesh):
        model = MLP(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        value, gradients = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, gradients)
        return value, gradients

    x = split(mesh, numbers(8, 16), "data")
    context = lambda: jax.set_mesh(mesh)  # noqa: E731
    return Real(step, (model, optimizer, x), context=context, runs=False)
