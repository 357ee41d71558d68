"""Programs of JAX's own notebooks and examples in which the compiler splits the work."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.real_programs.registry import Real, Registry, grid, numbers, split, tokens

PROGRAMS = Registry()


def _mlp(sizes, seed=0):
    return [
        (numbers(m, n, seed=seed + i) / m**0.5, numbers(n, seed=seed + i + 50))
        for i, (m, n) in enumerate(itertools.pairwise(sizes))
    ]


def _predict(layers, x):
    for w, b in layers:
        y = x @ w + b
        x = jax.nn.relu(y)
    return y


def _loss(layers, batch):
    inputs, targets = batch
    return jnp.mean(jnp.sum((_predict(layers, inputs) - targets) ** 2, axis=-1))


@PROGRAMS
def eight_way_batch_parallelism() -> Real:
    """Distributed arrays and automatic parallelization: the batch split, the weights replicated."""
    mesh = grid(batch=8)
    layers = split(mesh, _mlp((16, 32, 32, 4)))
    batch = split(mesh, (numbers(64, 16), numbers(64, 4)), "batch")

    @jax.jit
    def update(layers, batch):
        gradients = jax.grad(_loss)(layers, batch)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, layers, gradients)

    return Real(update, (layers, batch))


@PROGRAMS
def four_way_batch_two_way_model_parallelism() -> Real:
    """The same notebook's second half: weights split, too, by position among the layers."""
    mesh = grid(batch=4, model=2)
    first, second, third = _mlp((16, 32, 32, 4))
    layers = [
        (split(mesh, first[0], None, "model"), split(mesh, first[1], "model")),
        (split(mesh, second[0], "model", None), split(mesh, second[1])),
        (split(mesh, third[0]), split(mesh, third[1])),
    ]
    batch = split(mesh, (numbers(64, 16), numbers(64, 4)), "batch")
    return Real(jax.value_and_grad(_loss), (layers, batch))


@PROGRAMS
def explicit_sharding() -> Real:
    """Explicit sharding: shardings in types, `out_sharding` of a product and `reshard`."""
    mesh = grid(explicit=True, X=4, Y=2)

    def step(x, w1, w2):
        h = jnp.tanh(jnp.einsum("bd,dh->bh", x, w1, out_sharding=P("X", "Y")))
        y = jnp.einsum("bh,hd->bd", h, w2, out_sharding=P("X", None))
        return jax.sharding.reshard(y, P(None, "X")), jnp.sum(y * y)

    args = (
        split(mesh, numbers(16, 8), "X", None),
        split(mesh, numbers(8, 32), None, "Y"),
        split(mesh, numbers(32, 8), "Y", None),
    )
    return Real(step, args, context=lambda: jax.set_mesh(mesh))


@PROGRAMS
def constraints_inside_jit() -> Real:
    """Intermediate values constrained by `with_sharding_constraint`, keys of `jax.random`."""
    mesh = grid(x=4, y=2)

    @functools.partial(jax.jit, static_argnames=("rate",))
    def forward(key, x, w, *, rate):
        y = jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("x", "y")))
        kept = jax.random.bernoulli(key, 1 - rate, y.shape)
        return jnp.where(kept, y / (1 - rate), 0.0)

    args = (
        split(mesh, jax.random.key(0)),
        split(mesh, numbers(32, 16), "x"),
        split(mesh, numbers(16, 32), None, "y"),
    )
    return Real(forward, args, {"rate": 0.1})


@PROGRAMS
def uncommitted_arguments() -> Real:
    """Weights straight from `jnp`: jax may split arrays on no device that the user chose."""
    mesh = grid(x=4, y=2)

    def forward(x, w, b):
        h = jax.lax.with_sharding_constraint(x @ w + b, NamedSharding(mesh, P("x", "y")))
        return jnp.sum(h**2, axis=-1)

    return Real(
        forward,
        (split(mesh, numbers(32, 16), "x"), jnp.asarray(numbers(16, 32)), jnp.zeros(32)),
    )


@PROGRAMS
def transformer_layers_in_a_scan() -> Real:
    """Layers stacked along a first dimension, `jax.lax.scan` over them, each rematerialised."""
    mesh = grid(data=4, model=2)
    width, heads, deep = 16, 4, 3

    def layer(h, w):
        def norm(v):
            return v * jax.lax.rsqrt(jnp.mean(v * v, -1, keepdims=True) + 1e-6)

        n = norm(h)
        q, k, v = (jnp.einsum("btd,dnk->btnk", n, w[name]) for name in ("q", "k", "v"))
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        h = h + jnp.einsum("btnk,nkd->btd", attended, w["o"])
        return h + jax.nn.gelu(norm(h) @ w["up"]) @ w["down"], None

    def loss(params, ids):
        h = params["embed"][ids[:, :-1]]
        h, _ = jax.lax.scan(jax.checkpoint(layer), h, params["layers"])
        logits = jax.nn.log_softmax(h @ params["embed"].T)
        return -jnp.mean(jnp.take_along_axis(logits, ids[:, 1:, None], -1))

    specs = {
        "q": (None, None, "model"),
        "k": (None, None, "model"),
        "v": (None, None, "model"),
        "o": (None, "model"),
        "up": (None, None, "model"),
        "down": (None, "model"),
    }
    head = width // heads
    shapes = {
        "q": (width, heads, head),
        "k": (width, heads, head),
        "v": (width, heads, head),
        "o": (heads, head, width),
        "up": (width, 32),
        "down": (32, width),
    }
    params = {
        "embed": split(mesh, 0.1 * numbers(32, width)),
        "layers": {
            n: split(mesh, 0.1 * numbers(deep, *shape), *specs[n]) for n, shape in shapes.items()
        },
    }

    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, ids):
        value, gradients = jax.value_and_grad(loss)(params, ids)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), value

    return Real(step, (params, split(mesh, tokens(8, 9), "data")))


@PROGRAMS
def gaussian_process_regression() -> Real:
    """JAX's example: marginal likelihood of a Gaussian process, by a Cholesky factor."""
    mesh = grid(data=8)

    def covariance(theta, a, b):
        distance = jnp.sum((a[:, None] - b[None]) ** 2, -1)
        return jax.nn.softplus(theta["amp"]) * jnp.exp(-distance / jax.nn.softplus(theta["scale"]))

    def likelihood(theta, x, y):
        k = covariance(theta, x, x) + jnp.eye(len(x)) * (jax.nn.softplus(theta["noise"]) + 1e-3)
        factor = jax.scipy.linalg.cholesky(k, lower=True)
        alpha = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
        return 0.5 * jnp.sum(alpha**2) + jnp.sum(jnp.log(jnp.diagonal(factor)))

    theta = split(mesh, {n: jnp.float32(0.5) for n in ("amp", "scale", "noise")})
    x, y = numbers(32, 2), numbers(32)
    return Real(
        jax.jit(jax.value_and_grad(likelihood)),
        (theta, split(mesh, x, "data"), split(mesh, y, "data")),
    )


@PROGRAMS
def k_means() -> Real:
    """Lloyd's algorithm in `jax.lax.while_loop`: segment sums over points that are split."""
    mesh = grid(data=8)

    @functools.partial(jax.jit, static_argnums=1)
    def fit(points, k):
        def step(state):
            centers, _, times = state
            distance = jnp.sum((points[:, None] - centers) ** 2, -1)
            nearest = jnp.argmin(distance, 1)
            total = jax.ops.segment_sum(points, nearest, k)
            count = jax.ops.segment_sum(jnp.ones(len(points)), nearest, k)
            moved = total / jnp.maximum(count, 1)[:, None]
            return moved, jnp.abs(moved - centers).max(), times + 1

        def running(state):
            return (state[1] > 1e-3) & (state[2] < 20)

        return jax.lax.while_loop(running, step, (points[:k], jnp.inf, 0))

    return Real(fit, (split(mesh, numbers(64, 4), "data"), 4))


@PROGRAMS
def per_example_gradients() -> Real:
    """The cookbook's vmap of grad, clipped each (differentially private SGD)."""
    mesh = grid(data=8)
    layers = split(mesh, _mlp((16, 32, 4)))
    batch = split(mesh, (numbers(32, 16), numbers(32, 4)), "data")

    def clipped(layers, example):
        gradient = jax.grad(_loss)(layers, jax.tree.map(lambda v: v[None], example))
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        return jax.tree.map(lambda g: g / jnp.maximum(1.0, norm), gradient)

    def private_gradient(layers, batch):
        each = jax.vmap(clipped, in_axes=(None, 0))(layers, batch)
        return jax.tree.map(lambda g: g.mean(0), each)

    return Real(jax.jit(private_gradient), (layers, batch))


@PROGRAMS
def two_dimensional_fft() -> Real:
    """A transform over rows that are split, then over columns."""
    mesh = grid(x=8)
    signal = split(mesh, numbers(32, 64), "x", None)

    def low_pass(signal):
        spectrum = jnp.fft.fft2(signal)
        kept = jnp.abs(jnp.fft.fftfreq(64)) < 0.1
        return jnp.fft.ifft2(spectrum * kept).real

    return Real(jax.jit(low_pass), (signal,))
