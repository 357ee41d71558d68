"""What a collective puts on the links of described hardware, in one sentence."""

from __future__ import annotations

from shardviz.core.format import bytes_text, joined, plural, seconds_text
from shardviz.core.hardware.interconnect import LinkUse
from shardviz.core.program.report import Collective
from shardviz.core.wording.stages import UNKNOWN_DEVICES


def links_in_words(collective: Collective, links: LinkUse | None) -> str:
    """The way of the bytes, the most on a link, and the least time that takes.

    Args:
        collective: of a Report or Plan.
        links: from `collective_link_use`; None where its groups are not known.

    >>> from shardviz.core.hardware.topology import Topology
    >>> from shardviz.core.hardware.interconnect import route
    >>> links = route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-gather")
    >>> print(links_in_words(Collective("all-gather", ("data",), 64 << 20), links))
    all-gather over data along x, y and z: busiest link 10.5 MiB one way, at least 110 µs.
    """
    if links is None:
        return UNKNOWN_DEVICES
    size, loads = collective.bytes_per_device, []
    chip = "chip" if links.torus.shape else "GPU"
    for what, load in (
        ("busiest link {} one way", links.ici),
        (f"a {chip} sends {{}} over NVLink", links.nvlink),
        (f"a {chip} sends {{}} over the network", links.network),
    ):
        if load.any():
            loads.append(what.format(bytes_text(round(float(load.max()) * size))))
    if not loads:
        return "No bytes leave a chip."
    seconds = links.seconds(size)
    least = "at a rate that is not published"
    if seconds is not None:
        least = f"at least {seconds_text(seconds)}"
        if collective.execution_count > 1:
            least += f", {plural(collective.execution_count, 'time')}"
    head = f"{collective.kind}{collective.over}"
    used = []
    for axis in range(len(links.torus.shape)):
        if links.ici[:, axis].any():
            used.append("xyz"[axis])
    if used:
        head += f" along {joined(used)}"
    return f"{head}: {' and '.join(loads)}, {least}."
