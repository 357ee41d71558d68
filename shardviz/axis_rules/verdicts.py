"""Verdicts: what one rule did for one dimension, or one pattern for one path, and why.

`docs/semantics.md` has what each kind means and where it comes from; the sentences are
in `axis_rules/words/rules.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardviz.axis_rules.rules import Dialect, PathRule, Rule, Rules
from shardviz.base.display import Fact, explanation
from shardviz.base.layout import Misfit
from shardviz.base.mesh import MeshSpec
from shardviz.base.partition_spec import WrongRank


class Outcome(enum.Enum):
    """The kinds of verdict. With the first nine the line of the table decides.

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


_DECIDING = (*Outcome,)[:9]
#: Those by which a line decides and the array cannot be laid out.
BROKEN = _DECIDING[5:]


@dataclass(frozen=True, repr=False)
class Verdict(Fact):
    """What line number `rule` (0-based, in table order) did, and why.

    In a table of names that is for one dimension, in one of paths for a whole array.

    Attributes:
        rule: the index of the line in the table.
        line: the line: a rule or a pattern.
        outcome: the kind of verdict.
        taken: for TAKEN and PART_TAKEN, the axes that were not free, each with the
            dimension that uses it and the index of the rule that gave it. For REPEATED,
            the axes that another dimension has, too, which nnx allows.
        by_rule: for DECIDED, OVERRIDDEN and SHADOWED, the line that decided instead.
        several: for SEVERAL, all patterns that match.
        misfit: for INDIVISIBLE, the sizes that do not divide and what would work.
        wrong_rank: for WRONG_RANK, the entries and dimensions.
        dimension: of a pattern that is INDIVISIBLE, in which dimension.
        absent: for MISSING_AXIS, the axes that the mesh lacks.
        name: for OTHER_NAME, the logical name of the dimension, or None.
        lacks: for NO_MATCH, words of the pattern that the path has not.
        wider: for NO_MATCH in keras, a pattern that matches all of the path where this
            one is found in a part of it, or "".
        error: for INVALID, what matching raised.
        mesh: the mesh that a deciding line was checked against, or None.
        dialect: the library whose reading of the table counts.

    >>> verdict = Verdict(4, Rule("embed", ("data",)), Outcome.DECIDED, by_rule=3)
    >>> verdict
    Verdict(rule 5, embed → data: dimension already decided)
    >>> verdict.decides, verdict.kind
    (False, 'dimension already decided')
    >>> print(verdict)
    rule 5 (embed → data) comes after rule 4, which already decided this dimension.
    """

    rule: int
    # Fields that most outcomes leave empty, in place of a class for each.
    line: Rule | PathRule
    outcome: Outcome
    taken: tuple[tuple[str, int, int | None], ...] = ()
    by_rule: int | None = None
    several: tuple[int, ...] = ()
    misfit: Misfit | None = None
    wrong_rank: WrongRank | None = None
    dimension: int | None = None
    absent: tuple[str, ...] = ()
    name: str | None = None
    lacks: tuple[str, ...] = ()
    wider: str = ""
    error: str = ""
    # For sentences alone: two verdicts that differ in these say the same.
    mesh: MeshSpec | None = field(default=None, compare=False)
    dialect: Dialect = field(default=Dialect.LINEN, compare=False)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the line wants."""
        return self.line.axes

    @property
    def decides(self) -> bool:
        """Whether this line decided, even if the array cannot be laid out so."""
        return self.outcome in _DECIDING

    @property
    def kind(self) -> str:
        """The outcome in words, such as `"axis taken"`."""
        return self.outcome.value

    @property
    def reason(self) -> str:
        """What it did, without the line."""
        return explanation(self)

    def __repr__(self) -> str:
        return f"Verdict(rule {self.rule + 1}, {self.line}: {self.kind})"


def deciding(
    index: int,
    line: Rule | PathRule,
    dims: Sequence[tuple[str, ...]],
    sizes: Sequence[int] | None,
    mesh: MeshSpec | None,
    dialect: Dialect,
    used: tuple[str, ...],
) -> Verdict:
    """The verdict on the line that decided: whether this mesh can split these sizes so.

    Args:
        index: the position of the line.
        line: the rule or pattern.
        dims: the axes of each dimension that it decides.
        sizes: the sizes of these dimensions, or None where they are not known.
        mesh: the mesh, or None.
        dialect: who reads the table.
        used: the axes that split any dimension of the array: they are not suggested.
    """
    axes, outcome = line.axes, Outcome.MATCHED
    fields: dict[str, Any] = {"mesh": mesh, "dialect": dialect}
    if isinstance(line, Rule):
        outcome = Outcome.APPLIED
        if not axes and not line.free:
            outcome = Outcome.UNSPLIT
    absent = ()
    if mesh is not None:
        absent = tuple(a for a in dict.fromkeys(axes) if a not in mesh.shape)
    # What no mesh allows comes first, then what this one lacks, then sizes.
    if len(set(axes)) < len(axes):
        outcome = Outcome.REPEATED
    elif absent:
        outcome = Outcome.MISSING_AXIS
        fields["absent"] = absent
    elif mesh is not None and axes:
        if outcome is Outcome.APPLIED and all(mesh.shape[a] == 1 for a in axes):
            outcome = Outcome.SIZE_ONE
        # An axis splits an array once, so one in use is no alternative.
        free = tuple(a for a in mesh.axis_names if a not in used)
        for dim, (size, over) in enumerate(zip(sizes or (), dims, strict=False)):
            misfit = Misfit.find(size, over, mesh, free)
            if misfit is not None:
                outcome = Outcome.INDIVISIBLE
                fields |= {"misfit": misfit, "dimension": dim}
                break
    return Verdict(index, line, outcome, **fields)


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
        by = "no rule"
        if self.rule is not None:
            by = f"rule {self.rule + 1}"
        became = Rule(self.logical or "nameless", self.axes)
        return f"Decision(dimension {self.dimension}, {became} by {by})"


@dataclass(frozen=True)
class Problem(Fact):
    """Why a mesh cannot have the spec of an array, or why it has none.

    Attributes:
        code: of names `"verdict"`, `"name is no axis"` (nnx takes it for one) or
            `"spec"`; of paths `"no match"`, `"several match"` or `"unreadable"`.
        decision: for the first two, about which dimension.
        patterns: for `"several match"`, the patterns.
        error: for `"spec"` and `"unreadable"`, what was raised.

    >>> print(Problem("spec", error="Mesh axis 'x' is named twice."))
    Mesh axis 'x' is named twice.
    """

    code: str
    decision: Decision | None = None
    patterns: tuple[str, ...] = ()
    error: str = ""
