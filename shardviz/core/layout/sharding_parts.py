"""The parts of a ShardingSpec: what happens to a dimension, and what an axis of devices is for.

A dimension of the array is whole (`NoSharding`), cut (`Chunked`) or taken apart (`Unstacked`). An
axis of the devices follows one cut (`ShardedAxis`) or holds copies (`Replicated`). Follows
`jax.interpreters.pxla` up to jax 0.4 and the `pmap_lib` of its time, representation included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardviz.core.errors import SpecError, shown
from shardviz.core.layout.checks import check_size
from shardviz.core.layout.mesh_checks import MAX_DEVICES


@dataclass(frozen=True, slots=True)
class NoSharding:
    """A dimension that every device holds whole.

    >>> NoSharding(), NoSharding() == NoSharding()
    (NoSharding(), True)
    """

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of the sharded axes it makes: none."""
        return ()


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Chunked:
    """A dimension cut into equal chunks, then each of them again, and so on.

    Every number makes one sharded axis; the first is the major one. Numbers may stand in a list or
    bare, as its representation has them.

    Attributes:
        chunks: into how many chunks, cut after cut.

    Raises:
        SpecError: for anything but whole numbers from 1 on.

    >>> Chunked([2, 4]), Chunked(2, 4) == Chunked([2, 4])
    (Chunked(2,4), True)
    """

    chunks: tuple[int, ...]

    def __init__(self, *chunks: Any) -> None:
        given: Any = chunks
        if len(chunks) == 1 and isinstance(chunks[0], Iterable):
            given = chunks[0]
        if isinstance(given, (str, bytes)):
            raise SpecError(f"Chunked takes whole numbers, as Chunked([2, 4]); got {shown(given)}.")
        checked = tuple(_count(c, "The number of chunks") for c in given)
        object.__setattr__(self, "chunks", checked)

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of the sharded axes it makes: its chunks."""
        return self.chunks

    def __repr__(self) -> str:
        return f"Chunked({','.join(map(str, self.chunks))})"


@dataclass(frozen=True, slots=True, repr=False)
class Unstacked:
    """A dimension taken apart: each device holds one index of it, and no longer has the dimension.

    Attributes:
        size: the size of the dimension, and of the sharded axis it makes.

    Raises:
        SpecError: for anything but a whole number from 1 on.

    >>> Unstacked(4)
    Unstacked(4)
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _count(self.size, "The size of an Unstacked dimension"))

    @property
    def counts(self) -> tuple[int, ...]:
        """The sizes of the sharded axes it makes: one, as long as the dimension."""
        return (self.size,)

    def __repr__(self) -> str:
        return f"Unstacked({self.size})"


@dataclass(frozen=True, slots=True)
class ShardedAxis:
    """An axis of the devices that walks along one sharded axis of the array.

    Attributes:
        axis: which: the chunks and unstacked dimensions, counted from 0 through the dimensions.

    Raises:
        SpecError: for anything but a whole number from 0 on.

    >>> ShardedAxis(0)
    ShardedAxis(axis=0)
    """

    axis: int

    def __post_init__(self) -> None:
        axis = check_size(self.axis, "The number of a sharded axis", SpecError)
        if axis < 0:
            raise SpecError(f"Sharded axes are counted from 0; got ShardedAxis({shown(axis)}).")
        object.__setattr__(self, "axis", axis)


@dataclass(frozen=True, slots=True)
class Replicated:
    """An axis of the devices along which all hold the same.

    Attributes:
        replicas: how many.

    Raises:
        SpecError: for anything but a whole number from 1 on.

    >>> Replicated(2)
    Replicated(replicas=2)
    """

    replicas: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "replicas", _count(self.replicas, "The number of replicas"))


def _count(value: object, what: str) -> int:
    count = check_size(value, what, SpecError)
    if not 1 <= count <= MAX_DEVICES:
        raise SpecError(f"{what} is between 1 and {MAX_DEVICES:,}; got {shown(count)}.")
    return count
