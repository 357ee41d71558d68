"""Why Shardy plans a collective: the value of the plan that it is for, and its cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from shardviz.core.backend.shardy.attributes import SourceLocation, defining_op
from shardviz.core.backend.shardy.planned_module import SHARDY, PlannedModule
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
    "stablehlo.dot_general": "inner",
    "stablehlo.convolution": "inner",
    "stablehlo.reduce": "reduce",
    "stablehlo.gather": "gather",
    "stablehlo.scatter": "scatter",
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


def blame_for_sum(module: PlannedModule, op: Any, axes: tuple[str, ...]) -> Blame:
    """What a reduction over devices is for: the operation that makes what is summed."""
    start = module.start(op)
    made, name = defining_op(start), module.name(start)
    read = module.read(made)
    location, code = module.attributes.location(op), "other"
    if read is not None:
        location = read.location
    if made is not None:
        code = _SUMS.get(made.name, "other")
    kept = op.name == "sdy.reduce_scatter"
    cause = SumCause(name or location.last_part, axes, code, kept=kept)
    if made is not None and code == "reduce":
        reduced = list(made.attributes["dimensions"])
        split = dims_over(module.spec(made.operands[0]), axes)
        dims = [dim for dim in reduced if dim in split] or reduced
        reducer = ""
        if name in module.by_name:
            reducer = module.by_name[name].reducer
        cause = SumCause(cause.value, axes, code, tuple(dims), reducer, kept)
    return Blame(name, location, cause)


def blame_for_move(module: PlannedModule, op: Any, axes: tuple[str, ...]) -> Blame:
    """What a change of a sharding is for: a request, or the operation that reads it."""
    start = module.start(op)
    last, reader = module.end(op)
    before, after = module.spec(start), module.spec(last.results[0])
    source, name = module.by_name.get(module.name(start)), module.name(start)
    under, between = None, op.operands[0]
    if between != start:
        # Where a constraint changes the sharding, what follows moves what it asked for.
        under = _constraint(module, source, module.spec(between))
        if under is not None:
            before, source = module.spec(between), under
    constraint = _constraint(module, source, after)
    code, value, user, location = _user(module, reader, source)
    if constraint is not None:
        code = "request"
    cause = MoveCause(
        name,
        axes,
        SHARDY[op.name],
        before,
        after,
        code,
        user,
        _request(constraint),
        _request(under),
    )
    if constraint is not None:
        return Blame(constraint.name, _location(constraint), cause)
    if location is None and source is not None and source.kind == "op":
        location = _location(source)
    return Blame(value or name, location or module.attributes.location(op), cause)


def _location(op: PlannedOp) -> SourceLocation:
    return SourceLocation.from_lines(op.op, op.stack)


def _user(
    module: PlannedModule, reader: Any, source: PlannedOp | None
) -> tuple[str, str, str, SourceLocation | None]:
    """What reads a value: code, value of the plan, name and line."""
    if reader is not None and reader.name.endswith(".return"):
        function = reader.parent.operation
        # A loop or shard_map returns, too; it has no name.
        if "sym_name" in function.attributes:
            if function.attributes["sym_name"].value == "main":
                return "result", _result_of(module, source), "", None
        reader = function
    read = module.read(reader)
    if read is None:
        return "op", "", "", None
    value = next(iter(read.results), "")
    return "op", value, value or read.location.last_part, read.location


def _result_of(module: PlannedModule, source: PlannedOp | None) -> str:
    """The first result of the program that is this value; `""` where none is."""
    if source is not None:
        for reader in module.readers[source.name]:
            if reader.kind == "result":
                return reader.name
    return ""


def _constraint(
    module: PlannedModule, made: PlannedOp | None, after: Spec
) -> PlannedOp | None:
    """The constraint or reshard that asks for a value to be split so, or None.

    It may stand behind others: Shardy makes one chain of collectives of all of them.
    """
    if made is None:
        return None
    todo = [made]
    for value in todo:
        for reader in module.readers[value.name]:
            if reader.opcode.rpartition(".")[2] in _CONSTRAINTS:
                if reader.spec.equivalent(after):
                    return reader
                # Those nearer to the value come first.
                todo.append(reader)
    return None


def _request(constraint: PlannedOp | None) -> ShardingRequest | None:
    if constraint is None:
        return None
    last = constraint.op.rpartition("/")[2]
    kind = "constraint"
    if last in ("shard_map", "reshard"):
        kind = last
    elif constraint.opcode == "reshard":
        # XLA puts one before a loop, for what the loop reads from outside.
        kind = "loop"
    return ShardingRequest(kind, constraint.source)
