"""What a layout can be of: checks on windows and on Manual axes."""

from __future__ import annotations

from typing import Any

from shardviz.core.errors import LayoutError, listed, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.spec import Spec


def checked_window(window: Any, mesh: MeshSpec) -> tuple[slice, ...]:
    """A window on a mesh, one slice an axis with both ends given.

    Raises:
        LayoutError: for anything that is none.
    """
    try:
        cuts = [slice(*w.indices(n)) for w, n in zip(window, mesh.axis_sizes, strict=True)]
    except (AttributeError, TypeError, ValueError):
        cuts = []
    if len(cuts) != len(mesh.axis_sizes) or any(cut.step < 1 for cut in cuts):
        raise LayoutError(
            f"A window is a tuple of slices going up, one a mesh axis ({mesh}); got"
            f" {shown(window)}."
        )
    return tuple(cuts)


def check_manual(spec: Spec, mesh: MeshSpec) -> None:
    """Refuses a Manual axis beside an axis that splits nothing, as NamedSharding does.

    Raises:
        LayoutError: naming both.
    """
    # NamedSharding fails here in an assertion: it knows no devices that are replicas of each
    # other beside devices that a shard_map keeps apart.
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    manual = [n for n, size in mesh.shape.items() if size > 1 and kinds[n] == "Manual"]
    idle = [n for n, size in mesh.shape.items() if size > 1 and n not in spec.axes]
    if manual and idle:
        raise LayoutError(
            f"Mesh axis {shown(manual[0])} is Manual: what a device holds along it is up to the"
            " code inside shard_map. JAX lays out an array over such a mesh only if every axis"
            f" splits a dimension, and {shown(idle[0])} splits none. Make {listed(manual)} Auto or"
            " Explicit."
        )
