"""What of a plan stands on a page: which values, in how many words, and the way of an axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardviz.core.errors import plural
from shardviz.core.program.propagation.plan import Plan
from shardviz.core.program.propagation.planned import PlannedOp
from shardviz.core.program.propagation.record import Record
from shardviz.core.program.report import Collective
from shardviz.picture.spec_bars import split_axis
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
    >>> from shardviz.core.program.propagation.planned import Step
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
