"""equivalents(): every way to write down the same layout.

As a PartitionSpec over its mesh, as pmap's ShardingSpec, as sharded_jit's integer parts. Not every
layout can be written in each of these dialects: those that cannot say it refuse it in a sentence.

A ShardingSpec has no axis names, so its mesh has made-up ones: `axis0` for sharded axis 0,
`replica0` for copies. It has no device ids either: its devices are those of a mesh in mesh order.
Both order the same devices major to minor, so a ShardingSpec fits a mesh if each entry of
`mesh_mapping` is the product of some neighbouring axes of the mesh.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shardviz.core.errors import LayoutError, ShardvizError, SpecError
from shardviz.core.format import joined, listed, plural
from shardviz.core.layout.array_spec import dtype_name
from shardviz.core.layout.layout import Layout, block_numbers
from shardviz.core.layout.mesh import MeshSpec, ascending
from shardviz.core.layout.partition_spec import Spec, rank_problem
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


def to_mesh(spec: ShardingSpec, shape: Sequence[int] | str) -> tuple[MeshSpec, Spec]:
    """The mesh and the Spec that split an array of this shape as `spec` does.

    Raises:
        LayoutError: if the shape does not fit the spec.
        SpecError: if a dimension is unstacked.

    >>> spec = ShardingSpec((Chunked([2]), NoSharding()), (ShardedAxis(0), Replicated(4)))
    >>> to_mesh(spec, (8, 3))
    (MeshSpec('axis0=2, replica0=4'), P('axis0', None))
    """
    spec.check(shape)
    if spec.unstacked:
        dims = spec.unstacked
        kept = joined(f"Chunked([{spec.sharding[d].counts[0]}])" for d in dims[:4])
        raise SpecError(
            f"Dimension {listed(dims)} {'is' if len(dims) == 1 else 'are'} Unstacked: the devices"
            " no longer have it, and a PartitionSpec takes no dimension away. No mesh and"
            f" PartitionSpec say the same; {kept} keeps the dimension, with one element per device."
        )
    return spec.mesh, Spec(spec.axis_names)


def from_mesh(mesh: MeshSpec, spec: Spec, rank: int) -> ShardingSpec:
    """The ShardingSpec that splits an array of `rank` dimensions as `spec` does over `mesh`.

    Its devices are those of the mesh, in the order of the mesh.

    Raises:
        LayoutError: if the spec is longer than the rank.
        SpecError: if the spec does not fit the mesh, or has marks that a ShardingSpec has not.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from_mesh(make_mesh(x=2, y=4), Spec.parse("None, y"), 2)
    ShardingSpec((NoSharding(), Chunked(4)), (Replicated(replicas=2), ShardedAxis(axis=0)))
    """
    if problem := rank_problem(spec, rank):
        raise LayoutError(problem)
    spec.check(mesh)
    marks = [
        (spec.unconstrained, "leaves a dimension to the compiler"),
        (spec.unreduced, "leaves partial sums on the devices"),
        (spec.reduced, "marks axes as reduced"),
    ]
    for mark, words in marks:
        if mark:
            raise SpecError(
                f"{spec} {words}, and a ShardingSpec cannot say so. Take the mark away."
            )
    numbers = {axis: i for i, axis in enumerate(spec.axes)}
    dims: list[Dimension] = [
        Chunked([mesh.shape[a] for a in axes]) if axes else NoSharding() for axes in spec.dims
    ]
    dims += [NoSharding()] * (rank - len(dims))
    mapping: list[Assignment] = [
        ShardedAxis(numbers[name]) if name in numbers else Replicated(size)
        for name, size in mesh.shape.items()
    ]
    return ShardingSpec(tuple(dims), tuple(mapping))


def from_parts(parts: Parts | None, rank: int, count: int) -> ShardingSpec:
    """The ShardingSpec of integer parts over `count` devices, as `sharded_jit` made it.

    Raises:
        LayoutError: if the parts are for another rank.
        SpecError: if their product is not the number of devices.

    >>> from_parts(Parts(2, 1), 2, 2)
    ShardingSpec((Chunked(2), Chunked(1)), (ShardedAxis(axis=0), ShardedAxis(axis=1)))
    >>> from_parts(None, 1, 4)
    ShardingSpec((NoSharding(),), (Replicated(replicas=4),))
    """
    if parts is None:
        return ShardingSpec((NoSharding(),) * rank, (Replicated(count),))
    if len(parts) != rank:
        raise LayoutError(
            f"{parts} is for {plural(len(parts), 'dimension')} and the array has {rank}."
        )
    if parts.product != count:
        raise SpecError(
            f"{parts} makes {plural(parts.product, 'block')}, one per device, and there are"
            f" {count:,} devices."
        )
    mapping = tuple(ShardedAxis(i) for i in range(rank))
    return ShardingSpec(tuple(Chunked([p]) for p in parts), mapping)


def sharding_spec_layout(
    spec: ShardingSpec,
    shape: Sequence[int] | str,
    dtype: object = "float32",
    device_ids: Any = None,
) -> Layout:
    """The Layout of an array under a ShardingSpec.

    A Layout is of the global array, so the block of a device has one element of an unstacked
    dimension, though the device itself holds the block without that dimension.

    Args:
        spec: the ShardingSpec.
        shape: the global shape, in elements.
        dtype: the element type.
        device_ids: the devices in order; 0, 1, 2, … where not said.

    Raises:
        LayoutError: if the shape does not fit, or there are not as many devices.

    >>> spec = ShardingSpec((Chunked([2]), NoSharding()), (Replicated(2), ShardedAxis(0)))
    >>> sharding_spec_layout(spec, (8, 3)).box(3)
    (slice(4, 8, None), slice(0, 3, None))
    """
    sizes = spec.check(shape)
    mesh = spec.mesh if device_ids is None else _with_ids(spec, device_ids)
    counts = tuple(int(np.prod(dim.counts, dtype=np.int64)) for dim in spec.sharding)
    shard = tuple(size // count for size, count in zip(sizes, counts, strict=True))
    if not spec.unstacked:
        return Layout(sizes, dtype_name(dtype), mesh, Spec(spec.axis_names), counts, shard)
    numbers = (block_numbers(axes, mesh) for axes in spec.axis_names)
    blocks = tuple(None if n is None else np.broadcast_to(n, mesh.axis_sizes) for n in numbers)
    return Layout(sizes, dtype_name(dtype), mesh, None, counts, shard, blocks)


def _with_ids(spec: ShardingSpec, device_ids: Any) -> MeshSpec:
    ids = np.asarray(device_ids).reshape(-1)
    if ids.size != spec.num_devices:
        raise LayoutError(
            f"The ShardingSpec is for {plural(spec.num_devices, 'device')}; got {ids.size:,} ids."
            " Give one id for each device, in order."
        )
    names, sizes = spec.mesh.axis_names, spec.mesh.axis_sizes
    return MeshSpec(names, sizes, (), ids.reshape(sizes), concrete=True)


def on_mesh(spec: ShardingSpec, mesh: MeshSpec) -> Spec:
    """The Spec over `mesh` by which each device, in mesh order, holds the same block as by `spec`.

    Raises:
        SpecError: if there is none: another number of devices, an axis of `mesh` that would have
            to be split in two, or an unstacked dimension.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> old = ShardingSpec((Chunked([8]), NoSharding()), (ShardedAxis(0), Replicated(2)))
    >>> str(on_mesh(old, make_mesh(a=2, b=4, c=2)))
    "P(('a', 'b'), None)"
    """
    if spec.unstacked:
        raise SpecError(
            f"Unstacked removes dimension {spec.unstacked[0]}, and no PartitionSpec does. Write"
            " Chunked, which keeps the dimension."
        )
    if spec.num_devices != mesh.size:
        raise SpecError(
            f"This ShardingSpec is for {plural(spec.num_devices, 'device')} and the mesh has"
            f" {plural(mesh.size, 'device')}. Change its mesh_mapping or the mesh."
        )
    runs = _runs(spec.mesh_shape, mesh)
    axes_of = dict(zip(spec.mesh.axis_names, runs, strict=True)) if spec.mesh_mapping else {}
    return Spec(tuple(tuple(a for n in names for a in axes_of[n]) for names in spec.axis_names))


def _runs(sizes: tuple[int, ...], mesh: MeshSpec) -> list[tuple[str, ...]]:
    """For each size the neighbouring mesh axes of that product; axes of size 1 are left out."""
    left = [(name, size) for name, size in mesh.shape.items() if size > 1]
    runs = []
    for size in sizes:
        run, product = [], 1
        while product < size and left:
            name, length = left.pop(0)
            run.append(name)
            product *= length
        if product != size:
            raise SpecError(
                f"An axis of {size} devices in its mesh_mapping is no product of neighbouring axes"
                f" of the mesh ({mesh}). Give the mesh axes of such sizes, in this order."
            )
        runs.append(tuple(run))
    return runs


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
    if ascending(ids):
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
