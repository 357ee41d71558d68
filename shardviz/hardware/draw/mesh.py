"""Pictures and texts of meshes; devices are coloured by host, mesh axis or block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardviz.base.collective import Collective
from shardviz.base.errors import MeshError
from shardviz.base.format import ids_text, listed, plural, shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.draw import words as wording
from shardviz.draw.blocks import (
    DeviceTiles,
    array_title,
    check_drawable,
    layout_shades,
    mesh_ids_text,
    tile_counts,
)
from shardviz.draw.grid import (
    NAME_GAP,
    Level,
    arrange,
    headers,
    host_frames,
    rulers,
)
from shardviz.draw.page import and_more, moved, page, text_width, titled, wrapped
from shardviz.draw.palette import Shade
from shardviz.draw.picture import (
    DEVICE,
    Frame,
    Label,
    Picture,
    Ruler,
    RulerAxis,
    Slot,
    Template,
    coordinates,
    index_text,
    make_tiles,
)
from shardviz.draw.tables import MOST_CELLS, MOST_LINES, grid_text
from shardviz.hardware.draw.topology import draw_position
from shardviz.hardware.topology import Topology

# Maximum number of devices -> width and height of a tile, and the gap between tiles, in
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
# With more groups than this, groups have a colour ramp and no legend.
MOST_COLOURS = 10
# Maximum number of hosts listed in a text.
MOST_HOST_LINES = 32
# With more devices than this, the frames of hosts have no names.
MOST_NAMED = 256
# With more hosts than this, frames are not drawn: they'd be too fine to see.
MOST_FRAMES = 1024


def draw_mesh(
    mesh: MeshSpec,
    by: str = "mesh",
    colour: str | None = None,
    title: str | None = None,
    topology: Topology | str | None = None,
    collective: Collective | None = None,
) -> Picture:
    """Draws the devices of a mesh.

    Args:
        mesh: the mesh.
        by: how devices are arranged: `"mesh"` along the mesh axes, `"host"` host by
            host, `"position"` by their position in a described topology.
        colour: a mesh axis to colour by; None to colour by host.
        title: the title of the picture.
        topology: for `"position"`, a Topology or its text, `"tpu:v5e:4x4"`.
        collective: for `"position"`, a collective of a Report or Plan; its links are
            drawn.

    Raises:
        MeshError: for an axis that the mesh lacks, or an unknown `by`.
        TargetError: if the mesh does not fit the topology.

    >>> from shardviz.base.mesh import make_mesh
    >>> draw_mesh(make_mesh(data=4, model=2)).device_ids().tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    _check_order(by, ("mesh", "host", "position"))
    if by == "position":
        if topology is None:
            raise MeshError("A position needs a topology, such as 'tpu:v5e:4x4'.")
        return draw_position(mesh, topology, collective, colour, title)
    tiles = DeviceTiles(mesh, tile_counts(mesh.axis_sizes))
    if colour is None:
        count, names = len(mesh.processes), [f"host {p}" for p in mesh.processes[:10]]
        groups = tiles.hosts
        if not mesh.even_hosts:
            groups = np.searchsorted(mesh.processes, groups)
    else:
        count = mesh.require_axis(colour)
        names = [f"{colour} {number}" for number in range(count)]
        stride = math.prod(mesh.axis_sizes[mesh.positions[colour] + 1 :])
        groups = tiles.first // stride % count
    legend: list[tuple[int, str]] = []
    # A single host needs no legend, but a mesh axis of size 1 gets a legend.
    if count <= MOST_COLOURS and (count > 1 or colour is not None):
        legend = list(enumerate(names))
    return _devices(
        tiles,
        groups,
        by,
        title=titled(title, f"mesh {mesh}"),
        legend=legend,
        groups=max(count, 1),
        # Hosts are not a mesh axis, so they are grey.
        shades=(Shade(mesh.positions[colour] if colour else -1, count, 1),),
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
    """Draws a layout's devices, coloured by the block of the array that each holds.

    Args:
        by: `"mesh"` or `"host"`, as in `draw_mesh`.
        layout: the layout.
        name: the name of the array.
        title: the title of the picture.
        legend: whether to add a legend of blocks, if there are at most ten.
    """
    check_drawable(layout)
    _check_order(by, ("mesh", "host"))
    tiles = DeviceTiles(layout.mesh, tile_counts(layout.mesh.axis_sizes))
    # Use the block numbers, and so the colours, of the array's picture.
    groups, entries = tiles.blocks(layout), []
    if legend and 1 < layout.num_blocks <= MOST_COLOURS:
        for block in range(layout.num_blocks):
            bounds = index_text(layout.block_counts, layout.shard_shape, block)
            entries.append((block, name + bounds))
    array = array_title(layout, name)
    return _devices(
        tiles,
        groups,
        by,
        title=titled(title, wording.by_block(array)),
        legend=entries,
        groups=max(layout.num_blocks, 1),
        shades=layout_shades(layout),
        alt=f"{_alt(layout.mesh, by)} {wording.coloured_by_block(layout, array)}",
    )


def _check_order(by: object, orders: Sequence[str]) -> None:
    """Raises for any other arrangement of devices."""
    if by not in orders:
        raise MeshError(
            f"Devices are arranged by {listed(orders, 'or')}; got {shown(by)}."
        )


def _devices(tiles: DeviceTiles, group: np.ndarray, by: str, **more: Any) -> Picture:
    """Draws the page of a mesh.

    Args:
        tiles: the tiles, each for one or several devices.
        group: int64 [tiles]: the group of each tile.
        by: `"mesh"` or `"host"`.
        more: further arguments of `page`.
    """
    mesh, columns = tiles.mesh, {}
    cell, gap = _cell(tiles)
    text: Template = (Slot(DEVICE),)
    notes, arrange_by = [], _by_mesh
    if tiles.length > 1:
        # Tiles of several devices cannot be arranged by host.
        text = (f"{tiles.length:,} devices",)
        notes.append(wording.tile_of_devices(tiles.length, by == "host"))
    elif by == "host":
        arrange_by = _by_host
        text += ("\n", *coordinates(tiles.counts, mesh.axis_names))
    corners, labels, frames, sides, size = arrange_by(tiles, cell, gap)
    # Host names are on frames; without frames, they are in the tiles.
    several = len(mesh.processes) > 1
    if several and tiles.length == 1 and by == "mesh" and not frames:
        text, columns = (*text, "\nhost ", Slot("host")), {"host": tiles.hosts}
    drawn_tiles = make_tiles(
        corners[0],
        corners[1],
        cell[0],
        cell[1],
        group,
        tiles.ids,
        text=text,
        columns=columns,
        align="start" if cell[0] > 50 else "middle",
        radius=min(5.0, cell[0] * 0.12),
    )
    return page(
        drawn_tiles,
        labels,
        notes=notes,
        frames=frames,
        rulers=sides,
        size=size,
        facts={"by": by},
        **more,
    )


def _cell(tiles: DeviceTiles) -> tuple[tuple[float, float], float]:
    """Returns width and height of a tile, and the gap between tiles, in points."""
    count = math.prod(tiles.counts)
    _, (width, height), gap = next(v for v in _SIZES if count <= v[0])
    if count <= 1024 and tiles.length == 1:
        # Ids that the user chose can be long.
        width = max(width, text_width(str(tiles.ids.max()), 7.0) + 5)
        # Frames around hosts have names, which need space.
        if count <= MOST_NAMED and len(tiles.mesh.processes) > 1:
            gap = max(gap, NAME_GAP)
    return (width, height), gap


def shown_axes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the mesh axes to show: all of size > 1, and one of size 1 if there is room.

    >>> shown_axes((1, 4, 1, 2)), shown_axes((1, 4)), shown_axes((64, 1)), shown_axes((1, 1, 1))
    ((1, 3), (0, 1), (0,), (2,))
    """
    long = tuple(axis for axis, size in enumerate(sizes) if size > 1)
    if not long:
        return (len(sizes) - 1,)
    if len(sizes) == 2 and sizes[long[0]] <= 8:
        return (0, 1)
    return long


# Tile corners (float64 [2, tiles]), labels, frames, rulers, and the page size.
_Arrangement = tuple[
    np.ndarray, list[Label], list[Frame], list[Ruler], tuple[float, float]
]


def _by_mesh(tiles: DeviceTiles, cell: tuple[float, float], gap: float) -> _Arrangement:
    mesh = tiles.mesh
    grid = arrange(tiles.counts, cell, gap, shown_axes(tiles.counts))
    frames = host_frames(mesh, grid.corners(), cell, gap)
    edge = gap / 2 if frames else 0.0

    def words(level: Level, entry: int) -> tuple[str, str]:
        span, first = tiles.spans[level.axis], entry * level.span
        last = min(first + level.span, level.size) * span - 1
        return mesh.axis_names[level.axis], range_words(first * span, last)

    # If rows are lower than their labels, leave space between the column labels and the
    # first row label.
    around = headers(grid, words, (edge, max(edge, 6.0 - cell[1] / 2)))
    left, top = around.left, around.top
    corners = grid.corners() + np.array([[left], [top]])
    outlines = [replace(f, x=f.x + left, y=f.y + top) for f in frames]
    size = (left + grid.width + edge, top + grid.height + edge)

    def named(axis: int) -> tuple[tuple[str, ...], tuple[RulerAxis, ...]]:
        return ("",), ((axis, mesh.axis_names[axis], mesh.axis_sizes[axis]),)

    sides = []
    for ruler in rulers(grid, named, tiles.spans):
        sides.append(replace(ruler, start=top if ruler.down else left))
    return corners, moved(around.labels, left, top), outlines, sides, size


def range_words(first: int, last: int) -> str:
    """Formats a range of coordinates: `3`, or `0–63`."""
    if last <= first:
        return str(first)
    return f"{first}–{last}"


def _by_host(tiles: DeviceTiles, cell: tuple[float, float], gap: float) -> _Arrangement:
    """Arranges each host's devices as a small grid, and the hosts as a larger grid."""
    processes = tiles.mesh.processes
    host = np.searchsorted(processes, tiles.hosts)
    order, counts = np.argsort(host, kind="stable"), np.bincount(host)
    # The index of each device within its host.
    number = np.empty(len(host), np.int64)
    number[order] = np.arange(len(host)) - np.repeat(np.cumsum(counts) - counts, counts)
    most = int(counts.max())
    across = min(most, 1 << int(np.log2(max(1.0, 1.5 * most**0.5))))
    # Don't wrap a host's grid to the page width; only the grid of hosts is wrapped.
    inner = arrange((-(-most // across), across), cell, gap, (0, 1), page=(1e9, 1e9))
    # Leave space for the host's name on the upper edge of its frame.
    head, name_width = 0.0, 0.0
    if cell[1] >= 15:
        head = 7.0
        name_width = text_width(f"host {processes[-1]}", 7.5) + 14
    block = (max(inner.width + gap, name_width), inner.height + gap + head)
    outer = arrange((len(counts),), block, gap + min(6.0, cell[1] * 0.3), (0,))
    blocks = outer.corners()
    frames = []
    if len(counts) <= MOST_FRAMES:
        for (x, y), process in zip(blocks.T.tolist(), processes, strict=True):
            frames.append(
                Frame(
                    x,
                    y + head,
                    block[0],
                    block[1] - head,
                    f"host {process}",
                    named=bool(head),
                )
            )
    inside = inner.corners()[:, number] + np.array([[gap / 2], [head + gap / 2]])
    size = outer.width, outer.height
    return blocks[:, host] + inside, [], frames, [], size


def _alt(mesh: MeshSpec, by: str) -> str:
    return wording.mesh_alt(mesh, by, mesh_ids_text(mesh, limit=200))


def mesh_text(mesh: MeshSpec, width: int) -> str:
    """Writes a mesh as a table of device ids in mesh order, or as ranges of ids.

    >>> from shardviz.base.mesh import make_mesh
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
        # Only the first column shows the axis name.
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
    """Names the hosts of a row."""
    distinct = list(dict.fromkeys(hosts))
    if len(distinct) == 1:
        return f"host {distinct[0]}"
    # If hosts alternate, list the host of every device in the row.
    if hosts != sorted(hosts):
        distinct = hosts
    return f"hosts {ids_text(distinct)}"


def _ranges(mesh: MeshSpec, width: int) -> list[str]:
    """Writes ids as ranges, with a line for each coordinate of the leading axes."""
    names, sizes, outer = mesh.axis_names, mesh.axis_sizes, 0
    while outer < len(sizes) - 1 and math.prod(sizes[: outer + 1]) <= MOST_LINES // 2:
        outer += 1
    if not outer:
        return wrapped(wording.ids_in_order(names, mesh_ids_text(mesh)), width, "  ")
    lines = []
    for index in np.ndindex(*sizes[:outer]):
        pairs = zip(names, index, strict=False)
        coordinate = ", ".join(f"{name} {number}" for name, number in pairs)
        lines += wrapped(f"{coordinate}: {mesh_ids_text(mesh, index)}", width, "  ")
    return lines


def _host_lines(mesh: MeshSpec, width: int) -> list[str]:
    """Lists hosts in one line if each has consecutive devices; else one per line."""
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
