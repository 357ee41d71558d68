"""reshard_layouts() -> Reshard: who sends what to whom when arrays move.

What a device has already stays; the rest comes from the nearest device that has it: of
the same host, or else of any other, and several that are equally near take turns. So
the bytes that a device receives depend on the layouts alone, and those that it sends on
this choice.
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

# Devices of a matrix of moves.
MOST_DENSE = 4096
# Chunks of one array.
MOST_SENT = 1 << 22
# From one layout to the other.
_Arrays = list[tuple[ArraySpec, Layout, Layout]]


class ReshardRow(NamedTuple):
    """What one array of a reshard moves.

    Attributes:
        path: its path in the tree.
        array: its shape and dtype.
        before, after: its layout on either side.
        bytes_moved: what all devices receive of it together.
        kind: what the sends amount to, whatever a compiler does: `"all-gather"`,
            `"all-to-all"`, `"collective-permute"`, `"copy"` to other devices, or `""`
            where nothing is sent.

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
    """Who sends what when arrays get other layouts; made by `shardviz.reshard`.

    Attributes:
        rows: one per array that can be moved, those that move most bytes first.
        left_behind: path to the reason why an array cannot be moved, mostly a sentence:
            nothing says where it is or where it is to go, or it cannot be laid out so.
            Nothing else counts these arrays.
        device_ids: int64 [devices]: the devices of both sides, ascending.
        hosts: int64 [devices]: the process of each.
        sends: int64 [pairs, 3]: sender and receiver, as positions in `device_ids`, and
            bytes.
        bytes_before, bytes_after: int64 [devices]: what the arrays take on each device.
        peak_bytes_per_device: on the fullest device, while the arrays of both sides are
            there. Arrays that keep their layout count once, as `jax.device_put` does
            not copy them.
        peak_bytes_donated: the same where every array is donated and moved by itself,
            in the order of the tree.
        link_seconds: for each kind of link the least seconds at its published rate;
            None where that is not published. Empty without a topology.
        rate_source: whose rates these are, or why there are none.
        assumed_hosts: the ids of devices whose process no mesh says, ascending: they
            are counted on host 0.

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
        """What all devices send together."""
        return int(self.sends[:, 2].sum())

    @property
    def bytes_within_hosts(self) -> int:
        """What is sent from a device to another of the same host."""
        return self.bytes_moved - self.bytes_between_hosts

    @cached_property
    def bytes_between_hosts(self) -> int:
        """What is sent from one host to another."""
        source, target, amount = self.sends.T
        return int(amount[self.hosts[source] != self.hosts[target]].sum())

    @property
    def seconds(self) -> float | None:
        """The least time of the sends; None where a rate is not known."""
        slowest = None
        for seconds in self.link_seconds.values():
            if seconds is None:
                return None
            # All send at the same time.
            slowest = max(slowest or 0.0, seconds)
        return slowest

    def __repr__(self) -> str:
        return f"Reshard({self})"


def _summed_at(at: np.ndarray, amount: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the sum of what is at each position."""
    total = np.zeros(count, np.int64)
    np.add.at(total, at, amount)
    return total


class _Exchange(NamedTuple):
    """What is sent for one array of some shape, type and pair of layouts."""

    # int64 [sends]: positions of devices.
    source: np.ndarray
    target: np.ndarray
    # Bytes.
    size: np.ndarray
    # As of a ReshardRow.
    kind: str
    # Whether every device keeps the same block.
    unchanged: bool


def _exchange(
    before: Layout, after: Layout, ids: np.ndarray, hosts: np.ndarray
) -> _Exchange:
    held, wanted = np.full((2, len(ids)), -1)
    for found, layout in ((held, before), (wanted, after)):
        found[np.searchsorted(ids, layout.device_ids)] = layout.groups
    shards = before.shard_shape, after.shard_shape
    if np.array_equal(held, wanted) and shards[0] == shards[1]:
        nothing = np.zeros(0, np.int64)
        return _Exchange(nothing, nothing, nothing, "", True)
    bounds, old, new = _common_chunks(before.shape, *shards)
    elements = np.prod(np.diff(bounds, axis=2)[:, :, 0], axis=1, dtype=np.int64)
    source, target, chunk = _find_sends(held, wanted, old, new, hosts)
    sent = elements[chunk]
    kind = "all-to-all"
    if not sent.any():
        kind = ""
    elif not np.array_equal(held < 0, wanted < 0):
        kind = "copy"
    elif (sent == math.prod(shards[1])).all():
        # Every receiver gets all that it needs from one device.
        kind = "collective-permute"
    elif (sent == math.prod(shards[0])).all():
        kind = "all-gather"
    # Types of less than a byte are packed.
    size = -(-sent * size_in_bytes(8, before.dtype) // 8)
    return _Exchange(source, target, size, kind, False)


def reshard_layouts(
    arrays: Sequence[ArraySpec],
    before: Sequence[Layout | str],
    after: Sequence[Layout | str],
    processes: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Reshard:
    """The Reshard of many arrays; those of one signature are computed once.

    Args:
        arrays: each under its path.
        before, after: the layout of each on either side, or the sentence on why it has
            none.
        processes: from ids of devices to the process of each; that of the meshes by
            default.
    """
    left: dict[str, str] = {}
    sound: _Arrays = []
    for array, one, other in zip(arrays, before, after, strict=True):
        if isinstance(one, Layout) and isinstance(other, Layout):
            sound.append((array, one, other))
        else:
            problem = one
            if isinstance(one, Layout):
                problem = other
            left[array.name] = str(problem)
    meshes: dict[int, MeshSpec] = {}
    for _, one, other in sound:
        meshes[id(one.mesh)] = one.mesh
        meshes[id(other.mesh)] = other.mesh
    every = [mesh.device_ids.reshape(-1) for mesh in meshes.values()]
    ids = np.unique(np.concatenate([*every, np.zeros(0, np.int64)]))
    if processes is None:
        hosts, assumed = _hosts(ids, meshes.values())
    else:
        hosts, assumed = processes(ids), ()
    made: dict[object, _Exchange] = {}
    times: Counter[object] = Counter()
    rows, unchanged = [], []
    for array, one, other in sound:
        key = (array.dtype, _key(one), _key(other))
        if key not in made:
            made[key] = _exchange(one, other, ids, hosts)
        times[key] += 1
        exchange = made[key]
        moved = int(exchange.size.sum())
        rows.append(ReshardRow(array.name, array, one, other, moved, exchange.kind))
        unchanged.append(exchange.unchanged)
    rows.sort(key=lambda row: -row.bytes_moved)
    sends = _summed_sends([(made[k], times[k]) for k in made], len(ids))
    memory = _memory(sound, unchanged, ids, list(meshes.values()))
    for array in (ids, hosts, sends, *memory[:2]):
        array.flags.writeable = False
    left_behind = MappingProxyType(left)
    return Reshard(
        tuple(rows), left_behind, ids, hosts, sends, *memory, assumed_hosts=assumed
    )


def _key(layout: Layout) -> object:
    """Equal for layouts that are alike; without a spec nobody can say."""
    if layout.spec is None:
        return id(layout)
    return layout.shape, layout.spec, id(layout.mesh)


def _summed_sends(exchanges: list[tuple[_Exchange, int]], count: int) -> np.ndarray:
    """int64 [pairs, 3]: sender, receiver, bytes; each pair once and in order.

    Args:
        exchanges: each with how many arrays have it.
        count: how many devices there are.
    """
    pairs_of, sizes_of = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for exchange, times in exchanges:
        # One number for a pair, since rows of two are sorted much more slowly.
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
    there = np.zeros((len(meshes), len(ids)), bool)
    for row, mesh in zip(there, meshes, strict=True):
        row[np.searchsorted(ids, mesh.device_ids.reshape(-1))] = True
    # Devices that are in the same meshes hold the same: mostly, all of them.
    kinds, kind_of = np.unique(there, axis=1, return_inverse=True)
    at = {id(mesh): kind for mesh, kind in zip(meshes, kinds, strict=True)}
    before, after, new, change, moving = np.zeros((5, kinds.shape[1]), np.int64)
    for (_, one, other), same in zip(sound, unchanged, strict=True):
        old = at[id(one.mesh)] * one.bytes_per_device
        now = at[id(other.mesh)] * other.bytes_per_device
        # Arrays before this one have moved, those after it not yet.
        np.maximum(moving, change + now * (not same), out=moving)
        before += old
        after += now
        new += now * (not same)
        change += now - old
    kept = (before + new).max(initial=0)
    donated = (before + moving).max(initial=0)
    kind_of = kind_of.reshape(-1)
    return before[kind_of], after[kind_of], int(kept), int(donated)


def _hosts(
    ids: np.ndarray, meshes: Iterable[MeshSpec]
) -> tuple[np.ndarray, tuple[int, ...]]:
    """The process of each device, and the devices of which it is assumed."""
    hosts, known = np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    for mesh in meshes:
        # A mesh of one host says nothing: nobody may have told it of its processes.
        if mesh.even_hosts == 1:
            continue
        at = np.searchsorted(ids, mesh.device_ids.reshape(-1))
        own = mesh.process_indices.reshape(-1)
        clash = np.flatnonzero(known[at] & (hosts[at] != own))
        if len(clash):
            first = at[clash[0]]
            raise LayoutError(
                f"Device {int(ids[first])} is of process {int(hosts[first])} in one mesh and of"
                f" {int(own[clash[0]])} in another. Give both meshes the same processes=."
            )
        hosts[at], known[at] = own, True
    if not known.any() or known.all():
        return hosts, ()
    return hosts, tuple(ids[~known].tolist())


# --- what is sent of one array ---------------------------------------------------------


def _too_many(chunks: int) -> LayoutError:
    return LayoutError(
        f"This reshard is about {plural(chunks, 'chunk')}, and at most {MOST_SENT:,} are"
        " counted. Take a smaller mesh with the same axes."
    )


def _common_chunks(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What blocks of these shapes have in common: int64 [chunks, rank, 2], and where."""
    ranges = []
    for size, one, other in zip(shape, before, after, strict=True):
        # A dimension of size 0 has blocks of size 0.
        starts = [*range(0, size, max(one, 1)), *range(0, size, max(other, 1))]
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
    held: np.ndarray,
    wanted: np.ndarray,
    old: np.ndarray,
    new: np.ndarray,
    hosts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sender, receiver and chunk of all that is sent, by old block.

    Args:
        held, wanted: int64 [devices]: the old block and the new block of each, or -1.
        old, new: int64 [chunks]: the blocks that each chunk is in.
        hosts: int64 [devices].
    """
    receivers = np.flatnonzero(wanted >= 0)
    receivers = receivers[np.argsort(wanted[receivers], kind="stable")]
    counts = np.bincount(wanted[receivers], minlength=int(new.max(initial=0)) + 1)
    by_old = np.argsort(old, kind="stable")
    needed = counts[new[by_old]]
    if needed.sum() > MOST_SENT:
        raise _too_many(int(needed.sum()))
    chunk = np.repeat(by_old, needed)
    starts = np.cumsum(counts) - counts
    inside = np.arange(len(chunk)) - np.repeat(np.cumsum(needed) - needed, needed)
    target = receivers[starts[new[chunk]] + inside]
    # What a device holds already is not sent to it.
    moving = old[chunk] != held[target]
    target, chunk = target[moving], chunk[moving]
    return _nearest_holders(held, old[chunk], target, hosts), target, chunk


def _nearest_holders(
    held: np.ndarray, block: np.ndarray, target: np.ndarray, hosts: np.ndarray
) -> np.ndarray:
    """int64 [sends]: the device that sends each block, of the same host where possible.

    Of several that are equally near, each sends as often as the others, give or take
    one.
    """
    host = np.unique(hosts, return_inverse=True)[1].reshape(-1)
    count = int(host.max(initial=0)) + 1
    holders = np.flatnonzero(held >= 0)
    holders = holders[np.argsort(held[holders] * count + host[holders], kind="stable")]
    # Ascending.
    here = held[holders] * count + host[holders]
    source = np.full(len(block), -1)
    for keys, wanted in ((here, block * count + host[target]), (here // count, block)):
        left = np.flatnonzero(source < 0)
        first = np.searchsorted(keys, wanted[left], "left")
        near = np.searchsorted(keys, wanted[left], "right") - first
        there = near > 0
        turn = _earlier_equal(wanted[left[there]]) % near[there]
        source[left[there]] = holders[first[there] + turn]
    if (source < 0).any():
        raise LayoutError(
            "No device holds a part of the array in the first layout, so nobody can send it. Begin"
            " with a layout whose blocks cover the array."
        )
    return source


def _earlier_equal(keys: np.ndarray) -> np.ndarray:
    """int64: how many keys before each are equal to it."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.diff(keys[order], prepend=-1))
    runs = np.diff(first, append=len(keys))
    earlier = np.empty(len(keys), np.int64)
    earlier[order] = np.arange(len(keys)) - np.repeat(first, runs)
    return earlier
