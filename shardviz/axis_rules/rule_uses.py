"""Summarises the effect of each rule or pattern of a table on many arrays.

Arrays with equal signatures share a Resolution, whose effects are computed only once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from shardviz.axis_rules.dialects import Dialect
from shardviz.axis_rules.path_matching import fits, is_key_of, may_fit, missing_words
from shardviz.axis_rules.path_rules import PathResolution
from shardviz.axis_rules.requests import Request
from shardviz.axis_rules.resolution import Resolution
from shardviz.axis_rules.rules import PathRule, PathRules, Rule, Rules
from shardviz.axis_rules.verdicts import BROKEN, Taken, Unsplit, Verdict
from shardviz.base.display import Fact
from shardviz.base.errors import RuleError
from shardviz.base.format import nearest


@dataclass(frozen=True)
class Idle(Fact):
    """Why a rule or pattern decides nothing in any array.

    Each kind of reason is a subclass.

    Attributes:
        code: the kind of reason.
        rule: the rule or pattern.

    >>> print(RuledBefore(Rule("embed", ("data",)), (2,)))
    never fires: rule 3 decides every dimension named 'embed' first
    """

    code: ClassVar[str]
    rule: Rule | PathRule


@dataclass(frozen=True)
class NoSuchName(Idle):
    """No array has the logical name; `near` is the nearest name in use, or None."""

    code = "no such name"
    near: str | None = None


@dataclass(frozen=True)
class RuledBefore(Idle):
    """The earlier or overriding rules `by` decide every dimension with this name."""

    code = "decided before"
    by: tuple[int, ...]


@dataclass(frozen=True)
class LosesAxes(Idle):
    """Other dimensions use the rule's axes.

    Attributes:
        verdict: the rule's verdict in the first such array.
        by: the rules that decide the dimension in other arrays.
    """

    code = "loses"
    verdict: Taken
    by: tuple[int, ...] = ()


@dataclass(frozen=True)
class OwnSpecs(Idle):
    """Every array with this name or path has its own spec, or can't be resolved."""

    code = "own specs"


@dataclass(frozen=True)
class NoSuchPath(Idle):
    """The pattern matches no path; `near` is the nearest pattern, or None."""

    code = "no such path"
    near: str | None = None


@dataclass(frozen=True)
class ShadowedPattern(Idle):
    """The patterns `by` decide for every path that this pattern matches."""

    code = "shadowed"
    by: tuple[int, ...]


@dataclass(frozen=True)
class RuleUse:
    """The effect of one rule or pattern.

    Attributes:
        index: the rule's index in the table, from 0.
        rule: the rule or pattern.
        decides: names of arrays in which the rule splits a dimension.
        leaves_unsplit: names of arrays in which the rule decides not to split.
        lost: arrays in which other dimensions use the rule's axes: (name, Verdict).
        broken: arrays in which the rule decides but makes the spec invalid: (name,
            Verdict).
        never: why the rule decides nothing in any array; None if it decides something.

    >>> RuleUse(0, Rule("batch", ("data",)), decides=("x",)).never is None
    True
    """

    index: int
    rule: Rule | PathRule
    decides: tuple[str, ...] = ()
    leaves_unsplit: tuple[str, ...] = ()
    lost: tuple[tuple[str, Verdict], ...] = ()
    broken: tuple[tuple[str, Verdict], ...] = ()
    never: Idle | None = None


#: A rule's effect on all arrays that share a Resolution: (rule index, field of RuleUse,
#: Verdict or None). If another rule decides: (rule index, `"by"`, index of that rule).
_Effect = tuple[int, str, Any]


def rule_summary(requests: Iterable[Request], rules: Rules) -> tuple[RuleUse, ...]:
    """Returns one RuleUse per rule, in table order.

    An array with its own spec counts only if the rules give the same spec.

    >>> from shardviz.base.array_spec import ArraySpec
    >>> from shardviz.base.mesh import make_mesh
    >>> from shardviz.axis_rules.requests import request
    >>> table = Rules.of(("mlp", "model"), ("embed", "model"), ("embed", None))
    >>> w = ArraySpec("w", (8, 4), "embed mlp")
    >>> uses = rule_summary([request(w, make_mesh(data=4, model=2), table)], table)
    >>> uses[0].decides, uses[2].leaves_unsplit
    (('w',), ('w',))
    >>> uses[1].lost[0][1].taken
    (('model', 1, 0),)
    """
    # Dicts serve as ordered sets: in nnx, an array can have a name twice.
    effects_of: list[dict[str, dict[Any, None]]] = [{} for _ in rules]
    effects: dict[int, list[_Effect]] = {}
    named: dict[str, None] = {}
    unresolved: set[str | None] = set()
    for row in requests:
        resolution = row.resolution
        if resolution is None or not row.follows_table:
            unresolved.update(row.array.logical or ())
            continue
        if id(resolution) not in effects:
            effects[id(resolution)] = list(_effects(resolution))
            named.update(dict.fromkeys(filter(None, resolution.names)))
        for index, kind, payload in effects[id(resolution)]:
            entry = payload
            if kind != "by":
                entry = (row.array.name, payload) if payload else row.array.name
            effects_of[index].setdefault(kind, {})[entry] = None
    uses = []
    for index, (rule, kinds) in enumerate(zip(rules, effects_of, strict=True)):
        by, never = tuple(sorted(kinds.pop("by", ()))), None
        if not kinds.keys() & {"decides", "leaves_unsplit", "broken"}:
            if rule.logical in named and "lost" in kinds:
                verdict = next(iter(kinds["lost"]))[1]
                never = LosesAxes(rule, verdict, by)
            elif rule.logical in named:
                never = RuledBefore(rule, by)
            elif rule.logical in unresolved:
                never = OwnSpecs(rule)
            else:
                # No array has the rule's name. If one has a similar name, the rule is
                # most likely misspelt.
                close = nearest(rule.logical, named)
                never = NoSuchName(rule, close)
        fields = {kind: tuple(entries) for kind, entries in kinds.items()}
        uses.append(RuleUse(index, rule, **fields, never=never))
    return tuple(uses)


def _effects(resolution: Resolution) -> Iterator[_Effect]:
    """Yields the effects of all rules for the names in a Resolution."""
    by_name = resolution.rules.by_name
    last_wins = resolution.dialect.last_repeat_wins
    for dim, name in enumerate(resolution.names):
        winner = resolution.winners[dim]
        if not isinstance(name, str):
            continue
        indices = by_name.get(name, ())
        for index in indices:
            # Don't create a verdict for the many rules that are never looked up.
            if last_wins and index != indices[-1]:
                yield index, "by", indices[-1]
                continue
            if winner is not None and winner < index:
                yield index, "by", winner
                continue
            verdict = resolution.verdict(dim, index)
            if isinstance(verdict, Unsplit):
                yield index, "leaves_unsplit", None
            elif verdict.outcome in BROKEN:
                yield index, "broken", verdict
            elif verdict.decides:
                yield index, "decides", None
            else:
                yield index, "lost", verdict


def pattern_uses(requests: Iterable[Request], rules: PathRules) -> tuple[RuleUse, ...]:
    """Returns one RuleUse per pattern, in table order."""
    rows: list[tuple[Request, PathResolution]] = []
    won: dict[int | None, list[tuple[Request, PathResolution]]] = {}
    for row in requests:
        if row.by_path is not None:
            rows.append((row, row.by_path))
            if row.follows_table:
                won.setdefault(row.by_path.winner, []).append(rows[-1])
    text = "\n".join(resolution.path for _, resolution in rows)
    uses = []
    for index, rule in enumerate(rules):
        fine, broken, never = [], [], None
        for row, resolution in won.get(index, ()):
            if row.problem:
                broken.append((row.array.name, resolution.verdicts[index]))
            else:
                fine.append(row.array.name)
        if not fine and not broken:
            never = _why_idle(rule, rows, text)
        kind = "decides"
        if not rule.spec.axes and not rule.spec.unconstrained:
            kind = "leaves_unsplit"
        fields = {kind: tuple(fine), "broken": tuple(broken)}
        uses.append(RuleUse(index, rule, **fields, never=never))
    return tuple(uses)


def _why_idle(
    rule: PathRule, rows: list[tuple[Request, PathResolution]], text: str
) -> Idle:
    """Returns the reason why a pattern decides nothing.

    Args:
        rule: the pattern.
        rows: the arrays, with how their paths match the table.
        text: all paths joined, so that one search rules out most patterns.
    """
    fitting = []
    dialect = rows[0][1].dialect if rows else Dialect.REGEX
    if may_fit(rule.pattern, dialect.text(text), dialect):
        fitting = [pair for pair in rows if _fits(rule.pattern, pair[1])]
    by = set()
    for row, resolution in fitting:
        if row.follows_table and resolution.winner is not None:
            by.add(resolution.winner)
    if fitting:
        # All matching arrays have their own specs, which hide the pattern's effect.
        if not any(row.follows_table for row, _ in fitting):
            return OwnSpecs(rule)
        return ShadowedPattern(rule, tuple(sorted(by)))
    words, near = dict.fromkeys(re.findall(r"[^\W\d]\w+", text)), rule.pattern
    for word in missing_words(rule.pattern, text):
        near = near.replace(word, nearest(word, words) or word)
    if near != rule.pattern:
        return NoSuchPath(rule, near)
    matching_all = f".*{rule.pattern}.*"
    for _, resolution in rows:
        # In older library versions, matching a part of the path was enough.
        if resolution.dialect.searched_once and _fits(matching_all, resolution):
            return NoSuchPath(rule, matching_all)
    return NoSuchPath(rule)


def _fits(pattern: str, resolution: PathResolution) -> bool:
    try:
        exact = is_key_of(pattern, resolution.path, resolution.dialect)
        return exact or fits(pattern, resolution.path, resolution.dialect)
    except RuleError:
        return False


def no_pattern(rows: Iterable[Request]) -> list[str]:
    """Returns the paths of arrays that no pattern matches and that have no problem."""
    paths = []
    for row in rows:
        match = row.by_path
        if match is None or match.winner is not None or match.one_element:
            continue
        if not row.problem:
            paths.append(row.path)
    return paths
