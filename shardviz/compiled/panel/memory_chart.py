"""The chart in the Memory tab: live bytes over time, and the live buffers."""

from __future__ import annotations

import numpy as np

from shardviz.base.typing import JsonDict
from shardviz.compiled.draw.memory import chart_columns
from shardviz.compiled.memory import KINDS
from shardviz.compiled.report import Report
from shardviz.compiled.words.memory import about_buffer
from shardviz.draw import words as wording

# More columns would be too narrow to click.
MOST_COLUMNS = 240
# The most buffers that are sent for a column. The page adds up the others.
MOST_ALIVE = 16


def chart_view(report: Report) -> JsonDict | None:
    """Returns the chart's data; None if the compiler reported no buffers."""
    timeline, capacity = report.memory.timeline, report.memory.capacity
    if timeline is None:
        return None
    at, live, peak, top = chart_columns(timeline, capacity, MOST_COLUMNS)
    where, kinds, buffers = [], [], []
    for new in map(timeline.filled.get, at.tolist()):
        words = wording.BEGINNING
        if new is not None:
            words = f"{new.title} · {new.source}".removesuffix(" · ")
        where.append(words)
    for kind, bytes_ in zip(KINDS, live, strict=True):
        if bytes_.any():  # kinds that never occur are not in the legend
            kinds.append([kind, bytes_.tolist()])
    # Number of buffers sent so far for each column; the largest are sent first.
    sent = np.zeros(len(at), int)
    for buffer in sorted(timeline.buffers, key=lambda b: -b.bytes):
        # The columns in which the buffer is alive.
        start, end = at.searchsorted(buffer.start), at.searchsorted(buffer.end, "right")
        if start == end or sent[start:end].min() >= MOST_ALIVE:
            continue
        sent[start:end] += 1
        spec = "" if buffer.spec is None else str(buffer.spec)
        view: JsonDict = {"start": int(start), "end": int(end) - 1}
        view.update(
            name=buffer.title,
            value=buffer.value,
            bytes=buffer.bytes,
            shape=buffer.shape,
        )
        view.update(spec=spec, source=buffer.source, about=about_buffer(buffer))
        buffers.append(view)
    return {
        "sentence": str(timeline.peak),
        "peak": peak,
        "top": top,
        "capacity": capacity or 0,
        "where": where,
        "kinds": kinds,
        "buffers": buffers,
    }
