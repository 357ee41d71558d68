"""All that jax refuses of a program for its types, and edits that it accepts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardviz as sv
from shardviz.advise.backend.trials import Trials
from shardviz.base.collective import sent_in_all
from shardviz.programs.backend.bridge import abstract_mesh
from shardviz.programs.backend.jaxprs import operations, spec_notes, sum_notes
from shardviz.programs.backend.refused import explicit_form, typed_form
from shardviz.programs.backend.trace import trace
from shardviz.programs.notes import SumOfEquals, SumOfGradient
from shardviz.programs.refusals import CastCarry, OutSharding
from tests.refusals.threads import AUTO, EXPLICIT, OURS, THREADS, A, array, find, mapped, row

ALL = (*THREADS, *OURS)


def train_step(mesh):
    """A step of two layers, whose gradients are split as their parameters."""
    arrays = (array("w", (16, 32), "x", "y"), array("v", (32, 16), "y", "x"))

    def step(w, v, a):
        def loss(w, v):
            return jnp.sum(jnp.tanh(a @ w) @ v)

        gradients = jax.grad(loss, (0, 1))(w, v)
        return jax.tree.map(lambda p, g: p - g, (w, v), gradients)

    return sv.program(step, *arrays, array("a", (8, 16), "x"), mesh=mesh)


@pytest.mark.parametrize("thread", ALL, ids=lambda thread: thread.thread)
def test_all_that_jax_says_is_said_and_what_helped_is_found(thread, eight_devices):
    said, named, line = row(thread)
    # What is missed stands in the threads; where it no longer is, the note goes.
    assert said == (not thread.unsaid), line
    assert named == (not thread.missed), line


ANSWERED = [one for one in ALL if one.operations and not one.unsaid]


@pytest.mark.parametrize("thread", ANSWERED, ids=lambda thread: thread.thread)
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
    specs = [str(edit.spec) for edit in refusal.edits if isinstance(edit, OutSharding)]
    assert specs[:2] == ["P(None, None)", "P('x', None)"]


def test_a_gradient_keeps_the_types_of_its_parameters():
    program = train_step(EXPLICIT)
    form = explicit_form(program)
    assert [r.backward for r in form.refusals] == [False]
    traced = trace(form.program, abstract_mesh(EXPLICIT))
    specs = [str(aval.sharding.spec) for aval in traced.stage.jaxpr.out_avals]
    assert specs == ["P('x', 'y')", "P('y', 'x')"]


def test_what_a_program_repeats_is_one_refusal():
    def layers(w, a):
        for _ in range(3):
            a = jnp.tanh(a @ w)
        return a

    arrays = (array("w", (16, 16), "y"), array("a", (8, 16), "x", "y"))
    form = explicit_form(sv.program(layers, *arrays, mesh=EXPLICIT), {0: 1})
    (refusal,) = form.refusals
    assert trace(form.program, abstract_mesh(EXPLICIT)).outputs
    products = [op for op in operations(form.program.fn.jaxpr) if op.name == "dot_general"]
    given = {op.equation.params["out_sharding"].spec for op in products}
    assert given == {P("x", "y")}
    assert str(refusal.edits[1].spec) == "P('x', 'y')"


def test_an_edit_names_all_values_of_a_carry_and_the_axes_that_each_lacks(eight_devices):
    def body(a, b):
        def step(carry, row):
            low, high, count, other = carry
            return (jnp.minimum(low, row), high + row, count + 1, other + row), None

        first = jnp.zeros(16)
        return lax.scan(step, (first, first, 0, b[0]), a)[0][3][None]

    arrays = (array("a", (8, 16), "x"), array("b", (4, 16), "y"))
    run = mapped(body, (P("x"), P("y")), P(("x", "y")))
    (refusal,) = sv.plan(sv.program(run, *arrays, mesh=AUTO)).error.refusals
    (edit,) = refusal.edits
    assert edit == CastCarry((0, 1, 3), ("x",))


def test_without_a_mesh_in_context_nothing_else_is_refused():
    # jax gives zeros no mesh then, and takes them for any carry.
    def summed(a, w):
        total, _ = lax.scan(lambda c, _: (c + a @ w, None), jnp.zeros((8, 32)), None, length=3)
        return total @ w.T

    arrays = (array("a", (8, 16), "x"), array("w", (16, 32), None, "y"))
    plan = sv.plan(sv.program(summed, *arrays, mesh=EXPLICIT))
    assert [refusal.operation for refusal in plan.error.refusals] == ["dot_general"]


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
    assert form.is_part
    assert sv.changes(program, "types", target="cpu:8").advice[0].edits[0].bytes == 0


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


# The forms that jax accepts, compiled and compared.


def of_threads(*names):
    return [thread for thread in ALL if thread.thread in names]


@pytest.mark.parametrize("thread", of_threads("joined", "jax#31080"), ids=lambda t: t.thread)
def test_edits_are_priced_and_the_program_with_the_best_has_the_same_values(thread, eight_devices):
    program = sv.program(thread.fn(), *thread.arrays, mesh=thread.mesh)
    found = sv.changes(program, "types", target="cpu:8")
    assert len(found) == 1
    assert found[0].values.ok
    assert found[0].report.ok
    for refusal in found.advice:
        sent = [edit.bytes for edit in refusal.edits]
        assert None not in sent
        assert sent == sorted(sent)
    assert len(found[0].code().splitlines()) == len(thread.operations)


def test_a_price_is_what_the_partitioner_sends(eight_devices):
    (thread,) = of_threads("jax#31800")
    program = sv.program(thread.fn(), *thread.arrays, mesh=thread.mesh)
    (refusal,) = sv.changes(program, "types", target="cpu:8").advice
    priced = {str(e.spec): e.bytes for e in refusal.edits if isinstance(e, OutSharding)}

    def summed(a):
        return jnp.matmul(a.T, a, out_sharding=P())

    report = sv.compile(sv.program(summed, *thread.arrays, mesh=EXPLICIT), target="cpu:8")
    sent = sum(one.sent_in_all for one in report.partitioned)
    assert priced["P(None, None)"] == sent == 1536


def residual(w, v, a, spec=None):
    """The loss of two layers with a sum around them, as the user edits it."""
    for _ in range(2):
        a = a + jnp.dot(jax.nn.gelu(a @ w), v, out_sharding=spec)
    return jnp.mean(jax.nn.log_softmax(a)[:, 0])


@pytest.mark.parametrize("specs", [(("x", "y"), ("y", "x")), ((None, "y"), ("y",))], ids=str)
def test_the_price_of_a_training_step_is_that_of_the_step_written_by_hand(specs, eight_devices):
    def step(spec):
        def run(w, v, a):
            gradients = jax.grad(residual, (0, 1))(w, v, a, spec)
            return jax.tree.map(lambda p, g: p - g, (w, v), gradients)

        return run

    arrays = (array("w", (16, 32), *specs[0]), array("v", (32, 16), *specs[1]), A)
    form = explicit_form(sv.program(step(None), *arrays, mesh=EXPLICIT))
    (refusal,) = form.refusals
    tried = Trials(form.base, "cpu:8").partitioned(form.program)
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    written = step(jax.NamedSharding(mesh, refusal.edits[0].spec.to_jax()))
    report = sv.compile(sv.program(written, *arrays, mesh=EXPLICIT), target="cpu:8")
    assert sent_in_all(tried.collectives) == sent_in_all(report.partitioned) > 0


def test_a_sum_over_rows_that_is_returned_gets_a_psum_and_the_values_are_right(eight_devices):
    (thread,) = of_threads("own sums")
    program = sv.program(thread.fn(), *thread.arrays, mesh=thread.mesh)
    (found,) = sv.changes(program, "types", target="cpu:8")
    assert found.values.ok


def test_a_program_of_auto_axes_in_its_explicit_form(eight_devices):
    program = train_step(AUTO)
    found = sv.changes(program, "explicit", target="cpu:8")
    assert set(found[0].program.mesh.axis_types) == {"Explicit"}
    assert found[0].values.ok
    (refusal,) = found.advice
    assert refusal.operation == "dot_general"
    # What is written has no price.
    assert (
        found[0].code() == f"out_sharding={refusal.edits[0].spec}  # dot_general, {refusal.source}"
    )


def told(x, w):
    return jnp.dot(x, w, out_sharding=P("x", None))


def test_what_is_explicit_already_stays_as_it_is(eight_devices):
    # Where nothing is split, which is how its types are found, it is another program.
    program = sv.program(
        told, array("a", (8, 16), "x", "y"), array("w", (16, 32), "y"), mesh=EXPLICIT
    )
    assert not sv.changes(program, "explicit", target="cpu:8")


def test_what_no_types_accept_is_raised_as_jax_says_it_of_the_program(eight_devices):
    def fn(a, w):
        specs = {"in_specs": (P("x"), P()), "out_specs": P("x")}
        return jax.shard_map(jnp.dot, mesh=abstract_mesh(EXPLICIT), **specs)(a, w)

    arrays = array("a", (8, 16), "x", "y"), array("w", (16, 32))
    program = sv.program(fn, *arrays, mesh=EXPLICIT)
    for way in ("types", "explicit"):
        with pytest.raises(ValueError, match=r"specs of the input: P\('x', 'y'\)"):
            sv.changes(program, way, target="cpu:8")


def loss(w, a):
    return ((a @ w) ** 2).mean()


def moved(take_mean):
    """A step of `pmap` in a `shard_map`, with parameters that are the same on all."""

    def step(w, a):
        if take_mean:
            return w - 0.1 * lax.pmean(jax.grad(loss)(w, a), "x")
        return w - 0.1 * jax.grad(lambda w: lax.pmean(loss(w, a), "x"))(w)

    return mapped(step, (P(), P("x")), P())


@pytest.mark.parametrize("take_mean", [True, False], ids=["of gradients", "of the loss"])
def test_a_mean_of_gradients_that_grad_has_summed_is_said(take_mean, eight_devices):
    program = sv.program(moved(take_mean), array("w", (16,)), array("a", (8, 16), "x"), mesh=AUTO)
    notes = sum_notes(trace(program, abstract_mesh(AUTO)).stage.jaxpr)
    kinds = [(type(note), note.axes) for note in notes]
    assert kinds == [(SumOfGradient, ("x",)), (SumOfEquals, ("x",))][: 1 + take_mean]
    assert all("test_refusals.py:" in note.line for note in notes)
    assert set(notes) <= set(sv.plan(program).notes)


W_SHAPE = (4, 16, 16)


def over_b(x, w):
    """Every device along b has its own weights, and all see all rows along b."""
    rows = lax.all_gather(x, "b", axis=0, tiled=True) @ w[0]
    return lax.psum_scatter(rows, "b", scatter_dimension=0, tiled=True)


def column(x, w):
    return x @ w


#: name: body, in_specs, out_specs, shape of w, whether its result has rows several times
SAME_ROWS = {
    "experts": (over_b, (P("a"), P("b")), P(("a", "b")), W_SHAPE, True),
    "experts on one axis": (over_b, (P(), P("b")), P("b"), W_SHAPE, True),
    "experts, rows of their own": (over_b, (P(("a", "b")), P("b")), P(("a", "b")), W_SHAPE, False),
    "columns": (column, (P("a"), P(None, "b")), P("a", "b"), (16, 64), False),
    "data parallel": (column, (P("b"), P()), P("b"), (16, 32), False),
}


@pytest.mark.parametrize("name", SAME_ROWS)
def test_rows_that_a_result_has_several_times_are_said(name, eight_devices):
    body, in_specs, out_specs, w_shape, several = SAME_ROWS[name]
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    fn = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    x = jax.random.normal(jax.random.key(0), (32, 16))
    result = jax.jit(fn)(x, jnp.ones(w_shape))
    assert (len(result) > len(x)) == several, "what jax gives"
    program = sv.program(fn, array("x", x.shape), array("w", w_shape), mesh=sv.mesh(mesh))
    notes = spec_notes(trace(program, abstract_mesh(program.mesh)).stage.jaxpr)
    assert [(note.axis, note.operand) for note in notes] == [("b", "x")] * several
    assert set(notes) <= set(sv.plan(program).notes)


def test_rows_of_a_closure_and_of_saved_values_are_not_said(eight_devices):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    rows = jnp.array([0, 2])

    def body(w, x):
        return lax.pmean(((x @ jnp.sin(w)) ** 2).mean(), ("a", "b"))

    def loss(w, x):
        specs = {"in_specs": (P(), P("a")), "out_specs": P(), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(w, x)

    def two_rows_each(x):
        return jax.shard_map(lambda x: x[rows], mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x)

    w, x = array("w", (16, 16)), array("x", (32, 16))
    for fn, *arrays in ((jax.grad(loss), w, x), (two_rows_each, x)):
        program = sv.program(fn, *arrays, mesh=sv.mesh(mesh))
        assert spec_notes(trace(program, abstract_mesh(program.mesh)).stage.jaxpr) == []


def test_a_sum_of_equals_names_only_the_axes_along_which_they_are_equal(eight_devices):
    def body(x):
        return lax.psum(lax.pcast(x, "b", to="varying"), ("a", "b"))

    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    fn = jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P())
    assert (jax.jit(fn)(jnp.ones((8,))) == 2 * 4).all(), "2 different rows, each 4 times"
    program = sv.program(fn, array("x", (8,)), mesh=sv.mesh(mesh))
    (note,) = sum_notes(trace(program, abstract_mesh(program.mesh)).stage.jaxpr)
    assert (note.axes, note.devices) == (("b",), 4)


def test_a_sum_of_what_varies_is_not_said(eight_devices):
    def body(a):
        return lax.psum(a.sum(), "x")

    program = sv.program(mapped(body, P("x"), P()), array("a", (8, 16), "x"), mesh=AUTO)
    assert sum_notes(trace(program, abstract_mesh(AUTO)).stage.jaxpr) == []
