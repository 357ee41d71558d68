"""The steps of a collective or a reshard: stills, film strips and text.

A row is a device and a column is a chunk. A cell is as full as its chunk is complete: half of it
where four of eight devices have contributed to a sum. Arrows run beside the column of the chunk
that they carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardviz.core.errors import ProgramError
from shardviz.core.format import bytes_text, plural, seconds_text, shown
from shardviz.core.layout.parse import check_size
from shardviz.core.program.movement import Movement
from shardviz.core.program.movement_steps import MOST_LISTED, REGULAR, MovementStep
from shardviz.picture.page import (
    PAD,
    and_more,
    page,
    paragraphs,
    side_by_side,
    text_page,
    text_width,
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

MOST_PANELS = 8
MOST_COLUMNS = 256  # chunks that are drawn
MOST_LABELLED = 300  # cells
NO_CHUNK = 3  # the palest colour of verdicts
TITLE = 22.0
STRIP_WIDE = 1100.0


def draw_movement(movement: Movement, step: int | None = None, title: str | None = None) -> Picture:
    """A film strip of the steps, or a still of one.

    Args:
        step: how many steps are done; the arrows are those of the next one. None for a film strip
            of at most MOST_PANELS stills.
        title: instead of the movement's own.

    Raises:
        ProgramError: for a step that there is not.

    >>> from shardviz.core.program.movement import collective_movement
    >>> gather = collective_movement("all-gather", 4, 4096)
    >>> len(draw_movement(gather).panels), draw_movement(gather, step=3).facts["step"]
    (4, 3)
    """
    head = movement.title if title is None else title
    if step is not None:
        done = check_size(step, "How many steps are done", ProgramError)
        if not 0 <= done <= len(movement.steps):
            raise ProgramError(
                f"There are {plural(len(movement.steps), 'step')}, so step= is 0 to"
                f" {len(movement.steps):,}; got {shown(step)}."
            )
    if not _is_drawn(movement):
        lines = [(line, "text") for line in _summary(movement)]
        return text_page(lines, title=head, alt=_alt(movement), facts={"kind": "movement"})
    counts = list(movement.counts())
    if step is not None:
        return _still(movement, done, counts[done], head, _caption(movement, done))
    stills = [_still(movement, n, counts[n], _name(movement, n), []) for n in _chosen(movement)]
    left = len(counts) - len(stills)
    notes = [*_head_lines(movement), *_step_lines(movement, 4), *and_more(left, "still")]
    return side_by_side(
        stills, title=head, notes=notes, alt=_alt(movement), width=STRIP_WIDE,
        facts={"kind": "movement"},
    )  # fmt: skip


def _is_drawn(m: Movement) -> bool:
    return m.size <= MOST_LISTED and m.chunks.count <= MOST_COLUMNS


def _chosen(m: Movement) -> list[int]:
    """Which stills a film strip has: the first ones, the last, and some between."""
    last = len(m.steps)
    if last < MOST_PANELS:
        return list(range(last + 1))
    return sorted({round(n * last / (MOST_PANELS - 1)) for n in range(MOST_PANELS)})


def _name(m: Movement, done: int) -> str:
    if not len(m.steps):
        return "nothing is sent"
    return f"step {done + 1}" if done < len(m.steps) else "end"


def _caption(m: Movement, done: int) -> list[str]:
    if done == len(m.steps):
        return [f"After {plural(done, 'step')}: what every device has."]
    step = m.steps[done]
    most = f"{bytes_text(step.bytes)} per device"
    return [f"Step {done + 1} of {len(m.steps):,}, {most}: {step.words}"]


@dataclass(frozen=True, eq=False)
class _Cells:
    """Where the cells of a still are, in points. Devices and chunks are in the order of the grid.

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
    rows, columns = m.size, m.chunks.count
    places = np.argsort(m.grid.member_at)
    numbers = np.arange(columns)
    if m.kind in REGULAR:
        block, part = numbers // m.chunks.parts, numbers % m.chunks.parts
        pairs = m.chunks.pairs
        at = places[block // pairs] * pairs + places[block % pairs] if pairs else places[block]
        numbers = at * m.chunks.parts + part
    left = text_width(f"device {int(m.devices.max())}", 8.0) + 8
    longest = max(text_width(m.chunks.label(n), 8.0) for n in range(columns)) + 4
    if rows > 16:
        sizes = 4.0, 3.6 if columns <= 64 else 1.8, 3.6, 0.0, 0.0
    elif columns * (longest + 9) < (700 if alone else 380):
        sizes = 16.0, max(24.0 if m.sums else 16.0, longest), 15.0, 9.0, 3.0
    elif columns <= (64 if alone else 40):
        sizes = 4.0, 10.0, 12.0, 5.0, 2.0
    else:
        sizes = 4.0, 5.0 if columns <= 80 else 3.0, 12.0, 1.0, 2.0
    return _Cells(places, numbers, left, *sizes)


def _still(m: Movement, done: int, counts: np.ndarray, title: str, notes: list[str]) -> Picture:
    cells = _cells(m, bool(notes))
    row, column = (v.reshape(-1) for v in np.indices(counts.shape))
    labelled = counts.size <= MOST_LABELLED and cells.height > 12
    empty = make_tiles(
        cells.x(column), cells.y(row), cells.width, cells.height, NO_CHUNK,
        device=m.devices[row], radius=2.0 if cells.width > 6 else 0.0,
    )  # fmt: skip
    labels = _row_names(m, cells)
    if cells.top > 8:
        middle = cells.width / 2
        labels += [
            Label(float(cells.x(n)) + middle, 7.0, m.chunks.label(n), role="tick")
            for n in range(m.chunks.count)
        ]
    step = m.steps[done] if done < len(m.steps) else None
    inside = _filled(m, cells, counts, labelled, step)
    return page(
        empty, labels, title=title, notes=notes, size=cells.size, frames=_hosts(m, cells),
        colormap="verdicts", groups=4, alt=f"{title}. {' '.join(_caption(m, done))}",
        panels=((PAD, PAD + (TITLE if title else 0.0), inside),),
        facts={"kind": "movement", "step": done},
    )  # fmt: skip


def _row_names(m: Movement, cells: _Cells) -> list[Label]:
    every = 1 if cells.height >= 8 else 8
    middle = cells.height / 2
    return [
        Label(
            cells.left - 6, float(cells.y(n)) + middle, f"device {int(m.devices[n])}", "end", "tick"
        )
        for n in m.grid.member_at[::every].tolist()
    ]


def _hosts(m: Movement, cells: _Cells) -> list[Frame]:
    """A frame around the devices of each host, where they are several and each in one piece."""
    hosts = m.hosts[m.grid.member_at]
    runs = np.split(np.arange(m.size), np.flatnonzero(np.diff(hosts)) + 1)
    if len(runs) < 2 or len(runs) != len(np.unique(hosts)) or cells.height < 8:
        return []
    pitch = cells.height + cells.down
    return [
        Frame(
            0.0, cells.top + run[0] * pitch - cells.down / 2, cells.size[0], len(run) * pitch,
            f"host {int(hosts[run[0]])}",
        )
        for run in runs
    ]  # fmt: skip


def _groups(m: Movement) -> tuple[np.ndarray, int]:
    """The colour of each chunk, and how many there are: of what it is for, or where it is from."""
    numbers = np.arange(m.chunks.count)
    if m.chunks.pairs:
        return numbers % m.chunks.pairs, m.chunks.pairs
    if m.layouts:  # of the new block
        needed = {m.at_end(n).tobytes(): m.at_end(n) for n in range(m.size)}
        for block, some in enumerate(needed.values()):
            numbers[some] = block
        return numbers, len(needed)
    blocks = numbers // m.chunks.parts
    return blocks, int(blocks.max(initial=0)) + 1


def _filled(
    m: Movement, cells: _Cells, counts: np.ndarray, labelled: bool, step: MovementStep | None
) -> Picture:
    """What is in the cells, and the arrows."""
    colour, groups = _groups(m)
    row, column = np.nonzero(counts)
    there, whole = counts[row, column], m.contributors
    tiles = no_tiles()
    if len(row):
        tiles = make_tiles(
            cells.x(column), cells.y(row), np.maximum(1.0, cells.width * there / whole),
            cells.height, colour[column], m.devices[row],
            hint=[
                _hint(m, r, c, n)
                for r, c, n in zip(row.tolist(), column.tolist(), there.tolist(), strict=True)
            ],
            radius=2.0 if cells.width > 6 else 0.0,
        )  # fmt: skip
    labels = []
    if labelled:
        x, y = cells.x(column) + cells.width / 2, cells.y(row) + cells.height / 2
        texts = [_fraction(m, c, n) for c, n in zip(column.tolist(), there.tolist(), strict=True)]
        labels = [
            Label(float(a), float(b), text, role="tick", tone="text")
            for a, b, text in zip(x, y, texts, strict=True)
        ]
    edges = None if step is None or cells.across < 5 else _arrows(m, cells, step)
    alt = f"{plural(len(row), 'chunk')} on {plural(m.size, 'device')}."
    return Picture(*cells.size, tiles, tuple(labels), alt=alt, groups=groups, edges=edges)


def _fraction(m: Movement, chunk: int, count: int) -> str:
    return f"{count}/{m.contributors}" if m.sums else m.chunks.label(chunk)


def _hint(m: Movement, device: int, chunk: int, count: int) -> str:
    name = f"device {int(m.devices[device])}: chunk {m.chunks.label(chunk)}"
    return f"{name}, the sum of {count} of {m.contributors} devices" if m.sums else name


def _arrows(m: Movement, cells: _Cells, step: MovementStep) -> Edges:
    """Beside the column of each chunk: out of the source, along, into the target; thick between
    hosts and slices."""
    right = cells.x(step.chunk) + cells.width
    lane = right + cells.across * 0.62
    start = cells.y(step.source) + cells.height / 2
    end = cells.y(step.target) + cells.height / 2
    # Where a device both sends and receives in one column, the two ends are a little apart.
    shift = np.where(end > start, 2.0, -2.0)
    start, end = start + shift, end - shift
    head = min(3.0, cells.across * 0.5)
    x0 = [right, lane, lane, right + 1, right + 1]
    y0 = [start, start, end, end, end]
    x1 = [lane, lane, right + 1, right + 1 + head, right + 1 + head]
    y1 = [start, end, end, end - head * 0.7, end + head * 0.7]
    far = np.array(["between" in link for link in m.link_names])
    width = np.tile(np.where(far[step.link], 1.9, 1.1), 5)
    parts = [np.concatenate(v) for v in (x0, y0, x1, y1)]
    return make_edges(*parts, group=MANY_GROUPS, width=width)


def _alt(m: Movement) -> str:
    return " ".join([f"{m.title}.", *_head_lines(m), *_step_lines(m, 8)])


def _head_lines(m: Movement) -> list[str]:
    """What it sends and how long that takes at least."""
    lines = [f"{m.formula[0].upper()}{m.formula[1:]}: {m.filled_in}."]
    if m.seconds is not None:
        lines.append(f"At least {seconds_text(m.seconds)} ({m.rate_source}).")
    return [*lines, *m.notes, *([m.summed_up] if m.summed_up else [])]


def _step_lines(m: Movement, most: int) -> list[str]:
    """The steps in words; of many, the first of every run of like steps."""
    if len(m.steps) <= most:
        return [f"Step {n + 1}: {step.words}" for n, step in enumerate(m.steps)]
    lines, at = [], 1
    for step, times in m.runs():
        name = f"Step {at:,}" if times == 1 else f"Steps {at:,} to {at + times - 1:,}"
        first = "" if times == 1 else " at first,"
        words = f"{step.words[0].lower()}{step.words[1:]}" if first else step.words
        lines.append(f"{name}:{first} {words}")
        at += times
    return [*lines[:most], *and_more(len(lines) - most, "line")]


def _summary(m: Movement) -> list[str]:
    return [*_head_lines(m), *_step_lines(m, 30)]


MOST_TEXT_ROWS = 40
NOTHING, COMPLETE = "·", "■"


def movement_text(movement: Movement, width: int) -> str:
    """A movement: what it sends, its steps in words, and what every device has after each.

    Devices are rows and chunks are columns; tables stand side by side as far as they fit, and of
    more than a screen of them the first ones and the last are shown.

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
    lines = paragraphs([m.title, *_head_lines(m), *_step_lines(m, 12)], width).split("\n")
    if not _is_drawn(m) or m.size > 32:
        return "\n".join(lines)
    tables = _tables(m)
    side = max(len(f"device {int(d)}") for d in m.devices)
    wide = max(len(line) for table in tables for line in table[1]) + 2
    across = (width - side - 2) // max(wide, 8)
    if across < 1:
        return "\n".join(lines)
    bands = max(1, (MOST_TEXT_ROWS - len(lines)) // (m.size + 2))
    tables = _some(tables, across * bands)
    for first in range(0, len(tables), across):
        lines += ["", *_band(m, tables[first : first + across], side, max(wide, 8))]
    return "\n".join([*lines, _key(m)])


Table = tuple[str, list[str]]


def _tables(m: Movement) -> list[Table]:
    """The name of each state, and a line per device."""
    letters = len(str(m.contributors))
    blank = " " if m.chunks.count <= 16 or letters > 1 else ""

    def cell(count: int) -> str:
        text = NOTHING if not count else COMPLETE if count == m.contributors else str(count)
        return f"{text:>{letters}}"

    last = len(m.steps)
    found = []
    for number, counts in enumerate(m.counts()):
        name = "start" if not number else "end" if number == last else f"step {number}"
        found.append((name, [blank.join(map(cell, row)) for row in counts.tolist()]))
    return found


def _some(tables: Sequence[Table], most: int) -> list[Table]:
    """The first ones and the last."""
    if len(tables) <= most:
        return list(tables)
    return [*tables[: max(most - 1, 0)], tables[-1]]


def _band(m: Movement, tables: Sequence[Table], side: int, wide: int) -> list[str]:
    lines = [" " * (side + 2) + "".join(f"{name:<{wide}}" for name, _ in tables)]
    for row, device in enumerate(m.devices.tolist()):
        cells = "".join(f"{rows[row]:<{wide}}" for _, rows in tables)
        lines.append(f"{f'device {device}':<{side}}  {cells}")
    return [line.rstrip() for line in lines]


def _key(m: Movement) -> str:
    if m.sums:
        return f"{COMPLETE} all {m.size} devices, 2 the sum of two, {NOTHING} nothing"
    return f"{COMPLETE} there, {NOTHING} not there"
