"""An exception of a user's program, in words: what jax said at first, and the user's own line."""

from __future__ import annotations

import re
import traceback

from shardviz.core.errors import ShardvizError
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
