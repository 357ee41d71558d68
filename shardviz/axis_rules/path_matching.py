"""match_path(): which pattern of a table of paths decides for an array.

Follows `match_partition_rules` of EasyLM and T5X (dialect regex) and
`keras.distribution.LayoutMap.__getitem__` (dialect keras); `tests/layout` compares it
with both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardviz.axis_rules.path_automaton import Unsupported, automaton, ways
from shardviz.axis_rules.rules import Dialect, PathRules
from shardviz.axis_rules.verdicts import Problem
from shardviz.base.errors import RuleError
from shardviz.base.format import shown
from shardviz.base.parse import check_path
from shardviz.base.partition_spec import Spec

MAX_PATTERN = 1_000  # letters
# Ways in which Python's `re` may try to match: beyond these, an automaton matches, and if
# it cannot, a pattern is refused from the second number on.
_MOST_WAYS = 10**4
_TOO_MANY_WAYS = 10**7

_WORD = re.compile(r"[^\W\d]\w+")
_NOT_PLAIN = re.compile(r"\\.|\[[^\]]*\]|\{[^}]*\}|\(\?[a-zA-Z]*[:)]?|\w[?*]")


@lru_cache(maxsize=1 << 14)  # a table of one model is matched with thousands of paths
def compiled(text: str) -> re.Pattern[str]:
    """A regular expression.

    Raises:
        RuleError: for text that is none, or that cannot be matched in bounded time.
    """
    if len(text) > MAX_PATTERN:
        raise RuleError(
            f"The pattern {shown(text)} has {len(text):,} letters; at most"
            f" {MAX_PATTERN:,} are read."
        )
    try:
        expression = re.compile(text)
        if ways(text, 0) == math.inf:
            automaton(text, False)
        return expression
    except Unsupported:
        raise RuleError(
            f"The pattern {shown(text)} may take unbounded time: it repeats a group."
            " Repeat a letter or a class of letters, or use no look-ahead, back reference"
            " or flag beside the repeated group."
        ) from None
    except (re.error, OverflowError, RecursionError, Warning) as error:
        why = str(error) or "it nests too deeply"
        raise RuleError(
            f"The pattern {shown(text)} is no regular expression: {why}."
        ) from None


@lru_cache(maxsize=1 << 14)
def required(pattern: str) -> str:
    """Text that is in every path that a pattern matches, or "" where that is not plain.

    Most paths of a model lack it, and looking for it is quicker than matching.

    >>> required("mlp/.*/kernel"), required("(a|b)/kernel")
    ('/kernel', '')
    """
    parts = pattern.removeprefix("^").removesuffix("$").split(".*")
    # Only where the parts between `.*` are plain text.
    if any(re.escape(part).replace("\\-", "-") != part for part in parts):
        return ""
    return max(parts, key=len)


def fits(pattern: str, path: str, dialect: Dialect) -> bool:
    """Whether a pattern matches a path as the dialect asks for: anywhere, or all of it.

    Raises:
        RuleError: for text that is no regular expression, or one that cannot be matched
            in bounded time.
    """
    if required(pattern) not in path:
        return False
    expression = compiled(pattern)
    tried = ways(pattern, len(path))
    if tried > _MOST_WAYS:
        try:
            return automaton(pattern, dialect is not Dialect.REGEX).matches(path)
        except Unsupported:
            if tried > _TOO_MANY_WAYS:
                raise RuleError(
                    f"The pattern {shown(pattern)} may take unbounded time: there are"
                    f" too many ways to match it with {shown(path)}. Use fewer repeats,"
                    " or no look-ahead, back reference or flag."
                ) from None
    if dialect is Dialect.REGEX:
        return expression.search(path) is not None
    return expression.fullmatch(path) is not None


class PathMatch(NamedTuple):
    """Which patterns of a table match a path, by index, and which of them decides.

    Attributes:
        winner: the one that decides, or None.
        several: those among which Keras cannot decide.
        problem: why none decides although one might have, or None.

    >>> PathMatch(2).several
    ()
    """

    winner: int | None = None
    several: tuple[int, ...] = ()
    problem: Problem | None = None


def match_path(path: str, rules: PathRules, dialect: Dialect) -> PathMatch:
    """The pattern that decides for a path, as the library of the dialect finds it.

    >>> table = PathRules.of([("dense.*", ("model",)), (".*kernel", ())])
    >>> [match_path("dense/kernel", table, d).winner for d in (Dialect.REGEX, Dialect.KERAS)]
    [0, None]
    """
    matching: list[int] = []
    try:
        check_path(path, RuleError)
        # Keras does not look at its patterns where the path itself is a key.
        if dialect is Dialect.REGEX or path not in rules.patterns:
            for index, rule in enumerate(rules.entries):
                if fits(rule.pattern, path, dialect):
                    matching.append(index)
                    if dialect is Dialect.REGEX:
                        break  # the first decides; Keras raises where there are two
    except RuleError as error:
        return PathMatch(problem=Problem("unreadable", error=str(error)))
    return decided(matching, path, rules, dialect)


def decided(
    matching: Sequence[int], path: str, rules: PathRules, dialect: Dialect
) -> PathMatch:
    """What decides of the patterns that match a path."""
    if dialect is Dialect.KERAS and path in rules.patterns:
        return PathMatch(rules.patterns[path])
    if matching and (dialect is Dialect.REGEX or len(matching) == 1):
        return PathMatch(matching[0])
    if matching:
        patterns = tuple(rules[i].pattern for i in matching)
        problem = Problem("several match", patterns=patterns)
        return PathMatch(None, tuple(matching), problem)
    if dialect is Dialect.KERAS:
        return PathMatch()
    return PathMatch(problem=Problem("no match"))


def is_one_element(shape: tuple[int, ...] | None, dialect: Dialect) -> bool:
    """Whether EasyLM leaves such an array unsplit before it matches anything."""
    return dialect is Dialect.REGEX and shape is not None and math.prod(shape) == 1


def matched_spec(
    match: PathMatch,
    rules: PathRules,
    shape: tuple[int, ...] | None,
    dialect: Dialect,
) -> Spec | None:
    """The spec of the pattern that decides; None where the library raises an error."""
    if is_one_element(shape, dialect):
        return Spec()
    if match.winner is not None:
        return rules[match.winner].spec
    # What no pattern of a LayoutMap matches, Keras replicates.
    if match.problem:
        return None
    return Spec(((),) * len(shape or ()))


def plain_words(pattern: str) -> Iterator[re.Match[str]]:
    """The words in a pattern that stand there letter by letter, and where they stand.

    >>> [word[0] for word in plain_words("mlp/.*/kernels?$")]
    ['mlp', 'kernel']
    """
    return _WORD.finditer(_NOT_PLAIN.sub(lambda m: " " * len(m[0]), pattern))


def missing_words(pattern: str, text: str) -> tuple[str, ...]:
    """The words of a pattern that are not in a path, or in many of them."""
    # Each word once, in the order of the pattern.
    words = dict.fromkeys(match[0] for match in plain_words(pattern))
    return tuple(word for word in words if word not in text)
