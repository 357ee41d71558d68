"""Published figures of chips (TPUs by Google, GPUs by NVIDIA), with their sources.

No figure is measured or guessed: an unpublished figure is None. Rates are per chip and
one way, in bytes or operations per second. A jax device can be half a chip; its figures
are then half of the chip's.

To add a chip, add an entry to `_CHIPS`, any new source to `SOURCES`, and a row to the
table in `docs/targets.md`. Each entry must list every figure, with its source or as
`NOT_PUBLISHED`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from shardviz.base.errors import TargetError
from shardviz.base.format import shown, suggestion

Shape = tuple[int, ...]

SOURCES: Mapping[str, str] = {
    "book-tpus": "How to Scale Your Model, part 2, https://jax-ml.github.io/scaling-book/tpus",
    "book-gpus": "How to Scale Your Model, part 12, https://jax-ml.github.io/scaling-book/gpus",
    "book-sharding": "How to Scale Your Model, part 3, https://jax-ml.github.io/scaling-book/sharding",
    "nccl": "NCCL, src/graph/tuning.cc and src/sym_kernels.cc, https://github.com/NVIDIA/nccl",
    "google-v2": "Google Cloud, TPU v2, https://cloud.google.com/tpu/docs/v2",
    "google-v3": "Google Cloud, TPU v3, https://cloud.google.com/tpu/docs/v3",
    "google-v4": "Google Cloud, TPU v4, https://cloud.google.com/tpu/docs/v4",
    "google-v5e": "Google Cloud, TPU v5e, https://cloud.google.com/tpu/docs/v5e",
    "google-v5p": "Google Cloud, TPU v5p, https://cloud.google.com/tpu/docs/v5p",
    "google-v6e": "Google Cloud, TPU v6e, https://cloud.google.com/tpu/docs/v6e",
    "google-7x": "Google Cloud, TPU7x (Ironwood), https://cloud.google.com/tpu/docs/tpu7x",
    "nvidia-a100": "NVIDIA A100 data sheet, https://www.nvidia.com/en-us/data-center/a100",
    "nvidia-h100": "NVIDIA H100 data sheet, https://www.nvidia.com/en-us/data-center/h100",
    "nvidia-h200": "NVIDIA H200 data sheet, https://www.nvidia.com/en-us/data-center/h200",
    "nvidia-b200": "NVIDIA Blackwell architecture technical brief,"
    " https://resources.nvidia.com/en-us-blackwell-architecture",
    "nvidia-dgx-a100": "NVIDIA DGX A100 data sheet, https://www.nvidia.com/en-us/data-center/dgx-a100",
    "xla": "OpenXLA, xla/backends/gpu/target_config/specs, https://github.com/openxla/xla",
}
"""Key of a source, as in `Chip.cited` -> its title and address."""


@dataclass(frozen=True)
class Chip:
    """One kind of chip, with its published figures.

    Attributes:
        name: the name that users type: `v5e`, `h100`.
        platform: `"tpu"` or `"gpu"`.
        title: the name in sentences: `TPU v5e`.
        aliases: other names that users may type: `trillium`.
        kinds: values of `device_kind` of the chip's jax devices.
        axes: the number of axes of the torus; 0 for a GPU, whose hosts are joined by
            switches.
        host_shape: number of chips of one host along each axis.
        pod, pod_chips: the shape and number of chips of the largest pod; `()` and None
            if not published.
        devices: the number of jax devices per chip.
        tensor_cores: cores per chip, which cloud names such as `v5p-64` count (sources:
            Cloud TPU's page on each generation, "TPU type" and "topology"; for TPU7x,
            xpk's table of systems).
        libtpu_name: libtpu's name for the generation in topology names.
        libtpu_config: libtpu's name for the configuration with this many devices per
            chip; `""` for the default.
        hbm_bytes: the chip's memory, in bytes.
        hbm_bandwidth: bytes per second between memory and cores.
        peak_bf16, peak_int8: dense operations per second, without sparsity.
        link_bandwidth: bytes per second, one way, of one ICI link of a TPU, or of all
            NVLinks of a GPU together.
        network_bandwidth: bytes per second, one way, of one chip's share of the
            data-center network, which joins TPU slices or GPU hosts.
        hop_latency: seconds until the first byte arrives, over one ICI link or NVLink.
        network_latency: seconds until the first byte arrives, over the data-center
            network.
        collective_latency: the least seconds of any gather, scatter or sum of GPUs,
            however small.
        wrap: when an axis forms a ring: `"cube"` if every axis is a multiple of 4,
            `"full"` if the axis is as long as the pod's, `""` never.
        gpu: fields of XLA's `gpu_device_info`, which describe a GPU to the compiler.
        cited: field name of a published figure -> its key in `SOURCES`.

    >>> chip = find_chip("v5e")
    >>> chip.title, chip.hbm_bytes >> 30, chip.cited["hbm_bytes"]
    ('TPU v5e', 16, 'book-tpus')
    """

    name: str
    platform: str
    title: str
    kinds: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    axes: int = 0
    host_shape: Shape = (2, 2, 1)
    pod: Shape = ()
    pod_chips: int | None = None
    devices: int = 1
    tensor_cores: int = 1
    libtpu_name: str = ""
    libtpu_config: str = ""
    hbm_bytes: int | None = None
    hbm_bandwidth: float | None = None
    peak_bf16: float | None = None
    peak_int8: float | None = None
    link_bandwidth: float | None = None
    network_bandwidth: float | None = None
    hop_latency: float | None = None
    network_latency: float | None = None
    collective_latency: float | None = None
    wrap: str = ""
    gpu: Mapping[str, int | float | str] = field(default_factory=dict, hash=False)
    cited: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    @property
    def ici_links(self) -> int:
        """Number of ICI links of one chip: two per axis; 0 for a GPU."""
        return 2 * self.axes

    @property
    def device_bytes(self) -> int | None:
        """Bytes of memory of one device: an even share of the chip's memory."""
        return None if self.hbm_bytes is None else self.hbm_bytes // self.devices

    def peak(self, dtype: str) -> float | None:
        """Returns the peak rate of matrix products of a dtype; None if not published.

        With jax's default precision, TPUs compute float32 products in bfloat16, so the
        bfloat16 figure applies to them too.

        >>> find_chip("v5p").peak("int8") / find_chip("v5p").peak("float32")
        2.0
        """
        if dtype in ("int8", "uint8"):
            return self.peak_int8 or self.peak_bf16
        return self.peak_bf16

    def wraps(self, shape: Shape) -> tuple[bool, ...]:
        """Returns whether each axis of a slice of this shape forms a ring.

        Follows the scaling book, part 2. TPU v4, v5p and 7x consist of cubes of 4x4x4
        chips, joined by optical switches that also close the rings. In v5e and v6e, an
        axis closes if it has the pod's full 16 chips.

        >>> find_chip("v5p").wraps((4, 4, 8)), find_chip("v5e").wraps((8, 16))
        ((True, True, True), (False, True))
        """
        if self.wrap == "cube":
            return (all(size % 4 == 0 for size in shape),) * len(shape)
        if self.wrap == "full":
            return tuple(n == full for n, full in zip(shape, self.pod, strict=True))
        return (False,) * len(shape)

    def __str__(self) -> str:
        return self.title


# --- published figures -----------------------------------------------------------------

Figure: TypeAlias = tuple[float, str] | None
"""A published figure and the key of its source; or `NOT_PUBLISHED`."""

NOT_PUBLISHED: Final = None


def _values_and_sources(
    figures: Mapping[str, tuple[float | Shape, str] | None],
) -> tuple[dict[str, float | Shape], dict[str, str]]:
    """Splits figures into dicts of values and of sources, keyed by field of `Chip`."""
    values: dict[str, float | Shape] = {}
    cited: dict[str, str] = {}
    for name, figure in figures.items():
        if figure is None:
            continue
        value, source = figure
        if source not in SOURCES:
            raise LookupError(f"{name} cites {source!r}, which is not in SOURCES.")
        values[name], cited[name] = value, source
    return values, cited


# The smallest published latencies, so that times stay lower bounds; the same for all
# chips of a platform unless a chip names its own. The scaling book:
# "typically around 1us" for each hop. NCCL's model has a latency for each algorithm and
# protocol: a step takes 0.6 µs on NVLink and 2.7 µs on the network (ring, LL). A whole
# collective takes 4.5 µs before Blackwell (its kernels for symmetric memory, LL), and
# 6.6 µs on Blackwell (ring, LL).
_ICI_HOP = (1e-6, "book-sharding")
_NVLINK_STEP, _NETWORK_STEP = (0.6e-6, "nccl"), (2.7e-6, "nccl")


# Figures have no defaults in these functions, so that none can be forgotten.
def _tpu(
    name: str,
    title: str,
    kinds: tuple[str, ...],
    *,
    axes: int,
    wrap: str,
    tensor_cores: int,
    pod: tuple[Shape | int, str] | None,
    hbm_bytes: tuple[int, str] | None,
    hbm_bandwidth: Figure,
    peak_bf16: Figure,
    peak_int8: Figure,
    link_bandwidth: Figure,
    network_bandwidth: Figure,
    devices: int = 1,
    libtpu_name: str = "",
    libtpu_config: str = "",
    aliases: tuple[str, ...] = (),
) -> Chip:
    """Creates a TPU generation; `pod` is a shape, or only a number of chips."""
    shape, chips = None, pod
    if pod is not None and isinstance(pod[0], tuple):
        shape, chips = pod, (math.prod(pod[0]), pod[1])
    values, cited = _values_and_sources(
        {
            "pod": shape,
            "pod_chips": chips,
            "hbm_bytes": hbm_bytes,
            "hbm_bandwidth": hbm_bandwidth,
            "peak_bf16": peak_bf16,
            "peak_int8": peak_int8,
            "link_bandwidth": link_bandwidth,
            "network_bandwidth": network_bandwidth,
            "hop_latency": _ICI_HOP,
        }
    )
    traits = {
        "aliases": aliases,
        "axes": axes,
        "wrap": wrap,
        "devices": devices,
        "tensor_cores": tensor_cores,
        "libtpu_name": libtpu_name or name,
        "libtpu_config": libtpu_config,
    }
    fields: dict[str, Any] = {**traits, **values}
    return Chip(name, "tpu", title, kinds, cited=cited, **fields)


def _gpu(
    name: str,
    title: str,
    kinds: tuple[str, ...],
    *,
    driver: _DriverFields,
    hbm_bandwidth: Figure,
    peak_bf16: Figure,
    peak_int8: Figure,
    link_bandwidth: Figure,
    network_bandwidth: Figure,
    collective_latency: Figure,
) -> Chip:
    """Creates a GPU: eight per host, with the memory size that its driver reports."""
    values, cited = _values_and_sources(
        {
            "hbm_bytes": (int(driver["device_memory_size"]), "xla"),
            "hbm_bandwidth": hbm_bandwidth,
            "peak_bf16": peak_bf16,
            "peak_int8": peak_int8,
            "link_bandwidth": link_bandwidth,
            "network_bandwidth": network_bandwidth,
            "hop_latency": _NVLINK_STEP,
            "network_latency": _NETWORK_STEP,
            "collective_latency": collective_latency,
        }
    )
    fields: dict[str, Any] = dict(values)
    return Chip(
        name, "gpu", title, kinds, host_shape=(8,), gpu=driver, cited=cited, **fields
    )


# What a GPU's driver reports to XLA: the fields of `gpu_device_info` in
# `GpuTargetConfigProto`. OpenXLA publishes these values in
# `xla/backends/gpu/target_config/specs` (`a100_sxm_80`, `h100_sxm`, `h200` and
# `b200.txtpb`). Sizes are in bytes.
_DriverFields: TypeAlias = Mapping[str, int | float | str]
_SAME_FOR_ALL: _DriverFields = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "threads_per_core_limit": 2048,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}
_DIFFERENT = (
    "device_description_str", "core_count", "fpus_per_core", "memory_bandwidth",
    "l2_cache_size", "clock_rate_ghz", "device_memory_size", "compute_major", "compute_minor",
    "feature_extension", "shared_memory_per_core", "shared_memory_per_block_optin",
)  # fmt: skip


def _driver(*values: int | float | str) -> _DriverFields:
    """Creates a GPU's driver fields from the values of the fields in `_DIFFERENT`."""
    return {**_SAME_FOR_ALL, **dict(zip(_DIFFERENT, values, strict=True))}


_ACCELERATED = ("ACCELERATED_FEATURES", 233472, 232448)
_A100 = _driver("NVIDIA A100-SXM4-80GB", 108, 64, 2039040000000, 41943040, 1.41, 85100068864,
                8, 0, "NONE", 167936, 166912)  # fmt: skip
_H100 = _driver("NVIDIA H100 80GB HBM3", 132, 128, 3352320000000, 52428800, 1.98, 84942979072,
                9, 0, *_ACCELERATED)  # fmt: skip
_H200 = _driver("NVIDIA H200 141GB HBM3e", 132, 128, 4800000000000, 52428800, 1.98,
                151397597184, 9, 0, *_ACCELERATED)  # fmt: skip
_B200 = _driver("NVIDIA B200", 148, 128, 7672320000000, 132644864, 1.965, 191514411008,
                10, 0, *_ACCELERATED)  # fmt: skip

_CHIPS = (
    _tpu(
        "v2",
        "TPU v2",
        ("TPU v2",),
        axes=2,
        wrap="full",
        tensor_cores=2,
        devices=2,
        pod=((16, 16), "google-v2"),
        hbm_bytes=NOT_PUBLISHED,
        hbm_bandwidth=NOT_PUBLISHED,
        peak_bf16=NOT_PUBLISHED,
        peak_int8=NOT_PUBLISHED,
        link_bandwidth=NOT_PUBLISHED,
        network_bandwidth=NOT_PUBLISHED,
    ),
    _tpu(
        "v3",
        "TPU v3",
        ("TPU v3",),
        axes=2,
        wrap="full",
        tensor_cores=2,
        devices=2,
        pod=((32, 32), "google-v3"),
        hbm_bytes=(32 << 30, "google-v3"),
        hbm_bandwidth=(900e9, "google-v3"),
        peak_bf16=(123e12, "google-v3"),
        peak_int8=NOT_PUBLISHED,
        link_bandwidth=(1e11, "book-tpus"),
        network_bandwidth=NOT_PUBLISHED,
    ),
    _tpu(
        "v4",
        "TPU v4",
        ("TPU v4",),
        axes=3,
        wrap="cube",
        tensor_cores=2,
        libtpu_config="megacore",
        pod=((16, 16, 16), "book-tpus"),
        hbm_bytes=(32 << 30, "google-v4"),
        hbm_bandwidth=(1200e9, "google-v4"),
        peak_bf16=(275e12, "google-v4"),
        peak_int8=(275e12, "google-v4"),
        link_bandwidth=(4.5e10, "book-tpus"),
        # 2.5e10 per host of 4 chips.
        network_bandwidth=(6.25e9, "book-tpus"),
    ),
    _tpu(
        "v5e",
        "TPU v5e",
        ("TPU v5 lite", "TPU v5e"),
        axes=2,
        wrap="full",
        tensor_cores=1,
        aliases=("v5litepod",),
        pod=((16, 16), "google-v5e"),
        hbm_bytes=(16 << 30, "book-tpus"),
        hbm_bandwidth=(819e9, "google-v5e"),
        peak_bf16=(197e12, "google-v5e"),
        peak_int8=(393e12, "google-v5e"),
        # 400 GB/s both ways, over 4 links.
        link_bandwidth=(5e10, "google-v5e"),
        # 2 x 100 Gbit/s per host of 8 chips.
        network_bandwidth=(3.125e9, "google-v6e"),
    ),
    _tpu(
        "v5p",
        "TPU v5p",
        ("TPU v5", "TPU v5p"),
        axes=3,
        wrap="cube",
        tensor_cores=2,
        pod=((16, 20, 28), "book-tpus"),
        hbm_bytes=(95 << 30, "google-v5p"),
        hbm_bandwidth=(2765e9, "google-7x"),
        peak_bf16=(459e12, "google-v5p"),
        peak_int8=(918e12, "book-tpus"),
        # 1200 GB/s both ways, over 6 links.
        link_bandwidth=(1e11, "google-v5p"),
        # 50 Gbit/s per chip.
        network_bandwidth=(6.25e9, "google-v5p"),
    ),
    _tpu(
        "v6e",
        "TPU v6e (Trillium)",
        ("TPU v6 lite", "TPU v6e"),
        axes=2,
        wrap="full",
        tensor_cores=1,
        aliases=("trillium",),
        pod=((16, 16), "google-v6e"),
        hbm_bytes=(32 << 30, "google-7x"),
        hbm_bandwidth=(1638e9, "google-7x"),
        peak_bf16=(918e12, "google-v6e"),
        peak_int8=(1836e12, "google-v6e"),
        # 800 GB/s both ways, over 4 links.
        link_bandwidth=(1e11, "google-v6e"),
        # 100 Gbit/s per chip.
        network_bandwidth=(1.25e10, "google-7x"),
    ),
    _tpu(
        "7x",
        "TPU7x (Ironwood)",
        ("TPU7x",),
        axes=3,
        wrap="cube",
        tensor_cores=2,
        aliases=("v7x", "tpu7x", "ironwood"),
        devices=2,
        libtpu_name="tpu7x",
        # The pod's shape is not published.
        pod=(9216, "google-7x"),
        hbm_bytes=(192 << 30, "google-7x"),
        hbm_bandwidth=(7380e9, "google-7x"),
        peak_bf16=(2307e12, "google-7x"),
        peak_int8=NOT_PUBLISHED,
        # 1200 GB/s both ways, over 6 links.
        link_bandwidth=(1e11, "google-7x"),
        # 100 Gbit/s per chip.
        network_bandwidth=(1.25e10, "google-7x"),
    ),
    _gpu(
        "a100",
        "NVIDIA A100 80GB SXM",
        ("NVIDIA A100-SXM4-80GB",),
        driver=_A100,
        hbm_bandwidth=(2039e9, "nvidia-a100"),
        peak_bf16=(312e12, "nvidia-a100"),
        peak_int8=(624e12, "nvidia-a100"),
        link_bandwidth=(300e9, "book-gpus"),
        # One adapter of 200 Gbit/s per GPU.
        network_bandwidth=(25e9, "nvidia-dgx-a100"),
        collective_latency=(4.5e-6, "nccl"),
    ),
    _gpu(
        "h100",
        "NVIDIA H100 SXM",
        ("NVIDIA H100 80GB HBM3",),
        driver=_H100,
        hbm_bandwidth=(3350e9, "nvidia-h100"),
        peak_bf16=(989.4e12, "nvidia-h100"),
        peak_int8=(1978.9e12, "nvidia-h100"),
        link_bandwidth=(450e9, "book-gpus"),
        # One adapter of 400 Gbit/s per GPU.
        network_bandwidth=(50e9, "book-gpus"),
        collective_latency=(4.5e-6, "nccl"),
    ),
    _gpu(
        "h200",
        "NVIDIA H200 SXM",
        ("NVIDIA H200", "NVIDIA H200 141GB HBM3e"),
        driver=_H200,
        hbm_bandwidth=(4800e9, "nvidia-h200"),
        peak_bf16=(989.4e12, "nvidia-h200"),
        peak_int8=(1978.9e12, "nvidia-h200"),
        link_bandwidth=(450e9, "book-gpus"),
        network_bandwidth=(50e9, "book-gpus"),
        collective_latency=(4.5e-6, "nccl"),
    ),
    _gpu(
        "b200",
        "NVIDIA B200 (HGX)",
        ("NVIDIA B200",),
        driver=_B200,
        hbm_bandwidth=(8000e9, "book-gpus"),
        peak_bf16=(2250e12, "nvidia-b200"),
        peak_int8=(4500e12, "nvidia-b200"),
        link_bandwidth=(900e9, "book-gpus"),
        network_bandwidth=(50e9, "book-gpus"),
        collective_latency=(6.6e-6, "nccl"),
    ),
)
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _CHIPS}
_BY_ANY_NAME = CHIPS | {alias: chip for chip in _CHIPS for alias in chip.aliases}


def find_chip(name: str, platform: str = "") -> Chip:
    """Finds a chip by its name or an alias, such as `trillium`; ignores case.

    Args:
        name: a name such as `v5e` or `h100`, or an alias.
        platform: `"tpu"` or `"gpu"` to find only chips of that platform.

    Raises:
        TargetError: if no such chip is known; the message suggests a similar name.

    >>> find_chip("Ironwood").name
    '7x'
    """
    key = str(name).lower()
    chip = _BY_ANY_NAME.get(key)
    names = [c.name for c in _CHIPS if platform in ("", c.platform)]
    if chip is None or chip.name not in names:
        kind = {"tpu": "TPU", "gpu": "GPU"}.get(platform, "chip")
        raise TargetError(
            f"No data is available for a {kind} {shown(name)}.{suggestion(key, names)}"
        )
    return chip


def chip_of_kind(device_kind: str) -> Chip | None:
    """Finds the chip of a jax `device_kind`; None if unknown.

    >>> chip_of_kind("TPU v5 lite").name, chip_of_kind("cpu")
    ('v5e', None)
    """
    return next((chip for chip in _CHIPS if device_kind in chip.kinds), None)
