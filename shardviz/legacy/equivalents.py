"""The same layout as a PartitionSpec, as pmap's ShardingSpec, as integer parts.

A ShardingSpec has no axis names, so its mesh has made-up ones: `axis0` for sharded axis
0, `replica0` for copies. It has no device ids either: its devices are those of a mesh
in mesh order. Both order the same devices major to minor, so a ShardingSpec fits a mesh
if each entry of `mesh_mapping` is the product of some neighbouring axes of the mesh.
"""

from __future__ import annotations

import contextlib

from shardviz.core.errors import LayoutError, ShardvizError, SpecError
from shardviz.core.format import ids_text, listed, plural
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


def from_mesh(mesh: MeshSpec, spec: Spec, rank: int) -> ShardingSpec:
    """The ShardingSpec that splits an array as `spec` does over `mesh`.

    Its devices are those of the mesh, in the order of the mesh.

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
    # Sharded axes are numbered through all dimensions, as spec.axes lists them.
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
    if spec.unstacked:
        raise SpecError(
            f"Dimension {listed(spec.unstacked)} is Unstacked: the devices no longer"
            " have it, and no PartitionSpec takes a dimension away. Chunked([n]) keeps"
            " the dimension, with one element per device."
        )
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
        # One axis of its devices may be several neighbouring axes of the mesh.
        axes: list[str] = []
        for name in names:
            axes += axes_of[name]
        dims.append(tuple(axes))
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
    ascend, a comment says so.

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
    if layout.spec is None:
        return {}
    order = ""
    if not (layout.mesh.ids_are_positions or ascending(layout.device_ids)):
        order = f"  # device order: {ids_text(layout.device_ids)}"
    written = {"PartitionSpec": str(layout.spec)}
    # A dialect that cannot express the layout is left out.
    with contextlib.suppress(ShardvizError):
        spec = from_mesh(layout.mesh, layout.spec, layout.rank)
        written["ShardingSpec"] = f"{spec}{order}"
    with contextlib.suppress(ShardvizError):
        written["Parts"] = f"{layout_parts(layout)}{order}"
    return written


def layout_parts(layout: Layout) -> Parts | None:
    """The integer parts of a layout; None, as in `sharded_jit`, where it is replicated.

    Raises:
        SpecError: if there are none.
    """
    spec = layout.spec
    if spec is None or spec.unconstrained or spec.unreduced or spec.reduced:
        raise SpecError(f"{spec} has marks or is none, which integer parts cannot say.")
    if layout.num_blocks == 1 < layout.mesh.size:
        return None
    if layout.num_blocks != layout.mesh.size:
        raise SpecError(
            "Integer parts give every device a block of its own, and here"
            f" {plural(layout.mesh.size, 'device')} hold"
            f" {plural(layout.num_blocks, 'block')}. Use a PartitionSpec or a"
            " ShardingSpec."
        )
    # The number of a block is a sum over the mesh axes, as the number of a device is.
    step = 1
    axes = zip(layout.mesh.axis_sizes, layout.group_strides or (), strict=True)
    for size, stride in reversed(list(axes)):
        # An axis of size 1 has no second step to compare.
        if size > 1 and stride != step:
            raise SpecError(
                "Integer parts give the first device the first block, the second the"
                f" next, and so on; here device {layout.device_ids[step]}, number"
                f" {step} in the mesh, holds block {stride}. Order the mesh axes as the"
                " dimensions they split."
            )
        step *= size
    return Parts(*layout.block_counts)
