"""match(): which collectives of one stage became which of the next.

A collective has no name that survives the compiler. What survives is what it does and
where it comes from: kind, mesh axes, bytes, whether it is in a loop, the operation and
source line. The steps below ask for all of it first and for less and less afterwards,
and each takes its matches out, so that every collective is matched once.

What then seems to be gone is balanced: compilers pack collectives into one message,
move them out of loops and peel iterations, under other names, but they communicate the
same numbers of a kind over an axis. So a collective is `removed` only where these
really are fewer than before.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from shardviz.core.program.report import Collective, Member

_PART = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_WIDTH = re.compile(r"\d+")  # bits of an element: bf16, f8e4m3
_SUMS = ("all-reduce", "reduce-scatter")
Key = Callable[[Collective], Hashable]


class Match(NamedTuple):
    """Collectives that belong together, by their positions on each side.

    Attributes:
        kind: what became of them, one of `comparison.CHANGES`.
        before, after: positions in the two sequences.
    """

    kind: str
    before: tuple[int, ...]
    after: tuple[int, ...]


def match(
    before: Sequence[Collective], after: Sequence[Collective], planned: bool = False
) -> list[Match]:
    """Every collective of both sides in one Match, in the order of `before`, then of
    `after`.

    Args:
        before, after: the collectives of two stages.
        planned: whether `before` is an estimate, which need not become anything.

    >>> one = Collective("all-reduce", ("data",), 64, op="jit(f)/dot_general")
    >>> match([one], [one])
    [Match(kind='kept', before=(0,), after=(0,))]
    """
    sides = _Sides(before, after)
    if any(c.between_slices for c in after):
        sides.sliced()
    sides.pair(
        lambda c: (_what(c), c.trips, c.op, c.source, c.operand, c.members), "kept"
    )
    sides.pair(lambda c: (_what(c), c.trips, c.op, c.source), "kept")
    sides.unrolled()
    sides.pair(lambda c: (_what(c), c.op, c.source), "kept")
    sides.pair(lambda c: (_what(c), _parts(c), c.op or c), "kept")
    sides.pair(lambda c: (_what(c), _parts(c), c.source or c), "kept")
    sides.hoisted(lambda c: (c.op or c, c.source))
    sides.hoisted(lambda c: c.source or c)
    sides.combined()
    sides.retyped(lambda c: (c.op or c, c.source))
    sides.retyped(lambda c: c.source or c)
    sides.pair(lambda c: (_what(c), _parts(c)), "kept")
    sides.hoisted(lambda c: None)
    sides.divided()
    sides.scattered()
    sides.merged()
    for key in (_position, lambda c: c.source or None, lambda c: c.op or None):
        sides.replaced(key, planned)
    found = _balanced(sides.found + sides.rest(), before, after, planned)
    return sorted(found, key=_order)


def _what(c: Collective) -> Hashable:
    return c.kind, c.mesh_axes, c.bytes_per_device, c.in_loop


def _position(c: Collective) -> Hashable:
    return (c.op, c.source) if c.op and c.source else None


def _order(found: Match) -> tuple[int, int]:
    last = 1 << 62
    return (
        found.before[0] if found.before else last,
        found.after[0] if found.after else last,
    )


def _parts(c: Collective) -> int:
    """How many arrays it is about; the parts of an all-to-all's tuple are one array."""
    return 1 if c.kind == "all-to-all" else max(1, len(_PART.findall(c.shape)))


def sizes_of_parts(c: Collective) -> list[int]:
    """Bytes of each array that it is about; they sum up to its bytes.

    >>> c = Collective("all-reduce", ("data",), 96, shape="(f32[8], f32[16])")
    >>> sizes_of_parts(c)
    [32, 64]
    """
    counts = [math.prod(int(d) for d in dims.split(",") if d) for dims in _dims(c)]
    total = sum(counts)
    return (
        [c.bytes_per_device * n // total for n in counts]
        if total
        else [c.bytes_per_device]
    )


def _parts_of(c: Collective) -> list[tuple[int, Member | None]]:
    """The bytes of each array that a combined collective is about, and the array."""
    if c.members:
        return [(m.bytes_per_device, m) for m in c.members]
    return [(size, None) for size in sizes_of_parts(c)]


def _unlike(c: Collective, member: Member) -> int:
    """In how many ways a collective differs from a member that it may have become."""
    return (c.operand != member.operand) + (
        (c.op, c.source) != (member.op, member.source)
    )


def elements(c: Collective | Member) -> int:
    """How many numbers its result has on each device; 0 where its shape is unknown."""
    return sum(math.prod(int(d) for d in dims.split(",") if d) for dims in _dims(c))


def _numbers(c: Collective) -> int:
    """How many numbers its bytes are, in whatever type; 0 where its shape is unknown."""
    bits = 0
    for (kind, _), dims in zip(_PART.findall(c.shape), _dims(c), strict=True):
        width = _WIDTH.search(kind)
        bits += math.prod(int(d) for d in dims.split(",") if d) * (
            int(width[0]) if width else 8
        )
    return c.bytes_per_device * 8 * elements(c) // bits if bits else 0


def _dims(c: Collective | Member) -> list[str]:
    return [
        dims.replace("<=", "").replace(" ", "") for _, dims in _PART.findall(c.shape)
    ]


class _Sides:
    """What is not matched yet, and what is."""

    def __init__(
        self, before: Sequence[Collective], after: Sequence[Collective]
    ) -> None:
        self.before = dict(enumerate(before))
        self.after = dict(enumerate(after))
        self.found: list[Match] = []

    def take(self, kind: str, before: Sequence[int], after: Sequence[int]) -> None:
        old, new = (
            [self.before.pop(i) for i in before],
            [self.after.pop(i) for i in after],
        )
        begins = any(c.is_async for c in new) and not any(c.is_async for c in old)
        kind = "made asynchronous" if kind == "kept" and begins else kind
        self.found.append(Match(kind, tuple(before), tuple(after)))

    def pair(self, key: Key, kind: str) -> None:
        """One with one, in order, where both have the same key."""
        waiting = _grouped(self.after, key)
        for i, c in list(self.before.items()):
            if (same := waiting.get(key(c))) is not None and same:
                self.take(kind, [i], [same.pop(0)])

    def sliced(self) -> None:
        """What several slices do together became steps: some inside of a slice, one
        across.
        """
        for i, c in list(self.before.items()):
            find = self._moves if c.kind == "collective-permute" else self._sums
            if not c.between_slices and (steps := find(c)):
                self.take("split", [i], steps)

    def _moves(self, c: Collective) -> list[int]:
        """The steps of a permutation: each moves some of its pairs, and together all."""
        pairs = set(c.groups)
        steps = [
            j
            for j, d in self.after.items()
            if (d.kind, d.bytes_per_device) == (c.kind, c.bytes_per_device)
            and d.groups
            and pairs > set(d.groups)
        ]
        moved = [pair for j in steps for pair in self.after[j].groups]
        return steps if len(steps) > 1 and sorted(moved) == sorted(pairs) else []

    def _sums(self, c: Collective) -> list[int]:
        """The steps of a sum: in each slice, then across, and where need be gathered
        again.
        """
        free = {j: d for j, d in self.after.items() if d.source in ("", c.source)}
        for j, across in free.items():
            if not (across.between_slices and c.kind in _SUMS and across.kind in _SUMS):
                continue
            for k, d in reversed(free.items()):
                axes = {*across.mesh_axes, *d.mesh_axes} == {*c.mesh_axes}
                size = (
                    across.group_size * d.group_size == c.group_size > across.group_size
                )
                full = d.bytes_per_device >= c.bytes_per_device  # padded to tiles
                if (
                    k < j
                    and d.kind in _SUMS
                    and not d.between_slices
                    and axes
                    and size
                    and full
                ):
                    return [k, j, *_gathered(free, j, d)]
        return []

    def unrolled(self) -> None:
        """One in a loop became several, whose execution counts sum up to its own."""
        key = lambda c: (c.kind, c.mesh_axes, c.bytes_per_device, c.op, c.source)  # noqa: E731
        waiting = _grouped(self.after, key)
        for i, c in list(self.before.items()):
            copies = waiting.get(key(c), [])
            trips = sum(self.after[j].trips or 0 for j in copies)
            if len(copies) > 1 and c.in_loop and c.trips == trips:
                self.take("split", [i], copies)
                waiting[key(c)] = []

    def hoisted(self, key: Key) -> None:
        """One in a loop became one outside of it, for one iteration or for all at once."""
        for i, c in list(self.before.items()):
            if not c.in_loop:
                continue
            sizes = {c.bytes_per_device, c.bytes_per_device * (c.trips or 1)}
            for j, d in self.after.items():
                same = (c.kind, c.mesh_axes, key(c)) == (d.kind, d.mesh_axes, key(d))
                if same and not d.in_loop and d.bytes_per_device in sizes:
                    self.take("hoisted", [i], [j])
                    break

    def retyped(self, key: Key) -> None:
        """About the same numbers, which are sent in another type."""
        same = lambda c: (c.kind, c.mesh_axes, c.in_loop, elements(c) or c, key(c))  # noqa: E731
        self.pair(same, "replaced")

    def combined(self) -> None:
        """Several of one kind became one about all their arrays: as a tuple, or laid
        end to end.
        """
        for j, d in list(self.after.items()):
            if _parts(d) > 1:
                chosen = self._of_parts(d, _alike) or self._of_parts(d, _scattered)
            else:
                chosen = self._end_to_end(d)
            if len(chosen) > 1:
                self.take("combined", chosen, [j])

    def _end_to_end(self, combined: Collective) -> list[int]:
        """Neighbours whose bytes sum up to those of `combined`, where it is flat."""
        free = [
            i
            for i, c in self.before.items()
            if _alike(c, combined) and c.in_loop == combined.in_loop
        ]
        if len(_dims(combined)) != 1 or "," in _dims(combined)[0]:
            return []
        sizes = [self.before[i].bytes_per_device for i in free]
        for first in range(len(free)):
            total = list(itertools.accumulate(sizes[first:]))
            if combined.bytes_per_device in total:
                return free[first : first + total.index(combined.bytes_per_device) + 1]
        return []

    def _of_parts(
        self, combined: Collective, fit: Callable[[Collective, Collective], bool]
    ) -> list[int]:
        """For every part one that is about as much; by its number of elements where
        the type changed. Those in a loop as `combined`, or outside as it, come
        first."""
        free = [i for i, c in self.before.items() if fit(c, combined)]
        free.sort(key=lambda i: self.before[i].in_loop != combined.in_loop)
        combined_elements = elements(combined) or 1
        chosen: list[int] = []
        for size, member in _parts_of(combined):
            count = size * combined_elements // max(1, combined.bytes_per_device)
            fits = [i for i in free if self.before[i].bytes_per_device == size]
            fits = fits or [i for i in free if elements(self.before[i]) == count]
            fits.sort(
                key=lambda i, m=member: m is not None and _unlike(self.before[i], m)
            )
            if fits:
                chosen.append(fits[0])
                free.remove(fits[0])
        return sorted(chosen)

    def divided(self) -> None:
        """One became several of its kind: its arrays one by one, or one mesh axis at a
        time.
        """
        waiting = _grouped(self.after, lambda c: (c.kind, c.op))
        for i, c in list(self.before.items()):
            parts = [j for j in waiting.get((c.kind, c.op), []) if j in self.after]
            if len(parts) < 2:
                continue
            new = [self.after[j] for j in parts]
            along = {d.mesh_axes for d in new} == {c.mesh_axes}
            by_size = (
                along and sum(d.bytes_per_device for d in new) == c.bytes_per_device
            )
            axes = [a for d in new for a in d.mesh_axes]
            if by_size or (
                len(c.mesh_axes) > 1 and sorted(axes) == sorted(c.mesh_axes)
            ):
                self.take("split", [i], parts)

    def merged(self) -> None:
        """Sums of the same numbers over one axis after the other became one sum over
        all.
        """
        for j, d in list(self.after.items()):
            steps = [
                i
                for i, c in self.before.items()
                if (c.kind, c.bytes_per_device, c.op)
                == (d.kind, d.bytes_per_device, d.op)
            ]
            axes = [a for i in steps for a in self.before[i].mesh_axes]
            if len(steps) > 1 and sorted(axes) == sorted(d.mesh_axes):
                self.take("combined", steps, [j])

    def scattered(self) -> None:
        """A sum of which each device keeps a part only."""
        for key in (lambda c: (c.op, c.source), lambda c: c.op, lambda c: None):
            for i, c in list(self.before.items()):
                size = (c.mesh_axes, c.bytes_per_device, key(c))
                for j, d in self.after.items():
                    kinds = (c.kind, d.kind) == ("all-reduce", "reduce-scatter")
                    if kinds and size == (d.mesh_axes, d.bytes_per_device, key(d)):
                        self.take("replaced", [i], [j])
                        break

    def replaced(self, key: Key, planned: bool) -> None:
        """What is left with the same key on both sides: one replaced the other.

        A compiler changes kinds and sizes, but not the axes; an estimate may be wrong
        in these.
        """
        before, after = _grouped(self.before, key), _grouped(self.after, key)
        for shared, old in before.items():
            if shared is None or shared not in after:
                continue
            for few, many in (
                [(old, after[shared])] if planned else self._by_axes(old, after[shared])
            ):
                if few and many:
                    self.take("replaced", few, many)

    def _by_axes(
        self, old: list[int], new: list[int]
    ) -> list[tuple[list[int], list[int]]]:
        """Positions on both sides, apart where they have no axis in common."""
        groups: list[tuple[set[str], list[int], list[int]]] = []
        sides = [(self.before[i].mesh_axes, [i], []) for i in old]
        sides += [(self.after[j].mesh_axes, [], [j]) for j in new]
        for axes, few, many in sides:
            together = set(axes or ("",))
            for group in [g for g in groups if g[0] & together]:
                groups.remove(group)
                together, few, many = (
                    together | group[0],
                    group[1] + few,
                    group[2] + many,
                )
            groups.append((together, few, many))
        return [(few, many) for _, few, many in groups]

    def rest(self) -> list[Match]:
        removed = [Match("removed", (i,), ()) for i in self.before]
        return removed + [Match("added", (), (j,)) for j in self.after]


def _gathered(
    free: dict[int, Collective], behind: int, scattered: Collective
) -> list[int]:
    """The first gather of what was scattered inside of slices; none where nothing was."""
    wanted = scattered.mesh_axes, scattered.group_size, scattered.bytes_per_device
    for j, d in free.items():
        found = d.mesh_axes, d.group_size, d.bytes_per_device
        if j > behind and d.kind == "all-gather" and found == wanted:
            return [j]
    return []


def _balanced(
    found: list[Match],
    before: Sequence[Collective],
    after: Sequence[Collective],
    planned: bool,
) -> list[Match]:
    """The matches, where nothing is removed whose numbers are in another match.

    Those that lost and those that gained numbers of one family over a common axis
    belong together. Of what is communicated less than before, what is known to be done
    by another's work is left out first.
    """
    ledger = _Ledger(before, after)
    losing = {
        m for m in found if m.kind == "removed" or (not planned and ledger.is_less(m))
    }
    for group in ledger.groups(found, losing, 1):
        gaining = [m for m in group if m not in losing and m in found]
        less = [m for m in group if m in losing and m in found]
        if not ledger.conserves(less, gaining):
            less = [m for m in less if not _is_known(m, found, before)]
            gaining = [
                m for m in gaining if m in found
            ]  # what is known joined one of them
            if planned:
                continue
        if less and gaining:
            _regroup(found, less + gaining)
    for group in ledger.groups(found, {m for m in found if m.kind == "added"}, -1):
        if len(group) > 1 and not any(ledger.total(group).values()):
            _regroup(found, group)
    return [ledger.named(m) for m in found]


def _regroup(found: list[Match], some: list[Match]) -> None:
    """Makes one match of some."""
    for m in some:
        found.remove(m)
    old = tuple(sorted(i for m in some for i in m.before))
    new = tuple(sorted(j for m in some for j in m.after))
    found.append(Match("regrouped", old, new))


def _is_known(removed: Match, found: list[Match], before: Sequence[Collective]) -> bool:
    """Whether the program's text shows why one is removed.

    It repeats one that is still there; or the results of both are added up, so that one
    sum does for both: then it joins the match of the other.
    """
    if removed.kind != "removed":
        return False
    (position,) = removed.before
    old = before[position]
    others = [m for m in found if m.after]
    if any(same_work(old, before[i]) for m in others for i in m.before):
        return True
    for m in others if old.added_in else ():
        if any(_added_together(old, before[i]) for i in m.before):
            found.remove(removed)
            found[found.index(m)] = Match(
                "combined", tuple(sorted((*m.before, position))), m.after
            )
            return True
    return False


def same_work(one: Collective, other: Collective) -> bool:
    """Whether one of two collectives of a module repeats the other, or both a third."""
    first = one.repeats or one.name
    return bool(one.repeats or other.repeats) and first == (other.repeats or other.name)


def _added_together(one: Collective, other: Collective) -> bool:
    """Whether one addition takes the results of both, so that one sum does for both."""
    same = (one.kind, one.mesh_axes, one.shape, one.trips) == (
        other.kind, other.mesh_axes, other.shape, other.trips,
    )  # fmt: skip
    return same and one.added_in == other.added_in != ""


class _Ledger:
    """How many numbers each match gains and loses, by family of kinds and mesh axis."""

    def __init__(
        self, before: Sequence[Collective], after: Sequence[Collective]
    ) -> None:
        self.before, self.after = before, after
        self.shapes_known = all(_numbers(c) for c in (*before, *after))

    def amount(self, c: Collective, otherwise: float) -> float:
        """How many numbers it communicates in all: bytes where a shape is not known.

        Args:
            c: the collective.
            otherwise: how often it runs where that is not known.
        """
        each = _numbers(c) if self.shapes_known else c.bytes_per_device
        often = otherwise if c.trips is None else c.trips
        return each and each * often  # nothing, however often, is nothing

    def change(self, m: Match) -> dict[tuple[str, str], float]:
        """The gain of each family over each axis; negative for a loss."""
        # What runs equally often on both sides, though nobody knows how often, is
        # compared once.
        alike = {c.trips for c in self.sides(m)} == {None}
        change: dict[tuple[str, str], float] = defaultdict(int)
        for i in m.before:
            for key in _keys(self.before[i]):
                change[key] -= self.amount(self.before[i], 1)
        for j in m.after:
            for key in _keys(self.after[j]):
                change[key] += self.amount(self.after[j], 1 if alike else math.inf)
        return change

    def is_less(self, m: Match) -> bool:
        """Whether one replaced another of its kind, with less than that communicates."""
        kinds = {c.kind for c in self.sides(m)}
        return (
            m.kind == "replaced"
            and len(kinds) == 1
            and any(v < 0 for v in self.change(m).values())
        )

    def groups(
        self, found: list[Match], wanted: set[Match], sign: int
    ) -> list[list[Match]]:
        """Wanted ones, each with those whose numbers change with this sign over one
        of its axes, directly or through others."""
        groups: list[tuple[set[tuple[str, str]], list[Match]]] = []
        for m in found:
            change = self.change(m)
            keys = {k for k in change if m in wanted or change[k] * sign > 0}
            some = [m]
            for group in [g for g in groups if g[0] & keys]:
                groups.remove(group)
                keys, some = keys | group[0], group[1] + some
            if keys:
                groups.append((keys, some))
        return [some for _, some in groups if wanted & set(some)]

    def conserves(self, removed: Sequence[Match], gaining: Sequence[Match]) -> bool:
        """Whether over one of the axes as much is gained as is lost."""
        lost, gained = self.total(removed), self.total(gaining)
        return any(gained.get(key, 0) >= -loss for key, loss in lost.items())

    def total(self, some: Sequence[Match]) -> dict[tuple[str, str], float]:
        """The changes of several matches together."""
        total: dict[tuple[str, str], float] = defaultdict(int)
        for m in some:
            for key, gain in self.change(m).items():
                total[key] += gain
        return total

    def named(self, m: Match) -> Match:
        """A match as its numbers show it: several became one, or one several, and none
        is lost.
        """
        kinds = {_family(c) for c in self.sides(m)}
        uncertain = m.kind in ("replaced", "regrouped")
        if uncertain and len(kinds) == 1 and not any(self.change(m).values()):
            if len(m.before) > len(m.after) == 1:
                return m._replace(kind="combined")
            if len(m.after) > len(m.before) == 1:
                return m._replace(kind="split")
        return m

    def sides(self, m: Match) -> list[Collective]:
        """The collectives of a match, of both stages."""
        return [self.before[i] for i in m.before] + [self.after[j] for j in m.after]


def _family(c: Collective) -> str:
    return "sum" if c.kind in _SUMS else c.kind


def _keys(c: Collective) -> list[tuple[str, str]]:
    """What its numbers are booked on: its family over each of its axes."""
    return [(_family(c), axis) for axis in c.mesh_axes or ("",)]


def _alike(c: Collective, combined: Collective) -> bool:
    return (c.kind, c.mesh_axes) == (combined.kind, combined.mesh_axes) and (
        c.in_loop or not combined.in_loop
    )


def _scattered(c: Collective, combined: Collective) -> bool:
    """Whether a sum may be part of a combined one, of which each device keeps its
    shard.
    """
    kinds = c.kind, combined.kind
    same = (c.mesh_axes, c.in_loop) == (combined.mesh_axes, combined.in_loop)
    return same and kinds == ("all-reduce", "reduce-scatter")


def _grouped(items: dict[int, Collective], key: Key) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, c in items.items():
        groups[key(c)].append(i)
    return dict(groups)
