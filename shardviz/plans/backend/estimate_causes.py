"""Finds the value of the plan that needs a planned collective, and the cause."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxlib.mlir import ir

from shardviz.base.axis_parts import dims_over
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend.attributes import SourceLocation, defining_op
from shardviz.plans.backend.mlir_names import (
    CONVOLUTION,
    DOT_GENERAL,
    FUNCTION_NAME,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    REDUCED_DIMS,
    SCATTER,
)
from shardviz.plans.backend.planned_module import SHARDY, PlannedModule
from shardviz.plans.plan_causes import MoveCause, PlanCause, SumCause
from shardviz.plans.plan_values import PlannedOp

_CONSTRAINTS = ("reshard", "sharding_constraint")
_SUMS = {
    DOT_GENERAL: "inner",
    CONVOLUTION: "inner",
    REDUCE: "reduce",
    GATHER: "gather",
    SCATTER: "scatter",
}


class Blame(NamedTuple):
    """The value and operation that need a collective, and its cause.

    Attributes:
        value: the value's name in the plan; `""` if the plan does not have it.
        location: the location of the operation in the user's code.
        cause: why the collective is needed.
    """

    value: str
    location: SourceLocation
    cause: PlanCause


def blame_for_sum(
    module: PlannedModule, op: ir.Operation, axes: tuple[str, ...]
) -> Blame:
    """Blames a reduction over devices on the operation whose result it sums."""
    start = module.start(op)
    summed_op, name = defining_op(start), module.name(start)
    read, code = module.read(summed_op), "other"
    location = module.attributes.location(op)
    if read is not None:
        location = read.location
    if summed_op is not None:
        code = _SUMS.get(summed_op.name, "other")
    dims, reducer = (), ""
    if summed_op is not None and code == "reduce":
        reduced = list(summed_op.attributes[REDUCED_DIMS])
        split = dims_over(module.spec(summed_op.operands[0]), axes)
        dims = tuple(dim for dim in reduced if dim in split) or tuple(reduced)
        if name in module.by_name:
            reducer = module.by_name[name].reducer
    is_scattered = op.name == REDUCE_SCATTER
    value = name or location.last_part
    return Blame(
        name, location, SumCause(value, axes, code, dims, reducer, is_scattered)
    )


def blame_for_move(
    module: PlannedModule, op: ir.Operation, axes: tuple[str, ...]
) -> Blame:
    """Blames a change of sharding on a constraint, or else on the value's reader."""
    start, between = module.start(op), op.operands[0]
    name, before = module.name(start), module.spec(start)
    source = module.by_name.get(name)
    if between != start:
        # After a constraint in the chain, collectives move the constrained value.
        under = constraint_for(module, source, module.spec(between))
        if under is not None:
            name, before, source = under.name, module.spec(between), under
    last, reader = module.end(op)
    after = module.spec(last.results[0])
    location_here, kind = module.attributes.location(op), SHARDY[op.name]
    # The start of the chain may not be a value of the plan.
    moved = name or location_here.last_part
    asking = constraint_for(module, source, after)
    for step in module.chain(op):
        # Try every sharding in the chain: later collectives may split the value again.
        if asking is None:
            asking = constraint_for(module, source, module.spec(step.results[0]))
    if asking is not None:
        code, line, after = _what_asks(asking), asking.source, asking.spec
        cause = MoveCause(moved, axes, kind, before, after, code, source=line)
        return Blame(asking.name, _location(asking), cause)
    code, value, user, location = _user(module, reader, source)
    if code == "result" and source is not None and source.spec.equivalent(after):
        code = "own"
    cause = MoveCause(moved, axes, kind, before, after, code, user)
    if location is None and source is not None and source.kind == "op":
        location = _location(source)
    return Blame(value or name, location or location_here, cause)


def _location(op: PlannedOp) -> SourceLocation:
    return SourceLocation(op.op, tuple((line, "") for line in op.stack))


def _user(
    module: PlannedModule, reader: Any, source: PlannedOp | None
) -> tuple[str, str, str, SourceLocation | None]:
    """The reader of a value: cause code, value of the plan, display name, location."""
    if reader is not None and reader.name.endswith(".return"):
        reader = reader.parent.operation
        name = reader.attributes.get(FUNCTION_NAME)
        if name is not None and name.value == "main":
            return "result", _result_of(module, source), "", None
    read = module.read(reader)
    if read is None:
        return "op", "", "", None
    value = next(iter(read.results), "")
    return "op", value, value or read.location.last_part, read.location


def _result_of(module: PlannedModule, source: PlannedOp | None) -> str:
    """The first result of the program that returns a value; `""` if there is none."""
    if source is not None:
        for reader in module.readers[source.name]:
            if reader.kind == "result":
                return reader.name
    return ""


def constraint_for(
    module: PlannedModule, value_op: PlannedOp | None, after: Spec
) -> PlannedOp | None:
    """The constraint or reshard that requests the sharding `after` of a value, or None.

    Also looks behind other constraints on the value, because Shardy merges consecutive
    constraints into one chain of collectives.
    """
    values = [value_op] if value_op is not None else []
    for value in values:
        for reader in module.readers[value.name]:
            if reader.opcode in _CONSTRAINTS:
                if reader.spec.equivalent(after):
                    return reader
                # Breadth first: nearer constraints come before later ones.
                values.append(reader)
    return None


def _what_asks(asking: PlannedOp) -> str:
    last = asking.op.rpartition("/")[2]
    if last in ("shard_map", "reshard"):
        return last
    if asking.opcode == "reshard":
        # XLA puts a reshard before a loop for a value that the loop reads.
        return "loop"
    return "constraint"
