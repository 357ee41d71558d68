"""Topologies: devices by position, and the links that a collective uses; rooflines as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.hardware.interconnect import LinkUse, device_rows
from shardviz.core.hardware.topology import Topology
from shardviz.core.hardware.torus import Torus
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import Bound, Roofline, collective_link_use, collective_name
from shardviz.picture.ids import ids_text
from shardviz.picture.page import page, text_width
from shardviz.picture.picture import (
    DEVICE,
    MANY_GROUPS,
    Picture,
    Slot,
    Template,
    Tiles,
    coordinates,
    make_tiles,
)
from shardviz.picture.report import amount_text
from shardviz.picture.tables import MOST_LINES, wrapped
from shardviz.picture.topology_page import Board, board, connection_edges


def draw_position(
    mesh: MeshSpec,
    topology: Topology | str,
    collective: Collective | None = None,
    colour: str | None = None,
    title: str | None = None,
    links: LinkUse | None = None,
    bare: bool = False,
) -> Picture:
    """The devices of a mesh where they stand, with the links between their chips.

    Args:
        topology: where they stand, or its text: `"tpu:v5e:4x4"`.
        collective: of a Report or Plan: its groups are coloured, and the links that it uses; the
            wider a link, the more it carries.
        colour: without a collective, a mesh axis to colour by; the first one where None.
        title: `""` for none.
        links: what `collective_links` finds for the collective, where it was asked already.
        bare: leaves out what stands below the devices: legend and notes.

    Raises:
        TargetError: where the mesh does not fit the topology.
        MeshError: for an axis that the mesh lacks.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> picture = draw_position(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> len(picture.tiles), len(picture.edges), len(picture.frames)
    (16, 24, 4)
    """
    place = Topology.parse(topology) if isinstance(topology, str) else topology
    rows = device_rows(mesh, place)
    placed = board(place)
    if collective is not None and links is None:
        links = collective_link_use(collective, mesh, place)
    if links is None:
        groups, count, legend = _by_axis(mesh, colour)
    else:
        groups, count, legend = _by_group(links, place, rows)
    about: Template = (" · ", *coordinates(mesh.axis_names, mesh.axis_sizes))
    tiles = _tiles(placed, rows, groups, mesh.device_ids.reshape(-1), about, _short(mesh))
    head = f"mesh {mesh} on {place}"
    if collective is not None:
        head = f"{collective_name(collective)} on {place}"
    edges = connection_edges(placed, links)
    notes = [place.words(), *_stroke_notes(placed), *_link_notes(links, collective, count)]
    if (edges.group == MANY_GROUPS).any():
        notes.append("Grey links serve several groups.")
    return page(
        tiles,
        placed.labels(),
        title=head if title is None else title,
        notes=[] if bare else notes,
        legend=[] if bare else legend,
        frames=placed.frames(),
        size=placed.size,
        edges=edges,
        groups=count,
        hue="blocks" if count <= 10 else "ramp",
        alt=_alt(mesh, place, notes),
        facts={"kind": "devices", "by": "position"},
    )


def draw_topology(topology: Topology, title: str | None = None) -> Picture:
    """A described topology: its devices, hosts, slices and links.

    >>> picture = draw_topology(Topology.parse("tpu:v5p:4x4x4"))
    >>> len(picture.tiles), len(picture.frames)
    (64, 16)
    """
    placed = board(topology)
    rows = np.arange(topology.devices)
    tiles = _tiles(placed, rows, topology.slice_indices, topology.device_ids, (), ())
    count = topology.slices
    legend = [(i, f"slice {i}") for i in range(count)] if 1 < count <= 10 else []
    return page(
        tiles,
        placed.labels(),
        title=str(topology) if title is None else title,
        notes=[topology.words(), *_stroke_notes(placed)],
        legend=legend,
        frames=placed.frames(),
        size=placed.size,
        edges=connection_edges(placed, None),
        groups=count,
        hue="blocks" if count <= 10 else "ramp",
        alt=f"{topology}: {topology.words()} Device ids: {ids_text(topology.device_ids, 200)}.",
        facts={"kind": "devices", "by": "position"},
    )


def _by_axis(mesh: MeshSpec, colour: str | None) -> tuple[np.ndarray, int, list]:
    long = [name for name, size in mesh.shape.items() if size > 1]
    axis = colour if colour is not None else (long or list(mesh.axis_names))[0]
    count = mesh.require_axis(axis)
    lane = np.broadcast_to(mesh.lane(axis), mesh.axis_sizes).reshape(-1)
    legend = [(i, f"{axis} {i}") for i in range(count)] if 1 < count <= 10 else []
    return lane, count, legend


def _by_group(links: LinkUse, topology: Topology, rows: np.ndarray) -> tuple[np.ndarray, int, list]:
    """Each device in the colour of its group; of a chip with several groups, its own device's."""
    chips = links.torus.chip_of[rows]
    groups = np.maximum(links.chip_group[chips], 0)
    count = int(max(links.chip_group.max(), links.owner.max(initial=-1))) + 1
    legend = [(i, f"group {i}") for i in range(count)] if 1 < count <= 10 else []
    return groups, max(1, count), legend


def _short(mesh: MeshSpec) -> Template:
    """`0, 3`: the coordinates alone, for the second line of a tile."""
    parts = [p for p in coordinates(mesh.axis_names, mesh.axis_sizes) if isinstance(p, Slot)]
    joined: list[str | Slot] = []
    for part in parts:
        joined += [", ", part] if joined else [part]
    return tuple(joined)


def _tiles(
    placed: Board,
    rows: np.ndarray,
    groups: Any,
    ids: np.ndarray,
    about: Template,
    second: Template,
) -> Tiles:
    topology, torus = placed.topology, placed.torus
    chips, cores = torus.chip_of[rows], topology.cores[rows]
    each = topology.chip.devices
    seam = 0.0 if each == 1 else min(2.0, placed.gap * 0.2)
    width = (placed.cell[0] - seam * (each - 1)) / each
    x, y = placed.corners[:, chips]
    names = ("x", "y", "z")[: len(torus.shape)] if torus.shape else ("GPU",)
    hint: list[str | Slot] = ["device ", Slot(DEVICE), *about]
    columns = {"host": topology.process_indices[rows]}
    for axis, name in enumerate(names):
        columns[name] = topology.coords[rows, axis]
        hint += [" · " if axis == 0 else ", ", f"{name} ", Slot(name)]
    if each > 1:
        columns["core"] = cores
        hint += [" · core ", Slot("core")]
    hint += [" · host ", Slot("host")]
    if topology.slices > 1:
        columns["slice"] = topology.slice_indices[rows]
        hint += [" · slice ", Slot("slice")]
    wide = text_width(str(ids.max()), 8.0) + 5 <= width
    text: tuple[str | Slot, ...] = (Slot(DEVICE),) if wide else ()
    if text and second and placed.cell[1] >= 30:
        text += ("\n", *second)
    return make_tiles(
        x + cores * (width + seam),
        y,
        width,
        placed.cell[1],
        groups,
        ids,
        text=text,
        hint=tuple(hint),
        columns=columns,
        radius=min(4.0, width * 0.12),
    )


def _stroke_notes(placed: Board) -> list[str]:
    """What the strokes mean that do not lead from chip to chip."""
    parts = []
    if not placed.flat:
        parts.append(
            "Slanted strokes are links along z, up to the next plane and down to the last."
        )
    if any(placed.torus.wraps[:2]):
        parts.append("Strokes beyond an edge lead around to the other side.")
    return parts


def _link_notes(links: LinkUse | None, collective: Collective | None, groups: int) -> list[str]:
    if collective is None:
        return []
    if links is None:
        return ["Which devices take part is not known, so no links are drawn."]
    size = collective.bytes_per_device
    times = links.times(size)
    parts = []
    for name, seconds in times.items():
        least = "an unpublished rate" if seconds is None else f"at least {seconds_text(seconds)}"
        parts.append(f"{name} {least}")
    used = f"{plural(links.used, 'link')} between chips" if links.torus.shape else ""
    said = ", ".join(p for p in (used, *parts) if p) or "nothing leaves a chip"
    notes = [f"{bytes_text(size)} on each device: {said}."]
    if groups > 10:
        notes.append(f"{plural(groups, 'group')}, coloured in order from first to last.")
    return notes


def _alt(mesh: MeshSpec, topology: Topology, notes: list[str]) -> str:
    ids = ids_text(mesh.device_ids, 200)
    return (
        f"Device mesh {mesh}: {plural(mesh.size, 'device')} by their position in {topology}."
        f" {' '.join(notes)} Device ids in mesh order: {ids}."
    )


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
