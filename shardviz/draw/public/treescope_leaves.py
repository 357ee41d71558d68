"""Leaves of a tree with their shardings, in the rendering of treescope."""

from __future__ import annotations

import base64
import functools
import html
from typing import Any

from shardviz.base.errors import LayoutError, needed_by
from shardviz.base.layout import Layout
from shardviz.base.public.adopt import bridge, is_jax


def treescope_leaf(value: Any, path: str | None = None) -> Any:
    """An autovisualizer for treescope: below each array that is split or replicated,
    which device holds which part.

    You switch it on, for one rendering or for a whole notebook, and nothing of
    treescope is changed.

    Args:
        value: any part of a tree. Arrays of jax and ShapeDtypeStructs get a picture,
            where their sharding has several devices.
        path: where it is in the tree; treescope gives it.

    Returns:
        What treescope shows below the value; None for everything else, which it renders
        as always.

    Raises:
        ShardvizError: where treescope or matplotlib is not installed, for an array that
            would get a picture.

    >>> treescope_leaf({"w": 1}) is None
    True
    >>> switch = treescope.active_autovisualizer                     # doctest: +SKIP
    >>> with switch.set_scoped(sv.treescope_leaf):                   # doctest: +SKIP
    ...     treescope.display(params)
    >>> switch.set_globally(sv.treescope_leaf)                       # doctest: +SKIP
    """
    if not is_jax(value) or getattr(value, "sharding", None) is None:
        return None
    try:
        layout = bridge().adopt_layout(value)
    except LayoutError:
        # A sharding whose shards differ in shape has no layout.
        return None
    if len(layout.device_ids) == 1:
        return None
    with needed_by("sv.treescope_leaf"):
        import treescope
    # treescope asks for `_repr_html_` by an abstract class that a checker cannot see into.
    leaf: Any = _Leaf(layout)
    return treescope.IPythonVisualization(leaf)


class _Leaf:
    """What stands below a leaf."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def _repr_html_(self) -> str:
        return _picture(self.layout)


@functools.lru_cache(maxsize=256)
def _picture(layout: Layout) -> str:
    """A layout as HTML: the layers of a model have few different ones."""
    from shardviz.pictures import draw

    with needed_by("sv.treescope_leaf"):
        from shardviz import figures
    data = base64.b64encode(figures.png(layout)).decode()
    alt = html.escape(draw(layout).alt)
    return f'<img alt="{alt}" style="width: 28em; max-width: 100%" src="data:image/png;base64,{data}">'
