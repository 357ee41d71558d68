"""Edits of Rules or of logical names that could split an array as requested.

An edit of the table moves, adds or removes a rule, changes its mesh axes, or corrects a
misspelt name in it. Other edits name a dimension of the array, or correct its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from shardviz.axis_rules.dialects import NameDialect
from shardviz.axis_rules.matching import Names, match_rules
from shardviz.axis_rules.remedies import (
    Action,
    AddLine,
    BytesWish,
    MoveLine,
    NameDimension,
    RemoveLine,
    RenameLine,
    RetargetLine,
    SpecWish,
    UnsplitWish,
    Wish,
)
from shardviz.axis_rules.remedy_search import AuditRow, RemedySearch
from shardviz.axis_rules.rules import Rule, Rules, near
from shardviz.base.errors import RuleError
from shardviz.base.partition_spec import Spec

# Maximum number of axes in a new rule, if the request is a number of bytes.
MOST_AXES = 3


class RuleSearch(RemedySearch[Rule, Rules, NameDialect]):
    """A search for edits of Rules and of logical names."""

    @property
    def lines(self) -> tuple[Rule, ...]:
        return self.rules.entries

    def concerns(self, line: Rule) -> bool:
        return line.logical in self.leaf.names

    def table(self, lines: tuple[Rule, ...]) -> Rules:
        return Rules(lines)

    def resolve(self, lines: tuple[Rule, ...], names: Names) -> Spec | None:
        # Rules for other names cannot change how the array is split.
        relevant = tuple([rule for rule in lines if rule.logical in names])
        try:
            return match_rules(names, Rules(relevant), self.mesh, self.dialect).spec
        except RuleError:
            return None

    def resolved(
        self, lines: tuple[Rule, ...], touched: Sequence[Rule]
    ) -> Iterator[tuple[list[AuditRow], object]]:
        rules = Rules(lines)
        groups = self.arrays.of({rule.logical for rule in touched})
        # First check the array that an earlier edit broke.
        if self._broken is not None:
            broken_path = self._broken.path
            groups.sort(key=lambda group: broken_path != group[0].path)
        for group in groups:
            try:
                names = group[0].names or ()
                yield group, match_rules(names, rules, self.mesh, self.dialect).spec
            except RuleError as error:
                yield group, error

    @cached_property
    def alike(self) -> Sequence[AuditRow]:
        leaf, alike = self.leaf, []
        kind = self.arrays.kind(leaf.path or "")
        groups = list(self.arrays.groups.values())
        if not any(leaf.names):
            groups = [[row] for row in self.arrays.unnamed if row.shape == leaf.shape]
        for group in groups:
            names = group[0].names or (None,) * len(group[0].shape)
            if (names, group[0].shape) == (leaf.names, leaf.shape):
                for row in group:
                    if row.path != leaf.path and self.arrays.kind(row.path) == kind:
                        alike.append(row)
        return alike

    def edits(self, wish: Wish) -> Iterator[Action]:
        rules, names = self.lines, self.leaf.names
        relevant = [i for i, rule in enumerate(rules) if rule.logical in names]
        if not isinstance(wish, UnsplitWish):
            yield from self._corrections()
            yield from self._named()
            for i in relevant:
                for place in reversed(range(i)):  # nearest positions first
                    yield MoveLine(rules, i, place)
            for i in relevant:
                for place in range(i + 1, len(rules)):
                    yield MoveLine(rules, i, place)
        targets = self._targets(wish)
        for i in relevant:
            for rule in targets:
                if rule.logical == rules[i].logical and rule != rules[i]:
                    yield RetargetLine(rules, i, rule)
        for rule in targets:
            for place in reversed(range(len(rules) + 1)):
                yield AddLine(rules, place, rule)
        for i in relevant:
            yield RemoveLine(rules, i)

    def _corrections(self) -> Iterator[Action]:
        """Yields corrections of misspelt names and axes, in the table and the array."""
        rules, names = self.lines, self.leaf.names
        rule_names = tuple(dict.fromkeys(rule.logical for rule in rules))
        unknown = tuple(n for n in names if isinstance(n, str) and n not in rule_names)
        names_in_use = self.arrays.names
        for i, rule in enumerate(rules):
            # If the other arrays are unknown, a rule for another name may be meant for
            # one of them.
            if names_in_use and rule.logical not in names_in_use:
                close = near(rule.logical, unknown)
                if close is not None:
                    yield RenameLine(rules, i, Rule(close, rule.axes, rule.free))
            if rule.logical in names:
                axes = self.corrected(rule.axes)
                if axes != rule.axes:
                    new = replace(rule, axes=axes)
                    yield RetargetLine(rules, i, new, corrects=True)
        for d, name in enumerate(names):
            if not isinstance(name, str) or name not in unknown:
                continue
            close = near(name, rule_names)
            repeats = close in names and not self.dialect.dimensions_apart
            if close is not None and not repeats:
                yield self._name(d, close, name)

    def _named(self) -> Iterator[Action]:
        """Yields edits that give an unnamed dimension a name with a splitting rule."""
        names = self.leaf.names
        rule_names = {rule.logical for rule in self.lines}
        unknown = tuple(
            n for n in self.arrays.names if isinstance(n, str) and n not in rule_names
        )
        candidates: dict[str, None] = {}
        for rule in self.lines:
            # A misspelt name must be corrected in its rule first.
            if rule.logical not in self.arrays.names and near(rule.logical, unknown):
                continue
            # Skip rules whose mesh axes all have size 1, because they split nothing.
            if rule.logical not in names and set(rule.axes) & set(self.axes):
                candidates[rule.logical] = None
        for d, name in enumerate(names):
            if name is None:
                for candidate in candidates:
                    yield self._name(d, candidate)

    def _name(self, dim: int, new: str, old: str | None = None) -> NameDimension:
        alike = tuple(row.path for row in self.alike)
        return NameDimension(dim, new, old, self.leaf.path, alike)

    def _targets(self, wish: Wish) -> list[Rule]:
        """Returns rules for the array's names that could fulfil the request."""
        choices: list[tuple[str, ...]] = []
        # One axis is enough to split a dimension; try several only to save bytes.
        most_axes = MOST_AXES if isinstance(wish, BytesWish) else 1
        if not isinstance(wish, UnsplitWish):
            for count in range(1, most_axes + 1):
                choices += itertools.combinations(self.axes, count)
        targets: dict[Rule, None] = {}
        for d, name in enumerate(self.leaf.names):
            if not isinstance(name, str):
                continue
            if isinstance(wish, SpecWish):
                unconstrained = d in wish.spec.unconstrained
                targets[Rule(name, wish.spec.dims[d], unconstrained)] = None
                continue
            for axes in (*choices, ()):
                targets[Rule(name, axes)] = None
        return list(targets)
