"""Attached and simulated devices of this process, and the memory that they have free.

jax starts its backends once, at the first call that needs a device, and the number of
CPU devices is fixed at that moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardviz.core.backend.jax_compat import backend_started
from shardviz.core.errors import OutOfMemory, ProgramError, TargetError
from shardviz.core.format import bytes_text, clause, plural
from shardviz.core.layout.fit import Fit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.report import Memory

LEAST_SIMULATED = 64
# Each takes two threads, and collectives across many of them wait for one another.
MOST_SIMULATED = 1024
MOST_NAMED = 1 << 16
OPTION = "jax_num_cpu_devices"
_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def mesh_of(devices: Sequence[Any], mesh: MeshSpec) -> Mesh:
    """A jax Mesh with the axes of `mesh` of these devices, in row-major order."""
    grid = np.empty(len(devices), object)
    grid[:] = devices
    types = tuple(AxisType[t] for t in mesh.axis_types)
    return Mesh(grid.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=types)


def with_devices(mesh: MeshSpec, devices: Sequence[Any]) -> MeshSpec:
    """The mesh with the ids and processes of these devices, in row-major order."""
    ids = np.array([d.id for d in devices], np.int64)
    processes = np.array([d.process_index for d in devices], np.int64)
    return mesh.replace(
        device_ids=ids.reshape(mesh.axis_sizes),
        process_indices=processes.reshape(mesh.axis_sizes),
    )


def mesh_of_names(mesh: MeshSpec, platform: str = "cpu") -> Mesh:
    """A jax Mesh of devices that have only ids: enough to lower, never to run.

    jax lowers callbacks to Python for named devices only.
    """
    if mesh.size > MOST_NAMED:
        raise ProgramError(
            f"The program calls Python on the host, which jax lowers only where every device is"
            f" named; the mesh has {mesh.size:,}. Use at most {MOST_NAMED:,} devices, or leave the"
            " callback out."
        )
    client = _NamedClient(platform)
    return mesh_of([_NamedDevice(i, client) for i in range(mesh.size)], mesh)


def mesh_to_lower_on(mesh: MeshSpec, platform: str = "cpu") -> Mesh:
    """A jax Mesh for programs that jax lowers only for devices; starts no backend.

    It holds the CPU devices of this kernel if there are enough, since a program may
    name them itself, else devices that have only ids.
    """
    if platform == "cpu" and backend_started() and count_of("cpu") >= mesh.size:
        return mesh_of(devices_for(mesh, attached_devices("cpu")), mesh)
    return mesh_of_names(mesh, platform)


@contextlib.contextmanager
def lowering_without_backend() -> Iterator[None]:
    """Lowers on an AbstractMesh without starting jax's backend.

    jax asks for its default device, even if the program uses no device, and starts the
    backend for that. After a start `jax_num_cpu_devices` and
    `jax.distributed.initialize` are refused. There may also be no default device, as
    with JAX_PLATFORM_NAME=gpu on a machine without a GPU.
    """
    if backend_started() and count_of(None):
        yield
    else:
        with jax.default_device(_DEFAULT_DEVICE):
            yield


def devices_for(mesh: MeshSpec, devices: Sequence[Any]) -> list[Any]:
    """A device for every position of a mesh, in row-major order.

    Ids that the platform has mean its devices. Ids that it lacks are names: the lowest
    of them is the first of `devices`, and so on, so that permuted ids permute devices.
    """
    ids = mesh.device_ids.ravel().tolist()
    platform = devices[0].platform
    by_id = {device.id: device for device in attached_devices(platform)}
    if by_id.keys() >= set(ids):
        return [by_id[i] for i in ids]
    refuse_too_few(platform, len(devices), mesh.size)
    return [devices[rank] for rank in np.argsort(np.argsort(ids))]


class _NamedDevice:
    """A device with the attributes that jax reads while it lowers."""

    process_index = 0

    def __init__(self, number: int, client: _NamedClient) -> None:
        self.id, self.client = number, client
        self.platform = self.device_kind = client.platform

    def __repr__(self) -> str:
        return f"NamedDevice({self.id})"


class _NamedClient:
    """A client of devices with the attributes that jax reads while it lowers."""

    runtime_type = ""

    def __init__(self, platform: str) -> None:
        self.platform = platform

    def make_python_callback_from_host_send_and_recv(self, *_: Any) -> Any:
        """Stands for a callback into Python, which a TPU sends and receives for."""
        return object()


# One for all programs, since jax keeps what it lowered by the default device.
_DEFAULT_DEVICE: Any = _NamedDevice(0, _NamedClient("cpu"))


def chosen_cpus() -> int:
    """How many CPU devices the user asked jax for; -1 where the user chose no number."""
    own = getattr(jax.config, OPTION)
    if own < 0 and (flag := _FLAG.search(os.environ.get("XLA_FLAGS", ""))):
        own = int(flag[1])
    return own


def ask_for_cpus(count: int, exactly: bool = False) -> None:
    """Makes jax simulate enough CPU devices, where the backend has not started yet.

    Where the user chose no number, jax is asked for some more than are needed (64 take
    7 ms and 10 MB more than 8), so that larger meshes run later.
    """
    # Then nothing can be chosen any more.
    if backend_started():
        return
    count, own = min(count, MOST_SIMULATED), chosen_cpus()
    if own >= count:
        return  # the user chose a number, and it is enough
    wanted = count if exactly or own >= 0 else max(count, LEAST_SIMULATED)
    # jax refuses it where another thread has started the backend meanwhile.
    with contextlib.suppress(RuntimeError):
        jax.config.update(OPTION, wanted)


def attached_devices(platform: str | None) -> tuple[Any, ...]:
    """jax's devices of a platform, or of its first one; starts the backend."""
    try:
        return tuple(jax.devices(platform))
    except (RuntimeError, AssertionError) as error:
        kind = f"{platform.upper()} device" if platform else "device"
        # jax asserts, without a word, that any platform was found.
        said = clause(": {}", str(error).strip().partition("\n")[0].rstrip("."))
        raise TargetError(
            f"jax finds no {kind} here{said}. Write 'cpu:8' for simulated devices, and"
            " check the environment variables JAX_PLATFORMS and JAX_PLATFORM_NAME, which limit"
            " the platforms that jax looks for."
        ) from error


def own_devices(devices: Sequence[Any]) -> list[Any]:
    """Those of the devices that belong to this process."""
    return [d for d in devices if d.process_index == jax.process_index()]


def processes_of(devices: Sequence[Any]) -> list[int]:
    """The processes that these devices belong to, in order."""
    return sorted({d.process_index for d in devices})


def count_of(platform: str | None) -> int:
    """How many devices jax has, of a platform or of its first; starts the backend."""
    try:
        return len(attached_devices(platform))
    except TargetError:
        return 0


def refuse_too_few(platform: str, there: int, needed: int) -> None:
    """Refuses a mesh that has more devices than this kernel."""
    if there < needed:
        raise TargetError(
            f"The mesh has {plural(needed, 'device')} and jax has"
            f" {plural(there, f'{platform.upper()} device')} here, a number that was fixed"
            " when jax started. Use a smaller mesh; or for simulated devices write"
            f" 'cpu:{needed}', or restart the kernel and begin with"
            f" jax.config.update('{OPTION}', {needed}), up to {MOST_SIMULATED:,}. Layouts,"
            " plans and pictures need none."
        )


_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Capacity:
    """The memory of devices.

    Attributes:
        free: bytes free on each device, or on the host; None where that is not known.
        shared: whether all devices share it, as simulated CPU devices do.
        total: bytes that a device or the host has; None where that is not known.
    """

    free: int | None
    shared: bool = False
    total: int | None = None

    def per_device(self, devices: int) -> int | None:
        """Bytes that one of `devices` may use.

        >>> Capacity(800, shared=True).per_device(8)
        100
        """
        if self.free is None or not self.shared:
            return self.free
        return self.free // devices

    def total_per_device(self, devices: int) -> int | None:
        """Bytes that one of `devices` has, or its even share of the host's."""
        return Capacity(self.total, self.shared).per_device(devices)


def capacity_of(devices: Sequence[Any]) -> Capacity:
    """What these devices have and what is free: the least of them where they differ."""
    if devices[0].platform == "cpu":
        return Capacity(host_available(), shared=True, total=host_total())
    free, total = [], []
    for device in own_devices(devices) or devices[:1]:  # others do not say
        if (sizes := _device_memory(device)) is not None:
            total.append(sizes[0])
            free.append(sizes[0] - sizes[1])
    return Capacity(min(free, default=None), total=min(total, default=None))


def fit_now(memory: Memory, capacity: Capacity, devices: int, placed: int = 0) -> Fit:
    """Whether a run of a program fits into what is free now.

    Args:
        memory: what the compiler says that it needs on each device.
        capacity: what is free.
        devices: how many devices run it.
        placed: bytes of its arguments that are on each device already.

    >>> fit_now(Memory(arguments=101), Capacity(800, shared=True), 8).code
    'not now'
    """
    needed = run_bytes(memory) - placed
    return Fit(needed, None, free=capacity.per_device(devices))


def refuse_too_big(
    memory: Memory, capacity: Capacity, devices: int, placed: int = 0
) -> None:
    """Refuses a run that does not fit; the arguments are those of `fit_now`."""
    fit = fit_now(memory, capacity, devices, placed)
    if fit.ok is not False:
        return
    if capacity.shared:
        raise OutOfMemory(
            f"{fit} That is {bytes_text(fit.needed * devices)} on all"
            f" {plural(devices, 'simulated device')}, and this machine has"
            f" {bytes_text(capacity.free or 0)} free. Nothing was placed. Make the arrays or"
            " the mesh smaller."
        )
    raise OutOfMemory(
        f"{fit} Nothing was placed. Split the arrays over more devices, or make them"
        " smaller."
    )


def run_bytes(memory: Memory) -> int:
    """Bytes that a run takes on each device, without outputs that reuse arguments.

    >>> run_bytes(Memory(arguments=100, outputs=40, temporaries=5, aliased=40))
    105
    """
    # Code is not counted: on simulated devices it is shared.
    parts = (memory.arguments, memory.outputs, memory.temporaries)
    return sum(n or 0 for n in parts) - (memory.aliased or 0)


def host_available() -> int | None:
    """Bytes of memory that this process may still take; None where not known."""
    known = [n for n in (_system_available(), _group_available()) if n is not None]
    return min(known) if known else None


def host_total() -> int | None:
    """Bytes of memory that this machine has; None where not known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def give_back_freed() -> None:
    """Gives the system tens of MB that a compiler freed in small parts, and C++ keeps."""
    with contextlib.suppress(OSError, AttributeError):  # not the C library of GNU
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _device_memory(device: Any) -> tuple[int, int] | None:
    """The bytes that the runtime may use on a device, and those in use."""
    try:
        stats = device.memory_stats() or {}
    except (NotImplementedError, RuntimeError):
        return None  # not every platform reports memory
    limit = stats.get("bytes_limit")
    return None if limit is None else (int(limit), int(stats.get("bytes_in_use", 0)))


def _system_available() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return host_total()


def _group_available() -> int | None:
    """What the memory limit of a container leaves, as cgroup v2 has it."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        stat = dict(line.split() for line in lines)
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None  # "max"
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
