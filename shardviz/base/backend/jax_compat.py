"""All uses of private names of jax and jaxlib.

Each function here reads something for which jax has no public API. If the installed jax
lacks the private name, the function returns None or the value given in its docstring,
and the caller does without it. `jax_compat_checks.py` lists all names and tries each.

Names are looked up when used, so that a missing name cannot break an import.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import linecache
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

import jax
from jax.core import eval_jaxpr
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.base.errors import NEWEST_JAX, UntestedJax
from shardviz.base.typing import PyTree

if TYPE_CHECKING:  # importing jax.extend changes jit cache keys
    from jax.extend.core import ClosedJaxpr, JaxprEqn


@functools.cache
def private(module: str, name: str) -> Any | None:
    """An attribute of a module; None if the module or the attribute is missing.

    >>> private("jax._src.no_such_module", "thing") is None
    True
    """
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def is_untested() -> bool:
    """True if jax is newer than every version that shardviz was tested with."""
    return jax.__version_info__[:2] > NEWEST_JAX


@functools.cache
def warn_if_untested() -> None:
    """Warns, once per process, if jax is newer than shardviz was tested with.

    Newer versions are not refused: functions here cope with missing names.
    """
    if is_untested():
        newest = ".".join(map(str, NEWEST_JAX))
        warnings.warn(
            f"jax {jax.__version__} is newer than the versions that shardviz was tested"
            f" with (up to {newest}); `python -m shardviz doctor` shows what does not work"
            " with it.",
            UntestedJax,
            stacklevel=2,
        )


# Replacements for jax.extend.core. In jax 0.12, importing jax.extend imports pallas,
# which changes every jit cache key, so all the user's jitted functions would recompile.

#: jax's `Primitive` class.
Primitive: Any = type(jax.lax.add_p)


def jaxpr_as_fun(jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Returns a function that evaluates a closed jaxpr.

    >>> jaxpr_as_fun(jax.make_jaxpr(lambda x: x * 2)(1))(3)
    [Array(6, dtype=int32, weak_type=True)]
    """

    def evaluate(*arguments: Any) -> list[Any]:
        # jax disables NaN checks inside some functions. A jaxpr doesn't record which,
        # so disable them for the whole evaluation.
        with jax.debug_nans(False):
            return eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arguments)

    return evaluate


# Processes and backends.


def key_value_store() -> Any | None:
    """The client of the key-value store shared by all processes, or None."""
    return getattr(private("jax._src.distributed", "global_state"), "client", None)


def process_number() -> int:
    """This process's index in `jax.distributed`, else 0. Does not start a backend."""
    return getattr(private("jax._src.distributed", "global_state"), "process_id", 0)


def backend_started() -> bool:
    """True if jax has started its backends. Does not start them."""
    # Public functions can't tell: most start the backends. Setting a jax option fails
    # once the backends have started, but would affect other threads.
    started = private("jax._src.xla_bridge", "backends_are_initialized")
    return started is not None and bool(started())


def start_cpus(count: int) -> bool:
    """Starts jax with simulated CPUs, unless its backends have already started.

    Changes jax's configuration, so only a process that belongs to shardviz may call it.

    Returns:
        True if this process now has exactly this number of CPU devices.
    """
    if not backend_started():
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    return jax.default_backend() == "cpu" and jax.device_count() == count


def failed_to_start(error: BaseException) -> bool:
    """True if jax raised the error while starting its backends."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and _module_of(frames[-1]) == "jax._src.xla_bridge"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


# The current context: meshes and settings.


def concrete_mesh() -> Mesh | None:
    """The mesh of devices that `jax.set_mesh` has set.

    Unlike `jax.sharding.get_mesh`, works inside a traced function too.
    """
    get = private("jax._src.mesh", "get_concrete_mesh")
    return None if get is None else get()


def entered_meshes() -> tuple[Mesh, ...] | None:
    """The meshes entered by `with mesh:` in this thread, outermost first, or None."""
    resources = private("jax._src.mesh", "thread_resources")
    if resources is None:
        return None
    meshes = [frame.physical_mesh for frame in resources.stack]
    return tuple(mesh for mesh in meshes if not mesh.empty)


def is_tracing() -> bool:
    """True if a jax transformation is running in this thread."""
    clean = private("jax._src.core", "trace_state_clean")
    return clean is not None and not clean()


def trace_settings() -> tuple[Any, ...] | None:
    """The settings that are part of jax's cache keys; None if not known."""
    values = private("jax._src.config", "trace_context")
    return None if values is None else tuple(values())


def trace_setting_names() -> tuple[str, ...]:
    """The names of the values in `trace_settings()`, in order; `()` if not known."""
    names = private("jax._src.config", "trace_context_names")
    try:
        return () if names is None else tuple(names())
    except NotImplementedError:  # raised by older versions of jaxlib
        return ()


def with_setting(name: str, value: object) -> AbstractContextManager[Any]:
    """A context manager that changes a jax setting in this thread.

    Does nothing if this version of jax lacks the setting.
    """
    # jax.config.update would affect all threads, and after an interrupt the old value
    # might not be restored.
    setting = private("jax._src.config", name)
    return contextlib.nullcontext() if setting is None else setting(value)


def complete_tracebacks() -> AbstractContextManager[Any]:
    """A context manager that keeps jax's frames in this thread's tracebacks."""
    return with_setting("traceback_filtering", "off")


#: Loggers to which jax writes why its caches missed.
MISS_LOGGERS = (
    "jax._src.interpreters.partial_eval",
    "jax._src.compiler",
    "jax._src.compilation_cache",
)
# The begin of each message.
_MISS_MESSAGES = (
    "TRACING CACHE MISS",
    "PERSISTENT COMPILATION CACHE MISS",
    "Not writing persistent cache entry",
)
# Part of jax's message -> the reason, which jax has in its messages only. The first match
# counts.
_MISS_REASONS = {
    "but seen another function defined on the same line": "function created again",
    "never seen function": "new function",
    "Tracing context": "context",
    "different input pytree": "tree",
    "different input types": "types",
}


def explained_misses() -> AbstractContextManager[Any]:
    """A context manager in which jax logs, for this thread, why its caches missed."""
    return with_setting("explain_cache_misses", True)


def is_miss_message(message: str) -> bool:
    """True for a message that jax logs because of `explained_misses`."""
    return message.startswith(_MISS_MESSAGES)


def miss_reason(message: str) -> str:
    """The reason in jax's message about a tracing cache miss; `""` if it has none.

    >>> miss_reason("TRACING CACHE MISS at t.py:1: different input types: * at x")
    'types'
    """
    return next((r for part, r in _MISS_REASONS.items() if part in message), "")


# Effects and callbacks.

#: Construct -> name of jax's set of the effect classes allowed in that construct.
CONSTRUCTS = {
    "control flow": "control_flow_allowed_effects",
    "remat": "remat_allowed_effects",
    "custom derivatives": "custom_derivatives_allowed_effects",
    "lowering": "lowerable_effects",
}
# jax does not export its effect classes, so they are recognized by name.
DEBUG_EFFECTS = ("DebugEffect", "OrderedDebugEffect")
REF_EFFECTS = (
    "RefEffect",
    "ReadEffect",
    "WriteEffect",
    "AccumEffect",
    "InternalMutableArrayEffect",
)


def effect_sets() -> Any | None:
    """jax's module with sets of effect classes; each set has a `contains` method."""
    return private("jax._src", "effects")


def effect_class(effect: object) -> str:
    """The class name of one of jax's effects, such as `"OrderedIOEffect"`."""
    return type(effect).__name__


def forget_failed_callbacks() -> None:
    """Drops the tokens of this thread's failed callbacks, for jax before 0.12.

    Otherwise, jax up to 0.11 raises the callbacks' error again at every later
    `jax.effects_barrier()`, including the one at exit.
    """
    tokens = private("jax._src.dispatch", "runtime_tokens")
    if tokens is not None:
        tokens.clear()


# Arrays, and the arguments of jax.jit, jax.pmap and jax.shard_map.

#: The class of most arrays. `isinstance(x, jax.Array)` is 20 times slower.
ARRAY_CLASS: type | None = private("jax._src.array", "ArrayImpl")

_JITTED = type(jax.jit(abs))


@dataclass(frozen=True)
class JitSettings:
    """The arguments of `jax.jit`. Shardings are pytree prefixes, or None by default."""

    in_shardings: PyTree = None
    out_shardings: PyTree = None
    donate: tuple[int, ...] = ()
    donate_names: tuple[str, ...] = ()
    static: tuple[int, ...] = ()
    static_names: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


def jit_cache_size(jitted: object) -> Callable[[], int] | None:
    """A function that returns how many signatures a jitted function has cached."""
    return getattr(jitted, "_cache_size", None)


def is_jitted(fn: object) -> bool:
    """True for a function returned by `jax.jit`, but not for a wrapper around it."""
    return isinstance(fn, _JITTED)


def jit_settings(fn: object) -> JitSettings | None:
    """The arguments given to `jax.jit` for a jitted function; None if not known."""
    info: Any = getattr(fn, "_jit_info", None)
    try:
        return JitSettings(
            _sharding_tree(info.in_shardings_treedef, info.in_shardings_leaves),
            _sharding_tree(info.out_shardings_treedef, info.out_shardings_leaves),
            tuple(info.donate_argnums),
            tuple(info.donate_argnames),
            tuple(info.static_argnums),
            tuple(info.static_argnames),
            dict(info.compiler_options_kvs),
        )
    except AttributeError:
        return None


def _sharding_tree(treedef: Any, leaves: Sequence[object]) -> PyTree:
    # jax stores a private marker object if a sharding was omitted.
    classes = (jax.sharding.Sharding, PartitionSpec)
    shardings = [leaf if isinstance(leaf, classes) else None for leaf in leaves]
    if all(sharding is None for sharding in shardings):
        return None
    return treedef.unflatten(shardings)


def is_pmapped(fn: object) -> bool:
    """True for a function returned by `jax.pmap`."""
    # A wrapper from functools.wraps has a copy of the attributes, so test the globals.
    # The globals of a function created by exec may lack `__name__`.
    if not isinstance(fn, FunctionType):
        return False
    return fn.__globals__.get("__name__") == "jax._src.pmap"


def pmap_settings(fn: object) -> Mapping[str, Any] | None:
    """The arguments given to `jax.pmap` for a function; None if not known.

    Reads them from the closures of the pmapped function.
    """
    variables = closure_of(fn)
    settings = {**closure_of(variables.get("infer_params")), **variables}
    return settings if {"in_axes", "out_axes_tree"} <= set(settings) else None


# `_shard_map` creates a mapped function, maybe without a mesh. When called, the mapped
# function first calls `_shmap_checks`.
SHARD_MAP_MADE = "_shard_map"
SHARD_MAP_CALLED = "_shmap_checks"
_SHARD_MAP_PARTS = frozenset(
    {"f", "mesh", "in_specs", "out_specs", "axis_names", "check_vma", "_smap"}
)


def shard_map_functions() -> dict[str, FunctionType]:
    """Name -> function, for jax's functions that create and call a `shard_map`."""
    module = "jax._src.shard_map"
    functions = {n: function_of(module, n) for n in (SHARD_MAP_MADE, SHARD_MAP_CALLED)}
    return {name: fn for name, fn in functions.items() if fn is not None}


def copied_shard_map(fn: object) -> Callable[..., Any] | None:
    """Copies a function returned by `jax.shard_map`; None if it already has a mesh."""
    # jax wraps the function in another one, which shortens tracebacks.
    inner: Any = closure_of(fn).get("fun")
    parts = closure_of(inner)
    if parts.keys() != _SHARD_MAP_PARTS or parts["mesh"] is not None:
        return None
    if inner.__globals__.get("__name__") != "jax._src.shard_map":
        return None
    return inner.__globals__[SHARD_MAP_MADE](**parts)


def closure_of(fn: object) -> dict[str, Any]:
    """The variables in the closure of a Python function, by name.

    >>> def outer(size):
    ...     return lambda: size
    >>> closure_of(outer(3))
    {'size': 3}
    """
    if not isinstance(fn, FunctionType) or fn.__closure__ is None:
        return {}
    values = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__, strict=True):
        with contextlib.suppress(ValueError):  # variable not assigned yet
            values[name] = cell.cell_contents
    return values


# Functions of jax and flax whose calls are observed while a program is traced.

# jax creates an object of this class for each function it traces.
TRACE_BEGINS = "DynamicJaxprTrace"
CONSTRAINT_FUNCTIONS = (
    ("jax._src.pjit", "with_sharding_constraint"),
    ("jax._src.pjit", "reshard"),
    ("jax._src.interpreters.partial_eval", TRACE_BEGINS),
)
# Modules of jax that add constraints which the user's program does not contain.
OWN_CALLERS = ("jax._src.core", "jax._src.pjit", "jax._src.lax.lax")


def function_of(module: str, name: str) -> FunctionType | None:
    """The function that a loaded module defines under a name; for a class, `__init__`.

    If a debugging tool has wrapped the function, searches the wrapper's closure.

    >>> function_of("shardviz.base.backend.jax_compat", "function_of") is function_of
    True
    """
    first = getattr(sys.modules.get(module), name, None)
    if isinstance(first, type):
        first, name = vars(first).get("__init__"), "__init__"
    waiting, visited = [first], set()
    while waiting:
        fn = waiting.pop()
        if not isinstance(fn, FunctionType) or id(fn) in visited:
            continue
        visited.add(id(fn))
        if fn.__code__.co_name == name and fn.__globals__.get("__name__") == module:
            return fn
        waiting += [getattr(fn, "__wrapped__", None), *closure_of(fn).values()]
    return None


def traced_line(debug_info: object) -> str:
    """The file and line of a traced function, from its debug info."""
    words = getattr(debug_info, "func_src_info", None) or ""
    return words.rpartition(" at ")[2]


def wants_shapes_alone(frame: FrameType, caller: FrameType) -> bool:
    """True if a frame traces a function only for its shapes, then drops the jaxpr.

    Examples are `jax.eval_shape`, and flax's `scan` looking for broadcast variables.
    """
    module = _module_of(frame)
    if module == "jax._src.api" and frame.f_code.co_name == "eval_shape":
        return True
    by_flax = _module_of(caller) == "flax.core.axes_scan"
    return by_flax and module in (
        "jax._src.interpreters.partial_eval",
        "jax._src.profiler",
    )


def line_frames(equation: JaxprEqn) -> Sequence[Any]:
    """The stack frames that created an equation, innermost first.

    Each frame has `.file_name` and `.line_num`.
    """
    stack = getattr(getattr(equation, "source_info", None), "traceback", None)
    return getattr(stack, "frames", ())


def expression_of(equation: JaxprEqn, file: str) -> int | None:
    """The bytecode offset, in a file, of the expression that created an equation.

    None if not known.
    """
    stack: Any = getattr(getattr(equation, "source_info", None), "traceback", None)
    if not hasattr(stack, "raw_frames"):
        return None
    for code, position in zip(*stack.raw_frames(), strict=True):
        if code.co_filename == file:
            return position
    return None


def expression_text(equation: JaxprEqn, file: str) -> str:
    """The source text, in a file, of the expression that created an equation.

    `""` if not known, or if the expression spans several lines.
    """
    stack: Any = getattr(getattr(equation, "source_info", None), "traceback", None)
    for code, position in zip(
        *getattr(stack, "raw_frames", lambda: ((), ()))(), strict=True
    ):
        if code.co_filename == file:
            span = next(
                itertools.islice(code.co_positions(), position // 2, None), None
            )
            line, last_line, start, end = span or (None,) * 4
            if line is None or line != last_line or start is None or end is None:
                return ""
            # Column offsets count UTF-8 bytes.
            return linecache.getline(file, line).encode()[start:end].decode()
    return ""


def without_context_mesh(equation: Any) -> Any:  # a JaxprEqn; `ctx` is private
    """The equation as if it had been traced without a mesh in context."""
    settings = equation.ctx
    if settings.cur_abstract_mesh.empty:
        return equation
    with settings.manager, jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        # The constructor of `ctx` reads jax's current settings.
        return equation.replace(ctx=type(settings)())


# Lowered and compiled programs.


def compile_arguments(lowered: jax.stages.Lowered) -> dict[str, Any] | None:
    """The arguments with which jax will compile a lowered program, or None."""
    return lowering_attribute(lowered, "compile_args")


def lowering_attribute(lowered: jax.stages.Lowered, name: str) -> Any:
    """An attribute of the private object inside jax's `Lowered`, or None."""
    return getattr(getattr(lowered, "_lowering", None), name, None)


def call_as_jit(compiled: Any, *arguments: Any) -> Any:
    """Calls a compiled program as a jitted function would call it.

    In jax 0.10 and 0.11, `Compiled` checks the layouts of its arguments and so refuses
    dtypes below 8 bits, which `jax.jit` accepts.
    """
    executable = getattr(compiled, "_executable", None)
    call = getattr(executable, "unsafe_call", None)
    if call is None or jax.__version_info__ >= (0, 12):
        return compiled(*arguments)
    constants = getattr(compiled._params, "const_args", ())
    return call(*constants, *arguments)


def kept_module(lowered: jax.stages.Lowered) -> Any | None:
    """The MLIR module that jax will compile for a lowered program, or None."""
    return lowering_attribute(lowered, "_hlo")


def keep_module(lowered: Any, module: Any) -> None:
    """Replaces, in place, the MLIR module that jax will compile."""
    lowered._lowering._hlo = module


def stablehlo_module(lowered: jax.stages.Lowered) -> Any:
    """The StableHLO module that jax passes to XLA for a lowered program.

    If the program calls an exported function with symbolic sizes, inserts the real
    sizes, as jax does at compile time. This needs a private jax function, without which
    the symbols remain.

    Raises:
        ValueError: raised by jax for sizes that the exported program does not accept.
    """
    module = lowered.compiler_ir("stablehlo")
    polymorphic = (compile_arguments(lowered) or {}).get("shape_poly_state")
    if not getattr(polymorphic, "uses_dim_vars", False):
        return module
    refine = private("jax._src.interpreters.mlir", "refine_polymorphic_shapes")
    return module if refine is None else refine(module)


HLO_PARSER = "jaxlib._hlo", "hlo_module_from_text"


def hlo_of_text(text: str) -> bytes:
    """An HLO module in text as a serialized proto. XLA may end this process.

    Raises:
        Exception: if XLA cannot parse the text, or this jaxlib has no parser.
    """
    parse = private(*HLO_PARSER)
    if parse is None:
        raise NotImplementedError("this jaxlib has no parser for the text of HLO")
    return parse(text).as_serialized_hlo_module_proto()


XLA_FORM = "_to_xla_hlo_sharding"


def large_sharding(
    mesh: AbstractMesh, spec: PartitionSpec, memory: str | None
) -> NamedSharding:
    """A NamedSharding whose hash is computed without listing all its devices.

    jax's lowering cache hashes and keeps the XLA form of each sharding, which lists all
    devices in order. With 16 million devices, this takes 128 MiB for each spec. The
    sharding returned here hashes only the mesh and the spec.
    """
    kind = _LargeSharding if hasattr(NamedSharding, XLA_FORM) else NamedSharding
    return kind(mesh, spec, memory_kind=memory)


class _LargeSharding(NamedSharding):
    def _to_xla_hlo_sharding(self, num_dimensions: int) -> Any:
        return _XlaForm(self, num_dimensions)


class _XlaForm:
    """A proxy for the XLA form of a sharding: built lazily, hashed by mesh and spec."""

    def __init__(self, sharding: _LargeSharding, rank: int) -> None:
        self._sharding, self._key = sharding, (sharding.mesh, sharding.spec, rank)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _XlaForm) and self._key == other._key

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        form = getattr(super(_LargeSharding, self._sharding), XLA_FORM)
        return getattr(form(self._key[2]), name)


def platforms_of(equation: JaxprEqn) -> frozenset[str]:
    """Platforms with a platform-specific lowering rule for an equation's primitive."""
    rules = private("jax._src.interpreters.mlir", "_platform_specific_lowerings") or {}
    primitive = equation.primitive
    return frozenset(name for name in rules if primitive in rules[name])


# Errors about meshes, which jax distinguishes only by their messages.

_ASKS_FOR_MESH = re.compile(
    r"non-empty mesh|mesh cannot be empty|in mesh: \(\)|mesh context|context mesh|set_mesh",
    re.IGNORECASE,
)


def asks_for_mesh(error: BaseException) -> bool:
    """True for an error of jax, or of a library using it, about a missing context mesh.

    >>> asks_for_mesh(ValueError("The context mesh cannot be empty. Use `jax.set_mesh`"))
    True
    """
    return bool(_ASKS_FOR_MESH.search(str(error)))


def frame_refusing_mesh(error: BaseException) -> FrameType | None:
    """The frame of the jax function that raised an error about a mesh.

    The frame's local variables include the meshes that jax compared. None if the error
    is not about a mesh, or was not raised by jax.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if "mesh" not in str(error) or not frames:
        return None
    return frames[-1] if _module_of(frames[-1]).startswith("jax.") else None


# Equations of jaxprs.


def at_line_of(equation: Any) -> AbstractContextManager[Any]:
    """A context in which new equations get the line and name stack of `equation`."""
    module = "jax._src.source_info_util"
    enter, stack = (
        private(module, "user_context"),
        private(module, "current_name_stack"),
    )
    if enter is None or stack is None:
        return contextlib.nullcontext()
    info = equation.source_info
    return enter(info.traceback, name_stack=stack() + info.name_stack)


def is_backward(equation: Any, around: bool = False) -> bool:
    """True for an equation in the backward pass of a gradient.

    Args:
        equation: the equation.
        around: whether an enclosing equation belongs to a backward pass.
    """
    stack = str(equation.source_info.name_stack)
    # Equations that `jax.checkpoint` recomputes count as forward.
    return "rematted_computation" not in stack and (around or "transpose(" in stack)


def varying_axes(value: Any) -> frozenset[str]:
    """The axes of a `shard_map` along which a value may differ between devices.

    Args:
        value: an array, or a variable of a jaxpr.
    """
    aval = getattr(value, "aval", None) or jax.typeof(value)
    manual = getattr(aval, "mat", aval)  # `mat` exists in some versions
    return frozenset(getattr(manual, "varying", getattr(manual, "vma", ())))


def shard_map_call(frame: FrameType) -> dict[str, Any] | None:
    """Reads the arguments of `jax.shard_map` and of the mapped call from a frame."""
    if _module_of(frame) != "jax._src.shard_map" or frame.f_code.co_name != "wrapped":
        return None
    names = ("f", "mesh", "in_specs", "out_specs", "axis_names", "check_vma", "args")
    values = {name: frame.f_locals.get(name) for name in names}
    return values if values["f"] is not None and values["mesh"] is not None else None


def scan_counts(equation: JaxprEqn) -> tuple[int, int]:
    """The number of constants and of carried values among a `scan`'s operands."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # since jax 0.12
    return len(consts), len(carry)
