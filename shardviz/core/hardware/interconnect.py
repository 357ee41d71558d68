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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.errors import TargetError
from shardviz.core.format import listed, plural, shown
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.mesh import MeshSpec

MOST_PAIRS = 1 << 20  # pairs in memory at once
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
        if not self.topology.chip.axes:
            return ()
        return self.topology.shape

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Which axes close to a ring."""
        if not self.shape:
            return ()
        return self.topology.wraps

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
        # numpy counts the last axis fastest, a slice its first.
        coords = np.unravel_index(inside, self.shape[::-1])
        return np.stack(coords[::-1], axis=1).astype(np.int64)

    @cached_property
    def slice_of(self) -> np.ndarray:
        """int64 [chips]: the slice of each chip, or the host of each GPU."""
        per_part = self.chips // self.parts
        return np.arange(self.chips) // per_part

    @property
    def parts(self) -> int:
        """How many slices, or hosts of GPUs: only the network joins them."""
        if not self.shape:
            return self.topology.hosts
        return self.topology.slices

    @cached_property
    def chip_of(self) -> np.ndarray:
        """int64 [devices]: the chip of each device, in the topology's order of devices."""
        if not self.shape:
            return np.arange(self.chips)
        chips = self.topology.slice_indices
        for axis in reversed(range(len(self.shape))):
            chips = chips * self.shape[axis] + self.topology.coords[:, axis]
        return chips

    def next_chip(self, axis: int) -> np.ndarray:
        """int64 [chips]: the next chip along an axis; -1 where there is no link to one."""
        size = self.shape[axis]
        step = math.prod(self.shape[:axis])
        at = self.coords[:, axis]
        last = at == size - 1
        following = np.arange(self.chips) + np.where(last, (1 - size) * step, step)
        return np.where(last & (not self.wraps[axis]), -1, following)


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
        times: dict[str, float | None] = {}
        for name, load, rate in (
            ("ICI", self.ici, chip.link_bandwidth),
            ("NVLink", self.nvlink, chip.link_bandwidth),
            ("network", self.network, chip.network_bandwidth),
        ):
            # The busiest link is the last to be done.
            most = float(load.max(initial=0.0))
            if most:
                times[name] = rate and most * size / rate
        return times

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
    traffic = _Traffic(Torus(topology))
    torus = traffic.torus
    rows, group = _flat(groups, topology)
    if kind == "collective-permute":
        group = np.zeros_like(group)  # its pairs are not groups of their own
        pairs = torus.chip_of[rows].reshape(-1, 2)
        traffic.send(pairs, np.ones(len(pairs)))
    else:
        for part in _parts(torus, rows, group):
            _add_part(traffic, part, kind)
    return traffic.use(_only(torus.chip_of[rows], group, torus.chips))


def _flat(groups: Any, topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """The members of all groups, and the number of the group of each."""
    arrays = [np.asarray(g, np.int64).reshape(-1) for g in groups]
    rows = np.concatenate([*arrays, np.zeros(0, np.int64)])
    strange = rows[(rows < 0) | (rows >= topology.devices)]
    if len(strange):
        raise TargetError(
            f"{topology} has {plural(topology.devices, 'device')}, numbered from 0; a group"
            f" names {strange.max()}."
        )
    return rows, np.repeat(np.arange(len(arrays)), [len(a) for a in arrays])


def _only(at: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the one group at each place; UNUSED for none, SHARED for several."""
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(first, at, group)
    np.maximum.at(last, at, group)
    return np.where(last < 0, UNUSED, np.where(first == last, last, SHARED))


# --- what groups send -----------------------------------------------------------------


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

    def entries(some: np.ndarray, count: int) -> np.ndarray:
        return order[starts[some][:, None] + np.arange(count)]

    return keys, counts, entries


def _add_part(traffic: _Traffic, part: _Part, kind: str) -> None:
    count, devices = part.chips.shape[1], part.members.shape[1]
    if kind in _ROUNDS:
        rounds = _ROUNDS[kind]
        sent = rounds * (part.spans - 1) / part.spans / count
        np.add.at(traffic.network, part.chips, sent[:, None])
        if not traffic.torus.shape:
            np.add.at(traffic.nvlink, part.chips, rounds * (count - 1) / count)
        elif count > 1:
            _add_rings(traffic, part.chips, part.group, rounds * (count - 1) / count)
        return
    outside = (part.size - devices) / part.size
    np.add.at(traffic.network, part.members, outside[:, None])
    if not traffic.torus.shape:
        np.add.at(traffic.nvlink, part.members, ((devices - 1) / part.size)[:, None])
    elif devices % count:
        # Chips have unequal numbers of members: each pair by itself.
        _add_pairs(traffic, part.members, part.group, 1 / part.size)
    elif count > 1:
        share = (devices / count) ** 2 / part.size
        _add_exchange(traffic, part.chips, part.group, share)


def _add_rings(
    traffic: _Traffic, chips: np.ndarray, group: np.ndarray, share: float
) -> None:
    """What groups of equal size send around rings.

    A group that fills a rectangular block of the torus, evenly spaced or not, uses
    rings along all its axes at once; an axis that closes to a ring carries twice what
    an open one does. Any other group is one ring in its own order.

    Args:
        chips: int64 [groups, members], each row without repeats.
        group: int64 [groups], the number of each.
        share: what each chip sends.
    """
    torus = traffic.torus
    for rows, sizes in _blocks(torus, chips):
        if sizes is None:
            _add_ring(traffic, chips[rows], group[rows], np.full(len(rows), share))
            continue
        grid = np.sort(chips[rows], axis=1).reshape(len(rows), *reversed(sizes))
        capacities = [_capacity(torus, grid, a, sizes) for a in range(len(sizes))]
        weights = np.stack(capacities, axis=1)
        weights = weights / weights.sum(axis=1, keepdims=True)
        for axis, size in enumerate(sizes):
            if size > 1:
                lines = _lines(grid, axis)
                repeat = len(lines) // len(rows)
                part = np.repeat(share * weights[:, axis], repeat)
                _add_ring(traffic, lines, np.repeat(group[rows], repeat), part)


def _add_exchange(
    traffic: _Traffic, chips: np.ndarray, group: np.ndarray, share: np.ndarray
) -> None:
    """What groups of equal size send from every member to every other.

    Routed axis by axis, a group that fills a block loads the lines along each axis
    alike, so its pairs are counted one line at a time: 4,096 chips take thousands of
    sends instead of millions.

    Args:
        chips: int64 [groups, members], each row without repeats.
        group: int64 [groups], the number of each.
        share: float64 [groups]: what one chip sends to another.
    """
    count = chips.shape[1]
    for rows, sizes in _blocks(traffic.torus, chips):
        if sizes is None:
            _add_pairs(traffic, chips[rows], group[rows], share[rows])
            continue
        grid = np.sort(chips[rows], axis=1).reshape(len(rows), *reversed(sizes))
        for axis, size in enumerate(sizes):
            if size > 1:
                lines = _lines(grid, axis)
                repeat = len(lines) // len(rows)
                owner = np.repeat(group[rows], repeat)
                each = np.repeat(share[rows] * count / size, repeat)
                _add_pairs(traffic, lines, owner, each)


def _blocks(
    torus: Torus, chips: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple | None]]:
    """Rows of like shape, and the sizes of the block that each fills; None for no block."""
    # [groups, members, axes], each axis sorted by itself
    coords = np.sort(torus.coords[chips], axis=1)
    sizes = (np.diff(coords, axis=1) != 0).sum(axis=1) + 1
    sizes[sizes.prod(axis=1) != chips.shape[1]] = 0
    # A block is in one slice; chips of several slices share coordinates.
    sizes[(torus.slice_of[chips] != torus.slice_of[chips[:, :1]]).any(axis=1)] = 0
    for shape in np.unique(sizes, axis=0):
        rows = np.flatnonzero((sizes == shape).all(axis=1))
        if shape.all():
            yield rows, tuple(shape.tolist())
        else:
            yield rows, None


def _lines(grid: np.ndarray, axis: int) -> np.ndarray:
    """int64 [lines, size]: the chips of a block along one axis; chips count x fastest."""
    size = grid.shape[-1 - axis]
    return np.moveaxis(grid, grid.ndim - 1 - axis, -1).reshape(-1, size)


def _capacity(
    torus: Torus, grid: np.ndarray, axis: int, sizes: tuple[int, ...]
) -> np.ndarray:
    """float64 [groups]: 2 where an axis closes to a ring, 1 where open, 0 where flat."""
    if sizes[axis] == 1:
        return np.zeros(len(grid))
    first = _lines(grid, axis).reshape(len(grid), -1, sizes[axis])[:, 0]
    coords = torus.coords[first][..., axis]
    even = (np.diff(coords, axis=1) * sizes[axis] == torus.shape[axis]).all(axis=1)
    return np.where(even & torus.wraps[axis], 2.0, 1.0)


def _add_ring(
    traffic: _Traffic, lines: np.ndarray, group: np.ndarray, share: np.ndarray
) -> None:
    """Each member to the next and to the one before, half of the share each."""
    here, there = lines.reshape(-1), np.roll(lines, -1, axis=1).reshape(-1)
    half, owner = (np.repeat(v, lines.shape[1]) for v in (share / 2, group))
    traffic.add(here, there, half, owner)
    traffic.add(there, here, half, owner)


def _add_pairs(
    traffic: _Traffic, lines: np.ndarray, group: np.ndarray, share: np.ndarray
) -> None:
    """Every member of a row to every other, some rows at a time."""
    source, target = np.nonzero(~np.eye(lines.shape[1], dtype=bool))
    step = max(1, MOST_PAIRS // max(1, len(source)))
    for first in range(0, len(lines), step):
        some = slice(first, first + step)
        here, there = lines[some][:, source], lines[some][:, target]
        each, owner = (np.repeat(v[some], len(source)) for v in (share, group))
        traffic.add(here.reshape(-1), there.reshape(-1), each, owner)


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
    traffic = _Traffic(Torus(topology))
    traffic.send(traffic.torus.chip_of[sends[:, :2]], sends[:, 2].astype(float))
    return traffic.use(np.zeros(traffic.torus.chips, np.int64)).times(1.0)


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


class _Traffic:
    """What the links of a torus carry, added up send by send; as of a LinkUse."""

    def __init__(self, torus: Torus):
        self.torus = torus
        axes = len(torus.shape)
        self.ici = np.zeros((torus.chips, axes, 2))
        self.nvlink, self.network = np.zeros(torus.chips), np.zeros(torus.chips)
        self._first = np.full((torus.chips, axes), np.iinfo(np.int64).max)
        self._last = np.full((torus.chips, axes), -1)

    def use(self, chip_group: np.ndarray) -> LinkUse:
        """What was added up."""
        owner = np.where(self._first == self._last, self._last, SHARED)
        owner = np.where(self._last < 0, UNUSED, owner)
        return LinkUse(
            self.torus, self.ici, self.nvlink, self.network, owner, chip_group
        )

    def send(self, pairs: np.ndarray, share: np.ndarray) -> None:
        """Chips to others: inside a slice or host over its links, else by the network."""
        source, target = pairs.T
        torus = self.torus
        inside = torus.slice_of[source] == torus.slice_of[target]
        np.add.at(self.network, source[~inside], share[~inside])
        moves = inside & (source != target)
        if torus.shape:
            alone = np.zeros(int(moves.sum()), np.int64)
            self.add(source[moves], target[moves], share[moves], alone)
        else:
            np.add.at(self.nvlink, source[moves], share[moves])

    def add(
        self,
        source: np.ndarray,
        target: np.ndarray,
        share: np.ndarray,
        group: np.ndarray,
    ) -> None:
        """Routes sends along x first, then y, then z, the shorter way around.

        Where both ways around are equally long, half goes each way.
        """
        here = source
        coords = self.torus.coords
        for axis, size in enumerate(self.torus.shape):
            step = coords[target, axis] - coords[here, axis]
            onward, back = step % size, -step % size
            if not self.torus.wraps[axis]:
                # The way around is longer than any.
                onward = np.where(step < 0, size, onward)
                back = np.where(step > 0, size, back)
            tie = np.where(onward == back, 0.5, 1.0) * share
            self._along(axis, here, np.where(onward <= back, onward, 0), tie, group, 0)
            self._along(axis, here, np.where(back <= onward, back, 0), tie, group, 1)
            here = here + step * math.prod(self.torus.shape[:axis])

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
        at, hops = here[moving], hops[moving]
        share, group = share[moving], group[moving]
        following = self.torus.next_chip(axis)
        before = np.full(len(following), -1)
        linked = following >= 0
        before[following[linked]] = np.flatnonzero(linked)
        while len(at):
            self.ici[:, axis, way] += np.bincount(at, share, self.torus.chips)
            if way == 0:
                link, on = at, following[at]
            else:
                # The link back is that of the chip before, which owns it both ways.
                link = on = before[at]
            np.minimum.at(self._first[:, axis], link, group)
            np.maximum.at(self._last[:, axis], link, group)
            hops = hops - 1
            left = hops > 0
            at, hops, share, group = on[left], hops[left], share[left], group[left]
