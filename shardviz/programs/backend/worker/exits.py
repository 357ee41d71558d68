"""Determines how a worker process ended, from its exit code and its output."""

from __future__ import annotations

import os
import re
import signal
from typing import BinaryIO

from shardviz.base.errors import TargetError
from shardviz.programs.failure import Exited, ProcessEnd

# Bytes to read at the beginning and at the end of a worker's output.
_MOST_READ = 1 << 16
# Maximum number of lines in a cause, and of characters per line.
_LINES, _LONGEST = 3, 300
# The prefix of a log line, with severity, time, thread and source line, as in
# `F1122 03:44:06.391162   21499 fft_handler.cc:117] Check failed`.
_GLOG = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ ")
# Lines around the cause: other log lines, stack traces, and additions by Python's fault
# handler.
_NOISE = re.compile(
    r"\s*$|WARNING: All log messages|[IW]\d{4} |\s*@ |\*\*\*|PC: |Extension modules: "
    r"|(?:Current )?[Tt]hread(?:'s C stack trace)? .*\(most recent call first\)|Stack \(most recent"
    r"|Traceback \(most recent|Python runtime state: |\s+File \".*\", line \d+"
    r"|\s+(?:<no Python frame>|Garbage-collecting|Binary file )|  <.*>$"
)
# Sorted from most to least specific. The first pattern with a match gives the cause.
_TELLING = [
    re.compile(pattern)
    for pattern in (
        r"^F\d{4} |Check failed",
        r"LLVM ERROR|Assertion .*failed|^terminate called|what\(\):|std::bad_alloc|stack smashing"
        r"|^(?:free|malloc|realloc|munmap_chunk|double free|corrupted|munmap)\b.*[:(]|\bFATAL\b",
        r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b",
        r"^Fatal Python error",
    )
]


_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)


class WorkerError(TargetError):
    """The worker ended or was killed before it answered.

    Attributes:
        end: why it ended; also provides the text of the error.
    """

    def __init__(self, end: ProcessEnd) -> None:
        super().__init__(end)
        self.end = end

    @property
    def crashed(self) -> bool:
        """True if the worker crashed; False if it hit a limit or was killed."""
        return isinstance(self.end, Exited) and -(self.end.code or 0) in _CRASHES


def read_log(log: BinaryIO) -> str:
    """Returns a worker's output, or its beginning and end if it is long.

    >>> import io
    >>> read_log(io.BytesIO(b"one\\ntwo"))
    'one\\ntwo'
    """
    length = log.seek(0, os.SEEK_END)
    log.seek(0)
    text = log.read(_MOST_READ)
    if length > _MOST_READ:
        log.seek(max(_MOST_READ, length - _MOST_READ))
        text += b"\n" + log.read()
    return text.decode(errors="replace")


def cause(text: str) -> str:
    """Returns the lines of a worker's output that name the cause, joined to one line.

    These are the lines in which a compiler, the C library or Python reports the fault.
    Without such lines, the last lines are returned, except stacks and additions by
    Python's fault handler.

    >>> cause("F1122 03:44:06.391162 21499 fft.cc:117] Check failed: size > 0 (0 vs. 0) \\n@ 0x7f")
    'fft.cc:117] Check failed: size > 0 (0 vs. 0)'
    >>> cause("Fatal Python error: Segmentation fault\\n\\nExtension modules: numpy, jaxlib")
    'Fatal Python error: Segmentation fault'
    """
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    for telling in _TELLING:
        if causes := [line for line in lines if telling.search(line)]:
            lines = causes[:_LINES]
            break
    shortened = []
    for line in lines[-_LINES:]:
        shortened.append(_GLOG.sub("", line)[:_LONGEST].strip())
    words = " / ".join(shortened)
    return "".join(c if c.isprintable() else "?" for c in words)
