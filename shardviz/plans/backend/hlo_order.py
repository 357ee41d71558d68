"""Orders the operations of a module as XLA does before it calls Shardy.

If shardings conflict, Shardy's choice depends on the order of the operations. XLA reads
the module from HLO, which has the order of a depth-first search from the results
(`HloComputation::MakeInstructionPostOrder`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir

from shardviz.plans.backend.attributes import defining_op, value_of
from shardviz.plans.backend.before_propagation import operations_in
from shardviz.plans.backend.mlir_names import BROADCAST, CONSTANT, SHARDY_CONSTANT

# An operation's place in the order of the program.
_PLACE = "shardviz.place"
# Shardy splits these operations and merges equal ones later. With different places,
# they would not be equal.
_MERGED = frozenset({CONSTANT, BROADCAST, SHARDY_CONSTANT})


def sort_as_in_hlo(module: ir.Operation) -> None:
    """Sorts the operations of every block as HLO does, in place.

    An attribute keeps each operation's place, for `sort_as_in_program`.

    >>> import jax
    >>> def f(x, y):
    ...     first, second = x + 1, y + 2
    ...     return second, first
    >>> module = jax.jit(f).lower(1.0, 2.0).compiler_ir("stablehlo").operation.clone()
    >>> def sums():
    ...     adds = [op for op in operations_in(module) if op.name == "stablehlo.add"]
    ...     return [str(op.operands[0]) for op in adds]
    >>> before = sums()
    >>> sort_as_in_hlo(module)
    >>> sums() == before[::-1]
    True
    >>> sort_as_in_program(module)
    >>> sums() == before
    True
    """
    for block in _blocks_in(module):
        ops = [item.operation for item in block.operations]
        order = _post_order(ops)
        if order == list(range(len(ops))):
            continue
        for index, op in enumerate(ops):
            if op.name not in _MERGED:
                _put_place(op, 2 * index)  # leaves odd places to other operations
        for index in order[:-1]:
            ops[index].move_before(ops[-1])


def sort_as_in_program(module: ir.Operation) -> None:
    """Undoes `sort_as_in_hlo`, in place, after passes that may add operations."""
    for block in _blocks_in(module):
        ops = [item.operation for item in block.operations]
        if not any(_PLACE in op.attributes for op in ops):
            continue
        for op in reversed(ops):
            # Place it before its first reader.
            if _PLACE not in op.attributes:
                place = 2 * len(ops)
                for value in op.results:
                    for use in value.uses:
                        place = min(place, _place_of_reader(use.owner, block))
                _put_place(op, place)
        places = [value_of(op, _PLACE) for op in ops]
        for index in sorted(range(len(ops) - 1), key=places.__getitem__):
            ops[index].move_before(ops[-1])
        for op in ops:
            del op.attributes[_PLACE]


def _put_place(op: ir.Operation, place: int) -> None:
    kind = ir.IntegerType.get_signless(64, op.context)
    op.attributes[_PLACE] = ir.IntegerAttr.get(kind, place)


def _place_of_reader(reader: Any, block: Any) -> int:
    """The odd place before the operation of a block that is or contains a reader."""
    while reader.operation.block != block:
        reader = reader.operation.parent
    return (value_of(reader.operation, _PLACE) - 1) | 1


def _blocks_in(module: ir.Operation) -> Iterator[Any]:
    for op in operations_in(module):
        for region in op.regions:
            yield from region.blocks


def _post_order(ops: Sequence[Any]) -> list[int]:
    """The indices of a block's operations in HLO's order."""
    index_of = {op: index for index, op in enumerate(ops)}
    reads = []
    for op in ops:
        # In HLO, a region has its block's values as operands.
        read = []
        for inner in (op, *operations_in(op)):
            for value in inner.operands:
                owner = defining_op(value)
                if owner in index_of:
                    read.append(index_of[owner])
        reads.append(read)
    is_read = {index for operands in reads for index in operands}
    order: dict[int, None] = {}
    entered = set()
    stack = [index for index in reversed(range(len(ops))) if index not in is_read]
    while stack:
        index = stack[-1]
        if index in entered:  # so everything that it reads is in `order`
            order.setdefault(stack.pop())
        else:
            entered.add(index)
            stack += reversed(reads[index])
    return list(order)
