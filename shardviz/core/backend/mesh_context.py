"""The mesh in force, read off jax, and what jax does anew when a function meets another mesh.

JAX tells `jax.monitoring` whenever it traces, lowers or compiles. What it does not tell it had in a
cache. Devices are no part of a trace: a function that names no devices is traced and lowered once
for all meshes of one shape, and only compiled again.

Each row is a small function that is really called, so the table is what JAX of this machine does
and not what somebody wrote down. `EXPECTED` is what holds from jax 0.10 to 0.12 for Auto axes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.core.backend.bridge import adopt_mesh, to_jax
from shardviz.core.backend.failures import failure, in_words
from shardviz.core.errors import ProgramError, ShardvizError, TargetError
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


#: The events of `jax.monitoring` that stand for a stage; public names since jax 0.4.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
STAGES: tuple[str, ...] = ("trace", "lower", "compile")


@dataclass(frozen=True)
class MeshCall:
    """What JAX did when a function met a mesh.

    Attributes:
        mesh: the mesh.
        counts: `"trace"`, `"lower"` and `"compile"` to how often it was done anew; 0 is a hit.
        error: what JAX raised, in a sentence; empty where it ran.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> Meeting(make_mesh(x=2), {"trace": 0, "lower": 0, "compile": 1}).hits
    ('trace', 'lower')
    """

    mesh: MeshSpec
    counts: dict[str, int]
    error: str = ""

    @property
    def hits(self) -> tuple[str, ...]:
        """The stages whose result JAX still had; none where it raised."""
        return () if self.error else tuple(s for s in STAGES if not self.counts[s])

    @property
    def misses(self) -> tuple[str, ...]:
        """The stages that JAX went through anew."""
        return tuple(s for s in STAGES if self.counts[s])


@dataclass(frozen=True)
class MeshComparison:
    """One function on two meshes, one after the other. Made by `compare_meshes`.

    Attributes:
        first: the meeting with the first mesh.
        again: with the first mesh once more.
        second: with the second mesh.

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
        """What was done anew for the second mesh, and what that says, in sentences."""
        if self.second.error:
            return (
                f"The second mesh was refused: {self.second.error} A function that names devices"
                " runs on those alone; name an AbstractMesh in it and let the arguments bring the"
                " devices."
            )
        if not self.second.misses:
            return "Nothing was done anew for the second mesh: it has the devices of the first."
        done = " and ".join(_DONE[s] for s in self.second.misses)
        kept = " and ".join(_DONE[s] for s in self.second.hits)
        return f"For the second mesh it was {done} again" + (f", not {kept}." if kept else ".")


_DONE = {"trace": "traced", "lower": "lowered", "compile": "compiled"}


def compare_meshes(
    first: Any, second: Any, fn: Callable[..., Any], *arrays: Any, specs: Any = None
) -> MeshComparison:
    """Calls a function with arrays on one mesh, again, and on another, and counts JAX's events.

    Args:
        first, second: MeshSpecs with device ids, or jax's own meshes.
        fn: the function; jitted here unless it is already. It may run three times.
        *arrays: arrays, or shapes and types, for which zeros are made.
        specs: one PartitionSpec for all arrays, as text or a Spec; split over nothing if None.

    Raises:
        ShardvizError: for what is no function, no mesh, or an array that cannot be placed.
    """
    if not callable(fn):
        raise ProgramError(f"Two meshes are compared by calling a function; got {shown(fn)}.")
    meshes = [_mesh(m) for m in (first, second)]
    spec = Spec.parse(specs) if isinstance(specs, str) else specs or Spec()
    # A wrapper of its own, so that no earlier call of the function counts as a hit.
    jitted = fn if hasattr(fn, "lower") else jax.jit(lambda *args: fn(*args))
    placed = [_placed(m, spec, arrays) for m in meshes]
    calls = [(meshes[0], placed[0]), (meshes[0], placed[0]), (meshes[1], placed[1])]
    return MeshComparison(*[_meet(jitted, mesh, values) for mesh, values in calls])


@contextmanager
def counted_events() -> Iterator[dict[str, int]]:
    """Counts what JAX traces, lowers and compiles inside a `with`, in every thread.

    >>> with counted_events() as counts:
    ...     _ = jax.jit(lambda x: x + 1)(1.0)
    >>> counts["compile"]
    1
    """
    counts = dict.fromkeys(STAGES, 0)

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event in EVENTS:
            counts[EVENTS[event]] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def _meet(jitted: Any, mesh: MeshSpec, values: list[Any]) -> MeshCall:
    with counted_events() as counts:
        try:
            jax.block_until_ready(jitted(*values))
        except Exception as error:  # noqa: BLE001  whatever the function or JAX raises is shown
            return MeshCall(mesh, dict(counts), failure("run", error).message)
    return MeshCall(mesh, dict(counts))


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


BOTH, MESH, ABSTRACT = (True, True), (True, False), (False, True)

#: Operation to whether it exists on a Mesh, and on an AbstractMesh.
EXPECTED: dict[str, tuple[bool, bool]] = {
    "axis_names": BOTH,
    "axis_sizes": BOTH,
    "axis_types": BOTH,
    "shape": BOTH,
    "size": BOTH,
    "empty": BOTH,
    "abstract_mesh": BOTH,
    "== and hash": BOTH,
    "devices": MESH,
    "device_ids": MESH,
    "local_devices": MESH,
    "local_mesh": MESH,
    "is_multi_process": MESH,
    "with mesh:": MESH,
    "jax.set_mesh": MESH,
    "jax.sharding.use_abstract_mesh": ABSTRACT,
    "NamedSharding": BOTH,
    "NamedSharding.shard_shape": BOTH,
    "NamedSharding.devices_indices_map": MESH,
    "NamedSharding.device_set": MESH,
    "NamedSharding.addressable_devices": MESH,
    "jax.device_put": MESH,
    "lower": MESH,
    "lower for named platforms": BOTH,
    "compile": MESH,
    "with_sharding_constraint in jit": BOTH,
    "shard_map in jit": BOTH,
    "shard_map of an array on devices": BOTH,
    "shard_map of a bare array": MESH,
}


@dataclass(frozen=True)
class Operation:
    """One operation, tried on both kinds of mesh.

    Attributes:
        name: what it is called.
        on_mesh: whether it exists on a `Mesh`.
        on_abstract_mesh: whether it exists on an `AbstractMesh`.
        refusals: what JAX said where it does not, by the name of the kind.

    >>> Operation("devices", True, False, {"AbstractMesh": "ValueError: …"}).where
    'Mesh alone'
    """

    name: str
    on_mesh: bool
    on_abstract_mesh: bool
    refusals: dict[str, str]

    @property
    def where(self) -> str:
        """On which kinds it exists, in words."""
        if self.on_mesh and self.on_abstract_mesh:
            return "both"
        if self.on_mesh:
            return "Mesh alone"
        return "AbstractMesh alone" if self.on_abstract_mesh else "neither"


def operations(mesh: Mesh | None = None) -> tuple[Operation, ...]:
    """Every operation of the table, tried on a Mesh and on its AbstractMesh.

    Args:
        mesh: a Mesh of attached devices; one of a single device where none is given.

    Raises:
        TargetError: if the mesh is of devices on which nothing can run.

    >>> {o.name: o.where for o in operations()}["devices"]
    'Mesh alone'
    """
    tried: Any = Mesh(np.array(jax.devices()[:1]), ("x",)) if mesh is None else mesh
    if not isinstance(tried, Mesh) or tried.empty:
        raise TargetError("Operations are tried on a jax Mesh of attached devices.")
    rows = []
    for name, trial in _trials(tried).items():
        refusals = {}
        for kind in (tried, tried.abstract_mesh):
            try:
                trial(kind)
            except Exception as error:  # noqa: BLE001  what JAX raises is the answer
                refusals[type(kind).__name__] = in_words(error)
        rows.append(
            Operation(name, "Mesh" not in refusals, "AbstractMesh" not in refusals, refusals)
        )
    return tuple(rows)


def _trials(mesh: Mesh) -> dict[str, Callable[[Any], Any]]:
    """What stands behind each name: a function of a Mesh or AbstractMesh."""
    spec = PartitionSpec(mesh.axis_names[0])
    bare = np.zeros((mesh.devices.shape[0],), np.float32)
    placed = jax.device_put(bare, NamedSharding(mesh, spec))
    attributes = (
        "axis_names", "axis_sizes", "axis_types", "shape", "size", "empty", "abstract_mesh",
        "devices", "device_ids", "local_devices", "local_mesh", "is_multi_process",
    )  # fmt: skip
    trials: dict[str, Callable[[Any], Any]] = {
        name: lambda m, name=name: getattr(m, name) for name in attributes
    }
    return {
        **trials,
        "== and hash": lambda m: {m: m == m},
        "with mesh:": _entered,
        "jax.set_mesh": lambda m: _inside(jax.set_mesh(m)),
        "jax.sharding.use_abstract_mesh": lambda m: _inside(jax.sharding.use_abstract_mesh(m)),
        **_sharding_trials(spec, bare, placed),
    }


def _sharding_trials(spec: Any, bare: Any, placed: Any) -> dict[str, Callable[[Any], Any]]:
    shape = bare.shape

    def traced(mesh: Any) -> Any:
        asked = jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, spec))
        return jax.jit(lambda x: x * 2).trace(asked)

    def constrained(mesh: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.jit(lambda x: jax.lax.with_sharding_constraint(x, sharding))(placed)

    def mapped(mesh: Any) -> Any:
        return jax.shard_map(lambda x: x, mesh=mesh, in_specs=spec, out_specs=spec)

    return {
        "NamedSharding": lambda m: NamedSharding(m, spec),
        "NamedSharding.shard_shape": lambda m: NamedSharding(m, spec).shard_shape(shape),
        "NamedSharding.devices_indices_map": (
            lambda m: NamedSharding(m, spec).devices_indices_map(shape)
        ),
        "NamedSharding.device_set": lambda m: NamedSharding(m, spec).device_set,
        "NamedSharding.addressable_devices": lambda m: NamedSharding(m, spec).addressable_devices,
        "jax.device_put": lambda m: jax.device_put(bare, NamedSharding(m, spec)),
        "lower": lambda m: traced(m).lower(),
        "lower for named platforms": lambda m: traced(m).lower(lowering_platforms=("cpu",)),
        "compile": lambda m: traced(m).lower().compile(),
        "with_sharding_constraint in jit": constrained,
        "shard_map in jit": lambda m: jax.jit(mapped(m))(placed),
        "shard_map of an array on devices": lambda m: mapped(m)(placed),
        "shard_map of a bare array": lambda m: mapped(m)(bare),
    }


def _entered(mesh: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # `with mesh:` says that it is old
        _inside(mesh)


def _inside(manager: Any) -> None:
    with manager:
        pass
