"""Plan: what the propagated stage of a program decided about every value, and what an edit of the
program changes of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, TypeVar

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError
from shardviz.core.format import bytes_text, plural, shown
from shardviz.core.layout.parse import check_size
from shardviz.core.program.constraints import Constraint
from shardviz.core.program.explanation import (
    Explanation,
    ReplayStep,
    explain_value,
    replay_of,
    values_after,
)
from shardviz.core.program.plan_values import Diagnosis, PlannedOp, Record
from shardviz.core.program.report import Collective

T = TypeVar("T")


@dataclass(frozen=True)
class ValueChange:
    """One value of both plans whose sharding, or the origin of an axis, differs.

    Attributes:
        before, after: the value in each plan.

    >>> from shardviz.core.layout.partition_spec import Spec
    >>> op = PlannedOp("x", "argument", shape=(8,))
    >>> str(ValueChange(op, PlannedOp("x", "argument", shape=(8,), spec=Spec.parse("data"))))
    "x: P() -> P('data')"
    """

    before: PlannedOp
    after: PlannedOp

    @property
    def moved(self) -> bool:
        """Whether the sharding itself changed."""
        return not self.before.spec.equivalent(self.after.spec)

    def __str__(self) -> str:
        name = self.after.name
        if self.moved:
            return f"{name}: {self.before.spec} -> {self.after.spec}"
        old = {a: o for a, o in self.before.origins.items() if self.after.origins.get(a) != o}
        came = [f"{a} came from {o.kind} {o.name}" for a, o in old.items()]
        new = [
            f"{a} comes from {o.kind} {o.name}" for a, o in self.after.origins.items() if a in old
        ]
        return f"{name}: {self.after.spec} as before, but {', '.join(came)}; {', '.join(new)} now"


@dataclass(frozen=True, repr=False)
class PlanDiff(Displayed):
    """What changes from one plan to another.

    Attributes:
        before, after: the plans.
        added, removed: the values that one of them lacks.
        changed: the values whose sharding, or the origin of an axis, changed.
        gained, lost: the collectives that one of them lacks.
        resized: the collectives of another size: before and after.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> plan = Record("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> print(plan_difference(plan, plan))
    Nothing changes.
    """

    before: Record
    after: Record
    added: tuple[PlannedOp, ...] = ()
    removed: tuple[PlannedOp, ...] = ()
    changed: tuple[ValueChange, ...] = ()
    gained: tuple[Collective, ...] = ()
    lost: tuple[Collective, ...] = ()
    resized: tuple[tuple[Collective, Collective], ...] = ()

    @cached_property
    def head(self) -> tuple[str, ...]:
        """What changes in numbers: the mesh, how many collectives and values, the bytes sent."""
        lines = []
        if self.before.mesh != self.after.mesh:
            lines.append(f"Mesh: {self.before.mesh} -> {self.after.mesh}")
        if counts := self._counted():
            lines.append(counts)
        if self.moves:
            before, after = (
                bytes_text(sum(c.sent_in_all for c in plan.collectives))
                for plan in (self.before, self.after)
            )
            lines.append(f"Each device sends {before} before, {after} now.")
        return tuple(lines)

    @cached_property
    def moves(self) -> tuple[str, ...]:
        """The collectives that one side lacks, or has in another size; the largest first."""
        gained, lost = (
            sorted(some, key=lambda c: -c.bytes_in_all) for some in (self.gained, self.lost)
        )
        return (
            *(f"Gained: {c.words}" for c in gained),
            *(f"Lost: {c.words}" for c in lost),
            *(f"Resized: {new.words}, {old.amount} before" for old, new in self.resized),
        )

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The values that changed, are new, or gone; those with another sharding first."""
        return (
            *(str(change) for change in sorted(self.changed, key=lambda c: not c.moved)),
            *(f"New: {_value(op)}" for op in self.added),
            *(f"Gone: {_value(op)}" for op in self.removed),
        )

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The difference, one sentence a line: in numbers, then collectives, then values."""
        for plan, when in ((self.before, "before"), (self.after, "after")):
            if plan.error is not None:
                return (f"There is no plan {when}: {plan.error}",)
        return (*self.head, *self.moves, *self.values) or ("Nothing changes.",)

    def _counted(self) -> str:
        """`3 collectives gained, 1 lost; 12 values changed, 2 new.`, or `""`."""
        kinds = {
            "collective": {"gained": self.gained, "lost": self.lost, "resized": self.resized},
            "value": {"changed": self.changed, "new": self.added, "gone": self.removed},
        }
        sides = []
        for noun, every in kinds.items():
            some = [(word, len(items)) for word, items in every.items() if items]
            if some:
                first = f"{plural(some[0][1], noun)} {some[0][0]}"
                sides.append(", ".join([first, *(f"{count:,} {word}" for word, count in some[1:])]))
        return "; ".join(sides) + "." if sides else ""

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        counts = (
            plural(len(self.changed), "value") + " changed",
            f"{len(self.gained)} collectives gained, {len(self.lost)} lost",
        )
        return f"PlanDiff({self.after.program}: {', '.join(counts)})"


def plan_difference(before: Record, after: Record) -> PlanDiff:
    """What changes from one plan to another.

    Values are matched by their name in jax and their order among those of that name, so that lines
    of the program may move.

    Raises:
        ProgramError: if either is no Plan.
    """
    for plan in (before, after):
        if not isinstance(plan, Record):
            raise ProgramError(
                f"A plan is compared with a plan, made by sv.plan(program); got {shown(plan)}."
            )
    pairs, removed, added = _matched(before.ops, after.ops, _value_key)
    names = {old.name: new.name for old, new in pairs}
    kept, lost, gained = _matched(
        before.collectives,
        after.collectives,
        lambda c: (c.kind, c.mesh_axes, c.op, names.get(c.value, c.value)),
        lambda c: (c.kind, c.mesh_axes, c.op, c.value),
    )
    return PlanDiff(
        before,
        after,
        tuple(added),
        tuple(removed),
        tuple(ValueChange(old, new) for old, new in pairs if _differs(old, new, names)),
        tuple(gained),
        tuple(lost),
        tuple((o, n) for o, n in kept if o.bytes_per_device != n.bytes_per_device),
    )


def _matched(
    old: Sequence[T], new: Sequence[T], key: Any, new_key: Any = None
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """What is in both, in order; what only the first has; what only the second has."""
    firsts = [key(item) for item in old]
    seconds = [(new_key or key)(item) for item in new]
    pairs: list[tuple[int, int]] = []
    matcher = SequenceMatcher(None, firsts, seconds, autojunk=False)
    for block in matcher.get_matching_blocks():
        pairs += [(block.a + i, block.b + i) for i in range(block.size)]
    # What changed its position is still the same.
    pairs += _moved(firsts, seconds, pairs)
    lefts, rights = {a for a, _ in pairs}, {b for _, b in pairs}
    return (
        [(old[a], new[b]) for a, b in sorted(pairs)],
        [item for i, item in enumerate(old) if i not in lefts],
        [item for i, item in enumerate(new) if i not in rights],
    )


def _moved(
    firsts: Sequence[Hashable], seconds: Sequence[Hashable], pairs: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    done = list(pairs)
    lefts, rights = {a for a, _ in done}, {b for _, b in done}
    free: dict[Hashable, list[int]] = {}
    for position, name in enumerate(seconds):
        if position not in rights:
            free.setdefault(name, []).append(position)
    return [
        (position, free[name].pop(0))
        for position, name in enumerate(firsts)
        if position not in lefts and free.get(name)
    ]


def _value_key(op: PlannedOp) -> Hashable:
    if op.kind != "op":
        return op.kind, op.name
    _, bracket, index = op.name.partition("[")
    return op.kind, op.opcode, op.op, f"{bracket}{index}", op.region, len(op.shape)


def _differs(old: PlannedOp, new: PlannedOp, names: dict[str, str]) -> bool:
    if not old.spec.equivalent(new.spec):
        return True
    first = {a: (o.kind, names.get(o.name, o.name)) for a, o in old.origins.items()}
    return first != {a: (o.kind, o.name) for a, o in new.origins.items()}


def _value(op: PlannedOp) -> str:
    return f"{op.name}, {op.short}, {op.spec}{f' ({op.source})' if op.source else ''}"


@dataclass(frozen=True, repr=False)
class Plan(Record, Displayed):
    """The propagated stage of a program: every value's sharding, its origin, and an estimate.

    Attributes:
        program, mesh, ops, collectives, error: what a Record holds.
        trace_s, lower_s, propagate_s: seconds of each stage.
        notes: what is not covered, and what was left out.
        diagnosis: for a program that jax refuses on Explicit axes, what it would accept.
        constraints: one Constraint per call in the program that may constrain an array, and array.

    >>> from shardviz.core.layout.mesh import make_mesh
    >>> from shardviz.core.program.plan_values import PlannedOp
    >>> plan = Plan("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> plan.op("x").shape
    (8,)
    """

    trace_s: float | None = None
    lower_s: float | None = None
    propagate_s: float | None = None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    constraints: tuple[Constraint, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds in all: trace, lower, propagate."""
        return sum(s or 0.0 for s in (self.trace_s, self.lower_s, self.propagate_s))

    def why(self, value: Any) -> Explanation:
        """Explains one value, step by step: what it requested, and what reached it from where.

        Args:
            value: its name, number, a PlannedOp, or a collective that it causes.

        Raises:
            ProgramError: where the plan has no such value.
        """
        return explain_value(self, self.op(value))

    def replay(self) -> tuple[ReplayStep, ...]:
        """The propagation step by step: which value got which axis on which dimension, and why."""
        return replay_of(self)

    def after(self, step: int) -> Plan:
        """The plan as it stood after a step of the propagation: its pictures and texts show that.

        The collectives are those of the end, so they are left out.

        Args:
            step: the `number` of a ReplayStep; -1 for what was requested, before the first.

        Raises:
            ProgramError: for anything but a whole number, or where there is no plan.
        """
        number = check_size(step, "A step of the propagation", ProgramError)
        if self.error is not None:
            raise ProgramError(f"There is no plan of {self.program}, so it has no steps.")
        when = f"it stood after step {number}" if number >= 0 else "it was requested"
        note = f"As {when}, without collectives: these are those of the end."
        return replace(
            self, ops=values_after(self, number), collectives=(), notes=(note, *self.notes)
        )

    def diff(self, other: Plan) -> PlanDiff:
        """What changes from this plan to another, such as the one after an edit.

        Raises:
            ProgramError: if `other` is no Plan.
        """
        return plan_difference(self, other)

    def __repr__(self) -> str:
        if self.error:
            return f"Plan({self.program}: {self.error})"
        found = plural(len(self.collectives), "collective")
        values = plural(len(self.ops), "value")
        return f"Plan({self.program} on {self.mesh}: {values}, {found} estimated)"
