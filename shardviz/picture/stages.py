"""Stages: what changed from one to another, in a program or between two plans."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.program.comparison import CollectiveChange, Comparison
from shardviz.core.program.plan_difference import PlanDiff
from shardviz.core.program.plan_values import PlannedOp, Record
from shardviz.core.program.report import Collective
from shardviz.core.program.stages import Stage, Stages
from shardviz.picture.page import broken, page, shortened, text_width
from shardviz.picture.picture import Frame, Label, Picture, Tiles, make_tiles, no_tiles
from shardviz.picture.plan import MOST_TEXT_LINES, bar_tiles, flowing, legend_of, moved_parts
from shardviz.picture.spec_bars import Part, short_type, spec_bars
from shardviz.picture.tables import wrapped

MOST_CHANGES, MOST_MOVES = 40, 10
LONGEST, LEAST, THICK, PITCH, LINE = 90.0, 2.0, 9.0, 19.0, 12.5
KINDS_WIDE, WORDS_WIDE = 112.0, 640.0
COLUMN, BETWEEN, HEAD = 226.0, 26.0, 72.0
SAME, CHANGED, WORSE, BETTER = 0, 1, 2, 3  # groups: as it was, otherwise, more, less
_GROUPS = {"kept": SAME, "added": WORSE, "removed": BETTER}


def draw_comparison(
    found: Comparison, limit: int = MOST_CHANGES, title: str | None = None
) -> Picture:
    """Two stages side by side: a row a change, with the bytes before and after, and its sentence.

    Args:
        limit: how many changes to show; what stayed as it was comes last.

    >>> from shardviz.core.program.stages import compare
    >>> one = Collective("all-reduce", ("data",), 1024)
    >>> draw_comparison(compare([one], [])).tiles.tooltip(0)
    'partitioned: all-reduce over data, 1 KiB'
    """
    changes = _ordered(found.changes)
    head = f"From {found.before} to {found.after}: {found.short}"
    largest = max([_bytes(s) for c in changes for s in (c.before, c.after)], default=0) or 1
    starts = (0.0, KINDS_WIDE, KINDS_WIDE + LONGEST + 84, KINDS_WIDE + 2 * (LONGEST + 84))
    heads = ("", found.before, found.after, "what happened")
    labels = [Label(x, 5, h, "start", "tick") for x, h in zip(starts, heads, strict=True) if h]
    bars: list[_Bar] = []
    bottom = 16.0
    for change in changes[:limit]:
        y = bottom + PITCH / 2
        tone = {"added": "bad", "removed": "good"}.get(change.kind, "ink")
        labels.append(Label(0, y, change.kind, "start", "axis", tone))
        for x, side, name in zip(
            starts[1:], (change.before, change.after), heads[1:], strict=False
        ):
            made, words = _side(x, y, side, name, largest, _GROUPS.get(change.kind, CHANGED))
            bars += made
            labels.append(words)
        said = broken(change.words, WORDS_WIDE, 9.0)
        labels += [
            Label(starts[3], y + LINE * i, line, "start", "axis", "muted")
            for i, line in enumerate(said)
        ]
        bottom += PITCH + LINE * (len(said) - 1)
    left = len(changes) - limit
    return page(
        _tiles(bars),
        labels,
        title=head if title is None else title,
        notes=[*found.notes, *([f"and {plural(left, 'more change')}"] if left > 0 else [])],
        size=(starts[-1] + 60, max(bottom, 16 + PITCH)),
        alt=" ".join([f"{head}.", *found.notes, *(c.words for c in changes[:limit])]),
        hue="bars",
        groups=10,
        facts={"kind": "comparison"},
    )


def draw_stages(found: Stages, title: str | None = None) -> Picture:
    """The four stages in four columns: time, sum, and the largest collectives of each.

    Over a column stands what changed since the one before it.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.program import Program
    >>> picture = draw_stages(Stages(Program(abs, (), make_mesh(data=2), name="f")))
    >>> [label.text for label in picture.labels if label.role == "mono"][:2]
    ['requested', 'propagated']
    """
    stages = found.all
    largest = max([c.bytes_in_all for r in stages for c in r.collectives or ()], default=0) or 1
    labels = _requested(found)
    bars: list[_Bar] = []
    frames: list[Frame] = []
    counts = [len(found.program.requests), *(len(r.collectives or ()) for r in stages)]
    deepest = _depth(max(counts))
    for number, stage in enumerate(stages):
        x = number * (COLUMN + BETWEEN)
        frames.append(
            Frame(x, 0, COLUMN, HEAD + deepest, dashed=bool(number) and stage.collectives is None)
        )
        labels += _stage_head(stage, x, _since(found, number))
        made, words = _stage_changes(stage, x, largest)
        bars, labels = [*bars, *made], [*labels, *words]
        if number:
            labels.append(Label(x - BETWEEN / 2, HEAD / 2 - 8, "→", "middle", "mono"))
    head = f"{found.program.name} on {found.program.mesh}"
    return page(
        _tiles(bars),
        labels,
        title=head if title is None else title,
        notes=[
            f"{stage.name}: {stage.words}"
            for stage in stages
            if stage.collectives is None and _too_long(stage.words)
        ],
        frames=frames,
        size=(4 * COLUMN + 3 * BETWEEN, HEAD + deepest),
        alt=" ".join([f"The stages of {head}.", *(line.strip() + "." for line in found.lines)]),
        hue="bars",
        groups=10,
        facts={"kind": "stages"},
    )


_Bar = tuple[float, float, float, int, str]  # x, y of its middle, length, group, hint


def _tiles(bars: Sequence[_Bar]) -> Tiles:
    if not bars:
        return no_tiles()
    return make_tiles(
        [b[0] for b in bars],
        [b[1] - THICK / 2 for b in bars],
        [b[2] for b in bars],
        THICK,
        [b[3] for b in bars],
        hint=[b[4] for b in bars],
        radius=3.0,
    )


def _ordered(changes: Sequence[CollectiveChange]) -> list[CollectiveChange]:
    return sorted(changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device))


def _bytes(side: Sequence[Collective]) -> int:
    return sum(c.bytes_in_all for c in side)


def _named(one: Collective) -> str:
    over = f" over {' × '.join(one.mesh_axes)}" if one.mesh_axes else ""
    return f"{one.kind}{over}, {one.amount}"


def _side(
    x: float, y: float, side: Sequence[Collective], stage: str, largest: int, group: int
) -> tuple[list[_Bar], Label]:
    """One side of a change: a bar of its bytes, and how many of what."""
    if not side:
        return [], Label(x, y, "–", "start", "axis", "muted")
    size = _bytes(side)
    length = max(LEAST, LONGEST * size / largest)
    many = f"{len(side)} × " if len(side) > 1 else ""
    hint = f"{stage}: " + "; ".join(_named(c) for c in side[:MOST_MOVES])
    words = Label(x + length + 6, y, f"{many}{bytes_text(size)}", "start", "axis", "ink")
    return [(x, y, length, group, hint)], words


def _since(found: Stages, number: int) -> str:
    """What changed since the stage before; `""` where one of the two is not known."""
    if not number:
        return ""
    before, after = found.all[number - 1], found.all[number]
    if before.collectives is None or after.collectives is None:
        return ""
    return found.between(before.name, after.name).short


def _stage_head(stage: Stage, x: float, since: str) -> list[Label]:
    time = "" if stage.seconds is None else seconds_text(stage.seconds)
    known = stage.collectives is not None
    labels = [Label(x + 8, 12, stage.name, "start", "mono")]
    if time:
        labels.append(Label(x + COLUMN - 8, 12, time, "end", "tick"))
    lines = broken(stage.sum if known else stage.words, COLUMN - 16, 9.0, 2)
    tone = "ink" if known else "muted"
    labels += [
        Label(x + 8, 28 + 13 * i, text, "start", "axis", tone) for i, text in enumerate(lines)
    ]
    if since:
        y = 28 + 13 * len(lines) + 1
        labels.append(Label(x + 8, y, shortened(since, COLUMN - 16, 8.5), "start", "note"))
    return labels


def _too_long(words: str) -> bool:
    """Whether a column cannot hold what is said of a stage; it then stands below all of them."""
    return len(broken(words, COLUMN - 16, 9.0)) > 2


def _depth(count: int) -> float:
    """The room that so many rows take, and the line that counts the others."""
    return PITCH * (min(count, MOST_MOVES) + (count > MOST_MOVES)) + (6 if count else 0)


def _requested(found: Stages) -> list[Label]:
    """The arrays of a program as they were asked for."""
    labels = []
    for row, asked in enumerate(found.program.requests[:MOST_MOVES]):
        y = HEAD + PITCH * row + PITCH / 2
        name = shortened(asked.array.name, 84.0, 9.0, mono=True)
        said = "✗" if asked.layout is None else str(asked.spec)
        labels += [
            Label(8, y, name, "start", "mono"),
            Label(98, y, shortened(said, COLUMN - 106, 8.0), "start", "tick"),
        ]
    left = len(found.program.requests) - MOST_MOVES
    if left > 0:
        y = HEAD + PITCH * MOST_MOVES + PITCH / 2
        labels.append(Label(8, y, f"and {left:,} more", "start", "note"))
    return labels


def _stage_changes(stage: Stage, x: float, largest: int) -> tuple[list[_Bar], list[Label]]:
    moves = sorted(stage.collectives or (), key=lambda c: -c.bytes_in_all)
    bars, labels = [], []
    for row, one in enumerate(moves[:MOST_MOVES]):
        y = HEAD + PITCH * row + PITCH / 2
        length = max(LEAST, 44.0 * one.bytes_in_all / largest)
        group = WORSE if one.rematerialises else SAME
        bars.append((x + 8, y, length, group, f"{stage.name}: {_named(one)}"))
        size = one.amount
        labels.append(Label(x + 58, y, size, "start", "axis", "ink"))
        over = f" {' × '.join(one.mesh_axes)}" if one.mesh_axes else ""
        start = 58 + max(52.0, text_width(size, 9.0) + 8)
        words = shortened(f"{one.kind}{over}", COLUMN - start - 6, 8.0)
        labels.append(Label(x + start, y, words, "start", "tick"))
    if len(moves) > MOST_MOVES:
        y = HEAD + PITCH * MOST_MOVES + PITCH / 2
        labels.append(Label(x + 8, y, f"and {len(moves) - MOST_MOVES:,} smaller", "start", "note"))
    return bars, labels


MOST_ROWS = 40
ROW_PITCH, BAR, WIDE = 17.0, 9.0, 84.0
NAME_WIDE, TYPE_WIDE, CAUSE_WIDE, MOVES_WIDE = 200.0, 130.0, 420.0, 700.0
ROW_LINE = 12.0
Row = tuple[
    str, str, PlannedOp | None, PlannedOp | None, str, str
]  # name, type, sides, words, tone


def draw_plan_difference(
    found: PlanDiff, limit: int = MOST_ROWS, title: str | None = None
) -> Picture:
    """What an edit changes: a row a value, its sharding before and after; then the collectives.

    Args:
        limit: how many values, and how many collectives, to show.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_difference import difference
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
            labels.append(Label(0, y + ROW_PITCH / 2, line, "start", "axis", tone))
            y += ROW_PITCH
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
    bottom = ROW_PITCH
    for row in rows:
        y = bottom + ROW_PITCH / 2
        said = _words(row, starts, y)
        labels += said
        bottom = max(v.y for v in said) + ROW_PITCH / 2
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
        Label(starts[4], y + ROW_LINE * i, line, "start", "axis", tone)
        for i, line in enumerate(broken(words, CAUSE_WIDE, 9.0))
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


MOST_DIFFERENCES, LEAST_VALUES = 40, 12  # of a difference


def plan_difference_text(found: PlanDiff, width: int) -> str:
    """What changes from one plan to another: in all, the collectives, then the values.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> from shardviz.core.program.plan_values import Record
    >>> mesh = make_mesh(data=2)
    >>> one = Record("f", mesh, (PlannedOp("x", "argument", shape=(8,)),))
    >>> print(difference_text(PlanDiff(one, one, added=one.ops), 80))
    1 value new.
    New: x, [8], P()
    """
    broken = any(plan.error is not None for plan in (found.before, found.after))
    if broken or not (found.moves or found.values):
        return flowing(found.lines, width)
    # Collectives are what people look for; values get the lines that these leave.
    shown = _first_of(found.moves, MOST_DIFFERENCES, "collective")
    room = max(MOST_TEXT_LINES - len(found.head) - len(shown) - 1, LEAST_VALUES)
    return flowing([*found.head, *shown, *_first_of(found.values, room, "value")], width)


def _first_of(lines: Sequence[str], most: int, noun: str) -> list[str]:
    left = len(lines) - most
    return [*lines[:most], *([f"and {plural(left, 'more ' + noun)}"] if left > 0 else [])]


def stages_text(found: Stages | Comparison, width: int) -> str:
    """Stages, or what changed between two of them, a sentence a line."""
    head = [f"{found.program.name} on {found.program.mesh}"] if isinstance(found, Stages) else []
    return flowing([*head, *found.lines], width)
