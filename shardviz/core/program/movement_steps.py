"""Who sends what to whom, and when: the steps of collectives and of reshards, as arrays.

A collective over n devices is about n blocks (n per device for an all-to-all). The devices are a
grid of one axis (a ring) or several (the axes of a torus; hosts and the devices of each), and the
steps go along one axis after the other:

- gather along an axis of s devices: in s - 1 steps every device passes on to its neighbour what
  arrived last, so that all have what each had.
- scatter: in s - 1 steps every device sends a sum to its neighbour, which adds its own part, so
  that each has one of s sums.
- exchange: everything goes to the device whose coordinate on that axis is that of its target.

An all-gather gathers along every axis, a reduce-scatter scatters along them in the opposite order,
an all-reduce scatters, then gathers. That is how parts 3 and 12 of
https://jax-ml.github.io/scaling-book describe them, and NCCL's documentation.

In both directions, one half of every block goes to the right and the other half to the left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.errors import ProgramError
from shardviz.core.format import bytes_text, joined, listed, plural, shown, suggestion
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.parse import check_size
from shardviz.core.program.report import Collective

MOST_DEVICES = 1 << 20
MOST_LISTED = 64  # devices whose transfers and holdings are listed


@dataclass(frozen=True, eq=False)
class MovementStep:
    """What is sent at the same time. One entry per chunk that is sent.

    Attributes:
        words: what happens, in one sentence.
        source, target: int64 [transfers]: positions in the group.
        chunk: int64 [transfers]: which chunk.
        link: int64 [transfers]: which of the movement's `link_names` it takes.
        adds: whether the target adds what arrives to what it has; else it stores it.
        keeps: whether the source still has the chunk afterwards.
        bytes: the most bytes that one device sends.

    >>> MovementStep("Nothing.", *(np.zeros(0, np.int64) for _ in range(4)))
    MovementStep(Nothing.)
    """

    words: str
    source: np.ndarray
    target: np.ndarray
    chunk: np.ndarray
    link: np.ndarray
    adds: bool = False
    keeps: bool = True
    bytes: int = 0

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
        bounds: of a reshard int64 [chunks, rank, 2]: from where to where each chunk goes.
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
            return "[" + ", ".join(f"{a}:{b}" for a, b in self.bounds[chunk].tolist()) + "]"
        block, part = divmod(chunk, self.parts)
        name = f"{block // self.pairs}→{block % self.pairs}" if self.pairs else str(block)
        return name + ("" if self.parts == 1 else "ab"[part])

    def bytes_of(self, chunks: np.ndarray) -> np.ndarray:
        """int64: the bytes of some chunks; what does not divide is spread over them."""
        if self.sizes is not None:
            return self.sizes[chunks]
        at = chunks % self.per_device
        return self.total * (at + 1) // self.per_device - self.total * at // self.per_device


@dataclass(frozen=True, eq=False)
class DeviceGrid:
    """The devices of a group as a grid; a ring has one axis.

    Attributes:
        sizes: how many devices there are along each axis.
        coordinates: int64 [devices, axes].
        names: what each axis is called: `"x"`, `"hosts"`, `"devices of a host"`, `"slices"`,
            `"cores of a chip"`; `""` for the only one.
        link_numbers: for each axis the number of the link it takes; () where hosts decide.

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
        """int64 [rows, combinations]: the devices at `base` [rows, axes] with some axes free."""
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


#: How a sentence says along which axis of a grid that is none of a torus.
_ALONG = {
    "hosts": "on another host",
    "devices of a host": "on its host",
    "slices": "in another slice",
    "cores of a chip": "on its chip",
}
_ACTIONS = {
    "all-gather": ("gather",),
    "reduce-scatter": ("scatter",),
    "all-reduce": ("scatter", "gather"),
    "all-to-all": ("exchange",),
}
REGULAR, PERMUTE = tuple(_ACTIONS), "collective-permute"


def check_kind(kind: Any) -> None:
    """Refuses a kind of collective without steps.

    Raises:
        ProgramError: naming those that have some.
    """
    known = (*REGULAR, PERMUTE)
    if isinstance(kind, str) and kind in known:
        return
    if isinstance(kind, str) and kind == "ragged-all-to-all":
        raise ProgramError(
            "What a ragged exchange sends is known only when it runs, so it has no steps here."
        )
    raise ProgramError(
        f"No steps are known for {shown(kind)}; they are for {listed(known)}."
        f"{suggestion(kind, known)}"
    )


def phases_of(kind: str, sizes: Sequence[int], short: bool) -> list[Phase]:
    """The phases of a collective.

    Args:
        kind: one of REGULAR.
        sizes: of the grid.
        short: whether an exchange takes the shorter way around.
    """
    found = []
    for action in _ACTIONS[kind]:
        order = list(range(len(sizes)))
        # The last axis is the nearest one: most is sent along it.
        order = order if action == "gather" else order[::-1]
        for n, axis in enumerate(order):
            halfway = short and action == "exchange"
            steps = sizes[axis] // 2 if halfway else sizes[axis] - 1
            if steps:
                found.append(Phase(action, axis, tuple(order[:n]), steps))
    return found


def checked_ids(devices: Any) -> np.ndarray:
    """int64: the ids of some devices, given as such or as their number.

    Raises:
        ProgramError: for anything else.
    """
    if isinstance(devices, np.ndarray) and devices.ndim == 1 and devices.dtype.kind == "i":
        return devices.astype(np.int64)
    count = check_size(devices, "The number of devices", ProgramError)
    if not 1 <= count <= MOST_DEVICES:
        raise ProgramError(
            f"A group has 1 to {MOST_DEVICES:,} devices; got {shown(count)}. Give devices=8."
        )
    return np.arange(count)


@dataclass(frozen=True, eq=False)
class RegularSteps(Sequence[MovementStep]):
    """The steps of a collective in which every device does the same, made when asked for.

    Attributes:
        kind: one of REGULAR.
        grid: the devices.
        hosts: int64 [devices].
        chunks: what is sent.
        ways: (1,), or (1, -1) in both directions.
        direct: whether what is sent goes to its target at once, however far that is.

    >>> steps = RegularSteps("all-gather", ring_grid(4), np.zeros(4), Chunks(4, 400, 4))
    >>> len(steps), steps[0].source.tolist(), steps[0].chunk.tolist(), steps[0].bytes
    (3, [3, 0, 1, 2], [3, 0, 1, 2], 100)
    """

    kind: str
    grid: DeviceGrid
    hosts: np.ndarray
    chunks: Chunks
    ways: tuple[int, ...] = (1,)
    direct: bool = False

    @cached_property
    def phases(self) -> list[Phase]:
        """The phases, in order."""
        return phases_of(self.kind, self.grid.sizes, len(self.ways) > 1)

    def __len__(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return tuple(self[n] for n in range(*number.indices(len(self))))
        return self.step(range(len(self))[number], min(len(self.hosts), MOST_LISTED))

    def place(self, number: int) -> tuple[Phase, int]:
        """The phase of a step, and which of its steps it is, counted from 1."""
        for phase in self.phases:
            if number < phase.steps:
                return phase, number + 1
            number -= phase.steps
        raise IndexError(number)

    def step(self, number: int, targets: int) -> MovementStep:
        """One step, with what the first `targets` devices receive."""
        phase, turn = self.place(number)
        parts = [self._sent(phase, turn, way, np.arange(targets)) for way in self.ways]
        source, target, chunk = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(target, kind="stable")
        source, target, chunk = source[order], target[order], chunk[order]
        if self.grid.link_numbers:
            link = np.full(len(source), self.grid.link_numbers[phase.axis])
        else:
            link = (self.hosts[source] != self.hosts[target]).astype(np.int64)
        sizes = self.chunks.bytes_of(chunk)
        whole = targets == len(self.hosts)
        most = np.bincount(source if whole else target, sizes).max(initial=0)
        return MovementStep(
            self._words(phase, turn, len(chunk) // max(1, targets)),
            source, target, chunk, link,
            phase.action == "scatter", phase.action == "gather", int(most),
        )  # fmt: skip

    def _sent(self, phase: Phase, turn: int, way: int, targets: np.ndarray) -> list[np.ndarray]:
        """What goes one way round: source, target and chunk of every transfer."""
        axis, size = phase.axis, self.grid.sizes[phase.axis]
        here = self.grid.coordinates[targets]
        hops = turn if self.direct else 1

        def at(distance: int) -> np.ndarray:
            there = here.copy()
            there[:, axis] = (there[:, axis] - way * distance) % size
            return there

        source = self.grid.members(at(hops), ())[:, 0]
        others = [a for a in range(len(self.grid.sizes)) if a != axis and a not in phase.done]
        if phase.action == "exchange":
            blocks = self._exchanged(phase, turn, way, at, others)
        elif phase.action == "gather":
            blocks = self.grid.members(at(turn), phase.done)
        else:
            blocks = self.grid.members(at(0 if self.direct else turn + 1), others)
        each = blocks.shape[1]
        part = 0 if phase.action == "exchange" or way > 0 else 1
        chunk = blocks.reshape(-1) * self.chunks.parts + part
        return [np.repeat(source, each), np.repeat(targets, each), chunk]

    def _exchanged(
        self, phase: Phase, turn: int, way: int, at: Any, others: list[int]
    ) -> np.ndarray:
        """The blocks of an all-to-all that a step brings: int64 [targets, blocks]."""
        size = self.grid.sizes[phase.axis]
        makers = self.grid.members(at(turn), phase.done)
        if self.direct:
            distances = [turn]
        else:
            most = size - 1
            if len(self.ways) > 1:  # the shorter way; halfway around, to the right
                most = size // 2 if way > 0 else (size - 1) // 2
            distances = list(range(turn, most + 1))
        goals = [self.grid.members(at(turn - d), others) for d in distances]
        if not goals:
            return np.zeros((len(makers), 0), np.int64)
        goal = np.concatenate(goals, axis=1)
        count = len(self.hosts)
        return (makers[:, :, None] * count + goal[:, None, :]).reshape(len(makers), -1)

    def _words(self, phase: Phase, turn: int, rows: int) -> str:
        name = self.grid.names[phase.axis]
        along = f" {_ALONG.get(name, f'along {name}')}" if name else ""
        blocks = rows // (len(self.ways) if phase.action != "exchange" else 1)
        if self.direct:
            to = f" to the device {plural(turn, 'place')} further on{along}"
        elif len(self.ways) == 1:
            to = f" to its right neighbour{along}"
        else:
            to = f" to each of its two neighbours{along}"
        what = plural(blocks, "chunk")
        if self.chunks.parts > 1:
            what = "half a chunk" if blocks == 1 else f"halves of {blocks:,} chunks"
        if phase.action == "exchange" and len(self.ways) > 1:
            to = f" the shorter way around{along}"
        return f"Every device sends {what}{to}{self._then(phase, turn)}."

    def _then(self, phase: Phase, turn: int) -> str:
        count = len(self.hosts)
        before = int(np.prod([self.grid.sizes[a] for a in phase.done], dtype=np.int64))
        if phase.action == "scatter":
            summed = before * (turn + 1)
            return f", which adds its own part: sums of {summed:,} of {count:,} devices"
        if phase.action == "gather":
            return f"; each then holds {before * (turn + 1):,} of {count:,}"
        return ""


def chains_of(pairs: np.ndarray) -> list[np.ndarray]:
    """The devices of a permutation that send to one another, each chain in its order.

    Args:
        pairs: int64 [pairs, 2]: sender and receiver; none sends or receives twice.

    >>> [chain.tolist() for chain in chains_of(np.array([[0, 1], [1, 0], [5, 2]]))]
    [[0, 1], [5, 2]]
    """
    following = dict(pairs.tolist())
    receivers = set(following.values())
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
    """The steps of a permutation or a reshard, with a sentence each.

    Args:
        numbers: int64 [transfers]: the step of each.
    """
    for number in range(int(numbers.max(initial=-1)) + 1):
        some = np.flatnonzero(numbers == number)
        here, there, what = source[some], target[some], chunk[some]
        link = (hosts[here] != hosts[there]).astype(np.int64)
        sizes = chunks.bytes_of(what)
        far = int(link.sum())
        across = f", {far:,} of them to another host" if far else ""
        senders = plural(len(some), "device sends", "devices send")
        total = bytes_text(int(sizes.sum()))
        yield MovementStep(
            f"{senders} {total}{' in all' if len(some) > 1 else ''}{across}.",
            here, there, what, link, False, chunks.bounds is not None, int(sizes.max(initial=0)),
        )  # fmt: skip


SAME_HOST, BETWEEN_HOSTS = "same host", "between hosts"
#: How `algorithm=` is written, and what it is called.
ALGORITHMS = {
    "ring": "ring",
    "both directions": "ring in both directions",
    "torus": "torus: one axis after the other",
    "hosts": "within hosts, then between hosts",
    "direct": "direct",
}


@dataclass(frozen=True, eq=False)
class Algorithm:
    """How a regular collective is done.

    Attributes:
        name: of ALGORITHMS.
        grid: the devices.
        link_names: what the numbers of links mean.
        ways: (1,) or (1, -1).
        notes: what else to know.
    """

    name: str
    grid: DeviceGrid
    link_names: tuple[str, ...] = (SAME_HOST, BETWEEN_HOSTS)
    ways: tuple[int, ...] = (1,)
    notes: tuple[str, ...] = ()

    def words(self, kind: str) -> str:
        """What it is called."""
        if self.name == "hosts":
            return {
                "all-gather": "between hosts, then within hosts",
                "all-reduce": "within hosts, between hosts, and back",
            }.get(kind, ALGORITHMS["hosts"])
        both = self.name == "torus" and len(self.ways) > 1
        return ALGORITHMS[self.name] + (", in both directions" if both else "")


def chosen_algorithm(
    kind: str, asked: Any, hosts: np.ndarray, topology: Topology | None, rows: np.ndarray | None
) -> Algorithm:
    """The algorithm that was asked for, or the one that suits the group."""
    torus = None if topology is None or rows is None else _torus(topology, rows)
    levels = _levels(hosts)
    ring = Algorithm("ring", ring_grid(len(hosts)))
    line = torus if torus is not None and len(torus.grid.sizes) == 1 else ring
    exchange = kind == "all-to-all"
    options: dict[str, Algorithm | None] = {
        "ring": replace(line, name="ring", ways=(1,)),
        "both directions": replace(line, name="both directions", ways=(1, -1)),
        "torus": torus and replace(torus, ways=(1,)) if exchange else torus,
        "hosts": levels,
        "direct": replace(ring, name="direct"),
    }
    if asked is not None:
        return _asked(asked, options)
    if exchange:
        return replace(ring, name="direct")
    if torus is not None:
        several = len(torus.grid.sizes) > 1
        return (
            torus
            if several
            else replace(torus, name="ring" if len(torus.ways) == 1 else "both directions")
        )
    return levels or ring


def _asked(asked: Any, options: dict[str, Algorithm | None]) -> Algorithm:
    names = {words: name for name, words in ALGORITHMS.items()} | {n: n for n in ALGORITHMS}
    if not isinstance(asked, str) or asked not in names:
        raise ProgramError(
            f"algorithm= is one of {listed(ALGORITHMS)}; got {shown(asked)}."
            f"{suggestion(asked, ALGORITHMS)}"
        )
    found = options[names[asked]]
    if found is not None:
        return found
    why = {
        "torus": "its devices fill no block of a torus that is known; give topology=, such as"
        " 'tpu:v5e:4x4'",
        "hosts": "it does not span several hosts with as many devices each, two or more",
    }[names[asked]]
    raise ProgramError(f"The algorithm {shown(asked)} does not fit this group: {why}.")


def _torus(topology: Topology, rows: np.ndarray) -> Algorithm | None:
    """The devices as a block of a torus; None where they fill none, or are GPUs."""
    if not topology.chip.axes:
        return None
    named = {"slices": (topology.slice_indices[rows], "network between slices", 0)}
    for axis in reversed(range(len(topology.shape))):
        named["xyz"[axis]] = topology.coords[rows, axis], f"ICI {'xyz'[axis]}", axis
    named["cores of a chip"] = topology.cores[rows], "same chip", 0
    columns, sizes, names, links, closed = [], [], [], [], []
    for name, (values, link, axis) in named.items():
        places, column = np.unique(values, return_inverse=True)
        if len(places) == 1:
            continue
        columns.append(column.reshape(-1))
        sizes.append(len(places))
        names.append(name)
        links.append(link)
        even = (np.diff(places) * len(places) == topology.shape[axis]).all()
        closed.append(name not in ("x", "y", "z") or bool(even and topology.wraps[axis]))
    coordinates = np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0), np.int64)
    if not sizes or math.prod(sizes) != len(rows):
        return None
    if len(np.unique(coordinates, axis=0)) != len(rows):
        return None
    grid = DeviceGrid(tuple(sizes), coordinates, tuple(names), tuple(range(len(sizes))))
    rings = [n for n, c in zip(names, closed, strict=True) if c and n in ("x", "y", "z")]
    open_axes = [n for n, c, s in zip(names, closed, sizes, strict=True) if not c and s > 2]
    notes = (
        f"{joined(open_axes)} {'does' if len(open_axes) == 1 else 'do'} not close to a ring: what"
        " goes from the last device to the first crosses all links between them.",
    ) * bool(open_axes)
    return Algorithm("torus", grid, tuple(links), (1, -1) if rings else (1,), notes)


def _levels(hosts: np.ndarray) -> Algorithm | None:
    """Hosts, and the devices of each; None for one host, or where they have unequal numbers."""
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
        ("hosts", "devices of a host"),
        (1, 0),
    )
    return Algorithm("hosts", grid)


def sent_formula(
    kind: str, count: int, total: int, algorithm: Algorithm, direct: bool
) -> tuple[str, str, int]:
    """What each device sends: in general, in numbers, in bytes."""
    sizes = algorithm.grid.sizes
    if kind == "all-to-all" and len(sizes) > 1:
        names = ("h", "d") if algorithm.name == "hosts" else [n[0] for n in algorithm.grid.names]
        general = " + ".join(f"({n} - 1) / {n}" for n in names)
        numbers = " + ".join(f"{s - 1} / {s}" for s in sizes)
        return f"({general}) × bytes", f"({numbers})", sum(total * (s - 1) // s for s in sizes)
    if kind == "all-to-all" and not direct:
        if len(algorithm.ways) > 1:
            hops = count * count // 4
            return "floor(n² / 4) / n × bytes", f"{hops} / {count}", total * hops // count
        return "(n - 1) / 2 × bytes", f"{count - 1} / 2", total * (count - 1) // 2
    sent = Collective(kind, (), total, group_size=count).sent_bytes or 0
    twice = "2 × " if kind == "all-reduce" else ""
    return f"{twice}(n - 1) / n × bytes", f"{twice}{count - 1} / {count}", sent
