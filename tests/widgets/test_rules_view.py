"""The view Rules: a verdict for every rule and dimension, as the resolution has it."""

from __future__ import annotations

import random

import pytest

from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.mesh import make_mesh
from shardviz.core.layout.rules.verdicts import Outcome
from shardviz.core.layout.trees.audit import audit
from shardviz.gallery import programs
from shardviz.widgets.model_view import model_view
from shardviz.widgets.rules_view import LETTERS, cell_remedies, cell_view, rule_grid
from shardviz.widgets.session import Session
from shardviz.widgets.state import open_state, session_on, session_state

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
def test_every_cell_is_the_verdict_of_the_resolution(table: str | None, dialect: str):
    session = new_session(table, dialect)
    grid = rule_grid(session)
    for rule, row in enumerate(grid["rows"]):
        cells = iter(row["cells"])
        for column in grid["columns"]:
            found = session.program.requests[column["array"]].resolution
            for decision in found.decisions:
                assert next(cells) == LETTERS[decision.verdicts[rule].outcome]
        assert next(cells, None) is None


def test_arrays_of_the_same_names_and_shape_share_a_column():
    session = new_session()
    session.edit("add", None)
    session.edit("add", None)
    assert [(c["name"], c.get("more")) for c in rule_grid(session)["columns"]] == [
        ("w_in", 2), ("w_out", None), ("x", None),
    ]  # fmt: skip


def test_a_name_that_no_rule_knows_is_marked_where_it_is():
    session = new_session()
    session.edit("logical", "embed mpl", 0)
    column = rule_grid(session)["columns"][0]
    assert column["unmatched"] == [1]
    text = cell_view(session.now, "-1:0:1")["text"]
    assert "mpl" in text
    assert "mlp" in text


def test_a_cell_says_what_its_rule_did():
    session = new_session()
    cell = cell_view(session.now, "2:0:0")
    verdict = session.program.requests[0].resolution.verdict(0, 2)
    assert verdict.outcome is Outcome.TAKEN
    assert str(verdict)[1:] in cell["text"]
    session.edit("spec", "data", 0)
    assert cell_view(session.now, "2:0:0")["text"] != cell["text"]
    assert cell_view(session.now, "9:0:0")["text"]
    for gone in ("0:9:0", "0:0:9", ""):
        assert cell_view(session.now, gone) == {}


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
    rows = rule_grid(session)["rows"]
    unused = [number for number, row in enumerate(rows) if row.get("never")]
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
    remedy = cell_remedies(session, f"-1:{session.now.selected}:1").found[0]
    assert remedy.edit == "Rename 'embd' to 'embed' in array params/layers_0/wo and 5 like it"
    session.edit("remedy", (session.now.selected, remedy))
    assert before - session.audit.bytes_per_device == remedy.bytes_saved == 9 * 512 * 512 * 3 // 4
    assert {row.spec for row in session.audit.rows if "wo" in row.path} == {remedy.spec}
    kinds = model_view(session.program, "", session.now.model, None)["kinds"]
    assert {kind["spec"] for kind in kinds} == {"P('data', 'model')", "P('model', 'data')"}
    session.undo()
    assert session.audit.bytes_per_device == before


def test_a_spec_that_a_table_of_paths_gave_is_not_called_the_arrays_own():
    leaves = [("wi", (512, 2048), None), ("wo", (2048, 512), None)]
    table, mesh = [("wi", (None, "model")), (".*", ())], make_mesh(data=4, model=2)
    session = open_state(session_state(session_on(audit(leaves, table, mesh, "regex"))))
    name = session.arrays[0].name
    found = cell_view(session.now, "-1:0:0")
    assert "table of paths" in found["text"]
    reason = cell_remedies(session, "-1:0:0").reason
    at = [leaf.name for leaf in session.now.model.arrays].index(name)
    assert f"sv.remedies(audit.rows[{at}], 'split 0')" in reason
    session.edit("spec", "data", 0)
    assert "as the PartitionSpec says" in cell_view(session.now, "-1:0:1")["text"]
    assert "PartitionSpec of its own" in cell_remedies(session, "-1:0:1").reason


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
