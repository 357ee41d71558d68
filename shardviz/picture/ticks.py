"""Ticks at the bounds of blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from shardviz.picture.grid import Grid, Level
from shardviz.picture.measure import text_width
from shardviz.picture.shapes import Label

TICK_SIZE = 8.0


def _ticked(grid: Grid, axes: Collection[int]) -> list[Level]:
    return [v for v in grid.levels if v.axis in axes and v.span == 1 and v.axis not in grid.folded]


def tick_room(grid: Grid, axes: Collection[int], steps: Sequence[int]) -> tuple[float, float]:
    """The room that ticks take at the left and at the top of a grid, in points.

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
    """A number at every bound between blocks, as many as there is room for, the ends always."""
    labels: list[Label] = []
    for level in _ticked(grid, axes):
        outer = [v for v in grid.levels if v.along == level.along and v is not level]
        base = np.zeros(1)
        for other in outer:
            base = (base[:, None] + other.offsets).reshape(-1)
        bounds = np.append(level.offsets, level.offsets[-1] + level.extent)
        numbers = np.arange(len(bounds)) * steps[level.axis]
        room = 13.0 if level.along else text_width(str(numbers[-1]), TICK_SIZE) + 8
        if _crowded(level, outer, numbers):
            continue
        keep = _kept(bounds, room)
        for start in base[:64]:
            labels += _set(level.along, bounds[keep] + start, numbers[keep], len(bounds) - 1)
    return labels


def _crowded(level: Level, outer: Sequence[Level], numbers: np.ndarray) -> bool:
    """Whether not even the first and the last number have room beside those of the next repeat."""
    long = float(level.offsets[-1]) + level.extent
    ends = [text_width(str(numbers[i]), TICK_SIZE) for i in (0, -1)]
    need = 2 * TICK_SIZE if level.along else sum(ends) + 4
    repeats = [v.pitch for v in outer if len(v.offsets) > 1]
    return bool(repeats) and min([long, *repeats]) < need


def _kept(bounds: np.ndarray, room: float) -> np.ndarray:
    """Every so many bounds, and the last one; none of them nearer than `room` to another."""
    last = len(bounds) - 1
    pitch = float(bounds[1] - bounds[0])
    every = 1
    # The first stands inward of its bound, so the next one needs half as much room again.
    while every * pitch < 1.4 * room and every < last:
        every *= 2
    keep = np.arange(0, last, every)
    return np.append(keep[(keep == 0) | (bounds[last] - bounds[keep] >= 1.4 * room)], last)


def _set(along: int, at: np.ndarray, numbers: np.ndarray, last: int) -> list[Label]:
    labels = []
    for place, (where, number) in enumerate(zip(at.tolist(), numbers.tolist(), strict=True)):
        first, end = place == 0, place == len(at) - 1
        if along:
            inward = 4.0 if first else -4.0 if end else 0.0
            labels.append(Label(-5.0, where + inward, str(number), "end", "tick"))
        else:
            anchor = "start" if first else "end" if end else "middle"
            labels.append(Label(where, -7.0, str(number), anchor, "tick"))
    return labels
