"""Topology: a described slice of TPUs or cluster of GPUs, and the coordinates of its
devices.

No device and no jax is needed. The order of the devices, their ids, coordinates,
processes and slices are those of libtpu (`jax.experimental.topologies`;
`tests/layout/test_topology.py` asks it): processes one after another, x fastest; in a
process its chips, x fastest; in a chip its cores. Ids count the cores of a slice, x
fastest; where there are several slices, they start at 100,000 in the first, at 200,000
in the second, and so on.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardviz.core.display import Displayed, explanation
from shardviz.core.errors import TargetError
from shardviz.core.format import plural, shown, suggestion
from shardviz.core.hardware.chips import Chip, find_chip
from shardviz.core.layout.parse import check_size

MAX_CHIPS = 1 << 18  # over all slices
EXAMPLES = (
    "tpu:v5e:4x4",
    "tpu:v5p:8x8x16",
    "tpu:v6e:16x16",
    "tpu:v4:2x2x4",
    "tpu:7x:4x4x4",
    "tpu:v5e:4x4*2",
    "gpu:h100:2x8",
)
# As clouds and people name accelerators: v5litepod-16 and tpu-v6e-16 by cores, 8xH100
# by GPUs.
_CLOUD = re.compile(r"(?:tpu-?)?(?P<chip>[a-z]?[a-z0-9]*)-(?P<count>[0-9]{1,9})")
_GPUS = re.compile(r"(?P<count>[0-9]{1,9})\s*[x×]\s*(?P<chip>[a-z]+[0-9]+)")
# Of TPUs with two cores a chip, the number in a cloud's name is that of cores (Cloud
# TPU's pages on each generation, "TPU type" and "topology"; xpk's table of systems for
# TPU7x).
_TWO_CORES = ("v2", "v3", "v4", "v5p", "7x")
_TEXT = re.compile(
    r"(?P<platform>[^:]+):(?P<chip>[^:]+):(?P<shape>[^:*]+)(?:\*(?P<slices>[^:*]+))?"
)
Shape = tuple[int, ...]


def _misread(what: str) -> TargetError:
    """The error for text that is no topology, with the ways to write one."""
    return TargetError(
        f"{what} Write it as tpu:v5e:4x4, tpu:v5p:4x4x8, tpu:v5e:4x4*2 for two slices, or"
        " gpu:h100:2x8; or as clouds name it: v5p-64, v5e-8, 8xH100."
    )


def _number(text: str, topology: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text.strip()):
        raise _misread(
            f"Cannot read {shown(text.strip())} in {shown(topology)} as a whole number."
        )
    return int(text)


def checked_shape(chip: Chip, shape: Any, slices: Any) -> tuple[Shape, int]:
    """The shape and number of slices, if chips of this kind are built so.

    Trailing axes of size 1 that the torus of the chip lacks are dropped; two axes of a
    3-D torus are one layer of it.

    Raises:
        TargetError: otherwise, with the nearest shape that is.
    """
    sizes = tuple(check_size(n, "A size of a topology", TargetError) for n in shape)
    slices = check_size(slices, "The number of slices", TargetError)
    if min((*sizes, slices)) < 1:
        raise _misread(f"The sizes of a topology start at 1; got {_times(sizes)}.")
    if chip.platform == "gpu":
        _check_cluster(chip, sizes, slices)
    else:
        sizes = _fitted_slice(chip, sizes)
        _check_host(chip, sizes)
        _check_pod(chip, sizes)
    if math.prod(sizes) * slices > MAX_CHIPS:
        raise TargetError(
            f"At most {MAX_CHIPS:,} chips are described; got"
            f" {shown(math.prod(sizes) * slices)}. Take fewer slices or a smaller shape."
        )
    return sizes, slices


def _times(sizes: Shape) -> str:
    return "x".join(shown(n, 20) for n in sizes)


def _check_cluster(chip: Chip, shape: Shape, slices: int) -> None:
    name, most = f"gpu:{chip.name}", math.prod(chip.host_shape)
    if len(shape) != 2:
        raise TargetError(
            f"A cluster of GPUs is written HOSTSxGPUS; got {plural(len(shape), 'size')}."
            f" Write {name}:{_times(_over_hosts(math.prod(shape), most))}."
        )
    if slices != 1:
        raise TargetError(
            f"GPUs have no slices: one network joins all hosts. Write {name}:"
            f"{shape[0] * slices}x{shape[1]} for {plural(shape[0] * slices, 'host')}."
        )
    if shape[1] > most:
        hosts = -(-math.prod(shape) // most)
        raise TargetError(
            f"NVLink joins at most {most} GPUs of {chip.title} on one host; got {shape[1]:,}."
            f" Write more hosts: {name}:{hosts}x{most}."
        )


def _over_hosts(gpus: int, most: int) -> Shape:
    """So many GPUs on as few hosts as hold them, each with equally many: 12 are 2x6."""
    hosts = -(-gpus // most)
    # The loop may take as many steps as there are GPUs, and nobody has more than this.
    if gpus > MAX_CHIPS:
        return hosts, most
    while gpus % hosts:
        hosts += 1
    return hosts, gpus // hosts


def _fitted_slice(chip: Chip, shape: Shape) -> Shape:
    written = shape
    while len(shape) > chip.axes and shape[-1] == 1:
        shape = shape[:-1]
    if chip.axes == 3 and len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != chip.axes:
        raise TargetError(
            f"A slice of {chip.title} has {chip.axes} axes; got {_times(written)}."
            f" Write it as tpu:{chip.name}:{_times((4,) * chip.axes)}."
        )
    return shape


def _check_host(chip: Chip, shape: Shape) -> None:
    if math.prod(shape) == 1 or (shape[0] % 2 == 0 and shape[1] % 2 == 0):
        return
    even = (shape[0] + shape[0] % 2, shape[1] + shape[1] % 2, *shape[2:])
    raise TargetError(
        f"A host holds 2x2 chips, so the first two axes of a slice are even; got"
        f" {_times(shape)}. The next larger slice is tpu:{chip.name}:{_times(even)}."
    )


def _check_pod(chip: Chip, shape: Shape) -> None:
    most = chip.pod_chips
    # Cubes of three axes are joined by switches in any order, so only their number is
    # limited.
    long = chip.axes == 2 and (shape[0] > chip.pod[0] or shape[1] > chip.pod[1])
    if most is None or (math.prod(shape) <= most and not long):
        return
    largest, pod = chip.pod, f", {_times(chip.pod)}"
    if not chip.pod:
        largest, pod = (16, 16, 32), ""
    raise TargetError(
        f"The largest machine of {chip.title} has {most:,} chips{pod}; got {_times(shape)}."
        f" The network joins several slices: tpu:{chip.name}:{_times(largest)}*2."
    )


def is_described(text: str) -> bool:
    """Whether text names described hardware, rightly or not, and no attached or
    simulated devices.

    >>> [is_described(text) for text in ("gpu:h100:2x8", "v5p-64", "gpu", "cpu:8")]
    [True, True, False, False]
    """
    word = text.strip().lower()
    if _cloud_name(word) is not None:
        return True
    return word.partition(":")[0].strip() in ("tpu", "gpu") and word.count(":") > 1


def _cloud_name(word: str) -> tuple[Chip, int] | None:
    """The chip of a cloud's name of an accelerator, and the number in it; None for
    other text.
    """
    for pattern, platform in ((_CLOUD, "tpu"), (_GPUS, "gpu")):
        if match := pattern.fullmatch(word):
            with contextlib.suppress(TargetError):  # some other word
                return find_chip(match["chip"], platform), int(match["count"])
    return None


def _from_cloud(text: str) -> Topology | None:
    if (found := _cloud_name(text.strip().lower())) is None:
        return None
    chip, count = found
    cores, counted = 1, "chips"
    if chip.platform == "gpu":
        counted = "GPUs"
    elif chip.name in _TWO_CORES:
        cores, counted = 2, "cores"
    topology = None
    if count % cores == 0:
        topology = even_topology(chip, count // cores)
    if topology is None:
        raise _misread(
            f"{shown(text.strip())} would be {count:,} {counted} of {chip.title}, and there is no"
            f" slice of as many."
        )
    return topology


def even_topology(chip: Chip, chips: int) -> Topology | None:
    """One slice of so many chips, in the most even shape that there is; None for none.

    >>> from shardviz.core.hardware.chips import find_chip
    >>> str(even_topology(find_chip("v5p"), 4)), even_topology(find_chip("v5e"), 3)
    ('tpu:v5p:2x2x1', None)
    """
    if chip.platform == "gpu":
        hosts = range(math.prod(chip.host_shape), 0, -1)
        shapes: list[Shape] = [(chips // n, n) for n in hosts if chips % n == 0]
    else:
        shapes = sorted(_factors(chips, chip.axes), key=lambda s: max(s) - min(s))
    for shape in shapes:
        # A slice of less than a cube is written with its axis of one chip at the end.
        for order in (shape, shape[::-1]):
            with contextlib.suppress(TargetError):
                return Topology(chip, order)
    return None


def _factors(number: int, parts: int) -> list[Shape]:
    """The ways to write a number as a product, the smaller factors first."""
    if parts == 1:
        return [(number,)]
    found = []
    for first in range(1, math.isqrt(number) + 1):
        if number % first:
            continue
        for rest in _factors(number // first, parts - 1):
            if rest[0] >= first:
                found.append((first, *rest))
    return found


FIRST_ID = 100_000  # of the first of several slices, and the step from one to the next


@dataclass(frozen=True)
class DeviceCoordinates:
    """One row per device; arrays are read-only.

    Attributes:
        ids: int64 `[devices]`.
        coords: int64 `[devices, 3]`.
        cores: int64 `[devices]`.
        processes: int64 `[devices]`.
        slices: int64 `[devices]`.
    """

    ids: np.ndarray
    coords: np.ndarray
    cores: np.ndarray
    processes: np.ndarray
    slices: np.ndarray

    def __post_init__(self) -> None:
        for array in vars(self).values():
            array.flags.writeable = False


def tpu_coordinates(
    shape: tuple[int, ...], host_shape: tuple[int, ...], cores: int, slices: int
) -> DeviceCoordinates:
    """The devices of some slices of TPUs.

    Args:
        shape: chips along each axis of a slice.
        host_shape: chips of a host along each axis.
        cores: devices per chip.
        slices: how many slices.
    """
    x, y, z = (*shape, 1, 1)[:3]
    a, b, c = (*host_shape, 1, 1)[:3]
    # Hosts one after another, in a host its chips, in a chip its cores: libtpu's order.
    grid = np.indices((slices, z // c, y // b, x // a, c, b, a, cores), dtype=np.int64)
    which, hz, hy, hx, dz, dy, dx, core = grid.reshape(8, -1)
    cx, cy, cz = hx * a + dx, hy * b + dy, hz * c + dz
    first = FIRST_ID * (which + 1) * (slices > 1)
    ids = first + core + cores * (cx + x * (cy + y * cz))
    hosts = (z // c) * (y // b) * (x // a)
    process = which * hosts + (hz * (y // b) + hy) * (x // a) + hx
    return DeviceCoordinates(
        ids, np.stack([cx, cy, cz], axis=1), core.copy(), process, which.copy()
    )


def gpu_coordinates(shape: tuple[int, ...]) -> DeviceCoordinates:
    """The devices of a cluster of GPUs: host by host; coordinates are GPU, host, 0."""
    hosts, gpus = shape
    host, gpu = np.indices((hosts, gpus), dtype=np.int64).reshape(2, -1)
    zeros = np.zeros_like(host)
    coords = np.stack([gpu, host, zeros], axis=1)
    return DeviceCoordinates(
        np.arange(hosts * gpus), coords, zeros.copy(), host.copy(), zeros.copy()
    )


@dataclass(frozen=True, repr=False, eq=True)
class Topology(Displayed):
    """A slice of TPUs or a cluster of GPUs; write one as
    `Topology.parse("tpu:v5e:4x4")`.

    Attributes:
        chip: the kind of chip.
        shape: chips along each axis of one slice; of GPUs, hosts and GPUs per host.
        slices: how many slices of that shape there are, joined by the data-center
            network.

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

        The grammar is `tpu:GENERATION:AxB`, `AxBxC` for TPUs with three axes, `*N`
        after it for N slices, and `gpu:NAME:HOSTSxGPUS`. Clouds' names are read as
        well: `v5p-64`, `tpu-v6e-16`, `v5litepod-8`, `16xH100`.

        Raises:
            TargetError: with what could not be read, and how it is written.

        >>> str(Topology.parse("TPU : ironwood : 4 x 4 x 4"))
        'tpu:7x:4x4x4'
        >>> str(Topology.parse("v5p-64")), str(Topology.parse("16xH100"))
        ('tpu:v5p:2x4x4', 'gpu:h100:2x8')
        """
        # What is typed is bounded in size before it is matched.
        if not isinstance(text, str) or len(text) > 100:
            raise _misread(f"A topology is short text; got {shown(text)}.")
        if (found := _from_cloud(text)) is not None:
            return found
        match = _TEXT.fullmatch(text)
        if match is None:
            raise _misread(f"Cannot read {shown(text)} as a topology.")
        platform = match["platform"].strip().lower()
        if platform not in ("tpu", "gpu"):
            hint = suggestion(platform, ("tpu", "gpu"))
            raise _misread(
                f"A topology is of a tpu or a gpu, not {shown(platform)}.{hint}"
            )
        chip = find_chip(match["chip"].strip(), platform)
        shape = tuple(_number(part, text) for part in re.split("[xX×]", match["shape"]))
        return cls(chip, shape, _number(match["slices"] or "1", text))

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
        """The chips of one host along each axis: 2x2 for TPUs, 1x1 for a single chip."""
        if self.chip.platform == "gpu":
            return (1, self.shape[1])
        if math.prod(self.shape) == 1:
            return (1,) * len(self.shape)
        return (2, 2, 1)[: len(self.shape)]

    @property
    def hosts(self) -> int:
        """How many hosts, each with one process of jax."""
        return self.chips // math.prod(self.host_shape)

    @cached_property
    def wraps(self) -> tuple[bool, ...]:
        """Which axes of a slice close to a ring."""
        # Switches join GPUs, which have no torus.
        if not self.chip.axes:
            return (False,) * len(self.shape)
        return self.chip.wraps(self.shape)

    @cached_property
    def _places(self) -> DeviceCoordinates:
        if self.chip.platform == "gpu":
            return gpu_coordinates(self.shape)
        return tpu_coordinates(
            self.shape, self.host_shape, self.chip.devices, self.slices
        )

    @property
    def device_ids(self) -> np.ndarray:
        """int64 `[devices]`: the id of each device, in jax's order of devices."""
        return self._places.ids

    @property
    def coords(self) -> np.ndarray:
        """int64 `[devices, 3]`: x, y and z of the chip; of a GPU: its number, its host,
        0.

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
        """What `jax.experimental.topologies.get_topology_desc` calls it, as keyword
        arguments.

        A GPU's takes `target_config` beside these.

        >>> Topology.parse("tpu:v5e:4x4*2").jax_options
        {'platform': 'tpu', 'topology_name': 'v5e:4x4', 'num_slices': 2}
        """
        shape = "x".join(map(str, self.shape))
        if self.chip.platform == "gpu":
            return {"platform": "cuda", "topology": f"1x{shape}"}
        options: dict[str, Any] = {
            "platform": "tpu",
            "topology_name": f"{self.chip.name}:{shape}",
        }
        if (
            self.chip.name == "7x"
        ):  # libtpu says "tpu7x", and leaves it out of the others
            options["topology_name"] = f"tpu7x:{shape}"
        if self.slices > 1:
            options["num_slices"] = self.slices
        if self.chip.config:
            options["chip_config_name"] = self.chip.config
        if math.prod(self.shape) == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        return options

    @property
    def title(self) -> str:
        """Its name as people write it.

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
        return explanation(self)

    def __str__(self) -> str:
        slices = f"*{self.slices}" if self.slices > 1 else ""
        return f"{self.chip.platform}:{self.chip.name}:{'x'.join(map(str, self.shape))}{slices}"

    def __repr__(self) -> str:
        return f"Topology({str(self)!r})"
