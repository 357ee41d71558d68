"""What jax and flax are made of, to compare before, while and after shardviz works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

_LIBRARIES = ("jax", "jaxlib", "flax")


class State:
    """What every name in the loaded modules of the libraries is bound to now.

    Of functions, those in classes included, also their code and defaults.
    """

    def __init__(self) -> None:
        self._values: list[tuple[Any, str, Any]] = []
        self._functions: list[tuple[str, FunctionType, Any]] = []
        for name, holder in _holders():
            for key, value in list(vars(holder).items()):
                self._values.append((holder, key, value))
                if isinstance(value, FunctionType):
                    self._functions.append((f"{name}.{key}", value, _inside(value)))

    def changed(self) -> list[str]:
        """The names that are bound to something else by now, and functions that are not as before.

        A module that was imported meanwhile adds names, which is no change of what was there.
        """
        found = []
        for holder, key, value in self._values:
            if vars(holder).get(key, self) is not value:
                found.append(f"{holder.__name__}.{key}")
        for name, function, inside in self._functions:
            if any(a is not b for a, b in zip(_inside(function), inside, strict=True)):
                found.append(name)
        return found


def _inside(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _holders() -> Iterator[tuple[str, Any]]:
    """The modules, and the classes that they define."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] in _LIBRARIES:
            yield name, module
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{key}", value
