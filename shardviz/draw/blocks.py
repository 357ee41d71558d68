"""Selects the array blocks that a page shows, and groups devices into tiles.

A block is a part of an array that one or more devices hold. More than MOST_TILES tiles
cannot be distinguished, so in larger pictures neighbouring devices share a tile. The
tile shows the first device and the number of devices. No object per device is created.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import LayoutError
from shardviz.base.format import ids_text, nested_ids_text, plural, shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.draw.palette import Shade, Shades

MOST_TILES = 1 << 16
MOST_BLOCKS = 1 << 20


class BlockSelection(NamedTuple):
    """The selection of an array's blocks that a page shows.

    Attributes:
        dims: the dimensions shown: (rows, columns), (columns,), or () for a scalar.
        steps: all other dimensions that are split.
        at: for each dimension in `steps`, the number of the block to show; None to show
            all blocks.
    """

    dims: tuple[int, ...]
    steps: tuple[int, ...]
    at: tuple[int, ...] | None

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions that the page shows; the last one runs across."""
        if self.at is not None:
            return self.dims
        return (*self.steps, *self.dims)


def select_blocks(layout: Layout, dims: Any = None, at: Any = None) -> BlockSelection:
    """Chooses the blocks to show.

    Args:
        dims: the dimensions for rows and columns; None prefers the first dimensions
            that are split, then the largest.
        at: block numbers for the dimensions that are not in `dims`, in order. A missing
            number means block 0; a number that is too large means the last block. None
            shows all blocks.

    Raises:
        LayoutError: if the array lacks a dimension, or `dims` or `at` has non-integers.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.layout import lay_out
    >>> from shardviz.base.partition_spec import Spec
    >>> layout = lay_out((4, 6, 8), Spec.parse("x, None, y"), make_mesh(x=2, y=4))
    >>> select_blocks(layout).dims, select_blocks(layout, (0, 1), (0, )).at
    ((0, 2), (0,))
    """
    counts = layout.block_counts
    # Arrays of rank 0 and 1 ignore `dims`.
    page = tuple(range(layout.rank))
    if layout.rank > 1 and dims is None:
        # Dimensions that are split come first, then the largest.
        sizes = layout.shape
        order = sorted(
            page, key=lambda d: (counts[d] == 1, -sizes[d] * (counts[d] == 1))
        )
        page = tuple(sorted(order[:2]))
    elif layout.rank > 1:
        page = _numbers(dims)
        if len(page) != 2 or page[0] == page[1] or max(page) >= layout.rank:
            raise LayoutError(
                f"A page shows two of the array's {layout.rank} dimensions; got"
                f" {shown(dims)}. Write dims=(0, 1)."
            )
    hidden = [dim for dim in range(layout.rank) if dim not in page]
    steps = tuple(dim for dim in hidden if counts[dim] > 1)
    if at is None:
        return BlockSelection(page, steps, None if steps else ())
    block_of_dim = dict(zip(hidden, _numbers(at), strict=False))
    chosen = [min(block_of_dim.get(dim, 0), counts[dim] - 1) for dim in steps]
    return BlockSelection(page, steps, tuple(chosen))


def _numbers(values: Any) -> tuple[int, ...]:
    # A common mistake is `at=1` instead of `at=(1,)`.
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
    """Returns the row-major numbers of the shown blocks, in page order: int64 [tiles].

    Args:
        counts: how many equally spaced blocks to select along each dimension; None
            for all.
    """
    counts = counts or layout.block_counts
    strides = _strides(layout.block_counts)
    first, terms = 0, []
    for dim, block in zip(selection.steps, selection.at or (), strict=False):
        first += block * strides[dim]
    for dim in selection.axes:
        step = layout.block_counts[dim] // counts[dim] * strides[dim]
        terms.append(np.arange(counts[dim]) * step)
    return first + _outer_sum(terms)


def _strides(sizes: Sequence[int]) -> list[int]:
    """Returns the row-major stride of each axis, in elements."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _outer_sum(terms: Sequence[np.ndarray]) -> np.ndarray:
    """Sums every combination of one element per term: int64 [combinations]."""
    total = np.zeros((), np.int64)
    for term in terms:
        total = total[..., None] + term
    return total.reshape(-1)


def holders_of(layout: Layout, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each block's devices: offsets int64 [blocks + 1], ids int64 [ids].

    `blocks[i]` has the devices `ids[offsets[i]:offsets[i + 1]]`, in mesh order.
    """
    # With a small dtype, numpy sorts 65,536 numbers within one animation frame.
    numbers = layout.groups.astype(np.min_scalar_type(layout.num_blocks - 1))
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(layout.groups, minlength=layout.num_blocks)
    starts, lengths = np.cumsum(counts) - counts, counts[blocks]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    at = order[np.repeat(starts[blocks], lengths) + inside]
    return offsets, layout.device_ids[at]


def bounds_text(layout: Layout, dim: int, first: int, last: int) -> str:
    """Formats the element range of blocks `first` to `last`, such as `[0:64]`."""
    step = layout.shard_shape[dim]
    return f"[{first * step}:{(last + 1) * step}]"


def dimensions_text(
    layout: Layout, dims: Sequence[int], logical: Sequence[str | None] | None
) -> str:
    """Lists the mesh axes that split each dimension: `dimension 1 mlp → model`."""
    texts, spec = [], layout.spec
    for dim in dims:
        name = f"dimension {dim}"
        if logical is not None and logical[dim] is not None:
            name += f" {logical[dim]}"
        count = layout.block_counts[dim]
        if spec is not None and dim < len(spec.dims) and spec.dims[dim]:
            name += f" → {', '.join(spec.dims[dim])}"
        elif count == 1:
            name += " not split"
        else:  # without a spec, only the number of blocks is known
            name += f": {plural(count, 'block')}"
        texts.append(name)
    return " · ".join(texts)


def layout_shades(layout: Layout) -> Shades:
    """Returns the shades of a layout's blocks, from the mesh axes that split it."""
    strides, sizes, axes = layout.group_strides, layout.mesh.axis_sizes, []
    if strides is None and layout.num_blocks > 1:
        # Without strides, it is unknown which mesh axes split the array.
        return (Shade(-1, layout.num_blocks, 1),)
    # The longest stride belongs to the first mesh axis in the spec.
    rows = zip(strides or (), sizes, range(len(sizes)), strict=False)
    for stride, size, axis in sorted(rows, reverse=True):
        if stride and size > 1:
            axes.append(Shade(axis, size, stride))
    return tuple(axes)


def check_drawable(layout: Layout) -> None:
    """Rejects layouts with too many blocks, such as one small shard of a huge array.

    Raises:
        LayoutError: if there are more than MOST_BLOCKS blocks, and more than devices.
    """
    if layout.num_blocks > max(MOST_BLOCKS, layout.mesh.size):
        raise LayoutError(
            f"The shard indices split the array into {layout.num_blocks:,} blocks, of"
            f" which {plural(layout.mesh.size, 'device holds', 'devices hold')} some; at most"
            f" {MOST_BLOCKS:,} can be drawn. Read the shard indices from layout.starts"
            " and layout.stops."
        )


def array_title(layout: Layout, name: str = "") -> str:
    """Formats an array's name, dtype and shape: `w bf16[512, 2048]`."""
    short = ArraySpec("array", layout.shape, None, layout.dtype).short
    return f"{name} {short}".strip()


def tile_counts(sizes: Sequence[int], most: int = MOST_TILES) -> tuple[int, ...]:
    """Returns the number of tiles along every axis, with at most `most` tiles in total.

    Each count divides the axis size, so that all tiles cover equally many elements.

    >>> tile_counts((8, 4, 2), 8), tile_counts((8, 8), 16), tile_counts((4, 2))
    ((2, 2, 2), (4, 4), (4, 2))
    """
    counts = list(sizes)
    while math.prod(counts) > most:
        # Reduce the longest axis, so that the counts stay about equal.
        axis = max(range(len(counts)), key=lambda i: (counts[i], -i))
        divisor = 2
        while counts[axis] % divisor and divisor * divisor < counts[axis]:
            divisor += 1
        if counts[axis] % divisor:  # the count is prime
            divisor = counts[axis]
        counts[axis] //= divisor
    return tuple(counts)


@dataclass(frozen=True, eq=False)
class DeviceTiles:
    """A mesh drawn as tiles, each with the same number of neighbouring devices.

    Attributes:
        mesh: the mesh.
        counts: number of tiles along each mesh axis.

    >>> tiles = DeviceTiles(MeshSpec(("x", "y"), (4, 2)), (2, 2))
    >>> tiles.spans, tiles.length, tiles.first.tolist()
    ((2, 1), 2, [0, 1, 4, 5])
    """

    mesh: MeshSpec
    counts: tuple[int, ...]

    @property
    def spans(self) -> tuple[int, ...]:
        """The number of coordinates that a tile covers, per mesh axis."""
        pairs = zip(self.mesh.axis_sizes, self.counts, strict=True)
        return tuple(size // count for size, count in pairs)

    @property
    def length(self) -> int:
        """The number of devices per tile."""
        return math.prod(self.spans)

    @property
    def first(self) -> np.ndarray:
        """The position in the mesh of each tile's first device: int64 [tiles]."""
        return self._sum(_strides(self.mesh.axis_sizes))

    def _sum(self, strides: Sequence[int]) -> np.ndarray:
        """Sums coordinate times stride for each tile's first device: int64 [tiles]."""
        terms = []
        for count, span, stride in zip(self.counts, self.spans, strides, strict=True):
            terms.append(np.arange(count) * (span * stride))
        return _outer_sum(terms)

    @property
    def ids(self) -> np.ndarray:
        """The id of each tile's first device: int64 [tiles]."""
        return _ids_at(self.mesh, self.first)

    @property
    def hosts(self) -> np.ndarray:
        """The process of each tile's first device: int64 [tiles]."""
        # A division avoids an array of processes for millions of devices.
        if self.mesh.even_hosts:
            return self.first // (self.mesh.size // self.mesh.even_hosts)
        return self.mesh.process_indices.reshape(-1)[self.first]

    def blocks(self, layout: Layout) -> np.ndarray:
        """Returns the block that each tile's first device holds: int64 [tiles]."""
        strides = layout.group_strides
        if strides is None:
            return layout.groups[self.first]
        return self._sum(strides)


def is_large(layout: Layout) -> bool:
    """Whether a layout has more devices than a page can show as tiles."""
    # Layouts without a spec list their devices, so they are never treated as large.
    return layout.spec is not None and layout.mesh.size > MOST_TILES


def coarse_layout(layout: Layout, axes: Sequence[int]) -> Layout:
    """Merges neighbouring blocks of a layout until at most MOST_TILES are shown.

    Only `block_counts` and `shard_shape` of the result are valid.

    Args:
        axes: the dimensions that the page shows.
    """
    counts, shard = list(layout.block_counts), list(layout.shard_shape)
    few = tile_counts([counts[dim] for dim in axes])
    for dim, count in zip(axes, few, strict=True):
        shard[dim] *= counts[dim] // count
        counts[dim] = count
    return replace(layout, block_counts=tuple(counts), shard_shape=tuple(shard))


def first_holders(layout: Layout, groups: np.ndarray) -> np.ndarray:
    """Returns the id of the first device that holds each block: int64 [groups]."""
    sizes, strides = layout.mesh.axis_sizes, layout.group_strides or ()
    positions = np.zeros(len(groups), np.int64)
    for size, stride, step in zip(sizes, strides, _strides(sizes), strict=True):
        if stride:
            positions += groups // stride % size * step
    return _ids_at(layout.mesh, positions)


def large_ids_text(layout: Layout, block: int | None = None) -> str:
    """Formats the ids of the devices of a block, or of all devices in block order.

    Creates no array of all devices, unless the mesh has user-defined ids.
    """
    mesh, first = layout.mesh, 0
    blocks = np.arange(layout.num_blocks)
    if block is not None:
        blocks = np.array([block])
    if not mesh.ids_are_positions:
        return ids_text(holders_of(layout, blocks)[1])
    sizes, strides = mesh.axis_sizes, layout.group_strides or ()
    axes = [*zip(sizes, strides, _strides(sizes), strict=True)][::-1]
    # Sort axes so that a block's replicas vary fastest, then the block number.
    axes.sort(key=lambda axis: axis[1])
    if block is not None:
        axes = [axis for axis in axes if not axis[1]]
        first = int(first_holders(layout, blocks)[0])
    return nested_ids_text(first, [(size, step) for size, _, step in axes])


def _ids_at(mesh: MeshSpec, positions: np.ndarray) -> np.ndarray:
    if mesh.ids_are_positions:
        return positions
    return mesh.device_ids.reshape(-1)[positions]


def mesh_ids_text(mesh: MeshSpec, index: tuple[int, ...] = (), limit: int = 0) -> str:
    """Formats the ids of the devices whose first coordinates are `index`.

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
