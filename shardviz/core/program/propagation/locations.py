"""Where an operation of a module comes from: its name in jax, and the user's lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from shardviz.core.program.hlo.sources import is_user_file, place_in_words

_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"(?!:\d)')
_FRAME = re.compile(r'(?:"((?:[^"\\]|\\.)*)"\()?"((?:[^"\\]|\\.)*)":(\d+):\d+')
_CODE = re.compile(r"\\([0-9A-F]{2})")

Frame = tuple[str, str]


@dataclass(frozen=True)
class Place:
    """Where an operation comes from.

    Attributes:
        op: its name in jax: `jit(f)/dot_general`; inside of a function that is called, only what
            follows the name of the call.
        frames: the lines of the user's code that led to it, innermost first, each with the
            function that it stands in, or `""`.

    >>> Place("jit(f)/jit(relu)", (("f.py:3", "f"),)).inner(Place("max")).op
    'jit(f)/jit(relu)/max'
    """

    op: str = ""
    frames: tuple[Frame, ...] = ()

    @staticmethod
    def of_lines(op: str, lines: tuple[str, ...]) -> Place:
        """A place of which only the lines are known."""
        return Place(op, tuple((line, "") for line in lines))

    @staticmethod
    def told(op: str, frames: Iterable[Frame]) -> Place:
        """A place with each frame once: in loops and calls jax tells of some twice."""
        return Place(op, tuple(dict.fromkeys(frames)))

    @cached_property
    def stack(self) -> tuple[str, ...]:
        """The lines alone, innermost first, each once."""
        return tuple(dict.fromkeys(line for line, _ in self.frames))

    @property
    def source(self) -> str:
        """The innermost line, or `""`."""
        return self.stack[0] if self.stack else ""

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """The functions by their own names, outermost first; the code outside of any left out.

        >>> Place("add", (("f.py:3", "f.<locals>.g"), ("f.py:9", "<module>"))).calls
        ('g',)
        """
        names = (name.rpartition("<locals>.")[2] for _, name in reversed(self.frames))
        return tuple(name for name in names if name not in ("", "<module>"))

    def inner(self, place: Place) -> Place:
        """A place inside of the function that is called here, told from the outside."""
        return _inside(self, place) if self.op or self.frames else place


NOWHERE = Place()


@lru_cache(maxsize=4096)
def place(location: str) -> Place:
    """The place that the text of an MLIR location tells of.

    >>> place('loc("jit(f)/dot"(callsite("f"("/me/a.py":3:1 to :5) at "g"("/me/b.py":9:0))))')
    Place(op='jit(f)/dot', frames=(('a.py:3', 'f'), ('b.py:9', 'g')))
    """
    found = _NAME.search(location)
    # A location without a name begins with a file, or with the name of a function in a callsite.
    named = found is not None and not location.startswith("loc(callsite")
    name_at = found.start() if found else -1
    frames: list[Frame] = []
    for match in _FRAME.finditer(location):
        function, file, line = match.groups()
        if named and match.start() == name_at:
            function = ""  # the name of the operation, which may be all that is before a file
        frames += frame(unescaped(function or ""), file, line)
    return Place.told(unescaped(found[1]) if found and named else "", frames)


def frame(function: str, file: str, line: str | int) -> tuple[Frame, ...]:
    """A frame of the user's code; of none where the file is not the user's.

    >>> frame("f", "/me/a.py", 3), frame("f", "-", 3)
    ((('a.py:3', 'f'),), ())
    """
    # MLIR calls text that was read from memory "-": a place in the module, in nobody's code.
    if file == "-" or not is_user_file(file):
        return ()
    return ((place_in_words(file, str(line)), function),)


@lru_cache(maxsize=4096)
def _inside(call: Place, place: Place) -> Place:
    names = "/".join(part for part in (call.op, place.op) if part)
    if place.op and place.op.split("/")[0] == call.op.split("/")[0]:
        names = place.op  # it is told from the outside already
    return Place.told(names, _joined(place.frames, call.frames))


def _joined(inner: tuple[Frame, ...], outer: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames inside of a call with those that led to it.

    jax keeps a function that it has traced, with the lines that called it first; what differs in
    them from this call is left out.
    """
    shared = 0
    while shared < min(len(inner), len(outer)) and inner[-1 - shared] == outer[-1 - shared]:
        shared += 1
    own, rest = inner[: len(inner) - shared], outer[: len(outer) - shared]
    if len(own) > 1 and rest and _function(own[-1]) == _function(rest[-1]) != ("", ""):
        own = own[:-1]
    return (*own, *outer)


def _function(frame: Frame) -> tuple[str, str]:
    """File and name of the function that a frame stands in."""
    return (frame[0].rpartition(":")[0], frame[1]) if frame[1] else ("", "")


def unescaped(text: str) -> str:
    """A string of MLIR's text as it was.

    >>> unescaped("say \\\\22hello\\\\22")
    'say "hello"'
    """
    if "\\" not in text:
        return text
    raw = _CODE.sub(lambda code: chr(int(code[1], 16)), text)
    return raw.replace('\\"', '"').replace("\\\\", "\\")
