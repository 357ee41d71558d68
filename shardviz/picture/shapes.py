"""Picture: tiles as arrays, labels, frames, legend and alt text, ready for any painter.

Coordinates are in points, y downward, the origin at the top left. Tiles are arrays and not
objects, so that 65,536 of them cost a frame; a tile's tooltip is made when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardviz.core.display import Displayed

NO_DEVICE = -1


def _no_tooltip(index: int) -> str:
    return ""


@dataclass(frozen=True, eq=False)
class Tiles:
    """Rectangles, one entry an array element.

    Attributes:
        x, y, width, height: float32 [tiles], in points.
        group: int32 [tiles]: what the tile's colour says (a block, a host, a verdict).
        device: int64 [tiles]: the device id a tile stands for, or NO_DEVICE.
        text: per tile a short text drawn inside where it fits; None where no tile has one.
        tooltip: index of a tile -> its full text, made when asked.
    """

    x: np.ndarray
    y: np.ndarray
    width: np.ndarray
    height: np.ndarray
    group: np.ndarray
    device: np.ndarray
    text: tuple[str, ...] | None = None
    tooltip: Callable[[int], str] = field(default=_no_tooltip, repr=False)

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Label:
    """Text at a point.

    Attributes:
        anchor: `"start"`, `"middle"` or `"end"`: which end of the text stands at `x`.
        role: `"title"`, `"axis"`, `"tick"`, `"note"` or `"mono"`: how a painter sets it.
    """

    x: float
    y: float
    text: str
    anchor: str = "middle"
    role: str = "axis"


@dataclass(frozen=True)
class Frame:
    """A rectangle drawn as an outline around tiles: a host, a slice."""

    x: float
    y: float
    width: float
    height: float
    label: str = ""
    dashed: bool = True


@dataclass(frozen=True)
class LegendEntry:
    """What one group's colour means."""

    group: int
    text: str


@dataclass(frozen=True, eq=False, repr=False)
class Picture(Displayed):
    """What a value looks like; painters add nothing but ink.

    Attributes:
        width, height: the size of the whole, in points.
        tiles: the rectangles.
        labels: the texts beside them.
        frames: outlines around sets of tiles.
        legend: what the colours mean, at most ten entries.
        alt: the picture in words, for screen readers and for files.
        hue: `"blocks"` (as many colours as can be told apart, then a ramp), `"ramp"` (order) or
            `"verdicts"` (good, lost, broken, other).
        panels: pictures inside this one, each with the point of its top left corner.
    """

    width: float
    height: float
    tiles: Tiles
    labels: tuple[Label, ...] = ()
    frames: tuple[Frame, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    alt: str = ""
    hue: str = "blocks"
    panels: tuple[tuple[float, float, Picture], ...] = ()

    def __repr__(self) -> str:
        return f"Picture({self.width:g}×{self.height:g}: {self.alt})"


def make_tiles(
    x: Any,
    y: Any,
    width: Any,
    height: Any,
    group: Any = 0,
    device: Any = NO_DEVICE,
    text: tuple[str, ...] | None = None,
    tooltip: Callable[[int], str] = _no_tooltip,
) -> Tiles:
    """Tiles from anything that broadcasts to one flat length; the arrays become read-only.

    >>> len(make_tiles([0, 10, 20], 0, 8, 8))
    3
    """
    numbers = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v)) for v in
                                    (x, y, width, height, group, device)))  # fmt: skip
    kinds = (np.float32,) * 4 + (np.int32, np.int64)
    arrays = []
    for values, kind in zip(numbers, kinds, strict=True):
        array = np.ascontiguousarray(values.reshape(-1), kind)
        array.flags.writeable = False
        arrays.append(array)
    return Tiles(*arrays, text=text, tooltip=tooltip)


def no_tiles() -> Tiles:
    """No tiles at all, for pictures made of text or of panels."""
    return make_tiles([], [], [], [], [], [])
