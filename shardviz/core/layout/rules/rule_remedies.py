"""The edits of a table of names with which an array may be split as wanted.

A rule is moved, added, removed, given other axes, or a misspelt name of it corrected;
or a dimension of the array gets a name, a corrected one, or a size that divides.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from shardviz.core.errors import RuleError
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.matching import match_rules
from shardviz.core.layout.rules.remedies import Kind, Step
from shardviz.core.layout.rules.remedy_search import (
    Group,
    Search,
    State,
    subsets,
)
from shardviz.core.layout.rules.rules import Dialect, Rule, Rules, near
from shardviz.core.layout.rules.wishes import Wish

MOST_AXES = 3  # that a rule is given at once, where only a size was wanted


class RuleSearch(Search):
    """A search under a table of logical names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._specs: dict[Any, tuple[Any, Spec | None]] = {}

    def table(self, state: State) -> Rules:
        return Rules(state.entries)

    def _own(self, state: State) -> tuple[Rule, ...]:
        """The rules for names of the array: all others cannot change how it is split."""
        return tuple([rule for rule in state.entries if rule.logical in state.names])

    def resolve(self, state: State) -> Spec | None:
        own = self._own(state)
        # Most edits change nothing for the array. Hashing rules takes as long as
        # resolving, so they are known by their ids; the value keeps them alive.
        key = (*map(id, own), state.names)
        if key not in self._specs:
            self._specs[key] = (own, self._matched(state.names, Rules(own)))
        return self._specs[key][1]

    def _matched(self, names: Any, rules: Rules) -> Any:
        try:
            return match_rules(names, rules, self.mesh, self.dialect).spec
        except RuleError:
            return None

    def resolved(self, state: State, lines: list[Any]) -> Iterator[tuple[Group, Any]]:
        rules = Rules(state.entries)
        groups = self.arrays.of(line.logical for line in lines)
        if self._broken is not None:  # which most likely breaks again
            path = self._broken.path
            groups.sort(key=lambda group: path not in group.paths)
        for group in groups:
            try:
                spec = match_rules(group.names, rules, self.mesh, self.dialect).spec
            except RuleError as error:
                spec = error
            yield group, spec

    def same_effect(self, step: Step, after: State, spec: Spec) -> Hashable:
        if step.kind is Kind.ADD:
            return step.new, spec
        return self._own(after), after.names, after.shape

    def alike(self) -> dict[str, str]:
        leaf, alike = self.leaf, {}
        if leaf.path is None:
            return alike
        mine = self.arrays.kind(leaf.path)
        for group in self.arrays.groups.values():
            if (group.names, group.shape) == (leaf.names, leaf.shape):
                for path in group.paths:
                    if self.arrays.kind(path) == mine:
                        alike[path] = group.dtype
        alike.pop(leaf.path, None)
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
                yield Step(Kind.MOVE, i, place)
        for i in own:
            for place in places[places.index(i) + 1 :]:
                yield Step(Kind.MOVE, i, place)
        targets = self._targets(state, wish)
        for i in own:
            for rule in targets[rules[i].logical]:
                if rule != rules[i]:
                    yield Step(Kind.AXES, i, new=rule)
        for rules_of_name in targets.values():
            for rule in rules_of_name:
                for place in reversed([*places, len(rules)]):
                    yield Step(Kind.ADD, None, place, rule)
        for i in own:
            yield Step(Kind.REMOVE, i)
        yield from self.sizes(state)

    def _spelling(self, state: State) -> Iterator[Step]:
        """Misspelt names and axes, in the table and in the array, corrected."""
        table = tuple(dict.fromkeys(rule.logical for rule in state.entries))
        unknown = tuple(n for n in state.names if isinstance(n, str) and n not in table)
        others = self.arrays.by_name
        for i, rule in enumerate(state.entries):
            close = None
            # Of one array alone nobody knows which rules are for others.
            if others and unknown and rule.logical not in others:
                close = near(rule.logical, unknown)
            if close is not None:
                new = Rule(close, rule.axes, rule.free)
                yield Step(Kind.RULE_NAME, i, new=new)
            mine: str = rule.logical
            if mine in state.names and self.mesh is not None:
                axes = self.corrected(rule.axes)
                if axes != rule.axes:
                    yield Step(Kind.AXES, i, new=Rule(mine, axes))
        for d, name in enumerate(state.names):
            if not isinstance(name, str) or name not in unknown:
                continue
            close = near(name, table)
            # Only in nnx may two dimensions have the same name.
            twice = close in state.names and self.dialect is not Dialect.NNX
            if close is not None and not twice:
                yield Step(Kind.ARRAY_NAME, d, new=close, old=name)

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
                    yield Step(Kind.ARRAY_NAME, d, new=new)

    def _targets(self, state: State, wish: Wish) -> dict[str, dict[Rule, None]]:
        """Per name of the array, rules that it may get: what is wanted, or any axes."""
        targets: dict[str, dict[Rule, None]] = {}
        most = 1  # one axis splits; only to save bytes may it take more
        if wish.limit is not None:
            most = MOST_AXES
        for d, name in enumerate(state.names):
            if not isinstance(name, str):
                continue
            if wish.spec is None:
                choices = [*subsets(self.axes, most), ()]
                rules = [Rule(name, axes) for axes in choices]
            else:
                free = d in wish.spec.unconstrained
                rules = [Rule(name, wish.spec.dims[d], free=free)]
            targets.setdefault(name, {}).update(dict.fromkeys(rules))
        return targets
