"""Plans: the values of a program, each with its sharding, origin, cost and source line.

A sharding is a bar per dimension, split as the mesh axes split it, coloured by mesh
axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardviz.core.format import bytes_text
from shardviz.core.program.constraints import (
    Constraint,
    constraints_in_words,
    fold_constraints,
    logical_name,
)
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_folds import (
    BACKWARD,
    LOOP,
    call_paths,
    fold_collectives,
    fold_line,
    fold_values,
)
from shardviz.core.program.plan_values import (
    Choice,
    Diagnosis,
    PlannedOp,
    bytes_per_device,
)
from shardviz.core.program.report import Collective
from shardviz.core.wording import pictures as wording
from shardviz.core.wording.plan import what_choice_does
from shardviz.picture.page import (
    and_more,
    broken,
    page,
    paragraphs,
    sentences,
    shortened,
    text_page,
    text_width,
    titled,
    unfolded,
    wrapped,
)
from shardviz.picture.picture import Label, Picture
from shardviz.picture.tables import (
    Rectangle,
    axis_legend,
    column_heads,
    lines_at,
    rectangle_tiles,
    short_type,
    value_bars,
    value_bars_width,
)

LETTERS = 118  # of a line of an error in a picture
MOST_VALUES, MOST_TEXT_LINES, MOST_FOLDS, MOST_CONSTRAINTS = 40, 60, 14, 8
PITCH, BARS_WIDE, GAP, INDENT = 17.0, 96.0, 16.0, 10.0
WIDEST = (230.0, 150.0, BARS_WIDE, 190.0, 230.0, 130.0)  # points, per column
HEADS = ("value", "type", "sharding", "axes from", "estimated", "line")
_BARS = 2  # the column of the sharding
_TONES = ("text", "muted", "", "text", "warn", "muted")
UNSHORTENED = ("axes from", "estimated")  # what people read a plan for, however long


def draw_plan(
    plan: Plan, limit: int = MOST_VALUES, title: str | None = None
) -> Picture:
    """The values of a program: type, sharding, origin of its axes, and collectives.

    Args:
        limit: how many values to show, in program order; of more, the largest come
            first.
    """
    head = titled(title, _head(plan))
    if plan.error:
        return _refused(plan, head)
    rows, labels, y, heading = value_rows(plan, limit), [], PITCH / 2, ""
    starts = _column_starts(rows)
    labels = column_heads(starts, HEADS)
    bars: list[Rectangle] = []
    for row in rows:
        # The calls around several values are said once, above the first.
        if row.heading and row.heading != heading:
            y += PITCH
            labels.append(Label(0, y, row.heading, "start", "axis", "muted"))
        y, heading = y + PITCH, row.heading
        added = _row_labels(row, starts, y)
        labels += added
        bars += value_bars(row.op, plan.mesh, BARS_WIDE, starts[_BARS], y)
        y = max(y, *(label.y for label in added))
    more = []
    if len(plan.ops) > limit:
        more = [
            *and_more(len(plan.ops) - limit, "value"),
            wording.largest_values_first(len(plan.ops)),
        ]
    return page(
        rectangle_tiles(bars),
        labels,
        title=head,
        notes=[*more, *constraint_lines(plan.constraints), *map(str, plan.notes)],
        legend=axis_legend(plan.mesh),
        size=(starts[-1] + WIDEST[-1] / 2, y + PITCH / 2),
        alt=sentences([_head(plan), *_table(rows, 10_000), *more[:1]]),
        colormap="bars",
        groups=10,
        facts={"kind": "plan"},
    )


def _refused(plan: Plan, head: str) -> Picture:
    """A program without a plan: why, and what would give it one."""
    error, *others = [*_refusal(plan), *constraint_lines(plan.constraints)]
    # Only the error is red, not the choices that follow.
    lines = [(line, "bad") for line in wrapped(error, LETTERS, "  ")]
    lines += [(line, "") for line in others]
    alt = sentences([_head(plan), error, *others])
    return text_page(lines, title=head, alt=alt, facts={"kind": "plan"})


def _column_starts(rows: Sequence[ValueRow]) -> list[float]:
    """Where every column begins, in points: as wide as its words, within bounds."""
    starts = [0.0]
    for column, head in enumerate(HEADS[:-1]):
        widest = text_width(head, 8.0)
        for row in rows:
            if column == _BARS:
                wide = value_bars_width(row.op, BARS_WIDE)
            elif column:
                wide = text_width(row.cells[column], 9.0)
            else:
                wide = text_width(row.cells[0], 9.0, mono=True) + row.indent
            widest = max(widest, wide)
        starts.append(starts[-1] + min(widest, WIDEST[column]) + GAP)
    return starts


def _row_labels(row: ValueRow, starts: Sequence[float], y: float) -> list[Label]:
    name = shortened(row.cells[0], WIDEST[0] - row.indent, 9.0, mono=True)
    labels = [Label(row.indent, y, name, "start", "mono", _TONES[0])]
    for column in range(1, len(HEADS)):
        lines = [shortened(row.cells[column], WIDEST[column], 9.0)]
        if HEADS[column] in UNSHORTENED:
            lines = broken(row.cells[column], WIDEST[column], 9.0)
        labels += lines_at(starts[column], y, lines, _TONES[column])
    return labels


def plan_text(plan: Plan, width: int, full: bool = False) -> str:
    """The values of a program, a line each, with their estimated collectives.

    Of more than MOST_VALUES it shows the largest collectives and the largest values,
    with those of its layers as one.

    Args:
        width: letters per line.
        full: every value in a line of its own, however many there are.
    """
    calls = constraint_lines(plan.constraints, full)
    if plan.error:
        lines = [_head(plan), *_refusal(plan), *calls]
        return paragraphs(lines, width, MOST_TEXT_LINES)
    lines = wrapped(_head(plan), width, "  ")
    if full or len(plan.ops) <= MOST_VALUES:
        lines += _table(value_rows(plan, len(plan.ops)), width)
    else:
        lines += _largest_collectives(plan) + _largest_values(plan)
    if calls:
        lines.append(paragraphs(calls, width))
    if plan.notes:
        lines.append(paragraphs([*map(str, plan.notes)], width, MOST_TEXT_LINES))
    return "\n".join(lines)


def _head(plan: Plan) -> str:
    split = sum(1 for op in plan.ops if op.spec.axes)
    return wording.plan_head(plan, split)


def constraint_lines(
    constraints: Sequence[Constraint], full: bool = False
) -> list[str]:
    """What became of the constraint calls of a program: those that did nothing, and
    why.

    Calls that differ in nothing share a line. A sentence that holds for several is
    written once.

    Args:
        full: every call, and also those that are constrained as was wanted.
    """
    if not constraints:
        return []
    folds, said = fold_constraints(constraints), set()
    most = len(folds)
    if not full:
        folds, most = (
            [fold for fold in folds if fold.first.wants_attention],
            MOST_CONSTRAINTS,
        )
    lines = [f"Constraints, {constraints_in_words(constraints)}"]
    for fold in folds[:most]:
        one, call = fold.first, fold.first.call
        if one.names is not None:
            call += f" ({', '.join(map(logical_name, one.names))})"
        if fold.count > 1:
            call += f" × {fold.count:,}"
        sentence = str(one.sentence)
        words = "" if sentence in said else sentence
        said.add(sentence)
        # The sentence of a call that acts says what it became, too.
        if not (one.acts and words):
            words = f"{one.effect}. {words}"
        lines.append(f"  {f'{one.source} '.lstrip()}{call}: {words}")
    left = sum(fold.count for fold in folds[most:])
    return lines + [f"  {more}" for more in and_more(left, "call")]


def _largest_collectives(plan: Plan) -> list[str]:
    """The estimated collectives, the largest first, a line for those of all layers."""
    folds = fold_collectives(plan.collectives)
    if not folds:
        return []
    lines = [wording.LARGEST_COLLECTIVES]
    lines += [f"  {fold_line(one)}" for one in folds[:MOST_FOLDS]]
    for more in and_more(len(unfolded(folds[MOST_FOLDS:])), "collective"):
        lines.append(f"  {more}")
    return lines


def _largest_values(plan: Plan) -> list[str]:
    """The values that take most of each device, a line for those of all layers."""
    # Several lines may have one name: each keeps the bytes of its own value.
    folds = [
        (bytes_per_device(f.items[0], plan.mesh), f) for f in fold_values(plan.ops)
    ]
    folds.sort(key=lambda entry: -entry[0] * len(entry[1].items))
    lines = [wording.LARGEST_VALUES]
    for size, one in folds[:MOST_FOLDS]:
        op, name = one.items[0], one.name
        if op.backward:
            name += ", backward"
        parts = (name, short_type(op.dtype, op.shape), str(op.spec), op.source)
        words = " · ".join(filter(None, parts))
        lines.append(f"  {one.count}{bytes_text(size)} {words}")
    left = unfolded([fold for _, fold in folds[MOST_FOLDS:]])
    return lines + and_more(len(left), "value")


def _table(rows: Sequence[ValueRow], width: int) -> list[str]:
    names = max((len(row.name) for row in rows), default=0)
    types = max((len(row.type) for row in rows), default=0)
    # Further lines of a value stand below its spec, unless its name is very long.
    indent = " " * min(names + types + 4, width // 2)
    lines, heading = [], ""
    for row in rows:
        if row.heading and row.heading != heading:
            lines.append(row.heading)
        heading = row.heading
        text = f"{row.name:<{names}}  {row.type:<{types}}  {row.words}"
        lines += wrapped(text, width, indent)
    return lines


def _refusal(plan: Plan) -> list[str]:
    return [f"✗ {plan.error}", *diagnosis_lines(plan.diagnosis)]


def diagnosis_lines(found: Diagnosis | None) -> list[str]:
    """Why Explicit axes refuse a program, and what each of the choices would cost."""
    if found is None:
        return []
    where = f" at {found.source}" if found.source else ""
    lines = [f"{found.op}{where}: {found.problem}"]
    lines += [f"  operand {operand}" for operand in found.operands]
    for choice in found.choices:
        cost, words = choice_words(choice)
        lines.append(f"  out_sharding={choice.out_sharding}  ({cost})  {words}")
    return lines


def choice_words(choice: Choice) -> tuple[str, str]:
    """What a choice costs and what it does, without the sharding that it begins with.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> choice_words(Choice(Spec.parse("x"), ()))
    ('nothing moves, estimated', 'nothing moves.')
    """
    size = choice.bytes_per_device
    cost = "nothing moves, estimated"
    if size is None:
        cost = "known once compiled"
    elif size:
        cost = f"{bytes_text(size)}, estimated"
    return cost, what_choice_does(choice)


@dataclass(frozen=True)
class ValueRow:
    """One value of the table: itself, its estimated collectives, the calls around it."""

    op: PlannedOp
    collectives: tuple[Collective, ...]
    path: tuple[str, ...] = ()

    @property
    def indent(self) -> float:
        """How far the name stands in, in points, below the heading of its calls."""
        return INDENT if self.path else 0.0

    @property
    def name(self) -> str:
        """Its name in a line of text, where blanks at the start would be lost."""
        return f"· {self.op.name}" if self.path else self.op.name

    @property
    def type(self) -> str:
        """Its type in short: `f32[8, 4]`."""
        return short_type(self.op.dtype, self.op.shape)

    @property
    def cells(self) -> tuple[str, ...]:
        """A text for each of HEADS; none for the sharding, which is drawn."""
        op, name, origins, estimate = self.op, self.op.name, [], []
        if self.marks:
            name += f"  ({self.marks})"
        for axis, origin in op.origins.items():
            origins.append(f"{axis} {origin.name or origin.kind}")
        for one in self.collectives:
            estimate.append(f"{one.kind} {one.amount}")
        words = ", ".join(origins), ", ".join(estimate)
        return (name, self.type, "", *words, op.source)

    @property
    def words(self) -> str:
        """The same for a line of text, after its name and type."""
        op, parts = self.op, [str(self.op.spec)]
        for axis, origin in op.origins.items():
            # Of a value whose axes are all its own it would say nothing new.
            if any(other.name != op.name for other in op.origins.values()):
                parts.append(f"{axis} from {origin.name or origin.kind}")
        parts.append(self.marks)
        for one in self.collectives:
            parts.append(f"{one.kind} {one.amount}{one.over}")
        return " · ".join(filter(None, [*parts, op.source]))

    @property
    def marks(self) -> str:
        """What it is inside of, where its path has not said it: `loop body × 12`."""
        op, marks = self.op, []
        if op.region and LOOP not in self.path:
            times = "" if op.trips in (None, 1) else f" × {op.trips:,}"
            marks.append(f"{op.region}{times}")
        if op.manual and op.region != "manual":
            marks.append("manual")
        if op.backward and BACKWARD not in self.path:
            marks.append("backward")
        if not op.covered:
            marks.append("not covered")
        return ", ".join(marks)

    @property
    def heading(self) -> str:
        """The calls around it, and how often they run: `loop / mlp, runs 12 times`."""
        heading, trips = " / ".join(self.path), self.op.trips
        if LOOP in self.path and trips not in (None, 1):
            heading += f", runs {trips:,} times"
        return heading


def value_rows(plan: Plan, limit: int = MOST_VALUES) -> list[ValueRow]:
    """The values worth a row, in program order: all of them where they are few.

    Of many, those with the largest estimated collectives come first, then the largest
    on each device, each without the calls around it.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> ops = [PlannedOp(f"op_{n}", "op", shape=(n,), dtype="f") for n in range(100)]
    >>> plan = Plan("f", make_mesh(data=2), tuple(ops))
    >>> [row.op.name for row in value_rows(plan, 2)]
    ['op_99', 'op_98']
    """
    moves: dict[str, list[Collective]] = {}
    for one in plan.collectives:
        moves.setdefault(one.value, []).append(one)
    rows = []
    if len(plan.ops) <= limit:
        for op, path in zip(plan.ops, call_paths(plan.ops), strict=True):
            rows.append(ValueRow(op, tuple(moves.get(op.name, ())), path))
        return rows

    def size(op: PlannedOp) -> tuple[int, int]:
        moved = sum(one.bytes_in_all for one in moves.get(op.name, ()))
        return moved, bytes_per_device(op, plan.mesh)

    for op in sorted(plan.ops, key=size, reverse=True)[:limit]:
        rows.append(ValueRow(op, tuple(moves.get(op.name, ()))))
    return rows
