"""match(): which collectives of one stage became which of the next.

A collective has no name that survives the compiler. What survives is what it does and where it
comes from: kind, mesh axes, bytes, whether it is in a loop, the operation and source line. The
steps below ask for all of it first and for less and less afterwards, and each takes its matches
out, so that every collective is matched once.
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


def match(before: Sequence[Collective], after: Sequence[Collective]) -> list[Match]:
    """Every collective of both sides in one Match, in the order of `before`, then of `after`.

    >>> one = Collective("all-reduce", ("data",), 64, op="jit(f)/dot_general")
    >>> match([one], [one])
    [Match(kind='kept', before=(0,), after=(0,))]
    """
    sides = _Sides(before, after)
    if any(c.between_slices for c in after):
        sides.sliced()
    sides.pair(lambda c: (_what(c), c.trips, c.op, c.source, c.operand, c.members), "kept")
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
        sides.replaced(key)
    return sorted(sides.found + sides.rest(), key=_order)


def _what(c: Collective) -> Hashable:
    return c.kind, c.mesh_axes, c.bytes_per_device, c.in_loop


def _position(c: Collective) -> Hashable:
    return (c.op, c.source) if c.op and c.source else None


def _order(found: Match) -> tuple[int, int]:
    last = 1 << 62
    return (found.before[0] if found.before else last, found.after[0] if found.after else last)


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
    return [c.bytes_per_device * n // total for n in counts] if total else [c.bytes_per_device]


def _parts_of(c: Collective) -> list[tuple[int, Member | None]]:
    """The bytes of each array that a combined collective is about, and the array."""
    if c.members:
        return [(m.bytes_per_device, m) for m in c.members]
    return [(size, None) for size in sizes_of_parts(c)]


def _unlike(c: Collective, member: Member) -> int:
    """In how many ways a collective differs from a member that it may have become."""
    return (c.operand != member.operand) + ((c.op, c.source) != (member.op, member.source))


def elements(c: Collective | Member) -> int:
    """How many numbers its result has on each device; 0 where its shape is unknown."""
    return sum(math.prod(int(d) for d in dims.split(",") if d) for dims in _dims(c))


def _dims(c: Collective | Member) -> list[str]:
    return [dims.replace("<=", "").replace(" ", "") for _, dims in _PART.findall(c.shape)]


class _Sides:
    """What is not matched yet, and what is."""

    def __init__(self, before: Sequence[Collective], after: Sequence[Collective]) -> None:
        self.before = dict(enumerate(before))
        self.after = dict(enumerate(after))
        self.found: list[Match] = []

    def take(self, kind: str, before: Sequence[int], after: Sequence[int]) -> None:
        old, new = [self.before.pop(i) for i in before], [self.after.pop(i) for i in after]
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
        """What several slices do together became steps: some inside of a slice, one across."""
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
        """The steps of a sum: in each slice, then across, and where need be gathered again."""
        free = {j: d for j, d in self.after.items() if d.source in ("", c.source)}
        for j, across in free.items():
            if not (across.between_slices and c.kind in _SUMS and across.kind in _SUMS):
                continue
            for k, d in reversed(free.items()):
                axes = {*across.mesh_axes, *d.mesh_axes} == {*c.mesh_axes}
                size = across.group_size * d.group_size == c.group_size > across.group_size
                full = d.bytes_per_device >= c.bytes_per_device  # padded to tiles
                if k < j and d.kind in _SUMS and not d.between_slices and axes and size and full:
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
        """Several of one kind became one about all their arrays: as a tuple, or laid end to end."""
        for j, d in list(self.after.items()):
            chosen = self._of_parts(d) if _parts(d) > 1 else self._end_to_end(d)
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

    def _of_parts(self, combined: Collective) -> list[int]:
        """For every part one that is about as much; by its number of elements where the type
        changed. Those in a loop as `combined`, or outside as it, come first."""
        free = [i for i, c in self.before.items() if _alike(c, combined)]
        free.sort(key=lambda i: self.before[i].in_loop != combined.in_loop)
        combined_elements = elements(combined) or 1
        chosen: list[int] = []
        for size, member in _parts_of(combined):
            count = size * combined_elements // max(1, combined.bytes_per_device)
            fits = [i for i in free if self.before[i].bytes_per_device == size]
            fits = fits or [i for i in free if elements(self.before[i]) == count]
            fits.sort(key=lambda i, m=member: m is not None and _unlike(self.before[i], m))
            if fits:
                chosen.append(fits[0])
                free.remove(fits[0])
        return sorted(chosen)

    def divided(self) -> None:
        """One became several of its kind: its arrays one by one, or one mesh axis at a time."""
        waiting = _grouped(self.after, lambda c: (c.kind, c.op))
        for i, c in list(self.before.items()):
            parts = [j for j in waiting.get((c.kind, c.op), []) if j in self.after]
            if len(parts) < 2:
                continue
            new = [self.after[j] for j in parts]
            along = {d.mesh_axes for d in new} == {c.mesh_axes}
            by_size = along and sum(d.bytes_per_device for d in new) == c.bytes_per_device
            axes = [a for d in new for a in d.mesh_axes]
            if by_size or (len(c.mesh_axes) > 1 and sorted(axes) == sorted(c.mesh_axes)):
                self.take("split", [i], parts)

    def merged(self) -> None:
        """Sums of the same numbers over one axis after the other became one sum over all."""
        for j, d in list(self.after.items()):
            steps = [
                i
                for i, c in self.before.items()
                if (c.kind, c.bytes_per_device, c.op) == (d.kind, d.bytes_per_device, d.op)
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

    def replaced(self, key: Key) -> None:
        """What is left with the same key on both sides: one replaced the other."""
        before, after = _grouped(self.before, key), _grouped(self.after, key)
        for shared, old in before.items():
            if shared is not None and shared in after:
                self.take("replaced", old, after[shared])

    def rest(self) -> list[Match]:
        removed = [Match("removed", (i,), ()) for i in self.before]
        return removed + [Match("added", (), (j,)) for j in self.after]


def _gathered(free: dict[int, Collective], behind: int, scattered: Collective) -> list[int]:
    """The first gather of what was scattered inside of slices; none where nothing was."""
    wanted = scattered.mesh_axes, scattered.group_size, scattered.bytes_per_device
    for j, d in free.items():
        found = d.mesh_axes, d.group_size, d.bytes_per_device
        if j > behind and d.kind == "all-gather" and found == wanted:
            return [j]
    return []


def _alike(c: Collective, combined: Collective) -> bool:
    return (c.kind, c.mesh_axes) == (combined.kind, combined.mesh_axes) and (
        c.in_loop or not combined.in_loop
    )


def _grouped(items: dict[int, Collective], key: Key) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, c in items.items():
        groups[key(c)].append(i)
    return dict(groups)
