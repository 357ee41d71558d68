"""Programs in the manner of optax's gallery."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from tests.real_programs.registry import Real, Registry, grid, numbers, split, tokens

PROGRAMS = Registry()


def _setup(mesh):
    params = {
        "w1": split(mesh, numbers(16, 32) / 4, None, "model"),
        "b1": split(mesh, numbers(32), "model"),
        "w2": split(mesh, numbers(32, 8) / 6, "model", None),
    }
    return params, split(mesh, numbers(16, 16), "data"), split(mesh, tokens(16, below=8), "data")


def _loss(params, x, y):
    logits = jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def _trained(optimizer):
    mesh = grid(data=4, model=2)
    params, x, y = _setup(mesh)
    state = jax.jit(optimizer.init)(params)

    @jax.jit
    def step(params, state, x, y):
        value, gradients = jax.value_and_grad(_loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return Real(step, (params, state, x, y))


@PROGRAMS
def clipped_adamw_with_a_schedule() -> Real:
    """A chain of transformations, accumulated over some steps: empty states among them."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)
    chain = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(1e-2, mask=lambda p: jax.tree.map(lambda v: v.ndim > 1, p)),
        optax.scale_by_learning_rate(schedule),
    )
    return _trained(optax.MultiSteps(chain, 2).gradient_transformation())


@PROGRAMS
def muon() -> Real:
    """Newton-Schulz on matrices, Adam on the rest."""
    return _trained(optax.contrib.muon(1e-2))


@PROGRAMS
def factored_second_moments() -> Real:
    """Adafactor's row and column statistics of split matrices."""
    return _trained(optax.adafactor(1e-2, min_dim_size_to_factor=8))


@PROGRAMS
def lbfgs_with_line_search() -> Real:
    """The gallery's loop around L-BFGS: a line search inside a `while_loop`."""
    mesh = grid(data=8)
    optimizer = optax.lbfgs(memory_size=3)

    @jax.jit
    def fit(w, x, y):
        def loss(w):
            return jnp.mean(optax.sigmoid_binary_cross_entropy(x @ w, y)) + 1e-2 * jnp.sum(w**2)

        both = optax.value_and_grad_from_state(loss)

        def one(carry):
            w, state = carry
            value, gradient = both(w, state=state)
            updates, state = optimizer.update(
                gradient, state, w, value=value, grad=gradient, value_fn=loss
            )
            return optax.apply_updates(w, updates), state

        def running(carry):
            count = optax.tree.get(carry[1], "count")
            gradient = optax.tree.get(carry[1], "grad")
            return (count == 0) | ((count < 5) & (optax.tree.norm(gradient) > 1e-3))

        return jax.lax.while_loop(running, one, (w, optimizer.init(w)))[0]

    x, y = numbers(64, 8), (numbers(64) > 0).astype("float32")
    args = (split(mesh, numbers(8)), split(mesh, x, "data"), split(mesh, y, "data"))
    return Real(fit, args, runs=False)
