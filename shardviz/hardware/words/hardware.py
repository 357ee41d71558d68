"""Sentences about targets and topologies."""

from __future__ import annotations

import math

from shardviz.base.format import joined, plural
from shardviz.hardware.targets import Target
from shardviz.hardware.topology import Topology


def target_words(target: Target) -> str:
    """Describes a target in a few words.

    >>> target_words(Target("cpu:8", "cpu", 8))
    'CPU × 8, simulated'
    """
    if target.kind == "hosts":
        processes = plural(target.processes, "process", "processes")
        return f"{target.platform.upper()} × {target.count}, {processes}"
    if target.topology is not None:
        return f"{target.topology.title}, described"
    if target.count is not None:
        how = "simulated"
        if target.kind == "attached":
            how = "attached"
        return f"{target.platform.upper()} × {target.count}, {how}"
    if target.kind == "cpu":
        return "CPU, simulated: as many devices as the mesh has"
    return "attached devices, looked up at the first run"


def published_rates(topology: Topology) -> str:
    """Names the source of the rates that a least time is computed from."""
    return f"published rates of {topology.chip.title}, {topology}"


def topology_words(topology: Topology) -> str:
    """Describes a topology in one sentence.

    >>> topology_words(Topology.parse("tpu:v5p:4x4x8"))
    '128 TPU v5p chips as 4×4×8 on 32 hosts of 4 chips; every axis forms a ring.'
    """
    hosts = plural(topology.hosts, "host")
    if topology.chip.platform == "gpu":
        gpus = f"{plural(topology.chips, 'GPU')} ({topology.chip.title})"
        return (
            f"{gpus} on {hosts} of {topology.shape[1]}: NVLink inside a host, the network"
            " between hosts."
        )
    shape = "×".join(map(str, topology.shape))
    chips = plural(topology.chips // topology.slices, f"{topology.chip.title} chip")
    words = f"{chips} as {shape}"
    if topology.slices > 1:
        words = f"{topology.slices} slices of {words}"
    if topology.chip.devices > 1:
        words += f", {plural(topology.devices, 'device')} in total,"
    # Google's table of v5e has 8 chips per host, but a jax process gets 4 of them.
    if topology.hosts > 1:
        hosts += f" of {math.prod(topology.host_shape)} chips"
    return f"{words} on {hosts}; {_rings(topology.shape, topology.wraps)}."


def _rings(shape: tuple[int, ...], wraps: tuple[bool, ...]) -> str:
    if all(wraps):
        return "every axis forms a ring"
    if not any(wraps):
        return "no axis forms a ring"
    closed = [name for name, wrap in zip("xyz", wraps, strict=False) if wrap]
    if len(closed) == 1:
        length = shape[wraps.index(True)]
        return f"only the axis of {plural(length, 'chip')} forms a ring"
    return f"only {joined(closed)} form rings"


EXPLANATIONS = {Topology: topology_words}


SENTENCES = {Target: target_words}
