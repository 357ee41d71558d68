"""Memory that a compiler freed, given back to the system."""

from __future__ import annotations

import contextlib
import ctypes


def give_back_freed() -> None:
    """Gives the system tens of MB that a compiler freed in small parts, and C++ keeps."""
    with contextlib.suppress(OSError, AttributeError):  # not the C library of GNU
        ctypes.CDLL("libc.so.6").malloc_trim(0)
