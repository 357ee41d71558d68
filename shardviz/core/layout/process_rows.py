"""process_rows() -> ProcessRows: what every process loads of an array that several processes make.

`jax.make_array_from_process_local_data` takes from every process what its devices hold: along each
dimension the blocks of any of its devices, in ascending order and without the gaps. Compared with
JAX's own functions in `tests/layout/test_process_rows.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import LayoutError
from shardviz.core.format import bytes_text, ids_text, plural, shown
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import check_size
from shardviz.core.layout.partition_spec import Spec

Ranges = tuple[tuple[int, int], ...]
MOST_NAMED = 3  # groups of processes that a sentence names


@dataclass(frozen=True)
class ProcessPart:
    """What one process yields.

    Attributes:
        process: its index.
        devices: how many of its devices hold the array.
        ranges: per dimension the (start, stop) of what it yields, ascending and merged.
        shape: of its local array: the ranges of each dimension, one after the other.
        bytes: of its local array.
        fills: whether its devices hold all of the local array; else some of it is never read.

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
        return all(len(some) == 1 for some in self.ranges)

    def indices(self, dim: int) -> np.ndarray:
        """int64: the indices along a dimension that the process yields, in their order."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.ranges[dim]])

    def local(self, values: Any) -> Any:
        """The local array of this process, cut out of an array of the global shape."""
        for dim, some in enumerate(self.ranges):
            if some != ((0, values.shape[dim]),):
                values = np.take(values, self.indices(dim), axis=dim)
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
    >>> mesh = make_mesh(data=4, model=2, processes=2)
    >>> found = process_rows(lay_out((256, 512), Spec.parse("data"), mesh))
    >>> [part.rows for part in found.parts], found.parts[0].shape, found.bytes_repeated
    ([((0, 128),), ((128, 256),)], (128, 512), 0)
    """

    layout: Layout
    parts: tuple[ProcessPart, ...]

    def of(self, process: int) -> ProcessPart:
        """The part of one process.

        Raises:
            LayoutError: if the process has no device in the mesh, or is no number.
        """
        number = check_size(process, "A process index", LayoutError)
        for part in self.parts:
            if part.process == number:
                return part
        raise LayoutError(
            f"Process {shown(number, 30)} has no device in this mesh. Processes here:"
            f" {ids_text([p.process for p in self.parts])}."
        )

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The processes that must yield equal arrays, those with a part of their own included."""
        found: dict[tuple[Ranges, ...], list[int]] = {}
        for part in self.parts:
            found.setdefault(part.ranges, []).append(part.process)
        return tuple(map(tuple, found.values()))

    @property
    def bytes_loaded(self) -> int:
        """What all processes yield together, in bytes."""
        return sum(part.bytes for part in self.parts)

    @property
    def bytes_repeated(self) -> int:
        """How much of that another process yields as well, in bytes."""
        return self.bytes_loaded - size_in_bytes(math.prod(self.layout.shape), self.layout.dtype)

    @property
    def rows_repeated(self) -> int:
        """How many rows are yielded again, in full or in part, by a further process."""
        if not self.layout.rank:
            return 0
        return sum(part.shape[0] for part in self.parts) - self.layout.shape[0]

    @cached_property
    def overlapping(self) -> bool:
        """Whether parts of processes overlap without being equal."""
        first = {part.ranges: math.prod(part.shape) for part in self.parts}
        return sum(first.values()) > math.prod(self.layout.shape)

    @property
    def contiguous(self) -> bool:
        """Whether every process yields one contiguous block."""
        return all(part.contiguous for part in self.parts)

    @cached_property
    def infers_shape(self) -> bool:
        """Whether JAX finds the global shape from the local ones, so that it may be left out.

        As `local_to_global_shape` of JAX: along each dimension, processes yield the same ranges or
        none in common, and equally many.
        """
        return all(self._uniform(dim) for dim in range(self.layout.rank))

    def _uniform(self, dim: int) -> bool:
        sets = set(self._blocks[dim])
        sizes = {len(some) for some in sets}
        return len(sizes) == 1 and sum(map(len, sets)) == self.layout.block_counts[dim]

    @cached_property
    def _blocks(self) -> list[list[tuple[int, ...]]]:
        """Per dimension and process the numbers of the blocks."""
        return [_blocks_by_process(self.layout, dim) for dim in range(self.layout.rank)]

    @cached_property
    def reordered(self) -> MeshSpec | None:
        """The mesh in an order in which every part is one contiguous block, read in full.

        The devices, process after process, along the axes in the order in which the array is split
        over them; the axes that do not split it vary fastest, so that copies share a process.
        None where that is so already, and where this order does not help.
        """
        if self.contiguous and self._filled:
            return None
        mesh = self.layout.mesh
        positions = np.argsort(self.layout.groups, kind="stable")
        devices = np.argsort(mesh.process_indices.reshape(-1), kind="stable")
        ids, processes = np.empty((2, mesh.size), np.int64)
        ids[positions] = mesh.device_ids.reshape(-1)[devices]
        processes[positions] = mesh.process_indices.reshape(-1)[devices]
        found = MeshSpec(
            mesh.axis_names, mesh.axis_sizes, mesh.axis_types, ids.reshape(mesh.axis_sizes),
            processes.reshape(mesh.axis_sizes), mesh.concrete,
        )  # fmt: skip
        layout = self.layout
        moved = Layout(
            layout.shape, layout.dtype, found, layout.spec, layout.block_counts,
            layout.shard_shape, None if layout.spec is not None else layout.blocks,
        )  # fmt: skip
        rows = process_rows(moved)
        return found if rows.contiguous and rows._filled else None

    @property
    def _filled(self) -> bool:
        return all(part.fills for part in self.parts)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """What a loader has to heed, in sentences."""
        if len(self.parts) == 1:
            return (
                f"Process {self.parts[0].process} has all devices and yields the whole array. For"
                " several processes, give the mesh with processes=, as in sv.mesh(data=4,"
                " processes=2).",
            )
        found = [self._equal_parts(), self._repeats(), self._gaps()]
        if not self._filled:
            found.append(
                "The devices of a process hold no grid of blocks: it yields some elements that"
                " none of its devices reads."
            )
        if self.reordered is not None:
            found.append(
                "In another order of the mesh's devices, .reordered, every part is one block that"
                " its devices read in full."
            )
        if not self.infers_shape:
            found.append("Pass global_shape: JAX cannot find it from the local shape.")
        return tuple(sentence for sentence in found if sentence)

    def _equal_parts(self) -> str:
        if len(self.groups) == 1:
            return (
                f"All {plural(len(self.parts), 'process', 'processes')} must yield the same"
                " array: shuffle with one seed."
            )
        shared = [group for group in self.groups if len(group) > 1]
        if not shared:
            return ""
        named = [f"so must {ids_text(group)}" for group in shared[1:MOST_NAMED]]
        more = len(shared) - MOST_NAMED
        named += [f"so must {plural(more, 'more group')}"] * (more > 0)
        tail = "".join(f"; {words}" for words in named)
        return f"Processes {ids_text(shared[0])} must yield the same array{tail}."

    def _repeats(self) -> str:
        if self.overlapping:
            return (
                f"Parts of processes overlap: {bytes_text(self.bytes_repeated)} are loaded again,"
                " and must be equal there."
            )
        loaded, total = self.bytes_loaded, self.bytes_loaded - self.bytes_repeated
        if self.bytes_repeated:
            rows = self.layout.shape[0] if self.layout.rank else 0
            return (
                f"{self.rows_repeated + rows:,} rows are loaded for the {rows:,} there are:"
                f" {bytes_text(loaded)} in all for {bytes_text(total)}."
            )
        if self.rows_repeated:
            return "No element is loaded twice; the processes of a row yield other columns of it."
        return "No row is loaded twice."

    def _gaps(self) -> str:
        apart = [part for part in self.parts if not part.contiguous]
        if not apart:
            return ""
        where = "Every process" if len(apart) == len(self.parts) else (
            f"{plural(len(apart), 'process', 'processes')} of {len(self.parts):,}"
        )  # fmt: skip
        verb = "yields" if len(apart) in (1, len(self.parts)) else "yield"
        return (
            f"{where} {verb} a part that is not one contiguous block: its ranges one after the"
            " other, ascending."
        )

    def code(self) -> str:
        """The lines of a loader for this array, the same in every process.

        Only the body of `load` is to be replaced.

        Raises:
            LayoutError: where the array was laid out without a PartitionSpec, or holds random keys.
        """
        layout = self.layout
        if layout.spec is None:
            raise LayoutError(
                "This array was laid out by another kind of sharding than NamedSharding; code needs"
                " a PartitionSpec. Give one, as in sv.process_rows(shape, \"'data'\", mesh)."
            )
        if layout.dtype.startswith("key<"):
            raise LayoutError(
                f"A loader yields numbers; got {layout.dtype}. Make keys of them afterwards, with"
                " jax.random.wrap_key_data."
            )
        spec = Spec(layout.spec.dims)
        return _CODE.format(
            mesh=_mesh_code(layout.mesh), spec=spec, shape=layout.shape, loader=_loader_code(self)
        )

    def __repr__(self) -> str:
        return f"ProcessRows({self.layout!r}: {plural(len(self.parts), 'process', 'processes')})"


def process_rows(layout: Layout) -> ProcessRows:
    """What every process yields of an array, from its layout.

    Raises:
        LayoutError: for an array of partial sums, which no loader yields.
    """
    if layout.spec is not None and layout.spec.unreduced:
        raise LayoutError(
            f"An array that is unreduced over {shown(sorted(layout.spec.unreduced))} holds partial"
            " sums, which no loader yields. Give a spec without unreduced."
        )
    mesh = layout.mesh
    ranks = _ranks(mesh)
    devices = np.bincount(ranks, minlength=len(mesh.processes)).tolist()
    held = np.unique(ranks * layout.num_blocks + layout.groups) // layout.num_blocks
    blocks_held = np.bincount(held, minlength=len(mesh.processes)).tolist()
    blocks = [_blocks_by_process(layout, dim) for dim in range(layout.rank)]
    parts = []
    for rank, process in enumerate(mesh.processes):
        own = [column[rank] for column in blocks]
        ranges = tuple(
            _merged(numbers, step) for numbers, step in zip(own, layout.shard_shape, strict=True)
        )
        shape = tuple(len(n) * step for n, step in zip(own, layout.shard_shape, strict=True))
        grid = math.prod(len(numbers) for numbers in own)
        size = size_in_bytes(math.prod(shape), layout.dtype)
        part = (int(process), devices[rank], ranges, shape, size, grid == blocks_held[rank])
        parts.append(ProcessPart(*part))
    return ProcessRows(layout, tuple(parts))


def _ranks(mesh: MeshSpec) -> np.ndarray:
    """int64 [devices]: the number of the process of every device among those of the mesh."""
    return np.searchsorted(mesh.processes, mesh.process_indices.reshape(-1))


def _blocks_by_process(layout: Layout, dim: int) -> list[tuple[int, ...]]:
    """Of every process the ascending numbers of the blocks that its devices hold in a dimension."""
    count, mesh = layout.block_counts[dim], layout.mesh
    block = layout.blocks[dim]
    if block is None:
        return [(0,)] * len(mesh.processes)
    numbers = np.broadcast_to(block, mesh.axis_sizes).reshape(-1)
    ranks, numbers = np.divmod(np.unique(_ranks(mesh) * count + numbers), count)
    ends = np.flatnonzero(np.diff(ranks)) + 1
    return [tuple(some.tolist()) for some in np.split(numbers, ends)]


def _merged(numbers: Sequence[int], step: int) -> Ranges:
    """The elements of ascending blocks of `step` each, neighbours as one range."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        start, stop = number * step, (number + 1) * step
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return tuple(found)


_CODE = """\
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

# The same in every process, after jax.distributed.initialize().
{mesh}
sharding = NamedSharding(mesh, {spec})
shape = {shape}


{loader}
batch = jax.make_array_from_process_local_data(sharding, local, shape)
"""
_NEEDED = """\
def needed(dim):
    # The indices along a dimension that devices of this process hold, ascending.
    held = sharding.addressable_devices_indices_map(shape).values()
    ranges = sorted({index[dim].indices(shape[dim])[:2] for index in held})
    return np.concatenate([np.arange(*some) for some in ranges])


"""


def _mesh_code(mesh: MeshSpec) -> str:
    in_order = "sorted(jax.devices(), key=lambda d: (d.process_index, d.id))"
    if not mesh.ids_are_positions:
        ids = mesh.device_ids.reshape(-1).tolist()
        chosen = f"by_id = {{d.id: d for d in jax.devices()}}\ndevices = [by_id[i] for i in {ids}]"
    elif mesh.even_hosts:
        chosen = f"devices = {in_order}"
    else:
        processes = mesh.process_indices.reshape(-1).tolist()
        chosen = (
            f"processes = {processes}  # of each device, in the order of the mesh\n"
            f"ordered = {in_order}\n"
            "own = {p: iter([d for d in ordered if d.process_index == p]) for p in set(processes)}"
            "\ndevices = [next(own[p]) for p in processes]"
        )
    sizes, names = mesh.axis_sizes, mesh.axis_names
    return f"{chosen}\nmesh = Mesh(np.array(devices).reshape({sizes}), {names!r})"


def _loader_code(rows: ProcessRows) -> str:
    """The functions of the loader, and the line that makes its local array."""
    layout, shape = rows.layout, rows.layout.shape
    if not layout.rank:
        return f"local = np.zeros((), {layout.dtype!r})  # to replace: the same in every process"
    split = [d for d in range(layout.rank) if any(p.shape[d] < shape[d] for p in rows.parts)]
    own = _regular_rows(rows)
    which = own or ("needed(0)" if 0 in split else f"np.arange({shape[0]})")
    rest = [d for d in split if d]
    columns = "".join(f"[{':, ' * d}needed({d})]" for d in rest)
    helper = _NEEDED if rest or which == "needed(0)" else ""
    more = "".join(f", {n}" for n in shape[1:])
    first = f"first = {rows.parts[0].shape[0]} * jax.process_index()\n" if own else ""
    return f"""\
{helper}def load(rows):
    # To replace: these rows of the batch, in this order, with all their elements.
    return np.zeros((len(rows){more or ","}), {layout.dtype!r})


{first}local = load({which}){columns}"""


def _regular_rows(rows: ProcessRows) -> str:
    """The rows of a process in code, where each has as many and they follow their processes."""
    count = rows.parts[0].shape[0]
    regular = count < rows.layout.shape[0] and all(
        part.rows == ((count * part.process, count * (part.process + 1)),) for part in rows.parts
    )
    return f"np.arange(first, first + {count})" if regular else ""
