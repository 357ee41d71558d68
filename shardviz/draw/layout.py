"""Pictures of arrays: the blocks of a layout with their devices, or only the shape.

A page shows two dimensions. The other split dimensions are called steps. A page shows
all blocks along the steps side by side, or one block of each step, chosen by `at`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardviz.base.array_spec import ArraySpec, format_names
from shardviz.base.format import bytes_text, ids_text, plural
from shardviz.base.layout import Layout
from shardviz.draw import words as wording
from shardviz.draw.blocks import (
    BlockSelection,
    array_title,
    block_numbers,
    bounds_text,
    check_drawable,
    coarse_layout,
    dimensions_text,
    holders_of,
    is_large,
    large_ids_text,
    layout_shades,
    select_blocks,
)
from shardviz.draw.grid import (
    BAND,
    BAR,
    PAGE,
    Grid,
    Level,
    arrange,
    headers,
    rulers,
    ticks,
)
from shardviz.draw.page import (
    moved,
    note,
    page,
    paragraphs,
    sentences,
    text_width,
    titled,
    wrapped,
)
from shardviz.draw.picture import (
    DEVICES,
    Label,
    Picture,
    Ruler,
    RulerAxis,
    Slot,
    Template,
    index_text,
    make_tiles,
)
from shardviz.draw.tables import (
    MOST_CELLS,
    MOST_LINES,
    Rectangle,
    bordered,
    grid_text,
    rectangle_tiles,
)

# Tiles are wide enough for device ids of up to this many characters.
MOST_LETTERS = 22
# The alt text lists up to this many blocks.
MOST_SAID = 8
# Lists of ids with more characters than this are written as ranges.
SIDE_BY_SIDE = 17
# The size of an array in points, unless its blocks need more space.
ROOM, STRIP, SCALAR = (430.0, 250.0), 54.0, 150.0
# The mean width of a letter in a list of device ids, in points: separators are narrow.
LETTER = 5.4
# The area of all blocks in square points, unless legible blocks need more.
AREA = 240_000.0
# The smallest and largest ratio of width to height at which arrays are drawn.
ASPECTS = (0.45, 4.5)
# Up to this many blocks have text; more blocks form an image.
MOST_LABELLED = 1024
# (maximum number of blocks, smallest side of a block that is visible, in points).
_SIDES = ((4096, 9.0), (16384, 4.6), (262144, 2.6), (1 << 62, 1.2))
# Points per block of an image: minimum, and preferred if space allows.
THINNEST, THIN = 1.2, 2.0
MOST_ACROSS = 32
# Width and height in points of pages that zoom, so that nothing is folded.
LONG_PAGE = 5000.0, 5000.0


def draw_layout_array(
    layout: Layout,
    dims: Any = None,
    at: Any = None,
    name: str = "",
    logical: Sequence[str | None] | None = None,
    title: str | None = None,
    legible: bool = True,
    room: tuple[float, float] = ROOM,
) -> Picture:
    """Draws the blocks of an array, each with the devices that hold it.

    Args:
        dims: the two dimensions to show; None prefers the first dimensions that are
            split, then the largest.
        at: which block of the other dimensions to show; see `select_blocks`. None shows
            all blocks.
        name: the name of the array.
        logical: the array's logical axis names, shown at its edges.
        title: replaces the default title; `""` for no title.
        legible: whether blocks must be large enough for their device ids, which can
            require folded rows; not needed on a page that zooms.
        room: width and height of the array in points, unless its blocks need more.

    Raises:
        LayoutError: for dimensions that the array lacks.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.layout import lay_out
    >>> from shardviz.base.partition_spec import Spec
    >>> layout = lay_out((512, 2048), Spec.parse("None, model"), make_mesh(data=4, model=2))
    >>> draw_layout_array(layout).tiles.label(1).splitlines()
    ['1 · 3 · 5 · 7', '4 replicas']
    """
    check_drawable(layout)
    selection = select_blocks(layout, dims, at)
    # In a large array, each cell represents several blocks.
    cells = coarse_layout(layout, selection.axes)
    blocks = block_numbers(layout, selection, cells.block_counts)
    devices = (
        layout.num_blocks // cells.num_blocks * layout.replicas
    )  # devices per tile
    samples, offsets, ids = [plural(devices, "device")], None, None
    if not is_large(layout):
        offsets, ids = holders_of(layout, blocks)
        ends = ids[: offsets[1]], ids[offsets[-2] :]
        samples = [ids_text(end_ids, MOST_LETTERS) for end_ids in ends]
    cell, to_scale = _block_size(cells, selection, samples if legible else (), room)
    # A scalar is drawn as a grid of one cell.
    counts = [cells.block_counts[dim] for dim in selection.axes] or [1]
    gap = min(18.0, max(3.0, 0.5 * min(cell)))
    grid = arrange(
        counts,
        cell,
        0.0,
        range(len(counts)),
        page=PAGE if legible else LONG_PAGE,
        block_gap=gap,
    )
    labels, edges, left, top = _around(layout, cells, selection, grid, logical)
    corners = grid.corners() + np.array([[left], [top]])
    text: Template = (samples[0],)
    if offsets is not None and ids is not None:
        limit, copies = max(6, int((cell[0] - 8) / LETTER)), ""
        # A tile with too many ids shows their number, which is the number of replicas.
        has_ids = ids_text(ids[offsets[-2] :], limit) != plural(devices, "device")
        if layout.replicas > 1 and has_ids:
            copies = f"\n{plural(layout.replicas, 'replica')}"
        text = (Slot(DEVICES, limit=limit), copies)
    tiles = make_tiles(
        corners[0],
        corners[1],
        cell[0],
        cell[1],
        blocks,
        text=text,
        offsets=offsets,
        holders=ids,
    )
    head = array_title(layout, name)
    if layout.spec is not None:
        head += f"  {layout.spec}"
    notes, joined = _off_page(layout, selection, logical), ""
    if selection.at and selection.steps:
        notes += _shown_blocks(layout, selection, ids, len(blocks) * devices)
    if cells.num_blocks < layout.num_blocks:
        joined = wording.tile_of_blocks(layout.num_blocks // cells.num_blocks)
        notes.insert(0, joined)
    # Without this note, readers would compare lengths by eye.
    if not to_scale:
        notes.append("not to scale")
    return page(
        tiles,
        moved(labels, left, top),
        title=titled(title, head),
        notes=notes,
        size=(left + max(grid.width, _words_width(edges)), top + grid.height),
        alt=_alt(layout, name),
        groups=max(layout.num_blocks, 1),
        shades=layout_shades(layout),
        facts={**_facts(layout, selection), "note": joined},
        rulers=edges,
    )


def _around(
    layout: Layout,
    cells: Layout,
    selection: BlockSelection,
    grid: Grid,
    logical: Sequence[str | None] | None,
) -> tuple[list[Label], list[Ruler], float, float]:
    """Returns the labels and rulers around a grid, and their space at left and top."""
    axes = selection.axes
    if not axes:
        return [], [], 0.0, 0.0

    def words(level: Level, entry: int) -> tuple[str, str]:
        first, dim = entry * level.span, axes[level.axis]
        last = min(first + level.span, level.size) - 1
        return f"dimension {dim}", bounds_text(cells, dim, first, last)

    def named(axis: int) -> tuple[tuple[str, ...], tuple[RulerAxis, ...]]:
        dim = axes[axis]
        name = logical[dim] if logical is not None else None
        return wording.edge_words(layout, dim, name), split_by(layout, dim)

    # Dimensions of the page have ticks; steps have headers.
    ticked = frozenset(range(len(axes) - len(selection.dims), len(axes)))
    steps = [cells.shard_shape[dim] for dim in axes]
    marks, (left, top) = ticks(grid, ticked, steps)
    # From the tiles outward: ticks, then the rulers' text, then headers.
    top = max(top, BAR) + BAND
    if len(selection.dims) > 1:
        left = max(left, BAR) + BAND
    away = left - BAND / 2, top - BAND / 2
    around = headers(grid, words, (left, top), ticked)
    edges = []
    for ruler in rulers(grid, named, steps, ticked, away):
        edges.append(replace(ruler, start=around.top if ruler.down else around.left))
    return [*around.labels, *marks], edges, around.left, around.top


def split_by(layout: Layout, dim: int) -> tuple[RulerAxis, ...]:
    """Returns the mesh axes that split a dimension, major to minor."""
    if layout.spec is None or dim >= len(layout.spec.dims):
        return ()
    mesh, axes = layout.mesh, []
    for name in layout.spec.dims[dim]:
        axes.append((mesh.positions[name], name, mesh.shape[name]))
    return tuple(axes)


def _words_width(edges: Sequence[Ruler]) -> float:
    """Returns the maximum width of the text above an array, in points."""
    widths = [0.0]
    for ruler in edges:
        if ruler.words and ruler.is_edge and not ruler.down:
            names = " ".join(name for _, name, _ in ruler.axes)
            wide = text_width(f"{ruler.words[0]} {names}", 9.0)
            widths.append(min(wide + 12 * len(ruler.axes), ROOM[0]))
    return max(widths)


def _off_page(
    layout: Layout, selection: BlockSelection, logical: Sequence[str | None] | None
) -> list[str]:
    """Describes each dimension that has no edge on the page, one per line."""
    lines = []
    for dim in range(layout.rank):
        if dim not in selection.dims:
            name = logical[dim] if logical is not None else None
            axes = ", ".join(axis for _, axis, _ in split_by(layout, dim))
            lines.append(f"{wording.edge_words(layout, dim, name)[0]} {axes}".strip())
    return lines


def _shown_blocks(
    layout: Layout, selection: BlockSelection, ids: np.ndarray | None, count: int
) -> list[str]:
    """Returns notes on the shown blocks, and on the devices of the hidden blocks.

    Args:
        ids: device ids of the shown blocks; None for a large layout.
        count: number of devices that hold the shown blocks.
    """
    shown = []
    for dim, block in zip(selection.steps, selection.at or (), strict=True):
        bounds, counts = bounds_text(layout, dim, block, block), layout.block_counts
        shown.append(wording.shown_block(dim, bounds, block, counts[dim]))
    notes = [f"shown: {', '.join(shown)}"]
    if ids is None:
        notes.append(wording.other_blocks(f"{layout.mesh.size - count:,}"))
    elif len(hidden_ids := np.setdiff1d(layout.device_ids, ids)):
        notes.append(wording.other_blocks(ids_text(hidden_ids)))
    return notes


def _alt(layout: Layout, name: str) -> str:
    head = wording.layout_lines(layout, array_title(layout, name))
    text = f"Array {head[0]}: {head[1]}."
    # A screen reader would need minutes for hundreds of blocks.
    if layout.num_blocks > MOST_SAID or is_large(layout):
        return text
    blocks = []
    for block in range(layout.num_blocks):
        bounds = index_text(layout.block_counts, layout.shard_shape, block)
        blocks.append(f"{bounds} on {ids_text(layout.holders(block))}")
    return f"{text} {'; '.join(blocks)}."


def _facts(layout: Layout, selection: BlockSelection) -> dict[str, Any]:
    chosen = selection.at or (None,) * len(selection.steps)
    steps = []
    for dim, block in zip(selection.steps, chosen, strict=True):
        steps.append({"dim": dim, "count": layout.block_counts[dim], "at": block})
    return {"dims": list(selection.dims), "steps": steps}


def _block_size(
    layout: Layout,
    selection: BlockSelection,
    samples: Sequence[str],
    room: tuple[float, float] = ROOM,
) -> tuple[tuple[float, float], bool]:
    """Returns a block's width and height in points, and whether they are to scale.

    Args:
        samples: the text of the first and the last block; empty if blocks need not be
            legible.
        room: see `draw_layout_array`.
    """
    widest, highest = room
    sizes = [max(1, layout.shape[dim]) for dim in selection.dims]
    counts = [layout.block_counts[dim] for dim in selection.dims]
    down, across = [1, 1, *counts][-2:]
    number = math.prod(layout.block_counts[dim] for dim in selection.axes)
    width, height = SCALAR, STRIP
    if len(sizes) == 1:
        width = widest
    elif sizes:
        width = min(widest, highest * _aspect(*sizes))
        height = width / _aspect(*sizes)
    # If steps are side by side, each is drawn smaller.
    smaller = min(1.0, max(0.4, 1.3 * (down * across / number) ** 0.5))
    wide, high = smaller * width / across, smaller * height / down
    side = next(side for limit, side in _SIDES if number <= limit)
    least = side, side
    if not samples:
        least = THINNEST, THINNEST
    elif number <= MOST_LABELLED:
        least = _legible(number, across, len(counts), layout.replicas, samples)
    labelled = across * least[0] <= PAGE[0] and down * least[1] <= PAGE[1]
    fits = across * THINNEST <= PAGE[0] and down * THINNEST <= PAGE[1]
    if number > MOST_LABELLED:
        labelled = False
    if not labelled and fits and len(selection.axes) == 2 and min(counts) > 1:
        # An image keeps the array's proportions if its blocks are still visible. It is
        # not folded but as large as the page allows: a folded row is hard to recognise.
        most_wide, most_high = PAGE[0] / across, PAGE[1] / down
        grown = min(side / min(wide, high), most_wide / wide, most_high / high)
        wide = max(wide * max(1.0, grown), min(most_wide, THIN))
        high = max(high * max(1.0, grown), min(most_high, THIN))
    else:
        # Blocks have at least the size `least`, and more if AREA allows.
        wide = max(
            least[0], min(max(wide, least[0]), AREA / number / max(high, least[1]))
        )
        high = max(least[1], min(high, AREA / number / wide))
    if len(sizes) < 2:
        return (wide, high), True
    proportion = (sizes[1] / across) / (sizes[0] / down)
    return (wide, high), abs(wide / high / proportion - 1) < 0.1


def _aspect(high: int, wide: int) -> float:
    return min(max(wide / high, ASPECTS[0]), ASPECTS[1])


def _legible(
    number: int, across: int, rank: int, replicas: int, samples: Sequence[str]
) -> tuple[float, float]:
    """Returns the minimum width and height at which a block's text is legible."""
    needed = max(text_width(words, 8.5, bold=True) for words in samples) + 10
    row: float = across
    # Long rows are folded to about the page's proportions, which gives an estimate of
    # the row length. Two-dimensional arrays with short rows are not folded.
    if rank < 2 or across > MOST_ACROSS:
        row = min(row, math.sqrt(1.7 * number))
    least, height = 28.0, 22.0
    if number > 64:
        least, height = 20.0, 14.0
    elif replicas > 1:  # the second line shows the number of replicas
        height = 34.0
    return min(max(needed, least), max(least, 900.0 / row)), height


def layout_text(
    layout: Layout,
    width: int,
    name: str = "",
    logical: Sequence[str | None] | None = None,
) -> str:
    """Formats a layout as a table of blocks, as a line per block, or as a list of ids.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.layout import lay_out
    >>> from shardviz.base.partition_spec import Spec
    >>> layout = lay_out((512, 2048), Spec.parse("None, model"), make_mesh(data=4, model=2))
    >>> print(layout_text(layout, 80))
    f32[512, 2048] as P(None, 'model') on data=4, model=2
    2 blocks of [512, 1024], 2 MiB per device, 4 replicas
            0:1024          1024:2048
          ┌───────────────┬───────────────┐
    0:512 │ 0 · 2 · 4 · 6 │ 1 · 3 · 5 · 7 │
          └───────────────┴───────────────┘
    dimension 0 not split · dimension 1 → model
    """
    lines, body = [], None
    for line in wording.layout_lines(layout, array_title(layout, name)):
        lines += wrapped(line, width, "  ")
    if layout.num_blocks <= MOST_CELLS and not is_large(layout):
        body = _tables(layout, width)
    if body is None:
        body = _block_lines(layout, width)
    caption = dimensions_text(layout, range(layout.rank), logical)
    return "\n".join([*lines, *body, *wrapped(caption, width)])


def _tables(layout: Layout, width: int) -> list[str] | None:
    """Returns one table for each block of the steps; None if the tables don't fit."""
    selection = select_blocks(layout)
    offsets, ids = holders_of(layout, block_numbers(layout, selection))
    texts = []
    for start, stop in itertools.pairwise(offsets.tolist()):
        text = ids_text(ids[start:stop], SIDE_BY_SIDE)
        if text.endswith("devices"):  # write many ids as ranges
            text = ids_text(ids[start:stop])
        texts.append(text)
    axes = selection.axes

    if not axes:
        return bordered([], [""], [texts])

    def words(axis: int, entry: int, short: bool) -> str:
        text = bounds_text(layout, axes[axis], entry, entry)
        if axis < len(selection.steps):
            return f"dimension {axes[axis]} {text}"
        text = text[1:-1]
        # A short head is only the start of the range.
        if short:
            text = text.partition(":")[0] + ":"
        return text

    sizes = [layout.block_counts[dim] for dim in axes]
    return grid_text(sizes, texts, words, width, ruled=True)


def _block_lines(layout: Layout, width: int) -> list[str]:
    """Returns a line per block; for many blocks, all device ids in block order."""
    large, blocks = is_large(layout), list(range(layout.num_blocks))
    counts = [layout.replicas]
    if not large:
        offsets, ids = holders_of(layout, np.arange(layout.num_blocks))
        counts = np.diff(offsets).tolist()
        # If the caller gives each shard's index, a block may have no device.
        blocks = np.flatnonzero(counts).tolist()
    if layout.num_blocks > MOST_LINES and len(set(counts)) == 1:
        every = large_ids_text(layout) if large else ids_text(ids)
        text = wording.ids_by_block(plural(counts[0], "device"), every)
        return wrapped(text, width, "  ")
    lines = []
    for block in blocks:
        if large:
            holders = large_ids_text(layout, block)
        else:
            holders = ids_text(ids[offsets[block] : offsets[block + 1]])
        bounds = index_text(layout.block_counts, layout.shard_shape, block)
        lines += wrapped(f"{bounds} on {holders}", width, "  ")
    return lines


def draw_array_spec(
    array: ArraySpec, title: str | None = None, problem: str = ""
) -> Picture:
    """Draws an array without a layout: its proportions, type, size and logical names.

    Args:
        title: replaces the default title; `""` for no title.
        problem: a sentence that explains why the array has no layout.
    """
    aspect = 4.0
    if len(array.shape) > 1:
        aspect = _aspect(max(1, array.shape[0]), max(1, array.shape[1]))
    width = min(300.0, 150.0 * aspect)
    about, *lines = _array_lines(array)
    width = max(width, text_width(about, 8.0) + 20)
    height = max(width / aspect, 40.0)
    notes: list[str | Label] = [*lines]
    if problem:
        notes.append(note(problem, "bad"))
        lines.append(problem)
    tile = Rectangle(0, 0, width, height, 0, f"{array.name}\n{about}")
    return page(
        rectangle_tiles([tile], radius=3.0),
        [],
        title=titled(title, f"array {array.name}"),
        notes=notes,
        size=(width, height),
        alt=sentences([f"Array {array.name} {about}", *lines]),
    )


def array_spec_text(array: ArraySpec, width: int) -> str:
    """Formats an array without a layout: type, size, logical names, requested spec."""
    return paragraphs([f"{array.name} {' · '.join(_array_lines(array))}"], width)


def _array_lines(array: ArraySpec) -> list[str]:
    lines = [f"{array.short} · {bytes_text(array.bytes)}"]
    if array.logical is not None:
        lines.append(f"logical axes {format_names(array.logical)}")
    if array.spec is not None:
        lines.append(f"requested spec {array.spec}")
    return lines
