"""Chips whose figures are published: TPUs of Google, GPUs of NVIDIA; and the sources.

Nothing here is measured or guessed: a figure that is not published is None. Rates are
per chip and one way, in bytes or operations per second; the figures of a device (jax's
word for what a program runs on, which may be half a chip) are those of the chip,
divided.

What the driver of a GPU reports to XLA, the fields of `gpu_device_info` in
`GpuTargetConfigProto`, is as OpenXLA publishes it for its own compiler in
`xla/backends/gpu/target_config/specs` (`a100_sxm_80`, `h100_sxm`, `h200` and
`b200.txtpb`). Sizes are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardviz.base.errors import TargetError
from shardviz.base.format import shown, suggestion


@dataclass(frozen=True)
class Chip:
    """One kind of chip, with its published figures.

    Attributes:
        name: as it is typed: `v5e`, `h100`.
        platform: `"tpu"` or `"gpu"`.
        title: as people call it: `TPU v5e`.
        kinds: what jax calls its devices: `device.device_kind`.
        axes: the axes of its torus; 0 for a GPU, whose hosts are joined by switches.
        host_shape: the chips of one host along each axis.
        pod, pod_chips: the shape of the largest machine, and how many chips it has;
            `()` and None where that is not published.
        devices: how many devices jax makes of one chip.
        config: libtpu's name of the configuration in which it does.
        hbm_bytes: memory of the chip, in bytes.
        hbm_bandwidth: bytes per second between memory and cores.
        peak_bf16, peak_int8: operations per second; dense, without sparsity.
        link_bandwidth: bytes per second, one way: of one ICI link of a TPU, of all the
            NVLinks of a GPU together.
        network_bandwidth: bytes per second, one way, of one chip's share of the
            data-center network: what joins slices, and the hosts of GPUs.
        wrap: how an axis closes to a ring: `"cube"`: where every axis is a multiple of
            4; `"full"`: where the axis is as long as the pod's; `""`: never.
        gpu: for a GPU, the fields of XLA's `gpu_device_info` that describe it to the
            compiler.
        cited: field to the key of its source in `SOURCES` of `words/hardware.py`.

    >>> chip = find_chip("v5e")
    >>> chip.title, chip.hbm_bytes >> 30, chip.cited["hbm_bytes"]
    ('TPU v5e', 16, 'book-tpus')
    """

    name: str
    platform: str
    title: str
    axes: int = 0
    host_shape: tuple[int, ...] = (2, 2, 1)
    pod: tuple[int, ...] = ()
    pod_chips: int | None = None
    devices: int = 1
    config: str = ""
    hbm_bytes: int | None = None
    hbm_bandwidth: float | None = None
    peak_bf16: float | None = None
    peak_int8: float | None = None
    link_bandwidth: float | None = None
    network_bandwidth: float | None = None
    wrap: str = ""
    kinds: tuple[str, ...] = ()
    gpu: Mapping[str, int | float | str] = field(default_factory=dict, hash=False)
    cited: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    @property
    def ici_links(self) -> int:
        """ICI links of one chip: two per axis; 0 for a GPU."""
        return 2 * self.axes

    @property
    def device_bytes(self) -> int | None:
        """Memory of one device: the chip's, shared evenly among its devices."""
        return None if self.hbm_bytes is None else self.hbm_bytes // self.devices

    def peak(self, dtype: str) -> float | None:
        """Operations per second that matrices of one type may reach; None where not
        published.

        On a TPU float32 goes through the matrix unit as bfloat16, jax's default
        precision, so bfloat16's figure bounds it too.

        >>> find_chip("v5p").peak("int8") / find_chip("v5p").peak("float32")
        2.0
        """
        if dtype in ("int8", "uint8"):
            return self.peak_int8 or self.peak_bf16
        return self.peak_bf16

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Which axes of a slice of this shape close to a ring.

        The rule is the scaling book's, part 2: TPU v4, v5p and 7x join cubes of 4x4x4
        chips by optical switches, which also close the rings; v5e and v6e close an axis
        of the pod's full 16 chips.

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


_Fields = Mapping[str, int | float | str]
# The same for every GPU here.
_COMMON: _Fields = {
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
_OWN = (
    "device_description_str", "core_count", "fpus_per_core", "memory_bandwidth",
    "l2_cache_size", "clock_rate_ghz", "device_memory_size", "compute_major", "compute_minor",
    "feature_extension", "shared_memory_per_core", "shared_memory_per_block_optin",
)  # fmt: skip


def _driver(*own: Any) -> _Fields:
    """What the driver of a GPU reports: the fields of `_OWN`, and the common ones."""
    return {**_COMMON, **dict(zip(_OWN, own, strict=True))}


_HOPPER = ("ACCELERATED_FEATURES", 233472, 232448)
_A100 = _driver("NVIDIA A100-SXM4-80GB", 108, 64, 2039040000000, 41943040, 1.41, 85100068864,
                8, 0, "NONE", 167936, 166912)  # fmt: skip
_H100 = _driver("NVIDIA H100 80GB HBM3", 132, 128, 3352320000000, 52428800, 1.98, 84942979072,
                9, 0, *_HOPPER)  # fmt: skip
_H200 = _driver("NVIDIA H200 141GB HBM3e", 132, 128, 4800000000000, 52428800, 1.98,
                151397597184, 9, 0, *_HOPPER)  # fmt: skip
_B200 = _driver("NVIDIA B200", 148, 128, 7672320000000, 132644864, 1.965, 191514411008,
                10, 0, *_HOPPER)  # fmt: skip


def _chip(
    platform: str, published: Mapping[str, tuple[Any, str]], *named: Any, **more: Any
) -> Chip:
    """A chip with its published figures, each a value and the key of its source."""
    cited = {}
    for field_name, (value, source) in published.items():
        more[field_name], cited[field_name] = value, source
    name, title, kinds = named
    return Chip(name, platform, title, kinds=kinds, cited=cited, **more)


def _gpu(
    name: str,
    title: str,
    kinds: tuple[str, ...],
    gpu: Mapping[str, int | float | str],
    **published: tuple[Any, str],
) -> Chip:
    """A GPU of a host of eight, with the fields that XLA's compiler asks for."""
    published["hbm_bytes"] = int(gpu["device_memory_size"]), "xla"
    return _chip("gpu", published, name, title, kinds, host_shape=(8,), gpu=gpu)


def _tpu(
    name: str,
    title: str,
    kinds: tuple[str, ...],
    axes: int,
    wrap: str,
    *,
    devices: int = 1,
    config: str = "",
    **published: tuple[Any, str],
) -> Chip:
    """A TPU; the shape of the largest machine, where published, says its chips, too."""
    if "pod" in published:
        shape, source = published["pod"]
        published["pod_chips"] = math.prod(shape), source
    more = {"axes": axes, "wrap": wrap, "devices": devices, "config": config}
    return _chip("tpu", published, name, title, kinds, **more)


_CHIPS = (
    _tpu(
        "v2",
        "TPU v2",
        ("TPU v2",),
        axes=2,
        wrap="full",
        devices=2,
        pod=((16, 16), "google-v2"),
    ),
    _tpu(
        "v3",
        "TPU v3",
        ("TPU v3",),
        axes=2,
        wrap="full",
        devices=2,
        pod=((32, 32), "google-v3"),
        hbm_bytes=(32 << 30, "google-v3"),
        hbm_bandwidth=(900e9, "google-v3"),
        peak_bf16=(123e12, "google-v3"),
        link_bandwidth=(1e11, "book-tpus"),
    ),
    _tpu(
        "v4",
        "TPU v4",
        ("TPU v4",),
        axes=3,
        wrap="cube",
        config="megacore",
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
        devices=2,
        pod_chips=(9216, "google-7x"),
        hbm_bytes=(192 << 30, "google-7x"),
        hbm_bandwidth=(7380e9, "google-7x"),
        peak_bf16=(2307e12, "google-7x"),
        # 1200 GB/s both ways, over 6 links.
        link_bandwidth=(1e11, "google-7x"),
        # 100 Gbit/s per chip.
        network_bandwidth=(1.25e10, "google-7x"),
    ),
    _gpu(
        "a100",
        "NVIDIA A100 80GB SXM",
        ("NVIDIA A100-SXM4-80GB",),
        _A100,
        hbm_bandwidth=(2039e9, "nvidia-a100"),
        peak_bf16=(312e12, "nvidia-a100"),
        peak_int8=(624e12, "nvidia-a100"),
        link_bandwidth=(300e9, "book-gpus"),
        # One adapter of 200 Gbit/s per GPU.
        network_bandwidth=(25e9, "nvidia-dgx-a100"),
    ),
    _gpu(
        "h100",
        "NVIDIA H100 SXM",
        ("NVIDIA H100 80GB HBM3",),
        _H100,
        hbm_bandwidth=(3350e9, "nvidia-h100"),
        peak_bf16=(989.4e12, "nvidia-h100"),
        peak_int8=(1978.9e12, "nvidia-h100"),
        link_bandwidth=(450e9, "book-gpus"),
        # One adapter of 400 Gbit/s per GPU.
        network_bandwidth=(50e9, "book-gpus"),
    ),
    _gpu(
        "h200",
        "NVIDIA H200 SXM",
        ("NVIDIA H200", "NVIDIA H200 141GB HBM3e"),
        _H200,
        hbm_bandwidth=(4800e9, "nvidia-h200"),
        peak_bf16=(989.4e12, "nvidia-h200"),
        peak_int8=(1978.9e12, "nvidia-h200"),
        link_bandwidth=(450e9, "book-gpus"),
        network_bandwidth=(50e9, "book-gpus"),
    ),
    _gpu(
        "b200",
        "NVIDIA B200 (HGX)",
        ("NVIDIA B200",),
        _B200,
        hbm_bandwidth=(8000e9, "book-gpus"),
        peak_bf16=(2250e12, "nvidia-b200"),
        peak_int8=(4500e12, "nvidia-b200"),
        link_bandwidth=(900e9, "book-gpus"),
        network_bandwidth=(50e9, "book-gpus"),
    ),
)
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _CHIPS}
_ALIASES = {
    "v7x": "7x",
    "tpu7x": "7x",
    "ironwood": "7x",
    "trillium": "v6e",
    "v5litepod": "v5e",
}


def find_chip(name: str, platform: str = "") -> Chip:
    """A chip by the name that is typed, in any case; `trillium` and `ironwood` too.

    Args:
        name: such as `v5e` or `h100`.
        platform: `"tpu"` or `"gpu"`, where only those are meant.

    Raises:
        TargetError: where no such chip is known, with the nearest name.

    >>> find_chip("Ironwood").name
    '7x'
    """
    key = str(name).lower()
    chip = CHIPS.get(_ALIASES.get(key, key))
    known = [c.name for c in _CHIPS if platform in ("", c.platform)]
    if chip is None or chip.name not in known:
        kind = {"tpu": "TPU", "gpu": "GPU"}.get(platform, "chip")
        raise TargetError(
            f"No figures of a {kind} {shown(name)} here.{suggestion(key, known)}"
        )
    return chip


def chip_of_kind(device_kind: str) -> Chip | None:
    """The chip of a device as jax names its kind; None for one without figures here.

    >>> chip_of_kind("TPU v5 lite").name, chip_of_kind("cpu")
    ('v5e', None)
    """
    return next((chip for chip in _CHIPS if device_kind in chip.kinds), None)
