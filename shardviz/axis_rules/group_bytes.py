"""Bytes per device of groups of arrays: parameters, optimizer state, all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardviz.axis_rules.fit import Uncounted
from shardviz.axis_rules.requests import Request, kinds_of
from shardviz.base.display import Fact
from shardviz.base.mesh import MeshSpec


@dataclass(frozen=True)
class GroupBytes(Fact):
    """The bytes of one group of arrays: the parameters, the optimizer state, and so on.

    Attributes:
        name: `"parameters"`, `"gradients"`, `"optimizer state"`, `"other"` or
            `"total"`.
        arrays: the number of arrays.
        bytes: their total size, each counted once.
        bytes_per_device: their bytes on the device that holds most of them.
        copies: how many devices hold each byte, on average.
        waste: the bytes that replication costs on each device: those beyond an equal
            part of every array.
        uncounted: the number of arrays whose bytes per device are unknown.

    >>> from shardviz.axis_rules.audit import audit
    >>> one, = audit([("w", (8, 4), None)], [], "data=4").groups
    >>> one.bytes_per_device, one.copies, one.waste
    (128, 4.0, 96)
    """

    name: str
    arrays: int
    bytes: int
    bytes_per_device: int
    copies: float
    waste: int
    uncounted: int = 0


@dataclass(frozen=True)
class AxisCopies(Fact):
    """The arrays that one mesh axis does not split, so that its devices hold copies.

    Attributes:
        axis: the mesh axis.
        copies: how many devices along it hold the same bytes: its size.
        rows: the arrays, the most expensive first.
        bytes_per_device: how many bytes each device would save if the axis split them,
            too.

    >>> from shardviz.axis_rules.audit import audit
    >>> one, = audit([("w", (8, 4), None)], [], "data=4").copies_by_axis
    >>> one.axis, one.copies, one.bytes_per_device
    ('data', 4, 96)
    """

    axis: str
    copies: int
    rows: tuple[Request, ...]
    bytes_per_device: int


def copies_by_axis(rows: Iterable[Request], mesh: MeshSpec) -> tuple[AxisCopies, ...]:
    """The arrays that each axis of more than one device does not split."""
    unsplit: dict[str, list[Request]] = {}
    for row in rows:
        # A scalar cannot be split, and copies on the host do not use device memory.
        if row.layout is None or row.spec is None or not row.array.rank:
            continue
        if row.array.memory_kind is None and row.array.bytes:
            for axis in set(mesh.axis_names) - {*row.spec.axes, *row.spec.unreduced}:
                unsplit.setdefault(axis, []).append(row)
    copies = []
    for axis, size in mesh.shape.items():
        members = unsplit.get(axis, [])
        if size > 1 and members:
            members.sort(key=lambda row: -(row.bytes_per_device or 0))
            cost = sum(copy_cost(row, size) for row in members)
            copies.append(AxisCopies(axis, size, tuple(members), cost))
    copies.sort(key=lambda fact: -fact.bytes_per_device)
    return tuple(copies)


def copy_cost(row: Request, copies: int) -> int:
    """The bytes of an array on each device beyond its part of `copies`."""
    size = row.bytes_per_device or 0
    return size - size // copies


def group_bytes(name: str, rows: Sequence[Request]) -> GroupBytes:
    """The bytes of these rows, under the name of a group."""
    stored = counted_once = waste = size = without_layout = 0
    for row in rows:
        size += row.array.bytes
        if row.layout is None:
            without_layout += 1
            continue
        shard_bytes = row.layout.bytes_per_device
        stored += shard_bytes * len(row.layout.device_ids)
        counted_once += row.array.bytes
        # Replication in the memory of the host does not use device memory.
        if row.spec is not None and row.array.memory_kind is None:
            waste += shard_bytes - shard_bytes // row.layout.replicas
    copies = stored / counted_once if counted_once else 0.0
    fullest = on_fullest_device(rows)
    return GroupBytes(name, len(rows), size, fullest, copies, waste, without_layout)


def on_fullest_device(rows: Iterable[Request]) -> int:
    """The bytes of these rows on the device that holds most of them.

    Arrays in the memory of the host do not count.
    """
    off_mesh: Counter[int] = Counter()
    on_mesh = 0
    for row, times in kinds_of(rows):
        if row.layout is None or row.array.memory_kind is not None:
            continue
        size = row.layout.bytes_per_device * times
        if row.spec is not None:
            on_mesh += size
        else:
            # A live array that is not on the mesh is on a few of the devices only.
            off_mesh.update(dict.fromkeys(row.layout.device_ids, size))
    return on_mesh + max(off_mesh.values(), default=0)


def uncounted(kinds: Iterable[tuple[Request, int]]) -> Uncounted:
    """The arrays without a layout.

    Args:
        kinds: rows, each with the number of arrays like it.

    >>> from shardviz.axis_rules.audit import audit
    >>> rows = audit([("w", (512, 8), "embed mlp")], [("embed", "nowhere")], "data=4").rows
    >>> uncounted(kinds_of(rows))
    Uncounted(arrays=1, bytes=16384)
    """
    arrays = size = 0
    for row, times in kinds:
        if row.layout is None:
            arrays += times
            size += row.array.bytes * times
    return Uncounted(arrays, size)
