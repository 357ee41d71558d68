"""The edits of a table of names with which an array may be split as wanted.

A rule is moved, added, removed, given other axes, or a misspelt name of it corrected;
or a dimension of the array gets a name, a corrected one, or a size that divides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from shardviz.axis_rules.matching import match_rules
from shardviz.axis_rules.remedies import Kind, Step, Wish
from shardviz.axis_rules.remedy_search import RemedySearch, State
from shardviz.axis_rules.rules import Dialect, Rule, Rules, near
from shardviz.base.errors import RuleError
from shardviz.base.partition_spec import Spec

MOST_AXES = 3  # that a rule is given at once, where only a size was wanted


class RuleSearch(RemedySearch):
    """A search under a table of logical names."""

    def table(self, entries: tuple[Any, ...]) -> Rules:
        return Rules(entries)

    def resolve(self, state: State) -> Spec | None:
        # Rules for other names cannot change how it is split.
        own = tuple([rule for rule in state.entries if rule.logical in state.names])
        try:
            return match_rules(state.names, Rules(own), self.mesh, self.dialect).spec
        except RuleError:
            return None

    def resolved(self, state: State, lines: list[Any]) -> Iterator[tuple[Any, Any]]:
        rules = Rules(state.entries)
        groups = self.arrays.of({line.logical for line in lines})
        if self._broken is not None:  # which most likely breaks again
            path = self._broken.path
            groups.sort(key=lambda group: path != group[0].path)
        for group in groups:
            names = group[0].names
            try:
                spec = match_rules(names, rules, self.mesh, self.dialect).spec
            except RuleError as error:
                spec = error
            yield group, spec

    @cached_property
    def alike(self) -> Sequence[Any]:
        leaf, alike = self.leaf, []
        mine = self.arrays.kind(leaf.path or "")
        groups = list(self.arrays.groups.values())
        if not any(leaf.names):
            groups = [[row] for row in self.arrays.unnamed if row.shape == leaf.shape]
        for group in groups:
            names = group[0].names or (None,) * len(group[0].shape)
            if (names, group[0].shape) == (leaf.names, leaf.shape):
                for row in group:
                    if row.path != leaf.path and self.arrays.kind(row.path) == mine:
                        alike.append(row)
        return alike

    def edits(self, state: State, wish: Wish, few: bool = False) -> Iterator[Step]:
        rules = state.entries
        own = [i for i, rule in enumerate(rules) if rule.logical in state.names]
        yield from self._spelling(state)
        yield from self._named(state)
        # The places before and after rules for other names change other arrays only.
        places: Sequence[int] = range(len(rules))
        if few:
            places = own
        for i in own:
            for place in reversed(places[: places.index(i)]):  # the nearest first
                yield self.step(state, Kind.MOVE, i, place)
        for i in own:
            for place in places[places.index(i) + 1 :]:
                yield self.step(state, Kind.MOVE, i, place)
        targets = self._targets(state, wish)
        for i in own:
            for rule in targets:
                if rule.logical == rules[i].logical and rule != rules[i]:
                    yield self.step(state, Kind.AXES, i, new=rule)
        for rule in targets:
            for place in reversed([*places, len(rules)]):
                yield self.step(state, Kind.ADD, None, place, rule)
        for i in own:
            yield self.step(state, Kind.REMOVE, i)
        yield from self.sizes(state)

    def _spelling(self, state: State) -> Iterator[Step]:
        """Misspelt names and axes, in the table and in the array, corrected."""
        table = tuple(dict.fromkeys(rule.logical for rule in state.entries))
        unknown = tuple(n for n in state.names if isinstance(n, str) and n not in table)
        others = self.arrays.names
        for i, rule in enumerate(state.entries):
            # Of one array alone nobody knows which rules are for others.
            if others and rule.logical not in others:
                close = near(rule.logical, unknown)
                if close is not None:
                    new = Rule(close, rule.axes, rule.free)
                    yield self.step(state, Kind.RULE_NAME, i, new=new, typo=True)
            if rule.logical in state.names:
                axes = self.corrected(rule.axes)
                if axes != rule.axes:
                    new = replace(rule, axes=axes)
                    yield self.step(state, Kind.AXES, i, new=new, typo=True)
        for d, name in enumerate(state.names):
            if not isinstance(name, str) or name not in unknown:
                continue
            close = near(name, table)
            # Only in nnx may two dimensions have the same name.
            twice = close in state.names and self.dialect is not Dialect.NNX
            if close is not None and not twice:
                yield self.step(
                    state, Kind.ARRAY_NAME, d, new=close, old=name, typo=True
                )

    def _named(self, state: State) -> Iterator[Step]:
        """A dimension without a name under one that the table knows."""
        splitting = {}
        for rule in state.entries:
            # An axis of size 1 splits nothing: none is proposed.
            if rule.logical not in state.names and set(rule.axes) & set(self.axes):
                splitting[rule.logical] = rule
        for d, name in enumerate(state.names):
            if name is None:
                for new in splitting:
                    yield self.step(state, Kind.ARRAY_NAME, d, new=new)

    def _targets(self, state: State, wish: Wish) -> list[Rule]:
        """The rules that names of the array may get: what is wanted, or any axes."""
        most = 1  # one axis splits; only to save bytes may it take more
        if wish.limit is not None:
            most = MOST_AXES
        choices: list[tuple[str, ...]] = []
        for count in range(1, most + 1):
            choices += itertools.combinations(self.axes, count)
        targets: dict[Rule, None] = {}
        for d, name in enumerate(state.names):
            if not isinstance(name, str):
                continue
            rules = [Rule(name, axes) for axes in (*choices, ())]
            if wish.spec is not None:
                free = d in wish.spec.unconstrained
                rules = [Rule(name, wish.spec.dims[d], free=free)]
            targets |= dict.fromkeys(rules)
        return list(targets)
