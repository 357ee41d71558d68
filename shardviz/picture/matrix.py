"""A table with words on its left, names on top, and tiles where a row meets a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardviz.picture.compose import page
from shardviz.picture.measure import shortened, text_width
from shardviz.picture.shapes import Label, Picture, make_tiles, no_tiles

ROW, GAP, HEAD = 22.0, 3.0, 16.0
WIDEST_NAME = 260.0


@dataclass(frozen=True)
class Cell:
    """A tile where a row meets a column."""

    row: int
    column: int
    text: str
    group: int
    hint: str


def matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Cell],
    *,
    remarks: Sequence[str] = (),
    least: float = 54.0,
    **more: Any,
) -> Picture:
    """A page with the table on it.

    Args:
        rows, columns: their names.
        remarks: a text at the right of every row, `""` for none.
        least: the least width of a column, in points.
        more: what `page` takes: title, notes, legend, alt, hue, groups.

    >>> matrix(["a"], ["x"], [Cell(0, 0, "yes", 0, "a is x")]).tiles.tooltip(0)
    'a is x'
    """
    left = min(max([text_width(r, 9.0, mono=True) for r in rows], default=0.0), WIDEST_NAME) + 14
    texts = [*(c.text for c in cells)]
    width = max([least, *(text_width(t, 9.0, bold=True) + 12 for t in texts)])
    pitch = width + GAP
    labels = [
        Label(left + c * pitch + width / 2, HEAD / 2 - 3, shortened(name, width, 9.0))
        for c, name in enumerate(columns)
    ]
    for row, name in enumerate(rows):
        y = HEAD + row * (ROW + GAP) + ROW / 2
        labels.append(Label(0, y, shortened(name, WIDEST_NAME, 9.0, mono=True), "start", "mono"))
        if row < len(remarks) and remarks[row]:
            labels.append(Label(left + len(columns) * pitch + 6, y, remarks[row], "start", "note"))
    tiles = no_tiles()
    if cells:
        tiles = make_tiles(
            [left + c.column * pitch for c in cells],
            [HEAD + c.row * (ROW + GAP) for c in cells],
            width,
            ROW,
            [c.group for c in cells],
            text=texts,
            hint=[c.hint for c in cells],
            radius=4.0,
        )
    size = (left + len(columns) * pitch, HEAD + max(len(rows), 1) * (ROW + GAP))
    return page(tiles, labels, size=size, **more)
