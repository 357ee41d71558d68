"""ShardingSpec: the sharding type of `jax.pmap`, from before named mesh axes.

The classes follow `jax.interpreters.pxla` and `pmap_lib` up to jax 0.4, including their
`repr`. `tests/layout` compares them with index tables from jax 0.4.13.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.base.array_spec import dtype_name, read_shape
from shardviz.base.display import Displayed
from shardviz.base.errors import LayoutError, SpecError
from shardviz.base.format import plural, shown
from shardviz.base.layout import Layout, Misfit, block_numbers, lay_out
from shardviz.base.mesh import MAX_AXES, MAX_DEVICES, MeshSpec
from shardviz.base.parse import check_size
from shardviz.base.partition_spec import MAX_RANK, Spec


@dataclass(frozen=True, slots=True)
class NoSharding:
    """A dimension that is not split.

    >>> from shardviz import legacy
    >>> legacy.NoSharding(), legacy.NoSharding() == legacy.NoSharding()
    (NoSharding(), True)
    """

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of this dimension's sharded axes: none."""
        return ()


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Chunked:
    """A dimension split into equal chunks, each of which may be split again.

    Every number creates one sharded axis, major to minor. The numbers may be a list or
    separate arguments, as in the `repr`.

    Raises:
        SpecError: if a number is not a whole number of at least 1.

    >>> from shardviz import legacy
    >>> legacy.Chunked([2, 4]), legacy.Chunked(2, 4) == legacy.Chunked([2, 4])
    (Chunked(2,4), True)
    """

    chunks: tuple[int, ...]

    def __init__(self, *chunks: int | Sequence[int]) -> None:
        numbers: Any = chunks
        if len(chunks) == 1 and isinstance(chunks[0], (Sequence, np.ndarray)):
            # A string is a sequence too, but its letters are not chunk counts.
            if not isinstance(chunks[0], str):
                numbers = chunks[0]
        counts = tuple(_count(c, "number of chunks") for c in numbers)
        object.__setattr__(self, "chunks", counts)

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of this dimension's sharded axes: the chunk counts."""
        return self.chunks

    def __repr__(self) -> str:
        return f"Chunked({','.join(map(str, self.chunks))})"


@dataclass(frozen=True, slots=True, repr=False)
class Unstacked:
    """A dimension with one index per device; local arrays lack this dimension.

    Raises:
        SpecError: if the size is not a whole number of at least 1.

    >>> from shardviz import legacy
    >>> legacy.Unstacked(4)
    Unstacked(4)
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _count(self.size, "size of Unstacked"))

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of this dimension's sharded axes: the dimension's size."""
        return (self.size,)

    def __repr__(self) -> str:
        return f"Unstacked({self.size})"


@dataclass(frozen=True, slots=True)
class ShardedAxis:
    """A device axis along which devices hold different parts of one sharded axis.

    Sharded axes are counted from 0, across chunks and unstacked dimensions.

    Raises:
        SpecError: if the number is not a whole number of at least 0.

    >>> from shardviz import legacy
    >>> legacy.ShardedAxis(0)
    ShardedAxis(axis=0)
    """

    axis: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "axis", _count(self.axis, "axis number", 0))


@dataclass(frozen=True, slots=True)
class Replicated:
    """A device axis along which all devices hold the same part.

    Raises:
        SpecError: if the number is not a whole number of at least 1.

    >>> from shardviz import legacy
    >>> legacy.Replicated(2)
    Replicated(replicas=2)
    """

    replicas: int

    def __post_init__(self) -> None:
        count = _count(self.replicas, "number of replicas")
        object.__setattr__(self, "replicas", count)


def _count(value: object, name: str, least: int = 1) -> int:
    count = check_size(value, f"The {name}", SpecError)
    # Sharded axes are device axes too, so MAX_DEVICES also limits their size.
    if not least <= count <= MAX_DEVICES:
        raise SpecError(
            f"The {name} is between {least} and {MAX_DEVICES:,}; got {shown(count)}."
        )
    return count


Dimension = NoSharding | Chunked | Unstacked
Assignment = ShardedAxis | Replicated


@dataclass(frozen=True, repr=False)
class ShardingSpec(Displayed):
    """A sharding in the notation of `jax.pmap`.

    Attributes:
        sharding: one `NoSharding`, `Chunked` or `Unstacked` per dimension; None is
            `NoSharding`.
        mesh_mapping: one `ShardedAxis` or `Replicated` per device axis, major to minor.

    Raises:
        SpecError: if an entry has the wrong type, or if a sharded axis isn't used
            exactly once.

    >>> from shardviz import legacy
    >>> mapping = legacy.Replicated(2), legacy.ShardedAxis(0)
    >>> spec = legacy.ShardingSpec((legacy.Chunked([2]), legacy.NoSharding()), mapping)
    >>> spec.num_devices, spec.indices((8, 3))[3]
    (4, (slice(4, 8, None), slice(None, None, None)))
    """

    sharding: tuple[Dimension, ...]
    mesh_mapping: tuple[Assignment, ...]

    def __post_init__(self) -> None:
        dims = _entries(self.sharding, "sharding", MAX_RANK, (Dimension, type(None)))
        # JAX's own code also used None for NoSharding.
        dims = tuple(NoSharding() if d is None else d for d in dims)
        axes = _entries(self.mesh_mapping, "mesh_mapping", MAX_AXES, Assignment)
        object.__setattr__(self, "sharding", dims)
        object.__setattr__(self, "mesh_mapping", axes)
        used = sorted(a.axis for a in axes if isinstance(a, ShardedAxis))
        if used != list(range(len(self.sharded_axes))):
            raise SpecError(
                "mesh_mapping uses each sharded axis exactly once; those of the sharding"
                f" have sizes {list(self.sharded_axes)}, and it uses {used}. Use"
                " Replicated for devices that hold the same."
            )
        if self.num_devices > MAX_DEVICES:
            raise SpecError(
                f"{shown(self, 100)} asks for {self.num_devices:,} devices; at most"
                f" {MAX_DEVICES:,} are allowed."
            )

    def _draw_(self, title: str | None = None) -> Any:
        """Draws one tile per dimension."""
        from shardviz.axis_rules.draw.rules import draw_spec

        if title is None:
            title = str(self)
        return draw_spec(Spec(self.axis_names), title)

    def _text_(self) -> str:
        """Returns the spec as text, with its devices as a grid."""
        grid = " × ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        return f"{self}\ndevices: {grid}"

    @cached_property
    def sharded_axes(self) -> tuple[int, ...]:
        """The size of every sharded axis: chunk counts and unstacked dimensions."""
        sizes: list[int] = []
        for dim in self.sharding:
            sizes += dim.counts
        return tuple(sizes)

    @cached_property
    def mesh_shape(self) -> tuple[int, ...]:
        """The device grid, with one size for each entry of `mesh_mapping`.

        >>> from shardviz import legacy
        >>> axes = (legacy.Replicated(2), legacy.ShardedAxis(0))
        >>> legacy.ShardingSpec((legacy.Chunked([4]),), axes).mesh_shape
        (2, 4)
        """
        sizes = []
        for axis in self.mesh_mapping:
            if isinstance(axis, ShardedAxis):
                sizes.append(self.sharded_axes[axis.axis])
            else:
                sizes.append(axis.replicas)
        return tuple(sizes)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return math.prod(self.mesh_shape)

    @property
    def unstacked(self) -> tuple[int, ...]:
        """The positions of the unstacked dimensions."""
        unstacked = []
        for number, dim in enumerate(self.sharding):
            if isinstance(dim, Unstacked):
                unstacked.append(number)
        return tuple(unstacked)

    @cached_property
    def mesh(self) -> MeshSpec:
        """The devices as a mesh: `axis0` for sharded axis 0, `replica0` for copies."""
        names, replicas = [], 0
        for axis in self.mesh_mapping:
            if isinstance(axis, ShardedAxis):
                names.append(f"axis{axis.axis}")
            else:
                names.append(f"replica{replicas}")
                replicas += 1
        # A mesh needs at least one axis, so a single device gets one.
        return MeshSpec(tuple(names) or ("device",), self.mesh_shape or (1,))

    @cached_property
    def axis_names(self) -> tuple[tuple[str, ...], ...]:
        """For each dimension, the axes of `mesh` that split it, major to minor."""
        # Sharded axes are numbered across all dimensions.
        names, first = [], 0
        for dim in self.sharding:
            numbers = range(first, first + len(dim.counts))
            names.append(tuple(f"axis{i}" for i in numbers))
            first += len(dim.counts)
        return tuple(names)

    def check(self, shape: Sequence[int] | str) -> tuple[int, ...]:
        """Returns a shape as numbers, if the spec fits it.

        Raises:
            LayoutError: if the rank differs, chunks would be unequal, or an unstacked
                dimension has another size.
        """
        sizes = read_shape(shape)
        if len(sizes) != len(self.sharding):
            raise LayoutError(
                f"The array has {plural(len(sizes), 'dimension')} and"
                f" {shown(self, 100)} is for {len(self.sharding)}. Give one entry for each"
                " dimension, NoSharding() for one that is not split."
            )
        for at, (dim, size) in enumerate(zip(self.sharding, sizes, strict=True)):
            if isinstance(dim, Unstacked) and dim.size != size:
                raise LayoutError(
                    f"Dimension {at} is {dim}, one index per device, and has {size:,}."
                )
            chunks = math.prod(dim.counts)
            if size % chunks:
                raise LayoutError(f"Dimension {at} ({dim}): {Misfit(size, (), chunks)}")
        return sizes

    def indices(self, shape: Sequence[int] | str) -> list[tuple[int | slice, ...]]:
        """Returns each device's index into an array, one tuple per device.

        An entry is a slice, or an integer for an unstacked dimension. A dimension that
        is not split is `slice(None)`. (As in `pmap`, `Chunked([1])` has an explicit
        start and stop if another dimension is unstacked.)

        Args:
            shape: the global shape, in elements.

        Raises:
            LayoutError: if the shape does not fit.

        >>> from shardviz import legacy
        >>> axes = (legacy.ShardedAxis(0), legacy.Replicated(2))
        >>> spec = legacy.ShardingSpec((legacy.Chunked([2]),), axes)
        >>> [i[0].start for i in spec.indices((4,))]
        [0, 0, 2, 2]
        """
        sizes = self.check(shape)
        if not sizes:
            return [()] * self.num_devices
        columns = [self._column(dim, size) for dim, size in enumerate(sizes)]
        return list(zip(*columns, strict=True))

    def _column(self, dim: int, size: int) -> list[Any]:
        """Returns each device's index into one dimension."""
        part, count = self.sharding[dim], math.prod(self.sharding[dim].counts)
        blocks: Sequence[int | slice]
        # As in `pmap`: an int for an unstacked dimension, `slice(None)` for an unsplit
        # one, and slices with start and stop for chunks.
        if isinstance(part, Unstacked):
            blocks = range(count)
        elif isinstance(part, NoSharding) or (count == 1 and not self.unstacked):
            blocks = [slice(None)]
        else:
            step = size // count
            blocks = [slice(i * step, (i + 1) * step) for i in range(count)]
        numbers = block_numbers(self.axis_names[dim], self.mesh)
        if numbers is None:  # no axis splits the dimension
            return [blocks[0]] * self.num_devices
        per_device = np.broadcast_to(numbers, self.mesh.axis_sizes).reshape(-1)
        return [blocks[i] for i in per_device.tolist()]

    def __repr__(self) -> str:
        return f"ShardingSpec({self.sharding}, {self.mesh_mapping})"


def _entries(value: object, field: str, limit: int, kinds: Any) -> tuple[Any, ...]:
    # A string is a sequence too, but rejecting its letters one by one would be
    # confusing.
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SpecError(f"{field} is a tuple; got {shown(value)}.")
    if len(value) > limit:
        raise SpecError(f"{field} has at most {limit} entries; got {len(value):,}.")
    for at, entry in enumerate(value):
        if not isinstance(entry, kinds):
            raise SpecError(
                f"Entry {at} of {field} is {shown(entry)}. A dimension is NoSharding(),"
                " Chunked([2]) or Unstacked(2), an axis ShardedAxis(0) or Replicated(2)."
            )
    return tuple(value)


def sharding_spec_layout(
    spec: ShardingSpec,
    shape: Sequence[int] | str,
    dtype: object = "float32",
    device_ids: Any = None,
) -> Layout:
    """Returns the Layout of an array under a ShardingSpec.

    A Layout describes the global array. A device's block therefore has one element
    along an unstacked dimension, although the device's local array lacks that
    dimension.

    Raises:
        LayoutError: if the shape does not fit, or the number of `device_ids` is wrong.

    >>> mapping = Replicated(2), ShardedAxis(0)
    >>> spec = ShardingSpec((Chunked([2]), NoSharding()), mapping)
    >>> sharding_spec_layout(spec, (8, 3)).box(3)
    (slice(4, 8, None), slice(0, 3, None))
    """
    sizes, mesh = spec.check(shape), spec.mesh
    # Without ids, the devices are 0, 1, 2, ... as in the spec's mesh.
    if device_ids is not None:
        ids = np.asarray(device_ids).reshape(-1)
        if ids.size != spec.num_devices:
            raise LayoutError(
                f"The ShardingSpec is for {plural(spec.num_devices, 'device')}; got"
                f" {ids.size:,} ids. Give one id for each device, in order."
            )
        names, grid = mesh.axis_names, mesh.axis_sizes
        mesh = MeshSpec(names, grid, (), ids.reshape(grid), concrete=True)
    if not spec.unstacked:
        return lay_out(sizes, Spec(spec.axis_names), mesh, dtype)
    counts = tuple(math.prod(dim.counts) for dim in spec.sharding)
    shard = tuple(size // count for size, count in zip(sizes, counts, strict=True))
    # A Spec cannot express unstacked dimensions, so we pass block numbers.
    blocks: list[np.ndarray | None] = []
    for axes in spec.axis_names:
        numbers = block_numbers(axes, mesh)
        if numbers is not None:
            numbers = np.broadcast_to(numbers, mesh.axis_sizes)
        blocks.append(numbers)
    return Layout(sizes, dtype_name(dtype), mesh, None, counts, shard, tuple(blocks))
