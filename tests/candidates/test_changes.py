from __future__ import annotations

import functools
import runpy
from typing import Any, NamedTuple

import jax
import pytest

import shardviz as sv
from shardviz.advise.backend.apply import apply_edit
from shardviz.advise.backend.changes import Original, counterparts
from shardviz.advise.backend.edited import TracedValue, values_of
from shardviz.advise.backend.proposals import UnwantedCollective, proposals, variants
from shardviz.advise.backend.trials import Trials
from shardviz.advise.candidates import Candidate, Misfit, Refusal
from shardviz.advise.edits import (
    ChangeConstraint,
    ChangeRules,
    ConstrainArgument,
    ConstrainValue,
    Donate,
    EditTypes,
    SplitArgument,
)
from shardviz.base.collective import Collective, sent_in_all
from shardviz.base.errors import ProgramError
from shardviz.compiled.checks import ChangeNotRun
from shardviz.compiled.report import Report
from shardviz.pictures import draw
from shardviz.plans.plan import Plan
from shardviz.programs.backend.jaxpr_function import as_jaxpr
from tests.candidates import models

MESH = "data=4, model=2"
Spec = sv.Spec


def program(fn: Any, **specs: Any) -> sv.Program:
    arrays = [sv.array(name, *shape_and_spec) for name, shape_and_spec in specs.items()]
    return sv.program(fn, *arrays, mesh=MESH)


def split(shape: tuple[int, ...], spec: str) -> tuple[Any, ...]:
    return shape, None, "float32", spec


def layer(w: str = "data, model") -> sv.Program:
    x = split((64, 32), "data")
    return program(models.layer, x=x, w=split((32, 64), w))


@functools.cache
def layer_changes() -> Any:
    return sv.changes(sv.compile(layer(), target="cpu:8"))


def value(of: sv.Program, name: str, variable: str) -> TracedValue:
    (found,) = [
        one for one in values_of(as_jaxpr(of)) if (one.operation, one.variable) == (name, variable)
    ]
    return found


def constraint(of: TracedValue, spec: str) -> ConstrainValue:
    where = (of.operation, of.variable, of.source, of.shape)
    return ConstrainValue(*where, Spec.parse(spec), of.places)


def test_the_split_that_the_product_cannot_use_is_dropped() -> None:
    first = layer_changes()[0]
    specs = Spec.parse("None, model"), Spec.parse("data, model")
    assert first.edits == (SplitArgument("w", *specs),)
    assert first.collectives == ()
    assert first.bytes == 0
    assert first.values.ok
    assert first.before.collectives
    assert first.code() == "in_specs = (P('data'), P(None, 'model'),)"


def test_what_is_returned_beside_arrays_is_left_out() -> None:
    x = sv.array("x", (64, 32), spec="data")
    w = sv.array("w", (32, 64), spec="data, model")
    made = sv.program(lambda x, w, act: (act(x @ w), act), x, w, jax.nn.relu, mesh=MESH)
    first, *_ = sv.changes(made, target="cpu:8")
    assert first.edits == layer_changes()[0].edits
    assert first.values.ok


def test_what_a_change_promises_is_what_its_program_compiles_to() -> None:
    for one in layer_changes():
        again = sv.compile(one.program, target="cpu:8")
        assert sent_in_all(again.collectives or ()) == one.bytes
        assert one.bytes < sent_in_all(one.before.collectives or ())
        assert sv.run(one.program, target="cpu:8").ok


def test_refusals_say_why() -> None:
    codes = {one.code for one in layer_changes().refused}
    assert codes
    assert codes <= {"same collective", "moved elsewhere", "more work", "hardly less"}
    assert all(str(one) for one in layer_changes().refused)


def gather(op: str, size: int) -> Collective:
    return Collective("all-gather", ("model",), size, group_size=4, op=op, source="f.py:1")


def test_a_collective_for_others_by_another_name_is_not_what_is_left() -> None:
    small, whole = gather("reduce", 128), gather("sort", 8192)
    before = Report("f", "cpu × 8", collectives=(small, whole))
    original = Original.of(before, Plan("f", sv.mesh(MESH)), small)
    # Where one gather is for both, XLA names it after either.
    shared = before.replace(collectives=(gather("reduce", 8192),))
    assert original.left(before) == small.sent_in_all
    assert original.left(shared) == 0
    both = before.replace(collectives=(gather("reduce", 8192), whole))
    assert original.left(both) == whole.sent_in_all
    renamed = before.replace(collectives=(gather("sharding_constraint", 128), whole))
    assert original.left(renamed) == small.sent_in_all
    # If the program sends less, the renamed one is another collective in its place.
    assert original.left(before.replace(collectives=renamed.collectives[:1])) == 0


def test_collectives_of_one_operation_are_told_apart() -> None:
    small, whole = gather("dot", 128), gather("dot", 8192)
    before = Report("f", "cpu × 8", collectives=(small, whole))
    original = Original.of(before, Plan("f", sv.mesh(MESH)), whole)
    assert original.left(before.replace(collectives=(small,))) == 0
    assert original.left(before.replace(collectives=(whole,))) == whole.sent_in_all
    shrunk = before.replace(collectives=(gather("dot", 4096), small))
    assert original.left(shrunk) == gather("dot", 4096).sent_in_all


def test_a_collective_renamed_by_the_compiler_is_found_by_its_kind() -> None:
    # The partitioner calls the gather reshape; the final program, dot_general.
    total = Collective("all-reduce", ("data",), 4, group_size=4, op="dot", source="f.py:1")
    partitioned = total, gather("reshape", 8192)
    assert counterparts(gather("dot", 8192), partitioned) == partitioned[1:]


def test_a_plan_finds_the_same_change_as_a_report_and_a_program() -> None:
    made = layer()
    wanted = layer_changes()[0].edits
    assert sv.changes(sv.plan(made), target="cpu:8")[0].edits == wanted
    assert sv.changes(made, 0, target="cpu:8")[0].edits == wanted


def test_plans_and_reports_know_their_program() -> None:
    made = layer()
    report = sv.compile(made, target="cpu:8")
    assert sv.plan(made).of is made
    assert report.of is made
    assert report.on.name == "cpu:8"


@pytest.mark.parametrize("thing", [sv.mesh(data=2), 3, lambda x: x])
def test_what_has_no_program_is_refused(thing: Any) -> None:
    with pytest.raises(ProgramError):
        sv.changes(thing)


def test_a_report_of_a_file_has_no_function_to_change() -> None:
    report = sv.report(jax.jit(lambda x: x * 2).lower(1.0).compile().as_text())
    with pytest.raises(ProgramError, match="no function to change, because it was read from a"):
        sv.changes(report)


def test_an_unknown_collective_is_refused() -> None:
    report = sv.compile(layer(), target="cpu:8")
    for which in ("", 7, "no_such_collective"):
        with pytest.raises(ProgramError):
            sv.changes(report, which)


# Constraints, compared with the same constraint written in the code.


def test_a_constraint_on_explicit_axes_is_a_reshard_on_the_mesh_that_is_set(
    eight_devices: list[jax.Device],
) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), devices=eight_devices)
    x, w = jax.ShapeDtypeStruct((64, 32), "float32"), jax.ShapeDtypeStruct((32, 64), "float32")
    with jax.set_mesh(mesh):
        plain = sv.program(models.variable, x, w, in_specs=(jax.P("data"), jax.P(None, "model")))
        split = constraint(value(plain, "dot_general", "h"), "data, None")
        changed = apply_edit(plain, split)
        tried = sv.compile(changed, target="cpu:8")
    assert tried.error is None
    assert [one.kind for one in tried.collectives or ()] == ["all-gather"]
    assert split.to_paste(changed).startswith("h = jax.sharding.reshard(h, P('data', None))")


@pytest.mark.parametrize(
    ("fn", "w", "spec"),
    [
        (models.two_layers, split((64, 64), "data"), "data, model"),
        (models.two_layers, split((64, 64), "None, model"), "data, None"),
        (models.scanned, split((3, 64, 64), "None, data"), "data, model"),
        (models.scanned, split((3, 64, 64), "None, None, model"), "data, None"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_a_constraint_is_what_it_would_be_in_the_code(
    fn: Any, w: Any, spec: str, grad: bool
) -> None:
    def wrapped(fn: Any) -> Any:
        return jax.grad(fn) if grad else fn

    arrays = {"w": w, "x": split((128, 64), "data")}
    plain = program(wrapped(fn), **arrays)
    written = program(wrapped(functools.partial(fn, spec=Spec.parse(spec).to_jax())), **arrays)
    tried = apply_edit(plain, constraint(value(plain, "dot_general", "h"), spec))

    def sent(made: sv.Program) -> list[Any]:
        report = sv.compile(made, target="cpu:8")
        assert report.error is None
        rows = [(c.kind, c.mesh_axes, c.bytes_in_all) for c in report.collectives or ()]
        return sorted(rows)

    assert sent(tried) == sent(written)


WIDTHS = {
    "first": split((64, 256), "data"),
    "second": split((256, 256), "data"),
    "third": split((256, 64), "data"),
    "x": split((128, 64), "data"),
}


def of_shape(of: sv.Program, shape: tuple[int, ...]) -> TracedValue:
    (found,) = [
        one
        for one in values_of(as_jaxpr(of))
        if (one.operation, one.variable, one.shape) == ("dot_general", "h", shape)
    ]
    return found


@pytest.mark.parametrize("spec", ["None, data", "data, None"])
def test_a_cotangent_is_constrained_once_as_in_the_code(spec: str) -> None:
    grad = functools.partial(jax.grad, argnums=(0, 1, 2))
    plain = program(grad(models.widths), **WIDTHS)
    fn = functools.partial(models.widths, spec=Spec.parse(spec).to_jax())
    made = of_shape(plain, (128, 256)).constrained(Spec.parse(spec))
    programs = apply_edit(plain, made), program(grad(fn), **WIDTHS)
    tried, written = [str(as_jaxpr(one).fn.jaxpr).count("sharding_constraint[") for one in programs]
    # Two layers have this shape, each with its cotangent.
    assert tried == written == 4


def test_the_text_of_a_traced_function_does_not_contain_its_jaxpr() -> None:
    # jax reads the text whenever it traces the function.
    fn = as_jaxpr(program(jax.grad(models.widths, argnums=(0, 1, 2)), **WIDTHS)).fn
    assert "dot_general" in str(fn.jaxpr)
    assert "dot_general" not in str(fn)


def test_the_cotangent_of_a_product_is_its_first_operand() -> None:
    plain = program(jax.grad(models.widths, argnums=(0, 1, 2)), **WIDTHS)
    # x has the shape of the last result, and is the other factor of a gradient.
    places = of_shape(plain, (128, 64)).places
    assert {operand for _, operand in places} == {None, 0}
    assert len(places) == 3


def test_a_constraint_of_one_shape_is_for_that_shape_alone_in_code() -> None:
    plain = program(models.widths, **WIDTHS)
    made = of_shape(plain, (128, 256)).constrained(Spec.parse("None, data"))
    assert str(made).startswith("Constrain h[128,256] (models.py:")
    line = "if h.shape == (128, 256): h = jax.lax.with_sharding_constraint(h, "
    assert made.to_paste(plain).startswith(line)


class Pair(NamedTuple):
    low: Any
    high: Any


def test_code_replaces_arguments_in_lists_and_keeps_tuples() -> None:
    shape = jax.ShapeDtypeStruct((8, 8), "float32")
    tree = {"tables": [shape, shape], "pair": (shape,), "named": Pair(shape, shape)}
    made = sv.program(lambda p: p["tables"][0] + p["pair"][0], tree, mesh=MESH)

    def code(name: str) -> str:
        return SplitArgument(name, Spec.parse("data")).to_paste(made)

    assert code("p.tables[1]").startswith('p["tables"][1] = jax.device_put(p["tables"][1], ')
    assert code("p.pair[0]").startswith('jax.device_put(p["pair"][0], ')
    assert code("p.named.low").startswith('jax.device_put(p["named"].low, ')


def test_code_of_a_result_names_the_others() -> None:
    def codes(fn: Any) -> set[str]:
        made = program(fn, x=split((64, 32), "data"), w=split((32, 64), "None, model"))
        trials = Trials(made, "cpu:8")
        wanted = UnwantedCollective(trials, Collective("all-gather", ("data",), 8), sv.plan(made))
        made_codes = set()
        for proposal in proposals(wanted):
            made_codes |= {e.to_paste(made) for e in proposal.edits if e.code == "result"}
        return made_codes

    assert "out_specs = P(None, 'model')  # output" in codes(lambda x, w: x @ w)
    assert "out_specs = (None, P(None, 'model'),)" in codes(lambda x, w: (x.sum(), x @ w))
    in_tree = codes(lambda x, w: ({"y": x @ w}, x.sum()))
    (line,) = [line for line in in_tree if ", P(None, 'model'))" in line]
    assert line.startswith("jax.lax.with_sharding_constraint(..., ")
    assert "output[0].y" in line


def test_a_constraint_that_stands_in_the_code_is_changed() -> None:
    x = split((64, 32), "(data, model)")
    made = program(models.constrained, x=x, w=split((32, 8), "None"))
    made = made.replace(out_specs=Spec.parse("(data, model)"))
    first = sv.changes(made, target="cpu:8")[0]
    assert first.edits[0].code == "constraint"
    assert first.bytes == 0
    assert isinstance(first.edits[0], ChangeConstraint)
    assert first.edits[0].operation == "sharding_constraint"
    assert first.edits[0].spec == Spec.parse("(data, model), None")


def test_a_constraint_of_an_argument_is_what_it_would_be_in_the_code() -> None:
    x, w = split((128, 64), "data, model"), split((64, 64), "None, model")
    plain = program(models.two_layers, w=w, x=x)
    number, spec = 1, Spec.parse("data, None")
    made = ConstrainArgument("x", number, spec)
    tried = apply_edit(plain, made)

    def written(w: Any, x: Any) -> Any:
        return models.two_layers(w, jax.lax.with_sharding_constraint(x, spec.to_jax()))

    reports = [sv.compile(one, target="cpu:8") for one in (tried, plain.replace(fn=written))]
    sent = [sorted((c.kind, c.bytes_in_all) for c in r.collectives or ()) for r in reports]
    assert sent[0] == sent[1] != []
    assert str(made) == "Constrain argument x to P('data', None) at the start of the function"
    sharding = "jax.sharding.NamedSharding(mesh, P('data', None))"
    code = f"x = jax.lax.with_sharding_constraint(x, {sharding})  # first in two_layers"
    assert made.to_paste(tried) == code
    explicit = plain.replace(mesh=sv.mesh(MESH, axis_types="Explicit"))
    assert made.to_paste(explicit).startswith(f"x = jax.sharding.reshard(x, {sharding})")
    assert Trials(plain, "cpu:8").values(tried).ok


def test_a_value_of_a_gradient_whose_cotangent_is_unknown_is_not_proposed() -> None:
    made = program(jax.grad(models.scanned), w=split((3, 64, 64), ""), x=split((128, 64), ""))
    by_name = {one.operation: one for one in values_of(as_jaxpr(made))}
    assert by_name["dot_general"].places
    assert "tanh" not in by_name


# Rules.


LIBRARY = """
def scaled(x):
    return (x - x.mean()) * 2
"""


def test_values_inside_of_a_library_are_not_constrained(tmp_path) -> None:
    path = tmp_path / "site-packages" / "layers.py"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    layers = runpy.run_path(str(path))

    def fn(x: Any) -> Any:
        y = layers["scaled"](x)
        return y + jax.numpy.tanh(y)

    found = values_of(as_jaxpr(program(fn, x=split((64, 32), "data"))))
    # What the layer returns has a name in the code.
    assert [(one.operation, one.variable) for one in found] == [
        ("mul", "y"),
        ("tanh", ""),
        ("add", ""),
    ]


def test_of_two_equal_operations_on_one_line_none_is_proposed() -> None:
    square = split((64, 64), "data")
    twice = program(lambda x, w: x @ w @ w, x=square, w=square)
    unrolled = program(
        lambda x, w: functools.reduce(lambda h, _: h @ w, range(2), x), x=square, w=square
    )
    (repeated,) = values_of(as_jaxpr(unrolled))
    assert values_of(as_jaxpr(twice)) == []
    assert len(repeated.places) == 2


def test_a_table_is_edited_where_the_program_has_one() -> None:
    rules = sv.rules(("batch", "data"), ("embed", "data"), ("mlp", "model"))
    x = sv.array("x", (64, 32), "batch _")
    w = sv.array("w", (32, 64), "embed mlp")
    made = sv.program(models.layer, x, w, mesh=MESH, rules=rules)
    found = sv.changes(made, target="cpu:8")
    tables = [one for one in found if one.edits[0].code == "rule"]
    assert tables
    assert found.index(tables[0]) < 3
    assert tables[0].program.requests[1].spec == Spec.parse("None, model")
    assert tables[0].bytes == 0


def test_a_table_that_several_arrays_ask_for_is_proposed_once() -> None:
    rules = sv.rules(("batch", "data"), ("mlp", "model"), ("embed", "model"), ("embed", None))
    x, y = (sv.array(name, (64, 32), "batch embed") for name in "xy")
    w = sv.array("w", (32, 64), "embed mlp")
    made = sv.program(lambda x, y, w: (x + y) @ w, x, y, w, mesh=MESH, rules=rules)
    plan = sv.plan(made)
    wanted = UnwantedCollective(Trials(made, "cpu:8"), plan.collectives[0], plan)
    tables = []
    for one in proposals(wanted):
        if isinstance(one.edits[0], ChangeRules):
            tables.append(str(one.edits[0].rules.pairs()))
    assert len(tables) == len(set(tables)) > 1


# Trials.


def test_other_values_are_refused() -> None:
    trials = Trials(layer(), "cpu:8")
    donate = Donate(())
    other = layer().replace(fn=models.other_layer)
    changed = trials.compile([donate], other)
    assert isinstance(changed, Candidate)
    refused = trials.compare(changed)
    assert isinstance(refused, Refusal)
    assert refused.code == "values differ"
    assert isinstance(trials.candidate([donate]), Candidate)


def test_edits_that_do_not_fit_are_refused() -> None:
    trials = Trials(layer(), "cpu:8")
    spec = Spec.parse("no_such_axis")
    refused = trials.candidate([SplitArgument("x", spec)])
    assert isinstance(refused, Misfit)
    assert refused.code == "not made"
    assert refused.reason
    assert isinstance(trials.candidate([EditTypes()]), Misfit)


def test_effects_are_not_run_twice() -> None:
    made = program(models.printed, x=split((64, 32), "data"))
    check = Trials(made, "cpu:8").values(made)
    assert check.ok is None
    assert isinstance(check.finding, ChangeNotRun)


def test_a_trial_of_the_original_is_the_original() -> None:
    trials = Trials(layer(), "cpu:8")
    kinds = [one.kind for one in trials.partitioned(trials.program).collectives or ()]
    assert kinds == [one.kind for one in trials.before.partitioned or ()]
    assert trials.values(trials.program).ok


def test_variants_fit_and_move_nothing_but_the_axes() -> None:
    mesh = sv.mesh(data=4, model=2)
    found = list(variants((8, 2), Spec.parse("data, model"), ["data"], mesh))
    assert found == [Spec.parse("None, model")]


# What it looks like.


def test_text_and_picture_have_every_change_and_its_code() -> None:
    found = layer_changes()
    text = sv.text(found, width=200)
    for one in found:
        assert one.code() in text
        assert one.edit in text
    rows = [label.text for label in draw(found).labels]
    assert any(text.startswith("Split argument w") for text in rows)
    assert sv.text(found[0], width=200).startswith(found[0].edit)
    assert repr(found).startswith("Changes(")
