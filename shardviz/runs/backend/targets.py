"""Lists this kernel's targets, and chooses the target of a program.

Programs run in this kernel on attached devices: accelerators, or the CPU as a single
device. A worker process simulates more CPU devices, so that a crash of XLA doesn't end
the kernel. The worker also compiles for described devices (a TPU slice or a GPU
cluster). If the user has made jax simulate CPU devices in the kernel, `"attached"`
means these devices.

Compilers create the devices of described hardware (`jax.experimental.topologies`). This
loads the TPU or GPU compiler into the process, so only the worker does it.
"""

from __future__ import annotations

import importlib.util
import math
import re

import jax
import numpy as np
from jax.sharding import Mesh

from shardviz.base.backend.jax_compat import backend_started
from shardviz.base.errors import ShardvizError, TargetError
from shardviz.base.format import plural, shown
from shardviz.base.mesh import MAX_DEVICES, MeshSpec
from shardviz.compiled.checks import Finding, NotOnTorus
from shardviz.hardware.targets import (
    WORDS,
    Target,
    TargetLike,
    Targets,
    checked_text,
    only_described,
)
from shardviz.hardware.topology import (
    EXAMPLES,
    Topology,
    is_described,
)
from shardviz.programs.backend.devices import (
    MOST_SIMULATED,
    Device,
    ask_for_cpus,
    attached_devices,
    count_of,
    devices_for,
    mesh_of,
    own_devices,
    refuse_too_few,
)

_PLATFORMS = {"gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}


def targets() -> Targets:
    """Returns the targets of this kernel, and examples of described hardware.

    Doesn't start jax's backend: before the first run, device counts are unknown.

    >>> [t.name for t in targets() if t.kind == "described"][0]
    'tpu:v5e:4x4'
    """
    return Targets([*_here(), *map(described, EXAMPLES)])


def _here() -> list[Target]:
    """The targets that this kernel can run programs on."""
    if not backend_started():
        return [Target("attached", ""), Target("cpu", "cpu")]
    devices, cpus = attached_devices(None), count_of("cpu")
    platform, count = devices[0].platform, len(devices)
    # A single CPU device is real; more are simulated, and attached all the same.
    if platform == "cpu" and count == 1:
        cpus = 0
    attached = Target("attached", platform, count)
    return [attached, Target("cpu", "cpu", cpus)] if cpus else [attached]


def described(text: str) -> Target:
    """Parses the text of a described target.

    >>> str(described("tpu:v5p:8x8x16"))
    'TPU v5p 8×8×16, described'
    """
    topology = Topology.parse(text)
    platform = topology.chip.platform
    return Target(
        "described",
        platform,
        topology.devices,
        text=str(topology),
        worker=True,
        missing=str(missing(platform) or ""),
    )


def decide(text: TargetLike, needed: int) -> Target:
    """Chooses the target of a compile or run, in this kernel or in the worker.

    Args:
        text: a target as for `choose`, or described hardware such as `"tpu:v5e:4x4"`.
        needed: number of devices in the mesh.

    >>> decide("cpu:64", 64).worker, decide("attached", 1).worker
    (True, False)
    """
    word = _word(text)
    if is_described(word):
        target = described(word)
        fits(Topology.parse(target.text), needed)
        # A wrong mesh size is reported first: installing a compiler wouldn't help.
        if target.missing:
            raise TargetError(target.missing)
        return target
    kind = word.partition(":")[0].strip()
    if kind not in ("", "cpu") or (not word and _attached_fits(needed)):
        return choose(word, needed)
    count = _cpu_count(word, needed)
    if count == 1:
        return choose(word, needed)  # the real CPU, which every kernel has
    if count > MOST_SIMULATED:
        raise TargetError(
            f"{word or f'cpu:{count}'!r} asks for {plural(count, 'CPU device')}, and at"
            f" most {MOST_SIMULATED:,} are simulated. Layouts, plans and pictures need"
            " none; compile it for described hardware such as 'tpu:v5p:8x16x16', or use"
            " a smaller mesh."
        )
    return Target("cpu", "cpu", count, worker=True)


def lowering_platform(target: TargetLike, needed: int) -> str:
    """Returns jax's platform name for a target: `"cpu"`, `"tpu"` or `"cuda"`.

    Returns `""` if the target is invalid or unusable. Without a target, returns the
    platform of the devices that a compile would use, which starts jax's backend.

    Args:
        target: as for `decide`.
        needed: number of devices in the mesh.

    >>> lowering_platform("gpu:h100:2x8", 16), lowering_platform("cpu:8", 8)
    ('cuda', 'cpu')
    """
    try:
        word = _word(target)
        kind = word.partition(":")[0].strip()
        if is_described(word):
            kind = Topology.parse(word).chip.platform
        elif kind not in ("cpu", *_PLATFORMS):
            kind = decide(word, needed).platform
    except ShardvizError:
        return ""
    return "cuda" if kind == "gpu" else kind


def choose(text: TargetLike, needed: int) -> Target:
    """Chooses this kernel's devices that a text names, or the best ones for a mesh.

    Args:
        text: `"attached"`, `"gpu"`, `"tpu"`, `"cpu"`, `"cpu:8"`; None or `""` for
            the attached devices if there are enough of them, else simulated ones.
        needed: number of devices in the mesh.

    >>> choose("cpu:1", 1).count
    1
    """
    word = _word(text)
    if is_described(word):
        raise only_described(str(Topology.parse(word)))
    kind, colon, _ = word.partition(":")
    if kind == "cpu":
        count = _cpu_count(word, needed)
        # Ask before jax's backend starts, because that fixes the number of devices.
        ask_for_cpus(count, exactly=bool(colon))
        refuse_too_few("cpu", len(attached_devices("cpu")), count)
        return Target("cpu", "cpu", count)
    if word not in WORDS:
        checked_text(word)
        raise TargetError(f"No processes are called {shown(word)} here.")
    ask_for_cpus(needed)
    devices = attached_devices(_PLATFORMS.get(word))
    platform = devices[0].platform
    if word or (platform != "cpu" and len(devices) >= needed):
        refuse_too_few(platform, len(devices), needed)
        # Use no more CPU devices than needed, because all except one are simulated.
        count = needed if platform == "cpu" else len(devices)
        return Target("attached", platform, count)
    if needed == 1 or jax.process_count() > 1:
        return Target("attached", platform, needed)
    refuse_too_few("cpu", count_of("cpu"), needed)
    return Target("cpu", "cpu", needed)


def _word(text: TargetLike) -> str:
    if isinstance(text, Target):
        return text.name
    if not isinstance(text, str | None):
        raise TargetError(
            f"A target is text such as 'cpu:8' or 'attached'; got {shown(text)}."
        )
    return (text or "").strip().lower()


def _attached_fits(needed: int) -> bool:
    """Returns whether the attached devices, including one CPU, suffice for a mesh."""
    if needed == 1:
        return True
    devices = attached_devices(None)
    # With several processes, simulated CPU devices count as attached too.
    usable = devices[0].platform != "cpu" or jax.process_count() > 1
    return usable and len(devices) >= needed


def _cpu_count(word: str, needed: int) -> int:
    """Returns the number of CPU devices that a target names, by default `needed`."""
    if ":" not in word:
        return needed
    number = word.partition(":")[2].strip()
    count = int(number) if re.fullmatch("0*[0-9]{1,9}", number) else 0
    if not needed <= count <= MAX_DEVICES:
        raise TargetError(
            "A simulated target names its number of devices, at least those of the mesh,"
            f" such as 'cpu:{needed}'; got {shown(word)}."
        )
    return count


def devices_of(target: Target) -> tuple[Device, ...]:
    """Returns a target's jax devices in this process; starts jax's backend."""
    if target.text:
        raise only_described(target.text)
    devices = attached_devices(target.platform or None)
    refuse_too_few(target.platform, len(devices), target.count or 0)
    return devices[: target.count]


def device_mesh(mesh: MeshSpec, target: Target) -> Mesh:
    """Returns a jax Mesh with the axes of `mesh` and the devices of a target.

    If the target has devices with all ids of the mesh, these devices are used.
    Otherwise the ids only define an order: the lowest id becomes the first device, and
    so on.
    """
    chosen = devices_for(mesh, devices_of(target))
    if not own_devices(chosen):
        raise TargetError(
            f"Process {jax.process_index()} has nothing to run: no device of the mesh is"
            f" its own. Use a mesh over all {plural(jax.device_count(), 'device')}, or"
            " leave this call out there."
        )
    return mesh_of(chosen, mesh)


_PACKAGES = {"tpu": ("libtpu",), "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin")}
_CUDNN = "dnn_version_info { major: 9 minor: 10 }"
_CUDA = {"jax_cuda13_plugin": 13, "jax_cuda12_plugin": 12}


def missing(platform: str) -> TargetError | None:
    """Returns an error if no compiler for a platform is installed, else None."""
    if _installed(platform):
        return None
    return TargetError(
        f"The {platform.upper()} compiler is not installed:"
        f' pip install "shardviz[{platform}]", and restart the kernel.'
    )


def fits(topology: Topology, needed: int) -> None:
    """Raises if the mesh size differs from the topology's device count.

    >>> fits(Topology.parse("tpu:v5e:4x4"), 16)
    """
    if topology.devices == needed:
        return
    raise TargetError(
        f"The mesh has {plural(needed, 'device')} and {str(topology)!r} has"
        f" {topology.devices:,}. Use a mesh of {topology.devices:,} devices, or a target"
        f" of {needed:,}."
    )


def compile_only_mesh(mesh: MeshSpec, text: str) -> tuple[Mesh, tuple[Finding, ...]]:
    """Returns a jax Mesh of compile-only devices for a mesh, and notes about its order.

    If the user numbered the mesh's devices, that order is kept. Otherwise jax's
    `mesh_utils` arranges the devices, as on a real TPU slice. If `mesh_utils` raises,
    the devices keep the compiler's order, and a note gives the reason.

    Args:
        mesh: a mesh of the target's size.
        text: the target, such as `"tpu:v5e:4x4"`.
    """
    topology = Topology.parse(text)
    fits(topology, mesh.size)
    devices = compile_only_devices(topology)
    # The user chose the device order.
    if not mesh.ids_are_positions:
        return mesh_of(_by_id(devices, mesh), mesh), ()
    # GPUs of a host are connected directly to each other, not in a torus.
    if topology.chip.platform == "gpu":
        return mesh_of(devices, mesh), ()
    try:
        grid = _torus_order(mesh, topology, devices)
    except (NotImplementedError, ValueError, AssertionError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        sizes = "×".join(map(str, mesh.axis_sizes))
        note = NotOnTorus(sizes, str(topology), message.rstrip("."))
        return mesh_of(devices, mesh), (note,)
    return mesh_of(list(grid.flat), mesh), ()


def compile_only_devices(topology: Topology) -> list[Device]:
    """Creates the compiler's devices for a topology, in the compiler's order."""
    platform = topology.chip.platform
    if error := missing(platform):
        raise error
    options = dict(topology.jax_options)
    if platform == "gpu":
        options["target_config"] = target_config(topology)
    try:
        # Imported here because most processes never need it.
        from jax.experimental import topologies

        devices = list(topologies.get_topology_desc(**options).devices)
    except Exception as error:  # plugins raise various errors for an unknown shape
        reason = " ".join(str(error).split())[:400]
        raise TargetError(
            f"The installed {platform.upper()} compiler cannot describe"
            f" {str(topology)!r}: {reason} Try another shape or generation, or another"
            f" version of jax and of shardviz[{platform}]."
        ) from error
    # This plugin may count devices differently from our table of chips.
    if len(devices) != topology.devices:
        raise TargetError(
            f"The compiler has {plural(len(devices), 'device')} for {str(topology)!r},"
            f" but {topology.devices:,} were expected. Try another shape of slice."
        )
    return devices


def target_config(topology: Topology) -> str:
    """Describes a GPU to XLA as a `GpuTargetConfigProto` in text format.

    >>> text = target_config(Topology.parse("gpu:h100:2x8"))
    >>> "core_count: 132" in text, 'platform_name: "CUDA"' in text
    (True, True)
    """
    figures = dict(topology.chip.gpu)
    title = figures.pop("device_description_str", topology.chip.title)
    major, minor = figures.pop("compute_major"), figures.pop("compute_minor")
    extension = figures.pop("feature_extension", "NONE")
    info = [f"  {name}: {value}" for name, value in figures.items()]
    capability = {"major": major, "minor": minor, "feature_extension": extension}
    words = " ".join(f"{name}: {value}" for name, value in capability.items())
    info.append(f"  cuda_compute_capability {{ {words} }}")
    # XLA compiles for the CUDA version of the installed plugin.
    runtime = _CUDA.get(_installed("gpu"), 13)
    lines = [
        "gpu_device_info {",
        *info,
        "}",
        'platform_name: "CUDA"',
        _CUDNN,
        f"runtime_version {{ major: {runtime} minor: 0 }}",
        f'device_description_str: "{title}"',
    ]
    return "\n".join(lines)


def _installed(platform: str) -> str:
    """Returns the installed package that compiles for a platform, or `""`."""
    for name in _PACKAGES[platform]:
        if importlib.util.find_spec(name) is not None:
            return name
    return ""


def _torus_order(
    mesh: MeshSpec, topology: Topology, devices: list[Device]
) -> np.ndarray:
    from jax.experimental import mesh_utils

    sizes = mesh.axis_sizes
    if topology.slices == 1:
        return mesh_utils.create_device_mesh(sizes, devices)
    # Slices are joined along the first axes, which usually carry the least traffic.
    slices, across = topology.slices, []
    for size in sizes:
        across.append(math.gcd(size, slices))
        slices //= across[-1]
    inside = tuple(n // a for n, a in zip(sizes, across, strict=True))
    return mesh_utils.create_hybrid_device_mesh(inside, across, devices)


def _by_id(devices: list[Device], mesh: MeshSpec) -> list[Device]:
    ids = mesh.device_ids.ravel().tolist()
    by_id = {device.id: device for device in devices}
    if by_id.keys() >= set(ids):
        return [by_id[i] for i in ids]
    # The ids only define an order: the lowest becomes the first device, and so on.
    return [devices[rank] for rank in np.argsort(np.argsort(ids))]
