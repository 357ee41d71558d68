"""Targets: menu options, typed targets, meshes that fit, and device placement.

Attached devices are not looked up here, because that would start jax's backend.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from shardviz.advise.words.problems import other_size
from shardviz.base.array_spec import format_names
from shardviz.base.errors import TargetError
from shardviz.base.format import plural
from shardviz.base.mesh import MeshSpec, make_mesh
from shardviz.base.typing import JsonDict
from shardviz.compiled.report import Report
from shardviz.explorer.words import explorer as wording
from shardviz.hardware.chips import chip_of_kind, find_chip
from shardviz.hardware.interconnect import device_rows
from shardviz.hardware.targets import (
    SIMULATED,
    checked_text,
    hosts_in_text,
    only_described,
)
from shardviz.hardware.topology import Topology, even_topology

_PLAIN = ("", "attached", "cpu")
EXAMPLES = (
    "tpu:v5e:4x4",
    "tpu:v5e:4x4*2",
    "tpu:v6e:16x16",
    "tpu:v5p:8x8x16",
    "tpu:7x:4x4x4",
    "gpu:h100:2x8",
    "gpu:b200:8x8",
)
#: Chips to suggest for a program whose target has no published rates, smallest first.
SUGGESTED_CHIPS = ("v5e", "v5p", "h100", "b200")


class RunningHosts(Protocol):
    """A group of processes on several hosts, started by `sv.hosts`."""

    @property
    def name(self) -> str: ...

    @property
    def processes(self) -> Sequence[object]: ...

    @property
    def devices(self) -> int: ...


# --- kinds of targets -----------------------------------------------------------------


def running_hosts() -> tuple[RunningHosts, ...]:
    """Returns the process groups that `sv.hosts` started in this kernel."""
    # If this module was not imported, no groups are running.
    several = sys.modules.get("shardviz.runs.backend.hosts.group")
    if several is None:
        return ()
    return tuple(several.running())


def hosts_of(target: str) -> RunningHosts | None:
    """Returns the running process group that a target names; None if there is none."""
    for hosts in running_hosts():
        if hosts.name == target:
            return hosts
    return None


def hosts_size(target: str) -> tuple[int, int] | None:
    """Returns (processes, devices) of a multi-host target; None for other targets."""
    group = hosts_of(target)
    if group is not None:
        return len(group.processes), group.devices
    hosts = hosts_in_text(target)
    return hosts and (hosts[0], hosts[0] * hosts[1])


def checked_target(text: str) -> str:
    """Returns a typed target in its canonical form, or the name of running processes.

    Raises:
        TargetError: if there is no such target.
    """
    if hosts_of(text.strip()) is not None:
        return text.strip()
    return checked_text(text)


def is_simulated(target: str) -> bool:
    """Whether a target can use simulated CPU devices: `cpu`, `cpu:N`, or `""`."""
    return target == "" or SIMULATED.fullmatch(target) is not None


@lru_cache(maxsize=64)
def topology_of(target: str) -> Topology | None:
    """Returns the described hardware that a target names; None for other targets."""
    if target.startswith(("tpu:", "gpu:")):
        return Topology.parse(target)
    return None


def why_not_run(target: str) -> str:
    """Returns why programs cannot run on a checked target; `""` if they can."""
    if topology_of(target) is None:
        return ""
    return str(only_described(target))


def target_title(target: str) -> str:
    """Returns the title of a checked target.

    >>> target_title("tpu:v5p:8x8x16"), target_title("cpu:8"), target_title("")
    ('TPU v5p 8×8×16', 'simulated CPU × 8', 'this machine')
    """
    topology = topology_of(target)
    if topology is not None:
        return topology.title
    if hosts_size(target) is not None:
        return target
    match = SIMULATED.fullmatch(target)
    if match is not None and match[1]:
        return f"simulated CPU × {int(match[1]):,}"
    if match is not None:
        return "simulated CPU"
    return {"": "this machine", "attached": "attached devices"}.get(
        target, target.upper()
    )


# --- meshes that fit a target ---------------------------------------------------------


def fitting_mesh(mesh: MeshSpec, target: str) -> MeshSpec | None:
    """Resizes mesh axes to fill a target; returns None if the mesh already fits.

    From the last axis to the second, each size becomes its gcd with the number of
    devices not yet assigned to an axis. The first axis gets the remaining devices.

    >>> fitting_mesh(make_mesh(data=4, model=2), "tpu:v5e:4x4")
    MeshSpec('data=8, model=2')
    """
    topology, running = topology_of(target), hosts_size(target)
    match = SIMULATED.fullmatch(target)
    count, hosts = mesh.size, len(mesh.processes)
    if topology is not None:
        count, target_hosts = topology.size, topology.hosts
    elif running is not None:
        target_hosts, most_devices = running
        count = min(count, most_devices)
        # Even with equal numbers of devices, the numbers of hosts may differ.
        if count == mesh.size == most_devices and hosts != target_hosts:
            return _resized(mesh, count, target_hosts)
    else:
        if match is not None and match[1]:
            count = min(count, int(match[1]))
        target_hosts = math.gcd(hosts, count)
    return None if count == mesh.size else _resized(mesh, count, target_hosts)


def _resized(mesh: MeshSpec, count: int, hosts: int) -> MeshSpec:
    sizes, first = list(mesh.axis_sizes), count
    for i in reversed(range(1, len(sizes))):
        sizes[i] = math.gcd(first, sizes[i])
        first //= sizes[i]
    shape = dict(zip(mesh.axis_names, [first, *sizes[1:]], strict=True))
    return make_mesh(shape, axis_types=mesh.axis_types, processes=hosts)


# --- for the page ---------------------------------------------------------------------


def described_options() -> list[dict[str, str]]:
    """Returns examples of described targets for the menu."""
    options = []
    for text in EXAMPLES:
        topology = Topology.parse(text)
        label = f"{topology.title} · {topology.size:,}"
        option = {"value": text, "label": label, "title": topology.words()}
        options.append({**option, "group": "Described"})
    return options


def local_options() -> list[dict[str, str]]:
    """Returns this machine's targets for the menu, including running process groups.

    The page adds the number of devices to `cpu`.
    """
    rows = [(target, target_title(target), wording.TITLES[target]) for target in _PLAIN]
    for group in running_hosts():
        count = plural(len(group.processes), "process", "processes")
        devices = plural(group.devices, "device")
        title = wording.RUNNING_HOSTS.format(count, devices)
        rows.append((group.name, group.name, title))
    options = []
    for value, label, title in rows:
        option = {"value": value, "label": label, "title": title}
        options.append({**option, "group": "On this machine"})
    return options


def target_view(target: str, error: str = "") -> JsonDict:
    """Returns the page's data for the selected target, without the menu options."""
    view = {"value": target}
    # Targets in the menus already have a label.
    if target not in (*_PLAIN, *EXAMPLES) and hosts_of(target) is None:
        view["label"] = target_title(target)
    if error:
        view["error"] = error
    topology = topology_of(target)
    if topology is not None:
        view.update(noRun=why_not_run(target), words=topology.words())
    return view


def axes_text(shape: Mapping[str, int | str]) -> str:
    """Formats mesh axes as a user types them."""
    return ", ".join(f"{format_names((name,))}={size}" for name, size in shape.items())


# --- placement of devices -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DevicePlacement:
    """A mesh placed on described hardware.

    Attributes:
        topology: the hardware.
        mesh: the mesh with the hardware's device ids and hosts.
        compiled: whether a compile chose the device order; otherwise devices are in id
            order.

    >>> placement = device_placement(make_mesh(data=2, model=2), "tpu:v5e:2x2")
    >>> placement.topology.size, placement.compiled
    (4, False)
    """

    topology: Topology
    mesh: MeshSpec
    compiled: bool = False


def why_no_placement(mesh: MeshSpec, target: str) -> str:
    """Returns why a mesh's devices have no coordinates on a target; `""` if they do."""
    topology, title = topology_of(target), target_title(target)
    if topology is None:
        return wording.NO_POSITIONS.format(title)
    if topology.size != mesh.size:
        return other_size(title, topology.size, mesh.size)
    try:
        _rows(mesh, topology)
    except TargetError as error:
        return str(error)
    return ""


@lru_cache(maxsize=8)
def device_placement(
    mesh: MeshSpec, target: str, order: tuple[int, ...] = ()
) -> DevicePlacement | None:
    """Places a mesh on a target; returns None if its devices have no coordinates.

    >>> placement = device_placement(make_mesh(a=2, b=2), "tpu:v5e:2x2", (0, 1, 3, 2))
    >>> placement.mesh.device_ids.tolist(), placement.compiled
    ([[0, 1], [3, 2]], True)
    """
    topology = topology_of(target)
    if topology is None or why_no_placement(mesh, target):
        return None
    compiled = len(order) == mesh.size and set(order) <= set(
        topology.device_ids.tolist()
    )
    ordered = mesh
    if compiled:
        ordered = make_mesh(mesh.shape, device_ids=list(order))
    rows = _rows(ordered, topology)
    placed = make_mesh(
        mesh.shape,
        axis_types=mesh.axis_types,
        device_ids=topology.device_ids[rows].reshape(mesh.axis_sizes),
        processes=topology.process_indices[rows].reshape(mesh.axis_sizes),
    )
    return DevicePlacement(topology, placed, compiled)


def suggested_placement(mesh: MeshSpec, needed: int) -> DevicePlacement | None:
    """Places a mesh on described hardware with as many devices.

    The chip is the mesh's own if it has a `device_kind` with published figures.
    Otherwise it is the first in `SUGGESTED_CHIPS` with enough memory; if none has
    enough, the one with the most.

    Args:
        mesh: the mesh.
        needed: bytes that each device must hold.

    >>> placement = suggested_placement(make_mesh(data=4, model=2), 20 << 30)
    >>> str(placement.topology), suggested_placement(make_mesh(data=17), 0)
    ('tpu:v5p:2x2x2', None)
    """
    largest, most = None, 0
    own_chip = mesh.device_kind and chip_of_kind(mesh.device_kind.kind)
    for chip in [own_chip] if own_chip else map(find_chip, SUGGESTED_CHIPS):
        topology = even_topology(chip, mesh.size)
        # Many hosts with one GPU each are not a useful example.
        if topology is None or (chip.platform == "gpu" and not _fills_hosts(topology)):
            continue
        placement = device_placement(mesh, str(topology))
        capacity = chip.device_bytes or 0
        if placement is not None and capacity > most:
            largest, most = placement, capacity
        if largest is not None and most >= needed:
            break
    return largest


def _fills_hosts(topology: Topology) -> bool:
    return topology.hosts == 1 or topology.shape[-1] == topology.chip.host_shape[0]


# Cached, because every edit needs the rows and large meshes are slow.
@lru_cache(maxsize=8)
def _rows(mesh: MeshSpec, topology: Topology) -> np.ndarray:
    return device_rows(mesh, topology)


class DeviceAssignments:
    """Remembers the device order that compiles chose for each mesh and target."""

    def __init__(self) -> None:
        self._orders: dict[Hashable, tuple[int, ...]] = {}

    def learn(self, report: Report, mesh: MeshSpec, target: str) -> bool:
        """Stores the device order of a report; returns whether it is a new order."""
        placed = report.without_error.mesh
        if placed is None or topology_of(target) is None:
            return False
        order, key = tuple(placed.device_ids.ravel().tolist()), _key(mesh, target)
        before, self._orders[key] = self._orders.get(key), order
        return before != order

    def placement(self, mesh: MeshSpec, target: str) -> DevicePlacement | None:
        """Places a mesh on a target, in the device order of its last compile."""
        # Return early, because this is called on every edit.
        if topology_of(target) is None:
            return None
        return device_placement(mesh, target, self._orders.get(_key(mesh, target), ()))


def _key(mesh: MeshSpec, target: str) -> Hashable:
    """Returns the cache key of a device order; ignores axis names and types."""
    return target, mesh.axis_sizes, mesh.device_ids.tobytes()
