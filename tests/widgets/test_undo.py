"""Undo and redo: every edit, one at a time, and what is typed in a row at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.explorer.session_view import session_view
from shardviz.explorer.state import session_state
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache

ACTIONS: dict[str, list[Any]] = {
    "mesh": ["data=2, model=2", "data=8", "data=4, model=", "x=2, y=2, z=2", ""],
    "axis": [None],
    "size": [["data", "8"], ["data", "four"], ["model", "1"], ["nobody", "2"]],
    "remove_axis": ["data", "nobody"],
    "move_axis": [["data", 1], ["model", 0], ["model", 99]],
    "split": [[0, "data", True], [1, "data", True], [1, "model", False], [9, "data", True]],
    "hosts": ["1", "2", "3", "many"],
    "types": ["Auto", "Explicit", "Wrong"],
    "target": ["", "cpu:8", "tpu:v5e:4x4", "tpu:v5e:4xfour"],
    "fit": [None],
    "rules": ["batch -> data", "mlp -> model\nembed -> data", "mlp", "", "('a','b'), ('c', None)"],
    "tidy": [None],
    "move": [[0, 1], [1, 0], [4, 0], [9, 9]],
    "dialect": ["linen", "nnx", "maxtext", "none"],
    "program": ["MLP, gradient", "attention", "place the arrays", "unknown"],
    "preset": ["mesh:8 devices", "rules:FSDP", "arrays:7B model", "arrays:unknown"],
    "select": [0, 1, 2, 99],
    "by": ["mesh", "host", "position"],
    "dims": [[0, 1], [1, 0], [0, 2]],
    "at": [[0], [1, 1], None],
    "add": [None],
    "remove": [0, 1, 77],
    "open": [0, 1],
    "name": ["w", "w_in", "x", ""],
    "shape": ["64, 64", "8", "4, 4, 4", "a", "a:8 b:16", "a:8 16"],
    "dtype": ["bfloat16", "float99"],
    "logical": ["embed mlp", "embd mlp", "a a", ""],
    "spec": ["data, model", "P(None, 'data')", "P(", ""],
}


def state(session: Session) -> Any:
    """All that can be seen of a session, as plain data."""
    views = session_view(session.now)
    text, errors = dict(session.now.text), dict(session.now.errors)
    return session_state(session), views, text, errors, session.now.revision


def act(session: Session, chance: random.Random) -> None:
    field = chance.choice(list(ACTIONS))
    array = chance.choice([None, 0, 1, 2])
    burst = chance.choice(["", "", "one", "two"])
    session.edit(field, chance.choice(ACTIONS[field]), array, burst)


@pytest.mark.parametrize("seed", range(1))
def test_300_random_actions_undone_and_made_again_give_the_same_states(seed: int):
    session, chance = Session(programs.get(), programs.DEFAULT), random.Random(seed)
    first = state(session)
    for _ in range(300):
        act(session, chance)
    last, forward = state(session), []
    while session.undo():
        forward.append(state(session))
    assert state(session) == first
    back = []
    while session.redo():
        back.append(state(session))
    assert state(session) == last
    # Each state on the way is met in both directions.
    assert back[:-1] == forward[:-1][::-1]
    assert len(back) > 100


@pytest.mark.parametrize("field", sorted(ACTIONS))
def test_one_undo_takes_any_edit_back(field: str):
    for value in ACTIONS[field]:
        session = Session(programs.get(), programs.DEFAULT)
        before = state(session)
        session.edit(field, value)
        changed = state(session) != before
        assert session.undo() == changed
        assert state(session) == before


def test_what_is_typed_in_a_row_is_one_step_and_a_new_edit_ends_redo():
    session = Session(programs.get(), programs.DEFAULT)
    for text in ("data=1", "data=16", "data=16,", "data=16, model=4"):
        session.edit("mesh", text, burst="mesh:1")
    session.edit("mesh", "data=2", burst="mesh:2")
    session.undo()
    assert session.mesh.size == 64
    session.undo()
    assert session.mesh.size == 8
    assert not session.undo()
    session.edit("dialect", "nnx")
    assert not session.redo()


def test_the_page_undoes_and_redoes_and_knows_what():
    made = Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())

    def send(*intents: dict[str, Any]) -> None:
        made._receive(made, {"seq": 1, "client": "page", "intents": list(intents)}, [])

    assert "undo" not in made.answer
    send({"kind": "edit", "field": "remove", "value": 0})
    assert made.answer["undo"]
    assert made.view["count"] == 2
    send({"kind": "undo"})
    assert made.view["count"] == 3
    assert made.answer["redo"]
    send({"kind": "redo"}, {"kind": "undo"})
    assert made.view["count"] == 3
    made.close()
