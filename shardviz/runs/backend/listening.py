"""Counts how often jax traces, lowers and compiles because its caches lack the result.

`jax_cache_events` counts within a `with` block, `compare_meshes` for calls of a
function on two meshes. Traces don't depend on devices: a function that names no devices
is traced and lowered once for all meshes of the same shape, and only compiled again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import ArrayLike, MeshLike, SpecLike, UserFunction
from shardviz.programs.backend.bridge import adopt_mesh, check_axis_names, to_jax
from shardviz.programs.backend.failures import failure
from shardviz.runs.cached import STAGES, MeshCall, MeshComparison

_DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


class JaxEvent(NamedTuple):
    """A trace, lowering or compile whose result was not in jax's caches.

    Attributes:
        kind: `"trace"`, `"lower"` or `"compile"`; reading an executable from disk
            counts as a compile.
        name: jax's name of the function; `""` if jax does not report it.
        thread: identifier of the thread in which it happened.
    """

    kind: str
    name: str
    thread: int


class JaxCacheEvents(list[JaxEvent]):
    """The events in all threads since counting began, in order.

    >>> with jax_cache_events() as events:
    ...     function = jax.jit(lambda x: -x)
    ...     results = function(1.0), function(2.0)
    >>> events.counts()
    {'trace': 1, 'lower': 1, 'compile': 1}
    """

    def counts(self, thread: int | None = None) -> dict[str, int]:
        """Counts the events of each kind, in all threads or in one."""
        counts: dict[str, int] = dict.fromkeys(STAGES, 0)
        for event in self:
            counts[event.kind] += thread in (None, event.thread)
        return counts


@contextmanager
def jax_cache_events() -> Iterator[JaxCacheEvents]:
    """Collects jax's traces, lowerings and compiles within a `with` block.

    Collects from all threads, because a background thread may be making a plan.
    """
    events = JaxCacheEvents()

    def note(event: str, duration_secs: float, **details: str | int) -> None:
        # jax reports no event if a cache has the result.
        if kind := _DURATIONS.get(event):
            name = str(details.get("fun_name", ""))
            events.append(JaxEvent(kind, name, threading.get_ident()))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def compare_meshes(
    first: MeshLike,
    second: MeshLike,
    fn: UserFunction,
    *arrays: ArrayLike,
    specs: SpecLike | None = None,
) -> MeshComparison:
    """Calls a function twice on one mesh, then on another; counts jax's stages.

    Args:
        first, second: MeshSpecs with device ids, or jax's own meshes.
        fn: the function; it is jitted if it isn't yet. It may be called three times.
        *arrays: the arguments: arrays, or `ShapeDtypeStruct`s, which become zeros.
        specs: one PartitionSpec for all arrays, as text or a Spec; None to
            replicate the arrays.

    Raises:
        ShardvizError: if `fn` is not callable, a mesh has no devices, or an array
            cannot be placed.

    >>> from shardviz.base.mesh import make_mesh
    >>> mesh = make_mesh("x=1", device_ids=[0])
    >>> compare_meshes(mesh, mesh, abs, jax.ShapeDtypeStruct((8,), "float32")).second.misses
    ()
    """
    if not callable(fn):
        raise ProgramError(
            f"Two meshes are compared by calling a function; got {shown(fn)}."
        )
    first_mesh, second_mesh = _mesh(first), _mesh(second)
    check_axis_names((*first_mesh.axis_names, *second_mesh.axis_names))
    spec = Spec()
    if isinstance(specs, str):
        spec = Spec.parse(specs)
    elif isinstance(specs, Spec):
        spec = specs
    elif specs is not None:
        spec = spec_of(specs)
    jitted = fn
    if not hasattr(fn, "lower"):
        # A new wrapper, because jax would reuse results of earlier calls of `fn`.
        jitted = jax.jit(lambda *args: fn(*args))
    on_first = _placed(first_mesh, spec, arrays)
    on_second = _placed(second_mesh, spec, arrays)
    return MeshComparison(
        first=_counted_call(jitted, on_first),
        # A repeated call on the same mesh, to compare with the call on a new mesh.
        again=_counted_call(jitted, on_first),
        second=_counted_call(jitted, on_second),
    )


def _counted_call(jitted: UserFunction, values: list[jax.Array]) -> MeshCall:
    error = ""
    with jax_cache_events() as events:
        try:
            jax.block_until_ready(jitted(*values))
        except Exception as raised:  # noqa: BLE001  a user's function may raise anything
            error = failure("run", raised).message
    return MeshCall(events.counts(threading.get_ident()), error)


def _mesh(mesh: MeshLike) -> MeshSpec:
    # An AbstractMesh or text names no devices to run on.
    adopted = adopt_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else mesh
    if not isinstance(adopted, MeshSpec) or not adopted.concrete:
        raise ShardvizError(
            "Comparing meshes runs a function on their devices, so each must name them;"
            f" got {shown(mesh)}. Give a jax Mesh, or sv.mesh('x=2', device_ids=[0, 1])."
        )
    return adopted


def _placed(
    mesh: MeshSpec, spec: Spec, arrays: tuple[ArrayLike, ...]
) -> list[jax.Array]:
    sharding = jax.sharding.NamedSharding(to_jax(mesh), spec.to_jax())
    values = []
    for array in arrays:
        if isinstance(array, jax.ShapeDtypeStruct):
            # The values don't affect compiling.
            array = jax.numpy.zeros(array.shape, array.dtype)
        try:
            values.append(jax.device_put(array, sharding))
        except ValueError as error:
            raise ShardvizError(
                f"{shown(array)} cannot be placed as {spec} on {mesh}:"
                f" {str(error).splitlines()[0]}"
            ) from error
    return values
