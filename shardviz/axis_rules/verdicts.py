"""Verdicts: what one rule did for one dimension, or one pattern for one path, and why.

Each kind of verdict is a class whose fields are the facts that its sentence needs.
`docs/semantics.md` explains each kind and names its source; the sentences are in
`axis_rules/words/rules.py`.
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

#: (mesh axis, dimension that it splits, index of the deciding rule or None).
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


#: Outcomes of a rule that decides on a split that the array or mesh cannot have.
BROKEN = (
    Outcome.WRONG_RANK,
    Outcome.INDIVISIBLE,
    Outcome.MISSING_AXIS,
    Outcome.REPEATED,
)


@dataclass(frozen=True, repr=False)
class Verdict(Fact):
    """What one line of a rule table did, and why; `str()` gives the sentence.

    With Rules, a verdict is about one dimension; with PathRules, about a whole array.
    Each kind of verdict is a subclass.

    Attributes:
        outcome: the kind of verdict.
        rule: the index of the line in the table, from 0.
        line: the line itself: a Rule or a PathRule.

    >>> from shardviz.axis_rules.rules import Rule
    >>> from shardviz.axis_rules.verdicts import DecidedBefore
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
        """The mesh axes that the line names."""
        return self.line.axes

    @property
    def decides(self) -> bool:
        """Whether this line decided, even if its decision cannot be laid out."""
        return isinstance(self, Deciding)

    @property
    def kind(self) -> str:
        """The outcome as text, such as `"axis taken"`."""
        return self.outcome.value

    @property
    def reason(self) -> str:
        """The sentence, without the rule at its beginning."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Verdict(rule {self.rule + 1}, {self.line}: {self.kind})"


# --- the line decides -------------------------------------------------------------------


class Deciding(Verdict):
    """Base class of verdicts on the line that decided."""


@dataclass(frozen=True, repr=False)
class Applied(Deciding):
    """The dimension is split over the rule's axes, or left to the compiler.

    Attributes:
        mesh: the mesh that the rule was checked against, or None.
        drops_size_one: see `NameDialect.drops_size_one`.
    """

    outcome = Outcome.APPLIED
    # Used only in the sentence: verdicts that differ only in these fields are equal.
    mesh: MeshSpec | None = field(default=None, compare=False)
    drops_size_one: bool = field(default=False, compare=False)


@dataclass(frozen=True, repr=False)
class SizeOne(Applied):
    """The rule's axes have size 1, so the dimension is not split."""

    outcome = Outcome.SIZE_ONE


@dataclass(frozen=True, repr=False)
class Unsplit(Deciding):
    """The rule maps to None, so that the dimension stays unsplit.

    Later rules for the same name are ignored.
    """

    outcome = Outcome.UNSPLIT


@dataclass(frozen=True, repr=False)
class Matched(Deciding):
    """The pattern determines the array's spec."""

    outcome = Outcome.MATCHED


@dataclass(frozen=True, repr=False)
class OneElement(Deciding):
    """The pattern matches, but the dialect doesn't split arrays of one element."""

    outcome = Outcome.ONE_ELEMENT


@dataclass(frozen=True, repr=False)
class RankMismatch(Deciding):
    """The pattern's spec has more entries than the array has dimensions."""

    outcome = Outcome.WRONG_RANK
    wrong_rank: WrongRank


@dataclass(frozen=True, repr=False)
class Indivisible(Deciding):
    """A dimension's size is not divisible by the number of shards.

    Attributes:
        misfit: the sizes, and alternatives that would divide.
        dimension: 0 for a Rule; the array dimension for a PathRule.
    """

    outcome = Outcome.INDIVISIBLE
    misfit: Misfit
    dimension: int = 0


@dataclass(frozen=True, repr=False)
class MissingAxis(Deciding):
    """The mesh doesn't have the axes in `absent`."""

    outcome = Outcome.MISSING_AXIS
    absent: tuple[str, ...]
    mesh: MeshSpec = field(compare=False)


@dataclass(frozen=True, repr=False)
class AxisTwice(Deciding):
    """The line names a mesh axis twice."""

    outcome = Outcome.REPEATED


@dataclass(frozen=True, repr=False)
class AxisShared(Deciding):
    """Other dimensions also use the rule's axes; nnx does not prevent this.

    Attributes:
        taken: (mesh axis, other dimension, None) for each shared axis.
    """

    outcome = Outcome.REPEATED
    taken: tuple[Holder, ...]


# --- the line does not decide -----------------------------------------------------------


@dataclass(frozen=True, repr=False)
class OtherName(Verdict):
    """The rule is for a different name; the dimension is called `name`."""

    outcome = Outcome.OTHER_NAME
    name: str | None = None


@dataclass(frozen=True, repr=False)
class DecidedBefore(Verdict):
    """An earlier rule for the same name, `by_rule`, decided the dimension."""

    outcome = Outcome.DECIDED
    by_rule: int


@dataclass(frozen=True, repr=False)
class Taken(Verdict):
    """Other dimensions already use all of the rule's axes.

    Attributes:
        taken: (mesh axis, other dimension, deciding rule) for each axis in use.
    """

    outcome = Outcome.TAKEN
    taken: tuple[Holder, ...]


@dataclass(frozen=True, repr=False)
class PartTaken(Taken):
    """Other dimensions use some of the rule's axes, but the rule needs all."""

    outcome = Outcome.PART_TAKEN


@dataclass(frozen=True, repr=False)
class Overridden(Verdict):
    """A later rule for the same name, `by_rule`, replaces this one, as in a dict."""

    outcome = Outcome.OVERRIDDEN
    by_rule: int
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class Shadowed(Verdict):
    """The pattern matches, but another pattern, `by_rule`, decides.

    Attributes:
        by_key: True if the other pattern equals the path; `library` prefers such keys.
    """

    outcome = Outcome.SHADOWED
    by_rule: int
    by_key: bool = field(default=False, compare=False)
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class SeveralMatch(Verdict):
    """All patterns in `several` match, but `library` allows only one match."""

    outcome = Outcome.SEVERAL
    several: tuple[int, ...]
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class NoMatch(Verdict):
    """The pattern does not match the path.

    Attributes:
        lacks: words in the pattern that are not in the path.
        wider: a pattern that matches the whole path, if this one matches only a part of
            it and older versions of `library` allowed that; else `""`.
    """

    outcome = Outcome.NO_MATCH
    lacks: tuple[str, ...] = ()
    wider: str = ""
    library: str = field(default="", compare=False)


@dataclass(frozen=True, repr=False)
class Invalid(Verdict):
    """The pattern is invalid because of `error`."""

    outcome = Outcome.INVALID
    error: str


def deciding(
    index: int,
    line: Rule | PathRule,
    dims: Sequence[tuple[str, ...]],
    sizes: Sequence[int] | None,
    mesh: MeshSpec | None,
    dialect: Dialect,
    used: tuple[str, ...],
) -> Verdict:
    """Returns the verdict on the line that decided, which can still be a failure.

    Args:
        index: the line's index in the table.
        line: the rule or pattern.
        dims: the mesh axes of each dimension that the line decides.
        sizes: the sizes of these dimensions, or None if unknown.
        mesh: the mesh, or None.
        dialect: the library that reads the table.
        used: mesh axes that split any dimension of the array; never suggested.
    """
    axes = line.axes
    # Check for problems on any mesh first, then this mesh, then the sizes.
    if len(set(axes)) < len(axes):
        return AxisTwice(index, line)
    if mesh is not None:
        absent = tuple(a for a in dict.fromkeys(axes) if a not in mesh.shape)
        if absent:
            return MissingAxis(index, line, absent, mesh)
        # Don't suggest axes in use: an axis can split an array only once.
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
    """How one dimension is split, and which rule decided it; `str()` gives one line.

    Attributes:
        dimension: the dimension's number in the array.
        logical: the dimension's logical name, or None.
        axes: the mesh axes that split the dimension; `()` if it is not split.
        rule: the index of the rule that decided, or None.
        verdicts: one Verdict per rule, in table order.
        passed_through: True if the name has no rule and was used as a mesh axis.
        rules: the table.
        dialect: the library that reads the table.

    >>> import shardviz as sv
    >>> decision = sv.resolve("embed mlp", [("mlp", "model")]).decisions[1]
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
        """Whether the dimension has a name without a rule."""
        return isinstance(self.logical, str) and self.logical not in self.rules.by_name

    @property
    def near(self) -> str | None:
        """For a name without a rule, the nearest name in the table, if any."""
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
    """Why an array's spec is invalid on the mesh, or why the array has no spec.

    Each kind of problem is a subclass; `str()` gives the sentence.

    Attributes:
        code: the kind of problem.

    >>> print(SpecProblem("Mesh axis 'x' is named twice."))
    Mesh axis 'x' is named twice.
    """

    code: ClassVar[str]


@dataclass(frozen=True)
class VerdictProblem(Problem):
    """The rule that decided a dimension cannot be applied on the mesh."""

    code = "verdict"
    decision: Decision


@dataclass(frozen=True)
class AxisNameProblem(Problem):
    """The dialect used a logical name as a mesh axis that the mesh doesn't have."""

    code = "name is no axis"
    decision: Decision


@dataclass(frozen=True)
class SpecProblem(Problem):
    """The spec as a whole is invalid on the mesh, because of `error`."""

    code = "spec"
    error: str


@dataclass(frozen=True)
class NoMatchProblem(Problem):
    """No pattern matches the path, which is an error in `library`."""

    code = "no match"
    library: str


@dataclass(frozen=True)
class SeveralMatchProblem(Problem):
    """Several patterns match the path, but `library` allows only one match."""

    code = "several match"
    patterns: tuple[str, ...]
    library: str


@dataclass(frozen=True)
class UnreadableProblem(Problem):
    """The path or a pattern cannot be parsed, because of `error`."""

    code = "unreadable"
    error: str
