"""What ran is compared with the function on one device, also where it names its mesh itself."""

from __future__ import annotations

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.programs.backend.jaxprs import meshes_in, without_shardings

X, W = jax.ShapeDtypeStruct((8, 16), "float32"), jax.ShapeDtypeStruct((16, 16), "float32")
SPECS = (P("a"), P(None, "b"))


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def split(mesh, x, *dims):
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*dims)))


def plain(mesh, x, w):
    return split(mesh, x @ w, "a", "b") + 1


def in_scan(mesh, x, w):
    return jax.lax.scan(lambda c, _: (split(mesh, jnp.tanh(c @ w), "a"), c.sum()), x, length=3)


def in_cond(mesh, x, w):
    return jax.lax.cond(x.sum() > 0, lambda: split(mesh, x, "a"), lambda: x * 2) @ w


def gradient_of_remat(mesh, x, w):
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
    def layer(x, w):
        return split(mesh, jnp.tanh(x @ w), "a", "b")

    return jax.value_and_grad(lambda w: (layer(layer(x, w), w) ** 2).mean())(w)


def of_custom_vjp(mesh, x, w):
    @jax.custom_vjp
    def scaled(x):
        return split(mesh, x * 2, "a")

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, g: (split(mesh, g * 2, "a"),))
    return jax.grad(lambda x: (scaled(x) @ w).sum())(x), scaled(x)


def vmapped(mesh, x, w):
    return jax.vmap(lambda row: split(mesh, row @ w, "b"), spmd_axis_name="a")(x)


FUNCTIONS = (
    plain, in_scan, in_cond, gradient_of_remat, of_custom_vjp, vmapped,
)  # fmt: skip


def compared(report):
    assert report.ok, report
    return {c.name: c for c in report.checks if "indices" not in c.name}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_function_that_names_its_mesh_is_compared_with_one_device(function, mesh):
    target = "cpu:8" if function is plain else "attached"
    bound = functools.partial(function, mesh)
    report = sv.run(sv.program(bound, X, W, mesh=mesh, in_specs=SPECS), target=target)
    found = compared(report)
    assert found
    assert all(check.ok for check in found.values()), found
    assert not any("unsharded" in name for name in found)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_is_compared_names_no_mesh_and_gives_the_same(function, mesh):
    x, w = (np.random.default_rng(0).normal(size=s.shape).astype("float32") for s in (X, W))
    bound = functools.partial(function, mesh)
    jaxpr = jax.make_jaxpr(bound)(x, w)
    assert list(meshes_in(jaxpr))
    assert not list(meshes_in(without_shardings(jaxpr)))
    single = jax.jit(jax.extend.core.jaxpr_as_fun(without_shardings(jaxpr)))
    for ours, theirs in zip(single(x, w), jax.tree.leaves(jax.jit(bound)(x, w)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", ["cpu:8", "attached"])
def test_a_shard_map_over_its_own_mesh_is_named_with_its_line(target, mesh):
    def ranked(x):
        body = lambda y: y + jax.lax.axis_index("a")  # noqa: E731
        return split(mesh, jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x))

    report = sv.run(sv.program(ranked, X, mesh=mesh, in_specs=(P("a"),)), target=target)
    check = compared(report)["unsharded function"]
    assert check.ok is None
    line = ranked.__code__.co_firstlineno + 2
    assert check.detail == (
        f"The function does not run on one device. shard_map (test_unsharded.py:{line}) is over a"
        " mesh of 8 devices, which the function names."
    )
