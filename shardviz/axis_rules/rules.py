"""Rules and PathRules: the two kinds of rule table.

`Rules` map logical axis names to mesh axes; `PathRules` map path patterns to specs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from shardviz.axis_rules.dialects import NameDialect, PathDialect
from shardviz.axis_rules.libraries import is_partition_spec, named_sharding, spec_of
from shardviz.base.display import Displayed
from shardviz.base.errors import RuleError, ShardvizError, SpecError
from shardviz.base.format import listed, nearest, plural, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import (
    NAME,
    QUOTED,
    Call,
    check_name,
    limited,
    name_in,
    quoted,
    scan,
    typed_name,
    typed_value,
)
from shardviz.base.partition_spec import (
    MAX_RANK,
    Spec,
    is_unconstrained,
    spec_of_call,
)

MAX_RULES = 10_000


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a table.

    Attributes:
        logical: the logical axis name that the rule is for.
        axes: the mesh axes that split the dimension, major to minor; `()` leaves the
            dimension unsplit.
        free: True for `P.UNCONSTRAINED`: the compiler decides.

    >>> print(Rule("mlp", ("model", "expert")))
    mlp → (model, expert)
    """

    logical: str
    axes: tuple[str, ...]
    free: bool = False

    @property
    def target(self) -> str:
        """The rule's right side as users write it: `None`, `data`, `(data, model)`."""
        if self.free:
            return "UNCONSTRAINED"
        if not self.axes:
            return "None"
        return _in_brackets(self.axes)

    def __iter__(self) -> Iterator[Any]:
        """Yields flax's pair: the name, then `None`, an axis or a tuple of axes."""
        yield self.logical
        if self.free:  # get jax's UNCONSTRAINED from a converted spec
            yield next(iter(Spec.trusted(((),), frozenset({0})).to_jax()))
        elif len(self.axes) > 1:
            yield self.axes
        else:
            yield next(iter(self.axes), None)

    def __str__(self) -> str:
        return f"{self.logical} → {self.target}"


@dataclass(frozen=True, repr=False)
class Rules(Displayed, tuple[Rule, ...]):
    """An ordered table of rules for logical names; create one with `shardviz.rules`.

    A name can have several rules. Rules is a tuple subclass, because
    `nn.logical_axis_rules(rules)` accepts only tuples.

    Attributes:
        entries: the rules, in order.
        dialect: the library that the table is for, or None if the caller named none.

    >>> import shardviz as sv
    >>> table = sv.Rules.of(("batch", "data"), ("mlp", ("model", "expert")), ("embed", None))
    >>> len(table), str(table[1]), table.logical_names
    (3, 'mlp → (model, expert)', ('batch', 'mlp', 'embed'))
    """

    entries: tuple[Rule, ...] = ()
    dialect: NameDialect | None = field(default=None, compare=False)

    # __new__ fills the tuple; the dataclass adds the fields and equality.
    def __new__(
        cls, entries: tuple[Rule, ...] = (), dialect: NameDialect | None = None
    ) -> Rules:
        return super().__new__(cls, entries)

    @staticmethod
    def of(*pairs: Any) -> Rules:
        """Creates Rules from pairs, from one list or dict of pairs, or from text.

        Raises:
            RuleError: if a pair is malformed.
        """
        table: Any = pairs
        if len(pairs) == 1 and not is_pair(pairs[0]):
            table = pairs[0]
        if isinstance(table, Rules):
            return table
        if isinstance(table, str):
            return Rules.parse(table)
        # Haliax tables are dicts.
        if isinstance(table, Mapping):
            table = list(table.items())
        if not isinstance(table, (tuple, list)):
            raise RuleError(
                f"Rules are pairs such as ('batch', 'data'); got {shown(table)}."
            )
        lines = limited(table, MAX_RULES, "The rules of a table", RuleError)
        return Rules(tuple(_rule(index, pair) for index, pair in enumerate(lines)))

    @staticmethod
    def parse(text: str) -> Rules:
        """Parses typed or pasted text; no code is evaluated.

        The text has rules such as `batch -> data`, `mlp: (model, expert)` or
        `embed -> None`, on separate lines or with commas between them. It may also list
        pairs, as in Python or YAML: `("batch", "data")`.

        Raises:
            RuleError: if the text cannot be parsed; the message has the position.

        >>> import shardviz as sv
        >>> print(sv.Rules.parse("batch -> data\\nembed -> None"))
        batch → data
        embed → None
        """
        if not isinstance(text, str):
            raise RuleError(f"Rules are typed as text; got {shown(text)}.")
        return Rules(tuple(_parse(text)))

    @cached_property
    def logical_names(self) -> tuple[str, ...]:
        """The table's logical names, in order and without repeats."""
        return tuple(self.by_name)

    @cached_property
    def by_name(self) -> Mapping[str, tuple[int, ...]]:
        """Logical name -> indices of its rules, in table order."""
        indices_of: dict[str, list[int]] = {}
        for index, rule in enumerate(self.entries):
            indices_of.setdefault(rule.logical, []).append(index)
        # Tuples, because callers share the cached result.
        return {name: tuple(indices) for name, indices in indices_of.items()}

    def nearest(self, name: str) -> str | None:
        """Returns the table's logical name that is closest in spelling to `name`."""
        return near(name, self.logical_names)

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """Returns the table as pairs, `(name, None | axis | tuple of axes)`."""
        return tuple(map(tuple, self))

    def text(self) -> str:
        """Formats the table with one rule per line; `Rules.parse` parses it back."""
        lines = []
        for rule in self.entries:
            target = rule.target
            if rule.axes:
                target = _in_brackets(map(typed_name, rule.axes))
            lines.append(f"{typed_name(rule.logical)} -> {target}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries)) or "no rules"

    def __repr__(self) -> str:
        return _repr(self, "Rules", "rule")


@lru_cache(maxsize=1 << 14)  # audits look up the same few names often
def near(name: str, names: tuple[str, ...]) -> str | None:
    """Returns the name in `names` that is closest in spelling, or None."""
    return nearest(name, names)


def _repr(table: Rules | PathRules, name: str, line: str) -> str:
    count = plural(len(table), line)
    if not table.entries:
        return f"{name}({count})"
    return f"{name}({count}: {listed(map(str, table.entries), limit=4)})"


@dataclass(frozen=True, slots=True)
class PathRule:
    """One rule of a path table.

    Attributes:
        pattern: a regular expression; in a `LayoutMap`, it can also be a literal path.
        spec: the spec of arrays whose path matches the pattern.

    >>> print(PathRule("mlp/.*/kernel", Spec.parse("None, model")))
    mlp/.*/kernel → P(None, 'model')
    """

    pattern: str
    spec: Spec

    @property
    def axes(self) -> tuple[str, ...]:
        """The spec's mesh axes, in order."""
        return self.spec.axes

    def __str__(self) -> str:
        return f"{self.pattern} → {self.spec}"


@dataclass(frozen=True, repr=False)
class PathRules(Displayed):
    """An ordered table from path patterns to specs; create one with `shardviz.rules`.

    Attributes:
        entries: the rules, in order.
        mesh: the mesh of a `LayoutMap`, or None.
        dialect: the library that the table is for, or None if the caller named none.

    >>> from shardviz.types import PathRules
    >>> table = PathRules.of([("mlp/.*/kernel", (None, "model")), (".*", ())])
    >>> len(table), str(table[0].spec)
    (2, "P(None, 'model')")
    """

    entries: tuple[PathRule, ...] = ()
    mesh: MeshSpec | None = None
    dialect: PathDialect | None = field(default=None, compare=False)

    @staticmethod
    def of(pairs: Any, mesh: MeshSpec | None = None) -> PathRules:
        """Creates a table from (pattern, spec) pairs or from a dict.

        Raises:
            RuleError: if a pair cannot be parsed.
        """
        if isinstance(pairs, PathRules):
            return pairs
        if isinstance(pairs, Mapping):
            pairs = list(pairs.items())
        # A set is rejected, because it has no order.
        if isinstance(pairs, (Rules, str, bytes, Set)):
            raise RuleError(
                "A table of paths is pairs such as ('mlp/.*/kernel', (None, 'model'));"
                f" got {shown(pairs)}."
            )
        lines = limited(pairs, MAX_RULES, "The rules of a table", RuleError)
        return PathRules(tuple(_path_rule(i, p) for i, p in enumerate(lines)), mesh)

    @cached_property
    def patterns(self) -> Mapping[str, int]:
        """Pattern -> index of its first rule."""
        # Keras looks for a path among the keys before it matches patterns.
        first_index: dict[str, int] = {}
        for index, rule in enumerate(self.entries):
            first_index.setdefault(rule.pattern, index)
        return first_index

    def pairs(self) -> tuple[tuple[str, Any], ...]:
        """Returns the table in EasyLM's form: (pattern, `PartitionSpec`) pairs."""
        return tuple((r.pattern, r.spec.to_jax()) for r in self.entries)

    def text(self) -> str:
        """Formats the table with one pattern per line; `sv.rules` parses it back."""
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
        return _repr(self, "PathRules", "pattern")


def _path_rule(index: int, pair: object) -> PathRule:
    if isinstance(pair, PathRule):
        return pair
    # Patterns are compiled when they are first matched; most are never matched.
    pattern, spec = _both(index, pair, "('mlp/.*/kernel', (None, 'model'))")
    if not isinstance(pattern, str) or not pattern.isprintable():
        raise RuleError(
            f"The pattern in rule {index + 1} must be printable text; got"
            f" {shown(pattern)}."
        )
    try:
        return PathRule(str(pattern), _spec(spec))
    except SpecError as error:
        raise RuleError(f"Rule {index + 1}, for {shown(pattern)}: {error}") from None


def _both(index: int, pair: object, example: str) -> tuple[Any, Any]:
    """Returns the left and right side of a rule."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise RuleError(
            f"Rule {index + 1} must be a pair such as {example}; got {shown(pair)}."
        )
    return pair[0], pair[1]


def _spec(value: Any) -> Spec:
    """Converts a rule's right side, in any supported form, to a Spec."""
    if isinstance(value, Spec):
        return value
    if isinstance(value, str):
        _check_no_call(value, SpecError)
        return Spec.parse(value)
    if value is None:
        return Spec()
    if isinstance(value, Call):
        return spec_of_call(value)
    if is_partition_spec(value):
        return spec_of(value)
    # A named tuple may be a sharding, so it is not read as a tuple of axes.
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return Spec.of(*limited(value, MAX_RANK, "the entries of a spec", SpecError))
    pair = named_sharding(value)
    if pair is None:
        raise SpecError(
            "the right side is a PartitionSpec, a tuple such as (None, 'model') or"
            f" None; got {shown(value)}."
        )
    return pair[0]


def is_pair(value: Any) -> bool:
    """Whether `value` is one rule, rather than a table of rules."""
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return pair and isinstance(value[0], str)


def _rule(index: int, pair: object) -> Rule:
    if isinstance(pair, Rule):
        return pair
    name, target = _both(index, pair, "('batch', 'data')")
    logical = check_name(name, f"the logical axis in rule {index + 1}", RuleError)
    if target is None:
        return Rule(logical, ())
    if is_unconstrained(target):
        return Rule(logical, (), free=True)
    # For flax, a single axis is the same as a tuple of one.
    if isinstance(target, str):
        target = (target,)
    has_none = isinstance(target, (tuple, list)) and any(a is None for a in target)
    if has_none or isinstance(target, (Spec, Call)) or is_partition_spec(target):
        raise RuleError(
            f"Rule {index + 1} must lead to a mesh axis, a tuple of them, or None alone;"
            f" got {shown(target)}. For a table of paths, write dialect='regex' or"
            " dialect='keras'."
        )
    if not isinstance(target, (tuple, list)):
        raise RuleError(
            f"Rule {index + 1} must lead to a mesh axis, a tuple of them, or None; got"
            f" {shown(target)}."
        )
    for axis in target:
        if isinstance(axis, str):
            _check_no_call(axis, RuleError, f"In rule {index + 1}, ")
    description = f"the mesh axis in rule {index + 1}"
    return Rule(
        logical, tuple(check_name(axis, description, RuleError) for axis in target)
    )


# Matches a call such as `fsdp(axis="data")`, as in big_vision's tables.
_CALL = re.compile(r"[^\W\d][\w.]*\(.*\)", re.DOTALL)
_SPEC_CALL = re.compile(r"(?:\w+\.)*(?:P|PS|PartitionSpec)\(")


def _check_no_call(text: str, error: type[ShardvizError], where: str = "") -> None:
    """Rejects function calls, which big_vision uses to split arrays by shape."""
    if _CALL.fullmatch(text) and not _SPEC_CALL.match(text):
        raise error(
            f"{where}{shown(text)} is not a mesh axis but a function of each array's"
            " shape. Apply it, and give the resulting arrays: sv.audit reads their own"
            " shardings."
        )


def _in_brackets(names: Iterable[str]) -> str:
    words = tuple(names)
    if len(words) == 1:
        return words[0]
    return f"({', '.join(words)})"


_RULE = rf"\s*+(?:-\s*+)?({NAME})\s*+(?:->|=>|→|⇒|:=|[:=])"
# Matches one token: quoted text, a comment, the end of a rule, or other text. A comma
# ends a rule if another rule follows. An unclosed quote, which no rule can have, extends
# to the end of the line.
_PART = re.compile(
    rf"{QUOTED}|#[^\n]*|(?P<end>[;\n]|,(?={_RULE}))|[^;,\n'\"#]+|,|'(?:[^'\\\n]|\\.)*+"
    rf"|\"(?:[^\"\\\n]|\\.)*+"
)
_LINE = re.compile(rf"{_RULE}(.*)", re.DOTALL)
_DASH = re.compile(r"\A\s*+-\s*+(?=[\[(]|$)")


def _parse(text: str) -> Iterator[Rule]:
    # Handle pairs pasted from Python or YAML, with or without leading dashes.
    value: list[Any] = []
    if _DASH.match(text):
        lines = [_DASH.sub("", line, count=1).strip() for line in text.split("\n")]
        lines = [line.removesuffix(",") for line in lines if line and line[0] != "#"]
        if lines and lines[0][:1] in ("(", "["):
            value = [typed_value(line, RuleError) for line in lines]
    elif text.lstrip()[:1] in ("(", "["):
        value = typed_value(text, RuleError, within="[{}\n]")
    if value:
        if len(value) == 1 and not is_pair(value[0]):
            value = value[0]
        yield from Rules.of(list(value))
        return
    # _LINE accepts many kinds of arrows, because users paste tables from YAML, JSON and
    # chats.
    lines = limited(_lines(text), MAX_RULES, "The rules of a table", RuleError)
    for index, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        if match is None or not match[2].strip():
            raise RuleError(
                f"Cannot read rule {index + 1}, {shown(line.strip())}: write a logical"
                " axis name, -> and a mesh axis, None or a tuple of axes."
            )
        value = typed_value(match[2].strip().removesuffix(","), RuleError)
        yield _rule(index, (name_in(match[1]), value))


def _lines(text: str) -> Iterator[str]:
    """Splits text into rules, without comments; a quoted `;` does not end a rule."""
    line = ""
    for part in scan(_PART, f"{text}\n;", RuleError, "a rule"):
        if part["end"]:
            if line.strip():
                yield line
            line = ""
        elif part[0][0] != "#":
            line += part[0]
