"""Public functions for meshes, for the hardware below them, and for what is in force."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardviz.api.adopt import as_mesh
from shardviz.base.errors import import_optional
from shardviz.base.mesh import MeshSpec
from shardviz.base.mesh_context import MeshContext
from shardviz.hardware.topology import Topology

if TYPE_CHECKING:
    from shardviz.runs.cached import MeshComparison


def mesh(
    axes: Any = None,
    *,
    axis_types: Any = None,
    device_ids: Any = None,
    processes: Any = None,
    **sizes: int,
) -> MeshSpec:
    """A mesh: named axes over devices, with or without the devices.

    Args:
        axes: text such as `"data=4, model=2"`, a mapping, pairs, a jax `Mesh` or
            `AbstractMesh`, a Keras `DeviceMesh`, or the path of a MaxText configuration
            with `mesh_axes`. One size may be -1, for the devices that are left: of
            `device_ids`, else of those attached.
        axis_types: `"Auto"`, `"Explicit"` or `"Manual"`, one for all or one per axis.
        device_ids: the ids in mesh order; 0, 1, 2, … by default.
        processes: how many hosts share the devices, or the process of each device.
        **sizes: the axes as keywords, in place of `axes`.

    Raises:
        ShardvizError: for axes, types, ids or processes that make no mesh.

    >>> mesh(data=4, model=2).size
    8
    """
    options: dict[str, Any] = {"axis_types": axis_types, "device_ids": device_ids}
    options |= {"processes": processes, **sizes}
    return as_mesh(axes, **options)


def topology(text: str) -> Topology:
    """A slice of TPUs or a cluster of GPUs: chips, coordinates, hosts, links. Needs no
    jax.

    Args:
        text: as a target is written: `"tpu:v5e:4x4"`, `"tpu:v5p:8x8x16"`,
            `"tpu:v5e:4x4*2"` for two slices, `"gpu:h100:2x8"` for two hosts of eight.

    Raises:
        ShardvizError: with what could not be read, and how it is written.

    >>> pod = topology("tpu:v5p:8x8x16")
    >>> pod.size, pod.hosts, pod.coords[-1].tolist()
    (1024, 256, [7, 7, 15])
    """
    return Topology.parse(text)


def mesh_context() -> MeshContext:
    """Which mesh is in force where this is called, and which API of JAX sees which.

    Works inside traced functions too, and changes nothing.

    Raises:
        ShardvizError: where jax is not installed.

    >>> print(mesh_context().explain())
    No mesh is in force: every PartitionSpec needs a mesh beside it.
    """
    # Only jax knows what is in force, so it is imported here and not above.
    return import_optional(
        "shardviz.programs.backend.mesh_context", "sv.mesh_context", "jax"
    ).mesh_context()


def compare_meshes(
    first: Any, second: Any, fn: Callable[..., Any], *arrays: Any, specs: Any = None
) -> MeshComparison:
    """What JAX traces, lowers and compiles again when one function is called on two
    meshes.

    Args:
        first, second: jax meshes, or MeshSpecs with device ids.
        fn: the function; it is called three times.
        *arrays: what it takes: arrays, or shapes and types.
        specs: one PartitionSpec for all of them.

    Raises:
        ShardvizError: for what is no function, no mesh of devices, or an array that
            does not fit.

    >>> import jax, jax.numpy as jnp
    >>> here = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    >>> print(compare_meshes(here, here, jnp.sin, jax.ShapeDtypeStruct((8,), "float32")).explain())
    Nothing was done again for the second mesh: it has the devices of the first.
    """
    listening = import_optional(
        "shardviz.runs.backend.listening", "sv.compare_meshes", "jax"
    )
    return listening.compare_meshes(first, second, fn, *arrays, specs=specs)
