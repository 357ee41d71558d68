"""The Picture class: tiles as arrays, labels, frames, legend and alt text.

Coordinates are in points, y downward, the origin at the top left. Tiles are arrays and
not objects, so that 65,536 of them can be drawn in the time of a frame. The text inside
a tile is a template: text, and slots for the numbers of one tile.
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

# The sources of a slot's value; any other name is that of a column of the tiles.
INDEX, DEVICE, DEVICES = "index", "device", "devices"


@dataclass(frozen=True)
class Slot:
    """A number of a tile in its text: `n = value // divide % modulo`.

    Attributes:
        of: the source of the value: `"index"` (the tile's own number), `"device"`,
            or the name of one of the tiles' columns. `"devices"` is the list of the
            tile's device ids, which `ids_text` formats, without the formula.
        modulo: 0 leaves the value as it is.
        words: `words[n]` is shown; empty for the number itself.
        limit: for `"devices"`, how many letters fit; 0 for no limit.
    """

    of: str
    divide: int = 1
    modulo: int = 0
    words: tuple[str, ...] = ()
    limit: int = 0

    def number(self, value: int) -> int:
        """The result of the formula for `value`."""
        value //= self.divide
        if self.modulo:
            value %= self.modulo
        return value

    def word(self, value: int) -> str:
        """The number, or its word."""
        number = self.number(value)
        if self.words:
            return self.words[number]
        return str(number)


Template = tuple[str | Slot, ...]


def coordinates(counts: Sequence[int], names: Sequence[str] = ()) -> Template:
    """The coordinates of a tile in a row-major grid: `1, 0`, or `data 1, model 0`.

    Args:
        counts: how many tiles there are along each axis.
        names: of the axes.
    """
    parts: list[str | Slot] = []
    stride = math.prod(counts)
    for axis, count in enumerate(counts):
        stride //= count
        name = f"{names[axis]} " if names else ""
        parts += [f", {name}" if parts else name, Slot(INDEX, stride, count)]
    return tuple(parts)


def index_text(counts: Sequence[int], steps: Sequence[int], block: int) -> str:
    """The shard index of a block, from its row-major number.

    Args:
        counts, steps: per dimension the blocks, and the elements of each.

    >>> index_text([1, 2], [512, 1024], 1)
    '[0:512, 1024:2048]'
    """
    parts: list[str] = []
    # From the last dimension on, which changes fastest.
    for count, step in zip(reversed(counts), reversed(steps), strict=True):
        start = block % count * step
        parts.insert(0, f"{start}:{start + step}")
        block //= count
    return f"[{', '.join(parts)}]"


# Ids are never negative, and neither are groups.
NO_DEVICE = -1
NO_GROUP, MANY_GROUPS = -1, -2


@dataclass(frozen=True, eq=False, repr=False)
class Tiles:
    """Rectangles, one per array element.

    Attributes:
        x, y, width, height: float32 [tiles], in points.
        group: int32 [tiles]: what the tile's colour means (a block, a host, a verdict).
        device: int64 [tiles]: the device of a tile, or NO_DEVICE.
        text: the template of the text inside a tile, drawn if it fits. The first
            line is the most important.
        columns: name to int64 [tiles], numbers that only the template uses.
        offsets, holders: the device ids of tiles with several devices: those of tile
            `i` are `holders[offsets[i]:offsets[i + 1]]`. int64 [tiles + 1] and int64 [ids],
            or None.
        align: `"start"` or `"middle"`: how text is aligned in a tile.
        radius: of the corners, in points.

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
        """The text inside a tile; `""` if tiles have no text."""
        return "".join([self._part(part, index) for part in self.text])

    def devices(self, index: int) -> np.ndarray:
        """int64: the device ids of tile `index`."""
        if self.offsets is not None and self.holders is not None:
            return self.holders[self.offsets[index] : self.offsets[index + 1]]
        device = self.device[index : index + 1]
        return device[device != NO_DEVICE]

    def device_ids(self) -> np.ndarray:
        """int64: every device id of any tile, ascending, once each."""
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
    """Text at a point.

    Attributes:
        x, y: a point; `y` is the middle of the line.
        anchor: `"start"`, `"middle"` or `"end"`: which end of the text is at `x`.
        role: `"title"`, `"axis"`, `"tick"`, `"note"` or `"mono"`.
        tone: `"text"`, `"muted"`, `"good"`, `"warn"` or `"bad"`; `""` for the role's.

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
        named: whether there is space for the label on its upper edge.

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
    """Straight lines under the tiles, one per array element: the links between chips.

    Attributes:
        x0, y0, x1, y1: float32 [edges]: both ends, in points.
        group: int32 [edges]: what the colour means, as for tiles; NO_GROUP for unused
            edges, and MANY_GROUPS for edges of several groups.
        width: float32 [edges]: in points.

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
    """What one group's colour means: a swatch with its corner at a point, then text.

    >>> LegendEntry(1, "host 1", x=10).group
    1
    """

    group: int
    text: str
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Ruler:
    """Words and numbers along one side of the tiles, for an array dimension or mesh axis.

    It holds the positions of all of them; a painter, which knows its scale, chooses how
    many fit.

    Attributes:
        words: alternative texts, longest first: the first that fits is painted. The
            longest is followed by the names of the axes.
        axes: the mesh axes that it describes: number in the mesh, and name.
        down: whether it is on the left and runs down; else it is above the tiles.
        start, length: its position along the side, and its length, in points.
        away: from the tiles to the middle of the words, in points.
        repeats: how often it is repeated, outermost first: a count, and the distance from
            one repeat to the next, in points.
        count: how many numbers there are.
        pitch: from one number to the next, in points.
        extent: the length of the entry that a number labels, in points; 0 for a bound
            between blocks.
        step, size: the step from one number to the next, and the size of the axis, in
            elements or coordinates.

    >>> Ruler(("model",), ((1, "model"),), False, 0.0, 20.0, extent=8.0).is_edge
    False
    """

    words: tuple[str, ...]
    axes: tuple[tuple[int, str], ...]
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
        """Whether it is an edge of an array, whose numbers are bounds."""
        return not self.extent


@dataclass(frozen=True, eq=False, repr=False)
class Picture(Displayed):
    """A drawing of a value, independent of the painter.

    Attributes:
        width, height: in points.
        legend: what the colours mean, at most ten entries.
        alt: the picture in words, for screen readers and for files.
        colormap: `"blocks"` (as many colours as can be distinguished, then a ramp),
            `"ramp"` (order), `"verdicts"` (good, lost, broken, other) or `"bars"` (full
            colours).
        groups: the number of groups, including any that no tile shows.
        shades: if groups are the blocks of an array, how each mesh axis changes their
            colours, major to minor; None for other groups.
        panels: pictures inside this one, each with the point of its top left corner.
        facts: data that a web page needs besides the drawing, as plain JSON.
        edges: the lines under the tiles, or None.
        rulers: words and numbers along the sides of the tiles, the nearest first.

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
        """int64: every device id of the picture, ascending, once each."""
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
    """Tiles from anything that broadcasts to one flat length, as read-only arrays.

    Args:
        text: a template, or a list with one text per tile.
        more: further fields of Tiles.
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
    """Edges from anything that broadcasts to one flat length, as read-only arrays."""
    return Edges(*_columns((x0, y0, x1, y1, group, width), _EDGE_TYPES))


def no_tiles() -> Tiles:
    """No tiles at all, for pictures made of text or of panels."""
    return make_tiles([], [], [], [], [], [])


_TILE_TYPES = (*(np.float32,) * 4, np.int32, np.int64)
_EDGE_TYPES = (*(np.float32,) * 4, np.int32, np.float32)


def _columns(values: Sequence[Any], types: Sequence[type]) -> list[np.ndarray]:
    # One number stands for all tiles, so that callers need not repeat it.
    flat = np.broadcast_arrays(*map(np.atleast_1d, values))
    return [_frozen(v.reshape(-1), kind) for v, kind in zip(flat, types, strict=True)]


def _frozen(values: Any, kind: type) -> np.ndarray:
    # A copy, because the caller may change the original array.
    array = np.array(values, kind, order="C")
    array.flags.writeable = False
    return array


def _template(text: Template | Iterable[str]) -> Template:
    # One text per tile: the tile's own number chooses its word.
    if isinstance(text, tuple):
        return text
    return (Slot(INDEX, words=tuple(text)),)
