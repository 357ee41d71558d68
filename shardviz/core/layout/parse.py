"""Parsing what people type: a tokenizer and a cursor for specs, rules, names and shapes.

Nothing here evaluates anything. Every complaint names the position and the text it stumbled on.
"""

from __future__ import annotations

import itertools
import operator
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from shardviz.core.errors import MeshError, ShardvizError
from shardviz.core.format import bytes_text, shown

MAX_NAME = 100
MAX_PATH = 1_000  # letters of a path that patterns are matched with


def read_text_file(path: Path, most: int) -> str:
    """The text of a file, if it is one and not too long; without a byte order mark.

    Args:
        path: the file.
        most: how many bytes are too many.

    Raises:
        ValueError: why there is none, in a phrase that a name can stand before.
    """
    data = b""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):  # a pipe or /dev/zero never ends
            with path.open("rb") as file:
                data = file.read(most + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot be opened: {why}") from None
    if not stat.S_ISREG(mode):
        raise ValueError("is a folder" if stat.S_ISDIR(mode) else "is no plain file")
    if len(data) > most:
        raise ValueError(f"is longer than {bytes_text(most)}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError("is no text in UTF-8")
    return text


def check_name(name: object, what: str, error: type[MeshError] | Any = MeshError) -> str:
    """`name` if it can be the name of an axis or array: short, printable text.

    Raises:
        MeshError: or the given class, otherwise.
    """
    if (
        type(name) is str
        and name.isprintable()
        and name == name.strip()
        and 0 < len(name) <= MAX_NAME
    ):
        return name
    if not isinstance(name, str):
        raise error(f"The name of {what} must be text; got {shown(name)}.")
    if not name or name != name.strip():
        raise error(
            f"The name of {what} must not be empty or have blanks around it; got {shown(name)}."
        )
    if len(name) > MAX_NAME:
        raise error(f"The name of {what} has {len(name):,} letters; at most {MAX_NAME}, please.")
    if not name.isprintable():
        raise error(f"The name of {what} has control characters: {shown(name)}. Use plain text.")
    return str(name)  # a subclass, such as numpy's, shows itself otherwise


def check_path(path: object, error: type[ShardvizError]) -> str:
    """`path` if patterns can be matched with it: printable text that is not too long.

    Raises:
        ShardvizError: of class `error`, otherwise.
    """
    if not isinstance(path, str):
        raise error(f"The path of an array is text such as 'mlp/0/kernel'; got {shown(path)}.")
    if len(path) > MAX_PATH:
        raise error(f"The path has {len(path):,} letters; at most {MAX_PATH:,} are matched.")
    if not path.isprintable():
        raise error(f"The path {shown(path)} has control characters. Use plain text.")
    return str(path)


def check_size(size: object, what: str, error: type[MeshError] | Any = MeshError) -> int:
    """`size` as an int, if it is a whole number.

    Raises:
        MeshError: or the given class, otherwise.
    """
    if isinstance(size, (bool, np.bool_)):
        raise error(f"{what} must be a whole number; got {size!r}.")
    try:
        return operator.index(size)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  a foreign __index__ may raise anything
        raise error(f"{what} must be a whole number; got {shown(size)}.") from None


_UNITS = {"": 1, "b": 1} | {
    prefix + middle + "b": base**power
    for power, prefix in enumerate("kmgtpe", 1)
    for middle, base in (("i", 1024), ("", 1000))
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)\s*([kmgtpe]?i?b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(size: object, what: str, error: type[ShardvizError]) -> int:
    """A number of bytes: as it is, or text with a unit, `"1 MiB"`, `"1.5 GB"`, `"512"`.

    Args:
        size: the number or text; `KiB` is 1,024 bytes and `KB` is 1,000.
        what: what it is, to begin a sentence with: `"The limit"`.

    Raises:
        ShardvizError: of class `error`, for anything else.

    >>> parse_bytes("1 MiB", "The limit", ShardvizError), parse_bytes("1.5KB", "It", ShardvizError)
    (1048576, 1500)
    """
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool) and 0 <= size < 1 << 63:
        return int(size)
    found = _SIZE.fullmatch(size.strip()) if isinstance(size, str) and len(size) < 100 else None
    if found is None:
        raise error(
            f"{what} is a number of bytes, or text such as '1 MiB' or '1.5 GB'; got {shown(size)}."
        )
    return int(Decimal(found[1]) * _UNITS[(found[2] or "").lower()])


def limited(values: Any, most: int, what: str, error: type[ShardvizError]) -> list[Any]:
    """The values of an iterable, which may be endless: no more than `most` are taken from it.

    Args:
        what: what they are, to begin a sentence with: `"The axes of a mesh"`.

    Raises:
        ShardvizError: of class `error`, where there are more, for what is no iterable, and where
            the iterable raises.

    >>> limited(iter("ab"), 2, "Letters", ShardvizError)
    ['a', 'b']
    """
    try:
        found = list(itertools.islice(values, most + 1))
    except Exception:  # noqa: BLE001  a foreign iterable may raise anything
        raise error(f"{what} must be a list or tuple; got {shown(values)}.") from None
    if len(found) > most:
        sized = isinstance(values, (Sequence, Mapping)) and len(values) > most
        count = f"{len(values):,}" if sized else "more"  # a user's own list may be endless
        raise error(f"{what} can be at most {most:,}; got {count}.")
    return found


def flat_numbers(values: Any, most: int, what: str, error: type[ShardvizError]) -> Any:
    """Whole numbers, nested as deep as may be, as one flat array, list or range.

    Nothing is made of a range of a billion, nor of an endless iterable, before it is known to be
    too long: of more than `most` numbers the first `most + 1` come back.

    Raises:
        ShardvizError: of class `error`, for what holds anything else.

    >>> flat_numbers([[0, 1], range(2, 9)], 3, "The ids", ShardvizError)
    [0, 1, 2, 3]
    """
    if isinstance(values, (list, tuple)) and set(map(type, values[: most + 1])) <= {int}:
        return values[: most + 1]
    try:
        if isinstance(values, range):
            return values[: most + 1]
        if hasattr(values, "__array__"):
            return np.asarray(values).reshape(-1)
        return list(itertools.islice(_numbers(values, 0), most + 1))
    except _NoNumber as found:
        raise error(f"{what} must be whole numbers; got {found}.") from None
    except Exception:  # noqa: BLE001  a foreign array or iterable may raise anything
        raise error(f"{what} must be whole numbers; got {shown(values)}.") from None


class _NoNumber(Exception):
    """What stands in the place of a number, as text."""


def _numbers(value: Any, depth: int) -> Iterator[int]:
    inside: Any = value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        yield int(value)
    elif depth > MAX_NESTING or isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise _NoNumber(shown(value))
    else:
        for inner in inside:
            yield from _numbers(inner, depth + 1)


MAX_NESTING = 32
MAX_TEXT = 200_000
MAX_TOKENS = 50_000

_TOKEN = re.compile(
    r"""
    (?P<blank>[ \t\r\n\u00a0]+|\#[^\n]*)
  | (?P<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
  | (?P<arrow>->|=>|→|⇒|:=)
  | (?P<punct>[(),\[\]{}=:;])
  | (?P<word>(?:(?!->|=>)[^\s,()\[\]{}=:;'"→⇒#])+)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token of typed text: its kind, its value, and where it starts (0-based)."""

    kind: str  # "string", "word", "arrow", "punct" or "end"
    value: str
    start: int


def tokenize(text: str, error: type[ShardvizError]) -> list[Token]:
    """The tokens of `text`, with one of kind "end" after them.

    Raises:
        ShardvizError: of class `error`, for text that is too long or has a stray quote.
    """
    if len(text) > MAX_TEXT:
        raise error(f"The text has {len(text):,} letters; at most {MAX_TEXT:,} are read.")
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise error(
                f"Cannot read {shown(text[at : at + 20])} at position {at + 1}; is a quote missing?"
            )
        kind, value = str(match.lastgroup), match.group()
        if kind == "string":
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        if kind != "blank":
            tokens.append(Token(kind, value, at))
        at = match.end()
        if len(tokens) > MAX_TOKENS:
            raise error(f"The text has more than {MAX_TOKENS:,} words; shorten it.")
    tokens.append(Token("end", "", len(text)))
    return tokens


def is_word(text: str) -> bool:
    """Whether `text` reads as one bare word, and so needs no quotes."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match.lastgroup == "word"


def quoted(text: str) -> str:
    """`text` in quotes, as `tokenize` reads it back.

    >>> print(quoted("it's"))
    'it\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class Cursor:
    """A position among tokens; its errors are of the class that it is given."""

    def __init__(self, text: str, error: type[ShardvizError]):
        self.text, self.error = text, error
        self._tokens = tokenize(text, error)
        self._at = 0

    @property
    def here(self) -> Token:
        return self._tokens[self._at]

    @property
    def done(self) -> bool:
        return self.here.kind == "end"

    def peek(self) -> Token:
        """The token after this one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.here
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def at(self, *values: str) -> bool:
        """Whether the next token is unquoted and has one of these values."""
        return self.here.kind != "string" and self.here.kind != "end" and self.here.value in values

    def skip(self, *values: str) -> bool:
        """Skips the next token if it is unquoted and has one of these values."""
        if self.at(*values):
            self.take()
            return True
        return False

    def name(self, what: str) -> str:
        """A quoted or bare name.

        Raises:
            ShardvizError: if something else comes next.
        """
        if self.here.kind in ("string", "word"):
            return self.take().value
        raise self.complain(f"expected {what}")

    def complain(self, problem: str) -> ShardvizError:
        """An error that names the position; for the caller to raise."""
        found = "the end" if self.done else shown(self.here.value)
        # In a text of several lines the line says more than the position.
        before = (
            self.text[: self.here.start].rstrip() if self.done else self.text[: self.here.start]
        )
        number, lines = before.count("\n"), self.text.split("\n")
        if len(lines) > 1:
            return self.error(
                f"Cannot read line {number + 1}, {shown(lines[number].strip())}: {problem},"
                f" found {found}."
            )
        return self.error(
            f"Cannot read {shown(self.text)}: {problem} at position {self.here.start + 1},"
            f" found {found}."
        )


def names_or_none(cursor: Cursor, what: str, depth: int = 0) -> list:
    """One entry: None, a name, or names in brackets, as a list that may nest.

    `None` gives `[]`, `x` gives `["x"]`, `(x, (y, z))` gives `["x", ["y", "z"]]`.

    Raises:
        ShardvizError: of the cursor's class, where no entry comes next.
    """
    if cursor.here.kind == "word" and cursor.here.value.lower() in ("none", "null"):
        cursor.take()
        return []
    if not cursor.at("(", "["):
        return [cursor.name(what)]
    if depth > 8:
        raise cursor.complain("brackets nest too deeply")
    closing = ")" if cursor.take().value == "(" else "]"
    entries: list = []
    while not cursor.skip(closing):
        bracketed = cursor.at("(", "[")
        inner = names_or_none(cursor, what, depth + 1)
        entries.append(inner[0] if inner and not bracketed else inner)
        if not cursor.skip(",") and not cursor.at(closing):
            raise cursor.complain(f"expected a comma or {closing}")
    return entries
