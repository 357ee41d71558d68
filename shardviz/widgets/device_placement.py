"""The placement of a mesh on described hardware, and the bytes on each link of a collective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from shardviz.core.errors import TargetError
from shardviz.core.format import bytes_text, plural, seconds_text
from shardviz.core.hardware.interconnect import LinkUse, device_rows
from shardviz.core.hardware.topology import Topology
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.program.report import Collective, Report
from shardviz.widgets.menus import target_title, topology_of


@dataclass(frozen=True, eq=False)
class DevicePlacement:
    """A mesh placed on described hardware.

    Attributes:
        topology: the hardware.
        mesh: the mesh with the device ids and hosts of the hardware.
        compiled: whether a compile chose the order of the devices; else they are in id order.

    >>> device_placement(make_mesh(data=8, model=2), "tpu:v5e:4x4").words
    '16 · in id order'
    """

    topology: Topology
    mesh: MeshSpec
    compiled: bool = False

    @property
    def words(self) -> str:
        """The number of devices and their order."""
        order = "as compiled" if self.compiled else "in id order"
        return f"{self.mesh.size:,} · {order}"


def why_no_placement(mesh: MeshSpec, target: str) -> str:
    """Why the devices of a mesh have no coordinates on a target; `""` where they do.

    >>> why_no_placement(make_mesh(data=8), "tpu:v5e:4x4")
    'TPU v5e 4×4 has 16 devices and the mesh has 8.'
    >>> why_no_placement(make_mesh(data=8, model=2), "tpu:v5e:4x4")
    ''
    """
    topology = topology_of(target)
    if topology is None:
        title = target_title(target)
        return (
            f"Only described hardware, such as tpu:v5e:4x4, has positions; the target is {title}."
        )
    if topology.size != mesh.size:
        count = f"{plural(topology.size, 'device')} and the mesh has {mesh.size:,}"
        return f"{target_title(target)} has {count}."
    try:
        _rows(mesh, topology)
    except TargetError as error:
        return str(error)
    return ""


def device_placement(
    mesh: MeshSpec, target: str, order: tuple[int, ...] = ()
) -> DevicePlacement | None:
    """The mesh placed on a target; None where its devices have no coordinates there.

    Args:
        mesh: the mesh as it was typed.
        target: what it is compiled for, checked.
        order: the device ids in mesh order, as a compile chose them; `()` where not known.

    >>> found = device_placement(make_mesh(data=2, model=2), "tpu:v5e:2x2", (0, 1, 3, 2))
    >>> found.mesh.device_ids.tolist(), found.compiled
    ([[0, 1], [3, 2]], True)
    """
    return None if why_no_placement(mesh, target) else _placed(mesh, target, order)


@lru_cache(maxsize=8)
def _placed(mesh: MeshSpec, target: str, order: tuple[int, ...]) -> DevicePlacement:
    topology = topology_of(target)
    assert topology is not None  # checked by the caller
    known = len(order) == mesh.size and set(order) <= set(topology.device_ids.tolist())
    if known:
        rows = device_rows(make_mesh(mesh.shape, device_ids=list(order)), topology)
    else:
        rows = _rows(mesh, topology)
    placed = make_mesh(
        mesh.shape,
        axis_types=mesh.axis_types,
        device_ids=topology.device_ids[rows].reshape(mesh.axis_sizes),
        processes=topology.process_indices[rows].reshape(mesh.axis_sizes),
    )
    return DevicePlacement(topology, placed, known)


@lru_cache(maxsize=8)
def _rows(mesh: MeshSpec, topology: Topology) -> np.ndarray:
    return device_rows(mesh, topology)


class DeviceAssignments:
    """The order of the devices that each compile chose, by mesh and target.

    >>> assignments = DeviceAssignments()
    >>> assignments.placement(make_mesh(data=2, model=2), "tpu:v5e:2x2").compiled
    False
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[int, ...]] = {}

    def learn(self, report: Report, mesh: MeshSpec, target: str) -> bool:
        """Keeps the order of the devices in a report; False where it has none or it is known.

        Args:
            report: of a compile for the target.
            mesh: of the compiled program.
            target: of the compile.
        """
        if report.mesh is None or topology_of(target) is None:
            return False
        order, key = tuple(report.mesh.device_ids.ravel().tolist()), _key(mesh, target)
        if self._known.get(key) == order:
            return False
        self._known[key] = order
        return True

    def placement(self, mesh: MeshSpec, target: str) -> DevicePlacement | None:
        """The mesh placed on a target, in the order of its last compile."""
        order = self._known.get(_key(mesh, target), ()) if self._known else ()
        return device_placement(mesh, target, order)


def _key(mesh: MeshSpec, target: str) -> Any:
    """What a compiler's device assignment depends on: neither names nor types of the axes."""
    named = b"" if mesh.ids_are_positions else mesh.device_ids.tobytes()
    return target, mesh.axis_sizes, named


AXES = ("x", "y", "z")
_RINGS = ("all-gather", "reduce-scatter", "all-reduce", "collective-broadcast")


def link_words(collective: Collective, links: LinkUse | None) -> str:
    """The direction of the bytes, the bytes on each link, and the least time that takes.

    Args:
        collective: of a Report or Plan.
        links: from `collective_link_use`; None where its groups are not known.

    >>> from shardviz.core.hardware.topology import Topology
    >>> from shardviz.core.hardware.interconnect import route
    >>> links = route(Topology.parse("tpu:v5p:4x4x4"), [range(64)], "all-gather")
    >>> link_words(Collective("all-gather", ("data",), 64 << 20), links)
    'Rings over data along x, y and z: each link carries 10.5 MiB each way, at least 110 µs.'
    """
    if links is None:
        return "Which devices take part is not known, so no links are drawn."
    size = collective.bytes_per_device
    carried = list(filter(None, [_ici(links, size), *_network(links, size)]))
    if not carried:
        return "No bytes leave a chip."
    seconds = links.seconds(size)
    least = "at a rate that is not published" if seconds is None else ""
    if seconds is not None:
        trips = collective.execution_count
        times = f", {plural(trips, 'time')}" if trips > 1 else ""
        least = f"at least {seconds_text(seconds)}{times}"
    over = " × ".join(collective.mesh_axes)
    head = _way(collective.kind, links) + (f" over {over}" if over else "") + _along(links)
    return f"{head}: {' and '.join(carried)}, {least}."


def _way(kind: str, links: LinkUse) -> str:
    used = _used_axes(links)
    if kind not in _RINGS or not used:
        return {"all-to-all": "Exchange", "collective-permute": "Sends"}.get(
            kind, kind.capitalize()
        )
    closed = [_closes(links, axis) for axis in used]
    return "Rings" if all(closed) else "Rings and lines" if any(closed) else "Lines"


def _used_axes(links: LinkUse) -> list[int]:
    return [axis for axis in range(len(links.torus.shape)) if links.ici[:, axis].any()]


def _closes(links: LinkUse, axis: int) -> bool:
    """Whether the link from the last chip of an axis to its first is in use."""
    torus = links.torus
    following = torus.next_chip(axis)
    here = np.flatnonzero(following >= 0)
    around = here[torus.coords[following[here], axis] < torus.coords[here, axis]]
    return bool(links.ici[around, axis, 0].any())


def _along(links: LinkUse) -> str:
    used = [AXES[axis] for axis in _used_axes(links)]
    if len(used) < 2:
        return "".join(f" along {axis}" for axis in used)
    return f" along {', '.join(used[:-1])} and {used[-1]}"


def _ici(links: LinkUse, size: int) -> str:
    loads = links.ici[links.ici > 0]
    if not len(loads):
        return ""
    most = bytes_text(round(float(loads.max()) * size))
    # Every link is used in both directions, with the same bytes.
    equal = float(loads.min()) > 0.99 * float(loads.max()) and len(loads) == 2 * links.used
    return f"each link carries {most} each way" if equal else f"links carry up to {most} one way"


def _network(links: LinkUse, size: int) -> list[str]:
    one = "chip" if links.torus.shape else "GPU"
    names = (("NVLink", links.nvlink), ("the network", links.network))
    return [
        f"a {one} sends {bytes_text(round(float(load.max()) * size))} over {name}"
        for name, load in names
        if load.any()
    ]
