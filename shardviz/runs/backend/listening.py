"""Lists the compiles of jax, and counts its stages for calls on two meshes.

Traces don't depend on devices: a function that names no devices is traced and lowered
once for all meshes of the same shape, and only compiled again.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import jax

from shardviz.axis_rules.libraries import spec_of
from shardviz.base.backend.jax_compat import (
    MISS_LOGGERS,
    explained_misses,
    is_miss_message,
    miss_reason,
)
from shardviz.base.errors import ProgramError, ShardvizError
from shardviz.base.format import shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec
from shardviz.base.typing import ArrayLike, MeshLike, SpecLike, UserFunction
from shardviz.programs.backend.bridge import adopt_mesh, check_axis_names, to_jax
from shardviz.programs.backend.failures import failure
from shardviz.runs.recompiles import (
    STAGES,
    Compile,
    MeshCall,
    MeshComparison,
    NeverCompiled,
)

#: jax's event -> the stage that it reports.
DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


def stop_listening(listener: Callable[..., None]) -> None:
    """Unregisters a listener; the user may have cleared all of them."""
    with contextlib.suppress(AssertionError, ValueError):
        jax.monitoring.unregister_event_duration_listener(listener)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage that jax has run, before the compile that it belongs to.

    Attributes:
        name: jax's name of the function.
        thread: the thread that ran it.
        caller: the instruction of the user's code that called jax.
        message: jax's explanation of a trace.
        trace: the trace in the same call, of a lowering.
    """

    stage: str
    name: str
    seconds: float
    thread: int
    caller: tuple[types.CodeType, int] | None
    message: str = ""
    trace: _Stage | None = None


def _caller() -> tuple[types.CodeType, int] | None:
    """Finds the innermost instruction in this thread that is not jax's or ours."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in ("jax", "shardviz", "contextlib", "functools"):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


class _Logs(threading.local):
    """The logs that each thread has entered, outermost first."""

    def __init__(self) -> None:
        self.entered: list[CompileLog] = []


_LOGS = _Logs()


class _MissFilter(logging.Filter):
    """Gives jax's explanations to the logs of their thread, and drops the messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not _LOGS.entered or not is_miss_message(message):
            return True
        # The first filter to see a message gives it to all logs, since it drops it.
        for log in _LOGS.entered:
            log.explanations.append(message)
        return _LOGS.entered[0].shows_messages


class CompileLog(Sequence[Compile]):
    """Every compile of jax within a `with` block, in all threads, in order.

    jax explains compiles in the thread of the block only. Compiles in other threads
    have no reason.

    >>> with CompileLog() as compiles:
    ...     result = jax.jit(lambda x: x - 1)(1.0)
    >>> [(compile.function, compile.reason) for compile in compiles][-1]
    ('<lambda>', 'new function')
    """

    def __init__(self) -> None:
        self._compiles: list[Compile] = []
        self._stages: list[_Stage] = []
        self._stack = contextlib.ExitStack()
        #: Messages of this thread that belong to no trace yet.
        self.explanations: list[str] = []
        #: Whether the user asked jax for its messages, apart from this log.
        self.shows_messages = False

    def __enter__(self) -> CompileLog:
        self.shows_messages = bool(jax.config.jax_explain_cache_misses)  # type: ignore[attr-defined]
        with contextlib.ExitStack() as stack:
            for name in MISS_LOGGERS:
                logger, miss_filter = logging.getLogger(name), _MissFilter()
                logger.addFilter(miss_filter)
                stack.callback(logger.removeFilter, miss_filter)
            _LOGS.entered.append(self)
            stack.callback(_LOGS.entered.remove, self)
            jax.monitoring.register_event_duration_secs_listener(self._note)
            stack.callback(stop_listening, self._note)
            stack.enter_context(explained_misses())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _note(self, event: str, duration_secs: float, **details: str | int) -> None:
        stage, thread = DURATIONS.get(event), threading.get_ident()
        if stage is None:
            return
        # jax names the stages of a function f: f, jit(f), jit(f).
        name = str(details.get("fun_name", ""))
        name = name.removesuffix(")").rpartition("(")[2]
        caller = _caller()
        # jax.eval_shape and others trace without a compile, so a trace belongs to the
        # compile only if the same call of jax made both.
        trace = lower = None
        for earlier in [*self._stages]:
            if stage != "trace" and (earlier.name, earlier.thread) == (name, thread):
                self._stages.remove(earlier)
                if earlier.stage == "lower":
                    lower = earlier
                elif earlier.caller == caller:
                    trace = earlier
        if stage != "compile":
            message = ""
            if stage == "trace" and self in _LOGS.entered:
                message = self._explanation(name)
            self._stages.append(
                _Stage(stage, name, duration_secs, thread, caller, message, trace)
            )
            return
        # The call of `.compile()` follows the call of `.lower(...)`.
        if lower is not None:
            trace = lower.trace
        compile = Compile(
            name,
            trace.seconds if trace else 0.0,
            lower.seconds if lower else 0.0,
            duration_secs,
            miss_reason(trace.message) if trace else "not traced",
            trace.message if trace else "",
            threading.current_thread().name,
        )
        self._compiles.append(compile)

    def _explanation(self, name: str) -> str:
        """Takes jax's explanation of the trace that has just ended."""
        for message in reversed(self.explanations):
            if f" {name} " in message:
                self.explanations.remove(message)
                return message
        return ""

    @overload
    def __getitem__(self, index: int) -> Compile: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Compile, ...]: ...
    def __getitem__(self, index: int | slice) -> Compile | tuple[Compile, ...]:
        return tuple(self._compiles)[index]

    def __len__(self) -> int:
        return len(self._compiles)

    def _text_(self) -> str:
        return "\n".join(map(str, self)) or str(NeverCompiled(""))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any:
        return {"text/plain": self._text_()}


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
    counts: dict[str, int] = dict.fromkeys(STAGES, 0)
    error, thread = "", threading.get_ident()

    def note(event: str, duration_secs: float, **details: str | int) -> None:
        # A background thread may be making a plan.
        if event in DURATIONS and threading.get_ident() == thread:
            counts[DURATIONS[event]] += 1

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        jax.block_until_ready(jitted(*values))
    except Exception as raised:  # noqa: BLE001  a user's function may raise anything
        error = failure("run", raised).message
    finally:
        stop_listening(note)
    return MeshCall(counts, error)


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
