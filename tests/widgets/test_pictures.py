"""Pictures of many arrays: arrays that look alike share one."""

from __future__ import annotations

import pytest

from shardviz.axis_rules.rules import Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.mesh import make_mesh
from shardviz.draw.layout import draw_layout_array
from shardviz.explorer import pictures
from shardviz.explorer.pictures import PictureCache
from shardviz.explorer.session import Session
from shardviz.programs.program import Program

MESH = make_mesh(data=2, model=4)


def model(layers: int, mesh=MESH) -> Session:
    arrays = tuple(
        ArraySpec(f"layer_{i}.{name}", shape, logical)
        for i in range(layers)
        for name, shape, logical in (
            ("w_in", (64, 256), "embed mlp"),
            ("w_out", (256, 64), "mlp embed"),
        )
    )

    rules = Rules.parse("mlp -> model; embed -> data")
    return Session(Program(lambda *a: a, arrays, mesh, rules, name="layers"))


@pytest.fixture
def drawn(monkeypatch) -> list[str]:
    calls: list[str] = []

    def counted(layout, *more, **options):
        calls.append(str(layout.spec))
        return draw_layout_array(layout, *more, **options)

    monkeypatch.setattr(pictures, "draw_layout_array", counted)
    return calls


def test_layers_that_look_alike_are_drawn_once(drawn):
    session, cache = model(60), PictureCache()
    cache.update(session.now)
    assert len(drawn) == 2
    session.edit("mesh", "data=4, model=2")
    cache.update(session.now)
    assert len(drawn) == 4
    session.edit("spec", "None, None", 7)
    cache.update(session.now)
    assert len(drawn) == 5


EDITS = {
    "nothing": [],
    "a name": [("name", "w", 3)],
    "a type and a choice": [("dtype", "bfloat16", 0), ("select", 2)],
    "another mesh": [("mesh", "data=4, model=2")],
}


@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS.keys())
def test_every_picture_is_as_if_drawn_by_itself(edits):
    session, cache = model(3), PictureCache()
    for edit in edits:
        cache.update(session.now)
        session.edit(*edit)
    found = cache.update(session.now)[1]
    for array, picture in zip(session.arrays, found, strict=True):
        alone = Session(session.program.replace(arrays=(array,)))
        assert PictureCache().update(alone.now)[1] == [picture], array.name
        assert picture["picture"]["data"]["tiles"]["count"] > 1


def test_other_devices_are_another_picture():
    session, cache = model(1), PictureCache()
    before = cache.update(session.now)[1]
    moved = make_mesh(data=2, model=4, device_ids=[7, 6, 5, 4, 3, 2, 1, 0])
    other = Session(session.program.replace(mesh=moved))
    assert cache.update(other.now)[1] != before
