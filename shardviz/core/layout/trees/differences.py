"""differences(): how the arrays of an optimizer are held otherwise than their
parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardviz.core.display import Fact
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.requests import Request

#: What people call the axis of layers that `nn.scan`, `nnx.scan` or a pipeline stacks.
STACKED = frozenset(
    ("layer", "layers", "stack", "stacked", "stage", "stages", "scan", "blocks", "repeats",
     "layers_per_stage", "circular_repeats", "num_layers")
)  # fmt: skip
_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
# What optimizers call a mean of squares, which loses small steps in 16 bits.
_SQUARES = frozenset(("nu", "v", "velocity", "exp_avg_sq", "sum_of_squares", "nu_max"))


class Held(NamedTuple):
    """How an array is held.

    Attributes:
        shape: its global shape.
        dtype: its element type.
        spec: its spec; None where nothing says how it is split.
        replicated: whether every device holds all of it.

    >>> Held((8,), "float32", None).replicated
    False
    """

    shape: tuple[int, ...]
    dtype: str
    spec: Spec | None
    replicated: bool = False


class StackedAxis(NamedTuple):
    """The dimension of stacked layers.

    Attributes:
        name: its logical name, one of STACKED.
        dim: which dimension of the parameter it is.
        axes: the mesh axes that split it there, and not in the optimizer's array.

    >>> StackedAxis("layers", 0).axes
    ()
    """

    name: str
    dim: int
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference(Fact):
    """How an array of the optimizer is held otherwise than its parameter.

    Attributes:
        path: the array.
        partner: its parameter.
        role: what the optimizer calls it, such as `mu`.
        kind: `"lost"` where it is split less than the parameter, `"stacked"` where
            that, or the optimizer's own shape, leaves out the axis of stacked layers,
            `"unknown"` where nothing says how it is split, `"otherwise"` where it is
            split over other axes, `"further"` where it is split more, `"dtype"` where
            its type costs memory, `"precision"` where it has too few bits for a mean of
            squares.
        held: how the array is held.
        parameter: how its parameter is held.
        stacked: the axis of stacked layers, where the kind is "stacked".
        bytes_per_device: what it costs on each device, in bytes; negative where it
            saves some.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> tree = {"params": {"w": ((512, 8), "embed mlp")},
    ...         "opt_state": {"mu": {"w": ((512, 8), None)}}}
    >>> one, = audit(tree, [("embed", "data")], "data=4").differences
    >>> one.role, one.kind, one.held.replicated, one.bytes_per_device
    ('mu', 'lost', True, 12288)
    """

    path: str
    partner: str
    role: str
    kind: str
    held: Held
    parameter: Held
    stacked: StackedAxis | None = None
    bytes_per_device: int = 0


def differences(rows: Iterable[Request]) -> tuple[Difference, ...]:
    """What differs between the arrays of an optimizer and their parameters, in the
    order of rows.
    """
    rows = tuple(rows)
    by_path = {row.path: row for row in rows}
    made: list[Difference] = []
    for row in rows:
        parameter = by_path.get(row.partner or "")
        if parameter is None or row.problem or parameter.problem:
            continue
        what = role(row)
        for kind, stacked, cost in _found(row, parameter, what):
            sides = _held(row), _held(parameter)
            made.append(
                Difference(row.path, parameter.path, what, kind, *sides, stacked, cost)
            )
    return tuple(made)


def _held(row: Request) -> Held:
    replicated = row.layout is not None and row.layout.num_blocks == 1
    spec = None if row.layout is None else row.spec
    return Held(row.shape, row.dtype, spec, replicated)


def role(row: Request) -> str:
    """What the optimizer calls an array: `mu` of `opt_state/0/mu/w`, beside `params/w`.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> role(Request(ArraySpec("o/0/nu/a/w", (8,)), None, None, None, None, partner="p/a/w"))
    'nu'
    """
    own, other = row.path.split("/"), (row.partner or "").split("/")
    flat = "_".join(other)
    if own[-1].startswith(flat + "_"):  # as Keras names it
        return own[-1][len(flat) + 1 :]
    for end in range(len(own), 0, -1):  # sm3 has more parts below a parameter
        common = 0
        while (
            common < min(end, len(other))
            and own[end - 1 - common] == other[-1 - common]
        ):
            common += 1
        if common and common < end:
            return own[end - common - 1]
    return own[-1]


# The kind of a difference, the axis of stacked layers, and the bytes that it costs.
_Found = tuple[str, StackedAxis | None, int]


def _found(row: Request, parameter: Request, what: str) -> Iterator[_Found]:
    if parameter.spec is not None and parameter.layout is not None:
        if row.layout is None:
            if parameter.layout.num_blocks > 1:
                yield "unknown", None, 0
        elif row.shape != parameter.shape:
            yield from _of_another_shape(row, parameter)
        else:
            yield from _split_otherwise(row, parameter)
    yield from _typed_otherwise(row, parameter, what)


def _split_otherwise(row: Request, parameter: Request) -> Iterator[_Found]:
    assert row.layout is not None
    assert parameter.layout is not None
    blocks, wanted = row.layout.num_blocks, parameter.layout.num_blocks
    lost = _lost_axes(row, parameter)
    cost = row.layout.bytes_per_device - -(-row.array.bytes // wanted)
    if blocks < wanted:
        stacked = _stacked(parameter, lost)
        yield "lost" if stacked is None else "stacked", stacked, cost
    elif blocks > wanted:
        yield "further", None, cost
    elif lost:
        yield "otherwise", None, 0


def _of_another_shape(row: Request, parameter: Request) -> Iterator[_Found]:
    """What a factored moment leaves out of its parameter's dimensions, and of its
    sharding.
    """
    kept = _kept_dimensions(row.shape, parameter.shape)
    # An array of other sizes is compared with nothing, nor is a placeholder of one
    # element.
    if kept is None or not _has_elements(row):
        return
    for dim, name in enumerate(parameter.names or ()):
        if dim not in kept and name in STACKED:
            yield "stacked", StackedAxis(str(name), dim), 0
            return
    assert row.layout is not None
    dims, wanted = _dims(parameter), 1
    for dim, size in zip(kept, row.shape, strict=True):
        parts = _parts(dims[dim], parameter)
        # What does not divide could not be split as the parameter is.
        if size % parts == 0:
            wanted *= parts
    if row.layout.num_blocks < wanted:
        cost = row.layout.bytes_per_device - -(-row.array.bytes // wanted)
        yield "lost", None, cost


def _typed_otherwise(row: Request, parameter: Request, what: str) -> Iterator[_Found]:
    """A difference of types that costs memory or precision."""
    mine, theirs = _BITS.get(row.dtype), _BITS.get(parameter.dtype)
    if mine is None or theirs is None or row.layout is None or not _has_elements(row):
        return
    if mine < 32 and what in _SQUARES:
        yield "precision", None, 0
    elif mine > theirs:
        yield "dtype", None, row.layout.bytes_per_device * (mine - theirs) // mine


def _has_elements(row: Request) -> bool:
    return any(size > 1 for size in row.shape)


def _dims(row: Request) -> tuple[tuple[str, ...], ...]:
    """The mesh axes of each dimension; none where its sharding names none."""
    dims = () if row.spec is None else row.spec.dims
    return dims + ((),) * (len(row.shape) - len(dims))


def _parts(axes: Iterable[str], row: Request) -> int:
    """Into how many parts axes of the mesh split a dimension."""
    assert row.layout is not None
    return math.prod(row.layout.mesh.shape.get(axis, 1) for axis in axes)


def _lost_axes(row: Request, parameter: Request) -> dict[int, tuple[str, ...]]:
    """Dimension to the axes that split it in the parameter alone."""
    lost: dict[int, tuple[str, ...]] = {}
    pairs = zip(_dims(row), _dims(parameter), strict=True)
    for dim, (mine, theirs) in enumerate(pairs):
        for axis in theirs:
            if axis not in mine and _parts((axis,), parameter) > 1:
                lost[dim] = (*lost.get(dim, ()), axis)
    return lost


def _stacked(
    parameter: Request, lost: Mapping[int, tuple[str, ...]]
) -> StackedAxis | None:
    """The axis of stacked layers, where that alone is not split as in the parameter."""
    names = parameter.names or ()
    if len(lost) != 1:
        return None
    ((dim, axes),) = lost.items()
    name = names[dim] if dim < len(names) else None
    return StackedAxis(name, dim, axes) if name in STACKED else None


def _kept_dimensions(
    shape: tuple[int, ...], whole: tuple[int, ...]
) -> list[int] | None:
    """Which dimensions of the parameter a factored array has, in order; None where it
    has others.

    >>> _kept_dimensions((4, 16), (4, 8, 16)), _kept_dimensions((5,), (4, 8))
    ([0, 2], None)
    """
    kept: list[int] = []
    begin = 0
    for size in shape:
        found = next((d for d in range(begin, len(whole)) if whole[d] == size), None)
        if found is None:
            return None
        kept.append(found)
        begin = found + 1
    return kept
