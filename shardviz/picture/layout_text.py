"""Layouts as text: a table of the blocks with their devices, a line per block, or ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shardviz.core.format import ids_text, plural
from shardviz.core.layout.layout import Layout
from shardviz.core.wording import pictures as wording
from shardviz.picture.blocks import (
    BlockSelection,
    array_title,
    block_numbers,
    bounds_text,
    dimension_text,
    holders_of,
    holders_text,
    ids_by_block,
    is_large,
    select_blocks,
)
from shardviz.picture.page import wrapped
from shardviz.picture.tables import MOST_CELLS, MOST_LINES, bordered, fits

SIDE_BY_SIDE = 17  # letters: ids that take more are written as ranges


def layout_text(
    layout: Layout,
    width: int,
    name: str = "",
    logical: Sequence[str | None] | None = None,
) -> str:
    """A layout: a table of the blocks with their devices, a line per block, or ids.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.partition_spec import Spec
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
    lines, body, captions = [], None, []
    for line in wording.layout_lines(layout, array_title(layout, name)):
        lines += wrapped(line, width, "  ")
    if layout.num_blocks <= MOST_CELLS and not is_large(layout):
        body = _tables(layout, width)
    if body is None:
        body = _block_lines(layout, width)
    for dim in range(layout.rank):
        captions.append(dimension_text(layout, dim, logical))
    return "\n".join([*lines, *body, *wrapped(" · ".join(captions), width)])


def _tables(layout: Layout, width: int) -> list[str] | None:
    """One table per step through the dimensions that are not shown; None if too large."""
    selection = select_blocks(layout)
    offsets, ids = holders_of(layout, block_numbers(layout, selection))
    texts = []
    for start, stop in itertools.pairwise(offsets.tolist()):
        text = ids_text(ids[start:stop], SIDE_BY_SIDE)
        if text.endswith("devices"):  # too many: as ranges, then, however long
            text = ids_text(ids[start:stop])
        texts.append(text)
    if len(selection.dims) == 1 and len(texts) > 1:
        return _folded_row(layout, selection.dims[0], texts, width)
    for full in (True, False):
        lines = _steps(layout, selection, texts, full)
        if fits(lines, width):
            return lines
    return None


def _steps(
    layout: Layout, selection: BlockSelection, texts: Sequence[str], full: bool
) -> list[str]:
    heads, sides = [""], [""]
    if selection.dims:
        heads = _heads(layout, selection.dims[-1], full)
    if len(selection.dims) == 2:
        sides = _heads(layout, selection.dims[0])
    lines: list[str] = []
    rows, first = [], 0
    while first < len(texts):
        rows.append(texts[first : first + len(heads)])
        first += len(heads)
    counts = [range(layout.block_counts[dim]) for dim in selection.steps]
    for position in itertools.product(*counts):
        where = []
        for dim, block in zip(selection.steps, position, strict=True):
            where.append(f"dimension {dim} {bounds_text(layout, dim, block, block)}")
        if where:
            lines.append(", ".join(where))
        table, rows = rows[: len(sides)], rows[len(sides) :]
        lines += bordered(heads, sides, table, ruled=len(table) <= 4)
    return lines


def _folded_row(
    layout: Layout, dim: int, texts: Sequence[str], width: int
) -> list[str] | None:
    """A one-dimensional array, folded like a line of text."""
    count, heads = len(texts), _heads(layout, dim)
    side = len(bounds_text(layout, dim, count, count))
    cell = max(map(len, texts)) + 3
    across = min(count, 16, max(1, (width - side - 2) // cell))
    # Full rows are easier to read than a few more blocks in each.
    while count % across and across > 8:
        across -= 1
    if count <= across and max(map(len, heads)) + 3 <= width // across:
        return bordered(heads, [""], [texts])
    sides, rows = [], []
    for first in range(0, count, across):
        last = min(first + across, count) - 1
        sides.append(bounds_text(layout, dim, first, last)[1:-1])
        rows.append(texts[first : last + 1])
    lines = bordered([], sides, rows)
    return lines if fits(lines, width) else None


def _heads(layout: Layout, dim: int, full: bool = True) -> list[str]:
    """The bounds of every block: `512:1024`, or only `512:` where that is too wide."""
    heads = []
    for block in range(layout.block_counts[dim]):
        bounds = bounds_text(layout, dim, block, block)[1:-1]
        heads.append(bounds if full else f"{bounds.partition(':')[0]}:")
    return heads


def _block_lines(layout: Layout, width: int) -> list[str]:
    """A line per block while blocks are few, else all ids in the order of the blocks."""
    if is_large(layout):
        if layout.num_blocks > MOST_LINES:
            devices = plural(layout.replicas, "device")
            text = wording.ids_by_block(devices, ids_by_block(layout))
            return wrapped(text, width, "  ")
        return _listed(layout, width, None)
    offsets, ids = holders_of(layout, np.arange(layout.num_blocks))
    even = len(ids) and (np.diff(offsets) == offsets[1]).all()
    if even and layout.num_blocks > MOST_LINES:
        text = wording.ids_by_block(plural(int(offsets[1]), "device"), ids_text(ids))
        return wrapped(text, width, "  ")
    # Of shards that are given one by one, some blocks may be on no device.
    return _listed(layout, width, None if even else np.diff(offsets) > 0)


def _listed(layout: Layout, width: int, held: np.ndarray | None) -> list[str]:
    """A line per block, of those that are held where that is given."""
    lines = []
    for block, index in enumerate(np.ndindex(*layout.block_counts)):
        if held is not None and not held[block]:
            continue
        bounds = []
        for dim, number in enumerate(index):
            bounds.append(bounds_text(layout, dim, number, number)[1:-1])
        text = f"[{', '.join(bounds)}] on {holders_text(layout, block)}"
        lines += wrapped(text, width, "  ")
    return lines
