"""Attached and simulated devices of this process.

jax starts its backends once, at the first call that needs a device. This fixes the
number of CPU devices.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from shardviz.base.backend.jax_compat import backend_started
from shardviz.base.errors import ProgramError, TargetError
from shardviz.base.format import clause, plural
from shardviz.base.mesh import MeshSpec

LEAST_SIMULATED = 64
# Each simulated device needs two threads, and they block each other in collectives.
MOST_SIMULATED = 1024
MOST_NAMED = 1 << 16
OPTION = "jax_num_cpu_devices"
_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


class Device(Protocol):
    """A jax device. Type checkers don't know jax's own class, which is compiled."""

    @property
    def id(self) -> int: ...
    @property
    def process_index(self) -> int: ...
    @property
    def platform(self) -> str: ...
    @property
    def device_kind(self) -> str: ...
    @property
    def client(self) -> Any: ...
    def memory_stats(self) -> dict[str, int] | None: ...


def mesh_of(devices: Sequence[Any], mesh: MeshSpec) -> Mesh:
    """Returns a jax Mesh with the axes of `mesh` over devices in row-major order."""
    grid = np.empty(len(devices), object)
    grid[:] = devices
    types = tuple(AxisType[t] for t in mesh.axis_types)
    return Mesh(grid.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=types)


def with_devices(mesh: MeshSpec, devices: Sequence[Any]) -> MeshSpec:
    """Returns `mesh` with the ids and processes of devices in row-major order."""
    ids = np.array([d.id for d in devices], np.int64)
    processes = np.array([d.process_index for d in devices], np.int64)
    return mesh.replace(
        device_ids=ids.reshape(mesh.axis_sizes),
        process_indices=processes.reshape(mesh.axis_sizes),
    )


def mesh_of_names(mesh: MeshSpec, platform: str = "cpu") -> Mesh:
    """Returns a jax Mesh of devices that only have ids, for lowering but not running.

    jax lowers callbacks to Python only for a mesh with devices.
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
    """Returns a jax Mesh to lower programs that need concrete devices.

    The mesh has this kernel's CPU devices if there are enough, because the function may
    name them. Otherwise its devices only have ids. No backend is started.
    """
    if platform == "cpu" and backend_started() and count_of("cpu") >= mesh.size:
        return mesh_of(devices_for(mesh, attached_devices("cpu")), mesh)
    return mesh_of_names(mesh, platform)


@contextlib.contextmanager
def lowering_without_backend() -> Iterator[None]:
    """Lowers on an AbstractMesh without starting jax's backend.

    jax looks up its default device even if the program uses no device, which starts the
    backend. After that, jax refuses `jax_num_cpu_devices` and
    `jax.distributed.initialize`. There may also be no default device, for example with
    JAX_PLATFORM_NAME=gpu on a machine without a GPU.
    """
    if backend_started() and count_of(None):
        yield
    else:
        with jax.default_device(_DEFAULT_DEVICE):
            yield


def devices_for(mesh: MeshSpec, devices: Sequence[Any]) -> list[Any]:
    """Returns a device for every position of a mesh, in row-major order.

    If the platform has devices with all of the mesh's ids, these devices are used.
    Otherwise the ids only define an order: the lowest id gets the first of `devices`,
    and so on, so permuted ids permute devices.
    """
    ids = mesh.device_ids.ravel().tolist()
    platform = devices[0].platform
    by_id = {device.id: device for device in attached_devices(platform)}
    if by_id.keys() >= set(ids):
        return [by_id[i] for i in ids]
    refuse_too_few(platform, len(devices), mesh.size)
    return [devices[rank] for rank in np.argsort(np.argsort(ids))]


class _NamedDevice:
    """A device with only the attributes that jax reads for lowering."""

    process_index = 0

    def __init__(self, number: int, client: _NamedClient) -> None:
        self.id, self.client = number, client
        self.platform = self.device_kind = client.platform

    def __repr__(self) -> str:
        return f"NamedDevice({self.id})"


class _NamedClient:
    """A client with only the attributes that jax reads for lowering."""

    runtime_type = ""

    def __init__(self, platform: str) -> None:
        self.platform = platform

    def make_python_callback_from_host_send_and_recv(self, *_: Any) -> Any:
        """Returns a placeholder for the Python callback of a TPU's send and receive."""
        return object()


# Shared by all programs, because jax caches lowered programs by default device.
_DEFAULT_DEVICE: Any = _NamedDevice(0, _NamedClient("cpu"))


def chosen_cpus() -> int:
    """Returns the number of CPU devices that the user set; -1 if unset."""
    count = getattr(jax.config, OPTION)
    if count < 0 and (flag := _FLAG.search(os.environ.get("XLA_FLAGS", ""))):
        count = int(flag[1])
    return count


def ask_for_cpus(count: int, exactly: bool = False) -> None:
    """Makes jax simulate enough CPU devices, unless the backend has started.

    If the user set no number, jax simulates at least 64 devices, so that larger meshes
    can run later. 64 devices cost 7 ms and 10 MB more than 8.
    """
    # The number is fixed once the backend has started.
    if backend_started():
        return
    count, chosen = min(count, MOST_SIMULATED), chosen_cpus()
    if chosen >= count:
        return
    is_exact = exactly or chosen >= 0
    # jax refuses the update if another thread has started the backend in the meantime.
    with contextlib.suppress(RuntimeError):
        jax.config.update(OPTION, count if is_exact else max(count, LEAST_SIMULATED))


def attached_devices(platform: str | None) -> tuple[Any, ...]:
    """Returns devices of a platform, or of the default one; starts the backend."""
    try:
        return tuple(jax.devices(platform))
    except (RuntimeError, AssertionError) as error:
        kind = f"{platform.upper()} device" if platform else "device"
        # If jax finds no platform, it raises an AssertionError without a message.
        reason = clause(": {}", str(error).strip().partition("\n")[0].rstrip("."))
        raise TargetError(
            f"jax finds no {kind} here{reason}. Write 'cpu:8' for simulated devices, or"
            " 'tpu:v5e:2x4' to compile for hardware that is not here. Otherwise check the"
            " environment variables JAX_PLATFORMS and JAX_PLATFORM_NAME, which limit the"
            " platforms that jax looks for."
        ) from error


def own_devices(devices: Sequence[Any]) -> list[Any]:
    """Returns the devices that belong to this process."""
    return [d for d in devices if d.process_index == jax.process_index()]


def processes_of(devices: Sequence[Any]) -> list[int]:
    """Returns the process indices of these devices, sorted."""
    return sorted({d.process_index for d in devices})


def count_of(platform: str | None) -> int:
    """Counts jax's devices of a platform, or of the default one; starts the backend."""
    try:
        return len(attached_devices(platform))
    except TargetError:
        return 0


def refuse_too_few(platform: str, attached: int, needed: int) -> None:
    """Raises if a mesh has more devices than jax has here."""
    if attached < needed:
        raise TargetError(
            f"The mesh has {plural(needed, 'device')} and jax has"
            f" {plural(attached, f'{platform.upper()} device')} here, a number that was fixed"
            " when jax started. Use a smaller mesh; or for simulated devices write"
            f" 'cpu:{needed}', or restart the kernel and begin with"
            f" jax.config.update('{OPTION}', {needed}), up to {MOST_SIMULATED:,}. Layouts,"
            " plans and pictures need none."
        )
