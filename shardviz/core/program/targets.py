"""Target: on which devices a program runs. Attached ones, or CPU devices that jax simulates.

jax starts its backends once, when somebody first asks for a device, and the number of CPU devices
is settled at that moment. So the first program that is run asks for 64 of them where nobody chose
a number (7 ms and 10 MB more than for 8), and bigger meshes still run later in the same kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardviz.core.errors import TargetError, plural, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_checks import MAX_DEVICES

ROOM = 64
MOST = 1024  # each takes two threads, and collectives across many of them wait for one another
_OPTION = "jax_num_cpu_devices"
_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_PLATFORMS = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


@dataclass(frozen=True)
class Target:
    """Devices that a program can run on.

    Attributes:
        kind: `"attached"`, or `"cpu"` for simulated CPU devices.
        platform: `"cpu"`, `"gpu"` or `"tpu"`; `""` where jax has yet to look.
        count: how many devices; None where jax has yet to count them.

    >>> str(Target("cpu", "cpu", 8)), Target("cpu", "cpu", 8).name
    ('CPU × 8, simulated', 'cpu:8')
    """

    kind: str
    platform: str
    count: int | None = None

    @property
    def name(self) -> str:
        """The text that chooses this target: `"attached"`, `"cpu"`, `"cpu:8"`."""
        if self.kind == "attached" or self.count is None:
            return self.kind
        return f"{self.kind}:{self.count}"

    @property
    def devices(self) -> tuple[Any, ...]:
        """The jax devices; starts jax's backend.

        Raises:
            TargetError: if there are too few.
        """
        found = _devices(self.platform or None)
        if self.count is not None and len(found) < self.count:
            raise TargetError(_too_few(self.platform, len(found), self.count))
        return found[: self.count]

    def __str__(self) -> str:
        if self.count is not None:
            how = "attached" if self.kind == "attached" else "simulated"
            return f"{self.platform.upper()} × {self.count}, {how}"
        if self.kind == "cpu":
            return "CPU, simulated: as many devices as the mesh has"
        return "attached devices, looked up at the first run"


def targets() -> tuple[Target, ...]:
    """What a program can run on here. Starts no backend: before the first run, jax has not looked
    for devices, and the targets say so.

    >>> [t.kind for t in targets()]
    ['attached', 'cpu']
    """
    if not backend_started():
        return Target("attached", ""), Target("cpu", "cpu")
    found = _devices(None)
    attached = Target("attached", found[0].platform, len(found))
    if attached.platform == "cpu":
        one = Target("attached", "cpu", 1)
        return (one, Target("cpu", "cpu", len(found))) if len(found) > 1 else (one,)
    simulated = _count("cpu")
    return (attached, Target("cpu", "cpu", simulated)) if simulated else (attached,)


def choose(text: str | Target | None, needed: int) -> Target:
    """The target that a person named, or the best one for a mesh of `needed` devices.

    Args:
        text: `"attached"`, `"gpu"`, `"tpu"`, `"cpu"`, `"cpu:8"`; None or `""` for attached devices
            where there are enough of them, else simulated ones.
        needed: how many devices the mesh has.

    Raises:
        TargetError: where there is no such target, or it has too few devices.

    >>> choose("cpu:1", 1).count
    1
    """
    if isinstance(text, Target):
        text = text.name
    if text is None or (isinstance(text, str) and not text.strip()):
        return _best(needed)
    if not isinstance(text, str):
        raise TargetError(f"A target is text such as 'cpu:8' or 'attached'; got {shown(text)}.")
    word, colon, number = text.strip().lower().partition(":")
    if word == "cpu":
        return _cpu(_typed_count(text, number) if colon else None, needed)
    if word not in ("attached", *_PLATFORMS) or colon:
        raise TargetError(
            f"No target is called {shown(text)}. Write 'attached', 'gpu', 'tpu', 'cpu' or 'cpu:8'."
        )
    _ask_for_cpus(needed)
    found = _devices(_PLATFORMS.get(word))
    if len(found) < needed:
        raise TargetError(_too_few(found[0].platform, len(found), needed))
    return Target("attached", found[0].platform, len(found) if found[0].platform != "cpu" else 1)


def device_mesh(mesh: MeshSpec, target: Target) -> Mesh:
    """The jax Mesh that puts every position of `mesh` on a device of the target.

    Ids that the target has mean its devices. Ids that it lacks are names: the lowest of them is
    its first device, and so on, so that permuted ids permute devices.

    Raises:
        TargetError: if the target has too few devices.
    """
    ids = mesh.device_ids.ravel()
    found = target.devices
    by_id = {d.id: d for d in _devices(found[0].platform)}
    if all(int(i) in by_id for i in ids):
        chosen = [by_id[int(i)] for i in ids]
    elif len(found) < mesh.size:
        raise TargetError(_too_few(found[0].platform, len(found), mesh.size))
    else:
        chosen = [found[rank] for rank in np.argsort(np.argsort(ids))]
    return mesh_of(chosen, mesh)


def mesh_of(devices: Sequence[Any], mesh: MeshSpec) -> Mesh:
    """A jax Mesh of the given devices, one a position, with the axes of `mesh`."""
    grid = np.empty(len(devices), object)
    grid[:] = devices
    types = tuple(AxisType[t] for t in mesh.axis_types)
    return Mesh(grid.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=types)


def backend_started() -> bool:
    """Whether jax has started its backends, found out without starting them."""
    now = getattr(jax.config, _OPTION)
    try:
        jax.config.update(_OPTION, now + 1)
    except RuntimeError:
        return True
    jax.config.update(_OPTION, now)
    return False


def _best(needed: int) -> Target:
    _ask_for_cpus(needed)
    found = _devices(None)
    if found[0].platform != "cpu" and len(found) >= needed:
        return Target("attached", found[0].platform, len(found))
    if found[0].platform == "cpu" and needed == 1:
        return Target("attached", "cpu", 1)
    there = _count("cpu")
    if there < needed:
        raise TargetError(_too_few(found[0].platform, len(found), needed, there))
    return Target("cpu", "cpu", needed)


def _cpu(count: int | None, needed: int) -> Target:
    if count is not None and count < needed:
        raise TargetError(
            f"The mesh has {plural(needed, 'device')} and the target {shown(f'cpu:{count}')} only"
            f" {count}. Write 'cpu:{needed}', or use a smaller mesh."
        )
    _ask_for_cpus(count or needed, exactly=count is not None)
    there = len(_devices("cpu"))
    if there < (count or needed):
        raise TargetError(_too_few("cpu", there, count or needed))
    return Target("cpu", "cpu", count or needed)


def _ask_for_cpus(count: int, exactly: bool = False) -> None:
    """Sees to it that enough CPU devices start, where the backend has not started yet."""
    if backend_started():
        return
    count = min(count, MOST)
    own = getattr(jax.config, _OPTION)
    if own < 0 and (flag := _FLAG.search(os.environ.get("XLA_FLAGS", ""))):
        own = int(flag[1])
    if own >= count:
        return  # somebody chose a number, and it is enough
    jax.config.update(_OPTION, count if exactly or own >= 0 else max(count, ROOM))


def _devices(platform: str | None) -> tuple[Any, ...]:
    try:
        return tuple(jax.devices(platform))
    except (RuntimeError, AssertionError) as error:  # jax asserts that any platform was found
        first = str(error).strip().splitlines()[0] if str(error).strip() else "it gives no reason."
        kind = f"{platform.upper()} device" if platform else "device"
        raise TargetError(
            f"jax finds no {kind} here: {first} Write 'cpu:8' for simulated devices, and look at"
            " the environment variable JAX_PLATFORMS, which limits what jax looks for."
        ) from error


def _count(platform: str) -> int:
    try:
        return len(_devices(platform))
    except TargetError:
        return 0


def _too_few(platform: str, there: int, needed: int, cpus: int | None = None) -> str:
    have = plural(there, f"{platform.upper()} device")
    have += "" if cpus is None or platform == "cpu" else f" and {plural(cpus, 'CPU device')}"
    if needed > MOST:
        advice = (
            f"At most {MOST:,} are simulated; layouts and pictures need none, so look at this mesh"
            " and run a smaller one"
        )
    elif platform != "cpu" and cpus is None:
        advice = f"Write 'cpu:{needed}' for simulated devices"
    else:
        advice = (
            "Their number was settled when jax started: restart the kernel and run this first, or"
            f" begin with jax.config.update('{_OPTION}', {needed})"
        )
    most = max(there, cpus or 0)
    return (
        f"The mesh has {plural(needed, 'device')} and jax has {have} here. {advice}; or use a mesh"
        f" of at most {plural(most, 'device')}."
    )


def _typed_count(text: str, number: str) -> int:
    digits = number.strip()
    if not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits[:12]) <= MAX_DEVICES:
        raise TargetError(
            f"A simulated target names its number of devices, such as 'cpu:8'; got {shown(text)}."
        )
    return int(digits[:12])
