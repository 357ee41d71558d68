"""best_order(): which devices the axes of a mesh should be laid over, for a program.

Tried is every way to split the dimensions of the hardware (slices, z, y, x, the cores of
a chip; hosts and their GPUs) into factors, and to give each factor to a mesh axis. Along
axes where the order of devices counts, as in a permutation, these parts also follow one
another as a snake and as a ring. Not tried are devices that form no grid, and
what comes after MOST_ORDERS. The time is that of the roofline, by `route`: that of the
busiest link, without latency. Of equally fast orders the one with fewer hops is better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardviz.base.collective import Collective
from shardviz.base.collective_kind import Route
from shardviz.base.display import Fact
from shardviz.base.mesh import MeshSpec
from shardviz.hardware.interconnect import device_rows, groups_over, route
from shardviz.hardware.topology import Topology

# 64 chips have at most 720 assignments, 1,024 in 3 axes 4,200.
MOST_ORDERS = 5_000
# Of each part of a dimension: size, mesh axis, and how many dimensions come after.
_Assignment = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class DeviceOrder(Fact):
    """An order of devices in which a program's collectives take less time.

    Attributes:
        mesh: with its devices in that order.
        axes: the mesh axes of the collective that gains most.
        hops, possible: the most links that one send of it crosses, now and then.
        seconds, least: the least time of all collectives, now and then.

    >>> from shardviz.base.mesh import make_mesh
    >>> print(DeviceOrder(make_mesh(data=4), ("data",), 3, 1, 3e-3, 1e-3))
    Axis data takes 3 hops where 1 would do: in another order of the devices all...
    """

    mesh: MeshSpec
    axes: tuple[str, ...]
    hops: int
    possible: int
    seconds: float
    least: float

    @property
    def code(self) -> str:
        """`"hops"` where that collective crosses fewer links then, else `"slower"`."""
        return "hops" if self.hops > self.possible else "slower"


def best_order(
    mesh: MeshSpec, topology: Topology, collectives: Sequence[Collective]
) -> DeviceOrder | None:
    """The order of devices in which collectives take the least time, by the roofline.

    None where none is better than that of `mesh`, or a link's rate is not published.

    >>> from shardviz.base.mesh import make_mesh
    >>> gather = Collective("all-gather", ("data",), 1 << 20)
    >>> found = best_order(make_mesh(data=4, model=4), Topology.parse("tpu:v5e:4x4"), [gather])
    >>> found.seconds / found.least, found.mesh.device_ids[:, 0].tolist()
    (2.0, [0, 1, 4, 5])
    """
    uneven = any(len(set(map(len, one.groups))) > 1 for one in collectives)
    if mesh.size != topology.devices or uneven:
        return None
    sends = list(_sends(mesh, topology, collectives))
    moving = {axis for send in sends for axis in send.ordered}
    now, rows = device_rows(mesh, topology), None
    before = _rank(sends, now)
    # Rounding is no reason to move an array.
    best = before * (1 - 1e-12)
    for placed in _orders(mesh, topology, sorted(moving)):
        if (rank := _rank(sends, placed)) < best:
            best, rows = rank, placed
    # Without a rate no order is known to be better.
    if rows is None or math.isinf(before):
        return None
    most = max(sends, key=lambda send: _rank([send], now) - _rank([send], rows))
    ids, hosts = topology.device_ids[rows], topology.process_indices[rows]
    return DeviceOrder(
        mesh.replace(device_ids=ids, process_indices=hosts),
        most.one.mesh_axes,
        most.cost(now)[1],
        most.cost(rows)[1],
        _rank(sends, now, hop=0.0),
        _rank(sends, rows, hop=0.0),
    )


@dataclass(frozen=True, eq=False)
class _Send:
    """A collective, its groups as positions in the mesh (int64 [groups, members]), and
    the mesh axes along which the order of devices counts; `known` keeps its costs.
    """

    topology: Topology
    one: Collective
    groups: np.ndarray
    ordered: tuple[int, ...]
    known: dict[bytes, tuple[float, int]] = field(default_factory=dict)

    def cost(self, rows: np.ndarray) -> tuple[float, int]:
        """Seconds, infinite where no rate is published, and the most links crossed."""
        groups = rows.reshape(-1)[self.groups]
        # Of devices that fill a block of the torus only the set counts.
        key = _sorted(groups, not self.ordered).tobytes()
        if key not in self.known:
            links = route(self.topology, groups, self.one.kind)
            seconds = links.seconds(self.one.bytes_per_device)
            if seconds is None:
                seconds = math.inf
            seconds *= self.one.execution_count
            self.known[key] = seconds, int(links.hops[0])
        return self.known[key]


def _sends(
    mesh: MeshSpec, topology: Topology, collectives: Sequence[Collective]
) -> Iterator[_Send]:
    for one in collectives:
        axes, permutes = one.mesh_axes, one.definition.pairs
        known = bool(axes) and mesh.shape.keys() >= set(axes)
        # As in the roofline: without groups nobody knows who sends to whom.
        unknown = not one.groups and (permutes or not known)
        if unknown or one.definition.route is Route.UNKNOWN:
            continue
        names = axes if known else mesh.axis_names
        full, ordered = groups_over(mesh, names), ()
        groups = np.asarray(one.groups or full, np.int64)
        if permutes or not np.array_equal(_sorted(groups), _sorted(full)):
            ordered = tuple(map(mesh.positions.__getitem__, names))
        yield _Send(topology, one, groups, ordered)


def _sorted(groups: np.ndarray, members: bool = True) -> np.ndarray:
    """The same groups in an order that all equal ones have."""
    if members:
        groups = np.sort(groups, axis=1)
    return groups[np.argsort(groups[:, 0])]


def _rank(sends: Sequence[_Send], rows: np.ndarray, hop: float = 1e-9) -> float:
    """The least seconds of all, one after another; for equal ones hops count a little."""
    total = 0.0
    for send in sends:
        seconds, hops = send.cost(rows)
        total += seconds * (1 + hop * hops)
    return total


def _orders(
    mesh: MeshSpec, topology: Topology, moving: Sequence[int]
) -> Iterator[np.ndarray]:
    """Orders of devices, as rows of the topology in mesh shape: int64.

    Those along the axes in `moving` go several ways through their devices.
    """
    # From the slowest dimension to the fastest.
    places = [topology.slice_indices, *topology.coords.T[::-1], topology.cores]
    natural = np.lexsort(places[::-1])
    every = _assignments((np.stack(places).max(axis=1) + 1).tolist(), mesh.axis_sizes)
    for parts in itertools.islice(every, MOST_ORDERS):
        # Axis by axis, and within each in the order of the dimensions.
        sizes_of, owners, _ = np.array(parts, np.int64).reshape(-1, 3).T
        order = np.argsort(owners, kind="stable")
        placed = natural.reshape(sizes_of).transpose(order).reshape(mesh.axis_sizes)
        yield placed
        for axis in moving:
            sizes: dict[int, int] = {}
            for size, owner, dimension in parts:
                if owner == axis:
                    sizes[dimension] = sizes.get(dimension, 1) * size
            for walk in _walks(
                np.arange(mesh.axis_sizes[axis]).reshape(*sizes.values())
            ):
                yield np.take(placed, walk, axis)


def _assignments(
    sizes: Sequence[int], axes: tuple[int, ...], last: int = -1
) -> Iterator[_Assignment]:
    """Every way to give parts of dimensions to axes; parts side by side have two axes.

    >>> list(_assignments([2, 2], (4,)))
    [((2, 0, 1), (2, 0, 0))]
    """
    if not sizes:
        yield ()
        return
    if sizes[0] == 1:
        yield from _assignments(sizes[1:], axes)
    for axis, length in enumerate(axes):
        common = math.gcd(sizes[0], length)
        for size in range(2, common + 1):
            if common % size or axis == last:
                continue
            left = (*axes[:axis], length // size, *axes[axis + 1 :])
            for rest in _assignments([sizes[0] // size, *sizes[1:]], left, axis):
                yield ((size, axis, len(sizes) - 1), *rest)


def _walks(grid: np.ndarray) -> Iterator[np.ndarray]:
    """Ways through a grid from neighbour to neighbour: a snake and a ring."""
    if grid.ndim > 1:
        yield _snake(grid)
        # It goes through all columns except the first, and returns by that one.
        lines = np.stack(list(map(_snake, grid)))
        yield np.concatenate([_snake(lines[:, 1:]), lines[::-1, 0]])


def _snake(grid: np.ndarray) -> np.ndarray:
    """There along one row, back along the next: each step goes to a neighbour."""
    if grid.ndim == 1:
        return grid
    rows = [_snake(row)[:: 1 - 2 * (n % 2)] for n, row in enumerate(grid)]
    return np.concatenate(rows)
