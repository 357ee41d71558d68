"""Automaton: matches a regular expression in time proportional to the path's length.

Python's `re` backtracks: `(a+)+b` takes 22 s for a path of 27 letters, and twice as
long for each additional letter. Patterns that could backtrack a lot are matched here
instead, by a nondeterministic automaton (NFA) that tracks a set of states. The
automaton supports the syntax that rule tables use: letters, classes, groups,
alternatives, repeats and anchors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

# Maximum number of states, with counted repeats expanded.
MOST_STATES = 20_000
# Maximum number of cached transitions.
_MOST_KNOWN = 1 << 12
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
    """Returns upper bounds on a pattern's repeats (inf if nested) and alternatives.

    The numbers are only upper bounds, because escaped characters are counted too.

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
    """Returns an upper bound on the number of ways in which `re` tries to match a path.

    Args:
        pattern: a regular expression.
        letters: the length of the path.

    >>> ways("kernel", 40), ways(".*/kernel", 40), ways("(a|aa)+$", 40)
    (41, 861, inf)
    """
    repeats, options = repeats_and_options(pattern)
    if repeats == math.inf:
        return math.inf
    # Each repeat can end after any letter, and so can the text before the match.
    return options * math.comb(letters + int(repeats) + 1, int(repeats) + 1)


@lru_cache(maxsize=1 << 10)
def automaton(pattern: str, whole_text: bool, ignores_case: bool = False) -> Automaton:
    """Returns the cached automaton of a pattern that `re` compiles.

    Raises:
        Unsupported: if the pattern has syntax that only `re` supports, such as a
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
    """A node of a pattern's syntax tree.

    Attributes:
        kind: "letter", "start" or "end" (anchors), "group" or "repeat".
        text: for a letter, the regular expression of that single letter.
        options: for a group, its alternatives, each a sequence; for a repeat, its body.
        least: minimum number of times that a repeat's body must match.
        most: maximum number of times that a repeat's body may match; None for no limit.
    """

    kind: str
    text: str = ""
    options: tuple[tuple[_Part, ...], ...] = ()
    least: int = 1
    most: int | None = 1


class _Reader:
    """Parses a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def group(self) -> _Part:
        """Parses alternatives up to the closing bracket, or to the pattern's end."""
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
        """Parses a repeat after `part`, if there is one."""
        repeat = _REPEAT.match(self.pattern, self.at)
        if repeat is None:
            return part
        self.at = repeat.end()
        sign, minimum, comma, maximum, suffix = repeat.groups()
        if suffix == "+":  # possessive repeats can match fewer texts
            raise Unsupported(self.pattern)
        if sign:
            fewest, limit = int(sign == "+"), 1 if sign == "?" else None
        else:
            fewest, limit = int(minimum or 0), int(maximum) if maximum else None
            if not comma:
                limit = fewest
        return _Part("repeat", "", ((part,),), fewest, limit)


class Automaton:
    """A nondeterministic finite automaton of a pattern.

    Args:
        pattern: a regular expression that `re` compiles.
        whole_text: True if the pattern must match the whole text, False for any part.
        ignores_case: True to match without regard to case.
    """

    def __init__(
        self, pattern: str, whole_text: bool, ignores_case: bool = False
    ) -> None:
        self._whole = whole_text
        self._flags = re.IGNORECASE if ignores_case else 0
        self._kinds: list[str] = []
        self._letters: list[re.Pattern[str] | None] = []
        self._next: list[list[int]] = []
        self._final = self._add_state("group", [])
        self._first = self._enter(_Reader(pattern).group(), self._final)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def _add_state(self, kind: str, after: list[int], text: str = "") -> int:
        if len(self._next) >= MOST_STATES:
            raise Unsupported("too large")
        self._kinds.append(kind)
        self._letters.append(
            re.compile(text, self._flags) if kind == "letter" else None
        )
        self._next.append(after)
        return len(self._next) - 1

    def _enter(self, part: _Part, after: int) -> int:
        """Adds states for `part`, followed by state `after`; returns the first one."""
        if part.kind == "repeat":
            return self._enter_repeat(part, after)
        if part.kind != "group":
            return self._add_state(part.kind, [after], part.text)
        starts: list[int] = []
        for sequence in part.options:
            start = after
            for inner in reversed(sequence):
                start = self._enter(inner, start)
            starts.append(start)
        return self._add_state("group", starts)

    def _enter_repeat(self, part: _Part, after: int) -> int:
        body = part.options[0][0]
        start = after
        if part.most is None:
            start = self._add_state("group", [after])
            self._next[start].append(self._enter(body, start))
        else:
            for _ in range(part.most - part.least):
                start = self._add_state("group", [self._enter(body, start), after])
        for _ in range(part.least):
            start = self._enter(body, start)
        return start

    def matches(self, text: str) -> bool:
        """Whether the pattern matches `text`."""
        states = self._passed([self._first], at_start=True)
        restart = frozenset() if self._whole else self._passed([self._first])
        for letter in text:
            if not self._whole and self._final in states:
                return True
            key = states, letter
            if key not in self._steps:
                if len(self._steps) >= _MOST_KNOWN:
                    self._steps.clear()
                self._steps[key] = self._step(states, letter) | restart
            states = self._steps[key]
        return self._final in self._passed(states, at_start=not text, at_end=True)

    def _step(self, states: frozenset[int], letter: str) -> frozenset[int]:
        after: list[int] = []
        for state in states:
            expression = self._letters[state]
            if expression is not None and expression.match(letter):
                after += self._next[state]
        return self._passed(after)

    def _passed(
        self, states: Iterable[int], at_start: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """Returns these states and all states reachable without reading a letter."""
        reached = set(states)
        waiting = list(reached)
        passable = {"group": True, "letter": False, "start": at_start, "end": at_end}
        while waiting:
            state = waiting.pop()
            if passable[self._kinds[state]]:
                for following in self._next[state]:
                    if following not in reached:
                        reached.add(following)
                        waiting.append(following)
        return frozenset(reached)
