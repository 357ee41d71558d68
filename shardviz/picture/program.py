"""Programs: their mesh, every array they take with its layout (Request), and their effects.

Of effects: what each one allows, and the order in which they ran; and the mesh in force.
"""

from __future__ import annotations

from typing import Any

from shardviz.core.format import bytes_text, plural
from shardviz.core.layout.mesh_context import APIS, MeshContext
from shardviz.core.layout.resolution import Request
from shardviz.core.program.effects import Effects, Observed
from shardviz.core.program.program import Program
from shardviz.picture.layout import array_spec_text, draw_array_spec, draw_layout_array, layout_text
from shardviz.picture.mesh import draw_layout_devices, draw_mesh, mesh_text
from shardviz.picture.page import and_more, paragraphs, side_by_side, wrapped
from shardviz.picture.picture import Label, Picture
from shardviz.picture.rules import draw_path_resolution, draw_resolution
from shardviz.picture.tables import Cell, matrix

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
        elif request.by_path is not None:
            panels.append(draw_path_resolution(request.by_path))
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
    if request.by_path is not None:
        parts.append(paragraphs([request.by_path.explain()], width))
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


MOST_EVENTS = 64
_CONSTRUCTS = ("control flow", "remat", "custom derivatives", "lowering")
_COLUMNS = ("ordered", "many devices", *_CONSTRUCTS)
_SLOTS = {"abstract": "abstract mesh", "current": "jax.set_mesh", "legacy": "with mesh:"}


def draw_effects(effects: Effects, title: str | None = None) -> Picture:
    """The effects of a program: a row each, a tile per property and per construct that allows it.

    >>> from shardviz.core.program.effects import EffectUse
    >>> use = EffectUse("io callback", "IOEffect", False, True, ("control flow",))
    >>> draw_effects(Effects("f", (use,))).tiles.label(0)
    'yes'
    """
    cells = []
    for row, use in enumerate(effects.uses):
        yes = (use.ordered, use.shardable, *(p in (use.allowed or ()) for p in _CONSTRUCTS))
        for column, (name, holds) in enumerate(zip(_COLUMNS, yes, strict=True)):
            if holds:
                cells.append(Cell(row, column, "yes", row, f"{use.name}: {name}"))
    lines = effects.explain().splitlines()
    return matrix(
        [use.name for use in effects.uses] or ["no effects"],
        list(_COLUMNS),
        cells,
        least=92.0,
        title=lines[0] if title is None else title,
        # Which constructs allow an effect is in the tiles.
        notes=[v.strip() for v in lines[1:] if not v.startswith("  allowed in")],
        alt=" ".join(lines),
        groups=max(len(effects.uses), 1),
        facts={"kind": "effects"},
    )


def draw_observed(observed: Observed, title: str | None = None) -> Picture:
    """The effects of one run: a row per device, a column per event, in the order in which they ran.

    >>> from shardviz.core.program.effects import Event
    >>> from shardviz.core.program.report import Report
    >>> one = Event(0, "io callback", "log", "scan", False, 0, "1.0")
    >>> draw_observed(Observed("f", (one,), Report("f", "CPU × 1"))).tiles.label(0)
    'log'
    """
    devices = list(observed.per_device())
    kinds = sorted({e.name for e in observed.events})
    cells = [
        Cell(devices.index(e.device), e.number, e.what, kinds.index(e.name), str(e))
        for e in observed.events[:MOST_EVENTS]
    ]
    lines = observed.explain().splitlines()
    left = len(observed.events) - MOST_EVENTS
    more = [f"{left:,} more events came after these."] if left > 0 else []
    promises = [line for line in lines[1:] if line[:1] in ("U", "O", "✗")]
    return matrix(
        ["unknown device" if d is None else f"device {d}" for d in devices] or ["no events"],
        [str(e.number + 1) for e in observed.events[:MOST_EVENTS]] or [""],
        cells,
        least=46.0,
        title=lines[0] if title is None else title,
        notes=[*promises, *more],
        alt=" ".join(lines),
        groups=max(len(kinds), 1),
        facts={"kind": "observed effects"},
    )


def draw_mesh_context(context: MeshContext, title: str | None = None) -> Picture:
    """A mesh context: a row per API, a column per slot of JAX, a tile where the API finds its mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> draw_mesh_context(MeshContext((make_mesh(x=2),))).tiles.label(0)
    'x=2'
    """
    cells = []
    for row, api in enumerate(APIS):
        slot = context.slot(api)
        if slot is not None:
            source = "abstract" if slot == "explicit" else slot
            column, mesh = list(_SLOTS).index(source), context.sees(api)
            hint = f"{api} finds {mesh} in {_SLOTS[source]}"
            cells.append(Cell(row, column, str(mesh), column, hint))
    lines = context.explain().splitlines()
    return matrix(
        list(APIS),
        list(_SLOTS.values()),
        cells,
        remarks=["" if context.sees(api) else "finds no mesh" for api in APIS],
        least=92.0,
        title=f"mesh in force: {context.mesh or 'none'}" if title is None else title,
        notes=lines,
        alt=" ".join(lines),
        groups=3,
        facts={"kind": "mesh context"},
    )


def mesh_context_text(context: MeshContext, width: int) -> str:
    """A mesh context: its explanation, then what each API sees."""
    rows = [f"{api}: {mesh or '–'}" for api, mesh in context.table().items()]
    return paragraphs([context.explain(), *rows], width)
