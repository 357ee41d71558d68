"""Remedies: the smallest edits of a table that split an array as somebody wants.

What a search finds, and what both searches share: `rule_remedies.py` edits tables of
names, `path_remedies.py` tables of paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, overload

from shardviz.core.display import Displayed, Fact, explanation, sentence
from shardviz.core.errors import ShardvizError
from shardviz.core.layout.array_spec import size_in_bytes
from shardviz.core.layout.layout import Layout, lay_out_parsed
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.matching import Names
from shardviz.core.layout.rules.remedy_edits import (
    Kind,
)
from shardviz.core.layout.rules.rules import Dialect, PathRule, PathRules, Rule, Rules
from shardviz.core.layout.rules.wishes import Wish

Shape = tuple[int, ...] | None
Table = TypeVar("Table", Rules, PathRules)

MOST = 8  # remedies
MOST_AXES = 3  # that a rule is given at once, where only a size was wanted


@dataclass(frozen=True)
class Step(Fact):
    """One edit, done to one table and one array.

    Attributes:
        kind: what it does.
        rules: the lines of the table before it.
        subject: the index of a line, or a dimension of the array; None for a new line.
        place: the index that a line goes to, or is exchanged with.
        new: what becomes of it: a line, a name or a size; None where a place says it
            all.
        old: the name or size of the array before.
        path: the array, or None.
        alike: how many other arrays are edited with it.
        parts: for a size, what it becomes a multiple of.

    >>> Step(Kind.REMOVE, (Rule("embed", ()),), 0).kind.name
    'REMOVE'
    """

    kind: Kind
    rules: tuple[Rule | PathRule, ...] = ()
    subject: int | None = None
    place: int = 0
    new: Rule | PathRule | str | int | None = None
    old: str | int | None = None
    path: str | None = None
    alike: int = 0
    parts: int = 0


@dataclass(frozen=True)
class Steps(Fact):
    """Edits one after the other.

    >>> step = Step(Kind.REMOVE, (Rule("embed", ()),), 0)
    >>> print(Steps((step,)))
    Remove rule 1 (embed → None)
    """

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class NamesFromParameter(Fact):
    """The edit for an optimizer's array that lost the names of its parameter.

    Attributes:
        path: the array.
        names: those of its parameter.

    >>> NamesFromParameter("mu/w", ("embed",)).names
    ('embed',)
    """

    path: str
    names: Names


@dataclass(frozen=True)
class NoRemedy(Fact):
    """Why there is no remedy.

    Attributes:
        code: `"split already"`, `"own spec"`, `"no names"`, `"nameless"`,
            `"unreduced"`, `"no layout"`, `"bytes unknown"`, `"no axes"`, `"too small"`,
            `"breaks others"`, `"no edit"`; for a table of paths also `"one element"`,
            `"scalar"` and `"does not divide"`.
        wish: what was wanted.
        spec: for `"split already"` and `"own spec"`, the spec.
        bytes: per device: as it is, or at least.
        error: for `"no layout"`, `"no names"` and `"breaks others"`, what was raised.
        mesh: for `"no axes"` and `"does not divide"`, the mesh, or None.
        steps: for `"breaks others"`, the first edit that does.
        others: for `"breaks others"`, how many other edits do, and `path` which array.
        path: an array that breaks.
        unnamed: for `"no edit"`, a dimension without a name that rules could match.
        missing: for `"no edit"`, the dimensions that have no rule for what is wanted.
        stopped: whether not everything was tried.
        sizes: for `"does not divide"`, the sizes.

    >>> print(NoRemedy("scalar", Wish(path="step")))
    No table can split step: it has no dimension.
    """

    code: str
    wish: Wish
    spec: Spec | None = None
    bytes: int | None = None
    error: str = ""
    mesh: MeshSpec | None = None
    steps: Steps | None = None
    others: int = 0
    path: str = ""
    unnamed: int | None = None
    missing: tuple[int, ...] = ()
    stopped: bool = False
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class Remedy(Fact):
    """One way to split an array as it was wanted, checked on every known array.

    Attributes:
        change: what to do, as a fact.
        rules: the table after it.
        names: the array's logical names after it.
        shape: its shape after it, or None where that is not known.
        spec: how it is split then.
        leaf_bytes_saved: how many bytes per device this array takes less; None where
            the shape or the mesh is not known. An array that could not be laid out
            counts as not split.
        bytes_saved: the same over all known arrays.
        others: the paths of the other arrays that are split otherwise, too.
        alike: of these, the paths of those that get the same names and shape: the same
            array of other layers, and the moments of an optimizer.

    >>> one = Step(Kind.REMOVE, (Rule("embed", ()),), 0)
    >>> Remedy(one, Rules(), ("embed",), None, Spec(((),)), None, None, ()).edit
    'Remove rule 1 (embed → None)'
    """

    change: Fact
    rules: Rules | PathRules
    names: Names
    shape: Shape
    spec: Spec
    leaf_bytes_saved: int | None
    bytes_saved: int | None
    others: tuple[str, ...]
    alike: tuple[str, ...] = ()

    @property
    def edit(self) -> str:
        """What to do, as a sentence."""
        return sentence(self.change)

    @property
    def edits(self) -> int:
        """Of how many single edits it consists."""
        return len(self.change.steps) if isinstance(self.change, Steps) else 1

    def effect(self) -> str:
        """What it does, in a sentence."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Remedy({self})"


@dataclass(frozen=True, repr=False)
class Remedies(Displayed, Sequence[Remedy]):
    """The edits that give what was wanted, the smallest first.

    Made by `shardviz.remedies`.

    Attributes:
        items: the remedies.
        want: what was wanted; `str` of it is the rest of a sentence.
        path: the array; None where it has no name.
        why: where there is none, why; else None.

    >>> wish = Wish(path="w")
    >>> found = Remedies((), wish, "w", NoRemedy("split already", wish, Spec.parse("x")))
    >>> len(found), found.reason
    (0, "Nothing to change: w is split as P('x').")
    """

    items: tuple[Remedy, ...]
    want: Wish
    path: str | None = None
    why: NoRemedy | None = None

    @overload
    def __getitem__(self, index: int) -> Remedy: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Remedy, ...]: ...
    def __getitem__(self, index: int | slice) -> Remedy | tuple[Remedy, ...]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def reason(self) -> str | None:
        """Where there is no remedy, one sentence on why; else None."""
        return None if self.why is None else str(self.why)

    def explain(self) -> str:
        """All of them, one line each, or why there is none."""
        return explanation(self)

    def __repr__(self) -> str:
        if not self.items:
            return f"Remedies(none: {self.reason})"
        more = f" and {len(self) - 1:,} more" if len(self) > 1 else ""
        return f"Remedies(to {self.want}: {self.items[0].edit}{more})"


class Leaf(NamedTuple):
    """The array that somebody wants to be split otherwise; None for what is not known."""

    path: str | None
    names: Names
    shape: Shape
    dtype: str = "float32"


@dataclass
class LeafSearch(Generic[Table]):
    """A search for edits of any kind of table that split one array, `leaf`, as wanted."""

    leaf: Leaf
    rules: Table
    mesh: MeshSpec | None
    dialect: Dialect

    def __post_init__(self) -> None:
        self._layouts: dict[Any, Layout | str | None] = {}

    @property
    def now(self) -> Spec | None:
        """How the table splits the array, or None where it cannot be resolved."""
        raise NotImplementedError

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
        found = self._search(wish, most, pairs)
        if isinstance(found, NoRemedy):
            return Remedies((), wish, path, found)
        return Remedies(tuple(found), wish, path)

    def _search(self, wish: Wish, most: int, pairs: bool) -> list[Remedy] | NoRemedy:
        """What was found for a wish that is not met; or why nothing was."""
        raise NotImplementedError

    def _done(self, wish: Wish) -> NoRemedy | None:
        """That there is nothing to change, where there is not."""
        spec = self.now
        if spec is None or not self._good(self.leaf.shape, spec, wish):
            return None
        layout = self.layout(self.leaf.shape, self.leaf.dtype, spec)
        size = layout.bytes_per_device if isinstance(layout, Layout) else None
        return NoRemedy("split already", wish, spec, size)

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

    def _good(self, shape: Shape, spec: Spec, wish: Wish) -> bool:
        layout = self.layout(shape, self.leaf.dtype, spec)
        if isinstance(layout, str):
            return False
        any_split = wish.spec is None and wish.limit is None
        if layout is None and self.mesh is not None and any_split:
            # The shape is not known: an axis of size 1 splits nothing all the same.
            axes = spec.axes if wish.dim is None else spec.dims[wish.dim]
            return any(self.mesh.shape[a] > 1 for a in axes)
        return wish.met(spec, layout)

    def _saves(self, spec: Spec, shape: Shape, dtype: str) -> int | None:
        """How many bytes per device the array takes less, split so and of that shape."""
        sizes = self.leaf.shape
        after = self.layout(shape, dtype, spec)
        if sizes is None or not isinstance(after, Layout):
            return None
        before = None if self.now is None else self.layout(sizes, dtype, self.now)
        if isinstance(before, Layout):
            return before.bytes_per_device - after.bytes_per_device
        return size_in_bytes(math.prod(sizes), dtype) - after.bytes_per_device

    def _unsplit(self, spec: Spec) -> int:
        """How many dimensions that were split no longer are."""
        now = self.now
        if now is None:
            return 0
        if isinstance(self.layout(self.leaf.shape, self.leaf.dtype, now), str):
            return 0
        after = spec.padded(now.rank)
        return sum(bool(axes) and not after[d] for d, axes in enumerate(now.dims))

    @property
    def _axes(self) -> tuple[str, ...]:
        """The mesh axes that split something; those of the table where there is no
        mesh.
        """
        if self.mesh is not None:
            return tuple(a for a, size in self.mesh.shape.items() if size > 1)
        return tuple(dict.fromkeys(a for r in self.rules.entries for a in r.axes))

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
        if not self._axes:
            return NoRemedy("no axes", wish, mesh=self.mesh)
        return None

    def _too_small(self, wish: Wish) -> NoRemedy | None:
        """Why no table can give the bytes per device while sizes stay; or None."""
        if wish.limit is None:
            return None
        least = min(size for size, _ in self._splits())
        if least <= wish.limit:
            return None
        return NoRemedy("too small", wish, bytes=least)

    def _splits(self) -> list[tuple[int, Spec]]:
        """Ways to split the array, one per shape of a shard: its bytes, and few axes."""
        assert self.mesh is not None
        assert self.leaf.shape is not None
        whole = self.leaf.shape
        shards: dict[tuple[int, ...], tuple] = {whole: ((),) * len(whole)}
        for axis in self._axes:
            parts = self.mesh.shape[axis]
            for shape, dims in list(shards.items()):
                for d, size in enumerate(shape):
                    if size % parts == 0:
                        shard = (*shape[:d], size // parts, *shape[d + 1 :])
                        more = (*dims[:d], (*dims[d], axis), *dims[d + 1 :])
                        shards.setdefault(shard, more)
        sizes = []
        for shard, dims in shards.items():
            bytes_ = size_in_bytes(math.prod(shard), self.leaf.dtype)
            sizes.append((bytes_, Spec(dims)))
        return sizes
