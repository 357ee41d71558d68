"""Movement: what a collective or a reshard sends, step by step, between the devices of
one group.

The steps are those of the algorithms that libraries use; which one a compiler picks on
real hardware is its own affair. Bytes are those of `Collective.sent_bytes`, times those
of `core/hardware/interconnect.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from shardviz.core.display import Displayed, Fact
from shardviz.core.errors import ProgramError
from shardviz.core.format import listed, plural, shown
from shardviz.core.hardware.interconnect import device_rows, groups_over, route
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import check_size, parse_bytes
from shardviz.core.layout.transfer.reshard_moves import (
    chunks_by_block,
    reshard_moves,
    step_numbers,
)
from shardviz.core.program.movement_steps import (
    MOST_LISTED,
    PERMUTE,
    Algorithm,
    Chunks,
    DeviceGrid,
    MovementStep,
    RegularSteps,
    chains_of,
    check_kind,
    checked_ids,
    chosen_algorithm,
    listed_steps,
    ring_grid,
)
from shardviz.core.program.report import Collective
from shardviz.core.program.roofline import collective_link_use

RESHARD = "reshard"  # no collective, but shown like one


@dataclass(frozen=True, eq=False)
class MovementText(Fact):
    """One thing to be said of a movement.

    Attributes:
        code: a key of `TEXTS` in `wording/movement.py`.
        movement: what it is said of.

    >>> str(MovementText("formula", collective_movement("all-gather", 4, 8)))
    '(n - 1) / n × bytes'
    """

    code: str
    movement: Movement


@dataclass(frozen=True, eq=False, repr=False)
class Movement(Displayed):
    """What a collective or a reshard sends, step by step, between the devices of one
    group.

    Devices and chunks are counted from 0; a device's number is its position in the
    group. Made by `sv.movement`.

    Attributes:
        kind: `"all-gather"`, `"reduce-scatter"`, `"all-reduce"`, `"all-to-all"`,
            `"collective-permute"` or `"reshard"`.
        devices: int64 [devices]: the id of each device, in the order of the group.
        hosts: int64 [devices]: the host of each.
        chunks: what the arrays are divided into.
        steps: what is sent at the same time, in order. Made when asked for, and of a
            group of more than MOST_LISTED devices with what the first ones receive:
            `summed_up` says so.
        method: how it is done: the algorithm, the devices as a grid, and the kinds of
            links.
        bytes_per_device: the bytes of the array on each device, as of a Collective.
        sent_bytes: the bytes that each device sends (of a permutation or a reshard, the
            one that sends most).
        total_sent: of a reshard the bytes that all devices send.
        mesh_axes: the mesh axes that it runs over, where known.
        seconds: the least time at the published rates of the links; None where these
            are not known.
        topology: the described devices whose rates these are, or None.
        first, last: for each device the chunks that it has at the start, and that it
            needs; () for the kinds in which the order of the group says so.
        layouts: of a reshard the layouts before and after.

    >>> gather = collective_movement("all-gather", 4, "8 MiB")
    >>> gather.algorithm, len(gather.steps), gather.filled_in
    ('ring', 3, '3 / 4 × 8 MiB = 6 MiB sent per device, in 3 steps')
    >>> gather.holdings(1)[0, :, 0].tolist()
    [True, False, False, True]
    """

    kind: str
    devices: np.ndarray
    hosts: np.ndarray
    chunks: Chunks
    steps: Sequence[MovementStep]
    method: Algorithm
    bytes_per_device: int
    sent_bytes: int
    total_sent: int = 0
    mesh_axes: tuple[str, ...] = ()
    seconds: float | None = None
    topology: Topology | None = None
    first: tuple[np.ndarray, ...] = ()
    last: tuple[np.ndarray, ...] = ()
    layouts: tuple[Layout, ...] = ()

    @property
    def size(self) -> int:
        """How many devices the group has."""
        return len(self.devices)

    @property
    def sums(self) -> bool:
        """Whether chunks are added up, so that every device contributes to each."""
        return self.kind in ("all-reduce", "reduce-scatter")

    @property
    def contributors(self) -> int:
        """How many contributions make a chunk complete: one per device in a sum, else
        1.
        """
        if self.sums:
            return self.size
        return 1

    @property
    def grid(self) -> DeviceGrid:
        """The devices as a grid, which is a ring where it has one axis."""
        return self.method.grid

    @property
    def link_names(self) -> tuple[str, ...]:
        """What the numbers in `MovementStep.link` mean: `"same host"`, `"ICI x"`, and
        so on.
        """
        return self.method.link_names

    @property
    def algorithm(self) -> str:
        """What the algorithm is called; its code is `method.name`."""
        return str(MovementText("algorithm", self))

    @property
    def formula(self) -> str:
        """What each device sends, in general: `"(n - 1) / n × bytes"`."""
        return str(MovementText("formula", self))

    @property
    def filled_in(self) -> str:
        """The formula with its numbers."""
        return str(MovementText("filled in", self))

    @property
    def rate_source(self) -> str:
        """Whose rates the time is from, or why there is no time."""
        return str(MovementText("rate source", self))

    @property
    def notes(self) -> tuple[MovementText, ...]:
        """What else to know."""
        if self.method.open_axes:
            return (MovementText("open axes", self),)
        return ()

    @property
    def summed_up(self) -> str:
        """What is not listed device by device, in one sentence; `""` where all is."""
        if self.size <= MOST_LISTED:
            return ""
        return str(MovementText("summed up", self))

    @property
    def title(self) -> str:
        """`all-gather of 8 MiB over data, 8 devices, ring`."""
        return str(MovementText("title", self))

    def at_start(self, device: int) -> np.ndarray:
        """int64: the chunks that a device has before the first step."""
        if self.first:
            return self.first[device]
        if self.kind == "all-to-all":
            return device * self.size + np.arange(self.size)
        if self.sums:
            return np.arange(self.chunks.count)
        return self._own(device)

    def at_end(self, device: int) -> np.ndarray:
        """int64: the chunks that a device needs after the last step."""
        if self.last:
            return self.last[device]
        if self.kind == "all-to-all":
            return np.arange(self.size) * self.size + device
        if self.kind == "reduce-scatter":
            return self._own(device)
        return np.arange(self.chunks.count)

    def _own(self, device: int) -> np.ndarray:
        parts = self.chunks.parts
        return np.arange(parts) + device * parts

    def holdings(self, step: int) -> np.ndarray:
        """What every device has after some steps: bool [devices, chunks, contributors].

        Of a sum, a chunk on a device holds the contributions of some devices; else
        there is one contributor, and a chunk is there or not.

        Args:
            step: how many steps are done, from 0 to `len(steps)`.

        Raises:
            ProgramError: for another step, or a group of more than MOST_LISTED devices.
        """
        done = check_size(step, "How many steps are done", ProgramError)
        if not 0 <= done <= len(self.steps):
            raise ProgramError(
                f"There are {plural(len(self.steps), 'step')}, so 0 to {len(self.steps):,} can be"
                f" done; got {shown(done)}."
            )
        held = next(h for n, h in enumerate(self._history()) if n == done)
        if not self.sums:
            return (held != 0)[:, :, None]
        bits = np.arange(self.size, dtype=np.uint64)
        return (held[:, :, None] >> bits & np.uint64(1)).astype(bool)

    def counts(self) -> Iterator[np.ndarray]:
        """The start, then after each step: int64 [devices, chunks], contributions that
        are there.

        Raises:
            ProgramError: for a group of more than MOST_LISTED devices.
        """
        for held in self._history():
            bits = np.unpackbits(held[..., None].view(np.uint8), axis=-1)
            yield bits.sum(-1, dtype=np.int64)

    def _history(self) -> Iterator[np.ndarray]:
        """uint64 [devices, chunks]: a bit per contributor, at the start and after each
        step.
        """
        if self.size > MOST_LISTED:
            raise ProgramError(
                f"What each of {self.size:,} devices has is not listed; at most {MOST_LISTED} are."
                " Take a smaller group: every device of a larger one does the same."
            )
        every = np.arange(self.chunks.count)
        held = np.zeros((self.size, self.chunks.count), np.uint64)
        for device in range(self.size):
            bit = 1
            if self.sums:
                bit = 1 << device  # who contributed, in one number
            held[device, self.at_start(device)] = bit
        yield held.copy()
        for number, step in enumerate(self.steps):
            sent = held[step.source, step.chunk]
            if not step.keeps:
                held[step.source, step.chunk] = 0
            if step.adds:
                sent |= held[step.target, step.chunk]
            held[step.target, step.chunk] = sent
            if self.layouts and number == len(self.steps) - 1:
                for device in range(self.size):  # the old shard is gone
                    held[device, np.setdiff1d(every, self.at_end(device))] = 0
            yield held.copy()

    def runs(self) -> list[tuple[MovementStep, int]]:
        """Steps that are alike, as the first of them and how many: what a large group
        shows.

        >>> [count for _, count in collective_movement("all-reduce", 100, 800).runs()]
        [99, 99]
        """
        if isinstance(self.steps, RegularSteps):
            first, runs = 0, []
            for phase in self.steps.phases:
                runs.append((self.steps[first], phase.steps))
                first += phase.steps
            return runs
        runs = []
        for _, group in groupby(self.steps, key=lambda step: step.about):
            alike = list(group)
            runs.append((alike[0], len(alike)))
        return runs

    def every_step(self) -> Iterator[MovementStep]:
        """The steps with all their transfers, also those of a large group."""
        if not isinstance(self.steps, RegularSteps):
            yield from self.steps
            return
        for number in range(len(self.steps)):
            yield self.steps.step(number, self.size)

    def execute(
        self, values: Sequence[Any], split: int = 0, concat: int = 0
    ) -> list[np.ndarray]:
        """Applies the steps to numbers: what each device has at the end.

        Equal to what `jax.lax.all_gather(tiled=True)`, `psum`,
        `psum_scatter(tiled=True)`, `all_to_all(tiled=True)`, `ppermute` or
        `jax.device_put` give on as many devices.

        Args:
            values: an array for each device of the group, all of one shape.
            split: the dimension that a reduce-scatter or an all-to-all splits.
            concat: the dimension that an all-gather or an all-to-all joins.

        Raises:
            ProgramError: for another number of arrays, or of another shape.

        >>> ring = collective_movement("all-reduce", 3, 24)
        >>> [a.tolist() for a in ring.execute([np.array([1, 2, 3])] * 3)]
        [[3, 6, 9], [3, 6, 9], [3, 6, 9]]
        """
        arrays = _checked_values(values, self)
        held = []
        for device, array in enumerate(arrays):
            held.append(_cut(self, device, array, split))
        for step in self.every_step():
            _apply(step, held)
        results = []
        for device, array in enumerate(arrays):
            results.append(_join(self, device, held[device], array, split, concat))
        return results

    def __repr__(self) -> str:
        return f"Movement({self.title}, {plural(len(self.steps), 'step')})"


def _apply(step: MovementStep, held: list[dict[int, np.ndarray]]) -> None:
    columns = step.source.tolist(), step.target.tolist(), step.chunk.tolist()
    rows = list(zip(*columns, strict=True))
    # All is sent at the same time, so it is taken before anything is stored.
    sent = [held[source][chunk] for source, _, chunk in rows]
    if not step.keeps:
        for source, _, chunk in rows:
            held[source].pop(chunk)
    for (_, target, chunk), value in zip(rows, sent, strict=True):
        if step.adds:
            value = held[target][chunk] + value
        held[target][chunk] = value


def _checked_values(values: Sequence[Any], movement: Movement) -> list[np.ndarray]:
    if not isinstance(values, Iterable):
        raise ProgramError(
            f"A movement takes one array per device; got {shown(values)}."
        )
    arrays = [np.asarray(value) for value in values]
    shapes = {a.shape for a in arrays}
    if len(arrays) != movement.size or len(shapes) > 1:
        raise ProgramError(
            f"This movement takes {plural(movement.size, 'array')} of one shape, one per device;"
            f" got {len(arrays):,} of {listed(sorted(shapes))}."
        )
    if movement.layouts and shapes != {movement.layouts[0].shard_shape}:
        raise ProgramError(
            "Each device of this reshard has a shard of"
            f" {list(movement.layouts[0].shard_shape)}; got {listed(sorted(shapes))}."
        )
    return arrays


def _cut(
    m: Movement, device: int, array: np.ndarray, split: int
) -> dict[int, np.ndarray]:
    """The chunks of what a device has, by number."""
    if m.layouts:
        box = m.layouts[0].box(int(m.devices[device]))
        return {int(n): array[_inside(m, n, box)] for n in m.at_start(device)}
    blocks = [array]
    if m.kind == "all-reduce":
        blocks = np.array_split(array.reshape(-1), m.size)
    elif m.kind in ("reduce-scatter", "all-to-all"):
        if array.shape[split] % m.size:
            raise ProgramError(
                f"Dimension {split} of {list(array.shape)} does not divide over"
                f" {plural(m.size, 'device')}. Take an array and a dimension that does."
            )
        blocks = np.split(array, m.size, axis=split)
    # On a torus each block goes in parts, along several axes at the same time.
    parts: list[np.ndarray] = []
    for block in blocks:
        parts += np.array_split(block.reshape(-1), m.chunks.parts)
    return dict(zip(m.at_start(device).tolist(), parts, strict=False))


def _inside(m: Movement, chunk: int, box: tuple[slice, ...]) -> tuple[slice, ...]:
    """Where a chunk of a reshard is in the shard at `box`."""
    assert m.chunks.bounds is not None
    inside = []
    for (first, last), own in zip(m.chunks.bounds[chunk].tolist(), box, strict=True):
        inside.append(slice(first - own.start, last - own.start))
    return tuple(inside)


def _join(
    m: Movement,
    device: int,
    held: dict[int, np.ndarray],
    array: np.ndarray,
    split: int,
    concat: int,
) -> np.ndarray:
    """The array of a device, from the chunks that it needs."""
    if m.layouts:
        box = m.layouts[1].box(int(m.devices[device]))
        made = np.empty(m.layouts[1].shard_shape, array.dtype)
        for n in m.at_end(device):
            made[_inside(m, n, box)] = held[int(n)]
        return made
    wanted = [held[n] for n in m.at_end(device).tolist()]
    if not wanted:
        return np.zeros_like(array)  # as ppermute gives where nobody sends
    if m.kind in ("all-reduce", PERMUTE):
        return np.concatenate(wanted).reshape(array.shape)
    shape = list(array.shape)
    if m.kind != "all-gather":
        shape[split] //= m.size
    blocks = []
    for n in range(0, len(wanted), m.chunks.parts):
        parts = wanted[n : n + m.chunks.parts]
        blocks.append(np.concatenate(parts).reshape(shape))
    if len(blocks) == 1:
        return blocks[0]  # which may have no dimension to join along
    return np.concatenate(blocks, axis=concat)


def collective_movement(
    kind: Any,
    devices: Any,
    size: Any,
    *,
    hosts: Any = None,
    algorithm: Any = None,
    topology: Topology | None = None,
    rows: np.ndarray | None = None,
    pairs: Any = (),
    mesh_axes: Sequence[str] = (),
) -> Movement:
    """The steps of one collective in one group.

    Args:
        kind: of collective.
        devices: how many, or their ids in the order of the group.
        size: the bytes of the array on each device, as of a Collective: of the result,
            or of the operand of a reduce-scatter; or text, `"8 MiB"`.
        hosts: int64 [devices]: the host of each; one host where not said.
        algorithm: one of ALGORITHMS, or None for what suits the group.
        topology: the described slice or cluster of the devices, for its axes and rates.
        rows: int64 [devices]: their positions in the order of the topology.
        pairs: of a permutation, pairs of positions in the group.
        mesh_axes: the mesh axes that it runs over.

    Raises:
        ProgramError: for a kind without steps, an algorithm that the group has no axes
            for, or anything that is no size.

    >>> print(collective_movement("all-to-all", 8, 8192).filled_in)
    7 / 8 × 8 KiB = 7 KiB sent per device, in 7 steps
    """
    check_kind(kind)
    ids = checked_ids(devices)
    where = np.zeros(len(ids), np.int64)
    if hosts is not None:
        where = np.asarray(hosts, np.int64)
    total = parse_bytes(size, "The size of a collective", ProgramError)
    groups: Any = None
    if kind == PERMUTE:
        sends = np.asarray(pairs, np.int64).reshape(-1, 2)
        if not len(sends):  # to the right, around
            every = np.arange(len(ids))
            sends = np.stack([every, np.roll(every, -1)], axis=1)
        made = _permutation(ids, where, total, sends)
        if rows is not None:
            groups = rows[sends]
    else:
        chosen = chosen_algorithm(kind, algorithm, where, topology, rows)
        made = _regular(kind, ids, where, total, chosen)
        if rows is not None:
            groups = [rows]
    made = replace(made, mesh_axes=tuple(mesh_axes))
    if topology is None or groups is None:
        return made
    links = route(topology, groups, kind)
    return replace(made, seconds=links.seconds(total), topology=topology)


def _regular(
    kind: str, ids: np.ndarray, hosts: np.ndarray, total: int, algorithm: Algorithm
) -> Movement:
    count, ways = len(ids), algorithm.ways
    chunks = Chunks(count * len(ways), total, count * len(ways), len(ways))
    if kind == "all-to-all":
        # A chunk for every pair of devices.
        chunks = Chunks(count * count, total, count, pairs=count)
    steps = RegularSteps(kind, algorithm.grid, hosts, chunks, ways)
    sent = Collective(kind, (), total, group_size=count).sent_bytes or 0
    return Movement(kind, ids, hosts, chunks, steps, algorithm, total, sent)


def _permutation(
    ids: np.ndarray, hosts: np.ndarray, total: int, pairs: np.ndarray
) -> Movement:
    count = len(ids)
    first = [np.zeros(0, np.int64)] * count
    last = list(first)
    for sender, receiver in pairs.tolist():
        first[sender] = last[receiver] = np.array([sender])
    # What a device sends to itself moves nothing.
    source, target = pairs[pairs[:, 0] != pairs[:, 1]].T
    chunks, together = Chunks(count, total, 1), np.zeros(len(source), np.int64)
    steps = tuple(listed_steps(together, source, target, source, chunks, hosts))
    sent = 0
    if steps:
        sent = total
    return Movement(
        PERMUTE,
        ids,
        hosts,
        chunks,
        steps,
        Algorithm("direct", ring_grid(count)),
        total,
        sent,
        first=tuple(first),
        last=tuple(last),
    )


def reshard_movement(before: Layout, after: Layout) -> Movement:
    """The steps from one layout of an array to another on the same devices.

    What a device has already does not move; the rest comes from the nearest device that
    has it.

    Args:
        before, after: the layouts.

    Raises:
        LayoutError: where their arrays or devices differ.

    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> rows, columns = (lay_out((4, 4), Spec.parse(s), make_mesh(x=4)) for s in ("x", "None, x"))
    >>> print(reshard_movement(rows, columns).filled_in)
    12 B sent per device at most, 48 B in all, in 3 steps
    """
    hosts = before.mesh.process_indices.reshape(-1)
    moves = reshard_moves(before, after, hosts)
    volumes = np.prod(np.diff(moves.bounds, axis=2)[:, :, 0], axis=1, dtype=np.int64)
    sizes = volumes * size_in_bytes(8, before.dtype) // 8
    count = len(moves.after)
    chunks = Chunks(
        len(sizes), before.bytes_per_device, 1, bounds=moves.bounds, sizes=sizes
    )
    numbers = step_numbers(moves.source, moves.target, count)
    steps = tuple(
        listed_steps(numbers, moves.source, moves.target, moves.chunk, chunks, hosts)
    )
    sent = np.bincount(moves.source, sizes[moves.chunk], minlength=count)
    held, needed = chunks_by_block(moves.old), chunks_by_block(moves.new)
    nothing = np.zeros(0, np.int64)
    return Movement(
        RESHARD,
        before.device_ids,
        hosts,
        chunks,
        steps,
        Algorithm("direct", ring_grid(count)),
        before.bytes_per_device,
        int(sent.max(initial=0)),
        int(sent.sum()),
        first=tuple(held.get(n, nothing) for n in before.groups.tolist()),
        last=tuple(needed.get(n, nothing) for n in moves.after.tolist()),
        layouts=(before, after),
    )


def movement_of(
    collective: Collective,
    mesh: MeshSpec,
    *,
    topology: Topology | None = None,
    group: Any = 0,
    algorithm: Any = None,
) -> Movement:
    """The steps of a collective of a program, in one of its groups.

    The least time is that of all groups at once, as in the roofline: they may share
        links.

    Args:
        collective: of a Report or a Plan.
        mesh: the mesh of the program, with the real ids of its devices.
        topology: the described slice or cluster of these devices.
        group: which of its groups, counted from 0; of a permutation, which of the
            chains of devices that send to one another.
        algorithm: one of ALGORITHMS, or None for what suits the group.

    Raises:
        ProgramError: where its groups are not known, or there is no such group.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> gather = Collective("all-gather", ("data",), 4096)
    >>> movement_of(gather, make_mesh(data=4, model=2), group=1).devices.tolist()
    [1, 3, 5, 7]
    """
    check_kind(collective.kind)
    groups = _groups_of(collective, mesh)
    number = check_size(group, "A group", ProgramError)
    if not 0 <= number < len(groups):
        has = (
            f"This {collective.kind} has {plural(len(groups), 'group')}, counted from 0"
        )
        raise ProgramError(f"{has}; got {shown(number)}.")
    at = np.asarray(groups[number], np.int64)
    pairs = np.zeros((0, 2), np.int64)
    if collective.kind == PERMUTE and collective.groups:
        place = {int(p): n for n, p in enumerate(at)}
        inside = [pair for pair in collective.groups if pair[0] in place]
        pairs = np.array([[place[a], place[b]] for a, b in inside])
    hosts, rows = mesh.process_indices.reshape(-1), None
    if topology is not None:
        rows = device_rows(mesh, topology)
        # The processes of a mesh are real; those of one process may be simulated.
        if len(mesh.processes) == 1:
            hosts = topology.process_indices[rows]
        rows = rows[at]
    made = collective_movement(
        collective.kind,
        mesh.device_ids.reshape(-1)[at],
        collective.bytes_per_device,
        hosts=hosts[at],
        algorithm=algorithm,
        topology=topology,
        rows=rows,
        pairs=pairs,
        mesh_axes=collective.mesh_axes,
    )
    if topology is None:
        return made
    # All groups at once may share links, which one alone does not show.
    links = collective_link_use(collective, mesh, topology)
    if links is None:
        return made
    return replace(made, seconds=links.seconds(collective.bytes_per_device))


def _groups_of(collective: Collective, mesh: MeshSpec) -> Any:
    axes = collective.mesh_axes
    if collective.groups:
        if collective.kind == PERMUTE:
            return chains_of(np.asarray(collective.groups, np.int64))
        return collective.groups
    # A part of an axis is no axis of the mesh; of no axes there is nothing to go by.
    known = bool(axes) and mesh.shape.keys() >= set(axes)
    if not known or collective.kind == PERMUTE:
        over = f", over {listed(axes)}" if axes else ""
        raise ProgramError(
            f"The groups of devices of this {collective.kind} are not known{over}. Take one"
            " of a compiled program, or give its kind, a mesh and axes=."
        )
    return groups_over(mesh, axes)
