"""Topologies and rooflines as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardviz.core.layout.topology import Topology
from shardviz.core.layout.torus import Torus
from shardviz.core.program.costs.roofline import Bound, Roofline
from shardviz.picture.draw_roofline import amount_text
from shardviz.picture.ids import ids_text
from shardviz.picture.text_boxes import MOST_LINES, wrapped
from shardviz.picture.units import seconds_text


def topology_text(topology: Topology, width: int) -> str:
    """A topology: what it is, then the device ids at their coordinates, where there is room.

    >>> print(topology_text(Topology.parse("tpu:v5e:2x4"), 80))
    tpu:v5e:2x4 · 8 chips of TPU v5e as 2×4 on 2 hosts; no axis closes to a ring.
          x 0  x 1
    y 0     0    1
    y 1     2    3
    y 2     4    5
    y 3     6    7
    """
    lines = wrapped(f"{topology} · {topology.words()}", width, "  ")
    grid = _grid(topology)
    if len(grid) <= MOST_LINES and max(map(len, grid)) <= width:
        return "\n".join([*lines, *grid])
    ids = ids_text(np.sort(topology.device_ids))
    return "\n".join([*lines, *wrapped(f"ids {ids}", width, "  ")])


def _grid(topology: Topology) -> list[str]:
    """Planes below one another; the devices of a chip stand side by side."""
    torus = Torus(topology)
    order = np.argsort(torus.chip_of, kind="stable")
    ids = topology.device_ids[order].reshape(torus.chips, -1)
    cells = ["/".join(map(str, row)) for row in ids.tolist()]
    if torus.shape:
        across, down = torus.shape[0], torus.shape[1]
        planes = torus.chips // (across * down) // topology.slices
        names = ("x", "y")
    else:
        across, down, planes = topology.shape[1], topology.shape[0], 1
        names = ("GPU", "host")
    sides = [f"{names[1]} {i}" for i in range(down)]
    heads = [f"{names[0]} {i}" for i in range(across)]
    wide = max(map(len, [*cells, *heads])) + 2
    margin = max(map(len, sides)) + 1
    lines = []
    for plane in range(planes * topology.slices):
        where = []
        if topology.slices > 1:
            where.append(f"slice {plane // planes}")
        if planes > 1:
            where.append(f"z {plane % planes}")
        if where:
            lines.append(", ".join(where))
        lines.append(" " * margin + "".join(f"{h:>{wide}}" for h in heads))
        for row in range(down):
            first = (plane * down + row) * across
            body = "".join(f"{c:>{wide}}" for c in cells[first : first + across])
            lines.append(f"{sides[row]:<{margin}}{body}")
    return lines


def roofline_text(found: Roofline, width: int) -> str:
    """A roofline: its words, a line a part, its notes."""
    lines = wrapped(found.words, width, "  ")
    lines += _bounds(found.rows, width)
    if found.ops:
        lines += wrapped("operations on each device, before XLA fuses them:", width, "  ")
        lines += _bounds(found.ops, width)
    for note in found.notes:
        lines += wrapped(note, width, "  ")
    return "\n".join(lines)


def _bounds(rows: Sequence[Bound], width: int) -> list[str]:
    left = max((len(seconds_text(r.seconds)) for r in rows), default=0)
    lines = []
    for row in rows[:MOST_LINES]:
        parts = [row.name, row.bound, amount_text(row), row.source, row.note]
        said = " · ".join(p for p in parts if p)
        lines += wrapped(f"{seconds_text(row.seconds):>{left}}  {said}", width, " " * (left + 2))
    if len(rows) > MOST_LINES:
        lines.append(f"and {len(rows) - MOST_LINES:,} more")
    return lines
