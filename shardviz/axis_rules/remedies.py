"""Remedies: the smallest edits of a table that split an array as somebody wants.

These are the values; `remedy_search.py` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, overload

from shardviz.axis_rules.matching import Names, without_size_one
from shardviz.axis_rules.rules import Dialect, PathRule, PathRules, Rule, Rules
from shardviz.base.display import Displayed, Fact, explanation, sentence
from shardviz.base.errors import RuleError, SpecError
from shardviz.base.format import joined, plural, shown
from shardviz.base.layout import Layout
from shardviz.base.mesh import MeshSpec
from shardviz.base.parse import parse_bytes
from shardviz.base.partition_spec import Spec, rank_problem

Shape = tuple[int, ...] | None
_SPLIT = re.compile(r"split(?:\s+(?:dimension\s+|dim\s+)?(.+))?")


@dataclass(frozen=True)
class Wish(Fact):
    """What somebody wants of one array: a spec, to be split, or a limit of bytes.

    `str` of it is the rest of a sentence that begins with "to".

    Attributes:
        spec: the wanted spec, or None.
        dim: the dimension that is to be split, or None for any.
        limit: at most so many bytes per device, or None.
        path: the array, or None where it has no name.

    >>> mesh = MeshSpec(("data",), (4,))
    >>> Wish.of("8 MiB", ("embed",), mesh, Dialect.LINEN).limit
    8388608
    >>> Wish.of("split embed", ("embed",), mesh, Dialect.LINEN).dim
    0
    """

    spec: Spec | None = None
    dim: int | None = None
    limit: int | None = None
    path: str | None = None

    @staticmethod
    def of(
        want: Any,
        names: Names,
        mesh: MeshSpec | None,
        dialect: Dialect,
        path: str | None = None,
    ) -> Wish:
        """The wish that a Spec or a text is: `split`, `split 1`, `8 MiB`, or a spec.

        Raises:
            RuleError: for a dimension that the array has not.
            SpecError: for what cannot be read as a spec either.
        """
        # A number, alone or with a unit, is a limit of bytes; no spec begins so.
        if isinstance(want, int) or re.match(r"\s*[0-9]", str(want)):
            limit = parse_bytes(want, "What is wanted", SpecError)
            return Wish(limit=limit, path=path)
        if isinstance(want, str):
            if (match := _SPLIT.fullmatch(want.strip())) is not None:
                return Wish(dim=_dimension(match[1], names), path=path)
            want = Spec.parse(want)
        if not isinstance(want, Spec):
            raise SpecError(
                "What is wanted of an array is a PartitionSpec, 'split', 'split 1' or a"
                f" size per device such as '8 MiB'; got {shown(want)}."
            )
        if problem := rank_problem(want, len(names)):
            raise SpecError(str(problem))
        spec = want.of_rank(len(names))
        # MaxText drops axes of size 1, so a spec that has them is never met.
        if dialect is Dialect.MAXTEXT and mesh is not None:
            spec = without_size_one(spec, mesh)
        return Wish(spec, path=path)

    def met(self, spec: Spec, layout: Layout | None, mesh: MeshSpec | None) -> bool:
        """Whether the spec, or the layout that it makes, is what is wanted."""
        if self.spec is not None:
            return spec.equivalent(self.spec)
        if self.limit is not None:
            return layout is not None and layout.bytes_per_device <= self.limit
        axes = spec.axes
        if self.dim is not None:
            axes = spec.dims[self.dim]
        # An axis of size 1 splits nothing.
        return any(mesh is None or mesh.shape[axis] > 1 for axis in axes)


def _dimension(text: str | None, names: Names) -> int | None:
    """The dimension of that number or logical name."""
    if text is None:
        return None
    # A name may be a number, too, and then it is meant.
    if text in names:
        return names.index(text)
    if re.fullmatch(r"[0-9]{1,3}", text) and int(text) < len(names):
        return int(text)
    raise RuleError(
        f"The array has no dimension {shown(text)}: it has"
        f" {plural(len(names), 'dimension')} ({joined(n or 'no name' for n in names)})."
        " Write 'split 0' or 'split' and a name."
    )


class Kind(IntEnum):
    """What an edit does; of two with the same effect the first named here comes first.

    `RULE_NAME` corrects the name or the pattern of a line, `AXES` gives it others.
    `NAMES` is for an array of an optimizer that lost the names of its parameter.

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
    NAMES = 7


@dataclass(frozen=True)
class Step(Fact):
    """One edit of one table or one array.

    Attributes:
        kind: what it does.
        subject: the index of a line, or a dimension of the array; None for a new line.
        place: the index that a line goes to, as in `list.insert`.
        new: what becomes of it: a line, a name, a size or all names; None where a place
            says all.
        old: the name or size of the array before.
        typo: whether it corrects a mistake in spelling and nothing else.
        rules: the lines of the table before it.
        path: the array, or None.
        alike: how many other arrays are edited with it.
        parts: for a size, what it becomes a multiple of.

    >>> print(Step(Kind.REMOVE, 0, rules=(Rule("embed", ()),)))
    Remove rule 1 (embed → None)
    """

    kind: Kind
    subject: int | None = None
    place: int = 0
    new: Rule | PathRule | str | int | Names | None = None
    old: str | int | None = None
    typo: bool = False
    # From here on for the sentence: what was there before.
    rules: tuple[Rule | PathRule, ...] = ()
    path: str | None = None
    alike: int = 0
    parts: int = 0


@dataclass(frozen=True)
class NoRemedy(Fact):
    """Why there is no remedy.

    Attributes:
        code: `"split already"`, `"own spec"`, `"no names"`, `"no layout"`, `"bytes
            unknown"`, `"no axes"`, `"too small"`, `"breaks others"` or `"no edit"`.
        wish: what was wanted.
        spec: for `"split already"` and `"own spec"`, the spec.
        bytes: per device: as it is, or at least.
        error: for `"no layout"`, `"no names"` and `"breaks others"`, what was raised.
        steps: for `"breaks others"`, one of the edits that do.
        path: an array that breaks.

    >>> print(NoRemedy("no axes", Wish(path="step")))
    No table can split step: the mesh has no axis of more than one device.
    """

    code: str
    wish: Wish
    spec: Spec | None = None
    bytes: int | None = None
    error: str = ""
    steps: tuple[Step, ...] = ()
    path: str = ""


@dataclass(frozen=True, repr=False)
class Remedy(Fact):
    """One way to split an array as it was wanted, checked on every known array.

    Attributes:
        steps: what to do, as facts, one edit after the other.
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

    >>> one = Step(Kind.REMOVE, 0, rules=(Rule("embed", ()),))
    >>> Remedy((one,), Rules(), ("embed",), None, Spec(((),))).edit
    'Remove rule 1 (embed → None)'
    """

    steps: tuple[Step, ...]
    rules: Rules | PathRules
    names: Names
    shape: Shape
    spec: Spec
    leaf_bytes_saved: int | None = None
    bytes_saved: int | None = None
    others: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()

    @property
    def edit(self) -> str:
        """What to do, as a sentence."""
        first, *rest = map(str, self.steps)
        for more in rest:
            first += f", then {more[0].lower()}{more[1:]}"
        return first

    def __repr__(self) -> str:
        return f"Remedy({self})"


@dataclass(frozen=True, repr=False)
class Remedies(Displayed, Sequence[Remedy]):
    """The edits that give what was wanted, the smallest first.

    Made by `shardviz.remedies`.

    Attributes:
        items: the remedies.
        want: what was wanted; `str` of it is the rest of a sentence.
        why: where there is none, why; else None.

    >>> wish = Wish(path="w")
    >>> found = Remedies((), wish, NoRemedy("split already", wish, Spec.parse("x")))
    >>> len(found), found.reason
    (0, "Nothing to change: w is split as P('x').")
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
    def reason(self) -> str | None:
        """Where there is no remedy, one sentence on why; else None."""
        if self.why is None:
            return None
        return sentence(self.why)

    def explain(self) -> str:
        """All of them, one line each, or why there is none."""
        return explanation(self)

    def __repr__(self) -> str:
        if not self.items:
            return f"Remedies({self.reason})"
        return f"Remedies({len(self)}: {self.items[0].edit}, …)"
