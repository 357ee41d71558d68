"""reshard_layouts() -> Reshard: the bytes sent between devices when arrays move.

A device keeps the chunks of its new shard that it already has. Each other chunk comes
from the nearest device that has it: one on the same host if possible. Among devices
that are equally near, the sends are distributed evenly. The bytes that a device
receives depend only on the layouts; the bytes that it sends also depend on this choice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from shardviz.base.array_spec import ArraySpec, size_in_bytes
from shardviz.base.display import Displayed, Fact
from shardviz.base.errors import LayoutError
from shardviz.base.format import plural
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec

# The most devices in a matrix of moves.
MOST_DENSE = 4096
# The most chunks of one array, and the most chunks sent of one array.
MOST_SENT = 1 << 22
# Arrays with their layouts before and after.
_Arrays = list[tuple[ArraySpec, Layout, Layout]]


class ReshardRow(NamedTuple):
    """An array of a reshard, and the bytes moved.

    Attributes:
        path: the array's path in the tree.
        array: the array's shape and dtype.
        before, after: the array's old and new layouts.
        bytes_moved: the total bytes of the array that devices receive.
        kind: the collective with the same sends: `"all-gather"`, `"all-to-all"` or
            `"collective-permute"`; `"copy"` if the set of devices changes; `""` if
            nothing is sent. A compiler may use other collectives.

    >>> [field for field in ReshardRow._fields if "bytes" in field]
    ['bytes_moved']
    """

    path: str
    array: ArraySpec
    before: Layout
    after: Layout
    bytes_moved: int
    kind: str


@dataclass(frozen=True, eq=False, repr=False)
class Reshard(Displayed, Fact):
    """The bytes sent between devices when the layouts of arrays change.

    Created by `shardviz.reshard`.

    Attributes:
        rows: one row per counted array, most bytes moved first.
        left_behind: path -> reason, for arrays that are not counted because a layout
            is unknown, does not fit the array, or is not in the devices' default
            memory. All other attributes exclude these arrays.
        device_ids: int64 [devices]: the ids of all old and new devices, ascending.
        hosts: int64 [devices]: the process of each device.
        sends: int64 [pairs, 3]: sender and receiver (as positions in `device_ids`), and
            bytes.
        bytes_before, bytes_after: int64 [devices]: total array bytes on each device.
        peak_bytes_per_device: the bytes on the fullest device while old and new arrays
            are both in memory. Arrays that keep their layout count once, because
            `jax.device_put` does not copy them.
        peak_bytes_donated: the peak bytes if arrays are donated and moved one at a
            time, in the order of the tree.
        link_seconds: kind of link -> least seconds at its published rate, or None if
            the rate is not published. Empty without a topology.
        rate_source: the source of the link rates; `""` without a topology.
        assumed_hosts: ids of devices that no mesh assigns to a process, ascending.
            These devices count as devices of host 0.
        unused_before, unused_after: paths in `from_` and `to` that match no array.

    >>> import shardviz as sv
    >>> from shardviz.move.reshard import reshard_layouts
    >>> from shardviz.base.partition_spec import Spec
    >>> rows, columns = (sv.layout((4, 4), Spec.parse(s), sv.mesh(x=2)) for s in ("x", "None, x"))
    >>> moved = reshard_layouts([sv.ArraySpec("w", (4, 4))], [rows], [columns])
    >>> moved.bytes_moved, moved.rows[0].kind, moved.moves.tolist()
    (32, 'all-to-all', [[0, 16], [16, 0]])
    """

    _adds = ("bytes_within_hosts", "bytes_between_hosts", "seconds")

    rows: tuple[ReshardRow, ...]
    left_behind: Mapping[str, str]
    device_ids: np.ndarray
    hosts: np.ndarray
    sends: np.ndarray
    bytes_before: np.ndarray
    bytes_after: np.ndarray
    peak_bytes_per_device: int
    peak_bytes_donated: int
    link_seconds: Mapping[str, float | None] = field(default_factory=dict)
    rate_source: str = ""
    assumed_hosts: tuple[int, ...] = ()
    unused_before: tuple[str, ...] = ()
    unused_after: tuple[str, ...] = ()

    @cached_property
    def moves(self) -> np.ndarray:
        """The bytes from each device (row) to each device (column).

        An int64 [devices, devices] matrix in the order of `device_ids`.

        Raises:
            LayoutError: for more than MOST_DENSE devices.
        """
        count = len(self.device_ids)
        if count > MOST_DENSE:
            raise LayoutError(
                f"A matrix of {count:,} × {plural(count, 'device')} is too large; the"
                f" limit is {MOST_DENSE:,}. Use .sends, which lists the pairs that"
                " send."
            )
        source, target, amount = self.sends.T
        flat = _summed_at(source * count + target, amount, count * count)
        return flat.reshape(count, count)

    @property
    def bytes_moved(self) -> int:
        """The total bytes that devices send."""
        return int(self.sends[:, 2].sum())

    @property
    def bytes_within_hosts(self) -> int:
        """The bytes sent between devices of the same host."""
        return self.bytes_moved - self.bytes_between_hosts

    @cached_property
    def bytes_between_hosts(self) -> int:
        """The bytes sent from one host to another."""
        source, target, amount = self.sends.T
        return int(amount[self.hosts[source] != self.hosts[target]].sum())

    @property
    def seconds(self) -> float | None:
        """The least time for all sends; None if a rate is unknown."""
        slowest = None
        for seconds in self.link_seconds.values():
            if seconds is None:
                return None
            # Links of different kinds work in parallel.
            slowest = max(slowest or 0.0, seconds)
        return slowest

    def __repr__(self) -> str:
        return f"Reshard({self})"


def _summed_at(at: np.ndarray, amount: np.ndarray, count: int) -> np.ndarray:
    """Sums the amounts at each position: int64 [count]."""
    total = np.zeros(count, np.int64)
    np.add.at(total, at, amount)
    return total


class _Exchange(NamedTuple):
    """The sends for one array.

    Attributes:
        source, target: int64 [sends]: sender and receiver, as positions in the device
            ids.
        size: int64 [sends]: bytes of each send.
        kind: as in `ReshardRow.kind`.
        unchanged: whether every device keeps its block.
    """

    source: np.ndarray
    target: np.ndarray
    size: np.ndarray
    kind: str
    unchanged: bool


def _exchange(
    before: Layout, after: Layout, ids: np.ndarray, hosts: np.ndarray
) -> _Exchange:
    old_blocks, new_blocks = np.full((2, len(ids)), -1)
    for blocks, layout in ((old_blocks, before), (new_blocks, after)):
        blocks[np.searchsorted(ids, layout.device_ids)] = layout.groups
    shards = before.shard_shape, after.shard_shape
    if np.array_equal(old_blocks, new_blocks) and shards[0] == shards[1]:
        nothing = np.array([], np.int64)
        return _Exchange(nothing, nothing, nothing, "", True)
    bounds, chunk_old, chunk_new = _common_chunks(before.shape, *shards)
    elements = np.prod(np.diff(bounds, axis=2)[:, :, 0], axis=1, dtype=np.int64)
    source, target, chunk = _find_sends(
        old_blocks, new_blocks, chunk_old, chunk_new, hosts
    )
    sent = elements[chunk]
    kind = "all-to-all"
    if not sent.any():
        kind = ""
    elif not np.array_equal(old_blocks < 0, new_blocks < 0):
        kind = "copy"
    elif (sent == math.prod(shards[1])).all():
        # Every receiver gets its complete new shard from one device.
        kind = "collective-permute"
    elif (sent == math.prod(shards[0])).all():
        kind = "all-gather"
    # Elements smaller than a byte are packed.
    size = -(-sent * size_in_bytes(8, before.dtype) // 8)
    return _Exchange(source, target, size, kind, False)


def reshard_layouts(
    arrays: Sequence[ArraySpec],
    before: Sequence[Layout | str],
    after: Sequence[Layout | str],
    processes: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Reshard:
    """Computes the Reshard of many arrays; equal layouts are computed only once.

    Args:
        arrays: the arrays, named by their paths.
        before, after: each array's old and new layout, or the reason why it has none.
        processes: function from device ids to processes; by default, the meshes define
            the processes.
    """
    left_behind_reasons: dict[str, str] = {}
    sound: _Arrays = []
    for array, old_layout, new_layout in zip(arrays, before, after, strict=True):
        if isinstance(old_layout, Layout) and isinstance(new_layout, Layout):
            sound.append((array, old_layout, new_layout))
        else:
            problem = old_layout
            if isinstance(old_layout, Layout):
                problem = new_layout
            left_behind_reasons[array.name] = str(problem)
    meshes: dict[int, MeshSpec] = {}
    for _, old_layout, new_layout in sound:
        meshes[id(old_layout.mesh)] = old_layout.mesh
        meshes[id(new_layout.mesh)] = new_layout.mesh
    every = [mesh.device_ids.ravel() for mesh in meshes.values()]
    ids = np.unique(np.concatenate([*every, np.array([], np.int64)]))
    if processes is None:
        hosts, assumed = _hosts(ids, meshes.values())
    else:
        hosts, assumed = processes(ids), ()
    exchanges: dict[object, _Exchange] = {}
    times: Counter[object] = Counter()
    rows, unchanged = [], []
    for array, old_layout, new_layout in sound:
        key = (array.dtype, _key(old_layout), _key(new_layout))
        if key not in exchanges:
            exchanges[key] = _exchange(old_layout, new_layout, ids, hosts)
        times[key] += 1
        exchange = exchanges[key]
        moved = int(exchange.size.sum())
        rows.append(
            ReshardRow(array.name, array, old_layout, new_layout, moved, exchange.kind)
        )
        unchanged.append(exchange.unchanged)
    rows.sort(key=lambda row: -row.bytes_moved)
    sends = _summed_sends([(exchanges[k], times[k]) for k in exchanges], len(ids))
    memory = _memory(sound, unchanged, ids, list(meshes.values()))
    for array in (ids, hosts, sends, *memory[:2]):
        array.flags.writeable = False
    left_behind = MappingProxyType(left_behind_reasons)
    return Reshard(
        tuple(rows), left_behind, ids, hosts, sends, *memory, assumed_hosts=assumed
    )


def _key(layout: Layout) -> object:
    """Returns a cache key for a layout. Layouts without a spec are never equal."""
    if layout.spec is None:
        return id(layout)
    return layout.shape, layout.spec, id(layout.mesh)


def _summed_sends(exchanges: list[tuple[_Exchange, int]], count: int) -> np.ndarray:
    """Sums the sends of all exchanges by sender and receiver.

    Returns int64 [pairs, 3]: sender, receiver, bytes; sorted, each pair once.

    Args:
        exchanges: each exchange, with the number of arrays that it applies to.
        count: the number of devices.
    """
    pairs_of, sizes_of = [np.array([], np.int64)], [np.array([], np.int64)]
    for exchange, times in exchanges:
        # Encode a pair as one number, because sorting rows of pairs is much slower.
        pairs_of.append(exchange.source * count + exchange.target)
        sizes_of.append(exchange.size * times)
    sizes = np.concatenate(sizes_of)
    distinct, number = np.unique(np.concatenate(pairs_of), return_inverse=True)
    total = _summed_at(number.ravel(), sizes, len(distinct))
    return np.stack([distinct // count, distinct % count, total], axis=1)


def _memory(
    sound: _Arrays, unchanged: list[bool], ids: np.ndarray, meshes: list[MeshSpec]
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Returns the bytes before and after on each device, and both peaks."""
    in_mesh = np.zeros((len(meshes), len(ids)), bool)
    for row, mesh in enumerate(meshes):
        in_mesh[row, np.searchsorted(ids, mesh.device_ids.ravel())] = True
    # Devices in the same meshes hold the same bytes, so count once per set of meshes.
    kinds, kind_of = np.unique(in_mesh, axis=1, return_inverse=True)
    at = {id(mesh): kinds[row] for row, mesh in enumerate(meshes)}
    before, after, new, change, moving = np.zeros((5, kinds.shape[1]), np.int64)
    for (_, old_layout, new_layout), is_unchanged in zip(sound, unchanged, strict=True):
        bytes_old = at[id(old_layout.mesh)] * old_layout.bytes_per_device
        bytes_new = at[id(new_layout.mesh)] * new_layout.bytes_per_device
        # While this array moves, earlier arrays have moved and later ones have not.
        np.maximum(moving, change + bytes_new * (not is_unchanged), out=moving)
        before += bytes_old
        after += bytes_new
        new += bytes_new * (not is_unchanged)
        change += bytes_new - bytes_old
    peak = (before + new).max(initial=0)
    donated = (before + moving).max(initial=0)
    kind_of = kind_of.ravel()
    return before[kind_of], after[kind_of], int(peak), int(donated)


def _hosts(
    ids: np.ndarray, meshes: Iterable[MeshSpec]
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Returns the process of each device, and the devices whose process is assumed."""
    hosts, is_known = np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    for mesh in meshes:
        # A mesh with one host may simply lack information about processes.
        if mesh.even_hosts == 1:
            continue
        at = np.searchsorted(ids, mesh.device_ids.ravel())
        processes = mesh.process_indices.ravel()
        clash = np.flatnonzero(is_known[at] & (hosts[at] != processes))
        if len(clash):
            first = at[clash[0]]
            raise LayoutError(
                f"Device {int(ids[first])} is of process {int(hosts[first])} in one mesh and of"
                f" {int(processes[clash[0]])} in another. Give both meshes the same processes=."
            )
        hosts[at], is_known[at] = processes, True
    if not is_known.any() or is_known.all():
        return hosts, ()
    return hosts, tuple(ids[~is_known].tolist())


# --- the sends of one array -----------------------------------------------------------


def _too_many(chunks: int) -> LayoutError:
    return LayoutError(
        f"This reshard is about {plural(chunks, 'chunk')}, and at most {MOST_SENT:,} are"
        " counted. Take a smaller mesh with the same axes."
    )


def _common_chunks(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divides an array into chunks that each lie in one old block and one new block.

    Returns:
        The start and stop of each chunk, int64 [chunks, rank, 2]; its old block and its
        new block, each int64 [chunks].
    """
    ranges = []
    for size, old_size, new_size in zip(shape, before, after, strict=True):
        # A dimension of size 0 has blocks of size 0.
        starts = [*range(0, size, max(old_size, 1)), *range(0, size, max(new_size, 1))]
        edges = np.unique([*starts, size])
        ranges.append(np.stack([edges[:-1], edges[1:]], axis=1))
    counts = list(map(len, ranges))
    if (total := math.prod(counts)) > MOST_SENT:
        raise _too_many(total)
    at = np.indices(counts).reshape(len(counts), total)
    bounds = np.zeros((total, len(counts), 2), np.int64)
    blocks = np.zeros((2, total), np.int64)
    for dim, intervals in enumerate(ranges):
        bounds[:, dim] = intervals[at[dim]]
        for number, steps in zip(blocks, (before, after), strict=True):
            step = max(steps[dim], 1)
            number *= -(-shape[dim] // step)
            number += bounds[:, dim, 0] // step
    return bounds, blocks[0], blocks[1]


def _find_sends(
    old_blocks: np.ndarray,
    new_blocks: np.ndarray,
    chunk_old: np.ndarray,
    chunk_new: np.ndarray,
    hosts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns sender, receiver and chunk of every send, in the order of old blocks.

    Args:
        old_blocks, new_blocks: int64 [devices]: each device's block, or -1 for none.
        chunk_old, chunk_new: int64 [chunks]: the old and new block of each chunk.
        hosts: int64 [devices]: the host of each device.
    """
    receivers = np.flatnonzero(new_blocks >= 0)
    receivers = receivers[np.argsort(new_blocks[receivers], kind="stable")]
    # There are at least as many chunks as new blocks.
    counts = np.bincount(new_blocks[receivers], minlength=len(chunk_new))
    by_old = np.argsort(chunk_old, kind="stable")
    needed = counts[chunk_new[by_old]]
    if needed.sum() > MOST_SENT:
        raise _too_many(int(needed.sum()))
    chunk = np.repeat(by_old, needed)
    starts = np.cumsum(counts) - counts
    inside = np.arange(len(chunk)) - np.repeat(np.cumsum(needed) - needed, needed)
    target = receivers[starts[chunk_new[chunk]] + inside]
    # Chunks that a device already has are not sent.
    moving = chunk_old[chunk] != old_blocks[target]
    target, chunk = target[moving], chunk[moving]
    return _nearest_holders(old_blocks, chunk_old[chunk], target, hosts), target, chunk


def _nearest_holders(
    old_blocks: np.ndarray, block: np.ndarray, target: np.ndarray, hosts: np.ndarray
) -> np.ndarray:
    """Chooses the sender of each block, on the receiver's host if possible.

    Returns int64 [sends], positions of devices.

    For each block, devices that are equally near send equally often (or differ by one).

    Args:
        old_blocks: int64 [devices]: each device's old block, or -1 for none.
        block, target: int64 [sends]: the old block to send from, and the receiver.
        hosts: int64 [devices]: the host of each device.

    Raises:
        LayoutError: if no device holds a block.
    """
    distinct, host = np.unique(hosts, return_inverse=True)
    host, count = host.ravel(), len(distinct)
    holders = np.flatnonzero(old_blocks >= 0)
    holders = holders[
        np.argsort(old_blocks[holders] * count + host[holders], kind="stable")
    ]
    block_and_host = old_blocks[holders] * count + host[holders]
    source, served = np.zeros_like(block), np.zeros(len(block), bool)
    for keys, requested in (
        (block_and_host, block * count + host[target]),
        (block_and_host // count, block),
    ):
        unserved = np.flatnonzero(~served)
        first = np.searchsorted(keys, requested[unserved], "left")
        equally_near = np.searchsorted(keys, requested[unserved], "right") - first
        has_holder = equally_near > 0
        turn = _earlier_equal(requested[unserved[has_holder]])
        turn %= equally_near[has_holder]
        source[unserved[has_holder]] = holders[first[has_holder] + turn]
        served[unserved[has_holder]] = True
    if not served.all():
        raise LayoutError(
            "No device holds a part of the array in the first layout, so no device can"
            " send it. Begin with a layout whose blocks cover the array."
        )
    return source


def _earlier_equal(keys: np.ndarray) -> np.ndarray:
    """Returns, for each key, the number of equal keys before it: int64 [keys]."""
    order = np.argsort(keys, kind="stable")
    first = np.unique(keys[order], return_index=True)[1]
    runs = np.diff(first, append=len(keys))
    earlier = np.empty(len(keys), np.int64)
    earlier[order] = np.arange(len(keys)) - np.repeat(first, runs)
    return earlier
