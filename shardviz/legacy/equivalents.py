"""equivalents(): every way to write down the same layout.

As a PartitionSpec over its mesh, as pmap's ShardingSpec, as sharded_jit's integer parts. Not every
layout can be written in each of these dialects: those that cannot say it refuse it in a sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from shardviz.core.errors import LayoutError, ShardvizError, SpecError
from shardviz.core.format import plural
from shardviz.core.layout.layout import Layout
from shardviz.legacy.partitions import Parts
from shardviz.legacy.sharding_spec import (
    Assignment,
    Chunked,
    Dimension,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
)
from shardviz.legacy.sharding_spec_mesh import from_mesh, to_mesh


def equivalents(layout: Layout) -> dict[str, str]:
    """The layout in every dialect that can write it: from the dialect to the text.

    ShardingSpec and Parts are for devices in order. Where the ids of the mesh do not ascend, the
    order follows in a comment.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> found = equivalents(lay_out((8, 4), Spec.parse("y"), make_mesh(x=1, y=2)))
    >>> for dialect, text in found.items():
    ...     print(dialect, "·", text)
    PartitionSpec · P('y')
    ShardingSpec · ShardingSpec((Chunked(2), NoSharding()), (Replicated(replicas=1),
        ShardedAxis(axis=0)))
    Parts · Parts(2, 1)
    """
    order = _order(layout)
    ways: dict[str, Callable[[], str]] = {
        "PartitionSpec": lambda: _partition_spec(layout),
        "ShardingSpec": lambda: f"{layout_sharding_spec(layout)}{order}",
        "Parts": lambda: f"{layout_parts(layout)}{order}",
    }
    written = {}
    for dialect, write in ways.items():
        with contextlib.suppress(ShardvizError):
            written[dialect] = write()
    return written


def layout_sharding_spec(layout: Layout) -> ShardingSpec:
    """The ShardingSpec of a layout, over the devices of its mesh in mesh order.

    Where the layout has no spec, the ShardingSpec is found from its blocks.

    Raises:
        SpecError: if there is none.
    """
    if layout.spec is not None:
        return from_mesh(layout.mesh, layout.spec, layout.rank)
    return _from_blocks(layout)


def layout_parts(layout: Layout) -> Parts | None:
    """The integer parts of a layout; None, as in `sharded_jit`, where it is replicated.

    Raises:
        SpecError: if there are none.
    """
    spec = layout.spec
    if spec is not None and (spec.unconstrained or spec.unreduced or spec.reduced):
        raise SpecError(f"{spec} has marks, which integer parts cannot say.")
    if layout.num_blocks == 1:
        return None if layout.mesh.size > 1 else Parts(*layout.block_counts)
    if layout.num_blocks != layout.mesh.size:
        raise SpecError(
            "Integer parts give every device a block of its own, and here"
            f" {plural(layout.mesh.size, 'device')} hold {plural(layout.num_blocks, 'block')}, each"
            f" block on {layout.replicas} of them. Use a PartitionSpec or a ShardingSpec."
            if layout.num_blocks < layout.mesh.size
            else f"{plural(layout.num_blocks, 'block')} are not all on"
            f" {plural(layout.mesh.size, 'device')}."
        )
    found = _out_of_order(layout)
    if found is not None:
        at, block = found
        device = at if layout.mesh.ids_are_positions else layout.device_ids[at]
        raise SpecError(
            "Integer parts give the first device the first block, the second the next, and so on;"
            f" here device {device}, number {at} in the mesh, holds block {block}."
            " Order the mesh axes as the dimensions they split."
        )
    return Parts(*layout.block_counts)


def _out_of_order(layout: Layout) -> tuple[int, int] | None:
    """The first position in the mesh whose block has another number, and that number."""
    strides, step = layout.group_strides, 1
    if strides is None:
        at = np.flatnonzero(layout.groups != np.arange(layout.mesh.size))
        return (int(at[0]), int(layout.groups[at[0]])) if at.size else None
    # Both are sums over the mesh axes, so they first differ one step along an axis.
    for size, stride in zip(reversed(layout.mesh.axis_sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return step, stride
        step *= size
    return None


def _partition_spec(layout: Layout) -> str:
    if layout.spec is not None:
        return str(layout.spec)
    mesh, spec = to_mesh(_from_blocks(layout), layout.shape)
    return f"{spec}  # over a mesh of {mesh}"


def _order(layout: Layout) -> str:
    if layout.mesh.ids_are_positions:
        return ""
    ids = layout.device_ids
    if bool((ids[1:] > ids[:-1]).all()):
        return ""
    shown = ", ".join(map(str, ids[:16].tolist()))
    return f"  # devices in the order {shown}{', …' if ids.size > 16 else ''}"


def _from_blocks(layout: Layout) -> ShardingSpec:
    """The ShardingSpec of a layout of which only the block of each device is known.

    If there is one, the device number can be written in digits of mixed radix such that the block
    number of every dimension is linear in them. From the minor end on, the longest run of equal
    steps is one digit.
    """
    grid = layout.mesh.axis_sizes
    columns = [
        np.zeros(grid, np.int64) if b is None else np.broadcast_to(b, grid) for b in layout.blocks
    ]
    blocks = np.stack([c.reshape(-1) for c in columns], axis=1) if columns else None
    if blocks is None or not blocks.any():
        return ShardingSpec((NoSharding(),) * layout.rank, (Replicated(layout.mesh.size),))
    digits: list[tuple[int, np.ndarray]] = []  # size and step, minor first
    while len(blocks) > 1:
        step = blocks[1] - blocks[0]
        even = (blocks - blocks[0] == np.arange(len(blocks))[:, None] * step).all(axis=1)
        run = len(even) if even.all() else int(np.argmin(even))
        runs = blocks[: len(blocks) // run * run].reshape(-1, run, layout.rank)
        if len(blocks) % run or (runs != runs[:, :1] + (runs[:1] - runs[:1, :1])).any():
            raise _no_grid()
        digits.append((run, step))
        blocks = runs[:, 0]
    if blocks[0].any():
        raise _no_grid()
    return _from_digits(layout, digits[::-1])


def _from_digits(layout: Layout, digits: list[tuple[int, np.ndarray]]) -> ShardingSpec:
    # For each dimension the digits that split it, major first: position in `digits` and size.
    splits: list[list[tuple[int, int]]] = []
    for dim, count in enumerate(layout.block_counts):
        own = sorted(
            ((int(step[dim]), at, size) for at, (size, step) in enumerate(digits) if step[dim]),
            reverse=True,
        )
        left = count
        for step, _, size in own:
            if left != step * size:
                raise _no_grid()
            left = step
        if left != 1:
            raise _no_grid()
        splits.append([(at, size) for _, at, size in own])
    order = [at for split in splits for at, _ in split]
    if len(set(order)) != len(order):
        raise _no_grid()
    dims: list[Dimension] = [
        Chunked([size for _, size in split]) if split else NoSharding() for split in splits
    ]
    mapping: list[Assignment] = [
        ShardedAxis(order.index(at)) if at in order else Replicated(size)
        for at, (size, _) in enumerate(digits)
    ]
    return ShardingSpec(tuple(dims), tuple(mapping))


def _no_grid() -> LayoutError:
    return LayoutError(
        "The devices hold their blocks in an order that no grid of device axes makes, which"
        " PartitionSpec and ShardingSpec both need."
    )
