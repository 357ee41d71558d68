"""Reads operations with blocks of their own, and constraints, into values of a plan.

A loop's body reads what the loop carries, so the names of its arguments are those of
the loop's own results, which always have the same sharding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shardviz.core.backend.shardy.attributes import (
    defining_op,
    parse_axes,
    parse_edge_lists,
    parse_edges,
    parse_origins,
)
from shardviz.core.backend.shardy.before_propagation import READ_BY_LOOP
from shardviz.core.backend.shardy.builder import (
    BlockContext,
    PlanBuilder,
    ValueBuilder,
    all_axes,
)
from shardviz.core.program.plan_notes import PlanNote
from shardviz.core.program.plan_values import parent_axis

T = TypeVar("T")
_NUMBER = re.compile(r"dense<(-?\d+)>")


def read_while(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A loop: its carried values first, then condition and body."""
    inits = plan.named(op.operands)
    values = plan.add(op, context, plan.attributes.specs(op), operands=())
    names = [v.op.name for v in values]
    trips = trip_count(op)
    if trips is not None and context.trips is not None:
        trips *= context.trips
    else:
        trips = None
    inside = replace(context, looped=True, trips=trips)
    _enter(plan, op, inside, names)
    returned: tuple[str, ...] = ()
    for region, kind in zip(op.regions, ("loop condition", "loop body"), strict=True):
        block = region.blocks[0]
        plan.alias(block.arguments, names)
        returned = plan.block(block, replace(inside, region=kind))
    _connect(plan, op, values, list(zip(inits, returned, strict=True)))


def read_branches(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A choice between branches: its results first, then every branch."""
    values = plan.add(op, context, plan.attributes.specs(op), operands=())
    inside = replace(context, region="branch")
    _enter(plan, op, inside, ())
    returned = [plan.block(region.blocks[0], inside) for region in op.regions]
    _connect(plan, op, values, list(zip(*returned, strict=True)))


def read_manual(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A shard_map: its results, then its body, whose shapes are those of one shard."""
    operands = plan.named(op.operands)
    over = parse_axes(plan.attributes.text(op, "manual_axes"))
    values = plan.add(
        op,
        context,
        plan.attributes.specs(op, "out_shardings"),
        operands=operands,
        opcode="shard_map",
        notes=(PlanNote("shard_map", over),),
    )
    _add_manual_origins(plan, op, values, len(operands))
    block = op.regions[0].blocks[0]
    plan.alias(block.arguments, operands)
    call = plan.read_of(op).location
    inside = replace(
        context,
        call=call,
        scope=context.scope_of(f"{call.op}/"),
        region="manual",
        notes=(PlanNote("inside shard_map", over),),
        manual=True,
    )
    _enter(plan, op, inside, operands)
    returned = plan.block(block, inside)
    _connect(plan, op, values, [(name,) for name in returned])


def _enter(
    plan: PlanBuilder, op: Any, inside: BlockContext, arguments: Sequence[str]
) -> None:
    """Records the context and the arguments of an operation's blocks."""
    read = plan.read_of(op)
    read.inside, read.arguments = inside, tuple(arguments)


def _add_manual_origins(
    plan: PlanBuilder, op: Any, values: Sequence[ValueBuilder], operands: int
) -> None:
    """What Shardy means by the origins that it names after a shard_map."""
    key = plan.attributes.text(op, "sdy.sharding_origin_name").strip('"')
    base, source = "shard_map", ""
    if values:
        base, source = values[0].op.name.partition("[")[0], values[0].op.source
    for number in range(operands):
        name = f"in_specs[{number}] of {base}"
        plan.origin(f"{key}_input: {number}", "manual", name, source)
    for number, value in enumerate(values):
        name = f"out_specs[{number}] of {base}"
        plan.origin(f"{key}_output: {number}", "manual", name, source)
        plan.origin(f"{value.op.name}: self", "manual", name, source)


def read_barrier(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """An optimization barrier, such as remat sets: what goes in comes out."""
    operands = plan.named(op.operands)
    values = plan.add(op, context, plan.attributes.specs(op), operands=operands)
    _connect(plan, op, values, [(name,) for name in operands])


def read_group(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """One value of a group that is split alike, as `shard_alike` asks for."""
    number = str(op.attributes["group_id"])
    plan.groups.setdefault(number, []).extend(plan.named(op.operands))


def read_constraint(plan: PlanBuilder, op: Any, context: BlockContext) -> None:
    """A constraint in the middle of a program, or a reshard between functions."""
    operands = plan.named(op.operands)
    specs = plan.attributes.specs(op, "sharding")
    key = plan.attributes.text(op, "sdy.sharding_origin_name").strip('"')
    location = plan.read_of(op).location
    if not key and location.last_part in ("sharding_constraint", "reshard"):
        key = location.last_part  # a module with groups names no origins
    operand = plan.value(operands[0])
    for_loop = READ_BY_LOOP in op.attributes
    if operand is not None and specs == (operand.spec,):
        of_type = bool(key) and _is_result_of(operand.op, location.op)
        if of_type:
            # With Explicit axes every operation is followed by the sharding of its type.
            plan.origin(key, "op", operand.name, operand.source)
        if of_type or for_loop:
            plan.alias(op.results, operands)
            return
    constrains = bool(key) and location.last_part != "shard_map" and not for_loop
    opcode = "reshard"
    if constrains:
        opcode = "sharding_constraint"
    rule = plan.attributes.rule(op)
    (value,) = plan.add(
        op, context, specs, opcode=opcode, factors=rule, operands=operands
    )
    kind, name = "constraint", operands[0] or value.op.name
    if not constrains and not for_loop:  # Shardy asks so for what a shard_map takes
        kind, name = "manual", "in_specs of shard_map"
    if key:
        for origin in (key, f"{value.op.name}: self"):
            plan.origin(origin, kind, name, value.op.source)
    edges = parse_edges(plan.attributes.text(op, "sdy.propagation_edges"))
    plan.cross(value, edges, operands, (value.op.name,))


def _is_result_of(value: str, constraint: str) -> bool:
    """Whether a constraint is named as the operation, or the call, that makes a value."""
    inside = (f"{constraint}/", f"{constraint}(")
    return bool(constraint) and (value == constraint or value.startswith(inside))


Handler = Callable[[PlanBuilder, Any, BlockContext], None]
#: What reads an operation, by its name in MLIR.
HANDLERS: dict[str, Handler] = {
    "stablehlo.while": read_while,
    "stablehlo.case": read_branches,
    "stablehlo.if": read_branches,
    "stablehlo.optimization_barrier": read_barrier,
    "sdy.manual_computation": read_manual,
    "sdy.reshard": read_constraint,
    "sdy.sharding_group": read_group,
    "sdy.sharding_constraint": read_constraint,
}


def trip_count(op: Any) -> int | None:
    """How often a `stablehlo.while` runs: known where it counts up to a constant."""
    condition, body = op.regions[0].blocks[0], op.regions[1].blocks[0]
    test = defining_op(_last(condition).operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    if " LT" not in str(test.attributes["comparison_direction"]):
        return None
    numbers = {value: number for number, value in enumerate(condition.arguments)}
    counter, bound = numbers.get(test.operands[0]), numbers.get(test.operands[1])
    if counter is None:
        return None
    limit = _constant(test.operands[1])
    # jax carries the limit through the loop, which hands it on as it is.
    if bound is not None and _last(body).operands[bound] == body.arguments[bound]:
        limit = _constant(op.operands[bound])
    start, step = _constant(op.operands[counter]), _stride(body, counter)
    if limit is None or start is None or not step or step < 0:
        return None
    return max(0, -(-(limit - start) // step))


def _stride(body: Any, counter: int) -> int | None:
    """What a loop's body adds to a carried number."""
    made = defining_op(_last(body).operands[counter])
    if made is None or made.name != "stablehlo.add":
        return None
    first, second = made.operands
    argument = body.arguments[counter]
    if first == argument:
        return _constant(second)
    if second == argument:
        return _constant(first)
    return None


def _constant(value: Any) -> int | None:
    made = defining_op(value)
    if made is None or made.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    number = _NUMBER.match(str(made.attributes["value"]))
    if number is None:
        return None
    return int(number[1])


def _last(block: Any) -> Any:
    return block.operations[len(block.operations) - 1].operation


def _connect(
    plan: PlanBuilder,
    op: Any,
    values: list[ValueBuilder],
    sources: Sequence[Sequence[str]],
) -> None:
    """Gives each result its origins and steps; each comes from values of these names."""
    origins = parse_origins(plan.attributes.text(op, "sdy.result_sharding_origins"))
    for value, names in zip(values, _aligned(origins, values, set), strict=True):
        value.origin_names = dict(names or {})
    lists = parse_edge_lists(plan.attributes.text(op, "sdy.result_propagation_edges"))
    edges = _aligned(lists, values, lambda edges: {edge.axis for edge in edges})
    for number, value in enumerate(values):
        operands: tuple[str, ...] = ()
        if number < len(sources):
            operands = tuple(sources[number])
        if op.name != "sdy.manual_computation":
            value.op = value.op.changed(operands=operands)
        plan.cross(value, edges[number] or (), operands, (value.op.name,))


def _aligned(
    entries: Sequence[T], values: Sequence[ValueBuilder], axes: Callable[[T], set[str]]
) -> list[T | None]:
    """One entry per result, or None.

    jaxlib 0.10 leaves out entries that would be empty; where it is not clear which
    result an entry belongs to, none gets any.
    """
    if len(entries) == len(values):
        return list(entries)
    aligned: list[T | None] = [None] * len(values)
    split = [n for n, value in enumerate(values) if all_axes(value.op.spec)]
    if len(entries) != len(split):
        return aligned
    for number, entry in zip(split, entries, strict=True):
        parents = set(map(parent_axis, all_axes(values[number].op.spec)))
        if not parents.issuperset(map(parent_axis, axes(entry))):
            return [None] * len(values)
        aligned[number] = entry
    return aligned
