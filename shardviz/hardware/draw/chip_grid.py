"""The positions of a topology's chips on a page, and the lines that are the links
between them.

Two axes of a torus are a grid. Of three, the planes of two axes lie on top of each
other, each drawn in parallel perspective: so no chip covers another, and every link to
a neighbour is a short straight line. Slices are separate blocks, and so are the hosts
of GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from shardviz.draw.page import text_width
from shardviz.draw.picture import (
    MANY_GROUPS,
    NO_GROUP,
    Edges,
    Frame,
    Label,
    make_edges,
)
from shardviz.hardware.interconnect import LinkUse, Torus
from shardviz.hardware.topology import Topology

# Up to so many chips: width and height of a chip and the gap between chips, in points.
_SIZES = (
    (16, (54.0, 44.0), 20.0),
    (64, (40.0, 33.0), 14.0),
    (256, (26.0, 23.0), 8.0),
    (1024, (13.0, 12.0), 7.0),
    (4096, (7.0, 7.0), 5.0),
    (16384, (4.0, 4.0), 3.0),
    (1 << 62, (2.4, 2.4), 1.8),
)
# Of three axes: up to so many chips, the width of a chip with its gap.
_PITCHES = ((64, 54.0), (256, 36.0), (1024, 24.0), (4096, 11.0), (1 << 62, 6.0))
# Parts of that: the width of a chip; a row of a plane to the right of the one before it;
# and how much farther apart chips of two hosts are than chips of one.
_CHIP, _ASIDE, _HOST = 0.68, 0.38, 0.16
# How far a row is above the one before it, where one looks from above, and rather from
# the side; parts of that: the height of a chip, and the gap between planes.
_TILTS, _HIGH, _APART = (0.48, 0.36), 0.84, 1.5
# Width and height of the page that three axes are arranged for.
_PAGE = (300.0, 340.0)
# Of the scale that planes in several columns, and axes in an unusual order, have to win.
_COLUMNS_COST, _ORDER_COST = 0.75, 0.85
# Width over height that planes and slices are arranged to.
_WIDE = 0.9
# More are finer than a reader can see.
MOST_FRAMES = 512


@dataclass(frozen=True, eq=False)
class ChipGrid:
    """The positions of a topology's chips on a page, in points.

    Attributes:
        torus: the chips and their links; of GPUs without a shape.
        cell: width and height of a chip.
        gap: between chips.
        corners: float64 [2, chips]: the top left corner of every chip.
        stubs: float64 [axes, 2]: from the middle of the last chip of an axis to the end
            of the line that stands for its link to the first one.
        breaks: by axis how many chips stand in one line, before the next of them are
            elsewhere on the page; 0 where all do.
        frames: outlines around hosts and slices.
        labels: the names of axes, slices and hosts.
        size: width and height of everything.
    """

    torus: Torus
    cell: tuple[float, float]
    gap: float
    corners: np.ndarray
    stubs: np.ndarray
    size: tuple[float, float]
    breaks: tuple[int, ...] = (0, 0, 0)
    frames: tuple[Frame, ...] = ()
    labels: tuple[Label, ...] = ()

    @property
    def topology(self) -> Topology:
        """The topology of the chips."""
        return self.torus.topology

    @property
    def solid(self) -> bool:
        """Whether three axes are drawn."""
        return len(self.torus.shape) == 3 and self.torus.shape[2] > 1


def chip_grid(topology: Topology) -> ChipGrid:
    """A topology on a page, with chips as large as their number allows.

    >>> from shardviz.hardware.topology import Topology
    >>> grid = chip_grid(Topology.parse("tpu:v5e:4x4"))
    >>> grid.cell, grid.corners[:, 0].round(1).tolist(), np.round(grid.size).tolist()
    ((54.0, 44.0), [10.0, 10.0], [296.0, 256.0])
    """
    torus = Torus(topology)
    if not torus.shape:
        return _hosts_of_gpus(torus)
    grid = _plane(torus)
    if grid.solid:
        grid = _planes(torus)
    if topology.slices > 1:
        return _slices(grid)
    return grid


def _chip_size(topology: Topology) -> tuple[float, float, float]:
    """Width and height of a chip in a grid, and the gap around it."""
    _, (width, height), gap = next(v for v in _SIZES if topology.chips <= v[0])
    each = topology.chip.devices
    width = max(width, each * height)
    if topology.chips <= 256:
        width = max(width, each * (text_width(str(topology.device_ids.max()), 8.0) + 7))
    return width, height, gap


def _plane(torus: Torus) -> ChipGrid:
    """One slice of two axes, as a grid with a frame around every host."""
    topology = torus.topology
    width, height, gap = _chip_size(topology)
    # Around it: space for frames and for the lines of wraparound links.
    margin = gap * 0.5
    if any(torus.wraps[:2]) or topology.slices > 1:
        margin = gap
    across, down = torus.shape[:2]
    steps = np.array([width + gap, height + gap])
    corners = margin + torus.coords[: across * down, :2].T * steps[:, None]
    size = (
        across * (width + gap) - gap + 2 * margin,
        down * (height + gap) - gap + 2 * margin,
    )
    out = np.array([width, height]) / 2 + gap * 0.85
    stubs = np.zeros((3, 2))
    stubs[:2] = np.diag(out)
    grid = ChipGrid(torus, (width, height), gap, corners, stubs, size)
    # Of one slice: all have the same hosts in the same places.
    return replace(grid, frames=tuple(_host_frames(grid, topology.host_shape[:2])))


def _host_frames(grid: ChipGrid, shape: tuple[int, ...]) -> list[Frame]:
    """An outline around every host that has chips among the corners.

    Those of neighbours are one line: half of the gap is on each side.
    """
    topology, out, gap = grid.topology, grid.gap * 0.5, grid.gap
    if not 1 < topology.hosts <= MOST_FRAMES:
        return []
    process, first = np.unique(topology.process_indices, return_index=True)
    chips = grid.torus.chip_of[first]
    width = shape[0] * (grid.cell[0] + gap) - gap + 2 * out
    height = shape[1] * (grid.cell[1] + gap) - gap + 2 * out
    frames = []
    for host, chip in zip(process.tolist(), chips.tolist(), strict=True):
        if chip < grid.corners.shape[1]:
            left, top = (grid.corners[:, chip] - out).tolist()
            frames.append(Frame(left, top, width, height, f"host {host}", gap >= 10))
    return frames


def _hosts_of_gpus(torus: Torus) -> ChipGrid:
    """The GPUs of a host in a few rows, and the hosts below and beside each other."""
    topology, count = torus.topology, torus.topology.hosts
    width, height, gap = _chip_size(topology)
    each, margin = topology.shape[1], gap * 0.5
    # As many rows as make a box about twice as wide as high.
    rows = max(
        n for n in range(1, each + 1) if each % n == 0 and 2 * n * n <= max(2, each)
    )
    across = each // rows
    extent = (
        across * (width + gap) - gap + 2 * margin,
        rows * (height + gap) - gap + 2 * margin,
    )
    places, size = _side_by_side(count, extent, 13.0 * (count > 1), gap)
    host, number = np.divmod(np.arange(torus.chips), each)
    corners = places[host].T + margin
    corners[0] += number % across * (width + gap)
    corners[1] += number // across * (height + gap)
    grid = ChipGrid(torus, (width, height), gap, corners, np.zeros((0, 2)), size)
    labels = []
    if count > 1 and extent[0] >= 30:
        for at, (x, y) in enumerate(places.tolist()):
            left = x
            labels.append(Label(left, y - 8, f"host {at}", "start", "tick"))
    frames = _host_frames(grid, (across, rows))
    return replace(grid, frames=tuple(frames), labels=tuple(labels))


# --- three axes -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Stack:
    """Planes on top of each other, in parts of the width of a chip with its gap.

    Attributes:
        order: which axis goes across, behind and up.
        sizes: chips along each of these.
        hosts: the chips of a host along each of these.
        columns: how many stacks stand beside each other.
        tilt: how far a row is above the one before it.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    hosts: tuple[int, ...]
    columns: int
    tilt: float

    @property
    def planes(self) -> int:
        """How many planes are in one stack."""
        return -(-self.sizes[2] // self.columns)

    def along(self, axis: int, at: np.ndarray) -> np.ndarray:
        """Where chips are along an axis, as parts of the step from one to the next."""
        host = self.hosts[axis]
        # Axes along which a host has one chip have nothing to tell apart.
        return at + _HOST * (at // host) * (host > 1)

    def length(self, axis: int, count: int) -> float:
        """From the first chip to the last of so many."""
        return float(self.along(axis, np.array(count - 1)))

    @property
    def chip(self) -> tuple[float, float]:
        """Width and height of a chip."""
        return _CHIP, _HIGH * self.tilt

    @property
    def plane(self) -> tuple[float, float]:
        """Width and height of one plane."""
        behind = self.length(1, self.sizes[1])
        return (
            self.length(0, self.sizes[0]) + behind * _ASIDE + self.chip[0],
            behind * self.tilt + self.chip[1],
        )

    @property
    def up(self) -> float:
        """From a plane to the next."""
        return self.plane[1] + _APART * self.tilt

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all planes, with the lines around them."""
        wide, high = self.plane
        stack = high + self.up * self.planes - self.up
        stack += self.length(2, self.planes) - (self.planes - 1)
        return self.columns * (wide + 2) - 1, stack + 1


def _stack(torus: Torus) -> _Stack:
    """The arrangement in which chips are largest."""

    def worth(stack: _Stack) -> float:
        (wide, high), (width, height) = stack.size, stack.chip
        scale = min(_PAGE[0] / wide, _PAGE[1] / high)
        if stack.columns > 1:
            scale *= _COLUMNS_COST
        if stack.order != (0, 1, 2):
            scale *= _ORDER_COST
        return scale * math.sqrt(width * height)

    stacks = []
    for order in permutations(range(3)):
        sizes = tuple(torus.shape[axis] for axis in order)
        hosts = tuple(torus.topology.host_shape[axis] for axis in order)
        for columns in range(1, min(4, sizes[2]) + 1):
            for tilt in _TILTS:
                stacks.append(_Stack(order, sizes, hosts, columns, tilt))
    return max(stacks, key=worth)


def _planes(torus: Torus) -> ChipGrid:
    """One slice of three axes: planes on top of each other, the first one lowest."""
    stack = _stack(torus)
    pitch = next(v for most, v in _PITCHES if math.prod(torus.shape) <= most)
    across, behind, up = stack.order
    coords = torus.coords[: math.prod(torus.shape)]
    column, plane = np.divmod(coords[:, up], stack.planes)
    x = stack.along(0, coords[:, across])
    back = stack.along(1, coords[:, behind])
    high = stack.up * plane + stack.along(2, plane) - plane
    (width, height), (wide, _) = stack.size, stack.plane
    left = 0.5 + column * (wide + 2) + x + back * _ASIDE
    top = height - 0.5 - stack.chip[1] - high - back * stack.tilt
    stubs = np.zeros((3, 2))
    stubs[across] = (0.6, 0)
    stubs[behind] = np.array([_ASIDE, -stack.tilt]) * 0.9
    stubs[up] = (0, -0.5)
    breaks = [0, 0, 0]
    if stack.columns > 1:
        breaks[up] = stack.planes
    names = [_axis_name(torus, axis) for axis in stack.order]
    head, low = 15.0, 15.0 + height * pitch
    corners = np.stack([left, top]) * pitch + np.array([[0], [head]])
    # Where the slanted planes leave space: above the left end and below the right one.
    first, last = float(corners[0].min()), float(corners[0].max()) + _CHIP * pitch
    last = max(last, first + text_width("".join(names), 9.0) + 40)
    labels = (
        Label(first, low + 8, f"{names[0]} →", "start"),
        Label(last, low + 8, f"{names[1]} ↗", "end"),
        Label(first, head - 8, f"{names[2]} ↑", "start"),
    )
    return ChipGrid(
        torus,
        (stack.chip[0] * pitch, stack.chip[1] * pitch),
        (1 - _CHIP) * pitch,
        corners,
        stubs * pitch,
        (max(last, width * pitch), low + 15),
        tuple(breaks),
        labels=labels,
    )


def _axis_name(torus: Torus, axis: int) -> str:
    """`x 4`, and whether it closes to a ring."""
    ring = " ring" if torus.wraps[axis] else ""
    return f"{'xyz'[axis]} {torus.shape[axis]}{ring}"


# --- several slices -------------------------------------------------------------------


def _slices(grid: ChipGrid) -> ChipGrid:
    """The slices of a topology beside each other, each as the one that is given."""
    topology = grid.topology
    apart = max(18.0, 1.6 * grid.gap)
    places, size = _side_by_side(topology.slices, grid.size, 16.0, apart)
    corners, frames, labels = [], [], []
    hosts = topology.hosts // topology.slices
    for number, (x, y) in enumerate(places.tolist()):
        name = f"slice {number}"
        corners.append(grid.corners + np.array([[x], [y]]))
        labels.append(Label(x, y - 8, name, "start"))
        for label in grid.labels:
            labels.append(replace(label, x=label.x + x, y=label.y + y))
        frames.append(Frame(x, y, *grid.size, name, dashed=False))
        if topology.hosts <= MOST_FRAMES:
            for at, frame in enumerate(grid.frames):
                host = f"host {number * hosts + at}"
                frames.append(replace(frame, x=frame.x + x, y=frame.y + y, label=host))
    return replace(
        grid,
        corners=np.concatenate(corners, axis=1),
        frames=tuple(frames),
        labels=tuple(labels),
        size=size,
    )


def _side_by_side(
    count: int,
    size: tuple[float, float],
    head: float,
    apart: float,
) -> tuple[np.ndarray, tuple[float, float]]:
    """Rectangles in so many rows that the page is well shaped and the last row full.

    Args:
        head: space for the name above each.
        apart: space between them.
    """
    width, height = size[0], size[1] + head

    def unfit(across: int) -> float:
        rows = -(-count // across)
        shape = across * width / (rows * height) / _WIDE
        return abs(math.log(shape)) + 0.9 * (rows * across - count) / count

    across = min(range(1, min(count, 400) + 1), key=unfit)
    row, column = np.divmod(np.arange(count), across)
    top = row * (height + apart) + head
    corners = np.stack([column * (width + apart), top], axis=1).astype(float)
    rows = -(-count // across)
    return corners, (
        across * (width + apart) - apart,
        rows * (height + apart) - apart,
    )


# --- links ----------------------------------------------------------------------------

# Idle links beyond that are finer than a reader can see.
MOST_IDLE = 20_000
# Chips: with more of them, idle links only hide those in use.
MOST_BESIDE = 1024


def has_edges(grid: ChipGrid, links: LinkUse | None) -> bool:
    """Whether there are links to be drawn as lines, and few enough.

    Switches join GPUs and slices: there are no lines between two of them.
    """
    torus = grid.torus
    few = torus.chips * len(torus.shape) <= MOST_IDLE
    return bool(torus.shape) and (few or links is not None)


def connection_edges(
    grid: ChipGrid, links: LinkUse | None, colour: np.ndarray | None = None
) -> Edges:
    """The links of a topology as lines, those in use wider by the bytes on them.

    Args:
        grid: the positions of the chips.
        links: the bytes that a collective puts on each link; None for no collective.
        colour: int [chips, axes]: the group of the link from each chip to the next along
            an axis; where None, the group of the two chips that it joins.
    """
    torus = grid.torus
    if not has_edges(grid, links):
        return make_edges([], [], [], [])
    lines = [_lines_along(grid, links, colour, a) for a in range(len(torus.shape))]
    x0, y0, x1, y1, group, load = np.concatenate(lines, axis=1)
    used = load > 0
    thin, thick = max(0.5, grid.gap * 0.045), min(3.6, max(0.9, grid.gap * 0.32))
    # The widths of all axes are of one scale.
    share = load / (load.max(initial=0.0) or 1.0)
    width = np.where(used, thick * (0.45 + 0.55 * share), thin)
    if used.any() or colour is None:
        group = np.where(used, group, NO_GROUP)
    # What is in use is painted last, on top.
    order = np.argsort(used, kind="stable")
    if used.any() and torus.chips > MOST_BESIDE:
        order = order[used[order]]
    return make_edges(*(column[order] for column in (x0, y0, x1, y1, group, width)))


def _lines_along(
    grid: ChipGrid, links: LinkUse | None, colour: np.ndarray | None, axis: int
) -> np.ndarray:
    """The lines of an axis: float64 [6, lines], both ends, the group and the bytes.

    A link to a chip that is drawn elsewhere, as one around the torus is, is a short
    line at both ends.
    """
    torus = grid.torus
    following = torus.next_chip(axis)
    here = np.flatnonzero(following >= 0)
    there = following[here]
    load, group = np.zeros(len(here)), np.full(len(here), NO_GROUP)
    if links is not None:
        load = links.load(axis)[here]
        one, other = links.chip_group[here], links.chip_group[there]
        group = np.where((one == other) & (one >= 0), one, MANY_GROUPS)
    if colour is not None:
        group = colour[here, axis]
    middle = grid.corners + np.array([[grid.cell[0]], [grid.cell[1]]]) / 2
    start, end = middle[:, here], middle[:, there]
    at = torus.coords[there, axis]
    far = at < torus.coords[here, axis]
    if grid.breaks[axis]:
        far |= at % grid.breaks[axis] == 0
    stub = grid.stubs[axis][:, None]
    both = np.stack([group, load])
    parts = [np.concatenate([start, end, both])[:, ~far]]
    for point, out in ((start, stub), (end, -stub)):
        parts.append(np.concatenate([point, point + out, both])[:, far])
    return np.concatenate(parts, axis=1)
