"""Sees the calls of some functions while this thread runs something, and changes no
function.

Python itself tells of them, under whatever name a function was imported:

- From Python 3.12 on `sys.monitoring` tells of the calls of single code objects, which
  costs next to nothing. It does so for all threads, so each listener hears of those of
  its own thread.
- Python 3.11 has only hooks that hear of every call of a thread: one for profilers
  (`sys.setprofile`) and one for debuggers (`sys.settrace`). We take whichever is free,
  since a hook that is in use cannot be shared with one that is written in C, as
  cProfile is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar

from shardviz.core.errors import ProgramError
from shardviz.core.program.notes import Note

_T = TypeVar("_T")


class CallRefused(ProgramError):
    """What a listener raises to end a call that begins; the caller of the function
    receives it.
    """


class CallListener:
    """What hears of the calls of some functions; none of its methods may take long."""

    def watched(self) -> Mapping[str, CodeType]:
        """The code of the functions, by the name that the listener has for each."""
        return {}

    def started(self, frame: FrameType, name: str, arguments: Sequence[Any]) -> None:
        """A function begins.

        Args:
            frame: stands for this call; it is on the stack until the function ends.
            name: the function's name among those that are watched.
            arguments: one value per parameter, in order.

        Raises:
            CallRefused: the function is not to be called.
        """

    def returned(self, frame: FrameType, value: Any) -> None:
        """A function returns a value. Not called where an exception leaves the
        function.
        """

    def broken(self, error: Exception) -> None:
        """A method of the listener raised this; the function that is watched goes on."""

    def unseen(self, words: str) -> None:
        """The calls cannot be seen, for this reason."""


def watched(run: Callable[[], _T], listeners: Sequence[CallListener]) -> _T:
    """What `run()` returns; meanwhile the listeners hear of calls that this thread
    makes.

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
    if not watch.codes:
        return run()
    if hasattr(sys, "monitoring"):
        return _monitored(run, watch)
    return _hooked(run, watch)


class _Watch:
    """One use of `watched`."""

    def __init__(self, listeners: Sequence[CallListener]) -> None:
        self.listeners = listeners
        self.thread = threading.get_ident()
        self.codes: list[CodeType] = []
        self.by_code: dict[int, tuple[CallListener, str]] = {}
        for listener in listeners:
            for name, code in listener.watched().items():
                self.codes.append(code)
                # By id: the hash of a code object is computed from all of it, each
                # time.
                self.by_code[id(code)] = listener, name

    def started(self, frame: FrameType) -> None:
        code = frame.f_code
        known = self.by_code.get(id(code))
        if known is None:
            return
        listener, name = known
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = frame.f_locals
        try:
            listener.started(
                frame, name, [values[parameter] for parameter in parameters]
            )
        except CallRefused:
            raise
        except Exception as error:  # noqa: BLE001  it must not reach the watched function
            listener.broken(error)

    def returned(self, frame: FrameType, value: Any) -> None:
        known = self.by_code.get(id(frame.f_code))
        if known is None:
            return
        listener = known[0]
        try:
            listener.returned(frame, value)
        except Exception as error:  # noqa: BLE001  as above
            listener.broken(error)

    def unseen(self, words: str) -> None:
        for listener in self.listeners:
            listener.unseen(words)

    def hear(self, frame: FrameType, event: str, value: Any) -> None:
        """Takes what a hook of Python 3.11 gets of a function that is watched."""
        if event == "call":
            self.started(frame)
        # Hooks get None where an exception leaves the function; no watched one returns
        # it.
        elif event == "return" and value is not None:
            self.returned(frame, value)


def _hooked(run: Callable[[], _T], watch: _Watch) -> _T:
    """Python 3.11: by the hook for profilers, or by that for debuggers."""
    known = watch.by_code

    # Both are called for every function: what is not watched has to cost as little as
    # possible.
    def profile(frame: FrameType, event: str, value: Any) -> None:
        if id(frame.f_code) in known:
            watch.hear(frame, event, value)

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        if id(frame.f_code) not in known:
            return None
        watch.hear(frame, event, value)
        frame.f_trace_lines = False
        return trace  # which hears of the end of this call

    hooks: list[tuple[Any, Any, Any]] = [
        (sys.setprofile, sys.getprofile, profile),
        (sys.settrace, sys.gettrace, trace),
    ]
    # Ours is there where a plan is made while another one traces; that one goes on
    # afterwards.
    free = []
    for install, installed, hook in hooks:
        present = installed()
        if present is None or _code(present) is _code(hook):
            free.append((install, installed, hook))
    if not free:
        watch.unseen(str(Note("hooks in use")))
        return run()
    install, installed, hook = free[0]
    before = installed()
    try:
        install(hook)
        result = run()
        if installed() is not hook:
            watch.unseen(str(Note("hook replaced")))
        return result
    finally:
        # Nothing may stand before it: Python handles an interrupt before the next call.
        install(before)


def _code(hook: Any) -> CodeType | None:
    return getattr(hook, "__code__", None)


_lock = threading.Lock()
_watches: list[_Watch] = []  # of all threads; of one thread the innermost last
_codes: list[CodeType] = []  # those that Python tells us of
_TOOL = "shardviz"
# Ids of tools: those first that Python keeps for no particular use.
_IDS = (3, 4, 5, 1, 2, 0)


def _monitored(run: Callable[[], _T], watch: _Watch) -> _T:
    """Python 3.12 and later: by one tool of `sys.monitoring`, which all threads share."""
    try:
        with _lock:
            words = _begin(watch)
        if words:
            watch.unseen(words)
        return run()
    finally:
        # Twice, since an interrupt may end the first. Where it did not, the second does
        # nothing.
        try:
            _end(watch)
        finally:
            _end(watch)


def _tool_id(name: str | None) -> int | None:
    """The id of the tool of this name, or for None the first id that is free."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    return next((i for i in _IDS if monitoring.get_tool(i) == name), None)


def _begin(watch: _Watch) -> str:
    """Begins to watch; why it cannot, or `""`."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    events = monitoring.events
    # By name, so that a tool is found that an interrupt left behind.
    tool = _tool_id(_TOOL)
    if tool is None:
        tool = _tool_id(None)
        if tool is None:
            return str(Note("tools in use"))
        monitoring.use_tool_id(tool, _TOOL)
    _watches.append(watch)
    monitoring.register_callback(tool, events.PY_START, _at_start)
    monitoring.register_callback(tool, events.PY_RETURN, _at_return)
    for code in watch.codes:
        _codes.append(code)
        monitoring.set_local_events(tool, code, events.PY_START | events.PY_RETURN)
    return ""


def _end(watch: _Watch) -> None:
    """Ends a watch, and everything with the last one. May be called again, and cut
    short.
    """
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


def _at_return(code: CodeType, offset: int, value: Any) -> None:
    watch = _watch_here()
    if watch is not None:
        watch.returned(sys._getframe(1), value)
