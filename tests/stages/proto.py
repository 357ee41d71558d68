"""XLA's modules as XLA serialises them, read without the package.

A protocol buffer is read by its field numbers, which are those of XLA's `hlo.proto` and
`xla_data.proto`; a parser of the wire format takes a few lines, and no generated code is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

KINDS = {
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
}
CONTROL = {"while", "conditional", "call"}
# PrimitiveType of xla_data.proto: name and bytes.
_TYPES = {
    1: ("bool", 1), 2: ("int8", 1), 3: ("int16", 2), 4: ("int32", 4), 5: ("int64", 8),
    6: ("uint8", 1), 7: ("uint16", 2), 8: ("uint32", 4), 9: ("uint64", 8), 10: ("float16", 2),
    11: ("float32", 4), 12: ("float64", 8), 13: ("tuple", 0), 15: ("complex64", 8),
    16: ("bfloat16", 2), 17: ("token", 0), 18: ("complex128", 16),
}  # fmt: skip
_TUPLE = 13


class Message:
    """The fields of one message, by number; what is repeated keeps its order."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[Any]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def number(self, field: int, default: int = 0) -> int:
        return self._fields.get(field, [default])[-1]

    def text(self, field: int) -> str:
        return self._fields.get(field, [b""])[-1].decode()

    def messages(self, field: int) -> list[Message]:
        return [Message(data) for data in self._fields.get(field, ())]

    def numbers(self, field: int) -> list[int]:
        """A repeated number, packed or not."""
        found: list[int] = []
        for value in self._fields.get(field, ()):
            found += [value] if isinstance(value, int) else _packed(value)
        return found

    def has(self, field: int) -> bool:
        return field in self._fields


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
        elif key & 7 == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            width = {1: 8, 5: 4}[key & 7]
            value, at = data[at : at + width], at + width
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        result |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return result, at


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


@dataclass(frozen=True)
class Shape:
    """One array's type: dtype as numpy names it, global or local dimensions."""

    dtype: str
    dims: tuple[int, ...]
    size: int

    @property
    def bytes(self) -> int:
        return math.prod(self.dims) * self.size


class Instruction:
    """One instruction of a module, with what the tests compare."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self.name = message.text(1)
        self.opcode = message.text(2)
        self.kind = self.opcode.removesuffix("-start")
        metadata = next(iter(message.messages(7)), Message(b""))
        self.op_name = metadata.text(2)
        self.frame = metadata.number(15)
        self.called = message.numbers(38)
        self.parameter = message.number(9)
        self.number = message.number(35)
        self.custom_target = message.text(28)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The arrays of its result."""
        return tuple(_shapes(self._message.messages(3)[0]))

    @cached_property
    def shardings(self) -> tuple[Message, ...]:
        """OpSharding of each array of the result; none where it is left unsaid."""
        found = self._message.messages(40)
        if found and found[0].number(1) == 2:
            return tuple(found[0].messages(5))
        return tuple(found)


def _shapes(message: Message) -> Iterator[Shape]:
    if message.number(2) == _TUPLE:
        for part in message.messages(4):
            yield from _shapes(part)
    else:
        dtype, size = _TYPES[message.number(2)]
        yield Shape(dtype, tuple(message.numbers(3)), size)


class Module:
    """A serialised module: its computations, by number, and what loops reach."""

    def __init__(self, data: bytes) -> None:
        message = Message(data)
        # A dump is an HloProto, which holds the module in its field 1.
        if not message.has(3):
            message = message.messages(1)[0]
        self.computations: dict[int, list[Instruction]] = {}
        self.roots: dict[int, int] = {}
        for computation in message.messages(3):
            number = computation.number(5)
            self.computations[number] = [Instruction(i) for i in computation.messages(2)]
            self.roots[number] = computation.number(6)
        self.entry = message.number(6)

    @property
    def instructions(self) -> list[Instruction]:
        return [i for found in self.computations.values() for i in found]

    @property
    def root(self) -> Instruction:
        """What the module returns."""
        wanted = self.roots[self.entry]
        return next(i for i in self.computations[self.entry] if i.number == wanted)

    def program(self) -> list[Instruction]:
        """The instructions that work on arrays: without the bodies of sums, sorts and scatters."""
        todo, reached = [self.entry], list[int]()
        while todo:
            computation = todo.pop()
            if computation not in reached:
                reached.append(computation)
                callers = (i for i in self.computations[computation] if i.opcode in CONTROL)
                todo += [c for i in callers for c in i.called]
        return [i for number in reached for i in self.computations[number]]
