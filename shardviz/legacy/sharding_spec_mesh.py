"""ShardingSpec <-> mesh + Spec, on its own mesh or on one that is already there.

A ShardingSpec has no names, so the mesh that comes out has made-up ones: `axis0` walks along
sharded axis 0, `replica0` holds copies. A ShardingSpec has no devices either: it speaks of them in
order, so a mesh gives its order to whoever keeps the ids.

Both walk the same devices, major to minor: each entry of `mesh_mapping` must be some of the mesh's
axes in a row, whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardviz.core.errors import LayoutError, SpecError
from shardviz.core.format import listed, plural
from shardviz.core.layout.array_spec import dtype_name
from shardviz.core.layout.layout import Layout, block_numbers
from shardviz.core.layout.mesh import MeshSpec
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
    """The mesh and the Spec that cut an array of this shape as `spec` does.

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
        kept = ", ".join(f"Chunked([{spec.sharding[d].counts[0]}])" for d in dims[:4])
        raise SpecError(
            f"Dimension {listed(dims)} {'is' if len(dims) == 1 else 'are'} Unstacked: the devices"
            " no longer have it, and a PartitionSpec takes no dimension away. No mesh and"
            f" PartitionSpec say the same; {kept} keeps the dimension, with one element a device."
        )
    return spec.mesh, Spec(spec.axis_names)


def from_mesh(mesh: MeshSpec, spec: Spec, rank: int) -> ShardingSpec:
    """The ShardingSpec that cuts an array of `rank` dimensions as `spec` does over `mesh`.

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
                f"{spec} {words}, and a ShardingSpec has no word for it. Take the mark away."
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
        LayoutError: if the parts speak of another rank.
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
            f"{parts} speaks of {plural(len(parts), 'dimension')} and the array has {rank}."
        )
    if parts.product != count:
        raise SpecError(
            f"{parts} makes {plural(parts.product, 'block')}, one a device, and there are"
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
    """The Layout of an array as a ShardingSpec cuts it.

    It shows the array as a whole, so where a dimension is unstacked a device's block has one
    element of it, though the device itself holds the block without that dimension.

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
            f"The ShardingSpec speaks of {plural(spec.num_devices, 'device')}; got"
            f" {ids.size:,} ids. Give one id a device, in order."
        )
    names, sizes = spec.mesh.axis_names, spec.mesh.axis_sizes
    return MeshSpec(names, sizes, (), ids.reshape(sizes), concrete=True)


def on_mesh(spec: ShardingSpec, mesh: MeshSpec) -> Spec:
    """The Spec over `mesh` that puts every block where `spec` puts it, in the order of the mesh.

    Raises:
        SpecError: if there is none: another number of devices, axes of `mesh` that would have to
            be cut in two, or an unstacked dimension.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.legacy.sharding_spec import Chunked, NoSharding, Replicated, ShardedAxis
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
    owned = {
        entry.axis: run
        for entry, run in zip(spec.mesh_mapping, runs, strict=True)
        if isinstance(entry, ShardedAxis)
    }
    dims, first = [], 0
    for dim in spec.sharding:
        axes = [owned[i] for i in range(first, first + len(dim.counts))]
        first += len(dim.counts)
        dims.append(tuple(name for run in axes for name in run))
    return Spec(tuple(dims))


def _runs(sizes: tuple[int, ...], mesh: MeshSpec) -> list[tuple[str, ...]]:
    """Per size the mesh axes in a row whose product it is; axes of size 1 belong to nobody."""
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
                f"An axis of {size} devices in its mesh_mapping is no row of axes of the mesh"
                f" ({mesh}). Give the mesh axes of such sizes, in this order."
            )
        runs.append(tuple(run))
    return runs
