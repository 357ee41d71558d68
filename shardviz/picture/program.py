"""Programs: their mesh, the arrays they take (Request), their effects, their stages.

Of effects: what each one allows, and the order in which they ran. Of stages: what changes from one
to another, and from one plan to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.layout.resolution import Request
from shardviz.core.program.comparison import Comparison
from shardviz.core.program.effects import Effects, Observed
from shardviz.core.program.plan import PlanDiff
from shardviz.core.program.plan_values import PlannedOp
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective
from shardviz.core.program.stages import Stage, Stages
from shardviz.picture.layout import array_spec_text, draw_array_spec, draw_layout_array, layout_text
from shardviz.picture.mesh import draw_layout_devices, draw_mesh, mesh_text
from shardviz.picture.page import (
    and_more,
    broken,
    page,
    paragraphs,
    shortened,
    side_by_side,
    text_width,
    wrapped,
)
from shardviz.picture.picture import Frame, Label, Picture
from shardviz.picture.plan import MOST_TEXT_LINES
from shardviz.picture.rules import draw_path_resolution, draw_resolution
from shardviz.picture.tables import (
    LINE,
    Cell,
    Rectangle,
    axis_legend,
    column_heads,
    lines_at,
    matrix,
    rectangle_tiles,
    short_type,
    value_bars,
)

MOST_ARRAYS = 12


def draw_request(
    request: Request, by: str = "mesh", dims: Any = None, at: Any = None, title: str | None = None
) -> Picture:
    """The devices coloured by block, and the array in the same colours beside them.

    Args:
        by: as in `draw_mesh`.
        dims, at: as in `draw_layout_array`.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.resolution import request
    >>> x = request(ArraySpec("x", (8, 4), spec="data"), make_mesh(data=4), None)
    >>> [len(panel.tiles) for _, _, panel in draw_request(x).panels]
    [4, 4]
    """
    array, layout, resolution = request.array, request.layout, request.resolution
    head = f"{array.name} {array.short}" + ("" if request.spec is None else f"  {request.spec}")
    if layout is None:
        panels = [draw_array_spec(array, title="")]
        if resolution is not None:
            panels.append(draw_resolution(resolution))
        elif request.by_path is not None:
            panels.append(draw_path_resolution(request.by_path))
    else:
        panels = [
            draw_layout_devices(layout, by, array.name, title="", legend=False),
            draw_layout_array(layout, dims, at, array.name, array.logical, title=""),
        ]
    notes = []
    # The picture of a resolution already says what is wrong with it.
    if request.problem and (layout is not None or resolution is None or not resolution.problems):
        notes = [Label(0, 0, request.problem, "start", "note", "bad")]
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=notes,
        alt=" ".join([p.alt for p in panels] + [n.text for n in notes]),
        width=1100.0,
        facts={"kind": "request"},
    )


def request_text(request: Request, width: int) -> str:
    """An array with its layout, or why it has none; then how the rules resolved its spec."""
    array = request.array
    if request.layout is None:
        why = f"✗ {request.problem}" if request.problem else "How it is split is unknown."
        parts = [array_spec_text(array, width), paragraphs([why], width)]
    else:
        parts = [layout_text(request.layout, width, array.name, array.logical)]
    if request.by_path is not None:
        parts.append(paragraphs([request.by_path.explain()], width))
    if request.resolution is not None:
        if request.spec_wins:
            sentence = (
                f"The explicit spec overrides the rules, which give {request.resolution.spec}."
            )
            parts.append(paragraphs([sentence], width))
        else:
            parts.append(paragraphs([request.resolution.explain()], width))
    return "\n".join(parts)


def draw_program(
    program: Program, by: str = "mesh", limit: int = MOST_ARRAYS, title: str | None = None
) -> Picture:
    """The mesh of a program, and every array it takes.

    Args:
        limit: how many arrays to show.
    """
    requests = program.requests
    panels = [draw_mesh(program.mesh, by), *(_array_panel(r) for r in requests[:limit])]
    head = f"{program.name}: {plural(len(requests), 'array')} on {program.mesh}"
    return side_by_side(
        panels,
        title=head if title is None else title,
        notes=and_more(len(requests) - limit, "array"),
        alt=" ".join([f"Program {head}.", *(p.alt for p in panels)]),
        facts={"kind": "program"},
    )


def _array_panel(request: Request) -> Picture:
    array = request.array
    if request.layout is None:
        return draw_array_spec(array, problem=request.problem or "")
    return draw_layout_array(request.layout, None, None, array.name, array.logical)


def program_text(program: Program, width: int) -> str:
    """A program: its mesh, then a line per array with its spec and its bytes per device."""
    requests = program.requests
    names = max([len(r.array.name) for r in requests], default=0)
    types = max([len(r.array.short) for r in requests], default=0)
    indent = " " * min(names + types + 4, width // 2)
    lines = [f"{program.name}: {plural(len(requests), 'array')}", mesh_text(program.mesh, width)]
    for request in requests:
        start = f"{request.array.name:<{names}}  {request.array.short:<{types}}"
        lines += wrapped(f"{start}  {_in_short(request)}", width, indent)
    return "\n".join(lines)


def _in_short(request: Request) -> str:
    layout = request.layout
    if layout is None:
        return f"✗ {request.problem}"
    copies = f", {plural(layout.replicas, 'replica')}" if layout.replicas > 1 else ""
    return f"{request.spec}  {bytes_text(layout.bytes_per_device)} per device{copies}"


MOST_EVENTS = 64
_CONSTRUCTS = ("control flow", "remat", "custom derivatives", "lowering")
_COLUMNS = ("ordered", "many devices", *_CONSTRUCTS)


def draw_effects(effects: Effects, title: str | None = None) -> Picture:
    """The effects of a program: a row each, a tile per property and per construct that allows it.

    >>> from shardviz.core.program.effects import EffectUse
    >>> use = EffectUse("io callback", "IOEffect", False, True, ("control flow",))
    >>> draw_effects(Effects("f", (use,))).tiles.label(0)
    'yes'
    """
    cells = []
    for row, use in enumerate(effects.uses):
        yes = (use.ordered, use.shardable, *(p in (use.allowed or ()) for p in _CONSTRUCTS))
        for column, (name, holds) in enumerate(zip(_COLUMNS, yes, strict=True)):
            if holds:
                cells.append(Cell(row, column, "yes", row, f"{use.name}: {name}"))
    lines = effects.explain().splitlines()
    return matrix(
        [use.name for use in effects.uses] or ["no effects"],
        list(_COLUMNS),
        cells,
        least=92.0,
        title=lines[0] if title is None else title,
        # Which constructs allow an effect is in the tiles.
        notes=[v.strip() for v in lines[1:] if not v.startswith("  allowed in")],
        alt=" ".join(lines),
        groups=max(len(effects.uses), 1),
        facts={"kind": "effects"},
    )


def draw_observed(observed: Observed, title: str | None = None) -> Picture:
    """The effects of one run: a row per device, a column per event, in the order in which they ran.

    >>> from shardviz.core.program.effects import Event
    >>> from shardviz.core.program.report import Report
    >>> one = Event(0, "io callback", "log", "scan", False, 0, "1.0")
    >>> draw_observed(Observed("f", (one,), Report("f", "CPU × 1"))).tiles.label(0)
    'log'
    """
    devices = list(observed.per_device())
    kinds = sorted({e.name for e in observed.events})
    cells = [
        Cell(devices.index(e.device), e.number, e.what, kinds.index(e.name), str(e))
        for e in observed.events[:MOST_EVENTS]
    ]
    lines = observed.explain().splitlines()
    left = len(observed.events) - MOST_EVENTS
    more = [f"{left:,} more events came after these."] if left > 0 else []
    promises = [line for line in lines[1:] if line[:1] in ("U", "O", "✗")]
    return matrix(
        ["unknown device" if d is None else f"device {d}" for d in devices] or ["no events"],
        [str(e.number + 1) for e in observed.events[:MOST_EVENTS]] or [""],
        cells,
        least=46.0,
        title=lines[0] if title is None else title,
        notes=[*promises, *more],
        alt=" ".join(lines),
        groups=max(len(kinds), 1),
        facts={"kind": "observed effects"},
    )


MOST_CHANGES, MOST_MOVES = 40, 10
LONGEST, LEAST, THICK, PITCH = 90.0, 2.0, 9.0, 19.0
KINDS_WIDE, WORDS_WIDE = 112.0, 640.0
COLUMN, BETWEEN, HEAD = 226.0, 26.0, 72.0
SAME, CHANGED, WORSE, BETTER = 0, 1, 2, 3  # groups
_GROUPS = {"kept": SAME, "added": WORSE, "removed": BETTER}


def draw_comparison(
    found: Comparison, limit: int = MOST_CHANGES, title: str | None = None
) -> Picture:
    """Two stages side by side: a row per change, with the bytes before and after, and its sentence.

    Args:
        limit: how many changes to show; collectives that stay the same come last.

    >>> from shardviz.core.program.comparison import compare
    >>> one = Collective("all-reduce", ("data",), 1024)
    >>> draw_comparison(compare([one], [])).tiles.tooltip(0)
    'partitioned: all-reduce over data, 1 KiB'
    """
    changes = sorted(found.changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device))
    head = f"From {found.before} to {found.after}: {found.short}"
    largest = max([_bytes(s) for c in changes for s in (c.before, c.after)], default=0) or 1
    starts = (0.0, KINDS_WIDE, KINDS_WIDE + LONGEST + 84, KINDS_WIDE + 2 * (LONGEST + 84))
    heads = ("", found.before, found.after, "what happened")
    labels = column_heads(starts, heads)
    bars: list[Rectangle] = []
    bottom = 16.0
    for change in changes[:limit]:
        y = bottom + PITCH / 2
        tone = {"added": "bad", "removed": "good"}.get(change.kind, "text")
        labels.append(Label(0, y, change.kind, "start", "axis", tone))
        for x, side, name in zip(
            starts[1:], (change.before, change.after), heads[1:], strict=False
        ):
            made, label = _side(x, y, side, name, largest, _GROUPS.get(change.kind, CHANGED))
            bars += made
            labels.append(label)
        lines = broken(change.words, WORDS_WIDE, 9.0)
        labels += lines_at(starts[3], y, lines, "muted")
        bottom += PITCH + LINE * (len(lines) - 1)
    return page(
        rectangle_tiles(bars, radius=3.0),
        labels,
        title=head if title is None else title,
        notes=[*found.notes, *and_more(len(changes) - limit, "change")],
        size=(starts[-1] + 60, max(bottom, 16 + PITCH)),
        alt=" ".join([f"{head}.", *found.notes, *(c.words for c in changes[:limit])]),
        colormap="bars",
        groups=10,
        facts={"kind": "comparison"},
    )


def draw_stages(found: Stages, title: str | None = None) -> Picture:
    """The four stages in four columns: time, sum, and the largest collectives of each.

    The head of a column says what changed since the stage before.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.program import Program
    >>> picture = draw_stages(Stages(Program(abs, (), make_mesh(data=2), name="f")))
    >>> [label.text for label in picture.labels if label.role == "mono"][:2]
    ['requested', 'propagated']
    """
    stages = found.all
    largest = max([c.bytes_in_all for r in stages for c in r.collectives or ()], default=0) or 1
    labels = _requested(found)
    bars: list[Rectangle] = []
    frames: list[Frame] = []
    counts = [len(found.program.requests), *(len(r.collectives or ()) for r in stages)]
    height = HEAD + _rows_height(max(counts))
    for number, stage in enumerate(stages):
        x = number * (COLUMN + BETWEEN)
        frames.append(
            Frame(x, 0, COLUMN, height, dashed=bool(number) and stage.collectives is None)
        )
        labels += _stage_head(stage, x, _since(found, number))
        made, added = _collectives(stage, x, largest)
        bars, labels = [*bars, *made], [*labels, *added]
        if number:
            labels.append(Label(x - BETWEEN / 2, HEAD / 2 - 8, "→", "middle", "mono"))
    head = f"{found.program.name} on {found.program.mesh}"
    return page(
        rectangle_tiles(bars, radius=3.0),
        labels,
        title=head if title is None else title,
        notes=[
            f"{stage.name}: {stage.words}"
            for stage in stages
            if stage.collectives is None and _too_long(stage.words)
        ],
        frames=frames,
        size=(4 * COLUMN + 3 * BETWEEN, height),
        alt=" ".join([f"The stages of {head}.", *(line.strip() + "." for line in found.lines)]),
        colormap="bars",
        groups=10,
        facts={"kind": "stages"},
    )


def _bytes(side: Sequence[Collective]) -> int:
    return sum(c.bytes_in_all for c in side)


def _named(one: Collective) -> str:
    return f"{one.kind}{one.over}, {one.amount}"


def _side(
    x: float, y: float, side: Sequence[Collective], stage: str, largest: int, group: int
) -> tuple[list[Rectangle], Label]:
    """One side of a change: a bar of its bytes, and how many of what."""
    if not side:
        return [], Label(x, y, "–", "start", "axis", "muted")
    size = _bytes(side)
    length = max(LEAST, LONGEST * size / largest)
    many = f"{len(side)} × " if len(side) > 1 else ""
    hint = f"{stage}: " + "; ".join(_named(c) for c in side[:MOST_MOVES])
    words = Label(x + length + 6, y, f"{many}{bytes_text(size)}", "start", "axis", "text")
    return [Rectangle(x, y - THICK / 2, length, THICK, group, hint)], words


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
    tone = "text" if known else "muted"
    labels += [
        Label(x + 8, 28 + 13 * i, text, "start", "axis", tone) for i, text in enumerate(lines)
    ]
    if since:
        y = 28 + 13 * len(lines) + 1
        labels.append(Label(x + 8, y, shortened(since, COLUMN - 16, 8.5), "start", "note"))
    return labels


def _too_long(words: str) -> bool:
    """Whether a sentence does not fit into a column; it then becomes a note."""
    return len(broken(words, COLUMN - 16, 9.0)) > 2


def _rows_height(count: int) -> float:
    """The height of so many rows, and of the line that counts the others, in points."""
    return PITCH * (min(count, MOST_MOVES) + (count > MOST_MOVES)) + (6 if count else 0)


def _requested(found: Stages) -> list[Label]:
    """The arrays of a program with the specs that were requested."""
    labels = []
    for row, request in enumerate(found.program.requests[:MOST_MOVES]):
        y = HEAD + PITCH * row + PITCH / 2
        name = shortened(request.array.name, 84.0, 9.0, mono=True)
        spec = "✗" if request.layout is None else str(request.spec)
        labels += [
            Label(8, y, name, "start", "mono"),
            Label(98, y, shortened(spec, COLUMN - 106, 8.0), "start", "tick"),
        ]
    left = len(found.program.requests) - MOST_MOVES
    if left > 0:
        y = HEAD + PITCH * MOST_MOVES + PITCH / 2
        labels.append(Label(8, y, f"and {left:,} more", "start", "note"))
    return labels


def _collectives(stage: Stage, x: float, largest: int) -> tuple[list[Rectangle], list[Label]]:
    moves = sorted(stage.collectives or (), key=lambda c: -c.bytes_in_all)
    bars, labels = [], []
    for row, one in enumerate(moves[:MOST_MOVES]):
        y = HEAD + PITCH * row + PITCH / 2
        length = max(LEAST, 44.0 * one.bytes_in_all / largest)
        group = WORSE if one.rematerialises else SAME
        hint = f"{stage.name}: {_named(one)}"
        bars.append(Rectangle(x + 8, y - THICK / 2, length, THICK, group, hint))
        size = one.amount
        labels.append(Label(x + 58, y, size, "start", "axis", "text"))
        over = one.over.removeprefix(" over")
        start = 58 + max(52.0, text_width(size, 9.0) + 8)
        words = shortened(f"{one.kind}{over}", COLUMN - start - 6, 8.0)
        labels.append(Label(x + start, y, words, "start", "tick"))
    if len(moves) > MOST_MOVES:
        y = HEAD + PITCH * MOST_MOVES + PITCH / 2
        labels.append(Label(x + 8, y, f"and {len(moves) - MOST_MOVES:,} smaller", "start", "note"))
    return bars, labels


def stages_text(found: Stages | Comparison, width: int) -> str:
    """Stages, or what changed between two of them, a sentence per line."""
    head = [f"{found.program.name} on {found.program.mesh}"] if isinstance(found, Stages) else []
    return paragraphs([*head, *found.lines], width, MOST_TEXT_LINES)


MOST_ROWS = 40
ROW_PITCH, WIDE = 17.0, 84.0
NAME_WIDE, TYPE_WIDE, CAUSE_WIDE, MOVES_WIDE = 200.0, 130.0, 420.0, 700.0
# Name, type, before, after, what changed, tone of that.
Row = tuple[str, str, PlannedOp | None, PlannedOp | None, str, str]


def draw_plan_difference(
    found: PlanDiff, limit: int = MOST_ROWS, title: str | None = None
) -> Picture:
    """What an edit changes: a row per value, its sharding before and after; then the collectives.

    Args:
        limit: how many values, and how many collectives, to show.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan import plan_difference
    >>> from shardviz.core.program.plan_values import Record
    >>> plan = Record("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> draw_plan_difference(plan_difference(plan, plan)).alt
    'From f to f: Nothing changes.'
    """
    head = f"From {found.before.program} to {found.after.program}"
    if found.before.mesh != found.after.mesh:
        head += f": {found.before.mesh} to {found.after.mesh}"
    failed = [p for p in (found.before, found.after) if p.error is not None]
    rows = [] if failed else _rows(found)
    collectives = [] if failed else _changed_collectives(found)
    labels, bars, size = _table(found, rows[:limit])
    y = size[1]
    for text, tone in collectives[:limit]:
        for line in broken(text, max(size[0], MOVES_WIDE), 9.0, indent="    "):
            labels.append(Label(0, y + ROW_PITCH / 2, line, "start", "axis", tone))
            y += ROW_PITCH
    notes = [line for text in found.lines if failed for line in wrapped(text, 110, "  ")]
    notes += [] if rows or collectives or failed else ["Nothing changes."]
    notes += and_more(len(rows) - limit, "value")
    notes += and_more(len(collectives) - limit, "collective")
    return page(
        rectangle_tiles(bars),
        labels,
        title=head if title is None else title,
        legend=axis_legend(found.after.mesh) if bars else (),
        notes=notes,
        size=(size[0], y),
        alt=f"{head}: {' '.join(found.lines[: 2 * limit])}",
        colormap="bars",
        groups=10,
        facts={"kind": "plan difference"},
    )


def _rows(found: PlanDiff) -> list[Row]:
    rows = [_row(c.before, c.after, _change(c.before, c.after), "text") for c in found.changed]
    rows += [_row(None, op, "new", "warn") for op in found.added]
    rows += [_row(op, None, "removed", "muted") for op in found.removed]
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


def _changed_collectives(found: PlanDiff) -> list[tuple[str, str]]:
    """A line per collective that is new, gone or of another size, with its tone."""
    lines = [(f"+ {c.words}", "bad") for c in found.gained]
    lines += [(f"− {c.words}", "good") for c in found.lost]
    for old, new in found.resized:
        tone = "bad" if new.bytes_in_all > old.bytes_in_all else "good"
        lines.append((f"~ {new.words}, {old.amount} before", tone))
    return lines


def _table(
    found: PlanDiff, rows: Sequence[Row]
) -> tuple[list[Label], list[Rectangle], tuple[float, float]]:
    """The labels and bars of the values, and the size that they take."""
    if not rows:
        return [], [], (240.0, 0.0)
    name = min(NAME_WIDE, max(30.0, *(text_width(r[0], 9.0, mono=True) for r in rows))) + 14
    kind = min(TYPE_WIDE, max(30.0, *(text_width(r[1], 9.0) for r in rows))) + 14
    starts = (0.0, name, name + kind, name + kind + WIDE + 26, name + kind + 2 * (WIDE + 26))
    heads = ("value", "type", "before", "after", "")
    labels = column_heads(starts, heads)
    bars: list[Rectangle] = []
    bottom = ROW_PITCH
    for row in rows:
        y = bottom + ROW_PITCH / 2
        added = _row_labels(row, starts, y)
        labels += added
        bottom = max(v.y for v in added) + ROW_PITCH / 2
        for x, op, plan in ((starts[2], row[2], found.before), (starts[3], row[3], found.after)):
            if op is not None:
                bars += value_bars(op, plan.mesh, WIDE, x, y)
    return labels, bars, (starts[4] + 180, bottom + 6)


def _row_labels(row: Row, starts: Sequence[float], y: float) -> list[Label]:
    name, kind, before, after, words, tone = row
    labels = [
        Label(0, y, shortened(name, NAME_WIDE, 9.0, mono=True), "start", "mono"),
        Label(starts[1], y, shortened(kind, TYPE_WIDE, 9.0), "start", "axis"),
    ]
    labels += lines_at(starts[4], y, broken(words, CAUSE_WIDE, 9.0), tone)
    if before is not None and after is not None:
        labels.append(Label(starts[3] - 13, y, "→", "middle", "axis"))
    missing = starts[2] if before is None else starts[3] if after is None else None
    if missing is not None:
        labels.append(Label(missing, y, "–", "start", "axis", "muted"))
    return labels


MOST_DIFFERENCES, LEAST_VALUES = 40, 12  # of a difference


def plan_difference_text(found: PlanDiff, width: int) -> str:
    """What changes from one plan to another: a summary, the collectives, then the values.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp, Record
    >>> mesh = make_mesh(data=2)
    >>> one = Record("f", mesh, (PlannedOp("x", "argument", shape=(8,)),))
    >>> print(plan_difference_text(PlanDiff(one, one, added=one.ops), 80))
    1 value new.
    New: x, [8], P()
    """
    failed = any(plan.error is not None for plan in (found.before, found.after))
    if failed or not (found.moves or found.values):
        return paragraphs(found.lines, width, MOST_TEXT_LINES)
    # Collectives are what people look for; values get the lines that these leave.
    collectives = _first(found.moves, MOST_DIFFERENCES, "collective")
    left = max(MOST_TEXT_LINES - len(found.head) - len(collectives) - 1, LEAST_VALUES)
    values = _first(found.values, left, "value")
    return paragraphs([*found.head, *collectives, *values], width, MOST_TEXT_LINES)


def _first(lines: Sequence[str], most: int, noun: str) -> list[str]:
    return [*lines[:most], *and_more(len(lines) - most, noun)]
