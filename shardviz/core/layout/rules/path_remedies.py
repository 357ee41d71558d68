"""The edits of a table of paths with which an array may be split as wanted.

A pattern is moved up, added, removed, given another spec, or a misspelt word of it is
corrected. A pattern for the path alone touches no other array: where any table can give
the wish, one edit is enough.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from shardviz.core.errors import RuleError
from shardviz.core.layout.partition_spec import Spec, rank_problem
from shardviz.core.layout.rules.path_matching import (
    PathMatch,
    decided,
    fits,
    is_one_element,
    match_path,
    matched_spec,
    plain_words,
)
from shardviz.core.layout.rules.remedies import Kind, NoRemedy, Remedies, Shape, Step
from shardviz.core.layout.rules.remedy_search import Group, Search, State
from shardviz.core.layout.rules.rules import Dialect, PathRule, PathRules, near
from shardviz.core.layout.rules.wishes import Wish

MOST_TARGETS = 12  # specs that a pattern is given, where no spec was wanted

_DIGITS = re.compile(r"[0-9]+")


class PathSearch(Search):
    """A search under a table of paths."""

    @property
    def _path(self) -> str:
        return self.leaf.path or ""

    def table(self, state: State) -> PathRules:
        return PathRules(state.entries, self.rules.mesh)

    def _match(self, state: State) -> PathMatch:
        return match_path(self._path, self.table(state), self.dialect)

    def resolve(self, state: State) -> Spec | None:
        rules, match = self.table(state), self._match(state)
        return self._padded(matched_spec(match, rules, state.shape, self.dialect))

    def _padded(self, spec: Spec | None) -> Spec | None:
        """A spec with an entry for every dimension."""
        rank = len(self.leaf.names)
        if spec is None or spec.rank >= rank:
            return spec
        dims = spec.padded(rank)
        return Spec(dims, spec.unconstrained, spec.unreduced, spec.reduced)

    def meets(self, spec: Spec | None, wish: Wish, shape: Shape) -> bool:
        spec = self._padded(spec)
        if spec is None or spec.rank > len(self.leaf.names):
            return False
        return super().meets(spec, wish, shape)

    def resolved(self, state: State, lines: list[Any]) -> Iterator[tuple[Group, Any]]:
        changed: set[Hashable] = set()
        for line in lines:
            paths = self.arrays.matched(line.pattern, self.dialect)
            if paths is None:  # Keras raises for every path
                changed.update(self.arrays.groups)
            else:
                changed.update(paths)
            changed.add(line.pattern)  # which in a LayoutMap may be a path as it is
        matches: dict[Hashable, list[int]] = {path: [] for path in changed}
        for index, rule in enumerate(state.entries):
            paths = self.arrays.matched(rule.pattern, self.dialect)
            if paths is None:
                for path in changed:  # twice, as Keras raises where two match, too
                    matches[path] += [index, index]
            else:
                for path in paths & changed:
                    matches[path].append(index)
        rules, dialect = self.table(state), self.dialect
        for path, group in self.arrays.groups.items():
            if path in matches:
                match = decided(matches[path], str(path), rules, dialect)
                if match.problem is not None:
                    yield group, match.problem
                else:
                    yield group, matched_spec(match, rules, group.shape, dialect)

    def same_effect(self, step: Step, after: State, spec: Spec) -> Hashable:
        # Of edits that differ in how a new pattern is written, one is enough.
        return step.kind, step.subject, after.shape, spec

    def order(self, step: Step) -> int:
        """A spec that lays out here may be meant for others: better a new pattern."""
        sound = self.now is not None and self._fits(self.now)
        alone = self._path not in self.arrays.groups
        if step.kind is Kind.AXES and sound and alone:
            return Kind.REMOVE
        return step.kind

    def edits(self, state: State, wish: Wish, few: bool = False) -> Iterator[Step]:
        if is_one_element(state.shape, self.dialect):
            return
        rules, match = self.table(state), self._match(state)
        winner, regex = match.winner, self.dialect is Dialect.REGEX
        yield from self._spelling()
        matching, place = match.several, len(rules)
        if winner is not None:
            matching = (winner,)
            if regex:  # the first that matches wins, so a place decides
                place = winner
                for index in self._fitting():
                    if index > winner:
                        yield Step(Kind.MOVE, index, winner)
        for index in matching:
            yield Step(Kind.REMOVE, index)
        yield from self.sizes(state)
        targets = self._targets(wish)
        if winner is not None:
            for spec in targets:
                new = PathRule(rules[winner].pattern, spec)
                yield Step(Kind.AXES, winner, new=new)
        for spec in targets:
            for pattern in self._patterns():
                if pattern not in rules.patterns:
                    yield Step(Kind.ADD, None, place, PathRule(pattern, spec))

    def _fitting(self) -> list[int]:
        """The indices of the patterns that match the path."""
        return [i for i, rule in enumerate(self.rules) if self._fits_path(rule.pattern)]

    def _fits_path(self, pattern: str) -> bool:
        try:
            return fits(pattern, self._path, self.dialect)
        except RuleError:
            return False

    def _spelling(self) -> Iterator[Step]:
        """Patterns that match no array, with a word that is not in the path corrected."""
        words: dict[str, None] = {}
        for kind in (r"\w+", r"[^\W_]+", r"[^\W\d]+"):  # with and without _ and digits
            words |= dict.fromkeys(re.findall(kind, self._path))
        for index, rule in enumerate(self.rules):
            if self.arrays.matched(rule.pattern, self.dialect):
                continue
            for word in plain_words(rule.pattern):
                if word[0] in words:
                    continue
                close = near(word[0], tuple(words))
                start, end = rule.pattern[: word.start()], rule.pattern[word.end() :]
                text = f"{start}{close}{end}"
                if close and text not in self.rules.patterns and self._fits_path(text):
                    new = PathRule(text, rule.spec)
                    yield Step(Kind.RULE_NAME, index, new=new)

    def _patterns(self) -> list[str]:
        """Patterns for the path in every layer and with its moments, and for it alone."""
        path, regex = self._path, self.dialect is Dialect.REGEX
        mine = self.arrays.kind(path)
        alike = [p for p in self.arrays.groups if self.arrays.kind(str(p)) == mine]
        general = _in_every_layer(path)
        patterns, alone = [general], path
        if regex:  # which searches in a path; a LayoutMap matches the whole of it
            patterns = [f"{general}$", f"^{general}$"]
            alone = f"^{re.escape(path)}$"
        # What the paths of other layers and of moments have in common at their ends.
        ends = [_in_every_layer(str(p)).split("/")[::-1] for p in alike]
        shared: list[str] = []
        for segments in zip(*ends, strict=False):
            if len(set(segments)) > 1:
                break
            shared.insert(0, segments[0])
        end = "/".join(shared)
        if end not in ("", general):
            patterns.insert(0, f"(^|/){end}$" if regex else f".*{end}")
        for pattern in patterns:
            matched = self.arrays.matched(pattern, self.dialect)
            if matched is not None and matched <= {*alike}:
                return [pattern, alone]
        return [alone]

    def _targets(self, wish: Wish) -> list[Spec]:
        """The spec that is wanted, or else some that would do, the likely ones first."""
        if wish.spec is not None:
            return [wish.spec]
        winner = self._match(self.start).winner
        likely: list[Spec] = []
        if winner is not None:
            likely += self._repaired(self.rules[winner].spec)
        likely += [rule.spec for rule in self.rules]
        likely += self._one_axis_more(wish)
        if wish.limit is not None and self.mesh is not None and self.leaf.shape:
            splits = [spec for _, spec in self.splits()]
            likely += sorted(splits, key=lambda spec: len(spec.axes))
        targets: dict[Spec, Spec] = {}
        for spec in dict.fromkeys(likely):
            if self.meets(spec, wish, self.leaf.shape):
                # P('x') and P('x', None) split alike: the likelier one will do.
                targets.setdefault(spec.trimmed, spec)
        return list(targets.values())[:MOST_TARGETS]

    def _repaired(self, spec: Spec) -> Iterator[Spec]:
        """A spec with too many entries or misspelt axes, as it may have been meant."""
        dims = [self.corrected(axes) for axes in spec.dims]
        rank = min(len(self.leaf.names), len(dims))
        # Any may be the ones too many; those that split nothing are left out first.
        kept = itertools.combinations(dims, rank)
        for entries in sorted(kept, key=lambda dims: dims.count(())):
            yield Spec(entries)

    def _one_axis_more(self, wish: Wish) -> Iterator[Spec]:
        """The spec as far as it can be laid out, with one axis in one dimension."""
        sound: list[tuple[str, ...]] = [()] * len(self.leaf.names)
        if self.now is not None:
            for d, axes in enumerate(self.now.dims[: len(sound)]):
                if self._fits(Spec((*sound[:d], axes))):
                    sound[d] = axes
        dims: Sequence[int] = range(len(sound))
        if wish.dim is not None:
            dims = (wish.dim,)
        for axis in self.axes:
            # An axis splits one dimension of an array, so the others give it up.
            rest = [tuple(a for a in axes if a != axis) for axes in sound]
            for d in dims:
                yield Spec((*rest[:d], (axis,), *rest[d + 1 :]))

    def _fits(self, spec: Spec) -> bool:
        """Whether the array can be laid out so."""
        if rank_problem(spec, len(self.leaf.names)):
            return False
        return not isinstance(self.layout(self.leaf.shape, self.leaf.dtype, spec), str)

    def first(self) -> Remedies | None:
        """The one remedy of what looks like a mistake, or None."""
        want = self._meant()
        if want is None:
            return None
        return self.find(want, most=1) or None

    def _meant(self) -> Spec | str | None:
        """What the table was most likely meant to give, or None where it gives that."""
        if is_one_element(self.leaf.shape, self.dialect):
            return None
        match = self._match(self.start)
        if match.winner is None:
            likely = [self.rules[i].spec for i in match.several]
            likely += [self.rules[step.subject].spec for step in self._spelling()]
            return next(filter(self._fits, likely), None)
        spec = self.rules[match.winner].spec
        if not self._fits(spec):
            return next(filter(self._fits, self._repaired(spec)), "split")
        if self.dialect is Dialect.KERAS or spec.axes or spec.unconstrained:
            return None
        # A pattern that splits nothing may hide a later one that would split it.
        for index in self._fitting():
            later = self.rules[index].spec
            if index > match.winner and later.axes and self._fits(later):
                return later
        return None

    def why_no_edit(self, wish: Wish) -> NoRemedy:
        if is_one_element(self.leaf.shape, self.dialect):
            return NoRemedy("one element", wish)
        if wish.spec is not None:
            refused = self.layout(self.leaf.shape, self.leaf.dtype, wish.spec)
            if not isinstance(refused, str):
                refused = ""
            return NoRemedy("no layout", wish, error=refused)
        if self.leaf.shape == ():
            return NoRemedy("scalar", wish)
        sizes = self.leaf.shape or ()
        if wish.dim is not None:
            sizes = sizes[wish.dim : wish.dim + 1]
        return NoRemedy("does not divide", wish, mesh=self.mesh, sizes=sizes)


def _in_every_layer(path: str) -> str:
    return _DIGITS.sub(r"\\d+", re.escape(path))
