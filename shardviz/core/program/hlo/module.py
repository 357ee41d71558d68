"""The text of a module by line: its computations, the instructions in them, and who calls whom.

Nothing is parsed in full. Positions in the text stand for instructions, and only the lines that
somebody asks for are read. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

HEAD = re.compile(r"\s*(?:ROOT )?(%?([\w.\-]+)) = ")

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$", re.M)
_CALLED = re.compile(r"=%([\w.\-]+)")
_BRANCHES = re.compile(r"_computations=\{([^}]*)\}")  # branch_ of a conditional, called_ of others
_OPERAND = re.compile(r"%([\w.\-]+)(?:#(\d+))?")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")


class Call(NamedTuple):
    """One place where a computation is named by an instruction.

    Attributes:
        attribute: `body`, `condition`, `calls`, `to_apply`, `branch` …
        start: where the line of the instruction starts.
    """

    attribute: str
    start: int


class Operand(NamedTuple):
    """What an instruction reads: a value, or one element of a tuple, `%param.1#0`."""

    name: str
    element: int | None


class Module:
    """One module's text."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _heads(self) -> tuple[list[int], list[str]]:
        starts, names = [], []
        # Few lines end with a brace: looked for first, since a pattern would try every line.
        end = self.text.find(" {\n")
        while end >= 0:
            start = self.line_start(end)
            if head := _COMPUTATION.match(self.text, start):
                starts.append(start)
                names.append(head[1])
            end = self.text.find(" {\n", end + 1)
        return starts, names

    def computation_at(self, position: int) -> str:
        """The computation that a position of the text stands in, or `""`."""
        starts, names = self._heads
        at = bisect_right(starts, position) - 1
        return names[at] if at >= 0 else ""

    def span_at(self, position: int) -> tuple[int, int]:
        """Where the computation around a position starts and ends."""
        starts, _ = self._heads
        at = bisect_right(starts, position)
        return (starts[at - 1] if at else 0, starts[at] if at < len(starts) else len(self.text))

    @cached_property
    def starts(self) -> dict[str, int]:
        """Computation to where its head stands."""
        starts, names = self._heads
        return dict(zip(names, starts, strict=True))

    @cached_property
    def calls(self) -> dict[str, list[Call]]:
        """Computation to the instructions that name it."""
        found: dict[str, list[Call]] = defaultdict(list)
        for match in _CALLED.finditer(self.text):
            if match[1] in self.starts:
                before = self.text[max(match.start() - 40, 0) : match.start()]
                word = before.rpartition(" ")[2]
                found[match[1]].append(Call(word, self.line_start(match.start())))
        for match in _BRANCHES.finditer(self.text):
            for name, _ in _OPERAND.findall(match[1]):
                found[name].append(Call("branch", self.line_start(match.start())))
        return dict(found)

    def line_start(self, position: int) -> int:
        """Where the line around a position starts."""
        return self.text.rfind("\n", 0, position) + 1

    def line_at(self, start: int) -> str:
        """The line that starts there."""
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)]

    def definition(self, name: str, position: int) -> str:
        """The line that makes `name` in the computation around a position, or `""`."""
        begin, end = self.span_at(position)
        at = self.text.find(f"%{name} = ", begin, end)
        return self.line_at(self.line_start(at)) if at >= 0 else ""

    def root(self, computation: str) -> str:
        """The line of a computation's result, or `""`."""
        begin = self.starts.get(computation)
        if begin is None:
            return ""
        at = self.text.find("\n  ROOT ", begin, self.span_at(begin)[1])
        return self.line_at(at + 1) if at >= 0 else ""

    def users(self, start: int, limit: int = 2) -> list[int]:
        """Where the first lines start that read what the line at `start` makes."""
        head = HEAD.match(self.text, start)
        if head is None:
            return []
        return self.mentions(head[1], head.end(), self.span_at(start)[1], limit)

    def mentions(self, name: str, begin: int, end: int, limit: int = 2) -> list[int]:
        """Where the first lines start that name something, between two positions."""
        starts: list[int] = []
        at = self.text.find(name, begin, end)
        while at >= 0 and len(starts) < limit:
            if self.text[at + len(name) : at + len(name) + 1] in (",", ")", " ", "#"):
                starts.append(self.line_start(at))
            at = self.text.find(name, at + 1, end)
        return starts


def opcode(line: str) -> str:
    """The operation of an instruction's line.

    >>> opcode("  %a.1 = f32[4]{0:T(256)} add(%b, %c), metadata={op_name=\\"f(x)\\"}")
    'add'
    """
    head = HEAD.match(line)
    found = _OPCODE.search(line, head.end() - 1) if head else None
    return found[1] if found else ""


def operands(line: str) -> list[Operand]:
    """What an instruction reads, in order.

    >>> operands("  %t = (s32[], f32[4]{0}) tuple(%i, /*index=1*/%p.1#3), sharding={replicated}")
    [Operand(name='i', element=None), Operand(name='p.1', element=3)]
    """
    head = HEAD.match(line)
    found = _OPCODE.search(line, head.end() - 1) if head else None
    if found is None:
        return []
    inside = line[found.end() : _closing(line, found.end())]
    return [Operand(n, int(e) if e else None) for n, e in _OPERAND.findall(inside)]


def _closing(line: str, begin: int) -> int:
    """Where the parenthesis closes that was opened before `begin`."""
    at = line.find(")", begin)
    while at >= 0 and line.count("(", begin, at) > line.count(")", begin, at):
        at = line.find(")", at + 1)
    return at if at >= 0 else len(line)
