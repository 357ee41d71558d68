"""Fit: whether arrays or a program fit in the memory of one device.

`words/fit.py` has the sentences. Audits, reports, rooflines and expectations all make a
`Fit`, and so does a run before it places anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shardviz.base.display import Fact
from shardviz.base.format import Fold, fold
from shardviz.base.layout import Layout

MOST_ARRAYS = 3  # named if a program does not fit


@dataclass(frozen=True)
class Uncounted(Fact):
    """The arrays that a number of bytes leaves out, as their layout is unknown.

    Attributes:
        arrays: their number.
        bytes: their total size, each counted once.

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
        free: the bytes that are free on it now; None if unknown.
        arrays_only: True if `needed` leaves out intermediate values, as in an audit.
        uncounted: the arrays that `needed` leaves out.

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

    @property
    def code(self) -> str:
        """`"fits"`, `"too large"`, `"not now"` or `"unknown"`.

        `"not now"` means that the device has enough memory, but part of it is in use.
        """
        # Report a device that is too small before one that is too full.
        if self.capacity is not None and self.needed > self.capacity:
            return "too large"
        if self.free is not None and self.needed > self.free:
            return "not now"
        # More arrays cannot make too large a need fit, but they can make a fitting one
        # too large.
        if self.capacity is None or self.uncounted:
            return "unknown"
        return "fits"

    @property
    def ok(self) -> bool | None:
        """True if it fits; None if unknown."""
        return {"fits": True, "unknown": None}.get(self.code, False)

    @property
    def share(self) -> float | None:
        """The need as a fraction of the capacity."""
        return self.needed / self.capacity if self.capacity else None


class LargeArray(NamedTuple):
    """An array that takes much of each device, or several that are alike.

    Attributes:
        name: its name, with the numbers of layers in ranges: `layers.{0..3}.w`.
        count: the number of arrays with this name.
        layout: the layout of one of them.

    >>> LargeArray._fields
    ('name', 'count', 'layout')
    """

    name: str
    count: int
    layout: Layout


@dataclass(frozen=True)
class LargestArrays(Fact):
    """The arrays that take most of each device, the largest first.

    >>> LargestArrays().arrays
    ()
    """

    arrays: tuple[LargeArray, ...] = ()

    @classmethod
    def of(cls, layouts: Mapping[str, Layout]) -> LargestArrays:
        """The largest of these arrays; layers that are alike count as one."""

        def kind(name: str) -> Hashable:
            layout = layouts[name]
            return layout.shape, layout.dtype, layout.shard_shape, str(layout.spec)

        def bytes_per_device(layers: Fold[str]) -> int:
            return sum(layouts[name].bytes_per_device for name in layers.items)

        # A layer counts together with all layers like it: together they may be the
        # largest.
        folds = sorted(fold(layouts, str, kind), key=bytes_per_device, reverse=True)
        largest = []
        for layers in folds[:MOST_ARRAYS]:
            if bytes_per_device(layers):  # an array without elements is not large
                first = layouts[layers.items[0]]
                largest.append(LargeArray(layers.name, len(layers.items), first))
        return cls(tuple(largest))
