"""A saved page plans for itself."""

import importlib.util
import threading

import pytest

from shardviz.base.mesh import make_mesh
from shardviz.compiled.panel import stages_view
from shardviz.compiled.panel.stages_view import StageViews
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.planner import Planner
from shardviz.explorer.session import Session
from shardviz.explorer.state import open_state, session_state
from shardviz.gallery import programs, puzzles
from shardviz.gallery.programs import known_program
from shardviz.programs.program import Program
from shardviz.runs.cache import ExecutableCache


def explorer(name: str = programs.DEFAULT) -> Explorer:
    return Explorer(Session(known_program(name), name), ExecutableCache())


def views() -> StageViews:
    return StageViews(Planner(lambda: None, ExecutableCache()))


def saved(stages: StageViews, program: Program) -> tuple[dict, dict]:
    stages.plan_now(program, 0)
    return stages.saved_stages(), stages.saved_values()


def text(stages: dict, index: int) -> str:
    return stages["stages"][index]["text"]


@pytest.mark.parametrize("name", [programs.DEFAULT, "two orders of devices"])
def test_every_known_program_saves_with_its_stages_values_and_explanations(name, eight_devices):
    made = explorer(name)
    stages, values = saved(made.stages, made.session.program)
    assert text(stages, 1) == "not partitioned"
    if name == "two orders of devices":
        assert "Two meshes hold the same 8 devices in another order" in values["error"]
    else:
        assert len(values["explanations"]) == values["count"] > 0
    assert made.page().startswith("<!doctype html>")
    made.close()


def test_without_jax_the_page_says_not_planned(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "jax" else find(n))
    stages, values = saved(views(), programs.get())
    assert [r["text"] for r in stages["stages"]] == [
        "not planned",
        "not partitioned",
        "not compiled",
        "not run",
    ]
    assert values["error"] == "Saved without the plan: jax is not installed."
    assert stages["stages"][0]["title"] == values["error"]
    assert not values["waiting"]


def test_a_plan_that_takes_too_long_is_left_out(monkeypatch):
    monkeypatch.setattr(stages_view, "PLAN_S", 0.2)

    ended = threading.Event()

    def slow(x):
        assert ended.wait(120)
        return x

    program = Program(slow, programs.get().arrays[:1], make_mesh(data=4, model=2), name="slow")
    made = views()
    stages, values = saved(made, program)  # while the function waits
    assert text(stages, 0) == "not planned"
    assert values["error"] == "Saved without the plan, which was not ready within 0.2 s."
    ended.set()
    made._planner.close()


def test_the_button_saves_a_planned_page_without_waiting_for_itself(monkeypatch):
    made, sent = explorer(), []
    monkeypatch.setattr(made, "send", lambda message, *_: sent.append(message))
    made._receive(None, {"seq": 1, "client": "test", "intents": [{"kind": "save"}]}, None)
    (message,) = [m for m in sent if m.get("kind") == "file"]
    assert '"The program is planned once you pause editing."' not in message["text"]
    assert "1 all-gather, 1 all-reduce" in message["text"]
    made.close()


@pytest.mark.parametrize("name", puzzles.names()[:2])
def test_a_puzzle_keeps_its_own_mesh_and_is_restored_from_its_state(name):
    session = Session(programs.get(), programs.DEFAULT)
    session.edit("mesh", "data=2, model=8")
    session.edit("program", name)
    assert session.mesh.shape == {"data": 4, "model": 2}
    assert session.now.text["mesh"] == "data=4, model=2"
    again = open_state(session_state(session))
    assert (again.now.entry, again.program.fn) == (name, session.program.fn)
    assert again.arrays == session.arrays
