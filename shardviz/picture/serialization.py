"""serialize(picture): a Picture as JSON and binary buffers, for a painter in a browser.

The JSON of one picture, version 1; lengths are in points, y downward, origin at the top left:

    version   1
    width, height
    alt       the picture in words
    colormap       "blocks", "ramp", "verdicts", "bars" or "plain"
    groups    how many groups there are
    facts     what the drawing knows beyond its shapes: {"kind": "devices", "by": "mesh"} or
              {"kind": "array", "dims": [0, 1], "steps": [{"dim", "count", "at" (null: all)}],
              "toScale"}, …
    labels    [{"x", "y" (middle of the line), "text", "anchor": "start" | "middle" | "end",
              "role": "title" | "axis" | "tick" | "note" | "mono",
              "tone": "" | "text" | "muted" | "good" | "warn" | "bad"}]
    frames    [{"x", "y", "width", "height", "label", "dashed"}]
    legend    [{"group", "text", "x", "y"}], a swatch of 9 by 9 points and text at its right
    palette   null for a page that brings its own, or
              {"light": colours, "dark": colours}; colours is {"rest", "faint", "strong": fills
              as "#rrggbb" (nothing pointed at; another tile pointed at; this tile pointed at),
              "restText", "faintText", "strongText": the colour of text on each fill}. The colour of
              group g stands at: groups > length ? floor(g * (length - 1) / (groups - 1))
              : g % length, length being that of the list.
    tiles     {"count", "radius", "align": "start" | "middle",
              "x", "y", "width", "height": columns of float32,
              "group": column of int32, "device": column (-1: the tile is no single device),
              "columns": {name: column}, "offsets", "holders": columns or null,
              "text", "hint": templates}
    edges     null, or {"count", "x0", "y0", "x1", "y1", "width": columns of float32, "group":
              column of int32 (-1: stands by; -2: belongs to several groups)}, under the tiles
    panels    [{"x", "y", "picture": JSON of a picture}], which share the list of buffers

A column is {"value": v} where all tiles have one value, {"start": a, "step": s} where tile i has
a + s * i, or {"buffer": b, "dtype": "float32" | "int32" | "float64"}: buffer number b holds one
little-endian number a tile. Ids and counts beyond int32 are sent as float64, exact to 2**53.

A template is a list of parts, joined: a part is text, or a slot {"of", "divide", "modulo",
"times", "plus", "words", "limit"} in which fields with their default (1, 0, 1, 0, [], 0) are left
out. `of` is "index" (the tile's number), "group", "device" or the name of a column; its value v
becomes n = (v // divide [% modulo, unless 0]) * times + plus, shown as words[n] if there are
words. `of: "devices"` is the list of the device ids of the tile (holders[offsets[i]] up to
holders[offsets[i + 1]]; where offsets are null, its own device) and `of: "peers"` that of the
devices of the other tiles of its group; both are set as `shardviz.core.format.ids_text(ids,
limit)` sets them. In `text`, the first line is the important one, and a tab sends the rest of its
line to the right edge of the tile.

`shardviz/widgets/static/picture_data.js` reads all of this; a test compares what it makes of it
with Python. `messages.d.ts` beside it has the types.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardviz.picture.palette import STRENGTHS, THEMES, hexed, palette, text_colours
from shardviz.picture.picture import (
    Edges,
    Frame,
    Label,
    LegendEntry,
    Picture,
    Slot,
    Template,
    Tiles,
)

VERSION = 1
_DEFAULTS = {"divide": 1, "modulo": 0, "times": 1, "plus": 0, "words": (), "limit": 0}
_INT32 = np.iinfo(np.int32)


def serialize(picture: Picture, with_palette: bool = True) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON of a picture, and the buffers that it names by number.

    Args:
        with_palette: False for a page that brings its own colours, as the Explorer does.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.picture.show import draw
    >>> data, buffers = serialize(draw(make_mesh(data=4, model=2)))
    >>> data["tiles"]["count"], data["tiles"]["device"], len(buffers[0])
    (8, {'start': 0, 'step': 1}, 32)
    """
    buffers: list[bytes] = []
    return {"version": VERSION, **_picture(picture, buffers, with_palette)}, buffers


def _picture(picture: Picture, buffers: list[bytes], with_palette: bool) -> dict[str, Any]:
    names = THEMES if with_palette else ()
    colours = {name: colours_data(picture.groups, picture.colormap, name) for name in names}
    return {
        "width": round(picture.width, 2),
        "height": round(picture.height, 2),
        "alt": picture.alt,
        "colormap": picture.colormap,
        "groups": picture.groups,
        "facts": dict(picture.facts),
        "labels": [_rounded(v) for v in picture.labels],
        "frames": [_rounded(v) for v in picture.frames],
        "legend": [_rounded(v) for v in picture.legend],
        "palette": colours or None,
        "tiles": _tiles(picture.tiles, buffers),
        "edges": _edges(picture.edges, buffers),
        "panels": [
            {"x": round(x, 2), "y": round(y, 2), "picture": _picture(panel, buffers, with_palette)}
            for x, y, panel in picture.panels
        ],
    }


def _rounded(part: Label | Frame | LegendEntry) -> dict[str, Any]:
    """A part of a picture, its lengths to a hundredth of a point."""
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in vars(part).items()}


def colours_data(groups: int, colormap: str, theme: str) -> dict[str, list[str]]:
    """The fills of every strength, and the colour of text on each, as `#rrggbb`.

    >>> colours_data(2, "blocks", "light")["strong"][:2]
    ['#3f90da', '#ffa90e']
    """
    data = {}
    for strength in STRENGTHS:
        fills = palette(groups, colormap, THEMES[theme], strength)
        data[strength] = hexed(fills)
        data[f"{strength}Text"] = hexed(text_colours(fills, theme))
    return data


def _tiles(tiles: Tiles, buffers: list[bytes]) -> dict[str, Any]:
    data: dict[str, Any] = {"count": len(tiles), "radius": tiles.radius, "align": tiles.align}
    for name in ("x", "y", "width", "height", "group", "device", "offsets", "holders"):
        values = getattr(tiles, name)
        data[name] = None if values is None else _column(values, buffers)
    data["columns"] = {name: _column(v, buffers) for name, v in tiles.columns.items()}
    data["text"], data["hint"] = _template(tiles.text), _template(tiles.hint)
    return data


def _edges(edges: Edges | None, buffers: list[bytes]) -> dict[str, Any] | None:
    if edges is None:
        return None
    columns = {name: _column(values, buffers) for name, values in vars(edges).items()}
    return {"count": len(edges), **columns}


def _column(values: np.ndarray, buffers: list[bytes]) -> dict[str, Any]:
    """One number a tile, as short as it can be said."""
    if not len(values):
        return {"value": 0}
    exact = values.dtype != np.float32
    if (values == values[0]).all():
        return {"value": int(values[0]) if exact else float(values[0])}
    if exact:
        step = int(values[1]) - int(values[0])
        if (np.diff(values) == step).all():
            return {"start": int(values[0]), "step": step}
    kind = "<f4"
    if exact:
        narrow = _INT32.min <= values.min() and values.max() <= _INT32.max
        kind = "<i4" if narrow else "<f8"
    buffers.append(values.astype(kind).tobytes())
    names = {"<f4": "float32", "<i4": "int32", "<f8": "float64"}
    return {"buffer": len(buffers) - 1, "dtype": names[kind]}


def _template(template: Template) -> list[Any]:
    return [part if isinstance(part, str) else _slot(part) for part in template]


def _slot(slot: Slot) -> dict[str, Any]:
    data: dict[str, Any] = {"of": slot.of}
    for name, default in _DEFAULTS.items():
        value = getattr(slot, name)
        if value != default:
            data[name] = list(value) if name == "words" else value
    return data
