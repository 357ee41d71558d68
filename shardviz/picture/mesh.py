"""Meshes: devices as a grid or host by host, coloured by host, by axis or by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardviz.core.errors import MeshError
from shardviz.core.format import bytes_text, ids_text, plural, shown
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.wording import pictures as wording
from shardviz.picture.blocks import (
    DeviceRuns,
    array_title,
    check_drawable,
    device_runs,
    mesh_ids_text,
)
from shardviz.picture.grid import Level, arrange, headers, host_frames
from shardviz.picture.page import and_more, moved, page, text_width, titled, wrapped
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
    filled,
    index_template,
    make_tiles,
)
from shardviz.picture.tables import MOST_CELLS, MOST_LINES, grid_text
from shardviz.picture.topology import draw_position

# Up to so many devices: width and height of a tile and the gap between tiles, in
# points.
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
MOST_COLOURS = 10  # groups with a colour of their own and an entry in the legend
MOST_HOST_LINES = 32  # of a text
MOST_FRAMES = 1024  # more are finer than a reader can see; the tooltip has the host


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
                "Devices have a 'position' in a topology only; got none. Give one, such"
                " as topology='tpu:v5e:4x4'."
            )
        return draw_position(mesh, topology, collective, colour, title)
    runs, legend = device_runs(mesh), []
    if colour is None:
        count, groups = len(mesh.processes), runs.hosts[0]
        if not mesh.even_hosts:
            groups = np.searchsorted(mesh.processes, groups)
        names: Iterable[str] = (f"host {process}" for process in mesh.processes)
    else:
        count = mesh.require_axis(colour)
        stride = math.prod(mesh.axis_sizes[mesh.positions[colour] + 1 :])
        groups = runs.first // stride % count
        names = (f"{colour} {number}" for number in range(count))
    # A single host needs no colour, a single coordinate has its name in the legend.
    if count <= MOST_COLOURS and (count > 1 or colour is not None):
        legend = list(enumerate(names))
    return _devices(
        runs,
        groups,
        by,
        title=titled(title, f"mesh {mesh}"),
        legend=legend,
        groups=max(count, 1),
        alt=_alt(mesh, by),
        colormap="blocks" if count <= MOST_COLOURS else "ramp",
    )


def draw_layout_devices(
    layout: Layout,
    by: str = "mesh",
    name: str = "",
    title: str | None = None,
    legend: bool = True,
) -> Picture:
    """The devices of a layout, coloured by the block of the array that each holds.

    Args:
        by: as in `draw_mesh`.
        name: what the array is called.
        legend: whether to have a legend of blocks, where there are at most ten.
    """
    check_drawable(layout)
    check_order(by, positions=False)
    runs, columns, corner = device_runs(layout.mesh), {}, ()
    groups, blocks = runs.blocks(layout)
    bounds = index_template(layout.block_counts, layout.shard_shape)
    size, replicas = bytes_text(layout.bytes_per_device), layout.replicas
    hint: Template = ("\nholds ", name, *bounds, f" · {size}")
    if runs.length > 1:
        hint = (wording.held_blocks(blocks), name, *bounds, f" · {size} each")
    if replicas > 1 and runs.length > 1:
        hint += (wording.replicas_of_blocks(replicas),)
    elif replicas > 1:
        columns, corner = {"replica": layout.replica_indices}, ("\tr", Slot("replica"))
        number = Slot("replica", plus=1)
        hint += (" · replica ", number, f" of {replicas}, with ", Slot(PEERS))
    entries = []
    if legend and 1 < layout.num_blocks <= MOST_COLOURS:
        for block in range(layout.num_blocks):
            entries.append((block, name + filled(bounds, block)))
    what = array_title(layout, name)
    return _devices(
        runs,
        groups,
        by,
        corner,
        hint,
        columns,
        title=titled(title, wording.by_block(what)),
        legend=entries,
        groups=max(layout.num_blocks, 1),
        alt=f"{_alt(layout.mesh, by)} {wording.coloured_by_block(layout, what)}",
        colormap="blocks",
    )


def check_order(by: object, positions: bool = True) -> str:
    """What devices are arranged by, if it is known.

    Raises:
        MeshError: otherwise.
    """
    known = ["mesh", "host"]
    if positions:
        known.append("position")
    if isinstance(by, str) and by in known:
        return by
    raise MeshError(
        f"Devices are arranged by 'mesh', 'host' or 'position'; got {shown(by)}."
    )


def _devices(
    runs: DeviceRuns,
    group: np.ndarray,
    by: str,
    corner: Template = (),
    hint: Template = (),
    columns: dict[str, np.ndarray] | None = None,
    **more: Any,
) -> Picture:
    """The page of a mesh.

    Args:
        group: int64 [tiles], that of each.
        corner: what stands at the right of the id, in the tile of a device.
        hint: what the tooltip says after the device.
        columns: the numbers of both.
        more: what `page` takes.
    """
    mesh, single = runs.mesh, runs.length == 1
    several, numbers = len(mesh.processes) > 1, dict(columns or {})
    second: Template = ()
    if several:
        numbers["host"], last = runs.hosts
        second = ("host ", Slot("host"))
        if not single:
            numbers["last host"] = last
    cell, gap = _cell(runs)
    notes, text = [], (f"{runs.length:,} devices",)
    # Where a tile is many devices, there are too many of them to go host by host.
    if by == "host" and single:
        second = coordinates(mesh.axis_names, mesh.axis_sizes)
        placed = _by_host(mesh, cell, gap)
    else:
        placed = _by_mesh(runs, cell, gap)
    if not single:
        notes.append(wording.tile_of_devices(runs.length, by == "host"))
    else:
        text = (Slot(DEVICE), *corner)
        if second:
            text = (*text, "\n", *second)
    tiles = make_tiles(
        placed.corners[0],
        placed.corners[1],
        cell[0],
        cell[1],
        group,
        runs.ids,
        text=text,
        hint=_about(runs, several) + hint,
        columns=numbers,
        align="start" if cell[0] > 50 else "middle",
        radius=min(5.0, cell[0] * 0.12),
    )
    return page(
        tiles,
        placed.labels,
        notes=notes,
        frames=placed.frames,
        size=placed.size,
        facts={"kind": "devices", "by": by},
        **more,
    )


def _about(runs: DeviceRuns, hosts: bool) -> Template:
    """The tooltip of a tile: its device, or how many it has, and where in the mesh."""
    names, sizes = runs.mesh.axis_names, runs.mesh.axis_sizes
    if runs.length == 1:
        about = ("device ", Slot(DEVICE), " · ", *coordinates(names, sizes))
        if hosts:
            about = (*about, " · host ", Slot("host"))
        return about
    parts: list[str | Slot] = []
    stride = math.prod(runs.counts)
    for name, count, span in zip(names, runs.counts, runs.spans, strict=True):
        stride //= count
        first = Slot(INDEX, stride, count, span)
        parts += [", " if parts else "", f"{name} ", first]
        if span > 1:
            parts += ["–", replace(first, plus=span - 1)]
    if hosts:
        parts += [" · hosts ", Slot("host"), "–", Slot("last host")]
    head = wording.first_device(f"{runs.length:,} devices")
    return (head, Slot(DEVICE), " · ", *parts)


def _cell(runs: DeviceRuns) -> tuple[tuple[float, float], float]:
    """Width and height of a tile, and the gap between tiles, in points."""
    mesh, tiles = runs.mesh, math.prod(runs.counts)
    _, (width, height), gap = next(v for v in _SIZES if tiles <= v[0])
    if tiles <= 1024 and runs.length == 1:
        # Ids of the user's own may be long.
        width = max(width, text_width(str(mesh.device_ids.max()), 7.0) + 5)
    return (width, height), gap


def shown_axes(sizes: Sequence[int]) -> tuple[int, ...]:
    """The axes that a page shows: those longer than 1, or else one or two.

    >>> shown_axes((1, 4, 1, 2)), shown_axes((1, 4)), shown_axes((64, 1)), shown_axes((1, 1, 1))
    ((1, 3), (0, 1), (0,), (2,))
    """
    long = tuple(axis for axis, size in enumerate(sizes) if size > 1)
    if not long:
        return (len(sizes) - 1,)
    if len(sizes) == 2 and sizes[long[0]] <= 8:
        return (0, 1)
    return long


@dataclass(frozen=True, eq=False)
class _Placed:
    """Where tiles are: float64 [2, tiles], with labels, frames, and the size of all."""

    corners: np.ndarray
    labels: list[Label]
    frames: list[Frame]
    size: tuple[float, float]


def _by_mesh(runs: DeviceRuns, cell: tuple[float, float], gap: float) -> _Placed:
    mesh = runs.mesh
    grid = arrange(runs.counts, cell, gap, shown_axes(runs.counts))
    frames = host_frames(mesh, grid.corners(), cell, gap)
    edge = 0.0
    if frames:
        edge = gap / 2

    def words(level: Level, entry: int) -> tuple[str, str]:
        span, first = runs.spans[level.axis], entry * level.span
        last = min(first + level.span, level.size) * span - 1
        return mesh.axis_names[level.axis], range_words(first * span, last)

    # In rows lower than their labels, the first label would touch the names of columns.
    around = headers(grid, words, (edge, max(edge, 6.0 - cell[1] / 2)))
    left, top = around.left, around.top
    corners = grid.corners() + np.array([[left], [top]])
    outlines = [replace(f, x=f.x + left, y=f.y + top) for f in frames]
    size = (left + grid.width + edge, top + grid.height + edge)
    return _Placed(corners, moved(around.labels, left, top), outlines, size)


def range_words(first: int, last: int) -> str:
    """`3`, or `0–63`."""
    if last <= first:
        return str(first)
    return f"{first}–{last}"


def _by_host(mesh: MeshSpec, cell: tuple[float, float], gap: float) -> _Placed:
    """Each host a small grid of its devices in mesh order; the hosts in a grid too."""
    host = np.searchsorted(mesh.processes, mesh.process_indices.reshape(-1))
    order, counts = np.argsort(host, kind="stable"), np.bincount(host)
    # The number of each device within its host.
    number = np.empty(mesh.size, np.int64)
    number[order] = np.arange(mesh.size) - np.repeat(np.cumsum(counts) - counts, counts)
    most = int(counts.max())
    across = min(most, 1 << int(np.log2(max(1.0, 1.5 * most**0.5))))
    # The grid of a host is not folded: hosts themselves are.
    inner = arrange((-(-most // across), across), cell, gap, (0, 1), page=(1e9, 1e9))
    text, name = 0.0, 0.0
    if cell[1] >= 15:
        text = 14.0
        name = text_width(f"host {mesh.processes[-1]}", 9.0) + 6
    block = (max(inner.width + gap, name), inner.height + gap + text)
    outer = arrange((len(counts),), block, gap + min(6.0, cell[1] * 0.3), (0,))
    blocks = outer.corners()
    labels, frames = [], []
    if len(counts) <= MOST_FRAMES:
        for (x, y), process in zip(blocks.T.tolist(), mesh.processes, strict=True):
            words = f"host {process}"
            frames.append(Frame(x, y + text, block[0], block[1] - text, words))
            if text:
                labels.append(Label(x + 2, y + 6, words, "start"))
    inside = inner.corners()[:, number] + np.array([[gap / 2], [text + gap / 2]])
    size = (outer.width, outer.height)
    return _Placed(blocks[:, host] + inside, labels, frames, size)


def _alt(mesh: MeshSpec, by: str) -> str:
    return wording.mesh_alt(mesh, by, mesh_ids_text(mesh, limit=200))


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
    axes = shown_axes(mesh.axis_sizes)
    sizes = [mesh.axis_sizes[axis] for axis in axes]

    def words(axis: int, entry: int, short: bool) -> str:
        # The name of the axis stands above the first column alone.
        if short and entry:
            return str(entry)
        return f"{mesh.axis_names[axes[axis]]} {entry}"

    remarks = []
    if len(mesh.processes) > 1:
        rows = mesh.process_indices.reshape(-1, sizes[-1]).tolist()
        remarks = list(map(_hosts_text, rows))
    ids = list(map(str, mesh.device_ids.flat))
    return grid_text(sizes, ids, words, width, remarks)


def _hosts_text(hosts: list[int]) -> str:
    """The hosts of a row."""
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
        return wrapped(wording.ids_in_order(names, mesh_ids_text(mesh)), width, "  ")
    lines = []
    for index in np.ndindex(*sizes[:outer]):
        pairs = zip(names, index, strict=False)
        where = ", ".join(f"{name} {at}" for name, at in pairs)
        lines += wrapped(f"{where}: {mesh_ids_text(mesh, index)}", width, "  ")
    return lines


def _host_lines(mesh: MeshSpec, width: int) -> list[str]:
    """The hosts in a line where each has one run of devices; else a line each."""
    count = len(mesh.processes)
    if count < 2:
        return []
    if mesh.even_hosts:
        text = wording.hosts_in_order(ids_text(range(count)), mesh.size // count)
        return wrapped(text, width, "  ")
    lines, hosts = [], mesh.process_indices
    for process in mesh.processes[:MOST_HOST_LINES]:
        ids = ids_text(mesh.device_ids[hosts == process])
        lines += wrapped(f"host {process}: {ids}", width, "  ")
    return lines + and_more(count - MOST_HOST_LINES, "host")
