"""Mesh axes and sub-axes in Shardy's notation, such as `data:(1)2`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

# The suffix of a Shardy sub-axis, as in `data:(1)2`.
_PART = re.compile(r":\((\d+)\)(\d+)$")


@lru_cache(maxsize=4096)
def parent_axis(axis: str) -> str:
    """Returns the mesh axis of a sub-axis; a full axis is returned unchanged.

    >>> parent_axis("data:(1)2"), parent_axis("data")
    ('data', 'data')
    """
    return _PART.sub("", axis)


def split_part(axis: str) -> tuple[int, int]:
    """Returns the pre-size and the size of a sub-axis, in Shardy's terms.

    >>> split_part("data:(2)4")
    (2, 4)
    """
    part = _PART.search(axis)
    assert part is not None
    return int(part[1]), int(part[2])


def axis_size(axis: str, mesh: MeshSpec) -> int:
    """Returns the size of a mesh axis or a sub-axis.

    >>> from shardviz.base.mesh import make_mesh
    >>> axis_size("data", make_mesh(data=8)), axis_size("data:(2)4", make_mesh(data=8))
    (8, 4)
    """
    part = _PART.search(axis) if ":" in axis else None
    return int(part[2]) if part else mesh.require_axis(axis)


def group_size(axes: Iterable[str], mesh: MeshSpec) -> int:
    """The number of devices in each replica group of a collective over these axes."""
    return math.prod(axis_size(axis, mesh) for axis in axes)


def dims_over(spec: Spec, axes: Iterable[str]) -> tuple[int, ...]:
    """The dimensions that are split over at least one of these mesh axes.

    >>> dims_over(Spec.parse("data, None, model"), ["model"])
    (2,)
    """
    wanted_axes = {*axes}
    dims = []
    for dim, dim_axes in enumerate(spec.dims):
        if not wanted_axes.isdisjoint(parent_axis(axis) for axis in dim_axes):
            dims.append(dim)
    return tuple(dims)


def local_shape(shape: tuple[int, ...], spec: Spec, mesh: MeshSpec) -> tuple[int, ...]:
    """Returns the shape of each shard, or of the largest shard if they differ.

    >>> from shardviz.base.mesh import make_mesh
    >>> local_shape((10, 6), Spec.parse("data"), make_mesh(data=4))
    (3, 6)
    """
    # If the spec is shorter than the shape, the remaining dimensions are not split.
    sizes = list(shape)
    for dim, axes in enumerate(spec.dims[: len(shape)]):
        if axes:
            sizes[dim] = -(-sizes[dim] // group_size(axes, mesh))
    return tuple(sizes)
