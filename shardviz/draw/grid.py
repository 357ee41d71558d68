"""Draws n-dimensional grids on a flat page: cell positions, headers and ticks.

The last axis runs across the page and the second-to-last runs down. Every other axis
repeats the grid of the axes after it, across or down, whichever keeps the page closer
to ASPECT. An axis that is too long for the page is folded like a line of text. A cell's
position is the sum of one offset per axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardviz.base.mesh import MeshSpec
from shardviz.draw.page import text_width, widest
from shardviz.draw.picture import Frame, Label, Ruler, RulerAxis

# The preferred ratio of width to height.
ASPECT = 1.7
# Width and height in points; larger grids are folded.
PAGE = (960.0, 620.0)
# The height of a row of labels, in points.
BAND = 14.0
# Space for a coloured bar between an array's edge and its ticks, in points.
BAR = 4.0
# Font sizes of axis labels and ticks, in points.
AXIS_SIZE, TICK_SIZE = 9.0, 8.0
MOST_LABELS = 400
# Cells smaller than this, in points, form an image rather than a table.
SMALL = 9.0
# Host frames are drawn for up to this many devices and hosts.
MOST_FRAMED, MOST_FRAMES = 4096, 512
# The gap between tiles, in points, from which host names fit.
NAME_GAP = 13.0


@dataclass(frozen=True, eq=False)
class Level:
    """One repetition of cells or blocks, across or down the page.

    Attributes:
        axis: the grid axis that the level belongs to.
        along: the direction: 0 across the page, 1 down.
        offsets: float64 [entries]: the start of each entry, in points.
        extent: the length of an entry, in points.
        span: number of axis coordinates per entry; more than 1 if each entry is a fold.
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
        """The total length of all entries, in points."""
        return float(self.offsets[-1]) + self.extent

    @property
    def pitch(self) -> float:
        """The distance between the starts of neighbouring entries, in points."""
        return float(self.offsets[1]) if len(self.offsets) > 1 else self.extent


@dataclass(frozen=True, eq=False)
class Grid:
    """The positions of the cells of a grid.

    Attributes:
        shifts: per axis, float64 [2, size]: the offset of each coordinate in x and y,
            in points.
        width, height: the size of the whole grid, in points.
        levels: the repetitions, innermost first.
        folded: the axes that are folded.
    """

    shifts: tuple[np.ndarray, ...]
    width: float
    height: float
    levels: tuple[Level, ...]
    folded: frozenset[int]

    def corners(self) -> np.ndarray:
        """Returns every cell's top left corner, row-major: float64 [2, cells]."""
        total = np.zeros((2, 1))
        for shift in self.shifts:
            total = (total[:, :, None] + shift[:, None, :]).reshape(2, -1)
        return total

    def along(self, along: int) -> list[Level]:
        """Returns the levels across the page (0) or down (1), innermost first."""
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
        shown: the axes that the page shows; all others must have size 1.
        page: the width and height, in points, beyond which a long axis is folded.
        block_gap: extra space between blocks, in points, added once per level; None
            derives it from the cell size.

    >>> arrange((4, 2), (10, 10), 2, (0, 1)).corners()[:, 3].tolist()
    [12.0, 12.0]
    """
    extra = block_gap
    if extra is None:
        extra = min(12.0, max(1.5, 0.45 * min(cell)))
    # Each fold changes the page's shape, so choose one fold at a time.
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
        # Wider gaps would not make a single tiny cell easier to see.
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
    """Returns the absolute log ratio of two aspect ratios (width / height)."""
    # With logarithms, twice as wide is as bad as twice as high.
    return abs(math.log(shape / target))


def _next_fold(
    grid: Grid, page: tuple[float, float], between: float
) -> tuple[int, int] | None:
    """Returns the axis to fold next and the fold length; None if no axis needs it."""
    shape = (grid.width, grid.height)
    for along, target in ((0, ASPECT), (1, 1 / ASPECT)):
        long, breadth = shape[along], shape[1 - along]
        if long <= page[along] or long / breadth < 2 * target:
            continue
        # Don't fold levels that fit the page; only longer, outer levels need folds.
        levels = []
        for level in grid.along(along):
            if level.axis not in grid.folded and level.length > page[along]:
                levels.append(level)
        longest = max(levels, key=lambda level: len(level.offsets), default=None)
        if longest is None or len(longest.offsets) < 8:
            continue
        # The space between folds holds their labels; narrow folds have less space.
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
    """Returns the candidate fold lengths: divisors of `size`, or powers of two."""
    # If no length divides `size`, powers of two are at least easy to count.
    divisors = [n for n in range(2, min(size // 2, 4096) + 1) if size % n == 0]
    return divisors or [1 << k for k in range(1, size.bit_length())]


@dataclass(frozen=True)
class Headers:
    """Labels around a grid, and the space they need at its left and top, in points."""

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
    """Labels every level: above the grid or at its left, inner levels nearest.

    Args:
        words: maps a level and an entry number to the axis name and the entry's text.
        away: space between the grid and its nearest labels, left and top, in points.
        bare: axes that get labels for their folds only, not for single coordinates.
    """
    labels: list[Label] = []
    left = top = 0.0
    for along in (1, 0):
        levels = grid.along(along)
        # Skip folded axes, because every fold would repeat their coordinates.
        named = []
        for level in levels:
            if level.span > 1 or level.axis not in grid.folded | bare:
                named.append(level)
        base = np.zeros(1)  # where each block of the outer levels starts
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
                # The axis name is at the left of the first entry.
                if new[0].anchor == "end":
                    left = max(left, text_width(new[0].text, AXIS_SIZE) + 4 - new[0].x)
                top = max(top, BAND * (len(inner) + 1) + 2)
            base = (base[:, None] + level.offsets).reshape(-1)
    return Headers(tuple(labels), left + away[0], top + away[1])


def _widest(level: Level, words: Words) -> float:
    ends = " ".join(words(level, 0)), " ".join(words(level, len(level.offsets) - 1))
    return widest(ends, AXIS_SIZE)


def _middles(level: Level, base: np.ndarray, every: int) -> Iterator[tuple[int, float]]:
    """Yields each labelled entry and its middle, in points."""
    count = len(level.offsets)
    for start in base[:: max(1, len(base) * count // every // MOST_LABELS)]:
        for entry in range(0, count, every):
            yield entry, float(start + level.offsets[entry] + level.extent / 2)


def _down(level: Level, base: np.ndarray, words: Words, x: float) -> list[Label]:
    # If rows are too short for a line of text, only every n-th row has a label.
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
    # The first label is centred on its entry, and may begin left of it.
    out = max(0.0, text_width(labels[0].text, AXIS_SIZE) / 2 - labels[0].x)
    return [Label(-6.0 - out, y, f"{words(level, 0)[0]} →", "end"), *labels]


# Maps a grid axis to its ruler's `words` and `axes`.
Named = Callable[[int], tuple[tuple[str, ...], tuple[RulerAxis, ...]]]


def rulers(
    grid: Grid,
    named: Named,
    spans: Sequence[int],
    edges: Collection[int] = (),
    away: tuple[float, float] = (0.0, 0.0),
) -> list[Ruler]:
    """Returns the rulers of a grid whose corner is at the origin, nearest first.

    Args:
        named: maps a grid axis to its ruler's `words` and `axes`.
        spans: per grid axis, how many elements or coordinates a cell covers.
        edges: the grid axes that are edges of an array.
        away: distance from the tiles to the text at the left and the top, in points.
    """
    ruler_list = []
    for level in grid.levels:
        axis, around = level.axis, grid.along(level.along)
        folded, span = axis in grid.folded, spans[axis]
        # Skip folded axes, because every fold would repeat their coordinates.
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
            # A folded edge has two rulers: one with text, one with the folds' bounds.
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
    """Returns the smallest power of two n for which every n-th label has room."""
    every = 1
    while every * pitch < needed and every < count:
        every *= 2
    return every


def ticks(
    grid: Grid, axes: Collection[int], steps: Sequence[int]
) -> tuple[list[Label], tuple[float, float]]:
    """Labels the bounds between blocks with as many numbers as fit.

    Args:
        axes: the grid axes that have ticks; folded axes get none.
        steps: per grid axis, the number of elements in a block.

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
        # In a narrow repetition, even the first and last number may not fit.
        if len(pitches) > 1 and min(pitches) < ends:
            continue
        keep = _kept(bounds, needed)
        for start in base[:64]:
            labels += _tick_labels(level.along, bounds[keep] + start, numbers[keep])
    return labels, (left, top)


def _kept(bounds: np.ndarray, needed: float) -> np.ndarray:
    """Returns the bounds with a number: equally spaced bounds, and the last bound."""
    last = len(bounds) - 1
    # The first number is moved inward, so the second one needs extra space.
    every = _every(1.4 * needed, float(bounds[1]), last)
    keep = np.arange(0, last, every)
    far = bounds[last] - bounds[keep] >= 1.4 * needed
    return np.append(keep[(keep == 0) | far], last)


def _tick_labels(along: int, at: np.ndarray, numbers: np.ndarray) -> list[Label]:
    labels = []
    for position, number in zip(at.tolist(), numbers.tolist(), strict=True):
        # The first and last numbers move inward, away from the neighbouring blocks.
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
    """Returns a frame around every host, if each host fills a rectangle on the page.

    If any host doesn't, there are no frames; only colour then shows the hosts.

    Args:
        corners: float64 [2, devices]: the top left corner of every device, in points.
        cell: width and height of a device's tile, in points.
        gap: the space between tiles, in points.
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
