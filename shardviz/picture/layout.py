"""Layouts as pictures: the blocks of an array, each with its devices.

A page shows two dimensions. Further dimensions that are split are steps: all of them
side by side, or one of them, chosen by `at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardviz.core.format import bytes_text, ids_text, plural
from shardviz.core.layout.layout import Layout
from shardviz.core.wording import pictures as wording
from shardviz.picture.block_size import block_size
from shardviz.picture.blocks import (
    BlockSelection,
    array_title,
    block_numbers,
    bounds_text,
    check_drawable,
    coarse_layout,
    dimension_text,
    first_holders,
    holders_of,
    holders_text,
    is_large,
    select_blocks,
)
from shardviz.picture.grid import Grid, Level, arrange, headers, tick_margin, ticks
from shardviz.picture.page import label_span, moved, page, titled
from shardviz.picture.picture import (
    DEVICES,
    INDEX,
    NO_DEVICE,
    Label,
    Picture,
    Slot,
    Template,
    filled,
    index_template,
    make_tiles,
)

MOST_LETTERS = 22  # of the ids in a tile that its size is chosen by
MOST_WORDS = 64  # tiles whose many devices are written out
MOST_SAID = 8  # blocks that the alt text lists


def draw_layout_array(
    layout: Layout,
    dims: Any = None,
    at: Any = None,
    name: str = "",
    logical: Sequence[str | None] | None = None,
    title: str | None = None,
) -> Picture:
    """The blocks of an array, each with the devices that hold it.

    Args:
        dims: the two dimensions to show; the first two that are split where None.
        at: which block of the other dimensions; see `select_blocks`. None shows all.
        name: what the array is called.
        logical: its logical axis names, for the captions.

    Raises:
        LayoutError: for dimensions that the array lacks.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> layout = lay_out((512, 2048), Spec.parse("None, model"), make_mesh(data=4, model=2))
    >>> draw_layout_array(layout).tiles.label(1).splitlines()
    ['1 · 3 · 5 · 7', '4 replicas']
    """
    check_drawable(layout)
    selection = select_blocks(layout, dims, at)
    cells = coarse_layout(layout, selection.axes)
    held = _holders(layout, cells, selection)
    cell, to_scale = block_size(cells, selection, held.samples)
    # A scalar is a grid of one cell.
    counts = [cells.block_counts[dim] for dim in selection.axes] or [1]
    gap = min(18.0, max(3.0, 0.5 * min(cell)))
    grid = arrange(counts, cell, 0.0, range(len(counts)), block_gap=gap)
    labels, left, top = _labels(cells, selection, grid)
    corners = grid.corners() + np.array([[left], [top]])
    tiles = make_tiles(
        corners[0],
        corners[1],
        cell[0],
        cell[1],
        held.blocks,
        held.device,
        text=held.text(max(6, int((cell[0] - 8) / 6.4))),
        hint=held.hint(name),
        offsets=held.offsets,
        holders=held.ids,
        columns=held.columns,
    )
    captions = []
    for dim in (*selection.steps, *selection.dims):
        captions.append(dimension_text(layout, dim, logical))
    caption = _caption(captions, left + grid.width / 2, top + grid.height)
    head = array_title(layout, name)
    if layout.spec is not None:
        head += f"  {layout.spec}"
    return page(
        tiles,
        [*moved(labels, left, top), *caption],
        title=titled(title, head),
        notes=_notes(layout, selection, held, to_scale),
        size=(left + grid.width, top + grid.height + 18),
        alt=_alt(layout, name),
        groups=max(layout.num_blocks, 1),
        facts=_facts(layout, selection, to_scale),
    )


@dataclass(frozen=True, eq=False)
class _Holders:
    """The tiles of a layout: which blocks and which devices each is.

    Attributes:
        layout: the layout.
        cells: the same, with the blocks of a tile joined; see `coarse_layout`.
        blocks: int64 [tiles]: the number of the first block of every tile.
        device: int64 [tiles]: the only device of a tile, or NO_DEVICE.
        offsets, ids: the devices of every tile, as of Tiles; None where they are too
            many.
        columns: `"first"`, int64 [tiles]: the id of the first device, where these are
            too many.
        words: the devices of every tile, where there are few tiles and many devices.
    """

    layout: Layout
    cells: Layout
    blocks: np.ndarray
    device: np.ndarray
    offsets: np.ndarray | None = None
    ids: np.ndarray | None = None
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def joined(self) -> int:
        """How many blocks a tile is."""
        return self.layout.num_blocks // self.cells.num_blocks

    @property
    def devices(self) -> int:
        """How many devices hold the blocks of a tile."""
        return self.joined * self.layout.replicas

    @property
    def samples(self) -> list[str]:
        """What the first and the last tile say of their devices."""
        if self.offsets is None or self.ids is None:
            return [plural(self.devices, "device")]
        first, last = self.ids[: self.offsets[1]], self.ids[self.offsets[-2] :]
        return [ids_text(first, MOST_LETTERS), ids_text(last, MOST_LETTERS)]

    @property
    def copies(self) -> str:
        """How many replicas there are of each block; `""` for a single one."""
        if self.layout.replicas == 1:
            return ""
        return plural(self.layout.replicas, "replica")

    def text(self, letters: int) -> Template:
        """What is inside a tile."""
        if self.offsets is None:
            return (plural(self.devices, "device"),)
        copies = f"\n{self.copies}" if self.copies else ""
        return (Slot(DEVICES, limit=letters), copies)

    def hint(self, name: str) -> Template:
        """The tooltip of a tile."""
        layout, size = self.layout, bytes_text(self.layout.bytes_per_device)
        bounds = index_template(
            layout.block_counts, layout.shard_shape, self.cells.shard_shape
        )
        copies = f" · {self.copies}" if self.copies else ""
        head: Template = (name or "block ", *bounds, f" · {size}")
        if self.joined > 1:
            blocks = f" · {self.joined:,} blocks, {size} each"
            head = (name or "blocks ", *bounds, blocks)
        if self.words:
            return (*head, "\ndevices ", Slot(INDEX, words=self.words), copies)
        if self.offsets is None:
            many = f"\n{plural(self.devices, 'device')}, the first is "
            return (*head, many, Slot("first"), copies)
        return (*head, "\ndevices " if copies else "\ndevice ", Slot(DEVICES), copies)


def _holders(layout: Layout, cells: Layout, selection: BlockSelection) -> _Holders:
    """Which tiles there are, and their devices as far as these can be listed."""
    blocks = block_numbers(layout, selection, cells.block_counts)
    if not is_large(layout):
        offsets, ids = holders_of(layout, blocks)
        device, single = np.full(len(blocks), NO_DEVICE), np.diff(offsets) == 1
        device[single] = ids[offsets[:-1][single]]
        return _Holders(layout, cells, blocks, device, offsets, ids)
    first, device = first_holders(layout, blocks), np.full(len(blocks), NO_DEVICE)
    words = []
    if cells.num_blocks == layout.num_blocks:  # each tile is one block
        if layout.replicas == 1:
            device = first
        if len(blocks) <= MOST_WORDS:
            words = [holders_text(layout, block) for block in blocks.tolist()]
    columns = {"first": first}
    return _Holders(layout, cells, blocks, device, columns=columns, words=tuple(words))


def _labels(
    layout: Layout, selection: BlockSelection, grid: Grid
) -> tuple[list[Label], float, float]:
    """Ticks and headers around a grid at the origin, their width (left) and height
    (top).
    """
    axes = selection.axes
    if not axes:
        return [], 0.0, 0.0

    def words(level: Level, entry: int) -> tuple[str, str]:
        first, dim = entry * level.span, axes[level.axis]
        last = min(first + level.span, level.size) - 1
        return f"dimension {dim}", bounds_text(layout, dim, first, last)

    # The dimensions of the page have ticks, steps have headers.
    ticked = frozenset(range(len(axes) - len(selection.dims), len(axes)))
    steps = [layout.shard_shape[dim] for dim in axes]
    around = headers(grid, words, tick_margin(grid, ticked, steps), ticked)
    labels = [*around.labels, *ticks(grid, ticked, steps)]
    return labels, around.left, around.top


def _caption(texts: Sequence[str], middle: float, y: float) -> list[Label]:
    """One line below the array, in its middle; from the left edge on where it is wider."""
    if not texts:
        return []
    label = Label(middle, y + 12, " · ".join(texts), "middle", "note")
    if label_span(label)[0] < 0:
        label = Label(0.0, y + 12, label.text, "start", "note")
    return [label]


def _notes(
    layout: Layout, selection: BlockSelection, held: _Holders, to_scale: bool
) -> list[str]:
    notes = []
    if held.joined > 1:
        notes.append(wording.tile_of_blocks(held.joined))
    if selection.at and selection.steps:
        shown = []
        for dim, block in zip(selection.steps, selection.at, strict=True):
            bounds, count = bounds_text(layout, dim, block, block), layout.block_counts
            shown.append(wording.shown_block(dim, bounds, block, count[dim]))
        notes.append(f"shown: {', '.join(shown)}")
        away = layout.mesh.size - len(held.blocks) * held.devices
        if held.ids is not None:
            ids = np.setdiff1d(layout.device_ids, held.ids)
            if len(ids):
                notes.append(wording.other_blocks(ids_text(ids)))
        elif away:
            notes.append(f"other blocks: {plural(away, 'device')}")
    if not to_scale:
        notes.append("not to scale")
    return notes


def _alt(layout: Layout, name: str) -> str:
    head = wording.layout_lines(layout, array_title(layout, name))
    text = f"Array {head[0]}: {head[1]}."
    if layout.num_blocks > MOST_SAID:
        return text
    bounds, blocks = index_template(layout.block_counts, layout.shard_shape), []
    for block in range(layout.num_blocks):
        blocks.append(f"{filled(bounds, block)} on {holders_text(layout, block)}")
    return f"{text} {'; '.join(blocks)}."


def _facts(layout: Layout, selection: BlockSelection, to_scale: bool) -> dict[str, Any]:
    chosen = selection.at or (None,) * len(selection.steps)
    steps = []
    for dim, block in zip(selection.steps, chosen, strict=True):
        steps.append({"dim": dim, "count": layout.block_counts[dim], "at": block})
    dims = list(selection.dims)
    return {"kind": "array", "dims": dims, "steps": steps, "toScale": to_scale}
