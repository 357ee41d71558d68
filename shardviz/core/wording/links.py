"""What a collective puts on the links of described hardware, in one sentence."""

from __future__ import annotations

import numpy as np

from shardviz.core.format import bytes_text, joined, plural, seconds_text
from shardviz.core.hardware.interconnect import LinkUse
from shardviz.core.program.report import Collective
from shardviz.core.wording.stages import UNKNOWN_DEVICES

AXES = ("x", "y", "z")
# Collectives that go around a ring, or along a line where the ring is not closed.
_RINGS = ("all-gather", "reduce-scatter", "all-reduce", "collective-broadcast")
_WAYS = {"all-to-all": "Exchange", "collective-permute": "Sends"}


def links_in_words(collective: Collective, links: LinkUse | None) -> str:
    """The way of the bytes, the bytes on each link, and the least time that takes.

    Args:
        collective: of a Report or Plan.
        links: from `collective_link_use`; None where its groups are not known.

    >>> from shardviz.core.hardware.topology import Topology
    >>> from shardviz.core.hardware.interconnect import route
    >>> links = route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-gather")
    >>> links_in_words(Collective("all-gather", ("data",), 64 << 20), links)
    'Rings over data along x, y and z: each link carries 10.5 MiB each way, at least 110 µs.'
    """
    if links is None:
        return UNKNOWN_DEVICES
    size = collective.bytes_per_device
    loads = [*_on_links(links, size), *_on_networks(links, size)]
    if not loads:
        return "No bytes leave a chip."
    seconds = links.seconds(size)
    least = "at a rate that is not published"
    if seconds is not None:
        least = f"at least {seconds_text(seconds)}"
        if collective.execution_count > 1:
            least += f", {plural(collective.execution_count, 'time')}"
    head = _way(collective.kind, links)
    if collective.mesh_axes:
        head += f" over {' × '.join(collective.mesh_axes)}"
    used = [AXES[axis] for axis in _used_axes(links)]
    if used:
        head += f" along {joined(used)}"
    return f"{head}: {' and '.join(loads)}, {least}."


def _way(kind: str, links: LinkUse) -> str:
    used = _used_axes(links)
    if kind not in _RINGS or not used:
        return _WAYS.get(kind, kind.capitalize())
    # Along an axis that is not closed, data goes to and fro.
    closed = [_closes(links, axis) for axis in used]
    if all(closed):
        return "Rings"
    if any(closed):
        return "Rings and lines"
    return "Lines"


def _used_axes(links: LinkUse) -> list[int]:
    return [axis for axis in range(len(links.torus.shape)) if links.ici[:, axis].any()]


def _closes(links: LinkUse, axis: int) -> bool:
    """Whether the link from the last chip of an axis to its first is in use."""
    torus = links.torus
    following = torus.next_chip(axis)
    here = np.flatnonzero(following >= 0)
    around = here[torus.coords[following[here], axis] < torus.coords[here, axis]]
    return bool(links.ici[around, axis, 0].any())


def _on_links(links: LinkUse, size: int) -> list[str]:
    """What the links between chips carry, where they carry anything."""
    loads = links.ici[links.ici > 0]
    if not len(loads):
        return []
    most = bytes_text(round(float(loads.max()) * size))
    alike = float(loads.min()) > 0.99 * float(loads.max())
    # Equal loads on every link in both directions.
    if alike and len(loads) == 2 * links.used:
        return [f"each link carries {most} each way"]
    return [f"links carry up to {most} one way"]


def _on_networks(links: LinkUse, size: int) -> list[str]:
    """What NVLink and the network carry, where they carry anything."""
    # Chips in no torus are GPUs.
    chip = "GPU"
    if links.torus.shape:
        chip = "chip"
    parts = []
    for name, load in (("NVLink", links.nvlink), ("the network", links.network)):
        if load.any():
            most = bytes_text(round(float(load.max()) * size))
            parts.append(f"a {chip} sends {most} over {name}")
    return parts
