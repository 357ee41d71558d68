"""Tables: tiles in a matrix, bars with numbers and columns of words, and tables in letters.

Shardings are small bars: one per dimension, in as many parts as the mesh axes split it into. A bar
is as long for 2 parts as for 4,096: beyond MOST_PARTS it only shows that there are many, and its
tooltip says how many. The colour is that of the mesh axis; grey is a dimension that is not split.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import PlannedOp
from shardviz.picture.page import broken, page, shortened, text_width
from shardviz.picture.picture import Label, Picture, Tiles, make_tiles, no_tiles

MOST_CELLS = 256
MOST_LINES = 64


def bordered(
    heads: Sequence[str],
    sides: Sequence[str],
    cells: Sequence[Sequence[str]],
    remarks: Sequence[str] = (),
    ruled: bool = False,
) -> list[str]:
    """A table drawn in letters: heads on top, sides on the left, remarks on the right.

    >>> print("\\n".join(bordered(["x 0", "x 1"], ["y 0"], [["7", "8"]])))
          x 0   x 1
        ┌─────┬─────┐
    y 0 │ 7   │ 8   │
        └─────┴─────┘
    """
    columns = list(itertools.zip_longest(heads, *cells, fillvalue=""))
    widths = [max(len(v) for v in column) for column in columns]
    left = max([len(s) for s in sides], default=0) + 1 if any(sides) else 0

    def rule(start: str, middle: str, end: str) -> str:
        return " " * left + start + middle.join("─" * (w + 2) for w in widths) + end

    lines = []
    if any(heads):
        inner = " ".join(f" {h:<{w}} " for h, w in zip(heads, widths, strict=False))
        lines.append((" " * (left + 1) + inner).rstrip())
    lines.append(rule("┌", "┬", "┐"))
    for row, (side, texts) in enumerate(zip(sides, cells, strict=True)):
        if row and ruled:
            lines.append(rule("├", "┼", "┤"))
        full = [*texts, *[""] * (len(widths) - len(texts))]
        inner = "│".join(f" {t:<{w}} " for t, w in zip(full, widths, strict=True))
        remark = f" {remarks[row]}" if row < len(remarks) and remarks[row] else ""
        lines.append(f"{side:<{left}}│{inner}│{remark}")
    return [*lines, rule("└", "┴", "┘")]


def fits(lines: Sequence[str], width: int) -> bool:
    """Whether a table is narrow and short enough to be read.

    >>> fits(["abc"], 3), fits(["abc"], 2)
    (True, False)
    """
    return max(map(len, lines)) <= width and len(lines) <= MOST_LINES


LINE = 12.0  # points: from one line of a cell to the next
ROW, GAP, HEAD = 22.0, 3.0, 16.0
WIDEST_NAME = 260.0


@dataclass(frozen=True)
class Cell:
    """A tile where a row meets a column."""

    row: int
    column: int
    text: str
    group: int
    hint: str


def matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Cell],
    *,
    remarks: Sequence[str] = (),
    least: float = 54.0,
    **more: Any,
) -> Picture:
    """A page with a tile wherever a row and a column have something in common.

    Args:
        rows, columns: their names.
        remarks: a text at the right of every row, `""` for none.
        least: the minimum width of a column, in points.
        more: what `page` takes: title, notes, legend, alt, colormap, groups.

    >>> matrix(["a"], ["x"], [Cell(0, 0, "yes", 0, "a is x")]).tiles.tooltip(0)
    'a is x'
    """
    left = min(max([text_width(r, 9.0, mono=True) for r in rows], default=0.0), WIDEST_NAME) + 14
    texts = [c.text for c in cells]
    width = max([least, *(text_width(t, 9.0, bold=True) + 12 for t in texts)])
    pitch = width + GAP
    labels = [
        Label(left + c * pitch + width / 2, HEAD / 2 - 3, shortened(name, width, 9.0))
        for c, name in enumerate(columns)
    ]
    for row, name in enumerate(rows):
        y = HEAD + row * (ROW + GAP) + ROW / 2
        labels.append(Label(0, y, shortened(name, WIDEST_NAME, 9.0, mono=True), "start", "mono"))
        if row < len(remarks) and remarks[row]:
            labels.append(Label(left + len(columns) * pitch + 6, y, remarks[row], "start", "note"))
    tiles = no_tiles()
    if cells:
        tiles = make_tiles(
            [left + c.column * pitch for c in cells],
            [HEAD + c.row * (ROW + GAP) for c in cells],
            width,
            ROW,
            [c.group for c in cells],
            text=texts,
            hint=[c.hint for c in cells],
            radius=4.0,
        )
    size = (left + len(columns) * pitch, HEAD + max(len(rows), 1) * (ROW + GAP))
    return page(tiles, labels, size=size, **more)


LONGEST, THICK, PITCH, LEAST = 150.0, 9.0, 19.0, 2.0
WIDEST_COLUMN, WIDEST_LAST = 320.0, 620.0
MOST_REMARK_LINES = 3  # of the words in the last column
NORMAL, HIGHLIGHTED = 0, 1  # groups


@dataclass(frozen=True)
class Bar:
    """One row.

    Attributes:
        value: the length of the bar, in any unit; None for a row without a bar.
        text: the value in words, at the bar's end.
        words: one text per column, at its right.
        group: NORMAL or HIGHLIGHTED.
        hint: the tooltip of the bar.
        tone: of the words, as in Label; `"bad"` words are never shortened.
    """

    value: float | None
    text: str
    words: tuple[str, ...]
    group: int = NORMAL
    hint: str = ""
    tone: str = ""


def column_heads(starts: Sequence[float], heads: Sequence[str]) -> list[Label]:
    """The names above the columns of a table."""
    return [Label(x, 5, h, "start", "tick") for x, h in zip(starts, heads, strict=True) if h]


def lines_at(x: float, y: float, lines: Sequence[str], tone: str) -> list[Label]:
    """Several lines of text in one cell, the first at `y`."""
    return [
        Label(x, y + LINE * i, line, "start", "axis", tone) for i, line in enumerate(lines) if line
    ]


def bars(rows: Sequence[Bar], heads: Sequence[str], **more: Any) -> Picture:
    """A page of bars, longest where the value is largest.

    Args:
        rows: in the order to show them.
        heads: a name for the bars, then one per column of words.
        more: what `page` takes.

    >>> bars([Bar(2.0, "2 B", ("x",)), Bar(1.0, "1 B", ("y",))], ["bytes", ""]).tiles.width.tolist()
    [150.0, 75.0]
    """
    largest = max([r.value or 0.0 for r in rows], default=0.0) or 1.0
    lengths = [None if r.value is None else max(LEAST, LONGEST * r.value / largest) for r in rows]
    ends = [(n or -6.0) + 6 + text_width(r.text, 9.0) for n, r in zip(lengths, rows, strict=True)]
    starts = _columns(rows, heads, max([60.0, *ends]) + 16)
    labels = column_heads(starts, heads)
    y, tops = 16.0 if labels else 0.0, []
    for row, length in zip(rows, lengths, strict=True):
        tops.append(y)
        middle = y + PITCH / 2
        label = Label((length or -6.0) + 6, middle, row.text, "start", "axis", row.tone or "text")
        words, lines = _words(row, starts, middle)
        labels += [label, *words]
        y += PITCH + LINE * (lines - 1)
    tiles = _tiles(rows, lengths, tops)
    return page(tiles, labels, size=(starts[-1] + 40, y), colormap="bars", groups=2, **more)


def _words(row: Bar, starts: Sequence[float], y: float) -> tuple[list[Label], int]:
    """The words of a row, and how many lines those in the last column take."""
    labels, lines, tone = [], 1, row.tone or "text"
    for x, text in zip(starts[1:], row.words, strict=False):
        parts = [shortened(text, WIDEST_COLUMN, 9.0)]
        if x == starts[-1]:
            most = None if row.tone == "bad" else MOST_REMARK_LINES
            parts = broken(text, WIDEST_LAST, 9.0, most)
            lines = max(lines, len(parts))
        labels += lines_at(x, y, parts, tone)
    return labels, lines


def _tiles(rows: Sequence[Bar], lengths: Sequence[float | None], tops: Sequence[float]) -> Tiles:
    drawn = [(i, n) for i, n in enumerate(lengths) if n is not None]
    if not drawn:
        return no_tiles()
    return make_tiles(
        0,
        [tops[i] + (PITCH - THICK) / 2 for i, _ in drawn],
        [n for _, n in drawn],
        THICK,
        [rows[i].group for i, _ in drawn],
        hint=[rows[i].hint or f"{rows[i].text} {' '.join(rows[i].words)}" for i, _ in drawn],
        radius=3.0,
    )


def _columns(rows: Sequence[Bar], heads: Sequence[str], first: float) -> list[float]:
    """Where the bars and every column of words begin, in points."""
    starts = [0.0, first]
    for column in range(len(heads) - 2):
        texts = [r.words[column] for r in rows if column < len(r.words)]
        widest = max([text_width(t, 9.0) for t in [*texts, heads[column + 1]]], default=0.0)
        starts.append(starts[-1] + min(widest, WIDEST_COLUMN) + 16)
    return starts[: len(heads)]


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
            words = f"dimension {dim}: not split"
            bars.append(Rectangle(left, thin, wide, thin, NOT_SPLIT_GROUP, words))
        each = BAR / max(len(axes), 1)
        for row, axis in enumerate(axes):
            parent, count = split_axis(axis, sizes)
            shown = max(1, min(count, MOST_PARTS))
            between = 1.0 if wide >= 3 * shown else 0.4
            part = (wide - between * (shown - 1)) / shown
            group = groups.get(parent, NOT_SPLIT_GROUP)
            hint = f"dimension {dim}: split {count:,} ways by {axis}"
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
