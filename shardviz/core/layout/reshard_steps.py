"""Who sends what to whom when an array gets another layout on the same devices, and in which order.

What a device has already stays; the rest comes from the nearest device that has it. Transfers are
grouped into steps in which every device sends and receives at most one chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shardviz.core.errors import LayoutError
from shardviz.core.format import plural
from shardviz.core.layout.layout import Layout

MOST_SENT = 1 << 22  # of a reshard
_MOST_COLOURED = 1 << 17  # beyond, each distance is a step: as many, or a few more


@dataclass(frozen=True, eq=False)
class ReshardMoves:
    """What has to be sent for another layout of an array on the same devices.

    A chunk is what a block of one layout has in common with a block of the other. Devices are
    counted in the order of the first layout's mesh.

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
    """Who sends what to whom: what a device has stays, the rest comes from the nearest holder.

    Nearest is the same host, then any other; several holders take turns.

    Args:
        before, after: two layouts of one array on the same devices.
        hosts: int64 [devices], in the order of the first mesh.

    Raises:
        LayoutError: where the arrays or the devices differ, no device has a part, or there would
            be more than MOST_SENT.
    """
    _check_same(before, after)
    boxes, old, new = _common_boxes(before, after)
    positions = np.argsort(after.device_ids, kind="stable")
    own = np.empty(len(positions), np.int64)
    own[np.argsort(before.device_ids, kind="stable")] = after.groups[positions]
    by_new = np.argsort(new, kind="stable")
    counts = np.bincount(new, minlength=after.num_blocks)
    needed = counts[own]
    if needed.sum() > MOST_SENT:
        raise _too_many(int(needed.sum()))
    target = np.repeat(np.arange(len(own)), needed)
    starts = np.cumsum(counts) - counts
    inside = np.arange(len(target)) - np.repeat(np.cumsum(needed) - needed, needed)
    chunk = by_new[starts[own[target]] + inside]
    moving = old[chunk] != before.groups[target]
    target, chunk = target[moving], chunk[moving]
    source = _nearest_holders(before, old[chunk], target, hosts)
    return ReshardMoves(boxes, old, new, source, target, chunk, own)


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
        raise LayoutError(
            "A reshard is between two layouts on the same devices; got"
            f" {plural(len(ids[0]), 'device')} and {plural(len(ids[1]), 'device')}"
            f"{'' if len(ids[0]) != len(ids[1]) else ' with other ids'}. Lay both out on the"
            " devices of one mesh."
        )


def _common_boxes(before: Layout, after: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What blocks of the two layouts have in common; int64 [chunks, rank, 2], and their blocks."""
    cuts = []
    for size, one, other in zip(before.shape, before.shard_shape, after.shard_shape, strict=True):
        edges = {*range(0, size, max(one, 1)), *range(0, size, max(other, 1)), size}
        starts = np.array(sorted(edges), np.int64)
        cuts.append(np.stack([starts[:-1], starts[1:]], axis=1))
    counts = [len(cut) for cut in cuts]
    if math.prod(counts) > MOST_SENT:
        raise _too_many(math.prod(counts))
    at = np.indices(counts).reshape(len(counts), int(np.prod(counts)))
    boxes = (
        np.stack([cut[n] for cut, n in zip(cuts, at, strict=True)], axis=1)
        if cuts
        else (np.zeros((1, 0, 2), np.int64))
    )
    blocks = []
    for layout in (before, after):
        number = np.zeros(len(boxes), np.int64)
        for dim, (count, step) in enumerate(
            zip(layout.block_counts, layout.shard_shape, strict=True)
        ):
            number = number * count + boxes[:, dim, 0] // max(step, 1)
        blocks.append(number)
    return boxes, blocks[0], blocks[1]


def _nearest_holders(
    before: Layout, block: np.ndarray, target: np.ndarray, hosts: np.ndarray
) -> np.ndarray:
    """int64 [transfers]: the device that sends each block."""
    order = np.argsort(before.groups, kind="stable")
    counts = np.bincount(before.groups, minlength=before.num_blocks)
    if len(block) and not counts[block].all():
        raise LayoutError(
            "No device holds a part of the array in the first layout, so nobody can send it. Begin"
            " with a layout whose blocks cover the array."
        )
    starts, turn = np.cumsum(counts) - counts, before.replica_indices
    source = np.empty(len(block), np.int64)
    for first in range(0, len(block), 1 << 16):
        some = slice(first, first + (1 << 16))
        held, to = counts[block[some]], target[some]
        most = int(held.max())
        number = np.arange(most)
        # Of as many holders as there are devices that ask, each begins with another.
        rank = (turn[to][:, None] + number) % held[:, None]
        holders = order[starts[block[some]][:, None] + rank]
        far = hosts[holders] != hosts[to][:, None]
        source[some] = holders[np.arange(len(to)), np.argmin(far, axis=1)]
    return source


def chunks_by_block(block: np.ndarray) -> dict[int, np.ndarray]:
    """The chunks of each block.

    Args:
        block: int64 [chunks].
    """
    order = np.argsort(block, kind="stable")
    numbers, starts = np.unique(block[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))


def step_numbers(source: np.ndarray, target: np.ndarray, count: int) -> np.ndarray:
    """int64 [transfers]: a step for each, so that no device sends or receives twice in one.

    There are as many steps as the busiest device sends or receives (König's theorem on the edges
    of a bipartite graph); of very many transfers a few more.

    Args:
        source, target: int64 [transfers]; no pair twice.
        count: how many devices there are.

    >>> step_numbers(np.array([0, 1, 2]), np.array([1, 0, 1]), 3).tolist()
    [0, 0, 1]
    """
    distance = (target - source) % count
    if len(source) > _MOST_COLOURED:
        return np.unique(distance, return_inverse=True)[1].reshape(-1)
    if not len(source):
        return distance
    degree = max(np.bincount(source).max(), np.bincount(target).max())
    sent = [[-1] * degree for _ in range(count)]  # the transfer of each step, or -1
    received = [[-1] * degree for _ in range(count)]
    senders, receivers = source.tolist(), target.tolist()
    for edge in np.lexsort((source, distance)).tolist():
        here, there = sent[senders[edge]], received[receivers[edge]]
        step, other = here.index(-1), there.index(-1)
        free = next((n for n in range(degree) if here[n] == there[n] == -1), None)
        if free is None:
            _swap(sent, received, senders, receivers, receivers[edge], step, other)
            free = step
        here[free] = there[free] = edge
    found = np.empty(len(source), np.int64)
    for row in sent:
        for step, edge in enumerate(row):
            if edge >= 0:
                found[edge] = step
    return found


def _swap(
    sent: list[list[int]],
    received: list[list[int]],
    senders: list[int],
    receivers: list[int],
    start: int,
    step: int,
    other: int,
) -> None:
    """Swaps two steps along the path of transfers that begins at a receiver."""
    path, at = [], received[start][step]
    while at >= 0:
        path.append(at)
        wanted = other if len(path) % 2 else step
        row = sent[senders[at]] if len(path) % 2 else received[receivers[at]]
        at = row[wanted]
    for n, edge in enumerate(path):
        was = other if n % 2 else step
        for rows, ends in ((sent, senders), (received, receivers)):
            if rows[ends[edge]][was] == edge:
                rows[ends[edge]][was] = -1
    for n, edge in enumerate(path):
        now = step if n % 2 else other
        sent[senders[edge]][now] = received[receivers[edge]][now] = edge
