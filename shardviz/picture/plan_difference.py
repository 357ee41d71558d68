"""What changes from one plan to another: values before and after, and collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardviz.core.program.plan_difference import PlanDiff
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.wording import pictures as wording
from shardviz.picture.page import (
    and_more,
    broken,
    page,
    paragraphs,
    shortened,
    titled,
    widest,
    wrapped,
)
from shardviz.picture.picture import Label, Picture
from shardviz.picture.plan import MOST_TEXT_LINES
from shardviz.picture.tables import (
    Rectangle,
    axis_legend,
    column_heads,
    lines_at,
    rectangle_tiles,
    short_type,
    value_bars,
)

MOST_ROWS = 40
PITCH, WIDE, BETWEEN = 17.0, 84.0, 26.0
NAME_WIDE, TYPE_WIDE, CAUSE_WIDE, MOVES_WIDE = 200.0, 130.0, 420.0, 700.0
MOST_DIFFERENCES, LEAST_VALUES = 40, 12  # of the text


@dataclass(frozen=True)
class _Row:
    """One value: before, after, what changed in words, and the tone of these."""

    before: PlannedOp | None
    after: PlannedOp | None
    words: str
    tone: str

    @property
    def op(self) -> PlannedOp:
        op = self.after or self.before
        assert op is not None  # one side of a change is always there
        return op

    @property
    def type(self) -> str:
        return short_type(self.op.dtype, self.op.shape)


def draw_plan_difference(
    found: PlanDiff, limit: int = MOST_ROWS, title: str | None = None
) -> Picture:
    """A row per value that an edit changes, before and after; then the collectives.

    Args:
        limit: how many values, and how many collectives, to show.
    """
    head = wording.difference_head(found.before, found.after)
    rows, collectives, notes = _rows(found), _collectives(found), []
    if found.before.error is not None or found.after.error is not None:
        rows, collectives = [], []
        for line in found.lines:
            notes += wrapped(line, 110, "  ")
    elif not rows and not collectives:
        notes.append("Nothing changes.")
    labels, bars, size = _table(found, rows[:limit])
    y = size[1]
    for text, tone in collectives[:limit]:
        for line in broken(text, max(size[0], MOVES_WIDE), 9.0, indent="    "):
            labels.append(Label(0, y + PITCH / 2, line, "start", "axis", tone))
            y += PITCH
    notes += and_more(len(rows) - limit, "value")
    notes += and_more(len(collectives) - limit, "collective")
    return page(
        rectangle_tiles(bars),
        labels,
        title=titled(title, head),
        legend=axis_legend(found.after.mesh) if bars else (),
        notes=notes,
        size=(size[0], y),
        alt=f"{head}: {' '.join(found.lines[: 2 * limit])}",
        colormap="bars",
        groups=10,
        facts={"kind": "plan difference"},
    )


def _rows(found: PlanDiff) -> list[_Row]:
    rows = []
    for change in found.changed:
        before, after = change.before, change.after
        words = f"{before.spec} → {after.spec}"
        if before.spec.equivalent(after.spec):
            words = f"{_origins(after)}; before {_origins(before)}"
        rows.append(_Row(before, after, words, "text"))
    for op in found.added:
        rows.append(_Row(None, op, "new", "warn"))
    for op in found.removed:
        rows.append(_Row(op, None, "removed", "muted"))
    return rows


def _origins(op: PlannedOp) -> str:
    """Where the axes of a value came from: `data from x`."""
    parts = [f"{axis} from {origin.name}" for axis, origin in op.origins.items()]
    return ", ".join(parts) or "no axis"


def _collectives(found: PlanDiff) -> list[tuple[str, str]]:
    """A line per collective that is new, gone or of another size, with its tone."""
    lines = []
    for collective in found.gained:
        lines.append((f"+ {collective.words}", "bad"))
    for collective in found.lost:
        lines.append((f"− {collective.words}", "good"))
    for old, new in found.resized:
        tone = "bad" if new.bytes_in_all > old.bytes_in_all else "good"
        lines.append((f"~ {new.words}, {old.amount} before", tone))
    return lines


def _table(
    found: PlanDiff, rows: Sequence[_Row]
) -> tuple[list[Label], list[Rectangle], tuple[float, float]]:
    """The labels and bars of the values, and the size that they take."""
    if not rows:
        return [], [], (240.0, 0.0)
    names, types = widest([r.op.name for r in rows], 9.0, mono=True), 0.0
    types = widest([row.type for row in rows], 9.0)
    starts = [0.0, min(NAME_WIDE, max(30.0, names)) + 14]
    starts.append(starts[-1] + min(TYPE_WIDE, max(30.0, types)) + 14)
    starts += [starts[-1] + WIDE + BETWEEN, starts[-1] + 2 * (WIDE + BETWEEN)]
    labels = column_heads(starts, ("value", "type", "before", "after", ""))
    bars: list[Rectangle] = []
    bottom = PITCH
    for row in rows:
        y = bottom + PITCH / 2
        name = shortened(row.op.name, NAME_WIDE, 9.0, mono=True)
        labels.append(Label(0, y, name, "start", "mono"))
        short = shortened(row.type, TYPE_WIDE, 9.0)
        labels.append(Label(starts[1], y, short, "start", "axis"))
        sides = ((row.before, found.before), (row.after, found.after))
        for x, (op, plan) in zip(starts[2:], sides, strict=False):
            if op is None:
                labels.append(Label(x, y, "–", "start", "axis", "muted"))
            else:
                bars += value_bars(op, plan.mesh, WIDE, x, y)
        if row.before is not None and row.after is not None:
            labels.append(Label(starts[3] - 13, y, "→", "middle", "axis"))
        words = lines_at(starts[4], y, broken(row.words, CAUSE_WIDE, 9.0), row.tone)
        labels += words
        bottom = words[-1].y + PITCH / 2
    return labels, bars, (starts[4] + 180, bottom + 6)


def plan_difference_text(found: PlanDiff, width: int) -> str:
    """What changes from one plan to another: a summary, the collectives, the values."""
    failed = found.before.error is not None or found.after.error is not None
    if failed or not (found.moves or found.values):
        return paragraphs(found.lines, width, MOST_TEXT_LINES)
    # Collectives are what people look for; values get the lines that these leave.
    collectives = _first(found.moves, MOST_DIFFERENCES, "collective")
    left = max(MOST_TEXT_LINES - len(found.head) - len(collectives) - 1, LEAST_VALUES)
    values = _first(found.values, left, "value")
    return paragraphs([*found.head, *collectives, *values], width, MOST_TEXT_LINES)


def _first(lines: Sequence[str], most: int, noun: str) -> list[str]:
    return [*lines[:most], *and_more(len(lines) - most, noun)]
