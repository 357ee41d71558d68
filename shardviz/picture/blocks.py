"""What a page shows of an array's blocks, and of devices where there are many.

A block is a part of an array that some devices hold. Beyond MOST_TILES devices nobody can tell
tiles apart, and what is made for each device takes seconds and gigabytes. So neighbours share a
tile, which says how many they are and which is the first; nothing is made for each device, but
where the user gave its id or its host.
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
from shardviz.core.format import FIRST_IDS, first_ids_text, ids_text, nested_ids_text, plural, shown
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
        dims: the dimensions for rows and columns; the first two that are split where None.
        at: the number of the block to show for every dimension that is not in `dims`, in order;
            0 for those not given, and the last block for a number beyond it. None shows all.

    Raises:
        LayoutError: for dimensions that the array lacks, or for anything but numbers.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> layout = lay_out((4, 6, 8), Spec.parse("x, None, y"), make_mesh(x=2, y=4))
    >>> select_blocks(layout).dims, select_blocks(layout, (0, 1), (0, )).at
    ((0, 2), (0,))
    """
    rank, counts = layout.rank, layout.block_counts
    page = _page_dims(counts, dims)
    hidden = [d for d in range(rank) if d not in page]
    steps = tuple(d for d in hidden if counts[d] > 1)
    if at is None:
        return BlockSelection(page, steps, None if steps else ())
    given = dict(zip(hidden, _numbers(at), strict=False))
    return BlockSelection(page, steps, tuple(min(given.get(d, 0), counts[d] - 1) for d in steps))


def _page_dims(counts: Sequence[int], dims: Any) -> tuple[int, ...]:
    rank = len(counts)
    if rank < 2:
        return tuple(range(rank))
    if dims is None:
        split = [d for d in range(rank) if counts[d] > 1]
        others = [d for d in range(rank) if counts[d] == 1]
        return tuple(sorted([*split, *others][:2]))
    page = _numbers(dims)
    if len(page) != 2 or page[0] == page[1] or max(page) >= rank:
        raise LayoutError(
            f"A page shows two dimensions of the array's {rank}; got {shown(dims)}."
            " Write dims=(0, 1)."
        )
    return page


def _numbers(values: Any) -> tuple[int, ...]:
    try:
        some = limited(values, MAX_RANK, "Dimensions and blocks", LayoutError)
        found = tuple(operator.index(v) for v in some)
    except TypeError:
        found = (-1,)
    if any(v < 0 for v in found):
        raise LayoutError(f"Dimensions and blocks are counted from 0; got {shown(values)}.")
    return found


def block_numbers(
    layout: Layout, selection: BlockSelection, counts: Sequence[int] | None = None
) -> np.ndarray:
    """int64 [tiles]: the row-major number of every block shown, in the order of the page.

    Args:
        counts: per dimension how many of its blocks to take, at equal steps; all where None.
    """
    counts = layout.block_counts if counts is None else counts
    strides = [math.prod(layout.block_counts[d + 1 :]) for d in range(layout.rank)]
    first = 0
    if selection.at is not None:
        first = sum(n * strides[d] for n, d in zip(selection.at, selection.steps, strict=True))
    number = np.full((1,) * len(selection.axes), first, np.int64)
    for axis, dim in enumerate(selection.axes):
        shape = [1] * len(selection.axes)
        shape[axis] = counts[dim]
        step = layout.block_counts[dim] // counts[dim] * strides[dim]
        number = number + (np.arange(counts[dim]) * step).reshape(shape)
    return number.reshape(-1)


def holders_of(layout: Layout, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The devices of every block: offsets int64 [blocks + 1], and ids int64 in mesh order.

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
    return offsets, layout.device_ids[order[np.repeat(starts[blocks], lengths) + inside]]


def _by_block(layout: Layout) -> np.ndarray:
    """The positions of all devices, those of one block after those of the one before.

    Sorting a million devices takes longer than everything else that is drawn. Block numbers are
    sums of strides, so the sorted position of every device can be computed directly.
    """
    strides = layout.group_strides
    if strides is None:
        return np.argsort(layout.groups, kind="stable")
    copy, copies = np.zeros((), np.int64), 1
    for size, stride, shape in reversed(_axis_shapes(layout.mesh.axis_sizes, strides)):
        if not stride:  # the axis copies every block
            copy = copy + np.arange(size).reshape(shape) * copies
            copies *= size
    positions = layout.groups.reshape(layout.mesh.axis_sizes) * copies + copy
    order = np.empty(layout.groups.size, np.int64)
    order[positions.reshape(-1)] = np.arange(layout.groups.size)
    return order


def _axis_shapes(
    sizes: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int, tuple[int, ...]]]:
    """Per mesh axis its size, its stride, and the shape in which its coordinate broadcasts."""
    return [
        (size, stride, tuple(-1 if i == axis else 1 for i in range(len(sizes))))
        for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True))
    ]


def bounds_text(layout: Layout, dim: int, first: int, last: int) -> str:
    """`[0:64]`: the elements of blocks `first` to `last` of a dimension."""
    step = layout.shard_shape[dim]
    return f"[{first * step}:{(last + 1) * step}]"


def dimension_text(layout: Layout, dim: int, logical: Sequence[str | None] | None) -> str:
    """`dimension 1 mlp → model`: which mesh axes split a dimension, or that none does."""
    name = "" if logical is None or logical[dim] is None else f" {logical[dim]}"
    spec, count = layout.spec, layout.block_counts[dim]
    axes = spec.dims[dim] if spec is not None and dim < len(spec.dims) else ()
    if axes:
        return f"dimension {dim}{name} → {', '.join(axes)}"
    return (
        f"dimension {dim}{name} not split"
        if count == 1
        else f"dimension {dim}{name}: {plural(count, 'block')}"
    )


def check_drawable(layout: Layout) -> None:
    """Refuses a layout of far more blocks than devices, such as one small shard of a huge array.

    Raises:
        LayoutError: with the numbers.
    """
    if layout.num_blocks > max(MOST_BLOCKS, layout.mesh.size):
        raise LayoutError(
            f"The shard indices split the array into {layout.num_blocks:,} blocks, of which"
            f" {plural(layout.mesh.size, 'device')} hold a few; at most {MOST_BLOCKS:,} can be"
            " drawn. Read the shard indices from layout.starts and layout.stops."
        )


def array_title(layout: Layout, name: str = "") -> str:
    """`w bf16[512, 2048]`."""
    short = ArraySpec("array", layout.shape, None, layout.dtype).short
    return f"{name} {short}".strip()


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

    @cached_property
    def hosts(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 [tiles] each: the lowest and the highest process in every tile."""
        if hosts := self.mesh.even_hosts:
            each, first = self.mesh.size // hosts, self.first
            return first // each, (first + self.length - 1) // each
        found = self.mesh.process_indices.reshape(-1, self.length)
        return found.min(1), found.max(1)

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
