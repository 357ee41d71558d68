"""Sentences about the rows that each process loads: requirements on a data loader."""

from __future__ import annotations

from shardviz.base.format import ids_text, plural, told_apart
from shardviz.move.process_rows import ProcessRows

# The most groups of processes to name in a sentence.
MOST_NAMED = 3


def heed(rows: ProcessRows) -> str:
    """Lists the requirements on a data loader, one sentence per line."""
    if len(rows.parts) == 1:
        return (
            f"Process {rows.parts[0].process} has all devices and loads the whole array."
            " For several processes, give the mesh with processes=, as in"
            " sv.mesh(data=4, processes=2)."
        )
    lines = []
    if len(rows.groups) < len(rows.parts):
        lines.append(_equal_parts(rows))
    lines.append(_repeats(rows))
    if rows.apart:
        lines.append(
            f"For {rows.apart:,} of {plural(len(rows.parts), 'process', 'processes')}, the part"
            " to load is not contiguous: load its ranges in ascending order."
        )
    return "\n".join(lines)


def _equal_parts(rows: ProcessRows) -> str:
    if len(rows.groups) == 1:
        count = plural(len(rows.parts), "process", "processes")
        return f"All {count} must load the same array: shuffle with the same seed."
    shared = [group for group in rows.groups if len(group) > 1]
    words = f"Processes {ids_text(shared[0])} must load the same array"
    for group in shared[1:MOST_NAMED]:
        words += f"; so must {ids_text(group)}"
    if len(shared) > MOST_NAMED:
        words += f"; so must {plural(len(shared) - MOST_NAMED, 'more group')}"
    return f"{words}."


def _repeats(rows: ProcessRows) -> str:
    sizes = (rows.bytes_loaded - rows.bytes_repeated, rows.bytes_loaded)
    once, in_all = told_apart(sizes)
    if not rows.layout.rank:
        return f"Every process loads the same number ({once})."
    count = rows.layout.shape[0]
    loaded = sum(part.shape[0] for part in rows.parts)
    if rows.bytes_repeated:
        return (
            f"Together, the processes load {loaded:,} rows, although the array has {count:,}:"
            f" {in_all} in total instead of {once}. Rows that several processes load must be"
            " equal."
        )
    if loaded > count:
        return (
            "No element is loaded twice: processes that load the same rows load different"
            " columns."
        )
    return "No row is loaded twice."


EXPLANATIONS = {ProcessRows: heed}
