"""Edges of resolving and matching, with answers that are counted or computed by flax here."""

from __future__ import annotations

import re

import jax
import pytest
from flax.core.spmd import from_sharding_rules

import shardviz as sv
from shardviz.axis_rules.path_automaton import automaton
from shardviz.axis_rules.path_matching import MAX_PATTERN
from tests.layout.test_rules_equal_flax import answer

MESH = sv.mesh(data=4, model=2)
FREE = jax.sharding.PartitionSpec.UNCONSTRAINED


@pytest.mark.parametrize(
    ("names", "rules", "codes"),
    [
        ("data model", [], []),
        # Names that nnx takes for axes: both are axes of the mesh, and the spec repeats one.
        ("data data", [], ["spec"]),
        ("tensor data", [], ["name is no axis"]),
        ("a data", [("a", "data")], ["spec"]),
        # Two dimensions share an axis, which is one problem of the spec.
        ("a b", [("a", "data"), ("b", "data")], ["spec"]),
        ("a b c", [("a", "data"), ("b", "data"), ("c", "tensor")], ["verdict", "spec"]),
        ("a b", [("a", ("data", "data")), ("b", "model")], ["verdict"]),
    ],
)
def test_what_fails_under_nnx(names, rules, codes):
    resolution = sv.resolve(names, rules, mesh=MESH, dialect="nnx")
    assert [problem.code for problem in resolution.failures] == codes


@pytest.mark.parametrize("names", [(None,), (FREE,), (FREE, None, "a"), ("a", FREE, "x")])
@pytest.mark.parametrize("rules", [[], [("a", "data")], [("a", FREE)]])
def test_entries_that_are_not_names_under_nnx(names, rules):
    spec = sv.resolve(names, rules, dialect="nnx").spec
    by_flax = answer(lambda: jax.sharding.PartitionSpec(*from_sharding_rules(names, rules)))
    assert spec.unconstrained == {d for d, entry in enumerate(by_flax) if entry is FREE}
    split = [() if entry in (None, FREE) else (entry,) for entry in by_flax]
    assert spec.dims == tuple(split)


@pytest.mark.parametrize(("letters", "accepted"), [(MAX_PATTERN, True), (MAX_PATTERN + 1, False)])
def test_how_long_a_pattern_may_be(letters, accepted):
    table = [("a" * letters, ("data",))]
    found = answer(lambda: sv.resolve("b", table, dialect="regex").verdicts[0].kind)
    assert (found == "does not match") == accepted


@pytest.mark.parametrize("pattern", ["a?b", "(a?)b", "a{0,1}b", "a{2}b", "a{1,2}b", "a+b", "a*b"])
@pytest.mark.parametrize("letters", range(5))
def test_how_often_an_automaton_repeats(pattern, letters):
    text = "a" * letters + "b"
    assert automaton(pattern, whole_text=True).matches(text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("mlp embed", ()),
        (("mlp", None), ()),
        ("mlpp zzz", ((0, "mlpp", "mlp"), (1, "zzz", None))),
        (("zzz", None, "embed"), ((0, "zzz", None),)),
    ],
)
def test_which_names_have_no_rule(names, expected):
    resolution = sv.resolve(names, [("mlp", "model"), ("embed", None)])
    assert resolution.unmatched() == expected
    assert [decision.near for decision in resolution.decisions if decision.unknown] == [
        near for _, _, near in expected
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("mlp", "Decision(dimension 0, mlp → model by rule 1)"),
        ("zzz", "Decision(dimension 0, zzz → None by no rule)"),
        ((None,), "Decision(dimension 0, nameless → None by no rule)"),
    ],
)
def test_a_decision_shows_its_rule(names, text):
    assert repr(sv.resolve(names, [("mlp", "model")]).decisions[0]) == text
