"""Chips and topologies: where figures are published, and what they are."""

from __future__ import annotations

from collections.abc import Mapping

from shardviz.base.format import joined, plural
from shardviz.hardware.targets import Target
from shardviz.hardware.topology import Topology

#: Where the figures of a chip are published: what `Chip.cited` names.
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


def target(what: Target) -> str:
    """What a target is, in a few words.

    >>> target(Target("cpu:8", "cpu", 8))
    'CPU × 8, simulated'
    """
    if what.kind == "hosts":
        of = plural(what.processes, "process", "processes")
        return f"{what.platform.upper()} × {what.count}, {of}"
    if what.topology is not None:
        return f"{what.topology.title}, described"
    if what.count is not None:
        how = "simulated"
        if what.kind == "attached":
            how = "attached"
        return f"{what.platform.upper()} × {what.count}, {how}"
    if what.kind == "cpu":
        return "CPU, simulated: as many devices as the mesh has"
    return "attached devices, looked up at the first run"


def published_rates(what: Topology) -> str:
    """Whose rates a least time is of."""
    return f"published rates of {what.chip.title}, {what}"


def topology(what: Topology) -> str:
    """What a topology is, in one sentence.

    >>> topology(Topology.parse("tpu:v5p:4x4x8"))
    '128 chips of TPU v5p as 4×4×8 on 32 hosts; every axis closes to a ring.'
    """
    hosts = plural(what.hosts, "host")
    if what.chip.platform == "gpu":
        gpus = f"{plural(what.chips, 'GPU')} ({what.chip.title})"
        return (
            f"{gpus} on {hosts} of {what.shape[1]}: NVLink inside a host, the network"
            " between hosts."
        )
    shape = "×".join(map(str, what.shape))
    words = (
        f"{plural(what.chips // what.slices, 'chip')} of {what.chip.title} as {shape}"
    )
    if what.slices > 1:
        words = f"{what.slices} slices of {words}"
    if what.chip.devices > 1:
        words += f", {plural(what.devices, 'device')} in all,"
    return f"{words} on {hosts}; {_rings(what.wraps)}."


def _rings(wraps: tuple[bool, ...]) -> str:
    if all(wraps):
        return "every axis closes to a ring"
    if not any(wraps):
        return "no axis closes to a ring"
    closed = [name for name, wrap in zip("xyz", wraps, strict=False) if wrap]
    verb = "closes to a ring" if len(closed) == 1 else "close to rings"
    return f"only {joined(closed)} {verb}"


EXPLANATIONS = {Topology: topology}


SENTENCES = {Target: target}
