"""Places a topology's chips on a page, and draws links as lines.

A torus with two axes is drawn as a grid. A torus with three axes is drawn as stacked
planes in parallel perspective, so that no chip covers another and every link to a
neighbour is a short straight line. TPU slices and GPU hosts are drawn separately.
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

# Maximum number of chips -> width and height of a chip, and the gap between chips, in
# points.
_SIZES = (
    (16, (54.0, 44.0), 20.0),
    (64, (40.0, 33.0), 14.0),
    (256, (26.0, 23.0), 8.0),
    (1024, (13.0, 12.0), 7.0),
    (4096, (7.0, 7.0), 5.0),
    (16384, (4.0, 4.0), 3.0),
    (1 << 62, (2.4, 2.4), 1.8),
)
# For three axes: maximum number of chips -> pitch (chip width plus gap), in points.
_PITCHES = ((64, 54.0), (256, 36.0), (1024, 24.0), (4096, 11.0), (1 << 62, 6.0))
# Fractions of the pitch: the width of a chip, the shift to the right from one row of a
# plane to the next, and the extra distance between chips of different hosts.
_CHIP, _ROW_SHIFT, _HOST = 0.68, 0.38, 0.16
# The rise from one row of a plane to the next, in pitches, for two views. The
# height of a chip and the gap between planes are multiples of this rise.
_TILTS, _CHIP_HEIGHT, _PLANE_GAP = (0.48, 0.36), 0.84, 1.5
# Width and height of the page for three axes, in points.
_PAGE = (300.0, 340.0)
# Penalty factors for arrangements with several columns, or with reordered axes.
_COLUMNS_COST, _ORDER_COST = 0.75, 0.85
# The preferred ratio of width to height of the page.
_WIDE = 0.9
# With more hosts than this, frames are not drawn: they'd be too fine to see.
MOST_FRAMES = 512


@dataclass(frozen=True, eq=False)
class ChipGrid:
    """The positions of a topology's chips on a page, in points.

    Attributes:
        torus: the chips and their links; GPUs have none.
        cell: width and height of a chip.
        gap: the distance between chips.
        corners: float64 [2, chips]: the top left corner of every chip.
        stubs: float64 [axes, 2]: for each axis, the vector of the short line that marks
            a wraparound link, from the middle of the last chip.
        breaks: for each axis, the number of chips after which the row continues in
            another column of the page; 0 for never.
        frames: outlines around hosts and slices.
        labels: the names of axes, slices and hosts.
        size: width and height of the whole drawing.
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
        """True if the drawing has three axes."""
        return len(self.torus.shape) == 3 and self.torus.shape[2] > 1


def chip_grid(topology: Topology) -> ChipGrid:
    """Places a topology's chips on a page; the fewer chips, the larger they are.

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
    """Returns width and height of a chip in a grid, and the gap between chips."""
    _, (width, height), gap = next(v for v in _SIZES if topology.chips <= v[0])
    devices = topology.chip.devices
    width = max(width, devices * height)
    if topology.chips <= 256:
        width = max(
            width, devices * (text_width(str(topology.device_ids.max()), 8.0) + 7)
        )
    return width, height, gap


def _plane(torus: Torus) -> ChipGrid:
    """Places the chips of a 2D slice in a grid, with a frame around every host."""
    topology = torus.topology
    width, height, gap = _chip_size(topology)
    # The margin has space for frames and for the lines of wraparound links.
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
    stubs = np.zeros((3, 2))
    stubs[:2] = np.diag(np.array([width, height]) / 2 + gap * 0.85)
    grid = ChipGrid(torus, (width, height), gap, corners, stubs, size)
    # Frames for one slice; `_slices` repeats them.
    return replace(grid, frames=tuple(_host_frames(grid, topology.host_shape[:2])))


def _host_frames(grid: ChipGrid, shape: tuple[int, ...]) -> list[Frame]:
    """Returns frames around all hosts whose chips are in the grid.

    Frames run in the middle of the gap, so that the frames of neighbouring hosts
    coincide.
    """
    topology, margin, gap = grid.topology, grid.gap * 0.5, grid.gap
    if not 1 < topology.hosts <= MOST_FRAMES:
        return []
    process, first = np.unique(topology.process_indices, return_index=True)
    chips = grid.torus.chip_of[first]
    width = shape[0] * (grid.cell[0] + gap) - gap + 2 * margin
    height = shape[1] * (grid.cell[1] + gap) - gap + 2 * margin
    frames = []
    for host, chip in zip(process.tolist(), chips.tolist(), strict=True):
        if chip < grid.corners.shape[1]:
            left, top = (grid.corners[:, chip] - margin).tolist()
            frames.append(Frame(left, top, width, height, f"host {host}", gap >= 10))
    return frames


def _hosts_of_gpus(torus: Torus) -> ChipGrid:
    """Places each host's GPUs in a few rows, and the hosts in rows and columns."""
    topology, count = torus.topology, torus.topology.hosts
    width, height, gap = _chip_size(topology)
    gpus, margin = topology.shape[1], gap * 0.5
    # Choose the rows so that a host is about twice as wide as high.
    rows = max(
        n for n in range(1, gpus + 1) if gpus % n == 0 and 2 * n * n <= max(2, gpus)
    )
    across = gpus // rows
    extent = (
        across * (width + gap) - gap + 2 * margin,
        rows * (height + gap) - gap + 2 * margin,
    )
    host_corners, size = _side_by_side(count, extent, 13.0 * (count > 1), gap)
    host, number = np.divmod(np.arange(torus.chips), gpus)
    corners = host_corners[host].T + margin
    corners[0] += number % across * (width + gap)
    corners[1] += number // across * (height + gap)
    grid = ChipGrid(torus, (width, height), gap, corners, np.zeros((0, 2)), size)
    labels = []
    if count > 1 and extent[0] >= 30:
        for index, (x, y) in enumerate(host_corners.tolist()):
            labels.append(Label(x, y - 8, f"host {index}", "start", "tick"))
    frames = _host_frames(grid, (across, rows))
    return replace(grid, frames=tuple(frames), labels=tuple(labels))


# --- three axes -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Stack:
    """An arrangement of stacked planes; lengths are in pitches (chip width plus gap).

    Attributes:
        order: the torus axes that are drawn to the right, to the back and upwards.
        sizes: number of chips along each of these axes.
        hosts: number of a host's chips along each of these axes.
        columns: the number of stacks side by side.
        tilt: the rise from one row to the next.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    hosts: tuple[int, ...]
    columns: int
    tilt: float

    @property
    def planes(self) -> int:
        """The number of planes in one stack."""
        return -(-self.sizes[2] // self.columns)

    def along(self, axis: int, index: np.ndarray) -> np.ndarray:
        """Returns the positions of chips along an axis, in pitches."""
        host = self.hosts[axis]
        # No extra distance along an axis on which every chip has a different host.
        return index + _HOST * (index // host) * (host > 1)

    def length(self, axis: int, count: int) -> float:
        """Returns the distance from the first to the last of `count` chips."""
        return float(self.along(axis, np.array(count - 1)))

    @property
    def chip(self) -> tuple[float, float]:
        """Width and height of a chip."""
        return _CHIP, _CHIP_HEIGHT * self.tilt

    @property
    def plane(self) -> tuple[float, float]:
        """Width and height of one plane."""
        behind = self.length(1, self.sizes[1])
        return (
            self.length(0, self.sizes[0]) + behind * _ROW_SHIFT + self.chip[0],
            behind * self.tilt + self.chip[1],
        )

    @property
    def up(self) -> float:
        """The distance from one plane to the next."""
        return self.plane[1] + _PLANE_GAP * self.tilt

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all planes, including stubs of wraparound links."""
        plane_width, plane_height = self.plane
        height = plane_height + self.up * self.planes - self.up
        height += self.length(2, self.planes) - (self.planes - 1)
        return self.columns * (plane_width + 2) - 1, height + 1


def _stack(torus: Torus) -> _Stack:
    """Finds the arrangement that allows the largest chips."""

    def chip_size(stack: _Stack) -> float:
        (stack_width, stack_height), (width, height) = stack.size, stack.chip
        scale = min(_PAGE[0] / stack_width, _PAGE[1] / stack_height)
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
    return max(stacks, key=chip_size)


def _planes(torus: Torus) -> ChipGrid:
    """Places the chips of a 3D slice in stacked planes, the first plane at the bottom."""
    stack = _stack(torus)
    pitch = next(v for most, v in _PITCHES if math.prod(torus.shape) <= most)
    across, behind, up = stack.order
    coords = torus.coords[: math.prod(torus.shape)]
    column, plane = np.divmod(coords[:, up], stack.planes)
    x = stack.along(0, coords[:, across])
    back = stack.along(1, coords[:, behind])
    rise = stack.up * plane + stack.along(2, plane) - plane
    (width, height), (plane_width, _) = stack.size, stack.plane
    left = 0.5 + column * (plane_width + 2) + x + back * _ROW_SHIFT
    top = height - 0.5 - stack.chip[1] - rise - back * stack.tilt
    stubs = np.zeros((3, 2))
    stubs[across] = (0.6, 0)
    stubs[behind] = np.array([_ROW_SHIFT, -stack.tilt]) * 0.9
    stubs[up] = (0, -0.5)
    breaks = [0, 0, 0]
    if stack.columns > 1:
        breaks[up] = stack.planes
    names = [_axis_name(torus, axis) for axis in stack.order]
    head, low = 15.0, 15.0 + height * pitch
    corners = np.stack([left, top]) * pitch + np.array([[0], [head]])
    # Slanted planes leave space for labels at the top left and bottom right.
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
    """Formats an axis as `x 4`, or as `x 4 ring` if it forms a ring."""
    ring = " ring" if torus.wraps[axis] else ""
    return f"{'xyz'[axis]} {torus.shape[axis]}{ring}"


# --- several slices -------------------------------------------------------------------


def _slices(grid: ChipGrid) -> ChipGrid:
    """Repeats the grid of one slice for all slices of the topology."""
    topology = grid.topology
    distance = max(18.0, 1.6 * grid.gap)
    slice_corners, size = _side_by_side(topology.slices, grid.size, 16.0, distance)
    corners, frames, labels = [], [], []
    hosts = topology.hosts // topology.slices
    for number, (x, y) in enumerate(slice_corners.tolist()):
        name = f"slice {number}"
        corners.append(grid.corners + np.array([[x], [y]]))
        labels.append(Label(x, y - 8, name, "start"))
        for label in grid.labels:
            labels.append(replace(label, x=label.x + x, y=label.y + y))
        frames.append(Frame(x, y, *grid.size, name, dashed=False))
        if topology.hosts <= MOST_FRAMES:
            for index, frame in enumerate(grid.frames):
                host = f"host {number * hosts + index}"
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
    distance: float,
) -> tuple[np.ndarray, tuple[float, float]]:
    """Arranges rectangles in rows; prefers good proportions and a full last row.

    Args:
        count: the number of rectangles.
        size: width and height of a rectangle.
        head: space for the name above a rectangle.
        distance: space between rectangles.

    Returns:
        float64 [count, 2]: the top left corner of each rectangle; and the page size.
    """
    width, height = size[0], size[1] + head

    def unfit(across: int) -> float:
        rows = -(-count // across)
        shape = across * width / (rows * height) / _WIDE
        return abs(math.log(shape)) + 0.9 * (rows * across - count) / count

    across = min(range(1, min(count, 400) + 1), key=unfit)
    row, column = np.divmod(np.arange(count), across)
    top = row * (height + distance) + head
    corners = np.stack([column * (width + distance), top], axis=1).astype(float)
    rows = -(-count // across)
    return corners, (
        across * (width + distance) - distance,
        rows * (height + distance) - distance,
    )


# --- links ----------------------------------------------------------------------------

# With more links than this, idle links are not drawn: they'd be too fine to see.
MOST_IDLE = 20_000
# With more chips than this, idle links are not drawn next to links in use.
MOST_BESIDE = 1024


def has_edges(grid: ChipGrid, links: LinkUse | None) -> bool:
    """Returns whether links are drawn as lines: if there are any, and not too many.

    Links between GPUs and between slices go through switches and are not drawn.
    """
    torus = grid.torus
    few = torus.chips * len(torus.shape) <= MOST_IDLE
    return bool(torus.shape) and (few or links is not None)


def connection_edges(
    grid: ChipGrid, links: LinkUse | None, colour: np.ndarray | None = None
) -> Edges:
    """Draws a topology's links as lines; links with more bytes are wider.

    Args:
        grid: the positions of the chips.
        links: the load of a collective on each link; None without a collective.
        colour: int [chips, axes]: the group that colours the link from each chip to the
            next along an axis; if None, the replica group of the link's two chips.
    """
    torus = grid.torus
    if not has_edges(grid, links):
        return make_edges([], [], [], [])
    lines = [_lines_along(grid, links, colour, a) for a in range(len(torus.shape))]
    x0, y0, x1, y1, group, load = np.concatenate(lines, axis=1)
    used = load > 0
    thin, thick = max(0.5, grid.gap * 0.045), min(3.6, max(0.9, grid.gap * 0.32))
    # Use the same scale for the line widths of all axes.
    share = load / (load.max(initial=0.0) or 1.0)
    width = np.where(used, thick * (0.45 + 0.55 * share), thin)
    if used.any() or colour is None:
        group = np.where(used, group, NO_GROUP)
    # Paint links in use last, on top of idle links.
    order = np.argsort(used, kind="stable")
    if used.any() and torus.chips > MOST_BESIDE:
        order = order[used[order]]
    return make_edges(*(column[order] for column in (x0, y0, x1, y1, group, width)))


def _lines_along(
    grid: ChipGrid, links: LinkUse | None, colour: np.ndarray | None, axis: int
) -> np.ndarray:
    """Returns float64 [6, lines]: both ends, group and load of each line along an axis.

    A link between chips that are not neighbours on the page, such as a wraparound link,
    becomes two short lines, one at each chip.
    """
    torus = grid.torus
    following = torus.next_chip(axis)
    chips = np.flatnonzero(following >= 0)
    neighbours = following[chips]
    load, group = np.zeros(len(chips)), np.full(len(chips), NO_GROUP)
    if links is not None:
        load = links.load(axis)[chips]
        first, second = links.chip_group[chips], links.chip_group[neighbours]
        group = np.where((first == second) & (first >= 0), first, MANY_GROUPS)
    if colour is not None:
        group = colour[chips, axis]
    middle = grid.corners + np.array([[grid.cell[0]], [grid.cell[1]]]) / 2
    start, end = middle[:, chips], middle[:, neighbours]
    coordinate = torus.coords[neighbours, axis]
    far = coordinate < torus.coords[chips, axis]
    if grid.breaks[axis]:
        far |= coordinate % grid.breaks[axis] == 0
    stub = grid.stubs[axis][:, None]
    group_and_load = np.stack([group, load])
    lines = [np.concatenate([start, end, group_and_load])[:, ~far]]
    for point, vector in ((start, stub), (end, -stub)):
        lines.append(np.concatenate([point, point + vector, group_and_load])[:, far])
    return np.concatenate(lines, axis=1)
