"""The mesh axes that the replica groups of a collective run over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardviz.base.cause import AxisPart

Groups = tuple[tuple[int, ...], ...]


class Replicas(NamedTuple):
    """The replica groups of one collective.

    Attributes:
        groups: tuples of flat mesh positions; pairs for a permutation.
        axes: the mesh axes or sub-axes that the groups run over, in mesh order.
        size: the number of devices in each group; 0 if unknown.
        parts: the axes that a group covers only in part.
    """

    groups: Groups
    axes: tuple[str, ...]
    size: int
    parts: tuple[AxisPart, ...] = ()


def replicas_of(
    groups: Groups, paired: bool, names: Sequence[str], sizes: Sequence[int]
) -> Replicas:
    """Finds the mesh axes and the size of replica groups.

    Args:
        groups: tuples of flat mesh positions.
        paired: whether the groups are the pairs of a permutation. If so, the group size
            is the product of the axes along which the permutation moves data.
        names, sizes: names and sizes of the mesh axes.

    >>> replicas_of(((0, 2), (1, 3)), False, ("a", "b"), (2, 2))[1:]
    (('a',), 2, ())
    """
    if paired:
        axes = axes_of_pairs(groups, names, sizes)
        if not groups:
            return Replicas(groups, axes, 0)
        shape = dict(zip(names, sizes, strict=True))
        return Replicas(groups, axes, math.prod(map(shape.__getitem__, axes)))
    group_sizes = {*map(len, groups)}
    size = group_sizes.pop() if len(group_sizes) == 1 else 0
    return Replicas(groups, *_axes_and_parts(groups, names, sizes, size))


def _axes_and_parts(
    groups: Groups, names: Sequence[str], sizes: Sequence[int], size: int
) -> tuple[tuple[str, ...], int, tuple[AxisPart, ...]]:
    """The axes of the groups, the group size, and the axes covered only in part."""
    unknown = (), size, ()
    total = math.prod(sizes)
    lengths = {len(group) for group in groups}
    if len(lengths) != 1 or sum(map(len, groups)) != total:
        return unknown
    # A module may name devices that are not in this mesh.
    positions = np.array(groups)
    if positions.max() >= total:
        return unknown
    coordinates = np.unravel_index(positions, tuple(sizes))
    axes: list[str] = []
    parts: list[AxisPart] = []
    block = 1  # group size if a group has all combinations of coordinates
    for name, length, along in zip(names, sizes, coordinates, strict=True):
        ordered = np.sort(along, axis=1)
        different = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
        if not (different == different[0]).all():
            return unknown
        count = int(different[0])
        block *= count
        if count == 1:
            continue
        if count < length:
            parts.append(AxisPart(name, count, length))
            name = _sub_axis(name, length, [np.unique(row) for row in ordered])
        axes.append(name)
    if block != positions.shape[1]:
        return unknown
    return tuple(axes), size, tuple(parts)


def _sub_axis(name: str, length: int, rows: Sequence[np.ndarray]) -> str:
    """Shardy's name for a sub-axis, such as `data:(1)2`; the axis name if none fits.

    Args:
        name, length: the name and the size of the axis.
        rows: for each group, its sorted coordinates along the axis.
    """
    count, stride = len(rows[0]), int(rows[0][1] - rows[0][0])
    span = stride * count
    for row in rows:
        first = int(row[0])
        # The smallest coordinate of a group must have index 0 along the sub-axis.
        if first % span >= stride or length % span:
            return name
        if row.tolist() != list(range(first, first + span, stride)):
            return name
    return f"{name}:({length // span}){count}"


def axes_of_pairs(
    pairs: Groups, names: Sequence[str], sizes: Sequence[int]
) -> tuple[str, ...]:
    """The mesh axes along which a permutation moves data, in mesh order.

    >>> axes_of_pairs(((0, 2), (2, 0)), ("a", "b"), (4, 2))
    ('a',)
    """
    moves = np.array(pairs).reshape(-1, 2)
    if not moves.size or moves.max() >= math.prod(sizes):
        return ()
    axes: list[str] = []
    coordinates = np.unravel_index(moves, tuple(sizes))
    for name, along in zip(names, coordinates, strict=True):
        if (along[:, 0] != along[:, 1]).any():
            axes.append(name)
    return tuple(axes)
