"""Every way to write down the same layout.

As a PartitionSpec over its mesh, as pmap's ShardingSpec, as sharded_jit's integer
parts. Not every layout can be written in each of these dialects.

A ShardingSpec has no axis names, so its mesh has made-up ones: `axis0` for sharded axis
0, `replica0` for copies. It has no device ids either: its devices are those of a mesh
in mesh order. Both order the same devices major to minor, so a ShardingSpec fits a mesh
if each entry of `mesh_mapping` is the product of some neighbouring axes of the mesh.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from shardviz.core.errors import LayoutError, ShardvizError, SpecError
from shardviz.core.format import joined, listed, plural
from shardviz.core.layout.layout import Layout
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

    >>> mapping = ShardedAxis(0), Replicated(4)
    >>> to_mesh(ShardingSpec((Chunked([2]), NoSharding()), mapping), (8, 3))
    (MeshSpec('axis0=2, replica0=4'), P('axis0', None))
    """
    spec.check(shape)
    _refuse_unstacked(spec)
    return spec.mesh, Spec(spec.axis_names)


def _refuse_unstacked(spec: ShardingSpec) -> None:
    dims = spec.unstacked
    if dims:
        kept = joined(f"Chunked([{spec.sharding[d].counts[0]}])" for d in dims[:4])
        raise SpecError(
            f"Dimension {listed(dims)} is Unstacked: the devices no longer have it, and"
            f" no PartitionSpec takes a dimension away. {kept} keeps the dimension,"
            " with one element per device."
        )


def from_mesh(mesh: MeshSpec, spec: Spec, rank: int) -> ShardingSpec:
    """The ShardingSpec that splits an array as `spec` does over `mesh`.

    Its devices are those of the mesh, in the order of the mesh.

    Args:
        mesh: the mesh.
        spec: the spec, of at most `rank` entries.
        rank: how many dimensions the array has.

    Raises:
        LayoutError: if the spec is longer than the rank.
        SpecError: if the spec does not fit the mesh, or has marks that a ShardingSpec
            cannot express: unconstrained, unreduced or reduced.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from_mesh(make_mesh(x=2, y=4), Spec.parse("None, y"), 2).sharding
    (NoSharding(), Chunked(4))
    """
    if problem := rank_problem(spec, rank):
        raise LayoutError(str(problem))
    spec.check(mesh)
    if spec.unconstrained or spec.unreduced or spec.reduced:
        raise SpecError(
            f"{spec} marks a dimension or an axis as unconstrained, unreduced or"
            " reduced, and a ShardingSpec cannot say so. Take the mark away."
        )
    dims: list[Dimension] = [NoSharding()] * rank
    for dim, axes in enumerate(spec.dims):
        if axes:
            dims[dim] = Chunked([mesh.shape[axis] for axis in axes])
    numbers = {axis: number for number, axis in enumerate(spec.axes)}
    mapping: list[Assignment] = []
    for name, size in mesh.shape.items():
        if name in numbers:
            mapping.append(ShardedAxis(numbers[name]))
        else:
            mapping.append(Replicated(size))
    return ShardingSpec(tuple(dims), tuple(mapping))


def on_mesh(spec: ShardingSpec, mesh: MeshSpec) -> Spec:
    """The Spec over `mesh` by which each device holds the same block as by `spec`.

    Raises:
        SpecError: if there is none: another number of devices, an axis of `mesh` that
            would have to be split in two, or an unstacked dimension.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> old = ShardingSpec((Chunked([8]), None), (ShardedAxis(0), Replicated(2)))
    >>> str(on_mesh(old, make_mesh(a=2, b=4, c=2)))
    "P(('a', 'b'), None)"
    """
    _refuse_unstacked(spec)
    if spec.num_devices != mesh.size:
        raise SpecError(
            f"This ShardingSpec is for {plural(spec.num_devices, 'device')} and the"
            f" mesh has {plural(mesh.size, 'device')}. Change its mesh_mapping or the"
            " mesh."
        )
    if not spec.mesh_mapping:
        return Spec(spec.axis_names)
    axes_of = dict(
        zip(spec.mesh.axis_names, _neighbours(spec.mesh_shape, mesh), strict=True)
    )
    dims = []
    for names in spec.axis_names:
        dims.append(tuple(axis for name in names for axis in axes_of[name]))
    return Spec(tuple(dims))


def _neighbours(sizes: tuple[int, ...], mesh: MeshSpec) -> list[tuple[str, ...]]:
    """For each size the neighbouring mesh axes of that product.

    Axes of size 1 split nothing and are left out.
    """
    left = [(name, size) for name, size in mesh.shape.items() if size > 1]
    groups = []
    for size in sizes:
        group, product = [], 1
        while product < size and left:
            name, length = left.pop(0)
            group.append(name)
            product *= length
        if product != size:
            raise SpecError(
                f"An axis of {size} devices in its mesh_mapping is no product of"
                f" neighbouring axes of the mesh ({mesh}). Give the mesh axes of such"
                " sizes, in this order."
            )
        groups.append(tuple(group))
    return groups


def equivalents(layout: Layout) -> dict[str, str]:
    """The layout in every dialect that can write it: from the dialect to the text.

    ShardingSpec and Parts are for devices in order. Where the ids of the mesh do not
    ascend, the order follows in a comment.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.layout import lay_out
    >>> layout = lay_out((8, 4), Spec.parse("y"), make_mesh(x=1, y=2))
    >>> for dialect, text in equivalents(layout).items():
    ...     print(dialect, "·", text)
    PartitionSpec · P('y')
    ShardingSpec · ShardingSpec((Chunked(2), NoSharding()), (Replicated(replicas=1),
        ShardedAxis(axis=0)))
    Parts · Parts(2, 1)
    """
    order = _order(layout)
    written = {}
    # A dialect that cannot express the layout is left out.
    with contextlib.suppress(ShardvizError):
        written["PartitionSpec"] = _partition_spec(layout)
    with contextlib.suppress(ShardvizError):
        written["ShardingSpec"] = f"{layout_sharding_spec(layout)}{order}"
    with contextlib.suppress(ShardvizError):
        written["Parts"] = f"{layout_parts(layout)}{order}"
    return written


def layout_sharding_spec(layout: Layout) -> ShardingSpec:
    """The ShardingSpec of a layout, over the devices of its mesh in mesh order.

    Where the layout has no spec, the ShardingSpec is found from its blocks.

    Raises:
        ShardvizError: if there is none.
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
            f" {plural(layout.mesh.size, 'device')} hold"
            f" {plural(layout.num_blocks, 'block')}. Use a PartitionSpec or a"
            " ShardingSpec."
        )
    out_of_order = _out_of_order(layout)
    if out_of_order is not None:
        position, block = out_of_order
        raise SpecError(
            "Integer parts give the first device the first block, the second the next,"
            f" and so on; here device {layout.device_ids[position]}, number {position}"
            f" in the mesh, holds block {block}. Order the mesh axes as the dimensions"
            " they split."
        )
    return Parts(*layout.block_counts)


def _out_of_order(layout: Layout) -> tuple[int, int] | None:
    """The first position in the mesh whose block has another number, and that number."""
    strides, step = layout.group_strides, 1
    if strides is None:
        others = np.flatnonzero(layout.groups != np.arange(layout.mesh.size))
        if not others.size:
            return None
        return int(others[0]), int(layout.groups[others[0]])
    # Both are sums over the mesh axes, so they first differ one step along an axis.
    sizes = layout.mesh.axis_sizes
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        # An axis of size 1 has no second step to compare.
        if size > 1 and stride != step:
            return step, stride
        step *= size
    return None


def _partition_spec(layout: Layout) -> str:
    if layout.spec is not None:
        return str(layout.spec)
    mesh, spec = to_mesh(_from_blocks(layout), layout.shape)
    return f"{spec}  # on mesh {mesh}"


def _order(layout: Layout) -> str:
    if layout.mesh.ids_are_positions or ascending(layout.device_ids):
        return ""
    ids = layout.device_ids
    shown = ", ".join(map(str, ids[:16].tolist()))
    more = ", …" if ids.size > 16 else ""
    return f"  # device order: {shown}{more}"


def _from_blocks(layout: Layout) -> ShardingSpec:
    """The ShardingSpec of a layout of which only the block of each device is known.

    If there is one, the device number can be written in digits of mixed radix such that
    the block number of every dimension is linear in them. From the minor end on, the
    longest run of equal steps is one digit.
    """
    grid = layout.mesh.axis_sizes
    columns = []
    for numbers in layout.blocks:
        if numbers is None:
            numbers = np.zeros((), np.int64)
        columns.append(np.broadcast_to(numbers, grid).reshape(-1))
    if not columns or not np.any(columns):
        dims = (NoSharding(),) * layout.rank
        return ShardingSpec(dims, (Replicated(layout.mesh.size),))
    blocks = np.stack(columns, axis=1)  # [devices, rank]
    digits: list[tuple[int, np.ndarray]] = []  # size and step, minor first
    while len(blocks) > 1:
        step = blocks[1] - blocks[0]
        straight = blocks[0] + np.arange(len(blocks))[:, None] * step
        even = (blocks == straight).all(axis=1)
        run = len(even) if even.all() else int(np.argmin(even))
        if len(blocks) % run:
            raise _no_grid()
        runs = blocks.reshape(-1, run, layout.rank)
        # Every run has to take the same steps as the first one.
        if (runs - runs[:, :1] != runs[:1] - runs[:1, :1]).any():
            raise _no_grid()
        digits.append((run, step))
        blocks = runs[:, 0]
    # The first device holds the first block wherever axes count up from 0.
    if blocks[0].any():
        raise _no_grid()
    return _from_digits(layout, digits[::-1])


def _from_digits(layout: Layout, digits: list[tuple[int, np.ndarray]]) -> ShardingSpec:
    # For each dimension the digits that split it, major first.
    splits: list[list[int]] = []
    for dim, count in enumerate(layout.block_counts):
        own = [at for at, (_, step) in enumerate(digits) if step[dim]]
        own.sort(key=lambda at: -int(digits[at][1][dim]))
        # The minor digit takes steps of one block, each other one steps over all blocks
        # of those below it.
        left = count
        for at in own:
            size, step = digits[at]
            if left != step[dim] * size:
                raise _no_grid()
            left = int(step[dim])
        if left != 1:
            raise _no_grid()
        splits.append(own)
    # One axis of the devices cannot split two dimensions.
    order = [at for split in splits for at in split]
    if len(set(order)) != len(order):
        raise _no_grid()
    dims: list[Dimension] = []
    for split in splits:
        dims.append(Chunked([digits[at][0] for at in split]) if split else NoSharding())
    mapping: list[Assignment] = []
    for at, (size, _) in enumerate(digits):
        mapping.append(
            ShardedAxis(order.index(at)) if at in order else Replicated(size)
        )
    return ShardingSpec(tuple(dims), tuple(mapping))


def _no_grid() -> LayoutError:
    return LayoutError(
        "The devices hold their blocks in an order that no grid of device axes makes,"
        " which PartitionSpec and ShardingSpec both need."
    )
