"""ImportedOnUse: a module that is imported when it is first used."""

from __future__ import annotations

import importlib
from typing import Any


class ImportedOnUse:
    """A module, or a name in it, that is imported when it is first used.

    >>> ImportedOnUse("math").sqrt(4.0), ImportedOnUse("math", "sqrt")(4.0)
    (2.0, 2.0)
    """

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def _imported(self) -> Any:
        module = importlib.import_module(self._module)
        return getattr(module, self._name) if self._name else module

    def __getattr__(self, name: str) -> Any:
        # Inspecting the globals of a function must not import jax.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._imported(), name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._imported()(*args, **keywords)
