"""A picture of what changes from one plan to another: shardings before and after, collectives."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.errors import plural
from shardviz.core.program.propagation.difference import PlanDiff
from shardviz.core.program.propagation.planned import PlannedOp
from shardviz.core.program.propagation.record import Record
from shardviz.picture.compose import page
from shardviz.picture.draw_plan import bar_tiles, legend_of, moved_parts
from shardviz.picture.measure import broken, shortened, text_width
from shardviz.picture.shapes import Label, Picture
from shardviz.picture.spec_bars import Part, short_type, spec_bars
from shardviz.picture.text_boxes import wrapped

MOST_ROWS = 40
PITCH, BAR, WIDE = 17.0, 9.0, 84.0
NAME_WIDE, TYPE_WIDE, WORDS_WIDE, MOVES_WIDE = 200.0, 130.0, 420.0, 700.0
LINE = 12.0
Row = tuple[
    str, str, PlannedOp | None, PlannedOp | None, str, str
]  # name, type, sides, words, tone


def draw_difference(found: PlanDiff, limit: int = MOST_ROWS, title: str | None = None) -> Picture:
    """What an edit changes: a row a value, its sharding before and after; then the collectives.

    Args:
        limit: how many values, and how many collectives, to show.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.propagation.difference import difference
    >>> plan = Record("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> draw_difference(difference(plan, plan)).alt
    'From f to f: Nothing changes.'
    """
    head = f"From {found.before.program} to {found.after.program}"
    if found.before.mesh != found.after.mesh:
        head += f": {found.before.mesh} to {found.after.mesh}"
    failed = [p for p in (found.before, found.after) if p.error is not None]
    rows = [] if failed else _rows(found)
    moves = [] if failed else _moves(found)
    labels, parts, size = _table(found, rows[:limit])
    y = size[1]
    for text, tone in moves[:limit]:
        for line in broken(text, max(size[0], MOVES_WIDE), 9.0, indent="    "):
            labels.append(Label(0, y + PITCH / 2, line, "start", "axis", tone))
            y += PITCH
    notes = [line for text in found.lines if failed for line in wrapped(text, 110, "  ")]
    notes += [] if rows or moves or failed else ["Nothing changes."]
    notes += _left(len(rows) - limit, "value") + _left(len(moves) - limit, "collective")
    return page(
        bar_tiles(parts),
        labels,
        title=head if title is None else title,
        legend=legend_of(found.after.mesh) if parts else (),
        notes=notes,
        size=(size[0], y),
        alt=f"{head}: {' '.join(found.lines[: 2 * limit])}",
        hue="bars",
        groups=10,
        facts={"kind": "plan difference"},
    )


def _left(count: int, noun: str) -> list[str]:
    return [f"and {plural(count, 'more ' + noun)}"] if count > 0 else []


def _rows(found: PlanDiff) -> list[Row]:
    rows = [_row(c.before, c.after, _change(c.before, c.after), "ink") for c in found.changed]
    rows += [_row(None, op, "new", "warn") for op in found.added]
    rows += [_row(op, None, "gone", "muted") for op in found.removed]
    return rows


def _row(before: PlannedOp | None, after: PlannedOp | None, words: str, tone: str) -> Row:
    op = after or before
    assert op is not None  # one side of a change is always there
    return op.name, short_type(op.dtype, op.shape), before, after, words, tone


def _change(before: PlannedOp, after: PlannedOp) -> str:
    if not before.spec.equivalent(after.spec):
        return f"{before.spec} → {after.spec}"
    now = [f"{axis} from {o.name}" for axis, o in after.origins.items()]
    was = [f"{axis} from {o.name}" for axis, o in before.origins.items()]
    return f"{', '.join(now) or 'no axis'}; before {', '.join(was) or 'no axis'}"


def _moves(found: PlanDiff) -> list[tuple[str, str]]:
    """What is to move besides, and what no more, with the tone of each."""
    moves = [(f"+ {c.words}", "bad") for c in found.gained]
    moves += [(f"− {c.words}", "good") for c in found.lost]
    for old, new in found.resized:
        tone = "bad" if new.bytes_in_all > old.bytes_in_all else "good"
        moves.append((f"~ {new.words}, {old.amount} before", tone))
    return moves


def _table(
    found: PlanDiff, rows: Sequence[Row]
) -> tuple[list[Label], list[tuple[Part, str]], tuple[float, float]]:
    """The labels and bars of the values, and the size that they take."""
    if not rows:
        return [], [], (240.0, 0.0)
    name = min(NAME_WIDE, max(30.0, *(text_width(r[0], 9.0, mono=True) for r in rows))) + 14
    kind = min(TYPE_WIDE, max(30.0, *(text_width(r[1], 9.0) for r in rows))) + 14
    starts = (0.0, name, name + kind, name + kind + WIDE + 26, name + kind + 2 * (WIDE + 26))
    heads = ("value", "type", "before", "after", "")
    labels = [Label(x, 5, h, "start", "tick") for x, h in zip(starts, heads, strict=True) if h]
    parts: list[tuple[Part, str]] = []
    bottom = PITCH
    for row in rows:
        y = bottom + PITCH / 2
        said = _words(row, starts, y)
        labels += said
        bottom = max(v.y for v in said) + PITCH / 2
        for x, op, plan in ((starts[2], row[2], found.before), (starts[3], row[3], found.after)):
            parts += _bars(op, plan, x, y)
    return labels, parts, (starts[4] + 180, bottom + 6)


def _words(row: Row, starts: Sequence[float], y: float) -> list[Label]:
    name, kind, before, after, words, tone = row
    labels = [
        Label(0, y, shortened(name, NAME_WIDE, 9.0, mono=True), "start", "mono"),
        Label(starts[1], y, shortened(kind, TYPE_WIDE, 9.0), "start", "axis"),
    ]
    labels += [
        Label(starts[4], y + LINE * i, line, "start", "axis", tone)
        for i, line in enumerate(broken(words, WORDS_WIDE, 9.0))
    ]
    if before is not None and after is not None:
        labels.append(Label(starts[3] - 13, y, "→", "middle", "axis"))
    missing = starts[2] if before is None else starts[3] if after is None else None
    if missing is not None:
        labels.append(Label(missing, y, "–", "start", "axis", "muted"))
    return labels


def _bars(op: PlannedOp | None, plan: Record, x: float, y: float) -> list[tuple[Part, str]]:
    if op is None:
        return []
    room = min(WIDE, 34.0 * max(len(op.shape), 1))
    bars = spec_bars(op.spec, len(op.shape), plan.mesh, room, BAR)
    return [(p, f"{op.name}: {p.hint}") for p in moved_parts(bars, x, y - BAR / 2)]
