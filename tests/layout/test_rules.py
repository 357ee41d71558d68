"""Rules: every writing of a table, and the words of every refusal."""

from __future__ import annotations

import itertools

import pytest

from shardviz.core.errors import RuleError
from shardviz.core.layout.resolution import resolve
from shardviz.core.layout.rules import Dialect, Rule, Rules

TABLE = Rules.of(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None))


class Endless(list):
    def __iter__(self):
        return itertools.repeat(("a", "b"))


@pytest.mark.parametrize(
    "written",
    [
        "batch -> data\nmlp -> (model, expert)\nembed -> None",
        "batch: data; mlp: [model, expert]; embed: null",
        "batch = data\n\n# the wide one\nmlp = (model, expert)  # both\nembed = ()\n",
        "batch → data, mlp ⇒ (model, expert), embed => None",
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
    ("text", "words"),
    [
        (
            "batch data",
            "Cannot read 'batch data': expected -> and a mesh axis at position 7, found 'data'.",
        ),
        (
            "batch ->",
            "Cannot read 'batch ->': expected a mesh axis, None or a tuple at position 9, found"
            " the end.",
        ),
        (
            "mlp -> model\nbatch ->\nembed -> None",
            "Cannot read line 2: the rule for 'batch' has no right side. Write a mesh axis, None or"
            " a tuple after it.",
        ),
        (
            "a -> x\nb y",
            "Cannot read line 2, 'b y': expected -> and a mesh axis, found 'y'.",
        ),
        (
            "-> data",
            "Cannot read '-> data': expected a logical axis name at position 1, found '->'.",
        ),
        (
            "mlp -> (a",
            "Cannot read 'mlp -> (a': expected a comma or ) at position 10, found the end.",
        ),
        (
            "('a', 'b'",
            """Cannot read "('a', 'b'": expected a closing ) at position 10, found the end.""",
        ),
        (
            "(('a', 'b')",
            """Cannot read "(('a', 'b')": expected a closing ) at position 12, found the end.""",
        ),
        ("'a -> b", """Cannot read "'a -> b" at position 1; is a quote missing?"""),
        ("a -> b\n" * 10_001, "A table has at most 10,000 rules."),
        ("a" * 200_001, "The text has 200,001 letters; at most 200,000 are read."),
    ],
)
def test_words_about_typed_tables(text, words):
    with pytest.raises(RuleError) as caught:
        Rules.parse(text)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"a": "b"},
            "Rules are an ordered list of pairs; a dict loses repeats, which are fallbacks. Write"
            " [('batch', 'data'), …] or pass list(rules.items()).",
        ),
        (5, "Rules are pairs such as ('batch', 'data'); got 5."),
        (["batch"], "Rule 1 must be a pair such as ('batch', 'data'); got 'batch'."),
        (
            [("a", "b"), ("a", "b", "c")],
            "Rule 2 must be a pair such as ('batch', 'data'); got ('a', 'b', 'c').",
        ),
        ([(1, "a")], "The name of the logical axis in rule 1 must be text; got 1."),
        ([("a", 1)], "Rule 1 must lead to a mesh axis, a tuple of them, or None; got 1."),
        ([("a", ("b", None))], "The name of a mesh axis in rule 1 must be text; got None."),
        (
            [("a", "")],
            "The name of the mesh axis in rule 1 must not be empty or have blanks around it; got"
            " ''.",
        ),
        ([("a", "b")] * 10_001, "A table has at most 10,000 rules; got 10,001."),
        (Endless(), "A table has at most 10,000 rules; got more."),
    ],
    ids=lambda v: str(v)[:30],
)
def test_words_about_given_tables(given, words):
    with pytest.raises(RuleError) as caught:
        Rules.of(given)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("names", "rules", "options", "words"),
    [
        (
            "a b a", TABLE, {},
            "Logical name 'a' is at dimensions 0 and 2; an array can use each name once. Give"
            " one of them a name of its own.",
        ),
        (
            "a b", TABLE, {"shape": (8,)},
            "The array has 1 dimension and 2 names. Give one logical name for each dimension; write"
            " None for a dimension without one.",
        ),
        (
            "a", [("a", ("x", ("y",)))], {},
            "Rule 1 (a → (x, y)) leads to a tuple in a tuple, which no PartitionSpec can hold."
            " Write the axes in one tuple.",
        ),
        (
            "a", TABLE, {"dialect": "lenin"},
            "No dialect is called 'lenin'. Did you mean 'linen'? There are 'linen', 'nnx' and"
            " 'maxtext'.",
        ),
        ("a", TABLE, {"dialect": 3}, "No dialect is called 3. There are 'linen', 'nnx' and"
                                     " 'maxtext'."),
    ],
)  # fmt: skip
def test_words_about_resolving(names, rules, options, words):
    with pytest.raises(RuleError) as caught:
        resolve(names, rules, **options)
    assert str(caught.value) == words


def test_a_nested_rule_does_no_harm_until_it_wins():
    table = [("a", "x"), ("a", ("y", ("z",)))]
    assert str(resolve("a", table).spec) == "P('x')"


def test_dialects_come_in_any_case():
    assert [Dialect.of(n) for n in ("LINEN", "nnx", "MaxText", "RegEx", "keras")] == list(Dialect)
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
