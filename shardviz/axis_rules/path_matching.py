"""match_path(): finds the pattern that decides an array's spec by its path.

The algorithms are `match_partition_rules` in EasyLM and T5X (dialect regex) and
`keras.distribution.LayoutMap.__getitem__` (dialect keras); `tests/layout` compares the
results with these functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardviz.axis_rules.dialects import PathDialect
from shardviz.axis_rules.path_automaton import Unsupported, automaton, ways
from shardviz.axis_rules.rules import PathRules
from shardviz.axis_rules.verdicts import (
    NoMatchProblem,
    Problem,
    SeveralMatchProblem,
    UnreadableProblem,
)
from shardviz.base.errors import RuleError
from shardviz.base.format import shown
from shardviz.base.parse import check_path
from shardviz.base.partition_spec import Spec

# The maximum length of a pattern, in characters.
MAX_PATTERN = 1_000
# Limits for the number of ways in which `re` tries to match a pattern. Above
# _MOST_WAYS, an automaton is used. If there is none, patterns above _TOO_MANY_WAYS are
# rejected.
_MOST_WAYS = 10**4
_TOO_MANY_WAYS = 10**7

_WORD = re.compile(r"[^\W\d]\w+")
_NOT_PLAIN = re.compile(r"\\.|\[[^\]]*\]|\{[^}]*\}|\(\?[a-zA-Z]*[:)]?|\w[?*]")


@lru_cache(maxsize=1 << 14)  # one table is matched with thousands of paths
def compiled(text: str, ignores_case: bool) -> re.Pattern[str]:
    """Compiles a pattern as a regular expression; cached.

    Raises:
        RuleError: if the text is not a regular expression, or matching it could take
            unbounded time.
    """
    if len(text) > MAX_PATTERN:
        raise RuleError(
            f"The pattern {shown(text)} has {len(text):,} letters; at most"
            f" {MAX_PATTERN:,} are read."
        )
    try:
        expression = re.compile(text, re.IGNORECASE if ignores_case else 0)
        if ways(text, 0) == math.inf:
            automaton(text, False, ignores_case)
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
            f"The pattern {shown(text)} is not a regular expression: {why}."
        ) from None


@lru_cache(maxsize=1 << 14)
def required(pattern: str) -> str:
    """Returns text that every matching path contains; "" if there is no obvious one.

    A search for this text rules out most paths, and is faster than matching.

    >>> required("mlp/.*/kernel"), required("(a|b)/kernel")
    ('/kernel', '')
    """
    parts = pattern.removeprefix("^").removesuffix("$").split(".*")
    # The text between `.*` must be free of special characters.
    if any(re.escape(part).replace("\\-", "-") != part for part in parts):
        return ""
    return max(parts, key=len)


def may_fit(pattern: str, text: str, dialect: PathDialect) -> bool:
    """Quick test: False if a pattern cannot match `text`, or any line of it."""
    return dialect.ignores_case or required(pattern) in text


def fits(pattern: str, path: str, dialect: PathDialect) -> bool:
    """Whether a pattern matches a path, in whole or in part as the dialect requires.

    Raises:
        RuleError: if the pattern is not a regular expression, or matching it could take
            unbounded time.
    """
    text = dialect.text(path)
    if not may_fit(pattern, text, dialect):
        return False
    expression = compiled(pattern, dialect.ignores_case)
    attempts = ways(pattern, len(text))
    if attempts > _MOST_WAYS:
        try:
            machine = automaton(pattern, dialect.whole_path, dialect.ignores_case)
            return machine.matches(text)
        except Unsupported:
            if attempts > _TOO_MANY_WAYS:
                raise RuleError(
                    f"The pattern {shown(pattern)} may take unbounded time: there are"
                    f" too many ways to match it with {shown(path)}. Use fewer repeats,"
                    " or no look-ahead, back reference or flag."
                ) from None
    if dialect.whole_path:
        return expression.fullmatch(text) is not None
    return expression.search(text) is not None


class PathMatch(NamedTuple):
    """The result of matching a path with a table; patterns are given by index.

    Attributes:
        winner: the pattern that decides, or None.
        several: all matching patterns, if the library rejects several matches.
        problem: if the library raises an error, the reason; else None.

    >>> PathMatch(2).several
    ()
    """

    winner: int | None = None
    several: tuple[int, ...] = ()
    problem: Problem | None = None


def match_path(path: str, rules: PathRules, dialect: PathDialect) -> PathMatch:
    """Finds the pattern that decides for a path, as the dialect's library would.

    >>> from shardviz.axis_rules.dialects import Dialect
    >>> table = PathRules.of([("dense.*", ("model",)), (".*kernel", ())])
    >>> match_path("dense/kernel", table, Dialect.REGEX).winner
    0
    >>> match_path("dense/kernel", table, Dialect.KERAS).several
    (0, 1)
    """
    matching: list[int] = []
    try:
        check_path(path, RuleError)
        # If the path is a key of the table, the library matches no pattern.
        if not is_key(path, rules, dialect):
            for index, rule in enumerate(rules.entries):
                if fits(rule.pattern, path, dialect):
                    matching.append(index)
                    if dialect.first_match_wins:
                        break
    except RuleError as error:
        return PathMatch(problem=UnreadableProblem(str(error)))
    return decided(matching, path, rules, dialect)


def is_key_of(pattern: str, path: str, dialect: PathDialect) -> bool:
    """Whether the dialect looks paths up as keys, and the pattern equals the path."""
    return dialect.key_first and pattern == dialect.text(path)


def is_key(path: str, rules: PathRules, dialect: PathDialect) -> bool:
    """Whether the dialect looks paths up as keys, and the path is a key."""
    return dialect.key_first and dialect.text(path) in rules.patterns


def decided(
    matching: Sequence[int], path: str, rules: PathRules, dialect: PathDialect
) -> PathMatch:
    """Decides between the patterns that match a path."""
    if is_key(path, rules, dialect):
        return PathMatch(rules.patterns[dialect.text(path)])
    if matching and (dialect.first_match_wins or len(matching) == 1):
        return PathMatch(matching[0])
    if matching:
        patterns = tuple(rules[i].pattern for i in matching)
        problem = SeveralMatchProblem(patterns, dialect.library)
        return PathMatch(None, tuple(matching), problem)
    if dialect.replicates_unmatched:
        return PathMatch()
    return PathMatch(problem=NoMatchProblem(dialect.library))


def is_one_element(shape: tuple[int, ...] | None, dialect: PathDialect) -> bool:
    """Whether the dialect leaves arrays of this shape unsplit, whatever the table."""
    return dialect.one_element_unsplit and shape is not None and math.prod(shape) == 1


def matched_spec(
    match: PathMatch,
    rules: PathRules,
    shape: tuple[int, ...] | None,
    dialect: PathDialect,
) -> Spec | None:
    """Returns the deciding pattern's spec; None if the library raises an error."""
    if is_one_element(shape, dialect):
        return Spec()
    if match.winner is not None:
        return rules[match.winner].spec
    if match.problem:
        return None
    # The dialect replicates arrays that no pattern matches.
    return Spec(((),) * len(shape or ()))


def plain_words(pattern: str) -> Iterator[re.Match[str]]:
    """Finds the words that a pattern contains literally, with their positions.

    >>> [word[0] for word in plain_words("mlp/.*/kernels?$")]
    ['mlp', 'kernel']
    """
    return _WORD.finditer(_NOT_PLAIN.sub(lambda m: " " * len(m[0]), pattern))


def missing_words(pattern: str, text: str) -> tuple[str, ...]:
    """Returns a pattern's literal words that are not in `text` (one or more paths)."""
    # A dict keeps each word once, in the pattern's order.
    words = dict.fromkeys(match[0] for match in plain_words(pattern))
    return tuple(word for word in words if word not in text)
