"""The steps of collectives: which device sends which chunk to which other device.

A collective over n devices moves n blocks (n per device for an all-to-all). The devices
form a grid. A ring is a grid with one axis; a torus, or hosts with their devices, is a
grid with several axes. The steps run along one axis after the other:

- gather along an axis of s devices: in each of s - 1 steps, every device passes the
  last block it received to its neighbour. In the end, every device has all blocks.
- scatter: in each of s - 1 steps, every device sends a partial sum to its neighbour,
  which adds its own values. In the end, every device has one of s sums.

An all-gather gathers along every axis. A reduce-scatter scatters along the axes in the
opposite order. An all-reduce scatters, then gathers. Parts 3 and 12 of
https://jax-ml.github.io/scaling-book and NCCL's documentation describe these
algorithms. On the closed axes of a torus, one half of every block moves right and the
other half moves left. In an all-to-all, every device sends directly to every other
device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shardviz.base.collective_kind import KIND_OF_PRIMITIVE, KINDS, Route
from shardviz.base.display import Fact
from shardviz.base.errors import ProgramError
from shardviz.base.format import shown, suggestion
from shardviz.hardware.topology import Topology

MOST_DEVICES = 1 << 16
# Transfers are listed only for groups of at most this many devices.
MOST_LISTED = 64

#: The kinds of collectives in which all devices do the same in each step.
REGULAR = tuple(name for name, kind in KINDS.items() if kind.steps)
PERMUTE = "collective-permute"
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class RegularSent(Fact):
    """The chunks that every device sends in one step of a collective.

    Attributes:
        action: `"gather"`, `"scatter"` or `"exchange"`.
        axis: the name of the grid axis; `""` for a ring.
        chunks: the number of chunks, or of halves of chunks, that each device sends.
        hops: the distance between sender and receiver in the grid.
        both_ways: whether one half of each chunk moves right and the other half left.
        reached: the number of devices whose chunks or summands each device has after
            the step.
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
        bytes: the total bytes that these devices send.
        far: the number of these devices that send over the network.

    >>> ListedSent(2, 64, 0).bytes
    64
    """

    sends: int
    bytes: int
    far: int


@dataclass(frozen=True, eq=False)
class MovementStep:
    """The transfers of one step, as arrays with one entry per chunk sent.

    The arrays are empty for a regular collective over more than MOST_LISTED devices.

    Attributes:
        about: a summary of the step.
        source, target: int64 [transfers]: sender and receiver, as positions in the
            group.
        chunk: int64 [transfers]: the index of the chunk.
        network: bool [transfers]: whether the transfer uses the network between hosts
            or slices.
        adds: whether the receiver adds the chunk to its own chunk, instead of storing
            it.
        keeps: whether the sender still has the chunk afterwards.
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
    """The chunks that the arrays are divided into; empty for a large group.

    Attributes:
        labels: the name of each chunk: `3`, `3b` for the second half of a block, or
            `2→5` for a block from device 2 to device 5.
        bytes: int64 [chunks]: the size of each chunk.
        group: int64 [chunks]: the device whose block the chunk belongs to; sets its
            colour.

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
        grid: int64, one dimension per axis: the device at each grid position. A ring
            has one axis.
        axes: the name of each axis, such as `"x"` or `"hosts"`; `""` for a ring.
        directions: `(1,)` for right only, or `(1, -1)` for both directions.
        open_axes: the torus axes along which the group is not a closed ring.

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
        """The flat grid position of each device: int64 [devices]."""
        return np.argsort(self.grid.reshape(-1))


def check_kind(kind: Any) -> None:
    """Raises a ProgramError for a kind of collective without steps."""
    kinds = (*REGULAR, PERMUTE)
    if kind in KINDS and KINDS[kind].route is Route.UNKNOWN:
        raise ProgramError(
            "The data that a ragged exchange sends is known only when it runs, so it"
            " has no steps here."
        )
    if kind not in kinds:
        primitive = KIND_OF_PRIMITIVE.get(kind)
        if primitive is not None and primitive.name in kinds:
            raise ProgramError(
                f"{shown(kind)} is a function of jax. Give the kind of collective that"
                f" it compiles to: {shown(primitive.name)}."
            )
        raise ProgramError(
            f"No steps are known for {shown(kind)}.{suggestion(kind, kinds)}"
        )


# --- the algorithm of a group ---------------------------------------------------------


def method_for(
    kind: str, parts: np.ndarray, topology: Topology | None, rows: np.ndarray
) -> Method:
    """Chooses the algorithm for a group.

    Args:
        kind: a kind in REGULAR.
        parts: int64 [devices]: the host or slice of each device. The network connects
            the hosts or slices.
        topology: the described devices, or None.
        rows: int64 [devices]: each device's position in the order of the topology.
    """
    if KINDS[kind].route is Route.EXCHANGE:
        return Method("direct", np.arange(len(parts)))
    torus = None
    if topology is not None and topology.chip.axes:
        torus = _torus(topology, rows)
    return torus or _levels(parts) or Method("ring", np.arange(len(parts)))


def _torus(topology: Topology, rows: np.ndarray) -> Method | None:
    """Returns the torus method if the devices fill a block of the torus, else None."""
    # Order the axes from farthest to nearest, because most bytes move along the last.
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
        # Devices evenly spaced around a closed axis also form a ring.
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
    # A group along a single torus axis is a ring.
    if len(sizes) == 1:
        name = "ring"
        if rings:
            name = "both directions"
    return Method(name, grid, tuple(names), directions, tuple(open_axes))


def _levels(parts: np.ndarray) -> Method | None:
    """Returns the method for hosts with devices; None for one host or uneven hosts."""
    places, part_of = np.unique(parts, return_inverse=True)
    sizes = np.bincount(part_of.reshape(-1))
    if len(places) < 2 or sizes.min() < 2 or sizes.min() != sizes.max():
        return None
    grid = np.argsort(part_of.reshape(-1), kind="stable").reshape(len(places), -1)
    return Method("hosts", grid, ("hosts", "devices"))


# --- the steps ------------------------------------------------------------------------


def regular_chunks(kind: str, method: Method, total: int) -> Chunks:
    """Returns the chunks for a kind of collective in REGULAR."""
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
    """Divides bytes as evenly as possible: int64 [count]."""
    ends = total * np.arange(count + 1) // count
    return np.diff(ends)


def regular_steps(
    kind: str, method: Method, chunks: Chunks, parts: np.ndarray, total: int
) -> Iterator[MovementStep]:
    """Yields the steps for a kind of collective in REGULAR."""
    grid, directions = method.grid, method.directions
    axes = range(grid.ndim)
    for action in KINDS[kind].steps:
        order = list(axes)
        if action == "scatter":
            order.reverse()
        for number, axis in enumerate(order):
            # A scatter also sends the blocks that it later scatters along the other
            # axes.
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
    """Returns int64 [3, transfers]: source, target and chunk.

    Each device sends to the device `turn` positions further on.
    """
    source = np.arange(count)
    target = (source + turn) % count
    return np.stack([source, target, source * count + target])


def _along(
    grid: np.ndarray, axis: int, direction: int, distance: int, free: Sequence[int]
) -> np.ndarray:
    """Returns the transfers in one direction along an axis.

    Every device receives, from its neighbour, the blocks of the devices at `distance`
    with any coordinates along the axes `free`. The result is int64 [3, transfers]:
    source, target and block.
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
    """Returns the chains of devices in a permutation, in sending order.

    Args:
        pairs: int64 [pairs, 2]: sender and receiver. A device sends and receives at
            most once.

    >>> [chain.tolist() for chain in chains_of(np.array([[0, 1], [1, 0], [5, 2]]))]
    [[0, 1], [5, 2]]
    """
    following = dict(np.asarray(pairs).tolist())
    receivers = set(following.values())
    # A chain starts at a device that receives nothing; all other chains are rings.
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
