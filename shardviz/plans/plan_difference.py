"""PlanDiff: the values, axis origins and collectives that differ between two plans."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardviz.base.collective import Collective, sent_in_all
from shardviz.base.collective_matching import value_key
from shardviz.base.display import Displayed, Fact
from shardviz.base.errors import ProgramError
from shardviz.base.format import plural, shown
from shardviz.base.mesh import MeshSpec
from shardviz.base.pairing import pair
from shardviz.plans.plan_values import PlannedOp, Record


@dataclass(frozen=True)
class ValueChange(Fact):
    """A value whose sharding, or the origin of an axis, differs between the plans.

    Attributes:
        before, after: the value in each plan.

    >>> from shardviz.base.partition_spec import Spec
    >>> x = PlannedOp("x", "argument", shape=(8,))
    >>> split = PlannedOp("x", "argument", shape=(8,), spec=Spec.parse("data"))
    >>> str(ValueChange(x, split))
    "x: P() -> P('data')"
    """

    before: PlannedOp
    after: PlannedOp

    @property
    def moved(self) -> bool:
        """True if the sharding itself changed."""
        return not self.before.spec.equivalent(self.after.spec)


@dataclass(frozen=True)
class NewValue(Fact):
    """A value that only the second plan has."""

    op: PlannedOp


@dataclass(frozen=True)
class GoneValue(Fact):
    """A value that only the first plan has."""

    op: PlannedOp


class CollectiveChange(Fact):
    """A collective that only one of the plans has, or whose size differs.

    >>> GainedCollective(Collective("all-gather", ("data",), 8)).sent_before
    0
    """

    @property
    def sent_before(self) -> int:
        """The bytes that each device sends in the first plan."""
        raise NotImplementedError

    @property
    def sent_after(self) -> int:
        """The bytes that each device sends in the second plan."""
        raise NotImplementedError


@dataclass(frozen=True)
class GainedCollective(CollectiveChange):
    """A collective that only the second plan has."""

    collective: Collective

    @property
    def sent_before(self) -> int:
        return 0

    @property
    def sent_after(self) -> int:
        return self.collective.sent_in_all


@dataclass(frozen=True)
class LostCollective(CollectiveChange):
    """A collective that only the first plan has.

    >>> LostCollective(Collective("all-gather", ("data",), 8, group_size=4)).sent_before
    6
    """

    collective: Collective

    @property
    def sent_after(self) -> int:
        return 0

    @property
    def sent_before(self) -> int:
        return self.collective.sent_in_all


@dataclass(frozen=True)
class ResizedCollective(CollectiveChange):
    """A collective whose size differs between the plans."""

    before: Collective
    after: Collective

    @property
    def sent_before(self) -> int:
        return self.before.sent_in_all

    @property
    def sent_after(self) -> int:
        return self.after.sent_in_all


@dataclass(frozen=True)
class OtherMesh(Fact):
    """The plans are for different meshes."""

    before: MeshSpec
    after: MeshSpec


@dataclass(frozen=True)
class BytesSent(Fact):
    """The bytes that each device sends in each plan."""

    before: int
    after: int


@dataclass(frozen=True)
class NoPlan(Fact):
    """One of the plans failed, so there is nothing to compare.

    Attributes:
        side: the plan that failed.
        error: why that plan failed.
    """

    side: Literal["before", "after"]
    error: object


@dataclass(frozen=True)
class NothingChanges(Fact):
    """The plans are the same."""


@dataclass(frozen=True)
class Counts(Fact):
    """The number of collectives and values that changed.

    Attributes:
        collectives: `"gained"`, `"lost"` or `"resized"` -> number of collectives.
        values: `"changed"`, `"new"` or `"gone"` -> number of values.
    """

    collectives: Mapping[str, int]
    values: Mapping[str, int]


@dataclass(frozen=True, repr=False)
class PlanDiff(Displayed):
    """What changes from one plan to another.

    Attributes:
        before, after: the plans.
        added, removed: the values that only the second, or only the first, plan has.
        changed: the values whose sharding, or the origin of an axis, changed. Changed
            shardings come first.
        gained, lost: the collectives that only the second, or only the first, plan has;
            largest first.
        resized: pairs of a collective before and after, if its size changed.

    >>> from shardviz.base.mesh import make_mesh
    >>> plan = Record("f", make_mesh(data=2), (PlannedOp("x", "argument", shape=(8,)),))
    >>> print(plan_difference(plan, plan))
    Nothing changes.
    """

    _omits = ("before", "after")

    before: Record
    after: Record
    added: tuple[PlannedOp, ...] = ()
    removed: tuple[PlannedOp, ...] = ()
    changed: tuple[ValueChange, ...] = ()
    gained: tuple[Collective, ...] = ()
    lost: tuple[Collective, ...] = ()
    resized: tuple[tuple[Collective, Collective], ...] = ()

    @property
    def head(self) -> list[Fact]:
        """The facts of the first line: counts of changes, or the plan that failed."""
        # Compared with a failed plan, all values would count as new or gone.
        if self.before.error is not None:
            return [NoPlan("before", self.before.error)]
        if self.after.error is not None:
            return [NoPlan("after", self.after.error)]
        facts: list[Fact] = []
        if self.before.mesh != self.after.mesh:
            facts.append(OtherMesh(self.before.mesh, self.after.mesh))
        counts = Counts(
            _counted(gained=self.gained, lost=self.lost, resized=self.resized),
            _counted(changed=self.changed, new=self.added, gone=self.removed),
        )
        if counts.collectives or counts.values:
            facts.append(counts)
        if counts.collectives:
            plans = (self.before, self.after)
            facts.append(BytesSent(*(sent_in_all(plan.collectives) for plan in plans)))
        return facts or [NothingChanges()]

    @property
    def moves(self) -> list[CollectiveChange]:
        """The collectives that are gained, lost, or resized."""
        facts: list[CollectiveChange] = [GainedCollective(c) for c in self.gained]
        facts += [LostCollective(c) for c in self.lost]
        facts += [ResizedCollective(old, new) for old, new in self.resized]
        return facts

    @property
    def values(self) -> list[Fact]:
        """The values that are changed, new, or gone."""
        facts: list[Fact] = [*self.changed]
        facts += [NewValue(op) for op in self.added]
        facts += [GoneValue(op) for op in self.removed]
        return facts

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The changes: counts first, then collectives, then values."""
        return (*self.head, *self.moves, *self.values)

    @property
    def lines(self) -> tuple[str, ...]:
        """The changes, one sentence per line."""
        return tuple(map(str, self.facts))

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        values = plural(len(self.changed), "value")
        counts = f"{len(self.gained)} gained, {len(self.lost)} lost"
        return f"PlanDiff({self.after.program}: {values} changed, {counts})"


def _counted(**groups: Sequence[object]) -> dict[str, int]:
    return {name: len(items) for name, items in groups.items() if items}


def plan_difference(before: Record, after: Record) -> PlanDiff:
    """Returns the changes from one plan to another.

    Pairs values by jax's name of the operation, and by order among values of that name.
    Source lines don't count, so the user's code may move.

    Raises:
        ProgramError: if `before` or `after` isn't a Plan.
    """
    for plan in (before, after):
        if not isinstance(plan, Record):
            raise ProgramError(
                "A plan is compared with a plan, made by sv.plan(program); got"
                f" {shown(plan)}."
            )
    if before.error is not None or after.error is not None:
        return PlanDiff(before, after)
    values = pair(before.ops, after.ops, _value_key, _value_key)
    # Names of values may differ between the plans. Compare the collectives of the first
    # plan by the names that their values have in the second.
    names = {old.name: new.name for old, new in values.paired}
    collectives = pair(
        before.collectives,
        after.collectives,
        lambda c: value_key(c, names.get(c.value, c.value)),
        lambda c: value_key(c, c.value),
    )
    changed = []
    for old, new in values.paired:
        if _differs(old, new, names):
            changed.append(ValueChange(old, new))
    resized = []
    for old, new in collectives.paired:
        if old.bytes_per_device != new.bytes_per_device:
            resized.append((old, new))
    return PlanDiff(
        before,
        after,
        values.new,
        values.gone,
        tuple(sorted(changed, key=lambda change: not change.moved)),
        _largest_first(collectives.new),
        _largest_first(collectives.gone),
        tuple(resized),
    )


def _largest_first(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple(sorted(collectives, key=lambda c: -c.drawn_bytes))


def _value_key(op: PlannedOp) -> Hashable:
    if op.kind != "op":
        return op.kind, op.name
    # Any edit can change the number in a name, so drop it. Keep the `[index]`, which
    # distinguishes the results of one operation.
    _, bracket, index = op.name.partition("[")
    return op.kind, op.opcode, op.op, f"{bracket}{index}", op.region, len(op.shape)


def _differs(old: PlannedOp, new: PlannedOp, names: Mapping[str, str]) -> bool:
    if not old.spec.equivalent(new.spec):
        return True
    # Ignore the source line of an origin, which moves with any edit.
    first = {a: (o.kind, names.get(o.name, o.name)) for a, o in old.origins.items()}
    return first != {a: (o.kind, o.name) for a, o in new.origins.items()}
