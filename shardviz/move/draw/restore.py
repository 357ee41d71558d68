"""Draws the reads of a checkpoint restore: a table of processes and one of arrays."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from shardviz.base.format import Fold, bytes_text, fold, plural
from shardviz.draw.page import (
    and_more,
    note,
    paragraphs,
    sentences,
    side_by_side,
    titled,
    unfolded,
)
from shardviz.draw.picture import Label, Picture
from shardviz.draw.tables import HIGHLIGHTED, NORMAL, Bar, Table, short_type
from shardviz.move.restore import ProcessReads, Restore, RestoreRow
from shardviz.move.words import restore as wording

MOST_ARRAYS, MOST_PROCESSES = 24, 16
# A row is highlighted if it reads more than this many bytes per byte needed.
MUCH = 1.2
PROCESS_HEADS = ("read", "process", "chunks", "times needed")
ARRAY_HEADS = ("read", "array", "type and shape", "saved → wanted", "chunks", "")
LEGEND = ((NORMAL, "as needed"), (HIGHLIGHTED, wording.NOT_NEEDED))


def draw_restore(restore: Restore, title: str | None = None) -> Picture:
    """Draws the bytes that each process reads, and the bytes read of each array."""
    folds = _folds(restore)
    more = and_more(len(restore.processes) - MOST_PROCESSES, "row")
    processes = _processes(restore.processes[:MOST_PROCESSES]).picture(notes=more)
    hidden = and_more(len(unfolded(folds[MOST_ARRAYS:])), "array")
    arrays = _arrays(folds[:MOST_ARRAYS]).picture(legend=LEGEND, notes=hidden)
    # Problems come first, in red.
    notes: list[str | Label] = []
    for problem in wording.problems(restore):
        notes.append(note(problem, "bad"))
    return side_by_side(
        [processes, arrays],
        title=titled(title, wording.title(restore)),
        notes=[*notes, *wording.notes(restore)],
        alt=sentences(_lines(restore, full=False)),
        width=1.0,
    )


def restore_text(restore: Restore, width: int, full: bool = False) -> str:
    """Lists problems, then the bytes read by each process and of each array.

    Args:
        width: characters per line.
        full: list every array and process on a separate line. By default, arrays that
            differ only in their layer number share a line, and the smallest arrays are
            only counted.
    """
    return paragraphs(_lines(restore, full), width)


def _lines(restore: Restore, full: bool) -> list[str]:
    folds, processes = _folds(restore), restore.processes
    hidden = and_more(len(unfolded(folds[MOST_ARRAYS:])), "array")
    more = and_more(len(processes) - MOST_PROCESSES, "row")
    if full:
        folds = [Fold(((row.path,),), (row,)) for row in unfolded(folds)]
        hidden = more = []
    else:
        folds, processes = folds[:MOST_ARRAYS], processes[:MOST_PROCESSES]
    lines = [wording.title(restore), *wording.problems(restore, full)]
    lines += [wording.PROCESSES_FIRST, *_processes(processes).lines()]
    lines += [f"  {line}" for line in more]
    if folds:
        lines += [wording.LARGEST_FIRST, *_arrays(folds).lines()]
    lines += [f"  {line}" for line in hidden]
    return [*lines, *wording.notes(restore)]


def _processes(processes: Sequence[ProcessReads]) -> Table:
    rows = []
    for p in processes:
        needed = wording.times(p.bytes_at_least, p.bytes_at_most, p.bytes_needed)
        if p.bytes_needed:
            needed += f" of {bytes_text(p.bytes_needed)}"
        words = (
            f"process {p.process}",
            f"{plural(p.chunks, 'chunk')} in {plural(p.reads, 'read')}",
            needed,
        )
        read = _range(p.bytes_at_least, p.bytes_at_most)
        colour = _colour(p.bytes_at_most, p.bytes_needed)
        rows.append(Bar(p.bytes_at_most, read, words, colour))
    return Table(PROCESS_HEADS, tuple(rows))


def _arrays(folds: Sequence[Fold[RestoreRow]]) -> Table:
    rows = []
    for layer_rows in folds:
        row, saved = layer_rows.items[0], layer_rows.items[0].saved
        before = str(saved.spec or saved.kind.replace("array", "unknown"))
        chunks = 1
        for count in saved.chunk_counts:
            chunks *= count
        words = (
            layer_rows.name,
            short_type(saved.dtype, saved.shape),
            f"{before} → {row.spec or 'unknown'}",
            f"{plural(chunks, 'chunk')} of {list(saved.chunk_shape)}",
        )
        # The array's problem is listed above the table.
        if row.reads is None:
            rows.append(Bar(None, "✗", (*words, "not read"), tone="bad"))
            continue
        least, needed = int(row.reads.at_least.sum()), int(row.reads.needed.sum())
        largest = row.bytes_at_most
        amount = f"{layer_rows.count}{_range(least, largest)}"
        remark = wording.times(least, largest, needed) + wording.converted(row)
        colour = _colour(largest, needed)
        rows.append(Bar(_bytes(layer_rows), amount, (*words, remark), colour))
    return Table(ARRAY_HEADS, tuple(rows))


def _colour(read: int, needed: int) -> int:
    return HIGHLIGHTED if read > MUCH * needed else NORMAL


def _folds(restore: Restore) -> list[Fold[RestoreRow]]:
    """Folds arrays of equal layers, and sorts the folds by bytes read."""
    folds = fold(restore.rows, lambda row: row.path, _what_is_read)
    return sorted(folds, key=_bytes, reverse=True)


def _bytes(layer_rows: Fold[RestoreRow]) -> int:
    return sum(row.bytes_at_most for row in layer_rows.items)


def _what_is_read(row: RestoreRow) -> Hashable:
    saved = row.saved
    # The text of a problem contains the layer number.
    problem = re.sub(r"\d+", "#", str(row.problem or ""))
    how = (saved.shape, saved.dtype, saved.chunk_shape, saved.spec, row.spec)
    return (*how, row.dtype, row.bytes_at_most, problem)


def _range(least: int, largest: int) -> str:
    """Formats bytes: `2 MiB`, or `1 MiB to 2 MiB` if they depend on what is cached."""
    if least == largest:
        return bytes_text(largest)
    return f"{bytes_text(least)} to {bytes_text(largest)}"
