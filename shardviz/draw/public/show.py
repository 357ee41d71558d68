"""Public functions that show any value: `sv.plot` and `sv.text`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shardviz.base.errors import MissingPackage, needed_by
from shardviz.base.public.adopt import adopt

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(thing: object, **options: Any) -> Figure:
    """Draws a value as a matplotlib Figure.

    Args:
        thing: any value that shardviz returns, or a JAX mesh, spec, sharding or array.
        **options: `theme="dark"`, and options for this kind of value, such as
            `dims=(0, 2)` for a layout.

    Raises:
        ShardvizError: if the value has no picture or matplotlib is not installed.

    >>> import shardviz as sv
    >>> type(sv.plot(sv.mesh(data=4, model=2))).__name__
    'Figure'
    """
    with needed_by("sv.plot"):
        from shardviz import figures
    return figures.figure(adopt(thing), **options)


def text(thing: object, width: int = 80, **options: Any) -> str:
    """Draws a value as text, for terminals and screen readers.

    Args:
        thing: any value that shardviz returns, or a JAX mesh, spec, sharding or array.
        width: the maximum number of characters per line.
        **options: `full=True` lists every row of a large plan, report or explanation;
            by default only the largest are shown.

    Raises:
        ShardvizError: if the value has no text.

    >>> import shardviz as sv
    >>> "model" in sv.text(sv.mesh(data=4, model=2))
    True
    """
    from shardviz.pictures import to_text

    return to_text(adopt(thing), width, **options)


def mimebundle(value: object) -> dict[str, str | bytes]:
    """Returns what a notebook displays: text, and a PNG if matplotlib is installed."""
    from shardviz.pictures import to_text

    bundle: dict[str, str | bytes] = {"text/plain": to_text(value)}
    with contextlib.suppress(MissingPackage):
        with needed_by("a picture"):
            from shardviz import figures
        bundle["image/png"] = figures.png(value)
    return bundle
