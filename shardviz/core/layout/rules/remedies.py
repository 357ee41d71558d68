"""Remedies: the smallest edits of a table that split an array as somebody wants.

These are the values; `remedy_search.py` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import overload

from shardviz.core.display import Displayed, Fact, explanation, sentence
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec
from shardviz.core.layout.rules.matching import Names
from shardviz.core.layout.rules.rules import PathRule, PathRules, Rule, Rules
from shardviz.core.layout.rules.wishes import Wish

Shape = tuple[int, ...] | None


class Kind(IntEnum):
    """What an edit does; of two with the same effect the first named here comes first.

    `RULE_NAME` corrects the name or the pattern of a line, `AXES` gives it others.

    >>> Kind.MOVE < Kind.ADD
    True
    """

    RULE_NAME = 0
    ARRAY_NAME = 1
    MOVE = 2
    AXES = 3
    ADD = 4
    REMOVE = 5
    SIZE = 6


@dataclass(frozen=True)
class Step(Fact):
    """One edit of one table and one array.

    Attributes:
        kind: what it does.
        subject: the index of a line, or a dimension of the array; None for a new line.
        place: the index that a line goes to, as in `list.insert`.
        new: what becomes of it: a line, a name or a size; None where a place says all.
        rules: the lines of the table before it.
        old: the name or size of the array before.
        path: the array, or None.
        alike: how many other arrays are edited with it.
        parts: for a size, what it becomes a multiple of.

    >>> print(Step(Kind.REMOVE, 0, rules=(Rule("embed", ()),)))
    Remove rule 1 (embed → None)
    """

    kind: Kind
    subject: int | None = None
    place: int = 0
    new: Rule | PathRule | str | int | None = None
    rules: tuple[Rule | PathRule, ...] = ()
    old: str | int | None = None
    path: str | None = None
    alike: int = 0
    parts: int = 0


@dataclass(frozen=True)
class Steps(Fact):
    """Edits one after the other.

    >>> len(Steps((Step(Kind.REMOVE, 0),)).steps)
    1
    """

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class NamesFromParameter(Fact):
    """The edit for an optimizer's array that lost the names of its parameter.

    >>> NamesFromParameter("mu/w", ("embed",)).names
    ('embed',)
    """

    path: str
    names: Names


@dataclass(frozen=True)
class NoRemedy(Fact):
    """Why there is no remedy.

    Attributes:
        code: `"split already"`, `"own spec"`, `"no names"`, `"unreduced"`, `"no
            layout"`, `"bytes unknown"`, `"no axes"`, `"too small"`, `"breaks others"`
            or `"no edit"`; for a table of paths also `"one element"`, `"scalar"` and
            `"does not divide"`.
        wish: what was wanted.
        spec: for `"split already"` and `"own spec"`, the spec.
        bytes: per device: as it is, or at least.
        error: for `"no layout"`, `"no names"` and `"breaks others"`, what was raised.
        mesh: for `"no axes"` and `"does not divide"`, the mesh, or None.
        sizes: for `"does not divide"`, the sizes.
        steps: for `"breaks others"`, one of the edits that do.
        path: an array that breaks.

    >>> print(NoRemedy("scalar", Wish(path="step")))
    No table can split step: it has no dimension.
    """

    code: str
    wish: Wish
    spec: Spec | None = None
    bytes: int | None = None
    error: str = ""
    mesh: MeshSpec | None = None
    sizes: tuple[int, ...] = ()
    steps: Steps | None = None
    path: str = ""


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

    >>> one = Steps((Step(Kind.REMOVE, 0, rules=(Rule("embed", ()),)),))
    >>> Remedy(one, Rules(), ("embed",), None, Spec(((),)), None, None, ()).edit
    'Remove rule 1 (embed → None)'
    """

    change: Steps | NamesFromParameter
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
