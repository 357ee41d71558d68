"""Pages: tiles with a title above, legend and notes below; and pictures side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardviz.picture.picture import (
    Edges,
    Frame,
    Label,
    LegendEntry,
    Picture,
    Tiles,
    make_edges,
    no_tiles,
)
from shardviz.picture.text_fit import broken, text_width

PAD = 10.0
TITLE_SIZE, NOTE_SIZE, LINE = 11.0, 8.5, 14.0
SWATCH = 9.0
NOTES_WIDE = 700.0  # longer notes take several lines
# At few dots per inch, painters round every letter to full dots; lines grow by up to this factor.
ROUNDING = 1.06


def moved(labels: Iterable[Label], x: float, y: float) -> list[Label]:
    """The labels, shifted."""
    return [replace(v, x=v.x + x, y=v.y + y) for v in labels]


def label_span(label: Label) -> tuple[float, float]:
    """Where a label begins and ends on the page, in points."""
    sizes = {"title": TITLE_SIZE, "axis": 9.0, "tick": 8.0, "note": NOTE_SIZE, "mono": 9.0}
    width = text_width(
        label.text, sizes[label.role], mono=label.role == "mono", bold=label.role == "title"
    )
    back = {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return label.x - back, label.x - back + width


def legend_rows(
    entries: Sequence[tuple[int, str]], x: float, y: float, width: float
) -> tuple[tuple[LegendEntry, ...], float]:
    """The legend in rows no wider than `width`, and its height."""
    placed, at, row = [], x, 0
    for group, text in entries:
        wide = SWATCH + 5 + text_width(text, NOTE_SIZE) + 14
        if at > x and at + wide > x + width:
            at, row = x, row + 1
        placed.append(LegendEntry(group, text, at, y + row * (LINE + 2)))
        at += wide
    return tuple(placed), (row + 1) * (LINE + 2) if placed else 0.0


def page(
    tiles: Tiles,
    labels: Iterable[Label],
    *,
    title: str = "",
    notes: Iterable[str | Label] = (),
    legend: Sequence[tuple[int, str]] = (),
    frames: Iterable[Frame] = (),
    size: tuple[float, float],
    edges: Edges | None = None,
    **more: Any,
) -> Picture:
    """A picture of tiles and labels that begin at the origin; title above, legend and notes below.

    Args:
        size: the width and height of the tiles and labels, margins not included.
        notes: lines of text; a Label keeps its role and tone.
        more: further fields of Picture.
    """
    top = PAD + (22.0 if title else 0.0)
    placed, height = legend_rows(legend, PAD, top + size[1] + 12, max(size[0], 260.0))
    texts = [
        *moved(labels, PAD, top),
        *_notes(notes, top + size[1] + (12 + height if placed else 8), size[0]),
    ]
    if title:
        texts.insert(0, Label(PAD, PAD + 7, title, "start", "title"))
    ends = [_end(v) for v in texts]
    ends += [v.x + SWATCH + 5 + text_width(v.text, NOTE_SIZE) for v in placed]
    lows = [v.y + 7 for v in texts] + [v.y + LINE for v in placed]
    width = max([PAD + size[0], *ends]) + PAD
    return Picture(
        round(width, 2),
        round(max([top + size[1], *lows]) + PAD, 2),
        shifted(tiles, PAD, top),
        tuple(texts),
        tuple(replace(f, x=f.x + PAD, y=f.y + top) for f in frames),
        placed,
        edges=None if edges is None else _shifted_edges(edges, PAD, top),
        **more,
    )


def _shifted_edges(edges: Edges, x: float, y: float) -> Edges:
    return make_edges(
        edges.x0 + x, edges.y0 + y, edges.x1 + x, edges.y1 + y, edges.group, edges.width
    )


def _end(label: Label) -> float:
    """Where a label ends at most, whatever paints it."""
    left, right = label_span(label)
    return left + (right - left) * ROUNDING


def _notes(notes: Iterable[str | Label], y: float, width: float) -> list[Label]:
    """Notes below each other; those wider than the page take several lines."""
    labels = [v if isinstance(v, Label) else Label(0, 0, v, "start", "note") for v in notes]
    lines = [
        replace(label, text=line)
        for label in labels
        for line in broken(label.text, max(width, NOTES_WIDE), NOTE_SIZE, indent="    ") or [""]
    ]
    return [replace(v, x=PAD + v.x, y=y + 7 + i * LINE) for i, v in enumerate(lines)]


def text_page(lines: Sequence[tuple[str, str]], **more: Any) -> Picture:
    """A page of lines of text, each with its tone.

    Args:
        more: what `page` takes.
    """
    labels = [
        Label(0, 7 + 15.0 * i, text, "start", "note", tone) for i, (text, tone) in enumerate(lines)
    ]
    return page(no_tiles(), labels, size=(200, 15.0 * len(lines)), **more)


def shifted(tiles: Tiles, x: float, y: float) -> Tiles:
    """The tiles, moved; nothing but their corners is copied."""
    moved_x, moved_y = tiles.x + x, tiles.y + y
    moved_x.flags.writeable = moved_y.flags.writeable = False
    return replace(tiles, x=moved_x, y=moved_y)


def side_by_side(
    pictures: Sequence[Picture],
    *,
    title: str = "",
    notes: Iterable[str | Label] = (),
    alt: str = "",
    width: float = 960.0,
    facts: Mapping[str, Any] | None = None,
) -> Picture:
    """Pictures in rows no wider than `width`, under one title."""
    top = PAD + (20.0 if title else 0.0)
    x, y, row, right = 0.0, top - PAD, 0.0, 0.0
    panels = []
    for picture in pictures:
        if x and x + picture.width > width:
            x, y, row = 0.0, y + row, 0.0
        panels.append((x, y, picture))
        x += picture.width
        row, right = max(row, picture.height), max(right, x)
    labels = _notes(notes, y + row, right)
    if title:
        labels.insert(0, Label(PAD, PAD + 7, title, "start", "title"))
    spans = [_end(v) for v in labels]
    bottom = max([y + row, *(v.y + 7 + PAD for v in labels)])
    return Picture(
        max([right, *(s + PAD for s in spans)]),
        bottom,
        no_tiles(),
        tuple(labels),
        alt=alt or " ".join(p.alt for p in pictures),
        panels=tuple(panels),
        facts=facts or {},
    )
