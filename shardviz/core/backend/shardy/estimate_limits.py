"""Where the estimate may differ from XLA's partitioner: codes on values of a plan.

Shardy lets an axis cross a shift, a window or a cumulative sum, and plans no collective
for what must be exchanged there; XLA's partitioner inserts one. And where the operands
or the result of a matrix product want one axis along several dimensions, as under fsdp,
both resolve it otherwise. So a value is marked by what kind of operation or move it is,
rather than by what XLA would do: some marks are needless, and no miss was found without
one. `python -m tests.bench.stages agree` counts both.

Which codes there are is in `core/program/uncertain.py`; their words are in `wording`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.plan_causes import MoveCause, OperandCause
from shardviz.core.program.plan_values import PlannedOp, ShardingRule, group_size
from shardviz.core.program.report import Collective
from shardviz.core.program.uncertain import Uncertain

# Until then XLA makes the Fourier transform of a matrix on every device.
_FFT_OF_ROWS = jax.__version_info__ < (0, 11)
# Primitives of `jax.lax.linalg`.
_OF_MATRICES = frozenset(
    {
        "cholesky",
        "eig",
        "eigh",
        "geqp3",
        "geqrf",
        "hessenberg",
        "householder_product",
        "lu",
        "schur",
        "svd",
        "triangular_solve",
        "tridiagonal",
        "tridiagonal_solve",
    }
)
# How jax lowers these depends on the version: to a window, or to a loop of slices.
_CUMULATIVE = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"})
# What reads, along a dimension, elements that a neighbour may hold.
_MOVING = frozenset(
    {"pad", "slice", "reverse", "concatenate", "convolution", "reduce_window"}
)
# Of what these read, XLA's partitioner gathers rather than permutes.
_SUMMING = frozenset({"dot_general", "convolution", "sort"})
_RESPLITS = frozenset({"all-gather", "all-to-all", "collective-permute"})


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
    (Uncertain(code='reverse', axes=('data',), dim=0),)
    """
    # In a shard_map nothing is split any more.
    if op.manual or not operands:
        return ()
    if op.opcode == "custom_call" or op.opcode in _OF_MATRICES:
        return tuple(_needing_all(op, operands))
    if op.opcode == "dynamic_update_slice":
        return tuple(_updated(op, operands[0], operands[1]))
    if op.opcode == "select_and_scatter":
        return tuple(_pooled(op, operands))
    if op.opcode == "convolution":
        marks = tuple(_channels(op, operands, groups))
        if marks:
            return marks
    return tuple(_along_dimensions(op, operands[0], mesh))


def _needing_all(op: PlannedOp, operands: Sequence[PlannedOp]) -> Iterator[Uncertain]:
    """Where code reads all of a value, or of a matrix, of which each device has a part."""
    code = "call"
    if op.op.rpartition("/")[2] in _OF_MATRICES:
        code = "matrix"
    elif any(getattr(note, "code", "") == "host" for note in op.notes):
        code = "host"
    # Where Shardy has a rule, all before the matrix is a batch, which stays split.
    batched = op.factors is not None and op.factors.propagates
    first = len(operands[0].shape) - 2 if batched else 0
    axes: dict[str, None] = {}
    for value in (*operands, op):
        for own in value.spec.dims[first:]:
            axes |= dict.fromkeys(own)
    if axes:
        yield Uncertain(code, tuple(axes))


def _updated(op: PlannedOp, all_of: PlannedOp, part: PlannedOp) -> Iterator[Uncertain]:
    """Where a slice is written, along a split dimension, into a value that is longer."""
    for dim, (size, own) in enumerate(zip(all_of.shape, part.shape, strict=True)):
        axes: dict[str, None] = {}
        for value in (all_of, part, op):
            axes |= dict.fromkeys(value.spec.dims[dim])
        if own < size and axes:
            yield Uncertain(op.opcode, tuple(axes), dim)


def _pooled(op: PlannedOp, operands: Sequence[PlannedOp]) -> Iterator[Uncertain]:
    """Where the gradient of a pooling is split along a dimension that has windows."""
    image, pools = operands[0], operands[1]
    for dim, axes in enumerate(image.spec.dims):
        if axes and image.shape[dim] != pools.shape[dim]:
            yield Uncertain(op.opcode, axes, dim)


def _channels(
    op: PlannedOp, operands: Sequence[PlannedOp], groups: int
) -> Iterator[Uncertain]:
    """Where a convolution has groups, or one operand alone has its channels split."""
    if groups > 1:
        axes = _axes_of((*operands, op))
        if axes:
            yield Uncertain("groups", axes)
        return
    rule = op.factors
    if rule is None or len(operands) != 2:
        return
    over: list[set[str]] = []
    for value, tensor in zip(operands, rule.operands, strict=True):
        summed: set[str] = set()
        for own, names in zip(value.spec.dims, tensor, strict=False):
            if not {*names}.isdisjoint(rule.reduction):
                summed |= {*own}
        over.append(summed)
    # An axis that splits another dimension of the result is given up where it splits
    # channels.
    odd = (over[0] ^ over[1]) - {*op.spec.axes}
    if odd:
        yield Uncertain("channels", tuple(sorted(odd)))


def _along_dimensions(
    op: PlannedOp, operand: PlannedOp, mesh: MeshSpec
) -> Iterator[Uncertain]:
    """Where an operation reads along a split dimension what another device holds."""
    rule = op.factors
    if rule is None or not rule.operands or not rule.results:
        return
    dims = zip(rule.operands[0], operand.spec.dims, strict=False)
    for dim, (names, axes) in enumerate(dims):
        # Parts of an axis are the compiler's own choice, which it makes again.
        all_named = all(axis in mesh.shape for axis in axes)
        if names and all_named and group_size(axes, mesh) > 1:
            code = _code_along(op, operand, rule, dim, names[0])
            if code:
                yield Uncertain(code, axes, dim)


def _code_along(
    op: PlannedOp, operand: PlannedOp, rule: ShardingRule, dim: int, factor: str
) -> str:
    """The kind of uncertainty along a split dimension of the operand; `""` for none."""
    opcode = op.opcode
    if opcode == "top_k":
        return opcode
    if opcode == "dynamic_slice":
        return opcode if factor in rule.blocked_propagation else ""
    if opcode == "fft":
        return opcode if _FFT_OF_ROWS or factor in rule.need_replication else ""
    if opcode == "reduce":  # of values with their indices: argmax
        pairs = len(rule.results) > 1
        return opcode if pairs and factor in rule.reduction else ""
    if opcode not in _MOVING:
        return ""
    own = None
    for number, names in enumerate(rule.results[0]):
        if factor in names:
            own = number
    if own is None or own >= op.spec.rank:
        return ""
    read, made = operand.shape[dim], op.shape[own]
    if opcode == "slice" and {*operand.spec.dims[dim]}.isdisjoint(op.spec.dims[own]):
        # Shardy gathers what is sliced before, and moves what is not after it.
        return "moved slice" if op.shape != operand.shape else ""
    # Where it is not split afterwards, Shardy gathers it before.
    if factor not in rule.permutation or not op.spec.dims[own]:
        return ""
    if opcode == "slice":
        if made == read:
            return ""
        return "slice of one" if made == 1 else opcode
    if opcode == "reduce_window" and op.op.rpartition("/")[2] in _CUMULATIVE:
        return "cumulative"
    return opcode


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
    (Uncertain(code='two factors', axes=('data',), dim=None),)
    """
    own: dict[str, list[Collective]] = defaultdict(list)
    for c in collectives:
        own[c.value].append(c)
    values = {op.name: op for op in ops}
    marked = []
    for op in ops:
        more: list[Uncertain] = []
        if not op.manual:
            reads = [values[name] for name in op.operands if name in values]
            more = list(_uncertain_moves(op, reads, own[op.name], mesh))
        marked.append(op.changed(uncertain=(*op.uncertain, *more)) if more else op)
    return tuple(marked)


def _uncertain_moves(
    op: PlannedOp, reads: Sequence[PlannedOp], own: Sequence[Collective], mesh: MeshSpec
) -> Iterator[Uncertain]:
    """What is uncertain of the collectives for one value; the first kind that there is."""
    moves = [c for c in own if c.kind != "all-reduce"]
    over = _over(moves)
    again = _over(c for c in own if _is_again(c))
    looked_up = op.opcode in ("gather", "scatter")
    if again:
        yield Uncertain("again", again)
    elif looked_up:
        # XLA matches the splits of both by the number of their shards. A sum over what
        # also splits the result may go over a free axis instead.
        free = not {*mesh.shape} <= {*_axes_of((op, *reads))}
        summed = not {*_over(own)}.isdisjoint(op.spec.axes)
        if moves or (summed and free):
            yield Uncertain(op.opcode, over or op.spec.axes)
    elif op.opcode == "concatenate" and moves:
        if any(_is_uneven(value, mesh) for value in reads):
            yield Uncertain(op.opcode, over)
    elif op.opcode == "reshape":
        kept = {*op.spec.axes, *over}
        lost = tuple(a for value in reads[:1] for a in value.spec.axes if a not in kept)
        if lost:  # Shardy gathers nothing for these
            yield Uncertain(op.opcode, lost)
    elif op.opcode == "dot_general" and op.factors is not None:
        yield from _product(op, reads, own, op.factors, mesh)
    if not again and not looked_up and _in_steps(op, reads, own):
        yield Uncertain("steps", _over(own))
    if own and any(":" in axis for axis in _axes_of((op, *reads))):
        yield Uncertain("part", _over(own))


def _is_again(c: Collective) -> bool:
    return isinstance(c.cause, (MoveCause, OperandCause)) and c.cause.again


def _over(collectives: Iterable[Collective], *kinds: str) -> tuple[str, ...]:
    """The mesh axes that collectives, or those of some kinds, run over."""
    axes: dict[str, None] = {}
    for c in collectives:
        if not kinds or c.kind in kinds:
            axes |= dict.fromkeys(c.mesh_axes)
    return tuple(axes)


def _axes_of(values: Iterable[PlannedOp]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for value in values for axis in value.spec.axes))


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
    kinds = {c.kind for c in own} & _RESPLITS
    exchanges = {c.mesh_axes for c in own if c.kind == "all-to-all"}
    several = sum(bool(value.spec.axes) for value in reads) > 1
    if len(kinds) > 2 or (several and len(exchanges) > 1):
        return True
    if several and "collective-permute" in kinds:
        return len(kinds) > 1 or op.opcode in _SUMMING
    for axes in exchanges:
        for value in reads:
            split = {*value.spec.axes}
            if not split.isdisjoint(axes) and not split.issuperset(axes):
                return True
    return False


def _product(
    op: PlannedOp,
    operands: Sequence[PlannedOp],
    own: Sequence[Collective],
    rule: ShardingRule,
    mesh: MeshSpec,
) -> Iterator[Uncertain]:
    """Where a matrix product wants an axis in two places; the first kind that it is."""
    factors: dict[str, set[str]] = defaultdict(set)  # those that an axis splits
    # In how many operands an axis splits what is summed.
    holders: dict[str, int] = defaultdict(int)
    for value, tensor in zip(operands, rule.operands, strict=False):
        for names, axes in zip(tensor, value.spec.dims, strict=False):
            for axis in axes if names else ():
                factors[axis].add(names[0])
                holders[axis] += names[0] in rule.reduction
    results: dict[str, str] = {}
    for names, axes in zip(rule.results[0], op.spec.dims, strict=False):
        results |= dict.fromkeys(axes, names[0] if names else "")
    sums = _over(own, "all-reduce")

    def replaceable(axis: str, used: Collection[str]) -> bool:
        # XLA's partitioner matches tilings by the number of their tiles, so that
        # another axis, or a part of it, can stand in for one.
        size = mesh.shape.get(axis, 1)
        free = [n for name, n in mesh.shape.items() if name not in used]
        return size > 1 and any(n % size == 0 for n in free)

    twice, summed = [], []
    for axis, named in factors.items():
        if len(named) > 1 and replaceable(axis, factors):
            twice.append(axis)
        if axis in sums and not results.keys().isdisjoint(sums):
            if holders[axis] == 1 or replaceable(axis, results):
                summed.append(axis)
    moved = [a for a in _over(own, "all-to-all") if a in sums] or _parts_gathered(
        operands, own, rule, factors, results
    )
    for code, marked in (
        ("two factors", twice),
        ("moved operand", moved),
        ("summed result", summed),
        ("other dimension", _along_others(operands, own, rule, results)),
    ):
        if marked:
            yield Uncertain(code, tuple(marked))
            return


def _along_others(
    operands: Sequence[PlannedOp],
    own: Sequence[Collective],
    rule: ShardingRule,
    results: Mapping[str, str],
) -> list[str]:
    """The axes that split another dimension of the result than of an operand.

    Those over which the operand is moved are left out.
    """
    moved = set()
    for c in own:
        if isinstance(c.cause, MoveCause):
            moved |= {(c.cause.value, axis) for axis in c.mesh_axes}
    others = []
    for value, tensor in zip(operands, rule.operands, strict=False):
        for names, axes in zip(tensor, value.spec.dims, strict=False):
            for axis in axes if names and names[0] not in rule.reduction else ():
                elsewhere = axis in results and results[axis] != names[0]
                if elsewhere and (value.name, axis) not in moved:
                    others.append(axis)
    return others


def _parts_gathered(
    operands: Sequence[PlannedOp],
    own: Sequence[Collective],
    rule: ShardingRule,
    factors: Mapping[str, set[str]],
    results: Mapping[str, str],
) -> list[str]:
    """The axes over which a part of an operand is gathered, since the rest is not
    needed.
    """
    gathered = []
    for value, tensor in zip(operands, rule.operands, strict=False):
        names = {factor for own_names in tensor for factor in own_names[:1]}
        needed = {axis for axis, named in factors.items() if named & names}
        needed |= {axis for axis, factor in results.items() if factor in names}
        if not needed <= {*value.spec.axes}:
            gathered += [a for a in _over(own, "all-gather") if a in value.spec.axes]
    return gathered


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
