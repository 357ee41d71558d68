"""The search for remedies: each edit is made, the array is resolved again, and what
gives the wish is kept; then the other arrays that the edit may change are resolved, too.

An edit with which another array can no longer be laid out is left out. Pairs of edits
are tried only where no single one will do. `rule_remedies.py` has the edits of tables
of names, `path_remedies.py` those of tables of paths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from shardviz.axis_rules.matching import Names
from shardviz.axis_rules.path_matching import fits, required
from shardviz.axis_rules.remedies import (
    Kind,
    NoRemedy,
    Remedies,
    Remedy,
    Shape,
    Step,
    Wish,
)
from shardviz.axis_rules.rules import Dialect, PathRule, Rule, near
from shardviz.base.array_spec import size_in_bytes
from shardviz.base.errors import RuleError, ShardvizError
from shardviz.base.layout import Layout, lay_out_parsed
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

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


class Arrays:
    """The rows of an audit that its table splits, those together that it splits alike.

    Each group has arrays of the same names or path, shape and type.

    >>> from shardviz.axis_rules.audit import audit
    >>> found = audit([("a", (8,), "mlp"), ("b", (8,), "mlp")], [("mlp", "x")], "x=2")
    >>> [[row.path for row in group] for group in found.arrays.of({"mlp"})]
    [['a', 'b']]
    """

    def __init__(self, rows: Iterable[Any] = ()):
        self.groups: dict[
            Any, list[Any]
        ] = {}  # by path where the table is one of paths
        self.unnamed: list[Any] = []
        self._parameters: dict[str, str] = {}  # of moments, by their paths
        self._matched: dict[tuple[str, Dialect], frozenset[str] | None] = {}
        for row in rows:
            if row.partner is not None:
                self._parameters[row.path] = row.partner
            if row.lacks_names:
                self.unnamed.append(row)
                continue
            # What cannot be laid out whatever the table says is no affair of the table.
            if row.spec_wins or (row.spec is None and row.by_path and row.by_path.spec):
                continue
            if row.by_path:
                self.groups[row.path] = [row]
            elif row.names is not None:
                key = (row.names, row.shape, row.dtype)
                self.groups.setdefault(key, []).append(row)

    def of(self, names: set[str]) -> list[list[Any]]:
        """The groups that have one of these logical names."""
        return [g for g in self.groups.values() if not names.isdisjoint(g[0].names)]

    @cached_property
    def names(self) -> frozenset[Any]:
        """All their logical names."""
        names: set[Any] = set()
        for group in self.groups.values():
            names.update(group[0].names or ())
        return frozenset(names)

    def kind(self, path: str) -> str:
        """The same for an array of other layers, and for the moments of a parameter."""
        return _without_numbers(self._parameters.get(path, path))

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


@lru_cache(maxsize=1 << 14)  # each remedy looks at the paths of all arrays that change
def _without_numbers(path: str) -> str:
    return re.sub(r"[0-9]+", "0", path)


class RemedySearch:
    """A search for edits of a table that split `leaf` as wanted, among all `arrays`.

    Args:
        leaf: the array.
        rules: the table.
        mesh: the mesh, or None.
        dialect: who reads the table.
        arrays: all known arrays that the table splits.
    """

    def __init__(
        self,
        leaf: Leaf,
        rules: Any,
        mesh: MeshSpec | None,
        dialect: Dialect,
        arrays: Arrays | None = None,
    ) -> None:
        self.leaf, self.rules, self.mesh, self.dialect = leaf, rules, mesh, dialect
        self.arrays = arrays or Arrays()
        self.start = State(rules.entries, leaf.names, leaf.shape)
        self._layouts: dict[Any, Layout | str | None] = {}
        #: The first array that an edit broke.
        self._broken: NoRemedy | None = None
        self._checked = 0

    # What a kind of table does in its own way.

    def table(self, entries: tuple[Any, ...]) -> Any:
        """The table of these lines."""
        raise NotImplementedError

    def edits(self, state: State, wish: Wish, few: bool = False) -> Iterator[Step]:
        """The edits that may give the wish; `few` leaves out places with one effect."""
        raise NotImplementedError

    def resolve(self, state: State) -> Spec | None:
        """How the array is split, or None where that raises an error."""
        raise NotImplementedError

    def resolved(self, state: State, lines: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Groups that changed lines may be for, and their specs or what is raised."""
        raise NotImplementedError

    @property
    def alike(self) -> Sequence[Any]:
        """The rows of arrays that are renamed or resized with this one."""
        return ()

    # The search itself.

    @cached_property
    def now(self) -> Spec | None:
        """How the table splits the array, or None where it cannot be resolved."""
        return self.resolve(self.start)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that split something; without a mesh those of the table."""
        if self.mesh is not None:
            return tuple(a for a, size in self.mesh.shape.items() if size > 1)
        axes: dict[str, None] = {}
        for line in self.start.entries:
            axes |= dict.fromkeys(line.axes)
        return tuple(axes)

    def find(self, want: Any, most: int = MOST, pairs: bool = True) -> Remedies:
        """The remedies, at most so many.

        Args:
            want: as `Wish.of` reads it.
            pairs: whether those of two edits are tried where none of one exists.
        """
        leaf = self.leaf
        wish = Wish.of(want, leaf.names, self.mesh, self.dialect, leaf.path)
        # Where nothing is to change or can be, the edits are not tried.
        why = self._why_not(wish)
        if why is not None:
            return Remedies((), wish, why)
        self._broken, self._checked = None, 0
        remedies = self._best([(self.start, ())], wish, few=False)
        if not remedies:
            why = self._too_small(wish)
            # Under a table of paths, a pattern for the path alone does what two edits
            # could.
            if why is None and pairs and not self.dialect.by_path:
                remedies = self._best(self._firsts(wish), wish, few=True)
        if not remedies:
            return Remedies((), wish, why or self._broken or NoRemedy("no edit", wish))
        return Remedies(tuple(remedies[:most]), wish)

    def _best(
        self, begun: Iterable[tuple[State, tuple[Step, ...]]], wish: Wish, few: bool
    ) -> list[Remedy]:
        """What one edit more does, the best first: of those alike in effect, one."""
        ranked: dict[Hashable, tuple[Any, Remedy]] = {}
        for state, steps in begun:
            for step in self.edits(state, wish, few):
                if self._checked > MOST_CHECKED:
                    break
                after = state.apply(step)
                spec = self.resolve(after)
                key = *map(_kind_of, steps), _kind_of(step), spec, after.shape
                if key in ranked or not self.meets(spec, wish, after.shape):
                    continue
                remedy = self._remedy((*steps, step), after, spec, wish)
                if remedy is not None:
                    ranked[key] = (self._rank(remedy, len(ranked)), remedy)
        return [remedy for _, remedy in sorted(ranked.values(), key=lambda r: r[0])]

    def _firsts(self, wish: Wish) -> list[tuple[State, tuple[Step, ...]]]:
        """Edits after which a second one is tried: those that lead nearest to the wish."""
        firsts: dict[Hashable, tuple[int, State, tuple[Step, ...]]] = {}
        for step in self.edits(self.start, wish, few=True):
            after = self.start.apply(step)
            spec = self.resolve(after)
            if spec is None or len(spec.dims) != len(after.names):
                continue
            distance = 0
            if wish.spec is not None:
                pairs = zip(spec.dims, wish.spec.dims, strict=True)
                distance = sum(mine != wanted for mine, wanted in pairs)
            layout = self.layout(after.shape, self.leaf.dtype, spec)
            if wish.limit is not None and isinstance(layout, Layout):
                distance = layout.bytes_per_device
            key = _kind_of(step), step.place, spec
            firsts.setdefault(key, (distance, after, (step,)))
        nearest_first = sorted(firsts.values(), key=lambda first: first[0])
        return [(state, steps) for _, state, steps in nearest_first[:MOST_FIRST]]

    def meets(self, spec: Spec | None, wish: Wish, shape: Shape) -> bool:
        """Whether a spec can be laid out and is what is wanted."""
        if spec is None or len(spec.dims) > len(self.leaf.names):
            return False
        layout = self.layout(shape, self.leaf.dtype, spec)
        return not isinstance(layout, str) and wish.met(spec, layout, self.mesh)

    def _rank(self, remedy: Remedy, number: int) -> tuple:
        """What is smaller for the better of two remedies."""
        step, others = remedy.steps[-1], 0
        if not step.typo:  # a correction is meant for all the arrays that it reaches
            mine = self.arrays.kind(self.leaf.path or "")
            others = sum(self.arrays.kind(path) != mine for path in remedy.others)
        # Of edits alike in all else, the one that saves most.
        saved = remedy.bytes_saved or 0
        if step.kind is Kind.SIZE:  # a smaller array saves what nobody asked for
            saved = 0
        # Several axes at once are more than most people want.
        many = len(getattr(step.new, "axes", ())) > 1
        kind, lost = step.kind, self._unsplit(remedy.spec)
        # A pattern may be meant for arrays that nobody named: better a new one.
        if kind is Kind.AXES and isinstance(step.new, PathRule):
            kind = Kind.REMOVE
        # A name that other arrays have is more likely meant than one for activations.
        new_here = kind is Kind.ARRAY_NAME and step.new not in self.arrays.names
        return (not step.typo, many, lost, others, kind, new_here, -saved, number)

    def _unsplit(self, spec: Spec) -> int:
        """How many dimensions that were split no longer are."""
        now, leaf = self.now, self.leaf
        # A split that is refused is none, so nothing is lost with it.
        if now is None or isinstance(self.layout(leaf.shape, leaf.dtype, now), str):
            return 0
        pairs = zip(now.dims, spec.padded(now.rank), strict=False)
        return sum(bool(before) and not after for before, after in pairs)

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
        self, steps: tuple[Step, ...], after: State, spec: Any, wish: Wish
    ) -> Remedy | None:
        """The remedy of edits one after the other, or None where they break an array."""
        self._checked += 1
        lines: list[Any] = []
        alike: Sequence[Any] = ()
        for step in steps:
            if step.kind in (Kind.ARRAY_NAME, Kind.SIZE):
                alike = self.alike
            elif step.subject is not None:
                lines.append(step.rules[step.subject])
            if isinstance(step.new, (Rule, PathRule)):
                lines.append(step.new)
        saved = self._saves(spec, after.shape)
        everywhere, others = saved or 0, [row.path for row in alike]
        for row in alike:
            layout = self.layout(after.shape, row.dtype, spec)
            if isinstance(layout, Layout):
                everywhere += _held(row) - layout.bytes_per_device
        edited = {self.leaf.path, *others}
        if lines:  # else the table stays, so no other array changes
            for group, other in self.resolved(after, lines):
                paths = [row.path for row in group if row.path not in edited]
                layout = self._changed(group[0], other)
                if not paths or layout is None:
                    continue
                if isinstance(layout, str) and group[0].layout is not None:
                    self._broken = self._broken or NoRemedy(
                        "breaks others", wish, error=layout, steps=steps, path=paths[0]
                    )
                    return None
                if isinstance(layout, Layout):
                    each = _held(group[0]) - layout.bytes_per_device
                    everywhere += each * len(paths)
                others += paths
        table = self.rules
        if lines:
            table = self.table(after.entries)
        known = None
        if saved is not None:
            known = everywhere
        renamed = tuple(row.path for row in alike)
        array = (after.names, after.shape, spec)
        return Remedy(steps, table, *array, saved, known, tuple(others), renamed)

    def _changed(self, row: Any, spec: Any) -> Layout | str | None:
        """The new layout of another array, or what is raised; None where it stays."""
        if spec == row.spec:
            return None
        if not isinstance(spec, Spec):
            # It may be that it could not be resolved before, either.
            return None if row.spec is None else str(spec)
        layout = self.layout(row.shape, row.dtype, spec)
        # P('x', None) is as good as P('x'), if that could be laid out.
        same = row.spec is not None and spec.equivalent(row.spec)
        if same and (row.layout is None) == isinstance(layout, str):
            return None
        return layout

    def step(self, state: State, kind: Kind, *subject: Any, **more: Any) -> Step:
        """An edit of a state, with all that its sentence needs."""
        if kind in (Kind.ARRAY_NAME, Kind.SIZE):
            more["alike"] = len(self.alike)
        return Step(kind, *subject, rules=state.entries, path=self.leaf.path, **more)

    def sizes(self, state: State) -> Iterator[Step]:
        """The nearest sizes that divide in place of the one that does not."""
        spec, shape = self.resolve(state), state.shape
        if spec is None or shape is None or self.mesh is None:
            return
        if len(spec.dims) > len(shape) or not set(spec.axes) <= set(self.mesh.shape):
            return
        parts = []
        for axes in spec.dims:
            parts.append(math.prod(self.mesh.shape[a] for a in axes))
        wrong = [d for d, count in enumerate(parts) if shape[d] % count]
        if len(wrong) != 1:
            return
        d = wrong[0]
        low = shape[d] - shape[d] % parts[d]
        # The nearest first; of two as near the larger, which loses nothing.
        for new in sorted((low, low + parts[d]), key=lambda s: (abs(s - shape[d]), -s)):
            if new:
                more = {"old": shape[d], "parts": parts[d]}
                yield self.step(state, Kind.SIZE, d, 0, new, **more)

    def layout(self, shape: Shape, dtype: str, spec: Spec) -> Layout | str | None:
        """The Layout, what refuses it, or None where too little is known."""
        key = (shape, dtype, spec)
        if key not in self._layouts:
            layout: Layout | str | None = None
            try:
                if self.mesh is None:
                    # Any mesh with these axes shows whether one of them is used twice.
                    names = tuple(dict.fromkeys(spec.axes))
                    Spec(spec.dims).check(MeshSpec(names, (1,) * len(names)))
                elif shape is None:
                    spec.check(self.mesh)
                else:
                    layout = lay_out_parsed(shape, spec, self.mesh, dtype)
            except ShardvizError as error:
                layout = str(error)
            self._layouts[key] = layout
        return self._layouts[key]

    def _saves(self, spec: Spec, shape: Shape) -> int | None:
        """How many bytes per device the array takes less, split so and of that shape."""
        sizes, dtype = self.leaf.shape, self.leaf.dtype
        after = self.layout(shape, dtype, spec)
        if sizes is None or not isinstance(after, Layout):
            return None
        before = size_in_bytes(math.prod(sizes), dtype)
        if self.now is not None:
            layout = self.layout(sizes, dtype, self.now)
            if isinstance(layout, Layout):
                before = layout.bytes_per_device
        return before - after.bytes_per_device

    def _why_not(self, wish: Wish) -> NoRemedy | None:
        """Why no edit is looked for: it is so already, or no table can ever do it."""
        spec, leaf = self.now, self.leaf
        if spec is not None and self.meets(spec, wish, leaf.shape):
            layout = self.layout(leaf.shape, leaf.dtype, spec)
            size = None
            if isinstance(layout, Layout):
                size = layout.bytes_per_device
            return NoRemedy("split already", wish, spec, size)
        if wish.spec is not None:
            refused = self.layout(None, leaf.dtype, wish.spec)
            if isinstance(refused, str):
                return NoRemedy("no layout", wish, error=refused)
        elif wish.limit is not None and (self.mesh is None or leaf.shape is None):
            return NoRemedy("bytes unknown", wish)
        elif not self.axes:
            return NoRemedy("no axes", wish)
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
        # By shape of the shard: which axes made it does not change its bytes.
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


def _kind_of(step: Step) -> Hashable:
    """Equal for edits of which one is enough, where they split the array alike."""
    # How a new pattern is written does not matter, only the axes that it leads to.
    return step.kind, step.subject, getattr(step.new, "axes", step.new)


def _held(row: Any) -> int:
    """Bytes per device; what cannot be laid out counts as unsplit, for a repair saves."""
    if row.layout is None:
        return row.array.bytes
    return row.layout.bytes_per_device
