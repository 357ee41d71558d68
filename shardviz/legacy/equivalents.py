"""Converts a ShardingSpec to the equivalent Spec on a mesh.

Both types order devices major to minor. A ShardingSpec fits a mesh if each entry of its
`mesh_mapping` is the product of neighbouring mesh axes.
"""

from __future__ import annotations

from shardviz.base.errors import SpecError
from shardviz.base.format import listed, plural
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.legacy.sharding_spec import ShardingSpec


def on_mesh(spec: ShardingSpec, mesh: MeshSpec) -> Spec:
    """Returns the Spec over `mesh` that gives each device the same block as `spec`.

    Raises:
        SpecError: if there is no such Spec: the device counts differ, an axis of `mesh`
            would have to be split in two, or a dimension is unstacked.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.legacy import Chunked, Replicated, ShardedAxis
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
        # An axis of the ShardingSpec may correspond to several neighbouring mesh axes.
        axes: list[str] = []
        for name in names:
            axes += axes_of[name]
        dims.append(tuple(axes))
    return Spec(tuple(dims))


def _neighbours(sizes: tuple[int, ...], mesh: MeshSpec) -> list[tuple[str, ...]]:
    """Returns, for each size, neighbouring mesh axes whose product is that size.

    Axes of size 1 split nothing and are omitted.
    """
    remaining = [(name, size) for name, size in mesh.shape.items() if size > 1]
    groups = []
    for size in sizes:
        group, product = [], 1
        while product < size and remaining:
            name, length = remaining.pop(0)
            group.append(name)
            product *= length
        if product != size:
            raise SpecError(
                f"An axis of {size} devices in its mesh_mapping is not a product of"
                f" neighbouring axes of the mesh ({mesh}). Give the mesh axes these"
                " sizes, in this order."
            )
        groups.append(tuple(group))
    return groups
