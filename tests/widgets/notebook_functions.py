"""What a person has defined in a notebook before the Explorer's code is pasted below it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

SCALE = 3.0


class Moments(NamedTuple):
    count: Any
    mu: Any


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, w):
        return self.factor * (x @ w)

    def less(self, x, w):
        return x @ w - self.factor


class Held:
    """A pytree that no literal makes."""

    def __init__(self, values):
        self.values = values


jax.tree_util.register_pytree_node(Held, lambda h: ((h.values,), None), lambda _, v: Held(v[0]))
scaled = Scaled(2.0)
state = Held({"w": 0.0, "b": 0.0})


def dot(x, w):
    return x @ w


def scaled_by(factor, x, w):
    return factor * (x @ w)


def reads_a_global(x, other):
    return _scaled(x) + other


def _scaled(x):
    return SCALE * x


def train(state, batch):
    moments = Moments(state["opt"].count + 1, jax.tree.map(lambda m: 0.9 * m, state["opt"].mu))
    layers = [layer * 2 for layer in state["layers"]]
    loss = sum((batch["x"] @ layer).sum() for layer in layers)
    return {"layers": layers, "opt": moments, "none": None, "step": state["step"]}, loss


def both(x, w):
    return x + 1, {"w": w * 2}


def noisy(key, x):
    return x + jax.random.normal(key, x.shape)


def many_keys(keys, x):
    return jax.vmap(lambda k: jax.random.normal(k, (4,)))(keys) + x


def every(*arrays):
    return arrays


def nothing():
    return jnp.zeros((8, 4))


def of_held(state, x):
    return x @ state.values["w"] + state.values["b"]


def of_boxes(variables, x):
    return x @ variables["params"]["kernel"].value
