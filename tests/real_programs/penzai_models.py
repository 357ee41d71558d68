"""Programs in the manner of penzai's tutorials."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from penzai import pz
from penzai.models import simple_mlp
from penzai.toolshed import basic_training, sharding_util

from tests.real_programs.registry import Real, Registry, grid, numbers, split

PROGRAMS = Registry()


def _model(mesh):
    def init():
        return simple_mlp.MLP.from_config(
            name="mlp", init_base_rng=jax.random.key(0), feature_sizes=[16, 32, 4]
        )

    return sharding_util.sharded_init(
        init, mesh=mesh, axis_name_to_mesh_name={"features_out": "model"}
    )


def _batch(mesh):
    x = pz.nx.wrap(split(mesh, numbers(16, 16), "data"), "batch", "features")
    return x, pz.nx.wrap(split(mesh, numbers(16, 4), "data"), "batch", "features")


@PROGRAMS
def forward_of_named_arrays() -> Real:
    """A model without its parameters' variables: a pytree of named arrays, called in jit."""
    mesh = grid(data=4, model=2)
    model = pz.freeze_params(_model(mesh))

    @jax.jit
    def forward(model, x):
        return model(x)

    return Real(forward, (model, _batch(mesh)[0]))


@PROGRAMS
def step_of_the_trainer() -> Real:
    """`basic_training.StatefulTrainer`: the function under its `step`, all by keyword."""
    mesh = grid(data=4, model=2)
    model = _model(mesh)
    x, y = _batch(mesh)

    def loss(model, rng, state, x, y):
        wrong = pz.nx.nmap(lambda a, b: (a - b) ** 2)(model(x), y)
        value = jnp.mean(wrong.unwrap("batch", "features"))
        return value, state, {"loss": value}

    trainer = basic_training.StatefulTrainer.build(
        root_rng=split(mesh, jax.random.key(1)),
        model=model,
        optimizer_def=optax.adam(1e-2),
        loss_fn=loss,
    )
    bare, variables = pz.unbind_variables(model)
    keywords = {
        "root_rng": trainer.root_rng,
        "state": trainer.state.value,
        "stateless_model": bare,
        "trainable_params": pz.freeze_variables(tuple(variables)),
        "frozen_params": (),
        "state_vars": (),
        "loss_fn": trainer.loss_fn,
        "optimizer_def": trainer.optimizer_def,
        "kwargs": {"x": x, "y": y},
    }
    return Real(trainer.step_fn, (), keywords, runs=False)
