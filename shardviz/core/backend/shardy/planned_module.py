"""A planned module together with its plan: what makes a value, what reads it, how it is
split.

Calls are inlined, so a function that is called twice is listed twice. The body of a
loop is listed once, with its trip count.

The plan is read from one run of Shardy's passes and the collectives from another, so
values are matched: arguments by name, operations by opcode, shape, source line and
order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardviz.core.backend.shardy.attributes import (
    NOWHERE,
    AttributeCache,
    SourceLocation,
    defining_op,
    named_attribute,
)
from shardviz.core.backend.shardy.before_propagation import CALL, callee, functions_of
from shardviz.core.backend.shardy.regions import trip_count
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.program.plan_values import PlannedOp

# Shardy's operations that move data between devices, and the kinds of collective.
SHARDY = {
    "sdy.all_gather": "all-gather",
    "sdy.all_reduce": "all-reduce",
    "sdy.reduce_scatter": "reduce-scatter",
    "sdy.all_to_all": "all-to-all",
    "sdy.collective_permute": "collective-permute",
    "sdy.reshard": "collective-permute",  # left over where two meshes order devices differently
}
# These change a sharding and move nothing.
_FREE = ("sdy.all_slice", "sdy.sharded_to_unreduced", "sdy.replicated_to_unreduced")
RESHARDS = (*SHARDY, *_FREE)
_MANUAL = "sdy.manual_computation"
_REGIONS = ("stablehlo.while", "stablehlo.case", "stablehlo.if", _MANUAL)


@dataclass(eq=False)
class PlacedOperation:
    """One operation in one call of its function.

    Attributes:
        op: the operation.
        attributes: the cache of the module's attributes.
        name: what MLIR calls it: `sdy.all_gather`.
        caller: the call, loop, branch or manual region around it; None in `main`.
        trips: how often it runs, loops around it multiplied; None where one has no
            known length.
        in_loop: whether a loop is around it.
    """

    op: Any
    attributes: AttributeCache
    name: str
    caller: PlacedOperation | None = None
    trips: int | None = 1
    in_loop: bool = False

    @property
    def opcode(self) -> str:
        """The name without its dialect: `all_gather`."""
        return self.name.rpartition(".")[2]

    @cached_property
    def location(self) -> SourceLocation:
        """Its name in jax and the user's lines, as seen from `main`."""
        outer = self.caller
        while outer is not None and outer.name not in (CALL, _MANUAL):
            outer = outer.caller
        found = NOWHERE if outer is None else outer.location
        calls = self.attributes.calls(self.op)
        # Names begin anew inside of a shard_map, which may stand in an inlined call
        # itself.
        known = (
            len(self.attributes.calls(outer.op))
            if outer and outer.name == _MANUAL
            else 0
        )
        for call in calls[known:]:
            found = found.inner(call.location)
        return found.inner(self.attributes.location(self.op))


@dataclass(frozen=True)
class _Around:
    """What holds for all operations of a region."""

    attributes: AttributeCache
    functions: dict[str, Any]
    caller: PlacedOperation | None = None
    trips: int | None = 1
    in_loop: bool = False


def _operations(owner: Any, around: _Around) -> Iterator[PlacedOperation]:
    """The operations in the regions of another, and in what they call, in program
    order.
    """
    for region in owner.regions:
        for block in region.blocks:
            for item in block.operations:
                op = item.operation
                name = op.name
                placed = PlacedOperation(
                    op,
                    around.attributes,
                    name,
                    around.caller,
                    around.trips,
                    around.in_loop,
                )
                yield placed
                if name == CALL or name in _REGIONS:
                    yield from _inside(placed, around)


def _inside(outer: PlacedOperation, around: _Around) -> Iterator[PlacedOperation]:
    owner, trips, in_loop = outer.op, outer.trips, outer.in_loop
    if outer.name == CALL:
        owner = callee(outer.op, around.functions)
    elif outer.name == "stablehlo.while":
        count = trip_count(outer.op)
        trips = None if count is None or trips is None else count * trips
        in_loop = True
    if owner is not None:
        inside = _Around(around.attributes, around.functions, outer, trips, in_loop)
        yield from _operations(owner, inside)


def argument_number(value: Any) -> int:
    """The number of a value among the arguments of its block."""
    return value.maybe_downcast().arg_number


# An operation with several results is matched by its first.
_LATER = re.compile(r"\[[1-9]\d*\]$")

Key = tuple[str, tuple[int, ...]]


class Values:
    """The values of a plan, found by operations of the planned module."""

    def __init__(
        self,
        ops: Sequence[PlannedOp],
        operations: Sequence[PlacedOperation],
        attributes: AttributeCache,
    ) -> None:
        self._attributes = attributes
        self.by_name = {op.name: op for op in ops}
        self._arguments = [op for op in ops if op.kind == "argument"]
        self._by_label = {_label(op.name): op for op in self._arguments}
        self._readers: dict[str, list[PlannedOp]] = defaultdict(list)
        for op in ops:
            for name in op.operands:
                self._readers[name].append(op)
        self._planned, self._operations = _by_opcode(ops), operations
        self._of_op: dict[str, dict[int, PlannedOp]] = {}

    def of(self, placed: PlacedOperation, number: int = 0) -> PlannedOp | None:
        """A result of an operation, or None where the plan has no such value."""
        opcode = placed.opcode
        if opcode not in self._of_op:
            same = [p for p in self._operations if p.opcode == opcode]
            self._of_op[opcode] = _matched(self._planned[opcode], same)
        first = self._of_op[opcode].get(id(placed))
        if first is None or not first.name.endswith("[0]"):
            return first
        return self.by_name.get(f"{first.name.removesuffix('[0]')}[{number}]")

    def readers(self, op: PlannedOp) -> Sequence[PlannedOp]:
        """The values made from one."""
        return self._readers.get(op.name, ())

    def argument(self, value: Any) -> PlannedOp | None:
        """The argument of the program that a value of `main` is."""
        label, number = self._attributes.location(value).op, argument_number(value)
        if label in self._by_label:
            return self._by_label[label]
        return self._arguments[number] if number < len(self._arguments) else None


def _by_opcode(ops: Sequence[PlannedOp]) -> dict[str, list[PlannedOp]]:
    """The operations by opcode, without constants, which no collective is named by."""
    found: dict[str, list[PlannedOp]] = defaultdict(list)
    for op in ops:
        if op.kind == "op" and op.opcode != "constant" and not _LATER.search(op.name):
            found[op.opcode.rpartition(".")[2]].append(op)
    return found


def _matched(
    ops: Sequence[PlannedOp], same: Sequence[PlacedOperation]
) -> dict[int, PlannedOp]:
    """The id of each operation to its value, for the operations of one opcode."""
    planned: dict[Key, list[PlannedOp]] = defaultdict(list)
    for op in ops:
        planned[op.source, op.shape].append(op)
    seen: dict[Key, int] = defaultdict(int)
    found = {}
    for placed in same if planned else ():
        key = _key(placed)
        if key in planned:
            values = planned[key]
            # A function that the plan lists once is listed here at every call.
            found[id(placed)] = values[seen[key] % len(values)]
            seen[key] += 1
    return found


def _key(placed: PlacedOperation) -> Key:
    results = placed.op.results
    tensor = placed.attributes.tensor(results[0]) if len(results) else None
    return placed.location.source, tensor[0] if tensor else ()


def _label(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")


class PlannedModule:
    """A module that `pipeline.planned_module` made, with the plan that its values are
    named by.

    Attributes:
        attributes: the cache of the module's attributes.
        functions: its functions, by name.
        operations: the operations of `main` and of what it calls, in program order.
        at: operation and caller to PlacedOperation.
        values: the values of the plan.
    """

    def __init__(
        self, planned: Any, ops: Sequence[PlannedOp], attributes: AttributeCache
    ) -> None:
        self.attributes = attributes
        self.functions = functions_of(planned)
        around = _Around(attributes, self.functions)
        self.operations = list(_operations(self.functions["main"], around))
        self.at = {(placed.op, placed.caller): placed for placed in self.operations}
        self.values = Values(ops, self.operations, attributes)

    def start(self, op: Any) -> Any:
        """The value that a chain of collectives begins with."""
        value = op.operands[0]
        while (made := defining_op(value)) is not None and made.name in RESHARDS:
            value = made.operands[0]
        return value

    def end(
        self, op: Any, caller: PlacedOperation | None
    ) -> tuple[Any, PlacedOperation | None]:
        """The last of a chain of collectives, and what reads its result."""
        while True:
            uses = list(op.results[0].uses)  # the last use comes first
            following = [
                u.owner.operation for u in uses if u.owner.operation.name in RESHARDS
            ]
            if not following:
                return op, self._reader(uses[-1], caller) if uses else None
            op = following[-1]

    def _reader(
        self, use: Any, caller: PlacedOperation | None
    ) -> PlacedOperation | None:
        """The operation of a use; where that is a call, the one inside that reads the
        argument.
        """
        reader = self.at.get((use.owner.operation, caller))
        if reader is None or reader.name != CALL:
            return reader
        called = callee(reader.op, self.functions)
        if called is None:
            return reader
        inner = list(called.regions[0].blocks[0].arguments[use.operand_number].uses)
        found = self._reader(inner[-1], reader) if inner else None
        return reader if found is None or found.name == "func.return" else found

    def definition(
        self, value: Any, caller: PlacedOperation | None
    ) -> PlacedOperation | None:
        """The operation that makes a value, or None for an argument."""
        made = defining_op(value)
        return None if made is None else self.at.get((made, _enclosing(value, caller)))

    def value(self, value: Any, caller: PlacedOperation | None) -> PlannedOp | None:
        """The plan's value behind an operand."""
        value, caller = self._resolved(value, caller)
        made = self.definition(value, caller)
        if made is not None:
            return self.values.of(made, value.maybe_downcast().result_number)
        if caller is None:
            return self.values.argument(value)
        return self.values.of(
            caller, argument_number(value)
        )  # what a loop carries is its result

    def name(self, value: Any, caller: PlacedOperation | None) -> str:
        """What a value is called: as in the plan, or else as in jax."""
        planned = self.value(value, caller)
        if planned is not None:
            return planned.name
        value, caller = self._resolved(value, caller)
        made = self.definition(value, caller) or caller
        if made is not None:
            return made.location.last_part or made.opcode
        return self.attributes.location(value).op or "its operand"

    def _resolved(
        self, value: Any, caller: PlacedOperation | None
    ) -> tuple[Any, PlacedOperation | None]:
        """The same value where it is made: through calls, and before any collective."""
        while True:
            made, caller = defining_op(value), _enclosing(value, caller)
            if made is None:
                if caller is None or caller.name not in (CALL, _MANUAL):
                    return value, caller
                value, caller = (
                    caller.op.operands[argument_number(value)],
                    caller.caller,
                )
            elif made.name in RESHARDS:
                value = made.operands[0]
            elif made.name == CALL and callee(made, self.functions) is not None:
                block = callee(made, self.functions).regions[0].blocks[0]
                number = value.maybe_downcast().result_number
                returned = list(block.operations)[-1].operation
                value, caller = returned.operands[number], self.at[made, caller]
            else:
                return value, caller

    def spec(self, value: Any) -> Spec:
        """The sharding of a value in the planned module, one entry per dimension."""
        made = defining_op(value)
        if made is None:
            owner, number = value.owner.owner.operation, argument_number(value)
            if owner.name == "func.func":
                own = named_attribute(owner, "arg_attrs", number)
                found = self.attributes.specs_of(own)[:1]
            else:
                found = self.attributes.specs(owner)[number:]
        elif made.name in RESHARDS:
            found = self.attributes.specs(made, "out_sharding")
        else:
            found = self.attributes.specs(made)[value.maybe_downcast().result_number :]
        dims = found[0].dims if found else ()
        rank = len((self.attributes.tensor(value) or ((), ""))[0])
        return Spec.trusted((dims + ((),) * rank)[:rank])


def _enclosing(value: Any, caller: PlacedOperation | None) -> PlacedOperation | None:
    """The caller that a value is made in: a loop or branch reads values from outside,
    too.
    """
    made = defining_op(value)
    owner = (value.owner.owner if made is None else made.parent).operation
    while caller is not None and caller.name != CALL and caller.op != owner:
        caller = caller.caller
    return caller
