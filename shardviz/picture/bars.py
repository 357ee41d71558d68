"""Bars with their numbers and a few words a row: bytes, seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.picture.compose import page
from shardviz.picture.measure import broken, shortened, text_width
from shardviz.picture.shapes import Label, Picture, Tiles, make_tiles, no_tiles

LONGEST, THICK, PITCH, LEAST = 150.0, 9.0, 19.0, 2.0
WIDEST_COLUMN, WIDEST_LAST = 320.0, 620.0
LINE, MOST_LINES = 12.0, 3  # of the words in the last column
FINE, ODD = 0, 1  # groups: as meant, and worth a look


@dataclass(frozen=True)
class Bar:
    """One row.

    Attributes:
        value: what the length of the bar says; None for a row without a bar.
        text: the value in words, at the bar's end.
        words: one text a column, at its right.
        group: FINE or ODD.
        hint: the tooltip of the bar.
        tone: of the words, as in Label; of what is `"bad"` no word is left out.
    """

    value: float | None
    text: str
    words: tuple[str, ...]
    group: int = FINE
    hint: str = ""
    tone: str = ""


def bars(rows: Sequence[Bar], heads: Sequence[str], **more: Any) -> Picture:
    """A page of bars, longest where the value is largest.

    Args:
        rows: in the order to show them.
        heads: a name for the bars, then one a column of words.
        more: what `page` takes.

    >>> bars([Bar(2.0, "2 B", ("x",)), Bar(1.0, "1 B", ("y",))], ["bytes", ""]).tiles.width.tolist()
    [150.0, 75.0]
    """
    largest = max([r.value or 0.0 for r in rows], default=0.0) or 1.0
    lengths = [None if r.value is None else max(LEAST, LONGEST * r.value / largest) for r in rows]
    ends = [(n or -6.0) + 6 + text_width(r.text, 9.0) for n, r in zip(lengths, rows, strict=True)]
    starts = _columns(rows, heads, max([60.0, *ends]) + 16)
    labels = [Label(x, 5, h, "start", "tick") for x, h in zip(starts, heads, strict=True) if h]
    y, tops = 16.0 if labels else 0.0, []
    for row, length in zip(rows, lengths, strict=True):
        tops.append(y)
        middle = y + PITCH / 2
        label = Label((length or -6.0) + 6, middle, row.text, "start", "axis", row.tone or "ink")
        words, lines = _words(row, starts, middle)
        labels += [label, *words]
        y += PITCH + LINE * (lines - 1)
    tiles = _tiles(rows, lengths, tops)
    return page(tiles, labels, size=(starts[-1] + 40, y), hue="bars", groups=2, **more)


def _words(row: Bar, starts: Sequence[float], y: float) -> tuple[list[Label], int]:
    """The words of a row, and how many lines those in the last column take."""
    labels, lines, tone = [], 1, row.tone or "ink"
    for x, text in zip(starts[1:], row.words, strict=False):
        parts = [shortened(text, WIDEST_COLUMN, 9.0)]
        if x == starts[-1]:
            most = None if row.tone == "bad" else MOST_LINES
            parts = broken(text, WIDEST_LAST, 9.0, most)
            lines = max(lines, len(parts))
        labels += [
            Label(x, y + LINE * i, part, "start", "axis", tone)
            for i, part in enumerate(parts)
            if part
        ]
    return labels, lines


def _tiles(rows: Sequence[Bar], lengths: Sequence[float | None], tops: Sequence[float]) -> Tiles:
    drawn = [(i, n) for i, n in enumerate(lengths) if n is not None]
    if not drawn:
        return no_tiles()
    return make_tiles(
        0,
        [tops[i] + (PITCH - THICK) / 2 for i, _ in drawn],
        [n for _, n in drawn],
        THICK,
        [rows[i].group for i, _ in drawn],
        hint=[rows[i].hint or f"{rows[i].text} {' '.join(rows[i].words)}" for i, _ in drawn],
        radius=3.0,
    )


def _columns(rows: Sequence[Bar], heads: Sequence[str], first: float) -> list[float]:
    """Where the bars and every column of words begin, in points."""
    starts = [0.0, first]
    for column in range(len(heads) - 2):
        texts = [r.words[column] for r in rows if column < len(r.words)]
        widest = max([text_width(t, 9.0) for t in [*texts, heads[column + 1]]], default=0.0)
        starts.append(starts[-1] + min(widest, WIDEST_COLUMN) + 16)
    return starts[: len(heads)]
