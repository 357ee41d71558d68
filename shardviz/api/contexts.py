"""The doors to mesh contexts: which mesh is in force here, and what JAX keeps between meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardviz.api.adopting import room
from shardviz.core.layout.contexts import MeshContext


def mesh_context() -> MeshContext:
    """Which mesh is in force at the place of this call, and which API of JAX sees which.

    Works inside traced functions too. Looking changes nothing.

    Raises:
        ShardvizError: where jax is not installed.

    >>> print(mesh_context().explain())
    No mesh is in force: every PartitionSpec needs a mesh beside it.
    """
    return room("shardviz.core.program.contexts.current", "sv.mesh_context", "jax").mesh_context()


def compare_meshes(
    first: Any, second: Any, fn: Callable[..., Any], *arrays: Any, specs: Any = None
) -> Any:
    """What JAX traces, lowers and compiles anew when one function meets two meshes.

    Args:
        first, second: jax meshes, or MeshSpecs with device ids.
        fn: the function; it is called three times.
        *arrays: what it takes: arrays, or shapes and types.
        specs: one PartitionSpec for all of them.

    Raises:
        ShardvizError: for what is no function, no mesh of devices, or an array that does not fit.

    >>> import jax, jax.numpy as jnp
    >>> here = jax.sharding.Mesh(jax.devices()[:1], ("x",))
    >>> print(compare_meshes(here, here, jnp.sin, jax.ShapeDtypeStruct((8,), "float32")).explain())
    Nothing was done anew for the second mesh: it has the devices of the first.
    """
    events = room("shardviz.core.program.contexts.events", "sv.compare_meshes", "jax")
    return events.compare_meshes(first, second, fn, *arrays, specs=specs)
