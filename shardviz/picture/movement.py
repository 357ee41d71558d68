"""The steps of a collective or a reshard: stills, film strips and text.

A row is a device and a column is a chunk. A cell is as full as its chunk is complete:
half of it where four of eight devices have contributed to a sum. Arrows run beside the
column of the chunk that they carry.
"""

from __future__ import annotations

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

MOST_PANELS = 8
MOST_COLUMNS = 256  # chunks that are drawn
MOST_LABELLED = 300  # cells
NO_CHUNK = 3  # the palest colour of verdicts
TITLE = 22.0
STRIP_WIDE = 1100.0
FACTS = {"kind": "movement"}


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
    head, last = titled(title, movement.title), len(movement.steps)
    if step is not None:
        step = check_size(step, "How many steps are done", ProgramError)
        if not 0 <= step <= last:
            raise ProgramError(
                f"There are {plural(last, 'step')}, so step= is 0 to {last:,}; got"
                f" {shown(step)}."
            )
    # Of too many devices or chunks there are only words.
    if not is_drawn(movement):
        lines = [*head_lines(movement), *step_lines(movement, 30)]
        rows = [(line, "text") for line in lines]
        return text_page(rows, title=head, alt=_alt(movement), facts=FACTS)
    counts = list(movement.counts())
    if step is not None:
        caption = _caption(movement, step)
        return _still(movement, step, counts[step], head, [caption])
    # The first stills, the last, and of many some between, at equal steps.
    chosen = range(last + 1)
    if last >= MOST_PANELS:
        parts = MOST_PANELS - 1
        chosen = sorted({round(n * last / parts) for n in range(MOST_PANELS)})
    stills = []
    for done in chosen:
        name = f"step {done + 1}"
        if not last:
            name = "nothing is sent"
        elif done == last:
            name = "end"
        stills.append(_still(movement, done, counts[done], name, []))
    notes = [*head_lines(movement), *step_lines(movement, 4)]
    return side_by_side(
        stills,
        title=head,
        notes=[*notes, *and_more(len(counts) - len(stills), "still")],
        alt=_alt(movement),
        width=STRIP_WIDE,
        facts=FACTS,
    )


def is_drawn(m: Movement) -> bool:
    """Whether there are few enough devices and chunks for a picture."""
    return m.size <= MOST_LISTED and m.chunks.count <= MOST_COLUMNS


def _caption(m: Movement, done: int) -> str:
    if done == len(m.steps):
        return f"After {plural(done, 'step')}: what every device has."
    step = m.steps[done]
    most = f"{bytes_text(step.bytes)} per device"
    return f"Step {done + 1} of {len(m.steps):,}, {most}: {step.words}"


@dataclass(frozen=True, eq=False)
class _Cells:
    """Where the cells of a still are, in points. Devices and chunks are in the order of
    the grid.

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
    def radius(self) -> float:
        """Of the corners of a cell."""
        return 2.0 if self.width > 6 else 0.0

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
    places, numbers = np.argsort(m.grid.member_at), np.arange(columns)
    # The chunks of a device stand in the order of the grid, as the devices do.
    if m.kind in REGULAR:
        block, part = np.divmod(numbers, m.chunks.parts)
        if pairs := m.chunks.pairs:
            at = places[block // pairs] * pairs + places[block % pairs]
        else:
            at = places[block]
        numbers = at * m.chunks.parts + part
    left = text_width(f"device {int(m.devices.max())}", 8.0) + 8
    longest = 0.0
    for number in range(columns):
        longest = max(longest, text_width(m.chunks.label(number), 8.0) + 4)
    wide, many, least = 380, 40, 16.0
    if alone:
        wide, many = 700, 64
    if m.sums:
        least = 24.0
    # Space above, width and height of a cell, space between columns and rows.
    if rows > 16 and columns <= 64:
        sizes = (4.0, 3.6, 3.6, 0.0, 0.0)
    elif rows > 16:
        sizes = (4.0, 1.8, 3.6, 0.0, 0.0)
    elif columns * (longest + 9) < wide:
        sizes = (16.0, max(least, longest), 15.0, 9.0, 3.0)
    elif columns <= many:
        sizes = (4.0, 10.0, 12.0, 5.0, 2.0)
    elif columns <= 80:
        sizes = (4.0, 5.0, 12.0, 1.0, 2.0)
    else:
        sizes = (4.0, 3.0, 12.0, 1.0, 2.0)
    return _Cells(places, numbers, left, *sizes)


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
        radius=cells.radius,
    )
    labels, high = [], cells.height / 2
    every = 1 if cells.height >= 8 else 8
    for device in m.grid.member_at[::every].tolist():
        y, name = float(cells.y(device)) + high, f"device {int(m.devices[device])}"
        labels.append(Label(cells.left - 6, y, name, "end", "tick"))
    if cells.top > 8:
        for number in range(m.chunks.count):
            x, name = float(cells.x(number)) + cells.width / 2, m.chunks.label(number)
            labels.append(Label(x, 7.0, name, role="tick"))
    step, top = None, PAD
    if done < len(m.steps):
        step = m.steps[done]
    if title:
        top += TITLE
    labelled = counts.size <= MOST_LABELLED and cells.height > 12
    inside = _filled(m, cells, counts, labelled, step)
    return page(
        empty,
        labels,
        title=title,
        notes=notes,
        size=cells.size,
        frames=_hosts(m, cells),
        colormap="verdicts",
        groups=4,
        alt=f"{title}. {_caption(m, done)}",
        panels=((PAD, top, inside),),
        facts={**FACTS, "step": done},
    )


def _hosts(m: Movement, cells: _Cells) -> list[Frame]:
    """A frame around the devices of each host, where each is in one piece."""
    hosts = m.hosts[m.grid.member_at]
    runs = np.split(np.arange(m.size), np.flatnonzero(np.diff(hosts)) + 1)
    if len(runs) < 2 or len(runs) != len(np.unique(hosts)) or cells.height < 8:
        return []
    pitch, frames = cells.height + cells.down, []
    for run in runs:
        top, high = cells.top + run[0] * pitch - cells.down / 2, len(run) * pitch
        name = f"host {int(hosts[run[0]])}"
        frames.append(Frame(0.0, top, cells.size[0], high, name))
    return frames


def _groups(m: Movement) -> tuple[np.ndarray, int]:
    """The colour of each chunk, and how many: what it is for, or where it is from."""
    numbers = np.arange(m.chunks.count)
    if m.chunks.pairs:
        return numbers % m.chunks.pairs, m.chunks.pairs
    if m.layouts:  # the colour is that of the new block
        blocks: dict[bytes, int] = {}
        for device in range(m.size):
            needed = m.at_end(device)
            numbers[needed] = blocks.setdefault(needed.tobytes(), len(blocks))
        return numbers, len(blocks)
    numbers = numbers // m.chunks.parts
    return numbers, int(numbers.max(initial=0)) + 1


def _filled(
    m: Movement,
    cells: _Cells,
    counts: np.ndarray,
    labelled: bool,
    step: MovementStep | None,
) -> Picture:
    """What is in the cells, and the arrows."""
    colour, groups = _groups(m)
    row, column = np.nonzero(counts)
    held, tiles, labels, hints = counts[row, column], no_tiles(), [], []
    triples = np.stack([row, column, held], 1).tolist()
    for device, chunk, count in triples:
        name = m.chunks.label(chunk)
        hint = f"device {int(m.devices[device])}: chunk {name}"
        # Of a sum, a cell says how many devices have added to it.
        if m.sums:
            name = f"{count}/{m.contributors}"
            hint += f", the sum of {count} of {m.contributors} devices"
        hints.append(hint)
        if labelled:
            x = float(cells.x(chunk)) + cells.width / 2
            y = float(cells.y(device)) + cells.height / 2
            labels.append(Label(x, y, name, role="tick", tone="text"))
    if hints:
        tiles = make_tiles(
            cells.x(column),
            cells.y(row),
            np.maximum(1.0, cells.width * held / m.contributors),
            cells.height,
            colour[column],
            m.devices[row],
            hint=hints,
            radius=cells.radius,
        )
    edges = None
    if step is not None and cells.across >= 5:
        edges = _arrows(m, cells, step)
    alt = f"{plural(len(row), 'chunk')} on {plural(m.size, 'device')}."
    look = {"alt": alt, "groups": groups, "edges": edges}
    return Picture(*cells.size, tiles, tuple(labels), **look)


def _arrows(m: Movement, cells: _Cells, step: MovementStep) -> Edges:
    """Beside the column of each chunk: out of the source, along, into the target.

    Thick between hosts and slices.
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
    far = np.array(["between" in link for link in m.link_names])
    width = np.tile(np.where(far[step.link], 1.9, 1.1), 5)
    parts = [np.concatenate(v) for v in (x0, y0, x1, y1)]
    return make_edges(*parts, group=MANY_GROUPS, width=width)


def _alt(m: Movement) -> str:
    return sentences([m.title, *head_lines(m), *step_lines(m, 8)])


def head_lines(m: Movement) -> list[str]:
    """What it sends and how long that takes at least."""
    lines = [f"{m.formula[0].upper()}{m.formula[1:]}: {m.filled_in}."]
    if m.seconds is not None:
        lines.append(f"At least {seconds_text(m.seconds)} ({m.rate_source}).")
    lines += map(str, m.notes)
    if m.summed_up:
        lines.append(m.summed_up)
    return lines


def step_lines(m: Movement, most: int) -> list[str]:
    """The steps in words; of many, the first of every run of like steps."""
    lines, number = [], 1
    if len(m.steps) <= most:
        return [f"Step {n}: {step.words}" for n, step in enumerate(m.steps, 1)]
    for step, times in m.runs():
        line = f"Step {number:,}: {step.words}"
        if times > 1:
            words = f"{step.words[0].lower()}{step.words[1:]}"
            line = f"Steps {number:,} to {number + times - 1:,}: at first, {words}"
        lines.append(line)
        number += times
    return [*lines[:most], *and_more(len(lines) - most, "line")]
