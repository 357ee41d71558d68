"""Targets to choose from: what each is, and the published figures of one device."""

from __future__ import annotations

from shardviz.core.format import bytes_text, count_text, plural
from shardviz.core.program.target import Target, Targets
from shardviz.picture.picture import Picture
from shardviz.picture.tables import Cell, matrix
from shardviz.picture.text_fit import wrapped

_COLUMNS: tuple[str, ...] = ("devices", "hosts", "memory", "bf16 peak", "memory bandwidth")
_RUNS, _COMPILES, _MISSING = 0, 3, 2  # the colours of verdicts: good, other, bad
_LEGEND = (
    (_RUNS, "programs run on it"),
    (_COMPILES, "programs compile for it"),
    (_MISSING, "its compiler is not installed"),
)


def draw_targets(found: Targets, title: str | None = None) -> Picture:
    """Targets: a row each, with the published figures of one device.

    >>> from shardviz.core.hardware.topology import Topology
    >>> pod = Target("described", "tpu", 16, "tpu:v5e:4x4", True)
    >>> draw_targets(Targets([pod])).tiles.tooltip(2)
    'tpu:v5e:4x4: memory 16 GiB per device'
    """
    cells = []
    for row, target in enumerate(found):
        group = _MISSING if target.missing else _COMPILES if target.text else _RUNS
        for column, text in enumerate(_figures(target)):
            if text:
                hint = f"{target.name}: {_COLUMNS[column]} {text}{' per device' * (column > 1)}"
                cells.append(Cell(row, column, text, group, hint))
    listing = "; ".join(f"{t.name}: {', '.join([str(t), *_in_words(t)])}" for t in found)
    return matrix(
        [t.name for t in found],
        _COLUMNS,
        cells,
        remarks=[f"{t}{'; ' * bool(t.missing)}{t.missing}" for t in found],
        title=plural(len(found), "target") if title is None else title,
        legend=_LEGEND,
        notes=["memory, bf16 peak and memory bandwidth are per device, as published"],
        alt=f"Targets. {listing or 'none'}.",
        colormap="verdicts",
        groups=4,
        facts={"kind": "targets"},
    )


def draw_target(target: Target, title: str | None = None) -> Picture:
    """One target, as its row of the table.

    >>> draw_target(Target("cpu", "cpu", 8)).alt
    'Targets. cpu:8: CPU × 8, simulated, 8 devices.'
    """
    return draw_targets(Targets([target]), str(target) if title is None else title)


def targets_text(found: Targets, width: int) -> str:
    """Targets: how each is written, what it is, and what one device of it has.

    >>> print(targets_text(Targets([Target("described", "gpu", 16, "gpu:h100:2x8", True)]), 80))
    gpu:h100:2x8  NVIDIA H100 SXM 2×8, described · 16 devices · 2 hosts · per device
                  79.1 GiB, 989.4 TFLOP/s in bf16, 3.4 TB/s
    """
    left = max((len(t.name) for t in found), default=0)
    lines = []
    for target in found:
        parts = [str(target), *_in_words(target), target.missing]
        line = f"{target.name:<{left}}  {' · '.join(filter(None, parts))}"
        lines += wrapped(line, width, " " * (left + 2))
    return "\n".join(lines) or "no targets"


def target_text(target: Target, width: int) -> str:
    """One target in words.

    >>> print(target_text(Target("cpu", "cpu", 8), 80))
    cpu:8  CPU × 8, simulated · 8 devices
    """
    return targets_text(Targets([target]), width)


def _figures(target: Target) -> tuple[str, ...]:
    """A text for each of `_COLUMNS`; `""` where it is not known."""
    count = "" if target.count is None else f"{target.count:,}"
    topology = target.topology
    if topology is None:
        return (count,)
    chip = topology.chip
    memory, peak, bandwidth = chip.device_bytes, chip.peak_bf16, chip.hbm_bandwidth
    return (
        count,
        f"{topology.hosts:,}",
        "" if memory is None else bytes_text(memory),
        "" if peak is None else f"{count_text(peak / chip.devices)}FLOP/s",
        "" if bandwidth is None else f"{count_text(bandwidth / chip.devices)}B/s",
    )


def _in_words(target: Target) -> list[str]:
    """The same figures for a line of text."""
    figures: dict[str, str] = dict(zip(_COLUMNS, _figures(target), strict=False))
    words = [plural(target.count, "device")] if target.count is not None else []
    if target.topology is not None:
        words.append(plural(target.topology.hosts, "host"))
    device = ", ".join(
        f"{figures[name]}{unit}"
        for name, unit in (("memory", ""), ("bf16 peak", " in bf16"), ("memory bandwidth", ""))
        if figures.get(name)
    )
    return [*words, f"per device {device}"] if device else words
