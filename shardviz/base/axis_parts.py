"""Mesh axes and parts of them, named as Shardy names these: `data:(1)2`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

_PART = re.compile(r":\((\d+)\)(\d+)$")  # Shardy's part of an axis: data:(1)2


@lru_cache(maxsize=4096)
def parent_axis(axis: str) -> str:
    """The mesh axis that an axis is a part of, or itself.

    >>> parent_axis("data:(1)2"), parent_axis("data")
    ('data', 'data')
    """
    return _PART.sub("", axis)


def split_part(axis: str) -> tuple[int, int]:
    """What a part of an axis comes after, and its own size.

    >>> split_part("data:(2)4")
    (2, 4)
    """
    part = _PART.search(axis)
    assert part is not None
    return int(part[1]), int(part[2])


def axis_size(axis: str, mesh: MeshSpec) -> int:
    """The size of a mesh axis, or of a part of one.

    >>> from shardviz.base.mesh import make_mesh
    >>> axis_size("data", make_mesh(data=8)), axis_size("data:(2)4", make_mesh(data=8))
    (8, 4)
    """
    part = _PART.search(axis)
    return int(part[2]) if part else mesh.require_axis(axis)


def group_size(axes: Iterable[str], mesh: MeshSpec) -> int:
    """How many devices take part in each group of a collective over some axes."""
    return math.prod(axis_size(axis, mesh) for axis in axes)


def dims_over(spec: Spec, axes: Iterable[str]) -> tuple[int, ...]:
    """The dimensions that some of these mesh axes split.

    >>> dims_over(Spec.parse("data, None, model"), ["model"])
    (2,)
    """
    named = {*axes}
    dims = []
    for number, own in enumerate(spec.dims):
        if not named.isdisjoint(parent_axis(axis) for axis in own):
            dims.append(number)
    return tuple(dims)


def local_shape(shape: tuple[int, ...], spec: Spec, mesh: MeshSpec) -> tuple[int, ...]:
    """The shape of the shard on each device; the largest where they differ.

    >>> from shardviz.base.mesh import make_mesh
    >>> local_shape((10, 6), Spec.parse("data"), make_mesh(data=4))
    (3, 6)
    """
    # A spec may be shorter than the shape, whose other dimensions are not split.
    parts = [group_size(axes, mesh) for axes in spec.dims] + [1] * len(shape)
    return tuple(-(-size // over) for size, over in zip(shape, parts, strict=False))
