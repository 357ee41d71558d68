"""Remedies: the smallest edits of a rule table that split an array as requested.

This module defines the values; `remedy_search.py` has the search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

from shardviz.axis_rules.dialects import Dialect, NameDialect
from shardviz.axis_rules.matching import Names, without_size_one
from shardviz.axis_rules.rules import PathRule, PathRules, Rule, Rules
from shardviz.base.display import Displayed, Fact, explanation, sentence
from shardviz.base.errors import RuleError, SpecError
from shardviz.base.format import joined, plural, shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import parse_bytes
from shardviz.base.partition_spec import Spec, rank_problem

Line = Rule | PathRule
_SPLIT = re.compile(r"split(?:\s+(?:dimension\s+|dim\s+)?(.+))?")


# --- wishes: what the caller requests for an array ------------------------------------


@dataclass(frozen=True)
class Wish(Fact):
    """A caller's request for one array; `str()` is a verb phrase such as "split w".

    Attributes:
        path: the path of the array; None if unknown.
    """

    path: str | None

    @staticmethod
    def of(
        want: object,
        names: Names,
        mesh: MeshSpec | None,
        dialect: Dialect,
        path: str | None = None,
    ) -> Wish:
        """Parses a request: a Spec, or text such as `split`, `split 1` or `8 MiB`.

        Raises:
            RuleError: if the array does not have the requested dimension.
            SpecError: if `want` has none of these forms.

        >>> mesh = MeshSpec(("data",), (4,))
        >>> Wish.of("8 MiB", ("embed",), mesh, Dialect.LINEN)
        BytesWish(path=None, limit=8388608)
        >>> Wish.of("split embed", ("embed",), mesh, Dialect.LINEN)
        SplitWish(path=None, dim=0)
        """
        # A number, with or without unit, is a limit in bytes; no spec starts with one.
        if isinstance(want, int) or re.match(r"\s*[0-9]", str(want)):
            return BytesWish(path, parse_bytes(want, "What is wanted", SpecError))
        if isinstance(want, str):
            if (match := _SPLIT.fullmatch(want.strip())) is not None:
                return SplitWish(path, _dimension(match[1], names))
            want = Spec.parse(want)
        if not isinstance(want, Spec):
            raise SpecError(
                "The goal for an array must be a PartitionSpec, 'split', 'split 1' or"
                f" a size per device such as '8 MiB'; got {shown(want)}."
            )
        if problem := rank_problem(want, len(names)):
            raise SpecError(str(problem))
        spec = want.of_rank(len(names))
        # A dialect that drops axes of size 1 never produces a spec with such axes.
        drops_axes = isinstance(dialect, NameDialect) and dialect.drops_size_one
        if drops_axes and mesh is not None:
            spec = without_size_one(spec, mesh)
        return SpecWish(path, spec)

    def met(self, spec: Spec, layout: Layout | None, mesh: MeshSpec | None) -> bool:
        """Whether the spec, or its layout, fulfils the request."""
        raise NotImplementedError


@dataclass(frozen=True)
class SpecWish(Wish):
    """A request to split the array like `spec`."""

    spec: Spec

    def met(self, spec: Spec, layout: Layout | None, mesh: MeshSpec | None) -> bool:
        return spec.equivalent(self.spec)


@dataclass(frozen=True)
class BytesWish(Wish):
    """A request for at most `limit` bytes of the array on each device."""

    limit: int

    def met(self, spec: Spec, layout: Layout | None, mesh: MeshSpec | None) -> bool:
        return layout is not None and layout.bytes_per_device <= self.limit


@dataclass(frozen=True)
class SplitWish(Wish):
    """A request to split dimension `dim`, or any dimension if `dim` is None."""

    dim: int | None = None

    def met(self, spec: Spec, layout: Layout | None, mesh: MeshSpec | None) -> bool:
        axes = spec.axes if self.dim is None else spec.dims[self.dim]
        # A mesh axis of size 1 splits nothing.
        return any(mesh is None or mesh.shape[axis] > 1 for axis in axes)


@dataclass(frozen=True)
class UnsplitWish(Wish):
    """A request to leave dimension `dim` unsplit, or every dimension if `dim` is None.

    The search adds this request if the array cannot be laid out under its table.
    """

    dim: int | None = None

    def met(self, spec: Spec, layout: Layout | None, mesh: MeshSpec | None) -> bool:
        return not (spec.axes if self.dim is None else spec.dims[self.dim])


def _dimension(text: str | None, names: Names) -> int | None:
    """Parses a dimension's number or logical name."""
    if text is None:
        return None
    # A logical name can consist of digits, so look for a name first.
    if text in names:
        return names.index(text)
    if re.fullmatch(r"[0-9]{1,3}", text) and int(text) < len(names):
        return int(text)
    raise RuleError(
        f"The array has no dimension {shown(text)}: it has"
        f" {plural(len(names), 'dimension')} ({joined(n or 'no name' for n in names)})."
        " Write 'split 0' or 'split' and a name."
    )


# --- actions: one edit of a table or of an array ---------------------------------------


@dataclass(frozen=True)
class Action(Fact):
    """One edit of a table or of an array; `str()` describes the edit.

    Attributes:
        order: if two actions have the same effect, the one with the smaller order is
            proposed.

    >>> NameDimension.order < AddLine.order
    True
    """

    order: ClassVar[int]

    @property
    def typo(self) -> bool:
        """Whether the edit only corrects a spelling mistake."""
        return False


@dataclass(frozen=True)
class TableAction(Action):
    """One edit of the table.

    Attributes:
        table: the table's lines before the edit, for the sentence that describes it.

    >>> action = RemoveLine((Rule("embed", ()), Rule("mlp", ("model",))), 0)
    >>> print(action)
    Remove rule 1 (embed → None)
    >>> print(*action.apply(action.table))
    mlp → model
    """

    table: tuple[Line, ...]

    def apply(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        """Returns the table's lines after the edit."""
        raise NotImplementedError

    @property
    def touched(self) -> tuple[Line, ...]:
        """The moved, removed and new lines; only arrays that they match can change."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReplaceLine(TableAction):
    """Replaces the line at position `index`."""

    index: int
    new: Line

    def apply(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        return (*lines[: self.index], self.new, *lines[self.index + 1 :])

    @property
    def touched(self) -> tuple[Line, ...]:
        return self.table[self.index], self.new


@dataclass(frozen=True)
class RenameLine(ReplaceLine):
    """Corrects the logical name or the pattern of a line."""

    order = 0

    @property
    def typo(self) -> bool:
        return True


@dataclass(frozen=True)
class MoveLine(TableAction):
    """Moves a line to position `place`, counted in the table without that line."""

    order = 2
    index: int
    place: int

    def apply(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        moved = list(lines)
        moved.insert(self.place, moved.pop(self.index))
        return tuple(moved)

    @property
    def touched(self) -> tuple[Line, ...]:
        return (self.table[self.index],)


@dataclass(frozen=True)
class RetargetLine(ReplaceLine):
    """Gives a rule other mesh axes, or a pattern another spec.

    Attributes:
        corrects: True if the edit only corrects a wrong rank or misspelt axes, or drops
            axes that the mesh doesn't have.
    """

    order = 3
    corrects: bool = False

    @property
    def typo(self) -> bool:
        return self.corrects


@dataclass(frozen=True)
class AddLine(TableAction):
    """Inserts a line at position `place`."""

    order = 4
    place: int
    new: Line

    def apply(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        return (*lines[: self.place], self.new, *lines[self.place :])

    @property
    def touched(self) -> tuple[Line, ...]:
        return (self.new,)


@dataclass(frozen=True)
class RemoveLine(TableAction):
    """Removes a line."""

    order = 5
    index: int

    def apply(self, lines: Sequence[Line]) -> tuple[Line, ...]:
        return (*lines[: self.index], *lines[self.index + 1 :])

    @property
    def touched(self) -> tuple[Line, ...]:
        return (self.table[self.index],)


@dataclass(frozen=True)
class NameDimension(Action):
    """Names a dimension of the array, or corrects its name.

    Attributes:
        dim: the dimension.
        new: the dimension's new logical name.
        old: the dimension's name before the edit, or None if it had none.
        path: the path of the array, or None.
        alike: the paths of other arrays that also get the name.
    """

    order = 1
    dim: int
    new: str
    old: str | None = None
    path: str | None = None
    alike: tuple[str, ...] = ()

    @property
    def typo(self) -> bool:
        return self.old is not None

    def apply(self, names: Names) -> Names:
        """Returns the array's logical names after the edit."""
        return (*names[: self.dim], self.new, *names[self.dim + 1 :])


@dataclass(frozen=True)
class KeepParameterNames(Action):
    """Gives an optimizer array its parameter's logical names, which it lost."""

    order = 6
    names: Names
    path: str


# --- remedies ---------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Remedy(Fact):
    """One edit that splits an array as requested, checked on every known array.

    Attributes:
        action: the edit.
        rules: the table after the edit.
        names: the array's logical names after the edit.
        spec: the array's spec after the edit.
        leaf_bytes_saved: bytes per device that the edit saves for this array; None if
            its shape or the mesh is unknown. If the array cannot be laid out before the
            edit, it is counted as replicated.
        bytes_saved: bytes per device that the edit saves for all known arrays, or None.
        others: the paths of other arrays whose spec changes.
        alike: the paths in `others` that get the same names: the same array of other
            layers, and optimizer moments.
        leaves_unsplit: True if the array cannot be laid out now, and the edit makes
            this possible only by leaving the array unsplit.
        fewer_shards: the number of different shards now and after the edit, if the edit
            makes the shards larger; else None, also if the mesh is unknown. A
            dimension that fails now is counted as unsplit.

    >>> import shardviz as sv
    >>> from shardviz.axis_rules.remedies import RemoveLine
    >>> from shardviz.axis_rules.rules import Rule
    >>> from shardviz.types import Remedy
    >>> action = RemoveLine((Rule("embed", ()),), 0)
    >>> Remedy(action, sv.Rules(), ("embed",), sv.Spec(((),))).edit
    'Remove rule 1 (embed → None)'
    """

    _adds = ("edit",)

    action: Action
    rules: Rules | PathRules
    names: Names
    spec: Spec
    leaf_bytes_saved: int | None = None
    bytes_saved: int | None = None
    others: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()
    leaves_unsplit: bool = False
    fewer_shards: tuple[int, int] | None = None

    @property
    def edit(self) -> str:
        """The edit, as a sentence without a full stop."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Remedy({self})"


# --- no remedy --------------------------------------------------------------------------


@dataclass(frozen=True)
class NoRemedy(Fact):
    """Why there is no remedy; `str()` gives the sentence.

    Attributes:
        code: the kind of reason.
        wish: the request that cannot be fulfilled.

    >>> print(NoAxes(SplitWish("step")))
    No rule table can split step: the mesh has no axis of more than one device.
    """

    code: ClassVar[str]
    wish: Wish


@dataclass(frozen=True)
class AlreadySplit(NoRemedy):
    """The array is already split as requested.

    Attributes:
        spec: the array's spec.
        bytes: the array's bytes per device; None if unknown.
    """

    code = "split already"
    spec: Spec
    bytes: int | None = None


@dataclass(frozen=True)
class OwnSpec(NoRemedy):
    """The array has its own PartitionSpec, which overrides any table."""

    code = "own spec"
    spec: Spec | None


@dataclass(frozen=True)
class NoNames(NoRemedy):
    """The array has no logical names, or they cannot be resolved because of `error`."""

    code = "no names"
    error: str = ""


@dataclass(frozen=True)
class NoLayout(NoRemedy):
    """The array cannot be laid out as requested, because of `error`."""

    code = "no layout"
    error: str


@dataclass(frozen=True)
class BytesUnknown(NoRemedy):
    """The bytes per device are unknown, because the shape or the mesh is missing."""

    code = "bytes unknown"


@dataclass(frozen=True)
class NoAxes(NoRemedy):
    """The mesh has no axis with more than one device."""

    code = "no axes"


@dataclass(frozen=True)
class TooSmall(NoRemedy):
    """Even if split as far as its sizes allow, the array needs `bytes` per device."""

    code = "too small"
    bytes: int


@dataclass(frozen=True)
class BreaksOthers(NoRemedy):
    """Every edit that fulfils the request makes another array impossible to lay out.

    Attributes:
        action: one of these edits.
        path: the path of an array that the edit breaks.
        error: why that array cannot be laid out after the edit.
    """

    code = "breaks others"
    action: Action
    path: str
    error: str


@dataclass(frozen=True)
class NoEdit(NoRemedy):
    """None of the edits that were tried fulfils the request."""

    code = "no edit"


@dataclass(frozen=True, repr=False)
class Remedies(Displayed, Sequence[Remedy]):
    """The edits that fulfil a request, best first; returned by `shardviz.remedies`.

    If the current rules cannot lay out the array, the last remedy leaves it unsplit.

    Attributes:
        items: the remedies.
        want: the request.
        why: why there is no remedy; None if there is one.

    >>> import shardviz as sv
    >>> from shardviz.axis_rules.remedies import AlreadySplit, SplitWish
    >>> from shardviz.types import Remedies
    >>> wish = SplitWish("w")
    >>> remedies = Remedies((), wish, AlreadySplit(wish, sv.Spec.parse("x")))
    >>> len(remedies), remedies.reason
    (0, "Nothing to change: w is already split as P('x').")
    """

    items: tuple[Remedy, ...]
    want: Wish
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
    def suggested(self) -> Remedy | None:
        """The best remedy that doesn't make the shards larger; None if all do."""
        return next((r for r in self.items if r.fewer_shards is None), None)

    @property
    def reason(self) -> str | None:
        """A sentence on why there is no remedy; None if there is one."""
        if self.why is None:
            return None
        return sentence(self.why)

    def explain(self) -> str:
        """Lists all remedies, one per line, or explains why there is none."""
        return explanation(self)

    def __repr__(self) -> str:
        if not self.items:
            return f"Remedies({self.reason})"
        return f"Remedies({len(self)}: {self.items[0].edit}, …)"
