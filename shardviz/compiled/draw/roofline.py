"""Draws rooflines, the least time of each part of a program, as text and pictures."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.base.collective import trips_text
from shardviz.base.format import bytes_text, count_text, seconds_text
from shardviz.compiled.roofline import Bound, Roofline
from shardviz.draw import words as wording
from shardviz.draw.page import note, paragraphs, sentences, side_by_side, titled
from shardviz.draw.picture import Picture
from shardviz.draw.tables import HIGHLIGHTED, MOST_LINES, NORMAL, Bar, Table

MOST_TIMES = 30


def draw_roofline(
    roofline: Roofline, title: str | None = None, limit: int = MOST_TIMES
) -> Picture:
    """Draws the least times of arithmetic, memory and each collective, longest first.

    Args:
        roofline: the roofline.
        title: a title for the picture.
        limit: the most rows per table.
    """
    panels = [_picture(roofline.rows, wording.PART, limit)]
    if roofline.ops:
        panels.append(_picture(roofline.ops, wording.OPERATION, limit))
    tone = "bad" if roofline.fits is False else "text"
    notes = [note(str(fact)) for fact in roofline.notes]
    notes.insert(0, note(str(roofline), tone))
    head = wording.least_times(roofline.where)
    return side_by_side(
        panels,
        title=titled(title, head),
        notes=notes,
        alt=sentences([head, *_lines(roofline)]),
        width=1.0,
    )


def roofline_text(roofline: Roofline, width: int) -> str:
    """Formats a roofline as text: a summary, then parts, operations and notes."""
    return paragraphs(_lines(roofline), width)


def _lines(roofline: Roofline) -> list[str]:
    lines = [str(roofline), *_table(roofline.rows, "", MOST_LINES).lines("")]
    if roofline.ops:
        lines.append(wording.OPS_OF_DEVICE)
        lines += _table(roofline.ops, "", MOST_LINES).lines("")
    return [*lines, *map(str, roofline.notes)]


def _table(rows: Sequence[Bound], heading: str, limit: int) -> Table:
    longest, bars = 0.0, []
    for row in rows:
        longest = max(longest, row.seconds or 0.0)
    for row in rows[:limit]:
        time, group = seconds_text(row.seconds), NORMAL
        # The longest part bounds the program.
        if row.seconds and row.seconds == longest:
            group = HIGHLIGHTED
        remarks = [row.source] if row.source else []
        if row.latency:
            remarks.append(wording.latency(seconds_text(row.latency)))
        if row.note is not None:
            remarks.append(str(row.note))
        words = (row.name, row.bound, _amount(row), " · ".join(remarks))
        bars.append(Bar(row.seconds, time, words, group))
    omitted = rows[limit:]
    if omitted:
        total = sum(row.seconds or 0.0 for row in omitted)
        bars.append(Bar(total, seconds_text(total), (f"{len(omitted):,} shorter",)))
    heads = ("least time", heading, "bound by", "amount", "line")
    return Table(heads, tuple(bars))


def _picture(rows: Sequence[Bound], heading: str, limit: int) -> Picture:
    table = _table(rows, heading, limit)
    if not rows:
        table = Table(table.heads, (Bar(None, wording.COST_UNKNOWN, ()),))
    return table.picture()


def _amount(row: Bound) -> str:
    """Formats a row's work or bytes and its trip count: `2 G flops`, `16 MiB × 12`."""
    if row.amount is None:
        return "–"
    text = bytes_text(int(row.amount))
    if row.part == "collective":
        text += " sent"
    if row.bound == "FLOP/s":
        text = f"{count_text(row.amount)} flops"
    return f"{text}{trips_text(row.trips)}"
