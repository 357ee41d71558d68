"""Meshes as text: boxes of ids where they fit, ranges where not, never an id lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shardviz.core.errors import plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.picture.draw_devices import shown_axes
from shardviz.picture.ids import ids_text
from shardviz.picture.text_boxes import MOST_CELLS, MOST_LINES, boxed, fits, wrapped


def mesh_text(mesh: MeshSpec, width: int) -> str:
    """A mesh: a box of ids in mesh order, or the ids in ranges.

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
    lines = wrapped(f"mesh {mesh} · {plural(mesh.size, 'device')} · {hosts}", width, "  ")
    body = _mesh_boxes(mesh, width) if mesh.size <= MOST_CELLS else None
    if body is None:
        body = _mesh_rows(mesh, width) + _host_lines(mesh, width)
    return "\n".join([*lines, *body])


def _mesh_boxes(mesh: MeshSpec, width: int) -> list[str] | None:
    """One box for every place on the outer axes; None where they do not fit."""
    axes = shown_axes(mesh.axis_sizes)
    if len(axes) == 1:
        return _folded_box(mesh, width)
    name, numbers = mesh.axis_names[axes[-1]], range(mesh.axis_sizes[axes[-1]])
    for heads in ([f"{name} {i}" for i in numbers], [f"{name} 0", *map(str, numbers[1:])]):
        lines = _boxes(mesh, axes, heads)
        if fits(lines, width):
            return lines
    return None


def _boxes(mesh: MeshSpec, axes: Sequence[int], heads: Sequence[str]) -> list[str]:
    *outer, down, across = axes
    sizes, names = mesh.axis_sizes, mesh.axis_names
    sides = [f"{names[down]} {i}" for i in range(sizes[down])]
    lines: list[str] = []
    for place in itertools.product(*(range(sizes[a]) for a in outer)):
        window: list[int | slice] = [0] * len(sizes)
        for axis, at in zip(outer, place, strict=True):
            window[axis] = at
        window[down] = window[across] = slice(None)
        ids, hosts = mesh.device_ids[tuple(window)], mesh.process_indices[tuple(window)]
        if outer:
            lines.append(", ".join(f"{names[a]} {i}" for a, i in zip(outer, place, strict=True)))
        cells = [[str(v) for v in row] for row in ids.tolist()]
        lines += boxed(heads, sides, cells, [_remark(mesh, row) for row in hosts])
    return lines


def _folded_box(mesh: MeshSpec, width: int) -> list[str] | None:
    """A mesh of one long axis, folded like a line of text."""
    (axis,) = shown_axes(mesh.axis_sizes)
    name, ids = mesh.axis_names[axis], mesh.device_ids.reshape(-1)
    cell = max(len(str(v)) for v in ids.tolist()) + 3
    room = width - len(f"{name} {mesh.size}–{mesh.size}") - 2 - 14 * (len(mesh.processes) > 1)
    across = min(mesh.size, 16, max(1, room // cell))
    while mesh.size % across and across > 8:
        across -= 1
    starts = range(0, mesh.size, across)
    cells = [[str(v) for v in ids[s : s + across].tolist()] for s in starts]
    hosts = mesh.process_indices.reshape(-1)
    rows = [hosts[s : s + across] for s in starts]
    sides = [f"{name} {_span(s, min(s + across, mesh.size) - 1)}" for s in starts]
    lines = boxed([], sides, cells, [_remark(mesh, r) for r in rows])
    return lines if fits(lines, width) else None


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _remark(mesh: MeshSpec, hosts: np.ndarray) -> str:
    if len(mesh.processes) < 2:
        return ""
    own = list(dict.fromkeys(hosts.reshape(-1).tolist()))
    if len(own) == 1:
        return f"host {own[0]}"
    # Where hosts take turns the row says so device by device.
    inside = hosts.reshape(-1).tolist()
    return f"hosts {ids_text(inside if inside != sorted(inside) else own)}"


def _mesh_rows(mesh: MeshSpec, width: int) -> list[str]:
    """The ids in ranges: a line for every place on as many outer axes as there is room for."""
    outer = 0
    while outer < len(mesh.axis_sizes) - 1:
        if np.prod(mesh.axis_sizes[: outer + 1]) > MOST_LINES // 2:
            break
        outer += 1
    if not outer:
        order = f" ({mesh.axis_names[-1]} runs fastest)" if len(mesh.axis_sizes) > 1 else ""
        return wrapped(f"ids in mesh order{order}: {ids_text(mesh.device_ids)}", width, "  ")
    lines = []
    for place in np.ndindex(*mesh.axis_sizes[:outer]):
        where = ", ".join(f"{n} {i}" for n, i in zip(mesh.axis_names, place, strict=False))
        lines += wrapped(f"{where}: {ids_text(mesh.device_ids[place])}", width, "  ")
    return lines


def _host_lines(mesh: MeshSpec, width: int) -> list[str]:
    if len(mesh.processes) < 2:
        return []
    hosts = mesh.process_indices.reshape(-1)
    breaks = np.flatnonzero(np.diff(hosts)) + 1
    turns = hosts[np.r_[0, breaks]]
    lengths = np.diff(np.r_[0, breaks, len(hosts)])
    if len(turns) == len(mesh.processes) and (lengths == lengths[0]).all():
        text = f"hosts in mesh order: {ids_text(turns)}; {plural(int(lengths[0]), 'device')} each"
        return wrapped(text, width, "  ")
    lines = []
    for process in mesh.processes:
        mine = mesh.device_ids.reshape(-1)[hosts == process]
        lines += wrapped(f"host {process}: {ids_text(mine)}", width, "  ")
    return lines
