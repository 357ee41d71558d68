"""What a checkpoint holds, and what every process reads of it to restore it.

By default a process of orbax reads, for every distinct shard of its devices, all chunks
that the shard meets (`_read_and_create_array` of its module `serialization`). A chunk
that several shards of a process meet is asked for once for each, and fetched once or
more, as it happens to be in memory still. tests/backend compares this with what
tensorstore counts while orbax restores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardviz.core.errors import LayoutError
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec

# Of one array: its chunks, and the pairs of a shard with a chunk that it meets.
MOST_CHUNKS, MOST_PAIRS = 1 << 24, 1 << 25


@dataclass(frozen=True, eq=False)
class SavedArray:
    """The metadata of an array in a checkpoint.

    Attributes:
        path: the keys that lead to it, joined by `/`.
        shape: the global shape, in elements.
        dtype: the name of the element type, as stored.
        itemsize: how many bytes an element takes in memory while it is read.
        chunk_shape: the shape of a chunk, in elements.
        stored: int64 [chunks of each dimension]: what every chunk takes in the
            checkpoint, in bytes, mostly compressed. None where that is not known.
        kind: what was saved: `"array"` of jax, `"numpy"` or `"scalar"`.
        spec: the spec that it was saved with; None where the checkpoint does not say.
        mesh: the mesh that it was saved on, with the ids of its devices, or None.
        device: the device of an array that was on one alone, as the checkpoint calls
            it, or `""`.
        random_key: the algorithm, such as `"threefry2x32"`, where it holds random keys,
            or `""`.

    >>> saved = SavedArray("w", (10, 4), "float32", 4, (4, 4))
    >>> saved.chunk_counts, saved.chunk_bytes, saved.bytes
    ((3, 1), 64, 160)
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    chunk_shape: tuple[int, ...]
    stored: np.ndarray | None = None
    kind: str = "array"
    spec: Spec | None = None
    mesh: MeshSpec | None = None
    device: str = ""
    random_key: str = ""

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Into how many chunks each dimension is split."""
        pairs = zip(self.shape, self.chunk_shape, strict=True)
        return tuple(-(-size // chunk) for size, chunk in pairs)

    @property
    def chunks(self) -> int:
        """How many chunks it has."""
        return math.prod(self.chunk_counts)

    @property
    def chunk_bytes(self) -> int:
        """What one chunk takes in memory, in bytes; those at the edge take as much."""
        return math.prod(self.chunk_shape) * self.itemsize

    @property
    def bytes(self) -> int:
        """What the array takes in memory, in bytes."""
        return math.prod(self.shape) * self.itemsize

    @property
    def stored_bytes(self) -> int | None:
        """What its chunks take in the checkpoint, in bytes, or None."""
        return None if self.stored is None else int(self.stored.sum())


@dataclass(frozen=True, eq=False)
class SavedCheckpoint:
    """The metadata of one checkpoint.

    Attributes:
        path: the folder of its arrays.
        step: the step, where the folder is one of a CheckpointManager.
        item: the item of a checkpoint of several, or `""`.
        driver: how arrays are kept: `"zarr"` or `"zarr3"`.
        ocdbt: whether they share files (OCDBT) or have a folder each.
        arrays: its arrays, in the checkpoint's order.
        others: what else it holds: path and kind, such as `"string"` or `"None"`.
        has_shardings: whether it says how arrays were split (the file `_sharding`).

    >>> SavedCheckpoint("/run/5", 5, "", "zarr", True, ()).bytes
    0
    """

    path: str
    step: int | None
    item: str
    driver: str
    ocdbt: bool
    arrays: tuple[SavedArray, ...]
    others: tuple[tuple[str, str], ...] = ()
    has_shardings: bool = True

    @property
    def bytes(self) -> int:
        """What the arrays take in memory, in bytes, each once."""
        return sum(a.bytes for a in self.arrays)

    @property
    def stored_bytes(self) -> int | None:
        """What their chunks take in the checkpoint, in bytes, or None."""
        total = 0
        for array in self.arrays:
            if array.stored_bytes is None:
                return None
            total += array.stored_bytes
        return total


class Reads(NamedTuple):
    """What every process reads of one array, or of all: int64 [processes] each.

    Attributes:
        chunks: the chunks that its shards meet, each counted once.
        reads: the same, a chunk counted for each distinct shard of the process that
            meets it.
        needed: the distinct shards of its devices, in bytes.
        at_least: the chunks, in bytes of memory.
        at_most: the reads, in bytes of memory. Between the two lies what is fetched.
        stored_at_least, stored_at_most: the same as stored; -1 where that is not known.
            OCDBT keeps chunks of up to 1 KiB in its tree, which every process reads
            entirely.

    >>> Reads(*np.arange(14).reshape(7, 2)).needed.tolist()
    [4, 5]
    """

    chunks: np.ndarray
    reads: np.ndarray
    needed: np.ndarray
    at_least: np.ndarray
    at_most: np.ndarray
    stored_at_least: np.ndarray
    stored_at_most: np.ndarray


class ProcessChunks(NamedTuple):
    """Every process with every chunk of it, by their numbers (int64).

    Attributes:
        shards: how many distinct shards of the process meet the chunk.
        held: int64 [processes]: the distinct shards of each.
    """

    process: np.ndarray
    chunk: np.ndarray
    shards: np.ndarray
    held: np.ndarray


def process_chunks(
    layout: Layout, chunk_shape: Sequence[int], processes: np.ndarray
) -> ProcessChunks:
    """Which chunks each process reads for the shards of its devices.

    Args:
        layout: how the array is wanted.
        chunk_shape: in elements.
        processes: int64, ascending: the processes to count for.

    >>> from shardviz.core.layout.layout import lay_out
    >>> wanted = lay_out((8, 4), Spec.parse("x"), MeshSpec(("x",), (4,), process_indices=2))
    >>> found = process_chunks(wanted, (3, 4), np.arange(2))
    >>> found.process.tolist(), found.chunk.tolist(), found.shards.tolist()
    ([0, 0, 1, 1], [0, 1, 1, 2], [2, 1, 1, 1])
    """
    rank = layout.rank
    owner = np.searchsorted(processes, layout.mesh.process_indices.reshape(-1))
    # Devices of a process with the same shard share a read.
    shards = np.unique(owner * layout.num_blocks + layout.groups)
    owner, block = np.divmod(shards, layout.num_blocks)
    held = np.bincount(owner, minlength=len(processes))
    numbers = np.unravel_index(block, layout.block_counts or (1,))[:rank]
    step = np.array(layout.shard_shape, np.int64)[:, None]
    chunk = np.array(chunk_shape, np.int64)[:, None]
    starts = np.array(numbers, np.int64).reshape(rank, len(shards)) * step
    first = starts // chunk
    counts = np.maximum(-(-(starts + step) // chunk) - first, 0) * (step > 0)
    grid = [-(-n // c) for n, c in zip(layout.shape, chunk_shape, strict=True)]
    total = max(math.prod(grid), 1)
    each = counts.prod(axis=0, dtype=np.int64)
    if total > MOST_CHUNKS or each.sum() > MOST_PAIRS:
        raise LayoutError(
            f"The array has {total:,} chunks, more than are counted here for"
            f" {len(shards):,} shards."
        )
    # Every pair of shard and chunk. The pairs of a shard are numbered from 0, and a
    # number is read as a place among its chunks.
    row = np.repeat(np.arange(len(each)), each)
    rest = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each)
    flat, stride = np.zeros(len(row), np.int64), 1
    for dim in reversed(range(rank)):
        rest, at = np.divmod(rest, counts[dim, row])
        flat += (first[dim, row] + at) * stride
        stride *= grid[dim]
    key, times = np.unique(owner[row] * total + flat, return_counts=True)
    return ProcessChunks(key // total, key % total, times, held)


def count_reads(array: SavedArray, layout: Layout, pairs: ProcessChunks) -> Reads:
    """What every process reads of one array, from `process_chunks`."""
    size = len(pairs.held)

    def total(weights: np.ndarray) -> np.ndarray:
        return np.bincount(pairs.process, weights, size).astype(np.int64)

    chunks, reads = total(np.ones_like(pairs.chunk)), total(pairs.shards)
    stored = (np.full(size, -1, np.int64),) * 2
    if array.stored is not None:
        each = array.stored.reshape(-1)[pairs.chunk]
        stored = (total(each), total(each * pairs.shards))
    return Reads(
        chunks,
        reads,
        pairs.held * (math.prod(layout.shard_shape) * array.itemsize),
        chunks * array.chunk_bytes,
        reads * array.chunk_bytes,
        *stored,
    )
