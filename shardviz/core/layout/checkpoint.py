"""What a checkpoint holds, and what every process reads of it to restore it on other devices.

By default a process of orbax reads, for every distinct shard of its devices, all chunks that the
shard meets (`_read_and_create_array` of its module `serialization`). A chunk that several shards of
a process meet is asked for once for each, and fetched once or more, as it happens to be in memory
still. tests/backend compares this with what tensorstore counts while orbax restores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.format import bytes_text, plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.resolution import Request, request

#: What orbax reads at once by default, in GB (10**9 bytes) per process: `restore_concurrent_gb` of
#: `StandardCheckpointHandler` and `PyTreeCheckpointHandler`.
CONCURRENT_GB = 96
MUCH = 1.2  # bytes read per byte from which on there is something to say
MOST_CHUNKS = 1 << 24  # of one array: a process reads each with a request of its own
_BATCH = 1 << 22  # pairs of shard and chunk that are made at a time


@dataclass(frozen=True, eq=False)
class SavedArray:
    """An array in a checkpoint; of it, its metadata.

    Attributes:
        path: the keys that lead to it, joined by `/`.
        shape: the global shape, in elements.
        dtype: the name of the element type, as stored.
        itemsize: how many bytes an element takes in memory while it is read.
        chunk_shape: the shape of a chunk, in elements.
        stored: int64 [chunks of each dimension]: what every chunk takes in the checkpoint, in
            bytes, mostly compressed. None where that is not known.
        kind: what was saved: `"array"` of jax, `"numpy"` or `"scalar"`.
        spec: the spec that it was saved with; None where the checkpoint does not say.
        mesh: the mesh that it was saved on, with the ids of its devices, or None.
        has_types: whether the checkpoint keeps the axis types of that mesh.
        device: the device of an array that was on one alone, as the checkpoint calls it, or `""`.
        random_key: the algorithm, such as `"threefry2x32"`, where it holds random keys, or `""`.

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
    has_types: bool = False
    device: str = ""
    random_key: str = ""

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Into how many chunks each dimension is split."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))

    @property
    def chunks(self) -> int:
        """How many chunks it has."""
        return math.prod(self.chunk_counts)

    @property
    def chunk_bytes(self) -> int:
        """What one chunk takes in memory, in bytes; those at the edge are as large as all."""
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
        sizes = [a.stored_bytes for a in self.arrays]
        return None if None in sizes else sum(s for s in sizes if s is not None)


class Reads(NamedTuple):
    """What every process reads of one array, or of all: int64 [processes] each.

    Attributes:
        chunks: the chunks that its shards meet, each counted once.
        reads: the same, a chunk counted for each distinct shard of the process that meets it.
        needed: the distinct shards of its devices, in bytes.
        at_least: the chunks, in bytes of memory.
        at_most: the reads, in bytes of memory. Between the two lies what is fetched.
        stored_at_least, stored_at_most: the same as stored; -1 where that is not known. OCDBT keeps
            chunks of up to 1 KiB in its tree, which every process reads entirely.

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


class _Pairs(NamedTuple):
    """Every process with every chunk of it, by their numbers (int64).

    Attributes:
        shards: how many distinct shards of the process meet the chunk.
        held: int64 [processes]: the distinct shards of each.
    """

    process: np.ndarray
    chunk: np.ndarray
    shards: np.ndarray
    held: np.ndarray


def process_chunks(layout: Layout, chunk_shape: Sequence[int], processes: np.ndarray) -> _Pairs:
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
    mesh, rank = layout.mesh, layout.rank
    owner = np.searchsorted(processes, mesh.process_indices.reshape(-1))
    block = np.zeros((1,) * len(mesh.axis_sizes), np.int64)
    for count, number in zip(layout.block_counts, layout.blocks, strict=True):
        block = block * count + (0 if number is None else number)
    at = np.broadcast_to(block, mesh.axis_sizes).reshape(-1)
    shards = np.unique(owner * layout.num_blocks + at)  # devices with the same shard share a read
    owner, at = np.divmod(shards, layout.num_blocks)
    held = np.bincount(owner, minlength=len(processes))
    numbers = np.array(np.unravel_index(at, layout.block_counts or (1,))[:rank], np.int64)
    step = np.array(layout.shard_shape, np.int64)[:, None]
    chunk = np.array(chunk_shape, np.int64)[:, None]
    starts = numbers.reshape(rank, len(shards)) * step
    first = starts // chunk
    counts = np.maximum(-(-(starts + step) // chunk) - first, 0) * (step > 0)
    grid = [-(-n // c) for n, c in zip(layout.shape, chunk_shape, strict=True)]
    total = max(math.prod(grid), 1)
    keys, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for some in _batches(owner, counts.prod(axis=0, dtype=np.int64)):
        row, flat = _enumerated(first[:, some], counts[:, some], grid)
        found, each = np.unique(owner[some][row] * total + flat, return_counts=True)
        keys.append(found)
        times.append(each)
    key = np.concatenate(keys)
    return _Pairs(key // total, key % total, np.concatenate(times), held)


def _batches(owner: np.ndarray, pairs: np.ndarray) -> Iterator[slice]:
    """Runs of shards with about _BATCH pairs each; those of one process stay together."""
    ends = np.append(np.flatnonzero(np.diff(owner)) + 1, len(owner))
    batch = np.cumsum(pairs)[ends - 1] // _BATCH
    first = 0
    for end in ends[np.append(np.flatnonzero(np.diff(batch)), len(ends) - 1)].tolist():
        yield slice(first, end)
        first = end


def _enumerated(
    first: np.ndarray, counts: np.ndarray, grid: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of shard and chunk: the position of the shard, and the number of the chunk.

    `first` and `counts` are [rank, shards]; `grid` is how many chunks each dimension has.
    """
    each = counts.prod(axis=0, dtype=np.int64)
    row = np.repeat(np.arange(len(each)), each)
    rest = np.arange(len(row)) - np.repeat(np.cumsum(each) - each, each)
    flat, stride = np.zeros(len(row), np.int64), 1
    for dim in reversed(range(len(grid))):
        rest, at = np.divmod(rest, counts[dim, row])
        flat += (first[dim, row] + at) * stride
        stride *= grid[dim]
    return row, flat


def count_reads(array: SavedArray, layout: Layout, pairs: _Pairs) -> Reads:
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


@dataclass(frozen=True, eq=False)
class RestoreRow:
    """One array: how it was saved, how it is wanted, and what is read for it.

    Attributes:
        saved: the array in the checkpoint.
        spec: the spec that is wanted; None where nothing says so.
        dtype: the element type that is wanted.
        layout: the wanted layout of what is stored, or None.
        reads: what every process reads, in the order of `Restore.process_numbers`; None where it
            cannot be restored so.
        problem: the sentence on why not, or None.
        notes: what is converted, or not as it was.

    >>> RestoreRow(SavedArray("w", (8,), "int8", 1, (4,)), None, "int8", None, None, "why").path
    'w'
    """

    saved: SavedArray
    spec: Spec | None
    dtype: str
    layout: Layout | None
    reads: Reads | None
    problem: str | None
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The keys that lead to it, joined by `/`."""
        return self.saved.path

    @property
    def bytes_needed(self) -> int:
        """The distinct shards of every process together, in bytes."""
        return 0 if self.reads is None else int(self.reads.needed.sum())

    @property
    def bytes_at_least(self) -> int:
        """What all processes read, at least, in bytes of memory."""
        return 0 if self.reads is None else int(self.reads.at_least.sum())

    @property
    def bytes_at_most(self) -> int:
        """What all processes read at most, in bytes of memory."""
        return 0 if self.reads is None else int(self.reads.at_most.sum())

    @property
    def amplification(self) -> tuple[float, float] | None:
        """Bytes read per byte needed: at least and at most; None where nothing is needed."""
        return _per_byte(self.bytes_needed, self.bytes_at_least, self.bytes_at_most)


@dataclass(frozen=True)
class ProcessReads:
    """What one process reads in all.

    Attributes:
        process: its index.
        chunks: the chunks that its shards meet, each once.
        reads: as often as they are asked for: once for each distinct shard that meets them.
        bytes_needed: the distinct shards of its devices.
        bytes_at_least, bytes_at_most: the chunks and the reads, in bytes of memory.
        stored_at_least, stored_at_most: the same as stored; None where that is not known.
        peak_host_bytes: the most that orbax holds in host memory at once: chunks, compressed and
            not, and shards, each no more than its limit. Simulated devices take theirs beside it.

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

    @property
    def amplification(self) -> tuple[float, float] | None:
        """Bytes read per byte needed: at least and at most; None where nothing is needed."""
        return _per_byte(self.bytes_needed, self.bytes_at_least, self.bytes_at_most)


def _per_byte(needed: int, least: int, most: int) -> tuple[float, float] | None:
    return (least / needed, most / needed) if needed else None


@dataclass(frozen=True, eq=False, repr=False)
class Restore(Displayed):
    """What restoring a checkpoint reads, for every array and process. Made by `sv.restore`.

    Attributes:
        checkpoint: its metadata.
        mesh: the mesh that it is restored on.
        rows: one an array of the checkpoint that is wanted.
        process_numbers: int64, ascending: the processes with devices of the mesh.
        missing: paths that are wanted and not in the checkpoint.
        not_wanted: paths in the checkpoint that nothing wants.
        notes: what the checkpoint does not keep, or says otherwise.
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
    notes: tuple[str, ...] = ()
    limit: int = CONCURRENT_GB * 10**9

    @cached_property
    def reads(self) -> Reads:
        """What every process reads in all, in the order of `process_numbers`."""
        found = [row.reads for row in self.rows if row.reads is not None]
        totals = []
        for name in Reads._fields:
            parts = [getattr(reads, name) for reads in found]
            total = np.sum([np.zeros(len(self.process_numbers), np.int64), *parts], axis=0)
            unknown = [part < 0 for part in parts]
            totals.append(np.where(np.any(unknown, axis=0), -1, total) if unknown else total)
        return Reads(*totals)

    @cached_property
    def processes(self) -> tuple[ProcessReads, ...]:
        """What each process reads, the one that reads most first."""
        made = []
        columns = [column.tolist() for column in (self.process_numbers, *self.reads)]
        for row in zip(*columns, strict=True):
            process, chunks, reads, needed, least, most, *stored = row
            low, high = stored if stored[0] >= 0 else (None, None)
            held = (least, needed, least if low is None else low)
            peak = sum(min(size, self.limit) for size in held)
            made.append(ProcessReads(process, chunks, reads, needed, least, most, low, high, peak))
        return tuple(sorted(made, key=lambda p: (-p.bytes_at_most, p.process)))

    @property
    def problems(self) -> Mapping[str, str]:
        """Why arrays cannot be restored as wanted, by path."""
        return {row.path: row.problem for row in self.rows if row.problem is not None}

    @property
    def works(self) -> bool:
        """Whether there is no problem, nothing is missing, and nothing is there unwanted."""
        return not (self.problems or self.missing or self.not_wanted)

    @cached_property
    def advice(self) -> str:
        """What dominates the reads, and what to do about it."""
        saved, most = self.checkpoint.bytes, int(self.reads.at_most.sum())
        if most <= MUCH * saved:
            return "Hardly anything is read that is not needed, or read twice."
        worst = max(self.rows, key=lambda row: row.bytes_at_most - row.saved.bytes)
        why = "is held by several processes, each of which reads it"
        if worst.bytes_at_most > MUCH * worst.bytes_needed and worst.layout is not None:
            chunk, shard = list(worst.saved.chunk_shape), list(worst.layout.shard_shape)
            why = f"has chunks of {chunk}, which several of its new shards of {shard} meet"
        head = (
            f"Up to {most / saved:.1f} times the checkpoint is read; most for {shown(worst.path)}, "
        )
        head += f"which {why}."
        spec, less = _least_read(worst, self.process_numbers)
        if 2 * less > worst.bytes_at_most:
            return f"{head} Smaller chunks may help: save with ocp.SaveArgs(chunk_byte_size=...)."
        return (
            f"{head} Restored with {spec} first, and then moved by jax.device_put, it is"
            f" {bytes_text(less)} instead of {bytes_text(worst.bytes_at_most)}."
        )

    def __repr__(self) -> str:
        read = bytes_text(sum(p.bytes_at_most for p in self.processes))
        trouble = "" if self.works else ", does not work"
        return (
            f"Restore({plural(len(self.rows), 'array')} onto {self.mesh}: at most {read} read by"
            f" {plural(len(self.process_numbers), 'process', 'processes')}{trouble})"
        )


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
    grids = {id(r.layout.mesh): r.layout.mesh for r in wanted.requests.values() if r.layout}
    numbers = {p for mesh in (wanted.mesh, *grids.values()) for p in mesh.processes}
    processes = np.array(sorted(numbers), np.int64)
    memo: dict[Any, _Pairs] = {}
    rows = [
        _row(array, wanted.requests[array.path], processes, limit, memo)
        for array in checkpoint.arrays
        if array.path in wanted.requests
    ]
    left = tuple(a.path for a in checkpoint.arrays if a.path not in wanted.requests)
    notes = (*wanted.notes, *_type_notes(checkpoint, wanted.mesh), *_name_notes(rows, wanted))
    return Restore(
        checkpoint, wanted.mesh, tuple(rows), processes, wanted.missing, left, notes, limit
    )


def _row(
    array: SavedArray, found: Request, processes: np.ndarray, limit: int, memo: dict[Any, _Pairs]
) -> RestoreRow:
    """One row; what is stored of random keys has a dimension more than the keys."""
    layout, problem, dtype = found.layout, found.problem, found.dtype
    if array.random_key and dtype.startswith("key<") and layout is not None:
        stored = ArraySpec("array", array.shape, None, array.dtype, found.spec)
        found = request(stored, layout.mesh, None)
        layout, problem, dtype = found.layout, found.problem, array.dtype
    elif found.shape != array.shape:
        problem = (
            f"The checkpoint has shape {array.shape}, and {found.shape} is wanted; orbax pads or"
            " truncates only with ArrayRestoreArgs(strict=False)."
        )
    if problem is None and array.chunks > MOST_CHUNKS:
        problem = f"{array.chunks:,} chunks are more than the {MOST_CHUNKS:,} counted here."
    if problem is None and layout is None:
        problem = (
            "Nothing says how it is to be split; orbax then splits it as it was saved, over devices"
            " of that time, or makes it a numpy array. Give a PartitionSpec or a sharding here, and"
            " orbax a target tree with jax.ShapeDtypeStruct(shape, dtype, sharding=...) for each"
            " array."
        )
    if problem is not None or layout is None:
        return RestoreRow(array, found.spec, dtype, layout, None, problem)
    notes = (f"saved as {array.dtype}, converted to {dtype} after it is read",)
    notes = notes if dtype != array.dtype else ()
    key = (array.shape, array.chunk_shape, layout.spec, id(layout.mesh))
    if layout.spec is None or key not in memo:
        memo[key] = process_chunks(layout, array.chunk_shape, processes)
    reads = count_reads(array, layout, memo[key])
    most = _largest_read(array, layout)
    if most >= limit:
        problem = (
            f"One shard takes reads of {bytes_text(most)}, and orbax refuses"
            f" {bytes_text(limit)} or more at once: raise restore_concurrent_gb, or save with"
            " smaller chunks."
        )
    return RestoreRow(array, found.spec, dtype, layout, reads, problem, notes)


def _largest_read(array: SavedArray, layout: Layout) -> int:
    """The most bytes that one shard makes orbax read: its chunks, where it begins worst."""
    size = array.itemsize
    for step, chunk, count in zip(
        layout.shard_shape, array.chunk_shape, layout.block_counts, strict=True
    ):
        starts = np.arange(min(count, chunk), dtype=np.int64) * step
        size *= int((-(-(starts + step) // chunk) - starts // chunk).max()) * chunk
    return size


def _type_notes(checkpoint: SavedCheckpoint, mesh: MeshSpec) -> Iterator[str]:
    """What was saved of axis types and is otherwise on the wanted mesh."""
    meshes = {a.mesh: a.has_types for a in checkpoint.arrays if a.mesh is not None}
    if not checkpoint.has_shardings:
        yield "The checkpoint does not say how its arrays were split: its file _sharding is missing"
    if any(not typed for typed in meshes.values()):
        yield "The checkpoint does not keep axis types, as those of older versions of orbax"
    new = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if mesh.has_chosen_types:
        olds = [zip(m.axis_names, m.axis_types, strict=True) for m, t in meshes.items() if t]
        changed = {
            (name, kind) for old in olds for name, kind in old if new.get(name, kind) != kind
        }
        for name, saved in sorted(changed):
            yield f"Mesh axis {shown(name)} was {saved} when saved, and is {new[name]} here"


def _name_notes(rows: Sequence[RestoreRow], wanted: Wanted) -> Iterator[str]:
    """The names that flax keeps in a box beside an array, which no checkpoint has."""
    boxed = [r.path for r in rows if r.path.endswith("/value")]
    named = [p for p in boxed if wanted.requests[p].names]
    if named:
        yield (
            f"The names beside {plural(len(named), 'array')}, such as {shown(named[0])}, are not in"
            " the checkpoint: they come from what it is restored into"
        )
    elif boxed:
        yield (
            f"{plural(len(boxed), 'array')}, such as {shown(boxed[0])}, may have been in a box of"
            " flax: names and rules that it kept are not in the checkpoint"
        )


def _least_read(row: RestoreRow, processes: np.ndarray) -> tuple[Spec | None, int]:
    """With which spec least is read of an array: as it was saved, or split along one dimension.

    Chunk sizes do not do as well: orbax's `choose_chunk_shape` splits the dimensions that were
    split when saved before all others, and those of `shard_axes` into single elements.
    """
    best, least = row.spec, row.bytes_at_most
    if row.layout is None:
        return best, least
    mesh, saved = row.layout.mesh, row.saved
    axes = tuple(name for name, size in mesh.shape.items() if size > 1)
    along = [Spec(((),) * dim + (axes,)) for dim in range(len(saved.shape))]
    for spec in (saved.spec, *along):
        array = ArraySpec("array", saved.shape, None, saved.dtype, spec)
        layout = request(array, mesh, None).layout
        if spec is None or layout is None or layout.bytes_per_device > row.layout.bytes_per_device:
            continue  # devices must not hold more than they are to
        pairs = process_chunks(layout, saved.chunk_shape, processes)
        most = int(count_reads(saved, layout, pairs).at_most.sum())
        best, least = (spec, most) if most < least else (best, least)
    return best, least
