"""Names and sizes: what may be one, and the sentence for what may not."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from shardviz.core.errors import MeshError, shown

MAX_NAME = 100


def check_name(name: object, what: str, error: type[MeshError] | Any = MeshError) -> str:
    """`name` if it can be the name of an axis or array: short, printable text.

    Raises:
        MeshError: or the given class, otherwise.
    """
    if not isinstance(name, str):
        raise error(f"The name of {what} must be text; got {shown(name)}.")
    if not name or name != name.strip():
        raise error(
            f"The name of {what} must not be empty or have blanks around it; got {shown(name)}."
        )
    if len(name) > MAX_NAME:
        raise error(f"The name of {what} has {len(name):,} letters; at most {MAX_NAME}, please.")
    if not name.isprintable():
        raise error(f"The name of {what} has control characters: {shown(name)}. Use plain text.")
    return str(name)  # a subclass, such as numpy's, shows itself otherwise


def check_size(size: object, what: str, error: type[MeshError] | Any = MeshError) -> int:
    """`size` as an int, if it is a whole number.

    Raises:
        MeshError: or the given class, otherwise.
    """
    if isinstance(size, (bool, np.bool_)):
        raise error(f"{what} must be a whole number; got {size!r}.")
    try:
        return operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        raise error(f"{what} must be a whole number; got {shown(size)}.") from None
