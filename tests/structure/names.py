"""The public names of a package, what they lead to, and whether each is documented."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

EXAMPLE = ">>> "


def modules_below(package: ModuleType) -> list[ModuleType]:
    """Every module of a package, imported."""
    names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [package, *map(importlib.import_module, names)]


def public_classes(modules: Iterable[ModuleType]) -> dict[str, type]:
    """The classes that these modules define under names without an underscore, by name."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
    }


def reachable(start: Iterable[Any], classes: Mapping[str, type]) -> list[type]:
    """The classes that somebody holds who begins with `start`.

    A function leads to what its annotation says it returns; a class to itself, to its annotated
    attributes and to what its methods and properties return.
    """
    seen: dict[str, type] = {}
    queue = list(start)
    while queue:
        value = queue.pop()
        owner = value if inspect.isclass(value) or callable(value) else type(value)
        if inspect.isclass(owner) and classes.get(owner.__name__) is owner:
            if owner.__name__ in seen:
                continue
            seen[owner.__name__] = owner
        queue.extend(classes[n] for n in _names_in(_annotations(owner)) if n in classes)
    return [seen[name] for name in sorted(seen)]


def _annotations(owner: Any) -> Iterator[object]:
    if not inspect.isclass(owner):
        yield getattr(owner, "__annotations__", {}).get("return", "")
        return
    for name, annotation in vars(owner).get("__annotations__", {}).items():
        if name[0] != "_":
            yield annotation
    for _, function in members(owner):
        yield function.__annotations__.get("return", "")


def _names_in(annotations: Iterable[object]) -> set[str]:
    texts = (a if isinstance(a, str) else getattr(a, "__name__", str(a)) for a in annotations)
    return {name for text in texts for name in re.findall(r"[A-Za-z]\w*", text)}


def members(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods and properties that a class defines itself, as functions."""
    for name, value in vars(cls).items():
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        value = getattr(value, "fget", getattr(value, "func", value))
        if name[0] != "_" and inspect.isfunction(value):
            yield name, value


def undocumented(name: str, value: Any) -> list[str]:
    """What a public function, class or object lacks: words, or an example that is run."""
    if inspect.isfunction(value):
        return _lacks(name, value.__doc__ or "", value.__doc__ or "")
    cls = value if inspect.isclass(value) else type(value)
    functions = dict(members(cls))
    # A dataclass without a docstring gets its signature for one.
    own = "" if (cls.__doc__ or "").startswith(f"{cls.__name__}(") else cls.__doc__ or ""
    examples = own + "".join(f.__doc__ or "" for f in functions.values())
    silent = [f"{name}.{n} has no docstring" for n, f in functions.items() if not f.__doc__]
    return _lacks(name, own, examples) + silent


def _lacks(name: str, words: str, examples: str) -> list[str]:
    if not words.strip():
        return [f"{name} has no docstring"]
    return [] if EXAMPLE in examples else [f"{name} has no doctest"]
