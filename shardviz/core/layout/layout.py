"""lay_out() -> Layout: which shard of an array each device holds.

The block number of a dimension is a mixed-radix number: split over axes `(a, b)` of
sizes `A, B`, a device at mesh coordinates `(i, j)` holds block `i * B + j`. So it grows
by a constant stride along every mesh axis, and all arrays here broadcast to the mesh.
Checked against `jax.sharding.NamedSharding.devices_indices_map` in `tests/layout`.

Nothing of the size of the mesh is made before it is needed.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.display import Displayed, Fact
from shardviz.core.errors import LayoutError
from shardviz.core.format import listed, plural, shown
from shardviz.core.layout.array_spec import dtype_name, read_shape, size_in_bytes
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import check_size
from shardviz.core.layout.partition_spec import Spec, rank_problem


@dataclass(frozen=True)
class Misfit(Fact):
    """A dimension of `size` elements that does not divide into `parts` equal blocks.

    Attributes:
        size: elements of the dimension.
        axes: the mesh axes that would split it; `()` where it is not about a mesh.
        parts: into how many blocks.
        other_axes: mesh axes over which it would divide.

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
        """The misfit of `size` over `axes`, or None where it divides.

        Args:
            free: the other axes that may be offered; by default all of the mesh.
        """
        parts = math.prod(mesh.shape.get(a, 1) for a in axes)
        if size % parts == 0:
            return None
        fits = []
        for axis in mesh.axis_names if free is None else free:
            count = mesh.shape[axis]
            if axis not in axes and count > 1 and size % count == 0:
                fits.append(axis)
        return Misfit(size, axes, parts, tuple(fits))

    @property
    def remainder(self) -> int:
        """What is left over after equal blocks."""
        return self.size % self.parts

    @property
    def sizes(self) -> tuple[int, ...]:
        """The nearest sizes that divide: below (where it is not 0) and above."""
        below = self.size - self.remainder
        return tuple(s for s in (below, below + self.parts) if s)

    @property
    def padding(self) -> int:
        """How many elements of padding make it divide."""
        return -self.size % self.parts


#: From this many devices on, copying what is written by doubling is faster than a
#: broadcast sum.
LARGE = 1 << 15


def strides(axes: tuple[str, ...], mesh: MeshSpec) -> dict[int, int]:
    """Mesh position of an axis to the stride of the block number along it; size 1 left
    out.

    >>> strides(("b", "a"), MeshSpec(("a", "b", "c"), (2, 3, 4)))
    {0: 1, 1: 2}
    """
    found: dict[int, int] = {}
    stride = 1
    for axis in reversed(axes):
        size = mesh.shape[axis]
        if size > 1:
            found[mesh.positions[axis]] = stride
            stride *= size
    return found


def block_numbers(axes: tuple[str, ...], mesh: MeshSpec) -> np.ndarray | None:
    """int64, of length 1 along axes that do not split; None where nothing does.

    >>> block_numbers(("b", "a"), MeshSpec(("a", "b"), (2, 3))).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    lanes = [_lane(mesh, at, stride) for at, stride in strides(axes, mesh).items()]
    return functools.reduce(operator.add, lanes) if lanes else None


def _lane(mesh: MeshSpec, at: int, stride: int) -> np.ndarray:
    lane = mesh.lane(mesh.axis_names[at])
    return lane if stride == 1 else lane * stride


def write_bounds(
    starts: np.ndarray,
    stops: np.ndarray,
    axes: tuple[str, ...],
    step: int,
    mesh: MeshSpec,
) -> None:
    """Writes `number * step` and `number * step + step` into two arrays in mesh shape."""
    if len(axes) > 1 and mesh.size >= LARGE:
        along = [0] * len(mesh.axis_sizes)
        for at, stride in strides(axes, mesh).items():
            along[at] = stride * step
        _write_progression(starts, along)
        np.add(starts, step, out=stops)
        return
    number = block_numbers(axes, mesh) if axes else None
    first = 0 if number is None else number * step
    starts[...] = first
    stops[...] = first + step


def _write_progression(out: np.ndarray, along: list[int]) -> None:
    """Fills `out` with the sum of `along[axis] * index`, doubling along one axis after
    the other.

    Each doubling is one long addition of one number, where numpy is near a bare copy;
    adding rows to columns is four times slower.
    """
    out[(0,) * out.ndim] = 0
    before: tuple[slice, ...] = (slice(0, 1),) * out.ndim
    for axis in reversed(range(out.ndim)):
        lead, done = before[:axis], 1
        while done < out.shape[axis]:
            more = min(done, out.shape[axis] - done)
            written = out[(*lead, slice(0, more))]
            wanted = out[(*lead, slice(done, done + more))]
            np.add(written, along[axis] * done, out=wanted)
            done += more


def checked_window(window: Any, mesh: MeshSpec) -> tuple[slice, ...]:
    """A window on a mesh: one slice per axis, with start and stop.

    Raises:
        LayoutError: for anything else.
    """
    slices = []
    try:
        for part, size in zip(window, mesh.axis_sizes, strict=True):
            slices.append(slice(*part.indices(size)))
    except (AttributeError, TypeError, ValueError):
        slices = []
    if not slices or any(s.step < 1 for s in slices):
        raise LayoutError(
            f"A window is a tuple of ascending slices, one per mesh axis ({mesh}); got"
            f" {shown(window)}."
        )
    return tuple(slices)


def check_manual(spec: Spec, mesh: MeshSpec) -> None:
    """Refuses a Manual axis beside an axis that splits nothing, as NamedSharding does.

    Raises:
        LayoutError: naming both.
    """
    # NamedSharding fails here in an assertion: it knows no devices that are replicas of
    # each other beside devices that a shard_map keeps apart.
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
    """Which shard of one array each device holds. Made by `shardviz.layout`.

    Attributes:
        shape: the global shape, in elements.
        dtype: the name of the element type.
        mesh: the mesh it is laid out on.
        spec: the spec it was made from; None where it was made from another kind of
            sharding.
        block_counts: into how many blocks each dimension is split.
        shard_shape: the shape of every device's block.
        request: the Request that it answers, with the array's name and its rules; None
            where it was made from a shape or a live array.

    >>> layout = lay_out((8, 4), Spec.parse("data, model"), MeshSpec(("data", "model"), (4, 2)))
    >>> layout.shard_shape, layout.replicas, layout.box(3)
    ((2, 2), 1, (slice(2, 4, None), slice(2, 4, None)))
    """

    shape: tuple[int, ...]
    dtype: str
    mesh: MeshSpec
    spec: Spec | None
    block_counts: tuple[int, ...]
    shard_shape: tuple[int, ...]
    # Per dimension the block number of every device, broadcastable to the mesh shape;
    # None: all 0.
    _given_blocks: tuple[np.ndarray | None, ...] | None = None
    request: Any = field(default=None, compare=False, repr=False)

    @property
    def rank(self) -> int:
        """How many dimensions the array has."""
        return len(self.shape)

    @property
    def device_ids(self) -> np.ndarray:
        """int64 [devices]: the ids in mesh order."""
        return self.mesh.device_ids.reshape(-1)

    @cached_property
    def blocks(self) -> tuple[np.ndarray | None, ...]:
        """Per dimension the block number of every device; None where it is not split.

        Each array has the rank of the mesh and broadcasts to its shape: axes that do
        not split the dimension have length 1.
        """
        if self._given_blocks is not None:
            return self._given_blocks
        assert self.spec is not None
        return tuple(
            block_numbers(axes, self.mesh) for axes in self.spec.padded(self.rank)
        )

    @cached_property
    def starts(self) -> np.ndarray:
        """int64 [devices, rank]: the first element of each device's block, in mesh
        order.
        """
        return self._materialised[0]

    @cached_property
    def stops(self) -> np.ndarray:
        """int64 [devices, rank]: one past the last element of each device's block."""
        return self._materialised[1]

    @cached_property
    def _materialised(self) -> tuple[np.ndarray, np.ndarray]:
        # Stored dimension-major, so that each dimension is one contiguous pass.
        bounds = np.empty((2, self.rank, self.mesh.size), np.int64)
        self._write(*bounds.reshape(2, self.rank, *self.mesh.axis_sizes))
        bounds.flags.writeable = False
        return bounds[0].T, bounds[1].T

    def write_indices(self, starts: np.ndarray, stops: np.ndarray) -> None:
        """Writes the bounds of every shard into the caller's arrays, int64 [devices,
        rank].

        Fastest where each dimension is contiguous (Fortran order), as `starts` itself
        is.

        Raises:
            LayoutError: if they have another shape.
        """
        wanted = (self.mesh.size, self.rank)
        shapes = tuple(getattr(a, "shape", None) or shown(a) for a in (starts, stops))
        if shapes != (wanted, wanted):
            raise LayoutError(
                f"The bounds need two arrays of shape {wanted}; got {shapes[0]} and {shapes[1]}."
            )
        # Splitting the device axis into mesh axes is always a view, whatever the
        # strides.
        in_mesh = (self.rank, *self.mesh.axis_sizes)
        self._write(starts.T.reshape(in_mesh), stops.T.reshape(in_mesh))

    def _write(self, starts: np.ndarray, stops: np.ndarray) -> None:
        """Writes the bounds of every shard into arrays [rank, *mesh]."""
        if self.spec is not None:
            for dim, axes in enumerate(self.spec.padded(self.rank)):
                step = self.shard_shape[dim]
                write_bounds(starts[dim], stops[dim], axes, step, self.mesh)
            return
        for dim, step in enumerate(self.shard_shape):
            block = self.blocks[dim]
            first = 0 if block is None else block * step
            starts[dim] = first
            stops[dim] = first + step

    def viewport(self, window: tuple[slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Starts and stops of a part of the mesh: int64 [window, rank], at a cost of
        its size.

        Args:
            window: one slice per mesh axis.

        Raises:
            LayoutError: for a window that is no tuple of slices.
        """
        window = checked_window(window, self.mesh)
        cells = self.mesh.device_ids[window].shape
        starts = np.zeros((*cells, self.rank), np.int64)
        for dim, block in enumerate(self.blocks):
            if block is None:
                continue
            part = []
            for length, along in zip(block.shape, window, strict=True):
                # A length of 1 broadcasts: the block is the same all along this axis.
                part.append(slice(None) if length == 1 else along)
            starts[..., dim] = block[tuple(part)] * self.shard_shape[dim]
        return starts, starts + np.asarray(self.shard_shape, np.int64)

    def box(self, device_id: int) -> tuple[slice, ...]:
        """The shard index of one device: one slice per dimension, with start and stop.

        Raises:
            MeshError: if the mesh has no such device.
        """
        slices = []
        numbers = self._numbers_at(self.mesh.coordinates(device_id))
        for number, step in zip(numbers, self.shard_shape, strict=True):
            slices.append(slice(number * step, (number + 1) * step))
        return tuple(slices)

    def _numbers_at(self, coords: tuple[int, ...]) -> list[int]:
        """The block number in each dimension at mesh coordinates."""
        if self.spec is None:
            return [0 if b is None else int(b[coords]) for b in self.blocks]
        mesh, numbers = self.mesh, [0] * self.rank
        for dim, axes in enumerate(self.spec.dims):
            for axis in axes:
                at = mesh.positions[axis]
                numbers[dim] = numbers[dim] * mesh.axis_sizes[at] + coords[at]
        return numbers

    def indices(self) -> dict[int, tuple[slice, ...]]:
        """Device id to slices, as JAX writes them: `slice(None)` for a dimension that
        is not split.

        Equal to `NamedSharding.devices_indices_map`, with ids for devices.
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
        rows = zip(*columns, strict=True) if columns else [()] * self.mesh.size
        return dict(zip(self.device_ids.tolist(), rows, strict=True))

    @property
    def num_blocks(self) -> int:
        """Into how many blocks the array is split, whether or not a device holds each."""
        return math.prod(self.block_counts)

    @cached_property
    def groups(self) -> np.ndarray:
        """int64 [devices]: the row-major number of the block each device holds, in mesh
        order.
        """
        number = np.zeros((1,) * len(self.mesh.axis_sizes), np.int64)
        for count, block in zip(self.block_counts, self.blocks, strict=True):
            number = number * count + (0 if block is None else block)
        groups = np.broadcast_to(number, self.mesh.device_ids.shape).reshape(-1)
        groups.flags.writeable = False
        return groups

    @property
    def group_strides(self) -> tuple[int, ...] | None:
        """Per mesh axis, how much `groups` grows with a step along it; None where
        `spec` is None.

        `groups` in mesh shape is the sum of `stride * coordinate` over the mesh axes,
        so these few numbers replace one number per device.
        """
        if self.spec is None:
            return None
        strides = dict.fromkeys(self.mesh.axis_names, 0)
        step = 1
        for axis in reversed(self.spec.axes):
            strides[axis] = step
            step *= self.mesh.shape[axis]
        return tuple(strides.values())

    @property
    def replicas(self) -> int:
        """How many devices hold each block."""
        return max(1, self.mesh.size // self.num_blocks)

    @cached_property
    def replica_indices(self) -> np.ndarray:
        """int64 [devices]: how many devices before it, in mesh order, hold the same
        block.
        """
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
            LayoutError: for a block number that is no whole number.
        """
        number = check_size(group, "A block number", LayoutError)
        return self.device_ids[self.groups == number]

    @property
    def bytes_per_device(self) -> int:
        """What the array takes on each device, in bytes."""
        return size_in_bytes(math.prod(self.shard_shape), self.dtype)

    def __repr__(self) -> str:
        spec = "blocks of another sharding" if self.spec is None else str(self.spec)
        return (
            f"Layout({self.dtype}{list(self.shape)} as {spec} on {self.mesh}:"
            f" {plural(self.num_blocks, 'block')} of {list(self.shard_shape)},"
            f" {plural(self.replicas, 'replica')})"
        )


def lay_out(
    shape: Sequence[int] | str, spec: Spec, mesh: MeshSpec, dtype: object = "float32"
) -> Layout:
    """The Layout of an array of `shape` split as `spec` says over `mesh`.

    An UNCONSTRAINED dimension is not split, as in JAX: the compiler has yet to decide.

    Raises:
        LayoutError: if the spec is longer than the shape, a dimension does not divide,
            or the mesh has a Manual axis and some axis splits no dimension.
        SpecError: if the spec names axes that the mesh lacks, or one twice.
    """
    return lay_out_parsed(read_shape(shape), spec, mesh, dtype_name(dtype))


def lay_out_parsed(
    sizes: tuple[int, ...], spec: Spec, mesh: MeshSpec, dtype: str
) -> Layout:
    """`lay_out` of a shape and a dtype that an ArraySpec has validated."""
    if problem := rank_problem(spec, len(sizes)):
        raise LayoutError(str(problem))
    spec.check(mesh)
    if "Manual" in mesh.axis_types:
        check_manual(spec, mesh)
    counts, shard = [1] * len(sizes), list(sizes)
    for dim, axes in enumerate(spec.dims):
        if not axes:
            continue
        parts = math.prod([mesh.shape[a] for a in axes])
        counts[dim] = parts
        shard[dim], left = divmod(sizes[dim], parts)
        if left:
            free = tuple(a for a in mesh.axis_names if a not in spec.axes)
            misfit = Misfit.find(sizes[dim], axes, mesh, free)
            assert misfit is not None
            raise LayoutError(f"Dimension {dim}: {misfit}")
    return Layout(sizes, dtype, mesh, spec, tuple(counts), tuple(shard))


def layout_from_indices(
    shape: Sequence[int],
    dtype: object,
    indices: Mapping[int, tuple[slice, ...]],
    mesh: MeshSpec | None = None,
) -> Layout:
    """The Layout of a map from device id to slices, which every jax Sharding has.

    Raises:
        LayoutError: if the blocks are not all of one shape.

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
    shard = tuple(lengths[0].tolist()) if len(ids) else sizes
    if mesh is None:
        mesh = MeshSpec(("device",), (len(ids),), (), np.array(ids), concrete=True)
    counts: list[int] = []
    blocks: list[np.ndarray | None] = []
    for dim, step in enumerate(shard):
        count = -(-sizes[dim] // step) if step else 1
        counts.append(count)
        number = None
        if count > 1:
            number = (bounds[:, dim, 0] // step).reshape(mesh.axis_sizes)
        blocks.append(number)
    dtype = dtype_name(dtype)
    return Layout(sizes, dtype, mesh, None, tuple(counts), shard, tuple(blocks))
