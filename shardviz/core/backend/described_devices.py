"""Devices that are described and not attached: a slice of TPUs, a cluster of GPUs.

The compilers themselves make such devices from a description (`jax.experimental.topologies`).
Programs compile for them and cannot run. Making them loads the TPU's or GPU's compiler into the
process, so that happens in the worker only.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np
from jax.sharding import Mesh

from shardviz.core.backend.devices import mesh_of
from shardviz.core.errors import TargetError
from shardviz.core.format import plural
from shardviz.core.hardware.chips import CHIPS
from shardviz.core.hardware.topology import Topology, even_topology
from shardviz.core.layout.mesh import MeshSpec

_PACKAGES = {"tpu": ("libtpu",), "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin")}
_OTHERS = ("v5p", "7x", "h100")  # with the largest machines
_CUDNN = "dnn_version_info { major: 9 minor: 10 }"
_CUDA = {"jax_cuda13_plugin": 13, "jax_cuda12_plugin": 12}


def missing(platform: str) -> str:
    """What has to be installed to compile for `"tpu"` or `"gpu"`, in one sentence; `""` for
    nothing. Looks for packages and imports none.
    """
    if _installed(platform):
        return ""
    return (
        f"The {platform.upper()} compiler is not installed:"
        f' pip install "shardviz[{platform}]", and restart the kernel.'
    )


def fits(topology: Topology, needed: int) -> None:
    """Refuses a mesh whose size is not the number of devices.

    Raises:
        TargetError: with the meshes and slices that would fit.

    >>> fits(Topology.parse("tpu:v5e:4x4"), 16)
    """
    if topology.devices == needed:
        return
    advice = f"Use a mesh of {plural(topology.devices, 'device')}"
    if other := _of_size(topology, needed):
        advice += f", or the target {str(other)!r}"
    raise TargetError(
        f"The mesh has {plural(needed, 'device')} and {str(topology)!r} has"
        f" {topology.devices:,}. {advice}."
    )


def compile_only_mesh(mesh: MeshSpec, text: str) -> tuple[Mesh, tuple[str, ...]]:
    """The jax Mesh of compile-only devices for a mesh, and what the user should know about it.

    A mesh with device ids of its own keeps them. Any other is laid over the slice by jax's
    `mesh_utils`, as on a real one; where that refuses, devices keep their own order and the
    reason is a note.

    Args:
        mesh: the mesh; as many devices as the target.
        text: the target, `"tpu:v5e:4x4"`.

    Raises:
        TargetError: where the compiler is not installed, or makes other devices than described.
    """
    topology = Topology.parse(text)
    fits(topology, mesh.size)
    devices = compile_only_devices(topology)
    if not mesh.ids_are_positions:
        return mesh_of(_by_id(devices, mesh), mesh), ()
    if topology.chip.platform == "gpu":
        return mesh_of(devices, mesh), ()
    try:
        grid = _torus_order(mesh, topology, devices)
    except (NotImplementedError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        note = (
            f"jax does not lay a mesh of {'×'.join(map(str, mesh.axis_sizes))} over the torus of"
            f" {topology}: {reason.rstrip('.')}. Devices keep their own order instead, so"
            " neighbours in the mesh may be far apart in the torus."
        )
        return mesh_of(devices, mesh), (note,)
    return mesh_of(list(grid.flat), mesh), ()


def compile_only_devices(topology: Topology) -> list[Any]:
    """The devices that the compiler makes of a description, in its order.

    Raises:
        TargetError: where the compiler is not installed or does not know the description.
    """
    platform = topology.chip.platform
    if words := missing(platform):
        raise TargetError(words)
    options = dict(topology.jax_options)
    if platform == "gpu":
        options["target_config"] = target_config(topology)
    try:
        # Imported here: in a kernel that compiles for no such hardware it is never needed.
        from jax.experimental import topologies

        found = list(topologies.get_topology_desc(**options).devices)
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())[:400]
        raise TargetError(
            f"The {platform.upper()} compiler that is installed here cannot describe"
            f" {str(topology)!r}: {reason} Try another shape or generation, or another version of"
            f" jax and of shardviz[{platform}]."
        ) from error
    if len(found) != topology.devices:
        raise TargetError(
            f"The compiler makes {plural(len(found), 'device')} of {str(topology)!r}, and"
            f" {topology.devices:,} were expected. Try another shape of slice."
        )
    return found


def target_config(topology: Topology) -> str:
    """The text that describes a GPU to XLA: a `GpuTargetConfigProto` as text.

    >>> text = target_config(Topology.parse("gpu:h100:2x8"))
    >>> "core_count: 132" in text, 'platform_name: "CUDA"' in text
    (True, True)
    """
    figures = dict(topology.chip.gpu)
    title = figures.pop("device_description_str", topology.chip.title)
    major, minor = figures.pop("compute_major"), figures.pop("compute_minor")
    extension = figures.pop("feature_extension", "NONE")
    info = [f"  {name}: {value}" for name, value in figures.items()]
    capability = f"major: {major} minor: {minor} feature_extension: {extension}"
    info.append(f"  cuda_compute_capability {{ {capability} }}")
    return "\n".join(
        [
            "gpu_device_info {",
            *info,
            "}",
            'platform_name: "CUDA"',
            _CUDNN,
            f"runtime_version {{ major: {_CUDA.get(_installed('gpu'), 13)} minor: 0 }}",
            f'device_description_str: "{title}"',
        ]
    )


def _installed(platform: str) -> str:
    """The package that compiles for a platform; `""` where none is installed."""
    return next((n for n in _PACKAGES[platform] if importlib.util.find_spec(n) is not None), "")


def _torus_order(mesh: MeshSpec, topology: Topology, devices: list[Any]) -> np.ndarray:
    from jax.experimental import mesh_utils

    sizes = mesh.axis_sizes
    if topology.slices == 1:
        return mesh_utils.create_device_mesh(sizes, devices)
    left, across = topology.slices, []
    for size in sizes:  # slices are joined along the first axes, which carry the least
        across.append(math.gcd(size, left))
        left //= across[-1]
    inside = tuple(n // a for n, a in zip(sizes, across, strict=True))
    return mesh_utils.create_hybrid_device_mesh(inside, across, devices)


def _by_id(devices: list[Any], mesh: MeshSpec) -> list[Any]:
    wanted = [int(i) for i in mesh.device_ids.ravel()]
    by_id = {d.id: d for d in devices}
    if all(i in by_id for i in wanted):
        return [by_id[i] for i in wanted]
    # Ids of other devices are names: the lowest of them is the first device, and so on.
    return [devices[rank] for rank in np.argsort(np.argsort(wanted))]


def _of_size(topology: Topology, needed: int) -> Topology | None:
    """A target with as many devices: of the same chips where there is one, else of others."""
    platform = topology.chip.platform
    others = [CHIPS[name] for name in _OTHERS if CHIPS[name].platform == platform]
    for chip in (topology.chip, *others):
        if needed % chip.devices == 0 and (found := even_topology(chip, needed // chip.devices)):
            return found
    return None
