"""Draws audits: the bytes per device of a model's arrays, as text and picture."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.axis_rules.audit import Audit
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.words.trees import (
    bytes_on_device,
    difference_lines,
    fold_bytes,
)
from shardviz.base.format import Fold, bytes_text, plural
from shardviz.draw import words as wording
from shardviz.draw.page import and_more, paragraphs, side_by_side, titled, unfolded
from shardviz.draw.picture import Picture
from shardviz.draw.tables import HIGHLIGHTED, NORMAL, Bar, Table

# Maximum rows of the picture, and maximum lines of the text.
MOST_ROWS, MOST_LINES = 40, 20
MOST_DIFFERENCES = 12
HEADS = ("bytes per device", "array", "type and shape", "spec")


def draw_audit(
    audit: Audit, limit: int = MOST_ROWS, title: str | None = None
) -> Picture:
    """Draws the arrays' bytes per device, largest first.

    Arrays without a layout come last. Arrays that differ only in their layer number
    share a bar.

    Args:
        audit: the audit.
        limit: maximum number of rows; the remaining, smaller arrays share one row.
        title: replaces the default title; `""` for no title.
    """
    rows = _largest(audit, limit)
    # A legend is needed only if bars differ in colour.
    legend, groups = (), {row.group for row in rows}
    if HIGHLIGHTED in groups:
        legend = ((NORMAL, "split"), (HIGHLIGHTED, "replicated"))
    failed = [layers for layers in audit.folds if layers.items[0].layout is None]
    rows += map(_failed, failed[:limit])
    notes = []
    for line in difference_lines(audit.differences)[:MOST_DIFFERENCES]:
        notes.append(f"{line}.")
    for count in and_more(len(unfolded(failed[limit:])), "array"):
        notes.append(f"{count} without a layout")
    size = bytes_on_device(audit, "per device")
    head = wording.audit_head(len(audit.rows), audit.mesh, size, audit.uncounted)
    shown = titled(title, head)
    grouped, arrays_title = len(audit.groups) > 1, shown
    if grouped:
        arrays_title = ""
    alt = audit.explain()
    arrays = Table(HEADS, tuple(rows)).picture(
        title=arrays_title, legend=legend, notes=notes, alt=alt
    )
    if not grouped:
        return arrays
    return side_by_side([_groups(audit), arrays], title=shown, width=1.0, alt=alt)


def audit_text(audit: Audit, width: int, full: bool = False) -> str:
    """Formats the findings of an audit, then its arrays, largest first.

    Args:
        audit: the audit.
        width: maximum number of characters per line.
        full: True for a line per array. Otherwise, arrays that differ only in their
            layer number share a line, and small arrays are only counted.
    """
    rows = _largest(audit, MOST_LINES)
    if full:
        rows = []
        for row in (*(r for r in audit.rows if r.layout is None), *audit.largest):
            size, text = row.bytes_per_device, "–"
            if size is not None:
                text = bytes_text(size)
            rows.append(Bar(size, text, (row.path, row.array.short, _spec(row))))
    lines = audit.explain().split("\n")
    # For a single array, the explanation already has its size.
    if len(audit.rows) > 1 and rows:
        lines += [wording.LARGEST_FIRST, *Table(HEADS, tuple(rows)).lines()]
    return paragraphs(lines, width)


def _largest(audit: Audit, limit: int) -> list[Bar]:
    """Returns bars for arrays with a layout; after `limit` bars, the rest share one."""
    rows = []
    for layers in audit.largest_folds[:limit]:
        row, group = layers.items[0], NORMAL
        layout = row.layout
        if row.spec is not None and layout is not None and audit.mesh.size > 1:
            if layout.num_blocks == 1:
                group = HIGHLIGHTED
        words = (layers.name, row.array.short, _spec(row))
        rows.append(Bar(_bytes(layers.items), fold_bytes(layers), words, group))
    smaller = unfolded(audit.largest_folds[limit:])
    if smaller:
        total, words = _bytes(smaller), (plural(len(smaller), "smaller array"),)
        rows.append(Bar(total, bytes_text(total), words))
    return rows


def _bytes(rows: Sequence[Request]) -> int:
    return sum(row.bytes_per_device or 0 for row in rows)


def _failed(layers: Fold[Request]) -> Bar:
    row, mark, tone = layers.items[0], "?", "muted"
    if row.problem:
        mark, tone = "✗", "bad"
    return Bar(None, mark, (layers.name, row.array.short, _spec(row)), tone=tone)


def _spec(row: Request) -> str:
    """Formats an array's spec, or its problem."""
    if row.problem:
        return str(row.problem)
    if row.layout is None:
        return "unknown"
    # A live array that is not on the mesh has a layout but no spec.
    words = str(row.spec or wording.NOT_ON_MESH)
    if row.array.memory_kind:
        words += f" in {row.array.memory_kind}"
    return words


def _groups(audit: Audit) -> Picture:
    """Draws each group's bytes per device, copies, and the cost of replication."""
    rows = []
    for group in (*audit.groups, audit.total):
        size = group.bytes_per_device
        words = (group.name, f"{group.copies:,.3g}", bytes_text(group.waste))
        rows.append(Bar(size, bytes_text(size), words))
    heads = ("bytes per device", "of", "copies", "replication costs")
    return Table(heads, tuple(rows)).picture()
