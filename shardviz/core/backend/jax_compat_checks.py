"""Which of the private names of jax and jaxlib work in the installed versions.

Each check uses a name for what `jax_compat` uses it for, and may raise anything.
`python -m shardviz doctor` prints the result; what one loses without a name stands in
`wording/doctor.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from shardviz.core.backend import jax_compat as compat


def check_names(checks: Mapping[str, Callable[[], bool]]) -> list[tuple[str, str]]:
    """Each name, and what went wrong with it as one line, or `""`.

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
        # Whatever a changed function raises belongs into its row of the table.
        except Exception as error:  # noqa: BLE001
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        rows.append((name, problem))
    return rows


def _one_device_mesh() -> Mesh:
    return jax.make_mesh((1,), ("x",), devices=jax.devices("cpu")[:1])


def _process() -> bool:
    state = compat.private("jax._src.distributed", "global_state")
    return hasattr(state, "client") and hasattr(state, "process_id")


def _backends() -> bool:
    jax.devices()
    return compat.backend_started()


def _mesh_of_set_mesh() -> bool:
    mesh, seen = _one_device_mesh(), []
    with jax.set_mesh(mesh):
        jax.eval_shape(lambda: seen.append(compat.concrete_mesh()))
    return seen == [mesh]


def _mesh_of_with() -> bool:
    mesh = _one_device_mesh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh:
            return (compat.entered_meshes() or ())[-1:] == (mesh,)


def _tracing() -> bool:
    seen: list[bool] = []
    jax.eval_shape(lambda: seen.append(compat.is_tracing()))
    return seen == [True] and not compat.is_tracing()


def _settings() -> bool:
    before = compat.trace_settings()
    assert before is not None
    with jax.default_matmul_precision("float32"):
        differs = before != compat.trace_settings()
    return differs and len(compat.trace_setting_names()) == len(before)


def _bind() -> bool:
    try:
        with compat.complete_tracebacks():
            jax.lax.add(jnp.ones(2), jnp.ones(3))
    except TypeError as error:
        frames = traceback.walk_tb(error.__traceback__)
        return "add" in {compat.bound_operation(frame) for frame, _ in frames}
    return False


def _effects() -> bool:
    struct = jax.ShapeDtypeStruct((), "float32")

    def all_of_them(x: Any) -> None:
        jax.debug.print("{}", x)
        jax.debug.print("{}", x, ordered=True)
        io_callback(abs, struct, x)
        io_callback(abs, struct, x, ordered=True)

    effects, sets = jax.make_jaxpr(all_of_them)(1.0).effects, compat.effect_sets()
    assert sets is not None
    names, ordered = set(), set()
    for effect in effects:
        names.add(compat.effect_class(effect))
        if sets.ordered_effects.contains(effect):
            ordered.add(compat.effect_class(effect))
    known = {*compat.DEBUG_EFFECTS, "IOEffect", "OrderedIOEffect"}
    return names == known and ordered == {"OrderedDebugEffect", "OrderedIOEffect"}


def _tokens() -> bool:
    return callable(compat.private("jax._src.dispatch", "runtime_tokens").clear)  # type: ignore[union-attr]


def _callback_log() -> bool:
    def fails(x: Any) -> Any:
        raise ZeroDivisionError

    struct = jax.ShapeDtypeStruct((), "float32")
    logger = logging.getLogger("jax._src.callback")
    silent = lambda record: False  # noqa: E731
    with compat.failing_callbacks() as raised:
        logger.addFilter(silent)
        try:
            with contextlib.suppress(Exception):  # XLA's own error says the same
                jax.block_until_ready(jax.pure_callback(fails, struct, 1.0))
        finally:
            logger.removeFilter(silent)
    return any(isinstance(error, ZeroDivisionError) for error in raised)


def _jit() -> bool:
    def scaled(x: Any, by: float) -> Any:
        return x * by

    jitted = jax.jit(scaled, donate_argnums=0, static_argnames="by")
    settings = compat.jit_settings(jitted)
    assert settings is not None
    return settings.donate == (0,) and settings.static_names == ("by",)


def _pmap() -> bool:
    fn = jax.pmap(abs, axis_name="batch", in_axes=1)
    settings = compat.pmap_settings(fn) or {}
    return compat.is_pmapped(fn) and settings["in_axes"] == 1


def _shard_map() -> bool:
    spec = PartitionSpec("x")
    mapped = jax.shard_map(abs, in_specs=spec, out_specs=spec)
    copied = compat.copied_shard_map(mapped) is not None
    return copied and len(compat.shard_map_functions()) == 2


def _constraints() -> bool:
    functions = [compat.function_of(*name) for name in compat.CONSTRAINT_FUNCTIONS]
    nowhere = AbstractMesh((), ())
    try:
        with compat.complete_tracebacks(), jax.sharding.use_abstract_mesh(nowhere):
            jax.lax.with_sharding_constraint(1.0, PartitionSpec())
    except RuntimeError as error:  # jax asks for a mesh
        codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        return None not in functions and functions[0].__code__ in codes  # type: ignore[union-attr]
    return False


def _eval_shape() -> bool:
    seen = []

    def look() -> None:
        frame = inspect.currentframe()
        while frame is not None and frame.f_back is not None:
            seen.append(compat.wants_shapes_alone(frame, frame.f_back))
            frame = frame.f_back

    jax.eval_shape(look)
    return any(seen)


def _equations() -> bool:
    jaxpr = jax.make_jaxpr(jnp.sin)(1.0)
    (equation,) = jaxpr.eqns
    known = compat.without_context_mesh(equation).primitive is equation.primitive
    line = compat.traced_line(jaxpr.jaxpr.debug_info)
    return known and len(compat.line_frames(equation)) > 0 and line != ""


def _lowering() -> bool:
    lowered = jax.jit(abs).lower(1.0)
    module = compat.kept_module(lowered)
    compat.keep_module(lowered, module)
    return module is not None and compat.compile_arguments(lowered) is not None


def _real_sizes() -> bool:
    (size,) = jax.export.symbolic_shape("n")
    struct = jax.ShapeDtypeStruct((size,), "float32")
    exported = jax.export.export(jax.jit(jnp.sin))(struct)
    lowered = jax.jit(exported.call).lower(jnp.ones(3))
    return "tensor<?x" not in str(compat.stablehlo_module(lowered))


def _unchecked_call() -> bool:
    call = compat.unchecked_call(jax.jit(abs).lower(1.0).compile())
    assert call is not None
    return float(call(jnp.asarray(-1.0))[0]) == 1.0


def _large_sharding() -> bool:
    mesh = AbstractMesh((1 << 13,), ("x",))
    sharding = compat.large_sharding(mesh, PartitionSpec("x"), None)
    struct = jax.ShapeDtypeStruct((1 << 13,), "float32", sharding=sharding)
    lowered = jax.jit(abs).trace(struct).lower(lowering_platforms=("cpu",))
    return hasattr(sharding, compat.XLA_FORM) and "sdy.sharding" in lowered.as_text()


def _passes() -> bool:
    manager = importlib.import_module("jaxlib.mlir.passmanager").PassManager
    module: Any = jax.jit(abs).lower(1.0).compiler_ir("stablehlo")
    with module.context:
        parsed = manager.parse("builtin.module(sdy-propagation-pipeline)")
    return "sdy" in str(parsed)


#: Every private name of jax and jaxlib that shardviz uses, and its check.
PRIVATE_NAMES: Mapping[str, Callable[[], bool]] = {
    "jax._src.distributed.global_state": _process,
    "jax._src.xla_bridge.backends_are_initialized": _backends,
    "jax._src.mesh.get_concrete_mesh": _mesh_of_set_mesh,
    "jax._src.mesh.thread_resources": _mesh_of_with,
    "jax._src.core.trace_state_clean": _tracing,
    "jax._src.config.trace_context": _settings,
    "jax._src.config.traceback_filtering": _bind,
    "jax._src.effects": _effects,
    "jax._src.dispatch.runtime_tokens": _tokens,
    "jax._src.callback": _callback_log,
    "jax.jit._jit_info": _jit,
    "jax._src.pmap": _pmap,
    "jax._src.shard_map._shard_map": _shard_map,
    "jax._src.pjit": _constraints,
    "jax._src.api.eval_shape": _eval_shape,
    "jax.extend.core.JaxprEqn": _equations,
    "jax.stages.Lowered._lowering": _lowering,
    "jax._src.interpreters.mlir": _real_sizes,
    "jax.stages.Compiled._executable": _unchecked_call,
    f"jax.sharding.NamedSharding.{compat.XLA_FORM}": _large_sharding,
    "jaxlib.mlir.passmanager": _passes,
}
