"""best_order(): which devices the axes of a mesh should be laid over, for a program.

What is searched: every dimension of the hardware (slices, z, y, x and the cores of a
chip; of GPUs, hosts and the GPUs of each) is split into factors, in every way and order,
and each is given to a mesh axis, in all ways in which the sizes agree. So an axis may
have a whole dimension, neighbours or every second chip of it, or parts of several. Along
axes where the order of devices counts, as in a permutation, the parts follow one another
in every order, as rows, as a snake, and as a ring: the best of these is taken for one
axis after the other.

What is not searched: devices of an axis that form no grid, such as a diagonal or an L,
other ways through a grid, and what comes after MOST_ORDERS assignments. The time is that
of the roofline, by `route`: the busiest link, without latency. Of orders that take the
same time the one with fewer hops is the better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardviz.core.display import Fact
from shardviz.core.hardware.interconnect import device_rows, groups_over, route
from shardviz.core.hardware.topology import Topology, is_described
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.candidates import Edit, edit
from shardviz.core.program.program import Program
from shardviz.core.program.report import Collective, Report

# 64 chips have at most 720 assignments, 1,024 in 3 axes 4,200.
MOST_ORDERS = 5_000


@dataclass(frozen=True)
class DeviceOrder(Fact):
    """An order of devices in which a program's collectives take less time.

    Attributes:
        mesh: with its devices in that order.
        axes: the mesh axes of the collective that gains most.
        hops, possible: the most links that one send of it crosses, now and then.
        seconds, least: the least time of all collectives, now and then.

    >>> from shardviz.core.layout.mesh import make_mesh
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

    The docstring of this module says which orders are tried. None where none is better
    than the present one of `mesh`, or where the rate of a link is not published.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> gather = Collective("all-gather", ("data",), 1 << 20)
    >>> found = best_order(make_mesh(data=4, model=4), Topology.parse("tpu:v5e:4x4"), [gather])
    >>> found.seconds / found.least, found.mesh.device_ids[:, 0].tolist()
    (2.0, [0, 1, 4, 5])
    """
    uneven = any(len(set(map(len, one.groups))) > 1 for one in collectives)
    if mesh.size != topology.devices or uneven:
        return None
    sends = list(_sends(mesh, topology, collectives))
    free = [send for send in sends if not send.ordered]
    moving = sorted({axis for send in sends for axis in send.ordered})
    now, rows = device_rows(mesh, topology), None
    before = _rank(sends, now)
    # Rounding is no reason to move an array.
    best = before * (1 - 1e-12)
    places = [topology.slice_indices, *topology.coords.T[::-1], topology.cores]
    natural = np.lexsort(places[::-1])
    every = _assignments([int(at.max()) + 1 for at in places], mesh.axis_sizes)
    for assignment in itertools.islice(every, MOST_ORDERS):
        # Axis by axis, and within each from the slowest dimension to the fastest.
        order = sorted(range(len(assignment)), key=lambda n: assignment[n][1])
        placed = natural.reshape([size for size, _, _ in assignment])
        placed = placed.transpose(order).reshape(mesh.axis_sizes)
        if _rank(free, placed) >= best:
            continue
        for axis in moving:
            turned = [np.take(placed, w, axis) for w in _walks(assignment, axis)]
            placed = min(turned, key=lambda rows: _rank(sends, rows))
        if (rank := _rank(sends, placed)) < best:
            best, rows = rank, placed
    if rows is None or math.isinf(before):
        return None
    most = max(sends, key=lambda send: _rank([send], now) - _rank([send], rows))
    ids, hosts = topology.device_ids[rows], topology.process_indices[rows]
    return DeviceOrder(
        mesh.replace(device_ids=ids, process_indices=hosts),
        most.one.mesh_axes,
        most.cost(now)[1],
        most.cost(rows)[1],
        sum(send.cost(now)[0] for send in sends),
        sum(send.cost(rows)[0] for send in sends),
    )


def order_edit(program: Program, report: Report) -> Edit | None:
    """The edit that gives a program the best order of devices; None for no better one.

    Args:
        program: as it was compiled.
        report: its compile, for described devices.
    """
    where = getattr(report.roofline, "where", "")
    if report.mesh is None or not is_described(where):
        return None
    found = best_order(report.mesh, Topology.parse(where), report.collectives or ())
    if found is None:
        return None
    mesh = program.mesh.replace(device_ids=found.mesh.device_ids, concrete=True)
    return edit("device order", mesh=mesh)


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
        axes, permutes = one.mesh_axes, one.kind == "collective-permute"
        known = bool(axes) and mesh.shape.keys() >= set(axes)
        # As in the roofline: without groups nobody knows who sends to whom.
        if one.kind == "ragged-all-to-all":
            continue
        if not one.groups and (permutes or not known):
            continue
        names = axes if known else mesh.axis_names
        full, ordered = groups_over(mesh, names), ()
        groups = np.asarray(one.groups or full, np.int64)
        if permutes or not np.array_equal(_sorted(groups), _sorted(full)):
            ordered = tuple(mesh.positions[axis] for axis in names)
        yield _Send(topology, one, groups, ordered)


def _sorted(groups: np.ndarray, members: bool = True) -> np.ndarray:
    """The same groups in an order that all equal ones have."""
    if members:
        groups = np.sort(groups, axis=1)
    return groups[np.argsort(groups[:, 0])]


def _rank(sends: Sequence[_Send], rows: np.ndarray) -> float:
    """The least seconds of all, one after another; a little more for more hops."""
    return sum(s * (1 + 1e-9 * hops) for s, hops in (one.cost(rows) for one in sends))


# --- the orders -----------------------------------------------------------------------


# Parts of dimensions: size, mesh axis, and how many dimensions come after.
_Assignment = tuple[tuple[int, int, int], ...]


def _assignments(
    sizes: Sequence[int], axes: tuple[int, ...], last: int = -1
) -> Iterator[_Assignment]:
    """Every way to give parts of dimensions to axes; parts side by side have two axes.

    >>> list(_assignments([2, 2], (4,)))
    [((2, 0, 1), (2, 0, 0))]
    >>> len(list(_assignments([4, 4], (4, 4))))
    6
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


def _walks(assignment: _Assignment, axis: int) -> Iterator[np.ndarray]:
    """Orders in which an axis passes through the grid of its parts: int64 [size] each."""
    sizes: dict[int, int] = {}
    for factor, owner, dimension in assignment:
        if owner == axis:
            sizes[dimension] = sizes.get(dimension, 1) * factor
    grid = np.arange(math.prod(sizes.values())).reshape(*sizes.values())
    for order in itertools.permutations(range(len(sizes))):
        turned = grid.transpose(order)
        yield turned.reshape(-1)
        if len(sizes) > 1:
            yield _snake(turned)
            yield _ring(turned)


def _snake(grid: np.ndarray) -> np.ndarray:
    """There along one row, back along the next: each step goes to a neighbour."""
    if grid.ndim == 1:
        return grid
    rows = [_snake(row)[:: 1 - 2 * (n % 2)] for n, row in enumerate(grid)]
    return np.concatenate(rows)


def _ring(grid: np.ndarray) -> np.ndarray:
    """A snake through all columns except the first, by which it returns.

    >>> _ring(np.arange(8).reshape(2, 4)).tolist()
    [1, 2, 3, 7, 6, 5, 4, 0]
    """
    lines = np.stack([_snake(row) for row in grid])
    return np.concatenate([_snake(lines[:, 1:]), lines[::-1, 0]])
