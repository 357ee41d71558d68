"""What each rule or pattern of a table did for many arrays.

Arrays of one signature share their Resolution, and so what the rules did for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardviz.core.display import Fact
from shardviz.core.errors import RuleError
from shardviz.core.format import nearest
from shardviz.core.layout.rules.path_matching import (
    fits,
    required,
    wider_pattern,
    words_of,
)
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
        code: for rules `"own specs"`, `"unresolved"`, `"no such name"`, `"search
            ended"`, `"taken before"`, `"decided before"`, `"overridden"` or `"loses"`;
            for patterns `"own specs"`, `"several match"`, `"shadowed"`, `"no such
            word"`, `"inner path"` or `"no such path"`.
        rule: the rule or pattern.
        by: the rules or patterns that decide instead.
        before: for `"taken before"`, the rule of `by`.
        near: the nearest name, word, path or pattern, or None.
        word: for `"no such word"`, the word of the pattern that no path has.
        owners: for `"loses"`, who has its axes.
        arrays: in how many arrays it loses, or whose paths it matches.
        unreached: in how many arrays other rules decide first.

    >>> print(Idle("search ended", Rule("embed", ("data",)), (2,)))
    never fires: rule 3 ends every search for 'embed' first
    """

    code: str
    rule: Rule | PathRule
    by: tuple[int, ...] = ()
    before: Rule | None = None
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
        if self.never is None:
            return False
        return self.never.code.startswith("no such") or self.never.code == (
            "inner path"
        )


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


def rule_summary(requests: Iterable[Request], rules: Rules) -> tuple[RuleUse, ...]:
    """One RuleUse per rule, in table order; arrays with a spec of their own do not
    count.

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
    found = _Uses(tuple(requests), rules)
    return tuple(found.use(index, rule) for index, rule in enumerate(rules))


@dataclass
class _Tally:
    """A RuleUse under construction. `owners` counts to whom it lost."""

    decides: list[str] = field(default_factory=list)
    leaves_unsplit: list[str] = field(default_factory=list)
    lost: list[tuple[str, Lost]] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    broken: list[tuple[str, Broke]] = field(default_factory=list)
    owners: Counter[Owner] = field(default_factory=Counter)
    by_rules: set[int] = field(default_factory=set)


class _Event(NamedTuple):
    """What one rule did in all arrays that share a Resolution."""

    rule: int
    kind: str  # the field of _Tally it goes to
    fact: Lost | Broke | None = None
    by_rule: int | None = None


class _Uses:
    """Collects over all requests; arrays that share a Resolution share their events."""

    def __init__(self, requests: tuple[Request, ...], rules: Rules):
        self.rules = rules
        self.tallies = [_Tally() for _ in rules]
        self.named: set[str] = set()  # logical names of arrays that rules decide
        self.overridden: set[str] = set()  # those of arrays with a spec of their own
        self.unresolved: set[str] = set()
        self.nnx = False
        events: dict[int, list[_Event]] = {}
        for one in requests:
            names = {n for n in one.array.logical or () if isinstance(n, str)}
            resolution = one.resolution
            if resolution is not None:
                self.nnx = self.nnx or resolution.dialect is Dialect.NNX
            if one.spec_wins:
                self.overridden |= names
            elif resolution is None:
                self.unresolved |= names
            else:
                key = id(resolution)
                if key not in events:
                    events[key] = list(_events(resolution))
                    self.named |= names
                self._tally(one.array.name, events[key])

    def _tally(self, array: str, events: Sequence[_Event]) -> None:
        for rule, kind, fact, by_rule in events:
            tally = self.tallies[rule]
            entry = array if fact is None else (array, fact)
            entries = getattr(tally, kind)
            # nnx lets one name occur twice in an array.
            if not entries or entries[-1] != entry:
                entries.append(entry)
            if isinstance(fact, Lost):
                tally.owners.update(fact.owners)
            if by_rule is not None:
                tally.by_rules.add(by_rule)

    def use(self, index: int, rule: Rule) -> RuleUse:
        """The RuleUse of one rule."""
        tally = self.tallies[index]
        never = None
        if not (tally.decides or tally.leaves_unsplit or tally.broken):
            never = self._why_never(index, rule, tally)
        return RuleUse(
            index,
            rule,
            tuple(tally.decides),
            tuple(tally.leaves_unsplit),
            tuple(tally.lost),
            tuple(tally.unreached),
            tuple(tally.broken),
            never,
        )

    def _why_never(self, index: int, rule: Rule, tally: _Tally) -> Idle:
        name = rule.logical
        if name not in self.named:
            if name in self.overridden:
                return Idle("own specs", rule)
            if name in self.unresolved:
                return Idle("unresolved", rule)
            # A rule for no name, beside a name without a rule, is most likely a typo.
            strange = (n for n in self.named if n not in self.rules.by_name)
            return Idle("no such name", rule, near=nearest(name, strange))
        before = None if self.nnx else self._preempting(index, rule)
        if before is not None:
            code = "taken before" if self.rules[before].axes else "search ended"
            return Idle(code, rule, (before,), self.rules[before])
        if not tally.lost:
            code = "overridden" if self.nnx else "decided before"
            return Idle(code, rule, tuple(sorted(tally.by_rules)))
        owners = tuple(owner for owner, _ in tally.owners.most_common(4))
        return Idle(
            "loses",
            rule,
            owners=owners,
            arrays=len(tally.lost),
            unreached=len(tally.unreached),
        )

    def _preempting(self, index: int, rule: Rule) -> int | None:
        """An earlier rule that wins wherever this one could: it needs no other axes."""
        for before in self.rules.by_name[rule.logical]:
            if before >= index:
                return None
            if set(self.rules[before].axes) <= set(rule.axes):
                return before
        return None


def _events(resolution: Resolution) -> Iterator[_Event]:
    """What every rule for these names did, which is true of each such array."""
    by_name, nnx = resolution.rules.by_name, resolution.dialect is Dialect.NNX
    for dim, name in enumerate(resolution.names):
        winner = resolution.winners[dim]
        for index in by_name.get(name, ()) if isinstance(name, str) else ():
            if winner is not None and index != winner and (nnx or winner < index):
                yield _Event(index, "unreached", by_rule=winner)
                continue
            verdict = resolution.verdict(dim, index)
            if verdict.outcome is Outcome.UNSPLIT:
                yield _Event(index, "leaves_unsplit")
            elif verdict.outcome in BROKEN:
                yield _Event(index, "broken", Broke(dim, verdict))
            elif verdict.decides:
                yield _Event(index, "decides")
            else:
                yield _Event(index, "lost", _lost(resolution, verdict))


def _lost(resolution: Resolution, verdict: Verdict) -> Lost:
    owners = []
    for axis, dim, through in verdict.taken:
        if through is not None:
            owners.append((axis, str(resolution.names[dim]), through))
    return Lost(tuple(owners))


def pattern_uses(requests: Iterable[Request], rules: PathRules) -> tuple[RuleUse, ...]:
    """One RuleUse per pattern of a table of paths, in table order.

    `unreached` are the arrays whose path it matches and another pattern decides.
    """
    tree = _Paths(requests)
    return tuple(_pattern_use(i, rule, tree) for i, rule in enumerate(rules))


class _Paths:
    """The arrays of an audit by a table of paths, and their paths as one text."""

    def __init__(self, requests: Iterable[Request]):
        self.rows: list[Request] = []
        self.paths: list[str] = []
        self.won: dict[int | None, list[Request]] = {}
        self.keras = False
        for row in requests:
            if row.by_path is None:
                continue
            self.rows.append(row)
            self.paths.append(row.by_path.path)
            self.keras = row.by_path.dialect is Dialect.KERAS
            if not row.spec_wins:
                self.won.setdefault(row.by_path.winner, []).append(row)
        self.text = "\n".join(self.paths)

    @cached_property
    def words(self) -> list[str]:
        """The words in the paths."""
        return list(dict.fromkeys(re.findall(r"[^\W\d]\w+", self.text)))

    def fitting(self, rule: PathRule) -> list[Request]:
        """The arrays whose path a pattern matches."""
        # One search through all paths says of most patterns that none has their text.
        if required(rule.pattern) not in self.text:
            return []
        return [row for row in self.rows if _also_fits(rule, row)]


def _pattern_use(index: int, rule: PathRule, tree: _Paths) -> RuleUse:
    """What one pattern did; what it could have decided is asked where it decides none."""
    fine, broken = [], []
    for row in tree.won.get(index, ()):
        if row.problem:
            broken.append((row.array.name, Broke(problem=row.problem)))
        else:
            fine.append(row.array.name)
    fitting: list[Request] = []
    never = None
    if not fine and not broken:
        fitting = tree.fitting(rule)
        never = _why_shadowed(rule, fitting) if fitting else _near(rule, tree)
    decides, unsplit = tuple(fine), ()
    if not rule.spec.axes and not rule.spec.unconstrained:
        decides, unsplit = (), decides
    return RuleUse(
        index,
        rule,
        decides,
        unsplit,
        unreached=tuple(r.array.name for r in fitting),
        broken=tuple(broken),
        never=never,
    )


def _also_fits(rule: PathRule, row: Request) -> bool:
    found = row.by_path
    if found is None:
        return False
    try:
        return rule.pattern == found.path or fits(
            rule.pattern, found.path, found.dialect
        )
    except RuleError:
        return False


def _why_shadowed(rule: PathRule, rows: list[Request]) -> Idle:
    """Why a pattern decides nothing that matches the paths of these rows."""
    if all(row.spec_wins for row in rows):
        return Idle("own specs", rule)
    by = set()
    for row in rows:
        winner = None if row.by_path is None else row.by_path.winner
        if winner is not None and not row.spec_wins:
            by.add(winner)
    if not by:
        return Idle("several match", rule)
    return Idle("shadowed", rule, tuple(sorted(by)), arrays=len(rows))


def _near(rule: PathRule, tree: _Paths) -> Idle:
    """What of a pattern that matches nothing is not in any path, and what is near."""
    words = words_of(rule.pattern)
    missing = [w for w in words if w not in tree.text]
    for word in missing:
        if close := nearest(word, tree.words):
            return Idle("no such word", rule, word=word, near=close)
    if missing:
        return Idle("no such word", rule, word=missing[0])
    if tree.keras:
        for path in tree.paths:
            if wider := wider_pattern(rule.pattern, path):
                return Idle("inner path", rule, near=wider)
    # Of the paths with most of its words, the one that is spelled most alike.
    counts = [sum(word in path for word in words) for path in tree.paths]
    alike = []
    for path, count in zip(tree.paths, counts, strict=True):
        if words and count == max(counts):
            alike.append(path)
    close = nearest(re.sub(r"[^\w/]", "", rule.pattern), alike)
    if close is None and alike:
        close = alike[0]
    return Idle("no such path", rule, near=close)


def no_pattern(rows: Iterable[Request]) -> NoPattern:
    """The arrays that no pattern of a LayoutMap matches."""
    paths = []
    for row in rows:
        found = row.by_path
        if found is None or found.winner is not None or found.one_element:
            continue
        if not row.spec_wins and not row.problem:
            paths.append(row.path)
    return NoPattern(tuple(paths))
