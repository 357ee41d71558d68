"""Searches: least time against memory, and the edit of each point of the frontier."""

from __future__ import annotations

from shardviz.core.format import bytes_text, seconds_text
from shardviz.core.program.search import Search
from shardviz.core.wording import search as wording
from shardviz.core.wording.candidates import edits_in_words
from shardviz.picture.page import (
    note,
    page,
    paragraphs,
    sentences,
    side_by_side,
    titled,
)
from shardviz.picture.picture import Label, Picture
from shardviz.picture.tables import (
    HIGHLIGHTED,
    NORMAL,
    Bar,
    Rectangle,
    Table,
    rectangle_tiles,
)

_LEFT, _TOP, _WIDTH, _HEIGHT, _DOT = 70.0, 26.0, 240.0, 160.0, 7.0  # points


def draw_search(search: Search, title: str | None = None) -> Picture:
    """Least time against memory of all that was compiled; the frontier by number."""
    panels = []
    # Where nothing was compiled in time there is nothing to compare.
    if search:
        panels = [_plot(search), _table(search).picture()]
    return side_by_side(
        panels,
        title=titled(title, f"{wording.TIME} × {wording.MEMORY}"),
        notes=[note(str(search))],
        alt=sentences([str(search), *_table(search).lines("")]),
        facts={"kind": "search"},
    )


def search_text(search: Search, width: int) -> str:
    """What was found, and a line for each point of the frontier."""
    return paragraphs([str(search), *_table(search).lines("")], width)


def _table(search: Search) -> Table:
    rows = []
    for number, one in enumerate(search.frontier, 1):
        words = (
            str(number),
            bytes_text(one.peak_bytes or 0),
            edits_in_words(one.edits),
        )
        rows.append(Bar(one.least_seconds, seconds_text(one.least_seconds), words))
    return Table((wording.TIME, "", wording.MEMORY, ""), tuple(rows))


def _plot(search: Search) -> Picture:
    numbers = {id(one): number for number, one in enumerate(search.frontier, 1)}
    times = [one.least_seconds or 0.0 for one in search] or [0.0]
    sizes = [one.peak_bytes or 0 for one in search] or [0]
    labels, dots = [], []
    # Those of the frontier last, so that they are on top.
    for one in sorted(search, key=lambda one: id(one) in numbers):
        time, size = one.least_seconds or 0.0, one.peak_bytes or 0
        x = _LEFT + _WIDTH * (time - min(times)) / (max(times) - min(times) or 1.0)
        y = _TOP + _HEIGHT * (max(sizes) - size) / (max(sizes) - min(sizes) or 1)
        group = NORMAL
        if id(one) in numbers:
            group = HIGHLIGHTED
            number = str(numbers[id(one)])
            labels.append(Label(x + _DOT, y - _DOT, number, "start", "note"))
        corner = (x - _DOT / 2, y - _DOT / 2)
        dots.append(Rectangle(*corner, _DOT, _DOT, group, wording.candidate(one)))
    # The least and the most of both, at the ends of their axes.
    low, right = _TOP + _HEIGHT + 2 * _DOT, _LEFT + _WIDTH
    for x, text in ((_LEFT, min(times)), (right, max(times))):
        labels.append(Label(x, low, seconds_text(text), "middle", "tick"))
    for y, size in ((_TOP + _HEIGHT, min(sizes)), (_TOP, max(sizes))):
        labels.append(Label(_LEFT - 2 * _DOT, y, bytes_text(size), "end", "tick"))
    labels.append(Label(_LEFT + _WIDTH / 2, low, wording.TIME))
    labels.append(Label(0.0, _DOT, wording.MEMORY, "start"))
    tiles = rectangle_tiles(dots, radius=_DOT / 2)
    size = (right + 4 * _DOT, low + _DOT)
    return page(tiles, labels, size=size, colormap="bars", groups=2, alt=str(search))
