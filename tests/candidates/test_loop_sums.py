"""Sums over devices in a loop of a `shard_map`, next to the edit that a person makes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardviz as sv

SPECS = {"in_specs": (P(), P(), P("data")), "out_specs": P()}


def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def mapped(loss):
    return jax.shard_map(loss, mesh=mesh(), **SPECS)


def vary(edited, *values):
    if not edited:
        return values
    return tuple(lax.pcast(value, ("data",), to="varying") for value in values)


def steps(edited):
    """A recurrence that uses the same two weights in every step."""

    def loss(w, v, x):
        w, v = vary(edited, w, v)

        def step(h, _):
            return jnp.tanh(h @ w) @ v, None

        h, _ = lax.scan(step, x, None, length=5)
        return lax.pmean(jnp.mean(h**2), "data")

    return jax.grad(mapped(loss), (0, 1))


def checkpointed(edited):
    """The same with each step computed again in the backward pass, and another order."""

    def loss(w, v, x):
        w, v = vary(edited, w, v)

        @jax.checkpoint
        def step(h, row):
            return jnp.sin(w @ h) + jnp.mean(v) * row, None

        h, _ = lax.scan(step, x[0], x)
        return lax.pmean(jnp.mean(h**2), "data")

    return jax.grad(mapped(loss), (0, 1))


def microbatches(edited):
    """Gradients that the user sums for each microbatch."""

    def step(w, v, x):
        w, v = vary(True, w, v)

        def add(total, rows):
            gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(rows @ w @ v)))(w)
            if not edited:
                gradient = lax.psum(gradient, "data")
            return total + gradient, None

        first = jnp.zeros(w.shape)
        if edited:
            (first,) = vary(True, first)
        total, _ = lax.scan(add, first, x.reshape(4, -1, 32))
        return lax.psum(total, "data") if edited else total

    return mapped(step)


def arguments():
    random = np.random.default_rng(0)
    specs = {(32, 32): P(), (64, 32): P("data")}
    for shape in ((32, 32), (32, 32), (64, 32)):
        value = random.standard_normal(shape).astype("float32") * 0.1
        yield jax.device_put(value, NamedSharding(mesh(), specs[shape]))


def sums(report):
    rows = []
    for collective in report.collectives:
        if collective.kind == "all-reduce" and collective.bytes_per_device >= 4096:
            rows.append((collective.bytes_in_all, collective.trips))
    return sorted(rows)


@functools.cache
def changes_of(make):
    report = sv.compile(make(False), *arguments(), target="cpu:8")
    largest = max(report.collectives, key=lambda collective: collective.sent_in_all)
    return report, sv.changes(report, largest)


@pytest.mark.parametrize(
    "make", [steps, pytest.param(checkpointed, marks=pytest.mark.long), microbatches]
)
def test_the_sums_are_those_of_the_edit_by_hand(make, eight_devices):
    report, found = changes_of(make)
    by_hand = sv.compile(make(True), *arguments(), target="cpu:8")
    assert sums(by_hand) != sums(report)
    change = next(one for one in found if one.edits[0].code in ("pcast", "late sum"))
    assert sums(change.report) == sums(by_hand)
    assert change.values.ok
    values = sv.run(change.program, *arguments(), target="cpu:8").outputs
    by_hand = jax.jit(make(True))(*arguments())
    for value, true in zip(jax.tree.leaves(values), jax.tree.leaves(by_hand), strict=True):
        np.testing.assert_allclose(value, true, rtol=1e-4, atol=1e-6)


def test_the_weights_of_one_loop_are_cast_together_by_name(eight_devices):
    (change,) = [one for one in changes_of(steps)[1] if one.edits[0].code == "pcast"]
    assert [edit.value for edit in change.edits] == ["w", "v"] or [
        edit.value for edit in change.edits
    ] == ["v", "w"]
    lines = [line.partition("  #")[0] for line in change.code().splitlines()]
    assert sorted(lines) == [
        "v = jax.lax.pcast(v, ('data',), to=\"varying\")",
        "w = jax.lax.pcast(w, ('data',), to=\"varying\")",
    ]


def test_a_value_that_each_step_needs_summed_stays_in_the_loop(eight_devices):
    def body(w, v, x):
        def step(total, rows):
            return jnp.tanh(total + lax.psum(rows.sum(0), "data")), None

        return lax.scan(step, jnp.zeros(32), x.reshape(4, -1, 32))[0]

    report = sv.compile(mapped(body), *arguments(), target="cpu:8")
    found = sv.changes(report, 0)
    codes = {edit.code for one in (*found, *found.refused) for edit in one.edits}
    assert codes.isdisjoint({"pcast", "late sum"})


# On Explicit axes.


def explicit_mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def products(w, x, edited):
    """Products along the batch that a loop adds up."""
    split = P(None, None, unreduced={"data"}) if edited else P(None, None)

    def add(total, rows):
        hidden = jnp.tanh(rows @ w)
        return total + jnp.einsum("bi,bj->ij", rows, hidden, out_sharding=split), None

    total = jnp.zeros(w.shape)
    if edited:
        total = jax.sharding.reshard(total, split)
    total, _ = lax.scan(add, total, x)
    return jax.sharding.reshard(total, P(None, None)) if edited else total


def accumulated(w, x, edited):
    """Gradients of a weight, added up over microbatches."""
    total = jnp.zeros(w.shape)
    if edited:
        w = jax.sharding.reshard(w, P(None, None, reduced={"data"}))
        total = jax.sharding.reshard(total, P(None, None, unreduced={"data"}))

    def add(total, rows):
        return total + jax.grad(lambda w: jnp.sum(jnp.tanh(rows @ w) ** 2))(w), None

    total, _ = lax.scan(add, total, x)
    return jax.sharding.reshard(total, P(None, None)) if edited else total


@pytest.mark.parametrize("fn", [products, accumulated])
def test_a_product_that_stays_unreduced_in_a_loop_is_as_by_hand(fn, eight_devices):
    random = np.random.default_rng(0)
    with jax.set_mesh(explicit_mesh()):
        arrays = []
        for shape, spec in (((32, 32), P(None, None)), ((4, 16, 32), P(None, "data", None))):
            value = random.standard_normal(shape).astype("float32")
            arrays.append(jax.device_put(value, spec))
        report = sv.compile(functools.partial(fn, edited=False), *arrays, target="cpu:8")
        by_hand = sv.compile(functools.partial(fn, edited=True), *arrays, target="cpu:8")
        (change,) = sv.changes(report)
        assert [edit.code for edit in change.edits] == ["unreduced"]
        assert sums(change.report) == sums(by_hand) != sums(report)
        assert change.values.ok
        assert "unreduced={'data'}" in change.code()
        assert change.edits[0].is_backward == (fn is accumulated)
