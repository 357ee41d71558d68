"""What the tab Values shows, as plain data: Plan -> JSON, small enough for thousands of values.

Columns instead of objects, and every text once: a plan of 2,000 values stays below 300 kB. The
page steps through the propagation and follows axes by itself; only the explanation of a value,
which is long, is sent when somebody asks.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import ORIGINS, Choice, Diagnosis, PlannedOp, Step
from shardviz.core.program.report import Collective
from shardviz.picture.call_paths import call_paths
from shardviz.picture.palette import LIGHT
from shardviz.picture.plan import choice_words
from shardviz.picture.spec_bars import axis_groups, short_type, split_axis

KINDS = ("argument", "op", "result")
BACKWARD, NOT_COVERED = 1, 2
MOST_NOTES = 20
NOWHERE = -1  # stands for a name that is none of the plan's values


def values_view(plan: Plan | None, explanations: int = 0) -> dict[str, Any]:
    """A plan for the page: columns of numbers, and tables of what they stand for.

    Args:
        plan: None where there is none yet.
        explanations: a plan of at most so many values brings every value's explanation with it,
            for pages without a kernel.

    Returns:
        JSON: `text` is every text once; `specs`, `types`, `scopes` and `origins` are tables;
        `columns` has a number a value; `steps` has every step of the propagation in order.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> view = values_view(plan)
    >>> view["count"], view["text"][view["columns"]["name"][0]], view["words"]
    (1, 'x', '1 value, 0 split')
    """
    if plan is None:
        return {"count": 0, "error": "", "waiting": True}
    texts = _Table()
    view = {
        "waiting": False,
        "program": plan.program,
        "mesh": str(plan.mesh),
        "axes": _axes(plan),
        "count": len(plan.ops),
        "words": _words(plan),
        "seconds": seconds_text(plan.seconds) if plan.seconds else "",
        "error": str(plan.error) if plan.error else "",
        "diagnosis": _diagnosis(plan.diagnosis),
        "notes": list(plan.notes[:MOST_NOTES]),
        "moreNotes": max(0, len(plan.notes) - MOST_NOTES),
        "kinds": list(KINDS),
        "originKinds": list(ORIGINS),
        **_values(plan, texts),
        **_steps(plan),
        "moves": _moves(plan, texts),
        "explanations": _explanations(plan, texts) if len(plan.ops) <= explanations else {},
    }
    return {**view, "text": texts.items}


def explanation_view(plan: Plan | None, name: str) -> dict[str, Any]:
    """What the page shows beside a picked value: its explanation, its rule, where it stands.

    Args:
        plan: the plan that the page shows; None where there is none.
        name: the value's name; what is none comes back with an error in words.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> explanation_view(plan, "y")["error"]
    "The plan of f has 1 value, and none is 'y'. ...Name one of plan.ops."
    """
    shown: dict[str, Any] = {"value": name, "lines": [], "rule": "", "op": "", "stack": []}
    if plan is None:
        return {**shown, "error": "There is no plan yet."}
    try:
        op = plan.op(name)
        lines = plan.why(op).lines
    except ShardvizError as error:
        return {**shown, "error": str(error)}
    return {
        "value": op.name,
        "lines": list(lines),
        "rule": op.rule,
        "op": op.op,
        "stack": list(op.stack or filter(None, [op.source])),
        "error": "",
    }


class _Table:
    """Things kept once; a number stands for each."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def add(self, key: Hashable, item: Any = None) -> int:
        """The number of what has this key; a new one where it is new. The item is the key's own
        where none is given.
        """
        number = self._numbers.setdefault(key, len(self.items))
        if number == len(self.items):
            self.items.append(key if item is None else item)
        return number


def _axes(plan: Plan) -> list[dict[str, Any]]:
    groups, mesh = axis_groups(plan.mesh), plan.mesh
    return [
        {"name": name, "size": size, "colour": LIGHT.groups[groups[name]]}
        for name, size in mesh.shape.items()
    ]


def _words(plan: Plan) -> str:
    split = sum(1 for op in plan.ops if op.spec.axes)
    parts = [f"{plural(len(plan.ops), 'value')}, {split:,} split"]
    if plan.collectives:
        parts.append(f"{plural(len(plan.collectives), 'collective')} estimated")
    return " · ".join(parts)


def _diagnosis(found: Diagnosis | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "op": found.op,
        "source": found.source,
        "problem": found.problem,
        "operands": list(found.operands),
        "choices": [_choice(c) for c in found.choices],
    }


def _choice(choice: Choice) -> dict[str, str]:
    cost, words = choice_words(choice)
    return {"spec": str(choice.out_sharding), "cost": cost, "words": words}


def _values(plan: Plan, texts: _Table) -> dict[str, Any]:
    """The columns, and the tables that their numbers stand for."""
    specs, types, scopes, origins = _Table(), _Table(), _Table(), _Table()
    index = {op.name: i for i, op in enumerate(plan.ops)}
    columns: dict[str, list[int]] = {
        name: []
        for name in ("name", "kind", "opcode", "type", "spec", "source", "scope", "region",
                     "origins", "flags")
    }  # fmt: skip
    for op, path in zip(plan.ops, call_paths(plan.ops), strict=True):
        row = {
            "name": texts.add(op.name),
            "kind": KINDS.index(op.kind),
            "opcode": texts.add(op.opcode),
            "type": types.add((op.dtype, op.shape), [short_type(op.dtype, op.shape), *op.shape]),
            "spec": specs.add((op.spec, len(op.shape)), _spec(op.spec, op.shape, plan)),
            "source": texts.add(op.source),
            "scope": scopes.add(path, list(path)),
            "region": texts.add(op.region),
            "origins": origins.add(_origin_key(op), _origins(op, texts)),
            "flags": BACKWARD * op.backward + NOT_COVERED * (not op.covered),
        }
        for name, number in row.items():
            columns[name].append(number)
    return {
        "columns": columns,
        "specs": specs.items,
        "types": types.items,
        "scopes": scopes.items,
        "origins": origins.items,
        "operands": [[index[n] for n in op.operands if n in index] for op in plan.ops],
        "trips": {i: op.trips for i, op in enumerate(plan.ops) if op.trips not in (None, 1)},
        "valueNotes": {i: texts.add(op.note) for i, op in enumerate(plan.ops) if op.note},
    }


def _spec(spec: Spec, shape: Sequence[int], plan: Plan) -> list[Any]:
    """The text, a dimension at a time its axes as [number in the mesh, parts, text], the marks."""
    names, sizes = plan.mesh.axis_names, plan.mesh.shape
    dims = []
    for dim in range(len(shape)):
        cuts = []
        for axis in spec.dims[dim] if dim < len(spec.dims) else ():
            parent, parts = split_axis(axis, sizes)
            cuts.append([names.index(parent) if parent in names else NOWHERE, parts, axis])
        dims.append(cuts)
    return [str(spec), dims, sorted(spec.unreduced)]


def _origin_key(op: PlannedOp) -> Hashable:
    return tuple((axis, o.kind, o.name, o.source) for axis, o in op.origins.items())


def _origins(op: PlannedOp, texts: _Table) -> list[list[Any]]:
    return [
        [axis, ORIGINS.index(o.kind), texts.add(o.name), texts.add(o.source)]
        for axis, o in op.origins.items()
    ]


def _steps(plan: Plan) -> dict[str, Any]:
    """Every step as [number, op, moves], a move as [axis, from, to]: values and axes by number.

    `to` is one number where the axis reached one value, and a list where it reached several.
    """
    axes, index = _Table(), {op.name: i for i, op in enumerate(plan.ops)}
    found = sorted({s for op in plan.ops for s in op.steps}, key=_when)
    steps = [
        [number, index.get(op, NOWHERE), [_move(s, index, axes) for s in some]]
        for (number, op), some in groupby(found, key=lambda s: (s.number, s.op))
    ]
    return {"steps": steps, "stepAxes": axes.items}


def _when(step: Step) -> tuple[int, str, str]:
    return step.number, step.op, step.axis


def _move(step: Step, index: dict[str, int], axes: _Table) -> list[Any]:
    to = [index[name] for name in step.to if name in index]
    return [axes.add(step.axis), index.get(step.origin, NOWHERE), to[0] if len(to) == 1 else to]


def _moves(plan: Plan, texts: _Table) -> dict[int, list[list[Any]]]:
    """What is estimated to move, by the number of the value that causes it: a list of
    [kind, axes, bytes in words, trips, cause] each.
    """
    index = {op.name: i for i, op in enumerate(plan.ops)}
    moved: dict[int, list[list[Any]]] = {}
    for one in plan.collectives:
        moved.setdefault(index.get(one.value, NOWHERE), []).append(_collective(one, texts))
    return moved


def _collective(one: Collective, texts: _Table) -> list[Any]:
    size = texts.add(bytes_text(one.bytes_per_device))
    axes = [texts.add(axis) for axis in one.mesh_axes]
    return [texts.add(one.kind), axes, size, one.trips or 0, texts.add(one.cause)]


def _explanations(plan: Plan, texts: _Table) -> dict[str, dict[str, Any]]:
    """Every value's explanation, its texts by number: most sentences belong to many of them."""
    found = {}
    for op in plan.ops:
        explanation = explanation_view(plan, op.name)
        found[op.name] = {
            name: [texts.add(line) for line in said] if isinstance(said, list) else texts.add(said)
            for name, said in explanation.items()
        }
    return found
