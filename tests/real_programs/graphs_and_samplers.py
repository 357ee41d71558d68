"""Programs in the manner of the examples of jraph, distrax, jaxopt, blackjax and chex."""

from __future__ import annotations

import blackjax
import chex
import distrax
import jax
import jax.numpy as jnp
import jaxopt
import jraph
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.real_programs.registry import Real, Registry, grid, numbers, split, tokens

PROGRAMS = Registry()


@PROGRAMS
def graph_network() -> Real:
    """A GraphNetwork over edges that are split: gathers and segment sums."""
    mesh = grid(edges=8)
    weights = split(mesh, {"edge": numbers(20, 8), "node": numbers(16, 8), "all": numbers(20, 4)})

    def run(weights, graph):
        network = jraph.GraphNetwork(
            lambda e, s, r, g: jnp.tanh(jnp.concatenate([e, s, r, g], -1) @ weights["edge"]),
            lambda n, s, r, g: jnp.tanh((r + s) @ weights["node"][:8]),
            lambda n, e, g: jnp.concatenate([n, e, g], -1) @ weights["all"],
        )
        return jnp.sum(network(graph).globals ** 2)

    graph = jraph.GraphsTuple(
        nodes=split(mesh, numbers(16, 6)),
        edges=split(mesh, numbers(64, 4), "edges"),
        senders=split(mesh, tokens(64, below=16), "edges"),
        receivers=split(mesh, tokens(64, below=16, seed=1), "edges"),
        n_node=split(mesh, jnp.array([16])),
        n_edge=split(mesh, jnp.array([64])),
        globals=split(mesh, numbers(1, 4)),
    )
    return Real(jax.jit(jax.grad(run)), (weights, graph))


@PROGRAMS
def normalising_flow() -> Real:
    """distrax: affine couplings on a Gaussian, the mean log density of a batch that is split."""
    mesh = grid(data=8)
    weights = split(mesh, [{"w": 0.1 * numbers(2, 4, seed=s), "b": numbers(4)} for s in range(2)])

    def flow(weights):
        layers = []
        for i, layer in enumerate(weights):
            layers.append(
                distrax.MaskedCoupling(
                    mask=jnp.array([i % 2 == 0, i % 2 == 1]),
                    bijector=lambda p: distrax.ScalarAffine(p[..., :2], log_scale=p[..., 2:]),
                    conditioner=lambda x, layer=layer: jnp.tanh(x @ layer["w"] + layer["b"]),
                )
            )
        base = distrax.Independent(distrax.Normal(jnp.zeros(2), jnp.ones(2)), 1)
        return distrax.Transformed(base, distrax.Inverse(distrax.Chain(layers)))

    def loss(weights, x):
        return -jnp.mean(flow(weights).log_prob(x))

    return Real(jax.jit(jax.value_and_grad(loss)), (weights, split(mesh, numbers(32, 2), "data")))


@PROGRAMS
def logistic_regression_by_lbfgs() -> Real:
    """jaxopt: a solver's `run` under jit, data as keywords."""
    mesh = grid(data=8)
    solver = jaxopt.LBFGS(jaxopt.objective.binary_logreg, maxiter=4, history_size=3)

    @jax.jit
    def fit(w, data):
        return solver.run(w, data=data).params

    data = (split(mesh, numbers(64, 8), "data"), split(mesh, tokens(64, below=2), "data"))
    return Real(fit, (split(mesh, numbers(8)), data), runs=False)


@PROGRAMS
def many_chains() -> Real:
    """blackjax: a step of Hamiltonian Monte Carlo for chains that are split over devices."""
    mesh = grid(chains=8)

    def density(position):
        return -0.5 * jnp.sum(position["a"] ** 2) - jnp.sum(jnp.cosh(position["b"]))

    sampler = blackjax.hmc(density, 1e-1, jnp.ones(5), 4)
    start = {"a": numbers(16, 4), "b": numbers(16)}
    states = jax.vmap(sampler.init)(start)
    keys = jax.random.split(jax.random.key(0), 16)
    keys, states = jax.device_put((keys, states), NamedSharding(mesh, P("chains")))

    @jax.jit
    def step(keys, states):
        states, info = jax.vmap(sampler.step)(keys, states)
        return states, info.acceptance_rate.mean()

    return Real(step, (keys, states))


@chex.dataclass
class Batch:
    """What a learner gets; chex registers it as a pytree."""

    rewards: chex.Array
    values: chex.Array
    discount: float


@PROGRAMS
def returns_of_a_dataclass() -> Real:
    """chex: a dataclass of arrays and a number; assertions on shapes while tracing."""
    mesh = grid(data=8)

    @jax.jit
    def loss(batch):
        chex.assert_equal_shape([batch.rewards, batch.values])

        def back(total, reward):
            total = reward + batch.discount * total
            return total, total

        start = jnp.zeros(batch.rewards.shape[0])
        _, returns = jax.lax.scan(back, start, batch.rewards.T, reverse=True)
        return jnp.mean((returns.T - batch.values) ** 2)

    rewards, values = (split(mesh, numbers(16, 6, seed=s), "data") for s in range(2))
    return Real(loss, (Batch(rewards=rewards, values=values, discount=0.9),))
