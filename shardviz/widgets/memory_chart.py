"""The chart of the tab Memory: live bytes over a program's order, and the buffers there."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardviz.core.program.memory import KINDS, Buffer, MemoryTimeline
from shardviz.core.program.report import Report
from shardviz.core.wording import pictures as wording
from shardviz.picture.memory import buffer_name, chart_top, shown_positions

MOST_COLUMNS = 600
MOST_ALIVE = 16  # buffers that are sent of each column; the page adds up the others


def chart_view(report: Report) -> dict[str, Any] | None:
    """The live bytes for the page; None where the compiler gave no buffers."""
    peak, timeline = report.memory.peak, report.memory.timeline
    if peak is None or timeline is None or not timeline.names:
        return None
    at = shown_positions(timeline, MOST_COLUMNS)
    live = {kind: timeline.bytes[kind][at].tolist() for kind in KINDS}
    where = []
    for position in at.tolist():
        name = timeline.ops[position].rpartition("/")[2] or timeline.names[position]
        where.append(f"{name} · {timeline.sources[position]}".removesuffix(" · "))
    return {
        "sentence": str(peak),
        "peak": int(timeline.total[at].argmax()),
        "top": chart_top(peak.bytes, report.memory.capacity),
        "capacity": report.memory.capacity or 0,
        "positions": at.tolist(),
        "where": where,
        "kinds": [[kind, bytes] for kind, bytes in live.items() if any(bytes)],
        "buffers": [_buffer(one) for one in _largest(timeline, at)],
    }


def _buffer(one: Buffer) -> dict[str, Any]:
    spec = "" if one.spec is None else str(one.spec)
    view = {"bytes": one.bytes, "start": one.start, "end": one.end, "shape": one.shape}
    view.update(name=buffer_name(one), value=one.value, spec=spec, source=one.source)
    return {**view, "about": wording.about_buffer(one)}


def _largest(timeline: MemoryTimeline, at: np.ndarray) -> list[Buffer]:
    """The largest buffers of each of these positions, the largest first, once each."""
    ordered = sorted(timeline.buffers, key=lambda buffer: -buffer.bytes)
    starts = np.array([buffer.start for buffer in ordered])
    ends = np.array([buffer.end for buffer in ordered])
    wanted: set[int] = set()
    for position in at:
        alive = np.flatnonzero((starts <= position) & (position <= ends))
        wanted.update(alive[:MOST_ALIVE].tolist())
    return [ordered[number] for number in sorted(wanted)]
