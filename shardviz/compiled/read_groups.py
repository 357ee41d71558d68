"""Reads the replica groups of collectives from a compiled module.

XLA writes the groups in one of four ways (`xla_data.proto`). All use flat positions in
the device assignment, which is the mesh in row-major order:

    replica_groups                 every group; empty means one group of all devices
    collective_device_list         the same list, in a separate message
    iota_collective_device_list    an iota, reshaped, transposed and split into groups
    mesh_axes_replica_group_list   mesh axes, or parts of mesh axes

For a program on several TPU slices, XLA compiles a module for one slice. Its groups
number the devices of that slice in mesh order (see `Slices`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardviz.base.collective_kind import KINDS
from shardviz.base.replica_groups import Groups, Replicas, replicas_of
from shardviz.compiled.module import INSTRUCTION, Instruction, Module
from shardviz.compiled.wire import Message
from shardviz.hardware.topology import FIRST_ID


class GroupReader:
    """Reads the groups of collectives, and parses equal groups only once.

    Args:
        names, sizes: the mesh axes.
        slices: the slices, if the module is compiled for one of them.
    """

    def __init__(
        self, names: Sequence[str], sizes: Sequence[int], slices: Slices | None = None
    ) -> None:
        self._names, self._sizes, self._slices = names, sizes, slices
        self._parsed: dict[tuple[bytes | bool, ...], Replicas] = {}

    def of(self, collective: Instruction) -> Replicas:
        """Returns the groups of a collective."""
        attributes = collective.attributes
        paired = KINDS[collective.kind].pairs
        key: tuple[bytes | bool, ...] = (paired,)
        # Empty bytes separate the contents of different fields.
        for field in _GROUP_FIELDS:
            key += (b"", *attributes.each(field))
        if key not in self._parsed:
            if paired:
                groups = pairs_of(collective)
            else:
                devices = math.prod(self._sizes)
                if self._slices is not None:
                    devices = self._slices.size
                groups = groups_of(attributes, devices)
            if self._slices is not None:
                groups = self._slices.spread(groups)
            self._parsed[key] = replicas_of(groups, paired, self._names, self._sizes)
        return self._parsed[key]


_GROUP_FIELDS = (
    INSTRUCTION["replica_groups"],
    INSTRUCTION["source_target_pairs"],
    INSTRUCTION["device_list"],
    INSTRUCTION["iota_device_list"],
    INSTRUCTION["mesh_axes_device_list"],
)


def pairs_of(permutation: Instruction) -> Groups:
    """Returns the sender and receiver of each transfer in a permutation."""
    pairs = permutation.attributes.messages(INSTRUCTION["source_target_pairs"])
    return tuple((pair.number(1), pair.number(2)) for pair in pairs)


def groups_of(attributes: Message, devices: int) -> Groups:
    """Returns the groups of a collective.

    Args:
        attributes: the instruction's message.
        devices: number of devices that the module is compiled for.
    """
    iota = INSTRUCTION["iota_device_list"]
    if iota in attributes:
        return _iota_groups(attributes.message(iota))
    mesh = INSTRUCTION["mesh_axes_device_list"]
    if mesh in attributes:
        return _mesh_groups(attributes.message(mesh))
    listed = attributes.message(INSTRUCTION["device_list"])
    groups = attributes.messages(INSTRUCTION["replica_groups"]) or listed.messages(1)
    if groups:
        return tuple(tuple(group.numbers(1)) for group in groups)
    return (tuple(range(devices)),)


def _iota_groups(message: Message) -> Groups:
    """Reads groups that are written as an iota.

    The message has the fields `num_replica_groups`, `num_devices_per_group`,
    `reshape_dims` and `transpose_perm`.
    """
    shape = message.number(1), message.number(2)
    dims, order = message.numbers(3), message.numbers(4)
    ids = np.arange(math.prod(shape)).reshape(dims).transpose(order)
    return _rows(ids.reshape(shape))


def _mesh_groups(message: Message) -> Groups:
    """Reads groups over `axes` of a `mesh`, or over parts of these axes."""
    mesh = message.message(1)
    sizes = [axis.number(2) for axis in mesh.messages(1)]
    # A sub-axis is a factor of its axis: `size` devices, after a major factor of
    # `pre_size`. Several sub-axes of one axis split it at all their borders.
    references: list[tuple[int, int, int]] = []
    for reference in message.messages(2):
        axis = reference.number(1)
        first, last = 1, sizes[axis]
        if 2 in reference:
            part = reference.message(2)
            first = part.number(1)
            last = first * part.number(2)
        references.append((axis, first, last))
    lengths: list[int] = []
    position: dict[tuple[int, int], int] = {}
    for axis, size in enumerate(sizes):
        edges = {1, size}
        for used_axis, first, last in references:
            if used_axis == axis:
                edges |= {first, last}
        borders = sorted(edges)
        for low, high in itertools.pairwise(borders):
            position[axis, low] = len(lengths)
            lengths.append(high // low)
    inside: list[int] = []
    for axis, first, last in references:
        for split_axis, low in sorted(position):
            if split_axis == axis and first <= low < last:
                inside.append(position[split_axis, low])
    outside = [i for i in range(len(lengths)) if i not in inside]
    across = math.prod(lengths[i] for i in inside)
    # With the used factors as the last dimensions, each row is one group.
    ids = _mesh_devices(mesh, math.prod(sizes))
    return _rows(ids.reshape(lengths).transpose(outside + inside).reshape(-1, across))


def _mesh_devices(mesh: Message, total: int) -> np.ndarray:
    # JAX 0.10 lists the devices; later versions reshape and transpose an iota.
    ids = np.arange(total)
    if 2 in mesh:
        ids = np.array(mesh.numbers(2))
    for iota in mesh.messages(3):
        ids = ids.reshape(iota.numbers(1)).transpose(iota.numbers(2)).reshape(-1)
    return ids


def _rows(array: np.ndarray) -> Groups:
    return tuple(map(tuple, array.tolist()))


@dataclass(frozen=True, eq=False)
class Slices:
    """The devices of each TPU slice in a mesh.

    Attributes:
        positions: flat mesh position of each device, int64 `[slices, devices]`.
        position_of: device id -> flat mesh position.
    """

    positions: np.ndarray
    position_of: dict[int, int]

    @property
    def size(self) -> int:
        """Number of devices per slice."""
        return self.positions.shape[1]

    def spread(self, groups: Groups, only: int | None = None) -> Groups:
        """Converts groups within a slice to groups of mesh positions, slice by slice.

        Args:
            groups: groups or pairs of devices, numbered within their slice.
            only: number of the only slice that has these groups; None if all slices
                have them.

        >>> slices = Slices(np.array([[0, 1], [2, 3]]), {})
        >>> slices.spread(((0, 1),))
        ((0, 1), (2, 3))
        """
        spread: list[tuple[int, ...]] = []
        rows = self.positions
        if only is not None:
            rows = rows[only : only + 1]
        for positions in rows:
            for group in groups:
                if max(group, default=0) >= self.size:
                    return ()
                spread.append(tuple(positions[list(group)].tolist()))
        return tuple(spread)

    def crossing(self, target: str) -> Groups:
        """Parses the device groups or pairs of a send between slices.

        XLA uses one of three notations:

            {1,2}x{0:3}                      slices 1 and 2, devices 0 to 3 of each
            {{100000,200003},{100001,…}}     groups of device ids
            {{100000->200000},{…}}           pairs of device ids

        Returns:
            Groups of mesh positions; `()` if a named device is not in the mesh.
        """
        slices, product, devices = target.partition("}x{")
        groups: list[list[int]] = []
        if product:
            numbers = _with_ranges(slices.strip("{"))
            for device in _with_ranges(devices.strip("}")):
                groups.append([FIRST_ID * number + device for number in numbers])
        else:
            for part in target.replace("->", ",").strip("{}").split("},{"):
                groups.append(_with_ranges(part))
        crossing: list[tuple[int, ...]] = []
        for group in groups:
            if not self.position_of.keys() >= set(group):
                return ()
            crossing.append(tuple(self.position_of[device] for device in group))
        return tuple(crossing)


def slices_of(module: Module, device_ids: Sequence[int]) -> Slices | None:
    """Returns the slices of a module's mesh; None if it is compiled for all devices.

    Args:
        module: the module.
        device_ids: device ids in mesh order.
    """
    size = module.partitions
    ids = np.asarray(device_ids, np.int64)
    if not 0 < size < len(ids):
        return None
    # libtpu numbers the devices of slice n from n * FIRST_ID.
    number = ids // FIRST_ID
    slices = [np.flatnonzero(number == n) for n in np.unique(number)]
    # The ids don't follow this numbering, or the mesh has only part of a slice.
    if {*map(len, slices)} != {size}:
        return None
    position_of = dict(zip(ids.tolist(), range(len(ids)), strict=True))
    return Slices(np.stack(slices), position_of)


def _with_ranges(text: str) -> list[int]:
    """Parses a list such as `1,2` or `0:3`; a range includes its last number."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition(":")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
