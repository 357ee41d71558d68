"""Why Shardy plans a collective: the value of the plan that it is for, and its cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from shardviz.core.backend.shardy.attributes import SourceLocation
from shardviz.core.backend.shardy.planned_module import (
    SHARDY,
    PlacedOperation,
    PlannedModule,
)
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_causes import (
    MoveCause,
    PlanCause,
    ShardingRequest,
    SumCause,
)
from shardviz.core.program.plan_values import PlannedOp, dims_over, parent_axis

_CONSTRAINTS = ("reshard", "sharding_constraint")
_SUMS = {
    "dot_general": "inner",
    "convolution": "channels",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}


class Blame(NamedTuple):
    """What a collective is for.

    Attributes:
        value: the name of the plan's value; `""` where it is none.
        location: the operation in the user's code.
        cause: why it is there.
    """

    value: str
    location: SourceLocation
    cause: PlanCause


def mesh_axes(axes: Iterable[str], mesh: MeshSpec) -> tuple[str, ...]:
    """The mesh axes that these are, or are parts of, in the order of the mesh.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh_axes(["model", "data:(1)2", "data:(2)2"], make_mesh(data=4, model=2))
    ('data', 'model')
    """
    named = {parent_axis(axis) for axis in axes}
    return tuple(axis for axis in mesh.axis_names if axis in named)


def blame_for_sum(
    module: PlannedModule, placed: PlacedOperation, start: Any, axes: tuple[str, ...]
) -> Blame:
    """What a reduction over devices is for.

    Args:
        module: the planned module.
        placed: Shardy's operation.
        start: the value that is summed.
        axes: the mesh axes.
    """
    made = module.definition(start, placed.caller)
    if made is None:
        name = module.name(start, placed.caller)
        return Blame(name, placed.location, SumCause(name, axes, "part"))
    planned = module.values.of(made)
    name = planned.name if planned else made.location.last_part
    code = _SUMS.get(made.opcode, "other")
    kept = placed.name == "sdy.reduce_scatter"
    cause = SumCause(name, axes, code, kept=kept)
    if code == "reduce":
        reduced = list(made.op.attributes["dimensions"])
        split = dims_over(module.spec(made.op.operands[0]), axes)
        dims = [dim for dim in reduced if dim in split] or reduced
        cause = SumCause(name, axes, code, tuple(dims), _reducer(made.op), kept)
    return Blame(planned.name if planned else "", made.location, cause)


def _reducer(op: Any) -> str:
    """The operation in the body of a reduction; `""` where there are several."""
    body = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    # The last one returns.
    return body[0].rpartition(".")[2] if len(body) == 2 else ""


class _User(NamedTuple):
    """What reads a value: as `MoveCause` has it, and its name in the plan."""

    code: str
    name: str = ""
    value: str = ""


def blame_for_move(
    module: PlannedModule,
    placed: PlacedOperation,
    start: Any,
    axes: tuple[str, ...],
    again: bool,
) -> Blame:
    """What a change of a sharding is for.

    Args:
        module, placed, start, axes: as for `blame_for_sum`.
        again: whether the value was moved in the same way before.
    """
    last, reader = module.end(placed.op, placed.caller)
    after = module.spec(last.results[0])
    planned = module.value(start, placed.caller)
    before, holder = module.spec(start), None
    between = placed.op.operands[0]
    if between != start:
        # Where a constraint changes the sharding, what follows moves what it asked for.
        holder = _constraint(module, planned, module.spec(between))
        if holder is not None:
            before = module.spec(between)
    source = holder or planned
    constraint = _constraint(module, source, after)
    user = _User("op")
    if reader is not None:
        user = _user_of(module, reader, source)
    asked = None if constraint is None else _request(constraint)
    cause = MoveCause(
        module.name(start, placed.caller),
        axes,
        SHARDY[placed.name],
        before,
        after,
        "request" if asked else user.code,
        user.name,
        asked,
        None if holder is None else _request(holder),
        again,
    )
    if constraint is not None:
        location = SourceLocation.from_lines(constraint.op, constraint.stack)
        return Blame(constraint.name, location, cause)
    value = user.value or (planned.name if planned else "")
    if reader is not None and user.code == "op":
        return Blame(value, reader.location, cause)
    if holder is not None:
        location = SourceLocation.from_lines(holder.op, holder.stack)
        return Blame(value, location, cause)
    made = module.definition(start, placed.caller)
    return Blame(value, made.location if made else placed.location, cause)


def _user_of(
    module: PlannedModule, reader: PlacedOperation, made: PlannedOp | None
) -> _User:
    planned = module.values.of(reader)
    value = planned.name if planned else ""
    name = value or reader.location.last_part
    if reader.name == "func.call":
        return _User("call", name, value)
    if reader.name == "stablehlo.while":
        return _User("loop", name, value)
    if reader.name == "func.return" and reader.caller is None:
        for one in module.values.readers(made) if made else ():
            if one.kind == "result":
                return _User("result", value=one.name)
        return _User("result")
    if reader.name.endswith(".return"):
        if reader.caller is not None and reader.caller.name == "stablehlo.while":
            return _User("loop", reader.caller.location.last_part, value)
        inside = reader.caller.location.last_part if reader.caller else ""
        return _User("return", inside, value)
    return _User("op", name, value)


def _constraint(
    module: PlannedModule, made: PlannedOp | None, after: Spec
) -> PlannedOp | None:
    """The constraint or reshard that asks for a value to be split so, or None.

    It may stand behind others: Shardy makes one chain of collectives of all of them.
    """
    todo = [made] if made else []
    for value in todo:
        readers = module.values.readers(value)
        asking = [r for r in readers if r.opcode.rpartition(".")[2] in _CONSTRAINTS]
        for one in asking:
            if one.spec.equivalent(after):
                return one
        todo += asking
    return None


def _request(constraint: PlannedOp) -> ShardingRequest:
    last = constraint.op.rpartition("/")[2]
    kind = "constraint"
    if last in ("shard_map", "reshard"):
        kind = last
    elif constraint.opcode == "reshard":
        # XLA puts one before a loop, for what the loop reads from outside.
        kind = "loop"
    return ShardingRequest(kind, constraint.source)
