"""Draws a search: a plot of least time against memory, and a table of the frontier."""

from __future__ import annotations

from shardviz.advise.search import Search
from shardviz.advise.words import search as wording
from shardviz.advise.words.edits import edits_in_words
from shardviz.base.format import bytes_text, seconds_text
from shardviz.draw import page, tables
from shardviz.draw.picture import Label, Picture

# The most planned points to show if no candidate fits.
_MOST_PLANS = 8
# Lengths in points.
_LEFT, _TOP, _WIDTH, _HEIGHT, _DOT = 70.0, 26.0, 240.0, 160.0, 7.0


def draw_search(search: Search, title: str | None = None) -> Picture:
    """Plots least time against memory for all candidates, and numbers the frontier."""
    panels, lines = [], [str(search)]
    if search:
        panels = [_plot(search), _table(search).picture()]
    else:  # no candidate compiled and fitted
        lines = _lines(search)
    return page.side_by_side(
        panels,
        title=page.titled(title, f"{wording.TIME} × {wording.MEMORY}"),
        notes=list(map(page.note, lines)),
        alt=page.sentences(_lines(search)),
    )


def search_text(search: Search, width: int) -> str:
    """Describes the result, with one line per point of the frontier."""
    return page.paragraphs(_lines(search), width)


def _lines(search: Search) -> list[str]:
    lines = [str(search), *_table(search).lines("")]
    if not search and search.plans:
        lines += [wording.PLANNED, *map(wording.planned, search.plans[:_MOST_PLANS])]
    return lines


def _table(search: Search) -> tables.Table:
    rows = []
    listed = [
        (str(number), candidate) for number, candidate in enumerate(search.frontier, 1)
    ]
    for candidate in search:
        # Also list the current program, for comparison.
        if not candidate.edits and candidate not in search.frontier:
            listed.append(("", candidate))
    for number, candidate in listed:
        size, edits = (
            bytes_text(candidate.peak_bytes or 0),
            edits_in_words(candidate.edits),
        )
        words = number, size, edits
        rows.append(
            tables.Bar(
                candidate.least_seconds, seconds_text(candidate.least_seconds), words
            )
        )
    return tables.Table((wording.TIME, "", wording.MEMORY, ""), tuple(rows))


def _plot(search: Search) -> Picture:
    """Plots one dot per candidate, on axes from the minimum to the maximum."""
    numbers = {
        id(candidate): str(number)
        for number, candidate in enumerate(search.frontier, 1)
    }
    times = [candidate.least_seconds or 0.0 for candidate in search]
    sizes = [candidate.peak_bytes or 0 for candidate in search]
    # Label only the minimum and maximum of each axis.
    low, right = _TOP + _HEIGHT + 2 * _DOT, _LEFT + _WIDTH
    labels = [
        Label(_LEFT, low, seconds_text(min(times)), "middle", "tick"),
        Label(right, low, seconds_text(max(times)), "middle", "tick"),
        Label(_LEFT - 2 * _DOT, low - 2 * _DOT, bytes_text(min(sizes)), "end", "tick"),
        Label(_LEFT - 2 * _DOT, _TOP, bytes_text(max(sizes)), "end", "tick"),
        Label(_LEFT + _WIDTH / 2, low, wording.TIME),
        Label(0.0, _DOT, wording.MEMORY, "start"),
    ]
    dots = []
    for candidate, time, size in zip(search, times, sizes, strict=True):
        # The range is empty if all candidates have the same time or memory.
        x = _LEFT + _WIDTH * (time - min(times)) / (max(times) - min(times) or 1.0)
        y = _TOP + _HEIGHT * (max(sizes) - size) / (max(sizes) - min(sizes) or 1)
        number = numbers.get(id(candidate))
        group = tables.NORMAL if number is None else tables.HIGHLIGHTED
        corner = x - _DOT / 2, y - _DOT / 2
        dots.append(tables.Rectangle(*corner, _DOT, _DOT, group))
        if number is not None:
            labels.append(Label(x + _DOT, y - _DOT, number, "start", "note"))
    # The frontier is painted last, on top.
    dots.sort(key=lambda dot: dot.group)
    tiles = tables.rectangle_tiles(dots, radius=_DOT / 2)
    size = (right + 4 * _DOT, low + _DOT)
    return page.page(
        tiles, labels, size=size, colormap="bars", groups=2, alt=str(search)
    )
