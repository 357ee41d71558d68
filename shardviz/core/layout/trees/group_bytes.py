"""What groups of arrays take on each device: parameters, optimizer state, all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardviz.core.display import Fact
from shardviz.core.layout.fit import Uncounted
from shardviz.core.layout.rules.requests import Request, kinds_of


@dataclass(frozen=True)
class GroupBytes(Fact):
    """What one group of arrays takes: the parameters, the optimizer state, and so on.

    Attributes:
        name: `"parameters"`, `"gradients"`, `"optimizer state"`, `"other"` or
            `"total"`.
        arrays: how many arrays there are.
        bytes: what they take together, each counted once.
        bytes_per_device: what they take on the device that holds most of them.
        copies: how many devices hold each byte, on average.
        waste: what replication costs on each device, in bytes: what is held there
            beyond an equal part of every array.
        uncounted: how many arrays nobody knows the bytes per device of.

    >>> from shardviz.core.layout.trees.audit import audit
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


def group_bytes(name: str, rows: Sequence[Request]) -> GroupBytes:
    """What some rows take."""
    held = once = waste = size = left = 0
    for row in rows:
        size += row.array.bytes
        if row.layout is None:
            left += 1
            continue
        each = row.layout.bytes_per_device
        held += each * len(row.layout.device_ids)
        once += row.array.bytes
        # Replication in the memory of the host costs nothing on the devices.
        if row.spec is not None and row.array.memory_kind is None:
            waste += each - each // row.layout.replicas
    copies = held / once if once else 0.0
    most = on_fullest_device(rows)
    return GroupBytes(name, len(rows), size, most, copies, waste, left)


def on_fullest_device(rows: Iterable[Request]) -> int:
    """What rows take on the device that holds most of them, in bytes.

    Arrays in another memory, that of the host, take nothing there.
    """
    alone: Counter[int] = Counter()
    split = 0
    for row, times in kinds_of(rows):
        if row.layout is None or row.array.memory_kind is not None:
            continue
        size = row.layout.bytes_per_device * times
        if row.spec is not None:
            split += size
        else:
            # A live array outside of the mesh is on some of the devices only.
            alone.update(dict.fromkeys(row.layout.device_ids, size))
    return split + max(alone.values(), default=0)


def uncounted(kinds: Iterable[tuple[Request, int]]) -> Uncounted:
    """The arrays without a layout, of rows that each come with the number like it.

    >>> from shardviz.core.layout.trees.audit import audit
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
