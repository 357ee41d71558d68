"""compare(): how the collectives of one stage changed in the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardviz.base.collective import Collective
from shardviz.base.collective_matching import becomes_async, match
from shardviz.base.display import Displayed, Fact, explanation

#: The ways in which collectives change, in the order in which they are counted.
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
# Kinds of change whose two sides may have different numbers of collectives.
_SEVERAL = ("combined", "split", "changed")


@dataclass(frozen=True)
class CollectiveChange(Fact):
    """How one collective changed, or several that belong together.

    Attributes:
        kind: one of CHANGES.
        before: the collectives on the earlier stage; empty if one was added.
        after: the collectives on the later stage; empty if one was removed.
        stages: the names of the two stages.
        positions: the positions of `before` and `after` among the collectives of their
            stages.

    >>> c = Collective("all-reduce", ("data",), 1024, source="block.py:31")
    >>> print(CollectiveChange("kept", (c,), (c,)))
    Kept: an all-reduce of 1 KiB over data (block.py:31).
    """

    kind: str
    before: tuple[Collective, ...]
    after: tuple[Collective, ...]
    stages: tuple[str, str] = ("partitioned", "compiled")
    positions: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def bytes_per_device(self) -> int:
        """The bytes of the larger side, over all executions."""
        # One side may be empty, or may have been moved out of a loop.
        return max(total_bytes(self.before), total_bytes(self.after))

    @property
    def becomes_async(self) -> bool:
        """Whether other work can now run meanwhile, but could not before."""
        return becomes_async(self.before, self.after)


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The collectives of two stages, matched.

    Attributes:
        before: the name of the earlier stage.
        after: the name of the later stage.
        changes: every collective of both sides in exactly one CollectiveChange.

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
        """The changes in a few words: `2 kept, 3 combined into 1, 1 added`."""
        if not self.changes:
            return "no collectives"
        # A plan is an estimate, so its success matters more than a count.
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
        """The changes by their bytes, with unchanged collectives last."""
        return sorted(
            self.changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device)
        )

    def of(self, kind: str) -> tuple[CollectiveChange, ...]:
        """The changes of one kind of CHANGES."""
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
) -> Comparison:
    """How every collective changed from one stage to another.

    Args:
        before, after: the collectives of each stage, in the order of the program.
        names: the names of the two stages.

    >>> small = Collective("all-reduce", ("data",), 1024, shape="f32[256]")
    >>> large = Collective("all-reduce", ("data",), 2048, shape="(f32[256], f32[256])")
    >>> compare([small, small], [large]).changes[0].kind
    'combined'
    """
    changes: list[CollectiveChange] = []
    for m in match(before, after, planned=names[0] == "propagated"):
        old = tuple(before[i] for i in m.before)
        new = tuple(after[j] for j in m.after)
        positions = m.before, m.after
        changes.append(CollectiveChange(m.kind, old, new, names, positions))
    return Comparison(*names, tuple(changes))


def total_bytes(collectives: Iterable[Collective]) -> int:
    """The bytes of collectives on each device, each loop counted as often as it runs.

    A loop of unknown length counts once.

    >>> total_bytes([Collective("all-reduce", ("data",), 1024, in_loop=True, trips=12)])
    12288
    """
    return sum(c.bytes_in_all for c in collectives)
