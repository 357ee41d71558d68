"""The edits of a rule table, or of one array, that can change how the array is split.

An edit moves, exchanges, removes or adds a rule, gives one other axes, or renames it;
or it renames a dimension of the array, or changes its size. Rules for names that the
array has not cannot change how it is split, so only its own rules are resolved again,
and an edit stands for all places of the table that are the same for the array.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from shardviz.core.format import nearest
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.matching import Names
from shardviz.core.layout.rules.rules import Dialect, Rule

Entries = tuple[Rule, ...]


class Kind(IntEnum):
    """What an edit does; of two with the same effect the first named here comes first.

    >>> Kind.MOVE < Kind.ADD
    True
    """

    RULE_NAME = 0
    ARRAY_NAME = 1
    MOVE = 2
    AXES = 3
    ADD = 4
    REMOVE = 5
    SWAP = 6
    SIZE = 7


class State:
    """A rule table and one array under it.

    Attributes:
        entries: the rules.
        names, shape: the array's; the shape is None where it is not known.
    """

    def __init__(self, entries: Entries, names: Names, shape: tuple[int, ...] | None):
        self.entries, self.names, self.shape = entries, names, shape

    @cached_property
    def by_name(self) -> dict[str, list[int]]:
        """The indices of the rules for each name."""
        found: dict[str, list[int]] = {}
        for index, rule in enumerate(self.entries):
            found.setdefault(rule.logical, []).append(index)
        return found

    @cached_property
    def mine(self) -> list[int]:
        """The indices of the rules for names that the array has; others cannot split
        it.
        """
        return self.indices(self.names)

    @cached_property
    def own(self) -> Entries:
        """Those rules."""
        return tuple(self.entries[i] for i in self.mine)

    def indices(self, names: Names) -> list[int]:
        """The indices of the rules for these names."""
        found: set[int] = set()
        for name in names:
            if isinstance(name, str):
                found.update(self.by_name.get(name, ()))
        return sorted(found)


class Edit(NamedTuple):
    """One edit, at one of several places of the table that are the same for the array.

    Attributes:
        kind: what it does.
        subject: what it is done to: the index of a rule or a dimension; None for a new
            rule.
        target: what becomes of it: a rule, a name or a size; None where a place says it
            all.
        own: the rules for names of the array with it.
        names: the array's names with it.
        places: the indices to which a rule is moved, or added, or with which it is
            exchanged; the first disturbs the table least.
        typo: whether it corrects a misspelt name.
        idle: whether it gives a rule axes that nobody asked for, so that the rule is
            not applied.
    """

    kind: Kind
    subject: int | None
    target: int | str | Rule | None
    own: Entries
    names: Names
    places: Sequence[int] = (0,)
    typo: bool = False
    idle: bool = False

    def apply(self, before: State, place: int) -> State:
        """The table and the array with the edit."""
        rules, shape, target = list(before.entries), before.shape, self.target
        i = self.subject
        if self.kind is Kind.ADD:
            assert isinstance(target, Rule)
            rules.insert(place, target)
            return State(tuple(rules), self.names, shape)
        assert i is not None
        if self.kind is Kind.SIZE:
            assert shape is not None
            assert isinstance(target, int)
            shape = (*shape[:i], target, *shape[i + 1 :])
        elif self.kind is Kind.MOVE:
            rules.insert(place, rules.pop(i))
        elif self.kind is Kind.SWAP:
            rules[i], rules[place] = rules[place], rules[i]
        elif self.kind is Kind.REMOVE:
            del rules[i]
        elif isinstance(target, Rule):
            rules[i] = target
        elif self.kind is Kind.RULE_NAME and isinstance(target, str):
            old = rules[i]
            rules[i] = Rule(target, old.axes, old.nested, old.free)
        return State(tuple(rules), self.names, shape)

    def touched(self, before: State, place: int) -> set[str]:
        """The logical names whose rules it changes: arrays without them stay as they
        are.
        """
        if self.kind in (Kind.ARRAY_NAME, Kind.SIZE):
            return set()
        found = {self.target.logical} if isinstance(self.target, Rule) else set()
        if self.subject is not None:
            found.add(before.entries[self.subject].logical)
        if self.kind is Kind.SWAP:
            found.add(before.entries[place].logical)
        if isinstance(self.target, str):
            found.add(self.target)
        return found


class Space(NamedTuple):
    """Which edits are tried.

    Attributes:
        targets: per dimension, what a rule may give it: rules whose name does not
            matter.
        idle: what a rule may lead to that is not applied: as good as removed for this
            array, and another thing for others.
        axes: the axes of the mesh.
        dialect: who reads the table.
        known: the logical names of all arrays that are known, for misspelt names.
        useless: the axes that no other dimension is to have: those of size 1, where
            nobody asked.
    """

    targets: tuple[tuple[Rule, ...], ...]
    axes: tuple[str, ...]
    dialect: Dialect
    known: frozenset[str]
    idle: tuple[Rule, ...] = ()
    useless: frozenset[str] = frozenset()

    def of_name(self, names: Names) -> Mapping[str, tuple[Rule, ...]]:
        """Per logical name of the array, what a rule may give it."""
        found: dict[str, dict[Rule, None]] = {}
        for name, targets in zip(names, self.targets, strict=True):
            if isinstance(name, str):
                found.setdefault(name, {}).update(dict.fromkeys(targets))
        return {name: tuple(targets) for name, targets in found.items()}


def single_edits(state: State, space: Space) -> Iterator[Edit]:
    """Every edit that can change how the array is split, sizes excepted."""
    yield from renamed_rules(state, space)
    yield from renamed_arrays(state, space)
    yield from moved(state)
    yield from exchanged(state)
    yield from other_axes(state, space)
    yield from added(state, space)
    yield from removed(state)


def main_edits(state: State, space: Space, only: int | None = None) -> Iterator[Edit]:
    """The edits that pairs are made of: names only where they are misspelt or missing.

    Args:
        only: the dimension that they can bring a rule for; None for all edits.
    """
    if any(isinstance(n, str) and n not in state.by_name for n in state.names):
        yield from (e for e in renamed_rules(state, space) if e.typo)
        yield from (e for e in renamed_arrays(state, space) if e.typo)
    if None in state.names:
        for edit in renamed_arrays(state, space):
            assert edit.subject is not None
            if edit.target and state.names[edit.subject] is None:
                yield edit
    wanted = space._replace(idle=())
    for edit in itertools.chain(other_axes(state, wanted), added(state, wanted)):
        assert isinstance(edit.target, Rule)
        if only is None or edit.target.logical == state.names[only]:
            yield edit
    if only is None:
        yield from moved(state)
        yield from exchanged(state)
        yield from removed(state)


def _gap(mine: Sequence[int], slot: int, count: int) -> range:
    """The places of `count` rules with `slot` of the array's before them, as in
    `list.insert`.
    """
    first = mine[slot - 1] + 1 if slot else 0
    return range(first, (mine[slot] if slot < len(mine) else count) + 1)


def moved(state: State) -> Iterator[Edit]:
    """A rule of the array before or after others of its rules."""
    mine, own, count = state.mine, state.own, len(state.entries) - 1
    for down in (False, True):
        for a, i in enumerate(mine):
            rest = own[:a] + own[a + 1 :]
            others = [m - (m > i) for m in mine if m != i]
            for slot in range(a + 1, len(mine)) if down else range(a - 1, -1, -1):
                after = (*rest[:slot], own[a], *rest[slot:])
                gap = _gap(others, slot, count)
                places = gap if down else gap[::-1]  # the nearest first
                yield Edit(Kind.MOVE, i, None, after, state.names, places)


def exchanged(state: State) -> Iterator[Edit]:
    """A rule of the array in the place of another rule, and that in its place."""
    mine, own = state.mine, state.own
    for a, i in enumerate(mine):
        for b in range(a + 1, len(mine)):
            after = (*own[:a], own[b], *own[a + 1 : b], own[a], *own[b + 1 :])
            yield Edit(Kind.SWAP, i, None, after, state.names, (mine[b],))
        rest = own[:a] + own[a + 1 :]
        for slot in range(len(mine)):  # with a rule for names that the array has not
            low = slot if slot < a else slot + 1
            first = mine[low - 1] + 1 if low else 0
            last = mine[low] if low < len(mine) else len(state.entries)
            if slot != a and last > first:
                after = (*rest[:slot], own[a], *rest[slot:])
                yield Edit(Kind.SWAP, i, None, after, state.names, range(first, last))


def removed(state: State) -> Iterator[Edit]:
    """The table without one rule of the array."""
    for a, i in enumerate(state.mine):
        after = state.own[:a] + state.own[a + 1 :]
        yield Edit(Kind.REMOVE, i, None, after, state.names)


def other_axes(state: State, space: Space) -> Iterator[Edit]:
    """One rule of the array with another right side."""
    own, targets = state.own, space.of_name(state.names)
    for a, i in enumerate(state.mine):
        old, wanted = own[a], targets[own[a].logical]
        for target in dict.fromkeys((*wanted, *space.idle)):
            new = _rule(old.logical, target)
            if new != old:
                after = (*own[:a], new, *own[a + 1 :])
                typo = misspelt(old.axes, new.axes, space.axes)
                idle = target not in wanted
                yield Edit(Kind.AXES, i, new, after, state.names, typo=typo, idle=idle)


@lru_cache(maxsize=4096)
def _rule(name: str, target: Rule) -> Rule:
    return Rule(name, target.axes, False, target.free)


def misspelt(old: tuple[str, ...], new: tuple[str, ...], axes: tuple[str, ...]) -> bool:
    """Whether axes that the mesh lacks are replaced by the nearest ones, nothing else."""
    if len(old) != len(new) or old == new or not axes:
        return False
    for before, after in zip(old, new, strict=True):
        if before != after and (before in axes or near(before, axes) != after):
            return False
    return True


@lru_cache(maxsize=1024)
def near(name: str, known: tuple[str, ...]) -> str | None:
    """The known name nearest in spelling, or None; stored."""
    return nearest(name, known)


def added(state: State, space: Space) -> Iterator[Edit]:
    """The table with one more rule for a name of the array."""
    own, mine, count = state.own, state.mine, len(state.entries)
    for name, targets in space.of_name(state.names).items():
        for target in targets:
            rule = _rule(name, target)
            for slot in range(len(own), -1, -1):
                after = (*own[:slot], rule, *own[slot:])
                gap = _gap(mine, slot, count)[::-1]
                yield Edit(Kind.ADD, None, rule, after, state.names, gap)


def renamed_rules(state: State, space: Space) -> Iterator[Edit]:
    """One rule, for any name, made a rule for a name of the array."""
    own, mine = state.own, state.mine
    names = list(dict.fromkeys(n for n in state.names if isinstance(n, str)))
    unknown = tuple(n for n in names if n not in state.by_name)
    for i, old in enumerate(state.entries):
        if old.axes and space.useless.issuperset(old.axes):
            continue
        close = near(old.logical, unknown) if old.logical not in space.known else None
        slot = bisect_left(mine, i)
        rest = own[slot + 1 :] if old.logical in names else own[slot:]
        for name in names:
            if name != old.logical:
                new = Rule(name, old.axes, old.nested, old.free)
                after, typo = (*own[:slot], new, *rest), name == close
                yield Edit(Kind.RULE_NAME, i, name, after, state.names, typo=typo)


def renamed_arrays(state: State, space: Space) -> Iterator[Edit]:
    """One dimension of the array under a name that the table knows, or without one."""
    table, nnx = tuple(state.by_name), space.dialect is Dialect.NNX
    pool: dict[str | None, None] = dict.fromkeys(table)
    if nnx:  # an unmatched name is taken for a mesh axis
        pool |= dict.fromkeys(space.axes)
    for d, old in enumerate(state.names):
        close = None
        if isinstance(old, str) and old not in state.by_name:
            close = near(old, table)
        for name in (*pool, None):
            # Only in nnx may two dimensions have the same name.
            if name == old or (name in state.names and name is not None and not nnx):
                continue
            names = (*state.names[:d], name, *state.names[d + 1 :])
            own = tuple(state.entries[i] for i in state.indices(names))
            typo = name is not None and name == close
            yield Edit(Kind.ARRAY_NAME, d, name, own, names, typo=typo)


def resized(
    own: Entries, names: Names, shape: tuple[int, ...], spec: Spec, mesh: MeshSpec
) -> Iterator[Edit]:
    """The nearest sizes that divide in place of one that does not, where it is only
    one.
    """
    if any(a not in mesh.shape for a in spec.axes):
        return
    parts = [math.prod(mesh.shape[a] for a in axes) for axes in spec.dims]
    wrong = [d for d, count in enumerate(parts) if shape[d] % count]
    if len(wrong) == 1:
        d = wrong[0]
        low = shape[d] - shape[d] % parts[d]
        # The nearest first; of two as near the larger, which loses nothing.
        for new in sorted((low, low + parts[d]), key=lambda s: (abs(s - shape[d]), -s)):
            if new:
                yield Edit(Kind.SIZE, d, new, own, names)


def subsets(axes: tuple[str, ...], most: int) -> Iterator[tuple[str, ...]]:
    for count in range(1, min(most, len(axes)) + 1):
        yield from itertools.combinations(axes, count)


def tier(edit: Edit) -> int:
    """0: corrects a misspelt name; 1: changes the table or a size; 2: gives another
    name.
    """
    if edit.typo:
        return 0
    return 2 if edit.idle or edit.kind in (Kind.RULE_NAME, Kind.ARRAY_NAME) else 1


def rank(edit: Edit) -> tuple:
    many = len(edit.target.axes) if isinstance(edit.target, Rule) else 0
    return (tier(edit), many > 1, edit.kind)


def same_but_place(edit: Edit, spec: Spec) -> tuple:
    """The same for edits that differ only in a place, of which one is enough."""
    if edit.kind is Kind.SWAP:
        return edit.kind, spec
    if edit.kind in (Kind.MOVE, Kind.ADD):
        return edit.kind, edit.subject, edit.target, spec
    return edit.kind, edit.subject, edit.target


class Group:
    """The arrays of one signature: same names, shape and type, so the same spec.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> Group(audit([("a", (8,), "mlp")], [("mlp", "x")], "x=2").rows[0]).bytes
    16
    """

    def __init__(self, row: Any):
        self.names, self.shape, self.dtype = row.names, row.shape, row.dtype
        self.spec: Spec | None = row.spec
        self.broken = row.layout is None
        whole = size_in_bytes(math.prod(row.shape), row.dtype)
        self.bytes = whole if row.layout is None else row.layout.bytes_per_device
        self.paths: list[str] = []


class Arrays:
    """The arrays of an audit's rows that a table resolves, by the names that they have.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> found = audit([("a", (8,), "mlp"), ("b", (8,), "mlp")], [("mlp", "x")], "x=2").arrays
    >>> [group.paths for group in found.of(["mlp"])]
    [['a', 'b']]
    """

    def __init__(self, rows: Iterable[Any] = ()):
        self.groups: dict[Any, Group] = {}
        self.by_name: dict[str, list[Group]] = {}
        self.parameters: dict[str, str] = {}  # of moments, by their paths
        for row in rows:
            if row.partner is not None:
                self.parameters[row.path] = row.partner
            if row.names is None or row.spec_wins:
                continue
            key = (row.names, row.shape, row.dtype)
            if key not in self.groups:
                self.groups[key] = group = Group(row)
                for name in set(row.names):
                    if isinstance(name, str):
                        self.by_name.setdefault(name, []).append(group)
            self.groups[key].paths.append(row.path)

    def of(self, names: Iterable[str]) -> list[Group]:
        """The groups that have one of these names."""
        found = {id(g): g for name in names for g in self.by_name.get(name, ())}
        return list(found.values())
