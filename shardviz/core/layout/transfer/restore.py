"""plan_restore() -> Restore: what every process reads to restore a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.display import Displayed, Fact
from shardviz.core.errors import LayoutError
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.requests import Request, request
from shardviz.core.layout.transfer.checkpoint import (
    ProcessChunks,
    Reads,
    SavedArray,
    SavedCheckpoint,
    count_reads,
    process_chunks,
)

#: What orbax reads at once by default, in GB (10**9 bytes) per process:
#: `restore_concurrent_gb` of `StandardCheckpointHandler` and `PyTreeCheckpointHandler`.
CONCURRENT_GB = 96
MUCH = 1.2  # bytes read per byte from which on there is something to say


@dataclass(frozen=True)
class RestoreProblem(Fact):
    """Why an array cannot be restored as wanted.

    Attributes:
        code: `"shape"` where another one was saved, `"no spec"` where nothing says how
            it is to be split, `"layout"` where it cannot be laid out so, or not be
            counted, `"limit"` where orbax refuses to read so much at once.
        saved, wanted: the two shapes.
        bytes, limit: what one shard makes orbax read, and from how much on orbax
            refuses.
        reason: why it cannot be laid out, in the words of its layout.

    >>> RestoreProblem("shape", (8,), (4,)).wanted
    (4,)
    """

    code: str
    saved: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()
    bytes: int = 0
    limit: int = 0
    reason: str = ""


@dataclass(frozen=True)
class RestoreNote(Fact):
    """What else to know of a restore.

    Attributes:
        code: `"converted"` where an element type changes, `"no shardings"` where the
            checkpoint does not say how its arrays were split, `"own names"` where names
            come from what it is restored into, `"one process"` where the checkpoint
            does not say which process has which device.
        name: the array, or the first of several.
        before, after: the element types.
        count: how many arrays.

    >>> RestoreNote("converted", "w", "float32", "bfloat16").after
    'bfloat16'
    """

    code: str
    name: str = ""
    before: str = ""
    after: str = ""
    count: int = 0


@dataclass(frozen=True, eq=False)
class Advice(Fact):
    """What dominates the reads of a restore, and what to do about it.

    Attributes:
        code: `"nothing"` where hardly anything is read that is not needed, `"chunks"`
            where smaller chunks may help, `"spec"` where another spec reads less.
        times: how many times the checkpoint is read, at most.
        row: the array that most of that is for.
        spec, bytes: the spec with which less is read of it, and how much then.

    >>> Advice("nothing").row is None
    True
    """

    code: str
    times: float = 1.0
    row: RestoreRow | None = None
    spec: Spec | None = None
    bytes: int = 0


class _ReadBytes:
    """Bytes that are needed and read, of an array or of a process."""

    bytes_needed: int
    bytes_at_least: int
    bytes_at_most: int

    @property
    def amplification(self) -> tuple[float, float] | None:
        """Bytes read per byte needed, at least and at most; None for nothing needed."""
        needed = self.bytes_needed
        if not needed:
            return None
        return self.bytes_at_least / needed, self.bytes_at_most / needed


@dataclass(frozen=True, eq=False)
class RestoreRow(_ReadBytes):
    """One array: how it was saved, how it is wanted, and what is read for it.

    Attributes:
        saved: the array in the checkpoint.
        spec: the spec that is wanted; None where nothing says so.
        layout: the wanted layout of what is stored, or None.
        reads: what every process reads, in the order of `Restore.process_numbers`; None
            where it cannot be restored so.
        problem: why not, or None.
        notes: what is converted.
        bytes_needed: the distinct shards of every process together.
        bytes_at_least, bytes_at_most: what all processes read, in bytes of memory.

    >>> RestoreRow(SavedArray("w", (8,), "int8", 1, (4,)), None, None, None).path
    'w'
    """

    saved: SavedArray
    spec: Spec | None
    layout: Layout | None
    reads: Reads | None
    problem: RestoreProblem | None = None
    notes: tuple[RestoreNote, ...] = ()
    bytes_needed: int = 0
    bytes_at_least: int = 0
    bytes_at_most: int = 0

    @property
    def path(self) -> str:
        """The keys that lead to it, joined by `/`."""
        return self.saved.path


@dataclass(frozen=True)
class ProcessReads(_ReadBytes):
    """What one process reads in all.

    Attributes:
        process: its index.
        chunks: the chunks that its shards meet, each once.
        reads: as often as they are asked for: once for each distinct shard that meets
            them.
        bytes_needed: the distinct shards of its devices.
        bytes_at_least, bytes_at_most: the chunks and the reads, in bytes of memory.
        stored_at_least, stored_at_most: the same as stored; None where that is not
            known.
        peak_host_bytes: the most that orbax holds in host memory at once: chunks,
            compressed and not, and shards, each no more than its limit. Simulated
            devices take theirs beside it.

    >>> ProcessReads(0, 1, 4, 64, 64, 256, None, None, 128).amplification
    (1.0, 4.0)
    """

    process: int
    chunks: int
    reads: int
    bytes_needed: int
    bytes_at_least: int
    bytes_at_most: int
    stored_at_least: int | None
    stored_at_most: int | None
    peak_host_bytes: int


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
        notes: what the checkpoint does not keep.
        limit: the bytes that orbax reads at once.

    >>> checkpoint = SavedCheckpoint("/run/5", 5, "", "zarr", True, ())
    >>> Restore(checkpoint, MeshSpec(("x",), (2,)), (), np.arange(1)).works
    True
    """

    checkpoint: SavedCheckpoint
    mesh: MeshSpec
    rows: tuple[RestoreRow, ...]
    process_numbers: np.ndarray
    missing: tuple[str, ...] = ()
    not_wanted: tuple[str, ...] = ()
    notes: tuple[RestoreNote, ...] = ()
    limit: int = CONCURRENT_GB * 10**9

    @cached_property
    def processes(self) -> tuple[ProcessReads, ...]:
        """What each process reads, the one that reads most first."""
        totals = np.zeros((len(Reads._fields), len(self.process_numbers)), np.int64)
        known = True
        for row in self.rows:
            if row.reads is not None:
                totals += np.stack(row.reads)
                known = known and row.saved.stored is not None
        made = []
        for process, numbers in zip(self.process_numbers, totals.T, strict=True):
            chunks, reads, needed, least, most, *stored = numbers.tolist()
            low = high = None
            compressed = least  # at most, where nobody knows how much
            if known:
                low, high = stored
                compressed = low
            # Chunks as stored and as read, and shards: each at most the limit at once.
            peak = sum(min(n, self.limit) for n in (least, needed, compressed))
            all_reads = (chunks, reads, needed, least, most, low, high, peak)
            made.append(ProcessReads(int(process), *all_reads))
        return tuple(sorted(made, key=lambda p: (-p.bytes_at_most, p.process)))

    @property
    def problems(self) -> Mapping[str, RestoreProblem]:
        """Why arrays cannot be restored as wanted, by path."""
        return {row.path: row.problem for row in self.rows if row.problem is not None}

    @property
    def works(self) -> bool:
        """Whether there is no problem, and exactly what is wanted is there."""
        return not (self.problems or self.missing or self.not_wanted)

    @cached_property
    def advice(self) -> Advice:
        """What dominates the reads, and what to do about it."""
        saved, most = self.checkpoint.bytes, sum(r.bytes_at_most for r in self.rows)
        if most <= MUCH * saved:
            return Advice("nothing")
        worst = max(self.rows, key=lambda row: row.bytes_at_most - row.saved.bytes)
        spec, less = _least_read(worst, self.process_numbers)
        if 2 * less > worst.bytes_at_most:
            return Advice("chunks", most / saved, worst)
        return Advice("spec", most / saved, worst, spec, less)

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
    notes: tuple[RestoreNote, ...] = ()


def plan_restore(
    checkpoint: SavedCheckpoint, wanted: Wanted, concurrent_gb: int = CONCURRENT_GB
) -> Restore:
    """What every process reads to restore a checkpoint as wanted.

    >>> saved = SavedArray("w", (8, 4), "float32", 4, (8, 4))
    >>> checkpoint = SavedCheckpoint("/c", None, "", "zarr", True, (saved,))
    >>> mesh = MeshSpec(("x",), (4,))
    >>> wanted = Wanted({"w": request(ArraySpec("w", (8, 4), spec="x"), mesh, None)}, mesh)
    >>> plan_restore(checkpoint, wanted).processes[0].amplification
    (1.0, 4.0)
    """
    limit = concurrent_gb * 10**9
    meshes = {id(wanted.mesh): wanted.mesh}
    for one in wanted.requests.values():
        if one.layout is not None:
            meshes[id(one.layout.mesh)] = one.layout.mesh
    numbers: set[int] = set()
    for mesh in meshes.values():
        numbers.update(mesh.processes)
    processes = np.array(sorted(numbers), np.int64)
    memo: dict[Any, ProcessChunks] = {}
    rows, left, boxed = [], [], []
    for array in checkpoint.arrays:
        asked = wanted.requests.get(array.path)
        if asked is None:
            left.append(array.path)
            continue
        rows.append(_row(array, asked, processes, limit, memo))
        # The names that flax keeps in a box beside an array, which no checkpoint has.
        if array.path.endswith("/value") and asked.names:
            boxed.append(array.path)
    notes = list(wanted.notes)
    if not checkpoint.has_shardings:
        notes.append(RestoreNote("no shardings"))
    if boxed:
        notes.append(RestoreNote("own names", boxed[0], count=len(boxed)))
    return Restore(
        checkpoint,
        wanted.mesh,
        tuple(rows),
        processes,
        wanted.missing,
        tuple(left),
        tuple(notes),
        limit,
    )


def _row(
    array: SavedArray,
    wanted: Request,
    processes: np.ndarray,
    limit: int,
    memo: dict[Any, ProcessChunks],
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
        return RestoreRow(array, wanted.spec, layout, None, problem)
    # Arrays that are split and stored alike are read alike; without a spec nobody can
    # say.
    key = (array.shape, array.chunk_shape, layout.spec, id(layout.mesh))
    try:
        if layout.spec is None or key not in memo:
            memo[key] = process_chunks(layout, array.chunk_shape, processes)
    except LayoutError as error:
        problem = RestoreProblem("layout", reason=str(error))
        return RestoreRow(array, wanted.spec, layout, None, problem)
    most = _largest_read(array, layout)
    if most >= limit:
        problem = RestoreProblem("limit", bytes=most, limit=limit)
    notes = ()
    if dtype != array.dtype:
        notes = (RestoreNote("converted", array.path, array.dtype, dtype),)
    reads = count_reads(array, layout, memo[key])
    totals = map(int, map(np.sum, (reads.needed, reads.at_least, reads.at_most)))
    return RestoreRow(array, wanted.spec, layout, reads, problem, notes, *totals)


def _largest_read(array: SavedArray, layout: Layout) -> int:
    """The most bytes of chunks that one shard meets, where it begins worst."""
    size = array.itemsize
    for step, chunk, count in zip(
        layout.shard_shape, array.chunk_shape, layout.block_counts, strict=True
    ):
        starts = np.arange(min(count, chunk), dtype=np.int64) * step
        size *= int((-(-(starts + step) // chunk) - starts // chunk).max()) * chunk
    return size


def _least_read(row: RestoreRow, processes: np.ndarray) -> tuple[Spec | None, int]:
    """The spec with which least is read of an array: as saved, or split along one
    dimension.

    Chunk sizes do not do as well: orbax's `choose_chunk_shape` splits the dimensions
    that were split when saved before all others, and those of `shard_axes` into single
    elements.
    """
    best, least = row.spec, row.bytes_at_most
    if row.layout is None or row.reads is None:
        return best, least
    mesh, saved = row.layout.mesh, row.saved
    axes = tuple(name for name, size in mesh.shape.items() if size > 1)
    specs = [Spec(((),) * dim + (axes,)) for dim in range(len(saved.shape))]
    if saved.spec is not None:
        specs.insert(0, saved.spec)
    for spec in specs:
        array = ArraySpec("array", saved.shape, None, saved.dtype, spec)
        layout = request(array, mesh, None).layout
        # Devices must not hold more than is wanted.
        if layout is None or layout.bytes_per_device > row.layout.bytes_per_device:
            continue
        try:
            pairs = process_chunks(layout, saved.chunk_shape, processes)
        except LayoutError:  # too many to count
            continue
        most = int(count_reads(saved, layout, pairs).at_most.sum())
        if most < least:
            best, least = spec, most
    return best, least
