"""rule_summary() -> RuleUse: what every rule of a table did for many arrays, and which did none.

Arrays of one signature share their Resolution, and so what the rules did for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardviz.core.format import joined, listed, nearest, plural, shown
from shardviz.core.layout.resolution import Request, Resolution
from shardviz.core.layout.rules import Dialect, Rule, Rules
from shardviz.core.layout.verdicts import BROKEN, Outcome


@dataclass(frozen=True)
class RuleUse:
    """What one rule did.

    Attributes:
        index: its position in the table, counted from 0.
        rule: the rule.
        decides: the arrays in which it decides how a dimension is split.
        leaves_unsplit: the arrays in which it ends the search and leaves a dimension unsplit.
        lost: the arrays in which other dimensions use its axes, each with a sentence.
        unreached: the arrays in which another rule had decided the dimension before.
        broken: the arrays in which it decides and that cannot be laid out so, each with a sentence.
        never: where it decides nothing anywhere, one sentence on why; else None.
        absent: whether it never fires because no array has a dimension of its name.

    >>> RuleUse(0, Rule("batch", ("data",)), decides=("x",)).never is None
    True
    """

    index: int
    rule: Rule
    decides: tuple[str, ...] = ()
    leaves_unsplit: tuple[str, ...] = ()
    lost: tuple[tuple[str, str], ...] = ()
    unreached: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    never: str | None = None
    absent: bool = False


def rule_summary(requests: Iterable[Request], rules: Rules) -> tuple[RuleUse, ...]:
    """One RuleUse per rule, in table order; arrays with a spec of their own do not count.

    >>> from shardviz.core.layout.array_spec import ArraySpec
    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.layout.resolution import request
    >>> table = Rules.of(("mlp", "model"), ("embed", "model"), ("embed", None), ("embed", "data"))
    >>> found = request(ArraySpec("w", (8, 4), "embed mlp"), make_mesh(data=4, model=2), table)
    >>> uses = rule_summary([found], table)
    >>> uses[0].decides, uses[2].leaves_unsplit, uses[1].lost[0][1]
    (('w',), ('w',), "'model' goes to 'mlp' through rule 1")
    >>> uses[3].never
    "never fires: rule 3 ends every search for 'embed' first"
    """
    found = _Uses(tuple(requests), rules)
    return tuple(found.use(index, rule) for index, rule in enumerate(rules))


@dataclass
class _Tally:
    """A RuleUse under construction. `owners` counts the (axis, name, rule) that it lost to."""

    decides: list[str] = field(default_factory=list)
    leaves_unsplit: list[str] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)
    broken: list[tuple[str, str]] = field(default_factory=list)
    owners: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    by_rules: set[int] = field(default_factory=set)


class _Event(NamedTuple):
    """What one rule did in all arrays that share a Resolution."""

    rule: int
    kind: str  # the field of _Tally it goes to
    sentence: str = ""
    owners: tuple[tuple[str, str, int], ...] = ()
    by_rule: int | None = None


class _Uses:
    """Collects over all requests; arrays that share a Resolution share their events."""

    def __init__(self, requests: tuple[Request, ...], rules: Rules):
        self.rules = rules
        self.tallies = [_Tally() for _ in rules]
        self.named: set[str] = set()  # logical names of arrays that rules decide
        self.overridden: set[str] = set()  # those of arrays with a spec of their own
        self.unresolved: set[str] = set()
        events: dict[int, list[_Event]] = {}
        for one in requests:
            names = {n for n in one.array.logical or () if isinstance(n, str)}
            if one.spec_wins:
                self.overridden |= names
            elif one.resolution is None:
                self.unresolved |= names
            else:
                key = id(one.resolution)
                if key not in events:
                    events[key] = list(_events(one.resolution))
                    self.named |= names
                self._tally(one.array.name, events[key])
        self.everywhere = self.named | self.overridden | self.unresolved
        self.nnx = any(r.resolution and r.resolution.dialect is Dialect.NNX for r in requests)

    def _tally(self, array: str, events: Sequence[_Event]) -> None:
        for rule, kind, sentence, owners, by_rule in events:
            tally = self.tallies[rule]
            entries = getattr(tally, kind)
            entry = (array, sentence) if kind in ("lost", "broken") else array
            if not entries or entries[-1] != entry:  # nnx lets one name occur twice in an array
                entries.append(entry)
            tally.owners.update(owners)
            if by_rule is not None:
                tally.by_rules.add(by_rule)

    def use(self, index: int, rule: Rule) -> RuleUse:
        """The RuleUse of one rule."""
        tally = self.tallies[index]
        idle = not (tally.decides or tally.leaves_unsplit or tally.broken)
        return RuleUse(
            index,
            rule,
            tuple(tally.decides),
            tuple(tally.leaves_unsplit),
            tuple(tally.lost),
            tuple(tally.unreached),
            tuple(tally.broken),
            f"never fires: {self._why_never(index, rule, tally)}" if idle else None,
            idle and rule.logical not in self.everywhere,
        )

    def _why_never(self, index: int, rule: Rule, tally: _Tally) -> str:
        name = shown(rule.logical)
        if rule.logical not in self.named:
            return self._why_absent(rule, name)
        before = None if self.nnx else self._preempting(index, rule)
        if before is not None:
            ends = not self.rules[before].axes
            return f"rule {before + 1} " + (
                f"ends every search for {name} first"
                if ends
                else f"({self.rules[before]}) takes every {name} that this one could"
            )
        if not tally.lost:
            numbers = listed(sorted(r + 1 for r in tally.by_rules))
            word = "rule" if len(tally.by_rules) == 1 else "rules"
            does = ("replaces" if len(tally.by_rules) == 1 else "replace") if self.nnx else (
                "decides" if len(tally.by_rules) == 1 else "decide")  # fmt: skip
            what = "it: nnx takes the last of a name" if self.nnx else f"every {name} first"
            return f"{word} {numbers} {does} {what}"
        takers = _takers(o for o, _ in tally.owners.most_common(4))
        lost = "it loses " + joined(
            f"{listed(axes)} to {shown(owner)} (rule {through + 1})"
            for (owner, through), axes in takers.items()
        )
        if not tally.unreached:
            return f"{lost} in every array" if len(tally.lost) > 1 else lost
        return (
            f"{lost} in {plural(len(tally.lost), 'array')}, and other rules decide first in"
            f" {len(tally.unreached):,}"
        )

    def _why_absent(self, rule: Rule, name: str) -> str:
        if rule.logical in self.overridden:
            return f"each array with {name} has a PartitionSpec of its own, which wins"
        if rule.logical in self.unresolved:
            return f"the names of the arrays with {name} cannot be resolved"
        # An unused rule beside a name that no rule knows is most likely a typo.
        close = nearest(rule.logical, (n for n in self.named if n not in self.rules.by_name))
        hint = f"; an array has {shown(close)}" if close else ""
        return f"no array has a dimension {name}{hint}"

    def _preempting(self, index: int, rule: Rule) -> int | None:
        """An earlier rule that wins wherever this one could: it needs no other axes."""
        for before in self.rules.by_name[rule.logical]:
            if before >= index:
                return None
            if set(self.rules[before].axes) <= set(rule.axes):
                return before
        return None


def _events(resolution: Resolution) -> Iterable[_Event]:
    """What every rule for these names did, in sentences that are true of each such array."""
    by_name, nnx = resolution.rules.by_name, resolution.dialect is Dialect.NNX
    for dim, name in enumerate(resolution.names):
        if not isinstance(name, str):
            continue
        winner = resolution.winners[dim]
        for index in by_name.get(name, ()):
            if winner is not None and index != winner and (nnx or winner < index):
                yield _Event(index, "unreached", by_rule=winner)
                continue
            verdict = resolution.verdict(dim, index)
            if verdict.outcome is Outcome.UNSPLIT:
                yield _Event(index, "leaves_unsplit")
            elif verdict.outcome in BROKEN:
                reason = verdict.reason.removeprefix("decides, but ")
                yield _Event(index, "broken", f"dimension {dim}: {reason}")
            elif verdict.decides:
                yield _Event(index, "decides")
            else:
                yield _lost(resolution, index, verdict.taken)


def _lost(
    resolution: Resolution, index: int, taken: tuple[tuple[str, int, int | None], ...]
) -> _Event:
    owners = tuple(
        (axis, str(resolution.names[dim]), through)
        for axis, dim, through in taken
        if through is not None
    )
    parts = [
        f"{listed(axes)} {'goes' if len(axes) == 1 else 'go'} to {shown(owner)} through rule"
        f" {through + 1}"
        for (owner, through), axes in _takers(owners).items()
    ]
    return _Event(index, "lost", joined(parts), owners)


def _takers(
    owners: Iterable[tuple[str, str, int]],
) -> dict[tuple[str, int], list[str]]:
    """Which axes go where: from (logical name, rule) to axes."""
    takers: dict[tuple[str, int], list[str]] = {}
    for axis, owner, through in owners:
        takers.setdefault((owner, through), []).append(axis)
    return takers
