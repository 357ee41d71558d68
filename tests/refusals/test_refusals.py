"""All that jax refuses of a program for its types, and edits that it accepts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.core.backend.bridge import abstract_mesh
from shardviz.core.backend.tracing.refused import explicit_form, typed_form
from shardviz.core.backend.tracing.trace import trace
from tests.refusals.threads import AUTO, EXPLICIT, THREADS, array, find, mapped, row


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread.thread)
def test_all_that_jax_says_is_said_and_what_helped_is_found(thread, eight_devices):
    said, named, line = row(thread)
    assert said, line
    assert named, line


@pytest.mark.parametrize("thread", THREADS, ids=lambda thread: thread.thread)
def test_the_edited_program_is_accepted(thread, eight_devices):
    program = sv.program(thread.fn(), *thread.arrays, mesh=thread.mesh)
    mesh = abstract_mesh(program.mesh)
    with pytest.raises(Exception) as raised:
        trace(program, mesh)
    form = typed_form(program, raised.value)
    assert form.program is not None
    assert trace(form.program, mesh).outputs


def test_a_refusal_says_where_it_is_and_what_the_types_are(eight_devices):
    found = find(THREADS[0])
    (refusal,) = found.error.refusals
    assert refusal.source.startswith("threads.py:")
    assert refusal.types == ("float32[16,8@x]", "float32[8@x,16]")
    assert refusal.said == found.jax
    specs = [str(edit.spec) for edit in refusal.edits if edit.code == "out_sharding"]
    assert specs[:2] == ["P(None, None)", "P('x', None)"]


def test_a_gradient_keeps_the_types_of_its_parameters():
    arrays = (array("w", (16, 32), "x", "y"), array("v", (32, 16), "y", "x"))

    def step(w, v, a):
        def loss(w, v):
            return jnp.sum(jnp.tanh(a @ w) @ v)

        gradients = jax.grad(loss, (0, 1))(w, v)
        return jax.tree.map(lambda p, g: p - g, (w, v), gradients)

    program = sv.program(step, *arrays, array("a", (8, 16), "x"), mesh=EXPLICIT)
    form = explicit_form(program)
    assert [r.backward for r in form.refusals] == [False]
    traced = trace(form.program, abstract_mesh(EXPLICIT))
    specs = [str(aval.sharding.spec) for aval in traced.stage.jaxpr.out_avals]
    assert specs == ["P('x', 'y')", "P('y', 'x')"]


def test_what_is_accepted_has_no_refusals():
    program = sv.program(lambda a: a * 2, array("a", (8, 16), "x"), mesh=EXPLICIT)
    form = explicit_form(program)
    assert form.refusals == ()
    assert sv.plan(program).error is None


def test_an_error_of_the_function_is_no_refusal():
    def broken(a):
        return a @ jnp.ones((3, 3))

    plan = sv.plan(sv.program(broken, array("a", (8, 16), "x"), mesh=EXPLICIT))
    assert plan.error.refusals == ()


def test_a_shard_map_inside_of_a_function_is_not_the_program(eight_devices):
    def body(a):
        return lax.scan(lambda c, row: (c + row, None), jnp.zeros(16), a)[0][None]

    run = mapped(body, P("x"), P("x"))

    def around(a):
        return run(jnp.cos(a)).sum()

    program = sv.program(around, array("a", (8, 16), "x"), mesh=AUTO)
    with pytest.raises(TypeError) as raised:
        trace(program, abstract_mesh(AUTO))
    form = typed_form(program, raised.value)
    assert [r.operation for r in form.refusals] == ["scan"]
    assert form.program is None


def test_a_gradient_in_a_shard_map_is_not_made_from_another(eight_devices):
    # Without the check jax makes no sum over devices, so edits of it would be others.
    def body(w, a):
        def loss(w):
            return lax.scan(lambda c, row: (c + row @ w, None), 0.0, a)[0]

        return jax.grad(loss)(w)

    program = sv.program(
        mapped(body, (P(), P("x")), P()),
        array("w", (16,)),
        array("a", (8, 16), "x"),
        mesh=AUTO,
    )
    plan = sv.plan(program)
    assert plan.error.stage == "trace"
    assert plan.error.refusals == ()
