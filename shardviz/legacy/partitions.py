"""Integer partitions: the number of blocks along each dimension.

Devices hold the blocks in row-major order, one block per device. The product of the
numbers is therefore the number of devices. None means a replicated array.

A mesh with axes from major to minor splits an array this way if every dimension uses
neighbouring axes. `Parts(2, 4)` over 8 devices needs axes of sizes 2 and 4 (or finer),
and `Parts(8, 1)` fits one axis of 8. `mesh_sizes` finds the coarsest mesh that fits all
Parts of a function. The axes of that mesh are `part0`, `part1`, … from major to minor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shardviz.base.array_spec import read_shape
from shardviz.base.display import Displayed
from shardviz.base.errors import LayoutError, ProgramError, SpecError
from shardviz.base.format import plural, shown
from shardviz.base.layout import Layout, Misfit, lay_out
from shardviz.base.mesh import MAX_DEVICES, MeshSpec
from shardviz.base.parse import check_size
from shardviz.base.partition_spec import MAX_RANK, Spec
from shardviz.base.typing import PyTree


class Parts(tuple, Displayed):
    """The number of blocks along each dimension of an array.

    Parts compare and hash like tuples, but JAX treats them as leaves of a pytree.

    Raises:
        SpecError: if an entry is not a whole number of at least 1.

    >>> from shardviz import legacy
    >>> parts = legacy.Parts(2, 4)
    >>> parts, parts.product, parts.rank
    (Parts(2, 4), 8, 2)
    """

    __slots__ = ()

    def __new__(cls, *parts: int) -> Parts:
        if len(parts) > MAX_RANK:
            raise SpecError(f"Parts has at most {MAX_RANK} numbers; got {len(parts)}.")
        counts = []
        for dim, part in enumerate(parts):
            count = check_size(part, f"Parts entry {dim}", SpecError)
            # Each block needs its own device.
            if not 1 <= count <= MAX_DEVICES:
                raise SpecError(
                    f"Entry {dim} of Parts is between 1, which does not split the"
                    f" dimension, and {MAX_DEVICES:,}; got {shown(count)}."
                )
            counts.append(count)
        return tuple.__new__(cls, counts)

    def __getnewargs__(self) -> tuple[int, ...]:
        return tuple(self)

    def _draw_(self, title: str | None = None) -> Any:
        """Draws one tile per dimension."""
        from shardviz.axis_rules.draw.rules import draw_spec

        if title is None:
            title = str(self)
        return draw_spec(fitting(self, (self.product,), self.product)[1], title)

    def _text_(self) -> str:
        return f"{self} · {plural(self.product, 'device')}"

    @property
    def rank(self) -> int:
        """The number of dimensions, equal to the rank of the array."""
        return len(self)

    @property
    def product(self) -> int:
        """The number of blocks, and thus of devices."""
        return math.prod(self)

    def check(self, shape: Sequence[int], name: str = "The array") -> None:
        """Raises a LayoutError if the rank differs or a dimension isn't divisible."""
        sizes = read_shape(shape)
        if len(sizes) != len(self):
            raise LayoutError(
                f"{name} has {plural(len(sizes), 'dimension')} and {self} is for"
                f" {len(self)}. Give one number for each dimension, 1 for one that is"
                " not split."
            )
        for dim, (size, parts) in enumerate(zip(sizes, self, strict=True)):
            if size % parts:
                raise LayoutError(
                    f"Dimension {dim} of {name[0].lower() + name[1:]}:"
                    f" {Misfit(size, (), parts)}"
                )

    def __repr__(self) -> str:
        return f"Parts({', '.join(map(str, self))})"


Partition = Parts | None


def parts_layout(
    shape: Sequence[int] | str,
    parts: Partition,
    device_ids: Any = None,
    dtype: object = "float32",
) -> Layout:
    """Returns the Layout of an array under integer parts.

    Args:
        shape: the global shape, in elements.
        parts: the partition; None for a replicated array.
        device_ids: the device ids in order; by default 0, 1, 2, ...

    Raises:
        LayoutError: if the rank differs or a dimension isn't divisible.
        SpecError: if there is not exactly one device per block, or if a replicated
            array has no `device_ids`.

    >>> parts_layout((8, 4), Parts(2, 2)).box(1)
    (slice(0, 4, None), slice(2, 4, None))
    """
    sizes, ids = read_shape(shape), None
    if parts is not None:
        parts.check(sizes)
        ids = np.arange(parts.product)
    if device_ids is not None:
        ids = np.asarray(device_ids).reshape(-1)
    if ids is None or (parts is not None and ids.size != parts.product):
        raise SpecError(
            f"{parts} needs one device for each block, and a replicated array needs"
            f" device_ids to say how many there are; got {shown(device_ids)}."
        )
    mesh, spec = fitting(parts, (ids.size,), ids.size)
    if device_ids is not None:
        grid = mesh.axis_sizes
        mesh = MeshSpec(mesh.axis_names, grid, (), ids.reshape(grid), concrete=True)
    return lay_out(sizes, spec, mesh, dtype)


def is_partition(value: Any) -> bool:
    """Whether a value is a leaf in a tree of parts: a Parts or None."""
    return value is None or isinstance(value, Parts)


def parts_in(prefix: PyTree, argument: str) -> list[Parts]:
    """Returns every Parts in a tree of Parts and None."""
    import jax

    parts = []
    for leaf in jax.tree.leaves(prefix, is_leaf=is_partition):
        if not is_partition(leaf):
            raise ProgramError(
                f"{argument} holds {shown(leaf)}, which is not a legacy.Parts. Write"
                " legacy.Parts(2, 1) for 2 parts along the first of two dimensions,"
                " None for an array that is replicated, or containers of these."
            )
        if leaf is not None:
            parts.append(leaf)
    return parts


def flat_parts(prefix: PyTree, tree: PyTree, argument: str) -> tuple[Partition, ...]:
    """Returns one Parts or None per leaf of a PyTreeDef, from a prefix of that tree.

    >>> import jax
    >>> flat_parts((Parts(2), None), jax.tree.structure(({"a": 0, "b": 0}, 0)), "in_parts")
    (Parts(2), Parts(2), None)
    """
    from shardviz.programs.backend.arguments import spread

    full = tree.unflatten(range(tree.num_leaves))
    return tuple(spread(prefix, full, argument, is_partition))


def count_of(requests: Iterable[tuple[str, int]]) -> int | None:
    """Returns the number of devices that all requests have, or None without requests.

    Raises:
        ProgramError: if two requests have different numbers.
    """
    first_name, first_count = "", None
    for name, count in requests:
        if first_count is None:
            first_name, first_count = name, count
        if first_count != count:
            raise ProgramError(
                "All parts of one sharded_jit make the same number of partitions:"
                f" {first_name} makes {first_count:,} and {name} makes {count:,}. Change one"
                " of them; write None for an array that is replicated."
            )
    return first_count


def mesh_sizes(
    count: int, partitions: Iterable[Partition]
) -> tuple[tuple[int, ...], tuple[Parts, ...]]:
    """Finds the coarsest mesh of `count` devices that fits the partitions.

    Returns:
        The axis sizes of the mesh, and the Parts that conflict with earlier ones. For
        example, no mesh with one device order fits both Parts(2, 3) and Parts(3, 2).

    >>> mesh_sizes(8, [Parts(2, 4), Parts(8, 1), None])
    ((2, 4), ())
    >>> mesh_sizes(6, [Parts(2, 3), Parts(3, 2)])
    ((2, 3), (Parts(3, 2),))
    """
    strides, unfit = sorted({1, count}), []
    for parts in partitions:
        # A dimension must end where a mesh axis ends. Count the blocks up to each end:
        # axes fit if each of these counts, in ascending order, divides the next.
        ends = sorted({*strides, *itertools.accumulate(parts or (), int.__mul__)})
        if all(b % a == 0 for a, b in itertools.pairwise(ends)):
            strides = ends
        elif parts is not None and parts not in unfit:
            unfit.append(parts)
    return tuple(b // a for a, b in itertools.pairwise(strides)) or (1,), tuple(unfit)


def is_prime_power(count: int) -> bool:
    """Whether a number has at most one distinct prime factor, like 8 and unlike 6."""
    prime = 2
    while prime < count and count % prime:
        prime += 1
    while count % prime == 0:
        count //= prime
    return count == 1


def mesh_over(sizes: Sequence[int]) -> MeshSpec:
    """Returns a mesh with these sizes, and axes `part0`, `part1`, … major to minor."""
    return MeshSpec(tuple(f"part{i}" for i in range(len(sizes))), tuple(sizes))


def is_parts_mesh(mesh: Any) -> bool:
    """Whether a mesh, ours or JAX's, has the axis names of `mesh_over`."""
    names = tuple(mesh.axis_names)
    return bool(names) and names == tuple(f"part{i}" for i in range(len(names)))


def _spec_over(partition: Parts, sizes: Sequence[int]) -> Spec | None:
    """Returns a partition's Spec over `mesh_over(sizes)`, or None if it doesn't fit."""
    dims, axis = [], 0
    for count in partition:
        start, product = axis, 1
        while product < count and axis < len(sizes):
            product, axis = product * sizes[axis], axis + 1
        # The mesh does not fit if a dimension ends inside an axis.
        if product != count:
            return None
        dims.append(tuple(f"part{i}" for i in range(start, axis)))
    return Spec(tuple(dims))


def fitting(
    partition: Partition, sizes: tuple[int, ...], count: int
) -> tuple[MeshSpec, Spec]:
    """Returns a mesh of `count` devices for a partition, and the Spec on that mesh.

    The mesh is `mesh_over(sizes)` if the partition fits that mesh.

    >>> mesh, spec = fitting(Parts(2, 4), (2, 2, 2), 8)
    >>> str(mesh), str(spec)
    ('part0=2, part1=2, part2=2', "P('part0', ('part1', 'part2'))")
    """
    if partition is None:
        return mesh_over(sizes), Spec()
    spec = _spec_over(partition, sizes)
    if spec is None:
        # Parts(3, 2) together with Parts(2, 3) needs another mesh over the same
        # devices.
        sizes, _ = mesh_sizes(count, [partition])
        spec = _spec_over(partition, sizes)
        assert spec is not None
    return mesh_over(sizes), spec
