"""What a search may vary, without any compile."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import shardviz as sv
from shardviz.advise.candidates import Candidate
from shardviz.advise.search import Search
from shardviz.advise.search_space import choices_of, edits_of
from shardviz.compiled.report import Memory, Report
from shardviz.compiled.roofline import Bound, Roofline
from shardviz.hardware.chips import find_chip


def mlp(x, w1, w2):
    return jax.nn.relu(x @ w1) @ w2


X, W1, W2 = sv.array("x", (64, 32)), sv.array("w1", (32, 128)), sv.array("w2", (128, 32))


def choices(program, over):
    return choices_of(program, sv.plan(program), over)


def test_meshes_are_the_factorisations_in_each_order_of_axes_above_one():
    program = sv.program(mlp, X, W1, W2, mesh="data=4, model=2")
    (choice,) = choices(program, ("mesh",))
    found = {tuple((n, s) for n, s in m.shape.items() if s > 1) for m in choice.options[1:]}
    two = [("data", 4), ("model", 2)], [("data", 2), ("model", 4)]
    expected = {(("data", 8),), (("model", 8),), *map(tuple, two), *map(tuple, map(reversed, two))}
    assert len(choice.options) == len(expected)
    assert found == expected - {(("data", 4), ("model", 2))}


def test_each_axis_splits_one_dimension_or_none():
    program = sv.program(mlp, X, W1, W2, mesh="data=4, model=2")
    _, choice = choices(program, ("w1",))
    # Split over nothing it is now.
    assert {str(spec) for spec in choice.options[1:]} == {
        "P('data', None)",
        "P(None, 'data')",
        "P('model', None)",
        "P(None, 'model')",
        "P('data', 'model')",
        "P('model', 'data')",
        "P(('data', 'model'), None)",
        "P(None, ('data', 'model'))",
    }


def test_arguments_of_one_use_and_layers_of_a_list_share_a_spec():
    def step(params, x):
        for layer in params["layers"]:
            x = (x @ layer["q"] + x @ layer["k"]) @ layer["o"]
        return x

    square = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    layer = {"q": square, "k": square, "o": square}
    x = jax.ShapeDtypeStruct((64, 32), jnp.float32)
    program = sv.program(step, {"layers": [layer, layer]}, x, mesh="data=2")
    groups = {choice.names for choice in choices(program, ("arguments",))[1:]}
    kinds = [{name.split("'")[-2] if "'" in name else name[-1] for name in g} for g in groups]
    assert sorted(map(sorted, kinds)) == [["k", "q"], ["o"], ["x"]]
    assert sorted(map(len, groups)) == [1, 2, 4]


def test_small_arrays_stay_as_they_are_unless_named():
    def scaled(x, scale):
        return x * scale

    program = sv.program(scaled, sv.array("x", (4096, 8)), sv.array("scale", (8,)), mesh="a=2")
    assert [c.names for c in choices(program, ("arguments",))[1:]] == [("x",)]
    assert [c.names for c in choices(program, ("scale",))[1:]] == [("scale",)]


def test_rules_change_in_one_edit_and_its_table_is_read_by_the_program():
    x, w = sv.array("x", (64, 32), "batch embed"), sv.array("w", (32, 128), "embed mlp")
    rules = sv.rules(("batch", "data"), ("mlp", "model"))
    program = sv.program(lambda x, w: x @ w, x, w, mesh="data=4, model=2", rules=rules)
    found = choices(program, None)
    assert [choice.kind for choice in found] == ["mesh", "rules", "rules", "rules"]
    embed, mlp_ = found[2].options.index(("data",)), found[3].options.index(())
    (edit,) = edits_of(program, found, (0, 0, embed, mlp_))
    assert dict(edit.rules.pairs()) == {"batch": "data", "mlp": None, "embed": "data"}
    assert len(edit.steps) == 2


def test_a_spec_that_names_an_axis_of_size_one_is_another_ones_repetition():
    program = sv.program(mlp, X, W1, W2, mesh="data=8, model=1")
    found = choices(program, ("mesh", "x"))
    split = [str(spec) for spec in found[1].options].index("P('model', None)")
    assert edits_of(program, found, (0, split)) == edits_of(program, found, (0, 0)) == []
    on_both = found[0].options.index(sv.mesh(data=4, model=2))
    mesh, argument = edits_of(program, found, (on_both, split))
    assert mesh.code == "mesh"
    assert str(argument.spec) == "P('model', None)"


@pytest.mark.parametrize("over", [("bytes",), ("rules",)])
def test_what_cannot_vary_is_refused(over):
    program = sv.program(mlp, X, W1, W2, mesh="data=4, model=2")
    with pytest.raises(sv.ShardvizError, match="varies"):
        choices(program, over)


def candidate(seconds, size):
    rows = (Bound("compute", "compute", seconds, "FLOP/s", 1.0),)
    known = Roofline("tpu:v5e:4x4", find_chip("v5e"), rows)
    report = Report("f", "", memory=Memory(arguments=size), roofline=known)
    return Candidate((), sv.program(mlp, X, W1, W2, mesh="data=2"), report, report)


def test_a_frontier_keeps_what_nothing_beats():
    points = [(3, 6), (2, 5), (1, 9), (2, 7), (4, 5), (5, 1)]
    search = Search.of([candidate(*point) for point in points])
    kept = [(one.least_seconds, one.peak_bytes) for one in search.frontier]
    beaten = [p for p in points if any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)]
    assert set(kept) == set(points) - set(beaten)


def test_an_empty_search_has_no_best_and_explains_nothing():
    found = Search.of([], ended="seconds")
    assert (found.best, found.frontier, found.exhaustive) == (None, (), False)
    with pytest.raises(sv.ShardvizError, match="least time"):
        found.explain()
