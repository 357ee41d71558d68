"""How a worker ended, in words: its exit code, its limits, and what it said of the cause."""

from __future__ import annotations

import os
import re
import signal
from typing import BinaryIO

from shardviz.core.errors import TargetError
from shardviz.core.format import bytes_text

_MOST_READ = 1 << 16  # bytes, of the beginning and of the end
_SIGNALS = {
    "SIGKILL": "killed from outside, often by the system where memory runs out",
    "SIGABRT": "aborted: the compiler or runtime met a state that it cannot go on from",
    "SIGSEGV": "crashed: a fault in memory, inside the compiler or a library",
    "SIGBUS": "crashed: memory that should be there is not, often because /dev/shm is full",
    "SIGILL": "crashed: it met an instruction that this processor does not have",
    "SIGFPE": "crashed: a number was divided by zero, inside the compiler or a library",
    "SIGTERM": "asked to end from outside",
}
_LINES, _LONGEST = 3, 300  # characters of a line
# Who printed the line, and when: `F1122 03:44:06.391162   21499 fft_handler.cc:117] Check failed`.
_GLOG = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ ")
# What is printed around the cause: other log lines, stacks, and what Python's fault handler adds.
_NOISE = re.compile(
    r"\s*$|WARNING: All log messages|[IW]\d{4} |\s*@ |\*\*\*|PC: |Extension modules: "
    r"|(?:Current )?[Tt]hread(?:'s C stack trace)? .*\(most recent call first\)|Stack \(most recent"
    r"|Traceback \(most recent|Python runtime state: |\s+File \".*\", line \d+"
    r"|\s+(?:<no Python frame>|Garbage-collecting|Binary file )|  <.*>$"
)
# From the most to the least telling; the first that fits any line is the cause.
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


class WorkerError(TargetError):
    """The worker ended before it answered."""


def exit_error(exit_code: int | None, stage: str, log: str = "") -> WorkerError:
    """The error for a worker that ended by itself.

    Args:
        exit_code: as Python has it: negative for a signal; None where it is not known.
        stage: the stage it was in; `""` for none.
        log: what it printed.

    >>> print(exit_error(-6, "compile"))
    The worker process ended in the stage 'compile': aborted: the compiler or runtime met a state...
    """
    where = f" in the stage {stage!r}" if stage else ""
    said = cause(log)
    words = f" It said: {said}" if said else ""
    return WorkerError(
        f"The worker process ended{where}: {exit_in_words(exit_code)}.{words} Your kernel is not"
        " touched, and the next compile gets a new worker."
    )


def timeout_error(seconds: float, stage: str) -> WorkerError:
    """The error for a worker that was ended because it took too long.

    >>> print(timeout_error(60, "run"))
    The worker process was ended after 60 s in the stage 'run': that is the limit. ...
    """
    return WorkerError(
        f"The worker process was ended after {seconds:.3g} s in the stage {stage!r}: that is the"
        " limit. It may hang, or need longer: give it more time, or a smaller program."
    )


def memory_error(held: int, limit: int | None, stage: str) -> WorkerError:
    """The error for a worker that was ended because it held too much memory.

    >>> print(memory_error(3 << 30, 2 << 30, "compile"))
    The worker process was ended in the stage 'compile': it held 3 GiB and may hold 2 GiB. ...
    """
    why = (
        f"it held {bytes_text(held)} and may hold {bytes_text(limit)}"
        if limit is not None
        else f"it held {bytes_text(held)} and the machine's memory was about to run out"
    )
    return WorkerError(
        f"The worker process was ended in the stage {stage!r}: {why}. Compile a smaller program,"
        " fewer devices, or on a machine with more memory."
    )


def exit_in_words(code: int | None) -> str:
    """An exit code or signal as people say it.

    >>> exit_in_words(-9)
    'killed from outside, often by the system where memory runs out (SIGKILL)'
    >>> exit_in_words(3), exit_in_words(None)
    ('it left with exit code 3', 'it left without saying why')
    """
    if code is None:
        return "it left without saying why"
    if code >= 0:
        return f"it left with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"ended by signal {-code}"
    return f"{_SIGNALS[name]} ({name})" if name in _SIGNALS else f"ended by {name}"


def read_log(log: BinaryIO) -> str:
    """What a worker printed: all of it, or the beginning and the end.

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
    """The lines of a worker's output that say why it ended, on one line; `""` where none does.

    Those in which a compiler, the C library or Python names the fault; where there are none, the
    last lines, without stacks and the lists of threads and modules that Python's fault handler
    adds.

    Args:
        text: what the worker printed.

    >>> cause("F1122 03:44:06.391162 21499 fft.cc:117] Check failed: size > 0 (0 vs. 0) \\n@ 0x7f")
    'fft.cc:117] Check failed: size > 0 (0 vs. 0)'
    >>> cause("Fatal Python error: Segmentation fault\\n\\nExtension modules: numpy, jaxlib")
    'Fatal Python error: Segmentation fault'
    """
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line)]
    for telling in _TELLING:
        if found := [line for line in lines if telling.search(line)]:
            lines = found[:_LINES]
            break
    words = " / ".join(_GLOG.sub("", line)[:_LONGEST].strip() for line in lines[-_LINES:])
    return "".join(c if c.isprintable() else "?" for c in words)
