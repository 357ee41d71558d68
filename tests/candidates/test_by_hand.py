"""Advice in words: the code of each kind runs in plain jax, and the collective is gone."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.advise.advice import Advice
from tests.candidates import threads
from tests.candidates.threads import CASES, OURS, f32

KINDS = r"= [^=]*? (all-\w+|reduce-scatter|collective-permute)(?:-start)?\("


def doubled(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2


def kernel(x):
    return pl.pallas_call(doubled, out_shape=f32(*x.shape), interpret=True)(x)


def solve(x):
    return jax.lax.while_loop(lambda x: (x < 9).all(), lambda x: x * 2 + 1, x)


# Kind to the function that its code names, and the arrays of a call.
FUNCTIONS = {
    "convolution": ("convolve", threads.grouped_convolution, [(32, 4, 16), (8, 2, 3)]),
    "fft": ("transform", jnp.fft.fft, [(16, 64)]),
    "top_k": ("best", lambda x: jax.lax.top_k(x, 4), [(16, 64)]),
    "linear algebra": ("decompose", lambda x: jnp.linalg.inv(x + 9 * jnp.eye(8)), [(16, 8, 8)]),
    "kernel": ("kernel", kernel, [(16, 8)]),
    "loop": ("solve", solve, [(16, 6)]),
    "map": ("step", lambda x: jnp.tanh(x) * 2, [(16, 6)]),
}
MAPPED = {"loop": jax.vmap(solve), "map": lambda x: jax.lax.map(FUNCTIONS["map"][1], x)}


def mesh_of(**axes):
    types = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)


def collectives(fn, *arrays):
    return re.findall(KINDS, jax.jit(fn).lower(*arrays).compile().as_text())


@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 4, "model": 2}], ids=str)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_the_code_of_a_shard_map(kind, axes, eight_devices):
    name, fn, shapes = FUNCTIONS[kind]
    mesh, random = mesh_of(**axes), np.random.default_rng(0)
    values = [random.standard_normal(shape).astype("float32") for shape in shapes]
    specs = [P("data"), *[P()] * (len(shapes) - 1)]
    arrays = [
        jax.device_put(value, NamedSharding(mesh, spec))
        for value, spec in zip(values, specs, strict=True)
    ]
    scope = {"jax": jax, "P": P, "mesh": mesh, name: fn}
    advice = Advice(kind, axes=("data",), all_axes=len(axes) == 1)
    exec(advice.code(), scope)  # noqa: S102
    changed = scope["mapped" if kind == "map" else name]
    expected = MAPPED.get(kind, fn)(*values)
    results = jax.jit(changed)(*arrays)
    for result, leaf in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, leaf, rtol=2e-4, atol=1e-4)
    assert collectives(changed, *arrays) == []


def test_the_code_of_parts(eight_devices):
    mesh = mesh_of(data=8)
    rows = np.arange(512 * 4, dtype="float32").reshape(512, 4)
    x = jax.device_put(rows, NamedSharding(mesh, P("data")))

    def sums(x):
        scope = {"x": x}
        exec(Advice("parts").code(), scope)  # noqa: S102
        return jax.lax.scan(
            lambda total, part: (total + jnp.sin(part), None), 0 * x[:128], scope["parts"]
        )[0]

    np.testing.assert_allclose(jax.jit(sums)(x).sum(), np.sin(rows).sum(), atol=1e-2)
    assert "all-gather" not in collectives(sums, x)


def test_the_code_of_accumulation(eight_devices):
    def loss(w, batch):
        return jnp.sum((jnp.tanh(batch["x"] @ w["w"]) - batch["y"]) ** 2)

    random = np.random.default_rng(0)
    w = {"w": random.standard_normal((8, 4)).astype("float32")}
    batch = {k: random.standard_normal((32, n)).astype("float32") for k, n in (("x", 8), ("y", 4))}
    scope = {"jax": jax, "jnp": jnp, "loss": loss, "w": w, "batch": batch}
    exec(Advice("accumulation").code(), scope)  # noqa: S102
    expected = jax.grad(loss)(w, batch)
    np.testing.assert_allclose(scope["gradients"]["w"], expected["w"], rtol=1e-4, atol=1e-4)


def test_the_code_of_random_numbers():
    before = jax.config.jax_threefry_partitionable
    try:
        jax.config.update("jax_threefry_partitionable", False)
        exec(Advice("random").code(), {"jax": jax})  # noqa: S102
        assert jax.config.jax_threefry_partitionable
    finally:
        jax.config.update("jax_threefry_partitionable", before)


def test_a_batch_of_a_gradient_is_advised_for_memory_alone():
    w, x = sv.array("w", (8, 4)), sv.array("x", (32, 8), spec="data")
    step = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)))
    found = sv.changes(sv.program(step, w, x, mesh="data=2"), "memory", target="cpu:2")
    (advice,) = [one for one in found.advice if isinstance(one, Advice)]
    assert (advice.kind, advice.arrays) == ("accumulation", ("x",))
    plain = sv.program(jnp.dot, x, w, mesh="data=2")
    assert sv.changes(plain, "memory", target="cpu:2").advice == ()


CASE = {case.name: case for case in (*CASES, *OURS)}
# One of each kind of advice, since each compiles a dozen programs.
ADVISED = ("maxtext#2507", "top_k", "jax#15484")
RARELY = ("jax#26586", "folx#36", "marin#6470", "xla#47945")


@pytest.mark.parametrize(
    "name", [*ADVISED, *(pytest.param(name, marks=pytest.mark.long) for name in RARELY)]
)
def test_the_collective_of_a_thread_has_advice(name):
    case = CASE[name]
    with case.context():
        program = case.program()
        found = sv.changes(program, case.collective(sv.compile(program)))
    (advice,) = found.advice
    assert isinstance(advice, Advice)
    assert advice.kind == case.advice
    assert advice.source.startswith("threads.py:")
    assert advice.to_dict()["tried"] is False
    text = sv.text(found, width=200)
    assert "Not tried: " in text
    assert advice.code().splitlines()[0] in text


def test_a_collective_that_a_split_removes_has_no_advice():
    x, w = sv.array("x", (64, 32), spec="data"), sv.array("w", (32, 64), spec="data")
    found = sv.changes(sv.program(jnp.dot, x, w, mesh="data=4"), 0, target="cpu:4")
    assert found
    assert found.advice == ()
