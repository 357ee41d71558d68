"""Layout, returned by lay_out(): the shard of an array that each device holds.

Block numbers along a dimension are mixed-radix numbers: if axes `(a, b)` of sizes
`(A, B)` split the dimension, the device at mesh coordinates `(i, j)` holds block
`i * B + j`. The block number grows by a constant stride along every mesh axis, so all
arrays here broadcast to the shape of the mesh. `tests/layout` compares the results with
`jax.sharding.NamedSharding.devices_indices_map`.

Arrays as large as the mesh are created only when needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.base.array_spec import dtype_name, read_shape, size_in_bytes
from shardviz.base.display import Displayed, Fact
from shardviz.base.errors import LayoutError, ShardvizError
from shardviz.base.format import listed, plural, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import check_size
from shardviz.base.partition_spec import Spec, rank_problem


@dataclass(frozen=True)
class Misfit(Fact):
    """A dimension of `size` elements that does not divide into `parts` equal blocks.

    Attributes:
        size: elements of the dimension.
        axes: the mesh axes that would split the dimension; `()` if no mesh is involved.
        parts: the number of blocks.
        other_axes: mesh axes that would divide the dimension evenly.

    >>> mesh = MeshSpec(("data", "model"), (4, 2))
    >>> misfit = Misfit.find(510, ("data",), mesh)
    >>> misfit.remainder, misfit.sizes, misfit.padding, misfit.other_axes
    (2, (508, 512), 2, ('model',))
    >>> Misfit.find(512, ("data",), mesh) is None
    True
    """

    size: int
    axes: tuple[str, ...]
    parts: int
    other_axes: tuple[str, ...] = ()

    @staticmethod
    def find(
        size: int,
        axes: tuple[str, ...],
        mesh: MeshSpec,
        free: tuple[str, ...] | None = None,
    ) -> Misfit | None:
        """Returns the misfit of `size` over `axes`, or None if `size` divides evenly.

        Args:
            size: elements of the dimension.
            axes: the mesh axes that would split the dimension.
            mesh: the mesh.
            free: axes that may be suggested instead; by default all mesh axes.
        """
        # Another verdict reports axes that the mesh lacks.
        parts = math.prod(mesh.shape.get(a, 1) for a in axes)
        if size % parts == 0:
            return None
        other_axes = []
        if free is None:
            free = mesh.axis_names
        for axis in free:
            count = mesh.shape[axis]
            if axis not in axes and count > 1 and size % count == 0:
                other_axes.append(axis)
        return Misfit(size, axes, parts, tuple(other_axes))

    @property
    def remainder(self) -> int:
        """The elements left over after a split into equal blocks."""
        return self.size % self.parts

    @property
    def sizes(self) -> tuple[int, ...]:
        """The nearest sizes that divide evenly: below (unless that is 0) and above."""
        below = self.size - self.remainder
        return tuple(s for s in (below, below + self.parts) if s)

    @property
    def padding(self) -> int:
        """The number of padding elements that would make the size divisible."""
        return -self.size % self.parts


def block_numbers(
    axes: tuple[str, ...],
    mesh: MeshSpec,
    step: int = 1,
    out: np.ndarray | None = None,
) -> np.ndarray | None:
    """Block numbers of all devices along one dimension, broadcastable to the mesh.

    Args:
        axes: the mesh axes that split the dimension, major to minor.
        mesh: the mesh.
        step: a factor for all block numbers.
        out: int64 in mesh shape; if given, the result is broadcast and written here.

    Returns:
        int64, of length 1 along mesh axes that do not split the dimension; None if no
        axis splits the dimension.

    >>> block_numbers(("b", "a"), MeshSpec(("a", "b"), (2, 3))).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    lanes = []
    for axis in reversed(axes):
        size = mesh.shape[axis]
        if size > 1:
            lanes.append(mesh.lane(axis) * step)
            step *= size
    if not lanes:
        return None
    # Each lane varies along one axis only, so adding two fills `out` in one pass.
    if out is None:
        return sum(lanes[1:], lanes[0])
    if len(lanes) == 1:
        out[...] = lanes[0]
    else:
        np.add(lanes[0], lanes[1], out=out)
    for lane in lanes[2:]:
        out += lane
    return out


def _check_manual(spec: Spec, mesh: MeshSpec) -> None:
    """Raises if one mesh axis is Manual and another does not split the array."""
    # NamedSharding fails with an assertion here: it cannot express that some devices
    # hold replicas while a shard_map controls the data of others.
    manual, idle = [], []
    for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if mesh.shape[name] > 1:
            if kind == "Manual":
                manual.append(name)
            if name not in spec.axes:
                idle.append(name)
    if manual and idle:
        raise LayoutError(
            f"Mesh axis {shown(manual[0])} is Manual: what a device holds along it is up to the"
            " code inside shard_map. JAX lays out an array over such a mesh only if every axis"
            f" splits a dimension, and {shown(idle[0])} splits none. Make {listed(manual)} Auto or"
            " Explicit."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Displayed):
    """Which shard of an array each device holds; returned by `shardviz.layout`.

    Layouts are equal if their shape, dtype, partial results and every device's block
    are equal; mesh axes, names, rules and memory kinds may differ.

    Attributes:
        shape: the global shape, in elements.
        dtype: the name of the element type.
        mesh: the mesh that the array is laid out on.
        spec: the spec of the layout; None if the sharding has no PartitionSpec.
        block_counts: the number of blocks along each dimension.
        shard_shape: the shape of every device's block.
        request: the Request with the array's name and its rules; None for the layout of
            a bare shape or a live array.
        memory_kind: jax's name for the memory that holds the array (`"pinned_host"`);
            None for the devices' default memory.

    >>> import shardviz as sv
    >>> layout = sv.layout((8, 4), sv.Spec.parse("data, model"), sv.MeshSpec(("data", "model"), (4, 2)))
    >>> layout.shard_shape, layout.replicas, layout.box(3)
    ((2, 2), 1, (slice(2, 4, None), slice(2, 4, None)))
    """

    _adds = (
        "device_ids",
        "starts",
        "stops",
        "num_blocks",
        "replicas",
        "bytes_per_device",
    )

    shape: tuple[int, ...]
    dtype: str
    mesh: MeshSpec
    spec: Spec | None
    block_counts: tuple[int, ...]
    shard_shape: tuple[int, ...]
    # For each dimension, the block number of every device, broadcastable to the mesh
    # shape; None if all numbers are 0.
    _given_blocks: tuple[np.ndarray | None, ...] | None = None
    request: Any = field(default=None, compare=False, repr=False)
    memory_kind: str | None = field(default=None, compare=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        if self is other:
            return True
        if self._key != other._key:
            return False
        spec = self.spec
        if spec is not None and other.spec is not None and self.mesh == other.mesh:
            if spec.equivalent(other.spec):
                return True
        ids, other_ids = self.device_ids, other.device_ids
        groups, other_groups = self.groups, other.groups
        if not np.array_equal(ids, other_ids):
            # Meshes may list the same devices in another order.
            order, other_order = np.argsort(ids), np.argsort(other_ids)
            if not np.array_equal(ids[order], other_ids[other_order]):
                return False
            groups, other_groups = groups[order], other_groups[other_order]
        # The blocks of an array without elements are all empty.
        return 0 in self.shape or np.array_equal(groups, other_groups)

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        """The fields in which equal layouts agree; cheap for any number of devices."""
        partial = None
        if self.spec is not None and self.spec.unreduced:
            partial = self.spec.unreduced, self.spec.unreduced_kind
        return self.shape, self.dtype, self.shard_shape, self.mesh.size, partial

    @property
    def rank(self) -> int:
        """The number of dimensions of the array."""
        return len(self.shape)

    @property
    def device_ids(self) -> np.ndarray:
        """int64 [devices]: the ids in mesh order."""
        return self.mesh.device_ids.reshape(-1)

    @cached_property
    def blocks(self) -> tuple[np.ndarray | None, ...]:
        """For each dimension, the block number of every device; None if it isn't split.

        Each array has the rank of the mesh and broadcasts to its shape: axes that do
        not split the dimension have length 1.
        """
        if self._given_blocks is not None:
            return self._given_blocks
        assert self.spec is not None
        dims = self.spec.padded(self.rank)
        return tuple(block_numbers(axes, self.mesh) for axes in dims)

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 [devices, rank]: the first element of each device's block."""
        # Dimension-major, so that each dimension is contiguous in memory.
        starts = np.empty((self.rank, *self.mesh.axis_sizes), np.int64)
        for dim, (out, step) in enumerate(zip(starts, self.shard_shape, strict=True)):
            block = None
            if self._given_blocks is not None:
                block = self._given_blocks[dim]
                if block is not None:
                    np.multiply(block, step, out=out)
            elif self.spec is not None and dim < self.spec.rank:
                block = block_numbers(self.spec.dims[dim], self.mesh, step, out)
            if block is None:
                out[...] = 0
        starts.flags.writeable = False
        return starts.reshape(self.rank, self.mesh.size).T

    @cached_property
    def stops(self) -> np.ndarray:
        """int64 [devices, rank]: one past the last element of each device's block."""
        stops = (self.starts.T + np.array(self.shard_shape, np.int64)[:, None]).T
        stops.flags.writeable = False
        return stops

    def box(self, device_id: int) -> tuple[slice, ...]:
        """The shard index of one device: one slice per dimension, with start and stop.

        Raises:
            MeshError: if the mesh has no such device.
        """
        coords = self.mesh.coordinates(device_id)
        numbers = [0] * self.rank
        if self.spec is None:
            for dim, block in enumerate(self.blocks):
                if block is not None:
                    numbers[dim] = int(block[coords])
        else:
            # Don't create arrays for all devices: a mesh may have a million.
            for dim, axes in enumerate(self.spec.dims):
                for axis in axes:
                    at = self.mesh.positions[axis]
                    size = self.mesh.axis_sizes[at]
                    numbers[dim] = numbers[dim] * size + coords[at]
        # Pictures need start and stop as numbers, not None.
        pairs = zip(numbers, self.shard_shape, strict=True)
        return tuple(slice(n * step, (n + 1) * step) for n, step in pairs)

    def indices(self) -> dict[int, tuple[slice, ...]]:
        """Device id -> slices, as in JAX: `slice(None)` for an unsplit dimension.

        Equal to `NamedSharding.devices_indices_map`, with ids instead of devices.
        """
        columns: list[list[slice]] = []
        for count, step, block in zip(
            self.block_counts, self.shard_shape, self.blocks, strict=True
        ):
            if count == 1 or block is None:
                columns.append([slice(None)] * self.mesh.size)
                continue
            slices = [slice(i * step, (i + 1) * step) for i in range(count)]
            numbers = np.broadcast_to(block, self.mesh.axis_sizes).reshape(-1)
            columns.append([slices[i] for i in numbers.tolist()])
        ids = self.device_ids.tolist()
        if not columns:
            return dict.fromkeys(ids, ())  # a scalar; zip(*[]) would have no rows
        return dict(zip(ids, zip(*columns, strict=True), strict=True))

    @property
    def num_blocks(self) -> int:
        """The number of blocks, including any that no device holds."""
        return math.prod(self.block_counts)

    @cached_property
    def groups(self) -> np.ndarray:
        """int64 [devices]: the row-major number of the block each device holds."""
        number = np.zeros((1,) * len(self.mesh.axis_sizes), np.int64)
        for count, block in zip(self.block_counts, self.blocks, strict=True):
            number = number * count
            if block is not None:
                number = number + block
        groups = np.broadcast_to(number, self.mesh.device_ids.shape).reshape(-1)
        groups.flags.writeable = False
        return groups

    @property
    def group_strides(self) -> tuple[int, ...] | None:
        """For each mesh axis, the step of `groups` to the next device; None without a spec.

        Reshaped to the mesh, `groups` is the sum of `stride * coordinate` over the mesh
        axes, so one number per axis replaces one number per device.
        """
        if self.spec is None:
            return None
        strides = dict.fromkeys(self.mesh.axis_names, 0)
        step = 1
        # Block numbers are row-major: the last axis of the last dimension has stride 1.
        for axis in reversed(self.spec.axes):
            strides[axis] = step
            step *= self.mesh.shape[axis]
        return tuple(strides.values())

    @property
    def replicas(self) -> int:
        """The number of devices that hold each block."""
        return max(1, self.mesh.size // self.num_blocks)

    @cached_property
    def replica_indices(self) -> np.ndarray:
        """int64 [devices]: the number of earlier devices that hold the same block."""
        # A stable sort by block puts the devices of a block together, in mesh order.
        order = np.argsort(self.groups, kind="stable")
        sorted_groups = self.groups[order]
        first = np.flatnonzero(np.r_[True, sorted_groups[1:] != sorted_groups[:-1]])
        sizes = np.diff(np.r_[first, len(order)])
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order)) - np.repeat(first, sizes)
        return ranks

    def holders(self, group: int) -> np.ndarray:
        """int64: the ids of the devices that hold one block, in mesh order.

        Raises:
            LayoutError: for a block number that is not a whole number.
        """
        number = check_size(group, "A block number", LayoutError)
        return self.device_ids[self.groups == number]

    @property
    def bytes_per_device(self) -> int:
        """The size of each device's block, in bytes."""
        return size_in_bytes(math.prod(self.shard_shape), self.dtype)

    def __repr__(self) -> str:
        spec = self.spec or "other blocks"
        array = f"{self.dtype}{list(self.shape)} as {spec}"
        blocks = f"{plural(self.num_blocks, 'block')} of {list(self.shard_shape)}"
        replicas = plural(self.replicas, "replica")
        return f"Layout({array} on {self.mesh}: {blocks}, {replicas})"


def lay_out(
    shape: Sequence[int] | str, spec: Spec, mesh: MeshSpec, dtype: object = "float32"
) -> Layout:
    """Lays out an array of `shape`, split over `mesh` by `spec`.

    An UNCONSTRAINED dimension counts as unsplit, as in JAX.

    Raises:
        LayoutError: if the array cannot be split evenly.
        SpecError: if the spec does not fit the mesh.
    """
    return lay_out_parsed(read_shape(shape), spec, mesh, dtype_name(dtype))


def lay_out_parsed(
    sizes: tuple[int, ...], spec: Spec, mesh: MeshSpec, dtype: str
) -> Layout:
    """Like `lay_out`, for a shape and a dtype that are already validated."""
    if problem := rank_problem(spec, len(sizes)):
        raise LayoutError(str(problem))
    spec.check(mesh)
    if "Manual" in mesh.axis_types:
        _check_manual(spec, mesh)
    counts, shard = [1] * len(sizes), list(sizes)
    for dim, axes in enumerate(spec.dims):
        if not axes:
            continue
        parts = math.prod([mesh.shape[a] for a in axes])
        counts[dim] = parts
        shard[dim], remainder = divmod(sizes[dim], parts)
        if remainder:
            raise next(layout_errors(sizes, spec, mesh))[1]
    return Layout(sizes, dtype, mesh, spec, tuple(counts), tuple(shard))


def layout_errors(
    sizes: tuple[int, ...], spec: Spec, mesh: MeshSpec
) -> Iterator[tuple[int, ShardvizError]]:
    """Finds the dimensions that a spec of the array's rank cannot split.

    Yields:
        A dimension, and the error.

    >>> mesh = MeshSpec(("data", "model"), (4, 4))
    >>> spec = Spec.parse("data, model")
    >>> [dim for dim, _ in layout_errors((510, 8190), spec, mesh)]
    [0, 1]
    """
    yield from spec.axis_errors(mesh)
    free = tuple(a for a in mesh.axis_names if a not in spec.axes)
    for dim, axes in enumerate(spec.dims):
        misfit = Misfit.find(sizes[dim], axes, mesh, free)
        if misfit is not None:
            yield dim, LayoutError(f"Dimension {dim}: {misfit}")


def layout_from_indices(
    shape: Sequence[int],
    dtype: object,
    indices: Mapping[int, tuple[slice, ...]],
    mesh: MeshSpec | None = None,
) -> Layout:
    """Creates a Layout from slices by device id, which every jax Sharding provides.

    Raises:
        LayoutError: if the blocks differ in shape.

    >>> layout_from_indices((4,), "int8", {7: (slice(0, 2),), 5: (slice(2, 4),)}).box(5)
    (slice(2, 4, None),)
    """
    sizes, ids = read_shape(shape), list(indices)
    bounds = np.empty((len(ids), len(sizes), 2), np.int64)
    for row, device in zip(bounds, ids, strict=True):
        for dim, (part, size) in enumerate(zip(indices[device], sizes, strict=True)):
            row[dim] = part.indices(size)[:2]
    lengths = bounds[..., 1] - bounds[..., 0]
    if len(ids) and (lengths != lengths[0]).any():
        raise LayoutError(
            f"The blocks of this sharding differ in shape: {shown(lengths.tolist())}."
        )
    shard = sizes
    if ids:
        shard = tuple(lengths[0].tolist())
    # Without a mesh, use one axis over the devices in the sharding's order.
    if mesh is None:
        mesh = MeshSpec(("device",), (len(ids),), (), np.array(ids), concrete=True)
    counts: list[int] = []
    blocks: list[np.ndarray | None] = []
    for dim, step in enumerate(shard):
        count = 1
        if step:  # a dimension of size 0 has blocks of size 0
            count = -(-sizes[dim] // step)
        counts.append(count)
        number = None
        if count > 1:
            number = (bounds[:, dim, 0] // step).reshape(mesh.axis_sizes)
        blocks.append(number)
    dtype = dtype_name(dtype)
    return Layout(sizes, dtype, mesh, None, tuple(counts), shard, tuple(blocks))
