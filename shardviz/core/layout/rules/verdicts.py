"""Verdicts: what one rule did for one dimension, or one pattern for one path, and why.

`docs/semantics.md` has what each kind means and where it comes from; the sentences are
in `core/wording/rules.py`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from shardviz.core.display import Fact, explanation
from shardviz.core.layout.layout import Misfit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec, WrongRank, rank_problem
from shardviz.core.layout.rules.rules import Dialect, PathRule, Rule, Rules


class Outcome(enum.Enum):
    """The kinds of verdict. With the first six the rule decides the dimension.

    >>> Outcome("axis taken") is Outcome.TAKEN
    True
    """

    APPLIED = "applied"
    UNSPLIT = "terminal None"
    SIZE_ONE = "axis of size 1"
    INDIVISIBLE = "does not divide"
    MISSING_AXIS = "axis not in the mesh"
    REPEATED = "axis named twice"
    OTHER_NAME = "other name"
    DECIDED = "dimension already decided"
    TAKEN = "axis taken"
    PART_TAKEN = "only part of the tuple is free"
    OVERRIDDEN = "overridden by a later rule"


_DECIDING = (*Outcome,)[:6]
#: Those by which a rule decides and the array cannot be laid out.
BROKEN = (Outcome.INDIVISIBLE, Outcome.MISSING_AXIS, Outcome.REPEATED)


@dataclass(frozen=True, repr=False)
class Verdict(Fact):
    """What rule number `rule` (0-based, in table order) did for one dimension.

    Attributes:
        rule: the index of the rule in the table.
        logical: the logical name the rule is for.
        axes: the mesh axes it wants.
        outcome: the kind of verdict.
        taken: for TAKEN and PART_TAKEN, the axes that were not free, each with the
            dimension that uses it and the index of the rule that gave it. For REPEATED,
            the axes that another dimension has, too, which nnx allows.
        by_rule: for DECIDED and OVERRIDDEN, the rule that decided instead.
        misfit: for INDIVISIBLE, the sizes that do not divide and what would work.
        absent: for MISSING_AXIS, the axes that the mesh lacks.
        free: whether the rule leads to `P.UNCONSTRAINED`.
        name: for OTHER_NAME, the logical name of the dimension, or None.
        mesh: the mesh that a deciding rule was checked against, or None.
        drops: whether the dialect drops axes of size 1 from the spec.

    >>> verdict = Verdict(4, "embed", ("data",), Outcome.DECIDED, by_rule=3)
    >>> verdict
    Verdict(rule 5, embed → data: dimension already decided)
    >>> verdict.decides, verdict.kind
    (False, 'dimension already decided')
    >>> print(verdict)
    rule 5 (embed → data) comes after rule 4, which already decided this dimension.
    """

    rule: int
    logical: str
    axes: tuple[str, ...]
    outcome: Outcome
    taken: tuple[tuple[str, int, int | None], ...] = ()
    by_rule: int | None = None
    misfit: Misfit | None = None
    absent: tuple[str, ...] = ()
    free: bool = False
    name: str | None = None
    mesh: MeshSpec | None = field(default=None, compare=False)
    drops: bool = False

    @property
    def decides(self) -> bool:
        """Whether this rule decided the dimension, even if it cannot be laid out so."""
        return self.outcome in _DECIDING

    @property
    def kind(self) -> str:
        """The outcome in words, such as `"axis taken"`."""
        return self.outcome.value

    @property
    def target(self) -> Rule:
        """The rule, without its place in the table."""
        return Rule(self.logical, self.axes, self.free)

    @property
    def reason(self) -> str:
        """What it did, without the rule."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Verdict(rule {self.rule + 1}, {self.target}: {self.kind})"


def deciding(
    index: int,
    rule: Rule,
    mesh: MeshSpec | None,
    size: int | None,
    drops: bool,
    used: tuple[str, ...],
) -> Verdict:
    """The verdict on the rule that decided: whether this mesh can split this size so.

    Args:
        used: the axes that split any dimension of the array: they are not suggested.
    """
    axes, outcome = rule.axes, Outcome.APPLIED
    fields: dict[str, Any] = {}
    absent = _absent(axes, mesh)
    if not axes:
        if not rule.free:
            outcome = Outcome.UNSPLIT
    elif len(set(axes)) < len(axes):
        outcome = Outcome.REPEATED
    elif absent:
        outcome, fields = Outcome.MISSING_AXIS, {"absent": absent}
    elif mesh is not None:
        free = tuple(a for a in mesh.axis_names if a not in used)
        misfit = None
        if size is not None:
            misfit = Misfit.find(size, axes, mesh, free)
        if misfit is not None:
            outcome, fields = Outcome.INDIVISIBLE, {"misfit": misfit}
        elif all(mesh.shape[a] == 1 for a in axes):
            outcome = Outcome.SIZE_ONE
    fields |= {"free": rule.free, "mesh": mesh, "drops": drops}
    return Verdict(index, rule.logical, axes, outcome, **fields)


def _absent(axes: tuple[str, ...], mesh: MeshSpec | None) -> tuple[str, ...]:
    """The axes that a mesh lacks, once each."""
    if mesh is None:
        return ()
    return tuple(a for a in dict.fromkeys(axes) if a not in mesh.shape)


@dataclass(frozen=True, repr=False)
class Decision(Fact):
    """How one dimension is split, and which rule decided it. `str` of it is one line.

    Attributes:
        dimension: its position in the array.
        logical: its logical name, or None.
        axes: the mesh axes that split it; `()` where it is not split.
        rule: the index of the rule that decided, or None.
        verdicts: one Verdict per rule, in table order.
        passed_through: whether an unmatched name was taken for a mesh axis (nnx only).
        rules: the table.

    >>> from shardviz.core.layout.rules.resolution import resolve
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

    @property
    def deciding(self) -> Verdict | None:
        """The verdict on the rule that decided, or None."""
        if self.rule is None:
            return None
        return self.verdicts[self.rule]

    @property
    def unknown(self) -> bool:
        """Whether it has a name and no rule is for that."""
        return isinstance(self.logical, str) and self.logical not in self.rules.by_name

    @property
    def near(self) -> str | None:
        """Where no rule is for its name, the nearest name that a rule is for, if any."""
        if not self.unknown or self.logical is None:
            return None
        return self.rules.nearest(self.logical)

    def __repr__(self) -> str:
        name = self.logical or "nameless"
        by = "no rule" if self.rule is None else f"rule {self.rule + 1}"
        became = Rule(name, self.axes)
        return f"Decision(dimension {self.dimension}, {became} by {by})"


@dataclass(frozen=True)
class Problem(Fact):
    """Why a mesh cannot have the spec of a Resolution.

    Attributes:
        code: `"verdict"`, `"name is no axis"` (nnx takes it for one) or `"spec"`.
        decision: for the first two, about which dimension.
        error: for `"spec"`, what checking the spec raised.

    >>> print(Problem("spec", error="Mesh axis 'x' is named twice."))
    Mesh axis 'x' is named twice.
    """

    code: str
    decision: Decision | None = None
    error: str = ""


class PathOutcome(enum.Enum):
    """The kinds of verdict on a pattern. With the first six it decides.

    >>> PathOutcome("shadowed") is PathOutcome.SHADOWED
    True
    """

    MATCHED = "matched"
    ONE_ELEMENT = "one element"
    WRONG_RANK = "wrong rank"
    INDIVISIBLE = "does not divide"
    MISSING_AXIS = "axis not in the mesh"
    REPEATED = "axis named twice"
    SHADOWED = "shadowed"
    SEVERAL = "several match"
    NO_MATCH = "does not match"
    INVALID = "no regular expression"


_PATH_DECIDING = (*PathOutcome,)[:6]


@dataclass(frozen=True, repr=False)
class PathVerdict(Fact):
    """What one pattern did for one array.

    Attributes:
        rule: the index of the pattern in the table.
        pattern: the pattern.
        spec: the spec that it leads to.
        outcome: the kind of verdict.
        dialect: the library whose reading of the table counts.
        by_rule: for SHADOWED, the pattern that decides instead.
        several: for SEVERAL, all patterns that match.
        wrong_rank: for WRONG_RANK, the entries and dimensions.
        misfit: for INDIVISIBLE, the sizes that do not divide and what would work.
        dimension: for INDIVISIBLE, in which dimension.
        absent: for MISSING_AXIS, the axes that the mesh lacks.
        mesh: the mesh that a deciding pattern was checked against, or None.
        lacks: for NO_MATCH, words of the pattern that the path has not.
        wider: for NO_MATCH in keras, a pattern that matches all of the path where this
            one is found in a part of it, or "".
        error: for INVALID, what matching raised.

    >>> verdict = path_deciding(0, PathRule("kernel", Spec.parse("x")), None, (512, 2048))
    >>> verdict.kind, verdict.decides
    ('matched', True)
    >>> print(verdict)
    pattern 1 ('kernel' → P('x')) matches and splits dimension 0 over 'x'.
    """

    rule: int
    pattern: str
    spec: Spec
    outcome: PathOutcome
    dialect: Dialect = Dialect.REGEX
    by_rule: int | None = None
    several: tuple[int, ...] = ()
    wrong_rank: WrongRank | None = None
    misfit: Misfit | None = None
    dimension: int | None = None
    absent: tuple[str, ...] = ()
    mesh: MeshSpec | None = field(default=None, compare=False)
    lacks: tuple[str, ...] = ()
    wider: str = ""
    error: str = ""

    @property
    def decides(self) -> bool:
        """Whether this pattern decided, even if the array cannot be laid out so."""
        return self.outcome in _PATH_DECIDING

    @property
    def kind(self) -> str:
        """The outcome in words, such as `"shadowed"`."""
        return self.outcome.value

    @property
    def reason(self) -> str:
        """What it did, without the pattern."""
        return explanation(self)

    def __repr__(self) -> str:
        line = f"{self.pattern} → {self.spec}"
        return f"PathVerdict(pattern {self.rule + 1}, {line}: {self.kind})"


def path_deciding(
    index: int,
    rule: PathRule,
    mesh: MeshSpec | None,
    shape: tuple[int, ...] | None,
    one_element: bool = False,
) -> PathVerdict:
    """The verdict on the pattern that decides: whether this mesh can split it so.

    Args:
        one_element: whether the array has one element and the dialect leaves it
            unsplit.
    """
    spec, outcome = rule.spec, PathOutcome.MATCHED
    fields: dict[str, Any] = {}
    wrong = None
    if shape is not None:
        wrong = rank_problem(spec, len(shape))
    absent = _absent(spec.axes, mesh)
    if one_element:
        outcome = PathOutcome.ONE_ELEMENT
    elif wrong is not None:
        outcome, fields = PathOutcome.WRONG_RANK, {"wrong_rank": wrong}
    elif absent:
        outcome, fields = PathOutcome.MISSING_AXIS, {"absent": absent}
    elif len(set(spec.axes)) < len(spec.axes):
        outcome = PathOutcome.REPEATED
    elif mesh is not None and shape is not None:
        free = tuple(a for a in mesh.axis_names if a not in spec.axes)
        for dim, over in enumerate(spec.dims):
            misfit = Misfit.find(shape[dim], over, mesh, free)
            if misfit is not None:
                outcome = PathOutcome.INDIVISIBLE
                fields = {"misfit": misfit, "dimension": dim}
                break
    return PathVerdict(index, rule.pattern, spec, outcome, mesh=mesh, **fields)


@dataclass(frozen=True)
class PathProblem(Fact):
    """Why no pattern of a table gives a path a spec, where the library raises an error.

    Attributes:
        code: `"no match"`, `"several match"` or `"unreadable"`.
        patterns: for `"several match"`, the patterns; for `"no match"`, the nearest
            one.
        error: for `"unreadable"`, what matching raised.

    >>> PathProblem("no match", ("kernel",)).patterns
    ('kernel',)
    """

    code: str
    patterns: tuple[str, ...] = ()
    error: str = ""
