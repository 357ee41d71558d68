"""ShardingSpec: how `jax.pmap` wrote down a sharding, before there were named axes.

Two tuples. The first says for each dimension of the array whether it is whole, chunked or
unstacked; every chunk count and every unstacked dimension is one *sharded axis*, numbered in order.
The second describes the devices as a grid, major to minor: an axis of it walks along one sharded
axis, or holds copies. Checked against index tables of jax 0.4.13 in `tests/layout`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import LayoutError, SpecError, listed, plural, shown
from shardviz.core.layout.array import read_shape
from shardviz.core.layout.blocks import block_numbers
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_checks import MAX_AXES, MAX_DEVICES
from shardviz.core.layout.sharding_parts import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    Unstacked,
)
from shardviz.core.layout.spec import MAX_RANK

Dimension = NoSharding | Chunked | Unstacked
Assignment = ShardedAxis | Replicated


@dataclass(frozen=True, repr=False)
class ShardingSpec(Displayed):
    """A sharding as `jax.pmap` wrote it: per dimension how it is cut, per device axis what for.

    Attributes:
        sharding: one `NoSharding`, `Chunked` or `Unstacked` a dimension; None is `NoSharding`.
        mesh_mapping: one `ShardedAxis` or `Replicated` an axis of the devices, major to minor.

    Raises:
        SpecError: for parts of another kind, or if not every sharded axis is used exactly once.

    >>> spec = ShardingSpec((Chunked([2]), NoSharding()), (Replicated(2), ShardedAxis(0)))
    >>> spec.num_devices, spec.indices((8, 3))[3]
    (4, (slice(4, 8, None), slice(None, None, None)))
    >>> ShardingSpec((Unstacked(2), NoSharding()), (ShardedAxis(0),)).indices((2, 3))
    [(0, slice(None, None, None)), (1, slice(None, None, None))]
    """

    sharding: tuple[Dimension, ...]
    mesh_mapping: tuple[Assignment, ...]

    def __post_init__(self) -> None:
        dims = _entries(self.sharding, "sharding", MAX_RANK)
        axes = _entries(self.mesh_mapping, "mesh_mapping", MAX_AXES)
        dims = tuple(NoSharding() if d is None else d for d in dims)
        for at, dim in enumerate(dims):
            if not isinstance(dim, Dimension):
                raise SpecError(
                    f"Entry {at} of sharding is NoSharding(), Chunked([2]) or Unstacked(2); got"
                    f" {shown(dim)}."
                )
        for at, axis in enumerate(axes):
            if not isinstance(axis, Assignment):
                raise SpecError(
                    f"Entry {at} of mesh_mapping is ShardedAxis(0) or Replicated(2); got"
                    f" {shown(axis)}."
                )
        object.__setattr__(self, "sharding", dims)
        object.__setattr__(self, "mesh_mapping", axes)
        self._check_axes()
        if self.num_devices > MAX_DEVICES:
            raise SpecError(
                f"{shown(self, 100)} asks for {self.num_devices:,} devices; at most"
                f" {MAX_DEVICES:,}, please."
            )

    def _check_axes(self) -> None:
        known, used = range(len(self.sharded_axes)), [0] * len(self.sharded_axes)
        for axis in self.mesh_mapping:
            if not isinstance(axis, ShardedAxis):
                continue
            if axis.axis not in known:
                raise SpecError(
                    f"mesh_mapping speaks of sharded axis {shown(axis.axis)}, and the sharding has"
                    f" {self._axes_in_words()}."
                )
            used[axis.axis] += 1
            if used[axis.axis] > 1:
                raise SpecError(
                    f"mesh_mapping uses sharded axis {axis.axis} twice; each is used exactly once."
                    " Use Replicated for devices that hold the same."
                )
        missing = [i for i in known if not used[i]]
        if missing:
            raise SpecError(
                f"No entry of mesh_mapping uses sharded axis {listed(missing)}, and the sharding"
                f" has {self._axes_in_words()}; each is used exactly once. Add"
                f" {', '.join(f'ShardedAxis({i})' for i in missing[:4])}."
            )

    def _axes_in_words(self) -> str:
        sizes = self.sharded_axes
        if not sizes:
            return "none: no dimension is Chunked or Unstacked"
        if len(sizes) == 1:
            return f"one: 0, of size {sizes[0]}"
        return f"{len(sizes)}: 0 to {len(sizes) - 1}, of sizes {listed(sizes)}"

    @property
    def rank(self) -> int:
        """How many dimensions the array has."""
        return len(self.sharding)

    @cached_property
    def sharded_axes(self) -> tuple[int, ...]:
        """The size of every sharded axis: chunk counts and unstacked dimensions, in order."""
        return tuple(n for dim in self.sharding for n in dim.counts)

    @cached_property
    def mesh_shape(self) -> tuple[int, ...]:
        """The grid of the devices, one size an entry of `mesh_mapping`.

        >>> ShardingSpec((Chunked([4]),), (Replicated(2), ShardedAxis(0))).mesh_shape
        (2, 4)
        """
        return tuple(
            self.sharded_axes[a.axis] if isinstance(a, ShardedAxis) else a.replicas
            for a in self.mesh_mapping
        )

    @property
    def num_devices(self) -> int:
        """How many devices it speaks of."""
        return math.prod(self.mesh_shape)

    @property
    def unstacked(self) -> tuple[int, ...]:
        """The dimensions that are unstacked, which no device has any more."""
        return tuple(d for d, dim in enumerate(self.sharding) if isinstance(dim, Unstacked))

    @cached_property
    def mesh(self) -> MeshSpec:
        """The grid of the devices with names: `axis0` walks along sharded axis 0, `replica0`, …"""
        names, replicas = [], 0
        for axis in self.mesh_mapping:
            if isinstance(axis, ShardedAxis):
                names.append(f"axis{axis.axis}")
            else:
                names.append(f"replica{replicas}")
                replicas += 1
        return MeshSpec(tuple(names) or ("device",), self.mesh_shape or (1,))

    @cached_property
    def axis_names(self) -> tuple[tuple[str, ...], ...]:
        """Per dimension the axes of `mesh` that cut it, major to minor."""
        found, first = [], 0
        for dim in self.sharding:
            found.append(tuple(f"axis{i}" for i in range(first, first + len(dim.counts))))
            first += len(dim.counts)
        return tuple(found)

    def check(self, shape: Sequence[int] | str) -> tuple[int, ...]:
        """The shape as numbers, if the spec fits it.

        Raises:
            LayoutError: if the rank differs, chunks do not come out equal, or an unstacked
                dimension has another size.
        """
        sizes = read_shape(shape)
        if len(sizes) != self.rank:
            raise LayoutError(
                f"The array has {plural(len(sizes), 'dimension')} and {shown(self, 100)} speaks of"
                f" {self.rank}. Give one entry a dimension, NoSharding() for one that stays whole."
            )
        for at, (size, dim) in enumerate(zip(sizes, self.sharding, strict=True)):
            if isinstance(dim, Unstacked) and dim.size != size:
                raise LayoutError(
                    f"Dimension {at} is {dim}, one index a device, and has {size:,}. Write"
                    f" {f'Unstacked({size})' if size else 'NoSharding()'}."
                )
            chunks = math.prod(dim.counts)
            if size % chunks:
                below, above = size - size % chunks, size + -size % chunks
                fits = f"{below:,} and {above:,}" if below else f"{above:,}"
                raise LayoutError(
                    f"Dimension {at}: {size:,} does not divide into {chunks:,} chunks ({dim}):"
                    f" {size % chunks:,} left over. Sizes that do: {fits}; or pad by"
                    f" {above - size:,}."
                )
        return sizes

    def indices(self, shape: Sequence[int] | str) -> list[tuple[int | slice, ...]]:
        """What every device holds of an array, in device order: one tuple a device.

        An entry is a slice, or for an unstacked dimension the index. A dimension that is whole is
        `slice(None)`. (Beside an unstacked dimension, `Chunked([1])` has both ends given, as it
        had in `pmap`.)

        Args:
            shape: the global shape, in elements.

        Raises:
            LayoutError: if the shape does not fit.

        >>> spec = ShardingSpec((Chunked([2]),), (ShardedAxis(0), Replicated(2)))
        >>> [i[0].start for i in spec.indices((4,))]
        [0, 0, 2, 2]
        """
        sizes = self.check(shape)
        columns = [self._column(dim, size) for dim, size in enumerate(sizes)]
        if not columns:
            return [() for _ in range(self.num_devices)]
        return list(zip(*columns, strict=True))

    def _column(self, dim: int, size: int) -> list[Any]:
        part, count = self.sharding[dim], math.prod(self.sharding[dim].counts)
        cuts: Sequence[int | slice]
        if isinstance(part, Unstacked):
            cuts = range(count)
        elif isinstance(part, NoSharding) or (count == 1 and not self.unstacked):
            cuts = [slice(None)]
        else:
            step = size // count
            cuts = [slice(i * step, (i + 1) * step) for i in range(count)]
        numbers = block_numbers(self.axis_names[dim], self.mesh)
        if numbers is None:
            return [cuts[0]] * self.num_devices
        spread = np.broadcast_to(numbers, self.mesh.axis_sizes)
        return [cuts[i] for i in spread.reshape(-1).tolist()]

    def __repr__(self) -> str:
        return f"ShardingSpec({self.sharding}, {self.mesh_mapping})"


def _entries(value: Any, what: str, limit: int) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise SpecError(f"{what} is a tuple, with one entry each; got {shown(value)}.")
    if len(value) > limit:
        raise SpecError(f"{what} has at most {limit} entries; got {len(value):,}.")
    return tuple(value)
