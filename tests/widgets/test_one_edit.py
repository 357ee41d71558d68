"""What one edit of the page costs: each view made once, and few bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardviz.core.program.cache import ExecutableCache
from shardviz.gallery import programs
from shardviz.widgets import explorer as explorer_module
from shardviz.widgets import jax_code
from shardviz.widgets.explorer import Explorer
from shardviz.widgets.session import Session

MADE = {
    "view": (explorer_module, "session_view"),
    "target": (explorer_module, "target_view"),
    "report": (explorer_module, "report_view"),
    "code": (jax_code, "code"),
    "menus": (explorer_module, "menus_view"),
}
EDITS = {
    "a typed character": [{"kind": "edit", "field": "mesh", "value": "data=4, model=1"}],
    "a name": [{"kind": "edit", "field": "name", "value": "w_inn", "array": 0}],
    "a wrong character": [{"kind": "edit", "field": "mesh", "value": "data=4, model="}],
    "two edits at once": [
        {"kind": "edit", "field": "mesh", "value": "data=2, model=4"},
        {"kind": "edit", "field": "dialect", "value": "nnx"},
    ],
}
# A field of an array changes that array. The rules are read by all three arrays; another mesh
# changes their pictures and that of the devices as well.
TYPED = {
    "name": ({"value": "w_inn", "array": 0}, 5_000),
    "shape": ({"value": "512, 204", "array": 0}, 5_000),
    "logical": ({"value": "embed ml", "array": 0}, 5_000),
    "spec": ({"value": "None, mode", "array": 0}, 5_000),
    "rules": ({"value": "batch -> data\nmlp -> model\nembed -> mode"}, 6_500),
    "mesh": ({"value": "data=4, model=1"}, 12_500),
}


@pytest.fixture
def made() -> Explorer:
    return Explorer(Session(programs.get(), programs.DEFAULT), ExecutableCache())


def hear(explorer: Explorer, intents: list[dict[str, Any]], seq: int = 1) -> None:
    explorer._receive(explorer, {"seq": seq, "client": "page", "intents": intents}, [])


@pytest.mark.parametrize("name", EDITS)
def test_each_view_is_made_once_for_an_edit(name: str, made: Explorer, monkeypatch):
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
    assert made.view["seq"] == 2


@pytest.mark.parametrize("field", TYPED)
def test_a_typed_character_sends_few_bytes(field: str, made: Explorer, monkeypatch):
    typed, most = TYPED[field]
    hear(made, [])
    sent: list[int] = []

    def send(message: dict[str, Any], buffers: list[Any] | None = None) -> None:
        sizes = [memoryview(b).nbytes for b in buffers or ()]
        sent.append(len(json.dumps(message, ensure_ascii=False).encode()) + sum(sizes))

    monkeypatch.setattr(made, "_send", send)
    hear(made, [{"kind": "edit", "field": field, **typed}])
    assert 0 < sum(sent) <= most
    assert len(sent) == 1, "one edit is one message"
