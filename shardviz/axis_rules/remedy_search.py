"""The search for remedies: tries single edits of a table, and keeps those that help.

Each edit is made and the array is resolved again; if that grants the wish, the other
arrays that the edit may change are resolved, too, and the edit is dropped if one of them
can no longer be laid out. `rule_remedies.py` has the edits of tables of names,
`path_remedies.py` those of tables of paths.
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
from shardviz.base.errors import RuleError, ShardvizError
from shardviz.base.layout import Layout, lay_out_parsed
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import Spec

MOST = 8  # remedies
MOST_CHECKED = 200  # edits that grant the wish and are checked on the other arrays

Shape = tuple[int, ...] | None
LineT = TypeVar("LineT", Rule, PathRule)
TableT = TypeVar("TableT", Rules, PathRules)
DialectT = TypeVar("DialectT", NameDialect, PathDialect)


class AuditRow(Protocol):
    """What the search reads of a `Request`, the row of an audit.

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
        """Its path in the tree."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> str:
        """The name of its element type."""
        ...

    @property
    def names(self) -> Names | None:
        """Its logical names, or None."""
        ...

    @property
    def spec(self) -> Spec | None:
        """The spec that counts, or None if it is unknown."""
        ...

    @property
    def layout(self) -> Layout | None:
        """Its layout, or None if it cannot be laid out."""
        ...

    @property
    def partner(self) -> str | None:
        """The path of its parameter, if an optimizer keeps it."""
        ...

    @property
    def by_path(self) -> object | None:
        """The matched patterns, if the table is one of paths."""
        ...

    @property
    def table_spec(self) -> Spec | None:
        """The spec that the table alone gives."""
        ...

    @property
    def lacks_names(self) -> bool:
        """True if it is replicated since it has no logical names."""
        ...

    @property
    def spec_wins(self) -> bool:
        """True if it has its own spec, which overrides the table."""
        ...


class Leaf(NamedTuple):
    """The array to be split differently; None for parts that are unknown."""

    path: str | None
    names: Names
    shape: Shape
    dtype: str = "float32"


class Arrays:
    """The rows of an audit that its table splits, grouped by how it splits them.

    A group has the same names, shape and dtype; in a table of paths each array is a
    group.

    >>> from shardviz.axis_rules.audit import audit
    >>> model = audit([("a", (8,), "mlp"), ("b", (8,), "mlp")], [("mlp", "x")], "x=2")
    >>> [[row.path for row in group] for group in model.arrays.of({"mlp"})]
    [['a', 'b']]
    """

    def __init__(self, rows: Iterable[AuditRow] = ()):
        self.groups: dict[Hashable, list[AuditRow]] = {}  # by path in a table of paths
        self.unnamed: list[AuditRow] = []
        self._parameters: dict[str, str] = {}  # path of a moment to its parameter's
        self._matched: dict[tuple[str, PathDialect], frozenset[str] | None] = {}
        for row in rows:
            if row.partner is not None:
                self._parameters[row.path] = row.partner
            if row.lacks_names:
                self.unnamed.append(row)
                continue
            # No table decides about an array with its own spec, or about one that
            # cannot be laid out whatever spec its path gets.
            if row.spec_wins or (row.spec is None and row.by_path and row.table_spec):
                continue
            if row.by_path:
                self.groups[row.path] = [row]
            elif row.names is not None:
                key = (row.names, row.shape, row.dtype)
                self.groups.setdefault(key, []).append(row)

    def of(self, names: set[str]) -> list[list[AuditRow]]:
        """The groups that have one of these logical names."""
        groups = self.groups.values()
        return [g for g in groups if not names.isdisjoint(g[0].names or ())]

    @cached_property
    def names(self) -> frozenset[str | None]:
        """All their logical names."""
        names: set[str | None] = set()
        for group in self.groups.values():
            names.update(group[0].names or ())
        return frozenset(names)

    def kind(self, path: str) -> str:
        """A key that is equal for an array in every layer and a parameter's moments."""
        return _without_numbers(self._parameters.get(path, path))

    def matched(self, pattern: str, dialect: PathDialect) -> frozenset[str] | None:
        """The paths that a pattern matches; None if it is not a regular expression."""
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
        """All paths in one text: searching it once rules out most patterns."""
        return "\n".join(map(str, self.groups))


@lru_cache(maxsize=1 << 14)  # each remedy looks at the paths of all arrays that change
def _without_numbers(path: str) -> str:
    return re.sub(r"[0-9]+", "0", path)


class RemedySearch(Generic[LineT, TableT, DialectT]):
    """A search for edits of a table that split `leaf` as requested.

    Args:
        leaf: the array.
        rules: the table.
        mesh: the mesh, or None.
        dialect: the library that reads the table.
        arrays: all known arrays that the table splits.
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
        #: The first array that an edit broke.
        self._broken: BreaksOthers | None = None
        self._checked = 0

    # Each kind of table implements these.

    @property
    def lines(self) -> tuple[LineT, ...]:
        """The lines of the table."""
        raise NotImplementedError

    def concerns(self, line: LineT) -> bool:
        """True if the line may decide about the array."""
        raise NotImplementedError

    def table(self, lines: tuple[LineT, ...]) -> TableT:
        """The table with these lines."""
        raise NotImplementedError

    def edits(self, wish: Wish) -> Iterator[Action]:
        """The edits that may grant the wish, the preferred ones first."""
        raise NotImplementedError

    def resolve(self, lines: tuple[LineT, ...], names: Names) -> Spec | None:
        """The spec of the array with these names, or None if that raises an error."""
        raise NotImplementedError

    def resolved(
        self, lines: tuple[LineT, ...], touched: Sequence[LineT]
    ) -> Iterator[tuple[list[AuditRow], object]]:
        """The groups that the touched lines may change, each with its new spec.

        If a group cannot be resolved, the error takes the place of its spec.
        """
        raise NotImplementedError

    @property
    def alike(self) -> Sequence[AuditRow]:
        """The rows of arrays whose dimensions are renamed together with this one's."""
        return ()

    # The search.

    @cached_property
    def now(self) -> Spec | None:
        """How the table splits the array, or None if it cannot be resolved."""
        return self.resolve(self.lines, self.leaf.names)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of more than one device; without a mesh those of the table."""
        if self.mesh is not None:
            return tuple(a for a, size in self.mesh.shape.items() if size > 1)
        axes: dict[str, None] = {}
        for line in self.lines:
            axes |= dict.fromkeys(line.axes)
        return tuple(axes)

    def find(self, want: object, limit: int = MOST) -> Remedies:
        """The remedies, at most so many, the best first.

        Args:
            want: as `Wish.of` reads it.
            limit: how many remedies to return.
        """
        leaf = self.leaf
        wish = Wish.of(want, leaf.names, self.mesh, self.dialect, leaf.path)
        why = self._why_not(wish)
        if why is not None:
            return Remedies((), wish, why)
        self._broken = None
        remedies = self._best(wish)[:limit]
        if isinstance(wish, SplitWish) and self._fails(wish.dim):
            unsplit = self._best(UnsplitWish(leaf.path, wish.dim))[:1]
            remedies = [*remedies[: max(1, limit - 1)], *unsplit][:limit]
        if not remedies:
            why = self._too_small(wish) or self._broken or NoEdit(wish)
            return Remedies((), wish, why)
        return Remedies(tuple(remedies), wish)

    def _best(self, wish: Wish) -> list[Remedy]:
        """One remedy for each effect, the best first."""
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
            # "Move rule 15 before 14" and "move rule 14 after 15" are one remedy.
            if isinstance(action, MoveLine):
                effect = MoveLine, tuple(line for line in lines if self.concerns(line))
            rank = self._rank(remedy, len(ranked))
            if effect not in ranked or rank < ranked[effect][0]:
                ranked[effect] = rank, remedy
        return [remedy for _, remedy in sorted(ranked.values(), key=lambda r: r[0])]

    def _after(self, action: Action) -> tuple[tuple[LineT, ...], Names]:
        """The lines of the table and the names of the array after an edit."""
        if isinstance(action, NameDimension):
            return self.lines, action.apply(self.leaf.names)
        assert isinstance(action, TableAction)
        return cast(tuple[LineT, ...], action.apply(self.lines)), self.leaf.names

    def _fails(self, dim: int | None) -> bool:
        """True if the array cannot be laid out, and that dimension would be split."""
        if self.now is None:
            return True
        if not isinstance(self._layout_now(), str):
            return False
        return dim is None or bool(self.now.dims[dim])

    def meets(self, spec: Spec, wish: Wish) -> bool:
        """True if the array can be laid out by this spec and that grants the wish."""
        if len(spec.dims) > len(self.leaf.names):
            return False
        layout = self.layout(self.leaf.shape, self.leaf.dtype, spec)
        return not isinstance(layout, str) and wish.met(spec, layout, self.mesh)

    def _rank(self, remedy: Remedy, number: int) -> tuple:
        """A key by which the better of two remedies is smaller."""
        action, others_changed = remedy.action, 0
        if not action.typo:  # a correction is meant for every array that it reaches
            kind = self.arrays.kind(self.leaf.path or "")
            others_changed = sum(
                self.arrays.kind(path) != kind for path in remedy.others
            )
        order, several_axes, new_here = action.order, False, False
        if isinstance(action, TableAction):
            # Few people want several axes in one dimension.
            line = getattr(action, "new", None)
            several_axes = line is not None and len(line.axes) > 1
            # The pattern may be meant for arrays that are not in this tree, so adding a
            # pattern is safer.
            if isinstance(action, RetargetLine) and isinstance(line, PathRule):
                order = RemoveLine.order
        if isinstance(action, NameDimension):
            # A name that other arrays have is likelier than one for activations.
            new_here = action.new not in self.arrays.names
        lost, saved = self._unsplit(remedy.spec), remedy.bytes_saved or 0
        likely = (not action.typo, several_axes, lost, others_changed)
        return (*likely, order, new_here, -saved, number)

    def _unsplit(self, spec: Spec) -> int:
        """How many dimensions are split now and not by `spec`."""
        # If the array fails now, no dimension of it is split.
        if self.now is None or isinstance(self._layout_now(), str):
            return 0
        pairs = zip(self.now.dims, spec.padded(self.now.rank), strict=False)
        return sum(bool(before) and not after for before, after in pairs)

    def corrected(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes, with the nearest mesh axis for each one that the mesh lacks."""
        if self.mesh is None:
            return axes
        mesh_axes = self.mesh.axis_names
        corrected = []
        for axis in axes:
            if axis not in mesh_axes:
                axis = near(axis, mesh_axes) or axis
            corrected.append(axis)
        return tuple(corrected)

    def _remedy(
        self,
        action: Action,
        lines: tuple[LineT, ...],
        names: Names,
        spec: Spec,
        wish: Wish,
    ) -> Remedy | None:
        """The remedy with its effect on all arrays; None if it breaks one of them.

        Args:
            action: the edit.
            lines: the lines of the table after it.
            names: the names of the array after it.
            spec: the spec of the array after it.
            wish: the wish that it grants.
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
        )

    def _changed(self, row: AuditRow, spec: object) -> Layout | str | None:
        """The new layout of another array, or its error; None if it does not change."""
        if spec == row.spec:
            return None
        if not isinstance(spec, Spec):
            # It may have been unresolvable before the edit, too.
            return None if row.spec is None else str(spec)
        layout = self.layout(row.shape, row.dtype, spec)
        # P('x', None) is as good as P('x'), if that could be laid out.
        equivalent = row.spec is not None and spec.equivalent(row.spec)
        if equivalent and (row.layout is None) == isinstance(layout, str):
            return None
        return layout

    def layout(self, shape: Shape, dtype: str, spec: Spec) -> Layout | str | None:
        """The Layout, the error that prevents it, or None if too little is known."""
        key = (shape, dtype, spec)
        if key not in self._layouts:
            layout: Layout | str | None = None
            try:
                if self.mesh is None:
                    # Any mesh with these axes reveals an axis that is used twice.
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
        """The layout of the array by its current spec, which must be known."""
        assert self.now is not None
        return self.layout(self.leaf.shape, self.leaf.dtype, self.now)

    def _saves(self, spec: Spec) -> int | None:
        """How many bytes per device this spec saves on the array; None if unknown."""
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
        """Why no edit is tried: the wish is granted, or no table can ever grant it."""
        spec, leaf = self.now, self.leaf
        if spec is not None and self.meets(spec, wish):
            layout = self._layout_now()
            size = None
            if isinstance(layout, Layout):
                size = layout.bytes_per_device
            return AlreadySplit(wish, spec, size)
        if isinstance(wish, SpecWish):
            error = self.layout(None, leaf.dtype, wish.spec)
            return NoLayout(wish, error) if isinstance(error, str) else None
        if isinstance(wish, BytesWish):
            unknown = self.mesh is None or leaf.shape is None
            return BytesUnknown(wish) if unknown else None
        return None if self.axes else NoAxes(wish)

    def _too_small(self, wish: Wish) -> NoRemedy | None:
        """The reason if no spec can give the requested bytes per device; else None."""
        if not isinstance(wish, BytesWish):
            return None
        least = min(size for size, _ in self.splits())
        if least <= wish.limit:
            return None
        return TooSmall(wish, least)

    def splits(self) -> list[tuple[int, Spec]]:
        """The bytes of every possible shard shape, each with a spec of few axes."""
        assert self.mesh is not None
        assert self.leaf.shape is not None
        shape = self.leaf.shape
        # By shard shape: which axes produce it does not change its bytes.
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
    """A key for edits of which one is enough if they give the array the same spec."""
    # The text of a new pattern does not matter here, only the axes that it leads to.
    new = getattr(action, "new", None)
    subject = getattr(action, "index", getattr(action, "dim", None))
    return type(action), subject, getattr(new, "axes", new)


def _stored(row: AuditRow) -> int:
    """Bytes per device; an array that cannot be laid out counts as not split."""
    if row.layout is None:
        return row.array.bytes
    return row.layout.bytes_per_device
