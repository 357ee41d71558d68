"""Notifies listeners of calls of a few functions, without changing these functions.

Python itself reports the calls, so it doesn't matter under which name a function was
imported. Python 3.12 and later have `sys.monitoring`, which watches single code objects
at almost no cost. `sys.monitoring` reports the calls of all threads, so shardviz passes
to a listener only the calls of its own thread. Python 3.11 has the profiler hook,
`sys.setprofile`, which reports every call of a thread. While a profiler uses that hook,
calls cannot be watched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

from shardviz.base.errors import ProgramError
from shardviz.programs.notes import CannotWatch, RecordingFailed

_T = TypeVar("_T")


class CallRefused(ProgramError):
    """Raised by a listener to prevent a call. The caller receives the error."""


class CallListener:
    """Base class of listeners for calls of a few functions. Methods must be fast."""

    def watched(self) -> Mapping[str, CodeType]:
        """Returns the functions' code objects, by the listener's name for each."""
        return {}

    def started(self, frame: FrameType, name: str, arguments: Sequence[object]) -> None:
        """Called when a watched function begins.

        Args:
            frame: the call's frame, which is on the stack until the function ends.
            name: the function's name, as in `watched`.
            arguments: one value per parameter, in order.

        Raises:
            CallRefused: if the function must not run.
        """

    def returned(self, frame: FrameType, value: object) -> None:
        """Called when a watched function returns a value, but not when it raises."""

    def unseen(self, words: str) -> None:
        """Called with the reason if calls can no longer be watched."""


def watched(run: Callable[[], _T], listeners: Sequence[CallListener]) -> _T:
    """Calls `run`, and notifies listeners of calls that this thread makes meanwhile.

    Args:
        run: the function to call.
        listeners: the listeners; no two of them may watch the same function.

    >>> def double(x, times=1):
    ...     return 2 * x * times
    >>> class Names(CallListener):
    ...     def watched(self):
    ...         return {"double": double.__code__}
    ...     def started(self, frame, name, arguments):
    ...         print(name, arguments)
    >>> alias = double
    >>> watched(lambda: alias(4), [Names()])
    double [4, 1]
    8
    """
    watch = _Watch(listeners)
    if not watch.by_code:
        return run()
    if hasattr(sys, "monitoring"):
        return _monitored(run, watch)
    return _profiled(run, watch)


class _Watch:
    """The state of one call of `watched`."""

    def __init__(self, listeners: Sequence[CallListener]) -> None:
        self.listeners = listeners
        self.thread = threading.get_ident()
        self.codes: list[CodeType] = []
        # Keyed by id, because hashing a code object reads all of it every time.
        self.by_code: dict[int, tuple[CallListener, str]] = {}
        for listener in listeners:
            for name, code in listener.watched().items():
                self.codes.append(code)
                self.by_code[id(code)] = listener, name

    def started(self, frame: FrameType) -> None:
        code = frame.f_code
        listener, name = self.by_code.get(id(code), (None, ""))
        if listener is None:
            return
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = frame.f_locals
        try:
            listener.started(frame, name, [values[name] for name in parameters])
        except CallRefused:
            raise
        except Exception as error:  # noqa: BLE001  must not reach the user's function
            self._broken(listener, error)

    def returned(self, frame: FrameType, value: object) -> None:
        listener, _ = self.by_code.get(id(frame.f_code), (None, ""))
        if listener is None:
            return
        try:
            listener.returned(frame, value)
        except Exception as error:  # noqa: BLE001  must not reach the user's function
            self._broken(listener, error)

    def _broken(self, listener: CallListener, error: Exception) -> None:
        """Removes a listener that failed. The watched function continues."""
        for key in [k for k, entry in self.by_code.items() if entry[0] is listener]:
            del self.by_code[key]
        listener.unseen(str(RecordingFailed(f"{type(error).__name__}: {error}")))

    def unseen(self) -> None:
        """Notifies the listeners that a profiler or debugger uses Python's hook."""
        for listener in self.listeners:
            listener.unseen(str(CannotWatch()))


def _profiled(run: Callable[[], _T], watch: _Watch) -> _T:
    """Watches calls with the profiler hook, on Python 3.11."""
    by_code = watch.by_code
    running = set[int]()  # ids of the frames of watched functions

    # Python calls this twice for every function, and for those written in C, so others
    # must cost almost nothing. Reading a frame's code takes longest.
    def profile(frame: FrameType, event: str, value: object) -> None:
        if event == "call":
            if id(frame.f_code) in by_code:
                running.add(id(frame))
                watch.started(frame)
        elif running and event == "return" and id(frame) in running:
            running.remove(id(frame))
            # None only if the function raised: no watched function returns None.
            if value is not None:
                watch.returned(frame, value)

    before = sys.getprofile()
    # Our own hook is already set if a plan is made while another plan is traced. It is
    # restored afterwards.
    ours = getattr(before, "__code__", None) is profile.__code__
    if before is not None and not ours:
        watch.unseen()
        return run()
    try:
        sys.setprofile(profile)
        result = run()
        if sys.getprofile() is not profile:
            watch.unseen()
        return result
    finally:
        # This must be the first statement, because an interrupt may be raised before
        # the next call.
        sys.setprofile(before)


_lock = threading.Lock()
# Watches of all threads. A thread's innermost watch is last.
_watches: list[_Watch] = []
# Code objects with events turned on.
_codes: list[CodeType] = []
_TOOL = "shardviz"
# Tool ids of `sys.monitoring`, in order of preference. Python assigns no purpose to 3
# and 4.
_IDS = (3, 4, 5, 1, 2, 0)


def _monitored(run: Callable[[], _T], watch: _Watch) -> _T:
    """Watches calls with `sys.monitoring` (Python 3.12+); all threads share one tool."""
    try:
        with _lock:
            begun = _begin(watch)
        if not begun:
            watch.unseen()
        return run()
    finally:
        # Called twice, because an interrupt may abort the first call. After a complete
        # first call, the second call does nothing.
        try:
            _end(watch)
        finally:
            _end(watch)


def _tool_id(name: str | None) -> int | None:
    """Returns the id of the tool with this name; for None, the first free id."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    return next((i for i in _IDS if monitoring.get_tool(i) == name), None)


def _begin(watch: _Watch) -> bool:
    """Starts a watch; returns False if all tool ids are in use."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    events = monitoring.events
    # Looked up by name, to reuse a tool that an interrupted call left registered.
    tool = _tool_id(_TOOL)
    if tool is None:
        tool = _tool_id(None)
        if tool is None:
            return False
        monitoring.use_tool_id(tool, _TOOL)
    _watches.append(watch)
    monitoring.register_callback(tool, events.PY_START, _at_start)
    monitoring.register_callback(tool, events.PY_RETURN, _at_return)
    for code in watch.codes:
        _codes.append(code)
        monitoring.set_local_events(tool, code, events.PY_START | events.PY_RETURN)
    return True


def _end(watch: _Watch) -> None:
    """Ends a watch; the last one frees the tool. May be interrupted and repeated."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    with _lock:
        if watch in _watches:
            _watches.remove(watch)
        tool = _tool_id(_TOOL)
        if _watches or tool is None:
            return
        for code in _codes:
            monitoring.set_local_events(tool, code, 0)
        _codes.clear()
        for event in (monitoring.events.PY_START, monitoring.events.PY_RETURN):
            monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


def _watch_here() -> _Watch | None:
    """Returns the innermost watch of this thread."""
    thread = threading.get_ident()
    return next((w for w in reversed(_watches.copy()) if w.thread == thread), None)


def _at_start(code: CodeType, offset: int) -> None:
    watch = _watch_here()
    if watch is not None:
        watch.started(sys._getframe(1))


def _at_return(code: CodeType, offset: int, value: object) -> None:
    watch = _watch_here()
    if watch is not None:
        watch.returned(sys._getframe(1), value)
