"""How a worker ended, in words: its exit code or signal, its last lines, what to do. Pure."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from shardviz.core.errors import TargetError, bytes_text

LAST_LINES = 3
_MOST_READ = 8192
_SIGNALS = {
    "SIGKILL": "killed from outside, often by the system where memory runs out",
    "SIGABRT": "aborted: the compiler or runtime met a state that it cannot go on from",
    "SIGSEGV": "crashed: a fault in memory, inside the compiler or a library",
    "SIGTERM": "asked to end from outside",
}
_CHATTER = re.compile(r"^(?:WARNING: All log messages|[IW]\d{4} |\s*@|\*\*\*|\s*$)")


class WorkerError(TargetError):
    """The worker ended before it answered."""


def ended(exit_code: int | None, stage: str, log: Path | None = None) -> WorkerError:
    """The error for a worker that ended by itself.

    Args:
        exit_code: as Python has it: negative for a signal; None where nobody knows.
        stage: the stage it was in; `""` where it was in none.
        log: where what it printed went.

    >>> print(ended(-6, "compile"))
    The worker process ended in the stage 'compile': aborted: the compiler or runtime met a state...
    """
    where = f" in the stage {stage!r}" if stage else ""
    said = last_lines(log)
    words = f" It said last: {said}" if said else ""
    return WorkerError(
        f"The worker process ended{where}: {exit_in_words(exit_code)}.{words} Your kernel is not"
        " touched, and the next compile gets a new worker."
    )


def too_long(seconds: float, stage: str) -> WorkerError:
    """The error for a worker that was ended because it took too long.

    >>> print(too_long(60, "run"))
    The worker process was ended after 60 s in the stage 'run': that is the limit. ...
    """
    return WorkerError(
        f"The worker process was ended after {seconds:.3g} s in the stage {stage!r}: that is the"
        " limit. It may hang, or need longer: give it more time, or a smaller program."
    )


def too_much(held: int, limit: int | None, stage: str) -> WorkerError:
    """The error for a worker that was ended because it held too much memory.

    >>> print(too_much(3 << 30, 2 << 30, "compile"))
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


def last_lines(log: Path | None) -> str:
    """The last lines that a worker printed, on one line; without what compilers always print."""
    try:
        text = "" if log is None else log.read_bytes()[-_MOST_READ:].decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if not _CHATTER.match(line)]
    words = " / ".join(lines[-LAST_LINES:])
    return "".join(c if c.isprintable() else "?" for c in words)[-400:]
