"""op_costs(): the FLOP and bytes of every operation in a plan, per device.

Both are counted from shapes, specs and sharding rules, without compiling. Because XLA
fuses operations later, each operation has two byte counts: one if nothing is fused, and
one for the memory traffic that no fusion can avoid. The unavoidable traffic consists of
the operands and results of matrix products, the program's arguments and results, and
loop carries.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from shardviz.base.array_spec import DTYPE_BITS, size_in_bytes
from shardviz.base.axis_parts import group_size, local_shape
from shardviz.base.collective import sent_in_all
from shardviz.base.mesh import MeshSpec
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp, ShardingRule, bytes_per_device

# Operations that only move or name values, or that contain other operations.
_FREE = frozenset({
    "constant", "iota", "reshape", "bitcast_convert", "optimization_barrier", "tuple",
    "get_tuple_element", "while", "case", "if", "call", "custom_call", "composite",
    "return", "after_all", "create_token",
})  # fmt: skip

# Operations whose results XLA doesn't store: readers compute the result themselves,
# or read the operand.
_NOT_STORED = ("constant", "iota", "broadcast_in_dim", "reshape", "convert")
# JAX's names for the branches of `lax.cond` and `lax.switch`.
_BRANCH = re.compile(r"branch_\d+_fun")
_PRODUCTS = ("dot_general", "dot", "convolution")
# Operations without arithmetic.
_MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "convert", "copy", "dynamic_slice",
    "dynamic_update_slice", "gather", "pad", "reverse", "scatter", "slice", "transpose",
})  # fmt: skip
# Operations that read only a slice of their first operand, as large as their result.
_READ_A_PART = ("slice", "dynamic_slice", "gather")
# Operations that write a slice of their first operand in place -> the number of the
# operand with the new values.
_WRITE_A_PART = {"dynamic_update_slice": 1, "scatter": 2}


@dataclass(frozen=True)
class OpCost:
    """The cost of one execution of an operation on each device.

    Attributes:
        name: the plan's name for the operation's result.
        opcode: the operation's StableHLO name.
        flops: arithmetic operations; None if unknown.
        bytes: bytes read and written if nothing is fused.
        trips: number of executions; None in loops of unknown length.
        dtype: the type of the operands, in which the arithmetic is done.
        source: the user's file and line.
        unavoidable: bytes of memory traffic that no fusion can avoid, over all
            executions.

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
    unavoidable: int = 0

    @property
    def executions(self) -> int:
        """Number of executions; 1 in loops of unknown length."""
        return self.trips or 1

    @property
    def is_product(self) -> bool:
        """Whether this is a matrix product or convolution, which XLA doesn't fuse."""
        return self.opcode in _PRODUCTS

    @property
    def only_moves(self) -> bool:
        """Whether this operation moves or copies elements, without arithmetic."""
        return self.opcode in _MOVES


def op_costs(plan: Plan) -> tuple[OpCost, ...]:
    """Returns the cost of every operation that computes something, in program order.

    Matrix products and convolutions count two operations per product; other operations
    count one per element of their result. As in XLA, only the costliest branch of a
    conditional counts.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.partition_spec import Spec
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
    named, mesh, traffic = plan.by_name, plan.mesh, _Traffic(plan)
    sums: dict[str, set[str]] = {}
    for collective in plan.collectives:
        if collective.definition.sums:
            sums.setdefault(collective.value, set()).update(collective.mesh_axes)
    costs = []
    for op in plan.ops:
        if op.kind != "op" or op.opcode in _FREE or not op.covered:
            continue
        reads = [named[name] for name in op.operands if name in named]
        trips = op.trips
        if trips is None and "loop" not in op.region:
            trips = 1
        dtype = (reads or [op])[0].dtype
        flops = _flops(op, reads, mesh, sums.get(op.name, set()))
        size = _bytes_of(op, named, mesh)
        cost = OpCost(op.name, op.opcode, flops, size, trips, dtype, op.source)
        costs.append(replace(cost, unavoidable=traffic.of(op, cost)))
    paths = [named[cost.name].scope for cost in costs]
    weights = [((c.flops or 0.0) + c.bytes) * c.executions for c in costs]
    return tuple(itertools.compress(costs, in_costliest_branch(paths, weights)))


def in_costliest_branch(
    paths: Sequence[Sequence[str]], weights: Sequence[float]
) -> list[bool]:
    """Marks items outside conditionals, and items in a conditional's costliest branch.

    Args:
        paths: the scopes around each item, as JAX names them.
        weights: the cost of each item.

    >>> paths = [("f",), ("f", "cond", "branch_0_fun"), ("f", "cond", "branch_1_fun")]
    >>> in_costliest_branch(paths, [1.0, 2.0, 3.0])
    [True, False, True]
    """
    branches = [branch_of(path) for path in paths]
    totals: dict[tuple[str, ...], dict[str, float]] = {}
    for branch, weight in zip(branches, weights, strict=True):
        if branch is not None:
            # Two conditionals in one scope count as one, so the total is never too high.
            by_branch = totals.setdefault(branch[0], {})
            by_branch[branch[1]] = by_branch.get(branch[1], 0.0) + weight
    costliest: dict[tuple[str, ...], str] = {}
    for condition, by_branch in totals.items():
        costliest[condition] = max(by_branch, key=by_branch.__getitem__)
    return [b is None or costliest[b[0]] == b[1] for b in branches]


def branch_of(path: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
    """Returns the scopes around the outermost conditional, and its branch; else None."""
    for at, scope in enumerate(path):
        if _BRANCH.fullmatch(scope):
            return tuple(path[:at]), scope
    return None


def held_bytes(plan: Plan) -> int:
    """Returns the bytes of arguments and results per device, a lower bound on memory.

    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(64,), dtype="float32", spec=Spec.of("data"))
    >>> held_bytes(Plan("f", make_mesh(data=4), (x, PlannedOp("y", "op", operands=("x",)))))
    64
    """
    read = {name for op in plan.ops for name in op.operands}
    total = 0
    for op in plan.ops:
        # JAX removes unused arguments, results may reuse the memory of donated ones,
        # and some arguments stay in host memory.
        stays = op.name in read and not op.donated and "host" not in op.memory_kind
        if op.kind == "result" or (op.kind == "argument" and stays):
            total += bytes_per_device(op, plan.mesh)
    return total


def saved_values(plan: Plan) -> list[PlannedOp]:
    """Returns the forward values that the backward pass reads, in program order.

    XLA may compute some of them again, so this is an estimate.

    >>> from shardviz.base.mesh import make_mesh
    >>> x = PlannedOp("x", "argument", shape=(64,), dtype="float32")
    >>> y = PlannedOp("y", "op", "exponential", operands=("x",))
    >>> dx = PlannedOp("dx", "op", "multiply", operands=("x", "y"), backward=True)
    >>> [op.name for op in saved_values(Plan("f", make_mesh(data=4), (x, y, dx)))]
    ['y']
    """
    saved: dict[str, None] = {}
    for op in plan.ops:
        if not op.backward:
            continue
        for operand in map(plan.by_name.get, op.operands):
            # A value that is not stored is computed from its operand when it is read.
            while operand and operand.opcode in _NOT_STORED and operand.operands:
                operand = plan.by_name.get(operand.operands[0])
            if operand is None or operand.backward or operand.opcode in _NOT_STORED:
                continue
            if operand.kind == "op":
                saved[operand.name] = None
    return [op for op in plan.ops if op.name in saved]


class StepCost(NamedTuple):
    """A plan's communication and memory on each device.

    Attributes:
        sent: bytes that all collectives send, over all iterations of loops of known
            length.
        alive: the most bytes of values that are alive at the same time.
    """

    sent: int
    alive: int


def step_cost(plan: Plan) -> StepCost:
    """Returns a program's communication and memory, from its plan."""
    sent = sent_in_all(plan.collectives)
    return StepCost(sent, most_alive(plan))


def most_alive(plan: Plan) -> int:
    """Returns the most bytes of live values on each device, in the plan's order.

    This is an estimate: XLA fuses operations, reuses buffers and pads arrays.
    """
    return max(live_bytes(plan), default=0)


def live_bytes(plan: Plan) -> list[int]:
    """Returns the bytes of live values on each device at each of the plan's operations.

    >>> from shardviz.base.mesh import make_mesh
    >>> shape = {"shape": (256,), "dtype": "float32"}
    >>> x = PlannedOp("x", "argument", **shape)
    >>> y = PlannedOp("y", "op", "sin", operands=("x",), **shape)
    >>> z = PlannedOp("z", "op", "cos", operands=("y",), **shape)
    >>> live_bytes(Plan("f", make_mesh(data=1), (x, y, z)))
    [1024, 2048, 3072]
    """
    last: dict[str, int] = {}
    for at, op in enumerate(plan.ops):
        for name in op.operands:
            last[name] = at
    end = len(plan.ops)
    # The change in live bytes at each operation.
    changes = [0] * (end + 2)
    for at, op in enumerate(plan.ops):
        if op.kind == "result" or op.opcode in _NOT_STORED:
            continue
        size = bytes_per_device(op, plan.mesh)
        # Arguments stay in memory unless they are donated.
        stays = op.kind == "argument" and not op.donated
        changes[at] += size
        changes[end if stays else last.get(op.name, at) + 1] -= size
    at_value = {op.name: at for at, op in enumerate(plan.ops)}
    for collective in plan.collectives:
        # A collective's result is a second array, next to the value itself.
        at = last.get(collective.value, at_value.get(collective.value, 0))
        changes[at] += collective.bytes_per_device
        changes[at + 1] -= collective.bytes_per_device
    return list(itertools.accumulate(changes[:end]))


class _Traffic:
    """A plan's memory traffic that no fusion can avoid, in bytes.

    A matrix product reads its operands and writes its result. All other operations may
    be fused, but an argument is read once, a result is written once, and each iteration
    of a loop reads and writes the carry. Values computed from a product's result or
    needed for a product's operand count with that product.
    """

    def __init__(self, plan: Plan) -> None:
        self.mesh, self.by_name = plan.mesh, plan.by_name
        self.feeding = _feeding_products(plan)
        self.derived = _derived_from_products(plan)
        self.results: set[str] = set()
        # Loop carries at the start of an iteration, and at its end.
        self.carried: set[str] = set()
        self.carried_on: set[str] = set()
        self.read: set[str] = set()
        for op in plan.ops:
            if op.kind == "result":
                self.results.update(op.operands)
            elif op.opcode == "while" and len(op.operands) == 2:
                after = self.by_name.get(op.operands[1])
                if after is None or after.opcode == "while":
                    continue  # the inner loop counts this value
                self.carried_on.add(after.name)
                # A partial update doesn't read the array that it writes to.
                if after.opcode not in _WRITE_A_PART:
                    self.carried.add(op.name)

    def of(self, op: PlannedOp, cost: OpCost) -> int:
        """Returns an operation's unavoidable bytes, over all executions."""
        if cost.is_product:
            return cost.bytes * cost.executions
        return self._written(op, cost) + self._read(op, cost)

    def _written(self, op: PlannedOp, cost: OpCost) -> int:
        if op.name in self.results:
            return bytes_per_device(op, self.mesh)
        if op.name not in self.carried_on or op.name in self.derived:
            return 0
        part = _WRITE_A_PART.get(op.opcode)
        if part is None or part >= len(op.operands):
            return bytes_per_device(op, self.mesh) * cost.executions
        update = self.by_name.get(op.operands[part])
        if update is None or update.name in self.derived:
            return 0
        return bytes_per_device(update, self.mesh) * cost.executions

    def _read(self, op: PlannedOp, cost: OpCost) -> int:
        total = 0
        for number, name in enumerate(op.operands):
            operand = self.by_name.get(name)
            if operand is None or name in self.feeding or name in self.read:
                continue
            size = 0
            if op.opcode in _READ_A_PART:
                # Loop iterations read different slices, as in a scan.
                if number == 0 and operand.kind == "argument" and "loop" in op.region:
                    size = bytes_per_device(op, self.mesh) * cost.executions
            elif operand.kind == "argument":
                size = bytes_per_device(operand, self.mesh)
            elif name in self.carried and op.opcode not in _WRITE_A_PART:
                size = bytes_per_device(operand, self.mesh) * cost.executions
            if size:
                self.read.add(name)
                total += size
        return total


def _feeding_products(plan: Plan) -> set[str]:
    """Returns the values behind a product's operands, back to the previous products."""
    feeding: set[str] = set()
    for op in reversed(plan.ops):
        if op.opcode in _PRODUCTS or (op.name in feeding and op.opcode != "while"):
            feeding.update(op.operands)
    return feeding


def _derived_from_products(plan: Plan) -> set[str]:
    """Returns the values computed from a product in the same iteration of a loop."""
    derived: set[str] = set()
    for op in plan.ops:
        if op.opcode == "while":
            continue
        if op.opcode in _PRODUCTS or not derived.isdisjoint(op.operands):
            derived.add(op.name)
    return derived


def _bytes_of(op: PlannedOp, named: Mapping[str, PlannedOp], mesh: MeshSpec) -> int:
    """Returns the bytes that an operation reads and writes on each device."""
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
        # Tokens and similar types take no memory.
        return 0
    return size_in_bytes(math.prod(local_shape(op.shape, op.spec, mesh)), op.dtype)


def _flops(
    op: PlannedOp, reads: list[PlannedOp], mesh: MeshSpec, sums: Set[str]
) -> float | None:
    """Returns the arithmetic operations on each device.

    Args:
        op: the operation.
        reads: its operands.
        mesh: the mesh.
        sums: the mesh axes over which collectives sum its result.
    """
    elements = float(math.prod(local_shape(op.shape, op.spec, mesh)))
    if op.opcode not in _PRODUCTS:
        return elements
    rule = op.factors
    if rule is None or len(reads) < 2:
        return None
    if op.opcode == "convolution":
        return _convolution_flops(op, reads, rule, mesh, sums)
    if not sums.isdisjoint(op.spec.axes):
        # The result gets its sharding after the sum. Until then it is split like the
        # operands.
        split = {*sums, *op.spec.axes}
        for operand, read in zip(rule.operands, reads, strict=False):
            for names, axes in zip(operand, read.spec.dims, strict=False):
                if set(names).isdisjoint(rule.reduction):
                    split.update(axes)
        return 2.0 * math.prod(rule.sizes.values()) / group_size(split, mesh)
    products, used = 2 * elements, set(op.spec.axes)
    for factor in rule.reduction:
        # An axis that splits the result, or another factor, cannot divide the work a
        # second time. If it splits the result and the summed dimension, each device
        # computes partial sums of all results, or full sums of its own results.
        axes = _axes_of_factor(rule, reads, factor, sums) - used
        used |= axes
        products *= -(-rule.sizes.get(factor, 1) // group_size(axes, mesh))
    return products


def _convolution_flops(
    op: PlannedOp,
    reads: list[PlannedOp],
    rule: ShardingRule,
    mesh: MeshSpec,
    sums: Set[str],
) -> float | None:
    """Counts two operations per result and kernel element, padding included.

    If the input is dilated, as in the gradient of a strided convolution, most products
    are with zeros. In that case we count two operations for each product of an input
    element with a kernel element.
    """
    inputs, kernel = rule.operands[0], rule.operands[1]
    in_result = {factor for dim in rule.results[0] for factor in dim}
    in_kernel = {factor for dim in kernel for factor in dim}
    channels: set[str] = set()
    channel_size = 1
    for size, dim in zip(reads[0].shape, inputs, strict=False):
        # Unlike channels, batch and spatial dimensions have a factor of the result.
        if not in_result.intersection(dim).difference(in_kernel):
            channels.update(dim)
            channel_size *= size
    features = 1
    for size, dim in zip(reads[1].shape, kernel, strict=False):
        if in_result.intersection(dim):
            features *= size
    size = math.prod(reads[1].shape)
    results, input_size = math.prod(op.shape), math.prod(reads[0].shape)
    pairs = results * size / max(features, 1)
    in_operands = in_kernel.union(factor for dim in inputs for factor in dim)
    # In a kernel's gradient, the window is as large as the input, which is never
    # dilated.
    if in_result <= in_operands and results * channel_size > input_size * features:
        pairs = min(pairs, input_size * size / max(channel_size, 1))
    split = set(op.spec.axes)
    for factor in channels.intersection(in_kernel):
        split |= _axes_of_factor(rule, reads, factor, sums)
    return 2 * pairs / group_size(split, mesh)


def _axes_of_factor(
    rule: ShardingRule, reads: list[PlannedOp], factor: str, sums: Set[str]
) -> set[str]:
    """Returns the mesh axes that divide the work along a factor of a product.

    They split the factor in both operands. If a collective sums the result over an
    axis, it is enough that one operand is split: each device then slices the other.
    """
    split: list[set[str]] = []
    for operand, read in zip(rule.operands[:2], reads, strict=False):
        dims = (*read.spec.dims, *((),) * len(operand))
        axes: set[str] = set()
        for names, dim_axes in zip(operand, dims, strict=False):
            if factor in names:
                axes.update(dim_axes)
        split.append(axes)
    return set.intersection(*split) | (set.union(*split) & sums)
