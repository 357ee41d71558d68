"""Checks of names, sizes and bytes, and the parser of what people type.

Nothing is evaluated, and everything has a length at which it is refused. An error names
the position and the text that could not be read.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sized
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardviz.core.errors import MeshError, ShardvizError
from shardviz.core.format import bytes_text, shown

MAX_NAME = 100
MAX_PATH = 1_000  # letters of a path that patterns are matched with
MAX_NESTING = 8  # brackets in brackets
MAX_TEXT = 200_000


def read_text_file(path: Path, most: int) -> str:
    """The text of a plain file of at most `most` bytes, without a byte order mark."""
    try:
        # Reading a pipe or /dev/zero would never end.
        if path.exists() and not path.is_file():
            raise ValueError("is a folder" if path.is_dir() else "is no plain file")
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"cannot be opened: {error.strerror or error}") from None
    if len(data) > most:
        raise ValueError(f"is longer than {bytes_text(most)}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is no text in UTF-8") from None
    if "\0" in text:
        raise ValueError("is no text in UTF-8")
    return text


def check_name(name: object, what: str, error: type[ShardvizError] = MeshError) -> str:
    """`name`, if it can be the name of an axis or array: short, printable text."""
    if not isinstance(name, str):
        raise error(f"The name of {what} must be text; got {shown(name)}.")
    if not name or name != name.strip() or not name.isprintable():
        raise error(
            f"The name of {what} must be printable text without blanks around it;"
            f" got {shown(name)}."
        )
    if len(name) > MAX_NAME:
        raise error(
            f"The name of {what} has {len(name):,} letters; at most {MAX_NAME}, please."
        )
    return str(name)  # numpy's text shows itself otherwise


def check_path(path: object, error: type[ShardvizError]) -> str:
    """`path`, if patterns can be matched with it: printable text that is not too long."""
    if not isinstance(path, str) or not path.isprintable():
        raise error(
            "The path of an array is printable text such as 'mlp/0/kernel';"
            f" got {shown(path)}."
        )
    if len(path) > MAX_PATH:
        raise error(
            f"The path has {len(path):,} letters; at most {MAX_PATH:,} are matched."
        )
    return path


def check_size(size: Any, what: str, error: type[ShardvizError] = MeshError) -> int:
    """`size` as an int, if it is a whole number."""
    # Python's own bool is an int, and no size.
    if not isinstance(size, (bool, np.bool_)):
        try:
            return operator.index(size)
        except TypeError:
            pass
    raise error(f"{what} must be a whole number; got {shown(size)}.")


_UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgtpe", 1):
    _UNITS[f"{_prefix}ib"] = 1024**_power
    _UNITS[f"{_prefix}b"] = 1000**_power
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)\s*([kmgtpe]?i?b)?", re.I | re.ASCII)


def parse_bytes(size: object, what: str, error: type[ShardvizError]) -> int:
    """A number of bytes: as it is, or text with a unit, `"1 MiB"`, `"1.5 GB"`, `"512"`.

    Args:
        size: the number or text; `KiB` is 1,024 bytes and `KB` is 1,000.
        what: what it is, to begin a sentence with: `"The limit"`.

    >>> parse_bytes("1 MiB", "It", ShardvizError), parse_bytes("1.5KB", "It", ShardvizError)
    (1048576, 1500)
    """
    if isinstance(size, (int, np.integer)) and not isinstance(size, bool):
        if 0 <= size < 1 << 63:
            return int(size)
    match = None
    if isinstance(size, str) and len(size) < 100:
        match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise error(
            f"{what} is a number of bytes, or text such as '1 MiB' or '1.5 GB';"
            f" got {shown(size)}."
        )
    # Decimal, so that "0.3 GB" are 300,000,000 bytes and not one less.
    return int(Decimal(match[1]) * _UNITS[(match[2] or "").lower()])


def limited(values: Any, most: int, what: str, error: type[ShardvizError]) -> list[Any]:
    """The values of an iterable as a list, if there are at most `most`.

    Args:
        what: what they are, to begin a sentence with: `"The axes of a mesh"`.

    >>> limited(iter("ab"), 2, "Letters", ShardvizError)
    ['a', 'b']
    """
    if not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise error(f"{what} must be a list or tuple; got {shown(values)}.")
    # Asking for the length first avoids a copy of something huge.
    count = 0
    if isinstance(values, Sized):
        count = len(values)
    taken: list[Any] = []
    if count <= most:
        taken = list(values)
        count = len(taken)
    if count > most:
        raise error(f"{what} can be at most {most:,}; got {count:,}.")
    return taken


def flat_numbers(
    values: Any, most: int, what: str, error: type[ShardvizError]
) -> np.ndarray:
    """Whole numbers, nested as deep as may be, as one flat array of integers.

    >>> flat_numbers([[0, 1], [2, 9]], 8, "The ids", ShardvizError).tolist()
    [0, 1, 2, 9]
    """
    # A range of a billion numbers would take gigabytes.
    if isinstance(values, (list, tuple, range)) and len(values) > most:
        raise error(f"{what} can be at most {most:,}; got more.")
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iu" and array.size:
        raise error(f"{what} must be whole numbers; got {shown(values)}.")
    return array.reshape(-1)


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


class Token(NamedTuple):
    """One token of typed text: its kind, its value, and where it starts (0-based)."""

    kind: str  # "string", "word", "arrow", "punct" or "end"
    value: str
    start: int


def _tokens(text: str, error: type[ShardvizError]) -> list[Token]:
    """The tokens of `text`, with one of kind "end" after them."""
    if len(text) > MAX_TEXT:
        raise error(
            f"The text has {len(text):,} letters; at most {MAX_TEXT:,} are read."
        )
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise error(
                f"Cannot read {shown(text[at : at + 20])} at position {at + 1};"
                " is a quote missing?"
            )
        kind, value = str(match.lastgroup), match.group()
        if kind == "string":
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        if kind != "blank":
            tokens.append(Token(kind, value, at))
        at = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def is_word(text: str) -> bool:
    """Whether `text` reads as one bare word, and so needs no quotes."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match.lastgroup == "word"


def quoted(text: str) -> str:
    """`text` in quotes, as a Cursor reads it back.

    >>> print(quoted("it's"))
    'it\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class Cursor:
    """A position among the tokens of a text.

    Python's own `ast` cannot read what people type here: axis names may be keywords
    (`in`), hold a dash, or stand side by side without a comma.

    Args:
        text: what was typed.
        error: the class of its errors.
    """

    def __init__(self, text: str, error: type[ShardvizError]):
        self.text, self.error = text, error
        self._tokens = _tokens(text, error)
        self._at = 0

    @property
    def here(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self.here.kind == "end"

    def peek(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        """The next token, which is then passed."""
        token = self.here
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def at(self, *values: str) -> bool:
        """Whether the next token is unquoted and has one of these values."""
        return self.here.kind not in ("string", "end") and self.here.value in values

    def skip(self, *values: str) -> bool:
        """Skips the next token if it is unquoted and has one of these values."""
        if self.at(*values):
            self.take()
            return True
        return False

    def skip_opening(self) -> str | None:
        """Skips a bracket that opens here; the bracket that must close it, or None."""
        if not self.at("(", "["):
            return None
        return {"(": ")", "[": "]"}[self.take().value]

    def expect(self, value: str) -> None:
        """Skips a bracket that must close here, else raises."""
        if not self.skip(value):
            raise self.complain(f"expected a closing {value}")

    def finish(self) -> None:
        """Raises if something is left."""
        if not self.done:
            raise self.complain("expected nothing more")

    def name(self, what: str) -> str:
        """A quoted or bare name; raises where something else comes next."""
        if self.here.kind in ("string", "word"):
            return self.take().value
        raise self.complain(f"expected {what}")

    def complain(self, problem: str) -> ShardvizError:
        """An error that names the position; for the caller to raise."""
        found = "the end" if self.done else shown(self.here.value)
        before = self.text[: self.here.start]
        if self.done:
            before = before.rstrip()
        lines = self.text.split("\n")
        # In a text of several lines the line says more than the position.
        if len(lines) > 1:
            number = before.count("\n")
            return self.error(
                f"Cannot read line {number + 1}, {shown(lines[number].strip())}:"
                f" {problem}, found {found}."
            )
        return self.error(
            f"Cannot read {shown(self.text)}: {problem} at position"
            f" {self.here.start + 1}, found {found}."
        )


def names_or_none(cursor: Cursor, what: str, depth: int = 0) -> list:
    """One entry: None, a name, or names in brackets, as a list that may nest.

    `None` gives `[]`, `x` gives `["x"]`, `(x, (y, z))` gives `["x", ["y", "z"]]`.
    """
    if cursor.here.kind == "word" and cursor.here.value.lower() in ("none", "null"):
        cursor.take()
        return []
    closing = cursor.skip_opening()
    if closing is None:
        return [cursor.name(what)]
    if depth > MAX_NESTING:
        raise cursor.complain("brackets nest too deeply")
    entries: list = []
    while not cursor.skip(closing):
        bracketed = cursor.at("(", "[")
        inner = names_or_none(cursor, what, depth + 1)
        if inner and not bracketed:
            inner = inner[0]
        entries.append(inner)
        if not cursor.skip(",") and not cursor.at(closing):
            raise cursor.complain(f"expected a comma or {closing}")
    return entries
