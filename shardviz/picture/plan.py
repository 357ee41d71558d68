"""Plans: the values of a program with their shardings, and the explanation of one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardviz.core.format import bytes_text, plural
from shardviz.core.program.constraints import (
    Constraint,
    constraints_in_words,
    fold_constraints,
    logical_name,
)
from shardviz.core.program.explanation import Explanation
from shardviz.core.program.plan import (
    BACKWARD,
    LOOP,
    Plan,
    call_paths,
    fold_collectives,
    fold_line,
    fold_values,
)
from shardviz.core.program.plan_values import Choice, Diagnosis, PlannedOp, Record, bytes_per_device
from shardviz.core.program.report import Collective
from shardviz.picture.page import (
    and_more,
    broken,
    page,
    paragraphs,
    shortened,
    text_page,
    text_width,
    wrapped,
)
from shardviz.picture.picture import Label, Picture
from shardviz.picture.tables import (
    NOT_SPLIT_GROUP,
    Rectangle,
    axis_groups,
    axis_legend,
    column_heads,
    lines_at,
    rectangle_tiles,
    short_type,
    split_axis,
    value_bars,
    value_bars_width,
)

MOST_VALUES, MOST_TEXT_LINES, MOST_FOLDS, MOST_CONSTRAINTS = 40, 60, 14, 8
PITCH, BARS_WIDE, GAP, INDENT = 17.0, 96.0, 16.0, 10.0
WIDEST = (230.0, 150.0, BARS_WIDE, 190.0, 230.0, 130.0)  # points, per column
HEADS = ("value", "type", "sharding", "axes from", "estimated", "line")
_TONES = ("text", "muted", "", "text", "warn", "muted")
UNSHORTENED = ("axes from", "estimated")  # what people read a plan for, however long


def draw_plan(plan: Plan, limit: int = MOST_VALUES, title: str | None = None) -> Picture:
    """The values of a program: type, sharding, origin of its axes, and estimated collectives.

    A sharding is a bar per dimension, split as the mesh axes split it, coloured by mesh axis.

    Args:
        limit: how many values to show, in program order; of more, the largest come first.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> op = PlannedOp("x", "argument", shape=(8, 4), dtype="float32", spec=Spec.parse("data"))
    >>> draw_plan(Plan("f", make_mesh(data=2), (op,))).tiles.tooltip(0)
    'x: dimension 0: split 2 ways by data'
    """
    head = _head(plan) if title is None else title
    if plan.error:
        lines = [*_refusal(plan), *constraint_lines(plan.constraints)]
        # Only the error is red, not the choices that follow.
        error = [(line, "bad") for line in wrapped(lines[0], LETTERS, "  ")]
        texts = [*error, *((line, "") for line in lines[1:])]
        alt = " ".join([f"{head}.", *(t for t, _ in texts)])
        return text_page(texts, title=head, alt=alt, facts={"kind": "plan"})
    rows = value_rows(plan, limit)
    texts = [_cells(row) for row in rows]
    starts = _column_starts(rows, texts)
    labels = column_heads(starts, HEADS)
    bars: list[Rectangle] = []
    y, heading = PITCH / 2, ""
    for row, cells in zip(rows, texts, strict=True):
        if row.heading and row.heading != heading:
            y += PITCH
            labels.append(Label(0, y, row.heading, "start", "axis", "muted"))
        y, heading = y + PITCH, row.heading
        added = _row_labels(row, cells, starts, y)
        labels += added
        bars += value_bars(row.op, plan.mesh, BARS_WIDE, starts[2], y)
        y = max([y, *(v.y for v in added)])
    more = _left_out(plan, limit)
    return page(
        rectangle_tiles(bars),
        labels,
        title=head,
        notes=[*more, *constraint_lines(plan.constraints), *plan.notes],
        legend=axis_legend(plan.mesh),
        size=(starts[-1] + WIDEST[-1] / 2, y + PITCH / 2),
        alt=_alt(plan, rows, more),
        colormap="bars",
        groups=10,
        facts={"kind": "plan"},
    )


def _cells(row: ValueRow) -> tuple[str, ...]:
    op = row.op
    name = f"{op.name}  ({row.marks})" if row.marks else op.name
    return name, short_type(op.dtype, op.shape), "", row.axis_origins, row.estimate, op.source


def _indent(row: ValueRow) -> float:
    return INDENT if row.path else 0.0


def _column_starts(rows: Sequence[ValueRow], texts: Sequence[tuple[str, ...]]) -> list[float]:
    """Where every column begins, in points: as wide as its words, within bounds."""
    starts = [0.0]
    for column, head in enumerate(HEADS[:-1]):
        widths = [text_width(w[column], 9.0, mono=column == 0) for w in texts]
        if column == 0:
            widths = [w + _indent(row) for w, row in zip(widths, rows, strict=True)]
        if column == 2:
            widths = [value_bars_width(row.op, BARS_WIDE) for row in rows]
        widest = max([*widths, text_width(head, 8.0)])
        starts.append(starts[-1] + min(widest, WIDEST[column]) + GAP)
    return starts


def _row_labels(
    row: ValueRow, cells: Sequence[str], starts: Sequence[float], y: float
) -> list[Label]:
    widest = WIDEST[0] - _indent(row)
    name = shortened(cells[0], widest, 9.0, mono=True)
    labels = [Label(_indent(row), y, name, "start", "mono", _TONES[0])]
    for column in range(1, len(HEADS)):
        lines = [shortened(cells[column], WIDEST[column], 9.0)]
        if HEADS[column] in UNSHORTENED:
            lines = broken(cells[column], WIDEST[column], 9.0)
        labels += lines_at(starts[column], y, lines, _TONES[column])
    return labels


def _alt(plan: Plan, rows: Sequence[ValueRow], more: Sequence[str]) -> str:
    values = "; ".join(
        f"{row.op.name} {short_type(row.op.dtype, row.op.shape)} {row.op.spec}"
        + (f", {row.estimate}" if row.collectives else "")
        for row in rows
    )
    return f"Plan of {_head(plan)}. {', '.join([values or 'No values', *more[:1]])}."


def plan_text(plan: Plan, width: int, full: bool = False) -> str:
    """The values of a program, a line each, with their estimated collectives.

    Of more than MOST_VALUES it shows the largest collectives and the largest values, with those of
    its layers as one.

    Args:
        width: letters per line.
        full: every value in a line of its own, however many there are.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> op = PlannedOp("x", "argument", shape=(8,), dtype="float32", spec=Spec.parse("data"))
    >>> print(plan_text(Plan("f", make_mesh(data=2), (op,)), 80))
    f on data=2: 1 value, 1 split, 0 collectives estimated
    x  f32[8]  P('data')
    """
    calls = constraint_lines(plan.constraints, full)
    if plan.error:
        return paragraphs([_head(plan), *_refusal(plan), *calls], width, MOST_TEXT_LINES)
    lines = wrapped(_head(plan), width, "  ")
    if full or len(plan.ops) <= MOST_VALUES:
        lines += _table(value_rows(plan, len(plan.ops)), width)
    else:
        lines += _largest_collectives(plan) + _largest_values(plan)
    if calls:
        lines.append(paragraphs(calls, width))
    if plan.notes:
        lines.append(paragraphs(plan.notes, width, MOST_TEXT_LINES))
    return "\n".join(lines)


def constraint_lines(constraints: Sequence[Constraint], full: bool = False) -> list[str]:
    """What became of the constraint calls of a program: those that did nothing, with the reason.

    Calls that differ in nothing share a line. A sentence that holds for several is written once.

    Args:
        full: every call, and also those that are constrained as was wanted.

    >>> from shardviz.core.program.constraints import NO_MESH
    >>> calls = [Constraint("reshard"), *[Constraint("unbox", "model.py:9", effect=NO_MESH)] * 2]
    >>> print(*constraint_lines(calls), sep="\\n")
    Constraints, 3 calls: 2 no mesh in sight, 1 constrained
      model.py:9 unbox × 2: no mesh in sight. No mesh is in sight, so unbox returns its argument ...
    """
    if not constraints:
        return []
    folds = fold_constraints(constraints)
    shown = folds if full else [fold for fold in folds if fold.first.wants_attention]
    lines, said = [f"Constraints, {constraints_in_words(constraints)}"], set()
    for fold in shown if full else shown[:MOST_CONSTRAINTS]:
        one, times = fold.first, f" × {fold.count:,}" if fold.count > 1 else ""
        names = "" if one.names is None else f" ({', '.join(map(logical_name, one.names))})"
        words = "" if one.sentence in said else one.sentence
        said.add(one.sentence)
        became = "" if one.acts and words else f"{one.effect}. "
        lines.append(f"  {f'{one.source} '.lstrip()}{one.call}{names}{times}: {became}{words}")
    left = sum(fold.count for fold in shown[MOST_CONSTRAINTS:])
    return lines if full else [*lines, *(f"  {m}" for m in and_more(left, "call"))]


def _largest_collectives(plan: Plan) -> list[str]:
    """The estimated collectives, the largest first, a line for those of all layers."""
    folds = fold_collectives(plan.collectives)
    if not folds:
        return []
    left = sum(len(one.items) for one in folds[MOST_FOLDS:])
    lines = [fold_line(one) for one in folds[:MOST_FOLDS]] + and_more(left, "collective")
    return ["estimated collectives, the largest first:", *(f"  {line}" for line in lines)]


def _largest_values(plan: Plan) -> list[str]:
    """The values that take the most of each device, a line for those of all layers."""
    sizes = {op.name: bytes_per_device(op, plan.mesh) for op in plan.ops}
    folds = fold_values(plan.ops)
    folds.sort(key=lambda one: -sizes[one.items[0].name] * len(one.items))
    lines = []
    for one in folds[:MOST_FOLDS]:
        op = one.items[0]
        name = f"{one.name}{', backward' if op.backward else ''}"
        parts = (name, short_type(op.dtype, op.shape), str(op.spec), op.source)
        size = bytes_text(sizes[op.name])
        lines.append(f"  {one.count}{size} {' · '.join(part for part in parts if part)}")
    left = sum(len(one.items) for one in folds[MOST_FOLDS:])
    return ["values, the largest on each device first:", *lines, *and_more(left, "value")]


def _table(rows: Sequence[ValueRow], width: int) -> list[str]:
    cells = [_text_cells(row) for row in rows]
    widths = [max([len(c[i]) for c in cells], default=0) for i in range(2)]
    indent = " " * min(sum(widths) + 4, width // 2)
    lines, heading = [], ""
    for row, (name, short, rest) in zip(rows, cells, strict=True):
        if row.heading and row.heading != heading:
            lines.append(row.heading)
        heading = row.heading
        lines += wrapped(f"{name:<{widths[0]}}  {short:<{widths[1]}}  {rest}", width, indent)
    return lines


def _text_cells(row: ValueRow) -> tuple[str, str, str]:
    op = row.op
    # Blanks at the start of a line would be lost in wrapping.
    name = f"· {op.name}" if row.path else op.name
    origins = [f"{axis} from {o.name or o.kind}" for axis, o in op.origins.items()]
    if all(o.name == op.name for o in op.origins.values()):
        origins = []
    collectives = [f"{c.kind} {c.amount}{c.over}" for c in row.collectives]
    rest = [str(op.spec), *origins, row.marks, *collectives, op.source]
    return name, short_type(op.dtype, op.shape), " · ".join(filter(None, rest))


def _refusal(plan: Plan) -> list[str]:
    return [f"✗ {plan.error}", *diagnosis_lines(plan.diagnosis)]


def diagnosis_lines(found: Diagnosis | None) -> list[str]:
    """Why Explicit axes refuse a program, and what each of the choices instead would cost.

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
    """What a choice costs and what it does, without the sharding that its words begin with.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> choice_words(Choice(Spec.parse("x"), (), "P('x'): nothing moves."))
    ('nothing moves, estimated', 'nothing moves.')
    """
    size = choice.bytes_per_device
    cost = f"{bytes_text(size)}, estimated" if size else "nothing moves, estimated"
    if size is None:
        cost = "known once compiled"
    return cost, choice.words.removeprefix(f"{choice.out_sharding}: ")


@dataclass(frozen=True)
class ValueRow:
    """One value on a page: itself, its estimated collectives, and the calls around it."""

    op: PlannedOp
    collectives: tuple[Collective, ...]
    path: tuple[str, ...] = ()

    @property
    def axis_origins(self) -> str:
        """Where its axes came from: `data x, model w_in`."""
        return ", ".join(f"{axis} {o.name or o.kind}" for axis, o in self.op.origins.items())

    @property
    def estimate(self) -> str:
        """Its estimated collectives: `all-reduce 8 MiB × 12`."""
        return ", ".join(f"{c.kind} {c.amount}" for c in self.collectives)

    @property
    def marks(self) -> str:
        """What it is inside of, where its path does not include that: `loop body × 12`."""
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
        """The calls around it, and how often they run: `loop / mlp, runs 12 times`."""
        trips = self.op.trips
        times = f", runs {trips:,} times" if LOOP in self.path and trips not in (None, 1) else ""
        return " / ".join(self.path) + times


def value_rows(plan: Plan, limit: int = MOST_VALUES) -> list[ValueRow]:
    """The values worth a row, in program order: all of them where they are few.

    Of many, those with the largest estimated collectives come first, then the largest on each
    device, each without the calls around it.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> ops = [PlannedOp(f"op_{n}", "op", shape=(n,), dtype="float32") for n in range(100)]
    >>> plan = Plan("f", make_mesh(data=2), tuple(ops))
    >>> [row.op.name for row in value_rows(plan, 2)]
    ['op_99', 'op_98']
    """
    moves: dict[str, list[Collective]] = {}
    for one in plan.collectives:
        moves.setdefault(one.value, []).append(one)
    if len(plan.ops) <= limit:
        both = zip(plan.ops, call_paths(plan.ops), strict=True)
        return [ValueRow(op, tuple(moves.get(op.name, ())), path) for op, path in both]

    def smallness(op: PlannedOp) -> tuple[int, int]:
        moved = sum(c.bytes_in_all for c in moves.get(op.name, ()))
        return -moved, -bytes_per_device(op, plan.mesh)

    largest = sorted(plan.ops, key=smallness)[: max(limit, 0)]
    return [ValueRow(op, tuple(moves.get(op.name, ()))) for op in largest]


def _left_out(plan: Plan, limit: int) -> list[str]:
    count = len(plan.ops)
    if count <= limit:
        return []
    return [
        *and_more(count - limit, "value"),
        "The values with the largest estimated collectives come first, then those that take the"
        f" most of each device. limit={count} shows all, in the order of the program.",
    ]


def _head(plan: Plan) -> str:
    """A plan in one line: how many values, how many of them split, how many collectives."""
    if plan.error:
        return f"{plan.program} on {plan.mesh}: no plan"
    split = sum(1 for op in plan.ops if op.spec.axes)
    collectives = plural(len(plan.collectives), "collective")
    values = plural(len(plan.ops), "value")
    return f"{plan.program} on {plan.mesh}: {values}, {split:,} split, {collectives} estimated"


LETTERS, MOST_EXPLAINED_LINES = 118, 30
NODE, ARROW, MOST_NODES = 22.0, 34.0, 7


def draw_explanation(explanation: Explanation, title: str | None = None) -> Picture:
    """Why one value is sharded as it is: the path of every axis to it, then the sentences.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> draw_explanation(Explanation(plan, plan.ops[0], ("x is replicated.",))).alt
    'Why x [8] is P(): x is replicated.'
    """
    op = explanation.op
    head = f"Why {op.name} {short_type(op.dtype, op.shape)} is {op.spec}"
    labels, nodes, width = [], [], 240.0
    axes = list(op.origins) or list(dict.fromkeys(op.spec.axes))
    for lane, axis in enumerate(axes):
        lane_labels, lane_nodes, right = _lane(explanation, axis, lane)
        labels, nodes, width = [*labels, *lane_labels], [*nodes, *lane_nodes], max(width, right)
    lines = [line for text in explanation.summary for line in wrapped(text, LETTERS, "   ")]
    return page(
        rectangle_tiles(nodes),
        labels,
        title=head if title is None else title,
        notes=[
            *lines[:MOST_EXPLAINED_LINES],
            *and_more(len(lines) - MOST_EXPLAINED_LINES, "line"),
        ],
        size=(width, (NODE + 10) * len(axes)),
        alt=f"{head}: {' '.join(explanation.lines) or 'no mesh axis reaches it.'}",
        colormap="blocks",
        groups=10,
        facts={"kind": "explanation"},
    )


def _lane(
    explanation: Explanation, axis: str, lane: int
) -> tuple[list[Label], list[Rectangle], float]:
    """One axis: the values that it crossed, with the number of the step between two."""
    plan, op = explanation.plan, explanation.op
    group = axis_groups(plan.mesh).get(split_axis(axis, plan.mesh.shape)[0], NOT_SPLIT_GROUP)
    path = axis_path(plan, op, axis)
    y = lane * (NODE + 10) + NODE / 2
    labels, nodes = [Label(0, y, axis, "start", "axis", "text")], []
    x = max(48.0, *(text_width(a, 9.0) + 14 for a in op.origins or [axis]))
    half = MOST_NODES // 2
    shown = path if len(path) <= MOST_NODES else [*path[:half], *path[-half:]]
    for number, (name, step) in enumerate(shown):
        if number:
            hidden = len(path) - len(shown) if len(shown) < len(path) and number == half else 0
            word = f"… {hidden} …" if hidden else "→" if step is None else f"{step} →"
            between = max(ARROW, text_width(word, 8.0) + 12)
            labels.append(Label(x + between / 2, y, word, "middle", "tick"))
            x += between
        text = shortened(name, 170.0, 9.0, mono=True)
        wide = text_width(text, 9.0, mono=True) + 16
        hint = f"{axis} at {name}" + ("" if step is None else f", by step {step}")
        nodes.append(Rectangle(x, y - NODE / 2, wide, NODE, group, hint))
        labels.append(Label(x + wide / 2, y, text, "middle", "mono"))
        x += wide
    return labels, nodes, x


def axis_path(plan: Record, op: PlannedOp, axis: str) -> list[tuple[str, int | None]]:
    """The path of a mesh axis to a value: the values it crossed, each with its step.

    The first is where the axis was requested. Its step is None, and so is that of the next where
    no steps lead back to it.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import Step
    >>> step = Step(3, "data", "tanh", "x", ("tanh",))
    >>> ops = (PlannedOp("x", "argument"), PlannedOp("tanh", "op", steps=(step,)))
    >>> axis_path(Plan("f", make_mesh(data=2), ops), ops[1], "data")
    [('x', None), ('tanh', 3)]
    """
    sizes = plan.mesh.shape
    parent = split_axis(axis, sizes)[0]
    brought: dict[str, tuple[int, str]] = {}
    for step in sorted((s for o in plan.ops for s in o.steps), key=lambda s: s.number):
        if split_axis(step.axis, sizes)[0] == parent:
            for name in step.to:
                brought.setdefault(name, (step.number, step.origin))
    path: list[tuple[str, int | None]] = []
    here, seen = op.name, set()
    while here in brought and here not in seen:
        seen.add(here)
        number, before = brought[here]
        path.insert(0, (here, number))
        here = before
    if here not in seen:
        path.insert(0, (here, None))
    origin = op.origins.get(axis)
    if origin is not None and origin.name in plan.by_name and origin.name not in dict(path):
        path.insert(0, (origin.name, None))
    return path


def explanation_text(explanation: Explanation, width: int, full: bool = False) -> str:
    """The explanation of one value, a sentence per line; with `full` every step."""
    op = explanation.op
    head = f"{op.name} {short_type(op.dtype, op.shape)} {op.spec}"
    lines = explanation.lines if full else explanation.summary
    return paragraphs([head, *lines], width)
