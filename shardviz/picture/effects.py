"""Effects: what each effect of a program allows, and the order in which they ran."""

from __future__ import annotations

from shardviz.core.program.effects import Effects, Observed
from shardviz.core.wording.effects import promises
from shardviz.picture.page import and_more, sentences, titled
from shardviz.picture.picture import Picture
from shardviz.picture.tables import Cell, matrix

MOST_EVENTS = 64
CONSTRUCTS = ("control flow", "remat", "custom derivatives", "lowering")
COLUMNS = ("ordered", "many devices", *CONSTRUCTS)


def draw_effects(effects: Effects, title: str | None = None) -> Picture:
    """The effects of a program: a row each, a tile per property and construct."""
    names, cells = [], []
    for row, use in enumerate(effects.uses):
        names.append(use.name)
        allowed = use.allowed or ()
        holds = {"ordered": use.ordered, "many devices": use.shardable}
        for column, name in enumerate(COLUMNS):
            if holds.get(name, name in allowed):
                cells.append(Cell(row, column, "yes", row, f"{use.name}: {name}"))
    lines = effects.explain().splitlines()
    return matrix(
        names or ["no effects"],
        COLUMNS,
        cells,
        least=92.0,
        title=titled(title, lines[0]),
        notes=map(str.strip, lines[1:]),
        alt=sentences(lines),
        groups=max(len(effects.uses), 1),
        facts={"kind": "effects"},
    )


def draw_observed(observed: Observed, title: str | None = None) -> Picture:
    """The effects of one run: a row per device, a column per event in their order."""
    devices = list(observed.per_device())
    kinds = sorted({event.name for event in observed.events})
    columns, cells, rows = [], [], []
    for event in observed.events[:MOST_EVENTS]:
        columns.append(str(event.number + 1))
        row, group = devices.index(event.device), kinds.index(event.name)
        cells.append(Cell(row, event.number, event.what, group, str(event)))
    for device in devices:
        rows.append("unknown device" if device is None else f"device {device}")
    lines = observed.explain().splitlines()
    return matrix(
        rows or ["no events"],
        columns or [""],
        cells,
        least=46.0,
        title=titled(title, lines[0]),
        # The events themselves are the tiles.
        notes=[
            *promises(observed),
            *and_more(len(observed.events) - MOST_EVENTS, "event"),
        ],
        alt=sentences(lines),
        groups=max(len(kinds), 1),
        facts={"kind": "observed effects"},
    )
