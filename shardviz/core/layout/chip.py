"""Chip: what the makers publish about one accelerator chip, and where each figure stands.

Nothing here is measured and nothing is guessed: a figure that nobody publishes is None. Rates are
per chip and one way, in bytes or operations a second; the figures of a device (jax's word for
what a program runs on, which may be half a chip) are those of the chip, divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SOURCES: Mapping[str, str] = {
    "book-tpus": "How to Scale Your Model, part 2, https://jax-ml.github.io/scaling-book/tpus",
    "book-gpus": "How to Scale Your Model, part 12, https://jax-ml.github.io/scaling-book/gpus",
    "google-v3": "Google Cloud, TPU v3, https://cloud.google.com/tpu/docs/v3",
    "google-v4": "Google Cloud, TPU v4, https://cloud.google.com/tpu/docs/v4",
    "google-v5e": "Google Cloud, TPU v5e, https://cloud.google.com/tpu/docs/v5e",
    "google-v5p": "Google Cloud, TPU v5p, https://cloud.google.com/tpu/docs/v5p",
    "google-v6e": "Google Cloud, TPU v6e, https://cloud.google.com/tpu/docs/v6e",
    "google-7x": "Google Cloud, TPU7x (Ironwood), https://cloud.google.com/tpu/docs/tpu7x",
    "google-v2": "Google Cloud, TPU v2, https://cloud.google.com/tpu/docs/v2",
    "nvidia-a100": "NVIDIA A100 data sheet, https://www.nvidia.com/en-us/data-center/a100",
    "nvidia-h100": "NVIDIA H100 data sheet, https://www.nvidia.com/en-us/data-center/h100",
    "nvidia-h200": "NVIDIA H200 data sheet, https://www.nvidia.com/en-us/data-center/h200",
    "nvidia-b200": "NVIDIA Blackwell architecture technical brief,"
    " https://resources.nvidia.com/en-us-blackwell-architecture",
    "nvidia-dgx-a100": "NVIDIA DGX A100 data sheet, https://www.nvidia.com/en-us/data-center/dgx-a100",
    "xla": "OpenXLA, xla/backends/gpu/target_config/specs, https://github.com/openxla/xla",
}


@dataclass(frozen=True)
class Chip:
    """One kind of chip, with its published figures.

    Attributes:
        name: as it is typed: `v5e`, `h100`.
        platform: `"tpu"` or `"gpu"`.
        title: as people call it: `TPU v5e`.
        kinds: what jax calls its devices: `device.device_kind`.
        axes: the axes of its torus; 0 for a GPU, whose hosts are joined by switches.
        host_shape: the chips of one host along each axis: `(2, 2, 1)`; of a GPU host, `(8,)`.
        pod: the chips along each axis of the largest machine; `()` where there is no limit.
        pod_chips: how many chips that machine has; None where there is no limit.
        devices: how many devices jax makes of one chip.
        config: libtpu's name of the configuration in which it does, where it has several.
        hbm_bytes: memory of the chip, in bytes.
        hbm_bandwidth: bytes a second between memory and cores.
        peak_bf16, peak_int8, peak_fp32: operations a second; dense, without sparsity.
        link_bandwidth: bytes a second, one way: of one ICI link of a TPU, of all the NVLinks of a
            GPU together.
        network_bandwidth: bytes a second, one way, of one chip's share of the data-center
            network: what joins slices, and the hosts of GPUs.
        wrap: how an axis closes to a ring: `"cube"`: where every axis is a multiple of 4;
            `"full"`: where the axis is as long as the pod's; `""`: never.
        gpu: for a GPU, the fields of XLA's `gpu_device_info` that describe it to the compiler.
        cited: field to the key of its source in `SOURCES`.
        notes: what a person should know about the figures.

    >>> from shardviz.core.layout.chips import find_chip
    >>> chip = find_chip("v5e")
    >>> chip.title, chip.hbm_bytes >> 30, chip.source("hbm_bytes")[:20]
    ('TPU v5e', 16, 'How to Scale Your Mo')
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
    peak_fp32: float | None = None
    link_bandwidth: float | None = None
    network_bandwidth: float | None = None
    wrap: str = ""
    kinds: tuple[str, ...] = ()
    gpu: Mapping[str, int | float | str] = field(default_factory=dict, hash=False)
    cited: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def links(self) -> int:
        """ICI links of one chip: two an axis; 0 for a GPU."""
        return 2 * self.axes

    @property
    def device_bytes(self) -> int | None:
        """Memory of one device: the chip's, shared evenly among its devices."""
        return None if self.hbm_bytes is None else self.hbm_bytes // self.devices

    def source(self, figure: str) -> str:
        """Where a figure is published; `""` where it is not.

        >>> from shardviz.core.layout.chips import find_chip
        >>> find_chip("h100").source("peak_fp32")
        'NVIDIA H100 data sheet, https://www.nvidia.com/en-us/data-center/h100'
        """
        return SOURCES.get(self.cited.get(figure, ""), "")

    def peak(self, dtype: str) -> float | None:
        """Operations a second that matrices of one type may reach; None where not published.

        On a TPU float32 goes through the matrix unit as bfloat16, jax's default precision, so
        bfloat16's figure bounds it too.

        >>> from shardviz.core.layout.chips import find_chip
        >>> find_chip("v5p").peak("int8") / find_chip("v5p").peak("float32")
        2.0
        """
        if dtype in ("int8", "uint8"):
            return self.peak_int8 or self.peak_bf16
        return self.peak_bf16

    def wraps(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Which axes of a slice of this shape close to a ring.

        The rule is the scaling book's, part 2: TPU v4, v5p and 7x join cubes of 4x4x4 chips by
        optical switches, which also close the rings; v5e and v6e close an axis of the pod's full
        16 chips.

        >>> from shardviz.core.layout.chips import find_chip
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
