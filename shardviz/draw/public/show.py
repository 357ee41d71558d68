"""Public functions that show any value: `sv.plot` and `sv.text`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from shardviz.base.errors import MissingPackage, needed_by
from shardviz.base.public.adopt import adopt

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(thing: Any, **options: Any) -> Figure:
    """The picture of any value, as a matplotlib Figure.

    Args:
        thing: anything that shardviz returns, or jax's own mesh, spec, sharding or
            array.
        **options: `theme="dark"`, and what the value's picture understands, such as
            `dims=(0, 2)`.

    Raises:
        ShardvizError: where the value has no picture, or matplotlib is not installed.

    >>> from shardviz.base.mesh import make_mesh
    >>> type(plot(make_mesh(data=4, model=2))).__name__
    'Figure'
    """
    with needed_by("sv.plot"):
        from shardviz import figures
    return figures.figure(adopt(thing), **options)


def text(thing: Any, width: int = 80, **options: Any) -> str:
    """The picture of any value, as text for terminals and screen readers.

    Args:
        thing: anything that shardviz returns, or jax's own mesh, spec, sharding or
            array.
        width: how many characters a line may have.
        **options: `full=True` for all that a large plan, report or explanation holds,
            of which the text otherwise shows the largest.

    Raises:
        ShardvizError: where the value has no text.

    >>> from shardviz.base.mesh import make_mesh
    >>> "model" in text(make_mesh(data=4, model=2))
    True
    """
    from shardviz.pictures import to_text

    return to_text(adopt(thing), width, **options)


def mimebundle(value: Any) -> dict[str, Any]:
    """How a value shows itself in a notebook: text always, PNG where matplotlib is
    installed.
    """
    from shardviz.pictures import to_text

    bundle: dict[str, Any] = {"text/plain": to_text(value)}
    with contextlib.suppress(MissingPackage):
        with needed_by("a picture"):
            from shardviz import figures
        bundle["image/png"] = figures.png(value)
    return bundle
