"""What JAX does anew when one function meets two meshes: counted from its own events.

JAX tells `jax.monitoring` whenever it traces, lowers or compiles. What it does not tell it had in a
cache. Devices are no part of a trace: a function that names no devices is traced and lowered once
for all meshes of one shape, and only compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax

from shardviz.core.errors import ProgramError, ShardvizError, shown
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.spec import Spec
from shardviz.core.program.bridge import adopt_mesh, to_jax
from shardviz.core.program.running.failures import failure

#: The events of `jax.monitoring` that stand for a stage; public names since jax 0.4.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
STAGES: tuple[str, ...] = ("trace", "lower", "compile")


@dataclass(frozen=True)
class Meeting:
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

    first: Meeting
    again: Meeting
    second: Meeting

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


def _meet(jitted: Any, mesh: MeshSpec, values: list[Any]) -> Meeting:
    with counted_events() as counts:
        try:
            jax.block_until_ready(jitted(*values))
        except Exception as error:  # noqa: BLE001  whatever the function or JAX raises is shown
            return Meeting(mesh, dict(counts), failure("run", error).message)
    return Meeting(mesh, dict(counts))


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
