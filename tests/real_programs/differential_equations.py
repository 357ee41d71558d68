"""Programs in the manner of the examples of diffrax, optimistix and lineax."""

from __future__ import annotations

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.real_programs.registry import Real, Registry, grid, numbers, split

PROGRAMS = Registry()


@PROGRAMS
def neural_differential_equation() -> Real:
    """A vector field that is a network: the loss of `diffeqsolve` over a batch that is split."""
    mesh = grid(data=8)

    class Field(eqx.Module):
        mlp: eqx.nn.MLP

        def __call__(self, t, y, args):
            return self.mlp(y)

    field = Field(eqx.nn.MLP(2, 2, 16, 1, activation=jnp.tanh, key=jax.random.key(0)))
    field = eqx.filter_shard(field, NamedSharding(mesh, P()))

    @eqx.filter_jit
    def loss(field, ts, ys):
        def solve(y0):
            return diffrax.diffeqsolve(
                diffrax.ODETerm(field), diffrax.Heun(), ts[0], ts[-1], 0.25, y0,
                saveat=diffrax.SaveAt(ts=ts), max_steps=8,
            ).ys  # fmt: skip

        return jnp.mean((jax.vmap(solve)(ys[:, 0]) - ys) ** 2), field

    ts = split(mesh, jnp.linspace(0.0, 1.0, 5))
    ys = split(mesh, numbers(16, 5, 2), "data")
    return Real(loss, (field, ts, ys), runs=False)


@PROGRAMS
def ensemble_of_stochastic_equations() -> Real:
    """Brownian paths from keys that are split over devices."""
    mesh = grid(path=8)

    @jax.jit
    def simulate(keys, y0):
        def one(key):
            path = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(2,), key=key)
            terms = diffrax.MultiTerm(
                diffrax.ODETerm(lambda t, y, args: -y),
                diffrax.ControlTerm(lambda t, y, args: 0.1 * jnp.eye(2), path),
            )
            return diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.1, y0).ys[-1]

        ends = jax.vmap(one)(keys)
        return ends.mean(0), ends.std(0)

    keys = jax.device_put(jax.random.split(jax.random.key(0), 16), NamedSharding(mesh, P("path")))
    return Real(simulate, (keys, split(mesh, numbers(2))), runs=False)


@PROGRAMS
def batched_least_squares() -> Real:
    """`optimistix.least_squares` of many small fits, vmapped over data that is split."""
    mesh = grid(data=8)

    def residual(params, args):
        x, y = args
        return y - params["a"] * jnp.exp(-params["b"] * x)

    @jax.jit
    def fit(x, y):
        def one(x, y):
            start = {"a": jnp.float32(1.0), "b": jnp.float32(0.5)}
            solver = optx.LevenbergMarquardt(rtol=1e-3, atol=1e-3)
            return optx.least_squares(
                residual, solver, start, args=(x, y), max_steps=20, throw=False
            ).value

        return jax.vmap(one)(x, y)

    x, y = abs(numbers(16, 8)), abs(numbers(16, 8, seed=1))
    return Real(fit, (split(mesh, x, "data"), split(mesh, y, "data")), runs=False)


@PROGRAMS
def root_by_newton() -> Real:
    """`optimistix.root_find`, differentiated implicitly, of a system that is split."""
    mesh = grid(rows=8)

    @jax.jit
    def sensitivity(a, b):
        def root(a):
            found = optx.root_find(
                lambda y, args: jnp.tanh(args @ y) + y - b,
                optx.Newton(rtol=1e-4, atol=1e-4), jnp.zeros(16), a, max_steps=16, throw=False,
            )  # fmt: skip
            return jnp.sum(found.value**2)

        return jax.grad(root)(a)

    a = split(mesh, numbers(16, 16) / 8, "rows")
    return Real(sensitivity, (a, split(mesh, numbers(16), "rows")), runs=False)


@PROGRAMS
def conjugate_gradients() -> Real:
    """`lineax.linear_solve` with an operator that is a function."""
    mesh = grid(rows=8)

    @jax.jit
    def solve(a, b):
        def product(v):
            return a.T @ (a @ v) + v

        operator = lx.FunctionLinearOperator(
            product, jax.ShapeDtypeStruct((32,), "float32"), lx.positive_semidefinite_tag
        )
        solver = lx.CG(rtol=1e-4, atol=1e-4)
        return lx.linear_solve(operator, b, solver, throw=False).value

    a = split(mesh, numbers(64, 32) / 8, "rows")
    return Real(solve, (a, split(mesh, numbers(32))), runs=False)
