"""Targets: what programs can be compiled for or run on, with their published figures."""

from __future__ import annotations

from shardviz.core.format import bytes_text, count_text, plural
from shardviz.core.program.program import Target, Targets
from shardviz.core.wording import pictures as wording
from shardviz.picture.page import sentences, titled, wrapped
from shardviz.picture.picture import Picture
from shardviz.picture.tables import Cell, matrix

HEADS = ("devices", "hosts", "memory", "bf16 peak", "memory bandwidth")
# The colours of verdicts: good, other, bad.
RUNS, COMPILES, MISSING = 0, 3, 2
LEGEND = tuple(zip((RUNS, COMPILES, MISSING), wording.TARGETS, strict=True))


def draw_targets(found: Targets, title: str | None = None) -> Picture:
    """Targets: a row each, with the published figures of one device."""
    cells, remarks = [], []
    for row, target in enumerate(found):
        group = RUNS
        if target.missing:
            group = MISSING
        elif target.text:
            group = COMPILES
        for column, text in enumerate(_figures(target)):
            # Devices and hosts are counted in all, the rest is per device.
            each = " per device" if column > 1 else ""
            if text:
                hint = f"{target.name}: {HEADS[column]} {text}{each}"
                cells.append(Cell(row, column, text, group, hint))
        remarks.append("; ".join(filter(None, (str(target), target.missing))))
    return matrix(
        [target.name for target in found],
        HEADS,
        cells,
        remarks=remarks,
        title=titled(title, plural(len(found), "target")),
        legend=LEGEND,
        notes=[wording.PER_DEVICE],
        alt=sentences(_lines(found)),
        colormap="verdicts",
        groups=4,
        facts={"kind": "targets"},
    )


def draw_target(target: Target, title: str | None = None) -> Picture:
    """One target, as its row of the table."""
    return draw_targets(Targets([target]), titled(title, str(target)))


def targets_text(found: Targets, width: int) -> str:
    """Targets: how each is written, what it is, and what one device of it has.

    >>> cluster = Target("described", "gpu", 16, "gpu:h100:2x8", True)
    >>> print(targets_text(Targets([cluster]), 80))
    gpu:h100:2x8  NVIDIA H100 SXM 2×8, described · 16 devices · 2 hosts · per device
                  79.1 GiB, 989.4 TFLOP/s in bf16, 3.4 TB/s
    """
    left = max((len(target.name) for target in found), default=0)
    lines = []
    for line in _lines(found):
        lines += wrapped(line, width, " " * (left + 2))
    return "\n".join(lines)


def target_text(target: Target, width: int) -> str:
    """One target in words.

    >>> print(target_text(Target("cpu", "cpu", 8), 80))
    cpu:8  CPU × 8, simulated · 8 devices
    """
    return targets_text(Targets([target]), width)


def _lines(found: Targets) -> list[str]:
    left = max((len(target.name) for target in found), default=0)
    lines = []
    for target in found:
        parts, topology = [str(target)], target.topology
        if target.count is not None:
            parts.append(plural(target.count, "device"))
        if topology is not None:
            parts.append(plural(topology.hosts, "host"))
            _, _, memory, peak, bandwidth = _figures(target)
            device = [memory, f"{peak} in bf16" if peak else "", bandwidth]
            parts.append(f"per device {', '.join(filter(None, device))}")
        words = " · ".join(filter(None, [*parts, target.missing]))
        lines.append(f"{target.name:<{left}}  {words}")
    return lines or ["no targets"]


def _figures(target: Target) -> tuple[str, ...]:
    """A text for each of HEADS; `""` where it is not known."""
    count, topology = "", target.topology
    if target.count is not None:
        count = f"{target.count:,}"
    if topology is None:
        return (count, "", "", "", "")
    chip, memory, peak, bandwidth = topology.chip, "", "", ""
    if chip.device_bytes is not None:
        memory = bytes_text(chip.device_bytes)
    if chip.peak_bf16 is not None:
        peak = f"{count_text(chip.peak_bf16 / chip.devices)}FLOP/s"
    if chip.hbm_bandwidth is not None:
        bandwidth = f"{count_text(chip.hbm_bandwidth / chip.devices)}B/s"
    return (count, f"{topology.hosts:,}", memory, peak, bandwidth)
