"""Pictures of effects: what each one allows, and the order in which they happened."""

from __future__ import annotations

from shardviz.core.program.effects.events import Observed
from shardviz.core.program.effects.values import Effects
from shardviz.picture.matrix import Cell, matrix
from shardviz.picture.shapes import Picture

_PLACES = ("control flow", "remat", "custom derivatives", "lowering")
_COLUMNS = ("ordered", "many devices", *_PLACES)
MOST_EVENTS = 64


def draw_effects(found: Effects, title: str | None = None) -> Picture:
    """The effects of a program: a row an effect, a tile for what it is or where it may stand.

    >>> from shardviz.core.program.effects.values import EffectUse
    >>> use = EffectUse("io callback", "IOEffect", False, True, ("control flow",))
    >>> draw_effects(Effects("f", (use,))).tiles.label(0)
    'yes'
    """
    cells = []
    for row, use in enumerate(found.uses):
        said = (use.ordered, use.shardable, *(p in (use.allowed or ()) for p in _PLACES))
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

    >>> from shardviz.core.program.effects.events import Event
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
