"""Ways to call a function with the modules, states and wrappers of flax, optax and equinox."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.program.ways import Way, placed, traced, x

LIBRARY_WAYS: dict[str, Callable[[], Way]] = {}


def way(name: str, *needs: str) -> Callable[[Callable[[], Way]], Callable[[], Way]]:
    def keep(make: Callable[[], Way]) -> Callable[[], Way]:
        if all(importlib.util.find_spec(library) for library in ("flax", *needs)):
            LIBRARY_WAYS[name] = make
        return make

    return keep


def inner(jaxpr: Any) -> Any:
    """The jaxpr of the one jitted function that another one calls."""
    (equation,) = jaxpr.jaxpr.eqns
    return equation.params["jaxpr"]


def linen() -> tuple[Any, Any]:
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, scale=1.0, *, train=False):
            split = nn.with_partitioning(nn.initializers.ones, (None, "data"))
            y = nn.Dense(4, kernel_init=split)(x) * scale
            return nn.relu(y) if train else y

    model = Model()
    return model, model.init(jax.random.key(0), x())


@way("linen's apply")
def _() -> Way:
    model, variables = linen()
    return Way(model.apply, (variables, x()))


@way("a train state", "optax")
def _() -> Way:
    import optax
    from flax import linen as nn
    from flax.training.train_state import TrainState

    model, variables = linen()
    state = TrainState.create(
        apply_fn=model.apply, params=nn.unbox(variables["params"]), tx=optax.adam(1e-3)
    )

    def step(state, x):
        loss = lambda p: (state.apply_fn({"params": p}, x) ** 2).mean()  # noqa: E731
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    return Way(jax.jit(step, donate_argnums=0), (state, x()), called=False)


def nnx_model() -> Any:
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(4, 8, rngs=rngs)
            self.down = nnx.Linear(8, 4, rngs=rngs)
            self.act = jax.nn.relu

        def __call__(self, x):
            return self.down(self.act(self.up(x)))

    return Model(nnx.Rngs(0))


def nnx_step() -> Callable[..., Any]:
    from flax import nnx

    def step(model, opt, x):
        value, gradient = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        opt.update(model, gradient)
        return value

    return step


def nnx_way(wrap: Callable[[Any], Any]) -> Way:
    import optax
    from flax import nnx

    model = nnx_model()
    opt = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    step = wrap(nnx_step())

    def expected() -> Any:
        return step.trace(*placed((model, opt, x()))).traced.jaxpr

    return Way(step, (model, opt, x()), {}, expected, called=False)


@way("nnx.jit", "optax")
def _() -> Way:
    from flax import nnx

    return nnx_way(nnx.jit)


def mlp() -> Any:
    import equinox as eqx

    return eqx.nn.MLP(4, 4, 8, 1, key=jax.random.key(0))


def of_arrays(fn: Callable[..., Any], model: Any, *args: Any) -> Callable[[], Any]:
    import equinox as eqx

    arrays, static = eqx.partition(model, eqx.is_array)
    return traced(lambda a, *rest: fn(eqx.combine(a, static), *rest), arrays, *args)


def marked(step: Callable[..., Any]) -> Callable[..., Any]:
    """The results of `eqx.filter_jit`, before which it returns a number of its own."""
    return lambda *args: (jnp.array(0), step(*args))


@way("a module with functions in it", "equinox")
def _() -> Way:
    model, step = mlp(), lambda m, x: jax.vmap(m)(x).sum()
    return Way(step, (model, x()), {}, of_arrays(step, model, x()))


@way("eqx.filter_jit", "equinox")
def _() -> Way:
    import equinox as eqx

    model, step = mlp(), eqx.filter_jit(lambda m, x: jax.vmap(m)(x).sum())
    return Way(step, (model, x()), {}, of_arrays(marked(step), model, x()))


@way("eqx.filter_jit with a number", "equinox")
def _() -> Way:
    import equinox as eqx

    step = eqx.filter_jit(lambda x, n: x if n > 1 else -x)
    return Way(step, (x(), 2), {}, traced(marked(lambda x: step(x, 2)), x()))


@way("a method under eqx.filter_jit", "equinox")
def _() -> Way:
    import equinox as eqx

    class Model(eqx.Module):
        w: Any
        act: Callable[..., Any]

        @eqx.filter_jit
        def apply(self, x):
            return self.act(x @ self.w)

    model = Model(x(4, 4), jnp.tanh)
    return Way(model.apply, (x(),), {}, of_arrays(marked(lambda m, x: m.apply(x)), model, x()))
