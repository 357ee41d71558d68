"""Measures devices' total and free memory, and checks whether a run fits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardviz.axis_rules.fit import Fit
from shardviz.base.errors import OutOfMemory
from shardviz.base.format import bytes_text, plural
from shardviz.compiled.report import Memory
from shardviz.programs.backend.devices import Device, own_devices

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Capacity:
    """The memory of devices.

    Attributes:
        free: free bytes of each device, or of the host if `shared`; None if unknown.
        shared: True if all devices share the host's memory, as simulated devices do.
        total: total bytes of a device, or of the host if `shared`; None if unknown.
    """

    free: int | None
    shared: bool = False
    total: int | None = None

    def per_device(self, devices: int) -> int | None:
        """Returns free bytes per device: an even share of host memory if `shared`.

        >>> Capacity(800, shared=True).per_device(8)
        100
        """
        if self.free is None or not self.shared:
            return self.free
        return self.free // devices

    def total_per_device(self, devices: int) -> int | None:
        """Returns total bytes per device: an even share of host memory if `shared`."""
        return Capacity(self.total, self.shared).per_device(devices)


def capacity_of(devices: Sequence[Device]) -> Capacity:
    """Returns the capacity of devices; the smallest values if they differ."""
    if devices[0].platform == "cpu":
        return Capacity(host_available(), shared=True, total=host_total())
    free, total = [], []
    # Devices of other processes do not report their memory.
    for device in own_devices(devices) or devices[:1]:
        if (sizes := _device_memory(device)) is not None:
            total.append(sizes[0])
            free.append(sizes[0] - sizes[1])
    return Capacity(min(free, default=None), total=min(total, default=None))


def fit_now(memory: Memory, capacity: Capacity, devices: int, placed: int = 0) -> Fit:
    """Checks whether a run fits into the memory that is free now.

    Args:
        memory: the compiler's figures of the memory needed on each device.
        capacity: the memory of the devices.
        devices: number of devices of the run.
        placed: bytes of arguments that are already on each device.

    >>> fit_now(Memory(arguments=101), Capacity(800, shared=True), 8).code
    'not now'
    """
    needed = run_bytes(memory) - placed
    return Fit(needed, None, free=capacity.per_device(devices))


def refuse_too_big(
    memory: Memory, capacity: Capacity, devices: int, placed: int = 0
) -> None:
    """Raises if a run does not fit; takes the arguments of `fit_now`."""
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
    """Bytes that a run needs on each device; outputs can reuse memory of arguments.

    >>> run_bytes(Memory(arguments=100, outputs=40, temporaries=5, aliased=40))
    105
    """
    # The program's code is not counted, because simulated devices share it.
    parts = (memory.arguments, memory.outputs, memory.temporaries)
    return sum(n or 0 for n in parts) - (memory.aliased or 0)


def host_available() -> int | None:
    """Bytes of memory that this process can still allocate; None if unknown."""
    limits = [n for n in (_system_available(), _group_available()) if n is not None]
    return min(limits, default=None)


def host_total() -> int | None:
    """Total bytes of this machine's memory; None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _device_memory(device: Device) -> tuple[int, int] | None:
    """Returns the bytes that the runtime may use on a device, and the bytes in use."""
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
    """Bytes still free under the container's memory limit (cgroup v2)."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        stat = dict(line.split() for line in lines)
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None  # "max" means no limit
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
