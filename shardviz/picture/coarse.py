"""Meshes and layouts of more devices than a page can show: a tile for several of them.

Beyond MOST_TILES devices nobody can tell tiles apart, and what is made for each device takes
seconds and gigabytes. So neighbours share a tile, which says how many they are and which is the
first; nothing is made for each device, but where the user gave its id or its host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardviz.core.format import FIRST_IDS, first_ids_text, ids_text, nested_ids_text
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec

MOST_TILES = 1 << 16


def tile_spans(
    sizes: Sequence[int], most: int = MOST_TILES, balanced: bool = False
) -> tuple[int, ...]:
    """How many coordinates a tile takes along every axis, so that at most `most` tiles are left.

    Each divides its size. From the last axis on, so that a tile is a run of neighbours in row-major
    order; or along the longest axis first where `balanced`.

    >>> tile_spans((8, 4, 2), 8), tile_spans((8, 8), 16, balanced=True), tile_spans((4, 2))
    ((1, 4, 2), (2, 2), (1, 1))
    """
    spans = [1] * len(sizes)
    while True:
        counts = [size // span for size, span in zip(sizes, spans, strict=True)]
        tiles = math.prod(counts)
        if tiles <= most:
            return tuple(spans)
        if balanced:
            axis, needed = max(range(len(counts)), key=lambda i: (counts[i], i)), 2
        else:
            axis, needed = max(i for i, n in enumerate(counts) if n > 1), -(-tiles // most)
        spans[axis] *= next((d for d in _divisors(counts[axis]) if d >= needed), counts[axis])


def _divisors(size: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(size) + 1) if size % d == 0]
    return [*small, *(size // d for d in reversed(small) if d * d != size)]


@dataclass(frozen=True, eq=False)
class DeviceRuns:
    """A mesh as tiles, each a run of devices that follow each other in mesh order.

    Attributes:
        mesh: the mesh.
        spans: how many coordinates of each axis a tile takes; all 1 for a tile per device.
        counts: how many tiles there are along each axis.

    >>> runs = device_runs(MeshSpec(("x", "y"), (4, 2)), most=4)
    >>> runs.spans, runs.length, runs.first.tolist()
    ((1, 2), 2, [0, 2, 4, 6])
    """

    mesh: MeshSpec
    spans: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def length(self) -> int:
        """How many devices a tile is."""
        return math.prod(self.spans)

    @property
    def first(self) -> np.ndarray:
        """int64 [tiles]: the position in the mesh of the first device of every tile."""
        return np.arange(math.prod(self.counts)) * self.length

    @property
    def ids(self) -> np.ndarray:
        """int64 [tiles]: the id of the first device of every tile."""
        if self.mesh.ids_are_positions:
            return self.first
        return self.mesh.device_ids.reshape(-1)[:: self.length]

    @property
    def hosts(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [tiles] each: the lowest and the highest process in every tile."""
        if len(self.mesh.processes) == 1:
            own = np.broadcast_to(np.int64(self.mesh.processes[0]), math.prod(self.counts))
            return own, own
        hosts = self.mesh.process_indices.reshape(-1, self.length)
        return hosts.min(1), hosts.max(1)

    def blocks(self, layout: Layout) -> tuple[np.ndarray, int]:
        """int64 [tiles]: the block of the first device; and how many blocks a tile has."""
        strides = layout.group_strides
        if strides is None:
            return layout.groups[:: self.length], 1
        number = np.zeros((1,) * len(self.counts), np.int64)
        for axis, (count, span, stride) in enumerate(
            zip(self.counts, self.spans, strides, strict=True)
        ):
            shape = [1] * len(self.counts)
            shape[axis] = -1
            number = number + (np.arange(count) * (span * stride)).reshape(shape)
        distinct = math.prod(n for n, stride in zip(self.spans, strides, strict=True) if stride)
        return np.broadcast_to(number, self.counts).reshape(-1), distinct


def device_runs(mesh: MeshSpec, most: int = MOST_TILES) -> DeviceRuns:
    """The tiles of a mesh: one for each device where these are at most `most`."""
    spans = tile_spans(mesh.axis_sizes, most)
    counts = tuple(size // span for size, span in zip(mesh.axis_sizes, spans, strict=True))
    return DeviceRuns(mesh, spans, counts)


def is_large(layout: Layout) -> bool:
    """Whether a layout has more devices or blocks than a page has tiles for."""
    return layout.spec is not None and layout.mesh.size > MOST_TILES


def coarse_layout(layout: Layout, axes: Sequence[int]) -> Layout:
    """A layout with neighbouring blocks joined, so that at most MOST_TILES are shown.

    Only what says where blocks are holds for it: `block_counts` and `shard_shape`.

    Args:
        axes: the dimensions that the page shows.
    """
    counts, shard = list(layout.block_counts), list(layout.shard_shape)
    spans = tile_spans([counts[d] for d in axes], balanced=True)
    for dim, span in zip(axes, spans, strict=True):
        counts[dim] //= span
        shard[dim] *= span
    return replace(layout, block_counts=tuple(counts), shard_shape=tuple(shard))


def first_holders(layout: Layout, groups: np.ndarray) -> np.ndarray:
    """int64 [groups]: the id of the first device that holds each block."""
    return _ids_at(layout.mesh, _first_positions(layout, groups))


def _first_positions(layout: Layout, groups: np.ndarray) -> np.ndarray:
    position = np.zeros(len(groups), np.int64)
    for size, stride, step in _axes(layout):
        if stride:
            position += groups // stride % size * step
    return position


def _ids_at(mesh: MeshSpec, positions: np.ndarray) -> np.ndarray:
    return positions if mesh.ids_are_positions else mesh.device_ids.reshape(-1)[positions]


def _axes(layout: Layout) -> list[tuple[int, int, int]]:
    """Per mesh axis its size, its stride in block numbers, and its stride in positions."""
    sizes = layout.mesh.axis_sizes
    steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return list(zip(sizes, layout.group_strides or (), steps, strict=True))


def holders_text(layout: Layout, group: int, limit: int = 0) -> str:
    """The ids of the devices that hold a block, as `ids_text` writes them.

    Of a mesh with ids that the user gave, the first few where it is large.
    """
    if not is_large(layout):
        return ids_text(layout.holders(group), limit)
    first = int(_first_positions(layout, np.array([group]))[0])
    copies = [(size, step) for size, stride, step in reversed(_axes(layout)) if not stride]
    return _ids_in_order(layout.mesh, first, copies, limit)


def ids_by_block(layout: Layout) -> str:
    """The ids of all devices, block by block in row-major order, as `ids_text` writes them."""
    axes = _axes(layout)
    copies = [(size, step) for size, stride, step in reversed(axes) if not stride]
    split = sorted((stride, size, step) for size, stride, step in axes if stride)
    order = [*copies, *((size, step) for _, size, step in split)]
    return _ids_in_order(layout.mesh, 0, order, 0)


def mesh_ids_text(mesh: MeshSpec, index: tuple[int, ...] = (), limit: int = 0) -> str:
    """The ids of the devices at the first coordinates of a mesh, as `ids_text` writes them.

    >>> mesh_ids_text(MeshSpec(("x", "y"), (4, 2)), (1,))
    '2, 3'
    """
    if not mesh.ids_are_positions:
        return ids_text(mesh.device_ids[index], limit)
    count = math.prod(mesh.axis_sizes[len(index) :])
    first = 0
    for at, size in zip(index, mesh.axis_sizes, strict=False):
        first = first * size + at
    return ids_text(range(first * count, (first + 1) * count), limit)


def _ids_in_order(mesh: MeshSpec, first: int, order: list[tuple[int, int]], limit: int) -> str:
    """The ids at positions that are counted from the innermost `(count, step)` outward."""
    count = math.prod(n for n, _ in order)
    if mesh.ids_are_positions:
        text = nested_ids_text(first, order)
        return text if not limit or len(text) <= limit else f"{count:,} devices"
    if limit:
        return f"{count:,} devices"
    positions = np.array([first], np.int64)
    for size, step in order:
        positions = (np.arange(min(size, FIRST_IDS))[:, None] * step + positions).reshape(-1)
        if len(positions) >= FIRST_IDS:
            break
    return first_ids_text(_ids_at(mesh, positions[:FIRST_IDS]), count)
