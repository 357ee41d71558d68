"""The blocks of an array: which of them a page shows, their bounds, and which devices hold each."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardviz.core.errors import LayoutError
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.parse import limited
from shardviz.core.layout.partition_spec import MAX_RANK

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
    """`dim 1 mlp → model`: which mesh axes split a dimension, or that none does."""
    name = "" if logical is None or logical[dim] is None else f" {logical[dim]}"
    spec, count = layout.spec, layout.block_counts[dim]
    axes = spec.dims[dim] if spec is not None and dim < len(spec.dims) else ()
    if axes:
        return f"dim {dim}{name} → {', '.join(axes)}"
    return (
        f"dim {dim}{name} not split" if count == 1 else f"dim {dim}{name}: {plural(count, 'block')}"
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
