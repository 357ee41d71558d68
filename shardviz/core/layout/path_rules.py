"""Which pattern of a table of paths decides each array, and why every other does not.

Follows `match_partition_rules` of EasyLM and T5X (dialect regex) and
`keras.distribution.LayoutMap.__getitem__` (dialect keras); `tests/layout` compares it with both.

A pattern of a table is text from somebody else, and Python's `re` takes time that grows
exponentially with the path for some patterns. So the steps that backtracking may take are bounded
first, from the pattern's syntax tree. Where they are too many, an automaton does the same in linear
time; a pattern that no automaton can match (a back-reference, a look-ahead) is refused then.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from shardviz.core.display import Displayed
from shardviz.core.errors import RuleError, ShardvizError
from shardviz.core.format import ids_text, listed, nearest, plural, shown
from shardviz.core.layout.array_spec import ArraySpec
from shardviz.core.layout.array_tree import TreeLeaf
from shardviz.core.layout.layout import Layout, lay_out_parsed
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import MAX_PATH, check_path
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.path_remedies import PathArrays, PathSearch, tests, widened, words_of
from shardviz.core.layout.remedies import Leaf, Remedies
from shardviz.core.layout.resolution import Request
from shardviz.core.layout.rules import Dialect, PathRule, PathRules
from shardviz.core.layout.verdicts import PathOutcome, PathVerdict, path_deciding

MAX_PATTERN = 1_000  # letters
MAX_STATES = 4_000  # of an automaton
MAX_STEPS = 20_000  # remembered by an automaton
FEW_STEPS = 100_000  # of backtracking, about a millisecond; more are done by an automaton
MOST_STEPS = 10_000_000
MEMO_SIZE = 1 << 16
FEW = 8  # patterns, of which each is named that does not match

_parser: Any = getattr(re, "_parser", None)  # private in Python 3.11 to 3.14
_TESTED = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_LOOKS = ("ASSERT", "ASSERT_NOT", "ATOMIC_GROUP")
_CLASSES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}
_CLASSES |= {f"NOT_{name}": text.upper() for name, text in _CLASSES.items()}


class Pattern:
    """A regular expression that is matched in a time that cannot explode.

    Raises:
        RuleError: for text that is no regular expression, or is too long for one.

    >>> Pattern("mlp/.*/kernel").search("params/mlp/0/kernel")
    True
    >>> Pattern("(a|a)*b").fullmatch("a" * 100)  # takes re longer than the universe has existed
    False
    """

    def __init__(self, text: str):
        if len(text) > MAX_PATTERN:
            long = f"{len(text):,} letters; at most {MAX_PATTERN:,} are read"
            raise RuleError(f"The pattern {shown(text)} has {long}.")
        self.text = text
        self._steps: dict[int, int] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # re's on syntax that it may read otherwise later
                self._compiled = re.compile(text)
                self._tree = None if _parser is None else _parser.parse(text)
        except (re.error, OverflowError, RecursionError, MemoryError) as error:
            why = str(error) or "it nests too deeply"
            raise RuleError(f"The pattern {shown(text)} is no regular expression: {why}.") from None

    def search(self, path: str) -> bool:
        """Whether the pattern matches anywhere in the path.

        Raises:
            RuleError: where finding out may take too long.
        """
        return self.required in path and self._matches(path, False)

    def fullmatch(self, path: str) -> bool:
        """Whether the pattern matches all of the path; raises as `search` does."""
        return self.required in path and self._matches(path, True)

    @cached_property
    def required(self) -> str:
        """The longest text that is in every path that it matches; most paths lack it."""
        if self._tree is None or self._tree.state.flags & re.IGNORECASE:
            return ""
        letters = (chr(a) if o.name == "LITERAL" else "\n" for o, a in self._tree.data)
        return max("".join(letters).split("\n"), key=len)

    def _matches(self, path: str, entire: bool) -> bool:
        length = len(path).bit_length()
        steps = self._steps.get(length)
        if steps is None:
            steps = self._steps[length] = self._count_steps(1 << length)
        if steps * (1 if entire or self._begins else len(path) + 1) > FEW_STEPS:
            if self._automaton is not None:
                return self._automaton.matches(path, entire)
            if steps > MOST_STEPS:
                raise RuleError(
                    f"Matching the pattern {shown(self.text)} with a path of {len(path)} letters"
                    " may take too long. Write it with fewer repeats in repeats, and without"
                    " look-ahead and back-references."
                )
        found = self._compiled.fullmatch(path) if entire else self._compiled.search(path)
        return found is not None

    @cached_property
    def _begins(self) -> bool:
        data = self._tree.data if self._tree is not None else ()
        return bool(data) and str(data[0][1]).startswith("AT_BEGINNING")

    def _count_steps(self, length: int) -> int:
        """At most so many steps are taken by backtracking from one letter of such a path."""
        try:
            if self._tree is not None:
                return _sequence_steps(self._tree, length)[1]
            return (length + 1) ** len(re.findall(r"[*+?{]", self.text))  # nothing is known of it
        except RecursionError:
            return MOST_STEPS + 1

    @cached_property
    def _automaton(self) -> _Automaton | None:
        try:
            return None if self._tree is None else _Automaton(self._tree)
        except (_NotRegular, RecursionError):
            return None


def _sequence_steps(items: Any, length: int) -> tuple[int, int]:
    """In how many ways a sequence of nodes may match, and the steps to try them all."""
    ways, steps = 1, 1
    for operation, argument in items:
        more, each = _node_steps(operation.name, argument, length)
        steps = min(steps + ways * each, MOST_STEPS + 1)
        ways = min(ways * more, MOST_STEPS + 1)
    return ways, steps


def _node_steps(kind: str, argument: Any, length: int) -> tuple[int, int]:
    if kind in _TESTED or kind in ("AT", "GROUPREF", "FAILURE", "SUCCESS"):
        return 1, 1
    if kind == "SUBPATTERN":
        return _sequence_steps(argument[-1], length)
    if kind in _LOOKS:
        inner = argument if kind == "ATOMIC_GROUP" else argument[1]
        return 1, _sequence_steps(inner, length)[1]
    if kind == "BRANCH":
        found = [_sequence_steps(item, length) for item in argument[1]]
        first = [i[0][1] for i in argument[1] if len(i) and i[0][0].name == "LITERAL"]
        # Of alternatives that begin with different letters, one at most matches.
        differ = len({chr(c).casefold() for c in first}) == len(found)
        return (max if differ else sum)(w for w, _ in found), sum(s for _, s in found)
    if kind in _REPEATS:
        ways, steps = _sequence_steps(argument[2], length)
        most = min(int(argument[1]), length // max(1, argument[2].getwidth()[0]))
        if kind == "POSSESSIVE_REPEAT":
            return 1, (most + 1) * steps
        if ways == 1:
            return most + 1, (most + 1) * steps
        powers = itertools.accumulate(
            range(most), lambda p, _: min(p * ways, MOST_STEPS), initial=1
        )
        total = min(sum(powers), MOST_STEPS + 1)
        return total, min(total * steps, MOST_STEPS + 1)
    return MOST_STEPS + 1, MOST_STEPS + 1


class _NotRegular(Exception):
    """A part of a pattern that no automaton of a reasonable size can match."""


class _State(NamedTuple):
    """A state of an automaton: it tests a letter, or a position, or leads on at once."""

    test: re.Pattern[str] | None  # what the next letter must match
    position: str  # what must hold between two letters (`AT_BOUNDARY`, ...), or ""
    targets: list[int]


class _Automaton:
    """Thompson's construction over `re`'s syntax tree, for paths, which hold no newline."""

    def __init__(self, tree: Any):
        self._states: list[_State] = [_State(None, "", [])]  # the first one accepts
        self._memo: dict[Any, tuple[frozenset[int], bool]] = {}
        self._words: re.Pattern[str] | None = None
        self._start = self._sequence(tree, 0, tree.state.flags)

    def matches(self, path: str, entire: bool) -> bool:
        """Whether all of the path, or any part of it, is matched."""
        states, before = frozenset((self._start,)), ""
        for letter in (*path, ""):
            key = (states, before if self._words else not before, letter, entire)
            found = self._memo.get(key)
            if found is None:
                if len(self._memo) >= MAX_STEPS:
                    self._memo.clear()
                found = self._memo[key] = self._step(states, before, letter, entire)
            states, accepts = found
            if accepts or not states:
                return accepts
            before = letter
        return False

    def _step(
        self, states: frozenset[int], before: str, letter: str, entire: bool
    ) -> tuple[frozenset[int], bool]:
        reached, waiting = set(states), list(states)
        while waiting:
            state = self._states[waiting.pop()]
            if state.test is None and self._holds(state.position, before, letter):
                new = [t for t in state.targets if t not in reached]
                reached.update(new)
                waiting += new
        accepts = 0 in reached and not (entire and letter)
        after = set() if entire or not letter else {self._start}
        for state in (self._states[i] for i in reached) if letter else ():
            if state.test is not None and state.test.match(letter):
                after.update(state.targets)
        return frozenset(after), accepts

    def _holds(self, position: str, before: str, letter: str) -> bool:
        if not position:
            return True
        if position.endswith("BOUNDARY"):
            assert self._words is not None
            at_edge = bool(self._words.match(before)) != bool(self._words.match(letter))
            # re finds no edge, and until Python 3.14 no absence of one, in an empty path.
            empty = not before and not letter
            return at_edge if position == "AT_BOUNDARY" else not at_edge and not empty
        return not before if position.startswith("AT_BEGINNING") else not letter

    def _add(self, test: re.Pattern[str] | None, position: str, targets: list[int]) -> int:
        if len(self._states) >= MAX_STATES:
            raise _NotRegular
        self._states.append(_State(test, position, targets))
        return len(self._states) - 1

    def _sequence(self, items: Any, after: int, flags: int) -> int:
        """Adds the states of a sequence of nodes that leads to `after`; the first of them."""
        for operation, argument in reversed(list(items)):
            after = self._node(operation.name, argument, after, flags)
        return after

    def _node(self, kind: str, argument: Any, after: int, flags: int) -> int:
        if kind in _TESTED:
            return self._add(_letter_test(kind, argument, flags), "", [after])
        if kind == "AT":
            if argument.name.endswith("BOUNDARY"):
                self._words = re.compile(r"\w", flags & re.ASCII)
            return self._add(None, argument.name, [after])
        if kind == "SUBPATTERN":
            _, added, removed, inner = argument
            return self._sequence(inner, after, flags & ~removed | added)
        if kind == "BRANCH":
            return self._add(None, "", [self._sequence(i, after, flags) for i in argument[1]])
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(argument, after, flags)
        raise _NotRegular

    def _repeat(self, argument: Any, after: int, flags: int) -> int:
        least, most, item = int(argument[0]), int(argument[1]), argument[2]
        if most > MAX_PATH:  # more than a path has letters
            loop = self._add(None, "", [])
            self._states[loop].targets[:] = [self._sequence(item, loop, flags), after]
            after, most = loop, least
        for _ in range(most - least):
            after = self._add(None, "", [self._sequence(item, after, flags), after])
        for _ in range(min(least, MAX_PATH + 1)):
            before, after = after, self._sequence(item, after, flags)
            if after == before:  # nothing is repeated
                break
        return after


def _letter_test(kind: str, argument: Any, flags: int) -> re.Pattern[str]:
    """What matches one letter as a node of the syntax tree does."""
    if kind == "ANY":
        return re.compile(".", re.DOTALL)
    if kind == "IN":
        text = f"[{''.join(_class_text(o.name, a) for o, a in argument)}]"
    else:
        text = f"[{'^' * (kind == 'NOT_LITERAL')}{_code(argument)}]"
    return re.compile(text, flags & (re.IGNORECASE | re.ASCII))


def _class_text(kind: str, argument: Any) -> str:
    if kind == "CATEGORY":
        return _CLASSES[argument.name.removeprefix("CATEGORY_")]
    if kind == "RANGE":
        return f"{_code(argument[0])}-{_code(argument[1])}"
    return "^" if kind == "NEGATE" else _code(argument)


def _code(letter: int) -> str:
    return f"\\U{letter:08x}"


# A table of one model is matched with thousands of paths.
compiled = lru_cache(maxsize=1 << 14)(Pattern)


def fits(rule: PathRule, path: str, dialect: Dialect) -> bool:
    """Whether a pattern matches a path as the dialect asks for; raises as `Pattern` does."""
    return tests(rule.pattern, dialect, compiled)(path)


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
    problem: str | None = None


def match_path(path: str, rules: PathRules, dialect: Dialect) -> PathMatch:
    """The pattern that decides for a path, as the library of the dialect finds it; stored.

    >>> table = PathRules.of([("dense.*", ("model",)), (".*kernel", ())])
    >>> [match_path("dense/kernel", table, d).winner for d in (Dialect.REGEX, Dialect.KERAS)]
    [0, None]
    """
    key = (path, dialect)
    found = rules.memo.get(key)
    if found is None:
        if len(rules.memo) >= MEMO_SIZE:
            rules.memo.clear()
        try:
            check_path(path, RuleError)
            found = _regex(path, rules) if dialect is Dialect.REGEX else _keras(path, rules)
        except RuleError as error:
            found = PathMatch(problem=str(error))
        rules.memo[key] = found
    return found


def _fitting(path: str, rules: PathRules, dialect: Dialect) -> Iterator[int]:
    return (i for i, rule in enumerate(rules.entries) if fits(rule, path, dialect))


def _regex(path: str, rules: PathRules) -> PathMatch:
    winner = next(_fitting(path, rules, Dialect.REGEX), None)
    if winner is not None:
        return PathMatch(winner)
    close = nearest(path, (r.pattern for r in rules))
    hint = f" The nearest is {shown(close)}." if close else ""
    return PathMatch(
        problem=f"No pattern matches the path, where EasyLM raises an error.{hint} Add a pattern;"
        " ('.*', ()) at the end leaves all other arrays unsplit."
    )


def _keras(path: str, rules: PathRules) -> PathMatch:
    exact = rules.patterns.get(path)
    if exact is not None:
        return PathMatch(exact)
    found = tuple(_fitting(path, rules, Dialect.KERAS))
    if len(found) < 2:
        return PathMatch(found[0] if found else None)
    patterns = listed([rules[i].pattern for i in found], limit=4)
    return PathMatch(
        None,
        found,
        f"{len(found)} patterns match the path, {patterns}, and Keras allows one. Make each path"
        " match one pattern, or give the path itself as a key, which wins.",
    )


@dataclass(frozen=True, repr=False)
class PathResolution(Displayed):
    """How the path of one array became a spec; made by `shardviz.resolve` and `shardviz.audit`.

    Attributes:
        path: the path of the array, joined by `/`.
        rules: the table.
        dialect: the library whose reading of the table counts.
        mesh: the mesh that verdicts are checked against, or None.
        shape: the shape that verdicts are checked against, or None.

    >>> table = PathRules.of([("mlp/.*/kernel", (None, "model")), (".*", ())])
    >>> print(resolve_path("mlp/0/kernel", table).explain())
    mlp/0/kernel → P(None, 'model')  (regex, 2 patterns)
    pattern 1 ('mlp/.*/kernel' → P(None, 'model')) matches and splits dimension 1 over 'model'.
    pattern 2 ('.*' → P()) matches, too, and comes after pattern 1, which decides.
    """

    path: str
    rules: PathRules
    dialect: Dialect = Dialect.REGEX
    mesh: MeshSpec | None = None
    shape: tuple[int, ...] | None = None

    @cached_property
    def match(self) -> PathMatch:
        """Which pattern decides."""
        return match_path(self.path, self.rules, self.dialect)

    @property
    def winner(self) -> int | None:
        """The index of the pattern that decides, or None."""
        return self.match.winner

    @property
    def one_element(self) -> bool:
        """Whether the array has one element, which EasyLM leaves unsplit before it matches."""
        sizes = self.shape
        return self.dialect is Dialect.REGEX and sizes is not None and all(n == 1 for n in sizes)

    @cached_property
    def spec(self) -> Spec | None:
        """The spec, or None where no pattern decides and the library would raise an error."""
        if self.one_element:
            return Spec()
        if self.match.winner is not None:
            return self.rules[self.match.winner].spec
        # What no pattern of a LayoutMap matches, Keras replicates.
        return None if self.match.problem else Spec(((),) * len(self.shape or ()))

    @property
    def partition_spec(self) -> Any:
        """The spec as jax's own, or None."""
        return None if self.spec is None else self.spec.to_jax()

    @property
    def problem(self) -> str | None:
        """Why there is no spec, or None."""
        return self.match.problem if self.spec is None else None

    @cached_property
    def verdicts(self) -> tuple[PathVerdict, ...]:
        """One PathVerdict per pattern, in table order."""
        return tuple(self._judge(index, rule) for index, rule in enumerate(self.rules))

    def _judge(self, index: int, rule: PathRule) -> PathVerdict:
        if index == self.winner:
            return path_deciding(
                index, rule.pattern, rule.spec, self.mesh, self.shape, self.one_element
            )
        exact = self.dialect is Dialect.KERAS and rule.pattern == self.path
        try:
            fitting = exact or fits(rule, self.path, self.dialect)
        except RuleError as error:
            return self._verdict(index, PathOutcome.INVALID, f"cannot be matched. {error}")
        if not fitting:
            return self._verdict(index, PathOutcome.NO_MATCH, f"does not match{self._lack(rule)}.")
        if self.winner is None:
            numbers = listed([n + 1 for n in self.match.several])
            reason = f"matches, as do others (patterns {numbers} in all); Keras allows one."
            return self._verdict(index, PathOutcome.SEVERAL, reason)
        why = f"comes after pattern {self.winner + 1}, which decides."
        if self.dialect is Dialect.KERAS:
            why = f"pattern {self.winner + 1} is the path itself, which Keras takes first."
        reason = f"matches, too, and {why}"
        return self._verdict(index, PathOutcome.SHADOWED, reason, by_rule=self.winner)

    def _verdict(self, index: int, outcome: PathOutcome, reason: str, **more: Any) -> PathVerdict:
        rule = self.rules[index]
        return PathVerdict(index, rule.pattern, rule.spec, outcome, reason, **more)

    def _lack(self, rule: PathRule) -> str:
        """What a pattern asks for that the path does not have, to append."""
        missing = [w for w in words_of(rule.pattern) if w not in self.path]
        if missing:
            return f": the path has no {listed(missing, 'or', 3)}"
        wider = wider_pattern(rule, self.path) if self.dialect is Dialect.KERAS else ""
        return wider and (
            ": it is only in a part of the path, which did in older versions of Keras;"
            f" {shown(wider)} matches all of it"
        )

    def explain(self) -> str:
        """Which pattern decides, and why every other does not."""
        became = "unknown" if self.spec is None else str(self.spec)
        kinds = f"{self.dialect.value}, {plural(len(self.rules), 'pattern')}"
        lines = [f"{self.path} → {became}  ({kinds})"]
        if self.problem:
            lines.append(self.problem)
        elif self.winner is None:
            lines.append(
                "An array of one element is never split."
                if self.one_element
                else "No pattern matches the path, and Keras replicates such an array."
            )
        others = [v for v in self.verdicts if v.outcome is PathOutcome.NO_MATCH]
        few = others if len(others) <= FEW else [v for v in others if "older" in v.reason][:FEW]
        lines += [
            str(v) for v in self.verdicts if v.outcome is not PathOutcome.NO_MATCH or v in few
        ]
        rest = [v.rule + 1 for v in others if v not in few]
        if rest:
            lines.append(f"Patterns {ids_text(rest)} do not match.")
        remedy = self._search().first()
        return "\n".join([*lines, remedy] if remedy else lines)

    def remedies(self, want: Any, dtype: str = "float32", arrays: Any = None) -> Remedies:
        """The smallest edits with which the array is split as wanted; see `shardviz.remedies`."""
        return self._search(dtype, arrays).find(want)

    def _search(self, dtype: str = "float32", arrays: Any = None) -> PathSearch:
        ranks = [rule.spec.rank for rule in self.rules] if self.shape is None else []
        rank = max(ranks, default=len(self.shape or ()))
        leaf = Leaf(self.path, (None,) * rank, self.shape, dtype)
        return PathSearch(
            leaf, self.rules, self.mesh, self.dialect, lambda rules: replace(self, rules=rules),
            compiled, arrays or PathArrays(),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"PathResolution({self.path} → {self.spec}, {self.dialect.value})"


def wider_pattern(rule: PathRule, path: str) -> str:
    """A pattern that matches all of a path, where one is found in a part of it; else `""`."""
    for wider in widened(rule.pattern):
        if fits(PathRule(wider, rule.spec), path, Dialect.KERAS):
            return wider
    return ""


def resolve_path(
    path: Any, rules: PathRules, mesh: MeshSpec | None = None, shape: Any = None,
    dialect: Dialect = Dialect.REGEX,
) -> PathResolution:  # fmt: skip
    """The spec of one path, with a verdict for every pattern.

    Raises:
        RuleError: for a path or patterns that cannot be read, and where Keras raises.

    >>> str(resolve_path("mlp/0/kernel", PathRules.of([("kernel", (None, "model"))])).spec)
    "P(None, 'model')"
    """
    found = PathResolution(check_path(path, RuleError), rules, dialect, mesh, shape)
    if found.problem and dialect is Dialect.KERAS:
        raise RuleError(f"{shown(path)}: {found.problem}")
    return found


def path_requests(
    leaves: Iterable[tuple[str, TreeLeaf]], mesh: MeshSpec, rules: PathRules, dialect: Dialect
) -> Iterator[Request]:
    """One Request per array of a tree, from its path; a sharding of its own wins.

    Raises:
        RuleError: where Keras raises for an array, with its path.
    """
    layouts: dict[Any, tuple[Layout | None, str | None]] = {}
    for path, leaf in leaves:
        found = PathResolution(path, rules, dialect, mesh, leaf.array.shape)
        if leaf.problem is not None:
            yield Request(leaf.array, None, None, None, leaf.problem, by_path=found)
            continue
        if dialect is Dialect.KERAS and found.problem and leaf.array.spec is None:
            raise RuleError(f"{shown(path)}: {found.problem}")
        key = (leaf.array.shape, leaf.array.dtype, leaf.array.spec or found.spec)
        if key not in layouts:
            layouts[key] = _lay_out(leaf.array, key[-1], mesh)
        layout, problem = layouts[key]
        problem = found.problem if key[-1] is None else problem
        yield Request(leaf.array, None, key[-1], layout, problem, by_path=found)


def read_path_as(row: Request, mesh: MeshSpec, dialect: Dialect) -> Request:
    """A row as another dialect of paths reads the table; nothing is raised."""
    if row.by_path is None or row.spec_wins:
        return row
    found = replace(row.by_path, dialect=dialect)
    layout, problem = _lay_out(row.array, found.spec, mesh)
    problem = problem or found.problem
    return replace(row, spec=found.spec, layout=layout, problem=problem, by_path=found)


def _lay_out(
    array: ArraySpec, spec: Spec | None, mesh: MeshSpec
) -> tuple[Layout | None, str | None]:
    if spec is None:
        return None, None
    try:
        return lay_out_parsed(array.shape, spec, mesh, array.dtype), None
    except ShardvizError as error:
        return None, str(error)
