"""Rules and PathRules: the two kinds of table, and the dialects that read them.

`Rules` lead from logical axis names to mesh axes, `PathRules` from patterns of paths to
specs.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardviz.core.display import Displayed
from shardviz.core.errors import RuleError, SpecError
from shardviz.core.format import listed, nearest, plural, shown
from shardviz.core.layout.array_spec import format_names
from shardviz.core.layout.libraries import is_partition_spec, named_sharding, spec_of
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.parse import (
    Cursor,
    check_name,
    limited,
    names_or_none,
    quoted,
)
from shardviz.core.layout.partition_spec import MAX_RANK, Spec, is_unconstrained

MAX_RULES = 10_000


class Dialect(enum.Enum):
    """The library that reads the table; the same table can mean different things.

    - `LINEN`: `flax.linen.logical_to_mesh_axes`. Rule order is priority, repeats are
      fallbacks, a mesh axis is used once in an array.
    - `NNX`: `flax.nnx`. The rules become a dict: the last repeat wins, nothing checks
      for axes used twice, an unmatched name passes through as if it were a mesh axis.
    - `MAXTEXT`: linen, then mesh axes of size 1 are dropped from the spec.

    Two read a table of paths instead, `PathRules`:

    - `REGEX`: `match_partition_rules` of EasyLM and T5X. The first pattern that is
      found anywhere in the path gives the spec.
    - `KERAS`: `keras.distribution.LayoutMap`. The key that is the path, else the one
      pattern that matches all of it; more than one is an error.

    >>> Dialect.of("linen") is Dialect.LINEN
    True
    """

    LINEN = "linen"
    NNX = "nnx"
    MAXTEXT = "maxtext"
    REGEX = "regex"
    KERAS = "keras"
    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slow Python

    @property
    def by_path(self) -> bool:
        """Whether it reads a table of paths."""
        return self in (Dialect.REGEX, Dialect.KERAS)

    @staticmethod
    def of(value: Any, paths: bool = True) -> Dialect:
        """The dialect of that name, in any case.

        Args:
            value: the name, or a Dialect.
            paths: whether a dialect that reads a table of paths will do.

        Raises:
            RuleError: if there is none, or it does not do.
        """
        known = [d.value for d in Dialect if paths or not d.by_path]
        if isinstance(value, str) and value.lower() in [d.value for d in Dialect]:
            value = Dialect(value.lower())
        if isinstance(value, Dialect):
            if value.value not in known:
                raise RuleError(
                    f"{shown(value.value)} reads a table of paths, which sv.audit and sv.resolve"
                    f" take; here a dialect is one of {listed(known)}."
                )
            return value
        close = nearest(value, known)
        hint = f" Did you mean {shown(close)}?" if close else ""
        raise RuleError(
            f"No dialect is called {shown(value)}.{hint} There are {listed(known)}."
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table.

    Attributes:
        logical: the logical axis name it is for.
        axes: the mesh axes it wants, major to minor; `()` leaves the dimension unsplit.
        nested: whether the axes were written as a tuple in a tuple, which jax refuses.
        free: whether it leads to `P.UNCONSTRAINED`: the compiler decides.

    >>> print(Rule("mlp", ("model", "expert")))
    mlp → (model, expert)
    """

    logical: str
    axes: tuple[str, ...]
    nested: bool = False
    free: bool = False

    @property
    def target(self) -> str:
        """The right-hand side as people write it: `None`, `data`, `(data, model)`."""
        if not self.axes:
            return "UNCONSTRAINED" if self.free else "None"
        return self.axes[0] if len(self.axes) == 1 else f"({', '.join(self.axes)})"

    def __iter__(self) -> Iterator[Any]:
        """The pair that flax takes: the name, and `None`, an axis or a tuple of axes."""
        yield self.logical
        if self.free:  # the jax form of such a spec holds UNCONSTRAINED
            yield next(iter(Spec.trusted(((),), frozenset({0})).to_jax()))
        else:
            yield (
                None
                if not self.axes
                else self.axes[0]
                if len(self.axes) == 1
                else self.axes
            )

    def __str__(self) -> str:
        return f"{self.logical} → {self.target}"


@dataclass(frozen=True, repr=False)
class Rules(Displayed, tuple[Rule, ...]):
    """An ordered table of rules, repeats allowed; build one with `shardviz.rules`.

    A tuple, since flax takes no other table: `nn.logical_axis_rules(rules)`.

    >>> table = Rules.of(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None))
    >>> len(table), str(table[1]), table.logical_names
    (3, 'mlp → (model, expert)', ('batch', 'mlp', 'embed'))
    """

    entries: tuple[Rule, ...] = ()

    def __new__(cls, entries: tuple[Rule, ...] = ()) -> Rules:
        return super().__new__(cls, entries)

    @staticmethod
    def of(*pairs: Any) -> Rules:
        """Rules from pairs, from one list of pairs, or from typed text.

        Raises:
            RuleError: for a dict (its order and repeats are lost) and for malformed
                pairs.
        """
        if len(pairs) == 1 and not is_pair(pairs[0]):
            pairs = (_table(pairs[0]),) if not isinstance(pairs[0], Rules) else pairs
            if isinstance(pairs[0], Rules):
                return pairs[0]
            pairs = pairs[0]
        # A user's own class of list may be endless.
        found = tuple(itertools.islice(pairs, MAX_RULES + 1))
        if len(found) > MAX_RULES:
            counted = f"{len(pairs):,}" if len(pairs) > MAX_RULES else "more"
            raise RuleError(f"A table has at most {MAX_RULES:,} rules; got {counted}.")
        return Rules(tuple(_rule(i, p) for i, p in enumerate(found)))

    @staticmethod
    def parse(text: str) -> Rules:
        """Rules from what a person typed or pasted; nothing is evaluated.

        One rule per line, as `batch -> data`, `mlp: (model, expert)`, `embed -> None`;
        or pairs as in Python or YAML, `("batch", "data"), ["mlp", ["model"]]`.

        Raises:
            RuleError: with the position that could not be read.

        >>> print(Rules.parse("batch -> data\\nembed -> None"))
        batch → data
        embed → None
        """
        return Rules(tuple(_parse(text)))

    @cached_property
    def logical_names(self) -> tuple[str, ...]:
        """Every logical name the table knows, in order, once each."""
        return tuple(dict.fromkeys(r.logical for r in self.entries))

    @cached_property
    def by_name(self) -> Mapping[str, tuple[int, ...]]:
        """Logical name to the indices of its rules, in table order."""
        found: dict[str, list[int]] = {}
        for index, rule in enumerate(self.entries):
            found.setdefault(rule.logical, []).append(index)
        return {name: tuple(indices) for name, indices in found.items()}

    def nearest(self, name: str) -> str | None:
        """The logical name closest in spelling to one that no rule has; stored."""
        if name not in self._near:
            if len(self._near) >= MAX_RULES:
                self._near.clear()
            self._near[name] = nearest(name, self.logical_names)
        return self._near[name]

    @cached_property
    def _near(self) -> dict[str, str | None]:
        return {}

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """The table as pairs, `(name, None | axis | tuple of axes)`."""
        return tuple((name, target) for name, target in self)

    def text(self) -> str:
        """The table as people type it, one rule per line: the inverse of `Rules.parse`."""
        return "\n".join(
            f"{format_names((r.logical,))} -> {_typed_target(r)}" for r in self.entries
        )

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries)) or "no rules"

    def __repr__(self) -> str:
        first = f": {listed(map(str, self.entries), limit=4)}" if self.entries else ""
        return f"Rules({plural(len(self), 'rule')}{first})"


@dataclass(frozen=True, slots=True)
class PathRule:
    """One line of a table of paths.

    Attributes:
        pattern: a regular expression; in a `LayoutMap` also a path as it is.
        spec: how an array is split whose path it matches.

    >>> print(PathRule("mlp/.*/kernel", Spec.parse("None, model")))
    mlp/.*/kernel → P(None, 'model')
    """

    pattern: str
    spec: Spec

    @property
    def axes(self) -> tuple[str, ...]:
        """Every mesh axis of the spec, in order."""
        return self.spec.axes

    def __str__(self) -> str:
        return f"{self.pattern} → {self.spec}"


@dataclass(frozen=True, repr=False)
class PathRules(Displayed):
    """An ordered table from patterns of paths to specs; `shardviz.rules(...,
    dialect="regex")`.

    Attributes:
        entries: the lines, in order.
        mesh: the mesh that a `LayoutMap` keeps beside them, or None.

    >>> table = PathRules.of([("mlp/.*/kernel", (None, "model")), (".*", ())])
    >>> len(table), str(table[0].spec)
    (2, "P(None, 'model')")
    """

    entries: tuple[PathRule, ...] = ()
    mesh: MeshSpec | None = None

    @staticmethod
    def of(pairs: Any, mesh: MeshSpec | None = None) -> PathRules:
        """A table from pairs of pattern and spec, or from a dict of these.

        Raises:
            RuleError: for pairs that cannot be read.
        """
        if isinstance(pairs, (PathRules, Rules)):
            if isinstance(pairs, PathRules):
                return pairs
            raise RuleError(
                "A dialect of paths reads pairs of a pattern and a spec, such as"
                " ('mlp/.*/kernel', (None, 'model')); got a table of logical names."
            )
        if isinstance(pairs, Mapping):
            pairs = pairs.items()
        # A set has no order.
        elif isinstance(pairs, (str, bytes, Set)) or not isinstance(pairs, Iterable):
            raise RuleError(
                f"A table of paths is pairs such as ('mlp/.*/kernel', (None, 'model')); got"
                f" {shown(pairs)}."
            )
        found = limited(pairs, MAX_RULES, "The rules of a table", RuleError)
        return PathRules(tuple(_path_rule(i, p) for i, p in enumerate(found)), mesh)

    @cached_property
    def patterns(self) -> Mapping[str, int]:
        """Each pattern and the index of its first line."""
        return {r.pattern: i for i, r in reversed(list(enumerate(self.entries)))}

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """The table as EasyLM takes it: pattern and `PartitionSpec`."""
        return tuple((r.pattern, r.spec.to_jax()) for r in self.entries)

    def text(self) -> str:
        """The table as people type it, one line per pattern; `sv.rules` parses it back."""
        return "\n".join(f"{quoted(r.pattern)} -> {r.spec}" for r in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[PathRule]:
        return iter(self.entries)

    def __getitem__(self, index: int) -> PathRule:
        return self.entries[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries)) or "no patterns"

    def __repr__(self) -> str:
        first = f": {listed(map(str, self.entries), limit=4)}" if self.entries else ""
        return f"PathRules({plural(len(self), 'pattern')}{first})"


def _path_rule(index: int, pair: Any) -> PathRule:
    if isinstance(pair, PathRule):
        return pair
    if isinstance(pair, str) or not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise RuleError(
            f"Rule {index + 1} must be a pair such as ('mlp/.*/kernel', (None, 'model')); got"
            f" {shown(pair)}."
        )
    pattern, spec = pair[0], pair[1]
    if not isinstance(pattern, str):
        raise RuleError(
            f"The pattern in rule {index + 1} must be text; got {shown(pattern)}."
        )
    if not pattern.isprintable():
        raise RuleError(
            f"The pattern in rule {index + 1} has control characters: {shown(pattern)}."
        )
    try:
        return PathRule(str(pattern), _spec(spec))
    except SpecError as error:
        raise RuleError(f"Rule {index + 1}, for {shown(pattern)}: {error}") from None


def _spec(value: Any) -> Spec:
    """The right side of a line, in any of the forms that people have."""
    if isinstance(value, Spec):
        return value
    if isinstance(value, str):
        return Spec.parse(value)
    if value is None:
        return Spec()
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return Spec.of(*limited(value, MAX_RANK, "the entries of a spec", SpecError))
    if is_partition_spec(value):
        return spec_of(value)
    found = named_sharding(value)
    if found is None:
        raise SpecError(
            f"the right side is a PartitionSpec, a tuple such as (None, 'model') or None; got"
            f" {shown(value)}."
        )
    return found[0]


def is_pair(value: Any) -> bool:
    """Whether it is one line of a table, and not a table."""
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and isinstance(value[0], str)
    )


def _table(value: Any) -> Iterable[Any]:
    if isinstance(value, str):
        return Rules.parse(value)
    if isinstance(value, Mapping):
        raise RuleError(
            "Rules are an ordered list of pairs; a dict loses repeats, which are fallbacks."
            " Write [('batch', 'data'), …] or pass list(rules.items())."
        )
    if isinstance(value, (tuple, list)):
        return value
    raise RuleError(f"Rules are pairs such as ('batch', 'data'); got {shown(value)}.")


def _rule(index: int, pair: Any) -> Rule:
    if isinstance(pair, Rule):
        return pair
    if isinstance(pair, str) or not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise RuleError(
            f"Rule {index + 1} must be a pair such as ('batch', 'data'); got {shown(pair)}."
        )
    logical = check_name(pair[0], f"the logical axis in rule {index + 1}", RuleError)
    if is_unconstrained(pair[1]):
        return Rule(logical, (), free=True)
    axes, nested = _axes(index, pair[1])
    return Rule(logical, axes, nested)


def _axes(index: int, target: Any) -> tuple[tuple[str, ...], bool]:
    if target is None:
        return (), False
    if isinstance(target, str):
        return (
            check_name(target, f"the mesh axis in rule {index + 1}", RuleError),
        ), False
    if not isinstance(target, (tuple, list)):
        raise RuleError(
            f"Rule {index + 1} must lead to a mesh axis, a tuple of them, or None; got"
            f" {shown(target)}."
        )
    axes: list[str] = []
    for entry in target:
        inner = entry if isinstance(entry, (tuple, list)) else (entry,)
        axes += [
            check_name(a, f"a mesh axis in rule {index + 1}", RuleError) for a in inner
        ]
    return tuple(axes), any(isinstance(e, (tuple, list)) for e in target)


def _typed_target(rule: Rule) -> str:
    if not rule.axes:
        return rule.target
    names = [_typed_axis(a) for a in rule.axes]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _typed_axis(name: str) -> str:
    # Without quotes these words would be parsed as no axis.
    special = name.lower() in ("none", "null") or name.upper().endswith("UNCONSTRAINED")
    return quoted(name) if special else format_names((name,))


def _parse(text: str) -> Iterator[Rule]:
    if not isinstance(text, str):
        raise RuleError(
            f"Rules are typed as text such as batch -> data; got {shown(text)}."
        )
    cursor = Cursor(text, RuleError)
    outer = _skip_outer(cursor)
    index = 0
    while not cursor.done and not (outer and cursor.at(outer)):
        if index >= MAX_RULES:
            raise RuleError(f"A table has at most {MAX_RULES:,} rules.")
        yield _parse_rule(cursor, index)
        index += 1
    if outer and not cursor.skip(outer):
        raise cursor.complain(f"expected a closing {outer}")
    if not cursor.done:
        raise cursor.complain("expected nothing more")


def _parse_rule(cursor: Cursor, index: int) -> Rule:
    closing = None
    if cursor.at("-") and cursor.peek().value in ("(", "["):
        cursor.take()  # the dash of a list in YAML
    if cursor.at("(", "["):
        closing = ")" if cursor.take().value == "(" else "]"
    logical = cursor.name("a logical axis name")
    arrow = cursor.here.start
    if not cursor.skip("->", "=>", "→", "⇒", ":=", ":", "=", ","):
        raise cursor.complain("expected -> and a mesh axis")
    if not closing and "\n" in cursor.text[arrow : cursor.here.start]:
        raise _no_right_side(logical, cursor.text.count("\n", 0, arrow) + 1)
    free = cursor.here.kind == "word" and cursor.here.value.upper().endswith(
        "UNCONSTRAINED"
    )
    target = names_or_none(cursor, "a mesh axis, None or a tuple")
    if closing:
        cursor.skip(",")
        if not cursor.skip(closing):
            raise cursor.complain(f"expected a closing {closing}")
    cursor.skip(",", ";")
    rule = _rule(index, (logical, target))
    return Rule(rule.logical, (), free=True) if free else rule


def _no_right_side(logical: str, line: int) -> RuleError:
    return RuleError(
        f"Cannot read line {line}: the rule for {shown(logical)} has no right side. Write a mesh"
        " axis, None or a tuple after it."
    )


def _skip_outer(cursor: Cursor) -> str | None:
    """Skips the bracket around a pasted table, `((…), (…))`, and returns the closing
    one.
    """
    if (
        cursor.at("(", "[")
        and cursor.peek().kind == "punct"
        and cursor.peek().value in "(["
    ):
        return ")" if cursor.take().value == "(" else "]"
    return None
