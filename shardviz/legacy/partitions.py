"""Parts: into how many blocks each dimension is split, as `sharded_jit` says it.

No axes and no names: the first device holds the first block in row-major order, the second the
next, and so on. The product of the numbers is the number of devices. The one other possibility, a
replicated array, is written `None`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import LayoutError, SpecError
from shardviz.core.format import plural, shown
from shardviz.core.layout.array_spec import read_shape
from shardviz.core.layout.layout import Layout, lay_out, sizes_that_divide
from shardviz.core.layout.mesh import MAX_DEVICES, MeshSpec
from shardviz.core.layout.parse import check_size
from shardviz.core.layout.partition_spec import MAX_RANK, Spec

if TYPE_CHECKING:
    from shardviz.picture.picture import Picture


class Parts(tuple, Displayed):
    """Into how many blocks each dimension of an array is split.

    A tuple, so it compares and hashes as one; JAX takes it for a leaf of a pytree.

    Raises:
        SpecError: for anything but whole numbers from 1 on.

    >>> parts = Parts(2, 4)
    >>> parts, parts.product, parts.rank
    (Parts(2, 4), 8, 2)
    """

    __slots__ = ()

    def __new__(cls, *parts: int) -> Parts:
        if len(parts) > MAX_RANK:
            raise SpecError(f"Parts has at most {MAX_RANK} numbers; got {len(parts)}.")
        return tuple.__new__(cls, [_checked(p, d) for d, p in enumerate(parts)])

    def __getnewargs__(self) -> tuple[int, ...]:
        return tuple(self)

    def _draw_(self, shape: Sequence[int] | str | None = None, title: str | None = None) -> Picture:
        from shardviz.legacy.pictures import draw_parts

        return draw_parts(self, shape, title)

    def _text_(self) -> str:
        from shardviz.legacy.pictures import parts_words

        return parts_words(self)

    @property
    def rank(self) -> int:
        """The number of dimensions, which is that of the array."""
        return len(self)

    @property
    def product(self) -> int:
        """How many blocks, and so how many devices."""
        return math.prod(self)

    def check(self, shape: Sequence[int], name: str = "The array") -> None:
        """Refuses an array of another rank, and dimensions that do not divide.

        Args:
            shape: the global shape, in elements.
            name: what the sentence calls the array.

        Raises:
            LayoutError: for the first of them.

        >>> Parts(2, 1).check((8, 3))
        """
        sizes = read_shape(shape)
        if len(sizes) != len(self):
            raise LayoutError(
                f"{name} has {plural(len(sizes), 'dimension')} and {self} is for {len(self)}."
                f" Give one number for each dimension, 1 for one that is not split{_like(sizes)}."
            )
        for dim, (size, parts) in enumerate(zip(sizes, self, strict=True)):
            if size % parts:
                raise LayoutError(
                    f"Dimension {dim} of {name[0].lower() + name[1:]}: {size:,} does not divide"
                    f" into {plural(parts, 'part')}: {sizes_that_divide(size, parts)}"
                )

    def __repr__(self) -> str:
        return f"Parts({', '.join(map(str, self))})"


def _checked(value: object, dim: int) -> int:
    count = check_size(value, f"The parts of dimension {dim}", SpecError)
    if count < 1:
        raise SpecError(
            f"Dimension {dim} cannot be split into {shown(count)} parts; 1 does not split it."
        )
    if count > MAX_DEVICES:
        raise SpecError(
            f"Dimension {dim} in {shown(count)} parts is more than there can be devices;"
            f" at most {MAX_DEVICES:,}, please."
        )
    return count


def _like(sizes: tuple[int, ...]) -> str:
    if not sizes:
        return ": Parts()"
    return f", such as {Parts(2, *[1] * (len(sizes) - 1))}"


def parts_mesh(parts: Parts | None, device_ids: Any = None, count: int | None = None) -> MeshSpec:
    """The mesh of `parts`: an axis `dim0`, `dim1`, … for every dimension that is split.

    Where no dimension is, it has one axis, `replica`.

    Args:
        parts: the parts, or None for a replicated array.
        device_ids: the devices in order; 0, 1, 2, … where not said.
        count: how many devices, where `parts` is None and no ids are given.

    Raises:
        SpecError: if the devices are more or fewer than the parts, or not known at all.

    >>> str(parts_mesh(Parts(2, 1, 4)))
    'dim0=2, dim2=4'
    """
    ids = None if device_ids is None else np.asarray(device_ids).reshape(-1)
    if ids is not None:
        count = ids.size
    if count is None:
        if parts is None:
            raise SpecError(
                "A replicated array has no parts to say how many devices there are. Give"
                " device_ids or count."
            )
        count = parts.product
    if parts is not None and parts.product != count:
        raise SpecError(
            f"{parts} makes {plural(parts.product, 'block')}, one per device; there"
            f" {'is' if count == 1 else 'are'} {plural(count, 'device')}. Make the product of the"
            " parts equal to the number of devices."
        )
    axes = {} if parts is None else {f"dim{d}": n for d, n in enumerate(parts) if n > 1}
    axes = axes or {"replica": count}
    grid = None if ids is None else ids.reshape(tuple(axes.values()))
    names, sizes = tuple(axes), tuple(axes.values())
    return MeshSpec(names, sizes, (), grid, None, grid is not None)  # type: ignore[arg-type]


def parts_spec(parts: Parts | None) -> Spec:
    """The Spec over `parts_mesh(parts)` that splits an array as `parts` does.

    >>> str(parts_spec(Parts(2, 1, 4)))
    "P('dim0', None, 'dim2')"
    """
    return Spec(tuple((f"dim{d}",) if n > 1 else () for d, n in enumerate(parts or ())))


def parts_layout(
    shape: Sequence[int] | str,
    parts: Parts | Iterable[int] | None,
    device_ids: Any = None,
    dtype: object = "float32",
    count: int | None = None,
) -> Layout:
    """The Layout of an array under integer parts, the first device holding the first block.

    Args:
        shape: the global shape, in elements.
        parts: the parts, or None for a replicated array.
        device_ids: the devices in order; 0, 1, 2, … where not said.
        dtype: the element type.
        count: how many devices, where `parts` is None and no ids are given.

    Raises:
        LayoutError: if the rank differs or a dimension does not divide.
        SpecError: if the devices are more or fewer than the parts.

    >>> parts_layout((8, 4), Parts(2, 2)).box(1)
    (slice(0, 4, None), slice(2, 4, None))
    """
    sizes = read_shape(shape)
    counts = parts if parts is None or isinstance(parts, Parts) else Parts(*parts)
    if counts is not None:
        counts.check(sizes)
    return lay_out(sizes, parts_spec(counts), parts_mesh(counts, device_ids, count), dtype)
