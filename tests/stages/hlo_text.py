"""Collectives as XLA prints them: the package reads them from serialized modules.

Line by line, with patterns of what XLA prints; `replica_group.cc` and `mesh_and_axis.cc` say how.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_COLLECTIVE = re.compile(
    r"^ *(?:ROOT )?%(\S+) = (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all|"
    r"ragged-all-to-all|collective-permute|collective-broadcast)(?:-start)?\("
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) .*\{$")
_CALLED = re.compile(r"=%([\w.\-]+)|[{ ]%([\w.\-]+)(?=[,}])")
_ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(\{\{.*?\}\}|\{\}|\[\S*|mesh\[.*?\] ?(?:.*?\) )?\{.*?\})")
_PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\}|\{\})")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_USED = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")


class Printed(NamedTuple):
    """One collective: its name, kind, axes, bytes, whether it is in a loop, and its groups."""

    name: str
    kind: str
    axes: tuple[str, ...]
    bytes: int
    in_loop: bool
    groups: Groups


def collectives(text: str, axes: Sequence[str], sizes: Sequence[int]) -> list[Printed]:
    """Every collective of a module; sorted by name."""
    found, inside = [], in_loops(text)
    computation = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            computation = head[1]
        match = _COLLECTIVE.match(line)
        if match is None:
            continue
        name, shape, kind = match.groups()
        size = sum(map(_bytes, _ARRAY.findall(shape)))
        if kind == "collective-permute":
            groups = _listed(_PAIRS.search(line)[1])
            along = axes_of_moves(groups, axes, sizes)
        else:
            groups = groups_of(_GROUPS.search(line)[1], math.prod(sizes))
            along = axes_by_search(groups, axes, sizes)
        if kind == "reduce-scatter":
            size *= len(groups[0])  # the operand's
        found.append(Printed(name, kind, along, size, computation in inside, groups))
    return sorted(found)


def _bytes(array: tuple[str, str, str]) -> int:
    _, bits, dims = array
    width = int(bits or 8) // 8  # of `pred` no bits are written
    return math.prod(int(d) for d in dims.split(",") if d) * width


def in_loops(text: str) -> set[str]:
    """The computations that run inside a while loop."""
    calls: dict[str, set[str]] = {}
    todo: list[str] = []
    computation = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            computation = head[1]
        called = {a or b for a, b in _CALLED.findall(line.partition(", metadata=")[0])}
        calls.setdefault(computation, set()).update(called)
        if " while(" in line:
            todo += re.findall(r"(?:body|condition)=%([\w.\-]+)", line)
    reached: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [c for c in calls.get(name, ()) if c in calls]
    return reached


def groups_of(text: str, devices: int) -> Groups:
    """Replica groups, written out."""
    if text == "{}":
        return (tuple(range(devices)),)
    if text.startswith("{"):
        return _listed(text)
    if text.startswith("["):
        match = _IOTA.match(text)
        shape = _numbers(match[1])
        return _rows(_iota(match).reshape(shape))
    mesh, _, rest = text.partition("]")
    sizes = {name: int(size) for name, size in _AXIS.findall(mesh)}
    order = _IOTA.search(rest)
    ids = np.arange(devices) if order is None else _iota(order).reshape(-1)
    if listed := re.search(r"device_ids=\(([\d,]+)\)", rest):
        ids = np.array(_numbers(listed[1]))
    used = _USED.findall(rest[rest.rindex("{") :])
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for device, position in zip(ids, product(*map(range, sizes.values())), strict=True):
        at = dict(zip(sizes, position, strict=True))
        inside, rests = [], dict(at)
        for name, before, size in used:
            # The part of an axis after the first `before`: one digit of the coordinate.
            least = sizes[name] // (int(before) * int(size)) if before else 1
            digit = at[name] // least % (int(size) if before else sizes[name])
            inside.append(digit)
            rests[name] -= digit * least
        groups.setdefault(tuple(rests.values()), []).append((tuple(inside), int(device)))
    return tuple(tuple(device for _, device in sorted(group)) for group in groups.values())


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def _listed(text: str) -> Groups:
    return tuple(tuple(_numbers(part)) for part in text.strip("{}").split("},{") if part)


def _iota(match: re.Match[str]) -> np.ndarray:
    dims = _numbers(match[2] or match[1])
    order = _numbers(match[3]) if match[3] else range(len(dims))
    return np.arange(math.prod(dims)).reshape(dims).transpose(order)


def _rows(array: np.ndarray) -> Groups:
    return tuple(tuple(row) for row in array.tolist())


def axes_by_search(
    groups: Sequence[Sequence[int]], axes: Sequence[str], sizes: Sequence[int]
) -> tuple[str, ...]:
    """The axes along which every group is a block, part of an axis or all of it; `()` if none is.

    By sets and without arithmetic: a block is all combinations of the coordinates that it has.
    """
    coordinates = list(product(*(range(s) for s in sizes)))
    members = [device for group in groups for device in group]
    if sorted(members) != list(range(len(coordinates))):
        return ()
    extents = set()
    for group in groups:
        block = {coordinates[device] for device in group}
        along = [{position[i] for position in block} for i in range(len(sizes))]
        if block != set(product(*along)):
            return ()
        extents.add(tuple(len(a) for a in along))
    if len(extents) != 1:
        return ()
    return tuple(name for name, n in zip(axes, extents.pop(), strict=True) if n > 1)


def axes_of_moves(
    pairs: Sequence[tuple[int, ...]], axes: Sequence[str], sizes: Sequence[int]
) -> tuple[str, ...]:
    """The axes along which any device sends to another position."""
    coordinates = list(product(*(range(s) for s in sizes)))
    return tuple(
        name
        for i, name in enumerate(axes)
        if any(coordinates[a][i] != coordinates[b][i] for a, b in pairs)
    )
