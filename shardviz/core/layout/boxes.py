"""layout_from_boxes() -> Layout: read off any map from devices to slices, whoever made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shardviz.core.errors import LayoutError, shown
from shardviz.core.layout.array import dtype_name, read_shape
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.shards import Layout


def layout_from_boxes(
    shape: Sequence[int],
    dtype: object,
    indices: Mapping[int, tuple[slice, ...]],
    mesh: MeshSpec | None = None,
) -> Layout:
    """A Layout read off any map from device id to slices, such as any jax Sharding gives.

    Raises:
        LayoutError: if the blocks are not all of one shape.

    >>> layout_from_boxes((4,), "int8", {7: (slice(0, 2),), 5: (slice(2, 4),)}).box(5)
    (slice(2, 4, None),)
    """
    sizes, ids = read_shape(shape), list(indices)
    bounds = np.array(
        [[s.indices(n)[:2] for s, n in zip(indices[i], sizes, strict=True)] for i in ids], np.int64
    ).reshape(len(ids), len(sizes), 2)
    lengths = bounds[..., 1] - bounds[..., 0]
    if len(ids) and (lengths != lengths[0]).any():
        raise LayoutError(
            f"The blocks of this sharding differ in shape: {shown(lengths.tolist())}."
        )
    shard = tuple(int(n) for n in (lengths[0] if len(ids) else sizes))
    if mesh is None:
        mesh = MeshSpec(("device",), (len(ids),), (), np.array(ids), concrete=True)
    blocks = tuple(
        (bounds[:, d, 0] // step).reshape(mesh.device_ids.shape) if step else None
        for d, step in enumerate(shard)
    )
    counts = tuple(1 if not step else -(-n // step) for n, step in zip(sizes, shard, strict=True))
    blocks = tuple(b if c > 1 else None for b, c in zip(blocks, counts, strict=True))
    return Layout(sizes, dtype_name(dtype), mesh, None, counts, shard, blocks)
