"""Memory over the order of allocation: bytes by kind, and the buffers of the peak."""

from __future__ import annotations

import itertools
from operator import attrgetter

import numpy as np

from shardviz.base.format import bytes_text, fold
from shardviz.compiled.memory import KINDS, MemoryPeak, MemoryTimeline
from shardviz.compiled.report import Report
from shardviz.compiled.words.memory import about_buffer
from shardviz.draw import page
from shardviz.draw import words as wording
from shardviz.draw.picture import Frame, Label, Picture, make_tiles
from shardviz.draw.tables import HIGHLIGHTED, NORMAL, Bar, Table

COLUMNS = 350
LEFT, ABOVE, WIDE, HIGH = 70.0, 14.0, 700.0, 200.0  # points: beside, above, the chart
MOST_BUFFERS, MOST_LINES = 30, 8  # of the picture, of the text
TICKS = 4
BEYOND = 4  # a capacity of more than this many peaks would make the chart flat


def draw_memory(report: Report, title: str | None = None) -> Picture:
    """The live bytes over a program's order by kind, and the largest at the peak."""
    timeline, none = report.memory.timeline, wording.NO_BUFFERS
    head = page.titled(title, f"{report.program} on {report.target}: memory")
    if timeline is None:
        return page.text_page([(none, "")], title=head, alt=none)
    table, left = peak_table(timeline.peak, MOST_BUFFERS)
    words = str(timeline.peak)
    return page.side_by_side(
        [_chart(timeline, report.memory.capacity), table.picture(notes=left)],
        title=head,
        notes=[page.note(words), page.note(str(report.fit or ""))],
        alt=page.sentences([head, words, *table.lines("")]),
        width=1.0,
    )


def peak_lines(report: Report, full: bool = False) -> list[str]:
    """The largest buffers at the peak, a line each; `[]` where they are not known."""
    peak = report.memory.peak
    if peak is None:
        return []
    table, left = peak_table(peak, len(peak.buffers) if full else MOST_LINES)
    return [wording.ALIVE, *table.lines(), *map("  {}".format, left)]


def peak_table(peak: MemoryPeak, limit: int) -> tuple[Table, list[str]]:
    """The buffers at the peak, the largest first, and a line that counts the rest.

    Those that differ by their layer only are one row.
    """
    rows, left, left_bytes = [], 0, 0
    # All of a row have the same bytes, so that one number says them.
    folds = fold(
        peak.buffers,
        attrgetter("title"),
        attrgetter("kind", "bytes", "shape", "source", "spec"),
    )
    folds.sort(key=lambda one: -len(one.items) * one.items[0].bytes)
    for one in folds:
        first, count = one.items[0], len(one.items)
        if len(rows) == limit:
            left, left_bytes = left + count, left_bytes + count * first.bytes
            continue
        spec = "" if first.spec is None else str(first.spec)
        words = (first.shape, one.name, spec, first.source, about_buffer(first))
        less = first.split_bytes is not None and first.split_bytes < first.bytes
        amount = f"{one.count}{bytes_text(first.bytes)}"
        rows.append(
            Bar(count * first.bytes, amount, words, HIGHLIGHTED if less else NORMAL)
        )
    heads = (wording.AT_THE_PEAK, "on one device", "value", "split", "line", "")
    more = [
        f"{line}, {bytes_text(left_bytes)}" for line in page.and_more(left, "buffer")
    ]
    return Table(heads, tuple(rows)), more


def chart_columns(
    timeline: MemoryTimeline, capacity: int | None, most: int
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """At most so many positions of a timeline: of each stretch the fullest.

    So no peak is lost, however long the program is.

    Returns:
        The positions, int64 `[columns]`; their live bytes, int64 `[kinds, columns]` in
        the order of `KINDS`; the column of the peak; the bytes at the chart's edge.

    >>> from shardviz.compiled.memory import Buffer
    >>> short = Buffer("a", 8, "f32[2]", "temporaries", start=5, end=5)
    >>> always = Buffer("b", 8, "f32[2]", "arguments", end=8)
    >>> at, live, peak, top = chart_columns(MemoryTimeline((short, always)), None, 3)
    >>> at.tolist(), live.shape, peak, top
    ([0, 5, 6], (6, 3), 1, 16)
    """
    total, fullest = timeline.total, []
    count, top = min(most, len(total)), max(timeline.peak.bytes, 1)
    for start, stop in itertools.pairwise(np.arange(count + 1) * len(total) // count):
        fullest.append(start + int(total[start:stop].argmax()))
    live = np.stack([timeline.bytes[kind][fullest] for kind in KINDS])
    if capacity is not None and capacity <= BEYOND * top:
        top = max(top, capacity)
    return np.array(fullest), live, int(total[fullest].argmax()), top


def _chart(timeline: MemoryTimeline, capacity: int | None) -> Picture:
    """Stacked bars, one for each position, and lines at the peak and the capacity."""
    positions, live, peak, top = chart_columns(timeline, capacity, COLUMNS)
    heights, width = live * (HIGH / top), WIDE / len(positions)
    # What is not there has no tile.
    tops = ABOVE + HIGH - np.cumsum(heights, axis=0)
    kinds, columns = np.nonzero(live)
    tiles = make_tiles(
        LEFT + columns * width,
        tops[kinds, columns],
        width,
        heights[kinds, columns],
        kinds,
    )
    moment, words = (
        LEFT + (peak + 0.5) * width,
        f"peak {bytes_text(timeline.peak.bytes)}",
    )
    labels = [Label(moment, ABOVE / 2, words, role="tick")]
    frames = [Frame(moment, ABOVE, 0, HIGH)]
    for n in range(TICKS + 1):
        low = ABOVE + HIGH * (1 - n / TICKS)
        labels.append(Label(LEFT - 6, low, bytes_text(top * n // TICKS), "end", "tick"))
    if capacity is not None and capacity <= top:
        low, words = (
            ABOVE + HIGH * (1 - capacity / top),
            f"capacity {bytes_text(capacity)}",
        )
        frames.append(Frame(LEFT, low, WIDE, 0))
        labels.append(Label(LEFT + WIDE + 6, low, words, "start", "tick"))
    look = {"colormap": "ramp", "groups": len(KINDS), "alt": str(timeline.peak)}
    legend = [(kind, KINDS[kind]) for kind in np.unique(kinds).tolist()]
    size = (LEFT + WIDE, ABOVE + HIGH)
    return page.page(tiles, labels, frames=frames, legend=legend, size=size, **look)
