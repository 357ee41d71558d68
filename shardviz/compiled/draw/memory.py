"""Draws memory over time: live bytes by kind, and the buffers at the peak."""

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
# The margins and the size of the chart, in points.
LEFT, ABOVE, WIDE, HIGH, AXIS = 70.0, 14.0, 700.0, 200.0, 16.0
# The most buffers in the picture, and the most lines in the text.
MOST_BUFFERS, MOST_LINES = 30, 8
TICKS = 4
# A capacity above this multiple of the peak is not drawn: it would flatten the chart.
BEYOND = 4


def draw_memory(
    report: Report, title: str | None = None, limit: int = MOST_BUFFERS
) -> Picture:
    """Draws live bytes of each kind over time, and the largest buffers at the peak.

    Args:
        report: the report of a compile.
        title: a title for the picture.
        limit: the most rows of buffers.
    """
    memory = report.without_error.memory
    timeline = memory.timeline
    head = page.titled(title, f"{report.program} on {report.target}: memory")
    if timeline is None:
        unknown = wording.NO_BUFFERS
        return page.text_page([(unknown, "")], title=head, alt=unknown)
    table, omitted = peak_table(timeline.peak, limit)
    words = str(timeline.peak)
    return page.side_by_side(
        [_chart(timeline, memory.capacity), table.picture(notes=omitted)],
        title=head,
        notes=[page.note(words), page.note(str(report.without_error.fit or ""))],
        alt=page.sentences([head, words, *table.lines("")]),
        width=1.0,
    )


def peak_lines(report: Report, full: bool = False) -> list[str]:
    """Lists the largest buffers at the peak, one per line; `[]` if they are unknown."""
    peak = report.memory.peak
    if peak is None:
        return []
    table, omitted = peak_table(peak, len(peak.buffers) if full else MOST_LINES)
    return [wording.ALIVE, *table.lines(), *map("  {}".format, omitted)]


def peak_table(peak: MemoryPeak, limit: int) -> tuple[Table, list[str]]:
    """Returns a table of the largest buffers at the peak, and a line on the rest.

    Buffers that differ only in their layer share a row.
    """
    rows: list[Bar] = []
    omitted, omitted_bytes = 0, 0
    # All buffers in a row have the same size, so one number is enough.
    folds = fold(
        peak.buffers,
        attrgetter("title"),
        attrgetter("kind", "bytes", "shape", "source", "spec"),
    )
    folds.sort(key=lambda group: -len(group.items) * group.items[0].bytes)
    for group in folds:
        first, count = group.items[0], len(group.items)
        if len(rows) == limit:
            omitted += count
            omitted_bytes += count * first.bytes
            continue
        spec = "" if first.spec is None else str(first.spec)
        words = (first.shape, group.name, spec, first.source, about_buffer(first))
        amount = f"{group.count}{bytes_text(first.bytes)}"
        look = NORMAL
        if first.split_bytes is not None and first.split_bytes < first.bytes:
            look = HIGHLIGHTED
        rows.append(Bar(count * first.bytes, amount, words, look))
    heads = (wording.AT_THE_PEAK, "on one device", "value", "split", "line", "")
    further: list[str] = []
    for line in page.and_more(omitted, "buffer"):
        further.append(f"{line}, {bytes_text(omitted_bytes)}")
    return Table(heads, tuple(rows)), further


def chart_columns(
    timeline: MemoryTimeline, capacity: int | None, limit: int
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Divides a timeline into at most `limit` columns, each at its fullest position.

    The peak is never lost, even if the program is long.

    Returns:
        The positions, int64 `[columns]`; their live bytes, int64 `[kinds, columns]` in
        the order of `KINDS`; the column of the peak; the bytes at the chart's top edge.

    >>> from shardviz.compiled.memory import Buffer
    >>> short = Buffer("a", 8, "f32[2]", "temporaries", start=5, end=5)
    >>> always = Buffer("b", 8, "f32[2]", "arguments", end=8)
    >>> at, live, peak, top = chart_columns(MemoryTimeline((short, always)), None, 3)
    >>> at.tolist(), live.shape, peak, top
    ([0, 5, 6], (6, 3), 1, 16)
    """
    total, fullest = timeline.total, []
    count, top = min(limit, len(total)), max(timeline.peak.bytes, 1)
    for start, stop in itertools.pairwise(np.arange(count + 1) * len(total) // count):
        fullest.append(start + int(total[start:stop].argmax()))
    live = np.stack([timeline.bytes[kind][fullest] for kind in KINDS])
    if capacity is not None and capacity <= BEYOND * top:
        top = max(top, capacity)
    return np.array(fullest), live, int(total[fullest].argmax()), top


def _chart(timeline: MemoryTimeline, capacity: int | None) -> Picture:
    """Draws a stacked bar for each position, and lines at the peak and the capacity."""
    positions, live, peak, top = chart_columns(timeline, capacity, COLUMNS)
    heights, width = live * (HIGH / top), WIDE / len(positions)
    # Kinds without bytes at a position get no tile.
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
    middle, low = LEFT + WIDE / 2, ABOVE + HIGH + AXIS / 2
    labels.append(Label(middle, low, wording.OVER_TIME, role="axis"))
    look = {"colormap": "ramp", "groups": len(KINDS), "alt": str(timeline.peak)}
    legend = [(kind, KINDS[kind]) for kind in np.unique(kinds).tolist()]
    size = (LEFT + WIDE, ABOVE + HIGH + AXIS)
    return page.page(tiles, labels, frames=frames, legend=legend, size=size, **look)
