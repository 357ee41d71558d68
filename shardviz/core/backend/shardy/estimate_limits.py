"""Where the estimate may differ from XLA's partitioner: marks on values of a plan.

Shardy lets an axis cross a shift, a window or a cumulative sum, and plans no collective
for what must be exchanged there; XLA's partitioner inserts one. And where a matrix
product wants one axis in two places, as under fsdp, both resolve it otherwise. So a
value is marked by what kind of operation or move it is, rather than by what XLA would
do: some marks are needless, and no miss was found without one.
`python -m tests.bench.stages agree` counts both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.plan_causes import MoveCause
from shardviz.core.program.plan_values import PlannedOp, ShardingRule, group_size
from shardviz.core.program.report import Collective
from shardviz.core.program.uncertain import Uncertain

# Operations that read along a dimension, and the factors of their sharding rule along
# which they do; "" is any.
_ALONG = {
    "pad": "permutation",
    "slice": "permutation",
    "reverse": "permutation",
    "concatenate": "permutation",
    "convolution": "permutation",
    "reduce_window": "permutation",
    "dynamic_slice": "blocked_propagation",
    # Until jax 0.11 XLA makes the transform of a matrix on every device.
    "fft": "" if jax.__version_info__ < (0, 11) else "need_replication",
    "reduce": "reduction",
    "top_k": "",
}
# Primitives of `jax.lax.linalg`: XLA gathers each matrix.
_OF_MATRICES = frozenset({
    "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product",
    "lu", "schur", "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve",
})  # fmt: skip
_INDICES = ("gather", "scatter")


def uncertain_operation(
    op: PlannedOp, operands: Sequence[PlannedOp], mesh: MeshSpec, groups: int = 1
) -> tuple[Uncertain, ...]:
    """Why the estimate at a value is uncertain, as far as the operation shows it.

    Args:
        op: the value.
        operands: what it reads.
        mesh: the mesh.
        groups: of a convolution, into how many groups it splits features or the batch.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> split, tensor = Spec.parse("data"), (("i",),)
    >>> rule = ShardingRule((tensor,), (tensor,), {"i": 8}, permutation=("i",))
    >>> x = PlannedOp("x", "argument", shape=(8,), spec=split)
    >>> fields = {"shape": (8,), "spec": split, "operands": ("x",), "factors": rule}
    >>> y = PlannedOp("y", "op", "reverse", **fields)
    >>> uncertain_operation(y, [x], MeshSpec(("data",), (4,)))
    (Uncertain(code='along', axes=('data',), dim=0, op='reverse'),)
    """
    # In a shard_map nothing is split any more.
    if op.manual or not operands:
        return ()
    if op.opcode == "custom_call" or op.opcode in _OF_MATRICES:
        return tuple(_needing_all(op, operands))
    if op.opcode in ("dynamic_update_slice", "select_and_scatter"):
        return tuple(_written_along(op, operands))
    if op.opcode == "convolution":
        axes = _channels(op, operands)
        if groups > 1:
            axes = _axes_of((*operands, op))
        if axes:
            return (Uncertain("along", axes, op=op.opcode),)
    return tuple(_read_along(op, operands[0], mesh))


def _needing_all(op: PlannedOp, operands: Sequence[PlannedOp]) -> Iterator[Uncertain]:
    first = 0
    if op.factors is not None and op.factors.propagates:
        # Where Shardy has a rule, all before the matrix is a batch, which stays split.
        first = len(operands[0].shape) - 2
    axes: dict[str, None] = {}
    for value in (*operands, op):
        for own in value.spec.dims[first:]:
            axes |= dict.fromkeys(own)
    if axes:
        yield Uncertain("call", tuple(axes), op=op.op.rpartition("/")[2] or op.opcode)


def _written_along(op: PlannedOp, operands: Sequence[PlannedOp]) -> Iterator[Uncertain]:
    """Where a part is written along a split dimension into a value that is longer."""
    all_of, part = operands[0], operands[1]
    for dim, (size, own) in enumerate(zip(all_of.shape, part.shape, strict=True)):
        axes: dict[str, None] = {}
        for value in (all_of, part, op):
            axes |= dict.fromkeys(value.spec.dims[dim])
        if own < size and axes:
            yield Uncertain("along", tuple(axes), dim, op.opcode)


def _channels(op: PlannedOp, operands: Sequence[PlannedOp]) -> tuple[str, ...]:
    """The axes that split the channels of one operand of a convolution alone."""
    rule = op.factors
    if rule is None or len(operands) != 2:
        return ()
    over: list[set[str]] = []
    for value, tensor in zip(operands, rule.operands, strict=True):
        summed: set[str] = set()
        for own, names in zip(value.spec.dims, tensor, strict=False):
            if not {*names}.isdisjoint(rule.reduction):
                summed |= {*own}
        over.append(summed)
    # An axis that splits another dimension of the result does not split channels.
    return tuple(sorted((over[0] ^ over[1]) - {*op.spec.axes}))


def _read_along(
    op: PlannedOp, operand: PlannedOp, mesh: MeshSpec
) -> Iterator[Uncertain]:
    """Where an operation reads along a split dimension what another device holds."""
    rule = op.factors
    if rule is None or not rule.operands or not rule.results or op.opcode not in _ALONG:
        return
    tensors = zip(rule.operands[0], operand.spec.dims, strict=False)
    for dim, (names, axes) in enumerate(tensors):
        # Parts of an axis are the compiler's own choice, which it makes again.
        all_named = set(axes) <= mesh.shape.keys()
        if names and all_named and group_size(axes, mesh) > 1:
            if _reads_others(op, operand, rule, dim):
                yield Uncertain("along", axes, dim, op.opcode)


def _reads_others(
    op: PlannedOp, operand: PlannedOp, rule: ShardingRule, dim: int
) -> bool:
    factor, where = rule.operands[0][dim][0], _ALONG[op.opcode]
    among = (factor,)
    if where:
        among = getattr(rule, where)
    if op.opcode == "reduce":  # of values with their indices: argmax
        return factor in among and len(rule.results) > 1
    if where != "permutation":
        return factor in among
    for own, names in enumerate(rule.results[0]):
        if factor in names and own < op.spec.rank:
            after = op.spec.dims[own]
            if op.opcode == "slice":
                if {*operand.spec.dims[dim]}.isdisjoint(after):
                    # Shardy gathers before it slices, and moves afterwards.
                    return op.shape != operand.shape
                if operand.shape[dim] == op.shape[own]:
                    return False
            # Where it is not split afterwards, Shardy gathers it before.
            return factor in among and bool(after)
    return False


def with_uncertain_moves(
    ops: Sequence[PlannedOp], collectives: Sequence[Collective], mesh: MeshSpec
) -> tuple[PlannedOp, ...]:
    """The same values, each with what is uncertain of the collectives planned for it.

    Args:
        ops: the values of a plan.
        collectives: its estimate.
        mesh: its mesh.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(8, 8), spec=Spec.parse("data, None"))
    >>> w = PlannedOp("w", "argument", shape=(8, 8), spec=Spec.parse("data, None"))
    >>> i, j, k = ("i",), ("j",), ("k",)
    >>> sizes = {"i": 8, "j": 8, "k": 8}
    >>> rule = ShardingRule(((i, k), (k, j)), ((i, j),), sizes, ("k",))
    >>> y = PlannedOp("y", "op", "dot_general", operands=("x", "w"), factors=rule)
    >>> mesh = MeshSpec(("data", "model"), (4, 4))
    >>> with_uncertain_moves((x, w, y), (), mesh)[2].uncertain
    (Uncertain(code='product', axes=('data',), dim=None, op='dot_general'),)
    """
    own: dict[str, list[Collective]] = defaultdict(list)
    again: dict[str, list[Collective]] = defaultdict(list)
    moved = set()
    for c in collectives:
        own[c.value].append(c)
        if isinstance(c.cause, MoveCause):
            move = (
                c.cause.value,
                c.cause.before,
                c.cause.after,
                c.kind,
                c.bytes_per_device,
            )
            # XLA may move it once for all that need it so.
            if move in moved:
                again[c.value].append(c)
            moved.add(move)
    values = {op.name: op for op in ops}
    marked = []
    for op in ops:
        if not op.manual:
            reads = [values[name] for name in op.operands if name in values]
            more = list(_uncertain_moves(op, reads, own[op.name], again[op.name], mesh))
            if more:
                op = op.changed(uncertain=(*op.uncertain, *more))
        marked.append(op)
    return tuple(marked)


def _uncertain_moves(
    op: PlannedOp,
    reads: Sequence[PlannedOp],
    own: Sequence[Collective],
    again: Sequence[Collective],
    mesh: MeshSpec,
) -> Iterator[Uncertain]:
    """What is uncertain of the collectives for one value."""
    over = _over(
        own, "all-gather", "all-to-all", "collective-permute", "reduce-scatter"
    )
    if op.opcode in _INDICES:
        # A sum over what splits the result, too, may go over a free axis instead.
        summed = not {*_over(own)}.isdisjoint(op.spec.axes)
        free = not {*mesh.shape} <= {*_axes_of((op, *reads))}
        if over or (summed and free):
            yield Uncertain("indices", over or op.spec.axes, op=op.opcode)
    elif op.opcode == "concatenate" and over:
        # Shards of several sizes are put together in other steps.
        if any(_is_uneven(value, mesh) for value in reads):
            yield Uncertain("along", over, op=op.opcode)
    elif op.opcode == "reshape":
        kept = {*op.spec.axes, *over}
        lost = tuple(axis for axis in _axes_of(reads[:1]) if axis not in kept)
        if lost:  # Shardy gathers nothing for these
            yield Uncertain("along", lost, op=op.opcode)
    elif op.opcode == "dot_general" and op.factors is not None:
        axes = _in_two_places(op, reads, own, op.factors, mesh)
        if axes:
            yield Uncertain("product", axes, op=op.opcode)
    split = _axes_of((op, *reads))
    in_parts = any(":" in axis for axis in split)
    if own and (again or in_parts or _in_steps(op, reads, own)):
        yield Uncertain("move", _over(own), op=op.opcode)


def _over(collectives: Iterable[Collective], *kinds: str) -> tuple[str, ...]:
    """The mesh axes that collectives, or those of some kinds, run over."""
    axes: dict[str, None] = {}
    for c in collectives:
        if not kinds or c.kind in kinds:
            axes |= dict.fromkeys(c.mesh_axes)
    return tuple(axes)


def _axes_of(values: Iterable[PlannedOp]) -> tuple[str, ...]:
    axes: dict[str, None] = {}
    for value in values:
        axes |= dict.fromkeys(value.spec.axes)
    return tuple(axes)


def _is_uneven(value: PlannedOp, mesh: MeshSpec) -> bool:
    """Whether the shards of a value are not all of one size."""
    for size, axes in zip(value.shape, value.spec.dims, strict=False):
        if size % group_size(axes, mesh):
            return True
    return False


def _in_steps(
    op: PlannedOp, reads: Sequence[PlannedOp], own: Sequence[Collective]
) -> bool:
    """Whether values are moved in several steps, or over axes that split them not yet."""
    if op.opcode in _INDICES:
        return False
    kinds = {c.kind for c in own} - {"all-reduce", "reduce-scatter"}
    exchanges = {c.mesh_axes for c in own if c.kind == "all-to-all"}
    several = sum(bool(value.spec.axes) for value in reads) > 1
    if len(kinds) > 2 or (several and len(exchanges) > 1):
        return True
    if several and "collective-permute" in kinds:
        # Of what these read, XLA's partitioner gathers rather than permutes.
        return len(kinds) > 1 or op.opcode in ("dot_general", "convolution", "sort")
    for axes in exchanges:
        for value in reads:
            split = {*value.spec.axes}
            if not split.isdisjoint(axes) and not split.issuperset(axes):
                return True
    return False


def _in_two_places(
    op: PlannedOp,
    reads: Sequence[PlannedOp],
    own: Sequence[Collective],
    rule: ShardingRule,
    mesh: MeshSpec,
) -> tuple[str, ...]:
    """The axes of a matrix product that XLA may move otherwise than Shardy does."""
    factors: dict[str, set[str]] = defaultdict(set)  # those that an axis splits
    holders: dict[str, int] = defaultdict(int)  # how many operands it splits in a sum
    tensors = (*rule.operands, *rule.results[:1])
    for value, tensor in zip((*reads, op), tensors, strict=False):
        for names, axes in zip(tensor, value.spec.dims, strict=False):
            if not names:
                continue
            for axis in axes:
                factors[axis].add(names[0])
                holders[axis] += names[0] in rule.reduction
    sums, moved = _over(own, "all-reduce"), _over(own, "all-gather", "all-to-all")
    found = []
    for axis, named in factors.items():
        # XLA matches tilings by the number of their tiles, so that another axis can
        # stand in for one that is wanted twice.
        size, used = mesh.shape.get(axis, 1), set(factors)
        if axis in sums:
            used = set(op.spec.axes)
        replaceable = False
        for name, other_size in mesh.shape.items():
            if size > 1 and name not in used and other_size % size == 0:
                replaceable = True
        # Of what one operand alone sums over, each device takes a part of the other, or
        # XLA gathers this one.
        alone = axis in sums and (holders[axis] == 1 or axis in moved)
        twice = len(named) > 1 or (
            axis in sums and not {*sums}.isdisjoint(op.spec.axes)
        )
        settled = axis in {*sums, *moved} and len(named) < 3
        if alone or (twice and (replaceable or not settled)):
            found.append(axis)
    return tuple(found)


def groups_of(op: Any) -> int:
    """Into how many groups a convolution splits its features or its batch.

    XLA's partitioner splits groups of one feature each as it does batches, so these
    count as one.
    """
    if op.name != "stablehlo.convolution":
        return 1
    features = op.attributes["feature_group_count"].value
    batch = op.attributes["batch_group_count"].value
    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = ir.ShapedType(op.operands[1].type).shape
    if kernel[dims.kernel_input_feature_dimension] == 1:
        features = 1
    return max(features, batch)
