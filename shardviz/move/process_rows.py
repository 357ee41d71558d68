"""process_rows() -> ProcessRows: the elements of an array that each process loads.

`jax.make_array_from_process_local_data` expects each process to pass the data of its
own devices: along each dimension, the blocks of all these devices in ascending order,
without gaps. `tests/layout/test_process_rows.py` compares this module with JAX's own
functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.base.array_spec import size_in_bytes
from shardviz.base.display import Displayed, explanation
from shardviz.base.errors import LayoutError
from shardviz.base.format import plural, shown
from shardviz.base.layout import Layout

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ProcessPart:
    """The elements of an array that one process loads.

    Attributes:
        process: the index of the process.
        ranges: for each dimension, the (start, stop) pairs to load, ascending and
            merged.
        shape: the shape of the local array, which concatenates the ranges of each
            dimension.
        bytes: the bytes of the local array.

    >>> part = ProcessPart(1, (((0, 2), (6, 8)), ((0, 3),)), (4, 3), 48)
    >>> part.rows, part.local(np.arange(24).reshape(8, 3))[:, 0].tolist()
    (((0, 2), (6, 8)), [0, 3, 18, 21])
    """

    process: int
    ranges: tuple[Ranges, ...]
    shape: tuple[int, ...]
    bytes: int

    @property
    def rows(self) -> Ranges:
        """The ranges of the first dimension; `()` for a scalar."""
        return self.ranges[0] if self.ranges else ()

    def local(self, values: Any) -> Any:
        """Returns this process's local array, sliced from the global array."""
        for dim, ranges in enumerate(self.ranges):
            indices = np.concatenate([np.arange(*start_stop) for start_stop in ranges])
            values = np.take(values, indices, axis=dim)
        return values


def ranges_text(ranges: Ranges, limit: int = 4) -> str:
    """Formats ranges as slices; shortens a long list.

    >>> ranges_text(((0, 64), (128, 192))), ranges_text(tuple((i, i + 1) for i in range(0, 20, 2)))
    ('0:64 + 128:192', '0:1 + 2:3 … 18:19 (10 ranges)')
    """
    texts = [f"{start}:{stop}" for start, stop in ranges[:limit]]
    if len(ranges) <= limit:
        return " + ".join(texts)
    last = ranges[-1]
    return f"{' + '.join(texts[:2])} … {last[0]}:{last[1]} ({len(ranges):,} ranges)"


@dataclass(frozen=True, eq=False, repr=False)
class ProcessRows(Displayed):
    """The elements of an array that each process loads.

    Created by `shardviz.process_rows`.

    Attributes:
        layout: the layout of the array on all devices.
        parts: one ProcessPart per process, in ascending order of processes.

    >>> import shardviz as sv
    >>> from shardviz.base.partition_spec import Spec
    >>> mesh = sv.mesh(data=4, model=2, processes=2)
    >>> found = sv.process_rows(sv.layout((256, 512), Spec.parse("data"), mesh))
    >>> [part.rows for part in found.parts], found.parts[0].shape, found.bytes_repeated
    ([((0, 128),), ((128, 256),)], (128, 512), 0)
    """

    layout: Layout
    parts: tuple[ProcessPart, ...]

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Processes that must load equal arrays, in groups of one or more."""
        processes: dict[tuple[Ranges, ...], list[int]] = {}
        for part in self.parts:
            processes.setdefault(part.ranges, []).append(part.process)
        return tuple(map(tuple, processes.values()))

    @property
    def bytes_loaded(self) -> int:
        """The total bytes that all processes load."""
        return sum(part.bytes for part in self.parts)

    @property
    def bytes_repeated(self) -> int:
        """The bytes in `bytes_loaded` that exceed one copy of the array."""
        once = size_in_bytes(math.prod(self.layout.shape), self.layout.dtype)
        return self.bytes_loaded - once

    @property
    def apart(self) -> int:
        """The number of processes that load non-adjacent ranges of a dimension."""
        count = 0
        for part in self.parts:
            count += any(len(ranges) > 1 for ranges in part.ranges)
        return count

    @property
    def sentences(self) -> tuple[str, ...]:
        """The requirements on a data loader."""
        return tuple(explanation(self).split("\n"))

    def __repr__(self) -> str:
        processes = plural(len(self.parts), "process", "processes")
        return f"ProcessRows({self.layout!r}: {processes})"


def process_rows(layout: Layout) -> ProcessRows:
    """Returns the elements of an array that each process loads.

    Raises:
        LayoutError: for an unreduced array.
    """
    if layout.spec is not None and layout.spec.unreduced:
        raise LayoutError(
            f"An array that is unreduced over {shown(sorted(layout.spec.unreduced))}"
            " holds partial results, which no loader provides. Give a spec without"
            " unreduced."
        )
    mesh = layout.mesh
    # int64 [devices]: the index of each device's process in `mesh.processes`.
    ranks = np.searchsorted(mesh.processes, mesh.process_indices.reshape(-1))
    blocks = [_blocks_by_process(layout, dim, ranks) for dim in range(layout.rank)]
    parts = []
    for rank, process in enumerate(mesh.processes):
        ranges, shape = [], []
        for column, step in zip(blocks, layout.shard_shape, strict=True):
            numbers = column[rank]
            ranges.append(_merged(numbers, step))
            shape.append(len(numbers) * step)
        size = size_in_bytes(math.prod(shape), layout.dtype)
        parts.append(ProcessPart(int(process), tuple(ranges), tuple(shape), size))
    return ProcessRows(layout, tuple(parts))


def _blocks_by_process(
    layout: Layout, dim: int, ranks: np.ndarray
) -> list[tuple[int, ...]]:
    """Returns the ascending block indices of each process along a dimension."""
    count, mesh = layout.block_counts[dim], layout.mesh
    block = layout.blocks[dim]
    if block is None:
        return [(0,)] * len(mesh.processes)
    numbers = np.broadcast_to(block, mesh.axis_sizes).reshape(-1)
    ranks, numbers = np.divmod(np.unique(ranks * count + numbers), count)
    ends = np.flatnonzero(np.diff(ranks)) + 1
    return [tuple(blocks.tolist()) for blocks in np.split(numbers, ends)]


def _merged(numbers: Sequence[int], step: int) -> Ranges:
    """Returns the element ranges of blocks of size `step`; merges adjacent blocks."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        start, stop = number * step, (number + 1) * step
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, stop))
    return tuple(ranges)
