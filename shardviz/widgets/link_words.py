"""link_words(...): the links that a collective uses, in one sentence."""

from __future__ import annotations

import numpy as np

from shardviz.core.errors import plural
from shardviz.core.layout.links import Links
from shardviz.core.program.report import Collective
from shardviz.picture.units import bytes_text, seconds_text

AXES = ("x", "y", "z")
_RINGS = ("all-gather", "reduce-scatter", "all-reduce", "collective-broadcast")


def link_words(collective: Collective, links: Links | None) -> str:
    """Which way the bytes go, how many each link carries, and the least time that takes.

    Args:
        collective: of a Report or Plan.
        links: what `collective_links` found; None where its groups are not known.

    >>> from shardviz.core.layout.topology import Topology
    >>> from shardviz.core.layout.links import route
    >>> links = route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-gather")
    >>> link_words(Collective("all-gather", ("data",), 64 << 20), links)
    'Rings over data along x, y and z: each link carries 10.5 MiB each way, at least 110 µs.'
    """
    if links is None:
        return "Which devices take part is not known, so no links are drawn."
    size = collective.bytes_per_device
    carried = list(filter(None, [_ici(links, size), *_network(links, size)]))
    if not carried:
        return "Nothing leaves a chip."
    seconds = links.seconds(size)
    least = "at a rate that is not published" if seconds is None else ""
    if seconds is not None:
        trips = collective.turns
        times = f", {plural(trips, 'time')}" if trips > 1 else ""
        least = f"at least {seconds_text(seconds)}{times}"
    over = " × ".join(collective.mesh_axes)
    head = _way(collective.kind, links) + (f" over {over}" if over else "") + _along(links)
    return f"{head}: {' and '.join(carried)}, {least}."


def _way(kind: str, links: Links) -> str:
    used = _used_axes(links)
    if kind not in _RINGS or not used:
        return {"all-to-all": "Exchange", "collective-permute": "Sends"}.get(
            kind, kind.capitalize()
        )
    closed = [_closes(links, axis) for axis in used]
    return "Rings" if all(closed) else "Rings and lines" if any(closed) else "Lines"


def _used_axes(links: Links) -> list[int]:
    return [axis for axis in range(len(links.torus.shape)) if links.ici[:, axis].any()]


def _closes(links: Links, axis: int) -> bool:
    """Whether the link that leads around an axis, from its last chip to its first, is in use."""
    torus = links.torus
    following = torus.next_chip(axis)
    here = np.flatnonzero(following >= 0)
    around = here[torus.coords[following[here], axis] < torus.coords[here, axis]]
    return bool(links.ici[around, axis, 0].any())


def _along(links: Links) -> str:
    used = [AXES[axis] for axis in _used_axes(links)]
    if len(used) < 2:
        return "".join(f" along {axis}" for axis in used)
    return f" along {', '.join(used[:-1])} and {used[-1]}"


def _ici(links: Links, size: int) -> str:
    loads = links.ici[links.ici > 0]
    if not len(loads):
        return ""
    most = bytes_text(round(float(loads.max()) * size))
    # The link to the next chip and its way back are the same two numbers of neighbours.
    both = float(loads.min()) > 0.99 * float(loads.max()) and len(loads) == 2 * links.used
    return f"each link carries {most} each way" if both else f"links carry up to {most} one way"


def _network(links: Links, size: int) -> list[str]:
    one = "chip" if links.torus.shape else "GPU"
    names = (("NVLink", links.nvlink), ("the network", links.network))
    return [
        f"a {one} sends {bytes_text(round(float(load.max()) * size))} over {name}"
        for name, load in names
        if load.any()
    ]
