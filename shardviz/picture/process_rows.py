"""Which rows of an array each process loads."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.format import bytes_text, ids_text, plural
from shardviz.core.layout.transfer.process_rows import (
    ProcessPart,
    ProcessRows,
    ranges_text,
)
from shardviz.picture.blocks import array_title
from shardviz.picture.page import (
    and_more,
    page,
    paragraphs,
    sentences,
    text_width,
    titled,
    widest,
)
from shardviz.picture.picture import Label, Picture
from shardviz.picture.tables import Rectangle, rectangle_tiles

MOST_LISTED = 16  # processes; of more, those that yield the same array share a row
MOST_ROWS = 40
MOST_RANGES = 512  # that are drawn of one process
WIDE, HIGH, GAP, TOP = 430.0, 22.0, 4.0, 16.0
LEAST = 1.5  # points: of a range that is drawn
SIZE = 9.0


@dataclass(frozen=True)
class _Row:
    """Processes that yield the same array.

    Attributes:
        held: `[0:128, 0:512]`: the elements that a process yields.
        local: the shape of these elements together, and their size.
    """

    name: str
    part: ProcessPart
    group: int
    held: str
    local: str


def _rows(rows: ProcessRows) -> list[_Row]:
    """A row per process; of many, one per group of those that yield the same."""
    parts = {part.process: part for part in rows.parts}
    found = []
    for number, group in enumerate(rows.groups):
        several = [group]
        if len(parts) <= MOST_LISTED:
            several = [(process,) for process in group]
        for some in several:
            part, noun = parts[some[0]], "process"
            if len(some) > 1:
                noun = "processes"
            held = f"[{', '.join(map(ranges_text, part.ranges))}]"
            local = f"local shape {list(part.shape)}, {bytes_text(part.bytes)}"
            found.append(_Row(f"{noun} {ids_text(some)}", part, number, held, local))
    return sorted(found, key=lambda row: row.part.process)


def draw_process_rows(
    rows: ProcessRows, title: str | None = None, name: str = ""
) -> Picture:
    """The rows of every process, from the first row of the array to the last.

    Processes of one colour yield the same array.

    Args:
        name: what the array is called.
    """
    known = _rows(rows)
    shown, shape = known[:MOST_ROWS], rows.layout.shape
    left = widest([row.name for row in shown], SIZE) + 10
    total = shape[0] if shape else 1
    scale, tiles, labels = WIDE / max(1, total), [], []
    if shape:
        labels.append(Label(left, 6, "row 0", "start", "tick"))
        labels.append(Label(left + WIDE, 6, str(total), "end", "tick"))
    y = TOP
    for row in shown:
        hint = f"{row.name}: {row.held} of {list(shape)}\n{row.local}"
        for start, stop in row.part.rows[:MOST_RANGES] or ((0, 1),):
            x, long = left + scale * start, scale * (stop - start)
            words = f"{start}:{stop}"
            # The remark at the right has the numbers, too.
            if not shape or long < text_width(words, SIZE, bold=True):
                words = ""
            width = max(LEAST, long - 1)
            tiles.append(Rectangle(x, y, width, HIGH, row.group, hint, words))
        middle = y + HIGH / 2
        labels.append(Label(0, middle, row.name, "start"))
        remark = f"{row.held} · {bytes_text(row.part.bytes)}"
        labels.append(Label(left + WIDE + 8, middle, remark, "start", "note"))
        y += HIGH + GAP
    head = _title(rows, name)
    return page(
        rectangle_tiles(tiles, radius=3.0),
        labels,
        title=titled(title, head),
        notes=[*and_more(len(known) - len(shown), "row"), *rows.sentences],
        size=(left + WIDE, y),
        alt=sentences([f"Rows: {head}", *rows.sentences]),
        groups=len(rows.groups),
        colormap="blocks",
        facts={"kind": "processRows"},
    )


def process_rows_text(rows: ProcessRows, width: int, name: str = "") -> str:
    """A line per process, then what a loader has to heed."""
    known = _rows(rows)
    shown = known[:MOST_ROWS]
    names = max(len(row.name) for row in shown)
    held = max(len(row.held) for row in shown)
    lines, narrow = [], []
    for row in shown:
        lines.append(f"  {row.name:<{names}}  {row.held:<{held}}  {row.local}")
        narrow.append(f"  {row.name}: {row.held}, {row.local}")
    if max(map(len, lines)) > width:
        lines = narrow
    more = and_more(len(known) - len(shown), "row")
    return paragraphs([_title(rows, name), *lines, *more, *rows.sentences], width)


def _title(rows: ProcessRows, name: str) -> str:
    title = array_title(rows.layout, name)
    if rows.layout.spec is not None:
        title += f" as {rows.layout.spec}"
    count = plural(len(rows.parts), "process", "processes")
    return f"{title} on {rows.layout.mesh}: {count}"
