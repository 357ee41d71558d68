"""Fit: whether arrays or a program fit in the memory of one device.

Audits, reports, rooflines and expectations create a `Fit`. A run creates one before it
places any array. The sentences are in `words/fit.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardviz.base.display import Fact
from shardviz.base.format import Fold, fold
from shardviz.base.layout import Layout

# How many of the largest arrays to name if a program does not fit.
MOST_ARRAYS = 3


@dataclass(frozen=True)
class Uncounted(Fact):
    """Arrays that a byte count leaves out because their layout is unknown.

    Attributes:
        arrays: number of such arrays.
        bytes: total size of these arrays, each counted once.

    >>> Uncounted(1, 16384).arrays
    1
    """

    arrays: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return self.arrays > 0


@dataclass(frozen=True)
class Fit(Fact):
    """Compares bytes per device with the memory of one device.

    Attributes:
        needed: the bytes needed on each device.
        capacity: the memory of one device in bytes; None if unknown.
        device: the kind of device, such as `"TPU v5e"`, or `""`.
        free: the bytes that are currently free on the device; None if unknown.
        arrays_only: True if `needed` leaves out intermediate values, as in an audit.
        uncounted: the arrays that `needed` leaves out.
        reserved: bytes of the device that programs cannot use, in addition to
            `capacity`.

    >>> fit = Fit(20 << 30, 16 << 30, "TPU v5e")
    >>> fit.code, fit.ok, fit.share
    ('too large', False, 1.25)
    """

    needed: int
    capacity: int | None
    device: str = ""
    free: int | None = None
    arrays_only: bool = False
    uncounted: Uncounted = Uncounted()
    reserved: int = 0

    @property
    def code(self) -> str:
        """`"fits"`, `"too large"`, `"not now"` or `"unknown"`.

        `"not now"` means that the device has enough memory, but part of it is in use.
        """
        # Too little memory in total is reported before too little free memory.
        if self.capacity is not None and self.needed > self.capacity:
            return "too large"
        if self.free is not None and self.needed > self.free:
            return "not now"
        # Counting the remaining arrays could turn "fits" into "too large", but not the
        # reverse.
        if self.capacity is None or self.uncounted:
            return "unknown"
        return "fits"

    @property
    def ok(self) -> bool | None:
        """True if the needed bytes fit; None if unknown."""
        return {"fits": True, "unknown": None}.get(self.code, False)

    @property
    def share(self) -> float | None:
        """`needed` as a fraction of `capacity`; None if the capacity is unknown."""
        return self.needed / self.capacity if self.capacity else None


class LargeArray(NamedTuple):
    """A large array, or equal arrays of several layers that are large together.

    Attributes:
        name: the array's name; layer numbers are shown as ranges: `layers.{0..3}.w`.
        count: number of arrays that the name covers.
        layout: the layout of one of these arrays.

    >>> LargeArray._fields
    ('name', 'count', 'layout')
    """

    name: str
    count: int
    layout: Layout


@dataclass(frozen=True)
class LargestArrays(Fact):
    """The arrays with the most bytes per device, largest first.

    >>> LargestArrays().arrays
    ()
    """

    arrays: tuple[LargeArray, ...] = ()

    @classmethod
    def of(cls, layouts: Mapping[str, Layout]) -> LargestArrays:
        """Returns the largest of these arrays; equal arrays of layers count as one."""

        def kind(name: str) -> Hashable:
            layout = layouts[name]
            return layout.shape, layout.dtype, layout.shard_shape, str(layout.spec)

        def bytes_per_device(layers: Fold[str]) -> int:
            return sum(layouts[name].bytes_per_device for name in layers.items)

        # Equal arrays of several layers count together, since their sum may be largest.
        folds = sorted(fold(layouts, str, kind), key=bytes_per_device, reverse=True)
        largest = []
        for layers in folds[:MOST_ARRAYS]:
            if bytes_per_device(layers):  # skip arrays without elements
                first = layouts[layers.items[0]]
                largest.append(LargeArray(layers.name, len(layers.items), first))
        return cls(tuple(largest))
