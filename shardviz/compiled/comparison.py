"""compare(): what became of the collectives of one stage in the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardviz.base.collective import Collective
from shardviz.base.collective_matching import becomes_async, match
from shardviz.base.display import Displayed, Fact, explanation

#: What may become of collectives, in the order in which changes are counted.
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
# Kinds of change whose two sides may be of different number.
_SEVERAL = ("combined", "split", "changed")


@dataclass(frozen=True)
class CollectiveChange(Fact):
    """What became of one collective, or of several that belong together.

    Attributes:
        kind: one of CHANGES.
        before: the collectives on the earlier stage; none where one was added.
        after: the collectives on the later stage; none where one was removed.
        stages: the names of the two stages.
        positions: where those before and after are among the collectives of each stage.

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
        """The bytes of the larger side, each loop counted as often as it runs."""
        # One side may be empty, and the other may be what was hoisted out of a loop.
        return max(total_bytes(self.before), total_bytes(self.after))

    @property
    def becomes_async(self) -> bool:
        """Whether other work can run meanwhile, and could not before."""
        return becomes_async(self.before, self.after)


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The collectives of two stages, matched.

    Attributes:
        before: the name of the earlier stage.
        after: the name of the later stage.
        changes: every collective of both sides in exactly one CollectiveChange.

    >>> c = Collective("all-reduce", ("data",), 1024)
    >>> found = compare([c, c], [c])
    >>> found.short, found.same, len(found)
    ('1 kept, 1 removed', False, 2)
    """

    before: str
    after: str
    changes: tuple[CollectiveChange, ...]

    @property
    def same(self) -> bool:
        """Whether every collective of the one side is on the other, and no more."""
        return all(c.kind == "kept" for c in self.changes)

    @property
    def short(self) -> str:
        """The changes in a few words: `2 kept, 3 combined into 1, 1 added`."""
        if not self.changes:
            return "no collectives"
        # A plan is an estimate: that it came true says more than a count.
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
        """The changes, those that changed first, then by their bytes."""
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
    """What became of every collective from one stage to another.

    Args:
        before, after: the collectives of each stage, in the order of the program.
        names: the names of the two stages.

    >>> small = Collective("all-reduce", ("data",), 1024, shape="f32[256]")
    >>> large = Collective("all-reduce", ("data",), 2048, shape="(f32[256], f32[256])")
    >>> compare([small, small], [large]).changes[0].kind
    'combined'
    """
    changes = []
    for m in match(before, after, planned=names[0] == "propagated"):
        old = tuple(before[i] for i in m.before)
        new = tuple(after[j] for j in m.after)
        at = m.before, m.after
        changes.append(CollectiveChange(m.kind, old, new, names, at))
    return Comparison(*names, tuple(changes))


def total_bytes(collectives: Iterable[Collective]) -> int:
    """The bytes of collectives on each device, each loop counted as often as it runs.

    A loop of unknown length counts once.

    >>> total_bytes([Collective("all-reduce", ("data",), 1024, in_loop=True, trips=12)])
    12288
    """
    return sum(c.bytes_in_all for c in collectives)
