"""plan_restore() -> Restore: what every process reads to restore a checkpoint.

By default a process of orbax reads, for every distinct shard of its devices, all chunks
that the shard meets (`_read_and_create_array` of its module `serialization`). A chunk
that several shards of a process meet is asked for once for each, and fetched once or
more, as it happens to be in memory still. tests/backend compares this with what
tensorstore counts while orbax restores.
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

# Of one array: its chunks, and the pairs of a shard with a chunk that it meets.
MOST_CHUNKS, MOST_PAIRS = 1 << 24, 1 << 25


@dataclass(frozen=True, eq=False)
class SavedArray:
    """The metadata of an array in a checkpoint.

    Attributes:
        path: the keys that lead to it, joined by `/`.
        shape, chunk_shape: in elements.
        dtype, itemsize: of the elements as stored, and their bytes in memory.
        kind: what was saved: `"array"` of jax, `"one device"` for one that was on one
            device alone, `"numpy"` or `"scalar"`.
        spec, mesh: those that it was saved with, or None.
        random_key: the algorithm where it holds random keys, or `""`.

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
        """Into how many chunks each dimension is split."""
        pairs = zip(self.shape, self.chunk_shape, strict=True)
        return tuple(-(-size // chunk) for size, chunk in pairs)

    @property
    def chunk_bytes(self) -> int:
        """What one chunk takes in memory, in bytes; those at the edge take as much."""
        return math.prod(self.chunk_shape) * self.itemsize

    @property
    def bytes(self) -> int:
        """What the array takes in memory, in bytes."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, eq=False)
class SavedCheckpoint:
    """The metadata of one checkpoint.

    Attributes:
        path: the folder of its arrays.
        step, item: of a CheckpointManager, or None and `""`.
        arrays, others: its arrays, and the paths of what else it holds, such as text.
        has_shardings: whether it says how arrays were split (the file `_sharding`).

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
        """What the arrays take in memory, in bytes, each once."""
        return sum(array.bytes for array in self.arrays)


class Reads(NamedTuple):
    """What every process reads of one array: int64 [processes] each.

    Attributes:
        chunks: the chunks that its shards meet, each counted once.
        reads: the same, a chunk counted for each distinct shard that meets it.
        needed: the distinct shards of its devices, in bytes.
        at_least, at_most: the chunks and the reads, in bytes of memory; what is fetched
            lies between.

    >>> Reads(*np.arange(10).reshape(5, 2)).needed.tolist()
    [4, 5]
    """

    chunks: np.ndarray
    reads: np.ndarray
    needed: np.ndarray
    at_least: np.ndarray
    at_most: np.ndarray


class ProcessReads(NamedTuple):
    """What one process reads of all arrays, in chunks and in bytes, as of Reads.

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
    """Why an array cannot be restored as wanted.

    Attributes:
        code: `"shape"` where another one was saved, `"no spec"` where nothing says how
            it is to be split, `"layout"` where it cannot be laid out so, or not be
            counted.
        saved, wanted: the two shapes.
        reason: why it cannot be laid out, in the words of its layout.

    >>> RestoreProblem("shape", (8,), (4,)).wanted
    (4,)
    """

    code: str
    saved: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, eq=False)
class RestoreRow:
    """One array: how it was saved, how it is wanted, and what is read for it.

    Attributes:
        saved: the array in the checkpoint.
        spec: the spec that is wanted; None where nothing says so.
        dtype: the element type that is wanted, into which it is converted.
        layout: the wanted layout of what is stored, or None.
        reads: what every process reads, in the order of `Restore.process_numbers`; None
            where it cannot be restored so.
        problem: why not, or None.

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
        """The keys that lead to it, joined by `/`."""
        return self.saved.path

    @cached_property
    def bytes_at_most(self) -> int:
        """What all processes read, in bytes of memory, with every chunk as asked for."""
        if self.reads is None:
            return 0
        return int(self.reads.at_most.sum())


@dataclass(frozen=True, eq=False, repr=False)
class Restore(Displayed, Fact):
    """What restoring a checkpoint reads; made by `sv.restore`.

    Attributes:
        checkpoint: its metadata.
        mesh: the mesh that it is restored on.
        rows: one an array of the checkpoint that is wanted.
        process_numbers: int64, ascending: the processes with devices of the mesh.
        missing: paths that are wanted and not in the checkpoint.
        not_wanted: paths in the checkpoint that nothing wants.
        notes: what the checkpoint does not say, as codes: `"no shardings"`: how its
            arrays were split; `"one process"`: which process has which device.

    >>> checkpoint = SavedCheckpoint("/run/5", 5, "", ())
    >>> Restore(checkpoint, MeshSpec(("x",), (2,)), (), np.arange(1)).works
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
        """What each process reads, the one that reads most first."""
        totals = np.zeros((len(Reads._fields), len(self.process_numbers)), np.int64)
        for row in self.rows:
            if row.reads is not None:
                totals += np.stack(row.reads)
        made = []
        for process, numbers in zip(self.process_numbers, totals.T, strict=True):
            made.append(ProcessReads(int(process), *numbers.tolist()))
        return tuple(sorted(made, key=lambda p: (-p.bytes_at_most, p.process)))

    @property
    def problems(self) -> Mapping[str, RestoreProblem]:
        """Why arrays cannot be restored as wanted, by path."""
        return {row.path: row.problem for row in self.rows if row.problem is not None}

    @property
    def works(self) -> bool:
        """Whether there is no problem, and exactly what is wanted is there."""
        return not (self.problems or self.missing or self.not_wanted)

    def __repr__(self) -> str:
        return f"Restore({self})"


class Wanted(NamedTuple):
    """How the arrays of a checkpoint are wanted.

    Attributes:
        requests: the wanted spec and layout by the path in the checkpoint.
        missing: what is wanted and not in the checkpoint.
        notes: what to say of all.
    """

    requests: Mapping[str, Request]
    mesh: MeshSpec
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan_restore(checkpoint: SavedCheckpoint, wanted: Wanted) -> Restore:
    """What every process reads to restore a checkpoint as wanted.

    >>> saved = SavedArray("w", (8, 4), "float32", 4, (8, 4))
    >>> checkpoint = SavedCheckpoint("/c", None, "", (saved,))
    >>> mesh = MeshSpec(("x",), (4,))
    >>> wanted = Wanted({"w": request(ArraySpec("w", (8, 4), spec="x"), mesh, None)}, mesh)
    >>> plan_restore(checkpoint, wanted).processes[0].bytes_at_most
    512
    """
    numbers = set(wanted.mesh.processes)
    for one in wanted.requests.values():
        if one.layout is not None:
            numbers.update(one.layout.mesh.processes)
    processes = np.array(sorted(numbers), np.int64)
    # Arrays that are split and stored alike are read alike.
    memo: dict[Any, Reads] = {}
    rows, left = [], []
    for array in checkpoint.arrays:
        asked = wanted.requests.get(array.path)
        if asked is None:
            left.append(array.path)
        else:
            rows.append(_row(array, asked, processes, memo))
    notes = wanted.notes
    if not checkpoint.has_shardings:
        notes += ("no shardings",)
    return Restore(
        checkpoint,
        wanted.mesh,
        tuple(rows),
        processes,
        wanted.missing,
        tuple(left),
        notes,
    )


def _row(
    array: SavedArray, wanted: Request, processes: np.ndarray, memo: dict[Any, Reads]
) -> RestoreRow:
    layout, dtype, problem = wanted.layout, wanted.dtype, None
    # What is stored of random keys has a dimension more than the keys.
    if array.random_key and dtype.startswith("key<") and layout is not None:
        stored = ArraySpec("array", array.shape, None, array.dtype, wanted.spec)
        wanted = request(stored, layout.mesh, None)
        layout, dtype = wanted.layout, array.dtype
    if wanted.shape != array.shape:
        problem = RestoreProblem("shape", array.shape, wanted.shape)
    elif wanted.problem is not None:
        problem = RestoreProblem("layout", reason=str(wanted.problem))
    elif layout is None:
        problem = RestoreProblem("no spec")
    if problem is not None or layout is None:
        return RestoreRow(array, wanted.spec, dtype, layout, problem=problem)
    key = (array.shape, array.chunk_shape, array.itemsize)
    # Without a spec nobody can say which layouts are alike.
    key += (layout.spec or id(layout), id(layout.mesh))
    try:
        if key not in memo:
            memo[key] = count_reads(array, layout, processes)
    except LayoutError as error:
        problem = RestoreProblem("layout", reason=str(error))
        return RestoreRow(array, wanted.spec, dtype, layout, problem=problem)
    return RestoreRow(array, wanted.spec, dtype, layout, memo[key])


class ProcessChunks(NamedTuple):
    """Every process with every chunk of it, by their numbers (int64).

    `shards` of the process meet the chunk; `held` is how many each process has.
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

    >>> from shardviz.base.layout import lay_out
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


def count_reads(array: SavedArray, layout: Layout, processes: np.ndarray) -> Reads:
    """What every process reads of one array.

    Raises:
        LayoutError: for more chunks than are counted.
    """
    pairs = process_chunks(layout, array.chunk_shape, processes)
    chunks = np.bincount(pairs.process, minlength=len(processes))
    reads = np.bincount(pairs.process, pairs.shards, len(processes)).astype(np.int64)
    needed = pairs.held * (math.prod(layout.shard_shape) * array.itemsize)
    size = array.chunk_bytes
    return Reads(chunks, reads, needed, chunks * size, reads * size)
