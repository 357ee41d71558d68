"""reshard_layouts() -> Reshard: which device sends which bytes when arrays move.

A device keeps the parts of its new shard that it has already. Each other part comes
from the nearest device that has it: one of the same host if possible, and devices that
are equally near take turns. So the bytes that a device receives depend on the layouts
alone, and the bytes that it sends depend on this choice.
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

MOST_DENSE = 4096  # devices in a matrix of moves
MOST_SENT = 1 << 22  # chunks sent of one array
# Each with its layouts before and after.
_Arrays = list[tuple[ArraySpec, Layout, Layout]]


class ReshardRow(NamedTuple):
    """One array of a reshard and the bytes it moves.

    Attributes:
        path: its path in the tree.
        array: its shape and dtype.
        before, after: its layout on either side.
        bytes_moved: the bytes of it that all devices together receive.
        kind: the collective that the sends are equal to, which a compiler may replace
            by others: `"all-gather"`, `"all-to-all"`, `"collective-permute"`, `"copy"`
            to other devices, or `""` if nothing is sent.

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
    """The bytes sent between devices when arrays get other layouts.

    Created by `shardviz.reshard`.

    Attributes:
        rows: one per array that can be moved, those that move most bytes first.
        left_behind: the reason for each array that cannot be moved, by path: an unknown
            layout on one side, or one that does not fit the array. Nothing else counts
            these arrays.
        device_ids: int64 [devices]: the devices of both sides, ascending.
        hosts: int64 [devices]: the process of each.
        sends: int64 [pairs, 3]: sender and receiver, as positions in `device_ids`, and
            bytes.
        bytes_before, bytes_after: int64 [devices]: the bytes of the arrays on each
            device.
        peak_bytes_per_device: the bytes on the fullest device while the arrays of both
            sides are in memory. Arrays that keep their layout count once, as
            `jax.device_put` does not copy them.
        peak_bytes_donated: the same if every array is donated and moved alone, in the
            order of the tree.
        link_seconds: for each kind of link the least seconds at its published rate;
            None if that is not published. Empty without a topology.
        rate_source: the chip whose rates these are, or why there are none.
        assumed_hosts: the ids of devices that no mesh assigns to a process, ascending:
            they are counted on host 0.

    >>> from shardviz.base.layout import lay_out
    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.base.partition_spec import Spec
    >>> rows, columns = (lay_out((4, 4), Spec.parse(s), make_mesh(x=2)) for s in ("x", "None, x"))
    >>> moved = reshard_layouts([ArraySpec("w", (4, 4))], [rows], [columns])
    >>> moved.bytes_moved, moved.rows[0].kind, moved.moves.tolist()
    (32, 'all-to-all', [[0, 16], [16, 0]])
    """

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

    @cached_property
    def moves(self) -> np.ndarray:
        """int64 [devices, devices]: the bytes from each device (row) to each.

        In the order of `device_ids`.

        Raises:
            LayoutError: for more than MOST_DENSE devices.
        """
        count = len(self.device_ids)
        if count > MOST_DENSE:
            raise LayoutError(
                f"A matrix of {count:,} × {plural(count, 'device')} is not made; it is for"
                f" at most {MOST_DENSE:,}. Take .sends, which lists the pairs that send."
            )
        source, target, amount = self.sends.T
        flat = _summed_at(source * count + target, amount, count * count)
        return flat.reshape(count, count)

    @property
    def bytes_moved(self) -> int:
        """The bytes that all devices together send."""
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
        """The least time of the sends; None if a rate is unknown."""
        slowest = None
        for seconds in self.link_seconds.values():
            if seconds is None:
                return None
            # All kinds of links send at the same time.
            slowest = max(slowest or 0.0, seconds)
        return slowest

    def __repr__(self) -> str:
        return f"Reshard({self})"


def _summed_at(at: np.ndarray, amount: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the sum of the amounts at each position."""
    total = np.zeros(count, np.int64)
    np.add.at(total, at, amount)
    return total


class _Exchange(NamedTuple):
    """The sends for one array.

    Attributes:
        source, target: int64 [sends]: positions of devices.
        size: int64 [sends]: bytes.
        kind: as of a ReshardRow.
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
        nothing = np.zeros(0, np.int64)
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
        # Every receiver gets its whole new shard from one device.
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
    """The Reshard of many arrays; arrays with equal layouts are computed once.

    Args:
        arrays: each under its path.
        before, after: the layout of each on either side, or the reason why it has none.
        processes: returns the process of each device id; by default that of the meshes.
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
    every = [mesh.device_ids.reshape(-1) for mesh in meshes.values()]
    ids = np.unique(np.concatenate([*every, np.zeros(0, np.int64)]))
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
    """A key that equal layouts share. Layouts without a spec are never equal."""
    if layout.spec is None:
        return id(layout)
    return layout.shape, layout.spec, id(layout.mesh)


def _summed_sends(exchanges: list[tuple[_Exchange, int]], count: int) -> np.ndarray:
    """int64 [pairs, 3]: sender, receiver, bytes; each pair once and in order.

    Args:
        exchanges: each with the number of arrays that have it.
        count: the number of devices.
    """
    pairs_of, sizes_of = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for exchange, times in exchanges:
        # One number per pair, since sorting rows of two is much slower.
        pairs_of.append(exchange.source * count + exchange.target)
        sizes_of.append(exchange.size * times)
    sizes = np.concatenate(sizes_of)
    distinct, number = np.unique(np.concatenate(pairs_of), return_inverse=True)
    total = _summed_at(number.reshape(-1), sizes, len(distinct))
    table = np.stack([distinct // count, distinct % count, total], axis=1)
    return table[total > 0]


def _memory(
    sound: _Arrays, unchanged: list[bool], ids: np.ndarray, meshes: list[MeshSpec]
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Bytes before and after on each device, and both peaks."""
    in_mesh = np.zeros((len(meshes), len(ids)), bool)
    for row, mesh in zip(in_mesh, meshes, strict=True):
        row[np.searchsorted(ids, mesh.device_ids.reshape(-1))] = True
    # Devices in the same meshes hold the same bytes, so each kind is counted once.
    kinds, kind_of = np.unique(in_mesh, axis=1, return_inverse=True)
    at = {id(mesh): kind for mesh, kind in zip(meshes, kinds, strict=True)}
    before, after, new, change, moving = np.zeros((5, kinds.shape[1]), np.int64)
    for (_, old_layout, new_layout), is_unchanged in zip(sound, unchanged, strict=True):
        bytes_old = at[id(old_layout.mesh)] * old_layout.bytes_per_device
        bytes_new = at[id(new_layout.mesh)] * new_layout.bytes_per_device
        # Earlier arrays have moved, later ones have not.
        np.maximum(moving, change + bytes_new * (not is_unchanged), out=moving)
        before += bytes_old
        after += bytes_new
        new += bytes_new * (not is_unchanged)
        change += bytes_new - bytes_old
    peak = (before + new).max(initial=0)
    donated = (before + moving).max(initial=0)
    kind_of = kind_of.reshape(-1)
    return before[kind_of], after[kind_of], int(peak), int(donated)


def _hosts(
    ids: np.ndarray, meshes: Iterable[MeshSpec]
) -> tuple[np.ndarray, tuple[int, ...]]:
    """The process of each device, and the devices whose process is assumed."""
    hosts, is_known = np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    for mesh in meshes:
        # A mesh with one host may just not know its processes.
        if mesh.even_hosts == 1:
            continue
        at = np.searchsorted(ids, mesh.device_ids.reshape(-1))
        processes = mesh.process_indices.reshape(-1)
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
    """The chunks into which the blocks of both layouts divide an array.

    Returns:
        The start and stop of each chunk, int64 [chunks, rank, 2], and the old and new
        block that it lies in, int64 [chunks].
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
    """Sender, receiver and chunk of every send, in the order of old blocks.

    Args:
        old_blocks, new_blocks: int64 [devices]: the block of each device, or -1.
        chunk_old, chunk_new: int64 [chunks]: the old and new block of each chunk.
        hosts: int64 [devices].
    """
    receivers = np.flatnonzero(new_blocks >= 0)
    receivers = receivers[np.argsort(new_blocks[receivers], kind="stable")]
    counts = np.bincount(
        new_blocks[receivers], minlength=int(chunk_new.max(initial=0)) + 1
    )
    by_old = np.argsort(chunk_old, kind="stable")
    needed = counts[chunk_new[by_old]]
    if needed.sum() > MOST_SENT:
        raise _too_many(int(needed.sum()))
    chunk = np.repeat(by_old, needed)
    starts = np.cumsum(counts) - counts
    inside = np.arange(len(chunk)) - np.repeat(np.cumsum(needed) - needed, needed)
    target = receivers[starts[chunk_new[chunk]] + inside]
    # A device keeps what it holds.
    moving = chunk_old[chunk] != old_blocks[target]
    target, chunk = target[moving], chunk[moving]
    return _nearest_holders(old_blocks, chunk_old[chunk], target, hosts), target, chunk


def _nearest_holders(
    old_blocks: np.ndarray, block: np.ndarray, target: np.ndarray, hosts: np.ndarray
) -> np.ndarray:
    """int64 [sends]: the device that sends each block, of the same host if possible.

    Devices that are equally near send equally often, or one time more.

    Args:
        old_blocks: int64 [devices]: the old block of each, or -1.
        block, target: int64 [sends]: the block to send, and its receiver.
        hosts: int64 [devices].

    Raises:
        LayoutError: if no device holds a block.
    """
    host = np.unique(hosts, return_inverse=True)[1].reshape(-1)
    count = int(host.max(initial=0)) + 1
    holders = np.flatnonzero(old_blocks >= 0)
    holders = holders[
        np.argsort(old_blocks[holders] * count + host[holders], kind="stable")
    ]
    block_and_host = old_blocks[holders] * count + host[holders]
    source = np.full(len(block), -1)
    for keys, requested in (
        (block_and_host, block * count + host[target]),
        (block_and_host // count, block),
    ):
        unserved = np.flatnonzero(source < 0)
        first = np.searchsorted(keys, requested[unserved], "left")
        equally_near = np.searchsorted(keys, requested[unserved], "right") - first
        has_holder = equally_near > 0
        turn = _earlier_equal(requested[unserved[has_holder]])
        turn %= equally_near[has_holder]
        source[unserved[has_holder]] = holders[first[has_holder] + turn]
    if (source < 0).any():
        raise LayoutError(
            "No device holds a part of the array in the first layout, so nobody can send it. Begin"
            " with a layout whose blocks cover the array."
        )
    return source


def _earlier_equal(keys: np.ndarray) -> np.ndarray:
    """int64 [keys]: how many earlier keys are equal to each."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    runs = np.diff(first, append=len(keys))
    earlier = np.empty(len(keys), np.int64)
    earlier[order] = np.arange(len(keys)) - np.repeat(first, runs)
    return earlier
