"""The chart of the tab Memory: live bytes at each moment, and the buffers there."""

from __future__ import annotations

import numpy as np

from shardviz.base.typing import JsonDict
from shardviz.compiled.draw.memory import chart_columns
from shardviz.compiled.memory import KINDS
from shardviz.compiled.report import Report
from shardviz.compiled.words.memory import about_buffer
from shardviz.draw import words as wording

MOST_COLUMNS = 240  # wide enough to be clicked
MOST_ALIVE = 16  # buffers that are sent of each column; the page adds up the others


def chart_view(report: Report) -> JsonDict | None:
    """The live bytes for the page; None where the compiler gave no buffers."""
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
        if bytes_.any():  # a kind that is never there has no name in the legend
            kinds.append([kind, bytes_.tolist()])
    # How many buffers of each column are sent: the largest come first.
    sent = np.zeros(len(at), int)
    for one in sorted(timeline.buffers, key=lambda buffer: -buffer.bytes):
        # The columns in which it is alive.
        start, end = at.searchsorted(one.start), at.searchsorted(one.end, "right")
        if start == end or sent[start:end].min() >= MOST_ALIVE:
            continue
        sent[start:end] += 1
        spec = "" if one.spec is None else str(one.spec)
        view: JsonDict = {"start": int(start), "end": int(end) - 1}
        view.update(name=one.title, value=one.value, bytes=one.bytes, shape=one.shape)
        view.update(spec=spec, source=one.source, about=about_buffer(one))
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
