"""Draws the rows of an array that each process loads, as a picture or a table."""

from __future__ import annotations

from shardviz.base.format import bytes_text, ids_text, plural
from shardviz.draw.blocks import array_title
from shardviz.draw.page import and_more, paragraphs, sentences, titled
from shardviz.draw.picture import Picture
from shardviz.draw.tables import Bar, Table
from shardviz.move.process_rows import ProcessRows, ranges_text

# With more processes than this, processes that load the same rows share a table row.
MOST_LISTED = 16
MOST_ROWS = 40
HEADS = ("local bytes", "process", "elements", "local shape")


def draw_process_rows(
    rows: ProcessRows, title: str | None = None, name: str = ""
) -> Picture:
    """Draws the elements that each process loads, one table row per process.

    Args:
        name: the array's name.
    """
    bars, head = _bars(rows), _title(rows, name)
    notes = and_more(len(bars) - MOST_ROWS, "row")
    return Table(HEADS, tuple(bars[:MOST_ROWS])).picture(
        title=titled(title, head),
        notes=[*notes, *rows.sentences],
        alt=sentences([head, *rows.sentences]),
    )


def process_rows_text(rows: ProcessRows, width: int, name: str = "") -> str:
    """Lists one line per process, then the requirements on a data loader."""
    bars = _bars(rows)
    shown = bars[:MOST_ROWS]
    names = max(len(bar.words[0]) for bar in shown)
    holdings = max(len(bar.words[1]) for bar in shown)
    lines, narrow = [], []
    for bar in shown:
        process, elements, shape = bar.words
        local = f"local shape {shape}, {bar.text}"
        lines.append(f"  {process:<{names}}  {elements:<{holdings}}  {local}")
        narrow.append(f"  {process}: {elements}, {local}")
    if max(map(len, lines)) > width:
        lines = narrow
    notes = and_more(len(bars) - len(shown), "row")
    return paragraphs([_title(rows, name), *lines, *notes, *rows.sentences], width)


def _bars(rows: ProcessRows) -> list[Bar]:
    """Returns a row per process; if there are many, a row per group with equal data."""
    parts = {part.process: part for part in rows.parts}
    groups = [[process] for process in parts]
    if len(parts) > MOST_LISTED:
        groups = rows.groups
    bars = []
    for group in groups:
        part, noun = parts[group[0]], "process"
        if len(group) > 1:
            noun = "processes"
        holdings = ", ".join(map(ranges_text, part.ranges))
        words = (f"{noun} {ids_text(group)}", f"[{holdings}]", str(list(part.shape)))
        bars.append(Bar(part.bytes, bytes_text(part.bytes), words))
    return bars


def _title(rows: ProcessRows, name: str) -> str:
    title = array_title(rows.layout, name)
    if rows.layout.spec is not None:
        title += f" as {rows.layout.spec}"
    count = plural(len(rows.parts), "process", "processes")
    return f"{title} on {rows.layout.mesh}: {count}"
