"""draw(value) -> Picture: what any value of shardviz looks like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from shardviz.core.errors import ShardvizError, listed, shown, suggestion
from shardviz.core.layout.array import ArraySpec
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.contexts import MeshContext
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parts import Parts
from shardviz.core.layout.request import Request
from shardviz.core.layout.resolution import Resolution
from shardviz.core.layout.rules import Rules
from shardviz.core.layout.sharding_spec import ShardingSpec
from shardviz.core.layout.shards import Layout
from shardviz.core.layout.spec import Spec
from shardviz.core.layout.topology import Topology
from shardviz.core.program.costs.roofline import Roofline
from shardviz.core.program.devices.target import Target, Targets
from shardviz.core.program.effects.events import Observed
from shardviz.core.program.effects.values import Effects
from shardviz.core.program.program import Program
from shardviz.core.program.propagation.difference import PlanDiff
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.propagation.story import Story
from shardviz.core.program.report import Report
from shardviz.core.program.rungs import Comparison, Rungs
from shardviz.picture.draw_array import draw_array_spec, draw_layout_array
from shardviz.picture.draw_bars import draw_audit, draw_report
from shardviz.picture.draw_devices import draw_layout_devices, draw_mesh
from shardviz.picture.draw_dialects import draw_mesh_context, draw_parts, draw_sharding_spec
from shardviz.picture.draw_effects import draw_effects, draw_observed
from shardviz.picture.draw_panels import draw_program, draw_request
from shardviz.picture.draw_plan import draw_plan, draw_story
from shardviz.picture.draw_plan_difference import draw_difference
from shardviz.picture.draw_position import draw_topology
from shardviz.picture.draw_roofline import draw_roofline
from shardviz.picture.draw_rungs import draw_comparison, draw_rungs
from shardviz.picture.draw_tables import draw_resolution, draw_rules, draw_spec
from shardviz.picture.draw_targets import draw_target, draw_targets
from shardviz.picture.shapes import Picture


def draw_layout(layout: Layout, view: str = "array", **options: Any) -> Picture:
    """A layout as the blocks of its array, or as its devices.

    Args:
        view: `"array"` or `"devices"`.
        options: those of `draw_layout_array` or `draw_layout_devices`.

    Raises:
        ShardvizError: for another view, or an option that the view does not have.
    """
    if view not in ("array", "devices"):
        raise ShardvizError(f"A layout is seen as 'array' or 'devices'; got {shown(view)}.")
    drawer = draw_layout_array if view == "array" else draw_layout_devices
    return _called(drawer, layout, options)


def _as_it_is(picture: Picture) -> Picture:
    return picture


_DRAWERS: dict[type, Callable[..., Picture]] = {
    MeshSpec: draw_mesh,
    Layout: draw_layout,
    Spec: draw_spec,
    ArraySpec: draw_array_spec,
    Rules: draw_rules,
    Resolution: draw_resolution,
    Request: draw_request,
    Audit: draw_audit,
    ShardingSpec: draw_sharding_spec,
    Parts: draw_parts,
    MeshContext: draw_mesh_context,
    Effects: draw_effects,
    Observed: draw_observed,
    Program: draw_program,
    Report: draw_report,
    Plan: draw_plan,
    Story: draw_story,
    PlanDiff: draw_difference,
    Comparison: draw_comparison,
    Rungs: draw_rungs,
    Topology: draw_topology,
    Roofline: draw_roofline,
    Target: draw_target,
    Targets: draw_targets,
    Picture: _as_it_is,
}


def draw(value: Any, **options: Any) -> Picture:
    """The Picture of a value.

    Args:
        value: anything that `import shardviz` makes.
        options: what the picture of that value understands: `by="host"` for devices,
            `view="devices"`, `dims=(0, 2)` and `at=(1,)` for a layout, `title=""` for all.

    Raises:
        ShardvizError: for a value without a picture, or an option that it does not have.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> draw(make_mesh(data=4, model=2), by="host").facts["by"]
    'host'
    """
    for kind in type(value).__mro__:
        if kind in _DRAWERS:
            return _called(_DRAWERS[kind], value, options)
    names = listed([k.__name__ for k in _DRAWERS], limit=30).replace("'", "")
    raise ShardvizError(
        f"There is no picture of this {type(value).__name__}; got {shown(value)}. There is one of"
        f" {names}."
    )


def _called(drawer: Callable[..., Picture], value: Any, options: dict[str, Any]) -> Picture:
    known = list(inspect.signature(drawer).parameters)[1:]
    if "options" not in known:
        for name in options:
            if name not in known:
                raise ShardvizError(
                    f"A picture of a {type(value).__name__} has no option {shown(name)}."
                    f"{suggestion(name, known)}"
                )
    return drawer(value, **options)
