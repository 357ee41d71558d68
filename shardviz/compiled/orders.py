"""best_order(): the device order in which a program's collectives are fastest.

The search splits each hardware dimension (slices, z, y, x and a chip's cores; hosts and
their GPUs) into factors in every way, and assigns each factor to a mesh axis. Along
axes where device order matters, as in a permutation, it also tries a snake and a ring
through the factors. It skips meshes whose devices form no grid, and stops after
MOST_ORDERS. As in the roofline, the time of an order is the time of its busiest link
plus the latency of its hops. If two orders are equally fast, we prefer fewer hops.
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

# A mesh of 64 chips has at most 720 assignments; 1,024 chips in 3 axes have 4,200.
MOST_ORDERS = 5_000
# For each factor: its size, its mesh axis, and the number of dimensions after it.
_Assignment = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class DeviceOrder(Fact):
    """A device order in which a program's collectives take less time.

    Attributes:
        mesh: the mesh with its devices in the faster order.
        axes: the mesh axes of the collective that gains most.
        hops, possible: the most links that a send of this collective crosses, in the
            current order and in the best one.
        seconds, least: the least seconds of all collectives, in the current order and
            in the best one.

    >>> from shardviz.base.mesh import make_mesh
    >>> print(DeviceOrder(make_mesh(data=4), ("data",), 3, 1, 3e-3, 1e-3))
    A collective over axis data needs up to 3 hops per send, but only 1 in another ...
    """

    mesh: MeshSpec
    axes: tuple[str, ...]
    hops: int
    possible: int
    seconds: float
    least: float

    @property
    def code(self) -> str:
        """`"hops"` if the best order needs fewer hops, else `"slower"`."""
        return "hops" if self.hops > self.possible else "slower"


def best_order(
    mesh: MeshSpec, topology: Topology, collectives: Sequence[Collective]
) -> DeviceOrder | None:
    """Returns the device order with the least time for collectives in the roofline.

    None if no order is better than the mesh's current one, or if a link's rate is
    unpublished.

    >>> from shardviz.base.mesh import make_mesh
    >>> gather = Collective("all-gather", ("data",), 1 << 20)
    >>> best = best_order(make_mesh(data=4, model=4), Topology.parse("tpu:v5e:4x4"), [gather])
    >>> round(best.seconds / best.least, 1), best.mesh.device_ids[:, 0].tolist()
    (1.9, [0, 1, 4, 5])
    """
    uneven = any(len(set(map(len, c.groups))) > 1 for c in collectives)
    if mesh.size != topology.devices or uneven:
        return None
    sends = list(_sends(mesh, topology, collectives))
    moving = {axis for send in sends for axis in send.ordered}
    now, rows = device_rows(mesh, topology), None
    before = _rank(sends, now)
    # Ignore orders that are better only by rounding.
    best = before * (1 - 1e-12)
    for placed in _orders(mesh, topology, sorted(moving)):
        if (rank := _rank(sends, placed)) < best:
            best, rows = rank, placed
    # Without published rates, every order takes infinitely long.
    if rows is None or math.isinf(before):
        return None
    gains_most = max(sends, key=lambda send: _rank([send], now) - _rank([send], rows))
    ids, hosts = topology.device_ids[rows], topology.process_indices[rows]
    return DeviceOrder(
        mesh=mesh.replace(device_ids=ids, process_indices=hosts),
        axes=gains_most.collective.mesh_axes,
        hops=gains_most.cost(now)[1],
        possible=gains_most.cost(rows)[1],
        seconds=_rank(sends, now, hop=0.0),
        least=_rank(sends, rows, hop=0.0),
    )


@dataclass(frozen=True, eq=False)
class _Send:
    """A collective whose cost is compared across device orders.

    Attributes:
        topology: the described hardware.
        collective: the collective.
        groups: mesh positions of each group's devices, int64 `[groups, members]`.
        ordered: the mesh axes along which the device order matters.
        costs: cached costs, by the devices of the groups.
    """

    topology: Topology
    collective: Collective
    groups: np.ndarray
    ordered: tuple[int, ...]
    costs: dict[bytes, tuple[float, int]] = field(default_factory=dict)

    def cost(self, rows: np.ndarray) -> tuple[float, int]:
        """Returns seconds (infinite if a rate is unpublished) and the most hops."""
        groups = rows.reshape(-1)[self.groups]
        # Without ordered axes, each group fills a block of the torus. The order of the
        # devices in the group then doesn't affect its cost.
        key = _sorted(groups, not self.ordered).tobytes()
        if key not in self.costs:
            links = route(self.topology, groups, self.collective.kind)
            seconds = links.seconds(self.collective.bytes_per_device)
            if seconds is None:
                seconds = math.inf
            seconds *= self.collective.execution_count
            self.costs[key] = seconds, int(links.hops[0])
        return self.costs[key]


def _sends(
    mesh: MeshSpec, topology: Topology, collectives: Sequence[Collective]
) -> Iterator[_Send]:
    for collective in collectives:
        axes, permutes = collective.mesh_axes, collective.definition.pairs
        in_mesh = bool(axes) and mesh.shape.keys() >= set(axes)
        # Without groups, senders and receivers are unknown, as in the roofline.
        unknown = not collective.groups and (permutes or not in_mesh)
        if unknown or collective.definition.route is Route.UNKNOWN:
            continue
        names = axes if in_mesh else mesh.axis_names
        full, ordered = groups_over(mesh, names), ()
        groups = np.asarray(collective.groups or full, np.int64)
        if permutes or not np.array_equal(_sorted(groups), _sorted(full)):
            ordered = tuple(map(mesh.positions.__getitem__, names))
        yield _Send(topology, collective, groups, ordered)


def _sorted(groups: np.ndarray, members: bool = True) -> np.ndarray:
    """Sorts groups by their first member; with `members`, also sorts each group."""
    if members:
        groups = np.sort(groups, axis=1)
    return groups[np.argsort(groups[:, 0])]


def _rank(sends: Sequence[_Send], rows: np.ndarray, hop: float = 1e-9) -> float:
    """Sums the least seconds, plus a little for each hop to break ties."""
    total = 0.0
    for send in sends:
        seconds, hops = send.cost(rows)
        total += seconds * (1 + hop * hops)
    return total


def _orders(
    mesh: MeshSpec, topology: Topology, moving: Sequence[int]
) -> Iterator[np.ndarray]:
    """Yields device orders: rows of the topology, int64 in mesh shape.

    Args:
        mesh: the mesh.
        topology: the described hardware.
        moving: mesh axes along which we also try a snake and a ring.
    """
    # From the slowest-changing dimension to the fastest.
    places = [topology.slice_indices, *topology.coords.T[::-1], topology.cores]
    natural = np.lexsort(places[::-1])
    every = _assignments((np.stack(places).max(axis=1) + 1).tolist(), mesh.axis_sizes)
    for parts in itertools.islice(every, MOST_ORDERS):
        # Sort factors by axis, and by dimension within an axis.
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
    """Yields every way to assign factors of dimensions to axes.

    Adjacent factors of one dimension go to different axes.

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
            remaining = (*axes[:axis], length // size, *axes[axis + 1 :])
            further_sizes = [sizes[0] // size, *sizes[1:]]
            for further in _assignments(further_sizes, remaining, axis):
                yield ((size, axis, len(sizes) - 1), *further)


def _walks(grid: np.ndarray) -> Iterator[np.ndarray]:
    """Yields paths from neighbour to neighbour through a grid: a snake and a ring."""
    if grid.ndim > 1:
        yield _snake(grid)
        # The ring visits all columns except the first, and returns along the first.
        lines = np.stack(list(map(_snake, grid)))
        yield np.concatenate([_snake(lines[:, 1:]), lines[::-1, 0]])


def _snake(grid: np.ndarray) -> np.ndarray:
    """Returns a path that runs forward along one row and back along the next."""
    if grid.ndim == 1:
        return grid
    rows = [_snake(row)[:: 1 - 2 * (n % 2)] for n, row in enumerate(grid)]
    return np.concatenate(rows)
