"""Target: the devices that a program is compiled for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from shardviz.base.display import Displayed, sentence
from shardviz.base.errors import TargetError
from shardviz.base.format import plural, shown, suggestion
from shardviz.hardware.chips import find_chip
from shardviz.hardware.topology import EXAMPLES, Topology, even_topology, is_described

#: Targets that are one word; jax also calls GPUs by the names of their software.
WORDS = ("", "attached", "cpu", "gpu", "tpu", "cuda", "rocm")
SIMULATED = re.compile(r"cpu(?:\s*:\s*([0-9]{1,7}))?", re.IGNORECASE)
_HOSTS = re.compile(
    r"([1-9]\d{0,2}) ?hosts? ?[x×*] ?([1-9]\d{0,3})(?: ?, ?local)?", re.IGNORECASE
)


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

    >>> from shardviz.types import Target
    >>> str(Target("cpu", "cpu", 8)), Target("cpu", "cpu", 8).name
    ('CPU × 8, simulated', 'cpu:8')
    """

    _adds = ("name",)

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
    def name(self) -> str: ...

    @property
    def device_ids(self) -> Sequence[int]: ...


TargetLike: TypeAlias = str | Target | JoinedProcesses | None
"""Devices to compile for: text such as `"tpu:v5e:4x4"`, a Target, the result of
`sv.hosts`, or None for attached devices."""


def hosts_in_text(text: str) -> tuple[int, int] | None:
    """Returns the numbers of local hosts and of devices per host; None for other text.

    >>> hosts_in_text("2 hosts x 4, local"), hosts_in_text("cpu:8")
    ((2, 4), None)
    """
    match = _HOSTS.fullmatch(" ".join(text.split()))
    return match and (int(match[1]), int(match[2]))


def checked_text(text: str, devices: int = 8) -> str:
    """Returns a typed target in its canonical form, whether or not it is available.

    Args:
        text: the target.
        devices: the number of devices of the target that an error suggests.

    Raises:
        TargetError: if there is no such target; the message has the nearest name.

    >>> checked_text(" CPU : 64"), checked_text("TPU:v5e:4x4"), checked_text("2 host x 4")
    ('cpu:64', 'tpu:v5e:4x4', '2 hosts x 4, local')
    """
    processes, comma, origin = text.strip().partition(", ipyparallel")
    if (hosts := hosts_in_text(processes)) and not origin:
        return f"{plural(hosts[0], 'host')} x {hosts[1]}{comma or ', local'}"
    word = text.strip().lower()
    if word in WORDS:
        return word
    simulated = SIMULATED.fullmatch(word)
    if simulated is not None and int(simulated[1]) > 0:
        return f"cpu:{int(simulated[1])}"
    if word.split(":")[0].strip() in ("tpu", "gpu") or is_described(word):
        return str(Topology.parse(word))
    names = ("attached", "cpu", "cpu:8", "gpu", "tpu", "2 hosts x 4")
    names += (EXAMPLES[0], EXAMPLES[-1], *EXAMPLES[1:-1])
    if (topology := _with_chip_in(word, devices)) is not None:
        count = plural(topology.devices, "device")
        raise TargetError(
            f"No target is called {shown(text)}. Did you mean {str(topology)!r}, with"
            f" {count}?"
        )
    raise TargetError(f"No target is called {shown(text)}.{suggestion(word, names)}")


def _with_chip_in(text: str, devices: int) -> Topology | None:
    """Returns hardware with the chip that a text names, with as many devices if possible.

    >>> str(_with_chip_in("h100x8", 4)), str(_with_chip_in("tpu v5e", 17))
    ('gpu:h100:1x4', 'tpu:v5e:2x4')
    """
    for name in re.split(r"[^a-z0-9]+|x(?=\d)|(?<=\d)x", text):
        with contextlib.suppress(TargetError):
            chip = find_chip(name)
            exact = even_topology(chip, max(devices // chip.devices, 1))
            return exact or even_topology(chip, 8)
    return None


def check_target(target: TargetLike | Topology, devices: int = 8) -> TargetLike:
    """Checks a target that a user passed, and replaces a Topology by its text.

    An unavailable target is not an error here; the later compile or run reports it.

    Args:
        target: the target.
        devices: the number of devices of the target that an error suggests.

    Raises:
        TargetError: if there is no such target.

    >>> check_target("cpu:8"), check_target(Topology.parse("v5e-16"))
    ('cpu:8', 'tpu:v5e:4x4')
    """
    if isinstance(target, Topology):
        return str(target)
    if isinstance(target, str):
        checked_text(target, devices)
    elif target is not None and not isinstance(target, Target):
        # Hosts have a name, unlike meshes and layouts.
        if not (hasattr(target, "name") and hasattr(target, "device_ids")):
            raise TargetError(
                f"A target is text such as 'cpu:8' or 'attached'; got {shown(target)}."
            )
    return target
