"""Results of a `shard_map` that differ between devices: the edits, and their values."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.programs.refusals import CombineBeforeRead, NameInOutSpecs, SkipCheck
from tests.refusals.threads import AUTO, array, devices_mesh, mapped, name_of


def rows(a, w):
    def step(total, row):
        return total + jnp.tanh(row @ w).sum(), 2 * row

    return lax.scan(step, lax.pcast(jnp.zeros(()), ("x",), to="varying"), a)


def gradient(a, w):
    return jax.value_and_grad(lambda w: jnp.sum((a @ w) ** 2))(w)


# A body, its in_specs and out_specs, and the edits that a person makes, one for each
# group of results.
CASES = {
    "sum": (lambda a, w: (a @ w).sum(0), (P("x"), P()), P(), ["psum x"]),
    "mean": (lambda a, w: jnp.mean(jnp.tanh(a @ w)), (P("x"), P()), P(), ["pmean x"]),
    "scaled": (lambda a, w: 3 * a.sum(0) / 7, (P("x"), P()), P(), ["psum x"]),
    "maximum": (lambda a, w: jnp.max(a @ w, 0), (P("x"), P()), P(), ["pmax x"]),
    "block": (lambda a, w: jnp.tanh(a @ w), (P("x"), P()), P(), ["P('x', None)"]),
    "transposed": (lambda a, w: (a @ w).T, (P("x"), P()), P(), ["P(None, 'x')"]),
    "merged": (lambda a, w: a.reshape(-1), (P("x"), P()), P(), ["P('x')"]),
    "two axes": (lambda a, w: a @ w, (P("x"), P(None, "y")), P("x"), ["P('x', 'y')"]),
    "another order": (
        lambda a, w: 2 * a,
        (P(("x", "y")), P()),
        P("y"),
        ["P(('x', 'y'), None)"],
    ),
    "contracted": (lambda a, w: a @ w, (P(None, "x"), P("x")), P(), ["psum x"]),
    "both": (
        lambda a, w: (a @ w).sum(0),
        (P("x", "y"), P("y")),
        P(),
        ["psum x y"],
    ),
    "one after another": (
        lambda a, w: jnp.mean(a @ w, 0),
        (P("x", "y"), P("y")),
        P(),
        ["pmean x", "psum y"],
    ),
    "tree": (
        lambda a, w: {"loss": jnp.mean(a @ w), "out": a @ w, "count": jnp.sum(a > 0)},
        (P("x"), P()),
        P(),
        ["psum x", "pmean x", "P('x', None)"],
    ),
    "rows of a scan": (rows, (P("x"), P()), (P(), P()), ["psum x", "P('x', None)"]),
    "loss beside its gradient": (gradient, (P("x"), P()), (P(), P()), ["psum x"]),
}


def written(edit):
    if isinstance(edit, NameInOutSpecs):
        return str(edit.spec)
    return " ".join((name_of(edit), *edit.axes))


def program_of(body, in_specs, out_specs):
    arrays = array("a", (8, 16), *in_specs[0]), array("w", (16, 16), *in_specs[1])
    return sv.program(mapped(body, in_specs, out_specs), *arrays, mesh=AUTO)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_edit_gives_the_values_of_the_body_on_whole_arrays(case, eight_devices):
    body, in_specs, out_specs, expected = case
    program = program_of(body, in_specs, out_specs)
    refusals = sv.plan(program).error.refusals
    assert all(len(refusal.edits) == 1 for refusal in refusals)
    assert sorted(written(refusal.edits[0]) for refusal in refusals) == sorted(expected)
    (change,) = sv.changes(program, "types", target="cpu:8")
    assert change.values.ok
    random = np.random.default_rng(0)
    a, w = (random.standard_normal(s).astype("float32") for s in ((8, 16), (16, 16)))
    values = sv.run(change.program, a, w, target="cpu:8").outputs
    one_device = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("x", "y"))
    specs = {"in_specs": P(), "out_specs": P(), "check_vma": False}
    whole = jax.shard_map(body, mesh=one_device, **specs)(a, w)
    for value, true in zip(jax.tree.leaves(values), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(value, true, rtol=1e-4, atol=1e-4)


LATE = {
    "product": (lambda a, w: jax.nn.relu(a @ w), (P(None, "x"), P("x")), "psum"),
    "norm": (lambda a, w: jnp.sqrt((a * a).sum(0)), (P("x"), P()), "psum"),
    "centred": (lambda a, w: a - a.mean(0), (P("x"), P()), "pmean"),
    "softmax": (lambda a, w: jax.nn.softmax(a, 0), (P("x"), P()), "pmax"),
}


@pytest.mark.parametrize(("body", "in_specs", "code"), LATE.values(), ids=LATE)
def test_a_part_of_a_sum_that_is_read_is_summed_before(body, in_specs, code):
    (refusal,) = sv.plan(program_of(body, in_specs, P())).error.refusals
    (edit,) = refusal.edits
    assert (type(edit), edit.collective, edit.axes) == (CombineBeforeRead, code, ("x",))
    line = inspect.getsourcelines(body)[1]
    assert edit.line == f"test_shard_map_results.py:{line}"


def test_an_edit_whose_values_differ_is_not_offered(eight_devices):
    def body(a, w):  # sorting has no rule, so that any edit may be right
        return jnp.sort(a, 0)[0]

    program = program_of(body, (P("x"), P()), P())
    (refusal,) = sv.plan(program).error.refusals
    assert {edit.is_right for edit in refusal.edits} == {None}
    found = sv.changes(program, "types", target="cpu:8")
    assert not found
    assert found.advice[0].edits == ()


def test_without_a_comparison_no_change_is_proposed(eight_devices):
    def body(a, w):
        return jnp.where(lax.axis_index("x") == 3, a.sum(0), 0.0)

    program = program_of(body, (P("x"), P()), P())
    found = sv.changes(program, "types", target="cpu:8")
    assert not found
    assert {edit.is_right for edit in found.advice[0].edits} == {None}
    # Turning off the check is the last thing to try.
    assert isinstance(found.advice[0].edits[-1], SkipCheck)


def test_the_line_is_the_users_inside_of_a_function_and_under_a_mesh_in_context(eight_devices):
    def body(a, w):
        return (a @ w).sum(0)

    def function(a, w):
        return jnp.tanh(jax.shard_map(body, in_specs=(P("x"), P()), out_specs=P())(a, w))

    line = inspect.getsourcelines(body)[1] + 1
    with jax.set_mesh(devices_mesh()):
        a, w = jnp.zeros((8, 16)), jnp.zeros((16, 16))
        program = sv.program(function, a, w, in_specs=(P("x"), P()))
        (refusal,) = sv.plan(program).error.refusals
        assert refusal.source == f"test_shard_map_results.py:{line}"
        assert [written(edit) for edit in refusal.edits] == ["psum x"]
        found = sv.changes(program, "types", target="cpu:8")
    assert not found
    assert found.advice[0].edits[0].bytes > 0
