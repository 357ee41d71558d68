"""draw(value) -> Picture: what any value of shardviz looks like."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import listed, plural, shown, suggestion
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.audit import Audit
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_context import MeshContext
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.request import Request
from shardviz.core.layout.resolution import Resolution
from shardviz.core.layout.rules import Rules
from shardviz.core.program.comparison import Comparison
from shardviz.core.program.effects import Effects, Observed
from shardviz.core.program.explanation import Explanation
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_difference import PlanDiff
from shardviz.core.program.program import Program
from shardviz.core.program.report import Report
from shardviz.core.program.roofline import Roofline
from shardviz.core.program.stages import Stages
from shardviz.core.program.target import Target, Targets
from shardviz.picture.effects import draw_effects, draw_mesh_context, draw_observed
from shardviz.picture.layout import draw_array_spec, draw_layout_array
from shardviz.picture.mesh import draw_layout_devices, draw_mesh
from shardviz.picture.page import side_by_side
from shardviz.picture.picture import Label, Picture
from shardviz.picture.plan import draw_explanation, draw_plan
from shardviz.picture.report import draw_audit, draw_report, draw_roofline
from shardviz.picture.rules import draw_resolution, draw_rules, draw_spec
from shardviz.picture.stages import draw_comparison, draw_plan_difference, draw_stages
from shardviz.picture.targets import draw_target, draw_targets
from shardviz.picture.topology import draw_topology

MOST_ARRAYS = 12


def draw_request(
    asked: Request, by: str = "mesh", dims: Any = None, at: Any = None, title: str | None = None
) -> Picture:
    """The devices coloured by block, and the array in the same colours beside them.

    Args:
        by: as in `draw_mesh`.
        dims, at: as in `draw_layout_array`.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.request import request
    >>> asked = request(ArraySpec("x", (8, 4), spec="data"), make_mesh(data=4), None)
    >>> [len(panel.tiles) for _, _, panel in draw_request(asked).panels]
    [4, 4]
    """
    array, layout = asked.array, asked.layout
    # Where the verdicts are drawn, they say what is wrong.
    told = layout is None and asked.resolution is not None and asked.resolution.problems
    notes = (
        [Label(0, 0, asked.problem, "start", "note", "bad")] if asked.problem and not told else []
    )
    head = f"{array.name} {array.short}" + ("" if asked.spec is None else f"  {asked.spec}")
    if layout is None:
        panels = [draw_array_spec(array, title="")]
        if asked.resolution is not None:
            panels.append(draw_resolution(asked.resolution))
    else:
        panels = [
            draw_layout_devices(layout, by, array.name, title="", legend=False),
            draw_layout_array(layout, dims, at, array.name, array.logical, title=""),
        ]
    return side_by_side(
        panels, title=head if title is None else title, notes=notes,
        alt=" ".join([p.alt for p in panels] + [n.text for n in notes]),
        width=1100.0, facts={"kind": "request"},
    )  # fmt: skip


def draw_program(
    program: Program, by: str = "mesh", limit: int = MOST_ARRAYS, title: str | None = None
) -> Picture:
    """The mesh of a program, and every array it takes.

    Args:
        limit: how many arrays to show.
    """
    asked = program.requests
    panels = [draw_mesh(program.mesh, by), *(_array_panel(one) for one in asked[:limit])]
    left = len(asked) - limit
    head = f"{program.name}: {plural(len(asked), 'array')} on {program.mesh}"
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=[f"and {plural(left, 'more array')}"] if left > 0 else [],
        alt=" ".join([f"Program {head}.", *(p.alt for p in panels)]),
        facts={"kind": "program"},
    )


def _array_panel(asked: Request) -> Picture:
    array = asked.array
    if asked.layout is None:
        return draw_array_spec(array, problem=asked.problem or "")
    return draw_layout_array(asked.layout, None, None, array.name, array.logical)


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
    MeshContext: draw_mesh_context,
    Effects: draw_effects,
    Observed: draw_observed,
    Program: draw_program,
    Report: draw_report,
    Plan: draw_plan,
    Explanation: draw_explanation,
    PlanDiff: draw_plan_difference,
    Comparison: draw_comparison,
    Stages: draw_stages,
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
    if hasattr(value, "_draw_"):
        return _called(type(value)._draw_, value, options)
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
