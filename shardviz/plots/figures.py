"""figure(value) and png(value): from a value to a matplotlib Figure or a file, in one call."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.figure import Figure as PlainFigure

from shardviz.picture.palette import Theme
from shardviz.picture.picture import Picture
from shardviz.picture.show import draw
from shardviz.plots.paint import paint

DOTS_PER_INCH = 144.0  # two dots a point: crisp on the screens that people have
MOST_DOTS = 12_000  # either way; Agg refuses 65,536, and a browser much less


class Figure(PlainFigure):
    """A matplotlib Figure that shows itself at the end of a cell without pyplot.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> figure(make_mesh(data=4, model=2))._repr_png_()[:4]
    b'\\x89PNG'
    """

    def _repr_png_(self) -> bytes:
        return _png(self, "")


def figure(value: Any, theme: str | Theme = "light", **options: Any) -> Figure:
    """The picture of a value as a matplotlib Figure of its own size.

    Args:
        value: anything that `draw` takes.
        theme: `"light"` or `"dark"`.
        options: those of `draw`.

    Raises:
        ShardvizError: for a value without a picture, or an option it does not have.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> len(figure(make_mesh(data=4, model=2)).axes)
    1
    """
    return paint(draw(value, **options), theme=theme, figure_class=Figure)


def png(value: Any, theme: str | Theme = "light", **options: Any) -> bytes:
    """The same as a PNG file, with the picture in words in its description.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> png(make_mesh(data=4, model=2))[1:4]
    b'PNG'
    """
    picture: Picture = draw(value, **options)
    return _png(paint(picture, theme=theme, figure_class=Figure), picture.alt)


def _png(figure: PlainFigure, words: str) -> bytes:
    longest = max(figure.get_size_inches())
    buffer = io.BytesIO()
    figure.savefig(
        buffer,
        format="png",
        dpi=min(DOTS_PER_INCH, MOST_DOTS / longest),
        facecolor=figure.get_facecolor(),
        metadata={"Description": words} if words else None,
    )
    return buffer.getvalue()
