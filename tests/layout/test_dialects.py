"""Dialects: a new one is a new value, and everything follows its fields."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import shardviz as sv
from shardviz.axis_rules.dialects import DIALECTS, Dialect, NameDialect, PathDialect

MESH = sv.mesh(data=4, model=2, one=1)
DOTS = PathDialect("dots", "Dots", separator=".")
KERNEL, BIAS = "layers/0/mlp/kernel", "layers/0/mlp/bias"
TREE = [sv.array(KERNEL, (8, 8)), sv.array(BIAS, (8,)), sv.array("scale", (1,))]
KEY = KERNEL.replace("/", ".")
SPLIT = "P(None, 'model')"


def specs(table, dialect) -> list[str]:
    return [str(row.spec) for row in sv.audit(TREE, table, MESH, dialect=dialect).rows]


@pytest.mark.parametrize(
    ("fields", "pattern", "expected"),
    [
        ({}, r"mlp\.kernel$", [SPLIT, "None", "None"]),
        ({}, "mlp/kernel$", ["None", "None", "None"]),
        ({"ignores_case": True}, r"MLP\.kernel", [SPLIT, "None", "None"]),
        ({"ignores_case": True}, r"(M|L|P)+\.KERNEL", [SPLIT, "None", "None"]),
        ({"whole_path": True}, "kernel", ["None", "None", "None"]),
        ({"whole_path": True}, ".*kernel", [SPLIT, "None", "None"]),
        ({"replicates_unmatched": True}, "kernel", [SPLIT, "P(None)", "P(None)"]),
        ({"one_element_unsplit": True}, "kernel", [SPLIT, "None", "P()"]),
        ({"separator": "/"}, "mlp/kernel$", [SPLIT, "None", "None"]),
        ({"key_first": True, "whole_path": True}, KEY, [SPLIT, "None", "None"]),
    ],
)  # fmt: skip
def test_a_pattern_is_matched_as_the_fields_say(fields, pattern, expected):
    assert specs([(pattern, (None, "model"))], replace(DOTS, **fields)) == expected


@pytest.mark.parametrize(
    ("fields", "spec", "kinds"),
    [
        ({}, "P('data', None)", ["matched", "shadowed", "shadowed"]),
        ({"key_first": True}, SPLIT, ["shadowed", "shadowed", "matched"]),
        ({"first_match_wins": False}, "None", ["several match"] * 3),
        (
            {"first_match_wins": False, "key_first": True}, SPLIT,
            ["shadowed", "shadowed", "matched"],
        ),
    ],
)  # fmt: skip
def test_which_of_several_patterns_decides(fields, spec, kinds):
    table = [
        ("kernel", ("data", None)), (".*mlp", ("model", None)),
        (KEY, (None, "model")),
    ]  # fmt: skip
    row = sv.audit(TREE[:1], table, MESH, dialect=replace(DOTS, **fields)).rows[0]
    assert str(row.spec) == spec
    assert [verdict.kind for verdict in row.by_path.verdicts] == kinds
    assert row.by_path.explain()


def test_sentences_and_errors_name_the_library():
    table = [("kernel", (None, "model")), ("mlp", ())]
    allowed = replace(DOTS, first_match_wins=False)
    audit = sv.audit(TREE, table, MESH, dialect=allowed)
    assert "and Dots allows only one." in audit.problems[KERNEL]
    assert "and Dots then raises an error" in audit.problems["scale"]
    replicating = sv.audit(TREE, table[:1], MESH, dialect=replace(DOTS, replicates_unmatched=True))
    assert "Dots replicates arrays that no pattern matches" in replicating.explain()
    with pytest.raises(sv.ShardvizError, match="Dots allows only one"):
        sv.audit(TREE, table, MESH, dialect=replace(allowed, raises=True))
    with pytest.raises(sv.ShardvizError, match="occurs twice"):
        sv.audit(TREE, [("a", ()), ("a", ())], MESH, dialect=replace(DOTS, unique_patterns=True))


@pytest.mark.parametrize("whole_path", [True, False])
@pytest.mark.parametrize("key_first", [True, False])
def test_a_new_pattern_of_a_remedy_matches_under_the_dialect(whole_path, key_first):
    dialect = replace(DOTS, whole_path=whole_path, key_first=key_first)
    audit = sv.audit(TREE, [("other", ())], MESH, dialect=dialect)
    for remedy in sv.remedies(audit.rows[0], SPLIT):
        assert specs(remedy.rules, dialect)[0] == SPLIT
        assert (specs(remedy.rules, dialect)[1] == "None") == (BIAS not in remedy.others)


TABLE = [("mlp", "data"), ("embed", "data"), ("mlp", "model"), ("seq", ("data", "one"))]


@pytest.mark.parametrize(
    ("fields", "names", "spec", "kinds"),
    [
        (
            {}, "embed mlp", "P(None, 'data')",
            ["other name", "axis taken", "other name", "other name"],
        ),
        (
            {"last_repeat_wins": True}, "embed mlp", "P('data', 'model')",
            ["other name", "applied", "other name", "other name"],
        ),
        (
            {"dimensions_apart": True}, "embed mlp", "P('data', 'data')",
            ["other name", "axis named twice", "other name", "other name"],
        ),
        (
            {"dimensions_apart": True}, "mlp mlp", "P('data', 'data')",
            ["axis named twice", "other name", "dimension already decided", "other name"],
        ),
        (
            {"last_repeat_wins": True, "dimensions_apart": True}, "mlp embed", "P('model', 'data')",
            ["overridden by a later rule", "other name", "applied", "other name"],
        ),
        ({"unknown_name_is_axis": True}, "model mlp", "P('model', 'data')", ["other name"] * 4),
        ({"unknown_name_is_axis": True}, "data embed", "P(None, 'data')", ["other name"] * 4),
        ({"dimensions_apart": True}, "model mlp", "P(None, 'data')", ["other name"] * 4),
        (
            {"dimensions_apart": True, "unknown_name_is_axis": True}, "model mlp",
            "P('model', 'data')", ["other name"] * 4,
        ),
        ({"drops_size_one": True}, "seq", "P('data')", ["other name"] * 3 + ["applied"]),
        ({}, "seq", "P(('data', 'one'))", ["other name"] * 3 + ["applied"]),
    ],
)  # fmt: skip
def test_names_are_resolved_as_the_fields_say(fields, names, spec, kinds):
    dialect = NameDialect("new", "New", **fields)
    resolution = sv.resolve(names, TABLE, mesh=MESH, dialect=dialect)
    assert str(resolution.spec) == spec
    assert [verdict.kind for verdict in resolution.decisions[0].verdicts] == kinds
    assert resolution.explain()
    shape = (8,) * len(resolution.names)
    row = sv.audit([sv.array("w", shape, names)], TABLE, MESH, dialect=dialect).rows[0]
    assert row.spec == resolution.spec


def test_axes_of_size_one_stay_without_a_mesh():
    for drops, mesh, spec in (
        (True, None, "P(('data', 'one'))"),
        (True, MESH, "P('data')"),
        (False, MESH, "P(('data', 'one'))"),
    ):
        dialect = NameDialect("new", "New", drops_size_one=drops)
        assert str(sv.resolve("seq", TABLE, mesh=mesh, dialect=dialect).spec) == spec


def test_a_name_that_is_taken_for_an_axis_is_explained_with_the_dialect():
    dialect = NameDialect("new", "New", unknown_name_is_axis=True)
    resolution = sv.resolve("tensor", TABLE, mesh=MESH, dialect=dialect)
    assert "new uses the name as a mesh axis" in resolution.explain()
    assert [problem.code for problem in resolution.failures] == ["name is no axis"]


def test_a_rule_that_a_later_one_replaces_never_fires():
    dialect = NameDialect("new", "New", last_repeat_wins=True)
    arrays = [sv.array("w", (8, 8), "embed mlp"), sv.array("s", (8,), "seq")]
    audit = sv.audit(arrays, TABLE, MESH, dialect=dialect)
    assert [(use.index, use.never.code) for use in audit.unused_rules] == [(0, "decided before")]


def test_dialects_have_different_names_and_survive_pickling():
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
    for dialect in (*DIALECTS, DOTS):
        copy = pickle.loads(pickle.dumps(dialect))
        assert (copy, hash(copy)) == (dialect, hash(dialect))
    assert replace(DOTS, ignores_case=True) != DOTS
    assert Dialect.of(DOTS) is DOTS
