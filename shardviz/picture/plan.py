"""Plans: the values of a program with their shardings, and the explanation of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardviz.core.format import bytes_text, plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.explanation import Explanation
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import Choice, Diagnosis, PlannedOp, Record
from shardviz.core.program.report import Collective
from shardviz.picture.page import broken, page, shortened, text_width
from shardviz.picture.picture import Label, Picture, Tiles, make_tiles, no_tiles
from shardviz.picture.spec_bars import (
    NOT_SPLIT_GROUP,
    Part,
    axis_groups,
    short_type,
    spec_bars,
    split_axis,
)
from shardviz.picture.tables import wrapped
from shardviz.picture.value_paths import BACKWARD, LOOP, value_paths

MOST_VALUES = 40


@dataclass(frozen=True)
class ValueRow:
    """One value on a page: itself, what it is estimated to move, and the calls it stands in."""

    op: PlannedOp
    moves: tuple[Collective, ...]
    path: tuple[str, ...] = ()

    @property
    def came(self) -> str:
        """Where its axes came from: `data x, model w_in`."""
        return ", ".join(f"{axis} {o.name or o.kind}" for axis, o in self.op.origins.items())

    @property
    def moved(self) -> str:
        """What is estimated to move: `all-reduce 8 MiB × 12`."""
        return ", ".join(moved_words(c) for c in self.moves)

    @property
    def marks(self) -> str:
        """What it stands in, in brackets: `loop body × 12, manual`, `backward`."""
        op = self.op
        found = []
        if op.region and LOOP not in self.path:
            found.append(op.region + (f" × {op.trips:,}" if op.trips not in (None, 1) else ""))
        if op.manual and op.region != "manual":
            found.append("manual")
        if op.backward and BACKWARD not in self.path:
            found.append("backward")
        if not op.covered:
            found.append("not covered")
        return ", ".join(found)

    @property
    def heading(self) -> str:
        """The calls it stands in, and how often they run: `loop / mlp, 12 times`."""
        trips = self.op.trips
        times = f", {trips:,} times" if LOOP in self.path and trips not in (None, 1) else ""
        return " / ".join(self.path) + times


def moved_words(one: Collective) -> str:
    """A collective in few words: its kind, its bytes on a device, how often it runs.

    >>> moved_words(Collective("all-reduce", ("model",), 4096, trips=12))
    'all-reduce 4 KiB × 12'
    """
    return f"{one.kind} {one.amount}"


def value_rows(plan: Plan, limit: int = MOST_VALUES) -> list[ValueRow]:
    """The values worth a row, in program order: all of them where they are few.

    Of many, those that move data come first, then arguments and results, then the largest.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> ops = [PlannedOp(f"op_{n}", "op", shape=(n,)) for n in range(100)]
    >>> plan = Plan("f", make_mesh(data=2), tuple(ops))
    >>> [row.op.name for row in value_rows(plan, 2)], more_values(plan, 2)
    (['op_98', 'op_99'], 'and 98 more values')
    """
    moves: dict[str, list[Collective]] = {}
    for one in plan.collectives:
        moves.setdefault(one.value, []).append(one)
    numbered = list(enumerate(plan.ops))
    if len(numbered) > limit:
        numbered = sorted(numbered, key=lambda at: _worth(at[1], moves))[: max(limit, 0)]
    paths = value_paths(plan.ops)
    return [
        ValueRow(op, tuple(moves.get(op.name, ())), paths[i])
        for i, op in sorted(numbered, key=_first)
    ]


def _first(numbered: tuple[int, PlannedOp]) -> int:
    return numbered[0]


def _worth(op: PlannedOp, moves: dict[str, list[Collective]]) -> tuple[bool, bool, int]:
    return op.name not in moves, op.kind == "op", -math.prod(op.shape)


def more_values(plan: Plan, limit: int = MOST_VALUES) -> str:
    """How many values have no row; `""` where all have one."""
    left = len(plan.ops) - limit
    return f"and {plural(left, 'more value')}" if left > 0 else ""


def plan_head(plan: Plan) -> str:
    """A plan in one line: how many values, how many of them split, what is estimated to move."""
    if plan.error:
        return f"{plan.program} on {plan.mesh}: no plan"
    split = sum(1 for op in plan.ops if op.spec.axes)
    moved = plural(len(plan.collectives), "collective")
    values = plural(len(plan.ops), "value")
    return f"{plan.program} on {plan.mesh}: {values}, {split:,} split, {moved} estimated"


def axis_path(plan: Record, op: PlannedOp, axis: str) -> list[tuple[str, int | None]]:
    """The way of a mesh axis to a value: the values it crossed, and the step that brought it.

    The first is where the axis was first asked for. Its step, and that of the next where no steps
    lead back to it, is None.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import Step
    >>> step = Step(3, "data", "tanh", "x", ("tanh",))
    >>> ops = (PlannedOp("x", "argument"), PlannedOp("tanh", "op", steps=(step,)))
    >>> axis_path(Plan("f", make_mesh(data=2), ops), ops[1], "data")
    [('x', None), ('tanh', 3)]
    """
    sizes = plan.mesh.shape
    parent = split_axis(axis, sizes)[0]
    came: dict[str, tuple[int, str]] = {}
    for step in sorted((s for o in plan.ops for s in o.steps), key=lambda s: s.number):
        if split_axis(step.axis, sizes)[0] == parent:
            for name in step.to:
                came.setdefault(name, (step.number, step.origin))
    way: list[tuple[str, int | None]] = []
    here, seen = op.name, set()
    while here in came and here not in seen:
        seen.add(here)
        number, before = came[here]
        way.insert(0, (here, number))
        here = before
    if here not in seen:
        way.insert(0, (here, None))
    origin = op.origins.get(axis)
    if origin is not None and origin.name in plan.by_name and origin.name not in dict(way):
        way.insert(0, (origin.name, None))
    return way


PITCH, BAR, BARS_WIDE, GAP = 17.0, 9.0, 96.0, 16.0
WIDEST = (230.0, 150.0, BARS_WIDE, 190.0, 230.0, 130.0)
HEADS = ("value", "type", "sharding", "axes from", "estimated", "line")
_TONES = ("ink", "muted", "", "ink", "warn", "muted")
WRAPPED = ("axes from", "estimated")  # what the plan answers, however long
INDENT, LINE = 10.0, 12.0
NODE, ARROW, MOST_NODES = 22.0, 34.0, 7
LETTERS, MOST_EXPLAINED_LINES = 118, 30


def draw_plan(plan: Plan, limit: int = MOST_VALUES, title: str | None = None) -> Picture:
    """The values of a program: type, sharding, origin of its axes, and what each is to move.

    A sharding is a bar a dimension, cut as the mesh axes cut it, coloured by mesh axis.

    Args:
        limit: how many values to show; of more, those that move data come first.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> op = PlannedOp("x", "argument", shape=(8, 4), dtype="float32", spec=Spec.parse("data"))
    >>> draw_plan(Plan("f", make_mesh(data=2), (op,))).tiles.tooltip(0)
    'x: dim 0: data in 2'
    """
    head = plan_head(plan) if title is None else title
    if plan.error:
        return _refused(plan, head)
    rows = value_rows(plan, limit)
    texts = [_words(row) for row in rows]
    starts = _starts(rows, texts)
    labels = [Label(x, 5, h, "start", "tick") for x, h in zip(starts, HEADS, strict=True)]
    parts: list[tuple[Part, str]] = []
    y, before = PITCH / 2, ""
    for row, words in zip(rows, texts, strict=True):
        if row.heading and row.heading != before:
            y += PITCH
            labels.append(Label(0, y, row.heading, "start", "axis", "muted"))
        y, before = y + PITCH, row.heading
        said = _labels(row, words, starts, y)
        labels += said
        bars = spec_bars(row.op.spec, len(row.op.shape), plan.mesh, _bar_width(row), BAR)
        parts += [
            (p, f"{row.op.name}: {p.hint}") for p in moved_parts(bars, starts[2], y - BAR / 2)
        ]
        y = max([y, *(v.y for v in said)])
    more = more_values(plan, limit)
    return page(
        bar_tiles(parts),
        labels,
        title=head,
        notes=[*([more] if more else []), *plan.notes],
        legend=legend_of(plan.mesh),
        size=(starts[-1] + WIDEST[-1] / 2, y + PITCH / 2),
        alt=_said(plan, rows, more),
        hue="bars",
        groups=10,
        facts={"kind": "plan"},
    )


def _bar_width(row: ValueRow) -> float:
    return min(BARS_WIDE, 34.0 * max(len(row.op.shape), 1))


def moved_parts(parts: Sequence[Part], x: float, y: float) -> list[Part]:
    """Parts of bars, moved to their place on the page."""
    return [Part(p.x + x, p.y + y, p.width, p.height, p.group, p.hint) for p in parts]


def bar_tiles(parts: Sequence[tuple[Part, str]]) -> Tiles:
    """Parts of bars as tiles, each with its tooltip."""
    if not parts:
        return no_tiles()
    return make_tiles(
        [p.x for p, _ in parts],
        [p.y for p, _ in parts],
        [p.width for p, _ in parts],
        [p.height for p, _ in parts],
        [p.group for p, _ in parts],
        hint=[hint for _, hint in parts],
        radius=1.2,
    )


def _words(row: ValueRow) -> tuple[str, ...]:
    op = row.op
    name = f"{op.name}  ({row.marks})" if row.marks else op.name
    return name, short_type(op.dtype, op.shape), "", row.came, row.moved, op.source


def _indent(row: ValueRow) -> float:
    return INDENT if row.path else 0.0


def _starts(rows: Sequence[ValueRow], texts: Sequence[tuple[str, ...]]) -> list[float]:
    """Where every column begins, in points: as wide as its words, within bounds."""
    starts = [0.0]
    for column, head in enumerate(HEADS[:-1]):
        widths = [text_width(w[column], 9.0, mono=column == 0) for w in texts]
        if column == 0:
            widths = [w + _indent(row) for w, row in zip(widths, rows, strict=True)]
        if column == 2:
            widths = [_bar_width(row) for row in rows]
        widest = max([*widths, text_width(head, 8.0)])
        starts.append(starts[-1] + min(widest, WIDEST[column]) + GAP)
    return starts


def _labels(row: ValueRow, words: Sequence[str], starts: Sequence[float], y: float) -> list[Label]:
    labels = []
    for column, (x, word) in enumerate(zip(starts, words, strict=True)):
        if word:
            inset = _indent(row) if column == 0 else 0.0
            role = "mono" if column == 0 else "axis"
            lines = [shortened(word, WIDEST[column] - inset, 9.0, mono=column == 0)]
            if HEADS[column] in WRAPPED:
                lines = broken(word, WIDEST[column], 9.0)
            labels += [
                Label(x + inset, y + LINE * i, text, "start", role, _TONES[column])
                for i, text in enumerate(lines)
            ]
    return labels


def legend_of(mesh: MeshSpec) -> list[tuple[int, str]]:
    """What the colours of bars mean: the axes of the mesh, and whole."""
    groups = axis_groups(mesh)
    return [(groups[name], f"{name} {size:,}") for name, size in mesh.shape.items()] + [
        (NOT_SPLIT_GROUP, "whole")
    ]


def _said(plan: Plan, rows: Sequence[ValueRow], more: str) -> str:
    said = "; ".join(
        f"{row.op.name} {short_type(row.op.dtype, row.op.shape)} {row.op.spec}"
        + (f", {row.moved}" if row.moved else "")
        for row in rows
    )
    return f"Plan of {plan_head(plan)}. {said or 'No values'}{', ' if more else ''}{more}."


def _refused(plan: Plan, head: str) -> Picture:
    """A plan that is none: why, and what would be accepted."""
    lines = [(line, "bad") for line in wrapped(f"✗ {plan.error}", LETTERS, "  ")]
    lines += [(line, "") for line in diagnosis_lines(plan.diagnosis)]
    labels = [Label(0, 7 + 15.0 * i, t, "start", "note", tone) for i, (t, tone) in enumerate(lines)]
    return page(
        no_tiles(),
        labels,
        title=head,
        size=(200, 15.0 * len(lines)),
        alt=" ".join([f"{head}.", *(t for t, _ in lines)]),
        facts={"kind": "plan"},
    )


def diagnosis_lines(found: Diagnosis | None) -> list[str]:
    """What a program that Explicit axes refuse could say instead, and what each choice costs.

    >>> diagnosis_lines(Diagnosis("dot_general", "f.py:3", "Both contract over model."))
    ['dot_general at f.py:3: Both contract over model.']
    """
    if found is None:
        return []
    where = f" at {found.source}" if found.source else ""
    lines = [f"{found.op}{where}: {found.problem}", *(f"  operand {o}" for o in found.operands)]
    for choice in found.choices:
        cost, words = choice_words(choice)
        lines.append(f"  out_sharding={choice.out_sharding}  ({cost})  {words}")
    return lines


def choice_words(choice: Choice) -> tuple[str, str]:
    """What a choice costs, and what it does, without the sharding that stands beside both.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> choice_words(Choice(Spec.parse("x"), (), "P('x'): nothing moves."))
    ('nothing moves', 'nothing moves.')
    """
    cost = bytes_text(choice.bytes_per_device) if choice.collectives else "nothing moves"
    return cost, choice.words.removeprefix(f"{choice.out_sharding}: ")


def draw_explanation(story: Explanation, title: str | None = None) -> Picture:
    """Why one value is laid out as it is: the way of every axis to it, then its story in words.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> draw_story(Story(plan, plan.ops[0], ("x is whole.",))).alt
    'Why x [8] is P(): x is whole.'
    """
    op, plan = story.op, story.plan
    head = f"Why {op.name} {short_type(op.dtype, op.shape)} is {op.spec}"
    labels, parts, width = [], [], 240.0
    axes = list(op.origins) or list(dict.fromkeys(op.spec.axes))
    for lane, axis in enumerate(axes):
        lane_labels, lane_parts, right = _lane(plan, story, axis, lane)
        labels, parts, width = [*labels, *lane_labels], [*parts, *lane_parts], max(width, right)
    lines = [line for text in story.lines for line in wrapped(text, LETTERS, "   ")]
    left = len(lines) - MOST_EXPLAINED_LINES
    more = [f"and {plural(left, 'more line')}"] if left > 0 else []
    return page(
        bar_tiles(parts),
        labels,
        title=head if title is None else title,
        notes=[*lines[:MOST_EXPLAINED_LINES], *more],
        size=(width, (NODE + 10) * len(axes)),
        alt=f"{head}: {' '.join(story.lines) or 'no axis reached it.'}",
        hue="blocks",
        groups=10,
        facts={"kind": "story"},
    )


def _lane(
    plan: Record, story: Explanation, axis: str, lane: int
) -> tuple[list[Label], list[tuple[Part, str]], float]:
    """One axis: the values that it crossed, with the step that brought it between two."""
    group = axis_groups(plan.mesh).get(split_axis(axis, plan.mesh.shape)[0], NOT_SPLIT_GROUP)
    way = axis_path(plan, story.op, axis)
    y = lane * (NODE + 10) + NODE / 2
    labels, parts = [Label(0, y, axis, "start", "axis", "ink")], []
    x = max(48.0, *(text_width(a, 9.0) + 14 for a in story.op.origins or [axis]))
    half = MOST_NODES // 2
    shown = way if len(way) <= MOST_NODES else [*way[:half], *way[-half:]]
    for place, (name, step) in enumerate(shown):
        if place:
            hidden = len(way) - len(shown) if len(shown) < len(way) and place == half else 0
            word = f"… {hidden} …" if hidden else "→" if step is None else f"{step} →"
            room = max(ARROW, text_width(word, 8.0) + 12)
            labels.append(Label(x + room / 2, y, word, "middle", "tick"))
            x += room
        text = shortened(name, 170.0, 9.0, mono=True)
        wide = text_width(text, 9.0, mono=True) + 16
        hint = f"{axis} at {name}" + ("" if step is None else f", by step {step}")
        parts.append((Part(x, y - NODE / 2, wide, NODE, group, hint), hint))
        labels.append(Label(x + wide / 2, y, text, "middle", "mono"))
        x += wide
    return labels, parts, x


MOST_TEXT_LINES = 60


def plan_text(plan: Plan, width: int) -> str:
    """The values of a program, a line each, and what each is estimated to move.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> op = PlannedOp("x", "argument", shape=(8,), dtype="float32", spec=Spec.parse("data"))
    >>> print(plan_text(Plan("f", make_mesh(data=2), (op,)), 80))
    f on data=2: 1 value, 1 split, 0 collectives estimated
    x  f32[8]  P('data')
    """
    if plan.error:
        lines = [plan_head(plan), f"✗ {plan.error}", *diagnosis_lines(plan.diagnosis)]
        return flowing(lines, width)
    rows = value_rows(plan)
    more = more_values(plan, MOST_VALUES)
    return "\n".join(
        [
            *wrapped(plan_head(plan), width, "  "),
            *_table(rows, width),
            *([more] if more else []),
            flowing(plan.notes, width),
        ]
    ).rstrip("\n")


def _table(rows: Sequence[ValueRow], width: int) -> list[str]:
    cells = [_cells(row) for row in rows]
    widths = [max([len(c[i]) for c in cells], default=0) for i in range(2)]
    indent = " " * min(sum(widths) + 4, width // 2)
    lines, before = [], ""
    for row, (name, short, said) in zip(rows, cells, strict=True):
        if row.heading and row.heading != before:
            lines.append(row.heading)
        before = row.heading
        lines += wrapped(f"{name:<{widths[0]}}  {short:<{widths[1]}}  {said}", width, indent)
    return lines


def _cells(row: ValueRow) -> tuple[str, str, str]:
    op = row.op
    # Blanks at the start of a line would be lost in wrapping.
    name = f"· {op.name}" if row.path else op.name
    came = [f"{axis} from {o.name or o.kind}" for axis, o in op.origins.items()]
    own = all(o.name == op.name for o in op.origins.values())
    moved = [
        moved_words(c) + (f" over {' × '.join(c.mesh_axes)}" if c.mesh_axes else "")
        for c in row.moves
    ]
    said = [str(op.spec), *([] if own else came), row.marks, *moved, op.source]
    return name, short_type(op.dtype, op.shape), " · ".join(filter(None, said))


def explanation_text(story: Explanation, width: int) -> str:
    """The story of one value, a sentence a line."""
    op = story.op
    head = f"{op.name} {short_type(op.dtype, op.shape)} {op.spec}"
    return flowing([head, *story.lines], width)


def flowing(lines: Iterable[str], width: int) -> str:
    """Lines wrapped, each with what follows of it set in; many are cut and counted.

    >>> print(flowing(["one two three"], 8))
    one two
      three
    """
    found = list(lines)
    left = len(found) - MOST_TEXT_LINES
    if left > 0:
        found = [*found[:MOST_TEXT_LINES], f"and {left:,} more lines"]
    out = []
    for line in found:
        indent = " " * (len(line) - len(line.lstrip()))
        out += wrapped(line, width, indent + "  ") or [""]
    return "\n".join(out)
