"""on_mesh(): a ShardingSpec said as a PartitionSpec over a mesh that is already there.

Both walk the same devices, major to minor: each entry of `mesh_mapping` must be some of the mesh's
axes in a row, whole.
"""

from __future__ import annotations

from shardviz.core.errors import SpecError, plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.sharding_parts import ShardedAxis
from shardviz.core.layout.sharding_spec import ShardingSpec
from shardviz.core.layout.spec import Spec


def on_mesh(spec: ShardingSpec, mesh: MeshSpec) -> Spec:
    """The Spec over `mesh` that puts every block where `spec` puts it, in the order of the mesh.

    Raises:
        SpecError: if there is none: another number of devices, axes of `mesh` that would have to
            be cut in two, or an unstacked dimension.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.sharding_parts import Chunked, NoSharding, Replicated, ShardedAxis
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
