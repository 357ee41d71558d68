"""Where the chips of a described topology stand on a page: a torus flat, a cluster host by host.

Two axes of a torus are a grid; a third is drawn as planes side by side; slices stand apart. Links
along x and y join neighbours; those along z, and the ways around, are short strokes at both ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardviz.core.layout.topology import Topology
from shardviz.core.layout.torus import Torus
from shardviz.picture.measure import text_width
from shardviz.picture.shapes import Frame, Label

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
class Board:
    """The chips of a topology on a page.

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
        """What is drawn."""
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
        return 1 if self.flat else self.torus.shape[2]

    @cached_property
    def margin(self) -> float:
        """Room around a plane, for frames and for strokes that lead around or to other planes."""
        leads = any(self.torus.wraps[:2]) or not self.flat
        return self.gap * (1.0 if leads else 0.7 if self.topology.slices > 1 else 0.45)

    @property
    def trunk(self) -> float:
        """Room for the network on the left of the hosts of GPUs."""
        return 0.0 if self.torus.shape or self.topology.hosts == 1 else 12.0

    @cached_property
    def extent(self) -> tuple[float, float]:
        """Width and height of one plane with its margin, in points."""
        across, down = self.plane
        width = across * (self.cell[0] + self.gap) - self.gap + 2 * self.margin
        height = down * (self.cell[1] + self.gap) - self.gap + 2 * self.margin
        rail = 0.0 if self.torus.shape else self.gap * 0.5
        return width + self.trunk, height + rail

    @property
    def head(self) -> float:
        """Room for a word above each plane."""
        return 13.0 if self.planes > 1 else 0.0

    @cached_property
    def _columns(self) -> int:
        """How many planes stand side by side."""
        if not self.torus.shape and self.planes <= 12:
            return 1
        return _side_by_side(self.planes, self.extent[0], self.extent[1] + self.head)

    @cached_property
    def block(self) -> tuple[float, float]:
        """Width and height of all planes of a slice, in points."""
        rows = -(-self.planes // self._columns)
        between = self.gap
        width = self._columns * (self.extent[0] + between) - between
        return width, rows * (self.extent[1] + self.head + between) - between

    @cached_property
    def _across(self) -> int:
        """How many slices stand side by side."""
        return _side_by_side(self.topology.slices, self.block[0], self.block[1] + self.slice_head)

    @property
    def apart(self) -> float:
        """Between slices, in points."""
        return max(18.0, 1.6 * self.gap)

    @property
    def slice_head(self) -> float:
        """Room for the name of a slice."""
        return 16.0 if self.topology.slices > 1 else 0.0

    @cached_property
    def size(self) -> tuple[float, float]:
        """Width and height of everything, in points."""
        rows = -(-self.topology.slices // self._across)
        width, height = self.block
        return (
            self._across * (width + self.apart) - self.apart,
            rows * (height + self.slice_head + self.apart) - self.apart,
        )

    def slice_corner(self, number: int) -> tuple[float, float]:
        """The top left corner of the planes of a slice."""
        row, column = divmod(number, self._across)
        width, height = self.block
        return (
            column * (width + self.apart),
            row * (height + self.slice_head + self.apart) + self.slice_head,
        )

    def plane_corner(self, number: int) -> tuple[float, float]:
        """The top left corner of a plane in its slice, below its word."""
        row, column = divmod(number, self._columns)
        return (
            column * (self.extent[0] + self.gap),
            row * (self.extent[1] + self.head + self.gap) + self.head,
        )

    @cached_property
    def corners(self) -> np.ndarray:
        """float64 [2, chips]: the top left corner of every chip."""
        torus = self.torus
        slices = np.array([self.slice_corner(i) for i in range(self.topology.slices)])
        planes = np.array([self.plane_corner(i) for i in range(self.planes)])
        if not torus.shape:
            gpus = self.plane[0]
            host, number = np.divmod(np.arange(torus.chips), gpus)
            x = planes[host, 0] + self.trunk + self.margin + number * (self.cell[0] + self.gap)
            return np.stack([x, planes[host, 1] + self.margin])
        x, y = torus.coords[:, 0], torus.coords[:, 1]
        z = np.zeros(torus.chips, np.int64) if self.flat else torus.coords[:, 2]
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
                found.append(Frame(x, y, width, height, f"slice {number}", dashed=False))
        if 1 < self.topology.hosts <= MOST_FRAMES:
            found += self._host_frames()
        return found

    def _host_frames(self) -> list[Frame]:
        topology, out = self.topology, self.gap * 0.36
        process, first = np.unique(topology.process_indices, return_index=True)
        x, y = self.corners[:, self.torus.chip_of[first]]
        across, down = (
            (self.plane[0], 1) if not self.torus.shape else (*topology.host_shape, 1, 1)[:2]
        )
        width = across * (self.cell[0] + self.gap) - self.gap + 2 * out
        height = down * (self.cell[1] + self.gap) - self.gap + 2 * out
        if not self.torus.shape:
            height += self.gap * 0.5
        return [
            Frame(float(a - out), float(b - out), width, height, f"host {p}", self.gap >= 10)
            for a, b, p in zip(x, y, process.tolist(), strict=True)
        ]

    def labels(self) -> list[Label]:
        """The names of slices, planes and hosts, and coordinates where there is room."""
        found = []
        for number in range(self.topology.slices):
            left, top = self.slice_corner(number)
            if self.topology.slices > 1:
                found.append(Label(left, top - 8, f"slice {number}", "start"))
            if self.planes > 1 and self.extent[0] >= 30:
                word = "z" if self.torus.shape else "host"
                for plane in range(self.planes):
                    x, y = self.plane_corner(plane)
                    x = left + x + self.trunk + self.margin - self.gap * 0.36
                    found.append(Label(x, top + y - 8, f"{word} {plane}", "start", "tick"))
        return found


def _side_by_side(count: int, width: float, height: float) -> int:
    """How many of some boxes to a row, so that the page is well shaped and its last row full."""

    def unfit(columns: int) -> float:
        rows = -(-count // columns)
        shape = columns * width / (rows * height) / _WIDE
        return abs(math.log(shape)) + 0.9 * (rows * columns - count) / count

    return min(range(1, min(count, 400) + 1), key=unfit)


def board(topology: Topology) -> Board:
    """A topology on a page, with chips as large as their number leaves room for.

    >>> from shardviz.core.layout.topology import Topology
    >>> placed = board(Topology.parse("tpu:v5e:4x4"))
    >>> placed.cell, placed.corners[:, 0].round(1).tolist(), np.round(placed.size).tolist()
    ((52.0, 34.0), [10.8, 10.8], [302.0, 230.0])
    """
    _, cell, gap = next(v for v in _SIZES if topology.chips <= v[0])
    each = topology.chip.devices
    width = max(cell[0], each * cell[1])
    if topology.chips <= 256:
        width = max(width, each * (text_width(str(topology.device_ids.max()), 8.0) + 7))
    return Board(Torus(topology), (width, cell[1]), gap)
