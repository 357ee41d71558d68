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
    """Processes that yield the same array, and the number of their group."""

    name: str
    part: ProcessPart
    group: int
    shape: tuple[int, ...]

    @property
    def held(self) -> str:
        """`[0:128, 0:512]`: the elements that a process yields."""
        return f"[{', '.join(map(ranges_text, self.part.ranges))}]"

    @property
    def local(self) -> str:
        """The shape of these elements together, and their size."""
        part = self.part
        return f"local shape {list(part.shape)}, {bytes_text(part.bytes)}"

    @property
    def hint(self) -> str:
        """The tooltip of its tiles."""
        where = f"{self.name}: {self.held} of {list(self.shape)}"
        return f"{where}\n{self.local} · {plural(self.part.devices, 'device')}"

    def remark(self, rows: bool) -> str:
        """What its tiles do not say: dimensions that are not full, shape and size.

        Args:
            rows: whether they do not even say its rows.
        """
        parts = []
        if rows:
            parts.append(f"rows {ranges_text(self.part.rows, 2)}")
        for dim, ranges in enumerate(self.part.ranges):
            if dim and ranges != ((0, self.shape[dim]),):
                parts.append(f"dimension {dim} {ranges_text(ranges, 2)}")
        parts += [str(list(self.part.shape)), bytes_text(self.part.bytes)]
        return " · ".join(parts)


def _rows(rows: ProcessRows) -> list[_Row]:
    """A row per process, or per group of those that yield the same where they are many."""
    parts = {part.process: part for part in rows.parts}
    places = {process: place for place, process in enumerate(parts)}
    found = []
    for number, group in enumerate(rows.groups):
        noun = "process" if len(group) == 1 else "processes"
        # Of a few processes, each has a row of its own.
        several = [group]
        if len(parts) <= MOST_LISTED:
            several, noun = [(process,) for process in group], "process"
        for some in several:
            name = f"{noun} {ids_text(some)}"
            found.append(_Row(name, parts[some[0]], number, rows.layout.shape))
    return sorted(found, key=lambda row: places[row.part.process])


def draw_process_rows(
    rows: ProcessRows, title: str | None = None, name: str = ""
) -> Picture:
    """The rows of every process, from the first row of the array to the last.

    Processes of one colour yield the same array.

    Args:
        name: what the array is called.
    """
    known = _rows(rows)
    shown, scalar = known[:MOST_ROWS], not rows.layout.rank
    left = widest([row.name for row in shown], SIZE) + 10
    total = 1 if scalar else rows.layout.shape[0]
    scale, tiles, labels = WIDE / max(1, total), [], []
    if not scalar:
        labels.append(Label(left, 6, "row 0", "start", "tick"))
        labels.append(Label(left + WIDE, 6, str(total), "end", "tick"))
    y = TOP
    for row in shown:
        hidden = False
        for start, stop in row.part.rows[:MOST_RANGES] or ((0, 1),):
            text, long = f"{start}:{stop}", scale * (stop - start)
            # Where a range is too narrow for its numbers, they stand at the right.
            if long < text_width(text, SIZE, bold=True) and not scalar:
                hidden = True
            x, width = left + scale * start, max(LEAST, long - 1)
            words = "" if scalar else text
            tiles.append(Rectangle(x, y, width, HIGH, row.group, row.hint, words))
        middle = y + HIGH / 2
        labels.append(Label(0, middle, row.name, "start"))
        remark = row.remark(hidden)
        labels.append(Label(left + WIDE + 8, middle, remark, "start", "note"))
        y += HIGH + GAP
    head = _title(rows, name)
    return page(
        rectangle_tiles(tiles, radius=3.0),
        labels,
        title=titled(title, head),
        notes=[*and_more(len(known) - len(shown), "row"), *rows.sentences],
        size=(left + WIDE, y),
        alt=sentences([f"Rows of each process, {head}", *rows.sentences]),
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
