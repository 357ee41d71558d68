"""The search for remedies: each edit is made, the array is resolved again, and what
gives the wish is kept; then the other arrays that the edit may change are resolved, too.

An edit with which another array can no longer be laid out is left out. Pairs of edits
are tried only where no single one will do. `rule_remedies.py` has the edits of tables
of names, `path_remedies.py` those of tables of paths.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from shardviz.core.errors import RuleError, ShardvizError
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout, lay_out_parsed
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.matching import Names
from shardviz.core.layout.rules.path_matching import fits, required
from shardviz.core.layout.rules.remedies import (
    Kind,
    NoRemedy,
    Remedies,
    Remedy,
    Shape,
    Step,
    Steps,
)
from shardviz.core.layout.rules.rules import (
    Dialect,
    PathRule,
    PathRules,
    Rule,
    Rules,
    near,
)
from shardviz.core.layout.rules.wishes import Wish

MOST = 8  # remedies
MOST_CHECKED = 200  # edits that give the wish, of which the effect on others is found
MOST_FIRST = 20  # edits after which a second one is tried


class Leaf(NamedTuple):
    """The array that somebody wants to be split otherwise; None for what is not known."""

    path: str | None
    names: Names
    shape: Shape
    dtype: str = "float32"


class State(NamedTuple):
    """The lines of a table, and the names and the shape of the array under it."""

    entries: tuple[Any, ...]
    names: Names
    shape: Shape

    def apply(self, step: Step) -> State:
        """The table and the array with an edit."""
        at: Any = step.subject
        new: Any = step.new
        if step.kind is Kind.ARRAY_NAME:
            return self._replace(names=(*self.names[:at], new, *self.names[at + 1 :]))
        if step.kind is Kind.SIZE:
            assert self.shape is not None
            return self._replace(shape=(*self.shape[:at], new, *self.shape[at + 1 :]))
        lines = list(self.entries)
        if step.kind is Kind.ADD:
            lines.insert(step.place, new)
        elif step.kind is Kind.MOVE:
            lines.insert(step.place, lines.pop(at))
        elif step.kind is Kind.REMOVE:
            del lines[at]
        else:
            lines[at] = new
        return self._replace(entries=tuple(lines))

    def changed_lines(self, step: Step) -> list[Any]:
        """The lines that an edit changes, as they were and as they become."""
        if step.kind in (Kind.ARRAY_NAME, Kind.SIZE):
            return []
        lines = []
        if step.subject is not None:
            lines.append(self.entries[step.subject])
        if step.new is not None:
            lines.append(step.new)
        return lines


class Group:
    """Arrays that the table always splits alike: same names or path, shape and type.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> Group(audit([("a", (8,), "mlp")], [("mlp", "x")], "x=2").rows[0]).bytes
    16
    """

    def __init__(self, row: Any):
        self.names, self.shape, self.dtype = row.names, row.shape, row.dtype
        self.spec: Spec | None = row.spec
        self.broken = row.layout is None
        # What cannot be laid out counts as unsplit, so that a repair saves bytes.
        self.bytes = size_in_bytes(math.prod(row.shape), row.dtype)
        if row.layout is not None:
            self.bytes = row.layout.bytes_per_device
        self.paths: list[str] = []


class Arrays:
    """The arrays of an audit's rows that its table splits.

    >>> from shardviz.core.layout.trees.audit import audit
    >>> found = audit([("a", (8,), "mlp"), ("b", (8,), "mlp")], [("mlp", "x")], "x=2")
    >>> [group.paths for group in found.arrays.of(["mlp"])]
    [['a', 'b']]
    """

    def __init__(self, rows: Iterable[Any] = ()):
        self.groups: dict[Any, Group] = {}  # by path where the table is one of paths
        self.by_name: dict[str, list[Group]] = {}
        self._parameters: dict[str, str] = {}  # of moments, by their paths
        self._kinds: dict[str, str] = {}
        self._matched: dict[tuple[str, Dialect], frozenset[str] | None] = {}
        for row in rows:
            if row.partner is not None:
                self._parameters[row.path] = row.partner
            # What cannot be laid out whatever the table says is no affair of the table.
            if row.spec_wins or (row.spec is None and row.by_path and row.by_path.spec):
                continue
            if row.by_path:
                self.groups[row.path] = Group(row)
                self.groups[row.path].paths.append(row.path)
            elif row.names is not None:
                self._add(row)

    def _add(self, row: Any) -> None:
        key = (row.names, row.shape, row.dtype)
        if key not in self.groups:
            self.groups[key] = group = Group(row)
            for name in set(row.names):
                if isinstance(name, str):
                    self.by_name.setdefault(name, []).append(group)
        self.groups[key].paths.append(row.path)

    def of(self, names: Iterable[str]) -> list[Group]:
        """The groups that have one of these logical names."""
        groups: dict[int, Group] = {}  # a group stands under each of its names
        for name in names:
            for group in self.by_name.get(name, ()):
                groups[id(group)] = group
        return list(groups.values())

    def kind(self, path: str) -> str:
        """The same for an array of other layers, and for the moments of a parameter."""
        if path not in self._kinds:
            parameter = self._parameters.get(path, path)
            self._kinds[path] = re.sub(r"[0-9]+", "0", parameter)
        return self._kinds[path]

    def matched(self, pattern: str, dialect: Dialect) -> frozenset[str] | None:
        """The paths that a pattern matches; None where it is no regular expression."""
        key = (pattern, dialect)
        if key not in self._matched:
            paths: list[str] = []
            try:
                if required(pattern) in self._text:
                    paths = [p for p in self.groups if fits(pattern, p, dialect)]
                self._matched[key] = frozenset(paths)
            except RuleError:
                self._matched[key] = None
        return self._matched[key]

    @cached_property
    def _text(self) -> str:
        """All paths: one search through it says of most patterns that none matches."""
        return "\n".join(map(str, self.groups))


class Broken(NamedTuple):
    """An array that an edit breaks, and what is raised then."""

    steps: tuple[Step, ...]
    path: str
    error: str


@dataclass
class Search:
    """A search for edits of a table that split `leaf` as wanted, among all `arrays`."""

    leaf: Leaf
    rules: Any
    mesh: MeshSpec | None
    dialect: Dialect
    arrays: Arrays = field(default_factory=Arrays)

    def __post_init__(self) -> None:
        self._layouts: dict[Any, Layout | str | None] = {}
        self._broken: Broken | None = None
        self._checked = 0

    def edits(self, state: State, wish: Wish, few: bool = False) -> Iterator[Step]:
        """The edits that may give the wish; `few` leaves out places with one effect."""
        raise NotImplementedError

    def resolve(self, state: State) -> Spec | None:
        """How the array is split, or None where that raises an error."""
        raise NotImplementedError

    def resolved(self, state: State, lines: list[Any]) -> Iterator[tuple[Group, Any]]:
        """The arrays that changed lines may be for, and their specs or what is raised."""
        raise NotImplementedError

    def same_effect(self, step: Step, after: State, spec: Spec) -> Hashable:
        """Equal for edits of which one is enough."""
        raise NotImplementedError

    def table(self, state: State) -> Rules | PathRules:
        """The table of a state."""
        raise NotImplementedError

    @cached_property
    def start(self) -> State:
        """The table and the array as they are."""
        return State(self.rules.entries, self.leaf.names, self.leaf.shape)

    @cached_property
    def now(self) -> Spec | None:
        """How the table splits the array, or None where it cannot be resolved."""
        return self.resolve(self.start)

    def find(self, want: Any, most: int = MOST, pairs: bool = True) -> Remedies:
        """The remedies, at most so many.

        Args:
            want: as `Wish.of` reads it.
            pairs: whether those of two edits are tried where none of one exists.
        """
        path = self.leaf.path
        wish = Wish.of(want, self.leaf.names, self.mesh, self.dialect, path)
        why = self._done(wish) or self._impossible(wish)
        if why is not None:
            return Remedies((), wish, path, why)
        self._broken, self._checked = None, 0
        remedies = self._singles(wish)
        if not remedies:
            why = self._too_small(wish)
            # Under a table of paths, a pattern for the path alone does what two edits
            # could.
            if why is None and pairs and not self.dialect.by_path:
                remedies = self._pairs(wish)
        if not remedies:
            return Remedies((), wish, path, why or self._why_none(wish))
        return Remedies(tuple(remedies[:most]), wish, path)

    def _singles(self, wish: Wish) -> list[Remedy]:
        ranked: dict[Any, tuple[Any, Remedy]] = {}
        for number, step in enumerate(self.edits(self.start, wish)):
            if self._checked > MOST_CHECKED:
                break
            after = self.start.apply(step)
            spec = self._gives(after, wish)
            if spec is None:
                continue
            key = self.same_effect(step, after, spec)
            if key in ranked:
                continue
            remedy = self._remedy((step,), after, spec)
            if remedy is not None:
                ranked[key] = (self._rank(remedy, number), remedy)
        return [remedy for _, remedy in sorted(ranked.values(), key=lambda r: r[0])]

    def _pairs(self, wish: Wish) -> list[Remedy]:
        """Remedies of two edits, of which the first leads nearest to the wish."""
        firsts: dict[Any, tuple[int, Step, State]] = {}
        for first in self.edits(self.start, wish, few=True):
            after = self.start.apply(first)
            spec = self.resolve(after)
            if spec is None or len(spec.dims) != len(after.names):
                continue
            key = self.same_effect(first, after, spec)
            layout = self.layout(after.shape, self.leaf.dtype, spec)
            sound = layout if isinstance(layout, Layout) else None
            firsts.setdefault(key, (wish.distance(spec, sound), first, after))
        nearest_first = sorted(firsts.values(), key=lambda f: f[0])
        ranked: dict[Any, tuple[Any, Remedy]] = {}
        for _, first, middle in nearest_first[:MOST_FIRST]:
            for second in self.edits(middle, wish, few=True):
                if self._checked > MOST_CHECKED:
                    break
                after = middle.apply(second)
                spec = self._gives(after, wish)
                key = (first.kind, first.new, second.kind, spec)
                if spec is None or key in ranked:
                    continue
                remedy = self._remedy((first, second), after, spec)
                if remedy is not None:
                    ranked[key] = (self._rank(remedy, len(ranked)), remedy)
        return [remedy for _, remedy in sorted(ranked.values(), key=lambda r: r[0])]

    def _gives(self, after: State, wish: Wish) -> Spec | None:
        """The spec of the array in a state, where that is what is wanted; else None."""
        spec = self.resolve(after)
        if not self.meets(spec, wish, after.shape):
            return None
        return spec

    def meets(self, spec: Spec | None, wish: Wish, shape: Shape) -> bool:
        """Whether a spec can be laid out and is what is wanted."""
        if spec is None:
            return False
        layout = self.layout(shape, self.leaf.dtype, spec)
        return not isinstance(layout, str) and wish.met(spec, layout, self.mesh)

    def _rank(self, remedy: Remedy, number: int) -> tuple:
        """What is smaller for the better of two remedies."""
        assert isinstance(remedy.change, Steps)
        step = remedy.change.steps[-1]
        typo, many = self._is_correction(step), False
        if isinstance(step.new, (Rule, PathRule)):
            # Several axes at once, where the table does not have that already.
            known = [line.axes for line in self.start.entries]
            many = len(step.new.axes) > 1 and step.new.axes not in known
        others = 0
        if not typo:  # a correction is meant for all the arrays that it reaches
            mine = self.arrays.kind(self.leaf.path or "")
            others = sum(self.arrays.kind(path) != mine for path in remedy.others)
        saved = remedy.bytes_saved or 0
        if step.kind is Kind.SIZE:  # a smaller array saves what nobody asked for
            saved = 0
        lost = self._unsplit(remedy.spec)
        return (not typo, many, lost, others, self.order(step), -saved, number)

    def order(self, step: Step) -> int:
        """The place of an edit among those that are as good."""
        return step.kind

    def _is_correction(self, step: Step) -> bool:
        """Whether an edit corrects a mistake in spelling and nothing else."""
        if step.kind in (Kind.RULE_NAME, Kind.ARRAY_NAME):
            return step.kind is Kind.RULE_NAME or step.old is not None
        if step.kind is not Kind.AXES or self.mesh is None:
            return False
        assert isinstance(step.new, (Rule, PathRule))
        old = step.rules[step.subject or 0].axes
        return old != step.new.axes == self.corrected(old)

    def corrected(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axes with the nearest one of the mesh in place of each that it lacks."""
        if self.mesh is None:
            return axes
        known = self.mesh.axis_names
        corrected = []
        for axis in axes:
            if axis not in known:
                axis = near(axis, known) or axis
            corrected.append(axis)
        return tuple(corrected)

    def _remedy(
        self, steps: tuple[Step, ...], after: State, spec: Spec
    ) -> Remedy | None:
        """The remedy of edits one after the other, or None where they break an array."""
        self._checked += 1
        lines, state, alike = [], self.start, {}
        for step in steps:
            lines += state.changed_lines(step)
            state = state.apply(step)
            if step.kind in (Kind.ARRAY_NAME, Kind.SIZE):
                alike = self.alike()
        effect = self._effect(steps, after, lines, {self.leaf.path, *alike})
        if effect is None:
            return None
        others, saved = effect
        here = self._saves(spec, after.shape, self.leaf.dtype)
        everywhere = None
        if here is not None:
            everywhere = here + saved
            for dtype in alike.values():
                everywhere += self._saves(spec, after.shape, dtype) or 0
        return Remedy(
            self._change(steps, spec, len(alike)),
            self.table(after) if lines else self.rules,
            after.names,
            after.shape,
            spec,
            here,
            everywhere,
            (*alike, *others),
            tuple(alike),
        )

    def alike(self) -> dict[str, str]:
        """The arrays that are renamed or resized with this one: path to type."""
        return {}

    def _effect(
        self,
        steps: tuple[Step, ...],
        after: State,
        lines: list[Any],
        edited: set[str | None],
    ) -> tuple[list[str], int] | None:
        """The other arrays that change, and the bytes per device that they save."""
        if not lines:  # the table stays, so no other array changes
            return [], 0
        others: list[str] = []
        saved = 0
        for group, spec in self.resolved(after, lines):
            paths = [p for p in group.paths if p not in edited]
            if not paths or spec == group.spec:
                continue
            layout = str(spec)
            if isinstance(spec, Spec):
                layout = self.layout(group.shape, group.dtype, spec)
                # P('x', None) is as good as P('x'), if that could be laid out.
                same = group.spec is not None and spec.equivalent(group.spec)
                if same and group.broken == isinstance(layout, str):
                    continue
            if isinstance(layout, str) and not group.broken:
                self._broken = self._broken or Broken(steps, paths[0], layout)
                return None
            if not isinstance(spec, Spec) and group.spec is None:
                continue  # it could not be resolved before either
            if isinstance(layout, Layout):
                saved += (group.bytes - layout.bytes_per_device) * len(paths)
            others += paths
        return others, saved

    def _change(self, steps: tuple[Step, ...], spec: Spec | None, alike: int) -> Steps:
        """The edits as facts, with all that their sentences need."""
        state, made = self.start, []
        for step in steps:
            parts = 0
            if step.kind is Kind.SIZE and self.mesh is not None and spec is not None:
                parts = self._parts(spec.dims[step.subject])  # type: ignore[index]
            context = {"rules": state.entries, "path": self.leaf.path, "alike": alike}
            made.append(replace(step, parts=parts, **context))
            state = state.apply(step)
        return Steps(tuple(made))

    def sizes(self, state: State) -> Iterator[Step]:
        """The nearest sizes that divide in place of the one that does not."""
        spec, shape = self.resolve(state), state.shape
        if spec is None or shape is None or self.mesh is None:
            return
        if len(spec.dims) > len(shape) or not set(spec.axes) <= set(self.mesh.shape):
            return
        parts = [self._parts(axes) for axes in spec.dims]
        wrong = [d for d, count in enumerate(parts) if shape[d] % count]
        if len(wrong) != 1:
            return
        d = wrong[0]
        low = shape[d] - shape[d] % parts[d]
        # The nearest first; of two as near the larger, which loses nothing.
        for new in sorted((low, low + parts[d]), key=lambda s: (abs(s - shape[d]), -s)):
            if new:
                yield Step(Kind.SIZE, d, 0, new, old=shape[d])

    def _parts(self, axes: tuple[str, ...]) -> int:
        assert self.mesh is not None
        return math.prod(self.mesh.shape[a] for a in axes)

    def layout(self, shape: Shape, dtype: str, spec: Spec) -> Layout | str | None:
        """The Layout, what refuses it, or None where too little is known."""
        key = (shape, dtype, spec)
        if key not in self._layouts:
            self._layouts[key] = self._lay_out(shape, dtype, spec)
        return self._layouts[key]

    def _lay_out(self, shape: Shape, dtype: str, spec: Spec) -> Layout | str | None:
        try:
            if self.mesh is None:
                # Any mesh with these axes shows whether one of them is used twice.
                names = tuple(dict.fromkeys(spec.axes))
                return Spec(spec.dims).check(MeshSpec(names, (1,) * len(names)))
            if shape is None:
                return spec.check(self.mesh)
            return lay_out_parsed(shape, spec, self.mesh, dtype)
        except ShardvizError as error:
            return str(error)

    def _saves(self, spec: Spec, shape: Shape, dtype: str) -> int | None:
        """How many bytes per device the array takes less, split so and of that shape."""
        sizes = self.leaf.shape
        after = self.layout(shape, dtype, spec)
        if sizes is None or not isinstance(after, Layout):
            return None
        before = size_in_bytes(math.prod(sizes), dtype)
        if self.now is not None:
            layout = self.layout(sizes, dtype, self.now)
            if isinstance(layout, Layout):
                before = layout.bytes_per_device
        return before - after.bytes_per_device

    def _unsplit(self, spec: Spec) -> int:
        """How many dimensions that were split no longer are."""
        now = self.now
        if now is None:
            return 0
        # A split that is refused is none, so nothing is lost with it.
        if isinstance(self.layout(self.leaf.shape, self.leaf.dtype, now), str):
            return 0
        pairs = zip(now.dims, spec.padded(now.rank), strict=False)
        return sum(bool(before) and not after for before, after in pairs)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that split something; without a mesh those of the table."""
        if self.mesh is not None:
            return tuple(a for a, size in self.mesh.shape.items() if size > 1)
        axes = itertools.chain.from_iterable(r.axes for r in self.rules.entries)
        return tuple(dict.fromkeys(axes))

    def _done(self, wish: Wish) -> NoRemedy | None:
        """That there is nothing to change, where there is not."""
        spec, leaf = self.now, self.leaf
        if spec is None or not self.meets(spec, wish, leaf.shape):
            return None
        size = None
        layout = self.layout(leaf.shape, leaf.dtype, spec)
        if isinstance(layout, Layout):
            size = layout.bytes_per_device
        return NoRemedy("split already", wish, spec, size)

    def _impossible(self, wish: Wish) -> NoRemedy | None:
        """Why no table at all can give the wish, or None."""
        if wish.spec is not None:
            if wish.spec.marks and not self.dialect.by_path:
                return NoRemedy("unreduced", wish)
            refused = self.layout(None, self.leaf.dtype, wish.spec)
            if isinstance(refused, str):
                return NoRemedy("no layout", wish, error=refused)
            return None
        unknown = self.mesh is None or self.leaf.shape is None
        if wish.limit is not None and unknown:
            return NoRemedy("bytes unknown", wish)
        if not self.axes:
            return NoRemedy("no axes", wish, mesh=self.mesh)
        return None

    def _too_small(self, wish: Wish) -> NoRemedy | None:
        """Why no table can give the bytes per device while sizes stay; or None."""
        if wish.limit is None:
            return None
        least = min(size for size, _ in self.splits())
        if least <= wish.limit:
            return None
        return NoRemedy("too small", wish, bytes=least)

    def splits(self) -> list[tuple[int, Spec]]:
        """Ways to split the array, one per shape of a shard: its bytes, and few axes."""
        assert self.mesh is not None
        assert self.leaf.shape is not None
        shape = self.leaf.shape
        shards: dict[tuple[int, ...], tuple] = {shape: ((),) * len(shape)}
        for axis in self.axes:
            parts = self.mesh.shape[axis]
            for sizes, dims in list(shards.items()):
                for d, size in enumerate(sizes):
                    if size % parts == 0:
                        shard = (*sizes[:d], size // parts, *sizes[d + 1 :])
                        more = (*dims[:d], (*dims[d], axis), *dims[d + 1 :])
                        shards.setdefault(shard, more)
        splits = []
        for shard, dims in shards.items():
            size = size_in_bytes(math.prod(shard), self.leaf.dtype)
            splits.append((size, Spec(dims)))
        return splits

    def _why_none(self, wish: Wish) -> NoRemedy:
        """Why no edit that was tried gives what is wanted."""
        if self._broken is None:
            return self.why_no_edit(wish)
        steps, path, error = self._broken
        change = self._change(steps, None, 0)
        return NoRemedy("breaks others", wish, steps=change, path=path, error=error)

    def why_no_edit(self, wish: Wish) -> NoRemedy:
        """Why none of the edits gives what is wanted, where they break no array."""
        return NoRemedy("no edit", wish)


def subsets(axes: tuple[str, ...], most: int) -> Iterator[tuple[str, ...]]:
    """The axes one by one, then two and more together."""
    for count in range(1, min(most, len(axes)) + 1):
        yield from itertools.combinations(axes, count)
