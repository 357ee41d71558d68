"""What one edit of the page costs: each view made once, and few bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardviz.base.array_spec import ArraySpec
from shardviz.compiled.panel import report_panel
from shardviz.compiled.panel.report_panel import ReportPanel
from shardviz.compiled.report import Report
from shardviz.explorer import jax_code, session_panel, target_panel
from shardviz.explorer.explorer import Explorer
from shardviz.explorer.session import Session
from shardviz.gallery import programs
from shardviz.runs.cache import ExecutableCache

MADE = {
    "view": (session_panel, "session_view"),
    "target": (target_panel, "target_view"),
    "report": (report_panel, "report_view"),
    "code": (jax_code, "code"),
    "menus": (target_panel, "menus_view"),
}
EDITS = {
    "a typed character": [{"kind": "edit", "field": "mesh", "value": "data=4, model=1"}],
    "two edits at once": [
        {"kind": "edit", "field": "mesh", "value": "data=2, model=4"},
        {"kind": "edit", "field": "dialect", "value": "nnx"},
    ],
}
# Edits of the MLP on 8 devices, as somebody types them or has typed them. The rules are read by all
# three arrays; another mesh changes the pictures of the devices and of all arrays.
RULES = "batch -> data\nmlp -> model\nembed -> model\nembed -> None\nembed -> data"
TYPED = {
    "a name": ("name", "w_inn", 0),
    "a shape": ("shape", "512, 204", 0),
    "a shape that does not divide": ("shape", "512, 2049", 0),
    "a spec": ("spec", "None, (model, data)", 0),
    "the name of a dimension in a rule": ("rules", RULES.replace("mlp", "ml"), None),
    "no rules": ("rules", "", None),
    "the size of an axis": ("mesh", "data=4, model=1", None),
    "an axis more": ("mesh", "data=4, model=2, x=1", None),
    "a mesh of 2 x 4": ("mesh", "data=2, model=4", None),
    "a target": ("target", "tpu:v5e:4x4", None),
}
MOST_BYTES = 5_000


@pytest.fixture
def made() -> Explorer:
    return Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())


def hear(explorer: Explorer, intents: list[dict[str, Any]], seq: int = 1) -> None:
    explorer._receive(explorer, {"seq": seq, "client": "page", "intents": intents}, [])


@pytest.mark.parametrize("name", EDITS)
def test_each_view_is_made_once_for_an_edit(name: str, made: Explorer, monkeypatch):
    # What its plan changes comes later; on a slow machine that would be before the message's end.
    monkeypatch.setattr(made.planner, "request", lambda *job: None)
    counts = dict.fromkeys(MADE, 0)
    for view, (module, function) in MADE.items():
        original = getattr(module, function)

        def counted(*args: Any, _view: str = view, _original: Any = original) -> Any:
            counts[_view] += 1
            return _original(*args)

        monkeypatch.setattr(module, function, counted)
    hear(made, [{"kind": "code"}])
    assert counts == {"view": 0, "target": 0, "report": 1, "code": 1, "menus": 0}
    counts.update(dict.fromkeys(MADE, 0))
    hear(made, EDITS[name])
    assert counts == {"view": 1, "target": 1, "report": 1, "code": 1, "menus": 0}
    hear(made, [{"kind": "why", "value": "x"}], 2)
    assert counts == {"view": 1, "target": 1, "report": 2, "code": 1, "menus": 0}
    assert made.answer["seq"] == 2


@pytest.mark.parametrize("edit", TYPED.values(), ids=TYPED.keys())
def test_a_typed_character_sends_few_bytes(edit: tuple[Any, ...], made: Explorer, monkeypatch):
    sent = sent_by(made, monkeypatch, *edit)
    assert len(sent) == 1, "one edit is one message"
    assert 0 < bytes_of(*sent[0]) <= MOST_BYTES


def test_what_an_edit_does_not_change_is_not_sent(made: Explorer, monkeypatch):
    ((message, _),) = sent_by(made, monkeypatch, "name", "w_inn", 0)
    assert set(message["state"]) == {"answer", "array_0"}


def test_a_report_is_not_sent_again_when_an_edit_makes_it_stale(made: Explorer, monkeypatch):
    made.report = Report("MLP", "cpu:8", run_s=0.1)
    made.refresh(made.panel(ReportPanel))
    ((message, _),) = sent_by(made, monkeypatch, "mesh", "data=8, model=1")
    assert "report_data" not in message["state"]
    assert made.report_data["revision"] != made.answer["revision"]


def test_layers_that_are_split_alike_are_sent_once(monkeypatch):
    def sizes(count: int) -> int:
        arrays = [ArraySpec(f"w_{i}", (512, 2048), "embed mlp") for i in range(count)]
        program = programs.get().replace(fn=lambda *a: a, arrays=arrays, name="layers")
        sent = sent_by(Explorer(Session(program), ExecutableCache()), monkeypatch, *MESH)
        return bytes_of(*sent[0])

    assert sizes(24) - sizes(4) < 20 * 50


def test_an_explorer_opens_with_one_message_however_many_arrays_it_has(monkeypatch):
    sent: list[dict[str, Any]] = []

    def send(self: Explorer, message: dict[str, Any], buffers: list[Any] | None = None) -> None:
        if self.comm is not None:
            sent.append(message)

    monkeypatch.setattr(Explorer, "_send", send)
    program = programs.get()
    layers = [ArraySpec(f"w_{n}", (64, 64), ("embed", "mlp")) for n in range(30)]
    program = program.replace(arrays=(*program.arrays, *layers))
    opened = Explorer(Session(program), ExecutableCache())
    assert sent == []  # the message that opens it is sent by the comm
    assert opened.array_32["name"] == "w_29"
    # traitlets makes a class for each declaration.
    assert len(type(opened).mro()) - len(Explorer.mro()) <= 3


MESH = ("mesh", "data=2, model=4")


def sent_by(
    made: Explorer,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    value: str,
    array: int | None = None,
) -> list[tuple[dict[str, Any], list[Any]]]:
    """The messages that one edit of the page sends back, each with its buffers."""
    hear(made, [])
    sent: list[tuple[dict[str, Any], list[Any]]] = []

    def send(message: dict[str, Any], buffers: list[Any] | None = None) -> None:
        sent.append((message, buffers or []))

    monkeypatch.setattr(made, "_request_plan", lambda: None)  # a plan is a message of its own
    made.planner.wait(60)
    monkeypatch.setattr(made, "_send", send)
    number = {} if array is None else {"array": array}
    hear(made, [{"kind": "edit", "field": field, "value": value, **number}], 2)
    return sent


def bytes_of(message: dict[str, Any], buffers: list[Any]) -> int:
    """As Jupyter sends it: UTF-8, and the buffers as they are."""
    size = len(json.dumps(message, ensure_ascii=False).encode())
    return size + sum(memoryview(b).nbytes for b in buffers)
