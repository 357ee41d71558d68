"""Layouts: the blocks of an array, each with its devices; and arrays that have no layout yet.

A page shows two dimensions. Further dimensions that are split are steps: all of them side by side,
or one of them, chosen by `at`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardviz.core.format import bytes_text, ids_text, plural
from shardviz.core.layout.array_spec import ArraySpec, format_names
from shardviz.core.layout.layout import Layout
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
    ids_by_block,
    is_large,
    select_blocks,
)
from shardviz.picture.grid import PAGE, Grid, Level, arrange, headers, tick_margin, ticks
from shardviz.picture.page import label_span, moved, page, paragraphs, text_width, wrapped
from shardviz.picture.picture import (
    DEVICES,
    INDEX,
    Label,
    Picture,
    Slot,
    Template,
    index_template,
    make_tiles,
)
from shardviz.picture.tables import MOST_CELLS, MOST_LINES, bordered, fits

WIDEST, HIGHEST, STRIP = (
    430.0,
    250.0,
    54.0,
)  # points that an array takes, unless its cells need more
AREA = 240_000.0  # square points for all blocks together, as long as they can still be read
ASPECTS = (0.45, 4.5)  # width over height; arrays beyond are drawn at these
MOST_LETTERS = 22
MOST_LABELLED = 1024  # blocks that hold text; more of them form an image
THINNEST = (1.2, 2.0)  # points: a block of an image, at least and where the page has space
MOST_ACROSS = 32
SIDE_BY_SIDE = 17  # letters: ids that take more are written as ranges


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
        title: `""` for none.

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
    counts = [cells.block_counts[d] for d in selection.axes]
    cell, to_scale = _cell(cells, selection, held.samples)
    shown = tuple(range(len(counts)))
    grid = arrange(counts or [1], cell, 0.0, shown or (0,), block_gap=_block_gap(cell))
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
    captions = [dimension_text(layout, d, logical) for d in (*selection.steps, *selection.dims)]
    spec = "" if layout.spec is None else f"  {layout.spec}"
    return page(
        tiles,
        [*moved(labels, left, top), *_caption(captions, left + grid.width / 2, top + grid.height)],
        title=f"{array_title(layout, name)}{spec}" if title is None else title,
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
        device: int64 [tiles]: the only device of a tile; -1 where it has several.
        offsets, ids: the devices of every tile, as of Tiles; None where they are too many.
        columns: `"first"`, int64 [tiles]: the id of the first device, where they are too many.
        words: the devices of every tile in words, where there are few tiles and many devices.
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
        ends = (self.ids[: self.offsets[1]], self.ids[self.offsets[-2] :])
        return [ids_text(v, MOST_LETTERS) for v in ends]

    def text(self, letters: int) -> Template:
        """What is inside a tile."""
        copies = plural(self.layout.replicas, "replica") if self.layout.replicas > 1 else ""
        if self.offsets is None:
            return (plural(self.devices, "device"),)
        return (Slot(DEVICES, limit=letters), f"\n{copies}" if copies else "")

    def hint(self, name: str) -> Template:
        """The tooltip of a tile."""
        layout, size = self.layout, bytes_text(self.layout.bytes_per_device)
        bounds = index_template(
            layout.block_counts, layout.shard_shape, long=self.cells.shard_shape
        )
        copies = f" · {plural(layout.replicas, 'replica')}" if layout.replicas > 1 else ""
        if self.joined > 1:
            head: Template = (name or "blocks ", *bounds, f" · {self.joined:,} blocks, {size} each")
        else:
            head = (name or "block ", *bounds, f" · {size}")
        if self.words:
            return (*head, "\ndevices ", Slot(INDEX, words=self.words), copies)
        if self.offsets is None:
            many = f"\n{plural(self.devices, 'device')}, the first is "
            return (*head, many, Slot("first"), copies)
        return (*head, "\ndevices " if copies else "\ndevice ", Slot(DEVICES), copies)


MOST_WORDS = 64  # tiles whose many devices are written out


def _holders(layout: Layout, cells: Layout, selection: BlockSelection) -> _Holders:
    """Which tiles there are, and their devices as far as these can be listed."""
    blocks = block_numbers(layout, selection, cells.block_counts)
    if not is_large(layout):
        offsets, ids = holders_of(layout, blocks)
        device = np.where(np.diff(offsets) == 1, _first(ids, offsets), -1)
        return _Holders(layout, cells, blocks, device, offsets, ids)
    first = first_holders(layout, blocks)
    one = cells.num_blocks == layout.num_blocks
    words: tuple[str, ...] = ()
    if one and len(blocks) <= MOST_WORDS:
        words = tuple(holders_text(layout, int(b)) for b in blocks)
    device = first if one and layout.replicas == 1 else np.full(len(blocks), -1)
    return _Holders(layout, cells, blocks, device, columns={"first": first}, words=words)


def _first(ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return ids[np.minimum(offsets[:-1], max(len(ids) - 1, 0))] if len(ids) else offsets[:-1] * 0 - 1


def _block_gap(cell: tuple[float, float]) -> float:
    return min(18.0, max(3.0, 0.5 * min(cell)))


def _cell(
    layout: Layout, selection: BlockSelection, samples: list[str]
) -> tuple[tuple[float, float], bool]:
    """The size of a block on the page, and whether it is true to proportion."""
    sizes = [max(1, layout.shape[d]) for d in selection.dims]
    counts = [layout.block_counts[d] for d in selection.dims]
    number = math.prod(layout.block_counts[d] for d in selection.axes)
    slices = number / math.prod(counts)
    width, height = _extent(sizes)
    smaller = min(1.0, max(0.4, 1.3 * slices**-0.5))
    wide = smaller * width / (counts[-1] if counts else 1)
    high = smaller * height / (counts[0] if len(counts) == 2 else 1)
    least = _least(number, counts, layout.replicas, samples)
    if _is_image(selection, counts, least, number):
        cell = _image_cell(wide, high, counts, _least_side(number))
    else:
        cell = _within(max(wide, least[0]), max(high, least[1]), least, number)
    if len(sizes) < 2:
        return cell, True
    true = (sizes[1] / counts[1]) / (sizes[0] / counts[0])
    return cell, abs(cell[0] / cell[1] / true - 1) < 0.1


def _extent(sizes: list[int]) -> tuple[float, float]:
    """The width and height of an array of one, two or no dimensions, were there no blocks."""
    if len(sizes) < 2:
        return (WIDEST, STRIP) if sizes else (150.0, STRIP)
    aspect = min(max(sizes[1] / sizes[0], ASPECTS[0]), ASPECTS[1])
    width = min(WIDEST, HIGHEST * aspect)
    return width, width / aspect


def _within(
    wide: float, high: float, least: tuple[float, float], number: int
) -> tuple[float, float]:
    """A block no larger than lets all of them share AREA, down to the least size."""
    if wide * high * number > AREA:
        wide = max(least[0], min(wide, AREA / number / high))
    if wide * high * number > AREA:
        high = max(least[1], min(high, AREA / number / wide))
    return wide, high


def _is_image(
    selection: BlockSelection, counts: list[int], least: tuple[float, float], number: int
) -> bool:
    """Whether a page that is split both ways has space for all blocks, but not for their text."""
    if len(selection.axes) != 2 or min(counts) < 2:
        return False
    long, high = counts[1], counts[0]
    labelled = number <= MOST_LABELLED and _fit(long * least[0], high * least[1])
    return not labelled and _fit(long * THINNEST[0], high * THINNEST[0])


def _fit(width: float, height: float) -> bool:
    return width <= PAGE[0] and height <= PAGE[1]


def _image_cell(wide: float, high: float, counts: list[int], side: float) -> tuple[float, float]:
    """A block too small for text.

    In the proportion of the array as long as a block can be seen, and as large as the page allows:
    a folded row would no longer look like one.
    """
    page = PAGE[0] / counts[1], PAGE[1] / counts[0]
    grown = min(side / min(wide, high), page[0] / wide, page[1] / high)
    wide, high = wide * max(1.0, grown), high * max(1.0, grown)
    return max(wide, min(page[0], THINNEST[1])), max(high, min(page[1], THINNEST[1]))


def _least_side(number: int) -> float:
    """The side at which one of so many blocks can still be seen; none of them holds text."""
    if number > 262144:
        return 1.2
    if number > 16384:
        return 2.6
    return 4.6 if number > 4096 else 9.0


def _least(
    number: int, counts: list[int], replicas: int, samples: list[str]
) -> tuple[float, float]:
    """The least width and height of a block at which it can still be read."""
    if number > MOST_LABELLED:
        return _least_side(number), _least_side(number)
    need = max(text_width(s, 8.5, bold=True) for s in samples) + 10
    # A long row is folded, so no row has many more blocks than a page of them all would; but the
    # rows of an array of two dimensions are not folded as long as their blocks can be seen.
    across = counts[-1] if counts else 1
    if len(counts) < 2 or across > MOST_ACROSS:
        across = min(across, math.sqrt(1.7 * number))
    if number > 64:
        return min(max(need, 20.0), max(20.0, 900.0 / across)), 14.0
    return min(max(need, 28.0), max(28.0, 900.0 / across)), 34.0 if replicas > 1 else 22.0


def _labels(
    layout: Layout, selection: BlockSelection, grid: Grid
) -> tuple[list[Label], float, float]:
    """Ticks and headers around a grid at the origin, and their width (left) and height (top)."""
    if not selection.axes:
        return [], 0.0, 0.0

    def words(level: Level, entry: int) -> tuple[str, str]:
        first = entry * level.span
        last = min(first + level.span, level.size) - 1
        dim = selection.axes[level.axis]
        return f"dimension {dim}", bounds_text(layout, dim, first, last)

    ticked = frozenset(range(len(selection.axes) - len(selection.dims), len(selection.axes)))
    steps = [layout.shard_shape[selection.axes[i]] for i in range(len(selection.axes))]
    around = headers(grid, words, tick_margin(grid, ticked, steps), ticked)
    labels = [*around.labels, *ticks(grid, ticked, steps)]
    return labels, around.left, around.top


def _caption(texts: list[str], middle: float, y: float) -> list[Label]:
    """One line below the array, in its middle; from the left edge on where it is wider."""
    if not texts:
        return []
    label = Label(middle, y + 12, " · ".join(texts), "middle", "note")
    if label_span(label)[0] < 0:
        label = Label(0.0, y + 12, label.text, "start", "note")
    return [label]


def _notes(layout: Layout, selection: BlockSelection, held: _Holders, to_scale: bool) -> list[str]:
    notes = []
    if held.joined > 1:
        notes.append(f"Each tile is {held.joined:,} blocks, coloured as the first.")
    if selection.at and selection.steps:
        where = ", ".join(
            f"dimension {d} {bounds_text(layout, d, n, n)}, block {n + 1} of"
            f" {layout.block_counts[d]}"
            for d, n in zip(selection.steps, selection.at, strict=True)
        )
        notes.append(f"shown: {where}")
        away = layout.mesh.size - len(held.blocks) * held.devices
        if held.ids is not None:
            ids = np.setdiff1d(layout.device_ids, held.ids)
            notes += [f"devices of other blocks: {ids_text(ids)}"] if len(ids) else []
        elif away:
            notes.append(f"other blocks: {plural(away, 'device')}")
    if not to_scale:
        notes.append("not to scale")
    return notes


def _head(layout: Layout, name: str) -> str:
    spec = "a sharding without a spec" if layout.spec is None else str(layout.spec)
    return f"{array_title(layout, name)} as {spec} on {layout.mesh}"


def _sizes(layout: Layout) -> str:
    return (
        f"{plural(layout.num_blocks, 'block')} of {list(layout.shard_shape)},"
        f" {bytes_text(layout.bytes_per_device)} per device, {plural(layout.replicas, 'replica')}"
    )


def _alt(layout: Layout, name: str) -> str:
    head = f"Array {_head(layout, name)}: {_sizes(layout)}."
    if layout.num_blocks > 8:
        return head
    bounds = index_template(layout.block_counts, layout.shard_shape)
    texts = []
    for group in range(layout.num_blocks):
        where = "".join(p if isinstance(p, str) else p.word(group) for p in bounds)
        texts.append(f"{where} on {holders_text(layout, group)}")
    return f"{head} {'; '.join(texts)}."


def _facts(layout: Layout, selection: BlockSelection, to_scale: bool) -> dict[str, Any]:
    chosen = (None,) * len(selection.steps) if selection.at is None else selection.at
    return {
        "kind": "array",
        "dims": list(selection.dims),
        "steps": [
            {"dim": d, "count": layout.block_counts[d], "at": n}
            for d, n in zip(selection.steps, chosen, strict=True)
        ],
        "toScale": to_scale,
    }


def layout_text(
    layout: Layout, width: int, name: str = "", logical: Sequence[str | None] | None = None
) -> str:
    """A layout: a table of the blocks with their devices, or a line per block, or ranges of ids.

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
    lines = wrapped(_head(layout, name), width, "  ") + wrapped(_sizes(layout), width, "  ")
    selection = select_blocks(layout)
    small = layout.num_blocks <= MOST_CELLS and not is_large(layout)
    body = _shard_table(layout, selection, width) if small else None
    if body is None:
        body = _layout_lines(layout, width)
    captions = [dimension_text(layout, d, logical) for d in range(layout.rank)]
    return "\n".join([*lines, *body, *wrapped(" · ".join(captions), width)])


def _shard_table(layout: Layout, selection: BlockSelection, width: int) -> list[str] | None:
    """One table per step through the dimensions that are not shown; None if too large."""
    offsets, ids = holders_of(layout, block_numbers(layout, selection))
    texts = [_cell_text(ids[a:b]) for a, b in itertools.pairwise(offsets.tolist())]
    if len(selection.dims) == 1 and len(texts) > 1:
        return _folded_row(layout, selection.dims[0], texts, width)
    for full in (True, False):
        lines = _steps(layout, selection, texts, full)
        if fits(lines, width):
            return lines
    return None


def _steps(layout: Layout, selection: BlockSelection, texts: list[str], full: bool) -> list[str]:
    heads = _heads(layout, selection.dims[-1], full) if selection.dims else [""]
    sides = _heads(layout, selection.dims[0]) if len(selection.dims) == 2 else [""]
    lines: list[str] = []
    size = len(heads) * len(sides)
    steps = itertools.product(*(range(layout.block_counts[d]) for d in selection.steps))
    for number, position in enumerate(steps):
        where = [f"dimension {d} {bounds_text(layout, d, n, n)}"
                 for d, n in zip(selection.steps, position, strict=True)]  # fmt: skip
        first = number * size
        rows = [texts[i : i + len(heads)] for i in range(first, first + size, len(heads))]
        lines += [", ".join(where)] if where else []
        lines += bordered(heads, sides, rows, ruled=len(rows) <= 4)
    return lines


def _folded_row(layout: Layout, dim: int, texts: list[str], width: int) -> list[str] | None:
    """A one-dimensional array, folded like a line of text."""
    cell = max(map(len, texts)) + 3
    side = len(bounds_text(layout, dim, len(texts), len(texts)))
    across = min(len(texts), 16, max(1, (width - side - 2) // cell))
    while len(texts) % across and across > 8:
        across -= 1
    if len(texts) <= across and max(len(h) for h in _heads(layout, dim)) + 3 <= width // across:
        return bordered(_heads(layout, dim), [""], [texts])
    starts = range(0, len(texts), across)
    sides = [bounds_text(layout, dim, s, min(s + across, len(texts)) - 1)[1:-1] for s in starts]
    lines = bordered([], sides, [texts[s : s + across] for s in starts])
    return lines if fits(lines, width) else None


def _heads(layout: Layout, dim: int, full: bool = True) -> list[str]:
    """The bounds of every block: `512:1024`, or only `512:` where that is too wide."""
    numbers = range(layout.block_counts[dim])
    if full:
        return [bounds_text(layout, dim, i, i)[1:-1] for i in numbers]
    return [f"{i * layout.shard_shape[dim]}:" for i in numbers]


def _cell_text(ids: np.ndarray) -> str:
    short = ids_text(ids, SIDE_BY_SIDE)
    return ids_text(ids) if short.endswith("devices") else short


def _layout_lines(layout: Layout, width: int) -> list[str]:
    """A line per block while blocks are few, else all ids in the order of the blocks."""
    if is_large(layout):
        return _many_lines(layout, width)
    offsets, ids = holders_of(layout, np.arange(layout.num_blocks))
    even = len(ids) and (np.diff(offsets) == offsets[1]).all()
    if even and layout.num_blocks > MOST_LINES:
        each = "1 device" if offsets[1] == 1 else f"{offsets[1]:,} devices"
        text = f"device ids, block by block in row-major order, {each} per block: {ids_text(ids)}"
        return wrapped(text, width, "  ")
    lines = []
    for number, index in enumerate(np.ndindex(*layout.block_counts)):
        holders = ids[offsets[number] : offsets[number + 1]]
        if even or len(holders):
            where = ", ".join(bounds_text(layout, d, n, n)[1:-1] for d, n in enumerate(index))
            lines += wrapped(f"[{where}] on {ids_text(holders)}", width, "  ")
    return lines


def _many_lines(layout: Layout, width: int) -> list[str]:
    """The same of more devices than are listed one by one."""
    if layout.num_blocks > MOST_LINES:
        text = (
            "device ids, block by block in row-major order,"
            f" {plural(layout.replicas, 'device')} per block: {ids_by_block(layout)}"
        )
        return wrapped(text, width, "  ")
    lines = []
    for number, index in enumerate(np.ndindex(*layout.block_counts)):
        where = ", ".join(bounds_text(layout, d, n, n)[1:-1] for d, n in enumerate(index))
        lines += wrapped(f"[{where}] on {holders_text(layout, number)}", width, "  ")
    return lines


def draw_array_spec(array: ArraySpec, title: str | None = None, problem: str = "") -> Picture:
    """An array without a layout: its proportions, type, size and logical names.

    Args:
        title: `""` for none.
        problem: a sentence on why it cannot be laid out.

    >>> draw_array_spec(ArraySpec("w", (512, 2048), "embed mlp", "bfloat16")).tiles.label(0)
    'w\\nbf16[512, 2048] · 2 MiB'
    """
    sizes = [max(1, n) for n in array.shape[:2]]
    aspect = min(max(sizes[-1] / sizes[0], ASPECTS[0]), ASPECTS[1]) if len(sizes) == 2 else 4.0
    width = min(300.0, 150.0 * aspect)
    about = f"{array.short} · {bytes_text(array.bytes)}"
    width = max(width, text_width(about, 8.0) + 20)
    names = "" if array.logical is None else f"logical axes: {format_names(array.logical)}"
    spec = "" if array.spec is None else f"requested spec {array.spec}"
    notes: list[str | Label] = [v for v in (names, spec) if v]
    lines = [v for v in (f"{array.name} {about}", names, spec, problem) if v]
    tiles = make_tiles(
        0, 0, width, max(width / aspect, 40.0), text=[f"{array.name}\n{about}"],
        hint=["\n".join(lines)], radius=3.0,
    )  # fmt: skip
    if problem:
        notes.append(Label(0, 0, problem, "start", "note", "bad"))
    return page(
        tiles,
        [],
        title=f"array {array.name}" if title is None else title,
        notes=notes,
        size=(width, float(tiles.height[0])),
        alt=". ".join(["Array " + lines[0], *lines[1:]]),
        facts={"kind": "arraySpec"},
    )


def array_spec_text(array: ArraySpec, width: int) -> str:
    """An array without a layout: its type, size, logical names and requested spec."""
    parts = [f"{array.name} {array.short}", bytes_text(array.bytes)]
    if array.logical is not None:
        parts.append(f"logical axes {format_names(array.logical)}")
    if array.spec is not None:
        parts.append(f"requested spec {array.spec}")
    return paragraphs([" · ".join(parts)], width)
