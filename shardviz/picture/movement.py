"""The steps of a collective: stills, film strips and text.

A row is a device and a column is a chunk. A cell is as full as its chunk is complete:
half of it where four of eight devices have contributed to a sum. Arrows run beside the
column of the chunk that they carry.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shardviz.core.program.movement import Movement, check_step
from shardviz.core.program.movement_steps import MovementStep
from shardviz.core.wording import movement as wording
from shardviz.picture.page import (
    PAD,
    and_more,
    page,
    paragraphs,
    sentences,
    side_by_side,
    text_page,
    text_width,
    titled,
)
from shardviz.picture.picture import (
    MANY_GROUPS,
    Edges,
    Frame,
    Label,
    Picture,
    make_edges,
    make_tiles,
    no_tiles,
)

MOST_DRAWN, MOST_COLUMNS = 16, 64  # devices and chunks; of more there are only words
MOST_PANELS = 8
NO_CHUNK = 3  # the palest colour of verdicts
TITLE = 22.0
STRIP_WIDE = 1100.0
FACTS = {"kind": "movement"}
MOST_ROWS, LEAST_WIDE = 40, 8  # lines of text, and letters of a table in it


def draw_movement(
    movement: Movement, step: int | None = None, title: str | None = None
) -> Picture:
    """A film strip of the steps, or a still of one.

    Args:
        step: how many steps are done; the arrows are those of the next one. None for a
            film strip of at most MOST_PANELS stills.
        title: instead of the movement's own.

    Raises:
        ProgramError: for a step that there is not.

    >>> from shardviz.core.program.movement import collective_movement
    >>> gather = collective_movement("all-gather", 4, 4096)
    >>> len(draw_movement(gather).panels), draw_movement(gather, step=3).facts["step"]
    (4, 3)
    """
    head, last = titled(title, wording.title(movement)), len(movement.steps)
    if step is not None:
        step = check_step(movement, step)
    about = wording.head_lines(movement)
    alt = sentences([wording.title(movement), *about, *wording.step_lines(movement, 8)])
    if not is_drawn(movement):
        rows = []
        for line in [*about, *wording.step_lines(movement, 30)]:
            rows.append((line, "text"))
        return text_page(rows, title=head, alt=alt, facts=FACTS)
    counts = list(movement.counts())
    if step is not None:
        caption = wording.caption(movement, step)
        return _still(movement, step, counts[step], head, [caption])
    # The first stills, the last, and of many some between, at equal steps.
    chosen = range(last + 1)
    if last >= MOST_PANELS:
        chosen = np.linspace(0, last, MOST_PANELS).round().astype(int).tolist()
    stills = []
    for done in chosen:
        name = wording.still_title(movement, done)
        stills.append(_still(movement, done, counts[done], name, []))
    more = and_more(len(counts) - len(stills), "still")
    return side_by_side(
        stills,
        title=head,
        notes=[*about, *wording.step_lines(movement, 4), *more],
        alt=alt,
        width=STRIP_WIDE,
        facts=FACTS,
    )


def is_drawn(m: Movement) -> bool:
    """Whether there are few enough devices and chunks for a picture."""
    return m.size <= MOST_DRAWN and len(m.chunks.labels) <= MOST_COLUMNS


class _Cells(NamedTuple):
    """Where the cells of a still are, in points, in the order of the grid.

    Attributes:
        rows, columns: int64: the row of each device, and the column of each chunk.
        left: of the first column.
        top: of the first row.
        width, height: of a cell.
        across, down: between cells.
    """

    rows: np.ndarray
    columns: np.ndarray
    left: float
    top: float
    width: float
    height: float
    across: float
    down: float

    def x(self, chunk: Any) -> Any:
        """The left edges of chunks."""
        return self.left + self.columns[chunk] * (self.width + self.across)

    def y(self, device: Any) -> Any:
        """The top edges of devices."""
        return self.top + self.rows[device] * (self.height + self.down)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all cells and what is beside them."""
        return (
            self.left + len(self.columns) * (self.width + self.across) + 4,
            self.top + len(self.rows) * (self.height + self.down) + 2,
        )


def _cells(m: Movement, alone: bool) -> _Cells:
    """The cells of a still, larger where it stands alone and not in a film strip."""
    rows, count = m.method.places, len(m.chunks.labels)
    columns = np.arange(count)
    # The chunks of a torus stand in the order of the grid, as the devices do.
    if m.method.grid.ndim > 1:
        columns = np.argsort(np.argsort(rows[m.chunks.group], kind="stable"))
    left = text_width(f"device {int(m.devices.max())}", 8.0) + 8
    longest = 24.0 if m.sums else 16.0
    for label in m.chunks.labels:
        longest = max(longest, text_width(label, 8.0) + 4)
    # Space above, width and height of a cell, space between columns and rows.
    sizes = (4.0, 10.0, 12.0, 5.0, 2.0)
    if count * (longest + 9) < (700 if alone else 380):
        sizes = (16.0, longest, 15.0, 9.0, 3.0)
    return _Cells(rows, columns, left, *sizes)


def _still(
    m: Movement, done: int, counts: np.ndarray, title: str, notes: list[str]
) -> Picture:
    cells = _cells(m, alone=bool(notes))
    row, column = np.indices(counts.shape).reshape(2, -1)
    empty = make_tiles(
        cells.x(column),
        cells.y(row),
        cells.width,
        cells.height,
        NO_CHUNK,
        device=m.devices[row],
        radius=2.0,
    )
    labels = []
    for device in m.method.grid.reshape(-1).tolist():
        y = float(cells.y(device)) + cells.height / 2
        name = f"device {int(m.devices[device])}"
        labels.append(Label(cells.left - 6, y, name, "end", "tick"))
    named = cells.top > 8
    if named:
        for number, name in enumerate(m.chunks.labels):
            x = float(cells.x(number)) + cells.width / 2
            labels.append(Label(x, 7.0, name, role="tick"))
    step, top = None, PAD
    if done < len(m.steps):
        step = m.steps[done]
    if title:
        top += TITLE
    # A picture has one set of colours, so what is in the cells is one of its own.
    inside = _filled(m, cells, counts, named, step)
    return page(
        empty,
        labels,
        title=title,
        notes=notes,
        size=cells.size,
        frames=_hosts(m, cells),
        colormap="verdicts",
        groups=4,
        alt=f"{title}. {wording.caption(m, done)}",
        panels=((PAD, top, inside),),
        facts={**FACTS, "step": done},
    )


def _hosts(m: Movement, cells: _Cells) -> list[Frame]:
    """A frame around the devices of each host, where each is in one piece."""
    hosts = m.hosts[m.method.grid.reshape(-1)]
    runs = np.split(np.arange(m.size), np.flatnonzero(np.diff(hosts)) + 1)
    if len(runs) < 2 or len(runs) != len(np.unique(hosts)):
        return []
    pitch, frames = cells.height + cells.down, []
    for run in runs:
        top, high = cells.top + run[0] * pitch - cells.down / 2, len(run) * pitch
        name = f"host {int(hosts[run[0]])}"
        frames.append(Frame(0.0, top, cells.size[0], high, name))
    return frames


def _filled(
    m: Movement,
    cells: _Cells,
    counts: np.ndarray,
    labelled: bool,
    step: MovementStep | None,
) -> Picture:
    """What is in the cells, and the arrows."""
    row, column = np.nonzero(counts)
    held, tiles, labels, hints = counts[row, column], no_tiles(), [], []
    for device, chunk, count in np.stack([row, column, held], 1).tolist():
        hints.append(wording.held_chunk(m, device, chunk, count))
        if labelled:
            name = m.chunks.labels[chunk]
            # Of a sum, a cell says how many devices have added to it.
            if m.sums:
                name = f"{count}/{m.contributors}"
            x = float(cells.x(chunk)) + cells.width / 2
            y = float(cells.y(device)) + cells.height / 2
            labels.append(Label(x, y, name, role="tick", tone="text"))
    if hints:
        tiles = make_tiles(
            cells.x(column),
            cells.y(row),
            np.maximum(1.0, cells.width * held / m.contributors),
            cells.height,
            m.chunks.group[column],
            m.devices[row],
            hint=hints,
            radius=2.0,
        )
    edges = None
    if step is not None:
        edges = _arrows(cells, step)
    groups = int(m.chunks.group.max(initial=0)) + 1
    alt = wording.title(m)
    return Picture(
        *cells.size, tiles, tuple(labels), alt=alt, groups=groups, edges=edges
    )


def _arrows(cells: _Cells, step: MovementStep) -> Edges:
    """Beside the column of each chunk: out of the source, along, into the target.

    Thick over the network.
    """
    right = cells.x(step.chunk) + cells.width
    lane = right + cells.across * 0.62
    start = cells.y(step.source) + cells.height / 2
    end = cells.y(step.target) + cells.height / 2
    # Where a device both sends and receives in one column, the two ends are a little
    # apart.
    shift = np.where(end > start, 2.0, -2.0)
    start, end = start + shift, end - shift
    head = min(3.0, cells.across * 0.5)
    x0 = [right, lane, lane, right + 1, right + 1]
    y0 = [start, start, end, end, end]
    x1 = [lane, lane, right + 1, right + 1 + head, right + 1 + head]
    y1 = [start, end, end, end - head * 0.7, end + head * 0.7]
    width = np.tile(np.where(step.network, 1.9, 1.1), 5)
    parts = [np.concatenate(lines) for lines in (x0, y0, x1, y1)]
    return make_edges(*parts, group=MANY_GROUPS, width=width)


# --- text -----------------------------------------------------------------------------


def movement_text(movement: Movement, width: int) -> str:
    """What it sends, its steps in words, and what every device has after each.

    Devices are rows and chunks are columns; tables stand side by side as far as they
    fit, and of more than a screen of them the first ones and the last are shown.

    >>> from shardviz.core.program.movement import collective_movement
    >>> print(movement_text(collective_movement("reduce-scatter", 3, 12), 80))
    reduce-scatter of 12 B, 3 devices, ring
    (n - 1) / n × bytes: 2 / 3 × 12 B = 8 B sent per device, in 2 steps.
    Step 1: Every device sends 1 chunk to its right neighbour, which adds its own
      part: sums of 2 of 3 devices.
    Step 2: Every device sends 1 chunk to its right neighbour, which adds its own
      part: sums of 3 of 3 devices.
    <BLANKLINE>
              start   step 1  end
    device 0  1 1 1   1 2 ·   ■ · ·
    device 1  1 1 1   · 1 2   · ■ ·
    device 2  1 1 1   2 · 1   · · ■
    ■ all 3 devices, 2 the sum of two, · nothing
    """
    m = movement
    head = [wording.title(m), *wording.head_lines(m), *wording.step_lines(m, 12)]
    lines = paragraphs(head, width).split("\n")
    if is_drawn(m):
        lines += _tables(m, width, MOST_ROWS - len(lines))
    return "\n".join(lines)


def _tables(m: Movement, width: int, rows: int) -> list[str]:
    """The states in bands of tables side by side, in so many rows."""
    tables = _states(m)
    names = ["", *(f"device {device}" for device in m.devices.tolist())]
    side = max(map(len, names))
    wide = LEAST_WIDE
    for table in tables:
        wide = max(wide, len(table[1]) + 2)
    across = (width - side - 2) // wide
    if across < 1:
        return []
    most = across * max(1, rows // (m.size + 2))
    if len(tables) > most:
        tables = [*tables[: max(most - 1, 0)], tables[-1]]
    lines = []
    for first in range(0, len(tables), across):
        lines.append("")
        band = zip(names, *tables[first : first + across], strict=True)
        for name, *cells in band:
            row = "".join(f"{cell:<{wide}}" for cell in cells)
            lines.append(f"{name:<{side}}  {row}".rstrip())
    return [*lines, wording.sum_signs(m) if m.sums else wording.THERE]


def _states(m: Movement) -> list[list[str]]:
    """At the start and after each step: its name, then what each device has."""
    letters = len(str(m.contributors))
    # Narrow cells have no blanks between them where there are many.
    blank = " " if len(m.chunks.labels) <= 16 or letters > 1 else ""
    signs = {0: "·", m.contributors: "■"}
    tables = []
    for number, counts in enumerate(m.counts()):
        table = [f"step {number}"]
        if number == 0:
            table = ["start"]
        elif number == len(m.steps):
            table = ["end"]
        for row in counts.tolist():
            cells = [f"{signs.get(count, str(count)):>{letters}}" for count in row]
            table.append(blank.join(cells))
        tables.append(table)
    return tables
