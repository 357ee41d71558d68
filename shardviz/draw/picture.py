"""The Picture class: tiles as arrays, labels, frames, legend and alt text.

Coordinates are in points; the origin is at the top left and y grows downward. All tiles
share a few arrays instead of being one object each, so that 65,536 tiles can be drawn
within one animation frame. The text inside the tiles is a template: literal text, and
slots that are filled with each tile's own numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardviz.base.display import Displayed
from shardviz.base.format import ids_text
from shardviz.draw.palette import Shades

# Values of `Slot.of`; any other name refers to `Tiles.columns`.
INDEX, DEVICE, DEVICES = "index", "device", "devices"


@dataclass(frozen=True)
class Slot:
    """A placeholder in a tile's text, filled with `n = value // divide % modulo`.

    Attributes:
        of: where the value comes from: `"index"` (the tile's index), `"device"` (its
            device id), or a key of `Tiles.columns`. `"devices"` shows all device ids of
            the tile, formatted by `ids_text`; the formula is not used.
        modulo: 0 skips the modulo operation.
        words: if not empty, `words[n]` is shown instead of n.
        limit: for `"devices"`, the maximum number of characters; 0 for no limit.
    """

    of: str
    divide: int = 1
    modulo: int = 0
    words: tuple[str, ...] = ()
    limit: int = 0

    def number(self, value: int) -> int:
        """Returns `value // divide % modulo`."""
        value //= self.divide
        if self.modulo:
            value %= self.modulo
        return value

    def word(self, value: int) -> str:
        """Returns the text shown for `value`: n, or `words[n]`."""
        number = self.number(value)
        if self.words:
            return self.words[number]
        return str(number)


Template = tuple[str | Slot, ...]


def coordinates(counts: Sequence[int], names: Sequence[str] = ()) -> Template:
    """Returns a template for a tile's grid coordinates: `1, 0`, or `data 1, model 0`.

    Args:
        counts: number of tiles along each axis; the tiles are in row-major order.
        names: axis names to show before the coordinates; empty for none.
    """
    parts: list[str | Slot] = []
    stride = math.prod(counts)
    for axis, count in enumerate(counts):
        stride //= count
        name = f"{names[axis]} " if names else ""
        parts += [f", {name}" if parts else name, Slot(INDEX, stride, count)]
    return tuple(parts)


def index_text(counts: Sequence[int], steps: Sequence[int], block: int) -> str:
    """Formats the shard index of a block.

    Args:
        counts: number of blocks along each dimension.
        steps: number of elements of one block along each dimension.
        block: row-major number of the block.

    >>> index_text([1, 2], [512, 1024], 1)
    '[0:512, 1024:2048]'
    """
    parts: list[str] = []
    # The last dimension varies fastest.
    for count, step in zip(reversed(counts), reversed(steps), strict=True):
        start = block % count * step
        parts.insert(0, f"{start}:{start + step}")
        block //= count
    return f"[{', '.join(parts)}]"


# Real device ids and groups are never negative.
NO_DEVICE = -1
NO_GROUP, MANY_GROUPS = -1, -2


@dataclass(frozen=True, eq=False, repr=False)
class Tiles:
    """Rectangles, stored as one array per field.

    Attributes:
        x, y, width, height: float32 [tiles], in points.
        group: int32 [tiles]: the number of the block, host or verdict that the tile's
            colour shows.
        device: int64 [tiles]: the tile's device id, or NO_DEVICE.
        text: template of the text inside each tile. Lines after the first are left out
            if they don't fit.
        columns: name -> int64 [tiles]: numbers that only the template uses.
        offsets: int64 [tiles + 1], if tiles have several devices; else None. Tile `i`
            has the device ids `holders[offsets[i]:offsets[i + 1]]`.
        holders: int64 [ids], or None; see `offsets`.
        align: how text is aligned in a tile: `"start"` or `"middle"`.
        radius: corner radius, in points.

    >>> tiles = make_tiles([0, 10], 0, 8, 8, device=[4, 5], text=["four", "five"])
    >>> len(tiles), tiles.label(1), tiles.device_ids().tolist()
    (2, 'five', [4, 5])
    """

    x: np.ndarray
    y: np.ndarray
    width: np.ndarray
    height: np.ndarray
    group: np.ndarray
    device: np.ndarray
    text: Template = ()
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    offsets: np.ndarray | None = None
    holders: np.ndarray | None = None
    align: str = "middle"
    radius: float = 0.0

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        return f"Tiles({len(self):,})"

    def label(self, index: int) -> str:
        """Returns the text of tile `index`; `""` if the tiles have no text."""
        return "".join([self._part(part, index) for part in self.text])

    def devices(self, index: int) -> np.ndarray:
        """Returns the device ids of tile `index`: int64 [ids]."""
        if self.offsets is not None and self.holders is not None:
            return self.holders[self.offsets[index] : self.offsets[index + 1]]
        device = self.device[index : index + 1]
        return device[device != NO_DEVICE]

    def device_ids(self) -> np.ndarray:
        """Returns all tiles' device ids, sorted and unique: int64 [ids]."""
        parts = [self.device[self.device != NO_DEVICE]]
        if self.holders is not None:
            parts.append(self.holders)
        return np.unique(np.concatenate(parts))

    def _part(self, slot: str | Slot, index: int) -> str:
        if isinstance(slot, str):
            return slot
        if slot.of == DEVICES:
            return ids_text(self.devices(index), slot.limit)
        if slot.of == INDEX:
            return slot.word(index)
        columns = {DEVICE: self.device, **self.columns}
        return slot.word(int(columns[slot.of][index]))


@dataclass(frozen=True)
class Label:
    """A line of text at a point.

    Attributes:
        x, y: the text's position in points; `y` is the middle of the line.
        anchor: `"start"`, `"middle"` or `"end"`: which end of the text is at `x`.
        role: `"title"`, `"axis"`, `"tick"`, `"note"` or `"mono"`.
        tone: `"text"`, `"muted"`, `"good"`, `"warn"` or `"bad"`; `""` for the role's
            default.

    >>> Label(0, 8, "data 0", "end").role
    'axis'
    """

    x: float
    y: float
    text: str
    anchor: str = "middle"
    role: str = "axis"
    tone: str = ""


@dataclass(frozen=True)
class Frame:
    """A rectangle drawn as an outline around tiles: a host, a slice.

    Attributes:
        named: whether the upper edge has space for the label.

    >>> Frame(0, 0, 20, 10, "host 0").dashed
    True
    """

    x: float
    y: float
    width: float
    height: float
    label: str = ""
    dashed: bool = True
    named: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Edges:
    """Straight lines under the tiles, such as links between chips.

    Attributes:
        x0, y0, x1, y1: float32 [edges]: both ends, in points.
        group: int32 [edges]: the group that the edge's colour shows; NO_GROUP for an
            unused edge, MANY_GROUPS for an edge that belongs to several groups.
        width: float32 [edges]: line width, in points.

    >>> make_edges([0, 8], 4, [8, 16], 4, group=[0, 1])
    Edges(2)
    """

    x0: np.ndarray
    y0: np.ndarray
    x1: np.ndarray
    y1: np.ndarray
    group: np.ndarray
    width: np.ndarray

    def __len__(self) -> int:
        return len(self.x0)

    def __repr__(self) -> str:
        return f"Edges({len(self):,})"


@dataclass(frozen=True)
class LegendEntry:
    """A swatch in the colour of a group, with its corner at `(x, y)`, and its meaning.

    >>> LegendEntry(1, "host 1", x=10).group
    1
    """

    group: int
    text: str
    x: float = 0.0
    y: float = 0.0


# (number in the mesh, name, size) of a mesh axis that a ruler describes.
RulerAxis = tuple[int, str, int]


@dataclass(frozen=True)
class Ruler:
    """Text and numbers along a side of the tiles, for an array dimension or mesh axis.

    A ruler has the positions of all its numbers. The painter, which knows the scale,
    decides how many of them fit.

    Attributes:
        words: alternative texts, longest first; the first that fits is painted. The
            axis names follow only the longest text.
        axes: the mesh axes that the ruler describes, major to minor.
        down: True for a vertical ruler at the left of the tiles, False for a horizontal
            ruler above them.
        start, length: start of the ruler along its side, and its length, in points.
        away: distance from the tiles to the middle of the text, in points.
        repeats: (number of copies, distance between copies in points), outermost first.
        count: how many numbers the ruler has.
        pitch: distance between neighbouring numbers, in points.
        extent: length of the row or column that a number labels, in points; 0 if the
            numbers label bounds between blocks.
        step: difference between neighbouring numbers, in elements or coordinates.
        size: size of the axis, in elements or coordinates.

    >>> Ruler(("model",), ((1, "model", 2),), False, 0.0, 20.0, extent=8.0).is_edge
    False
    """

    words: tuple[str, ...]
    axes: tuple[RulerAxis, ...]
    down: bool
    start: float
    length: float
    away: float = 0.0
    repeats: tuple[tuple[int, float], ...] = ()
    count: int = 0
    pitch: float = 0.0
    extent: float = 0.0
    step: int = 1
    size: int = 0

    @property
    def is_edge(self) -> bool:
        """Whether the ruler is at an array's edge, so its numbers are block bounds."""
        return not self.extent


@dataclass(frozen=True, eq=False, repr=False)
class Picture(Displayed):
    """A drawing, independent of the backend that paints it.

    Attributes:
        width, height: the picture's size, in points.
        legend: what the colours mean, at most ten entries.
        alt: the picture described in text, for screen readers and files.
        colormap: `"blocks"` (distinct colours, or a ramp if there are too many groups),
            `"ramp"` (shows order), `"verdicts"` (good, lost, broken, other) or `"bars"`
            (full colours).
        groups: number of groups, including groups without a tile.
        shades: the mesh axes that determine the colours of array blocks, major to
            minor; None if the groups are not array blocks.
        panels: nested pictures: (x, y, picture), with x and y of the top left corner.
        facts: plain JSON data that a web page needs in addition to the drawing.
        edges: lines under the tiles, or None.
        rulers: rulers along the sides of the tiles, nearest first.

    >>> from shardviz.draw.picture import make_tiles
    >>> from shardviz.types import Picture
    >>> Picture(20, 10, make_tiles(0, 0, 20, 10, device=7), alt="One device.")
    Picture(20×10: One device.)
    """

    width: float
    height: float
    tiles: Tiles
    labels: tuple[Label, ...] = ()
    frames: tuple[Frame, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    alt: str = ""
    colormap: str = "blocks"
    groups: int = 1
    shades: Shades | None = None
    panels: tuple[tuple[float, float, Picture], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    edges: Edges | None = None
    rulers: tuple[Ruler, ...] = ()

    def device_ids(self) -> np.ndarray:
        """Returns all device ids, also of panels, sorted and unique: int64 [ids]."""
        inside = [picture.device_ids() for _, _, picture in self.panels]
        return np.unique(np.concatenate([self.tiles.device_ids(), *inside]))

    def __repr__(self) -> str:
        return f"Picture({self.width:g}×{self.height:g}: {self.alt})"


def make_tiles(
    x: Any,
    y: Any,
    width: Any,
    height: Any,
    group: Any = 0,
    device: Any = NO_DEVICE,
    *,
    text: Template | Iterable[str] = (),
    **more: Any,
) -> Tiles:
    """Creates tiles from scalars and arrays, broadcast to one flat length.

    The stored arrays are read-only copies.

    Args:
        text: a template, or a list with one text per tile.
        more: other fields of Tiles.
    """
    arrays = _columns((x, y, width, height, group, device), _TILE_TYPES)
    for name in ("offsets", "holders"):
        if more.get(name) is not None:
            more[name] = _frozen(more[name], np.int64)
    if "columns" in more:
        more["columns"] = {k: _frozen(v, np.int64) for k, v in more["columns"].items()}
    return Tiles(*arrays, text=_template(text), **more)


def make_edges(
    x0: Any, y0: Any, x1: Any, y1: Any, group: Any = NO_GROUP, width: Any = 1.0
) -> Edges:
    """Creates edges from scalars and arrays, broadcast to one flat length."""
    return Edges(*_columns((x0, y0, x1, y1, group, width), _EDGE_TYPES))


def no_tiles() -> Tiles:
    """Returns empty Tiles, for pictures that consist of text or panels."""
    return make_tiles([], [], [], [], [], [])


_TILE_TYPES = (*(np.float32,) * 4, np.int32, np.int64)
_EDGE_TYPES = (*(np.float32,) * 4, np.int32, np.float32)


def _columns(values: Sequence[Any], types: Sequence[type]) -> list[np.ndarray]:
    # Callers may pass one number for all tiles.
    flat = np.broadcast_arrays(*map(np.atleast_1d, values))
    return [_frozen(v.reshape(-1), kind) for v, kind in zip(flat, types, strict=True)]


def _frozen(values: Any, kind: type) -> np.ndarray:
    # Copied, because the caller may change the original array.
    array = np.array(values, kind, order="C")
    array.flags.writeable = False
    return array


def _template(text: Template | Iterable[str]) -> Template:
    # A list has one text per tile, chosen by the tile's index.
    if isinstance(text, tuple):
        return text
    return (Slot(INDEX, words=tuple(text)),)
