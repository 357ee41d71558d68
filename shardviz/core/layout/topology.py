"""Topology: a described slice of TPUs or cluster of GPUs, and where every device of it sits.

Described, not attached: no device and no jax is needed. Devices stand in the order, with the ids,
coordinates, processes and slices that libtpu gives them (`jax.experimental.topologies`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.display import Displayed
from shardviz.core.errors import plural
from shardviz.core.layout.chip import Chip
from shardviz.core.layout.chips import CHIPS
from shardviz.core.layout.places import Places, gpu_places, tpu_places
from shardviz.core.layout.topology_checks import checked_shape, read_topology


@dataclass(frozen=True, repr=False, eq=True)
class Topology(Displayed):
    """A slice of TPUs or a cluster of GPUs; write one as `Topology.parse("tpu:v5e:4x4")`.

    Attributes:
        chip: the kind of chip.
        shape: chips along each axis of one slice; of GPUs, hosts and GPUs a host.
        slices: how many slices of that shape there are, joined by the data-center network.

    Raises:
        TargetError: for a shape that such chips are not built in.

    >>> topology = Topology.parse("tpu:v5e:4x4*2")
    >>> topology.size, topology.hosts, topology.coords[2].tolist()
    (32, 8, [0, 1, 0])
    """

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    def __post_init__(self) -> None:
        shape, slices = checked_shape(self.chip, self.shape, self.slices)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "slices", slices)

    @classmethod
    def parse(cls, text: str) -> Topology:
        """A topology from what a person typed; nothing is evaluated.

        The grammar is `tpu:GENERATION:AxB`, `AxBxC` for TPUs with three axes, `*N` behind it for
        N slices, and `gpu:NAME:HOSTSxGPUS`.

        Raises:
            TargetError: with what could not be read, and how it is written.

        >>> str(Topology.parse("TPU : ironwood : 4 x 4 x 4"))
        'tpu:7x:4x4x4'
        """
        return cls(*read_topology(text))

    @property
    def devices(self) -> int:
        """How many devices jax sees: chips times the devices of a chip."""
        return self.chips * self.chip.devices

    size = devices

    @property
    def chips(self) -> int:
        """How many chips, over all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def host_shape(self) -> tuple[int, ...]:
        """The chips of one host along each axis: a host of TPUs has 2x2, a lone chip its own."""
        if self.chip.platform == "gpu":
            return (1, self.shape[1])
        return (
            (1,) * len(self.shape) if math.prod(self.shape) == 1 else (2, 2, 1)[: len(self.shape)]
        )

    @property
    def hosts(self) -> int:
        """How many hosts, each with one process of jax."""
        return self.chips // math.prod(self.host_shape)

    @cached_property
    def wraps(self) -> tuple[bool, ...]:
        """Which axes of a slice close to a ring."""
        return self.chip.wraps(self.shape) if self.chip.axes else (False,) * len(self.shape)

    @cached_property
    def _places(self) -> Places:
        if self.chip.platform == "gpu":
            return gpu_places(self.shape)
        return tpu_places(self.shape, self.host_shape, self.chip.devices, self.slices)

    @property
    def device_ids(self) -> np.ndarray:
        """int64 `[devices]`: the id of each device, in jax's order of devices."""
        return self._places.ids

    @property
    def coords(self) -> np.ndarray:
        """int64 `[devices, 3]`: x, y and z of the chip; of a GPU: its number, its host, 0.

        >>> Topology.parse("gpu:h100:2x8").coords[9].tolist()
        [1, 1, 0]
        """
        return self._places.coords

    @property
    def cores(self) -> np.ndarray:
        """int64 `[devices]`: which device of its chip each one is."""
        return self._places.cores

    @property
    def process_indices(self) -> np.ndarray:
        """int64 `[devices]`: the host of each device, counted over all slices."""
        return self._places.processes

    @property
    def slice_indices(self) -> np.ndarray:
        """int64 `[devices]`: the slice of each device."""
        return self._places.slices

    @property
    def jax_options(self) -> Mapping[str, Any]:
        """What `jax.experimental.topologies.get_topology_desc` calls it, as keyword arguments.

        A GPU's takes `target_config` beside these.

        >>> Topology.parse("tpu:v5e:4x4*2").jax_options
        {'platform': 'tpu', 'topology_name': 'v5e:4x4', 'num_slices': 2}
        """
        shape = "x".join(map(str, self.shape))
        if self.chip.platform == "gpu":
            return {"platform": "cuda", "topology": f"1x{shape}"}
        options: dict[str, Any] = {"platform": "tpu"}
        options["topology_name"] = (
            f"{'tpu' if self.chip.name == '7x' else ''}{self.chip.name}:{shape}"
        )
        if self.slices > 1:
            options["num_slices"] = self.slices
        if self.chip.config:
            options["chip_config_name"] = self.chip.config
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        return options

    @property
    def title(self) -> str:
        """What people call it.

        >>> Topology.parse("tpu:v5e:4x4*2").title, Topology.parse("gpu:h100:2x8").title
        ('TPU v5e 4×4 × 2 slices', 'NVIDIA H100 SXM 2×8')
        """
        slices = f" × {self.slices} slices" if self.slices > 1 else ""
        return f"{self.chip.title} {'×'.join(map(str, self.shape))}{slices}"

    def words(self) -> str:
        """What it is, in one sentence.

        >>> Topology.parse("tpu:v5p:4x4x8").words()
        '128 chips of TPU v5p as 4×4×8 on 32 hosts; every axis closes to a ring.'
        """
        shape = "×".join(map(str, self.shape))
        if self.chip.platform == "gpu":
            return (
                f"{plural(self.chips, 'GPU')} ({self.chip.title}) on {plural(self.hosts, 'host')}"
                f" of {self.shape[1]}: NVLink inside a host, the network between hosts."
            )
        slices = f"{self.slices} slices of " if self.slices > 1 else ""
        count = math.prod(self.shape)
        devices = f", {plural(self.devices, 'device')} in all," if self.chip.devices > 1 else ""
        return (
            f"{slices}{plural(count, 'chip')} of {self.chip.title} as {shape}{devices} on"
            f" {plural(self.hosts, 'host')}; {_rings(self.wraps)}."
        )

    def __str__(self) -> str:
        slices = f"*{self.slices}" if self.slices > 1 else ""
        return f"{self.chip.platform}:{self.chip.name}:{'x'.join(map(str, self.shape))}{slices}"

    def __repr__(self) -> str:
        return f"Topology({str(self)!r})"


def _rings(wraps: tuple[bool, ...]) -> str:
    if all(wraps):
        return "every axis closes to a ring"
    if not any(wraps):
        return "no axis closes to a ring"
    closed = [name for name, wrap in zip("xyz", wraps, strict=False) if wrap]
    return f"only {' and '.join(closed)} closes to a ring"


def topology_names() -> tuple[str, ...]:
    """Every kind of chip, as a topology begins: `tpu:v5e`, `gpu:h100`.

    >>> topology_names()[3]
    'tpu:v5e'
    """
    return tuple(f"{chip.platform}:{chip.name}" for chip in CHIPS.values())
