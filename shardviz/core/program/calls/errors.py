"""Errors that are raised more than once: to every thread that waited, and to later calls.

One exception object raised in many threads would grow a traceback of them all, and keep alive the
arrays in their frames. So each thread gets a twin of its own: same type, same words.
"""

from __future__ import annotations

import traceback


def note_origin(error: Exception, call: str) -> None:
    """Adds to a fresh error what was compiled, where it failed, and that this is remembered."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    error.add_note(f"Compiling {call} failed{where}; later calls like it fail the same way.")


def again(error: Exception) -> Exception:
    """A twin of an error without its traceback, fit to be kept or raised in another thread.

    >>> first = KeyError("x")
    >>> twin = again(first)
    >>> twin is first, type(twin) is type(first), str(twin) == str(first)
    (False, True, True)
    """
    kind = type(error)
    try:
        # Not by calling the class: jax's errors are made from a tracer and keep the words alone.
        twin = kind.__new__(kind, *error.args)
        twin.args = error.args
        twin.__dict__.update(error.__dict__)
        same = str(twin) == str(error)
    except Exception:  # noqa: BLE001  a foreign class may do anything when it is made
        return error
    if not same:
        return error  # it keeps its words outside args, as some of Python's own do
    if "__notes__" in error.__dict__:
        twin.__notes__ = list(error.__notes__)
    if isinstance(error.__cause__, Exception):
        twin.__cause__ = again(error.__cause__)
    return twin
