"""Programs in the manner of numpyro's examples."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numpyro.infer import NUTS, SVI, Trace_ELBO, autoguide

from tests.real_programs.registry import Real, Registry, grid, numbers, split

PROGRAMS = Registry()


def _regression(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), 1).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def _data(mesh):
    return split(mesh, numbers(64, 4), "data"), split(mesh, (numbers(64) > 0) * 1.0, "data")


@PROGRAMS
def variational_inference() -> Real:
    """`SVI.update` under jit, with a guide made by itself."""
    mesh = grid(data=8)
    svi = SVI(
        _regression, autoguide.AutoNormal(_regression), numpyro.optim.Adam(1e-2), Trace_ELBO(4)
    )
    data = _data(mesh)
    state = jax.device_put(svi.init(jax.random.key(0), *data), NamedSharding(mesh, P()))
    return Real(jax.jit(lambda state, x, y: svi.update(state, x, y)), (state, *data), runs=False)


@PROGRAMS
def no_u_turn_sampler() -> Real:
    """One transition of NUTS over data that is split: a tree that is built in a loop."""
    mesh = grid(data=8)
    kernel, data = NUTS(_regression, max_tree_depth=3), _data(mesh)
    state = kernel.init(jax.random.key(0), 10, None, model_args=data, model_kwargs={})
    state = jax.device_put(state, NamedSharding(mesh, P()))

    @jax.jit
    def transition(state, x, y):
        return kernel.sample(state, (x, y), {})

    return Real(transition, (state, *data), runs=False)


@PROGRAMS
def log_density_of_many_chains() -> Real:
    """`numpyro.infer.util.log_density`, vmapped over samples that are split."""
    mesh = grid(chains=4, data=2)

    @jax.jit
    def densities(w, x, y):
        def one(w):
            return numpyro.infer.util.log_density(_regression, (x, y), {}, {"w": w})[0]

        return jax.vmap(jax.value_and_grad(one))(w)

    return Real(densities, (split(mesh, numbers(16, 4), "chains"), *_data(mesh)))
