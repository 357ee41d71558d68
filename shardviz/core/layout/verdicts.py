"""Verdicts: what one rule did for one dimension of one array, or one pattern for one path, and why.

`docs/semantics.md` has what each kind means and where it comes from.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardviz.core.format import joined, listed, shown, suggestion
from shardviz.core.layout.layout import Misfit
from shardviz.core.layout.mesh import MeshSpec
from shardviz.core.layout.partition_spec import Spec, is_unconstrained, rank_problem


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


_DECIDING = {
    Outcome.APPLIED,
    Outcome.UNSPLIT,
    Outcome.SIZE_ONE,
    Outcome.INDIVISIBLE,
    Outcome.MISSING_AXIS,
    Outcome.REPEATED,
}
#: Those by which a rule decides and the array cannot be laid out.
BROKEN = (Outcome.INDIVISIBLE, Outcome.MISSING_AXIS, Outcome.REPEATED)


@dataclass(frozen=True, repr=False)
class Verdict:
    """What rule number `rule` (0-based, in table order) did for one dimension.

    Attributes:
        rule: the index of the rule in the table.
        logical: the logical name the rule is for.
        axes: the mesh axes it wants.
        outcome: the kind of verdict.
        taken: for TAKEN and PART_TAKEN, the axes that were not free, each with the dimension that
            uses it and the index of the rule that gave it (None where no rule did). For REPEATED,
            the axes that another dimension has, too, which nnx allows.
        by_rule: for DECIDED and OVERRIDDEN, the rule that decided instead.
        misfit: for INDIVISIBLE, the sizes that do not divide and what would work.
        absent: for MISSING_AXIS, the axes that the mesh lacks.
        reason: one sentence.
        free: whether the rule leads to `P.UNCONSTRAINED`.

    >>> verdict = decided(4, "embed", ("data",), by_rule=3)
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
    reason: str
    taken: tuple[tuple[str, int, int | None], ...] = ()
    by_rule: int | None = None
    misfit: Misfit | None = None
    absent: tuple[str, ...] = ()
    free: bool = False

    @property
    def decides(self) -> bool:
        """Whether this rule decided the dimension, even if it cannot be laid out so."""
        return self.outcome in _DECIDING

    @property
    def kind(self) -> str:
        """The outcome in words, such as `"axis taken"`."""
        return self.outcome.value

    @property
    def _wanted(self) -> str:
        return f"{self.logical} → {'UNCONSTRAINED' if self.free else target_text(self.axes)}"

    def __str__(self) -> str:
        return f"rule {self.rule + 1} ({self._wanted}) {self.reason}"

    def __repr__(self) -> str:
        return f"Verdict(rule {self.rule + 1}, {self._wanted}: {self.kind})"


def target_text(axes: tuple[str, ...]) -> str:
    """Mesh axes as a rule's right side: `None`, `x`, `(x, y)`."""
    return "None" if not axes else axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def left_free(rule: int, logical: str) -> Verdict:
    """The rule decided, and leaves the dimension to the compiler."""
    reason = "leaves the dimension to the compiler and ends the search."
    return Verdict(rule, logical, (), Outcome.APPLIED, reason, free=True)


def deciding(
    rule: int,
    logical: str,
    axes: tuple[str, ...],
    mesh: MeshSpec | None,
    size: int | None,
    drops_size_one: bool,
    used: tuple[str, ...] = (),
) -> Verdict:
    """The verdict on the rule that decided: whether this mesh can split this size so.

    `used` are the axes that split any dimension of the array: they are not suggested instead.
    """
    if not axes:
        return Verdict(
            rule,
            logical,
            axes,
            Outcome.UNSPLIT,
            "leaves the dimension unsplit and ends the search.",
        )
    twice = [a for i, a in enumerate(axes) if a in axes[:i]]
    if twice:
        text = (
            f"decides, but names {shown(twice[0])} twice; a mesh axis can split a dimension once."
        )
        return Verdict(rule, logical, axes, Outcome.REPEATED, text)
    if mesh is None:
        return Verdict(rule, logical, axes, Outcome.APPLIED, f"splits over {listed(axes)}.")
    absent = tuple(a for a in axes if a not in mesh.shape)
    if absent:
        return Verdict(
            rule,
            logical,
            axes,
            Outcome.MISSING_AXIS,
            f"decides, but the mesh ({mesh}) has no axis {listed(absent, 'or')}."
            f"{suggestion(absent[0], mesh.axis_names)}",
            absent=absent,
        )
    free = tuple(a for a in mesh.axis_names if a not in used)
    misfit = None if size is None else Misfit.find(size, axes, mesh, free)
    if misfit is not None:
        return Verdict(
            rule,
            logical,
            axes,
            Outcome.INDIVISIBLE,
            f"decides, but {misfit.sentence()}",
            misfit=misfit,
        )
    return _fitting(rule, logical, axes, mesh, drops_size_one)


def shared(rule: int, logical: str, axes: tuple[str, ...], both: list[tuple[str, int]]) -> Verdict:
    """The rule decided, and gives the dimension an axis that another dimension has, too (nnx)."""
    causes = joined(f"dimension {dim} has {shown(axis)}, too" for axis, dim in both)
    taken = tuple((axis, dim, None) for axis, dim in both)
    return Verdict(rule, logical, axes, Outcome.REPEATED, f"decides, but {causes}.", taken=taken)


def _fitting(
    rule: int, logical: str, axes: tuple[str, ...], mesh: MeshSpec, drops_size_one: bool
) -> Verdict:
    ones = [a for a in axes if mesh.shape[a] == 1]
    big = [a for a in axes if mesh.shape[a] > 1]
    parts = 1
    for axis in big:
        parts *= mesh.shape[axis]
    dropped = f" {listed(ones)} of size 1 {'is dropped' if drops_size_one else 'splits nothing'}."
    if not big:
        text = "decides, and nothing is split:" + dropped
        return Verdict(rule, logical, axes, Outcome.SIZE_ONE, text)
    text = f"splits {parts:,} ways over {listed(big)}." + (dropped if ones else "")
    return Verdict(rule, logical, axes, Outcome.APPLIED, text)


def other_name(rule: int, logical: str, axes: tuple[str, ...], name: object) -> Verdict:
    """The rule is for another logical name than this dimension has."""
    own = "no name" if name is None else shown(name)
    return Verdict(
        rule,
        logical,
        axes,
        Outcome.OTHER_NAME,
        f"is for {shown(logical)}; this dimension has {own}.",
    )


def decided(rule: int, logical: str, axes: tuple[str, ...], by_rule: int) -> Verdict:
    """An earlier rule decided the dimension."""
    return Verdict(
        rule,
        logical,
        axes,
        Outcome.DECIDED,
        f"comes after rule {by_rule + 1}, which already decided this dimension.",
        by_rule=by_rule,
    )


def overridden(rule: int, logical: str, axes: tuple[str, ...], by_rule: int) -> Verdict:
    """A later rule of the same name replaced this one, as in a dict."""
    return Verdict(
        rule,
        logical,
        axes,
        Outcome.OVERRIDDEN,
        f"is replaced by rule {by_rule + 1}: this dialect reads the table as a dict, where the"
        " last repeat wins.",
        by_rule=by_rule,
    )


def taken(
    rule: int,
    logical: str,
    axes: tuple[str, ...],
    holders: tuple[tuple[str, int, int | None], ...],
) -> Verdict:
    """Other dimensions of the same array use some of the axes that the rule wants."""
    gone = {axis for axis, _, _ in holders}
    free = [a for a in axes if a not in gone]
    causes = joined(
        f"{shown(axis)} already splits dimension {dim}"
        if by is None
        else f"rule {by + 1} already uses {shown(axis)} for dimension {dim}"
        for axis, dim, by in holders
    )
    if free:
        verb = "is" if len(free) == 1 else "are"
        reason = f"needs all of ({', '.join(axes)}), and {causes}; {listed(free)} {verb} free."
        return Verdict(rule, logical, axes, Outcome.PART_TAKEN, reason, taken=holders)
    return Verdict(rule, logical, axes, Outcome.TAKEN, f"does not apply: {causes}.", taken=holders)


@dataclass(frozen=True, repr=False)
class Decision:
    """How one dimension is split, and which rule decided it.

    Attributes:
        dimension: its position in the array.
        logical: its logical name, or None.
        axes: the mesh axes that split it; `()` where it is not split.
        rule: the index of the rule that decided, or None.
        verdicts: one Verdict per rule, in table order.
        passed_through: whether an unmatched name was taken for a mesh axis (nnx only).

    >>> from shardviz.core.layout.resolution import resolve
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

    @property
    def deciding(self) -> Verdict | None:
        """The verdict on the rule that decided, or None."""
        return None if self.rule is None else self.verdicts[self.rule]

    def __repr__(self) -> str:
        name = "nameless" if self.logical is None else self.logical
        by = "no rule" if self.rule is None else f"rule {self.rule + 1}"
        became = f"{name} → {target_text(self.axes)}"
        return f"Decision(dimension {self.dimension}, {became} by {by})"


def explain_decision(decision: Decision, near: Mapping[int, str | None]) -> str:
    """One line on one dimension: which rule decided, and which could not apply.

    Args:
        near: the dimensions whose name no rule is for, with the nearest name that one is for.
    """
    name = decision.logical
    head = f"dimension {decision.dimension} {'(no name)' if name is None else f'“{name}”'}"
    if is_unconstrained(name):
        return f"dimension {decision.dimension} is left to the compiler."
    if name is None:
        return f"{head} is not split: no rule can match a dimension without a name."
    if decision.passed_through:
        return f"{head} → {name}: no rule is for it, so nnx takes the name for a mesh axis."
    if decision.dimension in near:
        close = near[decision.dimension]
        hint = f" Did you mean “{close}”?" if close else ""
        return f"{head} is not split: no rule knows “{name}”.{hint}"
    lost = [v for v in decision.verdicts if v.logical == name and not v.decides]
    before = [v for v in lost if v.outcome in (Outcome.TAKEN, Outcome.PART_TAKEN)]
    if decision.deciding is None:
        return f"{head} is not split: " + " ".join(f"{v}" for v in before)
    verdict = decision.deciding
    unsplit = "is left to the compiler" if verdict.free else "is not split"
    lead = f"{head} → {', '.join(decision.axes)}" if decision.axes else f"{head} {unsplit}"
    return " ".join([f"{lead}: {verdict}", *(f"Before it, {v}" for v in before)])


def disliked(
    decisions: Iterable[Decision], near: Mapping[int, str | None], mesh: MeshSpec | None
) -> tuple[int, ...]:
    """The dimensions that fail; then those not split though rules or a misspelt name ask for it.

    Those that a rule leaves unsplit on purpose are not among them.

    >>> from shardviz.core.layout.resolution import resolve
    >>> table = [("mlp", "model"), ("heads", "model"), ("embed", None)]
    >>> disliked(resolve("embed mlp heads", table).decisions, {}, None)
    (2,)
    """
    fails, asks = [], []
    for decision in decisions:
        verdict, dim = decision.deciding, decision.dimension
        if verdict is not None and verdict.outcome in BROKEN:
            fails.append(dim)
        elif decision.passed_through:
            fails += [dim] * (mesh is not None and decision.logical not in mesh.shape)
        elif near.get(dim) or (
            verdict is None and dim not in near and isinstance(decision.logical, str)
        ):
            asks.append(dim)
    return (*fails, *asks)


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
class PathVerdict:
    """What one pattern did for one array.

    Attributes:
        rule: the index of the pattern in the table.
        pattern: the pattern.
        spec: the spec that it leads to.
        outcome: the kind of verdict.
        reason: one sentence.
        by_rule: for SHADOWED, the pattern that decides instead.
        misfit: for INDIVISIBLE, the sizes that do not divide and what would work.
        absent: for MISSING_AXIS, the axes that the mesh lacks.

    >>> verdict = path_deciding(0, "kernel", Spec.parse("None, model"), None, (512, 2048))
    >>> verdict.kind, verdict.decides
    ('matched', True)
    >>> print(verdict)
    pattern 1 ('kernel' → P(None, 'model')) matches and splits dimension 1 over 'model'.
    """

    rule: int
    pattern: str
    spec: Spec
    outcome: PathOutcome
    reason: str
    by_rule: int | None = None
    misfit: Misfit | None = None
    absent: tuple[str, ...] = ()

    @property
    def decides(self) -> bool:
        """Whether this pattern decided, even if the array cannot be laid out so."""
        return self.outcome in _PATH_DECIDING

    @property
    def kind(self) -> str:
        """The outcome in words, such as `"shadowed"`."""
        return self.outcome.value

    def __str__(self) -> str:
        return f"pattern {self.rule + 1} ({shown(self.pattern)} → {self.spec}) {self.reason}"

    def __repr__(self) -> str:
        return f"PathVerdict(pattern {self.rule + 1}, {self.pattern} → {self.spec}: {self.kind})"


def path_deciding(
    rule: int, pattern: str, spec: Spec, mesh: MeshSpec | None, shape: tuple[int, ...] | None,
    one_element: bool = False,
) -> PathVerdict:  # fmt: skip
    """The verdict on the pattern that decides: whether this mesh can split this array so.

    Args:
        one_element: whether the array has one element and the dialect leaves it unsplit.
    """
    more: dict[str, Any] = {}
    outcome, reason = PathOutcome.MATCHED, f"matches and {_splits(spec)}."
    problem = None if shape is None else rank_problem(spec, len(shape))
    absent = tuple(a for a in dict.fromkeys(spec.axes) if mesh and a not in mesh.shape)
    twice = [a for i, a in enumerate(spec.axes) if a in spec.axes[:i]]
    if one_element:
        outcome = PathOutcome.ONE_ELEMENT
        reason = "matches, but an array of one element is never split."
    elif problem:
        outcome = PathOutcome.WRONG_RANK
        reason = f"decides, but {problem[0].lower()}{problem[1:]}"
    elif mesh is not None and absent:
        outcome, more = PathOutcome.MISSING_AXIS, {"absent": absent}
        hint = suggestion(absent[0], mesh.axis_names)
        reason = f"decides, but the mesh ({mesh}) has no axis {listed(absent, 'or')}.{hint}"
    elif twice:
        outcome = PathOutcome.REPEATED
        reason = f"decides, but names {shown(twice[0])} twice; a mesh axis can split once."
    elif mesh is not None and shape is not None:
        for dim, misfit in _misfits(spec, mesh, shape):
            outcome, more = PathOutcome.INDIVISIBLE, {"misfit": misfit}
            reason = f"decides, but in dimension {dim}, {misfit.sentence()}"
            break
    return PathVerdict(rule, pattern, spec, outcome, reason, **more)


def _misfits(spec: Spec, mesh: MeshSpec, shape: tuple[int, ...]) -> Iterator[tuple[int, Misfit]]:
    """The dimensions that do not divide."""
    free = tuple(a for a in mesh.axis_names if a not in spec.axes)
    for dim, (size, axes) in enumerate(zip(shape, spec.dims, strict=False)):
        misfit = Misfit.find(size, axes, mesh, free)
        if misfit is not None:
            yield dim, misfit


def _splits(spec: Spec) -> str:
    parts = [f"dimension {d} over {listed(axes)}" for d, axes in enumerate(spec.dims) if axes]
    parts += [f"dimension {d} as the compiler likes" for d in sorted(spec.unconstrained)]
    return f"splits {', '.join(parts)}" if parts else "splits no dimension"
