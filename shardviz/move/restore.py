"""plan_restore() -> Restore: the reads of each process that restore a checkpoint.

By default, an orbax process reads, for every distinct shard of its devices, all chunks
that the shard overlaps (`_read_and_create_array` in orbax's `serialization` module). If
several shards of a process overlap a chunk, the chunk is requested once per shard. Each
request fetches the chunk unless it is still cached. tests/backend compares these
numbers with tensorstore's counts while orbax restores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardviz.axis_rules.requests import Request, request
from shardviz.base.array_spec import ArraySpec
from shardviz.base.display import Displayed, Fact
from shardviz.base.errors import LayoutError
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

# Limits per array: number of chunks, and number of (shard, overlapping chunk) pairs.
MOST_CHUNKS, MOST_PAIRS = 1 << 24, 1 << 25


@dataclass(frozen=True, eq=False)
class SavedArray:
    """The metadata of an array in a checkpoint.

    Attributes:
        path: the array's tree keys, joined by `/`.
        shape, chunk_shape: shapes of the array and of a chunk, in elements.
        dtype: the stored dtype.
        itemsize: bytes per element in memory.
        kind: `"array"` for a jax array, `"one device"` for a jax array on a single
            device, `"numpy"` or `"scalar"`.
        spec, mesh: the spec and mesh that the array was saved with, or None.
        random_key: the algorithm for an array of random keys; `""` for any other array.

    >>> saved = SavedArray("w", (10, 4), "float32", 4, (4, 4))
    >>> saved.chunk_counts, saved.chunk_bytes, saved.bytes
    ((3, 1), 64, 160)
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    chunk_shape: tuple[int, ...]
    kind: str = "array"
    spec: Spec | None = None
    mesh: MeshSpec | None = None
    random_key: str = ""

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """The number of chunks along each dimension."""
        pairs = zip(self.shape, self.chunk_shape, strict=True)
        return tuple(-(-size // chunk) for size, chunk in pairs)

    @property
    def chunk_bytes(self) -> int:
        """The bytes of one chunk in memory; chunks at the edge have the same size."""
        return math.prod(self.chunk_shape) * self.itemsize

    @property
    def bytes(self) -> int:
        """The bytes of the array in memory."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, eq=False)
class SavedCheckpoint:
    """The metadata of one checkpoint.

    Attributes:
        path: the folder with the arrays.
        step, item: the step and item name in a CheckpointManager; else None and `""`.
        arrays: metadata of the arrays.
        others: paths of leaves that are not arrays, such as text.
        has_shardings: whether the checkpoint has shardings (the file `_sharding`).

    >>> SavedCheckpoint("/run/5", 5, "", ()).bytes
    0
    """

    path: str
    step: int | None
    item: str
    arrays: tuple[SavedArray, ...]
    others: tuple[str, ...] = ()
    has_shardings: bool = True

    @property
    def bytes(self) -> int:
        """The bytes of all arrays in memory, each counted once."""
        return sum(array.bytes for array in self.arrays)


class Reads(NamedTuple):
    """The reads of one array by each process; every field is int64 [processes].

    Attributes:
        chunks: number of chunks that the process's shards overlap, each counted once.
        reads: number of reads. A chunk is read once for each distinct shard that
            overlaps it.
        needed: total bytes of the process's distinct shards.
        at_least, at_most: the bytes if each of the `chunks` is fetched once, and if
            each of the `reads` fetches its chunk. The bytes fetched lie between the
            two.

    >>> Reads(*np.arange(10).reshape(5, 2)).needed.tolist()
    [4, 5]
    """

    chunks: np.ndarray
    reads: np.ndarray
    needed: np.ndarray
    at_least: np.ndarray
    at_most: np.ndarray


class ProcessReads(NamedTuple):
    """The reads of all arrays by one process; see Reads for the fields.

    >>> ProcessReads(0, 1, 4, 64, 64, 256).bytes_at_most
    256
    """

    process: int
    chunks: int
    reads: int
    bytes_needed: int
    bytes_at_least: int
    bytes_at_most: int


@dataclass(frozen=True)
class RestoreProblem(Fact):
    """The reason why an array cannot be restored as requested.

    Attributes:
        code: `"shape"` if another shape was saved; `"no spec"` if no sharding was
            requested; `"layout"` if the array cannot be laid out as requested, or has
            too many chunks to count.
        saved, wanted: the saved shape and the requested shape.
        reason: the error message about the layout.

    >>> RestoreProblem("shape", (8,), (4,)).wanted
    (4,)
    """

    code: str
    saved: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, eq=False)
class RestoreRow:
    """An array as saved and as requested, and the reads that restore it.

    Attributes:
        saved: the array in the checkpoint.
        spec: the requested spec; None if unknown.
        dtype: the requested dtype; the array is converted to it.
        layout: the requested layout, in the shape of the stored array, or None.
        reads: the reads of each process, in the order of `Restore.process_numbers`;
            None if the array cannot be restored.
        problem: why the array cannot be restored, or None.

    >>> RestoreRow(SavedArray("w", (8,), "int8", 1, (4,)), None, "int8").bytes_at_most
    0
    """

    saved: SavedArray
    spec: Spec | None
    dtype: str
    layout: Layout | None = None
    reads: Reads | None = None
    problem: RestoreProblem | None = None

    @property
    def path(self) -> str:
        """The array's tree keys, joined by `/`."""
        return self.saved.path

    @cached_property
    def bytes_at_most(self) -> int:
        """The total bytes that processes read if no chunk is cached."""
        if self.reads is None:
            return 0
        return int(self.reads.at_most.sum())


@dataclass(frozen=True, eq=False, repr=False)
class Restore(Displayed, Fact):
    """The reads that restore a checkpoint; created by `sv.restore`.

    Attributes:
        checkpoint: the checkpoint's metadata.
        mesh: the mesh to restore on.
        rows: one row per requested array in the checkpoint.
        process_numbers: int64, ascending: the processes that have devices in the mesh
            or the layouts.
        missing: requested paths that are not in the checkpoint.
        not_wanted: paths in the checkpoint that are not requested.
        notes: codes of missing information: `"no shardings"` if the checkpoint has no
            shardings, `"one process"` if the processes of devices are unknown.

    >>> import shardviz as sv
    >>> from shardviz.move.restore import SavedCheckpoint
    >>> from shardviz.types import Restore
    >>> import numpy as np
    >>> checkpoint = SavedCheckpoint("/run/5", 5, "", ())
    >>> Restore(checkpoint, sv.MeshSpec(("x",), (2,)), (), np.arange(1)).works
    True
    """

    checkpoint: SavedCheckpoint
    mesh: MeshSpec
    rows: tuple[RestoreRow, ...]
    process_numbers: np.ndarray
    missing: tuple[str, ...] = ()
    not_wanted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def processes(self) -> tuple[ProcessReads, ...]:
        """The reads of each process; the process that reads the most comes first."""
        totals = np.zeros((len(Reads._fields), len(self.process_numbers)), np.int64)
        for row in self.rows:
            if row.reads is not None:
                totals += np.stack(row.reads)
        reads = []
        for process, numbers in zip(self.process_numbers, totals.T, strict=True):
            reads.append(ProcessReads(int(process), *numbers.tolist()))
        return tuple(sorted(reads, key=lambda p: (-p.bytes_at_most, p.process)))

    @property
    def problems(self) -> Mapping[str, RestoreProblem]:
        """Path -> the reason why the array cannot be restored as requested."""
        return {row.path: row.problem for row in self.rows if row.problem is not None}

    @property
    def works(self) -> bool:
        """Whether the checkpoint has exactly the requested arrays, without problems."""
        return not (self.problems or self.missing or self.not_wanted)

    def __repr__(self) -> str:
        return f"Restore({self})"


class Wanted(NamedTuple):
    """The arrays to restore from a checkpoint.

    Attributes:
        requests: path in the checkpoint -> requested spec and layout.
        mesh: the mesh to restore on.
        missing: requested paths that are not in the checkpoint.
        notes: codes of missing information; see Restore.
    """

    requests: Mapping[str, Request]
    mesh: MeshSpec
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan_restore(checkpoint: SavedCheckpoint, wanted: Wanted) -> Restore:
    """Computes the reads of each process that restore a checkpoint as requested.

    >>> saved = SavedArray("w", (8, 4), "float32", 4, (8, 4))
    >>> checkpoint = SavedCheckpoint("/c", None, "", (saved,))
    >>> mesh = MeshSpec(("x",), (4,))
    >>> wanted = Wanted({"w": request(ArraySpec("w", (8, 4), spec="x"), mesh, None)}, mesh)
    >>> plan_restore(checkpoint, wanted).processes[0].bytes_at_most
    512
    """
    numbers = set(wanted.mesh.processes)
    for array_request in wanted.requests.values():
        if array_request.layout is not None:
            numbers.update(array_request.layout.mesh.processes)
    processes = np.array(sorted(numbers), np.int64)
    # Arrays with the same layout and the same chunks have equal reads.
    memo: dict[Any, Reads] = {}
    rows, not_wanted = [], []
    for array in checkpoint.arrays:
        array_request = wanted.requests.get(array.path)
        if array_request is None:
            not_wanted.append(array.path)
        else:
            rows.append(_row(array, array_request, processes, memo))
    notes = wanted.notes
    if not checkpoint.has_shardings:
        notes += ("no shardings",)
    return Restore(
        checkpoint,
        wanted.mesh,
        tuple(rows),
        processes,
        wanted.missing,
        tuple(not_wanted),
        notes,
    )


def _row(
    array: SavedArray,
    array_request: Request,
    processes: np.ndarray,
    memo: dict[Any, Reads],
) -> RestoreRow:
    layout, dtype, problem = array_request.layout, array_request.dtype, None
    # Random keys are stored with an extra dimension.
    if array.random_key and dtype.startswith("key<") and layout is not None:
        stored = ArraySpec("array", array.shape, None, array.dtype, array_request.spec)
        array_request = request(stored, layout.mesh, None)
        layout, dtype = array_request.layout, array.dtype
    if array_request.shape != array.shape:
        problem = RestoreProblem("shape", array.shape, array_request.shape)
    elif array_request.problem is not None:
        problem = RestoreProblem("layout", reason=str(array_request.problem))
    elif layout is None:
        problem = RestoreProblem("no spec")
    if problem is not None or layout is None:
        return RestoreRow(array, array_request.spec, dtype, layout, problem=problem)
    key = (array.shape, array.chunk_shape, array.itemsize)
    # Layouts without a spec are never treated as equal.
    key += (layout.spec or id(layout), id(layout.mesh))
    try:
        if key not in memo:
            memo[key] = count_reads(array, layout, processes)
    except LayoutError as error:
        problem = RestoreProblem("layout", reason=str(error))
        return RestoreRow(array, array_request.spec, dtype, layout, problem=problem)
    return RestoreRow(array, array_request.spec, dtype, layout, memo[key])


class ProcessChunks(NamedTuple):
    """All pairs of a process and a chunk that the process reads.

    Attributes:
        process, chunk: int64 [pairs]: index of the process, and flat index of the
            chunk.
        shards: int64 [pairs]: number of the process's distinct shards that overlap the
            chunk.
        held: int64 [processes]: number of distinct shards of each process.
    """

    process: np.ndarray
    chunk: np.ndarray
    shards: np.ndarray
    held: np.ndarray


def process_chunks(
    layout: Layout, chunk_shape: Sequence[int], processes: np.ndarray
) -> ProcessChunks:
    """Finds the chunks that each process reads for the shards of its devices.

    Args:
        layout: the requested layout.
        chunk_shape: the shape of a chunk, in elements.
        processes: int64, ascending: the processes to count for.

    >>> import shardviz as sv
    >>> wanted = sv.layout((8, 4), Spec.parse("x"), MeshSpec(("x",), (4,), process_indices=2))
    >>> found = process_chunks(wanted, (3, 4), np.arange(2))
    >>> found.process.tolist(), found.chunk.tolist(), found.shards.tolist()
    ([0, 0, 1, 1], [0, 1, 1, 2], [2, 1, 1, 1])
    """
    rank = layout.rank
    owner = np.searchsorted(processes, layout.mesh.process_indices.reshape(-1))
    # Devices of a process that have the same shard share a read.
    shards = np.unique(owner * layout.num_blocks + layout.groups)
    owner, block = np.divmod(shards, layout.num_blocks)
    shard_counts = np.bincount(owner, minlength=len(processes))
    numbers = np.unravel_index(block, layout.block_counts or (1,))[:rank]
    step = np.array(layout.shard_shape, np.int64)[:, None]
    chunk = np.array(chunk_shape, np.int64)[:, None]
    starts = np.array(numbers, np.int64).reshape(rank, len(shards)) * step
    first = starts // chunk
    counts = np.maximum(-(-(starts + step) // chunk) - first, 0) * (step > 0)
    grid = [-(-n // c) for n, c in zip(layout.shape, chunk_shape, strict=True)]
    total = max(math.prod(grid), 1)
    chunks_per_shard = counts.prod(axis=0, dtype=np.int64)
    if total > MOST_CHUNKS or chunks_per_shard.sum() > MOST_PAIRS:
        raise LayoutError(
            f"The array has {total:,} chunks, more than are counted here for"
            f" {len(shards):,} shards."
        )
    # Each row is a pair of a shard and a chunk. The pairs of each shard are numbered
    # from 0. The number is then decomposed into the chunk's index along each dimension.
    row = np.repeat(np.arange(len(chunks_per_shard)), chunks_per_shard)
    first_row = np.cumsum(chunks_per_shard) - chunks_per_shard
    number = np.arange(len(row)) - np.repeat(first_row, chunks_per_shard)
    flat, stride = np.zeros(len(row), np.int64), 1
    for dim in reversed(range(rank)):
        number, at = np.divmod(number, counts[dim, row])
        flat += (first[dim, row] + at) * stride
        stride *= grid[dim]
    key, times = np.unique(owner[row] * total + flat, return_counts=True)
    return ProcessChunks(key // total, key % total, times, shard_counts)


def count_reads(array: SavedArray, layout: Layout, processes: np.ndarray) -> Reads:
    """Counts the reads of one array by each process.

    Raises:
        LayoutError: for more than MOST_CHUNKS chunks, or MOST_PAIRS pairs.
    """
    pairs = process_chunks(layout, array.chunk_shape, processes)
    chunks = np.bincount(pairs.process, minlength=len(processes))
    reads = np.bincount(pairs.process, pairs.shards, len(processes)).astype(np.int64)
    needed = pairs.held * (math.prod(layout.shard_shape) * array.itemsize)
    size = array.chunk_bytes
    return Reads(chunks, reads, needed, chunks * size, reads * size)
