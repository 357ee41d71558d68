"""Which of the private names of jax and jaxlib work in the installed versions.

Each check uses a name for what `jax_compat` uses it for. `python -m shardviz doctor`
prints the result; what a name is good for and what is lost without it stands in
`wording/doctor.py`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import traceback
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.core.backend.jax_compat import (
    CONSTRAINT_FUNCTIONS,
    DEBUG_EFFECTS,
    XLA_FORM,
    BoundOperation,
    backend_started,
    bound_operation,
    callback_function,
    compile_arguments,
    complete_tracebacks,
    concrete_mesh,
    copied_shard_map,
    effect_class,
    effect_sets,
    entered_meshes,
    failing_callbacks,
    function_of,
    is_pmapped,
    is_tracing,
    jit_settings,
    keep_module,
    kept_module,
    large_sharding,
    line_frames,
    pmap_settings,
    private,
    process_number,
    shard_map_functions,
    stablehlo_module,
    trace_setting_names,
    trace_settings,
    traced_line,
    unchecked_call,
    wants_shapes_alone,
    without_context_mesh,
)

State = Literal["works", "missing", "wrong"]


@dataclass(frozen=True)
class PrivateName:
    """A private name.

    Attributes:
        name: where it is, such as `"jax._src.mesh.thread_resources"`.
        check: whether it does what is expected of it. It may raise anything.
    """

    name: str
    check: Callable[[], bool]


@dataclass(frozen=True)
class NameState:
    """What became of a private name in the installed version.

    Attributes:
        name: as in `PrivateName`.
        state: `"works"`, `"missing"`, or `"wrong"`: it is there and does something
            else.
        detail: what its check raised, as one line; `""` where it raised nothing.
    """

    name: str
    state: State
    detail: str = ""


def check_names(names: Sequence[PrivateName] | None = None) -> tuple[NameState, ...]:
    """Runs the check of every private name, by default of `PRIVATE_NAMES`.

    Starts jax's backends.

    >>> names = (PrivateName("a", lambda: True), PrivateName("b", lambda: {}["x"]))
    >>> [row.state for row in check_names(names)]
    ['works', 'missing']
    """
    rows = []
    for entry in PRIVATE_NAMES if names is None else names:
        state, detail = "wrong", ""
        try:
            state = "works" if entry.check() else "wrong"
        except (AttributeError, ImportError, LookupError) as error:
            state, detail = "missing", _one_line(error)
        # Whatever a changed function raises belongs into its row of the table.
        except Exception as error:  # noqa: BLE001
            detail = _one_line(error)
        rows.append(NameState(entry.name, state, detail))
    return tuple(rows)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _needed(module: str, name: str) -> Any:
    """What a module has under a name.

    Raises:
        LookupError: there is none.
    """
    value = private(module, name)
    if value is None:
        raise LookupError(f"{module}.{name}")
    return value


def _one_device_mesh() -> Mesh:
    return jax.make_mesh((1,), ("x",), devices=jax.devices("cpu")[:1])


def _checks_distributed() -> bool:
    state = _needed("jax._src.distributed", "global_state")
    return hasattr(state, "client") and isinstance(process_number(), int)


def _checks_started() -> bool:
    _needed("jax._src.xla_bridge", "backends_are_initialized")
    jax.devices()
    return backend_started()


def _checks_concrete_mesh() -> bool:
    _needed("jax._src.mesh", "get_concrete_mesh")
    mesh, seen = _one_device_mesh(), []
    with jax.set_mesh(mesh):
        jax.eval_shape(lambda: seen.append(concrete_mesh()))
    return seen == [mesh]


def _checks_entered_meshes() -> bool:
    _needed("jax._src.mesh", "thread_resources")
    mesh = _one_device_mesh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh:
            return (entered_meshes() or ())[-1:] == (mesh,)


def _checks_tracing() -> bool:
    _needed("jax._src.core", "trace_state_clean")
    seen: list[bool] = []
    jax.eval_shape(lambda: seen.append(is_tracing()))
    return seen == [True] and not is_tracing()


def _checks_settings() -> bool:
    _needed("jax._src.config", "trace_context")
    _needed("jax._src.config", "trace_context_names")
    before = trace_settings()
    with jax.default_matmul_precision("float32"):
        differs = before is not None and before != trace_settings()
    return differs and len(trace_setting_names()) == len(before or ())


def _checks_tracebacks() -> bool:
    _needed("jax._src.config", "traceback_filtering")
    return _binding_frame() is not None


def _binding_frame() -> BoundOperation | None:
    """The operation in the traceback of a call that jax refuses."""
    try:
        with complete_tracebacks():
            jax.lax.add(jnp.ones(2), jnp.ones(3))
    except TypeError as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            operation = bound_operation(frame)
            if operation is not None:
                return operation
    return None


def _checks_bind() -> bool:
    operation = _binding_frame()
    return operation is not None and operation.primitive.name == "add"


def _effects_of(fn: Callable[..., Any]) -> list[Any]:
    return list(jax.make_jaxpr(fn)(1.0).effects)


def _checks_effect_sets() -> bool:
    sets = _needed("jax._src", "effects")
    printing = functools.partial(jax.debug.print, "{}", ordered=True)
    (effect,) = _effects_of(printing)
    if effect_sets() is None or not sets.ordered_effects.contains(effect):
        return False
    return not sets.shardable_ordered_effects.contains(effect)


def _checks_effect_classes() -> bool:
    struct = jax.ShapeDtypeStruct((), "float32")

    def all_of_them(x: Any) -> None:
        jax.debug.print("{}", x)
        jax.debug.print("{}", x, ordered=True)
        io_callback(abs, struct, x)
        io_callback(abs, struct, x, ordered=True)

    names = {effect_class(effect) for effect in _effects_of(all_of_them)}
    return names == {*DEBUG_EFFECTS, "IOEffect", "OrderedIOEffect"}


def _checks_tokens() -> bool:
    return callable(_needed("jax._src.dispatch", "runtime_tokens").clear)


def _checks_callback_log() -> bool:
    def fails(x: Any) -> Any:
        raise ZeroDivisionError

    struct = jax.ShapeDtypeStruct((), "float32")
    logger = logging.getLogger("jax._src.callback")
    silent = lambda record: False  # noqa: E731
    with failing_callbacks() as raised:
        logger.addFilter(silent)
        try:
            with contextlib.suppress(Exception):  # XLA's own error says the same
                jax.block_until_ready(jax.pure_callback(fails, struct, 1.0))
        finally:
            logger.removeFilter(silent)
    return any(isinstance(error, ZeroDivisionError) for error in raised)


def _checks_callback_function() -> bool:
    jaxpr = jax.make_jaxpr(lambda x: io_callback(print, None, x))(1.0)
    return callback_function(jaxpr.eqns[0].params["callback"]) is print


def _checks_jit() -> bool:
    def scaled(x: Any, by: float) -> Any:
        return x * by

    settings = jit_settings(jax.jit(scaled, donate_argnums=0, static_argnames="by"))
    if settings is None:
        raise LookupError("_jit_info")
    return settings.donate == (0,) and settings.static_names == ("by",)


def _checks_pmap() -> bool:
    fn = jax.pmap(abs, axis_name="batch", in_axes=1)
    if not is_pmapped(fn):
        raise LookupError("jax._src.pmap")
    return (pmap_settings(fn) or {}).get("in_axes") == 1


def _checks_shard_map() -> bool:
    if len(shard_map_functions()) < 2:
        raise LookupError("jax._src.shard_map")
    spec = PartitionSpec("x")
    return (
        copied_shard_map(jax.shard_map(abs, in_specs=spec, out_specs=spec)) is not None
    )


def _checks_constraint_functions() -> bool:
    for module, name in CONSTRAINT_FUNCTIONS:
        if function_of(module, name) is None:
            raise LookupError(f"{module}.{name}")
    code = function_of(*CONSTRAINT_FUNCTIONS[0]).__code__  # type: ignore[union-attr]
    return _reached(
        code, lambda: jax.lax.with_sharding_constraint(1.0, PartitionSpec())
    )


def _reached(code: types.CodeType, call: Callable[[], Any]) -> bool:
    """Whether a call, which may fail, passes through a function."""
    try:
        with (
            complete_tracebacks(),
            jax.sharding.use_abstract_mesh(AbstractMesh((), ())),
        ):
            call()
    except RuntimeError as error:  # jax asks for a mesh
        frames = traceback.walk_tb(error.__traceback__)
        return any(frame.f_code is code for frame, _ in frames)
    return False


def _checks_shapes_alone() -> bool:
    seen = []

    def look() -> None:
        frame = inspect.currentframe()
        while frame is not None and frame.f_back is not None:
            seen.append(wants_shapes_alone(frame, frame.f_back))
            frame = frame.f_back

    jax.eval_shape(look)
    return any(seen)


def _checks_equations() -> bool:
    jaxpr = jax.make_jaxpr(jnp.sin)(1.0)
    (equation,) = jaxpr.eqns
    known = without_context_mesh(equation).primitive is equation.primitive
    return (
        known
        and len(line_frames(equation)) > 0
        and traced_line(jaxpr.jaxpr.debug_info) != ""
    )


def _checks_lowering() -> bool:
    lowered = jax.jit(abs).lower(1.0)
    module = kept_module(lowered)
    if module is None or compile_arguments(lowered) is None:
        raise LookupError("_lowering")
    keep_module(lowered, module)
    return stablehlo_module(lowered) is not None


def _checks_real_sizes() -> bool:
    _needed("jax._src.interpreters.mlir", "refine_polymorphic_shapes")
    (size,) = jax.export.symbolic_shape("n")
    struct = jax.ShapeDtypeStruct((size,), "float32")
    exported = jax.export.export(jax.jit(jnp.sin))(struct)
    lowered = jax.jit(exported.call).lower(jnp.ones(3))
    return "tensor<?x" not in str(stablehlo_module(lowered))


def _checks_unchecked_call() -> bool:
    compiled = jax.jit(abs).lower(1.0).compile()
    call = unchecked_call(compiled)
    if call is None:
        raise LookupError("_executable")
    return float(call(jnp.asarray(-1.0))[0]) == 1.0


def _checks_xla_form() -> bool:
    getattr(NamedSharding, XLA_FORM)
    mesh = AbstractMesh((1 << 13,), ("x",))
    sharding = large_sharding(mesh, PartitionSpec("x"), None)
    struct = jax.ShapeDtypeStruct((1 << 13,), "float32", sharding=sharding)
    traced = jax.jit(abs).trace(struct)
    return "sdy.sharding" in traced.lower(lowering_platforms=("cpu",)).as_text()


def _checks_passes() -> bool:
    manager = importlib.import_module("jaxlib.mlir.passmanager").PassManager
    module: Any = jax.jit(abs).lower(1.0).compiler_ir("stablehlo")
    with module.context:
        parsed = manager.parse("builtin.module(sdy-propagation-pipeline)")
    return "sdy" in str(parsed)


#: Every private name of jax and jaxlib that shardviz uses.
PRIVATE_NAMES = (
    PrivateName("jax._src.distributed.global_state", _checks_distributed),
    PrivateName("jax._src.xla_bridge.backends_are_initialized", _checks_started),
    PrivateName("jax._src.mesh.get_concrete_mesh", _checks_concrete_mesh),
    PrivateName("jax._src.mesh.thread_resources", _checks_entered_meshes),
    PrivateName("jax._src.core.trace_state_clean", _checks_tracing),
    PrivateName("jax._src.config.trace_context", _checks_settings),
    PrivateName("jax._src.config.traceback_filtering", _checks_tracebacks),
    PrivateName("jax.extend.core.Primitive.bind", _checks_bind),
    PrivateName("jax._src.effects", _checks_effect_sets),
    PrivateName("jax._src.effects.Effect", _checks_effect_classes),
    PrivateName("jax._src.dispatch.runtime_tokens", _checks_tokens),
    PrivateName("jax._src.callback", _checks_callback_log),
    PrivateName("jax._src.callback.callback_func", _checks_callback_function),
    PrivateName("jax.jit._jit_info", _checks_jit),
    PrivateName("jax._src.pmap", _checks_pmap),
    PrivateName("jax._src.shard_map._shard_map", _checks_shard_map),
    PrivateName("jax._src.pjit", _checks_constraint_functions),
    PrivateName("jax._src.api.eval_shape", _checks_shapes_alone),
    PrivateName("jax.extend.core.JaxprEqn", _checks_equations),
    PrivateName("jax.stages.Lowered._lowering", _checks_lowering),
    PrivateName("jax._src.interpreters.mlir", _checks_real_sizes),
    PrivateName("jax.stages.Compiled._executable", _checks_unchecked_call),
    PrivateName(f"jax.sharding.NamedSharding.{XLA_FORM}", _checks_xla_form),
    PrivateName("jaxlib.mlir.passmanager", _checks_passes),
)
