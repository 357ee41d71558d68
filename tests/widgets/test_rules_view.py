"""The view Rules: a verdict for every rule and dimension, as the resolution has it."""

from __future__ import annotations

import random

import pytest

from shardviz.core.layout.verdicts import Outcome
from shardviz.gallery import programs
from shardviz.widgets.session import Session
from shardviz.widgets.session_view import LETTERS, cell_view, rule_grid, saved_cells

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
    assert set(LETTERS) == set(Outcome)


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
    text = cell_view(session, "-1:0:1")["text"]
    assert "no rule knows “mpl”. Did you mean “mlp”?" in text


def test_a_cell_says_what_its_rule_did():
    session = new_session()
    cell = cell_view(session, "2:0:0")
    assert cell["head"] == "Rule 3 for w_in.embed: axis taken"
    assert cell["text"] == (
        "Rule 3 (embed → model) does not apply: rule 2 already uses 'model' for dimension 1."
    )
    session.edit("spec", "data", 0)
    assert cell_view(session, "2:0:0")["text"].endswith("PartitionSpec wins over the rules.")
    for gone in ("9:0:0", "0:9:0", "0:0:9", "x", "1:2", ""):
        assert cell_view(session, gone).get("text", "") in ("", "No rules are in force for it.")


def test_a_saved_page_has_the_sentences_of_the_cells():
    session = new_session()
    saved = saved_cells(session)
    assert saved["2:0:0"] == ["Rule 3 for w_in.embed: axis taken", saved["2:0:0"][1]]
    assert "-1:2:1" in saved
    assert "0:0:0" not in saved, "it is for another name"


def test_rules_move_and_the_text_with_them():
    session = new_session()
    session.edit("move", [4, 2])
    assert session.text["rules"].splitlines()[2:] == [
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
    assert session.text["rules"].splitlines()[2] == "embed -> model"
