"""Converts exceptions to failures: a cause, a one-line text, and the user's line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

import jax

from shardviz.base.backend.jax_compat import failed_to_start, key_value_store
from shardviz.base.errors import OutOfMemory, ShardvizError
from shardviz.base.source_lines import is_own_file, is_user_file, line_in_words
from shardviz.programs.failure import (
    Failure,
    FailureCause,
    HostMemory,
    LocalData,
    MissingPlatform,
    NotOnCpu,
    OwnBug,
    ProcessLost,
    Raised,
    SplitByPartOfAxis,
    SpreadArray,
    SystemRefused,
)

LIMIT = 1200
_TRACE = re.compile(r"Traceback \(most recent call last\):")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_XLA_MEMORY = "RESOURCE_EXHAUSTED"
# In these stages no user code runs, so an OSError isn't the program's fault.
_OURS = ("target", "lower", "compile", "place", "worker")

_BUGS = (AssertionError, AttributeError, LookupError, NameError, ZeroDivisionError)


def failure(stage: str, error: BaseException) -> Failure:
    """Returns the Failure for an exception that ended a stage.

    >>> failure("trace", TypeError("dot got (2,) and (3,).")).said
    'TypeError: dot got (2,) and (3,).'
    """
    source = source_of(error)
    if isinstance(error, ShardvizError):
        lacks = isinstance(error, OutOfMemory) or any(
            getattr(fact, "lacks_memory", False) for fact in error.args
        )
        return Failure(stage, str(error), source, lacks_memory=lacks)
    text = in_words(error)
    if isinstance(error, MemoryError):
        return Failure(stage, text, source, HostMemory(), lacks_memory=True)
    lacks = lacks_memory(error)
    if key_value_store() is not None and (cause := cause_among_processes(str(error))):
        return Failure(stage, text, source, cause, lacks_memory=lacks)
    if missing := _missing_platform(error):
        return Failure(stage, text, source, missing)
    if isinstance(error, OSError) and stage in _OURS:
        return Failure(stage, text, source, SystemRefused(), lacks_memory=lacks)
    if stage == "compile" and type(error).__name__ == "IndivisibleError":
        # jax raises it after XLA's compile, when it reads the shardings of the results.
        return Failure(stage, text, source, SplitByPartOfAxis())
    if _is_own_bug(error):
        return Failure(stage, text, source, OwnBug())
    if "UNIMPLEMENTED" in text and "XLA:CPU" in text:
        return Failure(stage, _ended(text), source, NotOnCpu())
    return Failure(stage, text, source, Raised(), lacks_memory=lacks)


def _is_own_bug(error: BaseException) -> bool:
    """True if shardviz's own code raised an error that code in Python raises for a bug.

    Excludes the errors that compiled code and wrong calls of functions raise.
    """
    if not isinstance(error, _BUGS):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and is_own_file(frames[-1].f_code.co_filename)


def _missing_platform(error: BaseException) -> MissingPlatform | None:
    """Returns the setting that names platforms jax cannot find, or None."""
    platforms = jax.config.values.get("jax_platforms")
    # If jax finds no such platform, it raises an AssertionError without a message.
    silent = isinstance(error, AssertionError) and not str(error)
    if silent and platforms and failed_to_start(error):
        return MissingPlatform("JAX_PLATFORMS", platforms)
    platform = jax.config.values.get("jax_platform_name")
    if platform and re.match(
        rf"Unknown backend:? '?{re.escape(platform)}\b", str(error)
    ):
        return MissingPlatform("JAX_PLATFORM_NAME", platform)
    return None


def lacks_memory(error: BaseException) -> bool:
    """True if a compiler or runtime raised an error because memory ran out.

    >>> lacks_memory(RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM"))
    True
    """
    # Compilers and runtimes both use this absl status code.
    return _XLA_MEMORY in str(error)


# libtpu writes `exceeds available HBM (15.75G)` or `Used 20.1G of 15.75G hbm`.
_AVAILABLE = re.compile(r"(?:available \w+ \(|Used [\d.]+[KMG] of )([\d.]+)([KMG])\b")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def available_memory(error: BaseException) -> int | None:
    """Returns the bytes available to a program, from a compiler error; None if unknown.

    The chip has more memory, because the runtime reserves some.

    >>> available_memory(RuntimeError("(46.88G) exceeds available HBM (15.75G).")) / 2**30
    15.75
    """
    match = _AVAILABLE.search(str(error))
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])


def in_words(error: BaseException) -> str:
    """Returns the class and text of an exception, on one line.

    All paragraphs of a jax error are kept, because jax puts advice in the last ones.
    XLA raises RuntimeErrors, of which only the first paragraph is kept: pages of
    buffers or stack traces follow it.

    >>> in_words(ValueError("types differ:\\n\\nfloat32\\nand int32.\\n\\nUse astype."))
    'ValueError: types differ: float32 and int32. Use astype.'
    >>> in_words(RuntimeError("no memory:\\n\\n8 GiB asked for.\\n\\nall buffers"))
    'RuntimeError: no memory: 8 GiB asked for.'
    """
    text = str(error)
    *before, last = text.strip().split("\n\n")
    paragraph, *further = [*map(_ended, before), last]
    if not isinstance(error, RuntimeError):
        paragraph = " ".join([paragraph, *further])
    elif paragraph.endswith(":") and further:
        paragraph += f" {further[0]}"
    # The traceback of a callback ends with its error.
    if trace := _TRACE.search(text):
        paragraph = f"{text[: trace.start()]} {text.strip().splitlines()[-1]}"
    words = " ".join(paragraph.split())
    words = "".join(c if c.isprintable() else "?" for c in words)
    if len(words) > LIMIT:  # keep the end, which has the advice
        words = f"{words[: LIMIT // 2 - 1]}…{words[-LIMIT // 2 :]}"
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _ended(paragraph: str) -> str:
    """Ends a paragraph with a full stop, so that another can follow."""
    paragraph = paragraph.strip()
    return paragraph + "." * paragraph[-1:].isalnum()


def said_by(error: BaseException) -> str:
    """Returns the text of an exception; with its class unless it is our own.

    >>> said_by(ShardvizError("It has no mesh.")), said_by(ValueError("no mesh"))
    ('It has no mesh.', 'ValueError: no mesh')
    """
    return str(error) if isinstance(error, ShardvizError) else in_words(error)


# Multi-process error messages of jax 0.10.2, jax 0.12.0.1 and XLA.
_SEVERAL = (
    (
        r"spans non-addressable|first argument must be a fully addressable array"
        r"|cross-host reshard|Cannot reshard an input that is not fully addressable",
        SpreadArray(),
    ),
    (
        r"Invalid host data|Unable to compute global_shape|is not the same on each process"
        r"|Passing non-trivial shardings for numpy inputs",
        LocalData(),
    ),
    (
        r"tasks are unhealthy|Barrier timed out|coordination service|CoordinationService"
        r"|[Gg]loo.*(?:closed by peer|reset by peer|[Tt]imed out|refused)",
        ProcessLost(),
    ),
)


def cause_among_processes(text: str) -> FailureCause | None:
    """Returns the cause of a multi-process jax error; None if unknown.

    >>> cause_among_processes("Gloo all-reduce failed: connection closed by peer")
    ProcessLost()
    """
    for pattern, cause in _SEVERAL:
        if re.search(pattern, text):
            return cause
    return None


def _user_line(frames: Iterable[tuple[str, int | str]]) -> str:
    """Returns the line of the first frame in the user's code, or `""`."""
    for path, line in frames:
        if is_user_file(path) and not path.startswith("<"):
            return line_in_words(path, line)
    return ""


def source_of(error: BaseException) -> str:
    """Returns the innermost line of user code in a traceback, or `""`."""
    frames: list[tuple[str, int | str]] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        frames.append((frame.f_code.co_filename, line))
    if isinstance(error, RuntimeError):
        # If a callback failed, the text contains its traceback.
        frames += _FRAME.findall(str(error))
    line = _user_line(reversed(frames))
    # If jax fails to lower an operation, the cause has the stack that traced it.
    if not line and error.__cause__ is not None:
        return source_of(error.__cause__)
    return line


def calling_line() -> str:
    """Returns the innermost line of user code on the current stack, or `""`."""
    stack = traceback.walk_stack(None)
    return _user_line((frame.f_code.co_filename, line) for frame, line in stack)
