"""Topologies: devices by their position, and the links that a collective uses; and targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardviz.core.format import bytes_text, count_text, ids_text, plural, seconds_text
from shardviz.core.hardware.interconnect import LinkUse, Torus, device_rows
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.program import Target, Targets
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use, collective_name
from shardviz.picture.chip_grid import ChipGrid, chip_grid, connection_edges
from shardviz.picture.page import page, text_width, wrapped
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
from shardviz.picture.tables import Cell, fits, matrix


def draw_position(
    mesh: MeshSpec,
    topology: Topology | str,
    collective: Collective | None = None,
    colour: str | None = None,
    title: str | None = None,
    links: LinkUse | None = None,
    bare: bool = False,
) -> Picture:
    """The devices of a mesh by their position in a topology, with the links between chips.

    Args:
        topology: a Topology or its text: `"tpu:v5e:4x4"`.
        collective: of a Report or Plan: its groups are coloured, and the links that it uses; the
            wider a link, the more bytes on it.
        colour: without a collective, a mesh axis to colour by; the first one where None.
        title: `""` for none.
        links: the result of `collective_link_use` for the collective, where it is known already.
        bare: leaves out the legend and the notes.

    Raises:
        TargetError: where the mesh does not fit the topology.
        MeshError: for an axis that the mesh lacks.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> picture = draw_position(make_mesh(data=4, model=4), "tpu:v5e:4x4")
    >>> len(picture.tiles), len(picture.edges), len(picture.frames)
    (16, 24, 4)
    """
    described = Topology.parse(topology) if isinstance(topology, str) else topology
    rows = device_rows(mesh, described)
    grid = chip_grid(described)
    if collective is not None and links is None:
        links = collective_link_use(collective, mesh, described)
    if links is None:
        groups, count, legend = _by_axis(mesh, colour)
    else:
        groups, count, legend = _by_group(links, described, rows)
    about: Template = (" · ", *coordinates(mesh.axis_names, mesh.axis_sizes))
    tiles = _tiles(grid, rows, groups, mesh.device_ids.reshape(-1), about, _short(mesh))
    head = f"mesh {mesh} on {described}"
    if collective is not None:
        head = f"{collective_name(collective)} on {described}"
    edges = connection_edges(grid, links)
    notes = [described.words(), *_line_notes(grid), *_link_notes(links, collective, count)]
    if (edges.group == MANY_GROUPS).any():
        notes.append("Grey links carry the data of several groups.")
    return page(
        tiles,
        grid.labels(),
        title=head if title is None else title,
        notes=[] if bare else notes,
        legend=[] if bare else legend,
        frames=grid.frames(),
        size=grid.size,
        edges=edges,
        groups=count,
        colormap="blocks" if count <= 10 else "ramp",
        alt=_alt(mesh, described, notes),
        facts={"kind": "devices", "by": "position"},
    )


def draw_topology(topology: Topology, title: str | None = None) -> Picture:
    """A described topology: its devices, hosts, slices and links.

    >>> picture = draw_topology(Topology.parse("tpu:v5p:4x4x4"))
    >>> len(picture.tiles), len(picture.frames)
    (64, 16)
    """
    grid = chip_grid(topology)
    rows = np.arange(topology.devices)
    tiles = _tiles(grid, rows, topology.slice_indices, topology.device_ids, (), ())
    count = topology.slices
    legend = [(i, f"slice {i}") for i in range(count)] if 1 < count <= 10 else []
    return page(
        tiles,
        grid.labels(),
        title=str(topology) if title is None else title,
        notes=[topology.words(), *_line_notes(grid)],
        legend=legend,
        frames=grid.frames(),
        size=grid.size,
        edges=connection_edges(grid, None),
        groups=count,
        colormap="blocks" if count <= 10 else "ramp",
        alt=f"{topology}: {topology.words()} Device ids: {ids_text(topology.device_ids, 200)}.",
        facts={"kind": "devices", "by": "position"},
    )


def _by_axis(mesh: MeshSpec, colour: str | None) -> tuple[np.ndarray, int, list]:
    long = [name for name, size in mesh.shape.items() if size > 1]
    axis = colour if colour is not None else (long or list(mesh.axis_names))[0]
    count = mesh.require_axis(axis)
    groups = np.broadcast_to(mesh.lane(axis), mesh.axis_sizes).reshape(-1)
    legend = [(i, f"{axis} {i}") for i in range(count)] if 1 < count <= 10 else []
    return groups, count, legend


def _by_group(links: LinkUse, topology: Topology, rows: np.ndarray) -> tuple[np.ndarray, int, list]:
    """The group of each device, how many groups there are, and the legend."""
    chips = links.torus.chip_of[rows]
    groups = np.maximum(links.chip_group[chips], 0)
    count = int(max(links.chip_group.max(), links.owner.max(initial=-1))) + 1
    legend = [(i, f"group {i}") for i in range(count)] if 1 < count <= 10 else []
    return groups, max(1, count), legend


def _short(mesh: MeshSpec) -> Template:
    """`0, 3`: the coordinates alone, for the second line of a tile."""
    text: list[str | Slot] = []
    for part in coordinates(mesh.axis_names, mesh.axis_sizes):
        if isinstance(part, Slot):
            text += [", ", part] if text else [part]
    return tuple(text)


def _tiles(
    grid: ChipGrid,
    rows: np.ndarray,
    groups: Any,
    ids: np.ndarray,
    about: Template,
    second: Template,
) -> Tiles:
    topology, torus = grid.topology, grid.torus
    chips, cores = torus.chip_of[rows], topology.cores[rows]
    each = topology.chip.devices
    gap = 0.0 if each == 1 else min(2.0, grid.gap * 0.2)
    width = (grid.cell[0] - gap * (each - 1)) / each
    x, y = grid.corners[:, chips]
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
    if text and second and grid.cell[1] >= 30:
        text += ("\n", *second)
    return make_tiles(
        x + cores * (width + gap),
        y,
        width,
        grid.cell[1],
        groups,
        ids,
        text=text,
        hint=tuple(hint),
        columns=columns,
        radius=min(4.0, width * 0.12),
    )


def _line_notes(grid: ChipGrid) -> list[str]:
    """What the lines mean that do not join two chips."""
    parts = []
    if not grid.flat:
        parts.append("Slanted lines are links along z, to the next plane and to the one before.")
    if any(grid.torus.wraps[:2]):
        parts.append("Lines that end outside the grid wrap around to the other side.")
    return parts


def _link_notes(links: LinkUse | None, collective: Collective | None, groups: int) -> list[str]:
    if collective is None:
        return []
    if links is None:
        return ["Which devices take part is not known, so no links are drawn."]
    size = collective.bytes_per_device
    parts = [f"{plural(links.used, 'link')} between chips"] if links.torus.shape else []
    for name, seconds in links.times(size).items():
        time = "at an unpublished rate" if seconds is None else f"at least {seconds_text(seconds)}"
        parts.append(f"{name} {time}")
    notes = [f"{bytes_text(size)} per device: {', '.join(parts) or 'nothing leaves a chip'}."]
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
    """A topology: what it is, then the device ids at their coordinates, where these fit.

    >>> print(topology_text(Topology.parse("tpu:v5e:2x4"), 80))
    tpu:v5e:2x4 · 8 chips of TPU v5e as 2×4 on 2 hosts; no axis closes to a ring.
          x 0  x 1
    y 0     0    1
    y 1     2    3
    y 2     4    5
    y 3     6    7
    """
    lines = wrapped(f"{topology} · {topology.words()}", width, "  ")
    planes = _planes(topology)
    if fits(planes, width):
        return "\n".join([*lines, *planes])
    ids = ids_text(np.sort(topology.device_ids))
    return "\n".join([*lines, *wrapped(f"ids {ids}", width, "  ")])


def _planes(topology: Topology) -> list[str]:
    """Planes below one another; the devices of a chip as `0/1`."""
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


_COLUMNS: tuple[str, ...] = ("devices", "hosts", "memory", "bf16 peak", "memory bandwidth")
_RUNS, _COMPILES, _MISSING = 0, 3, 2  # the colours of verdicts: good, other, bad
_LEGEND = (
    (_RUNS, "programs run on it"),
    (_COMPILES, "programs compile for it"),
    (_MISSING, "its compiler is not installed"),
)


def draw_targets(found: Targets, title: str | None = None) -> Picture:
    """Targets: a row each, with the published figures of one device.

    >>> from shardviz.core.hardware.topology import Topology
    >>> pod = Target("described", "tpu", 16, "tpu:v5e:4x4", True)
    >>> draw_targets(Targets([pod])).tiles.tooltip(2)
    'tpu:v5e:4x4: memory 16 GiB per device'
    """
    cells = []
    for row, target in enumerate(found):
        group = _MISSING if target.missing else _COMPILES if target.text else _RUNS
        for column, text in enumerate(_figures(target)):
            if text:
                hint = f"{target.name}: {_COLUMNS[column]} {text}{' per device' * (column > 1)}"
                cells.append(Cell(row, column, text, group, hint))
    listing = "; ".join(f"{t.name}: {', '.join([str(t), *_in_words(t)])}" for t in found)
    return matrix(
        [t.name for t in found],
        _COLUMNS,
        cells,
        remarks=[f"{t}{'; ' * bool(t.missing)}{t.missing}" for t in found],
        title=plural(len(found), "target") if title is None else title,
        legend=_LEGEND,
        notes=["memory, bf16 peak and memory bandwidth are per device, as published"],
        alt=f"Targets. {listing or 'none'}.",
        colormap="verdicts",
        groups=4,
        facts={"kind": "targets"},
    )


def draw_target(target: Target, title: str | None = None) -> Picture:
    """One target, as its row of the table.

    >>> draw_target(Target("cpu", "cpu", 8)).alt
    'Targets. cpu:8: CPU × 8, simulated, 8 devices.'
    """
    return draw_targets(Targets([target]), str(target) if title is None else title)


def targets_text(found: Targets, width: int) -> str:
    """Targets: how each is written, what it is, and what one device of it has.

    >>> print(targets_text(Targets([Target("described", "gpu", 16, "gpu:h100:2x8", True)]), 80))
    gpu:h100:2x8  NVIDIA H100 SXM 2×8, described · 16 devices · 2 hosts · per device
                  79.1 GiB, 989.4 TFLOP/s in bf16, 3.4 TB/s
    """
    left = max((len(t.name) for t in found), default=0)
    lines = []
    for target in found:
        parts = [str(target), *_in_words(target), target.missing]
        line = f"{target.name:<{left}}  {' · '.join(filter(None, parts))}"
        lines += wrapped(line, width, " " * (left + 2))
    return "\n".join(lines) or "no targets"


def target_text(target: Target, width: int) -> str:
    """One target in words.

    >>> print(target_text(Target("cpu", "cpu", 8), 80))
    cpu:8  CPU × 8, simulated · 8 devices
    """
    return targets_text(Targets([target]), width)


def _figures(target: Target) -> tuple[str, ...]:
    """A text for each of `_COLUMNS`; `""` where it is not known."""
    count = "" if target.count is None else f"{target.count:,}"
    topology = target.topology
    if topology is None:
        return (count,)
    chip = topology.chip
    memory, peak, bandwidth = chip.device_bytes, chip.peak_bf16, chip.hbm_bandwidth
    return (
        count,
        f"{topology.hosts:,}",
        "" if memory is None else bytes_text(memory),
        "" if peak is None else f"{count_text(peak / chip.devices)}FLOP/s",
        "" if bandwidth is None else f"{count_text(bandwidth / chip.devices)}B/s",
    )


def _in_words(target: Target) -> list[str]:
    """The same figures for a line of text."""
    figures: dict[str, str] = dict(zip(_COLUMNS, _figures(target), strict=False))
    words = [plural(target.count, "device")] if target.count is not None else []
    if target.topology is not None:
        words.append(plural(target.topology.hosts, "host"))
    device = ", ".join(
        f"{figures[name]}{unit}"
        for name, unit in (("memory", ""), ("bf16 peak", " in bf16"), ("memory bandwidth", ""))
        if figures.get(name)
    )
    return [*words, f"per device {device}"] if device else words
