"""Memory over a compiled program's order: bytes by kind, and the buffers of its peak."""

from __future__ import annotations

import itertools
from operator import attrgetter

import numpy as np

from shardviz.core.format import bytes_text, fold
from shardviz.core.program.memory import KINDS, Buffer, MemoryPeak, MemoryTimeline
from shardviz.core.program.report import Report
from shardviz.core.wording import pictures as wording
from shardviz.picture.page import (
    and_more,
    note,
    page,
    sentences,
    side_by_side,
    text_page,
    titled,
    unfolded,
)
from shardviz.picture.picture import GROUP, Frame, Label, Picture, Slot, make_tiles
from shardviz.picture.tables import HIGHLIGHTED, NORMAL, Bar, Table

COLUMNS = 700
LEFT, ABOVE, WIDE, HIGH = 70.0, 14.0, 700.0, 200.0  # points: beside, above, the chart
MOST_BUFFERS, MOST_LINES = 30, 8  # of the picture, of the text
TICKS = 4
BEYOND = 4  # a capacity of more than this many peaks would make the chart flat


def draw_memory(report: Report, title: str | None = None) -> Picture:
    """The live bytes over a program's order by kind, and the largest at the peak."""
    peak, timeline = report.memory.peak, report.memory.timeline
    head = titled(title, f"{report.program} on {report.target}: memory")
    if peak is None or timeline is None:
        return text_page([(wording.NO_BUFFERS, "")], title=head, alt=wording.NO_BUFFERS)
    table, left = peak_table(peak, MOST_BUFFERS)
    return side_by_side(
        [_chart(timeline, peak, report.memory.capacity), table.picture(notes=left)],
        title=head,
        notes=[note(str(peak)), note(str(report.fit or ""))],
        alt=sentences([head, str(peak), *table.lines("")]),
        width=1.0,
        facts={"kind": "memory"},
    )


def peak_lines(report: Report, full: bool = False) -> list[str]:
    """The largest buffers at the peak, a line each; `[]` where they are not known."""
    peak = report.memory.peak
    if peak is None:
        return []
    table, left = peak_table(peak, len(peak.buffers) if full else MOST_LINES)
    return [wording.ALIVE, *table.lines(), *(f"  {line}" for line in left)]


def peak_table(peak: MemoryPeak, limit: int) -> tuple[Table, list[str]]:
    """The buffers at the peak, the largest first, and a line that counts the rest.

    Those that differ by their layer only are one row.
    """
    alike = attrgetter("kind", "bytes", "shape", "source", "spec")
    folds, rows = fold(peak.buffers, buffer_name, alike), []
    folds.sort(key=lambda one: -_bytes(one.items))
    for one in folds[:limit]:
        first = one.items[0]
        spec = "" if first.spec is None else str(first.spec)
        words = (first.shape, one.name, spec, first.source, wording.about_buffer(first))
        less = first.split_bytes is not None and first.split_bytes < first.bytes
        amount = f"{one.count}{bytes_text(first.bytes)}"
        group = HIGHLIGHTED if less else NORMAL
        rows.append(Bar(_bytes(one.items), amount, words, group))
    heads = (wording.AT_THE_PEAK, "on one device", "value", "split", "line", "")
    rest = unfolded(folds[limit:])
    more = and_more(len(rest), "buffer")
    return Table(heads, tuple(rows)), [f"{m}, {bytes_text(_bytes(rest))}" for m in more]


def buffer_name(buffer: Buffer) -> str:
    """Its value, else the operation that makes it, else the compiler's name."""
    return buffer.value or buffer.op.rpartition("/")[2] or buffer.name


def _bytes(buffers: tuple[Buffer, ...] | list[Buffer]) -> int:
    return sum(buffer.bytes for buffer in buffers)


def shown_positions(timeline: MemoryTimeline, most: int) -> np.ndarray:
    """At most so many positions of a program's order: of each stretch the fullest.

    So no peak is lost, however long the program is. int64 `[positions]`, ascending.

    >>> from shardviz.core.program.memory import Buffer
    >>> short, none = Buffer("a", 8, "f32[2]", "temporaries", start=5, end=5), ("",) * 9
    >>> shown_positions(MemoryTimeline(none, none, none, (short,)), 3).tolist()
    [0, 5, 6]
    """
    count, total = len(timeline.names), timeline.total
    if count <= most:
        return np.arange(count)
    fullest = []
    for start, stop in itertools.pairwise(np.arange(most + 1) * count // most):
        fullest.append(start + int(total[start:stop].argmax()))
    return np.array(fullest, np.int64)


def chart_top(peak: int, capacity: int | None) -> int:
    """The bytes at the upper edge of the chart."""
    if capacity is None or capacity > BEYOND * peak:
        return max(peak, 1)
    return max(peak, capacity)


def _chart(timeline: MemoryTimeline, peak: MemoryPeak, capacity: int | None) -> Picture:
    """Stacked bars, one for each stretch in which nothing changes."""
    at = shown_positions(timeline, COLUMNS)
    live = np.stack([timeline.bytes[kind][at] for kind in KINDS])  # [kinds, columns]
    changed = np.any(live[:, 1:] != live[:, :-1], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(changed) + 1])
    live, column = live[:, starts], WIDE / len(at)
    widths = np.diff(np.append(starts, len(at))) * column
    top = chart_top(peak.bytes, capacity)
    heights = live * (HIGH / top)
    tops = ABOVE + HIGH - np.cumsum(heights, axis=0)
    kinds, bars = np.nonzero(live)
    corners = (LEFT + starts * column)[bars], tops[kinds, bars]
    sizes, hint = (widths[bars], heights[kinds, bars]), (Slot(GROUP, words=KINDS),)
    tiles = make_tiles(*corners, *sizes, kinds, hint=hint)
    labels = []
    for n in range(TICKS + 1):
        low = ABOVE + HIGH * (1 - n / TICKS)
        labels.append(Label(LEFT - 6, low, bytes_text(top * n // TICKS), "end", "tick"))
    # The moment of the peak, and the capacity: lines across the chart.
    moment = LEFT + (int(timeline.total[at].argmax()) + 0.5) * column
    frames = [Frame(moment, ABOVE, 0, HIGH)]
    words = f"peak {bytes_text(peak.bytes)}"
    labels.append(Label(moment, ABOVE / 2, words, role="tick"))
    if capacity is not None and capacity <= top:
        full = ABOVE + HIGH * (1 - capacity / top)
        frames.append(Frame(LEFT, full, WIDE, 0))
        text = f"capacity {bytes_text(capacity)}"
        labels.append(Label(LEFT + WIDE + 6, full, text, "start", "tick"))
    look = {"colormap": "ramp", "groups": len(KINDS), "alt": str(peak)}
    legend = [(kind, KINDS[kind]) for kind in np.unique(kinds).tolist()]
    size = (LEFT + WIDE, ABOVE + HIGH)
    return page(tiles, labels, frames=frames, legend=legend, size=size, **look)
