"""Programs: their mesh and every array they take; and one such array with its layout (Request)."""

from __future__ import annotations

from typing import Any

from shardviz.core.format import bytes_text, plural
from shardviz.core.layout.resolution import Request
from shardviz.core.program.program import Program
from shardviz.picture.layout import array_spec_text, draw_array_spec, draw_layout_array, layout_text
from shardviz.picture.mesh import draw_layout_devices, draw_mesh, mesh_text
from shardviz.picture.page import side_by_side
from shardviz.picture.picture import Label, Picture
from shardviz.picture.rules import draw_resolution
from shardviz.picture.text_fit import and_more, paragraphs, wrapped

MOST_ARRAYS = 12


def draw_request(
    request: Request, by: str = "mesh", dims: Any = None, at: Any = None, title: str | None = None
) -> Picture:
    """The devices coloured by block, and the array in the same colours beside them.

    Args:
        by: as in `draw_mesh`.
        dims, at: as in `draw_layout_array`.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.resolution import request
    >>> x = request(ArraySpec("x", (8, 4), spec="data"), make_mesh(data=4), None)
    >>> [len(panel.tiles) for _, _, panel in draw_request(x).panels]
    [4, 4]
    """
    array, layout, resolution = request.array, request.layout, request.resolution
    head = f"{array.name} {array.short}" + ("" if request.spec is None else f"  {request.spec}")
    if layout is None:
        panels = [draw_array_spec(array, title="")]
        if resolution is not None:
            panels.append(draw_resolution(resolution))
    else:
        panels = [
            draw_layout_devices(layout, by, array.name, title="", legend=False),
            draw_layout_array(layout, dims, at, array.name, array.logical, title=""),
        ]
    notes = []
    # The picture of a resolution already says what is wrong with it.
    if request.problem and (layout is not None or resolution is None or not resolution.problems):
        notes = [Label(0, 0, request.problem, "start", "note", "bad")]
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=notes,
        alt=" ".join([p.alt for p in panels] + [n.text for n in notes]),
        width=1100.0,
        facts={"kind": "request"},
    )


def request_text(request: Request, width: int) -> str:
    """An array with its layout, or why it has none; then how the rules resolved its spec."""
    array = request.array
    if request.layout is None:
        why = f"✗ {request.problem}" if request.problem else "How it is split is unknown."
        parts = [array_spec_text(array, width), paragraphs([why], width)]
    else:
        parts = [layout_text(request.layout, width, array.name, array.logical)]
    if request.resolution is not None:
        if request.spec_wins:
            sentence = (
                f"The explicit spec overrides the rules, which give {request.resolution.spec}."
            )
            parts.append(paragraphs([sentence], width))
        else:
            parts.append(paragraphs([request.resolution.explain()], width))
    return "\n".join(parts)


def draw_program(
    program: Program, by: str = "mesh", limit: int = MOST_ARRAYS, title: str | None = None
) -> Picture:
    """The mesh of a program, and every array it takes.

    Args:
        limit: how many arrays to show.
    """
    requests = program.requests
    panels = [draw_mesh(program.mesh, by), *(_array_panel(r) for r in requests[:limit])]
    head = f"{program.name}: {plural(len(requests), 'array')} on {program.mesh}"
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=and_more(len(requests) - limit, "array"),
        alt=" ".join([f"Program {head}.", *(p.alt for p in panels)]),
        facts={"kind": "program"},
    )


def _array_panel(request: Request) -> Picture:
    array = request.array
    if request.layout is None:
        return draw_array_spec(array, problem=request.problem or "")
    return draw_layout_array(request.layout, None, None, array.name, array.logical)


def program_text(program: Program, width: int) -> str:
    """A program: its mesh, then a line per array with its spec and its bytes per device."""
    requests = program.requests
    names = max([len(r.array.name) for r in requests], default=0)
    types = max([len(r.array.short) for r in requests], default=0)
    indent = " " * min(names + types + 4, width // 2)
    lines = [f"{program.name}: {plural(len(requests), 'array')}", mesh_text(program.mesh, width)]
    for request in requests:
        start = f"{request.array.name:<{names}}  {request.array.short:<{types}}"
        lines += wrapped(f"{start}  {_in_short(request)}", width, indent)
    return "\n".join(lines)


def _in_short(request: Request) -> str:
    layout = request.layout
    if layout is None:
        return f"✗ {request.problem}"
    copies = f", {plural(layout.replicas, 'replica')}" if layout.replicas > 1 else ""
    return f"{request.spec}  {bytes_text(layout.bytes_per_device)} per device{copies}"
