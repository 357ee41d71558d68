"""Draws any value as a matplotlib figure, or as a PNG or SVG file."""

from __future__ import annotations

import io
from typing import Any

from shardviz.draw.paint import Figure, paint, png_of
from shardviz.draw.palette import Theme
from shardviz.draw.picture import Picture
from shardviz.pictures import draw


def figure(value: Any, theme: str | Theme | None = None, **options: Any) -> Figure:
    """Draws a value as a matplotlib Figure.

    Args:
        value: any value that `draw` accepts.
        theme: `"light"`, `"dark"`, or None for the theme of matplotlib's style.
        options: passed to `draw`.

    Raises:
        ShardvizError: if values of this type have no picture.

    >>> from shardviz.base.mesh import make_mesh
    >>> len(figure(make_mesh(data=4, model=2)).axes)
    1
    """
    return paint(draw(value, **options), theme=theme)


def png(value: Any, theme: str | Theme | None = None, **options: Any) -> bytes:
    """Draws a value as a PNG file whose description is the picture's alt text.

    >>> from shardviz.base.mesh import make_mesh
    >>> png(make_mesh(data=4, model=2))[1:4]
    b'PNG'
    """
    picture: Picture = draw(value, **options)
    return png_of(paint(picture, theme=theme), picture.alt)


def svg(value: Any, theme: str | Theme | None = None, **options: Any) -> str:
    """Draws a value and returns the text of an SVG file.

    >>> from shardviz.base.mesh import make_mesh
    >>> "</svg>" in svg(make_mesh(data=4, model=2))
    True
    """
    buffer = io.StringIO()
    paint(draw(value, **options), theme=theme).savefig(buffer, format="svg")
    return buffer.getvalue()
