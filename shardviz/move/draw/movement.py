"""Draws the steps of a collective as stills, film strips and text.

Each row is one device, each column one chunk. The filled fraction of a cell shows how
complete the chunk is: half full if four of eight devices have contributed to a sum.
"""

from __future__ import annotations

import numpy as np

from shardviz.base.collective_kind import KINDS, Route
from shardviz.draw.page import (
    and_more,
    page,
    paragraphs,
    sentences,
    side_by_side,
    text_page,
    text_width,
    titled,
    widest,
)
from shardviz.draw.picture import Frame, Label, Picture, make_tiles
from shardviz.move.movement import Movement, check_step
from shardviz.move.words import movement as wording

# The most devices and chunks to draw; larger groups are only described in text.
MOST_DRAWN, MOST_COLUMNS = 16, 64
MOST_PANELS = 8
# Sizes of cells, in points.
TOP, LONG, HIGH, PITCH, GAP = 16.0, 26.0, 15.0, 18.0, 3.0
STRIP_WIDE = 900.0
# The most lines of text, and the least characters per table column.
MOST_ROWS, LEAST_WIDE = 40, 8


def draw_movement(
    movement: Movement, step: int | None = None, title: str | None = None
) -> Picture:
    """Draws a film strip of all steps, or a still of one step.

    Args:
        step: the number of completed steps; None for a film strip of at most
            MOST_PANELS stills.
        title: replaces the title of the movement.

    Raises:
        ProgramError: if there is no such step.

    >>> from shardviz.move.movement import collective_movement
    >>> gather = collective_movement("all-gather", 4, 4096)
    >>> len(draw_movement(gather).panels)
    4
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
        return text_page(rows, title=head, alt=alt)
    counts = list(movement.counts())
    if step is not None:
        caption = wording.caption(movement, step)
        return _still(movement, step, counts[step], head, [caption])
    # All stills or, if there are too many, evenly spaced ones from first to last.
    chosen = range(last + 1)
    if last >= MOST_PANELS:
        chosen = np.linspace(0, last, MOST_PANELS).round().astype(int).tolist()
    stills, before = [], counts[0]
    for steps_done in chosen:
        name, now = wording.still_title(movement, steps_done), counts[steps_done]
        stills.append(_still(movement, steps_done, now, name, [], now > before))
        before = now
    notes = and_more(len(counts) - len(stills), "still")
    return side_by_side(
        stills,
        title=head,
        notes=[
            *wording.chunk_legend(movement),
            *about,
            *wording.step_lines(movement, 4),
            *notes,
        ],
        alt=alt,
        width=STRIP_WIDE,
    )


def is_drawn(m: Movement) -> bool:
    """Whether the devices and chunks fit into a picture."""
    return m.size <= MOST_DRAWN and len(m.chunks.labels) <= MOST_COLUMNS


def _still(
    m: Movement,
    steps_done: int,
    counts: np.ndarray,
    title: str,
    notes: list[str],
    received: np.ndarray | None = None,
) -> Picture:
    """Draws the chunks on every device after `steps_done` steps.

    Args:
        received: bool [devices, chunks]: the chunks that get a dashed frame.
    """
    labels, chunks = [], len(m.chunks.labels)
    left = text_width(f"device {int(m.devices.max())}", 8.0) + 14
    # Chunk names only fit if there are few chunks; a single still has more space.
    least, space = widest(m.chunks.labels, 8.0) + 4, 700 if notes else 380
    named = chunks * least < space
    long = 10.0
    if named:
        long = max(least, LONG) if chunks * LONG < space else least
    # Order the devices and chunks of a torus by grid position.
    places, columns = m.method.places, np.arange(chunks)
    if m.method.grid.ndim > 1:
        columns = np.argsort(np.argsort(places[m.chunks.group], kind="stable"))
    # The chunks of an all-to-all already show where they come from and go to.
    headed = named and KINDS[m.kind].route is not Route.EXCHANGE
    top = TOP if headed else 0.0
    for device in m.method.grid.reshape(-1).tolist():
        y = top + PITCH * float(places[device]) + HIGH / 2
        name = f"device {int(m.devices[device])}"
        labels.append(Label(left - 6, y, name, "end", "tick"))
    if headed:
        for name, column in zip(m.chunks.labels, columns.tolist(), strict=True):
            x = left + column * (long + GAP) + long / 2
            labels.append(Label(x, 7.0, name, role="tick"))
    row, column = np.nonzero(counts)
    holdings, texts = counts[row, column], []
    for chunk, count in np.stack([column, holdings], 1).tolist():
        name = m.chunks.labels[chunk]
        # In a sum, a cell shows how many devices have contributed.
        if m.sums:
            name = f"{count}/{m.contributors}"
        texts.append(name * named)
    x, y = left + columns[column] * (long + GAP), top + PITCH * places[row]
    if (holdings < m.contributors).any():
        # Partly filled cells are too narrow for text, which then covers the whole cell.
        for text, at, high in zip(texts, x.tolist(), y.tolist(), strict=True):
            if text and text_width(text, 8.0) <= long:
                middle = at + long / 2, high + HIGH / 2
                labels.append(Label(*middle, text, role="tick", tone="text"))
        texts = [""] * len(texts)
    frames = []
    if received is not None:
        for at, high in np.stack([x, y], 1)[received[row, column]].tolist():
            frames.append(Frame(at - 1.5, high - 1.5, long + 3, HIGH + 3))
    tiles = make_tiles(
        x,
        y,
        np.maximum(1.0, long * holdings / m.contributors),
        HIGH,
        m.chunks.group[column],
        m.devices[row],
        text=texts,
        radius=2.0,
    )
    return page(
        tiles,
        labels,
        frames=frames,
        title=title,
        notes=notes,
        size=(left + chunks * (long + GAP), top + PITCH * m.size),
        colormap="blocks",
        groups=int(m.chunks.group.max(initial=0)) + 1,
        alt=f"{title}. {wording.caption(m, steps_done)}",
    )


# --- text -----------------------------------------------------------------------------


def movement_text(movement: Movement, width: int) -> str:
    """Describes the bytes sent and the steps, with a table of chunks after each step.

    Devices are rows and chunks are columns. Tables are placed side by side; if they
    need more than a screen, only the first tables and the last are shown.

    >>> from shardviz.move.movement import collective_movement
    >>> print(movement_text(collective_movement("reduce-scatter", 3, 12), 80))
    reduce-scatter that sends 8 B, 3 devices, ring
    (n - 1) / n × operand: 2 / 3 × 12 B = 8 B sent per device, in 2 steps.
    Step 1: Every device sends 1 chunk to the next device, which adds its own
      part; the sums then include 2 of 3 devices.
    Step 2: Every device sends 1 chunk to the next device, which adds its own
      part; the sums then include 3 of 3 devices.
    <BLANKLINE>
              start   after 1  end
    device 0  1 1 1   1 2 ·   ■ · ·
    device 1  1 1 1   · 1 2   · ■ ·
    device 2  1 1 1   2 · 1   · · ■
    ■ sum of all 3 devices, 2 sum of two, · nothing
    """
    m = movement
    head = [wording.title(m), *wording.head_lines(m), *wording.step_lines(m, 12)]
    lines = paragraphs(head, width).split("\n")
    if is_drawn(m):
        lines += _tables(m, width, MOST_ROWS - len(lines))
    return "\n".join(lines)


def _tables(m: Movement, width: int, rows: int) -> list[str]:
    """Lays out the tables of all states side by side, in at most `rows` lines."""
    tables = _states(m)
    names = ["", *(f"device {device}" for device in m.devices.tolist())]
    side = max(map(len, names))
    wide = LEAST_WIDE
    for table in tables:
        wide = max(wide, len(table[1]) + 2)
    across = (width - side - 2) // wide
    if across < 1:
        return []
    largest = across * max(1, rows // (m.size + 2))
    if len(tables) > largest:
        tables = [*tables[: max(largest - 1, 0)], tables[-1]]
    lines = []
    for first in range(0, len(tables), across):
        lines.append("")
        band = zip(names, *tables[first : first + across], strict=True)
        for name, *cells in band:
            row = "".join(f"{cell:<{wide}}" for cell in cells)
            lines.append(f"{name:<{side}}  {row}".rstrip())
    return [*lines, wording.sum_signs(m) if m.sums else wording.THERE]


def _states(m: Movement) -> list[list[str]]:
    """Returns a table for the start and after each step: a title, then device rows."""
    letters = len(str(m.contributors))
    # If there are many cells, leave out the spaces between them.
    blank = " " if len(m.chunks.labels) <= 16 or letters > 1 else ""
    signs = {0: "·", m.contributors: "■"}
    tables = []
    for number, counts in enumerate(m.counts()):
        table = [f"after {number}"]
        if number == 0:
            table = ["start"]
        elif number == len(m.steps):
            table = ["end"]
        for row in counts.tolist():
            cells = [f"{signs.get(count, str(count)):>{letters}}" for count in row]
            table.append(blank.join(cells))
        tables.append(table)
    return tables
