"""reshard() -> Reshard: who sends what to whom when arrays get other layouts, on any devices.

What a device has already stays; the rest comes from the nearest device that has it: of the same
host, or else of any other, and several that are equally near take turns. So the bytes that a device
receives depend on the layouts alone, and those that it sends on this choice.

`reshard_moves` and `step_numbers` do it for one array on the same devices in steps, in which every
device sends and receives at most one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import LayoutError
from shardviz.core.format import bytes_text, ids_text, plural
from shardviz.core.layout.array_spec import ArraySpec, size_in_bytes
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.resolution import collector_paused

MOST_SENT = 1 << 22  # chunks of one array
MOST_DENSE = 4096  # devices of a matrix of moves
_HOW = "Otherwise give sv.mesh(..., processes=...)."
_Arrays = list[tuple[ArraySpec, Layout, Layout]]  # from one layout to the other
_MOST_COLOURED = 1 << 17  # beyond, each distance is a step: as many, or a few more


@dataclass(frozen=True, eq=False)
class ReshardMoves:
    """What has to be sent for another layout of an array on the same devices.

    A chunk is what a block of one layout has in common with a block of the other. Devices are
    counted in the order of the first layout's mesh.

    Attributes:
        bounds: int64 [chunks, rank, 2]: from where to where each chunk goes.
        old, new: int64 [chunks]: the block of each layout that it is in.
        source, target, chunk: int64 [transfers].
        after: int64 [devices]: the block of the new layout of each device.
    """

    bounds: np.ndarray
    old: np.ndarray
    new: np.ndarray
    source: np.ndarray
    target: np.ndarray
    chunk: np.ndarray
    after: np.ndarray


def reshard_moves(before: Layout, after: Layout, hosts: np.ndarray) -> ReshardMoves:
    """Who sends what to whom: what a device has stays, the rest comes from the nearest holder.

    Nearest is the same host, then any other; several holders take turns.

    Args:
        before, after: two layouts of one array on the same devices.
        hosts: int64 [devices], in the order of the first mesh.

    Raises:
        LayoutError: where the arrays or the devices differ, no device has a part, or there would
            be more than MOST_SENT.
    """
    _check_same(before, after)
    bounds, old, new = _common_chunks(before.shape, before.shard_shape, after.shard_shape)
    positions = np.argsort(after.device_ids, kind="stable")
    own = np.empty(len(positions), np.int64)
    own[np.argsort(before.device_ids, kind="stable")] = after.groups[positions]
    source, target, chunk = _sends(before.groups, own, old, new, hosts)
    order = np.lexsort((chunk, target))
    return ReshardMoves(bounds, old, new, source[order], target[order], chunk[order], own)


def _too_many(chunks: int) -> LayoutError:
    return LayoutError(
        f"This reshard is about {plural(chunks, 'chunk')}; steps are made for at most"
        f" {MOST_SENT:,}. Take a smaller mesh with the same axes."
    )


def _check_same(before: Layout, after: Layout) -> None:
    if (before.shape, before.dtype) != (after.shape, after.dtype):
        raise LayoutError(
            f"A reshard is between two layouts of one array; got {before.dtype}"
            f"{list(before.shape)} and {after.dtype}{list(after.shape)}."
        )
    ids = [np.sort(layout.device_ids) for layout in (before, after)]
    if not np.array_equal(ids[0], ids[1]):
        raise LayoutError(
            "A reshard is between two layouts on the same devices; got"
            f" {plural(len(ids[0]), 'device')} and {plural(len(ids[1]), 'device')}"
            f"{'' if len(ids[0]) != len(ids[1]) else ' with other ids'}. Lay both out on the"
            " devices of one mesh."
        )


def _common_chunks(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What blocks of these shapes have in common: int64 [chunks, rank, 2], and their blocks."""
    ranges = []
    for size, one, other in zip(shape, before, after, strict=True):
        edges = np.unique([*range(0, size, max(one, 1)), *range(0, size, max(other, 1)), size])
        ranges.append(np.stack([edges[:-1], edges[1:]], axis=1))
    counts = [len(some) for some in ranges]
    if (total := math.prod(counts)) > MOST_SENT:
        raise _too_many(total)
    at = np.indices(counts).reshape(len(counts), total)
    bounds, blocks = np.zeros((total, len(counts), 2), np.int64), np.zeros((2, total), np.int64)
    for dim, some in enumerate(ranges):
        bounds[:, dim] = some[at[dim]]
        for number, steps in zip(blocks, (before, after), strict=True):
            step = max(steps[dim], 1)
            number *= -(-shape[dim] // step)
            number += bounds[:, dim, 0] // step
    return bounds, blocks[0], blocks[1]


def _sends(
    held: np.ndarray, wanted: np.ndarray, old: np.ndarray, new: np.ndarray, hosts: np.ndarray
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
    moving = old[chunk] != held[target]
    target, chunk = target[moving], chunk[moving]
    return _nearest_holders(held, old[chunk], target, hosts), target, chunk


def _nearest_holders(
    held: np.ndarray, block: np.ndarray, target: np.ndarray, hosts: np.ndarray
) -> np.ndarray:
    """int64 [sends]: the device that sends each block: of the same host, or else of any other.

    Of several that are equally near, each sends as often as the others, give or take one.
    """
    host = np.unique(hosts, return_inverse=True)[1].reshape(-1)
    count = int(host.max(initial=0)) + 1
    holders = np.flatnonzero(held >= 0)
    holders = holders[np.argsort(held[holders] * count + host[holders], kind="stable")]
    here = held[holders] * count + host[holders]  # ascending
    source = np.full(len(block), -1)
    for keys, wanted in ((here, block * count + host[target]), (here // count, block)):
        some = np.flatnonzero(source < 0)
        first = np.searchsorted(keys, wanted[some], "left")
        near = np.searchsorted(keys, wanted[some], "right") - first
        there = near > 0
        turn = _earlier_equal(wanted[some[there]]) % near[there]
        source[some[there]] = holders[first[there] + turn]
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
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(first, np.diff(first, append=len(keys)))
    return found


def chunks_by_block(block: np.ndarray) -> dict[int, np.ndarray]:
    """The chunks of each block, from int64 [chunks]."""
    order = np.argsort(block, kind="stable")
    found = [some.tolist() for some in np.unique(block[order], return_index=True)]
    return {n: order[a:b] for n, a, b in zip(*found, [*found[1][1:], None], strict=True)}


def step_numbers(source: np.ndarray, target: np.ndarray, count: int) -> np.ndarray:
    """int64 [transfers]: a step for each, so that no device sends or receives twice in one.

    There are as many steps as the busiest device sends or receives (König's theorem on the edges
    of a bipartite graph); of very many transfers a few more.

    Args:
        source, target: int64 [transfers]; no pair twice.
        count: how many devices there are.

    >>> step_numbers(np.array([0, 1, 2]), np.array([1, 0, 1]), 3).tolist()
    [0, 0, 1]
    """
    distance = (target - source) % count
    if len(source) > _MOST_COLOURED:
        return np.unique(distance, return_inverse=True)[1].reshape(-1)
    if not len(source):
        return distance
    degree = max(np.bincount(source).max(), np.bincount(target).max())
    sent = [[-1] * degree for _ in range(count)]  # the transfer of each step, or -1
    received = [[-1] * degree for _ in range(count)]
    senders, receivers = source.tolist(), target.tolist()
    for edge in np.lexsort((source, distance)).tolist():
        here, there = sent[senders[edge]], received[receivers[edge]]
        step, other = here.index(-1), there.index(-1)
        free = next((n for n in range(degree) if here[n] == there[n] == -1), None)
        if free is None:
            _swap(sent, received, senders, receivers, receivers[edge], step, other)
            free = step
        here[free] = there[free] = edge
    found = np.empty(len(source), np.int64)
    for row in sent:
        for step, edge in enumerate(row):
            if edge >= 0:
                found[edge] = step
    return found


def _swap(
    sent: list[list[int]],
    received: list[list[int]],
    senders: list[int],
    receivers: list[int],
    start: int,
    step: int,
    other: int,
) -> None:
    """Swaps two steps along the path of transfers that begins at a receiver."""
    path, at = [], received[start][step]
    while at >= 0:
        path.append(at)
        wanted = other if len(path) % 2 else step
        row = sent[senders[at]] if len(path) % 2 else received[receivers[at]]
        at = row[wanted]
    for n, edge in enumerate(path):
        was = other if n % 2 else step
        for rows, ends in ((sent, senders), (received, receivers)):
            if rows[ends[edge]][was] == edge:
                rows[ends[edge]][was] = -1
    for n, edge in enumerate(path):
        now = step if n % 2 else other
        sent[senders[edge]][now] = received[receivers[edge]][now] = edge


class ReshardRow(NamedTuple):
    """What one array of a reshard moves.

    Attributes:
        path: its path in the tree.
        array: its shape and dtype.
        before, after: its layout on either side.
        bytes_moved: what all devices receive of it together.
        kind: what the sends amount to, whatever a compiler does: `"all-gather"`, `"all-to-all"`,
            `"collective-permute"`, `"copy"` to other devices, or `""` where nothing is sent.

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
class Reshard(Displayed):
    """What every device sends to whom when arrays get other layouts; made by `shardviz.reshard`.

    Attributes:
        rows: one per array that can be moved, those that move most bytes first.
        left_behind: path to the sentence on why an array cannot be moved: nothing says where it is
            or where it is to go, or it cannot be laid out so. Nothing else counts these arrays.
        device_ids: int64 [devices]: the devices of both sides, ascending.
        hosts: int64 [devices]: the process of each.
        sends: int64 [pairs, 3]: sender and receiver, as positions in `device_ids`, and bytes.
        bytes_before, bytes_after: int64 [devices]: what the arrays take on each device.
        peak_bytes_per_device: on the fullest device, while the arrays of both sides are there.
            Arrays that keep their layout count once, as `jax.device_put` does not copy them.
        peak_bytes_donated: the same where every array is donated and moved by itself, in the order
            of the tree.
        link_seconds: for each kind of link the least seconds at its published rate; None where that
            is not published. Empty without a topology.
        rate_source: whose rates these are, or why there are none.
        notes: what else to know.

    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
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
    notes: tuple[str, ...] = ()

    @cached_property
    def moves(self) -> np.ndarray:
        """int64 [devices, devices]: the bytes that each device (row) sends to each (column).

        Rows and columns are in the order of `device_ids`.

        Raises:
            LayoutError: for more than MOST_DENSE devices.
        """
        source, target, amount = self.sends.T
        return _matrix(source, target, amount, len(self.device_ids), "device")

    @cached_property
    def host_ids(self) -> np.ndarray:
        """int64 [hosts]: the processes that have a device here, ascending."""
        return np.unique(self.hosts)

    @cached_property
    def host_moves(self) -> np.ndarray:
        """int64 [hosts, hosts]: the bytes from each host (row) to each, in `host_ids`' order.

        Raises:
            LayoutError: for more than MOST_DENSE hosts.
        """
        source, target = np.searchsorted(self.host_ids, self.hosts)[self.sends[:, :2].T]
        return _matrix(source, target, self.sends[:, 2], len(self.host_ids), "host")

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

    @cached_property
    def bytes_sent(self) -> np.ndarray:
        """int64 [devices]: what each device sends."""
        return _summed_at(self.sends[:, 0], self.sends[:, 2], len(self.device_ids))

    @cached_property
    def bytes_received(self) -> np.ndarray:
        """int64 [devices]: what each device receives."""
        return _summed_at(self.sends[:, 1], self.sends[:, 2], len(self.device_ids))

    @property
    def seconds(self) -> float | None:
        """The least time of the sends; None where a rate is not known."""
        known = [t for t in self.link_seconds.values() if t is not None]
        return max(known) if known and len(known) == len(self.link_seconds) else None

    def __repr__(self) -> str:
        left = f", {plural(len(self.left_behind), 'array')} left behind" * bool(self.left_behind)
        return (
            f"Reshard({plural(len(self.rows), 'array')} on"
            f" {plural(len(self.device_ids), 'device')}: {bytes_text(self.bytes_moved)} sent{left})"
        )


def _summed_at(at: np.ndarray, amount: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the sum of what is at each position."""
    found = np.zeros(count, np.int64)
    np.add.at(found, at, amount)
    return found


def _matrix(
    source: np.ndarray, target: np.ndarray, amount: np.ndarray, count: int, noun: str
) -> np.ndarray:
    if count > MOST_DENSE:
        raise LayoutError(
            f"A matrix of {count:,} × {plural(count, noun)} is not made; it is for at most"
            f" {MOST_DENSE:,}. Take .sends, which lists the pairs of devices that send."
        )
    return _summed_at(source * count + target, amount, count * count).reshape(count, count)


class _Exchange(NamedTuple):
    """What is sent for arrays of alike layouts, whatever their sizes."""

    pairs: np.ndarray  # int64 [sends]: sender times devices plus receiver
    parts: np.ndarray  # int64 [sends]: how many of the parts of the array
    kind: str  # as of a ReshardRow
    unchanged: bool  # whether every device keeps the same block
    count: int  # of the parts of the array
    sent: int  # of these


def _shape_in_parts(before: Layout, after: Layout) -> tuple[tuple[int, ...], ...]:
    """The shapes of an array and of its blocks, in the largest parts that divide both.

    Arrays that are split alike have the same, whatever their sizes; dimensions that neither side
    splits have none.
    """
    shapes = []
    for dim, size in enumerate(before.shape):
        n, m = before.block_counts[dim], after.block_counts[dim]
        one, other = before.shard_shape[dim], after.shard_shape[dim]
        if n * one == m * other == size:
            size = math.lcm(n, m)
            one, other = size // n, size // m
        if n > 1 or m > 1:
            shapes.append((size, one, other))
    return tuple(zip(*shapes, strict=True)) if shapes else ((), (), ())


def _exchange(before: Layout, after: Layout, ids: np.ndarray, hosts: np.ndarray) -> _Exchange:
    shape, *blocks = _shape_in_parts(before, after)
    held, wanted = (np.full(len(ids), -1) for _ in range(2))
    for found, layout in ((held, before), (wanted, after)):
        found[np.searchsorted(ids, layout.device_ids)] = layout.groups
    count = math.prod(shape)
    if np.array_equal(held, wanted) and blocks[0] == blocks[1]:
        return _Exchange(np.zeros(0, np.int64), np.zeros(0, np.int64), "", True, count, 0)
    bounds, old, new = _common_chunks(shape, *blocks)
    parts = np.prod(np.diff(bounds, axis=2)[:, :, 0], axis=1, dtype=np.int64)
    source, target, chunk = _sends(held, wanted, old, new, hosts)
    sent = parts[chunk]
    kind = "all-to-all"
    if not np.array_equal(held < 0, wanted < 0):
        kind = "copy"
    elif (sent == math.prod(blocks[1])).all():
        kind = "collective-permute"  # every receiver gets all that it needs from one device
    elif (sent == math.prod(blocks[0])).all():
        kind = "all-gather"
    return _Exchange(source * len(ids) + target, sent, kind, False, count, int(sent.sum()))


def reshard_layouts(
    arrays: Sequence[ArraySpec],
    before: Sequence[Layout | str],
    after: Sequence[Layout | str],
    processes: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Reshard:
    """The Reshard of many arrays; those that are split alike are computed once.

    Args:
        arrays: each under its path.
        before, after: the layout of each on either side, or the sentence on why it has none.
        processes: from ids of devices to the process of each; that of the meshes by default.

    Raises:
        LayoutError: where two meshes say other processes of a device, or a reshard has more than
            MOST_SENT chunks.
    """
    left: dict[str, str] = {}
    sound: _Arrays = []
    for array, one, other in zip(arrays, before, after, strict=True):
        if isinstance(one, Layout) and isinstance(other, Layout):
            sound.append((array, one, other))
        else:
            left[array.name] = str(other if isinstance(one, Layout) else one)
    meshes = {id(layout.mesh): layout.mesh for _, *both in sound for layout in both}
    every = [mesh.device_ids.reshape(-1) for mesh in meshes.values()]
    ids = np.unique(np.concatenate([*every, np.zeros(0, np.int64)]))
    hosts, notes = _hosts(ids, meshes.values()) if processes is None else (processes(ids), ())
    with collector_paused():
        found = _resharded(sound, left, ids, hosts, notes)
    for value in vars(found).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return found


def _resharded(
    sound: _Arrays, left: dict[str, str], ids: np.ndarray, hosts: np.ndarray, notes: tuple[str, ...]
) -> Reshard:
    exchanges: dict[object, _Exchange] = {}
    found: dict[tuple[int, int], tuple[_Exchange, int]] = {}  # and bits of a part
    bits: dict[int, int] = {}  # of a part, over all arrays of an exchange
    rows = []
    for array, one, other in sound:
        pair = (id(one), id(other))
        if pair not in found:
            key = _alike(one, other)
            if key not in exchanges:
                exchanges[key] = _exchange(one, other, ids, hosts)
            whole = math.prod(array.shape) * size_in_bytes(8, array.dtype)
            found[pair] = exchanges[key], whole // max(exchanges[key].count, 1)
        exchange, each = found[pair]
        bits[id(exchange)] = bits.get(id(exchange), 0) + each
        moved = -(-exchange.sent * each // 8)
        kind = exchange.kind if moved else ""
        rows.append(ReshardRow(array.name, array, one, other, moved, kind))
    rows.sort(key=lambda row: -row.bytes_moved)
    used = [exchange for exchange in exchanges.values() if len(exchange.pairs)]
    sends = _summed_sends([(e.pairs, e.parts * bits[id(e)]) for e in used], len(ids))
    unchanged = [found[id(one), id(other)][0].unchanged for _, one, other in sound]
    return Reshard(
        tuple(rows), MappingProxyType(left), ids, hosts, sends,
        *_memory(sound, unchanged, ids), notes=notes,
    )  # fmt: skip


def _alike(before: Layout, after: Layout) -> object:
    """A key that is equal where the same parts are sent."""
    kept = [n > 1 or m > 1 for n, m in zip(before.block_counts, after.block_counts, strict=True)]
    sides: list[object] = [_shape_in_parts(before, after)]
    for layout in (before, after):
        dims = () if layout.spec is None else layout.spec.dims
        split = [dims[n] if n < len(dims) else () for n, some in enumerate(kept) if some]
        sides.append(id(layout) if layout.spec is None else (id(layout.mesh), *split))
    return tuple(sides)


def _summed_sends(some: list[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """int64 [pairs, 3]: sender, receiver, bytes; each pair once and in order.

    Args:
        some: pairs of devices and the bits between them.
    """
    if not some:
        return np.zeros((0, 3), np.int64)
    pairs, amounts = (np.concatenate(column) for column in zip(*some, strict=True))
    order = np.argsort(pairs)
    pairs, amounts = pairs[order], amounts[order]
    first = np.flatnonzero(np.diff(pairs, prepend=-1))
    total = -(-np.add.reduceat(amounts, first) // 8)
    return np.stack([pairs[first] // count, pairs[first] % count, total], axis=1)[total > 0]


def _memory(
    sound: _Arrays, unchanged: list[bool], ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Bytes before and after on each device, and both peaks."""
    meshes = {id(layout.mesh): layout.mesh for _, *both in sound for layout in both}
    number = {key: n for n, key in enumerate(meshes)}
    there = np.zeros((len(meshes) + 1, len(ids)), bool)
    for row, mesh in zip(there, meshes.values(), strict=False):
        row[np.searchsorted(ids, mesh.device_ids.reshape(-1))] = True
    # Devices that are in the same meshes hold the same: some kinds of devices, mostly.
    kinds, kind_of = np.unique(there, axis=1, return_inverse=True)
    held = [
        np.array([layout.bytes_per_device for layout in side], np.int64)[:, None]
        * kinds[[number[id(layout.mesh)] for layout in side]]
        for side in ([one for _, one, _ in sound], [other for *_, other in sound])
    ]
    before, after = held
    new = after * ~np.array(unchanged, bool)[:, None]
    kept = (before + new).sum(axis=0)
    # While an array is moved, those before it are there as new and those after it as old.
    change = np.cumsum(after - before, axis=0) - (after - before)
    moving = before.sum(axis=0) + change + new
    totals = [side.sum(axis=0)[kind_of.reshape(-1)] for side in held]
    return *totals, int(kept.max(initial=0)), int(moving.max(initial=0))  # type: ignore[return-value]


def _hosts(ids: np.ndarray, meshes: Iterable[MeshSpec]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The process of each device, and a note where some are assumed."""
    found, said = np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    for mesh in (mesh for mesh in meshes if mesh.even_hosts != 1):
        at = np.searchsorted(ids, mesh.device_ids.reshape(-1))
        own = mesh.process_indices.reshape(-1)
        clash = np.flatnonzero(said[at] & (found[at] != own))
        if len(clash):
            first = at[clash[0]]
            raise LayoutError(
                f"Device {int(ids[first])} is of process {int(found[first])} in one mesh and of"
                f" {int(own[clash[0]])} in another. Give both meshes the same processes=."
            )
        found[at], said[at] = own, True
    if not said.any() or said.all():
        return found, ()
    some = f"{plural(int((~said).sum()), 'device')} ({ids_text(ids[~said], 60)}) of meshes with one"
    return found, (f"{some} host alone: counted on host 0. {_HOW}",)
