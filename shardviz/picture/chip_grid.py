"""The positions of a topology's chips on a page, and the lines that are the links
between them.

Two axes of a torus are a grid; a third is drawn as planes side by side, slices as
separate blocks. Links along x and y join neighbours; links along z and wraparound links
are short lines at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardviz.core.hardware.interconnect import LinkUse, Torus
from shardviz.core.hardware.topology import Topology
from shardviz.picture.page import text_width
from shardviz.picture.picture import (
    MANY_GROUPS,
    NO_GROUP,
    Edges,
    Frame,
    Label,
    make_edges,
)

# Up to so many chips: width and height of a chip and the gap between chips, in points.
_SIZES = (
    (16, (52.0, 34.0), 24.0),
    (64, (38.0, 24.0), 17.0),
    (256, (27.0, 17.0), 11.0),
    (1024, (12.0, 12.0), 8.0),
    (4096, (7.0, 7.0), 5.0),
    (16384, (4.0, 4.0), 3.0),
    (1 << 62, (2.4, 2.4), 1.8),
)
_WIDE = 1.6  # width over height that planes and slices are arranged to
MOST_FRAMES = 512  # more are finer than a reader can see; the tooltip has the host


@dataclass(frozen=True, eq=False)
class ChipGrid:
    """The positions of a topology's chips on a page.

    Attributes:
        torus: the chips and their links.
        cell: width and height of a chip, in points.
        gap: between chips, in points.
    """

    torus: Torus
    cell: tuple[float, float]
    gap: float

    @property
    def topology(self) -> Topology:
        """The topology of the chips."""
        return self.torus.topology

    @property
    def flat(self) -> bool:
        """Whether a slice is one plane."""
        return len(self.torus.shape) < 3 or self.torus.shape[2] == 1

    @cached_property
    def plane(self) -> tuple[int, int]:
        """Chips across and down in one plane; of GPUs, those of a host and one host."""
        if not self.torus.shape:
            return self.topology.shape[1], 1
        return self.torus.shape[0], self.torus.shape[1]

    @property
    def planes(self) -> int:
        """How many planes a slice has; of GPUs, how many hosts there are."""
        if not self.torus.shape:
            return self.topology.hosts
        return (*self.torus.shape, 1, 1)[2]

    @cached_property
    def margin(self) -> float:
        """Space around a plane, for frames, wraparound links and links to other planes."""
        if any(self.torus.wraps[:2]) or not self.flat:
            return self.gap
        return self.gap * (0.7 if self.topology.slices > 1 else 0.45)

    @property
    def network_width(self) -> float:
        """Space for the network on the left of the hosts of GPUs."""
        return 12.0 * (not self.torus.shape and self.topology.hosts > 1)

    @cached_property
    def extent(self) -> tuple[float, float]:
        """Width and height of one plane with its margin, in points."""
        across, down = self.plane
        width = across * (self.cell[0] + self.gap) - self.gap + 2 * self.margin
        height = down * (self.cell[1] + self.gap) - self.gap + 2 * self.margin
        if not self.torus.shape:  # the line of NVLink is below the GPUs
            height += self.gap * 0.5
        return width + self.network_width, height

    @property
    def head(self) -> float:
        """Space for the name above each plane."""
        return 13.0 * (self.planes > 1)

    @cached_property
    def _planes_per_row(self) -> int:
        """How many planes stand side by side."""
        if not self.torus.shape and self.planes <= 12:
            return 1
        return _side_by_side(self.planes, self.extent[0], self.extent[1] + self.head)

    @cached_property
    def block(self) -> tuple[float, float]:
        """Width and height of all planes of a slice, in points."""
        rows = -(-self.planes // self._planes_per_row)
        between = self.gap
        width = self._planes_per_row * (self.extent[0] + between) - between
        return width, rows * (self.extent[1] + self.head + between) - between

    @cached_property
    def _slices_per_row(self) -> int:
        """How many slices stand side by side."""
        return _side_by_side(
            self.topology.slices, self.block[0], self.block[1] + self.slice_head
        )

    @property
    def apart(self) -> float:
        """Between slices, in points."""
        return max(18.0, 1.6 * self.gap)

    @property
    def slice_head(self) -> float:
        """Space for the name of a slice."""
        return 16.0 * (self.topology.slices > 1)

    @cached_property
    def size(self) -> tuple[float, float]:
        """Width and height of everything, in points."""
        rows = -(-self.topology.slices // self._slices_per_row)
        width, height = self.block
        return (
            self._slices_per_row * (width + self.apart) - self.apart,
            rows * (height + self.slice_head + self.apart) - self.apart,
        )

    def slice_corner(self, number: int) -> tuple[float, float]:
        """The top left corner of the planes of a slice."""
        row, column = divmod(number, self._slices_per_row)
        width, height = self.block
        return (
            column * (width + self.apart),
            row * (height + self.slice_head + self.apart) + self.slice_head,
        )

    def plane_corner(self, number: int) -> tuple[float, float]:
        """The top left corner of a plane in its slice, below its name."""
        row, column = divmod(number, self._planes_per_row)
        return (
            column * (self.extent[0] + self.gap),
            row * (self.extent[1] + self.head + self.gap) + self.head,
        )

    @cached_property
    def corners(self) -> np.ndarray:
        """float64 [2, chips]: the top left corner of every chip."""
        torus = self.torus
        slices = np.array(list(map(self.slice_corner, range(self.topology.slices))))
        planes = np.array(list(map(self.plane_corner, range(self.planes))))
        if not torus.shape:
            gpus = self.plane[0]
            host, number = np.divmod(np.arange(torus.chips), gpus)
            left = planes[host, 0] + self.network_width + self.margin
            x = left + number * (self.cell[0] + self.gap)
            return np.stack([x, planes[host, 1] + self.margin])
        x, y = torus.coords[:, 0], torus.coords[:, 1]
        z = torus.coords[:, 2] if not self.flat else 0 * x
        left = slices[torus.slice_of, 0] + planes[z, 0] + self.margin
        top = slices[torus.slice_of, 1] + planes[z, 1] + self.margin
        step = self.cell[0] + self.gap, self.cell[1] + self.gap
        return np.stack([left + x * step[0], top + y * step[1]])

    def frames(self) -> list[Frame]:
        """An outline around every host, and around every slice where there are several."""
        found = []
        if self.topology.slices > 1:
            width, height = self.block
            for number in range(self.topology.slices):
                x, y = self.slice_corner(number)
                found.append(
                    Frame(x, y, width, height, f"slice {number}", dashed=False)
                )
        if 1 < self.topology.hosts <= MOST_FRAMES:
            found += self._host_frames()
        return found

    def _host_frames(self) -> list[Frame]:
        topology, out = self.topology, self.gap * 0.36
        process, first = np.unique(topology.process_indices, return_index=True)
        x, y = self.corners[:, self.torus.chip_of[first]]
        across, down = (*topology.host_shape, 1, 1)[:2]
        if not self.torus.shape:  # the GPUs of a host stand in one row
            across, down = self.plane[0], 1
        width = across * (self.cell[0] + self.gap) - self.gap + 2 * out
        height = down * (self.cell[1] + self.gap) - self.gap + 2 * out
        if not self.torus.shape:
            height += self.gap * 0.5
        frames, dashed = [], self.gap >= 10
        for number, host in enumerate(process.tolist()):
            left, top = float(x[number] - out), float(y[number] - out)
            frames.append(Frame(left, top, width, height, f"host {host}", dashed))
        return frames

    def labels(self) -> list[Label]:
        """The names of slices, and of planes (or hosts of GPUs) where they are wide
        enough.
        """
        found = []
        for number in range(self.topology.slices):
            left, top = self.slice_corner(number)
            if self.topology.slices > 1:
                found.append(Label(left, top - 8, f"slice {number}", "start"))
            if self.planes > 1 and self.extent[0] >= 30:
                word = "z" if self.torus.shape else "host"
                for plane in range(self.planes):
                    x, y = self.plane_corner(plane)
                    x = left + x + self.network_width + self.margin - self.gap * 0.36
                    found.append(
                        Label(x, top + y - 8, f"{word} {plane}", "start", "tick")
                    )
        return found


def _side_by_side(count: int, width: float, height: float) -> int:
    """How many rectangles to a row, so that the page is well shaped and its last row
    full.
    """

    def unfit(columns: int) -> float:
        rows = -(-count // columns)
        shape = columns * width / (rows * height) / _WIDE
        return abs(math.log(shape)) + 0.9 * (rows * columns - count) / count

    return min(range(1, min(count, 400) + 1), key=unfit)


def chip_grid(topology: Topology) -> ChipGrid:
    """A topology on a page, with chips as large as their number allows.

    >>> from shardviz.core.hardware.topology import Topology
    >>> grid = chip_grid(Topology.parse("tpu:v5e:4x4"))
    >>> grid.cell, grid.corners[:, 0].round(1).tolist(), np.round(grid.size).tolist()
    ((52.0, 34.0), [10.8, 10.8], [302.0, 230.0])
    """
    _, cell, gap = next(v for v in _SIZES if topology.chips <= v[0])
    each = topology.chip.devices
    width = max(cell[0], each * cell[1])
    if topology.chips <= 256:
        width = max(width, each * (text_width(str(topology.device_ids.max()), 8.0) + 7))
    return ChipGrid(Torus(topology), (width, cell[1]), gap)


MOST_IDLE = 20_000  # idle links beyond that are finer than a reader can see
MOST_BESIDE = 1024  # chips: with more of them, idle links only hide those in use
Lines = tuple[np.ndarray, ...]  # x0, y0, x1, y1, group, width


def connection_edges(grid: ChipGrid, links: LinkUse | None) -> Edges:
    """The links of a topology as lines, those in use in the colour of their group.

    Args:
        grid: the positions of the chips.
        links: the bytes that a collective puts on each link; None for no collective.
    """
    torus = grid.torus
    if not torus.shape:
        parts = list(_cluster(grid, links))
    else:
        parts = list(_torus(grid, links))
        parts += _between_slices(grid, links)
    if not parts:
        return make_edges([], [], [], [])
    columns = [np.concatenate(values) for values in zip(*parts, strict=True)]
    # What is in use is painted last, on top.
    order = np.argsort(columns[4] != NO_GROUP, kind="stable")
    idle = int((columns[4] == NO_GROUP).sum())
    if idle > MOST_IDLE or (idle < len(order) and torus.chips > MOST_BESIDE):
        order = order[columns[4][order] != NO_GROUP]
    return make_edges(*(c[order] for c in columns))


def _line_style(
    grid: ChipGrid, load: np.ndarray, owner: np.ndarray, most: float
) -> Lines:
    """Group and width of each line, by the bytes on it."""
    group = np.where(load > 0, np.where(owner < 0, MANY_GROUPS, owner), NO_GROUP)
    thin, thick = max(0.5, grid.gap * 0.045), min(3.6, max(0.9, grid.gap * 0.32))
    share = load / (most or 1.0)
    return group, np.where(load > 0, thick * (0.45 + 0.55 * share), thin)


def _torus(grid: ChipGrid, links: LinkUse | None) -> Iterable[Lines]:
    torus = grid.torus
    middle = grid.corners + np.array([[grid.cell[0] / 2], [grid.cell[1] / 2]])
    most = 0.0
    if links is not None:
        most = float(links.ici.max(initial=0.0))
    for axis in range(len(torus.shape)):
        following = torus.next_chip(axis)
        here = np.flatnonzero(following >= 0)
        there = following[here]
        if links is None:
            load, owner = np.zeros(len(here)), np.full(len(here), NO_GROUP)
        else:
            load = np.maximum(links.ici[here, axis, 0], links.ici[there, axis, 1])
            owner = links.owner[here, axis]
        group, width = _line_style(grid, load, owner, most)
        ends = middle[:, here], middle[:, there]
        wraps = torus.coords[there, axis] < torus.coords[here, axis]
        if axis < 2:
            yield _straight(ends, group, width, ~wraps)
            yield from _wraparound(grid, ends, group, width, wraps, axis)
        else:
            yield from _along_z(grid, ends, group, width)


def _straight(
    ends: tuple, group: np.ndarray, width: np.ndarray, some: np.ndarray
) -> Lines:
    (x0, y0), (x1, y1) = ends
    return x0[some], y0[some], x1[some], y1[some], group[some], width[some]


def _wraparound(
    grid: ChipGrid,
    ends: tuple,
    group: np.ndarray,
    width: np.ndarray,
    some: np.ndarray,
    axis: int,
) -> Iterable[Lines]:
    """Wraparound links: a line out of the last chip of an axis and one into the first."""
    reach = grid.cell[axis] / 2 + grid.gap * 0.85
    for (x, y), sign in zip(ends, (1.0, -1.0), strict=True):
        out_x = x[some] + sign * reach * (axis == 0)
        out_y = y[some] + sign * reach * (axis == 1)
        yield x[some], y[some], out_x, out_y, group[some], width[some]


def _along_z(
    grid: ChipGrid, ends: tuple, group: np.ndarray, width: np.ndarray
) -> Iterable[Lines]:
    """Links along z: a slanted line up towards the next plane, and one down to the one
    before.
    """
    across, down = grid.cell[0] / 2, grid.cell[1] / 2
    reach = grid.gap * 0.32  # less than half the gap, or it would join neighbours
    for (x, y), sign in zip(ends, (1.0, -1.0), strict=True):
        x0, y0 = x + sign * across * 0.8, y - sign * down * 0.8
        x1, y1 = x + sign * (across + reach), y - sign * (down + reach)
        yield x0, y0, x1, y1, group, width


def _cluster(grid: ChipGrid, links: LinkUse | None) -> Iterable[Lines]:
    """GPUs: a line below each host for NVLink, and one on its left for the network."""
    torus, gpus = grid.torus, grid.plane[0]
    x, y = grid.corners
    middle, foot = x + grid.cell[0] / 2, y + grid.cell[1]
    bus = foot + grid.gap * 0.5
    nvlink = network = np.zeros(torus.chips)
    owner = np.full(torus.chips, NO_GROUP)
    if links is not None:
        nvlink, network, owner = links.nvlink, links.network, links.chip_group
    group, width = _line_style(grid, nvlink, owner, float(nvlink.max(initial=0.0)))
    yield middle, foot, middle, bus, group, width
    first = np.arange(0, torus.chips, gpus)
    if gpus > 1:
        host, load = _combined(nvlink, owner, gpus)
        kind, wide = _line_style(grid, load, host, float(load.max(initial=0.0)))
        start, stop = middle[first], middle[first + gpus - 1]
        yield start, bus[first], stop, bus[first], kind, wide
    if len(first) > 1:
        yield from _network_bus(grid, network, owner, gpus)


def _combined(
    load: np.ndarray, owner: np.ndarray, chips: int
) -> tuple[np.ndarray, np.ndarray]:
    """Per host, or slice, of so many chips: its group or MANY_GROUPS, and largest load."""
    loads, owners = load.reshape(-1, chips), owner.reshape(-1, chips)
    same = (owners == owners[:, :1]).all(axis=1)
    return np.where(same, owners[:, 0], MANY_GROUPS), loads.max(axis=1)


def _network_bus(
    grid: ChipGrid, network: np.ndarray, owner: np.ndarray, gpus: int
) -> Iterable[Lines]:
    x, y = grid.corners
    first = np.arange(0, len(x), gpus)
    bus = x[first] - grid.gap * 0.36 - 9.0
    level = y[first] + grid.cell[1] / 2
    host, load = _combined(network, owner, gpus)
    group, width = _line_style(grid, load, host, float(load.max(initial=0.0)))
    yield bus, level, x[first], level, group, width
    # The line that joins the hosts has the colour of a group only where that uses all.
    kind = np.array([MANY_GROUPS])
    if not load.any():
        kind = np.array([NO_GROUP])
    elif host[0] >= 0 and (host == host[0]).all():
        kind = host[:1]
    thick = np.array([width.max()])
    for x_of_bus in np.unique(bus):
        mine, x0 = level[bus == x_of_bus], np.array([x_of_bus])
        yield x0, np.array([mine.min()]), x0, np.array([mine.max()]), kind, thick


def _between_slices(grid: ChipGrid, links: LinkUse | None) -> list[Lines]:
    """The data-center network: a line from each slice to the next one on the page."""
    topology, torus = grid.topology, grid.torus
    load, owner = np.zeros(torus.parts), np.full(torus.parts, NO_GROUP)
    if links is not None:
        each = torus.chips // torus.parts
        owner, load = _combined(links.network, links.chip_group, each)
    group, width = _line_style(grid, load, owner, float(load.max(initial=0.0)))
    corners = np.array(list(map(grid.slice_corner, range(topology.slices))))
    block = grid.block
    lines = []
    for one in range(topology.slices - 1):
        (x0, y0), (x1, y1) = corners[one], corners[one + 1]
        if y0 == y1:
            ends = x0 + block[0], y0 + block[1] / 2, x1, y0 + block[1] / 2
        elif x0 == x1:
            ends = x0 + block[0] / 2, y0 + block[1], x0 + block[0] / 2, y1
        else:  # the first of a row is joined to the one above it
            above = corners[: one + 1][corners[: one + 1, 0] == x1][-1]
            ends = x1 + block[0] / 2, above[1] + block[1], x1 + block[0] / 2, y1
        points = np.array(ends)[:, None]
        lines.append((*points, group[one : one + 1], width[one : one + 1]))
    return lines
