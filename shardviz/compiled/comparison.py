"""compare(): how collectives change from one stage to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardviz.base.collective import Collective
from shardviz.base.collective_matching import becomes_async, match
from shardviz.base.display import Displayed, Fact, explanation
from shardviz.plans.plan import Plan
from shardviz.plans.plan_values import PlannedOp

#: The kinds of change, in the order in which they are counted.
CHANGES = (
    "kept",
    "combined",
    "made asynchronous",
    "hoisted",
    "split",
    "changed",
    "removed",
    "added",
)
# Kinds of change that may have different numbers of collectives before and after.
_SEVERAL = ("combined", "split", "changed")


@dataclass(frozen=True)
class CollectiveChange(Fact):
    """The change of one collective, or of several that belong together.

    Attributes:
        kind: one of CHANGES.
        before: the collectives at the earlier stage; empty for an added one.
        after: the collectives at the later stage; empty for a removed one.
        stages: the names of the two stages.
        positions: indices of `before` and `after` among the collectives of their
            stages.
        equal_values: the names of two equal values of the plan, if XLA computes only
            one of them and the removed collective belongs to the other; else `()`.

    >>> c = Collective("all-reduce", ("data",), 1024, source="block.py:31", group_size=2)
    >>> print(CollectiveChange("kept", (c,), (c,)))
    Kept: an all-reduce that sends 1 KiB over data (block.py:31).
    """

    kind: str
    before: tuple[Collective, ...]
    after: tuple[Collective, ...]
    stages: tuple[str, str] = ("partitioned", "compiled")
    positions: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    equal_values: tuple[str, ...] = ()

    @property
    def bytes_per_device(self) -> int:
        """The larger of the total bytes before and after, over all executions."""
        # Collectives may be missing before or after, or be moved out of a loop.
        return max(total_bytes(self.before), total_bytes(self.after))

    @property
    def drawn_bytes(self) -> int:
        """The larger of the total bytes before and after, as in `Collective`."""
        sides = (self.before, self.after)
        return max(sum(c.drawn_bytes for c in side) for side in sides)

    @property
    def becomes_async(self) -> bool:
        """Whether the collectives are now asynchronous, but were not before."""
        return becomes_async(self.before, self.after)


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The matched collectives of two stages.

    Attributes:
        before: the name of the earlier stage.
        after: the name of the later stage.
        changes: the changes; each collective of both stages is in exactly one of them.

    >>> c = Collective("all-reduce", ("data",), 1024)
    >>> comparison = compare([c, c], [c])
    >>> comparison.short, comparison.same, len(comparison)
    ('1 kept, 1 removed', False, 2)
    """

    before: str
    after: str
    changes: tuple[CollectiveChange, ...]

    @property
    def same(self) -> bool:
        """True if both stages have the same collectives."""
        return all(c.kind == "kept" for c in self.changes)

    @property
    def short(self) -> str:
        """A summary of the changes, such as `2 kept, 3 combined into 1, 1 added`."""
        if not self.changes:
            return "no collectives"
        # A plan is an estimate, so whether it was right matters more than a count.
        if self.same and self.before == "propagated":
            return "as planned"
        number = Counter(c.kind for c in self.changes)
        counted = []
        for kind in CHANGES:
            if kind in _SEVERAL and number[kind]:
                before = sum(len(c.before) for c in self.of(kind))
                after = sum(len(c.after) for c in self.of(kind))
                counted.append(f"{before} {kind} into {after}")
            elif number[kind]:
                counted.append(f"{number[kind]} {kind}")
        return ", ".join(counted)

    @property
    def ordered(self) -> list[CollectiveChange]:
        """The changes, most bytes first and unchanged collectives last."""
        return sorted(self.changes, key=lambda c: (c.kind == "kept", -c.drawn_bytes))

    def of(self, kind: str) -> tuple[CollectiveChange, ...]:
        """Returns the changes of one kind, from CHANGES."""
        return tuple(c for c in self.changes if c.kind == kind)

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        return explanation(self)

    def __repr__(self) -> str:
        return f"Comparison({self.before} → {self.after}: {self.short})"


def compare(
    before: Sequence[Collective],
    after: Sequence[Collective],
    names: tuple[str, str] = ("partitioned", "compiled"),
    plan: Plan | None = None,
) -> Comparison:
    """Returns how every collective changed from one stage to another.

    Args:
        before, after: each stage's collectives, in program order.
        names: the names of the two stages.
        plan: the plan that `before` is from, if any.

    >>> small = Collective("all-reduce", ("data",), 1024, shape="f32[256]")
    >>> large = Collective("all-reduce", ("data",), 2048, shape="(f32[256], f32[256])")
    >>> compare([small, small], [large]).changes[0].kind
    'combined'
    """
    changes: list[CollectiveChange] = []
    matches = match(before, after, planned=names[0] == "propagated")
    made = {before[i].value for m in matches if m.kind != "removed" for i in m.before}
    for m in matches:
        old = tuple(before[i] for i in m.before)
        new = tuple(after[j] for j in m.after)
        positions = m.before, m.after
        change = CollectiveChange(m.kind, old, new, names, positions)
        if m.kind == "removed" and plan is not None:
            equal_values = _equal_values(plan, old[0], made)
            change = replace(change, equal_values=equal_values)
        changes.append(change)
    return Comparison(*names, tuple(changes))


def _equal_values(plan: Plan, c: Collective, made: set[str]) -> tuple[str, ...]:
    """Returns the value of a removed sum and an equal value; `()` if there is none.

    Only sums are compared: their operands, sharding rules and reducers define them.

    Args:
        plan: the plan that the sum is from.
        c: the sum.
        made: the names of the values whose collectives the later stage has.
    """
    value = plan.by_name.get(c.value)
    if value is None or value.factors is None or not c.definition.sums:
        return ()
    for other in plan.ops:
        if other.name in made and _definition(other) == _definition(value):
            return other.name, value.name
    return ()


def _definition(op: PlannedOp) -> tuple[object, ...]:
    """What a sum computes, and in which loop or branch."""
    types = (op.shape, op.dtype)
    return op.opcode, op.operands, types, op.factors, op.reducer, op.region


def total_bytes(collectives: Iterable[Collective]) -> int:
    """Returns the bytes of collectives' results, over all loop iterations.

    A loop of unknown length counts once.

    >>> total_bytes([Collective("all-reduce", ("data",), 1024, in_loop=True, trips=12)])
    12288
    """
    return sum(c.bytes_in_all for c in collectives)
