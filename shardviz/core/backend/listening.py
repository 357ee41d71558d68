"""Listens to jax: what it traces, lowers and compiles, and who calls some functions.

`jax_cache_events` counts what jax does in all threads. jax records an event when it does the work,
and none when it finds the result in a cache.

`watched_calls` says who calls some functions, in this thread, under whatever name they have there.
Python 3.12 and later tell of the calls of one code object (`sys.monitoring`), which costs next to
nothing and changes no function. Python 3.11 could tell of all calls there are (`sys.setprofile`),
which makes tracing a model of flax 2.5 times as slow, and one profiler ends another. So there the
code object of a watched function is another one meanwhile, which calls the first. Threads share
what is installed, and the last one to end takes it away.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

import jax

from shardviz.core.errors import ProgramError
from shardviz.core.format import plural

_DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_COUNTS = {
    "/jax/compilation_cache/cache_hits": "found on disk",
    "/jax/compilation_cache/cache_misses": "not found on disk",
}


@dataclass(frozen=True)
class JaxEvent:
    """One trace, lowering or compile whose result was in no cache of jax.

    Attributes:
        kind: `"trace"`, `"lower"`, `"compile"`; or, of the compilation cache on disk,
            `"found on disk"` and `"not found on disk"`.
        name: the function, as jax calls it; empty where it does not say.
        seconds: how long it took, nested events included.
        thread: the name of the thread that did it.

    >>> JaxEvent("trace", "matmul", 0.25, "MainThread").kind
    'trace'
    """

    kind: str
    name: str
    seconds: float
    thread: str


class JaxCacheEvents:
    """The events since counting began, of all threads, in order.

    >>> with jax_cache_events() as events:
    ...     function = jax.jit(lambda x: -x)
    ...     results = function(1.0), function(2.0)
    >>> events.traces, events.lowerings, events.compiles
    (1, 1, 1)
    """

    def __init__(self) -> None:
        self._events: list[JaxEvent] = []

    @property
    def events(self) -> tuple[JaxEvent, ...]:
        """All of them."""
        return tuple(self._events)

    @property
    def traces(self) -> int:
        """How many functions were traced, the jitted ones inside others too."""
        return self.count("trace")

    @property
    def lowerings(self) -> int:
        """How many were lowered to StableHLO."""
        return self.count("lower")

    @property
    def compiles(self) -> int:
        """How often the compiler was asked; one read from disk counts as well."""
        return self.count("compile")

    def count(self, kind: str, name: str | None = None) -> int:
        """How many events of a kind, of one function where it is named."""
        return sum(e.kind == kind and name in (None, e.name) for e in self.events)

    def __repr__(self) -> str:
        counts = (
            plural(self.traces, "trace"),
            plural(self.lowerings, "lowering"),
            plural(self.compiles, "compile"),
        )
        return f"JaxCacheEvents({', '.join(counts)})"

    def _duration(self, event: str, seconds: float, **details: str | int) -> None:
        if kind := _DURATIONS.get(event):
            name = str(details.get("fun_name", ""))
            self._events.append(JaxEvent(kind, name, seconds, threading.current_thread().name))

    def _count(self, event: str, **_: str | int) -> None:
        if kind := _COUNTS.get(event):
            self._events.append(JaxEvent(kind, "", 0.0, threading.current_thread().name))


@contextmanager
def jax_cache_events() -> Iterator[JaxCacheEvents]:
    """Counts the tracings, lowerings and compiles of jax within a `with` block, in all threads.

    Raises:
        ProgramError: where this version of jax has no way to listen.

    >>> with jax_cache_events() as events:
    ...     pass
    >>> events
    JaxCacheEvents(0 traces, 0 lowerings, 0 compiles)
    """
    monitoring = getattr(jax, "monitoring", None)
    needed = (
        "register_event_duration_secs_listener",
        "unregister_event_duration_listener",
        "register_event_listener",
        "unregister_event_listener",
    )
    missing = [name for name in needed if not hasattr(monitoring, name)]
    if monitoring is None or missing:
        raise ProgramError(
            f"jax {jax.__version__} does not report what its caches do: jax.monitoring has no"
            f" {missing[0]}. jax 0.10 to 0.12 have it."
        )
    found = JaxCacheEvents()
    monitoring.register_event_duration_secs_listener(found._duration)
    monitoring.register_event_listener(found._count)
    try:
        yield found
    finally:
        monitoring.unregister_event_duration_listener(found._duration)
        monitoring.unregister_event_listener(found._count)


class CallListener:
    """What hears of the calls of watched functions; none of its methods may take long."""

    def started(self, frame: FrameType, fn: FunctionType, arguments: list[Any]) -> None:
        """A function begins.

        Args:
            frame: stands for this call; it is on the stack until the function ends.
            fn: the function.
            arguments: one value per parameter, in order.
        """

    def returned(self, frame: FrameType, value: Any) -> None:
        """A function returns a value."""

    def broken(self, error: Exception) -> None:
        """A method of the listener raised this; the function that is watched goes on."""


@contextlib.contextmanager
def watched_calls(functions: Sequence[FunctionType], listener: CallListener) -> Iterator[str]:
    """Watches the calls of some functions that this thread makes within the `with` block.

    Where an exception leaves a function, no more is heard of that call.

    Args:
        functions: functions that are written in Python.
        listener: what hears of their calls.

    Yields:
        Why they cannot be watched, in a sentence, or `""`.

    >>> class Names(CallListener):
    ...     def started(self, frame, fn, arguments):
    ...         print(fn.__name__, arguments)
    >>> def double(x, times=1):
    ...     return 2 * x * times
    >>> alias = double
    >>> with watched_calls([double], Names()):
    ...     alias(4)
    double [4, 1]
    8
    """
    if words := _watch.enter(functions, listener):
        yield words
        return
    try:
        yield ""
    finally:
        _watch.leave()


class _Watch:
    """The functions that are watched now, by any thread, and who hears of them in each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, list[CallListener]] = {}  # by thread, the innermost last
        self._functions: dict[int, tuple[FunctionType, CodeType]] = {}

    def enter(self, functions: Sequence[FunctionType], listener: CallListener) -> str:
        """Begins to watch for this thread; why it cannot, or `""`."""
        with self._lock:
            if not self._listeners and (words := self._begin()):
                return words
            self._listeners.setdefault(threading.get_ident(), []).append(listener)
            for fn in functions:
                if id(fn) not in self._functions:
                    self._functions[id(fn)] = fn, fn.__code__
                    self._install(fn, fn.__code__)
        return ""

    def leave(self) -> None:
        """Ends it for this thread; for all functions when no other thread watches."""
        with self._lock:
            mine = self._listeners[threading.get_ident()]
            mine.pop()
            if not mine:
                del self._listeners[threading.get_ident()]
            if not self._listeners:
                for fn, code in self._functions.values():
                    self._remove(fn, code)
                self._functions = {}
                self._end()

    def _started(self, frame: FrameType, fn: FunctionType, arguments: Any) -> None:
        if mine := self._listeners.get(threading.get_ident()):
            try:
                mine[-1].started(frame, fn, arguments())
            except Exception as error:  # noqa: BLE001  it must not reach the watched function
                mine[-1].broken(error)

    def _returned(self, frame: FrameType, value: Any) -> None:
        if mine := self._listeners.get(threading.get_ident()):
            try:
                mine[-1].returned(frame, value)
            except Exception as error:  # noqa: BLE001  as above
                mine[-1].broken(error)

    def _begin(self) -> str:
        return ""

    def _end(self) -> None:
        pass

    def _install(self, fn: FunctionType, code: CodeType) -> None:
        raise NotImplementedError

    def _remove(self, fn: FunctionType, code: CodeType) -> None:
        raise NotImplementedError


class _Monitored(_Watch):
    """By one tool of `sys.monitoring`."""

    def __init__(self) -> None:
        super().__init__()
        self.tool = -1
        self._by_code: dict[int, FunctionType] = {}

    def _begin(self) -> str:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        # Those first for which Python names no use.
        free = [tool for tool in (3, 4, 5, 1, 2, 0) if monitoring.get_tool(tool) is None]
        if not free:
            return (
                "Calls cannot be watched: every tool of sys.monitoring is in use. End one, such as"
                " a debugger or a profiler."
            )
        self.tool, events = free[0], monitoring.events
        monitoring.use_tool_id(self.tool, "shardviz")
        monitoring.register_callback(self.tool, events.PY_START, self._at_start)
        monitoring.register_callback(self.tool, events.PY_RETURN, self._at_return)
        return ""

    def _end(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        for event in (monitoring.events.PY_START, monitoring.events.PY_RETURN):
            monitoring.register_callback(self.tool, event, None)
        monitoring.free_tool_id(self.tool)

    def _install(self, fn: FunctionType, code: CodeType) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        events = monitoring.events.PY_START | monitoring.events.PY_RETURN
        self._by_code[id(code)] = fn
        monitoring.set_local_events(self.tool, code, events)

    def _remove(self, fn: FunctionType, code: CodeType) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        monitoring.set_local_events(self.tool, code, 0)
        self._by_code.pop(id(code), None)

    def _at_start(self, code: CodeType, offset: int) -> None:
        frame, fn = sys._getframe(1), self._by_code.get(id(code))
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if fn is not None:
            self._started(frame, fn, lambda: [frame.f_locals[name] for name in names])

    def _at_return(self, code: CodeType, offset: int, value: Any) -> None:
        self._returned(sys._getframe(1), value)


class _Replaced(_Watch):
    """By another code object for each function, which calls the first."""

    def _install(self, fn: FunctionType, code: CodeType) -> None:
        own = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
        own.__kwdefaults__ = fn.__kwdefaults__
        signature = inspect.signature(own)

        def call(args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            def arguments() -> list[Any]:
                bound = signature.bind(*args, **keywords)
                bound.apply_defaults()
                return list(bound.arguments.values())

            frame = sys._getframe(1)
            self._started(frame, fn, arguments)
            value = own(*args, **keywords)
            self._returned(frame, value)
            return value

        consts = tuple(call if c == _CALLED else c for c in _CALLING.co_consts)
        fn.__code__ = _CALLING.replace(
            co_consts=consts,
            co_name=code.co_name,
            co_filename=code.co_filename,
            co_firstlineno=code.co_firstlineno,
        )

    def _remove(self, fn: FunctionType, code: CodeType) -> None:
        fn.__code__ = code


# Its global names would be looked for in the module of the watched function, so what it calls is
# put in the place of this constant.
_CALLED = "called"


def _calling(*args: Any, **keywords: Any) -> Any:
    return "called".__call__(args, keywords)  # type: ignore[operator]


_CALLING = _calling.__code__
_watch: _Watch = _Monitored() if hasattr(sys, "monitoring") else _Replaced()
