"""The chips whose figures are published: TPUs of Google, GPUs of NVIDIA.

Each figure names its source; `chip.py` says what the figures mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.core.errors import TargetError, shown, suggestion
from shardviz.core.layout.chip import Chip
from shardviz.core.layout.gpu_figures import GPU_FIGURES


def _tpu(name: str, title: str, cited: str, **figures) -> Chip:
    """A TPU; `cited` says `field=source` for every figure."""
    return Chip(name, "tpu", title, cited=_cited(cited), **figures)


def _gpu(name: str, title: str, cited: str, **figures) -> Chip:
    gpu = GPU_FIGURES[name]
    figures["hbm_bytes"] = int(gpu["device_memory_size"])
    known = _cited("hbm_bytes=xla " + cited)
    return Chip(name, "gpu", title, host_shape=(8,), gpu=gpu, cited=known, **figures)


def _cited(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


_CORES = "jax sees its two cores as two devices; the memory and the rates of the chip are shared."
_MEGACORE = "jax joins the two cores of a chip to one device, which is called a megacore."

_CHIPS = (
    _tpu(
        "v2",
        "TPU v2",
        "pod=google-v2 pod_chips=google-v2",
        kinds=("TPU v2",),
        axes=2,
        pod=(16, 16),
        pod_chips=256,
        devices=2,
        wrap="full",
        notes=(_CORES, "Google's page for TPU v2 publishes no rates."),
    ),
    _tpu(
        "v3",
        "TPU v3",
        "hbm_bytes=google-v3 hbm_bandwidth=google-v3 peak_bf16=google-v3 link_bandwidth=book-tpus"
        " pod=google-v3 pod_chips=google-v3",
        kinds=("TPU v3",),
        axes=2,
        pod=(32, 32),
        pod_chips=1024,
        devices=2,
        hbm_bytes=32 << 30,
        hbm_bandwidth=900e9,
        peak_bf16=123e12,
        link_bandwidth=1e11,
        wrap="full",
        notes=(_CORES,),
    ),
    _tpu(
        "v4",
        "TPU v4",
        "hbm_bytes=google-v4 hbm_bandwidth=google-v4 peak_bf16=google-v4 peak_int8=google-v4"
        " link_bandwidth=book-tpus network_bandwidth=book-tpus pod=book-tpus pod_chips=book-tpus",
        kinds=("TPU v4",),
        axes=3,
        pod=(16, 16, 16),
        pod_chips=4096,
        config="megacore",
        hbm_bytes=32 << 30,
        hbm_bandwidth=1200e9,
        peak_bf16=275e12,
        peak_int8=275e12,
        link_bandwidth=4.5e10,
        network_bandwidth=6.25e9,  # 2.5e10 a host of 4 chips
        wrap="cube",
        notes=(_MEGACORE,),
    ),
    _tpu(
        "v5e",
        "TPU v5e",
        "hbm_bytes=book-tpus hbm_bandwidth=google-v5e peak_bf16=google-v5e peak_int8=google-v5e"
        " link_bandwidth=google-v5e network_bandwidth=google-v6e pod=google-v5e"
        " pod_chips=google-v5e",
        kinds=("TPU v5 lite", "TPU v5e"),
        axes=2,
        pod=(16, 16),
        pod_chips=256,
        hbm_bytes=16 << 30,
        hbm_bandwidth=819e9,
        peak_bf16=197e12,
        peak_int8=393e12,
        link_bandwidth=5e10,  # 400 GB/s both ways, over 4 links
        network_bandwidth=3.125e9,  # 2 x 100 Gbit/s a host of 8 chips
        wrap="full",
        notes=("A host has 8 chips, which Google Cloud gives out as two machines of 4.",),
    ),
    _tpu(
        "v5p",
        "TPU v5p",
        "hbm_bytes=google-v5p hbm_bandwidth=google-7x peak_bf16=google-v5p peak_int8=book-tpus"
        " link_bandwidth=google-v5p network_bandwidth=google-v5p pod=book-tpus pod_chips=book-tpus",
        kinds=("TPU v5", "TPU v5p"),
        axes=3,
        pod=(16, 20, 28),
        pod_chips=8960,
        hbm_bytes=95 << 30,
        hbm_bandwidth=2765e9,
        peak_bf16=459e12,
        peak_int8=918e12,
        link_bandwidth=1e11,  # 1200 GB/s both ways, over 6 links
        network_bandwidth=6.25e9,  # 50 Gbit/s a chip
        wrap="cube",
    ),
    _tpu(
        "v6e",
        "TPU v6e (Trillium)",
        "hbm_bytes=google-7x hbm_bandwidth=google-7x peak_bf16=google-v6e peak_int8=google-v6e"
        " link_bandwidth=google-v6e network_bandwidth=google-7x pod=google-v6e"
        " pod_chips=google-v6e",
        kinds=("TPU v6 lite", "TPU v6e"),
        axes=2,
        pod=(16, 16),
        pod_chips=256,
        hbm_bytes=32 << 30,
        hbm_bandwidth=1638e9,
        peak_bf16=918e12,
        peak_int8=1836e12,
        link_bandwidth=1e11,  # 800 GB/s both ways, over 4 links
        network_bandwidth=1.25e10,  # 100 Gbit/s a chip
        wrap="full",
        notes=("A host has 8 chips, which Google Cloud gives out as two machines of 4.",),
    ),
    _tpu(
        "7x",
        "TPU7x (Ironwood)",
        "hbm_bytes=google-7x hbm_bandwidth=google-7x peak_bf16=google-7x link_bandwidth=google-7x"
        " network_bandwidth=google-7x pod_chips=google-7x",
        kinds=("TPU7x",),
        axes=3,
        pod_chips=9216,
        devices=2,
        hbm_bytes=192 << 30,
        hbm_bandwidth=7380e9,
        peak_bf16=2307e12,
        link_bandwidth=1e11,  # 1200 GB/s both ways, over 6 links
        network_bandwidth=1.25e10,  # 100 Gbit/s a chip
        wrap="cube",
        notes=(_CORES, "Google publishes 4614 TFLOP/s for FP8, and nothing for int8."),
    ),
    _gpu(
        "a100",
        "NVIDIA A100 80GB SXM",
        "hbm_bandwidth=nvidia-a100 peak_bf16=nvidia-a100 peak_int8=nvidia-a100"
        " peak_fp32=nvidia-a100 link_bandwidth=book-gpus network_bandwidth=nvidia-dgx-a100",
        kinds=("NVIDIA A100-SXM4-80GB",),
        hbm_bandwidth=2039e9,
        peak_bf16=312e12,
        peak_int8=624e12,
        peak_fp32=19.5e12,
        link_bandwidth=300e9,
        network_bandwidth=25e9,  # one adapter of 200 Gbit/s a GPU
    ),
    _gpu(
        "h100",
        "NVIDIA H100 SXM",
        "hbm_bandwidth=nvidia-h100 peak_bf16=nvidia-h100 peak_int8=nvidia-h100"
        " peak_fp32=nvidia-h100 link_bandwidth=book-gpus network_bandwidth=book-gpus",
        kinds=("NVIDIA H100 80GB HBM3",),
        hbm_bandwidth=3350e9,
        peak_bf16=989.4e12,
        peak_int8=1978.9e12,
        peak_fp32=67e12,
        link_bandwidth=450e9,
        network_bandwidth=50e9,  # one adapter of 400 Gbit/s a GPU
    ),
    _gpu(
        "h200",
        "NVIDIA H200 SXM",
        "hbm_bandwidth=nvidia-h200 peak_bf16=nvidia-h200 peak_int8=nvidia-h200"
        " peak_fp32=nvidia-h200 link_bandwidth=book-gpus network_bandwidth=book-gpus",
        kinds=("NVIDIA H200", "NVIDIA H200 141GB HBM3e"),
        hbm_bandwidth=4800e9,
        peak_bf16=989.4e12,
        peak_int8=1978.9e12,
        peak_fp32=67e12,
        link_bandwidth=450e9,
        network_bandwidth=50e9,
    ),
    _gpu(
        "b200",
        "NVIDIA B200 (HGX)",
        "hbm_bandwidth=book-gpus peak_bf16=nvidia-b200 peak_int8=nvidia-b200"
        " peak_fp32=nvidia-b200 link_bandwidth=book-gpus network_bandwidth=book-gpus",
        kinds=("NVIDIA B200",),
        hbm_bandwidth=8000e9,
        peak_bf16=2250e12,
        peak_int8=4500e12,
        peak_fp32=80e12,
        link_bandwidth=900e9,
        network_bandwidth=50e9,
    ),
)
CHIPS: Mapping[str, Chip] = {chip.name: chip for chip in _CHIPS}
_ALIASES = {"v7x": "7x", "tpu7x": "7x", "ironwood": "7x", "trillium": "v6e", "v5litepod": "v5e"}


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
        raise TargetError(f"No figures of a {kind} {shown(name)} here.{suggestion(key, known)}")
    return chip


def chip_of_kind(device_kind: str) -> Chip | None:
    """The chip of a device as jax names its kind; None for one without figures here.

    >>> chip_of_kind("TPU v5 lite").name, chip_of_kind("cpu")
    ('v5e', None)
    """
    return next((chip for chip in _CHIPS if device_kind in chip.kinds), None)
