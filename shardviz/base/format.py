"""Text for numbers and lists: bytes, times, plurals, device ids, folded names.

Device ids keep their order. `0–6 step 2` is a range; without `step`, the ids of a range
are consecutive. `…` continues the pattern of the two entries before it up to the entry
after it. Parentheses enclose a repeated group. `tests/picture/ids_reader.py` parses
such text back into ids.

`fold` merges names that differ only in numbers, such as the names of a model's layers,
into one pattern. A pattern means every combination of its numbers, so if combinations
are missing, the names become several patterns.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

# Comparing more names than this would make a typo hint too slow.
MOST_COMPARED = 1000
# Letters of two long values in which a difference is searched.
_MOST_LETTERS = 100_000
# The most decimals that tell two byte counts apart; a float has no more.
MOST_DIGITS = 17


def shown(value: object, limit: int = 60) -> str:
    """The repr of `value` in one printable line of at most `limit` characters.

    >>> shown("a\\x00b"), shown("x" * 100, 10)
    ("'a\\\\x00b'", "'xxxxxxxx…")
    """
    text = ""
    try:
        # Stop early: YAML aliases can expand 500 characters to 10^10 entries.
        for piece in _repr_pieces(value, limit):
            text += piece
            if len(text) > limit:
                break
    except Exception as error:  # noqa: BLE001  a foreign __repr__ may raise anything
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    # A line break or an escape sequence would garble the surrounding message.
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return cut(text, limit)


def shown_apart(before: object, after: object, limit: int = 60) -> tuple[str, str]:
    """The reprs of two values, each cut so that the first difference remains.

    >>> shown_apart("a" * 100 + "x", "a" * 100 + "y", 12)
    ("…aaax'", "…aaay'")
    """
    texts = shown(before, limit), shown(after, limit)
    if texts[0] != texts[1]:
        return texts
    first, second = shown(before, _MOST_LETTERS), shown(after, _MOST_LETTERS)
    if first == second:
        return texts
    # One text may be the beginning of the other.
    pairs = enumerate(zip(first, second, strict=False))
    length = min(len(first), len(second))
    start = next((at for at, (one, other) in pairs if one != other), length)
    start = max(start - limit // 4, 1)
    return cut(f"…{first[start:]}", limit), cut(f"…{second[start:]}", limit)


def _too_many_digits(value: object) -> int:
    """The approximate digit count of an int too large to print; else 0."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return int(value.bit_length() * 0.30103) + 1
    return 0


def _repr_pieces(value: Any, limit: int) -> Iterator[str]:
    """Yields the repr of a value in chunks; the caller stops after `limit` characters.

    Lists and dicts are formatted entry by entry, so `limit` bounds the work.
    """
    method = type(value).__repr__
    # Python refuses to print very large numbers.
    if digits := _too_many_digits(value):
        yield f"a number of about {digits:,} digits"
    elif method in (str.__repr__, bytes.__repr__):
        yield repr(value[: limit + 1])
    elif method in (list.__repr__, tuple.__repr__):
        opening, closing = "()" if method is tuple.__repr__ else "[]"
        yield opening
        for number, entry in enumerate(value):
            yield ", " if number else ""
            yield from _repr_pieces(entry, limit)
        yield f",{closing}" if opening == "(" and len(value) == 1 else closing
    elif method is dict.__repr__:
        yield "{"
        for number, (key, entry) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _repr_pieces(key, limit)
            yield ": "
            yield from _repr_pieces(entry, limit)
        yield "}"
    else:
        yield repr(value)


def error_text(error: BaseException, limit: int = 300) -> str:
    """Formats the type and the message of an error in one line.

    >>> error_text(KeyError("x"))
    "KeyError: 'x'"
    """
    # A compiler's message may have many lines.
    try:
        text = " ".join(str(error).split())
    except Exception as str_error:  # noqa: BLE001  a foreign __str__ may raise anything
        text = f"its message raises {type(str_error).__name__}"
    return cut(f"{type(error).__name__}: {text}".removesuffix(": "), limit)


def cut(text: str, limit: int) -> str:
    """Cuts text to `limit` characters, the last of which is then `…`.

    >>> cut("gradient", 8), cut("gradient", 5)
    ('gradient', 'grad…')
    """
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…"


def with_article(noun: str) -> str:
    """Puts `a` or `an` before a noun.

    >>> with_article("all-gather"), with_article("reduce-scatter")
    ('an all-gather', 'a reduce-scatter')
    """
    article = "an" if noun[0] in "aeio" else "a"
    return f"{article} {noun}"


def joined(parts: Iterable[object], word: str = "and", limit: int | None = None) -> str:
    """Joins words into a phrase; words beyond `limit` are only counted.

    >>> joined(["a", "b", "c"]), joined(["a"]), joined([])
    ('a, b and c', 'a', '')
    >>> joined("abcd", limit=2)
    'a, b and 2 more'
    """
    texts = list(map(str, parts))
    if limit is not None and len(texts) > limit:
        texts = [*texts[:limit], f"{len(texts) - limit:,} more"]
    if len(texts) < 2:
        return "".join(texts)
    return ", ".join(texts[:-1]) + f" {word} {texts[-1]}"


def listed(values: Iterable[object], word: str = "and", limit: int = 8) -> str:
    """Joins the reprs of values into a phrase; values beyond `limit` are only counted.

    >>> listed(["a", "b", "c"])
    "'a', 'b' and 'c'"
    """
    return joined(map(shown, values), word, limit)


def nearest(name: object, candidates: Iterable[str]) -> str | None:
    """The candidate closest in spelling to `name`, or None if none is close.

    >>> nearest("embded", ["embed", "mlp"])
    'embed'
    """
    if not isinstance(name, str):
        return None
    compared = map(str, itertools.islice(candidates, MOST_COMPARED))
    # difflib can take quadratic time in the length.
    close = difflib.get_close_matches(name[:200], compared, n=1, cutoff=0.6)
    return next(iter(close), None)


def suggestion(name: object, candidates: Iterable[str]) -> str:
    """The end of an error message: the nearest candidate, or a list of candidates.

    >>> suggestion("embded", ["embed", "mlp"])
    " Did you mean 'embed'?"
    """
    names = list(map(str, candidates))
    close = nearest(name, names)
    if close is not None:
        return f" Did you mean {shown(close)}?"
    return clause(" Known: {}.", listed(names))


Number = TypeVar("Number", int, float)


def plural(count: int, noun: str, form: str | None = None) -> str:
    """Formats a count and its noun: `1 device`, `2 devices`.

    >>> plural(1, "device"), plural(2, "device"), plural(2, "axis", "axes")
    ('1 device', '2 devices', '2 axes')
    """
    return f"{count:,} {by_count(count, noun, form or noun + 's')}"


def by_count(count: int, singular: str, plural_form: str) -> str:
    """Returns the singular or the plural form of a word, to agree with a count.

    >>> by_count(1, "is", "are"), by_count(2, "is", "are")
    ('is', 'are')
    """
    return singular if count == 1 else plural_form


def clause(template: str, value: object) -> str:
    """Formats a template with a value; `""` if the value is empty or None.

    >>> clause(" at {}", "mlp.py:31"), clause(" at {}", "")
    (' at mlp.py:31', '')
    """
    return template.format(value) if value else ""


def bytes_text(count: float, decimals: int = 1) -> str:
    """Formats a byte count in the largest binary unit that fits.

    >>> bytes_text(0), bytes_text(1536), bytes_text(2 << 20), bytes_text(5 << 40)
    ('0 B', '1.5 KiB', '2 MiB', '5 TiB')
    >>> bytes_text(1025, 3)
    '1.001 KiB'
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    digits = f"{value:.{decimals}f}".rstrip("0").rstrip(".")
    return f"{digits} {units[0]}"


def told_apart(
    numbers: Sequence[Number],
    text: Callable[[Number, int], str] | None = None,
    digits: int = 1,
) -> list[str]:
    """Formats numbers with enough digits that different numbers look different.

    Args:
        numbers: the numbers, such as a limit and a size, or a time before and after.
        text: formats a number with a given number of digits; by default `bytes_text`.
        digits: the minimum number of digits.

    >>> told_apart([1 << 20, (1 << 20) + 1]), told_apart([1 << 20, 1 << 20])
    (['1 MiB', '1.000001 MiB'], ['1 MiB', '1 MiB'])
    """
    # Times that differ only by rounding errors are equal.
    different = {n if isinstance(n, int) else float(f"{n:.9g}") for n in numbers}
    for count in range(digits, MOST_DIGITS):
        texts = [(text or bytes_text)(number, count) for number in numbers]
        if len(set(texts)) >= len(different):
            return texts
    return [f"{number:,} B" for number in numbers]


def seconds_text(seconds: float | None) -> str:
    """Formats a duration in a suitable unit; `–` for None.

    >>> seconds_text(0.0123), seconds_text(2.5), seconds_text(3e-5), seconds_text(None)
    ('12 ms', '2.5 s', '30 µs', '–')
    >>> seconds_text(4.2e-7), seconds_text(0.0055), seconds_text(0.0)
    ('420 ns', '5.5 ms', '0 ns')
    """
    if seconds is None:
        return "–"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    value, unit = seconds * 1e9, "ns"
    if seconds >= 1e-3:
        value, unit = seconds * 1e3, "ms"
    elif seconds >= 1e-6:
        value, unit = seconds * 1e6, "µs"
    # Two digits tell 5.5 from 6.
    digits = f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"
    return f"{digits} {unit}"


def count_text(count: float) -> str:
    """Formats a count with a metric prefix: k, M, G, T or P.

    >>> count_text(950), count_text(12_500), count_text(3.2e9)
    ('950', '12.5 k', '3.2 G')
    """
    value, units = float(count), ["", " k", " M", " G", " T", " P"]
    while abs(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.1f}".rstrip("0").rstrip(".") + units[0]


def first_lines(head: str, lines: Sequence[str], limit: int = 10) -> str:
    """Returns a heading and the first lines; the remaining lines are only counted.

    >>> print(first_lines("", ["a", "b", "c"], 2))
    a
    b
      … and 1 more
    """
    shown_lines = list(lines[:limit])
    if len(lines) > limit:
        shown_lines.append(f"  … and {len(lines) - limit:,} more")
    return "\n".join([head, *shown_lines] if head else shown_lines)


T = TypeVar("T")
_NUMBER = re.compile(r"(\d+)")
_LAST_WORD = re.compile(r"([A-Za-z]+)[^A-Za-z\d]*$")


@dataclass(frozen=True)
class Fold(Generic[T]):
    """Items whose names differ only in numbers.

    Attributes:
        parts: the name, split at its numbers. Even indices hold the text between
            numbers; odd indices hold all numbers that occur there. Every combination of
            numbers is the name of an item.
        items: the items, in their original order.

    >>> layers, = fold(["blocks_0/Mlp_0", "blocks_1/Mlp_0"], str)
    >>> layers.name, layers.count
    ('blocks_{0..1}/Mlp_0', '2 × ')
    """

    parts: tuple[tuple[str, ...], ...]
    items: tuple[T, ...]

    @property
    def name(self) -> str:
        """The name, with the numbers that vary in braces."""
        words = []
        for part in self.parts:
            numbers = part[0]
            if len(part) > 1:
                numbers = f"{{{_ranges(part)}}}"
            words.append(numbers)
        return "".join(words)

    @property
    def in_layers(self) -> tuple[str, str] | None:
        """The name without its layers, and the layers; None if anything else varies.

        >>> names = [f"params.layers[{i}].wq" for i in range(32)]
        >>> fold(names, str)[0].in_layers, fold(["w1", "w2"], str)[0].in_layers
        (('params.wq', 'layers 0 to 31'), None)
        """
        varying = [n for n, part in enumerate(self.parts) if len(part) > 1]
        if len(varying) != 1:
            return None
        at = varying[0]
        before = "".join(part[0] for part in self.parts[:at])
        after = "".join(part[0] for part in self.parts[at + 1 :]).lstrip("]")
        word = _LAST_WORD.search(before)
        if word is None or not after or after[0] not in "./[":
            return None
        head = before[: word.start()].rstrip("./[_'\"")
        name = head + after if head else after.lstrip("./[")
        numbers = _ranges(self.parts[at]).replace("..", " to ").replace(",", ", ")
        return name, f"{word[1]} {numbers}"

    @property
    def count(self) -> str:
        """The number of items as a prefix, such as `"32 × "`; `""` for one item."""
        if len(self.items) == 1:
            return ""
        return f"{len(self.items):,} × "


def _ranges(numbers: Sequence[str]) -> str:
    """Formats numbers as `0..31` or `0..3,7`; numbers with leading zeros as a list."""
    if any(str(int(n)) != n for n in numbers):
        return ",".join(numbers)
    runs: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if runs and number == runs[-1][-1] + 1:
            # Only the first and the last number of a run are stored.
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("..".join(map(str, run)) for run in runs)


def fold(
    items: Iterable[T],
    name: Callable[[T], str],
    alike: Callable[[T], Hashable] | None = None,
) -> list[Fold[T]]:
    """Folds items whose names differ only in numbers.

    Args:
        items: the items to fold.
        name: returns the name of an item, such as its path.
        alike: returns a key; items with different keys are never in one fold.

    Returns:
        The folds, in the order of their first items. Every item is in one fold.

    >>> [f.name for f in fold(["a_0/x", "a_0/y", "a_1/x", "b"], str)]
    ['a_{0..1}/x', 'a_0/y', 'b']
    """
    groups: dict[Hashable, list[_Named]] = {}
    for position, item in enumerate(items):
        parts = tuple(_NUMBER.split(name(item)))
        key = (parts[::2], alike and alike(item))
        groups.setdefault(key, []).append((position, parts, item))
    folds: list[tuple[int, Fold[T]]] = []
    waiting = list(groups.values())
    while waiting:
        group = waiting.pop()
        names = {parts for _, parts, _ in group}
        values = [tuple(dict.fromkeys(column)) for column in zip(*names, strict=True)]
        if math.prod(map(len, values)) == len(names):
            parts = tuple(map(_in_order, values))
            folds.append(
                (group[0][0], Fold(parts, tuple(item for _, _, item in group)))
            )
            continue
        # Some combinations are missing, so split the group. Splitting at the last index
        # with the fewest numbers keeps a model's layers together.
        varying = [index for index, column in enumerate(values) if len(column) > 1]
        index = min(varying, key=lambda n: (len(values[n]), -n))
        by_number: dict[str, list[_Named]] = {}
        for entry in group:
            by_number.setdefault(entry[1][index], []).append(entry)
        waiting += by_number.values()
    return [folded for _, folded in sorted(folds, key=lambda entry: entry[0])]


_Named = tuple[int, tuple[str, ...], Any]  # (position, parts of the name, item)


def _in_order(column: tuple[str, ...]) -> tuple[str, ...]:
    if len(column) == 1:
        return column
    return tuple(sorted(column, key=lambda v: (int(v), v)))


FEW = 4
# Number of ids shown if more than MOST_IRREGULAR ids have no pattern.
FIRST_IDS = 8
MOST_IRREGULAR = 1 << 16


def ids_text(ids: object, limit: int = 0) -> str:
    """Formats device ids, with ranges for repeating patterns.

    If too many ids have no pattern, only the first few are shown.

    Args:
        ids: integers, in the order to list them.
        limit: the maximum number of characters; 0 for no limit. The result is the first
            of these that fits: `1 · 2 · 3`, the ids as ranges, the number of devices.

    >>> ids_text([0, 2, 4, 6]), ids_text(range(0, 64, 2)), ids_text([])
    ('0, 2, 4, 6', '0–62 step 2', 'no device')
    >>> ids_text([8 * i + j for i in range(8) for j in (0, 1)])
    '0–1, 8–9 … 56–57'
    >>> ids_text([0, 2, 4, 6], limit=16), ids_text(range(0, 64, 2), 16), ids_text([1, 5, 2] * 9, 16)
    ('0 · 2 · 4 · 6', '0–62 step 2', '27 devices')
    """
    if isinstance(ids, range) and len(ids) > FEW and len(ids) > limit:
        return _run_text(ids.start, len(ids), ids.step)
    array = np.asarray(ids, np.int64).reshape(-1)
    if not len(array):
        return "no device"
    if len(array) <= limit:
        spread = " · ".join(map(str, array.tolist()))
        if len(spread) <= limit:
            return spread
    ranges = _in_ranges(array)
    if limit and len(ranges) > limit:
        return f"{len(array):,} devices"
    return ranges


def _in_ranges(ids: np.ndarray) -> str:
    if len(ids) <= FEW and not (len(ids) > 2 and (np.diff(ids) == 1).all()):
        return ", ".join(map(str, ids.tolist()))
    nest = _nest(ids)
    if nest is not None:
        return _nested_text(int(ids[0]), nest)
    if len(ids) > MOST_IRREGULAR:
        first = ", ".join(map(str, ids[:FIRST_IDS].tolist()))
        return f"{first} and {len(ids) - FIRST_IDS:,} more"
    return ", ".join(_runs(ids))


def nested_ids_text(first: int, levels: Iterable[tuple[int, int]]) -> str:
    """`ids_text` for ids given by nested `(count, step)` levels, innermost first.

    >>> nested_ids_text(0, [(2, 1), (8, 8)])
    '0–1, 8–9 … 56–57'
    """
    merged: list[tuple[int, int]] = []
    for count, step in levels:
        if merged and merged[-1][0] * merged[-1][1] == step:
            merged[-1] = (merged[-1][0] * count, merged[-1][1])
        elif count > 1:
            merged.append((count, step))
    if math.prod(count for count, _ in merged) > FEW:
        return _nested_text(first, merged)
    ids = [first]
    for count, step in merged:
        ids = [start + i * step for i in range(count) for start in ids]
    return ids_text(ids)


def _nest(ids: np.ndarray) -> list[tuple[int, int]] | None:
    """The nested `(count, step)` levels of ids, innermost first; None if irregular.

    Ids in mesh order, or in the order of blocks, usually have such levels, because both
    orders are mixed-radix.
    """
    levels: list[tuple[int, int]] = []
    while len(ids) > 1:
        steps = np.diff(ids)
        breaks = np.flatnonzero(steps != steps[0])
        count = int(breaks[0]) + 1 if len(breaks) else len(ids)
        if count < 2 or len(ids) % count:
            return None
        rows = ids.reshape(-1, count)
        if (rows - rows[:, :1] != rows[0] - rows[0, 0]).any():
            return None
        levels.append((count, int(steps[0])))
        ids = rows[:, 0]
    return levels


def _nested_text(first: int, levels: list[tuple[int, int]]) -> str:
    if not levels:
        return str(first)
    *inner, (count, step) = levels
    if not inner:
        return _run_text(first, count, step)
    # List up to three repeats. Of more, the first two and the last show the step.
    repeats: Iterable[int] = (0, 1, count - 1)
    if count <= 3:
        repeats = range(count)
    items = [_nested_text(first + i * step, inner) for i in repeats]
    # Add parentheses if the repeated group would be ambiguous without them.
    if len(inner) > 1 or (count > 3 and inner[0][0] == 2 and abs(inner[0][1]) != 1):
        items = [f"({item})" for item in items]
    if count <= 3:
        return ", ".join(items)
    return f"{items[0]}, {items[1]} … {items[2]}"


def _run_text(first: int, count: int, step: int) -> str:
    last = first + (count - 1) * step
    if count == 1:
        return str(first)
    if count == 2 and step != 1:
        return f"{first}, {last}"
    if step == 1:
        return f"{first}–{last}"
    return f"{first}–{last} step {step}"


def _runs(ids: np.ndarray) -> list[str]:
    values, parts, start = ids.tolist(), [], 0
    while start < len(values):
        end = start + 1
        step = values[end] - values[start] if end < len(values) else 0
        while end < len(values) and values[end] - values[end - 1] == step:
            end += 1
        count = end - start
        if count < 3:  # two ids are no pattern, but the second may begin one
            count = 1
        parts.append(_run_text(values[start], count, step))
        start += count
    return parts


def processes(numbers: Iterable[int]) -> str:
    """Formats process indices for the beginning of a sentence.

    >>> processes([1]), processes([0, 2]), processes(range(64))
    ('Process 1', 'Processes 0 and 2', 'Processes 0–63')
    """
    numbers = sorted(numbers)
    if len(numbers) == 1:
        return f"Process {numbers[0]}"
    # A few numbers read better as a list than as a range.
    return f"Processes {joined(numbers) if len(numbers) < 4 else ids_text(numbers)}"
