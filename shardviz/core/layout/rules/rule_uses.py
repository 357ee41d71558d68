"""What each rule or pattern of a table did for many arrays.

Arrays of one signature share their Resolution, and so what the rules did for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardviz.core.display import Fact
from shardviz.core.errors import RuleError
from shardviz.core.format import nearest
from shardviz.core.layout.rules.path_matching import (
    fits,
    required,
    wider_pattern,
    words_of,
)
from shardviz.core.layout.rules.path_rules import PathResolution
from shardviz.core.layout.rules.requests import Request
from shardviz.core.layout.rules.resolution import Resolution
from shardviz.core.layout.rules.rules import Dialect, PathRule, PathRules, Rule, Rules
from shardviz.core.layout.rules.verdicts import BROKEN, Outcome, Verdict

#: (axis, the logical name that has it, the rule that gave it)
Owner = tuple[str, str, int]


@dataclass(frozen=True)
class Lost(Fact):
    """To whom a rule lost its axes, in the arrays of one signature.

    >>> print(Lost((("model", "mlp", 0),)))
    'model' goes to 'mlp' through rule 1
    """

    owners: tuple[Owner, ...]


@dataclass(frozen=True)
class Broke(Fact):
    """What a deciding rule broke in one dimension; `problem` where it is no Verdict.

    >>> print(Broke(problem="8 does not divide"))
    8 does not divide
    """

    dimension: int | None = None
    verdict: Verdict | None = None
    problem: str = ""


@dataclass(frozen=True)
class Idle(Fact):
    """Why a rule or pattern decides nothing anywhere.

    Attributes:
        code: for rules `"not resolved"`, `"no such name"`, `"decided before"`,
            `"overridden"` or `"loses"`; for patterns `"own specs"`, `"shadowed"` or
            `"no such path"`.
        rule: the rule or pattern.
        by: the rules or patterns that decide instead.
        near: the nearest name, word, path or pattern, or None.
        word: for `"no such path"`, a word of the pattern that no path has, or "".
        owners: for `"loses"`, who has its axes.
        arrays: in how many arrays it loses, or whose paths it matches.
        unreached: in how many arrays other rules decide first.

    >>> print(Idle("decided before", Rule("embed", ("data",)), (2,)))
    never fires: rule 3 decides every 'embed' first
    """

    code: str
    rule: Rule | PathRule
    by: tuple[int, ...] = ()
    near: str | None = None
    word: str = ""
    owners: tuple[Owner, ...] = ()
    arrays: int = 0
    unreached: int = 0


@dataclass(frozen=True)
class RuleUse:
    """What one rule did.

    Attributes:
        index: its position in the table, counted from 0.
        rule: the rule.
        decides: the arrays in which it decides how a dimension is split.
        leaves_unsplit: the arrays in which it ends the search and splits nothing.
        lost: the arrays in which other dimensions use its axes, each with to whom.
        unreached: the arrays in which another rule had decided the dimension before.
        broken: the arrays in which it decides and that cannot be laid out so, and why.
        never: where it decides nothing anywhere, why; else None.

    >>> RuleUse(0, Rule("batch", ("data",)), decides=("x",)).never is None
    True
    """

    index: int
    rule: Rule | PathRule
    decides: tuple[str, ...] = ()
    leaves_unsplit: tuple[str, ...] = ()
    lost: tuple[tuple[str, Lost], ...] = ()
    unreached: tuple[str, ...] = ()
    broken: tuple[tuple[str, Broke], ...] = ()
    never: Idle | None = None

    @property
    def absent(self) -> bool:
        """Whether no array has a dimension of its name, or a path that it matches."""
        return self.never is not None and self.never.code.startswith("no such")


@dataclass(frozen=True)
class RuleUses(Fact):
    """What all lines of a table did: a list of those that decide nothing.

    >>> print(RuleUses(()))
    The table is empty.
    """

    uses: tuple[RuleUse, ...]


@dataclass(frozen=True)
class NoPattern(Fact):
    """The arrays that no pattern of a LayoutMap matches.

    >>> print(NoPattern(("w",)))
    1 array matches no pattern, and Keras replicates it: w.
    """

    paths: tuple[str, ...]


class _Effect(NamedTuple):
    """What one rule did in all arrays that share a Resolution."""

    rule: int
    kind: str  # the field of RuleUse
    fact: Lost | Broke | None = None
    by: int | None = None


@dataclass
class _Tally:
    """What is counted for one rule: the entries of the fields of its RuleUse."""

    entries: dict[str, dict] = field(default_factory=dict)
    owners: Counter[Owner] = field(default_factory=Counter)
    by: set[int] = field(default_factory=set)

    def add(self, array: str, effect: _Effect) -> None:
        entry: Any = array
        if effect.fact is not None:
            entry = (array, effect.fact)
        # A dict, since in nnx one name may occur twice in an array.
        self.entries.setdefault(effect.kind, {})[entry] = None
        if effect.by is not None:
            self.by.add(effect.by)
        if isinstance(effect.fact, Lost):
            self.owners.update(effect.fact.owners)


def rule_summary(requests: Iterable[Request], rules: Rules) -> tuple[RuleUse, ...]:
    """One RuleUse per rule, in table order; arrays with a spec of their own do not count.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.rules.requests import request
    >>> table = Rules.of(("mlp", "model"), ("embed", "model"), ("embed", None))
    >>> w = ArraySpec("w", (8, 4), "embed mlp")
    >>> uses = rule_summary([request(w, make_mesh(data=4, model=2), table)], table)
    >>> uses[0].decides, uses[2].leaves_unsplit
    (('w',), ('w',))
    >>> uses[1].lost[0][1].owners
    (('model', 'mlp', 0),)
    """
    tallies = [_Tally() for _ in rules]
    effects: dict[int, list[_Effect]] = {}
    named: dict[str, None] = {}
    unresolved: set[str | None] = set()
    nnx = False
    for one in requests:
        resolution = one.resolution
        if one.spec_wins or resolution is None:
            unresolved.update(one.array.logical or ())
            continue
        # Arrays of one signature share their resolution, and what the rules did.
        if id(resolution) not in effects:
            effects[id(resolution)] = list(_effects(resolution))
            named.update(dict.fromkeys(filter(None, resolution.names)))
            nnx = resolution.dialect is Dialect.NNX
        for effect in effects[id(resolution)]:
            tallies[effect.rule].add(one.array.name, effect)
    uses = []
    for index, (rule, tally) in enumerate(zip(rules, tallies, strict=True)):
        never = None
        if not tally.entries.keys() & {"decides", "leaves_unsplit", "broken"}:
            never = _why_never(rule, tally, named, unresolved, nnx)
        fields = {kind: tuple(entries) for kind, entries in tally.entries.items()}
        uses.append(RuleUse(index, rule, **fields, never=never))
    return tuple(uses)


def _effects(resolution: Resolution) -> Iterator[_Effect]:
    """What every rule for these names did, which is true of each such array."""
    by_name, nnx = resolution.rules.by_name, resolution.dialect is Dialect.NNX
    for dim, name in enumerate(resolution.names):
        winner = resolution.winners[dim]
        if not isinstance(name, str):
            continue
        for index in by_name.get(name, ()):
            if winner is not None and index != winner and (nnx or winner < index):
                # Its verdict is not made: large tables have many such rules.
                yield _Effect(index, "unreached", by=winner)
                continue
            verdict = resolution.verdict(dim, index)
            if verdict.outcome is Outcome.UNSPLIT:
                yield _Effect(index, "leaves_unsplit")
            elif verdict.outcome in BROKEN:
                yield _Effect(index, "broken", Broke(dim, verdict))
            elif verdict.decides:
                yield _Effect(index, "decides")
            else:
                owners = []
                for axis, other, by in verdict.taken:
                    if by is not None:
                        owners.append((axis, str(resolution.names[other]), by))
                yield _Effect(index, "lost", Lost(tuple(owners)))


def _why_never(
    rule: Rule,
    tally: _Tally,
    named: dict[str, None],
    unresolved: set[str | None],
    nnx: bool,
) -> Idle:
    """Why a rule decides nothing in any array."""
    if rule.logical not in named:
        if rule.logical in unresolved:
            return Idle("not resolved", rule)
        # A rule for no name, beside a name without a rule, is most likely a typo.
        return Idle("no such name", rule, near=nearest(rule.logical, named))
    lost = tally.entries.get("lost", ())
    if not lost:
        code = "decided before"
        if nnx:
            code = "overridden"
        return Idle(code, rule, tuple(sorted(tally.by)))
    owners = tuple(owner for owner, _ in tally.owners.most_common(4))
    unreached = len(tally.entries.get("unreached", ()))
    return Idle("loses", rule, owners=owners, arrays=len(lost), unreached=unreached)


def pattern_uses(requests: Iterable[Request], rules: PathRules) -> tuple[RuleUse, ...]:
    """One RuleUse per pattern of a table of paths, in table order.

    `unreached` are the arrays whose path it matches and another pattern decides.
    """
    rows: list[tuple[Request, PathResolution]] = []
    won: dict[int | None, list[Request]] = {}
    for row in requests:
        if row.by_path is not None:
            rows.append((row, row.by_path))
            if not row.spec_wins:
                won.setdefault(row.by_path.winner, []).append(row)
    text = "\n".join(resolution.path for _, resolution in rows)
    uses = []
    for index, rule in enumerate(rules):
        fine, broken = [], []
        for row in won.get(index, ()):
            if row.problem:
                broken.append((row.array.name, Broke(problem=row.problem)))
            else:
                fine.append(row.array.name)
        fields = {"decides": tuple(fine), "broken": tuple(broken)}
        if not rule.spec.axes and not rule.spec.unconstrained:
            fields["leaves_unsplit"] = fields.pop("decides")
        never = None
        if not fine and not broken:
            fitting = []
            # One search through all paths says of most patterns that none fits.
            if required(rule.pattern) in text:
                fitting = [pair for pair in rows if _fits(rule, pair[1])]
            never = _why_shadowed(rule, fitting) or _near(rule, rows, text)
            fields["unreached"] = tuple(row.array.name for row, _ in fitting)
        uses.append(RuleUse(index, rule, **fields, never=never))
    return tuple(uses)


def _fits(rule: PathRule, resolution: PathResolution) -> bool:
    try:
        exact = rule.pattern == resolution.path
        return exact or fits(rule.pattern, resolution.path, resolution.dialect)
    except RuleError:
        return False


def _why_shadowed(
    rule: PathRule, fitting: list[tuple[Request, PathResolution]]
) -> Idle | None:
    """Why a pattern decides nothing that matches the paths of some rows."""
    by, own = set(), 0
    for row, resolution in fitting:
        own += row.spec_wins
        if not row.spec_wins and resolution.winner is not None:
            by.add(resolution.winner)
    if not fitting:
        return None
    # The table might decide for these arrays, if they had no spec of their own.
    if own == len(fitting):
        return Idle("own specs", rule)
    return Idle("shadowed", rule, tuple(sorted(by)), arrays=len(fitting) - own)


def _near(
    rule: PathRule, rows: list[tuple[Request, PathResolution]], text: str
) -> Idle:
    """What of a pattern that matches nothing is not in any path, and what is near."""
    words = words_of(rule.pattern)
    missing = [word for word in words if word not in text]
    if missing:
        known = list(dict.fromkeys(re.findall(r"[^\W\d]\w+", text)))
        for word in missing:
            if close := nearest(word, known):
                return Idle("no such path", rule, word=word, near=close)
        return Idle("no such path", rule, word=missing[0])
    for _, resolution in rows:
        if resolution.dialect is Dialect.KERAS:
            # Older versions of Keras searched, so it may have matched there.
            if wider := wider_pattern(rule.pattern, resolution.path):
                return Idle("no such path", rule, near=wider)
    # Of the paths with all of its words, the one that is spelled most alike.
    alike = []
    for _, resolution in rows:
        if words and all(word in resolution.path for word in words):
            alike.append(resolution.path)
    plain = re.sub(r"[^\w/]", "", rule.pattern)
    return Idle("no such path", rule, near=nearest(plain, alike))


def no_pattern(rows: Iterable[Request]) -> NoPattern:
    """The arrays that no pattern of a LayoutMap matches."""
    paths = []
    for row in rows:
        match = row.by_path
        if match is None or match.winner is not None or match.one_element:
            continue
        if not row.spec_wins and not row.problem:
            paths.append(row.path)
    return NoPattern(tuple(paths))
