"""Effects: what each one allows, and the order in which they ran; and the mesh in force."""

from __future__ import annotations

from shardviz.core.layout.mesh_context import APIS, MeshContext
from shardviz.core.program.effects import Effects, Observed
from shardviz.picture.picture import Picture
from shardviz.picture.tables import Cell, matrix
from shardviz.picture.text_fit import paragraphs

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
