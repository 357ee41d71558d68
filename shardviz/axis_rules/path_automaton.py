"""Automaton: matches a regular expression in time proportional to the path.

Python's `re` tries every way in which a pattern can match, one after the other: 22 s
for `(a+)+b` and 27 letters, and twice as long for each further letter. Patterns with
many ways are matched here instead, by following all places in the pattern that a letter
can lead to. This covers the syntax of tables: letters, classes, groups, alternatives,
repeats and the ends of the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

MOST_PLACES = 20_000  # in a pattern with its counted repeats written out
_MOST_KNOWN = 1 << 12  # cached steps
_TOKEN = re.compile(
    r"(?P<open>\((?:\?:|\?P<\w+>|(?!\?)))|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<start>\^|\\A)|(?P<end>\$|\\Z)"
    r"|(?P<letter>\[\^?\]?(?:[^\]\\]|\\.)*\]|\\[dDsSwWafnrtv]|\\[^0-9A-Za-z]|[^\\()|*+?[])",
    re.DOTALL,
)
_REPEAT = re.compile(r"(?:([*+?])|\{(?!\})([0-9]*)(,?)([0-9]*)\})([?+]?)")


class Unsupported(ValueError):
    """The pattern is too large, or has syntax that an automaton cannot match."""


@lru_cache(maxsize=1 << 14)
def repeats_and_options(pattern: str) -> tuple[float, int]:
    """The number of repeats of a pattern (infinite if they nest), and of alternatives.

    It may count too many, since it also counts escaped characters.

    >>> repeats_and_options("mlp/.*/(wi|wo)/kernel"), repeats_and_options("(a+)+")
    ((1, 2), (inf, 1))
    """
    options = 2 ** len(re.findall(r"(?<!\()\?", pattern))
    for part in re.split("[()]", pattern):
        options *= 1 + part.count("|")
    if re.search(r"\)[*+{]", pattern):
        return math.inf, options
    return len(re.findall("[*+{]", pattern)), options


def ways(pattern: str, letters: int) -> float:
    """An upper bound of the ways that `re` may try on a path of so many letters.

    >>> ways("kernel", 40), ways(".*/kernel", 40), ways("(a|aa)+$", 40)
    (41, 861, inf)
    """
    repeats, options = repeats_and_options(pattern)
    if repeats == math.inf:
        return math.inf
    # Each repeat ends at some letter, and so does the text before the match.
    return options * math.comb(letters + int(repeats) + 1, int(repeats) + 1)


@lru_cache(maxsize=1 << 10)
def automaton(pattern: str, whole_text: bool, ignores_case: bool = False) -> Automaton:
    """The automaton of a pattern that `re` compiles.

    Raises:
        Unsupported: the pattern has syntax that only `re` matches, such as a
            look-ahead.

    >>> automaton("(a+)+b", whole_text=False).matches("a" * 1000)
    False
    """
    try:
        return Automaton(pattern, whole_text, ignores_case)
    except RecursionError:
        raise Unsupported("nested too deeply") from None


@dataclass(frozen=True)
class _Part:
    """A part of a pattern.

    Attributes:
        kind: "letter", "start" or "end" of the text, "group" or "repeat".
        text: for a letter, the expression that it matches.
        options: for a group, its alternatives, each a sequence; for a repeat, its body.
        least: how often a repeat must match its body.
        most: how often it may match its body; None for any number.
    """

    kind: str
    text: str = ""
    options: tuple[tuple[_Part, ...], ...] = ()
    least: int = 1
    most: int | None = 1


class _Reader:
    """Reads the parts of a pattern, from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def group(self) -> _Part:
        """The alternatives up to the closing bracket, or to the end of the pattern."""
        options: list[tuple[_Part, ...]] = []
        sequence: list[_Part] = []
        while self.at < len(self.pattern):
            token = _TOKEN.match(self.pattern, self.at)
            if token is None:
                raise Unsupported(self.pattern)
            self.at = token.end()
            kind = str(token.lastgroup)
            if kind == "close":
                break
            if kind == "bar":
                options.append(tuple(sequence))
                sequence = []
                continue
            part = self.group() if kind == "open" else _Part(kind, token[0])
            sequence.append(self._repeated(part))
        return _Part("group", options=(*options, tuple(sequence)))

    def _repeated(self, part: _Part) -> _Part:
        """The part with the repeat that follows it, if any."""
        repeat = _REPEAT.match(self.pattern, self.at)
        if repeat is None:
            return part
        self.at = repeat.end()
        sign, minimum, comma, maximum, suffix = repeat.groups()
        if suffix == "+":  # it keeps all that it matched, and may so match less
            raise Unsupported(self.pattern)
        if sign:
            fewest, limit = int(sign == "+"), 1 if sign == "?" else None
        else:
            fewest, limit = int(minimum or 0), int(maximum) if maximum else None
            if not comma:
                limit = fewest
        return _Part("repeat", "", ((part,),), fewest, limit)


class Automaton:
    """The places of a pattern, and which letters lead from one to the next.

    Args:
        pattern: a regular expression that `re` compiles.
        whole: True if it must match all of a text, False for any part of it.
        ignores_case: True if letters match in either case.
    """

    def __init__(
        self, pattern: str, whole_text: bool, ignores_case: bool = False
    ) -> None:
        self._whole = whole_text
        self._flags = re.IGNORECASE if ignores_case else 0
        self._kinds: list[str] = []
        self._letters: list[re.Pattern[str] | None] = []
        self._next: list[list[int]] = []
        self._final = self._place("group", [])
        self._first = self._enter(_Reader(pattern).group(), self._final)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def _place(self, kind: str, after: list[int], text: str = "") -> int:
        if len(self._next) >= MOST_PLACES:
            raise Unsupported("too large")
        self._kinds.append(kind)
        self._letters.append(
            re.compile(text, self._flags) if kind == "letter" else None
        )
        self._next.append(after)
        return len(self._next) - 1

    def _enter(self, part: _Part, after: int) -> int:
        """Adds the places of a part that is followed by `after`; returns its first."""
        if part.kind == "repeat":
            return self._enter_repeat(part, after)
        if part.kind != "group":
            return self._place(part.kind, [after], part.text)
        starts: list[int] = []
        for sequence in part.options:
            start = after
            for inner in reversed(sequence):
                start = self._enter(inner, start)
            starts.append(start)
        return self._place("group", starts)

    def _enter_repeat(self, part: _Part, after: int) -> int:
        body = part.options[0][0]
        start = after
        if part.most is None:
            start = self._place("group", [after])
            self._next[start].append(self._enter(body, start))
        else:
            for _ in range(part.most - part.least):
                start = self._place("group", [self._enter(body, start), after])
        for _ in range(part.least):
            start = self._enter(body, start)
        return start

    def matches(self, text: str) -> bool:
        """True if the pattern matches a text."""
        places = self._passed([self._first], at_start=True)
        restart = frozenset() if self._whole else self._passed([self._first])
        for letter in text:
            if not self._whole and self._final in places:
                return True
            key = places, letter
            if key not in self._steps:
                if len(self._steps) >= _MOST_KNOWN:
                    self._steps.clear()
                self._steps[key] = self._step(places, letter) | restart
            places = self._steps[key]
        return self._final in self._passed(places, at_start=not text, at_end=True)

    def _step(self, places: frozenset[int], letter: str) -> frozenset[int]:
        after: list[int] = []
        for place in places:
            expression = self._letters[place]
            if expression is not None and expression.match(letter):
                after += self._next[place]
        return self._passed(after)

    def _passed(
        self, places: Iterable[int], at_start: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """These places and all that can be reached from them without a letter."""
        reached = set(places)
        waiting = list(reached)
        passable = {"group": True, "letter": False, "start": at_start, "end": at_end}
        while waiting:
            place = waiting.pop()
            if passable[self._kinds[place]]:
                for following in self._next[place]:
                    if following not in reached:
                        reached.add(following)
                        waiting.append(following)
        return frozenset(reached)
