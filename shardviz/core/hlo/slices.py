"""Collectives between several slices of TPUs, in a compiled text that is the same for each slice.

The groups in such a text count the devices of one slice, in the order of the mesh. What crosses
slices is left to the hosts, as a `send` and a `recv` that name slices and devices in one of three
ways:

    "{1,2}x{0:3}"                    slices 1 and 2, and each device from the first to the last
    {{100000,200003},{100001,…}}     groups of device ids
    {{100000->200000},{…}}           pairs of device ids

What a permutation moves inside slices differs from slice to slice: it is in the branches of a
conditional, one per slice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardviz.core.hardware.topology import FIRST_ID
from shardviz.core.hlo.module import HEAD, Module
from shardviz.core.hlo.replica_groups import Groups

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
            slices, devices = _numbers(product[1]), _numbers(product[2])
            ids = [[FIRST_ID * number + device for number in slices] for device in devices]
        else:
            parts = target.replace("->", ",").strip("{}").split("},{")
            ids = [_numbers(part) for part in parts]
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


def _numbers(text: str) -> list[int]:
    """The numbers of a list such as `1,2` or `0:3`, where the last of a range counts."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition(":")
        found += range(int(first), int(last or first) + 1)
    return found
