"""Checks that private names of jax and jaxlib work in the installed versions.

Each check uses a name as `jax_compat` does, and may raise any exception. `python -m
shardviz doctor` prints the results. `commands/words/doctor.py` describes the feature
that each missing name disables.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.base.backend import jax_compat as compat

T = TypeVar("T")


def check_names(checks: Mapping[str, Callable[[], bool]]) -> list[tuple[str, str]]:
    """Runs the checks, and returns each name with a one-line problem, or `""` if none.

    Starts jax's backends.

    >>> check_names({"a": lambda: True, "b": lambda: {}["x"]})
    [('a', ''), ('b', "KeyError: 'x'")]
    """
    rows = []
    for name, check in checks.items():
        problem = ""
        try:
            if not check():
                problem = "other result"
        # A changed jax function may raise anything; the table shows the error.
        except Exception as error:  # noqa: BLE001
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        rows.append((name, problem))
    return rows


def _while_traced(look: Callable[[], T]) -> T:
    """Calls a function while jax traces, and returns its result."""
    results: list[T] = []
    jax.eval_shape(lambda: results.append(look()))
    return results[0]


def _meshes() -> tuple[Mesh, Mesh | None]:
    """A mesh of one device, and the mesh that `concrete_mesh` returns under tracing."""
    mesh = Mesh(jax.devices("cpu")[:1], ("x",))
    with jax.set_mesh(mesh):
        return mesh, _while_traced(compat.concrete_mesh)


def _settings() -> bool:
    before = compat.trace_settings()
    with jax.default_matmul_precision("float32"):
        return before is not None and before != compat.trace_settings()


def _misses() -> bool:
    messages: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        messages.append(record.getMessage())
        return False

    logger = logging.getLogger(compat.MISS_LOGGERS[0])
    logger.addFilter(keep)
    try:
        with compat.explained_misses():
            jax.jit(lambda x: x)(1.0)
    finally:
        logger.removeFilter(keep)
    return [compat.miss_reason(message) != "" for message in messages] == [True]


def _effects() -> bool:
    jaxpr = jax.make_jaxpr(lambda x: io_callback(print, None, x, ordered=True))(1.0)
    (effect,) = jaxpr.effects
    class_name, sets = compat.effect_class(effect), compat.effect_sets()
    assert sets is not None
    return class_name == "OrderedIOEffect" and sets.ordered_effects.contains(effect)


def _jit() -> bool:
    jitted = jax.jit(lambda x, by: x * by, donate_argnums=0, static_argnames="by")
    settings = compat.jit_settings(jitted)
    return settings is not None and (settings.donate, settings.static) == ((0,), (1,))


def _pmap() -> bool:
    fn = jax.pmap(abs, axis_name="batch", in_axes=1)
    settings = compat.pmap_settings(fn) or {}
    return compat.is_pmapped(fn) and settings["in_axes"] == 1


def _shard_map() -> bool:
    spec = PartitionSpec("x")
    mapped = jax.shard_map(abs, in_specs=spec, out_specs=spec)
    copied = compat.copied_shard_map(mapped) is not None
    return copied and len(compat.shard_map_functions()) == 2


def _eval_shape() -> bool:
    def look() -> bool:
        frame = inspect.currentframe()
        while frame is not None and frame.f_back is not None:
            if compat.wants_shapes_alone(frame, frame.f_back):
                return True
            frame = frame.f_back
        return False

    return _while_traced(look)


def _equations() -> bool:
    jaxpr = jax.make_jaxpr(jnp.sin)(1.0)
    (equation,) = jaxpr.eqns
    unchanged = compat.without_context_mesh(equation).primitive is equation.primitive
    line = compat.traced_line(jaxpr.jaxpr.debug_info)
    frames = compat.line_frames(equation)
    # `jnp.sin` traced directly has no frame in this file, so wrap it in a lambda.
    (in_lambda,) = jax.make_jaxpr(lambda x: jax.lax.sin(x))(1.0).eqns
    located = compat.expression_of(in_lambda, __file__) is not None
    return unchanged and located and len(frames) > 0 and line != ""


def _lowering() -> bool:
    lowered = jax.jit(abs).lower(1.0)
    has_module = compat.kept_module(lowered) is not None
    return has_module and compat.compile_arguments(lowered) is not None


def _sub_byte() -> bool:
    compiled = jax.jit(lambda x: x + x).lower(jnp.ones(2, "int4")).compile()
    (result,) = jax.tree.leaves(compat.call_as_jit(compiled, jnp.ones(2, "int4")))
    return int(result[0]) == 2


def _platforms() -> bool:
    jaxpr = jax.make_jaxpr(jax.lax.linalg.lu)(jnp.ones((2, 2)))
    return {"cpu", "tpu"} <= compat.platforms_of(jaxpr.eqns[0])


def _passes() -> bool:
    manager = importlib.import_module("jaxlib.mlir.passmanager").PassManager
    module: Any = jax.jit(abs).lower(1.0).compiler_ir("stablehlo")
    with module.context:
        parsed = manager.parse("builtin.module(sdy-propagation-pipeline)")
    return "sdy" in str(parsed)


def _large_sharding() -> bool:
    mesh = AbstractMesh((1 << 13,), ("x",))
    sharding = compat.large_sharding(mesh, PartitionSpec("x"), None)
    struct = jax.ShapeDtypeStruct((1 << 13,), "float32", sharding=sharding)
    lowered = jax.jit(abs).trace(struct).lower(lowering_platforms=("cpu",))
    has_method = hasattr(NamedSharding, compat.XLA_FORM)
    return has_method and "sdy.sharding" in lowered.as_text()


def _lines() -> bool:
    jaxpr = jax.make_jaxpr(jax.grad(jax.numpy.sin))(1.0)
    with compat.at_line_of(jaxpr.eqns[0]):
        again = jax.make_jaxpr(jax.numpy.cos)(1.0)
    backward = any(map(compat.is_backward, jaxpr.eqns))
    return backward and bool(compat.line_frames(again.eqns[0]))


def _types() -> bool:
    mesh = AbstractMesh((2,), ("x",))
    varying = []

    def body(x: jax.Array) -> jax.Array:
        varying.append(compat.varying_axes(x))
        return jax.lax.map(jax.numpy.sin, x)

    split = PartitionSpec("x")
    fn = jax.shard_map(body, mesh=mesh, in_specs=split, out_specs=split)
    with jax.sharding.use_abstract_mesh(mesh):
        jaxpr = jax.make_jaxpr(fn)(
            jax.ShapeDtypeStruct((4,), "float32", sharding=NamedSharding(mesh, split))
        )
    (inner,) = [p for p in jaxpr.eqns[0].params.values() if hasattr(p, "eqns")]
    return varying == [{"x"}] and compat.scan_counts(inner.eqns[0]) == (0, 0)


def _mesh_messages() -> bool:
    split = PartitionSpec("x")
    mesh, larger_mesh = AbstractMesh((2,), ("x",)), AbstractMesh((4,), ("x",))
    mapped = jax.shard_map(abs, mesh=mesh, in_specs=split, out_specs=split)
    struct = jax.ShapeDtypeStruct((4,), "float32")
    compared: list[bool] = []

    def constrained(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, split)

    def on_other_mesh(x: jax.Array) -> jax.Array:
        try:
            return mapped(x)
        # Read the frame here, before jax removes its frames from the traceback.
        except ValueError as error:
            frame = compat.frame_refusing_mesh(error)
            compared.append(frame is not None and mesh in frame.f_locals.values())
            raise

    try:
        jax.eval_shape(constrained, struct)
        asks = False
    except (ValueError, RuntimeError) as error:
        asks = compat.asks_for_mesh(error)
    with jax.sharding.use_abstract_mesh(larger_mesh), contextlib.suppress(ValueError):
        jax.eval_shape(on_other_mesh, struct)
    return asks and compared == [True]


def _has(module: str, name: str) -> Callable[[], bool]:
    return lambda: compat.private(module, name) is not None


#: Private name of jax or jaxlib -> check that it still works.
PRIVATE_NAMES: Mapping[str, Callable[[], bool]] = {
    "jax._src.distributed.global_state": _has("jax._src.distributed", "global_state"),
    "jax._src.xla_bridge.backends_are_initialized": (
        lambda: bool(jax.devices()) and compat.backend_started()
    ),
    "jax._src.mesh.get_concrete_mesh": lambda: _meshes()[0] == _meshes()[1],
    "jax._src.mesh.thread_resources": lambda: compat.entered_meshes() is not None,
    "jax._src.core.trace_state_clean": lambda: _while_traced(compat.is_tracing),
    "jax._src.config.trace_context": _settings,
    "jax._src.config.traceback_filtering": _has(
        "jax._src.config", "traceback_filtering"
    ),
    "jax._src.config.explain_cache_misses": _misses,
    "jax._src.source_info_util": _lines,
    "jax._src.effects": _effects,
    "jax._src.dispatch.runtime_tokens": _has("jax._src.dispatch", "runtime_tokens"),
    "jax._src.array.ArrayImpl": lambda: type(jnp.ones(1)) is compat.ARRAY_CLASS,
    "jax.jit._cache_size": lambda: compat.jit_cache_size(jax.jit(abs)) is not None,
    "jax.jit._jit_info": _jit,
    "jax._src.pmap": _pmap,
    "jax._src.shard_map._shard_map": _shard_map,
    "jax.extend.core.JaxprEqn.params": _types,
    "jax._src.pjit": (
        lambda: (
            None not in [compat.function_of(*n) for n in compat.CONSTRAINT_FUNCTIONS]
        )
    ),
    "jax._src.api.eval_shape": _eval_shape,
    "jax.extend.core.JaxprEqn": _equations,
    "jax.stages.Compiled._executable": _sub_byte,
    "jax.stages.Lowered._lowering": _lowering,
    "jax._src.interpreters.mlir": (
        _has("jax._src.interpreters.mlir", "refine_polymorphic_shapes")
    ),
    "jax._src.interpreters.mlir._platform_specific_lowerings": _platforms,
    f"jax.sharding.NamedSharding.{compat.XLA_FORM}": _large_sharding,
    ".".join(compat.HLO_PARSER): lambda: bool(
        compat.hlo_of_text("ENTRY e { ROOT p = f32[] parameter(0) }")
    ),
    "jaxlib.mlir.passmanager": _passes,
    "messages of jax about meshes": _mesh_messages,
}
