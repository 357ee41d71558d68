"""The expression that makes a value again, for the Explorer's code."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from shardviz.core.layout.partition_spec import Spec, memory_of

LINE = 96  # characters; a longer expression is written on several lines


class Unwritable(Exception):
    """No short expression makes a value; the argument is its type."""


class Name:
    """A variable in an expression.

    >>> written({"w": Name("w_in"), "layers": [Name("a"), None]})
    "{'w': w_in, 'layers': [a, None]}"
    """

    def __init__(self, text: str) -> None:
        self.text = text


def sharding_code(spec: Spec, memory_kind: str | None = None) -> str:
    """The expression of a sharding over the variable `mesh`.

    >>> sharding_code(Spec.parse("data, None"))
    "NamedSharding(mesh, P('data', None))"
    """
    if memory_kind is None:
        return f"NamedSharding(mesh, {spec})"
    return f"NamedSharding(mesh, {spec}, memory_kind={memory_kind!r})"


def written(value: Any, indent: int = 0, imports: set[str] | None = None) -> str:
    """The expression that makes a value, on several lines where it is long.

    Args:
        value: names, specs, plain values, and containers of them: dicts, lists, tuples,
            named tuples and dataclasses.
        indent: of the line with the expression, in spaces.
        imports: the modules that the expression names are added to it.

    Raises:
        Unwritable: for anything else.
    """
    imports = set() if imports is None else imports
    kind, inner = type(value), indent + 4
    if isinstance(value, Name):
        return value.text
    if isinstance(value, Spec):
        return sharding_code(value, memory_of(value))
    if kind in (float, complex) and not math.isfinite(abs(value)):
        raise Unwritable(kind)
    if value is None or kind in (bool, int, str, bytes, float, complex):
        return repr(value)
    if kind is OrderedDict:
        imports.add("collections")
        return f"collections.OrderedDict({written(dict(value), indent, imports)})"
    if kind is dict:
        items = []
        for key, part in value.items():
            parts = (written(key, inner, imports), written(part, inner, imports))
            items.append(": ".join(parts))
        return _joined("{", items, "}", indent)
    if kind in (list, tuple):
        items = [written(part, inner, imports) for part in value]
        if kind is list:
            return _joined("[", items, "]", indent)
        # A tuple of one item needs a comma.
        return _joined("(", items, ")", indent, "," if len(items) == 1 else "")
    fields = _fields(value, inner, imports)
    return _joined(f"{_class(value, imports)}(", fields, ")", indent)


def _fields(value: Any, indent: int, imports: set[str]) -> list[str]:
    """The keyword arguments that make a named tuple or a dataclass."""
    names: Sequence[str]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = value._fields  # type: ignore[attr-defined]
    elif dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        if not all(field.init for field in fields):
            raise Unwritable(type(value))
        names = [field.name for field in fields]
    else:
        raise Unwritable(type(value))
    return [f"{n}={written(getattr(value, n), indent, imports)}" for n in names]


def _class(value: Any, imports: set[str]) -> str:
    """The name of a value's class in new code."""
    kind = type(value)
    module, name = kind.__module__, kind.__qualname__
    if module == "__main__":
        return name
    if getattr(sys.modules.get(module), name, None) is not kind:
        raise Unwritable(kind)
    imports.add(module)
    return f"{module}.{name}"


def _joined(
    opening: str, items: Sequence[str], closing: str, indent: int, last: str = ""
) -> str:
    line = f"{opening}{', '.join(items)}{last}{closing}"
    if "\n" not in line and indent + len(line) <= LINE:
        return line
    lines = [f"{' ' * (indent + 4)}{item},\n" for item in items]
    return f"{opening}\n{''.join(lines)}{' ' * indent}{closing}"
