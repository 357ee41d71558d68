"""What a collective of a planned module is about: axes, groups, bytes; never per device.

Groups are told by the mesh axes that they run over, so a mesh of a million devices costs the same
as one of eight. The exception is what `shard_map` wrote out itself, of which the first groups do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.spec import Spec
from shardviz.core.program.hlo.replica_groups import axes_of_pairs
from shardviz.core.program.propagation import attributes

_PART = re.compile(r":\(\d+\)(\d+)$")
_SUBSET = 4096  # pairs of a permutation that are looked at
_XLA = {"bool": "pred", "bfloat16": "bf16", "complex64": "c64", "complex128": "c128"}


def axis_size(axis: str, mesh: MeshSpec) -> int:
    """How many parts a mesh axis, or a part of one, makes.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> axis_size("data:(2)4", make_mesh(data=8)), axis_size("data", make_mesh(data=8))
    (4, 8)
    """
    part = _PART.search(axis)
    return int(part[1]) if part else mesh.shape.get(axis, 1)


def group_size(axes: Iterable[str], mesh: MeshSpec) -> int:
    """How many devices take part in each group of a collective over some axes."""
    return math.prod(axis_size(axis, mesh) for axis in axes)


def parents(axes: Iterable[str], mesh: MeshSpec) -> tuple[str, ...]:
    """The mesh axes that these are, or are parts of, in the order of the mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> parents(["model", "data:(1)2", "data:(2)2"], make_mesh(data=4, model=2))
    ('data', 'model')
    """
    named = {attributes.parent(axis) for axis in axes}
    return tuple(axis for axis in mesh.axis_names if axis in named)


def local_shape(shape: tuple[int, ...], spec: Spec, mesh: MeshSpec) -> tuple[int, ...]:
    """The shape of the block on each device; the largest where it is uneven.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> local_shape((10, 6), Spec.parse("data"), make_mesh(data=4))
    (3, 6)
    """
    parts = [group_size(axes, mesh) for axes in spec.dims] + [1] * len(shape)
    return tuple(-(-size // over) for size, over in zip(shape, parts, strict=False))


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of an array as XLA counts them: types below a byte are packed.

    >>> bytes_of((3,), "int4"), bytes_of((2, 2), "bfloat16"), bytes_of((), "bool")
    (2, 8, 1)
    """
    width = re.search(r"\d+", dtype)
    bits = 8 if dtype == "bool" or width is None else int(width[0])
    return -(-math.prod(shape) * bits // 8)


def shape_text(shape: tuple[int, ...], dtype: str) -> str:
    """Type and shape as XLA writes them.

    >>> shape_text((16, 512), "float32"), shape_text((), "bool"), shape_text((8,), "int8")
    ('f32[16,512]', 'pred[]', 's8[8]')
    """
    short = _XLA.get(dtype, "")
    if not short and (found := re.fullmatch(r"(float|uint|int)(\d+.*)", dtype)):
        short = {"float": "f", "uint": "u", "int": "s"}[found[1]] + found[2].replace("_", "")
        short = re.sub(r"^f(\d)(\d*)e", r"f\1\2e", short)
    return f"{short or dtype}[{','.join(map(str, shape))}]"


def moved_axes(before: Spec, after: Spec) -> tuple[str, ...]:
    """The axes that stand elsewhere after a permutation of the blocks."""
    places = [
        {axis: (dim, at) for dim, axes in enumerate(spec.dims) for at, axis in enumerate(axes)}
        for spec in (before, after)
    ]
    both = dict.fromkeys((*places[0], *places[1]))
    return tuple(axis for axis in both if places[0].get(axis) != places[1].get(axis))


def axes_of_manual(op: Any, mesh: MeshSpec) -> tuple[str, ...]:
    """The mesh axes of a collective that the user wrote inside of `shard_map`."""
    name = "source_target_pairs" if "source_target_pairs" in op.attributes else "replica_groups"
    if name not in op.attributes:
        return ()
    groups = op.attributes[name]
    text = str(groups) if "replica_group_mesh_axes" in str(groups)[:80] else ""
    if text:
        found = re.findall(r'axis_ref<name = "((?:[^"\\]|\\.)*)"', text)
        return parents(found, mesh)
    rows = np.asarray(groups)
    if name == "source_target_pairs":
        pairs = tuple(map(tuple, rows.reshape(-1, 2)[:_SUBSET].tolist()))
        return axes_of_pairs(pairs, mesh.axis_names, mesh.axis_sizes)
    return _axes_of_group(rows.reshape(-1, rows.shape[-1])[0], mesh)


def _axes_of_group(group: np.ndarray, mesh: MeshSpec) -> tuple[str, ...]:
    group = group[group >= 0]
    if not group.size or group.max() >= mesh.size:
        return ()
    coordinates = np.unravel_index(group, mesh.axis_sizes)
    moving = [bool((c != c[0]).any()) for c in coordinates]
    across = math.prod(s for s, moves in zip(mesh.axis_sizes, moving, strict=True) if moves)
    if across != group.size:
        return ()
    return tuple(a for a, moves in zip(mesh.axis_names, moving, strict=True) if moves)
