"""The targets of this kernel, and which one a program is compiled for.

Attached devices are used in this kernel: accelerators, and the CPU as one device. CPU devices are
simulated in a worker process, since a crash of XLA must not end the kernel, and described devices
(a slice of TPUs or a cluster of GPUs) are compiled for there. Who has made jax simulate CPU devices
in the kernel can have them used by the name `"attached"`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import Mesh

from shardviz.core.backend.described_devices import fits, missing
from shardviz.core.backend.devices import (
    MOST_SIMULATED,
    ask_for_cpus,
    attached_devices,
    backend_started,
    count_of,
    mesh_of,
    mesh_of_names,
    too_few,
)
from shardviz.core.errors import TargetError
from shardviz.core.format import plural, shown
from shardviz.core.hardware.topology import EXAMPLES, Topology, is_described
from shardviz.core.layout.mesh import MAX_DEVICES, MeshSpec
from shardviz.core.program.target import Target, Targets, only_described

_PLATFORMS = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}
_HOW = "Write 'attached', 'gpu', 'tpu', 'cpu', 'cpu:8', 'tpu:v5e:4x4' or 'gpu:h100:2x8'."


def targets() -> Targets:
    """What a program can run on here, and examples of described hardware that it can be compiled
    for. Starts no backend: before the first run, jax has not looked for devices, and the targets
    say so.

    >>> [t.name for t in targets() if t.kind == "described"][0]
    'tpu:v5e:4x4'
    """
    return Targets([*_here(), *map(described, EXAMPLES)])


def _here() -> tuple[Target, ...]:
    if not backend_started():
        return Target("attached", ""), Target("cpu", "cpu")
    found = attached_devices(None)
    attached = Target("attached", found[0].platform, len(found))
    if attached.platform == "cpu":
        one = Target("attached", "cpu", 1)
        return (one, Target("cpu", "cpu", len(found))) if len(found) > 1 else (one,)
    simulated = count_of("cpu")
    return (attached, Target("cpu", "cpu", simulated)) if simulated else (attached,)


def described(text: str) -> Target:
    """The target of described hardware, parsed.

    Raises:
        TargetError: with what could not be read, and how it is written.

    >>> str(described("tpu:v5p:8x8x16"))
    'TPU v5p 8×8×16, described'
    """
    topology = Topology.parse(text)
    kind = topology.chip.platform
    return Target("described", kind, topology.devices, str(topology), True, missing(kind))


def decide(text: str | Target | None, needed: int) -> Target:
    """The target of a compile or run, in this kernel or in the worker.

    Args:
        text: as for `choose`, or described hardware such as `"tpu:v5e:4x4"`.
        needed: how many devices the mesh has.

    Raises:
        TargetError: where there is no such target, or its number of devices does not fit.

    >>> decide("cpu:64", 64).worker, decide("attached", 1).worker
    (True, False)
    """
    if isinstance(text, Target) and text.kind == "attached" and text.count is not None:
        return choose(text, needed)  # it was looked up here before
    word = _word(text)
    if is_described(word):
        target = described(word)
        fits(Topology.parse(target.text), needed)
        if target.missing:
            raise TargetError(target.missing)
        return target
    kind, colon, number = word.partition(":")
    if kind.strip() not in ("", "cpu") or (not word and _attached_fits(needed)):
        return choose(word, needed)
    count = _typed_count(word, number) if colon else needed
    if count < needed:
        raise TargetError(_typed_too_few(count, needed))
    if count == 1:
        return choose(word, needed)  # the CPU itself, which every kernel has
    if count > MOST_SIMULATED:
        raise TargetError(
            f"{word or f'cpu:{count}'!r} asks for {plural(count, 'CPU device')}, and at most"
            f" {MOST_SIMULATED:,} are simulated. Layouts, plans and pictures need none; compile it"
            " for described hardware such as 'tpu:v5p:8x16x16', or use a smaller mesh."
        )
    return Target("cpu", "cpu", count, worker=True)


def devices_of(target: Target) -> tuple[Any, ...]:
    """The jax devices of a target in this process; starts jax's backend.

    Raises:
        TargetError: if there are too few, or they are only described.
    """
    if target.text:
        raise TargetError(only_described(target.text))
    found = attached_devices(target.platform or None)
    if target.count is not None and len(found) < target.count:
        raise TargetError(too_few(target.platform, len(found), target.count))
    return found[: target.count]


def choose(text: str | Target | None, needed: int) -> Target:
    """The devices of this kernel that were named, or the best ones for a mesh of `needed`.

    Args:
        text: `"attached"`, `"gpu"`, `"tpu"`, `"cpu"`, `"cpu:8"`; None or `""` for attached devices
            where there are enough of them, else simulated ones.
        needed: how many devices the mesh has.

    Raises:
        TargetError: where there is no such target, or it has too few devices.

    >>> choose("cpu:1", 1).count
    1
    """
    text = _word(text)
    if not text:
        return _best(needed)
    if is_described(text):
        raise TargetError(only_described(str(Topology.parse(text))))
    word, colon, number = text.partition(":")
    if word == "cpu":
        return _cpu(_typed_count(text, number) if colon else None, needed)
    if word not in ("attached", *_PLATFORMS) or colon:
        raise TargetError(f"No target is called {shown(text)}. {_HOW}")
    ask_for_cpus(needed)
    found = attached_devices(_PLATFORMS.get(word))
    if len(found) < needed:
        raise TargetError(too_few(found[0].platform, len(found), needed))
    # Of CPU devices only as many as are needed: all but one are simulated.
    count = len(found) if found[0].platform != "cpu" else needed
    return Target("attached", found[0].platform, count)


def device_mesh(mesh: MeshSpec, target: Target) -> Mesh:
    """The jax Mesh that puts every position of `mesh` on a device of the target.

    Ids that the target has mean its devices. Ids that it lacks are names: the lowest of them is
    its first device, and so on, so that permuted ids permute devices.

    Raises:
        TargetError: if the target has too few devices.
    """
    ids = mesh.device_ids.ravel()
    found = devices_of(target)
    by_id = {d.id: d for d in attached_devices(found[0].platform)}
    if all(int(i) in by_id for i in ids):
        chosen = [by_id[int(i)] for i in ids]
    elif len(found) < mesh.size:
        raise TargetError(too_few(found[0].platform, len(found), mesh.size))
    else:
        chosen = [found[rank] for rank in np.argsort(np.argsort(ids))]
    return mesh_of(chosen, mesh)


def mesh_to_lower_on(mesh: MeshSpec) -> Mesh:
    """A jax Mesh for programs that jax lowers only for devices, as those that call Python.

    It has the devices of this kernel where there are enough, since a program may name them itself,
    else devices that have only ids. Starts jax's backend.

    Raises:
        ProgramError: for a mesh that is too large to name every device.
    """
    if count_of("cpu") >= mesh.size:
        return device_mesh(mesh, Target("cpu", "cpu", count_of("cpu")))
    return mesh_of_names(mesh)


def _word(text: str | Target | None) -> str:
    if isinstance(text, Target):
        return text.name
    if text is None:
        return ""
    if not isinstance(text, str):
        raise TargetError(f"A target is text such as 'cpu:8' or 'attached'; got {shown(text)}.")
    return text.strip().lower()


def _attached_fits(needed: int) -> bool:
    """Whether a mesh fits on the attached devices, the CPU being one."""
    if needed == 1:
        return True
    # This starts the backend, with the one CPU device that jax has by default.
    found = attached_devices(None)
    return found[0].platform != "cpu" and len(found) >= needed


def _typed_too_few(count: int, needed: int) -> str:
    return (
        f"The mesh has {plural(needed, 'device')} and the target {shown(f'cpu:{count}')} only"
        f" {count}. Write 'cpu:{needed}', or use a smaller mesh."
    )


def _best(needed: int) -> Target:
    ask_for_cpus(needed)
    found = attached_devices(None)
    if found[0].platform != "cpu" and len(found) >= needed:
        return Target("attached", found[0].platform, len(found))
    if found[0].platform == "cpu" and needed == 1:
        return Target("attached", "cpu", 1)
    there = count_of("cpu")
    if there < needed:
        raise TargetError(too_few(found[0].platform, len(found), needed, there))
    return Target("cpu", "cpu", needed)


def _cpu(count: int | None, needed: int) -> Target:
    if count is not None and count < needed:
        raise TargetError(_typed_too_few(count, needed))
    ask_for_cpus(count or needed, exactly=count is not None)
    there = len(attached_devices("cpu"))
    if there < (count or needed):
        raise TargetError(too_few("cpu", there, count or needed))
    return Target("cpu", "cpu", count or needed)


def _typed_count(text: str, number: str) -> int:
    digits = number.strip()
    if not (digits.isascii() and digits.isdigit()) or not 1 <= int(digits[:12]) <= MAX_DEVICES:
        raise TargetError(
            f"A simulated target names its number of devices, such as 'cpu:8'; got {shown(text)}."
        )
    return int(digits[:12])
