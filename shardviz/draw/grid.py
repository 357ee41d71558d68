"""n-dimensional grids on a flat page: the position of every cell, headers and ticks.

The last axis runs across, the one before it down. Every further axis repeats the axes
inside it as a block, across or down, whichever keeps the page closer to ASPECT. An axis
too long for the page is folded like a line of text. The position of a cell is the sum
of one offset per axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardviz.base.mesh import MeshSpec
from shardviz.draw.page import text_width, widest
from shardviz.draw.picture import Frame, Label, Ruler

ASPECT = 1.7  # the width over height that layouts aim for
PAGE = (960.0, 620.0)  # points: wider or higher grids are folded
BAND = 14.0  # the height of a row of labels, in points
BAR = 4.0  # points between an edge of an array and its ticks, for the bar of its colour
AXIS_SIZE, TICK_SIZE = 9.0, 8.0
MOST_LABELS = 400
SMALL = 9.0  # points: smaller cells form an image rather than a table
MOST_FRAMED, MOST_FRAMES = 4096, 512  # devices and hosts
NAME_GAP = 13.0  # points between tiles that leave space for the names of hosts


@dataclass(frozen=True, eq=False)
class Level:
    """One repeat of cells or blocks along one direction of the page.

    Attributes:
        axis: the axis of the grid it belongs to.
        along: 0 across the page, 1 down.
        offsets: float64 [entries]: the start of each entry, in points.
        extent: the length of an entry, in points.
        span: how many coordinates of the axis an entry holds; more than 1 for a fold.
        size: the size of the axis.
    """

    axis: int
    along: int
    offsets: np.ndarray
    extent: float
    span: int
    size: int

    @property
    def length(self) -> float:
        """The length of all entries together, in points."""
        return float(self.offsets[-1]) + self.extent

    @property
    def pitch(self) -> float:
        """The distance from the start of an entry to the start of the next, in points."""
        return float(self.offsets[1]) if len(self.offsets) > 1 else self.extent


@dataclass(frozen=True, eq=False)
class Grid:
    """The positions of the cells of a grid.

    Attributes:
        shifts: per axis, the offset that each coordinate adds to x and y: float64
            [2, size].
        width, height: the size of all cells together, in points.
        levels: the repeats, from the cells outward.
        folded: the axes that are folded.
    """

    shifts: tuple[np.ndarray, ...]
    width: float
    height: float
    levels: tuple[Level, ...]
    folded: frozenset[int]

    def corners(self) -> np.ndarray:
        """float64 [2, cells]: the top left corner of every cell, row-major."""
        total = np.zeros((2, 1))
        for shift in self.shifts:
            total = (total[:, :, None] + shift[:, None, :]).reshape(2, -1)
        return total

    def along(self, along: int) -> list[Level]:
        """The repeats across the page (0) or down (1), from the cells outward."""
        return [level for level in self.levels if level.along == along]


def arrange(
    sizes: Sequence[int],
    cell: tuple[float, float],
    gap: float,
    shown: Sequence[int],
    page: tuple[float, float] = PAGE,
    block_gap: float | None = None,
) -> Grid:
    """Computes the position of every cell.

    Args:
        sizes: the size of every axis; the last one runs across.
        cell: width and height of a cell, in points.
        gap: the space between cells, in points.
        shown: the axes that the page shows; the others must have size 1.
        page: the width and height beyond which a long axis is folded.
        block_gap: added to the gap between blocks for every level; depends on the cell
            size if None.

    >>> arrange((4, 2), (10, 10), 2, (0, 1)).corners()[:, 3].tolist()
    [12.0, 12.0]
    """
    extra = block_gap
    if extra is None:
        extra = min(12.0, max(1.5, 0.45 * min(cell)))
    # One fold changes the shape of the page, and so which axis is folded next.
    folds: dict[int, int] = {}
    while True:
        grid = _positions(sizes, cell, gap, shown, extra, folds)
        fold = _next_fold(grid, page, gap + extra)
        if fold is None:
            return grid
        folds[fold[0]] = fold[1]


def _positions(
    sizes: Sequence[int],
    cell: tuple[float, float],
    gap: float,
    shown: Sequence[int],
    extra: float,
    folds: dict[int, int],
) -> Grid:
    extent, depth = list(cell), [0, 0]
    shifts = [np.zeros((2, n)) for n in sizes]
    levels: list[Level] = []

    def repeat(axis: int, along: int, count: int, span: int) -> np.ndarray:
        step = extent[along] + gap + depth[along] * extra
        offsets = np.arange(count) * step
        levels.append(Level(axis, along, offsets, extent[along], span, sizes[axis]))
        extent[along] = float(offsets[-1]) + extent[along]
        # A single tiny cell would not stand out more with a wider gap around it.
        depth[along] += count > 1 or min(cell) >= SMALL
        return offsets

    for number, axis in enumerate(reversed(shown)):
        size, fold = sizes[axis], folds.get(axis)
        along = number
        if number > 1:
            wide = (extent[0] + gap) * size / extent[1]
            high = extent[0] / ((extent[1] + gap) * size)
            along = int(_unfit(wide, ASPECT) > _unfit(high, ASPECT))
        index = np.arange(size)
        if fold is None:
            shifts[axis][along] = repeat(axis, along, size, 1)
        else:
            shifts[axis][along] = repeat(axis, along, fold, 1)[index % fold]
            folded = repeat(axis, 1 - along, -(-size // fold), fold)
            shifts[axis][1 - along] = folded[index // fold]
    return Grid(tuple(shifts), extent[0], extent[1], tuple(levels), frozenset(folds))


def _unfit(shape: float, target: float) -> float:
    """How far `shape`, width over height, is from `target`: the absolute log ratio."""
    # Twice as wide is as bad as twice as high.
    return abs(math.log(shape / target))


def _next_fold(
    grid: Grid, page: tuple[float, float], between: float
) -> tuple[int, int] | None:
    """The axis to fold next and the length of a fold; None if nothing needs folding."""
    shape = (grid.width, grid.height)
    for along, target in ((0, ASPECT), (1, 1 / ASPECT)):
        long, breadth = shape[along], shape[1 - along]
        if long <= page[along] or long / breadth < 2 * target:
            continue
        # A level shorter than the page is not folded: a level around it is too long.
        levels = []
        for level in grid.along(along):
            if level.axis not in grid.folded and level.length > page[along]:
                levels.append(level)
        longest = max(levels, key=lambda level: len(level.offsets), default=None)
        if longest is None or len(longest.offsets) < 8:
            continue
        # Each fold has its label; folds narrower than a label stand closer.
        beside = 0.0
        if breadth >= BAND:
            beside = min(BAND, 2 * between)
        elif any(len(level.offsets) > 1 for level in grid.along(1 - along)):
            beside = between
        best, size = (math.inf, 0), longest.size
        for length in _lengths(size):
            rows = (breadth + beside) * -(-size // length)
            off = _unfit(long * length / size / rows, target)
            best = min(best, (round(off, 3), length))
        return longest.axis, best[1]
    return None


def _lengths(size: int) -> list[int]:
    """The lengths that folds may have: divisors, or powers of two if there are none."""
    # If no length fills every fold, powers of two are at least easy to count.
    divisors = [n for n in range(2, min(size // 2, 4096) + 1) if size % n == 0]
    return divisors or [1 << k for k in range(1, size.bit_length())]


@dataclass(frozen=True)
class Headers:
    """Labels around a grid, and the space they need on its left and top, in points."""

    labels: tuple[Label, ...]
    left: float
    top: float


Words = Callable[[Level, int], tuple[str, str]]


def headers(
    grid: Grid,
    words: Words,
    away: tuple[float, float] = (0.0, 0.0),
    bare: frozenset[int] = frozenset(),
) -> Headers:
    """The labels of every level, across on top, down on the left, the inner nearest.

    Args:
        words: level and entry number to the name of the axis and the text of the entry.
        away: space between the grid and the nearest labels, left and top, in points.
        bare: axes whose single coordinates have no labels, but whose folds do.
    """
    labels: list[Label] = []
    left = top = 0.0
    for along in (1, 0):
        levels = grid.along(along)
        # The coordinates of a folded axis would repeat in every fold.
        named = []
        for level in levels:
            if level.span > 1 or level.axis not in grid.folded | bare:
                named.append(level)
        base = np.zeros(1)  # the start of each block of the outer levels
        for level in reversed(levels):
            inner = named[: named.index(level)] if level in named else []
            if level in named and along:
                space = sum(_widest(inner_level, words) + 8 for inner_level in inner)
                labels += _down(level, base, words, -6.0 - away[0] - space)
                left = max(left, space + _widest(level, words) + 10)
            elif level in named:
                y = -8.0 - away[1] - BAND * len(inner)
                new = _across(level, base, words, y)
                labels += new
                # The name of the axis stands at the left of the first entry.
                if new[0].anchor == "end":
                    left = max(left, text_width(new[0].text, AXIS_SIZE) + 4 - new[0].x)
                top = max(top, BAND * (len(inner) + 1) + 2)
            base = (base[:, None] + level.offsets).reshape(-1)
    return Headers(tuple(labels), left + away[0], top + away[1])


def _widest(level: Level, words: Words) -> float:
    ends = " ".join(words(level, 0)), " ".join(words(level, len(level.offsets) - 1))
    return widest(ends, AXIS_SIZE)


def _middles(level: Level, base: np.ndarray, every: int) -> Iterator[tuple[int, float]]:
    """The entries that have a label, and the middle of each, in points."""
    count = len(level.offsets)
    for start in base[:: max(1, len(base) * count // every // MOST_LABELS)]:
        for entry in range(0, count, every):
            yield entry, float(start + level.offsets[entry] + level.extent / 2)


def _down(level: Level, base: np.ndarray, words: Words, x: float) -> list[Label]:
    # Rows lower than letters: label every second row, or every fourth, …
    every, labels = 1, []
    if level.pitch < 10:
        every = _every(18.0, level.pitch, len(level.offsets))
    for entry, y in _middles(level, base, every):
        labels.append(Label(x, y, " ".join(words(level, entry)), "end"))
    return labels


def _across(level: Level, base: np.ndarray, words: Words, y: float) -> list[Label]:
    count, every, labels = len(level.offsets), 1, []
    full = _widest(level, words) + 4 <= level.pitch
    if not full:
        needed = text_width(words(level, count - 1)[1], AXIS_SIZE) + 8
        every = _every(needed, level.pitch, count)
    for entry, x in _middles(level, base, every):
        name, text = words(level, entry)
        labels.append(Label(x, y, f"{name} {text}" if full else text))
    if full:
        return labels
    # The first word is centred on its entry, and may begin before it.
    out = max(0.0, text_width(labels[0].text, AXIS_SIZE) / 2 - labels[0].x)
    return [Label(-6.0 - out, y, f"{words(level, 0)[0]} →", "end"), *labels]


# Maps an axis of a grid to the words of its ruler and the mesh axes that it describes.
Named = Callable[[int], tuple[tuple[str, ...], tuple[tuple[int, str], ...]]]


def rulers(
    grid: Grid,
    named: Named,
    spans: Sequence[int],
    edges: Collection[int] = (),
    away: tuple[float, float] = (0.0, 0.0),
) -> list[Ruler]:
    """The rulers of a grid at the origin, those nearest to the tiles first.

    Args:
        spans: per axis of the grid, how many elements or coordinates a cell covers.
        edges: the axes of the grid that are edges of an array.
        away: from the tiles to the words at the left and at the top, in points.
    """
    ruler_list = []
    for level in grid.levels:
        axis, around = level.axis, grid.along(level.along)
        folded, span = axis in grid.folded, spans[axis]
        # The coordinates of a folded axis would repeat in every fold.
        if folded and level.span == 1 and axis not in edges:
            continue
        words, axes = named(axis)
        ruler = Ruler(words, axes, bool(level.along), 0.0, around[-1].length)
        entries = replace(
            ruler,
            count=len(level.offsets),
            pitch=level.pitch,
            extent=level.extent,
            step=level.span * span,
            size=level.size * span,
        )
        if axis in edges and folded:
            # One side has the words, the other the bounds of the folds.
            if level.span > 1:
                ruler = replace(entries, words=(), axes=())
        elif axis in edges:
            bounds = len(level.offsets) + 1
            ruler = replace(entries, count=bounds, pitch=level.extent, extent=0.0)
        else:
            ruler = entries
        repeats = []
        for outer in reversed(around[around.index(level) + 1 :]):
            if len(outer.offsets) > 1:
                repeats.append((len(outer.offsets), outer.pitch))
        ruler_list.append(
            replace(ruler, repeats=tuple(repeats), away=away[1 - level.along])
        )
    return ruler_list


def _every(needed: float, pitch: float, count: int) -> int:
    """Returns n if every n-th entry gets a label: the first power of two that leaves room."""
    every = 1
    while every * pitch < needed and every < count:
        every *= 2
    return every


def ticks(
    grid: Grid, axes: Collection[int], steps: Sequence[int]
) -> tuple[list[Label], tuple[float, float]]:
    """Numbers at the bounds between blocks, as many as fit, and the space they need.

    Args:
        axes: the axes of the grid that have ticks; folded axes get none.
        steps: per axis, the elements of a block.

    Returns:
        The labels, and the space at the left and at the top of the grid, in points.
    """
    labels: list[Label] = []
    left = top = 0.0
    for level in grid.levels:
        if level.axis not in axes or level.axis in grid.folded:
            continue
        base, pitches = np.zeros(1), [level.length]
        for repeat in grid.along(level.along):
            if repeat is not level:
                base = (base[:, None] + repeat.offsets).reshape(-1)
                pitches += [repeat.pitch] * (len(repeat.offsets) > 1)
        bounds = np.append(level.offsets, level.offsets[-1] + level.extent)
        numbers = np.arange(len(bounds)) * steps[level.axis]
        last = text_width(str(numbers[-1]), TICK_SIZE)
        needed, ends = last + 8, last + text_width("0", TICK_SIZE) + 4
        if level.along:
            needed, ends, left = 13.0, 2 * TICK_SIZE, last + 8 + BAR
        else:
            top = 13.0 + BAR
        # Between narrow repeats not even the numbers at both ends may fit.
        if len(pitches) > 1 and min(pitches) < ends:
            continue
        keep = _kept(bounds, needed)
        for start in base[:64]:
            labels += _tick_labels(level.along, bounds[keep] + start, numbers[keep])
    return labels, (left, top)


def _kept(bounds: np.ndarray, needed: float) -> np.ndarray:
    """The bounds that get a number: at equal steps, and always the last."""
    last = len(bounds) - 1
    # The first is shifted inward from its bound, so the next needs half as much again.
    every = _every(1.4 * needed, float(bounds[1]), last)
    keep = np.arange(0, last, every)
    far = bounds[last] - bounds[keep] >= 1.4 * needed
    return np.append(keep[(keep == 0) | far], last)


def _tick_labels(along: int, at: np.ndarray, numbers: np.ndarray) -> list[Label]:
    labels = []
    for position, number in zip(at.tolist(), numbers.tolist(), strict=True):
        # The numbers at both ends move inward, away from the array's neighbours.
        anchor, inward = "middle", 0.0
        if not labels:
            anchor, inward = "start", 4.0
        elif len(labels) == len(at) - 1:
            anchor, inward = "end", -4.0
        if along:
            labels.append(
                Label(-5.0 - BAR, position + inward, str(number), "end", "tick")
            )
        else:
            labels.append(Label(position, -7.0 - BAR, str(number), anchor, "tick"))
    return labels


def host_frames(
    mesh: MeshSpec, corners: np.ndarray, cell: tuple[float, float], gap: float
) -> list[Frame]:
    """A frame around every host, if each host fills a rectangle of the page.

    If any host does not, there are no frames, and colour alone shows the host.

    Args:
        corners: float64 [2, devices], the top left corner of every device.
    """
    processes = list(mesh.processes[: MOST_FRAMES + 1])
    if not 1 < len(processes) <= MOST_FRAMES or mesh.size > MOST_FRAMED:
        return []
    host = np.searchsorted(processes, mesh.process_indices.reshape(-1))
    low = np.full((2, len(processes)), np.inf)
    high, places = -low, np.ones(len(processes))
    for axis in (0, 1):
        np.minimum.at(low[axis], host, corners[axis])
        np.maximum.at(high[axis], host, corners[axis])
        lines = np.unique(np.round(corners[axis], 3))
        first = np.searchsorted(lines, low[axis] - 0.01)
        places *= np.searchsorted(lines, high[axis] + 0.01) - first
    if (places != np.bincount(host)).any():
        return []
    frames, out = [], 0.42 * gap
    for number, process in enumerate(processes):
        (x, y), (far_x, far_y) = low[:, number] - out, high[:, number] + out
        size = float(far_x - x + cell[0]), float(far_y - y + cell[1])
        label = f"host {process}"
        frames.append(
            Frame(float(x), float(y), *size, label, gap >= 5, gap >= NAME_GAP)
        )
    return frames
