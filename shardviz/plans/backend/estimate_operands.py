"""Finds operands that XLA moves instead of the result that Shardy would move.

XLA's partitioner computes an elementwise operation in the sharding of its result, which
may come from a later constraint. For example, if the constraint requests an unsplit
result of a cast, XLA gathers the operand before the cast. If several operands all have
the same sharding, XLA computes in that sharding and moves the result, as Shardy does.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxlib.mlir import ir

from shardviz.base.partition_spec import Spec
from shardviz.plans.backend.attributes import defining_op
from shardviz.plans.backend.estimate_causes import constraint_for
from shardviz.plans.backend.mlir_names import (
    ALL_SLICE,
)
from shardviz.plans.backend.planned_module import PlannedModule


class OperandMove(NamedTuple):
    """An operand that is moved before an elementwise operation.

    Attributes:
        value: the operand.
        spec: the sharding of the operand.
        gathered: for each dimension, the axes to all-gather. None if no all-gather is
            needed, because the operand moves by the same kind of collective that Shardy
            plans for the result.
    """

    value: ir.Value
    spec: Spec
    gathered: tuple[tuple[str, ...], ...] | None = None


def operands_moved_instead(
    module: PlannedModule, op: ir.Operation
) -> tuple[OperandMove, ...]:
    """Returns the operands that XLA moves instead of the result that `op` moves.

    Returns `()` if XLA moves the result, as Shardy does, or if XLA's choice is unknown.
    """
    start = module.start(op)
    elementwise = defining_op(start)
    result = module.by_name.get(module.name(start))
    if elementwise is None or result is None or result.factors is None:
        return ()
    computed, result_spec = module.spec(start), result.spec
    if not result.factors.is_elementwise or computed.equivalent(result_spec):
        return ()
    following = [module.spec(step.results[0]) for step in module.chain(op)]
    if not any(spec.equivalent(result_spec) for spec in following):
        return ()
    operands = [OperandMove(v, _spec(module, v)) for v in elementwise.operands]
    if len(operands) > 1 and all(o.spec.equivalent(computed) for o in operands):
        return ()
    moves: list[OperandMove] = []
    for operand in operands:
        if operand.spec.equivalent(result_spec):
            continue
        if not operand.spec.equivalent(computed):
            gathered = _gathered(operand.spec, result_spec)
            if gathered is None:
                return ()
            # Yield the gathers only for the first operation of Shardy's chain.
            if op.operands[0] != start:
                continue
            operand = operand._replace(gathered=gathered)
        moves.append(operand)
    return tuple(moves)


def _spec(module: PlannedModule, value: ir.Value) -> Spec:
    """The sharding of an operand, ignoring a slice that no constraint requests."""
    slice_op, spec = defining_op(value), module.spec(value)
    if slice_op is None or slice_op.name != ALL_SLICE:
        return spec
    source = module.by_name.get(module.name(value))
    if constraint_for(module, source, spec) is not None:
        return spec
    return module.spec(slice_op.operands[0])


def _gathered(before: Spec, after: Spec) -> tuple[tuple[str, ...], ...] | None:
    """The axes to gather along each dimension; None if gathers are not enough."""
    gathered: list[tuple[str, ...]] = []
    for axes, axes_after in zip(
        before.dims, after.padded(len(before.dims)), strict=True
    ):
        if axes[: len(axes_after)] != axes_after:
            return None
        gathered.append(axes[len(axes_after) :])
    return tuple(gathered)
