"""Where the estimate is known to differ from XLA's partitioner, as notes on values of a plan.

Shardy lets an axis cross a shift, a window or a cumulative sum, and plans no collective for what
must be exchanged there; XLA's partitioner inserts one. And where the operands or the result of a
matrix product want one axis along several dimensions, as under fsdp, both resolve it otherwise.
`python -m tests.bench.stages agree` counts how often the estimate is wrong with and without a note.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from shardviz.core.backend.shardy.attributes import AttributeCache
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.plan_values import PlannedOp, ShardingRule, group_size
from shardviz.core.program.report import Collective


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


#: How the note on a value begins where XLA does otherwise.
DIFFERS = "The estimate differs here:"


@dataclass(frozen=True)
class Limit:
    """One known difference.

    Attributes:
        what: the operation in words: `a reversal`.
        shardy: what Shardy plans.
        kind: the collective that XLA's partitioner puts in.
        partitioner: what it does, in words.

    >>> LIMITS["reverse"].kind
    'collective-permute'
    """

    what: str
    shardy: str
    kind: str
    partitioner: str

    def sentence(self, dim: int, axes: Sequence[str]) -> str:
        """The note on a value whose operand is split over `axes` along `dim`."""
        return (
            f"{DIFFERS} Shardy plans {self.shardy} for {self.what} along dimension"
            f" {dim}, split over {' × '.join(axes)}; XLA's partitioner {self.partitioner}: expect"
            f" {'an' if self.kind.startswith('a') else 'a'} {self.kind}."
        )


_EDGES = "exchanges what crosses the borders of shards"
_GATHERS = "gathers the dimension"
_NOTHING, _KEYED = "nothing", "two all-reduces"
LIMITS: Mapping[str, Limit] = {
    "pad": Limit("a padding", _NOTHING, "collective-permute", _EDGES),
    "slice": Limit("a slice", _NOTHING, "collective-permute", _EDGES),
    "slice of one": Limit("an index", _NOTHING, "all-reduce", "sums what only one shard holds"),
    "reverse": Limit("a reversal", _NOTHING, "collective-permute", "swaps the shards"),
    "concatenate": Limit("a shift", _NOTHING, "collective-permute", _EDGES),
    "convolution": Limit("a convolution", _NOTHING, "collective-permute", _EDGES),
    "reduce_window": Limit("a sliding window", _NOTHING, "collective-permute", _EDGES),
    "cumulative": Limit("a cumulative operation", _NOTHING, "all-gather", _GATHERS),
    "dynamic_slice": Limit("a dynamic slice", "an all-to-all", "all-gather", _GATHERS),
    "top_k": Limit("top_k", "an all-to-all", "all-gather", _GATHERS),
    "rows of top_k": Limit("the rows of top_k", _NOTHING, "all-gather", _GATHERS),
    "rows of fft": Limit("the rows of a Fourier transform", _NOTHING, "all-gather", _GATHERS),
    "fft": Limit("a Fourier transform", "all-to-alls", "all-gather", _GATHERS),
    "reduce": Limit("a reduction of pairs", _KEYED, "all-gather", "gathers each device's pick"),
}
#: How the cause of a move ends that equals one before.
AGAIN = "It was moved so before."
# Until then XLA makes the Fourier transform of a matrix on every device.
_FFT_OF_ROWS = jax.__version_info__ < (0, 11)
_NONE: Mapping[int, Window] = {}


def limit_note(
    op: PlannedOp,
    operand: PlannedOp | None,
    mesh: MeshSpec,
    windows: Mapping[int, Window] = _NONE,
    indexed: bool = True,
) -> str:
    """The note on a value where XLA is known to do otherwise; else `""`.

    Args:
        op: the value.
        operand: the first that it reads.
        mesh: the mesh.
        windows: dimension of that operand to window, where the operation has any.
        indexed: whether the dimension of a slice of one is dropped afterwards, as an index does.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> split, tensor = Spec.parse("data"), (("i",),)
    >>> rule = ShardingRule((tensor,), (tensor,), {"i": 8}, permutation=("i",))
    >>> x = PlannedOp("x", "argument", shape=(8,), spec=split)
    >>> y = PlannedOp("y", "op", "reverse", shape=(8,), spec=split, operands=("x",), factors=rule)
    >>> print(limit_note(y, x, MeshSpec(("data",), (4,))))
    The estimate differs here: Shardy plans nothing for a reversal along dimension 0, split ...
    """
    found = limits_of(op, operand, mesh, windows, indexed)
    return " ".join(limit.sentence(dim, axes) for limit, dim, axes in found)


def limits_of(
    op: PlannedOp,
    operand: PlannedOp | None,
    mesh: MeshSpec,
    windows: Mapping[int, Window] = _NONE,
    indexed: bool = True,
) -> list[tuple[Limit, int, tuple[str, ...]]]:
    """The known differences at a value: each with the dimension of its operand, and its axes."""
    if op.opcode not in LIMITS or operand is None or op.manual:
        return []
    rule = op.factors
    if rule is None or not rule.operands or not rule.results:
        return []
    found = []
    for dim, (names, axes) in enumerate(zip(rule.operands[0], operand.spec.dims, strict=False)):
        parts = group_size(axes, mesh)
        # Parts of an axis are the compiler's own choice, which it makes again.
        if names and parts > 1 and all(axis in mesh.shape for axis in axes):
            window = windows.get(dim)
            split = _Split(op, operand, rule, dim, names[0], parts, window, indexed)
            if kind := split.kind():
                found.append((LIMITS[kind], dim, axes))
    return found


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
    indexed: bool

    def kind(self) -> str:
        """Which of the limits this is; `""` where it is none."""
        opcode, blocked = self.op.opcode, self.factor in self.rule.blocked_propagation
        if opcode == "top_k" and not blocked:
            return "rows of top_k"
        # Along another dimension, if there is one, Shardy's all-to-all splits it instead.
        if opcode in ("top_k", "dynamic_slice"):
            return opcode if blocked and self.operand.spec.rank > 1 else ""
        if opcode == "fft" and _FFT_OF_ROWS and self.factor not in self.rule.need_replication:
            return "rows of fft" if self.operand.spec.rank < 3 else ""
        if opcode == "fft":
            free = {f for names in self.rule.operands[0] for f in names} - {
                *self.rule.need_replication
            }
            return opcode if self.factor in self.rule.need_replication and free else ""
        if opcode == "reduce":  # of values with their indices: argmax
            pairs = len(self.rule.results) > 1
            return opcode if pairs and self.factor in self.rule.reduction else ""
        return self._moved()

    def _moved(self) -> str:
        """The limit of an operation that moves elements along the dimension."""
        results, spec = self.rule.results[0], self.op.spec
        own = next((n for n, names in enumerate(results) if self.factor in names), None)
        if self.factor not in self.rule.permutation or own is None or own >= spec.rank:
            return ""
        # Where it is not split afterwards, Shardy gathers it before.
        if not set(spec.dims[own]) & set(self.operand.spec.dims[self.dim]):
            return ""
        read, made, opcode = self.operand.shape[self.dim], self.op.shape[own], self.op.opcode
        if opcode == "slice" and made == 1 and self.indexed:
            return "slice of one"
        if self.window is not None and not self.window.crosses(read, made, self.parts):
            return ""
        if opcode == "convolution" and self.window is not None and self.window.size >= made:
            return ""  # the gradient of a kernel, which XLA sums
        # A window over all of the dimension: how jax lowers a cumulative sum.
        full = self.window is not None and self.window.size >= read > 1
        return "cumulative" if opcode == "reduce_window" and full else opcode


def note_conflicts(
    ops: Sequence[PlannedOp], collectives: Sequence[Collective], mesh: MeshSpec
) -> tuple[PlannedOp, ...]:
    """The same values, with a note on each product and concatenation that XLA splits otherwise.

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
    >>> print(note_conflicts((x, w, y), moves, MeshSpec(("data",), (4,)))[2].note)
    The estimate differs here: Shardy plans an all-to-all and an all-reduce for y, since ... w ...
    """
    own: dict[str, list[Collective]] = defaultdict(list)
    for c in collectives:
        own[c.value].append(c)
    values = {op.name: op for op in ops}
    noted = (_conflict(op, values, own[op.name], mesh) for op in ops)
    return tuple(
        replace(op, note=" ".join(filter(None, (op.note, words)))) if words else op
        for op, words in zip(ops, noted, strict=True)
    )


def _conflict(
    op: PlannedOp, values: Mapping[str, PlannedOp], own: Sequence[Collective], mesh: MeshSpec
) -> str:
    again = next((c for c in own if c.cause.endswith(AGAIN)), None)
    if op.opcode == "concatenate" and not op.manual:
        return _concatenated(own)
    if op.opcode == "scatter" and not op.manual and (words := _scattered(op, values, own, mesh)):
        return words
    if op.opcode != "dot_general" or op.factors is None or op.manual:
        return _reordered(op, values, own) or (_moved_again(op, again) if again else "")
    again = again if again and again.kind == "all-gather" else None
    product = _Product(op, [values.get(name) for name in op.operands], own, mesh)
    return (
        product.of_equal_axes()
        or (_moved_again(op, again) if again else "")
        or product.gathered()
        or product.sliced()
        or product.scattered()
        or product.moved()
        or product.taken()
        or _reordered(op, values, own)
    )


def _moved_again(op: PlannedOp, again: Collective) -> str:
    """The note where Shardy moves a value a second time."""
    return (
        f"{DIFFERS} Shardy plans an {again.kind} for {op.name} that it has planned before, of a"
        f" value split over {' × '.join(again.mesh_axes)}; XLA's partitioner"
        f" {'gathers' if again.kind == 'all-gather' else 'moves'} it once for both: expect an"
        f" {again.kind}."
    )


def _concatenated(own: Sequence[Collective]) -> str:
    """The note on a concatenation of values that are split along each other's axes."""
    for c in own:
        if c.kind == "collective-permute":
            return (
                f"{DIFFERS} Shardy plans to move the values of a concatenation that"
                f" are not split alike, split over {' × '.join(c.mesh_axes)}; XLA's partitioner"
                " moves them in another order of steps: expect a collective-permute."
            )
    return ""


def _scattered(
    op: PlannedOp, values: Mapping[str, PlannedOp], own: Sequence[Collective], mesh: MeshSpec
) -> str:
    """The note where what is written, and the result, are split over one axis."""
    sizes, used = mesh.shape, {*op.spec.axes}
    used |= {a for n in op.operands if (v := values.get(n)) is not None for a in v.spec.axes}
    moved = {a for c in own for a in c.mesh_axes} & {*op.spec.axes}
    for axis in (a for a in sizes if a in moved):
        free = [a for a, n in sizes.items() if a not in used and math.gcd(n, sizes[axis]) > 1]
        if free:
            return (
                f"{DIFFERS} Shardy plans to sum or to gather for {op.name}, whose result is split"
                f" over {axis}; XLA's partitioner splits it over {free[0]} meanwhile: expect a"
                " collective-permute."
            )
    return ""


def _reordered(op: PlannedOp, values: Mapping[str, PlannedOp], own: Sequence[Collective]) -> str:
    """The note where a value is moved in several steps, or along an axis that splits it not yet."""
    kinds = {c.kind for c in own}
    further = {"all-gather", "all-to-all"} if op.opcode == "dot_general" else {"all-gather"}
    read = [{*v.spec.axes} for name in op.operands if (v := values.get(name)) is not None]
    for c in own:
        over, axes = {*c.mesh_axes}, " × ".join(c.mesh_axes)
        if c.kind == "collective-permute" and kinds & further:
            return (
                f"{DIFFERS} Shardy plans several steps for what {op.name} reads, a"
                f" collective-permute first, split over {axes}; XLA's partitioner takes others:"
                " expect an all-gather."
            )
        if c.kind == "all-to-all" and any(over & own and over - own for own in read):
            return (
                f"{DIFFERS} Shardy plans one all-to-all for what {op.name} reads, after it is"
                f" split over {axes}; XLA's partitioner moves it as it is and then orders its"
                " shards: expect a collective-permute."
            )
    return ""


@dataclass(frozen=True)
class _Product:
    """A matrix product, what it reads, and the collectives that Shardy plans for it."""

    op: PlannedOp
    operands: Sequence[PlannedOp | None]
    own: Sequence[Collective]
    mesh: MeshSpec

    @cached_property
    def split(self) -> dict[str, dict[str, list[str]]]:
        """Mesh axis to the factors that it splits, each with the operands in which it does."""
        found: dict[str, dict[str, list[str]]] = {}
        rule = self.op.factors
        for value, tensor in zip(self.operands, rule.operands if rule else (), strict=False):
            dims = value.spec.dims if value is not None else ()
            for names, axes in zip(tensor, dims, strict=False):
                for axis in axes if names else ():
                    by_factor = found.setdefault(axis, {})
                    by_factor.setdefault(names[0], []).append(value.name if value else "")
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

    def of_equal_axes(self) -> str:
        """The note where an axis splits two factors and another axis, which splits none, can
        stand in for it: XLA's partitioner matches tilings by the number of their tiles.
        """
        for axis, factors in self.split.items():
            alike = [a for a in self._can_replace(axis) if a not in self.split]
            if len(factors) > 1 and alike:
                return (
                    f"{DIFFERS} Shardy plans to move an operand of {self.op.name},"
                    f" which has two dimensions that are split over {axis}; XLA's partitioner"
                    f" splits one of them over {alike[0]} instead, as many ways: expect a"
                    " collective-permute."
                )
        return ""

    def gathered(self) -> str:
        """The note where an operand is moved to the split of the other, as weights under fsdp."""
        sums, moved = self._over("all-reduce"), self._over("all-to-all")
        for axis, (name, *_) in self.inner.items():
            if axis in sums & moved:
                return (
                    f"{DIFFERS} Shardy plans an all-to-all and an all-reduce for"
                    f" {self.op.name}, since the inner dimension of {name} is split over {axis};"
                    f" XLA's partitioner gathers {name} instead: expect an all-gather."
                )
        return ""

    def sliced(self) -> str:
        """The note where a part of an operand is gathered, since the rest is not needed."""
        rule, gathered = self.op.factors, self._over("all-gather")
        by_factor: dict[str, set[str]] = defaultdict(set)
        for axis, factors in self.split.items():
            for factor in factors:
                by_factor[factor].add(axis)
        for names, axes in zip(rule.results[0] if rule else (), self.op.spec.dims, strict=False):
            by_factor[names[0] if names else ""].update(axes)
        for value, tensor in zip(self.operands, rule.operands if rule else (), strict=False):
            own = value.spec.axes if value is not None else ()
            over = [axis for axis in own if axis in gathered]
            needed = {axis for names in tensor if names for axis in by_factor[names[0]]}
            if value is not None and over and needed - {*own}:
                return (
                    f"{DIFFERS} Shardy plans to take a part of {value.name} and to"
                    f" gather that for {self.op.name}, split over {over[0]}; XLA's partitioner"
                    f" gathers all of {value.name}: expect an all-gather."
                )
        return ""

    def scattered(self) -> str:
        """The note where the result is split over an axis that it is summed over."""
        rule, result, sums = self.op.factors, self.op.spec, self._over("all-reduce")
        for axis, factors in self.split.items():
            free = [a for a in self._can_replace(axis) if a not in result.axes]
            summed = rule is not None and set(factors) <= set(rule.reduction)
            if summed and free and axis in sums and sums <= {*result.axes}:
                return (
                    f"{DIFFERS} Shardy plans an all-reduce of {self.op.name},"
                    f" whose result is split over {axis}; XLA's partitioner splits it over"
                    f" {free[0]} while it is summed: expect a collective-permute."
                )
        return ""

    def moved(self) -> str:
        """The note where the result is split along another dimension than the operands."""
        rule, result = self.op.factors, self.op.spec
        places = {} if rule is None else {n[0]: d for d, n in enumerate(rule.results[0]) if n}
        for axis, factors in self.split.items():
            for factor, names in factors.items():
                own = result.dims[places[factor]] if factor in places else (axis,)
                moves = {
                    a for c in self.own if c.cause.startswith(f"{names[0]} ") for a in c.mesh_axes
                }
                if axis in result.axes and axis not in own and axis not in moves:
                    return (
                        f"{DIFFERS} Shardy plans an all-to-all of {self.op.name}, since other"
                        f" dimensions of it than of {names[0]} are split over {axis}; XLA's"
                        f" partitioner gathers {names[0]} before: expect an all-gather."
                    )
        return ""

    def taken(self) -> str:
        """The note where each device takes its part of one operand and keeps a part of the sum."""
        sums = self._over("all-reduce")
        for axis, (name, *others) in self.inner.items():
            if axis in sums and not others and sums & {*self.op.spec.axes}:
                return (
                    f"{DIFFERS} Shardy plans an all-reduce of {self.op.name}, of"
                    f" whose operands only {name} is split over {axis}; XLA's partitioner"
                    f" gathers {name}: expect an all-gather."
                )
        return ""


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
    if name == "stablehlo.convolution":
        return _of_convolution(op, attributes)
    return {}


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
