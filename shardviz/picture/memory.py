"""Memory over the order of allocation: bytes by kind, and the buffers of the peak."""

from __future__ import annotations

import itertools
from operator import attrgetter

import numpy as np

from shardviz.core.format import bytes_text, fold
from shardviz.core.program.memory import KINDS, Buffer, MemoryPeak, MemoryTimeline
from shardviz.core.program.report import Memory, Report
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

COLUMNS = 350
LEFT, ABOVE, WIDE, HIGH = 70.0, 14.0, 700.0, 200.0  # points: beside, above, the chart
MOST_BUFFERS, MOST_LINES = 30, 8  # of the picture, of the text
TICKS = 4
BEYOND = 4  # a capacity of more than this many peaks would make the chart flat


def draw_memory(report: Report, title: str | None = None) -> Picture:
    """The live bytes over a program's order by kind, and the largest at the peak."""
    peak = report.memory.peak
    head = titled(title, f"{report.program} on {report.target}: memory")
    if peak is None:
        return text_page([(wording.NO_BUFFERS, "")], title=head, alt=wording.NO_BUFFERS)
    table, left = peak_table(peak, MOST_BUFFERS)
    return side_by_side(
        [_chart(report.memory), table.picture(notes=left)],
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
    folds.sort(key=lambda one: -len(one.items) * one.items[0].bytes)
    for one in folds[:limit]:
        first, size = one.items[0], len(one.items) * one.items[0].bytes
        spec = "" if first.spec is None else str(first.spec)
        words = (first.shape, one.name, spec, first.source, wording.about_buffer(first))
        less = first.split_bytes is not None and first.split_bytes < first.bytes
        group = HIGHLIGHTED if less else NORMAL
        rows.append(Bar(size, f"{one.count}{bytes_text(first.bytes)}", words, group))
    heads = (wording.AT_THE_PEAK, "on one device", "value", "split", "line", "")
    rest = unfolded(folds[limit:])
    left = bytes_text(sum(buffer.bytes for buffer in rest))
    more = [f"{line}, {left}" for line in and_more(len(rest), "buffer")]
    return Table(heads, tuple(rows)), more


def buffer_name(buffer: Buffer) -> str:
    """Its value, else the operation that makes it, else the compiler's name."""
    return buffer.value or buffer.op.rpartition("/")[2] or buffer.name


def shown_positions(timeline: MemoryTimeline, most: int) -> np.ndarray:
    """At most so many positions of a timeline: of each stretch the fullest.

    So no peak is lost, however long the program is. int64 `[positions]`, ascending.

    >>> from shardviz.core.program.memory import Buffer
    >>> short = Buffer("a", 8, "f32[2]", "temporaries", start=5, end=5)
    >>> always = Buffer("b", 8, "f32[2]", "arguments", end=8)
    >>> shown_positions(MemoryTimeline((short, always)), 3).tolist()
    [0, 5, 6]
    """
    total, fullest = timeline.total, []
    count = min(most, len(total))
    for start, stop in itertools.pairwise(np.arange(count + 1) * len(total) // count):
        fullest.append(start + int(total[start:stop].argmax()))
    return np.array(fullest, np.int64)


def chart_top(memory: Memory) -> int:
    """The bytes at the upper edge of the chart: its capacity, or the peak."""
    most = memory.peak.bytes if memory.peak is not None else 0
    if memory.capacity is not None and memory.capacity <= BEYOND * most:
        most = max(most, memory.capacity)
    return max(most, 1)


def _chart(memory: Memory) -> Picture:
    """Stacked bars, one for each position, and lines at the peak and the capacity."""
    timeline, top = memory.timeline, chart_top(memory)
    assert timeline is not None
    at = shown_positions(timeline, COLUMNS)
    live = np.stack([timeline.bytes[kind][at] for kind in KINDS])  # [kinds, columns]
    heights = live * (HIGH / top)
    tops = ABOVE + HIGH - np.cumsum(heights, axis=0)
    width, (kinds, columns) = WIDE / len(at), np.nonzero(live)
    size = (width, heights[kinds, columns])
    corner = (LEFT + columns * width, tops[kinds, columns])
    tiles = make_tiles(*corner, *size, kinds, hint=(Slot(GROUP, words=KINDS),))
    moment = LEFT + (int(timeline.total[at].argmax()) + 0.5) * width
    words = f"peak {bytes_text(timeline.peak.bytes)}"
    labels = [Label(moment, ABOVE / 2, words, role="tick")]
    frames = [Frame(moment, ABOVE, 0, HIGH)]
    for n in range(TICKS + 1):
        low = ABOVE + HIGH * (1 - n / TICKS)
        labels.append(Label(LEFT - 6, low, bytes_text(top * n // TICKS), "end", "tick"))
    if memory.capacity is not None and memory.capacity <= top:
        low = ABOVE + HIGH * (1 - memory.capacity / top)
        frames.append(Frame(LEFT, low, WIDE, 0))
        text = f"capacity {bytes_text(memory.capacity)}"
        labels.append(Label(LEFT + WIDE + 6, low, text, "start", "tick"))
    look = {"colormap": "ramp", "groups": len(KINDS), "alt": str(timeline.peak)}
    legend = [(kind, KINDS[kind]) for kind in np.unique(kinds).tolist()]
    size = (LEFT + WIDE, ABOVE + HIGH)
    return page(tiles, labels, frames=frames, legend=legend, size=size, **look)
