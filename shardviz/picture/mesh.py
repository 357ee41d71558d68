"""Meshes: devices as a grid or host by host, coloured by host, by axis or by block of an array.

And the mesh in force, as each API of jax finds it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardviz.core.errors import MeshError
from shardviz.core.format import bytes_text, ids_text, joined, plural, shown
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_context import APIS, MeshContext
from shardviz.picture.blocks import (
    MOST_TILES,
    DeviceRuns,
    array_title,
    check_drawable,
    device_runs,
    mesh_ids_text,
)
from shardviz.picture.grid import Grid, Level, arrange, headers, host_frames
from shardviz.picture.page import and_more, moved, page, paragraphs, text_width, wrapped
from shardviz.picture.picture import (
    DEVICE,
    INDEX,
    PEERS,
    Frame,
    Label,
    Picture,
    Slot,
    Template,
    coordinates,
    index_template,
    make_tiles,
)
from shardviz.picture.tables import MOST_CELLS, MOST_LINES, Cell, bordered, fits, matrix
from shardviz.picture.topology import draw_position

# Up to so many devices: width and height of a tile and the gap between tiles, in points.
_SIZES = (
    (16, (80.0, 38.0), 8.0),
    (64, (58.0, 32.0), 6.0),
    (256, (34.0, 20.0), 4.0),
    (1024, (25.0, 15.0), 3.0),
    (4096, (11.0, 11.0), 2.0),
    (16384, (5.6, 5.6), 1.2),
    (262144, (3.0, 3.0), 0.6),
    (1 << 62, (1.2, 1.2), 0.2),
)


def draw_mesh(
    mesh: MeshSpec,
    by: str = "mesh",
    colour: str | None = None,
    title: str | None = None,
    topology: Any = None,
    collective: Any = None,
) -> Picture:
    """The devices of a mesh.

    Args:
        by: `"mesh"`: devices along the axes of the mesh; `"host"`: host by host;
            `"position"`: by their position in a described topology.
        colour: a mesh axis to colour by; by host where None.
        title: `""` for none.
        topology: for `"position"`: a Topology or its text, `"tpu:v5e:4x4"`.
        collective: for `"position"`: one of a Report or Plan, whose links are drawn.

    Raises:
        MeshError: for an axis that the mesh lacks, or another `by`.
        TargetError: where the mesh does not fit the topology.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> draw_mesh(make_mesh(data=4, model=2)).device_ids().tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    if check_order(by) == "position":
        if topology is None:
            raise MeshError(
                "Devices have a 'position' in a topology only; got none. Give one, such as"
                " topology='tpu:v5e:4x4'."
            )
        return draw_position(mesh, topology, collective, colour, title)
    hosts, runs = len(mesh.processes), device_runs(mesh)
    if colour is None:
        groups, count = runs.hosts[0], hosts
        if mesh.processes[-1] >= hosts:  # else they are numbered without gaps
            groups = np.searchsorted(mesh.processes, groups)
        legend = [(i, f"host {p}") for i, p in enumerate(mesh.processes[:11])] if hosts > 1 else []
    else:
        count = mesh.require_axis(colour)
        stride = int(np.prod(mesh.axis_sizes[mesh.positions[colour] + 1 :]))
        groups = runs.first // stride % count
        legend = [(i, f"{colour} {i}") for i in range(min(count, 11))]
    return _devices(
        runs,
        groups,
        count,
        by,
        title=f"mesh {mesh}" if title is None else title,
        legend=legend if len(legend) <= 10 else [],
        alt=_alt(mesh, by),
        colormap="blocks" if count <= 10 else "ramp",
        facts={"kind": "devices", "by": by},
    )


def draw_layout_devices(
    layout: Layout, by: str = "mesh", name: str = "", title: str | None = None, legend: bool = True
) -> Picture:
    """The devices of a layout, coloured by the block of the array that each holds.

    Args:
        by: as in `draw_mesh`.
        name: what the array is called.
        title: `""` for none.
        legend: whether to have a legend of blocks, where there are at most ten.
    """
    check_drawable(layout)
    check_order(by, positions=False)
    runs = device_runs(layout.mesh)
    groups, blocks = runs.blocks(layout)
    bounds = index_template(layout.block_counts, layout.shard_shape)
    holds = "\nholds " if runs.length == 1 else "\nhold "
    holds += f"{plural(blocks, 'block')}, the first is " if blocks > 1 else ""
    hint: Template = (holds, name, *bounds, f" · {bytes_text(layout.bytes_per_device)}")
    hint += (" each",) if runs.length > 1 else ()
    columns, corner = {}, ()
    if runs.length > 1 and layout.replicas > 1:
        hint += (f" · {plural(layout.replicas, 'replica')} of every block",)
    elif layout.replicas > 1:
        columns["replica"] = layout.replica_indices
        corner = ("\tr", Slot("replica"))
        hint += (
            " · replica ",
            Slot("replica", plus=1),
            f" of {layout.replicas}, with ",
            Slot(PEERS),
        )
    entries = []
    if legend and 1 < layout.num_blocks <= 10:
        entries = [(g, name + _index_words(layout, g)) for g in range(layout.num_blocks)]
    what = array_title(layout, name)
    return _devices(
        runs,
        groups,
        layout.num_blocks,
        by,
        corner=corner,
        hint=hint,
        columns=columns,
        title=f"devices by block of {what}" if title is None else title,
        legend=entries,
        alt=_alt(layout.mesh, by)
        + f" Coloured by block of {what}: {plural(layout.num_blocks, 'block')},"
        f" {plural(layout.replicas, 'replica')}.",
        colormap="blocks",
        facts={"kind": "devices", "by": by},
    )


def _index_words(layout: Layout, group: int) -> str:
    parts = index_template(layout.block_counts, layout.shard_shape)
    return "".join(p if isinstance(p, str) else p.word(group) for p in parts)


def check_order(by: object, positions: bool = True) -> str:
    """What devices are arranged by, if it is known.

    Raises:
        MeshError: otherwise.
    """
    if isinstance(by, str) and by in ("mesh", "host", "position")[: 2 + positions]:
        return str(by)
    raise MeshError(f"Devices are arranged by 'mesh', 'host' or 'position'; got {shown(by)}.")


def _devices(
    runs: DeviceRuns,
    groups: Any,
    count: int,
    by: str,
    *,
    corner: Template = (),
    hint: Template = (),
    columns: dict[str, Any] | None = None,
    **more: Any,
) -> Picture:
    mesh, columns = runs.mesh, dict(columns or {})
    first, last = runs.hosts
    if len(mesh.processes) > 1:
        columns["host"], columns["last host"] = first, last
    about, where = _about(runs, "host" in columns), coordinates(mesh.axis_names, mesh.axis_sizes)
    cell, gap = _cell(runs)
    notes = []
    if runs.length > 1:
        order = " by mesh axes; there are too many to arrange them host by host" * (by == "host")
        notes = [
            f"Each tile is {runs.length:,} devices in mesh order{order}, coloured as the first."
        ]
    if by == "host" and runs.length == 1:
        second: Template = where
        corners, labels, frames, size = _by_host(mesh, cell, gap)
    else:
        second = ("host ", Slot("host")) if "host" in columns else ()
        corners, labels, frames, size = _by_mesh(runs, cell, gap)
    label: Template = (Slot(DEVICE), *corner, *(("\n", *second) if second else ()))
    tiles = make_tiles(
        corners[0],
        corners[1],
        cell[0],
        cell[1],
        groups,
        runs.ids,
        text=label if runs.length == 1 else (f"{runs.length:,} devices",),
        hint=about + hint,
        columns=columns
        if runs.length > 1
        else {k: v for k, v in columns.items() if k != "last host"},
        align="start" if cell[0] > 50 else "middle",
        radius=min(5.0, cell[0] * 0.12),
    )
    return page(tiles, labels, notes=notes, frames=frames, size=size, groups=max(count, 1), **more)


def _about(runs: DeviceRuns, hosts: bool) -> Template:
    """The tooltip of a tile: its device, or how many it has, where they are in the mesh."""
    names, sizes = runs.mesh.axis_names, runs.mesh.axis_sizes
    if runs.length == 1:
        host = (" · host ", Slot("host")) if hosts else ()
        return ("device ", Slot(DEVICE), " · ", *coordinates(names, sizes), *host)
    parts: list[str | Slot] = []
    stride = 1
    for name, count, span in reversed(list(zip(names, runs.counts, runs.spans, strict=True))):
        slot = Slot(INDEX, stride, count, span)
        last = () if span == 1 else ("–", replace(slot, plus=span - 1))
        parts = [f"{name} ", slot, *last, *([", "] if parts else []), *parts]
        stride *= count
    host = (" · hosts ", Slot("host"), "–", Slot("last host")) if hosts else ()
    return (f"{runs.length:,} devices, the first is ", Slot(DEVICE), " · ", *parts, *host)


def _cell(runs: DeviceRuns) -> tuple[tuple[float, float], float]:
    mesh, tiles = runs.mesh, math.prod(runs.counts)
    _, cell, gap = next(v for v in _SIZES if tiles <= v[0])
    if tiles > 1024 or runs.length > 1:
        return cell, gap
    longest = max((str(mesh.device_ids.max()), str(mesh.device_ids.min())), key=len)
    return (max(cell[0], text_width(longest, 7.0) + 5), cell[1]), gap


def shown_axes(sizes: Sequence[int]) -> tuple[int, ...]:
    """The axes that a page shows: those longer than 1, or else one or two.

    >>> shown_axes((1, 4, 1, 2)), shown_axes((1, 4)), shown_axes((64, 1)), shown_axes((1, 1, 1))
    ((1, 3), (0, 1), (0,), (2,))
    """
    long = tuple(i for i, n in enumerate(sizes) if n > 1)
    if not long:
        return (len(sizes) - 1,)
    if len(sizes) == 2 and sizes[long[0]] <= 8:
        return (0, 1)
    return long


def _by_mesh(runs: DeviceRuns, cell: tuple[float, float], gap: float) -> tuple:
    mesh = runs.mesh
    axes = shown_axes(runs.counts)
    grid = arrange(runs.counts, cell, gap, axes)

    def words(level: Level, entry: int) -> tuple[str, str]:
        return mesh.axis_names[level.axis], span_words(level, entry, runs.spans[level.axis])

    frames = host_frames(mesh, grid.corners(), cell, gap)
    edge = gap / 2 if frames else 0.0
    # In rows lower than their labels, the first label would touch the names of the columns.
    around = headers(grid, words, (edge, max(edge, 6.0 - cell[1] / 2)))
    return _shifted(grid, around.labels, frames, around.left, around.top, gap)


def span_words(level: Level, entry: int, span: int = 1) -> str:
    """The coordinates of an entry: `3`, or `0–63` for a fold, where a cell takes `span` of them."""
    first = entry * level.span
    return _range(first * span, min(first + level.span, level.size) * span - 1)


def _range(first: int, last: int) -> str:
    return str(first) if last <= first else f"{first}–{last}"


def _shifted(
    grid: Grid, labels: Any, frames: list[Frame], left: float, top: float, gap: float
) -> tuple:
    """Everything shifted right and down, so that the labels begin at the origin."""
    edge = gap / 2 if frames else 0.0
    x, y = left, top
    corners = grid.corners() + np.array([[x], [y]])
    outlines = [replace(f, x=f.x + x, y=f.y + y) for f in frames]
    return corners, moved(labels, x, y), outlines, (x + grid.width + edge, y + grid.height + edge)


def _by_host(mesh: MeshSpec, cell: tuple[float, float], gap: float) -> tuple:
    """Each host a small grid of its devices in mesh order; the hosts in a grid of grids."""
    host = np.searchsorted(mesh.processes, mesh.process_indices.reshape(-1))
    order = np.argsort(host, kind="stable")
    counts = np.bincount(host)
    rank = np.empty(mesh.size, np.int64)
    rank[order] = np.arange(mesh.size) - np.repeat(np.cumsum(counts) - counts, counts)
    most = int(counts.max())
    across = min(most, 1 << int(np.log2(max(1.0, 1.5 * most**0.5))))
    shape = (-(-most // across), across)
    inner = arrange(shape, cell, gap, (0, 1), page=(1e9, 1e9))
    text = 14.0 if cell[1] >= 15 else 0.0
    name = text_width(f"host {mesh.processes[-1]}", 9.0) + 6 if text else 0.0
    block = (max(inner.width + gap, name), inner.height + gap + text)
    outer = arrange((len(counts),), block, gap + min(6.0, cell[1] * 0.3), (0,))
    inside = inner.corners()[:, rank] + np.array([[gap / 2], [text + gap / 2]])
    blocks = outer.corners()
    labels, frames = [], []
    # More frames than that are finer than a reader can see; the tooltip has the host.
    named = zip(blocks.T.tolist(), mesh.processes, strict=True) if len(counts) <= 1024 else ()
    for (x, y), process in named:
        frames.append(Frame(x, y + text, block[0], block[1] - text, f"host {process}"))
        if text:
            labels.append(Label(x + 2, y + 6, f"host {process}", "start"))
    return blocks[:, host] + inside, labels, frames, (outer.width, outer.height)


def _alt(mesh: MeshSpec, by: str) -> str:
    hosts = plural(len(mesh.processes), "host")
    ids = mesh_ids_text(mesh, limit=200)
    order = "by mesh axes" if by == "mesh" else "host by host"
    return (
        f"Device mesh {mesh}: {plural(mesh.size, 'device')} on {hosts}, {order}."
        f" Axes {joined(mesh.axis_names)}. Device ids in mesh order: {ids}."
    )


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
    lines = wrapped(f"mesh {mesh} · {plural(mesh.size, 'device')} · {hosts}", width, "  ")
    body = _mesh_tables(mesh, width) if mesh.size <= MOST_CELLS else None
    if body is None:
        body = _mesh_rows(mesh, width) + _host_lines(mesh, width)
    return "\n".join([*lines, *body])


def _mesh_tables(mesh: MeshSpec, width: int) -> list[str] | None:
    """One table per coordinate of the outer axes; None where they do not fit."""
    axes = shown_axes(mesh.axis_sizes)
    if len(axes) == 1:
        return _folded_table(mesh, width)
    name, numbers = mesh.axis_names[axes[-1]], range(mesh.axis_sizes[axes[-1]])
    for heads in ([f"{name} {i}" for i in numbers], [f"{name} 0", *map(str, numbers[1:])]):
        lines = _tables(mesh, axes, heads)
        if fits(lines, width):
            return lines
    return None


def _tables(mesh: MeshSpec, axes: Sequence[int], heads: Sequence[str]) -> list[str]:
    *outer, down, across = axes
    sizes, names = mesh.axis_sizes, mesh.axis_names
    sides = [f"{names[down]} {i}" for i in range(sizes[down])]
    lines: list[str] = []
    for index in itertools.product(*(range(sizes[a]) for a in outer)):
        window: list[int | slice] = [0] * len(sizes)
        for axis, at in zip(outer, index, strict=True):
            window[axis] = at
        window[down] = window[across] = slice(None)
        ids, hosts = mesh.device_ids[tuple(window)], mesh.process_indices[tuple(window)]
        if outer:
            lines.append(", ".join(f"{names[a]} {i}" for a, i in zip(outer, index, strict=True)))
        cells = [[str(v) for v in row] for row in ids.tolist()]
        lines += bordered(heads, sides, cells, [_remark(mesh, row) for row in hosts])
    return lines


def _folded_table(mesh: MeshSpec, width: int) -> list[str] | None:
    """A mesh of one long axis, folded like a line of text."""
    (axis,) = shown_axes(mesh.axis_sizes)
    name, ids = mesh.axis_names[axis], mesh.device_ids.reshape(-1)
    cell = max(len(str(v)) for v in ids.tolist()) + 3
    free = width - len(f"{name} {mesh.size}–{mesh.size}") - 2 - 14 * (len(mesh.processes) > 1)
    across = min(mesh.size, 16, max(1, free // cell))
    while mesh.size % across and across > 8:
        across -= 1
    starts = range(0, mesh.size, across)
    cells = [[str(v) for v in ids[s : s + across].tolist()] for s in starts]
    hosts = mesh.process_indices.reshape(-1)
    rows = [hosts[s : s + across] for s in starts]
    sides = [f"{name} {_range(s, min(s + across, mesh.size) - 1)}" for s in starts]
    lines = bordered([], sides, cells, [_remark(mesh, r) for r in rows])
    return lines if fits(lines, width) else None


def _remark(mesh: MeshSpec, hosts: np.ndarray) -> str:
    if len(mesh.processes) < 2:
        return ""
    own = list(dict.fromkeys(hosts.reshape(-1).tolist()))
    if len(own) == 1:
        return f"host {own[0]}"
    # Where hosts alternate, the row lists the host of every device.
    inside = hosts.reshape(-1).tolist()
    return f"hosts {ids_text(inside if inside != sorted(inside) else own)}"


def _mesh_rows(mesh: MeshSpec, width: int) -> list[str]:
    """The ids in ranges: a line per coordinate of as many outer axes as fit."""
    outer = 0
    while outer < len(mesh.axis_sizes) - 1:
        if np.prod(mesh.axis_sizes[: outer + 1]) > MOST_LINES // 2:
            break
        outer += 1
    if not outer:
        order = f" ({mesh.axis_names[-1]} runs fastest)" if len(mesh.axis_sizes) > 1 else ""
        return wrapped(f"ids in mesh order{order}: {mesh_ids_text(mesh)}", width, "  ")
    lines = []
    for index in np.ndindex(*mesh.axis_sizes[:outer]):
        where = ", ".join(f"{n} {i}" for n, i in zip(mesh.axis_names, index, strict=False))
        lines += wrapped(f"{where}: {mesh_ids_text(mesh, index)}", width, "  ")
    return lines


def _host_lines(mesh: MeshSpec, width: int) -> list[str]:
    if len(mesh.processes) < 2:
        return []
    count = len(mesh.processes)
    own = range(count) if mesh.even_hosts else _hosts_of_runs(mesh)
    if own is not None:
        each = plural(mesh.size // count, "device")
        text = f"hosts in mesh order: {ids_text(own)}; {each} each"
        return wrapped(text, width, "  ")
    lines, hosts = [], mesh.process_indices.reshape(-1)
    most = MOST_LINES if mesh.size <= MOST_TILES else 8
    first = mesh.processes[:most]
    near = np.flatnonzero(hosts <= first[-1])  # millions are looked through once
    for process in first:
        mine = near[hosts[near] == process]
        ids = mine if mesh.ids_are_positions else mesh.device_ids.reshape(-1)[mine]
        lines += wrapped(f"host {process}: {ids_text(ids)}", width, "  ")
    return lines + and_more(count - most, "host")


def _hosts_of_runs(mesh: MeshSpec) -> np.ndarray | None:
    """The host of each run, where hosts share the devices evenly in any order; else None."""
    each, left = divmod(mesh.size, len(mesh.processes))
    if left:
        return None
    runs = mesh.process_indices.reshape(-1, each)
    own = runs[:, 0]
    few = runs[: MOST_TILES // each + 1]  # most of those that are not even differ at the start
    if not all((some == some[:, :1]).all() for some in (few, runs)):
        return None
    return own if (own[1:] != own[:-1]).all() else None


_SLOTS = {"abstract": "abstract mesh", "current": "jax.set_mesh", "legacy": "with mesh:"}


def draw_mesh_context(context: MeshContext, title: str | None = None) -> Picture:
    """A mesh context: a row per API, a column per slot of JAX, a tile where the API finds its mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> draw_mesh_context(MeshContext((make_mesh(x=2),))).tiles.label(0)
    'x=2'
    """
    cells = []
    for row, api in enumerate(APIS):
        slot = context.slot(api)
        if slot is not None:
            source = "abstract" if slot == "explicit" else slot
            column, mesh = list(_SLOTS).index(source), context.sees(api)
            hint = f"{api} finds {mesh} in {_SLOTS[source]}"
            cells.append(Cell(row, column, str(mesh), column, hint))
    lines = context.explain().splitlines()
    return matrix(
        list(APIS),
        list(_SLOTS.values()),
        cells,
        remarks=["" if context.sees(api) else "finds no mesh" for api in APIS],
        least=92.0,
        title=f"mesh in force: {context.mesh or 'none'}" if title is None else title,
        notes=lines,
        alt=" ".join(lines),
        groups=3,
        facts={"kind": "mesh context"},
    )


def mesh_context_text(context: MeshContext, width: int) -> str:
    """A mesh context: its explanation, then what each API sees."""
    rows = [f"{api}: {mesh or '–'}" for api, mesh in context.table().items()]
    return paragraphs([context.explain(), *rows], width)
