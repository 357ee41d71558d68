"""What the rules of a table did for many arrays, and where two tables or dialects differ.

`rule_summary()` and `pattern_uses()` have a RuleUse for every line of a table; arrays of one
signature share their Resolution, and so what the rules did for them. `compare_rows()` has a
sentence on every array that two audits split differently.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from shardviz.core.display import Displayed
from shardviz.core.errors import RuleError
from shardviz.core.format import ids_text, joined, listed, nearest, plural, shown
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.path_remedies import words_of
from shardviz.core.layout.path_rules import compiled, fits, wider_pattern
from shardviz.core.layout.resolution import Request, Resolution
from shardviz.core.layout.rules import Dialect, PathRule, PathRules, Rule, Rules
from shardviz.core.layout.verdicts import BROKEN, Outcome

SHOWN = 5


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
    rule: Rule | PathRule
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


def pattern_uses(requests: Iterable[Request], rules: PathRules) -> tuple[RuleUse, ...]:
    """One RuleUse per pattern of a table of paths, in table order.

    `unreached` are the arrays whose path it matches and another pattern decides; it is `absent`
    where it matches no path of the tree.
    """
    tree = _Paths(requests)
    return tuple(_pattern_use(i, rule, tree) for i, rule in enumerate(rules))


class _Paths:
    """The arrays of an audit by a table of paths, and their paths as one text."""

    def __init__(self, requests: Iterable[Request]):
        self.rows = [r for r in requests if r.by_path is not None]
        self.paths = [r.by_path.path for r in self.rows if r.by_path is not None]
        self.text = "\n".join(self.paths)
        self.won: dict[int | None, list[Request]] = {}
        for row in self.rows:
            if row.by_path is not None and not row.spec_wins:
                self.won.setdefault(row.by_path.winner, []).append(row)

    @cached_property
    def words(self) -> list[str]:
        """The words in the paths."""
        return list(dict.fromkeys(re.findall(r"[^\W\d]\w+", self.text)))

    def fitting(self, rule: PathRule) -> list[Request]:
        """The arrays whose path a pattern matches."""
        # One search through all paths says of most patterns that none has what they ask for.
        with suppress(RuleError):
            if compiled(rule.pattern).required not in self.text and rule.pattern not in self.text:
                return []
        return [r for r in self.rows if _also_fits(rule, r)]


def _pattern_use(index: int, rule: PathRule, tree: _Paths) -> RuleUse:
    """What one pattern did; whom it could have decided is asked where it decides none."""
    won = tree.won.get(index, [])
    broken = tuple((r.array.name, r.problem) for r in won if r.problem)
    fine = tuple(r.array.name for r in won if not r.problem)
    splits = bool(rule.spec.axes or rule.spec.unconstrained)
    fitting = [] if won else tree.fitting(rule)
    never = None
    if not won:
        never = _why_shadowed(fitting) if fitting else f"matches no path{_near(rule, tree)}"
    return RuleUse(
        index,
        rule,
        fine if splits else (),
        () if splits else fine,
        unreached=tuple(r.array.name for r in fitting),
        broken=broken,
        never=never,
        absent=not won and not fitting,
    )


def _also_fits(rule: PathRule, row: Request) -> bool:
    found = row.by_path
    try:
        return found is not None and (
            rule.pattern == found.path or fits(rule, found.path, found.dialect)
        )
    except RuleError:
        return False


def _why_shadowed(rows: list[Request]) -> str:
    """Why a pattern decides nothing that matches the paths of these rows."""
    if all(r.spec_wins for r in rows):
        return "decides nothing: each array that it matches has a PartitionSpec of its own"
    by = {r.by_path.winner for r in rows if r.by_path and not r.spec_wins} - {None}
    if not by:
        return "decides nothing: other patterns match each path that it matches"
    numbers = ids_text(sorted(i + 1 for i in by if i is not None))
    patterns = f"{'pattern' if len(by) == 1 else 'patterns'} {numbers}"
    return (
        f"is shadowed: {patterns} {'decides' if len(by) == 1 else 'decide'}"
        f" {plural(len(rows), 'path')} that it matches, too"
    )


def _near(rule: PathRule, tree: _Paths) -> str:
    """What of a pattern that matches nothing is not in any path, and what is near; to append."""
    words, paths = words_of(rule.pattern), tree.paths
    missing = [w for w in words if w not in tree.text]
    if missing:
        hints = [(w, nearest(w, tree.words)) for w in missing]
        word, close = next((h for h in hints if h[1]), hints[0])
        return f": none has {shown(word)}" + (f", but {shown(close)} is near" if close else "")
    if any(r.by_path and r.by_path.dialect is Dialect.KERAS for r in tree.rows[:1]):
        wider = next(filter(None, (_wider(rule, path) for path in paths)), "")
        if wider:
            return f"; older versions of Keras searched, {shown(wider)} matches all of a path"
    # Of the paths with most of its words, the one that is spelled most alike.
    best = max((sum(w in p for w in words) for p in paths), default=0)
    alike = [p for p in paths if sum(w in p for w in words) == best] if words else []
    close = nearest(re.sub(r"[^\w/]", "", rule.pattern), alike) or next(iter(alike), None)
    return f"; the nearest is {shown(close)}" if close else ""


def _wider(rule: PathRule, path: str) -> str:
    try:
        return wider_pattern(rule, path)
    except RuleError:
        return ""


def uses_text(uses: tuple[RuleUse, ...]) -> str:
    """Which rules or patterns decide nothing, and why, for the explanation of an audit."""
    idle, count = [u for u in uses if u.never], len(uses)
    if not idle:
        return "Every rule decides something." if uses else "The table is empty."
    if isinstance(idle[0].rule, PathRule):
        head = f"{len(idle):,} of {plural(count, 'pattern')} decide nothing:"
        lines = [f"  pattern {u.index + 1} ({u.rule}) {u.never}." for u in idle]
        return first_lines(head, lines)
    absent = [u.rule for u in idle if u.absent]
    head = f"{len(idle):,} of {plural(count, 'rule')} never fire"
    if absent:
        names = dict.fromkeys(r.logical for r in absent if isinstance(r, Rule))
        head += f"; {len(absent):,} of them for names that no array has"
        head += f" ({joined(names, limit=SHOWN)})"
    lines = [f"  rule {u.index + 1} ({u.rule}) {u.never}." for u in idle if not u.absent]
    return first_lines(f"{head}:" if lines else f"{head}.", lines)


def first_lines(head: str, lines: list[str]) -> str:
    """A head and the first lines below it; further ones are only counted.

    >>> print(first_lines("", ["a", "b"]))
    a
    b
    """
    kept = lines[: 2 * SHOWN]
    if len(lines) > len(kept):
        kept.append(f"  … and {len(lines) - len(kept):,} more")
    return "\n".join([head, *kept] if head else kept)


def unmatched_text(rows: Iterable[Request]) -> str:
    """The arrays that no pattern of a LayoutMap matches, for the explanation of an audit."""
    names = [
        r.path
        for r in rows
        if r.by_path is not None
        and r.by_path.winner is None
        and not (r.spec_wins or r.problem or r.by_path.one_element)
    ]
    if not names:
        return ""
    verb = "matches" if len(names) == 1 else "match"
    them = "it" if len(names) == 1 else "them"
    few = joined(names, limit=SHOWN)
    return f"{plural(len(names), 'array')} {verb} no pattern, and Keras replicates {them}: {few}."


class SpecDifference(NamedTuple):
    """An array that two audits split differently, and why.

    Attributes:
        path: the array.
        first, second: the specs; None where there is none.
        why: what decided in each of them, in a sentence or two.

    >>> SpecDifference("w", Spec(), None, "linen takes rule 1; nnx refuses.").path
    'w'
    """

    path: str
    first: Spec | None
    second: Spec | None
    why: str


@dataclass(frozen=True, repr=False)
class AuditDiff(Displayed):
    """Where two tables or dialects split the same arrays differently; made by `Audit.diff`.

    Attributes:
        rows: one SpecDifference per array, in the order of the first audit.
        labels: what the two audits are called in sentences, such as `"linen"` and `"nnx"`.
        alike: how many arrays both split alike.
        missing: the arrays that one of the audits lacks.

    >>> print(AuditDiff((), ("linen", "nnx"), 3).explain())
    0 of 3 arrays differ between linen and nnx.
    """

    rows: tuple[SpecDifference, ...]
    labels: tuple[str, str]
    alike: int
    missing: tuple[str, ...] = ()

    def explain(self) -> str:
        """Each difference and its cause; arrays that differ alike share a line."""
        first, second = self.labels
        count = len(self.rows) + self.alike
        verb = "differs" if len(self.rows) == 1 else "differ"
        head = (
            f"{len(self.rows):,} of {plural(count, 'array')} {verb} between {first} and {second}."
        )
        groups: dict[tuple, list[str]] = {}
        for path, *rest in self.rows:
            groups.setdefault(tuple(rest), []).append(path)
        lines = [
            f"{joined(paths, limit=SHOWN)}: {_spec_text(one)} by {first}, {_spec_text(two)} by"
            f" {second}. {why}"
            for (one, two, why), paths in groups.items()
        ]
        if self.missing:
            lines.append(f"Only in one of them: {joined(self.missing, limit=SHOWN)}.")
        return "\n".join([head, *lines])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SpecDifference]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"AuditDiff({plural(len(self.rows), 'array')} between {' and '.join(self.labels)})"


def _spec_text(spec: Spec | None) -> str:
    return "unknown" if spec is None else str(spec)


def compare_rows(
    first: Iterable[Request], second: Iterable[Request], dialects: tuple[Dialect, Dialect]
) -> AuditDiff:
    """The arrays that two audits split differently, each with the cause; paired by their paths.

    >>> from shardviz.core.layout.audit import audit
    >>> found = audit([("w", (8, 8), "embed mlp")], "mlp->model; embed->None; embed->data",
    ...               "data=2, model=2")
    >>> print(found.diff("nnx").rows[0].why)
    Dimension 0: linen takes rule 2 (embed → None), the first of the name whose axes are free;
    nnx takes rule 3 (embed → data), the last of the name.
    """
    one, two = (d.value for d in dialects)
    labels = (one, two) if one != two else ("the first table", "the second table")
    others = {r.path: r for r in second}
    found, alike, missing = [], 0, []
    for row in first:
        other = others.pop(row.path, None)
        if other is None:
            missing.append(row.path)
        elif _same(row.spec, other.spec):
            alike += 1
        else:
            why = _why_different(row, other, labels)
            found.append(SpecDifference(row.path, row.spec, other.spec, why))
    return AuditDiff(tuple(found), labels, alike, (*missing, *others))


def _same(one: Spec | None, two: Spec | None) -> bool:
    return one is two if one is None or two is None else one.equivalent(two)


def _why_different(one: Request, two: Request, labels: tuple[str, str]) -> str:
    a, b = one.resolution, two.resolution
    if a is None or b is None or one.spec_wins or two.spec_wins:
        clauses = _array_clause(one, labels[0]), _array_clause(two, labels[1])
        return f"{clauses[0]}; {clauses[1]}."
    parts = [
        f"Dimension {d}: {_clause(a, d, labels[0])}; {_clause(b, d, labels[1])}."
        for d in range(len(a.names))
        if a.spec.dims[d] != b.spec.dims[d]
        or (d in a.spec.unconstrained) != (d in b.spec.unconstrained)
    ]
    return " ".join(parts)


def _array_clause(row: Request, label: str) -> str:
    """What decided about an array, where not each dimension by itself."""
    if row.spec_wins:
        return f"{label} keeps the array's own spec"
    if row.by_path is None:
        if row.spec is None and row.problem:
            return f"{label} refuses: {row.problem.rstrip('.')}"
        return (
            f"{label} has no names for rules" if row.spec is None else f"{label} gives {row.spec}"
        )
    found = row.by_path
    if found.one_element:
        return f"{label} leaves an array of one element unsplit"
    if found.match.several:
        numbers = joined([i + 1 for i in found.match.several])
        return f"{label} refuses patterns {numbers}, which all match the path"
    keras = found.dialect is Dialect.KERAS
    if found.winner is None:
        if found.problem and keras:
            return f"{label} refuses: {found.problem.rstrip('.')}"
        return f"{label} finds no pattern " + (
            "that matches all of the path, and replicates" if keras else "in the path"
        )
    rule = found.rules[found.winner]
    how = "the first that it finds in the path"
    if keras:
        how = "the path itself" if rule.pattern == found.path else "which matches all of the path"
    return f"{label} takes pattern {found.winner + 1} ({shown(rule.pattern)}), {how}"


def _clause(found: Resolution, dim: int, label: str) -> str:
    """What decided about one dimension."""
    name, winner = found.names[dim], found.winners[dim]
    nnx = found.dialect is Dialect.NNX
    if winner is None:
        if not isinstance(name, str):
            return f"{label} has no name to decide by"
        if name in found.rules.by_name:
            return f"{label} takes no rule for {shown(name)}, since other dimensions use their axes"
        does = "takes it for a mesh axis" if nnx else "leaves it unsplit"
        return f"{label} has no rule for {shown(name)} and {does}"
    rule = found.rules[winner]
    many = len(found.rules.by_name[rule.logical]) > 1
    how = ""
    if many:
        how = ", the last of the name" if nnx else ", the first of the name whose axes are free"
    shared = [a for a in rule.axes if nnx and found.spec.axes.count(a) > 1]
    how += f", though {listed(shared)} splits another dimension, too" if shared else ""
    gone = [a for a in rule.axes if a not in found.spec.dims[dim]]
    drops = f" and drops {listed(gone)} of size 1" if gone else ""
    return f"{label} takes rule {winner + 1} ({rule}){how}{drops}"
