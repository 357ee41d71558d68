"""Transfers: who sends which share of a collective to whom, before anything is routed.

A share is a part of the collective's `bytes_per_device`. The model is the scaling book's (part 3,
https://jax-ml.github.io/scaling-book/sharding): what is gathered, scattered or reduced goes around
rings in both directions at once, over every axis of the torus that the group spans; what is
exchanged goes straight to its receiver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardviz.core.layout.torus import Torus

MOST_PAIRS = 1 << 20  # pairs that are held at once


@dataclass(frozen=True)
class Transfers:
    """Sends between chips, one entry each.

    Attributes:
        source, target: int64 [sends]: chips.
        share: float64 [sends]: of the collective's bytes on each device.
        group: int64 [sends]: the group that sends.
    """

    source: np.ndarray
    target: np.ndarray
    share: np.ndarray
    group: np.ndarray


def ring_transfers(torus: Torus, chips: np.ndarray, group: np.ndarray, rounds: int) -> Iterator:
    """What groups of equal size send around rings.

    A group that fills a box of the torus, evenly spaced or not, uses rings along all its axes at
    once; an axis that closes to a ring carries twice what an open one does. Any other group is one
    ring in its own order.

    Args:
        chips: int64 [groups, members], each row without repeats.
        group: int64 [groups], the number of each.
        rounds: 1, or 2 for an all-reduce.
    """
    count = chips.shape[1]
    share = rounds * (count - 1) / count
    for rows, sizes in _boxes(torus, chips):
        if sizes is None:
            yield _ring(chips[rows], np.full(len(rows), share), group[rows])
            continue
        grid = np.sort(chips[rows], axis=1).reshape(len(rows), *reversed(sizes))
        weights = np.stack(
            [_capacity(torus, grid, axis, sizes) for axis in range(len(sizes))], axis=1
        )
        weights = weights / weights.sum(axis=1, keepdims=True)
        for axis, size in enumerate(sizes):
            if size > 1:
                lines = _lines(grid, axis)
                repeat = len(lines) // len(rows)
                part = np.repeat(share * weights[:, axis], repeat)
                yield _ring(lines, part, np.repeat(group[rows], repeat))


def exchange_transfers(
    torus: Torus, chips: np.ndarray, group: np.ndarray, share: float
) -> Iterator[Transfers]:
    """What groups of equal size send from every member to every other.

    Routed axis by axis, a group that fills a box loads the lines along each axis alike, so its
    pairs are counted a line at a time: 4,096 chips take thousands of sends instead of millions.

    Args:
        chips: int64 [groups, members], each row without repeats.
        group: int64 [groups], the number of each.
        share: what goes from one chip to another.
    """
    count = chips.shape[1]
    for rows, sizes in _boxes(torus, chips):
        if sizes is None:
            yield from pair_transfers(chips[rows], group[rows], share)
            continue
        grid = np.sort(chips[rows], axis=1).reshape(len(rows), *reversed(sizes))
        for axis, size in enumerate(sizes):
            if size > 1:
                lines = _lines(grid, axis)
                owner = np.repeat(group[rows], len(lines) // len(rows))
                yield from pair_transfers(lines, owner, share * count / size)


def _boxes(torus: Torus, chips: np.ndarray) -> Iterator[tuple[np.ndarray, tuple | None]]:
    """Rows of like shape, and the sizes of the box that each fills; None where it fills none."""
    place = np.sort(torus.coords[chips], axis=1)  # [groups, members, axes], each axis by itself
    sizes = (np.diff(place, axis=1) != 0).sum(axis=1) + 1
    sizes[sizes.prod(axis=1) != chips.shape[1]] = 0
    # A box lies in one slice; chips of several slices share coordinates.
    sizes[(torus.slice_of[chips] != torus.slice_of[chips[:, :1]]).any(axis=1)] = 0
    for shape in np.unique(sizes, axis=0):
        rows = np.flatnonzero((sizes == shape).all(axis=1))
        yield rows, tuple(shape.tolist()) if shape.all() else None


def _lines(grid: np.ndarray, axis: int) -> np.ndarray:
    """int64 [lines, size]: the chips of a box along one axis; chips count x fastest."""
    return np.moveaxis(grid, grid.ndim - 1 - axis, -1).reshape(-1, grid.shape[-1 - axis])


def _capacity(torus: Torus, grid: np.ndarray, axis: int, sizes: tuple[int, ...]) -> np.ndarray:
    """float64 [groups]: 2 where the axis of a box closes to a ring, 1 where open, 0 where flat."""
    if sizes[axis] == 1:
        return np.zeros(len(grid))
    first = _lines(grid, axis).reshape(len(grid), -1, sizes[axis])[:, 0]
    place = torus.coords[first][..., axis]
    even = (np.diff(place, axis=1) * sizes[axis] == torus.shape[axis]).all(axis=1)
    return np.where(even & torus.wraps[axis], 2.0, 1.0)


def _ring(lines: np.ndarray, share: np.ndarray, group: np.ndarray) -> Transfers:
    """Each member to the next and to the one before, half of the share each."""
    after = np.roll(lines, -1, axis=1)
    size = lines.shape[1]
    half, owner = np.repeat(share / 2, size), np.repeat(group, size)
    here, there = lines.reshape(-1), after.reshape(-1)
    return Transfers(
        np.concatenate([here, there]),
        np.concatenate([there, here]),
        np.concatenate([half, half]),
        np.concatenate([owner, owner]),
    )


def pair_transfers(lines: np.ndarray, group: np.ndarray, share: float) -> Iterator[Transfers]:
    """Every member of a row to every other, a block of rows at a time.

    Args:
        lines: int64 [rows, members], chips.
        group: int64 [rows], the number of each.
        share: what goes from one to another.
    """
    size = lines.shape[1]
    source, target = np.nonzero(~np.eye(size, dtype=bool))
    step = max(1, MOST_PAIRS // max(1, len(source)))
    for first in range(0, len(lines), step):
        some = lines[first : first + step]
        owner = np.repeat(group[first : first + step], len(source))
        here, there = some[:, source].reshape(-1), some[:, target].reshape(-1)
        yield Transfers(here, there, np.full(len(here), share), owner)
