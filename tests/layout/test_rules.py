"""Rules: every writing of a table, and what is refused."""

from __future__ import annotations

import pytest

from shardviz.axis_rules.dialects import DIALECTS, Dialect
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rule, Rules
from shardviz.base.errors import RuleError

TABLE = Rules.of(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None))


@pytest.mark.parametrize(
    "written",
    [
        "batch -> data\nmlp -> (model, expert)\nembed -> None",
        "batch: data; mlp: [model, expert]; embed: null",
        "batch = data\n\n# the wide one\nmlp = (model, expert)  # both\nembed = ()\n",
        "batch → data\nmlp ⇒ (model, expert); embed => None",
        "batch := data\nmlp->(model,expert)\nembed->None",
        "(('batch', 'data'), ('mlp', ('model', 'expert')), ('embed', None))",
        "[['batch', ['data']], ['mlp', ['model', 'expert']], ['embed', []]]",
        "('batch', 'data'),\n('mlp', ('model', 'expert')),\n('embed', None),",
        "- ['batch', 'data']\n- ['mlp', ['model', 'expert']]\n- ['embed', []]",
    ],
)
def test_typed_tables_are_read(written):
    assert Rules.parse(written) == TABLE
    assert Rules.of(written) == TABLE


@pytest.mark.parametrize(
    "given",
    [
        [("batch", "data"), ("mlp", ("model", "expert")), ("embed", None)],
        (["batch", ["data"]], ["mlp", ["model", "expert"]], ["embed", []]),
        [Rule("batch", ("data",)), ("mlp", ("model", "expert")), ("embed", ())],
    ],
    ids=["tuples", "lists", "mixed"],
)
def test_given_tables_are_read(given):
    assert Rules.of(given) == TABLE
    assert Rules.of(*given) == TABLE


def test_one_pair_is_a_table_of_one():
    assert len(Rules.of(("batch", "data"))) == 1
    assert len(Rules.of("batch -> data")) == 1
    assert len(Rules.of([])) == len(Rules.of("")) == len(Rules.of()) == 0
    assert Rules.of(TABLE) is TABLE


@pytest.mark.parametrize(
    "text", ["mlp -> model\nbatch ->\nembed -> None", "('a', 'b'", "(('a', 'b')"]
)
def test_typed_tables_that_are_refused(text):
    with pytest.raises(RuleError):
        Rules.parse(text)


@pytest.mark.parametrize(
    ("names", "rules", "options"),
    [
        ("a b a", TABLE, {}),
        ("a b", TABLE, {"shape": (8,)}),
        ("a", [("a", ("x", ("y",)))], {}),
        ("a", TABLE, {"dialect": "lenin"}),
        ("a", TABLE, {"dialect": "regex"}),
    ],
)
def test_what_is_no_resolution(names, rules, options):
    with pytest.raises(RuleError):
        resolve(names, rules, **options)


def test_dialects_come_in_any_case():
    assert [Dialect.of(n) for n in ("LINEN", "nnx", "MaxText", "RegEx", "keras")] == list(DIALECTS)
    assert Dialect.of(Dialect.NNX) is Dialect.NNX


def test_a_table_shows_itself():
    assert str(TABLE) == "batch → data\nmlp → (model, expert)\nembed → None"
    assert TABLE.text() == "batch -> data\nmlp -> (model, expert)\nembed -> None"
    assert repr(TABLE) == (
        "Rules(3 rules: 'batch → data', 'mlp → (model, expert)' and 'embed → None')"
    )  # fmt: skip
    assert repr(Rules()) == "Rules(0 rules)"
    assert str(Rules()) == "no rules"
    assert TABLE.pairs() == (("batch", "data"), ("mlp", ("model", "expert")), ("embed", None))
    assert [r.logical for r in TABLE] == list(TABLE.logical_names)
    assert TABLE.by_name == {"batch": (0,), "mlp": (1,), "embed": (2,)}
