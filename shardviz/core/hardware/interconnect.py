"""route(): the links that a collective uses, and the share of its bytes that each
carries.

`Torus` holds the chips of a described topology as a grid with links, and the routes
through it.

The model, for a collective about B bytes on each device and a group of n; a share is a
part of B:

- all-gather and reduce-scatter send B (n-1)/n around rings, both ways at once, over
  every axis of the torus that the group spans; an all-reduce sends twice that, a
  broadcast as much as a gather.
- all-to-all sends B/n from each device to each other; a permutation B from each sender.
- On a TPU sends are routed along x, then y, then z. Between slices each chip sends an
  equal part of what its slice sends to the others over the data-center network.
- On GPUs NVLink joins any two of a host at full rate, and the network joins hosts as it
  does slices.

Follows parts 3 and 12 of https://jax-ml.github.io/scaling-book; latency is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.errors import TargetError
from shardviz.core.format import listed, plural, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.mesh import MeshSpec

MOST_PAIRS = 1 << 20  # pairs in memory at once


def ring_traffic(
    torus: Torus, chips: np.ndarray, group: np.ndarray, rounds: int
) -> Iterator[ChipTraffic]:
    """What groups of equal size send around rings.

    A group that fills a rectangular block of the torus, evenly spaced or not, uses
    rings along all its axes at once; an axis that closes to a ring carries twice what
    an open one does. Any other group is one ring in its own order.

    Args:
        chips: int64 [groups, members], each row without repeats.
        group: int64 [groups], the number of each.
        rounds: 1, or 2 for an all-reduce.
    """
    count = chips.shape[1]
    share = rounds * (count - 1) / count
    for rows, sizes in _blocks(torus, chips):
        if sizes is None:
            yield _ring(chips[rows], np.full(len(rows), share), group[rows])
            continue
        grid = np.sort(chips[rows], axis=1).reshape(len(rows), *reversed(sizes))
        weights = np.stack(
            [_capacity(torus, grid, axis, sizes) for axis in range(len(sizes))], axis=1
        )
        weights = weights / weights.sum(axis=1, keepdims=True)
        for axis, size in enumerate(sizes):
            if size > 1:
                lines = _lines(grid, axis)
                repeat = len(lines) // len(rows)
                part = np.repeat(share * weights[:, axis], repeat)
                yield _ring(lines, part, np.repeat(group[rows], repeat))


def exchange_traffic(
    torus: Torus, chips: np.ndarray, group: np.ndarray, share: float
) -> Iterator[ChipTraffic]:
    """What groups of equal size send from every member to every other.

    Routed axis by axis, a group that fills a block loads the lines along each axis
    alike, so its pairs are counted one line at a time: 4,096 chips take thousands of
    sends instead of millions.

    Args:
        chips: int64 [groups, members], each row without repeats.
        group: int64 [groups], the number of each.
        share: what one chip sends to another.
    """
    count = chips.shape[1]
    for rows, sizes in _blocks(torus, chips):
        if sizes is None:
            yield from pair_traffic(chips[rows], group[rows], share)
            continue
        grid = np.sort(chips[rows], axis=1).reshape(len(rows), *reversed(sizes))
        for axis, size in enumerate(sizes):
            if size > 1:
                lines = _lines(grid, axis)
                owner = np.repeat(group[rows], len(lines) // len(rows))
                yield from pair_traffic(lines, owner, share * count / size)


def _blocks(
    torus: Torus, chips: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple | None]]:
    """Rows of like shape, and the sizes of the block that each fills; None where it
    fills none.
    """
    coords = np.sort(
        torus.coords[chips], axis=1
    )  # [groups, members, axes], each axis by itself
    sizes = (np.diff(coords, axis=1) != 0).sum(axis=1) + 1
    sizes[sizes.prod(axis=1) != chips.shape[1]] = 0
    # A block is in one slice; chips of several slices share coordinates.
    sizes[(torus.slice_of[chips] != torus.slice_of[chips[:, :1]]).any(axis=1)] = 0
    for shape in np.unique(sizes, axis=0):
        rows = np.flatnonzero((sizes == shape).all(axis=1))
        yield rows, tuple(shape.tolist()) if shape.all() else None


def _lines(grid: np.ndarray, axis: int) -> np.ndarray:
    """int64 [lines, size]: the chips of a block along one axis; chips count x fastest."""
    return np.moveaxis(grid, grid.ndim - 1 - axis, -1).reshape(
        -1, grid.shape[-1 - axis]
    )


def _capacity(
    torus: Torus, grid: np.ndarray, axis: int, sizes: tuple[int, ...]
) -> np.ndarray:
    """float64 [groups]: 2 where a block's axis closes to a ring, 1 where open, 0 where
    flat.
    """
    if sizes[axis] == 1:
        return np.zeros(len(grid))
    first = _lines(grid, axis).reshape(len(grid), -1, sizes[axis])[:, 0]
    coords = torus.coords[first][..., axis]
    even = (np.diff(coords, axis=1) * sizes[axis] == torus.shape[axis]).all(axis=1)
    return np.where(even & torus.wraps[axis], 2.0, 1.0)


def _ring(lines: np.ndarray, share: np.ndarray, group: np.ndarray) -> ChipTraffic:
    """Each member to the next and to the one before, half of the share each."""
    after = np.roll(lines, -1, axis=1)
    size = lines.shape[1]
    half, owner = np.repeat(share / 2, size), np.repeat(group, size)
    here, there = lines.reshape(-1), after.reshape(-1)
    return ChipTraffic(
        np.concatenate([here, there]),
        np.concatenate([there, here]),
        np.concatenate([half, half]),
        np.concatenate([owner, owner]),
    )


def pair_traffic(
    lines: np.ndarray, group: np.ndarray, share: float
) -> Iterator[ChipTraffic]:
    """Every member of a row to every other, some rows at a time.

    Args:
        lines: int64 [rows, members], chips.
        group: int64 [rows], the number of each.
        share: what one sends to another.
    """
    size = lines.shape[1]
    source, target = np.nonzero(~np.eye(size, dtype=bool))
    step = max(1, MOST_PAIRS // max(1, len(source)))
    for first in range(0, len(lines), step):
        some = lines[first : first + step]
        owner = np.repeat(group[first : first + step], len(source))
        here, there = some[:, source].reshape(-1), some[:, target].reshape(-1)
        yield ChipTraffic(here, there, np.full(len(here), share), owner)


_ROUNDS = {
    "all-gather": 1,
    "reduce-scatter": 1,
    "collective-broadcast": 1,
    "all-reduce": 2,
}
KINDS = (*_ROUNDS, "all-to-all", "collective-permute")


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What a collective sends over each link, as shares of its bytes on each device.

    Attributes:
        torus: the chips and their links.
        ici: float64 [chips, axes, 2]: on the link to the next chip along an axis, and
            on the one to the chip before.
        nvlink: float64 [chips]: what each GPU sends inside its host.
        network: float64 [chips]: what each chip sends to other slices or hosts.
        owner: int64 [chips, axes]: the group that uses the link to the next chip,
            either way; -1 where none does, -2 where several do.
        chip_group: int64 [chips]: the group of each chip; -1 for none, -2 for several.

    >>> links = route(Topology.parse("tpu:v5e:4x4"), [range(4)], "all-gather")
    >>> links.used, links.times(1e9)
    (4, {'ICI': 0.0075})
    """

    torus: Torus
    ici: np.ndarray
    nvlink: np.ndarray
    network: np.ndarray
    owner: np.ndarray
    chip_group: np.ndarray

    @property
    def used(self) -> int:
        """How many links between chips carry something, either way."""
        return int((self.owner != -1).sum())

    def times(self, size: float) -> dict[str, float | None]:
        """The least seconds that each kind of link takes for `size` bytes on each
        device.

        Only kinds that carry something; None where the rate is not published.

        >>> links = route(Topology.parse("gpu:h100:2x8"), [range(16)], "all-gather")
        >>> {name: round(s * 1e6) for name, s in links.times(1 << 30).items()}
        {'NVLink': 2088, 'network': 1342}
        """
        chip = self.torus.topology.chip
        found: dict[str, float | None] = {}
        for name, load, rate in (
            ("ICI", self.ici, chip.link_bandwidth),
            ("NVLink", self.nvlink, chip.link_bandwidth),
            ("network", self.network, chip.network_bandwidth),
        ):
            most = float(load.max(initial=0.0))
            if most:
                found[name] = None if rate is None else most * size / rate
        return found

    def seconds(self, size: float) -> float | None:
        """The least seconds for `size` bytes on each device; None where a rate is not
        published.
        """
        longest = 0.0
        for seconds in self.times(size).values():
            if seconds is None:
                return None
            # Kinds of links carry at the same time.
            longest = max(longest, seconds)
        return longest


def route(topology: Topology, groups: Any, kind: str) -> LinkUse:
    """The links that a collective uses.

    Args:
        topology: the described slice or cluster.
        groups: the groups of devices, as their positions in the topology's order; for a
            permutation, pairs of sender and receiver, which count as one group.
        kind: one of KINDS.

    Raises:
        TargetError: for another kind, or a device that the topology lacks.

    >>> route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-reduce").used
    192
    """
    if kind not in KINDS:
        raise TargetError(
            f"No routes are known for {shown(kind)}; they are for {listed(KINDS)}."
        )
    torus = Torus(topology)
    rows, group = _flat(groups, topology)
    if kind == "collective-permute":
        group = np.zeros_like(group)  # its pairs are not groups of their own
    traffic = Traffic(torus)
    if kind == "collective-permute":
        _permute(traffic, rows, group)
    else:
        for part in _parts(torus, rows, group):
            _group_part(traffic, part, kind)
    return LinkUse(
        torus,
        traffic.load,
        traffic.nvlink,
        traffic.network,
        traffic.owner,
        _one_group(torus.chip_of[rows], group, torus.chips),
    )


def _flat(groups: Any, topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """The members of all groups, and the number of the group of each."""
    arrays = [np.asarray(g, np.int64).reshape(-1) for g in groups]
    rows = np.concatenate([*arrays, np.zeros(0, np.int64)])
    if len(rows) and not 0 <= rows.min() <= rows.max() < topology.devices:
        raise TargetError(
            f"{topology} has {plural(topology.devices, 'device')}, numbered from 0; a group names"
            f" {int(rows.max() if rows.max() >= topology.devices else rows.min())}."
        )
    return rows, np.repeat(np.arange(len(arrays)), [len(a) for a in arrays])


def _one_group(chips: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(first, chips, group)
    np.maximum.at(last, chips, group)
    return np.where(last < 0, -1, np.where(first == last, last, -2))


@dataclass(frozen=True)
class _Part:
    """The parts of like size that groups have in one slice or host.

    Attributes:
        chips: int64 [parts, chips]: each chip once.
        members: int64 [parts, devices]: the chip of each member.
        group: int64 [parts].
        size: int64 [parts]: members of the full group.
        spans: int64 [parts]: slices or hosts of the full group.
    """

    chips: np.ndarray
    members: np.ndarray
    group: np.ndarray
    size: np.ndarray
    spans: np.ndarray


def _parts(torus: Torus, rows: np.ndarray, group: np.ndarray) -> Iterator[_Part]:
    every = torus.chip_of[rows]
    where = group * torus.parts + torus.slice_of[every]
    # Devices of one chip need no link between them: each chip counts once, where it
    # comes first.
    first = np.sort(np.unique(where * torus.chips + every, return_index=True)[1])
    keys, devices, member_at = _stretches(where)
    _, counts, chip_at = _stretches(where[first])
    owner = keys // torus.parts
    size, spans = np.bincount(group), np.bincount(owner)
    for count, held in np.unique(np.stack([counts, devices], axis=1), axis=0):
        some = np.flatnonzero((counts == count) & (devices == held))
        chips = every[first][chip_at(some, count)]
        members = every[member_at(some, held)]
        yield _Part(chips, members, owner[some], size[owner[some]], spans[owner[some]])


def _stretches(where: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """The keys that occur, how often, and a function from some keys to their entries."""
    order = np.argsort(where, kind="stable")
    keys, counts = np.unique(where, return_counts=True)
    starts = np.cumsum(counts) - counts
    return (
        keys,
        counts,
        lambda some, count: order[starts[some][:, None] + np.arange(count)],
    )


def _group_part(traffic: Traffic, part: _Part, kind: str) -> None:
    count, devices = part.chips.shape[1], part.members.shape[1]
    if kind in _ROUNDS:
        rounds = _ROUNDS[kind]
        sent = rounds * (part.spans - 1) / part.spans / count
        np.add.at(traffic.network, part.chips, sent[:, None])
        if not traffic.torus.shape:
            np.add.at(traffic.nvlink, part.chips, rounds * (count - 1) / count)
        elif count > 1:
            traffic.add_all(ring_traffic(traffic.torus, part.chips, part.group, rounds))
        return
    np.add.at(
        traffic.network, part.members, ((part.size - devices) / part.size)[:, None]
    )
    if not traffic.torus.shape:
        np.add.at(traffic.nvlink, part.members, ((devices - 1) / part.size)[:, None])
    elif count > 1:
        _exchange(traffic, part)


def _exchange(traffic: Traffic, part: _Part) -> None:
    """The sends of an all-to-all inside slices; by pairs where chips have unequal
    member counts.
    """
    count, devices = part.chips.shape[1], part.members.shape[1]
    again = np.repeat(np.sort(part.chips, axis=1), max(1, devices // count), axis=1)
    # Whether every chip of a part has as many members as the others.
    even = np.zeros(len(part.group), bool)
    if again.shape == part.members.shape:
        even = (again == np.sort(part.members, axis=1)).all(axis=1)
    for size in np.unique(part.size):
        some, rest = even & (part.size == size), ~even & (part.size == size)
        share = (devices / count) ** 2 / size
        traffic.add_all(
            exchange_traffic(traffic.torus, part.chips[some], part.group[some], share)
        )
        traffic.add_all(pair_traffic(part.members[rest], part.group[rest], 1 / size))


def _permute(traffic: Traffic, rows: np.ndarray, group: np.ndarray) -> None:
    source, target = traffic.torus.chip_of[rows].reshape(-1, 2).T
    _send(traffic, source, target, np.ones(len(source)), group[::2])


def _send(
    traffic: Traffic,
    source: np.ndarray,
    target: np.ndarray,
    share: np.ndarray,
    group: np.ndarray,
) -> None:
    """Each chip to one other: within a slice or host over its links, else over the
    network.
    """
    torus = traffic.torus
    inside = torus.slice_of[source] == torus.slice_of[target]
    np.add.at(traffic.network, source[~inside], share[~inside])
    moves = inside & (source != target)
    if torus.shape:
        traffic.add(source[moves], target[moves], share[moves], group[moves])
    else:
        np.add.at(traffic.nvlink, source[moves], share[moves])


def least_send_seconds(
    topology: Topology, sends: np.ndarray
) -> dict[str, float | None]:
    """The least seconds on each kind of link for sends of any size, all at once.

    Args:
        topology: the described slice or cluster.
        sends: int64 [sends, 3]: the positions of sender and receiver in the topology's
            order, and bytes.

    >>> least_send_seconds(Topology.parse("tpu:v5e:4x4"), np.array([[0, 1, 50_000_000]]))
    {'ICI': 0.001}
    """
    traffic = Traffic(Torus(topology))
    source, target = traffic.torus.chip_of[sends[:, :2]].T
    alone = np.zeros(len(sends), np.int64)
    _send(traffic, source, target, sends[:, 2].astype(float), alone)
    found = LinkUse(
        traffic.torus,
        traffic.load,
        traffic.nvlink,
        traffic.network,
        traffic.owner,
        alone,
    )
    return found.times(1.0)


def device_rows(mesh: MeshSpec, topology: Topology) -> np.ndarray:
    """int64 [mesh.size]: the position in the topology's order of each device of a mesh.

    A device is found by its id; a mesh of 0, 1, 2, … that are no ids of the topology
    (those of several slices start at 100,000) counts its devices in the order of their
    ids.

    Raises:
        TargetError: where the mesh names devices that the topology lacks.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> device_rows(make_mesh(data=2, model=2), Topology.parse("tpu:v5e:2x2")).tolist()
    [0, 1, 2, 3]
    """
    ids = mesh.device_ids.reshape(-1)
    order = np.argsort(topology.device_ids, kind="stable")
    known = topology.device_ids[order]
    at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    if mesh.size <= topology.devices and (known[at] == ids).all():
        return order[at]
    if mesh.size == topology.devices and mesh.ids_are_positions:
        return order
    raise TargetError(
        f"The mesh {mesh} has {plural(mesh.size, 'device')} that are not those of {topology}, which"
        f" has {topology.devices:,}. Take a mesh of {topology.devices:,} devices, or a topology"
        f" of {mesh.size:,}."
    )


def groups_over(mesh: MeshSpec, axes: Sequence[str]) -> np.ndarray:
    """int64 [groups, members]: the positions in a mesh that differ along some axes
    only.

    Raises:
        MeshError: for an axis that the mesh lacks.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> groups_over(make_mesh(data=2, model=2), ["data"]).tolist()
    [[0, 2], [1, 3]]
    """
    for axis in axes:
        mesh.require_axis(axis)
    inner = [mesh.positions[a] for a in axes]
    outer = [i for i in range(len(mesh.axis_names)) if i not in inner]
    flat = np.arange(mesh.size).reshape(mesh.axis_sizes).transpose(*outer, *inner)
    members = int(np.prod([mesh.shape[a] for a in axes], dtype=np.int64))
    return flat.reshape(-1, members)


UNUSED, SHARED = -1, -2


@dataclass(frozen=True, eq=False)
class Torus:
    """Chips, counted x fastest, slice after slice, with a link to the next one along
    each axis.

    A cluster of GPUs has chips and no such links: its hosts are joined by switches.

    >>> torus = Torus(Topology.parse("tpu:v5e:16x16"))
    >>> torus.chips, torus.next_chip(0).tolist()[15]
    (256, 0)
    """

    topology: Topology

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Chips along each axis of a slice."""
        return self.topology.shape if self.topology.chip.axes else ()

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Which axes close to a ring."""
        return self.topology.wraps if self.shape else ()

    @property
    def chips(self) -> int:
        """How many chips, over all slices."""
        return self.topology.chips

    @cached_property
    def coords(self) -> np.ndarray:
        """int64 [chips, axes]: the coordinates of each chip in its slice."""
        if not self.shape:
            return np.zeros((self.chips, 0), np.int64)
        inside = np.arange(self.chips) % math.prod(self.shape)
        found = np.unravel_index(inside, tuple(reversed(self.shape)))
        return np.stack(list(reversed(found)), axis=1).astype(np.int64)

    @cached_property
    def slice_of(self) -> np.ndarray:
        """int64 [chips]: the slice of each chip, or the host of each GPU."""
        per_part = self.chips // self.parts
        return np.arange(self.chips) // per_part

    @property
    def parts(self) -> int:
        """How many slices, or hosts of GPUs: only the network joins them."""
        return self.topology.slices if self.shape else self.topology.hosts

    @cached_property
    def chip_of(self) -> np.ndarray:
        """int64 [devices]: the chip of each device, in the topology's order of devices."""
        if not self.shape:
            return np.arange(self.chips)
        found = self.topology.slice_indices
        for axis in reversed(range(len(self.shape))):
            found = found * self.shape[axis] + self.topology.coords[:, axis]
        return found

    def next_chip(self, axis: int) -> np.ndarray:
        """int64 [chips]: the next chip along an axis; -1 where there is no link to one."""
        size = self.shape[axis]
        step = math.prod(self.shape[:axis])
        at = self.coords[:, axis]
        last = at == size - 1
        following = np.arange(self.chips) + np.where(last, (1 - size) * step, step)
        return np.where(last & (not self.wraps[axis]), -1, following)


@dataclass(frozen=True)
class ChipTraffic:
    """Sends between chips, one entry per send.

    Attributes:
        source, target: int64 [sends]: chips.
        share: float64 [sends]: of the collective's bytes on each device.
        group: int64 [sends]: the group that sends.
    """

    source: np.ndarray
    target: np.ndarray
    share: np.ndarray
    group: np.ndarray


class Traffic:
    """What the links of a torus carry, added up send by send.

    Attributes:
        load: float64 [chips, axes, 2]: the share on the link to the next chip and to
            the one before.
        nvlink, network: float64 [chips]: the share that each chip sends inside its
            host, and to other slices or hosts.
        owner: int64 [chips, axes]: the group that uses the link to the next chip,
            either way; UNUSED, or SHARED by several groups.
    """

    def __init__(self, torus: Torus):
        self.torus = torus
        axes = len(torus.shape)
        self.load = np.zeros((torus.chips, axes, 2))
        self.nvlink, self.network = np.zeros(torus.chips), np.zeros(torus.chips)
        self._first = np.full((torus.chips, axes), np.iinfo(np.int64).max)
        self._last = np.full((torus.chips, axes), -1)

    @property
    def owner(self) -> np.ndarray:
        """int64 [chips, axes]: see the class."""
        return np.where(
            self._last < 0,
            UNUSED,
            np.where(self._first == self._last, self._last, SHARED),
        )

    def add_all(self, traffic: Iterable[ChipTraffic]) -> None:
        """Routes the sends of every ChipTraffic."""
        for sends in traffic:
            self.add(sends.source, sends.target, sends.share, sends.group)

    def add(
        self,
        source: np.ndarray,
        target: np.ndarray,
        share: np.ndarray,
        group: np.ndarray,
    ) -> None:
        """Routes sends by dimension order: along x first, then y, then z, the shorter
        way around.

        Where both ways around are equally long, half goes each way.
        """
        here = source
        coords = self.torus.coords
        for axis, size in enumerate(self.torus.shape):
            step = coords[target, axis] - coords[here, axis]
            if self.torus.wraps[axis]:
                onward, back = step % size, -step % size
            else:
                onward, back = np.maximum(step, 0), np.maximum(-step, 0)
                onward, back = (
                    np.where(back, size, onward),
                    np.where(onward, size, back),
                )
            tie = np.where(onward == back, 0.5, 1.0) * share
            self._along(axis, here, np.where(onward <= back, onward, 0), tie, group, 0)
            self._along(axis, here, np.where(back <= onward, back, 0), tie, group, 1)
            stride = int(np.prod(self.torus.shape[:axis]))
            here = here + step * stride

    def _along(
        self,
        axis: int,
        here: np.ndarray,
        hops: np.ndarray,
        share: np.ndarray,
        group: np.ndarray,
        way: int,
    ) -> None:
        moving = np.flatnonzero(hops)
        at, hops, share, group = (
            here[moving],
            hops[moving],
            share[moving],
            group[moving],
        )
        following = self.torus.next_chip(axis)
        before = np.full(len(following), -1)
        linked = following >= 0
        before[following[linked]] = np.flatnonzero(linked)
        while len(at):
            self.load[:, axis, way] += np.bincount(at, share, self.torus.chips)
            on = (following if way == 0 else before)[at]
            link = at if way == 0 else on
            np.minimum.at(self._first[:, axis], link, group)
            np.maximum.at(self._last[:, axis], link, group)
            hops = hops - 1
            left = hops > 0
            at, hops, share, group = on[left], hops[left], share[left], group[left]
