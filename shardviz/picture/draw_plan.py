"""Pictures of plans: the values of a program with their shardings, and the story of one."""

from __future__ import annotations

from collections.abc import Sequence

from shardviz.core.errors import plural
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.propagation.explicit.answers import Choice, Diagnosis
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.propagation.record import Record
from shardviz.core.program.propagation.story import Story
from shardviz.picture.compose import page
from shardviz.picture.measure import broken, shortened, text_width
from shardviz.picture.plan_rows import (
    MOST_VALUES,
    ValueRow,
    axis_path,
    more_values,
    plan_head,
    value_rows,
)
from shardviz.picture.shapes import Label, Picture, Tiles, make_tiles, no_tiles
from shardviz.picture.spec_bars import (
    WHOLE_GROUP,
    Part,
    axis_groups,
    short_type,
    spec_bars,
    split_axis,
)
from shardviz.picture.text_boxes import wrapped
from shardviz.picture.units import bytes_text

PITCH, BAR, BARS_WIDE, GAP = 17.0, 9.0, 96.0, 16.0
WIDEST = (230.0, 150.0, BARS_WIDE, 190.0, 230.0, 130.0)
HEADS = ("value", "type", "sharding", "axes from", "estimated", "line")
_TONES = ("ink", "muted", "", "ink", "warn", "muted")
WRAPPED = ("axes from", "estimated")  # what the plan answers, however long
INDENT, LINE = 10.0, 12.0
NODE, ARROW, MOST_NODES = 22.0, 34.0, 7
LETTERS, MOST_LINES = 118, 30


def draw_plan(plan: Plan, limit: int = MOST_VALUES, title: str | None = None) -> Picture:
    """The values of a program: type, sharding, origin of its axes, and what each is to move.

    A sharding is a bar a dimension, cut as the mesh axes cut it, coloured by mesh axis.

    Args:
        limit: how many values to show; of more, those that move data come first.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.spec import Spec
    >>> from shardviz.core.program.propagation.planned import PlannedOp
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
        bars = spec_bars(row.op.spec, len(row.op.shape), plan.mesh, _bar_room(row), BAR)
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


def _bar_room(row: ValueRow) -> float:
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
            widths = [_bar_room(row) for row in rows]
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
        (WHOLE_GROUP, "whole")
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

    >>> from shardviz.core.layout.spec import Spec
    >>> choice_words(Choice(Spec.parse("x"), (), "P('x'): nothing moves."))
    ('nothing moves', 'nothing moves.')
    """
    cost = bytes_text(choice.bytes_per_device) if choice.collectives else "nothing moves"
    return cost, choice.words.removeprefix(f"{choice.out_sharding}: ")


def draw_story(story: Story, title: str | None = None) -> Picture:
    """Why one value is laid out as it is: the way of every axis to it, then its story in words.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.propagation.planned import PlannedOp
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
    left = len(lines) - MOST_LINES
    more = [f"and {plural(left, 'more line')}"] if left > 0 else []
    return page(
        bar_tiles(parts),
        labels,
        title=head if title is None else title,
        notes=[*lines[:MOST_LINES], *more],
        size=(width, (NODE + 10) * len(axes)),
        alt=f"{head}: {' '.join(story.lines) or 'no axis reached it.'}",
        hue="blocks",
        groups=10,
        facts={"kind": "story"},
    )


def _lane(
    plan: Record, story: Story, axis: str, lane: int
) -> tuple[list[Label], list[tuple[Part, str]], float]:
    """One axis: the values that it crossed, with the step that brought it between two."""
    group = axis_groups(plan.mesh).get(split_axis(axis, plan.mesh.shape)[0], WHOLE_GROUP)
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
