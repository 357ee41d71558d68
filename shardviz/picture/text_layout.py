"""Layouts as text: a box or a line a block, or ids in the order of blocks; never an id lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shardviz.core.errors import plural
from shardviz.core.layout.shards import Layout
from shardviz.picture.blocks import (
    View,
    block_numbers,
    bounds_text,
    dimension_text,
    holders_of,
    view_of,
)
from shardviz.picture.draw_devices import array_title
from shardviz.picture.ids import ids_text
from shardviz.picture.text_boxes import MOST_CELLS, MOST_LINES, boxed, fits, wrapped
from shardviz.picture.units import bytes_text

SIDE_BY_SIDE = 17  # letters of ids that stand side by side before they are folded


def layout_text(
    layout: Layout, width: int, name: str = "", logical: Sequence[str | None] | None = None
) -> str:
    """A layout: a box a block with the ids that hold it, or a line a block, or ranges.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.shards import lay_out
    >>> from shardviz.core.layout.spec import Spec
    >>> layout = lay_out((512, 2048), Spec.parse("None, model"), make_mesh(data=4, model=2))
    >>> print(layout_text(layout, 80))
    f32[512, 2048] as P(None, 'model') on data=4, model=2
    2 blocks of [512, 1024], 2 MiB a device, 4 replicas
            0:1024          1024:2048
          ┌───────────────┬───────────────┐
    0:512 │ 0 · 2 · 4 · 6 │ 1 · 3 · 5 · 7 │
          └───────────────┴───────────────┘
    dim 0 whole · dim 1 → model
    """
    spec = "boxes of another sharding" if layout.spec is None else str(layout.spec)
    lines = wrapped(f"{array_title(layout, name)} as {spec} on {layout.mesh}", width, "  ")
    lines += wrapped(
        f"{plural(layout.num_blocks, 'block')} of {list(layout.shard_shape)},"
        f" {bytes_text(layout.bytes_per_device)} a device, {plural(layout.replicas, 'replica')}",
        width,
        "  ",
    )
    view = view_of(layout)
    body = None
    if layout.num_blocks <= MOST_CELLS:
        body = _layout_boxes(layout, view, width)
    if body is None:
        body = _layout_lines(layout, width)
    captions = [dimension_text(layout, d, logical) for d in range(layout.rank)]
    return "\n".join([*lines, *body, *wrapped(" · ".join(captions), width)])


def _layout_boxes(layout: Layout, view: View, width: int) -> list[str] | None:
    """One box for every step through the dimensions that are not shown; None if too large."""
    offsets, ids = holders_of(layout, block_numbers(layout, view))
    texts = [_cell_text(ids[a:b]) for a, b in itertools.pairwise(offsets.tolist())]
    if len(view.dims) == 1 and len(texts) > 1:
        return _folded_strip(layout, view.dims[0], texts, width)
    for full in (True, False):
        lines = _steps(layout, view, texts, full)
        if fits(lines, width):
            return lines
    return None


def _steps(layout: Layout, view: View, texts: list[str], full: bool) -> list[str]:
    heads = _heads(layout, view.dims[-1], full) if view.dims else [""]
    sides = _heads(layout, view.dims[0]) if len(view.dims) == 2 else [""]
    lines: list[str] = []
    size = len(heads) * len(sides)
    steps = itertools.product(*(range(layout.block_counts[d]) for d in view.steps))
    for number, place in enumerate(steps):
        where = [f"dim {d} {bounds_text(layout, d, n, n)}"
                 for d, n in zip(view.steps, place, strict=True)]  # fmt: skip
        page = texts[number * size : (number + 1) * size]
        rows = [page[i : i + len(heads)] for i in range(0, size, len(heads))]
        lines += [", ".join(where)] if where else []
        lines += boxed(heads, sides, rows, ruled=len(rows) <= 4)
    return lines


def _folded_strip(layout: Layout, dim: int, texts: list[str], width: int) -> list[str] | None:
    """A one-dimensional array, folded like a line of text."""
    cell = max(map(len, texts)) + 3
    side = len(bounds_text(layout, dim, len(texts), len(texts)))
    across = min(len(texts), 16, max(1, (width - side - 2) // cell))
    while len(texts) % across and across > 8:
        across -= 1
    if len(texts) <= across and max(len(h) for h in _heads(layout, dim)) + 3 <= width // across:
        return boxed(_heads(layout, dim), [""], [texts])
    starts = range(0, len(texts), across)
    sides = [bounds_text(layout, dim, s, min(s + across, len(texts)) - 1)[1:-1] for s in starts]
    lines = boxed([], sides, [texts[s : s + across] for s in starts])
    return lines if fits(lines, width) else None


def _heads(layout: Layout, dim: int, full: bool = True) -> list[str]:
    """The bounds of every block: `512:1024`, or only `512:` where room is short."""
    numbers = range(layout.block_counts[dim])
    if full:
        return [bounds_text(layout, dim, i, i)[1:-1] for i in numbers]
    return [f"{i * layout.shard_shape[dim]}:" for i in numbers]


def _cell_text(ids: np.ndarray) -> str:
    short = ids_text(ids, SIDE_BY_SIDE)
    return ids_text(ids) if short.endswith("devices") else short


def _layout_lines(layout: Layout, width: int) -> list[str]:
    """A line a block while blocks are few, else all ids in the order of the blocks."""
    blocks = np.arange(layout.num_blocks)
    offsets, ids = holders_of(layout, blocks)
    even = len(ids) and (np.diff(offsets) == offsets[1]).all()
    if even and layout.num_blocks > MOST_LINES:
        each = "1 device" if offsets[1] == 1 else f"{offsets[1]:,} devices"
        text = f"device ids, block by block in row-major order, {each} a block: {ids_text(ids)}"
        return wrapped(text, width, "  ")
    lines = []
    for number, place in enumerate(np.ndindex(*layout.block_counts)):
        held = ids[offsets[number] : offsets[number + 1]]
        if even or len(held):
            where = ", ".join(bounds_text(layout, d, n, n)[1:-1] for d, n in enumerate(place))
            lines += wrapped(f"[{where}] on {ids_text(held)}", width, "  ")
    return lines
