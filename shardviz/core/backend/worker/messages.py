"""What a kernel and a worker send each other: pickles, each with its length in front, over pipes.

The kernel sends text, numbers, arrays and values of shardviz. A class or a function of the user is
never sent: the worker would have to import it, and would run the user's code.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from shardviz.core.backend.compile import PLAIN, plain
from shardviz.core.errors import ProgramError

_LENGTH = struct.Struct("<Q")
# The packages whose classes are the same in the worker.
_SENT = ("builtins", "collections", "copyreg", "jax", "jaxlib", "ml_dtypes", "numpy", "shardviz")


@dataclass(frozen=True, eq=False)
class Call:
    """A call for the worker.

    Attributes:
        function: it is sent by name, and imported there.
        arguments: pickled by `packed`.
        folder: the last argument, if any: a folder for the files of the call.
    """

    function: Callable[..., Any]
    arguments: bytes
    folder: str | None = None

    def result(self) -> Any:
        """Makes the call.

        >>> Call(max, packed((1, 2))).result()
        2
        """
        arguments = pickle.loads(self.arguments)
        return self.function(*arguments, *(() if self.folder is None else (self.folder,)))


@dataclass(frozen=True)
class Stage:
    """The worker enters a stage of a call."""

    name: str


@dataclass(frozen=True, eq=False)
class Answer:
    """What a function returned or raised in the worker.

    Attributes:
        value: what it returned.
        error: what it raised; None where it returned.
    """

    value: Any = None
    error: Exception | None = None

    def result(self) -> Any:
        """What the function returned.

        Raises:
            Exception: what it raised.

        >>> Answer(5).result()
        5
        """
        if self.error is not None:
            raise self.error
        return self.value


def packed(value: Any) -> bytes:
    """A value as bytes; text and numbers of a subclass become Python's own.

    Raises:
        ProgramError: where it holds a class, a function or a value that is the user's own.

    >>> pickle.loads(packed({"a": (1, 2.5)}))
    {'a': (1, 2.5)}
    """
    written = io.BytesIO()
    _Pickler(written, protocol=5).dump(value)
    return written.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        # Not called for text, numbers, lists, tuples and dicts of Python's own types.
        kind = value if isinstance(value, type) else type(value)
        module = getattr(value if callable(value) else kind, "__module__", None) or "builtins"
        if str(module).partition(".")[0] in _SENT:
            return NotImplemented
        if isinstance(value, PLAIN):
            kept = plain(value)
            return type(kept), (kept,)
        raise ProgramError(
            f"The program holds {kind.__module__}.{kind.__qualname__}, which cannot be sent to"
            " another process: only text, numbers and arrays are. Give one of these instead."
        )


def write(pipe: BinaryIO, message: bytes) -> None:
    """Writes one message to a pipe that is not buffered.

    Raises:
        OSError: where nobody reads it any more.
    """
    for part in (_LENGTH.pack(len(message)), message):
        left = memoryview(part)
        while left:
            left = left[pipe.write(left) :]


def read(pipe: BinaryIO) -> bytes | None:
    """The next message of a pipe that is not buffered; None where it ended.

    >>> pipe = io.BytesIO()
    >>> write(pipe, b"abc")
    >>> pipe.seek(0), read(pipe), read(pipe)
    (0, b'abc', None)
    """
    head = _exactly(pipe, _LENGTH.size)
    return None if head is None else _exactly(pipe, _LENGTH.unpack(head)[0])


def _exactly(pipe: BinaryIO, length: int) -> bytes | None:
    data = bytearray(length)
    left = memoryview(data)
    while left:
        count = pipe.readinto(left)  # type: ignore[attr-defined]
        if not count:
            return None
        left = left[count:]
    return bytes(data)
