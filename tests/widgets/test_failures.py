"""Whatever a handler or a job raises is said on the page, and what was there before stays."""

from __future__ import annotations

from typing import Any

import pytest

from shardviz.core.program.cache import ExecutableCache
from shardviz.gallery import programs
from shardviz.widgets import background, pictures, stages_view
from shardviz.widgets import explorer as widget
from shardviz.widgets.background import Planner
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.session import _EDITS, PLACED, Session
from shardviz.widgets.session_view import session_view

CLIENT = "page"


class Planted(Exception):
    """What no code of ours expects."""


def fails(*_: Any, **__: Any) -> Any:
    raise Planted("planted\nin two lines")


def opened() -> Explorer:
    return Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())


def tell(made: Explorer, **intent: Any) -> dict[str, Any]:
    """The answer to a message with one intent."""
    seq = made.answer["seq"] + 1
    made._receive(made, {"seq": seq, "client": CLIENT, "intents": [intent]}, [])
    assert made.answer["seq"] == seq, "every message is answered"
    return made.answer


def said(answer: dict[str, Any]) -> str:
    (sentence,) = answer["failed"]
    assert "Planted: planted in two lines" in sentence
    return sentence


#: What a message asks for, and what makes the answer.
INTENTS = {
    "cell": ("-1:0:0", widget, "cell_remedies"),
    "play": ("2:0", widget, "movement_view"),
    "why": ("x", widget, "explanation_view"),
    "code": ("", widget.jax_code, "code"),
    "undo": ("", Session, "undo"),
    "redo": ("", Session, "redo"),
    "compile": ("", Explorer, "_start"),
    "run": ("", Explorer, "_start"),
    "cancel": ("", Explorer, "cancel"),
    "restart": ("", Explorer, "restart"),
    "apply": ("0", Explorer, "_apply"),
    "effects": ("", background.EffectsReader, "read"),
    "observe": ("", background.EffectsReader, "observe"),
    "save": ("", Explorer, "page"),
}


@pytest.mark.parametrize("kind", INTENTS)
def test_a_message_whose_handler_fails_is_answered_with_a_sentence(monkeypatch, kind):
    value, where, name = INTENTS[kind]
    made = opened()
    before = {trait: getattr(made, trait) for trait in ("mesh", "rules", "array_0", "layout_0")}
    with monkeypatch.context() as patch:
        patch.setattr(where, name, fails)
        answer = tell(made, kind=kind, value=value)
        said(made.answer if kind == "save" else answer)
    assert all(getattr(made, trait) is value for trait, value in before.items())
    assert "failed" not in tell(made, kind="show", value="Layout") or kind == "save"
    made.close()


#: What shows a session, and the view that has to be open for it.
VIEWS = {
    "session_view": "Layout",
    "rule_grid": "Rules",
    "cell_view": "Rules",
    "model_view": "Model",
    "target_view": "Layout",
    "report_view": "Program",
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_fails_leaves_the_others_and_is_made_again(monkeypatch, name):
    made = opened()
    tell(made, kind="show", value=VIEWS[name])
    with monkeypatch.context() as patch:
        patch.setattr(widget, name, fails)
        answer = tell(made, kind="edit", field="mesh", value="data=2, model=2")
        assert said(answer).startswith("The view of the ")
        assert made.session.mesh.size == 4
        assert answer["revision"] == made.session.revision
        if name != "session_view":
            assert made.mesh["text"] == "data=2, model=2"
    assert "failed" not in tell(made, kind="edit", field="mesh", value="data=4, model=2")
    assert made.mesh["text"] == "data=4, model=2"
    made.close()


@pytest.mark.parametrize("name", _EDITS)
def test_an_edit_that_fails_changes_nothing_and_is_said(monkeypatch, name):
    session = Session(programs.get(), programs.DEFAULT)
    before = session._snapshot()
    monkeypatch.setitem(_EDITS, name, fails)
    session.edit(name, "x")
    (sentence,) = session.errors.values()
    assert "Planted: planted in two lines" in sentence
    assert session._snapshot() | {"errors": {}} == before
    views = session_view(session)
    notes = views["view"].get("notes", [])
    place = "mesh" if name in ("axis", "double", "halve") else name
    # A field shows its own; whatever has none is a note, which every view shows.
    assert place in PLACED or notes == [sentence]


def test_half_an_edit_is_taken_back(monkeypatch):
    session = Session(programs.get(), programs.DEFAULT)
    before = session._snapshot()
    monkeypatch.setattr(Session, "_take_rules", fails)
    session.edit("preset", "rules:FSDP")
    monkeypatch.setattr(Session, "_rebuild", fails)
    session.edit("shape", "512, 4096", 0)
    assert session._snapshot() | {"errors": {}} == before


def test_a_plan_that_fails_outside_of_the_compiler_ends_with_a_reason(monkeypatch):
    monkeypatch.setattr(background, "why_not_automatic", fails)
    planner = Planner(lambda: None, ExecutableCache(), settle_s=0.0)
    planner.request(programs.get(), 1, "")
    assert planner.wait(60)
    assert planner.state.stage == ""
    assert planner.state.reason.startswith("not run: Planted: planted")
    planner.close()


@pytest.mark.parametrize("name", ["views", "collective"])
def test_a_view_of_the_plan_that_fails_in_its_thread_is_said(monkeypatch, name):
    made = opened()
    made._links.chosen = "0:0"
    made.session.look["by"] = "position"
    monkeypatch.setattr(stages_view.StageViews, name, fails)
    made.follow()
    made.wait(60)
    assert any("Planted" in sentence for sentence in made.answer["failed"])
    made.close()


def test_what_fails_in_the_beat_or_before_a_plan_is_said(monkeypatch):
    made = opened()
    sent: list[Any] = []
    made.send = lambda content, **_: sent.append(content)  # type: ignore[method-assign]
    with monkeypatch.context() as patch:
        patch.setattr(widget, "local_options", fails)
        patch.setattr(Planner, "request", fails)
        made._beat()
        tell(made, kind="show", value="Layout")
        found = {sentence.split(" failed")[0] for sentence in made.answer["failed"]}
        assert found == {"The menu of targets", "The plan"}
    assert sent[0]["kind"] == "alive"
    made._beat()
    assert "failed" not in tell(made, kind="show", value="Layout")
    made.close()


def test_links_that_cannot_be_drawn_say_so(monkeypatch):
    monkeypatch.setattr(pictures, "link_view", fails)
    heard: list[Any] = []
    links = pictures.LinkPictures(lambda: heard.append(links.view))
    links.chosen = "0:0"
    links.update(object(), object())  # type: ignore[arg-type]
    links.wait(60)
    assert heard[0]["words"] == "The links cannot be drawn: Planted: planted in two lines"
    links.close()
