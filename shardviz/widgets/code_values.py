"""Python values as the source that makes them: containers, plain values, and names in them."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from shardviz.core.layout.spec import Spec

LINE = 96


class Unwritable(Exception):
    """A value that no short expression makes; the type is its argument."""


class Name:
    """A place in a container that a variable fills.

    >>> written({"w": Name("w_in"), "layers": [Name("a"), None]})
    "{'w': w_in, 'layers': [a, None]}"
    """

    def __init__(self, text: str) -> None:
        self.text = text


def sharding_code(spec: Spec, memory_kind: str | None = None) -> str:
    """The expression of a sharding over the code's mesh.

    >>> sharding_code(Spec.parse("data, None"))
    "NamedSharding(mesh, P('data', None))"
    """
    kind = "" if memory_kind is None else f", memory_kind={memory_kind!r}"
    return f"NamedSharding(mesh, {spec}{kind})"


def written(value: Any, indent: int = 0, imports: set[str] | None = None) -> str:
    """The expression that makes a value, broken over lines where it is long.

    Args:
        value: names, specs, plain values, and containers of them: dicts, lists, tuples, named
            tuples and dataclasses.
        indent: how far the line it stands in is set in.
        imports: takes up the modules that the expression names.

    Raises:
        Unwritable: for anything else.
    """
    imports = set() if imports is None else imports
    if isinstance(value, Name):
        return value.text
    if isinstance(value, Spec):
        return sharding_code(value)
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if type(value) in (float, complex):
        if not math.isfinite(abs(value)):
            raise Unwritable(float)
        return repr(value)
    inner = indent + 4
    if type(value) is dict:
        return _joined("{", _pairs(value, inner, imports), "}", indent)
    if type(value) is OrderedDict:
        imports.add("collections")
        return f"collections.OrderedDict({written(dict(value), indent, imports)})"
    if type(value) in (list, tuple):
        ends = "[]" if type(value) is list else "()"
        items = [written(v, inner, imports) for v in value]
        only = type(value) is tuple and len(items) == 1
        return _joined(ends[0], items, ends[1], indent, "," if only else "")
    return _joined(f"{_class(value, imports)}(", _fields(value, inner, imports), ")", indent)


def _pairs(value: dict[Any, Any], indent: int, imports: set[str]) -> list[str]:
    return [
        f"{written(key, indent, imports)}: {written(v, indent, imports)}"
        for key, v in value.items()
    ]


def _fields(value: Any, indent: int, imports: set[str]) -> list[str]:
    """The keyword arguments that make a named tuple or a dataclass anew."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names: Iterable[str] = value._fields  # type: ignore[attr-defined]
    elif dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        if not all(f.init for f in fields):
            raise Unwritable(type(value))
        names = [f.name for f in fields]
    else:
        raise Unwritable(type(value))
    return [f"{n}={written(getattr(value, n), indent, imports)}" for n in names]


def _class(value: Any, imports: set[str]) -> str:
    """How new code names the class of a value."""
    kind = type(value)
    module, name = kind.__module__, kind.__qualname__
    if module == "__main__":
        return name
    if getattr(sys.modules.get(module), name, None) is not kind:
        raise Unwritable(kind)
    imports.add(module)
    return f"{module}.{name}"


def _joined(opening: str, items: list[str], closing: str, indent: int, last: str = "") -> str:
    line = f"{opening}{', '.join(items)}{last}{closing}"
    if "\n" not in line and indent + len(line) <= LINE:
        return line
    inside = "".join(f"{' ' * (indent + 4)}{item},\n" for item in items)
    return f"{opening}\n{inside}{' ' * indent}{closing}"
