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
from typing import Any

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
# Width over height that planes and slices are arranged to.
_WIDE = 1.6
# More are finer than a reader can see; the tooltip has the host.
MOST_FRAMES = 512


@dataclass(frozen=True, eq=False)
class ChipGrid:
    """The positions of a topology's chips on a page.

    Attributes:
        torus: the chips and their links; of GPUs without a shape.
        cell: width and height of a chip, in points.
        gap: between chips, in points.
        plane: chips across and down in one plane; of GPUs, those of a host and 1.
        margin: around a plane, in points.
        extent: width and height of a plane with its margin, in points.
        block: width and height of all planes of a slice, in points.
        slice_corners, plane_corners: float64 [slices or planes, 2]: the top left corner
            of each slice, and of each plane in its slice, below their names.
        size: width and height of everything, in points.
    """

    torus: Torus
    cell: tuple[float, float]
    gap: float
    plane: tuple[int, int]
    margin: float
    extent: tuple[float, float]
    block: tuple[float, float]
    slice_corners: np.ndarray
    plane_corners: np.ndarray
    size: tuple[float, float]

    @property
    def topology(self) -> Topology:
        """The topology of the chips."""
        return self.torus.topology

    @property
    def flat(self) -> bool:
        """Whether a slice is one plane."""
        return len(self.torus.shape) < 3 or self.torus.shape[2] == 1

    @cached_property
    def corners(self) -> np.ndarray:
        """float64 [2, chips]: the top left corner of every chip."""
        torus = self.torus
        if torus.shape:
            x, y = torus.coords[:, 0], torus.coords[:, 1]
            plane = 0 * x if self.flat else torus.coords[:, 2]
            first = self.plane_corners[plane] + self.slice_corners[torus.slice_of]
        else:  # the GPUs of a host stand in one row
            plane, x = np.divmod(np.arange(torus.chips), self.plane[0])
            y, first = 0 * x, self.plane_corners[plane]
        return np.stack(
            [
                first[:, 0] + self.margin + x * (self.cell[0] + self.gap),
                first[:, 1] + self.margin + y * (self.cell[1] + self.gap),
            ]
        )

    def frames(self) -> list[Frame]:
        """An outline around every host, and around every slice where there are several."""
        frames = []
        if self.topology.slices > 1:
            for number, (x, y) in enumerate(self.slice_corners.tolist()):
                name = f"slice {number}"
                frames.append(Frame(x, y, *self.block, name, dashed=False))
        if 1 < self.topology.hosts <= MOST_FRAMES:
            frames += self._host_frames()
        return frames

    def _host_frames(self) -> list[Frame]:
        topology, out = self.topology, self.gap * 0.36
        process, first = np.unique(topology.process_indices, return_index=True)
        x, y = self.corners[:, self.torus.chip_of[first]]
        across, down = (*topology.host_shape, 1, 1)[:2]
        if not self.torus.shape:
            across, down = self.plane[0], 1
        width = across * (self.cell[0] + self.gap) - self.gap + 2 * out
        height = down * (self.cell[1] + self.gap) - self.gap + 2 * out
        frames, dashed = [], self.gap >= 10
        for number, host in enumerate(process.tolist()):
            left, top = float(x[number] - out), float(y[number] - out)
            frames.append(Frame(left, top, width, height, f"host {host}", dashed))
        return frames

    def labels(self) -> list[Label]:
        """The names of slices, and of planes or hosts where they are wide enough."""
        labels, several = [], self.topology.slices > 1
        word, planes = "host", self.plane_corners.tolist()
        if self.torus.shape:
            word = "z"
        for number, (left, top) in enumerate(self.slice_corners.tolist()):
            if several:
                labels.append(Label(left, top - 8, f"slice {number}", "start"))
            if len(planes) == 1 or self.extent[0] < 30:
                continue
            for plane, (x, y) in enumerate(planes):
                x += left + self.margin - self.gap * 0.36
                name = f"{word} {plane}"
                labels.append(Label(x, top + y - 8, name, "start", "tick"))
        return labels


def chip_grid(topology: Topology) -> ChipGrid:
    """A topology on a page, with chips as large as their number allows.

    >>> from shardviz.core.hardware.topology import Topology
    >>> grid = chip_grid(Topology.parse("tpu:v5e:4x4"))
    >>> grid.cell, grid.corners[:, 0].round(1).tolist(), np.round(grid.size).tolist()
    ((52.0, 34.0), [10.8, 10.8], [302.0, 230.0])
    """
    _, (width, height), gap = next(v for v in _SIZES if topology.chips <= v[0])
    each, torus, slices = topology.chip.devices, Torus(topology), topology.slices
    width = max(width, each * height)
    if topology.chips <= 256:
        width = max(width, each * (text_width(str(topology.device_ids.max()), 8.0) + 7))
    columns = None
    across, down, planes = (*torus.shape, 1, 1, 1)[:3]
    # Around a plane: space for frames, wraparound links and links to other planes.
    margin = gap * (0.7 if slices > 1 else 0.45)
    if any(torus.wraps[:2]) or planes > 1:
        margin = gap
    # Each host is a plane.
    if not torus.shape:
        across, down, planes = topology.shape[1], 1, topology.hosts
        columns = 1 if planes <= 12 else None
    extent = (
        across * (width + gap) - gap + 2 * margin,
        down * (height + gap) - gap + 2 * margin,
    )
    plane_corners, block = _side_by_side(
        planes, extent, 13.0 * (planes > 1), gap, columns
    )
    head, apart = 16.0 * (slices > 1), max(18.0, 1.6 * gap)
    slice_corners, size = _side_by_side(slices, block, head, apart)
    return ChipGrid(
        torus,
        (width, height),
        gap,
        (across, down),
        margin,
        extent,
        block,
        slice_corners,
        plane_corners,
        size,
    )


def _side_by_side(
    count: int,
    size: tuple[float, float],
    head: float,
    apart: float,
    columns: int | None = None,
) -> tuple[np.ndarray, tuple[float, float]]:
    """Rectangles in rows: the corner of each, below its name, and the size of all.

    Args:
        head: space for the name above each.
        apart: space between them.
        columns: how many to a row; so many that the page is well shaped and its last
            row full where None.
    """
    width, height = size[0], size[1] + head

    def unfit(across: int) -> float:
        rows = -(-count // across)
        shape = across * width / (rows * height) / _WIDE
        return abs(math.log(shape)) + 0.9 * (rows * across - count) / count

    across = columns or min(range(1, min(count, 400) + 1), key=unfit)
    row, column = np.divmod(np.arange(count), across)
    top = row * (height + apart) + head
    corners = np.stack([column * (width + apart), top], axis=1).astype(float)
    rows = -(-count // across)
    return corners, (
        across * (width + apart) - apart,
        rows * (height + apart) - apart,
    )


# Idle links beyond that are finer than a reader can see.
MOST_IDLE = 20_000
# Chips: with more of them, idle links only hide those in use.
MOST_BESIDE = 1024
# X0, y0, x1, y1, group, width.
Lines = tuple[np.ndarray, ...]
# Group, width.
Style = tuple[np.ndarray, np.ndarray]


def connection_edges(grid: ChipGrid, links: LinkUse | None) -> Edges:
    """The links of a topology as lines, those in use in the colour of their group.

    Args:
        grid: the positions of the chips.
        links: the bytes that a collective puts on each link; None for no collective.
    """
    torus = grid.torus
    if links is None:
        links = LinkUse.unused(torus, np.full(torus.chips, NO_GROUP))
    # Switches join GPUs and slices: there are no lines between two of them.
    if not torus.shape:
        return make_edges([], [], [], [])
    parts = list(_torus(grid, links))
    columns = [np.concatenate(values) for values in zip(*parts, strict=True)]
    # What is in use is painted last, on top.
    order = np.argsort(columns[4] != NO_GROUP, kind="stable")
    idle = int((columns[4] == NO_GROUP).sum())
    if idle > MOST_IDLE or (idle < len(order) and torus.chips > MOST_BESIDE):
        order = order[columns[4][order] != NO_GROUP]
    return make_edges(*(c[order] for c in columns))


def _line_style(grid: ChipGrid, load: np.ndarray, owner: np.ndarray) -> Style:
    """Group and width of each line, by the bytes on it."""
    group = np.where(load > 0, np.where(owner < 0, MANY_GROUPS, owner), NO_GROUP)
    thin, thick = max(0.5, grid.gap * 0.045), min(3.6, max(0.9, grid.gap * 0.32))
    share = load / (load.max(initial=0.0) or 1.0)
    return group, np.where(load > 0, thick * (0.45 + 0.55 * share), thin)


def _torus(grid: ChipGrid, links: LinkUse) -> Iterable[Lines]:
    torus, groups = grid.torus, links.chip_group
    x, y = grid.corners + np.array([[grid.cell[0] / 2], [grid.cell[1] / 2]])
    every = []
    for axis in range(len(torus.shape)):
        following = torus.next_chip(axis)
        here = np.flatnonzero(following >= 0)
        there = following[here]
        owner = np.where(groups[here] == groups[there], groups[here], MANY_GROUPS)
        every.append((here, there, links.load(axis)[here], owner))
    # The widths of all axes are of one scale.
    loads, owners = (np.concatenate([one[n] for one in every]) for n in (2, 3))
    group, width = _line_style(grid, loads, owners)
    first = 0
    for axis, (here, there, _, _) in enumerate(every):
        style = group[first : first + len(here)], width[first : first + len(here)]
        first += len(here)
        ends = ((x[here], y[here]), (x[there], y[there]))
        around = torus.coords[there, axis] < torus.coords[here, axis]
        if axis == 2:
            yield from _along_z(grid, ends, style)
            continue
        straight = (x[here], y[here], x[there], y[there], *style)
        yield tuple(column[~around] for column in straight)
        # Around: a line out of the last chip of an axis and one into the first.
        reach = grid.cell[axis] / 2 + grid.gap * 0.85
        for (x0, y0), sign in zip(ends, (1.0, -1.0), strict=True):
            x1, y1 = x0 + sign * reach * (axis == 0), y0 + sign * reach * (axis == 1)
            yield tuple(column[around] for column in (x0, y0, x1, y1, *style))


def _along_z(grid: ChipGrid, ends: Any, style: Style) -> Iterable[Lines]:
    """A slanted line up towards the next plane, and one down to the one before."""
    across, down = grid.cell[0] / 2, grid.cell[1] / 2
    # Less than half the gap, or it would join neighbours.
    reach = grid.gap * 0.32
    for (x, y), sign in zip(ends, (1.0, -1.0), strict=True):
        x0, y0 = x + sign * across * 0.8, y - sign * down * 0.8
        x1, y1 = x + sign * (across + reach), y - sign * (down + reach)
        yield x0, y0, x1, y1, *style
