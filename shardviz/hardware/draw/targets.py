"""The text table of targets, with the published figures of their chips."""

from __future__ import annotations

from shardviz.base.format import bytes_text, count_text, plural
from shardviz.draw.page import wrapped
from shardviz.hardware.targets import Target, Targets
from shardviz.hardware.topology import Topology


def targets_text(value: Target | Targets, width: int) -> str:
    """Writes a line per target: its name, description, and figures per device.

    >>> cluster = Target("described", "gpu", 16, "gpu:h100:2x8", True)
    >>> print(targets_text(cluster, 80))
    gpu:h100:2x8  NVIDIA H100 SXM 2×8, described · 16 devices · 2 hosts · per device
                  79.1 GiB, 989.4 TFLOP/s in bf16, 3.4 TB/s
    """
    targets = [value] if isinstance(value, Target) else list(value)
    indent, lines = max((len(target.name) for target in targets), default=0), []
    for target in targets:
        parts, topology = [str(target)], target.topology
        if target.count is not None:
            parts.append(plural(target.count, "device"))
        if topology is not None:
            parts.append(plural(topology.hosts, "host"))
            parts.append(f"per device {_figures(topology)}")
        words = " · ".join(filter(None, [*parts, target.missing]))
        line = f"{target.name:<{indent}}  {words}"
        lines += wrapped(line, width, " " * (indent + 2))
    return "\n".join(lines) or "no targets"


def _figures(topology: Topology) -> str:
    """Formats the published figures of one device."""
    chip, figures = topology.chip, []
    if chip.device_bytes is not None:
        figures.append(bytes_text(chip.device_bytes))
    if chip.peak_bf16 is not None:
        peak = count_text(chip.peak_bf16 / chip.devices)
        figures.append(f"{peak}FLOP/s in bf16")
    if chip.hbm_bandwidth is not None:
        figures.append(f"{count_text(chip.hbm_bandwidth / chip.devices)}B/s")
    return ", ".join(figures)
