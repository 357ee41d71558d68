"""Pictures of effects: what each one allows, and the order in which they happened."""

from __future__ import annotations

from shardviz.core.layout.mesh_context import APIS, MeshContext
from shardviz.core.program.effects import Effects, Observed
from shardviz.picture.picture import Picture
from shardviz.picture.tables import Cell, matrix

_CONSTRUCTS = ("control flow", "remat", "custom derivatives", "lowering")
_COLUMNS = ("ordered", "many devices", *_CONSTRUCTS)
MOST_EVENTS = 64


def draw_effects(found: Effects, title: str | None = None) -> Picture:
    """The effects of a program: a row an effect, a tile for what it is or where it may stand.

    >>> from shardviz.core.program.effects import EffectUse
    >>> use = EffectUse("io callback", "IOEffect", False, True, ("control flow",))
    >>> draw_effects(Effects("f", (use,))).tiles.label(0)
    'yes'
    """
    cells = []
    for row, use in enumerate(found.uses):
        said = (use.ordered, use.shardable, *(p in (use.allowed or ()) for p in _CONSTRUCTS))
        for column, (name, yes) in enumerate(zip(_COLUMNS, said, strict=True)):
            if yes:
                cells.append(Cell(row, column, "yes", row, f"{use.name}: {name}"))
    words = found.explain().splitlines()
    return matrix(
        [use.name for use in found.uses] or ["no effects"],
        list(_COLUMNS),
        cells,
        least=92.0,
        title=words[0] if title is None else title,
        # Where each may stand is in the tiles.
        notes=[w.strip() for w in words[1:] if not w.startswith("  allowed in")],
        alt=" ".join(words),
        groups=max(len(found.uses), 1),
        facts={"kind": "effects"},
    )


def draw_observed(found: Observed, title: str | None = None) -> Picture:
    """The effects of one run: a row a device, a column an event, in the order they came.

    >>> from shardviz.core.program.effects import Event
    >>> from shardviz.core.program.report import Report
    >>> one = Event(0, "io callback", "log", "scan", False, 0, "1.0")
    >>> draw_observed(Observed("f", (one,), Report("f", "CPU × 1"))).tiles.label(0)
    'log'
    """
    devices = list(found.per_device())
    kinds = sorted({e.name for e in found.events})
    cells = [
        Cell(devices.index(e.device), e.number, e.what, kinds.index(e.name), str(e))
        for e in found.events[:MOST_EVENTS]
    ]
    words = found.explain().splitlines()
    left = len(found.events) - MOST_EVENTS
    more = [f"{left:,} more events came after these."] if left > 0 else []
    promises = [line for line in words[1:] if line[:1] in ("U", "O", "✗")]
    return matrix(
        ["some device" if d is None else f"device {d}" for d in devices] or ["no events"],
        [str(e.number + 1) for e in found.events[:MOST_EVENTS]] or [""],
        cells,
        least=46.0,
        title=words[0] if title is None else title,
        notes=[*promises, *more],
        alt=" ".join(words),
        groups=max(len(kinds), 1),
        facts={"kind": "observed effects"},
    )


_SLOTS = {"abstract": "abstract mesh", "current": "jax.set_mesh", "legacy": "with mesh:"}


def draw_mesh_context(context: MeshContext, title: str | None = None) -> Picture:
    """A mesh context: a row an API, a column a slot of JAX, a tile where the API finds its mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> draw_mesh_context(MeshContext((make_mesh(x=2),))).tiles.label(0)
    'x=2'
    """
    cells = []
    for row, api in enumerate(APIS):
        slot = context.slot(api)
        if slot is not None:
            found = "abstract" if slot == "explicit" else slot
            column, mesh = list(_SLOTS).index(found), context.sees(api)
            hint = f"{api} finds {mesh} in {_SLOTS[found]}"
            cells.append(Cell(row, column, str(mesh), column, hint))
    said = context.explain().splitlines()
    return matrix(
        list(APIS),
        list(_SLOTS.values()),
        cells,
        remarks=["" if context.sees(api) else "finds no mesh" for api in APIS],
        least=92.0,
        title=f"mesh in force: {context.mesh or 'none'}" if title is None else title,
        notes=said,
        alt=" ".join(said),
        groups=3,
        facts={"kind": "mesh context"},
    )
