"""Sees the calls of a few functions while this thread runs something; changes none.

Python itself tells of them, under whatever name a function was imported. From Python
3.12 on `sys.monitoring` tells of single code objects, which costs next to nothing. It
does so for all threads, so each listener hears of those of its own thread. Python 3.11
has the hook of profilers, `sys.setprofile`, which hears of every call of a thread; while
a profiler uses it, calls cannot be seen.
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
    """Raised by a listener to refuse a call that begins; its caller receives it."""


class CallListener:
    """A listener for calls of a few functions. Its methods must be fast."""

    def watched(self) -> Mapping[str, CodeType]:
        """The code of the functions, by the name that the listener has for each."""
        return {}

    def started(self, frame: FrameType, name: str, arguments: Sequence[object]) -> None:
        """A function begins.

        Args:
            frame: stands for this call; it is on the stack until the function ends.
            name: the function's name among those that are watched.
            arguments: one value per parameter, in order.

        Raises:
            CallRefused: if the function must not be called.
        """

    def returned(self, frame: FrameType, value: object) -> None:
        """A function returns a value. Not called if it raises."""

    def unseen(self, words: str) -> None:
        """Calls cannot be seen, from now on at least, for this reason."""


def watched(run: Callable[[], _T], listeners: Sequence[CallListener]) -> _T:
    """Calls `run`; listeners are notified of calls that this thread makes meanwhile.

    Args:
        run: is called once.
        listeners: no two of them may watch the same function.

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
    """One use of `watched`."""

    def __init__(self, listeners: Sequence[CallListener]) -> None:
        self.listeners = listeners
        self.thread = threading.get_ident()
        self.codes: list[CodeType] = []
        # By id: the hash of a code object is computed from all of it, each time.
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
        except Exception as error:  # noqa: BLE001  it must not reach the function
            self._broken(listener, error)

    def returned(self, frame: FrameType, value: object) -> None:
        listener, _ = self.by_code.get(id(frame.f_code), (None, ""))
        if listener is None:
            return
        try:
            listener.returned(frame, value)
        except Exception as error:  # noqa: BLE001  as above
            self._broken(listener, error)

    def _broken(self, listener: CallListener, error: Exception) -> None:
        """Removes a listener that failed. The watched function goes on."""
        for key in [k for k, entry in self.by_code.items() if entry[0] is listener]:
            del self.by_code[key]
        listener.unseen(str(RecordingFailed(f"{type(error).__name__}: {error}")))

    def unseen(self) -> None:
        """Tells the listeners that a profiler or debugger is in the way."""
        for listener in self.listeners:
            listener.unseen(str(CannotWatch()))


def _profiled(run: Callable[[], _T], watch: _Watch) -> _T:
    """Python 3.11: by the hook for profilers."""
    by_code = watch.by_code

    # Python calls it for every function, so other functions must cost almost nothing.
    def profile(frame: FrameType, event: str, value: object) -> None:
        if id(frame.f_code) not in by_code:
            return
        if event == "call":
            watch.started(frame)
        # `value` is None only if the function raised: no watched function returns None.
        elif event == "return" and value is not None:
            watch.returned(frame, value)

    before = sys.getprofile()
    # Our own hook is set if a plan is made while another one traces. It is restored
    # afterwards.
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
        # This must be the first statement: Python handles an interrupt before the next
        # call.
        sys.setprofile(before)


_lock = threading.Lock()
_watches: list[_Watch] = []  # of all threads; of one thread the innermost last
_codes: list[CodeType] = []  # those with events
_TOOL = "shardviz"
# Tool ids of `sys.monitoring`, in order of preference: Python reserves 3 and 4 for no
# particular kind of tool.
_IDS = (3, 4, 5, 1, 2, 0)


def _monitored(run: Callable[[], _T], watch: _Watch) -> _T:
    """Python 3.12 and later: by one tool of `sys.monitoring`, for all threads."""
    try:
        with _lock:
            begun = _begin(watch)
        if not begun:
            watch.unseen()
        return run()
    finally:
        # Twice, since an interrupt may end the first call. Otherwise the second does
        # nothing.
        try:
            _end(watch)
        finally:
            _end(watch)


def _tool_id(name: str | None) -> int | None:
    """The id of the tool of this name, or for None the first id that is free."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    return next((i for i in _IDS if monitoring.get_tool(i) == name), None)


def _begin(watch: _Watch) -> bool:
    """Begins to watch; False if all ids of tools are in use."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    events = monitoring.events
    # By name, so that a tool is found that an interrupt left behind.
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
    """Ends a watch, and everything with the last; may be called again, or cut short."""
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
    """The innermost watch of this thread."""
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
