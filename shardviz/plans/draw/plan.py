"""Pictures and text of plans, of explanations, and of differences between plans.

A plan is shown as a table of values with sharding, axis origins, cost and source line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardviz.base.collective import Collective, sent_in_all
from shardviz.base.display import Fact
from shardviz.base.format import bytes_text
from shardviz.draw import words as wording
from shardviz.draw.page import (
    and_more,
    page,
    paragraphs,
    sentences,
    text_page,
    titled,
    unfolded,
    wrapped,
)
from shardviz.draw.picture import Picture
from shardviz.draw.tables import (
    Column,
    Row,
    axis_legend,
    column_table,
    rectangle_tiles,
    short_type,
)
from shardviz.plans.explanation import Explanation
from shardviz.plans.plan import Plan
from shardviz.plans.plan_difference import CollectiveChange, PlanDiff
from shardviz.plans.plan_folds import (
    BACKWARD,
    LOOP,
    call_paths,
    fold_collectives,
    fold_line,
    fold_values,
)
from shardviz.plans.plan_values import (
    PlannedOp,
    bytes_per_device,
)
from shardviz.plans.words.plan import axis_from, difference_head, plan_head
from shardviz.programs.constraints import (
    Constraint,
    constraints_in_words,
    fold_constraints,
    logical_name,
)

# Characters per line of text in a picture.
LETTERS = 118
MOST_VALUES, MOST_TEXT_LINES, MOST_FOLDS, MOST_CONSTRAINTS = 40, 60, 14, 8
INDENT = 10.0
# No line limit for origins and estimates, which are what people read a plan for.
COLUMNS = (
    Column("value", 230.0, mono=True),
    Column("type", 150.0, "muted"),
    Column("sharding", 96.0),
    Column("axes from", 190.0, lines=None),
    Column("estimated, sent", 230.0, "warn", lines=None),
    Column("line", 130.0, "muted"),
)


@dataclass(frozen=True)
class ValueRow:
    """One value of the table, with its estimated collectives and enclosing calls."""

    op: PlannedOp
    collectives: tuple[Collective, ...]
    path: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """The short type of the value, such as `f32[8, 4]`."""
        return short_type(self.op.dtype, self.op.shape)

    @property
    def origins(self) -> list[str]:
        """The origins of the axes; empty if the value itself is the origin of all."""
        op, parts, elsewhere = self.op, list[str](), False
        for axis, origin in op.origins.items():
            own = origin.name == op.name
            if origin.kind == "constraint":
                own = op.opcode == "sharding_constraint" and origin.source == op.source
            parts.append(axis_from(axis, origin))
            elsewhere = elsewhere or not own
        return parts if elsewhere else []

    @property
    def estimate(self) -> list[str]:
        """The estimated collectives as text: kind, bytes sent and axes."""
        estimate = []
        for collective in self.collectives:
            amount = f"{collective.amount}{collective.over}"
            estimate.append(f"{collective.kind} {amount}")
        return estimate

    @property
    def marks(self) -> str:
        """Remarks on the value, such as `loop body × 12`, unless `path` has them."""
        op, marks = self.op, []
        if op.region and LOOP not in self.path:
            mark = op.region
            if op.trips not in (None, 1):
                mark += f" × {op.trips:,}"
            marks.append(mark)
        if op.manual and op.region != "manual":
            marks.append("manual")
        if op.backward and BACKWARD not in self.path:
            marks.append("backward")
        if not op.covered:
            marks.append("not covered")
        if op.memory_kind not in ("", "device"):
            marks.append(f"in {op.memory_kind}")
        return ", ".join(marks)

    @property
    def heading(self) -> str:
        """The enclosing calls and trip count: `loop / mlp, runs 12 times`."""
        heading, trips = " / ".join(self.path), self.op.trips
        if LOOP in self.path and trips not in (None, 1):
            heading += f", runs {trips:,} times"
        return heading


def value_rows(plan: Plan, limit: int = MOST_VALUES) -> list[ValueRow]:
    """Returns the rows to show: all values in program order, if at most `limit`.

    Otherwise returns the largest `limit` values, by bytes sent in estimated collectives and
    then by bytes on each device, without their enclosing calls.

    >>> from shardviz.base.mesh import make_mesh
    >>> ops = [PlannedOp(f"op_{n}", "op", shape=(n,), dtype="f") for n in range(100)]
    >>> plan = Plan("f", make_mesh(data=2), tuple(ops))
    >>> [row.op.name for row in value_rows(plan, 2)]
    ['op_99', 'op_98']
    """
    moves: dict[str, list[Collective]] = {}
    for collective in plan.collectives:
        moves.setdefault(collective.value, []).append(collective)
    rows = []
    for op in plan.ops:
        rows.append(ValueRow(op, tuple(moves.get(op.name, ()))))
    if len(rows) <= limit:
        paths = call_paths(plan.ops)
        pairs = zip(rows, paths, strict=True)
        return [ValueRow(row.op, row.collectives, path) for row, path in pairs]

    def size(row: ValueRow) -> tuple[int, int]:
        moved = sent_in_all(row.collectives)
        return moved, bytes_per_device(row.op, plan.mesh)

    return sorted(rows, key=size, reverse=True)[:limit]


def draw_plan(
    plan: Plan, limit: int = MOST_VALUES, title: str | None = None
) -> Picture:
    """Draws a plan as a table: types, shardings, axis origins and collectives.

    Args:
        limit: the maximum number of values. If the plan has more, the table shows the
            largest ones.
    """
    head = titled(title, _head(plan))
    calls = constraint_lines(plan.without_error.constraints)
    if plan.error:
        error, *call_lines = [f"✗ {plan.error}", *calls]
        # Only the error is red, not the constraint calls after it.
        lines = [(line, "bad") for line in wrapped(error, LETTERS, "  ")]
        lines += [(line, "") for line in call_lines]
        alt = sentences([_head(plan), error, *call_lines])
        return text_page(lines, title=head, alt=alt)
    values, rows = value_rows(plan, limit), []
    for value in values:
        op, name = value.op, value.op.name
        if value.marks:
            name += f"  ({value.marks})"
        words = ", ".join(value.origins), ", ".join(value.estimate)
        cells = (name, value.type, (op, plan.mesh), *words, op.source)
        rows.append(Row(cells, value.heading, INDENT * bool(value.path)))
    labels, bars, size = column_table(COLUMNS, rows)
    left_out = and_more(len(plan.ops) - limit, "value")
    if left_out:
        left_out.append(wording.largest_values_first(len(plan.ops)))
    return page(
        rectangle_tiles(bars),
        labels,
        title=head,
        notes=[*left_out, *calls, *map(str, plan.notes)],
        legend=axis_legend(plan.mesh),
        size=size,
        alt=sentences([_head(plan), *_table(values, 10_000), *left_out[:1]]),
        colormap="bars",
        groups=10,
    )


def plan_text(plan: Plan, width: int, full: bool = False) -> str:
    """Formats a plan as text: one line per value, with its estimated collectives.

    A plan with more than MOST_VALUES values shows only the largest collectives and
    values, with repeated layers folded.

    Args:
        width: characters per line.
        full: whether to show one line per value for any number of values.
    """
    calls = constraint_lines(plan.without_error.constraints, full)
    if plan.error:
        lines = [_head(plan), f"✗ {plan.error}", *calls]
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
    split = sum(1 for op in plan.without_error.ops if op.spec.axes)
    return plan_head(plan, split)


def _table(rows: Sequence[ValueRow], width: int) -> list[str]:
    names = max((len(row.op.name) + 2 * bool(row.path) for row in rows), default=0)
    types = max((len(row.type) for row in rows), default=0)
    # Continuation lines are indented to the spec, unless names are very long.
    indent = " " * min(names + types + 4, width // 2)
    lines, heading = [], ""
    for row in rows:
        if row.heading and row.heading != heading:
            lines.append(row.heading)
        heading = row.heading
        name = row.op.name
        if row.path:  # leading spaces would be lost
            name = f"· {name}"
        parts = [str(row.op.spec), *row.origins, row.marks, *row.estimate]
        words = " · ".join(filter(None, [*parts, row.op.source]))
        lines += wrapped(
            f"{name:<{names}}  {row.type:<{types}}  {words}", width, indent
        )
    return lines


def constraint_lines(
    constraints: Sequence[Constraint], full: bool = False
) -> list[str]:
    """Describes the constraint calls that need attention, such as those without effect.

    Equal calls share a line. A sentence that applies to several calls is written once.

    Args:
        full: whether to include the calls that had the expected effect.
    """
    if not constraints:
        return []
    folds, written = fold_constraints(constraints), set()
    limit = len(folds)
    if not full:
        folds = [fold for fold in folds if fold[0].wants_attention]
        limit = MOST_CONSTRAINTS
    lines = [f"Constraints, {constraints_in_words(constraints)}"]
    for constraint, count in folds[:limit]:
        call = constraint.call
        if constraint.names is not None:
            call += f" ({', '.join(map(logical_name, constraint.names))})"
        if count > 1:
            call += f" × {count:,}"
        words = str(constraint.sentence)
        if words in written:
            words = ""
        written.add(words)
        # If a call adds a constraint, its sentence already names the effect.
        if not (constraint.acts and words):
            words = f"{constraint.effect}. {words}"
        lines.append(f"  {f'{constraint.source} '.lstrip()}{call}: {words}")
    hidden_calls = sum(count for _, count in folds[limit:])
    return lines + [f"  {line}" for line in and_more(hidden_calls, "call")]


def _largest_collectives(plan: Plan) -> list[str]:
    """The largest estimated collectives, one line each, with repeated layers folded."""
    folds = fold_collectives(plan.collectives)
    if not folds:
        return []
    lines = [wording.LARGEST_COLLECTIVES]
    lines += [f"  {fold_line(group)}" for group in folds[:MOST_FOLDS]]
    for line in and_more(len(unfolded(folds[MOST_FOLDS:])), "collective"):
        lines.append(f"  {line}")
    return lines


def _largest_values(plan: Plan) -> list[str]:
    """The largest values on each device, one line each, with repeated layers folded."""
    # Keep the bytes with the fold: several folds may have the same name.
    folds = []
    for fold in fold_values(plan.ops):
        folds.append((bytes_per_device(fold.items[0], plan.mesh), fold))
    folds.sort(key=lambda entry: -entry[0] * len(entry[1].items))
    lines = [wording.LARGEST_VALUES]
    for size, fold_of_size in folds[:MOST_FOLDS]:
        op, name = fold_of_size.items[0], fold_of_size.name
        if op.backward:
            name += ", backward"
        parts = (name, short_type(op.dtype, op.shape), str(op.spec), op.source)
        words = " · ".join(filter(None, parts))
        lines.append(f"  {fold_of_size.count}{bytes_text(size)} {words}")
    hidden = unfolded([fold for _, fold in folds[MOST_FOLDS:]])
    return lines + and_more(len(hidden), "value")


MOST_LINES = 30


def draw_explanation(explanation: Explanation, title: str | None = None) -> Picture:
    """Draws the explanation of one value, one sentence per line."""
    op = explanation.op
    head = f"Why {op.name} {short_type(op.dtype, op.shape)} is {op.spec}"
    lines: list[tuple[str, str]] = []
    for text in explanation.summary:
        lines += [(line, "") for line in wrapped(text, LETTERS, "   ")]
    alt = sentences([head, *explanation.lines])
    return text_page(lines[:MOST_LINES], title=titled(title, head), alt=alt)


def explanation_text(explanation: Explanation, width: int, full: bool = False) -> str:
    """Formats an explanation, one sentence per line; `full` includes all steps."""
    op = explanation.op
    head = f"{op.name} {short_type(op.dtype, op.shape)} {op.spec}"
    lines = explanation.summary
    if full:
        lines = explanation.lines
    return paragraphs([head, *lines], width)


# Lines of text: at most so many for collectives, and at least so many for values.
MOST_DIFFERENCES, LEAST_VALUES = 40, 12


def draw_plan_difference(
    difference: PlanDiff, limit: int = MOST_VALUES, title: str | None = None
) -> Picture:
    """Draws the changes between two plans: counts, then collectives, then values.

    Args:
        limit: the maximum number of values, and of collectives.
    """
    head = difference_head(difference.before, difference.after)
    lines = [(str(fact), "") for fact in difference.head]
    lines += [(str(fact), _tone(fact)) for fact in difference.moves[:limit]]
    lines += [
        (more, "") for more in and_more(len(difference.moves) - limit, "collective")
    ]
    lines += [(str(fact), "") for fact in difference.values[:limit]]
    lines += [(more, "") for more in and_more(len(difference.values) - limit, "value")]
    shown: list[tuple[str, str]] = []
    for text, tone in lines:
        shown += [(line, tone) for line in wrapped(text, LETTERS, "  ")]
    return text_page(
        shown,
        title=titled(title, head),
        alt=f"{head}: {' '.join(difference.lines[: 2 * limit])}",
    )


def _tone(change: CollectiveChange) -> str:
    """`"bad"` if each device sends more than before, else `"good"`."""
    return "bad" if change.sent_after > change.sent_before else "good"


def plan_difference_text(difference: PlanDiff, width: int) -> str:
    """Formats the changes between two plans: counts, then collectives, then values."""
    head = list(map(str, difference.head))
    # Collectives matter most; values get the remaining lines.
    moves = _first(difference.moves, MOST_DIFFERENCES, "collective")
    lines_left = max(MOST_TEXT_LINES - len(head) - len(moves) - 1, LEAST_VALUES)
    values = _first(difference.values, lines_left, "value")
    return paragraphs([*head, *moves, *values], width, MOST_TEXT_LINES)


def _first(facts: Sequence[Fact], limit: int, noun: str) -> list[str]:
    return [*map(str, facts[:limit]), *and_more(len(facts) - limit, noun)]
