"""Target: the devices that a program is compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from shardviz.base.display import Displayed, sentence
from shardviz.base.errors import TargetError
from shardviz.hardware.topology import Topology


@dataclass(frozen=True, repr=False)
class Target(Displayed):
    """Devices that a program can be compiled for and, unless described, run on.

    Attributes:
        kind: `"attached"`, `"cpu"` for simulated CPU devices, `"described"`, or
            `"hosts"` for several processes.
        platform: `"cpu"`, `"gpu"` or `"tpu"`; `""` before jax's backend has started.
        count: the number of devices; None before jax's backend has started.
        text: the name of a described target, `"tpu:v5e:4x4"`, or of processes, `"2
            hosts x 4, local"`; else `""`.
        worker: whether a worker process, rather than this kernel, has the devices.
        missing: a sentence about packages to install first; else `""`.
        processes: the number of processes that share the devices.

    >>> str(Target("cpu", "cpu", 8)), Target("cpu", "cpu", 8).name
    ('CPU × 8, simulated', 'cpu:8')
    """

    kind: str
    platform: str
    count: int | None = None
    text: str = ""
    worker: bool = False
    missing: str = ""
    processes: int = 1

    @property
    def name(self) -> str:
        """Text that selects this target: `"attached"`, `"cpu:8"`, `"tpu:v5e:4x4"`."""
        if self.text:
            return self.text
        if self.kind == "attached" or self.count is None:
            return self.kind
        return f"{self.kind}:{self.count}"

    @property
    def topology(self) -> Topology | None:
        """The topology of a described target; None for any other."""
        # The text of a `hosts` target is not a topology.
        if not self.text or self.kind == "hosts":
            return None
        return Topology.parse(self.text)

    def __str__(self) -> str:
        return sentence(self)

    def __repr__(self) -> str:
        return f"Target({self.name!r}: {self})"


class Targets(tuple[Target, ...], Displayed):
    """A tuple of targets that is displayed as a table.

    >>> Targets([Target("cpu", "cpu", 8)])
    Targets(cpu:8)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Targets({', '.join(t.name for t in self)})"


def only_described(text: str) -> TargetError:
    """Returns the error for an attempt to run on a described target.

    >>> str(only_described("tpu:v5e:4x4"))[:43]
    "'tpu:v5e:4x4' is described and not attached"
    """
    return TargetError(
        f"{text!r} is described and not attached: programs compile for it and cannot run on it."
        " Compile for it, or run on 'cpu' or attached devices."
    )


class JoinedProcesses(Protocol):
    """Processes that `sv.hosts` has joined into one target."""

    @property
    def device_ids(self) -> Sequence[int]: ...


TargetLike: TypeAlias = str | Target | JoinedProcesses | None
"""Devices to compile for: text such as `"tpu:v5e:4x4"`, a Target, the result of
`sv.hosts`, or None for attached devices."""
