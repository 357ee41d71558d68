"""Sentences about the load of a collective on the links of described hardware."""

from __future__ import annotations

from shardviz.base.collective import Collective
from shardviz.base.format import bytes_text, ids_text, joined, plural, seconds_text
from shardviz.base.mesh import MeshSpec
from shardviz.hardware.interconnect import LinkUse
from shardviz.hardware.topology import Topology

UNKNOWN_DEVICES = "The devices that take part are unknown, so no links are drawn."


def links_in_words(collective: Collective, links: LinkUse | None) -> str:
    """Names a collective's torus axes, busiest link and least time.

    Args:
        collective: a collective in a Report or Plan.
        links: from `collective_link_use`; None if the replica groups are unknown.

    >>> from shardviz.hardware.topology import Topology
    >>> from shardviz.hardware.interconnect import route
    >>> links = route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-gather")
    >>> print(links_in_words(Collective("all-gather", ("data",), 64 << 20), links))
    all-gather over data along x, y and z: busiest link 10.5 MiB one way, at least 116 µs.
    """
    if links is None:
        return UNKNOWN_DEVICES
    size, loads = collective.bytes_per_device, []
    chip = "chip" if links.torus.shape else "GPU"
    for template, load in (
        ("busiest link {} one way", links.ici),
        (f"the busiest {chip} sends {{}} over NVLink", links.nvlink),
        (f"the busiest {chip} sends {{}} over the network", links.network),
    ):
        if load.any():
            loads.append(template.format(bytes_text(round(float(load.max()) * size))))
    if not loads:
        return "No bytes leave a chip."
    seconds = links.seconds(size)
    least = "at a rate that is not published"
    if seconds is not None:
        least = f"at least {seconds_text(seconds)}"
        if collective.execution_count > 1:
            least += f", {plural(collective.execution_count, 'time')}"
    head = collective.name_with_axes
    axes = []
    for axis in range(len(links.torus.shape)):
        if links.ici[:, axis].any():
            axes.append("xyz"[axis])
    if axes:
        head += f" along {joined(axes)}"
    return f"{head}: {' and '.join(loads)}, {least}."


GREY_LINKS = "Grey links connect chips of different groups."
CLOSER_HOSTS = "Chips of the same host are drawn closer together."
WRAPAROUND_LINES = "Lines that end outside the grid wrap around to the other side."


def link_lines(
    links: LinkUse | None, collective: Collective, groups: int, ordered: bool
) -> list[str]:
    """Counts the links that a collective uses, and gives the least time on each kind.

    Args:
        links: the load of each link; None if the participating devices are unknown.
        collective: the collective.
        groups: the number of replica groups.
        ordered: True if there are too many groups for distinct colours, so they are
            coloured in order.
    """
    if links is None:
        return [UNKNOWN_DEVICES]
    parts = []
    if links.torus.shape:
        parts.append(f"{plural(links.used, 'link')} between chips")
    for name, seconds in links.times(collective.bytes_per_device).items():
        time = "at an unpublished rate"
        if seconds is not None:
            time = f"at least {seconds_text(seconds)}"
        parts.append(f"{name} {time}")
    words = ", ".join(parts) or "nothing leaves a chip"
    sent = collective.sent_text(collective.bytes_per_device)
    if collective.sent_bytes is not None:
        sent += " sent"
    lines = [f"{sent} per device and execution: {words}."]
    if ordered:
        count = plural(groups, "group")
        lines.append(f"{count}, coloured in order from first to last.")
    return lines


def by_position(mesh: MeshSpec, topology: Topology) -> str:
    """Alt text of a mesh on a topology, with device ids."""
    return (
        f"Device mesh {mesh}: {plural(mesh.size, 'device')} by their position in"
        f" {topology}. Device ids in mesh order: {ids_text(mesh.device_ids, 200)}"
    )


def topology_alt(topology: Topology) -> str:
    """Alt text of a topology, with device ids."""
    ids = ids_text(topology.device_ids, 200)
    return f"{topology}: {topology.words()} Device ids: {ids}."
