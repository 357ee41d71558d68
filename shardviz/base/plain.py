"""Values as plain data, for JSON (`to_dict`) and for tables of pandas (`columns`).

`to_dict` has the public fields of a dataclass that comparisons read, and the properties
in `_adds`. For a fact, it also has the class and the sentence. A mesh or a spec that is
part of another value becomes text (`_is_text`).

Functions, outputs and other objects that JSON can't hold are left out. Arrays of more
than MOST_NUMBERS numbers, such as the blocks of a million devices, become None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from copy import copy
from dataclasses import Field, InitVar, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from shardviz.base.errors import ShardvizError

if TYPE_CHECKING:
    from shardviz.base.typing import JsonDict

MOST_NUMBERS = 1 << 14
_LEFT_OUT = object()
_Class = TypeVar("_Class", bound=type)


class Plain:
    """A value that converts itself to plain data."""

    __slots__ = ()
    _adds: ClassVar[tuple[str, ...]] = ()
    _omits: ClassVar[tuple[str, ...]] = ()
    _is_text: ClassVar[bool] = False

    def to_dict(self) -> JsonDict:
        """Returns the attributes as plain data: dicts, lists, text, numbers and None.

        Functions and outputs are left out; very large arrays become None.

        >>> from shardviz.base.array_spec import ArraySpec
        >>> ArraySpec("w", (8, 4), ("embed", "mlp")).to_dict()["logical"]
        ['embed', 'mlp']
        """
        names: list[str] = []
        if is_dataclass(self):
            for part in fields(type(self)):
                if (
                    part.compare
                    and part.name[0] != "_"
                    and part.name not in self._omits
                ):
                    names.append(part.name)
        entries: JsonDict = {}
        for name in (*names, *self._adds):
            # A failed value lacks attributes.
            try:
                entries[name] = plain(getattr(self, name))
            except ShardvizError:
                continue
        if isinstance(self, tuple):
            entries["items"] = plain(tuple(self))
        return _without_gaps(entries)


def plain(value: Any) -> Any:
    """Converts a value to plain data; used for the parts of a value.

    >>> import numpy as np
    >>> plain({"x": (np.int64(4), slice(0, 2), {"b", "a"})})
    {'x': [4, [0, 2, None], ['a', 'b']]}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # numpy's, which this module does not import: pytest loads it with our plugin.
    if type(value).__module__ == "numpy":
        return plain(value.tolist()) if value.size <= MOST_NUMBERS else None
    if isinstance(value, Plain):
        return str(value) if value._is_text else value.to_dict()
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    if isinstance(value, BaseException):
        return str(value)
    if hasattr(value, "_asdict"):  # a NamedTuple
        value = value._asdict()
    elif is_dataclass(value):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return _without_gaps({str(key): plain(entry) for key, entry in value.items()})
    if isinstance(value, Set):
        value = sorted(value, key=str)
    if not isinstance(value, Sequence):
        return _LEFT_OUT
    entries = map(plain, value)
    return [entry for entry in entries if entry is not _LEFT_OUT]


def _without_gaps(entries: JsonDict) -> JsonDict:
    return {name: entry for name, entry in entries.items() if entry is not _LEFT_OUT}


def columns(*names: str) -> Callable[[_Class], _Class]:
    """Decorates a dataclass, so that `pandas.DataFrame(values)` has these columns.

    Args:
        *names: fields, or properties, whose values are text, numbers or None.
    """

    def decorate(cls: _Class) -> _Class:
        cls.__dataclass_fields__ = _Columns(cls.__dataclass_fields__, names)  # type: ignore[attr-defined]
        return cls

    return decorate


@dataclass
class _Kinds:
    column: int
    hidden: InitVar[int] = 0


class _Columns:
    """`__dataclass_fields__`: all fields of a class, but only the columns of a value.

    pandas applies `dataclasses.asdict` to the values of a sequence. `asdict` skips the
    fields that only the constructor has; `replace` reads all.
    """

    def __init__(
        self, all_fields: Mapping[str, Field[Any]], names: Sequence[str]
    ) -> None:
        kinds: Any = _Kinds.__dataclass_fields__
        self.all_fields, self.fields = all_fields, dict[str, Any]()
        for name in names:
            column: Any = all_fields.get(name) or copy(kinds["column"])
            if name not in all_fields:
                column.name, column.init, column.compare = name, False, False
            self.fields[name] = column
        for name, original in all_fields.items():
            if name not in names:
                hidden: Any = copy(kinds["hidden"])
                hidden.name, hidden.compare = name, original.compare
                self.fields[name] = hidden

    def __get__(self, value: Any, owner: object = None) -> Mapping[str, Field[Any]]:
        return self.all_fields if value is None else self.fields
