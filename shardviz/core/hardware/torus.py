"""Torus: the chips of a described topology as a grid with links, and the routes through it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardviz.core.hardware.topology import Topology

UNUSED, SHARED = -1, -2


@dataclass(frozen=True, eq=False)
class Torus:
    """Chips, counted x fastest, slice after slice, with a link to the next one along each axis.

    A cluster of GPUs has chips and no such links: its hosts are joined by switches.

    >>> torus = Torus(Topology.parse("tpu:v5e:16x16"))
    >>> torus.chips, torus.next_chip(0).tolist()[15]
    (256, 0)
    """

    topology: Topology

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Chips along each axis of a slice."""
        return self.topology.shape if self.topology.chip.axes else ()

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Which axes close to a ring."""
        return self.topology.wraps if self.shape else ()

    @property
    def chips(self) -> int:
        """How many chips, over all slices."""
        return self.topology.chips

    @cached_property
    def coords(self) -> np.ndarray:
        """int64 [chips, axes]: the coordinates of each chip in its slice."""
        if not self.shape:
            return np.zeros((self.chips, 0), np.int64)
        inside = np.arange(self.chips) % math.prod(self.shape)
        found = np.unravel_index(inside, tuple(reversed(self.shape)))
        return np.stack(list(reversed(found)), axis=1).astype(np.int64)

    @cached_property
    def slice_of(self) -> np.ndarray:
        """int64 [chips]: the slice of each chip, or the host of each GPU."""
        per_part = self.chips // self.parts
        return np.arange(self.chips) // per_part

    @property
    def parts(self) -> int:
        """How many slices, or hosts of GPUs: only the network joins them."""
        return self.topology.slices if self.shape else self.topology.hosts

    @cached_property
    def chip_of(self) -> np.ndarray:
        """int64 [devices]: the chip of each device, in the topology's order of devices."""
        if not self.shape:
            return np.arange(self.chips)
        found = self.topology.slice_indices
        for axis in reversed(range(len(self.shape))):
            found = found * self.shape[axis] + self.topology.coords[:, axis]
        return found

    def next_chip(self, axis: int) -> np.ndarray:
        """int64 [chips]: the next chip along an axis; -1 where there is no link to one."""
        size = self.shape[axis]
        step = math.prod(self.shape[:axis])
        at = self.coords[:, axis]
        last = at == size - 1
        following = np.arange(self.chips) + np.where(last, (1 - size) * step, step)
        return np.where(last & (not self.wraps[axis]), -1, following)


@dataclass(frozen=True)
class ChipTraffic:
    """Sends between chips, one entry per send.

    Attributes:
        source, target: int64 [sends]: chips.
        share: float64 [sends]: of the collective's bytes on each device.
        group: int64 [sends]: the group that sends.
    """

    source: np.ndarray
    target: np.ndarray
    share: np.ndarray
    group: np.ndarray


class Traffic:
    """What the links of a torus carry, added up send by send.

    Attributes:
        load: float64 [chips, axes, 2]: the share on the link to the next chip and to the one
            before.
        nvlink, network: float64 [chips]: the share that each chip sends inside its host, and to
            other slices or hosts.
        owner: int64 [chips, axes]: the group that uses the link to the next chip, either way;
            UNUSED, or SHARED by several groups.
    """

    def __init__(self, torus: Torus):
        self.torus = torus
        axes = len(torus.shape)
        self.load = np.zeros((torus.chips, axes, 2))
        self.nvlink, self.network = np.zeros(torus.chips), np.zeros(torus.chips)
        self._first = np.full((torus.chips, axes), np.iinfo(np.int64).max)
        self._last = np.full((torus.chips, axes), -1)

    @property
    def owner(self) -> np.ndarray:
        """int64 [chips, axes]: see the class."""
        return np.where(
            self._last < 0, UNUSED, np.where(self._first == self._last, self._last, SHARED)
        )

    def add_all(self, traffic: Iterable[ChipTraffic]) -> None:
        """Routes the sends of every ChipTraffic."""
        for sends in traffic:
            self.add(sends.source, sends.target, sends.share, sends.group)

    def add(
        self, source: np.ndarray, target: np.ndarray, share: np.ndarray, group: np.ndarray
    ) -> None:
        """Routes sends by dimension order: along x first, then y, then z, the shorter way around.

        Where both ways around are equally long, half goes each way.
        """
        here = source
        coords = self.torus.coords
        for axis, size in enumerate(self.torus.shape):
            step = coords[target, axis] - coords[here, axis]
            if self.torus.wraps[axis]:
                onward, back = step % size, -step % size
            else:
                onward, back = np.maximum(step, 0), np.maximum(-step, 0)
                onward, back = np.where(back, size, onward), np.where(onward, size, back)
            tie = np.where(onward == back, 0.5, 1.0) * share
            self._along(axis, here, np.where(onward <= back, onward, 0), tie, group, 0)
            self._along(axis, here, np.where(back <= onward, back, 0), tie, group, 1)
            stride = int(np.prod(self.torus.shape[:axis]))
            here = here + step * stride

    def _along(
        self,
        axis: int,
        here: np.ndarray,
        hops: np.ndarray,
        share: np.ndarray,
        group: np.ndarray,
        way: int,
    ) -> None:
        moving = np.flatnonzero(hops)
        at, hops, share, group = here[moving], hops[moving], share[moving], group[moving]
        following = self.torus.next_chip(axis)
        before = np.full(len(following), -1)
        linked = following >= 0
        before[following[linked]] = np.flatnonzero(linked)
        while len(at):
            self.load[:, axis, way] += np.bincount(at, share, self.torus.chips)
            on = (following if way == 0 else before)[at]
            link = at if way == 0 else on
            np.minimum.at(self._first[:, axis], link, group)
            np.maximum.at(self._last[:, axis], link, group)
            hops = hops - 1
            left = hops > 0
            at, hops, share, group = on[left], hops[left], share[left], group[left]
