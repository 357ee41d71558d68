"""Replica groups of a compiled collective: their notations, and the mesh axes they run over.

XLA writes the groups of a collective in four ways, all of them flat positions in the device
assignment, which is the mesh in row-major order:

    {{0,1},{2,3}}                        every group
    {}                                   one group of all
    [2,4]<=[4,2]T(1,0)                   an iota of 8, reshaped to 4 x 2, transposed, split 2 x 4
    mesh['a'=4,'b'=2] {'b'}              axes of a mesh, perhaps with device ids and sub-axes

The notations are those of `xla/hlo/ir/replica_group.cc` and `mesh_and_axis.cc`.

Between several slices of TPUs the text is the same for each slice: the groups count the devices of
one, in the order of the mesh. What crosses slices is left to the hosts, as a `send` and a `recv`
that name slices and devices in one of three ways:

    "{1,2}x{0:3}"                    slices 1 and 2, and each device from the first to the last
    {{100000,200003},{100001,…}}     groups of device ids
    {{100000->200000},{…}}           pairs of device ids

What a permutation moves inside slices differs from slice to slice: it is in the branches of a
conditional, one per slice.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shardviz.core.hardware.topology import FIRST_ID
from shardviz.core.hlo.module import HEAD, Module

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


_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_MEGASCALE = "_xla_megascale_transfer_type="
_RECEIVE = re.compile(r" recv\(")
_TYPE = re.compile(_MEGASCALE + r'"(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_TARGET = re.compile(r'_xla_megascale_target=(?:"([^"]*)"|(\{\{.*?\}\}))')
_PRODUCT = re.compile(r"\{([\d,:]+)\}x\{([\d,:]+)\}")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_KINDS = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}


class Crossing(NamedTuple):
    """A collective between slices, as the text gives it.

    Attributes:
        kind: as a collective is called.
        name: of the `recv`.
        shape: of what is received, as XLA writes it.
        target: the participating devices, written in one of the three ways.
        start: the position of the line of the `recv`.
        sends: the position of the line of its `send`.
    """

    kind: str
    name: str
    shape: str
    target: str
    start: int
    sends: int


@dataclass(frozen=True, eq=False)
class Slices:
    """Which devices of a mesh are in which slice.

    Attributes:
        positions: int64 `[slices, devices]`: the flat mesh positions of each slice, in order.
        position_of: device id to flat mesh position.
    """

    positions: np.ndarray
    position_of: dict[int, int]

    @property
    def size(self) -> int:
        """How many devices a slice has."""
        return self.positions.shape[1]

    def spread(self, groups: Groups, only: int | None = None) -> Groups:
        """Groups in one slice as groups of the mesh, slice by slice.

        Args:
            groups: groups or pairs of devices, counted in their slice.
            only: the number of the one slice that has them; None where all do.

        >>> slices_of("HloModule f, num_partitions=2", (100000, 100001, 200000, 200001)).spread(
        ...     ((0, 1),))
        ((0, 1), (2, 3))
        """
        if any(not 0 <= i < self.size for group in groups for i in group):
            return ()
        rows = [np.array(group, np.int64) for group in groups]
        chosen = self.positions if only is None else self.positions[only : only + 1]
        return tuple(tuple(own[r].tolist()) for own in chosen for r in rows)

    def crossing(self, target: str) -> Groups:
        """The groups, or pairs, of mesh positions that a crossing names; `()` if unreadable."""
        product = _PRODUCT.fullmatch(target)
        if product is not None:
            slices, devices = _with_ranges(product[1]), _with_ranges(product[2])
            ids = [[FIRST_ID * number + device for number in slices] for device in devices]
        else:
            parts = target.replace("->", ",").strip("{}").split("},{")
            ids = [_with_ranges(part) for part in parts]
        if any(i not in self.position_of for group in ids for i in group):
            return ()
        return tuple(tuple(self.position_of[i] for i in group) for group in ids)


def slices_of(text: str, device_ids: Sequence[int]) -> Slices | None:
    """The slices of a module's mesh; None where the text is that of all devices.

    Args:
        text: the module's text.
        device_ids: the devices of the mesh, in its order.

    >>> slices_of("HloModule f, num_partitions=4", (0, 1, 2, 3)) is None
    True
    """
    end = text.find("\n")
    head = _PARTITIONS.search(text, 0, end if end >= 0 else len(text))
    size = int(head[1]) if head else 1
    ids = np.asarray(device_ids, np.int64)
    if size >= len(ids):
        return None
    number = ids // FIRST_ID
    found = [np.flatnonzero(number == n) for n in np.unique(number)]
    if {len(f) for f in found} != {size}:
        return None
    return Slices(np.stack(found), {int(i): at for at, i in enumerate(ids)})


def branch_of(module: Module, computation: str) -> tuple[int, int] | None:
    """The conditional that runs a computation in one slice only, and the number of that slice.

    None for any other computation.
    """
    if not computation.startswith("localizer"):
        return None
    for call in module.calls.get(computation, []):
        branches = _BRANCHES.search(module.line_at(call.start))
        names = [n.strip().lstrip("%") for n in branches[1].split(",")] if branches else []
        if computation in names:
            return call.start, names.index(computation)
    return None


def find_crossings(text: str) -> list[Crossing]:
    """Every collective between slices in a module, in the order of the text.

    >>> line = (' %r = (f32[8]{0}, u32[], token[]) recv(%t), frontend_attributes={'
    ...         '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}')
    >>> find_crossings(line)[0][:4]
    ('all-reduce', 'r', 'f32[8]{0}', '{1,2}x{0:3}')
    """
    if _MEGASCALE not in text:
        return []
    found = []
    for match in _RECEIVE.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)]
        head, kind = HEAD.match(line), _TYPE.search(line)
        if head is None or kind is None or kind[1] not in _KINDS:
            continue
        target = _TARGET.search(line)
        devices = (target[1] or target[2]) if target else ""
        shape = line[head.end() : match.start() - start]
        shape = shape.strip().removeprefix("(").partition(", u32[]")[0]
        found.append(
            Crossing(_KINDS[kind[1]], head[2], shape, devices, start, _sends(text, line, start))
        )
    return found


def _sends(text: str, line: str, start: int) -> int:
    """The position of the `send` of a `recv`: the one with the same rendezvous name."""
    rendezvous = _RENDEZVOUS.search(line)
    if rendezvous is None:
        return start
    for match in re.finditer(re.escape(rendezvous[0]), text):
        begin = text.rfind("\n", 0, match.start()) + 1
        if " send(" in text[begin : match.start()]:
            return begin
    return start


def _with_ranges(text: str) -> list[int]:
    """The numbers of a list such as `1,2` or `0:3`, where the last of a range counts."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition(":")
        found += range(int(first), int(last or first) + 1)
    return found
