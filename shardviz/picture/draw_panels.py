"""Pictures of several things at once: an array beside its devices, a program's arrays."""

from __future__ import annotations

from typing import Any

from shardviz.core.errors import plural
from shardviz.core.layout.request import Request
from shardviz.core.program.program import Program
from shardviz.picture.compose import side_by_side
from shardviz.picture.draw_array import draw_array_spec, draw_layout_array
from shardviz.picture.draw_devices import draw_layout_devices, draw_mesh
from shardviz.picture.draw_tables import draw_resolution
from shardviz.picture.shapes import Label, Picture

MOST_ARRAYS = 12


def draw_request(
    asked: Request, by: str = "mesh", dims: Any = None, at: Any = None, title: str | None = None
) -> Picture:
    """The devices coloured by block, and the array in the same colours beside them.

    Args:
        by: as in `draw_mesh`.
        dims, at: as in `draw_layout_array`.

    >>> from shardviz.core.layout.array import ArraySpec
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
