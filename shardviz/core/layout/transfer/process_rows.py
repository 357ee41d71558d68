"""process_rows() -> ProcessRows: what every process loads of an array.

`jax.make_array_from_process_local_data` takes from every process what its devices hold:
along each dimension the blocks of any of its devices, in ascending order and without
the gaps. Compared with JAX's own functions in `tests/layout/test_process_rows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.display import Displayed, Fact, explanation
from shardviz.core.errors import LayoutError
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ProcessPart:
    """What one process yields.

    Attributes:
        process: its index.
        devices: how many of its devices hold the array.
        ranges: per dimension the (start, stop) of what it yields, ascending and merged.
        shape: of its local array: the ranges of each dimension, one after the other.
        bytes: of its local array.
        fills: whether its devices hold all of the local array; else some of it is never
            read.

    >>> part = ProcessPart(1, 4, (((0, 2), (6, 8)), ((0, 3),)), (4, 3), 48)
    >>> part.rows, part.contiguous, part.local(np.arange(24).reshape(8, 3))[:, 0].tolist()
    (((0, 2), (6, 8)), False, [0, 3, 18, 21])
    """

    process: int
    devices: int
    ranges: tuple[Ranges, ...]
    shape: tuple[int, ...]
    bytes: int
    fills: bool = True

    @property
    def rows(self) -> Ranges:
        """The ranges of the first dimension; () for an array without dimensions."""
        return self.ranges[0] if self.ranges else ()

    @property
    def contiguous(self) -> bool:
        """Whether the part is one contiguous block of the array."""
        return all(len(ranges) == 1 for ranges in self.ranges)

    def local(self, values: Any) -> Any:
        """The local array of this process, cut out of an array of the global shape."""
        for dim, ranges in enumerate(self.ranges):
            indices = np.concatenate([np.arange(*one) for one in ranges])
            values = np.take(values, indices, axis=dim)
        return values

    def __str__(self) -> str:
        return f"process {self.process}: [{', '.join(map(ranges_text, self.ranges))}]"


def ranges_text(ranges: Ranges, most: int = 4) -> str:
    """Ranges as slices, the first and the last of many.

    >>> ranges_text(((0, 64), (128, 192))), ranges_text(tuple((i, i + 1) for i in range(0, 20, 2)))
    ('0:64 + 128:192', '0:1 + 2:3 … 18:19 (10 ranges)')
    """
    texts = [f"{start}:{stop}" for start, stop in ranges[:most]]
    if len(ranges) <= most:
        return " + ".join(texts)
    last = ranges[-1]
    return f"{' + '.join(texts[:2])} … {last[0]}:{last[1]} ({len(ranges):,} ranges)"


@dataclass(frozen=True, eq=False, repr=False)
class ProcessRows(Displayed):
    """What every process yields of an array; made by `shardviz.process_rows`.

    Attributes:
        layout: the array on its devices.
        parts: one per process, in ascending order of processes.

    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> mesh = make_mesh(data=4, model=2, processes=2)
    >>> found = process_rows(lay_out((256, 512), Spec.parse("data"), mesh))
    >>> [part.rows for part in found.parts], found.parts[0].shape, found.bytes_repeated
    ([((0, 128),), ((128, 256),)], (128, 512), 0)
    """

    layout: Layout
    parts: tuple[ProcessPart, ...]

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The processes that must yield equal arrays, single ones included."""
        processes: dict[tuple[Ranges, ...], list[int]] = {}
        for part in self.parts:
            processes.setdefault(part.ranges, []).append(part.process)
        return tuple(map(tuple, processes.values()))

    @property
    def bytes_loaded(self) -> int:
        """What all processes yield together, in bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def bytes_repeated(self) -> int:
        """How much of that another process yields as well, in bytes."""
        once = size_in_bytes(math.prod(self.layout.shape), self.layout.dtype)
        return self.bytes_loaded - once

    @property
    def contiguous(self) -> bool:
        """Whether every process yields one contiguous block."""
        return all(part.contiguous for part in self.parts)

    @property
    def fills(self) -> bool:
        """Whether the devices of every process hold all that it yields."""
        return all(part.fills for part in self.parts)

    @cached_property
    def reordered(self) -> MeshSpec | None:
        """The mesh in an order in which every part is one contiguous block, read in
        full.

        The devices, process after process, along the axes in the order in which the
        array is split over them; the axes that do not split it vary fastest, so that
        copies share a process. None where that is so already, and where this order does
        not help.
        """
        if self.contiguous and self.fills:
            return None
        mesh = self.layout.mesh
        # The devices of a process one after the other, to blocks one after the other.
        positions = np.argsort(self.layout.groups, kind="stable")
        devices = np.argsort(mesh.process_indices.reshape(-1), kind="stable")
        ids, processes = np.empty((2, mesh.size), np.int64)
        ids[positions] = mesh.device_ids.reshape(-1)[devices]
        processes[positions] = mesh.process_indices.reshape(-1)[devices]
        other = mesh.replace(
            device_ids=ids.reshape(mesh.axis_sizes),
            process_indices=processes.reshape(mesh.axis_sizes),
        )
        rows = process_rows(replace(self.layout, mesh=other))
        if not (rows.contiguous and rows.fills):
            return None
        return other

    @cached_property
    def notes(self) -> tuple[LoaderNote, ...]:
        """What a loader has to heed."""
        if len(self.parts) == 1:
            return (LoaderNote("one process", self),)
        codes = ["repeats"]
        if len(self.groups) < len(self.parts):
            codes.insert(0, "equal parts")
        if not self.contiguous:
            codes.append("gaps")
        if not self.fills:
            codes.append("not read")
        if self.reordered is not None:
            codes.append("another order")
        return tuple(LoaderNote(code, self) for code in codes)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a loader has to heed, in sentences."""
        return tuple(map(str, self.notes))

    def code(self) -> str:
        """The lines of a loader for this array, the same in every process.

        Only the body of `load` is to be replaced.

        Raises:
            LayoutError: where the array was laid out without a PartitionSpec, or holds
                random keys.
        """
        if self.layout.spec is None:
            raise LayoutError(
                "This array was laid out by another kind of sharding than NamedSharding;"
                " code needs a PartitionSpec. Give one, as in sv.process_rows(shape,"
                " \"'data'\", mesh)."
            )
        if self.layout.dtype.startswith("key<"):
            raise LayoutError(
                f"A loader yields numbers; got {self.layout.dtype}. Make keys of them"
                " afterwards, with jax.random.wrap_key_data."
            )
        return explanation(self)

    def __repr__(self) -> str:
        processes = plural(len(self.parts), "process", "processes")
        return f"ProcessRows({self.layout!r}: {processes})"


@dataclass(frozen=True, eq=False)
class LoaderNote(Fact):
    """One thing that a loader has to heed.

    Attributes:
        code: `"one process"`, `"equal parts"`, `"repeats"` (what is loaded again, be it
            nothing), `"gaps"`, `"not read"` or `"another order"`.
        rows: what it is about.

    >>> from shardviz.core.layout.layout import lay_out
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.partition_spec import Spec
    >>> rows = process_rows(lay_out((8,), Spec.parse("x"), make_mesh(x=4, processes=2)))
    >>> [note.code for note in rows.notes], str(rows.notes[0])
    (['repeats'], 'No row is loaded twice.')
    """

    code: str
    rows: ProcessRows


def process_rows(layout: Layout) -> ProcessRows:
    """What every process yields of an array, from its layout."""
    if layout.spec is not None and layout.spec.unreduced:
        raise LayoutError(
            f"An array that is unreduced over {shown(sorted(layout.spec.unreduced))} holds"
            " partial sums, which no loader yields. Give a spec without unreduced."
        )
    mesh = layout.mesh
    # int64 [devices]: the number of the process of every device among those of the mesh.
    ranks = np.searchsorted(mesh.processes, mesh.process_indices.reshape(-1))
    devices = np.bincount(ranks, minlength=len(mesh.processes)).tolist()
    held = np.unique(ranks * layout.num_blocks + layout.groups) // layout.num_blocks
    blocks_held = np.bincount(held, minlength=len(mesh.processes)).tolist()
    blocks = [_blocks_by_process(layout, dim, ranks) for dim in range(layout.rank)]
    parts = []
    for rank, process in enumerate(mesh.processes):
        ranges, shape, grid = [], [], 1
        for column, step in zip(blocks, layout.shard_shape, strict=True):
            numbers = column[rank]
            ranges.append(_merged(numbers, step))
            shape.append(len(numbers) * step)
            grid *= len(numbers)
        size = size_in_bytes(math.prod(shape), layout.dtype)
        # The blocks along each dimension span a grid, of which the devices may hold a
        # part.
        fills = grid == blocks_held[rank]
        what = devices[rank], tuple(ranges), tuple(shape), size, fills
        parts.append(ProcessPart(int(process), *what))
    return ProcessRows(layout, tuple(parts))


def _blocks_by_process(
    layout: Layout, dim: int, ranks: np.ndarray
) -> list[tuple[int, ...]]:
    """Of every process the ascending numbers of its blocks along a dimension."""
    count, mesh = layout.block_counts[dim], layout.mesh
    block = layout.blocks[dim]
    if block is None:
        return [(0,)] * len(mesh.processes)
    numbers = np.broadcast_to(block, mesh.axis_sizes).reshape(-1)
    ranks, numbers = np.divmod(np.unique(ranks * count + numbers), count)
    ends = np.flatnonzero(np.diff(ranks)) + 1
    return [tuple(blocks.tolist()) for blocks in np.split(numbers, ends)]


def _merged(numbers: Sequence[int], step: int) -> Ranges:
    """The elements of ascending blocks of `step` each, neighbours as one range."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        start, stop = number * step, (number + 1) * step
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, stop))
    return tuple(ranges)
