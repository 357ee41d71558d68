"""The view Rules: a verdict for every rule and dimension, as the resolution has it."""

from __future__ import annotations

import random

import pytest

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.panel.model_view import model_view
from shardviz.axis_rules.panel.rules_view import (
    cell_remedies,
    cell_view,
    dimension_state,
    first_cell,
    rule_rows,
    saved_cells,
)
from shardviz.axis_rules.verdicts import Outcome
from shardviz.axis_rules.words.cascade import SPEC_NOT_EDITED, STATES
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.explorer.session import Session
from shardviz.explorer.state import open_state, session_on, session_state
from shardviz.gallery import programs

TABLES = {
    "the MLP's": None,
    "a rule that breaks": "embed -> nowhere\nmlp -> model",
    "no rules": "",
    "a name for two arrays": "embed -> data\nembed -> model\nmlp -> (data, model)",
}


def new_session(rules: str | None = None, dialect: str = "linen") -> Session:
    session = Session(programs.get(), programs.DEFAULT)
    if rules is not None:
        session.edit("rules", rules)
    session.edit("dialect", dialect)
    return session


@pytest.mark.parametrize("dialect", ["linen", "nnx", "maxtext"])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_every_cascade_has_the_verdicts_of_the_resolution(table: str | None, dialect: str):
    session = new_session(table, dialect)
    for number, request in enumerate(session.program.requests):
        for dim, decision in enumerate(request.resolution.decisions):
            cell = cell_view(session.now, f"{number}:{dim}")
            named = [v for v in decision.verdicts if v.outcome is not Outcome.OTHER_NAME]
            assert [(line["rule"], line["kind"]) for line in cell["lines"]] == [
                (verdict.rule, verdict.kind) for verdict in named
            ]


def test_a_name_that_no_rule_knows_is_marked_where_it_is():
    session = new_session()
    session.edit("logical", "embed mpl", 0)
    text = cell_view(session.now, "0:1")["text"]
    assert "mpl" in text
    assert "mlp" in text


def test_the_rule_that_decides_wins_the_cascade_unless_the_array_has_its_own_spec():
    session = new_session()
    cell = cell_view(session.now, "0:0")
    decision = session.program.requests[0].resolution.decisions[0]
    assert [line["rule"] for line in cell["lines"] if line.get("wins")] == [decision.rule]
    session.edit("spec", "data", 0)
    own = cell_view(session.now, "0:0")["lines"]
    assert own[0]["text"] == "P('data')"
    assert [bool(line.get("wins")) for line in own] == [True, False, False, False]
    for gone in ("9:0", "0:9", "", "-1:0:0"):
        assert "key" not in cell_view(session.now, gone)


#: A table and a dialect, and what becomes of the first dimension of `a b` of 8 x 6 on data=4,
#: model=2, one=1: its state, whether that is red or amber, and the kind of each verdict.
VERDICTS = {
    "splits": ("a -> data", "linen", "split", "", [Outcome.APPLIED]),
    "leaves unsplit": ("a -> None", "linen", "kept whole", "", [Outcome.UNSPLIT]),
    "size 1": ("a -> one", "linen", "size 1", "", [Outcome.SIZE_ONE]),
    "several axes": ("a -> (data, model, one)\nb -> data", "linen", "split", "", [Outcome.APPLIED]),
    "no such axis": ("a -> modl", "linen", "axis missing", "fails", [Outcome.MISSING_AXIS]),
    "axis twice": ("a -> data\nb -> data", "nnx", "axis twice", "fails", [Outcome.REPEATED]),
    "too late": (
        "a -> data\na -> model", "linen", "split", "", [Outcome.APPLIED, Outcome.DECIDED],
    ),
    "axis in use": ("b -> model\na -> model", "linen", "axis taken", "loses", [Outcome.TAKEN]),
    "part in use": (
        "b -> model\na -> (data, model)", "linen", "axis taken", "loses", [Outcome.PART_TAKEN],
    ),
    "replaced": (
        "a -> data\na -> model", "nnx", "split", "", [Outcome.OVERRIDDEN, Outcome.APPLIED],
    ),
    "no rule": ("b -> model", "linen", "no rule", "", []),
    "a name that is near": ("aa -> model", "linen", "no rule", "loses", []),
}  # fmt: skip


@pytest.mark.parametrize("case", VERDICTS.values(), ids=VERDICTS)
def test_every_kind_of_verdict_has_words_and_a_card(case):
    rules, dialect, state, severity, kinds = case
    session = session_on([ArraySpec("w", (8, 6), "a b")])
    for field, value in (("mesh", "data=4, model=2, one=1"), ("rules", rules)):
        session.edit(field, value)
    session.edit("dialect", dialect)
    assert session.now.errors == {}
    cell = cell_view(session.now, "0:0")
    card = cell["dims"][0]
    assert dimension_state(session.program.requests[0], 0, session.mesh) == state
    assert card["state"] == STATES[state]
    assert [key for key in ("fails", "loses") if key in card] == ([severity] if severity else [])
    assert [line["kind"] for line in cell["lines"]] == [kind.value for kind in kinds]
    assert all(line["words"] for line in cell["lines"])
    assert any(bool(line.get("fails")) for line in cell["lines"]) == (severity == "fails")


def test_a_size_that_does_not_divide_says_what_is_left_and_which_sizes_would():
    session = session_on([ArraySpec("wq", (64, 34), "embed heads")])
    session.edit("mesh", "data=2, tensor=4")
    session.edit("rules", "heads -> tensor")
    cell = cell_view(session.now, "0:1")
    assert cell["dims"][1]["fails"]
    assert {"fails", "wins"} <= cell["lines"][0].keys()
    assert "34 = 4 × 8 + 2; 32 and 36 would" in cell["lines"][0]["words"]
    assert first_cell(session.now) == "0:1"


def test_what_most_likely_is_to_be_mended_is_chosen_first():
    arrays = [
        ArraySpec("large", (4096, 512), "embed other"),
        ArraySpec("near", (64, 64), "embed mpl"),
        ArraySpec("odd", (63, 8), "mlp embed"),
    ]
    session = session_on(arrays)
    session.edit("mesh", "data=4, model=2")
    session.edit("rules", "mlp -> model\nembed -> data")
    assert first_cell(session.now) == "2:0"  # it fails
    session.edit("shape", "64, 8", 2)
    assert first_cell(session.now) == "1:1"  # no rule names it, and it looks misspelt
    session.edit("logical", "embed mlp", 1)
    assert first_cell(session.now) == "0:1"  # most bytes, and an axis is free
    assert first_cell(session.now, 1) == "1:0"  # all split


def test_of_a_model_an_array_that_fails_is_opened_as_well():
    leaves = [
        ("large", (4096, 512), "mlp embed"),
        ("odd", (63, 8), "mlp embed"),
        ("odder", (61, 8), "mlp embed"),
    ]
    found = audit(leaves, [("mlp", "model")], make_mesh(data=4, model=2))
    session = session_on(found)
    assert [array.name for array in session.arrays] == ["large", "odd"]
    assert session.now.selected == 0
    assert first_cell(session.now) == "1:0"


def test_a_saved_page_has_the_cascade_of_every_dimension_and_remedies_of_the_first():
    session = new_session()
    first = first_cell(session.now)
    cells = saved_cells(session, first)
    assert next(iter(cells)) == first
    assert cells[first]["remedies"]
    keys = {f"{n}:{d}" for n, array in enumerate(session.arrays) for d in range(array.rank)}
    assert set(cells) == keys


def test_rules_are_judged_by_the_whole_model_and_not_by_the_opened_array():
    table = [("embed", "data"), ("mlp", "model"), ("vocab", "model"), ("norm", None), ("x", "data")]
    leaves = [
        ("params/wi", (512, 2048), "embed mlp"),
        ("params/table", (1024, 512), "vocab embed"),
        ("params/scale", (512,), "norm"),
    ]
    found = audit(leaves, table, make_mesh(data=4, model=2))
    session = session_on(found)
    assert [array.name for array in session.arrays] == ["params/wi"]
    rows = rule_rows(session)["rows"]
    unused = [number for number, row in enumerate(rows) if row.get("idle")]
    assert unused == [use.index for use in found.unused_rules] == [4]


def test_a_remedy_counts_the_whole_model_and_renames_all_of_it():
    names = {"wi": "embed mlp", "wo": "mlp embd"}
    leaves = [
        ArraySpec(f"{tree}/layers_{layer}/{name}", (512, 512), names[name], dtype)
        for tree, dtype in (("params", "bfloat16"), ("opt_state/0/mu", "float32"))
        for layer in range(3)
        for name in names
    ]
    table, mesh = [("embed", "data"), ("mlp", "model")], make_mesh(data=4, model=2)
    session = session_on(audit(leaves, table, mesh))
    session.edit("open", 1)
    before = session.audit.bytes_per_device
    remedy = cell_remedies(session, f"{session.now.selected}:1").edits[0]
    assert remedy.edit == (
        "Rename 'embd' to 'embed' in array params/wo in layers 0 to 2 (and 3 like it)"
    )
    session.edit("remedy", (session.now.selected, remedy))
    assert before - session.audit.bytes_per_device == remedy.bytes_saved == 9 * 512 * 512 * 3 // 4
    assert {row.spec for row in session.audit.rows if "wo" in row.path} == {remedy.spec}
    kinds = model_view(session.program, "", session.now.model, None)["kinds"]
    assert {kind["spec"] for kind in kinds} == {"P('data', 'model')", "P('model', 'data')"}
    session.undo()
    assert session.audit.bytes_per_device == before


def test_a_remedy_names_a_weight_with_its_moments_and_layers():
    names = {"wq": "embed heads", "up": "embed ffn"}
    leaves = [
        ArraySpec(f"{tree}/layers/{layer}/{name}", (512, 512), names[name])
        for tree in ("params", "opt_state/0/mu", "opt_state/0/nu")
        for layer in range(4)
        for name in names
    ]
    session = session_on(audit(leaves, [("ffn", "model")], make_mesh(data=4, model=2)))
    session.edit("open", 0)
    others = [view["others"] for view in cell_remedies(session, f"{session.now.selected}:1").views]
    assert "changes 11 other arrays: params/wq and its moments, layers 0 to 3" in others
    # Without other layers, the array itself is not one of the others.
    session = session_on(audit(leaves[:2], [("ffn", "model")], make_mesh(data=4, model=2)))
    others = [view["others"] for view in cell_remedies(session, "0:0").views]
    assert "changes 1 other array: params/layers/0/wq" in others


def test_a_spec_that_a_table_of_paths_gave_is_not_called_the_arrays_own():
    leaves = [("wi", (512, 2048), None), ("wo", (2048, 512), None)]
    table, mesh = [("wi", (None, "model")), (".*", ())], make_mesh(data=4, model=2)
    session = open_state(session_state(session_on(audit(leaves, table, mesh, "regex"))))
    name = session.arrays[0].name
    found = cell_view(session.now, "0:0")
    assert "table of paths" in found["text"]
    assert [line["wins"] for line in found["lines"]] == [True]
    reason = cell_remedies(session, "0:0").reason
    at = [leaf.name for leaf in session.now.model.arrays].index(name)
    assert f"sv.remedies(audit.rows[{at}], 'split 0')" in reason
    session.edit("spec", "data", 0)
    assert "own PartitionSpec" in cell_view(session.now, "0:1")["text"]
    assert cell_remedies(session, "0:1").reason == SPEC_NOT_EDITED


def test_rules_move_and_the_text_with_them():
    session = new_session()
    session.edit("move", [4, 2])
    assert session.now.text["rules"].splitlines()[2:] == [
        "embed -> data", "embed -> model", "embed -> None",
    ]  # fmt: skip
    assert session.rules[2].axes == ("data",)
    order = list(session.rules)
    chance = random.Random(1)
    for _ in range(20):
        session.edit("move", [chance.randrange(5), chance.randrange(5)])
    assert sorted(map(str, session.rules)) == sorted(map(str, order))
    while session.undo():
        pass
    assert session.now.text["rules"].splitlines()[2] == "embed -> model"
