"""Pictures of topologies: devices by position, and a collective's links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardviz.base.collective import Collective
from shardviz.base.format import ids_text
from shardviz.base.mesh import MeshSpec
from shardviz.draw.page import page, sentences, text_width, titled, wrapped
from shardviz.draw.palette import Shade
from shardviz.draw.picture import (
    DEVICE,
    MANY_GROUPS,
    Picture,
    Slot,
    Template,
    Tiles,
    coordinates,
    make_tiles,
)
from shardviz.draw.tables import fits, split_axis
from shardviz.hardware.draw.chip_grid import (
    ChipGrid,
    chip_grid,
    connection_edges,
    has_edges,
)
from shardviz.hardware.interconnect import (
    LinkUse,
    Torus,
    collective_link_use,
    device_rows,
)
from shardviz.hardware.topology import Topology
from shardviz.hardware.words import links as wording

# Maximum number of groups with distinct colours and a legend.
MOST_COLOURS = 10


def draw_position(
    mesh: MeshSpec,
    topology: Topology | str,
    collective: Collective | None = None,
    colour: str | None = None,
    title: str | None = None,
    links: LinkUse | None = None,
    bare: bool = False,
) -> Picture:
    """Draws a mesh's devices at their positions in a topology, and the links.

    Args:
        mesh: the mesh.
        topology: a Topology or its text: `"tpu:v5e:4x4"`.
        collective: a collective of a Report or Plan. Its replica groups and links are
            coloured; links with more bytes are wider.
        colour: without a collective, a mesh axis to colour by; by default the first
            axis along which devices differ.
        title: the title of the picture.
        links: the result of `collective_link_use`, if already computed.
        bare: True to omit legend and notes, and to colour each link by mesh axis: the
            collective's, or the one along which the link's chips differ.

    Raises:
        TargetError: if the mesh does not fit the topology.
        MeshError: for an axis that the mesh lacks.

    >>> from shardviz.base.mesh import make_mesh
    >>> picture = draw_position(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> len(picture.tiles), len(picture.edges), len(picture.frames)
    (16, 24, 4)
    """
    if isinstance(topology, str):
        topology = Topology.parse(topology)
    rows, grid = device_rows(mesh, topology), chip_grid(topology)
    head = f"mesh {mesh} on {topology}"
    if collective is not None:
        head = f"{collective.name_with_axes} on {topology}"
        links = links or collective_link_use(collective, mesh, topology)
    if links is None:
        groups, count, name, axis = _by_axis(mesh, colour)
    else:
        groups, count, name = _by_group(links, rows)
        axis = _first_axis(mesh, collective)
    tiles = _tiles(grid, rows, groups, mesh.device_ids.reshape(-1), mesh)
    along = None
    if bare and has_edges(grid, links):
        along = _axes_of_links(mesh, grid.torus, rows)
        # For a collective over one mesh axis, give all links that axis's colour: bytes
        # may pass through chips that differ along another axis.
        if collective is not None and len(collective.mesh_axes) == 1:
            name = collective.mesh_axes[0].split(":(")[0]
            along[:] = mesh.positions.get(name, MANY_GROUPS)
    edges = connection_edges(grid, links, along)
    notes = _notes(grid)
    if collective is not None:
        notes += wording.link_lines(links, collective, count, count > MOST_COLOURS)
    if (edges.group == MANY_GROUPS).any():
        notes.append(wording.GREY_LINKS)
    legend = _legend(name, count)
    if bare:
        notes, legend = [], []
    return page(
        tiles,
        grid.labels,
        title=titled(title, head),
        notes=notes,
        legend=legend,
        frames=grid.frames,
        size=grid.size,
        edges=edges,
        alt=sentences([wording.by_position(mesh, topology), *notes]),
        **_colours(count, axis),
    )


def draw_topology(topology: Topology, title: str | None = None) -> Picture:
    """Draws a topology: its devices, hosts, slices and links."""
    grid, count = chip_grid(topology), topology.slices
    rows, ids = np.arange(topology.devices), topology.device_ids
    return page(
        _tiles(grid, rows, topology.slice_indices, ids),
        grid.labels,
        title=titled(title, str(topology)),
        notes=_notes(grid),
        legend=_legend("slice", count),
        frames=grid.frames,
        size=grid.size,
        edges=connection_edges(grid, None),
        alt=wording.topology_alt(topology),
        **_colours(count),
    )


def _colours(count: int, axis: int = -1) -> dict[str, Any]:
    """Returns arguments of `page` to colour groups by a mesh axis, or grey for -1."""
    colormap = "blocks" if count <= MOST_COLOURS else "ramp"
    return {
        "groups": count,
        "colormap": colormap,
        "shades": (Shade(axis, count, 1),),
        "facts": {"by": "position"},
    }


def _first_axis(mesh: MeshSpec, collective: Collective | None) -> int:
    """Returns the position of a collective's first mesh axis; -1 if it has none."""
    if collective is None or not collective.mesh_axes:
        return -1
    return mesh.positions.get(split_axis(collective.mesh_axes[0], mesh.shape)[0], -1)


def _legend(name: str, count: int) -> list[tuple[int, str]]:
    """Returns the legend of colours; empty for one colour or too many."""
    if not 1 < count <= MOST_COLOURS:
        return []
    return [(number, f"{name} {number}") for number in range(count)]


def _by_axis(mesh: MeshSpec, colour: str | None) -> tuple[np.ndarray, int, str, int]:
    """Returns each device's group, the group count, the axis name and its position."""
    if colour is None:
        longer = [name for name, size in mesh.shape.items() if size > 1]
        colour = (longer or mesh.axis_names)[0]
    count = mesh.require_axis(colour)
    groups = np.broadcast_to(mesh.lane(colour), mesh.axis_sizes).reshape(-1)
    return groups, count, colour, mesh.positions[colour]


def _by_group(links: LinkUse, rows: np.ndarray) -> tuple[np.ndarray, int, str]:
    groups = np.maximum(links.chip_group[links.torus.chip_of[rows]], 0)
    count = int(links.chip_group.max()) + 1
    return groups, max(1, count), "group"


def _axes_of_links(mesh: MeshSpec, torus: Torus, rows: np.ndarray) -> np.ndarray:
    """Returns int64 [chips, axes]: the mesh axis along which a link's chips differ.

    The value is MANY_GROUPS if they differ along several mesh axes.
    """
    axes = np.full((torus.chips, len(torus.shape)), MANY_GROUPS)
    positions = np.zeros(torus.chips, np.int64)
    positions[torus.chip_of[rows]] = np.arange(mesh.size)
    coords = np.stack(np.unravel_index(positions, mesh.axis_sizes))
    for axis in range(len(torus.shape)):
        differ = coords != coords[:, torus.next_chip(axis)]
        along_one = differ.sum(axis=0) == 1
        axes[along_one, axis] = differ.argmax(axis=0)[along_one]
    return axes


def _tiles(
    grid: ChipGrid,
    rows: np.ndarray,
    groups: np.ndarray,
    ids: np.ndarray,
    mesh: MeshSpec | None = None,
) -> Tiles:
    """Creates a tile per device; the devices of a chip share its cell.

    Args:
        grid: the positions of the chips.
        rows: int64 [devices]: each device's position in the topology's device order.
        groups: int64 [devices]: the group of each device.
        ids: int64 [devices]: the id of each device.
        mesh: if given, tiles with enough space show mesh coordinates in a second line.
    """
    topology, torus = grid.topology, grid.torus
    chips, cores = torus.chip_of[rows], topology.cores[rows]
    devices = topology.chip.devices
    gap = min(2.0, grid.gap * 0.2) * (devices > 1)
    width = (grid.cell[0] - gap * (devices - 1)) / devices
    x, y = grid.corners[:, chips]
    text: Template = ()
    if text_width(str(ids.max()), 8.0) + 5 <= width:
        text = (Slot(DEVICE),)
        if mesh is not None and grid.cell[1] >= 30:
            text += ("\n", *coordinates(mesh.axis_sizes))
    return make_tiles(
        x + cores * (width + gap),
        y,
        width,
        grid.cell[1],
        groups,
        ids,
        text=text,
        radius=min(4.0, width * 0.12),
    )


def _notes(grid: ChipGrid) -> list[str]:
    """Describes the topology, host spacing and wraparound lines in sentences."""
    notes = [grid.topology.words()]
    if grid.solid and grid.topology.hosts > 1:
        notes.append(wording.CLOSER_HOSTS)
    if any(grid.torus.wraps):
        notes.append(wording.WRAPAROUND_LINES)
    return notes


def topology_text(topology: Topology, width: int) -> str:
    """Writes a description, then device ids at their coordinates, or as ranges.

    >>> print(topology_text(Topology.parse("tpu:v5e:2x4"), 80))
    tpu:v5e:2x4 · 8 TPU v5e chips as 2×4 on 2 hosts of 4 chips; no axis forms a ring.
          x 0  x 1
    y 0     0    1
    y 1     2    3
    y 2     4    5
    y 3     6    7
    """
    lines = wrapped(f"{topology} · {topology.words()}", width, "  ")
    planes = _planes(topology)
    if not fits(planes, width):
        ids = ids_text(np.sort(topology.device_ids))
        planes = wrapped(f"ids {ids}", width, "  ")
    return "\n".join([*lines, *planes])


def _planes(topology: Topology) -> list[str]:
    """Writes planes one below the other; devices of a chip are joined, as in `0/1`."""
    torus, slices = Torus(topology), topology.slices
    order = np.argsort(torus.chip_of, kind="stable")
    ids = topology.device_ids[order].reshape(torus.chips, -1)
    cells = ["/".join(map(str, row)) for row in ids.tolist()]
    (down, across), names, planes = topology.shape[:2], ("GPU", "host"), 1
    if torus.shape:
        across, down, names = torus.shape[0], torus.shape[1], ("x", "y")
        planes = torus.chips // (across * down) // slices
    heads, sides = _counted(names[0], across), _counted(names[1], down)
    width = max(map(len, [*cells, *heads])) + 2
    margin = max(map(len, sides)) + 1
    lines = []
    for plane in range(planes * slices):
        head = []
        if slices > 1:
            head.append(f"slice {plane // planes}")
        if planes > 1:
            head.append(f"z {plane % planes}")
        if head:
            lines.append(", ".join(head))
        lines.append(" " * margin + _row(heads, width))
        for row, side in enumerate(sides):
            first = (plane * down + row) * across
            body = _row(cells[first : first + across], width)
            lines.append(f"{side:<{margin}}{body}")
    return lines


def _counted(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def _row(cells: Sequence[str], width: int) -> str:
    return "".join(f"{cell:>{width}}" for cell in cells)
