"""The expression that makes a value again, for the Explorer's code."""

from __future__ import annotations

import dataclasses
import math
import pprint
import sys
from typing import Any

from shardviz.core.layout.partition_spec import Spec, memory_of

LINE = 80  # characters; a longer expression is written on several lines


class Unwritable(Exception):
    """No short expression makes a value; the argument is its type."""


class Name:
    """A piece of source in an expression, such as a variable.

    >>> written({"w": Name("w_in"), "layers": [Name("a"), None]})
    "{'w': w_in, 'layers': [a, None]}"
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def sharding_code(spec: Spec, memory_kind: str | None = None) -> str:
    """The expression of a sharding over the variable `mesh`.

    >>> sharding_code(Spec.parse("data, None"))
    "NamedSharding(mesh, P('data', None))"
    """
    if memory_kind is None:
        return f"NamedSharding(mesh, {spec})"
    return f"NamedSharding(mesh, {spec}, memory_kind={memory_kind!r})"


def written(value: Any, imports: set[str] | None = None) -> str:
    """The expression that makes a value, on several lines where it is long.

    Args:
        value: names, specs, plain values, and containers of them: dicts, lists, tuples,
            named tuples and dataclasses.
        imports: the modules that the expression names are added to it.

    Raises:
        Unwritable: for anything else.
    """
    parts = _written(value, set() if imports is None else imports)
    return pprint.pformat(parts, width=LINE, sort_dicts=False)


def _written(value: Any, imports: set[str]) -> Any:
    """The value with names in the place of everything whose repr is not its source."""
    kind = type(value)
    if isinstance(value, Spec):
        return Name(sharding_code(value, memory_of(value)))
    if kind in (Name, type(None), bool, int, str, bytes):
        return value
    if kind in (float, complex) and math.isfinite(abs(value)):
        return value
    if kind is dict:
        return {_written(k, imports): _written(v, imports) for k, v in value.items()}
    if kind in (list, tuple):
        return kind(_written(part, imports) for part in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = value._fields  # type: ignore[attr-defined]
    elif dataclasses.is_dataclass(value) and all(
        f.init for f in dataclasses.fields(value)
    ):
        names = [field.name for field in dataclasses.fields(value)]
    else:
        raise Unwritable(kind)
    call = kind.__qualname__
    if kind.__module__ != "__main__":
        if getattr(sys.modules.get(kind.__module__), call, None) is not kind:
            raise Unwritable(kind)
        imports.add(kind.__module__)
        call = f"{kind.__module__}.{call}"
    fields = [f"{n}={_written(getattr(value, n), imports)!r}" for n in names]
    return Name(f"{call}({', '.join(fields)})")
