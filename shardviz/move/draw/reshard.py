"""Draws a reshard: a matrix of bytes sent, and a table of the arrays that move.

Rows of the matrix send and columns receive. A row is a device or, if there are many
devices, one or more hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardviz.base.format import Fold, bytes_text
from shardviz.draw.page import (
    and_more,
    page,
    paragraphs,
    side_by_side,
    text_page,
    titled,
    unfolded,
    widest,
)
from shardviz.draw.picture import (
    NO_DEVICE,
    Label,
    Picture,
    make_tiles,
)
from shardviz.draw.tables import Bar, Table
from shardviz.move.reshard import Reshard, ReshardRow
from shardviz.move.words import reshard as wording

# The most rows and columns of a matrix.
MOST_SIDE = 64
MOST_ROWS, MOST_LINES, MOST_SHADES = 12, 20, 6
GAP, TOP = 1.0, 16.0
HEADS = ("bytes moved", "array", "type and shape", "sharding", "amounts to")


def draw_reshard(reshard: Reshard, title: str | None = None) -> Picture:
    """Draws the matrix of bytes sent, and the arrays that move the most bytes."""
    lines = wording.summary(reshard)
    head = titled(title, wording.title(reshard))
    notes = [*lines[1:], *wording.left_behind(reshard)]
    about = {"title": head, "alt": " ".join(lines)}
    if not len(reshard.sends):
        return text_page([(line, "text") for line in notes], **about)
    folds = wording.folds(reshard)
    hidden = and_more(len(unfolded(folds[MOST_ROWS:])), "array")
    arrays = _table(folds[:MOST_ROWS]).picture(notes=hidden)
    panels = [_matrix(reshard), arrays]
    return side_by_side(panels, notes=notes, width=1.0, **about)


def reshard_text(reshard: Reshard, width: int, full: bool = False) -> str:
    """Describes the bytes sent and the peak memory, then lists the arrays.

    Args:
        width: characters per line.
        full: list every array on a separate line, even arrays that do not move.
    """
    lines = [*wording.summary(reshard), *wording.left_behind(reshard)]
    folds = wording.folds(reshard)
    shown = folds[:MOST_LINES]
    if full:
        shown = [Fold(((row.path,),), (row,)) for row in reshard.rows]
    # If there is only one array, the sentences above already describe it.
    if len(reshard.rows) > 1 and shown:
        lines += [wording.LARGEST_FIRST, *_table(shown).lines()]
    if len(reshard.rows) > 1 and shown and not full:
        for hidden in and_more(len(unfolded(folds[MOST_LINES:])), "array"):
            lines.append(f"  {hidden}")
        still = len(reshard.rows) - len(unfolded(folds))
        if still:
            lines.append(f"  {wording.not_sent(still)}")
    return paragraphs(lines, width)


def _table(folds: Sequence[Fold[ReshardRow]]) -> Table:
    rows = []
    for layer_rows in folds:
        short, before, after, kind = wording.words(layer_rows.items[0])
        specs = before
        if before != after:
            specs += f" → {after}"
        amount = f"{layer_rows.count}{bytes_text(layer_rows.items[0].bytes_moved)}"
        words = (layer_rows.name, short, specs, kind or "stays")
        rows.append(Bar(wording.fold_bytes(layer_rows), amount, words))
    return Table(HEADS, tuple(rows))


class _Side(NamedTuple):
    """The labels of a square matrix, the same for rows and columns.

    Attributes:
        short: the short label of each row: `3`, or `0–1` for several devices or hosts.
        names: the full label of each row: `device 3`, `hosts 0–1`.
        of: int64 [devices]: the row that each device belongs to.
        single: whether each row is one device.
    """

    short: list[str]
    names: list[str]
    of: np.ndarray
    single: bool


def _side(reshard: Reshard) -> _Side:
    ids, hosts = reshard.device_ids, np.unique(reshard.hosts)
    noun, numbers, row = "device", ids, np.arange(len(ids))
    # With many devices, a row is a host; with many hosts, a row is several hosts.
    if len(ids) > MOST_SIDE and len(hosts) > 1:
        noun, numbers, row = "host", hosts, np.searchsorted(hosts, reshard.hosts)
    per_row = -(-len(numbers) // MOST_SIDE)
    short, names = [], []
    for first in range(0, len(numbers), per_row):
        run = numbers[first : first + per_row]
        short.append(str(run[0]))
        names.append(f"{noun} {run[0]}")
        if len(run) > 1:
            short[-1] += f"–{run[-1]}"
            names[-1] = f"{noun}s {short[-1]}"
    return _Side(short, names, row // per_row, len(short) == len(ids))


def _matrix(reshard: Reshard) -> Picture:
    side = _side(reshard)
    names, count = side.names, len(side.names)
    source, target, amount = reshard.sends.T
    sums = np.zeros(count * count, np.int64)
    np.add.at(sums, side.of[source] * count + side.of[target], amount)
    shade, legend = _shades(sums)
    cell = 640.0 / count
    if count <= 16:
        cell = 44.0 if count <= 8 else 20.0
    left_edge, pitch = widest(names, 9.0) + 10, cell + GAP
    used = np.flatnonzero(sums)
    row, column = np.divmod(used, count)
    texts = list(map(bytes_text, sums[used].tolist()))
    if widest(texts, 8.0) + 6 > cell:
        texts = [""] * len(texts)
    tiles = make_tiles(
        left_edge + column * pitch,
        TOP + row * pitch,
        cell,
        cell,
        shade[used],
        reshard.device_ids[row] if side.single else NO_DEVICE,
        text=texts,
        radius=2.0 if cell > 8 else 0.0,
    )
    note, width = wording.ROWS_SEND, count * pitch
    if not side.single:
        note = f"{note} {wording.WITHIN}"
    return page(
        tiles,
        _names(side, cell, left_edge),
        legend=legend,
        size=(left_edge + width, TOP + width),
        notes=[note],
        groups=len(legend) + 1,
        colormap="ramp",
        alt=note,
    )


def _shades(sums: np.ndarray) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """Returns the shade of each amount (0 for nothing), and a legend."""
    distinct = np.unique(sums[sums > 0])
    ends = distinct
    if len(distinct) >= MOST_SHADES:
        target_side = np.geomspace(distinct[0], distinct[-1], MOST_SHADES)[1:]
        # The upper bound of each shade is the largest actual amount in its range.
        at = np.searchsorted(distinct, target_side, "right") - 1
        at[-1] = len(distinct) - 1
        ends = np.unique(distinct[at])
    legend = []
    for number, end in enumerate(ends.tolist(), 1):
        words = bytes_text(end)
        if len(ends) < len(distinct):
            words = f"up to {words}"
        legend.append((number, words))
    shade = np.where(sums > 0, np.searchsorted(ends, sums, "left") + 1, 0)
    return shade, legend


def _names(side: _Side, cell: float, left_edge: float) -> list[Label]:
    """Labels as many columns and rows as there is space for."""
    pitch, count, labels = cell + GAP, len(side.short), []
    needed = widest(side.short, 8.0) + 6
    for n in range(0, count, max(1, -int(-needed // pitch))):
        x = left_edge + n * pitch + cell / 2
        labels.append(Label(x, 6, side.short[n], role="tick"))
    for n in range(0, count, max(1, -int(-11.0 // pitch))):
        y = TOP + n * pitch + cell / 2
        labels.append(Label(left_edge - 6, y, side.names[n], "end", "tick"))
    return labels
