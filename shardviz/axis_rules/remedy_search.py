"""RemedySearch: tries single edits of a rule table, and keeps those that help.

After each edit, the array is resolved again. If the result fulfils the request, all
other arrays that the edit can affect are resolved too; if one of them can no longer be
laid out, the edit is dropped. `rule_remedies.py` has the edits of Rules,
`path_remedies.py` those of PathRules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from shardviz.axis_rules.dialects import NameDialect, PathDialect
from shardviz.axis_rules.matching import Names
from shardviz.axis_rules.path_matching import fits, may_fit
from shardviz.axis_rules.remedies import (
    Action,
    AlreadySplit,
    BreaksOthers,
    BytesUnknown,
    BytesWish,
    MoveLine,
    NameDimension,
    NoAxes,
    NoEdit,
    NoLayout,
    NoRemedy,
    Remedies,
    Remedy,
    RemoveLine,
    RetargetLine,
    SpecWish,
    SplitWish,
    TableAction,
    TooSmall,
    UnsplitWish,
    Wish,
)
from shardviz.axis_rules.rules import PathRule, PathRules, Rule, Rules, near
from shardviz.base.array_spec import ArraySpec, size_in_bytes
from shardviz.base.axis_parts import group_size
from shardviz.base.errors import RuleError, ShardvizError
from shardviz.base.layout import Layout, lay_out_parsed
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

# Maximum number of remedies to return.
MOST = 8
# Maximum number of edits to check on the other arrays.
MOST_CHECKED = 200

Shape = tuple[int, ...] | None
LineT = TypeVar("LineT", Rule, PathRule)
TableT = TypeVar("TableT", Rules, PathRules)
DialectT = TypeVar("DialectT", NameDialect, PathDialect)


class AuditRow(Protocol):
    """The attributes of `Request`, a row of an audit, that the search needs.

    >>> from shardviz.axis_rules.audit import audit
    >>> row: AuditRow = audit([("w", (8,), "mlp")], [("mlp", "x")], "x=2").rows[0]
    >>> row.path, row.spec
    ('w', P('x'))
    """

    @property
    def array(self) -> ArraySpec:
        """The array."""
        ...

    @property
    def path(self) -> str:
        """The array's path in the tree."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        ...

    @property
    def dtype(self) -> str:
        """The name of the array's dtype."""
        ...

    @property
    def names(self) -> Names | None:
        """The array's logical names, or None."""
        ...

    @property
    def spec(self) -> Spec | None:
        """The resulting spec; None if unknown."""
        ...

    @property
    def layout(self) -> Layout | None:
        """The array's layout; None if unknown or impossible."""
        ...

    @property
    def partner(self) -> str | None:
        """The path of the parameter, if this is an optimizer array."""
        ...

    @property
    def by_path(self) -> object | None:
        """How PathRules match the array's path; None for Rules."""
        ...

    @property
    def table_spec(self) -> Spec | None:
        """The spec from the table, ignoring the array's own spec."""
        ...

    @property
    def lacks_names(self) -> bool:
        """Whether the array is replicated because it has no logical names."""
        ...

    @property
    def spec_wins(self) -> bool:
        """Whether the array has its own spec, which overrides the table."""
        ...


class Leaf(NamedTuple):
    """The array for which remedies are searched; `path` and `shape` can be unknown."""

    path: str | None
    names: Names
    shape: Shape
    dtype: str = "float32"


class Arrays:
    """The rows of an audit that its table can split, grouped by equal results.

    With Rules, a group's arrays have equal names, shape and dtype. With PathRules, each
    array is its own group.

    >>> from shardviz.axis_rules.audit import audit
    >>> model = audit([("a", (8,), "mlp"), ("b", (8,), "mlp")], [("mlp", "x")], "x=2")
    >>> [[row.path for row in group] for group in model.arrays.of({"mlp"})]
    [['a', 'b']]
    """

    def __init__(self, rows: Iterable[AuditRow] = ()):
        self.groups: dict[
            Hashable, list[AuditRow]
        ] = {}  # with PathRules: path -> [row]
        self.unnamed: list[AuditRow] = []
        self._parameters: dict[str, str] = {}  # moment's path -> parameter's path
        self._matched: dict[tuple[str, PathDialect], frozenset[str] | None] = {}
        for row in rows:
            if row.partner is not None:
                self._parameters[row.path] = row.partner
            if row.lacks_names:
                self.unnamed.append(row)
                continue
            # Skip arrays that no edit of the table affects: those with their own spec,
            # and those that fail although the table has a spec for their path.
            if row.spec_wins or (row.spec is None and row.by_path and row.table_spec):
                continue
            if row.by_path:
                self.groups[row.path] = [row]
            elif row.names is not None:
                key = (row.names, row.shape, row.dtype)
                self.groups.setdefault(key, []).append(row)

    def of(self, names: set[str]) -> list[list[AuditRow]]:
        """Returns the groups that use any of these logical names."""
        groups = self.groups.values()
        return [g for g in groups if not names.isdisjoint(g[0].names or ())]

    @cached_property
    def names(self) -> frozenset[str | None]:
        """The logical names of all groups."""
        names: set[str | None] = set()
        for group in self.groups.values():
            names.update(group[0].names or ())
        return frozenset(names)

    def kind(self, path: str) -> str:
        """Returns a path without numbers; a moment has the path of its parameter."""
        return _without_numbers(self._parameters.get(path, path))

    def matched(self, pattern: str, dialect: PathDialect) -> frozenset[str] | None:
        """Returns the paths that a pattern matches; None if the pattern is invalid."""
        key = (pattern, dialect)
        if key not in self._matched:
            paths: list[str] = []
            try:
                if may_fit(pattern, dialect.text(self._text), dialect):
                    for path in map(str, self.groups):
                        if fits(pattern, path, dialect):
                            paths.append(path)
                self._matched[key] = frozenset(paths)
            except RuleError:
                self._matched[key] = None
        return self._matched[key]

    @cached_property
    def _text(self) -> str:
        """All paths joined, so that one search rules out most patterns."""
        return "\n".join(map(str, self.groups))


@lru_cache(maxsize=1 << 14)  # called for every changed array of every remedy
def _without_numbers(path: str) -> str:
    return re.sub(r"[0-9]+", "0", path)


class RemedySearch(Generic[LineT, TableT, DialectT]):
    """A search for edits of a table that split `leaf` as requested.

    Args:
        leaf: the array.
        rules: the table.
        mesh: the mesh, or None.
        dialect: the library that reads the table.
        arrays: all known arrays that the table can split.
    """

    def __init__(
        self,
        leaf: Leaf,
        rules: TableT,
        mesh: MeshSpec | None,
        dialect: DialectT,
        arrays: Arrays | None = None,
    ) -> None:
        self.leaf, self.rules, self.mesh, self.dialect = leaf, rules, mesh, dialect
        self.arrays = arrays or Arrays()
        self._layouts: dict[tuple[Shape, str, Spec], Layout | str | None] = {}
        #: The first edit that broke another array.
        self._broken: BreaksOthers | None = None
        self._checked = 0

    # Subclasses implement these for their kind of table.

    @property
    def lines(self) -> tuple[LineT, ...]:
        """The lines of the table."""
        raise NotImplementedError

    def concerns(self, line: LineT) -> bool:
        """Whether the line can decide how the array is split."""
        raise NotImplementedError

    def table(self, lines: tuple[LineT, ...]) -> TableT:
        """Creates a table with these lines."""
        raise NotImplementedError

    def edits(self, wish: Wish) -> Iterator[Action]:
        """Yields edits that could fulfil the request, preferred ones first."""
        raise NotImplementedError

    def resolve(self, lines: tuple[LineT, ...], names: Names) -> Spec | None:
        """Resolves the array's spec from lines and names; None if that is an error."""
        raise NotImplementedError

    def resolved(
        self, lines: tuple[LineT, ...], touched: Sequence[LineT]
    ) -> Iterator[tuple[list[AuditRow], object]]:
        """Yields groups that the touched lines can affect, each with its new spec.

        If a group cannot be resolved, it is yielded with the error instead of a spec.
        """
        raise NotImplementedError

    @property
    def alike(self) -> Sequence[AuditRow]:
        """Rows of arrays that are renamed together with this array."""
        return ()

    # The search.

    @cached_property
    def now(self) -> Spec | None:
        """The array's current spec from the table; None if it cannot be resolved."""
        return self.resolve(self.lines, self.leaf.names)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes of size 2 or more; without a mesh, the axes in the table."""
        if self.mesh is not None:
            return tuple(a for a, size in self.mesh.shape.items() if size > 1)
        axes: dict[str, None] = {}
        for line in self.lines:
            axes |= dict.fromkeys(line.axes)
        return tuple(axes)

    def find(self, want: object, limit: int = MOST) -> Remedies:
        """Finds remedies, best first.

        Args:
            want: the request, in any form that `Wish.of` accepts.
            limit: the maximum number of remedies.
        """
        leaf = self.leaf
        wish = Wish.of(want, leaf.names, self.mesh, self.dialect, leaf.path)
        why = self._why_not(wish)
        if why is not None:
            return Remedies((), wish, why)
        self._broken = None
        remedies = self._best(wish)
        if isinstance(wish, SplitWish) and self._fails(wish.dim):
            unsplit = self._best(UnsplitWish(leaf.path, wish.dim))[:1]
            larger = [r for r in remedies if r.fewer_shards is not None]
            others = [r for r in remedies if r.fewer_shards is None]
            # Leaving the dimension unsplit is better than making the shards larger.
            remedies = [*others[: max(1, limit - 1)], *unsplit, *larger]
        remedies = remedies[:limit]
        if not remedies:
            why = self._too_small(wish) or self._broken or self._indivisible(wish)
            why = why or NoEdit(wish)
            return Remedies((), wish, why)
        return Remedies(tuple(remedies), wish)

    def _best(self, wish: Wish) -> list[Remedy]:
        """Returns the best remedy for each different effect, best first."""
        self._checked = 0
        tried: set[Hashable] = set()
        ranked: dict[Hashable, tuple[tuple, Remedy]] = {}
        for action in self.edits(wish):
            if self._checked > MOST_CHECKED:
                break
            lines, names = self._after(action)
            spec = self.resolve(lines, names)
            attempt = _form(action), spec
            if attempt in tried or spec is None or not self.meets(spec, wish):
                continue
            remedy = self._remedy(action, lines, names, spec, wish)
            if remedy is None:
                continue
            tried.add(attempt)
            effect: Hashable = attempt
            # "Move rule 15 before 14" and "move rule 14 after 15" have the same effect.
            if isinstance(action, MoveLine):
                effect = MoveLine, tuple(line for line in lines if self.concerns(line))
            rank = self._rank(remedy, len(ranked))
            if effect not in ranked or rank < ranked[effect][0]:
                ranked[effect] = rank, remedy
        return [remedy for _, remedy in sorted(ranked.values(), key=lambda r: r[0])]

    def _after(self, action: Action) -> tuple[tuple[LineT, ...], Names]:
        """Returns the table's lines and the array's names after an edit."""
        if isinstance(action, NameDimension):
            return self.lines, action.apply(self.leaf.names)
        assert isinstance(action, TableAction)
        return cast(tuple[LineT, ...], action.apply(self.lines)), self.leaf.names

    def _fails(self, dim: int | None) -> bool:
        """Whether the array currently fails and its spec, if known, splits `dim`."""
        if self.now is None:
            return True
        if not isinstance(self._layout_now(), str):
            return False
        return dim is None or bool(self.now.dims[dim])

    def meets(self, spec: Spec, wish: Wish) -> bool:
        """Whether `spec` is valid for the array and fulfils the request."""
        if len(spec.dims) > len(self.leaf.names):
            return False
        layout = self.layout(self.leaf.shape, self.leaf.dtype, spec)
        return not isinstance(layout, str) and wish.met(spec, layout, self.mesh)

    def _rank(self, remedy: Remedy, number: int) -> tuple:
        """Returns a sort key; the better of two remedies has the smaller key."""
        action, others_changed = remedy.action, 0
        if not action.typo:  # a correction is meant for all arrays that it affects
            kind = self.arrays.kind(self.leaf.path or "")
            others_changed = sum(
                self.arrays.kind(path) != kind for path in remedy.others
            )
        order, several_axes, new_here = action.order, False, False
        if isinstance(action, TableAction):
            # Users rarely want several mesh axes in one dimension.
            line = getattr(action, "new", None)
            several_axes = line is not None and len(line.axes) > 1
            # The existing pattern may be meant for arrays outside this tree, so prefer
            # adding a pattern.
            if isinstance(action, RetargetLine) and isinstance(line, PathRule):
                order = RemoveLine.order
        if isinstance(action, NameDimension):
            # Prefer names of other arrays; other names may be for activations.
            new_here = action.new not in self.arrays.names
        lost, saved = self._unsplit(remedy.spec), remedy.bytes_saved or 0
        larger = remedy.fewer_shards is not None
        likely = (larger, not action.typo, several_axes, lost, others_changed)
        return (*likely, order, new_here, -saved, number)

    def _unsplit(self, spec: Spec) -> int:
        """Counts the dimensions that are split now but not by `spec`."""
        pairs = zip(self.sound.dims, spec.padded(self.sound.rank), strict=False)
        return sum(bool(before) and not after for before, after in pairs)

    @cached_property
    def sound(self) -> Spec:
        """The current spec without the axes of dimensions that make it invalid."""
        sound: list[tuple[str, ...]] = [()] * len(self.leaf.names)
        if self.now is not None:
            for d, axes in enumerate(self.now.dims[: len(sound)]):
                split = Spec((*sound[:d], axes))
                if not isinstance(self.layout(self.leaf.shape, "int8", split), str):
                    sound[d] = axes
        return Spec(tuple(sound))

    def _fewer_shards(self, spec: Spec) -> tuple[int, int] | None:
        """Returns `Remedy.fewer_shards` for an edit that leads to `spec`."""
        if self.mesh is None:
            return None
        now = group_size(self.sound.axes, self.mesh)
        after = group_size(spec.axes, self.mesh)
        return (now, after) if after < now else None

    def corrected(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Replaces axes that the mesh doesn't have by the nearest mesh axis.

        Drops those without a near axis, unless no axis would remain.
        """
        if self.mesh is None:
            return axes
        mesh_axes = self.mesh.axis_names
        corrected: list[str] = []
        for axis in axes:
            mesh_axis = axis if axis in mesh_axes else near(axis, mesh_axes)
            # A rule that names an axis twice is invalid.
            if mesh_axis and mesh_axis not in corrected:
                corrected.append(mesh_axis)
        return tuple(corrected) or axes

    def _remedy(
        self,
        action: Action,
        lines: tuple[LineT, ...],
        names: Names,
        spec: Spec,
        wish: Wish,
    ) -> Remedy | None:
        """Creates a remedy with its effect on all arrays; None if it breaks an array.

        Args:
            action: the edit.
            lines: the table's lines after the edit.
            names: the array's names after the edit.
            spec: the array's spec after the edit.
            wish: the request that the edit fulfils.
        """
        self._checked += 1
        alike: Sequence[AuditRow] = ()
        if isinstance(action, NameDimension):
            alike = self.alike
        leaf_saved = self._saves(spec)
        saved, changed_paths = leaf_saved or 0, [row.path for row in alike]
        for row in alike:
            layout = self.layout(self.leaf.shape, row.dtype, spec)
            if isinstance(layout, Layout):
                saved += _stored(row) - layout.bytes_per_device
        table = self.rules
        if isinstance(action, TableAction):
            table = self.table(lines)
            touched = cast(tuple[LineT, ...], action.touched)
            for group, new_spec in self.resolved(lines, touched):
                paths = [row.path for row in group if row.path != self.leaf.path]
                layout = self._changed(group[0], new_spec)
                if not paths or layout is None:
                    continue
                if isinstance(layout, str) and group[0].layout is not None:
                    if self._broken is None:
                        self._broken = BreaksOthers(wish, action, paths[0], layout)
                    return None
                if isinstance(layout, Layout):
                    saved_per_array = _stored(group[0]) - layout.bytes_per_device
                    saved += saved_per_array * len(paths)
                changed_paths += paths
        return Remedy(
            action,
            table,
            names,
            spec,
            leaf_bytes_saved=leaf_saved,
            bytes_saved=None if leaf_saved is None else saved,
            others=tuple(changed_paths),
            alike=tuple(row.path for row in alike),
            leaves_unsplit=isinstance(wish, UnsplitWish),
            fewer_shards=self._fewer_shards(spec),
        )

    def _changed(self, row: AuditRow, spec: object) -> Layout | str | None:
        """Returns another array's new layout or error; None if it doesn't change."""
        if spec == row.spec:
            return None
        if not isinstance(spec, Spec):
            # If the array was unresolvable before the edit too, it doesn't change.
            return None if row.spec is None else str(spec)
        layout = self.layout(row.shape, row.dtype, spec)
        # P('x') and P('x', None) are equivalent, so the array doesn't change.
        equivalent = row.spec is not None and spec.equivalent(row.spec)
        if equivalent and (row.layout is None) == isinstance(layout, str):
            return None
        return layout

    def layout(self, shape: Shape, dtype: str, spec: Spec) -> Layout | str | None:
        """Returns the Layout, or an error; None if the mesh or shape is unknown."""
        key = (shape, dtype, spec)
        if key not in self._layouts:
            layout: Layout | str | None = None
            try:
                if self.mesh is None:
                    # Any mesh with these axes is enough to detect a repeated axis.
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

    def _layout_now(self) -> Layout | str | None:
        """Returns the array's layout with its current spec, which must not be None."""
        assert self.now is not None
        return self.layout(self.leaf.shape, self.leaf.dtype, self.now)

    def _saves(self, spec: Spec) -> int | None:
        """Returns the bytes per device that `spec` saves; None if unknown."""
        shape, dtype = self.leaf.shape, self.leaf.dtype
        after = self.layout(shape, dtype, spec)
        if shape is None or not isinstance(after, Layout):
            return None
        before = size_in_bytes(math.prod(shape), dtype)
        if self.now is not None:
            layout = self._layout_now()
            if isinstance(layout, Layout):
                before = layout.bytes_per_device
        return before - after.bytes_per_device

    def _why_not(self, wish: Wish) -> NoRemedy | None:
        """Returns why a search is pointless (fulfilled or impossible), or None."""
        spec, leaf = self.now, self.leaf
        if spec is not None and self.meets(spec, wish):
            layout = self._layout_now()
            size = None
            if isinstance(layout, Layout):
                size = layout.bytes_per_device
            return AlreadySplit(wish, spec, size)
        if isinstance(wish, SpecWish):
            error = self.layout(leaf.shape, leaf.dtype, wish.spec)
            return NoLayout(wish, error) if isinstance(error, str) else None
        if isinstance(wish, BytesWish):
            unknown = self.mesh is None or leaf.shape is None
            return BytesUnknown(wish) if unknown else None
        return None if self.axes else NoAxes(wish)

    def _too_small(self, wish: Wish) -> NoRemedy | None:
        """Returns the reason if no spec saves enough bytes per device; else None."""
        if not isinstance(wish, BytesWish):
            return None
        least = min(size for size, _ in self.splits())
        if least <= wish.limit:
            return None
        return TooSmall(wish, least)

    def _indivisible(self, wish: Wish) -> NoRemedy | None:
        """Returns the reason if no mesh axis divides the dimension; else None."""
        if not isinstance(wish, SplitWish) or wish.dim is None:
            return None
        error = ""
        for axis in self.axes:
            spec = Spec(((),) * wish.dim + ((axis,),))
            layout = self.layout(self.leaf.shape, self.leaf.dtype, spec)
            if not isinstance(layout, str):
                return None
            error = layout
        return NoLayout(wish, error)

    def splits(self) -> list[tuple[int, Spec]]:
        """Returns (bytes, spec) of every possible shard shape."""
        assert self.mesh is not None
        assert self.leaf.shape is not None
        shape = self.leaf.shape
        # Keyed by shard shape: the bytes don't depend on the axes that split it.
        shards: dict[tuple[int, ...], tuple] = {shape: ((),) * len(shape)}
        for axis in self.axes:
            parts = self.mesh.shape[axis]
            for sizes, dims in list(shards.items()):
                for d, size in enumerate(sizes):
                    if size % parts == 0:
                        shard = (*sizes[:d], size // parts, *sizes[d + 1 :])
                        longer = (*dims[:d], (*dims[d], axis), *dims[d + 1 :])
                        shards.setdefault(shard, longer)
        splits = []
        for shard, dims in shards.items():
            size = size_in_bytes(math.prod(shard), self.leaf.dtype)
            splits.append((size, Spec(dims)))
        return splits


def _form(action: Action) -> Hashable:
    """Returns a key; of edits with equal keys and equal specs, only one is proposed."""
    # For a new pattern, only its axes matter, not its text.
    new = getattr(action, "new", None)
    subject = getattr(action, "index", getattr(action, "dim", None))
    return type(action), subject, getattr(new, "axes", new)


def _stored(row: AuditRow) -> int:
    """Returns bytes per device; an array without a layout is counted as replicated."""
    if row.layout is None:
        return row.array.bytes
    return row.layout.bytes_per_device
