"""Verdicts: what one rule did for one dimension, or one pattern for one path, and why.

Each kind of verdict is a class with the facts of its sentence. `docs/semantics.md`
explains the kinds and names their sources; `axis_rules/words/rules.py` has the sentences.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from shardviz.axis_rules.dialects import Dialect, NameDialect
from shardviz.axis_rules.rules import PathRule, Rule, Rules
from shardviz.base.display import Fact, explanation
from shardviz.base.layout import Misfit
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import WrongRank

#: A mesh axis, the dimension that it splits, and the index of the rule that gave it.
Holder = tuple[str, int, int | None]


class Outcome(enum.Enum):
    """The kinds of verdict.

    >>> Outcome("axis taken") is Outcome.TAKEN
    True
    """

    APPLIED = "applied"
    UNSPLIT = "terminal None"
    SIZE_ONE = "axis of size 1"
    MATCHED = "matched"
    ONE_ELEMENT = "one element"
    WRONG_RANK = "wrong rank"
    INDIVISIBLE = "does not divide"
    MISSING_AXIS = "axis not in the mesh"
    REPEATED = "axis named twice"
    OTHER_NAME = "other name"
    DECIDED = "dimension already decided"
    TAKEN = "axis taken"
    PART_TAKEN = "only part of the tuple is free"
    OVERRIDDEN = "overridden by a later rule"
    SHADOWED = "shadowed"
    SEVERAL = "several match"
    NO_MATCH = "does not match"
    INVALID = "no regular expression"


#: The outcomes of a line that decides although the array cannot be laid out that way.
BROKEN = (
    Outcome.WRONG_RANK,
    Outcome.INDIVISIBLE,
    Outcome.MISSING_AXIS,
    Outcome.REPEATED,
)


@dataclass(frozen=True, repr=False)
class Verdict(Fact):
    """What one line of a table did, and why. `str` of it is the sentence.

    In a table of names it is about one dimension, in one of paths about a whole array.
    Each kind is a subclass.

    Attributes:
        outcome: the kind of verdict.
        rule: the index of the line in the table, from 0.
        line: the line: a rule or a pattern.

    >>> verdict = DecidedBefore(4, Rule("embed", ("data",)), by_rule=3)
    >>> verdict
    Verdict(rule 5, embed → data: dimension already decided)
    >>> verdict.decides, verdict.kind
    (False, 'dimension already decided')
    >>> print(verdict)
    rule 5 (embed → data) comes after rule 4, which already decided this dimension.
    """

    outcome: ClassVar[Outcome]
    rule: int
    line: Rule | PathRule

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the line asks for."""
        return self.line.axes

    @property
    def decides(self) -> bool:
        """True if this line decided, even if the array cannot be laid out that way."""
        return isinstance(self, Deciding)

    @property
    def kind(self) -> str:
        """The outcome in words, such as `"axis taken"`."""
        return self.outcome.value

    @property
    def reason(self) -> str:
        """The sentence without the line."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Verdict(rule {self.rule + 1}, {self.line}: {self.kind})"


# --- the line decides -------------------------------------------------------------------


class Deciding(Verdict):
    """The line decided."""


@dataclass(frozen=True, repr=False)
class Applied(Deciding):
    """The dimension is split over the axes of the rule, or left to the compiler.

    Attributes:
        mesh: the mesh that the rule was checked against, or None.
        drops_size_one: as in `NameDialect`.
    """

    outcome = Outcome.APPLIED
    # Only the sentence uses these: verdicts that differ in them are equal.
    mesh: MeshSpec | None = field(default=None, compare=False)
    drops_size_one: bool = field(default=False, compare=False)


@dataclass(frozen=True, repr=False)
class SizeOne(Applied):
    """The rule's axes have size 1, so the dimension is not split."""

    outcome = Outcome.SIZE_ONE


@dataclass(frozen=True, repr=False)
class Unsplit(Deciding):
    """The rule leads to None: the dimension is not split and the search ends."""

    outcome = Outcome.UNSPLIT


@dataclass(frozen=True, repr=False)
class Matched(Deciding):
    """The pattern gives the spec of the array."""

    outcome = Outcome.MATCHED


@dataclass(frozen=True, repr=False)
class OneElement(Deciding):
    """The pattern matches, but the dialect leaves arrays of one element unsplit."""

    outcome = Outcome.ONE_ELEMENT


@dataclass(frozen=True, repr=False)
class RankMismatch(Deciding):
    """The spec of the pattern has more entries than the array has dimensions."""

    outcome = Outcome.WRONG_RANK
    wrong_rank: WrongRank


@dataclass(frozen=True, repr=False)
class Indivisible(Deciding):
    """The number of shards does not divide the size of a dimension.

    Attributes:
        misfit: the sizes, and the sizes that would divide.
        dimension: the dimension, counted among those that the line decides.
    """

    outcome = Outcome.INDIVISIBLE
    misfit: Misfit
    dimension: int = 0


@dataclass(frozen=True, repr=False)
class MissingAxis(Deciding):
    """The mesh lacks the axes `absent`."""

    outcome = Outcome.MISSING_AXIS
    absent: tuple[str, ...]
    mesh: MeshSpec = field(compare=False)


@dataclass(frozen=True, repr=False)
class AxisTwice(Deciding):
    """The line names an axis twice."""

    outcome = Outcome.REPEATED


@dataclass(frozen=True, repr=False)
class AxisShared(Deciding):
    """Other dimensions have the axes of the rule, too, which nnx does not prevent.

    Attributes:
        taken: these axes and dimensions.
    """

    outcome = Outcome.REPEATED
    taken: tuple[Holder, ...]


# --- the line does not decide -----------------------------------------------------------


@dataclass(frozen=True, repr=False)
class OtherName(Verdict):
    """The rule is for another name than `name`, that of the dimension."""

    outcome = Outcome.OTHER_NAME
    name: str | None = None


@dataclass(frozen=True, repr=False)
class DecidedBefore(Verdict):
    """The earlier rule `by_rule` for the same name decided."""

    outcome = Outcome.DECIDED
    by_rule: int


@dataclass(frozen=True, repr=False)
class Taken(Verdict):
    """Other dimensions use all axes of the rule.

    Attributes:
        taken: the axes in use, each with its dimension and the rule that gave it.
    """

    outcome = Outcome.TAKEN
    taken: tuple[Holder, ...]


@dataclass(frozen=True, repr=False)
class PartTaken(Taken):
    """Other dimensions use some axes of the rule, which needs all of them."""

    outcome = Outcome.PART_TAKEN


@dataclass(frozen=True, repr=False)
class Overridden(Verdict):
    """The later rule `by_rule` for the same name replaces it, as in a dict."""

    outcome = Outcome.OVERRIDDEN
    by_rule: int
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class Shadowed(Verdict):
    """The pattern matches, but the pattern `by_rule` decides.

    Attributes:
        by_key: True if that pattern is the path itself, which `library` takes first.
    """

    outcome = Outcome.SHADOWED
    by_rule: int
    by_key: bool = field(default=False, compare=False)
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class SeveralMatch(Verdict):
    """All patterns of `several` match, and `library` allows one."""

    outcome = Outcome.SEVERAL
    several: tuple[int, ...]
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class NoMatch(Verdict):
    """The pattern does not match the path.

    Attributes:
        lacks: words of the pattern that are not in the path.
        wider: a pattern that matches the path, if this one matches only a part of it
            and older versions of `library` allowed that; else `""`.
    """

    outcome = Outcome.NO_MATCH
    lacks: tuple[str, ...] = ()
    wider: str = ""
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class Invalid(Verdict):
    """The pattern cannot be matched because of `error`."""

    outcome = Outcome.INVALID
    error: str


#: Every kind of verdict.
VERDICTS: tuple[type[Verdict], ...] = (
    Applied,
    Unsplit,
    SizeOne,
    Matched,
    OneElement,
    RankMismatch,
    Indivisible,
    MissingAxis,
    AxisTwice,
    AxisShared,
    OtherName,
    DecidedBefore,
    Taken,
    PartTaken,
    Overridden,
    Shadowed,
    SeveralMatch,
    NoMatch,
    Invalid,
)


def deciding(
    index: int,
    line: Rule | PathRule,
    dims: Sequence[tuple[str, ...]],
    sizes: Sequence[int] | None,
    mesh: MeshSpec | None,
    dialect: Dialect,
    used: tuple[str, ...],
) -> Verdict:
    """The verdict on the line that decided: can this mesh split these sizes that way?

    Args:
        index: the position of the line.
        line: the rule or pattern.
        dims: the axes of each dimension that it decides.
        sizes: the sizes of these dimensions, or None if they are unknown.
        mesh: the mesh, or None.
        dialect: the library that reads the table.
        used: the axes that split any dimension of the array; they are not suggested.
    """
    axes = line.axes
    # First problems on every mesh, then problems of this mesh, then sizes.
    if len(set(axes)) < len(axes):
        return AxisTwice(index, line)
    if mesh is not None:
        absent = tuple(a for a in dict.fromkeys(axes) if a not in mesh.shape)
        if absent:
            return MissingAxis(index, line, absent, mesh)
        # An axis splits an array once, so an axis in use is not an alternative.
        free = tuple(a for a in mesh.axis_names if a not in used)
        for dim, (size, over) in enumerate(zip(sizes or (), dims, strict=False)):
            misfit = Misfit.find(size, over, mesh, free)
            if misfit is not None:
                return Indivisible(index, line, misfit, dim)
    if isinstance(line, PathRule):
        return Matched(index, line)
    if not axes and not line.free:
        return Unsplit(index, line)
    drops = isinstance(dialect, NameDialect) and dialect.drops_size_one
    if mesh is not None and axes and all(mesh.shape[a] == 1 for a in axes):
        return SizeOne(index, line, mesh, drops)
    return Applied(index, line, mesh, drops)


# --- decisions and problems -------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Decision(Fact):
    """How one dimension is split, and which rule decided it. `str` of it is one line.

    Attributes:
        dimension: its position in the array.
        logical: its logical name, or None.
        axes: the mesh axes that split it; `()` if it is not split.
        rule: the index of the rule that decided, or None.
        verdicts: one Verdict per rule, in table order.
        passed_through: True if the dialect took a name without a rule for a mesh axis.
        rules: the table.
        dialect: the library that reads the table.

    >>> from shardviz.axis_rules.resolution import resolve
    >>> decision = resolve("embed mlp", [("mlp", "model")]).decisions[1]
    >>> decision
    Decision(dimension 1, mlp → model by rule 1)
    >>> decision.axes, decision.rule, decision.deciding.kind
    (('model',), 0, 'applied')
    """

    dimension: int
    logical: str | None
    axes: tuple[str, ...]
    rule: int | None
    verdicts: tuple[Verdict, ...]
    passed_through: bool = False
    rules: Rules = field(default_factory=Rules, compare=False)
    dialect: NameDialect = field(default=Dialect.LINEN, compare=False)

    @property
    def deciding(self) -> Verdict | None:
        """The verdict on the rule that decided, or None."""
        if self.rule is None:
            return None
        return self.verdicts[self.rule]

    @property
    def unknown(self) -> bool:
        """True if it has a name without a rule."""
        return isinstance(self.logical, str) and self.logical not in self.rules.by_name

    @property
    def near(self) -> str | None:
        """For a name without a rule, the nearest name that has one, if any."""
        if not self.unknown or self.logical is None:
            return None
        return self.rules.nearest(self.logical)

    def __repr__(self) -> str:
        by = "no rule"
        if self.rule is not None:
            by = f"rule {self.rule + 1}"
        split = Rule(self.logical or "nameless", self.axes)
        return f"Decision(dimension {self.dimension}, {split} by {by})"


@dataclass(frozen=True)
class Problem(Fact):
    """Why a mesh cannot have the spec of an array, or why the array has no spec.

    Each kind is a subclass; `str` of it is the sentence.

    Attributes:
        code: the kind of problem.

    >>> print(SpecProblem("Mesh axis 'x' is named twice."))
    Mesh axis 'x' is named twice.
    """

    code: ClassVar[str]


@dataclass(frozen=True)
class VerdictProblem(Problem):
    """The rule that decided a dimension cannot be carried out."""

    code = "verdict"
    decision: Decision


@dataclass(frozen=True)
class AxisNameProblem(Problem):
    """The dialect took a logical name for a mesh axis that the mesh lacks."""

    code = "name is no axis"
    decision: Decision


@dataclass(frozen=True)
class SpecProblem(Problem):
    """The spec as a whole does not fit the mesh, because of `error`."""

    code = "spec"
    error: str


@dataclass(frozen=True)
class NoMatchProblem(Problem):
    """No pattern matches the path, which is an error in `library`."""

    code = "no match"
    library: str


@dataclass(frozen=True)
class SeveralMatchProblem(Problem):
    """Several patterns match the path, and `library` allows one."""

    code = "several match"
    patterns: tuple[str, ...]
    library: str


@dataclass(frozen=True)
class UnreadableProblem(Problem):
    """The path or a pattern cannot be read, because of `error`."""

    code = "unreadable"
    error: str
