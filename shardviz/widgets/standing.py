"""Where the devices of a mesh stand in the hardware that a target describes. Knows no jax."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from shardviz.core.errors import TargetError, plural
from shardviz.core.layout.links import device_rows
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.layout.topology import Topology
from shardviz.core.program.report import Report
from shardviz.widgets.target_menu import target_title, topology_of


@dataclass(frozen=True, eq=False)
class Standing:
    """A mesh on described hardware.

    Attributes:
        topology: the hardware.
        mesh: the mesh with the ids and hosts that its devices have there.
        compiled: whether the order is that of a compile; else devices stand in order of their ids.

    >>> standing(make_mesh(data=8, model=2), "tpu:v5e:4x4").words
    '16 · in id order'
    """

    topology: Topology
    mesh: MeshSpec
    compiled: bool = False

    @property
    def words(self) -> str:
        """How many devices there are, and in which order."""
        order = "as compiled" if self.compiled else "in id order"
        return f"{self.mesh.size:,} · {order}"


def why_not_standing(mesh: MeshSpec, target: str) -> str:
    """Why the devices have no position under a target; `""` where they do.

    >>> why_not_standing(make_mesh(data=8), "tpu:v5e:4x4")
    'TPU v5e 4×4 has 16 devices and the mesh has 8.'
    >>> why_not_standing(make_mesh(data=8, model=2), "tpu:v5e:4x4")
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


def standing(mesh: MeshSpec, target: str, order: tuple[int, ...] = ()) -> Standing | None:
    """The mesh with its devices where they stand; None where they have no position.

    Args:
        mesh: the mesh as it stands.
        target: what it is compiled for, checked.
        order: the ids of the devices in mesh order, as a compile chose them; `()` where not known.

    >>> found = standing(make_mesh(data=2, model=2), "tpu:v5e:2x2", (0, 1, 3, 2))
    >>> found.mesh.device_ids.tolist(), found.compiled
    ([[0, 1], [3, 2]], True)
    """
    return None if why_not_standing(mesh, target) else _standing(mesh, target, order)


@lru_cache(maxsize=8)
def _standing(mesh: MeshSpec, target: str, order: tuple[int, ...]) -> Standing:
    topology = topology_of(target)
    assert topology is not None  # the caller has looked
    known = len(order) == mesh.size and set(order) <= set(topology.device_ids.tolist())
    if known:
        rows = device_rows(make_mesh(mesh.shape, device_ids=list(order)), topology)
    else:
        rows = _rows(mesh, topology)
    there = make_mesh(
        mesh.shape,
        axis_types=mesh.axis_types,
        device_ids=topology.device_ids[rows].reshape(mesh.axis_sizes),
        processes=topology.process_indices[rows].reshape(mesh.axis_sizes),
    )
    return Standing(topology, there, known)


@lru_cache(maxsize=8)
def _rows(mesh: MeshSpec, topology: Topology) -> np.ndarray:
    return device_rows(mesh, topology)


class Orders:
    """In which order compiles put the devices of their targets.

    >>> orders = Orders()
    >>> orders.standing(make_mesh(data=2, model=2), "tpu:v5e:2x2").compiled
    False
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[int, ...]] = {}

    def learn(self, report: Report, mesh: MeshSpec, target: str) -> bool:
        """Notes the order that a report names; whether that is news.

        Args:
            report: of a compile for the target.
            mesh: what was compiled over.
            target: what it was compiled for.
        """
        if report.mesh is None or topology_of(target) is None:
            return False
        order, key = tuple(report.mesh.device_ids.ravel().tolist()), _key(mesh, target)
        if self._known.get(key) == order:
            return False
        self._known[key] = order
        return True

    def standing(self, mesh: MeshSpec, target: str) -> Standing | None:
        """The mesh with its devices where they stand; None where they have no position."""
        return standing(mesh, target, self._known.get(_key(mesh, target), ()))


def _key(mesh: MeshSpec, target: str) -> Any:
    """What a compile's order of devices depends on: neither names nor types of the axes."""
    named = b"" if mesh.ids_are_positions else mesh.device_ids.tobytes()
    return target, mesh.axis_sizes, named
