"""Which texts fit into their tiles, and where their lines stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardviz.picture.measure import text_width
from shardviz.picture.shapes import Picture

MOST_TEXTS = 4096
LARGEST, SMALLEST, SECOND = 11.0, 5.0, 8.0  # font sizes, in points


@dataclass(frozen=True)
class Line:
    """One line of text, ready to be set."""

    x: float
    y: float
    text: str
    size: float
    bold: bool
    ink: tuple[float, ...]
    anchor: str


def letter_tiles(picture: Picture, inks: np.ndarray) -> Iterator[Line]:
    """The lines inside the tiles of a picture, all tiles set alike.

    The first line is as large as every tile can bear; further lines and what stands at the right
    edge are left out where they do not fit. Tooltips have the full text.

    Args:
        inks: uint8 [tiles, 4], the colour of text on each tile.
    """
    tiles = picture.tiles
    smallest_width, smallest_height = float(tiles.width.min()), float(tiles.height.min())
    if not tiles.text or len(tiles) > MOST_TEXTS or smallest_height < SMALLEST + 1:
        return
    texts = [_split(tiles.label(i)) for i in range(len(tiles))]
    pad = min(8.0, smallest_width * 0.1)
    size = _size(texts, smallest_width - 2 * pad, smallest_height)
    if size is None:
        return
    fit = _Fit(size, pad, tiles.align)
    for index, text in enumerate(texts):
        box = (float(tiles.x[index]), float(tiles.y[index]),
               float(tiles.width[index]), float(tiles.height[index]))  # fmt: skip
        yield from fit.lines(text, box, tuple((inks[index] / 255).tolist()))


@dataclass(frozen=True)
class _Text:
    main: str
    corner: str
    rest: tuple[str, ...]


def _split(text: str) -> _Text:
    first, *rest = text.split("\n")
    main, _, corner = first.partition("\t")
    return _Text(main, corner, tuple(rest))


def _size(texts: list[_Text], width: float, height: float) -> float | None:
    """The largest size at which every first line fits; None where not even the smallest does."""
    widest = max(text_width(t.main, 1.0, bold=True) for t in texts)
    size = min(LARGEST, height * 0.62, width / max(widest, 0.01))
    return size if size >= SMALLEST else None


@dataclass(frozen=True)
class _Fit:
    size: float
    pad: float
    align: str

    def lines(
        self, text: _Text, box: tuple[float, float, float, float], ink: tuple[float, ...]
    ) -> Iterator[Line]:
        x, y, width, height = box
        small = min(SECOND, self.size * 0.8)
        rest = [t for t in text.rest if text_width(t, small) <= width - 2 * self.pad]
        if small < SMALLEST or self.size * 1.25 + len(rest) * small * 1.35 > height - 4:
            rest = []
        block = self.size * 1.2 + len(rest) * small * 1.45
        at = y + (height - block) / 2 + self.size * 0.62
        left = self.align == "start"
        along = x + self.pad if left else x + width / 2
        anchor = "start" if left else "middle"
        yield Line(along, at, text.main, self.size, True, ink, anchor)
        room = width - 2 * self.pad - text_width(text.main, self.size, bold=True)
        if text.corner and left and small >= SMALLEST and text_width(text.corner, small) + 4 < room:
            yield Line(x + width - self.pad, at, text.corner, small, False, ink, "end")
        at += self.size * 0.6 + small * 0.85
        for line in rest:
            yield Line(along, at, line, small, False, ink, anchor)
            at += small * 1.4
