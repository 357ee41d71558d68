"""compare() -> Comparison: what became of every collective from one rung to another. Pure data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardviz.core.display import Displayed
from shardviz.core.errors import ProgramError, shown, suggestion
from shardviz.core.program.hlo.change_words import sentence
from shardviz.core.program.hlo.matching import Match, elements, match
from shardviz.core.program.report import Collective

CHANGES = (
    "kept",
    "combined",
    "made asynchronous",
    "hoisted",
    "split",
    "replaced",
    "removed",
    "added",
)


@dataclass(frozen=True)
class Change:
    """What became of one collective, or of several that belong together.

    Attributes:
        kind: one of CHANGES.
        before: the collectives on the earlier rung; none where one was added.
        after: the collectives on the later rung; none where one was removed.
        words: the same in one sentence, with the reason where it is known.

    >>> c = Collective("all-reduce", ("data",), 1024, source="block.py:31")
    >>> print(Change("kept", (c,), (c,), "Kept: an all-reduce of 1 KiB over data."))
    Kept: an all-reduce of 1 KiB over data.
    """

    kind: str
    before: tuple[Collective, ...]
    after: tuple[Collective, ...]
    words: str

    @property
    def bytes_per_device(self) -> int:
        """The bytes of the larger side, each loop counted as often as it runs."""
        return max(total_bytes(self.before), total_bytes(self.after))

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """The collectives of two rungs, matched.

    Attributes:
        before: the name of the earlier rung.
        after: the name of the later rung.
        changes: every collective of both sides in exactly one Change.
        notes: what else changed, in sentences.

    >>> c = Collective("all-reduce", ("data",), 1024)
    >>> found = compare([c, c], [c])
    >>> found.short, found.same, len(found)
    ('1 kept, 1 removed', False, 2)
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether every collective of the one side is on the other, and no more than these."""
        return all(c.kind == "kept" for c in self.changes)

    @property
    def counts(self) -> dict[str, int]:
        """How many changes there are of each kind, in the order of CHANGES."""
        found = Counter(c.kind for c in self.changes)
        return {kind: found[kind] for kind in CHANGES if found[kind]}

    @property
    def short(self) -> str:
        """The changes in a few words: `2 kept, 3 combined into 1, 1 added`."""
        if not self.changes:
            return "no collectives"
        if self.same and self.before == "propagated":
            return "as planned"
        return ", ".join(map(self._counted, self.counts))

    @property
    def lines(self) -> tuple[str, ...]:
        """The comparison, one sentence a line; those that changed come first."""
        changed = sorted(self.changes, key=lambda c: (c.kind == "kept", -c.bytes_per_device))
        head = f"From {self.before} to {self.after}: {self.short}."
        return (head, *self.notes, *(c.words for c in changed))

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind.

        Raises:
            ProgramError: if there is no such kind.
        """
        if kind not in CHANGES:
            raise ProgramError(f"{shown(kind)} is no kind of change.{suggestion(kind, CHANGES)}")
        return tuple(c for c in self.changes if c.kind == kind)

    def _counted(self, kind: str) -> str:
        some = self.of(kind)
        many, new = (sum(len(side) for side in s) for s in _sides(some))
        if kind in ("combined", "split", "replaced"):
            word = "replaced by" if kind == "replaced" else f"{kind} into"
            return f"{many} {word} {new}"
        return f"{len(some)} {kind}"

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"Comparison({self.before} → {self.after}: {self.short})"


def compare(
    before: Sequence[Collective],
    after: Sequence[Collective],
    names: Sequence[str] = ("partitioned", "compiled"),
) -> Comparison:
    """What became of every collective from one rung to another.

    Args:
        before, after: the collectives of each rung, in the order of the program.
        names: the names of the two rungs; the sentences speak of them.

    Raises:
        ProgramError: if what was given is no collectives, or no two names.

    >>> small = Collective("all-reduce", ("data",), 1024, shape="f32[256]")
    >>> large = Collective("all-reduce", ("data",), 2048, shape="(f32[256], f32[256])")
    >>> print(compare([small, small], [large]).changes[0])
    2 all-reduces over data were combined into one of 2 KiB: one large message takes less time ...
    """
    old, new = _collectives(before), _collectives(after)
    pair = tuple(names) if not isinstance(names, str) else ()
    if len(pair) != 2 or not all(isinstance(n, str) and n for n in pair):
        raise ProgramError(f"A comparison has two names, one a rung; got {shown(names)}.")
    found = match(old, new)
    kept = [new[j] for m in found for j in m.after]
    changes = (_change(m, old, new, kept, (pair[0], pair[1])) for m in found)
    return Comparison(pair[0], pair[1], tuple(changes))


def inherited(before: Sequence[Collective], after: Sequence[Collective]) -> tuple[Collective, ...]:
    """The collectives of a later rung, with what only the earlier one tells of them.

    Whether a gather rematerialises can be seen in the partitioner's text, and in the final one not
    always. What a collective became inherits the cause, the value of the plan that it is for, and
    its operation and source line where the compiler lost them.

    Args:
        before, after: the collectives of two rungs, such as `partitioned` and `compiled`.

    >>> gather = Collective("all-gather", ("data",), 1024, rematerialises=True)
    >>> inherited([gather], [Collective("all-gather", ("data",), 1024)])[0].rematerialises
    True
    """
    result = list(after)
    for found in match(before, after):
        for j in found.after:
            old = [before[i] for i in found.before]
            if found.kind != "split":  # every step of what was split is for the same
                old = [c for c in old if c.kind == after[j].kind]
            result[j] = _with(after[j], old)
    return tuple(result)


def _with(new: Collective, old: Sequence[Collective]) -> Collective:
    told = [c for c in old if c.rematerialises] or [c for c in old if c.cause]
    cause = new.cause or (told[0].cause if told else "")
    values = {c.value for c in old if c.value}
    placed = [c for c in old if c.source] if not new.source else []
    if placed:
        op = new.op if "/" in new.op else placed[0].op
        new = replace(new, op=op, source=placed[0].source, stack=placed[0].stack)
    return replace(
        new,
        cause=cause,
        value=new.value or (values.pop() if len(values) == 1 else ""),
        rematerialises=new.rematerialises or any(c.rematerialises for c in old),
    )


def _collectives(given: Any) -> tuple[Collective, ...]:
    values = tuple(given) if isinstance(given, Iterable) else (given,)
    wrong = [v for v in values if not isinstance(v, Collective)]
    if wrong:
        raise ProgramError(
            f"compare takes the collectives of two rungs; got {shown(wrong[0])}. Give"
            " report.partitioned and report.collectives, or plan.collectives."
        )
    return values


def _change(
    found: Match,
    before: Sequence[Collective],
    after: Sequence[Collective],
    there: Sequence[Collective],
    names: tuple[str, str],
) -> Change:
    old = tuple(before[i] for i in found.before)
    new = tuple(after[j] for j in found.after)
    twin = found.kind == "removed" and any(_equal(old[0], c) for c in there)
    return Change(found.kind, old, new, sentence(found.kind, old, new, names, twin))


def _equal(one: Collective, other: Collective) -> bool:
    if (one.kind, one.mesh_axes, one.in_loop) != (other.kind, other.mesh_axes, other.in_loop):
        return False
    if one.bytes_per_device == other.bytes_per_device:
        return True
    return elements(one) == elements(other) > 0  # the same numbers in another type


def _sides(changes: Sequence[Change]) -> tuple[list, list]:
    return [c.before for c in changes], [c.after for c in changes]


def total_bytes(collectives: Iterable[Collective]) -> int:
    """The bytes of collectives on each device, each loop counted as often as it runs.

    A loop of unknown length counts once.

    >>> total_bytes([Collective("all-reduce", ("data",), 1024, in_loop=True, trips=12)])
    12288
    """
    return sum(c.bytes_in_all for c in collectives)
