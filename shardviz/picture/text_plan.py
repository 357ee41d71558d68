"""Plans, their stories and the rungs in letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardviz.core.errors import plural
from shardviz.core.program.propagation.difference import PlanDiff
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.propagation.story import Story
from shardviz.core.program.rungs import Comparison, Rungs
from shardviz.picture.draw_plan import diagnosis_lines
from shardviz.picture.plan_rows import (
    MOST_VALUES,
    ValueRow,
    more_values,
    moved_words,
    plan_head,
    value_rows,
)
from shardviz.picture.spec_bars import short_type
from shardviz.picture.text_boxes import wrapped

MOST_LINES = 60
MOST_MOVES, LEAST_VALUES = 40, 12  # of a difference


def plan_text(plan: Plan, width: int) -> str:
    """The values of a program, a line each, and what each is estimated to move.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.spec import Spec
    >>> from shardviz.core.program.propagation.planned import PlannedOp
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


def story_text(story: Story, width: int) -> str:
    """The story of one value, a sentence a line."""
    op = story.op
    head = f"{op.name} {short_type(op.dtype, op.shape)} {op.spec}"
    return flowing([head, *story.lines], width)


def difference_text(found: PlanDiff, width: int) -> str:
    """What changes from one plan to another: in all, the collectives, then the values.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.propagation.planned import PlannedOp
    >>> from shardviz.core.program.propagation.record import Record
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
    shown = _first_of(found.moves, MOST_MOVES, "collective")
    room = max(MOST_LINES - len(found.head) - len(shown) - 1, LEAST_VALUES)
    return flowing([*found.head, *shown, *_first_of(found.values, room, "value")], width)


def _first_of(lines: Sequence[str], most: int, noun: str) -> list[str]:
    left = len(lines) - most
    return [*lines[:most], *([f"and {plural(left, 'more ' + noun)}"] if left > 0 else [])]


def rungs_text(found: Rungs | Comparison, width: int) -> str:
    """Rungs, or what changed between two of them, a sentence a line."""
    head = [f"{found.program.name} on {found.program.mesh}"] if isinstance(found, Rungs) else []
    return flowing([*head, *found.lines], width)


def flowing(lines: Iterable[str], width: int) -> str:
    """Lines wrapped, each with what follows of it set in; many are cut and counted.

    >>> print(flowing(["one two three"], 8))
    one two
      three
    """
    found = list(lines)
    left = len(found) - MOST_LINES
    if left > 0:
        found = [*found[:MOST_LINES], f"and {left:,} more lines"]
    out = []
    for line in found:
        indent = " " * (len(line) - len(line.lstrip()))
        out += wrapped(line, width, indent + "  ") or [""]
    return "\n".join(out)
