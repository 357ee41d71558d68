"""Draws the sharding of each leaf into the trees that treescope renders."""

from __future__ import annotations

import base64
import functools
import html
from typing import Any

from shardviz.base.errors import LayoutError, needed_by
from shardviz.base.layout import Layout
from shardviz.base.public.adopt import bridge, is_jax


def treescope_leaf(value: Any, path: str | None = None) -> Any:
    """An autovisualizer for treescope that draws which device holds which part of an
    array.

    Switch it on for one rendering or for a whole notebook. It uses treescope's own hook
    and changes nothing else.

    Args:
        value: any part of a tree. A jax array or ShapeDtypeStruct gets a picture if its
            sharding has several devices.
        path: the path of the value in the tree, which treescope passes.

    Returns:
        The picture for treescope to show below the value, or None for values that
        treescope should render as usual.

    Raises:
        ShardvizError: if a value needs a picture and treescope or matplotlib is not
            installed.

    >>> import shardviz as sv
    >>> sv.treescope_leaf({"w": 1}) is None
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
    """The picture below a leaf."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def _repr_html_(self) -> str:
        return _picture(self.layout)


@functools.lru_cache(maxsize=256)
def _picture(layout: Layout) -> str:
    """A layout as HTML, cached because the layers of a model share few layouts."""
    from shardviz.pictures import draw

    with needed_by("sv.treescope_leaf"):
        from shardviz import figures
    data = base64.b64encode(figures.png(layout)).decode()
    alt = html.escape(draw(layout).alt)
    return f'<img alt="{alt}" style="width: 28em; max-width: 100%" src="data:image/png;base64,{data}">'
