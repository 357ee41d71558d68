"""What jax traces, lowers and compiles because it finds no earlier result in a cache.

`jax_cache_events` counts that; `compare_meshes` does so for one function on two meshes.
Devices are no part of a trace: a function that names no devices is traced and lowered
once for all meshes of one shape, and only compiled again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.programs.backend.bridge import adopt_mesh, check_axis_names, to_jax
from shardviz.programs.backend.failures import failure
from shardviz.runs.cached import STAGES, MeshCall, MeshComparison

_DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


class JaxEvent(NamedTuple):
    """One trace, lowering or compile whose result was in no cache of jax.

    Attributes:
        kind: `"trace"`, `"lower"` or `"compile"`; what is read from disk is compiled,
            too.
        name: the function, as jax calls it; empty where it does not say.
        thread: the number of the thread that did it.
    """

    kind: str
    name: str
    thread: int


class JaxCacheEvents(list[JaxEvent]):
    """The events since counting began, of all threads, in order.

    >>> with jax_cache_events() as events:
    ...     function = jax.jit(lambda x: -x)
    ...     results = function(1.0), function(2.0)
    >>> events.counts()
    {'trace': 1, 'lower': 1, 'compile': 1}
    """

    def counts(self, thread: int | None = None) -> dict[str, int]:
        """How many events there are of each kind: of all threads, or of one."""
        counts: dict[str, int] = dict.fromkeys(STAGES, 0)
        for event in self:
            counts[event.kind] += thread in (None, event.thread)
        return counts


@contextmanager
def jax_cache_events() -> Iterator[JaxCacheEvents]:
    """Counts what jax traces, lowers and compiles within a `with` block.

    In all threads: a plan may be made in the background.
    """
    found = JaxCacheEvents()

    def note(event: str, duration_secs: float, **details: str | int) -> None:
        # jax tells nothing of a result that it finds in a cache.
        if kind := _DURATIONS.get(event):
            name = str(details.get("fun_name", ""))
            found.append(JaxEvent(kind, name, threading.get_ident()))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def compare_meshes(
    first: Any, second: Any, fn: Callable[..., Any], *arrays: Any, specs: Any = None
) -> MeshComparison:
    """Calls a function twice with arrays on one mesh, then on another, and counts.

    Args:
        first, second: MeshSpecs with device ids, or jax's own meshes.
        fn: the function; jitted here unless it is already. It may run three times.
        *arrays: arrays, or shapes and types, for which zeros are made.
        specs: one PartitionSpec for all arrays, as text or a Spec; None replicates
            them.

    Raises:
        ShardvizError: for what is no function, no mesh, or an array that cannot be
            placed.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh = make_mesh("x=1", device_ids=[0])
    >>> compare_meshes(mesh, mesh, abs, jax.ShapeDtypeStruct((8,), "float32")).second.misses
    ()
    """
    if not callable(fn):
        raise ProgramError(
            f"Two meshes are compared by calling a function; got {shown(fn)}."
        )
    one, other = _mesh(first), _mesh(second)
    check_axis_names((*one.axis_names, *other.axis_names))
    spec = Spec.parse(specs) if isinstance(specs, str) else specs or Spec()
    jitted = fn
    if not hasattr(fn, "lower"):
        # A wrapper of its own, so that no earlier call of the function counts as a hit.
        jitted = jax.jit(lambda *args: fn(*args))
    here, there = _placed(one, spec, arrays), _placed(other, spec, arrays)
    return MeshComparison(
        first=_counted_call(jitted, here),
        # What is new to the function itself counts in the first call alone.
        again=_counted_call(jitted, here),
        second=_counted_call(jitted, there),
    )


def _counted_call(jitted: Any, values: list[Any]) -> MeshCall:
    error = ""
    with jax_cache_events() as events:
        try:
            jax.block_until_ready(jitted(*values))
        except Exception as raised:  # noqa: BLE001  whatever is raised is shown
            error = failure("run", raised).message
    return MeshCall(events.counts(threading.get_ident()), error)


def _mesh(mesh: Any) -> MeshSpec:
    # An AbstractMesh has no devices to run on, as text has none.
    adopted = adopt_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else mesh
    if not isinstance(adopted, MeshSpec) or not adopted.concrete:
        raise ShardvizError(
            "Comparing meshes runs a function on their devices, so each must name them;"
            f" got {shown(mesh)}. Give a jax Mesh, or sv.mesh('x=2', device_ids=[0, 1])."
        )
    return adopted


def _placed(mesh: MeshSpec, spec: Spec, arrays: tuple[Any, ...]) -> list[Any]:
    sharding = jax.sharding.NamedSharding(to_jax(mesh), spec.to_jax())
    values = []
    for array in arrays:
        if isinstance(array, jax.ShapeDtypeStruct):
            # The values decide nothing of what is compiled.
            array = jax.numpy.zeros(array.shape, array.dtype)
        try:
            values.append(jax.device_put(array, sharding))
        except ValueError as error:
            raise ShardvizError(
                f"{shown(array)} cannot be placed as {spec} on {mesh}:"
                f" {str(error).splitlines()[0]}"
            ) from error
    return values
