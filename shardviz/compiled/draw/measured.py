"""Draws measured times beside least times, as text and pictures."""

from __future__ import annotations

from shardviz.compiled.measured import Measured, MeasuredRow
from shardviz.compiled.words.measured import WAITING, overlap, spread
from shardviz.compiled.words.roofline import time_text
from shardviz.draw import words as wording
from shardviz.draw.page import note, paragraphs, sentences, side_by_side, titled
from shardviz.draw.picture import Picture
from shardviz.draw.tables import HIGHLIGHTED, NORMAL, Bar, Table

MOST_LINES, MOST_ROWS = 10, 40


def draw_measured(
    result: Measured, title: str | None = None, limit: int = MOST_ROWS
) -> Picture:
    """Draws the time of each collective and operation, longest first.

    Args:
        result: the measured times.
        title: a title for the picture.
        limit: the most rows.
    """
    table = _table(result.rows, limit)
    return side_by_side(
        [table.picture()],
        title=titled(title, wording.MEASURED),
        notes=[note(str(result)), note(WAITING)],
        alt=sentences([wording.MEASURED, *measured_lines(result)]),
        width=1.0,
    )


def measured_text(result: Measured, width: int, full: bool = False) -> str:
    """Formats measured times as text: a summary, then the largest differences."""
    return paragraphs(measured_lines(result, full), width)


def measured_lines(result: Measured, full: bool = False) -> list[str]:
    """Lists the rows that differ most from their least time, one per line."""
    rows = result.differences
    limit = len(rows) if full else MOST_LINES
    head = wording.LONGEST
    if any(row.least is not None for row in rows):
        head = wording.DIFFERENCES
    return [str(result), head, *_table(rows, limit).lines()]


def _table(rows: tuple[MeasuredRow, ...], limit: int) -> Table:
    bars: list[Bar] = []
    for row in rows[:limit]:
        group, least, hidden = NORMAL, "", spread(row)
        if row.least is not None:
            least = f"≥ {time_text(row.least)}"
        if row.part == "collective":
            group, hidden = HIGHLIGHTED, overlap(row)
        bars.append(
            Bar(
                row.seconds,
                time_text(row.seconds),
                (least, row.name, hidden, row.source),
                group,
            )
        )
    omitted = rows[limit:]
    if omitted:
        total = sum(row.seconds for row in omitted)
        bars.append(Bar(total, time_text(total), ("", f"{len(omitted):,} more")))
    return Table(("measured per call", "least", "operation", "", "line"), tuple(bars))
