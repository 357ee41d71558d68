"""reshard_layouts() -> Reshard: who sends what to whom when arrays get other layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from shardviz.core.display import Displayed, Fact
from shardviz.core.errors import LayoutError
from shardviz.core.format import plural
from shardviz.core.layout.array_spec import ArraySpec, size_in_bytes
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.rules.requests import collector_paused
from shardviz.core.layout.transfer.reshard_moves import common_chunks, find_sends

MOST_DENSE = 4096  # devices of a matrix of moves
_Arrays = list[tuple[ArraySpec, Layout, Layout]]  # from one layout to the other


@dataclass(frozen=True)
class AssumedHost(Fact):
    """Devices whose process no mesh says, while it says that of others: counted on host
    0.

    Attributes:
        device_ids: theirs, ascending.

    >>> AssumedHost((4, 5)).device_ids
    (4, 5)
    """

    device_ids: tuple[int, ...]


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
    """What every device sends to whom when arrays get other layouts; made by
    `shardviz.reshard`.

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
    notes: tuple[AssumedHost, ...] = ()

    @cached_property
    def moves(self) -> np.ndarray:
        """int64 [devices, devices]: the bytes that each device (row) sends to each
        (column).

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
        """int64 [hosts, hosts]: the bytes from each host (row) to each, in `host_ids`'
        order.

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
        return f"Reshard({self})"


def _summed_at(at: np.ndarray, amount: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the sum of what is at each position."""
    total = np.zeros(count, np.int64)
    np.add.at(total, at, amount)
    return total


def _matrix(
    source: np.ndarray, target: np.ndarray, amount: np.ndarray, count: int, noun: str
) -> np.ndarray:
    if count > MOST_DENSE:
        raise LayoutError(
            f"A matrix of {count:,} × {plural(count, noun)} is not made; it is for at most"
            f" {MOST_DENSE:,}. Take .sends, which lists the pairs of devices that send."
        )
    flat = _summed_at(source * count + target, amount, count * count)
    return flat.reshape(count, count)


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

    Arrays that are split alike have the same, whatever their sizes; dimensions that
    neither side splits have none.
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


def _exchange(
    before: Layout, after: Layout, ids: np.ndarray, hosts: np.ndarray
) -> _Exchange:
    shape, *blocks = _shape_in_parts(before, after)
    held, wanted = (np.full(len(ids), -1) for _ in range(2))
    for found, layout in ((held, before), (wanted, after)):
        found[np.searchsorted(ids, layout.device_ids)] = layout.groups
    count = math.prod(shape)
    if np.array_equal(held, wanted) and blocks[0] == blocks[1]:
        nothing = np.zeros(0, np.int64)
        return _Exchange(nothing, nothing, "", True, count, 0)
    bounds, old, new = common_chunks(shape, *blocks)
    parts = np.prod(np.diff(bounds, axis=2)[:, :, 0], axis=1, dtype=np.int64)
    source, target, chunk = find_sends(held, wanted, old, new, hosts)
    sent = parts[chunk]
    kind = "all-to-all"
    if not np.array_equal(held < 0, wanted < 0):
        kind = "copy"
    elif (sent == math.prod(blocks[1])).all():
        # Every receiver gets all that it needs from one device.
        kind = "collective-permute"
    elif (sent == math.prod(blocks[0])).all():
        kind = "all-gather"
    return _Exchange(
        source * len(ids) + target, sent, kind, False, count, int(sent.sum())
    )


def reshard_layouts(
    arrays: Sequence[ArraySpec],
    before: Sequence[Layout | str],
    after: Sequence[Layout | str],
    processes: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Reshard:
    """The Reshard of many arrays; those that are split alike are computed once.

    Args:
        arrays: each under its path.
        before, after: the layout of each on either side, or the sentence on why it has
            none.
        processes: from ids of devices to the process of each; that of the meshes by
            default.

    Raises:
        LayoutError: where two meshes say other processes of a device, or a reshard has
            more than MOST_SENT chunks.
    """
    left: dict[str, str] = {}
    sound: _Arrays = []
    for array, one, other in zip(arrays, before, after, strict=True):
        if isinstance(one, Layout) and isinstance(other, Layout):
            sound.append((array, one, other))
        else:
            left[array.name] = str(other) if isinstance(one, Layout) else str(one)
    meshes = {id(layout.mesh): layout.mesh for _, *both in sound for layout in both}
    every = [mesh.device_ids.reshape(-1) for mesh in meshes.values()]
    ids = np.unique(np.concatenate([*every, np.zeros(0, np.int64)]))
    if processes is None:
        hosts, notes = _hosts(ids, meshes.values())
    else:
        hosts, notes = processes(ids), ()
    with collector_paused():
        made = _resharded(sound, left, ids, hosts, notes)
    for value in vars(made).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return made


def _resharded(
    sound: _Arrays,
    left: dict[str, str],
    ids: np.ndarray,
    hosts: np.ndarray,
    notes: tuple[AssumedHost, ...],
) -> Reshard:
    # Arrays that are split alike send the same parts, whatever their sizes; so a model
    # with thousands of arrays has some dozens of exchanges.
    exchanges: dict[object, _Exchange] = {}
    of_pair: dict[tuple[int, int], _Exchange] = {}
    bits: dict[int, int] = {}  # of one part, over all arrays of an exchange
    rows, unchanged = [], []
    for array, one, other in sound:
        pair = id(one), id(other)
        if pair not in of_pair:
            key = _alike(one, other)
            if key not in exchanges:
                exchanges[key] = _exchange(one, other, ids, hosts)
            of_pair[pair] = exchanges[key]
        exchange = of_pair[pair]
        size = math.prod(array.shape) * size_in_bytes(8, array.dtype)
        each = size // max(exchange.count, 1)
        bits[id(exchange)] = bits.get(id(exchange), 0) + each
        moved = -(-exchange.sent * each // 8)
        kind = exchange.kind if moved else ""
        rows.append(ReshardRow(array.name, array, one, other, moved, kind))
        unchanged.append(exchange.unchanged)
    rows.sort(key=lambda row: -row.bytes_moved)
    sent = []
    for exchange in exchanges.values():
        if len(exchange.pairs):
            sent.append((exchange.pairs, exchange.parts * bits[id(exchange)]))
    return Reshard(
        tuple(rows),
        MappingProxyType(left),
        ids,
        hosts,
        _summed_sends(sent, len(ids)),
        *_memory(sound, unchanged, ids),
        notes=notes,
    )


def _alike(before: Layout, after: Layout) -> object:
    """A key that is equal where the same parts are sent."""
    counts = list(zip(before.block_counts, after.block_counts, strict=True))
    split = [dim for dim, some in enumerate(counts) if max(some) > 1]
    sides: list[object] = [_shape_in_parts(before, after)]
    for layout in (before, after):
        if layout.spec is None:
            sides.append(id(layout))
            continue
        dims = layout.spec.dims + ((),) * (layout.rank - len(layout.spec.dims))
        sides.append((id(layout.mesh), *(dims[dim] for dim in split)))
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
    table = np.stack([pairs[first] // count, pairs[first] % count, total], axis=1)
    return table[total > 0]


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
    held = []
    for side in ([one for _, one, _ in sound], [other for *_, other in sound]):
        sizes = np.array([layout.bytes_per_device for layout in side], np.int64)
        which = [number[id(layout.mesh)] for layout in side]
        held.append(sizes[:, None] * kinds[which])
    before, after = held
    new = after * ~np.array(unchanged, bool)[:, None]
    kept = (before + new).sum(axis=0)
    # While an array is moved, those before it are there as new and those after it as
    # old.
    change = np.cumsum(after - before, axis=0) - (after - before)
    moving = before.sum(axis=0) + change + new
    kind_of = kind_of.reshape(-1)
    return (
        before.sum(axis=0)[kind_of],
        after.sum(axis=0)[kind_of],
        int(kept.max(initial=0)),
        int(moving.max(initial=0)),
    )


def _hosts(
    ids: np.ndarray, meshes: Iterable[MeshSpec]
) -> tuple[np.ndarray, tuple[AssumedHost, ...]]:
    """The process of each device, and a note where some are assumed."""
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
    return hosts, (AssumedHost(tuple(ids[~known].tolist())),)
