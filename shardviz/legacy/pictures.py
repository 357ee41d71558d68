"""Pictures and texts of ShardingSpecs and integer partitions."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.format import joined, plural
from shardviz.core.layout.partition_spec import Spec
from shardviz.legacy.equivalents import sharding_spec_layout
from shardviz.legacy.partitions import Parts, parts_layout, parts_spec
from shardviz.legacy.sharding_spec import ShardingSpec
from shardviz.picture.layout import draw_layout_array
from shardviz.picture.picture import Picture
from shardviz.picture.rules import draw_spec


def draw_sharding_spec(
    spec: ShardingSpec, shape: Sequence[int] | str | None = None, title: str | None = None
) -> Picture:
    """A ShardingSpec: the blocks of an array where a shape is given, else a tile per dimension.

    >>> from shardviz.legacy.sharding_spec import ShardedAxis, Unstacked
    >>> draw_sharding_spec(ShardingSpec((Unstacked(2),), (ShardedAxis(0),))).tiles.label(0)
    'dim 0\\naxis0'
    """
    named = str(spec) if title is None else title
    if shape is not None:
        return draw_layout_array(sharding_spec_layout(spec, shape), title=named)
    return draw_spec(Spec(spec.axis_names), named)


def draw_parts(
    parts: Parts, shape: Sequence[int] | str | None = None, title: str | None = None
) -> Picture:
    """Integer parts: the blocks of an array where a shape is given, else a tile per dimension.

    >>> draw_parts(Parts(2, 1)).tiles.label(0)
    'dim 0\\ndim0'
    """
    named = str(parts) if title is None else title
    if shape is not None:
        return draw_layout_array(parts_layout(shape, parts), title=named)
    return draw_spec(parts_spec(parts), named)


def sharding_spec_words(spec: ShardingSpec) -> str:
    """A ShardingSpec in words: each dimension, and the grid of the devices.

    >>> from shardviz.legacy.sharding_spec import Chunked, Replicated, ShardedAxis
    >>> print(sharding_spec_words(ShardingSpec((Chunked(2),), (ShardedAxis(0), Replicated(4)))))
    ShardingSpec((Chunked(2),), (ShardedAxis(axis=0), Replicated(replicas=4)))
    dim 0 chunked over axis0
    devices: axis0=2 × replica0=4
    """
    kinds = {"NoSharding": "not split", "Chunked": "chunked", "Unstacked": "unstacked"}
    dims = []
    for at, (dim, axes) in enumerate(zip(spec.sharding, spec.axis_names, strict=True)):
        over = f" over {joined(axes)}" if axes else ""
        dims.append(f"dim {at} {kinds[type(dim).__name__]}{over}")
    grid = " × ".join(f"{n}={s}" for n, s in spec.mesh.shape.items())
    return "\n".join([str(spec), " · ".join(dims) or "a scalar", f"devices: {grid}"])


def parts_words(parts: Parts) -> str:
    """Parts in words.

    >>> print(parts_words(Parts(2, 1)))
    Parts(2, 1)
    dim 0 in 2 · dim 1 not split · 2 devices, the first block on the first
    """
    dims = [f"dim {d} {'not split' if n == 1 else f'in {n}'}" for d, n in enumerate(parts)]
    devices = f"{plural(parts.product, 'device')}, the first block on the first"
    return f"{parts}\n" + " · ".join([*dims, devices])
