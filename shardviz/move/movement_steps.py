"""The steps of collectives: which device sends which chunk to which device.

A collective over n devices moves n blocks (n per device for an all-to-all). The devices
form a grid with one axis (a ring) or several (the axes of a torus, or hosts and their
devices), and the steps go along one axis after the other:

- gather along an axis of s devices: in each of s - 1 steps, every device passes the last
  block it received to its neighbour. In the end every device has all blocks.
- scatter: in each of s - 1 steps, every device sends a partial sum to its neighbour,
  which adds its own part. In the end every device has one of s sums.

An all-gather gathers along every axis, a reduce-scatter scatters along them in the
opposite order, an all-reduce scatters, then gathers. Parts 3 and 12 of
https://jax-ml.github.io/scaling-book and NCCL's documentation describe them like this.
On the closed axes of a torus, one half of every block goes to the right and the other
half to the left. In an all-to-all every device sends directly to every other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shardviz.base.collective_kind import KINDS, Route
from shardviz.base.display import Fact
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed, shown, suggestion
from shardviz.hardware.topology import Topology

MOST_DEVICES = 1 << 16
# Transfers are listed for at most this number of devices.
MOST_LISTED = 64

#: The kinds in which all devices do the same in each step.
REGULAR = tuple(name for name, kind in KINDS.items() if kind.steps)
PERMUTE = "collective-permute"
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class RegularSent(Fact):
    """The chunks that every device sends in one step of a collective.

    Attributes:
        action: `"gather"`, `"scatter"` or `"exchange"`.
        axis: the name of the axis of the grid, or `""`.
        chunks: the number of chunks, or of halves of chunks, that each device sends.
        hops: the distance of the target in the grid.
        both_ways: whether one half goes to the right and the other to the left.
        reached: the number of devices whose chunks or sums each device then has.
        count: the number of devices.

    >>> RegularSent("gather", "", 1, 1, False, 2, 4).reached
    2
    """

    action: str
    axis: str
    chunks: int
    hops: int
    both_ways: bool
    reached: int
    count: int


@dataclass(frozen=True)
class ListedSent(Fact):
    """The data that some devices send in a permutation.

    Attributes:
        sends: the number of devices that send.
        bytes: the bytes that they send together.
        far: the number of them that send over the network.

    >>> ListedSent(2, 64, 0).bytes
    64
    """

    sends: int
    bytes: int
    far: int


@dataclass(frozen=True, eq=False)
class MovementStep:
    """The transfers of one step: the arrays have one entry per chunk sent.

    The arrays are empty for a collective of more than MOST_LISTED devices, all of which
    do the same.

    Attributes:
        about: the fact that describes the step.
        source, target: int64 [transfers]: positions in the group.
        chunk: int64 [transfers]: the chunk.
        network: bool [transfers]: whether it goes over the network between hosts or
            slices.
        adds: whether the target adds the chunk to its own, instead of storing it.
        keeps: whether the source still has the chunk afterwards.
        bytes: the most bytes that one device sends.

    >>> print(MovementStep(ListedSent(1, 64, 0), *(np.zeros(0, np.int64),) * 4).words)
    1 device sends 64 B.
    """

    about: RegularSent | ListedSent
    source: np.ndarray
    target: np.ndarray
    chunk: np.ndarray
    network: np.ndarray
    adds: bool = False
    keeps: bool = True
    bytes: int = 0

    @property
    def words(self) -> str:
        """The step in one sentence."""
        return str(self.about)


class Chunks(NamedTuple):
    """The chunks of the arrays; for a large group only the bytes are listed.

    Attributes:
        labels: the name of each chunk: `3`, `3b` for a half, or `2→5`.
        bytes: int64 [chunks].
        group: int64 [chunks]: the device that each chunk is for, which gives its colour.

    >>> regular_chunks("all-gather", Method("ring", np.arange(2)), 100).labels
    ('0', '1')
    """

    labels: tuple[str, ...]
    bytes: np.ndarray
    group: np.ndarray


class Method(NamedTuple):
    """The algorithm of a collective.

    Attributes:
        name: `"ring"`, `"both directions"`, `"torus"`, `"hosts"` or `"direct"`.
        grid: int64: the device at each place; a ring has one axis.
        axes: the name of each axis, such as `"x"` or `"hosts"`; `""` for a ring.
        directions: (1,) to the right, or (1, -1) in both directions.
        open_axes: the axes of a torus that are not closed to a ring.

    >>> Method("ring", np.arange(4)).directions
    (1,)
    """

    name: str
    grid: np.ndarray
    axes: tuple[str, ...] = ("",)
    directions: tuple[int, ...] = (1,)
    open_axes: tuple[str, ...] = ()

    @property
    def places(self) -> np.ndarray:
        """int64 [devices]: the place of each in the grid, row by row."""
        return np.argsort(self.grid.reshape(-1))


def check_kind(kind: Any) -> None:
    """Raises a ProgramError for a kind of collective without steps."""
    kinds = (*REGULAR, PERMUTE)
    if kind in KINDS and KINDS[kind].route is Route.UNKNOWN:
        raise ProgramError(
            "What a ragged exchange sends is known only when it runs, so it has no steps here."
        )
    if kind not in kinds:
        raise ProgramError(
            f"No steps are known for {shown(kind)}; they are for {listed(kinds)}."
            f"{suggestion(kind, kinds)}"
        )


# --- the algorithm of a group ---------------------------------------------------------


def method_for(
    kind: str, parts: np.ndarray, topology: Topology | None, rows: np.ndarray
) -> Method:
    """Chooses the algorithm for a group.

    Args:
        kind: one of REGULAR.
        parts: int64 [devices]: the host or slice of each, which the network joins.
        topology: the described devices, or None.
        rows: int64 [devices]: their positions in the order of the topology.
    """
    if KINDS[kind].route is Route.EXCHANGE:
        return Method("direct", np.arange(len(parts)))
    torus = None
    if topology is not None and topology.chip.axes:
        torus = _torus(topology, rows)
    return torus or _levels(parts) or Method("ring", np.arange(len(parts)))


def _torus(topology: Topology, rows: np.ndarray) -> Method | None:
    """The devices as a block of a torus, or None if they do not fill one."""
    # From the farthest axis to the nearest, because most bytes go along the last.
    named = [("slices", topology.slice_indices[rows])]
    for axis in reversed(range(len(topology.shape))):
        named.append(("xyz"[axis], topology.coords[rows, axis]))
    named.append(("cores", topology.cores[rows]))
    columns, sizes, names = [], [], []
    rings, open_axes = False, []
    for name, values in named:
        places, column = np.unique(values, return_inverse=True)
        size = len(places)
        if size == 1:
            continue
        columns.append(column.reshape(-1))
        sizes.append(size)
        names.append(name)
        if name in ("slices", "cores"):
            continue
        axis = "xyz".index(name)
        # Devices that are evenly spaced around a closed axis form a ring too.
        even = (np.diff(places) * size == topology.shape[axis]).all()
        if even and topology.wraps[axis]:
            rings = True
        elif size > 2:
            open_axes.append(name)
    if not sizes or math.prod(sizes) != len(rows):
        return None
    grid = np.full(sizes, -1)
    grid[tuple(columns)] = np.arange(len(rows))
    if (grid < 0).any():
        return None
    name, directions = "torus", (1,)
    if rings:
        directions = (1, -1)
    # A group along one axis of a torus is a ring.
    if len(sizes) == 1:
        name = "ring"
        if rings:
            name = "both directions"
    return Method(name, grid, tuple(names), directions, tuple(open_axes))


def _levels(parts: np.ndarray) -> Method | None:
    """The hosts with their devices; None for one host or unequal numbers of devices."""
    places, part_of = np.unique(parts, return_inverse=True)
    sizes = np.bincount(part_of.reshape(-1))
    if len(places) < 2 or sizes.min() < 2 or sizes.min() != sizes.max():
        return None
    grid = np.argsort(part_of.reshape(-1), kind="stable").reshape(len(places), -1)
    return Method("hosts", grid, ("hosts", "devices"))


# --- the steps ------------------------------------------------------------------------


def regular_chunks(kind: str, method: Method, total: int) -> Chunks:
    """The chunks of a collective in which all devices do the same."""
    count, directions = method.grid.size, len(method.directions)
    labels = []
    if KINDS[kind].route is Route.EXCHANGE:
        for source in range(count):
            labels += [f"{source}→{target}" for target in range(count)]
        numbers = np.arange(count * count)
        return Chunks(
            tuple(labels), _spread(total, count)[numbers % count], numbers % count
        )
    for block in range(count):
        for part in "ab"[:directions]:
            labels.append(f"{block}{part}" if directions > 1 else str(block))
    group = np.arange(count * directions) // directions
    return Chunks(tuple(labels), _spread(total, count * directions), group)


def _spread(total: int, count: int) -> np.ndarray:
    """int64 [count]: the bytes, divided as evenly as possible."""
    ends = total * np.arange(count + 1) // count
    return np.diff(ends)


def regular_steps(
    kind: str, method: Method, chunks: Chunks, parts: np.ndarray, total: int
) -> Iterator[MovementStep]:
    """The steps of one of REGULAR."""
    grid, directions = method.grid, method.directions
    axes = range(grid.ndim)
    for action in KINDS[kind].steps:
        order = list(axes)
        if action == "scatter":
            order.reverse()
        for number, axis in enumerate(order):
            # A scatter also sends the blocks that are scattered along the other axes later.
            earlier = order[:number]
            free = earlier
            if action == "scatter":
                free = order[number + 1 :]
            sent = math.prod(grid.shape[earlier_axis] for earlier_axis in free)
            reached = math.prod(grid.shape[earlier_axis] for earlier_axis in earlier)
            for turn in range(1, grid.shape[axis]):
                about = RegularSent(
                    action,
                    method.axes[axis],
                    sent,
                    turn,
                    len(directions) > 1,
                    reached * (turn + 1),
                    grid.size,
                )
                adds, keeps = action == "scatter", action == "gather"
                if grid.size > MOST_LISTED:
                    most_bytes = sent * total // grid.size
                    none = _NOTHING
                    yield MovementStep(
                        about, none, none, none, none, adds, keeps, most_bytes
                    )
                    continue
                moved = []
                for part, direction in enumerate(directions):
                    if action == "exchange":
                        moved.append(_exchanged(grid.size, turn))
                        continue
                    distance = turn if action == "gather" else turn + 1
                    source, target, block = _along(
                        grid, axis, direction, distance, free
                    )
                    moved.append(
                        np.stack([source, target, block * len(directions) + part])
                    )
                source, target, chunk = np.concatenate(moved, axis=1)
                most_bytes = int(np.bincount(source, chunks.bytes[chunk]).max())
                network = parts[source] != parts[target]
                yield MovementStep(
                    about, source, target, chunk, network, adds, keeps, most_bytes
                )


def _exchanged(count: int, turn: int) -> np.ndarray:
    """int64 [3, transfers]: each device sends to the one `turn` places further."""
    source = np.arange(count)
    target = (source + turn) % count
    return np.stack([source, target, source * count + target])


def _along(
    grid: np.ndarray, axis: int, direction: int, distance: int, free: Sequence[int]
) -> np.ndarray:
    """The transfers in one direction along an axis: int64 [3, transfers], with source,
    target and block.

    Every device receives from its neighbour the blocks of the devices at `distance`,
    with any coordinates along the axes `free`.
    """
    order = [dim for dim in range(grid.ndim) if dim not in free] + list(free)
    count = math.prod(grid.shape[dim] for dim in free)
    rows = []
    for rolled in (
        np.roll(grid, direction, axis),
        grid,
        np.roll(grid, direction * distance, axis),
    ):
        rows.append(rolled.transpose(order).reshape(-1, count))
    source, target, block = rows
    return np.stack(
        [
            np.repeat(source, count),
            np.repeat(target, count),
            np.repeat(block, count, axis=0).reshape(-1),
        ]
    )


def chains_of(pairs: np.ndarray) -> list[np.ndarray]:
    """The chains of devices in a permutation, in the order in which they send.

    Args:
        pairs: int64 [pairs, 2]: sender and receiver; each at most once.

    >>> [chain.tolist() for chain in chains_of(np.array([[0, 1], [1, 0], [5, 2]]))]
    [[0, 1], [5, 2]]
    """
    following = dict(np.asarray(pairs).tolist())
    receivers = set(following.values())
    # A chain starts at a device that receives nothing; the remaining chains are rings.
    starts = [s for s in following if s not in receivers] + sorted(following)
    visited: set[int] = set()
    chains = []
    for start in starts:
        chain = []
        at: int | None = start
        while at is not None and at not in visited:
            visited.add(at)
            chain.append(at)
            at = following.get(at)
        if chain:
            chains.append(np.array(chain, np.int64))
    return sorted(chains, key=lambda chain: int(chain.min()))
