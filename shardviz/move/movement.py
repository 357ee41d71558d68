"""Movement: the steps of a collective within one replica group.

The steps follow the algorithms of common libraries. On real hardware, a compiler may
choose another algorithm. Bytes come from `Collective.sent_bytes`, and times from
`hardware/interconnect.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from shardviz.base.collective import Collective
from shardviz.base.collective_kind import KINDS, Effect
from shardviz.base.display import Displayed, Fact
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed, plural, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import check_size
from shardviz.compiled.orders import DeviceOrder
from shardviz.hardware.interconnect import (
    collective_link_use,
    device_rows,
    groups_over,
)
from shardviz.hardware.topology import Topology
from shardviz.move.movement_steps import (
    MOST_DEVICES,
    MOST_LISTED,
    PERMUTE,
    Chunks,
    ListedSent,
    Method,
    MovementStep,
    RegularSent,
    chains_of,
    check_kind,
    method_for,
    regular_chunks,
    regular_steps,
)


@dataclass(frozen=True, eq=False)
class MovementText(Fact):
    """A fact about a movement.

    Attributes:
        code: `"algorithm"`, `"filled in"`, `"rate source"`, `"hops"` or `"open axes"`.
        movement: the movement.

    >>> str(MovementText("algorithm", collective_movement("all-gather", 4, 8)))
    'ring'
    """

    code: str
    movement: Movement


@dataclass(frozen=True, eq=False, repr=False)
class Movement(Displayed):
    """The chunks that devices send in each step of a collective, for one replica group.

    Created by `sv.movement`. Devices are numbered by their positions in the group.

    Attributes:
        kind: `"all-gather"`, `"reduce-scatter"`, `"all-reduce"`, `"all-to-all"` or
            `"collective-permute"`.
        devices: int64 [devices]: the id of each device, in the order of the group.
        hosts: int64 [devices]: the host of each device.
        chunks: the chunks into which the arrays are divided.
        steps: the steps, in order; all transfers of a step happen at the same time.
        method: the algorithm.
        bytes_per_device: the bytes of the array on each device, as in a Collective.
        sent_bytes: the most bytes that any device of the group sends.
        start, end: bool [devices, chunks]: the chunks that each device has at the start
            and needs at the end; None for more than MOST_LISTED devices.
        mesh_axes: the mesh axes that the collective runs over; empty if unknown.
        seconds: the least time at the links' published rates, with latency; None if a
            rate is unknown.
        topology: the described hardware that `seconds` is for, or None.
        hops: the most chip-to-chip links that a send crosses, in any group; None if
            unknown.
        latency: the seconds of the least time that are latency; None if unknown.
        order: a faster device order for the program, if this collective gains the most
            from it; else None.

    >>> from shardviz.move.movement import collective_movement
    >>> gather = collective_movement("all-gather", 4, 8 << 20)
    >>> gather.algorithm, len(gather.steps), gather.filled_in
    ('ring', 3, '3 / 4 × 8 MiB = 6 MiB sent per device, in 3 steps')
    >>> gather.holdings(1)[0, :, 0].tolist()
    [True, False, False, True]
    """

    kind: str
    devices: np.ndarray
    hosts: np.ndarray
    chunks: Chunks
    steps: tuple[MovementStep, ...]
    method: Method
    bytes_per_device: int
    sent_bytes: int
    start: np.ndarray | None = None
    end: np.ndarray | None = None
    mesh_axes: tuple[str, ...] = ()
    seconds: float | None = None
    topology: Topology | None = None
    hops: int | None = None
    latency: float | None = None
    order: DeviceOrder | None = None

    @property
    def size(self) -> int:
        """The number of devices in the group."""
        return len(self.devices)

    @property
    def sums(self) -> bool:
        """Whether chunks are summed, so that every device contributes to each chunk."""
        return KINDS[self.kind].sums

    @property
    def contributors(self) -> int:
        """The contributions that complete a chunk: one per device for a sum, else 1."""
        if self.sums:
            return self.size
        return 1

    @property
    def algorithm(self) -> str:
        """The algorithm in words; `method.name` is its code."""
        return str(MovementText("algorithm", self))

    @property
    def filled_in(self) -> str:
        """The bytes that each device sends, as a formula with numbers filled in."""
        return str(MovementText("filled in", self))

    @property
    def rate_source(self) -> str:
        """The source of the link rates, or the reason why there is no time."""
        return str(MovementText("rate source", self))

    @property
    def notes(self) -> tuple[Fact, ...]:
        """Notes on open axes, hops and the device order."""
        notes: list[Fact] = []
        if self.method.open_axes:
            notes.append(MovementText("open axes", self))
        if self.hops:
            notes.append(MovementText("hops", self))
        if self.order is not None:
            notes.append(self.order)
        return tuple(notes)

    def holdings(self, step: int) -> np.ndarray:
        """Returns the contributions that each device holds after some steps.

        The result is bool [devices, chunks, contributors].

        Args:
            step: the number of completed steps, from 0 to `len(steps)`.

        Raises:
            ProgramError: for another step, or a group of more than MOST_LISTED devices.
        """
        step_number = check_step(self, step)
        holdings = list(self._history())[step_number]
        if not self.sums:
            return (holdings != 0)[:, :, None]
        bits = np.arange(self.size, dtype=np.uint64)
        return (holdings[:, :, None] >> bits & np.uint64(1)).astype(bool)

    def counts(self) -> Iterator[np.ndarray]:
        """Yields the number of contributions held, at the start and after each step.

        Each value is int64 [devices, chunks].
        """
        for holdings in self._history():
            bits = np.unpackbits(holdings[..., None].view(np.uint8), axis=-1)
            yield bits.sum(-1, dtype=np.int64)

    def _history(self) -> Iterator[np.ndarray]:
        """Yields the contributions held, at the start and after each step.

        Each value is uint64 [devices, chunks], with one bit per contributor.
        """
        start, _ = self._listed()
        holdings = start.astype(np.uint64)
        if self.sums:
            holdings <<= np.arange(self.size, dtype=np.uint64)[:, None]
        yield holdings.copy()
        for step in self.steps:
            sent = holdings[step.source, step.chunk]
            if not step.keeps:
                holdings[step.source, step.chunk] = 0
            if step.adds:
                sent |= holdings[step.target, step.chunk]
            holdings[step.target, step.chunk] = sent
            yield holdings.copy()

    def _listed(self) -> tuple[np.ndarray, np.ndarray]:
        if self.start is None or self.end is None:
            raise ProgramError(
                f"The data of {self.size:,} devices is not listed; the limit is"
                f" {MOST_LISTED} devices. Use a smaller group: every device of a larger"
                " one does the same."
            )
        return self.start, self.end

    def runs(self) -> list[tuple[MovementStep, int]]:
        """Returns runs of equal steps, as (first step of the run, number of steps).

        >>> from shardviz.move.movement import collective_movement
        >>> [count for _, count in collective_movement("all-reduce", 100, 800).runs()]
        [99, 99]
        """
        runs = []
        for _, group in groupby(self.steps, key=_alike):
            alike = list(group)
            runs.append((alike[0], len(alike)))
        return runs

    def execute(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Applies the steps to arrays, and returns the result on each device.

        The results equal the results of `jax.lax.all_gather(tiled=True)`, `psum`,
        `psum_scatter(tiled=True)`, `all_to_all(tiled=True)` (all along the first
        dimension) or `ppermute` on the same number of devices.

        Args:
            values: one array per device of the group, all of the same shape.

        Raises:
            ProgramError: for another number of arrays, or different shapes.

        >>> from shardviz.move.movement import collective_movement
        >>> import numpy as np
        >>> ring = collective_movement("all-reduce", 3, 24)
        >>> [a.tolist() for a in ring.execute([np.array([1, 2, 3])] * 3)]
        [[3, 6, 9], [3, 6, 9], [3, 6, 9]]
        """
        start, end = self._listed()
        arrays = [np.asarray(value) for value in values]
        shapes = {array.shape for array in arrays}
        if len(arrays) != self.size or len(shapes) > 1:
            raise ProgramError(
                f"This movement takes {plural(self.size, 'array')} of one shape, one per"
                f" device; got {len(arrays):,} of {listed(sorted(shapes))}."
            )
        parts_held = np.full(start.shape, None, object)
        for device, array in enumerate(arrays):
            numbers = np.flatnonzero(start[device])
            for number, part in zip(numbers, self._parts(array), strict=True):
                parts_held[device, number] = part
        for step in self.steps:
            # All transfers are simultaneous, so read every chunk before storing any.
            sent = parts_held[step.source, step.chunk]
            if step.adds:
                sent = parts_held[step.target, step.chunk] + sent
            parts_held[step.target, step.chunk] = sent
        results = []
        for device, array in enumerate(arrays):
            parts = parts_held[device, end[device]].tolist()
            results.append(self._joined(parts, array))
        return results

    def _parts(self, array: np.ndarray) -> list[np.ndarray]:
        """Divides a device's array into chunks, in order."""
        flat, count = array.reshape(-1), self.size
        steps = KINDS[self.kind].steps
        if len(steps) > 1:
            return np.array_split(flat, len(self.chunks.labels))
        blocks = [flat]
        if steps and steps[-1] != "gather":
            if not array.ndim or array.shape[0] % count:
                raise ProgramError(
                    f"The first dimension of {list(array.shape)} does not divide over"
                    f" {plural(count, 'device')}."
                )
            blocks = np.split(flat, count)
        # On a torus, the two halves of each block move in opposite directions.
        parts: list[np.ndarray] = []
        for block in blocks:
            parts += np.array_split(block, len(self.method.directions))
        return parts

    def _joined(self, parts: list[np.ndarray], array: np.ndarray) -> np.ndarray:
        """Joins the chunks of a device into an array."""
        if not parts:
            # Like ppermute, return zeros if no device sends to this one.
            return np.zeros_like(array)
        flat = np.concatenate(parts)
        # Only a gather or a scatter changes the first dimension.
        if KINDS[self.kind].steps in (("gather",), ("scatter",)):
            return flat.reshape(-1, *array.shape[1:])
        return flat.reshape(array.shape)

    def __repr__(self) -> str:
        size = plural(self.size, "device")
        return f"Movement({self.kind}, {size}, {plural(len(self.steps), 'step')})"


def _alike(step: MovementStep) -> Any:
    if isinstance(step.about, RegularSent):
        return step.about.action, step.about.axis
    return step.about


def check_step(movement: Movement, step: Any) -> int:
    """Checks the number of completed steps, and returns it as an int."""
    step_number = check_size(step, "step=", ProgramError)
    last = len(movement.steps)
    if not 0 <= step_number <= last:
        raise ProgramError(
            f"There are {plural(last, 'step')}, so 0 to {last:,} can be done; got"
            f" {shown(step_number)}."
        )
    return step_number


def collective_movement(
    kind: str, devices: int | Topology, size: int, hosts: Any = None
) -> Movement:
    """Returns the steps of a collective without a program.

    Args:
        kind: the kind of collective.
        devices: the number of devices, or a described slice or cluster.
        size: the bytes of the array on each device, as in a Collective.
        hosts: int64 [devices]: the host of each device; by default a single host.

    Raises:
        ProgramError: for a kind without steps, or too many devices.

    >>> print(collective_movement("all-to-all", 8, 8192).filled_in)
    7 / 8 × 8 KiB = 7 KiB sent per device, in 7 steps
    """
    topology, ids = None, None
    if isinstance(devices, Topology):
        topology, ids = devices, devices.device_ids
        devices, hosts = topology.devices, topology.process_indices
    if not 1 <= devices <= MOST_DEVICES:
        raise ProgramError(
            f"A group has 1 to {MOST_DEVICES:,} devices; got {shown(devices)}."
        )
    mesh = MeshSpec(("devices",), (devices,), (), ids, hosts)
    group = np.arange(devices)[None]
    if kind == PERMUTE:
        collective = shift(group, (), size)
    else:
        collective = Collective(kind, (), size, groups=(tuple(range(devices)),))
    return movement_of(collective, mesh, topology)


def shift(groups: np.ndarray, axes: tuple[str, ...], size: int) -> Collective:
    """Returns a collective-permute that shifts by one device within each group.

    Args:
        groups: int64 [groups, members]: flat positions in a mesh.

    >>> shift(np.array([[0, 1, 2]]), ("x",), 8).groups
    ((0, 1), (1, 2), (2, 0))
    """
    # Shift in mesh order, like `jax.lax.ppermute`.
    groups = np.sort(groups, axis=1)
    pairs = np.stack([groups, np.roll(groups, -1, axis=1)], axis=-1).reshape(-1, 2)
    return Collective(PERMUTE, axes, size, groups=tuple(map(tuple, pairs.tolist())))


def movement_of(
    collective: Collective,
    mesh: MeshSpec,
    topology: Topology | None = None,
    group: Any = 0,
) -> Movement:
    """Returns the steps of a collective in one of its replica groups.

    As in the roofline, the least time is for all groups together, because groups can
    share links.

    Args:
        collective: a collective of a Report or Plan.
        mesh: the program's mesh, with the devices' real ids.
        topology: the described slice or cluster that the devices belong to.
        group: the index of the group; for a permute, the index of the chain of devices
            that send to one another.

    Raises:
        ProgramError: if the groups are unknown, or there is no such group.

    >>> import shardviz as sv
    >>> gather = Collective("all-gather", ("data",), 4096)
    >>> movement_of(gather, sv.mesh(data=4, model=2), group=1).devices.tolist()
    [1, 3, 5, 7]
    """
    check_kind(collective.kind)
    groups = groups_of(collective, mesh)
    number = check_size(group, "A group", ProgramError)
    if not 0 <= number < len(groups):
        raise ProgramError(
            f"This {collective.kind} has {plural(len(groups), 'group')}, counted from 0;"
            f" got {shown(number)}."
        )
    at = np.asarray(groups[number], np.int64)
    hosts, rows = mesh.process_indices.reshape(-1), at
    seconds = hops = latency = None
    parts = hosts
    if topology is not None:
        rows = device_rows(mesh, topology)
        # If the mesh has several processes, they are real. With a single process, its
        # devices may be simulated, so take the topology's hosts.
        if len(mesh.processes) == 1:
            hosts = topology.process_indices[rows]
        # The network connects hosts of GPUs, and slices of TPUs.
        parts = hosts
        if topology.chip.axes:
            parts = topology.slice_indices[rows]
        rows = rows[at]
        links = collective_link_use(collective, mesh, topology)
        if links is not None:
            _, seconds, latency = links.longest(collective.bytes_per_device)
            if topology.chip.axes:
                hops = int(links.hops[0])
    ids, hosts, parts = mesh.device_ids.reshape(-1)[at], hosts[at], parts[at]
    facts = (collective.mesh_axes, seconds, topology, hops, latency)
    total = collective.bytes_per_device
    if collective.kind == PERMUTE:
        place = {int(position): n for n, position in enumerate(at)}
        inside = [pair for pair in collective.groups if pair[0] in place]
        pairs = np.array([[place[source], place[target]] for source, target in inside])
        return _permutation(ids, hosts, parts, total, pairs, facts)
    kind, count = collective.kind, len(at)
    if count > MOST_DEVICES:
        raise ProgramError(
            f"Steps are made for at most {MOST_DEVICES:,} devices; this group has"
            f" {count:,}."
        )
    method = method_for(kind, parts, topology, rows)
    chunks, start, end = Chunks((), at[:0], at[:0]), None, None
    if count <= MOST_LISTED:
        chunks = regular_chunks(kind, method, total)
        start, end = _ends(kind, chunks, count)
    steps = tuple(regular_steps(kind, method, chunks, parts, total))
    sent = Collective(kind, (), total, group_size=count).sent_bytes or 0
    return Movement(
        kind, ids, hosts, chunks, steps, method, total, sent, start, end, *facts
    )


def groups_of(collective: Collective, mesh: MeshSpec) -> Any:
    """Returns the replica groups of a collective, as flat positions in a mesh."""
    axes = collective.mesh_axes
    if collective.groups:
        if collective.kind == PERMUTE:
            return chains_of(np.asarray(collective.groups, np.int64))
        return collective.groups
    # The groups can't be derived from sub-axes, or without axes.
    are_known = bool(axes) and mesh.shape.keys() >= set(axes)
    if not are_known or collective.kind == PERMUTE:
        raise ProgramError(
            f"The groups of devices of this {collective.kind} are not known. Take one"
            " of a compiled program, or give its kind, a mesh and axes=."
        )
    return groups_over(mesh, axes)


def _ends(kind: str, chunks: Chunks, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the chunks that each device has at the start, and needs at the end."""
    numbers, devices = np.arange(len(chunks.labels)), np.arange(count)[:, None]
    own_chunks, every = chunks.group == devices, np.ones((count, len(numbers)), bool)
    starts = {
        Effect.GATHER: own_chunks,
        Effect.SUM: every,
        Effect.EXCHANGE: numbers // count == devices,
    }
    definition = KINDS[kind]
    end = every if definition.steps[-1] == "gather" else own_chunks
    return starts[definition.effect], end


def _permutation(
    ids: np.ndarray,
    hosts: np.ndarray,
    parts: np.ndarray,
    total: int,
    pairs: np.ndarray,
    facts: tuple[Any, ...],
) -> Movement:
    count = len(ids)
    labels = tuple(map(str, range(count)))
    chunks = Chunks(labels, np.full(count, total), np.arange(count))
    start, end = np.zeros((2, count, count), bool)
    start[pairs[:, 0], pairs[:, 0]] = True
    end[pairs[:, 1], pairs[:, 0]] = True
    # A device that sends to itself transfers nothing.
    source, target = pairs[pairs[:, 0] != pairs[:, 1]].T
    steps, sent = (), 0
    if len(source):
        sent, network = total, parts[source] != parts[target]
        about = ListedSent(len(source), total * len(source), int(network.sum()))
        steps = MovementStep(
            about, source, target, source, network, False, False, total
        )
        steps = (steps,)
    method = Method("direct", np.arange(count))
    if count > MOST_LISTED:
        start = end = None
    return Movement(
        PERMUTE, ids, hosts, chunks, steps, method, total, sent, start, end, *facts
    )
