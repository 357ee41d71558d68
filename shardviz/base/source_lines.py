"""Source lines of the user's own code, and their short names."""

from __future__ import annotations

import functools
import os
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
# Functions of the gallery count as user code.
_GALLERY = _PACKAGE + "gallery" + os.sep
_NOT_USER = (
    "site-packages",
    "dist-packages",
    "/lib/python3",
    "\\lib\\python3",
    "<frozen",
)


@functools.lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """True for a file of user code, outside of shardviz and installed packages.

    >>> is_user_file("/home/me/model.py")
    True
    >>> is_user_file("/venv/lib/site-packages/jax/core.py")
    False
    """
    if path.startswith(_PACKAGE):
        return path.startswith(_GALLERY)
    return not any(part in path for part in _NOT_USER)


def is_own_file(path: str) -> bool:
    """True for a file of shardviz, except for the gallery's programs.

    >>> is_own_file(__file__), is_own_file("/home/me/model.py")
    (True, False)
    """
    return path.startswith(_PACKAGE) and not path.startswith(_GALLERY)


def line_in_words(path: str, line: int | str) -> str:
    """Formats a source line as `model.py:12`, or as `cell:3` in a notebook.

    >>> line_in_words("/home/me/model.py", 12), line_in_words("/tmp/ipykernel_7/31.py", 3)
    ('model.py:12', 'cell:3')
    """
    name = os.path.basename(path)
    # A notebook cell's temporary file has a meaningless name.
    if "ipykernel_" in path or path.startswith("<ipython-input"):
        name = "cell"
    return f"{name}:{line}"
