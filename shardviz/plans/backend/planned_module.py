"""PlannedModule: a module with Shardy's collectives, linked to the values of a plan.

The plan is read from a propagated module, and the collectives from a copy on which more
passes ran. A number on each operation links the copy to the ReadOps of the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir

from shardviz.base.collective_kind import KINDS
from shardviz.base.partition_spec import Spec
from shardviz.plans.backend.attributes import defining_op, named_attribute, value_of
from shardviz.plans.backend.before_propagation import (
    FUNCTION_CALL,
    callee,
    functions_of,
)
from shardviz.plans.backend.builder import NUMBER, PlanBuilder, ReadOp
from shardviz.plans.backend.mlir_names import (
    ALL_SLICE,
    ARGUMENT_ATTRIBUTES,
    CASE,
    IF,
    MANUAL_COMPUTATION,
    MODULE_FUNCTION,
    REPLICATED_TO_UNREDUCED,
    RESHARD,
    SHARDED_TO_UNREDUCED,
    WHILE,
)
from shardviz.plans.plan_values import PlannedOp

# Shardy's operation -> kind of collective, for those that move data between devices.
SHARDY = {
    **{kind.shardy: name for name, kind in KINDS.items() if kind.shardy},
    # A reshard remains if two meshes order the devices differently.
    RESHARD: "collective-permute",
}
# Operations that change a sharding without moving data.
_FREE = (ALL_SLICE, SHARDED_TO_UNREDUCED, REPLICATED_TO_UNREDUCED)
RESHARDS = (*SHARDY, *_FREE)
_REGIONS = (
    WHILE,
    CASE,
    IF,
    MANUAL_COMPUTATION,
)


def argument_number(value: Any) -> int:
    """The index of a value among the arguments of its block."""
    return value.maybe_downcast().arg_number


class PlannedModule:
    """A module that `pipeline.planned_module_on` returned, and the values of the plan.

    Attributes:
        attributes: the cache of the module's attributes.
        by_name: name of a value -> the value.
        readers: name of a value -> the values that read it.
    """

    def __init__(
        self, planned: Any, read: PlanBuilder, ops: Sequence[PlannedOp]
    ) -> None:
        self.attributes = read.attributes
        self.by_name = {op.name: op for op in ops}
        self.readers: dict[str, list[PlannedOp]] = defaultdict(list)
        for op in ops:
            for name in op.operands:
                self.readers[name].append(op)
        # Keep the module, because its operations don't outlive it.
        self._planned, self._functions = planned, functions_of(planned)
        self._read_ops = read.read_ops

    def operations(self, owner: Any = None) -> Iterator[Any]:
        """Yields the operations in `owner` or `main` and their callees, in order."""
        for region in (owner or self._functions["main"]).regions:
            for block in region.blocks:
                for item in block.operations:
                    op = item.operation
                    name = op.name
                    yield op
                    if name in _REGIONS:
                        yield from self.operations(op)
                    elif name == FUNCTION_CALL:
                        function = callee(op, self._functions)
                        if function is not None:
                            yield from self.operations(function)

    def read(self, op: ir.Operation | None) -> ReadOp | None:
        """The ReadOp of an operation, or None if Shardy inserted the operation."""
        if op is None or NUMBER not in op.attributes:
            return None
        return self._read_ops[value_of(op, NUMBER)]

    def around(self, op: Any) -> ReadOp:
        """The ReadOp of the function, loop or shard_map that encloses an operation."""
        return self._read_ops[value_of(op.parent.operation, NUMBER)]

    def start(self, op: ir.Operation) -> Any:
        """The value that a chain of collectives moves, given one of the collectives."""
        value = op.operands[0]
        while (reshard := defining_op(value)) is not None and reshard.name in RESHARDS:
            value = reshard.operands[0]
        return value

    def end(self, op: ir.Operation) -> tuple[Any, Any]:
        """The last collective of a chain, and the first reader of its result if any."""
        chain = self.chain(op)
        # MLIR lists uses in reverse order.
        reader = None
        for use in chain[-1].results[0].uses:
            reader = use.owner.operation
        return chain[-1], reader

    def chain(self, op: ir.Operation) -> list[Any]:
        """A chain of collectives: `op`, and the collectives that move its result further."""
        chain = [op]
        while True:
            following = None
            for use in chain[-1].results[0].uses:
                reader = use.owner.operation
                if reader.name in RESHARDS:
                    following = reader
            if following is None:
                return chain
            chain.append(following)

    def name(self, value: Any) -> str:
        """The plan's name of a value, ignoring collectives; `""` if there is none."""
        defining = defining_op(value)
        while defining is not None and defining.name in RESHARDS:
            value = defining.operands[0]
            defining = defining_op(value)
        names = ()
        if defining is None:
            number = argument_number(value)
            if (owner := self.read(value.owner.owner.operation)) is not None:
                names = owner.arguments
        else:
            number = value.maybe_downcast().result_number
            if (read := self.read(defining)) is not None:
                names = read.results
        # The result of an operation that Shardy inserted is not a value of the plan.
        if number >= len(names):
            return ""
        return names[number]

    def spec(self, value: Any) -> Spec:
        """The sharding of a value in the planned module, one entry per dimension."""
        defining = defining_op(value)
        if defining is None:
            owner, number = value.owner.owner.operation, argument_number(value)
            if owner.name == MODULE_FUNCTION:
                argument_sharding = named_attribute(owner, ARGUMENT_ATTRIBUTES, number)
                specs = self.attributes.specs_of(argument_sharding)
            else:
                specs = self.attributes.specs(owner)[number:]
        elif defining.name in RESHARDS:
            specs = self.attributes.specs(defining, "out_sharding")
        else:
            specs = self.attributes.specs(defining)[
                value.maybe_downcast().result_number :
            ]
        shape, _ = self.attributes.tensor(value) or ((), "")
        dims = ((),) * len(shape)
        if specs:
            dims = (specs[0].dims + dims)[: len(shape)]
        return Spec.trusted(dims)
