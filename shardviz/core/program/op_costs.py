"""op_costs(): the arithmetic and the bytes of every operation of a plan, per device.

Counted from shapes, specs and sharding rules only, without a compile. XLA fuses
operations afterwards: the bytes are those of a program in which every operation reads
and writes memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shardviz.core.layout.array_spec import DTYPE_BITS, size_in_bytes
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.plan import Plan
from shardviz.core.program.plan_values import (
    PlannedOp,
    ShardingRule,
    group_size,
    local_shape,
)

# They only move or name values, or contain other operations.
_FREE = frozenset({
    "constant", "iota", "reshape", "bitcast_convert", "optimization_barrier", "tuple",
    "get_tuple_element", "while", "case", "if", "call", "custom_call", "composite",
    "return", "after_all", "create_token",
})  # fmt: skip
_PRODUCTS = ("dot_general", "dot", "convolution")
# They read a part of their first operand only: as many bytes as their result has.
_READ_A_PART = ("slice", "dynamic_slice", "gather")
# They write a part of their first operand in place; this operand holds what is written.
_WRITE_A_PART = {"dynamic_update_slice": 1, "scatter": 2}


@dataclass(frozen=True)
class OpCost:
    """What one operation costs on each device, once.

    Attributes:
        name: the plan's name of its value.
        opcode: the operation, as StableHLO names it.
        flops: operations on numbers; None where they are not known.
        bytes: what it reads and writes, as if nothing were fused.
        trips: how often it runs; None inside loops of unknown length.
        dtype: of its operands: the type that the arithmetic is done in.
        source: the user's file and line.

    >>> OpCost("dot_general", "dot_general", 2e9, 4096, trips=12).executions
    12
    """

    name: str
    opcode: str
    flops: float | None
    bytes: int
    trips: int | None = 1
    dtype: str = ""
    source: str = ""

    @property
    def executions(self) -> int:
        """How often it runs; a loop of unknown length counts once."""
        return self.trips or 1

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product or a convolution, which nothing fuses."""
        return self.opcode in _PRODUCTS


def op_costs(plan: Plan) -> tuple[OpCost, ...]:
    """The cost of every operation that computes something, in program order.

    Matrix products count two operations for every product; everything else counts one
    for every number it makes. How many a convolution does is not known.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(64, 32), dtype="float32", spec=Spec.of("data"))
    >>> w = PlannedOp("w", "argument", shape=(32, 16), dtype="float32")
    >>> rule = ShardingRule(
    ...     ((("i",), ("k",)), (("k",), ("j",))), ((("i",), ("j",)),),
    ...     {"i": 64, "j": 16, "k": 32}, ("k",))
    >>> dot = PlannedOp(
    ...     "dot_general", "op", "dot_general", shape=(64, 16), dtype="float32",
    ...     spec=Spec.of("data"), operands=("x", "w"),
    ...     factors=rule)
    >>> op_costs(Plan("f", make_mesh(data=4), (x, w, dot)))[0].flops
    16384.0
    """
    named, mesh = plan.by_name, plan.mesh
    costs = []
    for op in plan.ops:
        if op.kind != "op" or op.opcode in _FREE or not op.covered:
            continue
        reads = [named[name] for name in op.operands if name in named]
        trips = op.trips
        if trips is None and "loop" not in op.region:
            trips = 1
        dtype = (reads or [op])[0].dtype
        flops, size = _flops(op, reads, mesh), _bytes_of(op, named, mesh)
        costs.append(OpCost(op.name, op.opcode, flops, size, trips, dtype, op.source))
    return tuple(costs)


def _bytes_of(op: PlannedOp, named: Mapping[str, PlannedOp], mesh: MeshSpec) -> int:
    """The bytes that an operation reads and writes on each device."""
    size = []
    for name in op.operands:
        size.append(_local_bytes(named[name], mesh) if name in named else 0)
    if op.opcode in _READ_A_PART:
        return 2 * _local_bytes(op, mesh) + sum(size[1:])
    part = _WRITE_A_PART.get(op.opcode, len(size))
    if part < len(size):
        return size[part] + sum(size[1:])
    return sum(size) + _local_bytes(op, mesh)


def _local_bytes(op: PlannedOp, mesh: MeshSpec) -> int:
    if op.dtype not in DTYPE_BITS and not op.dtype.startswith("key<"):
        # Tokens and the like take no memory.
        return 0
    return size_in_bytes(math.prod(local_shape(op.shape, op.spec, mesh)), op.dtype)


def _flops(op: PlannedOp, reads: list[PlannedOp], mesh: MeshSpec) -> float | None:
    made = float(math.prod(local_shape(op.shape, op.spec, mesh)))
    if op.opcode not in _PRODUCTS:
        return made
    rule = op.factors
    # A convolution sums over a window, which its rule does not say.
    if op.opcode == "convolution" or rule is None or len(reads) < 2:
        return None
    products = 2 * made
    for factor in rule.reduction:
        products *= _summed(rule, reads, factor, mesh, set(op.spec.axes))
    return products


def _summed(
    rule: ShardingRule,
    reads: list[PlannedOp],
    factor: str,
    mesh: MeshSpec,
    used: set[str],
) -> int:
    """How many products each device sums along a factor.

    An axis that splits the result cannot divide the work once more: where it splits the
    sum as well, each device makes a part of all of the result, or all of its part.
    """
    split: list[set[str]] = []
    for operand, read in zip(rule.operands[:2], reads, strict=False):
        dims = (*read.spec.dims, *((),) * len(operand))
        axes: set[str] = set()
        for names, here in zip(operand, dims, strict=False):
            if factor in names:
                axes.update(here)
        split.append(axes)
    both = set.intersection(*split) - used
    return -(-rule.sizes.get(factor, 1) // group_size(both, mesh))
