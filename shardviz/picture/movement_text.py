"""Movements as text: what is sent, the steps, and what every device has after each."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.program.movement import Movement
from shardviz.picture.movement import head_lines, is_drawn, step_lines
from shardviz.picture.page import paragraphs

MOST_ROWS, MOST_DEVICES = 40, 32
LEAST_WIDE = 8  # letters of a table
NOTHING, COMPLETE = "·", "■"
Table = tuple[str, list[str]]  # the name of a state, and a line per device


def movement_text(movement: Movement, width: int) -> str:
    """A movement: what it sends, its steps in words, and what every device has after
    each.

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
    head = [m.title, *head_lines(m), *step_lines(m, 12)]
    lines = paragraphs(head, width).split("\n")
    if is_drawn(m) and m.size <= MOST_DEVICES:
        lines += _tables(m, width, MOST_ROWS - len(lines))
    return "\n".join(lines)


def _tables(m: Movement, width: int, rows: int) -> list[str]:
    """The states in bands of tables side by side, in so many rows."""
    tables = _states(m)
    side = max(len(f"device {device}") for device in m.devices.tolist())
    wide = LEAST_WIDE
    for _, table in tables:
        wide = max(wide, len(table[0]) + 2)
    across = (width - side - 2) // wide
    if across < 1:
        return []
    most = across * max(1, rows // (m.size + 2))
    if len(tables) > most:
        tables = [*tables[: max(most - 1, 0)], tables[-1]]
    lines = []
    for first in range(0, len(tables), across):
        lines += ["", *_band(m, tables[first : first + across], side, wide)]
    if m.sums:
        words = f"all {m.size} devices, 2 the sum of two, {NOTHING} nothing"
        return [*lines, f"{COMPLETE} {words}"]
    return [*lines, f"{COMPLETE} there, {NOTHING} not there"]


def _states(m: Movement) -> list[Table]:
    """What each device has at the start and after each step."""
    letters = len(str(m.contributors))
    # Narrow cells have no blanks between them where there are many.
    blank = " " if m.chunks.count <= 16 or letters > 1 else ""
    signs = {0: NOTHING, m.contributors: COMPLETE}
    tables = []
    for number, counts in enumerate(m.counts()):
        name = f"step {number}"
        if number == 0:
            name = "start"
        elif number == len(m.steps):
            name = "end"
        rows = []
        for row in counts.tolist():
            cells = [f"{signs.get(count, str(count)):>{letters}}" for count in row]
            rows.append(blank.join(cells))
        tables.append((name, rows))
    return tables


def _band(m: Movement, tables: Sequence[Table], side: int, wide: int) -> list[str]:
    names = "".join(f"{name:<{wide}}" for name, _ in tables)
    lines = [f"{'':<{side}}  {names}".rstrip()]
    for row, device in enumerate(m.devices.tolist()):
        cells = "".join(f"{rows[row]:<{wide}}" for _, rows in tables)
        lines.append(f"{f'device {device}':<{side}}  {cells}".rstrip())
    return lines
