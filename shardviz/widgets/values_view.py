"""The tab Values as plain data: Plan -> JSON, small enough for thousands of values.

Columns instead of objects, and every string once: a plan of 2,000 values stays below 300 kB. The
page steps through the propagation by itself; the explanation of a value is long, so it is sent
only on request.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Any

from shardviz.core.errors import ShardvizError
from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.folding import call_paths
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import ORIGINS, Choice, Diagnosis, PlannedOp, Step
from shardviz.core.program.report import Collective
from shardviz.picture.palette import LIGHT
from shardviz.picture.plan import choice_words
from shardviz.picture.tables import axis_groups, short_type, split_axis

KINDS = ("argument", "op", "result")
BACKWARD, NOT_COVERED = 1, 2
MOST_NOTES = 20
NOWHERE = -1  # the number of a name that is none of the plan's values


def values_view(plan: Plan | None, explanations: int = 0) -> dict[str, Any]:
    """A plan for the page: columns of numbers, and the tables that they index.

    Args:
        plan: None where there is none yet.
        explanations: a plan of at most so many values includes the explanation of each, for pages
            without a kernel.

    Returns:
        JSON: `text` has every string once; `specs`, `types`, `scopes` and `origins` are tables;
        `columns` have one number per value; `steps` are those of the propagation in order.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> view = values_view(plan)
    >>> view["count"], view["text"][view["columns"]["name"][0]], view["words"]
    (1, 'x', '1 value, 0 split')
    """
    if plan is None:
        return {"count": 0, "error": "", "waiting": True}
    strings = _Table()
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
        **_values(plan, strings),
        **_steps(plan),
        "moves": _moves(plan, strings),
        "explanations": _explanations(plan, strings) if len(plan.ops) <= explanations else {},
    }
    return {**view, "text": strings.items}


def explanation_view(plan: Plan | None, name: str) -> dict[str, Any]:
    """The details of a chosen value: its explanation, its sharding rule, its source lines.

    Args:
        plan: on the page; None where there is none.
        name: of the value; the view of an unknown one has an `error`.

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
    """A list of distinct items, each found by its number."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def add(self, key: Hashable, item: Any = None) -> int:
        """The number of the item with this key, which is added where it is new; by default the
        item is the key.
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


def _values(plan: Plan, strings: _Table) -> dict[str, Any]:
    """The columns, and the tables that their numbers index."""
    specs, types, scopes, origins = _Table(), _Table(), _Table(), _Table()
    index = {op.name: i for i, op in enumerate(plan.ops)}
    columns: dict[str, list[int]] = {
        name: []
        for name in ("name", "kind", "opcode", "type", "spec", "source", "scope", "region",
                     "origins", "flags")
    }  # fmt: skip
    for op, path in zip(plan.ops, call_paths(plan.ops), strict=True):
        row = {
            "name": strings.add(op.name),
            "kind": KINDS.index(op.kind),
            "opcode": strings.add(op.opcode),
            "type": types.add((op.dtype, op.shape), [short_type(op.dtype, op.shape), *op.shape]),
            "spec": specs.add((op.spec, len(op.shape)), _spec(op.spec, op.shape, plan)),
            "source": strings.add(op.source),
            "scope": scopes.add(path),
            "region": strings.add(op.region),
            "origins": origins.add(_origins(op, strings)),
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
        "valueNotes": {i: strings.add(op.note) for i, op in enumerate(plan.ops) if op.note},
    }


def _spec(spec: Spec, shape: Sequence[int], plan: Plan) -> list[Any]:
    """The text, the axes of each dimension as [number in the mesh, parts, text], the unreduced."""
    names, sizes = plan.mesh.axis_names, plan.mesh.shape
    dims = []
    for dim in range(len(shape)):
        axes = []
        for axis in spec.dims[dim] if dim < len(spec.dims) else ():
            parent, parts = split_axis(axis, sizes)
            axes.append([names.index(parent) if parent in names else NOWHERE, parts, axis])
        dims.append(axes)
    return [str(spec), dims, sorted(spec.unreduced)]


def _origins(op: PlannedOp, strings: _Table) -> tuple[tuple[str, int, int, int], ...]:
    return tuple(
        (axis, ORIGINS.index(o.kind), strings.add(o.name), strings.add(o.source))
        for axis, o in op.origins.items()
    )


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


def _moves(plan: Plan, strings: _Table) -> dict[int, list[list[Any]]]:
    """The estimated collectives by the number of the value that causes them, each as
    [kind, axes, bytes in words, trips, cause].
    """
    index = {op.name: i for i, op in enumerate(plan.ops)}
    moves: dict[int, list[list[Any]]] = {}
    for one in plan.collectives:
        moves.setdefault(index.get(one.value, NOWHERE), []).append(_collective(one, strings))
    return moves


def _collective(one: Collective, strings: _Table) -> list[Any]:
    size = strings.add(bytes_text(one.bytes_per_device))
    axes = [strings.add(axis) for axis in one.mesh_axes]
    return [strings.add(one.kind), axes, size, one.trips or 0, strings.add(one.cause)]


def _explanations(plan: Plan, strings: _Table) -> dict[str, dict[str, Any]]:
    """The explanation of every value, its strings by number: values share most sentences."""
    found = {}
    for op in plan.ops:
        explanation = explanation_view(plan, op.name)
        found[op.name] = {
            name: [*map(strings.add, part)] if isinstance(part, list) else strings.add(part)
            for name, part in explanation.items()
        }
    return found
