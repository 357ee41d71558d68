"""The values of a plan as data for the page: columns of indices, and tables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from shardviz.base.errors import ShardvizError
from shardviz.base.format import seconds_text
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import JsonDict
from shardviz.compiled.words import stages as wording
from shardviz.draw.tables import short_type, split_axis
from shardviz.plans.plan import Plan
from shardviz.plans.plan_folds import call_paths
from shardviz.plans.plan_values import (
    ORIGINS,
    PlannedOp,
)

KINDS = ("argument", "op", "result")
BACKWARD, NOT_COVERED = 1, 2
MOST_NOTES = 20
# The index of a name that is not a value of the plan.
NOWHERE = -1
COLUMNS = (
    "name",
    "kind",
    "opcode",
    "type",
    "spec",
    "source",
    "scope",
    "region",
    "origins",
    "flags",
)


class _Table:
    """A list of distinct items, each identified by its index."""

    def __init__(self) -> None:
        self._items: dict[Hashable, tuple[int, object]] = {}

    def add(self, key: Hashable, item: object = None) -> int:
        """Returns the index of the item with this key; adds a new item."""
        if item is None:
            item = key
        new = len(self._items), item
        return self._items.setdefault(key, new)[0]

    @property
    def items(self) -> list[object]:
        """The items in order of their indices."""
        return [item for _, item in self._items.values()]


def values_view(plan: Plan | None, explanations: int = 0) -> JsonDict:
    """Converts a plan to data for the page: columns of indices into tables.

    `columns` have one number per value. `specs`, `types`, `scopes` and `origins` are
    tables; `text` has every string once. This keeps a plan of 2,000 values below
    220 kB. Explanations are long, so the page requests them one by one.

    Args:
        plan: the plan; None before the first plan.
        explanations: the maximum number of values for which the data includes all
            explanations.

    >>> from shardviz.base.mesh import make_mesh
    >>> op = PlannedOp("x", "argument", shape=(8,))
    >>> view = values_view(Plan("f", make_mesh(data=2), (op,)))
    >>> view["count"], view["text"][view["columns"]["name"][0]]
    (1, 'x')
    """
    if plan is None:
        return {"count": 0, "error": "", "waiting": True}
    # Many values share names, source lines and sentences.
    strings, error = _Table(), plan.error
    plan = plan.without_error
    numbers = {op.name: i for i, op in enumerate(plan.ops)}
    return {
        "waiting": False,
        "axes": list(plan.mesh.axis_names),
        "count": len(plan.ops),
        "words": wording.plan_summary(plan),
        "seconds": seconds_text(plan.seconds) if plan.seconds else "",
        "error": "" if error is None else error.located,
        "notes": list(map(str, plan.notes[:MOST_NOTES])),
        "moreNotes": max(0, len(plan.notes) - MOST_NOTES),
        "kinds": list(KINDS),
        "originKinds": list(ORIGINS),
        **_values(plan, numbers, strings),
        "moves": _moves(plan, numbers, strings),
        "explanations": _explanations(plan, explanations),
        # Last, because all fields above add their strings.
        "text": strings.items,
    }


def explanation_view(plan: Plan | None, name: str) -> JsonDict:
    """The details of a selected value: explanation, sharding rule and source lines."""
    view: JsonDict = {"value": name, "lines": [], "rule": "", "stack": []}
    if plan is None:
        return {**view, "error": wording.NO_PLAN_YET}
    try:
        op = plan.op(name)
        lines = plan.why(op).lines
    except ShardvizError as error:
        return {**view, "error": str(error)}
    stack = list(op.stack)
    if not stack and op.source:
        stack = [op.source]
    return {
        "value": op.name,
        "lines": list(lines),
        "rule": op.rule,
        "stack": stack,
        "error": "",
    }


def _values(plan: Plan, numbers: dict[str, int], strings: _Table) -> JsonDict:
    """The columns of indices, and the tables that they refer to."""
    specs, types, scopes, origins = _Table(), _Table(), _Table(), _Table()
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    operands: list[list[int]] = []
    trips: dict[int, int | None] = {}
    notes: dict[int, int] = {}
    for i, (op, path) in enumerate(zip(plan.ops, call_paths(plan.ops), strict=True)):
        shown_type = [short_type(op.dtype, op.shape), *op.shape]
        # Numbers only: indices into the tables, or flags.
        row = {
            "name": strings.add(op.name),
            "kind": KINDS.index(op.kind),
            "opcode": strings.add(op.opcode),
            "type": types.add((op.dtype, op.shape), shown_type),
            "spec": specs.add((op.spec, len(op.shape)), _spec(op.spec, op.shape, plan)),
            "source": strings.add(op.source),
            "scope": scopes.add(path),
            "region": strings.add(op.region),
            "origins": origins.add(_origins(op, strings)),
            "flags": BACKWARD * op.backward + NOT_COVERED * (not op.covered),
        }
        for name, number in row.items():
            columns[name].append(number)
        # An operand may be a value that the plan leaves out.
        operands.append([numbers[name] for name in op.operands if name in numbers])
        if op.trips not in (None, 1):
            trips[i] = op.trips
        if op.remarks:
            notes[i] = strings.add(op.remarks)
    return {
        "columns": columns,
        "specs": specs.items,
        "types": types.items,
        "scopes": scopes.items,
        "origins": origins.items,
        "operands": operands,
        "trips": trips,
        "valueNotes": notes,
    }


def _spec(spec: Spec, shape: Sequence[int], plan: Plan) -> list[object]:
    """Converts a spec to `[text, dimensions, unreduced axes with kind]` for the page.

    Each dimension is a list of axes: `[index in the mesh, size, text]`.
    """
    names, sizes = plan.mesh.axis_names, plan.mesh.shape
    numbers = {name: number for number, name in enumerate(names)}
    dims = []
    for axes in spec.padded(len(shape))[: len(shape)]:
        parts = []
        for axis in axes:
            parent, count = split_axis(axis, sizes)
            parts.append([numbers.get(parent, NOWHERE), count, axis])
        dims.append(parts)
    partial = [[axis, spec.unreduced_kind] for axis in sorted(spec.unreduced)]
    return [str(spec), dims, partial]


def _origins(op: PlannedOp, strings: _Table) -> tuple[tuple[str, int, int, int], ...]:
    rows = []
    for axis, origin in op.origins.items():
        name, source = strings.add(origin.name), strings.add(origin.source)
        rows.append((axis, ORIGINS.index(origin.kind), name, source))
    return tuple(rows)


def _moves(
    plan: Plan, numbers: dict[str, int], strings: _Table
) -> dict[int, list[list[object]]]:
    """The estimated collectives, by the index of the value that needs them.

    Each collective is `[kind, axes, bytes, trips, cause]`. All but `trips` are indices
    into `text`.
    """
    moves: dict[int, list[list[object]]] = {}
    for collective in plan.collectives:
        size = strings.add(collective.sent_text(collective.bytes_per_device))
        axes = [strings.add(axis) for axis in collective.mesh_axes]
        cause = strings.add(str(collective.cause))
        move = [strings.add(collective.kind), axes, size, collective.trips or 0, cause]
        moves.setdefault(numbers.get(collective.value, NOWHERE), []).append(move)
    return moves


def _explanations(plan: Plan, limit: int) -> dict[str, JsonDict]:
    """The explanations of all values; none if there are more values than `limit`."""
    if len(plan.ops) > limit:
        return {}
    return {op.name: explanation_view(plan, op.name) for op in plan.ops}
