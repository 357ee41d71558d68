"""Every private name of jax and jaxlib that shardviz uses, and whether it still works.

A function here reads one thing that jax has no public way to say. Where this version of
jax has the name no longer it gives None, or what its docstring says, and the caller
goes on with less. `jax_compat_checks.py` lists them all and tries each one.

Names are looked up when they are used, so that a missing one breaks nothing at import.
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
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from shardviz.base.errors import NEWEST_JAX, UntestedJax


@functools.cache
def private(module: str, name: str) -> Any | None:
    """What a module has under a name; None where either is missing.

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
    """Warns, once per process, if jax is newer than shardviz was tested with."""
    if is_untested():
        newest = ".".join(map(str, NEWEST_JAX))
        warnings.warn(
            f"jax {jax.__version__} is newer than the versions that shardviz was tested"
            f" with (up to {newest}); `python -m shardviz doctor` shows what does not work"
            " with it.",
            UntestedJax,
            stacklevel=2,
        )


# Parts of jax.extend.core. In jax 0.12 importing jax.extend brings pallas, which adds to
# the key of every jit cache, so that all jitted functions of the user compile again.

#: jax's class of operations.
Primitive: Any = type(jax.lax.add_p)


def jaxpr_as_fun(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function that evaluates a closed jaxpr.

    >>> jaxpr_as_fun(jax.make_jaxpr(lambda x: x * 2)(1))(3)
    [Array(6, dtype=int32, weak_type=True)]
    """

    def evaluate(*arguments: Any) -> list[Any]:
        # The checks for NaN are off while jax traces some functions, which a jaxpr
        # does not record.
        with jax.debug_nans(False):
            return eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arguments)

    return evaluate


# Processes and backends.


def key_value_store() -> Any | None:
    """The client of the store that all processes share; None where there is none."""
    return getattr(private("jax._src.distributed", "global_state"), "client", None)


def process_number() -> int:
    """Which process of `jax.distributed` this is; starts no backend. 0 where alone."""
    return getattr(private("jax._src.distributed", "global_state"), "process_id", 0)


def backend_started() -> bool:
    """Whether jax has started its backends, found out without starting them."""
    # Public functions start what they ask about, or change an option to see whether jax
    # refuses it, which another thread that starts jax then sees too.
    started = private("jax._src.xla_bridge", "backends_are_initialized")
    return started is not None and bool(started())


def failed_to_start(error: BaseException) -> bool:
    """Whether jax raised an error while it started its backends."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and _module_of(frames[-1]) == "jax._src.xla_bridge"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


# Meshes and settings around a call.


def concrete_mesh() -> Mesh | None:
    """The mesh of `jax.set_mesh` with its devices, also inside a traced function.

    There `jax.sharding.get_mesh` raises.
    """
    get = private("jax._src.mesh", "get_concrete_mesh")
    return None if get is None else get()


def entered_meshes() -> tuple[Mesh, ...] | None:
    """The meshes of `with mesh:` in this thread, outermost first; None: not known."""
    resources = private("jax._src.mesh", "thread_resources")
    if resources is None:
        return None
    meshes = [frame.physical_mesh for frame in resources.stack]
    return tuple(mesh for mesh in meshes if not mesh.empty)


def is_tracing() -> bool:
    """Whether a transformation of jax is under way in this thread."""
    clean = private("jax._src.core", "trace_state_clean")
    return clean is not None and not clean()


def trace_settings() -> tuple[Any, ...] | None:
    """The values that jax keys its own caches on; None where it hides them."""
    values = private("jax._src.config", "trace_context")
    return None if values is None else tuple(values())


def trace_setting_names() -> tuple[str, ...]:
    """What each of `trace_settings` is; `()` where jax does not say."""
    names = private("jax._src.config", "trace_context_names")
    try:
        return () if names is None else tuple(names())
    except NotImplementedError:  # an older jaxlib does not name them
        return ()


def complete_tracebacks() -> AbstractContextManager[Any]:
    """A context in which tracebacks of this thread keep jax's own frames."""
    # jax.config.update would change it for all threads, and an interrupt could leave
    # it.
    setting = private("jax._src.config", "traceback_filtering")
    return contextlib.nullcontext() if setting is None else setting("off")


# Effects and callbacks.

#: Where jax may allow an effect, and the set of effect classes that says so.
CONSTRUCTS = {
    "control flow": "control_flow_allowed_effects",
    "remat": "remat_allowed_effects",
    "custom derivatives": "custom_derivatives_allowed_effects",
    "lowering": "lowerable_effects",
}
# jax does not export its classes of effects, so they are known by their names.
DEBUG_EFFECTS = ("DebugEffect", "OrderedDebugEffect")
REF_EFFECTS = (
    "RefEffect",
    "ReadEffect",
    "WriteEffect",
    "AccumEffect",
    "InternalMutableArrayEffect",
)


def effect_sets() -> Any | None:
    """jax's module with the sets of effect classes, each with a method `contains`."""
    return private("jax._src", "effects")


def effect_class(effect: Any) -> str:
    """The name of the class of one of jax's effects, such as `"OrderedIOEffect"`."""
    return type(effect).__name__


def forget_failed_callbacks() -> None:
    """Drops the tokens of this thread's failed callbacks, as jax 0.12 does itself.

    Up to 0.11 every later `jax.effects_barrier()`, jax's own at exit included, raises
    their error once more.
    """
    tokens = private("jax._src.dispatch", "runtime_tokens")
    if tokens is not None:
        tokens.clear()


# What jax.jit, jax.pmap and jax.shard_map were given.

_JITTED = type(jax.jit(abs))


@dataclass(frozen=True)
class JitSettings:
    """What `jax.jit` was given. Shardings are pytree prefixes; None where not given."""

    in_shardings: Any = None
    out_shardings: Any = None
    donate: tuple[int, ...] = ()
    donate_names: tuple[str, ...] = ()
    static: tuple[int, ...] = ()
    static_names: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def is_jitted(fn: Any) -> bool:
    """Whether `jax.jit` made a function; one that wraps it does not count."""
    return isinstance(fn, _JITTED)


def jit_settings(fn: Any) -> JitSettings | None:
    """What `jax.jit` was given with a function that it made; None: not known."""
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


def _sharding_tree(treedef: Any, leaves: Any) -> Any:
    # Where nothing was given jax keeps a marker of its own.
    kinds = (jax.sharding.Sharding, PartitionSpec)
    kept = [leaf if isinstance(leaf, kinds) else None for leaf in leaves]
    return None if all(leaf is None for leaf in kept) else treedef.unflatten(kept)


def is_pmapped(fn: Any) -> bool:
    """Whether `jax.pmap` made a function."""
    # Not by attributes, which functools.wraps copies. Code that is executed in a
    # namespace of its own has no module name.
    if not isinstance(fn, FunctionType):
        return False
    return fn.__globals__.get("__name__") == "jax._src.pmap"


def pmap_settings(fn: Any) -> Mapping[str, Any] | None:
    """What `jax.pmap` was given, kept in closures of what it made; None: not known."""
    around = closure_of(fn)
    inside = {**closure_of(around.get("infer_params")), **around}
    return inside if {"in_axes", "out_axes_tree"} <= set(inside) else None


SHARD_MAP_MADE = "_shard_map"  # makes a function whose mesh is to come
SHARD_MAP_CALLED = "_shmap_checks"  # such a function calls it first, each time
_SHARD_MAP_PARTS = frozenset(
    {"f", "mesh", "in_specs", "out_specs", "axis_names", "check_vma", "_smap"}
)


def shard_map_functions() -> dict[str, FunctionType]:
    """jax's functions that make and call a `shard_map`, by name, where found."""
    module = "jax._src.shard_map"
    functions = {n: function_of(module, n) for n in (SHARD_MAP_MADE, SHARD_MAP_CALLED)}
    return {name: fn for name, fn in functions.items() if fn is not None}


def copied_shard_map(fn: Any) -> Any | None:
    """A copy of what `jax.shard_map` gave without a mesh; None of all else."""
    # jax puts a function around it that shortens tracebacks.
    inner: Any = closure_of(fn).get("fun")
    parts = closure_of(inner)
    if parts.keys() != _SHARD_MAP_PARTS or parts["mesh"] is not None:
        return None
    if inner.__globals__.get("__name__") != "jax._src.shard_map":
        return None
    return inner.__globals__[SHARD_MAP_MADE](**parts)


def closure_of(fn: Any) -> dict[str, Any]:
    """The variables that a Python function has from around it, by name.

    >>> def outer(size):
    ...     return lambda: size
    >>> closure_of(outer(3))
    {'size': 3}
    """
    if not isinstance(fn, FunctionType) or fn.__closure__ is None:
        return {}
    values = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__, strict=True):
        with contextlib.suppress(ValueError):  # a variable without a value yet
            values[name] = cell.cell_contents
    return values


# Functions of jax and flax whose calls are observed while a program is traced.

TRACE_BEGINS = "DynamicJaxprTrace"  # jax makes one for every function that it traces
CONSTRAINT_FUNCTIONS = (
    ("jax._src.pjit", "with_sharding_constraint"),
    ("jax._src.pjit", "reshard"),
    ("jax._src.interpreters.partial_eval", TRACE_BEGINS),
)
# jax's own code, where it constrains what nobody wrote a constraint for.
OWN_CALLERS = ("jax._src.core", "jax._src.pjit", "jax._src.lax.lax")


def function_of(module: str, name: str) -> FunctionType | None:
    """The function (of a class, its `__init__`) that a loaded module defines.

    Debugging tools put a function of theirs around it: then it is looked for in what
    that one refers to.

    >>> function_of("shardviz.base.backend.jax_compat", "function_of") is function_of
    True
    """
    first = getattr(sys.modules.get(module), name, None)
    if isinstance(first, type):
        first, name = vars(first).get("__init__"), "__init__"
    waiting, seen = [first], set()
    while waiting:
        fn = waiting.pop()
        if not isinstance(fn, FunctionType) or id(fn) in seen:
            continue
        seen.add(id(fn))
        if fn.__code__.co_name == name and fn.__globals__.get("__name__") == module:
            return fn
        waiting += [getattr(fn, "__wrapped__", None), *closure_of(fn).values()]
    return None


def traced_line(debug_info: Any) -> str:
    """File and line of a function that jax traces, from its debug information."""
    words = getattr(debug_info, "func_src_info", None) or ""
    return words.rpartition(" at ")[2]


def wants_shapes_alone(frame: FrameType, caller: FrameType) -> bool:
    """Whether what is traced in a frame is thrown away, as its caller wants shapes.

    So it is in `jax.eval_shape`, and where flax's `scan` finds what is broadcast.
    """
    module = _module_of(frame)
    if module == "jax._src.api" and frame.f_code.co_name == "eval_shape":
        return True
    of_flax = _module_of(caller) == "flax.core.axes_scan"
    return of_flax and module in (
        "jax._src.interpreters.partial_eval",
        "jax._src.profiler",
    )


def line_frames(equation: Any) -> Sequence[Any]:
    """The stack that made an operation, innermost first: `.file_name`, `.line_num`."""
    stack = getattr(getattr(equation, "source_info", None), "traceback", None)
    return getattr(stack, "frames", ())


def expression_of(equation: Any, file: str) -> int | None:
    """Which expression of a file made an operation: where in the bytecode it stands.

    None where that is not known.
    """
    stack: Any = getattr(getattr(equation, "source_info", None), "traceback", None)
    if not hasattr(stack, "raw_frames"):
        return None
    for code, position in zip(*stack.raw_frames(), strict=True):
        if code.co_filename == file:
            return position
    return None


def expression_text(equation: Any, file: str) -> str:
    """The code of the expression of a file that made an operation, on one line; `""` if
    that is not known."""
    stack: Any = getattr(getattr(equation, "source_info", None), "traceback", None)
    for code, position in zip(
        *getattr(stack, "raw_frames", lambda: ((), ()))(), strict=True
    ):
        if code.co_filename == file:
            place = next(
                itertools.islice(code.co_positions(), position // 2, None), None
            )
            line, last, start, end = place or (None,) * 4
            if line is None or line != last or start is None or end is None:
                return ""
            # Columns count bytes.
            return linecache.getline(file, line).encode()[start:end].decode()
    return ""


def without_context_mesh(equation: Any) -> Any:
    """An operation as if no mesh had been in context when it was traced."""
    settings = equation.ctx
    if settings.cur_abstract_mesh.empty:
        return equation
    with settings.manager, jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        # It takes what is set now.
        return equation.replace(ctx=type(settings)())


# Lowered and compiled programs.


def compile_arguments(lowered: Any) -> dict[str, Any] | None:
    """What jax compiles a lowered program with, such as callbacks; None: not known."""
    return lowering_attribute(lowered, "compile_args")


def lowering_attribute(lowered: Any, name: str) -> Any:
    """An attribute of the object behind jax's `Lowered`; None where there is none."""
    return getattr(getattr(lowered, "_lowering", None), name, None)


def call_as_jit(compiled: Any, *arguments: Any) -> Any:
    """Calls a compiled program as a function under `jax.jit` calls it.

    jax 0.10 and 0.11 compare the layouts of arguments when a `Compiled` is called, and
    refuse those of fewer than 8 bits, which `jax.jit` itself takes.
    """
    executable = getattr(compiled, "_executable", None)
    call = getattr(executable, "unsafe_call", None)
    if call is None or jax.__version_info__ >= (0, 12):
        return compiled(*arguments)
    constants = getattr(compiled._params, "const_args", ())
    return call(*constants, *arguments)


def kept_module(lowered: Any) -> Any | None:
    """The MLIR module that jax keeps of a lowered program, to be compiled."""
    return lowering_attribute(lowered, "_hlo")


def keep_module(lowered: Any, module: Any) -> None:
    """Has a lowered program compiled from another MLIR module; `lowered` is changed."""
    lowered._lowering._hlo = module


def stablehlo_module(lowered: Any) -> Any:
    """The module that jax hands to XLA for a lowered program.

    Where the program calls one that was exported with symbolic sizes, jax puts the real
    sizes in only when it compiles. Without its function for that the symbols stay.

    Raises:
        ValueError: by jax, for sizes that the exported program does not take.
    """
    module = lowered.compiler_ir("stablehlo")
    polymorphic = (compile_arguments(lowered) or {}).get("shape_poly_state")
    if not getattr(polymorphic, "uses_dim_vars", False):
        return module
    refine = private("jax._src.interpreters.mlir", "refine_polymorphic_shapes")
    return module if refine is None else refine(module)


XLA_FORM = "_to_xla_hlo_sharding"


def large_sharding(mesh: AbstractMesh, spec: PartitionSpec, memory: str | None) -> Any:
    """A NamedSharding on many devices that jax can look up without a number for each.

    jax finds what it has lowered by the hash of XLA's form of each sharding, which is
    made of all devices in order, and keeps that form: 128 MiB for each spec on 16
    million devices. Here that hash is of the mesh and the spec alone.
    """
    kind = _LargeSharding if hasattr(NamedSharding, XLA_FORM) else NamedSharding
    return kind(mesh, spec, memory_kind=memory)


class _LargeSharding(NamedSharding):
    def _to_xla_hlo_sharding(self, num_dimensions: int) -> Any:
        return _XlaForm(self, num_dimensions)


class _XlaForm:
    """XLA's form of a sharding, made when it is used, with the hash of mesh and spec."""

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


def platforms_of(equation: Any) -> frozenset[str]:
    """The platforms that have a lowering rule of their own for an operation."""
    rules = private("jax._src.interpreters.mlir", "_platform_specific_lowerings") or {}
    primitive = equation.primitive
    return frozenset(name for name in rules if primitive in rules[name])


# Messages about meshes, for which jax has no classes of errors.

_ASKS_FOR_MESH = re.compile(
    r"non-empty mesh|mesh cannot be empty|in mesh: \(\)|mesh context|context mesh|set_mesh",
    re.IGNORECASE,
)


def asks_for_mesh(error: BaseException) -> bool:
    """True if jax, or a library that uses it, raised an error to ask for a mesh in context.

    >>> asks_for_mesh(ValueError("The context mesh cannot be empty. Use `jax.set_mesh`"))
    True
    """
    return bool(_ASKS_FOR_MESH.search(str(error)))


def frame_refusing_mesh(error: BaseException) -> FrameType | None:
    """The frame of the jax function that raised an error about a mesh.

    The meshes that it compared are among the local variables. None if the error is about
    something else, or was not raised by jax.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if "mesh" not in str(error) or not frames:
        return None
    return frames[-1] if _module_of(frames[-1]).startswith("jax.") else None


# Types of values, and operations bound once more.


def at_line_of(equation: Any) -> AbstractContextManager[Any]:
    """A context in which new operations have the source line and scope of another."""
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
    """Whether an operation is of the backward pass of a gradient.

    Args:
        equation: the operation.
        around: whether it is in a jaxpr that an operation of a backward pass calls.
    """
    stack = str(equation.source_info.name_stack)
    # What a checkpoint computes again is as in the forward pass.
    return "rematted_computation" not in stack and (around or "transpose(" in stack)


def varying_axes(value: Any) -> frozenset[str]:
    """The axes of a `shard_map` over which a value may differ between devices.

    Args:
        value: a value, or a variable of a jaxpr.
    """
    aval = getattr(value, "aval", None) or jax.typeof(value)
    manual = getattr(aval, "mat", aval)  # a set of its own since jax 0.10
    return frozenset(getattr(manual, "varying", getattr(manual, "vma", ())))


def shard_map_call(frame: FrameType) -> dict[str, Any] | None:
    """What `jax.shard_map` was given, and its arguments, in a frame of its call."""
    if _module_of(frame) != "jax._src.shard_map" or frame.f_code.co_name != "wrapped":
        return None
    names = ("f", "mesh", "in_specs", "out_specs", "axis_names", "check_vma", "args")
    found = {name: frame.f_locals.get(name) for name in names}
    return found if found["f"] is not None and found["mesh"] is not None else None


def scan_counts(equation: Any) -> tuple[int, int]:
    """How many operands of a `scan` are constants, and how many begin its carry."""
    params = equation.params
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # since jax 0.12
    return len(consts), len(carry)
