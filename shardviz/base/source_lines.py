"""Source lines of the user's own code, and their short names."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
# The functions of the gallery stand in for a user's own.
_GALLERY = _PACKAGE + "gallery" + os.sep
_NOT_USER = (
    "site-packages",
    "dist-packages",
    "/lib/python3",
    "\\lib\\python3",
    "<frozen",
)


def is_user_file(path: str) -> bool:
    """True for the user's own code: outside of installed packages and of shardviz.

    >>> is_user_file("/home/me/model.py")
    True
    >>> is_user_file("/venv/lib/site-packages/jax/core.py")
    False
    """
    if path.startswith(_PACKAGE):
        return path.startswith(_GALLERY)
    return not any(part in path for part in _NOT_USER)


def line_in_words(path: str, line: int | str) -> str:
    """`model.py:12`; a notebook's cell is called `cell`.

    >>> line_in_words("/home/me/model.py", 12), line_in_words("/tmp/ipykernel_7/31.py", 3)
    ('model.py:12', 'cell:3')
    """
    name = os.path.basename(path)
    # A cell's temporary file has a meaningless name.
    if "ipykernel_" in path or path.startswith("<ipython-input"):
        name = "cell"
    return f"{name}:{line}"
