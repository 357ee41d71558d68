"""Who sends what to whom, and when: the steps of collectives and of reshards, as
arrays.

A collective over n devices is about n blocks (n per device for an all-to-all). The
devices are a grid of one axis (a ring) or several (the axes of a torus; hosts and the
devices of each), and the steps go along one axis after the other:

- gather along an axis of s devices: in s - 1 steps every device passes on to its
  neighbour what arrived last, so that all have what each had.
- scatter: in s - 1 steps every device sends a sum to its neighbour, which adds its own
  part, so that each has one of s sums.

An all-gather gathers along every axis, a reduce-scatter scatters along them in the
opposite order, an all-reduce scatters, then gathers. That is how parts 3 and 12 of
https://jax-ml.github.io/scaling-book describe them, and NCCL's documentation. In both
directions, one half of every block goes to the right and the other half to the left. In
an all-to-all every device sends to every other at once, however far that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.display import Fact
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, shown, suggestion
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.parse import check_size

MOST_DEVICES = 1 << 20
MOST_LISTED = 64  # devices whose transfers and holdings are listed


@dataclass(frozen=True)
class RegularSent(Fact):
    """What every device sends in one step of a collective.

    Attributes:
        action: `"gather"`, `"scatter"` or `"exchange"`.
        axis: the name of the axis of the grid, or `""`.
        chunks: how many chunks each device sends, or halves of chunks.
        hops: how many places further on the target is.
        both_ways: whether one half goes to the right and the other to the left.
        reached: of how many devices each then has the chunks, or sums.
        count: how many devices there are.

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
    """What some devices send in one step of a permutation or a reshard.

    Attributes:
        sends: how many devices send.
        bytes: what they send together.
        far: how many of them send to another host.

    >>> ListedSent(2, 64, 0).bytes
    64
    """

    sends: int
    bytes: int
    far: int


@dataclass(frozen=True, eq=False)
class MovementStep:
    """What is sent at the same time. One entry per chunk that is sent.

    Attributes:
        about: what happens, as a fact.
        source, target: int64 [transfers]: positions in the group.
        chunk: int64 [transfers]: which chunk.
        link: int64 [transfers]: which of the movement's `link_names` it takes.
        adds: whether the target adds what arrives to what it has; else it stores it.
        keeps: whether the source still has the chunk afterwards.
        bytes: the most bytes that one device sends.

    >>> MovementStep(ListedSent(1, 64, 0), *(np.zeros(0, np.int64) for _ in range(4)))
    MovementStep(1 device sends 64 B.)
    """

    about: RegularSent | ListedSent
    source: np.ndarray
    target: np.ndarray
    chunk: np.ndarray
    link: np.ndarray
    adds: bool = False
    keeps: bool = True
    bytes: int = 0

    @property
    def words(self) -> str:
        """What happens, in one sentence."""
        return str(self.about)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"MovementStep({self.words})"


@dataclass(frozen=True, eq=False)
class Chunks:
    """What the arrays are divided into.

    Attributes:
        count: how many chunks there are over all devices.
        total: the bytes of those of one device.
        per_device: how many chunks `total` is divided into.
        parts: into how many parts, one per direction, a block is cut.
        pairs: of an all-to-all how many devices there are; else 0.
        bounds: of a reshard int64 [chunks, rank, 2]: from where to where each chunk
            goes.
        sizes: of a reshard int64 [chunks]: the bytes of each.

    >>> chunks = Chunks(4, 100, 4, parts=2)
    >>> [chunks.label(n) for n in range(4)], chunks.bytes_of(np.arange(4)).tolist()
    (['0a', '0b', '1a', '1b'], [25, 25, 25, 25])
    """

    count: int
    total: int
    per_device: int
    parts: int = 1
    pairs: int = 0
    bounds: np.ndarray | None = None
    sizes: np.ndarray | None = None

    def label(self, chunk: int) -> str:
        """What a chunk is called: `3`, `3b` for a part of it, `2→5`, or `[0:4, 2:4]`."""
        if self.bounds is not None:
            slices = [f"{a}:{b}" for a, b in self.bounds[chunk].tolist()]
            return f"[{', '.join(slices)}]"
        block, part = divmod(chunk, self.parts)
        name = str(block)
        if self.pairs:
            name = f"{block // self.pairs}→{block % self.pairs}"
        return name if self.parts == 1 else name + "ab"[part]

    def bytes_of(self, chunks: np.ndarray) -> np.ndarray:
        """int64: the bytes of some chunks; what does not divide is spread over them."""
        if self.sizes is not None:
            return self.sizes[chunks]
        at, count = chunks % self.per_device, self.per_device
        return self.total * (at + 1) // count - self.total * at // count


@dataclass(frozen=True, eq=False)
class DeviceGrid:
    """The devices of a group as a grid; a ring has one axis.

    Attributes:
        sizes: how many devices there are along each axis.
        coordinates: int64 [devices, axes].
        names: what each axis is called: `"x"`, `"hosts"`, `"devices"`,
            `"slices"`, `"cores"`; `""` for the only one.
        link_numbers: for each axis the number of the link it takes; () where hosts
            decide.

    >>> ring_grid(3).coordinates.tolist()
    [[0], [1], [2]]
    """

    sizes: tuple[int, ...]
    coordinates: np.ndarray
    names: tuple[str, ...] = ("",)
    link_numbers: tuple[int, ...] = ()

    @cached_property
    def strides(self) -> np.ndarray:
        """int64 [axes]: those of the row-major number of a place."""
        return np.cumprod([1, *self.sizes[:0:-1]])[::-1].astype(np.int64)

    @cached_property
    def member_at(self) -> np.ndarray:
        """int64 [devices]: the device at each place, row-major."""
        members = np.empty(len(self.coordinates), np.int64)
        members[self.coordinates @ self.strides] = np.arange(len(members))
        return members

    def members(self, base: np.ndarray, free: Sequence[int]) -> np.ndarray:
        """int64 [rows, combinations]: the devices at `base` [rows, axes] with some axes
        free.
        """
        fixed = base.copy()
        fixed[:, list(free)] = 0
        steps = np.zeros(1, np.int64)
        for axis in free:
            along = np.arange(self.sizes[axis]) * self.strides[axis]
            steps = (steps[:, None] + along).reshape(-1)
        return self.member_at[(fixed @ self.strides)[:, None] + steps]


def ring_grid(count: int) -> DeviceGrid:
    """So many devices in one ring."""
    return DeviceGrid((count,), np.arange(count)[:, None])


class Phase(NamedTuple):
    """Some steps along one axis.

    Attributes:
        action: `"gather"`, `"scatter"` or `"exchange"`.
        axis: of the grid.
        done: the axes along which that was done before.
        steps: how many steps it takes.
    """

    action: str
    axis: int
    done: tuple[int, ...]
    steps: int


_ACTIONS = {
    "all-gather": ("gather",),
    "reduce-scatter": ("scatter",),
    "all-reduce": ("scatter", "gather"),
    "all-to-all": ("exchange",),
}
REGULAR, PERMUTE = tuple(_ACTIONS), "collective-permute"


def check_kind(kind: Any) -> None:
    """Raises a ProgramError for a kind of collective without steps."""
    known = (*REGULAR, PERMUTE)
    if not isinstance(kind, str):
        raise ProgramError(f"The kind of a collective is text; got {shown(kind)}.")
    if kind in known:
        return
    if kind == "ragged-all-to-all":
        raise ProgramError(
            "What a ragged exchange sends is known only when it runs, so it has no steps here."
        )
    raise ProgramError(
        f"No steps are known for {shown(kind)}; they are for {listed(known)}."
        f"{suggestion(kind, known)}"
    )


def phases_of(kind: str, sizes: Sequence[int]) -> list[Phase]:
    """The phases of a collective of one of REGULAR, on a grid of these sizes."""
    found = []
    for action in _ACTIONS[kind]:
        order = list(range(len(sizes)))
        # The last axis is the nearest one: most is sent along it.
        if action == "scatter":
            order.reverse()
        for n, axis in enumerate(order):
            if sizes[axis] > 1:
                found.append(Phase(action, axis, tuple(order[:n]), sizes[axis] - 1))
    return found


def checked_ids(devices: Any) -> np.ndarray:
    """int64: the ids of some devices, given as such or as their number.

    Raises:
        ProgramError: for anything else.
    """
    if isinstance(devices, np.ndarray) and devices.ndim and devices.dtype.kind in "iu":
        return devices.astype(np.int64)
    count = check_size(devices, "The number of devices", ProgramError)
    if not 1 <= count <= MOST_DEVICES:
        raise ProgramError(
            f"A group has 1 to {MOST_DEVICES:,} devices; got {shown(count)}. Give devices=8."
        )
    return np.arange(count)


@dataclass(frozen=True, eq=False)
class RegularSteps(Sequence[MovementStep]):
    """The steps of a collective in which every device does the same, made when asked
    for.

    Attributes:
        kind: one of REGULAR.
        grid: the devices.
        hosts: int64 [devices].
        chunks: what is sent.
        ways: (1,), or (1, -1) in both directions.

    >>> steps = RegularSteps("all-gather", ring_grid(4), np.zeros(4), Chunks(4, 400, 4))
    >>> len(steps), steps[0].source.tolist(), steps[0].chunk.tolist(), steps[0].bytes
    (3, [3, 0, 1, 2], [3, 0, 1, 2], 100)
    """

    kind: str
    grid: DeviceGrid
    hosts: np.ndarray
    chunks: Chunks
    ways: tuple[int, ...] = (1,)

    @cached_property
    def phases(self) -> list[Phase]:
        """The phases, in order."""
        return phases_of(self.kind, self.grid.sizes)

    def __len__(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return tuple(self[n] for n in range(*number.indices(len(self))))
        return self.step(range(len(self))[number], min(len(self.hosts), MOST_LISTED))

    def step(self, number: int, targets: int) -> MovementStep:
        """One step, with what the first `targets` devices receive."""
        turn = number + 1
        for phase in self.phases:
            if turn <= phase.steps:
                break
            turn -= phase.steps
        parts = []
        for part, way in enumerate(self.ways):
            parts.append(self._sent(phase, turn, way, part, np.arange(targets)))
        source, target, chunk = np.concatenate(parts, axis=1)
        order = np.argsort(target, kind="stable")
        source, target, chunk = source[order], target[order], chunk[order]
        link = (self.hosts[source] != self.hosts[target]).astype(np.int64)
        if self.grid.link_numbers:
            link = np.full(len(source), self.grid.link_numbers[phase.axis])
        # Where not all targets are listed, not all that a source sends is; and each
        # device receives as much as it sends.
        side = source if targets == len(self.hosts) else target
        most = np.bincount(side, self.chunks.bytes_of(chunk)).max(initial=0)
        return MovementStep(
            self._about(phase, turn, len(chunk) // max(1, targets)),
            source,
            target,
            chunk,
            link,
            adds=phase.action == "scatter",
            keeps=phase.action == "gather",
            bytes=int(most),
        )

    def _sent(
        self, phase: Phase, turn: int, way: int, part: int, targets: np.ndarray
    ) -> np.ndarray:
        """What goes one way round: int64 [3, transfers], source, target and chunk."""
        if phase.action == "exchange":
            source = (targets - turn) % len(self.hosts)
            return np.stack([source, targets, source * len(self.hosts) + targets])
        axis, size = phase.axis, self.grid.sizes[phase.axis]

        def at(distance: int) -> np.ndarray:
            there = self.grid.coordinates[targets]
            there[:, axis] = (there[:, axis] - way * distance) % size
            return there

        source = self.grid.members(at(1), ())[:, 0]
        if phase.action == "gather":
            blocks = self.grid.members(at(turn), phase.done)
        else:
            # What is still to be scattered along the other axes goes with it.
            done = (axis, *phase.done)
            others = [n for n in range(len(self.grid.sizes)) if n not in done]
            blocks = self.grid.members(at(turn + 1), others)
        each = blocks.shape[1]
        chunk = blocks.reshape(-1) * self.chunks.parts + part
        return np.stack([np.repeat(source, each), np.repeat(targets, each), chunk])

    def _about(self, phase: Phase, turn: int, rows: int) -> RegularSent:
        done = math.prod(self.grid.sizes[axis] for axis in phase.done)
        ways = len(self.ways)
        return RegularSent(
            phase.action,
            self.grid.names[phase.axis],
            rows // ways,
            turn,
            ways > 1,
            done * (turn + 1),
            len(self.hosts),
        )


def chains_of(pairs: np.ndarray) -> list[np.ndarray]:
    """The devices of a permutation that send to one another, each chain in its order.

    Args:
        pairs: int64 [pairs, 2]: sender and receiver; none sends or receives twice.

    >>> [chain.tolist() for chain in chains_of(np.array([[0, 1], [1, 0], [5, 2]]))]
    [[0, 1], [5, 2]]
    """
    following = dict(pairs.tolist())
    receivers = set(following.values())
    # A chain begins at a device that receives nothing; what is left are rings.
    starts = [s for s in following if s not in receivers] + sorted(following)
    seen: set[int] = set()
    chains = []
    for start in starts:
        chain = []
        at: int | None = start
        while at is not None and at not in seen:
            seen.add(at)
            chain.append(at)
            at = following.get(at)
        if chain:
            chains.append(np.array(chain, np.int64))
    return sorted(chains, key=lambda chain: int(chain.min()))


def listed_steps(
    numbers: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    chunk: np.ndarray,
    chunks: Chunks,
    hosts: np.ndarray,
) -> Iterator[MovementStep]:
    """The steps of a permutation or a reshard.

    Args:
        numbers: int64 [transfers]: the step of each.
    """
    for number in range(int(numbers.max(initial=-1)) + 1):
        some = np.flatnonzero(numbers == number)
        here, there, what = source[some], target[some], chunk[some]
        link = (hosts[here] != hosts[there]).astype(np.int64)
        sizes = chunks.bytes_of(what)
        about = ListedSent(len(some), int(sizes.sum()), int(link.sum()))
        # A device keeps its old shard until the whole reshard is done.
        keeps = chunks.bounds is not None
        most = int(sizes.max(initial=0))
        yield MovementStep(about, here, there, what, link, False, keeps, most)


SAME_HOST, BETWEEN_HOSTS = "same host", "between hosts"
#: How `algorithm=` is written; `wording/movement.py` has what each is called.
ALGORITHMS = ("ring", "both directions", "torus", "hosts", "direct")


@dataclass(frozen=True, eq=False)
class Algorithm:
    """How a regular collective is done.

    Attributes:
        name: of ALGORITHMS.
        grid: the devices.
        link_names: what the numbers of links mean.
        ways: (1,) or (1, -1).
        open_axes: the axes of a torus that do not close to a ring.

    >>> Algorithm("ring", ring_grid(4)).ways
    (1,)
    """

    name: str
    grid: DeviceGrid
    link_names: tuple[str, ...] = (SAME_HOST, BETWEEN_HOSTS)
    ways: tuple[int, ...] = (1,)
    open_axes: tuple[str, ...] = ()


def chosen_algorithm(
    kind: str,
    asked: Any,
    hosts: np.ndarray,
    topology: Topology | None,
    rows: np.ndarray | None,
) -> Algorithm:
    """The algorithm that was asked for, or the one that suits the group."""
    known = isinstance(asked, str) and asked in ALGORITHMS
    if asked is not None and not known:
        raise ProgramError(
            f"algorithm= is one of {listed(ALGORITHMS)}; got {shown(asked)}."
            f"{suggestion(asked, ALGORITHMS)}"
        )
    ring = Algorithm("ring", ring_grid(len(hosts)))
    if (kind == "all-to-all") != (asked == "direct") and asked is not None:
        raise ProgramError(
            f"The algorithm {shown(asked)} does not fit this group: an all-to-all, and"
            " nothing else, is direct."
        )
    if kind == "all-to-all":
        return replace(ring, name="direct")
    torus = None
    if topology is not None and rows is not None:
        torus = _torus(topology, rows)
    levels = _levels(hosts)
    usual = torus or levels or ring
    # A group along one axis of a torus is a ring that is known to be one.
    if torus is not None and len(torus.grid.sizes) == 1:
        ring = replace(torus, name="ring", ways=(1,))
        usual = ring
        if len(torus.ways) > 1:
            usual = replace(torus, name="both directions")
    if asked is None:
        return usual
    both = replace(ring, name="both directions", ways=(1, -1))
    options = {"ring": ring, "both directions": both, "torus": torus, "hosts": levels}
    chosen = options[asked]
    if chosen is None and asked == "torus":
        raise ProgramError(
            "The algorithm 'torus' does not fit this group: its devices fill no block of a"
            " torus that is known; give topology=, such as 'tpu:v5e:4x4'."
        )
    if chosen is None:
        raise ProgramError(
            "The algorithm 'hosts' does not fit this group: it does not span several hosts"
            " with as many devices each, two or more."
        )
    return chosen


def _torus(topology: Topology, rows: np.ndarray) -> Algorithm | None:
    """The devices as a block of a torus; None where they fill none, or are GPUs."""
    if not topology.chip.axes:
        return None
    # From the farthest to the nearest: what each axis is called, where every device is
    # on it, its kind of link, and the axis of the torus.
    named = [("slices", topology.slice_indices[rows], "network between slices", -1)]
    for axis in reversed(range(len(topology.shape))):
        letter = "xyz"[axis]
        named.append((letter, topology.coords[rows, axis], f"ICI {letter}", axis))
    named.append(("cores", topology.cores[rows], "same chip", -1))
    columns, sizes, names, links = [], [], [], []
    rings, open_axes = False, []
    for name, values, link, axis in named:
        places, column = np.unique(values, return_inverse=True)
        size = len(places)
        if size == 1:
            continue
        columns.append(column.reshape(-1))
        sizes.append(size)
        names.append(name)
        links.append(link)
        if axis < 0:
            continue
        # Devices evenly spaced around an axis that closes are a ring as well.
        even = (np.diff(places) * size == topology.shape[axis]).all()
        if even and topology.wraps[axis]:
            rings = True
        elif size > 2:
            open_axes.append(name)
    if not sizes or math.prod(sizes) != len(rows):
        return None
    coordinates = np.stack(columns, axis=1)
    if len(np.unique(coordinates, axis=0)) != len(rows):
        return None
    grid = DeviceGrid(tuple(sizes), coordinates, tuple(names), tuple(range(len(sizes))))
    ways = (1, -1) if rings else (1,)
    return Algorithm("torus", grid, tuple(links), ways, tuple(open_axes))


def _levels(hosts: np.ndarray) -> Algorithm | None:
    """Hosts, and the devices of each; None for one host, or where they have unequal
    numbers.
    """
    places, which = np.unique(hosts, return_inverse=True)
    which = which.reshape(-1)
    each = np.bincount(which)
    if len(places) < 2 or each.min() < 2 or each.min() != each.max():
        return None
    inside = np.empty(len(hosts), np.int64)
    inside[np.argsort(which, kind="stable")] = np.arange(len(hosts)) % each[0]
    grid = DeviceGrid(
        (len(places), int(each[0])),
        np.stack([which, inside], axis=1),
        ("hosts", "devices"),
        (1, 0),
    )
    return Algorithm("hosts", grid)
