"""Messages between a kernel and a worker: answers, and calls of host callbacks.

Calls and answers are pickled and sent over a `multiprocessing.connection`. A call is a
tuple of one of our functions and its arguments: text, numbers, arrays and shardviz
values.

Host callbacks are Python functions that exist only in the kernel. A lowered program
refers to them by number, and the worker compiles it with functions that send the number
to the kernel. The kernel then calls the user's function, with its variables, output and
files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import jax
from jax.experimental import io_callback

from shardviz.base.backend import jax_compat
from shardviz.base.errors import ProgramError
from shardviz.base.format import listed
from shardviz.programs.backend.worker.folders import (
    dump_root,
    make_folder,
    remove_folder,
)


@dataclass(frozen=True)
class Stage:
    """Reports that the worker has entered a stage of a call."""

    name: str


@dataclass(frozen=True, eq=False)
class Answer:
    """The outcome of a function called in the worker.

    Attributes:
        value: the returned value.
        error: the raised exception; None if the function returned.
    """

    value: Any = None
    error: Exception | None = None

    def result(self) -> Any:
        """Returns the value, or raises the error if there is one.

        >>> Answer(5).result()
        5
        """
        if self.error is not None:
            raise self.error
        return self.value


_LISTS = ("host_callbacks", "keepalive")
# Pending connections: all devices may call at the same time.
_BACKLOG = 1024
# Bytes of a path to which our folder's and the socket's names are added.
_MOST_OF_ROOT = 50
HostCallback = Callable[..., Any]


def take_callbacks(lowered: Any) -> tuple[HostCallback, ...]:
    """Removes and returns the callbacks of jax's `Lowered`, to send it without them."""
    arguments = compile_arguments(lowered)
    callbacks = tuple(arguments["host_callbacks"])
    for name in _LISTS:
        arguments[name] = []
    return callbacks


def put_callbacks(lowered: Any, callbacks: Sequence[HostCallback]) -> None:
    """Adds callbacks to jax's `Lowered`.

    Args:
        lowered: jax's `Lowered`.
        callbacks: in the order of `take_callbacks`; they take and return flat numpy
            arrays.
    """
    if callbacks:
        compile_arguments(lowered)["host_callbacks"] = list(callbacks)


def compile_arguments(lowered: Any) -> dict[str, Any]:
    """Returns the arguments with which jax compiles its `Lowered`."""
    arguments = jax_compat.compile_arguments(lowered)
    if arguments is None or not all(name in arguments for name in _LISTS):
        raise ProgramError(
            f"jax {jax.__version__} does not report which callbacks a lowered program"
            " has, so the program cannot be sent to another process. jax 0.10 to 0.12"
            " do; or run it on devices of this kernel, with target='attached'."
        )
    return arguments


def effects_of(names: tuple[tuple[str, ...], tuple[str, ...]]) -> frozenset[Any]:
    """Returns jax's effects of the given classes: (ordered classes, other classes)."""
    if not any(names):
        return frozenset()

    def with_all(x: Any) -> None:
        for ordered in (False, True):
            io_callback(print, None, x, ordered=ordered)
            jax.debug.callback(print, x, ordered=ordered)

    classes, effects = {*names[0], *names[1]}, set()
    # jax doesn't export its effects, so we take them from a program that has all of
    # them.
    for effect in jax.make_jaxpr(with_all)(0.0).effects:
        if type(effect).__name__ in classes:
            effects.add(effect)
    if len(effects) < len(classes):
        raise ProgramError(
            f"The program has effects ({listed(sorted(classes))}) that cannot be sent to"
            " another process. Run it on devices of this kernel, with target='attached'."
        )
    return frozenset(effects)


@dataclass(frozen=True)
class CallbackAddress:
    """The address to which the worker sends callback calls.

    Attributes:
        address: path of a socket.
        count: number of callbacks in the program.
        unsharded: number of callbacks in the unsharded function.
    """

    address: str
    count: int
    unsharded: int = 0

    def callbacks(self, unsharded: bool = False) -> list[HostCallback]:
        """Returns functions for the worker that forward each callback to the kernel."""
        threads = threading.local()  # one connection per calling thread

        def function(number: int) -> HostCallback:
            def called(*arguments: Any) -> Any:
                if not hasattr(threads, "connection"):
                    threads.connection = Client(self.address)
                threads.connection.send((number, arguments))
                answer, name, message = threads.connection.recv()
                if name:
                    # jax writes this class name and message into the error of the run.
                    raise type(name, (Exception,), {"__module__": "builtins"})(message)
                return answer

            return called

        first, count = (self.count, self.unsharded) if unsharded else (0, self.count)
        return [function(first + number) for number in range(count)]


def _root() -> str:
    """Returns a folder for sockets. Socket paths are limited to 107 bytes."""
    temporary = dump_root()
    if len(os.fsencode(temporary)) <= _MOST_OF_ROOT:
        return temporary
    return "/tmp"  # TMPDIR may be long, for example in batch systems


class CallbackServer:
    """The kernel's end of callbacks: calls the user's functions for the worker.

    Each connection has a separate thread.

    Args:
        callbacks: callbacks of the program.
        unsharded: callbacks of the unsharded function.

    Attributes:
        raised: the last error that a callback raised, or None.

    >>> with CallbackServer([lambda x: (x + 1,)]).listen() as address:
    ...     address.callbacks()[0](1)
    (2,)
    """

    def __init__(
        self, callbacks: Sequence[HostCallback], unsharded: Sequence[HostCallback] = ()
    ) -> None:
        self._functions = (*callbacks, *unsharded)
        self._counts = len(callbacks), len(unsharded)
        self._closed = False
        self.raised: BaseException | None = None
        self._raised_at = 0.0

    @property
    def seconds_since_error(self) -> float:
        """Seconds since a callback raised an error; 0 if none did."""
        return 0.0 if self.raised is None else time.monotonic() - self._raised_at

    @contextlib.contextmanager
    def listen(self) -> Iterator[CallbackAddress | None]:
        """Answers the worker's callback calls during the `with` block.

        Yields the address for the worker, or None if there are no callbacks.
        """
        if not self._functions:
            yield None
            return
        folder = make_folder("socket", _root())  # only this user has access
        try:
            path = str(folder / "socket")
            with Listener(path, "AF_UNIX", backlog=_BACKLOG) as listener:
                self._begin(self._accept, listener)
                try:
                    yield CallbackAddress(path, *self._counts)
                finally:
                    self._closed = True
                    # Wakes the accepting thread, so that it can stop.
                    with contextlib.suppress(OSError, EOFError):
                        Client(path).close()
        finally:
            remove_folder(folder)

    def _begin(self, target: Callable[..., None], argument: Any) -> None:
        threading.Thread(target=target, args=(argument,), daemon=True).start()

    def _accept(self, listener: Listener) -> None:
        while not self._closed:
            with contextlib.suppress(OSError):  # the listener was closed
                self._begin(self._answer, listener.accept())

    def _answer(self, connection: Connection) -> None:
        # Runs until the worker closes the connection.
        with contextlib.suppress(OSError, EOFError), connection:
            while True:
                number, arguments = connection.recv()
                connection.send(self._called(number, arguments))

    def _called(self, number: int, arguments: Sequence[Any]) -> tuple[Any, str, str]:
        _THREAD.calls = True
        try:
            return self._functions[number](*arguments), "", ""
        except BaseException as error:  # noqa: BLE001  a user's function may raise anything
            self.raised, self._raised_at = error, time.monotonic()
            return None, type(error).__name__, str(error)


_THREAD = threading.local()


def refuse_in_callback(worker: bool) -> None:
    """Raises if a run would deadlock because this thread runs a host callback.

    Args:
        worker: True for a run in a worker, which waits for its callbacks; False for a
            run in this process, in which XLA waits for them.
    """
    if worker:
        waits = getattr(_THREAD, "calls", False)
    else:
        # XLA runs callbacks in its own threads, in which jax is the outermost frame.
        frames = [frame for frame, _ in traceback.walk_stack(None)]
        waits = frames[-1].f_code.co_filename.startswith(os.path.dirname(jax.__file__))
    if waits:
        raise ProgramError(
            "This was called inside a host callback. The program waits for the callback,"
            " which would wait for the program, forever. Make the call outside of the"
            " callback, and pass its result to the callback."
        )
