"""Why one value is sharded as it is: the path of every axis to it, then the sentences."""

from __future__ import annotations

from shardviz.core.program.explanation import Explanation
from shardviz.core.program.plan_values import PlannedOp, Record
from shardviz.picture.page import (
    and_more,
    page,
    paragraphs,
    sentences,
    shortened,
    text_width,
    titled,
    widest,
    wrapped,
)
from shardviz.picture.picture import Label, Picture
from shardviz.picture.tables import (
    NOT_SPLIT_GROUP,
    Rectangle,
    axis_groups,
    rectangle_tiles,
    short_type,
    split_axis,
)

LETTERS, MOST_LINES = 118, 30
NODE, ARROW, MOST_NODES = 22.0, 34.0, 7
LANE = NODE + 10  # points: from one axis to the next


def draw_explanation(explanation: Explanation, title: str | None = None) -> Picture:
    """The values that each mesh axis crossed, a row per axis, and the explanation."""
    op = explanation.op
    head = f"Why {op.name} {short_type(op.dtype, op.shape)} is {op.spec}"
    axes = list(op.origins) or list(dict.fromkeys(op.spec.axes))
    labels: list[Label] = []
    nodes: list[Rectangle] = []
    width = 240.0
    for lane, axis in enumerate(axes):
        width = max(width, _add_lane(explanation, axis, lane * LANE, labels, nodes))
    lines: list[str] = []
    for text in explanation.summary:
        lines += wrapped(text, LETTERS, "   ")
    return page(
        rectangle_tiles(nodes),
        labels,
        title=titled(title, head),
        notes=[*lines[:MOST_LINES], *and_more(len(lines) - MOST_LINES, "line")],
        size=(width, LANE * len(axes)),
        alt=sentences([head, *explanation.lines]),
        colormap="blocks",
        groups=10,
        facts={"kind": "explanation"},
    )


def _add_lane(
    explanation: Explanation,
    axis: str,
    top: float,
    labels: list[Label],
    nodes: list[Rectangle],
) -> float:
    """Adds the path of one axis; where it ends, in points."""
    plan, op = explanation.plan, explanation.op
    path, y = axis_path(plan, op, axis), top + NODE / 2
    parent = split_axis(axis, plan.mesh.shape)[0]
    group = axis_groups(plan.mesh).get(parent, NOT_SPLIT_GROUP)
    labels.append(Label(0, y, axis, "start", "axis", "text"))
    # Rows begin at one place, however long the names of their axes are.
    x = max(48.0, widest(op.origins or [axis], 9.0) + 14)
    half, hidden, shown = MOST_NODES // 2, 0, path
    if len(path) > MOST_NODES:
        shown = [*path[:half], *path[-half:]]
        hidden = len(path) - len(shown)
    for number, (name, step) in enumerate(shown):
        if number:
            word = "→" if step is None else f"{step} →"
            if hidden and number == half:
                word = f"… {hidden} …"
            between = max(ARROW, text_width(word, 8.0) + 12)
            labels.append(Label(x + between / 2, y, word, "middle", "tick"))
            x += between
        text = shortened(name, 170.0, 9.0, mono=True)
        wide = text_width(text, 9.0, mono=True) + 16
        hint = f"{axis} at {name}"
        if step is not None:
            hint += f", by step {step}"
        nodes.append(Rectangle(x, y - NODE / 2, wide, NODE, group, hint))
        labels.append(Label(x + wide / 2, y, text, "middle", "mono"))
        x += wide
    return x


def axis_path(plan: Record, op: PlannedOp, axis: str) -> list[tuple[str, int | None]]:
    """The path of a mesh axis to a value: the values it crossed, each with its step.

    The first is where the axis was requested. Its step is None, and so is that of the
    next where no steps lead back to it.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import Step
    >>> step = Step(3, "data", "tanh", "x", ("tanh",))
    >>> ops = (PlannedOp("x", "argument"), PlannedOp("tanh", "op", steps=(step,)))
    >>> axis_path(Record("f", make_mesh(data=2), ops), ops[1], "data")
    [('x', None), ('tanh', 3)]
    """
    sizes = plan.mesh.shape
    parent = split_axis(axis, sizes)[0]
    steps = []
    for other in plan.ops:
        steps += [s for s in other.steps if split_axis(s.axis, sizes)[0] == parent]
    # The first step that brought the axis to a value is the one that counts.
    brought: dict[str, tuple[int, str]] = {}
    for step in sorted(steps, key=lambda s: s.number):
        for name in step.to:
            brought.setdefault(name, (step.number, step.origin))
    path: list[tuple[str, int | None]] = []
    here, seen = op.name, set()
    while here in brought and here not in seen:
        seen.add(here)
        number, before = brought[here]
        path.insert(0, (here, number))
        here = before
    if here not in seen:  # values of a loop may lead back to themselves
        path.insert(0, (here, None))
    origin = op.origins.get(axis)
    if origin and origin.name in plan.by_name and origin.name not in dict(path):
        path.insert(0, (origin.name, None))
    return path


def explanation_text(explanation: Explanation, width: int, full: bool = False) -> str:
    """The explanation of one value, a sentence per line; with `full` every step."""
    op = explanation.op
    head = f"{op.name} {short_type(op.dtype, op.shape)} {op.spec}"
    lines = explanation.lines if full else explanation.summary
    return paragraphs([head, *lines], width)
