"""What a page shows of an array's blocks, and of devices where there are many.

A block is a part of an array that some devices hold. Beyond MOST_TILES devices nobody
can tell tiles apart, so neighbours share a tile, which says how many they are and which
is the first; pictures make nothing for each device then.
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
from shardviz.core.format import ids_text, nested_ids_text, plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec

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
        if self.at is not None:
            return self.dims
        return (*self.steps, *self.dims)


def select_blocks(layout: Layout, dims: Any = None, at: Any = None) -> BlockSelection:
    """Chooses the blocks to show.

    Args:
        dims: the dimensions for rows and columns; the first two that are split where
            None.
        at: the number of the block for every dimension that is not in `dims`, in order;
            0 for those not given, the last block for a number beyond it. None shows
            all.

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
    page = tuple(range(layout.rank))
    if layout.rank > 1 and dims is None:
        # Sorting keeps their order: those that are split come first.
        order = sorted(page, key=lambda dim: counts[dim] == 1)
        page = tuple(sorted(order[:2]))
    elif layout.rank > 1:
        page = _numbers(dims)
        if len(page) != 2 or page[0] == page[1] or max(page) >= layout.rank:
            raise LayoutError(
                f"A page shows two dimensions of the array's {layout.rank}; got"
                f" {shown(dims)}. Write dims=(0, 1)."
            )
    hidden = [dim for dim in range(layout.rank) if dim not in page]
    steps = tuple(dim for dim in hidden if counts[dim] > 1)
    if at is None:
        return BlockSelection(page, steps, None if steps else ())
    given = dict(zip(hidden, _numbers(at), strict=False))
    chosen = [min(given.get(dim, 0), counts[dim] - 1) for dim in steps]
    return BlockSelection(page, steps, tuple(chosen))


def _numbers(values: Any) -> tuple[int, ...]:
    try:
        numbers = tuple(map(operator.index, values))
    except TypeError:
        numbers = (-1,)
    if min(numbers, default=0) < 0:
        raise LayoutError(
            f"Dimensions and blocks are counted from 0; got {shown(values)}."
        )
    return numbers


def block_numbers(
    layout: Layout, selection: BlockSelection, counts: Sequence[int] | None = None
) -> np.ndarray:
    """int64 [tiles]: the row-major number of every block shown, in page order.

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
    """The devices of every block: offsets int64 [blocks + 1], and ids in mesh order.

    Those of `blocks[i]` are `ids[offsets[i]:offsets[i + 1]]`.
    """
    # Of numbers of 16 bits numpy sorts 65,536 in the time of a frame.
    numbers = layout.groups.astype(np.min_scalar_type(layout.num_blocks - 1))
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(layout.groups, minlength=layout.num_blocks)
    starts, lengths = np.cumsum(counts) - counts, counts[blocks]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    at = order[np.repeat(starts[blocks], lengths) + inside]
    return offsets, layout.device_ids[at]


def bounds_text(layout: Layout, dim: int, first: int, last: int) -> str:
    """`[0:64]`: the elements of blocks `first` to `last` of a dimension."""
    step = layout.shard_shape[dim]
    return f"[{first * step}:{(last + 1) * step}]"


def dimension_text(
    layout: Layout, dim: int, logical: Sequence[str | None] | None
) -> str:
    """`dimension 1 mlp → model`: the mesh axes that split a dimension, if any do."""
    name = f"dimension {dim}"
    if logical is not None and logical[dim] is not None:
        name += f" {logical[dim]}"
    spec, count = layout.spec, layout.block_counts[dim]
    if spec is not None and dim < len(spec.dims) and spec.dims[dim]:
        return f"{name} → {', '.join(spec.dims[dim])}"
    # A sharding without a spec says only how many blocks there are.
    if count == 1:
        return f"{name} not split"
    return f"{name}: {plural(count, 'block')}"


def check_drawable(layout: Layout) -> None:
    """Refuses far more blocks than devices, such as one small shard of a huge array.

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
    """The least divisor of a size that is as large as needed."""
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
        spans: how many coordinates of each axis a tile takes.
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
        return _ids_at(self.mesh, self.first)

    @cached_property
    def hosts(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [tiles] each: the lowest and the highest process in every tile."""
        if hosts := self.mesh.even_hosts:
            each, first = self.mesh.size // hosts, self.first
            return first // each, (first + self.length - 1) // each
        processes = self.mesh.process_indices.reshape(-1, self.length)
        return processes.min(1), processes.max(1)

    def blocks(self, layout: Layout) -> tuple[np.ndarray, int]:
        """int64 [tiles]: the block of the first device; how many blocks a tile has."""
        strides = layout.group_strides
        if strides is None:
            return layout.groups[:: self.length], 1
        terms, distinct = [], 1
        for axis, stride in enumerate(strides):
            span = self.spans[axis]
            terms.append(np.arange(self.counts[axis]) * (span * stride))
            if stride:
                distinct *= span
        return _outer_sum(terms), distinct


def device_runs(mesh: MeshSpec, most: int = MOST_TILES) -> DeviceRuns:
    """The tiles of a mesh: one for each device where these are at most `most`."""
    spans = tile_spans(mesh.axis_sizes, most)
    pairs = zip(mesh.axis_sizes, spans, strict=True)
    return DeviceRuns(mesh, spans, tuple(size // span for size, span in pairs))


def is_large(layout: Layout) -> bool:
    """Whether a layout has more devices than a page has tiles for."""
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
    sizes, strides = layout.mesh.axis_sizes, layout.group_strides or ()
    positions = np.zeros(len(groups), np.int64)
    for size, stride, step in zip(sizes, strides, _strides(sizes), strict=True):
        if stride:
            positions += groups // stride % size * step
    return _ids_at(layout.mesh, positions)


def large_ids_text(layout: Layout, block: int | None = None) -> str:
    """The ids of the holders of a block, or of all blocks in order, by formula.

    Nothing is made for each device, unless the user gave it an id.
    """
    mesh, strides = layout.mesh, layout.group_strides or ()
    if not mesh.ids_are_positions:
        if block is None:
            numbers = np.arange(layout.num_blocks)
        else:
            numbers = np.array([block])
        return ids_text(holders_of(layout, numbers)[1])
    sizes = mesh.axis_sizes
    axes = [*zip(sizes, strides, _strides(sizes), strict=True)][::-1]
    # The replicas of a block first, from the last axis on; then the blocks by number.
    axes.sort(key=lambda axis: axis[1])
    first = 0
    if block is not None:
        axes = [axis for axis in axes if not axis[1]]
        first = int(first_holders(layout, np.array([block]))[0])
    return nested_ids_text(first, [(size, step) for size, _, step in axes])


def _ids_at(mesh: MeshSpec, positions: np.ndarray) -> np.ndarray:
    if mesh.ids_are_positions:
        return positions
    return mesh.device_ids.reshape(-1)[positions]


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
