"""route(): finds the links that a collective uses, and the load on each link.

The model, for a collective with B bytes per device and replica groups of n devices:

- In an all-gather or reduce-scatter, each device sends B (n-1)/n around rings, in both
  directions at once, along every axis of the torus that the group spans. In an
  all-reduce, it sends twice as much; in a broadcast, as much as in an all-gather.
- In an all-to-all, each device sends B/n to every other device. In a permutation, each
  sender sends B.
- On TPUs, data is routed along x, then y, then z. Between slices, all chips send equal
  amounts of their slice's data over the data-center network.
- On GPUs, NVLink joins any two GPUs of a host at full rate. The network joins hosts, as
  it joins TPU slices.

Loads are fractions of B. The model follows parts 3 and 12 of
https://jax-ml.github.io/scaling-book.

Latency is added to the time of the bytes. On a torus, it is the latency of the hops
between the two members of a group that are farthest apart, because every member needs
data of all others. NVLink needs one step. On the network, a gather, scatter or sum over
n hosts needs at least log2(n) steps, because each step at most doubles the number of
hosts whose data a host has. An all-reduce counts these steps once, although it sends
the bytes twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardviz.base.axis_parts import group_size
from shardviz.base.collective import Collective
from shardviz.base.collective_kind import KINDS, Route
from shardviz.base.errors import TargetError
from shardviz.base.format import listed, plural, shown
from shardviz.base.mesh import MeshSpec
from shardviz.hardware.topology import Topology

# Maximum number of pairs of chips in memory at the same time.
MOST_PAIRS = 1 << 20
#: The kinds of collective whose routes are known.
ROUTED = tuple(name for name, kind in KINDS.items() if kind.route is not Route.UNKNOWN)


@dataclass(frozen=True, eq=False)
class Torus:
    """The chips of a topology and the links between neighbours.

    Chips are numbered slice by slice, with x changing fastest. GPU clusters have no
    links between neighbours, because switches join their hosts.

    Attributes:
        topology: the described TPU slice or GPU cluster.

    >>> torus = Torus(Topology.parse("tpu:v5e:16x16"))
    >>> torus.chips, torus.next_chip(0).tolist()[15]
    (256, 0)
    """

    topology: Topology

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of chips along each axis of a slice; () for GPUs."""
        return self.topology.shape if self.topology.chip.axes else ()

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Whether each axis forms a ring."""
        return self.topology.wraps[: len(self.shape)]

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return self.topology.chips

    @cached_property
    def coords(self) -> np.ndarray:
        """int64 [chips, axes]: the coordinates of each chip in its slice."""
        coords, quotient = [], np.arange(self.chips)
        for size in self.shape:
            quotient, coordinate = np.divmod(quotient, size)
            coords.append(coordinate)
        return np.array(coords, np.int64).reshape(len(self.shape), self.chips).T

    @property
    def slice_count(self) -> int:
        """The number of TPU slices or GPU hosts, which the network joins."""
        return self.topology.slices if self.shape else self.topology.hosts

    @cached_property
    def slice_of(self) -> np.ndarray:
        """int64 [chips]: the slice of each TPU chip, or the host of each GPU."""
        return np.arange(self.chips) // (self.chips // self.slice_count)

    @cached_property
    def chip_of(self) -> np.ndarray:
        """int64 [devices]: the chip of each device, in the topology's device order."""
        if not self.shape:
            return np.arange(self.chips)
        chips = self.topology.slice_indices
        for axis in reversed(range(len(self.shape))):
            chips = chips * self.shape[axis] + self.topology.coords[:, axis]
        return chips

    def next_chip(self, axis: int) -> np.ndarray:
        """Returns int64 [chips]: the next chip along an axis, or -1 without a link."""
        size, step = self.shape[axis], math.prod(self.shape[:axis])
        last = self.coords[:, axis] == size - 1
        following = np.arange(self.chips) + np.where(last, (1 - size) * step, step)
        return np.where(last & (not self.wraps[axis]), -1, following)


@dataclass(frozen=True, eq=False)
class LinkUse:
    """A collective's load on each link, as a fraction of its bytes per device.

    Attributes:
        torus: the chips and their links.
        ici: float64 [chips, axes, 2]: the load that each chip sends to the next and to
            the previous chip along each axis.
        nvlink: float64 [chips]: the load that each GPU sends inside its host.
        network: float64 [chips]: the load that each chip sends to other slices or
            hosts.
        chip_group: int64 [chips]: the replica group of each chip; -1 for none, -2 for
            several.
        hops: int64 [1]: the largest number of links on any route.
        steps: kind of link -> the least number of steps, one after another, until all
            data has arrived; on ICI, the number of hops.
        rounds: whether this is a gather, scatter or sum.

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
    rounds: bool = False
    steps: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def unused(torus: Torus, chip_group: np.ndarray, rounds: bool = False) -> LinkUse:
        """Returns links without any load."""
        nvlink, network = np.zeros((2, torus.chips))
        ici = np.zeros((torus.chips, len(torus.shape), 2))
        hops = np.zeros(1, np.int64)
        return LinkUse(torus, ici, nvlink, network, chip_group, hops, rounds)

    def load(self, axis: int) -> np.ndarray:
        """float64 [chips]: load of each link to the next chip (busier direction)."""
        following = self.torus.next_chip(axis)
        load = np.maximum(self.ici[:, axis, 0], self.ici[following, axis, 1])
        return np.where(following < 0, 0.0, load)

    @property
    def used(self) -> int:
        """The number of ICI links with a load in either direction."""
        axes = range(len(self.torus.shape))
        return sum(int(np.count_nonzero(self.load(axis))) for axis in axes)

    def times(self, size: float) -> dict[str, float | None]:
        """Returns the least seconds on each kind of link, for `size` bytes per device.

        These are seconds at the links' rates, without latency. Omits kinds without a
        load. A time is None if the rate is not published.

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
            # The busiest link finishes last.
            most = float(load.max(initial=0.0))
            if most:
                times[name] = rate and most * size / rate
        return times

    def latency(self, name: str) -> float | None:
        """Returns the latency of one kind of link in seconds; None if not published.

        >>> links = route(Topology.parse("tpu:v5e:16x16"), [range(256)], "all-gather")
        >>> links.steps, links.latency("ICI")
        ({'ICI': 16}, 1.6e-05)
        """
        chip = self.torus.topology.chip
        step = chip.network_latency if name == "network" else chip.hop_latency
        if step is None:
            return None
        seconds = step * self.steps.get(name, 1)
        if self.rounds and chip.collective_latency is not None:
            return max(seconds, chip.collective_latency)
        return seconds

    def longest(self, size: float) -> LinkTime:
        """Returns the least time for `size` bytes per device, on the slowest links."""
        longest = LinkTime("", 0.0, 0.0)
        for name, seconds in self.times(size).items():
            latency = self.latency(name)
            if seconds is None:
                return LinkTime(name, None, latency)
            # Different kinds of links work in parallel.
            total = seconds + (latency or 0.0)
            if total > (longest.seconds or 0.0):
                longest = LinkTime(name, total, latency)
        return longest

    def seconds(self, size: float) -> float | None:
        """Returns the least seconds for `size` bytes per device; None if unknown."""
        return self.longest(size).seconds


class LinkTime(NamedTuple):
    """The least time of a collective on the kind of links that takes longest.

    Attributes:
        name: the kind of links; `""` if no link is used.
        seconds: least seconds with latency; None if the rate is not published.
        latency: the seconds of latency; None if not published.
    """

    name: str
    seconds: float | None
    latency: float | None


def route(topology: Topology, groups: Iterable[npt.ArrayLike], kind: str) -> LinkUse:
    """Finds the links that a collective uses.

    Args:
        topology: the described TPU slice or GPU cluster.
        groups: replica groups of positions in the topology's device order; for a
            permutation, pairs of sender and receiver, which together form one group.
        kind: a kind of collective in ROUTED.

    Raises:
        TargetError: for another kind, or for a position outside the topology.

    >>> route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-reduce").used
    192
    """
    if kind not in ROUTED:
        raise TargetError(
            f"No routes are known for {shown(kind)}; they are for {listed(ROUTED)}."
        )
    definition = KINDS[kind]
    torus = Torus(topology)
    arrays = [np.asarray(group, np.int64).ravel() for group in groups]
    rows = np.concatenate([*arrays, np.zeros(0, np.int64)])
    group = np.repeat(np.arange(len(arrays)), [len(array) for array in arrays])
    invalid = rows[(rows < 0) | (rows >= topology.devices)]
    if len(invalid):
        raise TargetError(
            f"{topology} has {plural(topology.devices, 'device')}, numbered from 0; a group"
            f" names {invalid.max()}."
        )
    chips = torus.chip_of[rows]
    if definition.pairs:
        chip_group = _single_group(chips, np.zeros_like(group), torus.chips)
        links = LinkUse.unused(torus, chip_group)
        pairs = chips.reshape(len(rows) // 2, 2)
        _send(links, pairs, np.ones(len(pairs)))
        return links
    rounds = definition.route is Route.RINGS
    links = LinkUse.unused(torus, _single_group(chips, group, torus.chips), rounds)
    for subgroups in _subgroups(torus, chips, group):
        _count_steps(links, subgroups)
        if rounds:
            _add_rounds(links, subgroups, definition.rounds)
        else:
            _add_exchange(links, subgroups)
    return links


def _single_group(chips: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Returns int64 [count]: the group of each chip; -1 for none, -2 for several.

    Args:
        chips: int64 [members]: the chip of each member device, for all groups.
        group: int64 [members]: the group of each member.
        count: the number of chips.
    """
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(first, chips, group)
    np.maximum.at(last, chips, group)
    return np.where(last < 0, -1, np.where(first == last, last, -2))


# --- loads of groups ------------------------------------------------------------------


@dataclass(frozen=True)
class _Subgroups:
    """Subgroups of replica groups: equally large, each within one slice or GPU host.

    Attributes:
        chips: int64 [subgroups, chips]: the distinct chips of each subgroup.
        members: int64 [subgroups, devices]: the chip of each member device.
        size: int64 [subgroups]: the number of members of the full group.
        spans: int64 [subgroups]: the number of slices or hosts of the full group.
    """

    chips: np.ndarray
    members: np.ndarray
    size: np.ndarray
    spans: np.ndarray


def _subgroups(
    torus: Torus, chips: np.ndarray, group: np.ndarray
) -> Iterator[_Subgroups]:
    subgroup = group * torus.slice_count + torus.slice_of[chips]
    # Devices of the same chip need no link between them, so keep only the first member
    # on each chip.
    first = np.sort(np.unique(subgroup * torus.chips + chips, return_index=True)[1])
    subgroup_keys, device_counts, members_of = _by_subgroup(subgroup)
    _, chip_counts, chips_of = _by_subgroup(subgroup[first])
    owner = subgroup_keys // torus.slice_count
    size, spans = np.bincount(group), np.bincount(owner)
    counts = np.stack([chip_counts, device_counts], axis=1)
    for chip_count, device_count in np.unique(counts, axis=0):
        alike = np.flatnonzero((counts == (chip_count, device_count)).all(axis=1))
        yield _Subgroups(
            chips[first][chips_of(alike, chip_count)],
            chips[members_of(alike, device_count)],
            size[owner[alike]],
            spans[owner[alike]],
        )


def _by_subgroup(
    subgroup: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray, int], np.ndarray]]:
    """Returns the distinct subgroups, their member counts, and a function for members.

    The function takes indices of subgroups with `count` members each, and returns the
    positions of these members: int64 [subgroups, count].
    """
    order = np.argsort(subgroup, kind="stable")
    keys, counts = np.unique(subgroup, return_counts=True)
    starts = np.cumsum(counts) - counts

    def entries(indices: np.ndarray, count: int) -> np.ndarray:
        return order[starts[indices][:, None] + np.arange(count)]

    return keys, counts, entries


def _count_steps(links: LinkUse, subgroups: _Subgroups) -> None:
    """Counts the steps until each member has data of the member farthest away."""
    torus, steps = links.torus, links.steps
    spans = int(subgroups.spans.max())
    # In an exchange, each member sends directly to all others.
    if spans > 1:
        across = math.ceil(math.log2(spans)) if links.rounds else 1
        steps["network"] = max(steps.get("network", 1), across)
    if torus.shape:
        # The first chip of a group is in a corner of it.
        chips = np.sort(subgroups.chips, axis=1)
        hops = int(_distance(torus, chips[:, :1], chips).max())
        steps["ICI"] = max(steps.get("ICI", 0), hops)


def _distance(torus: Torus, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the number of links on the shortest ways between chips."""
    along = np.abs(torus.coords[target] - torus.coords[source])
    around = np.array(torus.shape) - along
    return np.where(torus.wraps, np.minimum(along, around), along).sum(axis=-1)


def _add_rounds(links: LinkUse, subgroups: _Subgroups, rounds: int) -> None:
    """Adds the loads of groups that send data around rings.

    A group that fills a rectangular block of the torus, evenly spaced or not, uses
    rings along all axes at once. A closed axis carries twice as much as an open one.
    Any other group forms a single ring in the order of its members.
    """
    torus, count = links.torus, subgroups.chips.shape[1]
    sent = rounds * (subgroups.spans - 1) / subgroups.spans / count
    np.add.at(links.network, subgroups.chips, sent[:, None])
    share = rounds * (count - 1) / count
    if not torus.shape:
        np.add.at(links.nvlink, subgroups.chips, share)
        return
    for chips, sizes in _blocks(torus, subgroups.chips):
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
                axis_share = share * weights[:, axis] / weights.sum(axis=1)
                _add_ring(links, lines, np.repeat(axis_share, len(lines) // len(chips)))


def _add_exchange(links: LinkUse, subgroups: _Subgroups) -> None:
    """Adds the loads of groups in which every member sends to every other member.

    Data is routed axis by axis. If a group fills a block, all lines along an axis have
    equal loads, so it is enough to count pairs within lines: for 4,096 chips, thousands
    of pairs instead of millions.
    """
    count, devices = subgroups.chips.shape[1], subgroups.members.shape[1]
    outside = (subgroups.size - devices) / subgroups.size
    np.add.at(links.network, subgroups.members, outside[:, None])
    if not links.torus.shape:
        np.add.at(
            links.nvlink, subgroups.members, ((devices - 1) / subgroups.size)[:, None]
        )
        return
    if devices % count:
        # Chips have different numbers of members, so count each pair of members.
        _add_pairs(links, subgroups.members, 1 / subgroups.size)
        return
    for size in np.unique(subgroups.size):
        # The load that one chip sends to each other chip.
        share = (devices / count) ** 2 / size
        for chips, sizes in _blocks(
            links.torus, subgroups.chips[subgroups.size == size]
        ):
            if sizes is None:
                _add_pairs(links, chips, np.full(len(chips), share))
                continue
            farthest = 0
            for axis, length in enumerate(sizes):
                if length > 1:
                    lines = _lines(chips, sizes, axis)
                    line_share = np.full(len(lines), share * count / length)
                    farthest += _add_pairs(links, lines, line_share)
            # The longest route is between opposite corners of the block.
            links.hops[:] = max(links.hops[0], farthest)


def _blocks(
    torus: Torus, chips: np.ndarray
) -> Iterator[tuple[np.ndarray, tuple[int, ...] | None]]:
    """Yields (groups, block size) pairs; the size is None if groups fill no block."""
    # [groups, members, axes], with coordinates sorted separately for each axis
    coords = np.sort(torus.coords[chips], axis=1)
    sizes = (np.diff(coords, axis=1) != 0).sum(axis=1) + 1
    sizes[sizes.prod(axis=1) != chips.shape[1]] = 0
    for shape in np.unique(sizes, axis=0):
        alike = chips[(sizes == shape).all(axis=1)]
        if shape.all():
            yield np.sort(alike, axis=1), tuple(shape.tolist())
        else:
            yield alike, None


def _lines(chips: np.ndarray, sizes: tuple[int, ...], axis: int) -> np.ndarray:
    """Returns int64 [lines, size]: the lines of chips along an axis of blocks."""
    grid = chips.reshape(len(chips), *reversed(sizes))
    lines = np.moveaxis(grid, grid.ndim - 1 - axis, -1)
    return lines.reshape(chips.size // sizes[axis], sizes[axis])


def _capacity(
    torus: Torus, chips: np.ndarray, sizes: tuple[int, ...], axis: int
) -> np.ndarray:
    """float64 [groups]: 2 if the axis forms a ring, 1 if it is open, 0 if flat."""
    size = sizes[axis]
    if size == 1:
        return np.zeros(len(chips))
    # All lines of a block have the same spacing, so check only the first.
    lines = _lines(chips, sizes, axis)
    first = lines[:: len(lines) // len(chips)]
    along = np.diff(torus.coords[first][..., axis], axis=1)
    even = (along * size == torus.shape[axis]).all(axis=1)
    return np.where(even & torus.wraps[axis], 2.0, 1.0)


def _add_ring(links: LinkUse, lines: np.ndarray, share: np.ndarray) -> None:
    """Adds the load of rings: members send half to the next, half to the previous."""
    members, following = lines.ravel(), np.roll(lines, -1, axis=1).ravel()
    half = np.repeat(share / 2, lines.shape[1])
    _add(links, members, following, half)
    _add(links, following, members, half)


def _add_pairs(links: LinkUse, lines: np.ndarray, share: np.ndarray) -> int:
    """Adds the load if each member of a line sends to all others in its line.

    Returns the largest number of hops. Processes lines in batches to limit memory.
    """
    source, target = np.nonzero(~np.eye(lines.shape[1], dtype=bool))
    step, farthest = max(1, MOST_PAIRS // len(source)), 0
    for first in range(0, len(lines), step):
        batch = lines[first : first + step]
        shares = np.repeat(share[first : first + step], len(source))
        senders, receivers = batch[:, source].ravel(), batch[:, target].ravel()
        farthest = max(farthest, _add(links, senders, receivers, shares))
    return farthest


def _send(links: LinkUse, pairs: np.ndarray, share: np.ndarray) -> None:
    """Adds the load of point-to-point sends: on links or on the network."""
    source, target = pairs.T
    torus = links.torus
    inside = torus.slice_of[source] == torus.slice_of[target]
    np.add.at(links.network, source[~inside], share[~inside])
    moves = inside & (source != target)
    if torus.shape:
        links.steps["ICI"] = _add(links, source[moves], target[moves], share[moves])
    else:
        np.add.at(links.nvlink, source[moves], share[moves])


def _add(
    links: LinkUse, source: np.ndarray, target: np.ndarray, share: np.ndarray
) -> int:
    """Adds the load of sends routed along x, then y, then z; returns the most hops.

    On a ring, data takes the shorter direction. If both are equally long, half goes
    each way.
    """
    chip, torus = source, links.torus
    crossed = np.zeros(len(source), np.int64)
    for axis, size in enumerate(torus.shape):
        step = torus.coords[target, axis] - torus.coords[chip, axis]
        onward, back = step % size, -step % size
        if not torus.wraps[axis]:
            # Rule out the direction across the open end: `size` exceeds any distance.
            onward = np.where(step < 0, size, onward)
            back = np.where(step > 0, size, back)
        crossed += np.minimum(onward, back)
        tie = np.where(onward == back, 0.5, 1.0) * share
        following = torus.next_chip(axis)
        linked = np.flatnonzero(following >= 0)
        before = np.full(torus.chips, -1)
        before[following[linked]] = linked
        directions = (
            (following, np.where(onward <= back, onward, 0)),
            (before, np.where(back <= onward, back, 0)),
        )
        for direction, (neighbour, hops) in enumerate(directions):
            moving = np.flatnonzero(hops)
            position, load = chip[moving], links.ici[:, axis, direction]
            while len(moving):
                load += np.bincount(position, tie[moving], torus.chips)
                hops[moving] -= 1
                remaining = hops[moving] > 0
                position = neighbour[position[remaining]]
                moving = moving[remaining]
        chip = chip + step * math.prod(torus.shape[:axis])
    farthest = int(crossed.max(initial=0))
    links.hops[:] = max(links.hops[0], farthest)
    return farthest


def least_send_seconds(
    topology: Topology, sends: np.ndarray
) -> dict[str, float | None]:
    """Returns the least seconds per kind of link for simultaneous point-to-point sends.

    Args:
        topology: the described TPU slice or GPU cluster.
        sends: int64 [sends, 3]: sender and receiver as positions in the topology's
            device order, and bytes.

    >>> least_send_seconds(Topology.parse("tpu:v5e:4x4"), np.array([[0, 1, 50_000_000]]))
    {'ICI': 0.001}
    """
    torus = Torus(topology)
    links = LinkUse.unused(torus, np.full(torus.chips, -1))
    _send(links, torus.chip_of[sends[:, :2]], sends[:, 2].astype(float))
    return links.times(1.0)


# --- devices of a mesh ----------------------------------------------------------------


def device_rows(mesh: MeshSpec, topology: Topology) -> np.ndarray:
    """Returns int64 [mesh.size]: each mesh device's position in the topology's order.

    Devices are found by id. With several slices, the topology's ids start at 100,000; a
    mesh with ids 0, 1, 2, … then means the topology's devices in order of their ids.

    Raises:
        TargetError: if the mesh names devices that the topology lacks.

    >>> from shardviz.base.mesh import make_mesh
    >>> device_rows(make_mesh(data=2, model=2), Topology.parse("tpu:v5e:2x2")).tolist()
    [0, 1, 2, 3]
    """
    ids = mesh.device_ids.ravel()
    order = np.argsort(topology.device_ids, kind="stable")
    sorted_ids = topology.device_ids[order]
    index = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    if mesh.size <= topology.devices and (sorted_ids[index] == ids).all():
        return order[index]
    if mesh.size == topology.devices and mesh.ids_are_positions:
        return order
    raise TargetError(
        f"Not all {plural(mesh.size, 'device')} of the mesh {mesh} are in {topology}, which"
        f" has {topology.devices:,}. Use a mesh of {topology.devices:,} devices, or a"
        f" topology of {mesh.size:,}."
    )


def groups_over(mesh: MeshSpec, axes: Sequence[str]) -> np.ndarray:
    """Returns int64 [groups, members]: mesh positions that differ only along `axes`.

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
    return flat.reshape(mesh.size // members, members)


def collective_link_use(
    collective: Collective, mesh: MeshSpec, topology: Topology
) -> LinkUse | None:
    """Finds the links that a collective uses; None if its replica groups are unknown.

    Args:
        collective: a collective of a Report or a Plan.
        mesh: the program's mesh, with the ids of its real devices.
        topology: the topology of these devices.

    Raises:
        TargetError: if the mesh does not fit the topology, or the kind of collective
            has no known route.

    >>> from shardviz.base.mesh import make_mesh
    >>> gather = Collective("all-gather", ("x",), 1 << 20)
    >>> collective_link_use(gather, make_mesh(y=4, x=4), Topology.parse("tpu:v5e:4x4")).used
    12
    """
    axes = collective.mesh_axes
    if not collective.groups:
        # Axes determine replica groups, but not the pairs of a permutation.
        if not axes or collective.definition.pairs:
            return None
        if not all(axis in mesh.shape for axis in axes):
            return None
        # If groups are smaller than the axes, their members are unknown.
        if collective.group_size not in (0, group_size(axes, mesh)):
            return None
    return _link_use(collective.kind, collective.groups, axes, mesh, topology)


# Cached, because many collectives, and successive edits, have the same routes.
@lru_cache(maxsize=32)
def _link_use(
    kind: str,
    position_groups: tuple[tuple[int, ...], ...],
    axes: tuple[str, ...],
    mesh: MeshSpec,
    topology: Topology,
) -> LinkUse:
    rows = device_rows(mesh, topology)
    groups = []
    for positions in position_groups or groups_over(mesh, axes):
        groups.append(rows[np.asarray(positions, np.int64)])
    return route(topology, groups, kind)
