"""serialize(picture): a Picture as JSON and binary buffers, for a painter in a browser.

`messages.d.ts` beside the page has the types of both messages, and `picture_data.js`
reads them; a test compares what it makes of a picture with Python. Lengths are in
points, y downward, the origin at the top left. What equals its default is left out,
since a picture is sent with every edit; so are the last fields of a row (of labels,
frames, legend) where they equal those of the row before.

A column is a number where all tiles have it, `[a, s]` where tile i has `a + s * i`,
`{"values": numbers}` of few tiles, or `{"buffer": b, "dtype": ...}`: buffer number b
holds one little-endian number per tile. Ids and counts beyond int32 are sent as
float64, exact to 2**53.

A template is a list of text and slots; a slot's value v becomes `n = v // divide
[% modulo, unless 0] * times + plus`, shown as `words[n]` if there are words. The ids of
`of: "devices"` and `"peers"` are set as `core.format.ids_text(ids, limit)` sets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardviz.picture.palette import STRENGTHS, THEMES, hexed, palette, text_colours
from shardviz.picture.picture import (
    NO_DEVICE,
    Edges,
    Picture,
    Ruler,
    Slot,
    Template,
    Tiles,
)

MOST_INLINE = 16  # tiles whose numbers are sent as text: a buffer has a name, too
_LABEL = ("x", "y", "text", "role", "anchor", "tone")
_FRAME = ("x", "y", "label", "width", "height", "dashed", "named")
_LEGEND = ("x", "y", "text", "group")
_PICTURE: dict[str, Any] = {
    "alt": "", "colormap": "blocks", "groups": 1, "shades": None, "facts": {}, "labels": [],
    "frames": [], "legend": [], "palette": None, "edges": None, "panels": [], "rulers": [],
}  # fmt: skip
_TILES: dict[str, Any] = {
    "radius": 0, "align": "middle", "group": 0, "device": NO_DEVICE, "offsets": None,
    "holders": None, "columns": {}, "text": [], "hint": [],
}  # fmt: skip
_SLOT: dict[str, Any] = {
    "divide": 1, "modulo": 0, "times": 1, "plus": 0, "words": [], "limit": 0,
}  # fmt: skip
# How far away words are follows from the letters of a painter.
_RULER: dict[str, Any] = {
    "words": [], "axes": [], "down": False, "start": 0, "length": 0, "repeats": [], "count": 0,
    "pitch": 0, "extent": 0, "step": 1, "size": 0,
}  # fmt: skip
_INT32 = np.iinfo(np.int32)


def serialize(
    picture: Picture, with_palette: bool = True
) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON of a picture, and the buffers that it names by number.

    Args:
        with_palette: False for a page that brings its own colours, as the Explorer
            does.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.picture.show import draw
    >>> data, buffers = serialize(draw(make_mesh(data=4, model=2)))
    >>> data["tiles"]["count"], data["tiles"]["device"], len(buffers)
    (8, [0, 1], 0)
    """
    buffers: list[bytes] = []
    return _picture(picture, buffers, with_palette), buffers


def _picture(
    picture: Picture, buffers: list[bytes], with_palette: bool
) -> dict[str, Any]:
    # All themes at once: a page changes its look without asking again.
    colours, panels = {}, []
    if with_palette:
        for name in THEMES:
            colours[name] = colours_data(picture, name)
    data = {
        "width": _length(picture.width),
        "height": _length(picture.height),
        "alt": picture.alt,
        "colormap": picture.colormap,
        "groups": picture.groups,
        "shades": picture.shades,
        "facts": dict(picture.facts),
        "labels": _rows(picture.labels, _LABEL),
        "frames": _rows(picture.frames, _FRAME),
        "legend": _rows(picture.legend, _LEGEND),
        "palette": colours or None,
        "tiles": _tiles(picture.tiles, buffers),
        "edges": edges_data(picture.edges, buffers),
        "rulers": [_ruler(ruler) for ruler in picture.rulers],
    }
    for x, y, inside in picture.panels:
        panel = {"x": _length(x), "y": _length(y)}
        panels.append({**panel, "picture": _picture(inside, buffers, with_palette)})
    data["panels"] = panels
    return _without(_PICTURE, data)


def _without(defaults: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The data without what equals its default."""
    return {k: v for k, v in data.items() if k not in defaults or v != defaults[k]}


def _rows(parts: Sequence[Any], fields: Sequence[str]) -> list[list[Any]]:
    """Parts of a picture as rows, their lengths to a hundredth of a point."""
    rows: list[list[Any]] = []
    before: list[Any] = []
    for part in parts:
        row = []
        for name in fields:
            value = getattr(part, name)
            if isinstance(value, float):
                value = _length(value)
            row.append(value)
        used = len(row)
        while before and used and row[used - 1] == before[used - 1]:
            used -= 1
        rows.append(row[:used])
        before = row
    return rows


def colours_data(picture: Picture, theme: str) -> dict[str, list[str]]:
    """The fills of every strength, and the colour of text on each, as `#rrggbb`."""
    data = {}
    for strength in STRENGTHS:
        look = picture.groups, picture.colormap, THEMES[theme], strength
        fills = palette(*look, picture.shades)
        data[strength] = hexed(fills)
        data[f"{strength}Text"] = hexed(text_colours(fills, theme))
    return data


def _tiles(tiles: Tiles, buffers: list[bytes]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "count": len(tiles),
        "radius": tiles.radius,
        "align": tiles.align,
    }
    for name in ("x", "y", "width", "height", "group", "device", "offsets", "holders"):
        values = getattr(tiles, name)
        if values is not None:
            data[name] = column(values, buffers)
    data["columns"] = {}
    for name, values in tiles.columns.items():
        data["columns"][name] = column(values, buffers)
    data["text"], data["hint"] = _template(tiles.text), _template(tiles.hint)
    return _without(_TILES, data)


def _ruler(ruler: Ruler) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for name in _RULER:
        value = getattr(ruler, name)
        if isinstance(value, float):
            value = _length(value)
        elif isinstance(value, tuple):
            value = list(value)
        data[name] = value
    data["axes"] = list(map(list, ruler.axes))
    data["repeats"] = [[count, _length(pitch)] for count, pitch in ruler.repeats]
    return _without(_RULER, data)


def edges_data(edges: Edges | None, buffers: list[bytes]) -> dict[str, Any] | None:
    """The edges of a picture, their columns as those of tiles are."""
    if edges is None:
        return None
    data: dict[str, Any] = {"count": len(edges)}
    for name, values in vars(edges).items():
        data[name] = column(values, buffers)
    return data


def column(values: np.ndarray, buffers: list[bytes]) -> Any:
    """One number a tile, as short as it can be said.

    Args:
        values: whole numbers or float32, [tiles].
        buffers: takes the numbers where they are many.

    >>> column(np.array([7, 7, 7]), []), column(np.array([4, 6, 8]), [])
    (7, [4, 2])
    """
    if not len(values):
        return 0
    exact = values.dtype != np.float32
    if (values == values[0]).all():
        return _number(values[0])
    if exact:
        step = int(values[1]) - int(values[0])
        # Ids in mesh order and numbers of blocks mostly are such a row.
        if (np.diff(values) == step).all():
            return [int(values[0]), step]
    if len(values) <= MOST_INLINE:
        return {"values": list(map(_number, values))}
    kind = "float32"
    if exact:
        # Ids beyond int32 are exact as float64, which JavaScript has, up to 2**53.
        kind = "float64"
        if _INT32.min <= values.min() and values.max() <= _INT32.max:
            kind = "int32"
    # JavaScript reads buffers with the byte order that it is told.
    little = np.dtype(kind).newbyteorder("<")
    buffers.append(values.astype(little).tobytes())
    return {"buffer": len(buffers) - 1, "dtype": kind}


def _number(value: Any) -> int | float:
    """A whole number, or the shortest that is the same float32."""
    if value.dtype == np.float32:
        return _whole(float(str(value)))
    return int(value)


def _length(value: float) -> int | float:
    return _whole(round(float(value), 2))


def _whole(value: float) -> int | float:
    """`16` rather than `16.0`."""
    if value.is_integer():
        return int(value)
    return value


def _template(template: Template) -> list[Any]:
    parts: list[Any] = []
    for part in template:
        if isinstance(part, Slot):
            parts.append(_slot(part))
        elif part:
            parts.append(part)
    return parts


def _slot(slot: Slot) -> dict[str, Any]:
    data = {name: getattr(slot, name) for name in ("of", *_SLOT)}
    return _without(_SLOT, {**data, "words": list(slot.words)})
