"""Bytes per device for groups of arrays: parameters, optimizer state, all."""

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
        arrays: number of arrays.
        bytes: total size of the arrays, each counted once.
        bytes_per_device: bytes on the device that holds the most bytes of the group.
        copies: how many devices hold each byte, on average.
        waste: bytes that replication costs on each device: for an array with r
            replicas, its shard's bytes times 1 - 1/r.
        uncounted: number of arrays whose bytes per device are unknown.

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
    """Arrays that a mesh axis does not split, so that devices along it hold copies.

    Attributes:
        axis: the mesh axis.
        copies: the size of the axis, which is the number of copies along it.
        rows: the arrays, largest shards first.
        bytes_per_device: bytes that each device would save if the axis also split these
            arrays.

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
    """Finds the arrays that each mesh axis of size 2 or more does not split."""
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
    """Returns the bytes per device saved if `copies` devices split the shard."""
    size = row.bytes_per_device or 0
    return size - size // copies


def group_bytes(name: str, rows: Sequence[Request]) -> GroupBytes:
    """Sums the bytes of a group's rows."""
    stored = counted_once = waste = size = without_layout = 0
    for row in rows:
        size += row.array.bytes
        if row.layout is None:
            without_layout += 1
            continue
        shard_bytes = row.layout.bytes_per_device
        stored += shard_bytes * len(row.layout.device_ids)
        counted_once += row.array.bytes
        # Replicas in host memory don't use device memory.
        if row.spec is not None and row.array.memory_kind is None:
            waste += shard_bytes - shard_bytes // row.layout.replicas
    copies = stored / counted_once if counted_once else 0.0
    fullest = on_fullest_device(rows)
    return GroupBytes(name, len(rows), size, fullest, copies, waste, without_layout)


def on_fullest_device(rows: Iterable[Request]) -> int:
    """Returns the bytes of these arrays on the device that holds the most of them.

    Arrays in host memory are not counted.
    """
    kinds = tuple(kinds_of(rows))
    on_mesh = 0
    for row, times in kinds:
        if row.layout and row.spec is not None and row.array.memory_kind is None:
            on_mesh += row.layout.bytes_per_device * times
    return on_mesh + max(off_mesh_bytes(kinds).values(), default=0)


def off_mesh_bytes(kinds: Iterable[tuple[Request, int]]) -> Counter[int]:
    """Returns the bytes of live arrays without a spec for the mesh, by device id.

    These arrays may be on only some devices. Arrays in host memory are not counted.

    Args:
        kinds: (row, number of arrays like this row) pairs.
    """
    sizes: Counter[int] = Counter()
    for row, times in kinds:
        if row.layout and row.spec is None and row.array.memory_kind is None:
            size = row.layout.bytes_per_device * times
            sizes.update(dict.fromkeys(row.layout.device_ids.tolist(), size))
    return sizes


def uncounted(kinds: Iterable[tuple[Request, int]]) -> Uncounted:
    """Counts the arrays without a layout.

    Args:
        kinds: (row, number of arrays like this row) pairs.

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
