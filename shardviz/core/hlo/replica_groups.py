"""Replica groups of a compiled collective: their notations, and the mesh axes they run over.

XLA writes the groups of a collective in four ways, all of them flat positions in the device
assignment, which is the mesh in row-major order:

    {{0,1},{2,3}}                        every group
    {}                                   one group of all
    [2,4]<=[4,2]T(1,0)                   an iota of 8, reshaped to 4 x 2, transposed, split 2 x 4
    mesh['a'=4,'b'=2] {'b'}              axes of a mesh, perhaps with device ids and sub-axes

The notations are those of `xla/hlo/ir/replica_group.cc` and `mesh_and_axis.cc`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(([^)]*(?:\([\d,]*\))?[^)]*)\))? *\{(.*)\}$")
_AXIS = re.compile(r"'?([^'=,{}]+)'?=(\d+)")
_AXIS_REF = re.compile(r"'?([^':,{} ]+)'?(?::\((\d+)\)(\d+))?")


class Replicas(NamedTuple):
    """The groups of one collective.

    Attributes:
        groups: tuples of flat mesh positions; the pairs of a permutation.
        axes: the mesh axes they run over, in mesh order.
        size: how many devices take part in each group; 0 where unknown.
    """

    groups: Groups
    axes: tuple[str, ...]
    size: int


def _as_they_are(groups: Groups) -> Groups:
    return groups


def read_replicas(
    text: str,
    paired: bool,
    names: Sequence[str],
    sizes: Sequence[int],
    devices: int | None = None,
    spread: Callable[[Groups], Groups] = _as_they_are,
) -> Replicas:
    """The groups, mesh axes and group size that `replica_groups=` gives.

    Args:
        text: the groups, in any notation.
        paired: whether these are the pairs of a permutation, whose size is that of the axes it
            moves along.
        names, sizes: the axes of the mesh.
        devices: how many devices the text counts; those of the mesh where not given.
        spread: makes groups of these devices groups of mesh positions.

    >>> read_replicas("[2,4]<=[4,2]T(1,0)", False, ("a", "b"), (4, 2)).axes
    ('a',)
    """
    if spread is _as_they_are:
        return _read(text, paired, tuple(names), tuple(sizes), devices or math.prod(sizes))
    groups = read_pairs(text) if paired else read_groups(text, devices or math.prod(sizes))
    return replicas_of(spread(groups), paired, names, sizes)


@lru_cache(maxsize=64)  # the compiled text mostly repeats the partitioner's groups
def _read(
    text: str, paired: bool, names: tuple[str, ...], sizes: tuple[int, ...], devices: int
) -> Replicas:
    groups = read_pairs(text) if paired else read_groups(text, devices)
    return replicas_of(groups, paired, names, sizes)


def replicas_of(
    groups: Groups, paired: bool, names: Sequence[str], sizes: Sequence[int]
) -> Replicas:
    """Groups of flat mesh positions, with their mesh axes and size.

    Args:
        groups, paired, names, sizes: as for `read_replicas`.

    >>> replicas_of(((0, 2), (1, 3)), False, ("a", "b"), (2, 2))[1:]
    (('a',), 2)
    """
    if paired:
        pairs = groups
        axes = axes_of_pairs(pairs, names, sizes)
        moved = math.prod(s for n, s in zip(names, sizes, strict=True) if n in axes)
        return Replicas(pairs, axes, moved if pairs else 0)
    lengths = {len(g) for g in groups}
    size = lengths.pop() if len(lengths) == 1 else 0
    return Replicas(groups, axes_of_groups(groups, names, sizes), size)


def read_groups(text: str, devices: int) -> Groups:
    """The groups that `replica_groups=` gives; `()` where they cannot be read.

    >>> read_groups("[2,4]<=[4,2]T(1,0)", 8)
    ((0, 2, 4, 6), (1, 3, 5, 7))
    >>> read_groups("mesh['a'=4,'b'=2] {'b'}", 8)
    ((0, 1), (2, 3), (4, 5), (6, 7))
    >>> read_groups("mesh['a'=1,'b'=2,'c'=4], device_ids=([4,2]T(1,0)) {'b'}", 8)
    ((0, 1), (2, 3), (4, 5), (6, 7))
    """
    text = text.strip()
    if text == "{}":
        return (tuple(range(devices)),)
    if text.startswith("{{"):
        return read_pairs(text)
    if text.startswith("["):
        return _rows(_iota(text))
    return _mesh_groups(text) if text.startswith("mesh") else ()


def read_pairs(text: str) -> Groups:
    """Groups written out one by one: `{{0,1},{2,3}}`.

    >>> read_pairs("{{0,1},{2,3}}")
    ((0, 1), (2, 3))
    """
    parts = text.replace(" ", "").strip("{}").split("},{")
    lengths = {part.count(",") for part in parts}
    if parts == [""] or len(lengths) != 1:
        return tuple(_numbers(part) for part in parts if part)
    # Thousands of devices: one pass over all numbers takes a fifth of the time of one a group.
    numbers = list(map(int, ",".join(parts).split(",")))
    size = lengths.pop() + 1
    return tuple(zip(*[iter(numbers)] * size, strict=True))


def axes_of_groups(groups: Groups, names: Sequence[str], sizes: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes along which every group runs, in mesh order; `()` where there are no such.

    A group may hold a part of an axis, such as every second device of it.

    >>> axes_of_groups(((0, 2, 4, 6), (1, 3, 5, 7)), ("a", "b"), (4, 2))
    ('a',)
    >>> axes_of_groups(((0, 2), (4, 6), (1, 3), (5, 7)), ("a", "b"), (4, 2))
    ('a',)
    """
    total = math.prod(sizes)
    if not groups or len({len(g) for g in groups}) != 1 or sum(map(len, groups)) != total:
        return ()
    positions = np.array(groups)
    if positions.max() >= total:
        return ()
    coordinates = np.unravel_index(positions, tuple(sizes))
    reach = [_reach(c) for c in coordinates]
    if None in reach or math.prod(r or 0 for r in reach) != positions.shape[1]:
        return ()
    return tuple(n for n, r in zip(names, reach, strict=True) if r != 1)


def _reach(coordinates: np.ndarray) -> int | None:
    """How many different coordinates each group has along one axis; None where groups differ."""
    ordered = np.sort(coordinates, axis=1)
    found = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    return int(found[0]) if bool((found == found[0]).all()) else None


def axes_of_pairs(pairs: Groups, names: Sequence[str], sizes: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes along which a permutation moves anything, in mesh order.

    >>> axes_of_pairs(((0, 2), (2, 0)), ("a", "b"), (4, 2))
    ('a',)
    """
    moves = np.array(pairs).reshape(-1, 2)
    if not moves.size or moves.max() >= math.prod(sizes):
        return ()
    coordinates = np.unravel_index(moves, tuple(sizes))
    return tuple(
        n for n, c in zip(names, coordinates, strict=True) if bool((c[:, 0] != c[:, 1]).any())
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


def _rows(array: np.ndarray | None) -> Groups:
    return () if array is None else tuple(map(tuple, array.tolist()))


def _iota(text: str) -> np.ndarray | None:
    match = _IOTA.fullmatch(text)
    if match is None:
        return None
    shape = _numbers(match[1])
    # Without `<=` the ids count through the shape itself: [4,2]T(1,0) reads them down its columns.
    reshape = _numbers(match[2]) if match[2] else shape
    order = _numbers(match[3]) if match[3] else tuple(range(len(reshape)))
    if math.prod(reshape) != math.prod(shape) or sorted(order) != list(range(len(reshape))):
        return None
    array = np.arange(math.prod(shape)).reshape(reshape).transpose(order)
    return array.reshape(shape)


def _mesh_groups(text: str) -> Groups:
    match = _MESH.match(text)
    if match is None:
        return ()
    sizes = {name: int(size) for name, size in _AXIS.findall(match[1])}
    total = math.prod(sizes.values())
    ids = np.arange(total)
    if match[2]:
        listed = _iota(match[2]) if match[2].startswith("[") else np.array(_numbers(match[2]))
        if listed is None or listed.size != total:
            return ()
        ids = listed.reshape(-1)
    return _split(ids, sizes, _AXIS_REF.findall(match[3]))


def _split(ids: np.ndarray, sizes: dict[str, int], refs: list[tuple[str, str, str]]) -> Groups:
    """Groups of the axes in `refs`; a sub-axis `a:(2)4` is the 4 after the first 2 of `a`."""
    lengths: list[int] = []
    at: dict[tuple[str, int], int] = {}
    for name, size in sizes.items():
        bounds = [(int(p), int(p) * int(s)) for r, p, s in refs if r == name and p]
        edges = sorted({1, size, *itertools.chain(*bounds)})
        for low, high in itertools.pairwise(edges):
            if high % low:
                return ()
            at[name, low] = len(lengths)
            lengths.append(high // low)
    chosen: list[int] = []
    for name, pre, size in refs:
        low, high = (int(pre), int(pre) * int(size)) if pre else (1, sizes.get(name, 0))
        parts = sorted(i for (n, edge), i in at.items() if n == name and low <= edge < high)
        chosen.extend(parts)
    rest = [i for i in range(len(lengths)) if i not in chosen]
    across = math.prod(lengths[i] for i in chosen)
    return _rows(ids.reshape(lengths).transpose(rest + chosen).reshape(-1, across))
