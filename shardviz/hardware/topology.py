"""Topology: a described TPU slice or GPU cluster, with the coordinates of its devices.

A Topology needs neither devices nor jax. Device order, ids, coordinates, processes and
slices are the same as in libtpu (`jax.experimental.topologies`;
`tests/layout/test_topology.py` compares them). Devices are ordered by process (x
fastest), within a process by chip (x fastest), and within a chip by core. Ids count the
cores of a slice (x fastest). If there are several slices, ids start at 100,000 in the
first, 200,000 in the second, and so on.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from shardviz.base.display import Displayed, explanation
from shardviz.base.errors import TargetError
from shardviz.base.format import shown, suggestion
from shardviz.hardware.chips import Chip, find_chip

# Maximum number of chips, in all slices together.
MAX_CHIPS = 1 << 18
EXAMPLES = (
    "tpu:v5e:4x4",
    "tpu:v5p:8x8x16",
    "tpu:v6e:16x16",
    "tpu:v4:2x2x4",
    "tpu:7x:4x4x4",
    "tpu:v5e:4x4*2",
    "gpu:h100:2x8",
)
# Cloud names of accelerators: v5litepod-16 and tpu-v6e-16 count cores, 8xH100 counts
# GPUs.
_CLOUD = re.compile(r"(?:tpu-?)?(?P<chip>[a-z]?[a-z0-9]*)-(?P<count>[0-9]{1,9})")
_GPUS = re.compile(r"(?P<count>[0-9]{1,9})\s*[x×]\s*(?P<chip>[a-z]+[0-9]+)")
_TEXT = re.compile(
    r"(?P<platform>[^:]+):(?P<chip>[^:]+):(?P<shape>[^:*]+)(?:\*(?P<slices>[^:*]+))?"
)
Shape = tuple[int, ...]


def _misread(problem: str) -> TargetError:
    """Returns the error for text that is not a topology; it shows valid forms."""
    return TargetError(
        f"{problem} Write it as tpu:v5e:4x4, tpu:v5p:4x4x8, tpu:v5e:4x4*2 for two slices, or"
        " gpu:h100:2x8; or as clouds name it: v5p-64, v5e-8, 8xH100."
    )


def _number(text: str, topology: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text.strip()):
        raise _misread(
            f"Cannot read {shown(text.strip())} in {shown(topology)} as a whole number."
        )
    return int(text)


def _times(sizes: Shape) -> str:
    return "x".join(shown(n, 20) for n in sizes)


def _checked_shape(chip: Chip, shape: Shape, slices: int) -> Shape:
    """Checks and normalizes the shape of a slice or cluster.

    Drops trailing axes of size 1 that the chip's torus lacks. Two axes for a 3-D torus
    mean a single layer of it.

    Raises:
        TargetError: for a shape that is not available with this chip.
    """
    if min((*shape, slices)) < 1:
        raise _misread(f"The sizes of a topology start at 1; got {_times(shape)}.")
    name = f"{chip.platform}:{chip.name}"
    if math.prod(shape) * slices > MAX_CHIPS:
        raise TargetError(
            f"A topology can have at most {MAX_CHIPS:,} chips; got"
            f" {shown(math.prod(shape) * slices)}. Take fewer slices or a smaller"
            " shape."
        )
    if chip.platform == "gpu":
        most = chip.host_shape[0]
        if len(shape) != 2 or slices != 1 or shape[1] > most:
            raise TargetError(
                f"A cluster of GPUs is written HOSTSxGPUS, with at most {most} GPUs on a"
                f" host, and has no slices; got {_times(shape)}. Write {name}:2x{most}."
            )
        return shape
    typed_shape = shape
    while len(shape) > chip.axes and shape[-1] == 1:
        shape = shape[:-1]
    if chip.axes == 3 and len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != chip.axes:
        raise TargetError(
            f"A slice of {chip.title} has {chip.axes} dimensions; got"
            f" {_times(typed_shape)}. An example is {name}:{_times((4,) * chip.axes)}."
        )
    if math.prod(shape) > 1 and (shape[0] % 2 or shape[1] % 2):
        even = (shape[0] + shape[0] % 2, shape[1] + shape[1] % 2, *shape[2:])
        raise TargetError(
            "A host holds 2x2 chips, so the first two axes of a slice are even; got"
            f" {_times(shape)}. The next larger slice is {name}:{_times(even)}."
        )
    # Switches join 4x4x4 cubes in any shape, so only the number of chips is limited.
    too_long = chip.axes == 2 and (shape[0] > chip.pod[0] or shape[1] > chip.pod[1])
    if too_long or math.prod(shape) > (chip.pod_chips or MAX_CHIPS):
        raise TargetError(
            f"The largest machine of {chip.title} has {chip.pod_chips:,} chips; got"
            f" {_times(shape)}. The network joins several slices: write *2 after the"
            " shape of one."
        )
    return shape


def is_described(text: str) -> bool:
    """Returns whether text has the form of described hardware, valid or not.

    >>> [is_described(text) for text in ("gpu:h100:2x8", "v5p-64", "gpu", "cpu:8")]
    [True, True, False, False]
    """
    word = text.strip().lower()
    if _cloud_name(word) is not None:
        return True
    return word.partition(":")[0].strip() in ("tpu", "gpu") and word.count(":") > 1


def _cloud_name(word: str) -> tuple[Chip, int] | None:
    """Parses a cloud's accelerator name into chip and count; else returns None."""
    for pattern, platform in ((_CLOUD, "tpu"), (_GPUS, "gpu")):
        if match := pattern.fullmatch(word):
            # Ignore words that only look like the name of a chip.
            with contextlib.suppress(TargetError):
                return find_chip(match["chip"], platform), int(match["count"])
    return None


def _from_cloud(text: str) -> Topology | None:
    named = _cloud_name(text.strip().lower())
    if named is None:
        return None
    chip, count = named
    counted = "chips" if chip.tensor_cores == 1 else "cores"
    if chip.platform == "gpu":
        counted = "GPUs"
    topology = None
    if count % chip.tensor_cores == 0:
        topology = even_topology(chip, count // chip.tensor_cores)
    if topology is None:
        raise _misread(
            f"{shown(text.strip())} would be {count:,} {counted} of {chip.title}, and"
            " no slice has that many."
        )
    return topology


def even_topology(chip: Chip, chips: int) -> Topology | None:
    """Returns a slice with this many chips in its most even shape; None if impossible.

    >>> from shardviz.hardware.chips import find_chip
    >>> str(even_topology(find_chip("v5p"), 4)), even_topology(find_chip("v5e"), 3)
    ('tpu:v5p:2x2x1', None)
    """
    if chip.platform == "gpu":
        hosts = range(math.prod(chip.host_shape), 0, -1)
        shapes: list[Shape] = [(chips // n, n) for n in hosts if chips % n == 0]
    else:
        shapes = sorted(_factors(chips, chip.axes), key=lambda s: max(s) - min(s))
    for shape in shapes:
        # In slices smaller than a cube, the axis of size 1 comes last.
        for order in (shape, shape[::-1]):
            with contextlib.suppress(TargetError):
                return Topology(chip, order)
    return None


def _factors(number: int, parts: int) -> list[Shape]:
    """Lists the ways to write a number as a product of `parts` ascending factors."""
    if parts == 1:
        return [(number,)]
    products = []
    for first in range(1, math.isqrt(number) + 1):
        if number % first:
            continue
        for factors in _factors(number // first, parts - 1):
            if factors[0] >= first:
                products.append((first, *factors))
    return products


# With several slices: the first device id, and the difference between slices.
FIRST_ID = 100_000


class _DeviceTable(NamedTuple):
    """The properties of all devices: int64 [devices], or [devices, 3] for coords."""

    ids: np.ndarray
    coords: np.ndarray
    cores: np.ndarray
    processes: np.ndarray
    slices: np.ndarray


def _tpu_devices(topology: Topology) -> _DeviceTable:
    x, y, z = (*topology.shape, 1, 1)[:3]
    a, b, c = (*topology.host_shape, 1, 1)[:3]
    cores, slices = topology.chip.devices, topology.slices
    # libtpu orders devices by host, within a host by chip, within a chip by core.
    grid = np.indices((slices, z // c, y // b, x // a, c, b, a, cores), dtype=np.int64)
    slice_index, hz, hy, hx, dz, dy, dx, core = grid.reshape(8, topology.devices)
    cx, cy, cz = hx * a + dx, hy * b + dy, hz * c + dz
    first = FIRST_ID * (slice_index + 1) * (slices > 1)
    ids = first + core + cores * (cx + x * (cy + y * cz))
    hosts = (z // c) * (y // b) * (x // a)
    process = slice_index * hosts + (hz * (y // b) + hy) * (x // a) + hx
    return _DeviceTable(ids, np.stack([cx, cy, cz], axis=1), core, process, slice_index)


def _gpu_devices(topology: Topology) -> _DeviceTable:
    """Numbers GPUs host by host; their coordinates are (GPU, host, 0)."""
    host, gpu = np.indices(topology.shape, dtype=np.int64).reshape(2, topology.devices)
    zeros = np.zeros_like(host)
    coords = np.stack([gpu, host, zeros], axis=1)
    return _DeviceTable(np.arange(len(host)), coords, zeros, host, zeros)


@dataclass(frozen=True, repr=False, eq=True)
class Topology(Displayed):
    """A TPU slice or GPU cluster; create one with `Topology.parse("tpu:v5e:4x4")`.

    Attributes:
        chip: the kind of chip.
        shape: number of chips along each axis of a slice; for GPUs, number of hosts and
            of GPUs per host.
        slices: the number of slices of that shape, joined by the data-center network.

    Raises:
        TargetError: for a shape that is not available with this chip.

    >>> import shardviz as sv
    >>> topology = sv.Topology.parse("tpu:v5e:4x4*2")
    >>> topology.size, topology.hosts, topology.coords[2].tolist()
    (32, 8, [0, 1, 0])
    """

    _adds = ("devices", "hosts", "title")

    chip: Chip
    shape: tuple[int, ...]
    slices: int = 1

    def __post_init__(self) -> None:
        shape = _checked_shape(self.chip, tuple(self.shape), self.slices)
        object.__setattr__(self, "shape", shape)

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Parses a topology from text that a user typed.

        The grammar is `tpu:GENERATION:AxB` (`AxBxC` for TPUs with three axes; append
        `*N` for N slices) or `gpu:NAME:HOSTSxGPUS`. Cloud names also work:
        `v5p-64`, `tpu-v6e-16`, `v5litepod-8`, `16xH100`.

        Raises:
            TargetError: for any other text; the message shows valid forms.

        >>> import shardviz as sv
        >>> str(sv.Topology.parse("TPU : ironwood : 4 x 4 x 4"))
        'tpu:7x:4x4x4'
        >>> str(sv.Topology.parse("v5p-64")), str(sv.Topology.parse("16xH100"))
        ('tpu:v5p:2x4x4', 'gpu:h100:2x8')
        """
        # Check the length before matching any pattern.
        if not isinstance(text, str) or len(text) > 100:
            raise _misread(f"A topology is short text; got {shown(text)}.")
        topology = _from_cloud(text)
        if topology is not None:
            return topology
        match = _TEXT.fullmatch(text)
        if match is None:
            raise _misread(f"Cannot read {shown(text)} as a topology.")
        platform = match["platform"].strip().lower()
        if platform not in ("tpu", "gpu"):
            hint = suggestion(platform, ("tpu", "gpu"))
            raise _misread(
                f"A topology is for a tpu or a gpu, not {shown(platform)}.{hint}"
            )
        chip = find_chip(match["chip"].strip(), platform)
        shape = tuple(_number(part, text) for part in re.split("[xX×]", match["shape"]))
        return cls(chip, shape, _number(match["slices"] or "1", text))

    @property
    def devices(self) -> int:
        """The number of jax devices: chips times devices per chip."""
        return self.chips * self.chip.devices

    size = devices

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return math.prod(self.shape) * self.slices

    @property
    def host_shape(self) -> tuple[int, ...]:
        """Number of chips of one host along each axis; all 1 for a single TPU chip."""
        if self.chip.platform == "gpu":
            return (1, self.shape[1])
        if math.prod(self.shape) == 1:
            return (1,) * len(self.shape)
        return self.chip.host_shape[: len(self.shape)]

    @property
    def hosts(self) -> int:
        """The number of hosts. Each runs one jax process, on `host_shape` chips."""
        return self.chips // math.prod(self.host_shape)

    @cached_property
    def wraps(self) -> tuple[bool, ...]:
        """Whether each axis of a slice forms a ring; all False for GPUs."""
        return self.chip.wraps(self.shape)

    @cached_property
    def _table(self) -> _DeviceTable:
        make = _tpu_devices
        if self.chip.platform == "gpu":
            make = _gpu_devices
        table = make(self)
        for array in table:
            array.flags.writeable = False
        return table

    @property
    def device_ids(self) -> np.ndarray:
        """int64 `[devices]`: the id of each device, in jax's device order."""
        return self._table.ids

    @property
    def coords(self) -> np.ndarray:
        """int64 `[devices, 3]`: the chip's (x, y, z); for GPUs, (GPU in host, host, 0).

        >>> import shardviz as sv
        >>> sv.Topology.parse("gpu:h100:2x8").coords[9].tolist()
        [1, 1, 0]
        """
        return self._table.coords

    @property
    def cores(self) -> np.ndarray:
        """int64 `[devices]`: the index of each device on its chip."""
        return self._table.cores

    @property
    def process_indices(self) -> np.ndarray:
        """int64 `[devices]`: the host of each device, counted over all slices."""
        return self._table.processes

    @property
    def slice_indices(self) -> np.ndarray:
        """int64 `[devices]`: the slice of each device."""
        return self._table.slices

    @property
    def jax_options(self) -> Mapping[str, Any]:
        """Keyword arguments for `jax.experimental.topologies.get_topology_desc`.

        GPUs also need `target_config`.

        >>> import shardviz as sv
        >>> sv.Topology.parse("tpu:v5e:4x4*2").jax_options
        {'platform': 'tpu', 'topology_name': 'v5e:4x4', 'num_slices': 2}
        """
        shape = "x".join(map(str, self.shape))
        if self.chip.platform == "gpu":
            return {"platform": "cuda", "topology": f"1x{shape}"}
        options: dict[str, object] = {
            "platform": "tpu",
            "topology_name": f"{self.chip.libtpu_name}:{shape}",
        }
        if self.slices > 1:
            options["num_slices"] = self.slices
        if self.chip.libtpu_config:
            options["chip_config_name"] = self.chip.libtpu_config
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        return options

    @property
    def title(self) -> str:
        """The topology's name in sentences.

        >>> import shardviz as sv
        >>> sv.Topology.parse("tpu:v5e:4x4*2").title, sv.Topology.parse("gpu:h100:2x8").title
        ('TPU v5e 4×4 × 2 slices', 'NVIDIA H100 SXM 2×8')
        """
        slices = f" × {self.slices} slices" if self.slices > 1 else ""
        return f"{self.chip.title} {'×'.join(map(str, self.shape))}{slices}"

    def words(self) -> str:
        """Describes the topology in one sentence.

        >>> import shardviz as sv
        >>> sv.Topology.parse("tpu:v5p:4x4x8").words()
        '128 TPU v5p chips as 4×4×8 on 32 hosts of 4 chips; every axis forms a ring.'
        """
        return explanation(self)

    def __str__(self) -> str:
        slices = f"*{self.slices}" if self.slices > 1 else ""
        return f"{self.chip.platform}:{self.chip.name}:{'x'.join(map(str, self.shape))}{slices}"

    def __repr__(self) -> str:
        return f"Topology({str(self)!r})"
