"""Draws any value as a Picture (`draw`), or writes it as text (`to_text`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shardviz.advise.candidates import Candidate, Changes
from shardviz.advise.draw.changes import changes_text, draw_changes
from shardviz.advise.draw.search import draw_search, search_text
from shardviz.advise.search import Search
from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.differences import AuditDiff
from shardviz.axis_rules.draw import rules
from shardviz.axis_rules.draw.audit import audit_text, draw_audit
from shardviz.axis_rules.path_rules import PathResolution
from shardviz.axis_rules.remedies import Remedies
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rules import PathRules, Rules
from shardviz.base.array_spec import ArraySpec
from shardviz.base.errors import ShardvizError
from shardviz.base.format import shown, suggestion
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.mesh_context import MeshContext
from shardviz.base.parse import check_size
from shardviz.base.partition_spec import Spec, SpecOnMesh
from shardviz.compiled.comparison import Comparison
from shardviz.compiled.draw.measured import draw_measured, measured_text
from shardviz.compiled.draw.memory import draw_memory
from shardviz.compiled.draw.processes import draw_process_group, process_group_text
from shardviz.compiled.draw.report import draw_report, report_text
from shardviz.compiled.draw.roofline import draw_roofline, roofline_text
from shardviz.compiled.draw.stages import draw_comparison, draw_stages, stages_text
from shardviz.compiled.measured import Measured
from shardviz.compiled.processes import ProcessGroup
from shardviz.compiled.report import Report
from shardviz.compiled.roofline import Roofline
from shardviz.compiled.stages import Stages
from shardviz.draw import layout as arrays
from shardviz.draw.page import (
    paragraphs,
    sentences,
    side_by_side,
    text_page,
    titled,
)
from shardviz.draw.picture import Picture
from shardviz.draw.terminal import fitted
from shardviz.hardware.draw import mesh as meshes
from shardviz.hardware.draw.targets import targets_text
from shardviz.hardware.draw.topology import draw_topology, topology_text
from shardviz.hardware.targets import Target, Targets
from shardviz.hardware.topology import Topology
from shardviz.move.draw.movement import draw_movement, movement_text
from shardviz.move.draw.process_rows import draw_process_rows, process_rows_text
from shardviz.move.draw.reshard import draw_reshard, reshard_text
from shardviz.move.draw.restore import draw_restore, restore_text
from shardviz.move.movement import Movement
from shardviz.move.process_rows import ProcessRows
from shardviz.move.reshard import Reshard
from shardviz.move.restore import Restore
from shardviz.plans.draw import plan as plans
from shardviz.plans.explanation import Explanation
from shardviz.plans.plan import Plan
from shardviz.plans.plan_difference import PlanDiff
from shardviz.programs.draw import program as programs
from shardviz.programs.effects import Effects
from shardviz.programs.program import Program
from shardviz.runs.draw.recompiles import watch_html
from shardviz.runs.recompiles import MeshComparison, WatchTable

T = TypeVar("T")
# The smallest allowed line width of text, in letters.
LEAST_WIDTH = 20
# Letters per line of a picture that contains only text.
LETTERS = 110


def _draw_layout(layout: Layout, view: str = "array", **options: Any) -> Picture:
    """Draws an array's blocks (`"array"`), its devices (`"devices"`), or `"both"`."""
    if view == "array":
        return _with_options(arrays.draw_layout_array, layout, options)
    if view == "devices":
        return _with_options(meshes.draw_layout_devices, layout, options)
    if view == "both":
        return _with_options(_devices_and_array, layout, options)
    raise ShardvizError(
        f"A layout is seen as 'array', 'devices' or 'both'; got {shown(view)}."
    )


def _devices_and_array(
    layout: Layout, by: str = "mesh", name: str = "", title: str = ""
) -> Picture:
    head = f"mesh {layout.mesh}"
    devices = meshes.draw_layout_devices(layout, by, name, head, legend=False)
    array = arrays.draw_layout_array(layout, name=name)
    return side_by_side((devices, array), title=title)


def _draw_report(report: Report, view: str = "report", **options: Any) -> Picture:
    """Draws the report (`"report"`), or its memory over time (`"memory"`)."""
    views = {"report": draw_report, "memory": draw_memory}
    if view not in views:
        raise ShardvizError(
            f"A report is seen as 'report' or 'memory'; got {shown(view)}."
        )
    return _with_options(views[view], report, options)


def _draw_words(value: Any, title: str | None = None) -> Picture:
    """Draws a page of text, for values without another picture."""
    head, *lines = to_text(value, LETTERS).split("\n")
    return text_page(
        [(line, "") for line in lines],
        title=titled(title, head),
        alt=sentences([head, *lines]),
    )


def _explained(value: Any, width: int) -> str:
    return paragraphs([value.explain()], width)


def _mesh_context_text(context: MeshContext, width: int) -> str:
    rows = [f"{api}: {mesh or '–'}" for api, mesh in context.table().items()]
    return paragraphs([context.explain(), *rows], width)


Drawer = Callable[..., Picture]
Writer = Callable[..., str]
# For each type, the functions that draw its values and write them as text.
_SHOWN: dict[type, tuple[Drawer, Writer]] = {
    MeshSpec: (meshes.draw_mesh, meshes.mesh_text),
    Layout: (_draw_layout, arrays.layout_text),
    ProcessRows: (draw_process_rows, process_rows_text),
    Spec: (rules.draw_spec, rules.spec_text),
    SpecOnMesh: (rules.draw_spec_on_mesh, rules.spec_on_mesh_text),
    ArraySpec: (arrays.draw_array_spec, arrays.array_spec_text),
    Rules: (rules.draw_rules, rules.rules_text),
    Resolution: (rules.draw_resolution, rules.resolution_text),
    Remedies: (_draw_words, _explained),
    PathRules: (rules.draw_rules, rules.rules_text),
    PathResolution: (rules.draw_path_resolution, _explained),
    Request: (programs.draw_request, programs.request_text),
    Audit: (draw_audit, audit_text),
    AuditDiff: (_draw_words, _explained),
    Reshard: (draw_reshard, reshard_text),
    Restore: (draw_restore, restore_text),
    MeshContext: (_draw_words, _mesh_context_text),
    Effects: (_draw_words, _explained),
    MeshComparison: (_draw_words, _explained),
    WatchTable: (_draw_words, _explained),
    Program: (programs.draw_program, programs.program_text),
    ProcessGroup: (draw_process_group, process_group_text),
    Report: (_draw_report, report_text),
    Measured: (draw_measured, measured_text),
    Plan: (plans.draw_plan, plans.plan_text),
    Explanation: (plans.draw_explanation, plans.explanation_text),
    PlanDiff: (plans.draw_plan_difference, plans.plan_difference_text),
    Comparison: (draw_comparison, stages_text),
    Stages: (draw_stages, stages_text),
    Movement: (draw_movement, movement_text),
    Changes: (draw_changes, changes_text),
    Candidate: (draw_changes, changes_text),
    Topology: (draw_topology, topology_text),
    Roofline: (draw_roofline, roofline_text),
    Search: (draw_search, search_text),
    Target: (_draw_words, targets_text),
    Targets: (_draw_words, targets_text),
    Picture: (
        lambda picture: picture,
        lambda picture, width: _wrap(picture.alt, width),
    ),
}


def draw(value: Any, **options: Any) -> Picture:
    """Draws a value as a Picture.

    Args:
        value: any value of shardviz.
        options: depend on the type of value: `by="host"` for devices; for a layout
            `view="devices"` or `"both"`, `dims=(0, 2)` and `at=(1,)`; `title=""` for
            all types.

    Raises:
        ShardvizError: if values of this type have no picture.

    >>> from shardviz.base.mesh import make_mesh
    >>> draw(make_mesh(data=4, model=2), by="host").facts["by"]
    'host'
    """
    # Classes of `shardviz.legacy` draw themselves.
    if hasattr(value, "_draw_"):
        return value._draw_(**options)
    drawer, _ = _shown(value)
    return _with_options(drawer, value, options)


def to_text(value: Any, width: int = 80, **options: Any) -> str:
    """Writes a value as text, in lines of at most `width` letters if possible.

    Args:
        value: any value that `draw` accepts.
        width: letters per line, at least 20.
        options: depend on the type of value: `full=True` shows all of a plan, a
            report or an explanation.

    Raises:
        ShardvizError: if values of this type have no text.

    >>> from shardviz.base.mesh import make_mesh
    >>> print(to_text(make_mesh(data=2, model=4)))
    mesh data=2, model=4 · 8 devices · 1 host
             model 0   model 1   model 2   model 3
           ┌─────────┬─────────┬─────────┬─────────┐
    data 0 │ 0       │ 1       │ 2       │ 3       │
    data 1 │ 4       │ 5       │ 6       │ 7       │
           └─────────┴─────────┴─────────┴─────────┘
    """
    letters = max(check_size(width, "The width of text", ShardvizError), LEAST_WIDTH)
    if hasattr(value, "_text_"):
        return fitted(_wrap(value._text_(), letters), letters)
    _, write = _shown(value)
    return fitted(_with_options(write, value, options, letters), letters)


def to_html(value: Any) -> str | None:
    """Writes a table that changes while it is shown as HTML; None for other values."""
    return watch_html(value) if isinstance(value, WatchTable) else None


def _with_options(
    show: Callable[..., T], value: Any, options: Mapping[str, Any], *letters: int
) -> T:
    """Calls a function that draws or writes a value.

    Raises:
        TypeError: for an option that the function does not have.
    """
    parameters = inspect.signature(show).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in options:
            if name not in parameters:
                form = "text" if letters else "picture"
                raise TypeError(
                    f"The {form} of a {type(value).__name__} has no option {name}=."
                    f"{suggestion(name, list(parameters)[1 + len(letters) :])}"
                )
    return show(value, *letters, **options)


def _wrap(text: str, width: int) -> str:
    return paragraphs([text], width)


def _shown(value: Any) -> tuple[Drawer, Writer]:
    # A subclass is shown like its nearest base class.
    for kind in type(value).__mro__:
        if kind in _SHOWN:
            return _SHOWN[kind]
    if callable(value) and not isinstance(value, type):
        raise ShardvizError(
            f"A function is shown as its plan; got {shown(value)} without arguments."
            " Write sv.plan(f, *args)."
        )
    raise ShardvizError(
        f"There is no picture and no text of {shown(value)}. Give an array, a sharding, a"
        " tree of arrays, a model, a program, a plan, a report, jax's Lowered or"
        " Compiled, or another value that shardviz draws."
    )
