"""Pictures and text of programs: the mesh, and each array argument's layout."""

from __future__ import annotations

from typing import Any

from shardviz.axis_rules.draw.rules import draw_path_resolution, draw_resolution
from shardviz.axis_rules.requests import Request
from shardviz.base.format import bytes_text, plural
from shardviz.draw import words as wording
from shardviz.draw.layout import (
    array_spec_text,
    draw_array_spec,
    draw_layout_array,
    layout_text,
)
from shardviz.draw.page import (
    and_more,
    note,
    paragraphs,
    side_by_side,
    titled,
    wrapped,
)
from shardviz.draw.picture import Label, Picture
from shardviz.hardware.draw.mesh import draw_layout_devices, draw_mesh, mesh_text
from shardviz.programs.program import Program

MOST_ARRAYS = 12
# The width and height of one of several arrays, in points: two fit beside each other.
SMALLER = 260.0, 200.0


def draw_request(
    request: Request,
    by: str = "mesh",
    dims: Any = None,
    at: Any = None,
    title: str | None = None,
) -> Picture:
    """Draws the devices, coloured by their shard, and the array in the same colours.

    Args:
        by: see `draw_mesh`.
        dims, at: see `draw_layout_array`.
    """
    array, layout, resolution = request.array, request.layout, request.resolution
    head, problem = f"{array.name} {array.short}", request.problem
    if request.spec is not None:
        head += f"  {request.spec}"
    if layout is not None:
        devices = draw_layout_devices(layout, by, array.name, title="", legend=False)
        name, names = array.name, array.logical
        panels = [devices, draw_layout_array(layout, dims, at, name, names, title="")]
    else:
        panels = [draw_array_spec(array, title="")]
        if resolution is not None:
            panels.append(draw_resolution(resolution))
        elif request.by_path is not None:
            panels.append(draw_path_resolution(request.by_path))
        # The picture of a resolution already shows the problem.
        if resolution is not None and resolution.problems:
            problem = None
    notes: list[str | Label] = [note(str(problem), "bad")] if problem else []
    return side_by_side(
        panels,
        title=titled(title, head),
        notes=notes,
        width=1100.0,
    )


def request_text(request: Request, width: int) -> str:
    """Describes an array's layout, or why it has none, and how rules resolved it."""
    array, resolution = request.array, request.resolution
    parts = []
    if request.layout is None:
        why = wording.SPLIT_UNKNOWN
        if request.problem:
            why = f"✗ {request.problem}"
        parts += [array_spec_text(array, width), paragraphs([why], width)]
    else:
        parts.append(layout_text(request.layout, width, array.name, array.logical))
    if request.by_path is not None:
        parts.append(paragraphs([request.by_path.explain()], width))
    if resolution is not None:
        words = resolution.explain()
        if request.spec_wins:
            words = wording.spec_overrides(resolution.spec)
        parts.append(paragraphs([words], width))
    return "\n".join(parts)


def draw_program(
    program: Program,
    by: str = "mesh",
    limit: int = MOST_ARRAYS,
    title: str | None = None,
) -> Picture:
    """Draws a program's mesh and its array arguments.

    Args:
        by: see `draw_mesh`.
        limit: how many arrays to draw.
    """
    requests = program.requests
    panels = [_draw_devices(program, by)]
    for request in requests[:limit]:
        array, layout = request.array, request.layout
        if layout is None:
            panels.append(draw_array_spec(array, problem=str(request.problem or "")))
        else:
            options = {"name": array.name, "logical": array.logical}
            if len(requests) > 1:
                options["room"] = SMALLER
            panels.append(draw_layout_array(layout, **options))
    head = f"{program.name}: {plural(len(requests), 'array')} on {program.mesh}"
    return side_by_side(
        panels,
        title=titled(title, head),
        notes=and_more(len(requests) - limit, "array"),
    )


def _draw_devices(program: Program, by: str) -> Picture:
    """Draws the mesh, in the colours of the array if a program has only one."""
    if len(program.requests) != 1 or len(program.mesh.processes) > 1 or by != "mesh":
        return draw_mesh(program.mesh, by)
    request = program.requests[0]
    if request.layout is None:
        return draw_mesh(program.mesh, by)
    head, name = f"mesh {program.mesh}", request.array.name
    return draw_layout_devices(request.layout, by, name, head, legend=False)


def program_text(program: Program, width: int) -> str:
    """Describes a program's mesh, then each array: its spec and bytes per device."""
    requests = program.requests
    names = max((len(request.array.name) for request in requests), default=0)
    types = max((len(request.array.short) for request in requests), default=0)
    # Continuation lines are aligned with the spec, unless the array's name is long.
    indent = " " * min(names + types + 4, width // 2)
    head = f"{program.name}: {plural(len(requests), 'array')}"
    lines = [head, mesh_text(program.mesh, width)]
    for request in requests:
        start = f"{request.array.name:<{names}}  {request.array.short:<{types}}"
        lines += wrapped(f"{start}  {_in_short(request)}", width, indent)
    return "\n".join(lines)


def _in_short(request: Request) -> str:
    layout = request.layout
    if layout is None:
        return f"✗ {request.problem}"
    text = f"{request.spec}  {bytes_text(layout.bytes_per_device)} per device"
    if layout.replicas > 1:
        text += f", {plural(layout.replicas, 'replica')}"
    return text
