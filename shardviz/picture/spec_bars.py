"""Shardings as small bars: a bar a dimension, cut into as many parts as the mesh axes cut it.

A bar is as long for 2 parts as for 4,096: beyond MOST_PARTS only that there are many can be seen,
and the words beside it say how many. Hue is the mesh axis, grey a dimension that stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec

AXIS_COLOURS = 8  # hues that mesh axes take, in mesh order
NOT_SPLIT_GROUP = 8  # the grey of the palette
MOST_PARTS = 8
_PART_OF_AXIS = re.compile(r"(.+):\((\d+)\)(\d+)")
_LETTERS = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
_DTYPE = re.compile(r"(bfloat|float|int|uint|complex)(\d+)")


def split_axis(axis: str, sizes: Mapping[str, int]) -> tuple[str, int]:
    """The mesh axis and into how many parts it cuts; a part of an axis as Shardy writes it.

    >>> split_axis("data", {"data": 4}), split_axis("data:(1)2", {"data": 4})
    (('data', 4), ('data', 2))
    """
    part = _PART_OF_AXIS.fullmatch(axis)
    if part and axis not in sizes:
        return part[1], int(part[3])
    return axis, sizes.get(axis, 1)


def short_type(dtype: str, shape: Sequence[int]) -> str:
    """Type and shape as people write them; types that are no numbers keep their name.

    >>> short_type("float32", (64, 512)), short_type("bool", ()), short_type("key<fry>", (2,))
    ('f32[64, 512]', 'bool[]', 'key<fry>[2]')
    """
    found = _DTYPE.fullmatch(dtype)
    name = f"{_LETTERS[found[1]]}{found[2]}" if found else dtype
    return f"{name}[{', '.join(map(str, shape))}]"


def axis_groups(mesh: MeshSpec) -> dict[str, int]:
    """Mesh axis to the number of its colour, in mesh order.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> axis_groups(make_mesh(data=4, model=2))
    {'data': 0, 'model': 1}
    """
    return {name: i % AXIS_COLOURS for i, name in enumerate(mesh.axis_names)}


@dataclass(frozen=True)
class Part:
    """One rectangle of a bar: its corner and size in points, its colour, and what it says."""

    x: float
    y: float
    width: float
    height: float
    group: int
    hint: str


def spec_bars(
    spec: Spec, rank: int, mesh: MeshSpec, width: float, height: float, gap: float = 4.0
) -> list[Part]:
    """The bars of one sharding, a dimension after the other, no wider than `width` together.

    A dimension that several axes split is cut by the first of them above and by the next below.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> bars = spec_bars(Spec.parse("data, None"), 2, make_mesh(data=4), 44, 10)
    >>> [(p.x, p.width, p.group) for p in bars]
    [(0.0, 4.25, 0), (5.25, 4.25, 0), (10.5, 4.25, 0), (15.75, 4.25, 0), (24.0, 20.0, 8)]
    """
    sizes, groups = mesh.shape, axis_groups(mesh)
    room = max(3.0, (width - gap * (rank - 1)) / max(rank, 1))
    parts: list[Part] = []
    for dim in range(rank):
        axes = spec.dims[dim] if dim < len(spec.dims) else ()
        left = dim * (room + gap)
        if not axes:
            thin = height / 3  # nothing cuts it, so it stands back
            parts.append(Part(left, thin, room, thin, NOT_SPLIT_GROUP, f"dim {dim}: whole"))
        each = height / max(len(axes), 1)
        for row, axis in enumerate(axes):
            parent, count = split_axis(axis, sizes)
            hint = f"dim {dim}: {axis} in {count:,}"
            colour = groups.get(parent, NOT_SPLIT_GROUP)
            parts += _splits(left, row * each, room, each, count, colour, hint)
    return parts


def _splits(
    x: float, y: float, width: float, height: float, count: int, group: int, hint: str
) -> list[Part]:
    shown = max(1, min(count, MOST_PARTS))
    between = 1.0 if width >= 3 * shown else 0.4
    each = (width - between * (shown - 1)) / shown
    return [Part(x + i * (each + between), y, each, height, group, hint) for i in range(shown)]
