"""Shardings as what they mean: which block of an array each device holds, written out.

Both sides are brought to this form by themselves: XLA's from the numbers of its tiles, ours from
the axes of a Spec.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardviz.base.partition_spec import Spec
from tests.stages.proto import Message

_REPLICATED, _OTHER = 0, 3  # OpSharding's types
_PART = re.compile(r"(.+):\((\d+)\)(\d+)")


@dataclass(frozen=True)
class Blocks:
    """How an array is split, and which block each device holds.

    Attributes:
        parts: into how many parts each dimension is split.
        held: for every device, in mesh order, the position of its block.
    """

    parts: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]

    def __repr__(self) -> str:
        return f"{list(self.parts)} {list(self.held)}"


def replicated(rank: int, devices: int) -> Blocks:
    """Every device holds all of it."""
    return Blocks((1,) * rank, ((0,) * rank,) * devices)


def of_module(sharding: Message | None, rank: int, devices: int) -> Blocks | None:
    """The blocks of an OpSharding; None for one that says nothing, as inside a shard_map."""
    if sharding is not None and sharding.has(14):
        return _of_named(sharding.messages(14)[0], rank, devices)
    if sharding is None or sharding.number(1) == _REPLICATED:
        return replicated(rank, devices)
    if sharding.number(1) != _OTHER:
        return None
    tiles = sharding.numbers(3)
    if sharding.has(9):
        ids = np.arange(math.prod(tiles)).reshape(sharding.numbers(9))
        ids = ids.transpose(sharding.numbers(10)).reshape(tiles)
    else:
        ids = np.array(sharding.numbers(4)).reshape(tiles)
    held: list[tuple[int, ...]] = [()] * devices
    for position in np.ndindex(*tiles):
        held[ids[position]] = position[:rank]
    return Blocks(tuple(tiles[:rank]), tuple(held))


def _of_named(sharding: Message, rank: int, devices: int) -> Blocks | None:
    """The form of jax 0.12: the axes of a mesh, a dimension's axes major to minor."""
    (mesh,) = sharding.messages(2)
    assert not mesh.has(2), "these tests keep devices in their order"
    assert not mesh.has(3), "these tests keep devices in their order"
    sizes = [axis.number(2) for axis in mesh.messages(1)]
    manual = [sizes[reference.number(1)] for reference in sharding.messages(7)]
    if manual and math.prod(manual) == devices:
        return None
    if not sharding.has(3):
        return replicated(rank, devices)
    digits = []
    for dim in sharding.messages(3):
        references = [(r, next(iter(r.messages(2)), None)) for r in dim.messages(1)]
        digits.append([
            _part(r.number(1), sizes, *((p.number(1), p.number(2)) if p else ()))
            for r, p in references
        ])  # fmt: skip
    return _blocks(digits, sizes)


def of_spec(spec: Spec, rank: int, axes: Sequence[str], sizes: Sequence[int]) -> Blocks:
    """The blocks of a Spec on a mesh; it may name parts of axes, as Shardy writes them."""
    dims = [*spec.dims, *[()] * (rank - len(spec.dims))]
    digits = []
    for dim in dims:
        parts = [(_PART.fullmatch(name), name) for name in dim]
        digits.append([
            _part(list(axes).index(p[1]), sizes, int(p[2]), int(p[3])) if p
            else _part(list(axes).index(name), sizes)
            for p, name in parts
        ])  # fmt: skip
    return _blocks(digits, sizes)


def of_text(text: str, rank: int, axes: Sequence[str], sizes: Sequence[int]) -> Blocks:
    """The blocks of a sharding as Shardy prints it: `<@mesh, [{"data", "model":(1)2}, {}]>`."""
    dims = re.findall(r"\{([^}]*)\}", text.partition("]")[0])
    names = (re.findall(r'"([^"]+)"(:\(\d+\)\d+)?', dim) for dim in dims)
    return of_spec(
        Spec(tuple(tuple(a + part for a, part in dim) for dim in names)), rank, axes, sizes
    )


# An axis, how many devices along it go by from one block to the next, and how many blocks it makes.
_Digit = tuple[int, int, int]


def _part(axis: int, sizes: Sequence[int], before: int = 1, size: int | None = None) -> _Digit:
    """A mesh axis, or the part of it that comes after `before` and is `size` long."""
    size = sizes[axis] if size is None else size
    return axis, sizes[axis] // (before * size), size


def _blocks(digits: Sequence[Sequence[_Digit]], sizes: Sequence[int]) -> Blocks:
    held = []
    for position in np.ndindex(*sizes):
        block = []
        for dim in digits:
            number = 0
            for axis, after, size in dim:  # major to minor
                number = number * size + position[axis] // after % size
            block.append(number)
        held.append(tuple(block))
    return Blocks(tuple(math.prod(size for _, _, size in dim) for dim in digits), tuple(held))
