"""How much memory the devices have free, and whether a program fits into it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardviz.core.errors import plural
from shardviz.core.program.report import Memory

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Capacity:
    """Free memory.

    Attributes:
        free: bytes free on each device, or on the host; None where nobody says.
        shared: whether all devices share it, as simulated CPU devices do.
    """

    free: int | None
    shared: bool = False

    def per_device(self, devices: int) -> int | None:
        """Bytes that one of `devices` may use.

        >>> Capacity(800, shared=True).per_device(8)
        100
        """
        return self.free // devices if self.shared and self.free is not None else self.free


def capacity_of(devices: Sequence[Any]) -> Capacity:
    """What is free on these devices: the least of them where they differ."""
    if devices[0].platform == "cpu":
        return Capacity(host_available(), shared=True)
    free = [_device_free(d) for d in devices if d.process_index == devices[0].process_index]
    known = [f for f in free if f is not None]
    return Capacity(min(known) if known else None)


def refusal(memory: Memory, capacity: Capacity, devices: int, placed: int = 0) -> str | None:
    """The sentence for a program that does not fit, or None where it does or nobody knows.

    Args:
        memory: what the compiler says that it needs on each device.
        capacity: what there is.
        devices: how many devices run it.
        placed: bytes of its arguments that each device holds already.
    """
    needed = needed_bytes(memory) - placed
    total = needed * devices if capacity.shared else needed
    if capacity.free is None or total <= capacity.free:
        return None
    parts = ", ".join(
        f"{bytes_in_words(size)} of {what}"
        for what, size in (
            ("arguments", memory.arguments),
            ("outputs", memory.outputs),
            ("temporaries", memory.temporaries),
        )
        if size
    )
    each = f"{bytes_in_words(needed)} on each device ({parts})"
    if capacity.shared:
        need = f"{each}, {bytes_in_words(total)} on all {plural(devices, 'simulated device')}"
        return (
            f"It needs {need}, and this machine has {bytes_in_words(capacity.free)} free. Nothing"
            " was placed. Make the arrays or the mesh smaller."
        )
    return (
        f"It needs {each}, and a device has {bytes_in_words(capacity.free)} free. Nothing was"
        " placed. Split the arrays over more devices, or make them smaller."
    )


def needed_bytes(memory: Memory) -> int:
    """Bytes that a run takes on each device: arguments, outputs that share none, temporaries.

    >>> needed_bytes(Memory(arguments=100, outputs=40, temporaries=5, aliased=40))
    105
    """
    given = (memory.arguments, memory.outputs, memory.temporaries)
    return sum(n or 0 for n in given) - (memory.aliased or 0)


def bytes_in_words(size: float) -> str:
    """Bytes with a binary unit.

    >>> bytes_in_words(512), bytes_in_words(3 << 29), bytes_in_words(5 << 50)
    ('512 B', '1.5 GiB', '5.0 PiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} PiB"


def host_available() -> int | None:
    """Bytes of memory that this process may still take, or None where the system does not say."""
    known = [n for n in (_system_available(), _group_available()) if n is not None]
    return min(known) if known else None


def host_total() -> int | None:
    """Bytes of memory that this machine has, or None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _device_free(device: Any) -> int | None:
    try:
        stats = device.memory_stats() or {}
    except (NotImplementedError, RuntimeError):
        return None  # not every platform counts
    limit = stats.get("bytes_limit")
    return None if limit is None else int(limit) - int(stats.get("bytes_in_use", 0))


def _system_available() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return host_total()


def _group_available() -> int | None:
    """What a container leaves, by the memory controller of version 2."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None  # "max"
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
