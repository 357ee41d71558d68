"""Adds a picture of each leaf's sharding to the trees that treescope renders."""

from __future__ import annotations

import base64
import functools
import html
from typing import Any

from shardviz.base.errors import LayoutError, needed_by
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.public.adopt import bridge, is_jax


def treescope_leaf(value: Any, path: str | None = None) -> Any:
    """A treescope autovisualizer that draws which device holds which shard of an array.

    Activate it for one rendering or for a whole notebook with
    `treescope.active_autovisualizer`.

    Args:
        value: any node or leaf of a tree. A JAX array or ShapeDtypeStruct gets a
            picture if its sharding has several devices.
        path: the value's path in the tree; treescope passes it.

    Returns:
        A picture that treescope shows below the value, or None if treescope should
        render the value as usual.

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
        # Shardings with shards of different shapes have no layout.
        return None
    if len(layout.device_ids) == 1:
        return None
    with needed_by("sv.treescope_leaf"):
        import treescope
    # treescope's abstract class for `_repr_html_` is opaque to type checkers.
    leaf: Any = _Leaf(layout)
    return treescope.IPythonVisualization(leaf)


class _Leaf:
    """A leaf's picture, which treescope renders through `_repr_html_`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def _repr_html_(self) -> str:
        return _picture(self.layout, self.layout.spec, self.layout.mesh)


@functools.lru_cache(maxsize=256)
def _picture(layout: Layout, spec: Spec | None, mesh: MeshSpec) -> str:
    """Returns a layout as HTML; cached, because a model's layers share few layouts."""
    # Equal layouts may have other axis names, so spec and mesh are part of the key.
    from shardviz.pictures import draw

    with needed_by("sv.treescope_leaf"):
        from shardviz import figures
    data = base64.b64encode(figures.png(layout)).decode()
    alt = html.escape(draw(layout).alt)
    return f'<img alt="{alt}" style="width: 28em; max-width: 100%" src="data:image/png;base64,{data}">'
