"""Where an operation of a module comes from: its name in jax, and the user's lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from shardviz.core.program.hlo.sources import is_user_file, place_in_words

_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"(?!:\d)')
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_CODE = re.compile(r"\\([0-9A-F]{2})")


@dataclass(frozen=True)
class Place:
    """Where an operation comes from.

    Attributes:
        op: its name in jax: `jit(f)/dot_general`; inside of a function that is called, only what
            follows the name of the call.
        stack: the lines of the user's code that led to it, innermost first.

    >>> Place("jit(f)/jit(relu)", ("f.py:3",)).inner(Place("max")).op
    'jit(f)/jit(relu)/max'
    """

    op: str = ""
    stack: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The innermost line, or `""`."""
        return self.stack[0] if self.stack else ""

    def inner(self, place: Place) -> Place:
        """A place inside of the function that is called here, told from the outside."""
        names = "/".join(part for part in (self.op, place.op) if part)
        if place.op and place.op.split("/")[0] == self.op.split("/")[0]:
            names = place.op  # it is told from the outside already
        return Place(names, _without_repeats((*place.stack, *self.stack)))


NOWHERE = Place()


@lru_cache(maxsize=16384)
def place(location: str) -> Place:
    """The place that the text of an MLIR location tells of.

    >>> place('loc("jit(f)/dot"(callsite("f"("/me/a.py":3:1 to :5) at "g"("/me/b.py":9:0))))')
    Place(op='jit(f)/dot', stack=('a.py:3', 'b.py:9'))
    """
    found = _NAME.search(location)
    frames = _FILE.findall(location)
    # A location without a name begins with a file, or with the name of a function in a callsite.
    named = found is not None and not location.startswith("loc(callsite")
    # MLIR calls text that was read from memory "-": a place in the module, in nobody's code.
    lines = [place_in_words(f, line) for f, line in frames if f != "-" and is_user_file(f)]
    return Place(unescaped(found[1]) if found and named else "", _without_repeats(tuple(lines)))


def unescaped(text: str) -> str:
    """A string of MLIR's text as it was.

    >>> unescaped("say \\\\22hello\\\\22")
    'say "hello"'
    """
    if "\\" not in text:
        return text
    raw = _CODE.sub(lambda code: chr(int(code[1], 16)), text)
    return raw.replace('\\"', '"').replace("\\\\", "\\")


def _without_repeats(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line for line, _ in groupby(lines))
