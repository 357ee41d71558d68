"""Checks names, sizes and byte counts, and parses typed text.

Text is parsed with Python's own parser; nothing is evaluated, and every input has a
maximum length. An error names the position and the text that could not be read.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import operator
import re
from collections.abc import Iterable, Iterator, Sized
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from shardviz.base.errors import MeshError, ShardvizError
from shardviz.base.format import bytes_text, shown

MAX_NAME = 100
# Maximum lengths in characters: of a path that is matched with patterns, and of typed
# text. MaxText's base.yml has 60,000 characters.
MAX_PATH = 1_000
MAX_TEXT = 1 << 19


def read_text_file(path: Path, most: int) -> str:
    """Reads a regular UTF-8 file of at most `most` bytes, without a byte order mark.

    Raises:
        ValueError: with a reason that ends a sentence: "is longer than 512 KiB".
    """
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
        raise ValueError("is not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("is not UTF-8 text")
    return text


def check_name(name: object, noun: str, error: type[ShardvizError] = MeshError) -> str:
    """Returns `name` if it can name an axis or array: short, printable text.

    Args:
        name: the name.
        noun: the kind of thing it names, for the message: `"a mesh axis"`.
        error: the exception class to raise.
    """
    # Valid names first, because every array of a model is checked. A space is the only
    # whitespace that `isprintable` accepts.
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable():
        if name[0] != " " and name[-1] != " ":
            return str(name)  # converts numpy's str_, whose repr differs
    if isinstance(name, str) and len(name) > MAX_NAME:
        raise error(
            f"The name of {noun} has {len(name):,} letters; the limit is {MAX_NAME}."
        )
    raise error(
        f"The name of {noun} must be printable text without blanks around it;"
        f" got {shown(name)}."
    )


def check_path(path: object, error: type[ShardvizError]) -> str:
    """Returns `path` if patterns can match it: printable text, not too long."""
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


def check_size(size: object, noun: str, error: type[ShardvizError] = MeshError) -> int:
    """Returns `size` as an int if it is a whole number.

    Args:
        size: the number.
        noun: the beginning of the message: `"A process index"`.
        error: the exception class to raise.
    """
    if type(size) is int:
        return size
    # A bool is an int to Python, but not a size.
    if isinstance(size, SupportsIndex) and not isinstance(size, (bool, np.bool_)):
        try:
            return operator.index(size)
        except TypeError:
            pass
    raise error(f"{noun} must be a whole number; got {shown(size)}.")


_UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgtpe", 1):
    _UNITS[f"{_prefix}ib"] = 1024**_power
    _UNITS[f"{_prefix}b"] = 1000**_power
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)\s*((?:[kmgtpe]i?)?b)?", re.I | re.ASCII)


def parse_bytes(size: object, noun: str, error: type[ShardvizError]) -> int:
    """Reads a number of bytes from an int or text: `"1 MiB"`, `"1.5 GB"`, `"512"`.

    Args:
        size: the number or text; `KiB` is 1,024 bytes and `KB` is 1,000.
        noun: the beginning of the message: `"The limit"`.
        error: the exception class to raise.

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
            f"{noun} is a number of bytes, or text such as '1 MiB' or '1.5 GB';"
            f" got {shown(size)}."
        )
    # With floats, "0.3 GB" would be one byte less than 300,000,000.
    return int(Decimal(match[1]) * _UNITS[(match[2] or "").lower()])


def limited(
    values: object, most: int, noun: str, error: type[ShardvizError]
) -> list[Any]:
    """Returns an iterable as a list if it has at most `most` values.

    Args:
        values: the iterable.
        most: the largest number of values.
        noun: the beginning of the message: `"The axes of a mesh"`.
        error: the exception class to raise.

    >>> limited(iter("ab"), 2, "Letters", ShardvizError)
    ['a', 'b']
    """
    if not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise error(f"{noun} must be a list or tuple; got {shown(values)}.")
    # The iterable may be infinite.
    first_values = list(itertools.islice(values, most + 1))
    if len(first_values) > most:
        count = f"{len(values):,}" if isinstance(values, Sized) else "more"
        raise error(f"{noun} can be at most {most:,}; got {count}.")
    return first_values


QUOTED = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
#: A name in quotes, or a word up to an arrow, a bracket or a separator.
NAME = rf"""(?:{QUOTED}|(?:(?!->|=>)[^\s,()\[\]{{}}=:;'"→⇒#])+)"""


#: A number in Python's notation. At most 20 digits, because `int` refuses thousands.
DIGITS = "[0-9](?:_?[0-9]){0,19}"


class UnconstrainedSingleton:
    """`P.UNCONSTRAINED` in typed text. Recognized by class name, the same as jax's."""


UNCONSTRAINED = UnconstrainedSingleton()


class Call(NamedTuple):
    """A call of PartitionSpec in typed text."""

    args: tuple[Any, ...]
    keywords: dict[str, Any]


class Pairs(list):
    """The items of a mapping in typed text, including repeated keys."""


def name_in(token: str) -> str:
    """The name in a match of NAME, without its quotes."""
    if token[:1] in ("'", '"'):
        return re.sub(r"\\(.)", r"\1", token[1:-1])
    return token


def typed_name(name: str) -> str:
    """Formats a name as users type it, in quotes if the parser needs them.

    >>> typed_name("embed"), typed_name("two words"), typed_name("None")
    ('embed', "'two words'", "'None'")
    """
    reserved = keyword.iskeyword(name) or name.lower() in ("none", "null", "_")
    # Python's parser normalizes non-ASCII letters, which would change the name.
    if not name.isascii() or not name.isidentifier() or reserved or _is_free(name):
        return quoted(name)
    return name


def _is_free(word: str) -> bool:
    return word.upper() == "UNCONSTRAINED"


def quoted(text: str) -> str:
    """Quotes and escapes text so that it can be parsed back.

    >>> print(quoted("it's"))
    'it\\'s'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def scan(
    pattern: re.Pattern[str], text: str, error: type[ShardvizError], expected: str
) -> Iterator[re.Match[str]]:
    """Yields consecutive matches of a pattern; they must cover all of the text.

    Args:
        pattern: matches one entry and the separator after it.
        text: the typed text.
        error: the exception class to raise for text that does not match.
        expected: a description of an entry, for the message.
    """
    position, end = 0, len(text.rstrip())
    if end > MAX_TEXT:
        raise error(f"The text has {end:,} letters; at most {MAX_TEXT:,} are read.")
    while position < end:
        match = pattern.match(text, position)
        if match is None:
            raise error(
                f"Cannot read {shown(text)}: expected {expected} at position {position + 1},"
                f" found {shown(text[position : position + 20])}."
            )
        yield match
        position = match.end()


def typed_value(text: str, error: type[ShardvizError], within: str = "{}") -> Any:
    """Parses typed text: names, None, numbers, tuples, mappings, PartitionSpecs.

    Args:
        text: the typed text.
        error: the exception class to raise.
        within: a template that encloses the text, such as `P({})`.

    >>> typed_value("(x, None, 'y z')", ShardvizError)
    ('x', None, 'y z')
    """
    if len(text) > MAX_TEXT:
        raise error(
            f"The text has {len(text):,} letters; at most {MAX_TEXT:,} are read."
        )
    python, added = without_unknown_escapes(text.strip())
    try:
        tree = ast.parse(within.replace("{}", python), mode="eval")
        return _literal(tree.body, error)
    except SyntaxError as syntax_error:
        # Subtract the template and the added backslashes from the position.
        position = (syntax_error.offset or 1) - within.index("{}")
        if syntax_error.lineno == 1:
            position -= sum(backslash < position for backslash in added)
        position = max(1, position)
        raise error(
            f"Cannot read {shown(text.strip())}: {syntax_error.msg} at position {position}."
        ) from None
    except (RecursionError, MemoryError, ValueError, TypeError):
        # Also raised for thousands of brackets, and for text that UTF-8 cannot encode.
        raise error(
            f"Cannot read {shown(text.strip())}. Use names, None, numbers, tuples, mappings"
            " or P(...); nothing is evaluated."
        ) from None


# A comment, or a string with its prefix. An unclosed string matches as far as possible.
_STRING = re.compile(
    r"""#[^\n]*|([a-z]{0,2})(?:'''(?:[^\\]|\\.)*?(?:'''|\Z)"""
    r'''|"""(?:[^\\]|\\.)*?(?:"""|\Z)'''
    r"""|'(?:[^'\\\n]|\\.)*+'?|"(?:[^"\\\n]|\\.)*+"?)""",
    re.IGNORECASE | re.DOTALL,
)
_UNKNOWN_ESCAPE = re.compile(
    r"""\\(?:[\n\\'"abfnrtvxNuU]|[0-3]?[0-7]{1,2}(?![0-7]))|(\\)""", re.ASCII
)


def without_unknown_escapes(text: str) -> tuple[str, list[int]]:
    r"""Doubles the backslash of unknown escapes in Python source: `"\d"` -> `"\\d"`.

    Python reads both alike, but warns about the first. Turning warnings off would
    affect all threads of the user's process.

    Returns:
        The new source, and the positions of the added backslashes in it.
    """
    if "\\" not in text:
        return text, []
    pieces: list[str] = []
    added: list[int] = []
    copied = 0
    for string in _STRING.finditer(text):
        prefix = string[1]
        if prefix is None or "r" in prefix.lower():  # a comment, or a raw string
            continue
        for escape in _UNKNOWN_ESCAPE.finditer(text, string.start(), string.end()):
            if escape[1] is not None:
                pieces.append(text[copied : escape.end()])
                copied = escape.end()
                added.append(copied + len(added))
    return "\\".join([*pieces, text[copied:]]), added


def literal_value(node: ast.expr, error: type[ShardvizError]) -> Any:
    """Returns the value of a literal expression, as `typed_value` reads it.

    Raises:
        error: for an expression that would have to be evaluated.
    """
    return _literal(node, error)


def _literal(node: ast.expr, error: type[ShardvizError]) -> Any:
    name = getattr(node, "attr", getattr(node, "id", ""))
    if isinstance(node, ast.Constant):
        return node.value
    makers = {ast.List: list, ast.Tuple: tuple, ast.Set: frozenset}
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return makers[type(node)](_literal(entry, error) for entry in node.elts)
    if isinstance(node, ast.Dict):
        pairs = Pairs()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                pair = _literal(key, error), _literal(value, error)
                pairs.append(pair)
        if len(pairs) == len(node.keys):  # else a `**` unpacks another mapping
            return pairs
    if isinstance(node, (ast.Name, ast.Attribute)) and _is_free(name):
        return UNCONSTRAINED
    if isinstance(node, ast.Attribute):
        kind = getattr(node.value, "attr", getattr(node.value, "id", ""))
        if kind == "UnreducedKind":
            return name
    # A word without quotes is a name, so that axes need no quotes.
    if isinstance(node, ast.Name):
        return None if name.lower() in ("none", "null") else name
    if isinstance(node, ast.Call):
        # Only the last part of a dotted name counts: `jax.sharding.P`.
        callee = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        if callee in ("P", "PS", "PartitionSpec"):
            args = [_literal(arg, error) for arg in node.args]
            keywords = {str(k.arg): _literal(k.value, error) for k in node.keywords}
            return Call(tuple(args), keywords)
    raise error(
        f"Line {getattr(node, 'lineno', 1)} computes {shown(ast.unparse(node))}; nothing is"
        " evaluated. Write text, None, tuples and P(...) in its place."
    )
