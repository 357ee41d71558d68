"""Target: devices that a program can be compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from shardviz.core.display import Displayed
from shardviz.core.hardware.topology import Topology


@dataclass(frozen=True, repr=False)
class Target(Displayed):
    """Devices that a program can be compiled for, and mostly run on.

    Attributes:
        kind: `"attached"`, `"cpu"` for simulated CPU devices, or `"described"`.
        platform: `"cpu"`, `"gpu"` or `"tpu"`; `""` before jax has looked.
        count: how many devices; None before jax has looked.
        text: the text of a described target, `"tpu:v5e:4x4"`; else `""`.
        worker: whether the devices are those of a worker process and not of this kernel.
        missing: what has to be installed first, in one sentence; `""` for nothing.

    >>> str(Target("cpu", "cpu", 8)), Target("cpu", "cpu", 8).name
    ('CPU × 8, simulated', 'cpu:8')
    """

    kind: str
    platform: str
    count: int | None = None
    text: str = ""
    worker: bool = False
    missing: str = ""

    @property
    def name(self) -> str:
        """The text that chooses this target: `"attached"`, `"cpu"`, `"cpu:8"`, `"tpu:v5e:4x4"`."""
        if self.text:
            return self.text
        if self.kind == "attached" or self.count is None:
            return self.kind
        return f"{self.kind}:{self.count}"

    @property
    def topology(self) -> Topology | None:
        """Where the devices of a described target sit; None for any other."""
        return Topology.parse(self.text) if self.text else None

    def __str__(self) -> str:
        if self.topology is not None:
            return f"{self.topology.title}, described"
        if self.count is not None:
            how = "attached" if self.kind == "attached" else "simulated"
            return f"{self.platform.upper()} × {self.count}, {how}"
        if self.kind == "cpu":
            return "CPU, simulated: as many devices as the mesh has"
        return "attached devices, looked up at the first run"

    def __repr__(self) -> str:
        return f"Target({self.name!r}: {self})"


class Targets(tuple[Target, ...], Displayed):
    """Targets to choose from: a tuple that is displayed as a table.

    >>> Targets([Target("cpu", "cpu", 8)])
    Targets(cpu:8)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Targets({', '.join(t.name for t in self)})"


def only_described(text: str) -> str:
    """Why nothing runs on a described target, in words.

    >>> only_described("tpu:v5e:4x4")[:43]
    "'tpu:v5e:4x4' is described and not attached"
    """
    return (
        f"{text!r} is described and not attached: programs compile for it and cannot run on it."
        " Compile for it, or run on 'cpu:8' or attached devices."
    )
