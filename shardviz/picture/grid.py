"""n-dimensional grids on a flat page: the position of every cell, with headers, ticks
and frames.

The last axis runs across, the one before it down, every further axis repeats what is
inside it as a block, across or down, whichever keeps the page in shape. An axis too
long for the page is folded like a line of text. The position of a cell is the sum of
one offset per axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.wording import pictures as wording
from shardviz.picture.page import text_width
from shardviz.picture.picture import Frame, Label

ASPECT = 1.7  # width over height that a page is steered to
PAGE = (960.0, 620.0)  # points: what is wider or higher is folded
BAND = 14.0  # the height of a row of labels, in points
AXIS_SIZE = 9.0
MOST_LABELS = 400
SMALL = 9.0  # points: smaller cells form an image rather than a table


@dataclass(frozen=True, eq=False)
class Level:
    """One repeat of cells or blocks along one direction of the page.

    Attributes:
        axis: the axis of the grid it belongs to.
        along: 0 across the page, 1 down.
        offsets: float64 [entries]: where each entry begins, in points.
        extent: how long an entry is, in points.
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
        """How long all entries are together, in points."""
        return float(self.offsets[-1]) + self.extent

    @property
    def pitch(self) -> float:
        """From the start of an entry to that of the next, in points."""
        return float(self.offsets[1]) if len(self.offsets) > 1 else self.extent


@dataclass(frozen=True, eq=False)
class Grid:
    """The positions of the cells of a grid.

    Attributes:
        shifts: per axis what its coordinate adds to x and to y: float64 [2, size].
        width, height: of all cells together, in points.
        levels: the repeats, from the cells outward.
        folded: the axes that are folded.
    """

    shifts: tuple[np.ndarray, ...]
    width: float
    height: float
    levels: tuple[Level, ...]
    folded: frozenset[int]

    def corners(self) -> np.ndarray:
        """float64 [2, cells]: x and y of the top left corner of every cell, row-major."""
        rank = len(self.shifts)
        total = np.zeros((2, *(1,) * rank))
        for axis, shift in enumerate(self.shifts):
            shape = [1] * rank
            shape[axis] = shift.shape[1]
            total = total + shift.reshape(2, *shape)
        return total.reshape(2, -1)

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
    """Finds the position of every cell.

    Args:
        sizes: the size of every axis; the last one runs across.
        cell: width and height of a cell, in points.
        gap: between cells, in points.
        shown: the axes that the page shows; the others must have size 1.
        page: the width and height beyond which a long axis is folded.
        block_gap: added to the gap between blocks for every level; by cell size where
            None.

    >>> arrange((4, 2), (10, 10), 2, (0, 1)).corners()[:, 3].tolist()
    [12.0, 12.0]
    """
    extra = block_gap
    if extra is None:
        extra = min(12.0, max(1.5, 0.45 * min(cell)))
    folds: dict[int, int] = {}
    while True:
        grid = _positions(sizes, cell, gap, shown, extra, folds)
        fold = _next_fold(grid, sizes, page, gap + extra)
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
        # One cell wide and tiny: a wider gap would not help to distinguish it from the
        # next.
        depth[along] += count > 1 or min(cell) >= SMALL
        return offsets

    for number, axis in enumerate(reversed(shown)):
        size, fold = sizes[axis], folds.get(axis)
        along = number if number < 2 else _better(extent, size, gap)
        index = np.arange(size)
        if fold is None:
            shifts[axis][along] = repeat(axis, along, size, 1)
        else:
            shifts[axis][along] = repeat(axis, along, fold, 1)[index % fold]
            folded = repeat(axis, 1 - along, -(-size // fold), fold)
            shifts[axis][1 - along] = folded[index // fold]
    return Grid(tuple(shifts), extent[0], extent[1], tuple(levels), frozenset(folds))


def _better(extent: list[float], size: int, gap: float) -> int:
    wide = (extent[0] + gap) * size / extent[1]
    high = extent[0] / ((extent[1] + gap) * size)
    return 0 if abs(math.log(wide / ASPECT)) <= abs(math.log(high / ASPECT)) else 1


def _next_fold(
    grid: Grid, sizes: Sequence[int], page: tuple[float, float], between: float
) -> tuple | None:
    """The axis to fold next and its length in a fold, or None where the page is in
    shape.
    """
    shape = (grid.width, grid.height)
    for along, wanted in ((0, ASPECT), (1, 1 / ASPECT)):
        long, other = shape[along], shape[1 - along]
        if long <= page[along] or long / other < 2 * wanted:
            continue
        # What is short already stays in one line: only what it is inside of is too
        # long.
        longest = None
        for level in grid.along(along):
            if level.axis in grid.folded or level.length <= page[along]:
                continue
            if longest is None or len(level.offsets) > len(longest.offsets):
                longest = level
        if longest is None or len(longest.offsets) < 8:
            continue
        # A fold has a label of its own; folds narrower than that share one, and are
        # closer.
        beside = 0.0
        if other >= BAND:
            beside = min(BAND, 2 * between)
        elif any(len(level.offsets) > 1 for level in grid.along(1 - along)):
            beside = between
        size, folded = sizes[longest.axis], (long, other + beside)
        distance = partial(_off, size, folded, wanted)
        return longest.axis, min(_lengths(size), key=distance)
    return None


def _off(
    size: int, shape: tuple[float, float], wanted: float, length: int
) -> tuple[float, int]:
    """How far folds of this length leave the page from the shape it should have."""
    along, across = shape[0] * length / size, shape[1] * -(-size // length)
    return round(abs(math.log(along / across / wanted)), 3), length


def _lengths(size: int) -> list[int]:
    """The lengths that folds may have: divisors where there are some, else powers of
    two.
    """
    divisors = [n for n in range(2, min(size // 2, 4096) + 1) if size % n == 0]
    return divisors or [1 << k for k in range(1, size.bit_length())]


@dataclass(frozen=True)
class Headers:
    """Labels around a grid, and the space they take on its left and top, in points."""

    labels: tuple[Label, ...]
    left: float
    top: float


def headers(
    grid: Grid,
    words: Callable[[Level, int], tuple[str, str]],
    away: tuple[float, float] = (0.0, 0.0),
    bare: frozenset[int] = frozenset(),
) -> Headers:
    """The labels of every level: across on top, down on the left, the inner ones
    nearest.

    Args:
        away: space between the grid and the nearest labels, left and top, in points.
        bare: axes whose single coordinates have no labels; their folds do.
        words: level and entry number to the name of the axis and the text of the entry.
    """
    labels: list[Label] = []
    left = top = 0.0
    folded = grid.folded | bare
    for along in (1, 0):
        levels = grid.along(along)
        # Where each block of the levels outside begins.
        base = np.zeros(1)
        for outer in reversed(range(len(levels))):
            level, inner = levels[outer], levels[:outer]
            inner = [other for other in inner if _has_words(other, folded)]
            if _continues(level, base):
                text = f"{words(level, 0)[0]} {wording.GOES_ON}"
                labels.append(Label(0.0, -8.0 - away[1], text, "start"))
                top = max(top, BAND + 2)
            elif _has_words(level, folded) and along:
                space = sum(_widest(other, words) + 8 for other in inner)
                labels += _down(level, base, words, -6.0 - away[0] - space)
                left = max(left, space + _widest(level, words) + 10)
            elif _has_words(level, folded):
                y = -8.0 - away[1] - BAND * len(inner)
                new = _across(level, base, words, y)
                labels += new
                # The name of the axis stands at the left of the first entry.
                if new[0].anchor == "end":
                    left = max(left, text_width(new[0].text, AXIS_SIZE) + 4 - new[0].x)
                top = max(top, BAND * (len(inner) + 1) + 2)
            base = (base[:, None] + level.offsets).reshape(-1)
    return Headers(tuple(labels), left + away[0], top + away[1])


def _has_words(level: Level, folded: frozenset[int]) -> bool:
    return level.span > 1 or level.axis not in folded


def _continues(level: Level, base: np.ndarray) -> bool:
    """Whether every line of another axis is folded, so finely that folds cannot have
    labels.
    """
    count = len(level.offsets)
    fine = _every(18.0, level.pitch, count) >= count > 1
    return level.along == 1 and level.span > 1 and len(base) > 1 and fine


def _widest(level: Level, words: Callable) -> float:
    width = 0.0
    for entry in (0, len(level.offsets) - 1):
        width = max(width, text_width(" ".join(words(level, entry)), AXIS_SIZE))
    return width


def _down(level: Level, base: np.ndarray, words: Callable, x: float) -> list[Label]:
    count, every, labels = len(level.offsets), 1, []
    if level.pitch < 10:
        every = _every(18.0, level.pitch, count)
    for start in base[:: max(1, len(base) * count // MOST_LABELS)]:
        for entry in range(0, count, every):
            y = float(start + level.offsets[entry] + level.extent / 2)
            labels.append(Label(x, y, " ".join(words(level, entry)), "end"))
    return labels


def _across(level: Level, base: np.ndarray, words: Callable, y: float) -> list[Label]:
    count, every, labels = len(level.offsets), 1, []
    full = _widest(level, words) + 4 <= level.pitch
    if not full:
        needed = text_width(words(level, count - 1)[1], AXIS_SIZE) + 8
        every = _every(needed, level.pitch, count)
    for start in base[:: max(1, len(base) * count // every // MOST_LABELS)]:
        for entry in range(0, count, every):
            x = float(start + level.offsets[entry] + level.extent / 2)
            name, text = words(level, entry)
            labels.append(Label(x, y, f"{name} {text}" if full else text))
    if full:
        return labels
    # The first word is centred on its entry, and may begin before it.
    out = max(0.0, text_width(labels[0].text, AXIS_SIZE) / 2 - labels[0].x)
    return [Label(-6.0 - out, y, f"{words(level, 0)[0]} →", "end"), *labels]


def _every(needed: float, pitch: float, count: int) -> int:
    """How many labels fit: 1 for every label, 2 for every second, 4 for every fourth …"""
    every = 1
    while every * pitch < needed and every < count:
        every *= 2
    return every


TICK_SIZE = 8.0


def _ticked(grid: Grid, axes: Collection[int]) -> list[Level]:
    """The levels that have ticks: those of `axes` that are in one line."""
    levels = []
    for level in grid.levels:
        if level.axis in axes and level.span == 1 and level.axis not in grid.folded:
            levels.append(level)
    return levels


def tick_margin(
    grid: Grid, axes: Collection[int], steps: Sequence[int]
) -> tuple[float, float]:
    """The space that ticks take at the left and at the top of a grid, in points.

    Args:
        axes: the axes of the grid that have ticks.
        steps: per axis the elements of a block.
    """
    left = top = 0.0
    for level in _ticked(grid, axes):
        if level.along == 0:
            top = 13.0
        else:
            left = text_width(str(level.size * steps[level.axis]), TICK_SIZE) + 8
    return left, top


def ticks(grid: Grid, axes: Collection[int], steps: Sequence[int]) -> list[Label]:
    """A number at every bound between blocks, as many as fit, and always at both ends."""
    labels: list[Label] = []
    for level in _ticked(grid, axes):
        base, pitches = np.zeros(1), [level.length]
        for other in grid.along(level.along):
            if other is not level:
                base = (base[:, None] + other.offsets).reshape(-1)
                pitches += [other.pitch] * (len(other.offsets) > 1)
        bounds = np.append(level.offsets, level.offsets[-1] + level.extent)
        numbers = np.arange(len(bounds)) * steps[level.axis]
        needed = 13.0 if level.along else text_width(str(numbers[-1]), TICK_SIZE) + 8
        # Not even the first and the last number may fit beside those of the next
        # repeat.
        ends = 2 * TICK_SIZE
        if not level.along:
            first, last = str(numbers[0]), str(numbers[-1])
            ends = text_width(first, TICK_SIZE) + text_width(last, TICK_SIZE) + 4
        if len(pitches) > 1 and min(pitches) < ends:
            continue
        keep = _kept(bounds, needed)
        for start in base[:64]:
            labels += _tick_labels(level.along, bounds[keep] + start, numbers[keep])
    return labels


def _kept(bounds: np.ndarray, needed: float) -> np.ndarray:
    """Which bounds have a number: as many as fit at equal steps, and the last one."""
    last = len(bounds) - 1
    pitch = float(bounds[1] - bounds[0])
    every = 1
    # The first is shifted inward from its bound, so the next one needs about half as
    # much again.
    while every * pitch < 1.4 * needed and every < last:
        every *= 2
    keep = np.arange(0, last, every)
    far = bounds[last] - bounds[keep] >= 1.4 * needed
    return np.append(keep[(keep == 0) | far], last)


def _tick_labels(along: int, at: np.ndarray, numbers: np.ndarray) -> list[Label]:
    labels = []
    for where, number in zip(at.tolist(), numbers.tolist(), strict=True):
        # Both ends stand inward, so that they don't touch what is beside the array.
        anchor, inward = "middle", 0.0
        if not labels:
            anchor, inward = "start", 4.0
        elif len(labels) == len(at) - 1:
            anchor, inward = "end", -4.0
        if along:
            labels.append(Label(-5.0, where + inward, str(number), "end", "tick"))
        else:
            labels.append(Label(where, -7.0, str(number), anchor, "tick"))
    return labels


MOST_DEVICES = 4096
MOST_FRAMES = 512


def host_frames(
    mesh: MeshSpec, corners: np.ndarray, cell: tuple[float, float], gap: float
) -> list[Frame]:
    """A dashed frame around every host: more than one where its devices are not
    adjacent.

    No frames for a single host, nor where they would be finer than a reader can see:
    there the colour and the tooltip show the host.

    Args:
        corners: float64 [2, devices], the top left corner of every device.
    """
    if len(mesh.processes) < 2 or mesh.size > MOST_DEVICES:
        return []
    _, row = np.unique(np.round(corners[1], 3), return_inverse=True)
    _, column = np.unique(np.round(corners[0], 3), return_inverse=True)
    hosts = np.full((row.max() + 1, column.max() + 1), -1, np.int64)
    device = np.empty(hosts.shape, np.int64)
    hosts[row, column] = mesh.process_indices.reshape(-1)
    device[row, column] = np.arange(mesh.size)
    runs = _runs(hosts)
    if len(runs) > MOST_FRAMES:
        return []
    out, frames = 0.42 * gap, []
    for top, bottom, left, right, process in runs:
        x, y = (corners[:, device[top, left]] - out).tolist()
        far_x, far_y = (corners[:, device[bottom, right]] + out).tolist()
        size = far_x - x + cell[0], far_y - y + cell[1]
        frames.append(Frame(x, y, *size, f"host {process}", dashed=gap >= 5))
    return frames


def _runs(hosts: np.ndarray) -> list[tuple[int, int, int, int, int]]:
    """Rectangles of one host in a 2-d array of hosts: top, bottom, left, right, host."""
    done: list[tuple[int, int, int, int, int]] = []
    # Runs of the row before, by their ends and host: the row in which each began.
    open_runs: dict[tuple[int, int, int], int] = {}
    for row in range(len(hosts) + 1):
        now = {}
        if row < len(hosts):
            breaks = np.flatnonzero(np.diff(hosts[row])).tolist()
            starts = [0, *(at + 1 for at in breaks)]
            for left, right in zip(starts, [*breaks, hosts.shape[1] - 1], strict=True):
                key = (left, right, int(hosts[row, left]))
                if key[2] >= 0:  # else there is no device
                    now[key] = open_runs.pop(key, row)
        for (left, right, host), top in open_runs.items():
            done.append((top, row - 1, left, right, host))
        open_runs = now
    return sorted(done)
