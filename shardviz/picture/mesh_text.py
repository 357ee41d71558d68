"""Meshes as text: a table of ids in mesh order, or the ids in ranges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from shardviz.core.format import ids_text, plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.wording import pictures as wording
from shardviz.picture.blocks import MOST_TILES, mesh_ids_text
from shardviz.picture.mesh import range_words, shown_axes
from shardviz.picture.page import and_more, wrapped
from shardviz.picture.tables import MOST_CELLS, MOST_LINES, bordered, fits


def mesh_text(mesh: MeshSpec, width: int) -> str:
    """A mesh: a table of ids in mesh order, or the ids in ranges.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> print(mesh_text(make_mesh(data=2, model=2), 80))
    mesh data=2, model=2 · 4 devices · 1 host
             model 0   model 1
           ┌─────────┬─────────┐
    data 0 │ 0       │ 1       │
    data 1 │ 2       │ 3       │
           └─────────┴─────────┘
    """
    hosts = plural(len(mesh.processes), "host")
    head = f"mesh {mesh} · {plural(mesh.size, 'device')} · {hosts}"
    body = None
    if mesh.size <= MOST_CELLS:
        body = _tables(mesh, width)
    if body is None:
        body = _ranges(mesh, width) + _host_lines(mesh, width)
    return "\n".join([*wrapped(head, width, "  "), *body])


def _tables(mesh: MeshSpec, width: int) -> list[str] | None:
    """One table per coordinate of the outer axes; None where they do not fit."""
    axes = shown_axes(mesh.axis_sizes)
    if len(axes) == 1:
        return _folded_table(mesh, axes[0], width)
    name, size = mesh.axis_names[axes[-1]], mesh.axis_sizes[axes[-1]]
    full = [f"{name} {number}" for number in range(size)]
    # Where the full heads are too wide, the name of the axis stands above the first.
    for heads in (full, [full[0], *map(str, range(1, size))]):
        lines = _planes(mesh, axes, heads)
        if fits(lines, width):
            return lines
    return None


def _planes(mesh: MeshSpec, axes: Sequence[int], heads: Sequence[str]) -> list[str]:
    *outer, down, across = axes
    sizes, names = mesh.axis_sizes, mesh.axis_names
    sides = [f"{names[down]} {number}" for number in range(sizes[down])]
    lines: list[str] = []
    for index in itertools.product(*(range(sizes[axis]) for axis in outer)):
        # Axes of size 1 that the page does not show stay at 0.
        plane: list[int | slice] = [0] * len(sizes)
        where = []
        for axis, at in zip(outer, index, strict=True):
            plane[axis] = at
            where.append(f"{names[axis]} {at}")
        plane[down] = plane[across] = slice(None)
        if where:
            lines.append(", ".join(where))
        ids = mesh.device_ids[tuple(plane)].tolist()
        cells = [list(map(str, row)) for row in ids]
        hosts = mesh.process_indices[tuple(plane)]
        remarks = [_remark(mesh, row.tolist()) for row in hosts]
        lines += bordered(heads, sides, cells, remarks)
    return lines


def _folded_table(mesh: MeshSpec, axis: int, width: int) -> list[str] | None:
    """A mesh of one long axis, folded like a line of text."""
    name, ids = mesh.axis_names[axis], mesh.device_ids.reshape(-1).tolist()
    cell = max(map(len, map(str, ids))) + 3
    free = width - len(f"{name} {mesh.size}–{mesh.size}") - 2
    if len(mesh.processes) > 1:
        free -= 14
    across = min(mesh.size, 16, max(1, free // cell))
    # Full rows are easier to read than a few more in each.
    while mesh.size % across and across > 8:
        across -= 1
    hosts, sides, cells, remarks = mesh.process_indices.reshape(-1), [], [], []
    for first in range(0, mesh.size, across):
        last = min(first + across, mesh.size) - 1
        sides.append(f"{name} {range_words(first, last)}")
        cells.append(list(map(str, ids[first : last + 1])))
        remarks.append(_remark(mesh, hosts[first : last + 1].tolist()))
    lines = bordered([], sides, cells, remarks)
    return lines if fits(lines, width) else None


def _remark(mesh: MeshSpec, hosts: list[int]) -> str:
    """The hosts of a row."""
    if len(mesh.processes) < 2:
        return ""
    distinct = list(dict.fromkeys(hosts))
    if len(distinct) == 1:
        return f"host {distinct[0]}"
    # Where hosts alternate, a row lists the host of every device.
    if hosts != sorted(hosts):
        distinct = hosts
    return f"hosts {ids_text(distinct)}"


def _ranges(mesh: MeshSpec, width: int) -> list[str]:
    """The ids in ranges: a line per coordinate of as many outer axes as fit."""
    names, sizes, outer = mesh.axis_names, mesh.axis_sizes, 0
    while outer < len(sizes) - 1 and math.prod(sizes[: outer + 1]) <= MOST_LINES // 2:
        outer += 1
    if not outer:
        order = f" ({names[-1]} runs fastest)" if len(sizes) > 1 else ""
        return wrapped(f"ids in mesh order{order}: {mesh_ids_text(mesh)}", width, "  ")
    lines = []
    for index in np.ndindex(*sizes[:outer]):
        pairs = zip(names, index, strict=False)
        where = ", ".join(f"{name} {at}" for name, at in pairs)
        lines += wrapped(f"{where}: {mesh_ids_text(mesh, index)}", width, "  ")
    return lines


def _host_lines(mesh: MeshSpec, width: int) -> list[str]:
    count = len(mesh.processes)
    if count < 2:
        return []
    order = range(count) if mesh.even_hosts else _hosts_of_runs(mesh)
    if order is not None:
        text = wording.hosts_in_order(ids_text(order), mesh.size // count)
        return wrapped(text, width, "  ")
    most = MOST_LINES if mesh.size <= MOST_TILES else 8
    shown, hosts = mesh.processes[:most], mesh.process_indices.reshape(-1)
    lines = []
    near = np.flatnonzero(hosts <= shown[-1])  # millions are looked through once
    for process in shown:
        ids = near[hosts[near] == process]
        if not mesh.ids_are_positions:
            ids = mesh.device_ids.reshape(-1)[ids]
        lines += wrapped(f"host {process}: {ids_text(ids)}", width, "  ")
    return lines + and_more(count - most, "host")


def _hosts_of_runs(mesh: MeshSpec) -> np.ndarray | None:
    """The host of each run of devices, where hosts have runs of one length; else None."""
    each, left = divmod(mesh.size, len(mesh.processes))
    if left:
        return None
    runs = mesh.process_indices.reshape(-1, each)
    hosts = runs[:, 0]
    # Most meshes that are not even differ at the start, so a few runs are looked at
    # first.
    few = runs[: MOST_TILES // each + 1]
    for some in (few, runs):
        if (some != some[:, :1]).any():
            return None
    return hosts if (hosts[1:] != hosts[:-1]).all() else None
