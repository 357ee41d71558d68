"""The smallest edits of a table of names with which an array is split as wanted.

Every edit of `remedy_edits` is made, the array is resolved under the new table, and
what gives the wish is kept; then the other arrays that have a name of the changed rules
are resolved again. An edit with which an array can no longer be laid out is left out.
Pairs of edits are tried only where no single one will do.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from shardviz.core.errors import RuleError
from shardviz.core.layout.layout import Layout
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules import remedy_edits as edits
from shardviz.core.layout.rules.matching import Names, match_rules
from shardviz.core.layout.rules.remedies import (
    MOST_AXES,
    LeafSearch,
    NoRemedy,
    Remedy,
    Step,
    Steps,
)
from shardviz.core.layout.rules.remedy_edits import (
    Arrays,
    Edit,
    Group,
    Kind,
    Space,
    State,
)
from shardviz.core.layout.rules.rules import Dialect, Rule, Rules
from shardviz.core.layout.rules.wishes import Wish

MOST_WEIGHED = 48  # edits whose effect on others is found, once there are good ones
MOST_PAIRS = 1_500
MOST_BREAKING = 250  # edits that break an array, after which no more are tried


class _Broken(NamedTuple):
    """An array that an edit breaks, and what is raised then."""

    path: str
    error: str


@dataclass
class Search(LeafSearch[Rules]):
    """A search among all `arrays` under a table of logical names."""

    arrays: Arrays

    def __post_init__(self) -> None:
        super().__post_init__()
        self._specs: dict[Any, tuple[tuple[Rule, ...], Spec | None]] = {}
        self._breaks: list[tuple[list[tuple[Edit, int]], _Broken]] = []
        self._broken: Group | None = None  # the one that an edit broke last

    @property
    def now(self) -> Spec | None:
        return self.spec(self.start.own, self.leaf.names)

    def _search(self, wish: Wish, most: int, pairs: bool) -> list[Remedy] | NoRemedy:
        if found := self._singles(wish, most):
            return found
        if small := self._too_small(wish):
            return small
        stopped = False
        if pairs:
            found, stopped = self._pairs(wish, most)
        return found or self._reason(wish, stopped)

    @cached_property
    def start(self) -> State:
        """The table and the array as they are."""
        return State(self.rules.entries, self.leaf.names, self.leaf.shape)

    def spec(self, own: tuple[Rule, ...], names: Names) -> Spec | None:
        """How the array is split by its rules, or None where that raises an error."""
        # Hashing rules takes as long as resolving; the value keeps them alive.
        key = (*map(id, own), names)
        known = self._specs.get(key)
        if known is None:
            try:
                spec = match_rules(names, Rules(own), self.mesh, self.dialect).spec
            except RuleError:
                spec = None
            known = self._specs[key] = (own, spec)
        return known[1]

    def space(self, wish: Wish) -> Space:
        """The edits that can give the wish."""
        known = set(self.arrays.by_name).union(n for n in self.leaf.names if n)
        if not self.arrays.groups:
            # Of one array alone nobody knows which rules are for others, and which are
            # misspelt.
            known.update(self.rules.by_name)
        axes = () if self.mesh is None else self.mesh.axis_names
        idle: tuple[Rule, ...] = ()
        useless: frozenset[str] = frozenset()
        if wish.spec is not None:
            idle = self._any_axes((*self._axes, *axes))
        else:
            # An axis of size 1 splits nothing: none is proposed where nobody asked.
            useless = frozenset(axes) - frozenset(self._axes)
        targets = tuple(self._targets(wish, d) for d in range(len(self.leaf.names)))
        return Space(targets, axes, self.dialect, frozenset(known), idle, useless)

    def _any_axes(self, allowed: tuple[str, ...]) -> tuple[Rule, ...]:
        """What a rule may lead to: few axes before many, and what rules have now."""
        sets = list(edits.subsets(self._axes, MOST_AXES))
        sets.append(())
        sets += [(a,) for a in self._ones if a in allowed]
        sets += [r.axes for r in self.rules if set(allowed).issuperset(r.axes)]
        return tuple(Rule("", axes) for axes in dict.fromkeys(sets))

    def _targets(self, wish: Wish, dim: int) -> tuple[Rule, ...]:
        """What a rule may give a dimension: what is wanted, or else any axes."""
        if wish.spec is None:
            return self._any_axes(self._axes)
        axes, free = wish.spec.dims[dim], dim in wish.spec.unconstrained
        if free:
            return (Rule("", axes, False, True),)
        extras = [(), *edits.subsets(self._ones, 2)]
        return tuple(Rule("", axes + extra) for extra in extras)

    @property
    def _ones(self) -> tuple[str, ...]:
        """Under maxtext, the axes of size 1 of the array's rules: dropped, but used."""
        used = dict.fromkeys(a for r in self.start.own for a in r.axes)
        return tuple(a for a in used if a in self._dropped)

    @cached_property
    def _dropped(self) -> frozenset[str]:
        """The axes that are dropped from the spec: those of size 1, under maxtext."""
        if self.mesh is None or self.dialect is not Dialect.MAXTEXT:
            return frozenset()
        return frozenset(a for a, n in self.mesh.shape.items() if n == 1)

    def _singles(self, wish: Wish, most: int) -> list[Remedy]:
        ranked: list[tuple[Any, Remedy]] = []
        for number, members in enumerate(self._classes(wish)):
            last = edits.tier(members[0][0]) > 1 and len(ranked) >= most
            if ranked and (last or number >= MOST_WEIGHED):
                break
            best = self._first_good(members)
            if best is None:
                continue
            edit, remedy = best
            # A smaller size saves bytes, which nobody asked for.
            saved = 0 if edit.kind is Kind.SIZE else remedy.bytes_saved or 0
            others = len(remedy.others) if edits.tier(edit) else 0
            lost = self._unsplit(remedy.spec)
            key = (*edits.rank(edit)[:2], lost, others, edit.kind, -saved, number)
            ranked.append((key, remedy))
        ranked.sort(key=lambda r: r[0])
        return [remedy for _, remedy in ranked[:most]]

    def _classes(self, wish: Wish) -> list[list[tuple[Edit, Spec]]]:
        """The edits that give the wish; those of which one is enough are in one list."""
        classes: dict[Any, list[tuple[Edit, Spec]]] = {}
        moved: dict[Any, Any] = {}
        start, space = self.start, self.space(wish)
        every = itertools.chain(self._fitted(start), edits.single_edits(start, space))
        for edit in every:
            spec = self._gives(wish, edit, start, space)
            if spec is None:
                continue
            key = edits.same_but_place(edit, spec)
            if edit.kind in (Kind.MOVE, Kind.SWAP):
                key = moved.setdefault(edit.own, key)
            classes.setdefault(key, []).append((edit, spec))
        return sorted(classes.values(), key=lambda c: edits.rank(c[0][0]))

    def _gives(
        self, wish: Wish, edit: Edit, before: State, space: Space
    ) -> Spec | None:
        """The spec after an edit where that is what is wanted; else None."""
        spec = self.spec(edit.own, edit.names)
        if spec is None or _is_useless(edit, spec, space):
            return None
        shape = before.shape
        if edit.kind is Kind.SIZE:
            shape = edit.apply(before, 0).shape
        return spec if self._good(shape, spec, wish) else None

    def _fitted(self, state: State) -> Iterator[Edit]:
        """The sizes that divide in place of one that does not."""
        spec = self.spec(state.own, state.names)
        if spec is not None and self.mesh is not None and state.shape is not None:
            yield from edits.resized(
                state.own, state.names, state.shape, spec, self.mesh
            )

    def _first_good(
        self, members: list[tuple[Edit, Spec]]
    ) -> tuple[Edit, Remedy] | None:
        """The first of edits with one effect on the array that breaks no other array."""
        for edit, spec in members:
            for place in edit.places:
                if len(self._breaks) > MOST_BREAKING:
                    return None
                remedy = self._remedy([(edit, place)], spec)
                if remedy is not None:
                    return edit, remedy
        return None

    def _remedy(self, steps: list[tuple[Edit, int]], spec: Spec) -> Remedy | None:
        """The remedy of edits one after the other, or None where they break an array."""
        state, touched = self.start, set()
        for edit, place in steps:
            touched |= edit.touched(state, place)
            state = edit.apply(state, place)
        types = self._alike([edit for edit, _ in steps])
        alike = tuple(types)
        effect = self._effect(state, touched, {self.leaf.path, *alike})
        if isinstance(effect, _Broken):
            self._breaks.append((steps, effect))
            return None
        others, saved = effect
        here = self._saves(spec, state.shape, self.leaf.dtype)
        everywhere = None
        if here is not None:
            everywhere = here + saved
            for dtype in types.values():
                everywhere += self._saves(spec, state.shape, dtype) or 0
        return Remedy(
            self._change(steps, spec, len(alike)),
            Rules(state.entries) if touched else self.rules,
            state.names,
            state.shape,
            spec,
            here,
            everywhere,
            (*alike, *others),
            alike,
        )

    def _change(
        self, steps: list[tuple[Edit, int]], spec: Spec | None = None, alike: int = 0
    ) -> Steps:
        """The edits as facts."""
        state, made = self.start, []
        for edit, place in steps:
            at, old, parts = edit.subject, None, 0
            if edit.kind is Kind.ARRAY_NAME and at is not None:
                old = state.names[at]
            if edit.kind is Kind.SIZE and at is not None and state.shape is not None:
                old = state.shape[at]
                if spec is not None and self.mesh is not None:
                    parts = math.prod(self.mesh.shape[a] for a in spec.dims[at])
            made.append(
                Step(
                    edit.kind,
                    state.entries,
                    at,
                    place,
                    edit.target,
                    old,
                    self.leaf.path,
                    alike,
                    parts,
                )
            )
            state = edit.apply(state, place)
        return Steps(tuple(made))

    def _alike(self, steps: list[Edit]) -> dict[str, str]:
        """Arrays edited with this one: of other layers, and moments; path to type."""
        leaf, found = self.leaf, {}
        of_array = any(e.kind in (Kind.ARRAY_NAME, Kind.SIZE) for e in steps)
        if leaf.path is None or not of_array:
            return found
        mine = self._kind(leaf.path)
        for group in self.arrays.groups.values():
            if (group.names, group.shape) == (leaf.names, leaf.shape):
                for path in group.paths:
                    if self._kind(path) == mine:
                        found[path] = group.dtype
        found.pop(leaf.path, None)
        return found

    def _kind(self, path: str) -> str:
        return re.sub(r"[0-9]+", "0", self.arrays.parameters.get(path, path))

    def _effect(
        self, after: State, touched: set[str], edited: set[str | None]
    ) -> tuple[list[str], int] | _Broken:
        """The other arrays that change, and the bytes per device that they save.

        Returns:
            Both; or, where an array cannot be laid out any more, its path and the
            error.
        """
        rules, others, saved = Rules(after.entries), [], 0
        groups = self.arrays.of(touched)
        if self._broken in groups:  # which most likely breaks again
            groups.insert(0, groups.pop(groups.index(self._broken)))
        for group in groups:
            paths = [p for p in group.paths if p not in edited]
            if not paths:
                continue
            try:
                spec = match_rules(group.names, rules, self.mesh, self.dialect).spec
            except RuleError as error:
                if group.spec is None:  # it could not be resolved before either
                    continue
                self._broken = group
                return _Broken(paths[0], str(error))
            if spec == group.spec:
                continue
            layout = self.layout(group.shape, group.dtype, spec)
            if isinstance(layout, str) and not group.broken:
                self._broken = group
                return _Broken(paths[0], layout)
            if isinstance(layout, Layout):
                saved += (group.bytes - layout.bytes_per_device) * len(paths)
            others += paths
        return others, saved

    def _pairs(self, wish: Wish, most: int) -> tuple[list[Remedy], bool]:
        """Remedies of two edits, and whether the search was stopped early."""
        found: dict[Any, Remedy] = {}
        space = self.space(wish)
        if wish.spec is None:  # more than one axis at a time makes too many pairs
            targets = []
            for each in space.targets:
                targets.append(tuple(t for t in each if len(t.axes) < 2))
            space = space._replace(targets=tuple(targets))
        stopped = False
        for tried, (first, after, second) in enumerate(self._each_pair(space, wish)):
            stopped = tried > MOST_PAIRS
            broken = len(self._breaks) > MOST_BREAKING
            if stopped or broken or len(found) >= most:
                break
            spec = self._gives(wish, second, after, space)
            if spec is None or _is_useless(first, spec, space):
                continue
            alike = (first.kind, first.target, second.kind, spec)
            if alike not in found:
                steps = [(first, first.places[0]), (second, second.places[0])]
                remedy = self._remedy(steps, spec)
                if remedy is not None:
                    found[alike] = remedy
        key = lambda r: (self._unsplit(r.spec), len(r.others), -(r.bytes_saved or 0))  # noqa: E731
        return sorted(found.values(), key=key), stopped

    def _each_pair(
        self, space: Space, wish: Wish
    ) -> Iterator[tuple[Edit, State, Edit]]:
        """Pairs of edits that may give the wish: after the first, one must be able to."""
        seen = set()
        start = self.start
        for first in (*edits.main_edits(start, space), *self._fitted(start)):
            missing = wish.missing(first.own, first.names, self.dialect, self._dropped)
            after = first.apply(start, first.places[0])
            key = (after.own, after.names, after.shape)
            if len(missing) > 1 or key in seen:
                continue
            seen.add(key)
            for second in self._fitted(after):
                yield first, after, second
            for second in edits.main_edits(after, space, *missing):
                yield first, after, second

    def _reason(self, wish: Wish, stopped: bool) -> NoRemedy:
        if self._breaks:
            (steps, broken), *others = self._breaks
            return NoRemedy(
                "breaks others",
                wish,
                steps=self._change(steps),
                path=broken.path,
                error=broken.error,
                others=len(others),
                stopped=len(others) >= MOST_BREAKING,
            )
        names = self.leaf.names
        asked = () if wish.dim is None else (wish.dim,)
        if wish.spec is not None:
            asked = tuple(d for d, axes in enumerate(wish.spec.dims) if axes)
        unnamed = next((d for d in asked if not isinstance(names[d], str)), None)
        missing = wish.missing(self.start.own, names, self.dialect, self._dropped)
        return NoRemedy(
            "no edit", wish, unnamed=unnamed, missing=tuple(missing), stopped=stopped
        )


def _is_useless(edit: Edit, spec: Spec, space: Space) -> bool:
    """Whether a dimension is renamed, and its new name splits it over size 1 only."""
    if edit.kind is not Kind.ARRAY_NAME:
        return False
    assert edit.subject is not None
    axes = spec.dims[edit.subject]
    return bool(axes) and space.useless.issuperset(axes)
