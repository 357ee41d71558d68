"""Pages: tiles with a title, legend and notes. Also puts pictures side by side."""

from __future__ import annotations

import itertools
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from shardviz.base.format import Fold, plural
from shardviz.draw.picture import (
    Edges,
    Frame,
    Label,
    LegendEntry,
    Picture,
    Ruler,
    Tiles,
    make_edges,
    no_tiles,
)

T = TypeVar("T")

# Widths of the characters from space to tilde: two digits each, in hundredths of the
# font size. They are the advances of DejaVu Sans, a wide font that matplotlib includes.
# Advances are rounded to full dots; we use the larger of those at 100 and 144 dpi.
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
# A line that would be less than 1/3 full gets part of the next, long word.
_LONG_WORD = 3


@lru_cache(maxsize=16384)
def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """Returns an upper bound on the width of one line of text, in points."""
    digits, width = _BOLD if bold else _SANS, 0.0
    for letter in text:
        if mono and letter.isascii():
            width += _MONO
        elif " " <= letter <= "~":
            at = 2 * (ord(letter) - 32)
            width += int(digits[at : at + 2]) / 100
        elif letter in _OTHERS:
            width += _OTHERS[letter] * (1.15 if bold else 1.0)
        else:  # other scripts: upper bounds for full-width and other characters
            width += 1.2 if unicodedata.east_asian_width(letter) in "WF" else 1.12
    return size * width


def widest(
    texts: Iterable[str], size: float, mono: bool = False, bold: bool = False
) -> float:
    """Returns the width of the widest text, in points; 0 without texts."""
    width = 0.0
    for text in texts:
        width = max(width, text_width(text, size, mono, bold))
    return width


def shortened(text: str, width: float, size: float, mono: bool = False) -> str:
    """Shortens `text` with an ellipsis if it is wider than `width` points.

    >>> shortened("a very long name", 50, 9)
    'a very l…'
    """
    if text_width(text, size, mono) <= width:
        return text
    # Removing one letter at a time is fast enough, because names are short.
    while text and text_width(text + "…", size, mono) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def broken(
    text: str, width: float, size: float, most: int | None = None, indent: str = ""
) -> list[str]:
    """Splits `text` into lines of at most `width` points, at spaces or in long words.

    Args:
        most: the maximum number of lines; longer text ends with an ellipsis.
        indent: the prefix of every line except the first.

    >>> broken("one two three", 40, 9), broken("a/long/path/without/blanks", 60, 9)
    (['one two', 'three'], ['a/long/path/', 'without/bla', 'nks'])
    >>> broken("one two three", 40, 9, most=1)
    ['one t…']
    """
    # Text is only lost if there are too many lines, which an ellipsis shows.
    lines, remaining, start = [], text, ""
    while remaining and (most is None or len(lines) + 1 < most):
        if text_width(start + remaining, size) <= width:
            break
        at = _break(remaining, width - text_width(start, size), size)
        lines.append(start + remaining[:at].rstrip())
        remaining, start = remaining[at:].lstrip(), indent
    if remaining:
        lines.append(shortened(start + remaining, width, size))
    return lines


def _break(text: str, width: float, size: float) -> int:
    """Returns the length of the next line, which ends at a space if possible."""
    used, end = 0.0, 0
    while end < len(text) - 1:
        used += text_width(text[end], size)
        if used > width:
            break
        end += 1
    blank = text.rfind(" ", 0, end + 1)
    # If that leaves the line nearly empty, break within the long word instead.
    if blank > end // _LONG_WORD:
        return blank
    return max(end, 1)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Splits `text` into lines of at most `width` characters, at spaces and slashes.

    >>> wrapped("one two three", 8, "  ")
    ['one two', '  three']
    >>> wrapped("from jit(step)/transpose(jvp(layer))/dot_general", 24, "  ")
    ['from', '  jit(step)/', '  transpose(jvp(layer))/', '  dot_general']
    """
    lines = textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    parts: list[str] = []
    for line in lines:
        # Break long paths after slashes, but not URLs, which must stay clickable.
        while len(line) > width and "://" not in line:
            at = line.rfind("/", len(indent), width) + 1
            if at <= len(indent) or not line[at:].strip():
                break
            parts.append(line[:at])
            line = indent + line[at:]
        parts.append(line)
    return parts


def paragraphs(texts: Iterable[str], width: int, most: int | None = None) -> str:
    """Wraps every line of the texts, with continuation lines indented.

    Args:
        most: the maximum number of lines before wrapping; a last line counts the rest.

    >>> print(paragraphs(["one two three", "  four"], 8))
    one two
      three
      four
    """
    source, lines = "\n".join(texts).split("\n"), []
    if most is not None:
        source = [*source[:most], *and_more(len(source) - most, "line")]
    for line in source:
        # Indented lines keep their indent; their continuation lines get two more.
        indent = " " * (len(line) - len(line.lstrip()))
        lines += wrapped(line, width, indent + "  ") or [""]
    return "\n".join(lines)


def sentences(lines: Iterable[str]) -> str:
    """Joins lines for a screen reader, each ending with a full stop."""
    text = []
    for line in lines:
        line = line.strip()
        if not line.endswith((".", ":")):
            line += "."
        text.append(line)
    return " ".join(text)


def unfolded(folds: Iterable[Fold[T]]) -> list[T]:
    """Returns the items of several folds as one list."""
    items: list[T] = []
    for fold in folds:
        items += fold.items
    return items


def and_more(count: int, noun: str) -> list[str]:
    """Returns a line that counts omitted items; no line if none are omitted."""
    if count <= 0:
        return []
    return [f"and {plural(count, f'more {noun}')}"]


# The margin and the height of a title, in points.
PAD, TITLE = 10.0, 22.0
TITLE_SIZE, NOTE_SIZE, LINE = 11.0, 8.5, 14.0
SWATCH = 9.0
# Notes are wrapped at this width in points, or at the tiles' width if larger.
NOTES_WIDE = 700.0
# Narrower pages of several pictures don't count as smaller: a notebook leaves the rest of
# their lines empty.
PAGE_WIDE = 500.0
# The width in points of a page that a notebook shows without shrinking it, and the most
# height of a page per width: more does not fit on a screen.
NOTEBOOK_WIDE, STEEPEST = 424.0, 1.02
# At low resolution, painters round each letter's width to full dots, which makes lines
# longer by up to this factor.
ROUNDING = 1.06


def titled(title: str | None, head: str) -> str:
    """Returns the caller's title (`""` for none), or the default `head` if None."""
    if title is None:
        return head
    return title


def note(text: str, tone: str = "") -> Label:
    """Creates a note for `page`: a line of text with a tone."""
    return Label(0, 0, text, "start", "note", tone)


def moved(labels: Iterable[Label], x: float, y: float) -> list[Label]:
    """Returns the labels shifted by (x, y) points."""
    return [replace(label, x=label.x + x, y=label.y + y) for label in labels]


_SIZES = {"title": TITLE_SIZE, "axis": 9.0, "tick": 8.0, "note": NOTE_SIZE, "mono": 9.0}


def label_span(label: Label) -> tuple[float, float]:
    """Returns the x coordinates of a label's left and right end, in points."""
    size, role = _SIZES[label.role], label.role
    width = text_width(label.text, size, mono=role == "mono", bold=role == "title")
    back = {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return label.x - back, label.x - back + width


def label_end(label: Label) -> float:
    """Returns an upper bound on a label's right end for any painter, in points."""
    left, right = label_span(label)
    return left + (right - left) * ROUNDING


def _legend_rows(
    entries: Sequence[tuple[int, str]], y: float, width: float
) -> tuple[LegendEntry, ...]:
    """Arranges the legend in rows of at most `width` points, the first row at `y`."""
    placed, x = [], PAD
    for group, text in entries:
        wide = SWATCH + 5 + text_width(text, NOTE_SIZE) + 14
        if x > PAD and x + wide > PAD + width:
            x, y = PAD, y + LINE + 2
        placed.append(LegendEntry(group, text, x, y))
        x += wide
    return tuple(placed)


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
    rulers: Iterable[Ruler] = (),
    **more: Any,
) -> Picture:
    """Creates a picture with a title above the tiles, and legend and notes below.

    Args:
        tiles, labels, frames, edges, rulers: with their top left corner at the origin.
        notes: lines of text; a Label keeps its role and tone.
        legend: (group, meaning of its colour) per entry.
        size: width and height of the tiles and labels without margins, in points.
        more: other fields of Picture.
    """
    top = PAD + TITLE if title else PAD
    if edges is not None:
        ends = edges.x0 + PAD, edges.y0 + top, edges.x1 + PAD, edges.y1 + top
        edges = make_edges(*ends, edges.group, edges.width)
    low = top + size[1]
    texts = moved(labels, PAD, top)
    if title:
        texts.insert(0, Label(PAD, PAD + 7, title, "start", "title"))
    placed = _legend_rows(legend, low + 12, max(size[0], 260.0))
    below, right = low + 8, PAD + size[0]
    for entry in placed:
        right = max(right, entry.x + SWATCH + 5 + text_width(entry.text, NOTE_SIZE))
        below = entry.y + LINE + 2
    bottom = max(low, below - 8)
    texts += _notes(notes, below, size[0])
    for label in texts:
        right, bottom = max(right, label_end(label)), max(bottom, label.y + 7)
    return Picture(
        round(right + PAD, 2),
        round(bottom + PAD, 2),
        shifted(tiles, PAD, top),
        tuple(texts),
        tuple(replace(frame, x=frame.x + PAD, y=frame.y + top) for frame in frames),
        placed,
        edges=edges,
        rulers=tuple(
            replace(r, start=r.start + (top if r.down else PAD)) for r in rulers
        ),
        **more,
    )


def _notes(notes: Iterable[str | Label], y: float, width: float) -> list[Label]:
    """Stacks notes vertically; notes wider than the page are wrapped."""
    placed = []
    for text in notes:
        if isinstance(text, str):
            text = note(text)
        page_width = max(width, NOTES_WIDE)
        for line in broken(text.text, page_width, NOTE_SIZE, indent="    ") or [""]:
            at = y + 7 + len(placed) * LINE
            placed.append(replace(text, text=line, x=PAD + text.x, y=at))
    return placed


def text_page(lines: Sequence[tuple[str, str]], **more: Any) -> Picture:
    """Creates a page of text.

    Args:
        lines: (text, tone) per line.
        more: other arguments of `page`.
    """
    labels = []
    for number, (text, tone) in enumerate(lines):
        labels.append(Label(0, 7 + 15.0 * number, text, "start", "note", tone))
    return page(no_tiles(), labels, size=(200, 15.0 * len(lines)), **more)


def shifted(tiles: Tiles, x: float, y: float) -> Tiles:
    """Moves tiles; only the arrays `x` and `y` are copied."""
    # Copying groups and ids of 65,536 tiles would take longer than drawing them.
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
) -> Picture:
    """Arranges pictures in rows of at most `width` points, under one title.

    The rows end where the page becomes smallest and still fits on a screen. A picture
    may stand below a shorter one of its row if that makes the page smaller.
    """
    top = TITLE if title else 0.0
    # Some row is the widest, so no other widths can give other rows.
    widths = {width}
    for first in range(len(pictures)):
        widths |= set(itertools.accumulate(p.width for p in pictures[first:]))
    pages = []
    for wide in sorted(wide for wide in widths if wide <= width):
        pages += [_in_rows(pictures, wide, stacks) for stacks in (False, True)]
    size, corners = min(pages, key=lambda rows: _paper(*rows[0]))
    return page(
        no_tiles(),
        [],
        title=title,
        notes=notes,
        # Each picture already has a margin.
        size=(size[0] - 2 * PAD, size[1] - 2 * PAD),
        alt=alt or " ".join(p.alt for p in pictures),
        panels=tuple(
            (x, top + y, picture)
            for (x, y), picture in zip(corners, pictures, strict=True)
        ),
    )


def _paper(width: float, height: float) -> tuple[bool, float, float]:
    """Returns the key by which the best page is first.

    The key is whether the page is too high for a screen, its area, and its height to
    decide between equal areas.
    """
    too_high = height > STEEPEST * max(width, NOTEBOOK_WIDE)
    return too_high, round(max(width, PAGE_WIDE) * height), height


@dataclass
class _Column:
    """Pictures of one row below each other, with the size they take in points."""

    x: float
    width: float
    height: float


def _in_rows(
    pictures: Sequence[Picture], width: float, stacks: bool
) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """Returns the size of pictures in rows, and the top left corner of each picture.

    Args:
        stacks: whether a picture that doesn't fit beside the others of its row may
            stand below one of them that is shorter than the row.
    """
    y, right, bottom = 0.0, 0.0, 0.0
    corners = []
    row: list[_Column] = []
    for picture in pictures:
        x = row[-1].x + row[-1].width if row else 0.0
        if not row or x + picture.width <= width:
            column = _Column(x, picture.width, 0.0)
            row.append(column)
        else:
            row[-1].width = width - row[-1].x
            shorter = [c for c in row if stacks and y + c.height < bottom]
            wide_enough = [c for c in shorter if picture.width <= c.width]
            if wide_enough:
                column = min(wide_enough, key=lambda c: c.height)
            else:
                y, column = bottom, _Column(0.0, picture.width, 0.0)
                row = [column]
        corners.append((column.x, y + column.height))
        column.height += picture.height
        right = max(right, column.x + picture.width)
        bottom = max(bottom, y + column.height)
    return (right, bottom), corners
