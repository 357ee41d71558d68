"""Pages: tiles with a title above, legend and notes below; and pictures side by side."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from shardviz.core.format import plural
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

# The letters from blank to tilde, two digits each: hundredths of the font's size. They are the
# advances of DejaVu Sans, a wide font and the one that comes with matplotlib, as it is drawn at
# 100 or 144 dots an inch, whichever is more: at few dots every letter is rounded to full ones.
_SANS = (
    "3643518868968132434356883640363668686868686868686868363688888856997572728068"
    "5981803434725989808164817268628072997264724336438856566468596864366868323264"
    "32996864686844564368648864645668366888"
)
_BOLD = (
    "4048568872999034484856884345434072727272727272727272434388888864998180808872"
    "7288884040816899888880888072748881998076764840488856567276647672447676373772"
    "37997672767651645176689668686476407688"
)
_OTHERS = {
    **dict.fromkeys("·‹›|", 0.4),
    **dict.fromkeys("–“”‘’", 0.57),
    **dict.fromkeys("…—@", 1.05),
    **dict.fromkeys("×→−✓✗↔", 0.89),
}
_MONO = 0.64
_LONG_WORD = 3  # words that are this many times too wide for a line are broken within


@lru_cache(maxsize=16384)
def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """An upper bound of the width of one line of text, in points.

    >>> text_width("model 0", 9) < text_width("model 10", 9)
    True
    """
    if mono:
        return size * sum(_MONO if v.isascii() else max(_MONO, _other(v)) for v in text)
    table = _WIDTHS[bold]
    more = 1.15 if bold else 1.0
    return size * sum(table[ord(v) - 32] if " " <= v <= "~" else more * _other(v) for v in text)


def _table(digits: str) -> tuple[float, ...]:
    return tuple(int(digits[i : i + 2]) / 100 for i in range(0, len(digits), 2))


_WIDTHS = {False: _table(_SANS), True: _table(_BOLD)}


def _other(letter: str) -> float:
    if letter in _OTHERS:
        return _OTHERS[letter]
    return 1.2 if unicodedata.east_asian_width(letter) in "WF" else 0.97


def shortened(text: str, width: float, size: float, mono: bool = False) -> str:
    """`text`, shortened with an ellipsis where it is wider than `width` points.

    >>> shortened("a very long name", 50, 9)
    'a very l…'
    """
    if text_width(text, size, mono) <= width:
        return text
    while text and text_width(text + "…", size, mono) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def broken(
    text: str, width: float, size: float, most: int | None = None, indent: str = ""
) -> list[str]:
    """`text` in lines no wider than `width` points, broken at blanks; in long words, anywhere.

    Args:
        most: how many lines there may be; the last then ends with an ellipsis.
        indent: what precedes every line but the first.

    >>> broken("one two three", 40, 9), broken("a/long/path/without/blanks", 60, 9)
    (['one two', 'three'], ['a/long/path/', 'without/bla', 'nks'])
    >>> broken("one two three", 40, 9, most=1)
    ['one t…']
    """
    lines, rest = [], text
    while rest and (most is None or len(lines) + 1 < most):
        start = indent if lines else ""
        if text_width(start + rest, size) <= width:
            break
        at = _break(rest, width - text_width(start, size), size)
        lines.append(start + rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, shortened((indent if lines else "") + rest, width, size)] if rest else lines


def _break(text: str, width: float, size: float) -> int:
    """How many letters go into a line: up to a blank, or as many as fit where that is far off."""
    used, at = 0.0, 0
    for at, letter in enumerate(text):  # noqa: B007  used after the loop
        used += text_width(letter, size)
        if used > width:
            break
    blank = text.rfind(" ", 0, at + 1)
    return blank if blank > at // _LONG_WORD else max(at, 1)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """`text` in lines of at most `width` letters where blanks, and slashes of long paths, allow it.

    >>> wrapped("one two three", 8, "  ")
    ['one two', '  three']
    >>> wrapped("from jit(step)/transpose(jvp(layer))/dot_general", 24, "  ")
    ['from', '  jit(step)/', '  transpose(jvp(layer))/', '  dot_general']
    """
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in lines for part in _path_lines(line, width, indent)]


def _path_lines(line: str, width: int, indent: str) -> list[str]:
    """A line that a long path makes too long, broken after slashes; URLs stay in one line."""
    found = []
    while len(line) > width and "://" not in line:
        at = line.rfind("/", len(indent), width) + 1
        if at <= len(indent) or not line[at:].strip():
            break
        found.append(line[:at])
        line = indent + line[at:]
    return [*found, line]


def paragraphs(texts: Iterable[str], width: int, most: int | None = None) -> str:
    """Every line of some texts, wrapped, with its further lines indented.

    Args:
        most: how many lines to show; the rest are counted.

    >>> print(paragraphs(["one two three", "  four"], 8))
    one two
      three
      four
    """
    source, lines = "\n".join(texts).split("\n"), []
    if most is not None:
        source = [*source[:most], *and_more(len(source) - most, "line")]
    for line in source:
        indent = " " * (len(line) - len(line.lstrip()))
        lines += wrapped(line, width, indent + "  ") or [""]
    return "\n".join(lines)


def and_more(count: int, noun: str) -> list[str]:
    """The line that counts what is left out; none where that is nothing.

    >>> and_more(2, "array"), and_more(0, "array")
    (['and 2 more arrays'], [])
    """
    return [f"and {plural(count, f'more {noun}')}"] if count > 0 else []


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
