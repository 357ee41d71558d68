"""Tables: as text, as a matrix of tiles, and as rows of text, amounts and shardings.

A sharding is drawn as one small bar per dimension. The bar has as many parts as the
dimension has shards, up to MOST_PARTS. Its colour shows the mesh axis; a dimension that
is not split is grey.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol

from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.draw.page import (
    broken,
    page,
    sentences,
    shortened,
    text_width,
    widest,
)
from shardviz.draw.picture import Label, Picture, Tiles, make_tiles, no_tiles

MOST_CELLS = 256
MOST_LINES = 64


def bordered(
    heads: Sequence[str],
    sides: Sequence[str],
    cells: Sequence[Sequence[str]],
    remarks: Sequence[str] = (),
    ruled: bool = False,
) -> list[str]:
    """Formats a table with column heads, row heads (`sides`) and a remark per row.

    >>> print("\\n".join(bordered(["x 0", "x 1"], ["y 0"], [["7", "8"]])))
          x 0   x 1
        ┌─────┬─────┐
    y 0 │ 7   │ 8   │
        └─────┴─────┘
    """
    widths = []
    for column in itertools.zip_longest(heads, *cells, fillvalue=""):
        widths.append(max(map(len, column)))
    left, margin = max(map(len, sides), default=0), ""
    if left:
        margin = " " * (left + 1)
    dashes = ["─" * (width + 2) for width in widths]
    lines = []
    if any(heads):
        # Column heads are separated by spaces, where the rows below have lines.
        lines.append(f"{margin} {_cells(heads, widths, ' ')}".rstrip())
    lines.append(f"{margin}┌{'┬'.join(dashes)}┐")
    for row, (side, texts) in enumerate(zip(sides, cells, strict=True)):
        if row and ruled:
            lines.append(f"{margin}├{'┼'.join(dashes)}┤")
        line = f"{side:<{len(margin)}}│{_cells(texts, widths, '│')}│"
        if row < len(remarks):
            line = f"{line} {remarks[row]}".rstrip()
        lines.append(line)
    lines.append(f"{margin}└{'┴'.join(dashes)}┘")
    return lines


def _cells(texts: Sequence[str], widths: Sequence[int], between: str) -> str:
    # The last row of a folded table can be shorter than the others.
    pairs = itertools.zip_longest(texts, widths, fillvalue="")
    return between.join(f" {text:<{width}} " for text, width in pairs)


def grid_text(
    sizes: Sequence[int],
    cells: Sequence[str],
    words: Callable[[int, int, bool], str],
    width: int,
    remarks: Sequence[str] = (),
    ruled: bool = False,
) -> list[str] | None:
    """Formats a grid as tables; returns None if they don't fit.

    The last axis runs across and the second-to-last runs down. There is one table for
    each position along the other axes.

    Args:
        sizes: the sizes of the axes.
        cells: the texts of the cells, in row-major order.
        words: returns a row or column head; called with the axis, the entry number, and
            whether the head must be short.
        width: the maximum width of the text, in characters.
        remarks: one text per row, shown at its right.
        ruled: whether to draw lines between the rows of tables with up to four rows.

    >>> heads = lambda axis, entry, short: f"xy"[axis] + f" {entry}"
    >>> print("\\n".join(grid_text((1, 2), ["7", "8"], heads, 20)))
          y 0   y 1
        ┌─────┬─────┐
    x 0 │ 7   │ 8   │
        └─────┴─────┘
    """
    # Try full heads first, because short heads are harder to read.
    for short in (False, True):
        lines: list[str] = []
        *outer, across = sizes
        sides, at = [""], len(sizes) - 1
        heads = [words(at, entry, short) for entry in range(across)]
        if outer:
            sides = [words(at - 1, entry, False) for entry in range(outer.pop())]
        rows = [cells[i : i + across] for i in range(0, len(cells), across)]
        remaining_remarks = list(remarks)
        for place in itertools.product(*map(range, outer)):
            where = [words(axis, entry, False) for axis, entry in enumerate(place)]
            if where:
                lines.append(", ".join(where))
            high = len(sides)
            lines += bordered(
                heads, sides, rows[:high], remaining_remarks[:high], ruled and high <= 4
            )
            del rows[:high], remaining_remarks[:high]
        if fits(lines, width):
            return lines
    return None


def fits(lines: Sequence[str], width: int) -> bool:
    """Whether a table has at most `width` columns of text and MOST_LINES lines."""
    return max(map(len, lines)) <= width and len(lines) <= MOST_LINES


# The distance between the lines of a cell, in points.
LINE = 12.0
ROW, GAP, HEAD = 22.0, 3.0, 16.0
WIDEST_NAME = 260.0


@dataclass(frozen=True)
class Cell:
    """A tile of `matrix`, in one row and one column."""

    row: int
    column: int
    text: str
    group: int


def matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Cell],
    *,
    remarks: Sequence[str] = (),
    least: float = 54.0,
    **more: Any,
) -> Picture:
    """Draws a table with a tile per cell.

    Args:
        rows: row names.
        columns: column names.
        cells: the cells, in any order.
        remarks: one text per row, shown at its right; `""` for none.
        least: the minimum width of a column, in points.
        more: other arguments of `page`: title, notes, legend, alt, colormap, groups.
    """
    left, width = min(widest(rows, 9.0, mono=True), WIDEST_NAME) + 14, least
    # All columns have the width of the widest text, so that cells look comparable.
    for cell in cells:
        width = max(width, text_width(cell.text, 9.0, bold=True) + 12)
    pitch, right = width + GAP, left + len(columns) * (width + GAP)
    labels = []
    for column, name in enumerate(columns):
        middle = left + column * pitch + width / 2
        labels.append(Label(middle, HEAD / 2 - 3, shortened(name, width, 9.0)))
    for row, name in enumerate(rows):
        y = HEAD + row * (ROW + GAP) + ROW / 2
        short = shortened(name, WIDEST_NAME, 9.0, mono=True)
        labels.append(Label(0, y, short, "start", "mono"))
        if row < len(remarks) and remarks[row]:
            labels.append(Label(right + 6, y, remarks[row], "start", "note"))
    tiles = []
    for cell in cells:
        x, y = left + cell.column * pitch, HEAD + cell.row * (ROW + GAP)
        tiles.append(Rectangle(x, y, width, ROW, cell.group, cell.text))
    # A table without rows keeps the height of one row, so that notes are below it.
    size = (right, HEAD + max(len(rows), 1) * (ROW + GAP))
    return page(rectangle_tiles(tiles, radius=4.0), labels, size=size, **more)


# Number of colours for mesh axes.
AXIS_COLOURS = 8
# The group whose colour is grey.
NOT_SPLIT_GROUP = 8
MOST_PARTS = 8
# The height of a sharding's bars, and the gap between two dimensions, in points.
BAR, BAR_GAP = 9.0, 4.0
_PART_OF_AXIS = re.compile(r"(.+):\((\d+)\)(\d+)")
_LETTERS = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
_DTYPE = re.compile(r"(bfloat|float|int|uint|complex)(\d+)")


def split_axis(axis: str, sizes: Mapping[str, int]) -> tuple[str, int]:
    """Returns a mesh axis' name, and the number of shards that it creates.

    `data:(1)2` is XLA's name for a sub-axis of `data` with size 2.

    >>> split_axis("data", {"data": 4}), split_axis("data:(1)2", {"data": 4})
    (('data', 4), ('data', 2))
    """
    part = _PART_OF_AXIS.fullmatch(axis)
    # A user's mesh axis can have a name that looks like a sub-axis.
    if part and axis not in sizes:
        return part[1], int(part[3])
    return axis, sizes.get(axis, 1)


def short_type(dtype: str, shape: Sequence[int]) -> str:
    """Formats dtype and shape in short; only numeric dtypes are abbreviated.

    >>> short_type("float32", (64, 512)), short_type("bool", ()), short_type("key<fry>", (2,))
    ('f32[64, 512]', 'bool[]', 'key<fry>[2]')
    """
    number = _DTYPE.fullmatch(dtype)
    if number:
        dtype = f"{_LETTERS[number[1]]}{number[2]}"
    return f"{dtype}[{', '.join(map(str, shape))}]"


def axis_groups(mesh: MeshSpec) -> dict[str, int]:
    """Returns mesh axis name -> group of its colour, in mesh order."""
    return {name: i % AXIS_COLOURS for i, name in enumerate(mesh.axis_names)}


@dataclass(frozen=True)
class Rectangle:
    """A rectangle with its corner and size in points, a colour group, and text."""

    x: float
    y: float
    width: float
    height: float
    group: int
    text: str = ""


# Bars: maximum length, thickness and minimum length, in points.
LONGEST, THICK, LEAST = 150.0, 9.0, 2.0
WIDEST_COLUMN, WIDEST_LAST = 320.0, 620.0
# Maximum number of lines per cell of the last column.
MOST_REMARK_LINES = 3
# The groups of bars.
NORMAL, HIGHLIGHTED = 0, 1


@dataclass(frozen=True)
class Bar:
    """A row of a Table: an amount, drawn as a bar, and text.

    Attributes:
        value: the amount, in any unit; None for a row without a bar.
        text: the formatted amount, shown at the bar's end.
        words: the texts of the other columns.
        group: NORMAL or HIGHLIGHTED.
        tone: the tone of `words`, as in Label; `"bad"` text is never shortened.
    """

    value: float | None
    text: str
    words: tuple[str, ...]
    group: int = NORMAL
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of amounts and text, shown as text or as a picture.

    Attributes:
        heads: the head of the amounts' column, then the heads of the text columns.
        rows: the rows, in display order.

    >>> rows = (Bar(2.0, "2 B", ("x",)), Bar(1.0, "1 B", ("y",)))
    >>> table = Table(("bytes", "array"), rows)
    >>> table.lines(), table.picture().tiles.width.tolist()
    (['  2 B  x', '  1 B  y'], [150.0, 75.0])
    """

    heads: tuple[str, ...]
    rows: tuple[Bar, ...]

    def lines(self, indent: str = "  ") -> list[str]:
        """Formats each row as one line: the amount, then the other columns."""
        left, lines = max((len(row.text) for row in self.rows), default=0), []
        for row in self.rows:
            words = " · ".join(filter(None, row.words))
            lines.append(f"{indent}{row.text:>{left}}  {words}")
        return lines

    def picture(self, **more: Any) -> Picture:
        """Draws the table without empty columns; bars are proportional to the values.

        Args:
            more: other arguments of `page`.
        """
        texts = itertools.zip_longest(*(row.words for row in self.rows), fillvalue="")
        filled = [number for number, column in enumerate(texts) if any(column)]
        columns = [Column(self.heads[0], 2 * LONGEST)]
        columns += [Column(self.heads[1 + number], WIDEST_COLUMN) for number in filled]
        if filled and 1 + filled[-1] == len(self.heads) - 1:
            columns[-1] = Column(self.heads[-1], WIDEST_LAST, lines=MOST_REMARK_LINES)
        largest = max((row.value or 0.0 for row in self.rows), default=0.0) or 1.0
        rows = []
        for row in self.rows:
            length = 0.0
            # A value of 0 has a short bar; a row without a value has no bar.
            if row.value is not None:
                length = max(LEAST, LONGEST * row.value / largest)
            amount = Amount(length, row.text, row.group)
            words = dict(enumerate(row.words))
            cells = (words.get(number, "") for number in filled)
            rows.append(Row((amount, *cells), tone=row.tone or "text"))
        labels, bars, size = column_table(columns, rows)
        more.setdefault("alt", sentences(self.lines("")))
        tiles = rectangle_tiles(bars, radius=3.0)
        return page(tiles, labels, size=size, colormap="bars", groups=2, **more)


def column_heads(starts: Sequence[float], heads: Sequence[str]) -> list[Label]:
    """Creates labels for the heads of a table's columns."""
    labels = []
    for x, head in zip(starts, heads, strict=True):
        if head:
            labels.append(Label(x, 5, head, "start", "tick"))
    return labels


def lines_at(x: float, y: float, lines: Sequence[str], tone: str) -> list[Label]:
    """Creates labels for the lines of a cell, the first at `y`."""
    labels = []
    for number, line in enumerate(lines):
        if line:
            labels.append(Label(x, y + LINE * number, line, "start", "axis", tone))
    return labels


@dataclass(frozen=True)
class Column:
    """A column of `column_table`.

    Attributes:
        head: the text above the column.
        widest: the maximum width, in points.
        tone: the text's tone, as in Label.
        lines: the maximum number of lines per cell; longer text is shortened. None
            for no maximum.
        mono: whether to use a monospaced font, for names from a program.
    """

    head: str
    widest: float
    tone: str = "text"
    lines: int | None = 1
    mono: bool = False


@dataclass(frozen=True)
class Amount:
    """A cell with a bar, whose length is in points, and text at the bar's end."""

    length: float
    text: str
    group: int


class SplitValue(Protocol):
    """A value whose sharding is drawn in a cell."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def spec(self) -> Spec: ...


@dataclass(frozen=True)
class Row:
    """A row of `column_table`.

    Attributes:
        cells: one per column: text, a bar, or (value, mesh) to draw a sharding.
        heading: a line above consecutive rows with the same heading; `""` for none.
        indent: indent of the text in the first column, in points.
        tone: overrides the columns' tones; `""` to keep them.
    """

    cells: tuple[str | Amount | tuple[SplitValue, MeshSpec], ...]
    heading: str = ""
    indent: float = 0.0
    tone: str = ""


ROW_PITCH, COLUMN_GAP, DIMENSION = 18.0, 16.0, 34.0


def column_table(
    columns: Sequence[Column], rows: Sequence[Row]
) -> tuple[list[Label], list[Rectangle], tuple[float, float]]:
    """Returns a table's labels, its bars (of amounts and shardings), and its size."""
    starts = [0.0]
    for number, column in enumerate(columns[:-1]):
        wide = max(30.0, text_width(column.head, 8.0))
        for row in rows:
            cell = row.cells[number]
            if isinstance(cell, Amount):
                wide = max(wide, cell.length + 6 + text_width(cell.text, 9.0))
            elif isinstance(cell, str):
                across = text_width(cell, 9.0, column.mono)
                if number == 0:
                    across += row.indent
                wide = max(wide, across)
            else:
                wide = max(wide, DIMENSION * max(len(cell[0].shape), 1))
        starts.append(starts[-1] + min(wide, column.widest) + COLUMN_GAP)
    labels = column_heads(starts, [column.head for column in columns])
    bars: list[Rectangle] = []
    y, heading = ROW_PITCH / 2 if labels else -ROW_PITCH / 2, ""
    for row in rows:
        if row.heading and row.heading != heading:
            y += ROW_PITCH
            labels.append(Label(0, y, row.heading, "start", "axis", "muted"))
        heading = row.heading
        y += ROW_PITCH
        bottom = y
        for x, column, cell in zip(starts, columns, row.cells, strict=True):
            tone = row.tone or column.tone
            if isinstance(cell, Amount):
                length, at = cell.length, 0.0
                if length:
                    top, at = y - THICK / 2, length + 6
                    bars.append(Rectangle(x, top, length, THICK, cell.group))
                labels += lines_at(x + at, y, [cell.text], tone)
            elif isinstance(cell, str) and column.mono:
                name = shortened(cell, column.widest - row.indent, 9.0, mono=True)
                labels.append(Label(row.indent, y, name, "start", "mono", column.tone))
            elif isinstance(cell, str):
                max_lines = column.lines
                if row.tone == "bad" and max_lines != 1:  # errors are shown in full
                    max_lines = None
                lines = broken(cell, column.widest, 9.0, max_lines)
                labels += lines_at(x, y, lines, tone)
                bottom = max(bottom, y + LINE * (len(lines) - 1))
            else:
                op, mesh = cell
                wide = min(column.widest, DIMENSION * max(len(op.shape), 1))
                corner = (x, y - BAR / 2)
                bars += spec_bars(op.spec, len(op.shape), mesh, wide, corner)
        y = bottom
    return labels, bars, (starts[-1] + 40, y + ROW_PITCH / 2)


def spec_bars(
    spec: Spec,
    rank: int,
    mesh: MeshSpec,
    width: float,
    corner: tuple[float, float] = (0.0, 0.0),
) -> list[Rectangle]:
    """Draws a sharding as one bar per dimension, from left to right.

    If several mesh axes split a dimension, its bar has one row of parts per axis, the
    first axis on top.

    Args:
        width: the total width of the bars and gaps, in points.
        corner: the top left corner of the first bar, in points.

    >>> from shardviz.base.mesh import make_mesh
    >>> bars = spec_bars(Spec.parse("data, None"), 2, make_mesh(data=4), 44)
    >>> [(p.x, p.width, p.group) for p in bars]
    [(0.0, 4.25, 0), (5.25, 4.25, 0), (10.5, 4.25, 0), (15.75, 4.25, 0), (24.0, 20.0, 8)]
    """
    sizes, groups = mesh.shape, axis_groups(mesh)
    wide = max(3.0, (width - BAR_GAP * (rank - 1)) / max(rank, 1))
    bars: list[Rectangle] = []
    for dim, axes in enumerate(spec.padded(rank)[:rank]):
        left = corner[0] + dim * (wide + BAR_GAP)
        if not axes:
            # A dimension that is not split gets a thinner bar.
            thin = BAR / 3
            bars.append(Rectangle(left, corner[1] + thin, wide, thin, NOT_SPLIT_GROUP))
        for row, axis in enumerate(axes):
            parent, count = split_axis(axis, sizes)
            parts, high = max(1, min(count, MOST_PARTS)), BAR / len(axes)
            gap = 1.0 if wide >= 3 * parts else 0.4
            part, top = (wide - gap * (parts - 1)) / parts, corner[1] + row * high
            group = groups.get(parent, NOT_SPLIT_GROUP)
            for number in range(parts):
                x = left + number * (part + gap)
                bars.append(Rectangle(x, top, part, high, group))
    return bars


def rectangle_tiles(rectangles: Sequence[Rectangle], radius: float = 1.2) -> Tiles:
    """Converts rectangles to tiles."""
    if not rectangles:
        return no_tiles()
    columns = zip(*map(astuple, rectangles), strict=True)
    *numbers, texts = map(list, columns)
    # Bars have no text, so most tables need no template.
    text = texts if any(texts) else ()
    return make_tiles(*numbers, text=text, radius=radius)


def axis_legend(mesh: MeshSpec) -> list[tuple[int, str]]:
    """Returns legend entries for mesh axes and for dimensions that are not split."""
    entries = []
    for name, group in axis_groups(mesh).items():
        entries.append((group, f"{name} {mesh.shape[name]:,}"))
    return [*entries, (NOT_SPLIT_GROUP, "not split")]
