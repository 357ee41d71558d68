"""Whatever a handler or a job raises is said on the page, and what was there before stays."""

from __future__ import annotations

from typing import Any

import pytest

from shardviz.axis_rules.panel import model_panel, rules_panel
from shardviz.compiled.panel import report_panel, stages_view
from shardviz.explorer import edits, links_view, session_panel, target_panel
from shardviz.explorer.explorer import PANELS, Explorer
from shardviz.explorer.links_panel import LinksPanel
from shardviz.explorer.planner import Planner
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.plans.panel import values_panel
from shardviz.programs.panel import effects_view
from shardviz.runs.cache import ExecutableCache


class Planted(Exception):
    """What no code of ours expects."""


def fails(*_: Any, **__: Any) -> Any:
    raise Planted("planted\nin two lines")


def opened() -> Explorer:
    return Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())


def tell(made: Explorer, **intent: Any) -> dict[str, Any]:
    """The answer to a message with one intent."""
    seq = made.answer["seq"] + 1
    made._receive(made, {"seq": seq, "client": "page", "intents": [intent]}, [])
    assert made.answer["seq"] == seq, "every message is answered"
    return made.answer


def said(answer: dict[str, Any]) -> str:
    (sentence,) = answer["failed"]
    assert "Planted: planted in two lines" in sentence
    return sentence


#: What a message asks for, and what makes the answer.
INTENTS = {
    "cell": ("0:0", rules_panel, "cell_remedies"),
    "why": ("x", values_panel, "explanation_view"),
    "undo": ("", Session, "undo"),
    "compile": ("", Explorer, "_start"),
    "effects": ("", effects_view.EffectsReader, "read"),
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


def test_an_intent_that_no_panel_handles_is_an_error_on_the_page():
    made = opened()
    (sentence,) = tell(made, kind="no such intent")["failed"]
    assert "does not know" in sentence
    assert "no such intent" in sentence
    made.close()


def test_no_two_panels_own_the_same_trait_or_intent():
    made = opened()
    panels = [kind(made) for kind in PANELS]
    traits = [name for panel in panels for name in panel.traits]
    intents = [kind for panel in panels for kind in panel.intents()]
    assert len(set(traits)) == len(traits)
    assert len(set(intents)) == len(intents)
    assert made._intents.keys() >= set(intents)
    made.close()


#: Functions that make views: the module that calls each, the view of the page, the panel.
VIEWS = {
    "session_view": (session_panel, "Layout", "arrays"),
    "cell_view": (rules_panel, "Rules", "rules"),
    "model_view": (model_panel, "Model", "model"),
    "report_view": (report_panel, "Program", "report"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_fails_leaves_the_others_and_is_made_again(monkeypatch, name):
    made = opened()
    module, view, panel = VIEWS[name]
    tell(made, kind="show", value=view)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fails)
        answer = tell(made, kind="edit", field="mesh", value="data=2, model=2")
        said(answer)
        assert list(made._failed) == [panel]
        assert made.session.mesh.size == 4
        assert answer["revision"] == made.session.now.revision
        if name != "session_view":
            assert made.mesh["text"] == "data=2, model=2"
    assert "failed" not in tell(made, kind="edit", field="mesh", value="data=4, model=2")
    assert made.mesh["text"] == "data=4, model=2"
    made.close()


@pytest.mark.parametrize("name", ["mesh", "shape", "remove"])
def test_an_edit_that_fails_changes_nothing_and_is_said(monkeypatch, name):
    made = opened()
    before = made.session.now
    monkeypatch.setattr(edits, "EDITS", {**edits.EDITS, name: fails})
    answer = tell(made, kind="edit", field=name, value="x")
    said(answer)
    assert made.session.now is before
    made.close()


@pytest.mark.parametrize("name", ["views", "collective"])
def test_a_view_of_the_plan_that_fails_in_its_thread_is_said(monkeypatch, name):
    made = opened()
    made.panel(LinksPanel).pictures.chosen = "0:0"
    made.session.edit("target", "tpu:v5e:2x4")
    made.session.edit("by", "position")
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
        patch.setattr(target_panel, "local_options", fails)
        patch.setattr(Planner, "request", fails)
        made._beat()
        tell(made, kind="show", value="Layout")
        assert set(made._failed) == {"menus", "plan"}
    assert sent[0]["kind"] == "alive"
    made._beat()
    assert "failed" not in tell(made, kind="show", value="Layout")
    made.close()


def test_links_that_cannot_be_drawn_say_so(monkeypatch):
    monkeypatch.setattr(links_view, "link_view", fails)
    heard: list[Any] = []
    links = links_view.LinkPictures(lambda: heard.append(links.view))
    links.chosen = "0:0"
    links.update(object(), object())  # type: ignore[arg-type]
    links.wait(60)
    assert "Planted: planted in two lines" in heard[0]["words"]
    links.close()
