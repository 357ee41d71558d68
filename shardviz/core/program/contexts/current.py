"""mesh_context() -> MeshContext: read off JAX, at the place where it is called."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.layout.contexts import MeshContext
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.program.bridge import adopt_mesh


def mesh_context() -> MeshContext:
    """The mesh context of this thread, here and now.

    >>> mesh_context().in_force
    'none'
    >>> import numpy as np
    >>> with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("x",))):
    ...     str(mesh_context().current)
    'x=1'
    """
    notes: list[str] = []
    current, traced = _current(notes)
    abstract = jax.sharding.get_abstract_mesh()
    return MeshContext(
        legacy=_legacy(notes),
        current=_adopted(current),
        abstract=_adopted(abstract),
        traced=traced,
        with_disabled=bool(getattr(jax.config, "jax_disallow_mesh_context_manager", False)),
        notes=tuple(notes),
    )


def _adopted(mesh: Mesh | AbstractMesh | None) -> MeshSpec | None:
    return None if mesh is None or mesh.empty else adopt_mesh(mesh)


def _current(notes: list[str]) -> tuple[Mesh | None, bool]:
    """The mesh of `set_mesh`, and whether a function is being traced here."""
    try:
        return jax.sharding.get_mesh(), False
    except ValueError:  # which is how it says that a function is being traced
        pass
    get = getattr(_mesh_room(), "get_concrete_mesh", None)
    if get is None:
        notes.append(
            f"jax {jax.__version__} does not tell the mesh of jax.set_mesh inside a traced"
            " function; only its abstract twin is known."
        )
        return None, True
    return get(), True


def _legacy(notes: list[str]) -> tuple[MeshSpec, ...]:
    stack = getattr(getattr(_mesh_room(), "thread_resources", None), "stack", None)
    if stack is None:
        notes.append(
            f"jax {jax.__version__} does not tell which meshes `with mesh:` has entered, so none"
            " is shown."
        )
        return ()
    meshes = [_adopted(getattr(frame, "physical_mesh", None)) for frame in stack]
    return tuple(m for m in meshes if m is not None)


def _mesh_room() -> Any:
    """The one private room of JAX that is read here: the legacy stack, the mesh while tracing."""
    try:
        from jax._src import mesh
    except ImportError:
        return None
    return mesh
