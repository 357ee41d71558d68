"""The chart of the tab Memory: live bytes at each moment, and the buffers there."""

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
    timeline = report.memory.timeline
    if timeline is None:
        return None
    at, where, kinds = shown_positions(timeline, MOST_COLUMNS), [], []
    for position in at.tolist():
        words = wording.BEGINNING
        if position:
            new = timeline.allocated[position]
            words = f"{buffer_name(new)} · {new.source}".removesuffix(" · ")
        where.append(words)
    for kind in KINDS:
        live = timeline.bytes[kind][at]
        if live.any():
            kinds.append([kind, live.tolist()])
    return {
        "sentence": str(timeline.peak),
        "peak": int(timeline.total[at].argmax()),
        "top": chart_top(report.memory),
        "capacity": report.memory.capacity or 0,
        "positions": at.tolist(),
        "where": where,
        "kinds": kinds,
        "buffers": list(map(_view, _largest(timeline, at))),
    }


def _view(one: Buffer) -> dict[str, Any]:
    spec = "" if one.spec is None else str(one.spec)
    view = {"bytes": one.bytes, "start": one.start, "end": one.end, "shape": one.shape}
    view.update(name=buffer_name(one), value=one.value, spec=spec, source=one.source)
    return {**view, "about": wording.about_buffer(one)}


def _largest(timeline: MemoryTimeline, at: np.ndarray) -> list[Buffer]:
    """The largest buffers of each of these positions, the largest first, once each."""
    ordered = sorted(timeline.buffers, key=lambda buffer: -buffer.bytes)
    starts, ends = np.array([(b.start, b.end) for b in ordered]).T
    wanted: set[int] = set()
    for position in at:
        alive = np.flatnonzero((starts <= position) & (position <= ends))
        wanted.update(alive[:MOST_ALIVE].tolist())
    return [ordered[number] for number in sorted(wanted)]
