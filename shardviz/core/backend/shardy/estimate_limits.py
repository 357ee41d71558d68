"""Where the estimate may differ from XLA's partitioner: codes on values of a plan.

Shardy lets an axis cross a shift, a window or a cumulative sum, and plans no collective for what
must be exchanged there; XLA's partitioner inserts one. And where the operands or the result of a
matrix product want one axis along several dimensions, as under fsdp, both resolve it otherwise.
Which codes there are, and their words, is in `core/program/uncertain.py`.
`python -m tests.bench.stages agree` counts how often the estimate is wrong with and without one.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from shardviz.core.backend.shardy.attributes import AttributeCache
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.plan_values import PlannedOp, ShardingRule, group_size
from shardviz.core.program.report import Collective
from shardviz.core.program.uncertain import KINDS, Uncertain


@dataclass(frozen=True)
class Window:
    """What an operation reads along a dimension of its first operand, for each element it makes.

    Element `o` of the result reads `size` elements from `o * stride - low` on, of an operand whose
    elements are `spread` apart.

    >>> Window(3, low=1).crosses(16, 16, parts=4), Window(4, stride=4).crosses(16, 4, parts=4)
    (True, False)
    """

    size: int = 1
    stride: int = 1
    low: int = 0
    spread: int = 1

    def crosses(self, read: int, made: int, parts: int) -> bool:
        """Whether a shard of the result needs elements that another device holds.

        Args:
            read: the size of the dimension of the operand.
            made: the size of the dimension of the result.
            parts: how many shards both are split into.
        """
        block, own = -(-made // parts), -(-read // parts)
        device = np.arange(-(-made // block) if block else 0)
        # Windows in the padding alone, before or after the elements, read nothing.
        before = -((self.size - 1 - self.low) // self.stride)
        after = ((read - 1) * self.spread + self.low) // self.stride
        first = np.maximum(device * block, before)
        last = np.minimum(np.minimum((device + 1) * block, made) - 1, after)
        start = -((self.low - first * self.stride) // self.spread)
        stop = (last * self.stride - self.low + self.size - 1) // self.spread
        start, stop = np.maximum(start, 0), np.minimum(stop, read - 1)
        outside = (start < device * own) | (stop >= (device + 1) * own)
        return bool(np.any(outside & (first <= last) & (start <= stop)))


#: How the cause of a move ends that equals one before.
AGAIN = "It was moved so before."
# Until then XLA makes the Fourier transform of a matrix on every device.
_FFT_OF_ROWS = jax.__version_info__ < (0, 11)
_NONE: Mapping[int, Window] = {}
# Primitives of `jax.lax.linalg`.
_OF_MATRICES = (
    "cholesky", "eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "lu", "schur",
    "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve",
)  # fmt: skip
_MOVING = ("pad", "slice", "reverse", "concatenate", "convolution", "reduce_window")
# Of what these read, XLA's partitioner gathers rather than permutes.
_SUMMING = ("dot_general", "convolution", "sort")


def uncertain_operation(
    op: PlannedOp,
    operands: Sequence[PlannedOp],
    mesh: MeshSpec,
    windows: Mapping[int, Window] = _NONE,
    groups: int = 1,
) -> tuple[Uncertain, ...]:
    """Why the estimate at a value is uncertain, as far as the operation alone shows it.

    Args:
        op: the value.
        operands: what it reads.
        mesh: the mesh.
        windows: dimension of the first operand to window, where the operation has any.
        groups: of a convolution, into how many groups it splits features or the batch.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> split, tensor = Spec.parse("data"), (("i",),)
    >>> rule = ShardingRule((tensor,), (tensor,), {"i": 8}, permutation=("i",))
    >>> x = PlannedOp("x", "argument", shape=(8,), spec=split)
    >>> y = PlannedOp("y", "op", "reverse", shape=(8,), spec=split, operands=("x",), factors=rule)
    >>> uncertain_operation(y, [x], MeshSpec(("data",), (4,)))
    (Uncertain(code='reverse', axes=('data',), dim=0),)
    """
    if op.manual or not operands:
        return ()
    if op.opcode == "custom_call" or op.opcode in _OF_MATRICES:
        return _needing_all(op, operands)
    if op.opcode == "dynamic_update_slice":
        return _updated(op, operands[0], operands[1])
    if op.opcode == "convolution" and (found := _grouped(op, operands, groups)):
        return found
    if op.opcode == "select_and_scatter":
        split = enumerate(operands[0].spec.dims)
        return tuple(Uncertain(op.opcode, a, dim) for dim, a in split if a and dim in windows)
    return tuple(_along_dimensions(op, operands[0], mesh, windows))


def _needing_all(op: PlannedOp, operands: Sequence[PlannedOp]) -> tuple[Uncertain, ...]:
    """Where code reads all of a value, or all of a matrix, of which a part is on each device."""
    code = "matrix" if _name(op) in _OF_MATRICES else "call"
    if "host of one device" in op.note:
        code = "host"
    # Where Shardy has a rule, all before the matrix is a batch, which stays split.
    batched = op.factors is not None and op.factors.propagates
    first = len(operands[0].shape) - 2 if batched else 0
    dims = [axes for value in (*operands, op) for axes in value.spec.dims[first:]]
    axes = dict.fromkeys(axis for own in dims for axis in own)
    return (Uncertain(code, tuple(axes)),) if axes else ()


def _name(op: PlannedOp) -> str:
    """What jax calls an operation: `cholesky`."""
    return op.op.rpartition("/")[2]


def _updated(op: PlannedOp, whole: PlannedOp, part: PlannedOp) -> tuple[Uncertain, ...]:
    """Where a slice is written, along a dimension that is split, into a value that is longer."""
    found = []
    sizes = enumerate(zip(whole.shape, part.shape, strict=True))
    for dim in (dim for dim, (size, own) in sizes if own < size):
        axes = dict.fromkeys(a for value in (whole, part, op) for a in value.spec.dims[dim])
        if axes:
            found.append(Uncertain(op.opcode, tuple(axes), dim))
    return tuple(found)


def _grouped(op: PlannedOp, operands: Sequence[PlannedOp], groups: int) -> tuple[Uncertain, ...]:
    """Where a convolution has groups, or where one operand alone has its channels split."""
    values = (*operands, op)
    axes = tuple(dict.fromkeys(axis for value in values for axis in value.spec.axes))
    if groups > 1:
        return (Uncertain("groups", axes),) if axes else ()
    summed = op.factors.reduction if op.factors is not None else ()
    over = []
    for value, tensor in zip(operands, op.factors.operands if op.factors else (), strict=False):
        dims = zip(value.spec.dims, tensor, strict=False)
        over.append({a for own, names in dims if {*names} & {*summed} for a in own})
    # An axis that splits another dimension of the result is given up where it splits channels.
    odd = (over[0] ^ over[1]) - {*op.spec.axes} if len(over) == 2 else set()
    return (Uncertain("channels", tuple(a for a in axes if a in odd)),) if odd else ()


def _along_dimensions(
    op: PlannedOp, operand: PlannedOp, mesh: MeshSpec, windows: Mapping[int, Window]
) -> Iterator[Uncertain]:
    """Where an operation reads along a split dimension what another device holds."""
    rule = op.factors
    if op.opcode not in KINDS or rule is None or not rule.operands or not rule.results:
        return
    for dim, (names, axes) in enumerate(zip(rule.operands[0], operand.spec.dims, strict=False)):
        parts = group_size(axes, mesh)
        # Parts of an axis are the compiler's own choice, which it makes again.
        if names and parts > 1 and all(axis in mesh.shape for axis in axes):
            split = _Split(op, operand, rule, dim, names[0], parts, windows.get(dim))
            if code := split.code():
                yield Uncertain(code, axes, dim)


@dataclass(frozen=True)
class _Split:
    """A split dimension of an operand, and what is done along it."""

    op: PlannedOp
    operand: PlannedOp
    rule: ShardingRule
    dim: int
    factor: str
    parts: int
    window: Window | None

    def code(self) -> str:
        """Which kind of uncertainty this is; `""` where it is none."""
        opcode, blocked = self.op.opcode, self.factor in self.rule.blocked_propagation
        if opcode == "top_k" and not blocked:
            return "rows of top_k"
        # Along another dimension, if there is one, Shardy's all-to-all splits it instead.
        if opcode in ("top_k", "dynamic_slice"):
            return opcode if blocked and self.operand.spec.rank > 1 else ""
        if opcode == "fft" and _FFT_OF_ROWS and self.factor not in self.rule.need_replication:
            return "rows of fft"
        if opcode == "fft":
            free = {f for names in self.rule.operands[0] for f in names} - {
                *self.rule.need_replication
            }
            return opcode if self.factor in self.rule.need_replication and free else ""
        if opcode == "reduce":  # of values with their indices: argmax
            pairs = len(self.rule.results) > 1
            return opcode if pairs and self.factor in self.rule.reduction else ""
        return self._moved() if opcode in _MOVING else ""

    def _moved(self) -> str:
        """The kind of an operation that moves elements along the dimension."""
        results, spec = self.rule.results[0], self.op.spec
        own = next((n for n, names in enumerate(results) if self.factor in names), None)
        if own is None or own >= spec.rank:
            return ""
        read, made, opcode = self.operand.shape[self.dim], self.op.shape[own], self.op.opcode
        if opcode == "slice" and self._moves_slice(spec.dims[own], sliced=made < read):
            return "moved slice"
        # Where it is not split afterwards, Shardy gathers it before.
        if self.factor not in self.rule.permutation or not spec.dims[own]:
            return ""
        if opcode == "slice" and made == 1:
            return "slice of one"
        if self.window is not None and not self.window.crosses(read, made, self.parts):
            return ""
        if opcode == "convolution" and self.window is not None and self.window.size >= made:
            return ""  # the gradient of a kernel, which XLA sums
        # A window over all of the dimension: how jax lowers a cumulative sum.
        full = self.window is not None and self.window.size >= read > 1
        return "cumulative" if opcode == "reduce_window" and full else opcode

    def _moves_slice(self, after: Sequence[str], sliced: bool) -> bool:
        """Whether Shardy and XLA's partitioner move a slice at different times.

        Of a dimension that is sliced, Shardy gathers all before, and XLA what is left of it. Any
        other dimension Shardy moves after the slice, and XLA before, unless it is only gathered.

        Args:
            after: what splits the dimension of the result.
            sliced: whether the result is smaller along it.
        """
        before, axes = {*self.operand.spec.dims[self.dim]}, {*self.op.spec.axes}
        if self.op.shape == self.operand.shape or not before.isdisjoint(after):
            return False
        gathered = not after and not before <= axes
        return gathered if sliced else not (gathered and axes <= {*self.operand.spec.axes})


def with_uncertain_moves(
    ops: Sequence[PlannedOp], collectives: Sequence[Collective], mesh: MeshSpec
) -> tuple[PlannedOp, ...]:
    """The same values, each with what is uncertain of the collectives that Shardy plans for it.

    Args:
        ops: the values of a plan.
        collectives: its estimate.
        mesh: its mesh.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(8, 8), spec=Spec.parse("data, None"))
    >>> w = PlannedOp("w", "argument", shape=(8, 8), spec=Spec.parse("data, None"))
    >>> i, j, k = ("i",), ("j",), ("k",)
    >>> rule = ShardingRule(((i, k), (k, j)), ((i, j),), {"i": 8, "j": 8, "k": 8}, ("k",))
    >>> y = PlannedOp("y", "op", "dot_general", operands=("x", "w"), factors=rule)
    >>> kinds = ("all-to-all", "all-reduce")
    >>> moves = [Collective(kind, ("data",), 64, value="y") for kind in kinds]
    >>> with_uncertain_moves((x, w, y), moves, MeshSpec(("data",), (4,)))[2].uncertain
    (Uncertain(code='inner', axes=('data',), dim=None),)
    """
    own: dict[str, list[Collective]] = defaultdict(list)
    for c in collectives:
        own[c.value].append(c)
    values = {op.name: op for op in ops}
    found = []
    for op in ops:
        reads = [values[name] for name in op.operands if name in values]
        more = () if op.manual else tuple(_uncertain_moves(op, reads, own[op.name], mesh))
        found.append(replace(op, uncertain=(*op.uncertain, *more)) if more else op)
    return tuple(found)


def _uncertain_moves(
    op: PlannedOp, reads: Sequence[PlannedOp], own: Sequence[Collective], mesh: MeshSpec
) -> Iterator[Uncertain]:
    """What is uncertain of the collectives for one value; the first kind that there is."""
    moves = [c for c in own if c.kind != "all-reduce"]
    over = tuple(dict.fromkeys(axis for c in moves for axis in c.mesh_axes))
    again = next((c for c in own if c.cause.endswith(AGAIN)), None)
    if again is not None:
        yield Uncertain("again", again.mesh_axes)
    elif op.opcode in ("gather", "scatter"):
        if _looked_up(op, reads, moves, mesh) or _scattered(op, reads, own, mesh):
            yield Uncertain(op.opcode, over or op.spec.axes)
    elif op.opcode == "concatenate" and moves and any(_is_uneven(v, mesh) for v in reads):
        yield Uncertain(op.opcode, over)
    elif op.opcode == "reshape" and (lost := _lost(op, reads, moves)):
        yield Uncertain("reshape", lost)
    elif op.opcode == "dot_general" and op.factors is not None:
        yield from _Product(op, reads, own, mesh).uncertain()
    looked_up = op.opcode in ("gather", "scatter")
    if again is None and not looked_up and (steps := _steps(op, reads, own, mesh)):
        yield Uncertain("steps", steps)
    if any(":" in axis for value in (op, *reads) for axis in value.spec.axes) and own:
        yield Uncertain("part", tuple(dict.fromkeys(axis for c in own for axis in c.mesh_axes)))


def _lost(
    op: PlannedOp, reads: Sequence[PlannedOp], moves: Sequence[Collective]
) -> tuple[str, ...]:
    """The axes that split what is read and not the result, though Shardy gathers nothing."""
    kept = {*op.spec.axes} | {axis for c in moves for axis in c.mesh_axes}
    return tuple(axis for value in reads[:1] for axis in value.spec.axes if axis not in kept)


def _looked_up(
    op: PlannedOp, reads: Sequence[PlannedOp], moves: Sequence[Collective], mesh: MeshSpec
) -> bool:
    """Whether XLA may move indices, or what is at them, in another way than Shardy plans.

    It matches the splits of both by the number of their shards. So nothing else is possible where
    nothing is left split, or where every axis of the mesh is in use and what is gathered does not
    also split the result.
    """
    dims = [axes for axes in reads[0].spec.dims if axes] if reads else []
    moved = {axis for c in moves for axis in c.mesh_axes}
    gathers = all(c.kind == "all-gather" for c in moves)
    if not dims and not op.spec.axes:
        return not gathers
    used = ({*op.spec.axes} - moved) | {axis for axes in dims for axis in axes}
    apart = len(dims) == 1 or moved.isdisjoint(op.spec.axes)
    return bool(moves) and not (gathers and apart and used == {*mesh.shape})


def _is_uneven(value: PlannedOp, mesh: MeshSpec) -> bool:
    """Whether the shards of a value are not all of one size."""
    dims = zip(value.shape, value.spec.dims, strict=False)
    return any(size % group_size(axes, mesh) for size, axes in dims if axes)


def _scattered(
    op: PlannedOp, reads: Sequence[PlannedOp], own: Sequence[Collective], mesh: MeshSpec
) -> bool:
    """Whether what is written, and the result, are split over one axis, and another is free."""
    if op.opcode != "scatter":
        return False
    sizes = mesh.shape
    used = {a for value in (op, *reads) for a in value.spec.axes}
    moved = {a for c in own for a in c.mesh_axes} & {*op.spec.axes}
    free = [n for a, n in sizes.items() if a not in used]
    return any(math.gcd(n, sizes[a]) > 1 for a in moved if a in sizes for n in free)


def _steps(
    op: PlannedOp, reads: Sequence[PlannedOp], own: Sequence[Collective], mesh: MeshSpec
) -> tuple[str, ...]:
    """The axes over which values are moved in several steps, or that split them not yet."""
    kinds = {c.kind for c in own} & {"all-gather", "all-to-all", "collective-permute"}
    axes = tuple(dict.fromkeys(axis for c in own for axis in c.mesh_axes))
    several = sum(bool(value.spec.axes) for value in reads) > 1
    permuted = [c for c in own if c.kind == "collective-permute"]
    # Of axes of one size a shard goes to one other device, whatever reads it.
    uneven = any(len({mesh.shape[a] for a in c.mesh_axes}) > 1 for c in permuted)
    if permuted and (len(kinds) > 2 or (several and len(kinds) > 1)):
        return axes
    if several and uneven and op.opcode in _SUMMING:
        return axes
    if several and len({c.mesh_axes for c in own if c.kind == "all-to-all"}) > 1:
        return axes
    for c in own:
        over, splits = {*c.mesh_axes}, [{*value.spec.axes} for value in reads]
        if c.kind == "all-to-all" and any(over & s and over - s for s in splits):
            return c.mesh_axes
    return ()


@dataclass(frozen=True)
class _Product:
    """A matrix product, what it reads, and the collectives that Shardy plans for it."""

    op: PlannedOp
    operands: Sequence[PlannedOp]
    own: Sequence[Collective]
    mesh: MeshSpec

    @cached_property
    def split(self) -> dict[str, dict[str, list[str]]]:
        """Mesh axis to the factors that it splits, each with the operands in which it does."""
        found: dict[str, dict[str, list[str]]] = {}
        rule = self.op.factors
        for value, tensor in zip(self.operands, rule.operands if rule else (), strict=False):
            dims = value.spec.dims
            for names, axes in zip(tensor, dims, strict=False):
                for axis in axes if names else ():
                    by_factor = found.setdefault(axis, {})
                    by_factor.setdefault(names[0], []).append(value.name)
        return found

    @cached_property
    def inner(self) -> dict[str, list[str]]:
        """Mesh axis to the operands whose inner dimension it splits."""
        summed = self.op.factors.reduction if self.op.factors else ()
        found = {a: [n for f in by if f in summed for n in by[f]] for a, by in self.split.items()}
        return {axis: names for axis, names in found.items() if names}

    def _over(self, kind: str) -> set[str]:
        return {axis for c in self.own if c.kind == kind for axis in c.mesh_axes}

    def _can_replace(self, axis: str) -> list[str]:
        """The other axes that are as large, or of which a part is."""
        sizes, size = self.mesh.shape, self.mesh.shape.get(axis, 1)
        return [a for a, n in sizes.items() if a != axis and size > 1 and n % size == 0]

    def uncertain(self) -> Iterator[Uncertain]:
        """The first kind that this is, if any."""
        rows = {
            "two factors": self._of_two_factors,
            "inner": self._inner_moved,
            "needed part": self._part_of_operand,
            "summed result": self._split_as_summed,
            "other dimension": self._along_others,
            "one operand": self._one_alone,
        }
        for code, test in rows.items():
            if axes := test():
                yield Uncertain(code, axes)
                return

    def _of_two_factors(self) -> tuple[str, ...]:
        """An axis that splits two factors, where another, which splits none, can stand in for it:
        XLA's partitioner matches tilings by the number of their tiles.
        """
        for axis, factors in self.split.items():
            if len(factors) > 1 and any(a not in self.split for a in self._can_replace(axis)):
                return (axis,)
        return ()

    def _inner_moved(self) -> tuple[str, ...]:
        """An axis over which an operand is moved to the split of the other, and then summed."""
        both = self._over("all-reduce") & self._over("all-to-all")
        return tuple(axis for axis in self.inner if axis in both)[:1]

    def _part_of_operand(self) -> tuple[str, ...]:
        """An axis over which a part of an operand is gathered, since the rest is not needed."""
        rule, gathered = self.op.factors, self._over("all-gather")
        by_factor: dict[str, set[str]] = defaultdict(set)
        for axis, factors in self.split.items():
            for factor in factors:
                by_factor[factor].add(axis)
        for names, axes in zip(rule.results[0] if rule else (), self.op.spec.dims, strict=False):
            by_factor[names[0] if names else ""].update(axes)
        for value, tensor in zip(self.operands, rule.operands if rule else (), strict=False):
            over = [axis for axis in value.spec.axes if axis in gathered]
            needed = {axis for names in tensor if names for axis in by_factor[names[0]]}
            if over and needed - {*value.spec.axes}:
                return (over[0],)
        return ()

    def _split_as_summed(self) -> tuple[str, ...]:
        """An axis that is summed over and splits the result, where another can stand in for it."""
        rule, result, sums = self.op.factors, self.op.spec, self._over("all-reduce")
        for axis, factors in self.split.items():
            free = [a for a in self._can_replace(axis) if a not in result.axes]
            summed = rule is not None and set(factors) <= set(rule.reduction)
            if summed and free and axis in sums and sums <= {*result.axes}:
                return (axis,)
        return ()

    def _along_others(self) -> tuple[str, ...]:
        """An axis that splits another dimension of the result than of the operands."""
        rule, result = self.op.factors, self.op.spec
        places = {} if rule is None else {n[0]: d for d, n in enumerate(rule.results[0]) if n}
        for axis, factors in self.split.items():
            for factor, names in factors.items():
                own = result.dims[places[factor]] if factor in places else (axis,)
                moves = {
                    a for c in self.own if c.cause.startswith(f"{names[0]} ") for a in c.mesh_axes
                }
                if axis in result.axes and axis not in own and axis not in moves:
                    return (axis,)
        return ()

    def _one_alone(self) -> tuple[str, ...]:
        """An axis that splits the inner dimension of one operand alone, where the result of the
        sum is split as well.
        """
        sums = self._over("all-reduce")
        for axis, names in self.inner.items():
            if axis in sums and len(names) == 1 and sums & {*self.op.spec.axes}:
                return (axis,)
        return ()


_NUMBER = re.compile(r"-?\d+")
_DIMENSIONS = re.compile(r"<\[([^\]]*)\]x\[([^\]]*)\]->")
_SPLAT = re.compile(r"dense<(-?\d+)>")


def windows_of(op: Any, attributes: AttributeCache) -> dict[int, Window]:
    """Dimension of the first operand to window; a dimension without one is left out."""
    name = op.name
    if name == "stablehlo.slice":
        starts, strides = (
            _numbers(op, "start_indices", attributes),
            _numbers(op, "strides", attributes),
        )
        return {
            n: Window(stride=step, low=-start)
            for n, (start, step) in enumerate(zip(starts, strides, strict=True))
        }
    if name == "stablehlo.pad":
        lows = _numbers(op, "edge_padding_low", attributes)
        between = _numbers(op, "interior_padding", attributes)
        return {
            n: Window(low=low, spread=gap + 1)
            for n, (low, gap) in enumerate(zip(lows, between, strict=True))
        }
    if name == "stablehlo.reduce_window":
        sizes = _numbers(op, "window_dimensions", attributes)
        return _sliding(op, range(len(sizes)), sizes, "base", attributes)
    if name == "stablehlo.select_and_scatter":
        sizes = _numbers(op, "window_dimensions", attributes)
        return {dim: Window(size) for dim, size in enumerate(sizes) if size > 1}
    if name == "stablehlo.convolution":
        return _of_convolution(op, attributes)
    return {}


def groups_of(op: Any, attributes: AttributeCache) -> int:
    """Into how many groups a convolution splits its features or its batch; 1 for one a feature.

    XLA's partitioner splits groups of one feature each as it does batches.
    """
    if op.name != "stablehlo.convolution":
        return 1
    names = ("feature_group_count", "batch_group_count")
    counts = [_NUMBER.findall(attributes.text(op, name)) for name in names]
    features, batch = (int(found[0]) for found in counts)
    kernel = attributes.tensor(op.operands[1])
    numbers = _DIMENSIONS.search(attributes.text(op, "dimension_numbers"))
    if kernel is None or numbers is None:
        return max(features, batch)
    inputs = kernel[0][[d.strip() for d in numbers[2].split(",")].index("i")]
    return max(1 if inputs == 1 else features, batch)


def _of_convolution(op: Any, attributes: AttributeCache) -> dict[int, Window]:
    found = _DIMENSIONS.search(attributes.text(op, "dimension_numbers"))
    kernel = attributes.tensor(op.operands[1])
    if found is None or kernel is None:
        return {}
    image, weights = ([d.strip() for d in part.split(",")] for part in found.groups())
    space = sorted((d for d in image if d.isdecimal()), key=int)
    sizes = [kernel[0][weights.index(d)] for d in space]
    return _sliding(op, [image.index(d) for d in space], sizes, "lhs", attributes)


def _sliding(
    op: Any, dims: Sequence[int], sizes: Sequence[int], base: str, attributes: AttributeCache
) -> dict[int, Window]:
    """The windows over some dimensions; `base` is what the operand's dilation is called."""
    ones = [1] * len(sizes)
    strides = _numbers(op, "window_strides", attributes) or ones
    spreads = _numbers(op, f"{base}_dilation{'s' * (base == 'base')}", attributes) or ones
    gaps = _numbers(op, "rhs_dilation" if base == "lhs" else "window_dilations", attributes) or ones
    lows = _numbers(op, "padding", attributes, 2 * len(sizes))[::2] or [0] * len(sizes)
    parts = zip(dims, sizes, strides, lows, spreads, gaps, strict=True)
    return {
        dim: Window((size - 1) * gap + 1, stride, low, spread)
        for dim, size, stride, low, spread, gap in parts
    }


def _numbers(op: Any, name: str, attributes: AttributeCache, count: int = 0) -> list[int]:
    """The numbers of `array<i64: 1, 2>`, or of `dense<[[1, 2], [0, 0]]> : tensor<2x2xi64>`."""
    text = attributes.text(op, name)
    if text.startswith("dense"):
        if splat := _SPLAT.match(text):
            return [int(splat[1])] * count
        return [int(n) for n in _NUMBER.findall(text.partition(">")[0])]
    return [int(n) for n in _NUMBER.findall(text.partition(":")[2])]
