"""route(): the links that a collective uses, and the share of its bytes on each.

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
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from shardviz.base.axis_parts import group_size
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import KINDS, Route
from shardviz.base.errors import TargetError
from shardviz.base.format import listed, plural, shown
from shardviz.base.mesh import MeshSpec
from shardviz.hardware.topology import Topology

# Pairs in memory at once.
MOST_PAIRS = 1 << 20
#: The kinds of collective whose routes are known.
ROUTED = tuple(name for name, kind in KINDS.items() if kind.route is not Route.UNKNOWN)


@dataclass(frozen=True, eq=False)
class Torus:
    """The chips of a topology, slice after slice, x fastest, each linked to the next.

    A cluster of GPUs has chips and no such links: its hosts are joined by switches.

    Attributes:
        topology: the described slice or cluster.

    >>> torus = Torus(Topology.parse("tpu:v5e:16x16"))
    >>> torus.chips, torus.next_chip(0).tolist()[15]
    (256, 0)
    """

    topology: Topology

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Chips along each axis of a slice; () for GPUs."""
        return self.topology.shape if self.topology.chip.axes else ()

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Which axes close to a ring."""
        return self.topology.wraps[: len(self.shape)]

    @property
    def chips(self) -> int:
        """How many chips, over all slices."""
        return self.topology.chips

    @cached_property
    def coords(self) -> np.ndarray:
        """int64 [chips, axes]: the coordinates of each chip in its slice."""
        coords, rest = [], np.arange(self.chips)
        for size in self.shape:
            rest, at = np.divmod(rest, size)
            coords.append(at)
        return np.array(coords, np.int64).reshape(len(self.shape), self.chips).T

    @property
    def parts(self) -> int:
        """How many slices, or hosts of GPUs: only the network joins them."""
        return self.topology.slices if self.shape else self.topology.hosts

    @cached_property
    def slice_of(self) -> np.ndarray:
        """int64 [chips]: the slice of each chip, or the host of each GPU."""
        return np.arange(self.chips) // (self.chips // self.parts)

    @cached_property
    def chip_of(self) -> np.ndarray:
        """int64 [devices]: the chip of each device, in the topology's order."""
        if not self.shape:
            return np.arange(self.chips)
        chips = self.topology.slice_indices
        for axis in reversed(range(len(self.shape))):
            chips = chips * self.shape[axis] + self.topology.coords[:, axis]
        return chips

    def next_chip(self, axis: int) -> np.ndarray:
        """int64 [chips]: the next chip along an axis; -1 where there is no link to one."""
        size, step = self.shape[axis], math.prod(self.shape[:axis])
        last = self.coords[:, axis] == size - 1
        following = np.arange(self.chips) + np.where(last, (1 - size) * step, step)
        return np.where(last & (not self.wraps[axis]), -1, following)


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What a collective sends over each link, as shares of its bytes on each device.

    Attributes:
        torus: the chips and their links.
        ici: float64 [chips, axes, 2]: on the link to the next chip along an axis, and
            on the one to the chip before.
        nvlink: float64 [chips]: what each GPU sends inside its host.
        network: float64 [chips]: what each chip sends to other slices or hosts.
        chip_group: int64 [chips]: the group of each chip; -1 for none, -2 for several.
        hops: int64 [1]: the most links between chips that anything sent crosses.

    >>> links = route(Topology.parse("tpu:v5e:4x4"), [range(4)], "all-gather")
    >>> links.used, links.times(1e9)
    (4, {'ICI': 0.0075})
    """

    torus: Torus
    ici: np.ndarray
    nvlink: np.ndarray
    network: np.ndarray
    chip_group: np.ndarray
    hops: np.ndarray

    @staticmethod
    def unused(torus: Torus, chip_group: np.ndarray) -> LinkUse:
        """Links that carry nothing yet."""
        nvlink, network = np.zeros((2, torus.chips))
        ici = np.zeros((torus.chips, len(torus.shape), 2))
        hops = np.zeros(1, np.int64)
        return LinkUse(torus, ici, nvlink, network, chip_group, hops)

    def load(self, axis: int) -> np.ndarray:
        """float64 [chips]: the larger load, of both ways, of each link to the next."""
        following = self.torus.next_chip(axis)
        load = np.maximum(self.ici[:, axis, 0], self.ici[following, axis, 1])
        return np.where(following < 0, 0.0, load)

    @property
    def used(self) -> int:
        """How many links between chips carry something, either way."""
        axes = range(len(self.torus.shape))
        return sum(int(np.count_nonzero(self.load(axis))) for axis in axes)

    def times(self, size: float) -> dict[str, float | None]:
        """The least seconds of each kind of link for `size` bytes on each device.

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
        """The least seconds for `size` bytes; None where a rate is not published."""
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
        kind: one of ROUTED.

    Raises:
        TargetError: for another kind, or a device that the topology lacks.

    >>> route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-reduce").used
    192
    """
    if kind not in ROUTED:
        raise TargetError(
            f"No routes are known for {shown(kind)}; they are for {listed(ROUTED)}."
        )
    definition = KINDS[kind]
    torus = Torus(topology)
    arrays = [np.asarray(group, np.int64).reshape(-1) for group in groups]
    rows = np.concatenate([*arrays, np.zeros(0, np.int64)])
    group = np.repeat(np.arange(len(arrays)), [len(array) for array in arrays])
    strange = rows[(rows < 0) | (rows >= topology.devices)]
    if len(strange):
        raise TargetError(
            f"{topology} has {plural(topology.devices, 'device')}, numbered from 0; a group"
            f" names {strange.max()}."
        )
    chips = torus.chip_of[rows]
    if definition.pairs:
        links = LinkUse.unused(torus, _only(chips, np.zeros_like(group), torus.chips))
        _send(links, chips.reshape(-1, 2), np.ones(len(rows) // 2))
        return links
    links = LinkUse.unused(torus, _only(chips, group, torus.chips))
    for part in _parts(torus, chips, group):
        if definition.route is Route.RINGS:
            _add_rounds(links, part, definition.rounds)
        else:
            _add_exchange(links, part)
    return links


def _only(at: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """int64 [count]: the one group at each place; -1 for none, -2 for several."""
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(first, at, group)
    np.maximum.at(last, at, group)
    return np.where(last < 0, -1, np.where(first == last, last, -2))


# --- what groups send -----------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """The parts of like size that groups have in one slice or host.

    Attributes:
        chips: int64 [parts, chips]: each chip once.
        members: int64 [parts, devices]: the chip of each member.
        size: int64 [parts]: members of the full group.
        spans: int64 [parts]: slices or hosts of the full group.
    """

    chips: np.ndarray
    members: np.ndarray
    size: np.ndarray
    spans: np.ndarray


def _parts(torus: Torus, every: np.ndarray, group: np.ndarray) -> Iterator[_Part]:
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
        yield _Part(chips, members, size[owner[some]], spans[owner[some]])


def _stretches(where: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """The keys that occur, how often, and a function from some keys to their entries."""
    order = np.argsort(where, kind="stable")
    keys, counts = np.unique(where, return_counts=True)
    starts = np.cumsum(counts) - counts

    def entries(some: np.ndarray, count: int) -> np.ndarray:
        return order[starts[some][:, None] + np.arange(count)]

    return keys, counts, entries


def _add_rounds(links: LinkUse, part: _Part, rounds: int) -> None:
    """What groups send around rings.

    A group that fills a rectangular block of the torus, evenly spaced or not, uses
    rings along all its axes at once; an axis that closes to a ring carries twice what
    an open one does. Any other group is one ring in its own order.
    """
    torus, count = links.torus, part.chips.shape[1]
    sent = rounds * (part.spans - 1) / part.spans / count
    np.add.at(links.network, part.chips, sent[:, None])
    share = rounds * (count - 1) / count
    if not torus.shape:
        np.add.at(links.nvlink, part.chips, share)
        return
    for chips, sizes in _blocks(torus, part.chips):
        if sizes is None:
            _add_ring(links, chips, np.full(len(chips), share))
            continue
        capacities = []
        for axis in range(len(sizes)):
            capacities.append(_capacity(torus, chips, sizes, axis))
        weights = np.stack(capacities, axis=1)
        for axis, size in enumerate(sizes):
            if size > 1:
                lines = _lines(chips, sizes, axis)
                part_of = share * weights[:, axis] / weights.sum(axis=1)
                _add_ring(links, lines, np.repeat(part_of, len(lines) // len(chips)))


def _add_exchange(links: LinkUse, part: _Part) -> None:
    """What groups send from every member to every other.

    Routed axis by axis, a group that fills a block loads the lines along each axis
    alike, so its pairs are counted one line at a time: 4,096 chips take thousands of
    sends instead of millions.
    """
    count, devices = part.chips.shape[1], part.members.shape[1]
    outside = (part.size - devices) / part.size
    np.add.at(links.network, part.members, outside[:, None])
    if not links.torus.shape:
        np.add.at(links.nvlink, part.members, ((devices - 1) / part.size)[:, None])
        return
    if devices % count:
        # Chips have unequal numbers of members: each pair by itself.
        _add_pairs(links, part.members, 1 / part.size)
        return
    for size in np.unique(part.size):
        # What one chip sends to another.
        share = (devices / count) ** 2 / size
        for chips, sizes in _blocks(links.torus, part.chips[part.size == size]):
            if sizes is None:
                _add_pairs(links, chips, np.full(len(chips), share))
                continue
            farthest = 0
            for axis, long in enumerate(sizes):
                if long > 1:
                    lines = _lines(chips, sizes, axis)
                    each = np.full(len(lines), share * count / long)
                    farthest += _add_pairs(links, lines, each)
            # Between opposite corners of the block.
            links.hops[:] = max(links.hops[0], farthest)


def _blocks(
    torus: Torus, chips: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple[int, ...] | None]]:
    """Groups of like shape, and the sizes of the block that each fills, or None."""
    # [groups, members, axes], each axis sorted by itself
    coords = np.sort(torus.coords[chips], axis=1)
    sizes = (np.diff(coords, axis=1) != 0).sum(axis=1) + 1
    sizes[sizes.prod(axis=1) != chips.shape[1]] = 0
    for shape in np.unique(sizes, axis=0):
        some = chips[(sizes == shape).all(axis=1)]
        if shape.all():
            yield np.sort(some, axis=1), tuple(shape.tolist())
        else:
            yield some, None


def _lines(chips: np.ndarray, sizes: tuple[int, ...], axis: int) -> np.ndarray:
    """int64 [lines, size]: the chips of blocks along one axis; chips count x fastest."""
    grid = chips.reshape(len(chips), *reversed(sizes))
    return np.moveaxis(grid, grid.ndim - 1 - axis, -1).reshape(-1, sizes[axis])


def _capacity(
    torus: Torus, chips: np.ndarray, sizes: tuple[int, ...], axis: int
) -> np.ndarray:
    """float64 [groups]: 2 where an axis closes to a ring, 1 where open, 0 where flat."""
    size = sizes[axis]
    if size == 1:
        return np.zeros(len(chips))
    # All lines of a block are alike, so that its first one speaks for it.
    first = _lines(chips, sizes, axis).reshape(len(chips), -1, size)[:, 0]
    along = np.diff(torus.coords[first][..., axis], axis=1)
    even = (along * size == torus.shape[axis]).all(axis=1)
    return np.where(even & torus.wraps[axis], 2.0, 1.0)


def _add_ring(links: LinkUse, lines: np.ndarray, share: np.ndarray) -> None:
    """Each member to the next and to the one before, half of the share each."""
    here, there = lines.reshape(-1), np.roll(lines, -1, axis=1).reshape(-1)
    half = np.repeat(share / 2, lines.shape[1])
    _add(links, here, there, half)
    _add(links, there, here, half)


def _add_pairs(links: LinkUse, lines: np.ndarray, share: np.ndarray) -> int:
    """Every member of a row to every other, some rows at a time; the most hops."""
    source, target = np.nonzero(~np.eye(lines.shape[1], dtype=bool))
    step, farthest = max(1, MOST_PAIRS // max(1, len(source))), 0
    for first in range(0, len(lines), step):
        some = lines[first : first + step]
        each = np.repeat(share[first : first + step], len(source))
        starts, ends = some[:, source].reshape(-1), some[:, target].reshape(-1)
        farthest = max(farthest, _add(links, starts, ends, each))
    return farthest


def _send(links: LinkUse, pairs: np.ndarray, share: np.ndarray) -> None:
    """Chips to others: inside a slice or host over its links, else by the network."""
    source, target = pairs.T
    torus = links.torus
    inside = torus.slice_of[source] == torus.slice_of[target]
    np.add.at(links.network, source[~inside], share[~inside])
    moves = inside & (source != target)
    if torus.shape:
        _add(links, source[moves], target[moves], share[moves])
    else:
        np.add.at(links.nvlink, source[moves], share[moves])


def _add(
    links: LinkUse, source: np.ndarray, target: np.ndarray, share: np.ndarray
) -> int:
    """Routes sends along x first, then y, then z, the shorter way around.

    Where both ways around are equally long, half goes each way. Gives the most hops.
    """
    here, torus = source, links.torus
    crossed = np.zeros(len(source), np.int64)
    for axis, size in enumerate(torus.shape):
        step = torus.coords[target, axis] - torus.coords[here, axis]
        onward, back = step % size, -step % size
        if not torus.wraps[axis]:
            # The way around is longer than any.
            onward = np.where(step < 0, size, onward)
            back = np.where(step > 0, size, back)
        crossed += np.minimum(onward, back)
        tie = np.where(onward == back, 0.5, 1.0) * share
        following = torus.next_chip(axis)
        linked = np.flatnonzero(following >= 0)
        before = np.full(torus.chips, -1)
        before[following[linked]] = linked
        ways = (
            (following, np.where(onward <= back, onward, 0)),
            (before, np.where(back <= onward, back, 0)),
        )
        for way, (neighbour, hops) in enumerate(ways):
            moving = np.flatnonzero(hops)
            at, load = here[moving], links.ici[:, axis, way]
            while len(moving):
                load += np.bincount(at, tie[moving], torus.chips)
                hops[moving] -= 1
                left = hops[moving] > 0
                at, moving = neighbour[at[left]], moving[left]
        here = here + step * math.prod(torus.shape[:axis])
    farthest = int(crossed.max(initial=0))
    links.hops[:] = max(links.hops[0], farthest)
    return farthest


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
    torus = Torus(topology)
    links = LinkUse.unused(torus, np.full(torus.chips, -1))
    _send(links, torus.chip_of[sends[:, :2]], sends[:, 2].astype(float))
    return links.times(1.0)


# --- devices of a mesh ----------------------------------------------------------------


def device_rows(mesh: MeshSpec, topology: Topology) -> np.ndarray:
    """int64 [mesh.size]: the position in the topology's order of each device of a mesh.

    A device is found by its id; a mesh of 0, 1, 2, … that are no ids of the topology
    (those of several slices start at 100,000) counts its devices in the order of their
    ids.

    Raises:
        TargetError: where the mesh names devices that the topology lacks.

    >>> from shardviz.base.mesh import make_mesh
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
        f"The mesh {mesh} has {plural(mesh.size, 'device')} that are not those of"
        f" {topology}, which has {topology.devices:,}. Take a mesh of"
        f" {topology.devices:,} devices, or a topology of {mesh.size:,}."
    )


def groups_over(mesh: MeshSpec, axes: Sequence[str]) -> np.ndarray:
    """int64 [groups, members]: the positions in a mesh that differ along some axes.

    Raises:
        MeshError: for an axis that the mesh lacks.

    >>> from shardviz.base.mesh import make_mesh
    >>> groups_over(make_mesh(data=2, model=2), ["data"]).tolist()
    [[0, 2], [1, 3]]
    """
    for axis in axes:
        mesh.require_axis(axis)
    inner = [mesh.positions[a] for a in axes]
    outer = [i for i in range(len(mesh.axis_names)) if i not in inner]
    flat = np.arange(mesh.size).reshape(mesh.axis_sizes).transpose(*outer, *inner)
    members = math.prod(mesh.shape[axis] for axis in axes)
    return flat.reshape(-1, members)


def collective_link_use(
    collective: Collective, mesh: MeshSpec, topology: Topology
) -> LinkUse | None:
    """The links that a collective uses; None where its groups are not known.

    Args:
        collective: of a Report or a Plan.
        mesh: the mesh of the program, with the real ids of its devices.
        topology: the topology of these devices.

    Raises:
        TargetError: where the mesh does not fit the topology, or no route of its kind
            is known.

    >>> from shardviz.base.mesh import make_mesh
    >>> gather = Collective("all-gather", ("x",), 1 << 20)
    >>> collective_link_use(gather, make_mesh(y=4, x=4), Topology.parse("tpu:v5e:4x4")).used
    12
    """
    axes = collective.mesh_axes
    if not collective.groups:
        # Axes say who is in a group, and not who sends to whom in a permutation.
        if not axes or collective.definition.pairs:
            return None
        if not all(axis in mesh.shape for axis in axes):
            return None
        # Without groups, smaller ones than the axes name no devices.
        if collective.group_size not in (0, group_size(axes, mesh)):
            return None
    return _link_use(collective.kind, collective.groups, axes, mesh, topology)


# Many collectives, and edits one after another, take the same route.
@lru_cache(maxsize=32)
def _link_use(
    kind: str,
    given: tuple[tuple[int, ...], ...],
    axes: tuple[str, ...],
    mesh: MeshSpec,
    topology: Topology,
) -> LinkUse:
    rows = device_rows(mesh, topology)
    groups = []
    for positions in given or groups_over(mesh, axes):
        groups.append(rows[np.asarray(positions, np.int64)])
    return route(topology, groups, kind)
