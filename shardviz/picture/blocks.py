"""What a page shows of an array's blocks, and of devices where there are many.

A block is a part of an array that some devices hold. Beyond MOST_TILES devices nobody
can tell tiles apart, and what is made for each device takes seconds and gigabytes. So
neighbours share a tile, which says how many they are and which is the first; nothing is
made for each device, except where the user gave its id or its host.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.errors import LayoutError
from shardviz.core.format import (
    FIRST_IDS,
    first_ids_text,
    ids_text,
    nested_ids_text,
    plural,
    shown,
)
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import limited
from shardviz.core.layout.partition_spec import MAX_RANK

MOST_TILES = 1 << 16
MOST_BLOCKS = 1 << 20


@dataclass(frozen=True)
class BlockSelection:
    """Which blocks of an array are shown.

    Attributes:
        dims: the dimensions on the page: rows and columns, or columns, or none.
        steps: the other dimensions that are split.
        at: per step the number of the block that is shown; None where all are.
    """

    dims: tuple[int, ...]
    steps: tuple[int, ...]
    at: tuple[int, ...] | None

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions that a page has, the last one across."""
        return self.dims if self.at is not None else (*self.steps, *self.dims)


def select_blocks(layout: Layout, dims: Any = None, at: Any = None) -> BlockSelection:
    """Chooses the blocks to show.

    Args:
        dims: the dimensions for rows and columns; the first two that are split where
            None.
        at: the number of the block to show for every dimension that is not in `dims`,
            in order; 0 for those not given, and the last block for a number beyond it.
            None shows all.

    Raises:
        LayoutError: for dimensions that the array lacks, or for anything but numbers.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> layout = lay_out((4, 6, 8), Spec.parse("x, None, y"), make_mesh(x=2, y=4))
    >>> select_blocks(layout).dims, select_blocks(layout, (0, 1), (0, )).at
    ((0, 2), (0,))
    """
    counts = layout.block_counts
    page = _page_dims(counts, dims)
    hidden = [dim for dim in range(layout.rank) if dim not in page]
    steps = tuple(dim for dim in hidden if counts[dim] > 1)
    if at is None:
        return BlockSelection(page, steps, None if steps else ())
    given = dict(zip(hidden, _numbers(at), strict=False))
    chosen = [min(given.get(dim, 0), counts[dim] - 1) for dim in steps]
    return BlockSelection(page, steps, tuple(chosen))


def _page_dims(counts: Sequence[int], dims: Any) -> tuple[int, ...]:
    rank = len(counts)
    if rank < 2:
        return tuple(range(rank))
    if dims is None:
        # Sorting keeps their order: those that are split come first.
        order = sorted(range(rank), key=lambda dim: counts[dim] == 1)
        return tuple(sorted(order[:2]))
    page = _numbers(dims)
    if len(page) != 2 or page[0] == page[1] or max(page) >= rank:
        raise LayoutError(
            f"A page shows two dimensions of the array's {rank}; got {shown(dims)}."
            " Write dims=(0, 1)."
        )
    return page


def _numbers(values: Any) -> tuple[int, ...]:
    try:
        numbers = limited(values, MAX_RANK, "Dimensions and blocks", LayoutError)
        counted = tuple(map(operator.index, numbers))
    except TypeError:
        counted = (-1,)
    if min(counted, default=0) < 0:
        raise LayoutError(
            f"Dimensions and blocks are counted from 0; got {shown(values)}."
        )
    return counted


def block_numbers(
    layout: Layout, selection: BlockSelection, counts: Sequence[int] | None = None
) -> np.ndarray:
    """int64 [tiles]: the row-major number of every block shown, in the order of the
    page.

    Args:
        counts: per dimension how many of its blocks to take, at equal steps; all if
            None.
    """
    counts = counts or layout.block_counts
    strides = _strides(layout.block_counts)
    first, terms = 0, []
    for dim, block in zip(selection.steps, selection.at or (), strict=False):
        first += block * strides[dim]
    for dim in selection.axes:
        step = layout.block_counts[dim] // counts[dim] * strides[dim]
        terms.append(np.arange(counts[dim]) * step)
    return _outer_sum(terms, first)


def _strides(sizes: Sequence[int]) -> list[int]:
    """Row-major: how far two neighbours along each axis are apart."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _outer_sum(terms: Sequence[np.ndarray], first: int = 0) -> np.ndarray:
    """int64 [product of sizes]: `first` plus one of each of the terms, row-major."""
    total = np.full((), first, np.int64)
    for term in terms:
        total = total[..., None] + term
    return total.reshape(-1)


def holders_of(layout: Layout, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The devices of every block: offsets int64 [blocks + 1], and ids int64 in mesh
    order.

    Those of `blocks[i]` are `ids[offsets[i]:offsets[i + 1]]`.
    """
    order = _by_block(layout)
    counts = np.bincount(layout.groups, minlength=layout.num_blocks)
    if len(blocks) == len(counts) and (blocks == np.arange(len(blocks))).all():
        return np.concatenate([[0], np.cumsum(counts)]), layout.device_ids[order]
    starts = np.cumsum(counts) - counts
    lengths = counts[blocks]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    at = order[np.repeat(starts[blocks], lengths) + inside]
    return offsets, layout.device_ids[at]


def _by_block(layout: Layout) -> np.ndarray:
    """The positions of all devices, those of one block after those of the one before.

    Sorting a million devices takes longer than everything else that is drawn. Block
    numbers are sums of strides, so the sorted position of every device can be computed.
    """
    strides = layout.group_strides
    if strides is None:
        return np.argsort(layout.groups, kind="stable")
    terms, copies = [], 1
    for size, stride in reversed(_pairs(layout.mesh.axis_sizes, strides)):
        # An axis that splits nothing copies every block: it counts the replicas.
        terms.insert(0, np.arange(size) * (0 if stride else copies))
        copies *= 1 if stride else size
    positions = layout.groups * copies + _outer_sum(terms)
    order = np.empty(layout.groups.size, np.int64)
    order[positions] = np.arange(layout.groups.size)
    return order


def _pairs(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(one, other, strict=True))


def bounds_text(layout: Layout, dim: int, first: int, last: int) -> str:
    """`[0:64]`: the elements of blocks `first` to `last` of a dimension."""
    step = layout.shard_shape[dim]
    return f"[{first * step}:{(last + 1) * step}]"


def dimension_text(
    layout: Layout, dim: int, logical: Sequence[str | None] | None
) -> str:
    """`dimension 1 mlp → model`: which mesh axes split a dimension, or that none does."""
    name = f"dimension {dim}"
    if logical is not None and logical[dim] is not None:
        name += f" {logical[dim]}"
    spec, count = layout.spec, layout.block_counts[dim]
    if spec is not None and dim < len(spec.dims) and spec.dims[dim]:
        return f"{name} → {', '.join(spec.dims[dim])}"
    # A sharding without a spec says only how many blocks there are.
    return f"{name} not split" if count == 1 else f"{name}: {plural(count, 'block')}"


def check_drawable(layout: Layout) -> None:
    """Refuses a layout of far more blocks than devices, such as one small shard of a
    huge array.

    Raises:
        LayoutError: with the numbers.
    """
    if layout.num_blocks > max(MOST_BLOCKS, layout.mesh.size):
        raise LayoutError(
            f"The shard indices split the array into {layout.num_blocks:,} blocks, of"
            f" which {plural(layout.mesh.size, 'device')} hold a few; at most"
            f" {MOST_BLOCKS:,} can be drawn. Read the shard indices from layout.starts and"
            " layout.stops."
        )


def array_title(layout: Layout, name: str = "") -> str:
    """`w bf16[512, 2048]`."""
    short = ArraySpec("array", layout.shape, None, layout.dtype).short
    return f"{name} {short}".strip()


def tile_spans(
    sizes: Sequence[int], most: int = MOST_TILES, balanced: bool = False
) -> tuple[int, ...]:
    """How many coordinates a tile takes along every axis, for at most `most` tiles.

    Each divides its size. From the last axis on, so that a tile is a run of neighbours
    in row-major order; or along the longest axis first where `balanced`.

    >>> tile_spans((8, 4, 2), 8), tile_spans((8, 8), 16, balanced=True), tile_spans((4, 2))
    ((1, 4, 2), (2, 2), (1, 1))
    """
    counts = list(sizes)
    while math.prod(counts) > most:
        needed = 2
        if balanced:
            axis = max(range(len(counts)), key=lambda i: (counts[i], i))
        else:
            axis = max(i for i, count in enumerate(counts) if count > 1)
            needed = -(-math.prod(counts) // most)
        counts[axis] //= _divisor(counts[axis], needed)
    return tuple(size // count for size, count in zip(sizes, counts, strict=True))


def _divisor(size: int, least: int) -> int:
    """The least divisor of a size that is as large as needed; the size where none is."""
    best = size
    # Divisors come in pairs, of which one is no larger than the root.
    for low in range(1, math.isqrt(size) + 1):
        if size % low == 0:
            for divisor in (low, size // low):
                if least <= divisor < best:
                    best = divisor
    return best


@dataclass(frozen=True, eq=False)
class DeviceRuns:
    """A mesh as tiles, each a run of devices that follow each other in mesh order.

    Attributes:
        mesh: the mesh.
        spans: how many coordinates of each axis a tile takes; all 1 for a tile per
            device.
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

    @cached_property
    def hosts(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [tiles] each: the lowest and the highest process in every tile."""
        if hosts := self.mesh.even_hosts:
            each, first = self.mesh.size // hosts, self.first
            return first // each, (first + self.length - 1) // each
        processes = self.mesh.process_indices.reshape(-1, self.length)
        return processes.min(1), processes.max(1)

    def blocks(self, layout: Layout) -> tuple[np.ndarray, int]:
        """int64 [tiles]: the block of the first device; and how many blocks a tile has."""
        strides = layout.group_strides
        if strides is None:
            return layout.groups[:: self.length], 1
        terms, distinct = [], 1
        for axis, stride in enumerate(strides):
            span = self.spans[axis]
            terms.append(np.arange(self.counts[axis]) * (span * stride))
            distinct *= span if stride else 1
        return _outer_sum(terms), distinct


def device_runs(mesh: MeshSpec, most: int = MOST_TILES) -> DeviceRuns:
    """The tiles of a mesh: one for each device where these are at most `most`."""
    spans = tile_spans(mesh.axis_sizes, most)
    counts = [size // span for size, span in _pairs(mesh.axis_sizes, spans)]
    return DeviceRuns(mesh, spans, tuple(counts))


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
    for axis in _axes(layout):
        if axis.stride:
            position += groups // axis.stride % axis.size * axis.step
    return position


def _ids_at(mesh: MeshSpec, positions: np.ndarray) -> np.ndarray:
    if mesh.ids_are_positions:
        return positions
    return mesh.device_ids.reshape(-1)[positions]


@dataclass(frozen=True)
class _Axis:
    """A mesh axis: its size, its stride in block numbers, and in positions.

    The stride in block numbers is 0 where the axis splits nothing.
    """

    size: int
    stride: int
    step: int


def _axes(layout: Layout) -> list[_Axis]:
    sizes, strides = layout.mesh.axis_sizes, layout.group_strides or ()
    return list(map(_Axis, sizes, strides, _strides(sizes)))


def holders_text(layout: Layout, group: int, limit: int = 0) -> str:
    """The ids of the devices that hold a block, as `ids_text` writes them.

    Of a mesh with ids that the user gave, the first few where it is large.
    """
    if not is_large(layout):
        return ids_text(layout.holders(group), limit)
    first = int(_first_positions(layout, np.array([group]))[0])
    copies = [axis for axis in reversed(_axes(layout)) if not axis.stride]
    return _ids_in_order(layout.mesh, first, copies, limit)


def ids_by_block(layout: Layout) -> str:
    """The ids of all devices, block by block in row-major order, as `ids_text`."""
    # The replicas of a block first, from the last axis on; then the blocks by number.
    axes = _axes(layout)[::-1]
    axes.sort(key=lambda axis: axis.stride)
    return _ids_in_order(layout.mesh, 0, axes, 0)


def mesh_ids_text(mesh: MeshSpec, index: tuple[int, ...] = (), limit: int = 0) -> str:
    """The ids at the first coordinates of a mesh, as `ids_text` writes them.

    >>> mesh_ids_text(MeshSpec(("x", "y"), (4, 2)), (1,))
    '2, 3'
    """
    if not mesh.ids_are_positions:
        return ids_text(mesh.device_ids[index], limit)
    first = 0
    for at, size in zip(index, mesh.axis_sizes, strict=False):
        first = first * size + at
    count = math.prod(mesh.axis_sizes[len(index) :])
    return ids_text(range(first * count, (first + 1) * count), limit)


def _ids_in_order(mesh: MeshSpec, first: int, axes: Sequence[_Axis], limit: int) -> str:
    """The ids at positions that are counted from the innermost axis outward."""
    count = math.prod(axis.size for axis in axes)
    if mesh.ids_are_positions:
        text = nested_ids_text(first, [(axis.size, axis.step) for axis in axes])
        return text if not limit or len(text) <= limit else f"{count:,} devices"
    if limit:
        return f"{count:,} devices"
    positions = np.array([first], np.int64)
    for axis in axes:
        more = np.arange(min(axis.size, FIRST_IDS))[:, None] * axis.step
        positions = (more + positions).reshape(-1)
        # Ids without a pattern: the first few are enough.
        if len(positions) >= FIRST_IDS:
            break
    return first_ids_text(_ids_at(mesh, positions[:FIRST_IDS]), count)
