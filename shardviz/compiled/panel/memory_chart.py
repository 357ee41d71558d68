"""The Memory tab: live bytes over time and the live buffers; or the plan's estimate."""

from __future__ import annotations

import numpy as np

from shardviz.base.axis_parts import local_shape
from shardviz.base.format import bytes_text, clause
from shardviz.base.mesh import MeshSpec
from shardviz.base.typing import JsonDict
from shardviz.compiled.draw.memory import chart_columns
from shardviz.compiled.memory import KINDS
from shardviz.compiled.op_costs import held_bytes, saved_values
from shardviz.compiled.panel.plain_names import PlainNames, name_of_buffer
from shardviz.compiled.report import Report
from shardviz.compiled.words import memory as words_of_memory
from shardviz.compiled.words.memory import about_buffer
from shardviz.draw import words as wording
from shardviz.draw.tables import short_type
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp, bytes_per_device

# More columns would be too narrow to click.
MOST_COLUMNS = 240
# The most buffers that are sent for a column. The page adds up the others.
MOST_ALIVE = 16
# The most rows of an estimate.
MOST_SAVED = 12


def chart_view(report: Report) -> JsonDict | None:
    """Returns the chart's data; None if the compiler reported no buffers."""
    timeline, capacity = report.memory.timeline, report.memory.capacity
    if timeline is None:
        return None
    if report.fit is not None:
        # Simulated devices have no capacity.
        capacity = report.fit.capacity
    at, live, peak, top = chart_columns(timeline, capacity, MOST_COLUMNS)
    where, kinds, buffers = [], [], []
    for new in map(timeline.filled.get, at.tolist()):
        words = wording.BEGINNING
        if new is not None:
            name = name_of_buffer(new, timeline.arguments)
            words = f"{name} · {new.source}".removesuffix(" · ")
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
            name=name_of_buffer(buffer, timeline.arguments),
            compiler=buffer.title,
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


def estimate_view(plan: Plan) -> JsonDict:
    """Returns the memory that a plan estimates: arguments, results and saved values.

    >>> from shardviz.base.mesh import make_mesh
    >>> estimate_view(Plan("f", make_mesh(data=2)))["parts"]
    [['arguments and results', '0 B']]
    """
    names, total = PlainNames(plan), 0
    # Values of all layers share a row: their name, shape, line -> their sizes.
    rows: dict[tuple[str, str, str], list[int]] = {}
    for op in saved_values(plan):
        size = bytes_per_device(op, plan.mesh)
        total += size
        place = (names.value(op.name), _shard(op, plan.mesh), op.source)
        rows.setdefault(place, []).append(size)
    values = []
    for place, sizes in sorted(rows.items(), key=lambda row: -sum(row[1])):
        name, shape, source = place
        times = clause(" × {}", len(sizes) if len(sizes) > 1 else None)
        values.append([bytes_text(sum(sizes)), f"{name}{times}", shape, source])
    parts = [["arguments and results", bytes_text(held_bytes(plan))]]
    note = words_of_memory.ESTIMATE
    if values:
        parts.append([words_of_memory.SAVED, bytes_text(total)])
        note += f" {words_of_memory.LARGEST_SAVED}"
    return {
        "note": note,
        "parts": parts,
        "values": values[:MOST_SAVED],
        "more": max(0, len(values) - MOST_SAVED),
    }


def _shard(op: PlannedOp, mesh: MeshSpec) -> str:
    """Formats a value's type and shape on each device."""
    return short_type(op.dtype, local_shape(op.shape, op.spec, mesh))
