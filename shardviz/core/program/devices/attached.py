"""The devices that jax has in this process: attached ones, and CPU devices that it simulates.

jax starts its backends once, when somebody first asks for a device, and the number of CPU devices
is settled at that moment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardviz.core.errors import TargetError, plural
from shardviz.core.layout.mesh import MeshSpec

ROOM = 64
MOST = 1024  # each takes two threads, and collectives across many of them wait for one another
OPTION = "jax_num_cpu_devices"
_DRIVER = Path("/dev/nvidiactl")
_UNCHECKED = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
# To find out whether jax has started is to change the option and to put it back.
_SETTLING = threading.RLock()
_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def mesh_of(devices: Sequence[Any], mesh: MeshSpec) -> Mesh:
    """A jax Mesh of the given devices, one a position, with the axes of `mesh`."""
    grid = np.empty(len(devices), object)
    grid[:] = devices
    types = tuple(AxisType[t] for t in mesh.axis_types)
    return Mesh(grid.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=types)


def backend_started() -> bool:
    """Whether jax has started its backends, found out without starting them."""
    with _SETTLING:
        now = getattr(jax.config, OPTION)
        try:
            jax.config.update(OPTION, now + 1)
        except RuntimeError:
            return True
        jax.config.update(OPTION, now)
        return False


def chosen_cpus() -> int:
    """How many CPU devices somebody asked jax for; -1 where nobody did."""
    own = getattr(jax.config, OPTION)
    if own < 0 and (flag := _FLAG.search(os.environ.get("XLA_FLAGS", ""))):
        own = int(flag[1])
    return own


def ask_for_cpus(count: int, exactly: bool = False) -> None:
    """Sees to it that enough CPU devices start, where the backend has not started yet.

    Where nobody chose a number jax is asked for some more than are needed (64 take 7 ms and 10 MB
    more than 8), so that bigger meshes run later.
    """
    with _SETTLING:
        if backend_started():
            return
        count, own = min(count, MOST), chosen_cpus()
        if own >= count:
            return  # somebody chose a number, and it is enough
        jax.config.update(OPTION, count if exactly or own >= 0 else max(count, ROOM))


def attached_devices(platform: str | None) -> tuple[Any, ...]:
    """jax's devices of a platform, or of its first one; starts the backend.

    Raises:
        TargetError: where there are none.
    """
    try:
        return tuple(jax.devices(platform))
    except (RuntimeError, AssertionError) as error:  # jax asserts that any platform was found
        first = str(error).strip().splitlines()[0] if str(error).strip() else "it gives no reason."
        kind = f"{platform.upper()} device" if platform else "device"
        raise TargetError(
            f"jax finds no {kind} here: {first} Write 'cpu:8' for simulated devices, and look at"
            " the environment variable JAX_PLATFORMS, which limits what jax looks for."
        ) from error


def count_of(platform: str) -> int:
    """How many devices of a platform jax has; starts the backend."""
    try:
        return len(attached_devices(platform))
    except TargetError:
        return 0


def too_few(platform: str, there: int, needed: int, cpus: int | None = None) -> str:
    """Why the devices of this kernel do not do, in words."""
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
            f" begin with jax.config.update('{OPTION}', {needed})"
        )
    most = max(there, cpus or 0)
    return (
        f"The mesh has {plural(needed, 'device')} and jax has {have} here. {advice}; or use a mesh"
        f" of at most {plural(most, 'device')}."
    )


def spare_cuda_check() -> None:
    """Keeps jax from reporting that CUDA's libraries are missing on a machine without a GPU.

    Its GPU plugin is there to compile for GPUs that are described, which needs none of them. jax
    looks when it starts, so this has to be said before.
    """
    plugins = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    if not _DRIVER.exists() and any(importlib.util.find_spec(p) is not None for p in plugins):
        os.environ.setdefault(_UNCHECKED, "1")


spare_cuda_check()
