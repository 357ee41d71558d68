"""How the operations that hold other operations are read: loops, branches, manual regions.

A loop's body reads what the loop carries, so the names of its arguments are those of the loop's
own results, which always have the same sharding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shardviz.core.backend.shardy import mlir_text
from shardviz.core.backend.shardy.builder import (
    BlockContext,
    ValueBuilder,
    all_axes,
    ends_of,
    scope_of,
)
from shardviz.core.program import plan_values, sharding_rule

T = TypeVar("T")
_NUMBER = re.compile(r"dense<(-?\d+)>")


def read_while(reader: Any, op: Any, where: BlockContext) -> None:
    """A loop: its carried values first, then condition and body."""
    inits = reader.named(op.operands)
    made = reader.add(op, where, _specs(reader, op, "sdy.sharding"), operands=())
    names = [d.op.name for d in made]
    rounds = trip_count(op)
    trips = None if rounds is None or where.trips is None else rounds * where.trips
    inside = replace(where, looped=True, trips=trips)
    condition, body = (region.blocks[0] for region in op.regions)
    for block, region in ((condition, "loop condition"), (body, "loop body")):
        reader.alias(block.arguments, names)
        returned = reader.block(block, replace(inside, region=region))
    _join(reader, op, made, list(zip(inits, returned, strict=True)))


def read_branches(reader: Any, op: Any, where: BlockContext) -> None:
    """A choice between branches: its results first, then every branch."""
    made = reader.add(op, where, _specs(reader, op, "sdy.sharding"), operands=())
    inside = replace(where, region="branch")
    returned = [reader.block(region.blocks[0], inside) for region in op.regions]
    _join(reader, op, made, list(zip(*returned, strict=True)))


def read_manual(reader: Any, op: Any, where: BlockContext) -> None:
    """A shard_map: its results first, then its body, whose shapes are those of one block."""
    operands = reader.named(op.operands)
    over = ", ".join(mlir_text.parse_axes(reader.texts.attribute(op, "manual_axes"))) or "no axis"
    note = f"A shard_map over {over}: its body says itself what is sent."
    specs = _specs(reader, op, "out_shardings")
    made = reader.add(op, where, specs, operands=operands, opcode="shard_map", note=note)
    key, source = (
        reader.texts.attribute(op, "sdy.sharding_origin_name").strip('"'),
        made[0].op.source if made else "",
    )
    base = made[0].op.name.partition("[")[0] if made else "shard_map"
    for number in range(len(operands)):
        reader.origin(f"{key}_input: {number}", "manual", f"in_specs[{number}] of {base}", source)
    for number, draft in enumerate(made):
        words = f"out_specs[{number}] of {base}"
        reader.origin(f"{key}_output: {number}", "manual", words, source)
        reader.origin(f"{draft.op.name}: self", "manual", words, source)
    block = op.regions[0].blocks[0]
    reader.alias(block.arguments, operands)
    local = f"Inside of a shard_map over {over}: the shape is that of one device's block."
    at = where.call.inner(reader.texts.place(op))
    scope = scope_of(where, f"{at.op}/")
    inside = replace(where, call=at, scope=scope, region="manual", note=local, manual=True)
    returned = reader.block(block, inside)
    _join(reader, op, made, [(name,) for name in returned])


def read_barrier(reader: Any, op: Any, where: BlockContext) -> None:
    """An optimization barrier, such as remat sets: what goes in comes out."""
    operands = reader.named(op.operands)
    made = reader.add(op, where, _specs(reader, op, "sdy.sharding"), operands=operands)
    _join(reader, op, made, [(name,) for name in operands])


def read_group(reader: Any, op: Any, where: BlockContext) -> None:
    """One value of a group that is split alike, as `shard_alike` asks for."""
    number = str(op.attributes["group_id"])
    reader.groups.setdefault(number, []).extend(reader.named(op.operands))


def read_constraint(reader: Any, op: Any, where: BlockContext) -> None:
    """A sharding that was asked for in the middle of a program, or a reshard between functions."""
    operands = reader.named(op.operands)
    specs = _specs(reader, op, "sharding")
    key = reader.texts.attribute(op, "sdy.sharding_origin_name").strip('"')
    at = where.call.inner(reader.texts.place(op))
    last = at.op.rpartition("/")[2]
    if not key and last in ("sharding_constraint", "reshard"):
        key = last  # a module with groups names no origins
    asked = reader.value(operands[0])
    if key and asked is not None and specs == (asked.spec,) and _made_there(asked.op, at.op):
        # With Explicit axes every operation is followed by the sharding of its type.
        reader.origin(key, "op", asked.name, asked.source)
        reader.alias(op.results, operands)
        return
    rule = reader.texts.attribute(op, "sdy.sharding_rule")
    told = {
        "rule": sharding_rule.rule_in_words(rule, operands),
        "factors": rule,
        "operands": operands,
    }
    asks = bool(key) and last != "shard_map"
    opcode = "sharding_constraint" if asks else "reshard"
    (draft,) = reader.add(op, where, specs, opcode=opcode, **told)
    if key and not asks:  # Shardy asks so for what a shard_map takes
        for name in (key, f"{draft.op.name}: self"):
            reader.origin(name, "manual", "in_specs of shard_map", draft.op.source)
    elif key:
        for name in (key, f"{draft.op.name}: self"):
            reader.origin(name, "constraint", operands[0] or draft.op.name, draft.op.source)
    steps = mlir_text.parse_edges(reader.texts.attribute(op, "sdy.propagation_edges"))
    reader.cross(draft, steps, ends_of(operands, (draft.op.name,)))


def _made_there(made: str, asked: str) -> bool:
    """Whether a sharding was asked for by the operation, or the call, that made the value."""
    return bool(asked) and (made == asked or made.startswith((f"{asked}/", f"{asked}(")))


HANDLERS: dict[str, Callable[[Any, Any, BlockContext], None]] = {
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
    """How often a `stablehlo.while` runs its body: known where it counts up to a constant."""
    condition, body = (region.blocks[0] for region in op.regions)
    test = _maker(_last(condition).operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    if " LT" not in str(test.attributes["comparison_direction"]):
        return None
    place = {value: number for number, value in enumerate(condition.arguments)}
    counter = place.get(test.operands[0])
    if counter is None:
        return None
    limit = _constant(test.operands[1])
    if (carried := place.get(test.operands[1])) is not None and _unchanged(body, carried):
        limit = _constant(op.operands[carried])
    start, step = _constant(op.operands[counter]), _stride(body, counter)
    if limit is None or start is None or not step or step < 0:
        return None
    return max(0, -(-(limit - start) // step))


def _stride(body: Any, counter: int) -> int | None:
    """What a loop's body adds to a carried number."""
    made = _maker(_last(body).operands[counter])
    if made is None or made.name != "stablehlo.add":
        return None
    first, second = made.operands
    argument = body.arguments[counter]
    return _constant(second) if first == argument else (
        _constant(first) if second == argument else None
    )  # fmt: skip


def _unchanged(body: Any, number: int) -> bool:
    return _last(body).operands[number] == body.arguments[number]


def _constant(value: Any) -> int | None:
    made = _maker(value)
    if made is None or made.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    found = _NUMBER.match(str(made.attributes["value"]))
    return int(found[1]) if found else None


def _maker(value: Any) -> Any:
    """The operation that makes a value, or None for an argument of a block."""
    owner = value.owner
    return getattr(owner, "operation", owner) if hasattr(owner, "attributes") else None


def _last(block: Any) -> Any:
    return list(block.operations)[-1].operation


def _join(reader: Any, op: Any, made: list[ValueBuilder], sources: Sequence[Sequence[str]]) -> None:
    """Says what each result of such an operation comes from, and which steps crossed there."""
    origins = mlir_text.parse_origins(reader.texts.attribute(op, "sdy.result_sharding_origins"))
    for draft, found in zip(made, _aligned(origins, made, set), strict=True):
        draft.origins = dict(found or {})
    lists = mlir_text.parse_edge_lists(reader.texts.attribute(op, "sdy.result_propagation_edges"))
    steps = _aligned(lists, made, lambda edges: {e.axis for e in edges})
    for number, draft in enumerate(made):
        names = tuple(sources[number]) if number < len(sources) else ()
        if op.name != "sdy.manual_computation":
            draft.op = replace(draft.op, operands=names)
        reader.cross(draft, steps[number] or (), ends_of(names, (draft.op.name,)))


def _aligned(
    entries: Sequence[T], made: Sequence[ValueBuilder], axes: Callable[[T], set[str]]
) -> list[T | None]:
    """One entry a result. jaxlib 0.10 leaves out entries that would be empty.

    Where those that are left cannot be told apart, nothing is better than something wrong.
    """
    if len(entries) == len(made):
        return list(entries)
    split = [n for n, d in enumerate(made) if all_axes(d.op.spec)]
    aligned: list[T | None] = [None] * len(made)
    if len(entries) == len(split):
        for number, entry in zip(split, entries, strict=True):
            fits = {plan_values.parent_axis(a) for a in all_axes(made[number].op.spec)}
            if not {plan_values.parent_axis(a) for a in axes(entry)} <= fits:
                return [None] * len(made)
            aligned[number] = entry
    return aligned


def _specs(reader: Any, op: Any, name: str) -> tuple[Any, ...]:
    return mlir_text.parse_specs(reader.texts.attribute(op, name))
