"""reshard_moves(): what is sent between two layouts of an array.

What a device has already stays; the rest comes from the nearest device that has it: of
the same host, or else of any other, and several that are equally near take turns. So
the bytes that a device receives depend on the layouts alone, and those that it sends on
this choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardviz.core.errors import LayoutError
from shardviz.core.format import plural
from shardviz.core.layout.layout import Layout

MOST_SENT = 1 << 22  # chunks of one array


@dataclass(frozen=True, eq=False)
class ReshardMoves:
    """What has to be sent for another layout of an array on the same devices.

    A chunk is what a block of one layout has in common with a block of the other.
    Devices are counted in the order of the first layout's mesh.

    Attributes:
        bounds: int64 [chunks, rank, 2]: from where to where each chunk goes.
        old, new: int64 [chunks]: the block of each layout that it is in.
        source, target, chunk: int64 [transfers].
        after: int64 [devices]: the block of the new layout of each device.
    """

    bounds: np.ndarray
    old: np.ndarray
    new: np.ndarray
    source: np.ndarray
    target: np.ndarray
    chunk: np.ndarray
    after: np.ndarray


def reshard_moves(before: Layout, after: Layout, hosts: np.ndarray) -> ReshardMoves:
    """Who sends what to whom between two layouts on the same devices.

    Args:
        before, after: two layouts of one array on the same devices.
        hosts: int64 [devices], in the order of the first mesh.
    """
    _check_same(before, after)
    bounds, old, new = common_chunks(
        before.shape, before.shard_shape, after.shard_shape
    )
    positions = np.argsort(after.device_ids, kind="stable")
    own = np.empty(len(positions), np.int64)
    own[np.argsort(before.device_ids, kind="stable")] = after.groups[positions]
    source, target, chunk = find_sends(before.groups, own, old, new, hosts)
    order = np.lexsort((chunk, target))
    return ReshardMoves(
        bounds, old, new, source[order], target[order], chunk[order], own
    )


def _too_many(chunks: int) -> LayoutError:
    return LayoutError(
        f"This reshard is about {plural(chunks, 'chunk')}; steps are made for at most"
        f" {MOST_SENT:,}. Take a smaller mesh with the same axes."
    )


def _check_same(before: Layout, after: Layout) -> None:
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        raise LayoutError(
            f"A reshard is between two layouts of one array; got {before.dtype}"
            f"{list(before.shape)} and {after.dtype}{list(after.shape)}."
        )
    ids = [np.sort(layout.device_ids) for layout in (before, after)]
    if not np.array_equal(ids[0], ids[1]):
        counts = [plural(len(side), "device") for side in ids]
        raise LayoutError(
            f"A reshard is between two layouts on the same devices; got {counts[0]} and"
            f" {counts[1]}, not all with the same ids. Lay both out on the devices of one mesh."
        )


def common_chunks(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What blocks of these shapes have in common: int64 [chunks, rank, 2], and where."""
    ranges = []
    for size, one, other in zip(shape, before, after, strict=True):
        # A dimension of size 0 has blocks of size 0.
        starts = [*range(0, size, max(one, 1)), *range(0, size, max(other, 1))]
        edges = np.unique([*starts, size])
        ranges.append(np.stack([edges[:-1], edges[1:]], axis=1))
    counts = list(map(len, ranges))
    if (total := math.prod(counts)) > MOST_SENT:
        raise _too_many(total)
    at = np.indices(counts).reshape(len(counts), total)
    bounds = np.zeros((total, len(counts), 2), np.int64)
    blocks = np.zeros((2, total), np.int64)
    for dim, intervals in enumerate(ranges):
        bounds[:, dim] = intervals[at[dim]]
        for number, steps in zip(blocks, (before, after), strict=True):
            step = max(steps[dim], 1)
            number *= -(-shape[dim] // step)
            number += bounds[:, dim, 0] // step
    return bounds, blocks[0], blocks[1]


def find_sends(
    held: np.ndarray,
    wanted: np.ndarray,
    old: np.ndarray,
    new: np.ndarray,
    hosts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sender, receiver and chunk of all that is sent, by old block.

    Args:
        held, wanted: int64 [devices]: the old block and the new block of each, or -1.
        old, new: int64 [chunks]: the blocks that each chunk is in.
        hosts: int64 [devices].
    """
    receivers = np.flatnonzero(wanted >= 0)
    receivers = receivers[np.argsort(wanted[receivers], kind="stable")]
    counts = np.bincount(wanted[receivers], minlength=int(new.max(initial=0)) + 1)
    by_old = np.argsort(old, kind="stable")
    needed = counts[new[by_old]]
    if needed.sum() > MOST_SENT:
        raise _too_many(int(needed.sum()))
    chunk = np.repeat(by_old, needed)
    starts = np.cumsum(counts) - counts
    inside = np.arange(len(chunk)) - np.repeat(np.cumsum(needed) - needed, needed)
    target = receivers[starts[new[chunk]] + inside]
    # What a device holds already is not sent to it.
    moving = old[chunk] != held[target]
    target, chunk = target[moving], chunk[moving]
    return _nearest_holders(held, old[chunk], target, hosts), target, chunk


def _nearest_holders(
    held: np.ndarray, block: np.ndarray, target: np.ndarray, hosts: np.ndarray
) -> np.ndarray:
    """int64 [sends]: the device that sends each block, of the same host where possible.

    Of several that are equally near, each sends as often as the others, give or take
    one.
    """
    host = np.unique(hosts, return_inverse=True)[1].reshape(-1)
    count = int(host.max(initial=0)) + 1
    holders = np.flatnonzero(held >= 0)
    holders = holders[np.argsort(held[holders] * count + host[holders], kind="stable")]
    here = held[holders] * count + host[holders]  # ascending
    source = np.full(len(block), -1)
    for keys, wanted in ((here, block * count + host[target]), (here // count, block)):
        left = np.flatnonzero(source < 0)
        first = np.searchsorted(keys, wanted[left], "left")
        near = np.searchsorted(keys, wanted[left], "right") - first
        there = near > 0
        turn = _earlier_equal(wanted[left[there]]) % near[there]
        source[left[there]] = holders[first[there] + turn]
    if (source < 0).any():
        raise LayoutError(
            "No device holds a part of the array in the first layout, so nobody can send it. Begin"
            " with a layout whose blocks cover the array."
        )
    return source


def _earlier_equal(keys: np.ndarray) -> np.ndarray:
    """int64: how many keys before each are equal to it."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    runs = np.diff(first, append=len(keys))
    earlier = np.empty(len(keys), np.int64)
    earlier[order] = np.arange(len(keys)) - np.repeat(first, runs)
    return earlier


def step_numbers(source: np.ndarray, target: np.ndarray, count: int) -> np.ndarray:
    """int64 [transfers]: a step for each, so that no device sends or receives twice in
    one.

    Each distance between sender and receiver is a step.

    Args:
        source, target: int64 [transfers]; no pair twice.
        count: how many devices there are.

    >>> step_numbers(np.array([0, 1, 2]), np.array([1, 0, 1]), 3).tolist()
    [0, 1, 1]
    """
    distances = (target - source) % count
    return np.unique(distances, return_inverse=True)[1].reshape(-1)
