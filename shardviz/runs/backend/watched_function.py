"""Watch: a jitted function that lists its compiles and why each was needed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax
from jax.core import ShapedArray
from jax.sharding import Mesh, NamedSharding

from shardviz.base.backend.jax_compat import (
    JitSettings,
    concrete_mesh,
    entered_meshes,
    is_jitted,
    is_tracing,
    jit_cache_size,
    jit_settings,
    with_setting,
)
from shardviz.base.collective import sent_in_all
from shardviz.base.errors import ProgramError, RecompileError, ShardvizError
from shardviz.base.format import plural, shown
from shardviz.base.typing import PyTree, UserFunction
from shardviz.compiled.comparison import Comparison, compare
from shardviz.compiled.report import Report
from shardviz.plans.plan import Plan
from shardviz.programs.backend.arguments import parameter_names
from shardviz.programs.backend.bridge import check_axis_names
from shardviz.programs.backend.calls import is_of
from shardviz.programs.program import function_name
from shardviz.runs.backend.attribution import Arguments, Attribution, UnknownKey
from shardviz.runs.backend.device_memory import run_bytes
from shardviz.runs.backend.listening import DURATIONS, stop_listening
from shardviz.runs.backend.read_compiled import report_of
from shardviz.runs.backend.signature import (
    Signature,
    SplitCall,
    call_key,
    differences,
    is_equivalent,
    nearest,
    signature_of,
    split_call,
)
from shardviz.runs.recompiles import (
    AlreadyCompiled,
    CachesCleared,
    CompiledAgain,
    CompiledBefore,
    Difference,
    Miss,
    NeverCompiled,
    NewFunction,
    NewSignature,
    SignatureRow,
    Unexplained,
    WatchedAgain,
    WatchTable,
)

_Error = TypeVar("_Error", bound=Exception)
# Failed traces kept for other threads, and for how many seconds. A thread that calls at
# the same time as the others may run only after the failure.
_MOST_FAILURES, _FAILURE_SECONDS = 16, 2.0
# Earlier signatures with which a new one is compared.
_MOST_COMPARED = 64
# Settings under which jax finds an executable again, besides the meshes.
_SETTINGS = ("enable_x64", "default_matmul_precision", "numpy_dtype_promotion")
# Code of a function -> hash of each signature compiled for it -> returns the function
# object, or None if it no longer exists. It keeps neither code nor functions alive.
_COMPILED: weakref.WeakKeyDictionary[
    types.CodeType, dict[int, Callable[[], object]]
] = weakref.WeakKeyDictionary()

#: Plans a jitted function with these arguments and keyword arguments.
Planner = Callable[[UserFunction, tuple[PyTree, ...], dict[str, PyTree]], Plan]


@dataclass(slots=True)
class _Call:
    """A call in progress.

    Attributes:
        args, kwargs: the arguments of the call.
        failures: number of failed traces before the call.
        size: number of signatures that jax had cached before the call.
        events: the stages that jax ran in the call: the stage, jax's name, the seconds.
        is_traced: whether jax has begun to trace the function.
        before_trace_ended: number of events before that trace ended.
    """

    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]
    failures: int
    size: int
    events: list[tuple[str, str, float]] = field(default_factory=list)
    is_traced: bool = False
    before_trace_ended: int = 0


@dataclass(slots=True)
class _Failure:
    """A failed trace, with a copy of its error and the threads that got it."""

    number: int
    error: Exception
    at: float
    threads: set[int]

    def reaches(self, call: _Call) -> bool:
        """Whether a call in this thread waited for the trace that failed."""
        is_recent = time.monotonic() - self.at < _FAILURE_SECONDS
        is_new = is_recent and threading.get_ident() not in self.threads
        return is_new or self.number > call.failures


class _Current(threading.local):
    """The innermost watched call of each thread."""

    call: _Call | None = None

    def note(self, event: str, duration_secs: float, **details: str | int) -> None:
        """Adds a stage that jax has run to the call of this thread."""
        stage = DURATIONS.get(event)
        if self.call is not None and stage is not None:
            name = str(details.get("fun_name", ""))
            self.call.events.append((stage, name, duration_secs))


class WatchedSignature:
    """A signature with which a watched function was called.

    Attributes:
        entry: number of the signature, counted from 1.
        signature: the arguments, as short text.
        calls: number of calls.
        compiles: number of compiles; 0 if jax already had the executable.
        trace_s: seconds to trace and lower.
        compile_s: seconds to compile.
        latest_miss: how the signature, when last compiled, differs from earlier ones;
            also if jax already had the executable.

    >>> import shardviz as sv
    >>> watched = sv.watch(lambda x: x + 1)
    >>> results = watched(1), watched(2), watched(2.5)
    >>> [(entry.calls, entry.signature) for entry in watched.entries]
    [(2, '(x: weak int32[])'), (1, '(x: weak float32[])')]
    """

    def __init__(
        self, watch: Watch, arguments: Arguments, split: SplitCall, miss: Miss
    ) -> None:
        self._jitted, self._planner = watch.jitted, watch.planner
        self._filters = watch._filters
        self._before = watch.entries[-1] if watch.entries else None
        self._args, self._kwargs = _abstract(arguments, split)
        self._meshes = concrete_mesh(), entered_meshes() or ()
        self._settings = {
            name: getattr(jax.config, f"jax_{name}") for name in _SETTINGS
        }
        self.entry, self.signature = miss.entry, miss.signature
        self.latest_miss = miss
        self.calls = self.compiles = 0
        self.trace_s = self.compile_s = 0.0

    @property
    def miss(self) -> Miss:
        """Why jax compiled a call with this signature, or that it compiled none."""
        miss = self.latest_miss
        if self.compiles:
            return miss
        return AlreadyCompiled(miss.function, miss.signature, miss.entry)

    @property
    def difference(self) -> tuple[Difference, ...]:
        """Why jax compiled the call, as differences from the nearest earlier entry."""
        return self.latest_miss.differences

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[None]:
        """A context with the meshes and settings of the call."""
        mesh, entered = self._meshes
        with contextlib.ExitStack() as stack:
            for name, value in self._settings.items():
                stack.enter_context(with_setting(name, value))
            for legacy_mesh in entered:
                stack.enter_context(legacy_mesh)
            if mesh is not None and not mesh.empty:
                stack.enter_context(jax.set_mesh(mesh))
            yield

    @functools.cached_property
    def report(self) -> Report:
        """The Report of the executable; read from jax when first used.

        Raises:
            ShardvizError: if the executable cannot be read.
        """
        if self._filters:
            # It would compile a program in which the shapes are static values.
            raise ProgramError(
                "A watched equinox.filter_jit has no reports, because it lowers only"
                " arrays, and sv.watch keeps none. Call sv.compile with the arrays."
            )
        with self._surroundings():
            # jax returns the executable that it has, without compiling again.
            lowered = self._jitted.lower(*self._args, **self._kwargs)
            compiled = lowered.compile()
        # Flax wraps jax's Compiled in a class of its own.
        return report_of(getattr(compiled, "compiled", compiled))

    @functools.cached_property
    def plan(self) -> Plan:
        """The Plan of the function with these arguments; made when first used."""
        with self._surroundings():
            return self._planner(self._jitted, self._args, self._kwargs)

    @property
    def comparison(self) -> Comparison | None:
        """The collectives compared with the previous entry's; None for the first."""
        if self._before is None:
            return None
        before, after = self._before.report.collectives, self.report.collectives
        numbers = f"entry {self._before.entry}", f"entry {self.entry}"
        return compare(before or (), after or (), numbers)

    def row(self) -> SignatureRow:
        """Returns the facts of a row of the table; reads the reports."""
        row = SignatureRow(
            self.entry, self.signature, self.calls, self.compiles,
            self.trace_s + self.compile_s, self.difference,
        )  # fmt: skip
        if not self.compiles:
            return row
        try:
            report, comparison = self.report, self.comparison
        # A table without these columns is more useful than an error.
        except (ShardvizError, ValueError, TypeError, RuntimeError):
            return row
        collectives = report.collectives or ()
        return replace(
            row,
            collectives=len(collectives),
            sent_bytes=sent_in_all(collectives),
            peak_bytes=run_bytes(report.memory),
            comparison=comparison,
        )

    def __repr__(self) -> str:
        return f"WatchedSignature({self.entry}: {self.signature}, {plural(self.calls, 'call')})"


class Watch:
    """A function jitted by `sv.watch`, with a row for each signature of its calls.

    Calls go to the function that `jax.jit` returns. A call in which jax compiled
    nothing costs a few microseconds more than without Watch.

    >>> import numpy as np, shardviz as sv
    >>> double = sv.watch(lambda x: x * 2)
    >>> [float(double(np.float32(n))) for n in (1, 2)], double.cache_size()
    ([2.0, 4.0], 1)
    >>> result = double(np.int32(1))
    >>> double.entries[-1].difference
    (ArrayChanged(name='x', aspect='dtype', before='float32', after='int32'),)
    """

    def __init__(
        self,
        fn: UserFunction,
        recompiles: str,
        options: dict[str, Any],
        planner: Planner,
        show: Callable[[Watch], None],
    ) -> None:
        if recompiles not in ("allow", "error"):
            raise ProgramError(
                f"sv.watch takes recompiles='allow' or 'error'; got {shown(recompiles)}."
            )
        functools.update_wrapper(self, fn, updated=())
        self.name = function_name(fn)
        self.planner, self._show = planner, show
        self._fn, self._is_strict = fn, recompiles == "error"
        self._current = _Current()
        # The user's own jitted function is called unchanged, so jax may already have
        # executables of it, for signatures that this Watch has not seen.
        self._is_shared = not options and hasattr(fn, "lower")
        self.jitted = fn if self._is_shared else self._jit(fn, options)
        self.settings = jit_settings(self.jitted) or JitSettings()
        self._filters = is_of(self.jitted, "equinox", "_JitWrapper")
        self._cache_size = jit_cache_size(self.jitted) or (lambda: 0)
        self._size = self._cache_size()
        self._unseen = self._size
        # Keys of the signatures whose executables jax has removed from its cache.
        self._cleared: set[Hashable] = set()
        # Whether each call must be compared with all entries in full.
        self._compares_all = self._unseen > 0 or not is_jitted(self.jitted)
        self._running: dict[int, _Call] = {}
        self._names = functools.cache(functools.partial(parameter_names, fn))
        self._lock = threading.RLock()
        self._signatures: dict[Hashable, tuple[Signature, WatchedSignature]] = {}
        self._only: WatchedSignature | None = None
        self._attribution: Attribution[WatchedSignature] | None = None
        self._failures: OrderedDict[Hashable, _Failure] = OrderedDict()
        self._failure_count = 0
        self._latest: Miss | None = None
        jax.monitoring.register_event_duration_secs_listener(self._current.note)
        weakref.finalize(self, stop_listening, self._current.note).atexit = False

    def _jit(self, fn: UserFunction, options: dict[str, Any]) -> Any:
        """Jits a function that first asks this Watch whether jax may trace it."""
        jax.jit(fn, **options)  # raises jax's errors about `fn`
        watching, current = weakref.ref(self), self._current

        @functools.wraps(fn, updated=())
        def traced(*args: PyTree, **kwargs: PyTree) -> PyTree:
            call, watch = current.call, watching()
            if call is None or watch is None or call.is_traced:
                return fn(*args, **kwargs)
            call.is_traced = True
            watch._before_trace(call)
            try:
                return fn(*args, **kwargs)
            except Exception as error:
                watch._keep_failure(call, error)
                raise
            finally:
                call.before_trace_ended = len(call.events)

        traced.__name__ = self.name
        return jax.jit(traced, **options)

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Calls the jitted function, and counts the call."""
        # A transformation compiles what contains the function, and not the function.
        if is_tracing() or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self.jitted(*args, **kwargs)
        current = self._current
        outer, size = current.call, self._cache_size()
        call = _Call(args, kwargs, self._failure_count, size)
        if not self._signatures:
            _check_axis_names(call)
        current.call = self._running[id(call)] = call
        try:
            try:
                result = self.jitted(*args, **kwargs)
            except BaseException:
                # jax may have failed only when it ran the executable.
                is_known = call_key(self._split(call)) in self._signatures
                if is_known or "compile" in self._seconds(call):
                    self._note(call)
                raise
            finally:
                current.call = outer
            is_same_size = size == self._size == self._cache_size()
            miss = None
            if call.events or self._compares_all or not is_same_size:
                miss = self._note(call)
            else:
                self._count(call)
        finally:
            del self._running[id(call)]
        if self._is_strict and miss is not None:
            raise RecompileError(miss)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Binds a decorated method to its instance, as for a plain function.
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        # `.lower`, `.trace` and others of the jitted function, then the user's own.
        if name.startswith("__") or "jitted" not in vars(self):
            raise AttributeError(name)
        return getattr(self.jitted, name, None) or getattr(self._fn, name)

    def _before_trace(self, call: _Call) -> None:
        """Raises the error of a compile that this call waited for, or of strict mode."""
        split = self._split(call)
        key = call_key(split)
        failure = self._failures.get(key)
        if failure is not None and failure.reaches(call):
            failure.threads.add(threading.get_ident())
            raise _copied(failure.error)
        _check_axis_names(call)
        if self._is_strict and self._latest is not None and key is not None:
            with self._lock:
                miss = self._miss(key, signature_of(split), call)
            raise RecompileError(replace(miss, refused=True))

    def _keep_failure(self, call: _Call, error: Exception) -> None:
        with self._lock:
            self._failure_count += 1
            self._failures[call_key(self._split(call))] = _Failure(
                self._failure_count,
                _copied(error),
                time.monotonic(),
                {threading.get_ident()},
            )
            while len(self._failures) > _MOST_FAILURES:
                self._failures.popitem(last=False)

    def _split(self, call: _Call) -> SplitCall:
        names, filters = self._names(len(call.args)), self._filters
        return split_call(names, call.args, call.kwargs, self.settings, filters)

    def _arguments(self, call: _Call) -> Arguments:
        return Arguments(self._names(len(call.args)), call.args, call.kwargs)

    def _count(self, call: _Call) -> None:
        """Counts a call that compiled nothing, so it has the signature of an entry."""
        entry = self._only
        if entry is None and self._attribution is not None:
            entry = self._attribution.row_of(self._arguments(call))
        if entry is None:
            self._note(call)
            return
        with self._lock:
            entry.calls += 1

    def _note(self, call: _Call) -> Miss | None:
        """Compares a call with all entries, and adds an entry if none matches.

        Returns:
            Why jax compiled this call; None if it didn't, or if this is the first.
        """
        seconds = self._seconds(call)
        split = self._split(call)
        key = call_key(split)
        if key is None:
            return None
        with self._lock:
            if call.size < self._size:
                self._cleared.update(self._signatures)
            # Calls outside this Watch have compiled the function, too.
            if self._is_shared and call.size > self._size:
                self._unseen += call.size - self._size
            is_first, is_new = self._latest is None, key not in self._signatures
            # Only a compile needs the signature; most calls come here without one.
            if is_new or "compile" in seconds:
                signature = signature_of(split)
            if is_new:
                entry = None if "compile" in seconds else self._equivalent(signature)
                if entry is None:
                    miss = self._miss(key, signature, call)
                    entry = WatchedSignature(self, self._arguments(call), split, miss)
                self._add(key, signature, entry)
            _, entry = self._signatures[key]
            entry.calls += 1
            if "compile" in seconds:
                # A thread that waited for this compile may have added the entry.
                if entry.compiles:
                    entry.latest_miss = self._miss(key, signature, call)
                miss = self._latest = entry.latest_miss
                entry.compiles += 1
                entry.trace_s += seconds.get("trace", 0.0) + seconds.get("lower", 0.0)
                entry.compile_s += seconds["compile"]
                self._cleared.discard(key)
                code = _code_of(self._fn)
                if code is not None:
                    compiled = _COMPILED.setdefault(code, {})
                    compiled[_signature_hash(signature)] = _weak(_unjitted(self._fn))
            size = self._cache_size()
            if is_new and "compile" not in seconds and size == call.size:
                self._unseen = max(0, self._unseen - 1)
            # Other threads read the size first, so it must change last.
            self._compares_all = (
                self._unseen > 0
                or not is_jitted(self.jitted)
                or self._lacks_entries(call, size)
            )
            self._size = size
        return None if is_first or "compile" not in seconds else miss

    def _add(
        self, key: Hashable, signature: Signature, entry: WatchedSignature
    ) -> None:
        self._signatures[key] = signature, entry
        self._only = entry if self.cache_size() == 1 else None
        with contextlib.suppress(UnknownKey):
            self._attribution = None
            self._attribution = Attribution([*self._signatures.values()])

    def _lacks_entries(self, noted: _Call, size: int) -> bool:
        """Whether another thread may have compiled a signature without an entry yet."""
        others = [call for call in [*self._running.values()] if call is not noted]
        return any(call.size < size for call in others)

    def _equivalent(self, signature: Signature) -> WatchedSignature | None:
        """Returns the entry with the same shardings, written in another form."""
        recent = [*self._signatures.values()][-_MOST_COMPARED:]
        for earlier, entry in recent:
            if is_equivalent(signature, earlier):
                return entry
        return None

    def _seconds(self, call: _Call) -> dict[str, float]:
        """Returns the seconds of each stage that jax ran for this function.

        Other functions may compile in the call too, such as for a constant or in a
        callback, even if they have the same name.
        """
        events = call.events
        if not is_jitted(self.jitted):
            # Libraries such as flax choose other names for jax.
            return {stage: seconds for stage, _, seconds in events}
        names = self.name, f"jit({self.name})"
        events = [
            event for event in events[call.before_trace_ended :] if event[1] in names
        ]
        if self._is_shared:
            # jax doesn't report which of several functions with this name it traces. It
            # caches no call with a Ref, so without other calls the cache is empty.
            if 0 < call.size == self._cache_size():
                return {}
            return {stage: seconds for stage, _, seconds in events}
        if not call.is_traced and call.size == self._cache_size():
            # So any function that was traced is another one.
            events = [*_without_traced(events)]
        seconds: dict[str, float] = {}
        for stage, _, duration in events:
            # After the function has been compiled, only callbacks compile others.
            if "compile" not in seconds:
                seconds[stage] = duration
        return seconds

    def _miss(self, key: Hashable, signature: Signature, call: _Call) -> Miss:
        """Returns why a call has to compile."""
        text = str(signature)
        if key in self._signatures:
            earlier, entry = self._signatures[key]
            # The key has no memory layouts.
            changes = differences(signature, earlier)
            if not changes:
                is_cleared = call.size < self._size or key in self._cleared
                changes = (CachesCleared() if is_cleared else Unexplained(),)
            return CompiledAgain(self.name, text, entry.entry, changes)
        number = self.cache_size() + 1
        recent = [*self._signatures.values()][-_MOST_COMPARED:]
        closest = nearest(signature, [earlier for earlier, _ in recent])
        if closest is not None:
            index, changes = closest
            near = recent[index][1].entry
            changes = changes or (Unexplained(),)
            return NewSignature(self.name, text, number, changes, near)
        code = _code_of(self._fn)
        compiled = {} if code is None else _COMPILED.get(code, {})
        earlier_function = compiled.get(_signature_hash(signature))
        if earlier_function is not None:
            is_same = earlier_function() == _unjitted(self._fn)
            reason = WatchedAgain if is_same else NewFunction
            return Miss(self.name, text, number, (reason(self.name),))
        return Miss(self.name, text, number)

    @property
    def entries(self) -> tuple[WatchedSignature, ...]:
        """The signatures of all calls, in the order of their first call."""
        with self._lock:
            # Several signatures can have one entry, such as P("x") and P("x", None).
            return tuple(dict.fromkeys(e for _, e in self._signatures.values()))

    def cache_size(self) -> int:
        """Returns the number of signatures."""
        return len(self.entries)

    def explain_miss(self) -> str:
        """Explains in one sentence why the latest compile was needed."""
        if self._latest is None and self.entries:
            return str(CompiledBefore(self.name))
        return str(self._latest or NeverCompiled(self.name))

    def table(self) -> WatchTable:
        """Returns the rows that a notebook shows; reads the reports of new rows."""
        return WatchTable(self.name, tuple(entry.row() for entry in self.entries))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Any:
        return self.table()._repr_mimebundle_(include, exclude)

    def _ipython_display_(self) -> None:
        self._show(self)

    def __repr__(self) -> str:
        calls = sum(entry.calls for entry in self.entries)
        signatures = plural(self.cache_size(), "signature")
        return f"Watch({self.name}: {signatures}, {plural(calls, 'call')})"


def _code_of(fn: Any) -> types.CodeType | None:
    """The code of a function, also of one that is jitted or in a partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _signature_hash(signature: Signature) -> int:
    """Differs for other devices and settings, too, which the text leaves out."""
    settings, leaves = signature.settings.values(), signature.leaves.values()
    return hash((str(signature), *settings, *leaves))


def _unjitted(fn: Any) -> Any:
    """The function in `jax.jit`, because every `jax.jit` of it is another object."""
    while is_jitted(fn):
        fn = fn.__wrapped__
    return fn


def _weak(fn: Any) -> Callable[[], object]:
    """Returns a function that returns `fn`, or None if it no longer exists."""
    if isinstance(fn, types.MethodType):
        return weakref.WeakMethod(fn)
    try:
        return weakref.ref(fn)
    except TypeError:
        return lambda: None


def _without_traced(
    events: list[tuple[str, str, float]],
) -> Iterator[tuple[str, str, float]]:
    """Yields the stages of compiles that did not need a trace."""
    pending: list[tuple[str, str, float]] = []
    for event in events:
        pending.append(event)
        if event[0] == "compile":
            if "trace" not in [stage for stage, _, _ in pending]:
                yield from pending
            pending = []


def _check_axis_names(call: _Call) -> None:
    """Refuses names of mesh axes that would make the compiler abort the process."""
    for leaf in jax.tree.leaves((call.args, call.kwargs)):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            check_axis_names(sharding.mesh.axis_names)


def _abstract(
    call: Arguments, split: SplitCall
) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
    """Replaces the arrays in a call's arguments by their shapes, types and shardings."""

    def abstract(leaf: Any) -> Any:
        try:
            aval = jax.typeof(leaf)
        except TypeError:
            return leaf
        if not isinstance(aval, ShapedArray):  # a Ref
            return leaf
        committed = getattr(leaf, "committed", False)
        sharding = leaf.sharding if committed else None
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type
        )

    args = tuple(
        value if name in split.statics else jax.tree.map(abstract, value)
        for name, value in zip(call.names, call.args, strict=True)
    )
    kwargs = {
        name: jax.tree.map(abstract, value) if name in split.kwargs else value
        for name, value in call.kwargs.items()
    }
    return args, kwargs


def _copied(error: _Error) -> _Error:
    """Copies an error without its traceback, to store or raise the copy.

    If many threads raised the same exception object, it would collect all their
    tracebacks and keep the arrays in their frames alive.
    """
    # Don't call the class: constructors of jax's errors take a tracer, which the errors
    # don't store.
    copied = type(error).__new__(type(error), *error.args)
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__notes__ = list(getattr(error, "__notes__", ()))
    return copied
