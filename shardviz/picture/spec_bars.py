"""Shardings as small bars: one per dimension, in as many parts as the mesh axes split it into.

A bar is as long for 2 parts as for 4,096: beyond MOST_PARTS it only shows that there are many, and
its tooltip says how many. The colour is that of the mesh axis; grey is a dimension that is not
split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import PlannedOp
from shardviz.picture.picture import Tiles, make_tiles, no_tiles

AXIS_COLOURS = 8  # that mesh axes take, in mesh order
NOT_SPLIT_GROUP = 8  # the grey of the palette
MOST_PARTS = 8
BAR = 9.0  # points, the height of a bar
_PART_OF_AXIS = re.compile(r"(.+):\((\d+)\)(\d+)")
_LETTERS = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
_DTYPE = re.compile(r"(bfloat|float|int|uint|complex)(\d+)")


def split_axis(axis: str, sizes: Mapping[str, int]) -> tuple[str, int]:
    """The mesh axis and into how many parts it splits; also of a part of an axis, `data:(1)2`.

    >>> split_axis("data", {"data": 4}), split_axis("data:(1)2", {"data": 4})
    (('data', 4), ('data', 2))
    """
    part = _PART_OF_AXIS.fullmatch(axis)
    if part and axis not in sizes:
        return part[1], int(part[3])
    return axis, sizes.get(axis, 1)


def short_type(dtype: str, shape: Sequence[int]) -> str:
    """Type and shape in short; types that are not numbers keep their name.

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
class Rectangle:
    """A rectangle: its corner and size in points, its colour, and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    group: int
    hint: str


def value_bars_width(op: PlannedOp, widest: float) -> float:
    """How wide the bars of a value are together, in points."""
    return min(widest, 34.0 * max(len(op.shape), 1))


def value_bars(op: PlannedOp, mesh: MeshSpec, widest: float, x: float, y: float) -> list[Rectangle]:
    """The bars of one value's sharding, from `x` on and with `y` in their middle."""
    width = value_bars_width(op, widest)
    return [
        replace(r, x=r.x + x, y=r.y + y - BAR / 2, hint=f"{op.name}: {r.hint}")
        for r in spec_bars(op.spec, len(op.shape), mesh, width)
    ]


def spec_bars(
    spec: Spec, rank: int, mesh: MeshSpec, width: float, gap: float = 4.0
) -> list[Rectangle]:
    """The bars of one sharding, a dimension after the other, no wider than `width` together.

    A dimension that several axes split has the parts of the first axis on top, then the next.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> bars = spec_bars(Spec.parse("data, None"), 2, make_mesh(data=4), 44)
    >>> [(p.x, p.width, p.group) for p in bars]
    [(0.0, 4.25, 0), (5.25, 4.25, 0), (10.5, 4.25, 0), (15.75, 4.25, 0), (24.0, 20.0, 8)]
    """
    sizes, groups = mesh.shape, axis_groups(mesh)
    wide = max(3.0, (width - gap * (rank - 1)) / max(rank, 1))
    bars: list[Rectangle] = []
    for dim in range(rank):
        axes = spec.dims[dim] if dim < len(spec.dims) else ()
        left = dim * (wide + gap)
        if not axes:
            thin = BAR / 3  # what is not split is less conspicuous
            bars.append(Rectangle(left, thin, wide, thin, NOT_SPLIT_GROUP, f"dim {dim}: not split"))
        each = BAR / max(len(axes), 1)
        for row, axis in enumerate(axes):
            parent, count = split_axis(axis, sizes)
            shown = max(1, min(count, MOST_PARTS))
            between = 1.0 if wide >= 3 * shown else 0.4
            part = (wide - between * (shown - 1)) / shown
            group = groups.get(parent, NOT_SPLIT_GROUP)
            hint = f"dim {dim}: split {count:,} ways by {axis}"
            bars += [
                Rectangle(left + i * (part + between), row * each, part, each, group, hint)
                for i in range(shown)
            ]
    return bars


def rectangle_tiles(rectangles: Sequence[Rectangle], radius: float = 1.2) -> Tiles:
    """Rectangles as tiles, each with its tooltip."""
    if not rectangles:
        return no_tiles()
    columns = zip(*((r.x, r.y, r.width, r.height, r.group) for r in rectangles), strict=True)
    return make_tiles(*map(list, columns), hint=[r.hint for r in rectangles], radius=radius)


def axis_legend(mesh: MeshSpec) -> list[tuple[int, str]]:
    """What the colours of bars mean: the axes of the mesh, and dimensions that are not split."""
    groups = axis_groups(mesh)
    axes = [(groups[name], f"{name} {size:,}") for name, size in mesh.shape.items()]
    return [*axes, (NOT_SPLIT_GROUP, "not split")]
