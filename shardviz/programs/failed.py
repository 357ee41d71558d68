"""CanFail: values that raise their error for attributes that they do not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, replace
from typing import Any, ClassVar, NoReturn, Self, TypeVar

from shardviz.base.errors import ProgramError, ShardvizError, TargetError
from shardviz.programs.failure import Failure

_Class = TypeVar("_Class", bound="type[CanFail]")


class CanFail:
    """A dataclass with an `error` that can leave other fields without a value.

    Reading such a field raises the error. Comparisons, `dataclasses.replace` and
    `dataclasses.fields` of the value leave it out, so that a failed value can be copied.
    """

    _may_lack: ClassVar[Mapping[str, _FieldThatMayLack]] = {}

    def has(self, name: str) -> bool:
        """False if reading this attribute raises the value's error.

        >>> from shardviz.compiled.report import Report
        >>> report = Report("f", "", lower_s=0.1, error=Failure("compile", "Too many."))
        >>> report.has("lower_s"), report.has("collectives")
        (True, False)
        """
        field = self._may_lack.get(name)
        return field is None or not field.is_lacking(self)

    @property
    def without_error(self) -> Self:
        """A copy without the error; fields that lacked a value have their defaults."""
        return self if self.error is None else replace(self, error=None)  # type: ignore[attr-defined, type-var]

    def _compared(self) -> tuple[object, ...]:
        _ = self.error  # type: ignore[attr-defined]  a plan is complete once it is read
        fields = type(self).__dataclass_fields__.values()  # type: ignore[attr-defined]
        return tuple(vars(self)[field.name] for field in fields if field.compare)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())


def lacking_after_errors(**needed: tuple[str, ...]) -> Callable[[_Class], _Class]:
    """Decorates a dataclass: an error leaves these fields without a value.

    A failed value lacks a field if the field and the field that it depends on both have
    their defaults.

    Args:
        **needed: the name of a field, and the names of the fields that are known only
            if that field is known.
    """

    def decorate(cls: _Class) -> _Class:
        fields: dict[str, Field[Any]] = cls.__dataclass_fields__  # type: ignore[attr-defined]
        may_lack = dict(cls._may_lack)
        for marker, names in needed.items():
            for name in (marker, *names):
                may_lack[name] = _FieldThatMayLack(fields[name], fields[marker])
                setattr(cls, name, may_lack[name])
        cls._may_lack = may_lack
        cls.__dataclass_fields__ = _FieldsOfValue(fields)  # type: ignore[attr-defined]
        return cls

    return decorate


class _FieldThatMayLack:
    """A field of a CanFail: a data descriptor, so that it precedes the `__dict__`."""

    def __init__(self, field: Field[Any], needed: Field[Any]) -> None:
        self.name, self.default = field.name, _default(field)
        self.needed = needed.name
        self.defaults = [(f.name, _default(f)) for f in (needed, field)]

    def is_lacking(self, value: Any) -> bool:
        values = vars(value)
        # Reading the error of a plan completes it, which can take long.
        if not {self.name, self.needed} <= values.keys() and value.error is None:
            return False
        for name, default in self.defaults:
            if values[name] != default:
                return False
        return value.error is not None

    def __get__(self, value: Any, owner: object = None) -> Any:
        if value is None:
            return self.default
        if self.is_lacking(value):
            _raise(value, self.name)
        return vars(value)[self.name]

    def __set__(self, value: Any, new: object) -> None:
        vars(value)[self.name] = new


def _default(field: Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is MISSING else factory()


def _raise(value: Any, name: str) -> NoReturn:
    error: object = value.error
    if isinstance(error, ShardvizError):
        raise error
    is_target = isinstance(error, Failure) and error.stage == "target"
    kind = TargetError if is_target else ProgramError
    raise kind(f"A failed {type(value).__name__} has no {name}. {error}")


class _FieldsOfValue:
    """`__dataclass_fields__`: all fields of a class, but of a value those it has.

    The functions of `dataclasses` read all fields of a value, which would raise.
    """

    def __init__(self, fields: Mapping[str, Field[Any]]) -> None:
        self.fields = fields

    def __get__(self, value: Any, owner: object = None) -> Mapping[str, Field[Any]]:
        if value is None or value.error is None:
            return self.fields
        return {name: field for name, field in self.fields.items() if value.has(name)}
