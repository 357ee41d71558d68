"""Serializes a Picture as JSON and binary buffers, for a painter in a browser.

Only the fields that the Explorer paints are sent. Colours, tooltips, legends and panels
are the page's own.

The page's `messages.d.ts` has the types of the messages, and `picture_data.js` decodes
them; a test compares the decoded picture with Python's. Lengths are in points; the
origin is at the top left and y grows downward. A picture is sent with every edit, so
fields equal to their defaults are left out. A row (a label or a frame) also omits its
last fields if they equal those of the previous row.

A column has one of four forms: a number that all tiles share; `[a, s]` if tile i has
`a + s * i`; `{"values": numbers}` for a few tiles; or `{"buffer": b, "dtype": ...}`. In
the last form, buffer number b holds one little-endian number per tile. Ids and counts
beyond int32 are sent as float64, which is exact up to 2**53.

A template is a list of texts and slots. A slot `{"of": "devices", "limit": n}` is
replaced by the tile's device ids, formatted as `base.format.ids_text(ids, n)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardviz.draw.picture import (
    NO_DEVICE,
    Edges,
    Picture,
    Ruler,
    Template,
    Tiles,
)

# Up to this many tiles, numbers in JSON are shorter than a buffer.
MOST_INLINE = 16
# The page needs neither the role nor the tone of a label.
_LABEL = ("x", "y", "text", "anchor")
_FRAME = ("x", "y", "label", "width", "height", "dashed", "named")
_PICTURE: dict[str, Any] = {
    "groups": 1, "shades": None, "facts": {}, "labels": [], "frames": [], "edges": None,
    "rulers": [],
}  # fmt: skip
_TILES: dict[str, Any] = {
    "group": 0, "device": NO_DEVICE, "offsets": None, "holders": None, "text": [],
}  # fmt: skip

# `away` is not sent: the page computes it from its own font.
_RULER: dict[str, Any] = {
    "words": [], "axes": [], "down": False, "start": 0, "length": 0, "repeats": [], "count": 0,
    "pitch": 0, "extent": 0, "step": 1, "size": 0,
}  # fmt: skip
_INT32 = np.iinfo(np.int32)


def serialize(picture: Picture) -> tuple[dict[str, Any], list[bytes]]:
    """Returns a picture as JSON, and the buffers that the JSON refers to by number.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.pictures import draw
    >>> data, buffers = serialize(draw(make_mesh(data=4, model=2)))
    >>> data["tiles"]["count"], data["tiles"]["device"], len(buffers)
    (8, [0, 1], 0)
    """
    buffers: list[bytes] = []
    data = {
        "width": _length(picture.width),
        "height": _length(picture.height),
        "groups": picture.groups,
        "shades": picture.shades,
        "facts": dict(picture.facts),
        "labels": _rows(picture.labels, _LABEL),
        "frames": _rows(picture.frames, _FRAME),
        "tiles": _tiles(picture.tiles, buffers),
        "edges": edges_data(picture.edges, buffers),
        "rulers": [_ruler(ruler) for ruler in picture.rulers],
    }
    return _without(_PICTURE, data), buffers


def _without(defaults: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that differ from their defaults."""
    return {k: v for k, v in data.items() if k not in defaults or v != defaults[k]}


def _rows(parts: Sequence[Any], fields: Sequence[str]) -> list[list[Any]]:
    """Converts labels or frames to rows, with lengths rounded to 0.01 points.

    Trailing fields that equal the previous row's are omitted.
    """
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


def _tiles(tiles: Tiles, buffers: list[bytes]) -> dict[str, Any]:
    data: dict[str, Any] = {"count": len(tiles), "text": _template(tiles.text)}
    for name in ("x", "y", "width", "height", "group", "device", "offsets", "holders"):
        values = getattr(tiles, name)
        if values is not None:
            data[name] = column(values, buffers)
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
    """Serializes edges, with the same column forms as tiles."""
    if edges is None:
        return None
    data: dict[str, Any] = {"count": len(edges)}
    for name, values in vars(edges).items():
        data[name] = column(values, buffers)
    return data


def column(values: np.ndarray, buffers: list[bytes]) -> Any:
    """Encodes one number per tile in the shortest form; see the module docstring.

    Args:
        values: integers or float32, [tiles].
        buffers: if a buffer is needed, it is appended here.

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
        # Ids in mesh order and block numbers usually increase by a constant.
        if (np.diff(values) == step).all():
            return [int(values[0]), step]
    if len(values) <= MOST_INLINE:
        return {"values": list(map(_number, values))}
    kind = "float32"
    if exact:
        # JavaScript's float64 is exact up to 2**53.
        kind = "float64"
        if _INT32.min <= values.min() and values.max() <= _INT32.max:
            kind = "int32"
    # The page reads every buffer as little-endian.
    little = np.dtype(kind).newbyteorder("<")
    buffers.append(values.astype(little).tobytes())
    return {"buffer": len(buffers) - 1, "dtype": kind}


def _number(value: Any) -> int | float:
    """Returns an int, or the shortest decimal that rounds to the same float32."""
    if value.dtype == np.float32:
        return _whole(float(str(value)))
    return int(value)


def _length(value: float) -> int | float:
    return _whole(round(float(value), 2))


def _whole(value: float) -> int | float:
    """Returns an int if `value` is a whole number, so that JSON has 16, not 16.0."""
    if value.is_integer():
        return int(value)
    return value


def _template(template: Template) -> list[Any]:
    parts: list[Any] = []
    for part in template:
        if not isinstance(part, str):
            part = {"of": part.of, "limit": part.limit}
        if part:
            parts.append(part)
    return parts
