"""The mesh in force, as jax has it, and what jax does again when a function gets another mesh.

Devices are no part of a trace: a function that names no devices is traced and lowered once for all
meshes of one shape, and only compiled again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from shardviz.core.backend.axis_names import check_axis_names
from shardviz.core.backend.bridge import adopt_mesh, to_jax
from shardviz.core.backend.failures import failure
from shardviz.core.backend.jax_events import jax_cache_events
from shardviz.core.errors import ProgramError, ShardvizError
from shardviz.core.format import shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.mesh_context import MeshContext
from shardviz.core.layout.partition_spec import Spec


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
    except ValueError:  # raised while a function is being traced
        pass
    get = getattr(_jax_mesh_module(), "get_concrete_mesh", None)
    if get is None:
        notes.append(
            f"jax {jax.__version__} does not give the mesh of jax.set_mesh inside a traced"
            " function; only its AbstractMesh is known."
        )
        return None, True
    return get(), True


def _legacy(notes: list[str]) -> tuple[MeshSpec, ...]:
    stack = getattr(getattr(_jax_mesh_module(), "thread_resources", None), "stack", None)
    if stack is None:
        notes.append(
            f"jax {jax.__version__} does not say which meshes `with mesh:` has entered, so none"
            " is shown."
        )
        return ()
    meshes = [_adopted(getattr(frame, "physical_mesh", None)) for frame in stack]
    return tuple(m for m in meshes if m is not None)


def _jax_mesh_module() -> Any:
    """The one private module of JAX that is read here: nothing public gives these two values."""
    try:
        from jax._src import mesh
    except ImportError:
        return None
    return mesh


_STAGES = ("trace", "lower", "compile")


@dataclass(frozen=True)
class MeshCall:
    """What JAX did when a function was called with arrays on a mesh.

    Attributes:
        mesh: the mesh.
        counts: `"trace"`, `"lower"` and `"compile"` to how often JAX did it; 0 is a cache hit.
        error: what JAX raised, in a sentence; empty where it ran.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> MeshCall(make_mesh(x=2), {"trace": 0, "lower": 0, "compile": 1}).hits
    ('trace', 'lower')
    """

    mesh: MeshSpec
    counts: dict[str, int]
    error: str = ""

    @property
    def hits(self) -> tuple[str, ...]:
        """The stages whose result JAX still had; none where it raised."""
        return () if self.error else tuple(s for s in _STAGES if not self.counts[s])

    @property
    def misses(self) -> tuple[str, ...]:
        """The stages that JAX went through again."""
        return tuple(s for s in _STAGES if self.counts[s])


@dataclass(frozen=True)
class MeshComparison:
    """One function on two meshes, one after the other. Made by `compare_meshes`.

    Attributes:
        first: the call on the first mesh.
        again: the call on the first mesh once more.
        second: the call on the second mesh.

    >>> import jax.numpy as jnp
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> mesh = make_mesh("x=1", device_ids=[0])
    >>> compare_meshes(mesh, mesh, jnp.sin, jax.ShapeDtypeStruct((8,), "float32")).second.hits
    ('trace', 'lower', 'compile')
    """

    first: MeshCall
    again: MeshCall
    second: MeshCall

    def explain(self) -> str:
        """What JAX did again for the second mesh, in sentences."""
        if self.second.error:
            return (
                f"The second mesh was refused: {self.second.error} A function that names devices"
                " runs on those alone; name an AbstractMesh in it and let the arguments bring the"
                " devices."
            )
        if not self.second.misses:
            return "Nothing was done again for the second mesh: it has the devices of the first."
        done = " and ".join(_DONE[s] for s in self.second.misses)
        kept = " and ".join(_DONE[s] for s in self.second.hits)
        return f"For the second mesh it was {done} again" + (f", not {kept}." if kept else ".")


_DONE = {"trace": "traced", "lower": "lowered", "compile": "compiled"}


def compare_meshes(
    first: Any, second: Any, fn: Callable[..., Any], *arrays: Any, specs: Any = None
) -> MeshComparison:
    """Calls a function twice with arrays on one mesh, then on another, and counts JAX's events.

    Args:
        first, second: MeshSpecs with device ids, or jax's own meshes.
        fn: the function; jitted here unless it is already. It may run three times.
        *arrays: arrays, or shapes and types, for which zeros are made.
        specs: one PartitionSpec for all arrays, as text or a Spec; None replicates them.

    Raises:
        ShardvizError: for what is no function, no mesh, or an array that cannot be placed.
    """
    if not callable(fn):
        raise ProgramError(f"Two meshes are compared by calling a function; got {shown(fn)}.")
    meshes = [_mesh(m) for m in (first, second)]
    check_axis_names(name for mesh in meshes for name in mesh.axis_names)
    spec = Spec.parse(specs) if isinstance(specs, str) else specs or Spec()
    # A wrapper of its own, so that no earlier call of the function counts as a hit.
    jitted = fn if hasattr(fn, "lower") else jax.jit(lambda *args: fn(*args))
    placed = [_placed(m, spec, arrays) for m in meshes]
    calls = [(meshes[0], placed[0]), (meshes[0], placed[0]), (meshes[1], placed[1])]
    return MeshComparison(*[_counted_call(jitted, mesh, values) for mesh, values in calls])


def _counted_call(jitted: Any, mesh: MeshSpec, values: list[Any]) -> MeshCall:
    error = ""
    with jax_cache_events() as events:
        try:
            jax.block_until_ready(jitted(*values))
        except Exception as raised:  # noqa: BLE001  whatever the function or JAX raises is shown
            error = failure("run", raised).message
    # Other threads trace and compile, too: a plan in the background, for one.
    own = [e.kind for e in events.events if e.thread == threading.current_thread().name]
    return MeshCall(mesh, {stage: own.count(stage) for stage in _STAGES}, error)


def _mesh(mesh: Any) -> MeshSpec:
    found = mesh if isinstance(mesh, MeshSpec) else None
    if isinstance(mesh, jax.sharding.Mesh):
        found = adopt_mesh(mesh)
    if found is None or not found.concrete:
        raise ShardvizError(
            "Comparing meshes runs a function on their devices, so each must name them; got"
            f" {shown(mesh)}. Give a jax Mesh, or sv.mesh('x=2', device_ids=[0, 1])."
        )
    return found


def _placed(mesh: MeshSpec, spec: Spec, arrays: tuple[Any, ...]) -> list[Any]:
    sharding = jax.sharding.NamedSharding(to_jax(mesh), spec.to_jax())
    values = []
    for array in arrays:
        if isinstance(array, jax.ShapeDtypeStruct):
            array = jax.numpy.zeros(array.shape, array.dtype)
        try:
            values.append(jax.device_put(array, sharding))
        except ValueError as error:
            raise ShardvizError(
                f"{shown(array)} cannot be placed as {spec} on {mesh}: {str(error).splitlines()[0]}"
            ) from error
    return values
