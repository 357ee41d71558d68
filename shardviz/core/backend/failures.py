"""What went wrong, in words: an exception of the user's program, or how a worker ended.

Of an exception the first that jax said and the user's own line; of a worker its exit code, its
limits, and what it printed of the cause.
"""

from __future__ import annotations

import os
import re
import signal
import traceback
from typing import BinaryIO

from shardviz.core.errors import ShardvizError, TargetError
from shardviz.core.format import bytes_text
from shardviz.core.hlo.sources import is_user_file, line_in_words
from shardviz.core.program.report import Failure

LIMIT = 600
_TRACE = re.compile(r"Traceback \(most recent call last\):")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

# What XLA says; what Python's MemoryError becomes; a run that was refused; a worker that was ended.
_OF_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "The memory of the machine",
    " free. Nothing was placed",
    "where memory runs out",
    "memory was about to run out",
)
_OPENINGS = {
    "trace": "jax could not trace the function.",
    "lower": "jax could not lower the program.",
    "compile": "The compiler refused the program.",
    "place": "The arguments could not be placed on the devices.",
    "run": "The program failed while it ran.",
    "check": "The results could not be checked.",
}
# Stages in which none of the user's code runs, so that an OSError is not the program's.
_OURS = ("target", "lower", "compile", "place", "worker")
_MOST_READ = 1 << 16  # bytes, of the beginning and of the end of what a worker printed
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


def failure(stage: str, error: BaseException) -> Failure:
    """The Failure for an exception that ended a stage.

    >>> failure("trace", TypeError("dot got (2,) and (3,).")).message
    'jax could not trace the function. TypeError: dot got (2,) and (3,).'
    """
    if isinstance(error, ShardvizError):
        return Failure(stage, str(error), source_of(error))
    opening = _OPENINGS.get(stage, "It failed.")
    if isinstance(error, MemoryError):
        opening = "The memory of the machine, or of this process, ran out."
    elif stage in _OURS and isinstance(error, OSError):
        opening = "The system refused what this needs, such as a file or a process."
    return Failure(stage, f"{opening} {in_words(error)}", source_of(error))


def for_lack_of_memory(found: Failure) -> bool:
    """Whether a failure says that memory ran out, or would have, of a device or of the machine.

    >>> for_lack_of_memory(Failure("compile", "RESOURCE_EXHAUSTED: Ran out of memory in hbm."))
    True
    """
    return any(words in found.message for words in _OF_MEMORY)


def in_words(error: BaseException) -> str:
    """The kind of an exception and the first paragraph of what it says, on one line.

    A paragraph that ends with a colon goes on in the next one.

    >>> in_words(ValueError("one\\ntwo\\n\\nmuch more"))
    'ValueError: one two'
    >>> in_words(TypeError("types differ:\\n\\nfloat32 and int32.\\n\\nmuch more"))
    'TypeError: types differ: float32 and int32.'
    """
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001  a foreign __str__ may raise anything
        text = f"(its text raises {type(second).__name__})"
    paragraph, *more = text.strip().split("\n\n")
    if paragraph.endswith(":") and more:
        paragraph += f" {more[0]}"
    if (trace := _TRACE.search(text)) is not None:  # of a callback: its last line says what it was
        paragraph = f"{text[: trace.start()]} {text.strip().splitlines()[-1]}"
    words = " ".join(paragraph.split())
    words = "".join(c if c.isprintable() else "?" for c in words)
    if len(words) > LIMIT:
        words = words[: LIMIT - 1] + "…"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def source_of(error: BaseException) -> str:
    """The innermost line of the user's code that an exception passed through, or `""`."""
    frames: list[tuple[str, int | str]] = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, RuntimeError):  # where a callback failed, its traceback is in the text
        frames += _FRAME.findall(str(error))
    for path, line in reversed(frames):
        if is_user_file(path) and not path.startswith("<"):
            return line_in_words(path, line)
    return ""


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
