"""The base class of values that show themselves at the end of a notebook cell.

`core` draws no pictures: `shardviz/__init__.py` sets the renderer when the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Displayed:
    """A value with a picture: text always, PNG where a notebook can show it."""

    __slots__ = ()
    renderer: ClassVar[Callable[[Any], dict[str, Any]] | None] = None

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if Displayed.renderer is None:
            return {"text/plain": repr(self)}
        return Displayed.renderer(self)
