"""Marks the values of a plan whose estimate may differ from XLA's partitioner.

Shardy propagates an axis across a shift, a window or a cumulative sum without planning
the exchange of data; XLA's partitioner inserts a collective for it. If a matrix product
would use one axis for two dimensions, as under FSDP, Shardy and XLA resolve the
conflict differently. XLA's choice is not known here, so values are marked by the kind
of their operation. `python -m tests.bench.stages agree` counts missing and needless
marks.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import jax

from shardviz.base.axis_parts import group_size, local_shape, parent_axis
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import KINDS
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.plans.plan_causes import MoveCause
from shardviz.plans.plan_notes import InsideShardMap, ReplacedCall
from shardviz.plans.plan_values import PlannedOp, ShardingRule
from shardviz.plans.uncertain import Uncertain

# Operation that reads other devices' data along a dimension -> field of its sharding
# rule with the factors along which it does so; "sizes" means all factors.
_ALONG = {
    "pad": "permutation",
    "slice": "permutation",
    "reverse": "permutation",
    "concatenate": "permutation",
    "reduce_window": "permutation",
    "select_and_scatter": "permutation",
    "dynamic_slice": "blocked_propagation",
    # Before jax 0.11, XLA computes the FFT of a matrix on every device.
    "fft": "sizes" if jax.__version_info__ < (0, 11) else "need_replication",
    "top_k": "sizes",
}
# Operations whose operands XLA gathers: custom calls, and matrix decompositions.
_CALLS = frozenset({
    "custom_call", "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg",
    "householder_product", "lu", "schur", "svd", "triangular_solve", "tridiagonal",
    "tridiagonal_solve",
})  # fmt: skip
# Collectives of a `shard_map` whose operands XLA gathers along the Auto axes.
_WRITTEN = frozenset({"all_gather", "all_to_all", "reduce_scatter"})
# Kinds of collectives by which Shardy moves values: all except all-reduce.
_MOVES = frozenset(
    name
    for name, kind in KINDS.items()
    if kind.shardy and not (kind.sums and kind.equal_results)
)


def with_uncertain(
    ops: Sequence[PlannedOp], collectives: Sequence[Collective], mesh: MeshSpec
) -> tuple[PlannedOp, ...]:
    """Marks values whose estimated collectives are uncertain, with the reason.

    Args:
        ops: the values of a plan.
        collectives: the estimated collectives of the plan.
        mesh: the mesh of the plan.

    >>> from shardviz.base.partition_spec import Spec
    >>> split, tensor = Spec.parse("data"), (("i",),)
    >>> rule = ShardingRule((tensor,), (tensor,), {"i": 8}, permutation=("i",))
    >>> x = PlannedOp("x", "argument", shape=(8,), spec=split)
    >>> fields = {"shape": (8,), "spec": split, "operands": ("x",), "factors": rule}
    >>> y = PlannedOp("y", "op", "reverse", **fields)
    >>> with_uncertain((x, y), (), MeshSpec(("data",), (4,)))[1].uncertain
    (Uncertain(code='along', axes=('data',), op='reverse'),)
    """
    collectives_of, moved_otherwise = defaultdict(list), set()
    moves = set()
    for c in collectives:
        collectives_of[c.value].append(c)
        if isinstance(c.cause, MoveCause):
            cause = c.cause
            move = (cause.value, cause.before, cause.after, c.kind, c.bytes_per_device)
            # If several readers need the same move, XLA may do it once.
            if move in moves:
                moved_otherwise.add(c.value)
            moves.add(move)
            if _splits_further(c, cause, mesh):
                moved_otherwise.add(c.value)
    values = {op.name: op for op in ops}
    resplit = _resplit_results(values, collectives)
    calls = {c.value for c in collectives if getattr(c.cause, "code", "") == "call"}
    marked = []
    for op in ops:
        reads = [values[name] for name in op.operands if name in values]
        if op.manual:
            reads = [_block_of(value, op, mesh) for value in reads]
        if reads:
            code, axes = _of_operation(op, reads, collectives_of[op.name], mesh)
            if not axes and _moves_in_steps(op, reads, collectives_of[op.name]):
                code, axes = "move", _axes_of((*reads, op))
            if not axes:
                code = "uneven"
                axes = _cut_anew(op, collectives_of[op.name], values, mesh)
            if not axes and op.name in moved_otherwise:
                code, axes = "move", _over(collectives_of[op.name])
            if not axes and op.name in resplit:
                code, axes = "result", resplit[op.name]
            # A call with estimated gathers, at result [0], has no uncertain results.
            if code == "call" and {op.name, f"{op.name.rpartition('[')[0]}[0]"} & calls:
                axes = ()
            if axes:
                name = op.opcode
                # "custom_call" would not identify the operation.
                if op.opcode in _CALLS:
                    name = op.op.rpartition("/")[2] or name
                op = op.changed(uncertain=(Uncertain(code, axes, name),))
        marked.append(op)
    return tuple(marked)


def _block_of(value: PlannedOp, op: PlannedOp, mesh: MeshSpec) -> PlannedOp:
    """Returns an operand with the shape and spec that it has inside a `shard_map`.

    There, only Auto axes split it. The operand may be a value from outside.

    Args:
        value: the operand.
        op: the operation inside the `shard_map`.
        mesh: the mesh.
    """
    manual: set[str] = set()
    for note in op.notes:
        if isinstance(note, InsideShardMap):
            manual.update(note.axes)
    inside, outside = [], []
    for dim in value.spec.dims:
        inside.append(tuple(axis for axis in dim if parent_axis(axis) not in manual))
        outside.append(tuple(axis for axis in dim if parent_axis(axis) in manual))
    shape = local_shape(value.shape, Spec(tuple(outside)), mesh)
    return value.changed(shape=shape, spec=Spec(tuple(inside)))


def _cut_anew(
    op: PlannedOp,
    planned: Sequence[Collective],
    values: Mapping[str, PlannedOp],
    mesh: MeshSpec,
) -> tuple[str, ...]:
    """The axes of uneven dimensions whose new shards are not parts of the old ones.

    With 10 elements, the shards of 2 devices start at 0 and 5, those of 4 devices at 0,
    3, 6 and 9. XLA exchanges the elements in between.
    """
    moves = []
    for c in planned:
        if isinstance(c.cause, MoveCause) and c.cause.value in values:
            cause = c.cause
            moves.append((values[cause.value].shape, cause.before, cause.after))
    for name in op.operands:
        # A value can be split further without a collective.
        if name in values and values[name].shape == op.shape:
            moves.append((op.shape, values[name].spec, op.spec))
    kinds = {c.kind for c in planned} & _MOVES
    cut_axes: list[str] = []
    for shape, spec, spec_after in moves:
        dims = zip(shape, spec.dims, spec_after.padded(len(shape)), strict=False)
        for size, before, after in dims:
            parts, parts_after = group_size(before, mesh), group_size(after, mesh)
            is_even = size % parts == 0 and size % parts_after == 0
            if before == after or is_even or parts == parts_after:
                continue
            # A whole dimension is gathered, or cut without an exchange.
            if not kinds - {"all-gather"} and 1 in (parts, parts_after):
                continue
            shard, shard_after = -(-size // parts), -(-size // parts_after)
            if kinds - {"all-gather"} or shard * parts != shard_after * parts_after:
                cut_axes += (*before, *after)
    return tuple(dict.fromkeys(cut_axes))


def _splits_further(c: Collective, cause: MoveCause, mesh: MeshSpec) -> bool:
    """True if a move also splits the value over axes that did not split it before.

    Shardy then splits the value first and moves less. XLA may move the unsplit value,
    or exchange data between more devices, depending on the sizes of axes.
    """
    before = {parent_axis(axis) for axis in cause.before.axes}
    if {parent_axis(axis) for axis in cause.after.axes} <= before:
        return False
    idle = {axis for axis, size in mesh.shape.items() if size > 1} - before
    is_permutation = c.kind == "collective-permute"
    if is_permutation:
        return not idle <= {*c.mesh_axes}
    return c.kind in ("all-gather", "all-to-all")


def _resplit_results(
    values: Mapping[str, PlannedOp], collectives: Iterable[Collective]
) -> dict[str, tuple[str, ...]]:
    """Operations whose operands XLA may move instead of the results -> moved axes."""
    axes: dict[str, tuple[str, ...]] = {}
    for c in collectives:
        cause = c.cause
        if not isinstance(cause, MoveCause) or cause.value not in values:
            continue
        op = values[cause.value]
        # Only a move that ends at the propagated sharding is uncertain.
        if op.kind != "op" or op.factors is None:
            continue
        if op.spec.padded(len(op.shape)) == cause.before.padded(len(op.shape)):
            continue
        uncertain = op.opcode in ("dot_general", "convolution")
        if op.factors.is_elementwise:
            specs = [values[name].spec for name in op.operands if name in values]
            uncertain = not all(map(cause.before.equivalent, specs))
        if uncertain:
            axes[op.name] = _distinct((axes.get(op.name, ()), cause.axes))
    return axes


def _of_operation(
    op: PlannedOp,
    reads: Sequence[PlannedOp],
    planned: Sequence[Collective],
    mesh: MeshSpec,
) -> tuple[str, tuple[str, ...]]:
    """Returns the code and the axes of an Uncertain; no axes if there is none.

    Args:
        op: the value.
        reads: the operands of its operation.
        planned: the collectives planned for the value.
        mesh: the mesh.
    """
    rule, opcode, moved = op.factors, op.opcode, _over(planned, _MOVES)
    if any(isinstance(note, ReplacedCall) for note in op.notes):
        return "along", _axes_of((*reads, op))
    if opcode in _CALLS:
        first = 0
        if rule is not None and rule.propagates:
            # Batch dimensions, before the last two, stay split.
            first = len(reads[0].shape) - 2
        dims = [axes for value in (*reads, op) for axes in value.spec.dims[first:]]
        return "call", _distinct(dims)
    if opcode in _WRITTEN:
        return "call", tuple(axis for axis in _axes_of(reads) if axis not in moved)
    if opcode in ("gather", "scatter"):
        # XLA may sum over another axis if this one also splits the result.
        if moved or not {*_over(planned)}.isdisjoint(op.spec.axes):
            return "indices", _axes_of((*reads, op))
    if opcode == "dynamic_update_slice":
        dims = []
        for dim, size in enumerate(reads[1].shape):
            if size < op.shape[dim]:
                dims += [value.spec.dims[dim] for value in (*reads[:2], op)]
        return "along", _distinct(dims)
    if opcode == "reshape":
        axes_after = {*op.spec.axes, *moved}
        # Shardy plans no gather for these axes.
        dropped = [axis for axis in reads[0].spec.axes if axis not in axes_after]
        return "along", tuple(dropped)
    if rule is None:
        return "", ()
    if opcode == "dot_general":
        return "product", _wanted_twice(op, reads, planned, rule, mesh)
    if opcode == "sort" and moved and len({value.spec for value in reads}) > 1:
        return "move", _axes_of(reads)
    axes = _read_along(op, reads, rule)
    if opcode == "convolution" and not axes:
        return "product", _wanted_twice(op, reads, planned, rule, mesh)
    resplit = opcode == "slice" and reads[0].spec.dims != op.spec.dims
    # For arrays of different sizes, XLA's steps may differ from Shardy's.
    if not axes and (resplit or (opcode == "concatenate" and moved)):
        axes = _axes_of((*reads, op))
    return "along", axes


def _read_along(
    op: PlannedOp, reads: Sequence[PlannedOp], rule: ShardingRule
) -> tuple[str, ...]:
    """The axes that split a dimension along which devices read each other's elements."""
    factors = getattr(rule, _ALONG.get(op.opcode, ""), ())
    if op.opcode == "pad" and op.shape == reads[0].shape:
        factors = tuple(rule.sizes)  # Shardy overlooks a shift that keeps the size.
    if op.opcode == "reduce" and len(rule.results) > 1:  # argmax has indices too
        factors = rule.reduction
    if op.opcode == "convolution":
        factors = _windows(rule)
        # A dimension with two factors has several groups of channels, which XLA does
        # not split.
        for tensor in (*rule.operands, *rule.results):
            if any(len(names) > 1 for names in tensor):
                factors = tuple(rule.sizes)
        left = _split(reads[:1], rule.operands[:1], rule.reduction)
        right = _split(reads[1:], rule.operands[1:], rule.reduction)
        # Channels that are split in only one of the operands.
        if alone := ({*left} ^ {*right}) - {*op.spec.axes}:
            return tuple(sorted(alone))
    return _split((*reads, op), (*rule.operands, *rule.results), factors)


def _windows(rule: ShardingRule) -> set[str]:
    """The factors of a convolution's spatial dimensions.

    Shardy has no permutation along a window that is as large as the input, as in the
    gradient of a kernel, nor for the dimensions of a kernel.
    """
    tensors = (*rule.operands, *rule.results)
    counts = Counter(name for tensor in tensors for names in tensor for name in names)
    single = {name for name, count in counts.items() if count == 1}
    # The channels are the last of the summed factors.
    return single.union(rule.permutation, rule.reduction[:-1])


def _split(
    values: Sequence[PlannedOp], tensors: Sequence, factors: Collection[str]
) -> tuple[str, ...]:
    """The axes that split dimensions with any of these factors."""
    if not factors:
        return ()
    dims = []
    for value, tensor in zip(values, tensors, strict=False):
        for axes, names in zip(value.spec.dims, tensor, strict=False):
            if not {*names}.isdisjoint(factors):
                dims.append(axes)
    return _distinct(dims)


def _moves_in_steps(
    op: PlannedOp, reads: Sequence[PlannedOp], planned: Sequence[Collective]
) -> bool:
    """True if XLA may move a value's operands in steps that differ from the plan."""
    if not planned:
        return False
    moves = {(c.kind, c.mesh_axes) for c in planned if c.kind in _MOVES}
    several = sum(bool(value.spec.axes) for value in reads) > 1
    in_parts = any(":" in axis for axis in _axes_of((*reads, op)))
    if len(moves) > 1 or in_parts:
        return True
    if op.opcode in ("sharding_constraint", "reshard"):
        # Shardy may slice before it gathers, even before an earlier constraint.
        is_sliced = not {*op.spec.axes} <= {*reads[0].spec.axes}
        if is_sliced and any(kind == "all-gather" for kind, _ in moves):
            return True
    for kind, axes in moves:
        # With several split operands, XLA's partitioner gathers one instead of
        # permuting it.
        if kind == "collective-permute" and several:
            return True
        if kind == "all-to-all" and len(axes) > 1:
            return True
        # With several axes, XLA may not permute along all of them.
        if kind == "collective-permute" and len(axes) > 2:
            return True
    return False


def _wanted_twice(
    op: PlannedOp,
    reads: Sequence[PlannedOp],
    planned: Sequence[Collective],
    rule: ShardingRule,
    mesh: MeshSpec,
) -> tuple[str, ...]:
    """The axes of a matrix product for which XLA and Shardy may move different data."""
    # For each axis: the factors that it splits, and the number of summed operands.
    factors: dict[str, set[str]] = defaultdict(set)
    holders: dict[str, int] = defaultdict(int)
    for value, tensor in zip(
        (*reads, op), (*rule.operands, *rule.results), strict=False
    ):
        for names, axes in zip(tensor, value.spec.dims, strict=False):
            for axis in axes:
                factors[axis] |= {*names[:1]}
                holders[axis] += not {*names}.isdisjoint(rule.reduction)
    sums = _over(planned, {"all-reduce"})
    moved = _over(planned, {"all-gather", "all-to-all"})
    uncertain_axes = []
    for axis, named in factors.items():
        size, used = mesh.shape.get(axis, 1), {*factors}
        if axis in sums:
            used = {*op.spec.axes}
        # XLA compares tilings by the number of tiles, so it may use another axis
        # instead of one that is needed twice.
        replaceable = False
        for name, other_size in mesh.shape.items():
            if size > 1 and name not in used and other_size % size == 0:
                replaceable = True
        settled = axis in (*sums, *moved) and len(named) < 3
        # If a summed axis splits only one operand, XLA either slices the other operand
        # or gathers the split one.
        alone = axis in sums and (holders[axis] == 1 or axis in moved)
        if alone or (len(named) > 1 and (replaceable or not settled)):
            uncertain_axes.append(axis)
    # If one axis of a dimension is moved and another is summed over, XLA may gather both.
    for value in reads:
        for axes in value.spec.dims:
            if not {*axes}.isdisjoint(sums) and not {*axes}.isdisjoint(moved):
                uncertain_axes += axes
    # XLA permutes an operand whose dimension is split over the same axes as another, in
    # another order.
    orders = {axes for v in (*reads, op) for axes in v.spec.dims if len(axes) > 1}
    for first, second in itertools.combinations(sorted(orders), 2):
        shared = [axis for axis in first if axis in second]
        if shared != [axis for axis in second if axis in first]:
            uncertain_axes += shared
    return tuple(dict.fromkeys(uncertain_axes))


def _over(
    collectives: Iterable[Collective], kinds: Iterable[str] = ()
) -> tuple[str, ...]:
    """The mesh axes that collectives run over; with `kinds`, of these kinds only."""
    return _distinct(c.mesh_axes for c in collectives if not kinds or c.kind in kinds)


def _axes_of(values: Iterable[PlannedOp]) -> tuple[str, ...]:
    return _distinct(value.spec.axes for value in values)


def _distinct(groups: Iterable[Iterable[str]]) -> tuple[str, ...]:
    axes: dict[str, None] = {}
    for group in groups:
        for axis in group:
            axes[axis] = None
    return tuple(axes)
