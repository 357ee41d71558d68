"""The edits of a table of paths with which an array may be split as wanted.

A pattern is moved up, added, removed, given another spec, or a misspelt word of it is
corrected. A pattern for the path alone touches no other array: where any table can give
the wish, one edit is enough.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from shardviz.axis_rules.path_matching import (
    PathMatch,
    decided,
    fits,
    is_one_element,
    match_path,
    matched_spec,
    plain_words,
)
from shardviz.axis_rules.remedies import Kind, Step, Wish
from shardviz.axis_rules.remedy_search import RemedySearch, State
from shardviz.axis_rules.rules import Dialect, PathRule, PathRules, near
from shardviz.base.errors import RuleError
from shardviz.base.partition_spec import Spec

MOST_TARGETS = 12  # specs that a pattern is given, where no spec was wanted


class PathSearch(RemedySearch):
    """A search under a table of paths."""

    @property
    def _path(self) -> str:
        return self.leaf.path or ""

    def table(self, entries: tuple[Any, ...]) -> PathRules:
        return PathRules(entries, self.rules.mesh)

    def _match(self, state: State) -> PathMatch:
        return match_path(self._path, self.table(state.entries), self.dialect)

    def resolve(self, state: State) -> Spec | None:
        rules, match = self.table(state.entries), self._match(state)
        spec = matched_spec(match, rules, state.shape, self.dialect)
        if spec is None:
            return None
        return spec.of_rank(len(self.leaf.names))

    def resolved(self, state: State, lines: list[Any]) -> Iterator[tuple[Any, Any]]:
        changed: set[Any] = set()
        for line in lines:
            paths = self.arrays.matched(line.pattern, self.dialect)
            if paths is None:  # Keras raises for every path
                changed.update(self.arrays.groups)
            else:
                changed.update(paths)
            changed.add(line.pattern)  # which in a LayoutMap may be a path as it is
        matches: dict[Any, list[int]] = {path: [] for path in changed}
        for index, rule in enumerate(state.entries):
            paths = self.arrays.matched(rule.pattern, self.dialect)
            if paths is None:
                for path in changed:  # twice, as Keras raises where two match, too
                    matches[path] += [index, index]
            else:
                for path in paths & changed:
                    matches[path].append(index)
        rules, dialect = self.table(state.entries), self.dialect
        for path, group in self.arrays.groups.items():
            if path in matches:
                match = decided(matches[path], str(path), rules, dialect)
                spec = matched_spec(match, rules, group[0].shape, dialect)
                yield group, match.problem or spec

    def edits(self, state: State, wish: Wish, few: bool = False) -> Iterator[Step]:
        if is_one_element(state.shape, self.dialect):
            return
        rules, match = self.rules, self._match(state)
        winner, matching, place = match.winner, match.several, len(rules)
        yield from self._spelling(state)
        if winner is not None:
            matching = (winner,)
            if self.dialect is Dialect.REGEX:  # the first that matches wins
                place = winner
                for index, rule in enumerate(rules):
                    if index > winner and self._fits_path(rule.pattern):
                        yield self.step(state, Kind.MOVE, index, winner)
        # Without it a later pattern decides, or the one that Keras could not choose.
        for index in matching:
            yield self.step(state, Kind.REMOVE, index)
        yield from self.sizes(state)
        targets = self._targets(wish, match)
        if winner is not None:
            for spec in targets:
                new = PathRule(rules[winner].pattern, spec)
                typo = spec == next(self._repaired(rules[winner].spec))
                yield self.step(state, Kind.AXES, winner, new=new, typo=typo)
        for spec in targets:
            for pattern in self._patterns():
                if pattern not in rules.patterns:
                    yield self.step(
                        state, Kind.ADD, None, place, PathRule(pattern, spec)
                    )

    def _fits_path(self, pattern: str) -> bool:
        try:
            return fits(pattern, self._path, self.dialect)
        except RuleError:
            return False

    def _spelling(self, state: State) -> Iterator[Step]:
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
                    yield self.step(state, Kind.RULE_NAME, index, new=new, typo=True)

    def _patterns(self) -> list[str]:
        """Patterns for the path in every layer and with its moments, and for it alone."""
        path, regex = self._path, self.dialect is Dialect.REGEX
        mine = self.arrays.kind(path)
        alike = {p for p in self.arrays.groups if self.arrays.kind(p) == mine}
        # What the paths of other layers and of moments have in common at their ends.
        shared: list[str] = []
        ends = [_in_every_layer(p).split("/")[::-1] for p in (*alike, path)]
        for segments in zip(*ends, strict=False):
            if len(set(segments)) > 1:
                break
            shared.insert(0, segments[0])
        general, end = _in_every_layer(path), "/".join(shared)
        patterns, alone = [general], path
        if regex:  # which searches in a path; a LayoutMap matches the whole of it
            patterns, alone = [f"{general}$", f"^{general}$"], f"^{re.escape(path)}$"
        if end not in ("", general):
            patterns.insert(0, f"(^|/){end}$" if regex else f".*{end}")
        for pattern in patterns:
            matched = self.arrays.matched(pattern, self.dialect)
            if matched is not None and matched <= alike:
                return [pattern, alone]
        return [alone]

    def _targets(self, wish: Wish, match: PathMatch) -> list[Spec]:
        """The spec that is wanted, or else some that would do, the likely ones first."""
        if wish.spec is not None:
            return [wish.spec]
        likely: list[Spec] = []
        if match.winner is not None:
            likely += self._repaired(self.rules[match.winner].spec)
        # Specs that the table has are likelier than any that are made up.
        likely += [rule.spec for rule in self.rules]
        likely += self._one_axis_more(wish)
        if wish.limit is not None and self.mesh is not None and self.leaf.shape:
            splits = [spec for _, spec in self.splits()]
            likely += sorted(splits, key=lambda spec: len(spec.axes))
        targets: dict[Spec, Spec] = {}
        rank = len(self.leaf.names)
        for spec in likely:
            full = spec.of_rank(rank)
            if self.meets(full, wish, self.leaf.shape):
                # P('x') and P('x', None) split alike: the likelier one will do.
                targets.setdefault(full, spec)
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
                split = Spec((*sound[:d], axes))
                if self.layout(self.leaf.shape, "int8", split).__class__ is not str:
                    sound[d] = axes
        dims: Sequence[int] = range(len(sound))
        if wish.dim is not None:
            dims = (wish.dim,)
        for axis in self.axes:
            # An axis splits one dimension of an array, so the others give it up.
            rest = [tuple(a for a in axes if a != axis) for axes in sound]
            for d in dims:
                yield Spec((*rest[:d], (axis,), *rest[d + 1 :]))


def _in_every_layer(path: str) -> str:
    return re.sub(r"[0-9]+", r"\\d+", re.escape(path))
