"""Targets: the menu and what is typed into it, meshes that fit one, and where the devices lie.

Attached devices are looked up only when they are used, because that starts a backend.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from shardviz.core.errors import TargetError
from shardviz.core.format import plural, shown
from shardviz.core.hardware.interconnect import device_rows
from shardviz.core.hardware.topology import Topology, is_described
from shardviz.core.layout.array_spec import format_names
from shardviz.core.layout.mesh import MeshSpec, make_mesh
from shardviz.core.program.program import only_described
from shardviz.core.program.report import Report

_HOSTS = re.compile(r"([1-9]\d{0,2}) ?hosts? ?[x×*] ?([1-9]\d{0,3})(?: ?, ?local)?", re.IGNORECASE)
_SIMULATED = re.compile(r"cpu(?:\s*:\s*([0-9]{1,7}))?", re.IGNORECASE)
MOST_SHAPES, MOST_TRIED = 400, 40  # of meshes that could fill a target
_PLAIN = ("", "attached", "cpu")
_DESCRIBED = ("tpu", "gpu")
EXAMPLES = (
    "tpu:v5e:4x4",
    "tpu:v5e:4x4*2",
    "tpu:v6e:16x16",
    "tpu:v5p:8x8x16",
    "tpu:7x:4x4x4",
    "gpu:h100:2x8",
    "gpu:b200:8x8",
)
HOW = (
    "Write 'attached', 'cpu', 'cpu:64', '2 hosts x 4', 'tpu:v5e:4x4' or 'gpu:h100:2x8', or '' for"
    " automatic"
)


def running_hosts() -> tuple[Any, ...]:
    """The processes on several hosts that run in this kernel, as `sv.hosts` started them."""
    # Where nobody has imported this, none can be running.
    several = sys.modules.get("shardviz.core.backend.hosts.group")
    return () if several is None else tuple(several.running())


def hosts_of(target: str) -> Any:
    """The running processes that a target names; None where it names none, or they do not run."""
    return next((group for group in running_hosts() if group.name == target), None)


def hosts_size(target: str) -> tuple[int, int] | None:
    """How many processes and devices a checked target of several hosts has; None for any other.

    >>> hosts_size("2 hosts x 4, local"), hosts_size("cpu:8")
    ((2, 8), None)
    """
    if (group := hosts_of(target)) is not None:
        return len(group.processes), group.devices
    found = _HOSTS.fullmatch(target)
    return (int(found[1]), int(found[1]) * int(found[2])) if found else None


def checked_target(text: str) -> str:
    """A typed target in its canonical form.

    Raises:
        TargetError: if there is no such target.

    >>> checked_target(" CPU : 64"), checked_target("TPU:v5e:4x4"), checked_target("2 hosts × 4")
    ('cpu:64', 'tpu:v5e:4x4', '2 hosts x 4, local')
    """
    if hosts_of(text.strip()) is not None:
        return text.strip()
    if found := _HOSTS.fullmatch(" ".join(text.split())):
        return f"{plural(int(found[1]), 'host')} x {int(found[2])}, local"
    word = text.strip().lower()
    if word in (*_PLAIN, *_DESCRIBED):
        return word
    if found := _SIMULATED.fullmatch(word):
        if int(found[1]) < 1:
            raise TargetError(f"A target has at least 1 device; got {shown(text)}. {HOW}.")
        return f"cpu:{int(found[1])}"
    if word.split(":")[0].strip() in _DESCRIBED or is_described(word):
        return str(Topology.parse(word))
    raise TargetError(f"No target is called {shown(text)}. {HOW}.")


def is_simulated(target: str) -> bool:
    """Whether a target is simulated CPU devices, or automatic, which may choose them.

    >>> is_simulated(""), is_simulated("cpu:8"), is_simulated("tpu:v5e:4x4")
    (True, True, False)
    """
    return target == "" or _SIMULATED.fullmatch(target) is not None


def topology_of(target: str) -> Topology | None:
    """The described hardware that a checked target names; None for any other target.

    >>> topology_of("tpu:v5e:4x4").size, topology_of("cpu:8")
    (16, None)
    """
    return _topology(target) if target.startswith(("tpu:", "gpu:")) else None


@lru_cache(maxsize=64)
def _topology(target: str) -> Topology:
    return Topology.parse(target)


def why_not_run(target: str) -> str:
    """Why nothing can run on a checked target; `""` where programs can.

    >>> why_not_run("tpu:v5e:4x4")[:43], why_not_run("cpu:8")
    ("'tpu:v5e:4x4' is described and not attached", '')
    """
    return "" if topology_of(target) is None else only_described(target)


def target_title(target: str) -> str:
    """The title of a checked target.

    >>> target_title("tpu:v5p:8x8x16"), target_title("gpu:h100:2x8"), target_title("cpu:8")
    ('TPU v5p 8×8×16', 'NVIDIA H100 SXM 2×8', 'simulated CPU × 8')
    """
    topology = topology_of(target)
    if topology is not None:
        return topology.title
    if hosts_size(target) is not None:
        return target
    found = _SIMULATED.fullmatch(target)
    if found:
        return f"simulated CPU × {int(found[1]):,}" if found[1] else "simulated CPU"
    return {"": "automatic", "attached": "attached devices"}.get(target, target.upper())


def needed_size(mesh: MeshSpec, target: str) -> int | None:
    """The number of devices that a mesh must have for a target; None where the mesh fits.

    >>> needed_size(make_mesh(data=8), "tpu:v5e:4x4"), needed_size(make_mesh(data=8), "cpu:64")
    (16, None)
    >>> needed_size(make_mesh(data=8), "2 hosts x 2, local")
    4
    """
    topology = topology_of(target)
    if topology is not None:
        return None if topology.size == mesh.size else topology.size
    if (several := hosts_size(target)) is not None:
        count, devices = several
        unlike = mesh.size == devices and len(mesh.processes) != count
        return devices if mesh.size > devices or unlike else None
    found = _SIMULATED.fullmatch(target)
    if found and found[1] and int(found[1]) < mesh.size:
        return int(found[1])
    return None


def fitting_mesh(
    mesh: MeshSpec, target: str, accepts: Callable[[MeshSpec], bool] | None = None
) -> MeshSpec | None:
    """The mesh with its axes resized to fill the target; None where the mesh fits.

    The last axes keep their sizes as far as these divide, and the first axis gets the rest. Where
    that is not accepted it is the nearest mesh that is; None where there is none.

    Args:
        mesh: the mesh.
        target: the target, checked.
        accepts: whether a mesh will do: its axes divide the arrays, and the hardware can hold it.

    >>> fitting_mesh(make_mesh(data=4, model=2), "tpu:v5e:4x4")
    MeshSpec('data=8, model=2')
    >>> few = lambda mesh: mesh.shape["data"] <= 4
    >>> fitting_mesh(make_mesh(data=4, model=2), "tpu:v5e:4x4", few)
    MeshSpec('data=4, model=4')
    """
    count = needed_size(mesh, target)
    if count is None:
        return None
    topology = topology_of(target)
    hosts = topology.hosts if topology is not None else math.gcd(len(mesh.processes), count)
    hosts = several[0] if (several := hosts_size(target)) is not None else hosts
    for sizes in _sizes(mesh.axis_sizes, count):
        shape = dict(zip(mesh.axis_names, sizes, strict=True))
        fitting = make_mesh(shape, axis_types=mesh.axis_types, processes=hosts)
        if accepts is None or accepts(fitting):
            return fitting
    return None


def _sizes(old: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """Sizes of as many axes that multiply to a count: first the plain choice, then the nearest."""
    left, kept = count, []
    for size in reversed(old[1:]):
        kept.append(math.gcd(left, size))
        left //= kept[-1]
    first = (left, *reversed(kept))
    yield first
    found = {tuple(sizes) for sizes in itertools.islice(_factors(len(old), count), MOST_SHAPES)}
    found.discard(first)

    def change(sizes: tuple[int, ...]) -> tuple[float, float, int]:
        steps = [abs(math.log2(new / was)) for new, was in zip(sizes, old, strict=True)]
        return round(sum(steps), 6), max(steps), -sizes[0]

    yield from sorted(found, key=change)[:MOST_TRIED]


def _factors(axes: int, count: int) -> Iterator[list[int]]:
    if axes == 1:
        yield [count]
        return
    for size in range(1, count + 1):
        if count % size == 0:
            for rest in _factors(axes - 1, count // size):
                yield [size, *rest]


@lru_cache(maxsize=1)
def described_options() -> list[dict[str, str]]:
    """Examples of described targets for the menu."""
    options = []
    for text in EXAMPLES:
        topology = _topology(text)
        label = f"{target_title(text)} · {topology.size:,}"
        options.append(
            {"value": text, "label": label, "title": topology.words(), "group": "Described"}
        )
    return options


def local_options() -> list[dict[str, str]]:
    """The targets on this machine, running processes on several hosts included.

    The page adds to `cpu` how many devices that are.
    """
    options = [
        ("", "automatic", "Attached devices if enough, else simulated."),
        ("attached", "attached devices", "What this kernel's JAX has."),
        ("cpu", "simulated CPU", "As many devices as the mesh has, simulated."),
        *((group.name, group.name, hosts_words(group)) for group in running_hosts()),
    ]
    here = {"group": "On this machine"}
    return [{"value": v, "label": label, "title": title, **here} for v, label, title in options]


def hosts_words(group: Any) -> str:
    """What is known of running processes, for a tooltip."""
    count = plural(len(group.processes), "process", "processes")
    machines = sorted({process.host for process in group.processes})
    where = machines[0] if len(machines) == 1 else plural(len(machines), "machine")
    return f"{count} on {where}, {plural(group.devices, 'device')} in all."


def target_view(
    mesh: MeshSpec,
    target: str,
    error: str = "",
    accepts: Callable[[MeshSpec], bool] | None = None,
) -> dict[str, Any]:
    """The chosen target, and notes on it; the options are in the menus.

    Args:
        mesh: of the session.
        target: the chosen target, checked.
        error: why the text that was typed last is not a target.
        accepts: whether a mesh may be offered.

    >>> view = target_view(make_mesh(data=4, model=2), "tpu:v5e:4x4")
    >>> view["note"], view["offer"]
    ('TPU v5e 4×4 has 16 devices and the mesh has 8.', 'Take data=8, model=2')
    >>> target_view(make_mesh(data=4, model=2), "cpu:8")
    {'value': 'cpu:8', 'label': 'simulated CPU × 8'}
    """
    view = {"value": target}
    if target not in (*_PLAIN, *EXAMPLES) and hosts_of(target) is None:
        view["label"] = target_title(target)
    if error:
        view["error"] = error
    if reason := why_not_run(target):
        view["noRun"] = reason
    count, fitting = needed_size(mesh, target), fitting_mesh(mesh, target, accepts)
    if count is not None:
        has, same = f"{target_title(target)} has {plural(count, 'device')}", count == mesh.size
        view["note"] = f"{has} and the mesh has {mesh.size:,}."
        if same:  # processes on several hosts
            view["note"] = f"The mesh has {plural(len(mesh.processes), 'host')}, and {target} runs."
        if fitting is not None:
            axes = (f"{format_names((n,))}={s}" for n, s in fitting.shape.items())
            hosts = plural(len(fitting.processes), "host")
            view["offer"] = f"Take {hosts if same else ', '.join(axes)}"
    topology = topology_of(target)
    return view if topology is None else {**view, "words": topology.words()}


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
