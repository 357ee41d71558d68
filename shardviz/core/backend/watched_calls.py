"""watched_calls(): who calls some functions, in this thread, without a change to any of them.

A function is watched by its code object, so that it makes no difference under which name it was
imported. Python 3.12 and later tell of calls of one code object alone (`sys.monitoring`), which
costs next to nothing. Python 3.11 tells of all calls (`sys.setprofile`). Whoever else watches goes
on watching.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any


class CallListener:
    """What hears of the calls of watched functions; none of its methods may take long."""

    def started(self, frame: FrameType) -> None:
        """A function begins; its arguments are the local variables of the frame."""

    def returned(self, frame: FrameType, value: Any) -> None:
        """A function returns a value."""

    def left(self, frame: FrameType) -> None:
        """An exception leaves a function. Python 3.12 and later do not tell."""

    def broken(self, error: Exception) -> None:
        """A method of the listener raised this; the function that is watched goes on."""


@contextlib.contextmanager
def watched_calls(codes: Sequence[CodeType], listener: CallListener) -> Iterator[str]:
    """Watches the calls of some functions that this thread makes within the `with` block.

    Args:
        codes: the code objects of the functions.
        listener: what hears of their calls.

    Yields:
        Why they cannot be watched, in a sentence, or `""`.

    >>> class Names(CallListener):
    ...     def started(self, frame):
    ...         print(frame.f_code.co_name, frame.f_locals)
    >>> def double(x):
    ...     return 2 * x
    >>> alias = double
    >>> with watched_calls([double.__code__], Names()):
    ...     alias(4)
    double {'x': 4}
    8
    """
    watch = _monitored if hasattr(sys, "monitoring") else _profiled
    with watch(codes, listener) as words:
        yield words


@contextlib.contextmanager
def _profiled(codes: Sequence[CodeType], listener: CallListener) -> Iterator[str]:
    """Watches by `sys.setprofile`, and hands every event on to the profiler that was there."""
    before = sys.getprofile()
    if before is not None and not callable(before):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        yield (
            "Calls cannot be watched beside a profiler that is written in C, such as cProfile, on"
            f" Python {version}. End it first."
        )
        return
    profile = _profile_function(codes, listener, _others.get(before, before))
    _others[profile] = _others.get(before, before)
    sys.setprofile(profile)
    try:
        yield ""
    finally:
        del _others[profile]
        if sys.getprofile() is profile:  # else the watched functions have set another
            sys.setprofile(before)


_others: dict[Any, Any] = {}  # of each profile function of ours, the one of somebody else before


def _profile_function(
    codes: Sequence[CodeType], listener: CallListener, before: Any
) -> Callable[..., None]:
    ids = frozenset(map(id, codes))

    def seen(frame: FrameType, event: str, value: Any) -> None:
        try:
            if event == "call":
                listener.started(frame)
            elif frame.f_code.co_code[frame.f_lasti] in _RETURNS:
                listener.returned(frame, value)
            else:
                listener.left(frame)
        except Exception as error:  # noqa: BLE001  it must not reach the function that is watched
            listener.broken(error)

    def profile(frame: FrameType, event: str, value: Any) -> None:
        # Called for every call of all Python code: nothing may be done here that can be left out.
        if id(frame.f_code) in ids and (event == "call" or event == "return"):
            seen(frame, event, value)

    def both(frame: FrameType, event: str, value: Any) -> None:
        profile(frame, event, value)
        before(frame, event, value)

    return profile if before is None else both


_RETURNS = frozenset(code for name, code in dis.opmap.items() if name.startswith("RETURN_"))


class _Monitor:
    """The one tool of `sys.monitoring` that all threads share while any of them watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[int, list[CallListener]] = {}  # by thread, the innermost last
        self._codes: dict[int, CodeType] = {}
        self._tool: int | None = None

    def enter(self, codes: Sequence[CodeType], listener: CallListener) -> str:
        """Begins to watch for this thread; why it cannot, or `""`."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        with self._lock:
            if self._tool is None:
                self._tool = self._new_tool()
            if self._tool is None:
                return (
                    "Calls cannot be watched: every tool of sys.monitoring is in use. End one, such"
                    " as a debugger or a profiler."
                )
            events = monitoring.events.PY_START | monitoring.events.PY_RETURN
            for code in codes:
                if id(code) not in self._codes:
                    monitoring.set_local_events(self._tool, code, events)
                    self._codes[id(code)] = code
            self._listeners.setdefault(threading.get_ident(), []).append(listener)
        return ""

    def leave(self) -> None:
        """Ends it for this thread, and frees the tool when no other thread watches."""
        with self._lock:
            mine = self._listeners[threading.get_ident()]
            mine.pop()
            if not mine:
                del self._listeners[threading.get_ident()]
            if not self._listeners:
                self._free_tool()

    def _new_tool(self) -> int | None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        for tool in (3, 4, 5, 1, 2, 0):  # those first for which Python names no use
            if monitoring.get_tool(tool) is None:
                monitoring.use_tool_id(tool, "shardviz")
                monitoring.register_callback(tool, monitoring.events.PY_START, self._started)
                monitoring.register_callback(tool, monitoring.events.PY_RETURN, self._returned)
                return tool
        return None

    def _free_tool(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        for code in self._codes.values():
            monitoring.set_local_events(self._tool, code, 0)
        for event in (monitoring.events.PY_START, monitoring.events.PY_RETURN):
            monitoring.register_callback(self._tool, event, None)
        monitoring.free_tool_id(self._tool)
        self._tool, self._codes = None, {}

    def _started(self, code: CodeType, offset: int) -> None:
        if mine := self._listeners.get(threading.get_ident()):
            try:
                mine[-1].started(sys._getframe(1))
            except Exception as error:  # noqa: BLE001  as above
                mine[-1].broken(error)

    def _returned(self, code: CodeType, offset: int, value: Any) -> None:
        if mine := self._listeners.get(threading.get_ident()):
            try:
                mine[-1].returned(sys._getframe(1), value)
            except Exception as error:  # noqa: BLE001  as above
                mine[-1].broken(error)


_monitor = _Monitor()


@contextlib.contextmanager
def _monitored(codes: Sequence[CodeType], listener: CallListener) -> Iterator[str]:
    if words := _monitor.enter(codes, listener):
        yield words
        return
    try:
        yield ""
    finally:
        _monitor.leave()
