from __future__ import annotations

import pytest

from shardviz.axis_rules.audit import audit
from shardviz.axis_rules.draw.rules import verdict_word
from shardviz.axis_rules.resolution import resolve
from shardviz.axis_rules.rules import Rules
from shardviz.base.display import Displayed
from shardviz.base.errors import ShardvizError
from shardviz.draw.picture import Picture
from shardviz.pictures import draw, to_text
from tests.picture.geometry import check_page
from tests.picture.values import (
    CHECKS,
    COLLECTIVES,
    MESH,
    REPORT,
    RULES,
    VALUES,
    W,
    X,
)


def _all_texts(picture: Picture) -> str:
    texts = [v.text for v in picture.labels] + [v.text for v in picture.legend]
    texts += [picture.tiles.label(i) for i in range(len(picture.tiles))]
    return "\n".join([*texts, *(_all_texts(p) for _, _, p in picture.panels)])


@pytest.mark.parametrize("name", VALUES)
def test_every_value_has_a_picture_with_words(name):
    picture = draw(VALUES[name])
    check_page(picture)
    assert picture.alt


@pytest.mark.parametrize("name", VALUES)
def test_a_title_can_be_left_out(name):
    if name != "picture":
        titles = [v for v in draw(VALUES[name], title="").labels if v.role == "title"]
        assert not titles


def test_every_value_that_shows_itself_in_a_notebook_has_a_picture():
    shown = {type(v) for v in VALUES.values()}
    kinds = _all_subclasses(Displayed)
    # Exercises show their text alone.
    others = ("tests", "shardviz.exercises")
    drawable = {kind for kind in kinds if not kind.__module__.startswith(others)}
    assert all(shown.intersection(kind.__mro__) for kind in drawable)


def _all_subclasses(kind: type) -> set[type]:
    direct = set(kind.__subclasses__())
    return direct | {k for d in direct for k in _all_subclasses(d)}


@pytest.mark.parametrize("value", [3, None, "data=4", {"data": 4}, object], ids=repr)
def test_other_things_are_refused(value):
    for show in (draw, to_text):
        with pytest.raises(ShardvizError):
            show(value)


def test_a_resolution_has_a_verdict_in_every_cell():
    found = VALUES["resolution"]
    picture = draw(found)
    count = len(found.rules)
    assert len(picture.tiles) == count * 2
    cells = {(r, d): picture.tiles.label(2 * r + d) for r in range(count) for d in range(2)}
    signs = {(r, d): text[0] for (r, d), text in cells.items()}
    assert (signs[1, 1], signs[3, 0], signs[0, 0]) == ("✗", "✓", "–")
    assert picture.tiles.group.tolist() == [3, 3, 3, 2, 1, 3, 0, 3, 3, 3]
    for i in range(count * 2):
        verdict = found.decisions[i % 2].verdicts[i // 2]
        assert picture.tiles.label(i) == verdict_word(verdict)


def test_every_outcome_has_a_word_of_its_own_beside_its_colour():
    rules = Rules.of(
        ("a", "x"), ("a", "y"), ("b", ("x", "y")), ("c", "one"), ("d", "gone"), ("b", "y"),
    )  # fmt: skip
    mesh = VALUES["mesh"].__class__(("x", "y", "one"), (2, 2, 1))
    resolved = (
        resolve(("a", "b", "c", "d"), rules, mesh=mesh),
        resolve(("a",), rules, dialect="nnx"),
    )
    words: dict = {}
    for found in resolved:
        for decision in found.decisions:
            for verdict in decision.verdicts:
                words.setdefault(verdict.outcome, set()).add(verdict_word(verdict))
    said = [word for some in words.values() for word in some]
    assert len(words) >= 6
    assert len(set(said)) == len(said) or said.count("–") == len(said) - len(set(said)) + 1


def test_in_a_long_table_the_rules_of_other_names_share_a_line_that_loses_none():
    rules = Rules.of([(f"n{i}", "x") for i in range(50)])
    picture = draw(resolve(("n7", "n9"), rules))
    assert len(picture.tiles) == 4
    assert "1–7, 9, 11–50" in _all_texts(picture)


def test_an_array_stands_beside_its_devices_in_the_same_colours():
    devices, array = (p for _, _, p in draw(VALUES["request"]).panels)
    assert devices.groups == array.groups == 2
    colour = dict(zip(devices.tiles.device.tolist(), devices.tiles.group.tolist(), strict=True))
    for tile in range(len(array.tiles)):
        assert {colour[d] for d in array.tiles.devices(tile).tolist()} == {
            int(array.tiles.group[tile])
        }


def test_a_broken_request_says_why():
    for name in ("broken request", "request of no names"):
        bad = [v.text for v in _labels(draw(VALUES[name])) if v.tone == "bad"]
        assert bad


def _labels(picture: Picture) -> list:
    return [*picture.labels, *(v for _, _, p in picture.panels for v in _labels(p))]


def test_an_audit_has_the_largest_first_and_a_bar_true_to_length():
    found = audit([X, W, VALUES["array"].replace(name="all", logical=None)], RULES, MESH)
    picture = draw(found)
    tiles, names = picture.tiles, ("all", "w_in", "x")
    assert tuple(v.text for v in _labels(picture) if v.text in names) == names
    assert tiles.width.tolist()[:2] == [150.0, 75.0]
    assert tiles.group.tolist() == [1, 0, 0]


def test_a_report_shows_stages_collectives_and_checks():
    picture = draw(REPORT)
    texts = _all_texts(picture)
    for said in ("340 ms", "all-reduce", "block.py:31", *(c.name for c in CHECKS), "2.1 G flops"):
        assert said in texts
    bars = picture.panels[1][2].tiles
    row = [v.text for v in picture.panels[1][2].labels if v.anchor == "start"]
    assert row[row.index("8 MiB") :][:3] == ["8 MiB", "all-reduce", "model"]
    assert bars.width.tolist()[0] == 150.0
    assert len(bars) == len(COLLECTIVES)
