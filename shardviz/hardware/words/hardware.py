"""Chips and topologies: where figures are published, and what they are."""

from __future__ import annotations

from shardviz.base.format import joined, plural
from shardviz.hardware.targets import Target
from shardviz.hardware.topology import Topology


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
